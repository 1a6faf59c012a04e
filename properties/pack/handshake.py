"""How a target of packed sequences is spoken with: what it refuses, where causality ends, what rows without keys give; each by a small call."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from ..engine.cases.coordinates import Array, normal
from ..engine.cases.masks import frontier
from ..engine.core.contract import Formal
from ..engine.core.target import Raised, Target, always_refused
from ..exact import oracle
from .call import BOUNDARIES, PackedInputs, boundaries, call

NEAR = 1e-3  # all numbers are of size one: a wrong reading is off by a tenth
SINGLE = 1e-9  # so far off is no float64: numbers of size one are off by 1e-15 or so there, by 1e-7 in float32
FLASH = "flash-attention (since 2.1)"
LENGTHS = ((2, 3), (4, 5))  # of queries, of keys: every row sees a key, whatever the corner


class Handshake:
    """What is found out of one target, one question after the other."""

    def __init__(self, target: Target, device: str, formal: Formal) -> None:
        self.target, self.device, self.formal = target, device, formal
        self.dtype = next((name for name in ("float64", "float32") if name in target.dtypes), "")
        self.facts: dict[str, Any] = {}
        self.parameters = list(target.parameters)
        self.told: dict[str, dict[str, str]] = {name: {} for name in ("learned", "refuses", "differs", "wrong")}

    def learned(self) -> Target:
        if self.dtype:
            for ask in (self._refused, self._precision, self._grouped, self._scale, self._corner, self._rows):
                ask()
        target = self.target
        told = self.told
        supports = dataclasses.replace(target.supports, **self.facts)
        untried = {name: why for name, why in target.untried.items() if name not in told["learned"]}
        return dataclasses.replace(
            target,
            supports=supports,
            parameters=tuple(self.parameters),
            dtypes=tuple(dtype for dtype in target.dtypes if dtype not in told["differs"]),
            untried=untried,
            learned={**target.learned, **told["learned"]},
            refuses={**target.refuses, **told["refuses"]},
            differs={**target.differs, **told["differs"]},
            wrong={**target.wrong, **told["wrong"]},
        )

    def _open(self, key: str) -> bool:
        return key not in self.target.declared

    def _refused(self) -> None:
        """Classes of calls that raise, at two lengths."""
        wider: Mapping[str, Any] = {"value_dim": 5}
        asked: dict[str, tuple[str, Mapping[str, Any]]] = {
            "values of another width than keys": ("value_dim", wider),
            "empty sequences": ("zero_sizes", {"empty": True}),
        }
        for words, (key, fields) in asked.items():
            if self._open(key) and getattr(self.target.supports, key) and (said := always_refused(self.target, self._both(fields))):
                self.facts[key] = False
                self.told["refuses"][words] = said

    def _both(self, fields: Mapping[str, Any]) -> Iterator[Callable[[], Any]]:
        """Calls of a class, of other lengths."""
        for seed, lengths in enumerate((((3, 1), (3, 2)), LENGTHS)):
            x = self._pack(lengths, seed=seed, **fields)
            yield lambda x=x: call(self.target, x, self.target.buffers())  # type: ignore[misc]

    def _pack(self, lengths: Any, heads: int = 3, group: int = 1, value_dim: int = 0, empty: bool = False, seed: int = 0) -> PackedInputs:
        queries, keys = (np.array([*each, *[0] * empty]) for each in lengths)
        dim = self.target.supports.head_dims[0] if self.target.supports.head_dims else 4
        shapes = ((queries.sum(), heads * group, dim), (keys.sum(), heads, dim), (keys.sum(), heads, value_dim or dim))
        q, k, v = (normal(seed, name, shape) for name, shape in zip("qkv", shapes, strict=True))
        most = int(queries.max()), int(keys.max())
        return PackedInputs(q, k, v, boundaries(queries), boundaries(keys), *most, dtype=self.dtype, device=self.device)

    def _off(self, x: PackedInputs, corner: str = "top-left", scale: float | None = None) -> float:
        """How far the answer is off at most, in rows that see a key; infinite where there is none."""
        out = self._answer(x)
        exact = exactly(x, corner, scale)
        if out is None or out.shape != exact.shape:
            return np.inf
        off = np.abs(out - exact)[~np.isnan(exact)].max(initial=0.0)
        return float(off) if np.isfinite(off) else np.inf

    def _answer(self, x: PackedInputs) -> Array | None:
        if self.target.asked_enough():
            return None
        try:
            return call(self.target, x, self.target.buffers())[0]
        except Raised:
            return None

    def _precision(self) -> None:
        """Whether what is called float64 is computed in float32: its weights, read with V = I, are numbers of that type."""
        if not {"float64", "float32"} <= set(self.target.dtypes) or {"dtypes", "arithmetic"} & self.target.declared:
            return
        x = self._pack(((2, 3), (4, 4)))
        off, square = self._off(x), x.but(v=np.broadcast_to(np.tile(np.eye(4), (2, 1))[:, None], (8, x.v.shape[1], 4)))
        out = self._answer(square) if x.v.shape[2] == 4 and SINGLE < off < NEAR else None
        if out is not None and (out == out.astype(np.float32)).all() and len(np.unique(out)) > 2:
            self.told["differs"]["float64"] = f"computed in float32, off by {off:.2g}; not tried"
            self.dtype = "float32"  # the others are asked where its bound is the right one

    def _grouped(self) -> None:
        """Whether fewer heads of keys are taken without a flag."""
        if "enable_gqa" in self.parameters or not self._open("parameters") or not self._open("groups"):
            return
        if self._off(self._pack(LENGTHS, heads=2, group=2)) < NEAR:
            self.parameters.append("enable_gqa")
            self.told["learned"]["grouped heads"] = "without a flag"

    def _scale(self) -> None:
        """Whether a scale of 0 is taken for none, as ``scale or default`` does."""
        if "scale" not in self.parameters or not self._open("scales"):
            return
        x = self._pack(LENGTHS)
        off = self._off(x.but(scale=0.0), scale=0.0)
        if NEAR <= off < np.inf and self._off(x.but(scale=0.0), scale=x.q.shape[2] ** -0.5) < NEAR:
            self.facts["scales"] = "not zero"
            self.told["wrong"]["scale of 0"] = (
                f"it is taken for none, as `scale or default` does, off by {off:.2g}; no other call is given 0"
            )

    def _corner(self) -> None:
        """Where causality ends in a sequence of more keys than queries."""
        if "is_causal" not in self.parameters or not self._open("causal"):
            return
        x = self._pack(LENGTHS).but(is_causal=True)
        offs = {corner: self._off(x, corner) for corner in ("top-left", "bottom-right")}
        found = min(offs, key=lambda corner: offs[corner])
        meant, name, by = ("bottom-right", "causal", FLASH) if "causal" in self.formal else ("top-left", "is_causal", "PyTorch")
        if offs[found] >= NEAR:
            return
        self.facts["causal"] = found
        if set(BOUNDARIES) & set(self.target.learned):  # as many queries as keys, of which it is asked: there is no other corner
            return
        if found != meant:
            self.told["wrong"]["causal corner"] = (
                f'with {name} it is {found}; {by} documents {meant}, off by {offs[meant]:.2g}; declare causal = "{found}" if that is meant'
            )
        elif found == "bottom-right":
            self.told["learned"]["causal corner"] = f"{found}, as {by} documents it"

    def _rows(self) -> None:
        """What a row gives that sees no key: where causality hides all, or where there is none."""
        if not self._open("empty_rows"):
            return
        if self.facts.get("causal", self.target.supports.causal) == "bottom-right" and "is_causal" in self.parameters:
            x = self._pack(((4, 3), (2, 3))).but(is_causal=True)
        elif self.facts.get("zero_sizes", self.target.supports.zero_sizes):
            x = self._pack(((2, 3), (0, 3)))
        else:
            return
        out, exact = self._answer(x), exactly(x, self.facts.get("causal", "top-left"))
        if out is None or out.shape != exact.shape:
            return
        empty = np.isnan(exact)
        found: dict[str, Callable[[Array], bool]] = {
            "nan": lambda rows: bool(np.isnan(rows).all()),
            "mean": lambda rows: bool(np.abs(rows - means(x)[empty]).max(initial=0.0) < NEAR),
        }
        for convention, words in (("nan", "NaN, not 0"), ("mean", "the mean of all values, not 0")):
            if empty.any() and found[convention](out[empty]):
                self.facts["empty_rows"] = convention
                self.told["differs"]["rows without keys"] = words


def exactly(x: PackedInputs, corner: str, scale: float | None = None) -> Array:
    """The exact answer (total queries, H, Dv); NaN in rows that see no key."""
    out = np.full((len(x.q), x.q.shape[1], x.v.shape[2]), np.nan)
    scale = x.q.shape[2] ** -0.5 if scale is None else scale
    for n, (rows, keys) in enumerate(zip(*x.lengths, strict=True)):
        if not (rows and keys):
            continue
        here, there = slice(x.cu_q[n], x.cu_q[n + 1]), slice(x.cu_k[n], x.cu_k[n + 1])
        q, k, v = (part.swapaxes(0, 1)[None] for part in (x.q[here], x.k[there], x.v[there]))
        visible = np.ones((rows, keys), dtype=bool) if not x.is_causal else np.asarray(frontier(int(rows), int(keys), corner))
        solved = oracle.solve(oracle.Problem(q, k, v, scale, visible[None, None], empty_rows="nan"), "float64")
        out[here] = solved.out[0].swapaxes(0, 1)
    return out


def means(x: PackedInputs) -> Array:
    """The mean of the values of each row's own sequence."""
    out = np.zeros((len(x.q), x.q.shape[1], x.v.shape[2]))
    for n in range(len(x.cu_q) - 1):
        values = x.v[x.cu_k[n] : x.cu_k[n + 1]]
        if len(values):
            out[x.cu_q[n] : x.cu_q[n + 1]] = np.repeat(values.mean(0), x.q.shape[1] // x.v.shape[1], axis=0)
    return out
