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

from ..frameworks import framework
from . import wire
from .apart import FILTER, NAMESPACES, NOTHING, TOLD, able_to_filter, in_namespaces
from .counted import processes
from .limits import PR_SET_CHILD_SUBREAPER, PR_SET_DUMPABLE, end_with_parent, prctl
from .worker import WORKSHOPS, serve
from .written import make_caches

PRINTED = 2**12  # bytes of what the workers of a run print that are shown
HIDDEN: list[str] = []  # files and folders that workers do not see, where that can be done: what the run writes down
HELD: list[str] = []  # files and folders that workers may only read, wherever they lie: who else is judged
ANSWERED = 60.0  # seconds in which a worker is started, or ended
STARTED: list[subprocess.Popen[bytes]] = []  # new Pythons of this process: Python warns of one that runs on and is held by nobody
AT_GITHUB = os.environ.get("GITHUB_ACTIONS") == "true"
GRACE = 2.0  # seconds for a worker that has said goodbye to end


class Template:
    """The judge's handle of it. ``knows``: the frameworks that it has imported. The number of a worker is that of the first process of its
    namespaces, if there are such: they end together.

    It is a new Python, not a fork, where the judge has threads that a fork would lose (``forks`` of a framework).
    """

    def __init__(self, knows: frozenset[str], forked: bool = True) -> None:
        self.knows, self.forked = knows, forked
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
        self.kept = NOTHING  # what keeps its workers apart from all else

    def start(self, link: socket.socket, arguments: int, answers: int, device: str = "cpu") -> int:
        """The process number of a new worker that talks through a socket and sees two memories, and a device. Raises wire.Broken, wire.Late."""
        make_caches(device)
        self.wire.send(["new", HIDDEN, HELD, device])
        socket.send_fds(self.fds, [b"x"], [link.fileno(), arguments, answers])
        pid, self.kept = self.wire.receive(time.monotonic() + ANSWERED)
        prctl(PR_SET_DUMPABLE, int(self.kept == NAMESPACES))  # nobody may look into this process who could
        self.workers.add(pid)
        return int(pid)

    def end(self, pid: int, now: bool) -> int | str | None:
        """End a worker and all that it has started; its exit status, −n for a signal, or what else ended it; None if it was ended here.

        Raises wire.Broken.
        """
        self.wire.send([pid, now])
        self.workers.discard(pid)
        status = self.wire.receive(time.monotonic() + ANSWERED)
        return status if isinstance(status, int | str) else None

    def abandon(self) -> None:
        """End it, where it does not answer any more; its workers end with it."""
        self.wire.close()
        self.fds.close()
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(self.pid, 0)

    def __del__(self) -> None:
        for end in (getattr(self, "wire", None), getattr(self, "fds", None)):
            if end is not None:
                end.close()


def hide(place: str | os.PathLike[str]) -> None:
    """No worker that is started from now on sees what is in this file or folder, where that can be done."""
    if (path := os.path.abspath(place)) not in HIDDEN:
        HIDDEN.append(path)


def hold(place: str | os.PathLike[str]) -> None:
    """No worker that is started from now on changes this file or folder, wherever it lies, where that can be done."""
    if (path := os.path.abspath(place)) not in HELD:
        HELD.append(path)


def kept_from_targets() -> tuple[list[str], list[str]]:
    """What no worker sees, and what none changes, so far."""
    return HIDDEN, HELD


def _spawned(link: socket.socket, files: socket.socket, knows: frozenset[str]) -> int:
    """The number of a process that has imported the frameworks, and what makes modules, anew."""
    late = [late for name in knows for late in framework(name).late if late in sys.modules]
    modules = [__name__, *(shop.__module__ for shop in WORKSHOPS), *sorted(knows), *late]
    given = json.dumps([sys.path, modules, [link.fileno(), files.fileno()]])
    program = (
        "import importlib, json, socket, sys; path, modules, fds = json.loads(sys.argv[1]); sys.path[:] = path; "
        "template = [importlib.import_module(name) for name in modules][0]; template._run(*(socket.socket(fileno=fd) for fd in fds))"
    )
    command = [sys.executable, "-c", program, given]
    STARTED.append(subprocess.Popen(command, pass_fds=(link.fileno(), files.fileno()), start_new_session=True))
    return STARTED[-1].pid


def _run(link: socket.socket, files: socket.socket) -> None:
    """The process itself."""
    with suppress(PermissionError):  # it leads a session of its own already
        os.setsid()
    end_with_parent(signal.SIGTERM)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    os.chdir(os.path.abspath(os.sep))  # where the judge is may be deleted one day
    gc.freeze()
    high = [os.dup(fd) for fd in (link.fileno(), files.fileno())]
    fds = [os.dup2(high[0], 3), os.dup2(high[1], 4)]
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.closerange(5, 65536)
    pump = _passing_on()
    sys.stdout = sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115  it stays open
    _Nursery(wire.Wire(socket.socket(fileno=fds[0])), socket.socket(fileno=fds[1]), pump).run()


class _Nursery:
    """The workers of a template, in its own process."""

    def __init__(self, control: wire.Wire, files: socket.socket, pump: int) -> None:
        self.control, self.files, self.pump = control, files, pump
        self.workers: dict[int, socket.socket | None] = {}  # process → what tells its status, if it is in namespaces of its own
        self.kept = NAMESPACES

    def run(self) -> None:
        """Start and end workers until the judge has gone."""
        signal.signal(signal.SIGTERM, _gone)
        while True:
            try:
                wanted = self.control.receive()
                if wanted[0] == "new":
                    _, given, _, _ = socket.recv_fds(self.files, 1, 3)
                    pid = self.start(given, *wanted[1:])
                    for one in given:
                        os.close(one)
                    self.control.send([pid, self.kept])
                else:
                    self.control.send(self.end(*wanted))
            except wire.Broken:  # the judge has gone
                break
        for _ in range(2):  # it has come already, perhaps, or comes just now; Python complains of one that nobody handles
            with suppress(wire.Broken):
                signal.signal(signal.SIGTERM, lambda *_: None)
        for pid in list(self.workers):
            self.end(pid, True)
        for fd in (1, 2):  # what was printed is passed on to its end
            os.close(fd)
        _waited(self.pump, GRACE)

    def start(self, given: list[int], hidden: list[str], held: list[str], device: str) -> int:
        """A new worker, kept apart as well as it can be."""

        def work() -> None:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            for fd, following in zip([2, *sorted(given)], [*sorted(given), 65536], strict=True):
                os.closerange(fd + 1, following)  # what belongs to other workers, or to this process
            serve(given[0], given[1], given[2], self.kept == FILTER)

        if self.kept == NAMESPACES:
            if made := in_namespaces(work, hidden, held, device):
                self.workers[made[0]] = made[1]
                return made[0]
            self.kept = FILTER if able_to_filter() else NOTHING
            prctl(PR_SET_DUMPABLE, 0)  # a worker is of the same user
        pid = os.fork()
        if not pid:
            prctl(PR_SET_DUMPABLE, 1)
            work()
        self.workers[pid] = None
        return pid

    def end(self, pid: int, now: bool) -> int | str | None:
        """End a worker and all that it has started; its exit status, or what else ended it; None if it was ended here."""
        status = None if now else _waited(pid, GRACE)
        if status is None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)
        teller = self.workers.pop(pid, None)
        if teller is None:
            self.end_strays(pid)
            return status
        with teller, suppress(OSError, ValueError):
            told = teller.recv(TOLD, socket.MSG_DONTWAIT).decode()
            return int(told) if told.removeprefix("-").isdecimal() else told or None
        return None

    def end_strays(self, session: int) -> None:
        """End what a worker has left that had no namespaces: in its session, or left to this process by what has ended."""
        until = time.monotonic() + GRACE
        mine = {self.pump, *self.workers}
        while time.monotonic() < until:  # whoever forks while he is looked for is found the next time
            left = [p for p, parent, of, _ in processes() if of == session or (parent == os.getpid() and p not in mine)]
            for stray in left:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(stray, signal.SIGKILL)
            for stray in left:
                with suppress(ChildProcessError):
                    os.waitpid(stray, os.WNOHANG)
            if not left:
                break
            time.sleep(0.005)


def _passing_on() -> int:
    """What is printed from now on is no part of a report: another process passes it on to standard error, so much of it; its number."""
    reading, writing = os.pipe()
    pump = os.fork()
    if not pump:
        end_with_parent()
        os.closerange(3, 5)
        os.close(writing)
        left, rest = PRINTED, b""
        while part := os.read(reading, 2**16):
            if AT_GITHUB:
                part, rest = _no_commands(rest + part)
            with suppress(OSError):  # nobody reads it
                os.write(2, part[: max(left, 0)])
                if left > 0 >= left - len(part):
                    os.write(2, b"\nattncheck: the target prints more; it is not shown (--in-process shows all)\n")
            left -= len(part)
        if rest:
            os.write(2, _no_commands(rest + b"\n")[0][: max(left, 0)])
        os._exit(0)
    for fd in (1, 2):
        os.dup2(writing, fd)
    os.close(reading)
    os.close(writing)
    return pump


def _no_commands(printed: bytes) -> tuple[bytes, bytes]:
    """Whole lines in which GitHub reads no commands, and the rest, of which no line is whole yet."""
    *lines, rest = printed.split(b"\n")
    if len(rest) > 2**16:
        lines, rest = [*lines, rest], b""
    return b"".join(b"| " + line.replace(b"##[", b"## [") + b"\n" for line in lines), rest


def _gone(*_: object) -> None:
    raise wire.Broken


def _waited(pid: int, seconds: float) -> int | None:
    """The exit status of a child that ends in this time; None if it does not."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        found, raw = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(raw)
        time.sleep(0.002)
    return None
