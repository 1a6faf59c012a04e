"""What a search does with what its cases show: without any attention, which the tests answer for."""

from __future__ import annotations

import copy
import dataclasses
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from impls import numpy_matmul
from properties.attention.case import Case
from properties.catalogue import PROPERTIES
from properties.engine.core.explanation import Explanation
from properties.engine.core.finding import Finding
from properties.engine.core.trial import Notes, Violation
from properties.engine.report import as_json
from properties.engine.search import search as module
from properties.engine.search.find_target import Builtins, find_targets
from properties.engine.search.probe import make_target
from properties.engine.search.search import Edge, Outcome, Plan, inapplicable, search, search_pass, seed_of, try_only, written_cases

SUMS = PROPERTIES["rows_sum_to_one"]
TARGET = make_target("right", numpy_matmul.attention, {"framework": "numpy"})
WRONG = Violation("wrong", 1.0, 2.0, 0.0)
KILLED = Violation("killed", float("nan"), float("nan"), 0.0, raised=True, killed=True)
Answer = Callable[[Case], Violation | None]


class Asked:
    """In the place of ``attempt``: every case that is asked, a clock that each of them moves, and whether it was counted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, answer: Answer = lambda case: None, seconds: float = 1.0) -> None:
        self.cases: list[Case] = []
        self.counted: list[bool] = []
        self.clock = 100.0
        self.seconds = seconds
        self.answer = answer
        monkeypatch.setattr(module, "attempt", self)
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.clock))
        monkeypatch.setattr(module, "diagnose", self.diagnose)

    def __call__(self, target: Any, prop: Any, case: Case, notes: Notes | None) -> tuple[Violation | None, Any]:
        self.cases.append(case)
        self.counted.append(notes is not None)
        self.clock += self.seconds
        return self.answer(case), SimpleNamespace(not_taken=False)

    def diagnose(
        self, target: Any, prop: Any, case: Case, first_at: int, seconds: float, thorough: bool = True, killed: Violation | None = None
    ) -> Finding:
        violation = killed or WRONG
        return Finding(prop, target.name, case, violation, first_at, seconds, matters=("thorough",) * thorough)


def long(case: Case) -> Violation | None:
    return WRONG if case.keys > 2 else None


# ---------------------------------------------------------------- plans


@pytest.mark.parametrize(
    ("examples", "passes"),
    [(0, []), (1, [1]), (4, [4]), (5, [4, 1]), (16, [4, 12]), (17, [4, 12, 1]), (150, [4, 12, 36, 98]), (161, [4, 12, 36, 108, 1])],
)
def test_passes_grow(examples: int, passes: list[int]) -> None:
    assert Plan(examples=examples).passes() == passes


def test_what_is_not_said() -> None:
    assert Plan() == Plan(150, 0, "cpu", None, None, True, (), True, False, None, None, True, 0)
    outcome = Outcome(SUMS, "right")
    assert (outcome.cases, outcome.set_aside, outcome.seconds, outcome.not_exercised, outcome.right, outcome.edges) == (
        0,
        0,
        0.0,
        "",
        [],
        {},
    )


def test_a_seed_is_that_of_its_names() -> None:
    assert seed_of("forms", 0) == 3063439866 == seed_of("forms", "0")
    assert len({seed_of("a", "b"), seed_of("ab"), seed_of("b", "a"), seed_of("a", "b", 0)}) == 4


# ---------------------------------------------------------------- outcomes


def finding(first_at: int) -> Finding:
    return Finding(SUMS, "right", Case(), WRONG, first_at, 0.0)


def test_outcomes_add_up() -> None:
    one, other = Outcome(SUMS, "right", 3, 1, 2.0), Outcome(SUMS, "right", 10, 20, 30.0)
    one.features.update(a=1, b=2)
    other.features.update(a=10)
    one.notes.compared, other.notes.compared = 1, 10
    one.ranges.note(Case(keys=3), ("keys",))
    other.ranges.note(Case(keys=9), ("keys",))
    one.right, other.right = [Case(seed=i) for i in range(5)], [Case(seed=i) for i in range(5, 15)]
    one.edges, other.edges = {"nan": Edge(Case(keys=1), WRONG)}, {"nan": Edge(Case(keys=2), WRONG), "inf": Edge(Case(keys=3), WRONG)}
    other.finding = finding(4)
    one.add(other)
    assert (one.cases, one.set_aside, one.seconds, one.notes.compared, dict(one.features)) == (13, 21, 32.0, 11, {"a": 11, "b": 2})
    assert one.ranges.sizes["keys"] == (3, 9)
    assert [case.seed for case in one.right] == list(range(12))  # the first ones, so many of them
    one.add(Outcome(SUMS, "right", right=[Case(seed=20)]))
    assert len(one.right) == 12
    assert one.edges["nan"].case.keys == 1 and one.edges["inf"].case.keys == 3
    assert one.finding is not None and one.finding.first_at == 3 + 4  # counted from its own first case
    one.add(Outcome(SUMS, "right", finding=finding(1)))
    assert one.finding.first_at == 7


def test_the_status_of_an_outcome() -> None:
    for outcome, status, goes_on in (
        (Outcome(SUMS, "right", 3), "passed", True),
        (Outcome(SUMS, "right"), "not exercised", True),
        (Outcome(SUMS, "right", 3, not_exercised="no"), "not exercised", False),
        (Outcome(SUMS, "right", 3, finding=finding(1)), "refuted", False),
        (Outcome(SUMS, "right", 0, finding=finding(1)), "refuted", False),
    ):
        assert (outcome.status, outcome.goes_on) == (status, goes_on)


# ---------------------------------------------------------------- one pass


def test_a_pass_has_its_cases_and_counts_them(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, ticks = Asked(monkeypatch), []
    outcome = search_pass(TARGET, SUMS, Plan(examples=150), ticks.append)
    assert outcome.cases == len(asked.cases) == 4 and ticks == [1, 2, 3, 4] and all(asked.counted)
    assert outcome.finding is None and outcome.status == "passed" and outcome.set_aside == 0 and outcome.seconds == 4.0
    assert outcome.features.total() > 0 and max(outcome.features.values()) <= 4 == sum(outcome.ranges.dtypes.values())
    assert outcome.right == [case for case in asked.cases if not case.empty]
    simplest = asked.cases[0]
    asked.cases.clear()
    search_pass(TARGET, SUMS, Plan(round=1))
    assert asked.cases[0] == simplest  # Hypothesis begins with it, whatever the seed
    asked.cases.clear()
    second = search_pass(TARGET, SUMS, Plan(examples=150, part=1))
    assert second.cases == len(asked.cases) == 12 and simplest not in asked.cases  # the first pass has tried it
    assert len(second.right) == 6 and not any(case.empty for case in second.right)
    asked.cases.clear()
    assert search(TARGET, SUMS, Plan(examples=30)).cases == len(asked.cases) == 30


def test_rounds_and_passes_draw_their_own_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []
    for plan in (Plan(), Plan(round=1), Plan(part=1), Plan(part=1, round=1), Plan(part=2), Plan(part=3)):
        asked = Asked(monkeypatch)
        search_pass(TARGET, SUMS, plan)
        again = Asked(monkeypatch)
        search_pass(TARGET, SUMS, plan)
        assert asked.cases == again.cases
        drawn.append({str(case) for case in asked.cases[1:]})
    assert max(len(one & other) for at, one in enumerate(drawn) for other in drawn[:at]) <= 2  # the simplest ones may come twice


@pytest.mark.parametrize(
    ("limits", "cases"), [({"seconds": 2.5}, 3), ({"seconds": 0.0}, 1), ({"deadline": 101.5}, 2), ({"deadline": 99.0}, 0)]
)
def test_no_case_is_drawn_once_time_is_over(limits: dict[str, float], cases: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for plan in (Plan(**limits), Plan(**{"seconds": 90.0, "deadline": 190.0} | limits)):  # type: ignore[arg-type]
        asked = Asked(monkeypatch)
        outcome = search_pass(TARGET, SUMS, plan)
        assert outcome.cases == len(asked.cases) == cases and outcome.seconds == cases and outcome.finding is None


def test_shrinking_has_its_time_beyond_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(monkeypatch, long)
    outcome = search_pass(TARGET, SUMS, Plan(deadline=103.5, part=2))
    assert outcome.finding is not None and len(asked.cases) > 5 and outcome.finding.case.keys == 3
    at_once = Asked(monkeypatch, long)
    cut = search_pass(TARGET, SUMS, Plan(deadline=103.5, part=2, late=0.0))
    assert cut.finding is not None and len(at_once.cases) < len(asked.cases)


def test_what_hangs_is_asked_until_the_time_to_wait_for_it_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    for over, cases in ((False, 4), (True, 0)):
        Asked(monkeypatch)
        monkeypatch.setattr(module, "exhausted", lambda over=over: over)
        outcome = search_pass(TARGET, SUMS, Plan())
        assert outcome.cases == cases and ("hangs" in outcome.not_exercised) is (cases == 0)


def test_an_interruption_that_was_lost_ends_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    def check() -> None:
        raise KeyboardInterrupt

    asked = Asked(monkeypatch)
    monkeypatch.setattr(module.interrupt, "check", check)
    with pytest.raises(KeyboardInterrupt):
        search_pass(TARGET, SUMS, Plan())
    assert not asked.cases


# ---------------------------------------------------------------- a failing case


def test_what_fails_is_made_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(monkeypatch, long)
    outcome = search_pass(TARGET, SUMS, Plan(part=2))
    found, at = outcome.finding, next(at for at, case in enumerate(asked.cases) if case.keys > 2)
    assert found is not None and found.case.keys == 3 and found.case.seed == 0 and found.first_at == at + 1 == outcome.cases
    assert asked.counted == [True] * (at + 1) + [False] * (len(asked.cases) - at - 1)  # what shrinking tries is no part of the statistics
    assert outcome.features.total() and max(outcome.features.values()) <= outcome.cases
    assert found.shrink_seconds == len(asked.cases) - at - 1  # from the first failing case on
    failing = [case for case in asked.cases if case.keys > 2]
    assert list(found.failing) == list(dict.fromkeys(failing))[:6] and found.matters == ("thorough",)
    assert {case.seed for case in asked.cases[at:]} <= {0, failing[0].seed}  # no seed is simpler than another, but for 0
    before, after = (sum(case in part and not case.empty for case in outcome.right) for part in (asked.cases[:at], asked.cases[at:]))
    assert before == min(6, sum(not case.empty for case in asked.cases[:at])) and before + after == len(outcome.right) <= 12 and after


def test_the_first_failing_case_is_written_down_before_it_is_made_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once: whoever ends the run while it shrinks has that one."""
    written: list[tuple[str, Case, int]] = []
    asked = Asked(monkeypatch, long)
    journal: Any = SimpleNamespace(failing=lambda target, prop, case, violation: written.append((target, case, len(asked.cases))))
    outcome = search_pass(TARGET, SUMS, Plan(part=2, journal=journal))
    assert written == [("right", next(case for case in asked.cases if case.keys > 2), outcome.cases)]


def test_some_cases_that_hold_are_kept_of_those_drawn_and_of_those_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    times: list[Case] = []

    def late(case: Case) -> Violation | None:
        times.append(case)
        return WRONG if len(times) > 20 and case.keys > 2 else None

    Asked(monkeypatch, late)
    outcome = search_pass(TARGET, SUMS, Plan(part=2))
    assert outcome.finding is not None and outcome.right[:6] == [case for case in times if not case.empty][:6]
    assert len(outcome.right) == 12 and all(case in times[outcome.cases :] for case in outcome.right[6:])


def test_shrinking_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SHRINKS", 7)
    asked = Asked(monkeypatch, long)
    outcome = search_pass(TARGET, SUMS, Plan(part=2))
    assert outcome.finding is not None and outcome.finding.case in asked.cases
    assert len(asked.cases) == outcome.cases + 8


def test_without_shrinking_the_first_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(monkeypatch, long)
    outcome = search_pass(TARGET, SUMS, Plan(part=2, shrink=False))
    assert outcome.finding is not None and outcome.finding.case == asked.cases[outcome.cases - 1] and outcome.finding.matters == ()


def test_a_case_that_kills_is_made_smaller_for_some_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(monkeypatch, lambda case: KILLED if case.keys > 2 else None)
    outcome = search_pass(TARGET, SUMS, Plan(part=2))
    assert outcome.finding is not None and outcome.finding.violation is KILLED
    assert len(asked.cases) == outcome.cases + 6  # as long as not more than five of its seconds are over
    asked = Asked(monkeypatch, lambda case: KILLED if case.keys > 2 else None, seconds=0.01)
    outcome = search_pass(TARGET, SUMS, Plan(part=2))
    assert outcome.finding is not None and outcome.finding.case.keys == 3


def test_what_fails_once_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    times: list[int] = []

    def once(case: Case) -> Violation | None:
        times.append(case.keys)
        return WRONG if len(times) == 3 else None

    Asked(monkeypatch, once)
    outcome = search_pass(TARGET, SUMS, Plan())
    assert outcome.finding is not None and outcome.finding.first_at == 3 == outcome.cases
    assert outcome.finding.shrink_seconds == len(times) - 3


def test_a_search_goes_on_until_something_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    number = 0

    def late(case: Case) -> Violation | None:
        nonlocal number
        number += 1
        return WRONG if number > 20 and case.keys > 1 else None

    asked = Asked(monkeypatch, late)
    outcome = search(TARGET, SUMS, Plan())
    assert outcome.finding is not None and 20 < outcome.finding.first_at == outcome.cases < len(asked.cases)
    for seconds, cases in ((2.5, 3), (6.5, 7), (4.0, 4), (3.5, 4), (4.5, 5)):
        Asked(monkeypatch)
        assert search(TARGET, SUMS, Plan(seconds=seconds)).cases == cases


def test_what_is_wrong_at_an_edge_alone_is_kept_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first case of each edge; and no finding, unless the plan is strict or the process is killed."""
    kind = type(TARGET.kind)
    monkeypatch.setattr(kind, "edge", lambda self, prop, case, violation, trial: f"{case.keys} keys" if case.keys < 9 else "")
    asked = Asked(monkeypatch, lambda case: WRONG if case.keys < 9 else None)
    outcome = search_pass(TARGET, SUMS, Plan(part=1, strict=False))
    assert outcome.finding is None and outcome.cases == 12 == len(asked.cases)
    firsts = {
        f"{keys} keys": next(case for case in asked.cases if case.keys == keys) for keys in {c.keys for c in asked.cases if c.keys < 9}
    }
    assert {name: edge.case for name, edge in outcome.edges.items()} == firsts
    assert all(edge.violation is WRONG for edge in outcome.edges.values()) and all(case.keys >= 9 for case in outcome.right)
    assert search_pass(TARGET, SUMS, Plan(part=1)).finding is not None
    Asked(monkeypatch, lambda case: KILLED)
    assert search_pass(TARGET, SUMS, Plan(part=1, strict=False)).finding is not None
    Asked(monkeypatch, lambda case: WRONG)
    assert search_pass(TARGET, SUMS, Plan(part=1, strict=False)).finding is not None


# ---------------------------------------------------------------- what is not tried


def test_why_a_property_is_not_tried() -> None:
    numpy_one = make_target("no mask", lambda q, k, v: numpy_matmul.attention(q, k, v), {"framework": "numpy", "zero_sizes": False})
    assert inapplicable(numpy_one, SUMS) == ""
    masked = dataclasses.replace(SUMS, needs=("attn_mask", "is_causal"))
    assert inapplicable(numpy_one, masked) == "the target takes no attn_mask, is_causal" and inapplicable(TARGET, masked) == ""
    assert inapplicable(numpy_one, dataclasses.replace(SUMS, needs=("zero_sizes",))) == "declared as not supported: zero_sizes"
    assert inapplicable(TARGET, dataclasses.replace(SUMS, needs=("zero_sizes", "layouts"))) == ""
    wide = make_target("wide", numpy_matmul.attention, {"framework": "numpy", "dtypes": ["float64"]})
    assert inapplicable(wide, SUMS, ("float16", "bfloat16")) == "the target takes no float16 or bfloat16"
    assert inapplicable(TARGET, SUMS, ("bfloat16", "float64")) == ""
    assert inapplicable(TARGET, next(p for p in PROPERTIES.values() if p.contract == "cached")).startswith("is about ")
    outcome = search_pass(TARGET, dataclasses.replace(SUMS, needs=("gradients",)), Plan())
    assert outcome.not_exercised and outcome.cases == 0 and not outcome.goes_on


def test_a_case_that_somebody_wrote() -> None:
    assert written_cases(TARGET, "Case(keys=3)") == {Case: Case(keys=3)}
    with pytest.raises(ValueError, match="kees"):
        written_cases(TARGET, "Case(kees=3)")
    assert try_only(TARGET, SUMS, Case(keys=3)).status == "passed"
    assert try_only(TARGET, SUMS, None).not_exercised == "it is about other cases"
    wrong = make_target("wrong", lambda q, k, v: numpy_matmul.attention(q, k, v) * 1.5, {"framework": "numpy"})
    outcome = try_only(wrong, SUMS, Case(keys=3))
    assert outcome.finding is not None and (outcome.finding.first_at, outcome.finding.shrink_seconds, outcome.cases) == (1, 0.0, 1)
    assert try_only(wrong, SUMS, Case(keys=3, is_causal=True)).cases == 0


def test_cases_that_come_to_a_call_that_is_not_taken_are_left_out_and_counted() -> None:
    def of_eights(q: Any, k: Any, v: Any) -> Any:
        assert q.shape[2] % 8 == k.shape[2] % 8 == 0
        return numpy_matmul.attention(q, k, v)

    target = make_target("eights", of_eights, {"framework": "numpy", "length_multiple": 8})
    none, some = (search(target, PROPERTIES[name], Plan(12)) for name in ("rows_sum_to_one", "chunks_merge_to_the_whole"))
    assert (none.cases, none.why, none.notes.not_taken) == (12, "", {})
    why = "lengths that are no multiples of 8"
    assert some.notes.not_taken[why] + some.cases == 12 and some.notes.not_taken[why] > 0
    assert sum(some.ranges.dtypes.values()) == some.cases
    assert as_json._outcome(some, Explanation())["left_out"] == dict(some.notes.not_taken)
    one = try_only(target, PROPERTIES["chunks_merge_to_the_whole"], Case(queries=8, keys=8, seed=1))
    assert (one.status, one.why, one.finding) == ("not exercised", f"it comes to {why}", None)


@pytest.mark.parametrize(
    ("outcome", "why"),
    [
        (Outcome(SUMS, "right"), "no time was left"),
        (Outcome(SUMS, "right", 3), ""),
        (Outcome(SUMS, "right", not_exercised="no"), "no"),
        (Outcome(SUMS, "right", set_aside=2), "every case is a known deviation"),
        (Outcome(SUMS, "right", notes=Notes(not_taken=Counter(odd=2, long=1))), "it comes to odd, long"),
    ],
)
def test_why_a_property_was_not_exercised(outcome: Outcome, why: str) -> None:
    assert outcome.why == why and (outcome.status == "not exercised") is bool(why)


LAYER = find_targets("numpy_matmul.multihead", Builtins())[0]
FLAT = dataclasses.replace(TARGET, framework=copy.copy(TARGET.framework))
FLAT.framework.layouts = ("contiguous",)


def test_what_is_asked_of_others() -> None:
    direct, gradients, layouts = (
        PROPERTIES[name] for name in ("inputs_are_unchanged", "gradients_add_up", "memory_layout_changes_nothing")
    )
    assert direct.direct and inapplicable(TARGET, direct) == "" == inapplicable(LAYER, SUMS)
    assert inapplicable(LAYER, direct) == "is about the arguments of an attention"
    assert inapplicable(LAYER, gradients) == "gradients are asked of attention, not of multihead"
    assert inapplicable(TARGET, gradients) not in ("", inapplicable(LAYER, gradients))  # NumPy has none
    assert inapplicable(FLAT, layouts) == "arrays of numpy lie in memory in one way" and inapplicable(TARGET, layouts) == ""
    assert inapplicable(FLAT, SUMS) == ""


def test_only_layouts_that_there_are_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    two = dataclasses.replace(TARGET, framework=copy.copy(TARGET.framework))
    two.framework.layouts = ("contiguous", "transposed")
    for target, layouts in ((FLAT, {"contiguous"}), (two, {"contiguous", "transposed"}), (TARGET, None)):
        asked = Asked(monkeypatch)
        search_pass(target, PROPERTIES["output_is_inside_the_bound"], Plan(part=2))
        drawn = {case.layout for case in asked.cases}
        assert len(asked.cases) == 36 and (drawn == layouts if layouts else len(drawn) > 2)
