"""Gradients of a layer: what a loss on its output sends back to its arguments and weights is how much the loss grows with them."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

import numpy as np

from ..engine.cases.coordinates import Array
from ..engine.core.ascent import STEPS, Ascent, on_grid, signs
from ..engine.core.declare import declare
from ..engine.frameworks import Given
from .call import LayerInputs, answer
from .layers import DEFINITE, SIZES, posed
from .trial import LayerTrial

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


class OfLayer(Ascent):
    """A layer with its arguments and its weights; what rounding may do is its bound."""

    def __init__(self, trial: LayerTrial) -> None:
        super().__init__(trial)
        layer = trial.layer
        named = {name: getattr(layer, name) for name in TENSORS} | dict(layer.weights)
        self.same = {name: next(n for n in named if named[n] is x) for name, x in named.items()}  # one array: its first name
        self.start = {name: on_grid(x) for name, x in named.items() if self.same[name] == name}
        self.along = {name: on_grid(trial.noise(f"along {name}", x.shape), STEPS) for name, x in self.start.items()}
        first = trial.run_layer(self.moved(0.0))
        self.counted = np.broadcast_to(posed(trial, first), first.out.shape)  # what other rows give is a convention
        self.signs = signs(trial.noise("signs", first.out.shape))
        self.noise = float(first.bound[self.counted].sum())
        if not self.counted.all() and trial.supports.empty_rows == "nan":
            self.noise = math.inf  # a row that is NaN sends NaN to all weights, whatever is asked of it

    def moved(self, s: float, names: Collection[str] | None = None) -> LayerInputs:
        """The call at s."""
        at = self.place(s, names)
        weights = {name: at[self.same[name]] for name in self.trial.layer.weights}
        inputs: LayerInputs = self.trial.layer.but(**{name: at[self.same[name]] for name in TENSORS}, weights=weights)
        return inputs

    def at(self, s: float, names: Collection[str] | None = None) -> float:
        out = self.trial.run_layer(self.moved(s, names)).out
        return math.fsum((out * self.signs)[self.counted])

    def told(self, twice: bool) -> dict[str, float]:
        t, fw = self.trial, self.trial.target.framework

        def array(name: str, carrier: Array) -> Any:
            return t.buffers.array(name, carrier, t.case.dtype, t.case.device, "contiguous")

        leaves = {name: fw.modules.leaf(array(f"leaf {name}", x)) for name, x in self.start.items()}
        along = [array(f"along {name}", d) for name, d in self.along.items()]
        weights, counted = array("signs", self.signs), array("counted", self.counted)

        def loss() -> Any:
            out, _ = answer(t.target, self.moved(0.0), Given(fw, leaves))
            return (out * weights)[counted].sum()

        return dict(zip(leaves, fw.modules.slopes(loss, list(leaves.values()), along, twice), strict=True))


@declare("⟨∇φ, d⟩ = (φ(h) − φ(−h)) / 2h, φ = Σ out·g", contract="multihead", needs=("layer_gradients",), **SMALL)
def layer_gradients_are_slopes(t: LayerTrial) -> None:
    """What a loss on the output of a layer sends back to its arguments and weights is how much the loss grows with them."""
    OfLayer(t).grows_as_told()


@declare(
    "⟨H d, d⟩ = (φ(h) − 2 φ(0) + φ(−h)) / h², φ = Σ out·g",
    contract="multihead",
    needs=("layer_gradients",),
    edge="second derivatives",
    **SMALL,
)
def layer_second_derivatives_are_bends(t: LayerTrial) -> None:
    """Where a gradient of a layer can be differentiated again, that is how the loss bends."""
    OfLayer(t).bends_as_told()
