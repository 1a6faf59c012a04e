"""Masks of the multi-head layer: padding, the several masks at once, and flags that change which of them count."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..attention.core import read_mask, softmax
from ..registry import mutant
from .layer import Answer, Weights, multihead, padding

Seen = tuple[Tensor | None, Tensor | None]


@mutant("padding is ignored", source="teaching code", killed_by="padding_mask_deletes_keys", contract="multihead")
def padding_ignored(query: Tensor, key: Tensor, value: Tensor, weights: Weights, **options: Any) -> Answer:
    return multihead(query, key, value, weights, **{**options, "key_padding_mask": None})


@mutant(
    "True in the padding mask means keep",
    source="nyu-mll/jiant#465",
    killed_by="padding_mask_deletes_keys",
    contract="multihead",
    bug="A01",
)
def padding_inverted(query: Tensor, key: Tensor, value: Tensor, weights: Weights, **options: Any) -> Answer:
    mask = options.get("key_padding_mask")
    return multihead(query, key, value, weights, **{**options, "key_padding_mask": None if mask is None else ~mask})


@mutant(
    "True in the attention mask means drop, as in nn.MultiheadAttention",
    source="nyu-mll/jiant#465",
    killed_by="layer_is_inside_the_bound",
    contract="multihead",
    bug="A01",
)
def mask_inverted(query: Tensor, key: Tensor, value: Tensor, weights: Weights, **options: Any) -> Answer:
    mask = options.get("attn_mask")
    inverted = ~mask if mask is not None and mask.dtype == torch.bool else mask
    return multihead(query, key, value, weights, **{**options, "attn_mask": inverted})


@mutant(
    "the padding mask is unsqueezed onto the queries",
    source="keras-team/keras#20488",
    killed_by="padding_mask_deletes_keys",
    contract="multihead",
    bug="A11",
)
def padding_on_queries(query: Tensor, key: Tensor, value: Tensor, weights: Weights, **options: Any) -> Answer:
    def rows(mask: Tensor | None, shape: tuple[int, ...]) -> Tensor | None:
        return ~mask[:, None, :, None] if mask is not None and shape[2] == shape[3] else padding(mask, shape)

    return multihead(query, key, value, weights, **options, padding=rows)  # shows where L = S


@mutant(
    "padding counts for the first head only",
    source="teaching code",
    killed_by="padding_mask_deletes_keys",
    contract="multihead",
)
def padding_of_the_first_head(query: Tensor, key: Tensor, value: Tensor, weights: Weights, **options: Any) -> Answer:
    def first(mask: Tensor | None, shape: tuple[int, ...]) -> Tensor | None:
        return None if mask is None else ~mask[:, None, None, :] | (torch.arange(shape[1]) > 0)[:, None, None]

    return multihead(query, key, value, weights, **options, padding=first)


@mutant(
    "the padding of batch element 0 counts for all",
    source="teaching code",
    killed_by="padding_mask_deletes_keys",
    contract="multihead",
    bug="A53",
)
def padding_of_the_first_batch(query: Tensor, key: Tensor, value: Tensor, weights: Weights, **options: Any) -> Answer:
    return multihead(
        query,
        key,
        value,
        weights,
        **options,
        padding=lambda mask, shape: padding(mask if mask is None else mask[:1], shape),
    )


@mutant(
    "the padding mask is repeated over heads in the wrong order: one sample gets another's",
    source="lsdefine/attention-is-all-you-need-keras#36",
    killed_by="padding_mask_deletes_keys",
    contract="multihead",
    bug="A14",
)
def padding_repeated_in_head_major_order(query: Tensor, key: Tensor, value: Tensor, weights: Weights, **options: Any) -> Answer:
    def repeated(mask: Tensor | None, shape: tuple[int, ...]) -> Tensor | None:
        if mask is None or not shape[0]:
            return padding(mask, shape)
        return ~mask.repeat(shape[1], 1).unflatten(0, shape[:2])[:, :, None, :]

    return multihead(query, key, value, weights, **options, padding=repeated)


@mutant(
    "padding is read as lengths: how many keys are real",
    source="huggingface/diffusers#14114",
    killed_by="padding_mask_deletes_keys",
    contract="multihead",
    bug="A44",
)
def padding_read_as_lengths(query: Tensor, key: Tensor, value: Tensor, weights: Weights, **options: Any) -> Answer:
    def counted(mask: Tensor | None, shape: tuple[int, ...]) -> Tensor | None:
        return None if mask is None else (torch.arange(shape[3]) < (~mask).sum(-1, keepdim=True))[:, None, None, :]

    return multihead(query, key, value, weights, **options, padding=counted)


@mutant(
    "padding is ignored unless an attention mask is given too",
    source="jax-ml/jax#23349",
    killed_by="padding_mask_deletes_keys",
    contract="multihead",
    bug="A09",
)
def padding_needs_a_mask(query: Tensor, key: Tensor, value: Tensor, weights: Weights, **options: Any) -> Answer:
    if options.get("attn_mask") is None:
        options["key_padding_mask"] = None
    return multihead(query, key, value, weights, **options)


@mutant(
    "with a padding mask the attention mask is dropped",
    source="huggingface/transformers#46634",
    killed_by="padding_composes_with_the_mask",
    contract="multihead",
    bug="A37",
)
def padding_replaces_mask(query: Tensor, key: Tensor, value: Tensor, weights: Weights, **options: Any) -> Answer:
    if options.get("key_padding_mask") is not None:
        options["attn_mask"] = None
    return multihead(query, key, value, weights, **options)


@mutant(
    "with a padding mask causality is dropped",
    source="teaching code",
    killed_by="padding_composes_with_the_mask",
    contract="multihead",
)
def padding_replaces_causal(query: Tensor, key: Tensor, value: Tensor, weights: Weights, **options: Any) -> Answer:
    if options.get("key_padding_mask") is not None:
        options["is_causal"] = False
    return multihead(query, key, value, weights, **options)


@mutant(
    "a padded query attends to the padding: visible where both are padded or neither is",
    source="Biohub/esm#299",
    killed_by="padding_mask_deletes_keys",
    contract="multihead",
    bug="A39",
)
def padding_attends_to_padding(query: Tensor, key: Tensor, value: Tensor, weights: Weights, **options: Any) -> Answer:
    def segments(mask: Tensor | None, shape: tuple[int, ...]) -> Tensor | None:
        if mask is None or shape[2] != shape[3]:
            return padding(mask, shape)
        return (mask[:, None, :, None] == mask[:, None, None, :]).expand(-1, 1, -1, -1)  # shows where L = S

    return multihead(query, key, value, weights, **options, padding=segments)


@mutant(
    "the output is cut to the longest sequence that is not padding",
    source="pytorch/pytorch#97111",
    killed_by="padding_mask_deletes_keys",
    contract="multihead",
    bug="A40",
)
def output_cut_to_longest(query: Tensor, key: Tensor, value: Tensor, weights: Weights, **options: Any) -> Answer:
    out, weight = multihead(query, key, value, weights, **options)
    mask = options.get("key_padding_mask")
    if mask is None or query.shape[1] != key.shape[1] or not mask.numel():
        return out, weight
    return out[:, : int((~mask).sum(-1).max())], weight


@mutant(
    "the rows of padded queries come back zero",
    source="pytorch/pytorch#86120",
    killed_by="padding_mask_deletes_keys",
    contract="multihead",
    bug="A41",
)
def padded_rows_zero(query: Tensor, key: Tensor, value: Tensor, weights: Weights, **options: Any) -> Answer:
    out, weight = multihead(query, key, value, weights, **options)
    mask = options.get("key_padding_mask")
    return out if mask is None or query.shape[1] != key.shape[1] else out.masked_fill(mask[..., None], 0.0), weight


@mutant(
    "with need_weights causality is ignored",
    source="pytorch/pytorch#99282",
    killed_by="layer_ignores_future_tokens",
    contract="multihead",
    bug="A05",
)
def causal_dropped_with_weights(query: Tensor, key: Tensor, value: Tensor, weights: Weights, **options: Any) -> Answer:
    if options.get("need_weights", True):
        options["is_causal"] = False
    return multihead(query, key, value, weights, **options)


@mutant(
    "is_causal is taken as a hint that the mask is causal: without need_weights the mask is dropped",
    source="pytorch/pytorch#178588",
    killed_by="need_weights_changes_nothing",
    contract="multihead",
    bug="A33",
)
def mask_dropped_by_the_hint(query: Tensor, key: Tensor, value: Tensor, weights: Weights, **options: Any) -> Answer:
    if options.get("is_causal") and not options.get("need_weights", True):
        options["attn_mask"] = None
    return multihead(query, key, value, weights, **options)


@mutant(
    "without need_weights a fast path casts float masks to bool",
    source="pytorch/pytorch#118628",
    killed_by="need_weights_changes_nothing",
    contract="multihead",
    bug="A03",
)
def fast_path_casts_masks(query: Tensor, key: Tensor, value: Tensor, weights: Weights, **options: Any) -> Answer:
    mask = options.get("attn_mask")
    if mask is not None and mask.is_floating_point() and not options.get("need_weights", True):
        options["attn_mask"] = mask == 0  # non-zero means hidden
    return multihead(query, key, value, weights, **options)


@mutant(
    "with need_weights a row without keys is NaN, without it zero",
    source="pytorch/pytorch#160064",
    killed_by="rows_without_keys_do_not_depend_on_need_weights",
    contract="multihead",
    bug="C03",
)
def nan_with_weights(query: Tensor, key: Tensor, value: Tensor, weights: Weights, **options: Any) -> Answer:
    def unguarded(logit: Tensor, visible: Tensor | None) -> Tensor:
        return torch.softmax(logit, -1) if options.get("need_weights", True) else softmax(logit, visible)

    return multihead(query, key, value, weights, **options, softmax=unguarded)


@mutant(
    "a row whose keys are all padding is NaN",
    source="patrick-kidger/equinox#274",
    killed_by="padding_composes_with_the_mask",
    contract="multihead",
    bug="C10",
)
def nan_with_padding(query: Tensor, key: Tensor, value: Tensor, weights: Weights, **options: Any) -> Answer:
    def unguarded(logit: Tensor, visible: Tensor | None) -> Tensor:
        return softmax(logit, visible) if options.get("key_padding_mask") is None else torch.softmax(logit, -1)

    return multihead(query, key, value, weights, **options, softmax=unguarded)


@mutant(
    "the returned weights are those before the mask",
    source="teaching code",
    killed_by="weights_reproduce_the_output",
    contract="multihead",
)
def weights_before_the_mask(query: Tensor, key: Tensor, value: Tensor, weights: Weights, **options: Any) -> Answer:
    out, weight = multihead(query, key, value, weights, **options)
    plain = {**options, "attn_mask": None, "key_padding_mask": None, "is_causal": False}
    return out, None if weight is None else multihead(query, key, value, weights, **plain)[1]


@mutant(
    "a mask of heads is cut to the first head",
    source="pytorch/pytorch#98991",
    killed_by="masks_stay_with_their_batch_and_head",
    contract="multihead",
    bug="A04",
)
def mask_of_the_first_head(query: Tensor, key: Tensor, value: Tensor, weights: Weights, **options: Any) -> Answer:
    def read(attn_mask: Tensor | None, shape: tuple[int, ...]) -> Seen:
        return read_mask(attn_mask[..., :1, :, :] if attn_mask is not None and attn_mask.ndim > 2 else attn_mask, shape)

    return multihead(query, key, value, weights, **options, read_mask=read)


@mutant(
    "a mask (B, L, S) is read where (H, L, S) is meant, silent where B = H",
    source="onnx/onnx#8108",
    killed_by="masks_stay_with_their_batch_and_head",
    contract="multihead",
    bug="A50",
)
def mask_of_heads_read_as_batch(query: Tensor, key: Tensor, value: Tensor, weights: Weights, **options: Any) -> Answer:
    mask = options.get("attn_mask")
    if mask is not None and mask.ndim == 3 and query.shape[0] == options["num_heads"]:
        options["attn_mask"] = mask[:, None]
    return multihead(query, key, value, weights, **options)


@mutant(
    "self-attention takes the hint of causality for the mask, and forgets what else the mask hides",
    source="pytorch/pytorch#178588",
    killed_by="self_attention_is_inside_the_bound",
    contract="multihead",
    bug="A33",
)
def hint_instead_of_the_mask(query: Tensor, key: Tensor, value: Tensor, weights: Weights, **options: Any) -> Answer:
    if query is key is value and options.get("is_causal"):
        options["attn_mask"] = None
    return multihead(query, key, value, weights, **options)


@mutant(
    "self-attention without weights, which is faster, forgets the mask",
    source="teaching code",
    killed_by="need_weights_changes_nothing",
    contract="multihead",
)
def fast_path_forgets_the_mask(query: Tensor, key: Tensor, value: Tensor, weights: Weights, **options: Any) -> Answer:
    if query is key is value and not options.get("need_weights", True):
        options["attn_mask"] = None
    return multihead(query, key, value, weights, **options)


@mutant(
    "where one array is query, key and value, a mask takes the place of causality",
    source="teaching code",
    killed_by="layer_ignores_future_tokens",
    contract="multihead",
)
def mask_instead_of_causality(query: Tensor, key: Tensor, value: Tensor, weights: Weights, **options: Any) -> Answer:
    if query is key is value and options.get("attn_mask") is not None:
        options["is_causal"] = False
    return multihead(query, key, value, weights, **options)


@mutant(
    "a mask and the hint of causality are not taken together, and the layer drops the mask without a word",
    source="pytorch/pytorch#178588",
    killed_by="a_mask_beside_causality_is_refused_or_heeded",
    contract="multihead",
    supports={"mask_and_causal": False},
)
def any_mask_under_the_hint(query: Tensor, key: Tensor, value: Tensor, weights: Weights, **options: Any) -> Answer:
    if options.get("is_causal"):
        options["attn_mask"] = None
    return multihead(query, key, value, weights, **options)
