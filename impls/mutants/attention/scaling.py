"""The scale: which dimension it comes from, how an explicit one is read, and how exactly it is kept."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..registry import mutant
from .core import attention, default_scale, scores


@mutant(
    "default scale from the model dimension H·D instead of D",
    source="lucidrains/vit-pytorch#65",
    killed_by="default_scale_is_one_over_sqrt_dim",
    bug="D09",
)
def of_the_model(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, default_scale=lambda q: max(q.shape[1] * q.shape[-1], 1) ** -0.5)


@mutant(
    "divided by a scale that is already 1/sqrt(D)",
    source="esceptico/perceiver-io#9",
    killed_by="scaling_reduces_variance",
    bug="D10",
)
def inverted(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, default_scale=lambda q: 1 / default_scale(q))


@mutant(
    "divided by D: the square root is missing",
    source="delzac/cntkx#10",
    killed_by="default_scale_is_one_over_sqrt_dim",
    bug="D11",
)
def no_square_root(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, default_scale=lambda q: default_scale(q) ** 2)


@mutant("no scale at all", source="teaching code", killed_by="scaling_reduces_variance")
def missing(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, default_scale=lambda q: 1.0)


@mutant(
    "default scale from the head dimension padded to a multiple of 8",
    source="intel/ipex-llm#12619",
    killed_by="default_scale_is_one_over_sqrt_dim",
    bug="D12",
)
def of_the_padded_dim(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, default_scale=lambda q: max(-(-q.shape[-1] // 8) * 8, 1) ** -0.5)


@mutant(
    "scale or default: an explicit 0 is replaced",
    source="RL-Align/RL-Kernel#188",
    killed_by="zero_scale_averages",
    bug="D13",
)
def zero_means_default(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **{**options, "scale": options.get("scale") or None})


@mutant("an explicit scale is ignored", source="pytorch/pytorch#174049", killed_by="scale_folds_into_the_query", bug="D22")
def explicit_ignored(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **{**options, "scale": None})


@mutant(
    "scaled twice: the query, then the scores",
    source="teaching code",
    killed_by="output_is_inside_the_bound",
    bug="G12",
)
def twice(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, scores=lambda query, key, scale: scores(query * scale, key, scale))


@mutant(
    "an explicit scale multiplies the default one",
    source="teaching code",
    killed_by="default_scale_is_one_over_sqrt_dim",
)
def explicit_times_default(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    scale = options.get("scale")
    return attention(q, k, v, **{**options, "scale": None if scale is None else scale * default_scale(q)})


@mutant("an explicit scale is a divisor", source="teaching code", killed_by="scale_folds_into_the_query")
def explicit_divides(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    scale = options.get("scale")
    return attention(q, k, v, **{**options, "scale": 1 / scale if scale else scale})


@mutant("the sign of a negative scale is lost", source="teaching code", killed_by="output_is_inside_the_bound")
def sign_lost(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, scores=lambda query, key, scale: scores(query, key, abs(scale)))


@mutant("a negative scale means default", source="teaching code", killed_by="scale_folds_into_the_query")
def negative_means_default(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    scale = options.get("scale")
    return attention(q, k, v, **{**options, "scale": None if scale is not None and scale < 0 else scale})


@mutant(
    "a scale below 1e-6 is taken for 0 and replaced by the default",
    source="teaching code",
    killed_by="degenerate_output_is_inside_the_bound",
)
def tiny_means_default(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    scale = options.get("scale")
    return attention(q, k, v, **{**options, "scale": None if scale and abs(scale) < 1e-6 else scale})


@mutant("a scale above 1 is cut to 1", source="teaching code", killed_by="huge_scale_picks_the_maximum")
def cut_to_one(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    scale = options.get("scale")
    return attention(q, k, v, **{**options, "scale": None if scale is None else min(scale, 1.0)})


@mutant(
    "default scale from the dimension of the values",
    source="teaching code",
    killed_by="default_scale_is_one_over_sqrt_dim",
)
def of_the_value_dim(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, default_scale=lambda q: max(v.shape[-1], 1) ** -0.5)  # shows where Dv differs from D


@mutant("default scale from the number of keys", source="teaching code", killed_by="default_scale_is_one_over_sqrt_dim")
def of_the_length(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, default_scale=lambda q: max(k.shape[2], 1) ** -0.5)


@mutant(
    "default scale from the number of heads: a size read from the wrong axis",
    source="teaching code",
    killed_by="default_scale_is_one_over_sqrt_dim",
)
def of_the_heads(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, default_scale=lambda q: max(q.shape[1], 1) ** -0.5)


@mutant(
    "the square root is rounded down to an integer",
    source="teaching code",
    killed_by="default_scale_is_one_over_sqrt_dim",
)
def integer_square_root(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, default_scale=lambda q: 1 / max(math.isqrt(q.shape[-1]), 1))


@mutant(
    "default scale hard-coded to 1/8, right for D = 64",
    source="teaching code",
    killed_by="default_scale_is_one_over_sqrt_dim",
)
def one_eighth(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, default_scale=lambda q: 0.125)


@mutant("scores are divided by sqrt(D) + 1e-6", source="teaching code", killed_by="default_scale_is_one_over_sqrt_dim")
def epsilon_in_the_divisor(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, default_scale=lambda q: 1 / (1 / default_scale(q) + 1e-6))


@mutant("the scale is rounded to bfloat16", source="teaching code", killed_by="output_is_inside_the_bound")
def rounded_to_bfloat16(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def rounded(query: Tensor, key: Tensor, scale: float) -> Tensor:
        return scores(query, key, float(torch.tensor(scale, dtype=torch.bfloat16)))

    return attention(q, k, v, **options, scores=rounded)


@mutant("the scale is rounded to float32, also in float64", source="teaching code", killed_by="scaling_reduces_variance")
def rounded_to_float32(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def rounded(query: Tensor, key: Tensor, scale: float) -> Tensor:
        return scores(query, key, float(torch.tensor(scale, dtype=torch.float32)))

    return attention(q, k, v, **options, scores=rounded)


@mutant("the scale is 1 % too large", source="teaching code", killed_by="output_is_inside_the_bound")
def one_percent(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, scores=lambda query, key, scale: scores(query, key, scale * 1.01))


@mutant("the scale is 0.1 % too large, in float32 only", source="teaching code", killed_by="output_is_inside_the_bound")
def one_thousandth_in_float32(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    factor = 1.001 if q.dtype == torch.float32 else 1.0
    return attention(q, k, v, **options, scores=lambda query, key, scale: scores(query, key, scale * factor))


@mutant("with is_causal the scale is forgotten", source="teaching code", killed_by="causal_equals_triangular_mask")
def forgotten_when_causal(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **{**options, "scale": 1.0} if options.get("is_causal") else options)


@mutant("the scale is applied after the softmax", source="teaching code", killed_by="rows_sum_to_one")
def after_softmax(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    scale = options.get("scale")
    factor = default_scale(q) if scale is None else scale
    return attention(q, k, v, **{**options, "scale": 1.0}) * factor
