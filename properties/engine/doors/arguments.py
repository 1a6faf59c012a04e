"""What the arguments of a command line may be. Each raises ArgumentTypeError with one sentence."""

from __future__ import annotations

import argparse
import os
from typing import NoReturn

YEAR = 366 * 24 * 3600.0


class Parser(argparse.ArgumentParser):
    """Says where a value is missing that one with a dash before it is taken for an option."""

    def error(self, message: str) -> NoReturn:
        super().error(message + ", which does not begin with -" * message.endswith("expected one argument"))


def integer(text: str) -> int:
    """A whole number."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None


def count(text: str) -> int:
    """A whole number from 1 on."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 on")
    return int(text)


def processes(text: str) -> int:
    """A number of processes that a machine can bear."""
    number, most = count(text), max(16, 4 * (os.cpu_count() or 1))
    if number > most:
        raise argparse.ArgumentTypeError(f"{text} processes are too many for {os.cpu_count()} cores; give {most} at most")
    return number


def given(text: str) -> str:
    """Anything but nothing."""
    if not text:
        raise argparse.ArgumentTypeError("it is empty; leave the option out, or give it a value")
    return text


def location(text: str) -> str:
    """A file, a folder, or ``-``."""
    if not text:
        raise argparse.ArgumentTypeError("it is empty; give a file, a folder, or -")
    return text


def duration(text: str) -> float:
    """Seconds from ``90``, ``90s``, ``30m`` or ``2h``; a year at most."""
    unit = {"s": 1.0, "m": 60.0, "h": 3600.0}.get(text[-1:])
    try:
        seconds = float(text[:-1]) * unit if unit else float(text)
    except ValueError:
        seconds = -1.0
    if seconds > YEAR:
        raise argparse.ArgumentTypeError(f"{text!r} is longer than a year")
    if not seconds > 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration such as 90s, 30m or 2h")
    return seconds
