"""The bound of encoder and decoder layers: no honest layer and no honest norm exceeds it, and a climb comes near it."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from nightly import some_by_night

torch = pytest.importorskip("torch")

from impls import transformer_layers
from properties.block import exact as exactly
from properties.block.call import BlockInputs
from properties.block.cases import Case
from properties.block.trial import BlockTrial, make_block
from properties.engine.search.probe import make_target
from properties.exact.arithmetic import HALVES, arithmetic


def used(inputs: BlockInputs, out: Any, target: Any, case: Case) -> float:
    """The largest share of the bound that an answer uses."""
    value = BlockTrial(target, case).solve_block(inputs)
    with np.errstate(all="ignore"):
        share = value.out_error(out) / value.error
    return float(np.where(np.isfinite(value.error), share, 0.0).max())


REACHED = [("float64", 0.15), ("float32", 0.15), ("float16", 0.35), ("bfloat16", 0.45)]


@pytest.mark.nightly(but=2)
@pytest.mark.parametrize(("dtype", "reach"), some_by_night(REACHED, REACHED[::3]))
@pytest.mark.filterwarnings("ignore")
def test_hill_climbing_comes_near_the_bound_and_never_exceeds_it(dtype: str, reach: float) -> None:
    """An adversary moves single numbers of tokens and weights to raise the used fraction of the bound."""
    target = make_target("climbed", transformer_layers.encoder, {"dtypes": (dtype,)})
    rng, best = np.random.default_rng(1), 0.0
    for climb, start in enumerate((Case(kv_heads=1, queries=1, dim=3, hidden=1, norm_first=True), Case(queries=2, dim=2, hidden=1))):
        case = dataclasses.replace(start, dtype=dtype, seed=climb)
        inputs, height = make_block(case, "encoder_layer"), 0.0
        if climb == 0:  # where residual and feed-forward part are nearly all there is, the bound is nearly reached
            inputs = BlockTrial(target, case).cut(inputs)
        for _ in range(300 if dtype in HALVES else 140):
            name = ("x", *inputs.weights)[int(rng.integers(1 + len(inputs.weights)))]
            moved = (inputs.x if name == "x" else inputs.weights[name]).copy()
            at = int(rng.integers(moved.size))
            factor = rng.choice([-1, 0.5, 2, 1.01, 0.99])
            moved.reshape(-1)[at] = moved.reshape(-1)[at] * factor if rng.random() < 0.6 else rng.normal() * rng.choice([0.01, 1, 8])
            trial = inputs.but(x=moved) if name == "x" else inputs.with_weights(**{name: moved})
            now = used(trial, BlockTrial(target, case).run_block(trial).out, target, case)
            assert now <= 1, (climb, now)
            if now >= height:
                inputs, height = trial, now
        best = max(best, height)
    print(f"{dtype}: {best:.2f} of the bound")
    assert best > reach


def norm_errors(rows: Any, kind: str, dtype: str) -> tuple[float, Any]:
    """The largest used share of the norm's own bound, for two passes, Welford's updates and a tree of them."""
    a, n = arithmetic(kind, dtype), rows.shape[-1]
    tensors = torch.from_numpy(rows).to(getattr(torch, dtype))
    x = tensors.double().numpy().astype(np.longdouble)
    centred = x - x.mean(-1, keepdims=True)
    deviation = np.sqrt((centred**2).mean(-1, keepdims=True) + np.longdouble(1e-5))
    bound = exactly.norm_error(*(np.asarray(y, np.float64) for y in (x, 0 * x, centred, deviation)), 1e-5, a)
    mean, squares = torch.zeros_like(tensors[..., :1]), torch.zeros_like(tensors[..., :1])
    for k in range(n):
        apart = tensors[..., k : k + 1] - mean
        mean = mean + apart / (k + 1)
        squares = squares + apart * (tensors[..., k : k + 1] - mean)
    two = tensors - tensors.mean(-1, keepdim=True)
    answers = [
        (tensors - mean) / (squares / n + 1e-5).sqrt(),
        two / (two.square().mean(-1, keepdim=True) + 1e-5).sqrt(),
        torch.nn.functional.layer_norm(tensors, (n,)),
    ]
    shares = [np.abs(answer.double().numpy() - centred / deviation) / bound for answer in answers]
    return float(np.nanmax([np.where(np.isfinite(bound), share, 0) for share in shares])), bound


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.filterwarnings("ignore")
def test_no_honest_norm_leaves_its_bound(dtype: str) -> None:
    """Two passes, Welford's updates, the library's tree; rows that are far from zero, nearly constant, uneven, one feature alone."""
    rng, largest = np.random.default_rng(4), 0.0
    for n in (1, 2, 3, 5, 16, 33, 257):
        plain = rng.normal(size=(40, n))
        for rows in (plain, plain + 30, 1 + plain / 512, plain * 10.0 ** rng.integers(-6, 4, size=(40, n)), np.sign(plain) * 1e3 + plain):
            share, bound = norm_errors(rows, "same", dtype)
            largest = max(largest, share)
            assert share <= 1, (n, share)
            assert np.isfinite(bound).mean() > 0.9
    assert largest > 0.05


def test_an_error_of_the_input_passes_the_norm_within_the_bound() -> None:
    """Rows are moved by as much as they may be off, in many directions; near a constant row the norm magnifies a hundredfold."""
    rng, exact = np.random.default_rng(5), arithmetic("same", "float64")
    largest = 0.0
    for spread, error in ((1.0, 1e-3), (1.0, 0.3), (1e-2, 1e-2), (1e-4, 1e-3), (0.0, 1e-3)):
        x = 1 + spread * rng.normal(size=(1, 6))
        e = error * rng.random(size=x.shape)

        def norm(y: Any) -> Any:
            return (y - y.mean(-1, keepdims=True)) / np.sqrt(y.var(-1, keepdims=True) + 1e-5)

        centred = x - x.mean()
        bound = exactly.norm_error(x, e, centred, np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5), 1e-5, exact)
        moved = x + e * np.sign(rng.normal(size=(4000, 6)))
        share = np.abs(norm(moved) - norm(x)) / bound
        assert share.max() <= 1
        largest = max(largest, float(share.max()))
    assert largest > 0.4
