"""The backward pass: right answers, wrong gradients, through wrong formulas."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..registry import mutant
from . import core
from .backward import Saved, attention, differ, log_sum_exp, logits, to_bias, to_key, to_query, to_value, weigh
from .core import hide, widen

# --- δ ------------------------------------------------------------------------------------------------------------


@mutant("the backward pass has no δ: dS = P · dP", source="teaching code", killed_by="bias_gradient_rows_sum_to_zero")
def missing_delta(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, differ=lambda s, weight, raw, delta: differ(s, weight, raw, 0 * delta))


@mutant("δ sums dP without the weights", source="teaching code", killed_by="key_gradients_sum_to_zero")
def delta_without_weights(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, centre=lambda s, weight, raw, grad: raw.sum(-1, keepdim=True))


@mutant("δ is that of the row before", source="teaching code", killed_by="nothing_comes_of_nothing")
def delta_of_another_row(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def shifted(s: Saved, weight: Tensor, raw: Tensor, grad: Tensor) -> Tensor:
        return (weight * raw).sum(-1, keepdim=True).roll(1, 2)

    return attention(q, k, v, **options, centre=shifted)


@mutant("δ is kept in float32 where all else is float64", source="teaching code", killed_by="gradients_are_inside_the_bound")
def delta_in_float32(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def single(s: Saved, weight: Tensor, raw: Tensor, grad: Tensor) -> Tensor:
        return (weight * raw).sum(-1, keepdim=True).float().to(raw.dtype)

    return attention(q, k, v, **options, centre=single)


@mutant(
    "δ is subtracted only where dP is positive",
    source="HKUSTDial/flash-sparse-attention#109",
    killed_by="gradients_add_up",
    bug="E17",
)
def conditional_delta(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def conditional(s: Saved, weight: Tensor, raw: Tensor, delta: Tensor) -> Tensor:
        return weight * torch.where(raw > 0, raw - delta, delta)

    return attention(q, k, v, **options, differ=conditional)


# --- dS -----------------------------------------------------------------------------------------------------------


@mutant("dP − δ is not multiplied by P", source="teaching code", killed_by="key_gradients_sum_to_zero")
def weights_left_out(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def bare(s: Saved, weight: Tensor, raw: Tensor, delta: Tensor) -> Tensor:
        return (raw - delta).masked_fill(weight == 0, 0.0)

    return attention(q, k, v, **options, differ=bare)


@mutant("keys receive dP instead of dS", source="teaching code", killed_by="key_gradients_sum_to_zero")
def raw_to_keys(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, to_key=lambda s, change, raw: to_key(s, raw, raw))


@mutant(
    "weights are clipped where their logit is large: right on normal inputs",
    source="NVIDIA/TransformerEngine#3216",
    killed_by="gradients_are_inside_the_bound",
    bug="E15",
)
def wrong_on_large_logits(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def clipped(s: Saved) -> Tensor:
        logit = logits(s)
        return torch.exp(logit.clamp(max=8.0) - log_sum_exp(logit))

    return attention(q, k, v, **options, weigh=clipped)


# --- the scale ----------------------------------------------------------------------------------------------------


@mutant("the gradient of the keys is scaled twice", source="teaching code", killed_by="queries_and_keys_balance")
def keys_scaled_twice(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, to_key=lambda s, change, raw: to_key(s, change, raw) * s.scale)


@mutant("the gradient of the keys is not scaled", source="teaching code", killed_by="queries_and_keys_balance")
def keys_not_scaled(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, to_key=lambda s, change, raw: change.mT @ s.q)


@mutant("the gradient of the queries is not scaled", source="teaching code", killed_by="queries_and_keys_balance")
def queries_not_scaled(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, to_query=lambda s, change, raw: change @ s.k)


@mutant(
    "the backward pass scales by 1/sqrt(D) whatever scale was given",
    source="teaching code",
    killed_by="gradients_are_inside_the_bound",
)
def explicit_scale_forgotten(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    factor = core.default_scale(q)
    return attention(
        q,
        k,
        v,
        **options,
        to_query=lambda s, change, raw: (change @ s.k) * factor,
        to_key=lambda s, change, raw: (change.mT @ s.q) * factor,
    )


@mutant(
    "logits are computed again without the scale, the log-sum-exp has it",
    source="teaching code",
    killed_by="value_gradient_reads_the_weights",
)
def recomputed_without_scale(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def unscaled(s: Saved) -> Tensor:
        return torch.exp(hide(s.q @ s.k.mT, s.visible, s.bias) - log_sum_exp(logits(s)))

    return attention(q, k, v, **options, weigh=unscaled)


@mutant(
    "the gradient of the bias is scaled like that of the logits' product",
    source="teaching code",
    killed_by="bias_gradient_is_inside_the_bound",
)
def bias_scaled(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, to_bias=lambda s, change, shape: to_bias(s, change, shape) * s.scale)


# --- values -------------------------------------------------------------------------------------------------------


@mutant(
    "values receive the unnormalised weights exp(s − max)",
    source="teaching code",
    killed_by="value_gradients_sum_to_the_output_gradient",
)
def unnormalised_values(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def unnormalised(s: Saved, weight: Tensor, grad: Tensor) -> Tensor:
        top = weight.amax(-1, keepdim=True) if weight.shape[-1] else 1.0
        return to_value(s, (weight / top).nan_to_num(), grad)

    return attention(q, k, v, **options, to_value=unnormalised)


@mutant("values receive P dO instead of Pᵀ dO where L = S", source="teaching code", killed_by="values_and_outputs_balance")
def weights_not_transposed(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def straight(s: Saved, weight: Tensor, grad: Tensor) -> Tensor:
        return weight @ grad if weight.shape[-1] == weight.shape[-2] else to_value(s, weight, grad)

    return attention(q, k, v, **options, to_value=straight)


@mutant(
    "as many features of the values receive a gradient as the keys have",
    source="XunhaoLai/native-sparse-attention-triton#27",
    killed_by="values_and_outputs_balance",
    bug="E30",
)
def value_features_beyond_dim(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def cut(s: Saved, weight: Tensor, grad: Tensor) -> Tensor:
        return to_value(s, weight, grad * (torch.arange(grad.shape[-1]) < s.q.shape[-1]))

    return attention(q, k, v, **options, to_value=cut)


@mutant(
    "rows beyond a multiple of 16 send nothing back: the last tile is skipped",
    source="pytorch/pytorch#153799",
    killed_by="value_gradients_sum_to_the_output_gradient",
    bug="C21",
)
def last_tile_of_rows_skipped(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def shorter(grad: Tensor) -> Tensor:
        rows = grad.shape[2]
        kept = rows // 16 * 16 or rows
        return widen(grad) * (torch.arange(rows) < kept)[:, None]

    return attention(q, k, v, **options, take=shorter)


# --- precision ----------------------------------------------------------------------------------------------------


@mutant(
    "keys collect their gradient in the half type, row by row",
    source="Dao-AILab/flash-attention",
    killed_by="gradients_are_inside_the_bound",
)
def keys_collect_in_half(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def collect(s: Saved, change: Tensor, raw: Tensor) -> Tensor:
        if s.dtype not in (torch.float16, torch.bfloat16):
            return to_key(s, change, raw)
        total = torch.zeros(s.k.shape, dtype=s.dtype)
        for i in range(s.q.shape[2]):
            total = (total + change[:, :, i, :, None] * s.q[:, :, i, None, :] * s.scale).to(s.dtype)
        return total

    return attention(q, k, v, **options, to_key=collect)


@mutant(
    "weights are rounded to bfloat16 before they meet the gradient of the output",
    source="teaching code",
    killed_by="value_gradient_reads_the_weights",
)
def weights_in_bfloat16(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, to_value=lambda s, weight, grad: to_value(s, weight.bfloat16().to(weight.dtype), grad))


@mutant("the last key is left out of the queries' gradient", source="teaching code", killed_by="queries_and_keys_balance")
def last_key_left_out(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def shorter(s: Saved, change: Tensor, raw: Tensor) -> Tensor:
        return to_query(s, change * (torch.arange(change.shape[-1]) < max(change.shape[-1] - 1, 1)), raw)

    return attention(q, k, v, **options, to_query=shorter)


@mutant(
    "keys beyond a tile of 16 are weighed with the log-sum-exp of the first tile",
    source="openxla/tokamax#316",
    killed_by="values_and_outputs_balance",
    bug="C22",
)
def lse_of_the_first_tile(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def by_tiles(s: Saved) -> Tensor:
        logit = logits(s)
        first = log_sum_exp(logit[..., :16])
        return torch.where(torch.arange(logit.shape[-1]) < 16, weigh(s), torch.exp(logit - first))

    return attention(q, k, v, **options, weigh=by_tiles)
