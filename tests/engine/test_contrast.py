"""A reading is cross-examined by the cases on which the target is right; what has no name is measured."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from nightly import more_by_night, one_in
from torch import Tensor

from impls.mutants import load_all
from impls.mutants.attention import core
from impls.mutants.registry import SIGNATURES, SUPPORTS
from properties import catalogue
from properties.attention.measure import measured
from properties.engine.core.explanation import Explanation, Reading
from properties.engine.doors.cli import main
from properties.engine.explain.contrast import Contrast, read_report
from properties.engine.explain.explain import explain
from properties.engine.explain.suspects import known_mistakes
from properties.engine.report.text import findings_text, reading_lines
from properties.engine.search.probe import make_target
from properties.engine.search.run import Report, verify_target
from properties.engine.search.search import Plan

CASES = more_by_night(12, 20)
SUSPECTS = known_mistakes()


def report_of(*themes: str, **steps: Callable[..., Any]) -> Report:
    """That on a correct attention with some of its steps replaced."""

    def attention(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        return core.attention(q, k, v, **options, **steps)

    attention.__signature__ = SIGNATURES["attention"]  # type: ignore[attr-defined]
    attention.supports = SUPPORTS  # type: ignore[attr-defined]
    return verify_target(make_target("mine", attention), catalogue.select(themes), Plan(examples=CASES))


def ahead(count: int) -> Callable[..., Tensor]:
    return lambda queries, keys: torch.ones(queries, keys, dtype=torch.bool).tril(count)


@cache
def two_ahead() -> Report:
    return report_of("causality", frontier=ahead(2))


@pytest.mark.nightly
def test_a_suspect_that_is_wrong_where_the_target_is_right_is_no_reading() -> None:
    """A frontier two too far answers on two keys as if there were none."""
    report = report_of("causality", "softmax", "scaling", "symmetry", frontier=ahead(2))
    readings = read_report(report, SUSPECTS)
    assert report.findings
    named = {reading.name for found in readings.values() for reading in found if not reading.wrong and reading.whole}
    assert not named & {"mutants.causal.ignored", "mutants.causal.bottom_right", "mutants.causal.training_path_forgets_causality"}


@pytest.mark.parametrize(
    "mistake, wrong", [("causal.bottom_right_with_a_cache", False), pytest.param("causal.bottom_right", True, marks=pytest.mark.nightly)]
)
def test_suspects_are_put_to_the_cases_that_hold(mistake: str, wrong: bool) -> None:
    """With fewer keys than queries the one is right, and the other is not."""
    target = make_target("mine", load_all()[0]["causal.bottom_right_with_a_cache"].function)
    report = verify_target(target, catalogue.select(["causality", "softmax"]), Plan(examples=CASES))
    (suspect,) = (one for one in SUSPECTS if one.name == f"mutants.{mistake}")
    put = Contrast(report)._put(suspect, "float64")
    assert put.tried and bool(put.wrong) == wrong == bool(put.example)


def test_a_suspect_that_remembers_is_not_held_to_cases_it_saw_in_another_order() -> None:
    mutant = load_all()[0]["state.causal_sticks"]
    report = verify_target(make_target("mine", mutant.function), catalogue.select(["numbers", "causality"]), Plan(examples=CASES))
    assert "mutants.state.causal_sticks" in {r.name for found in read_report(report, SUSPECTS).values() for r in found}


def test_what_only_resembles_is_said_to() -> None:
    report, reading = two_ahead(), Reading("mutants.one", "one mistake")
    there = next(case for outcome in report.outcomes.values() for case in outcome.right)
    said = {
        kind: reading_lines([Reading(reading.name, reading.mistake, **facts)])[0]
        for kind, facts in {"is": {}, "resembles": {"wrong": 1, "example": ("values", there)}, "here": {"whole": False}}.items()
    }
    assert "behaves like" in said["is"] and "resembles" in said["resembles"] and repr(there) in said["resembles"]
    assert "not on larger cases" in said["here"]


def test_of_a_reading_no_more_is_said_than_is_known() -> None:
    """Not that it is wrong elsewhere, that larger cases were tried in vain, or that it explains other findings."""
    one, several = Reading("mutants.one", "one mistake"), Reading("mutants.one", "one mistake", explains=3)
    assert reading_lines([one]) == ['  reading   behaves like "one mistake" (mutants.one)']
    assert reading_lines([several]) == ['  reading   behaves like "one mistake" (mutants.one), as in 2 more of the findings']
    assert reading_lines([]) == [] and (one.wrong, one.tried, one.example) == (0, 0, None)


MEASURED = [
    ({"frontier": ahead(2)}, "causality", "the keys with j − i = 1 to 2 are visible and should be hidden"),
    ({"frontier": ahead(-1)}, "causality", "the keys with j − i = 0 are hidden and should be visible"),
    ({"softmax": lambda s, visible: 0.97 * core.softmax(s, visible)}, "softmax", "every weight is 0.97 of what it should be"),
    (
        {"scores": lambda q, k, scale: core.scores(q, k, 1.1 * scale)},
        "numbers",
        "every logit is 1.1 of what it should be, as with scale = ",
    ),
    (
        {"softmax": lambda s, visible: s.exp() / (1 + s.exp().sum(-1, keepdim=True))},
        "numbers",
        "the weights of a row are in proportion, but 0.",
    ),
    (
        {"softmax": lambda s, visible: 1 / (1 + 1e-8 * core.softmax(s, visible).amax(-1, keepdim=True)) * core.softmax(s, visible)},
        "softmax",
        "as if 1e-08 were added to their denominator, Σ exp(s − max s)",
    ),
    (
        {"softmax": lambda s, visible: core.softmax(s, visible).index_fill(-1, torch.tensor(0), 0.0)},
        "symmetry",
        "the keys with key j = 0 are hidden and should be visible",
    ),
]


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize("steps, theme, says", one_in(2, MEASURED), ids=[says[:40] for _, _, says in MEASURED])
def test_what_is_wrong_with_the_weights_is_measured(steps: dict[str, Any], theme: str, says: str) -> None:
    report = report_of(theme, **steps)
    explain(report, ())
    told = findings_text(report, CASES)
    assert says in told and told.count("measured  on ") == len(
        {line.partition(") ")[2] for line in told.splitlines() if "measured" in line}
    )


def test_a_layer_that_returns_no_weights_is_read() -> None:
    """Whether it returns them is another matter than what is wrong with its output."""
    mistake = load_all()[0]["layers.packed_with_one_bias"].function

    def layer(query: Tensor, key: Tensor, value: Tensor, weights: Any, *, num_heads: int) -> Tensor:
        out: Tensor = mistake(query, key, value, weights, num_heads=num_heads, need_weights=False)[0]
        return out

    target = make_target("mine", layer, {"zero_sizes": False})
    report = verify_target(target, catalogue.select(["self_attention_is_inside_the_bound"]), Plan(examples=CASES))
    (readings,) = read_report(report, SUSPECTS).values()
    assert [reading.name for reading in readings] == ["mutants.layers.packed_with_one_bias"]


def test_right_weights_are_not_measured() -> None:
    """Values that are rounded make the output wrong; 0 and 1 are not rounded, so that the weights are read as they are."""
    report = report_of("numbers", mix=lambda weight, value, visible: core.mix(weight, value.bfloat16().to(value.dtype), visible))
    assert report.findings and not any(measured(report.target, finding) for finding in report.findings)


REMEMBERS = """
import torch
SCALE = {}

def attention(q, k, v, *, is_causal=False):
    scale = SCALE.setdefault((q.shape[-2], k.shape[-2]), q.shape[-1] ** -0.5)
    scores = (q.double() @ k.double().mT) * scale
    if is_causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
    return (torch.softmax(scores, -1) @ v.double()).to(q.dtype)

attention.supports = {"zero_sizes": False}
"""


@pytest.mark.nightly
def test_what_a_target_remembers_is_not_blamed_on_the_case(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The scale of the first call with as many queries and keys is kept: a case alone is answered rightly, unless it has two sizes itself."""
    (tmp_path / "mine.py").write_text(REMEMBERS)
    monkeypatch.chdir(tmp_path)
    command = ["mine.py:attention", "--property", "output_is_inside_the_bound"]
    assert main(command) == 1
    out = capsys.readouterr().out
    assert "remembers with the file imported anew the case alone is answered rightly" in out
    assert "reading" not in out and "matters" not in out and "--case" not in out
    assert main(command) == 1  # as the replay line says


@pytest.mark.nightly
def test_a_file_that_can_be_imported_once_only_is_reported_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    once = "import sys\nif hasattr(sys, 'imported_once'):\n    raise RuntimeError('registered already')\nsys.imported_once = True\n"
    (tmp_path / "mine.py").write_text(once + REMEMBERS)
    monkeypatch.chdir(tmp_path)
    try:
        assert main(["mine.py:attention", "--property", "output_is_inside_the_bound", "--in-process"]) == 1
    finally:
        del sys.imported_once  # type: ignore[attr-defined]
    assert "REFUTED" in capsys.readouterr().out


def test_a_slight_finding_is_shown_where_it_is_a_mistake_of_its_own() -> None:
    """Beside a gross one; where the gross mistake explains it, too, that is shown instead."""
    report, reading = two_ahead(), Reading("mutants.one", "one mistake")
    gross, slight = report.findings[:2]
    slight = dataclasses.replace(slight, violation=dataclasses.replace(slight.violation, actual=1.0, expected=1 + 1e-9))
    report = dataclasses.replace(
        report, outcomes={f.prop.name: dataclasses.replace(report.outcomes[f.prop.name], finding=f) for f in (gross, slight)}
    )
    other = Reading("mutants.another", "another mistake")
    for named, full in ((reading, 1), (other, 2)):
        report.explained = {gross.prop.name: Explanation((reading,)), slight.prop.name: Explanation((named,))}
        told = findings_text(report, CASES)
        assert told.count("  reading ") == full


def test_what_a_target_does_not_remember_is_told_with_its_case(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.py").write_text(
        REMEMBERS.replace(
            "SCALE.setdefault((q.shape[-2], k.shape[-2]), q.shape[-1] ** -0.5)", "(0.9 if k.shape[-2] > 8 else 1) * q.shape[-1] ** -0.5"
        )
    )
    monkeypatch.chdir(tmp_path)
    assert main(["mine.py:attention", "--property", "output_is_inside_the_bound"]) == 1
    out = capsys.readouterr().out
    assert "remembers" not in out and "--case" in out and "every logit is 0.9 of what it should be" in out
