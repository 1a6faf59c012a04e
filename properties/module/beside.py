"""A module beside the one that it is compared with: what each answers to a call, in every way to make it, and the gradients that each sends back."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from functools import cache
from typing import Any

import numpy as np

from ..engine.cases.coordinates import Array
from ..engine.core.ascent import signs
from ..engine.core.declare import GRADIENTS, Property
from ..engine.core.target import NotTaken, Raised, blame, first_line
from ..engine.core.trial import Refuted
from ..engine.frameworks import TRAINING, Buffers, Given, sets_the_seed
from . import bound
from .cases import ALONE, CACHED, FAR, FAR_TYPES, FIRST, LEARNING, MODULE
from .feeding import last_of_chunks, whole_of
from .forms import Form, changed_within
from .own_inputs import LARGEST, OwnInputs, own_inputs
from .speech import Tokens, arguments_of, arrays, call, changed, first_array, hooks, laid_out, read, returned, under
from .subject import duplicate
from .trial import ModuleTrial, or_undropped
from .weights import noise

OUTPUT, GIVEN = "the output", {"x": "the tokens", "memory": "the memory"}  # beside names of parameters
TURNED = "feature_major"  # a layout of tokens
SAYS = "row {row} differs from the reference's"
SLIGHTLY = (2.0**-16, 2.0**-28)  # by how much of themselves tokens are others, and in float64
Bound = Callable[[int], Any]  # of so many runs → how far two answers may be apart


def answers_agree(t: ModuleTrial) -> None:
    """In eval mode, also where the framework is told otherwise than by default that no gradients are asked for; in train mode without dropout."""
    beside = _beside(t)
    fw = t.target.framework
    other, module = _disturbed(t)
    if t.speech.forms:
        _right(beside, lambda: beside.run(other))
    with hooks(fw).still(), t.other_memory():
        first = first_array(t.result(other, module), fw)
        (shape, own, _), (right_shape, others, _) = t.form(first), beside.form(_right(beside, beside.result))
    before = fw.read(first)
    if t.speech.forms and shape != right_shape:
        t.fail(f"it answers with shape {shape}, the reference with {right_shape}")
    if own != others == t.case.dtype:
        t.fail(f"it answers in {own}, the reference in {others}")
    outs = {"": t.run()}
    _arguments_are_unchanged(t, beside)
    t.same_bits(fw.read(first), before, "the answer was changed by the next call at row {row}")
    with t.other_memory(TURNED):
        try:
            outs[" where tokens do not lie row by row"] = t.run()
        except Raised as raised:  # which it may ask for
            if not raised.refuses:
                raise
    with hooks(fw).still():
        usual = fw.way()
    for way, words in fw.ways.items():
        if way not in (usual, TRAINING):
            outs[f" {words}"] = t.run(module=duplicate(t.module), way=way)
    trained = _without_a_change_of_weights(t, beside)
    right = _right(beside, lambda: beside.run())
    allowed = cache(lambda runs: _apart(t, beside, lambda one: one.exact(runs=runs)[1]))
    for how, out in outs.items():
        _agree(t, out, right, allowed, f"{SAYS}{how}")
    if not (_alike(t) and _alike(beside)):
        right = _right(beside, lambda: beside.run(module=beside.trained))
        allowed = cache(lambda runs: _apart(t, beside, lambda one: one.exact(module=one.trained, runs=runs)[1]))

    def undropped() -> None:
        right = _right(beside, lambda: beside.run(module=beside.trained))
        allowed = cache(lambda runs: _apart(t, beside, lambda one: one.exact(module=one.trained, runs=runs)[1]))
        _agree(t, t.run(module=t.trained), right, allowed, f"{SAYS} in train mode")

    or_undropped((t, beside), lambda: _agree(t, trained, right, allowed, f"{SAYS} in train mode"), undropped)
    _other_values_agree(t, beside)
    _other_arrays_agree(t, beside)
    if not t.subject.elsewhere and (left := _left_changed(t)) and left != _left_changed(beside):  # elsewhere every call tells it
        t.fail(f"the call {left}")


def _defined(t: ModuleTrial, right: Array) -> Any:
    """Where an answer of the reference says something: it is a number, or is none of tokens of usual size, either.

    Of large ones, whose exponentials are 0 or ∞ in any type, another way to compute may have the number that the reference has not.
    """
    return np.isfinite(right) if t.case.magnitude in FAR else True


def _disturbed(t: ModuleTrial) -> tuple[Tokens, Any]:
    """Other tokens, all, all but the first, one in the middle, each by a little, or in another order; another memory; or other weights.

    An answer that is remembered by what is the same, by its ends, by its first digits, or by sums, is a wrong one.
    """
    x, places, module = t.inputs, np.arange(t.case.length)[None], t.module
    match t.choice("disturbed", 7):
        case 0 if x.memory is not None:
            return dataclasses.replace(x, memory=1.5 - 2 * x.memory), module
        case 1 if t.case.length > 1:
            return dataclasses.replace(x, x=t.other(x.x, places > 0)), module
        case 2 if t.case.length > 2:
            return dataclasses.replace(x, x=t.other(x.x, places == t.case.length // 2)), module
        case 3 if t.case.dtype in FAR_TYPES:
            return dataclasses.replace(x, x=x.x * (1 + SLIGHTLY[t.case.dtype == "float64"])), module
        case 4:
            return dataclasses.replace(x, x=x.x[:, ::-1] if t.case.length > 1 else x.x[..., ::-1]), module
        case 5:
            return x, t.made(other=1)
    return dataclasses.replace(x, x=1.5 - 2 * x.x), module


def _without_a_change_of_weights(t: ModuleTrial, beside: ModuleTrial) -> Array:
    """The output of a call in train mode. Fails where it changes weights, and that of the reference does not."""
    fw = t.target.framework
    before = {name: fw.read(parameter.data) for name, parameter in t.trained.named_parameters()}
    out = t.run(module=t.trained)
    moved = [
        name
        for name, parameter in t.trained.named_parameters()
        if not np.array_equal(before[name], fw.read(parameter.data), equal_nan=True)
    ]
    if moved:
        others = {name: fw.read(parameter.data) for name, parameter in beside.trained.named_parameters()}
        _right(beside, lambda: beside.run(module=beside.trained))
        if all(np.array_equal(others[name], fw.read(parameter.data)) for name, parameter in beside.trained.named_parameters()):
            t.fail(f"{moved[0]} was changed by a call in train mode")
    return out


def _arguments_are_unchanged(t: ModuleTrial, beside: ModuleTrial) -> None:
    """By a call of the target, where the reference leaves them as they were."""
    name = changed(t.inputs, t.speech, t.buffers)
    if name and not t.subject.elsewhere:
        _right(beside, beside.run)
        if not changed(beside.inputs, beside.speech, beside.buffers):
            t.fail(f"{name} was changed by the call")


def _left_changed(t: ModuleTrial) -> str:
    """What a call does to the process: settings that it leaves changed, or random numbers that it starts anew."""
    fw = t.target.framework
    through = t.subject.through(t.module)
    called = dataclasses.replace(t.target, function=lambda: call(through, t.speech, t.inputs, fw, t.buffers, t.case.dtype, t.case.device))
    with hooks(fw).still():
        if names := called.leaves_changed():
            return f"changed {' and '.join(names)}, and left it so"
        return "sets the seed of the random numbers" if sets_the_seed(fw, t.result) else ""


def _other_values_agree(t: ModuleTrial, beside: ModuleTrial) -> None:
    """Where values are made of other tokens than keys are, if these are arguments of their own."""
    if not {"key", "value"} <= set(t.speech.roles.values()):
        return
    memory = t.inputs.x if t.inputs.memory is None else t.inputs.memory
    tokens = dataclasses.replace(t.inputs, values=t.other(memory, np.array(True)))
    try:
        right = beside.run(tokens)
    except Raised:
        return  # which takes them alike alone
    _agree(
        t,
        t.run(tokens),
        right,
        lambda runs: _apart(t, beside, lambda one: one.exact(tokens, runs=runs)[1]),
        f"{SAYS} where values are of other tokens than keys",
    )


def nan_is_not_hidden(t: ModuleTrial) -> None:
    """An error upstream must not vanish. Asked where weights are those of a softmax: of max(x, 0) a kernel may have 0."""
    beside, at = _beside(t), (t.choice("batch", t.case.batch), t.choice("token", t.case.length))
    x = t.inputs.x.copy()
    x[at][t.choice("feature", x.shape[2])] = np.nan
    tokens = dataclasses.replace(t.inputs, x=x)
    right = _right(beside, lambda: beside.run(tokens))
    own = t.run(tokens)
    if own.shape == right.shape and np.isnan(right[at]).all() and not np.isnan(own[at]).all():
        t.fail(f"a NaN in token {at[1]} is hidden: its row has numbers, the reference's has none")


def _other_arrays_agree(t: ModuleTrial, beside: ModuleTrial) -> None:
    """What comes back beside the output: of a candidate the very same, else what both give."""
    fw = t.target.framework
    with hooks(fw).still():
        own, right = t.result(), _right(beside, beside.result)
    forms = [returned(x, fw) for x in (own, right)]
    if forms[0] != forms[1]:
        if t.subject.elsewhere:
            t.fail(f"it answers with {forms[0]}, the reference with {forms[1]}")
        return  # which is told of the pair
    others, right_others = ([fw.read(a) for a in arrays(x, fw)[1:]] for x in (own, right))
    if not others:
        return

    def followed(one: ModuleTrial, runs: int) -> list[tuple[Array, Array]]:
        def numbers(double: Any) -> list[Array]:
            result = call(double, one.speech, one.inputs, fw, Buffers(fw), "float64", one.case.device)
            return [np.atleast_1d(fw.read(x)) for x in arrays(result, fw)[1:]]

        return _scattered(one, numbers, runs, "what comes back beside the output")

    found = cache(followed)
    for number, (x, y) in enumerate(zip(others, right_others, strict=True)):

        def allowed(runs: int, number: int = number) -> Array:
            return _apart(t, beside, lambda one: found(one, runs)[number][1])

        _agree(t, np.atleast_1d(x), np.atleast_1d(y), allowed, f"of array {number + 2} that comes back {SAYS}")


def larger_answers_agree(t: ModuleTrial) -> None:
    """The same of larger inputs. They may be refused by raising, where the reference is not called with such."""
    try:
        answers_agree(t)
    except Raised as raised:
        if t.facts.own or not raised.refuses:
            raise
        raise NotTaken(f"sequences of {t.case.length} tokens") from None


def own_inputs_agree(t: ModuleTrial) -> None:
    """Of a call by position with what ``get_inputs`` of the reference gives, as much as is worth its time.

    How far an answer may be off is followed for the sequence that differs most, alone: nothing is said where the reference mixes them.
    """
    beside, fw = _beside(t), t.target.framework
    inputs = _own_inputs(t)
    count, given = inputs.count, inputs.sequences(slice(0, inputs.count), fw)
    try:
        right_result = _called_with(beside, beside.module, given)
    except Raised as raised:
        raise NotTaken(f"what get_inputs() gives, at which the reference {blame(raised)}") from None
    own_result = _called_with(t, t.module, given)
    if t.subject.elsewhere and (forms := [returned(x, fw) for x in (own_result, right_result)])[0] != forms[1]:
        t.fail(f"it answers get_inputs() with {forms[0]}, the reference with {forms[1]}")
    own, right = (np.atleast_2d(fw.read(first_array(x, fw))) for x in (own_result, right_result))
    if own.shape != right.shape:
        t.fail(f"it answers get_inputs() with shape {own.shape}, the reference with {right.shape}")
    with np.errstate(invalid="ignore"):
        off = np.where((own == right) | (np.isnan(own) & np.isnan(right)), 0.0, np.nan_to_num(np.abs(own - right), nan=np.inf))
    which = f"called with get_inputs(){f', {inputs.fewer},' if inputs.fewer else ''} row {{row}}"
    if not off.any():
        t.close(own, right, np.zeros(own.shape), f"{which} differs from the reference's")
        return

    def followed(one: ModuleTrial, alone: Sequence[Any]) -> tuple[Array, Array]:
        def numbers(double: Any) -> list[Array]:
            return [np.atleast_2d(fw.read(first_array(double(*_as_type(alone, "float64", fw)), fw)))]

        return _scattered(one, numbers, len(bound.SAMPLES), "what get_inputs() gives")[0]

    alone, rows, exact = given, slice(None), None
    if len(off) == count:
        worst = int(np.argmax(off.reshape(count, -1).max(1)))
        alone, rows = inputs.sequences(slice(worst, worst + 1), fw), slice(worst, worst + 1)
        exact = followed(beside, alone)
        which += f" of sequence {worst}"
    if exact is None or not _is_alone(t, right[rows], exact):
        if inputs.each * count > LARGEST:
            raise NotTaken("what get_inputs() gives, of which no sequence is answered alone as beside the others")
        alone, rows, exact = given, slice(None), followed(beside, given)
    allowed = _apart(t, beside, lambda one: exact[1] if one is beside else followed(one, alone)[1])
    t.close(own[rows], right[rows], allowed, f"{which} differs from the reference's")


def _own_inputs(t: ModuleTrial) -> OwnInputs:
    """What ``get_inputs`` gives. Raises NotTaken where it is too large."""
    assert t.facts.inputs is not None
    own = own_inputs(t.facts.inputs, t.speech, t.target.framework, t.case.seed)
    if own.each > LARGEST:
        raise NotTaken("what get_inputs() gives, whose rounding takes too long to follow")
    return own


def _scattered(t: ModuleTrial, numbers: Callable[[Any], list[Array]], runs: int, what: str) -> list[tuple[Array, Array]]:
    """Arrays that a module in float64 gives, and how far each may be off. Raises NotTaken where that cannot be followed."""
    fw = t.target.framework

    def run(double: Any, mode: tuple[Any, ...]) -> list[Array]:
        opened = under(double, fw, *mode) if mode else nullcontext()
        with hooks(fw).still(), np.errstate(all="ignore"), fw.chance(0), opened:
            return numbers(double)

    try:
        return bound.scattered(t.subject, t.module, run, t.case.dtype, t.case.seed * 31 + 7, runs, t.anew)
    except NotTaken:
        raise
    except (Exception, SystemExit) as error:
        raise NotTaken(f"{what} ({type(error).__name__}: {first_line(error)})") from None


def _is_alone(t: ModuleTrial, answer: Array, exact: tuple[Array, Array]) -> bool:
    """Whether the answer to a sequence beside others is that to it alone."""
    return answer.shape == exact[0].shape and not t.apart(answer, *exact)


def _as_type(inputs: Sequence[Any], dtype: str, fw: Any) -> list[Any]:
    """Copies, numbers in that type."""

    def one(x: Any) -> Any:
        shape, own, device = fw.describe(x)
        return fw.assign(fw.full(shape, 0, dtype if own in bound.UNITS else own, device), fw.read(x))

    made: list[Any] = changed_within(list(inputs), one, fw.is_array)
    return made


def _called_with(t: ModuleTrial, module: Any, inputs: Sequence[Any]) -> Any:
    fw = t.target.framework
    called = dataclasses.replace(t.target, function=lambda: t.subject.through(module)(*_as_type(inputs, t.case.dtype, fw)))
    with hooks(fw).still(), fw.chance(t.case.seed):
        return called.apply()


def cached_answers_agree(t: ModuleTrial) -> None:
    """The last chunk of tokens that are fed to a cache."""
    beside = _beside(t)
    with hooks(t.target.framework).still():  # of what is recorded elsewhere the output alone comes back, without its cache
        out = last_of_chunks(t)
        right = _right(beside, lambda: last_of_chunks(beside))
    whole = whole_of(t.speech.keeping, t.inputs.x)
    rows = np.s_[:, -out.shape[1] :]
    _agree(t, out, right, lambda runs: 2 * _apart(t, beside, lambda one: one.exact(whole, runs=runs)[1][rows]), SAYS)


def _beside(t: ModuleTrial) -> ModuleTrial:
    """The trial of the reference, whose modules have the weights of the target's."""
    assert t.target.like is not None
    beside = ModuleTrial(t.target.like, t.case)
    beside.like, beside.given = t, t.given
    return beside


def _right(beside: ModuleTrial, answer: Callable[[], Any]) -> Any:
    try:
        return answer()
    except NotTaken:
        raise
    except Raised as raised:
        if beside.speech.forms:  # of which nobody has said which numbers they may hold
            raise NotTaken(f"numbers at which the reference {blame(raised)}") from None
        beside.fail(f"it answers, and the reference {blame(raised)}")
        raise


def _alike(t: ModuleTrial) -> bool:
    """Whether it is the same function in train mode, so that its bound is the same."""
    if t.subject.elsewhere:
        return True
    in_eval, in_train = (t.exact(module=module, runs=0)[0] for module in (t.module, t.trained))
    return np.array_equal(in_eval, in_train, equal_nan=True)


def _apart(t: ModuleTrial, beside: ModuleTrial, allowed: Callable[[ModuleTrial], Array]) -> Array:
    """How far two answers may be apart; a target whose rounding cannot be followed may be off by as much as its reference."""
    return 2 * allowed(beside) if t.subject.elsewhere else allowed(t) + allowed(beside)


def _agree(t: ModuleTrial, actual: Array, expected: Array, allowed: Bound, says: str, where: Any = True) -> None:
    """What is within a part of the bound, from one run, is within the whole, which takes more than three times as long."""
    if np.shape(actual) != np.shape(expected):
        t.fail(f"it answers with shape {np.shape(actual)}, the reference with {np.shape(expected)}")
    where = where & _defined(t, expected)
    part = allowed(1)
    whole = t.apart(np.where(where, actual, expected), expected, part) or (part == np.inf).any()
    t.close(actual, expected, allowed(len(bound.SAMPLES)) if whole else part, says, where)


# ---------------------------------------------------------------- gradients


def gradients_agree(t: ModuleTrial) -> None:
    """What a loss on the output sends back to tokens, memory and weights, in eval mode, or in train mode without dropout.

    Nothing is said of gradients of an answer that differs without them, too.
    """
    _unless_answers_differ(t, _gradients_agree, answers_agree)


def own_gradients_agree(t: ModuleTrial) -> None:
    """The same of a call with the first sequence that ``get_inputs`` of the reference gives, to its arguments and weights."""
    t.given = _own_inputs(t).sequences(slice(0, 1), t.target.framework)
    _unless_answers_differ(t, _gradients_agree, own_inputs_agree)


def _unless_answers_differ(t: ModuleTrial, gradients: Callable[[ModuleTrial], None], answers: Callable[[ModuleTrial], None]) -> None:
    try:
        gradients(t)
    except Refuted:
        try:
            answers(ModuleTrial(t.target, t.case))
        except Refuted:
            raise NotTaken("gradients of an answer that differs") from None
        raise


def _gradients_agree(t: ModuleTrial) -> None:
    beside = _beside(t)
    training = t.choice("mode", 2) == 1

    def agree() -> None:
        _gradients_agree_in(training, t, beside)

    or_undropped((t, beside), agree, agree) if training else agree()


def _gradients_agree_in(training: bool, t: ModuleTrial, beside: ModuleTrial) -> None:
    mode = "in train mode" if training else "in eval mode"
    weights = dict(beside.module.named_parameters())
    learns = any(parameter.requires_grad for parameter in weights.values())
    first = learns and t.given is None and t.choice("first layer", 3) == 0  # of which no gradient of tokens is asked
    given = [form.name for form in t.speech.forms if isinstance(form, Form) and form.dtype in bound.UNITS]
    asked = () if first or t.speech.layout == "ld" else tuple(given or GIVEN)
    try:
        right = _sent_back(beside, beside.trained if training else beside.module, asked)
    except Raised as raised:
        raise NotTaken(f"gradients, for which the reference {blame(raised)}") from None
    try:
        own = _sent_back(t, t.trained if training else t.module, asked)
    except Raised as raised:
        if "does not require grad" not in str(raised):  # as PyTorch says it
            raise
        t.fail(f"no gradient reaches anything {mode}: the output is detached from all")
        raise

    @cache
    def allowed(one: ModuleTrial, runs: int) -> dict[str, Array]:
        return _gradients_allowed(one, training, asked, runs)

    for name in right:
        if name not in weights:
            says = f"{SAYS} {mode}, with gradients recorded" if name == OUTPUT else _says(name, own, mode)
            found = own.get(name, np.zeros_like(right[name]))
            _agree(t, found, right[name], lambda runs, name=name: _apart(t, beside, lambda one: allowed(one, runs)[name]), says)  # type: ignore[misc]
    _of_weights_agree(t, beside, own, right, allowed, mode)


def _of_weights_agree(
    t: ModuleTrial,
    beside: ModuleTrial,
    own: Mapping[str, Array],
    right: Mapping[str, Array],
    allowed: Callable[[ModuleTrial, int], Mapping[str, Array]],
    mode: str,
) -> None:
    """Those of every parameter of the reference, beside those numbers of the target's that stand in it."""
    shapes = {name: tuple(parameter.shape) for name, parameter in t.module.named_parameters()}
    ends = np.cumsum([np.prod(shape) for shape in shapes.values()])

    def in_a_row(arrays: Mapping[str, Array]) -> Array:
        return np.concatenate([np.zeros(1), *(np.ravel(arrays.get(name, np.zeros(shape))) for name, shape in shapes.items())])

    gradients = in_a_row(own)
    for name, place in _places(t, beside).items():
        owners = np.where(place > 0, np.searchsorted(ends, place), -1)
        for number in np.unique(owners) if name in right else ():
            if number >= 0:

                def apart(runs: int, name: str = name, place: Array = place) -> Array:
                    return _apart(t, beside, lambda one: allowed(one, runs)[name] if one is beside else in_a_row(allowed(t, runs))[place])

                _agree(t, gradients[place], right[name], apart, _says(list(shapes)[number], own, mode), owners == number)


def _says(name: str, found: Mapping[str, Array], mode: str) -> str:
    return f"the gradient of {name} is not the reference's {mode}" if name in found else f"no gradient reaches {name} {mode}"


def _places(t: ModuleTrial, beside: ModuleTrial) -> dict[str, Array]:
    """For every parameter of the reference, which number of the target's weights, counted from 1, stands where; 0: none of them.

    Raises NotTaken where the weights are more than rearranged.
    """
    fw = t.subject.framework
    own, other = bound.twin(t.subject, t.module), bound.twin(beside.subject, beside.module)
    count = 0
    for parameter in own.parameters():
        size = int(np.prod(tuple(parameter.shape)))
        fw.assign(parameter.data, 1.0 + count + np.arange(size).reshape(tuple(parameter.shape)))
        count += size
    for parameter in other.parameters():
        fw.assign(parameter.data, np.zeros(tuple(parameter.shape)))
    assert beside.subject.take is not None
    beside.subject.take(other, own)
    found = {name: fw.read(parameter.data) for name, parameter in other.named_parameters()}
    if any((x != np.round(x)).any() or (x < 0).any() or (x > count).any() for x in found.values()):
        raise NotTaken("gradients of weights that are more than rearranged")
    return {name: np.atleast_1d(x.astype(int)) for name, x in found.items()}


def _sent_back(t: ModuleTrial, module: Any, asked: Collection[str]) -> dict[str, Array]:
    """The output of a call that is recorded, and the gradients that come back, by name; of tokens those that are ``asked``. Raises Raised."""
    called = dataclasses.replace(t.target, function=lambda: _recorded(t, module, t.case.dtype, asked, between=t.like is None))
    found: dict[str, Array] = called.apply()
    return found


def _gradients_allowed(t: ModuleTrial, training: bool, asked: Collection[str], runs: int) -> dict[str, Array]:
    """How far each of them may be off. Raises NotTaken where that cannot be followed."""
    names: list[str] = []

    def run(double: Any, mode: tuple[Any, ...]) -> list[Array]:
        found = _recorded(t, double, "float64", asked, mode)
        names[:] = found
        return list(found.values())

    def anew() -> Any:
        return t.training(t.anew()) if training else t.anew()

    try:
        found = bound.scattered(t.subject, t.trained if training else t.module, run, t.case.dtype, t.case.seed * 31 + 7, runs, anew)
    except NotTaken:
        raise
    except (Exception, SystemExit) as error:
        raise NotTaken(f"gradients whose rounding cannot be followed ({type(error).__name__}: {first_line(error)})") from None
    return {name: off for name, (_, off) in zip(names, found, strict=True)}


def _recorded(
    t: ModuleTrial, module: Any, dtype: str, asked: Collection[str], mode: tuple[Any, ...] = (), between: bool = False
) -> dict[str, Array]:
    """Whatever is raised passes. ``between``: another call is made before gradients are sent back through this one."""
    fw, speech, device = t.subject.framework, t.speech, t.case.device
    parameters = dict(module.named_parameters())
    for parameter in parameters.values():
        parameter.grad = None
    with np.errstate(all="ignore"), fw.chance(t.case.seed), under(module, fw, *mode) if mode else nullcontext():
        if t.given is None:
            laid = Buffers(fw)
            arguments_of(speech, t.inputs, fw, laid, dtype, device)
            leaves = {name: hooks(fw).leaf(array) for name, array in laid.arrays() if name in asked}
            passed = Given(fw, {name: hooks(fw).as_passed(leaf) for name, leaf in leaves.items()})
            out = first_array(call(t.subject.through(module), speech, t.inputs, fw, passed, dtype, device), fw)
            if between:  # what a backward pass needs belongs to its call, and not to the last one
                other = dataclasses.replace(t.inputs, x=1.5 - 2 * t.inputs.x)
                call(t.subject.through(module), speech, other, fw, Buffers(fw), dtype, device)
        else:
            given = _as_type(t.given, dtype, fw)
            places = [at for at, x in enumerate(given) if asked and fw.is_array(x) and fw.describe(x)[1] in bound.UNITS]
            given = [hooks(fw).leaf(x) if at in places else x for at, x in enumerate(given)]
            leaves = {f"argument {at + 1}": given[at] for at in places}
            out = first_array(t.subject.through(module)(*given), fw)
        shape, kind, _ = fw.describe(out)
        order = np.arange(int(np.prod(shape))).reshape(shape)
        if t.given is None:
            order = read(fw.assign(fw.full(shape, 0.0, "float64", device), order), speech, fw).astype(int)
        loss = np.zeros(int(np.prod(shape)))
        loss[order] = signs(noise(t.case.seed, "signs", order.shape))  # the same for both, whatever their axes
        hooks(fw).send_back(out, fw.assign(fw.full(shape, 0.0, kind, device), loss.reshape(shape)))
    found = {OUTPUT: read(out, speech, fw) if t.given is None else np.atleast_1d(fw.read(out))}
    for name, leaf in leaves.items():
        if leaf.grad is None:
            continue
        gradient = fw.read(leaf.grad)
        tokens = getattr(t.inputs, name) if name in GIVEN and t.given is None else None
        if tokens is not None:
            at = laid_out(np.arange(tokens.size).reshape(tokens.shape), speech, name)
            rows = np.zeros(tokens.size)
            rows[at.ravel()] = gradient.ravel()
            gradient = rows.reshape(tokens.shape)
        found[GIVEN.get(name, name)] = np.atleast_1d(gradient)
    return found | {name: np.atleast_1d(fw.read(p.grad)) for name, p in parameters.items() if p.grad is not None}


def _of_a_pair(
    name: str, statement: str, formula: str, check: Callable[[ModuleTrial], None], once: bool = False, edge: str = "", **domain: Any
) -> Property:
    return Property(name, "pair", statement, formula, check, MODULE.name, (), False, False, edge, domain, once)


ALIKE = "The same call gives the same answer as the reference's, within what rounding explains in both."
BESIDE = (
    _of_a_pair("answers_are_those_of_the_reference", ALIKE, "|a(x) − b(x)| ≤ E_a + E_b", answers_agree, dtypes="all", far=True, **FIRST),
    _of_a_pair(
        "cached_answers_are_those_of_the_reference", ALIKE, "|a(x) − b(x)| ≤ E_a + E_b", cached_answers_agree, dtypes="all", **CACHED
    ),
    _of_a_pair(
        "answers_to_larger_inputs_are_those_of_the_reference",
        ALIKE,
        "|a(x) − b(x)| ≤ E_a + E_b",
        larger_answers_agree,
        True,
        about=("larger",),
        **FIRST,
    ),
    _of_a_pair(
        "answers_to_its_own_inputs_are_those_of_the_reference",
        ALIKE,
        "|a(x) − b(x)| ≤ E_a + E_b",
        own_inputs_agree,
        True,
        about=("inputs",),
        **ALONE,
    ),
    _of_a_pair(
        "nan_of_a_token_is_that_of_the_reference",
        "A token with a NaN in it is answered with NaN where the reference answers so.",
        "b(x) is NaN ⇒ a(x) is NaN",
        nan_is_not_hidden,
        edge="NaN",
        about=("rows", "sum to one", "tokens"),
        padded=False,
    ),
    _of_a_pair(
        GRADIENTS,
        "A loss on the output sends back the same gradients as through the reference, within what rounding explains in both.",
        "|∂a/∂w − ∂b/∂w| ≤ E_∂a + E_∂b",
        gradients_agree,
        **LEARNING,
    ),
    _of_a_pair(
        f"{GRADIENTS}_for_its_own_inputs",
        "A loss on the output sends back the same gradients as through the reference, within what rounding explains in both.",
        "|∂a/∂w − ∂b/∂w| ≤ E_∂a + E_∂b",
        own_gradients_agree,
        True,
        about=("gradients", "inputs"),
        **ALONE,
    ),
)
