"""Which sizes and types the cases of a run had: what lies beyond them was not tried, and nothing is known of it."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

NO_SIZES = ("seed",)  # numbers that say nothing of how large a case is


_FIELDS: dict[Any, tuple[str, ...]] = {}


def size_fields(kind: Any) -> tuple[str, ...]:
    """The fields of a case that are whole numbers from 0 or 1 on."""
    if kind not in _FIELDS:
        types = {f.name: str(f.type) for f in dataclasses.fields(kind)}
        whole = [name for name in kind.fields() if types[name] in ("int", "int | None") and name not in NO_SIZES]
        _FIELDS[kind] = tuple(name for name in whole if kind.fields()[name].least in (0, 1))
    return _FIELDS[kind]


@dataclass
class Ranges:
    """The least and the largest value of every size, and the number of cases of each dtype."""

    sizes: dict[str, tuple[int, int]] = field(default_factory=dict)
    dtypes: Counter[str] = field(default_factory=Counter)

    def note(self, case: Any, deciding: Collection[str]) -> None:
        """One more case of a target whose calls these fields decide."""
        self.dtypes[case.dtype] += 1
        for name in size_fields(type(case)):
            value = getattr(case, name)
            if value is not None and name in deciding:
                self._extend(name, value, value)

    def merge(self, other: Ranges) -> None:
        """The cases of others, too."""
        self.dtypes.update(other.dtypes)
        for name, (least, largest) in other.sizes.items():
            self._extend(name, least, largest)

    def _extend(self, name: str, least: int, largest: int) -> None:
        known = self.sizes.get(name)
        if known is None:
            self.sizes[name] = (least, largest)
        elif least < known[0] or largest > known[1]:
            self.sizes[name] = (min(least, known[0]), max(largest, known[1]))

    def text(self) -> str:
        """batch 0 to 5, keys 0 to 600; float64 in 20 cases."""
        sizes = ", ".join(f"{name} {least} to {most}" if most > least else f"{name} {least}" for name, (least, most) in self.sizes.items())
        types = ", ".join(f"{name} in {number:,}" for name, number in self.dtypes.items())
        return f"{sizes}; {types} case{'s' * (sum(self.dtypes.values()) != 1)}"
