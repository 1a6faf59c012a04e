"""Ways in which ``forward`` of a module may be called, read off its signature and its attributes."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import islice, product
from typing import Any

import numpy as np

from ..engine.cases import coordinates
from ..engine.core.target import CannotRun
from ..engine.frameworks import Buffers, Framework
from .names import CONSTRUCTOR_ROLES, FORWARD_ROLES, Sizes, role
from .speech import DISTANCES, IMAGES, IN_PACKS, ONE_FOR_ALL, PACKED, PLACED, TABLES, Speech, Tokens, call, hooks

TURNED = ("qk_rope_head_dim", "rope_head_dim")  # beside features that do not turn: as many as somebody likes
LATER = ("distances", "added to memory")  # what no first call is given that can do without
PERHAPS = ("distances", "added")  # what a name means where it is required, or something else
BETWEEN = ("agent",)  # in the name of an argument: rows through which tokens see each other, and no memory
LIKELY = 24  # ways that are tried to give lazy parameters their shape


def formal_of(module: Any) -> Mapping[str, inspect.Parameter]:
    """The parameters of ``forward``. Raises CannotRun where they cannot be read."""
    try:
        return inspect.signature(getattr(module, "forward", module)).parameters
    except (TypeError, ValueError) as error:
        raise CannotRun(f"it has a forward whose parameters cannot be read: {error}; wrap it in a module that names them") from None


def speeches_of(fixed: bool, module: Any, formal: Mapping[str, inspect.Parameter]) -> Iterator[Speech]:
    """Ways to call it, the most usual first; those last in which a memory has other features than the tokens."""
    usual = list(_usual(fixed, module, formal))
    yield from usual
    for speech, width in product(usual, _widths(fixed, module)):
        if width != speech.width and (speech.aside or speech.layout in ("bld", "lbd")) and {"memory", "key"} & set(speech.roles.values()):
            seen = {name: "memory" if meant in ("key", "value") else meant for name, meant in speech.roles.items()}
            yield replace(speech, roles=seen, memory_width=width)


def _usual(fixed: bool, module: Any, formal: Mapping[str, inspect.Parameter]) -> Iterator[Speech]:
    packed = any(role(name, FORWARD_ROLES) == "boundaries" for name in formal)
    for layout, width in product((*PACKED * packed, "bld", "bdhw", "bhwd", "bdl", "lbd", "ld"), _widths(fixed, module)):
        for roles, extra in _readings(formal):
            if layout not in PACKED:
                roles = {name: meant for name, meant in roles.items() if meant not in IN_PACKS}
            by_position = tuple(
                name for name, p in formal.items() if p.kind in (p.POSITIONAL_ONLY, p.VAR_POSITIONAL) and (name in roles or name in extra)
            )
            turned = {"angles", "cosine", "complex angles"} & set(roles.values())
            tables = DISTANCES if "distances" in roles.values() else TABLES if turned and layout in ("bld", *PACKED) else list(TABLES)[:1]
            ways = [(roles, table) for table in tables]
            if "angles" in turned:  # as DeepSeek V2 calls complex ones, too, and Mask2Former what is added
                for other in ("complex angles", "added"):
                    ways.append(({name: other if meant == "angles" else meant for name, meant in roles.items()}, ONE_FOR_ALL))
            for meaning, table in ways:
                sizes = _heads(module, width)
                speech = Speech(meaning, by_position, layout, width, width, *sizes, _turned(module), extra=extra, table=table)
                yield speech
                if layout in IMAGES and "memory" in meaning.values():  # as what an image is to show
                    yield replace(speech, aside=True)


def _heads(module: Any, width: int) -> tuple[int, int]:
    """(features of a head, heads), as far as attributes say."""
    sizes = {
        role(name, CONSTRUCTOR_ROLES): value
        for name, value in vars(module).items()
        if isinstance(value, int) and not isinstance(value, bool)
    }
    heads = sizes.get("heads") or Sizes().heads
    return sizes.get("head_dim") or max(width // heads, 1), heads


def _turned(module: Any) -> int:
    """How many features of a head turn with positions, where an attribute tells it; 0: all."""
    return next((value for name, value in vars(module).items() if name in TURNED and type(value) is int), 0)


def _widths(fixed: bool, module: Any) -> list[int]:
    """Numbers of features that a token may have: that of a class is made so; else what attributes and layers say. Without weights, any."""
    found = [] if fixed and any(True for _ in module.parameters()) else [Sizes().heads * Sizes().head_dim]
    found += [v for n, v in vars(module).items() if type(v) is int and role(n, CONSTRUCTOR_ROLES) == "width"] + [_first_layer(module)]
    for inner in module.modules():
        found += [
            getattr(inner, name)
            for name in ("in_features", "embed_dim", "kdim", "in_channels")
            if isinstance(getattr(inner, name, None), int)
        ]
    found += [max(p.shape) for p in module.parameters() if p.ndim == 1][:1] + [p.shape[0] for p in module.parameters() if p.ndim > 1]
    return [width for width in dict.fromkeys(found) if width][:6]


def _first_layer(module: Any) -> int:
    return next((m.in_features for m in module.modules() if isinstance(getattr(m, "in_features", None), int)), 0)


def _readings(formal: Mapping[str, inspect.Parameter]) -> Iterator[tuple[dict[str, str], dict[str, Any]]]:
    """(roles, what else is passed): what each argument may be. Raises CannotRun where one is none of what an attention takes."""
    usable = [p for p in formal.values() if p.kind is not p.VAR_KEYWORD]
    known = {p.name: role(p.name, FORWARD_ROLES) for p in usable}
    required = [p for p in usable if p.default is p.empty and p.kind is not p.VAR_POSITIONAL]
    roles: dict[str, str] = {}
    extra: dict[str, Any] = {}
    unknown: list[str] = []
    asked = "query" in known.values()
    for at, parameter in enumerate(usable):
        name, meant = parameter.name, known[parameter.name]
        needed = parameter in required or parameter.kind is parameter.VAR_POSITIONAL
        if at == 0 and not (asked or meant in ("query", "key", "value")):
            roles[name] = "tokens"
        elif (
            (meant in ("query", "key", "value") and (asked or needed))
            or (meant == "memory" and needed)
            or (meant in (*PLACED, "no bias") and needed and meant not in PERHAPS)
        ) or meant in IN_PACKS:
            roles[name] = meant
        elif needed and meant in ("weights", "use cache", "causal"):
            extra[name] = False
        elif needed and meant in ("mask", "padding", "lengths", "past", "past keys", "past values"):
            extra[name] = None
        elif needed:
            unknown.append(name)
    supplied = {p.name: known[p.name] for p in usable if known[p.name] in PLACED and known[p.name] not in LATER and p not in required}
    memory = [p.name for p in usable if known[p.name] == "memory" and p.name not in roles][:1]
    if not unknown:
        yield roles, extra
        if supplied:
            yield {**roles, **supplied}, extra
        for name in memory:  # optional by its default, and yet there is no call without one
            yield {**roles, name: "memory"}, extra
        return
    own = all(known[name] in PERHAPS for name in unknown)
    if between := next((name for name in unknown if any(word in name for word in BETWEEN)), ""):
        raise CannotRun(f"it asks for {between}, through which tokens see each other: that is no attention of tokens to tokens")
    for guess in ("own",) * own + ("tokens again", "memory", "none", "zero"):
        more = {name: known[name] if guess == "own" else "key" if guess == "tokens again" else guess for name in unknown}
        values = dict.fromkeys(unknown, None if guess == "none" else 0)
        for also in ({}, supplied) if supplied else ({},):
            yield (roles | also, extra | values) if guess in ("none", "zero") else (roles | more | also, extra)


def settle(module: Any, fw: Framework) -> None:
    """Give lazy parameters the shapes that they get in a first call, of tokens of the width that classes are made for."""
    width = Sizes().heads * Sizes().head_dim
    x, memory = (coordinates.normal(0, name, (2, length, width)) for name, length in (("x", 5), ("memory", 7)))
    for roles, extra in islice(_readings(formal_of(module)), LIKELY):
        for layout in ("bld", "bdhw", "ld"):
            speech = Speech(roles, (), layout, width, width, extra=extra)
            given = Tokens(x, memory if speech.name("memory") else None)
            with suppress(Exception, SystemExit), np.errstate(all="ignore"), hooks(fw).still():
                call(module, speech, given, fw, Buffers(fw), "float32", "cpu")
            if not hooks(fw).unmade(module):
                return
