"""Failing cases of earlier runs, kept as text in a database of Hypothesis: a case is read back whatever the tables became.

Hypothesis itself keeps nothing of a search that is seeded, and ours are, so that work can be divided.
"""

from __future__ import annotations

from collections.abc import Callable

from hypothesis.database import ExampleDatabase

from ..cases.case import Case
from ..core.declare import Property
from ..core.target import Target


class Saved:
    """The saved cases of one property, one target, and what is declared of it.

    The declaration belongs to the key: a case is tried again only where it would still be drawn.
    """

    def __init__(self, database: ExampleDatabase | None, target: Target, prop: Property) -> None:
        self.database, self.kind = database, prop.topic.case
        facts = (target.supports, target.parameters, target.dtypes)
        self.key = "\0".join(("attncheck", prop.name, target.name, repr(facts))).encode(errors="surrogateescape")

    def first(self, wanted: Callable[[Case], bool], refutes: Callable[[Case], bool]) -> Case | None:
        """A wanted case that still fails; those that are tried and do not are forgotten."""
        if self.database is None:
            return None
        for text in sorted(self.database.fetch(self.key)):
            try:
                case = self.kind.parse(text.decode())
            except ValueError:  # written by another version
                self.database.delete(self.key, text)
                continue
            if wanted(case):
                if refutes(case):
                    return case
                self.database.delete(self.key, text)
        return None

    def keep(self, case: Case) -> None:
        """Save a failing case."""
        if self.database is not None:
            self.database.save(self.key, repr(case).encode())
