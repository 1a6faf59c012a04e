"""Masks of a case: which keys a query sees, along which axes that varies, and in which words it is said."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .coordinates import Array, bits, normal, uniform
from .dtypes import FLOAT_TYPES, round_to
from .field import documented

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
    """Any key or none, in no order: what no rule of lengths, bands or triangles stands for (A01, A18, A23)."""
    return uniform(case.seed, "mask", shape) < case.mask_density


def _everything(case: Any, shape: tuple[int, ...]) -> Array:
    """All is visible, and the mask is there: it must change nothing, but other rules may be forgotten with it (A37)."""
    return np.ones(shape, dtype=bool)


def _nothing(case: Any, shape: tuple[int, ...]) -> Array:
    """No row sees a key: 0/0, and a convention to be followed (C01, C10, C12)."""
    return np.zeros(shape, dtype=bool)


def lengths(case: Any, shape: tuple[int, ...], least: int) -> Array:
    """(…, 1) whole numbers from ``least`` to the number of keys."""
    keys = max(shape[3], 1)
    draw = bits(case.seed, "length", (*shape[:3], 1)) >> np.uint64(33)
    return least + (draw % np.uint64(keys + 1 - least)).astype(np.int64)


def _padding(case: Any, shape: tuple[int, ...]) -> Array:
    """Each sequence ends somewhere: the mask of another one is used (A14, A46, A53), or queries are masked for keys (A13)."""
    return _coordinate(case, shape, 3) < lengths(case, shape, 1)


def _left_padding(case: Any, shape: tuple[int, ...]) -> Array:
    """Each sequence begins somewhere, the first visible key is not key 0: a mask read as lengths (A43, A44), positions from 0 (F24)."""
    return _coordinate(case, shape, 3) >= shape[3] - lengths(case, shape, 1)


def _band(case: Any, shape: tuple[int, ...]) -> Array:
    """A key and a few before it: a causal window, whose edge is one off (B12, B14), and whose first tiles are hidden whole (C05)."""
    distance = _coordinate(case, shape, 2) - _coordinate(case, shape, 3)
    return (distance >= 0) & (distance <= 1 + case.seed % 3)


def _triangle(case: Any, shape: tuple[int, ...]) -> Array:
    """The causal mask, given as a mask: taken for a hint, or laid beside is_causal (A33, B10)."""
    return _coordinate(case, shape, 3) <= _coordinate(case, shape, 2)


def _leading_tile(case: Any, shape: tuple[int, ...]) -> Array:
    """The first tile is hidden whole: a running maximum of -inf gives exp(-inf + inf) (C05, pytorch#127055)."""
    tile = next((size for size in LEADING_TILES if size < shape[3]), 0)
    return (_coordinate(case, shape, 3) >= tile) & np.ones(shape, dtype=bool)


def _documents(case: Any, shape: tuple[int, ...]) -> Array:
    """Two texts in one row, which do not see each other: boundaries ignored (A37), a tile that is visible late (C20)."""
    cut = max(1, shape[3] // 2)
    return (_coordinate(case, shape, 2) < cut) == (_coordinate(case, shape, 3) < cut)


def _one_key(case: Any, shape: tuple[int, ...]) -> Array:
    """One visible key: the answer is its value, whatever the logits; any other key shows."""
    return _coordinate(case, shape, 3) == lengths(case, shape, 1) - 1


def _one_hole(case: Any, shape: tuple[int, ...]) -> Array:
    """All but one key: a mask read as lengths misses the hole (A43, A44)."""
    return _coordinate(case, shape, 3) != lengths(case, shape, 1) - 1


def _empty_rows(case: Any, shape: tuple[int, ...]) -> Array:
    """Some rows see no key, beside others that do: NaN in them, or in their neighbours (C01, C03, C10)."""
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
LARGE, OFTEN = 64, 8  # numbers of a bias that is far larger than logits; of so many cases one has it
KIND_REASONS = {
    "bool": "True is visible: inverted (A01), or added as a number (A23)",
    "minus_infinity": "0 and -inf: cast to bool (A02), or filled by a finite number (A35)",
    "bias": "nothing hidden, the numbers are added: scaled as logits are (A24), cast to bool (A02, A03); some are large: cut off at a number",
    "bias_and_minus_infinity": "numbers and hidden keys in one array: one of the two is read",
    "lowest": "finfo.min instead of -inf: two of them overflow (A31, E20)",
}
AXES_REASONS = {
    "LS": "one mask for every batch element and head, as it is mostly given",
    "S": "one row for all queries: taken for one of queries (A13)",
    "BLS": "a mask for each batch element: that of the first one is used (A46, A53)",
    "HLS": "a mask for each head: heads taken for batch elements (A04, A50)",
    "BHLS": "all axes: no size of 1, no stride of 0",
    "BS": "padding of each sequence: that of another one (A14, A16), or of queries (A13)",
    "HS": "a row for each head, none for queries: the missing axis in the wrong place (A11)",
    "BHS": "no axis of queries alone: their axis taken from the first row (A47)",
    "L": "no axis of keys, all of a row or none: a last size of 1 read with stride 1 (A45)",
    "BL": "no axis of keys, queries of each sequence: a last size of 1 (A45)",
    "BH": "whole heads: two last sizes of 1 (A45)",
    "": "one number for all: every size is 1 (A45)",
}
MASK_KINDS, MASK_AXES = tuple(KIND_REASONS), tuple(AXES_REASONS)
PATTERN_REASONS = {"none": "no mask at all, the path without one (A27)", **documented(MASKS)}
DENSITY_REASONS = {
    0.5: "half of the keys",
    0.8: "few keys are hidden: one that is not deleted shows",
    0.2: "few keys are visible, in some rows none",
}
RANK_REASONS = {
    0: "as few axes as the mask needs: a rank that code counts on (A12, A50)",
    (3, 4): "leading axes of size 1: a mask taken to vary along them",
}


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
        bias = round_to(case.dtype, (LARGE if case.seed % OFTEN == 1 else 2) * normal(case.seed, "bias", visible.shape))
    return bias if case.mask_kind == "bias" else np.where(visible, bias, _hidden(case))
