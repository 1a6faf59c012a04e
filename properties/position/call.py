"""The contracts of positions: how a callable of positions is recognised, called and read.

    learned(table, positions, *, offset=0)                                          → (length, dim), table (rows, dim)
    sinusoidal(length, dim, *, offset=0, base=10000.0, dtype)                       → (length, dim)
    rotary(x, positions, *, base=10000.0, rotary_dim=dim)                           → x's shape (batch, heads, length, dim)
    slopes(num_heads, *, dtype)                                                     → (num_heads,)
    buckets(relative_position, *, bidirectional=True, num_buckets=32, max_distance=128) → integers of the same shape

Only the first one or two arguments are required. A parameter that the callable does not take is not tried.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..engine.cases.coordinates import Array
from ..engine.core.target import Raised, Target
from ..engine.frameworks import Framework


def named_dtype(fw: Framework, dtype: str) -> Any:
    """A framework's own object for a dtype."""
    return getattr(fw.torch, dtype) if fw.name == "torch" else np.dtype(dtype)  # type: ignore[attr-defined]


def integers(fw: Framework, carrier: Array, device: str) -> Any:
    """A new array of int64."""
    made = fw.full(carrier.shape, 0, "int64", device)
    fw.assign(made, carrier)
    return made


def answer(target: Target, *arguments: Any, **options: Any) -> tuple[Array, tuple[tuple[int, ...], str, str]]:
    """(the answer as a carrier, its shape, dtype and device). A list of numbers counts as a NumPy array. Raises Raised."""
    try:
        with np.errstate(all="ignore"):
            result = target.function(*arguments, **options)
        if isinstance(result, list | tuple) and target.framework.name == "numpy":
            result = np.array(result)
    except Exception as error:
        raise Raised(error) from error
    if not target.framework.is_array(result):
        raise Raised(TypeError(f"returned {type(result).__name__}, not an array of {target.framework.name}"))
    return target.framework.read(result), target.framework.describe(result)
