"""Encoder and decoder layers that are correct and compute otherwise: nothing may flag them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ..multihead.layer import join, padding, split
from ..registry import Function, honest
from .block import EPS, Masks, Weights, affine, attend, decoder, encoder, feed_forward, linear, norm


def _honest(idea: str, contract: str = "encoder_layer", source: str = "common practice", **supports: Any) -> Callable[[Function], Function]:
    return honest(idea, source=source, contract=contract, supports=supports)


def _fused(y: Tensor, memory: Tensor, w: Weights, prefix: str, heads: int, masks: Masks) -> Tensor:
    """One product for queries, keys and values, and scaled_dot_product_attention."""
    stacked = torch.cat([w[f"{prefix}w_{name}"] for name in "qkv"])  # (3E, E)
    bias = torch.cat([w[f"{prefix}b_{name}"] for name in "qkv"]) if f"{prefix}b_q" in w else None
    q, k, v = (split(part, heads) for part in functional.linear(y, stacked, bias).chunk(3, -1))
    mask, causal = masks.get("attn_mask"), masks.get("is_causal", False)
    seen = padding(masks.get("key_padding_mask"), (*q.shape[:3], k.shape[2]))
    if causal:
        frontier = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril()
        seen = frontier if seen is None else seen & frontier
    if mask is not None and mask.dtype != torch.bool:
        mask = mask.to(q.dtype) if seen is None else mask.to(q.dtype).masked_fill(~seen, -torch.inf)
    elif mask is not None:
        mask = mask if seen is None else mask & seen
    else:
        mask = seen
    if mask is not None and mask.ndim < 2:
        mask = mask.expand(q.shape[2], k.shape[2])
    out = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    return functional.linear(join(out), w[f"{prefix}w_o"], w.get(f"{prefix}b_o"))


@_honest("one product for queries, keys and values, and the library's attention", source="torch.nn.TransformerEncoderLayer")
def fused_projections(x: Tensor, weights: Weights, **options: Any) -> Tensor:
    return encoder(x, weights, **options, attend=_fused)


@_honest("the norm is the library's")
def norm_of_the_library(x: Tensor, weights: Weights, **options: Any) -> Tensor:
    return encoder(x, weights, **options, norm=lambda x, gain, shift: functional.layer_norm(x, x.shape[-1:], gain, shift, EPS))


@_honest("the variance is E[x²] − E[x]², in float64", dtypes=("float32", "float16", "bfloat16"))
def variance_of_two_moments(x: Tensor, weights: Weights, **options: Any) -> Tensor:
    def moments(x: Tensor, gain: Tensor, shift: Tensor | None) -> Tensor:
        wide = x.double()
        mean = wide.mean(-1, keepdim=True)
        variance = wide.square().mean(-1, keepdim=True) - mean.square()
        return affine(((wide - mean) / (variance.clamp(min=0) + EPS).sqrt()).to(x.dtype), gain, shift)

    return encoder(x, weights, **options, norm=moments)


@_honest("the reciprocal root is taken first and multiplied by the gain", source="Apex, fused layer norm")
def reciprocal_root(x: Tensor, weights: Weights, **options: Any) -> Tensor:
    def multiplied(x: Tensor, gain: Tensor, shift: Tensor | None) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        out = centred * ((centred.square().mean(-1, keepdim=True) + EPS).rsqrt() * gain)
        return out if shift is None else out + shift

    return encoder(x, weights, **options, norm=multiplied)


@_honest("mean and variance are updated feature by feature (Welford)")
def running_moments(x: Tensor, weights: Weights, **options: Any) -> Tensor:
    def welford(x: Tensor, gain: Tensor, shift: Tensor | None) -> Tensor:
        mean, squares = torch.zeros_like(x[..., :1]), torch.zeros_like(x[..., :1])
        for k in range(x.shape[-1]):
            apart = x[..., k : k + 1] - mean
            mean = mean + apart / (k + 1)
            squares = squares + apart * (x[..., k : k + 1] - mean)
        return affine((x - mean) / (squares / x.shape[-1] + EPS).sqrt(), gain, shift)

    return encoder(x, weights, **options, norm=welford)


@_honest("the features of the feed-forward part are summed in two halves, the last half first")
def feed_forward_in_halves(x: Tensor, weights: Weights, **options: Any) -> Tensor:
    def halves(x: Tensor, w: Weights, activation: str) -> Tensor:
        cut = (w["w_1"].shape[0] + 1) // 2
        parts = []
        for part in (slice(cut, None), slice(None, cut)):
            own = {name: w[name][..., part] if name == "w_2" else w[name][part] for name in ("w_1", "b_1", "w_2") if name in w}
            parts.append(feed_forward(x, own, activation))
        out = parts[0] + parts[1]
        return out if "b_2" not in w else out + w["b_2"]

    return encoder(x, weights, **options, feed_forward=halves)


@_honest("gelu as x erfc(−x/√2) / 2")
def gelu_by_erfc(x: Tensor, weights: Weights, **options: Any) -> Tensor:
    def complement(h: Tensor, name: str) -> Tensor:
        return h.relu() if name == "relu" else h * torch.special.erfc(-h * 0.5**0.5) / 2

    return encoder(x, weights, **options, feed_forward=lambda x, w, activation: feed_forward(x, w, activation, act=complement))


@_honest("gelu by tanh, declared", source="GPT-2", gelu="tanh")
def gelu_by_tanh_declared(x: Tensor, weights: Weights, **options: Any) -> Tensor:
    def by_tanh(h: Tensor, name: str) -> Tensor:
        return h.relu() if name == "relu" else functional.gelu(h, approximate="tanh")

    return encoder(x, weights, **options, feed_forward=lambda x, w, activation: feed_forward(x, w, activation, act=by_tanh))


@_honest("another ε, declared", source="BERT", eps=1e-12)
def eps_declared(x: Tensor, weights: Weights, **options: Any) -> Tensor:
    def small(x: Tensor, gain: Tensor, shift: Tensor | None) -> Tensor:
        return functional.layer_norm(x, x.shape[-1:], gain, shift, 1e-12)

    return encoder(x, weights, **options, norm=small)


@_honest("residual and bias are added to the last product at once")
def residual_in_the_product(x: Tensor, weights: Weights, **options: Any) -> Tensor:
    def added(y: Tensor, number: int, w: Weights, first: bool, norm: Any, f: Any) -> Tensor:
        gain, shift = w[f"g_{number}"], w.get(f"beta_{number}")
        z = f(norm(y, gain, shift) if first else y) + y
        return z if first else norm(z, gain, shift)

    return encoder(x, weights, **options, around=added)


@_honest(
    "steps are stored in the type of the tokens", arithmetic={"float64": "same", "float32": "same", "float16": "eager", "bfloat16": "eager"}
)
def stored_between_steps(x: Tensor, weights: Weights, **options: Any) -> Tensor:
    def stored(y: Tensor) -> Tensor:
        return y.to(x.dtype).to(y.dtype)

    return encoder(
        x,
        weights,
        **options,
        norm=lambda *given: stored(norm(*given)),
        attend=lambda *given: stored(attend(*given)),
        feed_forward=lambda y, w, activation: stored(linear(stored(feed_forward_act(stored(linear(y, w, 1)), activation)), w, 2)),
    )


def feed_forward_act(hidden: Tensor, activation: str) -> Tensor:
    """relu or gelu."""
    return hidden.relu() if activation == "relu" else functional.gelu(hidden)


@_honest("keys and values of the memory are projected head by head", "decoder_layer", "vLLM, cross-attention")
def memory_head_by_head(x: Tensor, memory: Tensor, weights: Weights, **options: Any) -> Tensor:
    def by_head(y: Tensor, m: Tensor, w: Weights, prefix: str, heads: int, masks: Masks) -> Tensor:
        size, out = y.shape[-1] // heads, []
        mask = masks.get("attn_mask")
        for h in range(heads):
            rows = slice(h * size, (h + 1) * size)
            own = {name: w[f"{prefix}{name}"][rows] for name in ("w_q", "w_k", "w_v", "b_q", "b_k", "b_v") if prefix + name in w}
            q, k, v = (functional.linear(z, own[f"w_{n}"], own.get(f"b_{n}"))[:, None] for z, n in ((y, "q"), (m, "k"), (m, "v")))
            bias = mask[:, h : h + 1] if mask is not None and mask.ndim == 4 and mask.shape[1] > 1 else mask
            bias = mask[h] if mask is not None and mask.ndim == 3 and mask.shape[0] > 1 else bias
            seen = padding(masks.get("key_padding_mask"), (*q.shape[:3], k.shape[2]))
            logit = q @ k.mT * size**-0.5
            if bias is not None:
                logit = logit.masked_fill(~bias, -torch.inf) if bias.dtype == torch.bool else logit + bias.to(logit.dtype)
            logit = logit if seen is None else logit.masked_fill(~seen, -torch.inf)
            empty = (logit == -torch.inf).all(-1, keepdim=True)
            out.append((logit.masked_fill(empty, 0.0).softmax(-1).masked_fill(empty, 0.0) @ v)[:, 0])
        return functional.linear(torch.cat(out, -1), w[f"{prefix}w_o"], w.get(f"{prefix}b_o"))

    return decoder(x, memory, weights, **options, cross=by_head)


@_honest("the norms of a decoder are the library's", "decoder_layer")
def decoder_norms_of_the_library(x: Tensor, memory: Tensor, weights: Weights, **options: Any) -> Tensor:
    return decoder(x, memory, weights, **options, norm=lambda x, gain, shift: functional.layer_norm(x, x.shape[-1:], gain, shift, EPS))
