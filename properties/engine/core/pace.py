"""How long a target takes to answer, while it is asked what it is: one that is slow is asked less."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ..contained.link import NoMoreCalls

# For the answers of one that takes long for each; what is long; and for those of any other, on a busy machine, too.
SECONDS, SLOW, MOST = 6.0, 0.05, 20.0
STRANGE = 24  # so many calls of which no array has come back are enough, or that raised at where the arrays lie, or one of these:
HOPELESS = ("NameError", "ImportError", "ModuleNotFoundError", "SystemExit")
GPU = re.compile(
    r"\bcuda\b|is_cuda|\bgpus?\b|nvidia|active drivers|cpu tensor\?", re.IGNORECASE
)  # as PyTorch, Triton and asserts in kernels say it


class OtherForm(TypeError):
    """Something else has come back of a call than what was asked for."""


class NoArray(OtherForm):
    """Something else has come back of a call than an array, or several."""


def asks_for_gpu(words: str) -> bool:
    """Whether an error is about where arrays lie: a kernel for GPUs alone."""
    return GPU.search(words) is not None


_LATE = math.inf  # the time.monotonic() after which a case is not worth more work of the checker's own


@contextmanager
def late_from(until: float | None) -> Iterator[None]:
    """Meanwhile ``is_late`` says whether that time is over; None: never."""
    global _LATE
    before, _LATE = _LATE, math.inf if until is None else until
    try:
        yield
    finally:
        _LATE = before


def is_late() -> bool:
    """Whether the time for a case is over."""
    return time.monotonic() > _LATE


@dataclass
class Pace:
    """The calls of a target so far. A busy machine makes none slow, nor compiling, nor one call that takes long, as a first one that imports."""

    calls: int = 0
    seconds: float = 0.0
    longest: float = 0.0
    shortest: float = math.inf
    unasked: int = 0
    undefined: str = ""  # what it raised of a name that is not defined, which no other call mends
    strange: int = 0  # calls one after the other of which something else came back than arrays, which no other call mends
    until: float = math.inf  # time.monotonic() after which it is not called

    @contextmanager
    def ending(self, until: float) -> Iterator[None]:
        """Meanwhile a call after that time raises NoMoreCalls."""
        before, self.until = self.until, min(self.until, until)
        try:
            yield
        finally:
            self.until = before

    def check(self) -> None:
        """Raises NoMoreCalls if the time for calls is over."""
        if time.monotonic() > self.until:
            raise NoMoreCalls

    def note(self, error: BaseException, words: str) -> None:
        """What a call has raised."""
        kind = type(error).__name__  # of another process, too
        if kind in ("NameError", "UnboundLocalError"):
            self.undefined = words
        self.strange = self.strange + 1 if isinstance(error, NoArray) or kind in HOPELESS or asks_for_gpu(words) else 0

    def over(self, compiles: bool) -> bool:
        """Whether no more is asked. ``compiles``: every new shape costs far more than a call."""
        if self.strange >= STRANGE:
            return True
        slow = self.seconds - self.longest > SLOW * (self.calls - 1)
        return self.seconds > (SECONDS if slow and not compiles else MOST)

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Meanwhile a call is made."""
        began = time.monotonic()
        try:
            yield
        finally:
            took = time.monotonic() - began
            self.calls, self.seconds = self.calls + 1, self.seconds + took
            self.longest, self.shortest = max(self.longest, took), min(self.shortest, took)

    def untried(self) -> dict[str, str]:
        """What is not tried because the target is too slow."""
        if not self.unasked:
            return {}
        if self.strange >= STRANGE:
            return {"all of its conventions": f"no array has come back of {STRANGE} calls one after the other"}
        each = self.seconds / self.calls
        why = f"a call takes {each:.2g} s, too long to ask for them" if each > SLOW else f"{self.calls:,} calls told too little"
        return {"all of its conventions": why}

    def reasons(self) -> list[str]:
        """Why nothing was found out of it, as far as its calls have shown."""
        return [*self.untried().values(), *([f"one call raised {self.undefined}"] if self.undefined else [])]
