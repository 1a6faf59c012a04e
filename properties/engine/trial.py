"""A trial: one case put to one target, and the claims a property may make about the answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from .. import bound, oracle
from ..arithmetic import Arithmetic
from . import coordinates
from .case import Case
from .coordinates import Array
from .dtypes import FLOAT_TYPES
from .inputs import AXES, Inputs, make_inputs
from .target import Target

SLIGHT = 1e-6  # relative


@dataclass(frozen=True, eq=False)
class Violation:
    """A claim that does not hold, at its worst element."""

    says: str  # in words, with the indices
    actual: float
    expected: float
    allowed: float
    wrong: Array | None = None  # bool, shape of the output: every element that breaks the claim
    columns: str = "features"  # what its last axis is
    raised: bool = False  # the target raised, or killed the process, rather than answered wrongly
    killed: bool = False
    hint: str = ""  # what may not be supported, and the key that declares it

    @property
    def difference(self) -> float:
        """|actual - expected|."""
        return abs(self.actual - self.expected)

    @property
    def slight(self) -> bool:
        """A rounding error too much: one that a bound nearly allows, or of the last digits. False for NaN."""
        largest = max(abs(self.actual), abs(self.expected))
        return 0 < self.difference < max(100 * self.allowed, SLIGHT * largest)


class Refuted(AssertionError):
    """The property does not hold of this target on this case."""

    def __init__(self, violation: Violation) -> None:
        self.violation = violation
        super().__init__(violation.says)


@dataclass
class Notes:
    """What the trials of one property have seen, summed over its cases."""

    used: float = 0.0  # largest |difference| / allowed of any bounded claim
    compared: int = 0  # elements compared
    ill_posed: int = 0  # elements for which no finite bound exists
    adequate: int = 0  # cases in which a trivially wrong answer would have been noticed
    judged: int = 0  # cases whose adequacy was judged
    fits: dict[str, float] = field(default_factory=dict)  # tighter arithmetic kind → largest used fraction

    def merge(self, other: Notes) -> None:
        """Add what other cases have seen."""
        self.used = max(self.used, other.used)
        self.compared += other.compared
        self.ill_posed += other.ill_posed
        self.adequate += other.adequate
        self.judged += other.judged
        for kind, fraction in other.fits.items():
            self.fits[kind] = max(self.fits.get(kind, 0.0), fraction)


class Run:
    """One answer of the target, with what the oracle says of the same call."""

    def __init__(self, trial: Trial, inputs: Inputs, out: Array) -> None:
        self.trial, self.inputs, self.out = trial, inputs, out

    @cached_property
    def exact(self) -> oracle.Exact:
        """The exact answer."""
        return self.trial.solve(self.inputs)

    @cached_property
    def bound(self) -> Array:
        """How far the answer of a correct attention may be from the exact one, per element."""
        limit = bound.rigorous(self.exact, self.trial.arithmetic)
        if self.trial.target.mixes_heads:
            return np.where(np.isinf(limit).any(axis=(1, 3), keepdims=True), np.inf, limit)
        return limit

    def likely(self, alpha: float) -> Array:
        """How far it is at most but for a share ``alpha`` of all cases, where rounding errors are as good as random."""
        return np.where(np.isinf(self.bound), np.inf, bound.probabilistic(self.exact, self.trial.arithmetic, alpha=alpha))


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


class Trial:
    """What a property sees: the case, its inputs, the target's answers, and claims."""

    def __init__(self, target: Target, case: Case, notes: Notes | None = None) -> None:
        self.target = target
        self.case = case
        self.supports = target.supports
        self.notes = notes if notes is not None else Notes()
        self.buffers = target.buffers()
        self.runs: list[Any] = []  # every answer of the trial, for the reading of a failure

    @cached_property
    def inputs(self) -> Inputs:
        """The arguments of the call that the case stands for."""
        return make_inputs(self.case)

    @cached_property
    def arithmetic(self) -> Arithmetic:
        """The declared arithmetic, or the loosest sane one."""
        return self.supports.declared(self.case.dtype)

    @property
    def answers(self) -> list[tuple[Array, Array]]:
        """Every answer with its bound, where it is no attention that answers."""
        return [answer for run in self.runs for answer in run.answers]

    # ------------------------------------------------------------ answers

    def apart(self, *runs: Run) -> Array:
        """Where heads cannot touch each other; in a layer seen as its kernel, what overflows in one is NaN in all heads of the row."""
        return self.told(*runs) if self.target.mixes_heads else np.array(True)

    def told(self, *runs: Any) -> Array:
        """Where nothing in between may overflow in any of the runs (0 · NaN is NaN); what is left out is counted, as by ``close``."""
        told = np.all([np.isfinite(run.bound) for run in runs], axis=0)
        self.notes.ill_posed += int((~told).sum())
        return np.asarray(told)

    def run(self, inputs: Inputs | None = None) -> Run:
        """Call the target. All calls of a trial with the same shapes use the same memory."""
        inputs = (self.inputs if inputs is None else inputs).said(self.supports.mask_axes)
        out = self.target(inputs, self.buffers)
        wanted = (*inputs.shape[:3], inputs.v.shape[3])
        if out.shape != wanted:
            self.fail(f"the output has shape {out.shape}, expected {wanted}")
        self.runs.append(Run(self, inputs, out))
        return self.runs[-1]

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
        answer = self.target.answer(inputs, self.buffers)
        if not (isinstance(answer, tuple | list) and len(answer) == 2 and self.target.framework.is_array(answer[1])):
            self.fail("with return_lse it does not return (out, lse)")
        shape, dtype, _ = self.target.framework.describe(answer[1])
        if shape != inputs.shape[:3] or dtype not in FLOAT_TYPES:
            self.fail(f"the log-sum-exp is {dtype} of shape {shape}, expected numbers of shape {inputs.shape[:3]}")
        self.runs.append(Run(self, inputs, self.target.read(answer[0])))
        return self.runs[-1], self.target.framework.read(answer[1]), 2.0 ** -FLOAT_TYPES[dtype].precision

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

    def solve(self, inputs: Inputs) -> oracle.Exact:
        """What the oracle says of a call."""
        bias, alibi = inputs.bias(), inputs.alibi(self.supports.causal)
        problem = oracle.Problem(
            q=inputs.q,
            k=inputs.k,
            v=inputs.v,
            scale=inputs.effective_scale,
            visible=self.visible(inputs),
            bias=bias if alibi is None else alibi if bias is None else bias + alibi,
            bias_size=None if inputs.slopes is None else inputs.slopes[:, None, None] * max(inputs.shape[2:]),
            empty_rows=self.supports.empty_rows,
            softcap=inputs.softcap,
        )
        if inputs.sinks is not None:
            problem = oracle.with_sinks(problem, inputs.sinks)
        return oracle.solve(problem, precision="extended" if inputs.dtype == "float64" else "float64")

    def visible(self, inputs: Inputs | None = None) -> Array:
        """(B, H, L, S) bool in the target's dialect."""
        return (self.inputs if inputs is None else inputs).visible(self.supports.causal)

    # ------------------------------------------------------------ choices that belong to the case

    def choice(self, name: str, count: int) -> int:
        """One of ``range(count)``, fixed by the seed."""
        return coordinates.choice(self.case.seed, name, count)

    def permutation(self, name: str, count: int) -> Array:
        """An order of ``range(count)``, fixed by the seed; not the identity if another exists."""
        return coordinates.permutation(self.case.seed, name, count)

    def noise(self, name: str, shape: tuple[int, ...]) -> Array:
        """Nearly normal numbers, fixed by the seed."""
        return coordinates.normal(self.case.seed, name, shape)

    # ------------------------------------------------------------ claims

    def fail(self, says: str) -> None:
        """The property does not hold, whatever the numbers."""
        raise Refuted(Violation(says, np.nan, np.nan, 0.0))

    def same_bits(self, actual: Array, expected: Array, says: str, where: Array | bool = True) -> None:
        """The two agree bit for bit wherever ``where`` is True; only the sign of a zero may differ.

        A hidden key has weight 0, and 0·v has the sign of v: that much of it shows where all other terms are 0.
        """
        actual, expected = np.asarray(actual, dtype=np.float64), np.asarray(expected, dtype=np.float64)
        equal = (actual == expected) | (np.isnan(actual) & np.isnan(expected))
        self._settle(~equal & where, actual, expected, np.zeros(np.shape(actual)), says)

    def close(self, actual: Array, expected: Array, allowed: Array, says: str, where: Array | bool = True) -> None:
        """|actual - expected| <= allowed, element by element; where ``allowed`` is infinite nothing is claimed."""
        actual, expected, allowed = np.broadcast_arrays(
            actual, np.asarray(expected, dtype=np.float64), np.asarray(allowed, dtype=np.float64)
        )
        with np.errstate(invalid="ignore", over="ignore"):
            difference = np.abs(actual - expected)
            difference = np.where((actual == expected) | (np.isnan(actual) & np.isnan(expected)), 0.0, difference)
        self._bounded(difference, actual, expected, allowed, says, where)

    def _bounded(
        self, difference: Array, actual: Array, expected: Array, allowed: Array, says: str, where: Array | bool
    ) -> None:
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            claimed = (allowed != np.inf) & where
            wrong = claimed & ~(difference <= allowed)
            fraction = np.where(claimed & ~wrong & (difference > 0), difference / allowed, 0.0)
        self.notes.compared += int(claimed.sum())
        self.notes.ill_posed += int((allowed == np.inf).sum())
        if fraction.size:
            self.notes.used = max(self.notes.used, float(fraction.max()))
        self._settle(wrong, actual, expected, allowed, says)

    def within(
        self, error: Array, actual: Array, expected: Array, allowed: Array, says: str, where: Array | bool = True
    ) -> None:
        """error <= allowed, element by element, for an error that is known to more digits than a float64 holds."""
        self._bounded(error, actual, expected, allowed, says, where)

    def inside(self, run: Any, allowed: Array, says: str, where: Array | bool = True) -> None:
        """The answer is as near to the exact one as allowed; the oracle keeps more digits than a float64 holds."""
        out = np.asarray(run.out, dtype=np.float64)
        self._bounded(run.exact.out_error(out), out, run.exact.out, allowed, says, where)

    def at_least(self, actual: Array, least: Array, slack: Array, says: str, where: Array | bool = True) -> None:
        """actual >= least - slack, element by element; a NaN is less than anything."""
        actual, least, slack = np.broadcast_arrays(actual, least, slack)
        with np.errstate(invalid="ignore"):
            wrong = ~(actual >= least - slack) & (slack != np.inf) & where
        self._settle(wrong, actual, least, slack, says)

    def spells_out(self, read: Weights, seen: Array) -> None:
        """With equal logits the weights of a row say which keys it sees: these weigh alike, the others nothing."""
        told, allowed = np.asarray(seen.any(axis=-1, keepdims=True)), np.where(read.bound == np.inf, np.inf, 0.0)
        with np.errstate(invalid="ignore"):
            visible = np.where(np.isnan(read.out), np.nan, read.out > read.out.max(axis=-1, keepdims=True, initial=0.0) / 2)
        self.close(visible, seen, allowed, "row {row} is wrong about seeing key {column}", told)
        shares = np.rint(read.out * np.maximum(seen.sum(axis=-1, keepdims=True), 1))
        self.close(shares, seen, allowed, "row {row} sees key {column}, and gives it no equal share", told)

    def _settle(self, wrong: Array, actual: Array, expected: Array, allowed: Array, says: str) -> None:
        wrong = np.broadcast_to(wrong, actual.shape)
        if not wrong.any():
            return
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            excess = np.where(wrong, np.nan_to_num(np.abs(actual - expected) - allowed, nan=np.inf, posinf=np.inf), -1.0)
        at = np.unravel_index(int(np.argmax(excess)), wrong.shape)
        place = dict(zip(("batch", "head", "row", "column")[-len(at):], (int(i) for i in at), strict=True))
        words = says.format(**place) if "{" in says else says
        columns = "keys" if "key {column}" in says else "features"
        if actual.dtype == bool:  # yes or no: the words say it
            raise Refuted(Violation(words, np.nan, np.nan, 0.0, wrong, columns))
        raise Refuted(Violation(words, float(actual[at]), float(expected[at]), float(allowed[at]), wrong, columns))


def describe(violation: Violation) -> str:
    """One line: what was claimed, the numbers at the worst element, and what can be declared."""
    if np.isnan(violation.actual) and np.isnan(violation.expected):
        return violation.says + violation.hint
    allowed = "0 (exact)" if violation.allowed == 0 else f"{violation.allowed:.3g}"
    numbers: Any = f"|difference| {violation.difference:.3g}, allowed {allowed}"
    return f"{violation.says}: got {violation.actual:.9g}, expected {violation.expected:.9g}; {numbers}{violation.hint}"
