"""One case put to one property: it holds, or it does not, and what the target was asked and answered on the way."""

from __future__ import annotations

import dataclasses

import numpy as np

from ...attention.trial import Notes, Refuted, Trial, Violation
from ...multihead.call import subject
from ...multihead.trial import LayerTrial
from ..cases.case import Case
from ..core.declare import Property
from ..core.families import FAMILIES
from ..core.target import Raised, Target
from .crash import killed_by

NO_ZERO_SIZES = " (zero sizes are not supported? declare zero_sizes = false)"


def attempt(target: Target, prop: Property, case: Case, notes: Notes | None = None) -> tuple[Violation | None, Trial]:
    """Put one case to one property; the violation, None if the property holds, and the trial with all its calls."""
    seen = subject(target, prop)
    trial = trial_of(seen, prop)(seen, case, notes)
    if signal := killed_by(lambda: prop.check(trial_of(seen, prop)(seen, case))):
        return Violation(f"the call killed the process ({signal})", np.nan, np.nan, 0.0, raised=True, killed=True), trial
    try:
        with np.errstate(all="ignore"):  # what overflows, or is no number, the claims judge
            prop.check(trial)
    except Refuted as refuted:
        return dataclasses.replace(refuted.violation, hint=NO_ZERO_SIZES * has_zero_size(case)), trial
    except Raised as raised:
        hint = NO_ZERO_SIZES * has_zero_size(case) + raised.hint
        if target.contract == "sinusoidal" and case.dim % 2:
            hint += " (an odd dim is not supported? declare odd_dim = false)"
        return Violation(f"the call raised {raised}", np.nan, np.nan, 0.0, raised=True, hint=hint), trial
    return None, trial


def trial_of(target: Target, prop: Property) -> type[Trial]:
    """The kind of trial in which a property is put to a target."""
    if target.contract in FAMILIES:
        return FAMILIES[target.contract].trial
    return Trial if prop.contract == "attention" else LayerTrial


def try_case(target: Target, prop: Property, case: Case, notes: Notes | None = None) -> Violation | None:
    """Put one case to one property. None if the property holds."""
    return attempt(target, prop, case, notes)[0]


def has_zero_size(case: Case) -> bool:
    """Whether some dimension of the case is 0."""
    return 0 in (case.batch, case.kv_heads, case.queries, case.keys, case.dim, case.width, *case.chunks[:-1])
