"""A kernel may kill the process. Then every case is tried in a process of its own first, so that there is a finding.

Processes are forked: where that is not possible (not on Linux, or on a GPU, whose state a fork does not inherit) a crash
stays a crash.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress

from ..contained import watch

CAN_FORK = sys.platform == "linux"
PATIENCE = 120  # seconds for one case; whoever takes longer may hang because of the fork, and is tried without it
PR_SET_PDEATHSIG = 1  # prctl(2)

_isolated = False
CAME_BACK = 77  # exit status of a fork in which a trial came to its end, rightly or wrongly


@contextmanager
def isolated(yes: bool = True) -> Iterator[None]:
    """Meanwhile every case is tried in a process of its own first."""
    global _isolated
    before, _isolated = _isolated, yes and CAN_FORK
    try:
        yield
    finally:
        _isolated = before


def killed_by(trial: Callable[[], object]) -> str:
    """What a call in it does to a process that does this; empty if that comes to its end, or if cases are not isolated."""
    if not _isolated:
        return ""
    status = forked(lambda: _quietly(trial), PATIENCE)
    if status in (CAME_BACK, -signal.SIGINT) or (status == -signal.SIGALRM and not watch.told_by_forks()):
        return ""
    return f"gave no answer in {watch.has_hung():.0f} s: it hangs" if status == -signal.SIGALRM else ended(status)


def stand_somewhere() -> None:
    """Leave a working directory that is no longer there, for an empty one: libraries need one."""
    try:
        os.getcwd()
    except FileNotFoundError:
        os.chdir(tempfile.mkdtemp(prefix="attncheck-"))


def ended(status: int) -> str:
    """What a call did that ended a process so, in the words that follow "the call"."""
    if status == -signal.SIGALRM:
        return "gave no answer in time: it hangs"
    return f"killed the process ({signal.Signals(-status).name})" if status < 0 else f"ended the process (exit status {status})"


def _quietly(trial: Callable[[], object]) -> int:
    try:
        trial()
    except BaseException:  # only death matters here
        return CAME_BACK
    return CAME_BACK


def dies_with_parent() -> None:
    """This process is killed when the one that started it ends, in whatever way; Linux alone."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def forked(run: Callable[[], int], seconds: int = 0, forwards: Iterable[signal.Signals] = ()) -> int:
    """The exit status of a fork of this process that runs a function; −n if signal n killed it. It dies with its parent.

    ``forwards``: signals that this process gets meanwhile are sent on to the fork, and so are interruptions if there are any.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if not pid:
        status = 1
        try:
            dies_with_parent()
            signal.alarm(seconds)
            status = run()
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 1
        except KeyboardInterrupt:
            status = 130
        finally:
            for stream in (sys.stdout, sys.stderr):
                with suppress(OSError, ValueError):  # a full disk, a reader that has gone
                    stream.flush()
            os._exit(status)
    before = {number: signal.signal(number, lambda got, _: os.kill(pid, got)) for number in forwards}
    try:
        while True:
            try:
                return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            except KeyboardInterrupt:  # the fork got it, too, and ends, unless this process alone was meant
                if forwards:
                    os.kill(pid, signal.SIGINT)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
