"""A layer under test: called with carriers and weights, or seen as the attention inside it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..attention.cases import ATTENTION
from ..engine.cases.coordinates import Array
from ..engine.core.ascent import without_gradients
from ..engine.core.target import Raised, Target
from ..engine.core.words import type_of
from ..engine.frameworks import Buffers
from .cases import MULTIHEAD

APPENDED = ("bias_k", "bias_v")  # what torch.nn.MultiheadAttention(add_bias_kv=True) learns beside its weights


@dataclass(frozen=True, eq=False)
class LayerInputs:
    """The arguments of one call of a ``multihead`` layer, as carriers."""

    query: Array  # (B, L, E)
    key: Array  # (B, S, E)
    value: Array  # (B, S, E)
    weights: Mapping[str, Array]  # w_q w_k w_v w_o (E, E), y = x Wᵀ + b; b_q b_k b_v b_o (E,) or absent; bias_k bias_v likewise
    num_heads: int
    mask: Array | None = None  # broadcasts to (B, H, L, S); True = attend
    padding: Array | None = None  # (B, S) bool; True = padding
    is_causal: bool = False
    add_zero_attn: bool = False
    need_weights: bool = True
    dtype: str = "float64"
    device: str = "cpu"

    @property
    def appended(self) -> tuple[Array, Array]:
        """The keys and values (N, E) that follow those of every sequence: bias_k and bias_v, then zeros."""
        width, zero = self.query.shape[-1], np.zeros((int(self.add_zero_attn), self.query.shape[-1]))
        keys, values = (np.concatenate([self.weights.get(name, zero[:0]).reshape(-1, width), zero]) for name in APPENDED)
        return keys, values

    def but(self, **changes: Any) -> LayerInputs:
        """The same call with some arguments changed."""
        return dataclasses.replace(self, **changes)


def answer(target: Target, inputs: LayerInputs, buffers: Buffers) -> tuple[Any, Any]:
    """(out (B, L, E), weights (B, H, L, S) or None), as arrays of the framework. Raises Raised."""

    def place(name: str, carrier: Array) -> Any:
        return buffers.array(name, carrier, inputs.dtype, inputs.device, "contiguous")

    tensors = [place(name, getattr(inputs, name)) for name in ("query", "key", "value")]
    weights = {name: place(name, w) for name, w in inputs.weights.items()}
    for one, other in ((0, 1), (1, 2), (0, 2)):  # one and the same array, as libraries look for
        if (inputs.query, inputs.key, inputs.value)[one] is (inputs.query, inputs.key, inputs.value)[other]:
            tensors[other] = tensors[one]
    options: dict[str, Any] = {"num_heads": inputs.num_heads} | {name: weights.pop(name) for name in APPENDED if name in weights}
    if inputs.add_zero_attn:
        options["add_zero_attn"] = True
    if inputs.mask is not None:
        options["attn_mask"] = target.ranked(place("mask", inputs.mask))
    if inputs.padding is not None:
        options["key_padding_mask"] = place("padding", inputs.padding)
    if inputs.is_causal:
        options["is_causal"] = True
    if "need_weights" in target.parameters:
        options["need_weights"] = inputs.need_weights
    result = target.apply(*tensors, weights, **options)
    try:
        out, attended = result if isinstance(result, tuple | list) else (result, None)
    except ValueError as error:
        raise Raised(error) from error
    for array in (out, attended):
        if array is not None and not target.framework.is_array(array):
            raise Raised(TypeError(f"returned {type_of(array)}, not an array of {target.framework.name}"))
    return out, attended


def call_layer(target: Target, inputs: LayerInputs, buffers: Buffers) -> tuple[Array, Array | None, tuple[tuple[int, ...], str, str]]:
    """(out (B, L, E), weights (B, H, L, S) or None, form of out: shape, dtype, device). Raises Raised."""
    out, attended = answer(target, inputs, buffers)
    weights = None if attended is None else target.framework.read(attended)
    return target.framework.read(out), weights, target.framework.describe(out)


def no_gradients(target: Target) -> str:
    """Why no gradient can be asked of a layer; empty if one can."""
    x, w = np.ones((1, 2, 4)), np.eye(4)
    weights = dict.fromkeys(("w_q", "w_k", "w_v", "w_o"), w) | dict.fromkeys(("b_q", "b_k", "b_v", "b_o"), w[0])
    inputs = LayerInputs(x, x.copy(), x.copy(), weights, 2, dtype=target.dtypes[0], device=target.supports.devices[0])
    return without_gradients(target, lambda given: answer(target, inputs, given)[0], "query", x)


def as_attention(target: Target) -> Target:
    """A layer seen as the attention inside it; an attention is returned as it is.

    With identity projections every projection is exact (a product by 1 and sums with 0), so that the layer equals its
    kernel and every property of attention holds of it, with the kernel's own tight bound.
    """
    if target.contract != MULTIHEAD.name:
        return target
    identities: dict[Any, Any] = {}

    def kernel(q: Any, k: Any, v: Any, **options: Any) -> Any:
        (batch, heads, _, dim), dtype, device = target.framework.describe(q)
        width = heads * dim
        key = (width, dtype, device)
        if key not in identities:
            identity = target.framework.assign(target.framework.full((width, width), 0.0, dtype, device), np.eye(width))
            zeros = target.framework.full((width,), 0.0, dtype, device)
            identities[key] = {
                **dict.fromkeys(("w_q", "w_k", "w_v", "w_o"), identity),
                **dict.fromkeys(("b_q", "b_k", "b_v", "b_o"), zeros),
            }
        folded = [target.framework.permute(x, (0, 2, 1, 3)).reshape((batch, x.shape[2], width)) for x in (q, k, v)]
        out = target.function(*folded, identities[key], num_heads=heads, **options)
        out = out[0] if isinstance(out, tuple | list) else out
        if not target.framework.is_array(out) or tuple(out.shape) != (batch, q.shape[2], width):
            return out
        return target.framework.permute(out.reshape((batch, q.shape[2], heads, dim)), (0, 2, 1, 3))

    # Where a row without keys is NaN, the output projection spreads it from one head to all heads of the row.
    separate = target.supports.empty_rows != "nan"
    axes = tuple(axes for axes in target.supports.mask_axes if separate or "H" not in axes)
    facts = dataclasses.replace(target.supports, value_dim=False, zero_sizes=False, mask_axes=axes)
    parameters = tuple(p for p in target.parameters if p in ("attn_mask", "is_causal"))
    return dataclasses.replace(target, function=kernel, contract=ATTENTION.name, supports=facts, parameters=parameters, mixes_heads=True)
