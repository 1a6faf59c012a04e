"""Features: windows, caps, slopes, sinks, lengths, the log-sum-exp and dropout, each a little wrong."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..registry import MEMORY, mutant
from .core import INF, widen
from .feature_core import FACTS, ahead, attention, cap, distance_bias, drop, in_use, log_sum_exp, normalise, window

# ---------------------------------------------------------------- windows


@mutant(
    "the window is one key wider on the left",
    source="huggingface/transformers#26792",
    bug="B12",
    killed_by="window_edges_are_exact",
    supports=FACTS,
)
def window_one_more_on_the_left(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
    return attention(q, k, v, **options, window=lambda n, m, left, right: window(n, m, left + (left >= 0), right))


@mutant(
    "without a limit on the left that on the right is ignored, too",
    source="teaching code",
    killed_by="keys_outside_the_window_are_ignored",
    supports=FACTS,
)
def right_side_needs_a_left(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
    return attention(q, k, v, **options, window=lambda n, m, left, right: window(n, m, left, right if left >= 0 else -1))


@mutant("the window is one key narrower on the right", source="teaching code", killed_by="window_edges_are_exact", supports=FACTS)
def window_one_less_on_the_right(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
    return attention(q, k, v, **options, window=lambda n, m, left, right: window(n, m, left, right - (right > 0)))


@mutant(
    "the window counts the query itself: left keys in all",
    source="microsoft/onnxruntime#25927",
    bug="B14",
    killed_by="window_equals_band_mask",
    supports=FACTS,
)
def window_counts_the_query(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
    return attention(q, k, v, **options, window=lambda n, m, left, right: window(n, m, left - (left > 0), right))


@mutant("a window of 0 on the left is taken for none", source="teaching code", killed_by="window_edges_are_exact", supports=FACTS)
def zero_window_is_none(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
    return attention(q, k, v, **options, window=lambda n, m, left, right: window(n, m, left or -1, right))


@mutant("left and right of the window are swapped", source="teaching code", killed_by="window_equals_band_mask", supports=FACTS)
def window_sides_swapped(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
    return attention(q, k, v, **options, window=lambda n, m, left, right: window(n, m, right, left))


@mutant(
    "the right side of the window is ignored",
    source="jax-ml/jax#39576",
    bug="B20",
    killed_by="keys_outside_the_window_are_ignored",
    supports=FACTS,
)
def right_side_ignored(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
    return attention(q, k, v, **options, window=lambda n, m, left, right: window(n, m, left, -1))


@mutant(
    "an unlimited side of the window is a side of −1: the key next to the query is hidden",
    source="teaching code",
    killed_by="wide_window_is_no_window",
    supports=FACTS,
)
def minus_one_is_a_side(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
    def literal(n: int, m: int, left: int, right: int) -> Tensor:
        return (ahead(n, m) >= -left) & (ahead(n, m) <= right)

    return attention(q, k, v, **options, window=literal)


@mutant(
    "a mask of the user's replaces the window instead of joining it",
    source="enpasos/jax2onnx#217",
    bug="A10",
    killed_by="output_is_inside_the_bound",
    supports=FACTS,
)
def mask_replaces_the_window(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
    if options.get("attn_mask") is not None:
        options["window_size"] = None
    return attention(q, k, v, **options)


@mutant(
    "the window's right side is clamped to the number of keys, counted from the wrong end",
    source="Dao-AILab/flash-attention#895",
    bug="B18",
    killed_by="wide_window_is_no_window",
    supports=FACTS,
)
def right_side_clamped(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
    def clamped(n: int, m: int, left: int, right: int) -> Tensor:
        return window(n, m, left, right) & (ahead(n, m) + n <= max(m, 1) if right >= m else True)

    return attention(q, k, v, **options, window=clamped)


@mutant(
    "a window as wide as the sequence is switched off, and causality with it",
    source="tlc-pack/libflash_attn#11",
    bug="B19",
    killed_by="wide_window_is_no_window",
    supports=FACTS,
)
def wide_window_forgets_causality(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
    if options.get("window_size") and options["window_size"][0] >= k.shape[2]:
        options["is_causal"], options["window_size"] = False, None
    return attention(q, k, v, **options)


@mutant(
    "without a mask another backend runs, in which the window is one key wider",
    source="huggingface/transformers#29623",
    bug="B16",
    killed_by="window_edges_are_exact",
    supports=FACTS,
)
def window_of_another_backend(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
    return (window_one_more_on_the_left if options.get("attn_mask") is None else attention)(q, k, v, **options)


@mutant(
    "the window is one key wider on both sides",
    source="huggingface/transformers#39408",
    bug="B13",
    killed_by="window_equals_band_mask",
    supports=FACTS,
)
def window_one_more_on_both_sides(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
    def wider(n: int, m: int, left: int, right: int) -> Tensor:
        return window(n, m, left + (left >= 0), right + (right >= 0))

    return attention(q, k, v, **options, window=wider)


# ---------------------------------------------------------------- softcap


@mutant(
    "the softcap comes after the mask: −∞ becomes −c",
    source="onnx/onnx#7865",
    bug="A26",
    killed_by="softcap_leaves_the_mask_alone",
    supports=FACTS,
)
def cap_after_the_mask(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
    return attention(q, k, v, **options, cap_last=True)


@mutant(
    "the softcap comes after the bias, not before",
    source="NVIDIA/TransformerEngine#3391",
    bug="A28",
    killed_by="alibi_equals_its_bias",
    supports=FACTS,
)
def cap_after_the_bias(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
    mask, c = options.get("attn_mask"), options.get("softcap")
    if c is None or mask is None or mask.dtype == torch.bool:
        return attention(q, k, v, **options)
    bias = widen(mask).nan_to_num(neginf=0.0)
    hidden = options | {"attn_mask": mask != -INF}
    return attention(q, k, v, **hidden, cap=lambda logit, c: cap(logit + bias, c))


@mutant(
    "keys that fill up the last tile of 16 are capped from −∞ to −c, and counted",
    source="ggml-org/llama.cpp#29034",
    bug="A27",
    killed_by="output_is_inside_the_bound",
    supports=FACTS,
)
def cap_of_the_padding(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
    def padded(logit: Tensor, sinks: Tensor | None) -> Tensor:
        fill = logit.new_full((*logit.shape[:-1], -logit.shape[-1] % 16), -INF)
        return normalise(torch.cat([logit, cap(fill, options["softcap"])], -1), sinks)[..., : logit.shape[-1]]

    return attention(q, k, v, **options, normalise=padded if options.get("softcap") else normalise)


@mutant("the softcap is ignored", source="teaching code", killed_by="softcap_bounds_the_weights", supports=FACTS)
def cap_ignored(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
    return attention(q, k, v, **options, cap=lambda logit, c: logit)


@mutant(
    "tanh without the factor: the logits end at 1, not at c", source="teaching code", killed_by="output_is_inside_the_bound", supports=FACTS
)
def cap_without_its_factor(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
    return attention(q, k, v, **options, cap=lambda logit, c: torch.tanh(logit / c))


@mutant("the cap clamps instead of bending", source="teaching code", killed_by="output_is_inside_the_bound", supports=FACTS)
def cap_clamps(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
    return attention(q, k, v, **options, cap=lambda logit, c: logit.clamp(-c, c))


# ---------------------------------------------------------------- ALiBi


@mutant(
    "ALiBi with the wrong sign: far keys are favoured",
    source="meta-pytorch/attention-gym#86",
    bug="F20",
    killed_by="alibi_equals_its_bias",
    supports=FACTS,
)
def alibi_sign(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
    return attention(q, k, v, **options, distance_bias=lambda slopes, n, m: -distance_bias(slopes, n, m))


@mutant(
    "ALiBi without the absolute value: keys after the query are favoured",
    source="teaching code",
    killed_by="alibi_equals_its_bias",
    supports=FACTS,
)
def alibi_without_absolute(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
    return attention(q, k, v, **options, distance_bias=lambda slopes, n, m: slopes[:, None, None] * ahead(n, m))


@mutant("ALiBi with the slopes of the heads reversed", source="teaching code", killed_by="alibi_equals_its_bias", supports=FACTS)
def alibi_heads_reversed(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
    return attention(q, k, v, **options, distance_bias=lambda slopes, n, m: distance_bias(slopes.flip(0), n, m))


@mutant(
    "a slope of zero is taken for a missing one, and replaced by 1/256",
    source="teaching code",
    killed_by="zero_slopes_change_nothing",
    supports=FACTS,
)
def zero_slope_replaced(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
    def filled(slopes: Tensor, n: int, m: int) -> Tensor:
        return distance_bias(torch.where(slopes == 0, 2.0**-8, slopes), n, m)

    return attention(q, k, v, **options, distance_bias=filled)


# ---------------------------------------------------------------- sinks


@mutant("the sink is ignored: rows sum to one", source="teaching code", killed_by="sinks_take_their_share", supports=FACTS)
def sink_ignored(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
    return attention(q, k, v, **options, normalise=lambda logit, sinks: normalise(logit, None))


@mutant(
    "the sink is added as a number, not as the exponential of a logit",
    source="teaching code",
    killed_by="sinks_take_their_share",
    supports=FACTS,
)
def sink_without_exponential(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
    def added(logit: Tensor, sinks: Tensor | None) -> Tensor:
        return normalise(logit, None if sinks is None else torch.log(sinks.abs() + 2.0**-20))

    return attention(q, k, v, **options, normalise=added)


@mutant("the sink of head 0 serves all heads", source="teaching code", killed_by="sinks_take_their_share", supports=FACTS)
def sink_of_the_first_head(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
    def first(logit: Tensor, sinks: Tensor | None) -> Tensor:
        return normalise(logit, None if sinks is None else sinks[:1].expand(sinks.shape))

    return attention(q, k, v, **options, normalise=first)


@mutant(
    "the exponential of a sink is shifted by the largest logit, but clipped at exp(−10)",
    source="teaching code",
    killed_by="sinks_far_below_change_nothing",
    supports=FACTS,
)
def low_sink_clipped(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
    def clipped(logit: Tensor, sinks: Tensor | None) -> Tensor:
        top = logit.amax() if logit.numel() else logit.new_zeros(())
        return normalise(logit, None if sinks is None else torch.maximum(sinks, top.clamp(min=-1e4) - 10))

    return attention(q, k, v, **options, normalise=clipped)


# ---------------------------------------------------------------- lengths


@mutant("one key too many is in use", source="teaching code", killed_by="keys_beyond_the_length_are_ignored", supports=FACTS)
def length_one_too_many(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
    return attention(q, k, v, **options, in_use=lambda lengths, m: in_use(lengths + 1, m))


@mutant("the length of batch element 0 serves all", source="teaching code", killed_by="keys_beyond_the_length_are_ignored", supports=FACTS)
def length_of_the_first(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
    return attention(q, k, v, **options, in_use=lambda lengths, m: in_use(lengths[:1], m))


@mutant(
    "a sequence is read where it would lie if none were padded beyond the longest",
    source="NVIDIA/FasterTransformer#270",
    bug="D30",
    killed_by="keys_beyond_the_length_are_ignored",
    supports=FACTS,
)
def stride_of_the_longest(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
    lengths, (batch, _, keys, _) = options.get("kv_lengths"), k.shape
    if lengths is not None and k.numel() and v.numel():
        place = (torch.arange(batch)[:, None] * lengths.max() + torch.arange(keys)).flatten()
        k, v = (x.transpose(1, 2).flatten(0, 1)[place].unflatten(0, (batch, keys)).transpose(1, 2) for x in (k, v))
    return attention(q, k, v, **options)


@mutant(
    "a length of 0 is taken for the whole sequence", source="teaching code", killed_by="keys_beyond_the_length_are_ignored", supports=FACTS
)
def length_zero_is_all(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
    return attention(q, k, v, **options, in_use=lambda lengths, m: in_use(torch.where(lengths == 0, m, lengths), m))


# ---------------------------------------------------------------- the log-sum-exp


@mutant("the log-sum-exp is in base 2", source="pytorch/pytorch#181645", bug="E06", killed_by="lse_is_the_log_of_the_sum", supports=FACTS)
def lse_in_base_two(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
    return attention(q, k, v, **options, log_sum_exp=lambda logit: log_sum_exp(logit) / math.log(2))


@mutant("the log-sum-exp of a row without keys is 0", source="teaching code", killed_by="lse_is_the_log_of_the_sum", supports=FACTS)
def lse_of_an_empty_row(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
    return attention(q, k, v, **options, log_sum_exp=lambda logit: log_sum_exp(logit).nan_to_num(neginf=0.0))


@mutant(
    "the log-sum-exp lacks the maximum that was subtracted",
    source="Dao-AILab/flash-attention#404",
    bug="E07",
    killed_by="lse_is_the_log_of_the_sum",
    supports=FACTS,
)
def lse_without_the_maximum(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
    def shifted(logit: Tensor) -> Tensor:
        return log_sum_exp(logit) - (logit.amax(-1).nan_to_num(neginf=0.0) if logit.shape[-1] else 0.0)

    return attention(q, k, v, **options, log_sum_exp=shifted)


@mutant(
    "asking for the log-sum-exp takes another path, which forgets the scale",
    source="teaching code",
    killed_by="lse_does_not_change_the_output",
    supports=FACTS,
)
def lse_path_without_scale(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
    return attention(q, k, v, **options, scale_of=(lambda scale: 1.0) if options.get("return_lse") else (lambda scale: scale))


# ---------------------------------------------------------------- dropout


@mutant(
    "dropped weights are not made up for: no division by 1 − p",
    source="teaching code",
    killed_by="dropout_drops_or_rescales",
    supports=FACTS,
)
def dropout_not_rescaled(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
    return attention(q, k, v, **options, drop=lambda weight, p: drop(weight, p) * (1 - p))


@mutant(
    "dropout before the softmax's normalisation: the rest is renormalised",
    source="teaching code",
    killed_by="dropout_drops_or_rescales",
    supports=FACTS,
)
def dropout_renormalised(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
    def renormalised(weight: Tensor, p: float) -> Tensor:
        kept = drop(weight, p)
        return kept / kept.sum(-1, keepdim=True).clamp(min=2.0**-60)

    return attention(q, k, v, **options, drop=renormalised)


@mutant("one dropout mask for all heads", source="teaching code", bug="G15", killed_by="dropout_is_not_shared", supports=FACTS)
def dropout_shared_over_heads(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
    return attention(q, k, v, **options, drop=lambda weight, p: weight * drop(torch.ones_like(weight[:, :1]), p))


@mutant("one dropout mask for all rows", source="teaching code", killed_by="dropout_is_not_shared", supports=FACTS)
def dropout_shared_over_rows(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
    return attention(q, k, v, **options, drop=lambda weight, p: weight * drop(torch.ones_like(weight[:, :, :1]), p))


@mutant("what is dropped repeats every 32 keys", source="teaching code", killed_by="dropout_is_not_shared", supports=FACTS)
def dropout_repeats(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def periodic(weight: Tensor, p: float) -> Tensor:
        return weight * drop(torch.ones_like(weight), p)[..., torch.arange(weight.shape[-1]) % 32]

    return attention(q, k, v, **options, drop=periodic)


@mutant("half as much again is dropped as p says", source="teaching code", killed_by="dropout_keeps_its_share", supports=FACTS)
def dropout_of_more(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
    def more(weight: Tensor, p: float) -> Tensor:
        return weight * (torch.rand_like(weight) > p * 1.5) / (1 - p)

    return attention(q, k, v, **options, drop=more)


@mutant("dropout_p is taken for the share that is kept", source="teaching code", killed_by="dropout_keeps_its_share", supports=FACTS)
def dropout_p_is_kept(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
    return attention(q, k, v, **options, drop=lambda weight, p: drop(weight, 1 - p))


@mutant(
    "half of the weights are dropped, whatever dropout_p says", source="teaching code", killed_by="dropout_keeps_its_share", supports=FACTS
)
def dropout_always_half(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
    return attention(q, k, v, **options, drop=lambda weight, p: drop(weight, 0.5))


@mutant(
    "every call drops the same: the generator is seeded in the call",
    source="teaching code",
    killed_by="dropout_is_not_shared",
    supports=FACTS,
)
def dropout_seeded_in_the_call(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
    def same(weight: Tensor, p: float) -> Tensor:
        generator = torch.Generator().manual_seed(0)
        return weight * (torch.rand(weight.shape, generator=generator) >= p) / (1 - p)

    return attention(q, k, v, **options, drop=same)


@mutant(
    "dropout sticks: after a call with dropout_p all calls drop",
    source="teaching code",
    killed_by="dropout_of_zero_drops_nothing",
    supports=FACTS,
)
def dropout_sticks(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
    MEMORY["dropout_p"] = options.get("dropout_p", 0.0) or MEMORY.get("dropout_p", 0.0)
    return attention(q, k, v, **options | {"dropout_p": MEMORY["dropout_p"]})


@mutant(
    "dropout is switched off for good by a call without it",
    source="NVIDIA/Megatron-LM#411",
    bug="E13",
    killed_by="dropout_of_zero_drops_nothing",
    supports=FACTS,
)
def dropout_off_for_good(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
    if options.get("dropout_p") == 0:  # evaluation, said so
        MEMORY["evaluated"] = True
    return attention(q, k, v, **options | ({"dropout_p": 0.0} if MEMORY.get("evaluated") else {}))


@mutant(
    "dropout of 0 is taken for none given, and replaced by 0.1",
    source="huggingface/pytorch-image-models#1978",
    bug="E12",
    killed_by="dropout_of_zero_drops_nothing",
    supports=FACTS,
)
def dropout_in_evaluation(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
    given = "dropout_p" in options
    return attention(q, k, v, **options | ({"dropout_p": options["dropout_p"] or 0.1} if given else {}))


@mutant("dropout is ignored", source="teaching code", killed_by="dropout_drops_or_rescales", supports=FACTS)
def dropout_ignored(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
    return attention(q, k, v, **options, drop=lambda weight, p: weight)
