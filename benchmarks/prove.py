"""The proof that a property needs: what it kills, what it lets live, and how much its cases tell.

    python -m benchmarks.prove future_tokens_are_ignored            # 12 cases a target; some minutes of one core
    python -m benchmarks.prove future_tokens_are_ignored --cases 40

kills     mutants that it refutes: those that name it within the default budget, the others within ten cases
first     of them, those that no property refutes sooner, by ``kill_table.json``; a mutant that names it and is not in the table
          is put to every property now
lives     built-ins and honest variants that it is put to, and those of them on which something was found
adequate  the share of the cases on built-ins that tell a right answer and a trivially wrong one apart
docs      whether the number of properties of its theme is what docs/explanation/attention.md says

Exit status 1 if it kills none first, if something right is refuted, or if that page is behind. An "exact" or "direct" property may
judge no case: then there is no share.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from pathlib import Path

from benchmarks.kill_table import OTHERS, put, read
from impls.mutants import forget, load_all
from properties.catalogue import PROPERTIES, select
from properties.engine.core.declare import Property
from properties.engine.core.target import Target
from properties.engine.core.trial import Notes
from properties.engine.search.find_target import Builtins, find_targets
from properties.engine.search.probe import make_target
from properties.engine.search.search import Plan, inapplicable, search

PAGE = Path(__file__).parents[1] / "docs" / "explanation" / "attention.md"


def kills(prop: Property) -> tuple[dict[str, int], list[str], list[str]]:
    """(mutant → the case that refutes it, those that nothing refutes sooner, those that name it and outlive it)."""
    mutants, _ = load_all()
    rows = read(mutants)
    found: dict[str, int] = {}
    for name, mutant in mutants.items():
        forget()
        target = make_target(f"mutants.{name}", mutant.function)
        forget()
        if inapplicable(target, prop):
            continue
        finding = search(target, prop, Plan(shrink=False) if mutant.killed_by == prop.name else OTHERS).finding
        if finding:
            found[name] = finding.first_at
    named = [name for name, mutant in mutants.items() if mutant.killed_by == prop.name]
    rows |= {name: put(name, mutants[name]) for name in named if name not in rows}
    first = [name for name, at in found.items() if at <= best(rows.get(name), prop.name)]
    return found, first, [name for name in named if name not in found]


def best(row: dict | None, but: str) -> float:
    """The first case on which some other property refutes a mutant; nothing is known of one without a row."""
    if row is None:
        return 0
    others = row["others"] | ({row["killed_by"]: row["first"]} if row["first"] else {})
    return min((at for name, at in others.items() if name != but), default=float("inf"))


def lives(prop: Property, cases: int) -> tuple[int, dict[str, str], Notes, int]:
    """(targets that it was put to, those on which something was found → the case, notes, cases)."""
    builtins = Builtins()
    targets: list[Target] = [
        target for name in builtins.entries if builtins.unavailable(name, "cpu") is None for target in find_targets(name, builtins)
    ]
    right = len(targets)
    targets += [make_target(f"honest.{name}", variant.function) for name, variant in load_all()[1].items()]
    plan, wrong, notes, tried, drawn = Plan(examples=cases, deviations=builtins.deviations()), {}, Notes(), 0, 0
    for number, target in enumerate(targets):
        forget()
        if inapplicable(target, prop):
            continue
        outcome = search(target, prop, plan)
        tried, drawn = tried + 1, drawn + outcome.cases
        if number < right:
            notes.merge(outcome.notes)
        if outcome.finding:
            wrong[target.name] = repr(outcome.finding.case)
    return tried, wrong, notes, drawn


def told(theme: str) -> int | None:
    """How many properties the page says that a theme has."""
    row = re.search(rf"^\| {theme} \| (\d+) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return int(row[1]) if row else None


def prove(prop: Property, cases: int) -> bool:
    """Print the table; whether nothing is missing."""
    found, first, outlived = kills(prop)
    tried, wrong, notes, drawn = lives(prop, cases)
    count, says = Counter(each.theme for each in PROPERTIES.values())[prop.theme], told(prop.theme)
    shown = ", ".join(first[:4]) + f" and {len(first) - 4} more" * (len(first) > 4)
    rows = [
        ("kills", f"{len(found)} mutants" + f"; these name it and outlive it: {', '.join(outlived)}" * bool(outlived)),
        ("first", f"{len(first)}: {shown}" if first else "none: some other property refutes each of them sooner"),
        ("lives", f"{tried} right targets, {drawn:,} cases, {len(wrong)} refuted"),
        *(("", f"{name} {case}") for name, case in wrong.items()),
        ("adequate", f"{notes.adequate / notes.judged:.0%} of {notes.judged:,} cases judged" if notes.judged else "no case was judged"),
        ("docs", f"{prop.theme} has {count} properties" + ("" if says == count else f", {PAGE.name} says {says or 'nothing'}")),
    ]
    print(f"{prop.name} · {prop.theme} · {prop.formula}")
    print("\n".join(f"  {left:9} {right}" for left, right in rows))
    return bool(first) and not outlived and not wrong and says == count


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.prove")
    parser.add_argument("name", nargs="+", help="properties, globs or themes")
    parser.add_argument("--cases", type=int, default=12, metavar="N", help="cases on each right target (default 12)")
    options = parser.parse_args(arguments)
    try:
        chosen = select(tuple(options.name))
    except ValueError as error:
        parser.error(str(error))
    return 0 if all([prove(prop, options.cases) for prop in chosen]) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
