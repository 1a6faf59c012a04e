"""Linear attention: how it is told, what is drawn, the oracle and its bound against other derivations, the built-ins and the mutants."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from drawing import drawn
from exact_linear import LINEAR, attention
from torch.nn.functional import elu

from impls import linear_attention
from impls.mutants import forget, load_all
from impls.mutants.linear.linear import attention as core
from properties.catalogue import PROPERTIES, select
from properties.engine.core.target import CannotRun
from properties.engine.search.probe import make_target
from properties.engine.search.run import verify_target
from properties.engine.search.search import Plan, cases, search
from properties.exact.arithmetic import FORMATS, arithmetic
from properties.linear import exact
from properties.linear.cases import Case
from properties.linear.trial import LinearTrial

MUTANTS, HONEST = ({name: m for name, m in table.items() if m.contract == "linear"} for table in load_all())
CENTRAL = PROPERTIES["linear_output_is_inside_the_bound"]


def some(seed: int, *sizes: int, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, ...]:
    """q, k, v of (batch, heads, queries, keys, dim, value_dim)."""
    batch, heads, queries, keys, dim, width = sizes
    generator = torch.Generator().manual_seed(seed)
    shapes = ((queries, dim), (keys, dim), (keys, width))
    return tuple(torch.randn(batch, heads, *shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes)


# ---------------------------------------------------------------- where nothing is promised


def finite(query: float, value: float, **limits: float) -> bool:
    """Whether there is a bound, for two features of a query, three equal keys with features of 1 and values of one size."""
    q, k, v = np.full((1, 1, 1, 2), query), np.zeros((1, 1, 3, 2)), np.full((1, 1, 3, 1), value)
    a = dataclasses.replace(arithmetic("same", "float64"), **limits)
    return bool(np.isfinite(exact.solve(q, k, v, np.ones((1, 3), dtype=bool), a)[1]).all())


@pytest.mark.parametrize(
    ("query", "value", "largest"),
    [
        (0.0, 5.0, 30.0),  # the numerator: three weights of 2, times 5
        (0.0, 0.5, 6.0),  # the denominator
        (-10.0, 5.0, 15.0),  # the state: three features of 1, times 5
        (-10.0, 0.5, 3.0),  # the sum of the features of the keys
    ],
)
@pytest.mark.parametrize("limit", ["max_acc", "max_s"])
def test_nothing_is_promised_where_a_sum_may_overflow(query: float, value: float, largest: float, limit: str) -> None:
    assert finite(query, value, **{limit: largest * 1.001}) and not finite(query, value, **{limit: largest * 0.999})


def test_nothing_is_promised_where_the_result_may_overflow() -> None:
    """A right answer may be above the largest number by its error."""
    assert finite(0.0, 5.0, max_out=5.0 * (1 + 1e-9)) and not finite(0.0, 5.0, max_out=5.0)


# ---------------------------------------------------------------- the contract


def test_it_is_told_by_its_feature_map_or_by_declaration() -> None:
    """What takes q, k, v and is_causal is a plain attention, whatever its name."""

    def linear_attention(q: Any, k: Any, v: Any, *, is_causal: bool = False) -> Any:
        return core(q, k, v, is_causal=is_causal)

    def mapped(q: Any, k: Any, v: Any, causal: bool = False, feature_map: Any = lambda x: elu(x) + 1) -> Any:
        return core(q, k, v, is_causal=causal, of_query=feature_map, of_key=feature_map)

    assert make_target("mine", linear_attention, {"framework": "torch"}).contract == "attention"
    declared = make_target("mine", linear_attention, {"framework": "torch", "contract": "linear"})
    told = make_target("mine", mapped, {"framework": "torch"})
    assert declared.contract == told.contract == "linear"
    assert declared.parameters == ("is_causal",) and set(told.parameters) == {"is_causal", "feature_map"}
    assert not declared.untried and "elu(x) + 1" in told.untried["feature_map"]
    for target in (declared, told):
        report = verify_target(target, select(("linear_attention",)), Plan(examples=5))
        assert not report.findings and {outcome.status for outcome in report.outcomes.values()} == {"passed"}


def test_what_cannot_be_called_is_told_in_one_sentence() -> None:
    def heads_last(q: Any, k: Any, v: Any, *, feature_map: Any = None) -> Any:
        return core(q, k, v).transpose(1, 2)

    def asking(q: Any, k: Any, v: Any, feature_map: Any) -> Any:
        return core(q, k, v)

    with pytest.raises(CannotRun, match=r"returns shape \(2, 6, 3, 5\) for q of \(2, 3, 6, 4\); expected \(2, 3, 6, 5\)"):
        make_target("mine", heads_last, {"framework": "torch"})
    with pytest.raises(CannotRun, match="requires feature_map"):
        make_target("mine", asking, {"framework": "torch", "contract": "linear"})


def test_what_is_not_supported_is_not_drawn() -> None:
    def plain(q: Any, k: Any, v: Any) -> Any:
        assert q.shape[3] == v.shape[3] == 8 and max(q.shape[2], k.shape[2]) <= 32
        return core(q, k, v)

    report = verify_target(
        make_target("mine", plain, {"framework": "torch", "contract": "linear", "head_dims": [8], "max_length": 32}),
        select(("linear_attention",)),
        Plan(examples=20),
    )
    assert not report.findings
    left = {name for name, outcome in report.outcomes.items() if outcome.status == "not exercised"}
    assert left == {"causal_row_is_all_of_its_prefix", "linear_future_tokens_are_ignored"}


@pytest.mark.nightly
def test_causality_that_ends_with_the_last_key_can_be_declared() -> None:
    def last(q: Any, k: Any, v: Any, *, is_causal: bool = False) -> Any:
        return core(
            q, k, v, is_causal=is_causal, frontier=lambda rows, keys, like: torch.ones(rows, keys, dtype=like.dtype).tril(keys - rows)
        )

    facts = {"framework": "torch", "contract": "linear"}
    assert search(make_target("mine", last, facts), CENTRAL, Plan()).finding
    right = make_target("mine", last, {**facts, "causal": "bottom-right"})
    assert not verify_target(right, select(("linear_attention",)), Plan(examples=60)).findings


def test_what_must_be_drawn_is_drawn() -> None:
    found: Counter[str] = Counter()
    for case in drawn(cases(LINEAR, CENTRAL), 1, 500):
        facts = {
            "L < S": case.queries < case.keys,
            "L > S": case.queries > case.keys,
            "causal": case.is_causal,
            "heads": case.heads > 1,
            "width": case.width != case.dim,
            "zero features": case.shift == -45,
            "a chunk and one": 17 in (case.queries, case.keys),
            **{f"{name} {getattr(case, name)}": True for name in ("values", "layout", "dtype")},
        }
        found.update({name: int(holds) for name, holds in facts.items()})
    assert min(found.values()) >= 2 and len(found) > 20, found


# ---------------------------------------------------------------- the oracle and its bound


@pytest.mark.parametrize(
    "case",
    [
        Case(keys=5, queries=3, dim=3, value_dim=2),
        Case(keys=4, queries=6, dim=2, is_causal=True, magnitude=3),
        Case(keys=7, queries=2, dim=2, shift=-6, values="cancelling"),
        Case(keys=3, queries=3, dim=1, shift=-45, is_causal=True),
    ],
    ids=repr,
)
def test_the_oracle_is_the_formula(case: Case) -> None:
    """Number by number with sixty digits, as written: elu, plus one, and a state that grows."""
    trial = LinearTrial(LINEAR, case)
    x = trial.inputs
    wide = exact.solve(x.q, x.k, x.v, trial.visible(x), trial.arithmetic)[0].wide
    with mpmath.workdps(60):

        def phi(number: float) -> Any:
            x = mpmath.mpf(float(number))
            return (x if x > 0 else mpmath.expm1(x)) + 1

        for i in range(case.queries):
            keys = range(min(i + 1, case.keys) if case.is_causal else case.keys)
            for f in range(case.width):
                state = [mpmath.fsum(phi(x.k[0, 0, j, d]) * mpmath.mpf(float(x.v[0, 0, j, f])) for j in keys) for d in range(case.dim)]
                z = [mpmath.fsum(phi(x.k[0, 0, j, d]) for j in keys) for d in range(case.dim)]
                query = [phi(number) for number in x.q[0, 0, i]]
                right = mpmath.fdot(query, state) / mpmath.fdot(query, z)
                size = max(abs(float(x.v[0, 0, j, f])) for j in keys)
                got = mpmath.mpf(float(wide[0, 0, i, f])) + mpmath.mpf(float(wide[0, 0, i, f] - np.float64(wide[0, 0, i, f])))
                assert abs(got - right) <= 64 * exact.ORACLE * size


def by(of: Any, step: int) -> Any:
    """The recurrent form with a feature map, forwards or backwards."""
    return lambda q, k, v, is_causal: one_by_one(of(q), of(k), v, is_causal, step)


FORMS: dict[str, Any] = {
    "parallel": lambda q, k, v, is_causal: linear_attention.parallel(q, k, v, is_causal=is_causal),
    "exp itself, last key first": by(linear_attention.features, -1),
    "elu from exp": by(lambda x: np.where(x > 0, x, np.exp(np.minimum(x, 0)) - x.dtype.type(1)) + x.dtype.type(1), 1),
    "elu from expm1": by(lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))) + x.dtype.type(1), 1),
}


def one_by_one(fq: Any, fk: Any, v: Any, is_causal: bool, step: int) -> Any:
    """The state, key by key in the type itself, forwards or backwards."""
    out = np.zeros((*fq.shape[:3], v.shape[3]), dtype=v.dtype)
    for i in range(fq.shape[2]):
        state, z = np.zeros((*fk.shape[:2], fk.shape[3], v.shape[3]), v.dtype), np.zeros((*fk.shape[:2], fk.shape[3], 1), v.dtype)
        for j in range(min(i + 1, fk.shape[2]) if is_causal else fk.shape[2])[::step]:
            state, z = state + fk[:, :, j, :, None] * v[:, :, j, None], z + fk[:, :, j, :, None]
        out[:, :, i] = ((fq[:, :, i, None] @ state) / (fq[:, :, i, None] @ z))[:, :, 0]
    return out


@pytest.mark.parametrize(
    ("form", "dtype"),
    [(form, dtype) for dtype in ("float64", "float32", "float16") for form in FORMS if (form, dtype) != ("parallel", "float16")],
)  # the parallel form computes float16 in float32: that is another arithmetic
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_the_bound_holds_for_every_form(form: str, dtype: str) -> None:
    """All in the type itself, whatever the order, on cases as they are drawn."""
    compared, worst = 0, 0.0
    for case in drawn(cases(LINEAR, CENTRAL), 2, 40):
        case = case.but(dtype=dtype, queries=min(case.queries, 9), keys=min(case.keys, 33), layout="contiguous")
        trial = LinearTrial(LINEAR, case)
        x = trial.inputs
        right, allowed = exact.solve(x.q, x.k, x.v, trial.visible(x), arithmetic("same", dtype))
        error = right.out_error(FORMS[form](*(part.astype(dtype) for part in (x.q, x.k, x.v)), case.is_causal).astype(np.float64))
        posed = np.isfinite(allowed)
        assert (error[posed] <= allowed[posed]).all(), case
        compared += int(posed.sum())
        worst = max(worst, float((error[posed] / allowed[posed]).max(initial=0.0)))
    assert compared > (300 if dtype == "float16" else 1000) and worst > 0.02


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_the_bound_is_a_few_roundings(dtype: str) -> None:
    """On normal numbers it is below (n + D + 40) u max|v|: no wrong answer hides in it."""
    for seed, keys in enumerate((1, 5, 33, 129)):
        trial = LinearTrial(LINEAR, Case(queries=4, keys=keys, dim=8, dtype=dtype, seed=seed))
        x = trial.inputs
        _, allowed = exact.solve(x.q, x.k, x.v, trial.visible(x), arithmetic("same", dtype))
        assert 0 < allowed.max() < 4 * (keys + 8 + 40) * FORMATS[dtype].u * np.abs(x.v).max()


def test_nothing_is_promised_of_features_that_vanish() -> None:
    """elu(x) + 1 is 0 below −37 in float64, and the answer 0/0; φ of a query as small is as uncertain as its normaliser."""
    for case, posed in ((Case(keys=3, shift=-45), False), (Case(keys=3, shift=-6), True), (Case(keys=3, shift=-6, dtype="float16"), False)):
        trial = LinearTrial(LINEAR, case)
        x = trial.inputs
        _, allowed = exact.solve(x.q, x.k, x.v, trial.visible(x), arithmetic("same", case.dtype))
        assert np.isfinite(allowed).all() == posed


# ---------------------------------------------------------------- implementations and mutants


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("sizes", [(2, 3, 5, 7, 4, 3), (1, 2, 7, 5, 3, 4), (1, 1, 33, 33, 2, 2), (1, 1, 1, 1, 1, 1)], ids=str)
def test_the_built_ins_are_exact(sizes: tuple[int, ...], is_causal: bool) -> None:
    q, k, v = some(1, *sizes)
    right = attention(q, k, v, is_causal=is_causal)
    parallel = torch.from_numpy(linear_attention.parallel(*(x.numpy() for x in (q, k, v)), is_causal=is_causal))
    for out in (
        parallel,
        linear_attention.recurrent(q, k, v, is_causal=is_causal),
        core(q, k, v, is_causal=is_causal),
        *(each.function(q, k, v, is_causal=is_causal) for each in HONEST.values()),
    ):
        assert out.shape == right.shape and (out - right).abs().max() < 1e-13


def test_shapes_that_do_not_fit_are_refused() -> None:
    q, k, v = some(1, 2, 2, 3, 4, 3, 3)
    for function in (linear_attention.parallel, linear_attention.recurrent, core):
        for wrong in ((q, k, v[:, :, :3]), (q[..., :2], k, v), (q[:, :1], k, v)):
            with pytest.raises(ValueError, match="shapes do not fit"):
                function(*wrong)


def test_every_mistake_differs_from_the_core_and_from_every_other() -> None:
    answers = {}
    for name, function in {"the core": core, **{name: each.function for name, each in MUTANTS.items()}}.items():
        forget()
        calls = [some(seed, 2, 2, 5, 6, 3, 3) for seed in range(2)]
        outs = [function(*call, is_causal=is_causal) for call in calls for is_causal in (False, True)]
        answer = b"".join(out.numpy().tobytes() for out in outs)
        assert answer not in answers, f"{name} answers like {answers[answer]}"
        answers[answer] = name
    assert len(MUTANTS) >= 10 and len(HONEST) >= 2
    assert {each.killed_by for each in MUTANTS.values()} == {prop.name for prop in select(("linear_attention",))}


@pytest.mark.parametrize("name", MUTANTS)
def test_every_mistake_is_found(name: str) -> None:
    forget()
    target = make_target(name, MUTANTS[name].function)
    forget()
    assert search(target, PROPERTIES[MUTANTS[name].killed_by], Plan(shrink=False)).finding


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize("name", ["linear_attention.parallel", "linear_attention.recurrent", *HONEST])
def test_what_is_right_is_not_refuted(name: str) -> None:
    function = HONEST[name].function if name in HONEST else getattr(linear_attention, name.partition(".")[2])
    report = verify_target(make_target(name, function), select(("linear_attention",)), Plan(examples=25))
    assert not report.findings and set(report.outcomes) == {prop.name for prop in select(("linear_attention",))}
