"""One run: properties × targets × rounds, in this process or in several, and the known deviations beside them."""

from __future__ import annotations

import dataclasses
import math
import multiprocessing
import signal
import sys
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import nullcontext, redirect_stdout
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from types import MappingProxyType
from typing import Any

from ...exact.shown import Shown
from ..cases.case import Case
from ..contained.stub import Shared
from ..contained.template import hide, hold, kept_from_targets
from ..core.attempt import try_case
from ..core.contract import contracts
from ..core.crash import dies_with_parent, isolated
from ..core.declare import Property, declared
from ..core.explanation import Explanation
from ..core.finding import Finding
from ..core.target import CannotRun, Target
from ..frameworks import no_device
from ..frameworks.machine import machine
from .deviations import Deviation
from .find_target import NEVER, Builtins, containing, find_targets
from .floor import ended, incomplete
from .own_words import answers_what_it_refuses, own_words
from .search import FIRST_PASS, Outcome, Plan, inapplicable, same_subject, search_pass, try_only, written_cases


@dataclass(frozen=True)
class Status:
    """A known deviation, looked at again."""

    deviation: Deviation
    target: str
    state: str  # "still there", "gone", "expired"
    here: bool  # whether this is the version on which it was seen


@dataclass
class Report(Shown):
    """What a run found and what it verified, for one target."""

    target: Target
    device: str
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    statuses: list[Status] = field(default_factory=list)
    explained: dict[str, Explanation] = field(default_factory=dict)  # by property
    rounds: int = 0
    seconds: float = 0.0
    interrupted: bool = False
    least: int = FIRST_PASS  # cases that a property must have had for it to be tried
    incomplete: str = ""  # why too little was tried to say that nothing was found
    ends: tuple[str, ...] = ()  # what ended the target's processes before the search: what it was asked then is not known
    unreached: tuple[str, ...] = ()  # properties before which the run ended: at a finding, or since time was over
    shortened: str = ""  # how much less than planned was tried, where the time for a run that nobody has given a length was over

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
    def contained(self) -> bool:
        """Whether the target was in a process of its own."""
        return isinstance(self.target.framework, Shared)

    @property
    def kept(self) -> str:
        """What keeps the target's process from all others: ``contained.apart``; empty if it is this one."""
        fw: Any = self.target.framework
        return str(fw.kept()) if self.contained else ""

    @property
    def own_words(self) -> Mapping[str, Any]:
        """What the target has declared of itself that nobody else has, where it is in a process of its own."""
        return own_words(self.target)

    @property
    def surprises(self) -> list[Status]:
        """Deviations that are gone from the version on which they were seen, or whose time is over."""
        return [status for status in self.statuses if status.here and status.state != "still there"]

    @property
    def ok(self) -> bool:
        """Whether it came to its end, nothing was found that was not known, and nothing known has gone unnoticed."""
        return not self.found and not self.incomplete and not self.interrupted

    @property
    def found(self) -> bool:
        """Whether something is to be told that was not known."""
        return bool(self.findings or self.surprises or self.target.faults)

    @property
    def verdict(self) -> str:
        """refuted, interrupted, nothing tried, incomplete, too little tried, or nothing found."""
        if self.findings or self.target.faults:
            return "refuted"
        if self.interrupted:
            return "interrupted"
        if not self.cases:
            return "nothing tried"
        return "incomplete" if self.incomplete else "nothing found" if self.enough else "too little tried"

    @property
    def enough(self) -> bool:
        """Whether what needs no parameter was tried: three quarters of the properties of its own, some cases each.

        Nothing is verified of a target of which nearly everything is declared away, or that had no time.
        """
        own = self.target.kind.topics[0].name
        core = [o for o in self.outcomes.values() if o.prop.contract == own and self.target.kind.expected(self.target, o.prop)]
        tried = sum(o.cases >= o.least(self.least) or o.finding is not None for o in core)
        return not core or 4 * tried >= 3 * len(core)

    def add(self, outcome: Outcome) -> None:
        """Union with what other passes, rounds or workers found."""
        name = outcome.prop.name
        if name in self.outcomes:
            self.outcomes[name].add(outcome)
        else:
            self.outcomes[name] = outcome


def put(target: Target, properties: Sequence[Property], text_of_case: str) -> tuple[Case, Report]:
    """One case that somebody wrote, and what the properties that it can be put to say of it. Raises CannotRun, ValueError."""
    cases = written_cases(target, text_of_case)
    case = next(iter(cases.values()))
    if why := no_device(case.device):
        raise CannotRun(why)
    if case.dtype not in target.dtypes:
        raise CannotRun(f"{target.name} takes {', '.join(target.dtypes)}, not {case.dtype}")
    outcomes = [try_only(target, prop, cases.get(prop.topic.case)) for prop in properties]
    tried = {outcome.prop.name: outcome for outcome in outcomes if outcome.cases}
    if not tried:
        why = f"{properties[0].name} cannot" if len(properties) == 1 else "no property can"
        raise CannotRun(f"{why} be put to {case!r}" + f": {outcomes[0].why}" * (len(properties) == 1))
    return case, Report(target, case.device, tried)


def verify_target(
    target: Target,
    properties: Iterable[Property],
    plan: Plan,
    *,
    seconds: float | None = None,
    usual: float | None = None,
    reading: float = 0.0,
    progress: Callable[[Property, Outcome | int], None] = lambda *_: None,
    workers: Workers | None = None,
    source: Mapping[str, Any] | None = None,
    first: bool = False,
    rank: Mapping[str, int] = MappingProxyType({}),
) -> Report:
    """Search all properties, breadth first: a few cases of each before any gets more; with ``seconds``, round after round until they are over.

    ``usual``: after so many seconds nothing is drawn beyond the first cases of each. ``reading``: so many of the seconds are left to read what
    was found, once something is.

    A refuted property is not searched again, the others are; with ``first`` nothing is, once one is refuted. The properties of a low
    ``rank`` come first. ``workers`` divide each pass; they load the target again from ``source`` (``load``). What the plan's journal says
    was tried before is not tried again.
    """
    began = time.monotonic() - (plan.journal.seconds(target.name) if plan.journal else 0.0)
    report = Report(target, plan.device, least=min(FIRST_PASS, plan.examples), ends=ended(target))
    report.statuses = [look_again(d, target) for d in plan.deviations if applies(d, target, plan.device)]
    if seconds is not None:
        plan = dataclasses.replace(plan, deadline=began + seconds, late=min(plan.late, seconds / 2))
    deadline = plan.deadline
    properties = tuple(properties)
    properties = tuple(p for p in properties if same_subject(p, target)) or properties
    parts = len(plan.passes())
    number, cut, answered = 0, math.inf, ""
    while True:
        if number == 1 and usual is not None:
            deadline = min(deadline or math.inf, began + usual)
        this = dataclasses.replace(plan, round=plan.round + number // parts, part=number % parts, deadline=deadline)
        left = [p for p in properties if p.name not in report.outcomes or report.outcomes[p.name].goes_on]
        left = [] if first and target.faults else left  # that is the first finding
        left.sort(key=lambda p: rank.get(p.name, len(rank)))
        known = plan.journal.known(target, left, this) if plan.journal else {}
        new = [p for p in left if p.name not in known]
        search: Callable[[list[Property]], Generator[Outcome]] = partial(_serial, target, plan=this, progress=progress)
        ahead = math.inf if target.costly_shapes else _ahead(plan, number, time.monotonic() - began, deadline)
        if new and workers is not None and workers.wanted(ahead):
            search = partial(workers.search, source or {}, plan=this)
        # their part of the time was too short
        short = [p for p in new if number and (had := report.outcomes[p.name]).tried < had.least(report.least)]
        slices = _in_turn((short, [p for p in new if p not in short]), search)
        found: dict[str, Outcome] = {}
        try:
            for outcome in chain(known.values(), slices):
                found[outcome.prop.name] = outcome
                if plan.journal and outcome.prop.name not in known:
                    plan.journal.tried(this, outcome, time.monotonic() - began)
                progress(outcome.prop, outcome)
                if outcome.finding and deadline is not None and reading:
                    cut = deadline - reading
                if first and outcome.finding:
                    break
                if time.monotonic() > cut:
                    for prop in new:
                        found.setdefault(prop.name, Outcome(prop, target.name, not_exercised=inapplicable(target, prop, plan.dtypes)))
                    break
        except KeyboardInterrupt:  # what was found so far is worth telling
            report.interrupted = True
        slices.close()
        for prop in properties:  # in their order, whoever was done first
            if prop.name in found:
                report.add(found[prop.name])
        number += 1
        if number == 1 and not (report.interrupted or report.findings):  # not at the end, when the time may be over
            answered = answers_what_it_refuses(target, plan, properties, deadline)
        over = (seconds is None and number >= parts) or (deadline is not None and time.monotonic() > min(deadline, cut))
        if report.interrupted or over or not left or (first and report.findings):
            break
    report.rounds = number // parts
    reached = {name for name, outcome in report.outcomes.items() if outcome.tried or outcome.not_exercised}
    report.unreached = tuple(prop.name for prop in properties if prop.name not in reached)
    over = deadline is not None and time.monotonic() > deadline
    if over and usual is not None:
        report.shortened = _how_much(report, plan)
    report.incomplete = incomplete(target, report.outcomes.values(), plan.examples, over, report.ends) or answered
    report.seconds = time.monotonic() - began
    return report


def _how_much(report: Report, plan: Plan) -> str:
    """How many cases properties had, of those that they were to have; empty if they had all."""
    had = [o.tried for o in report.outcomes.values() if not (o.not_exercised or o.finding)]
    if not had or min(had) >= plan.examples:
        return ""
    each = f"{min(had)}" + f" to {max(had)}" * (max(had) > min(had))
    return f"{each} of {plan.examples} cases of each: a minute was over; --cases {plan.examples} tries all"


def _in_turn(groups: Iterable[list[Property]], search: Callable[[list[Property]], Generator[Outcome]]) -> Generator[Outcome]:
    """One group after the other, each with all of the time that is left to share."""
    for group in groups:
        if group:
            yield from search(group)


def _serial(target: Target, properties: list[Property], plan: Plan, progress: Callable[..., None]) -> Generator[Outcome]:
    for done, prop in enumerate(properties):
        yield search_pass(target, prop, _share(plan, len(properties) - done), partial(progress, prop))


def _ahead(plan: Plan, done: int, seconds: float, deadline: float | None) -> float:
    """Seconds of work that are left after so many passes, which took so long."""
    if deadline is not None:
        return deadline - time.monotonic()
    cases = sum(plan.passes()[:done])
    return seconds * (plan.examples - cases) / cases if cases else 0.0


def _share(plan: Plan, left: int) -> Plan:
    """The plan with an equal part of the time that is left, so that no slow property takes it all."""
    return plan if plan.deadline is None else dataclasses.replace(plan, seconds=max(plan.deadline - time.monotonic(), 0.0) / left)


WORTH = 20.0  # seconds of work that is left from which on it pays to start processes, each of which imports the target anew


class Workers:
    """Processes that search: ``count`` of them, from the beginning if ``always``, else once there is enough to do."""

    def __init__(self, count: int, always: bool = True) -> None:
        self.count, self.always = count, always
        self.pool: ProcessPoolExecutor | None = None

    def wanted(self, seconds: float) -> bool:
        """Whether they are to be asked, where so many seconds of work are left."""
        return self.pool is not None or self.always or (self.count > 1 and seconds > WORTH)

    def search(self, source: Mapping[str, Any], properties: list[Property], plan: Plan) -> Generator[Outcome]:
        """One pass over these properties; each outcome when it is there."""
        if self.pool is None:
            context = multiprocessing.get_context("spawn")
            kinds = tuple(map(type, contracts().values()))  # their modules are imported there, which makes them known
            self.pool = ProcessPoolExecutor(self.count, mp_context=context, initializer=obey, initargs=(kept_from_targets(), kinds))
        share = _share(plan, -(-len(properties) // self.count))
        tasks = [self.pool.submit(_slice, dict(source), prop, share) for prop in properties]
        try:
            for task in as_completed(tasks):
                yield task.result()
        except (KeyboardInterrupt, GeneratorExit):  # nobody waits for the rest
            for worker in multiprocessing.active_children():
                worker.kill()
            self.end()
            raise

    def end(self) -> None:
        """They are needed no more."""
        if self.pool is not None:
            self.pool.shutdown(cancel_futures=True)
            self.pool = None


def obey(kept: tuple[list[str], list[str]], kinds: tuple[type, ...] = ()) -> None:
    """This process ends when the one that started it says so, or has gone; an interruption is that one's business.

    It keeps from targets what that one keeps from them.
    """
    for place in kept[0]:
        hide(place)
    for place in kept[1]:
        hold(place)
    dies_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)


_LOADED: dict[str, Target] = {}


def _slice(source: dict[str, Any], prop: Property, plan: Plan) -> Outcome:
    key = repr(source)
    with redirect_stdout(sys.stderr), isolated(plan.isolate), containing(source.get("contained", NEVER)):
        # its prints are no part of the report
        if key not in _LOADED:
            _LOADED[key] = load(source, plan.device)
        return search_pass(_LOADED[key], prop, plan)


def load(source: Mapping[str, Any], device: str) -> Target:
    """The target anew: ``text`` names it, ``supports`` says what is declared of it, ``handshake`` whether its conventions are learned.

    Replay lines find it at its ``address``. Of ``dtypes`` alone cases are drawn: what was too slow once to be asked for a type may not be now.
    """
    target = find_targets(source["text"], Builtins(), source.get("supports"), device)[0]
    target = target.kind.handshake(target, device) if source.get("handshake") else target
    dtypes = tuple(dtype for dtype in target.dtypes if dtype in source.get("dtypes", target.dtypes))
    return dataclasses.replace(target, address=source.get("address", target.address), dtypes=dtypes or target.dtypes)


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
