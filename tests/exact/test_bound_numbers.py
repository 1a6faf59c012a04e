"""The bounds of a few small problems, number by number: who changes a constant of the analysis sees what it does, and says so.

The other tests hold the bounds against kernels, which come no nearer than a fifth of them: one rounding more or less shows in none.
Where a bound is meant to change, ``python tests/exact/test_bound_numbers.py`` writes ``bound_numbers.json`` anew.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))

from properties.engine.cases.coordinates import normal, uniform
from properties.exact import bound, gradient_bound
from properties.exact.arithmetic import FORMATS, Arithmetic, arithmetic
from properties.exact.gradient_oracle import differentiate
from properties.exact.oracle import Exact, LayerProblem, Problem, Projection, solve, solve_layer, with_sinks

Array = Any
FILE = Path(__file__).with_name("bound_numbers.json")
KINDS = (
    ("float64", "same"),
    ("float32", "fused+lse"),
    ("float32", "tf32"),
    ("float16", "wide"),
    ("float16", "eager"),
    ("float16", "same"),
    ("bfloat16", "fused"),
    ("bfloat16", "stored+lse"),
    ("float16", "stored"),
)


def numbers(name: str, *shape: int) -> Array:
    return normal(5, name, shape)


def problems() -> dict[str, Problem]:
    """Small ones, each with something that a part of the bounds is about."""
    q, k, v = numbers("q", 2, 4, 3, 4), numbers("k", 2, 2, 6, 4), numbers("v", 2, 2, 6, 3)
    plain = Problem(q, k, v, 0.5)
    seen = uniform(5, "seen", (2, 4, 3, 6)) < 0.6
    seen[0, 1, 2], seen[1, 0, 0] = False, False
    bias = np.where(uniform(5, "hide", (2, 4, 3, 6)) < 0.3, -np.inf, 3 * numbers("bias", 2, 4, 3, 6))
    poisoned = v.copy()
    poisoned[0, 0, 1, 2], poisoned[1, 1, 5, 0] = np.nan, np.inf
    lost = k.copy()
    lost[0, 1, 2, 3] = np.inf
    huge = 10.0 ** (4 * numbers("sizes", 2, 4, 3, 1)) * q
    wide = np.stack([np.linspace(0.2, 1.1, 32) * 65504 / 4, np.zeros(32)], -1).reshape(1, 1, 32, 2)
    small = np.array([[0.001, 0.0], [0.0, 0.002], [0.001, -0.001]]).reshape(1, 1, 3, 2)
    return {
        "plain": plain,
        "queries that are scaled beyond the largest": Problem(wide, small, v[:1, :1, :3], 4.0),
        "keys that are scaled beyond the largest": Problem(small, wide[:, :, 25:31], v[:1, :1], -4.0),
        "masked": replace(plain, visible=seen),
        "mean of nothing": replace(plain, visible=seen, empty_rows="mean"),
        "nan of nothing": replace(plain, visible=seen, empty_rows="nan"),
        "biased": replace(plain, bias=bias),
        "biased and masked": replace(plain, bias=bias, visible=seen),
        "computed bias": replace(plain, bias=np.maximum(bias, -4.0), bias_size=np.abs(np.maximum(bias, -4.0)), visible=seen),
        "capped": replace(plain, softcap=1.5, visible=seen),
        "sinks": with_sinks(replace(plain, visible=seen), numbers("sinks", 4)),
        "large scores": replace(plain, q=12 * q, scale=3.0),
        "one key": replace(plain, k=k[:, :, :1], v=v[:, :, :1]),
        "no keys": replace(plain, k=k[:, :, :0], v=v[:, :, :0]),
        "nan of no keys": replace(plain, k=k[:, :, :0], v=v[:, :, :0], empty_rows="nan"),
        "mean of no keys": replace(plain, k=k[:, :, :0], v=v[:, :, :0], empty_rows="mean"),
        "one number": Problem(q[:1, :1, :1], k[:1, :1], v[:1, :1, :, :1], 0.5),
        "sums near the largest": Problem(
            0 * q[:1, :1, :1], k[:1, :1, :2], np.full((1, 1, 2, 64), 32752.0) * np.linspace(0.99, 1.0, 64), 0.1
        ),
        **{
            f"scores near {largest}": Problem(
                np.linspace(0.2, 1.1, 32).reshape(1, 1, 32, 1) * largest, k[:1, :1, :3, :1] * 0 + 1, v[:1, :1, :3], 1.0
            )
            for largest in (65504.0, 3.4e38)
        },
        "tiny": replace(plain, q=q * 2.0**-12, v=v * 2.0**-20, k=k * 2.0**-10),
        "faint weights": replace(plain, q=6 * q, v=v * 2.0**-10),
        "long": Problem(q[:, :1], numbers("many", 2, 1, 65, 4), numbers("values", 2, 1, 65, 3), -0.5),
        "huge scores": replace(plain, q=huge, visible=seen),
        "huge values": replace(plain, v=v * 10.0 ** (3 * np.abs(numbers("sizes", 2, 2, 6, 3))) * 10),
        "values that are none": replace(plain, v=poisoned, visible=seen),
        "keys that are none": replace(plain, k=lost, visible=seen),
    }


def said(x: Array) -> list[float]:
    """The size of the numbers between 0 and infinity on a logarithmic scale, each with a weight of its own, and how many are infinite or 0."""
    x = np.asarray(x, dtype=np.float64)
    between = (x > 0) & np.isfinite(x)
    weight = 1 + np.arange(x.size).reshape(x.shape) % 7
    size = float((np.log2(np.where(between, x, 1.0)) * weight).sum() / weight.sum()) if x.size else 0.0
    assert (x >= 0).all()
    return [round(size, 9), int(np.isinf(x).sum()), int((x == 0).sum())]


def bounds(exact: Exact, kind: Arithmetic) -> Iterator[tuple[str, Array]]:
    """Everything that is promised of a problem."""
    yield "output", bound.rigorous(exact, kind)
    yield "likely", bound.probabilistic(exact, kind)
    yield "weights", bound.weights_bound(exact, kind)
    yield "lse", bound.lse_bound(exact, kind)
    errors = {"query_error": exact.problem.q, "key_error": exact.k, "value_error": exact.v}
    errors = {name: 2.0**-9 * np.abs(x) for name, x in errors.items()}
    yield "output of rounded operands", bound.rigorous(exact, kind, **errors)
    for name, error in errors.items():
        lost = error.copy()
        lost[:1, :1, :1, :1] = np.inf
        yield f"output of a lost number, {name}", bound.rigorous(exact, kind, **(errors | {name: lost}))
    yield "weights of rounded operands", bound.weights_bound(exact, kind, **errors)
    yield "lse of rounded operands", bound.lse_bound(exact, kind, **errors)


def backward(exact: Exact, kind: Arithmetic) -> Iterator[tuple[str, Array]]:
    """Everything that is promised of its gradients, without and with dropout."""
    grad_out = numbers("grad", *exact.out.shape)
    for words, kept in (("", None), (" under dropout", np.where(uniform(5, "kept", exact.weights.shape) < 0.75, 4 / 3, 0.0))):
        limits = gradient_bound.rigorous(differentiate(exact, grad_out, kept), kind)
        for name in ("q", "k", "v", "logits"):
            yield f"gradient of {name}{words}", getattr(limits, name)
        heads, queries, keys = exact.problem.q.shape[1], exact.problem.q.shape[2], exact.problem.k.shape[2] - exact.problem.sink
        yield f"gradient of a bias{words}", limits.of_bias((exact.problem.shape[0], heads, queries, keys))
        yield f"gradient of a row of bias{words}", limits.of_bias((1, 1, 1, keys))
        if exact.problem.sink:
            yield f"gradient of sinks{words}", limits.of_sinks()


def layers() -> Iterator[tuple[str, LayerProblem]]:
    """A layer without biases, and one with them and a row without keys."""
    names = {"w_q": (6, 6), "w_k": (6, 5), "w_v": (6, 4), "w_o": (3, 6)}
    weights = {name: numbers(name, *shape) for name, shape in names.items()}
    biases = {name: numbers(name, 6 if name != "b_o" else 3) for name in ("b_q", "b_k", "b_v", "b_o")}
    x = LayerProblem(numbers("query", 2, 3, 6), numbers("key", 2, 4, 5), numbers("value", 2, 4, 4), weights, 2)
    seen = np.ones((2, 1, 3, 4), bool)
    seen[0, 0, 1], seen[1, 0, :, 3] = False, False
    yield "bare layer", x
    yield "layer", replace(x, weights=weights | biases, visible=seen, scale=0.7)
    lost = np.where(np.arange(4)[:, None] == 2, np.nan, x.value)
    of_one_head = np.ones((2, 2, 3, 4), bool)
    of_one_head[:, 0, 1, 2], of_one_head[:, :, 2, 2] = False, False
    yield "layer with a token that is none", replace(x, weights=weights | biases, visible=of_one_head, value=lost)
    yield "layer with nan", replace(x, weights=weights | biases, visible=seen, empty_rows="nan")


def measured(dtype: str, kind: str) -> dict[str, dict[str, list[float]]]:
    """Every number of one arithmetic: problem → bound → number."""
    a = arithmetic(kind, dtype)
    found = {}
    with np.errstate(all="ignore"):
        for name, problem in problems().items():
            exact = solve(problem)
            found[name] = {what: said(limit) for what, limit in (*bounds(exact, a), *backward(exact, a))}
        for name, layer in layers():
            found[name] = {what: said(limit) for what, limit in zip(("output", "weights"), bound.multihead(solve_layer(layer), a))}
    return found


@pytest.mark.parametrize(("dtype", "kind"), KINDS)
def test_the_bounds_are_what_they_were(dtype: str, kind: str) -> None:
    expected = json.loads(FILE.read_text(encoding="utf-8"))[f"{dtype} {kind}"]
    found = measured(dtype, kind)
    assert list(found) == list(expected)
    for problem, limits in found.items():
        for (what, now), before in zip(limits.items(), expected[problem], strict=True):
            assert now[1:] == before[1:] and now[0] == pytest.approx(before[0], abs=1e-8), (problem, what)


def test_formats() -> None:
    for name in ("float64", "float32", "float16"):
        info, known = np.finfo(name), FORMATS[name]
        assert (known.u, known.normal, known.largest) == (float(info.eps) / 2, float(info.smallest_normal), float(info.max))
        assert known.eta == float(info.smallest_subnormal) / 2
    known = FORMATS["bfloat16"]  # the upper half of a float32
    largest = float(np.array([0x7F7F0000], dtype=np.uint32).view(np.float32)[0])
    assert (known.u, known.normal, known.largest) == (2.0**-8, float(np.finfo(np.float32).smallest_normal), largest)


@pytest.mark.parametrize("roundings", ["n_pre", "n_post"])
def test_scores_that_are_rounded_less_often_are_promised_more_closely(roundings: str) -> None:
    exact, kind = solve(problems()["plain"]), arithmetic("eager", "bfloat16")
    for promised in (bound.rigorous, bound.probabilistic):
        never, twice = (promised(exact, replace(kind, **{roundings: count})) for count in (0, 2))  # type: ignore[arg-type]
        assert (never < twice).all()


def test_errors_of_many_terms_are_likely_to_cancel() -> None:
    """Of 256 products in TF32 three quarters of what is possible at worst; and what is not rounded before it is multiplied costs nothing."""
    many = Problem(numbers("q", 1, 1, 2, 256), numbers("k", 1, 1, 64, 256), numbers("v", 1, 1, 64, 2), 1 / 16)
    exact, kind = solve(many), arithmetic("tf32", "float32")
    assert (bound.probabilistic(exact, kind) < 0.25 * bound.rigorous(exact, kind)).all()
    exact, kind = solve(problems()["long"]), arithmetic("eager", "bfloat16")
    never, twice = (bound.probabilistic(exact, replace(kind, n_pre=count)) for count in (0, 2))
    assert (never < 0.5 * twice).all()


def test_a_projection_that_may_overflow_has_no_bound() -> None:
    """Its terms, its bias and what rounding adds to both count."""

    def limit(x: float, b: float | None) -> float:
        step = Projection(
            np.array([[[x]]]), np.array([[1.0]]), None if b is None else np.array([b]), np.array([[[x]]]), np.zeros((1, 1, 1))
        )
        return float(bound.linear(step, arithmetic("same", "float16"), 2.0**-53)[0, 0, 0])

    assert limit(65000.0, None) < 900 and limit(-65000.0, None) < 900 and limit(30000.0, -30000.0) < 900
    for x, b in ((65504.0, None), (60000.0, 5500.0), (-60000.0, 5500.0), (40000.0, -30000.0)):
        assert limit(x, b) == np.inf


def test_the_square_of_a_distance_that_cancels_is_the_rounding_of_its_terms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bound, "LARGE", 0)
    for keys in (1, 8):
        exact = solve(Problem(np.zeros((1, 1, 3, 4)), np.zeros((1, 1, keys, 4)), np.full((1, 1, keys, 2), 2.0), 1.0))
        squares = bound.centred_squares(np.ones((1, 1, 3, keys)), exact)
        assert (squares == 4 * (keys + 4) * 2.0**-53 * 8 * keys).all()  # all values are 2, and so is their mean


def test_what_is_promised_of_large_shapes_is_a_little_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Above ``LARGE`` a bound of the bound is computed: never less, and of the same size."""
    for problem in problems().values():
        exact = solve(problem)
        for dtype, kind in (("float32", "fused+lse"), ("bfloat16", "fused")):
            small = bound.rigorous(exact, arithmetic(kind, dtype)), bound.probabilistic(exact, arithmetic(kind, dtype))
            monkeypatch.setattr(bound, "LARGE", 0)
            large = bound.rigorous(exact, arithmetic(kind, dtype)), bound.probabilistic(exact, arithmetic(kind, dtype))
            monkeypatch.undo()
            for less, more in zip(small, large):
                assert (less <= more * (1 + 1e-12)).all() and (np.isinf(less) == np.isinf(more)).all()
                assert (more <= 4 * less + 1e-30).all()


if __name__ == "__main__":
    texts = []
    for dtype, kind in KINDS:
        rows = [f"{json.dumps(name)}: {json.dumps(list(limits.values()))}" for name, limits in measured(dtype, kind).items()]
        texts.append(f'"{dtype} {kind}": {{\n' + ",\n".join(rows) + "\n}")
    FILE.write_text("{\n" + ",\n".join(texts) + "\n}\n", encoding="utf-8")
