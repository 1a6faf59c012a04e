"""A trial of an attention: the answers of a target, what they should be, and how far they may be off."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

import numpy as np

from ..engine.cases.coordinates import Array
from ..engine.cases.dtypes import FLOAT_TYPES
from ..engine.cases.masks import AXES
from ..engine.core.target import Target
from ..engine.core.trial import Trial as BaseTrial
from ..engine.frameworks import Buffers
from ..exact import bound, oracle
from .call import answer as ask
from .call import attend
from .inputs import Inputs, make_inputs, problem_of


class Run:
    """One answer of the target, with what the oracle says of the same call."""

    out: Array

    def __init__(self, trial: Trial, inputs: Inputs, out: Array | None = None) -> None:
        self.trial, self.inputs = trial, inputs
        self.number = len(trial.runs)  # of the trial's calls
        if out is not None:
            self.out = out

    @cached_property
    def exact(self) -> oracle.Exact:
        """The exact answer."""
        return self.trial.solve(self.inputs)

    @cached_property
    def bound(self) -> Array:
        """How far the answer of a correct attention may be from the exact one, per element."""
        self.trial.bounds.add(self.number)
        limit = bound.rigorous(self.exact, self.trial.arithmetic)
        if self.trial.target.mixes_heads:
            return np.where(np.isinf(limit).any(axis=(1, 3), keepdims=True), np.inf, limit)
        return limit

    def likely(self, alpha: float) -> Array:
        """How far it is at most but for a share ``alpha`` of all cases, where rounding errors are as good as random."""
        return np.where(np.isinf(self.bound), np.inf, bound.probabilistic(self.exact, self.trial.arithmetic, alpha=alpha))

    sends_back = False  # it holds gradients, too

    def again(self, target: Target, buffers: Buffers) -> Array:
        """What a target answers to the same call. Raises Raised."""
        return attend(target, self.inputs, buffers)

    def is_wrong(self, where_a_key_is_seen: bool = False) -> bool:
        """Whether the answer is outside its bound, in any row or in one that sees a key."""
        wrong = self.exact.out_error(self.out) > self.bound
        if where_a_key_is_seen and self.exact.empty is not None:
            wrong &= ~self.exact.empty[..., None]
        return bool(wrong.any())

    def agrees(self, wrong: Target, buffers: Buffers) -> bool:
        """As near to each other as two computations of the same are; nothing is asked where there is no bound.

        The bound is that of the right answer, which may be an exact 0 or 1 where the wrong one is not. So a rounding error
        for every term of the wrong sums is allowed besides; but at least half of what the target is off by must be explained.
        A reading is a hint, not a verdict.
        """
        if self.inputs.dtype not in wrong.dtypes:
            return True
        out = attend(wrong, self.inputs, buffers)
        if out.shape != self.out.shape:
            return False
        if self.is_wrong() and not (self.exact.out_error(out) > self.bound).any():
            return False  # right where the target is wrong: near to it only because the target is nearly right
        terms = self.inputs.shape[3] + self.inputs.q.shape[3] + 8
        rounding = terms * 2.0 ** -FLOAT_TYPES[self.inputs.dtype].precision * np.abs(self.inputs.v).max(initial=0.0)
        with np.errstate(invalid="ignore"):
            distance, off = np.abs(out - self.out), self.exact.out_error(self.out)
            near = (distance <= 2 * self.bound + rounding) & ~((off > self.bound) & (distance > off / 2))
        undecided = (self.bound == np.inf) & (~np.isnan(self.exact.out) | (np.isnan(out) == np.isnan(self.out)))
        return bool((near | (out == self.out) | (np.isnan(out) & np.isnan(self.out)) | undecided).all())

    def near_output(self, other: Run) -> bool:
        """Whether two answers are as near to each other as two computations of the same are."""
        with np.errstate(all="ignore"):
            near = (np.abs(self.out - other.out) <= 2 * self.bound) | (self.bound == np.inf) | (np.isnan(self.out) & np.isnan(other.out))
        # Under dropout there is no bound of the output; what is dropped is the same, for the seed is.
        return bool(self.inputs.dropout) or bool(near.all())


class Weights:
    """The attention matrix of a black box: its answers for V = the columns of the identity."""

    def __init__(self, parts: list[Run]) -> None:
        self.parts = parts
        self.inputs = parts[0].inputs
        self.out: Array = np.concatenate([run.out for run in parts], axis=-1)  # (B, H, L, S)

    @cached_property
    def bound(self) -> Array:
        """The bound of each weight."""
        return np.concatenate([run.bound for run in self.parts], axis=-1)


class Trial(BaseTrial):
    """What a property of an attention sees: the case, its inputs, the target's answers, and claims."""

    @cached_property
    def inputs(self) -> Inputs:
        """The arguments of the call that the case stands for."""
        return replace(make_inputs(self.case), default_scale=self.supports.default_scale)

    # ------------------------------------------------------------ answers

    def independent_heads(self, *runs: Run) -> Array:
        """Where heads cannot touch each other; in a layer viewed as its kernel, what overflows in one head is NaN in all heads of the row."""
        return self.bounded(*runs) if self.target.mixes_heads else np.array(True)

    def run(self, inputs: Inputs | None = None, buffers: Buffers | None = None) -> Run:
        """Call the target. All calls of a trial with the same shapes use the same memory, but for those with buffers of their own."""
        inputs = (self.inputs if inputs is None else inputs).said(self.supports.mask_axes)
        run = Run(self, inputs)
        self.meanwhile(run.number, lambda: run.bound)
        run.out = attend(self.target, inputs, self.buffers if buffers is None else buffers)
        wanted = (*inputs.shape[:3], inputs.v.shape[3])
        if run.out.shape != wanted:
            self.fail(f"the output has shape {run.out.shape}, expected {wanted}")
        self.runs.append(run)
        return run

    def written_out(self) -> Array:
        """The mask of the case, repeated along all axes along which the target takes masks that vary as this one does."""
        mask, own = self.inputs.mask, set(self.case.mask_axes)
        assert mask is not None
        largest = max((axes for axes in self.supports.mask_axes if own <= set(axes)), key=len)
        sizes = tuple(size if axis in largest else 1 for axis, size in zip(AXES, self.inputs.shape, strict=True))
        return np.broadcast_to(mask, sizes)

    def run_lse(self) -> tuple[Run, Array, float]:
        """Call the target for its log-sum-exp too: (output, lse (B, H, L), unit roundoff of the type it came in)."""
        inputs = self.inputs.but(return_lse=True)
        answer = ask(self.target, inputs, self.buffers)
        if not (isinstance(answer, tuple | list) and len(answer) == 2 and self.target.framework.is_array(answer[1])):
            self.fail("with return_lse it does not return (out, lse)")
        shape, dtype, _ = self.target.framework.describe(answer[1])
        if shape != inputs.shape[:3] or dtype not in FLOAT_TYPES:
            self.fail(f"the log-sum-exp is {dtype} of shape {shape}, expected numbers of shape {inputs.shape[:3]}")
        self.runs.append(Run(self, inputs, self.target.read(answer[0])))
        return self.runs[-1], self.target.framework.read(answer[1]), 2.0 ** -FLOAT_TYPES[dtype].precision

    def run_returned_weights(self) -> tuple[Run, Array, float]:
        """Call the target for its weights too: (output, weights (B, H, L, S), unit roundoff of the type they came in).

        Of their mean over heads (B, L, S) there is one head.
        """
        inputs = self.inputs.but(need_weights=True)
        answer = ask(self.target, inputs, self.buffers)
        if not (isinstance(answer, tuple | list) and len(answer) > 1 and self.target.framework.is_array(answer[1])):
            self.fail("with need_weights it does not return (out, weights)")
        shape, dtype, _ = self.target.framework.describe(answer[1])
        batch, _, queries, keys = inputs.shape
        mean = self.supports.returned_weights == "mean"
        if shape != (expected := (batch, queries, keys) if mean else inputs.shape) or dtype not in FLOAT_TYPES:
            self.fail(f"the weights are {dtype} of shape {shape}, expected numbers of shape {expected}")
        self.runs.append(Run(self, inputs, self.target.read(answer[0])))
        read = self.target.framework.read(answer[1])
        return self.runs[-1], read[:, None] if mean else read, 2.0 ** -FLOAT_TYPES[dtype].precision

    def weights(self, inputs: Inputs | None = None) -> Weights:
        """The attention matrix (B, H, L, S), read by choosing V = I (or its columns, where Dv must equal D)."""
        inputs = self.inputs if inputs is None else inputs
        batch, heads, keys, width = inputs.v.shape
        identity = np.broadcast_to(np.eye(keys), (batch, heads, keys, keys))
        if self.supports.value_dim or keys == width:
            return Weights([self.run(inputs.but(v=identity))])
        padded = np.concatenate([identity, np.zeros((batch, heads, keys, -keys % width))], axis=-1)
        parts = [self.run(inputs.but(v=padded[..., at : at + width])) for at in range(0, max(keys, 1), width)]
        read = Weights(parts)
        read.out = read.out[..., :keys]
        read.__dict__["bound"] = read.bound[..., :keys]
        return read

    @property
    def empty_rows(self) -> str:
        """What a row gives that sees no key, in the call of the case: zero, nan or mean."""
        return self.rows_without_keys(self.inputs)

    def rows_without_keys(self, inputs: Inputs) -> str:
        """Likewise, in another call."""
        added = inputs.mask is not None and inputs.mask.dtype != bool
        return (added and self.supports.empty_rows_added) or self.supports.empty_rows

    def solve(self, inputs: Inputs) -> oracle.Exact:
        """What the oracle says of a call."""
        problem = problem_of(inputs, self.supports.causal, self.rows_without_keys(inputs))
        return oracle.solve(problem, precision="extended" if inputs.dtype == "float64" else "float64")

    def visible(self, inputs: Inputs | None = None) -> Array:
        """(B, H, L, S) bool in the target's dialect."""
        return (self.inputs if inputs is None else inputs).visible(self.supports.causal)

    def spells_out(self, read: Weights, visible_keys: Array) -> None:
        """With equal logits the weights of a row say which keys it sees: these weigh alike, the others nothing."""
        nonempty, allowed = np.asarray(visible_keys.any(axis=-1, keepdims=True)), np.where(read.bound == np.inf, np.inf, 0.0)
        with np.errstate(invalid="ignore"):
            visible = np.where(np.isnan(read.out), np.nan, read.out > read.out.max(axis=-1, keepdims=True, initial=0.0) / 2)
        self.close(visible, visible_keys, allowed, "row {row} sees key {column} and must not, or must and does not", nonempty)
        shares = np.rint(read.out * np.maximum(visible_keys.sum(axis=-1, keepdims=True), 1))
        self.close(shares, visible_keys, allowed, "row {row} sees key {column}, and gives it no equal share", nonempty)
