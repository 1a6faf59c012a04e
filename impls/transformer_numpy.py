"""Encoder and decoder layers in NumPy: attention, residual, norm, feed-forward, in the order of the paper.

post-norm  y = N₁(x + A(x)),  z = N₂(y + F(y))                       (Vaswani et al. 2017, section 3.1)
pre-norm   y = x + A(N₁(x)),  z = y + F(N₂(y))                       (Xiong et al. 2020, On layer normalization)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import erf, sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from .contract import check_block, supports
from .numpy_matmul import multihead

Array = npt.NDArray[Any]
EPS = 1e-5
FACTS: dict[str, Any] = {
    "framework": "numpy",
    "devices": ["cpu"],
    "dtypes": ["float64", "float32"],
    "arithmetic": {"float64": "same", "float32": "same"},
}


def attention_weights(weights: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """The eight arrays of one attention, without the prefix: w_q … b_o."""
    names = ("w_q", "w_k", "w_v", "w_o", "b_q", "b_k", "b_v", "b_o")
    return {name: weights[prefix + name] for name in names if prefix + name in weights}


def sublayer(x: Any, number: int, weights: Mapping[str, Any], norm_first: bool, norm: Callable[..., Any], f: Callable[[Any], Any]) -> Any:
    """x + f(N(x)), or N(x + f(x)); every sublayer has a norm of its own"""
    gain, shift = weights[f"g_{number}"], weights.get(f"beta_{number}")
    if norm_first:
        return x + f(norm(x, gain, shift))
    return norm(x + f(x), gain, shift)


def layer_norm(x: Array, gain: Array, shift: Array | None) -> Array:
    """gain · (x − mean) / sqrt(variance + ε) + shift"""
    normal = (x - x.mean(axis=-1, keepdims=True)) / np.sqrt(x.var(axis=-1, keepdims=True) + x.dtype.type(EPS)) * gain
    return normal if shift is None else normal + shift


def feed_forward(x: Array, weights: Mapping[str, Array], activation: str) -> Array:
    """W₂ act(W₁ x + b₁) + b₂; gelu(h) = h Φ(h)"""
    hidden = x @ weights["w_1"].T + weights.get("b_1", x.dtype.type(0))
    if activation == "relu":
        hidden = np.maximum(hidden, 0)
    else:
        below = np.vectorize(lambda h: 0.5 * (1 + erf(h / sqrt(2))), otypes=[x.dtype])  # Φ
        hidden = hidden * below(hidden)
    return hidden @ weights["w_2"].T + weights.get("b_2", x.dtype.type(0))


@supports(**FACTS)
def encoder(
    x: Array,
    weights: Mapping[str, Array],
    *,
    num_heads: int,
    attn_mask: Array | None = None,
    key_padding_mask: Array | None = None,
    is_causal: bool = False,
    norm_first: bool = False,
    activation: str = "relu",
) -> Array:
    """Self-attention, then the feed-forward part: x (batch, length, embed) → the same shape"""
    check_block(x, None, weights, num_heads, key_padding_mask)

    def self_attention(y: Array) -> Array:
        masks: dict[str, Any] = {"attn_mask": attn_mask, "key_padding_mask": key_padding_mask, "is_causal": is_causal}
        return multihead(y, y, y, attention_weights(weights, ""), num_heads=num_heads, **masks)[0]

    x = sublayer(x, 1, weights, norm_first, layer_norm, self_attention)
    return sublayer(x, 2, weights, norm_first, layer_norm, lambda y: feed_forward(y, weights, activation))


@supports(**FACTS)
def decoder(
    x: Array,
    memory: Array,
    weights: Mapping[str, Array],
    *,
    num_heads: int,
    attn_mask: Array | None = None,
    memory_mask: Array | None = None,
    key_padding_mask: Array | None = None,
    memory_key_padding_mask: Array | None = None,
    is_causal: bool = False,
    norm_first: bool = False,
    activation: str = "relu",
) -> Array:
    """Self-attention, attention to the memory (batch, keys, embed), then the feed-forward part"""
    check_block(x, memory, weights, num_heads, key_padding_mask, memory_key_padding_mask)

    def self_attention(y: Array) -> Array:
        masks: dict[str, Any] = {"attn_mask": attn_mask, "key_padding_mask": key_padding_mask, "is_causal": is_causal}
        return multihead(y, y, y, attention_weights(weights, ""), num_heads=num_heads, **masks)[0]

    def cross_attention(y: Array) -> Array:
        masks: dict[str, Any] = {"attn_mask": memory_mask, "key_padding_mask": memory_key_padding_mask}
        return multihead(y, memory, memory, attention_weights(weights, "cross_"), num_heads=num_heads, **masks)[0]

    x = sublayer(x, 1, weights, norm_first, layer_norm, self_attention)
    x = sublayer(x, 2, weights, norm_first, layer_norm, cross_attention)
    return sublayer(x, 3, weights, norm_first, layer_norm, lambda y: feed_forward(y, weights, activation))
