"""A trial of an encoder or decoder layer."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np

from ..engine.cases.coordinates import Array, bits, normal
from ..engine.cases.dtypes import round_to
from ..engine.cases.masks import frontier, make_mask
from ..engine.core.trial import Trial
from . import exact as exactly
from .call import ATTENTION, BlockInputs, call_block
from .cases import TOKENS, Case


class BlockRun:
    """One answer (B, L, E), what it should be, and how far it may be off."""

    out: Array

    def __init__(self, trial: BlockTrial, inputs: BlockInputs) -> None:
        self.trial, self.inputs = trial, inputs
        self.number = len(trial.runs)  # of the trial's calls

    @cached_property
    def exact(self) -> exactly.Value:
        """The exact answer."""
        self.trial.bounds.add(self.number)
        return self.trial.solve_block(self.inputs)

    @property
    def bound(self) -> Array:
        """By composition of the sublayers, the residuals and the norms."""
        return self.exact.error

    @property
    def answers(self) -> list[tuple[Array, Array]]:
        """What was answered, with its bound."""
        return [(self.out, self.bound)]

    @cached_property
    def posed(self) -> Array:
        """(B, L, 1) bool: the rows that see a key in every head, and are no padding; what others give is a convention."""
        return self.trial.posed(self.inputs)


def make_block(case: Case, contract: str) -> BlockInputs:
    """The arguments of the call that the case stands for."""
    width, norms = case.heads * case.dim, 3 if contract == "decoder_layer" else 2

    def tensor(name: str, shape: tuple[int, ...], factor: float = 1.0) -> Array:
        return round_to(case.dtype, normal(case.seed, name, shape) * factor)

    def tokens(name: str, length: int) -> Array:
        drawn = normal(case.seed, name, (case.batch, length, width))
        return round_to(case.dtype, TOKENS.get(case.values, TOKENS["normal"])(drawn, case) * 2.0**case.magnitude)

    prefixes = ("", "cross_") if contract == "decoder_layer" else ("",)
    shapes: dict[str, tuple[int, ...]] = {
        f"{p}{name}": (width, width) if name[0] == "w" else (width,) for p in prefixes for name in ATTENTION
    }
    shapes |= {"w_1": (case.hidden, width), "b_1": (case.hidden,), "w_2": (width, case.hidden), "b_2": (width,)}
    weights = {name: tensor(name, shape, shape[-1] ** -0.5 if len(shape) == 2 else 1.0) for name, shape in shapes.items()}
    for number in range(1, norms + 1):
        weights[f"g_{number}"] = round_to(case.dtype, 1 + normal(case.seed, f"g_{number}", (width,)) / 2)
        weights[f"beta_{number}"] = tensor(f"beta_{number}", (width,))
    if not case.with_bias:
        weights = {name: w for name, w in weights.items() if "b_" not in name and "beta" not in name}
    shape = (case.batch, case.heads, case.queries)
    of_memory = case.but(mask=case.memory_mask, seed=case.seed + 1)
    has_memory = contract == "decoder_layer"
    return BlockInputs(
        x=tokens("x", case.queries),
        weights=weights,
        num_heads=case.heads,
        memory=tokens("memory", case.keys) if has_memory else None,
        mask=make_mask(case, (*shape, case.queries)),
        padding=padding(case, "padding", case.queries) if case.padding else None,
        memory_mask=make_mask(of_memory, (*shape, case.keys)) if has_memory else None,
        memory_padding=padding(case, "memory padding", case.keys) if case.memory_padding and has_memory else None,
        is_causal=case.is_causal,
        norm_first=case.norm_first,
        activation=case.activation,
        explicit=case.explicit,
        dtype=case.dtype,
        device=case.device,
        layout=case.layout,
    )


def padding(case: Case, name: str, length: int) -> Array:
    """(B, length) bool, True = padding: at the end, at the beginning or in between; a token of every sequence stays."""
    count = bits(case.seed, name, (case.batch, 1)) >> np.uint64(33)
    at_the_end = np.arange(length) >= 1 + (count % np.uint64(max(length, 1))).astype(np.int64)
    holes = normal(case.seed, f"{name} holes", at_the_end.shape) < 0
    holes[:, case.seed % length if length else 0 :][:, :1] = False
    return (at_the_end, at_the_end[:, ::-1], holes)[case.seed % 3]


def visible_and_bias(mask: Array | None, hidden: Array | None, shape: tuple[int, ...]) -> tuple[Array, Array | None]:
    """Which keys are visible (B, H, L, S) under a mask and a padding, and what is added to their logits."""
    visible = np.ones(shape, dtype=bool)
    if hidden is not None:
        visible &= ~hidden[:, None, None, :]
    if mask is None or mask.dtype == bool:
        return visible if mask is None else visible & mask, None
    return visible & (mask != -np.inf), np.where(mask == -np.inf, 0.0, mask)


class BlockTrial(Trial):
    """What a property of encoder and decoder layers sees."""

    form: tuple[tuple[int, ...], str, str]  # shape, dtype and device of the last answer

    @cached_property
    def block(self) -> BlockInputs:
        """The arguments of the call that the case stands for."""
        return make_block(self.case, self.target.contract)

    @property
    def norms(self) -> int:
        """How many norms a token meets."""
        return 3 if self.target.contract == "decoder_layer" else 2

    def run_block(self, inputs: BlockInputs | None = None) -> BlockRun:
        """Call the layer. All calls of a trial with the same shapes use the same memory."""
        inputs = self.block if inputs is None else inputs
        run = BlockRun(self, inputs)
        self.meanwhile(run.number, lambda: run.exact)
        run.out, self.form, self.own = call_block(self.target, inputs, self.buffers)
        if run.out.shape != inputs.x.shape:
            self.fail(f"the output has shape {run.out.shape}, expected {inputs.x.shape}")
        self.runs.append(run)
        return run

    def visible_tokens(self, inputs: BlockInputs) -> Array:
        """(B, H, L, L) bool: what the tokens see of one another."""
        return self.problem(inputs).visible

    def memory_visible(self, inputs: BlockInputs) -> Array:
        """(B, H, L, S) bool: what the tokens see of the memory."""
        visible = self.problem(inputs).memory_visible
        assert visible is not None
        return visible

    def posed(self, inputs: BlockInputs) -> Array:
        """(B, L, 1) bool: the rows that see a key in every head, and are no padding."""
        rows: Array = np.all(np.any(self.visible_tokens(inputs), -1), 1)
        if inputs.memory is not None:
            rows = rows & np.all(np.any(self.memory_visible(inputs), -1), 1)
        return (rows if inputs.padding is None else rows & ~inputs.padding)[..., None]

    def problem(self, inputs: BlockInputs) -> exactly.Block:
        """The call as the oracle takes it, in the target's dialect."""
        batch, length, _ = inputs.x.shape
        heads = inputs.num_heads
        visible, bias = visible_and_bias(inputs.mask, inputs.padding, (batch, heads, length, length))
        if inputs.is_causal:
            visible = visible & frontier(length, length)
        block = exactly.Block(
            inputs.x,
            inputs.weights,
            heads,
            visible,
            bias,
            norm_first=inputs.norm_first,
            activation=inputs.activation,
            eps=self.supports.eps,
            empty_rows=self.supports.empty_rows,
        )
        if inputs.activation == "gelu" and self.supports.gelu == "tanh":
            block = block.but(activation="gelu_tanh")
        if inputs.memory is None:
            return block
        keys = inputs.memory.shape[1]
        visible, bias = visible_and_bias(inputs.memory_mask, inputs.memory_padding, (batch, heads, length, keys))
        return block.but(memory=inputs.memory, memory_visible=visible, memory_bias=bias)

    def solve_block(self, inputs: BlockInputs) -> exactly.Value:
        """What the oracle says of a call."""
        precision = "extended" if inputs.dtype == "float64" else "float64"
        return exactly.solve(self.problem(inputs), self.arithmetic, precision)  # type: ignore[arg-type]

    def cut(self, inputs: BlockInputs | None = None, *names: str) -> BlockInputs:
        """The call with the outputs of attention (and whatever else is named) cut off: their last linear map is zero."""
        inputs = self.block if inputs is None else inputs
        zero = [name for p in ("", "cross_") for name in (f"{p}w_o", f"{p}b_o")] + list(names)
        return inputs.with_weights(**{name: np.zeros_like(inputs.weights[name]) for name in zero if name in inputs.weights})

    def inside_block(self, run: BlockRun, says: str, where: Array | bool = True) -> None:
        """The answer is inside its bound, wherever a row is posed."""
        self.inside(run, run.bound, says, run.posed & where)

    def agree(self, one: BlockRun, other: BlockRun, says: str, where: Array | bool = True) -> None:
        """Two calls that must give the same, inside both bounds, wherever a row is posed."""
        self.close(one.out, other.out, one.bound + other.bound, says, one.posed & where)

    def given(self, inputs: BlockInputs) -> Mapping[str, Any]:
        """The arrays of a call, by the names of their memory."""
        named = {
            "x": inputs.x,
            "memory": inputs.memory,
            "attn_mask": inputs.mask,
            "key_padding_mask": inputs.padding,
            "memory_mask": inputs.memory_mask,
            "memory_key_padding_mask": inputs.memory_padding,
        }
        return {**named, **inputs.weights}
