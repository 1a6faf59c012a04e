"""The search for a case that refutes a property: Hypothesis draws and shrinks, we count and keep what it saw."""

from __future__ import annotations

import dataclasses
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random

from hypothesis import HealthCheck, Phase, find, settings
from hypothesis.database import ExampleDatabase
from hypothesis.errors import Flaky, NoSuchExample

from . import interrupt
from .attempt import has_zero_size, try_case
from .case import Case
from .declare import Property
from .deviations import Deviation
from .diagnosis import Finding, diagnose
from .domain import MASK_FACTS, allowed_sizes, cases, drawable, mask_choices, outside, sayable
from .dtypes import DTYPES
from .families import APART, FAMILIES, SUBJECTS
from .gradients import CAPABILITIES, refusal
from .layer_target import subject
from .saved import Saved
from .target import Target
from .trial import Notes

FAILING_KEPT = 6  # failing cases, the first found, that the reading of a failure looks at beside the smallest
RIGHT_KEPT = 6  # cases that hold, the first drawn, and as many that shrinking has tried


@dataclass
class Outcome:
    """What became of one property on one target."""

    property: Property
    target: str
    cases: int = 0
    set_aside: int = 0  # cases that match a known deviation
    seconds: float = 0.0
    not_exercised: str = ""  # why no case was drawn
    finding: Finding | None = None
    right: list[Case] = field(default_factory=list)  # some of the cases on which it holds
    notes: Notes = field(default_factory=Notes)
    features: Counter[str] = field(default_factory=Counter)

    @property
    def status(self) -> str:
        """passed, refuted or not exercised."""
        if self.finding:
            return "refuted"
        return "not exercised" if self.not_exercised or not self.cases else "passed"


@dataclass(frozen=True)
class Plan:
    """How to search. ``round`` makes work divisible: each round draws its own cases, a round the same ones on any worker."""

    examples: int = 150
    round: int = 0
    device: str = "cpu"
    dtypes: tuple[str, ...] | None = None
    database: ExampleDatabase | None = None
    deviations: tuple[Deviation, ...] = ()
    shrink: bool = True  # look for the smallest case, and for what matters of it; otherwise the first case will do
    isolate: bool = False  # workers: every case is tried in a process of its own first
    deadline: float | None = None  # time.monotonic() after which no more cases are drawn
    seconds: float | None = None  # how long cases are drawn at most, from the beginning of the search


def seed_of(*parts: object) -> int:
    """A seed for the search from names, the same on every machine."""
    return zlib.crc32("\0".join(map(str, parts)).encode())


def concerns(prop: Property, target: Target) -> bool:
    """Whether a property is about what a target is: the attention inside a layer is an attention."""
    family = FAMILIES.get(target.contract)
    return prop.contract in (target.contract, family.name if family else "attention")


def same_subject(prop: Property, target: Target) -> bool:
    """Whether a report on a target should mention a property at all: attention and what is apart have nothing in common."""
    return concerns(prop, target) if target.contract in FAMILIES else prop.contract not in APART


def inapplicable(target: Target, prop: Property, dtypes: tuple[str, ...] | None = None) -> str:
    """Why a property cannot be tried on a target, in these dtypes if any are given; empty if it can."""
    if not concerns(prop, target):
        return f"is about {SUBJECTS.get(prop.contract, prop.contract.replace('_', ' '))}"
    if prop.direct and target.contract != "attention":
        return "is about the arguments of an attention"
    seen = subject(target, prop)
    facts = ("value_dim", "mask_and_causal", "returns_weights", "zero_sizes")
    missing = [name for name in prop.needs if name not in (*seen.parameters, *facts, *CAPABILITIES)]
    if missing:
        return f"the target takes no {', '.join(missing)}"
    for fact in facts:
        if fact in prop.needs and not getattr(seen.supports, fact):
            return f"declared as not supported: {fact}"
    for capability in CAPABILITIES:
        if capability in prop.needs and (why := refusal(target, capability)):
            return why
    if dtypes and not set(dtypes) & set(target.dtypes):
        return f"the target takes no {' or '.join(dtypes)}"
    longest = seen.supports.max_length
    if target.contract in FAMILIES:
        return FAMILIES[target.contract].refused(target, prop, dtypes)
    for name in ("queries", "keys"):
        table = prop.domain.get(name)
        if isinstance(table, tuple) and not allowed_sizes(table, longest=longest):
            return f"declared max_length {longest}, it needs {min(table)} {name}"
    about = prop.domain.get("dtype", DTYPES)
    if not set(seen.dtypes) & set(about):
        return f"the target takes no {' or '.join(about)}"
    if not drawable(seen, prop):
        return "does not hold exactly in the declared arithmetic"
    if dtypes and not set(dtypes) & set(drawable(seen, prop)):
        return f"is about {' or '.join(drawable(seen, prop))}"
    for name in MASK_FACTS:
        if "attn_mask" in prop.needs and name in prop.domain and not mask_choices(seen, prop, name):
            return f"declared as not supported: {name.replace('_', ' ')} {prop.domain[name]}"
    if unknown := [kind for kind in prop.domain.get("writes", ()) if kind not in seen.supports.mask_kinds]:
        return f"declared as not supported: mask kind {', '.join(unknown)}"
    if {"along", "widens"} & set(prop.domain) and not sayable(seen, prop):
        return f"declared as not supported: masks along {prop.domain.get('along', 'more axes than some')}"
    return ""


class TimeIsOver(BaseException):
    """Ends a search; no Exception, which Hypothesis would take for a failing case."""


def search(target: Target, prop: Property, plan: Plan, tick: Callable[[int], None] = lambda _: None) -> Outcome:
    """Try to refute one property of one target, within the plan."""
    outcome = Outcome(prop, target.name)
    outcome.not_exercised = inapplicable(target, prop, plan.dtypes)
    if outcome.not_exercised:
        return outcome
    seen = subject(target, prop)
    known = tuple(d for d in plan.deviations if d.concerns(target.name, prop.name))
    began = time.monotonic()
    ends = (plan.deadline, None if plan.seconds is None else began + plan.seconds)
    deadline = min((end for end in ends if end is not None), default=None)
    first: list[float] = []  # [number of the first failing case, when]
    failing: list[Case] = []

    def refutes(case: Case) -> bool:
        interrupt.check()
        if any(d.matches(case) for d in known):
            outcome.set_aside += 1
            return False
        if not first:
            if deadline is not None and time.monotonic() > deadline:
                raise TimeIsOver
            outcome.cases += 1
            outcome.features.update(exercised(seen, case))
            tick(outcome.cases)
        violation = try_case(seen, prop, case, outcome.notes if not first else None)
        if violation and not first:
            first.extend((outcome.cases, time.monotonic()))
        if violation:
            failing.append(case)
        elif len(outcome.right) < RIGHT_KEPT * (2 if first else 1) and not has_zero_size(case):
            outcome.right.append(case)
        return violation is not None

    def wanted(case: Case) -> bool:
        late = deadline is not None and time.monotonic() > deadline
        return not late and case.dtype in (plan.dtypes or DTYPES) and not any(d.matches(case) for d in known)

    saved = Saved(plan.database, seen, prop)
    try:
        smallest = saved.first(wanted, refutes) or find(
            cases(seen, prop, plan.device, plan.dtypes),
            refutes,
            settings=settings(
                max_examples=plan.examples,
                database=None,  # a seeded search has none, whatever is asked for: we keep the cases ourselves
                deadline=None,
                derandomize=False,
                suppress_health_check=list(HealthCheck),
                phases=[Phase.generate, *([Phase.shrink] if plan.shrink else [])],
            ),
            random=Random(seed_of(prop.name, target.name, plan.round)),
        )
    except (NoSuchExample, TimeIsOver):
        pass
    except Flaky:
        outcome.finding = diagnose(target, prop, failing[-1], int(first[0]), time.monotonic() - first[1])
    else:
        saved.keep(smallest)
        outcome.finding = diagnose(target, prop, smallest, int(first[0]), time.monotonic() - first[1], plan.shrink)
    if outcome.finding:
        outcome.finding = dataclasses.replace(outcome.finding, failing=tuple(dict.fromkeys(failing))[:FAILING_KEPT])
    outcome.seconds = time.monotonic() - began
    return outcome


def exercised(target: Target, case: Case) -> Iterable[str]:
    """What a case exercises of what a target is, in the words of the report."""
    return FAMILIES[target.contract].features(target, case) if target.contract in FAMILIES else features(case)


def try_only(target: Target, prop: Property, case: Case) -> Outcome:
    """A single case that somebody wrote, if the property can be put to it."""
    outcome = Outcome(prop, target.name)
    seen = subject(target, prop)
    outcome.not_exercised = inapplicable(target, prop) or outside(seen, prop, case)
    if not outcome.not_exercised:
        outcome.cases = 1
        outcome.finding = diagnose(target, prop, case, 1, 0.0) if try_case(target, prop, case) else None
    return outcome


def features(case: Case) -> Iterable[str]:
    """What a case exercises, in the words of the report."""
    yield case.dtype
    if case.mask != "none":
        yield f"mask {case.mask}"
        yield f"{case.mask_kind} mask"
        yield f"mask rank {case.mask_rank}"
        if case.is_causal:
            yield "mask and causal"
    if case.is_causal:
        yield "causal"
    if case.group > 1:
        yield "grouped heads"
    if case.scale is not None:
        yield "explicit scale"
    if case.queries != case.keys:
        yield "L > S" if case.queries > case.keys else "L < S"
    if case.width != case.dim:
        yield "Dv != D"
    for name in ("softcap", "alibi", "sinks", "lengths"):
        if getattr(case, name):
            yield name
    if case.window_left is not None or case.window_right is not None:
        yield "window"
    if case.layout != "contiguous":
        yield f"layout {case.layout}"
    if case.grad_layout != "contiguous":
        yield f"gradient {case.grad_layout}"
    if case.values != "normal":
        yield f"values {case.values}"
    if has_zero_size(case):
        yield "zero size"
