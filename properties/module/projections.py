"""Where the projections of a module are recognised: it is the attention of these projections, with the scale of its heads."""

import dataclasses
from functools import partial

from ..engine.core.declare import declare
from .cases import MODULE
from .structure import KNOWN, USUAL, compose
from .trial import ModuleTrial

module = partial(declare, contract=MODULE.name)


@module("|out − softmax(q kᵀ/√d) v W_o| ≤ propagated bound", about=("structure",), dtypes="all", heads=4, head_dim=8)
def module_is_the_attention_of_its_projections(t: ModuleTrial) -> None:
    """The answer is that of the attention composed of its own projections, with logits scaled by one over the square root of a head's width."""
    x, structure = t.inputs, t.subject.structure
    scaled = structure if structure.scale in KNOWN else dataclasses.replace(structure, scale=USUAL)
    weights = structure.read(t.module, t.target.framework)
    right = compose(weights, scaled, x.x, x.x if x.memory is None else x.memory, t.causal, x.visible)
    _, allowed = t.exact()
    t.close(t.run(), right, 2 * allowed, "row {row} of sequence {head} is not the attention of the projections", t.own_rows())
