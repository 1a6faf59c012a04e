"""The backward pass: right formulas, gradients that go to the wrong place, or not to all that ask."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..registry import MEMORY, mutant
from . import core
from .backward import Saved, attention, gather, log_sum_exp, logits, to_bias, to_key, to_query, to_value
from .core import INF, hide, widen

# --- masks --------------------------------------------------------------------------------------------------------


@mutant("the backward pass forgets causality", source="teaching code", killed_by="hidden_keys_receive_no_gradient")
def causality_forgotten(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def without(s: Saved) -> Tensor:
        shape = (*s.q.shape[:3], s.k.shape[2])
        visible = core.read_mask(s.mask, shape)[0]
        return torch.exp(hide((s.q @ s.k.mT) * s.scale, visible, s.bias) - log_sum_exp(logits(s)))

    return attention(q, k, v, **options, weigh=without)


@mutant(
    "the backward pass fills hidden logits with −30 instead of −∞",
    source="teaching code",
    killed_by="hidden_keys_receive_no_gradient",
)
def hidden_filled_with_minus_30(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def filled(s: Saved) -> Tensor:
        logit = logits(s)
        return torch.exp(logit.masked_fill(logit == -INF, -30.0) - log_sum_exp(logit))

    return attention(q, k, v, **options, weigh=filled)


@mutant(
    "the additive mask is forgotten when the weights are computed again",
    source="teaching code",
    killed_by="values_and_outputs_balance",
)
def bias_forgotten(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def bare(s: Saved) -> Tensor:
        logit = hide((s.q @ s.k.mT) * s.scale, s.visible, None)
        return torch.exp(logit - log_sum_exp(logit))

    return attention(q, k, v, **options, weigh=bare)


@mutant(
    "a row without keys sends NaN back: exp(−∞ − −∞)",
    source="Dao-AILab/flash-attention",
    killed_by="rows_without_keys_poison_no_gradient",
    bug="D12",
)
def empty_rows_are_nan(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def plain(s: Saved) -> Tensor:
        return torch.softmax(logits(s), -1)

    return attention(q, k, v, **options, weigh=plain, differ=lambda s, weight, raw, delta: weight * (raw - delta))


@mutant(
    "a row without keys sends its gradient to all values alike",
    source="teaching code",
    killed_by="rows_without_keys_poison_no_gradient",
)
def empty_rows_average(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def averaged(s: Saved) -> Tensor:
        logit = logits(s)
        return torch.softmax(logit.masked_fill((logit == -INF).all(-1, keepdim=True), 0.0), -1)

    return attention(q, k, v, **options, weigh=averaged)


# --- the gradient of the bias -------------------------------------------------------------------------------------


@mutant(
    "the bias receives the gradient of the first batch element alone",
    source="HKUSTDial/flash-sparse-attention#193",
    killed_by="broadcast_bias_gradient_is_summed",
    bug="E23",
)
def bias_of_the_first_batch_element(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def first(s: Saved, change: Tensor, shape: torch.Size) -> Tensor:
        shared = len(shape) < 4 or shape[0] == 1
        return to_bias(s, change[:1] if shared else change, shape)

    return attention(q, k, v, **options, to_bias=first)


@mutant(
    "the gradient of a bias without heads is averaged over the heads",
    source="HKUSTDial/flash-sparse-attention#199",
    killed_by="broadcast_bias_gradient_is_summed",
    bug="E23",
)
def bias_averaged_over_heads(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def averaged(s: Saved, change: Tensor, shape: torch.Size) -> Tensor:
        shared = len(shape) < 3 or shape[-3] == 1
        return to_bias(s, change, shape) / (max(change.shape[1], 1) if shared else 1)

    return attention(q, k, v, **options, to_bias=averaged)


@mutant(
    "the bias receives nothing where it alone asks",
    source="pytorch/pytorch#148476",
    killed_by="bias_gradient_is_inside_the_bound",
    bug="E22",
)
def bias_alone_is_zero(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def unless_alone(s: Saved, change: Tensor, shape: torch.Size) -> Tensor:
        return to_bias(s, change, shape) * float(any(s.needs[:3]))

    return attention(q, k, v, **options, to_bias=unless_alone)


@mutant("values receive nothing unless the keys ask, too", source="teaching code", killed_by="each_gradient_can_be_asked_alone")
def values_follow_keys(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def follow(s: Saved, weight: Tensor, grad: Tensor) -> Tensor:
        return to_value(s, weight, grad) * float(s.needs[1])

    return attention(q, k, v, **options, to_value=follow)


# --- groups, heads, batch -----------------------------------------------------------------------------------------


@mutant(
    "of a group, only the first query head sends a gradient",
    source="marin-community/levanter#449",
    killed_by="grouped_gradients_are_summed",
    bug="E14",
)
def first_of_the_group(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def first(x: Tensor, kv_heads: int) -> Tensor:
        return x if x.shape[1] == kv_heads else x.unflatten(1, (kv_heads, -1))[:, :, 0]

    return attention(q, k, v, **options, gather=first)


@mutant("a group is averaged instead of summed", source="teaching code", killed_by="grouped_gradients_are_summed")
def group_averaged(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def averaged(x: Tensor, kv_heads: int) -> Tensor:
        return gather(x, kv_heads) / (x.shape[1] // kv_heads if kv_heads else 1)

    return attention(q, k, v, **options, gather=averaged)


@mutant(
    "query head h sends its gradient to head h mod Hkv instead of h // G",
    source="XunhaoLai/native-sparse-attention-triton#27",
    killed_by="grouped_gradients_are_summed",
    bug="E14",
)
def group_strided(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def strided(x: Tensor, kv_heads: int) -> Tensor:
        return x if x.shape[1] == kv_heads else x.unflatten(1, (-1, kv_heads)).sum(1)

    return attention(q, k, v, **options, gather=strided)


@mutant(
    "keys and values receive the mean over the batch, as if it shared them",
    source="teaching code",
    killed_by="gradients_stay_in_their_batch_element_and_head",
)
def keys_shared_by_the_batch(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def shared(x: Tensor, name: str, s: Saved) -> Tensor:
        return x.mean(0, keepdim=True).expand(x.shape) if name in "kv" and len(x) else x

    return attention(q, k, v, **options, finish=shared)


# --- the gradient of the output -----------------------------------------------------------------------------------


@mutant(
    "the gradient of the output is read as if it were contiguous",
    source="Dao-AILab/flash-attention#355",
    killed_by="layout_of_the_output_gradient_changes_nothing",
    bug="D19",
)
def contiguous_assumed(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def in_memory_order(grad: Tensor) -> Tensor:
        strides = grad.stride()
        order = sorted(range(4), key=lambda axis: -strides[axis])
        return widen(grad.permute(order).reshape(grad.shape))

    return attention(q, k, v, **options, take=in_memory_order)


@mutant(
    "an expanded gradient of the output counts once, not at every element",
    source="pytorch/pytorch#133671",
    killed_by="layout_of_the_output_gradient_changes_nothing",
    bug="D19",
)
def expanded_counts_once(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def once(grad: Tensor) -> Tensor:
        wide = widen(grad).clone()
        for axis, (stride, size) in enumerate(zip(grad.stride(), grad.shape, strict=True)):
            if not stride and size > 1:
                wide.narrow(axis, 1, size - 1).zero_()
        return wide

    return attention(q, k, v, **options, take=once)


@mutant(
    "the gradient of the output is clipped to ±1",
    source="teaching code",
    killed_by="gradients_scale_with_the_output_gradient",
)
def output_gradient_clipped(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, take=lambda grad: widen(grad).clamp(-1.0, 1.0))


# --- state, and who asks ------------------------------------------------------------------------------------------


@mutant(
    "the buffer of the queries' gradient is not cleared between calls",
    source="teaching code",
    killed_by="same_gradients_every_time",
)
def query_buffer_not_cleared(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def accumulate(s: Saved, change: Tensor, raw: Tensor) -> Tensor:
        kept: dict[Any, Tensor] = MEMORY.setdefault("query_buffer_not_cleared", {})
        if len(kept) > 64:
            kept.clear()
        key = (s.q.shape, s.q.dtype)
        kept[key] = to_query(s, change, raw) + kept.get(key, 0.0)
        return kept[key]

    return attention(q, k, v, **options, to_query=accumulate)


@mutant(
    "the backward pass writes over what the forward pass saved: a second one finds it changed",
    source="teaching code",
    killed_by="same_gradients_every_time",
)
def saved_output_overwritten(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def in_place(s: Saved, weight: Tensor, raw: Tensor, grad: Tensor) -> Tensor:
        delta = (grad * widen(s.out)).sum(-1, keepdim=True)
        s.out.data.zero_()
        return delta

    return attention(q, k, v, **options, centre=in_place).clone()


@mutant(
    "the backward pass finds what the last forward pass left, not its own",
    source="teaching code",
    killed_by="calls_in_between_change_no_gradient",
)
def saved_for_the_last_call(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    MEMORY["saved_for_the_last_call"] = widen(q.detach()).clone()

    def left(s: Saved, change: Tensor, raw: Tensor) -> Tensor:
        last = MEMORY.get("saved_for_the_last_call", s.q)
        return to_key(replace(s, q=last) if last.shape == s.q.shape else s, change, raw)

    return attention(q, k, v, **options, to_key=left)


@mutant("keys are cut off from the graph", source="teaching code", killed_by="gradients_reach_every_input")
def keys_detached(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k.detach(), v, **options)


@mutant(
    "where a gradient is asked another path is taken, which forgets causality",
    source="pytorch/pytorch#106630",
    killed_by="asking_for_gradients_changes_no_output",
    bug="G07",
)
def training_path_forgets_causality(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    if q.requires_grad:
        options["is_causal"] = False
    return attention(q, k, v, **options)


@mutant(
    "dropout of a tenth as soon as a gradient is asked",
    source="pytorch/pytorch#124464",
    killed_by="asking_for_gradients_changes_no_output",
    bug="E12",
)
def dropout_where_gradients_are_asked(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    if not (q.requires_grad or k.requires_grad or v.requires_grad):
        return attention(q, k, v, **options)
    place = torch.arange(k.shape[2]) * 7 + torch.arange(q.shape[2])[:, None] * 3
    kept = (place % 10 != 4) / 0.9  # a fixed pattern instead of a random one
    drop = lambda weight, value, visible: core.mix(weight * kept.to(weight.dtype), value, visible)  # noqa: E731
    return core.attention(q, k, v, **options, mix=drop)
