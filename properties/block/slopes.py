"""Gradients of a layer: what a loss on its output sends back to tokens, memory and weights is how much the loss grows with them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..engine.cases.coordinates import Array
from ..engine.core.ascent import OfCall
from ..engine.core.declare import declare
from ..engine.frameworks import Buffers
from ..exact.slope import H
from . import exact as exactly
from .call import BlockInputs, answer
from .cases import DEFINITE
from .trial import BlockRun, BlockTrial

# Of a token of three features or fewer the variance is soon 0 somewhere near, and there the slope of a norm is no number of order one.
SMALL: dict[str, Any] = {
    "queries": (2, 3, 4, 5),
    "keys": (2, 3, 4, 5),
    "kv_heads": (2, 3),
    "dim": (2, 3, 4),
    "hidden": (2, 3, 4, 5, 8),
    "values": "normal",
    "magnitude": 0,
    "dtype": ("float64",),
    "mask_kind": DEFINITE,
}


LEAST = 2.0**-12  # of H: what is nearer than that to a corner is lost in rounding


class OfBlock(OfCall):
    """A layer with its tokens, its memory and its weights."""

    def __init__(self, trial: BlockTrial) -> None:
        block = trial.block
        super().__init__(trial, {"x": block.x} | ({} if block.memory is None else {"memory": block.memory}) | dict(block.weights))
        if block.activation == "relu":
            self.step = self.wide = self.short_of_corners()

    def short_of_corners(self) -> float:
        """A step on which no hidden number changes its sign, where a relu has a corner: half the way to the nearest one, or less."""
        back, here, there = (exactly.hidden(self.trial.problem(self.inputs(self.place(s))), self.trial.arithmetic) for s in (-H, 0.0, H))
        fastest = np.maximum(np.abs(there - here), np.abs(here - back))
        way = np.min(np.abs(here) / np.where(fastest > 0, fastest, np.inf), initial=2.0, where=fastest > 0)  # in steps of H
        return min(H, H * 2.0 ** math.floor(math.log2(max(way, LEAST) / 2)))

    def inputs(self, at: Mapping[str, Array]) -> BlockInputs:
        block: BlockInputs = self.trial.block
        memory = {"memory": at["memory"]} if "memory" in at else {}
        return block.but(x=at["x"], **memory, weights={name: at[name] for name in block.weights})

    def called(self, inputs: BlockInputs) -> BlockRun:
        run: BlockRun = self.trial.run_block(inputs)
        return run

    def posed(self, run: BlockRun) -> Array:
        return run.posed

    def answer(self, inputs: BlockInputs, buffers: Buffers) -> Any:
        return answer(self.trial.target, inputs, buffers)


@declare("⟨∇φ, d⟩ = (φ(h) − φ(−h)) / 2h, φ = Σ out·g", contract="block", needs=("layer_gradients",), **SMALL)
def block_gradients_are_slopes(t: BlockTrial) -> None:
    """What a loss on the output of the layer sends back to tokens, memory and weights is how much the loss grows with them."""
    OfBlock(t).grows_as_reported()


@declare(
    "⟨H d, d⟩ = (φ(h) − 2 φ(0) + φ(−h)) / h², φ = Σ out·g",
    contract="block",
    needs=("layer_gradients",),
    edge="second derivatives",
    **SMALL,
)
def block_second_derivatives_are_bends(t: BlockTrial) -> None:
    """Where a gradient of the layer can be differentiated again, that is how the loss bends."""
    OfBlock(t).bends_as_reported()
