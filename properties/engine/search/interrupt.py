"""Ctrl-C that is not lost: Python drops an interruption that comes while a callback of its own runs, such as one of the collector."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_asked = False


@contextmanager
def listening() -> Iterator[None]:
    """Meanwhile an interruption is remembered, if it is the usual one; where it is ignored, as in the background, it stays so."""
    global _asked
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler:
        yield
        return
    _asked = False
    signal.signal(signal.SIGINT, _ask)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        _asked = False


def _ask(*_: Any) -> None:
    global _asked
    _asked = True
    raise KeyboardInterrupt


def check() -> None:
    """Raises KeyboardInterrupt if one was asked for and lost."""
    if _asked:
        raise KeyboardInterrupt
