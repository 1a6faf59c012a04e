"""Draws that depend on the seed alone: the same cases of a round in every process, each independent of the others.

Hypothesis draws one integer in twenty, thus also one index into a table, from constants that it reads in the source of
whatever local modules are loaded: a worker has loaded others than the process that started it. And it makes about every
second case a copy of another, in which one part was replaced by a part of its kind. Both serve tests of parsers; here they
make a round irreproducible and its sample half as large. So every index is drawn from a range so high that no such constant
lies in it, and a case is drawn as the only element of a list of unique ones, the parts of which Hypothesis leaves alone.
Shrinking is as for plain integers: towards the first element of a table. (The first case of every round is the same one,
Hypothesis' simplest list of unique elements.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from types import MappingProxyType
from typing import Any
from weakref import WeakKeyDictionary

from hypothesis import strategies as st
from hypothesis.internal.conjecture import providers

Strategy = st.SearchStrategy[Any]

FIRST = 7**16  # far from any constant, and exact in float64, in which Hypothesis computes its distribution of integers
TABLES: WeakKeyDictionary[Strategy, Sequence[Any]] = WeakKeyDictionary()  # what a strategy picks from


Narrow = Callable[[Sequence[Any]], Sequence[Any]]  # what is left of a table
_NARROWED: ContextVar[Mapping[str, Narrow]] = ContextVar("narrowed", default=MappingProxyType({}))


@contextmanager
def narrowing(fields: Mapping[str, Narrow]) -> Iterator[None]:
    """Records that are built meanwhile draw these fields from what is left of their tables."""
    token = _NARROWED.set({**_NARROWED.get(), **fields})
    try:
        yield
    finally:
        _NARROWED.reset(token)


def narrowed(name: str, table: Sequence[Any]) -> Sequence[Any]:
    """What is left of the table of a field."""
    return _NARROWED.get().get(name, lambda whole: whole)(table)


def is_narrowed(name: str) -> bool:
    """Whether something is left out of the table of a field."""
    return name in _NARROWED.get()


@contextmanager
def without_constants() -> Iterator[None]:
    """Meanwhile Hypothesis does not read the source of local modules for constants: none lies in our ranges, and to read all takes half a second.

    It has no switch for that; where its private function has another name, the source is read, and draws are the same.
    """
    reads = getattr(providers, "_get_local_constants", None)
    if reads is None:
        yield
        return
    providers._get_local_constants = lambda: providers._local_constants
    try:
        yield
    finally:
        providers._get_local_constants = reads


def natural(n: int) -> Strategy:
    """One of 0, 1, …, n − 1, all alike."""
    return pick(range(n))


def pick(table: Sequence[Any]) -> Strategy:
    """One of the elements of a table, all alike; the first is the simplest."""
    table = table if isinstance(table, range) else tuple(table)
    chosen: Strategy = _index(table).map(lambda index: table[index - FIRST])
    TABLES[chosen] = table
    return chosen


def _index(table: Sequence[Any]) -> Strategy:
    return _below(len(table))


@cache  # Hypothesis keeps its own, which costs more than the draws: a record of a target has hundreds of tables
def _below(count: int) -> Strategy:
    return st.integers(FIRST, FIRST + count - 1)


def record(kind: Callable[..., Any], fields: dict[str, Strategy]) -> Strategy:
    """Objects of a kind, each field drawn by its strategy: ``st.builds`` without a ``map`` around every field, which costs more than the draw."""
    tables = [None if (table := TABLES.get(strategy)) is None else narrowed(name, table) for name, strategy in fields.items()]
    drawn = [strategy if table is None else _index(table) for strategy, table in zip(fields.values(), tables, strict=True)]
    return _record(kind, tuple(zip(fields, drawn, tables, strict=True)))


@st.composite
def _record(draw: st.DrawFn, kind: Callable[..., Any], fields: Sequence[tuple[str, Strategy, Sequence[Any] | None]]) -> Any:
    return kind(**{name: draw(strategy) if table is None else table[draw(strategy) - FIRST] for name, strategy, table in fields})


@st.composite
def either(draw: st.DrawFn, strategies: Sequence[Strategy]) -> Any:
    """A draw from one of the strategies, all alike; the first is the simplest."""
    return draw(strategies[draw(_index(strategies)) - FIRST])


def independent(strategy: Strategy) -> Strategy:
    """Draws that are no edited copies of earlier ones."""
    return st.lists(strategy, min_size=1, max_size=1, unique=True).map(lambda drawn: drawn[0])
