"""Encoder layers: masks and padding between tokens, state, form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..registry import Function, mutant
from .block import Masks, Weights, attend, encoder


def _mutant(mistake: str, killed_by: str, source: str = "teaching code", bug: str | None = None) -> Callable[[Function], Function]:
    return mutant(mistake, source=source, killed_by=killed_by, contract="encoder_layer", bug=bug)


def _hidden(mask: Tensor) -> Tensor:
    """True = do not attend, of a mask in either form."""
    return ~mask if mask.dtype == torch.bool else mask == -torch.inf


@_mutant("key_padding_mask is read the wrong way round", "padded_tokens_are_as_good_as_removed", "nyu-mll/jiant#465", "A01")
def padding_inverted(x: Tensor, weights: Weights, key_padding_mask: Tensor | None = None, **options: Any) -> Tensor:
    return encoder(x, weights, **options, key_padding_mask=None if key_padding_mask is None else ~key_padding_mask)


@_mutant("key_padding_mask is ignored", "padded_tokens_are_as_good_as_removed")
def padding_ignored(x: Tensor, weights: Weights, **options: Any) -> Tensor:
    return encoder(x, weights, **{**options, "key_padding_mask": None})


@_mutant("the padding of the first sequence is used for all", "padded_tokens_are_as_good_as_removed", bug="A53")
def padding_of_the_first_sequence(x: Tensor, weights: Weights, key_padding_mask: Tensor | None = None, **options: Any) -> Tensor:
    first = None if key_padding_mask is None else key_padding_mask[:1].expand_as(key_padding_mask)
    return encoder(x, weights, **options, key_padding_mask=first)


@_mutant("padding hides queries instead of keys", "padded_tokens_are_as_good_as_removed", "hyunwoongko/transformer#40", "A13")
def padding_hides_queries(x: Tensor, weights: Weights, key_padding_mask: Tensor | None = None, **options: Any) -> Tensor:
    def wrong(y: Tensor, memory: Tensor, w: Weights, prefix: str, heads: int, masks: Masks) -> Tensor:
        out = attend(y, memory, w, prefix, heads, masks)
        return out if key_padding_mask is None else out.masked_fill(key_padding_mask[..., None], 0.0)

    return encoder(x, weights, **options, attend=wrong)


@_mutant("a mask replaces the padding instead of joining it", "mask_and_padding_compose", "enpasos/jax2onnx#217", "A10")
def mask_replaces_padding(x: Tensor, weights: Weights, **options: Any) -> Tensor:
    return encoder(x, weights, **options | ({"key_padding_mask": None} if options.get("attn_mask") is not None else {}))


@_mutant("padding replaces the mask", "mask_and_padding_compose", "huggingface/transformers#46634", "A37")
def padding_replaces_the_mask(x: Tensor, weights: Weights, **options: Any) -> Tensor:
    return encoder(x, weights, **options | ({"attn_mask": None} if options.get("key_padding_mask") is not None else {}))


@_mutant("causality is forgotten where there is a mask", "mask_and_padding_compose", "pytorch/pytorch#187801", "A30")
def causality_forgotten_beside_a_mask(x: Tensor, weights: Weights, **options: Any) -> Tensor:
    return encoder(x, weights, **options | ({"is_causal": False} if options.get("attn_mask") is not None else {}))


@_mutant("causality is forgotten where there is padding", "mask_and_padding_compose", "huggingface/transformers#48821", "A38")
def causality_forgotten_beside_padding(x: Tensor, weights: Weights, **options: Any) -> Tensor:
    return encoder(x, weights, **options | ({"is_causal": False} if options.get("key_padding_mask") is not None else {}))


@_mutant("is_causal is ignored", "causal_block_ignores_the_future", "pytorch/pytorch#99282", "A05")
def causality_ignored(x: Tensor, weights: Weights, **options: Any) -> Tensor:
    return encoder(x, weights, **{**options, "is_causal": False})


def _diagonal(x: Tensor, options: dict[str, Any], offset: int) -> dict[str, Any]:
    """The options with causality as an explicit mask, off by an offset."""
    if not options.get("is_causal") or options.get("attn_mask") is not None:
        return options
    seen = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril(offset)
    seen[0, 0] = True
    return {**options, "is_causal": False, "attn_mask": seen}


@_mutant("a causal token sees the next one, too", "causal_block_ignores_the_future", "RVC-Boss/GPT-SoVITS#965", "B10")
def one_token_too_far(x: Tensor, weights: Weights, **options: Any) -> Tensor:
    return encoder(x, weights, **_diagonal(x, options, 1))


@_mutant("a causal token does not see itself", "block_is_inside_the_bound", "flashinfer-ai/flashinfer#348", "B10")
def blind_to_itself(x: Tensor, weights: Weights, **options: Any) -> Tensor:
    return encoder(x, weights, **_diagonal(x, options, -1))


@_mutant("without causality the last token is hidden", "tokens_reach_exactly_who_sees_them")
def last_token_unseen(x: Tensor, weights: Weights, **options: Any) -> Tensor:
    if options.get("attn_mask") is None and not options.get("is_causal") and x.shape[1] > 1:
        options["attn_mask"] = torch.arange(x.shape[1]) < x.shape[1] - 1
    return encoder(x, weights, **options)


@_mutant("a floating-point mask is taken for a bool one", "block_is_inside_the_bound", "pytorch/pytorch#118628", "A03")
def float_mask_as_bool(x: Tensor, weights: Weights, attn_mask: Tensor | None = None, **options: Any) -> Tensor:
    if attn_mask is not None and attn_mask.dtype != torch.bool:
        attn_mask = attn_mask == 0
    return encoder(x, weights, **options, attn_mask=attn_mask)


@_mutant("the bias of a mask is dropped, only -inf counts", "mask_and_padding_compose", bug="A02")
def bias_dropped(x: Tensor, weights: Weights, attn_mask: Tensor | None = None, **options: Any) -> Tensor:
    return encoder(x, weights, **options, attn_mask=None if attn_mask is None else ~_hidden(attn_mask))


@_mutant("the rows of padded tokens are zero", "padded_rows_are_computed_too", "pytorch/pytorch#86120", "A41")
def padded_rows_are_zero(x: Tensor, weights: Weights, **options: Any) -> Tensor:
    out, padding = encoder(x, weights, **options), options.get("key_padding_mask")
    return out if padding is None else out.masked_fill(padding[..., None], 0.0)


@_mutant("the output ends with the longest sequence", "block_output_has_the_right_form", "pytorch/pytorch#97111", "A40")
def output_ends_with_the_longest(x: Tensor, weights: Weights, **options: Any) -> Tensor:
    out, padding = encoder(x, weights, **options), options.get("key_padding_mask")
    return out if padding is None else out[:, : int((~padding).sum(-1).max())]


@_mutant("a token that sees nothing is NaN", "tokens_that_see_nothing_follow_the_convention", "pytorch/pytorch#190486", "C04")
def nan_where_nothing_is_seen(x: Tensor, weights: Weights, **options: Any) -> Tensor:
    out, mask = encoder(x, weights, **options), options.get("attn_mask")
    if mask is None:
        return out
    hidden = _hidden(mask)
    hidden = hidden.expand(x.shape[0], options["num_heads"], x.shape[1], x.shape[1]).all(-1).any(1)  # (B, L)
    return out.masked_fill(hidden[..., None], torch.nan)


@_mutant(
    "a token that sees nothing averages over all", "tokens_that_see_nothing_follow_the_convention", "microsoft/onnxruntime#28904", "C12"
)
def mean_where_nothing_is_seen(x: Tensor, weights: Weights, attn_mask: Tensor | None = None, **options: Any) -> Tensor:
    if attn_mask is not None:
        attn_mask = torch.zeros(attn_mask.shape, dtype=x.dtype).masked_fill(_hidden(attn_mask), -1e4) + (
            0 if attn_mask.dtype == torch.bool else attn_mask.masked_fill(_hidden(attn_mask), 0.0)
        )
    return encoder(x, weights, **options, attn_mask=attn_mask)


@_mutant("batch and length are exchanged: attention along the batch", "sequences_do_not_meet", "aipixel/AEMatter#3", "D05")
def attention_along_the_batch(x: Tensor, weights: Weights, **options: Any) -> Tensor:
    def wrong(y: Tensor, memory: Tensor, w: Weights, prefix: str, heads: int, masks: Masks) -> Tensor:
        return attend(y.transpose(0, 1), memory.transpose(0, 1), w, prefix, heads, {}).transpose(0, 1)

    return encoder(x, weights, **options, attend=wrong)


@_mutant("the layer adds positions of its own", "encoder_commutes_with_permutation")
def positions_of_its_own(x: Tensor, weights: Weights, **options: Any) -> Tensor:
    place = torch.linspace(0, 1, x.shape[1], dtype=x.dtype)[:, None]
    return encoder(x + place, weights, **options)


@_mutant("dropout is active, whatever the mode", "block_repeats_itself", "pytorch/pytorch#124464", "E12")
def dropout_always(x: Tensor, weights: Weights, **options: Any) -> Tensor:
    def wrong(y: Tensor, memory: Tensor, w: Weights, prefix: str, heads: int, masks: Masks) -> Tensor:
        return torch.nn.functional.dropout(attend(y, memory, w, prefix, heads, masks), 0.1)

    return encoder(x, weights, **options, attend=wrong)


@_mutant("the residual is added in place, to the argument", "block_arguments_are_unchanged", "teaching code", "D35")
def residual_in_place(x: Tensor, weights: Weights, **options: Any) -> Tensor:
    out = encoder(x, weights, **options)
    x.copy_(x + out)
    return out


@_mutant("the output is float32, whatever the input", "block_output_has_the_right_form")
def always_float32(x: Tensor, weights: Weights, **options: Any) -> Tensor:
    return encoder(x, weights, **options).float()
