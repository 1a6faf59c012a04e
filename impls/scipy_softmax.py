"""Attention with SciPy's softmax: softmax(Q Kᵀ · scale + bias) V.

``scipy.special.softmax`` subtracts the maximum by itself, but returns NaN for a row that is -inf throughout and
refuses a row of length zero: both are rows without a visible key, and give zeros here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import softmax  # type: ignore[import-untyped]

from .contract import supports
from .numpy_operands import operands, result_dtype


@supports(
    framework="numpy",
    dtypes=["float64", "float32", "float16"],
    arithmetic={"float64": "same", "float32": "same", "float16": "wide"},
    masked_nan="leaks",
)
@np.errstate(all="ignore")
def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    attn_mask: Any = None,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """softmax(scale · Q Kᵀ + bias) V (Vaswani et al. 2017, equation 1)"""
    x = operands(q, k, v, attn_mask, is_causal, scale, enable_gqa)
    logits = np.einsum("bhid,bhjd->bhij", x.q, x.k) * x.scale + x.bias  # (B, H, L, S)
    empty = ~x.visible.any(axis=-1, keepdims=True)  # (B, H, L, 1)
    logits = np.where(empty, 0, np.where(x.visible, logits, -np.inf))
    weights = softmax(logits, axis=-1) if logits.size else logits  # (B, H, L, S)
    weights = np.where(empty, 0, weights)
    return np.einsum("bhij,bhjd->bhid", weights, x.v).astype(result_dtype(q))  # (B, H, L, Dv)
