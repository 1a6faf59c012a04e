"""Dropout under another name, or with a flag that says whether weights are dropped at all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ..engine.core.target import Target
from .question import TRAINING, Question, meant
from .speech import Reading, formal_of


def with_dropout(target: Target, question: Question) -> Target:
    """The target with its dropout, if it has one: a probability drops weights, and none where the flag says so; what is wrong is told."""
    formal = formal_of(target.function)
    theirs = "dropout_p" if "dropout_p" in formal else next((name for name in formal if meant(name) == "dropout_p"), "")
    flag = next((name for name in formal if name in TRAINING), "")
    if not theirs or "parameters" in target.declared:
        return target
    inputs, plain = question.inputs(), Reading(layout=target.supports.layout)
    untried = {name: why for name, why in target.untried.items() if name not in (theirs, flag)}
    parameters = tuple(name for name in target.parameters if name != "dropout_p")
    if flag:
        still = replace(question, target=_with(target, theirs, {flag: not TRAINING[flag]}))
        off = still.off(plain, replace(inputs, dropout=0.9, chance=1))
        if off is not None and off >= question.near and not TRAINING[flag]:
            flag = ""  # flash-attention's `deterministic` is about the backward pass
        elif off is not None and off >= question.near:
            says = f"weights are dropped where {flag} is {not TRAINING[flag]}, off by {off:.2g}"
            target = replace(target, wrong={**target.wrong, theirs: says})
    if theirs == "dropout_p" and not flag:
        return _own(target, question)
    given = {flag: TRAINING[flag]} if flag else {}
    dropping, asked = _with(target, theirs, given), replace(inputs, dropout=0.5, chance=1)
    off = replace(question, target=dropping).off(plain, asked)
    called = ""
    if off is None and target.framework.dropper(0.5) is not None:
        dropping, called = _with(target, theirs, given, target.framework.dropper), ": a function that drops, as nn.Dropout"
        off = replace(question, target=dropping).off(plain, asked)
    if off is None or off < question.near:
        why = "a probability is not taken" if off is None else "a probability of 0.5 drops nothing"
        return replace(target, parameters=parameters, untried={**untried, theirs: f"it looks like dropout_p, but {why}"})
    where = f", where {flag} is {TRAINING[flag]}" if flag else ""
    learned = {**target.learned, theirs: "dropout_p" + where + called}
    return replace(dropping, parameters=(*parameters, "dropout_p"), learned=learned, untried=untried)


def _own(target: Target, question: Question) -> Target:
    """The target under the contract's own name; told, and not asked for, where that drops nothing at all."""
    if "dropout_p" not in target.parameters:
        return target
    off = question.off(Reading(layout=target.supports.layout), replace(question.inputs(), dropout=0.5, chance=1))
    if off is None or off >= question.near:
        return target
    parameters = tuple(name for name in target.parameters if name != "dropout_p")
    return replace(target, parameters=parameters, wrong={**target.wrong, "dropout_p": "a probability of 0.5 drops nothing"})


def _with(target: Target, theirs: str, given: dict[str, bool], made: Callable[[float], Any] = float) -> Target:
    """The target whose probability has this name, and is given with a flag; ``made``: what is given of a probability."""
    function = target.function

    def attention(q: Any, k: Any, v: Any, **options: Any) -> Any:
        probability = options.pop("dropout_p", None)
        return function(q, k, v, **options, **({theirs: made(probability), **given} if probability else {}))

    attention.__asks__ = function  # type: ignore[attr-defined]
    return replace(target, function=attention)
