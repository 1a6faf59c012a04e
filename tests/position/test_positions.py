"""Positions: the exact answers against arbitrary precision, what is recognised, and mistakes that differ."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, log
from typing import Any

import numpy as np
import pytest
from drawing import drawn

torch = pytest.importorskip("torch")
mpmath = pytest.importorskip("mpmath")

from exact_positions import POSITION_TARGETS

from impls.mutants import load_all
from impls.mutants.position import distances as core_distances
from impls.mutants.position import lookups as core_lookups
from impls.mutants.position import rotations as core_rotations
from impls.mutants.position import sinusoids as core_sinusoids
from properties.catalogue import PROPERTIES, select
from properties.engine.core.target import CannotRun
from properties.engine.explain.reading import read_failure
from properties.engine.explain.suspects import known_mistakes
from properties.engine.search.find_target import Builtins
from properties.engine.search.probe import make_target
from properties.engine.search.run import verify_target
from properties.engine.search.search import Plan, cases, search
from properties.exact.arithmetic import arithmetic, default_arithmetic
from properties.position import exact as exactly
from properties.position.cases import Case
from properties.position.trial import PositionTrial

CORES: dict[str, Any] = {
    "sinusoidal": core_sinusoids.sinusoidal,
    "rotary": core_rotations.rotary,
    "learned": core_lookups.learned,
    "slopes": core_distances.slopes,
    "buckets": core_distances.buckets,
}
MUTANTS = {name: each for name, each in load_all()[0].items() if each.contract in CORES}


# ---------------------------------------------------------------- exact


@pytest.mark.parametrize("base", [10.0, 10000.0, 1e6])
@pytest.mark.parametrize("dim", [2, 5, 64])
def test_sines_and_cosines_against_arbitrary_precision(dim: int, base: float) -> None:
    """The oracle is within its own unit roundoff of the truth, up to position 100,000; the bound has room for that."""
    positions = np.array([0.0, 1, 7, 255, 4097, 100_000])
    pairs = (dim + 1) // 2
    t = exactly.turn(positions, pairs, dim, base, default_arithmetic("float64"))
    own = exactly.angle_error(np.abs(t.angle).astype(np.float64), np.zeros(pairs), arithmetic("same", "float64"))
    with mpmath.workdps(60):
        for row, p in enumerate(positions):
            for i in range(pairs):
                angle = mpmath.mpf(p) * mpmath.mpf(base) ** (mpmath.mpf(-2 * i) / dim)
                for got, function in ((t.sin, mpmath.sin), (t.cos, mpmath.cos)):
                    whole, rest = int(got[row, i] * 2**60), 2.0**-60
                    assert abs(mpmath.mpf(whole) * rest - function(angle)) <= own[row, i] + 2.0**-52


@pytest.mark.parametrize("num_heads", [1, 2, 3, 6, 8, 12, 16, 20, 112])
def test_slopes_against_the_published_function(num_heads: int) -> None:
    """The recursion of the paper's code, in arbitrary precision."""

    def published(n: int) -> list[Any]:
        if n & (n - 1) == 0:
            return [mpmath.mpf(2) ** (mpmath.mpf(-8) * h / n) for h in range(1, n + 1)]
        closest = 1 << (n.bit_length() - 1)
        return published(closest) + published(2 * closest)[0::2][: n - closest]

    exact, allowed = exactly.slopes(num_heads, arithmetic("same", "float64"))
    assert all(abs(float(s) - float(p)) <= 2.0**-52 * s for s, p in zip(exact.out, published(num_heads)))
    assert (allowed < 1e-11 * exact.out).all()


def test_slopes_of_twelve_heads() -> None:
    """Beyond the power of two, every other slope of twice as many heads, as the paper prints them."""
    exact, _ = exactly.slopes(12, arithmetic("same", "float64"))
    assert exact.out.tolist() == [2.0**-h for h in range(1, 9)] + [2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5]


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("num_buckets", "most"), [(32, 128), (8, 20), (64, 1000), (6, 41), (4, 20)])
def test_buckets_against_logarithms(num_buckets: int, most: int, bidirectional: bool) -> None:
    """The rule in whole numbers is that of logarithms in 60 digits; where it allows two buckets, they are neighbours."""
    relative = np.arange(-3 * most, 3 * most)
    low, high = exactly.buckets(relative, bidirectional, num_buckets, most)
    n = num_buckets // 2 if bidirectional else num_buckets
    at_an_edge = 0
    for r, least, greatest in zip(relative, low, high):
        d = abs(int(r)) if bidirectional else max(-int(r), 0)
        side = n if bidirectional and r > 0 else 0
        bucket = d
        if d >= n // 2:
            with mpmath.workdps(60):
                share = mpmath.log(mpmath.mpf(d) / (n // 2)) / mpmath.log(mpmath.mpf(most) / (n // 2)) * (n - n // 2)
                bucket = min(n // 2 + int(mpmath.floor(share + mpmath.mpf(10) ** -50)), n - 1)
        assert least <= bucket + side <= greatest <= least + 1
        at_an_edge += least != greatest
    assert at_an_edge <= 2 * (n + 2)


def test_at_a_border_of_the_buckets_rounding_decides() -> None:
    """n = 32, M = 128, both ways: 8 ln(d/8) / ln 16 is whole at d = 8, 16, 32 and 64, where the bucket below is right, too; but for the first."""
    low, high = exactly.buckets(-np.array([7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 128, 129]), True, 32, 128)
    assert high.tolist() == [7, 8, 8, 9, 10, 10, 11, 12, 12, 13, 14, 14, 15, 15]
    assert low.tolist() == [7, 8, 8, 9, 9, 10, 11, 11, 12, 13, 13, 14, 15, 15]


def test_a_feature_of_0_takes_no_error_from_a_table_that_overflows() -> None:
    a, ones = arithmetic("same", "float64"), np.ones(3)
    x1, x2 = np.array([0.0, 0.0, 1.0]), np.array([0.0, 2.0, 0.0])
    finite = [
        np.isfinite(exactly.product_error(x1, x2, ones, ones, first, second, a)).tolist()
        for first, second in ((np.inf, 0.1), (0.1, np.inf))
    ]
    assert finite == [[True, True, False], [True, False, True]]


def test_what_float32_promises_at_position_100_000() -> None:
    """Two digits for the fastest pairs, six for the slowest: sharp enough to see a table in bfloat16."""
    t = exactly.turn(np.array([100_000.0]), 32, 64, 10000.0, default_arithmetic("float32"))
    assert 0.01 < t.sin_bound[0, 0] < 0.1 and t.sin_bound[0, -1] < 1e-2
    halves = exactly.turn(np.array([257.0]), 32, 64, 10000.0, default_arithmetic("bfloat16"))
    assert halves.sin_bound.max() < 0.01 < abs(np.sin(257) - np.sin(256))


def test_split_and_join_are_inverse() -> None:
    for pairing in ("interleaved", "half"):
        for dim in (1, 2, 5, 8):
            x = np.arange(3.0 * dim).reshape(3, dim)
            assert np.array_equal(exactly.join(*exactly.split(x, pairing), dim, pairing), x)


# ---------------------------------------------------------------- what is recognised


def contract_of(function: Callable[..., Any], **supports: Any) -> str:
    return make_target("mine", function, supports).contract


def test_contracts_are_told_by_the_names_of_the_arguments() -> None:
    def pe(seq_len: int, d_model: int) -> Any:
        return core_sinusoids.sinusoidal(seq_len, d_model)

    def embed(steps: int, features: int) -> Any:
        return core_sinusoids.sinusoidal(steps, features)

    def get_slopes(n_heads: int) -> list[float]:
        return core_distances.published(n_heads)

    def apply(q: Any, position_ids: Any) -> Any:
        return core_rotations.rotary(q, position_ids)

    assert contract_of(pe) == "sinusoidal"
    assert contract_of(embed, contract="sinusoidal") == "sinusoidal"
    assert contract_of(get_slopes, framework="numpy") == "slopes"
    assert contract_of(apply) == "rotary"
    assert contract_of(core_distances.buckets) == "buckets"
    with pytest.raises(CannotRun, match="takes 2 positional arguments"):
        make_target("embed", embed)
    with pytest.raises(CannotRun, match="it returns shape"):
        make_target("short", lambda length, dim: torch.zeros(length, dim - 1), {"framework": "torch"})


def test_the_type_of_the_answer_is_the_only_one_where_none_can_be_asked_for() -> None:
    target = make_target("mine", lambda length, dim: core_sinusoids.sinusoidal(length, dim), {"framework": "torch"})
    assert target.dtypes == ("float32",)
    assert target.untried["float64"] == "it answers in float32"


def test_reports_keep_attention_and_positions_apart() -> None:
    built = Builtins()
    for name, theme in (("positions_numpy.slopes", {"distances", "positions"}), ("numpy_matmul.attention", None)):
        target = make_target(name, built.module.load(built.entries[name]))
        report = verify_target(target, select(), Plan(examples=1))
        themes = {outcome.prop.theme for outcome in report.outcomes.values()}
        assert themes == theme if theme else not themes & {"positions", "distances"}
        assert not report.findings
    asked = verify_target(target, select(("slopes_are_geometric",)), Plan(examples=1))
    assert asked.outcomes["slopes_are_geometric"].not_exercised == "is about the slopes of ALiBi"


def test_what_is_declared_is_not_drawn() -> None:
    def even(length: int, dim: int) -> Any:
        assert dim % 2 == 0 and 0 < length <= 64
        return core_sinusoids.sinusoidal(length, dim)

    target = make_target("mine", even, {"framework": "torch", "odd_dim": False, "max_length": 64, "zero_sizes": False})
    for prop in select(("positions",)):
        assert search(target, prop, Plan(examples=60)).finding is None


def cases_of(contract: str, prop: str) -> list[Case]:
    """The cases of a property of the exact target."""
    return drawn(cases(POSITION_TARGETS[contract], PROPERTIES[prop]), 1, 600)


@pytest.mark.nightly
def test_what_must_be_drawn_is_drawn() -> None:
    """Long positions in every type, partial rotations far from the origin; tables of one column, of odd width, of 100,001 rows."""
    found = {
        f"{case.dtype} beyond {p}"
        for case in cases_of("rotary", "rotation_is_inside_the_bound")
        for p in (256, 2048, 32_768, 99_999)
        if case.queries and case.offset > p
    }
    assert found == {f"{dtype} beyond {p}" for dtype in ("float64", "float32", "float16", "bfloat16") for p in (256, 2048, 32_768, 99_999)}
    partial = [case for case in cases_of("rotary", "features_beyond_rotary_dim_are_untouched") if (case.rotary_dim or 99) < case.dim]
    assert any(case.offset > 2048 and case.dtype in ("float16", "bfloat16") for case in partial)
    assert any(case.scattered for case in partial) and any(case.offset and not case.scattered for case in partial)
    tables = cases_of("sinusoidal", "sinusoid_is_inside_the_bound")
    assert {case.dim for case in tables} >= {1, 2, 3, 5, 63, 64, 128} and max(case.queries for case in tables) == 100_001
    assert any(case.offset == 100_000 and case.dtype == "float32" for case in tables)
    rows = [PositionTrial(POSITION_TARGETS["learned"], case).rows for case in cases_of("learned", "looked_up_rows_are_those_of_the_table")]
    assert any(len(np.unique(r)) < len(r) for r in rows) and any(len(r) and r.min() >= 64 for r in rows) and any(not len(r) for r in rows)


# ---------------------------------------------------------------- mistakes


def calls(contract: str) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Calls on which every mistake shows, and no two mistakes are alike."""
    doubles, halves = torch.float64, torch.bfloat16
    if contract == "sinusoidal":
        shapes = [(5, 8, 0), (3, 7, 2), (4, 6, 300), (4, 6, 700)]
        return [((n, d), {"offset": k, "dtype": dtype}) for n, d, k in shapes for dtype in (doubles, torch.float32, halves)]
    if contract == "rotary":
        x = torch.arange(2 * 3 * 5 * 8, dtype=doubles).reshape(2, 3, 5, 8).remainder(7) - 3
        places = [torch.arange(5) + k for k in (0, 1, 300, 2500)] + [torch.tensor([9, 2, 2, 40, 0])]
        options: list[dict[str, Any]] = [{}, {"base": 100.0}, {"rotary_dim": 4}]
        return [((x.to(dtype).requires_grad_(), p), option) for dtype in (doubles, halves) for p in places for option in options]
    if contract == "learned":
        table = torch.arange(24, dtype=doubles).reshape(8, 3)
        table[7] = torch.nan
        places = [torch.tensor(p) for p in ([0, 1, 2], [3, 3, 0], [-1, 2], [2, 8], [5])]
        return [((table.clone().requires_grad_(), p.clone()), {"offset": k}) for p in places for k in (0, 2)]
    if contract == "slopes":
        return [((n,), {"dtype": dtype}) for n in (1, 2, 3, 8, 12) for dtype in (doubles, torch.float32)]
    apart = torch.arange(-300, 300)
    return [
        ((apart,), {"bidirectional": both, "num_buckets": n, "max_distance": most})
        for both in (True, False)
        for n, most in ((32, 128), (8, 20))
    ]


def seen(function: Any, contract: str) -> tuple[Any, ...]:
    """What a function answers to the calls, as comparable data, and what became of its arguments."""
    found: list[Any] = []
    for arguments, options in calls(contract):
        try:
            out = function(*arguments, **options)
            found.append((str(out.dtype), tuple(out.shape), tuple(out.double().nan_to_num(99.0).flatten().tolist())))
            if out.requires_grad:
                ramp = torch.arange(1.0, out.numel() + 1, dtype=out.dtype).reshape(out.shape)
                found.append(tuple(torch.autograd.grad(out, arguments[0], ramp)[0].flatten().tolist()))
        except (RuntimeError, IndexError) as error:
            found.append(type(error).__name__)
        found += [tuple(x.double().nan_to_num(99.0).flatten().tolist()) for x in arguments if isinstance(x, torch.Tensor)]
    return tuple(found)


def test_every_mistake_differs_from_its_core_and_from_every_other() -> None:
    answers: dict[Any, str] = {seen(core, contract): f"the core of {contract}" for contract, core in CORES.items()}
    halves = {"split": core_rotations.halves}
    answers[seen(lambda x, p, **o: core_rotations.rotary(x, p, **o, **halves), "rotary")] = "the core in halves"
    for name, each in MUTANTS.items():
        if name in ("rotations.halves_for_neighbours", "rotations.neighbours_for_halves"):
            continue  # right, but for what they declare
        answer = seen(each.function, each.contract)
        assert answer not in answers, f"{name} answers like {answers[answer]}"
        answers[answer] = name


def test_there_are_enough_mistakes() -> None:
    assert len(MUTANTS) >= 55
    assert {prop.name for prop in PROPERTIES.values() if prop.theme in ("positions", "distances")} == {
        each.killed_by for each in MUTANTS.values()
    }


@pytest.mark.parametrize(
    "name",
    [
        "rotations.halves_for_neighbours",
        "rotations.turned_backwards",
        "sinusoids.base_of_a_thousand",
        "distances.one_series_for_all",
        "distances.logarithms_of_two_bases",
    ],
)
def test_the_mistake_is_called_by_its_name(name: str) -> None:
    mutant = MUTANTS[name]
    target = make_target("mine", mutant.function)
    finding = search(target, PROPERTIES[mutant.killed_by], Plan()).finding
    assert finding
    assert f"mutants.{name}" in [suspect.name for suspect in read_failure(target, finding, known_mistakes())]


def test_a_shortened_table_is_found_by_a_few_calls() -> None:
    """A closing thought of teaching code: log-spaced frequencies, computed by ``ceil``, lose a pair of an odd dim."""

    def lossy(length: int, dim: int) -> Any:
        pairs = ceil(dim / 2)
        frequencies = torch.exp(-torch.arange(pairs).double() * log(10000.0) / pairs)
        angles = torch.arange(length).double()[:, None] * frequencies
        return torch.stack((angles.sin(), angles.cos()), -1).flatten(1)[:, :dim]

    target = make_target("mine", lossy, {"framework": "torch"})
    finding = search(target, PROPERTIES["sinusoid_is_inside_the_bound"], Plan()).finding
    assert finding and finding.case.dim % 2 == 1  # 2i/dim is not i/⌈dim/2⌉ there, and only there


def test_angles_in_float16_are_a_claim_of_their_own() -> None:
    """A rotation wholly in halves holds where it says so, and is refuted where it does not."""

    def rotate(x: Any, positions: Any) -> Any:
        return core_rotations.rotary(x, positions, wide=x.dtype)

    prop = PROPERTIES["rotation_is_inside_the_bound"]
    honest = make_target("mine", rotate, {"framework": "torch", "arithmetic": "same"})
    outcome = search(honest, prop, Plan(examples=100))
    assert outcome.finding is None and outcome.notes.ill_posed == 0
    silent = search(make_target("mine", rotate, {"framework": "torch"}), prop, Plan())
    assert silent.finding and silent.finding.case.dtype in ("float16", "bfloat16")
