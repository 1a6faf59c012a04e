"""Standard output, error and files as the command line needs them: they are there, they take every character, and their errors name them."""

from __future__ import annotations

import errno
import io
import json
import os
import sys
from typing import Any, Literal, TextIO

# What to do about an error of the system.
HINTS = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "make room, or give another place"),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "give a place with the rights for it"),
    errno.EFBIG: "allow larger files (ulimit -f)",
    errno.EISDIR: "give a file",
    errno.EINVAL: "give a plain file",
}


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


class _Named(io.FileIO):
    """A file whose errors name it, as those of ``open`` do."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            raise named(error, self.name) from None

    def truncate(self, size: int | None = None) -> int:
        try:
            return super().truncate(size)
        except OSError as error:
            raise named(error, self.name) from None


def opened(path: str, mode: Literal["w", "a"] = "w") -> TextIO:
    """A file for text; "a": what is in it stays. Raises OSError, which names the file, as all that is written to it later does."""
    return io.TextIOWrapper(io.BufferedWriter(_Named(path, mode)), encoding="utf-8", errors="backslashreplace")


def named(error: OSError, path: Any) -> OSError:
    """The error with the name of the file that it is about."""
    return OSError(error.errno, error.strerror, path)


def sentence(error: BaseException) -> str:
    """What an error says; of the system's, which file it is about, and what to do."""
    if not (isinstance(error, OSError) and error.strerror):
        return str(error)
    folder = os.path.dirname(str(error.filename or ""))
    hint = f"there is no folder {folder}" if folder and not os.path.isdir(folder) else HINTS.get(error.errno or 0)
    return f"{error.filename}: " * bool(error.filename) + error.strerror + f"; {hint}" * bool(hint)
