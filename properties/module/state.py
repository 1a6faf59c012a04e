"""What a call leaves behind, and what depends on the mode: nothing."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ..engine.cases.coordinates import Array
from ..engine.core.declare import declare
from ..engine.core.target import NotTaken, Raised
from .candidates import by_heads
from .cases import FIRST, LEARNING, MANY, MODULE
from .names import FORWARD_ROLES, POSITIONS, role
from .speech import Tokens, arrays, changed, first_array, hooks, under
from .subject import dropouts, set_dropout
from .trial import ModuleTrial, or_undropped
from .weights import noise

module = partial(declare, contract=MODULE.name)
TOLD = ("position ids", "position row", "start")  # roles of arguments that say where tokens stand, and nothing else


@module("out(x) = out(x), the same bits", exact=True, dtypes="all", **FIRST)
def module_the_same_call_gives_the_same_bits(t: ModuleTrial) -> None:
    """In eval mode the same call gives the same bits, whatever random numbers were drawn before."""
    first = t.run()
    with t.target.framework.chance(t.case.seed + 1), hooks(t.target.framework).still():
        again = t.result()
    t.same_bits(t.read(again, t.inputs), first, "the same call gave other bits at row {row}")


@module("arguments after = before", exact=True, dtypes="all")
def module_arguments_are_unchanged(t: ModuleTrial) -> None:
    """A call does not write into tokens, memory or mask."""
    t.run()
    if name := changed(t.inputs, t.speech, t.buffers):
        t.fail(f"{name} was changed by the call")


@module("parameters and buffers after = before", exact=True)
def module_weights_are_unchanged(t: ModuleTrial) -> None:
    """A call in eval mode writes into no parameter and no buffer."""
    fw = t.target.framework
    before = {name: fw.read(held) for name, held in t.module.state_dict().items() if fw.is_array(held)}
    t.run()
    for name, held in t.module.state_dict().items():
        if name in before and not np.array_equal(fw.read(held), before[name], equal_nan=True):
            t.fail(f"{name} was changed by the call")


@module("out(x) after other calls = out(x)", exact=True, length=MANY, memory=(None, None, None, 5))
def module_nothing_is_remembered(t: ModuleTrial) -> None:
    """Calls in between, with other tokens, another mask, another length, another batch, do not change a bit of the answer.

    What tells positions apart may be kept as a table, which a longer sequence rounds otherwise.
    """
    x, first = t.inputs, t.run()
    others = [replace(x, x=1.5 - 2 * x.x)]
    if x.visible is not None:  # a mask may be kept by its shape
        shown = replace(x, visible=np.ones_like(x.visible))
        with t.other_memory():  # what is kept may be a view of it
            fresh = t.run(shown, t.made())
            _as_before(t, t.run(shown), fresh, shown, "row {row} of a call with another mask is another one after this call")
    if not t.facts.lengths:
        longer = min(t.case.length + 3, t.facts.longest)
        others += [Tokens(t.tokens("longer", longer, x.x.shape[2]), x.memory, None, x.is_causal)]
        others += [Tokens(x.x[:1, :1], None if x.memory is None else x.memory[:1], None, x.is_causal)]
    for other in others:
        fresh = t.run(other, t.made())
        _as_before(t, t.run(other), fresh, other, "row {row} of another call is another one after this call")
    _as_before(t, t.run(), first, x, "row {row} is another one after other calls")


def _as_before(t: ModuleTrial, actual: Array, expected: Array, tokens: Tokens, says: str) -> None:
    if t.facts.positions:
        t.agree(actual, expected, lambda: 2 * t.allowed(tokens, t.made()), says)
    else:
        t.same_bits(actual, expected, says)


@module("an answer stays what it was", exact=True)
def module_an_answer_stays(t: ModuleTrial) -> None:
    """A later call does not write into the answer to an earlier one."""
    fw, x = t.target.framework, t.inputs
    with hooks(fw).still():
        held = first_array(t.result(), fw)
        before = fw.read(held)
        t.run(replace(x, x=1.5 - 2 * x.x))
        t.same_bits(fw.read(held), before, "the answer was changed by the next call at row {row}")


@module(
    "shape, dtype, device; out finite",
    exact=True,
    dtypes="all",
    magnitude=(0, 1, 2),
    memory=(None, None, 1, 5),
    length=(*range(1, 18), 31, 32, 33, 64, 65),
)
def module_output_has_the_right_form(t: ModuleTrial) -> None:
    """Tokens of any number come back as as many, of the type and on the device of the tokens, and finite."""
    result = t.result()
    out = t.read(result, t.inputs)
    _, dtype, device = t.form(result)
    if (dtype, device) != (t.case.dtype, t.case.device):
        t.fail(f"returned {dtype} on {device}, expected {t.case.dtype} on {t.case.device}")
    t.same_bits(np.isfinite(out), np.ones_like(out, dtype=bool), "row {row} is not finite", t.own_rows())


@module("out(2⁸ x) is finite", exact=True, magnitude=(6, 7, 8, 9), length=MANY, dtypes=("float64", "float32", "bfloat16"))
def module_large_tokens_give_finite_rows(t: ModuleTrial) -> None:
    """Logits in the thousands, finite tokens: the answer is finite, as that of a softmax that subtracts the largest one is."""
    out = t.run()
    t.same_bits(np.isfinite(out), np.ones_like(out, dtype=bool), "row {row} is not finite", t.own_rows())


# ---------------------------------------------------------------- modes


@module("train mode without dropout = eval mode", about=("of one mode",))
def module_train_is_eval_without_dropout(t: ModuleTrial) -> None:
    """Where every dropout is 0, training answers as evaluation does."""

    def agree() -> None:
        says = "row {row} is another one in train mode without dropout"
        t.agree(t.run(module=t.training(t.made())), t.run(), lambda: t.allowed() * 2, says)

    or_undropped((t,), agree, agree)


@module("dropout in eval mode is off", exact=True, about=("dropout",))
def module_dropout_is_off_in_eval(t: ModuleTrial) -> None:
    """A module that was made with dropout answers in eval mode as the one without."""
    made = t.made(replace(t.case.sizes, dropout=0.5))
    set_dropout(made, 0.5)
    t.same_bits(t.run(module=made), t.run(), "row {row} is another one with dropout 0.5, in eval mode")


@module(
    "dropout in train mode is on", exact=True, about=("dropout",), length=(8, 16), batch=(2, 3), dtypes=("float64", "float32"), magnitude=0
)
def module_dropout_is_on_in_train(t: ModuleTrial) -> None:
    """A module that was made with dropout 0.5 answers in train mode another time otherwise."""
    made = t.made(replace(t.case.sizes, dropout=0.5))
    made.train()
    if not dropouts(made):
        raise NotTaken("sizes with which there is no dropout in it")
    set_dropout(made, 0.5)
    outs = []
    for seed in range(3):
        with t.target.framework.chance(seed), hooks(t.target.framework).still():
            outs.append(t.read(t.result(module=made), t.inputs))
    if np.array_equal(outs[0], outs[1]) and np.array_equal(outs[1], outs[2]):
        with under(made, t.target.framework, "watched") as called:
            t.result(module=made)
        if t.untried and not any("dropout" in name for name in called):
            raise NotTaken(f"dropout, which may serve what is not tried: {', '.join(t.untried)}")
        t.fail("three calls in train mode gave the same bits: the dropout of 0.5 does nothing")


@module("with gradients recorded = without")
def module_recording_changes_nothing(t: ModuleTrial) -> None:
    """A call that records gradients answers as one that does not: no fast path says something else."""
    if t.facts.unrecordable:
        raise NotTaken(f"gradients ({t.facts.unrecordable})")
    fw, still = t.target.framework, t.run()
    with fw.chance(t.case.seed):
        recorded = t.read(t.result(), t.inputs)
    t.agree(recorded, still, lambda: t.allowed() * 2, "row {row} is another one where gradients are recorded")


# ---------------------------------------------------------------- weights


def lesson(t: ModuleTrial) -> Tokens:
    """The tokens of the case; what reads a memory learns where there is one."""
    if t.inputs.memory is not None or not t.facts.both:
        return t.inputs
    return replace(t.inputs, memory=t.tokens("memory", 3, t.speech.memory_width), is_causal=False)


def matters(t: ModuleTrial, name: str) -> bool:
    """Whether other numbers in a parameter give another answer, by more than rounding explains: what shifts all logits alike does not."""
    made, tokens, fw = t.made(), lesson(t), t.target.framework
    parameter = dict(made.named_parameters())[name]
    fw.assign(parameter.data, fw.read(parameter.data) + noise(t.case.seed, f"other {name}", tuple(parameter.shape)))
    return bool((np.abs(t.run(tokens, made) - t.run(tokens)) > 2 * t.allowed(tokens)).any())


def moves(t: ModuleTrial, name: str, training: bool = False) -> tuple[bool, bool]:
    """Whether other numbers in a parameter change a bit of the output, and of anything that comes back beside it; in train mode, if so."""
    plain, made, fw = t.made() if training else t.module, t.made(), t.target.framework
    for module in (plain, made) if training else ():
        module.train()
    parameter = dict(made.named_parameters())[name]
    came: list[list[Array]] = []
    with hooks(fw).still():
        for module in (plain, made):
            result = t.result(lesson(t), module)
            first = first_array(result, fw)
            came.append([fw.read(array) for array in (first, *(each for each in arrays(result, fw) if each is not first))])
            fw.assign(parameter.data, fw.read(parameter.data) + noise(t.case.seed, f"other {name}", tuple(parameter.shape)))
    output, *others = (not np.array_equal(x, y, equal_nan=True) for x, y in zip(*came, strict=True))
    return output, any(others)


def learning(t: ModuleTrial) -> Any:
    """The module of the case, with the gradients of Σ out · g in its parameters."""
    fw, made = t.target.framework, t.made()
    for parameter in made.parameters():
        parameter.requires_grad_(True)
    result = first_array(t.result(lesson(t), made), fw)
    shape, dtype, device = fw.describe(result)
    try:
        t.send_back(result, t.buffers.array("grad", t.noise("grad", shape), dtype, device, "contiguous"))
    except Raised as raised:
        if "does not require grad" not in str(raised):  # as PyTorch says it
            raise
        t.fail("no gradient reaches any parameter: the output depends on none, or is detached from them")
    return made


def may_serve(name: str, untried: list[str]) -> bool:
    """Whether a parameter may have its part in calls with such arguments: where these say positions alone, one that is called after them."""
    others = [each for each in untried if role(each, FORWARD_ROLES) not in TOLD]
    return bool(others) or (bool(untried) and any(word in name.lower() for word in (*POSITIONS, "emb", "wpe")))


@module("∂(Σ out·g)/∂w is there, finite, and not 0 for every parameter w", **LEARNING)
def module_gradients_reach_every_parameter(t: ModuleTrial) -> None:
    """Every parameter gets a gradient, a finite one, and not nothing where the answer depends on it."""
    fw, elsewhere, trained = t.target.framework, "", ""
    for name, parameter in learning(t).named_parameters():
        if parameter.grad is None:
            output, others = moves(t, name)
            if output:
                t.fail(f"no gradient reaches {name}, on which the output depends")
            if t.facts.routed or others:
                continue  # no token came to it, or it is of another output than the first
            if any(moves(t, name, training=True)):
                trained = name
                continue
            if not may_serve(name, t.untried):
                t.fail(f"no gradient reaches {name}: no output depends on it")
            elsewhere = name
            continue
        found = fw.read(parameter.grad)
        if not np.isfinite(found).all():
            t.fail(f"the gradient of {name} is not finite")
        if not found.any() and not t.facts.routed and matters(t, name):
            t.fail(f"the gradient of {name} is 0 everywhere")
    if elsewhere:
        raise NotTaken(f"{elsewhere}, which may serve what is not tried: {', '.join(t.untried)}")
    if trained:
        raise NotTaken(f"{trained}, which serves in train mode alone")


@module("∂(Σ out·g)/∂w ≠ 0 for what every head reads and writes", **{**LEARNING, "about": ("gradients", "named")})
def module_gradients_reach_every_head(t: ModuleTrial) -> None:
    """Every head learns: in no projection is the gradient 0 for all features of a head."""
    made = learning(t)
    held = dict(made.named_parameters())
    for part, (name, axis) in by_heads(made).items():
        grad = held[name].grad
        if grad is None:
            continue  # no gradient at all is another property's
        found = np.abs(t.target.framework.read(grad)).max(1 - axis)  # of every feature of the heads
        idle = np.flatnonzero(~found.reshape(-1, t.speech.head_dim).any(1))
        if len(idle) and found.any():
            t.fail(f"the gradient of {name} ({part}) is 0 for head {idle[0]}")


@module("a module that takes over the state of another answers as it does", exact=True)
def module_the_state_is_all_of_it(t: ModuleTrial) -> None:
    """What ``state_dict`` holds is all that decides an answer: another module that takes it over gives the same bits."""
    another = t.made(other=1)
    another.load_state_dict(t.module.state_dict())
    t.same_bits(t.run(module=another), t.run(), "row {row} is another one in a module that has taken over the state")
