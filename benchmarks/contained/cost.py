"""What a process of its own costs a target: the same search here and there, in turn.

    python -m benchmarks.contained.cost                            # five built-ins, forty cases of every property
    python -m benchmarks.contained.cost "*" --cases 20 --every 3       # every third of all built-ins

Every property of a target is searched with the same cases, without shrinking; imports, and the start of the process, are counted, too.
Told are the seconds of the clock here and there, each the least of its turns, and how many times as long it takes there: for each target,
and for all of them together.
"""

from __future__ import annotations

import argparse
import sys
import time
from statistics import median

from properties.catalogue import select
from properties.engine.search.find_target import ALWAYS, NEVER, Builtins, containing, find_targets
from properties.engine.search.run import verify_target
from properties.engine.search.search import Plan

TARGETS = ("torch_manual.attention", "torch_sdpa.math", "numpy_matmul.attention", "torch_mha.train", "caches_torch.Contiguous")


def seconds(name: str, contained: bool, cases: int) -> tuple[float, int]:
    """(seconds of the clock, cases) of one search."""
    began = time.perf_counter()
    with containing(ALWAYS if contained else NEVER):
        (target,) = find_targets(name, Builtins())
        report = verify_target(target, select(), Plan(examples=cases, shrink=False))
    return time.perf_counter() - began, sum(outcome.cases for outcome in report.outcomes.values())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", default=TARGETS)
    parser.add_argument("--cases", type=int, default=40)
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--every", type=int, default=1, help="take every so many-th target alone")
    options = parser.parse_args()
    ratios, whole = [], [0.0, 0.0]
    names = [target.name for pattern in options.targets for target in find_targets(pattern, Builtins())]
    for name in names[:: options.every]:
        turns = [(seconds(name, False, options.cases), seconds(name, True, options.cases)) for _ in range(options.turns)]
        here, there = (min(turn[side][0] for turn in turns) for side in (0, 1))
        ratios.append(there / here)
        whole = [whole[0] + here, whole[1] + there]
        print(f"{name}: {turns[0][1][1]:,} cases, {here:.1f} s here, {there:.1f} s there: {there / here:.2f} times", flush=True)
    print(f"median {median(ratios):.2f}, most {max(ratios):.2f}, all together {whole[1] / whole[0]:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
