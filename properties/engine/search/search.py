"""The search for a case that refutes a property: Hypothesis draws and shrinks, we count and keep what it saw."""

from __future__ import annotations

import dataclasses
import time
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

from hypothesis import HealthCheck, Phase, find, settings
from hypothesis.database import ExampleDatabase
from hypothesis.errors import Flaky, NoSuchExample

from ..cases.case import Case
from ..cases.draws import Strategy, either, independent, narrowing, without_constants
from ..cases.dtypes import DTYPES
from ..cases.forms import Form, forms
from ..contained.link import exhausted
from ..core.attempt import attempt, blamed, subject
from ..core.contract import FACTS, contracts, known_capabilities
from ..core.declare import Property
from ..core.finding import Finding
from ..core.pace import late_from
from ..core.target import Target
from ..core.trial import Notes, Violation
from ..frameworks import LAYOUTS, has_layout
from ..frameworks.machine import machine
from . import interrupt
from .alike import fails_alike
from .deviations import Deviation
from .diagnosis import diagnose
from .ranges import Ranges
from .saved import Saved

if TYPE_CHECKING:
    from .journal import Journal

FIRST_PASS, GROWTH = 4, 3  # cases of every property before any gets more; then three times as many, and so on
ONCE = 2  # cases of a property that is asked once
FAILING_KEPT = 6  # failing cases, the first found, that the reading of a failure looks at beside the smallest
SHRINKS = 400  # cases that shrinking tries at most; of the seed it tries 0 alone, since one is no simpler than another
SHRINK_KILLED = 5.0  # seconds for which a case that kills is made smaller
SHRINK_LATE = 30.0  # and any, when the time of the run is over; half of that time, if it is less
RIGHT_KEPT = 6  # cases that hold, the first drawn, and as many that shrinking has tried


@dataclass(frozen=True)
class Edge:
    """A case at an edge on which a property does not hold: told, and no reason to fail unless one is strict."""

    case: Case
    violation: Violation


@dataclass
class Outcome:
    """What became of one property on one target."""

    prop: Property
    target: str
    cases: int = 0
    set_aside: int = 0  # cases that match a known deviation
    seconds: float = 0.0
    not_exercised: str = ""  # why no case can be drawn
    finding: Finding | None = None
    right: list[Case] = field(default_factory=list)  # some of the cases on which it holds
    notes: Notes = field(default_factory=Notes)
    features: Counter[str] = field(default_factory=Counter)
    ranges: Ranges = field(default_factory=Ranges)
    edges: dict[str, Edge] = field(default_factory=dict)  # where it does not hold, but nobody who passes usual arguments is

    @property
    def status(self) -> str:
        """passed, refuted or not exercised."""
        if self.finding:
            return "refuted"
        return "not exercised" if self.not_exercised or not self.cases else "passed"

    @property
    def why(self) -> str:
        """Why it was not exercised; empty if it was."""
        if self.not_exercised or self.cases:
            return self.not_exercised
        if self.set_aside:
            return "every case is a known deviation"
        return f"it comes to {', '.join(self.notes.not_taken)}" if self.notes.not_taken else "no time was left"

    @property
    def tried(self) -> int:
        """Cases, those that match a known deviation and those that come to calls which are not taken included."""
        return self.cases + self.set_aside + sum(self.notes.not_taken.values())

    def least(self, usual: int) -> int:
        """Of how many cases it must have been tried for it to count, where others need so many."""
        return min(usual, ONCE) if self.prop.once else usual

    @property
    def goes_on(self) -> bool:
        """Whether another pass may find something."""
        return self.finding is None and not self.not_exercised and not (self.prop.once and self.tried)

    def add(self, later: Outcome) -> None:
        """What another pass, round or worker found of the same property."""
        self.finding = self.finding or (later.finding and dataclasses.replace(later.finding, first_at=self.cases + later.finding.first_at))
        self.cases += later.cases
        self.set_aside += later.set_aside
        self.seconds += later.seconds
        self.features.update(later.features)
        self.ranges.merge(later.ranges)
        self.notes.merge(later.notes)
        self.right += later.right[: max(0, 2 * RIGHT_KEPT - len(self.right))]
        self.edges = later.edges | self.edges


@dataclass(frozen=True)
class Plan:
    """How to search. ``round`` makes work divisible: each round draws its own cases, a round the same ones on any worker."""

    examples: int = 150
    round: int = 0
    device: str = "cpu"
    dtypes: tuple[str, ...] | None = None
    database: ExampleDatabase | None = None
    again: bool = True  # failing cases that are kept there are tried first
    deviations: tuple[Deviation, ...] = ()
    shrink: bool = True  # look for the smallest case, and for what matters of it; otherwise the first case will do
    isolate: bool = False  # workers: every case is tried in a process of its own first
    deadline: float | None = None  # time.monotonic() after which no more cases are drawn
    seconds: float | None = None  # how long cases are drawn at most, from the beginning of the search
    strict: bool = True  # what is wrong at an edge alone is a finding, too
    part: int = 0  # the pass that ``search_pass`` makes
    journal: Journal | None = None  # where what is tried and found is written down
    alike: bool = False  # every target has the same cases, whatever its name
    late: float = SHRINK_LATE  # seconds after the deadline in which a case is still made smaller

    def passes(self) -> list[int]:
        """How many cases each pass draws: all properties get a few before any gets more. Every pass draws its own cases."""
        sizes, size, left = [], FIRST_PASS, self.examples
        while left:
            sizes.append(min(size, left))
            left, size = left - sizes[-1], size * GROWTH
        return sizes


def seed_of(*parts: object) -> int:
    """A seed for the search from names, the same on every machine."""
    return zlib.crc32("\0".join(map(str, parts)).encode(errors="surrogateescape"))


def concerns(prop: Property, target: Target) -> bool:
    """Whether a property is about what a target is: the attention inside a layer is an attention."""
    return prop.contract in (topic.name for topic in target.kind.topics)


def same_subject(prop: Property, target: Target) -> bool:
    """Whether a report on a target should mention a property at all: a cache and a pack have nothing in common."""
    return concerns(prop, target) or prop.contract in target.kind.mentions


def inapplicable(target: Target, prop: Property, dtypes: tuple[str, ...] | None = None) -> str:
    """Why a property cannot be tried on a target, in these dtypes if any are given; empty if it can."""
    if not concerns(prop, target):
        return f"is about {prop.topic.subject}"
    view = subject(target, prop)
    if prop.direct and view is not target:
        return f"is about the arguments of an {view.contract}"
    missing = [name for name in prop.needs if name not in (*view.parameters, *FACTS, "layouts", *known_capabilities())]
    if missing:
        return f"the target takes no {', '.join(missing)}"
    if "layouts" in prop.needs and view.framework.layouts == LAYOUTS[:1]:
        return f"arrays of {view.framework.name} lie in memory in one way"
    if "layouts" in prop.needs and view.supports.memory == LAYOUTS[:1]:
        return "declared as not supported: arrays that are not contiguous"
    for fact in FACTS:
        if fact in prop.needs and not getattr(view.supports, fact):
            return f"declared as not supported: {fact}"
    for capability in sorted(set(prop.needs) & known_capabilities(), key=prop.needs.index):
        if capability not in target.kind.capabilities:
            return f"{capability.replace('_', ' ')} are asked of {_having(capability)}, not of {target.contract}"
        if why := target.kind.lacks(target, capability):
            return why
    if dtypes and not set(dtypes) & set(target.dtypes):
        return f"the target takes no {' or '.join(dtypes)}"
    return view.kind.refused(view, prop, dtypes)


def _having(capability: str) -> str:
    return " and ".join(kind.topics[0].subject for kind in contracts().values() if capability in kind.capabilities)


def cases(target: Target, prop: Property, device: str = "cpu", dtypes: tuple[str, ...] | None = None) -> Strategy:
    """Cases for one property of one target. What the target does not support is not drawn."""
    return target.kind.cases(target, prop, device, dtypes)


def outside(target: Target, prop: Property, case: Case) -> str:
    """Why a property is not put to a case, which somebody wrote; empty if it can be."""
    return target.kind.outside(target, prop, case)


def drawn(target: Target, prop: Property, plan: Plan) -> Strategy:
    """The cases of a property, in layouts that there are; a few forms of them, kept for the round, where every new one costs."""
    fw = target.framework

    def able(table: Sequence[str]) -> Sequence[str]:
        return [layout for layout in table if has_layout(fw, layout)] or table[:1]

    def of(form: Form) -> Strategy:
        with narrowing(form if fw.layouts == LAYOUTS else {**form, "layout": able, "grad_layout": able}):
            return cases(target, prop, plan.device, plan.dtypes)

    if not target.costly_shapes:
        return of({})
    return independent(either([of(form) for form in forms(seed_of("forms", plan.round))]))


class TimeIsOver(BaseException):
    """Ends a search; no Exception, which Hypothesis would take for a failing case."""


def search(target: Target, prop: Property, plan: Plan, tick: Callable[[int], None] = lambda _: None) -> Outcome:
    """Try to refute one property of one target, within the plan: all passes, one after the other."""
    began = time.monotonic()
    whole = search_pass(target, prop, plan, tick)
    for part in range(1, len(plan.passes())):
        left = None if plan.seconds is None else plan.seconds - (time.monotonic() - began)
        if not whole.goes_on or (left is not None and left <= 0):
            break
        whole.add(search_pass(target, prop, dataclasses.replace(plan, part=part, seconds=left), tick))
    return whole


@without_constants()
def search_pass(target: Target, prop: Property, plan: Plan, tick: Callable[[int], None] = lambda _: None) -> Outcome:
    """One pass: what it draws depends on the names, the round and the number of the pass alone, so that any worker may make it."""
    outcome = Outcome(prop, target.name)
    outcome.not_exercised = inapplicable(target, prop, plan.dtypes)
    if outcome.not_exercised:
        return outcome
    view = subject(target, prop)
    if exhausted():
        outcome.not_exercised = "the target hangs, and the time to wait for it is over"
        return outcome
    shrinks = plan.shrink and not prop.once
    known = tuple(d for d in plan.deviations if d.concerns(target.name, prop.name) and d.found_on(machine(target.framework, plan.device)))
    began = time.monotonic()
    ends = (plan.deadline, None if plan.seconds is None else began + plan.seconds)
    deadline = min((end for end in ends if end is not None), default=None)
    first: list[float] = []  # [number of the first failing case, when]
    failing: list[Case] = []
    shrunk = [0]  # cases that shrinking has tried
    killed: dict[Case, Violation] = {}  # cases from which the target's process did not come back
    simplest = [plan.part > 0]  # the first case that is drawn is always the simplest, which the first pass has tried

    def refutes(case: Case) -> bool:
        interrupt.check()
        if killed and time.monotonic() > first[1] + SHRINK_KILLED:  # every such case costs a process, or a wait
            return case in killed
        if simplest and simplest.pop():
            return False
        if failing and plan.deadline is not None and time.monotonic() > plan.deadline + plan.late:
            return case in failing
        if failing and (case.seed not in (0, failing[0].seed) or shrunk[0] > SHRINKS):
            return case in failing
        shared = [d for d in known if d.matches(case)]
        if any(not d.like for d in shared):
            outcome.set_aside += 1
            return False
        if not first:
            if deadline is not None and time.monotonic() > deadline:
                raise TimeIsOver
            tick(outcome.cases + 1)
        shrunk[0] += bool(failing)
        with late_from(plan.deadline if plan.deadline is None else plan.deadline + plan.late * bool(failing)):
            violation, trial = attempt(view, prop, case, outcome.notes if not (first or shared) else None)
        if trial.not_taken:
            return False
        if violation and any(fails_alike(d, prop, case, violation, plan.device) for d in shared):
            outcome.set_aside += not first
            return False
        if not first:
            outcome.cases += 1
            outcome.features.update(view.kind.features(view, case))
            outcome.ranges.note(case, target.kind.fields(target))
        if violation and not violation.killed and not plan.strict and (edge := view.kind.edge(prop, case, violation, trial)):
            outcome.edges.setdefault(edge, Edge(case, violation))
            return False
        if violation and not violation.killed and (fault := blamed(view, prop, case)):
            outcome.notes.blamed[fault] += not first
            return False
        if violation and not first:
            first.extend((outcome.cases, time.monotonic()))
            if plan.journal:
                plan.journal.failing(target.name, prop, case, violation)
        if violation and violation.killed:
            killed[case] = violation
        if violation:
            failing.append(case)
        elif len(outcome.right) < RIGHT_KEPT * (2 if first else 1) and not case.empty:
            outcome.right.append(case)
        return violation is not None

    def wanted(case: Case) -> bool:
        late = deadline is not None and time.monotonic() > deadline
        return not late and case.dtype in (plan.dtypes or DTYPES) and not any(d.matches(case) for d in known if not d.like)

    saved = Saved(plan.database, view, prop)
    try:
        smallest = (saved.first(wanted, refutes) if plan.again and not plan.part else None) or find(
            drawn(view, prop, plan),
            refutes,
            settings=settings(
                max_examples=min(plan.passes()[plan.part], ONCE if prop.once else plan.examples) + (plan.part > 0),
                database=None,  # a seeded search has none, whatever is asked for: we keep the cases ourselves
                deadline=None,
                derandomize=False,
                suppress_health_check=list(HealthCheck),
                phases=[Phase.generate, *([Phase.shrink] if shrinks else [])],
            ),
            random=Random(seed_of(prop.name, "" if plan.alike else target.name, plan.round, *([plan.part] if plan.part else []))),
        )
    except (NoSuchExample, TimeIsOver):
        pass
    except Flaky:
        if failing:
            outcome.finding = diagnose(
                target, prop, failing[-1], int(first[0]), time.monotonic() - first[1], killed=killed.get(failing[-1])
            )
        else:
            outcome.not_exercised = "what was drawn could not be drawn again"
    else:
        saved.keep(smallest)
        outcome.finding = diagnose(target, prop, smallest, int(first[0]), time.monotonic() - first[1], shrinks, killed.get(smallest))
    if outcome.finding:
        outcome.finding = dataclasses.replace(outcome.finding, failing=tuple(dict.fromkeys(failing))[:FAILING_KEPT])
    outcome.seconds = time.monotonic() - began
    return outcome


def written_cases(target: Target, text: str) -> dict[type[Case], Case]:
    """A case that a replay line has or somebody wrote, for each topic of the target that has such cases.

    Raises ValueError with one sentence if it is a case of none.
    """
    kinds = dict.fromkeys(topic.case for topic in target.kind.topics)
    found: dict[type[Case], Case] = {}
    errors: list[ValueError] = []
    for kind in kinds:
        try:
            found[kind] = kind.parse(text)
        except ValueError as error:
            errors.append(error)
    if not found:
        raise errors[0]
    return found


def try_only(target: Target, prop: Property, case: Case | None) -> Outcome:
    """A single case that somebody wrote, if the property can be put to it. None: it is no case of the property's topic."""
    outcome = Outcome(prop, target.name)
    view = subject(target, prop)
    outcome.not_exercised = inapplicable(target, prop) or ("it is about other cases" if case is None else outside(view, prop, case))
    if case is not None and not outcome.not_exercised:
        violation, trial = attempt(target, prop, case, outcome.notes)
        outcome.cases = int(not trial.not_taken)
        outcome.finding = diagnose(target, prop, case, 1, 0.0) if violation else None
    return outcome
