"""Facts of one attention call that the generator must reach, read off its arguments: sizes, masks, numbers, features."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from properties.attention.inputs import Inputs
from properties.attention.tables import EDGES
from properties.engine.cases.dtypes import FLOAT_TYPES
from properties.engine.cases.regimes import HEADROOM

Array = Any


def sizes(x: Inputs) -> dict[str, int]:
    """By the names of the axes."""
    batch, heads, queries, keys = x.shape
    kv_heads, dim, width = x.k.shape[1], x.q.shape[3], x.v.shape[3]
    return {"B": batch, "Hkv": kv_heads, "L": queries, "S": keys, "D": dim, "Dv": width, "H": heads, "G": x.group}


def size_facts(x: Inputs) -> Iterator[str]:
    n = sizes(x)
    if 0 not in n.values():
        for axis, size in n.items():
            if size == 1:
                yield f"{axis} = 1"
        for axis in ("L", "S"):
            if n[axis] in EDGES or n[axis] >= 200:
                yield f"{axis} = {n[axis]}" if n[axis] in EDGES else f"{axis} ≥ 200"
                if n[axis] >= 600:
                    yield f"{axis} ≥ 600"
        yield "L < S" if n["L"] < n["S"] else "L > S" if n["L"] > n["S"] else "L = S"
        for a, b in (("L", "H"), ("B", "H"), ("S", "D"), ("B", "Hkv"), ("L", "D"), ("S", "H")):
            if n[a] == n[b] > 1 and n["S"] > 1:
                yield f"{a} = {b} > 1"
        if n["D"] & (n["D"] - 1):
            yield "D no power of two"
        if n["D"] > 64:
            yield "D > 64"
        if n["D"] >= 160:
            yield "D ≥ 160"
        if min(n["L"], n["S"]) >= 65:
            yield "L and S ≥ 65"
        if n["Dv"] != n["D"]:
            yield "Dv < D" if n["Dv"] < n["D"] else "Dv > D"
        if n["G"] > 1 and n["Hkv"] > 1:
            yield "groups with several key/value heads"
        if n["Hkv"] == 1 < n["H"]:
            yield "one key/value head for all"
    else:
        yield from (f"{axis} = 0" for axis, size in n.items() if size == 0)


SIZES = [f"{axis} = {size}" for axis in ("B", "Hkv", "L", "S", "D", "Dv") for size in (0, 1)]
SIZES += [f"{axis} = {edge}" for axis in ("L", "S") for edge in EDGES]
SIZES += [
    "H = 1",
    "G = 1",
    "L ≥ 200",
    "S ≥ 200",
    "L ≥ 600",
    "S ≥ 600",
    "L < S",
    "L > S",
    "L = S",
    "D no power of two",
    "D > 64",
    "D ≥ 160",
    "L and S ≥ 65",
    "Dv < D",
    "Dv > D",
    "groups with several key/value heads",
    "one key/value head for all",
]
SIZES += [f"{a} > 1" for a in ("L = H", "B = H", "S = D", "B = Hkv", "L = D", "S = H")]


def has_hole(seen: Array) -> bool:
    """A hidden key between two visible ones of a row."""
    before = np.logical_or.accumulate(seen, axis=-1)
    after = np.logical_or.accumulate(seen[..., ::-1], axis=-1)[..., ::-1]
    return bool((~seen & before & after).any())


def mask_facts(x: Inputs) -> Iterator[str]:
    if x.is_causal:
        yield "causal"
        if x.shape[2] > x.shape[3] > 0:
            yield "causal, more queries than keys"
        if 0 < x.shape[2] < x.shape[3]:
            yield "causal, fewer queries than keys"
    if x.mask is None or not np.prod(x.shape):
        return
    mask = x.mask
    yield f"mask of rank {mask.ndim}"
    padded = (None,) * (4 - mask.ndim) + mask.shape
    for axis, size, full in zip("BHLS", padded, x.shape, strict=True):
        if size == 1 < full:
            yield f"mask of size 1 along {axis}"
        if size is None and full > 1:
            yield f"mask without the axis {axis}"
        if size is not None and size == full > 1 and (mask != np.take(mask, [0], axis="BHLS".index(axis) - 4)).any():
            yield f"mask that differs along {axis}"
    shown = np.broadcast_to(mask if mask.dtype == bool else mask != -np.inf, x.shape)
    lowest = mask == -FLOAT_TYPES[x.dtype].max if mask.dtype != bool else np.zeros(1, dtype=bool)
    if mask.dtype == bool:
        yield "bool mask"
    elif lowest.any():
        yield "mask with the lowest finite number"
        shown = shown & ~np.broadcast_to(lowest, x.shape)
    else:
        finite = mask[np.isfinite(mask)]
        words = ("finite bias",) * bool(finite.any()) + ("-inf",) * bool((mask == -np.inf).any())
        yield "mask of " + (" and ".join(words) or "zeros")
    kind = "bool" if mask.dtype == bool else "float"
    if x.is_causal:
        yield f"causal with a {kind} mask"
    if shown.all():
        yield f"{kind} mask that hides nothing"
    if not shown.any():
        yield f"{kind} mask that hides everything"
    if has_hole(shown):
        yield f"{kind} mask with a hole"
    rows = shown.any(axis=-1)
    if rows.any() and not rows.all():
        yield f"{kind} mask with some rows without a key"
    if x.is_causal and (rows & ~x.visible().any(axis=-1)).any():
        yield "rows without a key only by mask and causal together"
    for tile in (16, 64, 128):
        if x.shape[3] > tile and shown.any() and not shown[..., :tile].any():
            yield f"a whole leading tile of {tile} masked"
    keys = shown.any(axis=2)
    if rows.all() and not keys.all():
        yield "a key hidden from all rows"
    if x.group > 1 and "mask that differs along H" in mask_differs(mask, x.shape):
        yield "mask per head with groups"


def mask_differs(mask: Array, shape: tuple[int, ...]) -> list[str]:
    """The axes along which a mask is not constant."""
    full = np.broadcast_to(mask, shape)
    return [f"mask that differs along {a}" for i, a in enumerate("BHLS") if (full != full.take([0], axis=i)).any()]


MASKS = [f"mask of rank {rank}" for rank in range(5)]
MASKS += [f"mask {what} {axis}" for axis in "BHLS" for what in ("of size 1 along", "that differs along")]
MASKS += [f"mask without the axis {axis}" for axis in "BHL"]
MASKS += [
    f"{kind} mask {what}"
    for kind in ("bool", "float")
    for what in ("that hides nothing", "that hides everything", "with a hole", "with some rows without a key")
]
MASKS += [
    "bool mask",
    "mask with the lowest finite number",
    "mask of finite bias",
    "mask of finite bias and -inf",
    "mask of -inf",
    "mask of zeros",
    "a key hidden from all rows",
    "mask per head with groups",
    *(f"a whole leading tile of {tile} masked" for tile in (16, 64, 128)),
]
MASKS += [
    "causal",
    "causal with a bool mask",
    "causal with a float mask",
    "causal, more queries than keys",
    "causal, fewer queries than keys",
    "rows without a key only by mask and causal together",
]


def number_facts(x: Inputs) -> Iterator[str]:
    """What the logits and the values look like, where at least two keys can be seen."""
    if x.scale is not None:
        yield "scale 0" if x.scale == 0 else "scale negative" if x.scale < 0 else "scale positive"
        if 0 < abs(x.scale) < 1e-5:
            yield "scale tiny"
        if abs(x.scale) >= 16:
            yield "scale huge"
    n = sizes(x)
    for name in "qkv":
        tensor = getattr(x, name)
        assert np.isfinite(tensor).all()
        if ((tensor == 0) & np.signbit(tensor)).any():
            yield f"negative zero in {name}"
    v, kind = x.v, FLOAT_TYPES[x.dtype]
    if ((v != 0) & (np.abs(v) < kind.tiny)).any():
        yield f"subnormal values in {x.dtype}"
    if np.abs(v).sum(axis=2).max(initial=0) > kind.max / (16 if x.dtype == "float16" else 16 * HEADROOM):
        yield f"values at the limit of {x.dtype}"
    if np.abs(v).max(initial=0) > kind.max / 2:
        yield f"a value above half the largest of {x.dtype}"
    if 0 in n.values() or n["S"] < 2:
        return
    logits = x.q @ np.repeat(x.k, x.group, axis=1).swapaxes(-1, -2) * x.effective_scale
    bias = x.bias()
    seen = x.visible()
    if bias is not None:
        logits = logits + np.maximum(bias, -1e300)
    if not seen.any():
        return
    largest, smallest = logits[seen].max(), logits[seen].min()
    limit = 1e3 if x.dtype == "float16" else 1e4
    if largest > limit:
        yield f"logits beyond {limit:g} in {x.dtype}"
    if smallest < -limit:
        yield f"logits below {-limit:g} in {x.dtype}"
    if largest < -100 and x.scale is None and bias is None:
        yield "all logits far below zero"
    if x.mask is not None or x.is_causal:
        return
    if n["D"] > 1 and n["S"] > 4 and (np.diff(logits, axis=-1) > 0).mean() > 0.9:
        yield "logits that rise along the keys"
    spread = np.ptp(logits, axis=-1)
    if x.dtype != "bfloat16" and ((spread > 0) & (spread < 2.0**-4)).all() and x.scale is None:
        yield "near ties"
    if (spread == 0).all():
        yield "identical keys"
    if n["L"] > 1 and (x.q == x.q[:, :, :1]).all() and n["D"] > 0 and (x.q != 0).any():
        yield "identical rows"
    two = np.sort(logits, axis=-1)[..., -2:]
    if (two[..., 1] - two[..., 0] > 8).mean() > 0.5 and 8 < largest < 1e3:
        yield "one-hot rows"
    norms = np.abs(x.q).max(axis=-1)
    if n["L"] > 2 and (norms.max(axis=-1) > 1000 * norms.min(axis=-1)).any() and (norms > 0).all():
        yield "rows of different magnitude"
    size = np.abs(v).max(axis=2)
    if n["S"] % 2 == 0 and (size > 0).all() and (np.abs(v.mean(axis=2)) < size / 100).all():
        yield "values that cancel"
    if (size > 0).all() and (np.ptp(v, axis=2) < size / 100).all():
        yield "values nearly constant"
    if (np.abs(v) > 0).all() and np.abs(v).max() * 2.0**-12 > np.abs(v).min():
        yield "values of different magnitude"


WIDE = ("float64", "float32", "bfloat16")
NUMBERS = ["scale 0", "scale negative", "scale positive", "scale tiny", "scale huge", "all logits far below zero"]
NUMBERS += [f"logits {where} in {dtype}" for dtype in WIDE for where in ("beyond 10000", "below -10000")]
NUMBERS += ["logits beyond 1000 in float16", "logits below -1000 in float16"]
NUMBERS += [
    "near ties",
    "identical keys",
    "identical rows",
    "one-hot rows",
    "rows of different magnitude",
    "logits that rise along the keys",
    "values that cancel",
    "values nearly constant",
    "values of different magnitude",
    "negative zero in q",
    "negative zero in v",
]
NUMBERS += [f"{what} {dtype}" for dtype in FLOAT_TYPES for what in ("subnormal values in", "values at the limit of")]
NUMBERS += ["a value above half the largest of float16"]


def feature_facts(x: Inputs) -> Iterator[str]:
    if x.window is not None:
        sides = [name for name, side in zip(("left", "right"), x.window, strict=True) if side is not None]
        yield f"window to the {' and the '.join(sides)}"
        if 0 in x.window:
            yield "window with a side of 0"
        if max(side or 0 for side in x.window) > x.shape[2] + x.shape[3]:
            yield "window wider than the sequence"
        if x.is_causal:
            yield "window and causal"
        if x.mask is not None:
            yield "window and mask"
    for name in ("softcap", "slopes", "sinks", "lengths"):
        if getattr(x, name) is not None:
            yield name
            if x.mask is not None:
                yield f"{name} and mask"
    if x.lengths is not None and x.shape[3] and (x.lengths == 0).any():
        yield "a length of 0"


FEATURES = [f"window to the {side}" for side in ("left", "right", "left and the right")]
FEATURES += ["window with a side of 0", "window wider than the sequence", "window and causal", "window and mask"]
FEATURES += [f"{name}{mask}" for name in ("softcap", "slopes", "sinks", "lengths") for mask in ("", " and mask")]
FEATURES += ["a length of 0"]
