"""What the gate takes some of, and the night all: parameters of a test, and cases of a search."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from typing import Any

import pytest


def some_by_night(values: Iterable[Any], kept: Collection[Any]) -> list[Any]:
    """The values as parameters of a test; all but those kept are left to the night."""
    return [
        value if value in kept else pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.nightly)
        for value in values
    ]


def more_by_night(few: int, many: int) -> int:
    """How many cases a search has; ``pytest --nightly`` asks for many, of its workers, too."""
    return many if os.environ.get("ATTNCHECK_NIGHTLY") else few


def one_in(n: int, values: Iterable[Any]) -> list[Any]:
    """The values as parameters of a test; all but every n-th are left to the night."""
    values = list(values)
    return some_by_night(values, values[::n])
