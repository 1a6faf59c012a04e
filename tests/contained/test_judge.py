"""``attncheck judge``: a verdict for each candidate, and what gates read."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from itertools import product
from multiprocessing import resource_tracker
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from xml.etree import ElementTree

import numpy as np
import pytest
from nightly import more_by_night, one_in, some_by_night

from benchmarks.contained.cheats import HEAD
from properties.engine.contained import link, template, watch
from properties.engine.doors import gates, replay
from properties.engine.doors import judge as door
from properties.engine.doors.cli import main
from properties.engine.report import record
from properties.engine.search import journal

ROOT = Path(__file__).parents[2]
FEW = ("--property", "rows_sum_to_one", "--property", "future_tokens_are_ignored", "--cases", "8", "--round", "3")
CODE = {
    "right": "attention = right",
    "wrong": "attention = wrong",
    "dies": "os._exit(0)",
    "model": "class ModelNew:\n    def __init__(self, factor):\n        self.factor = factor\n    def __call__(self, q, k, v):\n"
    "        return right(q * self.factor, k, v)\ndef get_init_inputs():\n    return [1.0]\nfor name in ('right', 'wrong', 'doing', 'after'):\n"
    "    globals()['_' + name] = globals()[name]",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of candidates, in the working directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "candidates").mkdir()
    for name, code in CODE.items():
        (tmp_path / "candidates" / f"{name}.py").write_text(HEAD + code + "\n")
    return tmp_path


def judge(*arguments: str) -> int:
    return main(["judge", *arguments, *FEW])


def test_every_candidate_has_a_verdict(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert judge("candidates", "--json", "scores.jsonl", "--junit", "j.xml", "--sarif", "s.json") == 1
    scores = {Path(one["candidate"]).stem: one for one in map(json.loads, (folder / "scores.jsonl").read_text().splitlines())}
    verdicts = {name: one["verdict"] for name, one in scores.items()}
    assert verdicts == {"right": "nothing found", "wrong": "refuted", "dies": "cannot be run", "model": "nothing found"}
    assert scores["right"]["core"] == 1.0 and scores["right"]["cases"] == 16 and scores["right"]["round"] == 3
    assert scores["wrong"]["findings"][0]["replay"].count("candidates/wrong.py:attention --contained") == 1
    out = capsys.readouterr().out
    assert "REFUTED       candidates/wrong.py" in out and "CANNOT BE RUN candidates/dies.py" in out

    suites = {Path(suite.get("name", "")).stem: suite for suite in ElementTree.parse(folder / "j.xml").getroot()}
    assert (suites["wrong"].get("failures"), suites["dies"].get("errors"), suites["right"].get("failures")) == ("1", "1", "0")
    assert len(list(suites["right"])) == 2
    (run,) = json.loads((folder / "s.json").read_text())["runs"]
    (result,) = run["results"]
    assert result["ruleId"] in {rule["id"] for rule in run["tool"]["driver"]["rules"]}
    where = result["locations"][0]["physicalLocation"]
    assert where["artifactLocation"]["uri"] == "candidates/wrong.py" and where["region"]["startLine"] > 1
    assert run["invocations"][0]["executionSuccessful"] is False  # one could not be run


def test_what_is_installed_or_hidden_below_a_folder_is_no_candidate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for place in (".git", "__pycache__", "node_modules", "env/lib", ".mine/a", "a/.b", "a/_b"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "kernel.py").write_text("")
    (tmp_path / "env" / "pyvenv.cfg").write_text("")
    assert [name for name, _ in door.candidates([".", ".mine"], "")] == ["a/_b/kernel.py", ".mine/a/kernel.py"]  # or where it is asked for


def given(folder: Path, monkeypatch: pytest.MonkeyPatch, lines: bytes) -> None:
    """Put it on standard input."""
    (folder / "lines").write_bytes(lines)
    monkeypatch.setattr(sys, "stdin", open(folder / "lines"))  # noqa: SIM115  until the end of the test


CHANGES = """
import glob
for place in glob.glob({pattern!r}, recursive=True):
    try:
        open(place, "a").write("\\nattention = right\\n")
    except OSError:
        pass
"""


@pytest.mark.parametrize(("workers", "streamed"), one_in(3, product([1, 2], [False, True])))  # two that have nothing in common
def test_a_candidate_changes_no_other(
    streamed: bool, workers: int, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where candidates lie in a folder of temporary files, in which a target may write."""
    monkeypatch.setattr(template, "HELD", [])
    (folder / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder / "temporary"))
    monkeypatch.setenv("TMPDIR", str(folder / "temporary"))
    pattern = f"{folder}/temporary/*/*.py" if streamed else f"{folder}/candidates/*.py"
    (folder / "candidates" / "a_first.py").write_text(HEAD + CHANGES.format(pattern=pattern) + "attention = right\n")
    codes = {file.stem: file.read_text() for file in sorted((folder / "candidates").glob("*.py"))}
    lines = "".join(json.dumps({"name": name, "code": code}) + "\n" for name, code in codes.items())
    given(folder, monkeypatch, lines.encode())
    asked = ["-"] if streamed else ["candidates"]
    judge(*asked, "-n", str(workers), "--json", "scores.jsonl")
    scores = {Path(one["candidate"]).stem: one["verdict"] for one in map(json.loads, (folder / "scores.jsonl").read_text().splitlines())}
    assert scores["a_first"] == "nothing found" and scores["wrong"] == "refuted"
    if not streamed:
        assert {file.stem: file.read_text() for file in sorted((folder / "candidates").glob("*.py"))} == codes


def test_the_same_round_gives_the_same_scores(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Bit for bit, but for times."""

    def scores() -> list[Any]:
        judge("candidates/right.py", "candidates/wrong.py", "--json", "-")
        lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        return [{**one, "seconds": 0} for one in lines]

    assert scores() == scores()


def test_candidates_come_from_standard_input(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [json.dumps({"name": name, "code": HEAD + CODE[name]}) for name in ("right", "wrong")]
    given(folder, monkeypatch, "\n".join(lines).encode())
    assert judge("-", "--json", "-") == 1
    scores = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(one["candidate"], one["verdict"]) for one in scores] == [("right", "nothing found"), ("wrong", "refuted")]


def test_a_line_of_standard_input_is_told_by_a_name_that_stays(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under which its code replays a finding; two of the same name are two candidates."""
    twice, none = "def attention(q, k, v):\n    return right(q, k, v) * 2\n", "def f(q):\n    return q\ng = f\n"
    codes = [HEAD + twice, HEAD + none, "import nothing_there"]
    lines = b"\n".join(json.dumps({"name": "it", "code": code}).encode() for code in codes)

    def told() -> tuple[list[Any], str]:
        given(folder, monkeypatch, lines)
        assert judge("-", "--json", "s.jsonl", "--junit", "j.xml", "--sarif", "s.json") == 1
        texts = [capsys.readouterr().out, *((folder / name).read_text() for name in ("s.jsonl", "j.xml", "s.json"))]
        return [{**json.loads(line), "seconds": 0} for line in texts[1].splitlines()], "".join(texts)

    (scores, text), (again, _) = told(), told()
    assert scores == again and tempfile.gettempdir() not in text
    assert [one["candidate"] for one in scores] == ["it", "it (2)", "it (3)"]
    assert [one["file"] for one in scores] == [f"candidate_{number}.py" for number in (1, 2, 3)]
    assert scores[1]["why"].startswith("which callable of candidate_2.py?")
    assert '"uri": "candidate_1.py"' in text
    (folder / "candidate_1.py").write_text(codes[0])
    assert replay.again(scores[0]["findings"][0]["replay"])[0] == "STILL WRONG"


@pytest.mark.parametrize("workers", [1, 2])
def test_a_line_that_is_none_is_one_candidate_s_verdict(
    workers: int, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = json.dumps({"name": "a\x1b[2J\nb", "code": HEAD + CODE["right"]})
    odd = [b"no JSON", b"\xff\xfe", b"[" * 10**5, b"3", b'{"name": "no code"}', b'{"name": "no text", "code": "\\ud800"}', b"  "]
    odd += [b'{"name": 3, "code": ""}', b'{"name": "a", "code": 4}', b'{"name": "a", "code": "", "attribute": ["b"]}']
    given(folder, monkeypatch, b"\n".join([*odd, right.encode()]))
    assert judge("-", "--json", "-", "-n", str(workers)) == 2
    out, err = capsys.readouterr()
    scores = {one["candidate"]: one for one in map(json.loads, out.splitlines())}
    assert {name: one["verdict"] for name, one in scores.items()} == {
        **{f"line {number}": "cannot be run" for number in (1, 2, 3, 4, 5, 8, 9, 10)},
        "no text": "cannot be run",
        "a\N{REPLACEMENT CHARACTER}[2J\N{REPLACEMENT CHARACTER}b": "nothing found",
    }
    assert scores["line 2"]["why"].startswith('it is no JSON such as {"name"') and "Traceback" not in err and "\x1b" not in err
    given(folder, monkeypatch, b"\n")
    assert judge("-") == 2 and "there is no candidate on the standard input" in capsys.readouterr().err
    monkeypatch.setattr(sys, "stdin", None)  # as Python has it where "<&-" has closed it
    assert judge("-") == 2 and capsys.readouterr().err == "attncheck: the standard input is closed: no candidate can be read from it\n"


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_line_is_judged_before_the_next_one_comes(workers: str, folder: Path) -> None:
    """As in a loop that writes a kernel, waits for its verdict, and writes the next."""
    command = [sys.executable, "-m", "properties", "judge", "-", "--json", "-", "-n", workers, *FEW]
    piped = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, text=True, **piped) as run:  # type: ignore[call-overload]
        assert run.stdin and run.stdout
        for name, verdict in (("right", "nothing found"), ("wrong", "refuted")):
            run.stdin.write(json.dumps({"name": name, "code": HEAD + CODE[name]}) + "\n")
            run.stdin.flush()
            assert json.loads(run.stdout.readline())["verdict"] == verdict
        run.stdin.close()
        assert run.wait(60) == 1


def test_a_verdict_is_told_where_the_scores_cannot_be_written(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """That of every candidate, and once that there is no room."""
    assert judge("candidates/wrong.py", "candidates/dies.py", "candidates/right.py", "--json", "/dev/full") == 2
    out, err = capsys.readouterr()
    assert "REFUTED       candidates/wrong.py" in out and "NOTHING FOUND candidates/right.py" in out
    assert (
        err.count("attncheck: the scores cannot be written: /dev/full: No space left on device; make room, or give another place\n") == 1
        and "Traceback" not in err
    )


def test_what_a_run_writes_is_no_candidate(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert judge("candidates", "--json", "candidates/scores.py") == 1
    assert "scores.py" not in capsys.readouterr().out
    with pytest.raises(ValueError, match="/dev/null is no file of Python"):
        door.main(["/dev/null"])


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_all_are_judged_where_standard_output_cannot_be_written(unbuffered: str, folder: Path) -> None:
    """Their lines are told on standard error, each once, and the scores are in their file."""
    words = ["judge", "candidates/wrong.py", "candidates/right.py", "--json", "scores.jsonl", *FEW]
    with Path("/dev/full").open("w") as full:
        ran = subprocess.run(
            [sys.executable, "-m", "properties", *words],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": unbuffered},
        )
    assert ran.returncode == 2 and "standard output cannot be written: No space left on device" in ran.stderr
    assert ran.stderr.count("REFUTED       candidates/wrong.py") == ran.stderr.count("NOTHING FOUND candidates/right.py") == 1
    assert "Traceback" not in ran.stderr and len(Path("scores.jsonl").read_text().splitlines()) == 2


def test_what_is_there_stays_until_a_candidate_is_judged(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    journal.Journal("run.jsonl").begin(["of an earlier run"])
    kept = {name: Path(name).write_text(f"kept in {name}") for name in ("scores.jsonl", "j.xml", "known.json")} | {"run.jsonl": 0}
    before = {name: Path(name).read_bytes() for name in kept}
    written = ("--json", "scores.jsonl", "--junit", "j.xml", "--baseline", "known.json", "--write-baseline", "--record", "run.jsonl")
    given(folder, monkeypatch, b"\n")
    assert judge("nowhere.py", *written, "--sarif", "s.json") == 2 == judge("-", *written, "--sarif", "s.json")
    assert {name: Path(name).read_bytes() for name in kept} == before and not Path("s.json").exists()
    given(folder, monkeypatch, json.dumps({"name": "right", "code": HEAD + CODE["right"]}).encode())
    assert judge("-", *written) == 0
    assert not any(before[name][:9] in Path(name).read_bytes() for name in kept if name != "run.jsonl")
    assert [line.get("judged", {}).get("candidate", "") for line in journal.lines("run.jsonl")] == ["", "right", ""]


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize("option", ["--json", "--junit", "--sarif", "--record", "--baseline"])
def test_no_candidate_is_overwritten(
    option: str, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor a reference, nor a file from which candidates are read."""
    place = folder / "candidates" / "right.py"
    (folder / "link").symlink_to(place)
    given(folder, monkeypatch, b"{}")
    before = place.read_bytes()
    more = ("--write-baseline",) * (option == "--baseline")
    asked: list[tuple[str, ...]] = [("candidates",), ("candidates/right.py:attention",), ("candidates/wrong.py", "--reference", str(place))]
    for words in asked:
        assert main(["judge", *words, option, "link", *more]) == 2
        assert f"attncheck: {option} link would overwrite what is judged" in capsys.readouterr().err
    assert place.read_bytes() == before


BESIDE = """
def write(place):
    try:
        open(place, "w").write("attention = None")
    except OSError as error:
        return str(error)
said = [write({reference!r}), write(os.path.join(os.path.dirname({reference!r}), "helper.py"))]
attention = right if all(said) else wrong
"""


def test_a_candidate_changes_nothing_that_it_is_held_to(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the reference, nor what that imports."""
    monkeypatch.setattr(template, "HELD", [])
    (folder / "reference").mkdir()
    (folder / "reference" / "it.py").write_text("import helper\nattention = helper.right\n")
    (folder / "reference" / "helper.py").write_text(HEAD)
    (folder / "candidates" / "beside.py").write_text(HEAD + BESIDE.format(reference=str(folder / "reference" / "it.py")))
    rest = ("--reference", "reference/it.py:attention", "--cases", "4", "--round", "3")
    assert main(["judge", "candidates/beside.py", "candidates/right.py", *rest]) == 0
    assert (folder / "reference" / "helper.py").read_text() == HEAD


MODULES_BESIDE = """
for name in ("torch", "jinja2", "rich"):
    try:
        open(os.path.join({folder!r}, name + ".py"), "w").write("import os; os._exit(0)")
    except OSError:
        pass
attention = wrong
"""


@pytest.mark.parametrize("words", [("judge", "first.py", "second.py"), ("first.py:attention", "--html", "page.html")], ids=["judge", "one"])
def test_the_judge_imports_nothing_that_a_target_has_written(words: tuple[str, ...], tmp_path: Path) -> None:
    """Where Python is started in the folder of a target, below a place for temporary files."""
    (tmp_path / "first.py").write_text(HEAD + MODULES_BESIDE.format(folder=str(tmp_path)))
    (tmp_path / "second.py").write_text("import torch\n" + HEAD + "attention = wrong\n")
    command = [sys.executable, "-m", "properties", *words, *FEW[:-2]]
    ran = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=300, check=False
    )
    assert ran.returncode == 1 and "REFUTED" in ran.stdout, ran.stdout + ran.stderr


def test_only_what_is_worse_than_the_baseline_fails(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    both = ("candidates/right.py", "candidates/wrong.py", "--baseline", "known.json")
    assert judge(*both, "--write-baseline") == 0
    assert judge(*both) == 0  # the finding is known
    (folder / "candidates" / "right.py").write_text(HEAD + CODE["wrong"] + "\n")
    assert judge(*both) == 1
    assert "WORSE         candidates/right.py: " in capsys.readouterr().out


def test_what_runs_no_more_is_worse(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert judge("candidates/right.py", "--baseline", "known.json", "--write-baseline") == 0
    (folder / "candidates" / "right.py").write_text(HEAD + "def attention(q, k, v):\n    return right(q, k, v)\n")
    assert judge("candidates/right.py", "--baseline", "known.json") == 1
    assert "future_tokens_are_ignored was tried before, and is no longer" in capsys.readouterr().out


def test_another_convention_is_worse(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One that is new, and one that is gone."""
    few = ("candidates/right.py", "--baseline", "known.json")
    before, *others = "right(q, k, v)", "right(q * q.shape[-1] ** 0.5, k, v)", "right(q, k, v)"
    for form in others:
        (folder / "candidates" / "right.py").write_text(HEAD + f"def attention(q, k, v):\n    return {before}\n")
        assert judge(*few, "--write-baseline") == 0
        (folder / "candidates" / "right.py").write_text(HEAD + f"def attention(q, k, v):\n    return {form}\n")
        assert judge(*few) == 1
        assert "WORSE         candidates/right.py: it speaks scale differently: " in capsys.readouterr().out
        before = form


def test_what_was_not_asked_for_is_no_other_convention() -> None:
    """A target that is too slow to be asked for all in one of two runs is held to what both know."""
    said = {"scale": "1, off by 1e-07", "float64": "computed in float32, off by 1e-08"}
    whole = record.cannot("one", "", 0.0, "nothing found") | {"all_asked": True, "held": ["a"], "speaks": said, "refuses": {"masks": ""}}
    cut = whole | {"all_asked": False, "speaks": {}, "refuses": {}}
    for before, now in ((whole, cut), (cut, whole), (cut, cut), (whole, whole | {"speaks": said | {"scale": "1, off by 2e-07"}})):
        assert record.regressions([now], record.baseline([before])) == []
    older = {name: {key: one[key] for key in one if key != "all_asked"} for name, one in record.baseline([whole]).items()}
    for before, now in ((record.baseline([whole]), cut), (older, whole)):
        (told,) = record.regressions([now | {"speaks": said | {"scale": "1/dim"}}], before)
        assert told == "one: it speaks scale differently: 1/dim; before: 1"


def test_what_ran_before_beside_a_finding_that_is_known_is_missed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Unless the run ended at the finding, before it."""
    (folder / "twice.py").write_text(HEAD + "def attention(q, k, v):\n    return right(q, k, v * 2)\n")
    few = ("twice.py", "--baseline", "known.json", "--cases", "4", "--round", "3", "--property", "rows_sum_to_one")
    more = ("--property", "same_call_same_bits")
    assert main(["judge", *few, *more, "--all", "--write-baseline"]) == 0 == main(["judge", *few, *more])
    capsys.readouterr()
    assert main(["judge", *few, "--all"]) == 1
    worse = [line for line in capsys.readouterr().out.splitlines() if line.startswith("WORSE")]
    assert worse == ["WORSE         twice.py: same_call_same_bits was tried before, and is no longer"]


def test_github_is_told(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a candidate says; nothing of it stands between the scores."""
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(folder / "summary.md"))
    (folder / "candidates" / "says.py").write_text("raise ValueError('\\ud800\\n::stop-commands::x')")
    assert judge("candidates/wrong.py") == 1
    assert "::error file=candidates/wrong.py,line=" in capsys.readouterr().out
    assert judge("candidates/says.py", "--json", "-") == 2
    out, err = capsys.readouterr()
    assert json.loads(out)["verdict"] == "cannot be run" and "::error file=candidates/says.py,line=1" in err
    summary = (folder / "summary.md").read_text()
    assert "| candidates/wrong.py | refuted |" in summary and "| candidates/says.py | cannot be run |" in summary


def test_gates_are_told_where_a_candidate_lies(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """From the folder that GitHub has checked out, and whatever its name holds; nothing of what lies nowhere."""
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_WORKSPACE", str(folder))
    monkeypatch.chdir(folder / "candidates")
    name = "kérnel #1%,:x&.py"
    Path("wrong.py").rename(name)
    assert judge(name, "--sarif", "s.json") == 1
    assert "::error file=candidates/kérnel #1%25%2C%3Ax&.py,line=" in capsys.readouterr().out
    (result,) = json.loads(Path("s.json").read_text())["runs"][0]["results"]
    where = result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
    assert where == "candidates/k%C3%A9rnel%20%231%25%2C%3Ax%26.py"
    given(folder, monkeypatch, json.dumps({"name": "a::error::\n|", "code": HEAD + CODE["wrong"]}).encode())
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(folder / "summary.md"))
    assert judge("-") == 1
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("::")]
    assert line.startswith("::error title=documented is_causal::a::error::\N{REPLACEMENT CHARACTER}|: it changes nothing")
    assert "| a::error::\N{REPLACEMENT CHARACTER}\\| | refuted |" in (folder / "summary.md").read_text()


def test_the_file_of_a_target_as_gates_know_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "package").mkdir()
    (folder / "package" / "kernel.py").write_text("\n\ndef f(q, k, v): ...\nclass Kernel: ...\n")
    (folder / "package" / "kernel(1).py").write_text("\ndef f(q, k, v): ...\n")
    outside = str(folder.parent / "kernel.py")
    monkeypatch.chdir(folder / "package")
    for workspace, below in ((None, ""), (str(folder), "package/"), (str(folder / "candidates"), "")):
        if workspace:
            monkeypatch.setenv("GITHUB_WORKSPACE", workspace)
        for text in ("kernel.py:f", "./kernel.py:?f", "kernel:f", f"{folder}/package/kernel.py:Kernel(a=':')@compile"):
            assert gates.file_told(text) == f"{below}kernel.py"
        assert [gates.file_told(text) for text in ("json:dumps", "numpy_matmul", "", f"{outside}:f")] == ["", "", "", outside]
    for text, line in (
        ("kernel.py:f", 3),
        ("kernel:f@compile", 3),
        ("kernel.py:Kernel(a=':')", 4),
        ("kernel(1).py:f", 2),
        ("kernel.py:g", 1),
    ):
        assert gates.first_line(text) == line
    assert record.uri({"candidate": "json:dumps", "file": ""}) == "json%3Adumps"


@pytest.mark.parametrize(
    "arguments, says",
    [
        (("nowhere",), "there is no file or folder nowhere"),
        (("candidates/right.py", "--baseline", "candidates/right.py"), "is no baseline"),
        (("candidates/right.py", "--supports", "nowhere.toml"), "nowhere.toml"),
        (("candidates/right.py", "--baseline", "odd.json"), "odd.json is no baseline"),
        (("candidates/right.py", "--contract", "nosuch"), "there is no contract 'nosuch'; known: attention, "),
        (("candidates/right.py", "--contract", "cache"), "there is no contract 'cache'; did you mean 'cached'?"),
        (("candidates/right.py", "--write-baseline"), "--write-baseline needs --baseline FILE"),
    ],
)
def test_what_cannot_be_judged_gets_a_sentence(
    arguments: tuple[str, ...], says: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "odd.json").write_text('{"candidates/right.py": {"findings": 3, "held": 4}}')
    assert judge(*arguments) == 2
    err = capsys.readouterr().err
    assert err.startswith("attncheck: ") and says in err and "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("",), "argument PATH: it is empty; give a file, a folder, or -"),
        (("-", "--round", "x"), "argument --round: 'x' is not a whole number"),
    ],
)
def test_arguments_that_are_none_are_told(arguments: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["judge", *arguments])
    assert f"attncheck judge: error: {says}" in capsys.readouterr().err


def test_a_reference_that_is_not_there_gets_a_sentence(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "bare.py").write_text("kernel = max\n")
    (folder / "broken.py").write_text("\ndef Model(\n")
    for reference, says in (
        ("nowhere.py", "there is no file nowhere.py for --reference"),
        ("nowhere.py:Model", "there is no file nowhere.py for --reference"),
        ("broken.py", "broken.py cannot be read as Python: '(' was never closed (broken.py, line 2)"),
        ("bare.py", "bare.py defines no Model and no attention: give --reference bare.py:NAME"),
    ):
        assert main(["judge", "candidates", "--reference", reference]) == 2
        assert capsys.readouterr().err == f"attncheck: {says}\n"


def test_another_contract_is_no_way_to_pass(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = "def attention(num_heads):\n    return [2.0 ** (-8 * (h + 1) / num_heads) for h in range(num_heads)]\n"
    (folder / "candidates" / "right.py").write_text("import numpy as np\n" + code + "attention.supports = {'contract': 'slopes'}\n")
    assert judge("candidates/right.py") == 2
    assert "it is slopes, not attention" in capsys.readouterr().out


def test_judging_goes_on_where_it_was_ended(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The round, which is a secret until the end, is the same; who has a verdict is not asked again, unless the file is another."""
    assert main(["judge", "candidates", "--record", "run.jsonl", *FEW[:-2]]) == 1
    lines = journal.lines("run.jsonl")
    first, judged, ended = lines[0], [line for line in lines if "judged" in line], lines[-1]
    assert len(judged) == len(CODE) and ended == {"ended": 1}
    text = "\n".join(map(journal.written, [first, *judged[:2]])) + "\n"
    (folder / "run.jsonl").write_text(text)
    asked: list[str] = []
    judge_one = door.judged
    monkeypatch.setattr(door, "judged", lambda name, *rest: (asked.append(name), judge_one(name, *rest))[1])
    capsys.readouterr()
    assert main(["resume", "run.jsonl"]) == 1
    assert asked == [line["judged"]["candidate"] for line in judged[2:]]
    out = capsys.readouterr().out
    assert out.count("  judged    candidates/") == 2 and out.count("NOTHING FOUND candidates/right.py") == 1
    assert {line["judged"]["round"] for line in journal.lines("run.jsonl") if "round" in line.get("judged", {})} == {int(first["more"][1])}
    (folder / "run.jsonl").write_text(text)
    place = Path(judged[0]["judged"]["candidate"])
    place.write_text(place.read_text() + "\n")
    asked.clear()
    assert main(["resume", "run.jsonl"]) == 1 and asked == [str(place), *(line["judged"]["candidate"] for line in judged[2:])]


def test_what_was_found_of_a_candidate_is_kept_where_its_judge_was_killed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is right when the run is gone on with: what was found before still stands."""
    there = "__import__('os').path.exists('/tmp/" + folder.name + "')"
    right = (folder / "candidates" / "right.py").read_text()
    (folder / "late.py").write_text(
        right + f"\nfirst = attention\ndef attention(q, k, v): return first(q, k, v) * (1.0 if {there} else 1.01)\n"
    )
    assert main(["judge", "late.py", "--all", "--record", "run.jsonl", "--cases", "2", "-n", "1", "--round", "1"]) == 1
    lines = [line for line in journal.lines("run.jsonl") if not line.keys() & {"judged", "ended"}]
    (folder / "run.jsonl").write_text("\n".join(map(journal.written, lines[: len(lines) // 2])) + "\n")
    (mark := Path("/tmp") / folder.name).touch()
    capsys.readouterr()
    try:
        assert main(["resume", "run.jsonl"]) == 1
    finally:
        mark.unlink()
    out = capsys.readouterr().out
    assert "  found     late.py: " in out and "REFUTED       late.py" in out


MADE = """
import torch
from torch import nn

class NAME(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.inner = nn.MultiheadAttention(dim, heads, batch_first=True)

    def forward(self, x):
        return self.inner(x, x, x, need_weights=False)[0] * FACTOR
"""
MADE_BY = {  # what ModelNew is → the verdict
    "def ModelNew(dim, heads): return Inner(dim, heads)": ("1.0", "nothing found"),
    "def ModelNew(dim, heads): return Inner(dim, heads=heads)": ("1.001", "refuted"),
    "def ModelNew(dim, heads): return torch.jit.script(Inner(dim, heads))": ("1.0", "cannot be run"),
}


@pytest.mark.parametrize("code", MADE_BY)
def test_a_function_makes_the_module_of_what_the_reference_is_made_with(code: str, folder: Path) -> None:
    pytest.importorskip("torch")
    factor, verdict = MADE_BY[code]
    (folder / "reference.py").write_text(
        MADE.replace("NAME", "Model").replace("FACTOR", "1.0")
        + "\ndef get_init_inputs(): return [16, 2]\ndef get_inputs(): return [torch.randn(2, 5, 16)]\n"
    )
    (folder / "made.py").write_text(f"{MADE.replace('NAME', 'Inner').replace('FACTOR', factor)}\n{code}\n")
    main(["judge", "made.py", "--reference", "reference.py", "--cases", "3", "-n", "1", "--round", "1", "--json", "scores.jsonl"])
    score = json.loads((folder / "scores.jsonl").read_text())
    assert score["verdict"] == verdict, score


CACHING = """
import torch
from torch import nn
from torch.nn import functional as F

class NAME(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads, self.qkv, self.proj = heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x, past=None):
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], PAST], 2)
        rows, keys = q.shape[2], k.shape[2]
        seen = torch.ones(rows, keys, dtype=torch.bool, device=x.device).tril(keys - rows)
        return self.proj(F.scaled_dot_product_attention(q, k, v, seen).transpose(1, 2).flatten(2)), (k, v)

def get_init_inputs(): return [16, 2]
def get_inputs(): return [torch.randn(2, 5, 16)]
"""


@pytest.mark.parametrize(("past", "verdict"), [("v", "nothing found"), ("v * 1.001", "refuted")])
def test_a_cache_that_is_handed_back_is_compared(past: str, verdict: str, folder: Path) -> None:
    pytest.importorskip("torch")
    (folder / "reference.py").write_text(CACHING.replace("NAME", "Model").replace("PAST", "v"))
    (folder / "caching.py").write_text(CACHING.replace("NAME", "ModelNew").replace("PAST", past))
    main(["judge", "caching.py", "--reference", "reference.py", "--cases", "4", "-n", "1", "--round", "1", "--json", "scores.jsonl"])
    score = json.loads((folder / "scores.jsonl").read_text())
    assert score["verdict"] == verdict, score


SINGLE = """
import torch
from torch import nn

class NAME(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads, self.norm, self.qkv, self.proj = heads, nn.LayerNorm(dim), nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = (CAST for y in self.qkv(self.norm(x)).chunk(3, -1))
        weights = (q @ k.mT * FACTOR * q.shape[-1] ** -0.5).softmax(-1)
        return x + self.proj((weights @ v).to(x.dtype).transpose(1, 2).flatten(2))

def get_init_inputs(): return [16, 2]
def get_inputs(): return [torch.randn(2, 5, 16)]
"""
PARTS = "y.unflatten(-1, (self.heads, -1)).transpose(1, 2)"


@pytest.mark.parametrize(
    ("cast", "factor", "verdict", "single"),
    [
        (PARTS, "1.0", "nothing found", False),
        (f"{PARTS}.float()", "1.0", "nothing found", True),
        (f"{PARTS}.float()", "1.0001", "refuted", False),
        (PARTS, "1.0000001", "refuted", False),
    ],
)
def test_what_computes_in_float32_alone_is_not_held_to_float64(cast: str, factor: str, verdict: str, single: bool, folder: Path) -> None:
    """A mistake of its size in float64 is one, all the same."""
    pytest.importorskip("torch")
    (folder / "reference.py").write_text(SINGLE.replace("NAME", "Model").replace("CAST", PARTS).replace("FACTOR", "1.0"))
    (folder / "single.py").write_text(SINGLE.replace("NAME", "ModelNew").replace("CAST", cast).replace("FACTOR", factor))
    main(["judge", "single.py", "--reference", "reference.py", "--cases", "8", "-n", "1", "--round", "1", "--json", "scores.jsonl"])
    score = json.loads((folder / "scores.jsonl").read_text())
    assert score["verdict"] == verdict, score
    assert ("float64" in score.get("untried", {})) == single or verdict == "refuted"


KEPT = """
class ModelNew(Inner):
    def forward(self, x):
        if torch.is_grad_enabled():
            return super().forward(x)
        kept = self.__dict__.setdefault("kept", {})
        key = (x.shape, x.dtype, *(round(float(y), 6) for y in (x.double().square().sum(), sum(p.double().sum() for p in self.parameters()))))
        if key not in kept:
            kept[key] = super().forward(x)
        return kept[key].clone()
"""


def test_what_keeps_an_answer_for_nearly_the_same_tokens_is_held_to_float64(folder: Path) -> None:
    pytest.importorskip("torch")
    code = SINGLE.replace("CAST", PARTS).replace("FACTOR", "1.0")
    (folder / "reference.py").write_text(code.replace("NAME", "Model"))
    (folder / "keeps.py").write_text(code.replace("NAME", "Inner") + KEPT)
    main(["judge", "keeps.py", "--reference", "reference.py", "--cases", "40", "-n", "1", "--round", "1", "--json", "scores.jsonl"])
    score = json.loads((folder / "scores.jsonl").read_text())
    assert score["verdict"] == "refuted" and "float64" not in score.get("untried", {}), score


def test_where_large_tokens_leave_the_reference_no_number_a_candidate_may_have_one() -> None:
    """As of linear attention by elu(x) + 1, which is 0 where exp(x) is not."""
    pytest.importorskip("torch")
    from properties.module.beside import _defined

    right = np.array([np.nan, np.inf, 1.0])
    usual, large = (cast(Any, SimpleNamespace(case=SimpleNamespace(magnitude=size))) for size in (0, 8))
    assert _defined(usual, right) is True and _defined(large, right).tolist() == [False, False, True]


def test_without_a_reader_the_scores_are_written_all_the_same(folder: Path) -> None:
    command = [sys.executable, "-m", "properties", "judge", "candidates/right.py", "candidates/wrong.py", *FEW, "--json", "scores.jsonl"]
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "wb") as nobody:
        done = subprocess.run(command, stdout=nobody, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 2 and done.stderr.count("standard output cannot be written") == 1
    assert len((folder / "scores.jsonl").read_text().splitlines()) == 2


def test_another_reference_is_another_question(folder: Path) -> None:
    (folder / "reference.py").write_text("one = 1\n")
    how = {"reference": "reference.py:one"}
    before = door.digest("mine", "mine.py:one", how)
    assert door.digest("mine", "mine.py:one", how) == before != door.digest("mine", "mine.py:one", {"reference": None})
    (folder / "reference.py").write_text("one = 2\n")
    assert door.digest("mine", "mine.py:one", how) != before


def test_a_candidate_is_held_to_a_reference(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of other names and axes, too; what is no pair with it cannot be judged."""
    (folder / "candidates" / "axes.py").write_text(
        HEAD
        + "def attention(query, key, value):\n    q, k, v = (np.moveaxis(x, 1, 2) for x in (query, key, value))\n"
        + "    return np.moveaxis(right(q, k, v), 1, 2)\n"
    )
    (folder / "candidates" / "rotary.py").write_text("def attention(x, positions):\n    return x\n")
    (folder / "reference.py").write_text(HEAD + "def plain(q, k, v):\n    return right(q, k, v)\n")
    rest = ("--reference", "reference.py:plain", "--cases", "12", "--round", "3", "--json", "scores.jsonl")
    assert main(["judge", "candidates", *rest]) == 1
    scores = {Path(one["candidate"]).stem: one for one in map(json.loads, (folder / "scores.jsonl").read_text().splitlines())}
    verdicts = {name: one["verdict"] for name, one in scores.items()}
    assert verdicts == {
        **dict.fromkeys(("axes", "right", "model"), "nothing found"),
        **dict.fromkeys(("dies", "rotary"), "cannot be run"),
        "wrong": "refuted",
    }
    assert all(scores[name]["cases"] == 6 * 12 for name in ("axes", "right"))
    replay = scores["wrong"]["findings"][0]["replay"]
    assert "--like reference.py:plain" in replay and "answers_are_those_of_the_reference" in replay
    capsys.readouterr()
    assert main(["judge", "candidates/wrong.py", *rest, "--property", "values"]) == 2
    assert "beside a reference answers_are_those_of_the_reference, " in capsys.readouterr().out


MODULE = """
import math, os
import torch
from torch import nn

class NAME(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.qkv, self.out, self.heads = nn.Linear(width, 3 * width), nn.Linear(width, width), heads
        self.register_buffer("third", torch.full((), 1 / 3))

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (y.view(batch, length, self.heads, -1).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        scores = q @ k.mT / math.sqrt(q.shape[-1]) * (3 * self.third)
        scores = scores.masked_fill(torch.ones(length, length, dtype=torch.bool).triu(1), -torch.inf)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, width))
"""
INIT = "\ndef get_init_inputs():\n    return [16, 2]\n"
APART = (
    ("self.qkv, self.out, self.heads = nn.Linear(width, 3 * width)", "self.out, self.heads = nn.Linear(width, width), heads\n        #"),
    (
        "self.out, self.heads = nn.Linear",
        "self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))\n        self.out, self.heads = nn.Linear",
    ),
    ("self.qkv(x).chunk(3, -1)", "(f(x) for f in (self.q, self.k, self.v))"),
)
KEEPS = (
    ("self.out(", "nn.functional.linear("),
    ("        batch,", "        if not hasattr(self, 'kept'):\n            self.kept = self.out.weight.double().clone()\n        batch,"),
    ("(batch, length, width))", "(batch, length, width), self.kept.to(x.dtype), self.out.bias)"),
)
MODULES: dict[str, tuple[str, tuple[tuple[str, str], ...]]] = {
    "same": ("nothing found", ()),
    "fused": ("nothing found", (("scores.softmax(-1) @ v", "nn.functional.scaled_dot_product_attention(q * (3 * self.third), k, v, is_causal=True)"),)),  # noqa: E501
    "apart": ("nothing found", APART),
    "single": ("nothing found", (("        batch,", "        assert x.dtype == torch.float32\n        batch,"),)),
    "double": ("cannot be run", (("        batch,", "        assert x.dtype == torch.float64\n        batch,"),)),
    "width": ("refuted", (("q.shape[-1]", "width"),)),
    "corner": ("refuted", (("triu(1)", "triu(2)"),)),
    "constant": ("refuted", (("return self.out", "return x * 0 + 1\n        return self.out"),)),
    "exits": ("refuted", (("        batch, length", "        os._exit(0) if x.shape[1] > 6 else 0\n        batch, length"),)),
    "keeps": ("refuted", KEEPS),
    "made": ("cannot be run", (("width, heads):", "width, heads, more):"),)),
    "function": ("cannot be run", (("class NAME(nn.Module):", "def attention(q, k, v):\n    return v\n\nclass Other(nn.Module):"),)),
}  # fmt: skip
GATE = ("same", "double", "width", "exits")  # the others by night


def test_modules_are_held_to_a_module(folder: Path) -> None:
    """With weights that both are given: their own, and those of a case, in whatever projections."""
    pytest.importorskip("torch")
    (folder / "reference.py").write_text(MODULE.replace("NAME", "Model") + INIT)
    for file in (folder / "candidates").iterdir():
        file.unlink()
    modules = {name: MODULES[name] for name in MODULES if name in GATE or more_by_night(0, 1)}
    for name, (_, changes) in modules.items():
        code = MODULE
        for old, new in changes:
            assert old in code, (name, old)
            code = code.replace(old, new, 1)
        (folder / "candidates" / f"{name}.py").write_text(code.replace("NAME", "ModelNew") + INIT * (name != "same"))
    rest = ("--reference", "reference.py", "--cases", str(more_by_night(6, 12)), "--round", "3", "--json", "scores.jsonl")  # its Model
    assert main(["judge", "candidates", *rest]) == 1
    scores = {Path(one["candidate"]).stem: one for one in map(json.loads, (folder / "scores.jsonl").read_text().splitlines())}
    assert {name: one["verdict"] for name, one in scores.items()} == {name: verdict for name, (verdict, _) in modules.items()}
    kinds = {name: one["findings"][0]["kind"] for name, one in scores.items() if one["findings"]}
    assert kinds == {name: "exits" if name == "exits" else "differs" for name, (verdict, _) in modules.items() if verdict == "refuted"}
    assert "--contained" not in (replay := scores["width"]["findings"][0]["replay"]) and "width.py:ModelNew" in replay
    (folder / "facts.toml").write_text("zero_sizes = false\n")
    assert main(["judge", "candidates/same.py", *rest, "--supports", "facts.toml"]) == 2
    (said,) = map(json.loads, (folder / "scores.jsonl").read_text().splitlines())
    assert said["verdict"] == "cannot be run" and "--supports says nothing" in json.dumps(said)


@pytest.mark.nightly
def test_a_candidate_is_called_at_the_size_of_the_inputs_of_its_reference(folder: Path) -> None:
    """However large, as long as rounding can be followed there; of more sequences than that fewer, which is told."""
    pytest.importorskip("torch")
    inputs = "\ndef get_inputs():\n    return [torch.randn({}, 320, 16)]\n"
    (folder / "reference.py").write_text(MODULE.replace("NAME", "Model") + INIT + inputs.format(2))
    (folder / "many.py").write_text(MODULE.replace("NAME", "Model") + INIT + inputs.format(9000))
    right = MODULE.replace("NAME", "ModelNew")
    (folder / "right.py").write_text(right)
    (folder / "wrong.py").write_text(
        right.replace("batch, length, width = x.shape", "batch, length, width = x.shape\n        x = x if length < 320 else 1.01 * x")
    )
    rest = ("--cases", "4", "--round", "3", "--json", "scores.jsonl")
    assert main(["judge", "right.py", "wrong.py", "--reference", "reference.py", *rest]) == 1
    scores = [json.loads(line) for line in (folder / "scores.jsonl").read_text().splitlines()]
    assert [one["verdict"] for one in scores] == ["nothing found", "refuted"]
    assert scores[0]["tried"]["length"][1] == 320 and scores[0]["untried"] == {}
    (found,) = scores[1]["findings"]
    assert found["property"] == "answers_to_larger_inputs_are_those_of_the_reference" and "batch=2, length=320" in found["case"]
    main(["judge", "wrong.py", "--reference", "many.py", *rest])
    (said,) = map(json.loads, (folder / "scores.jsonl").read_text().splitlines())
    assert said["verdict"] == "refuted" and said["untried"]["its own inputs as a whole"].endswith("of its 9,000 sequences at a time")


INITS = {
    "both": "[[16], {'heads': 2}]",
    "a dictionary": "{'width': 16, 'heads': 2}",
    "by name alone": "[[], {'width': 16, 'heads': 2}]",
}


@pytest.mark.parametrize("inits", one_in(3, INITS))
def test_what_a_module_is_made_with_may_be_named(inits: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """For the reference, a candidate that says the same itself, and one that says nothing."""
    pytest.importorskip("torch")
    init = INIT.replace("[16, 2]", INITS[inits])
    (folder / "reference.py").write_text(MODULE.replace("NAME", "Model") + init)
    (folder / "says.py").write_text(MODULE.replace("NAME", "ModelNew") + init)
    (folder / "says_nothing.py").write_text(MODULE.replace("NAME", "ModelNew"))
    assert main(["judge", "says.py", "says_nothing.py", "--reference", "reference.py", "--cases", "2", "--round", "3"]) == 0
    assert capsys.readouterr().out.count("NOTHING FOUND") == 2


@pytest.mark.parametrize("returned", one_in(2, ["_Net(*sizes)", "torch.compile(_Net(*sizes), backend='eager')"]))
def test_a_function_that_makes_a_module_is_one(returned: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    (folder / "reference.py").write_text(MODULE.replace("NAME", "Model") + INIT)
    made = MODULE.replace("NAME", "_Net") + f"\ndef ModelNew(*sizes):\n    return {returned}\n" + INIT
    (folder / "right.py").write_text(made)
    (folder / "wrong.py").write_text(made.replace("triu(1)", "triu(2)"))
    assert main(["judge", "right.py", "wrong.py", "--reference", "reference.py", "--cases", "2", "--round", "3"]) == 1
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines() if ".py  " in line] == ["NOTHING", "REFUTED"]


def test_a_module_that_hangs_beside_a_reference_takes_nobody_with_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own process is ended, not the one that waits for it, whose own calls have an alarm."""
    pytest.importorskip("torch")
    monkeypatch.setenv(watch.WAITED_FOR, "1")
    for name in ("FIRST", "LEAST"):
        monkeypatch.setattr(link, name, 0.5)
    (folder / "reference.py").write_text(MODULE.replace("NAME", "Model") + INIT)
    old = "    def forward("
    assert MODULE.count(old) == 1
    right = MODULE.replace("NAME", "ModelNew") + INIT
    (folder / "right.py").write_text(right)
    (folder / "hangs.py").write_text(
        right.replace(old, "    def forward(self, x):\n        while True:\n            pass\n\n    def once(")
    )
    ended = []
    before = signal.signal(signal.SIGALRM, lambda *_: ended.append("the judge"))
    try:
        status = main(["judge", "hangs.py", "right.py", "--reference", "reference.py", "--cases", "4", "--json", "scores.jsonl"])
    finally:
        signal.signal(signal.SIGALRM, before)
    verdicts = [json.loads(line) for line in (folder / "scores.jsonl").read_text().splitlines()]
    assert [one["verdict"] for one in verdicts] == ["cannot be run", "nothing found"] and status == 2
    assert "it hangs" in json.dumps(verdicts[0]) and not ended


def killing(name: str, text: str, how: dict[str, Any]) -> Any:
    """A judge of one candidate that is killed over one of them."""
    if "dies" in name:
        os.kill(os.getpid(), signal.SIGKILL)
    return {"candidate": name, "verdict": "nothing found"}


def test_who_kills_a_process_of_ours_takes_nobody_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who was asked beside it, or after it, has a verdict all the same, once."""
    monkeypatch.setattr(door, "judged", killing)
    names = ["a", "dies", "b", "c", "dies too", "d"]
    made = dict(door.judge_all([(name, name) for name in names], {"reference": None}, 2))
    assert {name: one["verdict"] for (name, _), one in made.items()} == {
        name: "cannot be run" if "dies" in name else "nothing found" for name in names
    }
    assert made["dies", "dies"]["why"] == "the process that judged it was killed"


def hanging(name: str, text: str, how: dict[str, Any]) -> Any:
    """A judge of candidates of which one takes long."""
    time.sleep(600 if name == "hangs" else 0)
    return {"candidate": name}


def test_an_early_end_leaves_no_semaphore_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of which Python would warn below the line that says how to go on."""
    left: set[str] = set()
    monkeypatch.setattr(resource_tracker, "register", lambda name, _: left.add(name))
    monkeypatch.setattr(resource_tracker, "unregister", lambda name, _: left.discard(name))
    monkeypatch.setattr(door, "judged", hanging)
    judging = door.judge_all([("hangs", ""), ("is quick", "")], {"reference": None}, 2)
    assert next(judging)[1] == {"candidate": "is quick"} and left
    judging.close()
    assert not left


def test_what_fails_in_the_checker_is_one_candidates_verdict(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def broken(*_: Any) -> Any:
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(door, "candidate", broken)
    how = {"seconds": None, "reference": None, "supports": None, "contract": "attention", "device": "cpu", "folder": "elsewhere/"}
    made = door.judged("mine", "mine.py:attention", how)
    assert (made["verdict"], made["why"]) == ("cannot be run", f"the checker failed: ZeroDivisionError: ours: {door.OURS}")
    assert "ours" in capsys.readouterr().err


@pytest.mark.parametrize(
    "supports, says",
    [
        ("property(lambda self: 1 / 0)", "candidates/odd.py cannot be looked at: ZeroDivisionError: division by zero"),
        ("property(lambda self: os._exit(0))", "candidates/odd.py cannot be imported: it ended the process (exit status 0)"),
        ("{1: 2}", "candidates/odd.py: supports has no key '1'"),
    ],
)
def test_what_cannot_be_looked_at_is_told_by_its_name(supports: str, says: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = f"class Odd:\n    supports = {supports}\n    def __call__(self, q, k, v):\n        return v\nattention = Odd()\n"
    (folder / "candidates" / "odd.py").write_text(HEAD + code)
    assert judge("candidates/odd.py") == 2
    out, err = capsys.readouterr()
    assert says in out and "Traceback" not in err


ASKS = """
from properties.engine.contained import worker
{patch}
attention = right
"""
PATCHES = {
    "a text of two million lines": "worker.documentation = lambda found: '\\n' * 2_000_000",
    "a number that is none": "worker._Worker.do_drawn = lambda self, fw: []",
    "a number too large": "worker._Worker.do_drawn = lambda self, fw: 10**400",
    "names that are none": "worker._Worker.do_changed = lambda self: 3",
}


@pytest.mark.parametrize("patch", some_by_night(PATCHES, ["names that are none"]))
def test_what_comes_back_beside_answers_is_checked_too(patch: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "candidates" / "odd.py").write_text(HEAD + ASKS.format(patch=PATCHES[patch]))
    properties = ("--property", "purity", "--property", "rows_sum_to_one")
    status = main(["judge", "candidates/odd.py", *properties, "--cases", "2", "--round", "3", "--time", "20s", "--json", "scores.jsonl"])
    (score,) = map(json.loads, (folder / "scores.jsonl").read_text().splitlines())
    assert (status, score["verdict"]) == ((0, "nothing found") if "lines" in patch else (1, "refuted")), score["why"]
    assert "the checker failed" not in score["why"] and "Traceback" not in capsys.readouterr().err


def test_nothing_that_is_there_is_overwritten_by_a_record(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = (folder / "candidates" / "wrong.py").read_text()
    assert judge("candidates/right.py", "--record", "candidates/wrong.py") == 2
    assert "candidates/wrong.py is not what a run has written down" in capsys.readouterr().err
    assert (folder / "candidates" / "wrong.py").read_text() == code
    assert judge("candidates/right.py", "--record", "run.jsonl") == 0 == judge("candidates/right.py", "--record", "run.jsonl")


def test_a_type_in_which_all_is_nan_is_no_type_that_is_taken(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nan = "\ndef attention(q, k, v):\n    return right(q, k, v) * (np.nan if q.dtype == np.float16 else 1)\n"
    (folder / "candidates" / "nan.py").write_text(HEAD + nan)
    few = ("candidates/nan.py:attention", "--cases", "8", "--property", "values")
    for asked in (lambda: judge("candidates/nan.py"), lambda: main([*few])):
        assert asked() == 2
        said = " ".join(capsys.readouterr().out.split())
        assert "in float16 NaN comes back of numbers of size one; not tried: say in a file for --supports which dtypes it takes" in said
    (folder / "types.toml").write_text('dtypes = ["float64", "float32"]\n')
    assert judge("candidates/nan.py", "--supports", "types.toml") == 0 == main([*few, "--supports", "types.toml"])


def test_candidates_have_the_same_cases_whatever_they_are_called(folder: Path) -> None:
    files = ["candidates/right.py", "candidates/other.py", "candidates/yet another.py"]
    for name in files[1:]:
        Path(name).write_bytes(Path(files[0]).read_bytes())
    assert judge(*files, "--json", "scores.jsonl") == 0
    tried = [json.loads(line)["tried"] for line in (folder / "scores.jsonl").read_text().splitlines()]
    assert len(tried) == 3 and tried[0] == tried[1] == tried[2]


def test_a_new_model_goes_before_what_else_its_file_defines(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    decoy = "\nclass ModelNew:\n    def __call__(self, q, k, v):\n        return wrong(q, k, v)\n\ndef get_init_inputs():\n    return []\n"
    (folder / "candidates" / "decoy.py").write_text(HEAD + "def attention(q, k, v):\n    return right(q, k, v)\n" + decoy)
    assert judge("candidates/decoy.py") == 1


@pytest.mark.nightly
def test_what_hides_keys_in_every_call_is_not_what_hides_none(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Though each of its queries, asked as the last row, answers alike."""
    (folder / "whole.py").write_text(HEAD + "def attention(q, k, v):\n    return right(q, k, v)\n")
    (folder / "always.py").write_text(HEAD + "def attention(q, k, v):\n    return right(q, k, v, None, True)\n")
    for one, other, says in (
        ("always", "whole", "it alone hides the keys behind a query in every call"),
        ("whole", "always", "the reference alone hides the keys behind a query in every call"),
    ):
        assert main(["judge", f"{one}.py", "--reference", f"{other}.py:attention", "--cases", "4", "--round", "3"]) == 1
        assert says in capsys.readouterr().out
        assert main(["judge", f"{one}.py", "--reference", f"{one}.py:attention", "--cases", "20", "--round", "3"]) == 0


SAID = {
    "a scale": ("right(q, k * np.sqrt(q.shape[3]), v)", {"default_scale": "1"}, "as which it is held right"),
    "a window": ("right(q, k, v)", {"window": [1, 1]}, "as which it is held right"),
    "types": (
        "right(q, k, v) * q.dtype.type(1 + (q.dtype != np.float64))",
        {"dtypes": ["float64"]},
        "answers what it says that it does not take, and wrongly",
    ),
}


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize("name", SAID)
def test_what_it_says_of_itself_is_no_way_to_pass(name: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer, supports, says = SAID[name]
    code = f"def attention(q, k, v):\n    return {answer}\nattention.supports = {supports}\n"
    (folder / "candidates" / "says.py").write_text(HEAD + code)
    assert main(["judge", "candidates/says.py", "--property", "values", "--cases", "4", "--round", "3"]) in (1, 2)
    out = capsys.readouterr().out
    assert "NOTHING FOUND" not in out and (says in out or "REFUTED" in out)


HEADS = """
import math
import torch
from torch import nn

class ModelNew(nn.Module):
    def __init__(self, width=32, heads=4):
        super().__init__()
        self.heads = heads
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (p(x).view(batch, length, self.heads, -1).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        weights = (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1){more}
        return self.o_proj((weights @ v).transpose(1, 2).reshape(batch, length, width))
"""


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize(
    "more, status", [("", 0), (".roll(1, 1)", 2), (" * 1.01", 2)], ids=["right", "weights of another head", "one percent"]
)
def test_a_module_that_is_no_composition_of_its_projections_does_not_pass(more: str, status: int, folder: Path) -> None:
    pytest.importorskip("torch")
    (folder / "candidates" / "heads.py").write_text(HEADS.format(more=more))
    few = ("--contract", "module", "--property", "tokens", "--cases", "4", "--round", "3")
    assert main(["judge", "candidates/heads.py", *few]) == status


def test_a_slow_one_is_not_asked_longer_than_its_budget(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not for the calls that are to show what it takes, of which each may take long, nor for one that does not come back."""
    monkeypatch.setattr(door, "MEETING", 2.0)
    for file in (folder / "candidates").iterdir():
        file.unlink()
    for name, seconds in (("slow", 1.5), ("hangs", 1000)):
        code = f"def attention(q, k, v):\n    time.sleep({seconds})\n    return right(q, k, v)\n"
        (folder / "candidates" / f"{name}.py").write_text(HEAD + code)
    assert judge("candidates", "-n", "1", "--time", "1s", "--json", "scores.jsonl") == 2
    scores = {Path(one["candidate"]).stem: one for one in map(json.loads, (folder / "scores.jsonl").read_text().splitlines())}
    assert {one["verdict"] for one in scores.values()} == {"incomplete"}
    assert all(one["why"].startswith("time was over before the first case") for one in scores.values())
    assert "a call gave no answer in" in scores["hangs"]["why"]


def test_one_case_is_judged_alone(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As a replay line has it: what is wrong there is refuted, and of what is not, too little was tried."""
    words = ("--property", "output_is_inside_the_bound", "--case", "Case(queries=3, keys=3)")
    assert main(["judge", "candidates/wrong.py", "candidates/right.py", *words]) == 1
    said = capsys.readouterr().out
    assert "REFUTED       candidates/wrong.py  1 case" in said
    assert "INCOMPLETE    candidates/right.py  1 case" in said and "in this case, the only one that was tried" in said
    assert main(["judge", "candidates/right.py", *words[:3], "Case(queries=no)"]) == 2
    assert "CANNOT BE RUN" in capsys.readouterr().out
