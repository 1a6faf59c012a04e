"""The edges of attention: where no caller is who passes finite numbers, not near the largest, sizes of one or more, rows that see a key."""

from __future__ import annotations

import numpy as np

from ..engine.cases.dtypes import FLOAT_TYPES
from ..engine.core.trial import Trial as BaseTrial
from ..engine.core.trial import Violation
from .case import Case
from .inputs import Inputs
from .trial import Run

# What may be declared of an edge, and then is a claim there, too.
CLAIMS = {
    "sizes of zero": {"zero_sizes"},
    "rows without keys": {"empty_rows", "empty_rows_added", "rows_without_keys"},
    "NaN": {"non_finite"},
}
TINY = 1e-30  # the smallest normal number of a type below which nothing is meant; that of float16 is 6e-5


def edge(case: Case, violation: Violation, trial: BaseTrial) -> str:
    """The edge at which alone an answer is wrong; empty if it is wrong elsewhere, too.

    Near the largest number an answer has to be infinite or NaN: one that is neither, and wrong, has not overflowed. A row without keys is an
    edge as long as nothing else is wrong: a NaN of it in other rows, or in the gradients of keys that others see, is none.
    """
    runs = [run for run in trial.runs if isinstance(run, Run)]
    if case.values == "limits" and (violation.raised or not all(np.isfinite(run.out).all() for run in runs)):  # something has overflowed
        return "numbers near the largest"
    least = FLOAT_TYPES[case.dtype].tiny
    if least < TINY and 0 < violation.difference < 2 * least:
        return (
            "numbers near the smallest"  # some exponentials give 0 a little before those that are not normal begin, as TensorFlow's softmax
        )
    fill = trial.target.supports.fill
    if fill is not None and any(_hides(run.inputs) and largest_logit(run.inputs) > fill for run in runs):
        return f"logits beyond {fill:.0e}, where what is hidden gets a finite number"
    if violation.wrong is None or violation.wrong.ndim != 4 or not runs or any(run.sends_back for run in runs):
        return ""
    empty = [run.exact.empty for run in runs if run.exact.empty is not None]
    wrong = violation.wrong.any(axis=-1)
    if any(rows.shape == wrong.shape and not (wrong & ~rows).any() for rows in map(np.asarray, empty)):
        return "rows without keys"
    return ""


def claimed(edge: str, violation: Violation, declared: frozenset[str]) -> bool:
    """Whether what is wrong at an edge is other than somebody has declared: that NaN may be given says that none raises."""
    return bool(CLAIMS.get(edge, set()) & declared) and (violation.raised or edge != "NaN")


def _hides(inputs: Inputs) -> bool:
    return inputs.mask is not None or inputs.lengths is not None


def largest_logit(inputs: Inputs) -> float:
    """The largest size of a logit, before what is added."""
    k = np.repeat(inputs.k, inputs.group, axis=1)
    with np.errstate(all="ignore"):
        return float(np.abs(np.einsum("bhld,bhsd->bhls", inputs.q, k) * inputs.effective_scale).max(initial=0.0))
