"""A trial of positions: sinusoids, rotations, slopes and buckets as a property sees them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ..engine.cases.coordinates import Array, bits, normal
from ..engine.cases.dtypes import round_to
from ..engine.core.trial import Trial
from . import exact as exactly
from .call import answer


@dataclass(frozen=True, eq=False)
class PositionRun:
    """One answer, what it should be, and how far it may be off."""

    out: Array
    exact: exactly.Exact
    bound: Array

    @property
    def answers(self) -> list[tuple[Array, Array]]:
        """What was answered, with its bound."""
        return [(self.out, self.bound)]


@dataclass(frozen=True, eq=False)
class Buckets:
    """One answer in whole numbers: the properties say what they should be."""

    out: Array

    @property
    def answers(self) -> list[tuple[Array, Array]]:
        """What was answered, with its bound: none is off."""
        return [(self.out, np.zeros(self.out.shape))]


class PositionTrial(Trial):
    """What a property of positions sees."""

    form: tuple[tuple[int, ...], str, str]  # shape, dtype and device of the last answer
    like: PositionTrial | None = None  # of the target, where this is that of its reference

    def _noted(self, out: Array, exact: exactly.Exact, allowed: Array) -> PositionRun:
        run = PositionRun(out, exact, allowed)
        self.runs.append(run)
        return run

    @property
    def base(self) -> float:
        """The base of the frequencies; 10,000 by default."""
        return 10000.0 if self.case.base is None else self.case.base

    @property
    def pairing(self) -> str:
        """Which features form a pair."""
        return self.supports.pairing

    def _options(self, **given: Any) -> dict[str, Any]:
        """The parameters that differ from their default, and the type of the answer where the target takes one."""
        options = {name: value for name, value in given.items() if value is not None}
        if "dtype" in self.target.parameters:
            options["dtype"] = self.target.framework.named_dtype(self.case.dtype)
        return options

    def _settled(self, out: Array, wanted: tuple[int, ...]) -> Array:
        if out.shape != wanted:
            self.fail(f"the answer has shape {out.shape}, expected {wanted}")
        return out

    # ------------------------------------------------------------ sinusoids

    def sinusoid(self, length: int | None = None, offset: int | None = None) -> PositionRun:
        """The encoding (length, dim) of consecutive positions; by default those of the case."""
        case = self.case
        length = case.queries if length is None else length
        offset = case.offset if offset is None else offset
        options = self._options(offset=offset or None, base=case.base)
        out, self.form, self.own = answer(self.target, length, case.dim, **options)
        out = self._settled(out, (length, case.dim))
        t = self.turn(offset + np.arange(length, dtype=np.float64))
        return self._noted(out, *exactly.sinusoid(t, case.dim, self.pairing, self.arithmetic))

    def turn(self, positions: Array) -> exactly.Turn:
        """Sines and cosines of positions, exactly, with their bounds."""
        return exactly.turn(positions, (self.case.dim + 1) // 2, self.case.dim, self.base, self.arithmetic)

    # ------------------------------------------------------------ rotations

    @property
    def width(self) -> int:
        """Features of x: dim, rounded up to an even number."""
        return self.case.dim + self.case.dim % 2

    @property
    def rotary_dim(self) -> int:
        """Features of x that are rotated, an even number."""
        wanted = self.width if self.case.rotary_dim is None else self.case.rotary_dim
        return min(wanted + wanted % 2, self.width)

    @cached_property
    def positions(self) -> Array:
        """(L,) whole numbers: consecutive from the offset, or scattered about it."""
        count = self.case.queries
        if not self.case.scattered:
            return self.case.offset + np.arange(count, dtype=np.float64)
        drawn = bits(self.case.seed, "positions", (count,)) % np.uint64(4 * count + 1)
        return self.case.offset + drawn.astype(np.float64)

    @cached_property
    def x(self) -> Array:
        """(B, H, L, D) what is rotated."""
        return self.tensor("x")

    def tensor_of(self, name: str, shape: tuple[int, ...]) -> Array:
        """Numbers in the type of the case."""
        return round_to(self.case.dtype, normal(self.case.seed, name, shape))

    def tensor(self, name: str) -> Array:
        """Numbers in the shape (B, H, L, D) of x."""
        case = self.case
        shape = (case.batch, case.kv_heads, case.queries, self.width)
        return round_to(case.dtype, normal(case.seed, name, shape) * 2.0**case.magnitude)

    def rotate(self, x: Array | None = None, positions: Array | None = None) -> PositionRun:
        """x rotated to its positions. All calls of a trial with the same shapes use the same memory for x."""
        case = self.case
        x = self.x if x is None else x
        positions = self.positions if positions is None else positions
        meant = (
            self.pairing if self.like is None else self.like.pairing
        )  # whose pairs are others is given, and gives, features in its order
        given = self.buffers.array("x", self._ordered(x, meant, self.pairing), case.dtype, case.device, case.layout)
        self.given = self.target.framework.integers(positions, case.device)
        options = self._options(base=case.base, rotary_dim=None if case.rotary_dim is None else self.rotary_dim)
        out, self.form, self.own = answer(self.target, given, self.given, **options)
        out = self._ordered(self._settled(out, x.shape), self.pairing, meant)
        return self._noted(out, *exactly.rotation(x, self.turns(positions), meant, self.arithmetic))

    def _ordered(self, x: Array, pairing: str, wanted: str) -> Array:
        """The pairs of features that are rotated, at the places that pairs have in another pairing."""
        r = self.rotary_dim
        return (
            x if pairing == wanted else np.concatenate([exactly.join(*exactly.split(x[..., :r], pairing), r, wanted), x[..., r:]], axis=-1)
        )

    def turns(self, positions: Array) -> exactly.Turn:
        """Sines and cosines of the rotated pairs at these positions."""
        return exactly.turn(positions, self.rotary_dim // 2, self.rotary_dim, self.base, self.arithmetic)

    def pairs(self, x: Array) -> tuple[Array, Array]:
        """The first and the second features of all rotated pairs."""
        return exactly.split(x[..., : self.rotary_dim], self.pairing)

    def rotation_gradient(self, grad: Array) -> Array:
        """What x receives of this gradient of the rotated x."""
        case = self.case
        options = self._options(base=case.base, rotary_dim=None if case.rotary_dim is None else self.rotary_dim)
        return self._sent_back("x", self.x, self.positions, grad, options)

    def _sent_back(self, name: str, carrier: Array, positions: Array, grad: Array, options: dict[str, Any]) -> Array:
        """The gradient of the first argument. Raises Raised."""
        case, fw = self.case, self.target.framework
        given, places = self.buffers.array(name, carrier, case.dtype, case.device, case.layout), fw.integers(positions, case.device)
        _, send_back = self.target.record(lambda leaf: self.target.apply(leaf, places, **options), [given])
        if not send_back:
            return np.zeros(carrier.shape)  # an empty answer may depend on nothing
        found = send_back(self.buffers.array("grad", grad, case.dtype, case.device, "contiguous"))[0]
        if found is None:
            self.fail(f"{name} receives no gradient: it is cut off from the output")
        return fw.read(found)

    # ------------------------------------------------------------ learned positions

    @cached_property
    def table(self) -> Array:
        """(rows, dim) the table of a learned encoding: as many rows as positions, and some that are never looked up."""
        case = self.case
        return round_to(case.dtype, normal(case.seed, "table", (case.offset + case.queries + case.keys, case.dim)))

    @cached_property
    def places(self) -> Array:
        """(L,) positions, consecutive from 0 or scattered, some of them more than once; the offset comes on top."""
        case = self.case
        if not case.scattered:
            return np.arange(case.queries, dtype=np.int64)
        return (bits(case.seed, "places", (case.queries,)) % np.uint64(case.queries + case.keys)).astype(np.int64)

    @property
    def rows(self) -> Array:
        """(L,) the row of the table that each position stands for."""
        return self.places + self.case.offset

    def look_up(self, table: Array | None = None, places: Array | None = None) -> Array:
        """The rows of the table at the positions, (L, dim)."""
        case, table, places = self.case, self.table if table is None else table, self.places if places is None else places
        given = self.buffers.array("table", table, case.dtype, case.device, case.layout)
        options = self._options(offset=case.offset or None)
        self.given = self.target.framework.integers(places, case.device)
        out, self.form, self.own = answer(self.target, given, self.given, **options)
        self.answers.append((self._settled(out, (len(places), case.dim)), np.zeros(out.shape)))
        return out

    def table_gradient(self, grad: Array) -> Array:
        """What the rows of the table receive of this gradient of the output (L, dim)."""
        found = self._sent_back("table", self.table, self.places, grad, self._options(offset=self.case.offset or None))
        self.answers.append((found, np.zeros(self.table.shape)))
        return found

    # ------------------------------------------------------------ slopes and buckets

    def slopes(self) -> PositionRun:
        """The slopes of all heads."""
        out, self.form, self.own = answer(self.target, self.case.kv_heads, **self._options())
        out = self._settled(out, (self.case.kv_heads,))
        return self._noted(out, *exactly.slopes(self.case.kv_heads, self.arithmetic))

    @property
    def side(self) -> int:
        """Buckets of one direction: all of them where only the past has any."""
        return self.case.num_buckets // 2 if self.case.bidirectional else self.case.num_buckets

    @property
    def max_distance(self) -> int:
        """The largest distance that is told apart, at least one for every bucket of a direction."""
        return max(self.case.max_distance, self.side)

    @cached_property
    def relative(self) -> Array:
        """(L, S) key position − query position, about the offset; scattered: numbers up to twice the largest distance."""
        case = self.case
        shape = (case.queries, case.keys)
        if case.scattered:
            drawn = bits(case.seed, "relative", shape) % np.uint64(4 * self.max_distance + 1)
            return drawn.astype(np.int64) - 2 * self.max_distance
        return np.arange(case.keys) - np.arange(case.queries)[:, None] + case.offset * (-1) ** self.choice("past", 2)

    def buckets(self, relative: Array | None = None) -> Array:
        """The bucket of every relative position, whole numbers."""
        case = self.case
        relative = self.relative if relative is None else relative
        wanted = {"bidirectional": case.bidirectional, "num_buckets": case.num_buckets, "max_distance": self.max_distance}
        usual = {"bidirectional": True, "num_buckets": 32, "max_distance": 128}
        options = {
            name: value for name, value in wanted.items() if name in self.target.parameters and (case.explicit or value != usual[name])
        }
        self.given = self.target.framework.integers(relative, case.device)
        out, self.form, self.own = answer(self.target, self.given, **options)
        out = self._settled(out, relative.shape)
        self.runs.append(Buckets(out))
        return out

    def another_answer(self) -> None:
        """A call whose answer has the same shape and other numbers, if it can have."""
        if self.target.contract == "learned":
            self.look_up(-self.table)
        elif self.target.contract == "rotary":
            self.rotate(-self.x)
        elif self.target.contract == "sinusoidal" and "offset" in self.target.parameters:
            self.sinusoid(offset=self.case.offset + 1)

    def answer_again(self) -> Array:
        """The call that the case stands for, whatever the contract."""
        if self.target.contract == "buckets":
            return self.buckets()
        if self.target.contract == "slopes":
            return self.slopes().out
        if self.target.contract == "learned":
            return self.look_up()
        return (self.sinusoid() if self.target.contract == "sinusoidal" else self.rotate()).out
