"""What raises where a number is not finite, or a row sees no key, refuses that: it is told, not tried, and hides no other mistake."""

from __future__ import annotations

from typing import Any

import pytest
from nightly import one_in

torch = pytest.importorskip("torch")

from properties.attention.call import attend
from properties.attention.case import Case
from properties.attention.inputs import make_inputs
from properties.catalogue import PROPERTIES, select
from properties.engine.core.target import NotTaken, Target
from properties.engine.search.probe import make_target
from properties.engine.search.run import verify_target
from properties.engine.search.search import Plan

THEMES = ("softmax", "values", "masks", "numbers", "purity")


def weights_are_checked(q: Any, k: Any, v: Any, mask: Any = None) -> Any:
    scores = q @ k.mT / max(q.shape[-1], 1) ** 0.5
    weights = (scores if mask is None else scores.masked_fill(mask == 0, float("-inf"))).softmax(-1)
    assert not weights.isnan().any(), "NaN in the weights"
    return weights @ v


def tensors_are_checked(q: Any, k: Any, v: Any, mask: Any = None) -> Any:
    if not all(x.isfinite().all() for x in (q, k, v)):
        raise ValueError("q, k and v must be finite")
    scores = q @ k.mT / max(q.shape[-1], 1) ** 0.5
    return (scores if mask is None else scores.masked_fill(mask == 0, float("-inf"))).softmax(-1) @ v


def an_answer_is_checked(q: Any, k: Any, v: Any, mask: Any = None) -> Any:
    scores = q @ k.mT / max(q.shape[-1], 1) ** 0.5
    out = (scores if mask is None else scores.masked_fill(mask == 0, -1e9)).softmax(-1) @ v
    if out.isnan().any():
        raise RuntimeError("NaN in the output")
    return out


def many_keys_are_off(q: Any, k: Any, v: Any, mask: Any = None) -> Any:
    return weights_are_checked(q, k, v * (1 + 1e-9 * (k.shape[-2] > 16)), mask)


def spoken(function: Any) -> Target:
    target = make_target("mine", function, {"dtypes": ["float64"]})
    return target.kind.handshake(target, "cpu")


@pytest.mark.parametrize(
    ("function", "refused"),
    one_in(
        3,
        [
            (weights_are_checked, ["rows that see no key", "numbers that are not finite (nan in q)"]),
            (tensors_are_checked, ["numbers that are not finite (nan in q)"]),
            (an_answer_is_checked, ["numbers that are not finite (nan in q)"]),
        ],
    ),
)
def test_a_guard_is_a_refusal(function: Any, refused: list[str]) -> None:
    target = spoken(function)
    assert [words for words in target.refuses if "gradients" not in words] == refused
    report = verify_target(target, select(THEMES), Plan(examples=6, strict=False))
    assert not report.findings
    assert sum(outcome.status == "passed" for outcome in report.outcomes.values()) > 25


def test_it_hides_no_other_mistake() -> None:
    asked = [PROPERTIES[name] for name in ("output_is_inside_the_bound", "calls_between_change_nothing")]
    report = verify_target(spoken(many_keys_are_off), asked, Plan(examples=60, strict=False))
    assert [name for name, outcome in report.outcomes.items() if outcome.finding] == ["output_is_inside_the_bound"]


def test_what_raises_at_some_sizes_alone_is_no_refusal() -> None:
    def sometimes(q: Any, k: Any, v: Any, mask: Any = None) -> Any:
        assert q.shape[-2] != 4 or not q.isnan().any()
        scores = q @ k.mT / max(q.shape[-1], 1) ** 0.5
        return (scores if mask is None else scores.masked_fill(mask == 0, float("-inf"))).softmax(-1) @ v

    assert not [words for words in spoken(sometimes).refuses if "finite" in words]


def test_what_is_declared_is_not_tried() -> None:
    target = make_target("mine", weights_are_checked, {"dtypes": ["float64"], "rows_without_keys": False, "non_finite": False})
    with pytest.raises(NotTaken, match="rows that see no key"):
        attend(target, make_inputs(Case(queries=3, keys=4, mask="nothing")))
    with pytest.raises(NotTaken, match="numbers that are not finite"):
        attend(target, make_inputs(Case(queries=3, keys=4, edits=(("q", 0, float("nan")),))))
