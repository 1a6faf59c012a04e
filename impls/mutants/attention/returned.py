"""Weights that come back beside a right output, and are not those that it was made with."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..registry import mutant
from .core import default_scale
from .feature_core import WEIGHTS, attention


@mutant(
    "the weights that come back are those before the mask",
    source="teaching code",
    killed_by="returned_weights_are_those_applied",
    supports=WEIGHTS,
)
def before_the_mask(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
    return attention(q, k, v, **options, returned=lambda weight, logit, shown: torch.softmax(shown, -1))


@mutant(
    "logits come back where weights are asked for",
    source="teaching code",
    killed_by="returned_weights_are_those_applied",
    supports=WEIGHTS,
)
def logits(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
    return attention(q, k, v, **options, returned=lambda weight, logit, shown: logit)


@mutant(
    "the weights that come back are computed anew, without the scale",
    source="teaching code",
    killed_by="returned_weights_are_those_applied",
    supports=WEIGHTS,
)
def without_the_scale(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
    scale = default_scale(q) if options.get("scale") is None else options["scale"]
    return attention(q, k, v, **options, returned=lambda weight, logit, shown: torch.softmax(logit / (scale or 1.0), -1))


@mutant(
    "the mean of the weights over the heads comes back for each of them",
    source="teaching code",
    killed_by="returned_weights_are_those_applied",
    supports=WEIGHTS,
)
def mean_over_heads(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
    return attention(q, k, v, **options, returned=lambda weight, logit, shown: weight.mean(1, keepdim=True).expand_as(weight))
