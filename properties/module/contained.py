"""A module in another process, which nobody vouches for, called as its reference is: KernelBench's ``ModelNew`` beside ``Model``.

The reference is trusted and lies here; its twin in float64 says how far both may be off. What is asked of the other one is its
parameters, once, and answers with weights that it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ..engine.contained.link import Gone, NoMoreCalls
from ..engine.core.pace import Pace
from ..engine.core.target import CannotRun, Raised, Target, blame
from .subject import Subject, of_instance

MOST = 10_000  # parameters
MOST_TOKENS, LONGEST = 2048, 256  # of inputs that cases are drawn with, and of one sequence: more cost too much
USUAL = "float32"  # the type of what ``get_inputs`` gives


def held_to(reference: Target, contain: Callable[[], Any], name: str, until: float) -> Target:
    """The module that a stub stands for, as a target that is called like the reference; its address is its attribute.

    Raises CannotRun, and NoMoreCalls for one that is slow: ``until`` is the ``time.monotonic()`` after which it is not called to find out more.
    """
    other: Subject = reference.function  # type: ignore[assignment]
    fw = other.framework
    assert fw.modules is not None
    stub = contain()
    if not stub.is_module:
        raise CannotRun(f"it is no module, and {reference.name} is one")
    prototype = other.module("float64", "cpu", 0)
    beside = getattr(type(prototype).forward, "__globals__", {})
    makes = beside.get("get_init_inputs") if stub.is_class else None
    given, pace = makes() if callable(makes) else [], Pace()

    def run(weights: Sequence[Any], arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        pace.check()
        return stub.held(fw, "answer", given, list(weights), list(arguments), options)

    try:
        held = stub.held(fw, "weights", given)
        if not isinstance(held, list) or len(held) > MOST:
            raise TypeError(f"its parameters are {type(held).__name__}")
        shadow = fw.modules.shadow({str(key): array for key, array in held}, run)
    except Gone as gone:
        raise CannotRun(f"{name} {gone}") from None
    except Exception as error:
        raise CannotRun(f"{name} cannot be made: {type(error).__name__}: {str(error)[:200]}") from None
    facts = replace(other.facts, given=_given(beside.get("get_inputs"), other))
    speech = replace(other.speech, doubled="")  # it is asked in the types that it takes, as it is
    subject = replace(other, name=name, maker=of_instance(shadow), structure=None, elsewhere=True, facts=facts, speech=speech)
    target = replace(reference, name=name, function=subject, address=str(stub.link.known.get("attribute") or "module"), pace=pace)
    with pace.ending(until):
        return _in_its_types(target, reference.kind)


def _given(makes: Any, subject: Subject) -> tuple[int, int] | None:
    """Sequences, and tokens of each, of the first inputs that the reference is called with; None where they are none that a case can have."""
    try:
        shape = tuple(makes()[0].shape)
    except Exception:  # there are none, or they are made otherwise
        return None
    facts = subject.facts
    fits = len(shape) == 3 and shape[2] == subject.speech.width and subject.speech.layout == "bld" and shape[0] * shape[1] <= MOST_TOKENS
    allowed = fits and (shape[1] in facts.lengths if facts.lengths else facts.shortest <= shape[1] <= LONGEST)
    return (shape[0], shape[1]) if allowed else None


def _in_its_types(target: Target, kind: Any) -> Target:
    """The target in the types that it takes, of those of the reference: a kernel is written for one. Raises CannotRun."""
    refused: dict[str, str] = {}
    gone: list[Gone] = []
    for dtype in target.dtypes:
        try:
            kind.smoke(target, dtype, "cpu")  # an answer of another form is for a case to show, as is a process that ends
        except NoMoreCalls:
            if gone:
                raise CannotRun(f"{target.name} {gone[0]}") from None
            raise
        except Raised as raised:
            if isinstance(raised.error, Gone):
                gone.append(raised.error)
            else:
                refused[dtype] = f"it {blame(raised)}"
    if gone and len(gone) + len(refused) == len(target.dtypes):
        raise CannotRun(f"{target.name} {gone[0]}")
    least = USUAL if USUAL in target.dtypes else target.dtypes[0]
    if least in refused:
        raise CannotRun(f"{target.name} cannot be called as its reference is: on {least} {refused[least]}")
    return replace(target, dtypes=tuple(dtype for dtype in target.dtypes if dtype not in refused), untried={**target.untried, **refused})
