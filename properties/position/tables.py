"""Rotations of queries and keys by tables that are given: ``f(q, k, cos, sin)``, as model code has them.

Such a function is a rotation of x by positions, once the tables of these positions are made for it. Which axes it takes, which shape
its tables have and which features form a pair is found out: the first form under which it rotates. Where none does, the first that is
taken is kept, and the properties of rotations say what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from ..engine.cases.coordinates import Array, normal
from ..engine.core.contract import Formal
from ..engine.core.target import CannotRun, Target, first_line
from ..engine.core.words import type_of
from ..engine.frameworks import Framework
from . import exact

FIRST = ("q", "xq", "query", "query_states", "x", "t", "queries")
SECOND = ("k", "xk", "key", "key_states", "keys")
COSINES = ("cos", "freqs_cos", "cos_cached", "rope_cos")
SINES = ("sin", "freqs_sin", "sin_cached", "rope_sin")
COMPLEX = ("freqs_cis", "freqs", "freqs_complex")
SHAPES: dict[str, Callable[[Array], Array]] = {  # of tables (L, D / 2)
    "(batch, length, dim)": lambda x: np.concatenate([x, x], -1)[None],
    "(length, dim)": lambda x: np.concatenate([x, x], -1),
    "(length, dim / 2)": lambda x: x,
    "(1, 1, length, dim)": lambda x: np.concatenate([x, x], -1)[None, None],
    "(length, dim), neighbours alike": lambda x: np.repeat(x, 2, -1),
    "(batch, length, dim), neighbours alike": lambda x: np.repeat(x, 2, -1)[None],
    "(batch, length, dim / 2)": lambda x: x[None],
    "(1, length, 1, dim)": lambda x: np.concatenate([x, x], -1)[None, :, None],
    "(1, length, 1, dim / 2)": lambda x: x[None, :, None],
    "(1, 1, length, dim / 2)": lambda x: x[None, None],
}
AXES = {"(batch, heads, length, dim)": (0, 1, 2, 3), "(batch, length, heads, dim)": (0, 2, 1, 3)}
CLOSE = 1e-3  # in the widest type, of numbers of order one: another pairing is another rotation altogether


@dataclass(frozen=True, eq=False)
class Tabled:
    """The rotation that a function of tables is. Where it takes queries and keys, even heads are queries, odd ones keys."""

    function: Callable[..., Any]
    framework: Framework
    two: bool  # whether it takes queries and keys
    complexes: bool  # whether its table holds complex numbers
    axes: str
    shape: str

    def __call__(self, x: Any, positions: Any, *, base: float = 10000.0, rotary_dim: int | None = None) -> Any:
        fw = self.framework
        shape, dtype, device = fw.describe(x)
        width = shape[-1] if rotary_dim is None else rotary_dim
        angle = fw.read(positions).astype(exact.Wide)[:, None] * exact.frequencies(width // 2, width, base)
        moved = fw.permute(x, AXES[self.axes])
        whole = self._whole(moved)
        given = [whole, -whole][: 1 + self.two]  # keys that are no queries: a rotation of −x is minus that of x, to the bit
        result = self.function(*given, *self._tables(np.cos(angle), np.sin(angle), dtype, device))
        parts = list(result) if isinstance(result, tuple | list) else [result]
        if len(parts) < 1 + self.two or not all(fw.is_array(part) for part in parts[: 1 + self.two]):
            raise TypeError(f"returned {type_of(result)}, not {'the rotated q and k' if self.two else 'the rotated x'}")
        q, k = (fw.permute(part, AXES[self.axes]) for part in (parts[0], parts[1 if self.two else 0]))
        return fw.concatenate([(-k if head % 2 else q)[:, head : head + 1] for head in range(shape[1])], 1) if self.two else q

    def _whole(self, x: Any) -> Any:
        """Pairs of numbers are complex ones only where they lie beside each other: of such a function a copy is asked for."""
        return self.framework.concatenate([x.reshape(-1)], 0).reshape(x.shape) if self.complexes else x

    def _tables(self, cos: Array, sin: Array, dtype: str, device: str) -> list[Any]:
        fw = self.framework

        def array(x: Array) -> Any:
            kind = "float32" if self.complexes and dtype != "float64" else dtype  # there are hardly any narrower complex numbers
            return fw.assign(fw.full(x.shape, 0.0, kind, device), x.astype(np.float64))

        if not self.complexes:
            return [array(SHAPES[self.shape](x)) for x in (cos, sin)]
        assert fw.modules is not None
        return [fw.modules.pairs_as_complex(array(np.stack([cos, sin], -1)))]


def tabled(formal: Formal) -> bool:
    """Whether a signature is that of a rotation by tables: (q, k, cos, sin), (x, cos, sin), (xq, xk, freqs_cis)."""
    names = [p.name for p in formal.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = [p.name for p in formal.values() if p.default is p.empty and p.kind is not p.VAR_KEYWORD]
    count = 1 + _two(names)
    tables = names[count : count + 2]
    by_two = len(tables) == 2 and tables[0] in COSINES and tables[1] in SINES
    by_one = len(tables) >= 1 and tables[0] in COMPLEX
    return names[:1] != [] and names[0] in FIRST and (by_two or by_one) and len(required) <= count + (2 if by_two else 1)


def _two(names: list[str]) -> bool:
    return len(names) > 1 and names[1] in SECOND


X, PLACES = normal(1, "x", (2, 3, 5, 8)), np.array([3.0, 0.0, 7.0, 1.0, 12.0])  # a small call, of different sizes


def _asked(rotation: Tabled, device: str, x: Array = X, **options: Any) -> Array:
    fw = rotation.framework
    given = fw.assign(fw.full(x.shape, 0.0, fw.dtypes[0], device), x)
    return fw.read(rotation(given, fw.integers(PLACES, device), **options))


def _right(pairing: str, direction: int = 1) -> Array:
    angle = PLACES.astype(exact.Wide)[:, None] * exact.frequencies(4, 8, 10000.0)
    first, second = exact.split(X, pairing)
    sin, cos = direction * np.sin(angle), np.cos(angle)
    return np.asarray(exact.join(first * cos - second * sin, first * sin + second * cos, 8, pairing).astype(np.float64))


def takes_none(rotation: Tabled, device: str) -> bool:
    """Whether it takes no positions at all: ``reshape(…, -1, 2)`` does not."""
    fw = rotation.framework
    try:
        rotation(fw.full((1, 2, 0, 4), 0.0, fw.dtypes[0], device), fw.integers(np.zeros(0), device))
    except Exception:  # whatever a function of somebody else raises
        return False
    return True


def takes_narrower(rotation: Tabled, device: str) -> bool:
    """Whether it takes tables of fewer features than x has: then it turns a part of them, and the others pass.

    Of any number: of half as many it may read the first half of what it takes for a table of all.
    """
    try:
        return all(_asked(rotation, device, rotary_dim=width).shape == X.shape for width in (4, 2))
    except Exception:  # whatever a function of somebody else raises
        return False


def _by_effect(rotation: Tabled, device: str) -> str:
    """The pairing in which feature 0 turns into another one; empty if it is neither."""
    one = np.zeros(X.shape)
    one[..., 0] = 1.0
    into = np.abs(_asked(rotation, device, one)).max(axis=(0, 1, 2))[1:]
    return {1: "interleaved", 4: "half"}.get(int(into.argmax()) + 1, "") if into.any() else ""


def backwards(rotation: Tabled, pairing: str, device: str) -> bool:
    """Whether it turns x by −θ."""
    return bool(np.abs(_asked(rotation, device) - _right(pairing, -1)).max() < CLOSE)


def narrow(target: Target, device: str) -> bool:
    """Whether it rotates, but in float32 whatever it is given: ``x.float()`` narrows float64."""
    if not isinstance(target.function, Tabled):
        return False
    off = np.abs(_asked(target.function, device) - _right(target.supports.pairing)).max()
    return bool(1e-12 < off < 1e-5)


def rotation_of(target: Target, formal: Formal, device: str) -> tuple[Tabled, str]:
    """(the rotation that a function of tables is, its pairing): where it is wrong, by which features it mixes.

    Raises CannotRun with what the first form was answered.
    """
    fw, names = target.framework, list(formal)
    complexes = names[1 + _two(names)] in COMPLEX
    if complexes and fw.modules is None:
        raise CannotRun(f"{target.name} takes complex tables, which are not made for {fw.name}")
    taken: Tabled | None = None
    said = ""
    for axes, shape in product(AXES, ("",) if complexes else SHAPES):
        candidate = Tabled(target.function, fw, _two(names), complexes, axes, shape)
        try:
            out = _asked(candidate, device)
        except Exception as error:
            said = said or f"{type(error).__name__}: {first_line(error)}"
            continue
        if out.shape != X.shape:
            said = said or f"it returns shape {out.shape}, expected {X.shape}"
            continue
        taken = taken or candidate
        for pairing in ("half", "interleaved"):
            if np.abs(out - _right(pairing)).max() < CLOSE:
                return candidate, pairing
    if taken is None:
        raise CannotRun(f"{target.name} cannot be called as a rotation of {', '.join(names[: 1 + _two(names)])} by tables: {said}")
    return taken, _by_effect(taken, device) or target.supports.pairing
