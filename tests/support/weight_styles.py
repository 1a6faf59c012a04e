"""Attention functions that are given the weights of their projections, as tutorials write them; two underscores: with one planted mistake."""

from __future__ import annotations

import math
from typing import Any

import numpy as np


def softmax(x: Any, axis: int = -1) -> Any:
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


def one_head(X: Any, W_q: Any, W_k: Any, W_v: Any) -> Any:
    """(length, features)"""
    Q, K, V = X @ W_q, X @ W_k, X @ W_v
    return softmax(Q @ K.T / np.sqrt(K.shape[1])) @ V


def one_head__scaled_by_the_tokens(X: Any, W_q: Any, W_k: Any, W_v: Any) -> Any:
    Q, K, V = X @ W_q, X @ W_k, X @ W_v
    return softmax(Q @ K.T / np.sqrt(X.shape[1])) @ V


def one_head__keys_by_the_weights_of_queries(X: Any, W_q: Any, W_k: Any, W_v: Any) -> Any:
    Q, K, V = X @ W_q, X @ W_q, X @ W_v
    return softmax(Q @ K.T / np.sqrt(K.shape[1])) @ V


def batched(x: Any, wq: Any, wk: Any, wv: Any) -> Any:
    """(batch, length, features), and the weights."""
    q, k, v = x @ wq, x @ wk, x @ wv
    weights = softmax(q @ k.transpose(0, 2, 1) / math.sqrt(q.shape[-1]))
    return weights @ v, weights


def batched__softmax_over_queries(x: Any, wq: Any, wk: Any, wv: Any) -> Any:
    q, k, v = x @ wq, x @ wk, x @ wv
    weights = softmax(q @ k.transpose(0, 2, 1) / math.sqrt(q.shape[-1]), axis=1)
    return weights @ v, weights


def head_dim_given(tokens: Any, w_query: Any, w_key: Any, w_value: Any, d_k: int, mask: Any = None) -> Any:
    q, k, v = tokens @ w_query, tokens @ w_key, tokens @ w_value
    scores = q @ k.T / np.sqrt(d_k)
    if mask is not None:
        scores = np.where(mask == 0, -1e9, scores)
    return softmax(scores) @ v


def head_dim_given__mask_inverted_after_softmax(tokens: Any, w_query: Any, w_key: Any, w_value: Any, d_k: int, mask: Any = None) -> Any:
    q, k, v = tokens @ w_query, tokens @ w_key, tokens @ w_value
    weights = softmax(q @ k.T / np.sqrt(d_k))
    if mask is not None:
        weights = np.where(mask == 0, 0.0, weights)
    return weights @ v


def multi_head(X: Any, W_q: Any, W_k: Any, W_v: Any, W_o: Any, num_heads: int) -> Any:
    """(length, features), of which each head has an equal share."""
    n, d_model = X.shape
    d = d_model // num_heads
    q, k, v = ((X @ w).reshape(n, num_heads, d).transpose(1, 0, 2) for w in (W_q, W_k, W_v))
    out = softmax(q @ k.transpose(0, 2, 1) / np.sqrt(d)) @ v
    return out.transpose(1, 0, 2).reshape(n, d_model) @ W_o


def multi_head__merged_without_transpose(X: Any, W_q: Any, W_k: Any, W_v: Any, W_o: Any, num_heads: int) -> Any:
    n, d_model = X.shape
    d = d_model // num_heads
    q, k, v = ((X @ w).reshape(n, num_heads, d).transpose(1, 0, 2) for w in (W_q, W_k, W_v))
    return (softmax(q @ k.transpose(0, 2, 1) / np.sqrt(d)) @ v).reshape(n, d_model) @ W_o


def multi_head__scaled_by_the_model(X: Any, W_q: Any, W_k: Any, W_v: Any, W_o: Any, num_heads: int) -> Any:
    n, d_model = X.shape
    d = d_model // num_heads
    q, k, v = ((X @ w).reshape(n, num_heads, d).transpose(1, 0, 2) for w in (W_q, W_k, W_v))
    out = softmax(q @ k.transpose(0, 2, 1) / np.sqrt(d_model)) @ v
    return out.transpose(1, 0, 2).reshape(n, d_model) @ W_o


def fused(x: Any, w_qkv: Any, w_out: Any, n_heads: int, mask: Any = None) -> Any:
    """(batch, length, features); a mask (queries, keys), 0 where a key is hidden."""
    b, n, width = x.shape
    d = width // n_heads
    q, k, v = (part.reshape(b, n, n_heads, d).transpose(0, 2, 1, 3) for part in np.split(x @ w_qkv, 3, axis=-1))
    scores = q @ k.transpose(0, 1, 3, 2) / np.sqrt(d)
    if mask is not None:
        scores = np.where(mask == 0, -1e9, scores)
    return (softmax(scores) @ v).transpose(0, 2, 1, 3).reshape(b, n, width) @ w_out


def fused__keys_and_values_exchanged(x: Any, w_qkv: Any, w_out: Any, n_heads: int, mask: Any = None) -> Any:
    b, n, width = x.shape
    d = width // n_heads
    q, v, k = (part.reshape(b, n, n_heads, d).transpose(0, 2, 1, 3) for part in np.split(x @ w_qkv, 3, axis=-1))
    scores = q @ k.transpose(0, 1, 3, 2) / np.sqrt(d)
    if mask is not None:
        scores = np.where(mask == 0, -1e9, scores)
    return (softmax(scores) @ v).transpose(0, 2, 1, 3).reshape(b, n, width) @ w_out


def memory(x: Any, context: Any, Wq: Any, Wk: Any, Wv: Any) -> Any:
    q, k, v = x @ Wq, context @ Wk, context @ Wv
    return softmax(q @ k.T / math.sqrt(q.shape[-1])) @ v


def memory__scaled_by_its_length(x: Any, context: Any, Wq: Any, Wk: Any, Wv: Any) -> Any:
    q, k, v = x @ Wq, context @ Wk, context @ Wv
    return softmax(q @ k.T / math.sqrt(k.shape[0])) @ v


def three_inputs(Q: Any, K: Any, V: Any, W_Q: Any, W_K: Any, W_V: Any, W_O: Any, h: int) -> Any:
    """A loop over heads, each a part of the features."""
    q, k, v = Q @ W_Q, K @ W_K, V @ W_V
    d = q.shape[-1] // h
    parts = [slice(i * d, (i + 1) * d) for i in range(h)]
    return np.concatenate([softmax(q[:, at] @ k[:, at].T / np.sqrt(d)) @ v[:, at] for at in parts], axis=-1) @ W_O


def three_inputs__every_head_reads_the_first_values(Q: Any, K: Any, V: Any, W_Q: Any, W_K: Any, W_V: Any, W_O: Any, h: int) -> Any:
    q, k, v = Q @ W_Q, K @ W_K, V @ W_V
    d = q.shape[-1] // h
    parts = [slice(i * d, (i + 1) * d) for i in range(h)]
    return np.concatenate([softmax(q[:, at] @ k[:, at].T / np.sqrt(d)) @ v[:, parts[0]] for at in parts], axis=-1) @ W_O


def weights_by_head(x: Any, w_q: Any, w_k: Any, w_v: Any, w_o: Any) -> Any:
    """Weights (heads, in, out)."""
    q, k, v = (np.einsum("nd,hde->hne", x, w) for w in (w_q, w_k, w_v))
    weights = softmax(np.einsum("hne,hme->hnm", q, k) / np.sqrt(q.shape[-1]))
    return np.einsum("hnm,hme,hed->nd", weights, v, w_o)


def weights_by_head__every_head_sees_the_first_keys(x: Any, w_q: Any, w_k: Any, w_v: Any, w_o: Any) -> Any:
    q, k, v = (np.einsum("nd,hde->hne", x, w) for w in (w_q, w_k, w_v))
    weights = softmax(np.einsum("hne,me->hnm", q, k[0]) / np.sqrt(q.shape[-1]))
    return np.einsum("hnm,hme,hed->nd", weights, v, w_o)


def always_causal(x: Any, w_query: Any, w_key: Any, w_value: Any) -> Any:
    """PyTorch, (batch, length, features)."""
    import torch

    q, k, v = x @ w_query, x @ w_key, x @ w_value
    scores = q @ k.mT / k.shape[-1] ** 0.5
    ahead = torch.triu(torch.ones(scores.shape[-2:], dtype=torch.bool, device=x.device), 1)
    return torch.softmax(scores.masked_fill(ahead, -math.inf), -1) @ v


def always_causal__sees_the_next(x: Any, w_query: Any, w_key: Any, w_value: Any) -> Any:
    import torch

    q, k, v = x @ w_query, x @ w_key, x @ w_value
    scores = q @ k.mT / k.shape[-1] ** 0.5
    ahead = torch.triu(torch.ones(scores.shape[-2:], dtype=torch.bool, device=x.device), 2)
    return torch.softmax(scores.masked_fill(ahead, -math.inf), -1) @ v


def linear_with_biases(x: Any, wq: Any, bq: Any, wk: Any, bk: Any, wv: Any, bv: Any, wo: Any, bo: Any, n_head: int) -> Any:
    """PyTorch's order of axes, (out, in)."""
    from torch.nn.functional import linear, scaled_dot_product_attention

    q, k, v = (linear(x, w, b).unflatten(-1, (n_head, -1)).transpose(1, 2) for w, b in ((wq, bq), (wk, bk), (wv, bv)))
    return linear(scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2), wo, bo)


def linear_with_biases__heads_interleaved(
    x: Any, wq: Any, bq: Any, wk: Any, bk: Any, wv: Any, bv: Any, wo: Any, bo: Any, n_head: int
) -> Any:
    from torch.nn.functional import linear, scaled_dot_product_attention

    q, k, v = (linear(x, w, b).unflatten(-1, (n_head, -1)).transpose(1, 2) for w, b in ((wq, bq), (wk, bk), (wv, bv)))
    return linear(scaled_dot_product_attention(q, k, v).transpose(1, 2).transpose(2, 3).flatten(2), wo, bo)


def grouped(x: Any, w_q: Any, w_k: Any, w_v: Any, w_o: Any, num_query_heads: int, num_kv_heads: int, causal: bool = False) -> Any:
    """Fewer heads of keys than of queries."""
    from torch.nn.functional import scaled_dot_product_attention

    q = (x @ w_q).unflatten(-1, (num_query_heads, -1)).transpose(1, 2)
    k, v = ((x @ w).unflatten(-1, (num_kv_heads, -1)).transpose(1, 2) for w in (w_k, w_v))
    out = scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)
    return out.transpose(1, 2).flatten(2) @ w_o


def grouped__heads_not_moved_back(
    x: Any, w_q: Any, w_k: Any, w_v: Any, w_o: Any, num_query_heads: int, num_kv_heads: int, causal: bool = False
) -> Any:
    from torch.nn.functional import scaled_dot_product_attention

    q = (x @ w_q).unflatten(-1, (num_query_heads, -1)).transpose(1, 2)
    k, v = ((x @ w).unflatten(-1, (num_kv_heads, -1)).transpose(1, 2) for w in (w_k, w_v))
    out = scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)
    return out.reshape(x.shape) @ w_o
