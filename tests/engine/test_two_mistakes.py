"""A kernel with two mistakes: one run names both, and after the repair of one only the other remains."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor

from impls.mutants.attention import core, mask_shapes
from impls.mutants.registry import SIGNATURES, SUPPORTS
from properties import catalogue
from properties.engine.core.target import Target
from properties.engine.explain.explain import explain
from properties.engine.explain.reading import read_failure
from properties.engine.explain.suspects import known_mistakes
from properties.engine.report.text import findings_text, verdict_text
from properties.engine.search.probe import make_target
from properties.engine.search.run import verify_target
from properties.engine.search.search import Plan

# The name of a mistake → the step of the correct attention that it replaces.
MISTAKES: dict[str, dict[str, Any]] = {
    "mutants.causal.one_too_far": {"frontier": lambda queries, keys: core.frontier(queries, keys, 1)},
    "mutants.scaling.no_square_root": {"default_scale": lambda q: 1 / max(q.shape[-1], 1)},
    "mutants.heads.tiled": {"repeat_heads": lambda x, heads: x.repeat(1, heads // max(x.shape[1], 1), 1, 1)},
}
THEMES = ("causality", "scaling", "heads", "softmax")
CASES = 20


def attention_with(*mistakes: str) -> Target:
    """The correct attention with some of its steps replaced by wrong ones."""
    steps = {name: step for mistake in mistakes for name, step in MISTAKES[mistake].items()}

    def attention(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        return core.attention(q, k, v, **options, **steps)

    attention.__signature__ = SIGNATURES["attention"]  # type: ignore[attr-defined]
    attention.supports = SUPPORTS  # type: ignore[attr-defined]
    return make_target("mine", attention)


def one_run(*mistakes: str) -> tuple[set[str], set[str]]:
    """The mistakes that some finding of a run is read as, and those of them that the report prints."""
    suspects = known_mistakes()
    report = verify_target(attention_with(*mistakes), catalogue.select(THEMES), Plan(examples=CASES))
    explain(report, suspects, math.inf)
    told = findings_text(report, CASES)
    return (
        {reading.name for explained in report.explained.values() for reading in explained.readings},
        set(re.findall(r'"[^\n]*" \((mutants\.[\w.]+)\)', told)),
    )


FAR, DIM, TILED = MISTAKES
PAIRS = [(FAR, DIM), *(pytest.param(one, TILED, marks=pytest.mark.nightly) for one in (FAR, DIM))]


@pytest.mark.nightly
@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_both_mistakes_are_recognised_and_told(one: str, other: str) -> None:
    recognised, printed = one_run(one, other)
    assert {one, other} <= recognised & printed


@pytest.mark.parametrize("mistake", [FAR, *(pytest.param(name, marks=pytest.mark.nightly) for name in (DIM, TILED))])
@pytest.mark.nightly
def test_what_is_left_is_named_alone(mistake: str) -> None:
    recognised, printed = one_run(mistake)
    assert mistake in printed
    assert not recognised & (MISTAKES.keys() - {mistake})


def test_nothing_is_left() -> None:
    assert one_run() == (set(), set())


def refuses_vectors(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None) -> Tensor:
    if attn_mask is not None:
        attn_mask.shape[-2]  # as PyTorch does
    return core.attention(q, k, v, attn_mask=attn_mask)


HIDES = ("masked_garbage_changes_nothing", "masks_broadcast", "uniform_weights_decode_the_mask", "rows_sum_to_one")


def test_one_error_is_told_once_and_what_declares_it() -> None:
    target = make_target("mine", refuses_vectors)
    report = verify_target(target, catalogue.select(HIDES), Plan(examples=CASES))
    assert {finding.prop.name for finding in report.findings} == set(HIDES)
    told = [
        line for line in findings_text(report, CASES).splitlines() if "(a mask of rank 0 or 1 is not taken? declare mask_rank = 2)" in line
    ]
    assert len(told) == 2  # one finding in full, one line for the others
    assert sum(name in told[1] for name in HIDES) == len(HIDES) - 1
    declared = make_target("mine", refuses_vectors, supports={"mask_rank": 2})
    assert not verify_target(declared, catalogue.select(HIDES), Plan(examples=CASES)).findings


def refuses_rank_four(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
    if attn_mask is not None and attn_mask.ndim == 4:
        raise ValueError("no rank 4")
    return core.attention(q, k, v, attn_mask=attn_mask, is_causal=is_causal)


def test_what_can_be_declared_is_read_off_the_call_that_raised() -> None:
    """Not off the case: the property makes other masks of it."""
    report = verify_target(make_target("mine", refuses_rank_four), catalogue.select(HIDES), Plan(examples=CASES))
    assert report.findings and all(finding.violation.raised for finding in report.findings)
    assert "declare mask_rank" not in findings_text(report, CASES)


def test_an_error_is_read_as_a_mistake_that_raises_there_too() -> None:
    """Where the target raised there is no answer to compare."""
    suspects = known_mistakes()
    report = verify_target(make_target("mine", refuses_vectors), catalogue.select(HIDES), Plan(examples=CASES))
    assert [read_failure(report.target, finding, suspects) for finding in report.findings] == [[]] * len(HIDES)
    refusing = make_target("mine", mask_shapes.rank_four_refused)
    (finding,) = verify_target(refusing, catalogue.select(["masks_broadcast"]), Plan(examples=CASES)).findings
    assert finding.violation.raised
    assert [suspect.name for suspect in read_failure(refusing, finding, suspects)] == ["mutants.mask_shapes.rank_four_refused"]


def test_of_many_findings_a_few_have_lines_of_their_own() -> None:
    """The others are counted, and named by the verdict; all of them with -v."""
    target = make_target("mine", lambda q, k, v: torch.zeros_like(core.attention(q, k, v)), {"framework": "torch"})
    report = verify_target(target, catalogue.select(("softmax", "values", "scaling", "numbers")), Plan(examples=4, shrink=False))
    told, all_of_it = findings_text(report, 4), findings_text(report, 4, verbose=True)
    assert len(report.findings) > 8 and told.count("  replay ") < len(report.findings) == all_of_it.count("  replay ")
    (left,) = re.findall(r"and (\d+) more like these, which are named below", told)
    assert told.count("  replay ") + int(left) == len(report.findings)
    assert all(finding.prop.name in verdict_text(report) for finding in report.findings)
