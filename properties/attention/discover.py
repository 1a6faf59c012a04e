"""What an attention takes, found out with one small call per question."""

from __future__ import annotations

import dataclasses
import time

import numpy as np

from ..engine.core.supports import Supports
from ..engine.core.target import Raised, Target, blame
from ..exact import oracle
from .call import attend
from .case import Case
from .inputs import Inputs, make_inputs
from .speech import formal_of


def smoke_inputs(supports: Supports, dtype: str, device: str, seed: int = 0) -> Inputs:
    """One small call with all sizes different, no feature used."""
    dim = supports.head_dims[0] if supports.head_dims else 4
    length = 5 if supports.length_multiple == 1 else supports.length_multiple
    return make_inputs(Case(batch=2, kv_heads=3, queries=length, keys=length, dim=dim, dtype=dtype, device=device, seed=seed))


def smoke(target: Target, dtype: str, device: str) -> str:
    """One small call of an attention; what is wrong with the form of its answer, nothing if nothing is.

    Raises Raised where the call is not refused, but ends the target's process, or returns no array.
    """
    inputs = smoke_inputs(target.supports, dtype, device)
    batch, heads, queries, _ = inputs.shape
    wanted = (batch, heads, queries, inputs.v.shape[3])
    try:
        out = attend(target, inputs)
    except Raised as raised:
        if not raised.refuses:
            raise
        return f"on {dtype} {target.framework.name} arrays q {inputs.q.shape} it {blame(raised)}"
    if out.shape == (batch, queries, heads, wanted[3]) != wanted:
        return (
            f"it returns (batch, length, heads, dim) {out.shape} for q {inputs.q.shape}: "
            "declare supports['layout'] = 'blhd' if it also takes that layout"
        )
    if out.shape == wanted and not target.asked_enough() and (why := _for_as_many_keys(target, inputs)):
        return f"it takes as many queries as keys alone: {why}"
    return "" if out.shape == wanted else f"it returns shape {out.shape} for q, k, v of {inputs.q.shape}; expected {wanted}"


def _for_as_many_keys(target: Target, inputs: Inputs) -> str:
    """What it says where there are more keys than queries, and fewer, if it raises; empty if it answers one."""
    said = ""
    for keys in (7, 3) if target.supports.length_multiple == 1 else ():
        case = Case(batch=2, kv_heads=3, queries=5, keys=keys, dim=inputs.q.shape[3], dtype=inputs.dtype, device=inputs.device)
        try:
            attend(target, make_inputs(case))
        except Raised as raised:
            said = blame(raised)
        else:
            return ""
    return said


# Other axes of arrays that look the same → how they become (batch, heads, length, dim), and how an answer becomes theirs again.
OTHER_AXES = {
    "(batch, length, heads, dim)": ((0, 2, 1, 3), (0, 2, 1, 3)),
    "(length, batch, heads, dim)": ((1, 2, 0, 3), (2, 0, 1, 3)),
}


def reads_other_axes(target: Target, dtype: str, device: str) -> str:
    """In which other axes it answers as an attention, and not in ours; empty if in none. A hint, no verdict."""
    inputs = smoke_inputs(target.supports, dtype, device)
    out = attend(target, inputs)

    def off(into: tuple[int, ...], back: tuple[int, ...]) -> float:
        q, k, v = (x.transpose(into) for x in (inputs.q, inputs.k, inputs.v))
        exact = oracle.solve(oracle.Problem(q, k, v, inputs.effective_scale)).out.transpose(back)
        with np.errstate(invalid="ignore"):
            return float(np.abs(out - exact).max(initial=0.0))

    if target.supports.layout != "bhld" or not off((0, 1, 2, 3), (0, 1, 2, 3)) > 0.1:  # the numbers are of size one
        return ""
    return next((axes for axes, order in OTHER_AXES.items() if off(*order) < 0.01), "")


def probe_parameters(target: Target, device: str) -> Target:
    """For a callable whose signature does not say: give it one parameter at a time, and see. What it does not name, and changes nothing, is none."""
    inputs = smoke_inputs(target.supports, target.dtypes[0], device)
    seen = np.tile(np.arange(inputs.shape[3]) < 3, (inputs.shape[2], 1))
    trials: dict[str, Inputs] = {
        "attn_mask": inputs.but(mask=seen if "bool" in target.supports.mask_kinds else np.where(seen, 0.0, -8.0)).said(
            target.supports.mask_axes
        ),
        "is_causal": inputs.but(is_causal=True),
        "scale": inputs.but(scale=2.0),
        "enable_gqa": make_inputs(
            Case(batch=2, kv_heads=3, group=2, queries=5, keys=5, dim=inputs.q.shape[3], dtype=inputs.dtype, device=device)
        ),
    }
    taken: list[str] = []
    untried, named = dict(target.untried), formal_of(target.function)
    plain = attend(target, inputs)
    for parameter, trial in trials.items():
        try:
            out = attend(target, trial)
        except Raised as raised:
            untried[parameter] = str(raised)
            continue
        if parameter not in named and np.array_equal(out, plain, equal_nan=True):
            untried[parameter] = "it is taken with any other name, and changes nothing"
        else:
            taken.append(parameter)
    return dataclasses.replace(target, parameters=tuple(taken), untried=untried)


FEW_SHAPES = (
    "each new one costs a compilation, so a few are kept for a run, others in another --round; costly_shapes = false in supports draws all"
)
COSTLY_SECONDS, COSTLY_TIMES = 0.2, 20  # a first call as long as this, and as many times the second, is no hiccup of the machine


def with_few_shapes(target: Target, view: Target, device: str) -> Target:
    """The target; if every new shape costs it a compilation, with a word on what is not tried for that. ``view``: it as an attention."""
    compiles = target.pace.longest > COSTLY_TIMES * target.pace.shortest  # some calls at least
    unknown = not target.costly_shapes and target.supports.costly_shapes is None
    if unknown and (compiles or not target.asked_enough()) and measured_costly(view, device):
        target = dataclasses.replace(target, supports=dataclasses.replace(target.supports, costly_shapes=True))
    return dataclasses.replace(target, untried={**target.untried, "most shapes": FEW_SHAPES}) if target.costly_shapes else target


def measured_costly(view: Target, device: str) -> bool:
    """Whether the first call of a shape takes far longer than the next one, as where it is compiled; of two shapes both.

    One length is 1 and one a multiple of 16, for which Triton compiles anew what it has compiled for others.
    """
    if view.supports.length_multiple > 1:
        return False
    plain = smoke_inputs(view.supports, view.dtypes[0], device)
    for count in (1, 16):
        inputs, seconds = plain.but(**{name: np.resize(getattr(plain, name), (2, 3, count, plain.q.shape[3])) for name in "qkv"}), []
        try:
            for _ in range(2):
                began = time.perf_counter()
                attend(view, inputs)
                seconds.append(time.perf_counter() - began)
        except Raised:
            return False
        if seconds[0] < COSTLY_SECONDS or seconds[0] < COSTLY_TIMES * seconds[1]:
            return False
    return True
