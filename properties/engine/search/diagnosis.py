"""What a failure is about: the smallest case, what is wrong on it, and which of its fields matter."""

from __future__ import annotations

import time

from ..cases.case import Case
from ..contained.link import NoMoreCalls
from ..core.attempt import subject, try_case
from ..core.declare import Property
from ..core.finding import Finding
from ..core.target import Target
from ..core.trial import Violation
from ..frameworks import has_layout

SLOW = 1.0  # seconds after which the fields that matter are not looked for, where each try may cost as much
MATTERS = 10.0  # seconds for which they are looked for
LAID_OUT = ("layout", "grad_layout")  # fields that say how arrays lie in memory


def diagnose(
    target: Target, prop: Property, case: Case, first_at: int, seconds: float, thorough: bool = True, killed: Violation | None = None
) -> Finding:
    """The finding of a smallest case: what is wrong on it, and, if thorough, which of its fields matter.

    ``killed``: the violation in the search, where the process did not come back. If the case alone does not end it, earlier calls had a part.
    """
    began = time.monotonic()
    violation = try_case(target, prop, case)
    thorough = thorough and not (violation and violation.killed and time.monotonic() - began > SLOW)
    if violation is None and killed is not None:
        return Finding(prop, target.name, case, killed, first_at, seconds, address=target.address, alone=False)
    if violation is None:  # failed while searching, holds now
        violation = Violation("the failure does not repeat: the same call gave different answers", float("nan"), float("nan"), 0.0)
        return Finding(prop, target.name, case, violation, first_at, seconds, address=target.address)
    matters, indifferent = _soon(target, prop, case) if thorough else ((), ())
    return Finding(prop, target.name, case, violation, first_at, seconds, matters, indifferent, address=target.address)


def _soon(target: Target, prop: Property, case: Case) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Which fields matter; of a slow target, for which it takes long, none is named."""
    try:
        with subject(target, prop).pace.ending(time.monotonic() + MATTERS):
            return relevance(target, prop, case)
    except NoMoreCalls:
        return (), ()


def relevance(target: Target, prop: Property, case: Case) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Which fields matter: those of which some other value makes the failure vanish."""
    view = subject(target, prop)
    fixed = {name for name, value in prop.domain.items() if not isinstance(value, tuple)}
    matters: list[str] = []
    indifferent: list[str] = []
    for name, known in case.fields().items():
        if not known.varied or name in fixed or not view.kind.varies(view, prop, case, name):
            continue
        about = view.kind.table(prop, name)
        values = tuple(value for value in known.varied if value in about) if isinstance(about, tuple) else known.varied
        values = tuple(value for value in values if value != "none") if "attn_mask" in prop.needs else values
        changed = [case.but(**{name: value}) for value in values if value != getattr(case, name)]
        changed = [
            c
            for c in changed
            if c.dtype in view.dtypes and all(has_layout(view.framework, getattr(c, at, "contiguous")) for at in LAID_OUT)
        ]
        changed = [c for c in changed if view.kind.legal(view, c)]
        simplest = getattr(type(case)(), name)
        if not changed or (name in case.differing() and simplest not in (getattr(c, name) for c in changed)):
            continue  # what it is not tried without may matter
        if all(try_case(view, prop, c) is not None for c in changed):
            indifferent.append(name)
        elif name in case.differing():
            matters.append(name)
    return tuple(matters), tuple(indifferent)
