"""What must be drawn of caches is drawn: each fact below holds of a case in 500, read off the chunks that are fed, or off the calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from drawing import asks, cases_of
from exact_caches import EXACT_CACHE, Exact
from torch import Tensor

from properties.cache.cases import Case
from properties.cache.trial import CacheTrial
from properties.catalogue import PROPERTIES
from properties.engine.cases.dtypes import FLOAT_TYPES
from properties.engine.core.attempt import try_case
from properties.engine.frameworks import LAYOUTS
from properties.engine.search.probe import make_target


def facts(case: Case) -> Iterator[str]:
    """Of the chunks in which a case is fed."""
    t = CacheTrial(EXACT_CACHE, case)
    sizes, given = t.schedule.sizes, t.schedule.given
    done = given.cumsum(axis=0)
    lengths = done[-1]
    yield case.dtype
    yield f"layout {case.layout}"
    yield "one-shot prefill" if len(sizes) == 1 else "steps of one only" if set(sizes) == {1} else "chunks and steps"
    if sizes[0] > 1 and len(sizes) > 3 and set(sizes[1:]) == {1}:
        yield "a prefill and several steps"
    if 0 in sizes:
        yield "a chunk of nothing"
    yield "exactly at capacity" if t.capacity == lengths.max() else "unused slots at the end"
    for name, size in (("batch", case.batch), ("kv_heads", case.kv_heads), ("group", case.group), ("dim", t.dim), ("keys", case.keys)):
        yield f"{name} = 1" if size == 1 else f"{name} > 1"
    if case.group > 1 < case.kv_heads:
        yield "groups with several key/value heads"
    if case.batch == case.kv_heads > 1:
        yield "batch = kv_heads"
    if case.width != case.dim:
        yield "Dv < D" if case.width < case.dim else "Dv > D"
    if case.lengths:
        if len(set(lengths.tolist())) > 1:
            yield "sequences of different lengths"
        if (given[-1] == 0).any() and given[-1].any():
            yield "a sequence that is fed nothing beside others that are fed"
        if not lengths.all():
            yield "a sequence without a token"
        if len(sizes) > 1 and (given[1:] == 0).all(axis=1).any():
            yield "a chunk of padding alone"
    if case.padded and t.schedule.padding.any():
        yield "left padding"
        if len(set(t.schedule.padding.tolist())) > 1:
            yield "left padding of different length"
        if len(sizes) > 1:
            yield "left padding, then more"
        if case.base is not None and len(sizes) > 1:
            yield "left padding, rotary, then more"
    if case.page_size is not None:
        page, starts = case.page_size, done - given
        if ((starts // page != (done - 1) // page) & (given > 1) & (starts % page > 0)).any():
            yield "a chunk across a page edge"
        if (starts[1:] % page == 0).any():
            yield "a chunk that begins on a page edge"
        if t.capacity % page:
            yield "a capacity that is no multiple of the page"
        if page > t.capacity:
            yield "a page larger than the capacity"
        if len(set(lengths.tolist())) > 1:
            yield "pages and different lengths"
    if t.window is not None:
        window, sizes_seen = t.window, np.array(sizes)
        yield "window of one" if window == 1 else "window > 1"
        if window >= case.keys:
            yield "a window that hides nothing"
        if (sizes_seen > window).any():
            yield "a window smaller than the chunk"
        if len(sizes) > 1 and sizes[0] > window:
            yield "a prefix longer than the window, then more"
        if (lengths > 2 * window).any() and sizes[-1] == 1:
            yield "a step after the ring wrapped around twice"
        if ((done[1:] - given[1:]) % window + given[1:] > window).any() and (sizes_seen[1:] > 1).any():
            yield "a chunk across the end of the ring"
        if case.base is not None and (lengths > window).any():
            yield "rotary after eviction"
        if case.page_size is not None:
            yield "window and pages"
    if case.base is not None:
        yield "rotary" if len(sizes) == 1 else "rotary over several chunks"


EXPECTED = [
    *FLOAT_TYPES,
    *(f"layout {x}" for x in LAYOUTS if x not in ("mixed", "expanded")),
    "one-shot prefill",
    "steps of one only",
    "chunks and steps",
    "a prefill and several steps",
    "a chunk of nothing",
    "exactly at capacity",
    "unused slots at the end",
    *(f"{name} {size}" for name in ("batch", "kv_heads", "group", "dim", "keys") for size in ("= 1", "> 1")),
    "groups with several key/value heads",
    "batch = kv_heads",
    "Dv < D",
    "Dv > D",
    "sequences of different lengths",
    "a sequence that is fed nothing beside others that are fed",
    "a sequence without a token",
    "a chunk of padding alone",
    "left padding",
    "left padding of different length",
    "left padding, then more",
    "left padding, rotary, then more",
    "a chunk across a page edge",
    "a chunk that begins on a page edge",
    "a capacity that is no multiple of the page",
    "a page larger than the capacity",
    "pages and different lengths",
    "window of one",
    "window > 1",
    "a window that hides nothing",
    "a window smaller than the chunk",
    "a prefix longer than the window, then more",
    "a step after the ring wrapped around twice",
    "a chunk across the end of the ring",
    "rotary after eviction",
    "window and pages",
    "rotary",
    "rotary over several chunks",
]


def test_chunks_lengths_pages_and_windows() -> None:
    found = Counter[str]()
    for case in cases_of(EXACT_CACHE, "cached_decoding_is_one_pass", rounds=1):
        found.update(set(facts(case)))
    asks(EXPECTED, found)


SEEN = Counter[str]()


class Recorded(Exact):
    """The exact cache, which notes what is asked of it after what."""

    longest, kin, since = 0, None, ""

    def append(self, q: Tensor, k: Tensor, v: Tensor, *, lengths: Tensor | None = None, padding: Tensor | None = None) -> Tensor:
        out = super().append(q, k, v, lengths=lengths, padding=padding)
        if self.since and q.shape[2]:
            SEEN[f"{self.since}, then more"] += 1
            if self.since == "reset" and 0 < self.length(0) < self.longest:
                SEEN["reset, then a shorter text"] += 1
            self.since = ""
        if self.kin is not None:
            self.kin.add(id(self))
            SEEN["fork, then both go on"] += len(self.kin) > 1
        self.longest = max(self.longest, self.length(0))
        return out

    def fork(self) -> Any:
        made = super().fork()
        self.kin = made.kin = set()
        SEEN["a fork of a fork"] += hasattr(self, "parent")
        made.parent = True
        return made

    def truncate(self, length: int) -> None:
        before = self.length(0)
        super().truncate(length)
        self.since = "reset" if length == 0 else "truncated" if length < before else self.since

    def reorder(self, index: Tensor) -> None:
        super().reorder(index)
        self.since = "reordered, one sequence twice" if len(set(index.tolist())) < len(index) else "reordered"


def test_programs() -> None:
    """Of the calls that programs, and the properties of each word, really make."""
    SEEN.clear()
    target = make_target("recorded", Recorded, {"framework": "torch"})
    for name in ("any_program_follows_the_model", "reset_leaves_no_trace"):
        for case in cases_of(target, name, rounds=1, count=80):
            assert try_case(target, PROPERTIES[name], case) is None
    asks(
        [
            "reset, then more",
            "reset, then a shorter text",
            "truncated, then more",
            "reordered, then more",
            "reordered, one sequence twice, then more",
            "fork, then both go on",
            "a fork of a fork",
        ],
        SEEN,
    )


REFUSALS: dict[str, tuple[dict[str, Any], Any]] = {
    "head_dims": ({"head_dims": [8, 16]}, lambda c: c.dim in (8, 16) and c.width == c.dim),
    "max_length": ({"max_length": 9}, lambda c: c.keys <= 9),
    "value_dim": ({"value_dim": False}, lambda c: c.width == c.dim),
    "zero_sizes": ({"zero_sizes": False}, lambda c: 0 not in c.chunks[:-1]),
    "dtypes": ({"dtypes": ["float32"]}, lambda c: c.dtype == "float32"),
    "parameters": ({"parameters": ["page_size", "dtype"]}, lambda c: c.group == 1 and c.window_left is None and not c.lengths),
}


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize("fact", REFUSALS)
def test_what_is_not_supported_is_not_drawn(fact: str) -> None:
    """All cases keep to what is declared: restricted, not filtered, so that none is lost."""
    supports, keeps = REFUSALS[fact]
    target = make_target("narrowed", Exact, {"framework": "torch", **supports})
    seen = cases_of(target, "cached_decoding_is_one_pass", rounds=1, count=80)
    assert len(seen) == 80 and all(map(keeps, seen))
    assert not all(map(keeps, cases_of(EXACT_CACHE, "cached_decoding_is_one_pass", rounds=1, count=80)))
