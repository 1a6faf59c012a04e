"""Rounding: a module is as near to its own twin in float64 as its operations explain, and no nearer is asked."""

from functools import partial

from ..engine.core.declare import declare
from .cases import FIRST, MODULE
from .trial import ModuleTrial

module = partial(declare, contract=MODULE.name)


@module("|out − out of the twin in float64| ≤ propagated bound", about=("steady",), dtypes=("float32", "bfloat16", "float16"), **FIRST)
def module_is_as_near_to_its_twin_as_rounding_explains(t: ModuleTrial) -> None:
    """Every element is as near to that of the same module in float64 as one rounding for every operation explains."""
    out, (exact, allowed) = t.run(), t.exact()
    says = "row {row} of sequence {head} is farther from float64 than rounding explains"
    if t.apart(out, exact, allowed) and t.narrowed(out):
        says += '; a cast to a narrower type in between does (where that is meant, its docstring can say so: "computes in bfloat16")'
    t.close(out, exact, allowed, says)
