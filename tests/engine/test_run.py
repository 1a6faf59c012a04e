"""What a run does with its properties, passes, rounds and workers, and what a report says: without any search, which the tests answer for."""

from __future__ import annotations

import dataclasses
import re
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from impls import numpy_matmul
from properties import catalogue
from properties.attention.case import Case
from properties.catalogue import PROPERTIES
from properties.engine.contained import template
from properties.engine.core import words
from properties.engine.core.contract import contracts
from properties.engine.core.declare import Property
from properties.engine.core.finding import Finding
from properties.engine.core.pace import Pace
from properties.engine.core.target import Target
from properties.engine.core.trial import Violation
from properties.engine.report import record, text
from properties.engine.search import run
from properties.engine.search.deviations import Deviation
from properties.engine.search.probe import make_target
from properties.engine.search.run import Report, Status, Workers, load, verify_target
from properties.engine.search.search import Edge, Outcome, Plan

TARGET = make_target("right", numpy_matmul.attention, {"framework": "numpy"})
FOUR = catalogue.select(("values",))[:4]
ONE, TWO, THREE, LAST = (p.name for p in FOUR)


def finding(prop: Property) -> Finding:
    return Finding(prop, "right", Case(), Violation("wrong", 1.0, 2.0, 0.0), 1, 0.0)


class Searched:
    """In the place of ``search_pass``: what was asked, and what is found at which property in which pass."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *wrong: tuple[str, int], stop: str = "", cases: int | None = None) -> None:
        self.asked: list[tuple[str, Plan]] = []
        self.wrong, self.stop, self.cases = wrong, stop, cases
        self.clock = 100.0
        monkeypatch.setattr(run, "search_pass", self)
        monkeypatch.setattr(run, "time", SimpleNamespace(monotonic=lambda: self.clock))

    def __call__(self, target: Target, prop: Property, plan: Plan, tick: Callable[[int], None] = lambda _: None) -> Outcome:
        self.asked.append((prop.name, plan))
        self.clock += 1.0
        if prop.name == self.stop:
            raise KeyboardInterrupt
        outcome = Outcome(prop, target.name, cases=plan.passes()[plan.part] if self.cases is None else self.cases)
        outcome.finding = finding(prop) if (prop.name, plan.part) in self.wrong else None
        tick(7)
        return outcome

    @property
    def names(self) -> list[tuple[str, int]]:
        return [(name, plan.part) for name, plan in self.asked]


# ---------------------------------------------------------------- passes and rounds


def test_every_property_has_a_pass_before_any_has_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    searched = Searched(monkeypatch, (TWO, 1))
    report = verify_target(TARGET, FOUR, Plan(examples=30, round=5))
    assert searched.names == [
        *((name, 0) for name in (ONE, TWO, THREE, LAST)),
        *((name, 1) for name in (ONE, TWO, THREE, LAST)),
        *((name, 2) for name in (ONE, THREE, LAST)),  # what is refuted is not searched again
    ]
    assert {plan.round for _, plan in searched.asked} == {5} and {plan.deadline for _, plan in searched.asked} == {None}
    assert [outcome.cases for outcome in report.outcomes.values()] == [30, 16, 30, 30] and report.cases == 106
    assert (report.rounds, report.seconds, report.interrupted, report.incomplete, report.least) == (1, 11.0, False, "", 4)
    assert [found.prop.name for found in report.findings] == [TWO] and report.verdict == "refuted" and not report.ok
    assert report.findings[0].first_at == 5  # counted over the passes


def test_few_examples_are_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    searched = Searched(monkeypatch)
    report = verify_target(TARGET, FOUR, Plan(examples=3))
    assert searched.names == [(name, 0) for name in (ONE, TWO, THREE, LAST)]
    assert report.least == 3 and report.verdict == "nothing found" and report.ok


def test_low_ranks_come_first_and_the_report_keeps_its_order(monkeypatch: pytest.MonkeyPatch) -> None:
    searched = Searched(monkeypatch)
    report = verify_target(TARGET, FOUR, Plan(examples=4), rank={LAST: 0, TWO: 1})
    assert [name for name, _ in searched.names] == [LAST, TWO, ONE, THREE]
    assert list(report.outcomes) == [ONE, TWO, THREE, LAST]


def test_the_first_finding_may_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    searched = Searched(monkeypatch, (TWO, 0), (LAST, 0))
    report = verify_target(TARGET, FOUR, Plan(examples=30), first=True)
    assert searched.names == [(ONE, 0), (TWO, 0)] and [found.prop.name for found in report.findings] == [TWO]
    assert report.unreached == (THREE, LAST)
    searched = Searched(monkeypatch, (TWO, 1))
    assert verify_target(TARGET, FOUR, Plan(examples=30), first=True).rounds == 0
    assert searched.names == [(ONE, 0), (TWO, 0), (THREE, 0), (LAST, 0), (ONE, 1), (TWO, 1)]
    searched = Searched(monkeypatch)
    wrong = dataclasses.replace(TARGET, wrong={"a convention": "other than documented"})
    report = verify_target(wrong, FOUR, Plan(examples=30), first=True)
    assert searched.names == [] and report.verdict == "refuted"
    assert not verify_target(wrong, FOUR, Plan(examples=4)).unreached
    assert len(searched.names) == 4


def test_a_run_with_nothing_left_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    searched = Searched(monkeypatch, *((name, 0) for name in (ONE, TWO, THREE, LAST)))
    report = verify_target(TARGET, FOUR, Plan(examples=30), seconds=1000.0)
    assert len(searched.names) == 4 and len(report.findings) == 4


def test_seconds_bring_round_after_round(monkeypatch: pytest.MonkeyPatch) -> None:
    searched = Searched(monkeypatch)
    report = verify_target(TARGET, FOUR, Plan(examples=16, round=2), seconds=23.0)
    assert [(plan.round, plan.part) for _, plan in searched.asked[::4]] == [(2, 0), (2, 1), (3, 0), (3, 1), (4, 0), (4, 1)]
    assert report.rounds == 3 and report.seconds == 24.0 and {plan.deadline for _, plan in searched.asked} == {123.0}
    assert {plan.late for _, plan in searched.asked} == {23.0 / 2}
    left = [(123.0 - 100.0 - at) / (4 - at % 4) for at in range(23)]  # each gets an equal part of what is left
    assert [plan.seconds for _, plan in searched.asked[:23]] == pytest.approx(left) and searched.asked[23][1].seconds == 0.0
    searched = Searched(monkeypatch)
    verify_target(TARGET, FOUR, Plan(examples=4), seconds=100.0)
    assert {plan.late for _, plan in searched.asked} == {30.0}
    searched = Searched(monkeypatch)
    assert verify_target(TARGET, FOUR, Plan(examples=16), seconds=8.0).rounds == 1 + 1 // 2
    assert len(searched.asked) == 12  # at its deadline it is not yet over


def test_what_had_too_little_time_has_all_of_it_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before any of the others goes on: one whose cases are slow, and two of which few are taken."""
    searched = Searched(monkeypatch)
    had = {ONE: Outcome(FOUR[0], "right", cases=3), TWO: Outcome(FOUR[1], "right", set_aside=4), LAST: Outcome(FOUR[3], "right", cases=3)}
    had[LAST].notes.not_taken["masks"] = 1

    def at_first(target: Target, prop: Property, plan: Plan, tick: Any) -> Outcome:
        outcome = searched(target, prop, plan)
        return had.get(prop.name, outcome) if not plan.part else outcome

    monkeypatch.setattr(run, "search_pass", at_first)
    verify_target(TARGET, [FOUR[2], FOUR[3], FOUR[1], FOUR[0]], Plan(examples=16), seconds=7.0)
    assert searched.names[4:] == [(ONE, 1), (THREE, 1), (LAST, 1), (TWO, 1)]
    assert [plan.seconds for _, plan in searched.asked[4:]] == pytest.approx([3.0, 2 / 3, 1 / 2, 0.0])


def test_a_deadline_of_the_plan_ends_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    searched = Searched(monkeypatch)
    report = verify_target(TARGET, FOUR, Plan(examples=150, deadline=105.5))
    assert len(searched.asked) == 8 and report.rounds == 0
    assert "time was over" not in report.incomplete  # four cases of each are enough


def test_a_run_that_goes_on_has_the_time_that_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five seconds of eight were over before; two properties had their first pass then."""
    written: list[tuple[str, float]] = []
    journal: Any = SimpleNamespace(
        seconds=lambda target: 5.0,
        known=lambda target, left, plan: {} if plan.part else {p.name: Outcome(p, target.name, cases=4) for p in left[:2]},
        tried=lambda plan, outcome, seconds: written.append((outcome.prop.name, seconds)),
    )
    searched = Searched(monkeypatch)
    report = verify_target(TARGET, FOUR, Plan(examples=16, journal=journal), seconds=8.0)
    assert {plan.deadline for _, plan in searched.asked} == {103.0} and report.seconds == 5.0 + len(searched.asked)
    assert searched.names[:2] == [(THREE, 0), (LAST, 0)] and report.rounds == 1
    assert written == [(name, 6.0 + at) for at, (name, _) in enumerate(searched.names)]  # the seconds before count
    assert [outcome.cases for outcome in report.outcomes.values()][:2] == [16, 16]


def test_too_little_was_tried_when_time_was_over(monkeypatch: pytest.MonkeyPatch) -> None:
    for deadline, over in ((103.5, True), (104.0, False), (200.0, False)):  # four seconds from 100 on
        Searched(monkeypatch, cases=3)
        report = verify_target(TARGET, FOUR, Plan(examples=4, deadline=deadline))
        assert report.incomplete.startswith("time was over before 4 of 4 properties had 4 cases each") is over and report.ok is not over


def test_an_interruption_keeps_what_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    searched = Searched(monkeypatch, (ONE, 0), stop=THREE)
    report = verify_target(TARGET, FOUR, Plan(examples=30))
    assert report.interrupted and list(report.outcomes) == [ONE, TWO] and len(searched.asked) == 3 and report.verdict == "refuted"


def test_progress_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    Searched(monkeypatch)
    told: list[tuple[str, Any]] = []
    verify_target(TARGET, FOUR[:2], Plan(examples=4), progress=lambda prop, what: told.append((prop.name, what if what == 7 else "done")))
    assert told == [(ONE, 7), (ONE, "done"), (TWO, 7), (TWO, "done")]


def test_properties_of_other_subjects_are_left_out_where_there_are_others(monkeypatch: pytest.MonkeyPatch) -> None:
    searched = Searched(monkeypatch)
    cached = next(p for p in PROPERTIES.values() if p.contract == "cached")
    verify_target(TARGET, [cached, FOUR[0]], Plan(examples=4))
    assert [name for name, _ in searched.names] == [ONE]
    report = verify_target(TARGET, [cached], Plan(examples=4))
    assert list(report.outcomes) == [cached.name]  # somebody has asked for it


# ---------------------------------------------------------------- workers


class Many:
    """In the place of ``Workers``: ready out of order, from the second pass on."""

    def __init__(self, searched: Searched) -> None:
        self.searched = searched
        self.seconds: list[float] = []
        self.closed = 0

    def wanted(self, seconds: float) -> bool:
        self.seconds.append(seconds)
        return len(self.seconds) > 1

    def search(self, source: Any, properties: list[Property], plan: Plan) -> Iterator[Outcome]:
        assert source == {"text": "right"}
        try:
            for prop in reversed(properties):
                self.searched.clock += 1.0
                yield Outcome(prop, "right", cases=plan.passes()[plan.part])
        finally:
            self.closed += 1


def test_workers_are_asked_for_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    searched = Searched(monkeypatch)
    many = Many(searched)
    report = verify_target(TARGET, FOUR, Plan(examples=30), workers=many, source={"text": "right"})  # type: ignore[arg-type]
    assert len(searched.asked) == 4 and many.closed == 2
    assert many.seconds == [0.0, 4.0 * 26 / 4, 8.0 * 14 / 16]  # nothing is known before the first pass
    assert list(report.outcomes) == [ONE, TWO, THREE, LAST] and report.cases == 120
    searched = Searched(monkeypatch)
    many = Many(searched)
    verify_target(TARGET, FOUR, Plan(examples=4), seconds=10.0, workers=many, source={"text": "right"})  # type: ignore[arg-type]
    assert many.seconds == [10.0, 6.0, 2.0]


def test_workers_start_where_it_pays() -> None:
    assert Workers(1).wanted(0.0) and Workers(2, always=True).wanted(0.0)
    assert not Workers(2, always=False).wanted(20.0) and Workers(2, always=False).wanted(20.5)
    assert not Workers(1, always=False).wanted(1e9)
    started = Workers(2, always=False)
    started.pool = object()  # type: ignore[assignment]
    assert started.wanted(0.0)
    never = Workers(2)
    never.end()
    assert never.pool is None


class Pool:
    """In the place of a pool of processes: everything in this one."""

    made: ClassVar[list[Pool]] = []

    def __init__(self, count: int, mp_context: Any, initializer: Any, initargs: tuple[Any, ...]) -> None:
        assert mp_context.get_start_method() == "spawn" and initializer is run.obey
        kept, kinds = initargs
        assert kept == template.kept_from_targets()
        assert set(kinds) == {type(kind) for kind in contracts().values()}  # so that they are known there
        self.count, self.tasks, self.ended = count, [], dict[str, bool]()
        self.made.append(self)

    def submit(self, function: Any, *arguments: Any) -> Future[Any]:
        assert function is run._slice
        self.tasks.append(arguments)
        future: Future[Any] = Future()
        future.set_result(Outcome(arguments[1], "right", cases=1))
        return future

    def shutdown(self, **options: bool) -> None:
        self.ended = options


def test_one_pool_is_asked_for_every_property(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "ProcessPoolExecutor", Pool)
    monkeypatch.setattr(run, "time", SimpleNamespace(monotonic=lambda: 100.0))
    killed: list[str] = []
    monkeypatch.setattr(run.multiprocessing, "active_children", lambda: [SimpleNamespace(kill=lambda: killed.append("worker"))])
    Pool.made.clear()
    workers = Workers(3)
    for _ in range(2):
        found = list(workers.search({"text": "right"}, FOUR, Plan(deadline=160.0)))
        assert {outcome.prop.name for outcome in found} == {ONE, TWO, THREE, LAST}
    (pool,) = Pool.made
    assert pool.count == 3 and [(source, prop.name) for source, prop, _ in pool.tasks[:4]] == [({"text": "right"}, p.name) for p in FOUR]
    assert {plan.seconds for _, _, plan in pool.tasks} == {30.0}  # two turns of three workers for four properties
    assert not pool.ended and not killed
    slices = workers.search({"text": "right"}, FOUR, Plan())
    next(slices)
    slices.close()  # nobody waits for the rest
    assert pool.ended == {"cancel_futures": True} and killed == ["worker"] and workers.pool is None


def test_a_worker_ends_with_its_parent_and_leaves_interruptions_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    tied: list[str] = []
    for name in ("HIDDEN", "HELD"):
        monkeypatch.setattr(template, name, [])
    monkeypatch.setattr(run, "dies_with_parent", lambda: tied.append("to its parent"))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        run.obey((["/nowhere/hidden"], ["/nowhere/held"]))
        assert template.kept_from_targets() == (["/nowhere/hidden"], ["/nowhere/held"])
        assert tied and signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_worker_loads_a_target_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    loaded, around = [], []

    def loads(source: Any, device: str) -> Target:
        loaded.append((source["text"], device))
        return TARGET

    def searches(target: Target, prop: Property, plan: Plan) -> Outcome:
        print("prints of a target are no part of a report")
        assert target is TARGET
        return Outcome(prop, "right", cases=5)

    def note(name: str) -> Any:
        return lambda yes=True: around.append((name, yes)) or nullcontext()

    monkeypatch.setattr(run, "_LOADED", {})
    for name, stub in (("load", loads), ("search_pass", searches), ("isolated", note("isolated")), ("containing", note("containing"))):
        monkeypatch.setattr(run, name, stub)
    for source, isolate in (({"text": "one"}, False), ({"text": "one"}, True), ({"text": "two", "contained": "always"}, True)):
        assert run._slice(source, FOUR[0], Plan(device="there", isolate=isolate)).cases == 5
    assert loaded == [("one", "there"), ("two", "there")] and capsys.readouterr().out == ""
    assert around == [
        *(("isolated", False), ("containing", "never")),
        *(("isolated", True), ("containing", "never")),
        *(("isolated", True), ("containing", "always")),
    ]


def test_a_known_crash_is_looked_at_in_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    apart: list[str] = []
    monkeypatch.setattr(run, "isolated", lambda: apart.append("isolated") or nullcontext())
    for kind, processes in (("documented", 0), ("crash", 1)):
        known = Deviation(("*",), ("*",), "keys > 2", kind, "test", "numpy 0", Case(keys=3), "rows_sum_to_one")
        assert run.look_again(known, TARGET).state == "gone" and len(apart) == processes


def test_a_worker_loads_the_target_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(TARGET.kind), "handshake", lambda self, target, device: dataclasses.replace(target, learned={"all": device}))
    assert load({"text": "numpy_matmul.attention", "handshake": True}, "cpu").learned == {"all": "cpu"}
    assert not load({"text": "numpy_matmul.attention", "handshake": False}, "cpu").learned
    assert load({"text": "numpy_matmul.attention"}, "cpu").name == "numpy_matmul.attention"
    assert load({"text": "numpy_matmul.attention", "supports": {"max_length": 9}}, "cpu").supports.max_length == 9
    assert load({"text": "numpy_matmul.attention", "dtypes": ("float32", "bfloat16")}, "cpu").dtypes == ("float32",)


# ---------------------------------------------------------------- what a report says


def test_a_verdict() -> None:
    began = time.monotonic()
    tried = {p.name: Outcome(p, "right", cases=4) for p in PROPERTIES.values() if p.contract == TARGET.kind.topics[0].name}
    report = Report(TARGET, "cpu", outcomes=dict(tried))
    assert report.verdict == "nothing found" and report.ok and not report.found and report.cases == 4 * len(tried)
    assert Report(TARGET, "cpu").verdict == "nothing tried" and Report(TARGET, "cpu").ok
    report.incomplete = "too little"
    assert report.verdict == "incomplete" and not report.ok and not report.found
    report.outcomes[ONE] = dataclasses.replace(tried[ONE], finding=finding(FOUR[0]))
    assert report.verdict == "refuted" and report.found and not report.ok
    wrong = Report(dataclasses.replace(TARGET, wrong={"it": "other"}), "cpu", outcomes=dict(tried))
    assert wrong.verdict == "refuted" and wrong.found and not wrong.ok and not wrong.findings
    assert time.monotonic() - began < 5


def test_three_quarters_of_what_needs_no_parameter_are_enough() -> None:
    own = TARGET.kind.topics[0].name
    core = [p for p in PROPERTIES.values() if p.contract == own and TARGET.kind.expected(TARGET, p)]
    others = [p for p in PROPERTIES.values() if p.contract != own or not TARGET.kind.expected(TARGET, p)]
    assert len(core) > 8 and others
    for tried, cases, enough in ((1.0, 4, True), (0.75, 4, True), (0.7, 4, False), (1.0, 3, False), (0.0, 0, False)):
        count = -int(-tried * len(core) // 1)
        outcomes = [Outcome(p, "right", cases=cases if at < count else 0) for at, p in enumerate(core)]
        report = Report(TARGET, "cpu", {o.prop.name: o for o in (*outcomes, *(Outcome(p, "right", cases=9) for p in others))}, least=4)
        assert report.enough is enough, (tried, cases)
        assert report.verdict == ("nothing found" if enough else "too little tried")
    for tried, enough in ((6, True), (5, False)):
        eight = {p.name: Outcome(p, "right", cases=9 if at < tried else 0) for at, p in enumerate(core[:8])}
        assert Report(TARGET, "cpu", eight).enough is enough
    found = [Outcome(p, "right", cases=1, finding=finding(p)) for p in core]
    assert Report(TARGET, "cpu", {o.prop.name: o for o in found}).enough  # what is refuted has been tried
    assert Report(TARGET, "cpu", {o.prop.name: o for o in (Outcome(p, "right") for p in others)}).enough


def test_a_report_of_nothing() -> None:
    report = Report(TARGET, "cpu")
    assert (report.rounds, report.seconds, report.interrupted, report.least, report.incomplete) == (0, 0.0, False, 4, "")
    assert report.findings == [] and report.cases == 0 and report.machine["device"]


def test_deviations_that_surprise() -> None:
    def status(state: str, here: bool) -> Status:
        return Status(None, "right", state, here)  # type: ignore[arg-type]

    for state, here, surprise in (("gone", True, True), ("expired", True, True), ("still there", True, False), ("gone", False, False)):
        report = Report(TARGET, "cpu", {ONE: Outcome(FOUR[0], "right", cases=9)}, [status(state, here)])
        assert bool(report.surprises) is surprise and report.found is surprise and report.ok is not surprise


def test_outcomes_of_one_property_are_joined() -> None:
    report = Report(TARGET, "cpu")
    for cases in (1, 2):
        report.add(Outcome(FOUR[0], "right", cases=cases))
    report.add(Outcome(FOUR[1], "right", cases=5))
    assert {name: outcome.cases for name, outcome in report.outcomes.items()} == {ONE: 3, TWO: 5}


def test_what_is_wrong_at_edges_alone_is_no_share_of_the_core() -> None:
    """Whatever else of the same property was tried: the score says what it is."""
    wrong = Violation("nan", 1.0, 2.0, 0.0)
    outcomes = [Outcome(prop, "right", cases=4) for prop in FOUR]
    outcomes[0].edges, outcomes[1].edges = {"sizes of zero": Edge(Case(keys=0), wrong)}, {"sizes of zero": Edge(Case(dim=0), wrong)}
    outcomes[2].finding, outcomes[3].cases = finding(FOUR[2]), 0
    made = record.record("right", Report(TARGET, "cpu", {outcome.prop.name: outcome for outcome in outcomes}))
    assert (made["core"], made["edges"], made["held"]) == (round(2 / 3, 4), 0.0, [ONE, TWO])
    assert made["wrong_at_edges"] == {"sizes of zero": f"{ONE}: nan"}


def test_a_record_says_whether_all_was_asked() -> None:
    """Not where a target is too slow for it, or has ended its process over it."""
    slow = dataclasses.replace(TARGET, pace=Pace(unasked=1))
    reports = [Report(TARGET, "cpu"), Report(slow, "cpu"), Report(TARGET, "cpu", ends=("ended the process",))]
    assert [record.record("right", report)["all_asked"] for report in reports] == [True, False, False]


def test_one_case_is_no_plural() -> None:
    outcome = Outcome(FOUR[0], "right", cases=1)
    for count, said in ((1, r"\b1 case\b(?!s)"), (2, r"\b2 cases\b")):
        outcome.cases = count
        report = Report(TARGET, "cpu", {ONE: outcome})
        lines = [text.verdict_text(report), text.verdict_text(report, verbose=True), text.matrix_text([report], FOUR[:1], {})]
        lines += [text.pairs_text([report]), record.line(record.record("right", report))]
        for line in lines:
            assert re.search(said, line), line
    assert (words.cases(1), words.cases(1000), words.cases(1, 3), words.cases(2, 3)) == ("1 case", "1,000 cases", "  1 case ", "  2 cases")
