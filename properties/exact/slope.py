"""How a function of one number grows at 0, and how that bends, from a few of its values; with how far each may be off.

    D(h) = (φ(h) − φ(−h)) / 2h               φ'(0)  = D(h/2)  − h²/24 φ'''  + O(h⁴)
    B(h) = (φ(h) − 2 φ(0) + φ(−h)) / h²      φ''(0) = B(h/2)  − h²/48 φ'''' + O(h⁴)

(Nocedal and Wright, *Numerical Optimization*, 2006, section 8.1.) Neither derivative is known, but what halving h changes is three times
the error that is left: |D(h/2) − D(h)| and |B(h/2) − B(h)| are allowed whole. Values that are off by ν, by rounding, move D(h/2) by
2 ν/h at most and B(h/2) by 16 ν/h².

Where φ bends sharply at 0, D has the mean of two slopes for every h, and says nothing of it; h B(h) is the difference of the slopes
then, and does not become half as much with h: h |B(h/2) − B(h)| is allowed in D, too. A bend farther off shows in what halving changes.
That is so of one sharp bend: two, one on either side, can hide each other. Whoever knows where they are takes a smaller h.

Of B nothing is left where φ bends sharply. There halving h once more changes B by more than half of what it changed before, where φ is
smooth by a quarter: B is claimed in the second case alone.

No room is left for the rounding of a derivative that is computed another way, as by automatic differentiation: it is of the size of
ν φ'/φ, and less than 2 ν/h unless φ changes within h by more than itself; then halving h changes D by as much as D is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

H = 2.0**-8  # of numbers of order one: h² and 2⁻⁵³/h² are both small


@dataclass(frozen=True)
class Estimate:
    """A number, and how far it may be off."""

    value: float
    error: float


class _Values:
    """D and B of a function, whose values are asked for once."""

    def __init__(self, function: Callable[[float], float]) -> None:
        self.value = cache(function)

    def slope(self, h: float) -> float:
        return (self.value(h) - self.value(-h)) / (2 * h)

    def bend(self, h: float) -> float:
        return (self.value(h) - 2 * self.value(0.0) + self.value(-h)) / h**2


def slope(function: Callable[[float], float], noise: float, h: float = H) -> Estimate:
    """φ'(0) of a function whose values are off by no more than ``noise``, from five of them."""
    at = _Values(function)
    change, corner = abs(at.slope(h / 2) - at.slope(h)), h * abs(at.bend(h / 2) - at.bend(h))
    return Estimate(at.slope(h / 2), change + corner + 2 * noise / h)


def bend(function: Callable[[float], float], noise: float, h: float = H) -> Estimate:
    """φ''(0) of a function whose values are off by no more than ``noise``, from seven of them."""
    at = _Values(function)
    change, next_change = abs(at.bend(h / 2) - at.bend(h)), abs(at.bend(h / 4) - at.bend(h / 2))
    smooth = next_change <= change / 2 + 80 * noise / h**2  # 64 of the nearest three values, 16 of the next
    return Estimate(at.bend(h / 2), change + 16 * noise / h**2 if smooth else math.inf)
