"""Gradients through features: the oracle against differences and automatic differentiation, the properties against exact
gradients and one mistake each, the mutants against finite differences and against each other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import mpmath
import numpy as np
import permissive
import pytest
import torch
from torch import Tensor

from impls.mutants import load_all
from impls.mutants.attention.backward_features import attention as by_hand
from impls.mutants.attention.feature_core import attention as core
from impls.torch_features import attention as hand_written
from properties.attention.backward import refusal, run_backward
from properties.attention.case import Case
from properties.attention.trial import Trial
from properties.catalogue import PROPERTIES
from properties.engine.core.target import Target
from properties.engine.explain.reading import read_failure
from properties.engine.explain.suspects import known_mistakes
from properties.engine.search.probe import make_target
from properties.engine.search.search import Plan, inapplicable, search
from properties.exact import gradient_bound
from properties.exact.arithmetic import arithmetic
from properties.exact.gradient_oracle import bend, differentiate
from properties.exact.oracle import Problem, number_system, solve, with_sinks

Array = Any
NAMES = tuple(name for name, prop in PROPERTIES.items() if prop.theme == "feature_gradients")
CHANGES: list[dict[str, Any]] = [
    {"softcap": 0.7},
    {"sinks": True},
    {"softcap": 0.7, "sinks": True},
    {"dropout": True},
    {"softcap": 3.0, "dropout": True},
]


# ---------------------------------------------------------------- the oracle


def make_problem(softcap: float | None = None, sinks: bool = False, dropout: bool = False) -> tuple[Problem, Array, Array | None]:
    """Groups of two heads, a bias, some rows without a key; dO; what is kept under dropout."""
    rng = np.random.default_rng(3)
    q, k, v = (rng.normal(size=shape) for shape in ((2, 4, 3, 3), (2, 2, 4, 3), (2, 2, 4, 2)))
    visible = rng.random((2, 1, 3, 4)) < 0.6
    visible[0, 0, 1] = False
    problem = Problem(q, k, v, 0.9, visible, rng.normal(size=(4, 3, 4)), softcap=softcap)
    problem = with_sinks(problem, rng.normal(size=4)) if sinks else problem
    return problem, rng.normal(size=(2, 4, 3, 2)), (rng.random((2, 4, 3, 4)) < 0.5) * 2.0 if dropout else None


def output(problem: Problem, kept: Array | None) -> tuple[Array, Array]:
    """Its exact answer in double-double, with what dropout keeps."""
    exact = solve(problem, "double-double")
    if kept is None:
        return exact.out, exact.out_tail
    seen = np.where(exact.empty[..., None], 0.0, exact.weights) if exact.empty is not None else exact.weights
    return (seen * kept) @ exact.v, (exact.weights_tail * kept) @ exact.v


@pytest.mark.parametrize("changes", CHANGES, ids=str)
def test_agrees_with_finite_differences_of_the_oracle(changes: dict[str, Any]) -> None:
    """(f(x + h) − f(x − h)) / 2h with h = 2^−17: off by h² ≈ 6e-11, and by rounding / h where dropout is mixed in float64."""
    problem, grad_out, kept = make_problem(**changes)
    found, step = differentiate(solve(problem, "double-double"), grad_out, kept), 2.0**-17

    def slope_along(name: str, at: tuple[int, ...]) -> float:
        near = []
        for sign in (1, -1):
            moved = np.array(getattr(problem, name))
            moved[at] += sign * step
            near.append(output(replace(problem, **{name: moved}), kept))
        change = (near[0][0] - near[1][0]) + (near[0][1] - near[1][1])
        return float((change * grad_out).sum() / (2 * step))

    rng = np.random.default_rng(0)
    for name in ("q", "k", "v"):
        shape = getattr(found, name).shape
        for _ in range(5):
            at = tuple(int(rng.integers(n)) for n in shape)
            assert abs(slope_along(name, at) - getattr(found, name)[at]) < 1e-8, (name, at)
    bias, keys = found.logits.sum(0), problem.bias
    assert keys is not None
    for _ in range(5):
        at = tuple(int(rng.integers(n)) for n in keys.shape[-3:])
        full = at if keys.ndim == 3 else (0, *at)
        assert abs(slope_along("bias", full) - (bias[at] if keys.ndim == 3 else found.logits[full])) < 1e-8, at
    if changes.get("sinks"):
        assert found.k.shape[2] == found.v.shape[2] == problem.k.shape[2] - 1
        assert np.abs(found.of_sinks()[0] - found.logits[..., -1].sum((0, 2))).max() < 1e-14


@pytest.mark.parametrize("precision", ["float64", "double-double"])
def test_the_slope_of_the_softcap_keeps_its_digits(precision: Any) -> None:
    """1 − tanh² in arbitrary precision, from the middle of the curve to where tanh has long been 1 in float64."""
    mpmath.mp.prec = 200
    scores = np.array([[0.0, 1e-9, -0.3, 1.0, -7.0, 40.0, 90.0]])
    lifted = bend(number_system(precision)[0](scores), 0.5)
    value, tail = (lifted, 0 * scores) if precision == "float64" else (lifted.hi, lifted.lo)
    for x, high, low in zip(scores.ravel(), value.ravel(), np.ravel(tail)):
        exact = 1 / mpmath.cosh(mpmath.mpf(x) / mpmath.mpf(0.5)) ** 2
        assert abs((mpmath.mpf(high) + mpmath.mpf(low)) / exact - 1) < (1e-12 if precision == "float64" else 1e-25)


def test_planted_faults_behind_the_cap_exceed_the_bound() -> None:
    """And what is right lies inside: the slope off by 1e-12 in float64 shows."""
    problem, grad_out, _ = make_problem(softcap=0.7, sinks=True)
    exact = differentiate(solve(problem, "extended"), grad_out)
    limits = gradient_bound.rigorous(exact, arithmetic("same", "float64"))
    assert (limits.q < 1e-12 * np.abs(exact.q).max()).all() and (limits.of_sinks() < 1e-12).all()
    assert limits.k.shape == exact.k.shape and limits.v.shape == exact.v.shape
    assert (exact.error("q", exact.q * (1 + 1e-12)) > limits.q).any()
    assert (exact.error("k", exact.k * (1 + 1e-12)) > limits.k).any()


# ---------------------------------------------------------------- exact gradients, and one mistake for every property


Change = Callable[[dict[str, Any], dict[str, Any]], None]  # of the gradients or of the options that the backward pass sees


class Exact(torch.autograd.Function):
    """The oracle forward and backward, with a change to what the backward pass believes or answers."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, sinks: Tensor | None, options: Any, wrong: Any) -> Tensor:
        p = options["dropout_p"]
        kept = torch.dropout(torch.ones(*q.shape[:3], k.shape[2], dtype=torch.float64), p, True).numpy() if p else None
        ctx.save_for_backward(q, k, v, mask, sinks)
        ctx.options, ctx.wrong, ctx.kept = options, wrong, kept
        exact = Exact.solved(q, k, v, mask, sinks, options)
        out = exact.out if kept is None else (exact.weights * kept) @ exact.v
        return permissive.rounded(out, q)

    @staticmethod
    def solved(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, sinks: Tensor | None, options: Any) -> Any:
        known = ("window_size", "softcap", "alibi_slopes", "kv_lengths")
        given = {name: options[name] for name in known}
        problem = permissive.problem_of(q, k, v, mask, options["is_causal"], options["scale"], sinks=sinks, **given)
        return solve(problem, "extended" if q.dtype == torch.float64 else "float64")

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, mask, sinks = ctx.saved_tensors
        options = {**ctx.options, "sinks": sinks, "kept": ctx.kept}
        before, after = ctx.wrong
        before(options)
        found = differentiate(Exact.solved(q, k, v, mask, options["sinks"], options), permissive.carrier(grads[0]), options["kept"])
        parts = {"q": found.q, "k": found.k, "v": found.v}
        if mask is not None and mask.is_floating_point():
            parts["mask"] = found.of_bias(tuple(mask.shape))[0]
        if sinks is not None:
            parts["sinks"] = found.of_sinks()[0] if options["sinks"] is not None else np.zeros(len(sinks))
        after(parts)
        return *(permissive.rounded(parts[x], q) if x in parts else None for x in ("q", "k", "v", "mask", "sinks")), None, None


def attention_with(before: Callable[[dict[str, Any]], None] | None = None, after: Callable[[dict[str, Any]], None] | None = None) -> Target:
    """The exact attention with a mistake in what its backward pass believes, or in what it answers."""
    wrong = (before or (lambda options: None), after or (lambda parts: None))

    def attention(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        attn_mask: Any = None,
        is_causal: bool = False,
        scale: Any = None,
        enable_gqa: bool = False,
        dropout_p: float = 0.0,
        window_size: Any = None,
        softcap: Any = None,
        alibi_slopes: Any = None,
        sinks: Any = None,
        kv_lengths: Any = None,
    ) -> Tensor:
        options = {
            "is_causal": is_causal,
            "scale": scale,
            "dropout_p": dropout_p,
            "window_size": window_size,
            "softcap": softcap,
            "alibi_slopes": alibi_slopes,
            "kv_lengths": kv_lengths,
        }
        out: Tensor = Exact.apply(q, k, v, attn_mask, sinks, options, wrong)
        return out

    return make_target("exact", attention, {"framework": "torch"})


def believes(name: str, change: Callable[[Any], Any]) -> Target:
    """A backward pass that is given another argument than the forward pass."""

    def before(options: dict[str, Any]) -> None:
        if options[name] is not None:
            options[name] = change(options[name])

    return attention_with(before)


def answers(name: str, change: Callable[[Any], Any]) -> Target:
    """A gradient changed."""

    def after(parts: dict[str, Any]) -> None:
        if name in parts:
            parts[name] = change(parts[name])

    return attention_with(after=after)


MISTAKES: dict[str, Target] = {
    "gradients_of_all_features_are_inside_the_bound": answers("k", lambda k: k * 1.01),
    "keys_outside_the_window_receive_no_gradient": believes("window_size", lambda w: (w[0], -1)),
    "keys_beyond_the_length_receive_no_gradient": believes("kv_lengths", lambda n: n + 1),
    "window_gradients_are_those_of_the_band_mask": believes("window_size", lambda w: (w[1], w[0])),
    "alibi_gradients_are_those_of_its_bias": believes("alibi_slopes", lambda m: 2 * m),
    "softcap_gradients_are_inside_the_bound": believes("softcap", lambda c: 1.01 * c),
    "saturated_logits_receive_no_gradient": believes("softcap", lambda c: None),
    "sink_gradient_is_inside_the_bound": answers("sinks", lambda z: -z),
    "sink_and_bias_gradients_balance": answers("sinks", lambda z: z * 1.01),
    "sinks_keep_their_share_of_the_value_gradient": believes("sinks", lambda z: None),
    "value_gradients_are_dropped_like_the_weights": believes("kept", lambda kept: np.roll(kept, 1, axis=-1)),
    "dropout_gradients_are_inside_the_bound": believes("kept", lambda kept: kept / 2),
}


def test_every_property_has_a_mistake() -> None:
    assert set(MISTAKES) == set(NAMES)


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize("name", NAMES)
def test_the_exact_gradients_pass(name: str) -> None:
    outcome = search(attention_with(), PROPERTIES[name], Plan(examples=12))
    assert outcome.finding is None, outcome.finding
    assert outcome.status == "passed" and outcome.cases == 12


@pytest.mark.parametrize("name", NAMES)
def test_every_property_refutes_a_mistake_of_its_own(name: str) -> None:
    """By an answer, not by an exception."""
    outcome = search(MISTAKES[name], PROPERTIES[name], Plan(examples=150, shrink=False))
    assert outcome.finding is not None
    assert not outcome.finding.violation.raised, outcome.finding.violation.says


# ---------------------------------------------------------------- what a target can


def test_what_cannot_be_asked_is_said() -> None:
    """Each with its reason: no parameter, no gradient of the sinks, weights dropped by other random numbers than torch's."""
    generator = torch.Generator().manual_seed(0)

    def own_numbers(q: Tensor, k: Tensor, v: Tensor, *, dropout_p: float = 0.0) -> Tensor:
        weight = torch.softmax(q @ k.mT, -1)
        return (weight * (torch.rand(weight.shape, generator=generator) >= dropout_p) / (1 - dropout_p)) @ v

    def cut(q: Tensor, k: Tensor, v: Tensor, *, sinks: Any = None) -> Tensor:
        return core(q, k, v, sinks=None if sinks is None else sinks.detach())

    sink, dropped = PROPERTIES["sink_gradient_is_inside_the_bound"], PROPERTIES["dropout_gradients_are_inside_the_bound"]
    assert inapplicable(make_target("cut", cut, {"framework": "torch"}), sink) == (
        "sink gradients: the output of a first call does not require a gradient"
    )
    target = make_target("own", own_numbers, {"framework": "torch"})
    assert inapplicable(target, dropped) == "dropout gradients: what is dropped does not follow the seed of the framework"
    assert refusal(target, "sink_gradients") == "the target takes no sinks"


def test_the_backward_pass_finds_other_random_numbers() -> None:
    """A backward pass that draws anew cannot hit the mask of the forward pass by chance."""
    seen: list[float] = []

    class Draws(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, q: Tensor) -> Tensor:
            seen.append(float(torch.rand(())))
            return q.clone()

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> Tensor:
            seen.append(float(torch.rand(())))
            return grads[0]

    def draws(q: Tensor, k: Tensor, v: Tensor, *, dropout_p: float = 0.0) -> Tensor:
        return Draws.apply(q) + 0 * (k.sum() + v.sum())

    trial = Trial(make_target("draws", draws, {"framework": "torch"}), Case(seed=5))
    del seen[:]
    for _ in range(2):
        run_backward(trial, trial.inputs.but(dropout=0.5, chance=5))
    forward, backward = seen[0], seen[1]
    assert forward != backward and seen == [forward, backward] * 2


# ---------------------------------------------------------------- the mutants

MUTANTS, HONEST = (
    {name: m for name, m in table.items() if name.partition(".")[0] in ("backward_features", "honest_features")} for table in load_all()
)
SLOPES = torch.tensor([0.5, 0.25, 0.125, 0.0], dtype=torch.float64)
SINKS = torch.tensor([0.3, -1.0, 2.0, 0.0], dtype=torch.float64)
CALLS: dict[str, dict[str, Any]] = {
    "plain": {},
    "window": {"window_size": (2, 1)},
    "causal window": {"window_size": (1, -1), "is_causal": True},
    "cap": {"softcap": 0.5, "scale": 2.0},
    "slopes": {"alibi_slopes": SLOPES},
    "lengths": {"kv_lengths": torch.tensor([3, 5])},
    "sinks": {"sinks": SINKS},
    "dropout": {"dropout_p": 0.5},
    "bias": {"attn_mask": torch.linspace(-1, 1, 36, dtype=torch.float64).reshape(6, 6), "softcap": 2.0},
    "all": {"window_size": (3, 1), "softcap": 2.0, "alibi_slopes": SLOPES, "sinks": SINKS},
}


def gradients(function: Any, call: str) -> list[Tensor]:
    """The output and all gradients that there are."""
    generator = torch.Generator().manual_seed(1)
    shapes = ((2, 4, 6, 3), (2, 2, 6, 3), (2, 2, 6, 3))
    leaves = [torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True) for shape in shapes]
    options = dict(CALLS[call])
    for name in ("sinks", "attn_mask"):
        if name in options:
            options[name] = options[name].clone().requires_grad_()
            leaves.append(options[name])
    torch.manual_seed(0)
    out = function(*leaves[:3], enable_gqa=True, **options)
    grad = torch.randn(out.shape, generator=generator, dtype=torch.float64)
    return [out.detach(), *torch.autograd.grad(out, leaves, grad)]


def apart(one: list[Tensor], other: list[Tensor]) -> float:
    return max(float((x - y).abs().max()) for x, y in zip(one, other))


@pytest.mark.parametrize("call", [call for call in CALLS if call != "dropout"])
def test_backward_by_hand_is_that_of_autograd(call: str) -> None:
    for function in (core, hand_written):
        assert apart(gradients(by_hand, call), gradients(function, call)) < 1e-13


def test_honest_variants_agree_and_no_two_mutants_are_alike() -> None:
    """Forward all are right; backward every mutant is wrong in its own way."""
    right = {call: gradients(by_hand, call) for call in CALLS}
    for name, each in HONEST.items():
        assert all(apart(gradients(each.function, call), right[call]) < 1e-13 for call in CALLS), name
    seen: dict[bytes, str] = {}
    for name, each in MUTANTS.items():
        found = {call: gradients(each.function, call) for call in CALLS}
        assert all(torch.equal(found[call][0], right[call][0]) for call in CALLS), f"{name} is wrong forward"
        assert any(apart(found[call], right[call]) > 1e-3 for call in CALLS), f"{name} is right"
        bits = b"".join(x.numpy().tobytes() for part in found.values() for x in part)
        assert bits not in seen, f"{name} behaves like {seen[bits]}"
        seen[bits] = name
    assert len(MUTANTS) >= 20 and len(HONEST) >= 2


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize(
    "name", ["backward_features.slope_forgotten", "backward_features.dropped_anew_backward", "gradients.missing_delta"]
)
def test_the_mistake_is_called_by_its_name(name: str) -> None:
    """Forward all of them are right: it is the gradients that tell them apart."""
    mutant = load_all()[0][name]
    target = make_target("mine", mutant.function)
    finding = search(target, PROPERTIES[mutant.killed_by], Plan()).finding
    assert finding
    assert [suspect.name for suspect in read_failure(target, finding, known_mistakes())] == [f"mutants.{name}"]
