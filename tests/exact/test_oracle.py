"""The oracle: against arbitrary precision, against rational arithmetic, and against a second derivation."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import numpy.typing as npt
import pytest

from properties.exact import oracle
from properties.exact.double_double import DoubleDouble
from properties.exact.oracle import Exact, LayerProblem, Precision, Problem, number_system, solve, solve_layer

Array = npt.NDArray[Any]

# (precision, error relative to the natural size of each result)
PRECISIONS: list[tuple[Precision, float]] = [("float64", 2e-14), ("double-double", 1e-28)]
if oracle.HAS_LONGDOUBLE:
    PRECISIONS.append(("longdouble", 2e-17))
REGIMES = ("normal", "large", "ties", "cancelling", "constant", "tiny", "huge_values", "low_bias", "offset")


def make_problem(regime: str, seed: int) -> Problem:
    """A small random problem with groups of heads, a mask that differs per row, and sometimes a bias."""
    rng = np.random.default_rng(seed)
    L, S, D, Dv = (int(n) for n in rng.integers(1, 6, size=4))
    q, k, v = rng.normal(size=(1, 4, L, D)), rng.normal(size=(1, 2, S, D)), rng.normal(size=(1, 2, S, Dv))
    bias: Array | None = rng.normal(size=(4, L, S)) if seed % 2 else None
    visible = rng.random((1, 1, L, S)) < 0.8 if seed % 3 else None
    if regime == "large":
        q *= 100
    elif regime == "ties":
        q, k = np.round(q), np.round(k)
    elif regime == "cancelling":
        v = 1e6 * np.sign(v) + v
    elif regime == "constant":
        v = np.full_like(v, 0.1)
    elif regime == "tiny":
        q, v = q * 1e-200, v * 1e-290
    elif regime == "huge_values":
        v *= 1e300
    elif regime == "low_bias":
        bias = np.where(rng.random((L, S)) < 0.5, -1.7976931348623157e308, 0.0)
        bias[:, 0] = 0.0
        visible = None if visible is None else visible | (np.arange(S) == 0)
    elif regime == "offset":
        k = k + 30
    return Problem(q, k, v, float(rng.choice([0.5, -0.7, 1.0, 0.0])), visible, bias, str(rng.choice(["zero", "mean"])))


def arbitrary(problem: Problem) -> tuple[Array, Array, Array]:
    """out, weights, lse in mpmath, from the definition: no shift, one row at a time."""
    B, H, L, S = problem.shape
    group = H // problem.k.shape[1]
    Dv = problem.v.shape[-1]
    out, weights, lses = (np.empty(shape, object) for shape in ((B, H, L, Dv), (B, H, L, S), (B, H, L)))
    visible = np.broadcast_to(True if problem.visible is None else problem.visible, (B, H, L, S))
    bias = np.broadcast_to(0.0 if problem.bias is None else problem.bias, (B, H, L, S))
    for b, h, i in np.ndindex(B, H, L):
        g = h // group
        terms = [mpmath.mpf(0)] * S
        for j in np.flatnonzero(visible[b, h, i]):
            score = mpmath.fdot(zip(problem.q[b, h, i].tolist(), problem.k[b, g, j].tolist(), strict=True))
            score *= mpmath.mpf(problem.scale)
            if problem.softcap is not None:
                score = problem.softcap * mpmath.tanh(score / problem.softcap)
            score += mpmath.mpf(float(bias[b, h, i, j]))
            terms[j] = mpmath.exp(score) if score > -1e300 else mpmath.mpf(0)
        total = mpmath.fsum(terms)
        lses[b, h, i] = mpmath.log(total) if total else -mpmath.inf
        if not total and problem.empty_rows == "mean":
            terms, total = [mpmath.mpf(1)] * S, mpmath.mpf(S)
        for j in range(S):
            weights[b, h, i, j] = terms[j] / (total or 1)
        for d in range(Dv):
            out[b, h, i, d] = mpmath.fdot(weights[b, h, i], [mpmath.mpf(x) for x in problem.v[b, g, :, d].tolist()])
    return out, weights, lses


def worst(value: Array, tail: Array, reference: Array, size: Array) -> float:
    """The largest |value + tail - reference| relative to size."""
    gaps = [
        abs(mpmath.mpf(float(x)) + mpmath.mpf(float(y)) - z) / mpmath.mpf(float(n))
        for x, y, z, n in zip(value.flat, tail.flat, reference.flat, np.broadcast_to(size, value.shape).flat, strict=True)
        if np.isfinite(x) or mpmath.isfinite(z)
    ]
    return float(max(gaps, default=0))


@pytest.mark.parametrize(("precision", "unit"), PRECISIONS)
@pytest.mark.parametrize("regime", REGIMES)
def test_agrees_with_arbitrary_precision(precision: Precision, unit: float, regime: str) -> None:
    with mpmath.workdps(60):
        for seed in range(8):
            problem = make_problem(regime, seed)
            exact = solve(problem, precision)
            out, weights, lse = arbitrary(problem)
            # Scores of size s are right to s units, and so are, relatively, the weights.
            size = 1 + np.abs(np.where(np.isfinite(exact.logits) & (exact.logits > -1e300), exact.logits, 0)).max()
            assert worst(exact.weights, exact.weights_tail, weights, size) < unit
            assert worst(exact.lse, exact.lse_tail, lse, size) < unit
            spread = np.abs(problem.v).max(-2).repeat(2, 1)[..., None, :]  # (1, H, 1, Dv)
            assert worst(exact.out, exact.out_tail, out, size * spread) < unit
            assert exact.well_posed.all()


def test_long_rows_keep_their_digits() -> None:
    rng = np.random.default_rng(8)
    problem = Problem(*rng.normal(size=(3, 1, 1, 300, 2)), scale=1.0)
    problem = replace(problem, q=problem.q[:, :, :2])
    with mpmath.workdps(60):
        out, _, lse = arbitrary(problem)
        exact = solve(problem, "extended")
        assert worst(exact.out, exact.out_tail, out, np.array(1.0)) < 5e-18
        assert worst(exact.lse, exact.lse_tail, lse, np.array(1.0)) < 5e-18


def test_softcap_and_its_order() -> None:
    """The cap comes after the scale and before the bias."""
    for precision, unit in PRECISIONS:
        problem = replace(make_problem("large", 1), softcap=2.5)
        with mpmath.workdps(60):
            out, _, _ = arbitrary(problem)
            exact = solve(problem, precision)
            assert worst(exact.out, exact.out_tail, out, np.array(10.0)) < unit


def rational(exact: Exact, reference: list[Fraction]) -> bool:
    """Is the first head's first row, tail included, within 2^-60 of these fractions?"""
    row, tail = exact.out[0, 0, 0], exact.out_tail[0, 0, 0]
    return all(abs(Fraction(float(x)) + Fraction(float(y)) - z) < Fraction(1, 2**60) for x, y, z in zip(row, tail, reference, strict=True))


@pytest.mark.parametrize("precision", [name for name, _ in PRECISIONS if name != "float64"])
def test_uniform_one_hot_and_powers_of_two_in_fractions(precision: Precision) -> None:
    """Where the softmax is a known fraction, so is the result."""
    v = np.array([[[[1.0, -3.0], [2.0, 5.0], [4.0, 0.25]]]])
    zeros, thirds = np.zeros((1, 1, 1, 2)), Fraction(1, 3)
    uniform = solve(Problem(zeros, np.ones((1, 1, 3, 2)), v, 1.0), precision)
    assert rational(uniform, [7 * thirds, Fraction(9, 4) * thirds])
    two = solve(Problem(zeros, np.ones((1, 1, 3, 2)), v, 1.0, np.array([True, False, True])), precision)
    assert rational(two, [Fraction(5, 2), Fraction(-11, 8)])
    one = solve(Problem(np.full((1, 1, 1, 2), 1e4), np.eye(3, 2)[None, None] * [[1.0], [2.0], [0.0]], v, 1.0), precision)
    assert rational(one, [Fraction(2), Fraction(5)])
    # Bias ln 2 (nearest float64, its error being 2^-55) doubles a weight: 1/4, 1/2, 1/4.
    double = solve(Problem(zeros, np.ones((1, 1, 3, 2)), v, 1.0, None, np.array([0.0, math.log(2), 0.0])), precision)
    assert np.abs(double.out[0, 0, 0] - [9 / 4, 29 / 16]).max() < 2.0**-52


def test_second_derivation_one_key_at_a_time() -> None:
    """The online recurrence over keys in mpmath, which never sees a whole row, gives the same output."""
    for seed in range(6):
        problem = replace(make_problem("normal", 2 * seed + 1), empty_rows="zero")
        exact = solve(problem, "extended")
        with mpmath.workdps(50):
            B, H, L, S = problem.shape
            for b, h, i in np.ndindex(B, H, L):
                lse, out = -mpmath.inf, [mpmath.mpf(0)] * problem.v.shape[-1]
                for j in range(S):
                    if not np.isfinite(exact.logits[b, h, i, j]):
                        continue
                    product = mpmath.fdot(problem.q[b, h, i].tolist(), problem.k[b, h // 2, j].tolist())
                    s = product * problem.scale + float(problem.bias[h, i, j])  # type: ignore[index]
                    new = s if lse == -mpmath.inf else lse + mpmath.log1p(mpmath.exp(s - lse))
                    share = mpmath.exp(s - new)  # out moves towards the new value by its share
                    out = [o + share * (x - o) for o, x in zip(out, problem.v[b, h // 2, j].tolist(), strict=True)]
                    lse = new
                gap = [abs(float(x - mpmath.mpf(float(y)))) for x, y in zip(out, exact.out[b, h, i], strict=True)]
                assert max(gap) < 1e-15
                assert (lse == -mpmath.inf) == (exact.lse[b, h, i] == -math.inf)


def test_groups_of_heads_are_repeated_heads() -> None:
    rng = np.random.default_rng(1)
    q, k, v = rng.normal(size=(2, 6, 3, 4)), rng.normal(size=(2, 2, 5, 4)), rng.normal(size=(2, 2, 5, 3))
    grouped = solve(Problem(q, k, v, 0.5))
    repeated = solve(Problem(q, k.repeat(3, 1), v.repeat(3, 1), 0.5))
    np.testing.assert_array_equal(grouped.out, repeated.out)
    with pytest.raises(ValueError, match="2 key/value heads do not divide 5 query heads"):
        Problem(q[:, :5], k, v, 0.5)


def nine(**changes: Any) -> Problem:
    """Three rows, three keys; row 0 and 2 do not see key 2, row 1 sees all."""
    rng = np.random.default_rng(3)
    visible = np.array([[True, True, False], [True, True, True], [True, True, False]])
    return replace(Problem(*rng.normal(size=(3, 1, 1, 3, 3)), scale=1.0, visible=visible), **changes)


@pytest.mark.parametrize("precision", [name for name, _ in PRECISIONS])
@pytest.mark.parametrize("junk", [math.nan, math.inf, -math.inf, 1.7e308])
@pytest.mark.filterwarnings("error")
def test_what_a_row_cannot_see_does_not_reach_it(junk: float, precision: Precision) -> None:
    clean = solve(nine(), precision)
    for name in ("k", "v"):
        tensor = getattr(nine(), name).copy()
        tensor[..., 2, 0] = junk
        dirty = solve(nine(**{name: tensor}), precision)
        for row in (0, 2):
            np.testing.assert_array_equal(dirty.out[0, 0, row], clean.out[0, 0, row])
            assert dirty.well_posed[0, 0, row].all()
            assert dirty.lse[0, 0, row] == clean.lse[0, 0, row]
        if abs(junk) < math.inf:
            continue
        if name == "v":  # only one element of row 1 is touched
            assert dirty.well_posed[0, 0, 1].tolist() == [False, True, True]
            np.testing.assert_array_equal(dirty.out[0, 0, 1, 1:], clean.out[0, 0, 1, 1:])
            np.testing.assert_equal(dirty.out[0, 0, 1, 0], junk)
        else:
            assert not dirty.well_posed[0, 0, 1].any()
        assert np.isnan(dirty.out[0, 0, 1]).any() or name == "v" or junk < 0 or np.isfinite(dirty.out).all()


@pytest.mark.filterwarnings("error")
def test_non_finite_queries_stay_in_their_row() -> None:
    q = nine().q.copy()
    q[0, 0, 1, 0] = math.nan
    exact = solve(nine(q=q))
    assert np.isnan(exact.out[0, 0, 1]).all()
    assert exact.well_posed[0, 0].tolist() == [[True] * 3, [False] * 3, [True] * 3]


@pytest.mark.parametrize("softcap", [None, 3.0])
def test_a_query_that_is_infinite_leaves_its_row_ill_posed_though_its_scores_are_finite(softcap: float | None) -> None:
    """A cap makes finite scores of infinite logits; which sign they had is still a matter of one element."""
    q, k = np.array([[[[math.inf, 1.0], [1.0, 1.0]]]]), np.array([[[[1.0, 2.0], [-1.0, 1.0]]]])
    exact = solve(Problem(q, k, np.array([[[[1.0], [2.0]]]]), 1.0, softcap=softcap))
    assert exact.well_posed[0, 0, :, 0].tolist() == [False, True]


@pytest.mark.parametrize("precision", [name for name, _ in PRECISIONS])
@pytest.mark.filterwarnings("error")
def test_rows_without_a_key_follow_the_convention(precision: Precision) -> None:
    visible = np.array([[True, True, False], [False] * 3, [True, True, False]])
    other = solve(nine(), precision)
    for convention, value in (("zero", np.zeros(3)), ("nan", np.full(3, math.nan)), ("mean", nine().v[0, 0].mean(0))):
        exact = solve(nine(visible=visible, empty_rows=convention), precision)
        assert (np.isnan(value) == np.isnan(exact.out[0, 0, 1])).all()
        assert (np.nan_to_num(np.abs(exact.out[0, 0, 1] - value)) <= np.nan_to_num(4 * 2.0**-53 * np.abs(value))).all()
        np.testing.assert_array_equal(exact.out[0, 0, [0, 2]], other.out[0, 0, [0, 2]])
        assert exact.lse[0, 0, 1] == -math.inf
        assert exact.well_posed.all()
        hidden = solve(nine(visible=None, bias=np.where(visible, 0.0, -math.inf), empty_rows=convention), precision)
        np.testing.assert_array_equal(hidden.out, exact.out)
        none = solve(nine(k=nine().k[:, :, :0], v=nine().v[:, :, :0], visible=None, empty_rows=convention), precision)
        assert none.out.shape == (1, 1, 3, 3)
        assert (none.lse == -math.inf).all()
        assert np.isnan(none.out).all() == (convention != "zero")
    with pytest.raises(ValueError, match="empty_rows is 'skip'"):
        nine(empty_rows="skip")


@pytest.mark.filterwarnings("error")
def test_distance_is_nan_aware() -> None:
    exact = solve(nine(visible=np.zeros((3, 3), bool), empty_rows="nan"))
    assert not exact.out_error(np.full((1, 1, 3, 3), math.nan)).any()
    assert np.isinf(exact.out_error(np.zeros((1, 1, 3, 3)))).all()
    assert not exact.lse_error(np.full((1, 1, 3), -math.inf)).any()


@pytest.mark.parametrize("precision", [name for name, _ in PRECISIONS])
def test_layer_is_projection_attention_projection(precision: Precision) -> None:
    rng = np.random.default_rng(6)
    weights: dict[str, Array | None] = {name: rng.normal(size=(6, 6)) for name in ("w_q", "w_k", "w_v", "w_o")}
    weights |= {"b_q": rng.normal(size=6), "b_k": None, "b_v": rng.normal(size=6)}
    query, key, value = rng.normal(size=(2, 3, 6)), rng.normal(size=(2, 4, 6)), rng.normal(size=(2, 4, 6))
    layer = solve_layer(LayerProblem(query, key, value, weights, num_heads=2), precision)
    assert layer.weights.shape == (2, 2, 3, 4)
    with mpmath.workdps(50):
        project = [
            mpmath.matrix(x[0]) * mpmath.matrix(weights[f"w_{n}"]).T
            + mpmath.matrix(np.zeros((len(x[0]), 6)) + (0 if weights.get(f"b_{n}") is None else weights[f"b_{n}"]))
            for n, x in (("q", query), ("k", key), ("v", value))
        ]
        joined = mpmath.matrix(3, 6)
        for h in range(2):
            q, k, v = (x[:, 3 * h : 3 * h + 3] for x in project)
            # The scale is a float64 number: 1/sqrt(3) as the layer has it.
            scores = q * k.T * mpmath.mpf(1 / math.sqrt(3))
            for i in range(3):
                terms = [mpmath.exp(scores[i, j]) for j in range(4)]
                for d in range(3):
                    joined[i, 3 * h + d] = mpmath.fdot(terms, [v[j, d] for j in range(4)]) / mpmath.fsum(terms)
        out = joined * mpmath.matrix(weights["w_o"]).T
        reference = np.array([[out[i, e] for e in range(6)] for i in range(3)], object)
        # The joined heads keep value and tail, so nothing is lost between the steps.
        assert worst(layer.out[0], layer.out_tail[0], reference, np.array(100.0)) < dict(PRECISIONS)[precision]
    with pytest.raises(ValueError, match="4 heads do not divide a width of 6"):
        solve_layer(LayerProblem(query, key, value, weights, num_heads=4))


def test_double_double_operations_against_fractions() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=200) * 2.0 ** rng.integers(-40, 40, 200), rng.normal(size=200)
    a, b = DoubleDouble(x, x * 1e-17), DoubleDouble(y, -y * 1e-17)

    def exactly(z: DoubleDouble) -> list[Fraction]:
        return [Fraction(float(h)) + Fraction(float(t)) for h, t in zip(z.hi, z.lo, strict=True)]

    for ours, theirs, size in (
        (a + b, lambda s, t: s + t, lambda s, t: abs(s) + abs(t)),
        (a - b, lambda s, t: s - t, lambda s, t: abs(s) + abs(t)),
        (a * b, lambda s, t: s * t, lambda s, t: abs(s * t)),
        (a / b, lambda s, t: s / t, lambda s, t: abs(s / t)),
    ):
        for got, s, t in zip(exactly(ours), exactly(a), exactly(b), strict=True):
            assert abs(got - theirs(s, t)) <= size(s, t) * Fraction(1, 2**100)


def test_double_double_functions_against_arbitrary_precision() -> None:
    x = np.concatenate([np.linspace(-700, 700, 57), [1e-10, -1e-300, 0.0]])
    with mpmath.workdps(50):
        for got, number in zip(zip((e := DoubleDouble(x).exp()).hi, e.lo, strict=True), x, strict=True):
            true = mpmath.exp(mpmath.mpf(float(number)))
            assert abs(mpmath.mpf(float(got[0])) + mpmath.mpf(float(got[1])) - true) <= true * 2e-29 + 1e-320
        positive = np.exp(x / 4)
        for got, number in zip(zip((e := DoubleDouble(positive).log()).hi, e.lo, strict=True), positive, strict=True):
            true = mpmath.log(mpmath.mpf(float(number)))
            assert abs(mpmath.mpf(float(got[0])) + mpmath.mpf(float(got[1])) - true) <= (1 + abs(true)) * 2e-31
    with np.errstate(all="ignore"):
        ends = DoubleDouble(np.array([-math.inf, math.inf, math.nan, 800.0, -800.0])).exp()
    np.testing.assert_array_equal(ends.hi, [0.0, math.inf, math.nan, math.inf, 0.0])


def test_number_systems() -> None:
    """The wider of what the machine offers is taken for float64 targets, and each says how far it is off."""
    units = {name: number_system(name)[1] for name in ("float64", "longdouble", "double-double", "extended")}  # type: ignore[arg-type]
    assert units["float64"] == 2.0**-53 and units["double-double"] == 2.0**-98
    assert 2 * np.longdouble(units["longdouble"]) == np.nextafter(np.longdouble(1), np.longdouble(2)) - 1  # half a step from 1
    assert units["extended"] == units["longdouble" if units["longdouble"] <= 2.0**-64 else "double-double"]
    with pytest.raises(ValueError, match="unknown precision 'half'"):
        number_system("half")  # type: ignore[arg-type]


def test_what_is_no_problem_is_refused() -> None:
    four, three = np.zeros((1, 2, 3, 4)), np.zeros((2, 3, 4))
    for q, k, v in ((three, four, four), (four, three, four), (four, four, three)):
        with pytest.raises(ValueError, match="must be 4-dimensional"):
            Problem(q, k, v, 1.0)
    with pytest.raises(ValueError, match="3 key/value heads do not divide 2 query heads"):
        Problem(four, np.zeros((1, 3, 3, 4)), np.zeros((1, 3, 3, 4)), 1.0)
    with pytest.raises(ValueError, match="empty_rows is 'one'"):
        Problem(four, four, four, 1.0, empty_rows="one")
    assert Problem(four, four[:, :0], four[:, :0], 1.0).shape == (1, 2, 3, 3)


def test_a_key_is_hidden_by_either_of_mask_and_bias() -> None:
    seen = np.array([[True, True, False, False], [True, False, True, False], [False, True, False, True]])
    bias = np.array([[0.5, -math.inf, 0.0, -math.inf], [0.0, 1.0, 2.0, 3.0], [0.0, -math.inf, 0.0, -math.inf]])
    rng = np.random.default_rng(9)
    q, k, v = (rng.normal(size=(1, 1, n, 2)) for n in (3, 4, 4))
    for empty_rows in ("zero", "nan", "mean"):
        exact = solve(Problem(q, k, v, 1.0, seen, bias, empty_rows))
        both = seen & (bias > -math.inf)
        assert exact.visible is not None and (exact.visible[0, 0] == both).all()
        assert exact.empty is not None and exact.empty[0, 0].tolist() == [False, False, True]
        assert (exact.logits[0, 0][~both] == -math.inf).all() and np.isfinite(exact.logits[0, 0][both]).all()
        assert np.isfinite(exact.lse[0, 0, :2]).all() and exact.lse[0, 0, 2] == -math.inf
        assert (exact.weights[0, 0, :2][~both[:2]] == 0).all() and exact.out[0, 0, 0].tolist() == v[0, 0, 0].tolist()
    for hides in (seen, None):
        exact = solve(Problem(q, k, v, 1.0, hides, np.zeros((3, 4))))
        assert (exact.visible is None) if hides is None else (exact.visible == seen).all()


def test_infinite_values_reach_what_has_weight() -> None:
    """A weight that is 0 in the type makes them NaN; of +∞ and −∞ there is no sum."""
    k, v = np.zeros((1, 1, 4, 1)), np.array([math.inf, -math.inf, 1.0, 2.0]).reshape(1, 1, 4, 1)
    low, off = -1000.0, -math.inf
    bias = np.array([[0, off, 0, 0], [off, 0, 0, 0], [0, 0, off, 0], [low, off, 0, 0], [off, off, 0, 0]])
    exact = solve(Problem(np.zeros((1, 1, 5, 1)), k, v, 1.0, bias=bias), "extended")
    assert (exact.out_tail == 0).all()
    np.testing.assert_array_equal(exact.out[0, 0, :, 0], [math.inf, -math.inf, math.nan, math.nan, 1.5])
    assert exact.well_posed[0, 0, :, 0].tolist() == [False] * 4 + [True] and exact.row_posed.all()
    assert (exact.v[0, 0, :, 0] == [0, 0, 1, 2]).all()


@pytest.mark.parametrize("junk", [math.nan, math.inf])
def test_a_mean_of_values_that_are_none_is_none(junk: float) -> None:
    """A row without a key is the mean of all values, hidden ones too; one that sees another key is not touched."""
    value = np.arange(6.0).reshape(1, 1, 3, 2)
    value[0, 0, 2, 0] = junk
    seen = np.array([[False] * 3, [True, True, False]])
    exact = solve(Problem(np.ones((1, 1, 2, 4)), np.ones((1, 1, 3, 4)), value, 0.5, visible=seen, empty_rows="mean"))
    np.testing.assert_array_equal(exact.out[0, 0], [[junk, 3.0], [1.0, 2.0]])
    assert exact.well_posed[0, 0].tolist() == [[False, True], [True, True]]


def test_a_cap_that_is_reached() -> None:
    for precision, _ in PRECISIONS:
        q, k = np.array([1e4, -1e4, 0.0]).reshape(1, 1, 3, 1), np.ones((1, 1, 2, 1))
        exact = solve(Problem(q, k, k, 1.0, softcap=2.0), precision)
        assert exact.logits[0, 0, :, 0].tolist() == [2.0, -2.0, 0.0], precision


def test_sums_of_double_doubles_against_fractions() -> None:
    rng = np.random.default_rng(1)
    for shape in ((5,), (3, 5), (2, 3, 5), (2, 3, 0)):
        x = rng.normal(size=shape) * 2.0 ** rng.integers(-30, 30, size=shape)
        number = DoubleDouble(x, x * 1e-17)
        total, kept = number.sum(-1), number.sum(-1, keepdims=True)
        assert total.hi.shape == shape[:-1] and kept.hi.shape == (*shape[:-1], 1) and (kept.hi[..., 0] == total.hi).all()
        for at in np.ndindex(shape[:-1]):
            parts = [Fraction(float(h)) + Fraction(float(t)) for h, t in zip(number.hi[at], number.lo[at], strict=True)]
            got = Fraction(float(total.hi[at])) + Fraction(float(total.lo[at]))
            assert abs(got - sum(parts)) <= sum(map(abs, parts)) * Fraction(1, 2**100)


def test_what_one_head_sees_decides_for_the_row_of_a_layer() -> None:
    rng = np.random.default_rng(6)
    weights: dict[str, Array | None] = {name: rng.normal(size=(4, 4)) for name in ("w_q", "w_k", "w_v", "w_o")}
    value = rng.normal(size=(1, 3, 4))
    value[0, 1] = math.nan
    seen = np.ones((1, 2, 3, 3), bool)
    seen[0, :, 0, 1], seen[0, 0, 1, 1] = False, False  # row 0: nobody sees the token that is none; row 1: the second head does
    layer = solve_layer(LayerProblem(rng.normal(size=(1, 3, 4)), rng.normal(size=(1, 3, 4)), value, weights, 2, seen))
    assert layer.well_posed[0].tolist() == [[True] * 4, [False] * 4, [False] * 4]
    assert np.isfinite(layer.out[0, 0]).all() and np.isnan(layer.out[0, 1:]).all()
