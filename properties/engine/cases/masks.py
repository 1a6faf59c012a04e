"""Masks of a case: which keys a query sees, along which axes that varies, and in which words it is said."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .coordinates import Array, bits, normal, uniform
from .dtypes import FLOAT_TYPES, round_to

AXES = "BHLS"
LEADING_TILES = (512, 256, 128, 64, 32, 16, 8, 4, 2, 1)


def frontier(queries: int, keys: int, causal: str = "top-left") -> Array:
    """(L, S) bool: j <= i, counted from the first row (top-left) or so that the last row sees all (bottom-right)."""
    return ahead(queries, keys, causal, keys) <= 0


def ahead(queries: int, keys: int, causal: str, in_use: int | Array) -> Array:
    """j minus the last key that a causal row i sees: i (top-left), or i + keys in use − queries (bottom-right)."""
    offset = 0 if causal == "top-left" else in_use - queries
    return np.arange(keys) - (np.arange(queries)[:, None] + offset)


Pattern = Callable[[Any, tuple[int, ...]], Array]


def _coordinate(case: Any, shape: tuple[int, ...], axis: int) -> Array:
    return np.arange(shape[axis]).reshape([-1 if a == axis else 1 for a in range(4)])


def _random(case: Any, shape: tuple[int, ...]) -> Array:
    return uniform(case.seed, "mask", shape) < case.mask_density


def _everything(case: Any, shape: tuple[int, ...]) -> Array:
    return np.ones(shape, dtype=bool)


def _nothing(case: Any, shape: tuple[int, ...]) -> Array:
    return np.zeros(shape, dtype=bool)


def lengths(case: Any, shape: tuple[int, ...], least: int) -> Array:
    """(…, 1) whole numbers from ``least`` to the number of keys."""
    keys = max(shape[3], 1)
    draw = bits(case.seed, "length", (*shape[:3], 1)) >> np.uint64(33)
    return least + (draw % np.uint64(keys + 1 - least)).astype(np.int64)


def _padding(case: Any, shape: tuple[int, ...]) -> Array:
    return _coordinate(case, shape, 3) < lengths(case, shape, 1)


def _left_padding(case: Any, shape: tuple[int, ...]) -> Array:
    return _coordinate(case, shape, 3) >= shape[3] - lengths(case, shape, 1)


def _band(case: Any, shape: tuple[int, ...]) -> Array:
    distance = _coordinate(case, shape, 2) - _coordinate(case, shape, 3)
    return (distance >= 0) & (distance <= 1 + case.seed % 3)


def _triangle(case: Any, shape: tuple[int, ...]) -> Array:
    return _coordinate(case, shape, 3) <= _coordinate(case, shape, 2)


def _leading_tile(case: Any, shape: tuple[int, ...]) -> Array:
    tile = next((size for size in LEADING_TILES if size < shape[3]), 0)
    return (_coordinate(case, shape, 3) >= tile) & np.ones(shape, dtype=bool)


def _documents(case: Any, shape: tuple[int, ...]) -> Array:
    cut = max(1, shape[3] // 2)
    return (_coordinate(case, shape, 2) < cut) == (_coordinate(case, shape, 3) < cut)


def _one_key(case: Any, shape: tuple[int, ...]) -> Array:
    return _coordinate(case, shape, 3) == lengths(case, shape, 1) - 1


def _one_hole(case: Any, shape: tuple[int, ...]) -> Array:
    return _coordinate(case, shape, 3) != lengths(case, shape, 1) - 1


def _empty_rows(case: Any, shape: tuple[int, ...]) -> Array:
    empty = uniform(case.seed, "empty", (*shape[:3], 1)) < 0.5
    return (uniform(case.seed, "mask", shape) < 0.7) & ~empty


MASKS: dict[str, Pattern] = {
    "random": _random,
    "padding": _padding,
    "left_padding": _left_padding,
    "triangle": _triangle,
    "band": _band,
    "documents": _documents,
    "one_key": _one_key,
    "one_hole": _one_hole,
    "leading_tile": _leading_tile,
    "everything": _everything,
    "empty_rows": _empty_rows,
    "nothing": _nothing,
}
MASK_KINDS = ("bool", "minus_infinity", "bias", "bias_and_minus_infinity", "lowest")
MASK_AXES = ("LS", "S", "BLS", "HLS", "BHLS", "BS", "HS", "BHS", "L", "BL", "BH", "")


def make_mask(case: Any, shape: tuple[int, int, int, int]) -> Array | None:
    """The mask of the case for logits of ``shape`` (B, H, L, S), with the declared axes, kind and rank."""
    if case.mask == "none":
        return None
    sizes = tuple(size if axis in case.mask_axes else 1 for axis, size in zip(AXES, shape, strict=True))
    visible = np.broadcast_to(MASKS[case.mask](case, sizes), sizes)
    least = next((4 - at for at, axis in enumerate(AXES) if axis in case.mask_axes), 0)
    mask = _say(case, visible)
    return mask.reshape(sizes[4 - max(least, case.mask_rank) :])


def in_axes(mask: Array, shape: tuple[int, ...], allowed: tuple[str, ...]) -> Array:
    """The mask in the fewest of the allowed axes that say it: of full size along them, of size 1 or none along all others.

    It stays as it is where it has such a form, fits no logits of this shape, or can be said in none.
    """
    sizes = (1,) * (4 - mask.ndim) + mask.shape
    least = {axes: next((4 - at for at, axis in enumerate(AXES) if axis in axes), 0) for axes in allowed}

    def full(axes: str) -> tuple[int, ...]:
        return tuple(size if axis in axes else 1 for axis, size in zip(AXES, shape, strict=True))

    legal = mask.ndim <= 4 and all(one in (1, size) for one, size in zip(sizes, shape, strict=True))
    if not legal or any(sizes == full(axes) and mask.ndim >= least[axes] for axes in allowed):
        return mask
    whole = mask.reshape(sizes)
    varies = {axis for at, axis in enumerate(AXES) if sizes[at] > 1}
    needs = {axis for at, axis in enumerate(AXES) if sizes[at] > 1 and (whole != whole.take([0], axis=at)).any()}
    may = [axes for wanted in (varies, needs) for axes in sorted(allowed, key=len) if wanted <= set(axes)]
    if not may:
        return mask
    for at, axis in enumerate(AXES):
        if axis not in may[0] and sizes[at] != 1:
            whole = whole.take([0], axis=at) if sizes[at] else np.full(full(may[0]), mask.dtype == bool, dtype=mask.dtype)
    return np.broadcast_to(whole, full(may[0])).reshape(full(may[0])[4 - max(least[may[0]], mask.ndim) :])


def other_mask(mask: Array, case: Any) -> Array:
    """A mask of the case's kind that says something else: what is hidden is seen, and the other way round; or another bias."""
    if mask.dtype == bool:
        return ~mask
    if not case.mask_kind.startswith("bias"):
        return np.where(mask < 0, 0.0, _hidden(case))
    slope = np.arange(mask.shape[-1]) if mask.ndim and mask.shape[-1] > 1 else 1.0
    return np.where(mask == -np.inf, 0.0, mask - 3 * slope)


def _hidden(case: Any) -> float:
    """What an additive mask says of a hidden key."""
    return FLOAT_TYPES[case.dtype].max * -1.0 if case.mask_kind == "lowest" else -np.inf


def _say(case: Any, visible: Array) -> Array:
    """The same visibility in the words of the mask's kind."""
    if case.mask_kind == "bool":
        return visible.copy()
    bias = np.zeros(visible.shape)
    if case.mask_kind.startswith("bias"):
        bias = round_to(case.dtype, 2 * normal(case.seed, "bias", visible.shape))
    return bias if case.mask_kind == "bias" else np.where(visible, bias, _hidden(case))
