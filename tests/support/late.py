"""Targets that are made when they are looked at: what is asked in a first contact takes longer than all else that is imported."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from properties.engine.core.target import Target
from properties.engine.search.probe import make_target


class Late(Mapping[str, Target]):
    """Targets by name, of callables by name."""

    def __init__(self, callables: Mapping[str, Callable[..., Any]]) -> None:
        self.callables = callables
        self.made: dict[str, Target] = {}

    def __getitem__(self, name: str) -> Target:
        if name not in self.made:
            self.made[name] = make_target(name, self.callables[name])
        return self.made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.callables)

    def __contains__(self, name: object) -> bool:
        return name in self.callables

    def __len__(self) -> int:
        return len(self.callables)
