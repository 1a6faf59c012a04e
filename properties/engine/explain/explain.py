"""Findings made whole, once, for every door: which known mistake explains them, and what can be measured."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from ..contained.link import NoMoreCalls
from ..core.attempt import subject
from ..core.explanation import Explanation, Reading
from ..core.finding import Finding
from ..core.picture import Picture, pictured
from ..core.target import Target
from ..search.run import Report
from .contrast import read_report
from .reading import Suspect

SECONDS = 30.0  # after so many no further finding is explained
PART = 0.2  # of the time of a run is left for that, where there is one


def reading_time(seconds: float | None) -> float:
    """How much of a run of so many seconds is left to read what it finds."""
    return SECONDS if seconds is None else min(SECONDS, PART * seconds)


def explain(report: Report, suspects: Iterable[Suspect], seconds: float = SECONDS) -> None:
    """Give every finding of a report its explanation, as far as the time goes. The target is called here, and not again by whoever prints."""
    until = time.monotonic() + seconds
    with report.target.pace.ending(until):
        _explain(report, suspects, until)


def _explain(report: Report, suspects: Iterable[Suspect], until: float) -> None:
    rounding: dict[str, str] = {}
    with suppress(NoMoreCalls):
        for f in report.findings:
            if f.violation.slight and (looser := _looser(report.target, f)):
                rounding[f.prop.name] = looser
    readings = read_report(report, suspects, until, rounding)
    for finding in report.findings:
        name = finding.prop.name
        if name in rounding:  # what else is off by as little explains nothing
            report.explained[name] = Explanation((), rounding[name])
            continue
        if name in readings:  # what took the time is not lost
            report.explained[name] = Explanation(tuple(readings[name]))
        if time.monotonic() < until:
            with suppress(NoMoreCalls):
                report.explained[name] = explained(report.target, finding, readings.get(name, ()))


def explained(target: Target, finding: Finding, readings: Sequence[Reading] = ()) -> Explanation:
    """What can be said of one finding, given its readings."""
    if finding.violation.killed:
        return Explanation()
    view = subject(target, finding.prop)
    measured = view.kind.measure(view, finding) if finding.alone else None
    pictures = pictures_of(view, finding, [measured[0]] if measured else [])
    return Explanation(tuple(readings), view.kind.looser(view, finding), measured, pictures)


def _looser(target: Target, finding: Finding) -> str | None:
    """The looser arithmetic that would explain a finding."""
    view = subject(target, finding.prop)
    return view.kind.looser(view, finding)


def pictures_of(view: Target, finding: Finding, like: Sequence[Any]) -> tuple[Picture, ...]:
    """What the claim compared, and what else of the target's answers is wrong on the smallest case and on others like it."""
    violation, column = finding.violation, finding.violation.columns.removesuffix("s")
    claim = pictured("what the property compares", violation.says, violation.compared, column=column) if violation.compared else None
    return (*([claim] if claim else ()), *view.kind.pictures(view, finding, like))
