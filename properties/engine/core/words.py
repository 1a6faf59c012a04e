"""Words that reports and findings share."""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib import metadata
from typing import Any


def ranges(numbers: Iterable[int], to: str = " to ", most: int = 6) -> str:
    """1, 3 to 5, 9."""
    runs: list[list[int]] = []
    for number in map(int, numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return ", ".join(to.join(map(str, run)) for run in runs[:most]) + (" …" if len(runs) > most else "")


def cases(count: int, width: int = 0) -> str:
    """1 case, 2 cases. In a column, both are equally wide."""
    return f"{count:{width},} case{'s' if count != 1 else ' ' if width else ''}"


def without_measured(text: str) -> str:
    """What was found out, but for numbers that were measured, which differ from machine to machine."""
    return re.sub(r",? off by [\d.e+-]+", "", text)


def without_variant(text: str) -> tuple[str, str]:
    """(what names a target, the variant behind its ``@``; "" if there is none). An ``@`` in the name of a file or of a folder begins none."""
    parts = text.split("@")
    for at in range(1, len(parts)):
        variant = "@".join(parts[at:])
        if not re.search(r"[/:)]|\.py$", variant):
            return "@".join(parts[:at]), variant
    return text, ""


LONGEST = 2**28  # bytes of a file that is read whole


def text_in(path: Any) -> str:
    """What a file of UTF-8 holds. Raises OSError, ValueError with a sentence for one without end, UnicodeDecodeError."""
    with open(path, "rb") as file:
        found = file.read(LONGEST + 1)
    if len(found) > LONGEST:
        raise ValueError(f"it is longer than {LONGEST >> 20} MiB")
    return found.decode()


def type_of(result: Any) -> str:
    """The type of what a call has returned; that of an async function is told to be that."""
    name = type(result).__name__
    return f"{name}, as an async function does" if name in ("coroutine", "async_generator") else name


def version() -> str:
    """That of the installed attncheck."""
    try:
        return metadata.version("attncheck")
    except metadata.PackageNotFoundError:
        return "(a clone)"
