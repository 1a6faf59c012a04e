"""What the numbers in q, k and v look like. Real kernels break on values that random normal tensors never hold.

A regime takes nearly normal q, k, v (hashed from their coordinates) and the case, and gives q, k, v in float64; they are
rounded to the type under test afterwards. ``CONTINUOUS`` names those for which rounding errors behave like independent
random ones, which the probabilistic bound needs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .coordinates import Array, bits, normal, uniform
from .dtypes import FLOAT_TYPES

Regime = Callable[[Array, Array, Array, Any], tuple[Array, Array, Array]]
HEADROOM = 2.0**8  # weights before normalisation: FlashAttention-4 moves its shift only where the maximum has risen by more than 8 ln 2


def _normal(q: Array, k: Array, v: Array, case: Any) -> tuple[Array, Array, Array]:
    """Independent, mean 0, variance 1: what most inputs look like, and where most mistakes of meaning show."""
    return q, k, v


def _large(q: Array, k: Array, v: Array, case: Any) -> tuple[Array, Array, Array]:
    """Logits up to ±1e5 (±1e4 in float16, which ends at 65504; ±1e3 in bfloat16, of three digits): exp of them overflows (E01)."""
    power = {"float16": 5.0, "bfloat16": 4.0}.get(case.dtype, 8.0)
    return q * 2**power, k * 2**power, v


def _negative(q: Array, k: Array, v: Array, case: Any) -> tuple[Array, Array, Array]:
    """Every logit far below zero: a running maximum that starts at a finite number instead of -inf is wrong (A36)."""
    power = {"float16": 3.0, "bfloat16": 2.0}.get(case.dtype, 9.0)  # in halves, larger ones are rounded by more than what tells them apart
    return (np.abs(q) + 1) * 2**power, -(np.abs(k) + 1) * 2**power, v


def _near_ties(q: Array, k: Array, v: Array, case: Any) -> tuple[Array, Array, Array]:
    """All keys within 1/1024 of one another: every key weighs alike, so that one too many or too few moves the answer most."""
    return q, k[:, :, :1] + k * 2.0**-10 if k.shape[2] else k, v


def _one_hot(q: Array, k: Array, v: Array, case: Any) -> tuple[Array, Array, Array]:
    """Logits some tens apart, nearly all the weight on one key: a softmax taken twice, or a weight that is read at the wrong key (G14)."""
    return q * 8, k * 8, v


def _cancelling(q: Array, k: Array, v: Array, case: Any) -> tuple[Array, Array, Array]:
    """Values of ±128 that nearly cancel in the weighted sum: an accumulator in half precision loses what is left (E28)."""
    sign = np.where(np.arange(v.shape[2]) % 2, -1.0, 1.0)[:, None]
    return q * 0.125, k * 0.125, sign * 128 + v * 0.0625


def _constant(q: Array, k: Array, v: Array, case: Any) -> tuple[Array, Array, Array]:
    """All values nearly the same, and so is the answer: weights that do not sum to 1, rounding that adds up in one direction (A20, E28)."""
    return q, k, 10 + v * 2.0**-10


def _tiny(q: Array, k: Array, v: Array, case: Any) -> tuple[Array, Array, Array]:
    """Values around the smallest normal number, many of them subnormal: flushed to zero, or rounded in a shorter type on the way."""
    return q, k, v * FLOAT_TYPES[case.dtype].tiny


def _heavy(q: Array, k: Array, v: Array, case: Any) -> tuple[Array, Array, Array]:
    """Heavy tails, a few numbers far larger than the others: errors that normal numbers average away (E15)."""
    return q * q * q * 0.25, k, v * v * v


def _simple(q: Array, k: Array, v: Array, case: Any) -> tuple[Array, Array, Array]:
    """Small round numbers, exact products, ties, zeros: what must be exact is so, and equal logits meet."""
    table = np.array([0.0, 1.0, -1.0, 0.5, 2.0, 0.0, 1.0, -2.0])
    pick = [
        table[(bits(case.seed, name + " simple", x.shape) >> np.uint64(40)) % np.uint64(8)] for name, x in (("q", q), ("k", k), ("v", v))
    ]
    return pick[0], pick[1], pick[2]


def _offset(q: Array, k: Array, v: Array, case: Any) -> tuple[Array, Array, Array]:
    """All dot products large and alike, only the differences count: scores that are rounded before the softmax (E05)."""
    return q + 3, k + 3, v


def _positive(q: Array, k: Array, v: Array, case: Any) -> tuple[Array, Array, Array]:
    """Nothing negative: errors of rounding in one direction add up instead of cancelling (E28)."""
    return np.abs(q), np.abs(k), np.abs(v)


def _wide(q: Array, k: Array, v: Array, case: Any) -> tuple[Array, Array, Array]:
    """Values of very different magnitude (2^±11), queries scaled up and keys down: small values are lost in a sum, a step on q alone overflows."""
    exponent = np.floor(uniform(case.seed, "v exponent", v.shape) * 23) - 11
    return q * 2.0**5, k * 2.0**-5, np.ldexp(v, exponent.astype(np.int64))


def _uneven_rows(q: Array, k: Array, v: Array, case: Any) -> tuple[Array, Array, Array]:
    """Rows of very different magnitude: a maximum taken over more than the row underflows the small ones (E02)."""
    power = np.arange(q.shape[2]) % 3 * (4.0 if case.dtype == "float16" else 6.0)
    return q * 2.0 ** power[:, None], k * 2, v


def _identical_rows(q: Array, k: Array, v: Array, case: Any) -> tuple[Array, Array, Array]:
    """All queries the same, all keys the same: every visible key has the same weight, so that the answer counts them."""
    return (q[:, :, :1] + 0 * q if q.shape[2] else q), (k[:, :, :1] + 0 * k if k.shape[2] else k), v


def _rising(q: Array, k: Array, v: Array, case: Any) -> tuple[Array, Array, Array]:
    """Logits that grow along the keys: a running softmax has to rescale its sum and its output at every block (E26, E27)."""
    step = 0.25 if case.dtype == "float16" else 1.0
    return np.abs(q) + 0.5, step * (np.abs(k) / 4 + np.arange(k.shape[2])[:, None]), v


def _limits(q: Array, k: Array, v: Array, case: Any) -> tuple[Array, Array, Array]:
    """Values near the largest number of the type: sums that are divided too late overflow."""
    # Of one sign or both; their sum has to fit into the accumulator, wider only for float16.
    # So has the sum of a softmax that is shifted by less than its maximum.
    sign = 1.0 if case.seed % 2 else np.sign(v)
    terms = 1 if case.dtype == "float16" else 2 * HEADROOM * max(v.shape[2], 1)
    return q, k, sign * (0.4 + 0.4 * np.tanh(np.abs(v))) * (FLOAT_TYPES[case.dtype].max / terms)


def _signed_zeros(q: Array, k: Array, v: Array, case: Any) -> tuple[Array, Array, Array]:
    """Zeros of both signs among the values and the queries: a token taken for padding because it is 0 (A51)."""
    zero = uniform(case.seed, "zeros", v.shape) < 0.5
    return np.where(q < -0.8, -0.0, q), k, np.where(zero, np.copysign(0.0, v), v)


def _activations(q: Array, k: Array, v: Array, case: Any) -> tuple[Array, Array, Array]:
    """What a model computes with: neighbouring tokens much alike, and some features far larger than the others (Dettmers et al. 2022)."""

    def alike(x: Array) -> Array:
        first = np.arange(x.shape[2]) // 4 * 4  # of four neighbours
        large = np.where(np.arange(x.shape[3]) % 17 == 5, 8.0, 1.0)
        return (0.5 * x + x[:, :, first]) * large

    return alike(q) * 0.5, alike(k) * 0.5, alike(v)


def _gaussian(q: Array, k: Array, v: Array, case: Any) -> tuple[Array, Array, Array]:
    """What ``torch.randn`` gives, tails and all; or as small as projections are at first: a shortcut for what looks generated (KernelBench)."""
    size = (1.0, 1.0, 1.0, 0.1)[case.seed % 4]

    def tailed(x: Array, name: str) -> Array:  # a sum of three that have no tails
        return size * 3**-0.5 * sum((normal(case.seed, f"{name} {number}", x.shape) for number in (2, 3)), x)

    return tailed(q, "q"), tailed(k, "k"), tailed(v, "v")


def _uniform(q: Array, k: Array, v: Array, case: Any) -> tuple[Array, Array, Array]:
    """Between 0 and 1, as ``torch.rand`` gives them: the numbers of many a benchmark."""
    made = [uniform(case.seed, f"{name} uniform", x.shape) for name, x in (("q", q), ("k", k), ("v", v))]
    return made[0], made[1], made[2]


def _tied(q: Array, k: Array, v: Array, case: Any) -> tuple[Array, Array, Array]:
    """Keys that are the queries, and values that are the keys, as far as there are as many: attention without projections."""
    k, v = k.copy(), v.copy()
    for to, of in ((k, q), (v, k)):
        heads, rows, columns = (min(sizes) for sizes in zip(to.shape[1:], of.shape[1:], strict=True))
        to[:, :heads, :rows, :columns] = of[:, :heads, :rows, :columns]
    return q, k, v


REGIMES: dict[str, Regime] = {
    "normal": _normal,
    "large": _large,
    "negative": _negative,
    "near_ties": _near_ties,
    "one_hot": _one_hot,
    "cancelling": _cancelling,
    "constant": _constant,
    "tiny": _tiny,
    "heavy": _heavy,
    "simple": _simple,
    "offset": _offset,
    "positive": _positive,
    "wide": _wide,
    "uneven_rows": _uneven_rows,
    "identical_rows": _identical_rows,
    "rising": _rising,
    "limits": _limits,
    "signed_zeros": _signed_zeros,
    "activations": _activations,
    "gaussian": _gaussian,
    "uniform": _uniform,
    "tied": _tied,
}

# What people call it with: a shortcut that knows generated numbers is shown by numbers that are not like those.
USUAL = (*("gaussian",) * 4, "activations", "uniform", "tied")

TELLING = (
    *(name for name in REGIMES if name not in ("identical_rows", "constant", "tiny")),
    "near_ties",
)  # where a wrong answer looks wrong
CONTINUOUS = frozenset({"normal", "one_hot", "heavy", "offset", "positive", "gaussian", "uniform"})
