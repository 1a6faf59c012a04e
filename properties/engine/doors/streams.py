"""Standard output, error and files as the command line needs them: they are there, they take every character, and their errors name them."""

from __future__ import annotations

import errno
import io
import json
import os
import stat
import sys
from contextlib import suppress
from typing import Any, TextIO

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


def told(line: str, stream: TextIO, alone: bool = True) -> bool:
    """Print a line at once. Where its place takes no more, it goes to standard error, and so does all that follows: False.

    ``alone``: nothing else is written; then the run ends with who reads it. Raises BrokenPipeError.
    """
    try:
        print(line, file=stream, flush=True)
    except OSError as error:
        if alone and isinstance(error, BrokenPipeError):
            raise
        why = f"attncheck: standard output cannot be written: {sentence(error)}; the rest is told here"
        print(why, line, sep="\n", file=sys.stderr, flush=True)
        with open(os.devnull, "w") as nowhere:  # the stream still holds the line
            os.dup2(nowhere.fileno(), stream.fileno())
            stream.flush()
        os.dup2(sys.stderr.fileno(), stream.fileno())
        return False
    return True


def json_text(content: Any, file: TextIO | Output) -> str:
    """JSON that the file can hold: characters as they are if its encoding has them, otherwise as escapes of JSON."""
    text = json.dumps(content, indent=1, ensure_ascii=False)
    try:
        text.encode(getattr(file, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return json.dumps(content, indent=1)
    return text


class Output:
    """A file that can be written, and keeps what it holds until there is something to write; ``adds``: what it holds stays. Raises OSError."""

    def __init__(self, path: str, adds: bool = False) -> None:
        shared = next((stream for stream in (1, 2) if _is(stream, path)), None)  # where standard output goes, at whose end it is written
        self.shared = shared is not None
        self.path, self.keeps, self.new = path, adds or self.shared, not os.path.lexists(path)
        place: Any = path if shared is None else os.dup(shared)
        self.file = open(place, "a" if shared is None else "w", encoding="utf-8", errors="backslashreplace")  # noqa: SIM115  ``close`` does

    def write(self, text: str) -> None:
        """In the place of what it held at first, then after what was written. Raises OSError with its name, and is closed then."""
        try:
            if not self.keeps and stat.S_ISREG(os.fstat(self.file.fileno()).st_mode):
                self.file.truncate(0)
            self.keeps, self.new = True, False
            if self.shared:
                sys.stdout.flush()
                sys.stderr.flush()
            self.file.write(text)
            self.file.flush()
        except OSError as error:
            with suppress(OSError):
                self.file.close()
            raise named(error, self.path) from None

    def close(self) -> None:
        """Nothing is left of one that is new, and was not written."""
        self.file.close()
        if self.new:
            with suppress(OSError):
                os.unlink(self.path)


def _is(stream: int, path: str) -> bool:
    """Whether a stream of this process goes to a file."""
    with suppress(OSError):
        return os.path.samestat(os.fstat(stream), os.stat(path))
    return False


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
