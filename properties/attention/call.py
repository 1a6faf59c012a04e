"""The call of an attention: its arguments in the framework's own arrays, and its answer."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np

from ..engine.cases.coordinates import Array
from ..engine.core.target import NotTaken, Target
from ..engine.frameworks import Buffers
from .cases import scale_is_taken
from .inputs import Inputs
from .speech import formal_of

# Layouts that differ between the tensors; every other layout is that of all of them.
LAYOUT_OF = {
    "expanded": {"q": "contiguous", "mask": "contiguous"},
    "mixed": {"q": "contiguous", "k": "transposed", "v": "padded", "mask": "contiguous"},
}


def arrays(target: Target, inputs: Inputs, buffers: Buffers) -> tuple[list[Any], dict[str, Any]]:
    """The positional and keyword arguments of the ``attention`` call, in the framework's own arrays."""

    taken = target.supports.memory is None or inputs.layout in target.supports.memory

    def place(name: str, carrier: Array) -> Any:
        layout = LAYOUT_OF.get(inputs.layout, {}).get(name, inputs.layout) if taken else "contiguous"
        return buffers.array(name, carrier, inputs.dtype, inputs.device, layout)

    multiple = target.supports.length_multiple
    if any(length % multiple for length in inputs.shape[2:]):
        raise NotTaken(f"lengths that are no multiples of {multiple}")
    if why := _beyond(target, inputs):
        raise NotTaken(why)
    if inputs.scale is not None and not scale_is_taken(target.supports, inputs.scale):
        raise NotTaken("scales that it refuses")
    if not target.supports.rows_without_keys and inputs.hides_all(target.supports.causal):
        raise NotTaken("rows that see no key")
    if not target.supports.non_finite and not all(np.isfinite(x).all() for x in (inputs.q, inputs.k, inputs.v)):
        raise NotTaken("numbers that are not finite")
    tensors = [place(name, getattr(inputs, name)) for name in ("q", "k", "v")]
    if target.supports.layout == "blhd":
        tensors = [target.framework.permute(x, (0, 2, 1, 3)) for x in tensors]
    defaults = {"attn_mask": None, "is_causal": False, "scale": None, "enable_gqa": True, "dropout_p": 0.0}
    given = [name for name in target.parameters if name in defaults] if inputs.explicit else []
    options: dict[str, Any] = {name: defaults[name] for name in given if defaults[name] is not None or _none_is_taken(target, name)}
    if inputs.mask is not None:
        options["attn_mask"] = target.ranked(place("mask", inputs.mask))
    if inputs.is_causal:
        options["is_causal"] = True
    if inputs.scale is not None:
        options["scale"] = inputs.scale
    if inputs.group != 1:
        options["enable_gqa"] = True
    if inputs.window is not None and target.supports.window is None:
        options["window_size"] = tuple(-1 if side is None else side for side in inputs.window)
    if inputs.softcap is not None:
        options["softcap"] = inputs.softcap
    for name, carrier in (("alibi_slopes", inputs.slopes), ("sinks", inputs.sinks), ("kv_lengths", inputs.lengths)):
        if carrier is not None:
            options[name] = place(name, carrier)
    if inputs.return_lse:
        options["return_lse"] = True
    if inputs.need_weights:
        options["need_weights"] = True
    if inputs.dropout:
        options["dropout_p"] = inputs.dropout
    return tensors, options


def _beyond(target: Target, inputs: Inputs) -> str:
    """Which size of a call is one that the target was found to refuse, or is declared not to take; empty if none is."""
    supports = target.supports
    longest = supports.max_length if target.refuses or "max_length" in target.declared else None
    if longest is not None and max(inputs.shape[2:]) > longest:
        return f"more than {longest} tokens"
    if supports.head_dims and (target.refuses or "head_dims" in target.declared) and inputs.q.shape[3] not in supports.head_dims:
        return "head dims that it does not take"
    return ""


def _none_is_taken(target: Target, name: str) -> bool:
    """Whether None may be given for a parameter: not where its default is something else, as in ``scale=1.0``."""
    formal = formal_of(target.function)
    return name not in formal or formal[name].default in (None, formal[name].empty)


def answer(target: Target, inputs: Inputs, buffers: Buffers) -> Any:
    """All that the target returns. Raises Raised if it raises."""
    tensors, options = arrays(target, inputs, buffers)
    with target.framework.chance(inputs.chance) if inputs.dropout else nullcontext():
        return target.apply(*tensors, **options)


def call(target: Target, inputs: Inputs, buffers: Buffers) -> Any:
    """The target's own output, unread. Raises Raised if the target raises."""
    return target.first(answer(target, inputs, buffers))


def attend(target: Target, inputs: Inputs, buffers: Buffers | None = None) -> Array:
    """The output (B, H, L, Dv) as a carrier. Raises Raised if the target raises, or returns no array of its framework."""
    return target.read(call(target, inputs, buffers or target.buffers()))
