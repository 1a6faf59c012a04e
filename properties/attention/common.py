"""Small pieces that several properties share: numbers that stay exact under a transformation, and exact means."""

from __future__ import annotations

import numpy as np

from ..engine.cases.coordinates import Array
from ..engine.cases.dtypes import FLOAT_TYPES
from .trial import Trial


def coarse(x: Array) -> Array:
    """Multiples of 1/16 within ±4: sums, differences and halves of two are exact in every type (bfloat16 has 8 bits)."""
    return np.clip(np.round(x * 16), -64, 64) / 16


def live(t: Trial) -> Array:
    """(B, H, L, 1) bool: the rows that see at least one key."""
    return np.asarray(t.visible().any(axis=-1, keepdims=True))


def reads_visible(t: Trial) -> Array:
    """(B, H, L, 1) bool: the rows that are made of what they see; where those that see nothing give NaN or the mean of all, not those.

    What hides keys by a finite number, as JAX does by 0.7 times the lowest one, need not hide them from a row whose other keys are all masked by the
    lowest.
    """
    rows = live(t) | (t.empty_rows == "zero")
    mask = t.inputs.mask
    if mask is None or mask.dtype == bool or t.supports.empty_rows not in ("mean", "all"):
        return rows
    return rows & (t.visible() & (mask > -FLOAT_TYPES[t.inputs.dtype].max)).any(-1, keepdims=True)


def mean_of_visible(t: Trial, chosen: Array | None = None) -> tuple[Array, Array]:
    """Mean of the chosen (default: visible) values of every row, (B, H, L, Dv), and the rounding error of computing it.

    The sum of n terms in a type of roundoff u is off by at most (n - 1)·u·Σ|v| (Higham 2002, section 4.2).
    """
    chosen = t.visible() if chosen is None else chosen
    value = np.repeat(t.inputs.v, t.inputs.group, axis=1).astype(np.longdouble)
    share = chosen / np.maximum(chosen.sum(axis=-1, keepdims=True), 1).astype(np.longdouble)
    roundoff = float(np.finfo(np.longdouble).eps) * (chosen.shape[-1] + 2)
    mean = np.matmul(share, value)
    rounding = roundoff * np.matmul(share, np.abs(value)) + 2.0**-53 * np.abs(mean)  # the mean is kept as a float64
    return mean.astype(np.float64), rounding.astype(np.float64)


def size(x: Array) -> Array:
    """|x|; 0 where x is no number, so that an answer cannot excuse itself, nor spoil a bound that promises nothing."""
    return np.nan_to_num(np.abs(x), nan=0.0, posinf=0.0)


def mean_free(x: Array, visible: Array) -> Array:
    """x minus its mean over the visible entries of each row; 0 elsewhere."""
    count = np.maximum(visible.sum(axis=-1, keepdims=True), 1)
    x = np.where(visible, x, 0.0)
    with np.errstate(invalid="ignore"):  # logarithms of weights that are 0
        return np.where(visible, x - x.sum(axis=-1, keepdims=True) / count, 0.0)
