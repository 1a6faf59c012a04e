"""``jax.nn.dot_product_attention`` as the library ships it, in its own layout: (batch, length, heads, dim).

float64 is not declared: the softmax is computed in float32 whatever the type of the arguments, as a comment in the code says and the
documentation does not, so that of float64 the output has 24 bits (seen in the review of jax-ml/jax#21371).

Boolean and additive masks are two arguments there, with two conventions. What ``mask`` hides gets a large negative number for a
logit, so a row without a visible key is the mean of all values. ``bias`` is added, so a row of −∞ is NaN.

Under ``jax.jit`` float16 raises on a CPU: the function catches that the precision F16_F16_F32 is not supported there, but by then
it is being compiled. So the variant ``@jit`` needs other dtypes to be declared.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import jax
from jax import Array

FACTS: dict[str, Any] = {
    "framework": "jax",
    "layout": "blhd",
    "dtypes": ["float32", "float16", "bfloat16"],
    "arithmetic": {"float32": "same", "float16": "fused", "bfloat16": "fused"},
    "value_dim": False,  # documented: value has the shape of key
    "masked_nan": "leaks",
}
MASKED = FACTS | {"mask_kinds": ["bool"], "empty_rows": "mean"}
BIASED = FACTS | {"mask_kinds": ["minus_infinity", "bias", "bias_and_minus_infinity", "lowest"], "empty_rows": "nan"}


@dataclass(frozen=True)
class DotProductAttention:
    """dot_product_attention, with the mask in one of its two arguments."""

    argument: str  # mask or bias
    supports: dict[str, Any] = field(repr=False, compare=False)

    def __call__(
        self,
        q: Array,
        k: Array,
        v: Array,
        *,
        attn_mask: Array | None = None,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
        window_size: tuple[int, int] | None = None,
    ) -> Array:
        """softmax(scale · Q Kᵀ + bias) V; heads are grouped unasked. ``window_size``: −1 on a side is no limit."""
        if window_size is not None:  # a number beyond all lengths is no limit there
            left, right = (max(q.shape[1], k.shape[1]) if side < 0 else side for side in window_size)
            window_size = left, right
        return jax.nn.dot_product_attention(
            q, k, v, **{self.argument: attn_mask}, is_causal=is_causal, scale=scale, local_window_size=window_size
        )


masked = DotProductAttention("mask", MASKED)
biased = DotProductAttention("bias", BIASED)
