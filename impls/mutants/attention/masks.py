"""What a mask means: polarity, what replaces a hidden logit, when it is applied, and what else it is combined with."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..registry import mutant
from .core import INF, Step, attention, both, hide, read_mask, softmax

Seen = tuple[Tensor | None, Tensor | None]


def filled(value: float) -> Step:
    """Overwrite hidden logits by a finite value: a row without keys becomes the mean of V, and large logits leak."""

    def fill(logit: Tensor, visible: Tensor | None, bias: Tensor | None) -> Tensor:
        logit = logit if bias is None else logit + bias
        return logit if visible is None else logit.masked_fill(~visible, value)

    return fill


def unguarded(logit: Tensor, visible: Tensor | None) -> Tensor:
    """The softmax that goes with a finite fill: nothing is known of rows without keys."""
    return torch.softmax(logit, -1)


@mutant(
    "bool mask means drop instead of keep",
    source="lucidrains/halonet-pytorch#4",
    killed_by="masked_keys_are_deleted",
    bug="A01",
)
def inverted(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def read(attn_mask: Tensor | None, shape: tuple[int, ...]) -> Seen:
        return read_mask(~attn_mask if attn_mask is not None and attn_mask.dtype == torch.bool else attn_mask, shape)

    return attention(q, k, v, **options, read_mask=read)


@mutant(
    "float mask cast to bool: non-zero means hidden",
    source="pytorch/pytorch#107084",
    killed_by="output_is_inside_the_bound",
    bug="A02",
)
def float_cast_to_hidden(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def read(attn_mask: Tensor | None, shape: tuple[int, ...]) -> Seen:
        return read_mask(attn_mask == 0 if attn_mask is not None and attn_mask.is_floating_point() else attn_mask, shape)

    return attention(q, k, v, **options, read_mask=read)


@mutant("float mask cast to bool: non-zero means visible", source="teaching code", killed_by="neutral_mask_changes_nothing")
def float_cast_to_visible(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def read(attn_mask: Tensor | None, shape: tuple[int, ...]) -> Seen:
        return read_mask(None if attn_mask is None else attn_mask != 0, shape)

    return attention(q, k, v, **options, read_mask=read)


@mutant("a user mask replaces the causal one", source="enpasos/jax2onnx#217", killed_by="masks_compose", bug="A10")
def mask_replaces_causal(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, both=lambda visible, causal: causal if visible is None else visible)


@mutant("the causal mask replaces the user's", source="pytorch/pytorch#187801", killed_by="masks_compose", bug="A30")
def causal_replaces_mask(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    if options.get("is_causal"):
        options["attn_mask"] = None
    return attention(q, k, v, **options)


@mutant("mask or causality suffices: or instead of and", source="teaching code", killed_by="masks_compose")
def mask_or_causal(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def either(visible: Tensor | None, causal: Tensor | None) -> Tensor | None:
        return both(visible, causal) if visible is None or causal is None else visible | causal

    return attention(q, k, v, **options, both=either)


@mutant(
    "a float mask makes the layer forget causality",
    source="huggingface/transformers#48821",
    killed_by="masks_compose",
    bug="A38",
)
def float_mask_drops_causal(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    mask = options.get("attn_mask")
    if mask is not None and mask.is_floating_point():
        options["is_causal"] = False
    return attention(q, k, v, **options)


@mutant(
    "causal without being asked, unless a mask is given",
    source="teaching code",
    killed_by="neutral_mask_changes_nothing",
)
def causal_unless_masked(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    if options.get("attn_mask") is None:
        options["is_causal"] = True
    return attention(q, k, v, **options)


@mutant(
    "scores multiplied by the 0/1 mask: a hidden key keeps weight e⁰",
    source="georg-wolflein/good-features#1",
    killed_by="masked_keys_are_deleted",
    bug="A18",
)
def multiplied_before_softmax(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def times(logit: Tensor, visible: Tensor | None, bias: Tensor | None) -> Tensor:
        return hide(logit, None, bias) if visible is None else hide(logit.masked_fill(~visible, 0.0), None, bias)

    return attention(q, k, v, **options, hide=times, softmax=unguarded)


@mutant(
    "mask applied after the softmax as -inf",
    source="huggingface/pytorch-image-models#2236",
    killed_by="masked_keys_are_deleted",
    bug="A19",
)
def minus_infinity_after_softmax(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def late(logit: Tensor, visible: Tensor | None) -> Tensor:
        weight = torch.softmax(logit, -1)
        return weight if visible is None else weight.masked_fill(~visible, -INF)

    return attention(q, k, v, **options, hide=lambda logit, visible, bias: hide(logit, None, bias), softmax=late)


@mutant(
    "mask applied after the softmax as 0, not renormalised",
    source="lucidrains/memory-compressed-attention#2",
    killed_by="rows_sum_to_one",
    bug="A20",
)
def zero_after_softmax(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def late(logit: Tensor, visible: Tensor | None) -> Tensor:
        weight = torch.softmax(logit, -1)
        return weight if visible is None else weight.masked_fill(~visible, 0.0)

    return attention(q, k, v, **options, hide=lambda logit, visible, bias: hide(logit, None, bias), softmax=late)


@mutant(
    "hidden logits are filled with +inf",
    source="lucidrains/memory-compressed-attention#2",
    killed_by="masked_keys_are_deleted",
    bug="A21",
)
def plus_infinity(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, hide=filled(INF), softmax=unguarded)


@mutant(
    "~ of a mask stored as bytes is never 0: everything is hidden",
    source="pytorch/pytorch#24180",
    killed_by="neutral_mask_changes_nothing",
    bug="A22",
)
def inverted_bytes(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def read(attn_mask: Tensor | None, shape: tuple[int, ...]) -> Seen:
        if attn_mask is None or attn_mask.is_floating_point():
            return read_mask(attn_mask, shape)
        return ~(~attn_mask.to(torch.uint8)).bool(), None

    return attention(q, k, v, **options, read_mask=read)


@mutant(
    "a bool mask is added as the numbers 0 and 1",
    source="microsoft/onnxscript#656",
    killed_by="bool_mask_equals_minus_infinity",
    bug="A23",
)
def bool_added(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    mask = options.get("attn_mask")
    if mask is not None and mask.dtype == torch.bool:
        options["attn_mask"] = mask.to(q.dtype)
    return attention(q, k, v, **options)


@mutant(
    "the scale multiplies the float mask too",
    source="tenstorrent/tt-metal#42891",
    killed_by="zero_queries_read_the_additive_mask",
    bug="A24",
)
def bias_scaled(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    scale = options.get("scale")
    factor = q.shape[-1] ** -0.5 if scale is None and q.shape[-1] else 1.0 if scale is None else scale

    def read(attn_mask: Tensor | None, shape: tuple[int, ...]) -> Seen:
        visible, bias = read_mask(attn_mask, shape)
        return visible, None if bias is None else bias * factor

    return attention(q, k, v, **options, read_mask=read)


@mutant(
    "two finfo.min planes are added: doubly hidden is -inf, singly hidden is finite",
    source="NVIDIA-NeMo/Automodel#2658",
    killed_by="rows_without_keys_follow_the_convention",
    bug="A31",
)
def planes_of_finfo_min(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    lowest = torch.finfo(q.dtype).min  # shows in a row that the mask empties while causality leaves it some keys

    def planes(logit: Tensor, visible: Tensor | None, bias: Tensor | None) -> Tensor:
        mask = read_mask(options.get("attn_mask"), logit.shape)[0]
        logit = logit if bias is None else logit + bias.clamp(min=lowest)
        for plane in (
            mask,
            torch.ones(logit.shape[-2:], dtype=torch.bool).tril() if options.get("is_causal") else None,
        ):
            logit = logit if plane is None else logit + (~plane).to(logit.dtype) * lowest
        return logit

    return attention(q, k, v, **options, hide=planes, softmax=unguarded)


@mutant(
    "-1e10 is written in the input's type: an error in float16",
    source="NVIDIA/apex#1052",
    killed_by="bool_mask_equals_minus_infinity",
    bug="A32",
)
def fill_overflows_half(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    mask = options.get("attn_mask")
    if mask is not None and mask.dtype == torch.bool:
        torch.zeros((), dtype=q.dtype).masked_fill(torch.ones((), dtype=torch.bool), -1e10)
    return attention(q, k, v, **options)


@mutant(
    "hidden logits get -10000 added: large logits leak through",
    source="microsoft/onnxruntime#8549",
    killed_by="masked_garbage_changes_nothing",
    bug="A35",
)
def ten_thousand_added(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def add(logit: Tensor, visible: Tensor | None, bias: Tensor | None) -> Tensor:
        logit = logit if bias is None else logit + bias
        return logit if visible is None else logit + (~visible).to(logit.dtype) * -1e4

    return attention(q, k, v, **options, hide=add, softmax=unguarded)


@mutant(
    "hidden logits are filled with -1e4",
    source="huggingface/transformers",
    killed_by="rows_without_keys_follow_the_convention",
    bug="A35",
)
def ten_thousand_filled(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, hide=filled(-1e4), softmax=unguarded)


@mutant(
    "hidden logits are filled with -1e9: a row without keys returns the mean of V",
    source="teaching code",
    killed_by="rows_without_keys_follow_the_convention",
)
def billion_filled(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, hide=filled(-1e9), softmax=unguarded)


@mutant("hidden logits are filled with -30", source="teaching code", killed_by="masked_garbage_changes_nothing")
def thirty_filled(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, hide=filled(-30.0), softmax=softmax)  # empty rows are handled, so only the leak shows


@mutant(
    "hidden logits are filled with -1e-9, a minus sign in the wrong place",
    source="teaching code",
    killed_by="masked_keys_are_deleted",
)
def tiny_filled(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, hide=filled(-1e-9), softmax=softmax)


@mutant(
    "finfo.min is added, not written",
    source="tensorflow/tensorflow#59657",
    killed_by="rows_without_keys_follow_the_convention",
    bug="E20",
)
def finfo_min_added(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    lowest = torch.finfo(q.dtype).min

    def add(logit: Tensor, visible: Tensor | None, bias: Tensor | None) -> Tensor:
        logit = logit if bias is None else logit + bias
        return logit if visible is None else logit + (~visible).to(logit.dtype) * lowest

    return attention(q, k, v, **options, hide=add, softmax=unguarded)


@mutant("the mask is ignored", source="torch-spyre/torch-spyre#4526", killed_by="masked_keys_are_deleted", bug="A48")
def ignored(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **{**options, "attn_mask": None})


@mutant(
    "only bool masks are applied; a float mask is ignored",
    source="teaching code",
    killed_by="bool_mask_equals_minus_infinity",
)
def float_ignored(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    mask = options.get("attn_mask")
    return attention(q, k, v, **{**options, "attn_mask": None if mask is not None and mask.is_floating_point() else mask})


@mutant(
    "of a float mask only -inf counts; its finite bias is dropped",
    source="teaching code",
    killed_by="output_is_inside_the_bound",
)
def finite_bias_ignored(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, read_mask=lambda mask, shape: (read_mask(mask, shape)[0], None))


@mutant("positive entries of a float mask are cut to 0", source="teaching code", killed_by="shifted_bias_changes_nothing")
def positive_bias_cut(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def read(attn_mask: Tensor | None, shape: tuple[int, ...]) -> Seen:
        visible, bias = read_mask(attn_mask, shape)
        return visible, None if bias is None else bias.clamp(max=0.0)

    return attention(q, k, v, **options, read_mask=read)


@mutant(
    "-inf in a float mask becomes a large finite number",
    source="teaching code",
    killed_by="rows_without_keys_follow_the_convention",
)
def infinity_made_finite(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    mask = options.get("attn_mask")
    if mask is not None and mask.is_floating_point():
        options["attn_mask"] = mask.clamp(min=-1e4)
    return attention(q, k, v, **options)


@mutant(
    "an all-False mask is taken for no mask",
    source="teaching code",
    killed_by="rows_without_keys_follow_the_convention",
)
def empty_mask_is_no_mask(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    mask = options.get("attn_mask")
    return attention(q, k, v, **{**options, "attn_mask": None if mask is not None and not mask.any() else mask})  # also zeros


@mutant(
    "the mask is read as lengths: how many keys are visible, counted from the left",
    source="microsoft/onnxruntime#27885",
    killed_by="uniform_weights_decode_the_mask",
    bug="A43",
)
def mask_read_as_lengths(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def read(attn_mask: Tensor | None, shape: tuple[int, ...]) -> Seen:
        visible, bias = read_mask(attn_mask, shape)
        if visible is None or bias is not None:
            return visible, bias
        return torch.arange(shape[-1]) < visible.expand(shape).sum(-1, keepdim=True), None

    return attention(q, k, v, **options, read_mask=read)


@mutant(
    "holes of a mask are filled up to its last visible key",
    source="huggingface/diffusers#14114",
    killed_by="uniform_weights_decode_the_mask",
    bug="A44",
)
def holes_filled(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def read(attn_mask: Tensor | None, shape: tuple[int, ...]) -> Seen:
        visible, bias = read_mask(attn_mask, shape)
        if visible is None or bias is not None:
            return visible, bias
        return visible.expand(shape).flip(-1).cumsum(-1).flip(-1) > 0, None

    return attention(q, k, v, **options, read_mask=read)


@mutant(
    "a key whose features sum to 0 is taken for padding",
    source="Kyubyong/transformer#69",
    killed_by="shifted_logits_change_nothing",
    bug="A51",
)
def zero_sum_is_padding(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    if not k.shape[-1]:
        return attention(q, k, v, **options)
    real = (k.sum(-1) != 0).repeat_interleave(max(q.shape[1] // max(k.shape[1], 1), 1), 1)[:, :, None]  # (B, H, 1, S)
    return attention(q, k, v, **options, both=lambda visible, causal: both(both(visible, causal), real))


@mutant(
    "a mask and is_causal are not taken together, and the mask is dropped without a word",
    source="pytorch/pytorch#178588",
    killed_by="a_mask_beside_causality_is_refused_or_heeded",
    supports={"mask_and_causal": False},
)
def dropped_beside_causality(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    if options.get("is_causal"):
        options["attn_mask"] = None
    return attention(q, k, v, **options)


@mutant(
    "a mask and is_causal are not taken together, and causality is dropped without a word",
    source="teaching code",
    killed_by="a_mask_beside_causality_is_refused_or_heeded",
    supports={"mask_and_causal": False},
)
def causality_dropped_beside_a_mask(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    if options.get("attn_mask") is not None:
        options["is_causal"] = False
    return attention(q, k, v, **options)
