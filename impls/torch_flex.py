"""torch.nn.attention.flex_attention: softcap, mask and ALiBi as a score_mod; frontiers, windows and lengths as a mask_mod.

    score_mod(s, b, h, i, j) = c·tanh(s/c) + bias_bhij − m_h·|i − j|          (Dong et al., Flex Attention, 2024)
    mask_mod(b, h, i, j)     = bool mask ∧ j ≤ i ∧ i − left ≤ j ≤ i + right ∧ j < lengths_b
    sinks                    = out · exp(lse) / (exp(z) + exp(lse)), from the log-sum-exp of the keys

Without ``torch.compile`` it computes the whole matrix of logits, and on CPU it has no backward pass.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import logsigmoid

from .contract import check_attention, supports


@supports(
    framework="torch",
    devices=["cpu"],
    dtypes=["float64", "float32", "float16", "bfloat16"],
    arithmetic={"float64": "same+lse", "float32": "same+lse", "float16": "eager", "bfloat16": "eager"},
    masked_nan="leaks",
    zero_sizes=False,  # no head, no key or no feature raises
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
    window_size: tuple[int, int] | None = None,
    softcap: float | None = None,
    alibi_slopes: Tensor | None = None,
    sinks: Tensor | None = None,
    kv_lengths: Tensor | None = None,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """q (B, H, L, D), k (B, Hkv, S, D), v (B, Hkv, S, Dv) → (B, H, L, Dv), and lse (B, H, L) where it is asked for"""
    check_attention(q, k, v, attn_mask, enable_gqa)
    (batch, heads, queries, _), keys = q.shape, k.shape[2]
    mask = None if attn_mask is None else attn_mask.expand(batch, heads, queries, keys)
    added = mask is not None and mask.dtype != torch.bool

    def score_mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        if softcap is not None:
            score = softcap * torch.tanh(score / softcap)
        if mask is not None and added:
            score = score + mask[b, h, i, j]
        if alibi_slopes is not None:
            score = score - alibi_slopes[h] * (i - j).abs()
        return score

    def mask_mod(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        seen = (j <= i) if is_causal else (j >= 0)
        if window_size is not None:
            left, right = window_size
            seen = seen & (j >= i - left if left >= 0 else seen) & (j <= i + right if right >= 0 else seen)
        if kv_lengths is not None:
            seen = seen & (j < kv_lengths[b])
        if mask is not None and not added:
            seen = seen & mask[b, h, i, j]
        return seen

    everything = not is_causal and window_size is None and kv_lengths is None and (mask is None or added)
    plain = softcap is None and alibi_slopes is None and not added
    with warnings.catch_warnings(), torch.compiler.set_stance("force_eager"):  # else it traces itself anew for every shape
        warnings.simplefilter("ignore")  # that it is not compiled
        block_mask = None if everything else create_block_mask(mask_mod, batch, heads, queries, keys, str(q.device))
        out, lse = flex_attention(q, k, v, None if plain else score_mod, block_mask, scale, enable_gqa, return_lse=True)
    if sinks is not None:
        # as a logarithm: the gradient of the sigmoid itself is w(1 − w), in which a small share of the sink is lost
        share = logsigmoid(lse - sinks.to(lse.dtype)[:, None]).exp()
        out = (out * share[..., None]).to(q.dtype)
    return (out, lse) if return_lse else out
