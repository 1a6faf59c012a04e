"""Rows that see no key, NaN in what is hidden, NaN in what is visible, and sizes of zero."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..registry import mutant
from .core import INF, attention, mix, softmax


@mutant(
    "a row without keys is NaN",
    source="pytorch/pytorch#103963",
    killed_by="rows_without_keys_follow_the_convention",
    bug="C01",
)
def nan(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, softmax=lambda logit, visible: torch.softmax(logit, -1))


@mutant(
    "only bool masks guard rows without keys; a float mask makes them NaN",
    source="pytorch/pytorch#110213",
    killed_by="rows_without_keys_follow_the_convention",
    bug="C14",
)
def nan_with_a_float_mask(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    mask = options.get("attn_mask")
    if mask is None or not mask.is_floating_point():
        return attention(q, k, v, **options)
    return attention(q, k, v, **options, softmax=lambda logit, visible: torch.softmax(logit, -1))


@mutant(
    "a row emptied by mask and causality together is NaN",
    source="pytorch/pytorch#190486",
    killed_by="rows_without_keys_follow_the_convention",
    bug="C04",
)
def nan_when_causal(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    if not options.get("is_causal"):
        return attention(q, k, v, **options)
    return attention(q, k, v, **options, softmax=lambda logit, visible: torch.softmax(logit, -1))


@mutant(
    "hidden logits are capped at -1e30: a row without keys is uniform",
    source="microsoft/onnxruntime#28904",
    killed_by="rows_without_keys_follow_the_convention",
    bug="C12",
)
def uniform(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, softmax=lambda logit, visible: torch.softmax(logit.clamp(min=-1e30), -1))


@mutant(
    "a row without keys returns the value of the first key",
    source="teaching code",
    killed_by="rows_without_keys_follow_the_convention",
)
def first_value(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def first(logit: Tensor, visible: Tensor | None) -> Tensor:
        if visible is None or not logit.shape[-1]:
            return softmax(logit, visible)
        only = (torch.arange(logit.shape[-1]) == 0).to(logit.dtype).expand(logit.shape)
        return torch.where(visible.any(-1, keepdim=True), softmax(logit, visible), only)

    return attention(q, k, v, **options, softmax=first)


@mutant(
    "a row without keys repeats the row before: the accumulator was not reset",
    source="flashinfer-ai/flashinfer#5029",
    killed_by="rows_without_keys_follow_the_convention",
    bug="D25",
)
def previous_row(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def stale(logit: Tensor, visible: Tensor | None) -> Tensor:
        weight = softmax(logit, visible)
        if visible is None or not logit.shape[-2]:
            return weight
        alone = ~visible.any(-1, keepdim=True).expand(*logit.shape[:-1], 1)
        before = torch.cat([torch.zeros_like(weight[..., :1, :]), weight[..., :-1, :]], -2)
        return torch.where(alone, before, weight)

    return attention(q, k, v, **options, softmax=stale)


@mutant(
    "one row without keys makes its whole head NaN",
    source="huggingface/transformers#46765",
    killed_by="rows_without_keys_follow_the_convention",
    bug="C19",
)
def poisons_its_head(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def poisoned(logit: Tensor, visible: Tensor | None) -> Tensor:
        weight = softmax(logit, visible)
        if visible is None:
            return weight
        some = ~visible.any(-1, keepdim=True).expand(*logit.shape[:-1], 1)
        return weight.masked_fill(some.any(-2, keepdim=True), torch.nan)

    return attention(q, k, v, **options, softmax=poisoned)


@mutant("a row that sees exactly one key is taken for empty", source="teaching code", killed_by="one_key_takes_all")
def one_key_is_none(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def strict(logit: Tensor, visible: Tensor | None) -> Tensor:
        seen = torch.ones_like(logit, dtype=torch.bool) if visible is None else visible.expand(logit.shape)
        return softmax(logit, visible).masked_fill(seen.sum(-1, keepdim=True) <= 1, 0.0)

    return attention(q, k, v, **options, softmax=strict)


@mutant(
    "the guard for empty rows takes NaN for empty: a NaN query returns zeros",
    source="pytorch/pytorch#141128",
    killed_by="nan_query_is_not_hidden",
    bug="C06",
)
def nan_query_is_empty(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def safe(logit: Tensor, visible: Tensor | None) -> Tensor:
        if not logit.shape[-1]:
            return logit
        largest = logit.amax(-1, keepdim=True)
        return torch.softmax(logit, -1).masked_fill(largest.isnan() | (largest == -INF), 0.0)

    return attention(q, k, v, **options, softmax=safe)


@mutant("NaN in a visible logit is taken for hidden", source="teaching code", killed_by="nan_query_is_not_hidden")
def nan_logit_is_hidden(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def skip(logit: Tensor, visible: Tensor | None) -> Tensor:
        logit = logit.masked_fill(logit.isnan(), -INF)
        return torch.softmax(logit, -1).nan_to_num(nan=0.0)

    return attention(q, k, v, **options, softmax=skip)


@mutant(
    "NaN in a hidden value reaches the output: 0 · NaN",
    source="pytorch/pytorch#101967",
    killed_by="masked_nan_is_contained",
    bug="C07",
)
def hidden_value_leaks(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, mix=lambda weight, value, visible: weight @ value)


@mutant(
    "NaN in a hidden key reaches the output: NaN + -inf",
    source="Dao-AILab/flash-attention#1745",
    killed_by="masked_nan_is_contained",
    bug="C08",
)
def hidden_key_leaks(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def add(logit: Tensor, visible: Tensor | None, bias: Tensor | None) -> Tensor:
        logit = logit if bias is None else logit + bias
        return logit if visible is None else logit + torch.where(visible, 0.0, -INF).to(logit.dtype)

    return attention(q, k, v, **options, hide=add)


@mutant(
    "an infinite value of a hidden key is contained, a NaN is not",
    source="ggml-org/llama.cpp#3523",
    killed_by="masked_nan_is_contained",
    bug="C08",
)
def hidden_nan_leaks(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def clamp(weight: Tensor, value: Tensor, visible: Tensor | None) -> Tensor:
        return mix(weight, value, None if value.isnan().any() else visible)

    return attention(q, k, v, **options, mix=clamp)


@mutant(
    "no keys at all (S = 0) gives 0 / 0",
    source="teaching code",
    killed_by="masked_keys_are_deleted",
    bug="C24",
)
def nan_without_keys(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    out = attention(q, k, v, **options)
    return out / 0 if not k.shape[2] else out


@mutant(
    "an empty batch, or no heads, is a division by zero",
    source="pytorch/pytorch#141218",
    killed_by="rows_without_keys_follow_the_convention",
    bug="C13",
)
def empty_batch_raises(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    if 0 in q.shape[:3]:
        raise ZeroDivisionError("integer modulo by zero")
    return attention(q, k, v, **options)


@mutant(
    "no keys at all (S = 0) raises",
    source="pytorch/pytorch#141219",
    killed_by="rows_without_keys_follow_the_convention",
    bug="C13",
)
def empty_keys_raise(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    if not k.shape[2]:
        raise RuntimeError("amax(): Expected reduction dim to have non-zero size")
    return attention(q, k, v, **options)


@mutant(
    "a batch element whose keys are all hidden takes the rows of the next one along",
    source="pytorch/pytorch#81077",
    killed_by="masks_stay_with_their_batch_and_head",
    bug="C15",
)
def empty_sequence_shifts_the_batch(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def packed(logit: Tensor, visible: Tensor | None) -> Tensor:
        weight = softmax(logit, visible)
        if visible is None or not weight.numel():
            return weight
        some = visible.expand(logit.shape).flatten(1).any(-1)
        real = weight[some]  # packed without the empty sequences, then unpacked as if there were none
        return torch.cat([real, weight.new_zeros((len(weight) - len(real), *weight.shape[1:]))])

    return attention(q, k, v, **options, softmax=packed)
