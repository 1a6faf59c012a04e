"""The bounds: no honest kernel exceeds them, a hill-climb comes near them, and planted faults exceed them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from properties import bound, oracle
from properties.arithmetic import HALVES, KINDS, Arithmetic, arithmetic, default_arithmetic

torch = pytest.importorskip("torch")
from torch.nn.attention import SDPBackend, sdpa_kernel

Array = npt.NDArray[Any]
DTYPES = ("float64", "float32", "float16", "bfloat16")

@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """The operands are small: threads would only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


REGIMES = (
    "normal", "large", "near_ties", "one_hot", "cancelling", "constant",
    "tiny", "heavy", "simple", "offset", "positive", "wide",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Case:
    """Operands as torch tensors (1, H, L or S, D) of one dtype, and the mask as bias (-inf hides) or None."""

    q: Any
    k: Any
    v: Any
    bias: Any
    scale: float

    def exact(self) -> oracle.Exact:
        q, k, v = (x.double().numpy() for x in (self.q, self.k, self.v))
        bias = None if self.bias is None else self.bias.double().numpy()
        visible = None if bias is None else ~np.isneginf(bias)
        finite = None if bias is None or not np.where(visible, bias, 0.0).any() else np.where(visible, bias, 0.0)
        precision: oracle.Precision = "extended" if self.q.dtype == torch.float64 else "float64"
        return oracle.solve(oracle.Problem(q, k, v, self.scale, visible, finite), precision)


def make_case(rng: np.random.Generator, regime: str, dtype: str, longest: int = 64) -> Case:
    """A random problem of the regime; every row sees a key."""
    H, L = int(rng.integers(1, 3)), int(rng.integers(1, 9))
    S, D = int(rng.integers(1, longest)), int(rng.integers(1, 33))
    Dv = D if rng.random() < 0.8 else int(rng.integers(1, 33))
    q, k, v = rng.normal(size=(1, H, L, D)), rng.normal(size=(1, H, S, D)), rng.normal(size=(1, H, S, Dv))
    if regime == "large":
        q *= rng.uniform(4, 16)
    elif regime == "near_ties":
        k = k[:, :, :1] + 1e-3 * k
    elif regime == "one_hot":
        q *= rng.uniform(20, 100)
    elif regime == "cancelling":
        v = 100 * np.sign(v) + 1e-2 * v
    elif regime == "constant":
        v = 10 + 1e-3 * v
    elif regime == "tiny":
        q, v = q * 2.0**-12, v * 2.0**-18
    elif regime == "heavy":
        q, k, v = (rng.standard_t(1.5, size=x.shape).clip(-30, 30) for x in (q, k, v))
    elif regime == "simple":
        q, k, v = (rng.choice([0, 1, -1, 0.5, 2, 0.1, -0.1, 3], size=x.shape) for x in (q, k, v))
    elif regime == "offset":
        q, k = 3 + 0.1 * q, 3 + 0.1 * k
    elif regime == "positive":
        q, k, v = np.abs(q), np.abs(k), np.abs(v)
    elif regime == "wide":
        a = rng.integers(-6, 7)
        q, k, v = q * 2.0**a, k * 2.0**-a, v * 2.0 ** rng.integers(-11, 12, size=v.shape)
    mask = rng.choice(["none", "causal", "bool", "float"])
    bias: Array | None = None
    if mask == "causal":
        bias = np.where(np.tril(np.ones((L, S), bool)), 0.0, -np.inf)
    elif mask == "bool":
        seen = rng.random((1, H, L, S)) < rng.uniform(0.2, 0.9)
        seen[..., int(rng.integers(S))] = True
        bias = np.where(seen, 0.0, -np.inf)
    elif mask == "float":
        bias = rng.normal(size=(1, H, L, S)) * rng.choice([1.0, 10.0])
    kind = getattr(torch, dtype)
    tensors = [None if x is None else torch.from_numpy(np.ascontiguousarray(x, float)).to(kind) for x in (q, k, v, bias)]
    scale = D**-0.5 if rng.random() < 0.5 else float(rng.choice([1.0, 0.5, 0.3]))
    return Case(*tensors, scale)


# Honest kernels: each takes a case and returns its output, in whatever order and precision it is known for.


def eager(case: Case) -> Any:
    """Scores, weights and output stored in the dtype, the scale after the product."""
    scores = (case.q @ case.k.mT) * case.scale
    scores = scores if case.bias is None else scores + case.bias
    return torch.softmax(scores, -1) @ case.v


def eager_scaled_first(case: Case) -> Any:
    """As ``eager``, both operands times the square root of the scale first; softmax in float32 at least."""
    root = math.sqrt(case.scale)
    scores = (case.q * root) @ (case.k * root).mT
    scores = scores if case.bias is None else scores + case.bias
    wide = torch.promote_types(scores.dtype, torch.float32)
    return torch.softmax(scores, -1, dtype=wide).to(case.q.dtype) @ case.v


def sdpa(backend: Any) -> Callable[[Case], Any]:
    def kernel(case: Case) -> Any:
        with sdpa_kernel(backend):
            return torch.nn.functional.scaled_dot_product_attention(
                case.q, case.k, case.v, attn_mask=case.bias, scale=case.scale
            )

    return kernel


def inner(case: Case) -> tuple[Any, Any, Any]:
    """(scores, values, minus infinity) in the accumulator's type."""
    kind = torch.promote_types(case.q.dtype, torch.float32)
    scores = (case.q.to(kind) @ case.k.to(kind).mT) * case.scale
    return scores if case.bias is None else scores + case.bias, case.v.to(kind), -math.inf


def online(block: int, backwards: bool = False) -> Callable[[Case], Any]:
    """Online softmax over blocks of keys; weights rounded to the dtype before they meet the values."""

    def kernel(case: Case) -> Any:
        scores, values, low = inner(case)
        top, total, sums = torch.full_like(scores[..., :1], low), 0.0, 0.0
        starts = list(range(0, scores.shape[-1], block))
        for at in reversed(starts) if backwards else starts:
            part = scores[..., at : at + block]
            new = torch.maximum(top, part.amax(-1, keepdim=True))
            safe = torch.where(new == low, torch.zeros_like(new), new)
            rescale, terms = torch.exp(top - safe), torch.exp(part - safe)
            stored = terms.to(case.q.dtype).to(terms.dtype)
            total = total * rescale + terms.sum(-1, keepdim=True)
            sums = sums * rescale + stored @ values[..., at : at + block, :]
            top = new
        return (sums / total).to(case.q.dtype)

    return kernel


def sequential(case: Case) -> Any:
    """Every sum from left to right."""
    kind = torch.promote_types(case.q.dtype, torch.float32)
    q, k, v = (x.to(kind) for x in (case.q, case.k, case.v))
    scores = torch.zeros(*q.shape[:-1], k.shape[-2], dtype=kind)
    for d in range(q.shape[-1]):
        scores = scores + q[..., d, None] * k[..., None, :, d]
    scores = scores * case.scale if case.bias is None else scores * case.scale + case.bias
    terms = torch.exp(scores - scores.amax(-1, keepdim=True))
    total, sums = torch.zeros_like(terms[..., :1]), torch.zeros(*terms.shape[:-1], v.shape[-1], dtype=kind)
    for j in range(terms.shape[-1]):
        total = total + terms[..., j, None]
        sums = sums + terms[..., j, None] * v[..., j, None, :]
    return (sums / total).to(case.q.dtype)


def split_keys(parts: int) -> Callable[[Case], Any]:
    """Split-KV: each part normalised by itself, merged through exp(lse_i - lse)."""

    def kernel(case: Case) -> Any:
        scores, values, _ = inner(case)
        pieces = zip(scores.tensor_split(parts, -1), values.tensor_split(parts, -2), strict=True)
        outs, lses = [], []
        for part, value in pieces:
            if part.shape[-1]:
                lse = torch.logsumexp(part, -1, keepdim=True)
                seen = torch.where(torch.isneginf(lse), torch.zeros_like(part), torch.softmax(part, -1))
                outs.append(seen @ value)
                lses.append(lse)
        lse = torch.logsumexp(torch.stack(lses), 0)
        return sum(torch.exp(one - lse) * out for one, out in zip(lses, outs, strict=True)).to(case.q.dtype)

    return kernel


def to_tf32(x: Any) -> Any:
    """float32 rounded to 11 significant bits, ties to even."""
    bits = x.contiguous().view(torch.int32)
    return ((bits + 0xFFF + ((bits >> 13) & 1)) & ~0x1FFF).view(torch.float32)


def tf32(case: Case) -> Any:
    scores = (to_tf32(case.q) @ to_tf32(case.k).mT) * case.scale
    scores = scores if case.bias is None else scores + case.bias
    return to_tf32(torch.softmax(scores, -1)) @ to_tf32(case.v)


def numpy_naive(case: Case) -> Any:
    """NumPy, everything in the dtype."""
    q, k, v = (x.numpy() for x in (case.q, case.k, case.v))
    scores = (q @ k.swapaxes(-1, -2)) * q.dtype.type(case.scale)
    scores = scores if case.bias is None else scores + case.bias.numpy()
    terms = np.exp(scores - scores.max(-1, keepdims=True))
    return torch.from_numpy((terms / terms.sum(-1, keepdims=True)) @ v)


def honest(dtype: str) -> Iterator[tuple[str, Callable[[Case], Any], Arithmetic]]:
    """Kernels with the arithmetic that each of them has, by its construction."""
    half = dtype in HALVES
    tight, blocked = ("wide", "fused") if half else ("same", "same")
    yield "eager", eager, arithmetic("eager", dtype)
    yield "eager, scaled first", eager_scaled_first, arithmetic("eager", dtype)
    yield "SDPA math", sdpa(SDPBackend.MATH), arithmetic(tight, dtype)
    yield "SDPA flash", sdpa(SDPBackend.FLASH_ATTENTION), arithmetic("fused", dtype)
    yield "online 16", online(16), arithmetic(blocked, dtype)
    yield "online 7 backwards", online(7, backwards=True), replace(arithmetic(blocked, dtype), block=7)
    yield "online 1", online(1), replace(arithmetic(blocked, dtype), block=1)
    yield "sequential", sequential, arithmetic(tight, dtype)
    yield "split 2", split_keys(2), arithmetic(tight + "+lse", dtype)
    yield "split 5", split_keys(5), arithmetic(tight + "+lse", dtype)
    if dtype == "float32":
        yield "TF32", tf32, arithmetic("tf32", dtype)
    if dtype != "bfloat16":
        yield "NumPy", numpy_naive, arithmetic("same", dtype)


def used(case: Case, out: Any, exact: oracle.Exact, limit: Array) -> float:
    """The largest used fraction of the bound; infinite bounds and NaN of the kernel under them claim nothing."""
    error = np.where(np.isinf(limit), 0.0, exact.out_error(out.double().numpy()))
    return float(np.max(error / limit, initial=0.0))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.filterwarnings("ignore")
def test_no_honest_kernel_leaves_the_bounds(dtype: str) -> None:
    rng = np.random.default_rng(20)
    ran = 0
    for number in range(500):
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
    assert ran > 4500


@pytest.mark.parametrize(("dtype", "reach"), [("float64", 0.15), ("float32", 0.15), ("float16", 0.5), ("bfloat16", 0.5)])
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
        names |= {"w_o": layer.out_proj.weight.detach().double().numpy(), "b_o": layer.out_proj.bias.detach().double().numpy()}
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
            np.testing.assert_allclose(exact.out[0, 0, 1], exact.problem.v[0, 0].mean(0), atol=1e-15)
            assert (limit[0, 0, 1] > 0).all()
            assert limit.max() < 1e-5
            assert (0 < weights[0, 0, 1]).all()
            assert weights.max() < 1e-5
        else:
            assert not limit[0, 0, 1].any()
            assert not weights[0, 0, 1].any()
        assert not weights[0, 0, 2, 1]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", [(0, 1, 2, 3, 4, 5), (2, 0, 2, 3, 4, 5), (1, 2, 0, 3, 4, 5), (1, 2, 3, 0, 4, 5),
                                   (1, 2, 3, 4, 0, 5), (1, 2, 3, 4, 5, 0)])  # fmt: skip
@pytest.mark.filterwarnings("error")
def test_sizes_of_zero(dtype: str, sizes: tuple[int, ...]) -> None:
    B, H, L, S, D, Dv = sizes
    empty = oracle.Problem(np.ones((B, H, L, D)), np.ones((B, H, S, D)), np.ones((B, H, S, Dv)), 0.5)
    for precision in ("float64", "extended", "double-double"):
        exact = oracle.solve(empty, precision)  # type: ignore[arg-type]
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
