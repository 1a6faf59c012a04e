"""Gradients of a module: what a loss on its output sends back to tokens, memory and weights is how much the loss grows with them."""

from __future__ import annotations

import math
from collections.abc import Collection
from functools import partial
from typing import Any

import numpy as np

from ..engine.core.ascent import STEPS, Ascent, on_grid, signs
from ..engine.core.declare import declare
from ..engine.core.target import NotTaken
from ..engine.frameworks import Given
from .cases import MODULE
from .speech import call, first_array, hooks, under
from .trial import ModuleTrial
from .weights import noise

module = partial(declare, contract=MODULE.name)
SMALL: dict[str, Any] = {
    "about": ("gradients",),
    "length": (3, 4, 5, 7, 9),
    "batch": (1, 2),
    "magnitude": 0,
    "padded": False,
    "memory": (None, 3, 5),
    "dtypes": ("float64",),
}


# Functions with corners, of the values or of the slope. Two of them can hide each other on one step: they are gone past by short ones.
CORNERED = (
    "abs absolute ceil celu clamp clip elu floor fmax fmin hardshrink hardsigmoid hardswish hardtanh leaky_relu maximum minimum prelu relu "
    "relu6 round rrelu selu sign softshrink threshold trunc"
)
SHORT = 2.0**-20


class OfModule(Ascent):
    """A module with its tokens and its parameters; what rounding may do is propagated through its operations (``bound``)."""

    def __init__(self, trial: ModuleTrial) -> None:
        super().__init__(trial)
        fw, seed = trial.target.framework, trial.case.seed
        self.module = trial.made()
        with under(self.module, fw, "watched") as steps:
            trial.run(module=self.module)  # it lays the tokens out
        self.cornered = next((name for name in steps if name in CORNERED.split()), "")
        if self.cornered:
            self.step = SHORT
        given = {f"tokens ({name})": array for name, array in trial.buffers.arrays() if name.startswith(("x", "memory"))}
        parameters = {name: p for name, p in self.module.named_parameters() if p.dtype == fw.named_dtype("float64")}
        self.arrays = {name: hooks(fw).leaf(array) for name, array in {**given, **parameters}.items()}
        self.given = {name[8:-1]: array for name, array in given.items()}
        self.start = {name: on_grid(fw.read(array)) for name, array in self.arrays.items()}
        self.along = {name: on_grid(noise(seed, f"along {name}", x.shape), STEPS) for name, x in self.start.items()}
        self.go(0.0)
        self.noise = float(trial.allowed(module=self.module).sum())

    def bends_as_reported(self) -> None:
        if self.cornered:
            raise NotTaken(f"second derivatives beside the corners of {self.cornered}")
        super().bends_as_reported()

    def go(self, s: float, names: Collection[str] | None = None) -> None:
        """Put the arrays where they are at s."""
        for name, x in self.place(s, names).items():
            self.trial.target.framework.assign(self.arrays[name].detach(), x)

    def out(self) -> Any:
        """What the module gives for the arrays as they are, recorded: another path may be taken where nothing is.

        What is not among the leaves is new memory each time: a cache within the module may hold the graph of an earlier call.
        """
        t, fw, case = self.trial, self.trial.target.framework, self.trial.case
        with fw.chance(case.seed):
            called = call(t.subject.through(self.module), t.speech, t.inputs, fw, Given(fw, self.given), case.dtype, case.device)
            return first_array(called, fw)

    def at(self, s: float, names: Collection[str] | None = None) -> float:
        self.go(s, names)
        out = self.trial.target.framework.read(self.out())
        signed = out * signs(noise(self.trial.case.seed, "signs", out.shape))
        return math.fsum(signed.ravel()) if np.isfinite(signed).all() else math.nan

    def reported(self, twice: bool) -> dict[str, float]:
        t, fw = self.trial, self.trial.target.framework

        def array(name: str, carrier: Any) -> Any:
            return t.buffers.array(name, carrier, t.case.dtype, t.case.device, "contiguous")

        self.go(0.0)
        shape = fw.describe(self.out())[0]
        weights = array("signs", signs(noise(t.case.seed, "signs", shape)))
        along = [array(f"along {name}", d) for name, d in self.along.items()]
        parts = hooks(fw).slopes(lambda: (self.out() * weights).sum(), list(self.arrays.values()), along, twice)
        return dict(zip(self.arrays, parts, strict=True))


@module("⟨∇φ, d⟩ = (φ(h) − φ(−h)) / 2h, φ = Σ out·g", **SMALL)
def module_gradients_are_slopes(t: ModuleTrial) -> None:
    """What a loss on the output sends back to tokens, memory and weights is how much the loss grows with them."""
    OfModule(t).grows_as_reported()


@module("⟨H d, d⟩ = (φ(h) − 2 φ(0) + φ(−h)) / h², φ = Σ out·g", edge="second derivatives", **SMALL)
def module_second_derivatives_are_bends(t: ModuleTrial) -> None:
    """Where a gradient can be differentiated again, that is how the loss bends."""
    OfModule(t).bends_as_reported()
