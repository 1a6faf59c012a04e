"""A loss as a function of how far all that it depends on has gone in a direction: do its derivatives say how it grows?

φ(s) = Σ out · g with arguments and weights at x + s d, g of signs. Its slope comes from its values (``exact.slope``), which rounding moves
by no more than is known; no tolerance is chosen. A function that is not smooth is held to less, or to nothing.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

import numpy as np

from ...exact.slope import Estimate, slopes
from ..cases.coordinates import Array
from .target import NotTaken, Raised, first_line
from .trial import Trial

GRID, STEPS = 2.0**-24, 2.0**-12  # numbers are multiples of the one, their directions of the other: x + s d is exact


class Ascent:
    """One call with everything that can move, by name."""

    def __init__(self, trial: Trial) -> None:
        self.trial: Any = trial
        self.start: dict[str, Array] = {}
        self.along: dict[str, Array] = {}
        self.noise = 0.0  # how far rounding may move φ

    def at(self, s: float, names: Collection[str] | None = None) -> float:
        """φ(s); where names are given, only these have moved."""
        raise NotImplementedError

    def told(self, twice: bool) -> dict[str, float]:
        """What each array contributes to φ'(0), or to φ''(0), as automatic differentiation says. Whatever is raised passes."""
        raise NotImplementedError

    def place(self, s: float, names: Collection[str] | None = None) -> dict[str, Array]:
        """Where the arrays are at s."""
        return {name: x + s * self.along[name] * (names is None or name in names) for name, x in self.start.items()}

    def grows_as_told(self) -> None:
        """The gradient is the slope; if not, it is said of which array it is another one. Raises Refuted."""
        try:
            told = self.told(twice=False)
        except Raised:
            raise
        except Exception as error:
            raise Raised(error) from error
        seen = slopes(self.at, self.noise)[0]
        if abs(sum(told.values()) - seen.value) > seen.error:
            for name, part in told.items():
                self._agree(part, slopes(lambda s, only=(name,): self.at(s, only), self.noise)[0], f"the gradient of {name} is another one")  # type: ignore[misc]
        self._agree(sum(told.values()), seen, "the gradient is another one")

    def bends_as_told(self) -> None:
        """The second derivative is the bend. Raises Refuted, and NotTaken where there is none, and the target says so."""
        try:
            told = self.told(twice=True)
        except Exception as error:
            raise NotTaken(f"second derivatives ({type(error).__name__}: {first_line(error)})") from None
        self._agree(sum(told.values()), slopes(self.at, self.noise)[1], "the second derivative is another one")

    def _agree(self, told: float, seen: Estimate, says: str) -> None:
        error = seen.error if math.isfinite(seen.error) else math.inf  # where values are not finite nothing is claimed
        self.trial.close(np.asarray([told]), np.asarray([seen.value]), np.asarray([error]), says)


def on_grid(x: Array, unit: float = GRID) -> Array:
    """The nearest multiples of a unit."""
    return np.asarray(np.round(x / unit) * unit)


def signs(drawn: Array) -> Array:
    """1 and −1."""
    return np.where(drawn < 0, -1.0, 1.0)
