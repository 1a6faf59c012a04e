"""The declared arithmetic is a claim: does a tighter one fit as well, or is a looser one needed?

Kinds of arithmetic are ordered from tight to loose (``arithmetic.kinds``). A tighter kind that fits every case is
reported; an answer that only a looser kind explains has lost precision somewhere: a downgrade.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..engine.core.attempt import attempt
from ..engine.core.finding import Finding
from ..engine.core.target import Target
from ..exact import bound
from ..exact.arithmetic import arithmetic, kinds
from .trial import Run, Trial


def claimed(target: Target, dtype: str) -> str:
    """The declared kind for a dtype, or the loosest sane one."""
    return target.supports.declared(dtype).name


def used_of(run: Run, kind: str) -> float:
    """The largest error / bound of an answer under a kind of arithmetic; elements without a bound do not count."""
    allowed = bound.rigorous(run.exact, arithmetic(kind, run.inputs.dtype))
    error = run.exact.out_error(run.out)
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where((error > 0) & (allowed < np.inf), error / allowed, 0.0)
    return float(np.nan_to_num(share, nan=np.inf).max(initial=0.0))


def note_tighter(t: Trial, run: Run) -> None:
    """Note how much of the bound of every tighter kind an answer uses; one that another answer has left does not fit, and is not asked again."""
    dtype, declared, fits = run.inputs.dtype, claimed(t.target, run.inputs.dtype), t.notes.fits
    ordered = kinds(dtype)
    for kind in ordered[: ordered.index(declared)] if declared in ordered else ():
        key = f"{dtype} {kind}"
        if fits.get(key, 0.0) <= 1:
            fits[key] = max(fits.get(key, 0.0), used_of(run, kind))


def looser_kind(target: Target, finding: Finding) -> str | None:
    """The tightest of the looser kinds of arithmetic under which the property holds of the smallest case, if any.

    Where an answer is infinite or NaN, and should not be, something has overflowed: no kind explains how far it is off.
    """
    dtype, declared = finding.case.dtype, claimed(target, finding.case.dtype)
    ordered = kinds(dtype)
    if finding.violation.raised or declared not in ordered:
        return None
    for kind in ordered[ordered.index(declared) + 1 :]:
        supports = replace(target.supports, arithmetic={**(target.supports.arithmetic or {}), dtype: kind})
        violation, trial = attempt(replace(target, supports=supports), finding.prop, finding.case)
        if any((np.isfinite(run.exact.out) & ~np.isfinite(run.out)).any() for run in trial.runs):
            return None
        if violation is None:
            return kind
    return None
