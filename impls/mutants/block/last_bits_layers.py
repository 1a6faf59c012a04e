"""The last bits of layers: what a bias, a norm or a residual loses on a way that leads back to where it began."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..attention import core
from ..attention.core import Step, hide
from ..attention.last_bits import restored, shared, sharing
from ..multihead import layer
from ..multihead.layer import multihead
from ..registry import MEMORY, Function, mutant
from .block import EPS, Masks, Weights, around, attend, decoder, encoder, linear, norm


def _layer(mistake: str, killed_by: str, source: str = "teaching code") -> Callable[[Function], Function]:
    return mutant(mistake, source=source, killed_by=killed_by, contract="multihead")


def _encoder(mistake: str, killed_by: str, source: str = "teaching code") -> Callable[[Function], Function]:
    return mutant(mistake, source=source, killed_by=killed_by, contract="encoder_layer")


def _decoder(mistake: str, killed_by: str, source: str = "teaching code") -> Callable[[Function], Function]:
    return mutant(mistake, source=source, killed_by=killed_by, contract="decoder_layer")


def before_the_mask() -> dict[str, Any]:
    """The steps of an attention whose maximum is taken before the mask."""
    raw: list[Tensor] = []

    def keep(logit: Tensor, visible: Tensor | None, bias: Tensor | None) -> Tensor:
        raw.append(logit)
        return hide(logit, visible, bias)

    def shifted(logit: Tensor, visible: Tensor | None) -> Tensor:
        return shared(logit, visible, raw[-1].amax(-1, keepdim=True)) if logit.numel() else core.softmax(logit, visible)

    return {"hide": keep, "softmax": shifted}


def attending(steps: Callable[[], dict[str, Any]]) -> Step:
    """The attention of an encoder or decoder layer with some steps of its kernel replaced."""

    def replaced(x: Tensor, memory: Tensor, weights: Weights, prefix: str, num_heads: int, masks: Masks) -> Tensor:
        own = {name: weights[prefix + name] for name in (f"{kind}_{part}" for kind in "wb" for part in "qkvo") if prefix + name in weights}
        return multihead(x, memory, memory, own, num_heads=num_heads, need_weights=False, **masks, **steps())[0]

    return replaced


def ranks(count: int) -> Step:
    """The output projection of as many devices: each adds its share of the bias, and all are summed."""

    def project(x: Tensor, weights: layer.Weights, name: str) -> Tensor:
        if name != "o" or weights.get("b_o") is None:
            return layer.project(x, weights, name)
        bias, out = core.widen(weights["b_o"]) / count, x @ core.widen(weights["w_o"]).mT + core.widen(weights["b_o"]) / count
        for _ in range(count - 1):
            out = out + bias
        return out

    return project


# --- a layer of heads ---------------------------------------------------------------------------------------------


@_layer("all heads of the layer share one running maximum", "heads_touch_only_their_slice")
def heads_of_the_layer_share_their_maximum(
    query: Tensor, key: Tensor, value: Tensor, weights: layer.Weights, **options: Any
) -> layer.Answer:
    return multihead(query, key, value, weights, **options, softmax=sharing(1))


@_layer("three devices add a third of the output bias each", "zero_output_projection_returns_the_bias", "PaddlePaddle/FastDeploy#5247")
def bias_in_shares(query: Tensor, key: Tensor, value: Tensor, weights: layer.Weights, **options: Any) -> layer.Answer:
    return multihead(query, key, value, weights, **options, project=ranks(3))


@_layer("the queries of a tile share one running maximum in the layer", "layer_ignores_future_tokens")
def tokens_of_the_layer_share_their_maximum(
    query: Tensor, key: Tensor, value: Tensor, weights: layer.Weights, **options: Any
) -> layer.Answer:
    return multihead(query, key, value, weights, **options, softmax=sharing(-2))


@_layer(
    "padded keys shift the softmax: the maximum is taken before the mask", "padding_mask_deletes_keys", "huggingface/transformers#29029"
)
def padding_shifts_the_softmax(query: Tensor, key: Tensor, value: Tensor, weights: layer.Weights, **options: Any) -> layer.Answer:
    return multihead(query, key, value, weights, **options, **before_the_mask())


@_layer("the weights of the queries are multiplied by the scale in place, and divided by it again", "layer_arguments_are_unchanged")
def weights_scaled_and_restored(query: Tensor, key: Tensor, value: Tensor, weights: layer.Weights, **options: Any) -> layer.Answer:
    out = multihead(query, key, value, weights, **options)
    restored(weights["w_q"], 0.3)
    return out


# --- encoder and decoder layers -----------------------------------------------------------------------------------


def shifted_norm(x: Tensor, gain: Tensor, shift: Tensor | None) -> Tensor:
    """The norm of x less the mean over everything, "for stability": it changes nothing but the last bits."""
    return norm(x - x.mean(), gain, shift)


def restored_residual(x: Tensor, number: int, weights: Weights, norm_first: bool, norm: Step, f: Callable[[Tensor], Tensor]) -> Tensor:
    """A residual made of the norm's own intermediate results, to keep no copy of x: mean + deviation · (x − mean) / deviation."""
    mean = x.mean(-1, keepdim=True)
    deviation = ((x - mean).square().mean(-1, keepdim=True) + EPS).sqrt()
    return around(mean + deviation * ((x - mean) / deviation), number, weights, norm_first, norm, f)


@_encoder("the whole batch shares one running maximum in the layer", "sequences_do_not_meet")
def sequences_share_their_maximum(x: Tensor, weights: Weights, **options: Any) -> Tensor:
    return encoder(x, weights, **options, attend=attending(lambda: {"softmax": sharing(0)}))


@_encoder("the tokens of a tile share one running maximum", "causal_block_ignores_the_future")
def tokens_share_their_maximum(x: Tensor, weights: Weights, **options: Any) -> Tensor:
    return encoder(x, weights, **options, attend=attending(lambda: {"softmax": sharing(-2)}))


@_encoder(
    "padded tokens shift the softmax: the maximum is taken before the mask",
    "padded_tokens_are_as_good_as_removed",
    "huggingface/transformers#29029",
)
def padded_tokens_shift_the_softmax(x: Tensor, weights: Weights, **options: Any) -> Tensor:
    return encoder(x, weights, **options, attend=attending(before_the_mask) if options.get("key_padding_mask") is not None else attend)


@_encoder("hidden tokens shift the softmax: the maximum is taken before the mask", "tokens_reach_exactly_who_sees_them")
def hidden_tokens_shift_the_softmax(x: Tensor, weights: Weights, **options: Any) -> Tensor:
    return encoder(x, weights, **options, attend=attending(before_the_mask) if options.get("attn_mask") is not None else attend)


@_encoder("the residual is computed back from the norm, which saves a copy", "pre_norm_without_sublayers_is_the_identity")
def residual_from_the_norm(x: Tensor, weights: Weights, **options: Any) -> Tensor:
    return encoder(x, weights, **options, around=restored_residual)


@_encoder("before the norm the mean of all tokens is subtracted", "norms_are_over_features_alone")
def norm_of_shifted_tokens(x: Tensor, weights: Weights, **options: Any) -> Tensor:
    return encoder(x, weights, **options, norm=shifted_norm)


@_encoder("relu is smooth: h · σ(32 h)", "relu_passes_nothing_negative")
def smooth_relu(x: Tensor, weights: Weights, **options: Any) -> Tensor:
    def feed(y: Tensor, w: Weights, activation: str) -> Tensor:
        hidden = linear(y, w, 1)
        kept = hidden * torch.sigmoid(32 * hidden) if activation == "relu" else torch.nn.functional.gelu(hidden)
        return linear(torch.where(hidden > 0, torch.relu(hidden), kept) if activation == "relu" else kept, w, 2)

    return encoder(x, weights, **options, feed_forward=feed)


@_encoder("the first call is profiled, the next one compiled, with another sum", "block_repeats_itself")
def compiled_after_the_first_call(x: Tensor, weights: Weights, **options: Any) -> Tensor:
    MEMORY["compiled_after_the_first_call"] = turn = MEMORY.get("compiled_after_the_first_call", 0) + 1
    return encoder(x, weights, **options, norm=shifted_norm if turn % 4 < 2 else norm)


@_encoder("the tokens are scaled in place, and back", "block_arguments_are_unchanged")
def tokens_scaled_and_restored(x: Tensor, weights: Weights, **options: Any) -> Tensor:
    out = encoder(x, weights, **options)
    restored(x, 0.3)
    return out


@_decoder("hidden tokens of the memory shift the softmax", "memory_frontier_is_exact")
def hidden_memory_shifts_the_softmax(x: Tensor, memory: Tensor, weights: Weights, **options: Any) -> Tensor:
    return decoder(x, memory, weights, **options, cross=attending(before_the_mask))


@_decoder("padded memory shifts the softmax", "padded_memory_is_as_good_as_removed", "huggingface/transformers#29029")
def padded_memory_shifts_the_softmax(x: Tensor, memory: Tensor, weights: Weights, **options: Any) -> Tensor:
    padded = options.get("memory_key_padding_mask") is not None
    return decoder(x, memory, weights, **options, cross=attending(before_the_mask) if padded else attend)


@_decoder("tokens and memory are centred together before the norm", "memory_enters_through_attention_alone")
def centred_with_the_memory(x: Tensor, memory: Tensor, weights: Weights, **options: Any) -> Tensor:
    def centred(y: Tensor, gain: Tensor, shift: Tensor | None) -> Tensor:
        return norm(y - core.widen(memory).mean(), gain, shift)

    return decoder(x, memory, weights, **options, norm=centred)
