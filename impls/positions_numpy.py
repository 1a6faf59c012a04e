"""Positions in NumPy: sinusoids, rotations, ALiBi's slopes and T5's buckets, as their papers write them.

PE(p, 2i) = sin(p / base^(2i/dim)), PE(p, 2i+1) = cos(p / base^(2i/dim))                  (Vaswani et al. 2017, section 3.5)
(y_2i, y_2i+1) = (x_2i cos p w_i − x_2i+1 sin p w_i, x_2i sin p w_i + x_2i+1 cos p w_i)    (Su et al. 2021, equation 34)
slope_h = 2^(−8h/n) for n = 2^k heads                                                     (Press et al. 2022, section 3)
bucket = d for d < n/2, then logarithmically up to max_distance                           (Raffel et al. 2020, section 2.1)
"""

from __future__ import annotations

from math import log, log2
from typing import Any

import numpy as np

from .contract import supports

FLOATS = ["float64", "float32", "float16"]
HALF = {"float64": "same", "float32": "same", "float16": "wide"}


def angle_dtype(dtype: Any) -> Any:
    """Halves cannot count past 2,048: their angles are float32."""
    return np.result_type(np.dtype(dtype), np.float32)


@supports(framework="numpy", dtypes=FLOATS, arithmetic=HALF)
def sinusoidal(length: int, dim: int, *, offset: int = 0, base: float = 10000.0, dtype: Any = np.float32) -> Any:
    """Sines in the even columns, cosines in the odd ones; an odd dim ends with a sine."""
    wide = angle_dtype(dtype)
    positions = np.arange(offset, offset + length, dtype=wide)[:, None]  # (length, 1)
    pair = np.arange(dim) // 2  # (dim,): 0 0 1 1 2 2 …
    angles = positions / np.power(wide.type(base), (2 * pair / max(dim, 1)).astype(wide))  # (length, dim)
    encoding = np.where(np.arange(dim) % 2 == 0, np.sin(angles), np.cos(angles))
    return encoding.astype(dtype)


@supports(framework="numpy", dtypes=FLOATS, arithmetic=HALF)
def rotary(x: Any, positions: Any, *, base: float = 10000.0, rotary_dim: int | None = None) -> Any:
    """Features 2i and 2i+1 of x (batch, heads, length, dim) turned by positions[l] · base^(−2i/rotary_dim)."""
    rotary_dim = x.shape[-1] if rotary_dim is None else rotary_dim
    wide = angle_dtype(x.dtype)
    frequencies = wide.type(base) ** (-np.arange(0, rotary_dim, 2).astype(wide) / wide.type(rotary_dim))  # (pairs,)
    angles = positions.astype(wide)[:, None] * frequencies  # (length, pairs)
    cos, sin = np.cos(angles), np.sin(angles)
    out = x.astype(wide)  # a copy
    first, second = x[..., 0:rotary_dim:2].astype(wide), x[..., 1:rotary_dim:2].astype(wide)  # (…, length, pairs)
    out[..., 0:rotary_dim:2] = first * cos - second * sin
    out[..., 1:rotary_dim:2] = first * sin + second * cos
    return out.astype(x.dtype)


@supports(framework="numpy", dtypes=FLOATS, arithmetic=HALF)
def learned(table: Any, positions: Any, *, offset: int = 0) -> Any:
    """table (rows, dim), positions (length,) → (length, dim). Raises IndexError where there is no row: NumPy would wrap round."""
    rows = positions + offset
    if rows.size and (rows.min() < 0 or rows.max() >= len(table)):
        raise IndexError(f"positions from {rows.min()} to {rows.max()} in a table of {len(table)} rows")
    return table[rows]


@supports(framework="numpy", dtypes=["float64"], arithmetic={"float64": "same"})
def slopes(num_heads: int) -> list[float]:
    """The published function: a power of two has its own series, others borrow from the next power of two."""
    if num_heads & (num_heads - 1) == 0:
        start = 2 ** (-(2 ** -(log2(num_heads) - 3)))
        return [start * start**head for head in range(num_heads)]
    closest = 2 ** int(log2(num_heads))
    return slopes(closest) + slopes(2 * closest)[0::2][: num_heads - closest]


@supports(framework="numpy", dtypes=["float64"], arithmetic={"float64": "same"})
def buckets(relative_position: Any, *, bidirectional: bool = True, num_buckets: int = 32, max_distance: int = 128) -> Any:
    """relative_position = key position − query position, of any shape → the row of the table of biases."""
    ahead = np.zeros_like(relative_position)
    if bidirectional:
        num_buckets //= 2
        ahead = (relative_position > 0) * num_buckets  # the upper half of the table
        distance = np.abs(relative_position)
    else:
        distance = np.maximum(-relative_position, 0)
    exact = num_buckets // 2  # so many distances have a bucket of their own
    share = np.log(np.maximum(distance, 1) / exact) / log(max_distance / exact)  # 0 at exact, 1 at max_distance
    far = exact + (share * (num_buckets - exact)).astype(np.int64)
    return ahead + np.where(distance < exact, distance, np.minimum(far, num_buckets - 1))
