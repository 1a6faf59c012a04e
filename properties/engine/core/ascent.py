"""A loss as a function of how far all that it depends on has gone in a direction: do its derivatives say how it grows?

φ(s) = Σ out · g with arguments and weights at x + s d, g of signs. Its slope comes from its values (``exact.slope``), which rounding moves
by no more than is known; no tolerance is chosen. A function that is not smooth is held to less, or to nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from ...exact.slope import Estimate, H, bend, slope
from ..cases.coordinates import Array
from ..frameworks import Buffers, Given
from .target import NotTaken, Raised, Target, first_line
from .trial import Trial

GRID, STEPS = 2.0**-24, 2.0**-12  # numbers are multiples of the one, their directions of the other: x + s d is exact


class Ascent:
    """One call with everything that can move, by name."""

    def __init__(self, trial: Trial) -> None:
        self.trial: Any = trial
        self.start: dict[str, Array] = {}
        self.along: dict[str, Array] = {}
        self.noise = 0.0  # how far rounding may move φ
        self.step = H  # how far it is gone for a slope
        self.wide = H  # and for a bend, in which rounding shows more

    def at(self, s: float, names: Collection[str] | None = None) -> float:
        """φ(s); where names are given, only these have moved."""
        raise NotImplementedError

    def reported(self, twice: bool) -> dict[str, float]:
        """What each array contributes to φ'(0), or to φ''(0), as automatic differentiation says. Whatever is raised passes."""
        raise NotImplementedError

    def place(self, s: float, names: Collection[str] | None = None) -> dict[str, Array]:
        """Where the arrays are at s."""
        return {name: x + s * self.along[name] * (names is None or name in names) for name, x in self.start.items()}

    def grows_as_reported(self) -> None:
        """The reported gradient is the measured slope; if not, the claim names the array. Raises Refuted."""
        try:
            reported = self.reported(twice=False)
        except Raised:
            raise
        except Exception as error:
            raise Raised(error) from error
        measured = slope(self.at, self.noise, self.step)
        if abs(sum(reported.values()) - measured.value) > measured.error:
            for name, part in reported.items():
                of = slope(lambda s, only=(name,): self.at(s, only), self.noise, self.step)  # type: ignore[misc]
                self._agree(part, of, f"the gradient of {name} is another one")
        self._agree(sum(reported.values()), measured, "the gradient is another one")

    def bends_as_reported(self) -> None:
        """The reported second derivative is the measured bend. Raises Refuted, and NotTaken where the target says that it has none."""
        try:
            reported = self.reported(twice=True)
        except Exception as error:
            raise NotTaken(f"second derivatives ({type(error).__name__}: {first_line(error)})") from None
        self._agree(sum(reported.values()), bend(self.at, self.noise, self.wide), "the second derivative is another one")

    def _agree(self, reported: float, measured: Estimate, says: str) -> None:
        error = measured.error if math.isfinite(measured.error) else math.inf  # where values are not finite nothing is claimed
        self.trial.close(np.asarray([reported]), np.asarray([measured.value]), np.asarray([error]), says)


class OfCall(Ascent):
    """A call of arrays that have names; what rounding may do is its bound. Rows that are not posed have no part in the loss."""

    def __init__(self, trial: Trial, named: Mapping[str, Array]) -> None:
        super().__init__(trial)
        self.same = {name: next(n for n in named if named[n] is x) for name, x in named.items()}  # one array: its first name
        self.start = {name: on_grid(x) for name, x in named.items() if self.same[name] == name}
        self.along = {name: on_grid(trial.noise(f"along {name}", x.shape), STEPS) for name, x in self.start.items()}
        first = self.run(0.0)
        self.counted = np.broadcast_to(self.posed(first), first.out.shape)  # what other rows give is a convention
        self.signs = signs(trial.noise("signs", first.out.shape))
        self.noise = float(first.bound[self.counted].sum())
        if not self.counted.all() and trial.supports.empty_rows == "nan":
            self.noise = math.inf  # a row that is NaN sends NaN to all weights, whatever is asked of it

    def inputs(self, at: Mapping[str, Array]) -> Any:
        """The call of these arrays, by their names."""
        raise NotImplementedError

    def called(self, inputs: Any) -> Any:
        """What a call gives, with its bound: ``out`` and ``bound``. Raises Raised."""
        raise NotImplementedError

    def posed(self, run: Any) -> Array:
        """Which of its rows are no convention."""
        raise NotImplementedError

    def answer(self, inputs: Any, buffers: Buffers) -> Any:
        """What a call gives, as an array of the framework. Raises Raised."""
        raise NotImplementedError

    def run(self, s: float, names: Collection[str] | None = None) -> Any:
        """The call at s."""
        at = self.place(s, names)
        return self.called(self.inputs({name: at[first] for name, first in self.same.items()}))

    def at(self, s: float, names: Collection[str] | None = None) -> float:
        return math.fsum((self.run(s, names).out * self.signs)[self.counted])

    def reported(self, twice: bool) -> dict[str, float]:
        t, fw = self.trial, self.trial.target.framework

        def array(name: str, carrier: Array) -> Any:
            return t.buffers.array(name, carrier, t.case.dtype, t.case.device, "contiguous")

        leaves = {name: fw.modules.leaf(array(f"leaf {name}", x)) for name, x in self.start.items()}
        along = [array(f"along {name}", d) for name, d in self.along.items()]
        weights, counted = array("signs", self.signs), array("counted", self.counted)
        inputs = self.inputs({name: self.start[first] for name, first in self.same.items()})

        def loss() -> Any:
            return (self.answer(inputs, Given(fw, leaves)) * weights)[counted].sum()

        return dict(zip(leaves, fw.modules.slopes(loss, list(leaves.values()), along, twice), strict=True))


def without_gradients(target: Target, answer: Callable[[Buffers], Any], name: str, x: Array) -> str:
    """Why no gradient can be asked of a target; empty if one can. ``answer``: a small call that takes ``x`` under this name."""
    fw = target.framework
    if not fw.gradients or fw.modules is None:
        return f"gradients of layers are not asked of {fw.name} arrays"
    if target.supports.gradients is False:
        return "declared as not supported: gradients"
    leaf = fw.modules.leaf(fw.assign(fw.full(x.shape, 1.0, target.dtypes[0], target.supports.devices[0]), x))
    try:
        fw.modules.send_back(answer(Given(fw, {name: leaf})), 1.0)
    except Raised as raised:
        return f"gradients: it raised {type(raised.error).__name__}: {first_line(raised.error)}"
    except Exception as error:
        return f"the output of a first call carries no gradient: {type(error).__name__}: {first_line(error)}"
    return ""


def on_grid(x: Array, unit: float = GRID) -> Array:
    """The nearest multiples of a unit."""
    return np.asarray(np.round(x / unit) * unit)


def signs(drawn: Array) -> Array:
    """1 and −1."""
    return np.where(drawn < 0, -1.0, 1.0)
