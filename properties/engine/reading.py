"""The reading of a failure: which named mistake behaves like the target on the failing cases.

The target's answers in the failing trials are compared with those of known-wrong attentions to the same calls. A mistake
is a reading if it agrees with the target on every call, and is wrong where the target is wrong.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from .attempt import attempt
from .case import Case
from .coordinates import Array
from .declare import Property
from .diagnosis import Finding
from .dtypes import FLOAT_TYPES
from .position_target import POSITIONS
from .position_trial import PositionTrial
from .target import CannotRun, Raised, Target, as_attention, make_target
from .trial import Run, Violation


@dataclass(frozen=True)
class Suspect:
    """An attention with a known mistake."""

    name: str
    mistake: str  # in one line
    contract: str
    make: Callable[[], Target]
    killed_by: str = ""  # the property that the mistake is expected to refute


def suspect(name: str, mistake: str, contract: str, function: Callable[..., object], killed_by: str = "") -> Suspect:
    """A suspect from a callable."""
    return Suspect(name, mistake, contract, cache(lambda: make_target(name, function)), killed_by)


def read_failure(target: Target, finding: Finding, suspects: Iterable[Suspect]) -> list[Suspect]:
    """The suspects that answer like the target in every failing trial; those expected to break this property first.

    Where no single answer is outside the bound, the suspects expected to break the property that break it in these words.
    """
    if target.contract in POSITIONS:
        return _read_positions(target, finding, suspects)
    if finding.property.contract != "attention":
        return []
    alike = (case for case in finding.failing if case.dtype == finding.case.dtype)  # rounding is another matter
    cases = dict.fromkeys((finding.case, *alike, *variations(finding.case)))
    tried = [attempt(target, finding.property, case) for case in cases]
    runs = [run for violation, trial in tried if violation for run in trial.runs]
    kin = [s for s in suspects if s.contract == target.contract]
    if not any(map(_is_wrong, runs)):  # a matter of state, of form, or of bits: no answer alone is wrong
        failing = [case for case, (violation, _) in zip(cases, tried, strict=True) if violation]
        kin = [s for s in kin if s.killed_by == finding.property.name]
        return [s for s in kin if _refuted_alike(s, finding, failing)]
    found = [s for s in kin if _behaves_alike(s, runs)]
    return sorted(found, key=lambda s: s.killed_by != finding.property.name)


def _read_positions(target: Target, finding: Finding, suspects: Iterable[Suspect]) -> list[Suspect]:
    """The suspects that the property refutes, too, with the same answers inside the bound, on every failing case."""
    cases = dict.fromkeys((finding.case, *(case for case in finding.failing if case.dtype == finding.case.dtype)))
    seen = {case: answers_of(target, finding.property, case)[1] for case in cases}

    def alike(wrong: Target) -> bool:
        for case, answers in seen.items():
            violation, others = answers_of(wrong, finding.property, case)
            if violation is None or not others or len(others) != len(answers) or not all(map(_near, answers, others)):
                return False
        return True

    found = []
    for one in suspects:
        try:
            if one.contract == target.contract and alike(one.make()):
                found.append(one)
        except CannotRun:
            continue
    return sorted(found, key=lambda s: s.killed_by != finding.property.name)


def answers_of(target: Target, prop: Property, case: Case) -> tuple[Violation | None, list[tuple[Array, Array]]]:
    """What a property says of a target of positions, and every answer with its bound."""
    violation, trial = attempt(target, prop, case)
    return violation, trial.answers if isinstance(trial, PositionTrial) else []


def _near(one: tuple[Array, Array], other: tuple[Array, Array]) -> bool:
    with np.errstate(invalid="ignore"):
        return one[0].shape == other[0].shape and bool((np.abs(one[0] - other[0]) <= 2 * one[1]).all())


def variations(case: Case) -> list[Case]:
    """Cases like the smallest, but larger: the smallest often leaves several mistakes possible."""
    changes: list[dict[str, Any]] = [
        {"queries": 5, "keys": 7}, {"queries": 7, "keys": 5}, {"queries": 6, "keys": 6, "dim": 4},
        {"batch": 3, "kv_heads": 2}, {"batch": 2, "kv_heads": 3, "queries": 4, "keys": 6, "dim": 5}, {"seed": case.seed + 1},
    ]  # fmt: skip
    return [dataclasses.replace(case, **change) for change in changes]


def _is_wrong(run: Run) -> bool:
    return bool((run.exact.out_error(run.out) > run.bound).any())


def _behaves_alike(suspect: Suspect, runs: list[Run]) -> bool:
    try:
        wrong = as_attention(suspect.make())
        return all(_agrees(wrong, run) for run in runs)
    except (CannotRun, Raised):
        return False


def _refuted_alike(suspect: Suspect, finding: Finding, cases: list[Case]) -> bool:
    try:
        wrong = suspect.make()
    except CannotRun:
        return False
    seen = [attempt(wrong, finding.property, case)[0] for case in cases if case.dtype in wrong.dtypes]
    words = finding.violation.says.split(" ", 2)[0]
    return bool(seen) and all(violation and violation.says.startswith(words) for violation in seen)


def _agrees(wrong: Target, run: Run) -> bool:
    """As near to each other as two computations of the same are; nothing is asked where there is no bound.

    The bound is that of the right answer, which may be an exact 0 or 1 where the wrong one is not. So a rounding error
    for every term of the wrong sums is allowed besides. A reading is a hint, not a verdict.
    """
    if run.inputs.dtype not in wrong.dtypes:
        return True
    out = wrong(run.inputs)
    if out.shape != run.out.shape:
        return False
    if _is_wrong(run) and not (run.exact.out_error(out) > run.bound).any():
        return False  # right where the target is wrong: near to it only because the target is nearly right
    terms = run.inputs.shape[3] + run.inputs.q.shape[3] + 8
    rounding = terms * 2.0 ** -FLOAT_TYPES[run.inputs.dtype].precision * np.abs(run.inputs.v).max(initial=0.0)
    with np.errstate(invalid="ignore"):
        near = np.abs(out - run.out) <= 2 * run.bound + rounding
    return bool((near | (out == run.out) | (np.isnan(out) & np.isnan(run.out)) | (run.bound == np.inf)).all())
