"""Biases: errors no larger than those of a correct attention, but all to the same side."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..registry import mutant
from .core import attention, softmax
from .numerics import truncated


@mutant(
    "powers of 2.71828 instead of e: every logit is too small by 7e-7 of itself",
    source="teaching code",
    killed_by="small_weights_show_the_scale",
    supports={"dtypes": ["float32"]},
)
def short_e(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def power(logit: Tensor, visible: Tensor | None) -> Tensor:
        return softmax(logit * torch.tensor(2.71828, dtype=torch.float64).log(), visible)

    return attention(q, k, v, **options, softmax=power)


@mutant(
    "the second of two weights loses its last two bits toward zero, before the row is normalised",
    source="teaching code",
    killed_by="even_and_odd_keys_err_alike",
    supports={"dtypes": ["float32"]},
)
def odd_lane_truncated(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def uneven(logit: Tensor, visible: Tensor | None) -> Tensor:
        weight = softmax(logit, visible)
        weight = torch.where(torch.arange(weight.shape[-1]) % 2 == 1, truncated(weight, 2), weight)
        total = weight.sum(-1, keepdim=True)
        return weight / torch.where(total == 0, 1.0, total)

    return attention(q, k, v, **options, softmax=uneven)
