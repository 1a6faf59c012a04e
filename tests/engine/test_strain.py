"""The command line under strain: whatever it is given, wherever it writes, it says a sentence and has the right exit status."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from nightly import one_in

from impls import numpy_matmul
from properties import catalogue
from properties.engine.doors import cli
from properties.engine.doors.cli import main
from properties.engine.doors.options import parser
from properties.engine.report.text import verdict_text
from properties.engine.search import run, search
from properties.engine.search.probe import make_target

ROOT = Path(__file__).parents[2]
KERNEL = """
import os, signal, sys
import numpy as np

def right(q, k, v):
    logits = q @ k.swapaxes(-1, -2) * max(q.shape[3], 1) ** -0.5
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True, initial=-np.inf))
    return weights / weights.sum(axis=-1, keepdims=True) @ v

right.supports = {"framework": "numpy", "dtypes": ["float64"], "zero_sizes": False}
attention = right


def after(act):
    def wrong(q, k, v):
        if k.shape[2] < 4:
            act()
        return right(q, k, v)
    wrong.supports = right.supports
    return wrong
"""


def attncheck(
    folder: Path, code: str, *options: str, shell: str = "", environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """The command line on ``kernel.py:attention``, in a process of its own; ``shell``: what follows it in a shell."""
    (folder / "kernel.py").write_text(KERNEL + code)
    command = [sys.executable, "-m", "properties", "kernel.py:attention", "--property", "rows_sum_to_one", "--cases", "10", *options]
    given: Any = command if not shell else " ".join(command) + " " + shell
    return subprocess.run(
        given,
        cwd=folder,
        env={"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"], **(environment or {})},
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        check=False,
        shell=bool(shell),
        timeout=120,
    )


def test_a_closed_standard_output_changes_no_verdict(tmp_path: Path) -> None:
    ran = attncheck(tmp_path, "", shell=">&-")
    assert ran.returncode == 0 and "Traceback" not in ran.stderr


def test_a_working_directory_that_is_gone_is_told_and_ends_nobody_else_s_program(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    told = {}
    for name, words in (("command", ["-m", "properties", "list"]), ("program", ["-c", "from properties import verify"])):
        code = f"import os, sys; os.chdir({str(tmp_path / 'gone')!r}); os.rmdir(os.getcwd()); os.execv(sys.executable, [sys.executable, *{words!r}])"
        told[name] = subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True
        )
        (tmp_path / "gone").mkdir(exist_ok=True)
    assert (told["command"].returncode, told["command"].stderr) == (
        2,
        "attncheck: the working directory is gone: change to one that exists\n",
    )
    assert told["program"].returncode == 1 and "FileNotFoundError" in told["program"].stderr


def test_a_full_disk_is_told(tmp_path: Path) -> None:
    ran = attncheck(tmp_path, "", shell="> /dev/full")
    assert ran.returncode == 2 and "No space left on device" in ran.stderr and "Traceback" not in ran.stderr


class Full(io.StringIO):
    """A buffer before a disk that is full."""

    def flush(self) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("words", [["--version"], ["list", "--property", "softmax"]], ids=" ".join)
def test_a_full_disk_is_told_whatever_is_asked_for(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdout", Full())
    assert main(words) == 2
    assert capsys.readouterr().err == "attncheck: No space left on device; make room, or give another place\n"


def test_an_encoding_that_lacks_characters_loses_no_report(tmp_path: Path) -> None:
    ran = attncheck(tmp_path, "", "--json", "-", environment={"PYTHONIOENCODING": "ascii"})
    assert ran.returncode == 0 and "NOTHING FOUND" in ran.stderr and '"ok": true' in ran.stdout


def test_what_ends_the_process_in_a_call_is_a_finding(tmp_path: Path) -> None:
    ran = attncheck(tmp_path, "attention = after(lambda: os._exit(0))")
    assert ran.returncode == 1 and "the call ended the process (exit status 0)" in ran.stdout, ran.stderr


class NobodysOwn(BaseException):
    """What no handler of ours knows."""


@pytest.mark.parametrize("error", [SystemExit(0), search.TimeIsOver(), NobodysOwn(), GeneratorExit(), StopIteration()], ids=repr)
def test_what_ends_a_search_is_a_finding(error: BaseException) -> None:
    def attention(q: Any, k: Any, v: Any) -> Any:
        if k.shape[2] == 3:
            raise error
        return numpy_matmul.attention(q, k, v)

    found = search.search(make_target("mine", attention, {"framework": "numpy"}), catalogue.PROPERTIES["rows_sum_to_one"], search.Plan())
    assert found.finding and found.finding.violation.says.startswith(f"the call raised {type(error).__name__}")


ON_IMPORT = {"an exit of the process": "os._exit(0)", "an exit": "sys.exit(0)", "an exception of no kind": "raise BaseException"}


@pytest.mark.parametrize("what", one_in(3, ON_IMPORT))
def test_what_ends_the_process_on_import_cannot_be_run(tmp_path: Path, what: str) -> None:
    ran = attncheck(tmp_path, ON_IMPORT[what])
    assert ran.returncode == 2 and "attncheck: " in ran.stderr and "Traceback" not in ran.stderr, ran.stderr


EMPTY = [[f"--{name}", ""] for name in ("case", "json", "supports", "deviations", "device")]
REFUSED = [
    *EMPTY,
    ["--time", "inf"],
    ["--time", "nan"],
    ["--time", "0"],
    ["--time", "99999999h"],
    ["--workers", "1000"],
    ["--workers", "0"],
    ["--cases", "-1"],
]


@pytest.mark.parametrize("arguments", REFUSED, ids=" ".join)
def test_an_argument_that_means_nothing_is_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parser().parse_args(["kernel.py:attention", *arguments])
    assert caught.value.code == 2 and arguments[0] in capsys.readouterr().err


WRITTEN = {
    "a number": "def attention(q, k, v): return v\nattention.supports = 3",
    "a length": "def attention(q, k, v): return v\nattention.supports = {'max_length': 'long'}",
    "a dimension": "def attention(q, k, v): return v\nattention.supports = {'head_dims': ['a']}",
    "an arithmetic": "def attention(q, k, v): return v\nattention.supports = {'arithmetic': 3}",
    "a class": "class attention: pass",
    "an async function": "async def attention(q, k, v): return v",
    "a partial": "import functools\nattention = functools.partial(max, 3)",
    "a syntax error": "def attention(",
    "an import error": "import no_such_module",
    "a number for a function": "attention = 3",
}


@pytest.mark.parametrize("what", one_in(3, WRITTEN))
def test_a_file_that_cannot_be_checked_gets_a_sentence(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], recwarn: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "strange.py").write_text(WRITTEN[what])
    status, err = main(["strange.py:attention", "--cases", "2"]), capsys.readouterr().err
    assert status == 2 and err.startswith("attncheck: ") and "Traceback" not in err, err


@pytest.mark.parametrize(
    "place", ["folder", "no_such.py:attention", "notebook.ipynb:attention", "ünïcödé.py:attention", "a" * 300 + ".py:f"]
)
def test_a_place_that_holds_no_target_gets_a_sentence(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder.py").mkdir()
    (tmp_path / "notebook.ipynb").write_text("{}")
    for target in (place, "folder.py:attention"):
        status, err = main([target]), capsys.readouterr().err
        assert status == 2 and err.startswith("attncheck: ") and "Traceback" not in err, err


def test_a_notebook_gets_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notebook.ipynb").write_text("{}")
    for words in (["notebook.ipynb"], ["notebook.ipynb:attention"]):
        assert main(words) == 2
        assert "notebook.ipynb is a notebook: verify(attention) checks a function in it" in capsys.readouterr().err
    assert main(["judge", "notebook.ipynb", "--json", "s.jsonl"]) == 2
    assert "notebook.ipynb is a notebook" in (tmp_path / "s.jsonl").read_text()


def test_a_path_that_is_no_text_is_a_path(tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path) + b"/\xff"
    os.mkdir(folder)
    with open(folder + b"/kernel.py", "w") as file:
        file.write(KERNEL)
    few = ("--property", "rows_sum_to_one", "--cases", "3")
    for words in ((b"judge", folder + b"/kernel.py", b"--json", b"s.jsonl", b"--sarif", b"s.sarif"), (folder + b"/kernel.py:attention",)):
        command = [sys.executable, "-m", "properties", *words, *few, "--junit", "j.xml"]
        ran = subprocess.run(
            command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, timeout=120, check=False
        )
        assert ran.returncode == 0 and b"NOTHING FOUND" in ran.stdout, ran.stderr


def test_gates_read_the_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kernel.py").write_text(KERNEL)
    few = ("--property", "rows_sum_to_one", "--property", "future_tokens_are_ignored", "--cases", "5", "-n", "1")
    assert main(["kernel.py:attention", *few, "--junit", "j.xml", "--sarif", "s.json"]) == 0
    (suite,) = ElementTree.parse(tmp_path / "j.xml").getroot()
    assert (suite.get("name"), suite.get("failures"), len(suite)) == ("kernel.py:attention", "0", 1)  # it takes no is_causal
    (run_,) = json.loads((tmp_path / "s.json").read_text())["runs"]
    assert run_["results"] == [] and run_["invocations"][0]["executionSuccessful"]
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    known = ("--baseline", "known.json")
    assert main(["kernel.py:attention", *few, *known, "--write-baseline"]) == 0 == main(["kernel.py:attention", *few, *known])
    assert "| kernel.py:attention | nothing found |" in (tmp_path / "summary.md").read_text()
    (tmp_path / "kernel.py").write_text(KERNEL + "attention = lambda q, k, v: right(q, k, v) * 2")
    capsys.readouterr()
    assert main(["kernel.py:attention", *few, *known]) == 1
    out = capsys.readouterr().out
    assert "WORSE         kernel.py:attention: rows_sum_to_one is refuted, which was not" in out
    assert "::error file=kernel.py,line=21,title=rows_sum_to_one::" in out
    assert main(["kernel.py:attention", *few, *known, "--write-baseline"]) == 0 == main(["kernel.py:attention", *few, *known])


def test_what_is_there_stays_until_there_is_something_to_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kernel.py").write_text(KERNEL)
    (tmp_path / "keep.json").write_text("precious")
    written = ("--json", "keep.json", "--junit", "new.xml")
    assert main(["nosuch.py:attention", *written]) == 2
    with monkeypatch.context() as patch:
        patch.setattr(cli, "asked", interrupted)
        assert main(["kernel.py:attention", *written]) == 130
    assert (tmp_path / "keep.json").read_text() == "precious" and not (tmp_path / "new.xml").exists()
    assert main(["kernel.py:attention", "--property", "rows_sum_to_one", "--cases", "3", "-n", "1", *written]) == 0
    assert len(json.loads((tmp_path / "keep.json").read_text())["reports"]) == 1 == len(ElementTree.parse(tmp_path / "new.xml").getroot())


def interrupted(*_: Any) -> Any:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    "words", [("kernel.py:attention",), ("kernel:attention",), ("numpy_matmul", "--like", "kernel.py:attention@eager")]
)
def test_no_target_is_overwritten(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kernel.py").write_text(KERNEL)
    for option in ("--json", "--html", "--junit", "--sarif", "--record", "--write-supports"):
        assert main([*words, option, "./kernel.py"]) == 2
        assert f"attncheck: {option} ./kernel.py would overwrite what is judged" in capsys.readouterr().err
    assert (tmp_path / "kernel.py").read_text() == KERNEL


def test_nothing_that_is_read_is_overwritten_and_no_file_is_written_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kernel.py").write_text(KERNEL)
    few = ["kernel.py:attention", "--property", "rows_sum_to_one", "--cases", "3", "-n", "1"]
    assert main([*few, "--baseline", "b.json", "--write-baseline"]) == 0
    (tmp_path / "s.toml").write_text('causal = "top-left"\n')
    (tmp_path / "d.toml").write_text("deviation = []\n")
    before = {place.name: place.read_bytes() for place in tmp_path.iterdir() if place.is_file()}
    for option, file in (("supports", "s.toml"), ("deviations", "d.toml"), ("baseline", "b.json")):
        for words in (few, ["judge", *few]):
            if "judge" not in words or option != "deviations":
                assert main([*words, f"--{option}", file, "--junit", f"./{file}"]) == 2
                assert f"--junit ./{file} would overwrite what --{option} reads" in capsys.readouterr().err
    for words in (["--json", "it", "--junit", "./it"], ["--junit", "it", "--sarif", "it"], ["--json", "it", "--record", "it"]):
        assert main([*few, *words]) == 2 == main(["judge", *few, *words])
        assert "would overwrite each other in" in capsys.readouterr().err
    for option in ("--html", "--junit", "--sarif"):
        assert main([*few, option, "-"]) == 2 and f"{option} - would write a file of that name" in capsys.readouterr().err
    assert {place.name: place.read_bytes() for place in tmp_path.iterdir() if place.is_file()} == before
    assert main([*few, "--junit", "/dev/null", "--sarif", "/dev/null"]) == 0


def test_what_is_written_to_standard_output_stays_beside_the_rest(tmp_path: Path) -> None:
    ran = attncheck(tmp_path, "", shell="-q --junit /dev/stdout > out.txt")
    said = (tmp_path / "out.txt").read_text()
    assert ran.returncode == 0 and "NOTHING FOUND" in said and "</testsuites>" in said


@pytest.mark.parametrize("place", ["a@b/kernel.py", "a@py/kernel.py", "k@v2.py"])
def test_an_at_sign_in_a_path_begins_no_variant(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / place).parent.mkdir(exist_ok=True)
    (tmp_path / place).write_text(KERNEL)
    few = ["--property", "rows_sum_to_one", "--cases", "3", "-n", "1"]
    assert main([f"{place}:attention", *few]) == 0 == main(["judge", place, *few])
    assert main([f"{place}:attention@none", *few]) == 2
    assert f"{place}:attention takes arrays of numpy, which has no variants" in capsys.readouterr().err


# ---------------------------------------------------------------- how much was tried


def slow_report(monkeypatch: pytest.MonkeyPatch, seconds: float, wrong: bool = False, **how: Any) -> Any:
    """A search of nine seconds, or of what is given, by a clock that only the target moves."""
    clock = [0.0]

    def slow(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        clock[0] += seconds
        return numpy_matmul.attention(q, k, v) * (2 if wrong else 1)

    for module in (run, search):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    target = make_target("mine", slow, {"framework": "numpy"})
    return run.verify_target(target, catalogue.select(("values",)), search.Plan(), **how or {"seconds": 9})


def test_a_slow_target_is_not_called_right_after_a_few_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    report = slow_report(monkeypatch, 0.5)
    assert not report.ok and not report.findings and "time was over before" in report.incomplete
    assert "INCOMPLETE  mine" in verdict_text(report) and "NOTHING FOUND" not in verdict_text(report)


def test_a_fast_one_is(monkeypatch: pytest.MonkeyPatch) -> None:
    report = slow_report(monkeypatch, 0.03)
    assert report.ok and not report.incomplete and "NOTHING FOUND" in verdict_text(report)


def test_a_slow_one_that_is_wrong_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "REFUTED  mine" in verdict_text(slow_report(monkeypatch, 0.5, wrong=True))


@pytest.mark.parametrize("seconds, least, most", [(2.0, 4, 4), (0.1, 12, 149), (0.001, 150, 150)])
def test_a_run_of_which_nobody_has_said_how_long_it_may_be_takes_a_minute(
    seconds: float, least: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for the first cases of each property, whatever they take; of less than was planned it says how much."""
    report = slow_report(monkeypatch, seconds, usual=60.0)
    had = [outcome.tried for outcome in report.outcomes.values() if not outcome.not_exercised]
    assert report.ok and not report.incomplete and least <= min(had) <= max(had) <= most
    said = f"{min(had)}" + f" to {max(had)}" * (min(had) < max(had)) + " of 150 cases of each"
    assert (report.shortened == "") is (least == 150) and (f"shortened {said}" in " ".join(verdict_text(report).split())) is (least < 150)


def test_only_a_run_of_which_nobody_has_said_how_long_it_may_be_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kernel.py").write_text(KERNEL)
    asked: list[float | None] = []

    def asks(*arguments: Any, **how: Any) -> Any:
        asked.append(how["usual"])
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "verify_target", asks)
    for words in ([], ["--cases", "3"], ["--time", "9s"], ["--round", "0"], ["--baseline", "b.json", "--write-baseline"]):
        main(["kernel.py:attention", "-n", "1", *words])
    assert asked[0] and 30 <= asked[0] <= 60 and asked[1:] == [None] * 4


def test_the_verdict_says_which_sizes_were_tried() -> None:
    target = make_target("mine", numpy_matmul.attention, {"framework": "numpy", "max_length": 5, "head_dims": [3, 4]})
    report = run.verify_target(target, catalogue.select(("constant_values_are_returned",)), search.Plan(examples=40))
    sizes = report.outcomes["constant_values_are_returned"].ranges.sizes
    assert sizes["dim"] == (3, 4) and sizes["keys"][1] <= 5 and "seed" not in sizes
    least, most = sizes["batch"]
    assert f"  tried     batch {least} to {most}" in verdict_text(report) and "dim 3 to 4" in verdict_text(report)
    assert sum(report.outcomes["constant_values_are_returned"].ranges.dtypes.values()) == 40


# ---------------------------------------------------------------- the same round


def without_times(report: Any) -> Any:
    """A report without what a clock has said."""
    if isinstance(report, dict):
        return {name: without_times(one) for name, one in report.items() if not re.search("seconds|finished|command|time", name)}
    return [without_times(one) for one in report] if isinstance(report, list) else report


def test_a_round_that_is_named_gives_the_same_report_whatever_was_found_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one folder, in which failing cases are kept, and are what another run tries first."""
    monkeypatch.setattr(cli, "known_mistakes", lambda missing=None: [])  # readings cost seconds
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kernel.py").write_text(KERNEL + "attention = lambda q, k, v: right(q, k, v) * (1 + (k.shape[2] > 4))")
    few = (
        "kernel.py:attention",
        "--property",
        "rows_sum_to_one",
        "--property",
        "output_is_inside_the_bound",
        "--cases",
        "8",
        "-n",
        "1",
        "--json",
        "report.json",
    )

    def report(*more: str) -> Any:
        assert main([*few, *more]) == 1
        return without_times(json.loads((tmp_path / "report.json").read_text()))

    plain = report()
    assert report() != plain
    named = report("--round", "0")
    assert named == report("--round", "0") == plain != report("--round", "1")
