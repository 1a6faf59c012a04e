"""What is said of a finding beyond its numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .picture import Picture


@dataclass(frozen=True)
class Reading:
    """A known mistake that answers as a target does where that is wrong."""

    name: str  # of the mutant
    mistake: str  # in one line
    wrong: int = 0  # cases, of those on which the target is right, on which the mistake is not
    tried: int = 0
    example: tuple[str, Any] | None = None  # one of them: the name of its property, and the case
    whole: bool = True  # it answers alike on larger cases, too, where the target fails
    explains: int = 1  # findings with this reading

    @property
    def sure(self) -> bool:
        """Whether the mistake is as wrong as the target wherever that was seen."""
        return self.whole and not self.wrong


@dataclass(frozen=True)
class Explanation:
    """Which known mistakes behave like a target, what was measured, and what there is to see."""

    readings: tuple[Reading, ...] = ()
    looser: str | None = None  # the looser kind of arithmetic under which every answer would be right
    measured: tuple[Any, str] | None = None  # a case like the smallest, and in a line what is wrong on it
    pictures: tuple[Picture, ...] = ()  # what came out beside what should have
