"""Attentions that do not even try. A case that cannot tell these and a right one apart is a wasted case."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..registry import mutant
from .core import attention


@mutant("returns zeros", source="teaching code", killed_by="constant_values_are_returned")
def zeros(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options) * 0.0


@mutant("returns ones", source="teaching code", killed_by="output_is_linear_in_values")
def ones(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return torch.ones_like(attention(q, k, v, **options))


@mutant("returns NaN", source="teaching code", killed_by="output_is_inside_the_bound")
def nan(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return torch.full_like(attention(q, k, v, **options), torch.nan)


@mutant("returns its first argument", source="teaching code", killed_by="output_is_linear_in_values")
def first_argument(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    out = attention(q, k, v, **options)
    return q.clone() if q.shape == out.shape else out  # shows where Dv = D


@mutant("the mean of all values, for every query", source="teaching code", killed_by="one_key_takes_all")
def mean_of_all_values(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, softmax=lambda logit, visible: torch.softmax(torch.zeros_like(logit), -1))


@mutant(
    "the mean of the visible values: the logits do not matter",
    source="teaching code",
    killed_by="huge_scale_picks_the_maximum",
)
def mean_of_visible_values(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def softmax(logit: Tensor, visible: Tensor | None) -> Tensor:
        seen = torch.ones_like(logit) if visible is None else visible.expand(logit.shape).to(logit.dtype)
        return seen / seen.sum(-1, keepdim=True).clamp(min=1)

    return attention(q, k, v, **options, softmax=softmax)


@mutant("returns random numbers", source="teaching code", killed_by="same_call_same_bits")
def random_numbers(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return torch.randn(attention(q, k, v, **options).shape).to(q.dtype)


@mutant("every query gets the value of the first key", source="teaching code", killed_by="permuted_keys_change_nothing")
def value_of_the_first_key(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def softmax(logit: Tensor, visible: Tensor | None) -> Tensor:
        return (torch.arange(logit.shape[-1]) == 0).to(logit.dtype).expand(logit.shape)

    return attention(q, k, v, **options, softmax=softmax)


@mutant("query i gets the value of key i", source="teaching code", killed_by="permuted_queries_permute_rows")
def value_of_its_own_position(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def softmax(logit: Tensor, visible: Tensor | None) -> Tensor:
        return torch.eye(*logit.shape[-2:], dtype=logit.dtype).expand(logit.shape)

    return attention(q, k, v, **options, softmax=softmax)


@mutant("the best key alone: a hard maximum", source="teaching code", killed_by="equal_logits_share_equally")
def hard_maximum(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def softmax(logit: Tensor, visible: Tensor | None) -> Tensor:
        if not logit.shape[-1]:
            return logit
        best = torch.zeros_like(logit).scatter(-1, logit.argmax(-1, keepdim=True), 1.0)
        return best if visible is None else best.masked_fill(~visible, 0.0)

    return attention(q, k, v, **options, softmax=softmax)


@mutant("right up to 64 scores, zeros beyond", source="teaching code", killed_by="constant_values_are_returned")
def right_when_small(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    out = attention(q, k, v, **options)
    return out if q.shape[2] * k.shape[2] <= 64 else out * 0.0


@mutant(
    "right for the first row of the first head, copied everywhere",
    source="teaching code",
    killed_by="output_is_inside_the_bound",
)
def first_row_everywhere(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    out = attention(q, k, v, **options)
    return out[:1, :1, :1].expand(out.shape).clone() if out.numel() else out
