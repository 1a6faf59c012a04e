"""Biases: rounding errors are as often up as down. A mistake too small for any bound on single elements shows in their sum.

    d_1, …, d_n independent and symmetric about 0  ⇒  P(|Σ d| > x·sqrt(Σ d²)) ≤ 2·exp(−x²/2)        (Efron 1969)

No size of any error is assumed: the sum is measured against the errors themselves.
"""

from typing import Any

import numpy as np

from ..engine.cases.coordinates import Array, uniform
from ..engine.cases.dtypes import FLOAT_TYPES, round_to
from ..exact import bound
from ..exact.arithmetic import FORMATS
from .common import live
from .contract import declare
from .numbers import ALPHA
from .trial import Run, Trial, Weights

LIMIT = np.sqrt(2 * np.log(2 / ALPHA))  # x
# No two rows alike, and nothing but the errors of an attention: no mask, no group of heads, no memory that batch elements share.
ALONE: dict[str, Any] = {"mask": "none", "group": 1, "value_dim": None, "scale": None, "layout": "contiguous", "zero_sizes": False}


def balanced(t: Trial, errors: Array, known: Array, says: str) -> None:
    """Independent errors, each symmetric about some number of at most ``known``, do not lean to one side.

    With errors d + m, |m| ≤ known: |Σ (d + m)| ≤ x·‖d‖ + Σ|m| and ‖d‖ ≤ ‖d + m‖ + ‖m‖.
    """
    errors, known = np.ravel(errors), np.broadcast_to(known, errors.shape).ravel()
    size = np.sqrt((errors**2).sum()) + np.sqrt((known**2).sum())
    t.close(errors.sum(keepdims=True), np.zeros(1), np.reshape(LIMIT * size + known.sum(), 1), f"the errors of {errors.size} {says}")


def is_exact(scale: float) -> bool:
    """Whether the scale and its root are powers of two: what is multiplied by them is not rounded."""
    return bool(np.frexp(np.sqrt(abs(scale)))[0] == 0.5)


def relative(read: Run | Weights, exact: Array, tail: Array, least: float) -> Array:
    """Relative errors; 0 of what is no larger than ``least``, next to which rounding is no longer relative."""
    significant = np.isfinite(read.bound) & (exact > least)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(significant, (read.out - exact - tail) / exact, 0.0).astype(np.float64)


@declare(
    "|Σ_i e_i| ≤ x·sqrt(Σ_i e_i²), e_i the mean signed error of row i",
    dtype=("float16", "bfloat16"),
    batch=2,
    kv_heads=2,
    queries=(128, 129, 200),
    keys=(17, 33, 40, 64),
    dim=(16, 16, 64),
    values=("normal", "positive"),
    **ALONE,
)
def rounding_is_not_biased(t: Trial) -> None:
    """Rounding errors are as often up as down.

    Only in half precision, where storing is what rounds: in float32 and float64 the bias of a good ``exp`` would show. The
    mean over many features makes errors of rows independent that are near to each other, and would all be rounded the same way.
    """
    run, a, x = t.run(), t.arithmetic, t.inputs
    with np.errstate(invalid="ignore"):
        error = (run.out - run.exact.out - run.exact.out_tail) * np.sign(run.exact.out)
        error = np.where(np.isfinite(run.bound) & live(t), error, 0.0).astype(np.float64)
    # What errs the same way for every row: exp, and keys that were stored times a scale, or a root, that is no power of two.
    common = a.eps_exp
    if not is_exact(x.effective_scale):
        common += a.n_pre * a.u_s * abs(x.effective_scale) * np.abs(x.q).sum(-1).max() * np.abs(x.k).max()
    centred = np.nan_to_num(bound.centred(run.exact.weights, run.exact)).mean(axis=-1)  # as the logits' errors are (bound)
    balanced(t, error.mean(axis=-1), (2 * common * centred).astype(np.float64), "rows lean to one side")


@declare(
    "E[e_2m] = E[e_2m+1],  e_j the relative error of the weight of key j",
    dtypes="all",
    batch=2,
    kv_heads=4,
    queries=(64, 65),
    keys=(64, 48, 32),
    dim=64,
    values="normal",
    magnitude=0,
    is_causal=False,
    **ALONE,
)
def even_and_odd_keys_err_alike(t: Trial) -> None:
    """No lane leans more than its neighbour: the errors of the weights of even and of odd keys have the same mean.

    The keys are drawn alike, so the differences of neighbours are symmetric: swapping two keys swaps their errors. Only where
    the keys are taken in parts may the first of two be rescaled once more: online, if between them the maximum rises, which it
    does 1 time in 2m + 2; merged by their log-sum-exp, if a part ends between them.
    """
    a, read = t.arithmetic, t.weights()
    exact, tail = (
        np.concatenate([getattr(run.exact, name) for run in read.parts], -1)[..., : read.out.shape[-1]] for name in ("out", "out_tail")
    )
    keys = relative(read, exact, tail, 8 * FLOAT_TYPES[t.case.dtype].tiny).mean(axis=2)  # (B, H, S)
    pairs = keys[..., 0:-1:2] - keys[..., 1::2]
    rescaled = 8 * a.u_acc * (1 / (2 + 2 * np.arange(pairs.shape[-1])) + a.lse_norm / pairs.shape[-1])
    balanced(t, pairs, rescaled, "pairs of keys lean to the even or to the odd ones")


@declare(
    "ln w_2 = −a = scale·q·(k_2 − k_1),  32 ≤ a < 64",
    dtype=("float32", "float64", "bfloat16"),
    batch=2,
    kv_heads=4,
    queries=(256,),
    keys=(2,),
    dim=(4, 8, 16, 20),
    values="normal",
    is_causal=False,
    **(ALONE | {"scale": (0.25, 1.0, None)}),
    arithmetic=lambda a: not a.u_mul and a.u_s <= FORMATS["float32"].u,
)  # tf32 units may truncate
def small_weights_show_the_scale(t: Trial) -> None:
    """The logarithm of a small weight is its logit: if the scale is off by ε, all such weights are off by a·ε, to the same side.

    One key is 0, the other −1 in one feature, so that a dot product is one number, exactly; its roundings are as often up as
    down. (In bfloat16, of which there are 128 numbers in an octave, it is the sum of two.) Storing a weight with the error δ
    leans by 2·E[δ²], since there are more numbers just above than just below one. What leans is exp, what merges parts, and
    constants: log2(e), which float32 and float64 happen to hold to u/4, and a scale that is not given, or is no power of two,
    or whose root is none.
    """
    a, scale = t.arithmetic, t.inputs.effective_scale
    features = np.arange(t.case.dim)
    gap = 32 + 32 * uniform(t.case.seed, "gap", (*t.inputs.q.shape[:3], 1))
    high = round_to(t.case.dtype, gap / abs(scale))
    low = round_to(t.case.dtype, gap / abs(scale) - high) * (t.case.dtype == "bfloat16")
    queries, used = high * (features == 0) + low * (features == 1), features <= (t.case.dtype == "bfloat16")
    ones = np.arange(2)[:, None] * np.ones(t.inputs.v.shape)
    run = t.run(t.inputs.but(q=queries, k=np.sign(scale) * -ones[..., :1] * used, v=ones))
    errors = relative(run, run.exact.out, run.exact.out_tail, 0.0).mean(axis=-1)
    constant = 0.25 if t.inputs.scale is not None and is_exact(scale) else 4.0
    stored = a.u_out**2 + a.u_p**2
    balanced(
        t,
        errors,
        8 * a.u_acc * a.lse_norm + a.eps_exp + constant * a.u_acc * gap[..., 0] + stored,
        f"small weights lean to one side, as if the scale were off by {-errors.mean() / gap.mean():.0e} of itself",
    )
