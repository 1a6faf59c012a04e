"""Under the names of well-known interfaces, in own words. Two underscores: a twin with one planted mistake."""

import math

import torch
from torch.nn.functional import dropout as random_zeros
from torch.nn.functional import scaled_dot_product_attention


def _repeat_kv(x, n):
    b, h, s, d = x.shape
    return x[:, :, None].expand(b, h, n, s, d).reshape(b, h * n, s, d)


def eager_attention_forward(module, query, key, value, attention_mask, scaling, dropout=0.0, **kwargs):
    """Hugging Face's interface: (batch, heads, length, dim) in, (batch, length, heads, dim) and the weights out; the mask is added."""
    key, value = _repeat_kv(key, module.num_key_value_groups), _repeat_kv(value, module.num_key_value_groups)
    weights = torch.matmul(query, key.transpose(2, 3)) * scaling
    if attention_mask is not None:
        weights = weights + attention_mask[:, :, :, : key.shape[-2]]
    weights = torch.softmax(weights, dim=-1, dtype=torch.promote_types(query.dtype, torch.float32)).to(query.dtype)
    weights = random_zeros(weights, p=dropout, training=module.training)
    return torch.matmul(weights, value).transpose(1, 2).contiguous(), weights


def eager_attention_forward__keys_and_values_grouped_differently(module, query, key, value, attention_mask, scaling, dropout=0.0, **kwargs):
    key, value = _repeat_kv(key, module.num_key_value_groups), value.repeat(1, module.num_key_value_groups, 1, 1)
    weights = torch.matmul(query, key.transpose(2, 3)) * scaling
    if attention_mask is not None:
        weights = weights + attention_mask[:, :, :, : key.shape[-2]]
    weights = torch.softmax(weights, dim=-1, dtype=torch.promote_types(query.dtype, torch.float32)).to(query.dtype)
    weights = random_zeros(weights, p=dropout, training=module.training)
    return torch.matmul(weights, value).transpose(1, 2).contiguous(), weights


def eager_attention_forward__mask_of_the_last_query(module, query, key, value, attention_mask, scaling, dropout=0.0, **kwargs):
    key, value = _repeat_kv(key, module.num_key_value_groups), _repeat_kv(value, module.num_key_value_groups)
    weights = torch.matmul(query, key.transpose(2, 3)) * scaling
    if attention_mask is not None:
        weights = weights + attention_mask[:, :, -1:, : key.shape[-2]]
    weights = torch.softmax(weights, dim=-1, dtype=torch.promote_types(query.dtype, torch.float32)).to(query.dtype)
    weights = random_zeros(weights, p=dropout, training=module.training)
    return torch.matmul(weights, value).transpose(1, 2).contiguous(), weights


def sdpa_attention_forward(module, query, key, value, attention_mask, dropout=0.0, scaling=None, is_causal=None, **kwargs):
    """As above by PyTorch's own; no weights come back. Causal without a mask where the module is, but a single query never."""
    groups = getattr(module, "num_key_value_groups", 1)
    key, value = _repeat_kv(key, groups), _repeat_kv(value, groups)
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    is_causal = bool(is_causal) and attention_mask is None and query.shape[2] > 1
    out = scaled_dot_product_attention(query, key, value, attn_mask=attention_mask, dropout_p=dropout, scale=scaling, is_causal=is_causal)
    return out.transpose(1, 2).contiguous(), None


def sdpa_attention_forward__scaling_not_passed_on(
    module, query, key, value, attention_mask, dropout=0.0, scaling=None, is_causal=None, **kwargs
):
    groups = getattr(module, "num_key_value_groups", 1)
    key, value = _repeat_kv(key, groups), _repeat_kv(value, groups)
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    is_causal = bool(is_causal) and attention_mask is None and query.shape[2] > 1
    out = scaled_dot_product_attention(query, key, value, attn_mask=attention_mask, dropout_p=dropout, is_causal=is_causal)
    return out.transpose(1, 2).contiguous(), None


def keras_dot_product_attention(query, key, value, bias=None, mask=None, scale=None, is_causal=False):
    """(batch, length, heads, dim). bias is added; mask: (batch, heads, queries, keys), True where seen."""
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    logits = torch.einsum("BTNH,BSNH->BNTS", query, key) * scale
    if bias is not None:
        logits = logits + bias
    if mask is not None:
        logits = torch.where(mask, logits, -0.7 * torch.finfo(logits.dtype).max)
    if is_causal:
        T, S = logits.shape[2:]
        seen = torch.arange(T)[:, None] >= torch.arange(S)
        logits = torch.where(seen, logits, -0.7 * torch.finfo(logits.dtype).max)
    return torch.einsum("BNTS,BSNH->BTNH", torch.softmax(logits, dim=3), value)


def keras_dot_product_attention__bias_only_without_causality(query, key, value, bias=None, mask=None, scale=None, is_causal=False):
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    logits = torch.einsum("BTNH,BSNH->BNTS", query, key) * scale
    if mask is not None:
        logits = torch.where(mask, logits, -0.7 * torch.finfo(logits.dtype).max)
    if is_causal:
        T, S = logits.shape[2:]
        seen = torch.arange(T)[:, None] >= torch.arange(S)
        logits = torch.where(seen, logits, -0.7 * torch.finfo(logits.dtype).max)
    elif bias is not None:
        logits = logits + bias
    return torch.einsum("BNTS,BSNH->BTNH", torch.softmax(logits, dim=3), value)


def memory_efficient_attention(query, key, value, attn_bias=None, p=0.0, scale=None):
    """xFormers' interface: (batch, length, heads, dim); attn_bias: (batch, heads, queries, keys), added."""
    scale = 1.0 / query.shape[-1] ** 0.5 if scale is None else scale
    query, key, value = ((query * scale).transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2))
    attn = query @ key.transpose(-2, -1)
    if attn_bias is not None:
        attn = attn + attn_bias
    return (random_zeros(attn.softmax(-1), p) @ value).transpose(1, 2)


def memory_efficient_attention__bias_scaled(query, key, value, attn_bias=None, p=0.0, scale=None):
    scale = 1.0 / query.shape[-1] ** 0.5 if scale is None else scale
    query, key, value = (query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2))
    attn = query @ key.transpose(-2, -1)
    if attn_bias is not None:
        attn = attn + attn_bias
    return (random_zeros((attn * scale).softmax(-1), p) @ value).transpose(1, 2)


def mlx_fast_attention(q, k, v, *, scale, mask=None):
    """MLX's interface: fewer key heads are groups; mask is None, "causal" (bottom right), booleans (True seen) or numbers to add."""
    b, h, n, d = q.shape
    g = k.shape[1]
    scores = torch.einsum("bgrld,bgsd->bgrls", scale * q.reshape(b, g, h // g, n, d), k).reshape(b, h, n, -1)
    if isinstance(mask, str):
        assert mask == "causal"
        mask = torch.arange(n)[:, None] + scores.shape[-1] - n >= torch.arange(scores.shape[-1])
    if mask is not None:
        scores = torch.where(mask, scores, -math.inf) if mask.dtype == torch.bool else scores + mask
    weights = scores.softmax(-1).reshape(b, g, h // g, n, -1)
    return torch.einsum("bgrls,bgsd->bgrld", weights, v).reshape(b, h, n, -1)


def mlx_fast_attention__top_left(q, k, v, *, scale, mask=None):
    b, h, n, d = q.shape
    g = k.shape[1]
    scores = torch.einsum("bgrld,bgsd->bgrls", scale * q.reshape(b, g, h // g, n, d), k).reshape(b, h, n, -1)
    if isinstance(mask, str):
        assert mask == "causal"
        mask = torch.arange(n)[:, None] >= torch.arange(scores.shape[-1])
    if mask is not None:
        scores = torch.where(mask, scores, -math.inf) if mask.dtype == torch.bool else scores + mask
    weights = scores.softmax(-1).reshape(b, g, h // g, n, -1)
    return torch.einsum("bgrls,bgsd->bgrld", weights, v).reshape(b, h, n, -1)


def mlx_fast_attention__group_is_the_outer_axis(q, k, v, *, scale, mask=None):
    b, h, n, d = q.shape
    g = k.shape[1]
    scores = torch.einsum("brgld,bgsd->brgls", scale * q.reshape(b, h // g, g, n, d), k).reshape(b, h, n, -1)
    if isinstance(mask, str):
        assert mask == "causal"
        mask = torch.arange(n)[:, None] + scores.shape[-1] - n >= torch.arange(scores.shape[-1])
    if mask is not None:
        scores = torch.where(mask, scores, -math.inf) if mask.dtype == torch.bool else scores + mask
    weights = scores.softmax(-1).reshape(b, h // g, g, n, -1)
    return torch.einsum("brgls,bgsd->brgld", weights, v).reshape(b, h, n, -1)


def padding_of_keys(query, key, value, key_padding_mask=None, attn_mask=None):
    """torch.nn.MultiheadAttention's masks, True where hidden: key_padding_mask (batch, keys), attn_mask (queries, keys)."""
    b, h, n, d = query.shape
    q, k, v = (x.reshape(b * h, -1, x.shape[-1]) for x in (query, key, value))
    scores = torch.bmm(q / math.sqrt(d), k.transpose(1, 2))
    if attn_mask is not None:
        scores = scores.masked_fill(attn_mask, -math.inf)
    if key_padding_mask is not None:
        scores = scores.masked_fill(key_padding_mask.repeat_interleave(h, dim=0)[:, None, :], -math.inf)
    return torch.bmm(scores.softmax(-1), v).reshape(b, h, n, -1)


def padding_of_keys__repeated_across_the_batch(query, key, value, key_padding_mask=None, attn_mask=None):
    b, h, n, d = query.shape
    q, k, v = (x.reshape(b * h, -1, x.shape[-1]) for x in (query, key, value))
    scores = torch.bmm(q / math.sqrt(d), k.transpose(1, 2))
    if attn_mask is not None:
        scores = scores.masked_fill(attn_mask, -math.inf)
    if key_padding_mask is not None:
        scores = scores.masked_fill(key_padding_mask.repeat(h, 1)[:, None, :], -math.inf)
    return torch.bmm(scores.softmax(-1), v).reshape(b, h, n, -1)


def padding_of_keys__lost_when_both_are_given(query, key, value, key_padding_mask=None, attn_mask=None):
    b, h, n, d = query.shape
    q, k, v = (x.reshape(b * h, -1, x.shape[-1]) for x in (query, key, value))
    scores = torch.bmm(q / math.sqrt(d), k.transpose(1, 2))
    if attn_mask is not None:
        scores = scores.masked_fill(attn_mask, -math.inf)
    elif key_padding_mask is not None:
        scores = scores.masked_fill(key_padding_mask.repeat_interleave(h, dim=0)[:, None, :], -math.inf)
    return torch.bmm(scores.softmax(-1), v).reshape(b, h, n, -1)


def bert_self_attention(query_layer, key_layer, value_layer, attention_mask=None):
    """attention_mask: (batch, keys), 1 for a token, 0 for padding, made additive inside. Returns (out, probabilities)."""
    scores = torch.matmul(query_layer, key_layer.transpose(-1, -2)) / math.sqrt(query_layer.size(-1))
    if attention_mask is not None:
        extended = attention_mask[:, None, None, :].to(scores.dtype)
        scores = scores + (1.0 - extended) * torch.finfo(scores.dtype).min
    probabilities = scores.softmax(dim=-1)
    return torch.matmul(probabilities, value_layer), probabilities


def bert_self_attention__one_for_minus_infinity(query_layer, key_layer, value_layer, attention_mask=None):
    scores = torch.matmul(query_layer, key_layer.transpose(-1, -2)) / math.sqrt(query_layer.size(-1))
    if attention_mask is not None:
        extended = attention_mask[:, None, None, :].to(scores.dtype)
        scores = scores + (1.0 - extended) * -1.0
    probabilities = scores.softmax(dim=-1)
    return torch.matmul(probabilities, value_layer), probabilities


def t5_attention(query, key, value, position_bias=None, mask=None):
    """T5's: no scale at all; position_bias (1, heads, queries, keys) and mask (batch, 1, queries, keys) are both added."""
    scores = torch.einsum("bhqd,bhkd->bhqk", query, key)
    if position_bias is not None:
        scores = scores + position_bias
    if mask is not None:
        scores = scores + mask
    return torch.einsum("bhqk,bhkd->bhqd", scores.softmax(-1), value)


def t5_attention__bias_replaced_by_the_mask(query, key, value, position_bias=None, mask=None):
    scores = torch.einsum("bhqd,bhkd->bhqk", query, key)
    if mask is not None:
        position_bias = mask
    if position_bias is not None:
        scores = scores + position_bias
    return torch.einsum("bhqk,bhkd->bhqd", scores.softmax(-1), value)
