"""Encoder and decoder layers by hand: attention, residual, norm, feed-forward, in the order of the paper.

    post-norm  y = N₁(x + A(x)),  z = N₂(y + F(y))                       (Vaswani et al. 2017, section 3.1)
    pre-norm   y = x + A(N₁(x)),  z = y + F(N₂(y))                       (Xiong et al. 2020, On layer normalization)

Half precision is stored between the steps, as a model in half precision stores it. ``transformer_numpy`` has the same in NumPy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from .contract import check_block, supports
from .torch_manual import multihead
from .transformer_numpy import EPS, attention_weights, sublayer

TORCH: dict[str, Any] = {
    "framework": "torch",
    "devices": ["cpu", "cuda"],
    "dtypes": ["float64", "float32", "float16", "bfloat16"],
    "arithmetic": {"float64": "same", "float32": "same", "float16": "eager", "bfloat16": "eager"},
}


def layer_norm(x: Tensor, gain: Tensor, shift: Tensor | None) -> Tensor:
    """gain · (x − mean) / sqrt(variance + ε) + shift, over the features of each token: x (…, embed)"""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    centred = wide - wide.mean(dim=-1, keepdim=True)
    variance = centred.square().mean(dim=-1, keepdim=True)  # of all features: divided by embed, not embed − 1
    normal = centred / torch.sqrt(variance + EPS) * gain
    return (normal if shift is None else normal + shift).to(x.dtype)


def feed_forward(x: Tensor, weights: Mapping[str, Tensor], activation: str) -> Tensor:
    """W₂ act(W₁ x + b₁) + b₂ for every token alone: (…, embed) → (…, hidden) → (…, embed)"""
    act = torch.relu if activation == "relu" else torch.nn.functional.gelu
    hidden = torch.nn.functional.linear(x, weights["w_1"], weights.get("b_1"))  # (…, hidden)
    return torch.nn.functional.linear(act(hidden), weights["w_2"], weights.get("b_2"))


@supports(**TORCH)
def encoder(
    x: Tensor,
    weights: Mapping[str, Tensor],
    *,
    num_heads: int,
    attn_mask: Tensor | None = None,
    key_padding_mask: Tensor | None = None,
    is_causal: bool = False,
    norm_first: bool = False,
    activation: str = "relu",
) -> Tensor:
    """Self-attention, then the feed-forward part: x (batch, length, embed) → the same shape"""
    check_block(x, None, weights, num_heads, key_padding_mask)

    def self_attention(y: Tensor) -> Tensor:
        masks: dict[str, Any] = {"attn_mask": attn_mask, "key_padding_mask": key_padding_mask, "is_causal": is_causal}
        return multihead(y, y, y, attention_weights(weights, ""), num_heads=num_heads, need_weights=False, **masks)[0]

    x = sublayer(x, 1, weights, norm_first, layer_norm, self_attention)
    return sublayer(x, 2, weights, norm_first, layer_norm, lambda y: feed_forward(y, weights, activation))


@supports(**TORCH)
def decoder(
    x: Tensor,
    memory: Tensor,
    weights: Mapping[str, Tensor],
    *,
    num_heads: int,
    attn_mask: Tensor | None = None,
    memory_mask: Tensor | None = None,
    key_padding_mask: Tensor | None = None,
    memory_key_padding_mask: Tensor | None = None,
    is_causal: bool = False,
    norm_first: bool = False,
    activation: str = "relu",
) -> Tensor:
    """Self-attention, attention to the memory (batch, keys, embed), then the feed-forward part"""
    check_block(x, memory, weights, num_heads, key_padding_mask, memory_key_padding_mask)

    def self_attention(y: Tensor) -> Tensor:
        masks: dict[str, Any] = {"attn_mask": attn_mask, "key_padding_mask": key_padding_mask, "is_causal": is_causal}
        return multihead(y, y, y, attention_weights(weights, ""), num_heads=num_heads, need_weights=False, **masks)[0]

    def cross_attention(y: Tensor) -> Tensor:  # queries from the target, keys and values from the memory; never causal
        masks: dict[str, Any] = {"attn_mask": memory_mask, "key_padding_mask": memory_key_padding_mask}
        own = attention_weights(weights, "cross_")
        return multihead(y, memory, memory, own, num_heads=num_heads, need_weights=False, **masks)[0]

    x = sublayer(x, 1, weights, norm_first, layer_norm, self_attention)
    x = sublayer(x, 2, weights, norm_first, layer_norm, cross_attention)
    return sublayer(x, 3, weights, norm_first, layer_norm, lambda y: feed_forward(y, weights, activation))
