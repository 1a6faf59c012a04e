"""A worker reaches no other process and no network, and nothing that it starts outlives it; where that cannot be had, the report says so."""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from nightly import one_in

from benchmarks.contained.cheats import HEAD
from properties import catalogue
from properties.attention.case import Case
from properties.engine.contained import apart, link, template, written
from properties.engine.contained.limits import PR_SET_DUMPABLE, prctl
from properties.engine.core.attempt import try_case
from properties.engine.core.target import Target
from properties.engine.doors.cli import main
from properties.engine.search import journal
from properties.engine.search.find_target import ALWAYS, Builtins, containing, find_targets

ROOT = Path(__file__).parents[2]
SUMS = catalogue.PROPERTIES["rows_sum_to_one"]
ONE = ("--property", SUMS.name, "--cases", "4", "-n", "1", "-q")
able = pytest.mark.skipif(not apart.able_to_filter(), reason="the system has no filter of calls")


@pytest.fixture(params=[apart.NAMESPACES, pytest.param(apart.FILTER, marks=able)])
def kept(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """By namespaces, or as on a system that has none."""
    yield from of_a_system(request.param, monkeypatch)


def of_a_system(kept: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(link.Link, "templates", [])
    if kept != apart.NAMESPACES:
        monkeypatch.setattr(apart, "_entered", lambda: False)
    if kept == apart.NOTHING:
        monkeypatch.setattr(apart, "filtered", lambda: False)
    yield kept
    for one in link.Link.templates:
        one.abandon()
    prctl(PR_SET_DUMPABLE, 1)


def contained(folder: Path, code: str) -> Target:
    (folder / "kernel.py").write_text(HEAD + code + "\n")
    with containing(ALWAYS):
        (target,) = find_targets(f"{folder / 'kernel.py'}:attention", Builtins())
    return target


def said(folder: Path, attempts: str) -> list[str]:
    """What became of some attempts, made when the target is imported."""
    code = f"""
import json, socket
libc = ctypes.CDLL(None, use_errno=True)
judge = {os.getpid()}
told = []
for attempt in ({attempts}):
    try:
        told.append(str(attempt()))
    except Exception as error:
        told.append(type(error).__name__)
open({str(folder / "told")!r}, "w").write(json.dumps(told))
attention = right
"""
    contained(folder, code)
    told: list[str] = json.loads((folder / "told").read_text())
    return told


SIGNALS = """
    lambda: os.kill(judge, 0),
    lambda: os.kill(-1, 0) if os.getpid() > 3 else os.kill(judge, 0),
    lambda: signal.pidfd_send_signal(os.pidfd_open(judge), 0),
    lambda: 1 / 0 if libc.tgkill(judge, judge, 0) == -1 else "sent",
    lambda: 1 / 0 if libc.syscall(101 if os.uname().machine == "x86_64" else 117, 16, judge, 0, 0) == -1 else "traced",
    lambda: open(f"/proc/{judge}/mem", "r+b"),
    lambda: open(f"/proc/{judge}/environ", "rb").read(),
    lambda: os.open(f"/proc/{judge}/fd/1", os.O_WRONLY),
    lambda: __import__("resource").prlimit(judge, __import__("resource").RLIMIT_CORE),
    lambda: os.setpriority(os.PRIO_PROCESS, judge, os.getpriority(os.PRIO_PROCESS, judge)),
"""


def test_no_other_process_is_reached(kept: str, tmp_path: Path) -> None:
    told = said(tmp_path, SIGNALS)
    expected = {"PermissionError", "ProcessLookupError", "FileNotFoundError", "ZeroDivisionError"}
    assert len(told) == 10 and set(told) <= expected, told


def test_no_other_process_of_the_user_is_looked_into(kept: str, tmp_path: Path) -> None:
    if kept == apart.FILTER and ctypes.CDLL(None).syscall(written.LANDLOCK_CREATE, None, 0, 1) < 1:
        pytest.skip("the system has no domains")
    with subprocess.Popen(["sleep", "100"]) as other:
        told = said(tmp_path, f'lambda: open("/proc/{other.pid}/mem", "r+b"), lambda: open("/proc/{other.pid}/environ", "rb").read()')
        other.kill()
    assert set(told) <= {"PermissionError", "FileNotFoundError"}


def test_no_network_is_reached(kept: str, tmp_path: Path) -> None:
    told = said(tmp_path, "lambda: socket.create_connection(('127.0.0.1', 9), 1), lambda: socket.create_connection(('1.1.1.1', 53), 1)")
    assert set(told) <= {"OSError", "PermissionError"}, told  # unreachable, or not permitted: not refused by anybody


def test_what_a_process_does_to_itself_it_still_does(kept: str, tmp_path: Path) -> None:
    """Signals to itself, sockets and pipes of its own, limits of its own, threads and children."""
    attempts = """
        lambda: os.kill(os.getpid(), 0),
        lambda: signal.raise_signal(signal.SIGCHLD),
        lambda: socket.socketpair()[0].close(),
        lambda: __import__("resource").setrlimit(__import__("resource").RLIMIT_CORE, (0, 0)),
        lambda: [t.start() or t.join() for t in [threading.Thread(target=int)]] and None,
        lambda: __import__("subprocess").run(["true"], check=True) and None,
        lambda: os.listdir("/proc/self/task") and None,
    """
    assert said(tmp_path, attempts) == ["None"] * 7


def test_only_temporary_files_and_caches_are_written(kept: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checker, Python, what is installed, and everything else of the user cannot be changed, removed or moved."""
    if kept == apart.FILTER and ctypes.CDLL(None).syscall(written.LANDLOCK_CREATE, None, 0, 1) < 3:
        pytest.skip("the system has no such rules")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(cache := tmp_path / "cache"))
    cache.mkdir()
    places = [ROOT / "properties", ROOT / "impls", Path(sys.prefix), Path(os.__file__).parent, Path(pytest.__file__).parent]
    if kept == apart.FILTER:  # of a place in another one that may be written it has no rule
        places = [place for place in places if not any(str(place.resolve()).startswith(one + "/") for one in written._writable())]
    new = [f"lambda: open({str(place / 'new_file')!r}, 'w').close()" for place in places]
    old = [
        f"lambda: {call}" for place in places for call in (f"os.mkdir({str(place / 'new')!r})", f"os.rename({str(place)!r}, '/tmp/moved')")
    ]
    source = str(ROOT / "properties" / "__init__.py")
    old += [f"lambda: open({source!r}, 'r+').close()", f"lambda: os.unlink({source!r})"] if ROOT / "properties" in places else []
    assert set(said(tmp_path, ", ".join([*new, *old, "lambda: 1 / 0"]))) <= {"OSError", "PermissionError", "ZeroDivisionError"}
    able = [tmp_path / "new_file", Path("/dev/shm") / f"new_{os.getpid()}", cache / "new_file"]
    assert (
        said(tmp_path, ", ".join(f"lambda: open({str(place)!r}, 'w').close() or os.unlink({str(place)!r})" for place in able))
        == ["None"] * 3
    )
    assert (ROOT / "properties" / "__init__.py").exists() and not any((place / "new_file").exists() for place in places)


def test_the_system_is_not_changed_nor_a_disk_read(kept: str, tmp_path: Path) -> None:
    """Though its user may be root's, who may open every device."""
    if kept == apart.FILTER:
        pytest.skip("of devices it has no rule")
    write = "os.close(os.open({!r}, os.O_WRONLY))"
    disks = [str(place) for place in Path("/dev").glob("*") if place.is_block_device() or place.name in ("mem", "kmsg")]
    changed = [*disks, "/proc/sys/vm/swappiness", "/proc/sys/kernel/core_pattern", "/proc/self/oom_score_adj"]
    attempts = [f"lambda: {write.format(place)}" for place in changed] + [f"lambda: os.close(os.open({p!r}, os.O_RDONLY))" for p in disks]
    assert set(said(tmp_path, ", ".join([*attempts, "lambda: 1 / 0"]))) <= {"OSError", "PermissionError", "ZeroDivisionError"}
    able = [
        "os.close(os.open('/dev/null', os.O_RDWR))",
        "len(open('/dev/urandom', 'rb').read(2)) - 2 or None",
        "len(os.listdir('/proc/self/fd')) and None",
    ]
    assert said(tmp_path, ", ".join(f"lambda: {one}" for one in able)) == ["None"] * 3


CHILD = """
import fcntl
def child(apart):
    if not os.fork():
        if apart:
            os.setsid()
            os.fork() and os._exit(0)
        held = open({held!r}, "w")
        fcntl.flock(held, fcntl.LOCK_EX)
        time.sleep(1000)
"""


def held(path: Path) -> bool:
    """Whether somebody holds the lock of a file."""
    with open(path, "a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def waited(what: str, path: Path, of: bool) -> None:
    until = time.monotonic() + 20
    while held(path) is not of and time.monotonic() < until:
        time.sleep(0.02)
    assert held(path) is of, what


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize("own", [False, True], ids=["session", "session of its own"])
def test_what_it_starts_is_ended_with_it(own: bool, kept: str, tmp_path: Path) -> None:
    """With the worker, by whatever that ends, and with the run."""
    lock = tmp_path / "lock"
    code = CHILD.format(held=str(lock)) + (
        f"\ndef attention(q, k, v):\n    if k.shape[2] == 2:\n        child({own})\n        time.sleep(0.3)\n        os._exit(3)\n"
        f"    if k.shape[2] == 3:\n        child({own})\n    return right(q, k, v)\n"
    )
    target = contained(tmp_path, code)
    violation = try_case(target, SUMS, Case(keys=2))
    assert violation and violation.killed and "exit status 3" in violation.says
    waited("after the worker", lock, False)
    assert try_case(target, SUMS, Case(keys=3)) is None
    waited("a child that goes on", lock, True)
    (one,) = link.Link.templates
    one.wire.close()  # as when the judge has gone
    waited("after the run", lock, False)


def test_the_pipe_of_the_caller_is_closed_with_the_run(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    code = HEAD + CHILD.format(held=str(lock)) + "attention = right\nchild(True)\ntime.sleep(0.3)\n"
    (tmp_path / "kernel.py").write_text(code)
    command = [sys.executable, "-m", "properties", "kernel.py:attention", *ONE]
    done = subprocess.run(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, timeout=100)
    assert done.returncode == 0 and lock.exists()
    waited("after the run", lock, False)


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize("kept", [apart.NAMESPACES, pytest.param(apart.FILTER, marks=able), apart.NOTHING])
def test_what_keeps_it_apart_is_told(
    kept: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("kernel.py").write_text(HEAD + "attention = right\n")
    says = {apart.FILTER: "the system gives the target no namespaces", apart.NOTHING: "neither namespaces nor a filter of calls"}
    for _ in of_a_system(kept, monkeypatch):
        assert main(["kernel.py:attention", *ONE, "--json", "report.json"]) == 0
        told = " ".join(capsys.readouterr().out.split())
        assert json.loads(Path("report.json").read_text())["reports"][0]["kept"] == kept
        assert ("apart" in told) is (kept in says) and says.get(kept, "") in told
        assert main(["judge", "kernel.py", *ONE[:4], "--json", "scores.jsonl"]) == 0
        assert json.loads(Path("scores.jsonl").read_text())["kept"] == kept


def test_what_starts_workers_and_does_not_answer_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template, "ANSWERED", 1.0)
    monkeypatch.setattr(link.Link, "templates", [])
    target = contained(tmp_path, "attention = doing(lambda: os._exit(3), lambda q, k: k.shape[2] == 2)")
    (stopped,) = link.Link.templates
    os.kill(stopped.pid, signal.SIGSTOP)
    violation = try_case(target, SUMS, Case(keys=2))
    assert violation and violation.killed
    assert try_case(target, SUMS, Case(keys=1, value_dim=1)) is not None and stopped not in link.Link.templates
    for one in link.Link.templates:
        one.abandon()


TOUCHES = "def attention(q, k, v):\n    open('called', 'w').close()\n    time.sleep(0.01)\n    return right(q, k, v)\n"


@pytest.mark.parametrize("number", one_in(3, [signal.SIGTERM, signal.SIGINT, signal.SIGHUP]))
def test_a_judge_that_is_ended_says_nothing_of_whom_it_had_not_judged(number: signal.Signals, tmp_path: Path) -> None:
    """No "nothing found"; and who was left is judged when the run is gone on with."""
    (tmp_path / "right.py").write_text(HEAD + TOUCHES)
    more = ["--property", "values", "--record", "run.jsonl", "--round", "3"]
    command = [sys.executable, "-m", "properties", "judge", "right.py", "--json", "scores.jsonl", "--cases", "2000", *more]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}

    def heed() -> None:
        for one in (signal.SIGINT, signal.SIGHUP):
            signal.signal(one, signal.SIG_DFL)

    with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=-1, stderr=-1, text=True, preexec_fn=heed, process_group=0) as run:
        until = time.monotonic() + 60
        while not (tmp_path / "called").exists() and time.monotonic() < until:
            time.sleep(0.05)
        (os.kill if number is signal.SIGTERM else os.killpg)(run.pid, number)
        out, err = run.communicate(timeout=60)
    assert run.returncode == 128 + number and out == "" and "Traceback" not in err
    assert "attncheck: interrupted; " in err and "resume run.jsonl goes on" in err
    assert not (tmp_path / "scores.jsonl").exists()
    assert not any("ended" in line or "judged" in line for line in journal.lines(tmp_path / "run.jsonl"))
    (tmp_path / "right.py").write_text(HEAD + "attention = wrong\n")
    done = subprocess.run([*command[:3], "resume", "run.jsonl"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 1 and "REFUTED       right.py" in done.stdout


FORGES = """
import glob
import numpy as np
calls = 0

def attention(q, k, v):
    global calls
    calls += 1
    if calls == 3:
        for file in [*glob.glob("**/*.json*", recursive=True), *glob.glob(".hypothesis/**/*.jsonl", recursive=True)]:
            with open(file, "a") as scores:
                scores.write('\\n{"ended": 0}\\n')
        for moved in (".hypothesis", "run.jsonl", "scores.jsonl", os.getcwd()):
            try:
                os.rename(moved, moved + "-old")
            except OSError:
                pass
    return wrong(q, k, v)
"""


@pytest.mark.nightly(but=2)
@pytest.mark.parametrize("record", [True, False], ids=["named", "unnamed"])
def test_what_a_run_writes_down_is_not_the_targets(record: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither is its line in it, nor is another file in the place of that one; the scores of a judge, too."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(template, "HIDDEN", [])
    monkeypatch.setattr(link.Link, "templates", [])
    (tmp_path / "kernel.py").write_text(HEAD + FORGES)
    named = ("--record", "run.jsonl") * record
    assert main(["kernel.py:attention", *ONE, *named]) == 1
    (place,) = [Path("run.jsonl")] if record else journal.journals()
    assert [line["ended"] for line in journal.lines(place) if "ended" in line] == [1]
    assert main(["judge", "kernel.py", *ONE[:-3], "--round", "3", "--json", "scores.jsonl", *named]) == 1
    (score,) = map(json.loads, Path("scores.jsonl").read_text().splitlines())
    assert score["verdict"] == "refuted" and not [name for name in os.listdir() if name.endswith("-old")]
    assert tmp_path.exists() and not Path(f"{tmp_path}-old").exists()  # another folder could be put in its place


@pytest.mark.nightly
def test_what_has_to_write_elsewhere_is_told_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = ROOT / "properties" / "calls.log"
    if said(tmp_path, f"lambda: open({str(log)!r}, 'a'),") != ["OSError"]:
        pytest.skip("the system makes nothing read-only")
    (tmp_path / "kernel.py").write_text(HEAD + f"def attention(q, k, v):\n    open({str(log)!r}, 'a')\n    return right(q, k, v)\n")
    assert main([f"{tmp_path / 'kernel.py'}:attention", *ONE]) == 2
    err = capsys.readouterr().err
    assert "Read-only file system" in err and "writes temporary files and caches alone" in err and not log.exists()
