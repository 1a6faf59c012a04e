"""One property of one target as a callable without arguments: what pytest and a user's own tests run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ... import catalogue
from ..cases.dtypes import DTYPES
from ..contained.link import exhausted
from ..core.contract import contracts
from ..core.declare import Property
from ..core.supports import Supports
from ..core.target import CannotRun, Target
from ..explain.explain import explain, reading_time
from ..explain.suspects import known_mistakes
from ..report import dialect, text
from ..search.deviations import Deviation
from ..search.floor import ended, too_little
from ..search.own_words import answers_what_it_refuses
from ..search.pairs import make_pair, pair_properties
from ..search.run import Report, applies, look_again, verify_target
from ..search.search import Plan, inapplicable, search, try_only, written_cases
from . import notebook
from .asked import Asked, spoken_with, target_of
from .known import known_of


@dataclass(frozen=True, eq=False)
class Check:
    """Calling it searches, and raises AssertionError with the whole finding if the property is refuted."""

    target: Target
    prop: Property
    plan: Plan = field(default_factory=Plan)

    @property
    def id(self) -> str:
        """The name of the check, made of names alone."""
        return f"{self.target.name}-{self.prop.name}"

    @property
    def inapplicable(self) -> str:
        """Why it cannot be run; empty if it can."""
        return inapplicable(self.target, self.prop)

    def __call__(self) -> None:
        __tracebackhide__ = True
        report = Report(self.target, self.plan.device)
        outcome = search(self.target, self.prop, self.plan)
        report.add(outcome)
        if report.findings:
            explain(report, known_mistakes())
            raise AssertionError("\n" + text.findings_text(report, self.plan.examples))
        if exhausted() and not outcome.cases:
            raise AssertionError(f"{self.prop.name} was not tried: {outcome.why}")

    def __repr__(self) -> str:
        return f"Check({self.id})"


@dataclass(frozen=True, eq=False)
class ConventionsCheck:
    """Calling it raises AssertionError if a convention of the target is other than documented for its names, or if it leaves too little to try.

    ``ends``: what ended its processes when it was asked what it takes.
    """

    target: Target
    ends: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """The name of the check, made of names alone."""
        return f"{self.target.name}-conventions"

    def __call__(self) -> None:
        __tracebackhide__ = True
        if self.target.faults:
            raise AssertionError("\n" + "\n".join(dialect.wrong_lines(self.target)))
        why = too_little(self.target, self.ends)
        if not why and self.target.left:
            why = answers_what_it_refuses(self.target, Plan(deviations=known_of(self.target)), catalogue.PROPERTIES.values())
        if why:
            raise AssertionError(f"too little of {self.target.name} can be tried: {why}")

    def __repr__(self) -> str:
        return f"ConventionsCheck({self.target.name})"


def fits(
    target: Target,
    dtype: str,
    *,
    about: str = "",
    needs: tuple[str, ...] = (),
    dtypes: tuple[str, ...] = DTYPES,
    mask_kinds: tuple[str, ...] = (),
    length: int = 1,
    dim: int | None = None,
) -> bool:
    """Whether a worked example that needs all this can be put to a target: the marker ``example`` of a test.

    ``about`` is the topic of the example; without one it is put to attentions, also to those inside a layer.
    """
    topic = about or next(kind.name for kind in contracts().values() if kind.fallback)
    if topic not in (known.name for known in target.kind.topics):
        return False
    view = target.kind.view(target, topic)
    facts = view.supports
    return (
        dtype in dtypes
        and dtype in target.dtypes
        and all(name in view.parameters or getattr(facts, name, False) for name in needs)
        and ("attn_mask" not in needs or set(mask_kinds) <= set(facts.mask_kinds))
        and (facts.max_length is None or length <= facts.max_length)
        and (not facts.head_dims or dim is None or dim in facts.head_dims)
    )


@dataclass(frozen=True, eq=False)
class DeviationCheck:
    """Calling it raises AssertionError if a known deviation is gone from the version on which it was seen."""

    target: Target
    deviation: Deviation

    def __call__(self) -> None:
        __tracebackhide__ = True
        status = look_again(self.deviation, self.target)
        if status.here and status.state != "still there":
            raise AssertionError("\n" + text.status_text(status))

    def __repr__(self) -> str:
        return f"DeviationCheck({self.target.name}, {self.deviation.case!r})"


def checks(
    targets: list[Target], plan: Plan, properties: tuple[Property, ...] | None = None, conventions: bool = True
) -> list[Check | ConventionsCheck]:
    """Every property that applies to every target; of those that were asked for their ``conventions`` these, too.

    Of a target beside a reference: that both answer alike, and nothing else.
    """
    alone = [target for target in targets if target.like is None]
    made: list[Check | ConventionsCheck] = [ConventionsCheck(target, ended(target)) for target in alone if conventions]
    asked = {id(target): properties or catalogue.select() if target.like is None else pair_properties(target) for target in targets}
    every = (Check(target, prop, plan) for target in targets for prop in asked[id(target)])
    return made + [check for check in every if not check.inapplicable]


def deviation_checks(targets: list[Target], deviations: tuple[Deviation, ...], device: str) -> list[DeviationCheck]:
    """Every known deviation of every target."""
    return [DeviationCheck(t, d) for t in targets for d in deviations if applies(d, t, device)]


def parametrize_with_properties(
    attentions: Mapping[str, Asked],
    *,
    properties: tuple[str | Property, ...] = (),
    cases: int = 150,
    supports: Supports | Mapping[str, Any] | None = None,
    strict: bool = False,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """For a user's own test file: one test for every property of every attention, and one for its conventions.

        @parametrize_with_properties({"mine": attention})
        def test_mine(check):
            check()

    An attention is a callable, or a text, as for ``verify``; ``properties`` are names, globs or themes (default: all that apply); ``strict`` as
    for ``verify``. Raises CannotRun with one sentence if an attention cannot be called, ValueError for a property that does not exist.
    """
    import pytest

    targets = [target_of(asked, supports, name=name) for name, asked in attentions.items()]
    targets = [spoken_with(target, strict=strict) for target in targets]
    known = () if strict else tuple(deviation for target in targets for deviation in known_of(target))
    made = checks(targets, Plan(examples=cases, strict=strict, deviations=known), chosen(properties))
    return pytest.mark.parametrize("check", [pytest.param(check, id=check.id) for check in made])


def chosen(properties: tuple[str | Property, ...]) -> tuple[Property, ...]:
    """Properties of names, globs and themes, and those that are given themselves; all by default. Raises ValueError for an unknown name."""
    own = tuple(prop for prop in properties if isinstance(prop, Property))
    names = tuple(name for name in properties if isinstance(name, str))
    return own + (catalogue.select(names) if names or not own else ())


def check_attention(attention: Asked, *, properties: tuple[str | Property, ...] = (), **how: Any) -> None:
    """``verify`` as an assertion, for one line in a test: raises AssertionError with the findings.

    Takes what ``verify`` takes. It raises AssertionError, too, where all properties were asked for and too little could be tried, and
    CannotRun where nothing could.
    """
    __tracebackhide__ = True
    verdict = verify(attention, properties=properties, **how)
    if not verdict.report.cases and verdict.ok:
        raise CannotRun("nothing was tried: no property that was asked for applies")
    if not verdict.ok or not (verdict.report.enough or properties or how.get("case")):
        raise AssertionError(f"\n{verdict!r}")


def verify(
    attention: Asked,
    *,
    name: str | None = None,
    properties: tuple[str | Property, ...] = (),
    cases: int = 150,
    seconds: float | None = None,
    device: str = "cpu",
    supports: Supports | Mapping[str, Any] | None = None,
    case: str | None = None,
    strict: bool = False,
) -> Verdict:
    """Check an attention from Python, or in a notebook. The verdict prints itself; ``.ok`` and ``.findings`` hold it.

    A callable is called in this process, which it could end or change; a text, ``"file.py:attention"``, names one that gets a process of its own,
    as on the command line. ``properties`` are names, globs or themes, or made by ``declare``; ``seconds`` searches for that long instead of
    ``cases`` a property; ``case`` is the only one to try, as a replay line has it; ``strict`` also refutes what the attention refuses by raising,
    always, and what is wrong at edges alone: where numbers are no numbers or near the largest, sizes are zero, or a row sees no key.
    Raises CannotRun with one sentence if the callable cannot be called as an attention, or no property takes the case.
    """
    target = target_of(attention, supports, device, name)
    target = target if case else spoken_with(target, device, strict)
    known = () if strict or case else known_of(target, device)
    plan = Plan(examples=1 if case else cases, device=device, strict=strict, deviations=known)
    if case is None:
        reading = reading_time(seconds)
        made = verify_target(target, chosen(properties), plan, seconds=seconds, reading=reading, rank=catalogue.RANK)
        return made_whole(made, plan, reading)
    report = Report(target, device, least=0)
    written = written_cases(target, case)
    for prop in chosen(properties):
        report.add(try_only(target, prop, written.get(prop.topic.case)))
    if not report.cases:
        raise CannotRun(f"no property can be put to {case}")
    return made_whole(report, plan)


def verify_pair(
    attention: Asked,
    reference: Asked,
    *,
    cases: int = 150,
    seconds: float | None = None,
    device: str = "cpu",
    supports: Supports | Mapping[str, Any] | None = None,
) -> Verdict:
    """Whether one answers as the other does, within what rounding explains in both: functions, caches, layers, or modules of the same weights.

    Each is a callable, or a text, as for ``verify``; ``supports`` is what is declared of both. Raises CannotRun with one sentence if one cannot
    be called, or they are no pair.
    """
    made = []
    for asked in (attention, reference):
        name = None if isinstance(asked, str) else str(getattr(asked, "__name__", type(asked).__name__))
        target = target_of(asked, supports, device, name)
        made.append(spoken_with(dataclasses.replace(target, address=None), device))
    pair = make_pair(*made)
    plan = Plan(examples=cases, device=device, strict=False)
    report = verify_target(pair, pair_properties(pair), plan, seconds=seconds, reading=reading_time(seconds))
    explain(report, [], reading_time(seconds))
    return Verdict(report, plan)


def made_whole(report: Report, plan: Plan, seconds: float = reading_time(None)) -> Verdict:
    """The verdict on a report, whose findings are explained, for so long."""
    explain(report, known_mistakes() if report.findings else [], seconds)
    return Verdict(report, plan)


class Verdict:
    """What ``verify`` returns: a report that prints as the command line prints it."""

    def __init__(self, report: Any, plan: Plan) -> None:
        self.report = report
        self.plan = plan
        self.ok: bool = report.ok
        self.findings = report.findings
        notebook.remember(report)

    def __repr__(self) -> str:
        return text.findings_text(self.report, self.plan.examples) + text.verdict_text(self.report)

    def _repr_html_(self) -> str | None:
        return notebook.report_html(self.report)
