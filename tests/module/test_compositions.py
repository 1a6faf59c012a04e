"""Norms, positions, groups and scales are recognised by what they do; with one mistake in them a module is refuted, and the mistake is named."""

from __future__ import annotations

from typing import Any

import pytest
from composed_styles import RIGHT, TOLD, WRONG, Composed, but
from nightly import one_in
from torch import nn

from properties import verify
from properties.engine.search.probe import make_target

PROPERTY = "module_is_the_attention_of_its_projections"


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize("style", one_in(3, RIGHT), ids=lambda style: style.__name__)
def test_a_right_composition_is_confirmed_and_let_go(style: type[nn.Module]) -> None:
    verdict = verify(style, properties=(PROPERTY,), cases=12)
    said = verdict.report.target.learned["structure"]
    assert RIGHT[style] in said and said.endswith(": confirmed")
    assert verdict.ok and not verdict.report.target.differs


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize("style", TOLD, ids=lambda style: style.__name__)
def test_a_scale_that_something_documents_is_told(style: type[nn.Module]) -> None:
    verdict = verify(style, properties=(PROPERTY,), cases=8)
    assert verdict.ok and verdict.report.target.differs == {"scale": TOLD[style]}


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize("which", one_in(3, WRONG))
def test_a_mistake_is_refuted_and_named(which: str) -> None:
    style, mistake = WRONG[which]
    verdict = verify(style, properties=(PROPERTY,), cases=8)
    (finding,) = verdict.findings
    assert finding.violation.says.endswith(f"is not the attention of the projections: {mistake}")
    assert not verdict.report.target.differs


def without_softmax(self: Any, logits: Any) -> Any:
    return logits.sigmoid()


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize(
    "changes",
    [
        {"weigh": without_softmax},
        {"normed": lambda self, q, k, v: (k, q, v)},
        {"by": lambda self: 1.001 * self.d**-0.5},
        {"positioned": lambda self, q, k: (q - q.mean(2, keepdim=True), k)},
        {"after": lambda self, out, x: self.o_proj(out) * 0.5 + x},
    ],
)
def test_nothing_is_claimed_of_what_is_otherwise(changes: dict[str, Any]) -> None:
    """And no scale or number of heads is said that is not that of the nearest composition, which is told with how far it is off."""
    target = make_target("mine", but(Composed, **changes))
    said = target.learned["structure"]
    assert target.function.structure is None  # type: ignore[attr-defined]
    assert said.startswith("not confirmed: q_proj, k_proj, v_proj, o_proj are found by their names; ")
    assert "no composition of them answers as it does" in said or "the nearest composition is off by" in said
