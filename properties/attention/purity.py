"""Purity: attention is a function. It changes nothing, remembers nothing, and does not care how its inputs lie in memory."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from ..engine.cases.dtypes import FLOAT_TYPES
from ..engine.core.supports import FEATURES
from ..engine.core.target import NotTaken, Raised
from ..engine.core.trial import Refuted
from ..engine.core.words import type_of
from ..engine.frameworks import LAYOUTS, TRAINING, One, Together, sets_the_seed
from .call import arrays, attend, call
from .case import TENSORS
from .contract import declare
from .inputs import Inputs, make_inputs
from .reread import in_another_order, other_calls, slightly_others, with_other_options
from .tables import NAN_EDITS
from .trial import Run, Trial


@declare(
    "q, k, v, mask after = before",
    exact=True,
    direct=True,
    edits=NAN_EDITS,
    mask_kind=(*("bool",) * 3, "minus_infinity", "bias", "bias_and_minus_infinity"),
    mask_axes=("LS", "S", "BLS", "BHLS", "BHLS"),
    masked=5,
    is_causal=(False, True, True),
)
def inputs_are_unchanged(t: Trial) -> None:
    """The call leaves its arguments as they were, bit for bit."""
    t.run()
    for name, array in t.buffers.contents():
        t.same_bits(array, getattr(t.inputs, name), f"{name} was changed by the call")


@declare(
    "out shares no memory with q, k, v",
    exact=True,
    direct=True,
    queries=(1, 1, 1, 2, 17),
    keys=(1, 1, 1, 2, 17),
    alike=(("queries", "keys"),),
    group=(1, 1, 1, 2),
)
def outputs_alias_no_input(t: Trial) -> None:
    """The output is memory of its own: writing to it cannot change an input."""
    out = call(t.target, t.inputs, t.buffers)
    for name, array in zip("qkv", arrays(t.target, t.inputs, t.buffers)[0], strict=True):
        if t.target.framework.shares_memory(out, array):
            t.fail(f"the output shares memory with {name}")


@declare("f(x) = f(x)", exact=True, features=FEATURES)
def same_call_same_bits(t: Trial) -> None:
    """The same call gives the same bits, every time; in train mode, and where it is told that no gradients are asked for, the same answer."""
    first = t.run()
    for _ in range(2):
        t.same_bits(t.run().out, first.out, "row {row} differs between two calls with the same arguments")
    fw = t.target.framework
    for way, words in fw.ways.items():
        with fw.told(way), fw.chance(0):
            told, drawn = t.run().out, fw.drawn()
        if np.array_equal(told, first.out, equal_nan=True):
            continue
        with fw.chance(0):
            dropped = way == TRAINING and fw.drawn() != drawn
        if not dropped:  # under a name that says nothing of dropout
            t.close(told, first.out, 2 * first.bound, f"row {{row}} differs {words}")  # a fast path may round otherwise


@declare("f(x); f(y); f(x) = f(x)", exact=True)
def calls_between_change_nothing(t: Trial) -> None:
    """A call does not depend on the calls before it, nor does it change the answers already given."""
    answer = call(t.target, t.inputs, t.buffers)
    first = t.target.read(answer)
    for other in other_calls(t):  # none of which has this answer, which would stand unchanged in a buffer that is used again
        t.run(other)
    t.same_bits(t.target.read(answer), first, "row {row} of an answer already given was changed by a later call")
    t.same_bits(t.run().out, first, "row {row} differs after other calls")
    in_order = in_another_order(t)[t.choice("in another order", len(TENSORS))]
    for other in (
        *slightly_others(t),
        in_order,
        *with_other_options(t),
    ):  # each at once before it: what is kept may be the last answer alone
        run, again = t.run(other), t.run()
        t.same_bits(again.out, first, "row {row} differs after nearly the same call")
        if np.array_equal(run.out, first, equal_nan=True) and not _same(other, t.inputs) and _is_right(t, again):
            run = _apart(t, run)
            t.inside(run, run.bound, "row {row} of nearly the same call has the answer of the call before")


def _same(x: Inputs, y: Inputs) -> bool:
    """Whether two calls have the same arguments."""
    arrays = [(getattr(x, name), getattr(y, name)) for name in ("q", "k", "v", "mask")]
    alike = all(a is b or (a is not None and b is not None and np.array_equal(a, b, equal_nan=True)) for a, b in arrays)
    return alike and (x.scale, x.is_causal) == (y.scale, y.is_causal)


def _apart(t: Trial, run: Run) -> Run:
    """The same answer, in a trial of its own: a bound that was asked of a call once is computed ahead in all later cases, which hardly ask for it."""
    return Run(type(t)(t.target, t.case), run.inputs, run.out)


def _is_right(t: Trial, run: Run) -> bool:
    """Whether an answer is as near to the exact one as it should be."""
    run = _apart(t, run)
    try:
        t.inside(run, run.bound, "row {row} is off")
    except Refuted:
        return False
    return True


def leaves_changed(t: Trial) -> list[str]:
    """The settings of the process that the call does not leave as they were."""
    tensors, options = arrays(t.target, t.inputs, t.buffers)
    return t.target.leaves_changed(*tensors, **options)


@declare("settings and random numbers of the process after = before", features=FEATURES)
def process_is_left_as_it_was(t: Trial) -> None:
    """A call changes no setting that other code depends on, and does not start the random numbers anew."""
    if changed := leaves_changed(t):
        t.fail(f"the call changed {' and '.join(changed)}, and left it so")
    if sets_the_seed(t.target.framework, lambda: call(t.target, t.inputs, t.buffers)):
        t.fail("the call sets the seed of the random numbers: what is drawn after it is the same, whatever was before")


@declare(
    "f(view of x) = f(copy of x)",
    needs=("layouts",),
    features=FEATURES,
    layout="contiguous",
    batch=(1, 2, 2, 3),
    keys=(1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 17, 17, 33, 33, 65, 0),
)
def memory_layout_changes_nothing(t: Trial) -> None:
    """Strides and storage offsets of the inputs do not matter, nor whether they share memory or numbers: a view is as good as a copy."""
    shared = make_inputs(replace(t.case, layout="expanded"))  # one key and one value for the whole batch
    for inputs, layouts in ((t.inputs, LAYOUTS[1:-1]), (shared, LAYOUTS[-1:])):
        copy = t.run(inputs.but(layout="contiguous"))
        for layout in filter(t.target.framework.layouts.__contains__, layouts):
            t.close(t.run(inputs.but(layout=layout)).out, copy.out, 2 * copy.bound, f"row {{row}} differs for {layout} inputs")
    fw, plain = t.target.framework, t.inputs.but(layout="contiguous")
    copy, together = t.run(plain), t.run(plain, Together(fw, plain.q.size + plain.k.size + plain.v.size))
    t.close(together.out, copy.out, 2 * copy.bound, "row {row} differs where q, k and v lie in one piece of memory")
    square = make_inputs(replace(t.case, layout="contiguous", keys=t.case.queries, group=1, value_dim=None))
    alike = replace(square.but(k=square.q, v=square.q), default_scale=t.supports.default_scale)
    copy, one = t.run(alike), t.run(alike, One(fw))
    t.close(one.out, copy.out, 2 * copy.bound, "row {row} differs where q, k and v are one and the same array")
    t.close(copy.out, copy.exact.out, copy.bound, "row {row} is off where q, k and v hold the same numbers")


@declare("shape (B, H, L, Dv), dtype and device of q", exact=True, direct=True, dtypes="all", features=FEATURES)
def output_has_the_right_form(t: Trial) -> None:
    """The output has the shape (batch, heads, queries, value_dim), the dtype and the device of the queries."""
    out = call(t.target, t.inputs, t.buffers)
    if not t.target.framework.is_array(out):
        t.fail(f"returned {type_of(out)}, not an array of {t.target.framework.name}")
    shape, dtype, device = t.target.framework.describe(out)
    batch, heads, queries, _ = t.inputs.shape
    wanted: tuple[int, ...] = (batch, heads, queries, t.inputs.v.shape[3])
    if t.supports.layout == "blhd":
        wanted = (batch, queries, heads, t.inputs.v.shape[3])
    wide = t.supports.result == "wider" and dtype in FLOAT_TYPES and FLOAT_TYPES[dtype].precision > FLOAT_TYPES[t.case.dtype].precision
    if (shape, device) != (wanted, t.case.device) or not (dtype == t.case.dtype or wide):
        t.fail(f"returned {dtype} {shape} on {device}, expected {t.case.dtype} {wanted} on {t.case.device}")


def _other_features(x: Inputs) -> Inputs:
    return x.but(k=x.k[..., 1:])


def _other_batch(x: Inputs) -> Inputs:
    return x.but(k=np.concatenate([x.k] * 2)[:3], v=np.concatenate([x.v] * 2)[:3])


def _other_heads(x: Inputs) -> Inputs:
    return x.but(k=np.concatenate([x.k] * 2, axis=1)[:, :2], v=np.concatenate([x.v] * 2, axis=1)[:, :2])


def _other_mask(x: Inputs) -> Inputs:
    return x.but(mask=np.ones((x.shape[2], x.shape[3] + 1), dtype=bool))


ILLEGAL: dict[str, Callable[[Inputs], Inputs]] = {
    "keys with fewer features than queries": _other_features,
    "a batch of 2 for q and of 3 for k and v": _other_batch,
    "3 heads of q and 2 of k and v": _other_heads,
    "a mask with one key too many": _other_mask,
}


SHAPES: dict[str, Any] = {
    "batch": 2,
    "kv_heads": 3,
    "queries": (2, 3, 4, 5),
    "keys": (3, 4, 5, 6),
    "dim": (3, 4, 5, 8),
    "group": 1,
    "mask": "none",
    "value_dim": None,
    "layout": "contiguous",
    "explicit": (False, True),
    "is_causal": False,
    "scale": None,
}


@declare("illegal shapes raise", direct=True, edge="arguments that fit no attention", **SHAPES)
def bad_shapes_raise(t: Trial) -> None:
    """Shapes that fit no attention are refused with an error, not answered."""
    takes_masks = "attn_mask" in t.target.parameters and "bool" in t.supports.mask_kinds  # of another kind it would be refused anyway
    names = [name for name in ILLEGAL if "mask" not in name or takes_masks]
    name = names[t.choice("illegal", len(names))]
    refuses(t, ILLEGAL[name](t.inputs), name)


@declare("S of k ≠ S of v raises", direct=True, edge="arguments that fit no attention", **SHAPES)
def missing_values_raise(t: Trial) -> None:
    """Fewer values than keys are refused: which key would go without?"""
    refuses(t, t.inputs.but(v=t.inputs.v[:, :, 1:]), "fewer values than keys")


def refuses(t: Trial, illegal: Inputs, what: str) -> None:
    """The call raises, whatever it raises."""
    try:
        out = attend(t.target, illegal, t.buffers)
    except NotTaken:
        raise
    except Raised:
        return
    shapes = f"q {illegal.q.shape}, k {illegal.k.shape}, v {illegal.v.shape}"
    t.fail(f"answered {what}, {shapes}, with an output of shape {out.shape}; expected an error")
