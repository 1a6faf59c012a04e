"""Signatures of FlashAttention and its relatives on (batch, length, heads, dim), written densely: causal corner at the bottom right.

Two underscores: a twin with one planted mistake.
"""

import torch


def _frame(L, S):
    """Key − query, counted from the last of both."""
    return torch.arange(S)[None, :] - (torch.arange(L)[:, None] + S - L)


def _wide(x):
    """Half precision is summed and exponentiated in float32."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def flash_attn_func(
    q,
    k,
    v,
    dropout_p=0.0,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    alibi_slopes=None,
    deterministic=False,
    return_attn_probs=False,
):
    """Fewer key heads than query heads are groups. With return_attn_probs: (out, softmax_lse, probabilities)."""
    scale = softmax_scale if softmax_scale is not None else q.shape[-1] ** -0.5
    group = q.shape[2] // k.shape[2]
    k, v = k.repeat_interleave(group, dim=2), v.repeat_interleave(group, dim=2)
    s = _wide(torch.einsum("blhd,bshd->bhls", q, k)) * scale
    if softcap > 0:
        s = softcap * torch.tanh(s / softcap)
    distance = _frame(q.shape[1], k.shape[1])
    left, right = window_size if not causal else (window_size[0], 0)
    if alibi_slopes is not None:
        s = s - alibi_slopes.reshape(-1, s.shape[1], 1, 1) * distance.abs()
    hidden = torch.zeros_like(distance, dtype=torch.bool)
    if left >= 0:
        hidden |= distance < -left
    if right >= 0:
        hidden |= distance > right
    s = s.masked_fill(hidden, -torch.inf)
    lse = s.logsumexp(dim=-1)
    p = torch.exp(s - lse.masked_fill(lse.isneginf(), 0.0)[..., None])
    out = torch.einsum("bhls,bshd->blhd", torch.dropout(p, dropout_p, train=True).to(v.dtype), v)
    return (out, lse, p) if return_attn_probs else out


def flash_attn_func__softcap_after_the_mask(
    q,
    k,
    v,
    dropout_p=0.0,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    alibi_slopes=None,
    deterministic=False,
    return_attn_probs=False,
):
    scale = softmax_scale if softmax_scale is not None else q.shape[-1] ** -0.5
    group = q.shape[2] // k.shape[2]
    k, v = k.repeat_interleave(group, dim=2), v.repeat_interleave(group, dim=2)
    s = _wide(torch.einsum("blhd,bshd->bhls", q, k)) * scale
    distance = _frame(q.shape[1], k.shape[1])
    left, right = window_size if not causal else (window_size[0], 0)
    if alibi_slopes is not None:
        s = s - alibi_slopes.reshape(-1, s.shape[1], 1, 1) * distance.abs()
    hidden = torch.zeros_like(distance, dtype=torch.bool)
    if left >= 0:
        hidden |= distance < -left
    if right >= 0:
        hidden |= distance > right
    s = s.masked_fill(hidden, -torch.inf)
    if softcap > 0:
        s = softcap * torch.tanh(s / softcap)
    lse = s.logsumexp(dim=-1)
    p = torch.exp(s - lse.masked_fill(lse.isneginf(), 0.0)[..., None])
    out = torch.einsum("bhls,bshd->blhd", torch.dropout(p, dropout_p, train=True).to(v.dtype), v)
    return (out, lse, p) if return_attn_probs else out


def flash_attn_func__window_ignores_the_offset(
    q,
    k,
    v,
    dropout_p=0.0,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    alibi_slopes=None,
    deterministic=False,
    return_attn_probs=False,
):
    scale = softmax_scale if softmax_scale is not None else q.shape[-1] ** -0.5
    group = q.shape[2] // k.shape[2]
    k, v = k.repeat_interleave(group, dim=2), v.repeat_interleave(group, dim=2)
    s = _wide(torch.einsum("blhd,bshd->bhls", q, k)) * scale
    if softcap > 0:
        s = softcap * torch.tanh(s / softcap)
    distance = _frame(q.shape[1], k.shape[1])
    left, right = window_size if not causal else (window_size[0], 0)
    if alibi_slopes is not None:
        s = s - alibi_slopes.reshape(-1, s.shape[1], 1, 1) * distance.abs()
    hidden = torch.zeros_like(distance, dtype=torch.bool)
    if left >= 0:
        hidden |= torch.arange(k.shape[1])[None, :] < torch.arange(q.shape[1])[:, None] - left
    if right >= 0:
        hidden |= distance > right
    s = s.masked_fill(hidden, -torch.inf)
    lse = s.logsumexp(dim=-1)
    p = torch.exp(s - lse.masked_fill(lse.isneginf(), 0.0)[..., None])
    out = torch.einsum("bhls,bshd->blhd", torch.dropout(p, dropout_p, train=True).to(v.dtype), v)
    return (out, lse, p) if return_attn_probs else out


def online_softmax(q, k, v, causal=False, sm_scale=None):
    """Tiles of 16 keys, running maximum and sum; (batch, length, heads, dim)."""
    scale = q.shape[-1] ** -0.5 if sm_scale is None else sm_scale
    dtype = q.dtype
    q, k, v = (_wide(x.transpose(1, 2)) for x in (q, k, v))
    L, S = q.shape[2], k.shape[2]
    m = q.new_full((*q.shape[:3], 1), -torch.inf)
    total, acc = torch.zeros_like(m), q.new_zeros(*q.shape[:3], v.shape[3])
    for start in range(0, S, 16):
        s = q @ k[:, :, start : start + 16].mT * scale
        if causal:
            s = s.masked_fill(_frame(L, S)[:, start : start + 16] > 0, -torch.inf)
        m_new = torch.maximum(m, s.amax(-1, keepdim=True))
        safe = m_new.masked_fill(m_new.isneginf(), 0.0)
        p, alpha = torch.exp(s - safe), torch.exp(m - safe)
        total = total * alpha + p.sum(-1, keepdim=True)
        acc = acc * alpha + p @ v[:, :, start : start + 16]
        m = m_new
    return (acc / total.masked_fill(total == 0, 1.0)).transpose(1, 2).to(dtype)


def online_softmax__sum_not_rescaled(q, k, v, causal=False, sm_scale=None):
    scale = q.shape[-1] ** -0.5 if sm_scale is None else sm_scale
    dtype = q.dtype
    q, k, v = (_wide(x.transpose(1, 2)) for x in (q, k, v))
    L, S = q.shape[2], k.shape[2]
    m = q.new_full((*q.shape[:3], 1), -torch.inf)
    total, acc = torch.zeros_like(m), q.new_zeros(*q.shape[:3], v.shape[3])
    for start in range(0, S, 16):
        s = q @ k[:, :, start : start + 16].mT * scale
        if causal:
            s = s.masked_fill(_frame(L, S)[:, start : start + 16] > 0, -torch.inf)
        m_new = torch.maximum(m, s.amax(-1, keepdim=True))
        safe = m_new.masked_fill(m_new.isneginf(), 0.0)
        p, alpha = torch.exp(s - safe), torch.exp(m - safe)
        total = total + p.sum(-1, keepdim=True)
        acc = acc * alpha + p @ v[:, :, start : start + 16]
        m = m_new
    return (acc / total.masked_fill(total == 0, 1.0)).transpose(1, 2).to(dtype)


def online_softmax__last_partial_tile_dropped(q, k, v, causal=False, sm_scale=None):
    scale = q.shape[-1] ** -0.5 if sm_scale is None else sm_scale
    dtype = q.dtype
    q, k, v = (_wide(x.transpose(1, 2)) for x in (q, k, v))
    L, S = q.shape[2], k.shape[2]
    m = q.new_full((*q.shape[:3], 1), -torch.inf)
    total, acc = torch.zeros_like(m), q.new_zeros(*q.shape[:3], v.shape[3])
    for start in range(0, max(S - 15, 1), 16):
        s = q @ k[:, :, start : start + 16].mT * scale
        if causal:
            s = s.masked_fill(_frame(L, S)[:, start : start + 16] > 0, -torch.inf)
        m_new = torch.maximum(m, s.amax(-1, keepdim=True))
        safe = m_new.masked_fill(m_new.isneginf(), 0.0)
        p, alpha = torch.exp(s - safe), torch.exp(m - safe)
        total = total * alpha + p.sum(-1, keepdim=True)
        acc = acc * alpha + p @ v[:, :, start : start + 16]
        m = m_new
    return (acc / total.masked_fill(total == 0, 1.0)).transpose(1, 2).to(dtype)


def single_prefill(
    q, k, v, custom_mask=None, causal=False, kv_layout="NHD", sm_scale=None, window_left=-1, logits_soft_cap=None, return_lse=False
):
    """(length, heads, dim), one sequence, groups of heads, causal at the bottom right. custom_mask: (queries, keys), True where seen;
    it takes the place of causal. With return_lse the log-sum-exp, (length, heads), is one to the base 2."""
    scale = q.shape[-1] ** -0.5 if sm_scale is None else sm_scale
    if kv_layout == "HND":
        k, v = k.transpose(0, 1), v.transpose(0, 1)
    heads, group = q.shape[1], q.shape[1] // k.shape[1]
    s = torch.stack([_wide(q[:, h] @ k[:, h // group].T) * scale for h in range(heads)])
    if logits_soft_cap:
        s = logits_soft_cap * torch.tanh(s / logits_soft_cap)
    distance = _frame(q.shape[0], k.shape[0])
    seen = custom_mask if custom_mask is not None else (distance <= 0) | (not causal)
    if window_left >= 0:
        seen = seen & (distance >= -window_left)
    s = s.masked_fill(~seen, -torch.inf)
    lse = torch.logsumexp(s, dim=-1)
    p = (s - lse.masked_fill(lse.isneginf(), 0.0)[..., None]).exp()
    out = torch.stack([p[h].to(v.dtype) @ v[:, h // group] for h in range(heads)], dim=1)
    return (out, lse.T * 1.4426950408889634) if return_lse else out


def single_prefill__lse_multiplied_the_wrong_way(
    q, k, v, custom_mask=None, causal=False, kv_layout="NHD", sm_scale=None, window_left=-1, logits_soft_cap=None, return_lse=False
):
    scale = q.shape[-1] ** -0.5 if sm_scale is None else sm_scale
    if kv_layout == "HND":
        k, v = k.transpose(0, 1), v.transpose(0, 1)
    heads, group = q.shape[1], q.shape[1] // k.shape[1]
    s = torch.stack([_wide(q[:, h] @ k[:, h // group].T) * scale for h in range(heads)])
    if logits_soft_cap:
        s = logits_soft_cap * torch.tanh(s / logits_soft_cap)
    distance = _frame(q.shape[0], k.shape[0])
    seen = custom_mask if custom_mask is not None else (distance <= 0) | (not causal)
    if window_left >= 0:
        seen = seen & (distance >= -window_left)
    s = s.masked_fill(~seen, -torch.inf)
    lse = torch.logsumexp(s, dim=-1)
    p = (s - lse.masked_fill(lse.isneginf(), 0.0)[..., None]).exp()
    out = torch.stack([p[h].to(v.dtype) @ v[:, h // group] for h in range(heads)], dim=1)
    return (out, lse.T * 0.6931471805599453) if return_lse else out


def single_prefill__value_head_by_remainder(
    q, k, v, custom_mask=None, causal=False, kv_layout="NHD", sm_scale=None, window_left=-1, logits_soft_cap=None, return_lse=False
):
    scale = q.shape[-1] ** -0.5 if sm_scale is None else sm_scale
    if kv_layout == "HND":
        k, v = k.transpose(0, 1), v.transpose(0, 1)
    heads, group = q.shape[1], q.shape[1] // k.shape[1]
    s = torch.stack([_wide(q[:, h] @ k[:, h // group].T) * scale for h in range(heads)])
    if logits_soft_cap:
        s = logits_soft_cap * torch.tanh(s / logits_soft_cap)
    distance = _frame(q.shape[0], k.shape[0])
    seen = custom_mask if custom_mask is not None else (distance <= 0) | (not causal)
    if window_left >= 0:
        seen = seen & (distance >= -window_left)
    s = s.masked_fill(~seen, -torch.inf)
    lse = torch.logsumexp(s, dim=-1)
    p = (s - lse.masked_fill(lse.isneginf(), 0.0)[..., None]).exp()
    out = torch.stack([p[h].to(v.dtype) @ v[:, h % k.shape[1]] for h in range(heads)], dim=1)
    return (out, lse.T * 1.4426950408889634) if return_lse else out


def attention_with_sinks(query, key, value, sinks, sliding_window=None, scaling=None):
    """(batch, length, heads, dim), groups of heads, always causal, L = S. A query sees sliding_window keys, its own included.
    sinks: (heads,), one more logit that takes weight and has no value."""
    n, heads = query.shape[1], query.shape[2]
    scaling = query.shape[3] ** -0.5 if scaling is None else scaling
    key, value = (x.repeat_interleave(heads // x.shape[2], dim=2) for x in (key, value))
    s = torch.einsum("bqhd,bkhd->bhqk", query, key) * scaling
    distance = _frame(n, n)
    hidden = distance > 0
    if sliding_window is not None:
        hidden = hidden | (distance <= -sliding_window)
    s = s.masked_fill(hidden, -torch.inf)
    s = torch.cat([s, sinks.to(s).reshape(1, -1, 1, 1).expand(s.shape[0], -1, n, 1)], dim=-1)
    return torch.einsum("bhqk,bkhd->bqhd", s.softmax(dim=-1)[..., :-1], value)


def attention_with_sinks__sinks_scaled(query, key, value, sinks, sliding_window=None, scaling=None):
    n, heads = query.shape[1], query.shape[2]
    scaling = query.shape[3] ** -0.5 if scaling is None else scaling
    key, value = (x.repeat_interleave(heads // x.shape[2], dim=2) for x in (key, value))
    s = torch.einsum("bqhd,bkhd->bhqk", query, key)
    distance = _frame(n, n)
    hidden = distance > 0
    if sliding_window is not None:
        hidden = hidden | (distance <= -sliding_window)
    s = s.masked_fill(hidden, -torch.inf)
    s = torch.cat([s, sinks.to(s).reshape(1, -1, 1, 1).expand(s.shape[0], -1, n, 1)], dim=-1)
    return torch.einsum("bhqk,bkhd->bqhd", (s * scaling).softmax(dim=-1)[..., :-1], value)


def attention_with_sinks__window_looks_ahead(query, key, value, sinks, sliding_window=None, scaling=None):
    n, heads = query.shape[1], query.shape[2]
    scaling = query.shape[3] ** -0.5 if scaling is None else scaling
    key, value = (x.repeat_interleave(heads // x.shape[2], dim=2) for x in (key, value))
    s = torch.einsum("bqhd,bkhd->bhqk", query, key) * scaling
    distance = _frame(n, n)
    hidden = distance > 0
    if sliding_window is not None:
        hidden = distance <= -sliding_window
    s = s.masked_fill(hidden, -torch.inf)
    s = torch.cat([s, sinks.to(s).reshape(1, -1, 1, 1).expand(s.shape[0], -1, n, 1)], dim=-1)
    return torch.einsum("bhqk,bkhd->bqhd", s.softmax(dim=-1)[..., :-1], value)
