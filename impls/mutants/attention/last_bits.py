"""The last bits: attentions within every bound that are not quite functions of what they should be functions of.

What must not matter chooses the order of a sum, the shift of a softmax, or a kernel. Nobody sees it in a tolerance; two runs
that should be the same, of one request alone and among others, part after some tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..registry import MEMORY, Function, mutant
from . import core, feature_core
from .blocked import split_kv
from .core import INF, attention, default_scale, hide, mix, scores
from .feature_core import FACTS
from .state import writable

NEAR = 4.0  # a maximum so far above that of a row is as good a shift: e⁻⁴ loses no digits that count


def shared(logit: Tensor, visible: Tensor | None, other: Tensor) -> Tensor:
    """The softmax, shifted by another maximum (broadcasts to B, H, L, 1) where that lies a little above that of the row."""
    own = logit.amax(-1, keepdim=True)
    shift = torch.where((other > own) & (other < own + NEAR), other, own)
    e = torch.exp(logit - shift)
    weight = e / e.sum(-1, keepdim=True)
    return weight if visible is None else weight.masked_fill(~visible.any(-1, keepdim=True), 0.0)


def sharing(axis: int) -> Callable[[Tensor, Tensor | None], Tensor]:
    """A softmax whose rows share their maximum along an axis."""

    def softmax(logit: Tensor, visible: Tensor | None) -> Tensor:
        if not logit.numel():
            return core.softmax(logit, visible)
        return shared(logit, visible, logit.amax(-1, keepdim=True).amax(axis, keepdim=True))

    return softmax


def restored(x: Tensor, factor: float) -> None:
    """x multiplied by a factor in place, and divided by it."""
    if writable(x) and x.is_floating_point():
        x.mul_(factor).div_(factor)


def last_bit(contract: str, mistake: str, killed_by: str, source: str = "teaching code") -> Callable[[Function], Function]:
    """Register a mutant of another contract."""
    return mutant(mistake, source=source, killed_by=killed_by, contract=contract)


def through(x: Tensor, factor: Tensor) -> Tensor:
    """Divided by a factor, as for a narrow type, and multiplied by it again; as it is where the factor is 0 or no number."""
    return torch.where((factor > 0) & factor.isfinite(), x / factor * factor, x)


def largest(x: Tensor) -> Tensor:
    """max |x|, 0 of nothing."""
    return x.detach().abs().amax() if x.numel() else x.detach().sum()


# --- the shift of the softmax -------------------------------------------------------------------------------------


@mutant(
    "the queries of a tile share one running maximum, later ones among them", source="teaching code", killed_by="future_tokens_are_ignored"
)
def tile_shares_its_maximum(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, softmax=sharing(-2))


@mutant("all heads share one running maximum", source="teaching code", killed_by="heads_are_independent")
def heads_share_their_maximum(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, softmax=sharing(1))


@mutant("the whole batch shares one running maximum", source="teaching code", killed_by="batch_elements_are_independent")
def batch_shares_its_maximum(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, softmax=sharing(0))


@mutant(
    "the maximum is taken before the mask: hidden keys shift the softmax",
    source="huggingface/transformers#29029",
    killed_by="masked_garbage_changes_nothing",
)
def maximum_before_the_mask(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    raw: list[Tensor] = []

    def keep(logit: Tensor, visible: Tensor | None, bias: Tensor | None) -> Tensor:
        raw.append(logit)
        return hide(logit, visible, bias)

    def shifted(logit: Tensor, visible: Tensor | None) -> Tensor:
        if not logit.numel():
            return core.softmax(logit, visible)
        return shared(logit, visible, raw[0].amax(-1, keepdim=True))

    return attention(q, k, v, **options, hide=keep, softmax=shifted)


# --- the kernel, and the order of its sums ------------------------------------------------------------------------


@mutant(
    "where any value of the batch is no number all rows are summed by another, slower loop",
    source="teaching code",
    killed_by="masked_nan_is_contained",
)
def slow_path_for_nan(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def careful(weight: Tensor, value: Tensor, visible: Tensor | None) -> Tensor:
        if visible is None or value.isfinite().all():
            return mix(weight, value, visible)
        kept = mix(weight.flip(-1), value.flip(-2), visible.expand(weight.shape).flip(-1))
        terms = (weight.unsqueeze(-1) * value.unsqueeze(-3)).where(visible.expand(weight.shape).unsqueeze(-1), 0.0)
        return torch.where(kept.isfinite(), terms.flip(-2).cumsum(-2)[..., -1, :] + 0.0, kept)

    return attention(q, k, v, **options, mix=careful)


@mutant(
    "the keys are split by what the busiest head of the batch has to do",
    source="sgl-project/sgl-flash-attn#43",
    killed_by="masks_stay_with_their_batch_and_head",
)
def split_by_the_busiest(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def reduce(logit: Tensor, value: Tensor, visible: Tensor | None) -> Tensor:
        busiest = logit.shape[-1] if visible is None or not visible.numel() else int(visible.sum(-1).max())
        return split_kv(logit, value, visible, block=max(1, -(-busiest // 2)))

    return attention(q, k, v, **options, reduce=reduce)


@mutant("partial sums are added in the order in which the blocks finish", source="ROCm/triton#953", killed_by="same_call_same_bits")
def blocks_race(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    MEMORY["blocks_race"] = turn = MEMORY.get("blocks_race", 0) + 1

    def race(weight: Tensor, value: Tensor, visible: Tensor | None) -> Tensor:
        if turn % 3:
            return mix(weight, value, visible)
        return mix(weight.flip(-1), value.flip(-2), None if visible is None else visible.expand(weight.shape).flip(-1))

    return attention(q, k, v, **options, mix=race)


@mutant(
    "after a NaN the next calls are left to a safer kernel, with other sums",
    source="teaching code",
    killed_by="calls_between_change_nothing",
)
def safer_after_a_nan(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    left = MEMORY.get("safer_after_a_nan", 0)
    MEMORY["safer_after_a_nan"] = 6 if q.isnan().any() or v.isnan().any() else max(left - 1, 0)
    return attention(q, k, v, **options, softmax=sharing(-2) if left else core.softmax)


@mutant(
    "positive and negative parts of the queries are multiplied apart, as unsigned units want them",
    source="teaching code",
    killed_by="flipped_feature_signs_change_nothing",
)
def unsigned_parts(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def parts(query: Tensor, key: Tensor, scale: float) -> Tensor:
        return ((query.clamp(min=0) @ key.mT) - ((-query).clamp(min=0) @ key.mT)) * scale

    return attention(q, k, v, **options, scores=parts)


# --- small numbers against division by zero -----------------------------------------------------------------------


@mutant("an ε against 0 / 0 stands in the numerator, too", source="teaching code", killed_by="flipped_value_signs_flip_the_output")
def epsilon_above_and_below(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def added(weight: Tensor, value: Tensor, visible: Tensor | None) -> Tensor:
        return mix(weight, value, visible) + 2.0**-54

    return attention(q, k, v, **options, mix=added)


@mutant(
    "queries are normalised with an ε, and multiplied by their length again",
    source="teaching code",
    killed_by="powers_of_two_move_between_query_and_key",
)
def normalised_and_back(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def cosine(query: Tensor, key: Tensor, scale: float) -> Tensor:
        length = query.abs().amax(-1, keepdim=True) + 1e-12
        return scores(query / length, key, scale) * length

    return attention(q, k, v, **options, scores=cosine) if q.shape[-1] else attention(q, k, v, **options)


@mutant(
    "s − max is one fused operation on a rounded max: the largest weight is not 1",
    source="teaching code",
    killed_by="a_single_key_gives_its_value",
)
def fused_subtraction(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def fused(logit: Tensor, value: Tensor, visible: Tensor | None) -> Tensor:
        if not logit.numel():
            return mix(core.softmax(logit, visible), value, visible)
        lost = logit * torch.finfo(logit.dtype).eps  # as much as the product may lose that the fused one keeps
        e = torch.exp(logit - logit.amax(-1, keepdim=True) + lost)
        e = e if visible is None else e.masked_fill(~visible, 0.0).nan_to_num(nan=0.0)
        total = e.sum(-1, keepdim=True)
        return mix(e, value, visible) * (1 / torch.where(total == 0, 1.0, total))

    return attention(q, k, v, **options, reduce=fused)


# --- arguments ----------------------------------------------------------------------------------------------------


@mutant(
    "the query is scaled in place, and divided by the scale again when all is done",
    source="teaching code",
    killed_by="inputs_are_unchanged",
)
def query_scaled_and_restored(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    scale = options.get("scale")
    out = attention(q, k, v, **options)
    restored(q, (default_scale(q) if scale is None else scale) or 1.0)
    return out


# --- features -----------------------------------------------------------------------------------------------------


def faint(weight: Tensor, seen: Tensor | None) -> Tensor:
    """Weights with e⁻⁷⁰⁰ in place of 0 where a key is hidden from a row that sees others: 0 in float32, not in float64."""
    if seen is None:
        return weight
    return torch.where(seen | (weight.sum(-1, keepdim=True) == 0), weight, torch.exp(torch.tensor(-700.0, dtype=weight.dtype)))


@mutant(
    "under a softcap a hidden key is at −700, not at −∞: its weight is 0 in float32 alone",
    source="teaching code",
    killed_by="softcap_leaves_the_mask_alone",
    supports=FACTS,
)
def hidden_at_minus_700(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
    def not_quite(logit: Tensor, sinks: Tensor | None) -> Tensor:
        weight = feature_core.normalise(logit, sinks)
        return weight if options.get("softcap") is None else faint(weight, logit != -INF)

    return feature_core.attention(q, k, v, **options, normalise=not_quite)


def _maximum_over_all(q: Tensor, k: Tensor, options: dict[str, Any], name: str) -> dict[str, Any]:
    """The step of a softmax whose shift is the maximum over all keys, also over those that an option hides; without it, nothing."""
    if options.get(name) is None or options.get("sinks") is not None or not (q.numel() and k.numel()):
        return {}
    scale = default_scale(q) if options.get("scale") is None else options["scale"]
    raw = core.widen(q) @ core.repeat_heads(core.widen(k), q.shape[1]).mT * scale

    def shifted(logit: Tensor, sinks: Tensor | None) -> Tensor:
        return shared(logit, logit != -INF, raw.amax(-1, keepdim=True))

    return {"normalise": shifted}


@mutant(
    "the maximum is taken over whole tiles, also over what the window hides of them",
    source="teaching code",
    killed_by="keys_outside_the_window_are_ignored",
    supports=FACTS,
)
def maximum_beyond_the_window(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
    return feature_core.attention(q, k, v, **options, **_maximum_over_all(q, k, options, "window_size"))


@mutant(
    "the maximum is taken over whole pages, also beyond the length of a sequence",
    source="teaching code",
    killed_by="keys_beyond_the_length_are_ignored",
    supports=FACTS,
)
def maximum_beyond_the_length(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
    return feature_core.attention(q, k, v, **options, **_maximum_over_all(q, k, options, "kv_lengths"))
