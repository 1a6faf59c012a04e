"""A kernel may kill the process. Then every case is tried in a process of its own first, so that there is a finding.

Processes are forked: where that is not possible (not on Linux, or on a GPU, whose state a fork does not inherit) a crash
stays a crash.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

CAN_FORK = sys.platform == "linux"
PATIENCE = 120  # seconds for one case; whoever takes longer may hang because of the fork, and is tried without it
PR_SET_PDEATHSIG = 1  # prctl(2)

_isolated = False


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
    """The name of the signal that kills a process that does this; empty if none does, or if cases are not isolated."""
    if not _isolated:
        return ""
    signal_number = -min(0, forked(lambda: _quietly(trial), PATIENCE))
    return signal.Signals(signal_number).name if signal_number not in (0, signal.SIGALRM, signal.SIGINT) else ""


def _quietly(trial: Callable[[], object]) -> int:
    try:
        trial()
    except BaseException:  # only death matters here
        return 1
    return 0


def forked(run: Callable[[], int], seconds: int = 0) -> int:
    """The exit status of a fork of this process that runs a function; −n if signal n killed it. It dies with its parent."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if not pid:
        status = 1
        try:
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            signal.alarm(seconds)
            status = run()
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 1
        except KeyboardInterrupt:
            status = 130
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    while True:
        try:
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        except KeyboardInterrupt:  # the fork got it, too, and ends
            continue
