"""Other calls than that of a case: those that a target may remember, and larger ones that show more of a mistake."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np

from ..engine.cases.coordinates import Array
from ..engine.cases.masks import other_mask
from ..engine.core.declare import Property
from ..engine.core.target import Raised, Target
from ..engine.core.trial import Refuted
from .call import attend, call
from .case import TENSORS, Case
from .discover import smoke_inputs
from .inputs import Inputs, make_inputs
from .trial import Trial

SLIGHTLY = {"float64": 2.0**-28, "float32": 2.0**-12}  # of themselves: numbers are others then, and the first of their digits the same


def unsettle(target: Target, case: Case) -> None:
    """The first call that every target gets, and others that change one argument at a time."""
    with suppress(Raised):
        attend(target, smoke_inputs(target.supports, case.dtype, case.device))
    trial = Trial(target, case)
    with suppress(Raised, Refuted), np.errstate(all="ignore"):
        for inputs in (trial.inputs, *other_calls(trial), trial.inputs):
            trial.run(inputs)


def other_calls(t: Trial) -> list[Inputs]:
    """The call with one argument changed at a time, and at last a call of other shapes, which may have another place. Those before have other
    answers of the same shape: what is written where an earlier answer lies would hide behind a call that has the same.
    """
    x, calls = t.inputs, with_other_options(t)
    dim = t.supports.head_dims[0] if t.supports.head_dims else x.q.shape[3] or 1
    step = t.supports.length_multiple
    long = min(3, (t.supports.max_length or 3 * step) // step) * step
    other = Case(batch=2, kv_heads=2, queries=long, keys=long, dim=dim, seed=t.case.seed, dtype=t.case.dtype, device=t.case.device)
    nan = [x.but(**{name: np.full_like(getattr(x, name), np.nan)}) for name in "qv"] if t.supports.non_finite else []
    return [*calls, *nan, x.but(q=-x.q), x.but(k=-x.k), x.but(v=x.v * 0.5), make_inputs(other)]


def with_other_options(t: Trial) -> list[Inputs]:
    """The call without mask and causality, and those with another mask, scale or causality, one at a time."""
    x, takes = t.inputs, t.target.parameters
    calls = [x.but(mask=None, is_causal=False)]
    if x.mask is not None:
        calls.append(x.but(mask=other_mask(x.mask, t.case)))
    if "scale" in takes:
        calls.append(x.but(scale=0.75))
    if "is_causal" in takes and (x.mask is None or t.supports.mask_and_causal):
        calls.append(x.but(is_causal=not x.is_causal))
    return calls if t.supports.rows_without_keys else [one for one in calls if not one.hides_all(t.supports.causal)]


def slightly_others(t: Trial) -> list[Inputs]:
    """The call with queries, keys, values, or all of them, that differ in their last digits; none in a type that has few."""
    share = SLIGHTLY.get(t.case.dtype)
    return (
        [t.inputs.but(**{name: getattr(t.inputs, name) * (1 + share) for name in names}) for names in (*TENSORS, TENSORS)] if share else []
    )


def in_another_order(t: Trial) -> list[Inputs]:
    """The call with rows of queries, keys or values in the opposite order, whose sums are the same."""
    return [t.inputs.but(**{name: getattr(t.inputs, name)[:, :, ::-1].copy()}) for name in TENSORS]


def disturb(t: Trial) -> None:
    """Ask for another answer first: of other queries, keys or values, of others in a row in the middle, of nearly the same, with other
    options, or in another order; or of none.

    What keeps an answer by a part of its arguments, by their ends, by their first digits, or by sums, then has the wrong one.
    """
    what, x = t.choice("disturb", 14), t.inputs
    if what < 3:
        x = x.but(**{name: -getattr(x, name) for name in "qkv"[what]})
    elif what < 7 and t.case.dtype in SLIGHTLY:
        x = slightly_others(t)[what - 3]
    elif what < 9:
        x = x.but(**{name: _but_for_the_middle(getattr(x, name)) for name in "qkv"})
    elif what < 12:
        others = with_other_options(t)
        x = others[min(1, len(others) - 1) if x.mask is not None else t.choice("disturb, options", len(others))]
    elif what == 12:
        x = in_another_order(t)[t.choice("disturb, order", len(TENSORS))]
    if what < 13:
        with suppress(Raised), np.errstate(all="ignore"):
            call(t.target, x, t.buffers)


def _but_for_the_middle(x: Array) -> Array:
    """The same with another row in the middle (B, H, L, D)."""
    return np.where(np.arange(x.shape[2])[:, None] == x.shape[2] // 2, -x, x)


def larger(case: Case, prop: Property) -> list[Case]:
    """Cases like the smallest, but larger: the smallest often leaves several mistakes possible.

    No field gets a value with which the property draws no case.
    """
    changes: list[dict[str, Any]] = [
        {"queries": 5, "keys": 7},
        {"queries": 7, "keys": 5},
        {"queries": 6, "keys": 6, "dim": 4},
        {"batch": 3, "kv_heads": 2},
        {"batch": 2, "kv_heads": 3, "queries": 4, "keys": 6, "dim": 5},
        {"seed": case.seed + 1},
    ]

    def drawn(name: str, value: int) -> bool:
        about = prop.domain.get(name, (value,))
        return isinstance(about, tuple) and value in about

    drawable = [{name: value for name, value in change.items() if drawn(name, value)} for change in changes]
    return [other for change in drawable if (other := case.but(**change)) != case]
