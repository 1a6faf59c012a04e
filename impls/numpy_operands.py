"""What the NumPy attentions share before the first product: checked shapes, one dtype, one mask.

Half precision is computed in float32 and integers in float64; the result is rounded once, at the end.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .contract import check_attention, default_scale


class Operands(NamedTuple):
    q: np.ndarray  # (batch, heads, queries, dim)
    k: np.ndarray  # (batch, heads, keys, dim), shared heads repeated
    v: np.ndarray  # (batch, heads, keys, value_dim), shared heads repeated
    visible: np.ndarray  # (batch, heads, queries, keys), bool
    bias: np.ndarray  # (batch, heads, queries, keys), 0 without an additive mask
    scale: float


def operands(q: Any, k: Any, v: Any, attn_mask: Any, is_causal: bool, scale: float | None, enable_gqa: bool) -> Operands:
    """The arguments of an attention, ready for arithmetic; ValueError for shapes outside the contract."""
    group = check_attention(q, k, v, attn_mask, enable_gqa)
    dtype = working_dtype(q, k, v)
    visible, bias = visible_and_bias(attn_mask, is_causal, (*q.shape[:3], k.shape[2]), dtype)
    return Operands(
        q=q.astype(dtype),
        k=k.astype(dtype).repeat(group, axis=1),  # head h reads h // group: neighbours share
        v=v.astype(dtype).repeat(group, axis=1),
        visible=visible,
        bias=bias,
        scale=default_scale(q.shape[-1]) if scale is None else float(scale),
    )


def visible_and_bias(attn_mask: Any, is_causal: bool, logits_shape: tuple[int, ...], dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """One mask as two arrays: which keys a query sees, and what is added to the logits of those."""
    queries, keys = logits_shape[-2:]
    visible = np.tri(queries, keys, dtype=bool) if is_causal else np.ones((queries, keys), dtype=bool)
    bias = np.zeros((), dtype)
    if attn_mask is not None and attn_mask.dtype == bool:
        visible = visible & attn_mask
    elif attn_mask is not None:
        visible = visible & (attn_mask != -np.inf)
        bias = attn_mask.astype(np.result_type(attn_mask, dtype))  # never narrowed: finfo.min stays finite
    return np.broadcast_to(visible, logits_shape), np.broadcast_to(bias, logits_shape)


def working_dtype(*arrays: Any) -> np.dtype:
    """The type of the arithmetic: at least float32, and float64 as soon as integers take part."""
    if not all(np.issubdtype(array.dtype, np.floating) for array in arrays):
        return np.dtype(np.float64)
    return np.result_type(*arrays, np.float32)


def result_dtype(q: Any) -> np.dtype:
    """The output has q's dtype; integers come out as float64."""
    return q.dtype if np.issubdtype(q.dtype, np.floating) else np.dtype(np.float64)
