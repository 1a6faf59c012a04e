"""Queries, keys and values of a case: nearly normal numbers by their coordinates, in the regime of the case, in its type."""

from __future__ import annotations

from typing import Any

import numpy as np

from .coordinates import Array, normal
from .dtypes import round_to
from .regimes import REGIMES

Shape = tuple[int, ...]


def operands(case: Any, q: Shape, k: Shape, v: Shape, shared: bool = False) -> tuple[Array, Array, Array]:
    """q, k and v of these shapes as carriers. ``shared``: one key and one value for the whole batch."""
    queries, keys, values = (_fill(case.seed, name, shape, shared and name != "q") for name, shape in (("q", q), ("k", k), ("v", v)))
    with np.errstate(over="ignore", under="ignore"):
        queries, keys, values = REGIMES[case.values](queries, keys, values, case)
        queries = queries * 2.0**case.magnitude
    if shared:
        keys, values = (np.broadcast_to(x[:1], x.shape) for x in (keys, values))
    return round_to(case.dtype, queries), round_to(case.dtype, keys), round_to(case.dtype, values)


def _fill(seed: int, name: str, shape: Shape, shared: bool) -> Array:
    numbers = normal(seed, name, (1, *shape[1:]) if shared else shape)
    return np.broadcast_to(numbers, shape) if shared and shape[0] else numbers[: shape[0]] if shared else numbers
