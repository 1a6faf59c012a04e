"""The floating-point types under test, by name, for any framework.

Values travel as *carriers*: float64 arrays in which every element is exactly representable in the type under test.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class FloatType:
    """A binary floating-point format (IEEE 754, or bfloat16)."""

    name: str
    precision: int  # bits of the significand, the hidden one included
    max_exponent: int  # the largest finite number is (2 - 2^(1-precision)) · 2^max_exponent

    @property
    def max(self) -> float:
        """Largest finite number."""
        return (2.0 - 2.0 ** (1 - self.precision)) * 2.0**self.max_exponent

    @property
    def tiny(self) -> float:
        """Smallest normal number."""
        return 2.0 ** (1 - self.max_exponent)

    @property
    def subnormal(self) -> float:
        """Smallest positive number."""
        return 2.0 ** (2 - self.max_exponent - self.precision)


FLOAT_TYPES = {
    t.name: t
    for t in (
        FloatType("float64", 53, 1023),
        FloatType("float32", 24, 127),
        FloatType("float16", 11, 15),
        FloatType("bfloat16", 8, 127),
    )
}
DTYPES = tuple(FLOAT_TYPES)


def round_to(dtype: str, x: Array) -> Array:
    """The carrier nearest to x (float64) in the type, ties to even; too large becomes infinite, as IEEE 754 has it."""
    if dtype == "float64":
        return x
    with np.errstate(over="ignore"):
        if dtype == "float16":
            return x.astype(np.float16).astype(np.float64)
        single = x.astype(np.float32)
    if dtype == "float32":
        return single.astype(np.float64)
    return _bfloat16(single).astype(np.float64)


def _bfloat16(x: Array) -> Array:
    """Round float32 to its upper 16 bits, ties to even; NaN and infinities pass."""
    raw = x.view(np.uint32)
    rounded = (raw + np.uint32(0x7FFF) + ((raw >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
    return np.where(np.isfinite(x), rounded.view(np.float32), x)
