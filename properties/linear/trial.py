"""A trial of linear attention: what a property sees."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np

from ..engine.cases.coordinates import Array
from ..engine.cases.dtypes import round_to
from ..engine.cases.masks import frontier
from ..engine.cases.regimes import REGIMES
from ..engine.core.trial import Trial
from . import exact
from .call import LinearInputs, call


@dataclass(frozen=True, eq=False)
class LinearRun:
    """One answer (B, H, L, Dv), what it should be, and how far it may be off."""

    out: Array
    exact: exact.Exact
    bound: Array

    @property
    def answers(self) -> list[tuple[Array, Array]]:
        """What was answered, with its bound."""
        return [(self.out, self.bound)]


class LinearTrial(Trial):
    """What a property of linear attention sees."""

    form: tuple[tuple[int, ...], str, str]  # shape, dtype and device of the last answer

    @cached_property
    def inputs(self) -> LinearInputs:
        """The arguments of the call that the case stands for."""
        case = self.case
        shapes = ((case.queries, case.dim), (case.keys, case.dim), (case.keys, case.width))
        q, k, v = (self.noise(name, (case.batch, case.heads, *shape)) for name, shape in zip("qkv", shapes, strict=True))
        q, k, v = REGIMES[case.values](q, k, v, case)
        q, k = (x * 2.0**case.magnitude + case.shift for x in (q, k))
        q, k, v = (round_to(case.dtype, x) for x in (q, k, v))
        return LinearInputs(q, k, v, case.is_causal, case.dtype, case.device, case.layout)

    def run(self, x: LinearInputs | None = None) -> LinearRun:
        """Call the target. All calls of a trial with the same shapes use the same memory."""
        x = self.inputs if x is None else x
        solved = cache(lambda: exact.solve(x.q, x.k, x.v, self.visible(x), self.arithmetic))
        self.bounds.add(len(self.runs))
        self.meanwhile(len(self.runs), solved)
        out, self.form, self.own = call(self.target, x, self.buffers)
        wanted = (*x.q.shape[:3], x.v.shape[3])
        if out.shape != wanted:
            self.fail(f"the output has shape {out.shape}, expected {wanted}")
        right, allowed = solved()
        run = LinearRun(out, right, allowed)
        self.runs.append(run)
        return run

    def visible(self, x: LinearInputs) -> Array:
        """(L, S) bool: the keys that a row sums up."""
        queries, keys = x.q.shape[2], x.k.shape[2]
        return frontier(queries, keys, self.supports.causal) if x.is_causal else np.ones((queries, keys), dtype=bool)
