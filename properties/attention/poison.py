"""Rows without keys that send back NaN, where the answer is a number: one property tells it, and the others ask for no such gradient."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..engine.core.target import Raised, Target
from .backward import OPERANDS, forward, place_grad, refusal
from .inputs import Inputs
from .question import Question


def with_poison(target: Target, question: Question) -> Target:
    """The target with the kinds of masks whose rows without keys send back NaN."""
    if "attn_mask" not in target.parameters or refusal(target, "gradients") or target.asked_enough():
        return target
    plain = question.inputs()
    visible = np.ones(plain.shape[2:], dtype=bool)
    visible[0] = False
    asked = {"bool": plain.but(mask=visible), "minus_infinity": plain.but(mask=np.where(visible, 0.0, -np.inf))}
    found = {kind for kind, inputs in asked.items() if kind in target.supports.mask_kinds and _sends_nan(target, inputs)}
    return replace(target, poisoned=frozenset(found)) if found else target


def _sends_nan(target: Target, inputs: Inputs) -> bool:
    """Whether numbers come back, and NaN is sent back for them."""
    inputs = inputs.said(target.supports.mask_axes)
    buffers = target.buffers()
    try:
        out, _, send_back = forward(target, inputs, buffers, OPERANDS)
        shape = (*inputs.shape[:3], inputs.v.shape[3])
        if send_back is None or not np.isfinite(target.read(out)).all():
            return False
        parts = send_back(place_grad(target, np.ones(shape), inputs, buffers, "contiguous"))
    except Raised:
        return False
    return any(part is not None and bool(np.isnan(target.framework.read(part)).any()) for part in parts)
