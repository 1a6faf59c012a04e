"""The dialect of a callable: names, axes and form of its answer, learned by small calls that are held against the exact answer.

A reading is taken because its answers agree, not because of a name. Where none agrees, the simplest that gives an answer of the right form
is taken: what is wrong is then the business of the properties.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from ..engine.contained.stub import Stub
from ..engine.core.contract import Formal
from ..engine.core.supports import CHOICES
from ..engine.core.target import CannotRun, Target, innermost
from ..engine.frameworks import with_modules
from .axes import ANSWERS, LAYOUTS, PACKED, known
from .dialect_parameters import Learner
from .fillers import UNLIMITED, in_small_tiles
from .inputs import OF_THE_WIDTH, SCALES, Inputs
from .question import (
    ASKED_IN,
    Question,
    asked_in,
    away,
    dim_of_scale,
    exactly,
    meant,
    off_of,
    tiled,
)
from .readings import readings_of, without_cap, without_dropout
from .speech import ADDED, FORMS, SAID, SQUARE, UNLIKE, Reading, adapted, result_words
from .window import LENGTH, band_of, pattern_of, slopes_of, usual_slopes, window_of

OFF = "the simplest reading in which it answers, off by"
# In the name of a callable: queries see some keys alone. Blocks and chunks may be tiles, of which all are seen.
OF_SOME = {
    *("local", "sparse", "strided", "dilated", "axial", "neighborhood", "streaming"),
    *("sliding", "window", "windowed", "banded", "bucketed", "segmented"),
}
# In the name of a callable: weights that are no softmax, or one of something else than scaled products.
OTHER_WEIGHTS = {
    *("probsparse", "sigmoid", "sparsemax", "entmax", "relu", "silu", "hstu", "linear", "performer", "favor"),
    *("cosine", "polynomial", "gaussian", "laplace", "retention", "additive", "bahdanau"),
}


def learn(target: Target, formal: Formal, declared: Iterable[str], device: str, works: bool) -> Target:
    """The target as it is to be called, with what was learned of it. Raises CannotRun with what is nearest. ``works``: by the contract's
    own call, so that only names are learned."""
    able = target.dtypes if works else target.supports.dtypes or target.framework.dtypes
    dtypes = [name for name in ASKED_IN if name in able and name in target.framework.dtypes]
    if not works and target.framework.name == "numpy":  # in whose halves alone nobody computes
        dtypes = [name for name in dtypes if name in ASKED_IN[:2]] or dtypes
    nearest = ""
    # What is off, and perhaps misread: it may be right with whole tiles alone, in simpler axes.
    misread: tuple[Question, Reading, dict[str, str], int, int] | None = None
    demanding = not works and not {"head_dims", "length_multiple"} & frozenset(declared)
    for dtype in dtypes:
        for layout, dim, multiple in ((None, 0, 1), *(_demands() if demanding else ())):
            if misread and (dtype not in ASKED_IN[:2] or (layout, multiple) not in _simpler(misread[1].layout)):
                continue
            if layout and target.asked_enough():
                continue
            facts: dict[str, Any] = {"head_dims": (dim,), "length_multiple": multiple} if dim else {}
            question = Question(replace(target, supports=replace(target.supports, **facts)), dtype, device)
            try:
                reading, learned = _called(question, formal, works, layout)
            except CannotRun as error:
                if error.final:
                    raise
                nearest = nearest or str(error)
                continue
            found = question, reading, learned, dim, multiple
            if OFF not in learned.get("axes", ""):
                return _learned(target, formal, frozenset(declared), works, *found)
            if not demanding or not _simpler(reading.layout):
                return _learned(target, formal, frozenset(declared), works, *(misread or found))
            misread = misread or found
    if misread:
        return _learned(target, formal, frozenset(declared), works, *misread)
    raise CannotRun("; ".join(filter(None, (nearest, *target.pace.reasons()))))


def _simpler(layout: str) -> set[tuple[str | None, int]]:
    """(layout, what lengths are multiples of) for which that layout may be mistaken: the same axes in another order."""
    order = list(LAYOUTS)
    if layout not in order:
        return set()
    simpler = [one for one in order[: order.index(layout)] if sorted(LAYOUTS[one].queries) == sorted(LAYOUTS[layout].queries)]
    return set(itertools.product(simpler, {multiple for _, multiple in DEMANDS if multiple > 1}))


def _learned(
    target: Target,
    formal: Formal,
    declared: frozenset[str],
    works: bool,
    question: Question,
    reading: Reading,
    learned: dict[str, str],
    dim: int,
    multiple: int,
) -> Target:
    """The target as it is to be called in a reading, of a head dim and lengths if it demands them."""
    small = replace(question, target=replace(question.target, supports=replace(question.target.supports, length_multiple=1)))
    if multiple > 1 and small.answer(reading, small.inputs()) is not None:
        question = small  # it answers other lengths, too
    if dim:
        question = replace(question, target=_with_dims(question, reading, learned))
    elif own := made_for(question, reading):
        learned["head dims"] = OWN_DIM.format(own)
        own_target = replace(question.target, supports=replace(question.target.supports, head_dims=(own,)))
        question = replace(question, target=own_target, scale=SCALES[0])
    found = Learner(question, formal, declared, reading, learned, works).learn()
    return replace(found, untried={**found.untried, **target.pace.untried()})


def _demands() -> Iterator[tuple[str, int, int]]:
    """(layout, head dim, what lengths are multiples of): the first that is answered is taken, lest a size be taken for another."""
    for layout in (*LAYOUTS, *PACKED):
        for dim, multiple in DEMANDS:
            yield layout, dim, multiple


SIZE_WORDS = {"b": "the number of sequences", "l": "the number of queries", "s": "the number of keys"}
SIZE_WORDS |= {"k": "the number of heads of keys", "g": "the number of heads of queries to each of keys"}
# (head dim, what lengths are multiples of) that are tried where nothing small is taken.
DEMANDS = ((16, 1), (64, 1), (16, 16), (64, 16), (64, 64), (64, 128), (128, 128))
RANDOM = "the same call differently each time"
LIKELY = 16  # readings that are asked whether queries see some keys alone
ODD_DIMS = (1, 5)  # who takes these, and all that follow, takes all
HEAD_DIMS = (8, 16, 24, 32, 40, 48, 56, 64, 72, 80, 96, 112, 128, 160, 192, 256)
OWN_DIM = "{0} alone: its scale is 1/sqrt({0}), whatever the head dim"


def _with_dims(question: Question, reading: Reading, learned: dict[str, str]) -> Target:
    """The target with all the head dims that it takes, and what lengths are multiples of."""
    target, multiple = question.target, question.target.supports.length_multiple
    dims = tuple(dim for dim in (*ODD_DIMS, *HEAD_DIMS) if question.answer(reading, question.inputs(dim=dim)) is not None)
    if multiple > 1:
        learned["multiples"] = f"the numbers of queries and of keys are multiples of {multiple}"
    if {*ODD_DIMS, *HEAD_DIMS} <= {*dims}:
        return replace(target, supports=replace(target.supports, head_dims=None))
    dims = tuple(sorted({*dims}))
    learned["head dims"] = ", ".join(map(str, dims)) + " alone, of those that were tried"
    return replace(target, supports=replace(target.supports, head_dims=dims or target.supports.head_dims))


def off(target: Target, device: str) -> float:
    """How far off a small call is; 0 where that is rounding."""
    question = _question(target, device)
    gap = question.off(Reading(layout=target.supports.layout), question.inputs())
    return 0.0 if gap is None or gap < question.near else gap


def of_one_dim(target: Target, device: str) -> Target | None:
    """The target, called as the contract says, with the one head dim that it is made for; None if it is made for all."""
    if own := made_for(_question(target, device), Reading(layout=target.supports.layout)):
        learned = {**target.learned, "head dims": OWN_DIM.format(own)}
        return replace(target, supports=replace(target.supports, head_dims=(own,)), learned=learned)
    return None


def made_for(question: Question, reading: Reading) -> int:
    """The head dim whose 1/sqrt a module without weights holds as its scale, whatever the queries have; 0 if it holds none."""
    target = question.target
    function = innermost(target.function)
    is_module = function.is_module if isinstance(function, Stub) else bool(with_modules(function))
    if not is_module or "head_dims" in target.declared or target.supports.head_dims:
        return 0
    question = replace(question, scale=SCALES[0])
    usual = question.off(reading, *question.both(), *question.both(dim=9))
    inputs = question.inputs()
    out = None if usual is None or usual < question.near else question.answer(reading, inputs)
    if out is None:
        return 0
    best = dim_of_scale(out, inputs)
    near = np.abs(out - exactly(inputs.but(scale=best**-0.5), "top-left").out).max() < question.near
    off = question.off(reading, *question.both(dim=best)) if near else None
    return best if off is not None and off < question.near else 0


def with_groups(target: Target, device: str) -> Target:
    """The target with grouped heads, where it takes fewer heads of keys without a flag, and answers as grouped attention in either order does."""
    if "enable_gqa" in target.parameters or {"parameters", "groups"} & target.declared:
        return target
    question = _question(target, device)
    reading, inputs = Reading(layout=target.supports.layout, grouped=True), question.inputs(kv_heads=2, group=2)
    out = question.answer(reading, inputs)
    if out is None or min(np.abs(out - exactly(one, "top-left").out).max() for one in (inputs, tiled(inputs))) >= question.near:
        return target
    return replace(
        target,
        function=adapted(target.function, reading, target.framework),
        parameters=(*target.parameters, "enable_gqa"),
        learned={**target.learned, "grouped heads": "without a flag"},
    )


def always_hides(target: Target, device: str) -> bool:
    """Whether it is wrong as an attention of all keys, and right as one that is always causal, or always has a window."""
    if "is_causal" in target.parameters or "attn_mask" in target.parameters:
        return False
    question, plain = _question(target, device), Reading(layout=target.supports.layout, square="all")
    off = _off(question, replace(plain, square=""))
    causal = _off(question, replace(plain, always=True)) if off is None or off >= question.near else None
    if (causal is not None and causal < question.near) or _in_a_window(question, plain) is not None:
        return True
    return off is not None and off >= question.near and band_of(question, plain) == (LENGTH - 1, 0)  # whatever else is wrong


def is_right_of_three_axes(target: Target, device: str) -> bool:
    """Whether it is wrong as an attention of four axes, for as many queries as keys, too, and right as one of three, as by ``q.shape[2]``."""
    question, plain = _question(target, device), Reading(layout=target.supports.layout)
    offs = [_off(question, one) for one in (plain, replace(plain, square="all"))]
    if any(off is None or off < question.near for off in offs):
        return False
    of_three = _off(question, Reading(layout="bld"))
    return of_three is not None and of_three < question.near


def square_alone(target: Target, device: str) -> Target | None:
    """The target with rows added where there are more queries than keys, or fewer, where it is wrong, and right for as many alone."""
    question, plain = _question(target, device), Reading(layout=target.supports.layout)
    off = None if "lengths" in target.learned else _off(question, plain)
    if off is None or off < question.near or (found := _of_squares(question, [(off, plain)])) is None:
        return None
    return replace(
        target,
        function=adapted(target.function, found[1], target.framework),
        learned={**target.learned, "lengths": SQUARE["all"]},
        wrong={**target.wrong, "lengths": UNLIKE.format(off)},
    )


def _question(target: Target, device: str) -> Question:
    return Question(target, asked_in(target), device)


def masks_of_other_axes(target: Target, device: str) -> Target | None:
    """The target with masks in the form that it takes, where it takes none of (batch, heads, queries, keys); None if it takes one."""
    learned = target.supports.mask_axes != type(target.supports)().mask_axes
    if "attn_mask" not in target.parameters or learned or {"mask_axes", "mask_kinds", "mask_rank"} & target.declared:
        return None
    question = _question(target, device)
    inputs = question.inputs()
    visible = np.random.default_rng(3).random(inputs.shape) < 0.5
    visible[..., 0] = True  # rows that see no key may be refused
    for kind, mask in (("bool", visible), (ADDED, np.where(visible, 1.0, 0.0))):
        for form, axes in FORMS.items():
            reading = Reading(layout=target.supports.layout, said={kind: ("attn_mask", SAID[0] if kind == "bool" else ADDED)}, form=form)
            whole = mask[tuple(slice(None) if letter in axes else slice(1) for letter in "BHLS")]
            if question.answer(reading, inputs.but(mask=whole)) is None:
                continue
            if form == "as it is":
                return None
            reading = replace(reading, said={"bool": ("attn_mask", SAID[0]), ADDED: ("attn_mask", ADDED)})
            allowed = tuple(one for one in target.supports.mask_axes if set(one) <= set(axes))
            return replace(
                target,
                function=adapted(target.function, reading, target.framework),
                supports=replace(target.supports, mask_axes=allowed),
                learned={**target.learned, "attn_mask": f"of axes ({', '.join(form)}) alone"},
            )
    return None


def square_where_causal(target: Target, device: str) -> Target | None:
    """The target asked row by row, if ``is_causal`` is for as many queries as keys; None if it is for all."""
    if "is_causal" not in target.parameters:
        return None
    question = _question(target, device)
    square = question.inputs(queries=7, is_causal=True)
    others = question.inputs(is_causal=True), question.inputs(queries=9, is_causal=True)
    plain = Reading(layout=target.supports.layout)
    if any(question.answer(plain, asked) is not None for asked in others) or question.answer(plain, square) is None:
        return None
    reading = Reading(layout=target.supports.layout, square="causal", names={"is_causal": "is_causal"})
    return replace(
        target,
        function=adapted(target.function, reading, target.framework),
        learned={**target.learned, "lengths": SQUARE["causal"]},
    )


# ---------------------------------------------------------------- axes, what must be given, what comes back


def _called(question: Question, formal: Formal, works: bool, layout: str | None) -> tuple[Reading, dict[str, str]]:
    """The reading in which the plain call is right, or the simplest that gives an answer of the right form."""
    plain = question.inputs()
    declared = question.target.supports.layout
    readings = [
        replace(one, compact=True, layout=declared if works and one.layout == "bhld" else one.layout)
        for one in readings_of(formal, works, layout)
    ]
    off, reading = _nearest_of_all(question, readings, _flag(formal))
    small = replace(reading, filled=in_small_tiles(reading.filled))
    if reading.filled and (of_small := question.off(small, *question.both())) is not None:  # a mistake between tiles is none in one tile
        off, reading = of_small, small
    axes, answer = known(reading.layout).words, ANSWERS.get(reading.answer, "")
    if not works and (why := _no_function(question, reading)) and not (why == RANDOM and _weighs_values(question, reading)):  # a finding
        raise CannotRun(f"as {axes} it answers {why}")
    if off >= question.near and (word := _other_weights(question.target.name)):
        raise _no_softmax(question.target.name, word)
    by = "" if off < question.near else f": {OFF} {off:.2g}"
    learned = {} if reading.layout in ("bhld", declared) else {"axes": axes + by}
    learned |= {"result": f"{answer}"} if answer else {}
    learned |= {"lengths": SQUARE[reading.square]} if reading.square else {}
    learned |= {"causality": "always; without it every query is asked as the last row"} if reading.always else {}
    if (window := question.target.supports.window) is not None:
        learned["window"] = f"always: {window[0]} keys before a query's own, {window[1]} behind it"
    learned |= {theirs: f"{ours}, required" for ours, theirs in reading.neutral.items()}
    learned |= {name: f"softcap; {reading.given[name]} is passed for none" for name in without_cap(formal)[0] if name in reading.given}
    dropless = {name: value for name, value in without_dropout(formal)[-1].items() if name in reading.given}
    learned |= {name: f"{value} is passed where nothing is said: weights would be dropped" for name, value in dropless.items()}
    learned |= {theirs: SIZE_WORDS[letter] for theirs, letter in reading.told.items()}
    learned |= {theirs: f"{filler.words}; no other value is tried" for theirs, filler in reading.filled.items()}
    learned |= {reading.heads: "the number of heads"} if reading.heads else {}
    learned |= {reading.into: "an array that the answer is written into"} if reading.into else {}
    learned |= {reading.dim: "the width of a head"} if reading.dim else {}
    learned |= {reading.width: "the width of the tokens"} if reading.width else {}
    learned |= {"weights": reading.weights.words(reading.operands)} if reading.weights else {}
    if reading.operands and not reading.weights:
        learned["operands"] = f"by keyword: {', '.join(reading.operands)}"
    if reading.module:
        learned["first argument"] = "a module, of which num_key_value_groups, head_dim, training and the like are read"
    return reading, learned | _result(question, reading, plain)


def heed_name(target: Target, device: str) -> None:
    """Raises CannotRun where a callable that is called as the contract says has weights of another kind, as its name says, or ALiBi within."""
    word = _other_weights(target.name)
    question, reading = Question(target, asked_in(target), device), Reading(layout=target.supports.layout)
    off = question.off(reading, question.inputs())
    if off is not None and off >= question.near:
        if word:
            raise _no_softmax(target.name, word)
        _heed_slopes(question, reading)


def _other_weights(name: str) -> str:
    """The word in the name of a callable that says that its weights are no softmax of scaled products; empty if none does."""
    said = name.rpartition(":")[2]
    words = [word.lower() for word in re.findall(r"[a-z]+|[A-Z][a-z]*", said.replace("cos_sim", "cosine"))]
    return next((word for word in words if word in OTHER_WEIGHTS and {"attention", "attn", "attend"} & {*words}), "")


def _no_softmax(name: str, word: str) -> CannotRun:
    linear = '; linear attention, of elu(x) + 1, is checked where contract = "linear" says so' * (word == "linear")
    error = CannotRun(
        f"{name} is no softmax attention, which alone is checked here: its name says {word}, and in no reading does it answer as one{linear}"
    )
    error.final = True
    return error


def _nearest_of_all(question: Question, readings: list[Reading], flag: str) -> tuple[float, Reading]:
    """The same, those last that are tried where nothing else is right."""
    late = [one for one in readings if one.late]
    try:
        off, reading = _nearest(question, [one for one in readings if not one.late] if late else readings, flag)
    except CannotRun:
        if not late:
            raise
        return _nearest(question, late, flag)
    if off >= question.near and late:
        with suppress(CannotRun):
            other = _nearest(question, late, flag)
            return other if other[0] < question.near else (off, reading)
    return off, reading


def _nearest(question: Question, readings: list[Reading], flag: str) -> tuple[float, Reading]:
    """How far off the nearest reading is, and the reading: of any lengths, of as many queries as keys, of what is always causal.

    One in which it raises under its own ``flag`` of causality, as a function of matrices does that takes more axes by chance, is the last choice.
    """
    fitting: list[tuple[float, Reading]] = []
    raising: list[tuple[float, Reading]] = []
    readings = [] if question.target.asked_enough() else readings
    for square in ("", "fewer", "all"):
        for reading in (replace(one, square=square) for one in readings):
            off = None if _takes_more_queries(question, reading) else _off(question, reading)
            if off is not None:
                if off < question.near and (found := _of_squares(question, fitting)):
                    return found  # in simpler axes
                fitting.append((off, reading))
                if off < question.near and _raises_if_causal(question, reading, flag):
                    raising.append((off, reading))
                elif off < question.near:
                    of_window = _in_a_window(question, reading) or reading
                    return off, replace(of_window, unlike=_of_narrow_weights(question, fitting) if _is_square(reading) else 0.0)
        if fitting:
            break
    if raising:
        return raising[0]
    if fitting and _no_function(question, fitting[0][1]):
        return fitting[0]
    if found := _of_squares(question, fitting):
        return found
    for _, reading in fitting:
        if UNLIMITED in reading.given.values() and (found := _always_causal(question, reading)):
            return found
    for _, reading in fitting:
        if (band := _in_a_window(question, reading)) is not None:
            return 0.0, band
    for _, reading in fitting:
        if found := _always_causal(question, reading):
            return found
    _heed_pattern(question, readings)
    if not fitting:
        raise CannotRun("")
    question.scale = SCALES[0]
    fitting = [one for one in fitting if not one[1].guessed]
    if not fitting:
        raise CannotRun("with none of the values that were tried for them is it an attention")
    # it is wrong in every reading: then in the first axes in which all but the scale is right, or in the simplest, in the nearest
    simplest = next((one for one in fitting if _is_scaled_otherwise(question, one[1])), fitting[0])[1]
    alike = [one for one in fitting if (one[1].layout, one[1].answer) == (simplest.layout, simplest.answer)]
    off, reading = min(alike, key=lambda one: one[0])
    _heed_slopes(question, replace(reading, square="all"))
    causal = not reading.masked and band_of(question, replace(reading, square="all")) == (LENGTH - 1, 0)
    return off, replace(reading, square=reading.square or "all", always=True) if causal else reading


def _is_square(reading: Reading) -> bool:
    """Whether it is given weights of as many features as the tokens."""
    return reading.weights is not None and reading.weights.square


def _of_narrow_weights(question: Question, fitting: list[tuple[float, Reading]]) -> float:
    """How far off it is with weights of fewer features than the tokens, where it raises nothing; 0 where it does."""
    return next((off for off, reading in fitting if off >= question.near and reading.weights and not reading.weights.square), 0.0)


def _of_squares(question: Question, fitting: list[tuple[float, Reading]]) -> tuple[float, Reading] | None:
    """How far off a reading is, and the reading, of what answers any lengths, and is right for as many queries as keys alone."""
    for off, reading in fitting:
        squared = replace(reading, square="all")
        if off >= question.near and not reading.square and (of_square := _off(question, squared)) is not None and of_square < question.near:
            return of_square, replace(squared, unlike=off)
    return None


def _heed_pattern(question: Question, readings: Sequence[Reading]) -> None:
    """Raises CannotRun where queries see some keys alone, as those of a block, and a word says that this is meant."""
    if not OF_SOME & {*question.target.name.rpartition(":")[2].lower().split("_")}:
        return
    for reading in readings[:LIKELY]:
        if (seen := pattern_of(question, replace(reading, square="all"))) is None:
            continue
        some = [f"query {row} keys {_spans(seen[row])}" for row in (0, LENGTH // 2, LENGTH - 1)]
        error = CannotRun(
            f"{question.target.name} is attention of some keys: of {LENGTH} tokens {'; '.join(some)}; which keys a query should see nothing says: "
            "only causality, windows and masks are checked"
        )
        error.final = True
        raise error


def _spans(seen: np.ndarray) -> str:
    """Places in words, those that follow one another together."""
    places = np.flatnonzero(seen)
    runs = np.split(places, np.flatnonzero(np.diff(places) > 1) + 1) if len(places) else []
    return " and ".join(f"{run[0]} to {run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs) or "none"


def _heed_slopes(question: Question, reading: Reading) -> None:
    """Raises CannotRun where the logits have ALiBi within: it is checked as an argument, or in a module."""
    if not (slopes := slopes_of(question, reading)):
        return
    usual = usual_slopes(len(slopes))
    found, wanted = (", ".join(f"{slope:.3g}" for slope in some) for some in (slopes, usual))
    is_or_not = (
        f"as ALiBi's for {len(usual)} heads do"
        if found == wanted
        else f"where ALiBi's for {len(usual)} heads are {wanted} (Press et al. 2022)"
    )
    error = CannotRun(
        f"{question.target.name} has ALiBi within: its logits fall with the distance of keys by {found}, {is_or_not}; a function is checked "
        "where it is given them, as `alibi_slopes`"
    )
    error.final = True
    raise error


def _is_scaled_otherwise(question: Question, reading: Reading) -> bool:
    """Whether it is right with some scale, as of logits whose queries alone were scaled by the fourth root of a head dim."""
    inputs = question.inputs()
    out = question.answer(reading, inputs)
    if out is None or not np.isfinite(out).all():
        return False

    def off(power: float) -> float:
        return away(out, inputs, 2.0**power)

    least = min(np.arange(-6.0, 3.0, 0.5), key=off)
    for step in (0.25, 0.125, 2.0**-4, 2.0**-5, 2.0**-6, 2.0**-7, 2.0**-8, 2.0**-9, 2.0**-10, 2.0**-11):
        least = min((least - step, least, least + step), key=off)
    return off(least) < question.near


def _takes_more_queries(question: Question, reading: Reading) -> bool:
    """Whether a reading that gives one query a call is not needed: more queries are answered, though not rightly."""
    more = {"bh1d": "bhld", "b1hd": "blhd"}.get(reading.layout)
    if more is None:
        return False
    asked = question.inputs(), question.inputs(queries=7, keys=7)
    return any(question.answer(replace(reading, layout=more), one) is not None for one in asked)


def _always_causal(question: Question, reading: Reading) -> tuple[float, Reading] | None:
    """How far off the reading is, and the reading, of what is always causal, where this is; any lengths if it takes them."""
    causal = replace(reading, square="all", always=True)
    off = _off(question, causal)
    if off is None or off >= question.near:
        return None
    return off, replace(causal, square=reading.square)


def refuses_its_flag(target: Target, formal: Formal, device: str) -> bool:
    """Whether a callable that is called as the contract says raises where its flag of causality is set."""
    layout = Reading(layout=target.supports.layout)
    return target.supports.length_multiple == 1 and _raises_if_causal(_question(target, device), layout, _flag(formal))


def _flag(formal: Formal) -> str:
    """The parameter whose name says causality; empty if there is none."""
    return next((name for name in formal if (meant(name) or name) == "is_causal"), "")


def _raises_if_causal(question: Question, reading: Reading, flag: str) -> bool:
    """Whether it raises where its flag of causality is set, for as many queries as keys, too."""
    asked = replace(reading, names={**reading.names, "is_causal": flag})
    return bool(flag) and question.answer(asked, question.inputs(queries=7, keys=7, is_causal=True)) is None


def _weighs_values(question: Question, reading: Reading) -> bool:
    """Whether nothing comes of values that are 0: what answers at random is an attention then, as one that drops weights."""
    inputs = question.inputs()
    out = question.answer(reading, inputs.but(v=np.zeros_like(inputs.v)))
    return out is not None and not out.any()


def _no_function(question: Question, reading: Reading) -> str:
    """What shows that it computes nothing of its arguments; empty if nothing does."""
    one, again, other = (question.answer(reading, question.inputs(seed=seed)) for seed in (1, 1, 3))
    if one is None or again is None or not np.array_equal(one, again, equal_nan=True):
        return RANDOM
    alike = other is not None and np.isfinite(other).any() and np.array_equal(one, other, equal_nan=True)
    return "different calls alike" if alike else ""


def _in_a_window(question: Question, reading: Reading) -> Reading | None:
    """The reading of what always has a window, where this is one; the question goes on with it."""
    band = replace(reading, square="all", windowed=True)
    if "attn_mask" in question.target.parameters or (window := window_of(question, band)) is None:
        return None
    target = replace(question.target, supports=replace(question.target.supports, window=window))
    off = _off(replace(question, target=target), band)
    if off is None or off >= question.near:
        return None
    question.target = target
    return _of_any_lengths(question, reading, band)


def _of_any_lengths(question: Question, reading: Reading, band: Reading) -> Reading:
    """What always has a window, for any lengths if it is right for them; with how far off it is where it is right for as many alone."""
    free = replace(band, square=reading.square)
    offs = [question.off(free, *question.both(), causal=corner) for corner in CHOICES["causal"]]
    if reading.square or offs[0] is None or offs[1] is None:
        return band
    if offs[0] < question.near:
        return free
    return band if offs[1] < question.near else replace(band, unlike=offs[0])


def _off(question: Question, reading: Reading) -> float | None:
    """How far off a reading is, whatever the scale is where none is given; the question goes on with the nearest."""
    found: list[tuple[float, str]] = []
    answers = question.answers(reading, *question.both())  # the call is the same, whatever it should have been scaled by
    if answers is None:
        return None
    for scale in SCALES if reading.weights else (*SCALES, OF_THE_WIDTH):  # with weights the width is that of the tokens
        found.append((off_of(answers, replace(question, scale=scale).both()), scale))
        if found[-1][0] < question.near:
            break
    off, question.scale = found[-1] if found[-1][0] < question.near else found[0]
    return off


def _result(question: Question, reading: Reading, inputs: Inputs) -> dict[str, str]:
    """What comes back, if it is neither array nor tuple."""
    words: list[str] = []
    function = question.target.function

    def watched(*arguments: Any, **options: Any) -> Any:
        result = function(*arguments, **options)
        words.append(result_words(result, question.target.framework))
        return result

    Question(replace(question.target, function=watched), question.dtype, question.device).answer(reading, inputs)
    return {"result": words[0]} if words and words[0] else {}
