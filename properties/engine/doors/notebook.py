"""What shows itself in a notebook: a verdict, a finding, a case, an exact answer; by the templates of the page, without calling a target.

Where the extra ``report`` is not installed they print themselves, as anywhere else.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from ...exact.oracle import Exact
from ...exact.shown import show_as
from ..cases.case import Case
from ..core.explanation import Explanation
from ..core.finding import Finding
from ..core.target import CannotRun
from ..report.as_json import finding_json, property_json, report_json
from ..search.run import Report
from .files import page_maker

_EXPLAINED: WeakKeyDictionary[Finding, Explanation] = WeakKeyDictionary()
MATRICES = 4  # of an exact answer that are drawn


def remember(report: Report) -> None:
    """The findings of a report show what was explained of them."""
    for finding in report.findings:
        _EXPLAINED[finding] = report.explained.get(finding.prop.name, Explanation())


def _where_installed(how: Callable[[Any, Any], str]) -> Callable[[Any], str | None]:
    """None where the packages that make pages are missing."""

    @wraps(how)
    def made(value: Any) -> str | None:
        try:
            maker = page_maker()
        except CannotRun:
            return None
        return how(maker, value)

    return made


@_where_installed
def report_html(maker: Any, report: Report) -> str:
    """A report as the page has it."""
    return str(maker.report_part(report_json(report)))


@_where_installed
def finding_html(maker: Any, finding: Finding) -> str:
    """A finding, unfolded."""
    content = finding_json(finding, _EXPLAINED.get(finding, Explanation()))
    return str(maker.finding_part({**property_json(finding.prop), **content}))


@_where_installed
def case_html(maker: Any, case: Case) -> str:
    """A case: each field that differs from the simplest one, and why such a value is drawn."""
    return str(maker.case_part(case))


@_where_installed
def exact_html(maker: Any, exact: Exact) -> str:
    """The exact weights of the first heads."""
    heads = list(np.ndindex(exact.weights.shape[:2]))[:MATRICES]
    panels = [(f"batch {b}, head {h}", exact.weights[b, h]) for b, h in heads]
    says = f"exact weights of {exact.weights.shape}, output {exact.out.shape}; (batch, heads, queries, keys or features)"
    return str(maker.maps_part(panels, says, ("query", "key")))


show_as(Report, report_html)
show_as(Finding, finding_html)
show_as(Case, case_html)
show_as(Exact, exact_html)
