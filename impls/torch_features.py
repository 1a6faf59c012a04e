"""Attention with everything that models add to it, in PyTorch by hand, one step after the other.

s = scale · Q Kᵀ                          (B, H, L, S)
s = c · tanh(s / c)                       softcap           (Gemma 2, 2024)
s = s + bias − m_h · |i − j|              mask, ALiBi       (Press, Smith & Lewis 2022)
s = −∞ outside mask, causal frontier, window (Beltagy et al. 2020) and length
w = exp(s) / (exp(z_h) + Σ exp(s))        sinks             (Xiao et al. 2024)
w = w · b / (1 − p),  b = 1 with probability 1 − p          (dropout, Srivastava et al. 2014)
out = w V,   lse = ln Σ exp(s)
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .contract import check_attention, default_scale, supports

FACTS: dict[str, Any] = {
    "framework": "torch",
    "devices": ["cpu", "cuda"],
    "dtypes": ["float64", "float32", "float16", "bfloat16"],
    "arithmetic": {"float64": "same", "float32": "same", "float16": "wide", "bfloat16": "wide"},
    "masked_nan": "leaks",
}


def visibility(
    shape: tuple[int, int, int, int],
    device: torch.device,
    attn_mask: Tensor | None,
    is_causal: bool,
    window_size: tuple[int, int] | None,
    kv_lengths: Tensor | None,
) -> Tensor:
    """(B, H, L, S) or broadcast to it: key j may be attended from query i. −1 in a window: no limit."""
    queries, keys = shape[2:]
    ahead = torch.arange(keys, device=device) - torch.arange(queries, device=device)[:, None]  # j − i
    seen = ahead <= 0 if is_causal else torch.ones_like(ahead, dtype=torch.bool)
    if window_size is not None:
        left, right = window_size
        seen = seen & (ahead >= -left if left >= 0 else seen) & (ahead <= right if right >= 0 else seen)
    if attn_mask is not None:
        seen = seen & (attn_mask if attn_mask.dtype == torch.bool else attn_mask != -torch.inf)
    if kv_lengths is not None:
        seen = seen & (torch.arange(keys, device=device) < kv_lengths[:, None, None, None])
    return seen


@supports(**FACTS)
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    dropout_p: float = 0.0,
    window_size: tuple[int, int] | None = None,
    softcap: float | None = None,
    alibi_slopes: Tensor | None = None,
    sinks: Tensor | None = None,
    kv_lengths: Tensor | None = None,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """q (B, H, L, D), k (B, Hkv, S, D), v (B, Hkv, S, Dv) → (B, H, L, Dv), and lse (B, H, L) where it is asked for

    window_size (left, right), −1: no limit · alibi_slopes, sinks (H,) · kv_lengths (B,) · lse without the sinks
    """
    group = check_attention(q, k, v, attn_mask, enable_gqa)
    wide = torch.promote_types(q.dtype, torch.float32)
    shape = (*q.shape[:3], k.shape[2])
    query, key, value = q.to(wide), k.to(wide).repeat_interleave(group, 1), v.to(wide).repeat_interleave(group, 1)

    logits = (query @ key.mT) * (default_scale(q.shape[-1]) if scale is None else scale)  # (B, H, L, S)
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    if attn_mask is not None and attn_mask.dtype != torch.bool:
        logits = logits + attn_mask
    if alibi_slopes is not None:
        distance = (torch.arange(shape[3], device=q.device) - torch.arange(shape[2], device=q.device)[:, None]).abs()
        logits = logits - alibi_slopes.to(wide)[:, None, None] * distance  # (H, L, S)
    visible = visibility(shape, q.device, attn_mask, is_causal, window_size, kv_lengths)
    logits = logits.masked_fill(~visible, -torch.inf)

    none = logits.new_full((*shape[:3], 1), -torch.inf)
    top = torch.cat([logits, none], dim=-1).amax(-1, keepdim=True).detach()  # (B, H, L, 1), −∞ in a row without keys
    top = top.masked_fill(top == -torch.inf, 0.0)
    terms = torch.exp(logits - top)  # (B, H, L, S) in [0, 1]
    total = terms.sum(-1, keepdim=True)
    lse = torch.log(total) + top  # of the keys alone
    if sinks is not None:
        highest = torch.maximum(top, sinks.to(wide)[:, None, None])
        terms, total = terms * torch.exp(top - highest), total * torch.exp(top - highest)
        total = total + torch.exp(sinks.to(wide)[:, None, None] - highest)
    weights = terms / total.masked_fill(total == 0, 1.0)
    weights = torch.dropout(weights, dropout_p, train=dropout_p > 0)
    out = (weights @ value).to(q.dtype)
    return (out, lse[..., 0]) if return_lse else out
