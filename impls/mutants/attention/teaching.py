"""Mistakes of courses, blog posts and reading-club code that run, train, and are wrong."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..registry import mutant
from .core import INF, attention, both, frontier, hide, mix, read_mask, scores, softmax


@mutant(
    "the mask is written before the scale is applied: -1e9 · 0 = 0",
    source="teaching code",
    killed_by="output_is_inside_the_bound",
)
def mask_before_scale(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    scale = options.get("scale")
    factor = q.shape[-1] ** -0.5 if scale is None and q.shape[-1] else 1.0 if scale is None else scale

    def early(logit: Tensor, visible: Tensor | None, bias: Tensor | None) -> Tensor:
        logit = logit if visible is None else logit.masked_fill(~visible, -1e9)
        return hide(logit * factor, None, bias)  # shows where the scale is small

    plain = {**options, "scale": 1.0}
    return attention(q, k, v, **plain, hide=early)


@mutant(
    "tokens are mixed by a fixed matrix before attention: the past receives the future",
    source="teaching code",
    killed_by="future_tokens_are_ignored",
)
def keys_mixed_along_the_length(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k + (0.125 * (k.roll(-1, 2) - k)).to(k.dtype), v, **options)


@mutant(
    "cosine similarity: query and key are normalised first",
    source="teaching code",
    killed_by="larger_logit_larger_weight",
)
def cosine_similarity(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def cosine(query: Tensor, key: Tensor, scale: float) -> Tensor:
        return scores(torch.nn.functional.normalize(query, dim=-1), torch.nn.functional.normalize(key, dim=-1), scale)

    return attention(q, k, v, **options, scores=cosine)


@mutant("keys alone are normalised", source="teaching code", killed_by="powers_of_two_move_between_query_and_key")
def keys_normalised(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def cosine(query: Tensor, key: Tensor, scale: float) -> Tensor:
        return scores(query, torch.nn.functional.normalize(key, dim=-1), scale)

    return attention(q, k, v, **options, scores=cosine)


@mutant(
    "minus the squared distance instead of the dot product",
    source="teaching code",
    killed_by="powers_of_two_move_between_query_and_key",
)
def squared_distance(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def distance(query: Tensor, key: Tensor, scale: float) -> Tensor:
        return scores(query, key, scale) - (key * key).sum(-1)[..., None, :] * (0.5 * scale)

    return attention(q, k, v, **options, scores=distance)


@mutant(
    "the query is compared with itself where the shapes agree: Q Qᵀ",
    source="teaching code",
    killed_by="prefix_of_output_is_output_of_prefix",
)
def query_against_query(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, q if q.shape == k.shape else k, v, **options)


@mutant("K Qᵀ instead of Q Kᵀ where L = S", source="teaching code", killed_by="permuted_queries_permute_rows")
def scores_transposed(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def turned(query: Tensor, key: Tensor, scale: float) -> Tensor:
        return scores(key, query, scale) if query.shape[-2] == key.shape[-2] else scores(query, key, scale)

    return attention(q, k, v, **options, scores=turned)


@mutant(
    "the weights are transposed before they meet the values where L = S",
    source="teaching code",
    killed_by="constant_values_are_returned",
)
def weights_transposed(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def turned(weight: Tensor, value: Tensor, visible: Tensor | None) -> Tensor:
        return weight.mT @ value if weight.shape[-1] == weight.shape[-2] else mix(weight, value, visible)

    return attention(q, k, v, **options, mix=turned)


@mutant("near keys get a bonus that nobody asked for", source="teaching code", killed_by="permuted_keys_change_nothing")
def default_locality(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def near(query: Tensor, key: Tensor, scale: float) -> Tensor:
        distance = (torch.arange(query.shape[-2])[:, None] - torch.arange(key.shape[-2])).abs()
        return scores(query, key, scale) - 0.01 * distance.to(query.dtype)

    return attention(q, k, v, **options, scores=near)


@mutant(
    "query and key are rotated by their position without being asked",
    source="teaching code",
    killed_by="permuted_queries_permute_rows",
)
def default_rotation(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def rotate(x: Tensor) -> Tensor:
        half = x.shape[-1] // 2
        angle = 0.1 * torch.arange(x.shape[-2], dtype=x.dtype)[:, None]
        a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
        return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos(), rest], -1)

    return attention(q, k, v, **options, scores=lambda query, key, scale: scores(rotate(query), rotate(key), scale))


@mutant(
    "keys farther than 32 are hidden: a local window by default",
    source="teaching code",
    killed_by="permuted_keys_change_nothing",
)
def default_window(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def near(visible: Tensor | None, causal: Tensor | None) -> Tensor | None:
        window = frontier(q.shape[2], k.shape[2], 32) & ~frontier(q.shape[2], k.shape[2], -33)
        return both(both(visible, causal), window)

    return attention(q, k, v, **options, both=near)


@mutant("a token does not attend to itself where L = S", source="teaching code", killed_by="prefix_of_output_is_output_of_prefix")
def not_to_itself(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    if q.shape[2] != k.shape[2] or q.shape[2] < 2:
        return attention(q, k, v, **options)
    other = ~torch.eye(q.shape[2], dtype=torch.bool)
    return attention(q, k, v, **options, both=lambda visible, causal: both(both(visible, causal), other))


@mutant(
    "logits are capped at 30 by tanh without being asked",
    source="teaching code",
    killed_by="huge_scale_picks_the_maximum",
)
def default_softcap(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, scores=lambda query, key, scale: 30 * torch.tanh(scores(query, key, scale) / 30))


@mutant(
    "the hidden are marked by 0 · -inf: every visible logit becomes NaN",
    source="teaching code",
    killed_by="neutral_mask_changes_nothing",
)
def zero_times_infinity(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def add(logit: Tensor, visible: Tensor | None, bias: Tensor | None) -> Tensor:
        logit = logit if bias is None else logit + bias
        return logit if visible is None else logit + (~visible).to(logit.dtype) * -INF

    return attention(q, k, v, **options, hide=add)


@mutant("causal scores are set to 0, not to -inf", source="teaching code", killed_by="future_tokens_are_ignored")
def future_scores_zero(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    causal = options.pop("is_causal", False)

    def lower(query: Tensor, key: Tensor, scale: float) -> Tensor:
        return scores(query, key, scale).tril() if causal else scores(query, key, scale)

    return attention(q, k, v, **options, scores=lower)


@mutant("whatever score equals 0 is taken for masked", source="teaching code", killed_by="zero_scale_averages")
def zero_score_is_masked(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def guess(logit: Tensor, visible: Tensor | None, bias: Tensor | None) -> Tensor:
        if visible is None:
            return hide(logit, None, bias)
        hidden = logit.masked_fill(~visible, 0.0) == 0
        return hide(logit.masked_fill(hidden, -INF), visible, bias)  # shows with a mask, and logits of exactly 0

    return attention(q, k, v, **options, hide=guess, softmax=lambda logit, visible: torch.softmax(logit, -1).nan_to_num(nan=0.0))


@mutant("hidden logits are filled with -100", source="teaching code", killed_by="masked_garbage_changes_nothing")
def hundred_filled(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def fill(logit: Tensor, visible: Tensor | None, bias: Tensor | None) -> Tensor:
        logit = logit if bias is None else logit + bias
        return logit if visible is None else logit.masked_fill(~visible, -100.0)

    return attention(q, k, v, **options, hide=fill)


@mutant("the largest weighted value instead of their sum", source="teaching code", killed_by="constant_values_are_returned")
def maximum_pooling(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def largest(weight: Tensor, value: Tensor, visible: Tensor | None) -> Tensor:
        if not weight.shape[-1]:
            return mix(weight, value, visible)
        return torch.stack([weight[..., j : j + 1] * value[..., j : j + 1, :] for j in range(weight.shape[-1])]).amax(0)

    return attention(q, k, v, **options, mix=largest)


@mutant(
    "keys are centred by their mean, hidden keys included: right in exact arithmetic, but hidden keys count",
    source="teaching code",
    killed_by="masked_garbage_changes_nothing",
)
def keys_centred(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def centred(query: Tensor, key: Tensor, scale: float) -> Tensor:
        return scores(query, key - key.mean(-2, keepdim=True) if key.shape[-2] else key, scale)

    return attention(q, k, v, **options, scores=centred)


@mutant(
    "values are centred by the mean of all, which is added back: rows without keys return it",
    source="teaching code",
    killed_by="rows_without_keys_follow_the_convention",
)
def values_centred(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def centred(weight: Tensor, value: Tensor, visible: Tensor | None) -> Tensor:
        mean = value.mean(-2, keepdim=True) if value.shape[-2] else 0.0
        return mix(weight, value - mean, visible) + mean

    return attention(q, k, v, **options, mix=centred)


@mutant(
    "the float mask multiplies the weights as exp(mask) after the softmax, without a new sum",
    source="teaching code",
    killed_by="shifted_bias_changes_nothing",
)
def bias_after_softmax(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    bias = read_mask(options.get("attn_mask"), ())[1]

    def late(logit: Tensor, visible: Tensor | None) -> Tensor:
        return softmax(logit, visible) * (1.0 if bias is None else bias.clamp(max=50.0).exp())

    return attention(q, k, v, **options, hide=lambda logit, visible, _: hide(logit, visible, None), softmax=late)


@mutant("weights are divided by ln of the number of keys plus one", source="teaching code", killed_by="rows_sum_to_one")
def divided_by_log_length(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    factor = max(math.log(k.shape[2] + 1), 0.5)
    return attention(q, k, v, **options, softmax=lambda logit, visible: softmax(logit, visible) / factor)
