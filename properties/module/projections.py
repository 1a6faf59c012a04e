"""Where the projections of a module are recognised: it is the attention of these projections, as its heads, groups and positions have it."""

from functools import partial

from ..engine.core.declare import declare
from .cases import MODULE
from .composition import compose
from .confirm import called
from .trial import ModuleTrial

module = partial(declare, contract=MODULE.name)


@module("|out − softmax(q kᵀ/√d) v W_o| ≤ propagated bound", about=("structure",), dtypes="all", heads=4, head_dim=8)
def module_is_the_attention_of_its_projections(t: ModuleTrial) -> None:
    """The answer is that of the attention composed of its own projections: scaled, grouped and turned as is usual, or as the module says."""
    structure = t.subject.structure
    right = compose(structure.mended or structure, called(t.subject, t.module, t.inputs, t.case.dtype))
    _, allowed = t.exact()
    said = ": " + "; ".join(structure.mistakes) if structure.mistakes else ""
    t.close(t.run(), right, 2 * allowed, f"row {{row}} of sequence {{head}} is not the attention of the projections{said}", t.own_rows())
