"""What a module may be made of: projections, heads, norms, positions, a scale. ``confirm.py`` says of which of them it is, by effect.

A structure holds the names of parameters, not their numbers: those are read off the module of a case.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..engine.cases.coordinates import Array
from ..engine.frameworks import Framework
from .reduction import Reduction

Held = Mapping[str, Array]  # parameters, buffers and constants of a module, by their names
SCALES: dict[str, Callable[[int, int, int], float]] = {  # of (features of a head, heads, width)
    "1/sqrt(head_dim)": lambda d, h, w: d**-0.5,
    "1": lambda d, h, w: 1.0,
    "1/head_dim": lambda d, h, w: 1 / d,
    "1/head_dim^(1/4)": lambda d, h, w: d**-0.25,  # of the root of the usual one, which queries and keys both are given
    "1/sqrt(width)": lambda d, h, w: w**-0.5,
    "1/width": lambda d, h, w: 1 / w,
    "1/sqrt(heads)": lambda d, h, w: h**-0.5,
    "sqrt(head_dim)": lambda d, h, w: d**0.5,
}
USUAL = "1/sqrt(head_dim)"
ROUNDED: dict[str, Callable[[int, int, int], float]] = {  # the same where it, or what logits are divided by, is held in an array of float32
    f"{name}{how}": lambda d, h, w, of=of, power=power: float(np.float32(of(d, h, w) ** power)) ** power  # type: ignore[misc]
    for name, of in SCALES.items()
    for how, power in ((" in float32", 1), (", one over a float32", -1))
    if name != "1"
}
USUAL_WAYS = (USUAL, f"{USUAL} in float32", f"{USUAL}, one over a float32")
KNOWN = ("1", "1/head_dim")  # T5's, and that of maximal update parametrisation: conventions, where something says so
POSITIONS, HEADS = "positions", "heads"
ONE_MORE = "one more in the denominator"
TURNED = {"qk": "queries and keys", "q": "queries alone", "k": "keys alone", "qkv": "queries, keys and values"}
PARTS_OF = {
    "x": "of the input",
    "memory": "of the memory",
    "fewer": "of fewer tokens",
    "latent": "of what keys and values come out of",
    "latent q": "of what queries come out of",
    "q": "of queries",
    "k": "of keys",
    "out": "of the output",
}


@dataclass(frozen=True, eq=False)
class Place:
    """Where a projection lies: rows of parameters as (out, in). Of heads that are modules of their own, several parameters."""

    weight: str
    bias: str
    axes: tuple[int, ...]  # how the parameter is transposed before its axes are joined to (out, in)
    lead: int  # how many of them make up the outputs
    rows: Array  # which of its output rows
    others: tuple[tuple[str, str], ...] = ()  # (weight, bias) of the heads after the first one, below its rows

    @property
    def names(self) -> tuple[str, ...]:
        """Of all its parameters."""
        return tuple(name for pair in ((self.weight, self.bias), *self.others) for name in pair if name)

    def get(self, held: Held) -> tuple[Array, Array | None]:
        """(weight (out, in), bias (out,))"""
        wholes = [_matrix(held[weight], self.axes, self.lead) for weight, _ in ((self.weight, ""), *self.others)]
        whole = np.concatenate(wholes) if self.others else wholes[0]
        if not self.bias:
            return whole[self.rows], None
        biases = [held[bias].reshape(-1) for _, bias in (("", self.bias), *self.others)]
        return whole[self.rows], (np.concatenate(biases) if self.others else biases[0])[self.rows]

    def put(self, held: Mapping[str, Any], weight: Array, bias: Array | None, fw: Framework) -> None:
        """Write them into arrays of the framework; a bias that has no place is left out, one that is not given is 0."""
        names = ((self.weight, self.bias), *self.others)
        stored = [fw.read(held[name]) for name, _ in names]
        whole = np.concatenate([_matrix(each, self.axes, self.lead) for each in stored])
        whole[self.rows] = weight
        for (name, _), each, rows in zip(names, stored, np.split(whole, len(names)), strict=True):
            moved = tuple(each.shape[axis] for axis in self.axes)
            fw.assign(held[name], rows.reshape(moved).transpose(np.argsort(self.axes)))
        if self.bias:
            kept = [fw.read(held[name]) for _, name in names]  # (out,), or (heads, features of a head)
            row = np.concatenate([each.reshape(-1) for each in kept])
            row[self.rows] = 0.0 if bias is None else bias
            for (_, name), each, part in zip(names, kept, np.split(row, len(names)), strict=True):
                fw.assign(held[name], part.reshape(each.shape))


def _matrix(x: Array, axes: tuple[int, ...], lead: int) -> Array:
    """(out, in) of a parameter."""
    y = x.transpose(axes)
    return np.array(y.reshape(int(np.prod(y.shape[:lead])), -1))


@dataclass(frozen=True)
class Norm:
    """A norm over the last axis, of whatever it is put to."""

    name: str  # of the module, for the report
    kind: str  # layer: mean and variance; rms; group: of a group of features in all tokens; length: no weight; gain: a weight alone
    weight: str = ""
    bias: str = ""
    epsilon: float | None = None  # None: that of the type
    one_more: bool = False  # it multiplies by 1 + weight
    groups: int = 0  # of features

    @property
    def names(self) -> tuple[str, ...]:
        """Of its parameters."""
        return tuple(name for name in (self.weight, self.bias) if name)


@dataclass(frozen=True, eq=False)
class Rotation:
    """Features turned by angles that grow with positions."""

    pairing: str  # halves: feature i with i + n/2; neighbours: 2i with 2i + 1
    tables: str  # the pairing that the angles are made for
    features: int  # how many turn
    source: str  # where the angles are from
    frequencies: Array | None = None  # angles at position 1; None: they lie in the module
    names: tuple[str, ...] = ()  # of frequencies, or of cosines and sines, in the module
    last: bool = False  # the last features turn, not the first ones
    who: str = "qk"
    along: str = POSITIONS
    early: bool = False  # before the norms of queries and keys
    keys: str = ""  # the pairing of keys, where it is another one than that of queries
    back: bool = False  # by the same angles the other way round, which tells distances as well

    @property
    def words(self) -> str:
        """For the report."""
        return f"{self.pairing} of {self.features} features turned{' back' * self.back}, {self.source}"


@dataclass(frozen=True)
class Slopes:
    """A bias that falls with the distance, for every head by another slope."""

    source: str  # the buffer that holds them; empty: 2^(−8 (h + 1) / heads)
    grows: bool = False
    scaled: bool = False  # multiplied by the scale, as logits are


@dataclass(frozen=True)
class Learned:
    """A parameter that multiplies logits."""

    name: str
    how: str  # times; exp; over


@dataclass(frozen=True)
class Table:
    """A bias of logits that is looked up, as of the distance of two tokens in a window (Liu et al. 2021)."""

    name: str  # of the parameter: a number for each distance and each head
    places: str  # of the buffer (L, L): where the number of two tokens stands; fewer tokens are the first ones
    first: bool  # heads are its first axis

    def bias(self, held: Held, rows: int, keys: int, reshaped: bool = False) -> Array:
        """(H, rows, keys); reshaped: its axes are joined and parted again, and not exchanged, which is a mistake."""
        numbers = held[self.name].T if self.first else held[self.name]
        found = numbers[held[self.places].astype(np.int64)[:rows, :keys]]  # (rows, keys, H)
        return found.reshape(-1, *found.shape[:2]) if reshaped else found.transpose(2, 0, 1)


@dataclass(frozen=True)
class Mixing:
    """Matrices that mix heads (Shazeer et al. 2020), each a weight (H, H) and a bias (H,), or none."""

    logits: tuple[str, str] = ("", "")
    weights: tuple[str, str] = ("", "")

    @property
    def words(self) -> str:
        """For the report."""
        mixed = {"logits": self.logits[0], "weights": self.weights[0]}
        return "heads mixed: " + ", ".join(f"{part} by {name.removesuffix('.weight')}" for part, name in mixed.items() if name)


def mixed(x: Array, by: tuple[str, str], held: Held) -> Array:
    """x (B, H, L, S) with its heads mixed."""
    weight, bias = by
    if not weight:
        return x
    matrix = held[weight].reshape(held[weight].shape[:2])
    return np.einsum("gh,bhls->bgls", matrix, x) + (held[bias][:, None, None] if bias else 0.0)


@dataclass(frozen=True, eq=False)
class Structure:
    """An assignment of parameters, heads, order, norms, positions and scale."""

    places: Mapping[str, Place]
    heads: int
    kv_heads: int
    order: str  # of a fused projection
    tiled: str = ""  # of "k" and "v": query head h reads key head h % kv_heads of these, not h // group
    scale: str = USUAL  # one of SCALES, or a number
    learned: Learned | None = None
    norms: Mapping[str, Norm] = field(default_factory=dict)  # of x, memory, q, k, out
    residual: bool = False
    rotation: Rotation | None = None
    slopes: Slopes | None = None
    table: Table | None = None
    mixing: Mixing | None = None
    sinks: str = ""  # the parameter of a further logit for each head; ``ONE_MORE``: that logit is 0
    cap: float = 0.0  # logits are cap · tanh(logits / cap); 0: they are not; below 0: they are tanh(logits / −cap)
    latent: Any = None  # of ``latent.Latent``: keys and values come out of few features
    reduction: Reduction | None = None  # of the tokens that keys and values are of
    added: str = "qk"  # to what positions are added, where some are given: of what these are made of
    pattern: Array | None = None  # (L, L) bool: which tokens are seen, of as many as were tried; shorter sequences see the first rows of it
    silent: tuple[str, ...] = ()  # tables of positions, which are not understood: it answers so where they are 0
    still: bool = False  # queries and keys of a memory are not turned
    alone: bool = False  # with a memory it is another one, of other parameters
    mistakes: tuple[str, ...] = ()  # what it does, and should not
    mended: Structure | None = None  # the same without them
    differs: Mapping[str, str] = field(default_factory=dict)  # conventions that are not the usual ones

    @property
    def group(self) -> int:
        """Query heads that share a key head."""
        return self.heads // self.kv_heads

    @property
    def found(self) -> str:
        """The names of the projections."""
        latent = (self.latent.down, self.latent.up) if self.latent else ()
        return ", ".join(dict.fromkeys(place.weight.removesuffix(".weight") for place in (*self.places.values(), *latent)))

    @property
    def words(self) -> str:
        """For the report."""
        return "; ".join((self.found, self.shape))

    @property
    def shape(self) -> str:
        """What is made of the projections."""
        said = [self.order] if self.order else []
        grouped = f", {self.kv_heads} of keys and values ({self.grouping})" if self.kv_heads != self.heads else ""
        said.append(f"{self.heads} head{'s' * (self.heads > 1)}{grouped}")
        for norm in dict.fromkeys(self.norms.values()):
            parts = " and ".join(PARTS_OF[part].removeprefix("of ") for part, own in self.norms.items() if own == norm)
            kind = {"length": "lengths", "gain": "a gain"}.get(norm.kind, "norm")
            said.append(f"{kind} of {parts}" + (f" ({norm.name})" if norm.name else ""))
        said += [self.rotation.words + ", but not for a memory" * self.still] if self.rotation else []
        said += [f"slopes of distances ({self.slopes.source or '2^(−8 (h + 1) / heads)'})"] if self.slopes else []
        said += [self.mixing.words] if self.mixing else []
        said += [f"a bias of two places ({self.table.name})"] if self.table else []
        said += [f"keys and values out of {len(self.latent.down.rows) - self.latent.shared} features"] if self.latent else []
        said += [f"keys of the patches of {self.reduction.name}"] if self.reduction else []
        said += ["tokens in a window or a pattern"] if self.pattern is not None else []
        said += [self.sinks if self.sinks == ONE_MORE else f"sinks ({self.sinks})"] if self.sinks else []
        said += ["a residual"] if self.residual else []
        said += [f"scale {self.scaling}"]
        said += [f"where {', '.join(self.silent)} {'are' if len(self.silent) > 1 else 'is'} 0"] if self.silent else []
        return "; ".join(said)

    @property
    def grouping(self) -> str:
        """Which key head query head h reads."""
        ways = {
            "": "h // group",
            "kv": "h % kv_heads",
            "k": "keys h % kv_heads, values h // group",
            "v": "keys h // group, values h % kv_heads",
        }
        return ways[self.tiled]

    @property
    def scaling(self) -> str:
        """The scale, and what is learned of it."""
        capped = f", capped at {abs(self.cap):g}" if self.cap else ""
        if not self.learned:
            return self.scale + capped
        learned = {"times": self.learned.name, "exp": f"exp({self.learned.name})", "over": f"1/{self.learned.name}"}[self.learned.how]
        return (learned if self.scale == "1" else f"{self.scale} · {learned}") + capped

    @property
    def names(self) -> frozenset[str]:
        """The parameters and buffers that it is made of."""
        norms = (name for norm in self.norms.values() for name in norm.names)
        turned = self.rotation.names if self.rotation else ()
        single = (
            self.learned.name if self.learned else "",
            self.slopes.source if self.slopes else "",
            "" if self.sinks == ONE_MORE else self.sinks,
        )
        looked_up = (self.table.name, self.table.places) if self.table else ()
        mixing = (*self.mixing.logits, *self.mixing.weights) if self.mixing else ()
        fewer = (*(self.reduction.names if self.reduction else ()), *(self.latent.names if self.latent else ()))
        return frozenset(
            name
            for name in (*(n for p in self.places.values() for n in p.names), *norms, *turned, *single, *looked_up, *mixing, *fewer)
            if name
        )

    def meaning(self, width: int) -> tuple[object, ...]:
        """What two assignments must have in common to be the same one, of tokens of this width."""
        d = len(self.places["q"].rows) // self.heads
        one_pair = self.rotation is not None and self.rotation.features == 2  # which are neighbours, and halves
        turned = self.rotation and (
            "" if one_pair else self.rotation.pairing,
            self.rotation.features,
            self.rotation.last,
            self.rotation.who,
            self.rotation.along,
            "" if one_pair else self.rotation.keys,
        )
        # where nothing turns in between, weights of queries and keys multiply each other: it does not matter whose is which
        norms = tuple(sorted((part.replace("k", "q"), norm.name, norm.kind) for part, norm in self.norms.items()))
        scale = float(f"{factor(self.scale, d, self.heads, width):.6g}")  # in an array of float32 it is the same one
        slopes = self.slopes and (self.slopes.grows, self.slopes.scaled)
        return (
            self.heads,
            self.kv_heads,
            self.order,
            self.tiled,
            scale,
            self.learned,
            norms,
            self.residual,
            turned,
            slopes,
            self.table,
            self.mixing,
            self.sinks,
            self.cap,
            self.reduction,
        )

    def read(self, held: Held) -> dict[str, tuple[Array, Array | None]]:
        """The projections, by q, k, v and o."""
        return {part: place.get(held) for part, place in self.places.items()}

    def write(self, module: Any, weights: Mapping[str, tuple[Array, Array | None]], fw: Framework) -> None:
        """Give a module these projections. Raises ValueError if they have other shapes."""
        held = {name: p.data for name, p in module.named_parameters()}
        for part, place in self.places.items():
            place.put(held, *weights[part], fw)

    def but(self, **changes: Any) -> Structure:
        """The same with other fields."""
        return replace(self, **changes)


def factor(scale: str, d: int, heads: int, width: int) -> float:
    """What logits are multiplied by."""
    formula = SCALES.get(scale) or ROUNDED.get(scale)
    return formula(d, heads, width) if formula else float(scale)


def parameters(module: Any, fw: Framework) -> dict[str, Array]:
    """The numbers of all parameters of a module."""
    return {name: fw.read(p.data) for name, p in module.named_parameters()}
