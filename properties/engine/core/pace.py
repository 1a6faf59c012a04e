"""How long a target takes to answer, while it is asked what it is: one that is slow is asked less."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

SECONDS, SLOW, MOST = 1.5, 0.05, 20.0  # for the answers of one that takes long for each; what is long; and for any


@dataclass
class Pace:
    """The calls of a target so far. A busy machine makes none slow, nor compiling."""

    calls: int = 0
    seconds: float = 0.0
    unasked: int = 0

    def over(self, compiles: bool) -> bool:
        """Whether no more is asked. ``compiles``: every new shape costs far more than a call."""
        return self.seconds > (SECONDS if self.seconds > SLOW * self.calls and not compiles else MOST)

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Meanwhile a call is made."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.calls, self.seconds = self.calls + 1, self.seconds + time.monotonic() - began

    def untried(self) -> dict[str, str]:
        """What is not tried because the target is too slow."""
        if not self.unasked:
            return {}
        return {"all of its conventions": f"a call takes {self.seconds / self.calls:.2g} s, too long to ask for them"}
