"""A trial of a multi-head layer: projections around an attention."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from ..engine.cases.coordinates import Array, bits, normal
from ..engine.cases.dtypes import round_to
from ..engine.cases.masks import frontier, make_mask
from ..engine.core.trial import Trial
from ..exact import bound, oracle
from .call import APPENDED, LayerInputs, call_layer

MATRICES = ("w_q", "w_k", "w_v", "w_o")
BIASES = ("b_q", "b_k", "b_v", "b_o")


class LayerRun:
    """One answer of the layer: out (B, L, E), weights (B, H, L, S) or None."""

    out: Array
    weights: Array | None

    def __init__(self, trial: LayerTrial, inputs: LayerInputs) -> None:
        self.trial, self.inputs = trial, inputs
        self.number = len(trial.runs)  # of the trial's calls

    @cached_property
    def exact(self) -> oracle.LayerExact:
        """The exact answer, from the oracle."""
        return self.trial.solve_layer(self.inputs)

    @cached_property
    def _bounds(self) -> tuple[Array, Array]:
        self.trial.bounds.add(self.number)
        return bound.multihead(self.exact, self.trial.arithmetic)

    @property
    def bound(self) -> Array:
        """The bound of the output, by composition: linear, attention, linear."""
        return self._bounds[0]

    @property
    def weights_bound(self) -> Array:
        """The bound of the attention weights."""
        return self._bounds[1]

    @property
    def answers(self) -> list[tuple[Array, Array]]:
        """What was answered, with its bound; anything goes where no weights are returned."""
        shape = self.weights_bound.shape
        weights = (np.full(shape, np.nan), np.full(shape, np.inf)) if self.weights is None else (self.weights, self.weights_bound)
        return [(self.out, self.bound), weights]


class LayerTrial(Trial):
    """What a property of layers sees."""

    form: tuple[tuple[int, ...], str, str]  # shape, dtype and device of the last output

    @cached_property
    def layer(self) -> LayerInputs:
        """The arguments of the call that the case stands for, with random projections."""
        made = self.make_layer(self.case.keys)
        match self.case.shared:
            case "all":
                return made.but(key=made.query, value=made.query)
            case "key and value":
                return made.but(value=made.key)
            case "query and key":
                return made.but(key=made.query)
            case "query and value":
                return made.but(value=made.query)
        return made

    @cached_property
    def self_attention(self) -> LayerInputs:
        """The same with query = key = value."""
        made = self.make_layer(self.case.queries)
        return made.but(key=made.query, value=made.query)

    def make_layer(self, keys: int) -> LayerInputs:
        """A layer call with that many keys."""
        case, width = self.case, self.case.heads * self.case.dim

        def tensor(name: str, shape: tuple[int, ...], factor: float = 1.0) -> Array:
            return round_to(case.dtype, normal(case.seed, name, shape) * factor)

        weights = {name: tensor(name, (width, width), max(width, 1) ** -0.5) for name in MATRICES}
        if case.with_bias:
            weights |= {name: tensor(name, (width,)) for name in BIASES if name[2] not in case.unbiased}
        if case.bias_kv:
            weights |= {name: tensor(name, (width,)) for name in APPENDED}
        return LayerInputs(
            query=tensor("query", (case.batch, case.queries, width), 2.0**case.magnitude),
            key=tensor("key", (case.batch, keys, width)),
            value=tensor("value", (case.batch, keys, width)),
            weights=weights,
            num_heads=case.heads,
            mask=make_mask(case, (case.batch, case.heads, case.queries, keys)),
            is_causal=case.is_causal,
            add_zero_attn=case.add_zero_attn,
            dtype=case.dtype,
            device=case.device,
        )

    def padding(self) -> Array:
        """(B, S) bool, True = padding; at least one key of every sequence stays."""
        batch, keys, _ = self.layer.key.shape
        draw = bits(self.case.seed, "padding", (batch, 1)) >> np.uint64(33)
        return np.arange(keys) >= 1 + (draw % np.uint64(max(keys, 1))).astype(np.int64)

    def visible_to(self, inputs: LayerInputs) -> Array:
        """(B, H, L, S + N) bool: mask, padding and causal frontier together; every row sees the N keys that are appended."""
        shape = (inputs.query.shape[0], inputs.num_heads, inputs.query.shape[1], inputs.key.shape[1])
        visible = np.ones(shape, dtype=bool)
        if inputs.mask is not None:
            visible &= inputs.mask if inputs.mask.dtype == bool else inputs.mask != -np.inf
        if inputs.padding is not None:
            visible &= ~inputs.padding[:, None, None, :]
        if inputs.is_causal:
            visible &= frontier(shape[2], shape[3], self.supports.causal)
        return _extended(visible, inputs, True)

    def solve_layer(self, inputs: LayerInputs) -> oracle.LayerExact:
        """What the oracle says of a layer call."""
        mask, appended = inputs.mask, inputs.appended
        problem = oracle.LayerProblem(
            inputs.query,
            inputs.key,
            inputs.value,
            inputs.weights,
            num_heads=inputs.num_heads,
            visible=self.visible_to(inputs),
            bias=None if mask is None or mask.dtype == bool else _extended(np.where(mask == -np.inf, 0.0, mask), inputs, 0.0),
            empty_rows=self.supports.empty_rows,
            appended=appended if len(appended[0]) else None,
        )
        return oracle.solve_layer(problem, precision="extended" if inputs.dtype == "float64" else "float64")

    def run_layer(self, inputs: LayerInputs | None = None) -> LayerRun:
        """Call the layer."""
        inputs = self.layer if inputs is None else inputs
        run = LayerRun(self, inputs)
        self.meanwhile(run.number, lambda: run.bound)
        run.out, run.weights, self.form = call_layer(self.target, inputs, self.buffers)
        batch, queries, width = inputs.query.shape
        if run.out.shape != (batch, queries, width):
            self.fail(f"the output has shape {run.out.shape}, expected {(batch, queries, width)}")
        wanted = (batch, inputs.num_heads, queries, inputs.key.shape[1] + len(inputs.appended[0]))
        if run.weights is not None and run.weights.shape != wanted:
            self.fail(f"the weights have shape {run.weights.shape}, expected {wanted}")
        self.runs.append(run)
        return run

    def kernel_bound(self, run: LayerRun) -> Array:
        """The bound of a layer whose projections round nothing (identity): that of the attention inside it."""
        return oracle.join_heads(bound.rigorous(run.exact.attention, self.arithmetic))

    def identity_weights(self, width: int) -> dict[str, Array]:
        """Projections that change nothing, exactly."""
        zeros = np.zeros(width)
        return dict.fromkeys(MATRICES, np.eye(width)) | dict.fromkeys(BIASES, zeros)


def _extended(mask: Array, inputs: LayerInputs, value: float | bool) -> Array:
    """A mask (…, S) or (…, 1) with one value in the columns (…, N) of what is appended."""
    keys, more = inputs.key.shape[1], len(inputs.appended[0])
    if not more:
        return mask
    whole = np.broadcast_to(mask, (*mask.shape[:-1], keys))
    return np.concatenate([whole, np.full((*whole.shape[:-1], more), value, dtype=whole.dtype)], axis=-1)
