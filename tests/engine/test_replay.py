"""Replay lines from Python: what they say can be run as it stands. And what is no verdict: nothing tried, nothing written."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from properties.engine.doors.asked import address_of
from properties.engine.doors.checks import verify
from properties.engine.doors.cli import main

KERNEL = """
import numpy as np

def attention(q, k, v, is_causal=False):
    scores = q @ k.swapaxes(-1, -2)
    if is_causal:
        scores = np.where(np.tri(*scores.shape[2:], k=1, dtype=bool), scores, -np.inf)
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True, initial=-1e300))
    return powers / np.maximum(powers.sum(axis=-1, keepdims=True), 1e-300) @ v

def blhd(q, k, v):
    return attention(*(x.swapaxes(1, 2) for x in (q, k / 2, v))).swapaxes(1, 2)  # 2 = the square root of 4 features

def leaves(q, k, v):
    raise SystemExit(3)

attention.supports = blhd.supports = {"framework": "numpy", "dtypes": ["float64"]}
"""
PROPERTY = "future_tokens_are_ignored"


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "kernel_of_mine.py").write_text(KERNEL)
    import importlib

    return importlib.reload(importlib.import_module("kernel_of_mine"))


def replay_of(text: str) -> str:
    """Of the finding; a convention that is wrong has a replay line of its own."""
    (line,) = re.findall(rf"^  replay    (.*{PROPERTY}.*)$", text, re.MULTILINE)
    return str(line)


def test_a_function_of_a_file_is_replayed_by_the_command_line(kernel: Any, capsys: pytest.CaptureFixture[str]) -> None:
    told = repr(verify(kernel.attention, name="mine", properties=(PROPERTY,)))
    words = shlex.split(replay_of(told).removeprefix("python -m properties"))
    assert words[0] == "kernel_of_mine.py:attention"
    assert main(words) == 1 and "1 of 1 properties refuted" in capsys.readouterr().out


def test_any_other_callable_is_replayed_from_python(kernel: Any) -> None:
    mine = lambda q, k, v, is_causal=False: kernel.attention(q, k, v, is_causal)  # noqa: E731
    facts = {"framework": "numpy", "dtypes": ["float64"]}
    assert address_of(mine) is None and address_of(kernel.attention, facts) is None
    told = repr(verify(mine, name="mine", properties=(PROPERTY,), supports=facts))
    line = replay_of(told)
    assert line.startswith(f'verify(mine, properties=("{PROPERTY}",), case="Case(')
    case = re.findall(r'case="(.*)"', line)[0]
    again = verify(mine, name="mine", properties=(PROPERTY,), case=case, supports=facts)
    assert [finding.prop.name for finding in again.findings] == [PROPERTY]
    right = verify(lambda q, k, v: v, properties=("output_has_the_right_form",), case="Case()", supports=facts)
    assert right.ok and right.report.cases == 1


def test_a_replay_line_says_what_was_declared(kernel: Any, capsys: pytest.CaptureFixture[str]) -> None:
    Path("my facts.toml").write_text('dtypes = "float64"\n')
    assert main(["kernel_of_mine.py:attention", "--supports", "my facts.toml", "--property", PROPERTY]) == 1
    words = shlex.split(replay_of(capsys.readouterr().out).removeprefix("python -m properties"))
    assert words[1:3] == ["--supports", "my facts.toml"] and main(words) == 1


SAID = {
    "a target that ends the process": (["kernel_of_mine.py:leaves"], "it raised SystemExit: 3"),
    "nothing tried": (["loops.attention", "--property", "layer*"], "nothing was tried"),
    "no folder for the report": (
        ["kernel_of_mine.py:attention", "--json", "nowhere/report.json"],
        "attncheck: nowhere/report.json: No such file or directory; there is no folder nowhere\n",
    ),
    "a folder for the report": (["kernel_of_mine.py:attention", "--json", "."], "attncheck: .: Is a directory; give a file\n"),
    "a full disk for what was learned": (
        ["kernel_of_mine.py:attention", "--handshake", "--write-supports", "/dev/full"],
        "attncheck: /dev/full: No space left on device; make room, or give another place\n",
    ),
    "no plain file for the record": (
        ["kernel_of_mine.py:attention", "--record", "/dev/full"],
        "attncheck: /dev/full: Invalid argument; give a plain file\n",
    ),
    "no baseline": (
        ["kernel_of_mine.py:attention", "--baseline", "no.json"],
        "attncheck: there is no baseline no.json; --write-baseline writes one\n",
    ),
    "no name": ([""], "the target is empty"),
    "no number": (["kernel_of_mine.py:attention", "--supports", "zero.toml"], "supports['max_length'] is 0"),
    "no end": (["kernel_of_mine.py:attention", "--supports", "/dev/zero"], "/dev/zero is not TOML: it is longer than 256 MiB"),
    "no end of a journal": (["resume", "/dev/zero"], "/dev/zero is not what a run has written down"),
    "no TOML": (["kernel_of_mine.py:attention", "--supports", "broken.toml"], "broken.toml is not TOML"),
}


@pytest.mark.parametrize("name", SAID)
def test_one_sentence_and_exit_status_2(name: str, kernel: Any, capsys: pytest.CaptureFixture[str]) -> None:
    Path("zero.toml").write_text("max_length = 0\n")
    Path("broken.toml").write_text("max_length =\n")
    arguments, says = SAID[name]
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert says in said and "Traceback" not in said


def test_a_foreign_layout_is_learned(kernel: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """It is right for four features alone, which shows as soon as there are others."""
    assert main(["kernel_of_mine.py:blhd", "--property", "scaling_reduces_variance", "--cases", "20"]) == 1
    assert "speaks    axes: (batch, length, heads, dim)" in capsys.readouterr().out


def test_a_declared_layout_is_read(kernel: Any, capsys: pytest.CaptureFixture[str]) -> None:
    Path("facts.toml").write_text("layout = 'blhd'\nhead_dims = [4]\nempty_rows = 'mean'\nzero_sizes = false\n")
    assert main(["kernel_of_mine.py:blhd", "--supports", "facts.toml", "--property", "softmax", "--cases", "20"]) == 0
