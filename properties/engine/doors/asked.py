"""What the doors of Python are given: a callable, which stays in this process, or a text, whose target gets one of its own."""

from __future__ import annotations

import dataclasses
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..contained.link import Gone
from ..core.supports import Supports
from ..core.target import CannotRun, Target
from ..search.find_target import Builtins, containing, find_targets, users
from ..search.probe import make_target

Asked = Callable[..., Any] | str


def target_of(asked: Asked, supports: Supports | Mapping[str, Any] | None, device: str = "cpu", name: str | None = None) -> Target:
    """The target, under a name and with its address. Raises CannotRun."""
    if not isinstance(asked, str):
        made = make_target(name or str(getattr(asked, "__name__", "attention")), asked, supports, device)
        return dataclasses.replace(made, address=address_of(asked, supports))
    with containing(users(device)):
        found = find_targets(asked, Builtins(), supports, device)
    if len(found) != 1:
        raise CannotRun(f"one target is asked for, {asked} names {len(found)}")
    return dataclasses.replace(found[0], name=name or found[0].name, address=None if supports else shlex.quote(asked))


def spoken_with(target: Target, device: str = "cpu", strict: bool = False) -> Target:
    """The target, with what small questions show of it; ``strict``: as findings where nobody has declared it. Raises CannotRun."""
    try:
        return dataclasses.replace(target.kind.handshake(target, device), strict=strict)
    except Gone as gone:
        raise CannotRun(f"{target.name}: a first call {gone}") from None


def address_of(function: Any, supports: object = None) -> str | None:
    """How the command line finds a function of a file or module; None if it does not, or not with what is declared of it here."""
    name, module = getattr(function, "__qualname__", ""), sys.modules.get(getattr(function, "__module__", None) or "")
    file = getattr(module, "__file__", None)
    if supports or not name or "<" in name or not file:
        return None
    path = Path(file)
    place = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    return shlex.quote(f"{place}:{name}")
