"""Kernels as people guard them: halves alone, contiguous arrays alone, whatever other names are given, a cast to halves, much that is printed."""

from __future__ import annotations

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from properties.attention.call import attend
from properties.attention.case import Case
from properties.attention.inputs import make_inputs
from properties.catalogue import PROPERTIES, select
from properties.engine.core.target import Target
from properties.engine.search.probe import make_target
from properties.engine.search.run import verify_target
from properties.engine.search.search import Plan

THEMES = ("softmax", "values", "causality", "purity")
CENTRAL = [PROPERTIES["output_is_inside_the_bound"], PROPERTIES["causal_frontier_is_exact"]]


def computed(q: Any, k: Any, v: Any, causal: bool, further: int = 0) -> Any:
    scores = q.float() @ k.float().mT / max(q.shape[-1], 1) ** 0.5
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1 + further) > 0, -math.inf)
    return (scores.softmax(-1) @ v.float()).to(q.dtype)


def halves_alone(q: Any, k: Any, v: Any, causal: bool = False) -> Any:
    assert q.dtype in (torch.float16, torch.bfloat16)
    return computed(q, k, v, causal)


def halves_alone__a_frontier_too_far(q: Any, k: Any, v: Any, causal: bool = False) -> Any:
    assert q.dtype in (torch.float16, torch.bfloat16)
    return computed(q, k, v, causal, further=1)


def contiguous_alone(q: Any, k: Any, v: Any, causal: bool = False) -> Any:
    assert all(x.is_contiguous() for x in (q, k, v)), "contiguous arrays alone"
    return computed(q, k, v, causal)


def contiguous_alone__a_frontier_too_far(q: Any, k: Any, v: Any, causal: bool = False) -> Any:
    assert all(x.is_contiguous() for x in (q, k, v)), "contiguous arrays alone"
    return computed(q, k, v, causal, further=1)


def contiguous_and_length_first(q: Any, k: Any, v: Any, causal: bool = False) -> Any:
    """(batch, length, heads, dim)"""
    assert all(x.is_contiguous() for x in (q, k, v)), "contiguous arrays alone"
    return computed(*(x.transpose(1, 2) for x in (q, k, v)), causal).transpose(1, 2)


def other_names(q: Any, k: Any, v: Any, causal: bool = False, **others: Any) -> Any:
    return computed(q, k, v, causal)


def other_names__a_frontier_too_far(q: Any, k: Any, v: Any, causal: bool = False, **others: Any) -> Any:
    return computed(q, k, v, causal, further=1)


def spoken(function: Any) -> Target:
    target = make_target("mine", function)
    return target.kind.handshake(target, "cpu")


@pytest.mark.parametrize("function", [halves_alone, contiguous_alone, contiguous_and_length_first, other_names])
def test_a_right_one_is_let_go_and_its_causality_is_tried(function: Any) -> None:
    target = spoken(function)
    assert "is_causal" in target.parameters and not target.wrong
    report = verify_target(target, select(THEMES), Plan(examples=4, strict=False))
    assert not report.findings
    assert report.outcomes["future_tokens_are_ignored"].status == "passed"


@pytest.mark.parametrize(
    "function", [halves_alone__a_frontier_too_far, contiguous_alone__a_frontier_too_far, other_names__a_frontier_too_far]
)
def test_a_wrong_one_is_refuted(function: Any) -> None:
    assert verify_target(spoken(function), CENTRAL, Plan(examples=20, strict=False)).findings


def test_how_arrays_must_lie_is_told_and_heeded() -> None:
    target = spoken(contiguous_alone)
    assert target.refuses["arrays that are not contiguous"] == "AssertionError: contiguous arrays alone"
    attend(target, make_inputs(Case(queries=3, keys=4, layout="transposed", dtype="float32")))
    first = spoken(contiguous_and_length_first)
    assert first.learned["memory"] == "contiguous arrays alone: copies are given" and first.supports.memory == ("contiguous",)
    report = verify_target(target, [PROPERTIES["memory_layout_changes_nothing"]], Plan(examples=6))
    assert report.outcomes["memory_layout_changes_nothing"].status != "refuted"


def test_of_the_last_axis_alone() -> None:
    def last(q: Any, k: Any, v: Any) -> Any:
        assert all(x.stride(-1) == 1 for x in (q, k, v)), "the last axis must be contiguous"
        return computed(q, k, v, False)

    assert [words for words in spoken(last).refuses if "arrays" in words] == ["arrays that are strided, feature major"]


def test_names_that_are_taken_and_change_nothing_are_told() -> None:
    target = spoken(other_names)
    assert "changes nothing" in target.untried["attn_mask"] and "changes nothing" in target.untried["scale"]

    def passed_on(q: Any, k: Any, v: Any, **options: Any) -> Any:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, **options)

    assert {"attn_mask", "is_causal", "scale", "enable_gqa"} <= set(spoken(passed_on).parameters)


@pytest.mark.nightly
def test_float32_that_is_computed_in_halves_is_one_finding() -> None:
    def narrowed(q: Any, k: Any, v: Any, causal: bool = False) -> Any:
        return computed(*(x.bfloat16() for x in (q, k, v)), causal).to(q.dtype)

    target = spoken(narrowed)
    assert list(target.wrong) == ["float32"] and "computed in bfloat16" in target.wrong["float32"]
    assert {"float64", "float16"} <= set(target.differs) and target.dtypes == ("bfloat16",)
    assert not verify_target(target, CENTRAL, Plan(examples=8, strict=False)).findings
    assert "float32" not in {**spoken(halves_alone).wrong, **spoken(other_names).wrong}


def test_zeros_are_of_no_type() -> None:
    """What answers them has the bits of halves in every type, and computes in none."""
    target = spoken(lambda q, k, v: 0 * q)
    assert not target.wrong and not target.differs and {"float64", "float32", "float16"} <= set(target.dtypes)
