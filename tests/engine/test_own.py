"""What one's own tests are made of: check_attention, cases, run_case, declare; init and replay."""

from __future__ import annotations

import os
import shlex
import sys
import tomllib
from pathlib import Path
from runpy import run_path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis.database import DirectoryBasedExampleDatabase

import properties
from properties.attention.case import Case
from properties.attention.trial import Trial
from properties.engine.core.supports import Supports
from properties.engine.core.target import CannotRun
from properties.engine.doors import checks, cli, replay
from properties.engine.doors.cli import main

KERNEL = """
import numpy as np

def attention(q, k, v, is_causal=False):
    logits = q @ k.swapaxes(-1, -2) * max(q.shape[3], 1) ** -0.5
    if is_causal:
        logits = np.where(np.tri(*logits.shape[2:], k=0, dtype=bool), logits, -np.inf)
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True) @ v
"""
SUPPORTS = {"zero_sizes": False, "dtypes": ["float64"]}
names: dict[str, Any] = {}
exec(KERNEL, names)
right = names["attention"]
names = {}
exec(KERNEL.replace("k=0", "k=1"), names)
wrong = names["attention"]


@pytest.fixture(autouse=True)
def no_readings(monkeypatch: pytest.MonkeyPatch) -> None:
    """They cost seconds, and are tested elsewhere."""
    monkeypatch.setattr(checks, "known_mistakes", lambda: [])
    monkeypatch.setattr(cli, "known_mistakes", lambda missing=None: [])


def test_check_attention() -> None:
    properties.check_attention(right, properties=("causality",), cases=10, supports=SUPPORTS)
    with pytest.raises(AssertionError, match="REFUTED  future_tokens_are_ignored"):
        properties.check_attention(wrong, properties=("causality",), cases=10, supports=SUPPORTS)
    with pytest.raises(CannotRun, match="nothing was tried"):
        properties.check_attention(right, properties=("masks",), cases=10, supports=SUPPORTS)


def test_cases_are_those_of_the_search() -> None:
    """What the attention does not take is not drawn; what it takes is."""
    seen: list[Case] = []

    @settings(max_examples=60, database=None, deadline=None)
    @given(case=properties.cases(right, supports=SUPPORTS))
    def collect(case: Case) -> None:
        seen.append(case)

    collect()
    assert {case.dtype for case in seen} == {"float64"} and not any(case.empty or case.mask != "none" for case in seen)
    assert {case.is_causal for case in seen} == {True, False} and len({case.keys for case in seen}) > 5
    with pytest.raises(CannotRun, match="the target takes no attn_mask"):
        properties.cases(right, about="masked_keys_are_deleted", supports=SUPPORTS)
    with pytest.raises(ValueError, match="no property is named"):
        properties.cases(right, about="nothing", supports=SUPPORTS)


def test_an_answer_has_the_exact_one_and_both_bounds() -> None:
    case = "Case(queries=4, keys=40, dim=8, is_causal=True)"
    for kernel, holds in ((right, True), (wrong, False)):
        run = properties.run_case(kernel, case, supports=SUPPORTS)
        assert run.out.shape == run.exact.out.shape == run.bound.shape == (1, 1, 4, 8)
        assert ((np.abs(run.out - run.exact.out) <= run.bound).all()) == holds and (run.likely(1e-9) <= run.bound).all()
    with pytest.raises(CannotRun, match="is no attention"):
        properties.run_case(lambda length, dim: np.zeros((length, dim)), "Case()", supports={"contract": "sinusoidal"})


def test_a_property_of_ones_own() -> None:
    @properties.declare("Σ_j w_ij j ≤ i", is_causal=True, needs=("is_causal",), keys=(4, 5), queries=(3,))
    def rows_look_back(t: Trial) -> None:
        """On average a causal row looks at itself or before."""
        read = t.weights()
        place = (read.out * np.arange(read.out.shape[3])).sum(axis=-1)
        t.at_least(np.arange(read.out.shape[2]), place, np.full(place.shape, 1e-9), "row {column} looks ahead")

    assert rows_look_back.theme == "test_own" and rows_look_back.statement == "On average a causal row looks at itself or before."
    assert properties.verify(right, properties=(rows_look_back,), cases=5, supports=SUPPORTS).ok
    (found,) = properties.verify(wrong, properties=(rows_look_back,), cases=5, supports=SUPPORTS).findings
    assert found.violation.says == "row 0 looks ahead" and found.case.is_causal
    with pytest.raises(ValueError, match="says nothing"):
        properties.declare("0 = 0")(lambda t: None)


# ---------------------------------------------------------------- replay


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kernel.py").write_text(KERNEL.replace("k=0", "k=1"))
    (tmp_path / "kernel.toml").write_text("zero_sizes = false\n")
    return tmp_path


def test_every_finding_is_tried_again(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay"]) == 0 and capsys.readouterr().out == "no finding is kept here\n"
    searched = ["kernel.py:attention", "--supports", "kernel.toml", "--property", "*frontier*", "--cases", "10", "-q", "--json", "run.json"]
    assert main(searched) == 1
    capsys.readouterr()
    assert main(["replay"]) == 1
    out = capsys.readouterr().out
    assert out.count("STILL WRONG ") == 1 and "1 finding: 0 fixed, 1 still wrong, 0 error" in out
    for line in (line.strip() for line in out.splitlines() if " --case " in line):  # each replays by itself, too
        assert main(shlex.split(line.removeprefix("python -m properties"))) == 1
    capsys.readouterr()
    (folder / "kernel.py").write_text(KERNEL)
    assert main(["replay", "run.json"]) == 0
    assert capsys.readouterr().out.count("FIXED ") == 1
    assert main(["replay"]) == 0  # and then they are forgotten
    assert "1 finding: 1 fixed" in capsys.readouterr().out
    assert main(["replay"]) == 0 and capsys.readouterr().out == "no finding is kept here\n"


def test_what_cannot_be_tried_again_is_an_error(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = 'python -m properties gone.py:attention --property rows_sum_to_one --case "Case(keys=2)"'
    assert replay.again(line) == ("ERROR", "there is no file gone.py; did you mean kernel.py?")
    assert replay.again(line.replace("gone.py", "kernel.py").replace("rows_sum", "row_sum"))[0] == "ERROR"
    assert replay.again(line.replace("gone.py", "kernel.py").replace("keys=2", "kees=2"))[0] == "ERROR"
    assert replay.again(line.replace("gone.py", "kernel.py").replace("rows_sum_to_one", "masked_keys_are_deleted"))[0] == "ERROR"
    assert replay.again("verify(attention)") == ("ERROR", "a finding in a function of Python is replayed there")


@pytest.mark.parametrize(
    "content",
    ['{"reports": 3}', "[" * 200_000, '{"reports": [{"properties": {"one": {"finding": {"alone": true, "replay": 3}}}}]}'],
    ids=("a number", "nested too deeply", "no text"),
)
def test_what_is_no_report_is_told(content: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "run.json").write_text(content)
    assert main(["replay", "run.json"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("attncheck: run.json is no report of --json: ") and said.count("\n") == 1


def test_what_is_no_line_is_told_without_its_bytes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As where something else has written into the folder of what is kept."""
    for content in (b"\x1b[2J'\xff", b"\x00\xfe" * 500, b"attncheck mine.py:attention", b"attncheck --no-such"):
        DirectoryBasedExampleDatabase(replay.DATABASE).save(replay.KEY, content)
    assert main(["replay"]) == 2
    out = capsys.readouterr().out
    assert out.count("ERROR       no replay line\n") == 4 and "4 findings: 0 fixed, 0 still wrong, 4 error" in out
    assert out.replace("\n", "").isprintable() and len(out) < 2000 and "            attncheck mine.py:attention\n" in out


# ---------------------------------------------------------------- init


def test_init_writes_what_passes(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "mine.py").write_text(KERNEL)
    assert main(["init", "mine.py"]) == 0
    written = (folder / "mine.toml").read_text(encoding="utf-8")
    declared = tomllib.loads(written)
    assert not declared["zero_sizes"] and declared["dtypes"] == ["float64", "float32", "float16"]
    assert declared["causal"] == "top-left" and "mask_kinds" not in declared  # the usual answers, too, of what it takes
    assert "zero_sizes = false  # any dimension may be 0" in written
    everything = tomllib.loads(
        "\n".join(line.removeprefix("# ") for line in written.splitlines() if " = " in line and "refuses" not in line)
    )
    Supports.read(everything)  # what is commented out can be declared as it stands
    assert len(everything) > 15
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "mine", raising=False)  # another test's
    (marked,) = run_path(str(folder / "test_mine.py"))["test_attention"].pytestmark
    checks = {check.values[0].id.rpartition("-")[2]: check.values[0] for check in marked.args[1]}
    assert len(checks) > 30
    for name in ("causal_frontier_is_exact", "output_stays_in_the_hull_of_values"):
        checks[name]()
    capsys.readouterr()
    assert main(["init", "mine.py"]) == 2 and "mine.toml is there already" in capsys.readouterr().err


@pytest.mark.parametrize(
    "given, says",
    [
        ("gone.py", "there is no file gone.py"),
        ("two.py", "which callable of two.py? It has one, two"),
        ("kernel.toml", "is no FILE.py"),
        ("two.py:three", "has no attribute 'three'"),
        ("pipe.py", "pipe.py is no file, but a pipe or a device"),
    ],
)
def test_init_says_what_it_needs(given: str, says: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "two.py").write_text("def one(q, k, v): ...\n\n\ndef two(q, k, v): ...\n")
    os.mkfifo(folder / "pipe.py")
    assert main(["init", given]) == 2
    assert says in capsys.readouterr().err and not list(folder.glob("test_*"))
