"""One run: properties × targets × rounds, in this process or in several, and the known deviations beside them."""

from __future__ import annotations

import dataclasses
import multiprocessing
import sys
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import nullcontext, redirect_stdout
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ..core.attempt import try_case
from ..core.crash import isolated
from ..core.declare import Property, declared
from ..core.explanation import Explanation
from ..core.finding import Finding
from ..core.target import Target
from ..frameworks.machine import machine
from .deviations import Deviation
from .find_target import Builtins, find_targets
from .search import Outcome, Plan, same_subject, search


@dataclass(frozen=True)
class Status:
    """A known deviation, looked at again."""

    deviation: Deviation
    target: str
    state: str  # "still there", "gone", "expired"
    here: bool  # whether this is the version on which it was seen


@dataclass
class Report:
    """What a run found and what it verified, for one target."""

    target: Target
    device: str
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    statuses: list[Status] = field(default_factory=list)
    explained: dict[str, Explanation] = field(default_factory=dict)  # by property
    rounds: int = 0
    seconds: float = 0.0
    interrupted: bool = False

    @property
    def findings(self) -> list[Finding]:
        """Every refutation, in the order of the properties."""
        return [outcome.finding for outcome in self.outcomes.values() if outcome.finding]

    @property
    def cases(self) -> int:
        """Cases tried, all properties together."""
        return sum(outcome.cases for outcome in self.outcomes.values())

    @property
    def machine(self) -> Mapping[str, Any]:
        """The facts of the machine, as the target's framework has them."""
        return machine(self.target.framework, self.device)

    @property
    def surprises(self) -> list[Status]:
        """Deviations that are gone from the version on which they were seen, or whose time is over."""
        return [status for status in self.statuses if status.here and status.state != "still there"]

    @property
    def ok(self) -> bool:
        """Whether nothing was found that was not known, and nothing known has gone unnoticed."""
        return not self.findings and not self.surprises

    def add(self, outcome: Outcome) -> None:
        """Union with what other rounds or workers found."""
        name = outcome.prop.name
        if name not in self.outcomes:
            self.outcomes[name] = outcome
            return
        kept = self.outcomes[name]
        kept.cases += outcome.cases
        kept.set_aside += outcome.set_aside
        kept.seconds += outcome.seconds
        kept.features.update(outcome.features)
        kept.notes.merge(outcome.notes)
        kept.right += outcome.right
        kept.finding = kept.finding or outcome.finding


def verify_target(
    target: Target,
    properties: Iterable[Property],
    plan: Plan,
    *,
    seconds: float | None = None,
    progress: Callable[[Property, Outcome | int], None] = lambda *_: None,
    workers: int = 1,
    source: Mapping[str, Any] | None = None,
) -> Report:
    """Search every property; with ``seconds``, round after round until the time is over.

    A refuted property is not searched again, the others are. ``workers`` > 1 divides the (property, round) pairs among
    processes, which load the target again from ``source`` (the arguments of ``find_targets``).
    """
    began = time.monotonic()
    report = Report(target, plan.device)
    report.statuses = [look_again(d, target) for d in plan.deviations if applies(d, target, plan.device)]
    deadline = None if seconds is None else began + seconds
    properties = tuple(properties)
    properties = tuple(p for p in properties if same_subject(p, target)) or properties
    round_number = plan.round
    while True:
        this = dataclasses.replace(plan, round=round_number, deadline=deadline)
        left = [p for p in properties if p.name not in report.outcomes or report.outcomes[p.name].status == "passed"]
        slices = _serial(target, left, this, progress) if workers == 1 else _parallel(source or {}, left, this, workers)
        try:
            for outcome in slices:
                report.add(outcome)
                progress(outcome.prop, outcome)
        except KeyboardInterrupt:  # what was found so far is worth telling
            slices.close()
            report.interrupted = True
            break
        round_number += 1
        report.rounds += 1
        if deadline is None or time.monotonic() > deadline or not left:
            break
    report.seconds = time.monotonic() - began
    return report


def _serial(target: Target, properties: list[Property], plan: Plan, progress: Callable[..., None]) -> Generator[Outcome]:
    for done, prop in enumerate(properties):
        share = _share(plan, len(properties) - done)
        yield search(target, prop, share, partial(progress, prop))


def _share(plan: Plan, left: int) -> Plan:
    """The plan with an equal part of the time that is left, so that no slow property takes it all."""
    return plan if plan.deadline is None else dataclasses.replace(plan, seconds=max(plan.deadline - time.monotonic(), 0.0) / left)


def _parallel(source: Mapping[str, Any], properties: list[Property], plan: Plan, workers: int) -> Generator[Outcome]:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        share = _share(plan, -(-len(properties) // workers))
        tasks = [pool.submit(_slice, dict(source), prop, share) for prop in properties]
        try:
            for task in as_completed(tasks):
                yield task.result()
        except (KeyboardInterrupt, GeneratorExit):  # nobody waits for the rest
            for worker in multiprocessing.active_children():
                worker.kill()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


_LOADED: dict[str, Target] = {}


def _slice(source: dict[str, Any], prop: Property, plan: Plan) -> Outcome:
    key = repr(source)
    with redirect_stdout(sys.stderr), isolated(plan.isolate):  # what a target prints is no part of the report
        if key not in _LOADED:
            _LOADED[key] = find_targets(source["text"], Builtins(), source.get("supports"), plan.device)[0]
        return search(_LOADED[key], prop, plan)


# ---------------------------------------------------------------- known deviations


def applies(deviation: Deviation, target: Target, device: str) -> bool:
    """Whether the stored case can be tried on this target here."""
    return (
        deviation.concerns(target.name, deviation.shows)
        and deviation.case.dtype in target.dtypes
        and deviation.case.device == device
        and deviation.found_on(machine(target.framework, device))
    )


def look_again(deviation: Deviation, target: Target) -> Status:
    """Try the stored case of a known deviation."""
    with isolated() if deviation.kind == "crash" else nullcontext():
        wrong = try_case(target, declared()[deviation.shows], deviation.case) is not None
    state = "gone" if not wrong else "expired" if deviation.expired() else "still there"
    return Status(deviation, target.name, state, deviation.seen_here(machine(target.framework, deviation.case.device)))
