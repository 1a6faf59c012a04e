"""How long the sequences of a pack are: (queries, keys) of every sequence, from the case."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..engine.cases.coordinates import Array, bits


def _drawn(case: Any, name: str, least: int, most: int) -> Array:
    draw = bits(case.seed, name, (case.batch,)) >> np.uint64(33)
    return least + (draw % np.uint64(max(most, least) + 1 - least)).astype(np.int64)


def _equal(case: Any) -> tuple[Array, Array]:
    """All sequences have the same lengths: a batch without a pack says the same."""
    return np.full(case.batch, case.queries), np.full(case.batch, case.keys)


def _mixed(case: Any) -> tuple[Array, Array]:
    """Every sequence has lengths of its own, of queries and of keys: a boundary of queries taken for one of keys."""
    return _drawn(case, "queries", 1, case.queries), _drawn(case, "keys", 1, case.keys)


def _self(case: Any) -> tuple[Array, Array]:
    """As many keys as queries, in every sequence another number: self-attention, where one array of boundaries is passed for both."""
    return (same := _drawn(case, "keys", 1, case.keys)), same


def _decoding(case: Any) -> tuple[Array, Array]:
    """One query each, and caches of different lengths: the causal corner of each sequence is its own (B06)."""
    return np.ones(case.batch, dtype=np.int64), _drawn(case, "keys", 1, case.keys)


def _ones(case: Any) -> tuple[Array, Array]:
    """One token each: every boundary is an edge, every row the value of its own key, and a neighbour that is seen shows (A37)."""
    return (same := np.ones(case.batch, dtype=np.int64)), same


def _long_last(case: Any) -> tuple[Array, Array]:
    """All sequences but the last have one token: a grid or a longest length that was made for the first one."""
    last = np.arange(case.batch) == case.batch - 1
    return np.where(last, case.queries, 1), np.where(last, case.keys, 1)


def _some_empty(case: Any) -> tuple[Array, Array]:
    """Some sequences have neither queries nor keys: equal boundaries, which move those of all others (C15)."""
    there = _drawn(case, "empty", 0, 2) > 0
    queries, keys = _mixed(case)
    return queries * there, keys * there


def _no_queries(case: Any) -> tuple[Array, Array]:
    """Some sequences have keys, but no query: rows are counted by keys."""
    queries, keys = _mixed(case)
    return queries * (_drawn(case, "empty", 0, 1) > 0), keys


def _no_keys(case: Any) -> tuple[Array, Array]:
    """Some sequences have queries, but no key: their rows follow the convention for empty rows (C15, C24)."""
    queries, keys = _mixed(case)
    return queries, keys * (_drawn(case, "empty", 0, 1) > 0)


PACKINGS: dict[str, Callable[[Any], tuple[Array, Array]]] = {
    "equal": _equal,
    "mixed": _mixed,
    "self": _self,
    "decoding": _decoding,
    "ones": _ones,
    "long_last": _long_last,
    "some_empty": _some_empty,
    "no_queries": _no_queries,
    "no_keys": _no_keys,
}
FILLED = ("equal", "mixed", "self", "decoding", "ones", "long_last")
