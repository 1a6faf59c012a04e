"""The backward pass: one forward and backward call of the target, with claims about it, and whether the target has one.

Gradients are asked of a framework that records. The leaves use the same buffers as any other call, so that a changed call
writes into the same memory.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from ..engine.cases.coordinates import Array
from ..engine.cases.dtypes import FLOAT_TYPES, round_to
from ..engine.cases.grad_output import make_grad
from ..engine.core.target import NotTaken, Raised, Target, first_line
from ..engine.frameworks import Buffers, SendBack
from ..exact import gradient_bound
from ..exact.gradient_oracle import Gradients, differentiate
from .call import arrays, attend
from .discover import smoke_inputs
from .inputs import Inputs
from .trial import Run, Trial

OPERANDS = ("q", "k", "v")
OPTION_OF = {"mask": "attn_mask", "sinks": "sinks"}  # what else a gradient can be asked of: the argument


class Backward(Run):
    """One answer of the target with its gradients, and what the oracle says of them."""

    sends_back = True

    def __init__(self, trial: Trial, inputs: Inputs, grad_out: Array, kept: Array | None = None) -> None:
        super().__init__(trial, inputs)
        self.grad_out, self.kept = grad_out, kept

    def answered(self, out: Array, parts: dict[str, Any]) -> None:
        """The output, and the gradients by name."""
        self.q: Any
        self.k: Any
        self.v: Any
        self.mask: Any
        self.sinks: Any
        self.out, self.parts = out, parts
        read = self.trial.target.framework.read
        asked = {name: read(parts[name]) for name in parts}  # what was not asked is None
        self.q, self.k, self.v, self.mask, self.sinks = (asked.get(name) for name in (*OPERANDS, "mask", "sinks"))

    @cached_property
    def gradients(self) -> Gradients:
        """The exact gradients."""
        return differentiate(self.exact, self.grad_out, self.kept)

    @cached_property
    def limits(self) -> gradient_bound.GradientBound:
        """How far the gradients of a correct attention may be from the exact ones."""
        self.trial.bounds.add(self.number)
        limits = gradient_bound.rigorous(self.gradients, self.trial.arithmetic)
        if not self.trial.target.mixes_heads:
            return limits
        q, k, v = limits.q, limits.k, limits.v
        lost = np.any([np.isinf(part).any(axis=(1, 2, 3), keepdims=True) for part in (q, k, v)], axis=0)
        return replace(limits, q=np.where(lost, np.inf, q), k=np.where(lost, np.inf, k), v=np.where(lost, np.inf, v))

    def inside(self, name: str, says: str, where: Array | bool = True) -> None:
        """The gradient of q, k, v, the mask or the sinks is as near to the exact one as its bound allows."""
        actual = np.asarray(getattr(self, name))
        if name in ("mask", "sinks"):
            if name == "mask":
                (expected, tail), allowed = self.gradients.of_bias(actual.shape), self.limits.of_bias(actual.shape)
            else:
                (expected, tail), allowed = self.gradients.of_sinks(), self.limits.of_sinks()
            with np.errstate(all="ignore"):
                error = np.abs((actual - expected) - tail)
            full = (1,) * (4 - actual.ndim) + actual.shape
            error, actual, expected, allowed = (x.reshape(full) for x in (error, actual, expected, allowed))
        else:
            expected, allowed = getattr(self.gradients, name), getattr(self.limits, name)
            error = self.gradients.error(name, actual)
        self.trial.within(error, actual, expected, allowed, says, where)

    def near_gradients(self, other: Backward) -> bool:
        """Two gradients of every input that was asked for, within both bounds of the right one and rounding of their own."""
        with np.errstate(all="ignore"):
            for name in self.parts:
                a, b = np.asarray(getattr(self, name)), np.asarray(getattr(other, name))
                limit = (
                    getattr(self.limits, name)
                    if name in "qkv"
                    else self.limits.of_sinks()
                    if name == "sinks"
                    else self.limits.of_bias(a.shape)
                )
                rounding = 64 * 2.0 ** -FLOAT_TYPES[self.inputs.dtype].precision * np.abs(a).max(initial=0.0)
                if a.shape != b.shape or not ((np.abs(a - b) <= 2 * limit + rounding) | (np.isnan(a) & np.isnan(b))).all():
                    return False
        return True


def run_backward(
    t: Trial,
    inputs: Inputs | None = None,
    grad_out: Array | None = None,
    *,
    wrt: tuple[str, ...] = OPERANDS,
    layout: str | None = None,
    times: int = 1,
    kept: Array | None = None,
    between: Inputs | None = None,
    poisoned: bool = False,
) -> Backward:
    """Call the target and differentiate Σ grad_out · out with respect to these of q, k, v, mask and sinks.

    ``times`` > 1 differentiates the same graph again and keeps the last answer. ``kept`` (B, H, L, S): what each weight is
    multiplied by under dropout. ``between``: another call, between the two passes. The backward pass finds another state of the
    random numbers than the forward pass left. Where rows without keys are known to send back NaN, it is only asked of them if ``poisoned``.
    Raises NotTaken.
    """
    inputs = (t.inputs if inputs is None else inputs).said(t.supports.mask_axes)
    if not poisoned and sends_nan(t.target, inputs):
        raise NotTaken("gradients beside rows without keys, which are NaN")
    shape = (*inputs.shape[:3], inputs.v.shape[3])
    grad_out = make_grad(t.case, shape) if grad_out is None else round_to(inputs.dtype, grad_out)
    fw, run = t.target.framework, Backward(t, inputs, grad_out, kept)
    t.meanwhile(run.number, lambda: run.exact)
    with fw.chance(inputs.chance) if inputs.dropout else nullcontext():
        out, leaves, send_back = forward(t.target, inputs, t.buffers, wrt)
    if between is not None:
        forward(t.target, between, t.target.buffers(), wrt)
    answer = t.target.read(out)
    if answer.shape != shape:
        t.fail(f"the output has shape {answer.shape}, expected {shape}")
    nothing = not (answer.size and inputs.q.size and inputs.k.size)  # then nothing need depend on anything
    found: Any = [None] * len(leaves)
    if send_back:
        placed = place_grad(t.target, grad_out, inputs, t.buffers, layout or t.case.grad_layout)
        t.meanwhile(run.number, lambda: run.limits)
        with fw.chance(inputs.chance + 1) if inputs.dropout else nullcontext():
            for left in reversed(range(times)):
                found = send_back(placed, again=left > 0)
    elif not nothing:
        t.fail(f"the output carries no gradient, though {' and '.join(leaves)} ask{'s' * (len(leaves) == 1)} for one")
    parts = dict(zip(leaves, found, strict=True))
    for name, part in parts.items():
        if part is None and nothing:
            parts[name] = fw.full(tuple(leaves[name].shape), 0.0, inputs.dtype, inputs.device)
        elif part is None:
            t.fail(f"{name} receives no gradient: it is cut off from the output")
        elif tuple(part.shape) != tuple(leaves[name].shape):
            t.fail(f"the gradient of {name} has shape {tuple(part.shape)}, expected {tuple(leaves[name].shape)}")
    run.answered(answer, {name: _as_carried(t.target, inputs, name, part) for name, part in parts.items()})
    t.runs.append(run)
    return run


def sends_nan(target: Target, inputs: Inputs) -> bool:
    """Whether a row sees no key under a mask of a kind of which it is known that NaN is sent back."""
    if inputs.mask is None or ("bool" if inputs.mask.dtype == bool else "minus_infinity") not in target.poisoned:
        return False
    return not inputs.visible(target.supports.causal).any(-1).all()


def forward(target: Target, inputs: Inputs, buffers: Buffers, wrt: tuple[str, ...]) -> tuple[Any, dict[str, Any], SendBack | None]:
    """The output, the arrays of which gradients are asked by name, and what sends them back. Raises Raised."""
    tensors, options = arrays(target, inputs, buffers)
    given = dict(zip(OPERANDS, tensors, strict=True)) | {name: options[OPTION_OF[name]] for name in wrt if name in OPTION_OF}
    leaves = {name: x for name, x in given.items() if name in wrt}

    def call(*recorded: Any) -> Any:
        now = given | dict(zip(leaves, recorded, strict=True))
        changed = {option: now[name] for name, option in OPTION_OF.items() if name in now}
        return target.apply(*(now[name] for name in OPERANDS), **options | changed)

    out, send_back = target.record(call, list(leaves.values()))
    return out, leaves, send_back


def place_grad(target: Target, grad_out: Array, inputs: Inputs, buffers: Buffers, layout: str) -> Any:
    """dO as an array of the framework, in its layout."""
    if layout == "everywhere" and grad_out.size:
        one = buffers.array("grad", grad_out.reshape(-1)[:1].reshape(-1, 1, 1, 1), inputs.dtype, inputs.device, "contiguous")
        placed = target.framework.expand(one, grad_out.shape)
    else:
        placed = buffers.array("grad", grad_out, inputs.dtype, inputs.device, layout)
    return target.framework.permute(placed, (0, 2, 1, 3)) if target.supports.layout == "blhd" else placed


def _as_carried(target: Target, inputs: Inputs, name: str, part: Any) -> Any:
    """A gradient in the form of its carrier, whatever layout or rank the target takes."""
    if name == "mask":
        assert inputs.mask is not None
        return part.reshape(inputs.mask.shape)
    swapped = target.supports.layout == "blhd" and name in OPERANDS
    return target.framework.permute(part, (0, 2, 1, 3)) if swapped else part


# ---------------------------------------------------------------- what a target can

_REFUSALS: WeakKeyDictionary[Target, dict[str, str]] = WeakKeyDictionary()
PARAMETER_OF = {"sink_gradients": "sinks", "dropout_gradients": "dropout_p"}
CAPABILITIES: dict[str, tuple[str, ...]] = {
    "gradients": OPERANDS,
    "bias_gradients": ("mask",),
    "sink_gradients": ("sinks",),
    "dropout_gradients": OPERANDS,
}


def refusal(target: Target, capability: str) -> str:
    """Why gradients, or those of an additive mask, cannot be asked of a target; empty if they can."""
    known = _REFUSALS.setdefault(target, {})
    if capability not in known:
        known[capability] = _find_out(target, capability)
    return known[capability]


def _find_out(target: Target, capability: str) -> str:
    words = capability.replace("_", " ")
    if not target.framework.gradients:
        return f"{target.framework.name} arrays carry no gradients"
    for declared in ("gradients", capability):  # without gradients there is none of a bias either
        if getattr(target.supports, declared, None) is False:
            return f"declared as not supported: {declared.replace('_', ' ')}"
    dtype = target.dtypes[0]
    inputs = smoke_inputs(target.supports, dtype, target.supports.devices[0])
    if capability == "bias_gradients":
        if set(target.supports.mask_kinds) == {"bool"}:
            return "declared as not supported: additive masks"
        inputs = inputs.but(mask=np.zeros((inputs.shape[2], inputs.shape[3]))).said(target.supports.mask_axes)
    if parameter := PARAMETER_OF.get(capability):
        if parameter not in target.parameters:
            return f"the target takes no {parameter}"
        changes = {"sinks": np.zeros(inputs.shape[1])} if parameter == "sinks" else {"dropout": 0.5}
        inputs = inputs.but(**changes)
    try:
        with target.framework.chance(0) if inputs.dropout else nullcontext():
            _, _, send_back = forward(target, inputs, target.buffers(), CAPABILITIES[capability])
        if inputs.dropout and not np.array_equal(attend(target, inputs), attend(target, inputs)):
            return f"{words}: what is dropped does not follow the seed of the framework"
    except Raised as raised:
        return f"{words}: it raised {type(raised.error).__name__}: {first_line(raised.error)}"
    return "" if send_back else f"{words}: the output of a first call does not require a gradient"
