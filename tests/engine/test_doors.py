"""The command line, and the doors for Python code."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from nightly import one_in, some_by_night

from properties.attention.case import Case
from properties.catalogue import PROPERTIES
from properties.engine.doors.cli import main
from properties.engine.search.find_target import Builtins, find_targets

ROOT = Path(__file__).parents[2]
KERNEL = '''
"""An attention, right and wrong."""
import numpy as np

def core(q, k, v, attn_mask, is_causal, diagonal=0, factor=1.0):
    kind, (q, k, v) = q.dtype, (x.astype(np.float64) if x.dtype == np.float16 else x for x in (q, k, v))
    logits = q @ k.swapaxes(-1, -2) * max(q.shape[3], 1) ** -0.5
    if is_causal:
        logits = np.where(np.tri(*logits.shape[2:], k=diagonal, dtype=bool), logits, -np.inf)
    if attn_mask is not None:
        logits = np.where(attn_mask, logits, -np.inf) if attn_mask.dtype == bool else logits + attn_mask
    with np.errstate(all="ignore"):
        top = logits.max(axis=-1, keepdims=True, initial=-np.inf)
        weights = np.exp(logits - np.where(top == -np.inf, 0, top))
        total = weights.sum(axis=-1, keepdims=True)
        return (weights / np.where(total == 0, 1, total) @ v * factor).astype(kind)

def attention(q, k, v, attn_mask=None, is_causal=False):
    return core(q, k, v, attn_mask, is_causal)

def future(q, k, v, attn_mask=None, is_causal=False):
    return core(q, k, v, attn_mask, is_causal, diagonal=1)

def scaled(q, k, v, attn_mask=None, is_causal=False):
    return core(q, k, v, attn_mask, is_causal, factor=1.01)

async def later(q, k, v):
    return v

def listed(q, k, v):
    return v.tolist()

def of_gpus(q, k, v):
    raise RuntimeError("q must be a CUDA tensor")

for function in (attention, future, scaled):
    function.supports = {"masked_nan": "leaks"}
'''
CHECKED = ("--property", "future_tokens_are_ignored", "--property", "rows_sum_to_one")


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A file of kernels in an empty working directory, so that no saved case is found."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kernel.py").write_text(KERNEL)
    return "kernel.py"


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """(exit status, standard output, standard error) of the command line, in this process."""
    status = main(list(arguments))
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def replays(out: str) -> list[list[str]]:
    """The arguments of every replay line, as a shell reads them."""
    lines = re.findall(r"^  replay    (.*)$", out, re.MULTILINE)
    return [shlex.split(line.removeprefix("python -m properties").removeprefix("attncheck")) for line in lines]


# ---------------------------------------------------------------- exit statuses


def test_a_right_attention_exits_0(kernel: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, f"{kernel}:attention", *CHECKED, "--cases", "30")
    assert status == 0
    assert "NOTHING FOUND  kernel.py:attention · numpy · cpu" in out
    assert "2 properties hold, 0 refuted, 0 not exercised · 60 cases" in out
    assert err == "checking kernel.py:attention\n"  # piped: plain


def test_a_wrong_one_exits_1_and_its_replay_replays(kernel: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The line under the finding, run as it stands, shows the same violation; on the repaired kernel it shows none."""
    status, out, _ = run(capsys, f"{kernel}:future", *CHECKED, "--cases", "60")
    assert status == 1 and "REFUTED  future_tokens_are_ignored · kernel.py:future · cpu" in out
    (replay,) = replays(out)
    says = out.splitlines()[out.splitlines().index(next(x for x in out.splitlines() if x.startswith("REFUTED  future_tokens"))) + 1]
    again, shown, _ = run(capsys, *replay)
    assert again == 1 and says in shown.splitlines() and "1 of 1 properties refuted by Case(" in shown
    replay[0] = f"{kernel}:attention"
    repaired, shown, _ = run(capsys, *replay)
    assert repaired == 0 and shown.startswith("0 of 1 properties refuted by Case(")


def test_the_smallest_case_is_small(kernel: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Two keys and the causal flag are all that a frontier one too far needs."""
    _, out, _ = run(capsys, f"{kernel}:future", "--property", "future_tokens_are_ignored")
    (replay,) = replays(out)
    case = Case.parse(replay[replay.index("--case") + 1])
    assert (case.keys, case.is_causal) == (2, True) and case.queries <= 2
    assert (case.batch, case.heads, case.dim, case.mask, case.layout) == (1, 1, 1, "none", "contiguous")


CANNOT = {
    "nothing such": (("no_such.thing",), "there is no built-in implementation 'no_such.thing'"),
    "nothing before the colon": ((":attention",), "which module or file has attention? Nothing stands before the colon"),
    "a folder": ((".",), ". is a folder: give file.py:attribute, or attncheck judge . for all files in it"),
    "a list": (("kernel.py:listed",), "it returned list, not an array of numpy"),
    "an async function": (("kernel.py:later",), "it returned coroutine, as an async function does, not an array of numpy"),
    "a kernel for GPUs": (("kernel.py:of_gpus",), "q must be a CUDA tensor (--device cuda puts its arrays on a GPU; what is no"),
    "not an attention": (("kernel.py:np",), "kernel.py:np is not callable, but of type module"),
    "a misspelt property": (("kernel.py:attention", "--property", "rows_sum_to_on"), "did you mean rows_sum_to_one"),
    "a misspelt theme": (("kernel.py:attention", "--property", "sofmax"), "no property is named 'sofmax'; did you mean softmax"),
    "a case that is none": (("kernel.py:attention", "--case", "Case(querys=3)"), "a case has no field 'querys'"),
    "a case of typos": (("kernel.py:attention", "--case", "Case(values='nrmal')"), "did you mean 'normal'?"),
    "a case without target": (("--case", "Case()"), "--case needs a target"),
    "a case of several": (("online_softmax.blocked_*", "--case", "Case()"), "--case needs one target"),
    "a dtype it lacks": (
        ("kernel.py:attention", "--dtype", "bfloat16"),
        "kernel.py:attention takes float64, float32, float16",
    ),
    "a case of a dtype it lacks": (("kernel.py:attention", "--case", "Case(dtype='bfloat16')"), "not bfloat16"),
    "a property it cannot show": (
        ("kernel.py:attention", "--property", "zero_scale_averages", "--case", "Case()"),
        "zero_scale_averages cannot be put to Case(): the target takes no scale",
    ),
    "a device that is not there": (("kernel.py:attention", "--device", "tpu"), "there is no device 'tpu' here"),
    "a file of facts that is not there": (("kernel.py:attention", "--supports", "no.toml"), "no.toml"),
}


@pytest.mark.parametrize("mistake", CANNOT)
def test_what_cannot_be_run_exits_2_with_one_sentence(mistake: str, kernel: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments, says = CANNOT[mistake]
    status, out, err = run(capsys, *arguments)
    assert status == 2 and out == ""
    assert err.startswith("attncheck: ") and says in err and err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--time", "soon"), "argument --time: 'soon' is not a duration such as 90s, 30m or 2h"),
        (("--time", "-3s"), "argument --time: expected one argument, which does not begin with -"),
        (("--round", "x"), "argument --round: 'x' is not a whole number"),
        (("--like", ""), "argument --like: it is empty; leave the option out, or give it a value"),
        (("--dtype", "float31"), "argument --dtype: invalid choice: 'float31'"),
        (("--no-such",), "unrecognized arguments: --no-such"),
    ],
)
def test_arguments_that_are_none_exit_2(arguments: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["kernel.py:attention", *arguments])
    assert caught.value.code == 2 and f"attncheck: error: {says}" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "status"), one_in(3, [("future", 1), ("attention", 0), ("missing", 2)]))
def test_a_real_process(name: str, status: int, kernel: str) -> None:
    """``python -m properties`` in a clone; nothing but the report on standard output."""
    done = subprocess.run(
        [sys.executable, "-m", "properties", f"kernel.py:{name}", "-q", "--cases", "30", "--property", "future_*"],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        timeout=120,
        check=False,
    )
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr == ("" if status < 2 else "attncheck: kernel.py has no attribute 'missing'\n")
    assert done.stdout.startswith(("NOTHING FOUND", "REFUTED  kernel.py:future", "")[status])


# ---------------------------------------------------------------- options


def test_quiet_prints_no_progress(kernel: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, err = run(capsys, f"{kernel}:attention", *CHECKED, "--cases", "5", "-q")
    assert err == "" and "NOTHING FOUND" in out


FORMS = [[], ["--json", "-", "-n", "2"]]


@pytest.mark.parametrize("form", some_by_night(FORMS, FORMS[1:]), ids=" ".join)
def test_what_a_kernel_prints_is_no_part_of_the_report(form: list[str], kernel: str) -> None:
    Path("loud.py").write_text(
        "from kernel import future\n\ndef loud(q, k, v, is_causal=False):\n"
        "    print('looking at', q.shape)\n    return future(q, k, v, None, is_causal)\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "properties", "loud.py:loud", "-q", "--cases", "10", *form, *CHECKED],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}."},
        timeout=120,
        check=False,
    )
    assert done.returncode == 1 and "looking at (" in done.stderr and "looking at (" not in done.stdout
    assert "REFUTED  future_tokens_are_ignored" in (done.stderr if form[:2] == ["--json", "-"] else done.stdout)
    if "--json" in form:
        assert json.loads(done.stdout)["reports"]


def test_json(kernel: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The same as the text, as data; NaN and infinities are words."""
    status, _, _ = run(capsys, f"{kernel}:future", *CHECKED, "--cases", "40", "--json", "report.json")
    (report,) = json.loads(Path("report.json").read_text())["reports"]
    assert (status, report["ok"], report["target"], report["framework"]) == (1, False, "kernel.py:future", "numpy")
    assert report["dtypes"] == ["float64", "float32", "float16"]
    assert set(report["properties"]) == {"future_tokens_are_ignored", "rows_sum_to_one"}
    wrong, right = (report["properties"][name] for name in ("future_tokens_are_ignored", "rows_sum_to_one"))
    assert (wrong["status"], right["status"], right["finding"]) == ("refuted", "passed", None)
    assert right["cases"] == 40 and sum(right["features"][d] for d in report["dtypes"]) == 40
    assert wrong["finding"]["allowed"] == 0 and Case.parse(wrong["finding"]["case"]).is_causal
    assert wrong["finding"]["matters"] and "batch" in wrong["finding"]["does_not_matter"]
    status, out, _ = run(capsys, f"{kernel}:attention", *CHECKED, "--cases", "3", "-q", "--json", "-")
    assert status == 0 and json.loads(out)["not_run"] == {}


def test_time_goes_round_after_round(kernel: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Past findings, and past the cases of one round; a busy machine is given more time for them."""
    for seconds in (1.5, 6, 24):
        status, out, _ = run(capsys, f"{kernel}:future", *CHECKED, "--cases", "10", "--time", f"{seconds}s", "--json", "r.json")
        (report,) = json.loads(Path("r.json").read_text())["reports"]
        if report["rounds"] > 1:
            break
    assert status == 1 and report["rounds"] > 1
    assert report["properties"]["rows_sum_to_one"]["cases"] > 10
    assert report["seconds"] > 0.5 * seconds
    assert out.count("REFUTED  future_tokens_are_ignored") == 1


def test_dtype_restricts(kernel: str, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, f"{kernel}:attention", *CHECKED, "--cases", "10", "--dtype", "float16", "--json", "r.json")
    (report,) = json.loads(Path("r.json").read_text())["reports"]
    assert report["properties"]["rows_sum_to_one"]["features"]["float16"] == 10


@pytest.mark.parametrize(("pattern", "count"), [("rows_sum_to_one", 1), ("future_*", 1), ("causality", 4), ("permuted_*", None)])
def test_properties_by_name_glob_and_theme(pattern: str, count: int | None, kernel: str, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, f"{kernel}:attention", "--property", pattern, "--cases", "2", "--json", "r.json")
    (report,) = json.loads(Path("r.json").read_text())["reports"]
    wanted = {
        n
        for n, p in PROPERTIES.items()
        if p.contract in ("attention", "multihead") and (n == pattern or p.theme == pattern or n.startswith(pattern.rstrip("*")))
    }
    assert set(report["properties"]) == wanted and (count is None or len(wanted) == count)


def test_list_prints_every_property(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "list")
    lines = out.splitlines()
    assert status == 0
    for name, prop in PROPERTIES.items():
        at = lines.index(f"  {name}")
        assert lines[at + 1].strip() == prop.statement
        assert lines[at + 2].strip().startswith(prop.formula)
        assert lines[at + 2].endswith("(bit for bit)" if prop.exact else "(inside the bound)")
    assert {prop.theme.upper() for prop in PROPERTIES.values()} <= set(lines)


@pytest.mark.nightly
def test_supports_from_outside(kernel: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A kernel aligned to the bottom right is wrong by default, and right when that is declared."""
    source = KERNEL.replace("k=diagonal", "k=logits.shape[3] - logits.shape[2]")
    Path("aligned.py").write_text(source)
    Path("facts.toml").write_text('causal = "bottom-right"\nmasked_nan = "leaks"\nempty_rows = "zero"\n')
    arguments = ("aligned.py:attention", "--property", "causality", "--cases", "40", "-q")
    assert run(capsys, *arguments)[0] == 1
    assert run(capsys, *arguments, "--supports", "facts.toml")[0] == 0


@pytest.mark.parametrize("name", some_by_night(("attention", "scaled"), ("scaled",)))
def test_two_workers_find_what_one_finds(name: str, kernel: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The same cases, the same verdicts, the same findings, with what is declared in their replay lines: only the time differs."""
    reports: list[Any] = []
    for workers in ("1", "2"):
        folder = Path(f"of {workers}")
        folder.mkdir()
        (folder / "kernel.py").write_text(KERNEL)
        (folder / "facts.toml").write_text("gradients = false\n")
        os.chdir(folder)
        run(capsys, f"{kernel}:{name}", *CHECKED, "--supports", "facts.toml", "--cases", "30", "-n", workers, "--json", "r.json")
        reports += json.loads(Path("r.json").read_text())["reports"]
        os.chdir("..")
    for prop in ("future_tokens_are_ignored", "rows_sum_to_one"):
        one, two = (report["properties"][prop] for report in reports)
        for outcome in (one, two):
            outcome.pop("seconds")
            if outcome["finding"]:
                outcome["finding"].pop("shrink_seconds")
        assert one == two
        assert " --supports facts.toml " in one["finding"]["replay"] if one["finding"] else one["cases"] == 30


def test_the_matrix_of_several_targets(kernel: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "online_softmax.blocked_*", "--property", "rows_sum_to_one", "--cases", "5", "-q")
    assert status == 0
    assert re.search(r"^rows_sum_to_one +5 +5 +5$", out, re.MULTILINE)


def test_the_command_line_saves_and_tries_first(kernel: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = (f"{kernel}:scaled", "--property", "rows_sum_to_one", "-q", "--cases", "40")
    run(capsys, *arguments, "--round", "3")
    assert Path(".hypothesis/attncheck").is_dir()
    _, out, _ = run(capsys, *arguments, "--round", "4")
    assert "case 1 of 40" not in out  # what was found before is left out of a round that is named
    _, out, _ = run(capsys, *arguments)
    assert "case 1 of 40" in out


# ---------------------------------------------------------------- doors for Python code


MINE = """
from kernel import attention, future
from properties import parametrize_with_properties

@parametrize_with_properties({"right": attention, "wrong": future}, properties=("causality", "rows_sum_to_one"), cases=12)
def test_mine(check):
    check()
"""


def test_parametrize_with_properties(kernel: str) -> None:
    """One test for every property of every attention, with names of their own; only the wrong one fails."""
    Path("test_mine.py").write_text(MINE)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-rA", "test_mine.py"],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}."},
        timeout=120,
        check=False,
    )
    passed = set(re.findall(r"^PASSED test_mine.py::test_mine\[(\S+)\]", done.stdout, re.MULTILINE))
    failed = set(re.findall(r"^FAILED test_mine.py::test_mine\[(\S+)\]", done.stdout, re.MULTILINE))
    names = {name for name, prop in PROPERTIES.items() if prop.theme == "causality"} | {"rows_sum_to_one"}
    assert done.returncode == 1, done.stdout
    assert passed | failed == {f"{who}-{name}" for who in ("right", "wrong") for name in (*names, "conventions")}
    assert {f"right-{name}" for name in names} <= passed
    assert "wrong-future_tokens_are_ignored" in failed
    assert "REFUTED  future_tokens_are_ignored · wrong · cpu" in done.stdout and "  replay " in done.stdout


def test_the_pytest_door(kernel: str) -> None:
    """``pytest --impl FILE:ATTRIBUTE`` on the properties; a typo is a usage error of one line."""

    def pytest_on(*names: str) -> subprocess.CompletedProcess[str]:
        targets = [word for name in names for word in ("--impl", f"{Path(kernel).resolve()}:{name}")]
        chosen = ["-k", "future_tokens_are_ignored", "properties/test_properties.py"]
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--cases", "10", *targets, *chosen]
        return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120, check=False)

    both, typo = pytest_on("attention", "future"), pytest_on("futur")
    assert both.returncode == 1 and typo.returncode > 1
    assert "REFUTED  future_tokens_are_ignored" in both.stdout and "1 failed, 1 passed" in both.stdout
    assert "has no attribute 'futur'; did you mean future" in typo.stderr + typo.stdout


@pytest.mark.nightly
def test_the_pytest_door_takes_a_reference(kernel: str) -> None:
    """``pytest --like REFERENCE``: one test for every target, that it answers as the reference does."""

    def pytest_on(like: str, *names: str) -> subprocess.CompletedProcess[str]:
        place = Path(kernel).resolve()
        targets = [word for name in names for word in ("--impl", f"{place}:{name}")]
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--cases", "10", *targets]
        return subprocess.run(
            [*command, "--like", f"{place}:{like}", "properties/test_properties.py"],
            capture_output=True,
            text=True,
            cwd=ROOT,
            timeout=120,
            check=False,
        )

    both, no_pair = pytest_on("attention", "attention", "future"), pytest_on("nobody", "attention")
    assert both.returncode == 1 and "1 failed, 1 passed" in both.stdout
    assert "REFUTED  answers_are_those_of_the_reference" in both.stdout and " --like " in both.stdout
    assert no_pair.returncode > 1 and "has no attribute 'nobody'" in no_pair.stderr + no_pair.stdout


def test_verify(kernel: str) -> None:
    """In a notebook: a verdict that prints itself."""
    from properties.engine.doors.checks import verify

    (right,), (wrong,) = (find_targets(f"{kernel}:{name}", Builtins()) for name in ("attention", "future"))
    good = verify(right.function, properties=("causality",), cases=20)
    bad = verify(wrong.function, name="mine", properties=("causality",), cases=20)
    assert good.ok and not good.findings and "NOTHING FOUND  attention" in repr(good)
    assert not bad.ok and bad.findings[0].target == "mine" and "REFUTED  future_tokens_are_ignored · mine" in repr(bad)
    with pytest.raises(ValueError, match="no property is named 'rows_sum_to_on'; did you mean"):
        verify(right.function, properties=("rows_sum_to_on",))
