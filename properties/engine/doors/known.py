"""What is on record for a built-in, where a target that nobody has recorded does just the same: a wrapper of it, say."""

from __future__ import annotations

import contextlib
import dataclasses
import glob
import shlex
from typing import Any

from ..contained.load import MODELS, inputs_of
from ..contained.stub import Shared
from ..core.attempt import try_case
from ..core.crash import isolated
from ..core.declare import declared
from ..core.target import CannotRun, Target
from ..core.words import without_variant
from ..search.alike import recorded
from ..search.deviations import Deviation
from ..search.find_target import Builtins, find_targets
from ..search.floor import ended
from ..search.pairs import make_pair, unknown
from ..search.run import applies
from ..search.search import inapplicable


def known_by_effect(target: Target, deviations: tuple[Deviation, ...], builtins: Builtins, device: str) -> tuple[Deviation, ...]:
    """The deviations of built-ins that the target shares: on the stored case it is refuted by the same property in the same words.

    Other cases leave the search where both fail alike; where the process is killed, all do that the deviation is about, since each costs one.
    """
    shared: dict[str, Deviation] = {}
    for deviation in deviations:
        name = deviation.targets[0]
        entry = builtins.entries.get(name)
        if entry is None or target.framework.name not in entry.needs:  # another library is not even imported
            continue
        if repr(deviation.case) + deviation.shows in shared:
            continue
        deviation = _in_its_types(target, deviation)
        with contextlib.suppress(CannotRun):
            if _alike(target, recorded(name, device), deviation, device):
                reason = f"as {name}: {deviation.reason}"
                shared[repr(deviation.case) + deviation.shows] = dataclasses.replace(
                    deviation,
                    targets=(glob.escape(without_variant(target.name)[0]),),
                    reason=reason,
                    like="" if deviation.kind == "crash" else name,
                )
    return tuple(shared.values())


def _in_its_types(target: Target, deviation: Deviation) -> Deviation:
    """The deviation, shown by its case in a type that the target takes, if that is one of it, too."""
    if deviation.case.dtype in target.dtypes:
        return deviation
    cases = (deviation.case.but(dtype=dtype) for dtype in target.dtypes)
    return dataclasses.replace(deviation, case=next((case for case in cases if deviation.matches(case)), deviation.case))


def known_of(target: Target, device: str = "cpu") -> tuple[Deviation, ...]:
    """The same of all built-ins that there are."""
    builtins = Builtins()
    return known_by_effect(target, builtins.deviations(), builtins, device)


def _alike(target: Target, other: Target, deviation: Deviation, device: str) -> bool:
    if target.framework.name != other.framework.name or target.contract != other.contract:
        return False
    if not (applies(deviation, other, device) and deviation.case.dtype in target.dtypes):
        return False
    prop = declared()[deviation.shows]
    if inapplicable(target, prop):
        return False
    before = len(ended(target))
    with isolated() if deviation.kind == "crash" else contextlib.nullcontext():
        here, there = (try_case(one, prop, deviation.case) for one in (target, other))
    alike = here is not None and there is not None and (here.says, here.raised) == (there.says, there.raised)
    if alike and isinstance(target.framework, Shared):
        target.framework.on_record(before)
    return alike


def beside(target: Target, like: str, builtins: Builtins, device: str) -> Target:
    """The target beside the reference that a text names, or beside itself through a variant (``@compile``). Raises CannotRun if they are no pair."""
    like = target.name + like if like.startswith("@") else like
    found = find_targets(like, builtins, None, device)
    if len(found) != 1:
        raise CannotRun(f"--like needs one reference, {like} names {len(found)}")
    return next_to(target, trusted(found[0].kind.handshake(found[0], device), device))


def trusted(reference: Target, device: str) -> Target:
    """A reference of which it is known how far rounding takes it. Raises CannotRun for a function that answers otherwise than its contract says."""
    if why := unknown(reference, device):
        raise CannotRun(
            f"the weights of the reference {reference.name} do not sum to 1, as those of softmax do ({why}): nobody knows how far rounding takes "
            "such a function; a module (class Model, with a forward) is followed through its own operations by attncheck judge --reference"
        )
    return reference


def next_to(target: Target, reference: Target) -> Target:
    """The target beside a reference that is known. Raises CannotRun if they are no pair."""
    if reference.name.endswith(MODELS):
        called, untried = _as_called(reference)
        reference = dataclasses.replace(reference, called=called)
        target = dataclasses.replace(target, untried={**target.untried, **untried})
    address = f"{target.address or shlex.quote(target.name)} --like {shlex.quote(reference.name)}"
    return dataclasses.replace(make_pair(target, reference), address=address)


def _as_called(reference: Target) -> tuple[dict[str, Any], dict[str, str]]:
    """The fields of a case that is as a function in KernelBench's style is called with its ``get_inputs``, and what of them is not tried.

    The reference is trusted, so that its file is executed here.
    """
    modules = reference.framework.modules
    try:
        makes = inputs_of(without_variant(reference.name)[0])
        if makes is None or modules is None:
            return {}, {}
        called, why = reference.kind.sizes(reference, modules.forms(makes))
    except Exception as error:
        called, why = {}, f"get_inputs() raised {type(error).__name__}"
    return called, {"its own inputs as a whole" if called else "the size of its own inputs": why} if why else {}
