"""FlashAttention's two passes in PyTorch: tiles of keys, an online softmax, and a backward pass written by hand.

Forward, over tiles of keys j:    out_i = Σ_j exp(s_ij − lse_i) v_j,    lse_i = log Σ_j exp s_ij
Backward, over the same tiles, with the weights computed again from the log-sum-exp (Dao et al. 2022, algorithm 4):

    P_ij = exp(s_ij − lse_i)     dP = dO Vᵀ     δ_i = Σ_d dO_id out_id     dS = P (dP − δ)
    dV = Pᵀ dO     dQ = scale · dS K     dK = scale · dSᵀ Q     dbias = dS

δ is Σ_j P_ij dP_ij, but found without a row of weights: only q, k, v, out and lse are kept between the passes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from .contract import check_attention, default_scale, supports

TILE = 16  # keys


def tiles(keys: int) -> Iterator[slice]:
    """The keys, TILE at a time."""
    for start in range(0, keys, TILE):
        yield slice(start, start + TILE)


def logits_of(q: Tensor, k: Tensor, mask: Tensor | None, is_causal: bool, scale: float, tile: slice) -> Tensor:
    """scale · Q Kᵀ + bias for one tile of keys, −∞ where a key is hidden: (B, H, L, TILE)"""
    logits = (q @ k[:, :, tile].mT) * scale
    if mask is not None:
        part = mask[..., tile] if mask.shape[-1] > 1 else mask
        logits = logits.masked_fill(~part, -torch.inf) if part.dtype == torch.bool else logits + part.to(logits.dtype)
    if is_causal:
        rows = torch.arange(q.shape[2], device=q.device)[:, None]
        columns = torch.arange(k.shape[2], device=q.device)[tile]
        logits = logits.masked_fill(columns > rows, -torch.inf)
    return logits


class FlashAttention(torch.autograd.Function):
    """q, k, v of equally many heads; mask of rank 4 or None."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, is_causal: bool, scale: float) -> Tensor:
        """The output, from a running maximum, sum and weighted sum."""
        wide = torch.promote_types(q.dtype, torch.float32)
        top = q.new_full((*q.shape[:3], 1), -torch.inf, dtype=wide)  # (B, H, L, 1)
        total = torch.zeros_like(top)
        mixed = q.new_zeros((*q.shape[:3], v.shape[3]), dtype=wide)  # (B, H, L, Dv)
        for tile in tiles(k.shape[2]):
            logits = logits_of(q.to(wide), k.to(wide), mask, is_causal, scale, tile)
            higher = torch.maximum(top, logits.amax(-1, keepdim=True))
            base = higher.masked_fill(higher == -torch.inf, 0)  # no −∞ − −∞ before the first visible key
            terms, rescale = torch.exp(logits - base), torch.exp(top - base)
            total = total * rescale + terms.sum(-1, keepdim=True)
            mixed = mixed * rescale + terms @ v[:, :, tile].to(wide)
            top = higher
        out = (mixed / total.masked_fill(total == 0, 1)).to(q.dtype)
        lse = (top + total.log()).masked_fill(total == 0, torch.inf)  # exp(s − ∞) = 0: such a row has no weights
        ctx.save_for_backward(q, k, v, mask, out, lse)
        ctx.is_causal, ctx.scale = is_causal, scale
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """dQ, dK, dV and dbias, tile by tile."""
        q, k, v, mask, out, lse = ctx.saved_tensors
        wide = lse.dtype
        wide_q, wide_k, wide_v, d_out = (x.to(wide) for x in (q, k, v, grads[0]))
        delta = (d_out * out.to(wide)).sum(-1, keepdim=True)  # (B, H, L, 1)
        d_q, d_k, d_v = torch.zeros_like(wide_q), torch.zeros_like(wide_k), torch.zeros_like(wide_v)
        d_bias = None
        if mask is not None and ctx.needs_input_grad[3]:
            d_bias = torch.zeros(mask.shape, dtype=wide, device=mask.device)
        for tile in tiles(k.shape[2]):
            logits = logits_of(wide_q, wide_k, mask, ctx.is_causal, ctx.scale, tile)
            weights = torch.exp(logits - lse)  # (B, H, L, TILE)
            d_logits = weights * (d_out @ wide_v[:, :, tile].mT - delta)
            d_logits = d_logits.masked_fill(weights == 0, 0.0)  # where dO·v overflows behind a mask, 0·∞ would be NaN
            d_v[:, :, tile] = weights.mT @ d_out
            d_k[:, :, tile] = d_logits.mT @ wide_q * ctx.scale
            d_q += d_logits @ wide_k[:, :, tile] * ctx.scale
            if d_bias is not None:
                part = d_bias[..., tile] if mask.shape[-1] > 1 else d_bias
                part += d_logits.sum_to_size(part.shape)
        grad_bias = None if d_bias is None else d_bias.to(mask.dtype)
        return d_q.to(q.dtype), d_k.to(k.dtype), d_v.to(v.dtype), grad_bias, None, None


@supports(
    framework="torch",
    devices=["cpu", "cuda"],
    dtypes=["float64", "float32", "float16", "bfloat16"],
    arithmetic={"float64": "same", "float32": "same", "float16": "fused", "bfloat16": "fused"},
    masked_nan="leaks",
)
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """softmax(scale · Q Kᵀ + bias) V, differentiable once"""
    group = check_attention(q, k, v, attn_mask, enable_gqa)
    k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)  # their gradients add up over the group
    mask = None if attn_mask is None else attn_mask[(None,) * (4 - attn_mask.ndim)]
    scale = default_scale(q.shape[-1]) if scale is None else scale
    out: Tensor = FlashAttention.apply(q, k, v, mask, is_causal, scale)
    return out
