"""The time of a run is that of its search and of what is said of its findings; by a clock that only the attention moves."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from impls import numpy_matmul
from properties import catalogue
from properties.catalogue import PROPERTIES
from properties.engine.contained.link import NoMoreCalls
from properties.engine.core import pace
from properties.engine.core.pace import Pace
from properties.engine.explain import contrast
from properties.engine.explain import explain as explaining
from properties.engine.explain.explain import PART, SECONDS, explain, reading_time
from properties.engine.explain.suspects import known_mistakes
from properties.engine.search import diagnosis, run, search
from properties.engine.search.probe import make_target

A_CALL = 1.0


class Clock:
    """Seconds, and an attention that is wrong and takes one of them a call."""

    now = 0.0
    calls = 0

    def slow(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> Any:
        self.now += A_CALL
        self.calls += 1
        return (1.5 if k.shape[2] > 2 else 1.0) * numpy_matmul.attention(q, k, v)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    for module in (run, search, explaining, contrast, diagnosis, pace):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: made.now))
    return made


def target_of(clock: Clock) -> Any:
    return make_target("mine", clock.slow, {"framework": "numpy"})


def test_no_call_is_made_when_the_time_is_over(clock: Clock) -> None:
    target, calls = target_of(clock), clock.calls
    with target.pace.ending(clock.now - 1), target.pace.ending(math.inf):  # the earlier end holds
        for ask in (lambda: target.apply(None), lambda: target.record(lambda: None, [])):
            with pytest.raises(NoMoreCalls):
                ask()
    assert clock.calls == calls and target.pace.until == math.inf
    with Pace().ending(clock.now):
        Pace().check()


def test_something_of_a_run_is_left_for_its_findings(clock: Clock) -> None:
    assert reading_time(None) == SECONDS == reading_time(1e9) and reading_time(10.0) == PART * 10
    target, properties = target_of(clock), catalogue.select(("values", "softmax"))
    began, seconds, reading = clock.now, 300.0, 120.0
    report = run.verify_target(target, properties, search.Plan(), seconds=seconds, reading=reading)
    assert report.findings and clock.now - began < seconds - reading + 60  # the property that was searched then comes to its end
    assert {p.name for p in properties} == set(report.outcomes)  # those that were not tried are told, too
    assert any(outcome.why == "no time was left" for outcome in report.outcomes.values())
    end = clock.now + 40
    explain(report, known_mistakes(), 40)
    assert clock.now <= end + A_CALL  # a call that has begun comes to its end
    assert report.explained
    explained = dict(report.explained)
    explain(report, known_mistakes(), -1)
    assert clock.now <= end + A_CALL and set(report.explained) == set(explained)


def test_nothing_is_left_where_nothing_is_found(clock: Clock) -> None:
    def right(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> Any:
        clock.now += A_CALL
        return numpy_matmul.attention(q, k, v)

    target = make_target("mine", right, {"framework": "numpy"})
    began = clock.now
    report = run.verify_target(target, catalogue.select(("values",)), search.Plan(), seconds=100, reading=90)
    assert not report.findings and clock.now - began > 90


def test_shrinking_ends_soon_after_the_run(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnosis, "MATTERS", 100 * A_CALL)
    target, prop = target_of(clock), PROPERTIES["rows_sum_to_one"]
    whole = search.search(target, prop, search.Plan()).finding
    assert whole and whole.matters
    end = clock.now + whole.first_at * A_CALL  # a case of this property is a call
    cut = search.search(target, prop, search.Plan(deadline=end, late=0.0)).finding
    assert cut and cut.first_at == whole.first_at and cut.shrink_seconds <= A_CALL
    monkeypatch.setattr(diagnosis, "MATTERS", 2 * A_CALL)
    end = clock.now + 6 * A_CALL
    unread = diagnosis.diagnose(target, prop, whole.case, 1, 0.0)
    assert not (unread.matters or unread.indifferent) and unread.violation.says == whole.violation.says and clock.now <= end
