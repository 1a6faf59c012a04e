"""What a target may start, print and take away; each is a finding, or comes to nothing, and the run goes on."""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from benchmarks.contained.cheats import HEAD
from properties import catalogue
from properties.engine.contained import apart, counted, limits
from properties.engine.contained import link as links
from properties.engine.contained import template as templates
from properties.engine.contained.apart import NAMESPACES
from properties.engine.contained.counted import processes
from properties.engine.contained.limits import FILE, TASKS
from properties.engine.contained.template import PRINTED
from properties.engine.doors.cli import main
from properties.engine.report.record import kind
from properties.engine.search.find_target import ALWAYS, Builtins, containing, find_targets
from properties.engine.search.run import Report, verify_target
from properties.engine.search.search import Plan

ONE = "rows_sum_to_one"


def searched(folder: Path, code: str, **how: Any) -> Report:
    (folder / "kernel.py").write_text(HEAD + code + "\n")
    with containing(ALWAYS):
        (target,) = find_targets(f"{folder / 'kernel.py'}:attention", Builtins())
    return verify_target(target, catalogue.select((ONE,)), Plan(examples=30, shrink=False, **how))


def below(template: int) -> int:
    """How many processes there are below one."""
    running, found = processes(), {template}
    for _ in range(6):
        found |= {pid for pid, parent, _, _ in running if parent in found}
    return len(found)


@pytest.fixture
def few_tasks(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A worker may have so many processes and threads: fewer than outside of tests, since to start them takes the time."""
    few = 64
    monkeypatch.setattr(links.Link, "templates", [])
    for module in (links, apart, counted):
        monkeypatch.setattr(module, "TASKS", few)
    yield few
    for one in links.Link.templates:
        one.abandon()


def test_what_short_calls_leave_is_noticed_when_one_comes_back(few_tasks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not at the next look, until when each of them could have answered a call, and started as many."""
    monkeypatch.setattr(links, "LOOK", 1e9)
    code = f"""
def attention(q, k, v):
    for _ in range({few_tasks // 8}):
        if not os.fork():
            time.sleep(1000)
            os._exit(0)
    return right(q, k, v)
"""
    (finding,) = searched(tmp_path, code).findings
    assert "processes and threads" in finding.violation.says or "Resource temporarily unavailable" in finding.violation.says


def test_a_fork_bomb_is_ended_where_it_is(few_tasks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the first process of its namespaces, at once; the judge, who waits for an answer, might come too late."""
    monkeypatch.setattr(links.Link, "_crowded", lambda self: False)
    monkeypatch.setattr(links, "LEAST", 60.0)  # seconds for a call: where there is much other work, it takes some to start so many
    report = searched(tmp_path, f"attention = after(20, lambda: [os.fork() for _ in range({few_tasks})] and time.sleep(1000))")
    if report.kept != NAMESPACES:
        pytest.skip("there are no namespaces here")
    (finding,) = report.findings
    assert "processes and threads" in finding.violation.says or "Resource temporarily unavailable" in finding.violation.says


@pytest.mark.parametrize("writes", [False, True])
def test_what_a_process_writes_over_the_memory_of_its_parent_is_its_own(writes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system counts it as the process's before, too, and whoever has freed much already can take so much without having more."""
    monkeypatch.setattr(counted, "SHARED", 2**25)
    monkeypatch.setattr(counted, "memory_allowed", lambda: 2**25)
    held = bytearray(b"1") * 2**27
    tells, told = os.pipe()
    if not (child := os.fork()):
        if writes:
            held[::4096] = b"2" * (len(held) // 4096)
        os.write(told, b"x")
        time.sleep(60)
        os._exit(0)
    try:
        os.read(tells, 1)
        assert bool(counted.taken([child], counted.memory("self")[0])) is writes
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(tells)
        os.close(told)


TAKES = {
    "children": "for _ in range(6):\n        if not os.fork():\n            break\n    held = b'1' * 2**26\n    time.sleep(1000)",
    "shared memory": "import mmap\n    held = mmap.mmap(-1, 2**31)\n    while True:\n        held.write(bytes(2**20))\n        time.sleep(0.001)",
}


@pytest.mark.parametrize(("there", "what"), list(product([True, False], TAKES)))
def test_all_that_it_starts_may_take_so_much_memory(there: bool, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also what a limit of the system does not count: that of one process holds for each of them, and not for what is shared."""
    monkeypatch.setattr(links.Link, "templates", [])
    monkeypatch.setattr(counted, "SHARED", 2**27)
    monkeypatch.setattr(counted, "memory_allowed", lambda: 2**27)
    if not there:
        monkeypatch.setattr(apart, "taken", lambda *_: "")
    (finding,) = searched(tmp_path, f"def take():\n    {TAKES[what]}\nattention = after(20, take)").findings
    assert "GiB of memory, with all that it started" in finding.violation.says and kind(finding.violation) == "exhausts memory"
    for one in links.Link.templates:
        one.abandon()


@pytest.mark.parametrize("own", [False, True], ids=["session", "sessions of their own"])
def test_processes_are_counted_and_ended(own: bool, tmp_path: Path) -> None:
    """By the system, or by the judge while it waits."""
    code = f"""
def start():
    for _ in range({TASKS + 100}):
        os.posix_spawnp("sleep", ["sleep", "1000"], os.environ, setsid={own})
    time.sleep(3)
attention = after(20, start)
"""
    while (before := below(links.template().pid)) < 2:  # it has just been started: what passes on prints is not there yet
        time.sleep(0.01)
    report = searched(tmp_path, code)
    (finding,) = report.findings
    assert "processes and threads" in finding.violation.says or "Resource temporarily unavailable" in finding.violation.says
    assert kind(finding.violation) in ("starts too much", "raises")
    links.template()  # ends what a link has left that nobody holds any more
    del report
    until = time.monotonic() + 10
    while below(links.template().pid) > before + 3 and time.monotonic() < until:
        time.sleep(0.1)
    assert below(links.template().pid) <= before + 3  # a worker, its parent, and the first process of its namespaces


KINDS = {
    "os._exit(3)": "exits",
    "os.kill(os.getpid(), 9)": "killed",
    "time.sleep(1000)": "hangs",
    "bytearray(2**45)": "exhausts memory",
    "1 / 0": "raises",
}


@pytest.mark.parametrize("act", KINDS)
def test_what_sort_of_failure_it_is_is_told(act: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "LEAST", 0.5)
    (finding,) = searched(tmp_path, f"attention = after(20, lambda: {act})").findings
    assert kind(finding.violation) == KINDS[act], finding.violation.says


def test_the_system_has_the_limits(tmp_path: Path) -> None:
    """Where a namespace of its own is allowed, there is one for the number of processes and threads, too."""
    code = f"""
import resource
open({str(tmp_path / "limits")!r}, "w").write(" ".join(str(resource.getrlimit(x)[0]) for x in (
    resource.RLIMIT_NPROC, resource.RLIMIT_FSIZE, resource.RLIMIT_CORE)))
attention = right
"""
    report = searched(tmp_path, code)
    tasks, file, core = map(int, (tmp_path / "limits").read_text().split())
    assert (file, core) == (FILE, 0)
    assert tasks == (TASKS if report.kept == NAMESPACES else resource.getrlimit(resource.RLIMIT_NPROC)[0])


def test_a_file_has_an_end(tmp_path: Path) -> None:
    """A larger one cannot be written; the file is sparse, so that nothing is filled here."""
    code = f"""
def write():
    with open({str(tmp_path / "large")!r}, "wb") as file:
        file.seek({FILE})
        file.write(b"x")
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
attention = after(20, write)
"""
    (finding,) = searched(tmp_path, code).findings
    assert "OSError: [Errno 27] File too large" in finding.violation.says


def test_what_is_printed_has_an_end(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """It is shown so far, and slows nobody down; the verdict is that of the answers."""
    monkeypatch.setattr(links.Link, "templates", [])  # a run of its own
    report = searched(tmp_path, "def attention(q, k, v):\n    print('x' * 10**6)\n    os.write(2, b'y' * 10**6)\n    return right(q, k, v)")
    assert report.ok and report.cases == 30
    templates = links.Link.templates
    for template in templates:
        template.wire.close()
    del report
    until, said = time.monotonic() + 10, ""
    while time.monotonic() < until and "it is not shown" not in said:
        said += capfd.readouterr().err
        time.sleep(0.05)
    assert "the target prints more; it is not shown" in said
    assert PRINTED <= len(said) < PRINTED + 1000


def test_what_is_printed_is_passed_on(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links.Link, "templates", [])
    searched(tmp_path, "print('said on import')\nattention = right")
    until, said = time.monotonic() + 10, ""
    while time.monotonic() < until and "said on import" not in said:
        said += capfd.readouterr().err
        time.sleep(0.05)
    assert "said on import" in said


def test_what_is_printed_is_no_command_of_github_s(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it runs there, whatever piece of a line is written at once; the last line of all, too."""
    monkeypatch.setattr(links.Link, "templates", [])
    monkeypatch.setattr(templates, "AT_GITHUB", True)
    report = searched(
        tmp_path,
        "os.write(1, b'a ##[error]\\n :')\ntime.sleep(0.2)\nos.write(1, b':error::b\\n::stop')\ntime.sleep(0.2)\nattention = right",
    )
    said = capfd.readouterr().err
    for template in links.Link.templates:
        template.wire.close()
    del report
    until = time.monotonic() + 10
    while time.monotonic() < until and "stop" not in said:
        said += capfd.readouterr().err
        time.sleep(0.05)
    assert said == "| a ## [error]\n|  ::error::b\n| ::stop\n"


@pytest.mark.parametrize(
    "then, says",
    [("return right(q, k, v)", "FileNotFoundError"), ("os._exit(4)", "ended the process, which cannot be started again")],
    ids=["and goes on", "and exits"],
)
def test_a_folder_that_is_deleted(
    then: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the target's file and, where it sees that, all that is kept of a run: what was found is told."""
    folder = tmp_path / "folder"
    folder.mkdir()
    monkeypatch.chdir(folder)
    code = f"""
import shutil

def attention(q, k, v):
    if k.shape[2] == 3:
        shutil.rmtree({str(folder)!r}, ignore_errors=True)
        open("kernel.py").close() if {then.startswith("return")} else None
        {then}
    return right(q, k, v)

attention.supports = {{"framework": "numpy", "dtypes": ["float64"]}}
"""
    (folder / "kernel.py").write_text(HEAD + code)
    assert main(["kernel.py:attention", "--property", ONE, "--cases", "40", "-n", "1", "-q"]) == 1
    told = capsys.readouterr()
    assert says in told.out and "Traceback" not in told.err and f"REFUTED  {ONE}" in told.out
    assert os.path.isdir(os.getcwd())


@pytest.mark.parametrize("ended, refuted", [([7, 8], 0), ([7, 7], 1)])
def test_what_the_system_ends_for_want_of_memory_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ended: list[int], refuted: int
) -> None:
    """A target's process goes first where others take all memory: it did nothing. One that ends itself did."""
    monkeypatch.setattr(limits, "_so_far", ended[0])
    monkeypatch.setattr(limits, "_excused", 0)
    monkeypatch.setattr(limits, "ended_for_memory", lambda: ended[1])
    once = f"""
been = {str(tmp_path / "been")!r}

def attention(q, k, v):
    if q.shape[0] > 3 and not os.path.exists(been):
        open(been, "x").close()
        os.kill(os.getpid(), signal.SIGKILL)
    return right(q, k, v)
"""
    report = searched(tmp_path, once)
    assert (tmp_path / "been").exists()
    assert len(report.findings) == refuted
