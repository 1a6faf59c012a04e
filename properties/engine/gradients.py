"""The backward pass: one forward and backward call of the target, with claims about it, and whether the target has one.

Gradients are asked of PyTorch targets through ``torch.autograd.grad``. The leaves are views of the same buffers as in any
other call, so that a changed call writes into the same memory.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from .. import gradient_bound
from ..gradient_oracle import Gradients, differentiate
from . import packed_target
from .coordinates import Array
from .dtypes import round_to
from .frameworks import Buffers
from .grad_output import make_grad
from .inputs import Inputs
from .position_target import integers
from .probe import smoke_inputs
from .target import Raised, Target, first_line
from .trial import Run, Trial

OPERANDS = ("q", "k", "v")


class Backward(Run):
    """One answer of the target with its gradients, and what the oracle says of them."""

    def __init__(
        self, trial: Trial, inputs: Inputs, out: Array, grad_out: Array, parts: dict[str, Any], kept: Array | None = None
    ) -> None:
        super().__init__(trial, inputs, out)
        self.q: Any
        self.k: Any
        self.v: Any
        self.mask: Any
        self.sinks: Any
        self.grad_out, self.parts, self.kept = grad_out, parts, kept
        read = trial.target.framework.read
        asked = {name: read(parts[name]) for name in parts}  # what was not asked is None
        self.q, self.k, self.v, self.mask, self.sinks = (asked.get(name) for name in (*OPERANDS, "mask", "sinks"))

    @cached_property
    def gradients(self) -> Gradients:
        """The exact gradients."""
        return differentiate(self.exact, self.grad_out, self.kept)

    @cached_property
    def limits(self) -> gradient_bound.GradientBound:
        """How far the gradients of a correct attention may be from the exact ones."""
        return gradient_bound.rigorous(self.gradients, self.trial.arithmetic)

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
) -> Backward:
    """Call the target and differentiate Σ grad_out · out with respect to these of q, k, v, mask and sinks.

    ``times`` > 1 differentiates the same graph again and keeps the last answer. ``kept`` (B, H, L, S): what each weight is
    multiplied by under dropout. ``between``: another call, between the two passes. The backward pass finds another state of the
    random numbers than the forward pass left.
    """
    inputs = (t.inputs if inputs is None else inputs).said(t.supports.mask_axes)
    shape = (*inputs.shape[:3], inputs.v.shape[3])
    grad_out = make_grad(t.case, shape) if grad_out is None else round_to(inputs.dtype, grad_out)
    chance = t.target.framework.chance
    with chance(inputs.chance) if inputs.dropout else nullcontext():
        out, leaves = forward(t.target, inputs, t.buffers, wrt)
    if between is not None:
        forward(t.target, between, t.target.buffers(), wrt)
    answer = t.target.read(out)
    if answer.shape != shape:
        t.fail(f"the output has shape {answer.shape}, expected {shape}")
    nothing = not (answer.size and inputs.q.size and inputs.k.size)  # then nothing need depend on anything
    found: Any = [None] * len(leaves)
    if out.requires_grad:
        placed = place_grad(t.target, grad_out, inputs, t.buffers, layout or t.case.grad_layout)
        with chance(inputs.chance + 1) if inputs.dropout else nullcontext():
            for left in reversed(range(times)):
                found = differentiate_graph(t.target, out, leaves, placed, keep=left > 0)
    elif not nothing:
        t.fail(f"the output carries no gradient, though {' and '.join(leaves)} ask{'s' * (len(leaves) == 1)} for one")
    parts = dict(zip(leaves, found, strict=True))
    for name, part in parts.items():
        if part is None and nothing:
            parts[name] = leaves[name].detach().new_zeros(tuple(leaves[name].shape))
        elif part is None:
            t.fail(f"{name} receives no gradient: it is cut off from the output")
        elif tuple(part.shape) != tuple(leaves[name].shape):
            t.fail(f"the gradient of {name} has shape {tuple(part.shape)}, expected {tuple(leaves[name].shape)}")
    run = Backward(t, inputs, answer, grad_out, {name: _as_carried(t.target, inputs, name, part) for name, part in parts.items()}, kept)
    t.runs.append(run)
    return run


def forward(target: Target, inputs: Inputs, buffers: Buffers, wrt: tuple[str, ...]) -> tuple[Any, dict[str, Any]]:
    """The output, and the leaves of which gradients are asked, by name. Raises Raised."""
    tensors, options = target.arrays(inputs, buffers)
    tensors = [x.detach().requires_grad_(name in wrt) for name, x in zip(OPERANDS, tensors, strict=True)]
    leaves = {name: x for name, x in zip(OPERANDS, tensors, strict=True) if name in wrt}
    if "mask" in wrt:
        leaves["mask"] = options["attn_mask"] = options["attn_mask"].detach().requires_grad_()
    if "sinks" in wrt:
        leaves["sinks"] = options["sinks"] = options["sinks"].detach().requires_grad_()
    out = target.apply(*tensors, **options)
    return (out[0] if isinstance(out, tuple | list) and out else out), leaves


def differentiate_graph(target: Target, out: Any, leaves: dict[str, Any], grad_out: Any, keep: bool = False) -> Any:
    """The gradients of the leaves, None for one that the output does not depend on. Raises Raised."""
    import torch

    try:
        return torch.autograd.grad(out, list(leaves.values()), grad_out, retain_graph=keep, allow_unused=True)
    except Exception as error:
        raise Raised(error) from error


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
CONTRACT_OF = {"table_gradients": "learned", "rotation_gradients": "rotary", "packed_gradients": "packed"}  # of other contracts
CAPABILITIES: dict[str, tuple[str, ...]] = {
    "gradients": OPERANDS, "bias_gradients": ("mask",), "sink_gradients": ("sinks",), "dropout_gradients": OPERANDS,
    **dict.fromkeys(CONTRACT_OF, ()),
}  # fmt: skip


def refusal(target: Target, capability: str) -> str:
    """Why gradients, or those of an additive mask, cannot be asked of a target; empty if they can."""
    known = _REFUSALS.setdefault(target, {})
    if capability not in known:
        known[capability] = _find_out(target, capability)
    return known[capability]


def _find_out(target: Target, capability: str) -> str:
    words = capability.replace("_", " ")
    if capability in CONTRACT_OF:
        return _apart(target, capability)
    if target.contract != "attention":
        return f"{words} are asked of attentions, not of {target.contract}"
    if target.framework.name != "torch":
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
            out, _ = forward(target, inputs, target.buffers(), CAPABILITIES[capability])
        if inputs.dropout and not np.array_equal(target(inputs), target(inputs)):
            return f"{words}: what is dropped does not follow the seed of the framework"
    except Raised as raised:
        return f"{words}: it raised {type(raised.error).__name__}: {first_line(raised.error)}"
    return "" if out.requires_grad else f"{words}: the output of a first call does not require a gradient"


def _apart(target: Target, capability: str) -> str:
    if target.contract != CONTRACT_OF[capability]:
        return f"is about {CONTRACT_OF[capability]}"
    if target.framework.name != "torch":
        return f"{target.framework.name} arrays carry no gradients"
    if target.supports.gradients is False:
        return "declared as not supported: gradients"
    device, dim = target.supports.devices[0], target.supports.head_dims[0] if target.supports.head_dims else 4
    shape = (3, dim) if target.contract == "learned" else (1, 1, 2, dim)
    try:
        if target.contract == "packed":
            out, _ = packed_target.forward(target, packed_target.smoke_inputs(target, target.dtypes[0], device), target.buffers())
        else:
            leaf = target.framework.full(shape, 1.0, target.dtypes[0], device).requires_grad_()
            out = target.apply(leaf, integers(target.framework, np.arange(2), device))
    except Raised as raised:
        return f"{capability.replace('_', ' ')}: it raised {type(raised.error).__name__}: {first_line(raised.error)}"
    return "" if out.requires_grad else f"{capability.replace('_', ' ')}: the output of a first call does not require a gradient"
