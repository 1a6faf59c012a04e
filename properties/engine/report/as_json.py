"""The report as plain data, for other programs."""

from __future__ import annotations

import math
from typing import Any

from ..core.explanation import Explanation
from ..core.finding import Finding
from ..frameworks.machine import machine_json
from ..search.run import Report
from ..search.search import Outcome


def report_json(report: Report) -> dict[str, Any]:
    """Everything a report holds that JSON can say."""
    return {
        "target": report.target.name,
        "contract": report.target.contract,
        "framework": report.target.framework.name,
        "device": report.device,
        "machine": machine_json(report.machine),
        "dtypes": list(report.target.dtypes),
        "speaks": dict(report.target.learned),
        "untried": dict(report.target.untried),
        "refuses": dict(report.target.refuses),
        "ok": report.ok,
        "cases": report.cases,
        "rounds": report.rounds,
        "seconds": round(report.seconds, 3),
        "properties": {name: _outcome(outcome, report.explained.get(name, Explanation())) for name, outcome in report.outcomes.items()},
        "known_deviations": [
            {"property": s.deviation.shows, "case": repr(s.deviation.case), "state": s.state, "reason": s.deviation.reason,
             "seen_on": s.deviation.version, "seen_here": s.here}
            for s in report.statuses
        ],
    }  # fmt: skip


def _outcome(outcome: Outcome, explained: Explanation) -> dict[str, Any]:
    return {
        "theme": outcome.prop.theme,
        "status": outcome.status,
        "why": outcome.not_exercised,
        "cases": outcome.cases,
        "set_aside": outcome.set_aside,
        "seconds": round(outcome.seconds, 3),
        "used_fraction_of_bound": outcome.notes.used,
        "adequate": outcome.notes.adequate,
        "judged": outcome.notes.judged,
        "features": dict(outcome.features),
        "finding": None if outcome.finding is None else _finding(outcome.finding, explained),
    }


def _finding(finding: Finding, explained: Explanation) -> dict[str, Any]:
    violation = finding.violation
    return {
        "case": repr(finding.case),
        "alone": finding.alone,
        "says": violation.says + violation.hint,
        "actual": _number(violation.actual),
        "expected": _number(violation.expected),
        "allowed": _number(violation.allowed),
        "first_at": finding.first_at,
        "shrink_seconds": round(finding.shrink_seconds, 3),
        "matters": list(finding.matters),
        "does_not_matter": list(finding.indifferent),
        "readings": [
            {"name": r.name, "mistake": r.mistake, "resembles": r.wrong > 0, "on_larger_cases": r.whole, "explains": r.explains}
            for r in explained.readings
        ],
        "precision_downgrade": explained.looser,
        "measured": None if explained.measured is None else {"case": repr(explained.measured[0]), "says": explained.measured[1]},
    }


def _number(x: float) -> float | str:
    return x if math.isfinite(x) else str(x)
