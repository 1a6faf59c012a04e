"""What a search draws that refutes nothing."""

from __future__ import annotations

from contextlib import suppress
from random import Random
from typing import Any

from hypothesis import HealthCheck, Phase, find, settings
from hypothesis.errors import NoSuchExample


def drawn(strategy: Any, seed: int, count: int) -> list[Any]:
    """So many values, as a search with that seed draws them."""
    seen: list[Any] = []
    quiet = settings(max_examples=count, database=None, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    with suppress(NoSuchExample):
        find(strategy, lambda value: bool(seen.append(value)), settings=quiet, random=Random(seed))  # type: ignore[func-returns-value]
    return seen
