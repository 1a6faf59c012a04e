"""A module in another process, which nobody vouches for, called as its reference is: KernelBench's ``ModelNew`` beside ``Model``.

The reference is trusted and lies here; its twin in float64 says how far both may be off. What is asked of the other one is its
parameters, once, and answers with weights that it is given.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from ..engine.cases.dtypes import FLOAT_TYPES
from ..engine.contained.link import Gone, NoMoreCalls
from ..engine.contained.values import ITEMSIZE, contiguous
from ..engine.core.pace import Pace
from ..engine.core.target import CannotRun, Raised, Target, blame
from ..engine.frameworks import Answered, Buffers, sets_the_seed
from .cases import USUAL
from .forms import forms_of
from .held import RECORDED, ArgumentChanged, ProcessChanged
from .own_inputs import LARGEST, fewer_tokens, own_inputs
from .speech import Speech, call, changed, hooks
from .subject import Facts, Subject, answer, of_instance, tokens_for

MOST = 10_000  # parameters
MOST_TOKENS, LONGEST = 2048, 256  # of inputs that many cases are drawn with, and of one sequence: more cost too much
MOST_WORK = 2**21  # numbers of a call with larger ones, of which fewer sequences are taken; of one long sequence twice as many
LONG = (509, 253, 125)  # tokens of a longer one: within what tables are made for, and no whole number of tiles
IMAGES = (484, 256, 121)  # the same of an image, which may have to be a square, of an even side
PRODUCTS = 500  # multiplications that take as long as all that becomes of one number, where rounding is followed


def held_to(reference: Target, contain: Callable[[str], Any], name: str) -> Target:
    """The module that a stub stands for, as a target that is called like the reference; its address is its attribute.

    ``contain``: with a call in parentheses, or nothing. A function is called with what the reference is made with, and makes the module.
    Raises CannotRun, and NoMoreCalls where the time for calls is over.
    """
    other: Subject = reference.function  # type: ignore[assignment]
    fw = other.framework
    assert fw.modules is not None
    prototype = other.module("float64", "cpu", 0)
    beside = getattr(type(prototype).forward, "__globals__", {})
    stub = contain("")
    if stub.type == "function" and callable(given := beside.get("get_init_inputs")):
        stub = contain(_as_call(given()))
    if not stub.is_module:
        raise CannotRun(f"it is no module, and {reference.name} is one")
    if "ScriptModule" in stub.type:
        raise CannotRun(
            "it is a scripted module, through whose copies no gradient reaches a weight: give a class that makes it in __init__"
        )
    makes = beside.get("get_init_inputs") if stub.is_class else None
    given = makes() if callable(makes) else []

    liberties = _liberties(other, prototype)

    formal = _formal(type(prototype).forward)

    def run(module: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        arguments, options = _in_their_places(formal, arguments, options)
        return _asked(fw, stub, given, module, arguments, options, liberties)

    try:
        held = stub.held(fw, "weights", given)
        if not isinstance(held, list) or len(held) > MOST:
            raise TypeError(f"its parameters are {type(held).__name__}")
        shadow = fw.modules.shadow({str(key): array for key, array in held}, run)
    except Gone as gone:
        raise CannotRun(f"{name} {gone}") from None
    except Exception as error:
        raise CannotRun(f"{name} cannot be made: {type(error).__name__}: {str(error)[:200]}") from None
    own_inputs = beside.get("get_inputs")
    size, untried = _given(own_inputs, other)
    own = size is not None and (size[0] * size[1] > MOST_TOKENS or size[1] > LONGEST)
    facts = replace(other.facts, given=None if own else size, larger=size if own else _longer(other, prototype), own=own)
    speech = replace(other.speech, doubled="")  # it is asked in the types that it takes, as it is
    if own_inputs is not None:
        speech, without = _without(speech, formal, stub.held(fw, "formal", given))
        untried |= dict.fromkeys(without, "the candidate does not take it, and get_inputs() does not give it")
    subject = replace(other, name=name, maker=of_instance(shadow), structure=None, elsewhere=True, facts=facts, speech=speech)
    reference = replace(reference, untried={**reference.untried, **untried})
    target = replace(reference, name=name, function=subject, address=stub.attribute or "module", pace=Pace())
    return _in_its_types(target, reference.kind)


def _as_call(inputs: Any) -> str:
    """What ``get_init_inputs()`` returns as the arguments of a call, in parentheses."""
    match inputs:
        case dict():
            positional, named = [], inputs
        case [list() | tuple() as first, dict() as second]:
            positional, named = list(first), second
        case _:
            positional, named = list(inputs), {}
    return f"({', '.join([*map(repr, positional), *(f'{key}={value!r}' for key, value in named.items())])})"


def _asked(fw: Any, stub: Any, given: Any, module: Any, arguments: Any, options: dict[str, Any], liberties: dict[str, bool]) -> Any:
    """What is answered over there to the call of a shadow; gradients of its weights, and of the arguments, go back through what it gives."""
    weights = list(module.parameters())
    places: dict[int, tuple[Any, list[int | str]]] = {}  # one array may be several arguments
    given_at: list[tuple[int | str, Any]] = [*enumerate(arguments), *options.items()]
    for at, x in given_at:
        if fw.is_array(x) and fw.asks(x):
            places.setdefault(id(x), (x, []))[1].append(at)
    leaves = [*(weight for weight in weights if fw.asks(weight)), *(x for x, _ in places.values())]
    turned = [at for at, x in given_at if fw.is_array(x) and _turned(x, fw)]
    called = given, [weight.data for weight in weights], list(arguments), options
    asked = [at for _, at in places.values()]
    how = {"training": module.training, "way": RECORDED if leaves else fw.way(), "asked": asked, "turned": turned, **liberties}
    if not leaves:
        return stub.held(fw, "answer", *called, how)

    def send_back(grad_out: Any, again: bool = False) -> list[Any]:
        return list(stub.held(fw, "sent_back", *called, how, grad_out[0]))

    def run(_: Sequence[Any]) -> Answered:
        out, carries = stub.held(fw, "answer", *called, how)
        return [out], [carries is True], send_back

    return fw.bridged(run, leaves)[0]


def _formal(forward: Callable[..., Any]) -> list[inspect.Parameter]:
    """The parameters of a reference that may come by position, but for ``self``."""
    formal = list(inspect.signature(forward).parameters.values())[1:]
    return list(itertools.takewhile(lambda parameter: parameter.kind == parameter.POSITIONAL_OR_KEYWORD, formal))


def _without(speech: Speech, formal: Sequence[inspect.Parameter], taken: Any) -> tuple[Speech, list[str]]:
    """How both are called where a candidate has no place for a mask, a flag or a cache of the reference; and the names of these.

    ``taken``: the names of the candidate's parameters; empty where it takes whatever comes.
    """
    names = taken if isinstance(taken, list) else []
    gone = [p.name for at, p in enumerate(formal) if names and at >= len(names) and p.name not in names]
    masks = [saying for saying in speech.masks if saying.parameter not in gone]
    kept = (
        speech.keeping if speech.keeping and not {speech.keeping.parameter, speech.keeping.flag, speech.keeping.where} & {*gone} else None
    )
    spoken = {*(saying.parameter for saying in speech.masks), speech.flag, *([speech.keeping.parameter] if speech.keeping else [])}
    flag = "" if speech.flag in gone else speech.flag
    return replace(speech, mask=masks[0] if masks else None, more=tuple(masks[1:]), flag=flag, keeping=kept), [
        n for n in gone if n in spoken
    ]


def _in_their_places(
    formal: Sequence[inspect.Parameter], arguments: tuple[Any, ...], options: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A call by position, up to the last argument that is given: a candidate may have other names."""
    defaults = {parameter.name: parameter.default for parameter in formal}
    left, placed = {name: x for name, x in options.items() if x is not None or defaults.get(name, 0) is not None}, list(arguments)
    for parameter in formal[len(arguments) :]:
        if not any(other.name in left for other in formal[len(placed) :]) or (
            parameter.name not in left and parameter.default is parameter.empty
        ):
            break
        placed.append(left.pop(parameter.name, parameter.default))
    return tuple(placed), left


def _liberties(subject: Subject, module: Any) -> dict[str, bool]:
    """Whether a call of the reference ``writes`` into what it is given, and whether it ``changes`` the process: its settings, or the seed of
    random numbers.
    """
    fw, buffers = subject.framework, Buffers(subject.framework)
    tokens = tokens_for(subject.speech, 2, (subject.facts.lengths or (5,))[0], None if subject.facts.sees_itself else 5)
    names: list[str] = []
    seeds = False

    def once() -> None:
        with fw.settings_kept() as now:
            call(module, subject.speech, tokens, fw, buffers, "float64", "cpu")
            names.extend(now())

    with suppress(Exception), hooks(fw).still():
        seeds = sets_the_seed(fw, once)
    return {"writes": bool(changed(tokens, subject.speech, buffers)), "changes": bool(names) or seeds}


def _turned(x: Any, fw: Any) -> bool:
    """Whether an array of numbers does not lie row by row, which it does again where it arrives."""
    shape, dtype, _ = fw.describe(x)
    return dtype in FLOAT_TYPES and bool(fw.lies(x)[1] != contiguous(shape, ITEMSIZE[dtype]))


def _given(makes: Any, subject: Subject) -> tuple[tuple[int, int] | None, dict[str, str]]:
    """(sequences, and tokens of each, of the first inputs that the reference is called with, or None; what of them is not tried).

    Of one call: rounding is followed on the CPU, in float64.
    """
    if not callable(makes):
        return None, {}
    if subject.speech.forms:
        sequences = forms_of(makes, subject.framework, True)[1]
        return (min(sequences, subject.facts.most or sequences), 1), {}
    try:
        own = own_inputs(makes, subject.speech, subject.framework)
        shape = tuple(int(size) for size in own.inputs[0].shape)
    except Exception as error:
        return None, {"its own inputs": f"get_inputs() raised {type(error).__name__}"}
    facts, width = subject.facts, subject.speech.width
    told = {"its own inputs as a whole": f"{own.fewer} at a time"} if own.fewer else {}
    if own.each > LARGEST:
        told = {"its own inputs": "they are too large for their rounding to be followed"}
    batch, length, features = _sizes(shape, subject.speech)
    few = facts.lengths and not subject.speech.of_an_image  # those of images are examples
    while not facts.lengths and _work(subject, length) > LARGEST and length > 1:
        length = fewer_tokens(length)
    each = _work(subject, length)
    if features != width or each > LARGEST or not (length in facts.lengths if few else facts.shortest <= length):
        return None, told
    return (max(min(batch, MOST_WORK // each), 1), length), told


def _sizes(shape: tuple[int, ...], speech: Speech) -> tuple[int, int, int]:
    """(sequences, tokens of each, features) of an array in the axes of a module; zeros where it has others, or is an image of other sides."""
    match speech.layout, shape:
        case "bld", (batch, length, features):
            return batch, length, features
        case "lbd", (length, batch, features):
            return batch, length, features
        case "bdl", (batch, features, length):
            return batch, length, features
        case (("bhwd" | "bssd"), (batch, high, wide, features)):
            pass
        case (("bdhw" | "bdss"), (batch, features, high, wide)):
            pass
        case _:
            return 0, 0, 0
    return (batch, high * wide, features) if speech.sides(high * wide) == (high, wide) else (0, 0, 0)


def _work(subject: Subject, length: int) -> int:
    """Of a call with one sequence, in numbers of which the rounding is followed."""
    width = subject.speech.width
    products = length * width * (4 * width + 2 * length)  # of projections, logits and sums
    return length * (8 * width + subject.speech.heads * length) + products // PRODUCTS


def _longer(subject: Subject, prototype: Any) -> tuple[int, int] | None:
    """One sequence, longer than those of other cases, which the reference takes; None if it takes none."""
    facts, image = subject.facts, subject.speech.of_an_image
    if (facts.lengths and not image) or facts.longest < Facts.longest:
        return None
    for length in IMAGES if image else LONG:
        if _work(subject, length) <= 2 * MOST_WORK:
            with suppress(Exception):
                out = answer(subject, prototype, tokens_for(subject.speech, 1, length, None if facts.sees_itself else length))
                if np.isfinite(out).all():
                    return 1, length
    return None


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
            elif raised.refuses and type(raised.error).__name__ not in (ArgumentChanged.__name__, ProcessChanged.__name__):
                refused[dtype] = f"it {blame(raised)}"
    if gone and len(gone) + len(refused) == len(target.dtypes):
        raise CannotRun(f"{target.name} {gone[0]}")
    least = USUAL if USUAL in target.dtypes else target.dtypes[0]
    if least in refused:
        raise CannotRun(f"{target.name} cannot be called as its reference is: on {least} {refused[least]}")
    return replace(target, dtypes=tuple(dtype for dtype in target.dtypes if dtype not in refused), untried={**target.untried, **refused})
