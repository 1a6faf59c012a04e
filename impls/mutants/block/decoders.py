"""Decoder layers: the memory, and what hides it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..registry import Function, mutant
from .block import Masks, Weights, around, attend, decoder, norm


def _mutant(mistake: str, killed_by: str, source: str = "teaching code", bug: str | None = None) -> Callable[[Function], Function]:
    return mutant(mistake, source=source, killed_by=killed_by, contract="decoder_layer", bug=bug)


def _exchanged(weights: Weights, one: str, other: str) -> dict[str, Tensor]:
    """The weights with two roles exchanged: w_… and b_…"""
    swap = {f"{kind}_{a}": f"{kind}_{b}" for kind in ("cross_w", "cross_b") for a, b in ((one, other), (other, one))}
    return {name: weights[swap.get(name, name)] for name in weights}


# --- from whom to whom --------------------------------------------------------------------------------------------


@_mutant("keys and values of the cross-attention are exchanged", "equal_memory_needs_no_query", bug="G11")
def keys_and_values_exchanged(x: Tensor, memory: Tensor, weights: Weights, **options: Any) -> Tensor:
    return decoder(x, memory, _exchanged(weights, "k", "v"), **options)


@_mutant("queries and keys of the cross-attention are exchanged", "block_is_inside_the_bound", "microsoft/onnxruntime#16721", "G09")
def queries_and_keys_exchanged(x: Tensor, memory: Tensor, weights: Weights, **options: Any) -> Tensor:
    return decoder(x, memory, _exchanged(weights, "q", "k"), **options)


@_mutant("the cross-attention has the weights of the self-attention", "every_weight_is_used")
def weights_of_self_attention(x: Tensor, memory: Tensor, weights: Weights, **options: Any) -> Tensor:
    shared = {f"cross_{name}": w for name, w in weights.items() if name[-1] in "qkvo"}
    return decoder(x, memory, {**weights, **shared}, **options)


@_mutant("there is no cross-attention", "every_memory_token_matters")
def no_cross_attention(x: Tensor, memory: Tensor, weights: Weights, **options: Any) -> Tensor:
    return decoder(x, memory, weights, **options, cross=lambda y, *_: torch.zeros_like(y))


@_mutant("cross-attention looks at the target instead of the memory, where they are equally long", "every_memory_token_matters", bug="G11")
def memory_is_the_target(x: Tensor, memory: Tensor, weights: Weights, **options: Any) -> Tensor:
    return decoder(x, x if x.shape == memory.shape else memory, weights, **options)


@_mutant("the mean of the memory is added to the residual", "memory_enters_through_attention_alone")
def memory_in_the_residual(x: Tensor, memory: Tensor, weights: Weights, **options: Any) -> Tensor:
    def wrong(y: Tensor, m: Tensor, *rest: Any) -> Tensor:
        return attend(y, m, *rest) + m.mean(1, keepdim=True)

    return decoder(x, memory, weights, **options, cross=wrong)


@_mutant("self-attention sees the memory as well", "memory_enters_through_attention_alone")
def self_attention_sees_the_memory(x: Tensor, memory: Tensor, weights: Weights, **options: Any) -> Tensor:
    def wrong(y: Tensor, z: Tensor, w: Weights, prefix: str, heads: int, masks: Masks) -> Tensor:
        if any(mask is not None and mask is not False for mask in masks.values()):
            return attend(y, z, w, prefix, heads, masks)
        return attend(y, torch.cat((z, memory.to(z.dtype)), 1), w, prefix, heads, {})

    return decoder(x, memory, weights, **options, attend=wrong)


@_mutant("cross-attention comes before self-attention", "block_is_inside_the_bound")
def cross_attention_first(x: Tensor, memory: Tensor, weights: Weights, **options: Any) -> Tensor:
    later: list[Any] = []

    def wrong(y: Tensor, number: int, w: Weights, first: bool, norm: Any, f: Any) -> Tensor:
        if number == 1:
            later.append(f)
            return y
        y = around(y, number, w, first, norm, f)
        return around(y, 1, w, first, norm, later[0]) if number == 2 else y

    return decoder(x, memory, weights, **options, around=wrong)


@_mutant("the queries of the cross-attention are the input of the layer", "block_is_inside_the_bound")
def queries_from_the_input(x: Tensor, memory: Tensor, weights: Weights, **options: Any) -> Tensor:
    def wrong(y: Tensor, *rest: Any) -> Tensor:
        return attend(x.to(y.dtype), *rest)

    return decoder(x, memory, weights, **options, cross=wrong)


@_mutant("the residual around cross-attention starts from the input of the layer", "norms_are_over_features_alone")
def residual_skips_self_attention(x: Tensor, memory: Tensor, weights: Weights, **options: Any) -> Tensor:
    def wrong(y: Tensor, number: int, w: Weights, first: bool, norm: Any, f: Any) -> Tensor:
        if number != 2:
            return around(y, number, w, first, norm, f)
        gain, shift, start = w["g_2"], w.get("beta_2"), x.to(y.dtype).mean(1, keepdim=True) + 0 * y
        return start + f(norm(y, gain, shift)) if first else norm(start + f(y), gain, shift)

    return decoder(x, memory, weights, **options, around=wrong)


@_mutant("pre-norm normalises the memory, too", "block_is_inside_the_bound")
def memory_is_normed(x: Tensor, memory: Tensor, weights: Weights, **options: Any) -> Tensor:
    def wrong(y: Tensor, m: Tensor, w: Weights, *rest: Any) -> Tensor:
        return attend(y, norm(m, w["g_2"], w.get("beta_2")) if options.get("norm_first") else m, w, *rest)

    return decoder(x, memory, weights, **options, cross=wrong)


@_mutant("the norms of cross-attention and feed-forward part are exchanged", "block_is_inside_the_bound")
def norms_exchanged(x: Tensor, memory: Tensor, weights: Weights, **options: Any) -> Tensor:
    return decoder(x, memory, weights, **options, around=lambda x, number, *rest: around(x, {1: 1, 2: 3, 3: 2}[number], *rest))


@_mutant("the third norm is the second one again", "every_weight_is_used")
def two_norms_for_three(x: Tensor, memory: Tensor, weights: Weights, **options: Any) -> Tensor:
    return decoder(x, memory, weights, **options, around=lambda x, number, *rest: around(x, min(number, 2), *rest))


# --- what is seen of the memory -----------------------------------------------------------------------------------


@_mutant("memory_mask is ignored", "memory_frontier_is_exact")
def memory_mask_ignored(x: Tensor, memory: Tensor, weights: Weights, **options: Any) -> Tensor:
    return decoder(x, memory, weights, **{**options, "memory_mask": None})


@_mutant("memory_mask is read the wrong way round", "memory_frontier_is_exact", "lucidrains/halonet-pytorch#4", "A01")
def memory_mask_inverted(x: Tensor, memory: Tensor, weights: Weights, memory_mask: Tensor | None = None, **options: Any) -> Tensor:
    inverted = ~memory_mask if memory_mask is not None and memory_mask.dtype == torch.bool else memory_mask
    return decoder(x, memory, weights, **options, memory_mask=inverted)


@_mutant("a square memory_mask is transposed", "memory_frontier_is_exact")
def memory_mask_transposed(x: Tensor, memory: Tensor, weights: Weights, memory_mask: Tensor | None = None, **options: Any) -> Tensor:
    square = memory_mask is not None and memory_mask.ndim > 1 and memory_mask.shape[-1] == memory_mask.shape[-2]
    return decoder(x, memory, weights, **options, memory_mask=memory_mask.mT if square and memory_mask is not None else memory_mask)


@_mutant("memory_key_padding_mask is ignored", "padded_memory_is_as_good_as_removed", "lucidrains/x-transformers#187", "F24")
def memory_padding_ignored(x: Tensor, memory: Tensor, weights: Weights, **options: Any) -> Tensor:
    return decoder(x, memory, weights, **{**options, "memory_key_padding_mask": None})


@_mutant("memory_key_padding_mask is read the wrong way round", "padded_memory_is_as_good_as_removed", "nyu-mll/jiant#465", "A01")
def memory_padding_inverted(x: Tensor, memory: Tensor, weights: Weights, **options: Any) -> Tensor:
    padding = options.pop("memory_key_padding_mask", None)
    return decoder(x, memory, weights, **options, memory_key_padding_mask=None if padding is None else ~padding)


@_mutant("the memory's padding of the first sequence is used for all", "padded_memory_is_as_good_as_removed", bug="A53")
def memory_padding_of_the_first(x: Tensor, memory: Tensor, weights: Weights, **options: Any) -> Tensor:
    padding = options.pop("memory_key_padding_mask", None)
    return decoder(x, memory, weights, **options, memory_key_padding_mask=None if padding is None else padding[:1].expand_as(padding))


@_mutant("the padding of the source is used for the target, where they are equally long", "memory_mask_and_padding_compose")
def memory_padding_for_the_target(x: Tensor, memory: Tensor, weights: Weights, **options: Any) -> Tensor:
    padding = options.get("memory_key_padding_mask")
    return decoder(x, memory, weights, **options | ({"key_padding_mask": padding} if x.shape == memory.shape else {}))


@_mutant("the padding of the target is used for the memory, where they are equally long", "memory_mask_and_padding_compose")
def padding_for_the_memory(x: Tensor, memory: Tensor, weights: Weights, **options: Any) -> Tensor:
    padding = options.get("key_padding_mask")
    return decoder(x, memory, weights, **options | ({"memory_key_padding_mask": padding} if x.shape == memory.shape else {}))


@_mutant("memory_mask replaces the padding of the memory", "memory_mask_and_padding_compose", "enpasos/jax2onnx#217", "A10")
def memory_mask_replaces_padding(x: Tensor, memory: Tensor, weights: Weights, **options: Any) -> Tensor:
    return decoder(x, memory, weights, **options | ({"memory_key_padding_mask": None} if options.get("memory_mask") is not None else {}))


@_mutant("the memory_mask of the first sequence is used for all", "memory_mask_and_padding_compose", "pytorch/pytorch#184180", "A46")
def memory_mask_of_the_first(x: Tensor, memory: Tensor, weights: Weights, memory_mask: Tensor | None = None, **options: Any) -> Tensor:
    wide = memory_mask is not None and memory_mask.ndim == 4
    return decoder(x, memory, weights, **options, memory_mask=memory_mask[:1] if wide and memory_mask is not None else memory_mask)


@_mutant("causality is applied to the memory, too", "every_memory_token_matters")
def causality_in_the_memory(x: Tensor, memory: Tensor, weights: Weights, **options: Any) -> Tensor:
    causal = options.get("is_causal", False)

    def wrong(y: Tensor, m: Tensor, w: Weights, prefix: str, heads: int, masks: Masks) -> Tensor:
        return attend(y, m, w, prefix, heads, {**masks, "is_causal": causal})

    return decoder(x, memory, weights, **options, cross=wrong)


@_mutant("no more of the memory is seen than the target is long", "every_memory_token_matters", "harvard-edge/cs249r_book#1875", "A17")
def memory_cut_to_the_target(x: Tensor, memory: Tensor, weights: Weights, **options: Any) -> Tensor:
    plain = all(options.get(name) is None for name in ("memory_mask", "memory_key_padding_mask"))
    return decoder(x, memory[:, : x.shape[1]] if plain else memory, weights, **options)


@_mutant("the last token of the memory is left out", "every_memory_token_matters")
def last_of_the_memory_left_out(x: Tensor, memory: Tensor, weights: Weights, **options: Any) -> Tensor:
    plain = all(options.get(name) is None for name in ("memory_mask", "memory_key_padding_mask")) and memory.shape[1] > 1
    return decoder(x, memory[:, :-1] if plain else memory, weights, **options)


@_mutant("the memory is given positions of its own", "order_of_the_memory_does_not_matter")
def positions_in_the_memory(x: Tensor, memory: Tensor, weights: Weights, **options: Any) -> Tensor:
    place = torch.linspace(0, 1, memory.shape[1], dtype=memory.dtype)[:, None]
    return decoder(x, memory + place, weights, **options)


@_mutant("a sequence looks at the memory of the next one", "sequences_do_not_meet", "vllm-project/vllm#7018", "D31")
def memory_of_the_next_sequence(x: Tensor, memory: Tensor, weights: Weights, **options: Any) -> Tensor:
    return decoder(x, memory.roll(1, 0), weights, **options)


@_mutant("all sequences look at the memory of the first", "sequences_do_not_meet", bug="D31")
def memory_of_the_first_sequence(x: Tensor, memory: Tensor, weights: Weights, **options: Any) -> Tensor:
    return decoder(x, memory[:1].expand_as(memory), weights, **options)


# --- causality ----------------------------------------------------------------------------------------------------


@_mutant("the decoder is not causal", "causal_block_ignores_the_future", "facebookresearch/xformers#103", "A07")
def not_causal(x: Tensor, memory: Tensor, weights: Weights, **options: Any) -> Tensor:
    return decoder(x, memory, weights, **{**options, "is_causal": False})


@_mutant("the decoder sees one token too far", "causal_block_ignores_the_future", "RVC-Boss/GPT-SoVITS#965", "B10")
def one_token_too_far(x: Tensor, memory: Tensor, weights: Weights, **options: Any) -> Tensor:
    if options.get("is_causal") and options.get("attn_mask") is None:
        seen = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril(1)
        options = {**options, "is_causal": False, "attn_mask": seen}
    return decoder(x, memory, weights, **options)


@_mutant("causality is forgotten where the memory has a mask", "causal_block_ignores_the_future", "keras-team/keras#23038", "A06")
def causality_forgotten_beside_a_memory_mask(x: Tensor, memory: Tensor, weights: Weights, **options: Any) -> Tensor:
    return decoder(x, memory, weights, **options | ({"is_causal": False} if options.get("memory_mask") is not None else {}))
