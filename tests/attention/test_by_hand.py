"""Attentions written by hand in half precision are right in the arithmetic that is claimed where nothing is declared."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from nightly import some_by_night

torch = pytest.importorskip("torch")
from by_hand import FACTS, KERNELS, LOG2E
from drawing import drawn
from honest_kernels import Case, make_case, used

from properties.attention.case import Case as DrawnCase
from properties.attention.precision import looser_kind
from properties.catalogue import PROPERTIES
from properties.engine.core.attempt import try_case
from properties.engine.core.target import Target
from properties.engine.search.probe import make_target
from properties.engine.search.search import cases, inapplicable, try_only
from properties.exact import bound, oracle
from properties.exact.arithmetic import HALVES, arithmetic, default_arithmetic

# A sample; ``python tests/support/by_hand.py`` puts every property to all of them, with the cases of the command line.
FORWARD = [prop for prop in PROPERTIES.values() if prop.contract == "attention" and prop.theme not in ("gradients", "feature_gradients")]
SAMPLED = [*FORWARD[::4], *(PROPERTIES[name] for name in ("zero_queries_read_the_additive_mask", "output_is_inside_the_bound"))]


def target(name: str, dtype: str, **facts: Any) -> Target:
    return make_target(name, KERNELS[name], FACTS[name] | {"dtypes": [dtype], **facts})


BOTH = list(product(KERNELS, HALVES))


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize(("name", "dtype"), some_by_night(BOTH, BOTH[::4] + BOTH[3::4]))
def test_what_is_written_by_hand_is_right(name: str, dtype: str) -> None:
    one = target(name, dtype)
    for prop in SAMPLED:
        if not inapplicable(one, prop):
            for case in drawn(cases(one, prop), seed=1, count=4):
                if case.batch * case.queries * case.keys * case.dim < 1 << 14:
                    assert not try_case(one, prop, case), case


ONCE = "Case(queries=4, keys=4, dtype='bfloat16', mask='random', mask_kind='bias', values='simple', seed=1276173882)"


@pytest.mark.parametrize(("kind", "wrong"), [(None, False), ("stored", False), ("eager+lse", True), ("fused", True)])
def test_the_textbook_softmax_in_halves_is_stored_arithmetic(kind: str | None, wrong: bool) -> None:
    """Scores, exponentials, their sum and the quotient each rounded to bfloat16: off by 0.00279."""
    one = target("three passes", "bfloat16", **({"arithmetic": {"bfloat16": kind}} if kind else {}))
    prop = PROPERTIES["zero_queries_read_the_additive_mask"]
    finding = try_only(one, prop, DrawnCase.parse(ONCE)).finding
    assert bool(finding) == wrong
    if finding:
        assert looser_kind(one, finding) == "stored"


def softmaxes(scores: Any, v: Any) -> list[Any]:
    """Outputs of a softmax by hand, in ways that store everything."""
    e = torch.exp(scores - scores.amax(-1, keepdim=True))
    two = scores * LOG2E
    f = torch.exp2(two - two.amax(-1, keepdim=True))
    return [e / e.sum(-1, keepdim=True) @ v, (e @ v) / e.sum(-1, keepdim=True), (f @ v) / f.sum(-1, keepdim=True)]


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.filterwarnings("ignore")
def test_no_stored_softmax_leaves_its_bound_and_some_come_near(dtype: str) -> None:
    """On random problems in twelve regimes; an adversary who moves single operands reaches a good part of the bound."""
    rng, kind = np.random.default_rng(3), arithmetic("stored", dtype)
    regimes = ("normal", "large", "near_ties", "one_hot", "cancelling", "constant", "heavy", "simple", "offset", "positive", "wide", "tiny")

    def worst(case: Case) -> float:
        exact = case.exact()
        limit = bound.rigorous(exact, kind)
        scores = (case.q @ case.k.mT) * case.scale
        scores = scores if case.bias is None else scores + case.bias
        logs = torch.log_softmax(scores, -1).exp() @ case.v
        most = max(used(case, out, exact, limit) for out in softmaxes(scores, case.v))
        assert used(case, logs, exact, bound.rigorous(exact, default_arithmetic(dtype))) <= 1
        assert most <= 1
        return most

    seen = [(worst(case), number, case) for number in range(240) for case in [make_case(rng, regimes[number % 12], dtype, longest=40)]]
    best, _, case = max(seen)
    for _ in range(300):
        trial = Case(*(x.clone() for x in (case.q, case.k, case.v)), case.bias, case.scale)
        flat = getattr(trial, "qkv"[int(rng.integers(3))]).view(-1)
        at = int(rng.integers(len(flat)))
        flat[at] = flat[at] * float(rng.choice([-1, 0.5, 2, 1.01, 0.99]))
        now = worst(trial)
        if now >= best:
            case, best = trial, now
    print(f"{dtype}: {best:.2f} of the bound")
    assert best > 0.4


@pytest.mark.parametrize("dtype", HALVES)
def test_stored_is_looser_than_eager_by_a_few_roundings(dtype: str) -> None:
    """On ordinary numbers: the differences, the exponentials, their sum, the base, the logarithm; no more than that."""
    rng = np.random.default_rng(4)
    q, k, v = rng.normal(size=(3, 1, 2, 32, 16)).astype(np.float16).astype(float)
    exact = oracle.solve(oracle.Problem(q, k, v, 0.25))
    sizes = [float(bound.rigorous(exact, arithmetic(kind, dtype)).mean()) for kind in ("eager", "stored", "stored+lse", "same")]
    print(dtype, [size / sizes[0] for size in sizes])
    assert sizes == sorted(sizes)
    assert sizes[2] < 3 * sizes[0]
