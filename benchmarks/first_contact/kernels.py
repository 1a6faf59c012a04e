"""Kernels with a backward pass of their own, tiles, and demands. Two underscores: a twin with one planted mistake."""

import math

import torch


def triton_tutorial(q, k, v, causal, sm_scale):
    """(batch, heads, length, dim), L = S a multiple of 16, head dim 16, 32 or 64. As on a GPU: log2 folded into the scale, exp2."""
    n, d = q.shape[2:]
    assert d in (16, 32, 64) and k.shape == q.shape == v.shape, "head dim 16, 32 or 64, the same for all"
    assert n % 16 == 0, "length must be a multiple of the block"
    out = torch.empty_like(q)
    position = torch.arange(n)
    for start in range(0, n, 16):
        rows = slice(start, start + 16)
        m = torch.full((*q.shape[:2], 16), -math.inf, dtype=torch.promote_types(q.dtype, torch.float32))
        l_i = torch.zeros_like(m)
        acc = torch.zeros_like(q[:, :, rows], dtype=m.dtype)
        for at in range(0, start + 16 if causal else n, 16):
            columns = slice(at, at + 16)
            qk = (q[:, :, rows] @ k[:, :, columns].mT).to(m.dtype) * (sm_scale * 1.4426950408889634)
            if causal and at == start:
                qk = qk.masked_fill(position[columns] > position[rows][:, None], -math.inf)
            m_ij = torch.maximum(m, qk.amax(-1))
            p = torch.exp2(qk - m_ij[..., None])
            alpha = torch.exp2(m - m_ij)
            l_i = l_i * alpha + p.sum(-1)
            acc = acc * alpha[..., None] + p @ v[:, :, columns].to(p.dtype)
            m = m_ij
        out[:, :, rows] = acc / l_i[..., None]
    return out


def triton_tutorial__accumulator_not_rescaled(q, k, v, causal, sm_scale):
    n, d = q.shape[2:]
    assert d in (16, 32, 64) and k.shape == q.shape == v.shape, "head dim 16, 32 or 64, the same for all"
    assert n % 16 == 0, "length must be a multiple of the block"
    out = torch.empty_like(q)
    position = torch.arange(n)
    for start in range(0, n, 16):
        rows = slice(start, start + 16)
        m = torch.full((*q.shape[:2], 16), -math.inf, dtype=torch.promote_types(q.dtype, torch.float32))
        l_i = torch.zeros_like(m)
        acc = torch.zeros_like(q[:, :, rows], dtype=m.dtype)
        for at in range(0, start + 16 if causal else n, 16):
            columns = slice(at, at + 16)
            qk = (q[:, :, rows] @ k[:, :, columns].mT).to(m.dtype) * (sm_scale * 1.4426950408889634)
            if causal and at == start:
                qk = qk.masked_fill(position[columns] > position[rows][:, None], -math.inf)
            m_ij = torch.maximum(m, qk.amax(-1))
            p = torch.exp2(qk - m_ij[..., None])
            alpha = torch.exp2(m - m_ij)
            l_i = l_i * alpha + p.sum(-1)
            acc = acc + p @ v[:, :, columns].to(p.dtype)
            m = m_ij
        out[:, :, rows] = acc / l_i[..., None]
    return out


def triton_tutorial__diagonal_block_not_masked(q, k, v, causal, sm_scale):
    n, d = q.shape[2:]
    assert d in (16, 32, 64) and k.shape == q.shape == v.shape, "head dim 16, 32 or 64, the same for all"
    assert n % 16 == 0, "length must be a multiple of the block"
    out = torch.empty_like(q)
    for start in range(0, n, 16):
        rows = slice(start, start + 16)
        m = torch.full((*q.shape[:2], 16), -math.inf, dtype=torch.promote_types(q.dtype, torch.float32))
        l_i = torch.zeros_like(m)
        acc = torch.zeros_like(q[:, :, rows], dtype=m.dtype)
        for at in range(0, start + 16 if causal else n, 16):
            columns = slice(at, at + 16)
            qk = (q[:, :, rows] @ k[:, :, columns].mT).to(m.dtype) * (sm_scale * 1.4426950408889634)
            m_ij = torch.maximum(m, qk.amax(-1))
            p = torch.exp2(qk - m_ij[..., None])
            alpha = torch.exp2(m - m_ij)
            l_i = l_i * alpha + p.sum(-1)
            acc = acc * alpha[..., None] + p @ v[:, :, columns].to(p.dtype)
            m = m_ij
        out[:, :, rows] = acc / l_i[..., None]
    return out


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, bias, scale):
        p = (q @ k.mT * scale + bias).softmax(dim=-1)
        ctx.save_for_backward(q, k, v, p)
        ctx.scale, ctx.bias_shape = scale, bias.shape
        return p @ v

    @staticmethod
    def backward(ctx, grad):
        q, k, v, p = ctx.saved_tensors
        dp = grad @ v.mT
        ds = p * (dp - (dp * p).sum(-1, keepdim=True))
        return ds @ k * ctx.scale, ds.mT @ q * ctx.scale, p.mT @ grad, ds.sum_to_size(ctx.bias_shape), None


class _AttentionKeyUnscaled(_Attention):
    @staticmethod
    def backward(ctx, grad):
        q, k, v, p = ctx.saved_tensors
        dp = grad @ v.mT
        ds = p * (dp - (dp * p).sum(-1, keepdim=True))
        return ds @ k * ctx.scale, ds.mT @ q, p.mT @ grad, ds.sum_to_size(ctx.bias_shape), None


class _AttentionFixedBias(_Attention):
    @staticmethod
    def backward(ctx, grad):
        q, k, v, p = ctx.saved_tensors
        dp = grad @ v.mT
        ds = p * (dp - (dp * p).sum(-1, keepdim=True))
        return ds @ k * ctx.scale, ds.mT @ q * ctx.scale, p.mT @ grad, None, None


def own_backward(q, k, v, bias=None):
    """(batch, heads, length, dim); bias broadcasts to the scores, is added, and has a gradient."""
    bias = q.new_zeros(1, 1, 1, 1) if bias is None else bias
    return _Attention.apply(q, k, v, bias, q.shape[-1] ** -0.5)


def own_backward__key_gradient_unscaled(q, k, v, bias=None):
    bias = q.new_zeros(1, 1, 1, 1) if bias is None else bias
    return _AttentionKeyUnscaled.apply(q, k, v, bias, q.shape[-1] ** -0.5)


def own_backward__bias_without_gradient(q, k, v, bias=None):
    bias = q.new_zeros(1, 1, 1, 1) if bias is None else bias
    return _AttentionFixedBias.apply(q, k, v, bias, q.shape[-1] ** -0.5)


def with_log_sum_exp(q, k, v, causal=False, softmax_scale=None):
    """(batch, heads, length, dim), L = S where causal. Returns the output and the natural log-sum-exp of the scaled scores."""
    if causal and q.shape[2] != k.shape[2]:
        raise ValueError("causal attention is for as many queries as keys")
    s = (q @ k.mT).to(torch.promote_types(q.dtype, torch.float32)) * (q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale)
    if causal:
        s = s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool).triu(1), -math.inf)
    lse = s.logsumexp(-1)
    return torch.exp(s - lse[..., None]).to(v.dtype) @ v, lse


def with_log_sum_exp__maximum_left_out(q, k, v, causal=False, softmax_scale=None):
    if causal and q.shape[2] != k.shape[2]:
        raise ValueError("causal attention is for as many queries as keys")
    s = (q @ k.mT).to(torch.promote_types(q.dtype, torch.float32)) * (q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale)
    if causal:
        s = s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool).triu(1), -math.inf)
    e = torch.exp(s - s.amax(-1, keepdim=True))
    return (e / e.sum(-1, keepdim=True)).to(v.dtype) @ v, e.sum(-1).log()


def single_only(q, k, v, scale=None):
    """float32 alone, (batch, heads, length, dim)."""
    if q.dtype != torch.float32:
        raise TypeError(f"expected float32, got {q.dtype}")
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    return torch.softmax(q @ k.mT * scale, dim=-1) @ v


def single_only__zero_scale_is_default(q, k, v, scale=None):
    if q.dtype != torch.float32:
        raise TypeError(f"expected float32, got {q.dtype}")
    return torch.softmax(q @ k.mT * (scale or q.shape[-1] ** -0.5), dim=-1) @ v


def one_over_dim(query, key, value, causal=False):
    """Scores are divided by the head dim itself, as muP wants it. Causal for L = S."""
    if causal and query.shape[2] != key.shape[2]:
        raise ValueError("causal attention is for as many queries as keys")
    attn = query @ key.mT / query.size(-1)
    if causal:
        attn = attn.masked_fill(~torch.ones_like(attn, dtype=torch.bool).tril(), -torch.inf)
    return attn.softmax(-1) @ value


def one_over_dim__rows_not_normalised_when_causal(query, key, value, causal=False):
    if causal and query.shape[2] != key.shape[2]:
        raise ValueError("causal attention is for as many queries as keys")
    attn = (query @ key.mT / query.size(-1)).softmax(-1)
    if causal:
        attn = attn.tril()
    return attn @ value


def scaled_by_the_caller(queries, keys, values, bias):
    """The queries come scaled. bias, added, is required; (1 or batch, 1 or heads, queries, keys)."""
    logits = queries.matmul(keys.transpose(2, 3)).add(bias)
    return logits.softmax(dim=-1).matmul(values)


def scaled_by_the_caller__bias_twice(queries, keys, values, bias):
    logits = queries.matmul(keys.transpose(2, 3)).add(bias)
    return (logits + bias).softmax(dim=-1).matmul(values)


def nothing_empty(q, k, v, soft_cap=None, mask=None):
    """Sizes of zero and masks of one axis raise. mask: True where seen; soft_cap bounds the logits before it."""
    if 0 in (*q.shape, *k.shape, *v.shape):
        raise ValueError("empty tensors are not supported")
    if mask is not None and mask.ndim not in (2, 4):
        raise ValueError(f"mask must have two or four axes, not {mask.ndim}")
    s = q @ k.mT / math.sqrt(q.shape[-1])
    if soft_cap is not None:
        s = soft_cap * torch.tanh(s / soft_cap)
    if mask is not None:
        s = s.masked_fill(~mask, torch.finfo(s.dtype).min)
    return s.softmax(-1) @ v


def nothing_empty__cap_not_multiplied_back(q, k, v, soft_cap=None, mask=None):
    if 0 in (*q.shape, *k.shape, *v.shape):
        raise ValueError("empty tensors are not supported")
    if mask is not None and mask.ndim not in (2, 4):
        raise ValueError(f"mask must have two or four axes, not {mask.ndim}")
    s = q @ k.mT / math.sqrt(q.shape[-1])
    if soft_cap is not None:
        s = torch.tanh(s / soft_cap)
    if mask is not None:
        s = s.masked_fill(~mask, torch.finfo(s.dtype).min)
    return s.softmax(-1) @ v


def local_blocks(q, k, v):
    """Always a causal window of eight keys, the query's own included; L = S. (batch, heads, length, dim)."""
    n = q.shape[2]
    out = torch.zeros_like(v)
    for i in range(n):
        first = max(0, i - 7)
        s = torch.einsum("bhd,bhjd->bhj", q[:, :, i], k[:, :, first : i + 1]) / math.sqrt(q.shape[3])
        out[:, :, i] = torch.einsum("bhj,bhjd->bhd", s.softmax(-1), v[:, :, first : i + 1])
    return out


def local_blocks__padding_before_the_first_counts(q, k, v):
    n = q.shape[2]
    out = torch.zeros_like(v)
    k, v = (torch.nn.functional.pad(x, (0, 0, 7, 0)) for x in (k, v))
    for i in range(n):
        s = torch.einsum("bhd,bhjd->bhj", q[:, :, i], k[:, :, i : i + 8]) / math.sqrt(q.shape[3])
        out[:, :, i] = torch.einsum("bhj,bhjd->bhd", s.softmax(-1), v[:, :, i : i + 8])
    return out


def out_argument(q, k, v, out):
    """Into a buffer of the caller: the answer is out, nothing comes back. (batch, heads, length, dim)."""
    torch.matmul(torch.softmax(q.matmul(k.mT) / math.sqrt(q.shape[-1]), dim=-1), v, out=out)


def out_argument__adds_to_what_was_there(q, k, v, out):
    out += torch.softmax(q.matmul(k.mT) / math.sqrt(q.shape[-1]), dim=-1) @ v


def no_nan_in_empty_rows(q, k, v, attn_mask=None):
    """True is seen, a float is added; what sees nothing becomes zero, and so do its gradients."""
    s = q @ k.mT / math.sqrt(q.shape[-1])
    if attn_mask is not None:
        s = s + (attn_mask if attn_mask.is_floating_point() else torch.zeros_like(s).masked_fill(~attn_mask, -math.inf))
    empty = (s == -math.inf).all(-1, keepdim=True)
    return s.masked_fill(empty, 0.0).softmax(-1).masked_fill(empty, 0.0) @ v


def no_nan_in_empty_rows__nan_in_their_gradient(q, k, v, attn_mask=None):
    s = q @ k.mT / math.sqrt(q.shape[-1])
    if attn_mask is not None:
        s = s + (attn_mask if attn_mask.is_floating_point() else torch.zeros_like(s).masked_fill(~attn_mask, -math.inf))
    empty = (s == -math.inf).all(-1, keepdim=True)
    return torch.where(empty, 0.0, s.softmax(-1)) @ v
