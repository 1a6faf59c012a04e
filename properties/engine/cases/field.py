"""A field of a case, told once: its default, what is drawn for it and why, what else it may be, and when it has a part."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Field:
    """What the checker knows of one field of a case."""

    why: str  # the mistake or the convention that needs it
    unusual: Mapping[Any, str]  # values that look arbitrary → the reason, or the bug, for which they are drawn
    drawn: tuple[Any, ...]  # the table, from the simplest to the strangest; one that stands several times is drawn so much more often
    varied: tuple[Any, ...]  # other values with which a failure is tried again, to see whether the field matters
    least: float | None  # the smallest value that means anything
    choices: tuple[Any, ...]  # all values that mean anything; (): no list
    items: tuple[str, ...]  # the words that a field with several may hold
    needs: str  # the parameter of the target without which the field has no part
    says: str  # the words of the report where it is not the default, with {} for the value

    def reason(self, value: Any) -> str:
        """Why such a value is drawn."""
        unusual = next((why for at, why in self.unusual.items() if value == at or (isinstance(at, tuple) and value in at)), "")
        return f"{self.why}; {unusual}" if unusual else self.why


def field(
    default: Any,
    *,
    why: str = "",
    unusual: Mapping[Any, str] | None = None,
    drawn: tuple[Any, ...] = (),
    varied: tuple[Any, ...] = (),
    least: float | None = None,
    choices: tuple[Any, ...] = (),
    items: tuple[str, ...] = (),
    needs: str = "",
    says: str = "",
) -> Any:
    """A field of a dataclass of cases. Raises ValueError if it has no reason."""
    if not why.strip():
        raise ValueError("a field of a case has a reason: field(default, why=…) names the mistake or convention that needs it")
    known = Field(why, unusual or {}, drawn, varied, least, choices, items, needs, says)
    return dataclasses.field(default=default, metadata={"field": known})
