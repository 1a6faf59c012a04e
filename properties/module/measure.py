"""What is wrong with a module that is refuted: the attention of its own projections with one mistake, which answers as it does.

A mistake is named only if the composition with it agrees with the module within what rounding explains, on several calls like the
one that was refuted, and no composition with another mistake does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

import numpy as np

from ..engine.cases.coordinates import Array
from ..engine.core.finding import Finding
from ..engine.core.target import Raised, Target
from .candidates import candidates
from .cases import Case
from .composition import MISTAKES, RIGHT, Call, Steps, compose
from .confirm import called
from .structure import SCALES, USUAL, Structure
from .subject import Subject
from .trial import ModuleTrial

SEEDS = (1, 2, 3)
LIKELY = 3  # assignments that names allow and that are tried


def measured(target: Target, finding: Finding) -> tuple[Case, str] | None:
    """A call like the smallest one, and with which mistake the attention of its projections answers so; None if with none, or several."""
    subject: Subject = target.function.quiet  # type: ignore[attr-defined]
    target = replace(target, function=subject)
    if finding.violation.raised or subject.speech.pooled or subject.speech.layout not in ("bld", "lbd") or subject.facts.lengths:
        return None
    case = finding.case.but(batch=3, length=min(6, subject.facts.longest), dtype=target.dtypes[0], heads=4, head_dim=8, magnitude=0)
    case = case if case.memory is None else case.but(memory=5)
    trials = [ModuleTrial(target, case.but(seed=seed)) for seed in SEEDS]
    try:
        outs = [(trial.run(), 2 * trial.allowed()) for trial in trials]
    except (Raised, AssertionError):
        return None
    calls = [called(subject, trial.module, trial.inputs, trial.case.dtype) for trial in trials]
    found = {words for s, words, steps in _compositions(subject, trials[0]) if _agree(s, steps, calls, trials, outs)}
    return (trials[0].case, f"it answers as the attention of its projections with {found.pop()}") if len(found) == 1 else None


def _compositions(subject: Subject, trial: ModuleTrial) -> Iterator[tuple[Structure, str, Steps]]:
    found = [subject.structure.mended or subject.structure] if subject.structure else list(subject.likely)
    for s in found or islice(candidates(trial.module, subject.speech.width, subject.speech.heads), LIKELY):
        usual = s.but(scale=USUAL)
        for words, steps in MISTAKES.items():
            yield usual, words, steps
        for scale in SCALES:
            if scale != USUAL:
                yield s.but(scale=scale), f"logits scaled by {scale}, not {USUAL}", RIGHT


def _agree(s: Structure, steps: Steps, calls: list[Call], trials: list[ModuleTrial], outs: list[tuple[Array, Array]]) -> bool:
    decisive = False  # whether the mistake makes a difference at all
    for call, trial, (out, allowed) in zip(calls, trials, outs, strict=True):
        try:
            with np.errstate(all="ignore"):
                wrong, right, usual = (compose(*way) for way in ((s, call, steps), (s, call), (s.but(scale=USUAL), call)))
        except (ValueError, IndexError, KeyError):
            return False
        rows = trial.own_rows()
        if wrong.shape != out.shape or not (np.where(rows, np.abs(wrong - out), 0.0) <= allowed).all():
            return False
        decisive = decisive or any(
            bool((np.where(rows, np.abs(one - other), 0.0) > allowed).any()) for one, other in ((wrong, right), (right, usual))
        )
    return decisive
