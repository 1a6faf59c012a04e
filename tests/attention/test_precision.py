"""The declared arithmetic is a claim: a tighter kind that fits is named, a looser one that is needed is a downgrade."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from properties.attention import precision
from properties.attention.precision import looser_kind
from properties.attention.trial import Run
from properties.catalogue import select
from properties.engine.core.target import Target
from properties.engine.explain.explain import explained
from properties.engine.report.text import finding_text, verdict_text
from properties.engine.search.probe import make_target
from properties.engine.search.run import verify_target
from properties.engine.search.search import Plan, search

(INSIDE,) = select(("output_is_inside_the_bound",))


def weights_rounded(q: Any, k: Any, v: Any, *, is_causal: bool = False) -> Any:
    """float32 scores, weights rounded to the type of the input: what is called fused."""
    scores = q.float() @ k.float().mT * q.shape[-1] ** -0.5
    if is_causal:
        scores = scores.masked_fill(~torch.ones(scores.shape[-2:], dtype=torch.bool).tril(), -torch.inf)
    return torch.softmax(scores, -1).to(q.dtype) @ v


def declared(kind: str) -> Target:
    facts = {"dtypes": ["bfloat16"], "arithmetic": {"bfloat16": kind}, "zero_sizes": False}
    return make_target("mine", weights_rounded, facts)


def test_a_looser_arithmetic_is_a_downgrade() -> None:
    target = declared("wide")
    finding = search(target, INSIDE, Plan()).finding
    assert finding
    assert looser_kind(target, finding) == "fused"
    assert "precision downgrade: the answer is as good as fused" in finding_text(finding, "cpu", 150, explained(target, finding))


@pytest.mark.nightly
def test_a_tighter_arithmetic_that_fits_is_named() -> None:
    verdict = verdict_text(verify_target(declared("eager"), [INSIDE], Plan()), verbose=True)
    assert "bfloat16: eager is claimed, fused fits, too" in verdict
    assert "wide fits" not in verdict


def test_the_right_claim_needs_no_word() -> None:
    report = verify_target(declared("fused"), [INSIDE], Plan())
    assert report.ok and "is claimed" not in verdict_text(report)


def test_a_wrong_answer_is_no_downgrade() -> None:
    def doubled(q: Any, k: Any, v: Any) -> Any:
        return 2 * weights_rounded(q, k, v)

    target = make_target("mine", doubled, {"dtypes": ["bfloat16"], "zero_sizes": False})
    finding = search(target, INSIDE, Plan()).finding
    assert finding and looser_kind(target, finding) is None


def test_a_tighter_arithmetic_that_an_answer_has_left_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    used_of = precision.used_of

    def noted(run: Run, kind: str) -> float:
        asked.append(kind)
        return used_of(run, kind)

    monkeypatch.setattr(precision, "used_of", noted)
    fits = search(declared("eager"), INSIDE, Plan(examples=20)).notes.fits
    assert fits["bfloat16 wide"] > 1 and asked.count("wide") < 5
    assert fits["bfloat16 fused"] <= 1 and asked.count("fused") == 20
