"""Findings made whole, once, for every door: which known mistake explains them, and what can be measured."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..core.attempt import subject
from ..core.explanation import Explanation, Reading
from ..core.finding import Finding
from ..core.target import Target
from ..search.run import Report
from .contrast import read_report
from .reading import Suspect


def explain(report: Report, suspects: Iterable[Suspect]) -> None:
    """Give every finding of a report its explanation. The target is called here, and not again by whoever prints it."""
    readings = read_report(report, suspects)
    for finding in report.findings:
        report.explained[finding.prop.name] = explained(report.target, finding, readings.get(finding.prop.name, ()))


def explained(target: Target, finding: Finding, readings: Sequence[Reading] = ()) -> Explanation:
    """What can be said of one finding, given its readings."""
    if finding.violation.killed:
        return Explanation()
    seen = subject(target, finding.prop)
    measured = seen.kind.measure(seen, finding) if finding.alone else None
    return Explanation(tuple(readings), seen.kind.looser(seen, finding), measured)
