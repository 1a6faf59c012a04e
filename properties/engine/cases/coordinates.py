"""Random numbers that belong to a coordinate, not to an order of drawing.

Each element is a hash of (seed, tensor's name, its index): shrinking one dimension leaves all other elements in place, and
the numbers are the same on every machine, since only integer arithmetic and correctly rounded operations are used.
The mixer is the finaliser of splitmix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

BLOCK = 2**14  # numbers that are drawn at a time: what becomes of them on the way stays in a cache
_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15  # 2^64 / golden ratio, odd
# One odd constant an axis; counted from the last axis, so that a leading axis of size 1 changes nothing.
_AXES = (0xD1B54A32D192ED03, 0xAEF17502108EF2D9, 0xDB4F0B9175AE2165, 0xBBE0563303A4615F, 0x8CB92BA72F3D8DD7)


def _mix(x: Array) -> Array:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _start(seed: int, name: str) -> int:
    return ((seed + 1) * _GOLDEN ^ zlib.crc32(name.encode()) * 0x2545F4914F6CDD1D) & _MASK


def bits(seed: int, name: str, shape: tuple[int, ...]) -> Array:
    """64 random bits for every coordinate of ``shape`` (at most five axes)."""
    return _each(seed, name, shape, lambda x: x, np.uint64)


def uniform(seed: int, name: str, shape: tuple[int, ...]) -> Array:
    """Uniform on [0, 1), in multiples of 2^-53."""
    return _each(seed, name, shape, lambda x: (x >> np.uint64(11)).astype(np.float64) * 2.0**-53, np.float64)


def normal(seed: int, name: str, shape: tuple[int, ...]) -> Array:
    """Mean 0, variance 1, nearly normal, within ±3.5: the sum of four uniform numbers (Irwin–Hall).

    Four 16-bit fields of one hash give the bell, a second hash fills the low bits of the significand; no library
    function whose last bit may differ between platforms is involved.
    """
    return _each(seed, name, shape, _bell, np.float64)


def _bell(x: Array) -> Array:
    total = np.zeros(x.shape)
    for field in range(4):
        total += ((x >> np.uint64(16 * field)) & np.uint64(0xFFFF)).astype(np.float64)
    total += (_mix(x + np.uint64(_GOLDEN)) >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return (total - 131070.5) * (1 / 37837.22)  # mean 4·32767.5 + 1/2; standard deviation 2^16/sqrt(3)


def _each(seed: int, name: str, shape: tuple[int, ...], of: Callable[[Array], Array], dtype: npt.DTypeLike) -> Array:
    """What becomes of the random bits of every coordinate, some thousands at a time, which stay in a cache."""
    x = np.full((1,) * len(shape), _start(seed, name), dtype=np.uint64)
    for axis, size in enumerate(reversed(shape)):
        step = np.arange(size, dtype=np.uint64) * np.uint64(_AXES[axis])
        x = x + step.reshape((size,) + (1,) * axis)
    found, x = np.empty(x.size, dtype), x.reshape(-1)
    for at in range(0, x.size, BLOCK):
        found[at : at + BLOCK] = of(_mix(_mix(x[at : at + BLOCK]) + np.uint64(_GOLDEN)))
    return found.reshape(shape)


def choice(seed: int, name: str, count: int) -> int:
    """One of ``range(count)``."""
    return int(bits(seed, name, (1,))[0]) % count


def permutation(seed: int, name: str, count: int) -> Array:
    """A random order of ``range(count)``; never the identity if count > 1 (a permutation that permutes nothing tests nothing)."""
    order = np.argsort(bits(seed, name, (count,)), kind="stable")
    return np.roll(order, 1) if count > 1 and bool((order == np.arange(count)).all()) else order
