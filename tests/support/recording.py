"""A right attention in every dialect, which notes what it is asked that it has declared not to take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from properties.engine.cases.masks import AXES, MASK_AXES
from properties.engine.core.target import Target
from properties.engine.search.probe import make_target

Tensor = Any
INF = torch.inf
PARAMETERS = (
    "attn_mask",
    "is_causal",
    "scale",
    "enable_gqa",
    "window_size",
    "softcap",
    "alibi_slopes",
    "sinks",
    "kv_lengths",
    "return_lse",
)


def fits(mask: Tensor, axes: str, shape: tuple[int, ...]) -> bool:
    """Whether a mask has the full size along these axes, all of which it has, and size 1 along any other."""
    sizes = (None,) * (4 - mask.ndim) + tuple(mask.shape)
    return all(size == full if axis in axes else size in (None, 1) for axis, size, full in zip(AXES, sizes, shape))


def kinds_of(mask: Tensor) -> set[str]:
    """The kinds of masks that this one may be."""
    if mask.dtype == torch.bool:
        return {"bool"}
    infinite, lowest = mask == -INF, mask == torch.finfo(mask.dtype).min
    plain = bool((mask[~infinite & ~lowest] == 0).all())
    may = {
        "bias_and_minus_infinity": not lowest.any(),
        "bias": not (infinite | lowest).any(),
        "minus_infinity": plain and not lowest.any(),
        "lowest": plain and not infinite.any(),
    }
    return {kind for kind, is_so in may.items() if is_so}


def recording(supports: dict[str, Any], broken: list[str]) -> Target:
    """The attention that follows what it declares, and writes down every mask that does not."""
    corner, empty, rank = supports.get("causal", "top-left"), supports.get("empty_rows", "zero"), supports.get("mask_rank", 0)

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
    ) -> Any:
        (batch, heads, queries, dim), keys = q.shape, k.shape[2]
        group = heads // k.shape[1] if k.shape[1] else 1
        if v.shape[:3] != k.shape[:3] or k.shape[0] != batch or k.shape[3] != dim or (k.shape[1] and heads % k.shape[1]):
            raise ValueError("shapes")
        if attn_mask is not None:
            note(attn_mask, (batch, heads, queries, keys), q.dtype)
        query, key, value = q.double(), k.double().repeat_interleave(group, 1), v.double().repeat_interleave(group, 1)
        logits = query @ key.mT * (scale if scale is not None else dim**-0.5 if dim else 1.0)
        if softcap is not None:
            logits = softcap * torch.tanh(logits / softcap)
        in_use = torch.tensor(keys).reshape(1, 1, 1, 1) if kv_lengths is None else kv_lengths[:, None, None, None]
        ahead = torch.arange(keys) - torch.arange(queries)[:, None] - (in_use - queries if corner == "bottom-right" else 0)
        seen = (torch.arange(keys) < in_use).expand(batch, heads, queries, keys)
        if is_causal:
            seen = seen & (ahead <= 0)
        if window_size is not None:
            left, right = window_size
            seen = seen & ((ahead >= -left) | (left < 0)) & ((ahead <= right) | (right < 0))
        if alibi_slopes is not None:
            logits = logits - alibi_slopes.double()[:, None, None] * ahead.abs()
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            seen = seen & attn_mask
        elif attn_mask is not None:
            seen, logits = seen & (attn_mask != -INF), logits + attn_mask.double()
        live = seen.any(-1, keepdim=True)
        hidden = logits.masked_fill(~seen, -INF)
        if sinks is not None:
            hidden = torch.cat([hidden, sinks.double()[:, None, None].expand(batch, heads, queries, 1)], -1)
            weights = torch.softmax(hidden, -1)[..., :-1]
        elif empty == "mean":
            weights = torch.softmax(hidden.masked_fill(~live, 0.0), -1)
        elif empty == "zero":
            weights = torch.softmax(hidden.masked_fill(~live, 0.0), -1).masked_fill(~live, 0.0)
        else:
            weights = torch.softmax(hidden, -1)
        out = weights @ value
        if sinks is None and empty == "nan":
            out = out.masked_fill(~live, torch.nan)
        lse = hidden[..., :keys].logsumexp(-1) if keys else hidden.new_full((batch, heads, queries), -INF)
        return (out.to(q.dtype), lse.to(q.dtype)) if return_lse else out.to(q.dtype)

    def note(mask: Tensor, shape: tuple[int, ...], dtype: Any) -> None:
        torch.broadcast_to(mask, shape)  # or it raises
        if mask.ndim < rank or not any(fits(mask, axes, shape) for axes in supports.get("mask_axes", MASK_AXES)):
            broken.append(f"a mask {tuple(mask.shape)} for logits {shape}")
        if not kinds_of(mask) & set(supports.get("mask_kinds", kinds_of(mask))):
            broken.append(f"a mask of kind {' or '.join(kinds_of(mask))}")
        if mask.dtype not in (torch.bool, dtype):
            broken.append(f"a mask of type {mask.dtype}")

    function: Callable[..., Any] = attention
    return make_target("recording", function, {"framework": "torch", "parameters": PARAMETERS, "masked_nan": "leaks", **supports})
