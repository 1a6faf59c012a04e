"""Double-double numbers: unevaluated sums of two float64, 106 bits, in plain NumPy.

The portable stand-in for ``np.longdouble`` where that is no wider than float64 (Windows, Apple silicon).
Error-free transformations by Dekker (1971) and Knuth; see Higham, *Accuracy and Stability*, 2nd ed., section 27.9, and
Joldes, Muller & Popescu, *Tight and rigorous error bounds for basic building blocks of double-word arithmetic* (2017).
Products below 2^-969 lose their tail: float64 remains.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

LN2 = (0.6931471805599453, 2.3190468138462996e-17)


def two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """``a + b`` as sum and rounding error, exactly."""
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


def split(a: Array) -> tuple[Array, Array]:
    """``a`` as two halves of at most 26 bits, exactly."""
    factor = np.where(np.abs(a) > 2.0**990, 2.0**-30, 1.0)  # the product below must not overflow
    t = a * factor * 134217729.0  # 2^27 + 1
    high = (t - (t - a * factor)) / factor
    return high, a - high


def two_product(a: Array, b: Array) -> tuple[Array, Array]:
    """``a * b`` as product and rounding error, exactly."""
    p = a * b
    a1, a2 = split(a)
    b1, b2 = split(b)
    return p, ((a1 * b1 - p) + a1 * b2 + a2 * b1) + a2 * b2


class DoubleDouble:
    """An array of double-double numbers, ``hi + lo`` with ``|lo| <= ulp(hi) / 2``."""

    __array_priority__ = 1000.0
    __array_ufunc__ = None  # NumPy arrays on the left defer to the reflected operators

    def __init__(self, hi: Any, lo: Any = 0.0) -> None:
        lo = np.where(np.isfinite(lo), lo, 0.0)  # a non-finite value has no tail
        self.hi, error = two_sum(np.asarray(hi, np.float64), lo)
        self.lo = np.where(np.isfinite(error), error, 0.0)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.hi.shape

    def _map(self, function: Any) -> DoubleDouble:
        return DoubleDouble(function(self.hi), function(np.broadcast_to(self.lo, self.hi.shape)))

    def __getitem__(self, index: Any) -> DoubleDouble:
        return self._map(lambda x: x[index])

    def swapaxes(self, a: int, b: int) -> DoubleDouble:
        return self._map(lambda x: x.swapaxes(a, b))

    def reshape(self, *shape: int) -> DoubleDouble:
        return self._map(lambda x: x.reshape(*shape))

    def repeat(self, count: int, axis: int) -> DoubleDouble:
        return self._map(lambda x: x.repeat(count, axis))

    def where(self, condition: Array, other: float) -> DoubleDouble:
        """These numbers where the condition holds, ``other`` elsewhere."""
        return DoubleDouble(np.where(condition, self.hi, other), np.where(condition, self.lo, 0.0))

    def __neg__(self) -> DoubleDouble:
        return DoubleDouble(-self.hi, -self.lo)

    def __add__(self, other: Any) -> DoubleDouble:
        b = lift(other)
        high, error = two_sum(self.hi, b.hi)
        return DoubleDouble(high, error + (self.lo + b.lo))

    def __sub__(self, other: Any) -> DoubleDouble:
        return self + -lift(other)

    def __mul__(self, other: Any) -> DoubleDouble:
        b = lift(other)
        high, error = two_product(self.hi, b.hi)
        return DoubleDouble(high, error + (self.hi * b.lo + self.lo * b.hi))

    def __truediv__(self, other: Any) -> DoubleDouble:
        b = lift(other)
        first = self.hi / b.hi
        return DoubleDouble(first, (self - b * first).hi / b.hi)

    __radd__ = __add__
    __rmul__ = __mul__

    def __matmul__(self, other: DoubleDouble) -> DoubleDouble:
        """Matrix product over the last two axes: Dot2 of Ogita, Rump & Oishi (2005), error n^2 u^2 sum |x||y|."""
        shape = (*np.broadcast_shapes(self.shape[:-2], other.shape[:-2]), self.shape[-2], other.shape[-1])
        total, tail = np.zeros(shape), np.zeros(shape)
        for d in range(self.shape[-1]):
            a, a_low = self.hi[..., :, d, None], self.lo[..., :, d, None]
            b, b_low = other.hi[..., None, d, :], other.lo[..., None, d, :]
            product, error = two_product(a, b)
            total, rest = two_sum(total, product)
            tail = tail + (rest + (error + (a * b_low + a_low * b)))
        return DoubleDouble(total, tail)

    def sum(self, axis: int, keepdims: bool = False) -> DoubleDouble:
        """Sum over the last axis (``axis=-1`` only)."""
        ones = DoubleDouble(np.ones((self.shape[axis], 1)))
        total = (self @ ones) if len(self.shape) > 1 else (self.reshape(1, -1) @ ones)[0]
        return total if keepdims else total[..., 0]

    def exp(self) -> DoubleDouble:
        """e^x: x = k ln 2 + 512 r, Taylor's series for e^r - 1, nine squarings of the form (1+y)^2 - 1 = 2y + y^2."""
        k = np.clip(np.round(self.hi / LN2[0]), -1100.0, 1100.0)
        k = np.where(np.isnan(k), 0.0, k)
        r = (self - DoubleDouble(*LN2) * k) * (1 / 512)  # |r| < 6.8e-4
        x = r.hi
        # From r^5 on, float64 is enough: r^4 / 5! is below 2e-15 of the sum, and r^9 / 10! below 1e-34.
        high_order = x * x * x * x * x * (1 / 120 + x * (1 / 720 + x * (1 / 5040 + x * (1 / 40320 + x / 362880))))
        y = r + r * r * (r * (r * (1 / 4) + 1.0) / 3.0 + 1.0) * 0.5 + high_order
        for _ in range(9):
            y = DoubleDouble(2 * y.hi, 2 * y.lo) + y * y
        y = y + 1.0
        power = k.astype(np.int64)
        # In two steps, since 2^k alone may overflow or underflow where e^x does not.
        high, low = (np.ldexp(np.ldexp(part, power // 2), power - power // 2) for part in (y.hi, y.lo))
        special = np.isnan(self.hi) | (np.abs(self.hi) > 760.0)
        return DoubleDouble(np.where(special, np.exp(self.hi), high), np.where(special, 0.0, low))

    def log(self) -> DoubleDouble:
        """ln x: one Newton step y + x e^-y - 1 from the float64 logarithm doubles its digits."""
        y = DoubleDouble(np.log(self.hi))
        correction = self * (-y).exp() - 1.0
        return y + correction.where(np.isfinite(y.hi), 0.0)


def lift(x: Any) -> DoubleDouble:
    """A float64 array or number as double-double, exactly."""
    return x if isinstance(x, DoubleDouble) else DoubleDouble(x)
