"""Parameters that serve twice: two projections of one attention, two layers of a list, or two parts that are numbered (``norm1`` and
``norm2``), that hold one and the same parameter.

Where a name says that weights are tied or shared, that is meant.
"""

from __future__ import annotations

import re
from typing import Any

from .away import Away
from .candidates import ROLES

MEANT = {"tie", "ties", "tied", "tying", "share", "shares", "shared", "sharing", "albert", "reformer", "universal", "recurrent", "looped"}


def shared(module: Any) -> list[list[str]]:
    """The names of each parameter that has several, a module within that is in two places counted twice."""
    if isinstance(module, Away):
        return [list(names) for names in module.named_twice()]
    names: dict[int, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return [several for several in names.values() if len(several) > 1]


def serving_twice(module: Any) -> str:
    """One sentence on parameters that serve two projections, layers or parts; empty if none does, or a name says that it is meant."""
    if MEANT & _said(module):
        return ""
    found: dict[str, tuple[str, str]] = {}
    for first, *others in shared(module):
        for other in others:
            if kind := _kind(first.split("."), other.split(".")):
                found.setdefault(kind, (first, other))
    both = [f"{first} and {other}, of {kind}" for kind, (first, other) in found.items()]
    return f"one parameter serves {'; '.join(both)}: weights are tied, and no name says so" if both else ""


def _kind(first: list[str], other: list[str]) -> str:
    """What the two names are of; empty if they are tied as embeddings and the last layer are, or are the same but for a prefix."""
    apart = [(a, b) for a, b in zip(first, other, strict=False) if a != b]
    if len(first) != len(other) or len(apart) != 1:
        return ""
    one, two = apart[0]
    if one.isdecimal() and two.isdecimal():
        return "two places in a list"
    if len({re.sub(r"\d+$", "", name) for name in (one, two)}) == 1:
        return "two parts that are numbered"
    parts = [ROLES.get(name.lower().replace("_", ""), "") for name in (one, two)]
    return "two projections of one attention" if all(parts) and parts[0] != parts[1] else ""


def _said(module: Any) -> set[str]:
    """The words in names of classes, attributes and parameters."""
    names = [type(part).__name__ for part in module.modules()]
    names += [name for part in module.modules() for name, value in vars(part).items() if not (value is None or value is False)]
    names += [word for name, _ in module.named_parameters() for word in name.split(".")]
    return {word.lower() for name in names for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)}
