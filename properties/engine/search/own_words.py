"""What a target in a process of its own, for which nobody vouches, says of itself: told, and held against what it answers."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

from ..contained.stub import Shared
from ..core.declare import Property, declared
from ..core.supports import Supports
from ..core.target import NotTaken, Raised, Target
from .pairs import make_pair
from .search import FIRST_PASS, Plan, search

# Calls that are left out where it says so: what does not take them raises.
CALLS = ("head_dims", "length_multiple", "max_length", "groups", "value_dim", "mask_kinds", "mask_axes", "mask_and_causal", "scales")
LONGER = (1, 2, 5, 16, 65)  # tokens beyond the longest sequence that it names
SECONDS = 5.0  # for each class of calls that it refuses
ASKED = 40  # cases that are asked of what it says that it does not take, for each of these keys


def own_words(target: Target) -> Mapping[str, Any]:
    """What it has declared of itself that nobody else has, and that leaves something out or is no usual convention."""
    if not isinstance(target.framework, Shared):
        return {}
    plain = Supports()
    said = {key: getattr(target.supports, key) for key in sorted(target.own - {"framework", "contract"})}
    return {key: value for key, value in said.items() if value != getattr(plain, key)}


def words_text(said: Mapping[str, Any]) -> str:
    """The same for a person; empty if there is nothing."""
    return ", ".join(f"{key} = {list(value) if isinstance(value, tuple) else value}" for key, value in said.items())


def contradicted(target: Target, plan: Plan) -> str:
    """Why nothing found says little: a scale of its own, or calls that it says it does not take, and answers wrongly; empty otherwise."""
    said = own_words(target)
    if strange := {key: said[key] for key in ("default_scale", "window") if key in said}:
        return f"the target says of itself {words_text(strange)}, as which it is held right: say so in a file for --supports if it is meant"
    if target.differs.get("scale"):
        return f"{target.differs['scale']} in a file for --supports"
    facts = {key: {key: _beyond(key, said[key])} for key in CALLS if key in said}
    wider = {key: dataclasses.replace(target, supports=dataclasses.replace(target.supports, **fact)) for key, fact in facts.items()}
    if "dtypes" in said and (others := tuple(dtype for dtype in target.framework.dtypes if dtype not in target.dtypes)):
        wider["dtypes"] = dataclasses.replace(target, dtypes=others)
    for key, wide in wider.items():
        for name in target.kind.pair:
            prop = declared().get(name)
            if (
                prop is not None
                and search(
                    wide, _if_answered(_longer(prop, said[key]) if key == "max_length" else prop, key.startswith("mask")), plan
                ).finding
            ):
                why = (
                    f"the target says of itself {words_text({key: said[key]})}, but answers what it says that it does not take, and wrongly"
                )
                return f"{why}: say so in a file for --supports if it is meant"
    return ""


def answers_what_it_refuses(target: Target, like: Plan, properties: Collection[Property], deadline: float | None = None) -> str:
    """Which calls it answers, and wrongly, of those that it raises at where the handshake asks; empty if it refuses them or answers rightly.

    Of a pair: as the reference does not.
    """
    few = FIRST_PASS if target.costly_shapes else ASKED
    plan = Plan(few, like.round, like.device, deviations=like.deviations, shrink=False, strict=False, deadline=deadline, seconds=SECONDS)
    for words, left in target.left.items():
        wide = dataclasses.replace(target, supports=dataclasses.replace(target.supports, **left.supports), **left.target)
        if target.like is not None:
            wide = make_pair(wide, target.like)
        prop = next((one for one in properties if one.name == left.prop or wide.like is not None), None)
        if prop is None:
            continue
        domain, needs = {**prop.domain, **left.domain}, (*prop.needs, *left.needs)
        if found := search(wide, _if_answered(dataclasses.replace(prop, domain=domain, needs=needs), False), plan).finding:
            did = f"computes {words} {left.computes}" if left.computes else f"refuses {words}"
            return f"it {did} in the calls that it is asked first, and answers others wrongly: {found.case!r}"
    return ""


def _beyond(key: str, value: Any) -> Any:
    """What it is called with instead: where it has named some of a few, the others; else whatever others take."""
    usual = getattr(Supports(), key)
    return tuple(one for one in usual if one not in value) if isinstance(usual, tuple) else usual


def _longer(prop: Property, longest: int) -> Property:
    """The same property of sequences of more tokens."""
    if not {"queries", "kv_heads"} <= prop.topic.case.fields().keys():
        return prop
    beyond = tuple(longest + more for more in LONGER)
    return dataclasses.replace(prop, domain={**prop.domain, "batch": 1, "kv_heads": 1, "queries": beyond, "keys": beyond, "dim": (4, 8)})


def _if_answered(prop: Property, masked: bool) -> Property:
    """The same property, which a call that raises does not break; mostly with masks, if these are what it is about."""

    def check(trial: Any) -> None:
        try:
            prop.check(trial)
        except NotTaken:
            raise
        except Raised as raised:
            if not raised.refuses:
                raise

    return dataclasses.replace(prop, check=check, domain={**prop.domain, **({"masked": 3} if masked else {})})
