"""Is a case worth its time? One that cannot tell a right answer and a trivially wrong one apart is not."""

from __future__ import annotations

import numpy as np

from ..engine.cases.coordinates import Array
from .trial import Run, Trial


def is_adequate(t: Trial, run: Run) -> bool:
    """Whether zeros, the mean of V and, if anything is hidden, attention without the mask lie outside the bound.

    A case with a single key, or with nothing to compute, cannot be adequate.
    """
    inputs = run.inputs
    if not run.out.size or not inputs.shape[3]:
        return False
    value = np.repeat(inputs.v, inputs.group, axis=1)
    wrong: list[Array] = [np.zeros(1), value.mean(axis=2, keepdims=True)]
    if not t.visible().all():
        wrong.append(t.solve(inputs.but(mask=None, is_causal=False, window=None, lengths=None)).out)
    with np.errstate(invalid="ignore"):
        return all(bool((np.abs(answer - run.exact.out) > 2 * run.bound).any()) for answer in wrong)
