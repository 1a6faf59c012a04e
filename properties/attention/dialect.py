"""The dialect of a callable: names, axes and form of its answer, learned by small calls that are held against the exact answer.

A reading is taken because its answers agree, not because of a name. Where none agrees, but one alone gives an answer of the right form,
that one is taken: what is wrong is then the business of the properties.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from ..engine.core.contract import Formal
from ..engine.core.target import CannotRun, Target
from .dialect_parameters import Learner
from .inputs import Inputs
from .question import IDLE, NEAR, OPERANDS, SECONDS, Question, meant
from .speech import ANSWERS, LAYOUTS, Reading, result_words


def learn(target: Target, formal: Formal, declared: Iterable[str], device: str, works: bool) -> Target:
    """The target as it is to be called, with what was learned of it. Raises CannotRun with what is nearest. ``works``: by the contract's
    own call, so that only names are learned."""
    dtypes = [name for name in ("float64", "float32") if name in target.framework.dtypes]
    dtypes = [name for name in target.supports.dtypes or dtypes if name in dtypes] or dtypes
    until = time.monotonic() + SECONDS
    nearest = ""
    for dtype in dtypes:
        question = Question(target, dtype, device, until)
        try:
            reading, told = _called(question, formal, works)
        except CannotRun as error:
            nearest = nearest or str(error)
            continue
        return Learner(question, formal, frozenset(declared), reading, told, works).learned()
    raise CannotRun(nearest)


# ---------------------------------------------------------------- axes, what must be given, what comes back


def _called(question: Question, formal: Formal, works: bool) -> tuple[Reading, dict[str, str]]:
    """The reading in which the plain call is right, or which alone gives an answer of the right form."""
    plain, other = question.inputs(), question.inputs(queries=6, keys=5, seed=2)
    fitting: list[tuple[float, Reading]] = []
    for reading in _readings(question, formal, works):
        off = question.off(reading, plain, other)
        if off is not None:
            fitting.append((off, reading))
            if off < NEAR:
                break
    if not fitting:
        raise CannotRun("")
    off, reading = min(fitting, key=lambda pair: pair[0])
    if off >= NEAR and fitting[0][1].layout == "bhld":  # it is wrong in every reading: then in the usual one
        off, reading = fitting[0]
    layout, answer = LAYOUTS[reading.layout], ANSWERS[reading.answer]
    again = [question.answer(reading, plain) for _ in range(2)]
    if not works:
        if again[0] is None or again[1] is None or not np.array_equal(again[0], again[1], equal_nan=True):
            raise CannotRun(f"as {layout} it answers the same call differently each time")
        changed = question.answer(reading, question.inputs(seed=3))
        if changed is not None and np.array_equal(again[0], changed, equal_nan=True):
            raise CannotRun(f"as {layout} it answers different calls alike")
    layouts = {r.layout for _, r in fitting}
    if off >= NEAR and len(layouts) > 1 and reading.layout != "bhld":
        raise CannotRun(f"as {layout} it is off by {off:.2g}, and no reading is right")
    by = "" if off < NEAR else f": the only reading in which it answers, off by {off:.2g}"
    told = {} if reading.layout == "bhld" else {"axes": layout + by}
    told |= {"result": f"{answer}"} if answer else {}
    if reading.operands:
        told["operands"] = f"by keyword: {', '.join(reading.operands)}"
    if reading.module:
        told["first argument"] = "a module, of which num_key_value_groups, training and is_causal are read"
    return reading, told | _result(question, reading, plain)


def _result(question: Question, reading: Reading, inputs: Inputs) -> dict[str, str]:
    """What comes back, if it is neither array nor tuple."""
    kept: list[str] = []
    function = question.target.function

    def watched(*arguments: Any, **options: Any) -> Any:
        result = function(*arguments, **options)
        kept.append(result_words(result, question.target.framework))
        return result

    Question(replace(question.target, function=watched), question.dtype, question.device, question.until).answer(reading, inputs)
    return {"result": kept[0]} if kept and kept[0] else {}


def _readings(question: Question, formal: Formal, works: bool) -> Iterator[Reading]:
    """Those that are tried, from the simplest on."""
    positional = [p for p in formal.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    variadic = any(p.kind is p.VAR_POSITIONAL for p in formal.values())
    module = bool(positional) and positional[0].name in ("module", "self_attn")
    operands: tuple[str, ...] = ()
    if len(positional) < 3 and not variadic:
        named = [next((p for p in formal if p in names), "") for names in OPERANDS]
        if positional or not all(named):
            return
        operands = tuple(named)
    taken = {p.name for p in positional[: 3 + module]} | set(operands)
    required = [
        p for p in formal.values() if p.name not in taken and p.default is p.empty and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    ]
    whole = list(formal.values())
    names = {p: p for p in ("is_causal", "scale") if p in formal}
    names |= {ours: p.name for p in required if (ours := meant(p.name)) in ("scale",)}
    for none in (0.0, None):
        given: dict[str, Any] = {}
        for p in required:
            ours = meant(p.name) or p.name
            if ours in ("attn_mask", "is_causal"):
                given[p.name] = False if ours == "is_causal" else None
            elif ours == "dropout_p":
                given[p.name] = none
            elif p.name in IDLE or ours in IDLE:
                given[p.name] = False
            elif ours != "scale":
                return
        # what is causal unless told otherwise is told otherwise
        given |= {p.name: False for p in whole if meant(p.name) == "is_causal" and p.default is True}
        scaled = any((meant(p.name) or p.name) == "scale" for p in required)
        base = Reading(operands=operands, module=module, given=given, names=names, scaled=scaled)
        for layout in ("bhld",) if works else LAYOUTS:
            answers = {"bhld": ("", "blhd", "bl(hd)"), "blhd": ("", "bl(hd)"), "lbhd": ("", "lb(hd)")}.get(layout, ("",))
            for answer in answers[:1] if works else answers:
                yield replace(base, layout=layout, answer=answer)
        if none not in given.values():
            return
