"""Detection: at which case each mutant's declared killer refutes it, over twenty rounds (seeds).

    python -m benchmarks.detection                    # what is not in detection.json yet; an hour of one core for all
    python -m benchmarks.detection --only "causal.*"  # these anew

Only the property that a mutant names is tried, so this is a lower bound of what a whole run detects. The first case of every round
is the same one, the simplest that Hypothesis draws: a mutant that falls to it falls in every round. Writes ``detection.json``
beside this file; prints the distribution of the first detection, every mutant that outlives a round, and every one that once needed
more than half the budget. Exit status 1 if a mutant outlives a round.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

from impls.mutants import forget, load_all
from properties.catalogue import PROPERTIES
from properties.engine.search.probe import make_target
from properties.engine.search.search import Plan, search

HERE = Path(__file__).with_name("detection.json")
ROUNDS = 20
BUDGET = Plan().examples


def put(name: str, mutant: Any) -> dict[str, Any]:
    """A mutant in all rounds: the number of the first failing case in each, None where there was none."""
    first: list[int | None] = []
    began = time.perf_counter()
    for number in range(ROUNDS):
        forget()
        target = make_target(f"mutants.{name}", mutant.function)
        forget()
        finding = search(target, PROPERTIES[mutant.killed_by], Plan(round=number, shrink=False)).finding
        first.append(finding.first_at if finding else None)
    return {"killed_by": mutant.killed_by, "seconds": round((time.perf_counter() - began) / ROUNDS, 3), "first": first}


def write(rows: dict[str, dict[str, Any]], mutants: dict[str, Any]) -> None:
    """One line a mutant, in the order of the field guide."""
    lines = [f"{json.dumps(name)}: {json.dumps(rows[name], separators=(',', ':'))}" for name in mutants if name in rows]
    HERE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.detection")
    parser.add_argument("--only", metavar="GLOB", help="these mutants, measured anew")
    options = parser.parse_args(arguments)
    mutants, _ = load_all()
    kept = json.loads(HERE.read_text(encoding="utf-8")) if HERE.exists() else {}
    rows = {n: row for n, row in kept.items() if n in mutants and row["killed_by"] == mutants[n].killed_by}
    wanted = [n for n in mutants if (fnmatch.fnmatchcase(n, options.only) if options.only else n not in rows)]
    for count, name in enumerate(wanted):
        rows[name] = put(name, mutants[name])
        if count % 20 == 19:
            print(f"{count + 1} of {len(wanted)}", file=sys.stderr, flush=True)
            write(rows, mutants)
    write(rows, mutants)
    found = sorted(at for row in rows.values() for at in row["first"] if at is not None)
    alive = [name for name, row in rows.items() if None in row["first"]]
    late = {name: max(row["first"]) for name, row in rows.items() if name not in alive and max(row["first"]) > BUDGET // 2}
    print(
        f"{len(rows)} of {len(mutants)} mutants, {ROUNDS} rounds each: {len(found)} refuted, {ROUNDS * len(rows) - len(found)} not; first "
        f"detection: median {median(found):.0f}, 90 % {found[int(0.9 * len(found))]}, worst {found[-1]}; median "
        f"{median(row['seconds'] for row in rows.values()):.3f} s"
    )
    print("outlived a round: " + (", ".join(alive) or "none"))
    print(f"once later than case {BUDGET // 2}: " + (", ".join(f"{name} ({at})" for name, at in late.items()) or "none"))
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
