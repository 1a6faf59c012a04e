"""Standard output and error as the command line needs them: they are there, and they take every character."""

from __future__ import annotations

import io
import json
import os
import sys
from typing import Any, TextIO


def steady() -> None:
    """Give a stream that was closed by who started us somewhere to go; a character that an encoding lacks is written as its number."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115  it stays open
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def json_text(content: Any, file: TextIO) -> str:
    """JSON that the file can hold: characters as they are if its encoding has them, otherwise as escapes of JSON."""
    text = json.dumps(content, indent=1, ensure_ascii=False)
    try:
        text.encode(getattr(file, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return json.dumps(content, indent=1)
    return text
