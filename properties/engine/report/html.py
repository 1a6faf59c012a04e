"""One page a run, and the same parts for a notebook. Needs Jinja2 and matplotlib (extra ``report``).

Everything is made of the plain data of ``as_json``; no target is called. A page loads nothing from anywhere.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from ..cases.case import Case
from ..cases.coordinates import Array
from .draw import INK, heatmap, heatmaps, svg

OPEN = 4  # findings that are not folded
PROPERTY = ("property", "theme", "statement", "formula", "exact")
Data = Mapping[str, Any]
_ENVIRONMENT = Environment(
    loader=FileSystemLoader(Path(__file__).with_name("templates")),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_NUMBERS = itertools.count(1)


def page(data: Data) -> str:
    """A whole page of what ``--json`` holds: reports, what was not run, version, command, time."""
    reports = [report_context(report) for report in data["reports"]]
    title = ", ".join(f"{r['verdict']} {r['target']}" for r in reports[:2]) + (f" and {len(reports) - 2} more" if len(reports) > 2 else "")
    return _render("page.html", title=title or "nothing was run", data=data, reports=reports, matrices=matrices(data["reports"]))


def report_part(report: Data) -> str:
    """One report, for a notebook."""
    return _render("part.html", template="report.html", r=report_context(report))


def finding_part(finding: Data) -> str:
    """One finding, for a notebook: the data of a finding, with the name, statement and formula of its property."""
    return _render("part.html", template="finding.html", f=finding_context(finding, f"n{next(_NUMBERS)}", True))


def case_part(case: Case) -> str:
    """A case, for a notebook: the fields that differ from the simplest one, and why each is drawn."""
    known = case.fields()
    rows = [(name, repr(value), known[name].reason(value)) for name, value in case.differing().items()]
    return _render("part.html", template="case.html", case=repr(case), rows=rows)


def maps_part(panels: Sequence[tuple[str, Array]], says: str, axes: tuple[str, str]) -> str:
    """Some matrices (rows, columns) of one shape, for a notebook."""
    rows, columns = np.shape(panels[0][1]) if panels else (0, 0)
    drawn = svg(heatmap(panels, range(rows), range(columns), "", axes, INK), says) if rows and columns else ""
    return _render("part.html", template="maps.html", svg=Markup(drawn), says=says)


def _render(name: str, /, **context: Any) -> str:
    return _ENVIRONMENT.get_template(name).render(**context)


# ------------------------------------------------------------ what the templates are given


def report_context(report: Data) -> dict[str, Any]:
    """A report with what a page says of it: findings in order, themes, coverage."""
    properties = report["properties"]
    key = f"t{next(_NUMBERS)}"
    found = [{**p["finding"], **{at: p[at] for at in PROPERTY}} for p in properties.values() if p["finding"]]
    findings = sorted(found, key=_rank)
    return {
        **report,
        "key": key,
        "findings": _told_once([finding_context(finding, f"{key}-{at}", at < OPEN) for at, finding in enumerate(findings)]),
        "count": {status: sum(p["status"] == status for p in properties.values()) for status in ("passed", "refuted", "not exercised")},
        "themes": [theme_context(theme, {n: p for n, p in properties.items() if p["theme"] == theme}) for theme in _themes(properties)],
        "coverage": coverage(report),
        "edges": {name: edge for p in reversed(properties.values()) for name, edge in p["edges"].items()},
        "adequate": _share(properties.values()),
    }


def finding_context(finding: Data, key: str, unfolded: bool) -> dict[str, Any]:
    """A finding with its pictures drawn."""
    return {**finding, "key": key, "open": unfolded, "drawn": finding["pictures"], "same": ()}


def _told_once(findings: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One mistake breaks many properties: what an earlier finding shows, a later one refers to."""
    shown: dict[str, dict[str, Any]] = {}
    for finding in findings:
        before = [shown.get(_numbers(picture)) for picture in finding["drawn"]]
        finding["same"] = [(p["title"], other) for p, other in zip(finding["drawn"], before, strict=True) if other]
        finding["drawn"] = [p for p, other in zip(finding["drawn"], before, strict=True) if not other]
        shown |= {_numbers(picture): finding for picture in finding["drawn"]}
    return findings


def _numbers(picture: Data) -> str:
    return repr((picture["title"], picture["panels"]))


def _drawn(picture: Data) -> Markup:
    return Markup(heatmaps(picture))  # made by matplotlib, of numbers


_ENVIRONMENT.filters["drawn"] = _drawn


def _rank(finding: Data) -> tuple[Any, ...]:
    """Wrong answers before exceptions, gross before slight ones, simple cases first."""
    return finding["raised"], finding["slight"], not finding["readings"], not finding["exact"], len(finding["case"])


def _themes(properties: Data) -> list[str]:
    return list(dict.fromkeys(p["theme"] for p in properties.values()))


def _share(properties: Iterable[Data]) -> tuple[int, int]:
    """(adequate, judged) cases."""
    listed = list(properties)
    return sum(p["adequate"] for p in listed), sum(p["judged"] for p in listed)


def theme_context(theme: str, properties: Data) -> dict[str, Any]:
    """A theme: how many of its properties were tried, over how many cases, how much of a bound was used."""
    members = properties.values()
    refuted = sum(p["status"] == "refuted" for p in members)
    tried = sum(p["cases"] > 0 for p in members)
    adequate, judged = _share(members)
    return {
        "name": theme,
        "state": "refuted" if refuted else "holds" if tried else "not exercised",
        "tried": tried,
        "refuted": refuted,
        "cases": sum(p["cases"] for p in members),
        "used": max(p["used_fraction_of_bound"] for p in members),
        "adequate": adequate,
        "judged": judged,
        "properties": properties,
    }


def coverage(report: Data) -> dict[str, Any]:
    """Features × themes, and features × the properties of a theme: in how many cases each was there; 0 is a hole."""
    features, properties = report["features"], report["properties"]
    tried = {name: p for name, p in properties.items() if p["cases"]}
    themes = _themes(tried)

    def count(feature: str, members: Iterable[Data]) -> int:
        return sum(p["features"].get(feature, 0) for p in members)

    rows = [(f, [count(f, (p for p in tried.values() if p["theme"] == theme)) for theme in themes]) for f in features]
    return {
        "themes": themes,
        "rows": rows,
        "holes": [feature for feature, counts in rows if not sum(counts)],
        "by_theme": {
            theme: {
                "names": [name for name, p in tried.items() if p["theme"] == theme],
                "rows": [(f, [p["features"].get(f, 0) for p in tried.values() if p["theme"] == theme]) for f in features],
            }
            for theme in themes
        },
    }


def matrices(reports: Sequence[Data]) -> list[dict[str, Any]]:
    """Properties × targets, one matrix for all targets with the same properties; none for a single target."""
    alike: dict[tuple[str, ...], list[Data]] = {}
    for report in reports:
        alike.setdefault(tuple(report["properties"]), []).append(report)
    return [
        {
            "targets": [report["target"] for report in members],
            "rows": [(name, members[0]["properties"][name]["theme"], [_cell(r["properties"][name]) for r in members]) for name in names],
        }
        for names, members in alike.items()
        if len(reports) > 1
    ]


def _cell(outcome: Data) -> tuple[str, str]:
    """What stands in a cell, and its state in words."""
    if outcome["finding"]:
        return "✗", "refuted"
    if outcome["status"] == "not exercised":
        return ("k", "set aside as known") if outcome["set_aside"] else ("–", "not exercised")
    return f"{outcome['cases']}{'k' if outcome['set_aside'] else ''}", "holds"
