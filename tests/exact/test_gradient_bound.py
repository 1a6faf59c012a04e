"""The bounds of gradients: no honest backward pass exceeds them, a hill-climb comes near them, planted faults exceed them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from nightly import some_by_night

from properties.exact import gradient_bound
from properties.exact.arithmetic import KINDS, arithmetic
from properties.exact.gradient_oracle import differentiate
from properties.exact.oracle import Problem, solve

torch = pytest.importorskip("torch")
from gradient_kernels import (
    Backward,
    Parts,
    by_hand,
    honest_backward,
    make_backward,
    naive,
    shares,
    through,
    weights_rounded,
)
from honest_kernels import DTYPES, REGIMES, Case, eager, make_case


def applicable(name: str, b: Backward) -> bool:
    """Not where the kernel has no backward pass, or one that is NaN where a whole block is hidden."""
    if name == "SDPA flash":
        return b.case.v.shape[-1] == b.case.q.shape[-1] and (b.case.bias is None or not b.leaves()[0].bias.requires_grad)
    hides = b.case.bias is not None and not bool(b.case.bias.isfinite().all())
    return not (hides and name.startswith(("online", "split")))


@pytest.mark.nightly(but=2)
@pytest.mark.parametrize("dtype", some_by_night(DTYPES, ("float32", "float16")))
@pytest.mark.filterwarnings("ignore")
def test_no_honest_backward_pass_leaves_the_bounds(dtype: str) -> None:
    rng, ran, claimed, infinite = np.random.default_rng(21), 0, 0, 0
    for number in range(125):
        case = make_case(rng, REGIMES[number % len(REGIMES)], dtype, longest=160 if number % 5 == 0 else 40)
        b = make_backward(rng, case)
        exact, limits = b.exact(), {}
        for name, kernel, kind in honest_backward(dtype):
            if not applicable(name, b):
                continue
            if kind not in limits:
                limits[kind] = gradient_bound.rigorous(exact, kind)
                infinite += sum(int(np.isinf(getattr(limits[kind], x)).sum()) for x in "qkv")
                claimed += sum(getattr(limits[kind], x).size for x in "qkv")
            for tensor, share in shares(b, kernel(b), exact, limits[kind]).items():
                assert share <= 1, (name, number, tensor, share)
            ran += 1
    assert ran > 900
    assert infinite < (0.08 if dtype == "float16" else 1e-9) * claimed


# Reached: the worst case of a chain of some forty roundings in float64 and float32, of a few large ones in the halves.
REACHED = [
    ("float64", "same", by_hand(), 0.04),
    ("float32", "same", through(eager), 0.02),
    ("float16", "wide", by_hand("weights"), 0.8),
    ("bfloat16", "fused", through(weights_rounded), 0.3),
    ("bfloat16", "eager", through(naive), 0.07),
]


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize(
    ("dtype", "kind", "kernel", "reach"),
    some_by_night(REACHED, REACHED[::2]),
    ids=["float64", "float32", "float16", "bfloat16 fused", "bfloat16 eager"],
)
@pytest.mark.filterwarnings("ignore")
def test_hill_climbing_comes_near_the_bound_and_never_exceeds_it(
    dtype: str, kind: str, kernel: Callable[[Backward], Parts], reach: float
) -> None:
    """An adversary moves single operands to raise the used fraction of the bound of dQ, dK or dV."""
    rng, facts = np.random.default_rng(3), arithmetic(kind, dtype)
    for name in ("q", "k", "v"):
        height = 0.0
        b = small(dtype, L=2, S=3, D=2)
        for _ in range(400):
            moved = [x.clone() for x in (b.case.q, b.case.k, b.case.v, b.grad_out)]
            tensor = moved[int(rng.integers(4))].view(-1)
            at = int(rng.integers(len(tensor)))
            tensor[at] = (
                tensor[at] * float(rng.choice([-1, 0.5, 2, 1.01, 0.99]))
                if rng.random() < 0.7
                else float(rng.normal() * rng.choice([0.1, 1, 10]))
            )
            trial = Backward(replace(b.case, q=moved[0], k=moved[1], v=moved[2]), moved[3])
            exact = trial.exact()
            found = shares(trial, kernel(trial), exact, gradient_bound.rigorous(exact, facts))
            assert max(found.values()) <= 1, found
            if found[name] >= height:
                b, height = trial, found[name]
        print(dtype, kind, name, round(height, 3))
        assert height > reach, (name, height)


def small(dtype: str, L: int = 6, S: int = 6, D: int = 8) -> Backward:
    rng, kind = np.random.default_rng(5), getattr(torch, dtype)
    q, k, v, d_out = (torch.from_numpy(rng.normal(size=(1, 2, n, D))).to(kind) for n in (L, S, S, L))
    return Backward(Case(q, k, v, None, D**-0.5), d_out)


def off_by(name: str, factor: float) -> Callable[[Backward], Parts]:
    def kernel(b: Backward) -> Parts:
        parts = by_hand()(b)
        return parts | {name: (parts[name].double() * factor).to(parts[name].dtype)}

    return kernel


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_planted_faults_exceed_the_bound(dtype: str, name: str) -> None:
    b = small(dtype)
    exact = b.exact()
    limits = gradient_bound.rigorous(exact, arithmetic("wide" if dtype.endswith("16") else "same", dtype))
    factor = {"float64": 1 + 1e-12, "float32": 1 + 1e-3, "float16": 1.01, "bfloat16": 1.05}[dtype]
    assert shares(b, by_hand("weights")(b), exact, limits)[name] <= 1
    assert shares(b, off_by(name, factor)(b), exact, limits)[name] > 1


def test_hidden_keys_and_rows_without_keys_have_no_tolerance() -> None:
    rng = np.random.default_rng(1)
    q, k, v, d_out = (rng.normal(size=(1, 2, 3, 4)) for _ in range(4))
    visible = np.array([[True, True, False], [False, False, False], [True, False, False]])
    exact = differentiate(solve(Problem(q, k, v, 0.5, visible)), d_out)
    limits = gradient_bound.rigorous(exact, arithmetic("same", "float32"))
    assert not limits.k[:, :, 2].any() and not limits.v[:, :, 2].any()
    assert limits.k[:, :, :2].all() and limits.v[:, :, :2].all()
    assert not limits.logits[:, :, ~visible].any() and limits.logits[:, :, visible].all()
    assert (limits.of_bias((3, 3)) == 0).tolist() == (~visible).tolist()
    for convention in ("nan", "mean"):
        exact = differentiate(solve(Problem(q, k, v, 0.5, visible, empty_rows=convention)), d_out)
        limits = gradient_bound.rigorous(exact, arithmetic("same", "float32"))
        assert np.isinf(limits.k).all() and np.isinf(limits.v).all() and np.isinf(limits.q[:, :, 1]).all()
        assert np.isfinite(limits.q[:, :, [0, 2]]).all()


def test_nothing_is_promised_beyond_the_domain() -> None:
    one = np.ones((1, 1, 2, 2))
    far = differentiate(solve(Problem(one, one, one * 300.0, 1.0)), one * 300.0)  # |dO||v| = 180,000
    assert np.isinf(gradient_bound.rigorous(far, arithmetic("eager", "float16")).q).all()
    assert np.isfinite(gradient_bound.rigorous(far, arithmetic("eager", "float16")).v).all()  # it does not meet dP
    assert np.isfinite(gradient_bound.rigorous(far, arithmetic("wide", "float16")).v).all()
    for largest, told in ((16_000.0, False), (12_000.0, True)):  # dP may be divided by a sum of 1/4; dP − δ, with δ near −1,200, too
        k, v = (np.array(x).reshape(1, 1, 2, 1) for x in ([0.0, 3.0], [largest, -2000.0]))
        apart = differentiate(solve(Problem(one[:, :, :1, :1], k, v, 1.0)), one[:, :, :1, :1])
        limits = gradient_bound.rigorous(apart, arithmetic("eager", "float16"))
        assert np.isfinite(limits.q).all() == told and np.isfinite(limits.v).all()
    for scale, told in ((16.0, False), (8.0, True)):  # dS = ±5,000, which the scale may meet before the small keys do
        k, v = (np.array(x).reshape(1, 1, 2, 1) for x in ([0.0, 0.001], [10_000.0, -10_000.0]))
        steep = differentiate(solve(Problem(one[:, :, :1, :1], k, v, scale)), one[:, :, :1, :1])
        limits = gradient_bound.rigorous(steep, arithmetic("eager", "float16"))
        assert np.isfinite(limits.q).all() == np.isfinite(limits.k).all() == told
        assert np.isfinite(limits.v).all()
    for value, told in ((30.0, False), (20.0, True)):  # nothing is seen: the weights are 0, and 0 · dP is 0 unless dP overflows
        blind = differentiate(solve(Problem(one, one, one * value, 1.0, np.zeros((2, 2), dtype=bool))), one * 300.0)
        assert np.isfinite(gradient_bound.rigorous(blind, arithmetic("eager", "float16")).q).all() == told
    lost = differentiate(solve(Problem(one, one, one * np.nan, 1.0)), one)
    for name in ("q", "k", "v"):
        assert np.isinf(getattr(gradient_bound.rigorous(lost, arithmetic("same", "float32")), name)).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", [(0, 2, 3, 4), (2, 0, 3, 4), (2, 3, 0, 4), (2, 3, 4, 0)])
@pytest.mark.filterwarnings("error")
def test_sizes_of_zero(dtype: str, sizes: tuple[int, ...]) -> None:
    B, L, S, D = sizes
    problem = Problem(np.ones((B, 2, L, D)), np.ones((B, 1, S, D)), np.ones((B, 1, S, 3)), 1.0)
    exact = differentiate(solve(problem, "extended"), np.ones((B, 2, L, 3)))
    for kind in KINDS[dtype]:
        limits = gradient_bound.rigorous(exact, arithmetic(kind, dtype))
        assert (limits.q.shape, limits.k.shape, limits.v.shape) == (exact.q.shape, exact.k.shape, exact.v.shape)
        assert limits.of_bias((L, 1)).shape == (L, 1)
