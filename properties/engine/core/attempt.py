"""One case put to one property: it holds, or it does not, and what the target was asked and answered on the way."""

from __future__ import annotations

import dataclasses

import numpy as np

from ..cases.case import Case
from ..contained.limits import no_memory_was_left
from ..contained.link import ENDS, Gone
from ..contained.stub import Shared
from .crash import killed_by, stand_somewhere
from .declare import Property
from .target import NotTaken, Raised, Target, blame
from .trial import Notes, Refuted, Trial, Violation

BOUNDS: dict[str, set[int]] = {}  # property → the runs of its trials whose bound it asks for
NO_ZERO_SIZES = " (zero sizes are not supported? declare zero_sizes = false)"


def attempt(target: Target, prop: Property, case: Case, notes: Notes | None = None) -> tuple[Violation | None, Trial]:
    """Put one case to one property; the violation, None if the property holds, and the trial with all its calls."""
    view = subject(target, prop)
    kind = view.kind.trial(prop)
    if isinstance(view.framework, Shared):
        violation, trial = _elsewhere(prop, case, view, kind(view, case, notes))
        if violation and violation.killed and no_memory_was_left():  # by others, it may be
            violation, trial = _elsewhere(prop, case, view, kind(view, case, notes))
        return violation, trial
    trial = kind(view, case, notes)
    if did := killed_by(lambda: prop.check(kind(view, case))):
        return Violation(f"the call {did}", np.nan, np.nan, 0.0, raised=True, killed=True), trial
    return _violated(prop, case, view, trial), trial


def _elsewhere(prop: Property, case: Case, view: Target, trial: Trial) -> tuple[Violation | None, Trial]:
    """The same of a target in a process of its own."""
    trial.bounds = BOUNDS.setdefault(prop.name, trial.bounds)
    before = len(ENDS)
    violation = _violated(prop, case, view, trial)
    stand_somewhere()
    if len(ENDS) > before:  # whatever the property made of it
        violation = Violation(f"the call {ENDS[before]}", np.nan, np.nan, 0.0, raised=True, killed=True)
    return violation, trial


def blamed(target: Target, prop: Property, case: Case) -> str:
    """What below the target is faulty on this machine, if the property holds of the case where that is left out; empty if it does not."""
    view = subject(target, prop)
    fault = view.framework.faulty(case.dtype, case.device)
    if not fault:
        return ""
    with view.framework.avoiding():
        return fault if attempt(target, prop, case)[0] is None else ""


def _violated(prop: Property, case: Case, view: Target, trial: Trial) -> Violation | None:
    try:
        with np.errstate(all="ignore"):  # what overflows, or is no number, the claims judge
            prop.check(trial)
    except Refuted as refuted:
        return dataclasses.replace(refuted.violation, hint=NO_ZERO_SIZES * case.empty)
    except NotTaken as refusal:
        trial.not_taken = True
        trial.notes.not_taken[refusal.why] += 1
    except Raised as raised:
        if isinstance(raised.error, Gone):
            return _ended(raised.error)
        hint = NO_ZERO_SIZES * case.empty + raised.hint + view.kind.hint(case)
        return Violation(f"the call {blame(raised)}", np.nan, np.nan, 0.0, raised=True, hint=hint)
    except Gone as gone:
        return _ended(gone)
    return None


def _ended(gone: Gone) -> Violation:
    return Violation(f"the call {gone}", np.nan, np.nan, 0.0, raised=True, killed=True)


def try_case(target: Target, prop: Property, case: Case, notes: Notes | None = None) -> Violation | None:
    """Put one case to one property. None if the property holds."""
    return attempt(target, prop, case, notes)[0]


def subject(target: Target, prop: Property) -> Target:
    """What a property is put to: of a layer, where it is about attention, the attention inside."""
    return target.kind.view(target, prop.contract)
