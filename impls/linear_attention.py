"""Linear attention in both its forms: all weights at once in NumPy, a state that grows from key to key in PyTorch.

    out_i = Σ_j φ(q_i)·φ(k_j) v_j / Σ_j φ(q_i)·φ(k_j),   φ(x) = elu(x) + 1          (Katharopoulos et al. 2020, equations 4 and 7)

PyTorch is imported when it is called for.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .contract import supports


def check(q: Any, k: Any, v: Any) -> None:
    """Raise ValueError where the shapes do not fit together."""
    if q.ndim != 4 or k.ndim != 4 or v.ndim != 4 or k.shape[:3] != v.shape[:3] or q.shape[:2] != k.shape[:2] or q.shape[3] != k.shape[3]:
        raise ValueError(f"shapes do not fit: q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}")


@supports(
    contract="linear",
    framework="numpy",
    dtypes=["float64", "float32", "float16"],
    arithmetic={"float64": "same", "float32": "same", "float16": "wide"},
)
def parallel(q: Any, k: Any, v: Any, *, is_causal: bool = False) -> Any:
    """(batch, heads, queries, value_dim), through the whole matrix of weights"""
    check(q, k, v)
    wide = np.result_type(q.dtype, np.float32)
    query, key, value = (x.astype(wide) for x in (q, k, v))
    weights = features(query) @ features(key).swapaxes(2, 3)  # (B, H, L, S)
    if is_causal:
        weights = weights * np.tri(*weights.shape[2:], dtype=wide)
    return (weights @ value / weights.sum(axis=-1, keepdims=True)).astype(q.dtype)


def features(x: Any) -> Any:
    """elu(x) + 1"""
    return np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))


@supports(
    contract="linear",
    framework="torch",
    devices=["cpu", "cuda"],
    dtypes=["float64", "float32", "float16", "bfloat16"],
    arithmetic={"float64": "same", "float32": "same", "float16": "wide", "bfloat16": "wide"},
)
def recurrent(q: Any, k: Any, v: Any, *, is_causal: bool = False) -> Any:
    """(batch, heads, queries, value_dim), key by key; causal: every row is answered as soon as its key is in the state"""
    import torch
    from torch.nn.functional import elu

    check(q, k, v)
    wide = torch.promote_types(q.dtype, torch.float32)
    query, key, value = elu(q.to(wide)) + 1, elu(k.to(wide)) + 1, v.to(wide)
    state = query.new_zeros(*k.shape[:2], k.shape[3], v.shape[3])  # S = Σ_j φ(k_j) v_jᵀ
    normaliser = query.new_zeros(*k.shape[:2], k.shape[3], 1)  # z = Σ_j φ(k_j)
    rows = []
    for j in range(k.shape[2]):
        state = state + key[:, :, j, :, None] * value[:, :, j, None, :]
        normaliser = normaliser + key[:, :, j, :, None]
        if is_causal and j < q.shape[2]:
            rows.append(query[:, :, j : j + 1] @ state / (query[:, :, j : j + 1] @ normaliser))
    rest = query[:, :, len(rows) :]  # rows that see all keys
    return torch.cat([*rows, rest @ state / (rest @ normaliser)], dim=2).to(q.dtype)
