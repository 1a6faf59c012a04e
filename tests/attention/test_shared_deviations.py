"""What is on record for PyTorch's own function is no finding in a wrapper of it, by whatever door; a mistake beside it is one."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from properties import check_attention, parametrize_with_properties, verify
from properties.attention.case import Case
from properties.catalogue import PROPERTIES
from properties.engine.core.trial import Violation
from properties.engine.doors.cli import main
from properties.engine.doors.known import known_of
from properties.engine.frameworks.machine import numbers
from properties.engine.search import alike as alike_module
from properties.engine.search.alike import fails_alike
from properties.engine.search.probe import make_target

ROOT = Path(__file__).parents[2]
WRAPPER = """
import torch

def attention(query, key, value, attn_mask=None, is_causal=False, scale=None):
    return {}torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=attn_mask, is_causal=is_causal, scale=scale)
"""
THEIRS = ("missing_values_raise", "causal_equals_triangular_mask", "value_gradients_sum_to_the_output_gradient")


def wrapper(query: Any, key: Any, value: Any, attn_mask: Any = None, is_causal: bool = False, scale: float | None = None) -> Any:
    return torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=attn_mask, is_causal=is_causal, scale=scale)


def wrong(query: Any, key: Any, value: Any, attn_mask: Any = None, is_causal: bool = False, scale: float | None = None) -> Any:
    return wrapper(query, key, value, attn_mask, is_causal, scale) * 1.001


@pytest.mark.nightly
def test_from_python() -> None:
    strict = verify(wrapper, cases=4, properties=THEIRS, strict=True)
    assert {"missing_values_raise"} <= {finding.prop.name for finding in strict.findings}
    assert verify(wrapper, cases=4).ok
    check_attention(wrapper, cases=4, properties=THEIRS)
    assert not verify(wrong, cases=4, properties=("softmax",)).ok


def test_in_a_test_file() -> None:
    mark = parametrize_with_properties({"mine": wrapper}, properties=THEIRS, cases=4)
    checks = {parameter.id: parameter.values[0] for parameter in mark.args[1]}  # type: ignore[attr-defined]
    assert len(checks) >= len(THEIRS)
    for check in checks.values():
        check()


@pytest.mark.nightly  # as from Python, by another door
def test_of_a_judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    Path("right.py").write_text(WRAPPER.format(""))
    Path("wrong.py").write_text(WRAPPER.format("1.001 * "))
    status = main(["judge", "right.py", "wrong.py", "--cases", "8", "--json", "scores.jsonl"])
    assert status == 1, capsys.readouterr().out
    verdicts = {Path(line["candidate"]).name: line["verdict"] for line in map(json.loads, Path("scores.jsonl").read_text().splitlines())}
    assert verdicts == {"right.py": "nothing found", "wrong.py": "refuted"}


@pytest.mark.nightly  # as in a test file, in a process of its own
def test_in_pytest(tmp_path: Path) -> None:
    (tmp_path / "right.py").write_text(WRAPPER.format(""))
    (tmp_path / "test_mine.py").write_text("def test_mine(attention_check):\n    attention_check()\n")
    command = [sys.executable, "-m", "pytest", "-p", "properties.plugin", "--impl", "right.py:attention", "--cases", "3", "-q"]
    done = subprocess.run(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=300)
    assert re.search(r"^\d{2,} passed", done.stdout, re.M) and done.returncode == 0, done.stdout


IMPOSTOR = """
import torch

def attention(query, key, value, attn_mask=None, is_causal=False, scale=None):
    if attn_mask is not None and attn_mask.ndim < 2 and key.shape[2] > 1 and query.shape[2] * query.shape[3] > 4:
        attn_mask = None
    return torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=attn_mask, is_causal=is_causal, scale=scale)
"""


@pytest.mark.nightly
def test_another_mistake_is_not_theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It refuses a mask of one axis in their words on the case that is on record, and ignores it on larger ones, where they refuse it, too."""
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(IMPOSTOR)
    Path("theirs.py").write_text(WRAPPER.format(""))
    few = ("--property", "output_is_inside_the_bound", "--property", "masks", "--cases", "40", "--round", "3", "--json", "scores.jsonl")
    assert main(["judge", "mine.py", "theirs.py", *few]) == 1
    mine, theirs = map(json.loads, Path("scores.jsonl").read_text().splitlines())
    assert theirs["verdict"] == "nothing found", theirs["findings"]
    assert mine["verdict"] == "refuted" and mine["findings"][0]["kind"] == "differs"


def test_words_are_compared_without_their_numbers() -> None:
    case, prop = Case(keys=2), PROPERTIES["output_is_inside_the_bound"]

    def alike(says: str, raised: bool, like: str, dtype: str = "float64") -> bool:
        made = Violation(says, 0.0, 0.0, 0.0, raised=raised)
        return fails_alike(SimpleNamespace(like=like), prop, dataclasses.replace(case, dtype=dtype), made, "cpu")  # type: ignore[arg-type]

    there = Violation("row 12, feature 3 is off: got 1.5e-07, expected nan", 0.0, 0.0, 0.0)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(alike_module, "try_case", lambda *_: there)
        assert alike("row 1, feature 0 is off: got -0.25, expected inf", False, "torch_sdpa.math")
        assert not alike("row 1, key 0 is off: got -0.25, expected inf", False, "torch_sdpa.math")
        assert not alike(there.says, True, "torch_sdpa.math") and not alike(there.says, False, "none.such")
        assert not alike(there.says, False, "torch_sdpa.math", "float8")
        patched.setattr(alike_module, "try_case", lambda *_: None)
        assert not alike(there.says, False, "torch_sdpa.math")


@pytest.mark.parametrize(("scale", "theirs"), [(-0.5, True), (0.5, False)])
def test_an_answer_beside_their_nan_is_no_finding_of_its_own(scale: float, theirs: bool) -> None:
    """The first rows alone, where the whole is NaN: rows are added to what takes as many queries as keys, so that another kernel answers."""
    prop = PROPERTIES["prefix_of_output_is_output_of_prefix"]
    case = Case(keys=2, is_causal=True, scale=scale, layout="strided")
    said = Violation("row 0 of the first 1 differs when the later tokens are absent", -0.95, float("nan"), 0.0)
    like: Any = SimpleNamespace(like="torch_sdpa.default", shows="rows_sum_to_one")
    assert fails_alike(like, prop, case, said, "cpu") is theirs


def test_what_kills_both_is_on_record_for_both() -> None:
    """Without heads PyTorch before 2.13 divides by their number; of later ones nothing of the kind is on record."""
    target = make_target("mine", wrapper)
    known = [deviation for deviation in known_of(target.kind.handshake(target, "cpu")) if deviation.kind == "crash"]
    assert len(known) == (numbers(torch.__version__) < (2, 13)) and all(
        deviation.matches(Case(kv_heads=0)) and not deviation.like for deviation in known
    )
