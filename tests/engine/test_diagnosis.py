"""What is said of a smallest case: what is wrong on it, and which of its fields matter. The attention is not asked: the tests answer."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from impls import numpy_matmul
from properties.attention.case import Case
from properties.catalogue import PROPERTIES
from properties.engine.core.trial import Violation
from properties.engine.search import diagnosis
from properties.engine.search.diagnosis import diagnose, relevance
from properties.engine.search.probe import make_target

TARGET = make_target("right", numpy_matmul.attention, {"framework": "numpy"})
SUMS, CAUSAL, MASKED = (PROPERTIES[name] for name in ("rows_sum_to_one", "future_tokens_are_ignored", "masked_keys_are_deleted"))
WRONG = Violation("wrong", 1.0, 2.0, 0.0)
KILLED = Violation("killed", float("nan"), float("nan"), 0.0, raised=True, killed=True)


class Asked:
    """In the place of ``try_case``: every case that is asked, and a clock that each of them moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, answer: Callable[[Case], Violation | None], seconds: float = 0.1) -> None:
        self.cases: list[Case] = []
        self.clock, self.seconds, self.answer = 100.0, seconds, answer
        monkeypatch.setattr(diagnosis, "try_case", self)
        monkeypatch.setattr(diagnosis, "time", SimpleNamespace(monotonic=lambda: self.clock))

    def __call__(self, target: Any, prop: Any, case: Case) -> Violation | None:
        self.cases.append(case)
        self.clock += self.seconds
        return self.answer(case)

    def values(self, case: Case, name: str) -> set[Any]:
        """With which other values of a field the case was tried."""
        return {getattr(asked, name) for asked in self.cases} - {getattr(case, name)}


def test_a_field_matters_if_another_value_makes_the_failure_vanish(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(queries=2, keys=5, values="simple")
    asked = Asked(monkeypatch, lambda asked: WRONG if asked.keys > 2 and asked.values == "simple" else None)
    matters, indifferent = relevance(TARGET, SUMS, case)
    assert matters == ("keys", "values")
    assert {"batch", "kv_heads", "queries", "dim", "seed"} <= set(indifferent) and not {"keys", "values"} & set(indifferent)
    assert asked.values(case, "dim") == {1, 3, 4, 8} - {case.dim} and asked.values(case, "keys") <= {1, 2, 17}
    assert all(len([f for f in case.fields() if getattr(a, f) != getattr(case, f)]) == 1 for a in asked.cases)  # one at a time


def test_a_field_that_is_as_in_the_simplest_case_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another value of it may hide the failure: the smallest case says nothing about that field."""
    Asked(monkeypatch, lambda asked: WRONG if asked.values == "normal" else None)
    matters, indifferent = relevance(TARGET, SUMS, Case(keys=2))
    assert matters == () and "values" not in indifferent and "keys" in indifferent


def test_what_the_property_fixes_is_not_tried_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(queries=2, keys=2, is_causal=True, values="simple")
    asked = Asked(monkeypatch, lambda asked: WRONG)
    matters, indifferent = relevance(TARGET, CAUSAL, case)
    assert matters == () and "is_causal" not in indifferent and asked.values(case, "is_causal") == set()
    assert asked.values(case, "values") == {"normal", "one_hot"}  # of its own table


def test_only_types_and_layouts_that_the_target_takes_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the target cannot be given shows nothing."""
    narrow = make_target("narrow", numpy_matmul.attention, {"framework": "numpy", "dtypes": ["float64"]})
    case = Case(queries=2, keys=2)
    asked = Asked(monkeypatch, lambda asked: WRONG)
    assert "dtype" not in relevance(narrow, SUMS, case)[1] and asked.values(case, "dtype") == set()
    asked = Asked(monkeypatch, lambda asked: WRONG)
    assert "dtype" in relevance(TARGET, SUMS, case)[1] and asked.values(case, "dtype") == {"float32"}
    monkeypatch.setattr(diagnosis, "has_layout", lambda fw, layout: layout == "contiguous")
    asked = Asked(monkeypatch, lambda asked: WRONG)
    assert "layout" not in relevance(TARGET, SUMS, case)[1] and asked.values(case, "layout") == set()


def test_what_is_not_tried_without_may_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    """A property of masks is not tried without one: nothing is said of the mask. A kind of mask other than the simplest is told of."""
    case = Case(queries=2, keys=2, mask="random", mask_kind="minus_infinity")
    asked = Asked(monkeypatch, lambda asked: WRONG)
    matters, indifferent = relevance(TARGET, MASKED, case)
    assert "mask" not in (*matters, *indifferent) and "none" not in asked.values(case, "mask")
    assert "mask_kind" in indifferent
    Asked(monkeypatch, lambda asked: WRONG if asked.mask_kind == "minus_infinity" else None)
    assert relevance(TARGET, MASKED, case)[0] == ("mask_kind",)


def test_the_finding_of_a_case(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(keys=5)
    asked = Asked(monkeypatch, lambda asked: WRONG if asked.keys > 2 else None)
    found = diagnose(TARGET, SUMS, case, 7, 1.5)
    assert (found.violation, found.case, found.first_at, found.shrink_seconds, found.matters) == (WRONG, case, 7, 1.5, ("keys",))
    assert found.alone and "batch" in found.indifferent and len(asked.cases) > 2
    asked = Asked(monkeypatch, lambda asked: WRONG)
    found = diagnose(TARGET, SUMS, case, 7, 1.5, thorough=False)
    assert len(asked.cases) == 1 and found.violation is WRONG and found.matters == found.indifferent == ()


def test_where_every_try_costs_a_process_and_much_time_no_field_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for violation, seconds, thorough in ((KILLED, 2.0, False), (KILLED, 0.5, True), (WRONG, 2.0, True)):
        asked = Asked(monkeypatch, lambda asked, violation=violation: violation, seconds)  # type: ignore[misc]
        assert bool(diagnose(TARGET, SUMS, Case(keys=5), 1, 0.0).indifferent) is thorough is (len(asked.cases) > 1)


def test_a_case_that_holds_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the process was killed in the search, earlier calls had a part; otherwise the same call gives different answers."""
    Asked(monkeypatch, lambda asked: None)
    found = diagnose(TARGET, SUMS, Case(keys=5), 1, 0.0, killed=KILLED)
    assert found.violation is KILLED and not found.alone
    found = diagnose(TARGET, SUMS, Case(keys=5), 1, 0.0)
    assert "does not repeat" in found.violation.says and found.alone and found.violation.allowed == 0
    Asked(monkeypatch, lambda asked: WRONG)
    found = diagnose(TARGET, SUMS, Case(keys=5), 1, 0.0, killed=KILLED)
    assert found.violation is WRONG and found.alone
