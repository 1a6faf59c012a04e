"""How soon the first finding of a wrong attention is there, in the order of the search and in that of the catalogue.

    python -m benchmarks.first_finding                  # every mutant, breadth first; every twentieth also in the old order
    python -m benchmarks.first_finding --old 1          # every one in the old order, too: hours
    python -m benchmarks.first_finding --only "masks.*"

From the end of importing: the target is made, and searched until something is refuted, shrunk. Times are processor seconds of this one
process. The old order puts all cases of a property before the first of the next, in the order of the catalogue. Exit status 1 if a
mutant is not found.
"""

from __future__ import annotations

import argparse
import fnmatch
import sys
import time
from collections.abc import Sequence

from impls.mutants import forget, load_all
from properties.catalogue import PROPERTIES, RANK
from properties.engine.core.target import Target
from properties.engine.search.probe import make_target
from properties.engine.search.run import verify_target
from properties.engine.search.search import Plan, search


def breadth_first(target: Target) -> tuple[int, bool]:
    """(cases tried, whether something was found)."""
    report = verify_target(target, PROPERTIES.values(), Plan(), first=True, rank=RANK)
    return report.cases, report.found


def one_by_one(target: Target) -> tuple[int, bool]:
    """The same, all cases of a property before the next."""
    cases = 0
    for prop in PROPERTIES.values():
        outcome = search(target, prop, Plan())
        cases += outcome.finding.first_at if outcome.finding else outcome.cases
        if outcome.finding:
            return cases, True
    return cases, False


def line(name: str, seconds: Sequence[float], cases: Sequence[int]) -> str:
    """A row of the table."""
    shares = (0.5, 0.95, 0.99, 1.0)

    def at(values: Sequence[float], share: float) -> float:
        return sorted(values)[min(int(share * len(values)), len(values) - 1)]

    times = " | ".join(f"{at(seconds, share):.2f}" for share in shares)
    return f"| {name} | {len(seconds)} | {times} | " + " | ".join(f"{at(cases, share):,.0f}" for share in shares) + " |"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.first_finding")
    parser.add_argument("--only", default="*", metavar="GLOB", help="these mutants")
    parser.add_argument("--old", type=int, default=20, metavar="N", help="the old order for every N-th of them (default 20; 0: none)")
    options = parser.parse_args(arguments)
    mutants = {name: mutant for name, mutant in load_all()[0].items() if fnmatch.fnmatchcase(name, options.only)}
    rows: dict[str, tuple[list[float], list[int]]] = {"breadth first": ([], []), "one by one": ([], [])}
    missed: list[str] = []
    for number, (name, mutant) in enumerate(mutants.items()):
        for way, ask in (("breadth first", breadth_first), ("one by one", one_by_one)):
            if way == "one by one" and (not options.old or number % options.old):
                continue
            forget()
            began = time.process_time()
            cases, found = ask(make_target(f"mutants.{name}", mutant.function))
            rows[way][0].append(time.process_time() - began)
            rows[way][1].append(cases)
            if not found:
                missed.append(f"{name} ({way})")
    print(
        "| order | mutants | median s | 95 % | 99 % | most | median cases | 95 % | 99 % | most |\n|---|---|---|---|---|---|---|---|---|---|"
    )
    for way, (seconds, cases_of) in rows.items():
        if seconds:
            print(line(way, seconds, cases_of))
    print(f"not found: {', '.join(missed) or 'none'}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
