"""What is found is written down at once: a run that is killed, at whatever moment, goes on from there and ends as if it had not been."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import permissive
import pytest

from properties.catalogue import PROPERTIES
from properties.engine.doors import cli
from properties.engine.doors.cli import main
from properties.engine.search import journal
from properties.engine.search.probe import make_target
from properties.engine.search.search import Plan, search

ROOT = Path(__file__).parents[2]
KERNEL = """
import numpy as np

def attention(q, k, v, *, is_causal=False):
    scores = q @ np.swapaxes(k, -1, -2) * (q.shape[-1] or 1) ** -0.5
    if is_causal:
        scores = np.where(np.triu(np.ones(scores.shape[-2:], dtype=bool), k=2), -np.inf, scores)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True, initial=-1e300))
    return weights / np.maximum(weights.sum(axis=-1, keepdims=True), 1e-300) @ v

attention.supports = {"framework": "numpy", "dtypes": ["float64"], "max_length": 32}
"""
RIGHT = ("right.py:attention", "--property", "symmetry", "--cases", "2", "-n", "1")
FEW = ("kernel.py:attention", "--property", "future_tokens_are_ignored", "--property", "symmetry", "--cases", "12")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kernel.py").write_text(KERNEL)
    (tmp_path / "right.py").write_text(KERNEL.replace("k=2", "k=1"))
    return tmp_path


def started(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """The command line in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "properties", *arguments]
    return subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def found(report: Path) -> dict[str, Any]:
    """Of every property its status and cases; its finding, if any."""
    (one,) = json.loads(report.read_text())["reports"]
    said = {name: (p["status"], p["cases"], p["finding"] and p["finding"]["case"]) for name, p in one["properties"].items()}
    return {**said, "verdict": one["verdict"]}


def tried(path: Path) -> list[tuple[Any, ...]]:
    return [(line["property"], line["round"], line["part"]) for line in journal.lines(path) if "outcome" in line]


def killed_and_resumed(folder: Path, moments: list[float], *more: str) -> Path:
    """The journal of a run that is killed after so many seconds each, and gone on with until it comes to its end."""
    arguments = [*FEW, "--json", "report.json", "--record", "run.jsonl", *more]
    kept = b""
    for seconds in [*moments, None]:
        with started(folder, *arguments) as run:
            if seconds is not None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    run.wait(seconds)
                run.kill()
            out, err = run.communicate(timeout=120)
        assert "Traceback" not in err and "mistake of attncheck" not in err
        path = folder / "run.jsonl"
        if path.exists() and path.stat().st_size:
            now = path.read_bytes()
            assert now.startswith(kept)  # what was written down is never touched again
            kept = now
            for line in journal.lines(path):  # and is told before anything else is done
                if arguments[0] == "resume" and line.get("outcome", {}).get("finding") and seconds is None:
                    assert line["property"] in out
            arguments = ["resume", "run.jsonl"]
    assert run.returncode == 1, (out, err)
    return folder / "run.jsonl"


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], float]:
    """What the run finds that nobody kills, and how long it takes."""
    folder = tmp_path_factory.mktemp("undisturbed")
    (folder / "kernel.py").write_text(KERNEL)
    began = time.monotonic()
    with started(folder, *FEW, "--json", "report.json", "-n", "1") as run:
        run.communicate(timeout=120)
    assert run.returncode == 1
    return found(folder / "report.json"), time.monotonic() - began


MOMENTS = [random.Random(number).random() for number in range(50)]


@pytest.mark.slow
@pytest.mark.parametrize("share", [pytest.param(x, id=f"{at}", marks=[pytest.mark.nightly] if at else []) for at, x in enumerate(MOMENTS)])
def test_a_run_that_is_killed_goes_on(share: float, folder: Path, undisturbed: tuple[dict[str, Any], float]) -> None:
    expected, seconds = undisturbed
    path = killed_and_resumed(folder, [share * seconds, (1 - share) * seconds], "-n", "1")
    assert found(folder / "report.json") == expected
    assert max(Counter(tried(path)).values()) == 1  # nothing is tried twice
    assert journal.lines(path)[-1] == {"ended": 1}


@pytest.mark.slow
def test_a_worker_that_is_killed_takes_nothing_with_it(folder: Path, undisturbed: tuple[dict[str, Any], float]) -> None:
    with started(folder, *FEW, "--json", "report.json", "--record", "run.jsonl", "-n", "2") as run:
        until = time.monotonic() + 60
        path = folder / "run.jsonl"
        while time.monotonic() < until and not (path.exists() and b'"outcome"' in path.read_bytes()):
            time.sleep(0.02)
        worker = next(pid for pid in descendants(run.pid) if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes())
        os.kill(worker, signal.SIGKILL)
        _, err = run.communicate(timeout=120)
    assert run.returncode == 1 and "killed a worker" in err
    assert found(folder / "report.json") == undisturbed[0]
    assert max(Counter(tried(path)).values()) == 1


def descendants(pid: int) -> list[int]:
    children = [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return children + [below for child in children for below in descendants(child)]


@pytest.mark.slow
def test_a_first_failing_case_is_written_down_before_it_is_made_smaller(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*FEW, "-n", "1", "--record", "run.jsonl"]) == 1
    lines = journal.lines("run.jsonl")
    at = next(at for at, line in enumerate(lines) if "failing" in line)
    Path("cut.jsonl").write_text(
        "\n".join(map(journal.written, lines[: at + 1])) + '\n{"target": "kernel.py:atte'
    )  # killed while it writes
    capsys.readouterr()
    assert main(["resume", "cut.jsonl"]) == 1
    out = capsys.readouterr().out
    assert f"{lines[at]['failing']}, not made smaller yet, on {lines[at]['case']}" in out.split("REFUTED")[0]
    assert sorted(tried(Path("cut.jsonl"))) == sorted(tried(Path("run.jsonl")))


def test_a_run_that_came_to_its_end_is_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*FEW, "-n", "1", "-q"]) == 1
    capsys.readouterr()
    assert main(["resume"]) == 1
    out = capsys.readouterr().out
    assert "future_tokens_are_ignored, on Case(keys=2, is_causal=True): row 0" in out and "with exit status 1" in out
    assert "NOTHING FOUND" not in out and "verified" not in out  # nothing is called


@pytest.mark.slow
@pytest.mark.nightly
def test_another_kernel_is_tried_anew(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*FEW, "-n", "1", "--record", "run.jsonl"]) == 1
    (folder / "run.jsonl").write_text((folder / "run.jsonl").read_text().replace(journal.written({"ended": 1}), ""))
    (folder / "kernel.py").write_text(KERNEL.replace("k=2", "k=1"))
    sys.modules.pop("kernel", None)
    assert main(["resume", "run.jsonl"]) == 0
    assert "kernel.py changed since then" in capsys.readouterr().out


@pytest.mark.parametrize(
    "content, says", [(None, "no run has written anything down"), ("", "is not what a run"), ("[]\n3", "is not what a run")]
)
def test_what_cannot_be_gone_on_with_gets_a_sentence(
    content: str | None, says: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is not None:
        (folder / "run.jsonl").write_text(content)
    assert main(["resume", *["run.jsonl"] * (content is not None)]) == 2
    assert says in capsys.readouterr().err


BEGUN = {"arguments": ["kernel.py:attention"], "folder": "."}
PLACE = {"target": "kernel.py:attention", "property": "symmetry", "round": 0, "part": 0, "at": 0.5}
UNUSABLE: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "arguments": ({**BEGUN, "arguments": 3}, {}, "it has no such 'arguments'"),
    "one argument": ({**BEGUN, "arguments": [3]}, {}, "it has no such 'arguments'"),
    "more arguments": ({**BEGUN, "more": 3}, {}, "it has no such 'arguments'"),
    "no finding": (BEGUN, {**PLACE, "outcome": {"cases": 1, "set_aside": 0, "seconds": 0.5}}, "it has no such 'outcome'"),
    "a time": (BEGUN, {"target": "kernel.py:attention", "at": []}, "it has no such 'at'"),
    "a verdict": (BEGUN, {"judged": {"candidate": "a"}, "digest": "a"}, "it has no such 'judged'"),
    "an exit status": (BEGUN, {"ended": "1"}, "it has no such 'ended'"),
    "itself": ({**BEGUN, "arguments": ["resume", "run.jsonl"]}, {}, "attncheck resume is no run that can be gone on with"),
    "a folder that is gone": ({**BEGUN, "folder": "gone"}, {}, "the folder gone, in which that run was, is gone"),
}


@pytest.mark.parametrize("what", UNUSABLE)
def test_a_journal_that_does_not_say_what_it_should_gets_a_sentence(what: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, other, says = UNUSABLE[what]
    Path("run.jsonl").write_text("".join(journal.written(line) + "\n" for line in (first, other)))
    assert main(["resume", "run.jsonl"]) == 2
    said = capsys.readouterr().err
    assert says in said and said.startswith("attncheck: ") and said.count("\n") == 1


def test_a_run_without_arguments_is_gone_on_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "main", lambda given, own: len(given))
    assert cli.gone_on([], None) == 0


def test_where_nothing_can_be_written_the_run_goes_on(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file stands where the folder should be, as root may write everywhere."""
    (folder / ".hypothesis").write_text("")
    assert main([*RIGHT]) == 0
    assert "nothing is written down for a resume" in capsys.readouterr().err
    assert main([*RIGHT, "--record", "kernel.py/run.jsonl"]) == 2  # where somebody has asked for it, it ends


def test_old_runs_are_forgotten(folder: Path) -> None:
    kept = folder / journal.FOLDER
    kept.mkdir(parents=True)
    for number in range(journal.KEPT + 5):
        (kept / f"2000-01-01-0000{number:02}-1.jsonl").write_text("{}")
    assert main([*RIGHT, "-q"]) == 0
    left = sorted(path.name for path in kept.iterdir())
    assert len(left) == journal.KEPT and left[0] == "2000-01-01-000006-1.jsonl"


def test_an_outcome_is_read_as_it_was_written() -> None:
    """With what was left out, which later passes are added to."""
    target = make_target("mine", permissive.attention, {"length_multiple": 8, "dtypes": ["float64"]})
    for name in ("chunks_merge_to_the_whole", "output_is_inside_the_bound"):
        outcome = search(target, PROPERTIES[name], Plan(12))
        read = journal._read(json.loads(json.dumps(journal._outcome(outcome))), PROPERTIES[name], target)
        assert read == outcome and bool(read.notes.not_taken) is (name == "chunks_merge_to_the_whole")
        before = sum(read.notes.not_taken.values())
        read.add(outcome)
        assert sum(read.notes.not_taken.values()) == 2 * before
