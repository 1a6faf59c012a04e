"""Gradients of a layer: what a loss on its output sends back to its arguments and weights is how much the loss grows with them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..engine.cases.coordinates import Array
from ..engine.core.ascent import OfCall
from ..engine.core.declare import declare
from ..engine.frameworks import Buffers
from .call import LayerInputs, answer
from .layers import DEFINITE, SIZES, posed
from .trial import LayerRun, LayerTrial

SMALL: dict[str, Any] = SIZES | {
    "queries": (2, 3, 4, 5),
    "keys": (2, 3, 4, 5, 7),
    "kv_heads": (1, 2, 3),
    "dim": (2, 3, 4),
    "magnitude": 0,
    "dtype": ("float64",),
    "mask_kind": DEFINITE,
}
TENSORS = ("query", "key", "value")


class OfLayer(OfCall):
    """A layer with its arguments and its weights."""

    def __init__(self, trial: LayerTrial) -> None:
        super().__init__(trial, {name: getattr(trial.layer, name) for name in TENSORS} | dict(trial.layer.weights))

    def inputs(self, at: Mapping[str, Array]) -> LayerInputs:
        weights = {name: at[name] for name in self.trial.layer.weights}
        inputs: LayerInputs = self.trial.layer.but(**{name: at[name] for name in TENSORS}, weights=weights)
        return inputs

    def called(self, inputs: LayerInputs) -> LayerRun:
        run: LayerRun = self.trial.run_layer(inputs)
        return run

    def posed(self, run: LayerRun) -> Array:
        return posed(self.trial, run)

    def answer(self, inputs: LayerInputs, buffers: Buffers) -> Any:
        return answer(self.trial.target, inputs, buffers)[0]


@declare("⟨∇φ, d⟩ = (φ(h) − φ(−h)) / 2h, φ = Σ out·g", contract="multihead", needs=("layer_gradients",), **SMALL)
def layer_gradients_are_slopes(t: LayerTrial) -> None:
    """What a loss on the output of a layer sends back to its arguments and weights is how much the loss grows with them."""
    OfLayer(t).grows_as_reported()


@declare(
    "⟨H d, d⟩ = (φ(h) − 2 φ(0) + φ(−h)) / h², φ = Σ out·g",
    contract="multihead",
    needs=("layer_gradients",),
    edge="second derivatives",
    **SMALL,
)
def layer_second_derivatives_are_bends(t: LayerTrial) -> None:
    """Where a gradient of a layer can be differentiated again, that is how the loss bends."""
    OfLayer(t).bends_as_reported()
