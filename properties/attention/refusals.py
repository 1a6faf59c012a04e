"""What an attention refuses: classes of calls that have a name, which it answers by raising, always.

Found out before the search, one small call a question, so that a refusal is told in one line and hides nothing else. An exception
that no such class explains, at 17 keys only, say, is no refusal but a finding.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from ..engine.cases.masks import MASK_AXES, MASK_KINDS
from ..engine.core.target import Left, Raised, Target, always_refused
from . import backward
from .backward import OPERANDS, forward, place_grad
from .call import attend
from .case import Case
from .cases import always
from .discover import smoke_inputs
from .inputs import Inputs, make_inputs
from .question import HALVES
from .tables import ANY_SIZE

SIZES = {"batch": 2, "kv_heads": 3, "queries": 5, "keys": 7}
SHORTER = {**SIZES, "queries": 4, "keys": 5}  # of the second call of a class, that what raises beyond a length alone is no class
EMPTY = ("batch", "queries", "keys")  # no head and no feature are refused by most, and asked of nobody who refuses an empty batch
# A parameter → the fields of cases with it, of which one that is answered is enough; masks, and what is no field, are asked otherwise.
USED: dict[str, tuple[dict[str, Any], ...]] = {
    "is_causal": ({"is_causal": True}, {"is_causal": True, "queries": 7}),
    "scale": ({"scale": 0.5}, {"scale": 1.0}),
    "enable_gqa": ({"group": 2}, {"group": 4}),
    "softcap": ({"softcap": 8.0},),
    "window_size": ({"window_left": 1, "window_right": 1}, {"window_left": 1, "window_right": 0, "queries": 7}),
    "alibi_slopes": ({"alibi": True},),
    "sinks": ({"sinks": True},),
    "kv_lengths": ({"lengths": True},),
}
ASKED_FOR: dict[str, dict[str, Any]] = {
    "return_lse": {"return_lse": True},
    "need_weights": {"need_weights": True},
    "dropout_p": {"dropout": 0.5},
}
# What of a parameter that is refused is asked again, in calls of any size.
OF_PARAMETER: dict[str, dict[str, Any]] = {
    "is_causal": {"is_causal": True},
    "scale": {"scale": (0.25, 0.5, 1.0, 2.0)},
    "enable_gqa": {"group": (2, 3, 4)},
    "softcap": {"softcap": (2.0, 8.0)},
    "window_size": {"window_left": (0, 1, 2), "window_right": (0, 1)},
    "alibi_slopes": {"alibi": True},
    "sinks": {"sinks": True},
    "kv_lengths": {"lengths": True},
}
# What a mask is like of which so many axes are wanted, and which has fewer.
OF_RANK: dict[int, dict[str, Any]] = {
    4: {"mask_rank": 3},
    3: {"mask_axes": "LS", "mask_rank": 2},
    2: {"mask_axes": "S", "mask_rank": 0},
    1: {"mask_axes": "", "mask_rank": 0},
}
EDGES = {"zero_sizes", "rows_without_keys", "non_finite"}  # what is refused of these is not asked again
MISTAKES = ("AttributeError:", "NameError:", "UnboundLocalError:")  # what nobody raises to refuse a call
# What claims a parameter if it is declared: then every use of it that raises is a finding.
CLAIMED_BY = {
    "attn_mask": {"mask_kinds", "mask_axes", "mask_rank"},
    "is_causal": {"causal"},
    "scale": {"scales"},
    "window_size": {"windows"},
    "enable_gqa": {"groups"},
}
# What a library raises where shapes do not fit: no refusal either, of a parameter that has no shape of its own.
UNFIT = re.compile(
    "must match the size of tensor|shapes cannot be multiplied|could not be broadcast|not aligned|mismatch in its core dim"
    "|Expected size for first two dimensions|expanded size of the tensor"
)
SHAPELESS = ("is_causal", "scale", "softcap", "return_lse", "need_weights", "dropout_p")
MASKED = ("attn_mask",)
# The class in words, what is declared if it is refused, a call of it by its seed.
Question = tuple[str, dict[str, Any], Callable[[int], Inputs]]
WIDTHS = (3, 5, 16, 40, 96)  # of values; not 1, which fits any width, being repeated
OTHER_DIMS = (8, 16, 24, 32, 64, 128)
LONGER = (20, 24, 31, 32, 33, 48, 63, 64, 65, 96, 100, 127, 128, 129, 192, 256, 257, 384, 512, 601, 640, 768, 1000, 1024)
GROUPS = (2, 3, 4)
MOST_DIMS = 12  # that a line names
ODD_DIMS, ODD_LENGTHS = (1, 5, 256), (1, 17, 600)  # if these are taken, so are all


def with_refusals(target: Target, device: str) -> Target:
    """The target without the classes of calls that it refuses, and what it said of each."""
    said: dict[str, str] = {}
    left = _of_dtypes(target)
    if "parameters" not in target.declared:
        target = _without_parameters(target, device, said, left)
    if broken := {name: why for name, why in said.items() if why.startswith(MISTAKES) or (name in SHAPELESS and UNFIT.search(why))}:
        own = {name: next((theirs for theirs, how in target.learned.items() if how.startswith(name)), name) for name in broken}
        wrong = {
            own[name]: f"every call with it raises {why}, which is a mistake of the code, and no refusal" for name, why in broken.items()
        }
        target = dataclasses.replace(target, wrong={**target.wrong, **wrong})
        said = {name: why for name, why in said.items() if name not in broken}
        left = {name: how for name, how in left.items() if name not in broken}
    facts: dict[str, Any] = {}
    told: set[str] = set()
    for dtype, (words, changes, asked) in _in_types(target, device):
        if set(changes) & target.declared or any(
            getattr(target.supports, name) != default for name, default in _defaults(target, changes).items()
        ):
            continue  # it is declared, or known
        if words in told or all(name in facts and _covers(facts[name], value) for name, value in changes.items()):
            continue  # an earlier question has shown it, or more, or the same in another type
        if why := refusal(target, asked):
            facts |= changes
            told.add(words)
            words += f" in {dtype}" * (dtype != target.dtypes[0])
            said[words] = why
            if not EDGES & set(changes):
                left |= _of_class(target, words, changes, device)
    if "value_dim" not in facts and (why := _in_another_width(target, device)):
        facts["value_dim"] = False
        target = dataclasses.replace(target, untried={**target.untried, "values of another width than keys": why})
    kinds = _taken(target, "mask_kind", MASK_KINDS, target.supports.mask_kinds, device, said)
    axes = _taken(
        target, "mask_axes", MASK_AXES, target.supports.mask_axes, device, said, facts.get("mask_rank", target.supports.mask_rank)
    )
    facts |= {"mask_kinds": kinds} if kinds else {}
    facts |= {"mask_axes": axes} if axes else {}
    for key, taken, usual in (("mask_kinds", kinds, MASK_KINDS), ("mask_axes", axes, MASK_AXES)):
        if taken:
            left[f"other {key.removeprefix('mask_')} of masks"] = Left({key: tuple(x for x in usual if x not in taken)}, needs=MASKED)
    facts |= _memory(target, device, said)
    for name in ("gradients", "bias_gradients"):
        if name in target.declared and getattr(target.supports, name) and (why := backward.refusal(target, name)):
            target = dataclasses.replace(target, wrong={**target.wrong, name: f"they are declared, and there are none: {why}"})
    if target.supports.gradients is None and (why := no_backward(target)):
        facts["gradients"] = False
        said["gradients"] = why
        left["gradients"] = Left({"gradients": None}, prop="gradients_are_inside_the_bound")
    if not target.costly_shapes:
        facts |= _sizes(target, device, said, left)
        target = _without_dtypes(target, device, said, left)
    if not (facts or said or left):
        return target
    supports = dataclasses.replace(target.supports, **facts)
    return dataclasses.replace(target, supports=supports, refuses={**target.refuses, **said}, left={**target.left, **left})


def _covers(known: Any, asked: Any) -> bool:
    """Whether who refuses what is known of a key refuses what is asked of it, too."""
    more_axes = type(known) is int and known >= asked
    return bool(known == asked or more_axes or (known, asked) == ("positive", "not negative"))


def _of_dtypes(target: Target) -> dict[str, Left]:
    """The types in which it raises at its first call."""
    raises = tuple(dtype for dtype, why in target.untried.items() if re.match(rf"on {dtype}\b.* it raised", why))
    return {" and ".join(raises): Left(target={"dtypes": raises})} if raises and "dtypes" not in target.declared else {}


def _of_class(target: Target, words: str, changes: dict[str, Any], device: str) -> dict[str, Left]:
    """How a class is asked again that is declared so."""
    taken = _defaults(target, changes)
    if "mask_and_causal" in changes:  # documentations say that they raise; those kinds of masks are asked that were answered beside it
        kinds = [
            k for k in target.supports.mask_kinds if not refusal(target, _asked(target, device, mask="random", mask_kind=k, is_causal=True))
        ]
        again = Left({**taken, "mask_kinds": tuple(kinds)}, domain={"is_causal": True, "scale": None}, needs=(*MASKED, "is_causal"))
        return {words: again} if kinds else {}
    if "value_dim" in changes:
        return {words: Left(taken, domain={"dim": OTHER_DIMS, "value_dim": WIDTHS})}
    if "scales" in changes:
        return {words: Left(taken, domain={"scale": (0.0, -0.5, -1.0) if changes["scales"] == "positive" else (-0.5, -1.0)})}
    if "windows" in changes:
        return {words: Left(taken, domain={"window_left": (2, 3), "window_right": (0, 1)}, needs=("window_size",))}
    return {words: Left(taken, domain=OF_RANK[changes["mask_rank"]], needs=MASKED)}


def _without_parameters(target: Target, device: str, said: dict[str, str], again: dict[str, Left]) -> Target:
    """The target without the parameters that its signature has and every use of which raises."""
    left = []
    for parameter in target.parameters:
        if target.declared & CLAIMED_BY.get(parameter, set()):
            left.append(parameter)
            continue
        asked = [_asked(target, device, **fields) for fields in USED.get(parameter, ())]
        if parameter in ASKED_FOR:
            asked = [lambda seed, more=ASKED_FOR[parameter]: _asked(target, device)(seed).but(**more)]  # type: ignore[misc]
        if parameter == "attn_mask":
            masks = [(kind, axes, 0) for kind in target.supports.mask_kinds for axes in target.supports.mask_axes[:2]]
            masks += [
                (kind, axes, 4) for kind in target.supports.mask_kinds for axes in ("BHLS", "LS") if axes in target.supports.mask_axes
            ]
            asked = [_asked(target, device, mask="random", mask_kind=kind, mask_axes=axes, mask_rank=rank) for kind, axes, rank in masks]
        whys = [refusal(target, each) for each in asked]
        if whys and all(whys):
            said[parameter] = whys[0]
            needs = MASKED if parameter == "attn_mask" else ()
            if needs or parameter in OF_PARAMETER:
                again[parameter] = Left(target={"parameters": target.parameters}, domain=OF_PARAMETER.get(parameter, {}), needs=needs)
        else:
            left.append(parameter)
    return dataclasses.replace(target, parameters=tuple(left))


def _without_dtypes(target: Target, device: str, said: dict[str, str], again: dict[str, Left]) -> Target:
    """The target without the types in which every call with causality, or with a mask, raises, as where −10⁹ is no number of float16."""
    if "dtypes" in target.declared:
        return target
    uses: dict[str, tuple[str, dict[str, Any]]] = {
        "causality": ("is_causal", {"is_causal": True}),
        "a mask": (
            "attn_mask",
            {"mask": "random", "mask_kind": target.supports.mask_kinds[0], "mask_axes": target.supports.mask_axes[0]},
        ),
    }
    uses = {
        words: (name, fields)
        for words, (name, fields) in uses.items()
        if name in target.parameters and not refusal(target, _asked(target, device, **fields))
    }
    left = list(target.dtypes)
    for dtype, (words, (_, fields)) in itertools.product(target.dtypes[1:], uses.items()):
        if (why := refusal(target, _asked(target, device, dtype=dtype, **fields))) and dtype in left:
            left.remove(dtype)
            said[f"{dtype} with {words}, and {dtype} is not tried"] = why
            again[dtype] = Left(target={"dtypes": (dtype,)})
    return dataclasses.replace(target, dtypes=tuple(left))


def _sizes(target: Target, device: str, said: dict[str, str], again: dict[str, Left]) -> dict[str, Any]:
    """Head dims, lengths and groups, where some are refused and others are not."""
    facts: dict[str, Any] = {}
    supports, taken = target.supports, lambda **fields: not refusal(target, _asked(target, device, **fields))
    step = supports.length_multiple
    if supports.head_dims is None and (refused := [dim for dim in ODD_DIMS if not taken(dim=dim)]):
        dims = tuple(dim for dim in sorted(set(ANY_SIZE["dim"])) if dim and taken(dim=dim))
        if dims:
            facts["head_dims"] = dims
            others = [dim for dim in sorted(set(ANY_SIZE["dim"])) if dim and dim not in dims]
            all_but = len(dims) < len(others)
            named = [str(dim) for dim in (dims if all_but else others)]
            named = named if len(named) <= MOST_DIMS else [*named[: MOST_DIMS // 2], "…", *named[-2:]]
            words = f"head dims {'but' if all_but else ''} {', '.join(named)}, of those that were tried"
            said[words.replace("  ", " ")] = refusal(target, _asked(target, device, dim=refused[0]))
            again["other head dims"] = Left({"head_dims": None}, domain={"dim": tuple(others)})
    few = {"batch": 1, "kv_heads": 1}

    def fits(steps: int) -> bool:
        return taken(**few, queries=step, keys=steps * step) and taken(**few, queries=steps * step, keys=step)

    counts = sorted({-(-length // step) for length in ODD_LENGTHS})
    if supports.max_length is None and not fits(counts[-1]) and all(map(fits, counts[:-1])):
        longest, beyond = counts[-2:]
        while beyond - longest > 1:
            middle = (longest + beyond) // 2
            longest, beyond = (middle, beyond) if fits(middle) else (longest, middle)
        longest, beyond = longest * step, beyond * step
        facts["max_length"] = longest
        asked = [
            _asked(target, device, **few, **lengths) for lengths in ({"queries": step, "keys": beyond}, {"queries": beyond, "keys": step})
        ]
        said[f"sequences of more than {longest} tokens"] = refusal(target, asked[0]) or refusal(target, asked[1])
        longer = tuple(length for length in LONGER if length > longest and length % step == 0)
        again["longer sequences"] = Left({"max_length": None}, domain={**few, "queries": longer, "keys": longer, "dim": (4, 8)})
    if "enable_gqa" in target.parameters and supports.groups is None:
        groups = tuple(group for group in GROUPS if taken(group=group))
        if groups and groups != GROUPS:
            facts["groups"] = (1, *groups)
            others = [group for group in GROUPS if group not in groups]
            said[f"groups of {' or '.join(map(str, others))} heads"] = refusal(target, _asked(target, device, group=others[0]))
            again["other groups of heads"] = Left({"groups": None}, domain={"group": tuple(others)})
    return facts


def _asked(target: Target, device: str, **fields: Any) -> Callable[[int], Inputs]:
    """A small call by its seed, with these fields."""
    dim = target.supports.head_dims[0] if target.supports.head_dims else 4
    plain = {"dim": dim, "dtype": target.dtypes[0], "device": device}
    if target.supports.window and not {"window_left", "window_right"} & set(fields):
        plain |= always(target.supports.window)
    multiple = target.supports.length_multiple
    longest = (target.supports.max_length if "max_length" in target.declared else None) or 2**62

    def made(seed: int) -> Inputs:
        asked = {**_sizes_of(target, seed), **plain, **fields, "seed": seed}
        return make_inputs(
            Case(**{**asked, **{name: -(-min(asked[name], longest) // multiple) * multiple for name in ("queries", "keys")}})
        )

    return made


def refusal(target: Target, asked: Callable[[int], Inputs]) -> str:
    """What a target says to a class of calls if it raises at each of two; empty if it answers one, or ends its process instead."""
    return always_refused(target, (partial(lambda seed: attend(target, asked(seed)), seed) for seed in (0, 1)))


def no_backward(target: Target) -> str:
    """What its backward pass says if it raises at each of two calls; empty if it answers, is none, or ends its process instead."""

    def sent_back(seed: int) -> None:
        inputs = smoke_inputs(target.supports, target.dtypes[0], target.supports.devices[0], seed)
        out, _, send_back = forward(target, inputs, target.buffers(), OPERANDS)
        if send_back is not None:
            send_back(place_grad(target, np.ones(target.read(out).shape), inputs, target.buffers(), "contiguous"))

    return always_refused(target, (partial(sent_back, seed) for seed in (0, 1))) if target.framework.gradients else ""


def _in_types(target: Target, device: str) -> Iterator[tuple[str, Question]]:
    """The questions; those of a mask's axes in halves, too, for which other kernels are chosen, which refuse what those of wider types take.

    They are about halves that take masks at all.
    """
    for question in _questions(target, device):
        yield target.dtypes[0], question
    for dtype in [dtype for dtype in target.dtypes[1:] if dtype in HALVES and not target.costly_shapes][:1]:
        half = dataclasses.replace(target, dtypes=(dtype,))
        questions = list(_of_axes(half, device))
        masked = _asked(half, device, mask="random", mask_kind=target.supports.mask_kinds[0])
        for question in [] if not questions or refusal(half, masked) else questions:
            yield dtype, question


def _of_axes(target: Target, device: str) -> Iterator[Question]:
    """Those of how many axes a mask has."""
    asked = partial(_asked, target, device)
    masked = {"mask": "random", "mask_kind": target.supports.mask_kinds[0]}
    if "attn_mask" in target.parameters and {"S", "LS"} <= set(target.supports.mask_axes):
        if "enable_gqa" in target.parameters:
            yield "masks of two axes, where heads are grouped", {"mask_rank": 4}, asked(**masked, group=2, queries=1)
        yield "masks of three axes", {"mask_rank": 4}, asked(**masked, mask_rank=3)
        yield "masks of two axes", {"mask_rank": 3}, asked(**masked, mask_axes="LS", mask_rank=2)
        yield "masks of fewer than two axes", {"mask_rank": 2}, asked(**masked, mask_axes="S", mask_rank=0)
        if "" in target.supports.mask_axes:
            yield "masks without axes", {"mask_rank": 1}, asked(**masked, mask_axes="", mask_rank=0)


def _questions(target: Target, device: str) -> Iterator[Question]:
    """All of them."""
    dim = target.supports.head_dims[0] if target.supports.head_dims else 4
    asked = partial(_asked, target, device)
    masked = {"mask": "random", "mask_kind": target.supports.mask_kinds[0]}
    wider = target.supports.value_dim and not target.supports.head_dims and not refusal(target, asked(value_dim=dim + 1))
    yield from _of_axes(target, device)
    if {"attn_mask", "is_causal"} <= set(target.parameters) and "LS" in target.supports.mask_axes:
        alone = {"mask_and_causal": False}  # libraries that document this refusal answer where a fused kernel is chosen, all the same
        yield "a mask together with is_causal", alone, asked(**masked, is_causal=True)
        if wider:
            yield (
                "a mask together with is_causal, where values have another width",
                alone,
                asked(**masked, is_causal=True, value_dim=dim + 1),
            )
        for kind in target.supports.mask_kinds[1:]:
            words = {"bool": "a bool mask together with is_causal"}.get(kind, "a mask that is added together with is_causal")
            yield words, alone, asked(mask="random", mask_kind=kind, is_causal=True)
            if wider:
                both = asked(mask="random", mask_kind=kind, is_causal=True, value_dim=dim + 1)
                yield f"{words}, where values have another width", alone, both
        yield "a mask of three axes together with is_causal", alone, asked(**masked, is_causal=True, mask_rank=3)
        if "enable_gqa" in target.parameters:
            yield "a mask together with is_causal, where heads are grouped", alone, asked(**masked, is_causal=True, group=2)
    if not target.supports.head_dims:
        yield "values of another width than keys", {"value_dim": False}, asked(value_dim=dim + 1)
    if "scale" in target.parameters:
        yield "scales that are not positive", {"scales": "positive"}, asked(scale=0.0)
        yield "scales below 0", {"scales": "not negative"}, asked(scale=-0.5)
    if "window_size" in target.parameters and not refusal(target, asked(window_left=1, window_right=1)):
        yield "windows whose sides are not alike", {"windows": "symmetric"}, asked(window_left=1, window_right=2)
    if "attn_mask" in target.parameters and not refusal(target, asked(**{**masked, "mask": "one_key"})):
        yield "rows that see no key", {"rows_without_keys": False}, asked(**{**masked, "mask": "empty_rows"})
        for rank in (2, 4) if "S" in target.supports.mask_axes else ():
            of_keys = {**masked, "mask_axes": "S", "mask_rank": rank}
            if not refusal(target, asked(**{**of_keys, "mask": "one_key"})):
                yield "heads that see no key at all", {"rows_without_keys": False}, asked(**{**of_keys, "mask": "empty_rows"})
                break
    for name, what in itertools.product(("q", "v"), (np.nan, np.inf)):
        yield f"numbers that are not finite ({what} in {name})", {"non_finite": False}, asked(edits=((name, 0, what),))
    for size in EMPTY:
        yield f"empty arrays ({size} = 0)", {"zero_sizes": False}, asked(**{size: 0})


def _in_another_width(target: Target, device: str) -> str:
    """Why values of another width than keys are not tried: it answers in the width of queries, as what allocates ``empty_like(q)``.

    Empty if it answers one call in the width of values, or raises, and where widths are declared, or known.
    """
    if {"value_dim", "head_dims"} & target.declared or target.supports.head_dims or not target.supports.value_dim:
        return ""
    for seed in (0, 1):
        inputs = _asked(target, device, value_dim=6 - 3 * seed)(seed)
        if target.asked_enough():
            return "it is too slow to be asked"
        try:
            shape = attend(target, inputs).shape
        except Raised:
            return ""
        if shape != inputs.q.shape:
            return ""
    return "it answers in the width of queries, whatever that of values"


def _sizes_of(target: Target, seed: int) -> dict[str, int]:
    """Sizes of the first call of a class, and of the second, whose lengths are others."""
    multiple = target.supports.length_multiple
    if multiple > 1:
        return {**SIZES, "queries": multiple, "keys": 3 * multiple if seed else 2 * multiple}
    return SHORTER if seed else SIZES


def _defaults(target: Target, changes: dict[str, Any]) -> dict[str, Any]:
    plain = type(target.supports)()
    return {name: getattr(plain, name) for name in changes}


def _memory(target: Target, device: str, said: dict[str, str]) -> dict[str, Any]:
    """The ways in which arrays may lie in memory, where some are refused and others are not."""
    layouts = target.framework.layouts
    if target.supports.memory or len(layouts) == 1:
        return {}
    why = {layout: refusal(target, _asked(target, device, layout=layout)) for layout in layouts}
    refused = [layout for layout in layouts if why[layout]]
    if not refused or why["contiguous"]:
        return {}
    words = (
        "not contiguous"
        if not set(layouts) - {*refused, "contiguous", "offset"}
        else ", ".join(layout.replace("_", " ") for layout in refused)
    )
    said[f"arrays that are {words}"] = why[refused[0]]
    return {"memory": tuple(layout for layout in layouts if not why[layout])}


def _taken(
    target: Target, field: str, table: tuple[str, ...], able: tuple[str, ...], device: str, said: dict[str, str], rank: int = 2
) -> tuple[str, ...]:
    """The kinds or axes of masks that it takes, if it refuses some; () if it takes or refuses all."""
    if "attn_mask" not in target.parameters or able != table or {field, f"{field}s"} & target.declared:
        return ()
    masked: dict[str, Any] = {"mask": "everything" if "rows that see no key" in said else "random", "mask_rank": max(rank, 2)}
    why = {value: refusal(target, _asked(target, device, **masked, **{field: value})) for value in table}
    taken = tuple(value for value in table if not why[value])
    if not taken or taken == table:
        return ()
    refused = [value or "none" for value in table if why[value]]
    words = f"masks of the kind {', '.join(refused)}" if field == "mask_kind" else f"masks that vary along {', '.join(refused)} alone"
    said[words] = next(reason for reason in why.values() if reason)
    return taken
