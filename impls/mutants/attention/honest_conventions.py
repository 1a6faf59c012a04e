"""Attentions that are correct under another convention, which they declare: nothing may flag them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..registry import honest
from . import feature_core
from .core import attention, mix, softmax
from .feature_core import ahead


@honest(
    "hidden keys get the lowest number, not −∞, so that a row without keys gives the mean of all; no mask but a bool one",
    supports={"mask_kinds": ["bool"], "empty_rows": "mean", "masked_nan": "leaks"},
)
def lowest_number_instead_of_infinity(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    mask = options.get("attn_mask")
    if mask is not None and mask.dtype != torch.bool:
        raise TypeError("a mask of another type than bool")

    def lowest(logit: Tensor, visible: Tensor | None, bias: Tensor | None) -> Tensor:
        return logit if visible is None else logit.masked_fill(~visible, torch.finfo(logit.dtype).min)

    return attention(
        q,
        k,
        v,
        **options,
        hide=lowest,
        softmax=lambda logit, visible: softmax(logit, None),
        mix=lambda weight, value, visible: mix(weight, value, None),
    )


@honest("no mask but an additive one", supports={"mask_kinds": ["minus_infinity", "bias", "bias_and_minus_infinity", "lowest"]})
def additive_masks_alone(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    mask = options.get("attn_mask")
    if mask is not None and mask.dtype == torch.bool:
        raise TypeError("a mask of type bool")
    return attention(q, k, v, **options)


@honest("a row without keys is NaN, as a plain softmax makes it", supports={"empty_rows": "nan", "masked_nan": "leaks"})
def nan_without_keys(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(
        q, k, v, **options, softmax=lambda logit, visible: softmax(logit, None), mix=lambda weight, value, visible: mix(weight, value, None)
    )


@honest("(batch, length, heads, dim)", source="Dao-AILab/flash-attention", supports={"layout": "blhd"})
def by_length(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), **options).transpose(1, 2)


@honest(
    "causality, windows and distances count from the end",
    source="Dao-AILab/flash-attention",
    supports={"causal": "bottom-right", "masked_nan": "leaks", "parameters": [p for p in feature_core.PARAMETERS if p != "kv_lengths"]},
)
def aligned_at_the_end(
    q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool = False, window_size: tuple[int, int] | None = None, **options: Any
) -> Any:
    later = k.shape[2] - q.shape[2]

    def window(queries: int, keys: int, left: int, right: int) -> Tensor:
        j = ahead(queries, keys) - later
        return ((j >= -left) | (left < 0)) & ((j <= right) | (right < 0))

    def distances(slopes: Tensor, queries: int, keys: int) -> Tensor:
        return -slopes[:, None, None] * (ahead(queries, keys) - later).abs()

    left, right = window_size or (-1, -1)
    limits = (left, 0 if is_causal else right) if is_causal or window_size else None
    return feature_core.attention(q, k, v, **options, window_size=limits, window=window, distance_bias=distances)
