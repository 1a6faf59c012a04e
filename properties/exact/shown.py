"""How a value shows itself in a notebook. Whoever makes pages says how; a value knows no page."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_HOW: dict[type, Callable[[Any], str | None]] = {}


def show_as(kind: type, how: Callable[[Any], str | None]) -> None:
    """Values of this kind show themselves like this from now on: HTML, or None where it cannot be made."""
    _HOW[kind] = how


class Shown:
    """What a notebook asks for its HTML."""

    def _repr_html_(self) -> str | None:
        """HTML, or None: then a notebook prints the value."""
        how = next((_HOW[kind] for kind in type(self).__mro__ if kind in _HOW), None)
        return how(self) if how else None
