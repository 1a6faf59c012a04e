"""Two targets of one contract, put to the same calls: the smallest case on which their answers part.

Each answer has a bound of its own, in the arithmetic of its own target: two right ones differ by no more than the sum of both. Where
conventions differ, that is told once, and what depends on them is not asked.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterable
from contextlib import nullcontext
from functools import cache
from typing import Any

import numpy as np

from ..cases.coordinates import Array
from ..core.declare import GRADIENTS, Property, declared
from ..core.target import CannotRun, NotTaken, Raised, Target, blame
from ..core.trial import Refuted
from ..frameworks import TRAINING
from .search import Plan, inapplicable, search

DIALECT = (
    "causal",
    "empty_rows",
    "empty_rows_added",
    "masked_nan",
    "default_scale",
    "returned_weights",
    "pairing",
)  # keys of supports that say what an answer means
NOT_COMPARED = ("dropout_p",)  # random numbers, in which two need not agree
PLAINLY = 6  # cases
ABLE = ("value_dim", "zero_sizes", "rows_without_keys", "non_finite", "mask_and_causal", "odd_dim")  # of which both must be able


def make_pair(target: Target, reference: Target) -> Target:
    """The target beside a reference: only what both take is asked. Raises CannotRun if they are no pair."""
    if target.contract != reference.contract:
        raise CannotRun(f"{target.name} is {_article(target.contract)} and {reference.name} {_article(reference.contract)}: no pair")
    if not target.kind.pair:
        raise CannotRun(f"pairs of {target.contract} are not compared")
    mine, theirs = target.supports, reference.supports
    dtypes = tuple(dtype for dtype in target.dtypes if dtype in reference.dtypes)
    if not dtypes:
        raise CannotRun(
            f"{target.name} takes {', '.join(target.dtypes)}, {reference.name} {', '.join(reference.dtypes)}: no type in common"
        )
    differs = {
        key: f"{getattr(mine, key)}; the reference: {getattr(theirs, key)}" for key in DIALECT if getattr(mine, key) != getattr(theirs, key)
    }
    memory = [layouts for layouts in (mine.memory, theirs.memory) if layouts]
    lengths = [n for n in (mine.max_length, theirs.max_length) if n]
    dims = set(mine.head_dims or theirs.head_dims or ()) & set(theirs.head_dims or mine.head_dims or ())
    supports = dataclasses.replace(
        mine,
        **{key: getattr(mine, key) and getattr(theirs, key) for key in ABLE},
        result=theirs.result,
        mask_kinds=tuple(kind for kind in mine.mask_kinds if kind in theirs.mask_kinds),
        mask_axes=tuple(axes for axes in mine.mask_axes if axes in theirs.mask_axes),
        max_length=min(lengths) if lengths else None,
        length_multiple=math.lcm(mine.length_multiple, theirs.length_multiple),
        head_dims=tuple(sorted(dims)) or None,
        memory=tuple(layout for layout in memory[0] if layout in memory[-1]) if memory else None,
    )
    without = {"is_causal"} if "causal" in differs else set()
    alone = [name for name in target.parameters if name not in reference.parameters]
    not_asked = {*reference.wrong} | ({*target.kind.known} - {*reference.parameters})  # where both are wrong alike, or one is not called
    paired = dataclasses.replace(
        target,
        supports=supports,
        dtypes=dtypes,
        parameters=tuple(name for name in target.parameters if name in reference.parameters and name not in without),
        learned={**target.learned, "reference": reference.name, **{f"reference's {k}": how for k, how in reference.learned.items()}},
        untried={**target.untried, **dict.fromkeys(alone, "the reference does not take it")},
        differs={**target.differs, **differs},
        wrong={name: how for name, how in target.wrong.items() if name not in not_asked},
        like=reference,
    )
    paired = dataclasses.replace(paired, untried={**_of_gradients(target, reference), **paired.untried})
    return target.kind.paired(paired, reference)


def unknown(target: Target, device: str = "cpu") -> str:
    """In what a target is not such as its contract says, so that it is not known how far rounding takes it; empty where nothing shows that."""
    if not target.kind.pair_only:
        return ""
    name, domain = target.kind.pair_only
    prop = declared()[name]
    prop = dataclasses.replace(prop, domain={**prop.domain, **domain})
    found = search(target, prop, Plan(examples=PLAINLY, device=device, again=False, shrink=False)).finding
    return found.violation.says if found and not found.violation.slight else ""


def _article(contract: str) -> str:
    return f"{'an' if contract[0] in 'aeiou' else 'a'} {contract}"


def narrower(target: Target, reference: Target, allowed: Collection[str] = ()) -> dict[str, str]:
    """What a target does not take of what its reference does, by keys of ``Supports``: there it was not compared.

    ``allowed``: keys of which somebody who holds it to the reference has said what it need not take. Where it is said how the reference is
    called, its gradients alone are to be taken besides: other calls need not be.
    """
    mine, theirs = target.supports, reference.supports
    lacks: dict[str, str] = {}

    def without(key: str, taken: Collection[str], needed: Iterable[str]) -> None:
        if missing := [one for one in needed if one not in taken]:
            lacks[key] = f"no {', '.join(missing)}"

    if target.kind.beside:
        return {}  # a module that refuses what its reference answers is refuted, but for types, which are told
    if not reference.called:
        without("dtypes", target.dtypes, reference.dtypes)
        without("parameters", (*target.parameters, *NOT_COMPARED), reference.parameters)
        without("mask_kinds", mine.mask_kinds, theirs.mask_kinds)
        for key in ("head_dims", "groups"):
            own, others = getattr(mine, key), getattr(theirs, key)
            if own and (others is None or not {*others} <= {*own}):
                lacks[key] = f"{key.replace('_', ' ')} {', '.join(map(str, own))} alone"
        if mine.max_length and mine.max_length < (theirs.max_length or math.inf):
            lacks["max_length"] = f"no more than {mine.max_length} tokens"
        if theirs.length_multiple % mine.length_multiple:
            lacks["length_multiple"] = f"multiples of {mine.length_multiple} tokens alone"
    elif reference.called["dtype"][0] not in target.dtypes:
        lacks["dtypes"] = f"no {reference.called['dtype'][0]}, the type of get_inputs()"
    elif mine.head_dims and reference.called["dim"] not in mine.head_dims:
        lacks["head_dims"] = f"no head dim of {reference.called['dim']}, that of get_inputs()"
    elif mine.max_length and mine.max_length < (length := max(reference.called["queries"], reference.called["keys"])):
        lacks["max_length"] = f"no more than {mine.max_length} tokens, and get_inputs() has {length}"
    if gradients := _of_gradients(target, reference):
        lacks["gradients"] = f"no {next(iter(gradients))}"
    return {key: what for key, what in lacks.items() if key not in allowed}


def _of_gradients(target: Target, reference: Target) -> dict[str, str]:
    """The gradients of a target that are not compared, where those of its reference could be, and why."""
    asked = [declared()[name] for name in target.kind.pair_gradients]
    asked = [prop for prop in asked if not any(need in reference.parameters and need not in target.parameters for need in prop.needs)]
    lacking = [(prop, why) for prop in asked if (why := inapplicable(target, prop)) and not inapplicable(reference, prop)]
    return {prop.needs[0].replace("_", " "): why for prop, why in lacking}


def pair_properties(target: Target) -> tuple[Property, ...]:
    """What is asked of a pair: that both answer alike wherever a property of their contract calls them, and what holds of one as of the other."""
    names = [name for name in target.kind.pair if _about(target, name)]
    called = target.like.called if target.like else {}
    asked = target.kind.beside or (
        *(_agreeing(name, str(number) * bool(number)) for number, name in enumerate(names)),
        *(_as_of_the_reference(name) for name in target.kind.pair_too if _about(target, name)),
        *(
            _gradients_as_of_the_reference(name, str(n) * bool(n))
            for n, name in enumerate(target.kind.pair_gradients)
            if _about(target, name)
        ),
        *(_agreeing_where(name, "to_large_logits", tuple(target.kind.pair_large.items())) for name in names[:1] if target.kind.pair_large),
        *(_agreeing_where(name, "to_larger_inputs", tuple(called.items()), once=True) for name in names[:1] if called),
    )
    return tuple(prop for prop in asked if prop is asked[0] or not inapplicable(target, prop))


def _about(target: Target, name: str) -> bool:
    prop = declared().get(name)
    return prop is not None and prop.contract in (topic.name for topic in target.kind.topics)


@cache
def _agreeing(name: str, mark: str) -> Property:
    prop = declared()[name]

    def check(trial: Any) -> None:
        compare(trial, prop)

    return dataclasses.replace(
        prop,
        name=f"answers_are_those_of_the_reference{mark}",
        theme="pair",
        statement="The same call gives the same answer as the reference's, within what rounding explains in both.",
        formula="|a(x) − b(x)| ≤ E_a + E_b",
        check=check,
        edge="",
    )


@cache
def _agreeing_where(name: str, where: str, domain: tuple[tuple[str, Any], ...], once: bool = False) -> Property:
    """The same of some calls."""
    prop = _agreeing(name, "")
    return dataclasses.replace(prop, name=f"answers_{where}_are_those_of_the_reference", domain={**prop.domain, **dict(domain)}, once=once)


@cache
def _as_of_the_reference(name: str) -> Property:
    """A property that holds of the target wherever it holds of the reference, in each way in which it is called."""
    prop = declared()[name]

    def check(trial: Any) -> None:
        fw = trial.target.framework
        way = ["", *fw.ways][trial.choice("way", 1 + len(fw.ways))]
        try:
            with fw.told(way) if way else nullcontext():
                prop.check(trial)
        except Refuted:
            _holds(prop, trial, trial.target.like)
            raise

    return dataclasses.replace(prop, theme="pair", check=check, edge="")


@cache
def _gradients_as_of_the_reference(name: str, mark: str) -> Property:
    prop = declared()[name]

    def check(trial: Any) -> None:
        try:
            prop.check(trial)
        except Refuted:
            _holds(prop, trial, trial.target.like)
            _holds(_agreeing(trial.target.kind.pair[0], ""), trial, trial.target)
            raise

    statement = "Gradients are those of the answer, wherever the reference's are."
    return dataclasses.replace(prop, name=f"{GRADIENTS}{mark}", theme="pair", statement=statement, check=check, edge="")


def _holds(prop: Property, trial: Any, target: Target) -> None:
    """Raises NotTaken where a property does not hold of a target on the case of a trial."""
    try:
        prop.check(target.kind.trial(prop)(target, trial.case))
    except (Refuted, Raised):
        raise NotTaken("what does not hold of the reference, either, or gradients of answers that differ") from None


def compare(trial: Any, prop: Property) -> None:
    """Put the case to both, and compare every answer. In which way the target is called is the case's choice."""
    target, reference = trial.target, trial.target.like
    if reference is None:
        return
    fw = target.framework
    way, how = [("", ""), *fw.ways.items()][trial.choice("way", 1 + len(fw.ways))]
    with fw.told(way) if way else nullcontext(), fw.chance(0):
        target.kind.disturb(trial)
        own = target.kind.answers(trial, prop)
        drawn = fw.drawn() if way == TRAINING else None
    with fw.chance(0):
        if drawn not in (None, fw.drawn()):
            raise NotTaken("train mode, in which it draws random numbers")
    beside = target.kind.trial(prop)(reference, trial.case)
    beside.like = trial
    try:
        others = target.kind.answers(beside, prop)
    except NotTaken:
        raise
    except Raised as raised:
        trial.fail(f"it answers, and the reference {blame(raised)}")
    asked = [where for runs in zip(trial.runs, beside.runs, strict=False) for where in _asked(trial.target, *runs)]
    asked = asked if len(asked) == len(own) else [True] * len(own)
    for (out, allowed), (right, others_allowed), where in zip(own, others, asked, strict=False):
        if np.shape(out) != np.shape(right):
            trial.fail(f"it answers with shape {np.shape(out)}, the reference with {np.shape(right)}")
        says = "row {row} differs from the reference's" + f" {how}" * bool(how)
        trial.close(out, right, allowed + others_allowed, says, where)


def _asked(target: Target, run: Any, other: Any) -> list[Any]:
    """For every answer of a run, where both conventions say the same: not in rows that see no key, where those give different things."""
    answers = getattr(run, "answers", None) or [(run.out, run.bound)]
    exact, others = getattr(run, "exact", None), getattr(other, "exact", None)
    if not {"empty_rows", "masked_nan"} & set(target.differs) or exact is None or others is None:
        return [True] * len(answers)
    mine, theirs = np.asarray(exact.out), np.asarray(others.out)
    with np.errstate(invalid="ignore"):
        alike = (np.abs(mine - theirs) <= run.bound + other.bound) | (np.isnan(mine) & np.isnan(theirs))
    rows = alike.all(-1)  # (batch, …, rows)
    return [_over_rows(rows, np.ndim(out)) for out, _ in answers]


def _over_rows(rows: Array, axes: int) -> Any:
    """(batch, …, rows) for an answer (batch, …, rows, columns) of so many axes."""
    between = (1,) * (axes - 1 - rows.ndim)
    return rows.reshape(*rows.shape[:-1], *between, rows.shape[-1], 1) if axes > rows.ndim else True
