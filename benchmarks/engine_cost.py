"""What the engine costs per case, without the target's own time, and how fast a verdict comes.

    python -m benchmarks.engine_cost torch_sdpa.math

The target is wrapped in a clock of the CPU; all other time of a case (drawing, tensors, oracle, bound, the property's arithmetic)
is the engine's. One line a property: median and 90 % quantile, milliseconds. Last, all together, and those that ask for no gradient.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from statistics import median, quantiles
from typing import Any

from properties import catalogue
from properties.attention.backward import CAPABILITIES
from properties.engine.core.target import Target
from properties.engine.search.find_target import Builtins, find_targets
from properties.engine.search.search import Plan, inapplicable, search


def main(name: str, examples: int = 150) -> None:
    target = find_targets(name, Builtins())[0]
    spent = [0.0]

    def clocked(*arguments: Any, **options: Any) -> Any:
        began = time.process_time()
        try:
            return target.function(*arguments, **options)
        finally:
            spent[0] += time.process_time() - began

    watched: Target = dataclasses.replace(target, function=clocked)
    everything: list[float] = []
    forward: list[float] = []
    began = time.process_time()
    for prop in catalogue.select():
        if inapplicable(watched, prop):
            continue
        times: list[float] = []
        mark = [time.process_time(), 0.0]

        def tick(_: int, times: list[float] = times, mark: list[float] = mark) -> None:
            now = time.process_time()
            times.append(1e3 * (now - mark[0] - (spent[0] - mark[1])))
            mark[:] = [now, spent[0]]

        mark[1] = spent[0]
        search(watched, prop, Plan(examples=examples), tick)
        everything += times
        forward += [] if set(prop.needs) & set(CAPABILITIES) else times
        print(f"{prop.name:<50}{median(times):8.2f}{quantiles(times, n=10)[-1]:8.2f}")
    total = time.process_time() - began
    print(
        f"engine per case: median {median(everything):.2f} ms ({median(forward):.2f} ms forward), mean {sum(everything) / len(everything):.2f} ms; "
        f"{len(everything):,} cases in {total:.1f} s, {spent[0]:.1f} s of it in the target"
    )


if __name__ == "__main__":
    main(*sys.argv[1:2] or ["torch_sdpa.math"])
