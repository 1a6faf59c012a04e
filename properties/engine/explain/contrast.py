"""Where a target is right says what its mistake is not: a suspect that is wrong there is no reading, or a poor one."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from ..cases.case import Case
from ..contained.link import NoMoreCalls
from ..core.attempt import subject, try_case
from ..core.declare import Property
from ..core.explanation import Reading
from ..core.finding import Finding
from ..search.run import Report
from ..search.search import inapplicable, outside
from .reading import Suspect, anew, read_closely

FAR, NEAR = 2, 12  # cases of a property that are looked at: of any, and of those that a suspect or a finding is about
TOO_MANY = 10  # cases on which a suspect is wrong and the target is not, or one in so many: it does not even resemble it


class Contrast:
    """The cases of a report on which the target is right, to put suspects to."""

    def __init__(self, report: Report) -> None:
        self.target, self.outcomes = report.target, report.outcomes
        self.refuted = {finding.prop.name for finding in report.findings}
        self._right: dict[tuple[str, Case], bool] = {}
        self._readings: dict[tuple[str, str], Reading] = {}

    def reading(self, suspect: Suspect, dtype: str) -> Reading | None:
        """How often a suspect is wrong, in a dtype, where the target is right; None if too often."""
        if (suspect.name, dtype) not in self._readings:
            self._readings[suspect.name, dtype] = self._put(suspect, dtype)
        found = self._readings[suspect.name, dtype]
        return found if found.wrong <= TOO_MANY and TOO_MANY * found.wrong <= found.tried else None

    def least_wrong(self, suspects: Iterable[Suspect], dtype: str, whole: bool = True) -> list[Reading]:
        """The readings of those suspects that are wrong least often where the target is right; all of them answer a finding as it does."""
        readings = [reading for suspect in suspects if (reading := self.reading(suspect, dtype))]
        fewest = min((reading.wrong for reading in readings), default=0)
        return [replace(reading, whole=whole) for reading in readings if reading.wrong == fewest]

    def _put(self, suspect: Suspect, dtype: str) -> Reading:
        wrong, tried = 0, 0
        example: tuple[str, Case] | None = None
        for prop, case in self._cases(suspect, dtype):
            if not self._is_right(prop, case, [suspect]):
                continue
            tried += 1
            if self._is_wrong(suspect, prop, case):
                wrong, example = wrong + 1, example or (prop.name, case)
                if wrong > TOO_MANY:
                    break
        return Reading(suspect.name, suspect.mistake, wrong, tried, example)

    def _cases(self, suspect: Suspect, dtype: str) -> Iterator[tuple[Property, Case]]:
        """Those of the property that the suspect breaks first, then those of the refuted ones, then some of all others."""
        accused = suspect.make()
        about = {suspect.killed_by, *self.refuted}
        for outcome in sorted(self.outcomes.values(), key=lambda o: (o.prop.name != suspect.killed_by, o.prop.name not in about)):
            prop = outcome.prop
            if dtype not in accused.dtypes or inapplicable(accused, prop):
                continue
            cases = [case for case in outcome.right if case.dtype == dtype and not outside(subject(accused, prop), prop, case)]
            yield from ((prop, case) for case in cases[: NEAR if prop.name in about else FAR])

    def _is_right(self, prop: Property, case: Case, suspects: Sequence[Suspect]) -> bool:
        """Still so, when the suspect is asked, too: nothing is remembered, and random numbers start anew."""
        if (prop.name, case) not in self._right:
            with anew(self.target.framework, suspects):
                self._right[prop.name, case] = try_case(subject(self.target, prop), prop, case) is None
        return self._right[prop.name, case]

    def _is_wrong(self, suspect: Suspect, prop: Property, case: Case) -> bool:
        """Not by a rounding error, which is the code's own, nor if it remembers its calls: the target had others before."""
        accused = subject(suspect.make(), prop)
        claims = replace(accused.supports, masked_nan=self.target.supports.masked_nan)  # the target's: no mistake, but a convention
        accused = replace(accused, supports=claims)
        with anew(accused.framework, [suspect]):
            violation = try_case(accused, prop, case)
            return violation is not None and not violation.slight and not suspect.forget()


def read_report(
    report: Report, suspects: Iterable[Suspect], until: float = math.inf, but: Collection[str] = ()
) -> dict[str, list[Reading]]:
    """The readings of every finding that is looked at before that time, by its property: those that explain most first. ``but``: not of these.

    A suspect that is wrong where the target is right is left out if another one is not; so is one that explains nothing but
    what another reading of the same finding explains with more.
    """
    suspects, contrast = list(suspects), Contrast(report)
    found: dict[str, list[Reading]] = {}
    with suppress(NoMoreCalls):  # what was read before is not lost
        for f in report.findings:
            if f.prop.name not in but and time.monotonic() < until:
                found[f.prop.name] = _of_finding(contrast, f, suspects)
    explained: dict[str, set[str]] = {}
    for name, readings in found.items():
        for reading in readings:
            explained.setdefault(reading.name, set()).add(name)

    def settled(readings: list[Reading]) -> list[Reading]:
        sets = [explained[reading.name] for reading in readings]
        maximal = [
            replace(reading, explains=len(mine))
            for reading, mine in zip(readings, sets, strict=True)
            if not any(mine < other for other in sets)
        ]
        return sorted(maximal, key=lambda reading: -reading.explains)

    return {name: settled(readings) for name, readings in found.items()}


def _of_finding(contrast: Contrast, finding: Finding, suspects: Sequence[Suspect]) -> list[Reading]:
    if not finding.alone:
        return []  # the suspects have not had the same calls before
    found, whole = read_closely(contrast.target, finding, suspects)
    return contrast.least_wrong(found, finding.case.dtype, whole)
