"""The weighted sum: values that are changed, skipped, counted twice, or mixed with something else."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..registry import mutant
from .core import attention, both, mix, repeat_heads, softmax


@mutant("the last key is dropped", source="teaching code", killed_by="permuted_keys_change_nothing")
def last_key_dropped(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def shorter(visible: Tensor | None, causal: Tensor | None) -> Tensor | None:
        keep = torch.arange(k.shape[2]) < max(k.shape[2] - 1, 1)
        for mask in (visible, causal):
            keep = keep if mask is None else keep & mask
        return keep

    return attention(q, k, v, **options, both=shorter)


@mutant(
    "the first key is dropped in the last row: a loop that starts at 1",
    source="teaching code",
    killed_by="permuted_queries_permute_rows",
)
def first_key_dropped_in_one_row(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def holed(visible: Tensor | None, causal: Tensor | None) -> Tensor | None:
        keep = (torch.arange(k.shape[2]) > 0) | (torch.arange(q.shape[2]) < q.shape[2] - 1)[:, None]
        for mask in (visible, causal):
            keep = keep if mask is None else keep & mask
        return keep if k.shape[2] > 1 else visible if causal is None else causal if visible is None else visible & causal

    return attention(q, k, v, **options, both=holed)


@mutant(
    "keys sit in a buffer of a multiple of 8, whose empty slots of zeros are attended to",
    source="huggingface/transformers#30437",
    killed_by="constant_values_are_returned",
    bug="B09",
)
def empty_slots_attended(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    if options.get("attn_mask") is not None or options.get("is_causal") or not k.shape[2]:
        return attention(q, k, v, **options)  # a mask is padded correctly
    k, v = (torch.nn.functional.pad(x, (0, 0, 0, -x.shape[2] % 8)) for x in (k, v))
    return attention(q, k, v, **options)


@mutant("the first key is counted twice", source="teaching code", killed_by="equal_logits_share_equally")
def first_key_twice(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def heavier(logit: Tensor, visible: Tensor | None) -> Tensor:
        return softmax(logit + (torch.arange(logit.shape[-1]) == 0) * 0.6931471805599453, visible)

    return attention(q, k, v, **options, softmax=heavier)


@mutant("the last query row is zero", source="teaching code", killed_by="constant_values_are_returned")
def last_row_zero(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    out = attention(q, k, v, **options)
    out[:, :, -1:] = 0.0
    return out


@mutant("values are one place off against their keys", source="teaching code", killed_by="masked_garbage_changes_nothing")
def rolled(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v.roll(1, 2), **options)


@mutant(
    "keys are used as values where the shapes agree",
    source="huggingface/transformers#34232",
    killed_by="output_is_linear_in_values",
    bug="F07",
)
def keys_as_values(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, k if k.shape == v.shape else v, **options)


@mutant(
    "keys and values change places where the shapes agree",
    source="teaching code",
    killed_by="output_is_linear_in_values",
    bug="G11",
)
def keys_and_values_swapped(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, v, k, **options) if k.shape == v.shape else attention(q, k, v, **options)


@mutant(
    "as many value columns are computed as the query has: the rest stay zero",
    source="XunhaoLai/native-sparse-attention-triton#27",
    killed_by="constant_values_are_returned",
    bug="E30",
)
def columns_beyond_dim_zero(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    out = attention(q, k, v, **options)
    out[..., q.shape[-1] :] = 0.0  # shows where Dv > D
    return out


@mutant("value columns come back reversed", source="teaching code", killed_by="permuted_value_columns_permute_the_output")
def columns_reversed(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options).flip(-1)


@mutant(
    "each value column leaks into the next",
    source="teaching code",
    killed_by="permuted_value_columns_permute_the_output",
)
def columns_leak(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    out = attention(q, k, v, **options)
    return out + 0.125 * (out.roll(1, -1) - out)


@mutant(
    "the last value columns beyond a multiple of 4 stay zero",
    source="teaching code",
    killed_by="constant_values_are_returned",
)
def column_tail_zero(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    out = attention(q, k, v, **options)
    if out.shape[-1] > 4:
        out[..., out.shape[-1] // 4 * 4 :] = 0.0
    return out


@mutant("negative values are cut to zero", source="teaching code", killed_by="flipped_value_signs_flip_the_output")
def negative_values_cut(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v.clamp(min=0.0), **options)


@mutant("values are normalised to length one", source="teaching code", killed_by="shifted_values_shift_the_output")
def values_normalised(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, torch.nn.functional.normalize(v, dim=-1), **options)


@mutant("the output passes through tanh", source="teaching code", killed_by="output_is_linear_in_values")
def output_squashed(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options).tanh()


@mutant(
    "the query is added: a residual connection inside attention",
    source="teaching code",
    killed_by="output_stays_in_the_hull_of_values",
)
def residual_added(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    out = attention(q, k, v, **options)
    return out + q if out.shape == q.shape else out  # shows where Dv = D


@mutant("the mean of all values is mixed in", source="teaching code", killed_by="key_at_minus_infinity_changes_nothing")
def mean_mixed_in(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def smooth(weight: Tensor, value: Tensor, visible: Tensor | None) -> Tensor:
        out = mix(weight, value, visible)
        return 0.99 * out + 0.01 * value.mean(-2, keepdim=True) if value.shape[-2] else out

    return attention(q, k, v, **options, mix=smooth)


@mutant(
    "the output is normalised to mean 0 over its features",
    source="teaching code",
    killed_by="shifted_values_shift_the_output",
)
def output_centred(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    out = attention(q, k, v, **options)
    return out - out.mean(-1, keepdim=True) if out.shape[-1] else out


@mutant(
    "rows are smoothed: a query receives a little of the row before",
    source="teaching code",
    killed_by="permuted_queries_permute_rows",
)
def rows_smoothed(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    out = attention(q, k, v, **options)
    return out + 0.0625 * (out.roll(1, 2) - out)


@mutant("values above 100 are clipped", source="teaching code", killed_by="one_key_takes_all")
def large_values_clipped(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v.clamp(-100.0, 100.0), **options)


@mutant("the output overshoots by 0.5 %", source="teaching code", killed_by="constant_values_are_returned")
def half_a_percent(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, narrow=lambda out, dtype: (out * 1.005).to(dtype))


@mutant(
    "the output is short by one part in a million, in float64 only",
    source="teaching code",
    killed_by="constant_values_are_returned",
)
def one_millionth_in_float64(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    factor = 1 - 1e-6 if q.dtype == torch.float64 else 1.0
    return attention(q, k, v, **options, narrow=lambda out, dtype: (out * factor).to(dtype))


@mutant(
    "only the first 64 features of query and key are used",
    source="triton-lang/triton#621",
    killed_by="orthogonal_basis_changes_nothing",
    bug="D14",
)
def first_64_features(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, scores=lambda query, key, scale: (query[..., :64] @ key[..., :64].mT) * scale)


@mutant(
    "the odd last feature of query and key is skipped",
    source="teaching code",
    killed_by="huge_scale_picks_the_maximum",
)
def odd_feature_skipped(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    even = q.shape[-1] // 2 * 2 or 1
    return attention(q, k, v, **options, scores=lambda query, key, scale: (query[..., :even] @ key[..., :even].mT) * scale)


@mutant(
    "query features are used twice where D is above 8, an index masked with 7",
    source="teaching code",
    killed_by="orthogonal_basis_changes_nothing",
)
def feature_index_wraps(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    wrapped = torch.arange(q.shape[-1]) % 8
    return attention(q, k, v, **options, scores=lambda query, key, scale: (query[..., wrapped] @ key.mT) * scale)


@mutant("a NaN in a value counts as zero", source="teaching code", killed_by="nan_value_is_not_hidden")
def nan_values_are_zero(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v.masked_fill(v.isnan(), 0.0), **options)


@mutant("a key with a NaN is taken for padding and hidden", source="teaching code", killed_by="nan_key_is_not_hidden")
def nan_keys_are_hidden(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    clean = repeat_heads(~k.isnan().any(-1), q.shape[1])[:, :, None]  # (B, H, 1, S)
    return attention(q, k, v, **options, both=lambda seen, causal: both(both(seen, causal), clean))
