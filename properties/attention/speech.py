"""A reading of how a callable is called, and the callable adapted to the call of the contract by it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from ..engine.frameworks import Framework

# Axes, from the simplest call to the strangest.
LAYOUTS = {
    "bhld": "(batch, heads, length, dim)",
    "blhd": "(batch, length, heads, dim)",
    "bld": "(batch · heads, length, dim)",
    "ld": "(length, dim), a call for each head",
    "lbhd": "(length, batch, heads, dim)",
    "lhd": "(length, heads, dim), a call for each sequence",
    "bdl": "(batch · heads, dim, length)",
}
ORDER = {"bhld": (0, 1, 2, 3), "blhd": (0, 2, 1, 3), "lbhd": (2, 0, 1, 3)}
ANSWERS = {
    "": "",
    "blhd": "(batch, length, heads, dim)",
    "bl(hd)": "(batch, length, heads · dim)",
    "lb(hd)": "(length, batch, heads · dim)",
}
LOOPED = ("ld", "lhd")  # a call for each index along the leading axes
FOLDED = ("bld", "bdl", *LOOPED)
PLAIN = ("bhld", "blhd")  # in which all other parameters mean what they mean
# Of a mask: how what is seen is said.
SAID = ("True = seen", "True = hidden", "1 = seen", "1 = hidden", "1.0 = seen", "1.0 = hidden")
ADDED = "added"
# In which form it is given → the axes that it may vary along.
FORMS = {"as it is": "BHLS", "bhls": "BHLS", "b1ls": "BLS", "bls": "BLS", "ls": "LS", "bs": "BS"}
FIELDS = (
    "out",
    "output",
    "outputs",
    "attn_output",
    "attention_output",
    "context",
    "context_layer",
    "hidden_states",
    "result",
    "last_hidden_state",
)


@dataclass(frozen=True)
class Reading:
    """How a callable is called."""

    layout: str = "bhld"
    answer: str = ""  # the axes of what comes back, where they are others
    operands: tuple[str, ...] = ()  # of queries, keys and values, where they are given by keyword
    module: bool = False  # a module comes first, as in Hugging Face's interface
    given: Mapping[str, Any] = field(default_factory=dict)  # what is always passed, under their names
    names: Mapping[str, str] = field(default_factory=dict)  # our parameter → theirs
    said: Mapping[str, tuple[str, str]] = field(default_factory=dict)  # "bool" or "added" → their parameter, and how a mask is said to it
    form: str = "as it is"
    scaled: bool = False  # a scale is always passed
    grouped: bool = False  # heads may be grouped, without a flag


def adapted(function: Callable[..., Any], reading: Reading, fw: Framework) -> Callable[..., Any]:
    """The callable, called as the contract says."""

    def attention(q: Any, k: Any, v: Any, **options: Any) -> Any:
        masks, kwargs = _keywords(q, options, reading, fw)
        parts = [_parts(x, reading.layout, fw) for x in (q, k, v)]
        calls = list(zip(*parts, strict=True))
        answers, rest = [], ()
        for at, tensors in enumerate(calls):
            here = {name: _mask_part(mask, reading, tuple(q.shape), tuple(k.shape), at, fw) for name, mask in masks.items()}
            result = _ask(function, reading, tensors, kwargs | here)
            answers.append(result_array(result, fw))
            rest = result[1:] if isinstance(result, tuple) and reading.layout in PLAIN else ()
        shape = (*(q.shape[:3] if reading.layout != "blhd" else (q.shape[0], q.shape[2], q.shape[1])), v.shape[3])
        out = _whole(answers, reading, tuple(shape), fw) if answers else fw.full(shape, 0.0, *fw.describe(q)[1:])
        return (out, *rest) if rest else out

    return attention


def _ask(function: Callable[..., Any], reading: Reading, tensors: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    heads = [x.shape[1] if len(x.shape) == 4 else 1 for x in tensors]
    first = (SimpleNamespace(num_key_value_groups=heads[0] // (heads[1] or 1), training=False, is_causal=False),) if reading.module else ()
    if reading.operands:
        return function(*first, **dict(zip(reading.operands, tensors, strict=True)), **kwargs)
    return function(*first, *tensors, **kwargs)


def _keywords(q: Any, options: Mapping[str, Any], reading: Reading, fw: Framework) -> tuple[dict[str, Any], dict[str, Any]]:
    """Masks and other arguments under their names; what a flag says that the callable has not is left out."""
    kwargs, masks = dict(reading.given), {}
    for ours, value in options.items():
        if ours in reading.names:
            if value is not None or reading.names[ours] == ours:
                kwargs[reading.names[ours]] = value
        elif ours == "attn_mask" and reading.said:
            if value is not None:
                kind = "bool" if fw.describe(value)[1].endswith("bool") else "added"
                theirs, how = reading.said[kind]
                masks[theirs] = _say(value, how, q, fw)
        elif not (ours == "enable_gqa" and reading.grouped):
            kwargs[ours] = value
    if reading.scaled and options.get("scale") is None:
        kwargs[reading.names["scale"]] = q.shape[-1] ** -0.5 if q.shape[-1] else 1.0
    return masks, kwargs


def _say(mask: Any, how: str, q: Any, fw: Framework) -> Any:
    """A mask, True where seen or added, in their words."""
    if how in ("True = seen", ADDED):
        return mask
    if how == "True = hidden":
        return ~mask
    _, dtype, device = fw.describe(q)
    seen = fw.read(mask) == how.endswith("seen")
    if how.startswith("1.0"):
        return fw.assign(fw.full(tuple(mask.shape), 0.0, dtype, device), seen.astype(np.float64))
    return fw.integers(seen.astype(np.int64), device)


def _parts(x: Any, layout: str, fw: Framework) -> list[Any]:
    """(B, H, L, D) → the arrays of each call; ``blhd`` comes in that layout already."""
    b, h, n, d = x.shape
    if layout == "ld":
        return [x[i, j] for i in range(b) for j in range(h)]
    if layout == "lhd":
        return [fw.permute(x[i], (1, 0, 2)) for i in range(b)]
    if layout in ("bld", "bdl"):
        folded = x.reshape((b * h, n, d))
        return [fw.permute(folded, (0, 2, 1)) if layout == "bdl" else folded]
    return [fw.permute(x, ORDER["lbhd"]) if layout == "lbhd" else x]


def _mask_part(mask: Any, reading: Reading, q: tuple[int, ...], k: tuple[int, ...], at: int, fw: Framework) -> Any:
    """What one call is given of a mask that broadcasts to (B, H, L, S)."""
    rows = 1 if reading.layout == "blhd" else 2
    b, h, n, s = q[0], q[3 - rows], q[rows], k[rows]
    folded = reading.layout in FOLDED
    if reading.form == "as it is" and not folded:
        return mask
    whole = mask.reshape((1,) * (4 - len(mask.shape)) + tuple(mask.shape))
    if reading.form in ("ls", "bs"):
        sizes = (1, 1, n, s) if reading.form == "ls" else (b, 1, 1, s)
        part = fw.expand(whole, sizes)
        return part[0, 0] if reading.form == "ls" else part[:, 0, 0]
    if folded:
        part = fw.expand(whole, (b, h, n, s))
        if reading.layout == "ld":
            return part[at // h, at % h]
        return part[at] if reading.layout == "lhd" else part.reshape((b * h, n, s))
    part = fw.expand(whole, (b, h if reading.form == "bhls" else 1, n, s))
    return part[:, 0] if reading.form == "bls" else part


def result_array(result: Any, fw: Framework) -> Any:
    """Of what comes back the output: the array, the first of several, or the field of a known name."""
    if fw.is_array(result):
        return result
    if isinstance(result, tuple | list) and result and fw.is_array(result[0]):
        return result[0]
    for name in FIELDS:
        value = result.get(name) if isinstance(result, Mapping) else getattr(result, name, None)
        if fw.is_array(value):
            return value
    raise TypeError(f"returned {type(result).__name__}, not an array of {fw.name}")


def result_words(result: Any, fw: Framework) -> str:
    """What comes back, where it is no array."""
    if fw.is_array(result) or isinstance(result, tuple):
        return ""
    if isinstance(result, list):
        return "a list, the output first"
    names = [name for name in FIELDS if fw.is_array(result.get(name) if isinstance(result, Mapping) else getattr(result, name, None))]
    return f"{type(result).__name__} with {names[0]!r}" if names else ""


def _whole(answers: list[Any], reading: Reading, shape: tuple[int, ...], fw: Framework) -> Any:
    """The answers of all calls as (B, H, L, Dv), or (B, L, H, Dv) where the layout is ``blhd``; as they are where they have no such form."""
    b, h, n, dv = shape
    one = answers[0]
    forms = {"ld": (n, dv), "lhd": (n, h, dv), "bld": (b * h, n, dv), "bdl": (b * h, dv, n), "lbhd": (n, b, h, dv)}
    forms |= {"bhld": (b, h, n, dv), "blhd": (b, n, h, dv), "bl(hd)": (b, n, h * dv), "lb(hd)": (n, b, h * dv)}
    came = reading.answer or reading.layout
    if tuple(one.shape) != forms[came]:
        raise TypeError(f"returned shape {tuple(one.shape)}, not {forms[came]}")
    if came == "ld":
        return fw.stack(answers).reshape(shape)
    if came == "lhd":
        return fw.permute(fw.stack(answers), (0, 2, 1, 3))
    if came in ("bld", "bdl"):
        return (fw.permute(one, (0, 2, 1)) if came == "bdl" else one).reshape(shape)
    if came == "bl(hd)":
        one = one.reshape((b, n, h, dv))
    elif came == "lb(hd)":
        one = one.reshape((n, b, h, dv))
    if came.startswith("lb"):
        one = fw.permute(one, (1, 2, 0, 3))
    elif came.startswith("bl"):
        one = fw.permute(one, (0, 2, 1, 3))
    return fw.permute(one, (0, 2, 1, 3)) if reading.layout == "blhd" else one
