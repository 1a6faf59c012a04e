"""What encodings of positions are, exactly, and how far a correct one may be off.

    sinusoid   PE(p, 2i) = sin(p w_i), PE(p, 2i+1) = cos(p w_i),  w_i = base^(-2i/dim)     (Vaswani et al. 2017, 3.5)
    rotary     (y₁, y₂) = (x₁ cos p w_i − x₂ sin p w_i, x₁ sin p w_i + x₂ cos p w_i)        (Su et al. 2021, equation 34)
    slopes     2^(-8h/n), h = 1 … n, for n = 2^k heads; others from the series of n and 2n    (Press et al. 2022, section 3)
    buckets    distances below n/2 one by one, then logarithmically up to max_distance      (Raffel et al. 2020, section 2.1)

The answers are computed in the widest type of the machine (80 or 128 bits where there is one), buckets in whole numbers.

Bounds. Let u be the unit roundoff of the type in which angles are computed, and F u the relative error of an elementary
function (four units in the last place, as vector libraries promise). w = exp(e) with e = −(2i/dim) ln base: the logarithm,
the quotient and the product leave e with a relative error (F+3) u, thus w with a factor within exp(±u((F+3)|ln w| + F)).
Storing the position and multiplying by it cost a factor 1 + u each. So the angle a = p w is off by at most

    δ = |a| (exp(u((F+3)|ln w| + F + 2)) − 1)

and sine and cosine, whose derivative is at most 1, by min(δ, 2), besides their own rounding. It is absolute, and grows with the
position: at p = 100,000 a float32 sinusoid has some two digits. That is what its arithmetic is worth, and no more is asked.
The same holds of base^(2i/dim) with a division, of powers by repeated products, and of any order of these operations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..engine.cases.coordinates import Array
from ..exact.arithmetic import Arithmetic

Wide = np.longdouble
ORACLE = float(np.finfo(Wide).eps) / 2  # its own unit roundoff
FUNCTION = 8.0  # F: four units in the last place


@dataclass(frozen=True, eq=False)
class Exact:
    """An exact answer, in the widest type."""

    wide: Array

    @property
    def out(self) -> Array:
        """Rounded to float64."""
        return self.wide.astype(np.float64)

    def out_error(self, actual: Array) -> Array:
        """|actual − exact|; inf where the answer is not a number."""
        difference = np.abs(actual.astype(Wide) - self.wide).astype(np.float64)
        return np.where(np.isnan(difference), np.inf, difference)


# ---------------------------------------------------------------- angles


@dataclass(frozen=True, eq=False)
class Turn:
    """Sine and cosine of p w_i, exactly, with their bounds: all (positions, pairs)."""

    angle: Array  # p w_i, in the widest type
    sin: Array
    cos: Array
    sin_bound: Array  # of the stored sine
    cos_bound: Array


def frequencies(pairs: int, dim: int, base: float) -> Array:
    """w_i = base^(−2i/dim), (pairs,)."""
    return np.power(Wide(base), -2 * np.arange(pairs).astype(Wide) / Wide(max(dim, 1)))


def turn(positions: Array, pairs: int, dim: int, base: float, a: Arithmetic) -> Turn:
    """Sines and cosines of every position, and how far those of a table in this arithmetic may be off."""
    w = frequencies(pairs, dim, base)
    angle = positions.astype(Wide)[:, None] * w
    sin, cos = np.sin(angle), np.cos(angle)
    size = np.abs(angle).astype(np.float64)
    delta = np.minimum(angle_error(size, np.abs(np.log(w)).astype(np.float64), a), 2.0)
    delta = delta + np.abs(positions[:, None]) * a.tiny
    overflows = (np.maximum(size, np.abs(positions)[:, None]) > a.max_acc) | (base > a.max_acc)
    bounds = [np.where(overflows, np.inf, table_error(np.abs(x).astype(np.float64), delta, a)) for x in (sin, cos)]
    return Turn(angle, sin, cos, *bounds)


def angle_error(size: Array, log: Array, a: Arithmetic) -> Array:
    """δ of an angle of this size, of frequency w with |ln w| = log; the oracle's own error is in it."""

    def factor(u: float, extra: float = 0.0) -> Array:
        return np.asarray(np.expm1(u * ((FUNCTION + 3) * log + FUNCTION + 2) + extra))

    return size * (factor(a.u_acc, 2 * a.u_mul) + factor(ORACLE))


def table_error(size: Array, delta: Array, a: Arithmetic) -> Array:
    """Bound of a stored sine of this size, taken of an angle that is off by delta: the function, then the storage."""
    computed = delta + FUNCTION * (a.u_acc + ORACLE) * (size + delta) + a.tiny
    return computed + a.u_s * (size + computed) + a.eta_s


def same_angle_error(angle: Array, a: Arithmetic) -> Array:
    """Bound of a stored sine *of the angle that the target has*, however wrong that angle is.

    Sine and cosine of a pair are of one angle, up to one rounding: a cosine may be computed as sin(a + π/2).
    """
    return table_error(np.ones(angle.shape), a.u_acc * (np.abs(angle).astype(np.float64) + 2), a)


def sinusoid(t: Turn, dim: int, pairing: str, a: Arithmetic) -> tuple[Exact, Array]:
    """(PE (positions, dim), its bound)."""
    wide, allowed = join(t.sin, t.cos, dim, pairing), join(t.sin_bound, t.cos_bound, dim, pairing)
    return Exact(wide), allowed + a.u_out * (np.abs(wide).astype(np.float64) + allowed) + a.eta_out


def rotation(x: Array, t: Turn, pairing: str, a: Arithmetic) -> tuple[Exact, Array]:
    """(x (…, positions, dim) with its first 2·pairs features rotated, the bound). The others are as they were, exactly."""
    rotary = 2 * t.angle.shape[1]
    x1, x2 = split(x[..., :rotary].astype(Wide), pairing)
    y1, y2 = x1 * t.cos - x2 * t.sin, x1 * t.sin + x2 * t.cos
    first = product_error(x1, x2, t.cos, t.sin, t.cos_bound, t.sin_bound, a)
    second = product_error(x1, x2, t.sin, t.cos, t.sin_bound, t.cos_bound, a)
    rest = x[..., rotary:]
    wide = np.concatenate([join(y1, y2, rotary, pairing), rest.astype(Wide)], axis=-1)
    return Exact(wide), np.concatenate([join(first, second, rotary, pairing), np.zeros(rest.shape)], axis=-1)


def product_error(x1: Array, x2: Array, f1: Array, f2: Array, e1: Any, e2: Any, a: Arithmetic) -> Array:
    """Bound of x₁ f₁ ± x₂ f₂ for factors that are off by e: two products and a sum, each rounded, then stored."""
    x1, x2, f1, f2 = (np.abs(x).astype(np.float64) for x in (x1, x2, f1, f2))
    with np.errstate(invalid="ignore"):
        factors = np.where(x1 > 0, x1 * e1, 0.0) + np.where(x2 > 0, x2 * e2, 0.0)
    size = x1 * f1 + x2 * f2 + factors
    summed = factors + (3 * a.u_s + 3 * ORACLE) * size + 3 * a.eta_s + 3 * a.tiny
    return summed + a.u_out * (size + summed) + a.eta_out


def split(x: Array, pairing: str) -> tuple[Array, Array]:
    """The first and the second feature of every pair, (…, pairs) each."""
    if pairing == "half":
        half = (x.shape[-1] + 1) // 2
        return x[..., :half], x[..., half:]
    return x[..., 0::2], x[..., 1::2]


def join(first: Array, second: Array, dim: int, pairing: str) -> Array:
    """The inverse of ``split``; an odd dim has no second feature in its last pair."""
    first, second = first[..., : (dim + 1) // 2], second[..., : dim // 2]
    if pairing == "half":
        return np.concatenate([first, second], axis=-1)
    out = np.empty((*first.shape[:-1], dim), dtype=first.dtype)
    out[..., 0::2], out[..., 1::2] = first, second
    return out


# ---------------------------------------------------------------- slopes


def series(num_heads: int) -> int:
    """n, the largest power of two that is not above the number of heads."""
    return 1 << (num_heads.bit_length() - 1)


def slopes(num_heads: int, a: Arithmetic) -> tuple[Exact, Array]:
    """(slopes (num_heads,), bound): 2^(−8h/n), h = 1 … n, then every other one of the series of 2n, from its first.

    The exponent −8h/n is off by a factor 1 + (F+1)(log₂ n + 2) u where it is itself made of logarithms and powers; it is at
    most 8, which 2^x turns into 8 ln 2 < 6 times as much; h − 1 products by a ratio cost (F+1) u each.
    """
    n = series(num_heads)
    exponents = np.concatenate([np.arange(1, n + 1) / Wide(n), np.arange(1, 2 * n, 2)[: num_heads - n] / Wide(2 * n)])
    wide = np.exp2(-8 * exponents)
    steps = np.concatenate([np.arange(1, n + 1), np.arange(1, 2 * n, 2)[: num_heads - n]])
    relative = np.expm1((a.u_acc + ORACLE) * (FUNCTION + 1) * (6 * (np.log2(2 * n) + 2) + steps + 1))
    computed = wide.astype(np.float64) * relative
    return Exact(wide), computed + a.u_out * (wide.astype(np.float64) + computed) + a.eta_out


# ---------------------------------------------------------------- buckets


def buckets(relative: Array, bidirectional: bool, num_buckets: int, max_distance: int) -> tuple[Array, Array]:
    """(lowest, highest bucket of every relative position). They differ only where rounding decides.

    bucket = d below E = n/2, else min(E + ⌊(n − E) ln(d/E) / ln(M/E)⌋, n − 1): the floor is the largest k with
    (d/E)^(n−E) ≥ (M/E)^k, decided in whole numbers. In float32 the logarithm of d/E is off by (F+1) u ln(d/E) + u, its quotient
    by another (F+2) u; where k·ln(M/E) lies within that, the bucket below is right, too.
    """
    n = num_buckets // 2 if bidirectional else num_buckets
    distance = np.abs(relative) if bidirectional else np.maximum(-relative, 0)
    values, where = np.unique(distance.astype(np.int64), return_inverse=True)
    pairs = np.array([_bucket(int(d), n, max_distance) for d in values]).reshape(-1, 2)[where.reshape(distance.shape)]
    side = np.where((relative > 0) & bidirectional, n, 0)
    return pairs[..., 0] + side, pairs[..., 1] + side


def _bucket(d: int, n: int, most: int) -> tuple[int, int]:
    exact = n // 2
    if d < exact:
        return d, d
    k = next(k for k in range(n - exact, -1, -1) if d ** (n - exact) * exact**k >= most**k * exact ** (n - exact))
    u = 2.0**-24
    ratio, span = np.log(d / exact), np.log(most / exact)
    share = ratio / span * (n - exact)
    slack = u * ((2 * FUNCTION + 4) * share + (n - exact) / span)
    low, high = (exact + int(np.floor(x)) for x in (share - slack, share + slack))
    least, greatest = min(exact + k, max(low, exact)), max(exact + k, high)
    return min(least, n - 1), min(greatest, n - 1)
