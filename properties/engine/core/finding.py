"""A finding: a property that does not hold, on the smallest case found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...exact.shown import Shown
from .declare import Property
from .trial import Violation


@dataclass(frozen=True, eq=False)
class Finding(Shown):
    """A property that does not hold, on the smallest case found."""

    prop: Property
    target: str
    case: Any
    violation: Violation
    first_at: int  # the case number at which it first showed
    shrink_seconds: float
    matters: tuple[str, ...] = ()  # fields of the case whose change makes the failure vanish
    indifferent: tuple[str, ...] = ()
    failing: tuple[Any, ...] = ()  # other cases on which it failed, as drawn
    address: str | None = ""  # that of the target
    alone: bool = True  # the case fails where the target has had no other calls, as far as that was tried
