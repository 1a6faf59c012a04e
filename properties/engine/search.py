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

from .case import Case
from .declare import Property
from .deviations import Deviation
from .domain import MASK_FACTS, allowed_sizes, cases, drawable, mask_choices
from .layer_trial import LayerTrial
from .target import Raised, Target, as_attention
from .trial import Notes, Refuted, Trial, Violation


@dataclass(frozen=True, eq=False)
class Finding:
    """A property that does not hold, on the smallest case found."""

    property: Property
    target: str
    case: Case
    violation: Violation
    first_at: int  # the case number at which it first showed
    shrink_seconds: float
    matters: tuple[str, ...] = ()  # fields of the case whose change makes the failure vanish
    indifferent: tuple[str, ...] = ()

    @property
    def raised(self) -> bool:
        """Whether the target raised, rather than answered wrongly."""
        return self.violation.says.startswith("the call raised")


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
    """How to search. ``round`` makes work divisible: the same round draws the same cases on any worker."""

    examples: int = 150
    round: int = 0
    device: str = "cpu"
    dtypes: tuple[str, ...] | None = None
    database: ExampleDatabase | None = None
    deviations: tuple[Deviation, ...] = ()
    shrink: bool = True  # look for the smallest case, and for what matters of it; otherwise the first case will do
    deadline: float | None = None  # time.monotonic() after which no more cases are drawn


def seed_of(*parts: object) -> int:
    """A seed for the search from names, the same on every machine."""
    return zlib.crc32("\0".join(map(str, parts)).encode())


def inapplicable(target: Target, prop: Property) -> str:
    """Why a property cannot be tried on a target; empty if it can."""
    if prop.contract == "multihead" and target.contract != "multihead":
        return "is about layers"
    if prop.direct and target.contract != "attention":
        return "is about the arguments of an attention"
    seen = as_attention(target) if prop.contract == "attention" else target
    facts = ("value_dim", "mask_and_causal", "returns_weights")
    missing = [name for name in prop.needs if name not in seen.parameters and name not in facts]
    if missing:
        return f"the target takes no {', '.join(missing)}"
    for fact in facts:
        if fact in prop.needs and not getattr(seen.supports, fact):
            return f"declared as not supported: {fact}"
    longest = seen.supports.max_length
    for name in ("queries", "keys"):
        table = prop.domain.get(name)
        if isinstance(table, tuple) and not allowed_sizes(table, longest=longest):
            return f"declared max_length {longest}, it needs {min(table)} {name}"
    if not drawable(seen, prop):
        return f"the target takes no {' or '.join(prop.domain['dtype'])}"
    for name in MASK_FACTS:
        if "attn_mask" in prop.needs and name in prop.domain and not mask_choices(seen, prop, name):
            return f"declared as not supported: {name.replace('_', ' ')} {prop.domain[name]}"
    return ""


def try_case(target: Target, prop: Property, case: Case, notes: Notes | None = None) -> Violation | None:
    """Put one case to one property. None if the property holds."""
    seen = as_attention(target) if prop.contract == "attention" else target
    trial = (Trial if prop.contract == "attention" else LayerTrial)(seen, case, notes)
    try:
        prop.check(trial)
    except Refuted as refuted:
        return refuted.violation
    except Raised as raised:
        hint = " (zero sizes are not supported? declare zero_sizes = false)" if has_zero_size(case) else ""
        return Violation(f"the call raised {raised}{hint}", float("nan"), float("nan"), 0.0)
    return None


def has_zero_size(case: Case) -> bool:
    """Whether some dimension of the case is 0."""
    return 0 in (case.batch, case.kv_heads, case.queries, case.keys, case.dim, case.width)


def search(target: Target, prop: Property, plan: Plan, tick: Callable[[int], None] = lambda _: None) -> Outcome:
    """Try to refute one property of one target, within the plan."""
    outcome = Outcome(prop, target.name)
    outcome.not_exercised = inapplicable(target, prop)
    if outcome.not_exercised:
        return outcome
    seen = as_attention(target) if prop.contract == "attention" else target
    known = tuple(d for d in plan.deviations if d.concerns(target.name, prop.name))
    began = time.monotonic()
    first: list[float] = []  # [number of the first failing case, when]
    last: list[Case] = []  # [the last failing case]

    def refutes(case: Case) -> bool:
        if any(d.matches(case) for d in known):
            outcome.set_aside += 1
            return False
        if not first:
            if plan.deadline is not None and time.monotonic() > plan.deadline:
                return False
            outcome.cases += 1
            outcome.features.update(features(case))
            tick(outcome.cases)
        violation = try_case(seen, prop, case, outcome.notes if not first else None)
        if violation and not first:
            first.extend((outcome.cases, time.monotonic()))
        if violation:
            last[:] = [case]
        return violation is not None

    try:
        smallest = find(
            cases(seen, prop, plan.device, plan.dtypes),
            refutes,
            settings=settings(
                max_examples=plan.examples,
                database=plan.database,
                deadline=None,
                derandomize=False,
                suppress_health_check=list(HealthCheck),
                phases=[Phase.reuse, Phase.generate, *([Phase.shrink] if plan.shrink else [])],
            ),
            random=Random(seed_of(prop.name, target.name, plan.round)),
            database_key=f"attncheck\0{prop.name}\0{target.name}".encode(),
        )
    except NoSuchExample:
        pass
    except Flaky:
        outcome.finding = diagnose(target, prop, last[0], int(first[0]), time.monotonic() - first[1])
    else:
        outcome.finding = diagnose(target, prop, smallest, int(first[0]), time.monotonic() - first[1], plan.shrink)
    outcome.seconds = time.monotonic() - began
    return outcome


def diagnose(
    target: Target, prop: Property, case: Case, first_at: int, seconds: float, thorough: bool = True
) -> Finding:
    """The finding of a smallest case: what is wrong on it, and, if thorough, which of its fields matter."""
    violation = try_case(target, prop, case)
    if violation is None:  # failed while searching, holds now
        violation = Violation(
            "the failure does not repeat: the same call gave different answers", float("nan"), float("nan"), 0.0
        )
        return Finding(prop, target.name, case, violation, first_at, seconds)
    matters, indifferent = relevance(target, prop, case) if thorough else ((), ())
    return Finding(prop, target.name, case, violation, first_at, seconds, matters, indifferent)


ALTERNATIVES: dict[str, tuple[object, ...]] = {
    "batch": (2, 3),
    "kv_heads": (2, 3),
    "group": (1, 2),
    "queries": (1, 2, 5, 17),
    "keys": (1, 2, 5, 17),
    "dim": (1, 3, 4, 8),
    "dtype": ("float64", "float32"),
    "is_causal": (False, True),
    "scale": (None, 0.5, 1.0),
    "mask": ("none", "random", "everything"),
    "mask_kind": ("bool", "minus_infinity"),
    "mask_axes": ("LS", "BHLS"),
    "values": ("normal", "simple", "one_hot"),
    "layout": ("contiguous", "transposed"),
    "seed": (1, 2, 3),
}


def relevance(target: Target, prop: Property, case: Case) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Which fields matter: those of which some other value makes the failure vanish."""
    seen = as_attention(target) if prop.contract == "attention" else target
    fixed = {name for name, value in prop.domain.items() if not isinstance(value, tuple)}
    matters: list[str] = []
    indifferent: list[str] = []
    for name, values in ALTERNATIVES.items():
        if name in fixed or not _can_vary(name, seen, case):
            continue
        about = prop.domain.get(name)
        values = tuple(value for value in values if value in about) if isinstance(about, tuple) else values
        values = tuple(value for value in values if value != "none") if "attn_mask" in prop.needs else values
        changed = [dataclasses.replace(case, **{name: value}) for value in values if value != getattr(case, name)]
        changed = [c for c in changed if c.dtype in seen.dtypes]
        if not changed:
            continue
        if all(try_case(seen, prop, c) is not None for c in changed):
            indifferent.append(name)
        elif name in case.differing():
            matters.append(name)
    return tuple(matters), tuple(indifferent)


def _can_vary(name: str, target: Target, case: Case) -> bool:
    if name in ("mask_kind", "mask_axes") and case.mask == "none":
        return False
    if name == "mask" and (case.mask == "none" or (case.is_causal and not target.supports.mask_and_causal)):
        return False
    if name == "dim" and target.supports.head_dims:
        return False
    parameter = {"group": "enable_gqa", "mask": "attn_mask", "mask_kind": "attn_mask", "mask_axes": "attn_mask"}
    return name not in ("is_causal", "scale", *parameter) or parameter.get(name, name) in target.parameters


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
    if case.layout != "contiguous":
        yield f"layout {case.layout}"
    if case.values != "normal":
        yield f"values {case.values}"
    if has_zero_size(case):
        yield "zero size"
