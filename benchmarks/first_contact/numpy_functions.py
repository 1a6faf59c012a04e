"""Attention as tutorials write it in NumPy: no heads, often no batch. A name with two underscores is a twin with one planted mistake."""

import math

import numpy as np


def softmax(x, axis=-1):
    e = np.exp(x - np.max(x, axis=axis, keepdims=True))
    return e / np.sum(e, axis=axis, keepdims=True)


def self_attention(Q, K, V):
    return softmax(Q @ K.T / np.sqrt(K.shape[-1])) @ V


def self_attention__softmax_over_queries(Q, K, V):
    return softmax(Q @ K.T / np.sqrt(K.shape[-1]), axis=0) @ V


def scaled_dot_product_attention(Q, K, V, mask=None):
    """Attention on (length, dim) matrices. mask: (queries, keys), 0 where a key is hidden. Returns output and weights."""
    d_k = Q.shape[-1]
    scores = np.matmul(Q, K.T) / np.sqrt(d_k)
    if mask is not None:
        scores = np.where(mask == 0, -1e9, scores)
    attention_weights = softmax(scores)
    return np.matmul(attention_weights, V), attention_weights


def scaled_dot_product_attention__mask_after_softmax(Q, K, V, mask=None):
    d_k = Q.shape[-1]
    scores = np.matmul(Q, K.T) / np.sqrt(d_k)
    attention_weights = softmax(scores)
    if mask is not None:
        attention_weights = np.where(mask == 0, 0.0, attention_weights)
    return np.matmul(attention_weights, V), attention_weights


def scaled_dot_product_attention__weights_unmasked(Q, K, V, mask=None):
    d_k = Q.shape[-1]
    scores = np.matmul(Q, K.T) / np.sqrt(d_k)
    attention_weights = softmax(scores)
    if mask is not None:
        scores = np.where(mask == 0, -1e9, scores)
    return np.matmul(softmax(scores), V), attention_weights


def masked_self_attention(q, k, v):
    """Each token looks at itself and at what came before."""
    n, d = q.shape
    scores = q @ k.T / math.sqrt(d)
    scores = scores + np.triu(np.full((n, n), -np.inf), k=1)
    return softmax(scores) @ v


def masked_self_attention__sees_the_next(q, k, v):
    n, d = q.shape
    scores = q @ k.T / math.sqrt(d)
    scores = scores + np.triu(np.full((n, n), -np.inf), k=2)
    return softmax(scores) @ v


def attention_by_loops(queries, keys, values):
    dim = len(queries[0])
    output = np.zeros((len(queries), values.shape[1]))
    for i, query in enumerate(queries):
        logits = [sum(a * b for a, b in zip(query.tolist(), key.tolist(), strict=True)) / math.sqrt(dim) for key in keys]
        top = max(logits)
        exponentials = [math.exp(logit - top) for logit in logits]
        total = sum(exponentials)
        for weight, value in zip(exponentials, values, strict=True):
            output[i] += weight / total * value
    return output.astype(values.dtype)


def attention_by_loops__total_carried_over(queries, keys, values):
    dim = len(queries[0])
    output = np.zeros((len(queries), values.shape[1]))
    total = 0.0
    for i, query in enumerate(queries):
        logits = [sum(a * b for a, b in zip(query.tolist(), key.tolist(), strict=True)) / math.sqrt(dim) for key in keys]
        top = max(logits)
        exponentials = [math.exp(logit - top) for logit in logits]
        total += sum(exponentials)
        for weight, value in zip(exponentials, values, strict=True):
            output[i] += weight / total * value
    return output.astype(values.dtype)


def batched_attention(q, k, v, masked=None):
    """(batch, length, dim). masked: (batch, queries, keys), True where a query must not look."""
    scores = np.matmul(q, k.transpose(0, 2, 1)) / np.sqrt(q.shape[2])
    if masked is not None:
        scores[masked] = -np.inf
    return np.matmul(softmax(scores), v)


def batched_attention__scaled_by_length(q, k, v, masked=None):
    scores = np.matmul(q, k.transpose(0, 2, 1)) / np.sqrt(k.shape[1])
    if masked is not None:
        scores[masked] = -np.inf
    return np.matmul(softmax(scores), v)


def batched_attention__first_mask_for_all(q, k, v, masked=None):
    scores = np.matmul(q, k.transpose(0, 2, 1)) / np.sqrt(q.shape[2])
    if masked is not None:
        scores[:, masked[0]] = -np.inf
    return np.matmul(softmax(scores), v)


def attention_with_lengths(queries, keys, values, valid_lens=None):
    """(batch, length, dim); of the keys of a sequence only the first valid_lens are there."""
    scores = queries @ np.swapaxes(keys, 1, 2) / np.sqrt(queries.shape[-1])
    if valid_lens is not None:
        position = np.arange(keys.shape[1])[None, None, :]
        scores = np.where(position < np.asarray(valid_lens)[:, None, None], scores, -1e6)
    return softmax(scores) @ values


def attention_with_lengths__one_more(queries, keys, values, valid_lens=None):
    scores = queries @ np.swapaxes(keys, 1, 2) / np.sqrt(queries.shape[-1])
    if valid_lens is not None:
        position = np.arange(keys.shape[1])[None, None, :]
        scores = np.where(position <= np.asarray(valid_lens)[:, None, None], scores, -1e6)
    return softmax(scores) @ values


def dot_attention(decoder_states, encoder_keys, encoder_values):
    """Luong's dot attention: logits are plain dot products, without a scale. (batch, length, dim)."""
    scores = np.einsum("bid,bjd->bij", decoder_states, encoder_keys)
    return np.einsum("bij,bjd->bid", softmax(scores), encoder_values)


def dot_attention__softmax_over_queries(decoder_states, encoder_keys, encoder_values):
    scores = np.einsum("bid,bjd->bij", decoder_states, encoder_keys)
    weights = softmax(scores, axis=1)
    return np.einsum("bij,bjd->bid", weights, encoder_values)


def attention_into(q, k, v, out):
    """Writes its answer into out, (heads, length, dim), and returns nothing."""
    scale = 1.0 / np.sqrt(q.shape[-1])
    for h in range(q.shape[0]):
        np.matmul(softmax(scale * (q[h] @ k[h].T)), v[h], out=out[h])


def attention_into__last_row_left(q, k, v, out):
    scale = 1.0 / np.sqrt(q.shape[-1])
    for h in range(q.shape[0]):
        for i in range(0, q.shape[1] - 1):
            out[h, i] = softmax(scale * (k[h] @ q[h, i])) @ v[h]


def attention_summary(query, key, value, mask=None):
    """(heads, length, dim). mask: 1 where seen, multiplied in by arithmetic. Returns a dictionary."""
    logits = np.einsum("hid,hjd->hij", query, key) * query.shape[-1] ** -0.5
    logits = logits.astype(np.promote_types(logits.dtype, np.float32))
    if mask is not None:
        logits = logits + (1.0 - mask.astype(logits.dtype)) * -1e9
    weights = softmax(logits).astype(value.dtype)
    return {"output": np.einsum("hij,hjd->hid", weights, value), "attention_weights": weights}


def attention_summary__scores_times_mask(query, key, value, mask=None):
    logits = np.einsum("hid,hjd->hij", query, key) * query.shape[-1] ** -0.5
    logits = logits.astype(np.promote_types(logits.dtype, np.float32))
    if mask is not None:
        logits = logits * mask.astype(logits.dtype)
    weights = softmax(logits).astype(value.dtype)
    return {"output": np.einsum("hij,hjd->hid", weights, value), "attention_weights": weights}


def attention_of_heads(queries, keys, values):
    """Lists of heads, each (length, dim)."""
    results = []
    for q, k, v in zip(queries, keys, values, strict=True):
        results.append(softmax(q @ k.T / np.sqrt(q.shape[1])) @ v)
    return results


def attention_of_heads__scaled_by_number_of_heads(queries, keys, values):
    results = []
    for q, k, v in zip(queries, keys, values, strict=True):
        results.append(softmax(q @ k.T / np.sqrt(q.shape[1] * len(queries))) @ v)
    return results


def attention_in_single(q, k, v, attention_mask=None):
    """(batch, heads, length, dim), always computed in float32. attention_mask is added to the scaled scores."""
    q, k, v = (np.asarray(x, dtype=np.float32) for x in (q, k, v))
    scores = q @ k.swapaxes(-1, -2) / np.float32(np.sqrt(q.shape[-1]))
    if attention_mask is not None:
        scores = scores + attention_mask.astype(np.float32)
    return softmax(scores) @ v


def attention_in_single__mask_is_scaled(q, k, v, attention_mask=None):
    q, k, v = (np.asarray(x, dtype=np.float32) for x in (q, k, v))
    scores = q @ k.swapaxes(-1, -2)
    if attention_mask is not None:
        scores = scores + attention_mask.astype(np.float32)
    return softmax(scores / np.float32(np.sqrt(q.shape[-1]))) @ v


def attention_with_single_softmax(q, k, v, mask=None):
    """The products in the type of the input, the softmax in float32. mask: True where seen, two axes or more."""
    scores = np.matmul(q, np.swapaxes(k, -2, -1)) / np.sqrt(q.shape[-1])
    if mask is not None:
        scores = np.where(mask, scores, -np.inf)
    weights = softmax(scores.astype(np.float32)).astype(q.dtype)
    return np.matmul(weights, v)


def attention_with_single_softmax__mask_not_kept(q, k, v, mask=None):
    scores = np.matmul(q, np.swapaxes(k, -2, -1)) / np.sqrt(q.shape[-1])
    if mask is not None:
        np.where(mask, scores, -np.inf)
    weights = softmax(scores.astype(np.float32)).astype(q.dtype)
    return np.matmul(weights, v)


def attend(query, key, value, mask, scale):
    """Everything by position. mask: (queries, keys) or None, added; scale is not guessed. One head, (length, dim)."""
    z = scale * np.dot(query, key.T)
    if mask is not None:
        z = z + mask
    z = np.exp(z - z.max(axis=1, keepdims=True))
    return np.dot(z, value) / z.sum(axis=1, keepdims=True)


def attend__no_maximum(query, key, value, mask, scale):
    z = scale * np.dot(query, key.T)
    if mask is not None:
        z = z + mask
    z = np.exp(z)
    return np.dot(z, value) / z.sum(axis=1, keepdims=True)


def attend__one_maximum_for_all_rows(query, key, value, mask, scale):
    z = scale * np.dot(query, key.T)
    if mask is not None:
        z = z + mask
    z = np.exp(z - z.max())
    return np.dot(z, value) / z.sum(axis=1, keepdims=True)


def simple_causal(q, k, v, causal=True):
    """(batch, length, dim), self-attention, causal by default."""
    n = q.shape[1]
    s = q @ k.swapaxes(1, 2) / q.shape[2] ** 0.5
    if causal:
        s = np.where(np.tri(n, dtype=bool), s, -np.inf)
    return softmax(s) @ v


def simple_causal__strict(q, k, v, causal=True):
    n = q.shape[1]
    s = q @ k.swapaxes(1, 2) / q.shape[2] ** 0.5
    if causal:
        s = np.where(np.tri(n, k=-1, dtype=bool) | (np.arange(n) == 0), s, -np.inf)
    return softmax(s) @ v
