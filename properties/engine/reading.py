"""The reading of a failure: which named mistake behaves like the target on the failing cases.

The target's answers in the failing trials are compared with those of known-wrong attentions to the same calls. A mistake
is a reading if it agrees with the target on every call, and is wrong where the target is wrong. Every comparison starts anew:
nothing is remembered of earlier calls, and random numbers start from the same seed.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from .attempt import attempt
from .case import Case
from .coordinates import Array
from .declare import Property
from .diagnosis import Finding
from .domain import outside
from .dtypes import FLOAT_TYPES
from .frameworks import Buffers, Framework
from .gradients import CAPABILITIES, Backward
from .layer_target import as_attention, subject
from .probe import make_target, smoke_inputs
from .search import inapplicable
from .target import CannotRun, Raised, Target
from .trial import Run, Violation

Tried = tuple[Case, Violation | None, list[Run]]  # a case, what the property says of the target, and what it answered
ABOUT_EMPTY_ROWS = frozenset({"rows_without_keys_follow_the_convention", "rows_without_keys_poison_no_gradient"})
UNSETTLING = "calls_between_change_nothing"  # its calls show what a target remembers


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
    name: str, mistake: str, contract: str, function: Callable[..., object], killed_by: str = "",
    forget: Callable[[], bool] = nothing,
) -> Suspect:  # fmt: skip
    """A suspect from a callable."""
    return Suspect(name, mistake, contract, cache(lambda: make_target(name, function)), killed_by, forget)


def read_failure(target: Target, finding: Finding, suspects: Iterable[Suspect]) -> list[Suspect]:
    """The suspects that answer like the target in every failing trial; those expected to break this property first.

    If there is none, those that do so on the cases of the finding alone: of two mistakes a larger case shows both. If there
    is still none, those expected to break the property that do so after other calls, which a target may remember.
    Where no single answer is outside the bound, the suspects expected to break the property that break it in these words.
    """
    return read_closely(target, finding, suspects)[0]


def read_closely(target: Target, finding: Finding, suspects: Iterable[Suspect]) -> tuple[list[Suspect], bool]:
    """The same, and whether they answer alike on larger cases, too, where the target fails."""
    prop = finding.property
    if finding.violation.killed:
        return [], True  # nothing was answered
    if prop.contract != "attention":
        return _read_answers(target, finding, suspects), True
    kin = _kin(target, finding, suspects)
    expected = [s for s in kin if s.killed_by == prop.name]
    alike = (case for case in finding.failing if case.dtype == finding.case.dtype)  # rounding is another matter
    own = tuple(dict.fromkeys((finding.case, *alike)))
    tried = _try_all(target, prop, own, kin)
    if finding.violation.raised:  # there is no answer to compare
        return [s for s in expected if _raises_alike(s, prop, tried)], True
    whole = True
    larger = _try_all(target, prop, [case for case in variations(finding.case, prop) if case not in own], kin)
    if any(isinstance(run, Backward) for _, _, runs in tried for run in runs):
        found = [s for s in kin if s.killed_by in backward_properties() and _sends_back_alike(s, prop, tried)]
        found = [s for s in found if _sends_back_alike(s, prop, larger)] or found
        if found or not _shows([*tried, *larger]):
            return sorted(found, key=lambda s: s.killed_by != prop.name), True
    if not _shows([*tried, *larger]):  # a matter of state, of form, or of bits: no answer alone is wrong
        found = [s for s in expected if _refuted_alike(s, prop, [*tried, *larger])]
        found = [s for s in found if _behaves_alike(s, tried)] or found
        found = [s for s in found if _refuted_alike(s, prop, tried, by_as_much=True)] or found
    else:
        seed = 0 if _draws(target, tried, kin) else None
        near = [s for s in kin if _behaves_alike(s, tried, seed)]
        found = [s for s in near if _behaves_alike(s, larger, seed)]
        if not found and _shows(tried):
            found, whole = near, not _shows(larger)
        found = [s for s in found if _is_refuted(s, prop, [*tried, *larger])]
        if not _shows([*tried, *larger], where_a_key_is_seen=True):  # a mistake about something else shows elsewhere, too
            found = [s for s in found if s.killed_by in ABOUT_EMPTY_ROWS]
            return sorted(found, key=lambda s: s.killed_by != prop.name), whole
    if not found and _shows(after := _try_all(target, prop, own, kin, unsettled=True)):
        found = [s for s in expected if _behaves_alike(s, after, unsettled=True)]
    return sorted(found, key=lambda s: s.killed_by != prop.name), whole


def _kin(target: Target, finding: Finding, suspects: Iterable[Suspect]) -> list[Suspect]:
    """The suspects of the target's contract that can run here, and take what the smallest case gives them."""
    kin, prop = [], finding.property
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


def _try_all(
    target: Target, prop: Property, cases: Iterable[Case], suspects: Sequence[Suspect], unsettled: bool = False
) -> list[Tried]:
    tried: list[Tried] = []
    for case in cases:
        with anew(target.framework, suspects):
            if unsettled:
                _unsettle(target, case)
            violation, trial = attempt(target, prop, case)
        tried.append((case, violation, trial.runs))
    return tried


def _draws(target: Target, tried: Iterable[Tried], suspects: Sequence[Suspect]) -> bool:
    """Whether other random numbers give other answers; to seed for every suspect takes as long as to call it."""
    seen = as_attention(target)
    for _, _, runs in tried:
        buffers = seen.buffers()
        with anew(seen.framework, suspects, 1):
            try:
                if not all(np.array_equal(seen(run.inputs, buffers), run.out, equal_nan=True) for run in runs):
                    return True
            except Raised:
                return True
    return False


def _unsettle(target: Target, case: Case) -> None:
    """The first call that every target gets, and others that change one argument at a time."""
    from ..catalogue import PROPERTIES

    with suppress(Raised):
        as_attention(target)(smoke_inputs(target.supports, case.dtype, case.device))
    attempt(target, PROPERTIES[UNSETTLING], case)


def _shows(tried: Iterable[Tried], where_a_key_is_seen: bool = False) -> bool:
    """Whether some answer of a failing trial is outside its bound, in any row or in one that sees a key."""
    return any(_is_wrong(run, where_a_key_is_seen) for _, violation, runs in tried if violation for run in runs)


def _read_answers(target: Target, finding: Finding, suspects: Iterable[Suspect]) -> list[Suspect]:
    """Of what is no attention: the suspects that the property refutes, too, with the same answers, on every failing case.

    Where there is no answer to compare, for want of the right shape, in the same words.
    """
    kin = _kin(target, finding, suspects)
    cases = dict.fromkeys((finding.case, *(case for case in finding.failing if case.dtype == finding.case.dtype)))
    seen = {case: answers_of(target, finding.property, case, kin) for case in cases}

    def alike(one: Suspect) -> bool:
        wrong = one.make()
        for case, (violation, answers) in seen.items():
            its, others = answers_of(wrong, finding.property, case, [one])
            if violation is None or its is None or len(others) != len(answers) or not all(map(_near, answers, others)):
                return False
            if (not answers and its.says != violation.says) or its.raised != violation.raised:
                return False
        return True

    return sorted(filter(alike, kin), key=lambda s: s.killed_by != finding.property.name)


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


def variations(case: Case, prop: Property) -> list[Case]:
    """Cases like the smallest, but larger: the smallest often leaves several mistakes possible.

    No field gets a value with which the property draws no case.
    """
    changes: list[dict[str, Any]] = [
        {"queries": 5, "keys": 7}, {"queries": 7, "keys": 5}, {"queries": 6, "keys": 6, "dim": 4},
        {"batch": 3, "kv_heads": 2}, {"batch": 2, "kv_heads": 3, "queries": 4, "keys": 6, "dim": 5}, {"seed": case.seed + 1},
    ]  # fmt: skip
    def drawn(name: str, value: int) -> bool:
        about = prop.domain.get(name, (value,))
        return isinstance(about, tuple) and value in about

    kept = [{name: value for name, value in change.items() if drawn(name, value)} for change in changes]
    return [larger for change in kept if (larger := dataclasses.replace(case, **change)) != case]


def _is_wrong(run: Run, where_a_key_is_seen: bool = False) -> bool:
    wrong = run.exact.out_error(run.out) > run.bound
    if where_a_key_is_seen and run.exact.empty is not None:
        wrong &= ~run.exact.empty[..., None]
    return bool(wrong.any())


def _behaves_alike(suspect: Suspect, tried: Iterable[Tried], seed: int | None = 0, unsettled: bool = False) -> bool:
    try:
        wrong = as_attention(suspect.make())
        compared = False
        for case, violation, runs in tried:
            if not violation or not runs or case.dtype not in wrong.dtypes:
                continue
            compared = True
            with anew(wrong.framework, [suspect], seed):
                if unsettled:
                    _unsettle(wrong, case)
                buffers = wrong.buffers()  # one memory for all calls of a trial, as the target had
                if not all(_agrees(wrong, run, buffers) for run in runs):
                    return False
    except Raised:
        return False
    return compared


def _is_refuted(suspect: Suspect, prop: Property, tried: Iterable[Tried]) -> bool:
    wrong = suspect.make()
    cases = [case for case, violation, _ in tried if violation and case.dtype in wrong.dtypes]
    return any(violation for case in cases for _, violation, _ in _try_all(wrong, prop, [case], [suspect]))


@cache
def backward_properties() -> frozenset[str]:
    """The properties that ask for gradients."""
    from ..catalogue import PROPERTIES

    return frozenset(name for name, prop in PROPERTIES.items() if set(prop.needs) & set(CAPABILITIES))


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
        if not all(_near_outputs(a, b) for a, b in zip(runs, others, strict=True)):
            return False
        if not all(_near_gradients(a, b) for a, b in zip(runs, others, strict=True) if isinstance(a, Backward) and isinstance(b, Backward)):
            return False
    return compared


def _near_outputs(one: Run, other: Run) -> bool:
    with np.errstate(all="ignore"):
        near = (np.abs(one.out - other.out) <= 2 * one.bound) | (one.bound == np.inf) | (np.isnan(one.out) & np.isnan(other.out))
    # Under dropout there is no bound of the output; what is dropped is the same, for the seed is.
    return bool(one.inputs.dropout) or bool(near.all())


def _near_gradients(one: Backward, other: Backward) -> bool:
    """Two gradients of every input that was asked for, within both bounds of the right one and rounding of their own."""
    with np.errstate(all="ignore"):
        for name in one.parts:
            a, b = np.asarray(getattr(one, name)), np.asarray(getattr(other, name))
            limit = getattr(one.limits, name) if name in "qkv" else one.limits.of_sinks() if name == "sinks" else one.limits.of_bias(a.shape)
            rounding = 64 * 2.0 ** -FLOAT_TYPES[one.inputs.dtype].precision * np.abs(a).max(initial=0.0)
            if a.shape != b.shape or not ((np.abs(a - b) <= 2 * limit + rounding) | (np.isnan(a) & np.isnan(b))).all():
                return False
    return True


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

    seen = _try_all(wrong, prop, said, [suspect])
    return bool(seen) and all(violation and alike(said[case], violation) for case, violation, _ in seen)


def _words(violation: Violation) -> str:
    """What is said, but for the numbers."""
    return re.sub(r"[-+]?\d[\d.e+-]*", "n", violation.says)


def _agrees(wrong: Target, run: Run, buffers: Buffers) -> bool:
    """As near to each other as two computations of the same are; nothing is asked where there is no bound.

    The bound is that of the right answer, which may be an exact 0 or 1 where the wrong one is not. So a rounding error
    for every term of the wrong sums is allowed besides; but at least half of what the target is off by must be explained.
    A reading is a hint, not a verdict.
    """
    if run.inputs.dtype not in wrong.dtypes:
        return True
    out = wrong(run.inputs, buffers)
    if out.shape != run.out.shape:
        return False
    if _is_wrong(run) and not (run.exact.out_error(out) > run.bound).any():
        return False  # right where the target is wrong: near to it only because the target is nearly right
    terms = run.inputs.shape[3] + run.inputs.q.shape[3] + 8
    rounding = terms * 2.0 ** -FLOAT_TYPES[run.inputs.dtype].precision * np.abs(run.inputs.v).max(initial=0.0)
    with np.errstate(invalid="ignore"):
        apart, off = np.abs(out - run.out), run.exact.out_error(run.out)
        near = (apart <= 2 * run.bound + rounding) & ~((off > run.bound) & (apart > off / 2))
    nothing_told = (run.bound == np.inf) & (~np.isnan(run.exact.out) | (np.isnan(out) == np.isnan(run.out)))
    return bool((near | (out == run.out) | (np.isnan(out) & np.isnan(run.out)) | nothing_told).all())
