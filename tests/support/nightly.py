"""Parameters of a test of which the gate takes some, and the night all."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def some_by_night(values: Iterable[Any], kept: Collection[Any]) -> list[Any]:
    """The values as parameters of a test; all but those kept are left to the night."""
    return [
        value if value in kept else pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.nightly)
        for value in values
    ]
