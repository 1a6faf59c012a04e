"""What a wrong attention does, measured: which hidden keys it sees, by how much its weights or its logits are off.

A known mistake has a name; one that nobody has made before can still be measured. The attention matrix of a black box is its
answer for V = I; here it is read on a case like the smallest, with more rows and keys.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import numpy as np

from ..engine.cases.case import Case
from ..engine.cases.coordinates import Array
from ..engine.core.attempt import subject
from ..engine.core.finding import Finding
from ..engine.core.target import CannotRun, Raised, Target
from ..engine.core.trial import Refuted
from ..engine.core.words import ranges
from .trial import Trial

SIZES: tuple[dict[str, Any], ...] = ({"queries": 6, "keys": 9}, {"queries": 6, "keys": 6}, {})  # the first that the target takes
EXACT = 1e-6  # a fit leaves no more than this of what it explains


def measured(target: Target, finding: Finding) -> tuple[Case, str] | None:
    """A case like the smallest one, and in a line what is wrong with its weights; None if nothing is, or nothing simple."""
    if finding.violation.killed:
        return None
    view = subject(target, finding.prop)
    for sizes in SIZES:
        case = dataclasses.replace(finding.case, values="normal", layout="contiguous", edits=(), **sizes)
        trial = Trial(view, case)
        try:
            with np.errstate(all="ignore"):
                says = _weights(trial)
        except (Raised, Refuted, CannotRun):
            continue
        return (case, says) if says else None
    return None


def _weights(trial: Trial) -> str:
    read = trial.weights()
    exact = np.concatenate([run.exact.out for run in read.parts], axis=-1)[..., : read.out.shape[-1]].astype(np.float64)
    off = np.abs(read.out - exact) > read.bound
    if not off.any() or not np.isfinite(read.out).all() or not np.isfinite(read.bound).all():
        return ""
    visible = trial.visible()
    significant = visible & (exact > 8 * read.bound)  # large enough to say by how much they are off
    leaked, lost = off & ~visible, significant & (np.abs(read.out) <= read.bound)
    if leaked.any() or lost.any():
        return " and ".join(
            [*_places(leaked, ~visible, "visible and should be hidden"), *_places(lost, significant, "hidden and should be visible")]
        )
    ratio = np.where(significant, read.out / exact, np.nan)
    if _constant(ratio[significant]):
        return f"every weight is {factor(float(np.nanmedian(ratio)))} of what it should be"
    parted = (x.reshape(-1, x.shape[-1]) for x in (ratio, significant, exact))
    rows = [(row[large], right.max()) for row, large, right in zip(*parted, strict=True) if large.sum() > 1]
    if rows and all(np.ptp(row) <= EXACT * np.abs(row).max() for row, _ in rows):
        factors = [float(np.median(row)) for row, _ in rows]
        if added := _added(np.array(factors), np.array([largest for _, largest in rows])):
            return (
                f"the weights of a row are in proportion, and as small as if {added:.2g} were added to their denominator, Σ exp(s − max s)"
            )
        if f"{min(factors):.3g}" == f"{max(factors):.3g}" == "1":
            return ""  # that says nothing
        return f"the weights of a row are in proportion, but {min(factors):.3g} to {max(factors):.3g} of what they should be"
    sums, seen = read.out.sum(axis=-1), visible.any(axis=-1)
    if seen.any() and np.abs(sums - 1)[seen].min() > EXACT:
        return f"the weights of a row sum to {sums[seen].min():.3g} to {sums[seen].max():.3g}, not to 1"
    return _slope(read.out, exact, significant, trial.inputs.effective_scale)


def _places(hit: Array, among: Array, what: str) -> Iterable[str]:
    """Where, in the shortest words: by distance from the diagonal, by key, by row."""
    if not hit.any():
        return
    *_, rows, keys = np.ix_(*map(np.arange, hit.shape))
    for name, index in (("j − i", keys - rows), ("key j", keys), ("row i", rows)):
        at = np.unique(np.broadcast_to(index, hit.shape)[hit])
        if (np.isin(index, at) & among == hit).all():
            yield f"the keys with {name} = {ranges(at)} are {what}"
            return
    yield f"{hit.sum()} of {among.sum()} {'keys' if among.sum() > 1 else 'key'} are {what}"


def factor(x: float) -> str:
    """A factor in few digits; what it differs from 1 by, where these do not show it."""
    return f"{x:.4g}" if f"{x:.4g}" != "1" else f"1 {'−' if x < 1 else '+'} {abs(x - 1):.1g}"


def _constant(values: Array) -> bool:
    return bool(len(values) > 1 and np.ptp(values) <= EXACT * np.abs(values).max() and np.abs(values - 1).max() > EXACT)


def _added(factors: Array, largest: Array) -> float:
    """What was added to the denominators of rows whose weights have these factors, and that largest weight, 1 / Σ exp(s − max s); 0 if nothing
    is the same in all."""
    with np.errstate(divide="ignore", invalid="ignore"):
        added = (1 / factors - 1) / largest
    alike = len(added) > 1 and np.ptp(largest) > 0.1 * largest.max() and added.min() > 0 and np.ptp(added) < 0.01 * added.max()
    return float(np.median(added)) if alike else 0.0


def _slope(weights: Array, exact: Array, significant: Array, scale: float) -> str:
    """ln w = a·ln w* + a number of the row: the logits are a times what they should be."""
    rows = significant.sum(axis=-1, keepdims=True) > 2
    significant = significant & rows & (weights > 0)

    def centred(x: Array) -> Array:
        logs = np.where(significant, np.log(np.where(significant, x, 1.0)), 0.0)
        return np.where(significant, logs - logs.sum(axis=-1, keepdims=True) / np.maximum(significant.sum(axis=-1, keepdims=True), 1), 0.0)

    there, right = centred(weights), centred(exact)
    if not (right**2).sum():
        return ""
    slope = (there * right).sum() / (right**2).sum()
    if ((there - slope * right) ** 2).sum() > EXACT**2 * (there**2).sum() or abs(slope - 1) < EXACT:
        return ""
    return f"every logit is {factor(slope)} of what it should be, as with scale = {slope * scale:.4g} instead of {scale:.4g}"
