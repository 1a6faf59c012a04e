"""Calls in this very process, which may hang: where another process waits for this one, the system ends it then.

A loop in C or a deadlock hears no exception; the alarm of a timer ends whatever does not come back.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from . import link

WAITED_FOR = "ATTNCHECK_WAITED_FOR"  # in the environment: workers that are started inherit it
_calls: list[float] = []  # seconds of the first ones
_hung: list[float] = []  # seconds that were waited for those that hung, in forks of this process
_answered: list[Callable[[], object]] = []  # to be done once the first calls have come back


def wait_for_me(answered: Callable[[], object] = lambda: None) -> None:
    """Another process waits for this one, and says so where an alarm ends it; ``answered`` is called when the first calls have come back."""
    os.environ[WAITED_FOR] = "1"
    _answered[:] = [answered]


def do_not_wait() -> None:
    """A call may take as long as it likes: somebody may look at it with a debugger."""
    os.environ.pop(WAITED_FOR, None)


def waited_for() -> bool:
    """Whether a call that hangs ends this process."""
    return WAITED_FOR in os.environ


def told_by_forks() -> bool:
    """Whether a fork that does not come back says something of the target: one of a process whose threads have worked may hang in any product."""
    return waited_for() and os.environ.get("OMP_NUM_THREADS") == "1"


def has_hung() -> float:
    """Note that a fork of this process hung in a call; the seconds that were waited for it."""
    seconds = patience()
    _hung.append(seconds)
    link.WAITED.append(seconds)
    return seconds


def patience(slow: bool = False) -> float:
    """Seconds for the next call; ``slow``: of what may be compiled in it."""
    if slow or (len(_calls) < link.LEARNING and not _hung):
        return link.FIRST
    return link.patience(max(_calls, default=0.0), bool(_hung))


@contextmanager
def in_time(slow: bool = False) -> Iterator[None]:
    """SIGALRM ends this process where what is done here takes too long, if another one waits for it."""
    if not waited_for():
        yield
        return
    began = time.monotonic()
    signal.setitimer(signal.ITIMER_REAL, patience(slow))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        if len(_calls) < link.LEARNING:
            _calls.append(time.monotonic() - began)
        elif _answered:
            _answered.pop()()


@contextmanager
def by_another_process() -> Iterator[None]:
    """What is done here waits for one that is ended if it takes too long: no alarm counts that time."""
    left, _ = signal.setitimer(signal.ITIMER_REAL, 0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, left)
