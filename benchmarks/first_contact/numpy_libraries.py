"""Interfaces of libraries in NumPy. Two underscores: a twin with one planted mistake."""

import numpy as np


def tf_tutorial(q, k, v, mask):
    """TensorFlow's old tutorial: mask is required (None will do), broadcasts, and is 1 where a key is hidden. Output and weights."""
    dk = np.asarray(k.shape[-1], dtype=q.dtype)
    logits = np.matmul(q, np.moveaxis(k, -1, -2)) / np.sqrt(dk)
    logits = logits.astype(np.promote_types(q.dtype, np.float32))
    if mask is not None:
        logits = logits + np.asarray(mask, logits.dtype) * -1e9
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    weights = weights / weights.sum(-1, keepdims=True)
    weights = weights.astype(v.dtype)
    return np.matmul(weights, v), weights


def tf_tutorial__scaled_by_the_number_of_keys(q, k, v, mask):
    dk = np.asarray(k.shape[-2], dtype=q.dtype)
    logits = np.matmul(q, np.moveaxis(k, -1, -2)) / np.sqrt(dk)
    logits = logits.astype(np.promote_types(q.dtype, np.float32))
    if mask is not None:
        logits = logits + np.asarray(mask, logits.dtype) * -1e9
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    weights = weights / weights.sum(-1, keepdims=True)
    weights = weights.astype(v.dtype)
    return np.matmul(weights, v), weights


def tf_tutorial__weights_sum_to_one_downwards(q, k, v, mask):
    dk = np.asarray(k.shape[-1], dtype=q.dtype)
    logits = np.matmul(q, np.moveaxis(k, -1, -2)) / np.sqrt(dk)
    logits = logits.astype(np.promote_types(q.dtype, np.float32))
    if mask is not None:
        logits = logits + np.asarray(mask, logits.dtype) * -1e9
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    weights = weights / weights.sum(-2, keepdims=True)
    weights = weights.astype(v.dtype)
    return np.matmul(weights, v), weights


def jax_dot_product_attention(
    query,
    key,
    value,
    bias=None,
    mask=None,
    *,
    scale=None,
    is_causal=False,
    query_seq_lengths=None,
    key_value_seq_lengths=None,
    local_window_size=None,
):
    """JAX's interface on (batch, length, heads, dim), groups of heads. mask: True where seen;
    rows beyond query_seq_lengths are zero; a window is (left, right) or both in one."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    B, T, N, H = query.shape
    S, K = key.shape[1:3]
    logits = np.einsum("btkgh,bskh->bkgts", query.reshape(B, T, K, N // K, H), key).reshape(B, N, T, S) * scale
    if bias is not None:
        logits = logits + bias
    i, j = np.arange(T)[:, None], np.arange(S)
    seen = np.ones((B, 1, T, S), dtype=bool)
    if mask is not None:
        seen = seen & mask
    if is_causal:
        seen = seen & (j <= i)
    if local_window_size is not None:
        left, right = (local_window_size,) * 2 if np.isscalar(local_window_size) else local_window_size
        seen = seen & (j >= i - left) & (j <= i + right)
    if query_seq_lengths is not None:
        seen = seen & (i < np.asarray(query_seq_lengths)[:, None, None, None])
    if key_value_seq_lengths is not None:
        seen = seen & (j < np.asarray(key_value_seq_lengths)[:, None, None, None])
    logits = np.where(seen, logits, -0.7 * np.finfo(logits.dtype).max)
    e = np.exp(logits - logits.max(axis=-1, keepdims=True))
    weights = e / e.sum(axis=-1, keepdims=True)
    out = np.einsum("bkgts,bskh->btkgh", weights.reshape(B, K, N // K, T, S), value)
    out = out.reshape(B, T, N, -1)
    if query_seq_lengths is not None:
        out = np.where((np.arange(T) < np.asarray(query_seq_lengths)[:, None])[..., None, None], out, 0.0)
    return out


def jax_dot_product_attention__lengths_only_together(
    query,
    key,
    value,
    bias=None,
    mask=None,
    *,
    scale=None,
    is_causal=False,
    query_seq_lengths=None,
    key_value_seq_lengths=None,
    local_window_size=None,
):
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    B, T, N, H = query.shape
    S, K = key.shape[1:3]
    logits = np.einsum("btkgh,bskh->bkgts", query.reshape(B, T, K, N // K, H), key).reshape(B, N, T, S) * scale
    if bias is not None:
        logits = logits + bias
    i, j = np.arange(T)[:, None], np.arange(S)
    seen = np.ones((B, 1, T, S), dtype=bool)
    if mask is not None:
        seen = seen & mask
    if is_causal:
        seen = seen & (j <= i)
    if local_window_size is not None:
        left, right = (local_window_size,) * 2 if np.isscalar(local_window_size) else local_window_size
        seen = seen & (j >= i - left) & (j <= i + right)
    if query_seq_lengths is not None and key_value_seq_lengths is not None:
        seen = seen & (i < np.asarray(query_seq_lengths)[:, None, None, None])
        seen = seen & (j < np.asarray(key_value_seq_lengths)[:, None, None, None])
    logits = np.where(seen, logits, -0.7 * np.finfo(logits.dtype).max)
    e = np.exp(logits - logits.max(axis=-1, keepdims=True))
    weights = e / e.sum(axis=-1, keepdims=True)
    out = np.einsum("bkgts,bskh->btkgh", weights.reshape(B, K, N // K, T, S), value)
    out = out.reshape(B, T, N, -1)
    if query_seq_lengths is not None:
        out = np.where((np.arange(T) < np.asarray(query_seq_lengths)[:, None])[..., None, None], out, 0.0)
    return out


def jax_dot_product_attention__mask_replaces_the_window(
    query,
    key,
    value,
    bias=None,
    mask=None,
    *,
    scale=None,
    is_causal=False,
    query_seq_lengths=None,
    key_value_seq_lengths=None,
    local_window_size=None,
):
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    B, T, N, H = query.shape
    S, K = key.shape[1:3]
    logits = np.einsum("btkgh,bskh->bkgts", query.reshape(B, T, K, N // K, H), key).reshape(B, N, T, S) * scale
    if bias is not None:
        logits = logits + bias
    i, j = np.arange(T)[:, None], np.arange(S)
    seen = np.ones((B, 1, T, S), dtype=bool)
    if is_causal:
        seen = seen & (j <= i)
    if mask is not None:
        seen = seen & mask
    elif local_window_size is not None:
        left, right = (local_window_size,) * 2 if np.isscalar(local_window_size) else local_window_size
        seen = seen & (j >= i - left) & (j <= i + right)
    if query_seq_lengths is not None:
        seen = seen & (i < np.asarray(query_seq_lengths)[:, None, None, None])
    if key_value_seq_lengths is not None:
        seen = seen & (j < np.asarray(key_value_seq_lengths)[:, None, None, None])
    logits = np.where(seen, logits, -0.7 * np.finfo(logits.dtype).max)
    e = np.exp(logits - logits.max(axis=-1, keepdims=True))
    weights = e / e.sum(axis=-1, keepdims=True)
    out = np.einsum("bkgts,bskh->btkgh", weights.reshape(B, K, N // K, T, S), value)
    out = out.reshape(B, T, N, -1)
    if query_seq_lengths is not None:
        out = np.where((np.arange(T) < np.asarray(query_seq_lengths)[:, None])[..., None, None], out, 0.0)
    return out


def onnx_attention(Q, K, V, attn_mask=None, is_causal=0, scale=None, softcap=0.0):
    """ONNX's operator: (batch, heads, length, dim), groups of heads; attn_mask is True where seen, or added; causal is top-left."""
    scale = Q.shape[3] ** -0.5 if scale is None else scale
    group = Q.shape[1] // K.shape[1]
    K, V = np.repeat(K, group, axis=1), np.repeat(V, group, axis=1)
    root = np.sqrt(abs(scale))
    scores = np.einsum("bhqd,bhkd->bhqk", Q * root, K * root) * np.sign(scale)
    if softcap > 0.0:
        scores = softcap * np.tanh(scores / softcap)
    if is_causal:
        scores = np.where(np.tri(*scores.shape[2:], dtype=bool), scores, -np.inf)
    if attn_mask is not None:
        scores = np.where(attn_mask, scores, -np.inf) if attn_mask.dtype == bool else scores + attn_mask
    top = scores.max(axis=-1, keepdims=True)
    e = np.exp(scores - np.where(np.isneginf(top), 0.0, top))
    total = e.sum(axis=-1, keepdims=True)
    return np.matmul(e / np.where(total == 0.0, 1.0, total), V).astype(Q.dtype)


def onnx_attention__capped_with_its_mask(Q, K, V, attn_mask=None, is_causal=0, scale=None, softcap=0.0):
    scale = Q.shape[3] ** -0.5 if scale is None else scale
    group = Q.shape[1] // K.shape[1]
    K, V = np.repeat(K, group, axis=1), np.repeat(V, group, axis=1)
    root = np.sqrt(abs(scale))
    scores = np.einsum("bhqd,bhkd->bhqk", Q * root, K * root) * np.sign(scale)
    if is_causal:
        scores = np.where(np.tri(*scores.shape[2:], dtype=bool), scores, -np.inf)
    if attn_mask is not None:
        scores = np.where(attn_mask, scores, -np.inf) if attn_mask.dtype == bool else scores + attn_mask
    if softcap > 0.0:
        scores = softcap * np.tanh(scores / softcap)
    top = scores.max(axis=-1, keepdims=True)
    e = np.exp(scores - np.where(np.isneginf(top), 0.0, top))
    total = e.sum(axis=-1, keepdims=True)
    return np.matmul(e / np.where(total == 0.0, 1.0, total), V).astype(Q.dtype)


def onnx_attention__bool_mask_added(Q, K, V, attn_mask=None, is_causal=0, scale=None, softcap=0.0):
    scale = Q.shape[3] ** -0.5 if scale is None else scale
    group = Q.shape[1] // K.shape[1]
    K, V = np.repeat(K, group, axis=1), np.repeat(V, group, axis=1)
    root = np.sqrt(abs(scale))
    scores = np.einsum("bhqd,bhkd->bhqk", Q * root, K * root) * np.sign(scale)
    if softcap > 0.0:
        scores = softcap * np.tanh(scores / softcap)
    if is_causal:
        scores = np.where(np.tri(*scores.shape[2:], dtype=bool), scores, -np.inf)
    if attn_mask is not None:
        scores = scores + attn_mask
    top = scores.max(axis=-1, keepdims=True)
    e = np.exp(scores - np.where(np.isneginf(top), 0.0, top))
    total = e.sum(axis=-1, keepdims=True)
    return np.matmul(e / np.where(total == 0.0, 1.0, total), V).astype(Q.dtype)
