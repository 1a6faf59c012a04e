"""Detection: at which case each mutant's declared killer refutes it, over several rounds (seeds).

    python -m benchmarks.detection 20        # twenty rounds; a few minutes each
    python -m benchmarks.detection 1 mutants.json

Only the property that a mutant names is tried, so this is a lower bound of what a whole run detects. The first case of every round
is the same one, the simplest that Hypothesis draws: a mutant that falls to it falls in every round. Prints the
distribution of the first detection and every mutant that outlives a round; exit status 1 if there is one.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from statistics import median

from impls.mutants import forget, load_all
from properties.catalogue import PROPERTIES
from properties.engine.search import Plan, search
from properties.engine.target import make_target


def main(rounds: int = 1, to: str = "") -> int:
    mutants, _ = load_all()
    first: dict[str, list[int | None]] = {name: [] for name in mutants}
    seconds: list[float] = []
    for number in range(rounds):
        for name, mutant in mutants.items():
            forget()
            target = make_target(f"mutants.{name}", mutant.function)
            forget()
            began = time.perf_counter()
            outcome = search(target, PROPERTIES[mutant.killed_by], Plan(round=number, shrink=False))
            seconds.append(time.perf_counter() - began)
            first[name].append(outcome.finding.first_at if outcome.finding else None)
            if not outcome.finding:
                print(f"round {number}: {name} outlives {mutant.killed_by}", flush=True)
        print(f"round {number} done", file=sys.stderr, flush=True)
    found = sorted(at for row in first.values() for at in row if at is not None)
    alive = sum(at is None for row in first.values() for at in row)
    print(f"{len(mutants)} mutants, {rounds} rounds: {len(found)} refuted, {alive} not; first detection: median "
          f"{median(found):.0f}, 90 % {found[int(0.9 * len(found))]}, worst {found[-1]}; median {median(seconds):.3f} s")
    if to:
        rows = {n: {"mistake": m.mistake, "killed_by": m.killed_by, "first": first[n]} for n, m in mutants.items()}
        Path(to).write_text(json.dumps(rows, indent=1, ensure_ascii=False), encoding="utf-8")
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if sys.argv[1:] else 1, *sys.argv[2:3]))
