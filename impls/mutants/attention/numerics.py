"""Precision: what is rounded to what, where it overflows, and what is approximated. Declared: wide in half precision, else the input's type."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..registry import mutant
from .core import INF, attention, default_scale, hide, mix, read_mask, scores, softmax

HALVES = (torch.float16, torch.bfloat16)


def through(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Round to `dtype` and come back."""
    return x.to(dtype).to(x.dtype)


def truncated(x: Tensor, bits: int) -> Tensor:
    """Drop the last `bits` of a float32 mantissa: rounding toward zero."""
    return ((x.view(torch.int32) >> bits) << bits).view(torch.float32) if x.dtype == torch.float32 else x


@mutant(
    "scores are stored in half precision before the softmax",
    source="pytorch/pytorch#163588",
    killed_by="output_is_inside_the_bound",
    bug="E05",
)
def scores_in_half(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, scores=lambda query, key, scale: through(scores(query, key, scale), q.dtype))


@mutant(
    "weights are rounded to the input's type before they meet the values",
    source="teaching code",
    killed_by="output_is_inside_the_bound",
)
def weights_in_half(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, softmax=lambda logit, visible: through(softmax(logit, visible), q.dtype))


@mutant("weights are rounded to bfloat16, whatever the input", source="teaching code", killed_by="rows_sum_to_one")
def weights_in_bfloat16(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, softmax=lambda logit, visible: through(softmax(logit, visible), torch.bfloat16))


@mutant("weights are rounded to an 8-bit float (e4m3)", source="teaching code", killed_by="rows_sum_to_one")
def weights_in_e4m3(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, softmax=lambda logit, visible: through(softmax(logit, visible), torch.float8_e4m3fn))


@mutant(
    "weights lose their last 8 bits toward zero: every row sums to a little less than one",
    source="teaching code",
    killed_by="degenerate_output_is_inside_the_bound",
)
def weights_truncated(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, softmax=lambda logit, visible: truncated(softmax(logit, visible), 8))


@mutant("the output is rounded toward zero, in half precision", source="teaching code", killed_by="rounding_is_not_biased")
def output_truncated(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def toward_zero(out: Tensor, dtype: torch.dtype) -> Tensor:
        near = out.to(dtype)
        beyond = near.to(out.dtype).abs() > out.abs()
        return (
            torch.where(beyond, torch.nextafter(near.float(), near.float() * 0).to(dtype), near)
            if dtype not in HALVES
            else (torch.where(beyond, (near.view(torch.int16) - beyond.to(torch.int16)).view(dtype), near))
        )

    return attention(q, k, v, **options, narrow=toward_zero)


@mutant(
    "the sum of weight · value is accumulated in half precision, key by key",
    source="teaching code",
    killed_by="output_is_inside_the_bound",
    bug="E28",
)
def accumulated_in_half(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def serial(weight: Tensor, value: Tensor, visible: Tensor | None) -> Tensor:
        if q.dtype not in HALVES or not value.isfinite().all():
            return mix(weight, value, visible)
        out = torch.zeros((*weight.shape[:-1], value.shape[-1]), dtype=q.dtype)
        for j in range(weight.shape[-1]):
            out = (out.float() + weight[..., j : j + 1] * value[..., j : j + 1, :]).to(q.dtype)
        return out.to(value.dtype)

    return attention(q, k, v, **options, mix=serial)


@mutant(
    "q · k is accumulated in half precision, feature by feature",
    source="teaching code",
    killed_by="output_is_inside_the_bound",
)
def products_accumulated_in_half(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def serial(query: Tensor, key: Tensor, scale: float) -> Tensor:
        if q.dtype not in HALVES:
            return scores(query, key, scale)
        total = torch.zeros((*query.shape[:-1], key.shape[-2]), dtype=q.dtype)
        for d in range(query.shape[-1]):
            total = (total.float() + query[..., d : d + 1] * key[..., d : d + 1].mT).to(q.dtype)
        return total.to(query.dtype) * scale

    return attention(q, k, v, **options, scores=serial)


@mutant(
    "q · k is stored in float16 before it is scaled: it overflows beyond 65504",
    source="google/flax#982",
    killed_by="finite_results_do_not_overflow",
    bug="A32",
)
def products_overflow_half(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def stored(query: Tensor, key: Tensor, scale: float) -> Tensor:
        product = query @ key.mT
        overflow = product.to(torch.float16).isinf() if q.dtype == torch.float16 else torch.zeros((), dtype=torch.bool)
        return torch.where(overflow, product.sign() * INF, product) * scale

    return attention(q, k, v, **options, scores=stored)


@mutant(
    "exp(x - max) · V is summed in float16 and normalised at the end: the sum overflows",
    source="teaching code",
    killed_by="finite_results_do_not_overflow",
)
def unnormalised_sum_overflows(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def late(logit: Tensor, value: Tensor, visible: Tensor | None) -> Tensor:
        weight = softmax(logit, visible)
        total = 1 / weight.amax(-1, keepdim=True) if logit.shape[-1] else weight.new_ones((*weight.shape[:-1], 1))
        out = mix(weight, value, visible)
        return torch.where((out * total).abs() > 65504, torch.sign(out) * INF, out) if q.dtype == torch.float16 else out

    return attention(q, k, v, **options, reduce=late)


@mutant("float64 is computed in float32", source="teaching code", killed_by="output_is_inside_the_bound")
def float64_in_float32(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def read(attn_mask: Tensor | None, shape: tuple[int, ...]) -> tuple[Tensor | None, Tensor | None]:
        visible, bias = read_mask(attn_mask, shape)
        return visible, None if bias is None else bias.float()

    return attention(q, k, v, **options, widen=lambda x: x.float(), read_mask=read)


@mutant(
    "float32 operands are cut to 10 bits of mantissa, as tensor cores do by default",
    source="huggingface/transformers#48428",
    killed_by="output_is_inside_the_bound",
    bug="E04",
)
def ten_bit_operands(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def cut(query: Tensor, key: Tensor, scale: float) -> Tensor:
        return scores(truncated(query, 13), truncated(key, 13), scale)

    return attention(q, k, v, **options, scores=cut) if q.dtype == torch.float32 else attention(q, k, v, **options)


@mutant(
    "bfloat16 goes through float16: values above 65504 overflow",
    source="teaching code",
    killed_by="finite_results_do_not_overflow",
)
def bfloat16_through_float16(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def wide(x: Tensor) -> Tensor:
        return x.to(torch.float16).float() if x.dtype == torch.bfloat16 else x.float() if x.dtype == torch.float16 else x

    return attention(q, k, v, **options, widen=wide)


@mutant("float16 goes through bfloat16: 3 bits are lost", source="teaching code", killed_by="output_is_inside_the_bound")
def float16_through_bfloat16(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def wide(x: Tensor) -> Tensor:
        return x.to(torch.bfloat16).float() if x.dtype == torch.float16 else x.float() if x.dtype == torch.bfloat16 else x

    return attention(q, k, v, **options, widen=wide)


@mutant(
    "keys are quantised to 8-bit integers, one step for the whole tensor",
    source="teaching code",
    killed_by="output_is_inside_the_bound",
)
def keys_in_int8(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def quantised(query: Tensor, key: Tensor, scale: float) -> Tensor:
        step = key.abs().amax().clamp(min=1e-30) / 127 if key.numel() else 1.0
        return scores(query, (key / step).round() * step, scale)

    return attention(q, k, v, **options, scores=quantised)


@mutant("values are rounded to a fixed point of 1/1024", source="teaching code", killed_by="constant_values_are_returned")
def values_in_fixed_point(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, mix=lambda weight, value, visible: mix(weight, (value * 1024).round() / 1024, visible))


@mutant(
    "queries are rounded to a fixed point of 1/256: it matters which of query and key is small",
    source="teaching code",
    killed_by="output_is_inside_the_bound",
)
def queries_in_fixed_point(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def fixed(query: Tensor, key: Tensor, scale: float) -> Tensor:
        return scores((query * 256).round() / 256, key, scale)

    return attention(q, k, v, **options, scores=fixed)


@mutant(
    "query features are rounded up: sign and value are not treated alike",
    source="teaching code",
    killed_by="flipped_feature_signs_change_nothing",
)
def queries_rounded_up(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def ceiling(query: Tensor, key: Tensor, scale: float) -> Tensor:
        return scores((query * 4096).ceil() / 4096, key, scale)

    return attention(q, k, v, **options, scores=ceiling)


@mutant(
    "key features below 0.02 are flushed to zero: it matters which of query and key is small",
    source="teaching code",
    killed_by="powers_of_two_move_between_query_and_key",
)
def small_keys_flushed(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k.masked_fill(k.abs() < 0.02, 0.0), v, **options)


@mutant("outputs below 1e-6 are flushed to zero", source="teaching code", killed_by="chunks_merge_to_the_whole")
def small_outputs_flushed(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    out = attention(q, k, v, **options)
    return out.masked_fill(out.abs() < 1e-6, 0.0)


@mutant("the float mask is rounded to bfloat16", source="teaching code", killed_by="zero_queries_read_the_additive_mask")
def bias_in_bfloat16(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def read(attn_mask: Tensor | None, shape: tuple[int, ...]) -> tuple[Tensor | None, Tensor | None]:
        visible, bias = read_mask(attn_mask, shape)
        return visible, None if bias is None else through(bias, torch.bfloat16)

    return attention(q, k, v, **options, read_mask=read)


@mutant(
    "a float64 mask passes through float32: its finfo.min becomes -inf",
    source="jax-ml/jax#34114",
    killed_by="zero_queries_read_the_additive_mask",
    bug="E19",
)
def bias_in_float32(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def read(attn_mask: Tensor | None, shape: tuple[int, ...]) -> tuple[Tensor | None, Tensor | None]:
        if attn_mask is None or attn_mask.dtype != torch.float64:
            return read_mask(attn_mask, shape)
        return attn_mask.float() != -INF, through(attn_mask, torch.float32)

    return attention(q, k, v, **options, read_mask=read)


@mutant("bias and score are added in half precision", source="teaching code", killed_by="output_is_inside_the_bound")
def bias_added_in_half(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def add(logit: Tensor, visible: Tensor | None, bias: Tensor | None) -> Tensor:
        return hide(logit if bias is None else through(logit + bias, q.dtype), visible, None)

    return attention(q, k, v, **options, hide=add)


@mutant("the scaled query is rounded back to half precision", source="teaching code", killed_by="orthogonal_basis_changes_nothing")
def scaled_query_in_half(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, scores=lambda query, key, scale: scores(through(query * scale, q.dtype), key, 1.0))


@mutant(
    "differences to the maximum below -16 are flushed to weight 0",
    source="teaching code",
    killed_by="output_is_inside_the_bound",
)
def early_underflow(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def flushed(logit: Tensor, visible: Tensor | None) -> Tensor:
        if not logit.shape[-1]:
            return logit
        largest = logit.amax(-1, keepdim=True)
        return softmax(logit.masked_fill(logit < largest - 16, -INF), visible)

    return attention(q, k, v, **options, softmax=flushed)


@mutant(
    "sums of more than 32 keys are wrong by 1e-3: another kernel for long rows",
    source="NVIDIA/TransformerEngine#3216",
    killed_by="constant_values_are_returned",
    bug="E15",
)
def long_rows_off(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    factor = 1.001 if k.shape[2] > 32 else 1.0
    return attention(q, k, v, **options, narrow=lambda out, dtype: (out * factor).to(dtype))


@mutant(
    "rows with a logit above 20 are wrong by 1 %: right on random normal inputs",
    source="NVIDIA/TransformerEngine#3216",
    killed_by="output_is_inside_the_bound",
    bug="E15",
)
def large_logits_off(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def bent(logit: Tensor, visible: Tensor | None) -> Tensor:
        return softmax(torch.where(logit > 20, 20 + (logit - 20) * 0.99, logit), visible)

    return attention(q, k, v, **options, softmax=bent)


@mutant(
    "near ties are made ties: logits closer than 1e-4 to the largest count as equal",
    source="teaching code",
    killed_by="degenerate_output_is_inside_the_bound",
)
def near_ties_are_ties(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def snapped(logit: Tensor, visible: Tensor | None) -> Tensor:
        if not logit.shape[-1]:
            return logit
        largest = logit.amax(-1, keepdim=True)
        return softmax(torch.where(logit > largest - 1e-4, largest, logit), visible)

    return attention(q, k, v, **options, softmax=snapped)


@mutant(
    "the default scale is folded into the query and overflows float16 on the way back",
    source="teaching code",
    killed_by="finite_results_do_not_overflow",
)
def query_divided_by_scale(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    scale = options.get("scale")
    factor = default_scale(q) if scale is None else scale

    def overflowing(query: Tensor, key: Tensor, scale: float) -> Tensor:
        large = (key / factor).to(q.dtype).isinf() & key.isfinite() if factor else torch.zeros_like(key, dtype=torch.bool)
        return scores(query, key.masked_fill(large, INF), scale)

    return attention(q, k, v, **options, scores=overflowing)


@mutant(
    "float16 alone is wrong by 1 %: a kernel of its own for that type",
    source="teaching code",
    killed_by="constant_values_are_returned",
)
def float16_off(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    factor = 1.01 if q.dtype == torch.float16 else 1.0
    return attention(q, k, v, **options, narrow=lambda out, dtype: (out * factor).to(dtype))


@mutant(
    "bfloat16 alone ignores the mask: a kernel of its own for that type",
    source="teaching code",
    killed_by="causal_equals_triangular_mask",
)
def bfloat16_unmasked(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **{**options, "attn_mask": None} if q.dtype == torch.bfloat16 else options)
