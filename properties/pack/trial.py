"""A trial of packed sequences: what a property sees."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

import numpy as np

from ..engine.cases.coordinates import Array
from ..engine.cases.dtypes import round_to
from ..engine.cases.masks import frontier
from ..engine.cases.regimes import REGIMES
from ..engine.core.trial import Trial
from ..exact import bound, gradient_bound, oracle
from ..exact.gradient_oracle import differentiate
from .call import PackedInputs, boundaries, call, forward
from .packing import PACKINGS


@dataclass(frozen=True, eq=False)
class PackedRun:
    """One answer (H, total queries, Dv), what it should be, and how far it may be off."""

    out: Array
    exact: Exact
    bound: Array

    @property
    def answers(self) -> list[tuple[Array, Array]]:
        """What was answered, with its bound."""
        return [(self.out, self.bound)]


@dataclass(frozen=True, eq=False)
class Exact:
    """The exact answer (H, total queries, Dv) as float64 and a tail."""

    out: Array
    tail: Array

    def out_error(self, actual: Array) -> Array:
        """|actual − exact|, likewise."""
        return oracle.distance(actual, self.out, self.tail)


class PackedTrial(Trial):
    """What a property of packed sequences sees."""

    form: tuple[tuple[int, ...], str, str]  # shape, dtype and device of the last answer

    @cached_property
    def pack(self) -> PackedInputs:
        """The arguments of the call that the case stands for."""
        case = self.case
        queries, keys = PACKINGS[case.packing](case)
        max_q, max_k = int(queries.max(initial=0)), int(keys.max(initial=0))
        shapes = (
            (case.batch, case.heads, max_q, case.dim),
            (case.batch, case.kv_heads, max_k, case.dim),
            (case.batch, case.kv_heads, max_k, case.width),
        )
        # A sequence without padding is the beginning of one with it, so that a shorter one leaves the numbers in place.
        q, k, v = (self.noise(name, shape) for name, shape in zip("qkv", shapes, strict=True))
        q, k, v = REGIMES[case.values](q, k, v, case)
        parts = [packed(x, n) for x, n in ((q * 2.0**case.magnitude, queries), (k, keys), (v, keys))]
        q, k, v = (round_to(case.dtype, x) for x in parts)
        return PackedInputs(
            q, k, v, boundaries(queries), boundaries(keys), max_q, max_k, case.is_causal, case.scale, case.dtype, case.device, case.layout
        )

    def round(self, x: Array) -> Array:
        """In the type of the case."""
        return round_to(self.case.dtype, x)

    def run_pack(self, x: PackedInputs | None = None) -> PackedRun:
        """Call the target. All calls of a trial with the same shapes use the same memory."""
        x = self.pack if x is None else x
        solved = cache(lambda: self.solve_pack(x))
        self.bounds.add(len(self.runs))
        self.meanwhile(len(self.runs), solved)
        out, self.form, self.own = call(self.target, x, self.buffers)
        wanted = (x.q.shape[0], x.q.shape[1], x.v.shape[2])
        if out.shape != wanted:
            self.fail(f"the output has shape {out.shape}, expected {wanted}")
        exact, allowed = solved()
        run = PackedRun(out.swapaxes(0, 1), exact, allowed)
        self.runs.append(run)
        return run

    def visible(self, x: PackedInputs) -> Array:
        """(N, longest queries, longest keys) bool: what each row of each sequence sees in it; nothing in what is only padding."""
        queries, keys = x.lengths
        shape = (len(queries), int(queries.max(initial=0)), int(keys.max(initial=0)))
        visible = (np.arange(shape[1]) < queries[:, None])[:, :, None] & (np.arange(shape[2]) < keys[:, None])[:, None]
        if x.is_causal:
            for n, (rows, columns) in enumerate(zip(queries, keys, strict=True)):
                visible[n, :rows, :columns] &= frontier(int(rows), int(columns), self.supports.causal)
        return visible

    def made_of_values(self, x: PackedInputs) -> Array:
        """(total queries,) bool: the rows that are 0, or made of what they see; not those that see nothing, where these give something else."""
        seen = packed(np.asarray(self.visible(x).any(-1))[:, None, :, None], x.lengths[0])[:, 0, 0]
        return seen | (self.supports.empty_rows == "zero")

    def solve_pack(self, x: PackedInputs) -> tuple[Exact, Array]:
        """(the exact answer, its bound), each sequence by itself."""
        exact = self.as_batch(x)
        out, rest, allowed = (
            packed(part, x.lengths[0]).swapaxes(0, 1) for part in (exact.out, exact.out_tail, bound.rigorous(exact, self.arithmetic))
        )
        return Exact(out, rest), allowed

    def as_batch(self, x: PackedInputs) -> oracle.Exact:
        """The exact answer of the pack as a batch: padded, the padding hidden."""
        queries, keys = x.lengths
        q, k, v = (padded(part, n) for part, n in ((x.q, queries), (x.k, keys), (x.v, keys)))
        scale = (x.q.shape[2] ** -0.5 if x.q.shape[2] else 1.0) if x.scale is None else x.scale
        problem = oracle.Problem(q, k, v, scale, self.visible(x)[:, None], empty_rows=self.supports.empty_rows)
        return oracle.solve(problem, "extended" if x.dtype == "float64" else "float64")

    def send_back(self, grad: Array) -> dict[str, PackedRun]:
        """The gradients of q, k and v (H or Hkv, total, D) for this gradient of the output (total queries, H, Dv)."""
        x, fw = self.pack, self.target.framework
        out, send_back = forward(self.target, x, self.buffers)
        found: list[Any] = [None] * 3
        if send_back:
            found = send_back(self.buffers.array("grad", grad, x.dtype, x.device, "contiguous"))
        elif 0 not in out.shape and len(x.k):
            self.fail("the output carries no gradient, though q, k, v ask for one")
        lengths = {"q": x.lengths[0], "k": x.lengths[1], "v": x.lengths[1]}
        exact = differentiate(self.as_batch(x), padded(grad, x.lengths[0]))
        limits, runs = gradient_bound.rigorous(exact, self.arithmetic), {}
        with np.errstate(over="ignore"):
            largest = np.abs(grad).max((0, 1), initial=0.0) @ np.abs(x.v).max((0, 1), initial=0.0)  # |dP|, across sequences
        if not largest < gradient_bound.room(self.arithmetic):  # one mask hides the others: their weights are 0, and 0 · inf is NaN
            limits = replace(limits, q=np.full_like(limits.q, np.inf), k=np.full_like(limits.k, np.inf))
        for (name, n), part in zip(lengths.items(), found, strict=True):
            if part is None and grad.any() and len(x.k):
                self.fail(f"{name} receives no gradient: it is cut off from the output")
            value = (np.zeros(getattr(x, name).shape) if part is None else fw.read(part)).swapaxes(0, 1)
            right, rest, allowed = (
                packed(of, n).swapaxes(0, 1) for of in (getattr(exact, name), getattr(exact, f"{name}_tail"), getattr(limits, name))
            )
            self.answers.append((value, allowed))
            runs[name] = PackedRun(value, Exact(right, rest), allowed)
        return runs


def padded(x: Array, lengths: Array) -> Array:
    """(total, H, D) → (N, H, longest, D), zeros beyond the length of each sequence."""
    out = np.zeros((len(lengths), int(lengths.max(initial=0)), *x.shape[1:]))
    out[np.arange(out.shape[1]) < lengths[:, None]] = x
    return out.swapaxes(1, 2)


def packed(x: Array, lengths: Array) -> Array:
    """(N, H, longest, D) → (total, H, D): each sequence up to its length, one after the other."""
    return np.asarray(x.swapaxes(1, 2)[np.arange(x.shape[2]) < lengths[:, None]])
