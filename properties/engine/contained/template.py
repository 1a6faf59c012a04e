"""A process that has imported what targets need, and no target: workers are forked from it, in some milliseconds each.

It is forked from the judge before that has called anything, so that no thread of a library is lost in a fork; it reaps what its workers
leave behind, and ends with the judge.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from . import wire
from .limits import PR_SET_CHILD_SUBREAPER, end_with_parent, prctl
from .worker import WORKSHOPS, serve

PRINTED = 2**20  # bytes that the workers of a run may print
GRACE = 2.0  # seconds for a worker that has said goodbye to end


class Template:
    """The judge's handle of it. ``knows``: the frameworks that it has imported.

    It is a new Python, not a fork, where the judge has threads that a fork would lose (``forks`` of a framework).
    """

    def __init__(self, knows: frozenset[str], forked: bool = True) -> None:
        self.knows = knows
        self.workers: set[int] = set()
        own, other = socket.socketpair()
        self.fds, fds = socket.socketpair()  # through which the files of a worker are handed
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        self.owner = os.getpid()
        self.pid = os.fork() if forked else _spawned(other, fds, knows)
        if not self.pid:
            try:
                _run(other, fds)
            finally:
                os._exit(0)
        other.close()
        fds.close()
        self.wire = wire.Wire(own)

    def start(self, link: socket.socket, arguments: int, answers: int) -> int:
        """The process number of a new worker that talks through a socket and sees two memories. Raises wire.Broken."""
        self.wire.send("new")
        socket.send_fds(self.fds, [b"x"], [link.fileno(), arguments, answers])
        pid = int(self.wire.receive(time.monotonic() + 60))
        self.workers.add(pid)
        return pid

    def end(self, pid: int, now: bool) -> int | None:
        """End a worker and all that it has started; its exit status, −n for a signal, None if it was ended here. Raises wire.Broken."""
        self.wire.send([pid, now])
        self.workers.discard(pid)
        status = self.wire.receive(time.monotonic() + 60)
        return status if isinstance(status, int) else None


def _spawned(link: socket.socket, files: socket.socket, knows: frozenset[str]) -> int:
    """The number of a process that has imported the frameworks, and what makes modules, anew."""
    modules = [__name__, *(shop.__module__ for shop in WORKSHOPS), *sorted(knows)]
    given = json.dumps([sys.path, modules, [link.fileno(), files.fileno()]])
    program = (
        "import importlib, json, socket, sys; path, modules, fds = json.loads(sys.argv[1]); sys.path[:] = path; "
        "template = [importlib.import_module(name) for name in modules][0]; template._run(*(socket.socket(fileno=fd) for fd in fds))"
    )
    command = [sys.executable, "-c", program, given]
    return subprocess.Popen(command, pass_fds=(link.fileno(), files.fileno()), start_new_session=True).pid


def _run(link: socket.socket, files: socket.socket) -> None:
    """The process itself."""
    with suppress(PermissionError):  # it leads a session of its own already
        os.setsid()
    end_with_parent()
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    gc.freeze()
    high = [os.dup(fd) for fd in (link.fileno(), files.fileno())]
    fds = [os.dup2(high[0], 3), os.dup2(high[1], 4)]
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.closerange(5, 65536)
    pump = _passing_on()
    sys.stdout = sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115  it stays open
    control, files = wire.Wire(socket.socket(fileno=fds[0])), socket.socket(fileno=fds[1])
    workers = {pump}
    while True:
        try:
            wanted = control.receive()
            if wanted == "new":
                _, given, _, _ = socket.recv_fds(files, 1, 3)
                pid = os.fork()
                if not pid:
                    os.closerange(3, 5)
                    serve(*given)
                workers.add(pid)
                for one in given:
                    os.close(one)
                control.send(pid)
            else:
                pid, now = wanted
                control.send(_ended(pid, now, workers))
        except wire.Broken:  # the judge has gone
            break
    for pid in workers - {pump}:
        _ended(pid, True, {pump})


def _passing_on() -> int:
    """What is printed from now on is no part of a report: another process passes it on to standard error, so much of it; its number."""
    reading, writing = os.pipe()
    pump = os.fork()
    if not pump:
        os.closerange(3, 5)
        os.close(writing)
        left = PRINTED
        while part := os.read(reading, 2**16):
            with suppress(OSError):  # nobody reads it
                os.write(2, part[: max(left, 0)])
                if left > 0 >= left - len(part):
                    os.write(2, b"\nattncheck: the target prints without end; no more of it is shown\n")
            left -= len(part)
        os._exit(0)
    for fd in (1, 2):
        os.dup2(writing, fd)
    os.close(reading)
    os.close(writing)
    return pump


def _ended(pid: int, now: bool, workers: set[int]) -> Any:
    status = None
    until = time.monotonic() + GRACE
    while not now and time.monotonic() < until:
        found, raw = os.waitpid(pid, os.WNOHANG)
        if found:
            status = os.waitstatus_to_exitcode(raw)
            break
        time.sleep(0.002)
    if status is None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(pid, 0)
    workers.discard(pid)
    until = time.monotonic() + GRACE
    while time.monotonic() < until:  # whoever forks while he is looked for is found the next time
        left = [p for p, parent, session, _ in processes() if session == pid or (parent == os.getpid() and p not in workers)]
        for stray in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(stray, signal.SIGKILL)
        for stray in left:
            with suppress(ChildProcessError):
                os.waitpid(stray, os.WNOHANG)
        if not left:
            break
        time.sleep(0.005)
    return status


def threads() -> int:
    """The number of threads of this process."""
    return len(os.listdir("/proc/self/task"))


def processes() -> list[tuple[int, int, int, int]]:
    """(process, parent, session, number of threads) of every process that can be seen."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdecimal():
            with suppress(OSError, ValueError, IndexError):
                fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
                if fields[0] != "Z":
                    found.append((int(entry), int(fields[1]), int(fields[3]), int(fields[17])))
    return found
