"""The weights of a module given to its reference: by the names of the parameters, through recognised projections, or in their order.

Of the ways that fit, the first under which both answer alike is taken, else the first: then the search says where they part.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ..engine.contained.load import NotLoaded, inputs_of
from ..engine.core.target import CannotRun, Target
from ..engine.core.words import without_variant
from ..engine.frameworks import Buffers
from . import bound
from .candidates import candidates
from .facts import NEGLIGIBLE, SHORT, influences
from .speech import Tokens, call, hooks, returned
from .structure import Structure, parameters
from .subject import Subject, answer, tokens_for

THROUGH = "through "
MERGING = "heads, their merging and scale"
MOVES, LOST = (2.0**-36, 2.0**-16), 2.0**-4  # of tokens; of what answers move by
DOUBLE, NEAR = 2.0**-40, 2.0**-16  # of answers: two of float64 are nearer, of float32 as near
ONE_RUN, ROUGHLY = 1, 4.0  # from which a bound is measured, of six; times that: it chooses where weights stand, and holds nothing to it
Give = Callable[[Any, Any], None]  # (the reference's module, the target's)


def paired(target: Target, reference: Target) -> Target:
    """Both with the same weights, sizes and causality. Raises CannotRun if the weights of one cannot be those of the other."""
    own: Subject = target.function  # type: ignore[assignment]
    other: Subject = reference.function  # type: ignore[assignment]
    if own.speech.width != other.speech.width:
        widths = f"{own.speech.width} and {other.speech.width}"
        raise CannotRun(
            f"{target.name} and {reference.name} take tokens of {widths} features: give sizes, as in Class(d_model=32, num_heads=4)"
        )
    own, other = (replace(s, speech=replace(s.speech, more=())) for s in (own, other))  # one mask of each is compared
    own, other = _as_causal_as(own, other), _as_causal_as(other, own)
    if not (own.facts.varied and other.facts.varied):
        own, other = (replace(s, facts=replace(s.facts, varied=())) for s in (own, other))
    if own.facts.sees_itself != other.facts.sees_itself:  # what one can, the other must
        own = replace(own, facts=replace(own.facts, sees_itself=own.facts.sees_itself and other.facts.sees_itself))
    own, other, uncompared = _keeping_alike(own, other)
    own = replace(own, unrecorded=own.unrecorded or other.unrecorded)
    differs = dict(target.differs)
    if own.speech.mask and other.speech.mask and (parts := _causal_alone(own, other)):
        differs["causality"] = f"without a mask {parts} sees no later tokens; calls with one are compared"
        own = replace(own, facts=replace(own.facts, asked_masked=True))  # under the very same masks
        own, other = (replace(s, speech=replace(s.speech, mask=replace(s.speech.mask, whole=False))) for s in (own, other) if s.speech.mask)
    longest = min(own.facts.longest, other.facts.longest)
    own = replace(own, facts=replace(own.facts, longest=longest, lengths=own.facts.lengths or other.facts.lengths))
    words, give = _given(own, other)
    if words.startswith(THROUGH):  # rows of a parameter are those of these sizes
        own, other = (replace(s, facts=replace(s.facts, varied=())) for s in (own, other))
    learned = {**target.learned, "weights": f"drawn anew for every case, the same in the reference: {words}"}
    like = dataclasses.replace(reference, function=replace(other, take=give))
    able = [name for name in target.parameters if name not in ("heads", "head_dim") or own.facts.varied]
    able = [name for name in able if (name != "is_causal" or own.speech.flag) and (name != "mask" or own.speech.masks)]
    wrong = dict(target.wrong)
    if (name := other.facts.unheeded) and name in own.speech.roles:
        wrong[name] = "given to the reference, it changes nothing"
    untried = {name: why for name, why in {**target.untried, **uncompared}.items() if name != MERGING}  # whatever it is, it is compared
    with suppress(NotLoaded):
        own = replace(own, facts=replace(own.facts, inputs=inputs_of(without_variant(reference.name)[0])))
    if (forms := [_returned(subject) for subject in (own, other)])[0] != forms[1]:
        untried["what comes back beside the output"] = f"it answers with {forms[0]}, the reference with {forms[1]}"
    dtypes = target.dtypes
    if own.elsewhere and {"float64", "float32"} <= set(dtypes) and _in_single(own, other, give):
        dtypes = tuple(dtype for dtype in dtypes if dtype != "float64")
        untried["float64"] = "it is computed in float32: a change of tokens by 2⁻³⁶ is lost in it"
    return dataclasses.replace(
        target,
        function=own,
        dtypes=dtypes,
        learned=learned,
        parameters=tuple(able),
        differs=differs,
        wrong=wrong,
        untried=untried,
        like=like,
    )


def _in_single(own: Subject, other: Subject, give: Give) -> bool:
    """Whether what is called float64 is computed in float32, at least in part, and by the reference, whose rounding is followed, is not.

    It is near the reference then, and not as near as float64 is, and does not move as far as it should where tokens move by less than float32 can
    hold. A mistake moves; an answer that is kept for tokens that are nearly the same is as near as float64 is.
    """
    tokens = tokens_for(own.speech, 2, (own.facts.lengths or (6,))[0], None if own.facts.sees_itself else 5)

    def moved(by: float) -> Tokens:
        memory = None if tokens.memory is None else tokens.memory + by * tokens.memory[..., ::-1]
        return replace(tokens, x=tokens.x + by * tokens.x[..., ::-1], memory=memory)

    def slopes(subject: Subject, module: Any) -> tuple[Any, bool]:
        """The answer, and whether it moves by little as it does by more."""
        out, less, more = (answer(subject, module, moved(by)) for by in (0.0, *MOVES))
        little, much = (less - out) / MOVES[0], (more - out) / MOVES[1]
        return out, bool(np.abs(little - much).max() <= LOST * np.abs(much).max())

    try:
        module, right = own.module("float64", "cpu", 1), other.module("float64", "cpu", 1)
        give(right, module)
        (out, follows), (expected, follows_too) = slopes(own, module), slopes(other, right)
        off, size = np.abs(out - expected).max(), np.abs(expected).max()
    except (Exception, SystemExit):
        return False
    return bool(follows_too and not follows and DOUBLE * size < off <= NEAR * size)


def _returned(subject: Subject) -> str:
    """What comes back of a call, in a few words; empty where that cannot be told."""
    length = (subject.facts.lengths or (6,))[0]
    tokens = tokens_for(subject.speech, 2, length, None if subject.facts.sees_itself else 5)
    fw = subject.framework
    try:
        with hooks(fw).still(), fw.chance(0):
            module = subject.through(subject.module("float64", "cpu", 1))
            return returned(call(module, subject.speech, tokens, fw, Buffers(fw), "float64", "cpu"), fw)
    except (Exception, SystemExit):
        return ""


def _keeping_alike(own: Subject, other: Subject) -> tuple[Subject, Subject, dict[str, str]]:
    """Both with caches that take as many tokens at a time, or without any; and why caches are not compared, where one of them has some."""
    kept = [subject.speech.keeping for subject in (own, other)]
    if not all(kept):
        alone = "the reference keeps none that is understood" if kept[0] else "the reference alone keeps one that is understood"
        parted = [replace(subject, speech=replace(subject.speech, keeping=None)) for subject in (own, other)]
        return parted[0], parted[1], {"cache": alone} if any(kept) else {}
    steps = any(keeping.steps for keeping in kept if keeping)
    own, other = (
        replace(subject, speech=replace(subject.speech, keeping=replace(keeping, steps=steps)))
        for subject, keeping in zip((own, other), kept, strict=True)
        if keeping
    )
    return own, other, {}


def _causal_alone(own: Subject, other: Subject) -> str:
    """Which of two sees no later tokens where no mask is given, if one does; by effect, since a variant may change it (Hugging Face's sdpa)."""
    if not (own.facts.sees_itself and other.facts.sees_itself) or own.speech.pooled or own.facts.lengths:
        return ""
    hides = []
    for subject in (own, other):
        try:
            visible = influences(subject, subject.through(subject.module("float64", "cpu", 1)), SHORT) > NEGLIGIBLE
        except (Exception, SystemExit):
            return ""
        hides.append(not visible[~np.tri(SHORT, dtype=bool)].any())
    return "" if hides[0] == hides[1] else "the target" if hides[0] else "the reference"


def _as_causal_as(subject: Subject, other: Subject) -> Subject:
    """Causal always, by its flag, where the other is so."""
    if not (other.facts.causal and subject.speech.flag and not (subject.speech.by_mask or subject.facts.causal)):
        return subject
    extra = {**subject.speech.extra, subject.speech.flag: True}
    return replace(subject, speech=replace(subject.speech, extra=extra, flag=""), facts=replace(subject.facts, causal="its reference is"))


def _given(own: Subject, other: Subject) -> tuple[str, Give]:
    mine, theirs = (s.module("float64", "cpu", seed) for s, seed in ((own, 1), (other, 2)))
    first: tuple[str, Give] | None = None
    for words, give, likely in (*_ways(own, other, mine, theirs), *_guesses(own, mine, theirs)):
        try:
            give(theirs, mine)
        except (ValueError, IndexError, KeyError, RuntimeError):
            continue
        if _alike(own, other, mine, theirs):
            return words, give
        if likely:
            first = first or (words, give)
    if first is None:
        held = [f"{n} {tuple(p.shape)}" for n, p in mine.named_parameters()]
        where = f"where the weights of {own.name} would stand in {other.name}, so that both answer alike"
        raise CannotRun(f"it is not known {where}: {', '.join(held[:4])}{'…' * (len(held) > 4)}")
    return first


Way = tuple[str, Give, bool]  # in words; how; whether answers that differ are those of a mistake, and not of weights in a wrong place


def _ways(own: Subject, other: Subject, mine: Any, theirs: Any) -> Iterator[Way]:
    shapes = _shapes(mine, theirs)
    if shapes[0] == shapes[1]:
        yield "by their names", partial(_by_names, own, shapes[0]), True

    def projections(subject: Subject, module: Any) -> list[Any]:
        if subject.structure or subject.speech.forms:  # which are no tokens
            return [subject.structure] if subject.structure else []
        return list(candidates(module, subject.speech.width, subject.speech.heads))[:3]

    writes = projections(other, theirs)
    for read in projections(own, mine):
        for write in writes:
            yield f"{THROUGH}{read.words} and {write.words}", _through(own, read, write), True
    if list(shapes[0].values()) == list(shapes[1].values()) and [*shapes[0]] != [*shapes[1]]:
        yield "in their order", lambda to, of: _copy(own, list(zip(_held(of), _held(to), strict=True))), True


def _guesses(own: Subject, mine: Any, theirs: Any) -> Iterator[Way]:
    shapes, others = _shapes(mine, theirs)
    names = [name for name, shape in shapes.items() if others.get(name) == shape]
    if names and shapes != others:
        yield "by the names that both have", partial(_by_names, own, names), False
    if [*shapes.items()] != [*others.items()]:
        yield "side by side, in their order", partial(_side_by_side, own), False


def _by_names(own: Subject, names: Iterable[str], to: Any, of: Any) -> None:
    sources, places = (dict(module.named_parameters()) for module in (of, to))
    _copy(own, [(sources[name].data, places[name].data) for name in names])


def _shapes(*modules: Any) -> list[dict[str, tuple[int, ...]]]:
    return [{name: tuple(p.shape) for name, p in module.named_parameters()} for module in modules]


def _side_by_side(own: Subject, to: Any, of: Any) -> None:
    """All rows of one length, one after another, whatever the parameters between which they are divided: one projection for several of them."""
    fw, kinds = own.framework, {tuple(p.shape[1:]) for p in _held(of)}
    for kind in sorted(kinds):
        sources, places = ([p for p in _held(module) if tuple(p.shape[1:]) == kind] for module in (of, to))
        rows = np.concatenate([fw.read(p) for p in sources])
        at = 0
        for place in places:
            fw.assign(place, rows[at : at + place.shape[0]])
            at += place.shape[0]
        if at != len(rows):
            raise ValueError(f"{len(rows)} rows are not {at}")


def _held(module: Any) -> list[Any]:
    return [p.data for p in module.parameters()]


def _copy(subject: Subject, pairs: list[tuple[Any, Any]]) -> None:
    fw = subject.framework
    for source, place in pairs:
        if tuple(source.shape) != tuple(place.shape):
            raise ValueError(f"{tuple(source.shape)} is no {tuple(place.shape)}")
        fw.assign(place, fw.read(source))


def _through(own: Subject, read: Structure, write: Structure) -> Give:
    def give(to: Any, of: Any) -> None:
        if set(read.places) != set(write.places):
            raise ValueError("one has an output projection, the other has none")
        write.write(to, read.read(parameters(of, own.framework)), own.framework)
        rest = [_others(of, read), _others(to, write)]
        if [tuple(p.shape) for p in rest[0]] != [tuple(p.shape) for p in rest[1]]:
            raise ValueError("what is beside the projections differs")
        _copy(own, list(zip(*rest, strict=True)))

    return give


def _others(module: Any, structure: Structure) -> list[Any]:
    used = {name for place in structure.places.values() for name in place.names}
    return [p.data for name, p in module.named_parameters() if name not in used]


def _alike(own: Subject, other: Subject, mine: Any, theirs: Any) -> bool:
    """Whether both answer one call alike, but for rounding: that of the reference, roughly, where the target's cannot be followed."""
    length = (own.facts.lengths or (6,))[0]
    tokens = tokens_for(own.speech, 2, length, None if own.facts.sees_itself else 5, 9)
    try:
        right, allowed = bound.spread(other, theirs, other.speech, tokens, "float64", "cpu", 1, ONE_RUN)
        if own.elsewhere:
            out, others = answer(own, mine, tokens), allowed
        else:
            out, others = bound.spread(own, mine, own.speech, tokens, "float64", "cpu", 1, ONE_RUN)
    except (Exception, SystemExit):
        return False
    return out.shape == right.shape and bool((np.abs(out - right) <= ROUGHLY * (allowed + others)).all())
