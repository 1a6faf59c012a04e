"""Attention as the textbook writes it, with ``@``; one head, and heads side by side.

Attention(Q, K, V) = softmax(Q Kᵀ / sqrt(d_k)) V                              (Vaswani et al. 2017, equation 1)
MultiHead(Q, K, V) = Concat(head_1, …, head_h) W_O,  head_i = Attention(Q W_Q^i, K W_K^i, V W_V^i)  (section 3.2.2)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .contract import check_mask, check_multihead, default_scale, supports
from .numpy_operands import operands, result_dtype, visible_and_bias, working_dtype

FACTS: dict[str, Any] = {
    "framework": "numpy",
    "dtypes": ["float64", "float32", "float16"],
    "arithmetic": {"float64": "same", "float32": "same", "float16": "wide"},
    "masked_nan": "leaks",  # a hidden key has weight 0, and 0 · NaN is NaN
}


def attention_weights(q: Any, k: Any, *, visible: Any = True, bias: Any = None, scale: float | None = None) -> Any:
    """softmax(scale · Q Kᵀ + bias) over the visible keys, row by row; zero where no key is visible.

    q (…, queries, dim), k (…, keys, dim) → (…, queries, keys)
    """
    scale = default_scale(q.shape[-1]) if scale is None else scale
    logits = (q @ k.swapaxes(-1, -2)) * scale  # (…, queries, keys)
    if bias is not None:
        logits = logits + bias
    visible = np.broadcast_to(visible, logits.shape)
    logits = np.where(visible, logits, -np.inf)
    empty = ~visible.any(axis=-1, keepdims=True)  # (…, queries, 1)
    largest = np.where(empty, 0, logits.max(axis=-1, keepdims=True, initial=-np.inf))
    exponentials = np.exp(logits - largest)  # in [0, 1]: nothing overflows
    return exponentials / np.where(empty, 1, exponentials.sum(axis=-1, keepdims=True))


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
    """softmax(scale · Q Kᵀ + bias) V"""
    x = operands(q, k, v, attn_mask, is_causal, scale, enable_gqa)
    weights = attention_weights(x.q, x.k, visible=x.visible, bias=x.bias, scale=x.scale)  # (B, H, L, S)
    return (weights @ x.v).astype(result_dtype(q))  # (B, H, L, Dv)


def single_head(x: Any, w_q: Any, w_k: Any, w_v: Any, scale: float | None = None) -> tuple[Any, Any]:
    """softmax(scale · (X W_Q)(X W_K)ᵀ) X W_V

    x (…, tokens, d_model), w_q, w_k (d_model, d_k), w_v (d_model, d_v)
    → output (…, tokens, d_v), weights (…, tokens, tokens)
    """
    dtype = working_dtype(x, w_q, w_k, w_v)
    x = x.astype(dtype)
    q, k, v = x @ w_q, x @ w_k, x @ w_v  # (…, tokens, d_k), twice, and (…, tokens, d_v)
    weights = attention_weights(q, k, scale=scale)  # (…, tokens, tokens)
    return weights @ v, weights


@supports(**FACTS)
@np.errstate(all="ignore")
def multihead(
    query: Any,
    key: Any,
    value: Any,
    weights: Mapping[str, Any],
    *,
    num_heads: int,
    attn_mask: Any = None,
    key_padding_mask: Any = None,
    is_causal: bool = False,
    bias_k: Any = None,
    bias_v: Any = None,
    add_zero_attn: bool = False,
    need_weights: bool = True,
) -> tuple[Any, Any]:
    """Concat(head_1, …, head_h) W_O: every head has its own d_model by d_k matrices, and reads all of the input."""
    check_multihead(query, key, value, weights, num_heads, key_padding_mask)
    batch, queries, embed = query.shape
    logits_shape = (batch, num_heads, queries, key.shape[1])
    check_mask(attn_mask, logits_shape)
    dtype = working_dtype(query, key, value)
    visible, bias = visible_and_bias(attn_mask, is_causal, logits_shape, dtype)
    if key_padding_mask is not None:
        visible = visible & ~key_padding_mask[:, None, None, :]  # (B, 1, 1, S)
    none = np.zeros((0, embed), dtype)
    learned = [none if x is None else x[None].astype(dtype) for x in (bias_k, bias_v)]
    zeros = np.zeros((int(add_zero_attn), embed), dtype)
    more_k, more_v = (np.concatenate([x, zeros]) for x in learned)  # (N, E): every query sees them
    behind = ((0, 0), (0, 0), (0, 0), (0, len(more_k)))
    visible, bias = np.pad(visible, behind, constant_values=True), np.pad(bias, behind)  # (B, H, L, S + N)

    def append(x: Any, rows: Any) -> Any:
        """x (B, S, d_k) with the same rows (N, d_k) behind those of every sequence."""
        return np.concatenate([x, np.broadcast_to(rows, (batch, *rows.shape))], axis=1)

    def project(x: Any, name: str, rows: slice) -> Any:
        """x W + b with the columns of W that belong to one head: the rows of the stored, transposed matrix."""
        y = x.astype(dtype) @ weights[f"w_{name}"][rows].astype(dtype).T  # (B, length, d_k)
        b = weights.get(f"b_{name}")
        return y if b is None else y + b[rows].astype(dtype)

    d_k = embed // num_heads
    outputs, attention_of = [], []
    for head in range(num_heads):
        rows = slice(head * d_k, (head + 1) * d_k)
        q, k, v = project(query, "q", rows), project(key, "k", rows), project(value, "v", rows)  # (B, L or S, d_k)
        k, v = append(k, more_k[:, rows]), append(v, more_v[:, rows])  # (B, S + N, d_k)
        attention_of.append(attention_weights(q, k, visible=visible[:, head], bias=bias[:, head]))  # (B, L, S)
        outputs.append(attention_of[-1] @ v)  # (B, L, d_k)
    out = project_out(np.concatenate(outputs, axis=-1), weights)  # (B, L, E)
    kind = result_dtype(query)
    return out.astype(kind), np.stack(attention_of, axis=1).astype(kind) if need_weights else None  # (B, H, L, S)


def project_out(heads: Any, weights: Mapping[str, Any]) -> Any:
    """Concat(heads) W_O + b_O, (…, d_model) → (…, d_model)"""
    out = heads @ weights["w_o"].astype(heads.dtype).T
    b = weights.get("b_o")
    return out if b is None else out + b.astype(heads.dtype)
