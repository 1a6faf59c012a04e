"""What a search draws that refutes nothing, and what must be among it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from random import Random
from typing import Any

from hypothesis import HealthCheck, Phase, find, settings
from hypothesis.errors import NoSuchExample

from properties.attention.case import Case
from properties.catalogue import PROPERTIES
from properties.engine.core.target import Target
from properties.engine.search.search import cases

ROUNDS = 5


def drawn(strategy: Any, seed: int, count: int) -> list[Any]:
    """So many values, as a search with that seed draws them."""
    seen: list[Any] = []
    quiet = settings(max_examples=count, database=None, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    with suppress(NoSuchExample):
        find(strategy, lambda value: bool(seen.append(value)), settings=quiet, random=Random(seed))  # type: ignore[func-returns-value]
    return seen


def cases_of(target: Target, prop: str, rounds: int = ROUNDS, count: int = 500) -> list[Case]:
    """The cases that a search draws that refutes nothing, ``count`` a round."""
    return [case for number in range(rounds) for case in drawn(cases(target, PROPERTIES[prop]), number, count)]


def asks(expected: Iterable[str], found: Counter[str], hits: int = 1) -> None:
    """Every fact at least so often; all that are missing are named."""
    missing = {name: found[name] for name in expected if found[name] < hits}
    assert not missing, f"fewer than {hits} hits: {missing}"
