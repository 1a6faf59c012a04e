"""Conventions: learned by asking, told in a line or found wrong in one, and no cover for another mistake."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from nightly import one_in

torch = pytest.importorskip("torch")

from benchmarks.first_contact import numpy_libraries
from properties.attention import conventions
from properties.catalogue import PROPERTIES, select
from properties.engine.core import pace
from properties.engine.core.pace import SECONDS
from properties.engine.core.target import CannotRun, Target
from properties.engine.doors import cli
from properties.engine.doors.checks import verify
from properties.engine.doors.cli import main
from properties.engine.report.dialect import handshake_text
from properties.engine.search.probe import make_target
from properties.engine.search.run import Report, verify_target
from properties.engine.search.search import Plan


def kernel(scale_of: str = "root", corner: str = "top-left", polarity: str = "seen", rows: str = "nan", second: bool = False) -> Any:
    """An attention of one convention each; ``second``: its weights are 2 % too large, too."""

    def attention(q: Any, k: Any, v: Any, attn_mask: Any = None, is_causal: bool = False, scale: float | None = None) -> Any:
        dim, (queries, keys) = q.shape[-1], (q.shape[-2], k.shape[-2])
        usual = {"root": 1 / math.sqrt(max(dim, 1)), "one": 1.0, "dim": 1 / max(dim, 1), "eighth": 0.125, "third": 0.3}.get(scale_of, 0)
        usual = (
            usual
            or {
                "seven tenths": 0.7 / math.sqrt(max(dim, 1)),
                "twice": 2 / math.sqrt(max(dim, 1)),
                "mup": 8 / max(dim, 1),
                "root two": math.sqrt(2 / max(dim, 1)),
            }[scale_of]
        )
        s = q @ k.mT * (usual if scale is None else scale)
        if is_causal:
            ahead = keys - queries if corner == "bottom-right" else 0
            s = s.masked_fill(~torch.ones(queries, keys, dtype=torch.bool).tril(ahead), -math.inf)
        if attn_mask is not None:
            if attn_mask.dtype != torch.bool or polarity == "added":
                s = s + attn_mask
            else:
                s = s.masked_fill(attn_mask if polarity == "hidden" else ~attn_mask, -math.inf)
        empty = (s == -math.inf).all(-1, keepdim=True)
        w = torch.softmax(s, -1)
        if rows != "nan":
            w = w.masked_fill(empty, 1 / max(keys, 1) if rows == "mean" else 0.0)
        return w @ v * (1.02 if second else 1)

    return attention


def spoken(function: Any, **facts: Any) -> Target:
    target = make_target("mine", function, {"framework": "torch", **facts})
    return target.kind.handshake(target, "cpu")


CHOSEN = ("rows_sum_to_one", "output_is_inside_the_bound", "causal_frontier_is_exact", "bool_mask_equals_minus_infinity")


def searched(target: Target, *names: str) -> Report:
    return verify_target(target, select(names or CHOSEN), Plan(examples=4, strict=False))


WRONG = {
    "scale": {"scale_of": "one"},
    "scale, of one head dim": {"scale_of": "eighth"},
    "scale, a multiple": {"scale_of": "twice"},
    "scale, a multiple of 1/dim": {"scale_of": "mup"},
    "scale, a multiple by a root": {"scale_of": "root two"},
    "scale, a multiple that nobody uses": {"scale_of": "seven tenths"},
    "scale, a number": {"scale_of": "third"},
    "causal corner": {"corner": "bottom-right"},
    "bool mask": {"polarity": "hidden"},
}


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize("what", WRONG)
def test_what_is_other_than_documented_is_one_finding_and_learned(what: str) -> None:
    target = spoken(kernel(**WRONG[what]))
    assert set(target.wrong) == {what.partition(",")[0]}
    report = searched(target)
    assert not report.findings and not report.ok


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize(
    ("made", "told"),
    [
        ("seven tenths", "0.7/sqrt(dim), not with"),
        ("root two", "1.4142135623730951/sqrt(dim), not with"),
        ("twice", "2/sqrt(dim), not with"),
        ("third", "0.3 whatever the head dim, not with"),
        ("eighth", "1/sqrt(64) whatever the head dim, not with"),
        ("one", "1, not with"),
    ],
)
def test_a_scale_is_told_as_it_is(made: str, told: str) -> None:
    target = spoken(kernel(scale_of=made))
    assert f"a call without a scale is answered with {told}" in target.wrong["scale"]
    declared = re.findall('default_scale = "(.*)"', target.wrong["scale"])
    assert declared == [target.supports.default_scale] and not spoken(kernel(scale_of=made), default_scale=declared[0]).wrong


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize("what", one_in(2, WRONG))
def test_a_second_mistake_beside_it_is_found_in_the_same_run(what: str) -> None:
    report = searched(spoken(kernel(**WRONG[what], second=True)))
    assert report.target.wrong and "rows_sum_to_one" in {finding.prop.name for finding in report.findings}


def test_a_bool_mask_that_is_added_is_one_finding() -> None:
    target = spoken(kernel(polarity="added"))
    assert list(target.wrong) == ["bool mask"] and "added" in target.wrong["bool mask"] and "bool" not in target.supports.mask_kinds
    assert not searched(target).findings


@pytest.mark.parametrize("rows", ["zero", "nan", "mean"])
def test_rows_without_keys_are_a_convention(rows: str) -> None:
    target = spoken(kernel(rows=rows))
    assert target.supports.empty_rows == rows and not target.wrong and bool(target.differs) == (rows != "zero")
    assert not searched(target, "rows_without_keys_follow_the_convention", "masks_compose").findings


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize(
    ("declared", "made"),
    [
        ({"default_scale": "1"}, {"scale_of": "root"}),
        ({"default_scale": "1/sqrt(dim)"}, {"scale_of": "one"}),
        ({"default_scale": "1/dim"}, {"scale_of": "one"}),
        ({"default_scale": "1/sqrt(32)"}, {"scale_of": "eighth"}),
        ({"default_scale": "1/sqrt(64)"}, {"scale_of": "root"}),
        ({"default_scale": "2/sqrt(dim)"}, {"scale_of": "root"}),
        ({"default_scale": "8/dim"}, {"scale_of": "dim"}),
        ({"causal": "bottom-right"}, {"corner": "top-left"}),
        ({"causal": "top-left"}, {"corner": "bottom-right"}),
        ({"empty_rows": "zero"}, {"rows": "nan"}),
        ({"empty_rows": "mean"}, {"rows": "zero"}),
        ({"empty_rows": "nan"}, {"rows": "mean"}),
    ],
)
def test_what_is_declared_is_a_claim(declared: dict[str, str], made: dict[str, str]) -> None:
    """Nothing is learned against it: whoever does otherwise is refuted."""
    target = spoken(kernel(**made), **declared)
    assert getattr(target.supports, next(iter(declared))) == next(iter(declared.values())) and not target.wrong
    names = ("rows_without_keys_follow_the_convention",) if "empty_rows" in declared else CHOSEN
    assert verify_target(target, select(names), Plan(examples=40)).findings


@pytest.mark.parametrize(
    ("declared", "made"),
    [
        ({"default_scale": "1"}, {"scale_of": "one"}),
        ({"default_scale": "1/dim"}, {"scale_of": "dim"}),
        ({"default_scale": "1/sqrt(64)"}, {"scale_of": "eighth"}),
        ({"default_scale": "2/sqrt(dim)"}, {"scale_of": "twice"}),
        ({"default_scale": "8/dim"}, {"scale_of": "mup"}),
        ({"default_scale": "0.3"}, {"scale_of": "third"}),
        ({"causal": "bottom-right"}, {"corner": "bottom-right"}),
    ],
)
def test_what_is_declared_and_done_is_right(declared: dict[str, str], made: dict[str, str]) -> None:
    assert not searched(spoken(kernel(**made), **declared)).findings


def test_a_nan_that_stays_hidden_is_seen() -> None:
    assert not spoken(kernel()).observed
    assert spoken(contained).observed == {"masked_nan": "contained"}


def contained(q: Any, k: Any, v: Any, attn_mask: Any = None) -> Any:
    s = q @ k.mT / math.sqrt(max(q.shape[-1], 1))
    if attn_mask is None:
        return torch.softmax(s, -1) @ v
    seen = attn_mask if attn_mask.dtype == torch.bool else attn_mask != -math.inf
    s = s if attn_mask.dtype == torch.bool else s + attn_mask
    w = torch.softmax(s.masked_fill(~seen, -math.inf), -1)
    return (w[..., None] * torch.where(w[..., None] == 0, 0.0, v[..., None, :, :])).sum(-2)


def test_a_target_that_answers_at_random_teaches_nothing() -> None:
    random = np.random.default_rng(0)

    def noisy(q: Any, k: Any, v: Any, attn_mask: Any = None, is_causal: bool = False) -> Any:
        return torch.as_tensor(random.standard_normal((*q.shape[:3], v.shape[3])), dtype=q.dtype)

    target = spoken(noisy)
    assert set(target.wrong) == {"answers"} and not (target.learned or target.differs or target.refuses)
    assert not searched(target).findings  # nothing else is asked


def test_a_slow_target_is_asked_for_a_second_or_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that only the target moves: a call of half a second; the questions end, and what is known by then is told."""
    clock, calls = [0.0], [0]

    def slow(q: Any, k: Any, v: Any, attn_mask: Any = None, is_causal: bool = False) -> Any:
        clock[0], calls[0] = clock[0] + 0.5, calls[0] + 1
        return kernel(scale_of="one")(q, k, v, attn_mask, is_causal)

    target = make_target("mine", slow, {"framework": "torch", "dtypes": ["float64"]})
    target, calls[0] = dataclasses.replace(target, pace=pace.Pace()), 0
    monkeypatch.setattr(pace, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    found = conventions.with_conventions(target, "cpu")
    assert calls[0] <= 2 * SECONDS / 0.5
    assert found.untried["all of its conventions"].startswith("a call takes 0.5 s, too long")


def test_a_busy_machine_makes_no_target_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls of 40 ms, as where other work shares the cores: every question is asked, however long that takes in all."""
    clock = [0.0]

    def busy(q: Any, k: Any, v: Any, attn_mask: Any = None, is_causal: bool = False) -> Any:
        clock[0] += 0.04
        return kernel(scale_of="one")(q, k, v, attn_mask, is_causal)

    target = dataclasses.replace(make_target("mine", busy, {"framework": "torch", "dtypes": ["float64"]}), pace=pace.Pace())
    monkeypatch.setattr(pace, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(pace, "SECONDS", 0.5)
    began, found = clock[0], conventions.with_conventions(target, "cpu")
    assert found.untried == target.untried and found.supports.default_scale == "1"
    assert clock[0] - began > 0.5


def test_what_is_quick_is_asked_as_often_as_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where other work shares the cores a call in another process takes two milliseconds: thousands find the mask that a wrong one requires."""
    clock = [0.0]

    def busy(q: Any, k: Any, v: Any, mask: Any) -> Any:
        clock[0] += 0.002
        return numpy_libraries.tf_tutorial__weights_sum_to_one_downwards(q, k, v, mask)

    monkeypatch.setattr(pace, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    assert "attn_mask" in make_target("mine", busy, {"framework": "numpy"}).parameters and clock[0] > 6


@pytest.mark.parametrize("facts", [{}, {"scale_of": "eighth", "corner": "bottom-right", "rows": "mean"}], ids=["usual", "its own"])
def test_every_question_has_an_answer(facts: Any) -> None:
    """In words that a reader finds in the report, or else the usual one."""
    target = spoken(kernel(**facts))
    answers = target.kind.questions(target)
    assert all(answers.values()) and len(answers) >= 25
    assert answers["default scale"].startswith(target.wrong.get("scale", "1/sqrt(dim)"))
    assert answers["causal corner"].startswith(target.wrong.get("causal corner", "top-left"))
    assert answers["rows without keys"] == target.differs["rows without keys"]
    text = handshake_text(target, "cpu", verbose=True)
    assert all(f"{question} " in text and answer in text for question, answer in answers.items())
    assert f"{len(answers)} questions" in handshake_text(target, "cpu")


# ---------------------------------------------------------------- edges


def of_nothing_wrong(q: Any, k: Any, v: Any) -> Any:
    """Without keys the answer should be zeros, without features the mean of the values."""
    if not k.shape[-2] or not q.shape[-1]:
        return torch.ones(*q.shape[:3], v.shape[3], dtype=q.dtype)
    return torch.softmax(q @ k.mT / math.sqrt(max(q.shape[-1], 1)), -1) @ v


@pytest.mark.nightly
def test_what_is_wrong_at_an_edge_alone_is_told() -> None:
    name = "degenerate_output_is_inside_the_bound"
    lax = verify(of_nothing_wrong, properties=(name,), cases=400)
    assert lax.ok and list(lax.report.outcomes[name].edges) == ["sizes of zero"] and "  edge      sizes of zero: " in repr(lax)
    assert not verify(of_nothing_wrong, properties=(name,), cases=400, strict=True).ok


def test_an_edge_that_damages_what_is_none_is_no_edge() -> None:
    """An empty row whose NaN reaches all rows."""

    def poisoned(q: Any, k: Any, v: Any, attn_mask: Any = None) -> Any:
        out = kernel()(q, k, v, attn_mask)
        return out + 0 * out.sum(-2, keepdim=True)

    target = spoken(poisoned, empty_rows="nan")
    assert verify_target(target, select(("rows_without_keys_follow_the_convention",)), Plan(examples=40, strict=False)).findings


# ---------------------------------------------------------------- the command line

FILE = """
import json
import math
import torch

def attention(q, k, v, attn_mask=None, is_causal=False):
    s = q @ k.mT / math.sqrt(max(q.shape[-1], 1))
    if is_causal:
        s = s.masked_fill(~torch.ones(s.shape[-2:], dtype=torch.bool).tril(), -math.inf)
    if attn_mask is not None:
        s = s.masked_fill(~attn_mask, -math.inf) if attn_mask.dtype == torch.bool else s + attn_mask
    return FINISH

def declared_away(q, k, v):
    if q.shape[2] > 1:
        raise ValueError("one query at a time")
    return attention(q, k, v)
"""
FEW = ["--cases", "8", "--property", "rows_without_keys_follow_the_convention", "--property", "rows_sum_to_one"]


def test_what_is_written_is_the_claim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A change of convention is a regression from then on."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli, "known_mistakes", lambda missing=None: [])  # readings take longer than all the rest
    Path("mine.py").write_text(FILE.replace("FINISH", "torch.softmax(s, -1) @ v"))
    assert main(["mine.py:attention", "--handshake"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("SPEAKS  mine.py:attention") and "differs   rows without keys: NaN, not 0" in told
    assert main(["mine.py:attention", "--write-supports", "mine.toml", *FEW]) == 0
    assert 'empty_rows = "nan"' in Path("mine.toml").read_text()
    assert main(["mine.py:attention", "--supports", "mine.toml", *FEW]) == 0
    Path("mine.py").write_text(FILE.replace("FINISH", "torch.nan_to_num(torch.softmax(s, -1)) @ v"))
    assert main(["mine.py:attention", *FEW]) == 0
    assert main(["mine.py:attention", "--supports", "mine.toml", *FEW]) == 1


def test_a_replay_line_speaks_as_the_run_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A bool mask that means the other thing: no case of masks is refuted, unless one kind is declared, and then the line says so."""
    monkeypatch.chdir(tmp_path)
    Path("mine.toml").write_text('mask_kinds = ["bool", "minus_infinity"]\n')
    monkeypatch.setattr(cli, "known_mistakes", lambda missing=None: [])
    Path("mine.py").write_text(FILE.replace("FINISH", "torch.softmax(s, -1) @ v").replace("~attn_mask, -", "attn_mask, -"))
    name = "bool_mask_equals_minus_infinity"
    assert main(["mine.py:attention", "--supports", "mine.toml", "--property", name, "--cases", "8"]) == 1
    out = capsys.readouterr().out
    replay = next(line for line in out.splitlines() if line.startswith("  replay "))
    case = re.search(r'--case "(.*)"', replay)
    assert case and "mine.py:attention --supports mine.toml --property" in replay
    assert main(["mine.py:attention", "--supports", "mine.toml", "--property", name, "--case", case[1]]) == 1
    assert main(["mine.py:attention", "--property", name, "--case", case[1]]) == 0


def test_too_little_is_no_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text("def attention(q, k, v):\n    return v[..., :1, :] + 0 * q\n\nattention.supports = {'framework': 'numpy'}\n")
    known = "\n".join(
        f'[[deviation]]\ntargets = ["*"]\nproperties = ["{name}"]\nwhen = "True"\nkind = "documented"\nreason = "none"\n'
        f'version = "numpy {np.__version__}"\ncase = "Case(keys=2)"\nshows = "output_is_inside_the_bound"\n'
        for name in PROPERTIES
    )
    Path("all.toml").write_text(known)
    assert main(["mine.py:attention", "--deviations", "all.toml", "--cases", "6"]) == 2
    assert "NOTHING FOUND" not in capsys.readouterr().out


def test_the_first_finding_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli, "known_mistakes", lambda missing=None: [])
    Path("mine.py").write_text("def attention(q, k, v):\n    return v[..., :1, :] + 0 * q\n\nattention.supports = {'framework': 'numpy'}\n")
    assert main(["mine.py:attention", "--first"]) == 1
    out = capsys.readouterr().out
    assert "  0 properties hold, 1 refuted, " in out or "  1 property holds, 1 refuted, " in out
    assert out.startswith("REFUTED  mine.py:attention") and "  found     " in out.splitlines()[1]


# ---------------------------------------------------------------- what comes back, and how it was computed


def test_a_wider_result_differs_and_is_no_finding() -> None:
    """As of NumPy, where a float64 scalar makes a float64 array of one in float32."""

    def widened(q: Any, k: Any, v: Any) -> Any:
        s = q @ np.swapaxes(k, -1, -2) / np.sqrt(np.float64(max(q.shape[-1], 1)))
        e = np.exp(s - s.max(-1, keepdims=True, initial=-np.inf))
        return e / e.sum(-1, keepdims=True) @ v

    target = make_target("mine", widened, {"framework": "numpy"})
    target = target.kind.handshake(target, "cpu")
    assert "dtype" in target.differs and target.supports.result == "wider"
    assert not searched(target, "output_has_the_right_form").findings


def test_float64_that_is_computed_in_float32_is_not_tried() -> None:
    def single(q: Any, k: Any, v: Any) -> Any:
        return contained(q.float(), k.float(), v.float()).to(q.dtype)

    target = spoken(single)
    assert "float64" in target.differs and target.dtypes == ("float32", "float16", "bfloat16")
    assert not searched(target, "output_is_inside_the_bound").findings


def test_a_mask_that_replaces_causality() -> None:
    def replaces(q: Any, k: Any, v: Any, attn_mask: Any = None, is_causal: bool = False) -> Any:
        return kernel()(q, k, v, attn_mask, is_causal and attn_mask is None)

    target = spoken(replaces)
    assert list(target.wrong) == ["mask and causal"] and not target.supports.mask_and_causal
    assert not searched(target, "causal_frontier_is_exact", "output_is_inside_the_bound").findings


def test_a_slight_mistake_in_float64_is_not_taken_for_float32() -> None:
    def off_by_a_millionth(q: Any, k: Any, v: Any) -> Any:
        return contained(q * (1 + 1e-6), k, v)

    target = spoken(off_by_a_millionth)
    assert "float64" in target.dtypes and not target.differs
    assert verify_target(target, select(("output_is_inside_the_bound",)), Plan(examples=40)).findings


@pytest.mark.nightly
def test_a_right_kernel_is_quiet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """One screen of 24 lines at 80 columns, the verdict first; the inventories come with -v."""
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(
        "import torch\n\ndef attention(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):\n"
        "    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)\n"
    )
    assert main(["mine.py:attention", "--cases", "4", "-n", "1"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[0].startswith("NOTHING FOUND") and len(told) <= 24 and max(map(len, told)) <= 80, "\n".join(told)
    assert main(["mine.py:attention", "--cases", "4", "-n", "1", "-v", "--property", "causality"]) == 0
    inventory = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  features ")]
    assert inventory and not set(inventory) & set(told)


def test_a_wrong_convention_is_a_finding_at_every_door(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is the first, it stands in JUnit and SARIF, and in the line of a judge."""
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(FILE.replace("FINISH", "torch.softmax(s, -1) @ v").replace("~attn_mask, -", "attn_mask, -"))
    assert main(["mine.py:attention", "--first", "--junit", "mine.xml", "--sarif", "mine.sarif"]) == 1
    assert "wrong     bool mask" in capsys.readouterr().out
    failures = ElementTree.parse("mine.xml").getroot().findall(".//failure")
    assert [failure.get("message", "").startswith("it is True where a key is hidden") for failure in failures] == [True]
    results = json.loads(Path("mine.sarif").read_text())["runs"][0]["results"]
    assert [result["ruleId"] for result in results] == ["documented bool mask"]
    assert main(["judge", "mine.py:attention", "--time", "4s", "--json", "scores.jsonl"]) == 1
    record = json.loads(Path("scores.jsonl").read_text().splitlines()[0])
    assert record["verdict"] == "refuted" and record["findings"][0]["property"] == "documented bool mask"


@pytest.mark.parametrize("default", ["1/sqrt(dim)", "1"])
def test_a_scale_of_0_that_is_taken_for_none_is_one_finding(default: str) -> None:
    """``scale or default``: told and not asked again, and another mistake is found beside it."""

    def usual(q: Any) -> float:
        return float(q.shape[-1]) ** -0.5 if default != "1" else 1.0

    def attention(q: Any, k: Any, v: Any, scale: float | None = None, twice: bool = False) -> Any:
        s = q @ k.mT * (scale or usual(q))
        return torch.softmax(s * 2 if twice and q.shape[-1] % 2 else s, -1) @ v

    def wrong(q: Any, k: Any, v: Any, scale: float | None = None) -> Any:
        return attention(q, k, v, scale, twice=True)

    target = spoken(lambda q, k, v, scale=None: attention(q, k, v, scale))
    assert set(target.wrong) == {"scale of 0"} and target.supports.scales == "not zero"
    assert not verify_target(target, [PROPERTIES["zero_scale_averages"]], Plan(examples=5)).findings
    report = verify_target(spoken(wrong), [PROPERTIES["output_is_inside_the_bound"]], Plan(examples=20))
    assert report.findings and "scale of 0" in spoken(wrong).wrong
    assert not spoken(lambda q, k, v, scale=None: attention(q, k, v, usual(q) if scale is None else scale or 1e-300)).wrong


def test_a_scale_beside_a_mistake_in_other_rows_is_named() -> None:
    """The first batch element alone is right but for the scale."""

    def attention(q: Any, k: Any, v: Any, scale: Any = None) -> Any:
        return torch.softmax(q @ k.mT * (1.0 if scale is None else scale), -1)[:1] @ v

    target = spoken(attention)
    assert target.supports.default_scale == "1" and set(target.differs) == {"scale"}
    assert searched(target, "output_is_inside_the_bound", "batch_elements_are_independent").findings


@pytest.mark.parametrize("factor", [1.0, 2.0])
def test_a_scale_that_multiplies_the_usual_one_is_one_finding(factor: float) -> None:
    """Scaled twice: none that is given is as it is meant; and where none is, 1/dim."""

    def attention(q: Any, k: Any, v: Any, scale: Any = None) -> Any:
        usual = max(q.shape[-1], 1) ** -0.5
        return torch.softmax(q @ k.mT * (usual if scale is None else scale) * usual**factor, -1) @ v

    target = spoken(attention)
    if factor == 1:
        assert (
            list(target.wrong) == ["scale"] and "1/dim" in target.wrong["scale"] and "is multiplied by 1/sqrt(dim)" in target.wrong["scale"]
        )
        assert "scale" not in target.parameters and not searched(target).findings
    assert target.wrong or searched(target).findings


def test_what_is_computed_in_float32_is_seen_beside_a_mistake() -> None:
    def attention(q: Any, k: Any, v: Any) -> Any:
        weights = torch.softmax(q.float() @ k.float().mT / max(q.shape[-1], 1) ** 0.5, -1)
        return ((weights * torch.where(torch.arange(k.shape[2]) < 4, 1.0, 0.5)) @ v.float()).to(q.dtype)

    target = spoken(attention)
    assert target.differs["float64"] == "computed in float32; not tried" and "float64" not in target.dtypes
    assert all(not finding.violation.slight for finding in searched(target).findings)


@pytest.mark.parametrize(
    "answer",
    [lambda v: v.tolist(), lambda v: None, lambda v: (x for x in v), lambda v: __import__("no_such_library")],
    ids=["a list", "nothing", "a generator", "what is not installed"],
)
def test_what_never_answers_with_an_array_is_not_asked_for_long(answer: Callable[[Any], Any]) -> None:
    calls = [0]

    def strange(q: Any, k: Any, v: Any, mask: Any = None) -> Any:
        calls[0] += 1
        return answer(v)

    with pytest.raises(CannotRun, match=f"no array has come back of {pace.STRANGE} calls"):
        make_target("mine", strange, {"framework": "numpy"})
    assert calls[0] < 2 * pace.STRANGE


def test_what_takes_windows_of_keys_that_are_no_head_dim_is_asked_in_which_type_it_computes() -> None:
    """As local-attention does, which looks at whole windows of 16 tokens; its answer without a window is off here, too."""

    def windowed(q: Any, k: Any, v: Any) -> Any:
        if q.shape[2] % 16 or q.shape != k.shape:
            raise ValueError("whole windows alone")
        return 1.001 * torch.nn.functional.scaled_dot_product_attention(q, k, v)

    target = spoken(windowed)
    assert target.supports.length_multiple == 16
