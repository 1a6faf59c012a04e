"""Messages between two processes, with their length before them. Nothing that arrives is ever executed, or made an object of.

They are JSON, but for what the judge says to a target's process, which believes him: that is written as Python writes it, in a fifth of the time.
"""

from __future__ import annotations

import json
import marshal
import re
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

LARGEST = 2**23  # bytes of a message: arrays lie elsewhere
AT_ONCE = 2**16
SENDING = 10  # seconds for which a message may wait to be taken
SLICE = 0.25  # seconds for which the kernel of the system waits before the clock is looked at
AWAKE = 0.002  # seconds for which an idle core may look for a message again and again: to be woken costs 0.1 ms
LENGTH = struct.Struct("<I")
encode = json.JSONEncoder(separators=(",", ":")).encode


# Halves of characters, what moves a cursor, and what turns the direction of writing: as they are, or as JSON escapes them.
UNREADABLE = re.compile(r"\\u(d[89a-f]|00[01789]|20[26])|[\x7f-\x9f\u202a-\u202e\u2066-\u2069]", re.IGNORECASE)


class Broken(Exception):
    """The other side has gone, or sent what is no message."""


class Late(Exception):
    """No whole message came in time."""


class Wire:
    """One end of it. ``stranger``: nobody vouches for what comes, and of its characters there are none that no file could hold.

    ``believes``: it is the other end of a stranger's, and what comes is the judge's.
    """

    def __init__(
        self, end: socket.socket, lives: Callable[[], bool] = lambda: True, stranger: bool = False, believes: bool = False
    ) -> None:
        self.lives = lives  # whether there is still somebody who could send; asked when nothing comes
        self.stranger, self.believes = stranger, believes
        end.settimeout(None)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, int(SLICE * 1e6)))
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", SENDING, 0))
        self.end = end
        self.came = b""

    def send(self, message: Any) -> None:
        """Raises Broken if nobody is there, Late if nobody reads."""
        text = marshal.dumps(message) if self.stranger else encode(message).encode()
        try:
            self.end.sendall(LENGTH.pack(len(text)) + text)
        except BlockingIOError:
            raise Late from None
        except OSError as error:
            raise Broken(str(error)) from None

    def has_more(self) -> bool:
        """Whether something has come that was not received."""
        with suppress(OSError):  # nothing, or nobody there, which the next message will show
            return bool(self.came or self.end.recv(1, socket.MSG_DONTWAIT | socket.MSG_PEEK))
        return False

    def speaks(self, seconds: float) -> bool:
        """Whether something has come in so many seconds. Raises Broken."""
        with suppress(Late):
            self.came = self.came or self._more(time.monotonic() + seconds)
        return bool(self.came)

    def receive(self, until: float | None = None, awake: bool = False) -> Any:
        """The next message; ``until`` is a ``time.monotonic()``, ``awake``: without sleeping at first. Raises Late, and Broken."""
        came = self.came or (self._soon() if awake else b"") or self._more(until)
        while len(came) < 4:
            came += self._more(until)
        (length,) = LENGTH.unpack_from(came)
        if length > LARGEST:
            raise Broken(f"a message of {length:,} bytes")
        parts, got = [came], len(came)
        while got < length + 4:
            parts.append(self._more(until))
            got += len(parts[-1])
        whole = b"".join(parts) if len(parts) > 1 else came
        self.came = whole[length + 4 :]
        try:
            if self.believes:
                return marshal.loads(whole[4 : length + 4])
            text = str(whole[4 : length + 4], "utf-8")
            message = json.loads(text)
            return _readable(message) if self.stranger and UNREADABLE.search(text) else message
        except (ValueError, EOFError, TypeError, RecursionError):
            raise Broken("a message that is none") from None

    def _soon(self) -> bytes:
        """What comes before this process would be put to sleep, if anything does."""
        end = time.monotonic() + AWAKE
        while time.monotonic() < end:
            try:
                return self.end.recv(AT_ONCE, socket.MSG_DONTWAIT)
            except OSError:  # nothing yet, or nobody there, which ``_more`` says
                continue
        return b""

    def _more(self, until: float | None) -> bytes:
        while True:
            try:
                part = self.end.recv(AT_ONCE)
            except BlockingIOError:
                if until is not None and time.monotonic() > until:
                    raise Late from None
                if not self.lives():
                    raise Broken("nobody is there") from None
                continue
            except OSError as error:
                raise Broken(str(error)) from None
            if not part:
                raise Broken("the end")
            if until is not None and time.monotonic() > until + SLICE:  # it trickles in
                raise Late
            return part

    def close(self) -> None:
        self.end.close()


def _readable(value: Any) -> Any:
    """The same with another sign for halves of characters, and for all that cannot be printed, but for the ends of lines."""
    if isinstance(value, str):
        return "".join(
            c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in value.encode(errors="replace").decode()
        )
    if isinstance(value, dict):
        return {_readable(name): _readable(item) for name, item in value.items()}
    return [_readable(item) for item in value] if isinstance(value, list) else value
