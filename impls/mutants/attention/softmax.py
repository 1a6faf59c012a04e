"""Weights that are no softmax over the keys: the wrong axis, the wrong maximum, the wrong function, the wrong sum."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..registry import mutant
from .core import INF, attention, hide, softmax


def guard(weight: Tensor, visible: Tensor | None) -> Tensor:
    """Zeros in rows that see no key, so that only the mistake shows."""
    return weight if visible is None else weight.masked_fill(~visible.any(-1, keepdim=True), 0.0)


def over(axis: int) -> Any:
    """A softmax over another axis; fully hidden columns become zero."""

    def wrong(logit: Tensor, visible: Tensor | None) -> Tensor:
        weight = torch.softmax(logit, axis)
        return weight if visible is None else weight.masked_fill(~visible, 0.0)

    return wrong


@mutant(
    "softmax over the queries: columns sum to one",
    source="labmlai/annotated_deep_learning_paper_implementations#146",
    killed_by="rows_sum_to_one",
    bug="D15",
)
def over_queries(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, softmax=over(-2))


@mutant(
    "softmax over the heads, the default axis of old frameworks",
    source="teaching code",
    killed_by="heads_are_independent",
)
def over_heads(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, softmax=over(1))


@mutant("softmax over the batch", source="PetrochukM/PyTorch-NLP#2", killed_by="batch_elements_are_independent", bug="D16")
def over_batch(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, softmax=over(0))


@mutant("softmax over queries and keys together", source="teaching code", killed_by="rows_sum_to_one")
def over_queries_and_keys(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def flat(logit: Tensor, visible: Tensor | None) -> Tensor:
        if not logit.numel():
            return logit
        return guard(torch.softmax(logit.flatten(-2), -1).view_as(logit).nan_to_num(), visible)

    return attention(q, k, v, **options, softmax=flat)


@mutant(
    "softmax twice: weights too flat, and hidden keys get some",
    source="teaching code",
    killed_by="huge_scale_picks_the_maximum",
    bug="G14",
)
def twice(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def again(logit: Tensor, visible: Tensor | None) -> Tensor:
        return softmax(hide(softmax(logit, visible), visible, None), visible)

    return attention(q, k, v, **options, softmax=again)


@mutant(
    "no maximum subtracted: exp overflows",
    source="mila-iqia/blocks#727",
    killed_by="finite_results_do_not_overflow",
    bug="E01",
)
def no_maximum(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def naive(logit: Tensor, visible: Tensor | None) -> Tensor:
        weight = torch.exp(logit)
        return guard(weight / weight.sum(-1, keepdim=True), visible)

    return attention(q, k, v, **options, softmax=naive)


def shifted_by(axes: tuple[int, ...]) -> Any:
    """Subtract the maximum over these axes instead of over the row: rows far below it underflow to 0 / 0."""

    def wrong(logit: Tensor, visible: Tensor | None) -> Tensor:
        if not logit.numel():
            return logit
        largest = logit.amax(axes, keepdim=True)
        weight = torch.exp(logit - largest.masked_fill(largest == -INF, 0.0))
        return guard(weight / weight.sum(-1, keepdim=True), visible)

    return wrong


@mutant(
    "the maximum of the whole tensor is subtracted: small rows underflow",
    source="teaching code",
    killed_by="batch_elements_are_independent",
    bug="E02",
)
def maximum_of_everything(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, softmax=shifted_by((0, 1, 2, 3)))


@mutant(
    "the maximum of the whole head is subtracted: small rows underflow",
    source="teaching code",
    killed_by="output_is_inside_the_bound",
)
def maximum_of_the_head(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, softmax=shifted_by((-2, -1)))


@mutant(
    "the maximum is shared by the heads: a small head underflows",
    source="teaching code",
    killed_by="heads_are_independent",
)
def maximum_over_heads(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, softmax=shifted_by((1, -1)))


@mutant(
    "the maximum is taken before masking: a huge hidden logit underflows the row",
    source="teaching code",
    killed_by="masked_garbage_changes_nothing",
)
def maximum_before_masking(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    largest: list[Tensor] = []

    def scored(logit: Tensor, visible: Tensor | None, bias: Tensor | None) -> Tensor:
        if logit.shape[-1]:
            largest.append(logit.nan_to_num().amax(-1, keepdim=True))
        return hide(logit, visible, bias)

    def late(logit: Tensor, visible: Tensor | None) -> Tensor:
        if not largest:
            return logit
        weight = torch.exp(logit - largest[0])
        return guard(weight / weight.sum(-1, keepdim=True), visible)

    return attention(q, k, v, **options, hide=scored, softmax=late)


@mutant(
    "the minimum is subtracted instead of the maximum: wide rows overflow",
    source="teaching code",
    killed_by="finite_results_do_not_overflow",
)
def minimum_subtracted(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def low(logit: Tensor, visible: Tensor | None) -> Tensor:
        if not logit.shape[-1]:
            return logit
        smallest = logit.masked_fill(logit == -INF, INF).amin(-1, keepdim=True)
        weight = torch.exp(logit - smallest.masked_fill(smallest == INF, 0.0))
        return guard(weight / weight.sum(-1, keepdim=True), visible)

    return attention(q, k, v, **options, softmax=low)


@mutant(
    "a first maximum of -50000 instead of -inf: rows below it return zeros",
    source="flashinfer-ai/flashinfer#4401",
    killed_by="output_is_inside_the_bound",
    bug="A36",
)
def finite_first_maximum(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def floored(logit: Tensor, visible: Tensor | None) -> Tensor:
        if not logit.shape[-1]:
            return logit
        weight = torch.exp(logit - logit.amax(-1, keepdim=True).clamp(min=-5e4))
        total = weight.sum(-1, keepdim=True)
        return torch.where(total == 0, 0.0, weight / total)

    return attention(q, k, v, **options, softmax=floored)


@mutant("logits are clipped to ±50 instead of shifted", source="teaching code", killed_by="huge_scale_picks_the_maximum")
def clipped_logits(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def clip(logit: Tensor, visible: Tensor | None, bias: Tensor | None) -> Tensor:
        return hide((logit if bias is None else logit + bias).clamp(-50.0, 50.0), visible, None)

    return attention(q, k, v, **options, hide=clip)


@mutant("2^x without the factor log2(e)", source="teaching code", killed_by="output_is_inside_the_bound")
def powers_of_two(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, softmax=lambda logit, visible: softmax(logit * math.log(2), visible))


@mutant(
    "log2(e) is multiplied into the scores but not into the float mask",
    source="teaching code",
    killed_by="zero_queries_read_the_additive_mask",
)
def bias_in_the_wrong_base(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def mixed(logit: Tensor, visible: Tensor | None, bias: Tensor | None) -> Tensor:
        return hide(logit, visible, None if bias is None else bias * math.log(2))

    return attention(q, k, v, **options, hide=mixed)


def of(function: Any) -> Any:
    """Weights f(logit - max) / Σ f over the visible keys."""

    def wrong(logit: Tensor, visible: Tensor | None) -> Tensor:
        if not logit.shape[-1]:
            return logit
        largest = logit.amax(-1, keepdim=True)
        weight = function(logit - largest.masked_fill(largest == -INF, 0.0)).masked_fill(logit == -INF, 0.0)
        return guard(weight / weight.sum(-1, keepdim=True), visible)

    return wrong


@mutant(
    "exp is a polynomial of degree 2: the weight grows again for small logits",
    source="teaching code",
    killed_by="larger_logit_larger_weight",
)
def polynomial(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, softmax=of(lambda x: 1 + x + x * x / 2))


@mutant(
    "exp is (1 + x/64)^64: good for small differences only",
    source="teaching code",
    killed_by="output_is_inside_the_bound",
)
def compound_interest(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, softmax=of(lambda x: (1 + x / 64).clamp(min=0.0) ** 64))


@mutant("sigmoid instead of exp, then normalised", source="teaching code", killed_by="output_is_inside_the_bound")
def sigmoid(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def squashed(logit: Tensor, visible: Tensor | None) -> Tensor:
        weight = torch.sigmoid(logit)
        return guard(weight / weight.sum(-1, keepdim=True), visible)

    return attention(q, k, v, **options, softmax=squashed)


@mutant("sigmoid of each logit, not normalised", source="teaching code", killed_by="rows_sum_to_one")
def sigmoid_alone(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, softmax=lambda logit, visible: torch.sigmoid(logit))


@mutant("not normalised: exp(x - max) is used as the weight", source="teaching code", killed_by="rows_sum_to_one")
def not_normalised(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def unnormalised(logit: Tensor, visible: Tensor | None) -> Tensor:
        if not logit.shape[-1]:
            return logit
        largest = logit.amax(-1, keepdim=True)
        return torch.exp(logit - largest.masked_fill(largest == -INF, 0.0))

    return attention(q, k, v, **options, softmax=unnormalised)


@mutant(
    "one is added to the denominator: a key of logit 0 and value 0 that nobody gave",
    source="teaching code",
    killed_by="rows_sum_to_one",
)
def off_by_one(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def quiet(logit: Tensor, visible: Tensor | None) -> Tensor:
        sink = logit.new_zeros((*logit.shape[:-1], 1))
        return torch.softmax(torch.cat([logit, sink], -1), -1)[..., :-1]

    return attention(q, k, v, **options, softmax=quiet)


def denominator_plus(epsilon: float) -> Any:
    """exp(x - max) / (Σ + ε)."""

    def wrong(logit: Tensor, visible: Tensor | None) -> Tensor:
        if not logit.shape[-1]:
            return logit
        largest = logit.amax(-1, keepdim=True)
        weight = torch.exp(logit - largest.masked_fill(largest == -INF, 0.0))
        return weight / (weight.sum(-1, keepdim=True) + epsilon)

    return wrong


@mutant("1e-6 is added to the denominator", source="teaching code", killed_by="a_single_key_gives_its_value")
def denominator_plus_1e_6(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, softmax=denominator_plus(1e-6))


@mutant(
    "1e-9 is added to the denominator: it shows in float64",
    source="teaching code",
    killed_by="constant_values_are_returned",
)
def denominator_plus_1e_9(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, softmax=denominator_plus(1e-9))


@mutant("absolute values of the logits", source="teaching code", killed_by="larger_logit_larger_weight")
def absolute_logits(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, scores=lambda query, key, scale: ((query @ key.mT) * scale).abs())


@mutant("negative logits are cut to zero", source="teaching code", killed_by="output_is_inside_the_bound")
def negative_logits_cut(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, scores=lambda query, key, scale: ((query @ key.mT) * scale).clamp(min=0.0))


@mutant(
    "weights are sharpened around their mean: some turn negative",
    source="teaching code",
    killed_by="weights_are_not_negative",
)
def sharpened(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def sharp(logit: Tensor, visible: Tensor | None) -> Tensor:
        weight = softmax(logit, visible)
        seen = torch.ones_like(logit) if visible is None else visible.expand(logit.shape).to(logit.dtype)
        return 1.25 * weight - 0.25 * weight.sum(-1, keepdim=True) * seen / seen.sum(-1, keepdim=True).clamp(min=1)

    return attention(q, k, v, **options, softmax=sharp)


@mutant("weights below 1e-3 are pruned, the rest not renormalised", source="teaching code", killed_by="rows_sum_to_one")
def pruned(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def sparse(logit: Tensor, visible: Tensor | None) -> Tensor:
        weight = softmax(logit, visible)
        return weight.masked_fill(weight < 1e-3, 0.0)

    return attention(q, k, v, **options, softmax=sparse)


@mutant("only the 8 largest logits count", source="teaching code", killed_by="duplicated_keys_change_nothing")
def eight_largest(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def top(logit: Tensor, visible: Tensor | None) -> Tensor:
        if logit.shape[-1] <= 8:
            return softmax(logit, visible)
        rank = logit.nan_to_num(neginf=-INF).argsort(stable=True, dim=-1, descending=True).argsort(-1)
        return softmax(logit.masked_fill(rank >= 8, -INF), visible)

    return attention(q, k, v, **options, softmax=top)


@mutant(
    "of equal largest logits the first takes all when the scale is large",
    source="teaching code",
    killed_by="equal_logits_share_equally",
)
def ties_go_to_the_first(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def biased(logit: Tensor, visible: Tensor | None) -> Tensor:
        if not logit.shape[-1]:
            return logit
        tied = (logit == logit.amax(-1, keepdim=True)) & (logit > -INF)
        return softmax(logit.masked_fill(tied & (tied.cumsum(-1) > 1), -INF), visible)

    return attention(q, k, v, **options, softmax=biased)


@mutant("a weight above 0.9 is rounded up to one", source="teaching code", killed_by="output_is_inside_the_bound")
def winner_takes_all(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def greedy(logit: Tensor, visible: Tensor | None) -> Tensor:
        weight = softmax(logit, visible)
        return torch.where((weight > 0.9).any(-1, keepdim=True), (weight > 0.9).to(weight.dtype), weight)

    return attention(q, k, v, **options, softmax=greedy)


@mutant("weights are normalised to length one, not to sum one", source="teaching code", killed_by="rows_sum_to_one")
def length_one(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def normalised(logit: Tensor, visible: Tensor | None) -> Tensor:
        weight = softmax(logit, visible)
        return guard(weight / weight.norm(dim=-1, keepdim=True), visible)

    return attention(q, k, v, **options, softmax=normalised)


@mutant(
    "rows are normalised by the number of keys: exp(x - max) · n / S",
    source="teaching code",
    killed_by="equal_logits_share_equally",
)
def divided_by_the_count(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def counted(logit: Tensor, visible: Tensor | None) -> Tensor:
        if not logit.shape[-1]:
            return logit
        largest = logit.amax(-1, keepdim=True)
        return torch.exp(logit - largest.masked_fill(largest == -INF, 0.0)) / logit.shape[-1]

    return attention(q, k, v, **options, softmax=counted)


@mutant("NaN becomes zero: an error in the input is hidden", source="teaching code", killed_by="nan_query_is_not_hidden")
def nan_becomes_zero(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options).nan_to_num(nan=0.0, posinf=INF, neginf=-INF)


@mutant(
    "the exponentials of odd keys come from a unit that is 2^-21 low, and are normalised afterwards",
    source="teaching code",
    killed_by="equal_logits_share_equally",
)
def odd_lanes_low(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def uneven(logit: Tensor, visible: Tensor | None) -> Tensor:
        lane = torch.arange(logit.shape[-1]) % 2
        weight = softmax(logit, visible) * (1 - lane.to(logit.dtype) * 2.0**-21)
        return weight / weight.sum(-1, keepdim=True).where(weight.sum(-1, keepdim=True) > 0, 1.0)

    return attention(q, k, v, **options, softmax=uneven)
