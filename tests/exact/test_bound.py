"""The bounds: no honest kernel exceeds them, a hill-climb comes near them, and planted faults exceed them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from nightly import some_by_night

from properties.exact import bound, oracle
from properties.exact.arithmetic import HALVES, KINDS, Arithmetic, arithmetic, default_arithmetic

torch = pytest.importorskip("torch")
from honest_kernels import DTYPES, REGIMES, Case, eager, eager_scaled_first, honest, inner, make_case, used

from properties.attention.case import Case as DrawnCase
from properties.attention.trial import Trial
from properties.catalogue import PROPERTIES
from properties.engine.cases import regimes
from properties.engine.core.attempt import try_case
from properties.engine.search.find_target import Builtins, find_targets
from properties.multihead.call import as_attention

Array = npt.NDArray[Any]


@pytest.mark.nightly(but=2)
@pytest.mark.parametrize("dtype", some_by_night(DTYPES, ("float32", "bfloat16")))
@pytest.mark.filterwarnings("ignore")
def test_no_honest_kernel_leaves_the_bounds(dtype: str) -> None:
    rng = np.random.default_rng(20)
    ran = 0
    for number in range(250):
        case = make_case(rng, REGIMES[number % len(REGIMES)], dtype, longest=160 if number % 5 == 0 else 40)
        exact = case.exact()
        limits: dict[Arithmetic, tuple[Array, Array]] = {}
        for name, kernel, kind in honest(dtype):
            if name == "SDPA flash" and case.v.shape[-1] != case.q.shape[-1]:
                continue  # not supported there
            if kind not in limits:
                limits[kind] = bound.rigorous(exact, kind), bound.probabilistic(exact, kind, alpha=1e-6)
            rigorous, likely = limits[kind]
            out = kernel(case)
            assert np.isfinite(rigorous).all(), (name, number)
            assert (likely <= rigorous).all()
            assert used(case, out, exact, rigorous) <= 1, (name, number)
            assert used(case, out, exact, likely) <= 1, (name, number)
            ran += 1
    assert ran > 2250


REACHED = [("float64", 0.15), ("float32", 0.15), ("float16", 0.5), ("bfloat16", 0.5)]


@pytest.mark.parametrize(("dtype", "reach"), some_by_night(REACHED, REACHED[1:3]))
@pytest.mark.filterwarnings("ignore")
def test_hill_climbing_comes_near_the_bound_and_never_exceeds_it(dtype: str, reach: float) -> None:
    """An adversary moves single operands to raise the used fraction of the bound."""
    kind, rng, best = arithmetic("eager", dtype), np.random.default_rng(7), 0.0
    for climb in range(3):
        kernel = (eager, eager_scaled_first)[climb % 2]
        case = make_case(rng, ("simple", "normal", "wide")[climb], dtype, longest=6)
        height = 0.0
        for _ in range(900):
            trial = replace(case, **{name: getattr(case, name).clone() for name in "qkv"})
            tensor = getattr(trial, "qkv"[int(rng.integers(3))]).view(-1)
            at = int(rng.integers(len(tensor)))
            tensor[at] = (
                tensor[at] * float(rng.choice([-1, 0.5, 2, 1.01, 0.99]))
                if rng.random() < 0.7
                else float(rng.normal() * rng.choice([0.1, 1, 10]))
            )
            exact = trial.exact()
            now = used(trial, kernel(trial), exact, bound.rigorous(exact, kind))
            assert now <= 1, (climb, now)
            if now >= height:
                case, height = trial, now
        best = max(best, height)
    assert best > reach


def small_case(dtype: str, seed: int = 3) -> Case:
    """(1, 2, 6, 8) normal operands without a mask."""
    rng, kind = np.random.default_rng(seed), getattr(torch, dtype)
    q, k, v = (torch.from_numpy(rng.normal(size=(1, 2, 6, 8))).to(kind) for _ in range(3))
    return Case(q, k, v, None, 8**-0.5)


def faulty(scale: float = 1.0, dropped: bool = False, more: float = 0.0, half_weights: bool = False) -> Any:
    """The eager kernel with one mistake."""

    def kernel(case: Case) -> Any:
        scores = (case.q @ case.k.mT) * (case.scale * scale)
        if dropped:
            scores[..., -1, -1] = -math.inf
        terms = torch.exp(scores - scores.amax(-1, keepdim=True))
        weights = terms / (terms.sum(-1, keepdim=True) + more)
        return (weights.bfloat16().to(weights.dtype) if half_weights else weights) @ case.v

    return kernel


@pytest.mark.parametrize(
    ("dtype", "fault"),
    [
        ("float64", {"scale": 1 + 1e-13}),
        ("float64", {"more": 1e-13}),
        ("float32", {"scale": 1 + 1e-4}),
        ("float32", {"dropped": True}),
        ("float32", {"more": 1e-4}),
        ("float32", {"half_weights": True}),
        ("float16", {"scale": 1.1}),
        ("float16", {"dropped": True}),
        ("bfloat16", {"dropped": True}),
    ],
)
def test_planted_faults_exceed_the_bound(dtype: str, fault: dict[str, Any]) -> None:
    case, kind = small_case(dtype), default_arithmetic(dtype)
    exact = case.exact()
    limit = bound.rigorous(exact, kind)
    assert used(case, faulty()(case), exact, limit) <= 1
    assert used(case, faulty(**fault)(case), exact, limit) > 1


def test_denominator_plus_a_millionth_is_seen_in_float32() -> None:
    """Where a row has few keys the bound is narrow enough for the usual epsilon in the denominator."""
    case = small_case("float32")
    one = replace(case, k=case.k[..., :1, :], v=case.v[..., :1, :])
    exact = one.exact()
    limit = bound.probabilistic(exact, arithmetic("same", "float32"))
    assert used(one, faulty(more=2e-6)(one), exact, limit) > 1
    assert used(one, faulty()(one), exact, limit) <= 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_weights_and_log_sum_exp_stay_inside(dtype: str) -> None:
    rng = np.random.default_rng(5)
    kind = arithmetic("wide" if dtype in HALVES else "same", dtype)
    for number in range(300):
        case = make_case(rng, REGIMES[number % len(REGIMES)], dtype)
        exact = case.exact()
        scores, _, _ = inner(case)
        lse = torch.logsumexp(scores, -1)
        limit = bound.weights_bound(exact, kind)
        assert (exact.lse_error(lse.double().numpy()) <= bound.lse_bound(exact, kind)).all(), number
        for weights in (torch.softmax(scores, -1), torch.exp(scores - lse[..., None])):
            assert (exact.weights_error(weights.to(case.q.dtype).double().numpy()) <= limit).all(), number
        assert exact.visible is None or not limit[~exact.visible].any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.filterwarnings("ignore")
def test_layers_stay_inside(dtype: str, kept: bool) -> None:
    """torch.nn.MultiheadAttention against linear, attention, linear; with and without weights."""
    rng, kind = np.random.default_rng(11), getattr(torch, dtype)
    for _ in range(40):
        heads, width = int(rng.integers(1, 4)), int(rng.integers(1, 9))
        E, L, S = heads * width, int(rng.integers(1, 6)), int(rng.integers(1, 9))
        layer = torch.nn.MultiheadAttention(E, heads, batch_first=True, dtype=kind)
        with torch.no_grad():
            layer.in_proj_bias.normal_(generator=torch.Generator().manual_seed(int(rng.integers(99))))
        query, key, value = (torch.from_numpy(rng.normal(size=(2, n, E))).to(kind) for n in (L, S, S))
        with torch.no_grad():
            out, weights = layer(query, key, value, need_weights=kept, average_attn_weights=False)
        matrices = [x.detach().double().numpy() for x in layer.in_proj_weight.chunk(3)]
        vectors = [x.detach().double().numpy() for x in layer.in_proj_bias.chunk(3)]
        names = {f"{kind}_{step}": x for kind, all3 in (("w", matrices), ("b", vectors)) for step, x in zip("qkv", all3)}
        names |= {
            "w_o": layer.out_proj.weight.detach().double().numpy(),
            "b_o": layer.out_proj.bias.detach().double().numpy(),
        }
        operands = [x.double().numpy() for x in (query, key, value)]
        exact = oracle.solve_layer(
            oracle.LayerProblem(*operands, weights=names, num_heads=heads),
            "extended" if dtype == "float64" else "float64",
        )
        out_limit, weights_limit = bound.multihead(exact, default_arithmetic(dtype))
        assert (exact.out_error(out.double().numpy()) <= out_limit).all()
        assert np.isfinite(out_limit).all()
        if kept:
            assert (exact.attention.weights_error(weights.double().numpy()) <= weights_limit).all()


def test_a_row_that_is_nan_in_one_head_is_nan_in_the_layer_and_nothing_is_allowed() -> None:
    rng = np.random.default_rng(12)
    weights: dict[str, Any] = {name: rng.normal(size=(4, 4)) for name in ("w_q", "w_k", "w_v", "w_o")}
    seen = np.ones((1, 2, 3, 3), bool)
    seen[0, 0, 1] = False
    operands = (rng.normal(size=(1, 3, 4)) for _ in range(3))
    exact = oracle.solve_layer(oracle.LayerProblem(*operands, weights, 2, seen, empty_rows="nan"))
    limit, _ = bound.multihead(exact, default_arithmetic("float32"))
    assert np.isnan(exact.out[0, 1]).all() and not limit[0, 1].any()
    assert (limit[0, [0, 2]] > 0).all() and np.isfinite(limit).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_softcapped_scores_stay_inside(dtype: str) -> None:
    rng, kind = np.random.default_rng(13), arithmetic("eager", dtype)
    for number in range(60):
        case = make_case(rng, REGIMES[number % len(REGIMES)], dtype)
        capped = 2.0 * torch.tanh((case.q @ case.k.mT) * case.scale / 2.0)
        capped = capped if case.bias is None else capped + case.bias
        exact = case.exact()
        exact = oracle.solve(replace(exact.problem, softcap=2.0), "extended" if dtype == "float64" else "float64")
        assert used(case, torch.softmax(capped, -1) @ case.v, exact, bound.rigorous(exact, kind)) <= 1, number


def problem(**changes: Any) -> oracle.Problem:
    rng = np.random.default_rng(2)
    q, k, v = (rng.normal(size=(1, 1, 3, 4)).astype(np.float16).astype(float) for _ in range(3))
    return replace(oracle.Problem(q, k, v, 0.5), **changes)


def test_rows_without_a_key() -> None:
    """0 for the conventions zero and nan; the bound of an average of everything for mean."""
    first = np.array([[True] * 3, [False] * 3, [True, False, True]])
    kind = arithmetic("same", "float32")
    for convention in ("zero", "nan", "mean"):
        exact = oracle.solve(problem(visible=first, empty_rows=convention))
        limit, weights = bound.rigorous(exact, kind), bound.weights_bound(exact, kind)
        assert np.isfinite(limit).all()
        assert bound.lse_bound(exact, kind)[0, 0, 1] == 0
        if convention == "mean":
            mean, size = exact.problem.v[0, 0].mean(0), np.abs(exact.problem.v[0, 0]).mean(0)
            assert (np.abs(exact.out[0, 0, 1] - mean) <= 2 * (exact.problem.v.shape[2] + 2) * 2.0**-53 * size).all()
            assert (limit[0, 0, 1] > 0).all()
            assert limit.max() < 1e-5
            assert (weights[0, 0, 1] > 0).all()
            assert weights.max() < 1e-5
        else:
            assert not limit[0, 0, 1].any()
            assert not weights[0, 0, 1].any()
        assert not weights[0, 0, 2, 1]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "sizes", [(0, 1, 2, 3, 4, 5), (2, 0, 2, 3, 4, 5), (1, 2, 0, 3, 4, 5), (1, 2, 3, 0, 4, 5), (1, 2, 3, 4, 0, 5), (1, 2, 3, 4, 5, 0)]
)
@pytest.mark.filterwarnings("error")
def test_sizes_of_zero(dtype: str, sizes: tuple[int, ...]) -> None:
    B, H, L, S, D, Dv = sizes
    empty = oracle.Problem(np.ones((B, H, L, D)), np.ones((B, H, S, D)), np.ones((B, H, S, Dv)), 0.5)
    precisions: tuple[oracle.Precision, ...] = ("float64", "extended", "double-double")
    for precision in precisions:
        exact = oracle.solve(empty, precision)
        for kind in KINDS[dtype]:
            for limit in (bound.rigorous, bound.probabilistic):
                assert limit(exact, arithmetic(kind, dtype)).shape == (B, H, L, Dv)
            assert bound.weights_bound(exact, arithmetic(kind, dtype)).shape == (B, H, L, S)
            assert np.isfinite(bound.lse_bound(exact, arithmetic(kind, dtype))).all()


@pytest.mark.filterwarnings("error")
def test_nothing_is_promised_beyond_the_domain() -> None:
    big = problem().q * 300
    f16 = arithmetic("eager", "float16")
    assert np.isinf(bound.rigorous(oracle.solve(problem(q=big, k=big)), f16)).all()
    assert np.isfinite(bound.rigorous(oracle.solve(problem(q=big, k=big)), arithmetic("fused", "float16"))).all()
    # A hidden key that holds NaN is nothing to the rows that do not see it; one whose score overflows is, since
    # inf + -inf = nan under an additive mask.
    far = problem().k.copy()
    visible = np.array([[True, True, False], [True, True, True], [True, True, False]])
    for junk in (60000.0, math.nan, math.inf):
        far[..., 2, :] = junk
        v = problem().v.copy()
        v[..., 2, :] = junk
        limit = bound.rigorous(oracle.solve(problem(k=far, v=v, visible=visible)), f16)
        assert np.isfinite(limit[0, 0, [0, 2]]).all() == (not math.isfinite(junk))
        assert np.isinf(limit[0, 0, 1]).all()
    near_top = problem(v=np.full((1, 1, 3, 4), 65504.0))
    assert np.isinf(bound.rigorous(oracle.solve(near_top), f16)).all()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("least", [-1e9, -65504.0, float(np.finfo(np.float32).min), float(np.finfo(np.float64).min)])
def test_huge_negative_biases_hide_keys_without_loosening_the_rest(least: float) -> None:
    kind = arithmetic("same", "float32")
    hidden = np.array([[0.0, 0.0, least], [least, 0.0, 0.0], [0.0, least, 0.0]])
    plain = bound.rigorous(oracle.solve(problem(visible=hidden == 0)), kind)
    biased = bound.rigorous(oracle.solve(problem(bias=hidden)), kind)
    assert (biased >= plain).all()
    assert (biased < 3 * plain).all()
    # Where every key is that low, rounding of the scores leaves only the convex hull, or nothing at all.
    lost = bound.rigorous(oracle.solve(problem(bias=np.full((3, 3), least))), kind)
    v = problem().v
    assert (lost >= np.ptp(v, axis=-2).min() / 2).all() or abs(least) < 1e5


def test_large_shapes_use_a_bound_of_the_bound() -> None:
    """Cauchy-Schwarz is never below the direct sum and at most about twice as large."""
    rng = np.random.default_rng(4)
    exact = oracle.solve(oracle.Problem(*rng.normal(size=(3, 1, 2, 40, 16)), scale=0.25))
    for kind in (arithmetic("same", "float32"), arithmetic("fused", "bfloat16")):
        direct = bound.rigorous(exact, kind)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(bound, "LARGE", 0)
            quick = bound.rigorous(exact, kind)
        assert (quick >= direct * (1 - 1e-12)).all()
        assert (quick <= 2 * direct).all()


def test_kinds_are_ordered_from_tight_to_loose() -> None:
    exact = small_case("float16").exact()
    for dtype in DTYPES:
        sizes = [bound.rigorous(exact, arithmetic(kind, dtype)).mean() for kind in KINDS[dtype]]
        assert sizes == sorted(sizes), dtype
        assert default_arithmetic(dtype).name in KINDS[dtype]
    with pytest.raises(ValueError, match="unknown arithmetic 'loose'"):
        arithmetic("loose", "float32")
    with pytest.raises(ValueError, match="tf32 is an arithmetic of float32"):
        arithmetic("tf32", "float16")


def test_what_overflows_in_one_head_of_a_layer_excuses_its_row_in_all_heads() -> None:
    """The output projection adds 0 · NaN to the other heads; rows in which no head overflows keep their bound."""
    case = DrawnCase(kv_heads=2, queries=33, keys=2, dtype="float16", values="large", magnitude=5)
    layer = as_attention(find_targets("torch_mha.train", Builtins())[0])
    alone = replace(layer, mixes_heads=False)
    spread, own = (np.isinf(Trial(target, case).run().bound)[0, :, :, 0] for target in (layer, alone))
    assert (own[0] != own[1]).any() and not own.any(axis=0).all()
    np.testing.assert_array_equal(spread, np.broadcast_to(own.any(axis=0), own.shape))
    overflow = PROPERTIES["finite_results_do_not_overflow"]
    assert try_case(layer, overflow, case) is None and try_case(alone, overflow, case) is not None


def test_a_weight_too_small_for_the_type_is_lost_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """1.8e-46 in float32, times a value of 4e37, where the only other value is 0: the answer is 8e-9, or 0."""
    monkeypatch.setattr(regimes, "HEADROOM", 1.0)
    case = DrawnCase(
        group=2,
        keys=3,
        dim=6,
        dtype="float32",
        scale=16.0,
        mask="one_hole",
        values="limits",
        magnitude=2,
        seed=1753654763,
        edits=(("v", 0, 0.0),),
    )
    (target,) = find_targets("torch_manual.attention", Builtins())
    run = Trial(target, case).run()
    exact, limit = run.exact.out[0, 1, 0, 0], run.bound[0, 1, 0, 0]
    assert run.out[0, 1, 0, 0] == 0 < exact <= limit < 10 * exact
    assert try_case(target, PROPERTIES["output_is_inside_the_bound"], case) is None
