"""Which findings are causes of their own, and shown in full; the others are the same seen again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from properties.attention.case import Case
from properties.catalogue import PROPERTIES
from properties.engine.core.explanation import Explanation, Reading
from properties.engine.core.finding import Finding
from properties.engine.core.trial import Violation
from properties.engine.report.text import in_full

BOUND, SUM = "output_is_inside_the_bound", "rows_sum_to_one"


def finding(name: str, case: Case, matters: tuple[str, ...] = (), raised: str = "") -> Finding:
    """Of a property; what differs from the plainest case and does not matter was not tried otherwise."""
    wrong = Violation(raised or "off", 2.0, 1.0, 0.0, wrong=None if raised else np.ones((1, 1, 1, 1), bool), raised=bool(raised))
    return Finding(PROPERTIES[name], "mine", case, wrong, 1, 0.1, matters, ())


def shown(*findings: Finding, **readings: Reading) -> list[str]:
    explained = {name: Explanation((reading,)) for name, reading in readings.items()}
    report: Any = SimpleNamespace(findings=list(findings), explained=explained)
    return [f.prop.name for f in in_full(report)]


MASKED = Case(keys=4, mask="random")
CAUSAL = Case(keys=2, is_causal=True)


def test_a_condition_that_was_not_tried_otherwise_is_one() -> None:
    one, other = finding(SUM, MASKED, ("keys", "mask")), finding(BOUND, Case(keys=2, mask="random", seed=5), ("keys", "seed"))
    assert len(shown(one, other)) == 1
    assert len(shown(one, finding(BOUND, Case(dim=2), ("dim",)))) == 2


def test_errors_that_differ_in_numbers_are_one() -> None:
    first, second = (finding(n, MASKED, ("mask",), f"it raised IndexError: {i} of 8") for i, n in enumerate((SUM, BOUND)))
    assert len(shown(first, second)) == 1
    assert len(shown(first, finding(BOUND, CAUSAL, ("is_causal",), "it raised ValueError: no"))) == 2


def test_what_is_not_recognised_for_sure_is_no_cause_of_its_own() -> None:
    one, other = finding(SUM, Case(keys=2), ("keys",)), finding(BOUND, Case(keys=2, dim=3), ("keys", "dim"))
    sure, resembles, small = Reading("a", "a mistake"), Reading("b", "another", wrong=3, tried=9), Reading("c", "a third", whole=False)
    assert len(shown(one, other, **{SUM: sure, BOUND: Reading("b", "another")})) == 2
    assert len(shown(one, other, **{SUM: sure, BOUND: resembles})) == len(shown(one, other, **{SUM: small, BOUND: resembles})) == 1


def test_where_the_plainest_answer_is_wrong_all_else_follows() -> None:
    plain, causal = finding(SUM, Case()), finding("causal_frontier_is_exact", CAUSAL, ("is_causal",))
    reading = {"causal_frontier_is_exact": Reading("causal", "one too far")}
    assert shown(plain, causal, **reading) == [SUM]
    for name in ("gradients_are_inside_the_bound", "inputs_are_unchanged"):  # which say nothing of answers
        assert set(shown(finding(name, Case()), causal, **reading)) >= {"causal_frontier_is_exact"}
