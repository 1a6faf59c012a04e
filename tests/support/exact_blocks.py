"""Encoder and decoder layers that are right, the exact answers rounded once, and one mistake for every property of them.

They know no implementation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from properties.block import exact as exactly
from properties.block.trial import visible_and_bias
from properties.engine.cases.masks import frontier
from properties.engine.core.target import Target
from properties.engine.search.probe import make_target
from properties.exact.arithmetic import default_arithmetic

Change = Callable[[dict[str, Any]], Any]


def carrier(x: Tensor | None) -> Any:
    """The numbers of a tensor in float64, or a bool array."""
    return None if x is None else x.detach().numpy() if x.dtype == torch.bool else x.detach().double().numpy()


def exact(x: dict[str, Any]) -> Tensor:
    """The exact answer to a call, rounded once."""
    tokens, memory, heads = carrier(x["x"]), carrier(x["memory"]), x["num_heads"]
    batch, length, _ = tokens.shape
    seen, bias = visible_and_bias(carrier(x["attn_mask"]), carrier(x["key_padding_mask"]), (batch, heads, length, length))
    if x["is_causal"]:
        seen = seen & frontier(length, length)
    block = exactly.Block(
        tokens,
        {name: carrier(w) for name, w in x["weights"].items()},
        heads,
        seen,
        bias,
        norm_first=x["norm_first"],
        activation=x["activation"],
    )
    if memory is not None:
        masks = carrier(x["memory_mask"]), carrier(x["memory_key_padding_mask"])
        seen, bias = visible_and_bias(*masks, (batch, heads, length, memory.shape[1]))
        block = block.but(memory=memory, memory_visible=seen, memory_bias=bias)
    precision: Any = "extended" if x["x"].dtype == torch.float64 else "float64"
    out = exactly.solve(block, default_arithmetic("float64"), precision).near
    return torch.from_numpy(np.array(out)).to(x["x"].dtype)


def encoder_with(change: Change = exact) -> Any:
    """change(x) answers the call whose arguments x holds."""

    def layer(
        x: Tensor,
        weights: Mapping[str, Tensor],
        *,
        num_heads: int,
        attn_mask: Any = None,
        key_padding_mask: Any = None,
        is_causal: bool = False,
        norm_first: bool = False,
        activation: str = "relu",
    ) -> Any:
        return change(
            {
                "x": x,
                "memory": None,
                "weights": dict(weights),
                "num_heads": num_heads,
                "attn_mask": attn_mask,
                "key_padding_mask": key_padding_mask,
                "is_causal": is_causal,
                "norm_first": norm_first,
                "activation": activation,
                "memory_mask": None,
                "memory_key_padding_mask": None,
            }
        )

    return layer


def decoder_with(change: Change = exact) -> Any:
    def layer(
        x: Tensor,
        memory: Tensor,
        weights: Mapping[str, Tensor],
        *,
        num_heads: int,
        attn_mask: Any = None,
        memory_mask: Any = None,
        key_padding_mask: Any = None,
        memory_key_padding_mask: Any = None,
        is_causal: bool = False,
        norm_first: bool = False,
        activation: str = "relu",
    ) -> Any:
        return change(
            {
                "x": x,
                "memory": memory,
                "weights": dict(weights),
                "num_heads": num_heads,
                "attn_mask": attn_mask,
                "key_padding_mask": key_padding_mask,
                "is_causal": is_causal,
                "norm_first": norm_first,
                "activation": activation,
                "memory_mask": memory_mask,
                "memory_key_padding_mask": memory_key_padding_mask,
            }
        )

    return layer


BLOCK_TARGETS: dict[str, Target] = {
    "encoder_layer": make_target("exact encoder layer", encoder_with(), {"framework": "torch"}),
    "decoder_layer": make_target("exact decoder layer", decoder_with(), {"framework": "torch"}),
}
BLOCK_TARGETS["block"] = BLOCK_TARGETS["decoder_layer"]  # properties of both


def but(**changes: Any) -> Change:
    """The call with some arguments changed: each by a function of the argument, where it is given, or to a value."""

    def change(x: dict[str, Any]) -> Any:
        for name, how in changes.items():
            if x[name] is not None:
                x[name] = how(x[name]) if callable(how) else how
        return exact(x)

    return change


def after(how: Callable[[Tensor, dict[str, Any]], Any]) -> Change:
    """The answer changed."""
    return lambda x: how(exact(x), x)


def of_weights(**changes: Callable[[Tensor], Tensor]) -> Change:
    """The call with some weights changed."""
    return but(weights=lambda w: {**w, **{name: how(w[name]) for name, how in changes.items() if name in w}})


def zero_where_padded(out: Tensor, x: dict[str, Any]) -> Tensor:
    return out if x["key_padding_mask"] is None else out.masked_fill(x["key_padding_mask"][..., None], 0.0)


def nan_where_nothing_is_seen(out: Tensor, x: dict[str, Any]) -> Tensor:
    mask = x["attn_mask"]
    if mask is None:
        return out
    seen = (mask if mask.dtype == torch.bool else mask != -torch.inf).expand(len(out), x["num_heads"], out.shape[1], out.shape[1])
    return out.masked_fill(~seen.any(-1).all(1)[..., None], torch.nan)


def drifting() -> Callable[[Tensor, dict[str, Any]], Tensor]:
    calls: list[int] = []

    def how(out: Tensor, x: dict[str, Any]) -> Tensor:
        calls.append(0)
        return out * (1 + len(calls) % 5 / 8)

    return how


def no_padding_beside_a_mask(x: dict[str, Any], mask: str = "attn_mask", padding: str = "key_padding_mask") -> Any:
    return exact({**x, padding: None if x[mask] is not None else x[padding]})


def residual_in_place(x: dict[str, Any]) -> Any:
    out = exact(x)
    x["x"].add_(1)
    return out


def by_position(x: Tensor) -> Tensor:
    return x * (1 + 0.1 * torch.arange(x.shape[1])[:, None]).to(x.dtype)


def causal_memory(x: dict[str, Any]) -> Any:
    seen = torch.ones(x["x"].shape[1], x["memory"].shape[1], dtype=torch.bool).tril()
    return exact({**x, "memory_mask": seen if x["memory_mask"] is None else x["memory_mask"]})


def keys_as_values(w: dict[str, Tensor]) -> dict[str, Tensor]:
    return {**w, "cross_w_v": w["cross_w_k"]}


IN_BOTH: dict[str, Change] = {
    "block_is_inside_the_bound": after(lambda out, x: out * 1.01),
    "every_weight_is_used": of_weights(b_2=torch.zeros_like),
    "sequences_do_not_meet": after(lambda out, x: out + out.mean(0, keepdim=True) / 8),
    "causal_block_ignores_the_future": but(is_causal=lambda causal: False),
    "padded_tokens_are_as_good_as_removed": but(key_padding_mask=lambda padding: None),
    "padded_rows_are_computed_too": after(zero_where_padded),
    "mask_and_padding_compose": no_padding_beside_a_mask,
    "tokens_that_see_nothing_follow_the_convention": after(nan_where_nothing_is_seen),
    "pre_norm_without_sublayers_is_the_identity": but(norm_first=lambda first: False),
    "post_norm_without_sublayers_is_its_norms": after(lambda out, x: out * (1 + 2.0**-6)),
    "post_norm_output_has_the_mean_and_variance_of_its_norm": after(lambda out, x: out * 1.25 + 0.25),
    "norms_are_over_features_alone": after(lambda out, x: out + x["x"].mean(1, keepdim=True) / 8),
    "shift_of_a_token_passes_no_norm": after(lambda out, x: out * (1 + 2.0**-7 * x["x"].mean(-1, keepdim=True))),
    "scale_of_a_token_passes_no_norm": after(lambda out, x: out * (1 + 2.0**-7 * x["x"].abs().mean(-1, keepdim=True))),
    "relu_passes_nothing_negative": but(activation=lambda activation: "gelu"),
    "activation_is_the_declared_one": but(activation=lambda name: "gelu_tanh" if name == "gelu" else name),
    "block_repeats_itself": after(drifting()),
    "block_arguments_are_unchanged": residual_in_place,
    "block_output_has_the_right_form": after(lambda out, x: out.float()),
}
IN_ENCODERS: dict[str, Change] = {
    "encoder_commutes_with_permutation": but(x=by_position),
    "tokens_reach_exactly_who_sees_them": after(lambda out, x: out + x["x"].mean(1, keepdim=True) / 8),
}
IN_DECODERS: dict[str, Change] = {
    "every_memory_token_matters": causal_memory,
    "memory_frontier_is_exact": but(memory_mask=lambda mask: None),
    "order_of_the_memory_does_not_matter": but(memory=by_position),
    "padded_memory_is_as_good_as_removed": but(memory_key_padding_mask=lambda padding: None),
    "memory_mask_and_padding_compose": lambda x: no_padding_beside_a_mask(x, "memory_mask", "memory_key_padding_mask"),
    "memory_enters_through_attention_alone": after(lambda out, x: out + x["memory"].mean(1, keepdim=True)),
    "equal_memory_needs_no_query": but(weights=keys_as_values),
}
MADE = {name: encoder_with(change) for name, change in (IN_BOTH | IN_ENCODERS).items()}
MADE |= {name: decoder_with(change) for name, change in IN_DECODERS.items()}
EXACT = BLOCK_TARGETS
MISTAKES: dict[str, Target] = {name: make_target("wrong", function, {"framework": "torch"}) for name, function in MADE.items()}
