"""The honest core: scaled dot-product attention as a row of small named steps.

A mutant is this attention with one step replaced, or with something wrong around it. The core is itself correct:

* shapes q (B, H, L, D), k (B, Hkv, S, D), v (B, Hkv, S, Dv) -> (B, H, L, Dv), with Hkv dividing H when `enable_gqa`;
* bool mask True = attend, float masks are added, both broadcast to (B, H, L, S), and `is_causal` (top-left) holds together with a mask;
* a row with no visible key gives zeros, and nothing in a hidden key or value, NaN included, reaches the output;
* half precision is computed in float32 and rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Step = Callable[..., Any]
INF = math.inf


def check(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None, enable_gqa: bool) -> None:
    """Raise ValueError where the shapes or types do not fit together."""
    if not q.ndim == k.ndim == v.ndim == 4:
        raise ValueError(f"q, k and v need 4 dimensions, got {q.ndim}, {k.ndim} and {v.ndim}")
    if not q.dtype == k.dtype == v.dtype:
        raise ValueError(f"q, k and v need one dtype, got {q.dtype}, {k.dtype} and {v.dtype}")
    (batch, heads, queries, dim), (kv_batch, kv_heads, keys, key_dim) = q.shape, k.shape
    if v.shape[:3] != k.shape[:3] or batch != kv_batch or dim != key_dim:
        raise ValueError(f"shapes do not fit: q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}")
    if heads != kv_heads and not (enable_gqa and kv_heads and heads % kv_heads == 0):
        raise ValueError(f"{kv_heads} key heads cannot serve {heads} query heads (enable_gqa={enable_gqa})")
    if attn_mask is not None:
        if attn_mask.dtype != torch.bool and not attn_mask.is_floating_point():
            raise ValueError(f"a mask is bool or floating, got {attn_mask.dtype}")
        pairs = zip(reversed(attn_mask.shape), (keys, queries, heads, batch), strict=False)
        if attn_mask.ndim > 4 or any(size not in (1, full) for size, full in pairs):
            raise ValueError(f"mask {tuple(attn_mask.shape)} does not broadcast to {(batch, heads, queries, keys)}")


def widen(x: Tensor) -> Tensor:
    """Half precision becomes float32; float32 and float64 stay."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def repeat_heads(x: Tensor, heads: int) -> Tensor:
    """Serve query head h by key head h // group."""
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], 1)


def default_scale(q: Tensor) -> float:
    """1 / sqrt(D)."""
    return q.shape[-1] ** -0.5 if q.shape[-1] else 1.0


def scores(query: Tensor, key: Tensor, scale: float) -> Tensor:
    """scale · Q Kᵀ."""
    return (query @ key.mT) * scale  # (B, H, L, S)


def read_mask(attn_mask: Tensor | None, shape: tuple[int, ...]) -> tuple[Tensor | None, Tensor | None]:
    """A mask as (visible, bias), either of them None; `shape` is (B, H, L, S)."""
    if attn_mask is None:
        return None, None
    if attn_mask.dtype == torch.bool:
        return attn_mask, None
    return attn_mask != -INF, widen(attn_mask)


def frontier(queries: int, keys: int, offset: int = 0) -> Tensor:
    """Query i sees the keys 0 … i + offset."""
    return torch.ones(queries, keys, dtype=torch.bool).tril_(offset)  # (L, S)


def hide(logit: Tensor, visible: Tensor | None, bias: Tensor | None) -> Tensor:
    """Add the bias, then overwrite what is hidden, so that even a NaN there is gone."""
    if bias is not None:
        logit = logit + bias
    return logit if visible is None else logit.masked_fill(~visible, -INF)


def softmax(logit: Tensor, visible: Tensor | None) -> Tensor:
    """exp(x - max) / sum along the keys; zeros in a row that sees no key."""
    weight = torch.softmax(logit, -1)
    return weight if visible is None else weight.masked_fill(~visible.any(-1, keepdim=True), 0.0)


def mix(weight: Tensor, value: Tensor, visible: Tensor | None) -> Tensor:
    """Σ_j weight_ij value_j, where NaN and infinity of a hidden value stay out (a plain product has 0 · NaN = NaN).

    Adding 0.0 makes every zero positive: the sign of 0 · value would show the sign of a hidden value. So would the bits show
    whether one is finite, if the product took the values now as they lie, now copied.
    """
    if visible is None or (finite := value.isfinite()).all():
        return weight @ value.contiguous() + 0.0
    seen = visible.expand(weight.shape)
    terms = (weight.unsqueeze(-1) * value.unsqueeze(-3)).where(seen.unsqueeze(-1), 0.0)  # (B, H, L, S, Dv)
    touched = (seen.unsqueeze(-1) & ~finite.unsqueeze(-3)).any(-2)
    return torch.where(touched, terms.sum(-2), weight @ value.where(finite, 0.0).contiguous()) + 0.0


def narrow(out: Tensor, dtype: torch.dtype) -> Tensor:
    """Round once, to the type of the query."""
    return out.to(dtype)


def both(visible: Tensor | None, causal: Tensor | None) -> Tensor | None:
    """Visible to the mask and to causality."""
    if visible is None or causal is None:
        return causal if visible is None else visible
    return visible & causal


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    check: Step = check,
    widen: Step = widen,
    repeat_heads: Step = repeat_heads,
    default_scale: Step = default_scale,
    scores: Step = scores,
    read_mask: Step = read_mask,
    frontier: Step = frontier,
    both: Step = both,
    hide: Step = hide,
    softmax: Step = softmax,
    mix: Step = mix,
    reduce: Step | None = None,
    narrow: Step = narrow,
) -> Tensor:
    """softmax(scale · Q Kᵀ + mask) V. The keywords after `enable_gqa` are the steps, for mutants to replace.

    `reduce(logit, value, visible)` stands for softmax and mix together: see `blocked`.
    """
    check(q, k, v, attn_mask, enable_gqa)
    heads, (queries, keys) = q.shape[1], (q.shape[2], k.shape[2])
    query, key, value = widen(q), repeat_heads(widen(k), heads), repeat_heads(widen(v), heads)
    logit = scores(query, key, default_scale(q) if scale is None else scale)  # (B, H, L, S)
    visible, bias = read_mask(attn_mask, (q.shape[0], heads, queries, keys))
    visible = both(visible, frontier(queries, keys) if is_causal else None)
    logit = hide(logit, visible, bias)
    out = mix(softmax(logit, visible), value, visible) if reduce is None else reduce(logit, value, visible)
    return narrow(out, q.dtype)  # (B, H, L, Dv)
