"""Caches of modules: how one is given, asked for and handed on, found by what it does.

A way to keep a cache is right if tokens that are fed in chunks get the rows that they have among all tokens so far. Where no way is
right, the first under which the past matters at all is kept: then the properties of caches say what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from ..engine.core.target import CannotRun, Raised, first_line
from ..engine.frameworks import Buffers, Framework
from .empties import PLAIN, Nothing, empties, setups
from .facts import NEGLIGIBLE, mask_says
from .feeding import Cached, parts, whole_of
from .names import FORWARD_ROLES, role
from .readings import formal_of
from .speech import Keeping, Past, Speech, Tokens, call, hooks, read, under
from .subject import Subject, answer, tokens_for

BATCH, CHUNKS = 2, (3, 1, 2)  # a first chunk, then one token, then several
STEPS = (3, 1, 1, 1)
OF_ROWS = ("b1ls", "bls", "ls", "bhls", "lsb")  # shapes of masks that say something of each row
# What is filled only where nothing that comes back is a cache: a list that was handed over may be extended in place.
LATER = tuple(PLAIN[kind] for kind in (list, Nothing))
RESETS = ("reset_cache", "reset_kv_cache", "clear_cache", "clear_kv_cache", "empty_cache", "flush_cache", "reset")


def with_keeping(subject: Subject, module: Any) -> Subject:
    """The subject with its cache; as it is if it has none, or none that is understood, which is told."""
    speech, facts = subject.speech, subject.facts
    if speech.layout not in ("bld", "lbd") or speech.pooled or facts.lengths or not facts.sees_itself:
        return subject
    changing: Keeping | None = None
    said = ""
    for keeping in _candidates(module, speech, subject.framework):
        answered = False
        for tried in _ways(keeping, subject, module):
            if tried.steps and answered:
                continue
            try:
                effect = _effect(subject, module, tried)
            except Raised as raised:
                said = said or keeping.name + first_line(raised.error)
                continue
            except (Exception, SystemExit) as error:
                said = said or keeping.name + f"{type(error).__name__}: {first_line(error)}"
                continue
            if effect == "right":
                return replace(subject, speech=replace(speech, keeping=tried))
            if effect == "changes":
                changing = changing or tried
            answered = answered or not tried.mask
    if changing and (facts.causal or _attends_once(subject, module)):
        return replace(subject, speech=replace(speech, keeping=changing))
    caches = ", ".join(name for name in formal_of(module) if role(name, FORWARD_ROLES) in ("past keys", "past values"))
    said = said or (f"no way was found to fill {caches}" if caches else "")
    return replace(subject, untold=said) if said else subject


# ---------------------------------------------------------------- ways to keep one


def _ways(keeping: Keeping, subject: Subject, module: Any) -> list[Keeping]:
    """Chunks of tokens, or one at a time after a first chunk; with a mask, where one may have to say which tokens are later."""
    masks = [mask for mask in subject.speech.masks if mask.shape in OF_ROWS and mask.effect == "right" and not (mask.beside or mask.cross)]
    masks = [mask for mask in masks if mask.whole or not subject.facts.causal][:1]
    masked = [replace(keeping, mask=mask, room=room) for mask in masks for room in (False, True)]
    one_by_one = replace(keeping, steps=True)
    return [*masked, one_by_one] if mask_says(module) else [keeping, *masked, one_by_one]


def _candidates(module: Any, speech: Speech, fw: Framework) -> Iterator[Keeping]:
    formal = formal_of(module)
    meant = {name: role(name, FORWARD_ROLES) for name in formal}
    pasts = [name for name, what in meant.items() if what == "past"]
    flags = [name for name, what in meant.items() if what == "use cache"]
    places = [name for name, what in meant.items() if what in ("start", "position ids", "position row") and name not in speech.roles]
    starts = "start" in speech.roles.values()
    reset = next((name for name in RESETS if callable(getattr(module, name, None))), "")
    for where, name in product(("", *places), pasts):
        made = [
            Keeping("filled", name, flag, number=number, made=kind, where=where)
            for number, kind in empties(module, name, BATCH, fw)
            for flag in (*flags, "")
        ]
        yield from (keeping for keeping in made if keeping.made not in LATER)
        for flag in (*flags, ""):
            for at in _spots(module, speech, name, flag, where, fw):
                yield Keeping("handed back", name, flag, at, where=where)
        yield from (keeping for keeping in made if keeping.made in LATER)
    keys, values = (next((name for name, what in meant.items() if what == f"past {part}"), "") for part in ("keys", "values"))
    if keys and values:
        for where, flag in product(("", *places), (*flags, "")):
            for at in _spots(module, speech, keys, flag, where, fw, values):
                yield Keeping("handed back", keys, flag, at, values=values, where=where)
    if not pasts:
        for where, flag, method in product(("", *places), flags or [""], ("", *setups(module))):
            if flag or starts or where or method:
                yield Keeping("within", flag=flag, where=where, reset=reset, set_up=method)


def _spots(
    module: Any, speech: Speech, name: str, flag: str, where: str, fw: Framework, values: str = ""
) -> list[int | str | tuple[int, int]]:
    """Where something stands in what comes back that may be a cache: of keys and values together, or, where they have a parameter each, of both."""
    keeping = Keeping("handed back", name, flag, where=where, values=values)
    asked = replace(speech, keeping=keeping)
    tokens = tokens_for(speech, BATCH, CHUNKS[0], None)
    try:
        with np.errstate(all="ignore"), hooks(fw).still(), fw.chance(0):
            result = call(module, asked, replace(tokens, past=Past(0)), fw, Buffers(fw), "float64", "cpu")
    except (Exception, SystemExit):
        return []
    if isinstance(result, tuple | list):
        arrays = [at for at, part in enumerate(result) if fw.is_array(part)]
        if values and any(at and at + 1 in arrays for at in arrays):
            return [(at, at + 1) for at in arrays if at and at + 1 in arrays]
        return [at for at in range(len(result) - 1, 0, -1) if _holds_arrays(result[at], fw)]
    held = result if isinstance(result, Mapping) else vars(result) if hasattr(result, "__dict__") else {}
    return [at for at in held if role(at, FORWARD_ROLES) == "past" and _holds_arrays(held[at], fw)]


def _holds_arrays(thing: Any, fw: Framework) -> bool:
    if isinstance(thing, tuple | list):
        return any(_holds_arrays(inner, fw) for inner in thing)
    if isinstance(thing, Mapping):
        return any(_holds_arrays(inner, fw) for inner in thing.values())
    return fw.is_array(thing) or any(fw.is_array(inner) for inner in getattr(thing, "__dict__", {}).values())


# ---------------------------------------------------------------- what they do


def _effect(subject: Subject, module: Any, keeping: Keeping) -> str:
    """right; changes: the past matters, but not as it does without a cache; none: it does not matter. Whatever is raised passes."""
    fw, speech = subject.framework, replace(subject.speech, keeping=keeping)
    whole = tokens_for(speech, BATCH, sum(CHUNKS), None, 5).x
    sizes = STEPS if keeping.steps else CHUNKS

    def cached(start: int) -> Cached:
        own = subject.module("float64", "cpu", 1)  # to which no token was fed

        def ask(tokens: Tokens) -> Any:
            with np.errstate(all="ignore"), hooks(fw).still(), fw.chance(0):
                return call(own, speech, tokens, fw, Buffers(fw), "float64", "cpu")

        held = Cached(keeping, own, ask, fw)
        held.start = start
        return held

    held, at, right, matters = cached(0), 0, True, False
    for chunk in parts(whole, sizes):
        out = read(held.feed(chunk), speech, fw)
        wanted = answer(subject, module, whole_of(keeping, whole[:, : at + chunk.shape[1]]))[:, at:]
        if out.shape != wanted.shape:
            raise CannotRun(f"returned shape {out.shape} for {chunk.shape[1]} tokens after {at}")
        if at:
            right = right and bool((np.abs(out - wanted) <= NEGLIGIBLE * np.abs(wanted).max()).all())
            try:
                alone = read(cached(at).feed(chunk), speech, fw)
                matters = matters or not np.allclose(out, alone, rtol=NEGLIGIBLE, equal_nan=True)
            except (Exception, SystemExit):  # without its past it cannot be called
                matters = True
        at += chunk.shape[1]
    return "right" if right and matters else "changes" if matters else "none"


def _attends_once(subject: Subject, module: Any) -> bool:
    """Whether there is one softmax in it: in a stack of layers that are not causal, later tokens change what earlier ones keep."""
    with under(module, subject.framework, "watched") as names:
        answer(subject, module, tokens_for(subject.speech, 1, 3, None))
    return sum(name in ("softmax", "scaled_dot_product_attention") for name in names) == 1
