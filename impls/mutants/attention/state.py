"""State and purity: inputs overwritten, results that change later, calls that remember, randomness."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..registry import MEMORY, mutant
from .core import attention, default_scale, hide, scores


def writable(x: Tensor) -> bool:
    """Whether every element has its own memory; torch refuses to write where it is shared."""
    return all(stride or size == 1 for stride, size in zip(x.stride(), x.shape, strict=True))


def remembered(name: str) -> dict[Any, Any]:
    """What the mutant of this name has kept, thrown away before it grows large."""
    kept: dict[Any, Any] = MEMORY.setdefault(name, {})
    if len(kept) > 256:
        kept.clear()
    return kept


@mutant("the query is scaled in place", source="teaching code", killed_by="inputs_are_unchanged", bug="D35")
def query_scaled_in_place(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    scale = options.get("scale")
    out = attention(q, k, v, **options)
    if all(stride or size == 1 for stride, size in zip(q.stride(), q.shape, strict=True)):  # torch refuses where memory is shared
        q.mul_(default_scale(q) if scale is None else scale)
    return out


@mutant("NaN in the values is cleared in place", source="teaching code", killed_by="inputs_are_unchanged")
def values_cleaned_in_place(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    out = attention(q, k, v, **options)
    if v.isnan().any() and writable(v):
        v.nan_to_num_(nan=0.0)
    return out


@mutant("the bool mask is combined with causality in place", source="teaching code", killed_by="inputs_are_unchanged")
def mask_combined_in_place(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    out = attention(q, k, v, **options)
    mask = options.get("attn_mask")
    if mask is not None and mask.dtype == torch.bool and options.get("is_causal") and mask.ndim > 1 and writable(mask):
        mask.copy_(mask.tril())
    return out


@mutant(
    "the float mask receives the scores in place",
    source="onnx/onnx, ReferenceEvaluator 1.18",
    killed_by="inputs_are_unchanged",
    bug="A52",
)
def scores_added_in_place(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    mask = options.get("attn_mask")

    def add(logit: Tensor, visible: Tensor | None, bias: Tensor | None) -> Tensor:
        if mask is not None and mask.is_floating_point() and mask.shape == logit.shape and writable(mask):
            mask.add_(logit)
        return hide(logit, visible, bias)

    return attention(q, k, v, **options, hide=add)


@mutant(
    "the output is written over the query where the shapes agree",
    source="teaching code",
    killed_by="inputs_are_unchanged",
)
def output_over_query(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    out = attention(q, k, v, **options)
    return q.copy_(out) if q.shape == out.shape and writable(q) else out


@mutant(
    "with a single key and no mask the values themselves are returned",
    source="teaching code",
    killed_by="outputs_alias_no_input",
)
def returns_the_values(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    out = attention(q, k, v, **options)
    return v if k.shape[2] == 1 and out.shape == v.shape and options.get("attn_mask") is None else out


@mutant(
    "one result buffer for all calls of a shape: an earlier output changes",
    source="teaching code",
    killed_by="calls_between_change_nothing",
    bug="F25",
)
def buffer_reused(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    out = attention(q, k, v, **options)
    buffers = remembered("buffer_reused")
    return buffers.setdefault((out.shape, out.dtype), torch.empty_like(out)).copy_(out)


@mutant(
    "the first mask of a shape is kept for later calls",
    source="teaching code",
    killed_by="permuted_keys_change_nothing",
)
def first_mask_kept(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    mask = options.get("attn_mask")
    if mask is not None:
        masks = remembered("first_mask_kept")
        options["attn_mask"] = masks.setdefault((mask.shape, mask.dtype), mask.clone())
    return attention(q, k, v, **options)


@mutant(
    "the first scale ever used is kept",
    source="NVIDIA/Megatron-LM#411",
    killed_by="output_is_inside_the_bound",
    bug="E13",
)
def first_scale_kept(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    scale = options.get("scale")
    kept = MEMORY.setdefault("first_scale_kept", default_scale(q) if scale is None else scale)
    return attention(q, k, v, **{**options, "scale": kept})


@mutant(
    "keys and values of the first call of a shape are kept, as in a cache",
    source="teaching code",
    killed_by="flipped_value_signs_flip_the_output",
)
def first_keys_kept(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    cache = remembered("first_keys_kept")
    k, v = cache.setdefault((k.shape, v.shape, k.dtype), (k.clone(), v.clone()))
    return attention(q, k, v, **options)


@mutant(
    "results are remembered by the address of the inputs, not by their content",
    source="teaching code",
    killed_by="flipped_value_signs_flip_the_output",
)
def remembered_by_address(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    known = remembered("remembered_by_address")
    inputs = [x for x in (q, k, v, options.get("attn_mask")) if x is not None]
    addresses = tuple((x.data_ptr(), x.shape, x.stride(), x.dtype) for x in inputs)
    place = (addresses, options.get("is_causal"), options.get("scale"))
    if place not in known:
        known[place] = (attention(q, k, v, **options), inputs)  # the inputs are kept, so that no address is used twice
    return known[place][0].clone()


@mutant(
    "the causal mask of the longest call so far is kept: a causal call makes later ones causal",
    source="teaching code",
    killed_by="output_is_inside_the_bound",
)
def causal_sticks(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    sticky = remembered("causal_sticks")
    sticky["on"] = sticky.get("on", False) or bool(options.get("is_causal"))
    return attention(q, k, v, **{**options, "is_causal": sticky["on"]})


@mutant("every second call is wrong by 1 %", source="teaching code", killed_by="same_call_same_bits")
def every_second_call(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    MEMORY["every_second_call"] = count = MEMORY.get("every_second_call", 0) + 1
    return attention(q, k, v, **options) * (1.01 if count % 2 == 0 else 1.0)


@mutant(
    "the accumulator is not reset: a little of the last output of the same shape is added",
    source="teaching code",
    killed_by="same_call_same_bits",
)
def accumulator_not_reset(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    out = attention(q, k, v, **options)
    last = remembered("accumulator_not_reset")
    left = last.get((out.shape, out.dtype))
    last[out.shape, out.dtype] = out.clone()
    return out if left is None else out + 0.01 * left


@mutant(
    "dropout stays on: a tenth of the weights is lost at random",
    source="pytorch/pytorch#124464",
    killed_by="same_call_same_bits",
    bug="E12",
)
def dropout_always(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def drop(weight: Tensor, value: Tensor, visible: Tensor | None) -> Tensor:
        return torch.nn.functional.dropout(weight, 0.1) @ value

    return attention(q, k, v, **options, mix=drop)


@mutant(
    "features are added up in a random order: right, but never the same bits",
    source="teaching code",
    killed_by="same_call_same_bits",
)
def random_order(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def shuffled(query: Tensor, key: Tensor, scale: float) -> Tensor:
        order = torch.randperm(query.shape[-1])  # shows where D > 2
        return scores(query[..., order], key[..., order], scale)

    return attention(q, k, v, **options, scores=shuffled)


@mutant("noise in the last bits", source="pytorch/torchtitan#3235", killed_by="same_call_same_bits", bug="F23")
def noisy(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def noise(query: Tensor, key: Tensor, scale: float) -> Tensor:
        logit = scores(query, key, scale)
        return logit * (1 + torch.finfo(logit.dtype).eps * torch.randint(-1, 2, logit.shape).to(logit.dtype))

    return attention(q, k, v, **options, scores=noise)


@mutant(
    "a NaN once seen makes every later call NaN",
    source="teaching code",
    killed_by="calls_between_change_nothing",
    bug="C17",
)
def nan_sticks(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    out = attention(q, k, v, **options)
    MEMORY["nan_sticks"] = MEMORY.get("nan_sticks", False) or bool(q.isnan().any())
    return out * torch.nan if MEMORY["nan_sticks"] else out


@mutant(
    "the seed of the random numbers is set in every call",
    source="teaching code",
    killed_by="process_is_left_as_it_was",
)
def seed_set_in_the_call(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    torch.manual_seed(0)
    return attention(q, k, v, **options)


@mutant(
    "gradients are switched off for all that comes after, not for the call",
    source="teaching code",
    killed_by="process_is_left_as_it_was",
)
def gradients_stay_off(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    torch.set_grad_enabled(False)
    return attention(q, k, v, **options)
