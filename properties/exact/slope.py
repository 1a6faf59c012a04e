"""How a function of one number grows at 0, and how that bends, from seven of its values; with how far each may be off.

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

H = 2.0**-8  # of numbers of order one: h² and 2⁻⁵³/h² are both small


@dataclass(frozen=True)
class Estimate:
    """A number, and how far it may be off."""

    value: float
    error: float


def slopes(function: Callable[[float], float], noise: float, h: float = H) -> tuple[Estimate, Estimate]:
    """(φ'(0), φ''(0)) of a function whose values are off by no more than ``noise``."""
    here = function(0.0)
    far, near, nearer = ((function(-step), function(step)) for step in (h, h / 2, h / 4))

    def slope(pair: tuple[float, float], h: float) -> float:
        return (pair[1] - pair[0]) / (2 * h)

    def bend(pair: tuple[float, float], h: float) -> float:
        return (pair[1] - 2 * here + pair[0]) / h**2

    first, second = slope(near, h / 2), bend(near, h / 2)
    change, next_change = abs(second - bend(far, h)), abs(bend(nearer, h / 4) - second)
    smooth = next_change <= change / 2 + 80 * noise / h**2  # 64 of the nearest three values, 16 of the next
    return (
        Estimate(first, abs(first - slope(far, h)) + h * change + 2 * noise / h),
        Estimate(second, change + 16 * noise / h**2 if smooth else math.inf),
    )
