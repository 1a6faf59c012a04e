"""Attention as people write it in PyTorch, on (batch, heads, length, dim) unless said. Two underscores: a twin with one planted mistake."""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F


def attention(query, key, value, mask=None, dropout=None):
    "Scaled dot-product attention; where mask is 0 a key is hidden. dropout is a module. Returns the output and the weights."
    d_k = query.size(-1)
    scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(d_k)
    if mask is not None:
        scores = scores.masked_fill(mask == 0, -1e9)
    p_attn = scores.softmax(dim=-1)
    if dropout is not None:
        p_attn = dropout(p_attn)
    return torch.matmul(p_attn, value), p_attn


def attention__fill_not_kept(query, key, value, mask=None, dropout=None):
    d_k = query.size(-1)
    scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(d_k)
    if mask is not None:
        scores.masked_fill(mask == 0, -1e9)
    p_attn = scores.softmax(dim=-1)
    if dropout is not None:
        p_attn = dropout(p_attn)
    return torch.matmul(p_attn, value), p_attn


def attention__dropout_of_one_half_always(query, key, value, mask=None, dropout=None):
    d_k = query.size(-1)
    scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(d_k)
    if mask is not None:
        scores = scores.masked_fill(mask == 0, -1e9)
    p_attn = F.dropout(scores.softmax(dim=-1), 0.5)
    return torch.matmul(p_attn, value), p_attn


def plain_wrapper(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask=attn_mask, dropout_p=dropout_p, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa
    )


def plain_wrapper__scaled_twice(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    query = query * query.shape[-1] ** -0.5
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask=attn_mask, dropout_p=dropout_p, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa
    )


def plain_wrapper__mask_lost_for_long_keys(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    if key.shape[-2] > 8:
        attn_mask = None
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask=attn_mask, dropout_p=dropout_p, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa
    )


def by_hand(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    """As PyTorch documents its own: top-left causality, True is seen, a float mask is added."""
    L, S = query.size(-2), key.size(-2)
    scale = query.size(-1) ** -0.5 if scale is None else scale
    bias = torch.zeros(L, S, dtype=query.dtype, device=query.device)
    if is_causal:
        bias = bias.masked_fill(torch.ones(L, S, dtype=torch.bool, device=query.device).tril().logical_not(), -math.inf)
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            bias = torch.where(attn_mask, bias, -math.inf)
        else:
            bias = bias + attn_mask
    if enable_gqa:
        key = key.repeat_interleave(query.size(-3) // key.size(-3), dim=-3)
        value = value.repeat_interleave(query.size(-3) // value.size(-3), dim=-3)
    weights = torch.softmax(query @ key.mT * scale + bias, dim=-1)
    return torch.dropout(weights, dropout_p, train=True) @ value


def by_hand__heads_tiled(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    L, S = query.size(-2), key.size(-2)
    scale = query.size(-1) ** -0.5 if scale is None else scale
    bias = torch.zeros(L, S, dtype=query.dtype, device=query.device)
    if is_causal:
        bias = bias.masked_fill(torch.ones(L, S, dtype=torch.bool, device=query.device).tril().logical_not(), -math.inf)
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            bias = torch.where(attn_mask, bias, -math.inf)
        else:
            bias = bias + attn_mask
    if enable_gqa:
        group = query.size(-3) // key.size(-3)
        key, value = key.repeat(1, group, 1, 1), value.repeat(1, group, 1, 1)
    weights = torch.softmax(query @ key.mT * scale + bias, dim=-1)
    return torch.dropout(weights, dropout_p, train=True) @ value


def by_hand__bottom_right(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    L, S = query.size(-2), key.size(-2)
    scale = query.size(-1) ** -0.5 if scale is None else scale
    bias = torch.zeros(L, S, dtype=query.dtype, device=query.device)
    if is_causal:
        seen = torch.ones(L, S, dtype=torch.bool, device=query.device).tril(diagonal=S - L)
        bias = bias.masked_fill(~seen, -math.inf)
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            bias = torch.where(attn_mask, bias, -math.inf)
        else:
            bias = bias + attn_mask
    if enable_gqa:
        key = key.repeat_interleave(query.size(-3) // key.size(-3), dim=-3)
        value = value.repeat_interleave(query.size(-3) // value.size(-3), dim=-3)
    weights = torch.softmax(query @ key.mT * scale + bias, dim=-1)
    return torch.dropout(weights, dropout_p, train=True) @ value


def one_or_the_other(q, k, v, attn_mask=None, is_causal=False):
    assert not (is_causal and attn_mask is not None), "attn_mask and is_causal cannot both be given"
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    if is_causal:
        attn_mask = torch.tril(torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool))
    if attn_mask is not None:
        scores = scores.masked_fill(~attn_mask, float("-inf"))
    return scores.softmax(-1) @ v


def one_or_the_other__is_causal_ignored(q, k, v, attn_mask=None, is_causal=False):
    assert not (is_causal and attn_mask is not None), "attn_mask and is_causal cannot both be given"
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    if attn_mask is not None:
        scores = scores.masked_fill(~attn_mask, float("-inf"))
    return scores.softmax(-1) @ v


def everything_required(q, k, v, mask, is_causal):
    """mask: (batch, 1, queries, keys) of True where seen, or None. Both parts are wanted."""
    scores = torch.einsum("bhid,bhjd->bhij", q, k) * q.shape[-1] ** -0.5
    seen = torch.ones_like(scores, dtype=torch.bool)
    if mask is not None:
        seen = seen & mask
    if is_causal:
        seen = seen & torch.ones_like(scores, dtype=torch.bool).tril()
    return torch.einsum("bhij,bhjd->bhid", scores.masked_fill(~seen, -torch.inf).softmax(-1), v)


def everything_required__causality_replaces_the_mask(q, k, v, mask, is_causal):
    scores = torch.einsum("bhid,bhjd->bhij", q, k) * q.shape[-1] ** -0.5
    seen = torch.ones_like(scores, dtype=torch.bool)
    if mask is not None:
        seen = seen & mask
    if is_causal:
        seen = torch.ones_like(scores, dtype=torch.bool).tril()
    return torch.einsum("bhij,bhjd->bhid", scores.masked_fill(~seen, -torch.inf).softmax(-1), v)


def everything_required__heads_mixed(q, k, v, mask, is_causal):
    scores = torch.einsum("bhid,bhjd->bhij", q, k) * q.shape[-1] ** -0.5
    seen = torch.ones_like(scores, dtype=torch.bool)
    if mask is not None:
        seen = seen & mask
    if is_causal:
        seen = seen & torch.ones_like(scores, dtype=torch.bool).tril()
    return torch.einsum("bhij,bgjd->bhid", scores.masked_fill(~seen, -torch.inf).softmax(-1), v)


def folded_heads(query_states, key_states, value_states, attention_mask=None):
    """(batch·heads, length, dim). attention_mask: (1 or batch·heads, queries, keys), added to the scaled scores."""
    scale = 1 / math.sqrt(query_states.shape[-1])
    if attention_mask is None:
        attention_mask = query_states.new_zeros(1, query_states.shape[1], key_states.shape[1])
    scores = torch.baddbmm(attention_mask, query_states, key_states.transpose(1, 2), beta=1, alpha=scale)
    return torch.bmm(scores.softmax(dim=-1), value_states)


def folded_heads__no_scale_without_a_mask(query_states, key_states, value_states, attention_mask=None):
    scale = 1 / math.sqrt(query_states.shape[-1])
    if attention_mask is None:
        scores = torch.bmm(query_states, key_states.transpose(1, 2))
    else:
        scores = torch.baddbmm(attention_mask, query_states, key_states.transpose(1, 2), beta=1, alpha=scale)
    return torch.bmm(scores.softmax(dim=-1), value_states)


def with_dropout_probability(q, k, v, mask=None, dropout=0.0, training=False):
    """dropout is a probability, and counts in training only. mask: True where seen."""
    logits = (q * q.size(-1) ** -0.5) @ k.transpose(2, 3)
    if mask is not None:
        logits = torch.where(mask, logits, torch.finfo(logits.dtype).min)
    weights = F.dropout(F.softmax(logits, dim=-1), p=dropout, training=training)
    return weights @ v


def with_dropout_probability__in_evaluation_too(q, k, v, mask=None, dropout=0.0, training=False):
    logits = (q * q.size(-1) ** -0.5) @ k.transpose(2, 3)
    if mask is not None:
        logits = torch.where(mask, logits, torch.finfo(logits.dtype).min)
    weights = F.dropout(F.softmax(logits, dim=-1), p=dropout)
    return weights @ v


def keywords_only(*, queries, keys, values, bias=None, **unused):
    """(batch, heads, length, dim); whatever is in bias is added, numbers and booleans alike."""
    s = torch.matmul(queries, keys.mT).div(math.sqrt(queries.shape[-1]))
    if bias is not None:
        s = s + bias
    s = s.to(torch.promote_types(s.dtype, torch.float32))
    return torch.matmul(torch.exp(s - torch.logsumexp(s, dim=-1, keepdim=True)).to(values.dtype), values)


def keywords_only__first_bias_for_all_heads(*, queries, keys, values, bias=None, **unused):
    s = torch.matmul(queries, keys.mT).div(math.sqrt(queries.shape[-1]))
    if bias is not None:
        s = s + bias[:, :1]
    s = s.to(torch.promote_types(s.dtype, torch.float32))
    return torch.matmul(torch.exp(s - torch.logsumexp(s, dim=-1, keepdim=True)).to(values.dtype), values)


class AttentionOutput(NamedTuple):
    output: torch.Tensor
    weights: torch.Tensor


def named_result(query, key, value, is_causal: bool = False) -> AttentionOutput:
    w = query @ key.mT / key.shape[-1] ** 0.5
    if is_causal:
        i, j = torch.arange(w.shape[-2])[:, None], torch.arange(w.shape[-1])
        w = w.where(j <= i, -torch.inf)
    w = w.softmax(-1)
    return AttentionOutput(output=w @ value, weights=w)


def named_result__weights_transposed_when_square(query, key, value, is_causal: bool = False) -> AttentionOutput:
    w = query @ key.mT / key.shape[-1] ** 0.5
    if is_causal:
        i, j = torch.arange(w.shape[-2])[:, None], torch.arange(w.shape[-1])
        w = w.where(j <= i, -torch.inf)
    w = w.softmax(-1)
    return AttentionOutput(output=(w.mT if w.shape[-1] == w.shape[-2] else w) @ value, weights=w)


def zero_for_empty_rows(q, k, v, mask=None):
    """A query that sees no key gets zeros. mask: True where seen, broadcast."""
    s = q @ k.mT * q.shape[-1] ** -0.5
    if mask is None:
        mask = torch.ones_like(s, dtype=torch.bool)
    s = s.masked_fill(~mask, -torch.inf)
    top = s.amax(-1, keepdim=True)
    e = torch.exp(s - top.masked_fill(top == -torch.inf, 0.0))
    d = e.sum(-1, keepdim=True)
    return (e / torch.where(d == 0, 1.0, d)) @ v


def zero_for_empty_rows__maximum_of_hidden_too(q, k, v, mask=None):
    s = q @ k.mT * q.shape[-1] ** -0.5
    if mask is None:
        mask = torch.ones_like(s, dtype=torch.bool)
    e = torch.where(mask, torch.exp(s - s.amax(-1, keepdim=True)), 0.0)
    d = e.sum(-1, keepdim=True)
    return (e / torch.where(d == 0, 1.0, d)) @ v


def zero_for_empty_rows__half_of_a_row_is_zero_too(q, k, v, mask=None):
    s = q @ k.mT * q.shape[-1] ** -0.5
    if mask is None:
        mask = torch.ones_like(s, dtype=torch.bool)
    mask = mask.broadcast_to(s.shape)
    w = s.masked_fill(~mask, -torch.inf).softmax(-1).nan_to_num(0.0)
    return torch.where(mask[..., :1], w @ v, 0.0)


def zero_for_empty_rows__nan_beyond_the_first_sequence(q, k, v, mask=None):
    s = q @ k.mT * q.shape[-1] ** -0.5
    if mask is None:
        mask = torch.ones_like(s, dtype=torch.bool)
    w = s.masked_fill(~mask, -torch.inf).softmax(-1)
    return torch.cat([w[:1].nan_to_num(0.0), w[1:]]) @ v


def plain_wrapper__empty_rows_average(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = attn_mask | ~attn_mask.any(dim=-1, keepdim=True)
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask=attn_mask, dropout_p=dropout_p, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa
    )
