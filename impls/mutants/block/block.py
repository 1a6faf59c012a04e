"""The honest encoder and decoder layers, as a row of steps for mutants to replace.

    post-norm  N₁(x + A(x)), then N₂(y + F(y));   pre-norm  x + A(N₁(x)), then y + F(N₂(y));   a decoder has C, to the memory, in between

Half precision is computed in float32 and rounded once. ``attend`` is the multi-head core of ``layer``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from ..attention.core import Step, widen
from ..multihead.layer import multihead

EPS = 1e-5
Weights = Mapping[str, Tensor]
Masks = dict[str, Any]


def norm(x: Tensor, gain: Tensor, shift: Tensor | None) -> Tensor:
    """gain · (x − mean) / sqrt(variance + ε) + shift over the features."""
    centred = x - x.mean(-1, keepdim=True)
    return affine(centred / (centred.square().mean(-1, keepdim=True) + EPS).sqrt(), gain, shift)


def affine(x: Tensor, gain: Tensor, shift: Tensor | None) -> Tensor:
    """gain · x + shift."""
    return x * gain if shift is None else x * gain + shift


def act(hidden: Tensor, activation: str) -> Tensor:
    """relu, or x Φ(x)."""
    return hidden.relu() if activation == "relu" else torch.nn.functional.gelu(hidden)


def linear(x: Tensor, weights: Weights, number: int) -> Tensor:
    """W x + b of the feed-forward part."""
    out, bias = x @ weights[f"w_{number}"].mT, weights.get(f"b_{number}")
    return out if bias is None else out + bias


def feed_forward(x: Tensor, weights: Weights, activation: str, act: Step = act) -> Tensor:
    """W₂ act(W₁ x + b₁) + b₂."""
    return linear(act(linear(x, weights, 1), activation), weights, 2)


def attend(x: Tensor, memory: Tensor, weights: Weights, prefix: str, num_heads: int, masks: Masks) -> Tensor:
    """Multi-head attention from x to the memory, with the weights of this prefix."""
    own = {name: weights[prefix + name] for name in (f"{kind}_{part}" for kind in "wb" for part in "qkvo") if prefix + name in weights}
    return multihead(x, memory, memory, own, num_heads=num_heads, need_weights=False, **masks)[0]


def around(x: Tensor, number: int, weights: Weights, norm_first: bool, norm: Step, f: Callable[[Tensor], Tensor]) -> Tensor:
    """x + f(N(x)), or N(x + f(x))."""
    gain, shift = weights[f"g_{number}"], weights.get(f"beta_{number}")
    return x + f(norm(x, gain, shift)) if norm_first else norm(x + f(x), gain, shift)


def encoder(
    x: Tensor,
    weights: Weights,
    *,
    num_heads: int,
    attn_mask: Tensor | None = None,
    key_padding_mask: Tensor | None = None,
    is_causal: bool = False,
    norm_first: bool = False,
    activation: str = "relu",
    norm: Step = norm,
    attend: Step = attend,
    feed_forward: Step = feed_forward,
    around: Step = around,
) -> Tensor:
    """The encoder layer. The keywords after `activation` are its steps."""
    w, y = {name: widen(array) for name, array in weights.items()}, widen(x)
    masks = {"attn_mask": attn_mask, "key_padding_mask": key_padding_mask, "is_causal": is_causal}
    y = around(y, 1, w, norm_first, norm, lambda z: attend(z, z, w, "", num_heads, masks))
    y = around(y, 2, w, norm_first, norm, lambda z: feed_forward(z, w, activation))
    return y.to(x.dtype)


def decoder(
    x: Tensor,
    memory: Tensor,
    weights: Weights,
    *,
    num_heads: int,
    attn_mask: Tensor | None = None,
    memory_mask: Tensor | None = None,
    key_padding_mask: Tensor | None = None,
    memory_key_padding_mask: Tensor | None = None,
    is_causal: bool = False,
    norm_first: bool = False,
    activation: str = "relu",
    norm: Step = norm,
    attend: Step = attend,
    cross: Step = attend,
    feed_forward: Step = feed_forward,
    around: Step = around,
) -> Tensor:
    """The decoder layer. The keywords after `activation` are its steps; `cross` attends to the memory."""
    w, y, m = {name: widen(array) for name, array in weights.items()}, widen(x), widen(memory)
    masks = {"attn_mask": attn_mask, "key_padding_mask": key_padding_mask, "is_causal": is_causal}
    of_memory = {"attn_mask": memory_mask, "key_padding_mask": memory_key_padding_mask}
    y = around(y, 1, w, norm_first, norm, lambda z: attend(z, z, w, "", num_heads, masks))
    y = around(y, 2, w, norm_first, norm, lambda z: cross(z, m, w, "cross_", num_heads, of_memory))
    y = around(y, 3, w, norm_first, norm, lambda z: feed_forward(z, w, activation))
    return y.to(x.dtype)
