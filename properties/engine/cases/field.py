"""A field of a case, declared in one place: its default, what is drawn and why, what else it may be, when it has a part."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

# Reasons of weights that several contracts share.
FEW = "two or three show what is exchanged, and small calls leave time for more of them"
SHORT = "small calls are quick, and most mistakes of meaning show in them; sizes that are alike are met"
EDGE = "mistakes of tiles show on either side of an edge; the other sizes of the table are there to shrink to"
OFF = "left out: one mistake at a time, and none that hides another"
PLAIN_LAYOUT = "most properties are not about memory, and views are slower to make and to read"
PLAIN_NUMBERS = "mistakes of meaning show in any numbers, and are read most easily in these"
AS_DRAWN = "numbers as their regime has them: one extreme at a time"
SAME_WIDTH = "as wide as keys, as in most models"
UNGROUPED = "as many heads of keys as of queries: other mistakes are not hidden by those of groups"


@dataclass(frozen=True)
class Field:
    """What the checker knows of one field of a case."""

    why: str  # the mistake or the convention that needs it
    unusual: Mapping[Any, str]  # values that look arbitrary → the reason, or the bug, for which they are drawn
    often: Mapping[Any, str]  # values that stand in a table several times → why they are drawn more often than others
    drawn: tuple[Any, ...]  # the table, from the simplest to the strangest; one that stands several times is drawn so much more often
    varied: tuple[Any, ...]  # other values with which a failure is tried again, to see whether the field matters
    least: float | None  # the smallest value that means anything
    choices: tuple[Any, ...]  # all values that mean anything; (): no list
    items: tuple[str, ...]  # the words that a field with several may hold
    needs: str  # the parameter of the target without which the field has no part
    says: str  # the words of the report where it is not the default, with {} for the value

    def reason(self, value: Any) -> str:
        """Why such a value is drawn, and why often if it is."""
        unusual = [_of(self.unusual, part) for part in (dict.fromkeys(value) if self.items and isinstance(value, tuple) else (value,))]
        often = _of(self.often, value)
        return "; ".join(filter(None, (self.why, *unusual, often and f"drawn often: {often}")))


def _of(reasons: Mapping[Any, str], value: Any) -> str:
    return next((why for at, why in reasons.items() if value == at or (isinstance(at, tuple) and value in at)), "")


def documented(functions: Mapping[str, Callable[..., Any]]) -> dict[str, str]:
    """The docstrings of functions in a table, as reasons: what such a value is, and which mistake it shows."""
    said = {name: " ".join((function.__doc__ or "").split()).removesuffix(".") for name, function in functions.items()}
    return {name: text[:1].lower() + text[1:] for name, text in said.items()}


def field(
    default: Any,
    *,
    why: str = "",
    unusual: Mapping[Any, str] | None = None,
    often: Mapping[Any, str] | None = None,
    drawn: tuple[Any, ...] = (),
    varied: tuple[Any, ...] = (),
    least: float | None = None,
    choices: tuple[Any, ...] = (),
    items: tuple[str, ...] = (),
    needs: str = "",
    says: str = "",
) -> Any:
    """A field of a dataclass of cases. Raises ValueError if it has no reason."""
    if not isinstance(why, str) or not why.strip():
        raise ValueError("a field of a case has a reason: field(default, why=…) names the mistake or convention that needs it")
    known = Field(why, unusual or {}, often or {}, drawn, varied, least, choices, items, needs, says)
    return dataclasses.field(default=default, metadata={"field": known})
