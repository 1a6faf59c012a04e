"""attncheck itself, judged like its peers: every property, the default number of cases, not shrunk, up to the first finding.

The property that a mutant names is tried first, which only saves time: a whole run tries every property, and what a
property draws depends on its own name, the target's and the round, not on the properties before it. So whatever is
found here a whole run finds too, and whatever is not found here was put to every property.
"""

from __future__ import annotations

from impls.mutants import Mutant, Variant, forget
from properties import catalogue
from properties.engine.search.probe import make_target
from properties.engine.search.search import Plan, search


def reject(record: Mutant | Variant) -> str:
    """The property that refutes it and the case on which it does; empty if none of them does."""
    forget()
    target = make_target(f"mutants.{record.name}", record.function)
    killer = record.killed_by if isinstance(record, Mutant) else ""
    for prop in sorted(catalogue.select(), key=lambda each: each.name != killer):
        forget()
        outcome = search(target, prop, Plan(shrink=False))
        if outcome.finding:
            return f"{prop.name}, case {outcome.finding.first_at}"
    return ""
