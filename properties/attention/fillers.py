"""What is given where something is required that the contract has no name for: sizes of tiles, lengths, segments, positions, flags.

A filler goes by the name of the parameter where that says what it is, and is one under which a right attention sees all keys, or those of
causality. A name that says nothing is given one plain value after the other, and a value is kept only where the answer is right with it.
"""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..engine.cases.coordinates import Array
from ..engine.core.target import NotTaken
from ..engine.frameworks import Framework

COMBINATIONS = 12  # of values that are tried at most, where several are required
NO_CAP = 2.0**100  # c · tanh(x / c) is x, to the last bit
SMALL_TILE = 4  # the keys of one, so that most calls have several
UNLIMITED = 2**20  # keys of a window that hides none, where one number has to be given
QUERIES = {"q", "query", "queries", "tgt", "target", "dec", "decoder", "out"}
# Words in a name that say what is asked for.
TILES = {"block", "tile", "chunk", "blk", "br", "bc", "bm", "bn", "bq", "bk"}
PARTS = {"blocks", "tiles", "chunks", "splits", "split", "partitions"}
LENGTHS = {"len", "lens", "length", "lengths", "seqlen", "seqlens"}
PREFIXES = {"prefix", "prompt"}
SEGMENTS = {"segment", "segments", "seg", "segs", "doc", "docs", "document", "documents"}
BEST = {"topk", "top", "keep"}
POSITIONS = {"pos", "position", "positions"}
OFFSETS = {"offset", "start", "past", "shift"}
TEMPERATURES = {"temperature", "temp", "tau"}
EPSILONS = {"eps", "epsilon"}
WINDOWS = {"window", "radius", "span", "band", "bandwidth", "w"}
CAPS = {"softcap", "cap", "capping", "softcapping"}
FLAGS = {"is", "use", "do", "with", "return", "need", "needs", "output", "training", "verbose", "debug"}


@dataclass(frozen=True, eq=False)
class Filler:
    """A value, or integers along axes of a call: b sequences, l queries, s keys."""

    words: str
    value: Any = None
    axes: str = ""  # of an array
    holds: str = ""  # what it holds: 0, 1, its places along the last axis, or the number l of queries or s of keys
    root: bool = False  # the root of the width of a head
    sure: bool = False  # whether the name says that this changes nothing
    late: bool = False  # whether it is tried where nothing else is right
    tile: bool = False  # whether it is the size of one
    still: bool = False  # whether nothing is turned by positions with it

    def filled(self, sizes: Mapping[str, int], each: str, folded: bool, like: Any, fw: Framework) -> Any:
        """What a call of such sizes is given. ``each``: a call for each index along these; ``folded``: heads lie in the axis of the batch.

        Raises NotTaken for a number that the type has not.
        """
        _, dtype, device = fw.describe(like)
        if self.value is NO_CAP and dtype.endswith("float16") and "b" not in dtype:
            raise NotTaken("caps beyond the largest number")
        if self.root:
            return like.shape[-1] ** 0.5 or 1.0
        if not self.axes and not self.holds:
            return fw.integers(self.value, device) if isinstance(self.value, np.ndarray) else self.value
        counts = {**sizes, "b": sizes["b"] * (sizes["k"] * sizes["g"] if folded else 1)}
        shape = tuple(counts[letter] for letter in self.axes if letter not in each)
        numbers: Array = np.zeros(shape)
        if self.holds == "places" and shape:
            numbers = np.broadcast_to(np.arange(float(shape[-1])), shape)
        elif self.holds == "1":
            numbers = np.ones(shape)
        elif self.holds in ("l", "s"):
            numbers = np.full(shape, float(sizes[self.holds]))
        return fw.integers(np.array(numbers), device) if shape else int(numbers)


def no_cap() -> Filler:
    """A cap of logits that changes none."""
    return Filler("2**100: as good as no cap", NO_CAP, sure=True)


def of_tiles(size: int) -> Filler:
    """So many rows, or keys, at a time: whatever the number, the answer is the same."""
    return Filler(f"{size}, the size of a tile", size, sure=True, tile=True)


def in_small_tiles(filled: Mapping[str, Filler]) -> dict[str, Filler]:
    """The same with the smallest of all sizes of tiles."""
    return {name: of_tiles(SMALL_TILE) if filler.tile else filler for name, filler in filled.items()}


def fillers(parameter: inspect.Parameter) -> tuple[Filler, ...]:
    """What a parameter may be given, the likeliest first."""
    words = words_of(parameter.name)
    rows = "l" if words & QUERIES else "s"
    counted = "the number of " + ("queries" if rows == "l" else "keys")

    def sure(*made: Filler) -> tuple[Filler, ...]:
        return tuple(replace(one, sure=True) for one in made)

    if words & TILES:
        return sure(*map(of_tiles, (SMALL_TILE, 16, 64)))
    if words & PARTS:
        return sure(Filler("2, a number of parts", 2), Filler("1, a number of parts", 1))
    if words & PREFIXES:
        return sure(*(Filler("0 for every sequence: no prefix", axes=axes) for axes in ("b", f"b{rows}")), Filler("0: no prefix", 0))
    if words & LENGTHS:
        return sure(Filler(f"{counted} for every sequence", axes="b", holds=rows), Filler(counted, axes="", holds=rows))
    if words >= {"rotary", "dim"} or words >= {"rope", "dim"}:
        return sure(Filler("0: nothing is turned", 0, still=True))
    if words & BEST:
        return sure(Filler(counted, holds=rows))
    if words & SEGMENTS:
        return sure(*(Filler("1 for every token: one segment", axes=axes, holds="1") for axes in (f"b{rows}", rows)))
    if words & OFFSETS:
        return sure(Filler("0", 0))
    if words & POSITIONS:
        forms = (f"b{rows}", rows)
        alike = tuple(Filler("0 for every token: nothing is turned", axes=axes, sure=True, late=True, still=True) for axes in forms)
        return (*sure(*(Filler("0, 1, 2, …", axes=axes, holds="places") for axes in forms), Filler("0", 0)), *alike)
    if words & TEMPERATURES:
        return sure(Filler("sqrt(dim)", root=True), Filler("1.0", 1.0))
    if words & CAPS:
        return sure(no_cap(), Filler("None: no cap"), Filler("0.0: no cap", 0.0))
    if words & EPSILONS:
        return sure(Filler("0.0", 0.0))
    if words & WINDOWS:
        return (Filler(str(UNLIMITED), UNLIMITED), Filler("None"))
    return tuple(Filler(repr(value), value) for value in _plain(parameter, words))


def _plain(parameter: inspect.Parameter, words: set[str]) -> tuple[Any, ...]:
    """Plain values, by the type that is annotated."""
    hint = str(getattr(parameter.annotation, "__name__", parameter.annotation))
    if hint == "bool" or (words & FLAGS and parameter.annotation is parameter.empty):
        return False, True
    if hint == "int":
        return 1, 0
    if hint == "float":
        return 1.0, 0.0
    return None, False, 1, 0, 1.0


def words_of(name: str) -> set[str]:
    """The words of a name, in lower case, and all of it as one."""
    return {*(word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)), name.lower().replace("_", "")}


def has_meaning(name: str) -> bool:
    """Whether a name says what values of it hide, or divide by."""
    return bool(words_of(name) & (SEGMENTS | PREFIXES | TEMPERATURES))


def combinations(unknown: Sequence[inspect.Parameter]) -> Iterator[dict[str, Filler]]:
    """What each of some parameters is given, the likeliest first."""
    lists = [fillers(parameter) for parameter in unknown]
    orders = sorted(itertools.product(*(range(len(each)) for each in lists)), key=lambda at: (sum(at), at))
    for order in orders[:COMBINATIONS]:
        yield {parameter.name: each[at] for parameter, each, at in zip(unknown, lists, order, strict=True)}


@dataclass(frozen=True, eq=False)
class Meaning:
    """What other values of some parameters hide, by their names: asked in one call of as many queries as keys."""

    given: Mapping[str, Filler]
    visible: Array  # (batch, 1, length, length)
    says: str


def meanings(filled: Mapping[str, Filler], batch: int, length: int, causal: bool) -> Iterator[Meaning]:
    """Of parameters that are given what changes nothing, as far as their names say what other values mean."""
    kinds = {name: words_of(name) for name in filled}
    place = np.arange(length)
    for name, words in kinds.items():
        if words & PREFIXES and filled[name].axes == "b" and causal:
            lengths = np.minimum(2 + 2 * np.arange(batch), length - 1)
            visible = (place[None, :] <= place[:, None])[None, None] | (place < lengths[:, None])[:, None, None]
            yield Meaning({name: Filler("", lengths)}, visible, "every token sees the prefix of its sequence, and what is not later")
    segmented = {name for name, words in kinds.items() if words & SEGMENTS and filled[name].axes in ("bs", "bl")}
    if segmented:
        segments = 1 + (place[None, :] >= 3 + np.arange(batch)[:, None]) + (place[None, :] >= length - 1)
        visible = (segments[:, :, None] == segments[:, None, :])[:, None] & (place <= place[:, None] if causal else True)
        yield Meaning(dict.fromkeys(segmented, Filler("", segments)), visible, "tokens see those of their segment alone")


def moved(filled: Mapping[str, Filler], batch: int, length: int, dim: int, by: int) -> dict[str, Filler]:
    """What says positions, of tokens that stand one after the other from some place on, and that all features are turned by them.

    Empty where nothing says positions, or nothing is known to be turned by them.
    """
    found = {}
    for name, filler in filled.items():
        if words_of(name) & POSITIONS and filler.axes:
            places = np.arange(float(by), by + length)
            found[name] = Filler("", np.broadcast_to(places, (batch, length)).copy() if filler.axes.startswith("b") else places)
    still = [name for name, filler in filled.items() if filler.still]
    return found | {name: Filler("", dim) for name in still if name not in found} if still and found else {}
