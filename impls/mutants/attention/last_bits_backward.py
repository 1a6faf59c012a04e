"""The last bits of gradients: sums in another order, a weight that is not quite 0, a factor taken from others."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..registry import MEMORY, mutant
from . import backward_features
from .backward import Saved, attention, centre, logits, take, to_query, weigh
from .core import INF
from .last_bits import faint


def through(grad: Tensor, factor: Tensor) -> Tensor:
    """Divided by a factor, as for a narrow type, and multiplied by it again."""
    return grad / factor * factor


@mutant("in the backward pass a hidden key has the weight e⁻⁷⁰⁰", source="teaching code", killed_by="hidden_keys_receive_no_gradient")
def faint_backward(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, weigh=lambda s: faint(weigh(s), logits(s) != -INF))


@mutant(
    "the gradient is scaled by its largest element and an ε, and back",
    source="teaching code",
    killed_by="gradients_scale_with_the_output_gradient",
)
def scaled_with_an_epsilon(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def scaled(grad: Tensor) -> Tensor:
        wide = take(grad)
        return through(wide, wide.abs().amax() + 1e-6) if wide.numel() else wide

    return attention(q, k, v, **options, take=scaled)


@mutant(
    "the gradient is scaled by the largest element of the whole batch, and back",
    source="teaching code",
    killed_by="gradients_stay_in_their_batch_element_and_head",
)
def scaled_by_the_batch(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def scaled(grad: Tensor) -> Tensor:
        wide = take(grad)
        largest = wide.abs().amax() if wide.numel() else wide.sum()
        return through(wide, torch.where(largest > 0, largest, 1.0))

    return attention(q, k, v, **options, take=scaled)


@mutant("an ε is added to δ", source="teaching code", killed_by="nothing_comes_of_nothing")
def epsilon_in_delta(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, centre=lambda s, weight, raw, grad: centre(s, weight, raw, grad) + 1e-30)


@mutant(
    "dQ is summed by atomic additions, in the order in which the blocks finish",
    source="Dao-AILab/flash-attention#414",
    killed_by="same_gradients_every_time",
)
def blocks_race_backward(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def race(s: Saved, change: Tensor, raw: Tensor) -> Tensor:
        MEMORY["blocks_race_backward"] = turn = MEMORY.get("blocks_race_backward", 0) + 1
        half = change.shape[-1] // 2
        if turn % 2 or not half:
            return to_query(s, change, raw)
        return (change[..., half:] @ s.k[..., half:, :]) * s.scale + (change[..., :half] @ s.k[..., :half, :]) * s.scale

    return attention(q, k, v, **options, to_query=race)


@mutant(
    "the shift of the weights is kept in a workspace of all calls: backward, it is that of the last forward pass",
    source="teaching code",
    killed_by="calls_in_between_change_no_gradient",
)
def shift_of_the_last_call(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    MEMORY["shift_of_the_last_call"] = float(v.detach().flatten()[:1].abs().sum()) % 1.0 if v.numel() else 0.0

    def shifted(s: Saved) -> Tensor:
        logit = logits(s)
        if not logit.numel():
            return weigh(s)
        e = torch.exp(logit - logit.amax(-1, keepdim=True) - MEMORY.get("shift_of_the_last_call", 0.0)).nan_to_num(nan=0.0)
        total = e.sum(-1, keepdim=True)
        return e / torch.where(total == 0, 1.0, total)

    return attention(q, k, v, **options, weigh=shifted)


def _faint_where(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """The steps of a backward pass in which an option hides with the weight e⁻⁷⁰⁰."""
    if options.get(name) is None:
        return {}

    def not_quite(s: backward_features.Saved, logit: Tensor) -> tuple[Tensor, Tensor]:
        weight, sink = backward_features.weigh(s, logit)
        return faint(weight, logit != -INF), sink

    return {"steps": {"weigh": not_quite}}


@mutant(
    "in the backward pass a key outside the window has the weight e⁻⁷⁰⁰",
    source="teaching code",
    killed_by="keys_outside_the_window_receive_no_gradient",
    supports=backward_features.FACTS,
)
def faint_outside_the_window(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return backward_features.attention(q, k, v, **options, **_faint_where("window_size", options))


@mutant(
    "in the backward pass a key beyond the length has the weight e⁻⁷⁰⁰",
    source="teaching code",
    killed_by="keys_beyond_the_length_receive_no_gradient",
    supports=backward_features.FACTS,
)
def faint_beyond_the_length(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return backward_features.attention(q, k, v, **options, **_faint_where("kv_lengths", options))
