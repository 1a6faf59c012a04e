"""Sequences that are fed to a module in chunks, with a cache."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ..engine.cases.coordinates import Array
from ..engine.frameworks import Framework
from .empties import empty, set_up
from .names import CACHED
from .speech import Keeping, Past, Tokens
from .trial import ModuleTrial

_SET_UP: weakref.WeakSet[Any] = weakref.WeakSet()  # modules that have made a cache of their own


class Cached:
    """Sequences that are fed to one module, chunk by chunk; ``ask`` calls it."""

    def __init__(self, keeping: Keeping, module: Any, ask: Callable[[Tokens], Any], fw: Framework) -> None:
        self.keeping, self.module, self.ask, self.fw, self.start = keeping, module, ask, fw, 0
        self.cache: Any = None
        self.begun = False
        if keeping.reset and not keeping.set_up:
            getattr(module, keeping.reset)()

    def feed(self, x: Array) -> Any:
        """What the module returns for the next tokens (B, n, D)."""
        keeping = self.keeping
        if not self.begun and keeping.kind == "filled":
            self.cache = empty(self.module, keeping.parameter, keeping.number, len(x), self.fw)
        if not self.begun and keeping.set_up:
            if keeping.reset and self.module in _SET_UP:
                getattr(self.module, keeping.reset)()
            else:
                set_up(self.module, keeping.set_up, len(x), self.fw)
                _SET_UP.add(self.module)
        self.begun = True
        result = self.ask(replace(told(keeping, x, self.start), past=Past(self.start, self.cache)))
        if keeping.kind == "handed back":
            self.cache = _at(result, keeping.at)
        self.start += x.shape[1]
        return result


def _at(result: Any, at: int | str | tuple[int, int]) -> Any:
    if isinstance(at, tuple):
        return tuple(result[place] for place in at)
    if isinstance(at, int):
        return result[at]
    return result[at] if isinstance(result, Mapping) else getattr(result, at)


def told(keeping: Keeping, x: Array, start: int = 0) -> Tokens:
    """A call with these tokens (B, n, D) after so many others, with the mask that says which are later, where a cache needs one."""
    if keeping.mask is None:
        return Tokens(x)
    keys = CACHED if keeping.room else start + x.shape[1]
    return Tokens(x, visible=np.tri(x.shape[1], keys, start, dtype=bool)[None], by=keeping.mask)


def whole_of(keeping: Keeping, x: Array) -> Tokens:
    """The same tokens in a call without a cache."""
    return told(replace(keeping, room=False), x)


def parts(x: Array, sizes: tuple[int, ...]) -> list[Array]:
    """Consecutive chunks of tokens (B, L, D)."""
    return np.split(x, np.cumsum(sizes)[:-1], axis=1)


def begun(t: ModuleTrial, made: Any = None) -> Cached:
    """A new sequence, to be fed to the module of the case."""
    own = t.module if made is None else made
    ask: Callable[[Tokens], Any] = lambda tokens: t.result(tokens, own)  # noqa: E731
    return Cached(t.speech.keeping, own, ask, t.target.framework)


def chunks(t: ModuleTrial, length: int) -> tuple[int, ...]:
    """Sizes of two to four chunks: steps of one token, or one or two larger chunks after a first one."""
    ways = ("steps",) if t.speech.keeping.steps else ("steps", "one", "two")
    way = ways[t.choice("way", len(ways))]
    if way == "steps" or length < 3:
        steps = min(1 + t.choice("steps", 3), length - 1)
        return (length - steps, *(1,) * steps)
    first = 1 + t.choice("first", length - 2)
    rest = length - first
    second = 1 + t.choice("second", rest - 1) if way == "two" and rest > 1 else rest
    return tuple(size for size in (first, second, rest - second) if size)


def fed(t: ModuleTrial, x: Array, held: Cached) -> list[Array]:
    """The answers (B, n, D') to the chunks of a sequence that is fed to a cache."""
    return [t.read(held.feed(part), Tokens(part)) for part in parts(x, chunks(t, x.shape[1]))]


def last_of_chunks(t: ModuleTrial) -> Array:
    """(B, n, D'): the answer to the last chunk of the tokens of the case."""
    return fed(t, t.inputs.x, begun(t, t.anew()))[-1]
