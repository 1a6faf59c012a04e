"""The reading of a failure: which named mistake behaves like the target on the failing cases.

The target's answers in the failing trials are compared with those of known-wrong attentions to the same calls. A mistake
is a reading if it agrees with the target on every call, and is wrong where the target is wrong. Every comparison starts anew:
nothing is remembered of earlier calls, and random numbers start from the same seed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from ..cases.case import Case
from ..cases.coordinates import Array
from ..core.attempt import attempt, subject
from ..core.contract import known_capabilities
from ..core.declare import Property, declared
from ..core.finding import Finding
from ..core.target import CannotRun, Raised, Target
from ..core.trial import Violation
from ..frameworks import Framework
from ..search.probe import known_target
from ..search.search import inapplicable, outside

Tried = tuple[Case, Violation | None, list[Any]]  # a case, what the property says of the target, and what it answered
ABOUT_EMPTY_ROWS = frozenset({"rows_without_keys_follow_the_convention", "rows_without_keys_poison_no_gradient"})


def nothing() -> bool:
    """Forget nothing: there is nothing to remember."""
    return False


@dataclass(frozen=True)
class Suspect:
    """An attention with a known mistake."""

    name: str
    mistake: str  # in one line
    contract: str
    make: Callable[[], Target]
    killed_by: str = ""  # the property that the mistake is expected to refute
    forget: Callable[[], bool] = nothing  # makes it start anew; whether it did remember its calls


def suspect(
    name: str,
    mistake: str,
    contract: str,
    function: Callable[..., object],
    killed_by: str = "",
    forget: Callable[[], bool] = nothing,
) -> Suspect:
    """A suspect from a callable, whose ``supports`` say what it is."""
    return Suspect(name, mistake, contract, cache(lambda: known_target(name, function)), killed_by, forget)


def read_failure(target: Target, finding: Finding, suspects: Iterable[Suspect]) -> list[Suspect]:
    """The suspects that answer like the target in every failing trial; those expected to break this property first.

    If there is none, those that do so on the cases of the finding alone: of two mistakes a larger case shows both. If there
    is still none, those expected to break the property that do so after other calls, which a target may remember.
    Where no single answer is outside the bound, the suspects expected to break the property that break it in these words.
    """
    return read_closely(target, finding, suspects)[0]


def read_closely(target: Target, finding: Finding, suspects: Iterable[Suspect]) -> tuple[list[Suspect], bool]:
    """The same, and whether they answer alike on larger cases, too, where the target fails."""
    prop = finding.prop
    if finding.violation.killed or not subject(target, prop).kind.readings:
        return [], True  # nothing was answered, or nothing can be compared
    if not subject(target, prop).kind.repeats:
        return _read_answers(target, finding, suspects), True
    kin = _kin(target, finding, suspects)
    expected = [s for s in kin if s.killed_by == prop.name]
    alike = (case for case in finding.failing if case.dtype == finding.case.dtype)  # rounding is another matter
    own = tuple(dict.fromkeys((finding.case, *alike)))
    tried = _try_all(target, prop, own, kin)
    if finding.violation.raised:  # there is no answer to compare
        return [s for s in expected if _raises_alike(s, prop, tried)], True
    whole = True
    larger = _try_all(target, prop, [case for case in subject(target, prop).kind.larger(finding.case, prop) if case not in own], kin)
    if any(run.sends_back for _, _, runs in tried for run in runs):
        found = [s for s in kin if sends_back(s) and _sends_back_alike(s, prop, tried)]
        found = [s for s in found if _sends_back_alike(s, prop, larger)] or found
        if found or not _shows([*tried, *larger]):
            return sorted(found, key=lambda s: s.killed_by != prop.name), True
    if not _shows([*tried, *larger]):  # a matter of state, of form, or of bits: no answer alone is wrong
        found = [s for s in expected if _refuted_alike(s, prop, [*tried, *larger])]
        found = [s for s in found if _behaves_alike(s, prop, tried)] or found
        found = [s for s in found if _refuted_alike(s, prop, tried, by_as_much=True)] or found
    else:
        empty_alone = not _shows([*tried, *larger], where_a_key_is_seen=True)  # a mistake about something else shows elsewhere, too
        kin = [s for s in kin if s.killed_by in ABOUT_EMPTY_ROWS] if empty_alone else kin
        seed = 0 if _draws(subject(target, prop), tried, kin) else None
        near = [s for s in kin if _behaves_alike(s, prop, tried, seed)]
        found = [s for s in near if _behaves_alike(s, prop, larger, seed)]
        if not found and _shows(tried):
            found, whole = near, not _shows(larger)
        found = [s for s in found if _is_refuted(s, prop, [*tried, *larger])]
        if empty_alone:
            return sorted(found, key=lambda s: s.killed_by != prop.name), whole
    if not found and _shows(after := _try_all(target, prop, own, kin, unsettled=True)):
        found = [s for s in expected if _behaves_alike(s, prop, after, unsettled=True)]
    return sorted(found, key=lambda s: s.killed_by != prop.name), whole


def _kin(target: Target, finding: Finding, suspects: Iterable[Suspect]) -> list[Suspect]:
    """The suspects of the target's contract that can run here, and take what the smallest case gives them."""
    kin, prop = [], finding.prop
    for one in suspects:
        if one.contract == target.contract:
            with suppress(CannotRun):
                wrong = one.make()
                if not inapplicable(wrong, prop) and not outside(subject(wrong, prop), prop, finding.case):
                    kin.append(one)
    return kin


@contextmanager
def anew(framework: Framework, suspects: Iterable[Suspect], seed: int | None = 0) -> Iterator[None]:
    """Nothing is remembered of earlier calls, and random numbers start from the seed (None: they go on)."""
    for forget in {s.forget for s in suspects}:
        forget()
    with nullcontext() if seed is None else framework.chance(seed):
        yield


def _try_all(target: Target, prop: Property, cases: Iterable[Case], suspects: Sequence[Suspect], unsettled: bool = False) -> list[Tried]:
    tried: list[Tried] = []
    for case in cases:
        with anew(target.framework, suspects):
            if unsettled:
                subject(target, prop).kind.unsettle(subject(target, prop), case)
            violation, trial = attempt(target, prop, case)
        tried.append((case, violation, trial.runs))
    return tried


def _draws(view: Target, tried: Iterable[Tried], suspects: Sequence[Suspect]) -> bool:
    """Whether other random numbers give other answers; to seed for every suspect takes as long as to call it."""
    for _, _, runs in tried:
        buffers = view.buffers()
        with anew(view.framework, suspects, 1):
            try:
                if not all(np.array_equal(run.again(view, buffers), run.out, equal_nan=True) for run in runs):
                    return True
            except Raised:
                return True
    return False


def _shows(tried: Iterable[Tried], where_a_key_is_seen: bool = False) -> bool:
    """Whether some answer of a failing trial is outside its bound, in any row or in one that sees a key."""
    return any(run.is_wrong(where_a_key_is_seen) for _, violation, runs in tried if violation for run in runs)


def _read_answers(target: Target, finding: Finding, suspects: Iterable[Suspect]) -> list[Suspect]:
    """Of what is no attention: the suspects that the property refutes, too, with the same answers, on every failing case.

    Where there is no answer to compare, for want of the right shape, in the same words.
    """
    kin = _kin(target, finding, suspects)
    cases = dict.fromkeys((finding.case, *(case for case in finding.failing if case.dtype == finding.case.dtype)))
    of_target = {case: answers_of(target, finding.prop, case, kin) for case in cases}

    def alike(one: Suspect) -> bool:
        wrong = one.make()
        for case, (violation, answers) in of_target.items():
            its, others = answers_of(wrong, finding.prop, case, [one])
            if violation is None or its is None or len(others) != len(answers) or not all(map(_near, answers, others)):
                return False
            if (not answers and its.says != violation.says) or its.raised != violation.raised:
                return False
        return True

    return sorted(filter(alike, kin), key=lambda s: s.killed_by != finding.prop.name)


def answers_of(
    target: Target, prop: Property, case: Case, suspects: Iterable[Suspect] = ()
) -> tuple[Violation | None, list[tuple[Array, Array]]]:
    """What a property says of a target, and every answer with its bound."""
    with anew(target.framework, suspects):
        violation, trial = attempt(target, prop, case)
    return violation, trial.answers


def _near(one: tuple[Array, Array], other: tuple[Array, Array]) -> bool:
    (out, allowed), (others, _) = one, other
    if out.shape != others.shape:
        return False
    with np.errstate(invalid="ignore"):
        near = np.abs(out - others) <= 2 * allowed
    return bool((near | (out == others) | (np.isnan(out) & np.isnan(others)) | (allowed == np.inf)).all())


def _behaves_alike(suspect: Suspect, prop: Property, tried: Iterable[Tried], seed: int | None = 0, unsettled: bool = False) -> bool:
    try:
        wrong = subject(suspect.make(), prop)
        compared = False
        for case, violation, runs in tried:
            if not violation or not runs or case.dtype not in wrong.dtypes:
                continue
            compared = True
            with anew(wrong.framework, [suspect], seed):
                if unsettled:
                    wrong.kind.unsettle(wrong, case)
                buffers = wrong.buffers()  # one memory for all calls of a trial, as the target had
                if not all(run.agrees(wrong, buffers) for run in runs):
                    return False
    except Raised:
        return False
    return compared


def _is_refuted(suspect: Suspect, prop: Property, tried: Iterable[Tried]) -> bool:
    wrong = suspect.make()
    cases = [case for case, violation, _ in tried if violation and case.dtype in wrong.dtypes]
    return any(violation for case in cases for _, violation, _ in _try_all(wrong, prop, [case], [suspect]))


def sends_back(suspect: Suspect) -> bool:
    """Whether a mistake is expected to break a property that asks for gradients."""
    prop = declared().get(suspect.killed_by)
    return prop is not None and bool(set(prop.needs) & known_capabilities())


def _sends_back_alike(suspect: Suspect, prop: Property, tried: Iterable[Tried]) -> bool:
    """Whether the property refutes a suspect on the same cases, with gradients as near to the target's as rounding explains."""
    wrong = suspect.make()
    compared = False
    for case, violation, runs in tried:
        if not violation or case.dtype not in wrong.dtypes:
            continue
        compared = True
        ((_, refuted, others),) = _try_all(wrong, prop, [case], [suspect])
        if not refuted or len(others) != len(runs):
            return False
        if not all(a.near_output(b) for a, b in zip(runs, others, strict=True)):
            return False
        if not all(a.near_gradients(b) for a, b in zip(runs, others, strict=True) if a.sends_back and b.sends_back):
            return False
    return compared


def _raises_alike(suspect: Suspect, prop: Property, tried: Iterable[Tried]) -> bool:
    """Whether a suspect raises, too, in the same call of every failing trial."""
    wrong = suspect.make()
    compared = False
    for case, _, runs in tried:
        if case.dtype not in wrong.dtypes:
            continue
        compared = True
        ((_, violation, others),) = _try_all(wrong, prop, [case], [suspect])
        if not violation or not violation.raised or len(others) != len(runs):
            return False
    return compared


def _refuted_alike(suspect: Suspect, prop: Property, tried: Iterable[Tried], by_as_much: bool = False) -> bool:
    wrong = suspect.make()
    said = {case: violation for case, violation, _ in tried if violation and case.dtype in wrong.dtypes}

    def alike(one: Violation, other: Violation) -> bool:
        near = abs(one.actual - other.actual) <= one.difference / 2 or np.isnan(one.difference)
        return _words(one) == _words(other) and bool(near or not by_as_much)

    results = _try_all(wrong, prop, said, [suspect])
    return bool(results) and all(violation and alike(said[case], violation) for case, violation, _ in results)


def _words(violation: Violation) -> str:
    """What is said, but for the numbers."""
    return re.sub(r"[-+]?\d[\d.e+-]*", "n", violation.says)
