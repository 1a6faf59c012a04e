"""Projections: each has weights of its own; where they are recognised, the module is the attention of these, with its heads and positions."""

from dataclasses import replace
from functools import partial

from ..engine.core.declare import declare
from ..engine.core.target import NotTaken
from .cases import FIRST, MODULE
from .composition import compose
from .confirm import called
from .sharing import serving_twice
from .trial import ModuleTrial

module = partial(declare, contract=MODULE.name)


@module("|out − softmax(q kᵀ/√d) v W_o| ≤ propagated bound", about=("structure",), dtypes="all", heads=4, head_dim=8, **FIRST)
def module_is_the_attention_of_its_projections(t: ModuleTrial) -> None:
    """The answer is that of the attention composed of its own projections: scaled, grouped and turned as is usual, or as the module says."""
    structure, subject = t.subject.structure, t.subject
    if subject.placed and t.choice("positions", 2):  # are given, though they may be left out
        structure, subject = subject.structure_placed, replace(subject, speech=subject.placed)
        t.speech = subject.fits(t.case.sizes)
    if structure.alone and t.inputs.memory is not None:
        raise NotTaken("what is made of tokens and a memory by other projections")
    module = t.made(silent=structure.silent) if structure.silent else t.module
    out = t.run(module=module)  # which may make its tables
    right = compose(structure.mended or structure, called(subject, module, t.inputs, t.case.dtype))
    allowed = t.allowed(module=module)
    said = ": " + "; ".join(structure.mistakes) if structure.mistakes else ""
    t.close(
        out,
        right,
        2 * allowed,
        f"row {{row}} of sequence {{head}} is not the attention of the projections{said}",
        t.own_rows(),
    )


@module(
    "q, k, v, o, the layers of a list and parts that are numbered: another parameter each",
    exact=True,
    length=1,
    memory=(None, 1),
    padded=False,
)
def module_no_parameter_serves_twice(t: ModuleTrial) -> None:
    """Two projections, two layers of a list, two parts that are numbered are not one parameter, but where a name says tied or shared."""
    t.result()  # parameters of which none is used say nothing
    if said := serving_twice(t.module):
        t.fail(said)
