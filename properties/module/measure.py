"""What is wrong with a module that is refuted: the attention of its own projections with one mistake, which answers as it does.

A mistake is named only if the composition with it agrees with the module within what rounding explains, on several calls like the
one that was refuted, and no composition with another mistake does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np

from ..engine.cases.coordinates import Array
from ..engine.core.finding import Finding
from ..engine.core.target import Raised, Target
from .cases import Case
from .structure import SCALES, USUAL, Structure, candidates
from .subject import Subject
from .trial import ModuleTrial

Weights = dict[str, tuple[Array, Array | None]]
SEEDS = (1, 2, 3)
LIKELY = 3  # assignments that names allow and that are tried
HIDDEN = {"minus infinity": -np.inf, "0": 0.0, "−10": -10.0}


@dataclass(frozen=True)
class Steps:
    """The steps of an attention; each field is the right one, or a mistake."""

    split: str = "heads"
    merge: str = "heads"
    axis: int = -1
    frontier: int | None = 0  # None: no causality
    mask: str = "keys"
    fill: str = "minus infinity"
    after: bool = False  # what is hidden is hidden after the softmax
    divide: bool = True
    parts: tuple[tuple[str, str], ...] = ()  # (a part, the one whose weights it uses)
    output: bool = True


RIGHT = Steps()
MISTAKES: dict[str, Steps] = {
    "heads split by a reshape, without a transpose": replace(RIGHT, split="reshape"),
    "heads merged by a reshape, without a transpose": replace(RIGHT, merge="reshape"),
    "a softmax over queries": replace(RIGHT, axis=-2),
    "a softmax over heads": replace(RIGHT, axis=1),
    "a softmax over sequences": replace(RIGHT, axis=0),
    "exponentials that are not divided by their sum": replace(RIGHT, divide=False),
    "a causal frontier that is one too far": replace(RIGHT, frontier=1),
    "a causal frontier that is one too near": replace(RIGHT, frontier=-1),
    "no causality": replace(RIGHT, frontier=None),
    "the mask taken the other way round": replace(RIGHT, mask="inverted"),
    "the mask left out": replace(RIGHT, mask="none"),
    "the mask on queries instead of keys": replace(RIGHT, mask="queries"),
    "the mask of the first sequence for all": replace(RIGHT, mask="first"),
    "what is hidden hidden after the softmax": replace(RIGHT, after=True),
    "hidden logits of 0": replace(RIGHT, fill="0"),
    "hidden logits of −10": replace(RIGHT, fill="−10"),
    "keys projected as queries": replace(RIGHT, parts=(("k", "q"),)),
    "values projected as keys": replace(RIGHT, parts=(("v", "k"),)),
    "queries and keys exchanged": replace(RIGHT, parts=(("q", "k"), ("k", "q"))),
    "no output projection": replace(RIGHT, output=False),
}


def composed(weights: Weights, s: Structure, steps: Steps, t: ModuleTrial) -> Array:
    """The attention of these projections by these steps, in float64: (B, L, D)."""
    x = t.inputs.x
    memory = x if t.inputs.memory is None else t.inputs.memory
    weights = weights | {part: weights[other] for part, other in steps.parts}

    def project(part: str, y: Array, heads: int) -> Array:
        w, b = weights[part]
        z = y @ w.T + (0.0 if b is None else b)
        if steps.split == "reshape":
            return z.reshape(z.shape[0], heads, z.shape[1], -1)
        return z.reshape(*z.shape[:2], heads, -1).transpose(0, 2, 1, 3)

    q, k, v = project("q", x, s.heads), project("k", memory, s.kv_heads), project("v", memory, s.kv_heads)
    index = np.arange(s.heads) % s.kv_heads if s.tiled else np.arange(s.heads) // (s.heads // s.kv_heads)
    logits = q @ k[:, index].swapaxes(2, 3) * SCALES[s.scale](q.shape[3], s.heads, x.shape[2])
    visible = _visible(steps, t, logits.shape[2:])
    if visible is not None and not steps.after:
        logits = np.where(visible, logits, HIDDEN[steps.fill])
    e = np.exp(logits - logits.max(steps.axis, keepdims=True)) if steps.divide else np.exp(logits)
    parted = e / e.sum(steps.axis, keepdims=True) if steps.divide else e
    parted = parted * visible if visible is not None and steps.after else parted
    out = parted @ v[:, index]
    out = (out if steps.merge == "reshape" else out.transpose(0, 2, 1, 3)).reshape(*x.shape[:2], -1)
    if "o" not in weights or not steps.output:
        return np.asarray(out)
    w, b = weights["o"]
    return np.asarray(out @ w.T + (0.0 if b is None else b))


def _visible(steps: Steps, t: ModuleTrial, shape: tuple[int, ...]) -> Array | None:
    """(B or 1, 1, L or 1, S) bool: the keys that are visible under mask and causality; None: all."""
    visible: Array | None = None
    if t.inputs.visible is not None and steps.mask != "none":
        mask = t.inputs.visible[:, None]  # (B, 1, 1, S)
        ways: dict[str, Callable[[], Array]] = {
            "keys": lambda: mask,
            "inverted": lambda: ~mask,
            "queries": lambda: mask.swapaxes(2, 3),
            "first": lambda: mask[:1],
        }
        visible = ways[steps.mask]()
    if t.causal and t.self_attends and steps.frontier is not None:
        earlier = np.tri(shape[0], shape[1], k=steps.frontier, dtype=bool)[None, None]
        visible = earlier if visible is None else visible & earlier
    return visible


def measured(target: Target, finding: Finding) -> tuple[Case, str] | None:
    """A call like the smallest one, and with which mistake the attention of its projections answers so; None if with none, or several."""
    subject: Subject = target.function  # type: ignore[assignment]
    if finding.violation.raised or subject.speech.pooled or subject.speech.layout not in ("bld", "lbd") or subject.facts.lengths:
        return None
    case = finding.case.but(batch=3, length=min(6, subject.facts.longest), dtype=target.dtypes[0], heads=4, head_dim=8, magnitude=0)
    case = case if case.memory is None else case.but(memory=5)
    trials = [ModuleTrial(target, case.but(seed=seed)) for seed in SEEDS]
    try:
        outs = [(trial.run(), 2 * trial.allowed()) for trial in trials]
    except (Raised, AssertionError):
        return None
    found = {words for s, words, steps in _compositions(subject, trials[0]) if _agree(s, steps, subject, trials, outs)}
    return (trials[0].case, f"it answers as the attention of its projections with {found.pop()}") if len(found) == 1 else None


def _compositions(subject: Subject, trial: ModuleTrial) -> Iterator[tuple[Structure, str, Steps]]:
    named = (
        [subject.structure] if subject.structure else islice(candidates(trial.module, subject.speech.width, subject.speech.heads), LIKELY)
    )
    for s in named:
        usual = replace(s, scale=USUAL)
        for words, steps in MISTAKES.items():
            yield usual, words, steps
        for scale in SCALES:
            if scale != USUAL:
                yield replace(s, scale=scale), f"logits scaled by {scale}, not {USUAL}", RIGHT


def _agree(s: Structure, steps: Steps, subject: Subject, trials: list[ModuleTrial], outs: list[tuple[Array, Array]]) -> bool:
    decisive = False  # whether the mistake makes a difference at all
    for trial, (out, allowed) in zip(trials, outs, strict=True):
        weights: Any = s.read(trial.module, subject.framework)
        try:
            with np.errstate(all="ignore"):
                wrong, right = (composed(weights, s, way, trial) for way in (steps, RIGHT))
                usual = composed(weights, replace(s, scale=USUAL), RIGHT, trial)
        except (ValueError, IndexError, KeyError):
            return False
        rows = trial.own_rows()
        if wrong.shape != out.shape or not (np.where(rows, np.abs(wrong - out), 0.0) <= allowed).all():
            return False
        decisive = decisive or any(
            bool((np.where(rows, np.abs(one - other), 0.0) > allowed).any()) for one, other in ((wrong, right), (right, usual))
        )
    return decisive
