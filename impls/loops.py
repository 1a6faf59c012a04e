"""Attention in plain loops: one product, one exponential, one weighted sum at a time.

    a_ij = scale · q_i · k_j        w_ij = exp(a_ij) / Σ_j' exp(a_ij')        o_i = Σ_j w_ij v_j

Everything is a Python float, that is float64; the output is rounded once to the type of the input. Hidden keys are
never read, so nothing in them, NaN included, can reach a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp
from typing import Any

import numpy as np

from .contract import check_attention, default_scale, supports
from .numpy_operands import result_dtype, visible_and_bias

Vector = Sequence[float]

FACTS: dict[str, Any] = {
    "framework": "numpy",
    "dtypes": ["float64", "float32", "float16"],
    "arithmetic": {"float64": "same", "float32": "wide", "float16": "wide"},
    "masked_nan": "contained",
    "max_length": 17,
}


def dot(x: Vector, y: Vector) -> float:
    """x · y = Σ_d x_d y_d"""
    total = 0.0
    for x_d, y_d in zip(x, y, strict=True):
        total += x_d * y_d
    return total


def softmax(logits: Vector) -> list[float]:
    """exp(a_j) / Σ exp(a_j'), with the largest logit subtracted first so that no exponential overflows."""
    if not logits:
        return []
    largest = max(logits)
    exponentials = [exp(a - largest) for a in logits]
    total = 0.0
    for e in exponentials:
        total += e
    return [e / total for e in exponentials]


def weighted_sum(weights: Vector, values: Sequence[Vector], value_dim: int) -> list[float]:
    """o = Σ_j w_j v_j, the zero vector when there is no key"""
    output = [0.0] * value_dim
    for w_j, v_j in zip(weights, values, strict=True):
        for d in range(value_dim):
            output[d] += w_j * v_j[d]
    return output


@supports(**FACTS)
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
    """softmax(scale · Q Kᵀ + bias) V, row by row (Vaswani et al. 2017, equation 1)"""
    group = check_attention(q, k, v, attn_mask, enable_gqa)
    batch, heads, queries, dim = q.shape
    value_dim = v.shape[-1]
    scale = default_scale(dim) if scale is None else float(scale)
    visible, bias = visible_and_bias(attn_mask, is_causal, (batch, heads, queries, k.shape[2]), np.dtype(np.float64))
    output = np.zeros((batch, heads, queries, value_dim))
    for b in range(batch):
        for h in range(heads):
            keys = _floats(k[b, h // group])  # [keys][dim]
            values = _floats(v[b, h // group])  # [keys][value_dim]
            for i, q_i in enumerate(_floats(q[b, h])):
                seen = [j for j, sees in enumerate(visible[b, h, i].tolist()) if sees]
                added = bias[b, h, i].tolist()
                logits = [scale * dot(q_i, keys[j]) + added[j] for j in seen]
                output[b, h, i] = weighted_sum(softmax(logits), [values[j] for j in seen], value_dim)
    return output.astype(result_dtype(q))


def self_attention(x: Any, *, is_causal: bool = False, scale: float | None = None) -> tuple[Any, Any]:
    """Attention without parameters, Q = K = V = X: every token becomes a mean of the tokens that resemble it.

    x (tokens, dim) → output (tokens, dim), weights (tokens, tokens)
    """
    tokens, dim = x.shape
    scale = default_scale(dim) if scale is None else float(scale)
    rows = _floats(x)  # [tokens][dim]
    weights = np.zeros((tokens, tokens))
    output = np.zeros((tokens, dim))
    for i, x_i in enumerate(rows):
        seen = rows[: i + 1] if is_causal else rows
        weights[i, : len(seen)] = softmax([scale * dot(x_i, x_j) for x_j in seen])
        output[i] = weighted_sum(weights[i, : len(seen)].tolist(), seen, dim)
    return output, weights


def mixing_matrix(tokens: int, phase: int) -> Any:
    """A fixed matrix (tokens, tokens) without a zero pattern: cos(i·j + i + phase)."""
    i, j = np.arange(tokens)[:, None], np.arange(tokens)
    return np.cos(i * j + i + phase)


@supports(**FACTS | {"masked_nan": "leaks"})
@np.errstate(all="ignore")
def token_mixing(
    q: Any,
    k: Any,
    v: Any,
    *,
    attn_mask: Any = None,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Attention of M_q Q, M_k K, M_v V, where N-by-N matrices multiply from the *left*. Not an attention one can mask.

    A projection of features, X W, keeps the tokens apart; a matrix on the left, M X, mixes them: each row of M_k K
    and M_v V is already a sum over all tokens, the future ones included, before any mask is applied. So under
    ``is_causal=True`` row i still depends on tokens j > i, and a hidden key still contributes. It also ties the
    parameters to one length N. Kept here so that a checker can refute ``future_tokens_are_ignored`` on it.
    """
    check_attention(q, k, v, attn_mask, enable_gqa)
    queries, keys = q.shape[2], k.shape[2]
    return attention(
        (mixing_matrix(queries, 1) @ q.astype(np.float64)).astype(result_dtype(q)),
        mixing_matrix(keys, 2) @ k.astype(np.float64),
        mixing_matrix(keys, 3) @ v.astype(np.float64),
        attn_mask=attn_mask,
        is_causal=is_causal,
        scale=scale,
        enable_gqa=enable_gqa,
    )


def _floats(rows: Any) -> list[list[float]]:
    return rows.astype(np.float64).tolist()
