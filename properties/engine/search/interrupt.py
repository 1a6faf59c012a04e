"""Ctrl-C and SIGTERM that are not lost: Python drops an interruption that comes while a callback of its own runs, as of the collector."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_asked = 0  # the signal that asked for an end
_ended = 0  # the same, of the last run


@contextmanager
def listening() -> Iterator[None]:
    """Meanwhile an interruption is remembered, if it is the usual one; where it is ignored, as in the background, it stays so."""
    global _asked, _ended
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler:
        yield
        return
    _asked = 0
    signal.signal(signal.SIGINT, _ask)
    before_term = signal.getsignal(signal.SIGTERM)
    if before_term is signal.SIG_DFL:  # who has a handler of his own keeps it
        signal.signal(signal.SIGTERM, _ask)
    hook, sys.unraisablehook = sys.unraisablehook, _dropped
    try:
        yield
    finally:
        sys.unraisablehook = hook
        _ended, _asked = _asked, 0
        signal.signal(signal.SIGINT, before)
        if before_term is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, before_term)


def _ask(number: int, *_: Any) -> None:
    global _asked
    _asked = number
    raise KeyboardInterrupt


def _dropped(what: Any) -> None:
    """Of what Python drops, interruptions are remembered, and not printed."""
    if what.exc_type is not KeyboardInterrupt:
        sys.__unraisablehook__(what)


def status() -> int:
    """The exit status of a run that was interrupted: 130 after Ctrl-C, 143 after SIGTERM."""
    return 128 + (_asked or _ended or signal.SIGINT)


def check() -> None:
    """Raises KeyboardInterrupt if one was asked for and lost."""
    if _asked:
        raise KeyboardInterrupt
