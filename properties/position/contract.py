"""The contracts of positions: how a callable of them is recognised, first called, and put to properties.

    learned(table, positions, *, offset=0)                                          → (length, dim), table (rows, dim)
    sinusoidal(length, dim, *, offset=0, base=10000.0, dtype)                       → (length, dim)
    rotary(x, positions, *, base=10000.0, rotary_dim=dim)                           → x's shape (batch, heads, length, dim)
    slopes(num_heads, *, dtype)                                                     → (num_heads,)
    buckets(relative_position, *, bidirectional=True, num_buckets=32, max_distance=128) → integers of the same shape

Only the first one or two arguments are required. A parameter that the callable does not take is not tried.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np

from ..engine.cases.draws import Strategy
from ..engine.core import declare as declaring
from ..engine.core.contract import Contract, Dtypes, Formal, register
from ..engine.core.declare import Property
from ..engine.core.target import Raised, Target, first_line
from ..engine.core.trial import Trial
from . import cases
from .call import answer
from .cases import POSITIONS, TOPICS, Case
from .tables import backwards, narrow, rotation_of, tabled, takes_narrower, takes_none
from .trial import PositionTrial

declare = partial(declaring.declare, contract=POSITIONS.name)
LENGTHS = ("length", "seq_len", "seq_length", "max_len", "num_positions", "n_positions")
PLACES = ("positions", "position_ids", "position", "pos")


class Positions(Contract):
    """Positions in, numbers that say where a token stands out."""

    pair: tuple[str, ...] = ("sinusoid_is_inside_the_bound", "rotation_is_inside_the_bound")

    parameters: tuple[str, ...]  # the optional ones
    names: tuple[tuple[str, ...], ...]  # what the first arguments are called; other names need supports["contract"]

    @property
    def arguments(self) -> int:  # type: ignore[override]
        return len(self.names)

    @property
    def given(self) -> tuple[str, ...]:  # type: ignore[override]
        return self.parameters

    def recognise(self, formal: Formal) -> bool:
        """By the names of the first arguments, and nothing else is required."""
        given = [p.name for p in formal.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        first = given[: len(self.names)]
        required = [p.name for p in formal.values() if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        named = len(first) == len(self.names) and all(name in known for name, known in zip(first, self.names, strict=True))
        return named and not set(required) - set(first) - set(self.parameters)

    def options(self, formal: Formal) -> tuple[str, ...]:
        return tuple(name for name in self.parameters if name in formal)

    def trial(self, prop: Property) -> type[Trial]:
        return PositionTrial

    def cases(self, target: Target, prop: Property, device: str, dtypes: Dtypes) -> Strategy:
        return cases.position_cases(target, prop, device, dtypes)

    def refused(self, target: Target, prop: Property, dtypes: Dtypes) -> str:
        return cases.refused(target, prop, dtypes)

    def fields(self, target: Target) -> tuple[str, ...]:
        return cases.position_fields(target)

    def features(self, target: Target, case: Case) -> Iterable[str]:
        yield case.dtype
        yield from super().features(target, case)

    def lacks(self, target: Target, capability: str) -> str:
        words = capability.replace("_", " ")
        if not target.framework.gradients:
            return f"{target.framework.name} arrays carry no gradients"
        if target.supports.gradients is False:
            return "declared as not supported: gradients"
        device = target.supports.devices[0]
        try:
            x, places = (
                target.framework.full(self.leaf(target), 1.0, target.dtypes[0], device),
                target.framework.integers(np.arange(2), device),
            )
            _, send_back = target.record(lambda leaf: target.apply(leaf, places), [x])
        except Raised as raised:
            return f"{words}: it raised {type(raised.error).__name__}: {first_line(raised.error)}"
        return "" if send_back else f"{words}: the output of a first call does not require a gradient"

    def leaf(self, target: Target) -> tuple[int, ...]:
        """The shape of a first argument that asks for a gradient."""
        raise NotImplementedError


class Sinusoidal(Positions):
    """Sines and cosines of positions."""

    name = "sinusoidal"
    call = "sinusoidal(length, dim, *, offset=0, base=10000.0, dtype)"
    topics = (TOPICS["sinusoidal"], POSITIONS)
    parameters = ("offset", "base", "dtype")
    names = (LENGTHS, ("dim", "d_model", "embed_dim", "depth"))

    def smoke(self, target: Target, dtype: str, device: str) -> str:
        options = _typed(target, dtype)
        return _wrong(target, (5, 6), dtype, bool(options), 5, 6, options=options)

    def features(self, target: Target, case: Case) -> Iterable[str]:
        yield from super().features(target, case)
        yield from _far(case)
        if case.dim % 2:
            yield "odd dim"

    def hint(self, case: Case) -> str:
        return " (an odd dim is not supported? declare odd_dim = false)" if case.dim % 2 else ""


class Rotary(Positions):
    """x, turned by its positions."""

    name = "rotary"
    call = "rotary(x, positions, *, base=10000.0, rotary_dim=dim)"
    topics = (TOPICS["rotary"], POSITIONS)
    parameters = ("base", "rotary_dim")
    names = (("x", "q", "t"), PLACES)
    capabilities = ("rotation_gradients",)
    batched = True

    def recognise(self, formal: Formal) -> bool:
        return super().recognise(formal) or tabled(formal)

    def learn(self, target: Target, formal: Formal, declared: frozenset[str], device: str, works: bool) -> Target | None:
        """A function of tables, ``f(q, k, cos, sin)``, is a rotation once they are made for it."""
        if works or not tabled(formal):
            return None
        rotation, pairing = rotation_of(target, formal, device)
        pairing = target.supports.pairing if "pairing" in declared else pairing
        learned = {"x": rotation.axes, "pairing": pairing} | (
            {"cos, sin": rotation.shape} if rotation.shape else {"table": "complex numbers"}
        )
        empty = "zero_sizes" in declared or takes_none(rotation, device)
        if not empty:
            learned["sizes"] = "one position or more: none at all is refused"
        if rotation.two:
            learned["heads"] = "even ones are rotated as q, odd ones as k"
        parameters: tuple[str, ...] = ("base",)
        if takes_narrower(rotation, device):
            parameters = ("base", "rotary_dim")
            learned["rotary_dim"] = "that of cos and sin; features beyond it pass"
        turned = {"direction": "x is turned by −θ, expected by θ"} if backwards(rotation, pairing, device) else {}
        return dataclasses.replace(
            target,
            function=rotation,
            supports=dataclasses.replace(target.supports, pairing=pairing, zero_sizes=target.supports.zero_sizes and empty),
            parameters=parameters,
            learned={**target.learned, **learned},
            wrong={**target.wrong, **turned},
        )

    def smoke(self, target: Target, dtype: str, device: str) -> str:
        if dtype == "float64" and narrow(target, device):
            return "it computes in float32, whatever it is given"
        fw, shape = target.framework, (2, 3, 5, target.supports.head_dims[0] if target.supports.head_dims else 4)
        return _wrong(target, shape, dtype, True, fw.full(shape, 1.0, dtype, device), fw.integers(np.arange(5.0), device))

    def features(self, target: Target, case: Case) -> Iterable[str]:
        yield from super().features(target, case)
        yield from _far(case)

    def leaf(self, target: Target) -> tuple[int, ...]:
        return 1, 1, 2, target.supports.head_dims[0] if target.supports.head_dims else 4


class Learned(Positions):
    """Rows of a table."""

    name = "learned"
    call = "learned(table, positions, *, offset=0)"
    topics = (TOPICS["learned"], POSITIONS)
    parameters = ("offset",)
    names = (("table", "weight", "weights", "embedding", "embeddings"), PLACES)
    capabilities = ("table_gradients",)

    def smoke(self, target: Target, dtype: str, device: str) -> str:
        fw = target.framework
        return _wrong(target, (5, 4), dtype, True, fw.full((7, 4), 1.0, dtype, device), fw.integers(np.arange(5.0), device))

    def features(self, target: Target, case: Case) -> Iterable[str]:
        yield from super().features(target, case)
        if case.offset:
            yield "offset"

    def leaf(self, target: Target) -> tuple[int, ...]:
        return 3, target.supports.head_dims[0] if target.supports.head_dims else 4


class Slopes(Positions):
    """One slope a head."""

    name = "slopes"
    call = "slopes(num_heads, *, dtype)"
    topics = (TOPICS["slopes"], POSITIONS)
    parameters = ("dtype",)
    names = (("num_heads", "n_heads", "heads", "n_head"),)

    def smoke(self, target: Target, dtype: str, device: str) -> str:
        options = _typed(target, dtype)
        return _wrong(target, (4,), dtype, bool(options), 4, options=options)

    def features(self, target: Target, case: Case) -> Iterable[str]:
        yield from super().features(target, case)
        if case.kv_heads & (case.kv_heads - 1):
            yield "heads no power of two"


class Buckets(Positions):
    """Relative positions in, the number of a bucket out: integers, whatever the type."""

    name = "buckets"
    call = "buckets(relative_position, *, bidirectional=True, num_buckets=32, max_distance=128)"
    topics = (TOPICS["buckets"], POSITIONS)
    parameters = ("bidirectional", "num_buckets", "max_distance")
    names = (("relative_position", "relative_positions"),)
    dtypes = ("float64",)

    def smoke(self, target: Target, dtype: str, device: str) -> str:
        distances = np.arange(5.0) - np.arange(4.0)[:, None]
        _, (shape, kind, _), _ = answer(target, target.framework.integers(distances, device))
        if dtype != "float64":
            return "buckets are integers, whatever the type"
        if "int" not in kind:
            return f"it returns {kind}, not integers"
        return "" if shape == (4, 5) else f"it returns shape {shape}, expected (4, 5)"

    def features(self, target: Target, case: Case) -> Iterable[str]:
        yield from super().features(target, case)
        yield "bidirectional" if case.bidirectional else "one direction"


def _typed(target: Target, dtype: str) -> dict[str, Any]:
    return {"dtype": target.framework.named_dtype(dtype)} if "dtype" in target.parameters else {}


def _wrong(
    target: Target, wanted: tuple[int, ...], dtype: str, asked: bool, *arguments: object, options: dict[str, Any] | None = None
) -> str:
    """What is wrong with an answer. Where no argument says in which type to answer, the type of the answer is the only one tried."""
    _, (shape, given, _), _ = answer(target, *arguments, **(options or {}))
    if shape != wanted:
        return f"it returns shape {shape}, expected {wanted}"
    return "" if asked or given == dtype else f"it answers in {given}"


def _far(case: Case) -> Iterable[str]:
    if case.offset + case.queries > 256:
        yield "positions above 256"
    if case.offset + case.queries > 2048:
        yield "positions above 2048"


register(Sinusoidal(), Rotary(), Learned(), Slopes(), Buckets())
