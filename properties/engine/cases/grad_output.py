"""The gradient of the output, dO, from the case: its numbers, and how they lie in memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from .coordinates import Array, bits, choice, normal
from .dtypes import round_to

# Where dO lies in memory → the mistake that it shows.
GRAD_LAYOUT_REASONS = {
    "contiguous": "what the other layouts are compared with",
    "everywhere": "out.sum().backward() gives one number through strides of 0 (D19)",
    "expanded": "one batch element for all, through a stride of 0 (D19)",
    "transposed": "as after the transpose back to (batch, tokens, heads, features): dO read as contiguous (D19, pytorch#133671)",
    "feature_major": "the last stride is not 1, where kernels count on it",
    "padded": "rows with NaN after them: more is read than the row",
    "strided": "every other feature: the last stride is 2",
    "offset": "it begins within its memory: the offset dropped",
}
GRAD_LAYOUTS = tuple(GRAD_LAYOUT_REASONS)


def _normal(case: Any, shape: tuple[int, ...]) -> Array:
    """Independent, mean 0, variance 1: every element of the output counts in its own way."""
    return normal(case.seed, "grad", shape)


def _ones(case: Any, shape: tuple[int, ...]) -> Array:
    """Ones, as out.sum().backward() gives: what is tried first, and where strides of 0 come from (D19)."""
    return np.ones(shape)


def _zero(case: Any, shape: tuple[int, ...]) -> Array:
    """Zeros: the gradient is zero, and neither NaN nor what memory held before."""
    return np.zeros(shape)


def _simple(case: Any, shape: tuple[int, ...]) -> Array:
    """Small powers of two and zeros: sums that are exact."""
    table = np.array([0.0, 1.0, -1.0, 0.5, 2.0, 0.0, 1.0, -2.0])
    return table[(bits(case.seed, "grad simple", shape) >> np.uint64(40)) % np.uint64(8)]


def _one_hot(case: Any, shape: tuple[int, ...]) -> Array:
    """1 at one element, 0 elsewhere: the gradient is one row of the Jacobian, and any other row that answers is wrong."""
    out = np.zeros(shape)
    if out.size:
        out.reshape(-1)[choice(case.seed, "grad at", out.size)] = 1.0
    return out


def _one_row(case: Any, shape: tuple[int, ...]) -> Array:
    """Numbers in one row of every head, 0 elsewhere: what reaches another row came from the wrong one."""
    row = choice(case.seed, "grad row", max(shape[2], 1))
    return np.where(np.arange(shape[2])[:, None] == row, _normal(case, shape), 0.0)


def _uneven(case: Any, shape: tuple[int, ...]) -> Array:
    """Rows of very different magnitude: a row that is added to another drowns it."""
    return _normal(case, shape) * 2.0 ** (np.arange(shape[2]) % 3 * 4.0 - 6)[:, None]


def _positive(case: Any, shape: tuple[int, ...]) -> Array:
    """Nothing negative: sums over a group or a broadcast axis that are forgotten cannot cancel (E14, E23)."""
    return np.abs(_normal(case, shape)) + 1


GRADS = {
    "normal": _normal,
    "ones": _ones,
    "simple": _simple,
    "one_row": _one_row,
    "one_hot": _one_hot,
    "uneven": _uneven,
    "positive": _positive,
    "zero": _zero,
}


def make_grad(case: Any, shape: tuple[int, ...]) -> Array:
    """dO (B, H, L, Dv) as a carrier; constant where its layout repeats one number or one batch element."""
    grad = round_to(case.dtype, GRADS[case.grad](case, shape))
    if case.grad_layout == "everywhere":
        grad = np.broadcast_to(grad.reshape(-1)[:1] if grad.any() else np.float64(case.grad != "zero"), shape)
    elif case.grad_layout == "expanded":
        grad = np.broadcast_to(grad[:1], shape)
    return np.array(grad)
