"""The contracts of encoder and decoder layers, blocks for short: how a callable is recognised, called and read.

    encoder_layer(x, weights, *, num_heads, attn_mask=None, key_padding_mask=None, is_causal=False, norm_first=False,
                  activation="relu")                                                              → (batch, length, embed)
    decoder_layer(x, memory, weights, *, num_heads, attn_mask=None, memory_mask=None, key_padding_mask=None,
                  memory_key_padding_mask=None, is_causal=False, norm_first=False, activation="relu")

``weights`` maps names to arrays: w_q w_k w_v w_o (embed, embed) and b_q … b_o (embed,) of the self-attention, cross_w_q … cross_b_o of
the attention to the memory, w_1 (hidden, embed), b_1 and w_2 (embed, hidden), b_2 of the feed-forward part, g_1 beta_1 g_2 beta_2, of a
decoder g_3 beta_3 too, of the norms, in the order in which a token meets them. y = x Wᵀ + b; where there are no biases b_* and beta_*
are absent. A bool mask says True = attend, a padding mask True = padding. What the callable does not take is not tried; what it then
does is said by ``supports``: norm_first, activation, eps, and gelu = "erf" or "tanh".
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..engine.cases.coordinates import Array
from ..engine.cases.dtypes import round_to
from ..engine.core.pace import NoArray
from ..engine.core.target import Raised, Target
from ..engine.core.words import type_of
from ..engine.frameworks import Buffers

ATTENTION = ("w_q", "w_k", "w_v", "w_o", "b_q", "b_k", "b_v", "b_o")


@dataclass(frozen=True, eq=False)
class BlockInputs:
    """The arguments of one call, as carriers."""

    x: Array  # (B, L, E)
    weights: Mapping[str, Array]
    num_heads: int
    memory: Array | None = None  # (B, S, E)
    mask: Array | None = None  # broadcasts to (B, H, L, L)
    padding: Array | None = None  # (B, L) bool
    memory_mask: Array | None = None  # broadcasts to (B, H, L, S)
    memory_padding: Array | None = None  # (B, S) bool
    is_causal: bool = False
    norm_first: bool = False
    activation: str = "relu"
    explicit: bool = False  # parameters are passed even where they have their default value
    dtype: str = "float64"
    device: str = "cpu"
    layout: str = "contiguous"  # of x and memory

    def but(self, **changes: Any) -> BlockInputs:
        """The same call with some arguments changed; numbers are rounded to the type again."""
        for name in ("x", "memory"):
            if name in changes:
                changes[name] = round_to(self.dtype, np.asarray(changes[name], dtype=np.float64))
        return dataclasses.replace(self, **changes)

    def with_weights(self, **changes: Array) -> BlockInputs:
        """The same call with some weights replaced, where there are such weights."""
        changed = {name: round_to(self.dtype, np.asarray(w, dtype=np.float64)) for name, w in changes.items() if name in self.weights}
        return dataclasses.replace(self, weights={**self.weights, **changed})


def answer(target: Target, inputs: BlockInputs, buffers: Buffers) -> Any:
    """What the layer gives (B, L, E), as an array of the framework. Raises Raised."""

    def place(name: str, carrier: Array, layout: str = "contiguous") -> Any:
        return buffers.array(name, carrier, inputs.dtype, inputs.device, layout)

    tensors = [place("x", inputs.x, inputs.layout)]
    if inputs.memory is not None:
        tensors.append(place("memory", inputs.memory, inputs.layout))
    weights = {name: place(name, w) for name, w in inputs.weights.items()}
    masks = {"attn_mask": inputs.mask, "memory_mask": inputs.memory_mask}
    paddings = {"key_padding_mask": inputs.padding, "memory_key_padding_mask": inputs.memory_padding}
    defaults = {"is_causal": False, "norm_first": False, "activation": "relu"}
    options: dict[str, Any] = {"num_heads": inputs.num_heads}
    options |= {name: target.ranked(place(name, carrier)) for name, carrier in masks.items() if carrier is not None}
    options |= {name: place(name, carrier) for name, carrier in paddings.items() if carrier is not None}
    for name, default in defaults.items():
        value = getattr(inputs, name)
        if name in target.parameters and (inputs.explicit or value != default):
            options[name] = value
    result = target.apply(*tensors, weights, **options)
    if not target.framework.is_array(result):
        raise Raised(NoArray(f"returned {type_of(result)}, not an array of {target.framework.name}"))
    return result


def call_block(target: Target, inputs: BlockInputs, buffers: Buffers) -> tuple[Array, tuple[tuple[int, ...], str, str], Any]:
    """(the answer as a carrier, its shape, dtype and device, the array itself). Raises Raised."""
    result = answer(target, inputs, buffers)
    return target.framework.read(result), target.framework.describe(result), result
