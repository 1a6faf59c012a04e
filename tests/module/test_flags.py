"""A flag of a constructor that is not as by default is tried, too: what is wrong behind it alone is found, and what was not tried is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from properties.engine.doors.cli import main
from properties.module.construct import flags_of

CODE = """
import math
import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim, num_heads=4, qkv_bias=False, causal=False, masked=True, inplace=False, four=False):
        super().__init__()
        if four and num_heads % 4:
            raise ValueError("four heads, or eight")
        self.heads, self.causal = num_heads, causal
        self.qkv, self.proj = nn.Linear(dim, 3 * dim, bias=qkv_bias), nn.Linear(dim, dim)

    def forward(self, x):
        batch, length, dim = x.shape
        q, k, v = (y.view(batch, length, self.heads, -1).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        if self.causal:
            scores = scores.masked_fill(torch.ones(length, length, dtype=torch.bool).triu(1), -math.inf)
        return self.proj((scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, dim))
"""
FEW = ("--cases", "2", "-n", "1", "-q")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def ran(folder: Path, capsys: pytest.CaptureFixture[str], code: str, *words: str) -> tuple[int, str]:
    (folder / "mine.py").write_text(code)
    status = main(["mine.py:Attention", *FEW, *words])
    return status, capsys.readouterr().out


def flat(out: str) -> str:
    """Without the breaks of its lines."""
    return " ".join(out.split())


@pytest.mark.nightly
def test_what_is_wrong_behind_a_flag_is_found(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out = ran(folder, capsys, CODE.replace("triu(1)", "triu(2)"), "--json", "report.json")
    assert status == 1 and out.startswith("NOTHING FOUND  mine.py:Attention · ")
    assert "REFUTED  module_future_tokens_are_ignored · mine.py:Attention(causal=True) · cpu" in out
    assert "also qkv_bias=True, masked=False, four=True: nothing found, 2 cases of each property" in flat(out)
    reports = {one["target"]: one for one in json.loads((folder / "report.json").read_text())["reports"]}
    assert [name for name, one in reports.items() if not one["ok"]] == ["mine.py:Attention(causal=True)"]
    replay = next(line for line in out.splitlines() if "  replay  " in line)
    assert "'mine.py:Attention(causal=True)'" in replay
    assert main(["replay", "report.json"]) == 1


@pytest.mark.nightly
def test_right_ones_are_let_go(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out = ran(folder, capsys, CODE)
    assert status == 0 and "REFUTED" not in out
    assert "also qkv_bias=True, causal=True, masked=False, four=True: nothing found" in flat(out)


@pytest.mark.nightly
def test_a_flag_that_cannot_be_tried_is_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out = ran(folder, capsys, CODE.replace("if four and num_heads % 4", "if four"))
    assert status == 0 and "also four=True: it cannot be tried: cannot be made: the constructor raised ValueError: four heads" in flat(out)


def test_who_asks_for_one_property_or_one_flag_gets_that_alone(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "mine.py").write_text(CODE)
    for words in (["mine.py:Attention", "--property", "tokens"], ["mine.py:Attention(causal=True)"]):
        assert main([*words, *FEW]) == 0
        assert "  also  " not in capsys.readouterr().out


def test_a_class_with_a_flag_has_sizes_to_vary(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "mine.py").write_text(CODE)
    assert main(["mine.py:Attention(causal=True)", "--handshake"]) == 0
    assert "heads and their width are varied through the constructor" in capsys.readouterr().out
    assert main(["mine.py:Attention(num_heads=2, causal=True)", "--handshake"]) == 0
    assert "varied through the constructor" not in capsys.readouterr().out


def test_flags_that_serve_training_or_tracing_are_none() -> None:
    class Layer:
        def __init__(
            self, a: Any, b: bool = True, use_checkpoint: bool = False, freeze: bool = False, c: int = 1, shift_size: int = 0
        ) -> None:
            """Whatever."""

    assert flags_of(Layer) == {"b": "False", "shift_size": "2"}
