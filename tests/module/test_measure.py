"""What is said of a refuted module: the one mistake with which the attention of its projections answers as it does; else nothing."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from exact_modules import module_with
from nightly import one_in

from impls.mutants import load_all
from properties.catalogue import PROPERTIES
from properties.engine.core.finding import Finding
from properties.engine.core.target import Target
from properties.engine.explain.explain import explained
from properties.engine.search.probe import make_target
from properties.engine.search.search import Plan, search
from properties.module.measure import MISTAKES, RIGHT, measured

MUTANTS = load_all()[0]
SAID = {
    "SplitByView": "heads split by a reshape, without a transpose",
    "MergedByReshape": "heads merged by a reshape, without a transpose",
    "OverQueries": "a softmax over queries",
    "OverHeads": "a softmax over heads",
    "OverSequences": "a softmax over sequences",
    "ScaleOfWidth": "logits scaled by 1/sqrt(width), not 1/sqrt(head_dim)",
    "OneTooFar": "a causal frontier that is one too far",
    "FlagIgnored": "no causality",
    "LaterAreZero": "hidden logits of 0",
    "CausalAfterSoftmax": "what is hidden hidden after the softmax",
}


def refuted(name: str) -> tuple[Target, Finding]:
    mutant = MUTANTS[f"module_heads.{name}"]
    target = make_target("mine", mutant.function)
    finding = search(target, PROPERTIES[mutant.killed_by], Plan(examples=60)).finding
    assert finding
    return target, finding


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize("name", one_in(3, SAID))
def test_a_mistake_is_called_by_its_name(name: str) -> None:
    target, finding = refuted(name)
    found = explained(target, finding).measured
    assert found and found[1] == f"it answers as the attention of its projections with {SAID[name]}"
    assert found[0].batch == 3 and found[0].length == 6


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize("name", ["FirstSequence", "OneMore", "CentredQueries", "Fading", "PositionOfSequence", "LastIsNoKey"])
def test_a_mistake_that_is_none_of_these_gets_no_name(name: str) -> None:
    assert measured(*refuted(name)) is None


def test_every_mistake_differs_from_what_is_right_and_from_the_others() -> None:
    assert RIGHT not in MISTAKES.values() and len(set(MISTAKES.values())) == len(MISTAKES) >= 20


def test_a_mask_that_changes_no_row_that_is_compared_is_not_said_to_be_left_out() -> None:
    """Rows of a causal module do not see what is hidden behind them, whether the mask is heeded or not."""
    wrong = module_with(after=lambda self, out, x: out.float() if out.dtype == torch.float16 else out)
    finding = search(wrong, PROPERTIES["module_output_has_the_right_form"], Plan(examples=60)).finding
    assert finding is not None
    assert measured(wrong, dataclasses.replace(finding, case=finding.case.but(is_causal=True, padded=True))) is None
