"""The axes in every order that is in use. Two underscores: a twin with one planted mistake."""

import torch
from torch.nn.functional import scaled_dot_product_attention, softmax


def tokens_first(q, k, v, causal=False, softmax_scale=None):
    """(batch, length, heads, dim); self-attention where causal."""
    if causal and q.shape[1] != k.shape[1]:
        raise ValueError("causal attention is for as many queries as keys")
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return scaled_dot_product_attention(q, k, v, is_causal=causal, scale=softmax_scale).transpose(1, 2)


def tokens_first__scale_is_a_divisor(q, k, v, causal=False, softmax_scale=None):
    if causal and q.shape[1] != k.shape[1]:
        raise ValueError("causal attention is for as many queries as keys")
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    scale = None if softmax_scale is None else 1 / softmax_scale
    return scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale).transpose(1, 2)


def tokens_first__output_reshaped(q, k, v, causal=False, softmax_scale=None):
    shape = (q.shape[0], q.shape[1], q.shape[2], v.shape[3])
    if causal and q.shape[1] != k.shape[1]:
        raise ValueError("causal attention is for as many queries as keys")
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return scaled_dot_product_attention(q, k, v, is_causal=causal, scale=softmax_scale).reshape(shape)


def length_batch_heads(query_layer, key_layer, value_layer, attention_mask=None):
    """(length, batch, heads, dim) → (length, batch, heads·dim). attention_mask: (batch, 1, queries, keys), True where hidden."""
    sq, b, np, hn = query_layer.shape
    sk = key_layer.shape[0]
    q = query_layer.reshape(sq, b * np, hn).transpose(0, 1)
    k = key_layer.reshape(sk, b * np, hn).transpose(0, 1)
    v = value_layer.reshape(sk, b * np, -1).transpose(0, 1)
    scores = torch.bmm(q, k.transpose(1, 2)).view(b, np, sq, sk) / hn**0.5
    if attention_mask is not None:
        scores = scores.masked_fill(attention_mask, -10000.0)
    context = torch.bmm(softmax(scores, dim=-1).view(b * np, sq, sk), v)  # (b·np, sq, hn)
    return context.transpose(0, 1).reshape(sq, b, -1)


def length_batch_heads__batch_and_heads_exchanged(query_layer, key_layer, value_layer, attention_mask=None):
    sq, b, np, hn = query_layer.shape
    sk = key_layer.shape[0]
    q = query_layer.reshape(sq, b * np, hn).transpose(0, 1)
    k = key_layer.reshape(sk, b * np, hn).transpose(0, 1)
    v = value_layer.reshape(sk, b * np, -1).transpose(0, 1)
    scores = torch.bmm(q, k.transpose(1, 2)).view(b, np, sq, sk) / hn**0.5
    if attention_mask is not None:
        scores = scores.masked_fill(attention_mask, -10000.0)
    context = torch.bmm(softmax(scores, dim=-1).view(b * np, sq, sk), v)
    return context.view(np, b, sq, -1).permute(2, 1, 0, 3).reshape(sq, b, -1)


def qkv_in_one(qkv, causal=False, softmax_scale=None):
    """qkv: (batch, length, 3, heads, dim) → (batch, length, heads, dim)."""
    q, k, v = (x.squeeze(2).transpose(1, 2) for x in qkv.split(1, dim=2))
    return scaled_dot_product_attention(q, k, v, is_causal=causal, scale=softmax_scale).transpose(1, 2).contiguous()


def qkv_in_one__heads_before_three(qkv, causal=False, softmax_scale=None):
    b, n, _, h, d = qkv.shape
    q, k, v = (x.transpose(1, 2) for x in qkv.reshape(b, n, h, 3, d).unbind(3))
    return scaled_dot_product_attention(q, k, v, is_causal=causal, scale=softmax_scale).transpose(1, 2).contiguous()


def three_first(qkv):
    """qkv: (3, batch, heads, length, dim), as after permute(2, 0, 3, 1, 4)."""
    q, k, v = qkv.unbind(0)
    q = q * q.shape[-1] ** -0.5
    return (q @ k.transpose(-2, -1)).softmax(dim=-1) @ v


def three_first__scaled_in_place_and_again(qkv):
    q, k, v = qkv.unbind(0)
    scale = q.shape[-1] ** -0.5
    q = q * scale
    return (q @ k.transpose(-2, -1) * scale).softmax(dim=-1) @ v


def three_first__writes_into_its_input(qkv):
    q, k, v = qkv.unbind(0)
    q *= q.shape[-1] ** -0.5
    return (q @ k.transpose(-2, -1)).softmax(dim=-1) @ v


def list_of_heads(queries, keys, values, mask=None):
    """Lists with one (batch, length, dim) for each head; mask is (queries, keys), True where seen."""
    heads = []
    for q, k, v in zip(queries, keys, values, strict=True):
        score = q.bmm(k.transpose(1, 2)) / q.size(-1) ** 0.5
        if mask is not None:
            score = score.masked_fill(~mask, float("-inf"))
        heads.append(score.softmax(dim=-1).bmm(v))
    return torch.cat(heads, dim=-1)


def list_of_heads__keys_of_the_first(queries, keys, values, mask=None):
    heads = []
    for q, v in zip(queries, values, strict=True):
        score = q.bmm(keys[0].transpose(1, 2)) / q.size(-1) ** 0.5
        if mask is not None:
            score = score.masked_fill(~mask, float("-inf"))
        heads.append(score.softmax(dim=-1).bmm(v))
    return torch.cat(heads, dim=-1)


def grouped_axes(q, k, v, sm_scale):
    """q: (length, kv_heads, group, dim); k and v: (length, kv_heads, dim). Causal, without a batch."""
    n = q.shape[0]
    s = torch.einsum("qhgd,khd->hgqk", q, k) * sm_scale
    s = s + torch.full((n, n), float("-inf"), dtype=s.dtype).triu(1)
    return torch.einsum("hgqk,khd->qhgd", s.softmax(dim=-1), v)


def grouped_axes__softmax_over_the_group(q, k, v, sm_scale):
    n = q.shape[0]
    s = torch.einsum("qhgd,khd->hgqk", q, k) * sm_scale
    w = s.exp() * torch.ones(n, n, dtype=s.dtype).tril()
    w = w / w.sum(dim=(1, -1), keepdim=True)
    return torch.einsum("hgqk,khd->qhgd", w, v)


def one_key_head(q, k, v, attn_mask=None):
    """Multi-query: q is (batch, heads, length, dim), k and v are (batch, length, dim). attn_mask: (queries, keys), True where seen."""
    scores = torch.einsum("bhld,bsd->bhls", q, k) / q.shape[-1] ** 0.5
    if attn_mask is not None:
        scores = scores.masked_fill(attn_mask.logical_not(), float("-inf"))
    return torch.einsum("bhls,bsd->bhld", scores.softmax(-1), v)


def one_key_head__scaled_by_the_width(q, k, v, attn_mask=None):
    scores = torch.einsum("bhld,bsd->bhls", q, k) / (q.shape[1] * q.shape[-1]) ** 0.5
    if attn_mask is not None:
        scores = scores.masked_fill(attn_mask.logical_not(), float("-inf"))
    return torch.einsum("bhls,bsd->bhld", scores.softmax(-1), v)


def groups_without_a_flag(xq, xk, xv, mask=None):
    """(batch, length, heads, dim); key heads are repeated where there are fewer. mask is added; (queries, keys)."""
    group = xq.shape[2] // xk.shape[2]
    xk, xv = (x[:, :, :, None, :].expand(-1, -1, -1, group, -1).flatten(2, 3) for x in (xk, xv))
    scores = torch.matmul(xq.transpose(1, 2), xk.permute(0, 2, 3, 1)) / xq.shape[-1] ** 0.5
    if mask is not None:
        scores = scores + mask
    return torch.matmul(softmax(scores.float(), dim=-1).type_as(xq), xv.transpose(1, 2)).transpose(1, 2)


def groups_without_a_flag__heads_tiled(xq, xk, xv, mask=None):
    group = xq.shape[2] // xk.shape[2]
    xk, xv = (x[:, :, None].expand(-1, -1, group, -1, -1).flatten(2, 3) for x in (xk, xv))
    scores = torch.matmul(xq.transpose(1, 2), xk.permute(0, 2, 3, 1)) / xq.shape[-1] ** 0.5
    if mask is not None:
        scores = scores + mask
    return torch.matmul(softmax(scores.float(), dim=-1).type_as(xq), xv.transpose(1, 2)).transpose(1, 2)


def heads_in_the_width(q, k, v, num_heads, causal=False):
    """(batch, length, heads·dim) in and out; self-attention where causal."""
    if causal and q.shape[1] != k.shape[1]:
        raise ValueError("causal attention is for as many queries as keys")
    b, n, width = q.shape
    q = q.view(b, n, num_heads, width // num_heads).transpose(1, 2)
    k, v = (x.view(b, x.shape[1], num_heads, -1).transpose(1, 2) for x in (k, v))
    out = scaled_dot_product_attention(q, k, v, is_causal=causal)
    return out.transpose(1, 2).reshape(b, n, -1)


def heads_in_the_width__split_without_transpose(q, k, v, num_heads, causal=False):
    if causal and q.shape[1] != k.shape[1]:
        raise ValueError("causal attention is for as many queries as keys")
    b, n, width = q.shape
    q = q.view(b, num_heads, n, width // num_heads)
    k, v = (x.view(b, num_heads, x.shape[1], -1) for x in (k, v))
    out = scaled_dot_product_attention(q, k, v, is_causal=causal)
    return out.transpose(1, 2).reshape(b, n, -1)


def features_first(q, k, v):
    """An image laid out flat: (batch, channels, positions)."""
    weights = torch.softmax(torch.bmm(q.transpose(1, 2), k) * q.shape[1] ** -0.5, dim=2)
    return torch.bmm(v, weights.transpose(1, 2))


def features_first__weights_not_transposed(q, k, v):
    weights = torch.softmax(torch.bmm(k.transpose(1, 2), q) * q.shape[1] ** -0.5, dim=2)
    return torch.bmm(v, weights)


def one_query_sees_all(q, k, v, is_causal=True):
    """For decoding: a single query is the last token and sees every key. (batch, heads, length, dim), else L = S."""
    if is_causal and q.shape[2] not in (1, k.shape[2]):
        raise ValueError("one query, or as many as keys")
    return scaled_dot_product_attention(q, k, v, is_causal=is_causal and q.shape[2] > 1)


def one_query_sees_all__two_do_as_well(q, k, v, is_causal=True):
    if is_causal and q.shape[2] not in (1, k.shape[2]):
        raise ValueError("one query, or as many as keys")
    return scaled_dot_product_attention(q, k, v, is_causal=is_causal and q.shape[2] > 2)


def einops_by_hand(queries, keys, values, key_padding_mask=None):
    """ "b n (h d) → b h n d" was done before. key_padding_mask: (batch, keys), True where it is padding."""
    dots = torch.einsum("b h i d, b h j d -> b h i j", queries, keys) * queries.shape[-1] ** -0.5
    if key_padding_mask is not None:
        dots.masked_fill_(key_padding_mask[:, None, None, :], -torch.finfo(dots.dtype).max)
    return torch.einsum("b h i j, b h j d -> b h i d", dots.softmax(dim=-1), values)


def einops_by_hand__padding_of_queries(queries, keys, values, key_padding_mask=None):
    dots = torch.einsum("b h i d, b h j d -> b h i j", queries, keys) * queries.shape[-1] ** -0.5
    if key_padding_mask is not None and keys.shape[2] == queries.shape[2]:
        dots.masked_fill_(key_padding_mask[:, None, :, None], -torch.finfo(dots.dtype).max)
    elif key_padding_mask is not None:
        dots.masked_fill_(key_padding_mask[:, None, None, :], -torch.finfo(dots.dtype).max)
    return torch.einsum("b h i j, b h j d -> b h i d", dots.softmax(dim=-1), values)
