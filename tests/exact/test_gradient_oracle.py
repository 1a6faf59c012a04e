"""The exact gradients: against arbitrary precision, against automatic and numerical differentiation, and as integers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import mpmath
import numpy as np
import numpy.typing as npt
import pytest
import torch

from properties.exact import oracle
from properties.exact.gradient_oracle import Gradients, differentiate
from properties.exact.oracle import Precision, Problem, solve, with_sinks

Array = npt.NDArray[Any]
PRECISIONS: list[tuple[Precision, float]] = [("float64", 1e-13), ("double-double", 1e-27)]
if oracle.HAS_LONGDOUBLE:
    PRECISIONS.append(("longdouble", 1e-16))
CHANGES: list[dict[str, Any]] = [{}, {"scale": 0.0}, {"scale": -3.0}, {"empty_rows": "nan"}]


def make_problem(seed: int, **changes: Any) -> tuple[Problem, Array]:
    """Groups of two heads, every other one with a bias, some rows without a key; and dO."""
    rng = np.random.default_rng(seed)
    L, S, D, Dv = (int(n) for n in rng.integers(1, 5, size=4))
    q, k, v = rng.normal(size=(2, 4, L, D)), rng.normal(size=(2, 2, S, D)), rng.normal(size=(2, 2, S, Dv))
    visible = rng.random((2, 1, L, S)) < 0.6 if seed % 3 else None
    bias = rng.normal(size=(4, L, S)) if seed % 2 else None
    return replace(Problem(q, k, v, 0.7, visible, bias), **changes), rng.normal(size=(2, 4, L, Dv))


def arbitrary(problem: Problem, grad_out: Array) -> dict[str, Array]:
    """dQ, dK, dV and dS in mpmath, element by element, from the Jacobian diag(p) − p pᵀ."""
    B, H, L, S = problem.shape
    group = H // problem.k.shape[1]
    parts = {"q": problem.q, "k": problem.k, "v": problem.v, "logits": np.zeros(problem.shape)}
    grad = {name: np.full(x.shape, mpmath.mpf(0), dtype=object) for name, x in parts.items()}
    bias = np.broadcast_to(0.0 if problem.bias is None else problem.bias, problem.shape)
    visible = np.broadcast_to(True if problem.visible is None else problem.visible, problem.shape)
    for b, h, i in np.ndindex(B, H, L):
        q, k, v = problem.q[b, h, i], problem.k[b, h // group], problem.v[b, h // group]
        keys = [j for j in range(S) if visible[b, h, i, j]]
        terms = {j: mpmath.exp(problem.scale * mpmath.fdot(q, k[j]) + mpmath.mpf(bias[b, h, i, j])) for j in keys}
        p = {j: term / mpmath.fsum(terms.values()) for j, term in terms.items()}
        d_p = {j: mpmath.fdot(grad_out[b, h, i], v[j]) for j in keys}
        for j in keys:
            d_s = mpmath.fsum(d_p[m] * p[m] * ((m == j) - p[j]) for m in keys)
            grad["logits"][b, h, i, j] = d_s
            grad["q"][b, h, i] += problem.scale * d_s * k[j]
            grad["k"][b, h // group, j] += problem.scale * d_s * q
            grad["v"][b, h // group, j] += p[j] * grad_out[b, h, i]
    return grad


def worst(gradients: Gradients, name: str, reference: Array) -> float:
    """Largest |computed − reference|; all terms here are of size 1."""
    value, tail = getattr(gradients, name), getattr(gradients, f"{name}_tail")
    return max(
        (float(abs(mpmath.mpf(x) + mpmath.mpf(y) - z)) for x, y, z in zip(value.flat, tail.flat, reference.flat, strict=True)), default=0.0
    )


@pytest.mark.parametrize(("precision", "unit"), PRECISIONS)
@pytest.mark.parametrize("changes", CHANGES, ids=str)
def test_agrees_with_arbitrary_precision(precision: Precision, unit: float, changes: dict[str, Any]) -> None:
    with mpmath.workdps(50):
        for seed in range(5):
            problem, grad_out = make_problem(seed, **changes)
            found = differentiate(solve(problem, precision), grad_out)
            for name, reference in arbitrary(problem, grad_out).items():
                assert worst(found, name, reference) < unit, (seed, name)


def test_agrees_with_automatic_differentiation() -> None:
    for seed in (1, 3, 5):
        problem, grad_out = make_problem(seed, visible=None)
        q, k, v, bias = (torch.tensor(x, requires_grad=True) for x in (problem.q, problem.k, problem.v, problem.bias))
        scores = problem.scale * q @ k.repeat_interleave(2, 1).mT + bias
        out = torch.softmax(scores, -1) @ v.repeat_interleave(2, 1)
        found, names = differentiate(solve(problem), grad_out), ("q", "k", "v")
        *parts, of_bias = torch.autograd.grad(out, (q, k, v, bias), torch.tensor(grad_out))
        for name, part in zip(names, parts):
            assert np.abs(getattr(found, name) - part.numpy()).max() < 1e-13
        assert np.abs(found.of_bias(bias.shape)[0] - of_bias.numpy()).max() < 1e-13


def test_agrees_with_finite_differences_of_the_oracle() -> None:
    """(f(x + h) − f(x − h)) / 2h in double-double, where h = 1e-8 costs no digits: off by h² and no more."""
    problem, grad_out = make_problem(4)
    found = differentiate(solve(problem, "double-double"), grad_out)
    rng, step = np.random.default_rng(0), 2.0**-27
    for name in ("q", "k", "v"):
        x = getattr(problem, name)
        for at in rng.integers(x.size, size=6):
            move = np.zeros(x.size)
            move[at] = step
            near = [solve(replace(problem, **{name: x + sign * move.reshape(x.shape)}), "double-double") for sign in (1, -1)]
            change = (near[0].out - near[1].out) + (near[0].out_tail - near[1].out_tail)
            assert abs((change * grad_out).sum() / (2 * step) - getattr(found, name).reshape(-1)[at]) < 1e-13


@pytest.mark.parametrize("precision", [name for name, _ in PRECISIONS])
def test_uniform_weights_in_integers(precision: Precision) -> None:
    """q = 0 and four keys: P = 1/4, so everything is a multiple of 1/16 and exact."""
    v = np.array([[[[8.0], [0.0], [4.0], [4.0]]]])  # δ = 4
    k = np.array([[[[1.0], [2.0], [3.0], [5.0]]]])
    found = differentiate(solve(Problem(np.zeros((1, 1, 1, 1)), k, v, 2.0), precision), np.ones((1, 1, 1, 1)))
    assert found.delta.item() == 4.0
    assert found.logits.ravel().tolist() == [1.0, -1.0, 0.0, 0.0]
    assert found.q.item() == 2.0 * (1.0 - 2.0)
    assert not found.k.any()
    assert found.v.ravel().tolist() == [0.25] * 4
    assert found.of_bias((1, 4))[0].ravel().tolist() == [1.0, -1.0, 0.0, 0.0]
    assert found.of_bias(())[0] == 0.0


def test_rows_without_keys_send_nothing_back() -> None:
    for convention in ("zero", "nan", "mean"):
        problem, grad_out = make_problem(1, visible=np.zeros((1, 1, 1, 1), dtype=bool), empty_rows=convention)
        found = differentiate(solve(problem, "double-double"), grad_out)
        assert not any(getattr(found, name).any() for name in ("q", "k", "v", "logits"))


@pytest.mark.parametrize("sizes", [(0, 2, 3, 4), (2, 0, 3, 4), (2, 3, 0, 4), (2, 3, 4, 0)])
def test_sizes_of_zero(sizes: tuple[int, ...]) -> None:
    B, L, S, D = sizes
    problem = Problem(np.ones((B, 2, L, D)), np.ones((B, 1, S, D)), np.ones((B, 1, S, 3)), 1.0)
    for precision, _ in PRECISIONS:
        found = differentiate(solve(problem, precision), np.ones((B, 2, L, 3)))
        shapes = (found.q.shape, found.k.shape, found.v.shape, found.logits.shape)
        assert shapes == (problem.q.shape, problem.k.shape, problem.v.shape, problem.shape)
        assert found.of_bias((1, L, 1))[0].shape == (1, L, 1)


@pytest.mark.parametrize("softcap", [None, 1.5])
@pytest.mark.parametrize("precision", ["float64", "double-double"])
def test_sinks_agree_with_finite_differences_and_leave_no_trace(precision: Precision, softcap: float | None) -> None:
    """Of a logit that all rows of a head see; its key and its value belong to nobody."""
    problem, grad_out = make_problem(4, softcap=softcap)
    sinks, step = np.array([0.5, -1.0, 2.0, 0.0]), 2.0**-27
    found = differentiate(solve(with_sinks(problem, sinks), precision), grad_out)
    value, tail = found.of_sinks()
    assert value.shape == tail.shape == (4,) and (np.abs(tail) <= 2.0**-52 * np.abs(value)).all()
    for head in range(4):
        moved = step * (np.arange(4) == head)
        one, other = (solve(with_sinks(problem, sinks + sign * moved), "double-double") for sign in (1, -1))
        change = (one.out - other.out) + (one.out_tail - other.out_tail)
        assert abs((change * grad_out).sum() / (2 * step) - value[head]) < 1e-12
    for name in ("q", "k", "v"):
        assert getattr(found, name).shape == getattr(found, f"{name}_tail").shape == getattr(problem, name).shape
    assert found.of_bias((1, 4, 1, 1))[0].shape == (1, 4, 1, 1)


@pytest.mark.parametrize("junk", [np.nan, np.inf])
def test_what_stands_in_a_hidden_key_reaches_no_gradient(junk: float) -> None:
    """Behind a softcap, too."""
    problem, grad_out = make_problem(4)
    seen = np.ones(problem.shape, bool)
    seen[..., 0] = False
    lost = problem.k.copy()
    lost[:, :, 0] = junk
    for softcap in (None, 1.5):
        plain, other = (differentiate(solve(replace(problem, k=k, visible=seen, softcap=softcap)), grad_out) for k in (problem.k, lost))
        for name in ("k", "v", "logits", "scores"):
            np.testing.assert_array_equal(getattr(other, name), getattr(plain, name))
            assert np.isfinite(getattr(other, name)).all()
