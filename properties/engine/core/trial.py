"""A trial: one case put to one target, and the claims that a property may make about the answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from ...exact.arithmetic import Arithmetic
from ..cases import coordinates
from ..cases.coordinates import Array
from ..contained.stub import Shared
from .picture import Compared
from .target import Target

SLIGHT = 1e-6  # relative


@dataclass(frozen=True, eq=False)
class Violation:
    """A claim that does not hold, at its worst element."""

    says: str  # in words, with the indices
    actual: float
    expected: float
    allowed: float
    wrong: Array | None = None  # bool, shape of the output: every element that breaks the claim
    columns: str = "features"  # what its last axis is
    raised: bool = False  # the target raised, or killed the process, rather than answered wrongly
    killed: bool = False
    hint: str = ""  # what may not be supported, and the key that declares it
    compared: Compared | None = None  # all elements of the claim

    @property
    def difference(self) -> float:
        """|actual - expected|."""
        return abs(self.actual - self.expected)

    @property
    def slight(self) -> bool:
        """A rounding error too much: one that a bound nearly allows, or of the last digits. False for NaN."""
        largest = max(abs(self.actual), abs(self.expected))
        return 0 < self.difference < max(100 * self.allowed, SLIGHT * largest)


class Refuted(AssertionError):
    """The property does not hold of this target on this case."""

    def __init__(self, violation: Violation) -> None:
        self.violation = violation
        super().__init__(violation.says)


@dataclass
class Notes:
    """What the trials of one property have seen, summed over its cases."""

    used: float = 0.0  # largest |difference| / allowed of any bounded claim
    compared: int = 0  # elements compared
    ill_posed: int = 0  # elements for which no finite bound exists
    adequate: int = 0  # cases in which a trivially wrong answer would have been noticed
    judged: int = 0  # cases whose adequacy was judged
    fits: dict[str, float] = field(default_factory=dict)  # tighter arithmetic kind → largest used fraction
    not_taken: Counter[str] = field(default_factory=Counter)  # calls that the target says it does not take → cases that came to one
    blamed: Counter[str] = field(default_factory=Counter)  # what is faulty below the target → cases that are answered rightly without it

    def merge(self, other: Notes) -> None:
        """Add what other cases have seen."""
        self.used = max(self.used, other.used)
        self.compared += other.compared
        self.ill_posed += other.ill_posed
        self.adequate += other.adequate
        self.judged += other.judged
        for kind, fraction in other.fits.items():
            self.fits[kind] = max(self.fits.get(kind, 0.0), fraction)
        self.not_taken.update(other.not_taken)
        self.blamed.update(other.blamed)


class Trial:
    """What a property of any contract sees: the case, the target's answers, and claims about them."""

    own: Any  # the last answer, as the target has given it, where something is asked of it afterwards

    def __init__(self, target: Target, case: Any, notes: Notes | None = None) -> None:
        self.target = target
        self.case = case
        self.supports = target.supports
        self.notes = notes if notes is not None else Notes()
        self.buffers = target.buffers()
        self.runs: list[Any] = []  # every answer of the trial, for the reading of a failure
        self.not_taken = False  # whether it came to a call that the target says it does not take
        self.bounds: set[int] = set()  # the runs whose bound was asked for, by their number; in ``attempt``, those of earlier trials, too

    @cached_property
    def arithmetic(self) -> Arithmetic:
        """The declared arithmetic, or the loosest sane one."""
        own = self.supports.declared(self.case.dtype)
        return own if self.target.enlarges == 1 else replace(own, max_s=own.max_s / self.target.enlarges)

    @property
    def answers(self) -> list[tuple[Array, Array]]:
        """Every answer with its bound, where it is no attention that answers."""
        return [answer for run in self.runs for answer in run.answers]

    def bounded(self, *runs: Any) -> Array:
        """The elements whose bound is finite in all of the runs; the others, where something may overflow, are counted, as by ``close``."""
        bounded = np.all([np.isfinite(run.bound) for run in runs], axis=0)
        self.notes.ill_posed += int((~bounded).sum())
        return np.asarray(bounded)

    def meanwhile(self, number: int, exact: Callable[[], object]) -> None:
        """Ask the oracle about a run while the target's process answers its next call, if earlier trials needed the bound of that run."""
        if number in self.bounds and isinstance(self.target.framework, Shared):

            def ask() -> None:
                with suppress(Exception), np.errstate(all="ignore"):  # whatever it is comes again where the bound is needed
                    exact()

            self.target.framework.meanwhile(ask)

    def stays(self, given: Any, later: Callable[[], object]) -> None:
        """Raises Refuted where a later call, of arrays in memory of its own, writes into an answer that was given, an array of the framework."""
        first = self.target.framework.read(given)
        buffers, self.buffers = self.buffers, self.target.buffers()
        try:
            later()
        finally:
            self.buffers = buffers
        self.same_bits(self.target.framework.read(given), first, "an answer already given was changed by a later call")

    # ------------------------------------------------------------ choices that belong to the case

    def choice(self, name: str, count: int) -> int:
        """One of ``range(count)``, fixed by the seed."""
        return coordinates.choice(self.case.seed, name, count)

    def permutation(self, name: str, count: int) -> Array:
        """An order of ``range(count)``, fixed by the seed; not the identity if another exists."""
        return coordinates.permutation(self.case.seed, name, count)

    def noise(self, name: str, shape: tuple[int, ...]) -> Array:
        """Nearly normal numbers, fixed by the seed."""
        return coordinates.normal(self.case.seed, name, shape)

    # ------------------------------------------------------------ claims

    def fail(self, says: str) -> None:
        """The property does not hold, whatever the numbers."""
        raise Refuted(Violation(says, np.nan, np.nan, 0.0))

    def same_bits(self, actual: Array, expected: Array, says: str, where: Array | bool = True) -> None:
        """The two agree bit for bit wherever ``where`` is True; only the sign of a zero may differ.

        A hidden key has weight 0, and 0·v has the sign of v: that much of it shows where all other terms are 0.
        """
        actual, expected = np.asarray(actual, dtype=np.float64), np.asarray(expected, dtype=np.float64)
        equal = (actual == expected) | (np.isnan(actual) & np.isnan(expected))
        self._settle(~equal & where, actual, expected, np.zeros(np.shape(actual)), says)

    def close(self, actual: Array, expected: Array | float, allowed: Array, says: str, where: Array | bool = True) -> None:
        """|actual - expected| <= allowed, element by element; where ``allowed`` is infinite nothing is claimed."""
        actual, expected, allowed = np.broadcast_arrays(
            actual, np.asarray(expected, dtype=np.float64), np.asarray(allowed, dtype=np.float64)
        )
        with np.errstate(invalid="ignore", over="ignore"):
            difference = np.abs(actual - expected)
            difference = np.where((actual == expected) | (np.isnan(actual) & np.isnan(expected)), 0.0, difference)
        self._bounded(difference, actual, expected, allowed, says, where)

    def _bounded(self, difference: Array, actual: Array, expected: Array, allowed: Array, says: str, where: Array | bool) -> None:
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            claimed = (allowed != np.inf) & where
            wrong = claimed & ~(difference <= allowed)
            fraction = np.where(claimed & ~wrong & (difference > 0), difference / allowed, 0.0)
        self.notes.compared += int(claimed.sum())
        self.notes.ill_posed += int((allowed == np.inf).sum())
        if fraction.size:
            self.notes.used = max(self.notes.used, float(fraction.max()))
        self._settle(wrong, actual, expected, allowed, says)

    def within(self, error: Array, actual: Array, expected: Array, allowed: Array, says: str, where: Array | bool = True) -> None:
        """error <= allowed, element by element, for an error that is known to more digits than a float64 holds."""
        self._bounded(error, actual, expected, allowed, says, where)

    def inside(self, run: Any, allowed: Array, says: str, where: Array | bool = True) -> None:
        """The answer is as near to the exact one as allowed; the oracle keeps more digits than a float64 holds."""
        out = np.asarray(run.out, dtype=np.float64)
        self._bounded(run.exact.out_error(out), out, run.exact.out, allowed, says, where)

    def at_least(self, actual: Array, least: Array | float, slack: Array, says: str, where: Array | bool = True) -> None:
        """actual >= least - slack, element by element; a NaN is less than anything."""
        actual, least, slack = np.broadcast_arrays(actual, least, slack)
        with np.errstate(invalid="ignore"):
            wrong = ~(actual >= least - slack) & (slack != np.inf) & where
        self._settle(wrong, actual, least, slack, says)

    def _settle(self, wrong: Array, actual: Array, expected: Array, allowed: Array, says: str) -> None:
        wrong = np.broadcast_to(wrong, actual.shape)
        if not wrong.any():
            return
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            excess = np.where(wrong, np.nan_to_num(np.abs(actual - expected) - allowed, nan=np.inf, posinf=np.inf), -1.0)
        at = np.unravel_index(int(np.argmax(excess)), wrong.shape)
        place = dict(zip(("batch", "head", "row", "column")[-len(at) :], (int(i) for i in at), strict=True))
        words = says.format(**place) if "{" in says else says
        columns = "keys" if "key {column}" in says else "features"
        if actual.dtype == bool:  # yes or no: the words say it
            raise Refuted(Violation(words, np.nan, np.nan, 0.0, wrong, columns))
        compared = Compared(actual, np.broadcast_to(expected, wrong.shape), np.broadcast_to(allowed, wrong.shape), wrong)
        raise Refuted(Violation(words, float(actual[at]), float(expected[at]), float(allowed[at]), wrong, columns, compared=compared))


def describe(violation: Violation) -> str:
    """One line: what was claimed, the numbers at the worst element, and what can be declared."""
    if np.isnan(violation.actual) and np.isnan(violation.expected):
        return violation.says + violation.hint
    allowed = "0 (exact)" if violation.allowed == 0 else f"{violation.allowed:.3g}"
    numbers: Any = f"|difference| {violation.difference:.3g}, allowed {allowed}"
    return f"{violation.says}: got {violation.actual:.9g}, expected {violation.expected:.9g}; {numbers}{violation.hint}"
