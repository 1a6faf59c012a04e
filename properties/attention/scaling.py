"""Scaling: dot products of D features grow like sqrt(D); the factor 1/sqrt(D) keeps the logits' variance at that of one.

s_ij = scale · q_i·k_j,    Var(s) = scale² · Var(QKᵀ),    scale = 1/sqrt(D) by default (Vaswani et al. 2017, 3.2.1)
"""

import numpy as np

from ..engine.cases.coordinates import Array
from .common import coarse, mean_free
from .contract import declare
from .tables import SHORT
from .trial import Trial, Weights


def logits_of(read: Weights, visible: Array) -> tuple[Array, Array]:
    """Logits up to a constant of the row, ln w_ij, and how far they may be off: |ln(1 ± E/w)|; ∞ where w is within E of 0."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        relative = np.where(read.out > 0, read.bound / read.out, np.inf)
        error = np.where(relative < 1, -np.log1p(-relative), np.inf) + 2.0**-51 * np.abs(np.log(read.out))
        return np.where(visible, np.log(read.out), 0.0), np.where(visible, error, 0.0)


@declare(
    "Var_j(ln w_ij) = scale² · Var_j(q_i·k_j)",
    keys=SHORT,
    queries=SHORT,
    zero_sizes=False,
    values="normal",
    magnitude=0,
    mask_kind=("bool", "minus_infinity"),
    scale=(None, None, 1.0, 0.5),
)
def scaling_reduces_variance(t: Trial) -> None:
    """The logits' variance is the variance of the raw dot products times the square of the scale: 1/D by default."""
    inputs = t.inputs.but(q=coarse(t.inputs.q), k=coarse(t.inputs.k))
    visible, scale = t.visible(), inputs.effective_scale
    logits, error = logits_of(t.weights(inputs), visible)
    dots = np.einsum("bhld,bhsd->bhls", inputs.q, np.repeat(inputs.k, inputs.group, axis=1))  # exact: multiples of 1/256
    logits, dots = mean_free(logits, visible), mean_free(dots, visible)
    count = np.maximum(visible.sum(axis=-1), 1)
    spread = np.where(visible, error + error.sum(axis=-1, keepdims=True) / count[..., None], 0.0)
    with np.errstate(invalid="ignore"):
        allowed = (spread * (2 * np.abs(logits) + spread)).sum(axis=-1) / count
    expected = scale**2 * (dots**2).sum(axis=-1) / count
    rounding = 2.0**-48 * (expected + 1)  # of this computation, in float64: about 60 operations on numbers near 1
    t.close(
        (logits**2).sum(axis=-1) / count,
        expected,
        np.nan_to_num(allowed, nan=np.inf) + rounding,
        "the variance of the logits is not scale² times that of the dot products in row {column}",
    )


@declare("scale = 1/sqrt(D) given = not given", needs=("scale",), scale=None)
def default_scale_is_one_over_sqrt_dim(t: Trial) -> None:
    """The default scale is one over the square root of the number of features of a query."""
    implicit, explicit = t.run(), t.run(t.inputs.but(scale=t.inputs.effective_scale))
    t.close(implicit.out, explicit.out, implicit.bound + explicit.bound, "row {row} changed with the default scale given")


@declare("out(Q·a, scale = s) = out(Q, scale = a·s)", needs=("scale",), scale=(1.0, 0.5, 0.3, 2.0, -0.5), values="normal")
def scale_folds_into_the_query(t: Trial) -> None:
    """A factor of the scale may as well multiply the queries."""
    factor = (2.0, 0.5, 4.0, 0.25)[t.choice("factor", 4)]
    q = coarse(t.inputs.q)
    in_query, in_scale = t.inputs.but(q=q * factor), t.inputs.but(q=q, scale=t.inputs.effective_scale * factor)
    one, other = t.run(in_query), t.run(in_scale)
    t.close(one.out, other.out, one.bound + other.bound, "row {row} depends on where a factor of the scale stands")
