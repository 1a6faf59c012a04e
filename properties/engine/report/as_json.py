"""The report as plain data, for other programs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..core.attempt import subject
from ..core.declare import Property
from ..core.explanation import Explanation
from ..core.finding import Finding
from ..core.picture import Panel, Picture
from ..core.trial import describe
from ..frameworks.machine import machine_json
from ..search.run import Report
from ..search.search import Outcome
from .text import in_full, replay_line, where_text


def report_json(report: Report) -> dict[str, Any]:
    """Everything a report holds that JSON can say."""
    return {
        "target": report.target.name,
        "verdict": report.verdict.upper(),
        "contract": report.target.contract,
        "framework": report.target.framework.name,
        "device": report.device,
        "contained": report.contained,
        "kept": report.kept,
        "machine": machine_json(report.machine),
        "dtypes": list(report.target.dtypes),
        "speaks": dict(report.target.learned),
        "untried": dict(report.target.untried),
        "differs": dict(report.target.differs),
        "wrong": report.target.faults,
        "refuses": dict(report.target.refuses),
        "in_full": [finding.prop.name for finding in in_full(report)],
        "enough": report.enough,
        "ok": report.ok,
        "interrupted": report.interrupted,
        "incomplete": report.incomplete,
        "shortened": report.shortened,
        "declares": dict(report.own_words),
        "cases": report.cases,
        "rounds": report.rounds,
        "seconds": round(report.seconds, 3),
        "features": possible_features(report),
        "properties": {name: _outcome(outcome, report.explained.get(name, Explanation())) for name, outcome in report.outcomes.items()},
        "known_deviations": [
            {
                "property": s.deviation.shows,
                "case": repr(s.deviation.case),
                "state": s.state,
                "reason": s.deviation.reason,
                "seen_on": s.deviation.version,
                "seen_here": s.here,
            }
            for s in report.statuses
        ],
    }


def _outcome(outcome: Outcome, explained: Explanation) -> dict[str, Any]:
    return {
        **property_json(outcome.prop),
        "status": outcome.status,
        "why": outcome.why,
        "cases": outcome.cases,
        "set_aside": outcome.set_aside,
        "left_out": dict(outcome.notes.not_taken),
        "blamed": dict(outcome.notes.blamed),
        "seconds": round(outcome.seconds, 3),
        "used_fraction_of_bound": outcome.notes.used,
        "adequate": outcome.notes.adequate,
        "judged": outcome.notes.judged,
        "compared": outcome.notes.compared,
        "no_bound": outcome.notes.ill_posed,
        "features": dict(outcome.features),
        "tried": {name: list(ends) for name, ends in outcome.ranges.sizes.items()} | {"dtypes": dict(outcome.ranges.dtypes)},
        "edges": {name: {"case": repr(edge.case), "says": edge.violation.says} for name, edge in outcome.edges.items()},
        "finding": None if outcome.finding is None else finding_json(outcome.finding, explained),
    }


def property_json(prop: Property) -> dict[str, Any]:
    """What a property says."""
    return {"property": prop.name, "theme": prop.theme, "statement": prop.statement, "formula": prop.formula, "exact": prop.exact}


def finding_json(finding: Finding, explained: Explanation) -> dict[str, Any]:
    """A finding and what is said of it; of what the target answered there are pictures only if somebody has explained it."""
    violation = finding.violation
    return {
        "case": repr(finding.case),
        "alone": finding.alone,
        "says": violation.says + violation.hint,
        "line": describe(violation),
        "where": None if violation.wrong is None else where_text(violation.wrong, violation.columns),
        "raised": violation.raised,
        "slight": violation.slight,
        "actual": _number(violation.actual),
        "expected": _number(violation.expected),
        "allowed": _number(violation.allowed),
        "first_at": finding.first_at,
        "shrink_seconds": round(finding.shrink_seconds, 3),
        "matters": list(finding.matters),
        "does_not_matter": list(finding.indifferent),
        "readings": [
            {
                "name": r.name,
                "mistake": r.mistake,
                "resembles": r.wrong > 0,
                "but_not_on": repr(r.example[1]) if r.example else None,
                "but_not_by": r.example[0] if r.example else None,
                "on_larger_cases": r.whole,
                "explains": r.explains,
            }
            for r in explained.readings
        ],
        "precision_downgrade": explained.looser,
        "measured": None if explained.measured is None else {"case": repr(explained.measured[0]), "says": explained.measured[1]},
        "replay": replay_line(finding),
        "pictures": [picture_json(picture) for picture in explained.pictures],
    }


def picture_json(picture: Picture) -> dict[str, Any]:
    """The matrices of a picture as lists of rows; what is no number is a text. ``off`` is |actual − expected|."""
    return {
        "title": picture.title,
        "says": picture.says,
        "row": picture.row,
        "column": picture.column,
        "left_out": picture.left_out,
        "panels": [_panel(panel) for panel in picture.panels],
    }


def _panel(panel: Panel) -> dict[str, Any]:
    values = panel.values
    with np.errstate(all="ignore"):
        off = np.where(values.actual == values.expected, 0.0, np.abs(values.actual - values.expected))
    numbers = {"actual": values.actual, "expected": values.expected, "allowed": values.allowed, "off": off}
    return {
        "where": panel.where,
        "rows": list(panel.rows),
        "columns": list(panel.columns),
        **{name: [[_number(float(f"{x:.9g}")) for x in row] for row in matrix] for name, matrix in numbers.items()},
        "wrong": values.wrong.astype(int).tolist(),
    }


def possible_features(report: Report) -> list[str]:
    """What a case of this target may exercise, in the words of the report, and what the cases of this run did."""
    kind, simplest = report.target.kind, report.target.kind.topics[0].case()
    known = simplest.fields()
    tried = [(subject(report.target, o.prop), o.prop) for o in report.outcomes.values() if o.cases and o.prop.topic.case is type(simplest)]
    named: dict[str, None] = dict.fromkeys(report.target.dtypes)
    for name in kind.fields(report.target):
        field = known.get(name)
        if field and field.says and any(view.kind.varies(view, prop, simplest, name) for view, prop in tried):
            default = getattr(simplest, name)
            values = [value for value in field.choices or field.drawn if value != default]
            named |= dict.fromkeys([field.says.format(value) for value in values] if "{" in field.says else [field.says])
    for outcome in report.outcomes.values():
        named |= dict.fromkeys(outcome.features)
    return list(named)


def _number(x: float) -> float | str:
    return x if math.isfinite(x) else str(x)
