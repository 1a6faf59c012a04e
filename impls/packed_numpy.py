"""Packed sequences in NumPy: each sequence is cut out and attended to by itself.

out_i = Σ_j softmax_j(scale · q_i·k_j) v_j,   j in the sequence of i          (Dao et al., ``flash_attn_varlen_func``, 2022)
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .contract import check_packed, default_scale, supports


@supports(
    framework="numpy",
    dtypes=["float64", "float32", "float16"],
    arithmetic={"float64": "same", "float32": "same", "float16": "wide"},
)
def attention(
    q: Any,
    k: Any,
    v: Any,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    *,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """(total queries, heads, value_dim); the lengths are read from cu_seqlens alone"""
    group = check_packed(q, k, v, cu_seqlens_q, cu_seqlens_k, enable_gqa)
    wide = np.result_type(q.dtype, np.float32)
    scale = default_scale(q.shape[2]) if scale is None else scale
    out = np.zeros((*q.shape[:2], v.shape[2]), dtype=q.dtype)
    for n in range(len(cu_seqlens_q) - 1):
        rows, keys = slice(cu_seqlens_q[n], cu_seqlens_q[n + 1]), slice(cu_seqlens_k[n], cu_seqlens_k[n + 1])
        query = q[rows].astype(wide).swapaxes(0, 1)  # (H, L, D)
        key, value = (x[keys].astype(wide).swapaxes(0, 1).repeat(group, axis=0) for x in (k, v))
        if not query.size or not key.shape[1]:
            continue  # a row without keys is zero
        logits = query @ key.swapaxes(1, 2) * wide.type(scale)  # (H, L, S)
        if is_causal:
            logits = np.where(np.tri(*logits.shape[1:]) > 0, logits, -np.inf)
        terms = np.exp(logits - logits.max(axis=-1, keepdims=True))
        out[rows] = (terms / terms.sum(axis=-1, keepdims=True) @ value).swapaxes(0, 1)
    return out
