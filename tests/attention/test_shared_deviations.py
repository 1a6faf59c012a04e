"""What is on record for PyTorch's own function is no finding in a wrapper of it, by whatever door; a mistake beside it is one."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from properties import check_attention, parametrize_with_properties, verify
from properties.engine.doors.cli import main

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


def test_of_a_judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    Path("right.py").write_text(WRAPPER.format(""))
    Path("wrong.py").write_text(WRAPPER.format("1.001 * "))
    status = main(["judge", "right.py", "wrong.py", "--cases", "8", "--json", "scores.jsonl"])
    assert status == 1, capsys.readouterr().out
    verdicts = {Path(line["candidate"]).name: line["verdict"] for line in map(json.loads, Path("scores.jsonl").read_text().splitlines())}
    assert verdicts == {"right.py": "nothing found", "wrong.py": "refuted"}


def test_in_pytest(tmp_path: Path) -> None:
    (tmp_path / "right.py").write_text(WRAPPER.format(""))
    (tmp_path / "test_mine.py").write_text("def test_mine(attention_check):\n    attention_check()\n")
    command = [sys.executable, "-m", "pytest", "-p", "properties.plugin", "--impl", "right.py:attention", "--cases", "3", "-q"]
    done = subprocess.run(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=300)
    assert re.search(r"^\d{2,} passed", done.stdout, re.M) and done.returncode == 0, done.stdout
