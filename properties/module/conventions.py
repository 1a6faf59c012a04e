"""What of a confirmed structure is a convention, and what a mistake: of the scale, the groups of heads, the positions.

A scale other than one over the square root of a head's width is a convention where the module says so: an attribute that holds it, a name
of those that have it, a parameter that is learned, an embedding of distances where there is no scale (T5, Raffel et al. 2020). An attribute
that was computed from the wrong size is no convention.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from ..engine.core.target import CannotRun
from .ingredients import numbers_of_scales, written_unscaled
from .names import Sizes
from .speech import IMAGES
from .structure import HEADS, KNOWN, POSITIONS, ROUNDED, SCALES, TURNED, USUAL, USUAL_WAYS, Structure, factor
from .subject import Subject

NAMED = {"T5": "1", "muP": "1/head_dim", "GPTNeoSelf": "1"}  # in names of classes of those who scale otherwise
OTHER_SIZES = Sizes(heads=2, head_dim=4)


def judged(s: Structure, subject: Subject, module: Any) -> Structure:
    """The structure with what of it is told as a convention, and with itself without mistakes."""
    differs: dict[str, str] = {}
    mended, mistakes = s, []
    width = subject.speech.width
    if not _usual(s):
        if why := _written(s, subject, module):
            differs["scale"] = f"{_shown(s, width)}{why}, not {USUAL}"
        else:
            mended = mended.but(scale=USUAL)
            mistakes.append(f"logits are scaled by {_shown(s, width)}, expected {USUAL}")
    if s.tiled:
        mended = mended.but(tiled="")
        of = {"kv": "key head", "k": "keys of head", "v": "values of head"}[s.tiled]
        mistakes.append(f"query head h reads {of} h % {s.kv_heads}, expected h // {s.group}")
    if s.cap < 0:
        mended = mended.but(cap=-s.cap)
        mistakes.append(f"logits become tanh(logits / {-s.cap:g}), expected {-s.cap:g} · tanh(logits / {-s.cap:g})")
    for changes, words in _positions(s):
        mended = mended.but(**changes)
        mistakes.append(words)
    return s.but(differs=differs, mistakes=tuple(mistakes), mended=mended if mistakes else None)


def _usual(s: Structure) -> bool:
    """Whether nothing has to be said of the scale: it is the usual one, it is learned, or queries and keys have no length."""
    lengths = [norm.kind for part, norm in s.norms.items() if part in ("q", "k")]
    return s.scale in USUAL_WAYS or s.learned is not None or lengths == ["length", "length"]


def _written(s: Structure, subject: Subject, module: Any) -> str:
    """Where a module says that it has another scale; empty if nowhere, and of what is a part of a head alone."""
    d = len(s.places["q"].rows) // s.heads
    value = factor(s.scale, d, s.heads, subject.speech.width)
    parts = [s.rotation.features] if s.rotation and s.rotation.features < d else []  # of the features that are turned, whatever holds it
    parts += [s.latent.alone, s.latent.shared] if s.latent else []
    alone = any(n and math.isclose(value, n**-0.5, rel_tol=1e-6) for n in parts)
    return documented(s.scale, value, subject, module, s.heads, alone)


def documented(scale: str, value: float, subject: Subject, module: Any, heads: int, alone: bool = False) -> str:
    """Where a module says that its scale is this one, in words and as a number; empty if nowhere. ``alone``: an attribute says nothing."""
    kinds = {type(part).__name__.lower() for part in module.modules()}
    for word, named in NAMED.items():
        if scale == named and any(word.lower() in kind for kind in kinds):
            return f" ({word}'s)"
    held = dict(module.named_parameters())
    of_heads = [
        name for name in subject.silent if name.endswith(".weight") and held[name].shape[-1] == heads
    ]  # others meet queries, as logits do
    if scale == "1" and of_heads:
        return f" (beside {of_heads[0]}, an embedding of distances, as T5's)"
    if scale == "1" and heads == 1 and subject.speech.layout in IMAGES:
        return " (as in non-local blocks and in SAGAN)"
    if scale == "1" and (said := written_unscaled(module)):
        return f" ({said})"
    for name, number in {} if alone else numbers_of_scales(module).items():
        holds = number > 0 and any(math.isclose(way, value, rel_tol=1e-6) for way in (number, 1 / number, number**-0.5))
        if holds and (scale not in SCALES or scale in KNOWN or _stays(name, number, subject)):
            return f" ({name})"
    flags = [(name, flag) for part in module.modules() for name, flag in vars(part).items() if "scale" in name]
    off = [name for name, flag in flags if flag is False and "grad" not in name]  # an embedding has one, of its gradient
    return f" ({off[0]} is False)" if off and scale == "1" and not alone else ""


def _stays(name: str, number: float, subject: Subject) -> bool:
    """Whether an attribute is a number that somebody chose: it is the same in a module of other sizes."""
    if not subject.facts.varied:
        return False
    try:
        return numbers_of_scales(subject.module("float64", "cpu", 1, sizes=OTHER_SIZES)).get(name) == number
    except CannotRun:
        return False


def _shown(s: Structure, width: int) -> str:
    """The scale in words; of a head and of the width, where these sizes do not tell the two apart."""
    if s.scale not in (*SCALES, *ROUNDED):
        return f"{float(s.scale):.3g}"
    d = len(s.places["q"].rows) // s.heads
    value = factor(s.scale, d, s.heads, width)
    of_width = s.scale == "1/head_dim" and math.isclose(value, width**-0.5)
    return f"{s.scale} or 1/sqrt(width)" if of_width else s.scale


def _positions(s: Structure) -> list[tuple[dict[str, Any], str]]:
    """(what is changed, what is said) of each mistake in positions."""
    found: list[tuple[dict[str, Any], str]] = []
    if (turned := s.rotation) is not None:
        right = {"rotation": replace(turned, who="qk", along=POSITIONS, tables=turned.pairing, keys="")}
        if turned.keys:
            found.append((right, f"{turned.keys} of keys are turned together, and {turned.pairing} of queries: expected alike"))
        if turned.who != "qk":
            found.append((right, f"{TURNED[turned.who]} are turned by their positions, expected {TURNED['qk']}"))
        if turned.along == HEADS:
            found.append((right, "queries and keys are turned by the number of their head, expected by their position"))
        if turned.tables != turned.pairing:
            found.append((right, f"{turned.pairing} are turned together, by the angles of {turned.tables}, expected of {turned.pairing}"))
    if s.slopes is not None and s.slopes.scaled:
        found.append(({"slopes": replace(s.slopes, scaled=False)}, "the bias of distances is scaled as logits are, expected not to be"))
    if s.slopes is not None and s.slopes.grows:
        found.append(({"slopes": replace(s.slopes, grows=False)}, "the bias of distances grows with them, expected to fall"))
    return found
