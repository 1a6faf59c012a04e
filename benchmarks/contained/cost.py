"""What a process of its own costs a target: the same search here and there, in turn, property by property.

    python -m benchmarks.contained.cost                            # five built-ins, twenty cases of every property
    python -m benchmarks.contained.cost "*" --cases 4 --every 3       # every third of all built-ins

Every property of a target is searched with the same cases, without shrinking, here and there, as often as ``--turns`` says, and the least of
each is added up: the speed of a machine that does something else, too, changes within seconds. The start of the process is counted, and what
it imports. Told are the seconds of the clock here and there, and how many times as long it takes there: for each target, and for all of
them together.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from itertools import product
from math import inf
from statistics import median

from properties.catalogue import select
from properties.engine.search.find_target import ALWAYS, NEVER, Builtins, containing, find_targets
from properties.engine.search.search import Plan, search_pass

TARGETS = ("torch_manual.attention", "torch_sdpa.math", "numpy_matmul.attention", "torch_mha.train", "caches_torch.Contiguous")


def seconds(name: str, cases: int, turns: int) -> tuple[list[float], int]:
    """(seconds of the clock here and there, cases) of one target."""
    ways, targets, spent = (NEVER, ALWAYS), [], []
    for way in ways:
        began = time.perf_counter()
        with containing(way):
            targets += find_targets(name, Builtins())
        spent.append(time.perf_counter() - began)
    whole, tried = Plan(examples=cases, shrink=False), 0
    for part, prop in product(range(len(whole.passes())), select()):
        plan, took = replace(whole, part=part), [inf, inf]
        for turn in range(2 * turns):
            side = (turn + turn // 2) % 2  # here, there, there, here, …
            began = time.perf_counter()
            with containing(ways[side]):
                outcome = search_pass(targets[side], prop, plan)
            took[side] = min(took[side], time.perf_counter() - began)
        spent = [before + least for before, least in zip(spent, took, strict=True)]
        tried += outcome.cases
    return spent, tried


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", default=TARGETS)
    parser.add_argument("--cases", type=int, default=20)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--every", type=int, default=1, help="take every so many-th target alone")
    options = parser.parse_args()
    ratios, whole = [], [0.0, 0.0]
    names = [target.name for pattern in options.targets for target in find_targets(pattern, Builtins())]
    for name in names[:: options.every]:
        (here, there), tried = seconds(name, options.cases, options.turns)
        ratios.append(there / here)
        whole = [whole[0] + here, whole[1] + there]
        print(f"{name}: {tried:,} cases, {here:.1f} s here, {there:.1f} s there: {there / here:.2f} times", flush=True)
    print(f"median {median(ratios):.2f}, most {max(ratios):.2f}, all together {whole[1] / whole[0]:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
