"""Where a door takes the text of a target, the target gets a process of its own: pytest, Python, ``show``, ``init``."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from nightly import some_by_night

from benchmarks.contained.cheats import HEAD
from properties import check_attention, parametrize_with_properties, run_case, verify, verify_pair
from properties.engine.contained import link
from properties.engine.core.target import CannotRun
from properties.engine.doors import checks
from properties.engine.doors.cli import main

ROOT = Path(__file__).parents[2]
TELLS = "open(os.getcwd() + '-process', 'a').write(os.readlink('/proc/self/ns/pid') + f'-{os.getpid()} ')\n"
HERE = f"{os.readlink('/proc/self/ns/pid')}-{os.getpid()}"
PATCHES = """
for module in list(sys.modules.values()):
    for kind in [one for one in list(vars(module).values()) if isinstance(one, type) and one.__name__.endswith("Trial")]:
        for name in ("same_bits", "close", "inside", "agree", "fail"):
            if hasattr(kind, name):
                setattr(kind, name, lambda *a, **o: None)
attention = wrong
"""
CODE = {
    "right": TELLS + "attention = right",
    "calls": "attention = after(60, lambda: os._exit(0))",
    "leaves": "import atexit\natexit.register(os._exit, 0)\nattention = wrong",
    "patches": PATCHES,
    "imports": "os._exit(0)",
    "quits": "sys.exit(0)",
}
SOME = ("rows_sum_to_one", "output_is_inside_the_bound", "future_tokens_are_ignored", "masked_garbage_changes_nothing")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, code in CODE.items():
        (tmp_path / f"{name}.py").write_text(HEAD + code + "\n")
    return tmp_path


def in_pytest(folder: Path, *arguments: str) -> tuple[int, str]:
    """The exit status of a run of pytest with this clone's plugin, and what it prints."""
    facts = folder / "attncheck-0.dist-info"
    facts.mkdir(exist_ok=True)
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: attncheck\nVersion: 0\n")
    (facts / "entry_points.txt").write_text("[pytest11]\nproperties.plugin = properties.plugin\n")
    (folder / "test_mine.py").write_text("def test_mine(attention_check):\n    attention_check()\n")
    path = os.pathsep.join(map(str, (folder, ROOT)))
    command = [sys.executable, "-m", "pytest", "-q", "--tb=line", "--cases", "8", "test_mine.py", *arguments]
    done = subprocess.run(command, cwd=folder, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=500)
    return done.returncode, done.stdout


def test_in_pytest_nothing_ends_or_changes_the_run(folder: Path) -> None:
    """A right one passes beside wrong ones that would."""
    wrong = ("calls", "leaves", "patches")
    impls = [word for name in ("right", *wrong) for word in ("--impl", f"{name}.py:attention")]
    status, out = in_pytest(folder, *impls, "-k", " or ".join((*SOME, "conventions")))
    assert status == 1, out
    failed = set(re.findall(r"^FAILED test_mine.py::test_mine\[(\w+).py", out, re.MULTILINE))
    assert failed == set(wrong), out


@pytest.mark.parametrize("name", ["imports", "quits"])
def test_in_pytest_an_import_that_ends_the_process_is_told(name: str, folder: Path) -> None:
    status, out = in_pytest(folder, "--impl", f"{name}.py:attention")
    assert status not in (0, 5) and f"{name}.py:attention cannot be imported" in out.replace(
        f"{name}.py cannot", f"{name}.py:attention cannot"
    )


@pytest.mark.nightly
def test_in_pytest_with_workers_and_for_a_debugger(folder: Path) -> None:
    """Two workers, each with the target apart; and one process for all, if that is asked for."""
    rest = ("--impl", "right.py:attention", "-k", "rows_sum_to_one or future_tokens")
    assert in_pytest(folder, *rest, "-n", "2")[0] == 0
    assert len(set(Path(f"{folder}-process").read_text().split())) == 2
    (folder / "test_more.py").write_text(
        "import os\n\ndef test_where(attention_check):\n    assert f'-{os.getpid()} ' in open(os.getcwd() + '-process').read()\n"
    )
    assert in_pytest(folder, *rest, "test_more.py", "--attncheck-in-process")[0] == 0
    assert in_pytest(folder, *rest, "test_more.py")[0] == 1


def test_who_has_waited_too_long_does_not_pass(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = parametrize_with_properties({"mine": "right.py:attention"}, properties=("rows_sum_to_one",), cases=4)
    made = {parameter.id: parameter.values[0] for parameter in mark.args[1]}  # type: ignore[attr-defined]
    made["mine-rows_sum_to_one"]()
    monkeypatch.setattr(link, "WAITED", [link.PATIENCE + 1])
    with pytest.raises(AssertionError, match="rows_sum_to_one was not tried: the target hangs"):
        made["mine-rows_sum_to_one"]()


def test_who_ends_in_a_question_of_the_handshake_does_not_pass(folder: Path) -> None:
    (folder / "asked.py").write_text(HEAD + "attention = where(lambda q, k, mask, causal: mask is not None and mask.ndim == 1)\n")
    mark = parametrize_with_properties({"mine": "asked.py:attention"}, properties=("rows_sum_to_one",), cases=4)
    made = {parameter.id: parameter.values[0] for parameter in mark.args[1]}  # type: ignore[attr-defined]
    with pytest.raises(AssertionError, match="too little of mine can be tried: a call that was to show"):
        made["mine-conventions"]()


def test_a_text_is_contained_and_a_callable_is_not(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "known_mistakes", lambda: [])
    verdict = verify("right.py:attention", properties=("softmax",), cases=4)
    assert verdict.ok and verdict.report.contained and HERE not in Path(f"{folder}-process").read_text().split()
    for name in ("calls", "leaves", "patches"):
        verdict = verify(f"{name}.py:attention", properties=SOME, cases=30, name="mine")
        assert not verdict.ok and verdict.findings and verdict.report.target.name == "mine"
        assert f"{name}.py:attention" in repr(verdict)  # the line that replays it
    with pytest.raises(AssertionError, match="REFUTED"):
        check_attention("leaves.py:attention", properties=SOME, cases=8)
    with pytest.raises(CannotRun, match=r"imports.py:attention cannot be imported"):
        verify("imports.py:attention")
    with pytest.raises(CannotRun, match=r"one target is asked for, online_softmax.blocked_\* names"):
        verify("online_softmax.blocked_*")
    assert not verify_pair("leaves.py:attention", "right.py:attention", cases=8).ok
    run = run_case("right.py:attention", "Case(keys=3)")
    assert (abs(run.out - run.exact.out) <= run.bound).all()
    (folder / "right.py").write_text(HEAD + "attention = wrong\n")
    run = run_case("right.py:attention", "Case(keys=3)")
    assert not (abs(run.out - run.exact.out) <= run.bound).all()  # the file as it is now


@pytest.mark.parametrize("name", some_by_night(["imports", "quits", "calls at once"], ["calls at once"]))
@pytest.mark.parametrize(
    "arguments", [("show",), pytest.param(("init",), marks=pytest.mark.nightly), ("show", "--case", "Case(keys=3)")], ids=" ".join
)
def test_words_survive_a_target_that_exits(arguments: tuple[str, ...], name: str, folder: Path) -> None:
    (folder / "calls at once.py").write_text(HEAD + "def attention(q, k, v):\n    os._exit(0)\n")
    (folder / "calls at once.py").rename(folder / "calls_at_once.py")
    given = [arguments[0], f"{name.replace(' ', '_')}.py:attention", *arguments[1:]]
    command = [sys.executable, "-m", "properties", *given]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=200)
    assert done.returncode == 2 and done.stdout == "", done
    assert done.stderr.startswith("attncheck: ") and "--isolate" not in done.stderr and "Traceback" not in done.stderr


def test_what_is_drawn_and_written_is_that_of_a_contained_target(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "right.py:attention", "--tokens", "3"]) == 0
    assert main(["init", "right.py:attention"]) == 0 and "dtypes" in (folder / "right.toml").read_text()
    assert HERE not in Path(f"{folder}-process").read_text().split()
    assert "head 0" in capsys.readouterr().out
