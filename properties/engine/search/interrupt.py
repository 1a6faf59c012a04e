"""Ctrl-C, SIGTERM and SIGHUP that are not lost: Python drops an interruption that comes while a callback of its own runs, as of the collector."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

ENDING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))  # what asks a process to end
SAME = 1.0  # seconds within which a second signal of a terminal is the first, which that and the process that started this one have sent
_asked = 0  # the signal that asked for an end
_at = 0.0  # when
_ended = 0  # the same, of the last run


@contextmanager
def listening() -> Iterator[None]:
    """Meanwhile an interruption is remembered, if it is the usual one; where it is ignored, as in the background, it stays so.

    Who has a handler of his own keeps it. None can be set but in the main thread.
    """
    global _asked, _ended
    usual: dict[int, Any] = {signal.SIGINT: signal.default_int_handler, **dict.fromkeys(ENDING, signal.SIG_DFL)}
    here = threading.current_thread() is threading.main_thread()
    before = {number: handler for number, handler in usual.items() if here and signal.getsignal(number) in (handler, _again)}
    if not before:
        yield
        return
    _asked = 0
    for number in before:
        signal.signal(number, _ask)
    hook, sys.unraisablehook = sys.unraisablehook, _dropped
    try:
        yield
    finally:
        sys.unraisablehook = hook
        _ended = _asked
        for number, handler in before.items():  # the second SIGINT of one Ctrl-C may come between any two of these lines
            signal.signal(number, _again if number == _ended != signal.SIGTERM else handler)
        _asked = 0


def _again(*_: Any) -> None:
    """After an end by Ctrl-C: the second one that is the first must not interrupt what is cleaned up."""
    if time.monotonic() - _at >= SAME:
        raise KeyboardInterrupt


def _ask(number: int, *_: Any) -> None:
    global _asked, _at
    if number == _asked != signal.SIGTERM and time.monotonic() - _at < SAME:
        return
    _asked, _at = number, time.monotonic()
    raise KeyboardInterrupt


def _dropped(what: Any) -> None:
    """Of what Python drops, interruptions are remembered, and not printed."""
    if what.exc_type is not KeyboardInterrupt:
        sys.__unraisablehook__(what)


def status() -> int:
    """The exit status of a run that was interrupted: 130 after Ctrl-C, 143 after SIGTERM, 129 where the terminal was closed."""
    return 128 + (_asked or _ended or signal.SIGINT)


def asked() -> bool:
    """Whether an end was asked for in this run, or in the last one, if it is over: another error may be what became of that."""
    return bool(_asked or _ended)


def check() -> None:
    """Raises KeyboardInterrupt if one was asked for and lost."""
    if _asked:
        raise KeyboardInterrupt
