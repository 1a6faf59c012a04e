"""What the handshake costs: calls of the target, and seconds, on every function of the set of first contact.

    python -m benchmarks.handshake_cost
    python -m benchmarks.handshake_cost --only "layouts:*"

From the loaded function to the target that is searched: how it is called, what it refuses, its conventions. Importing is not counted.
"""

from __future__ import annotations

import argparse
import fnmatch
import functools
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import properties.catalogue  # noqa: F401 (the contracts)
from benchmarks.first_contact.record import HERE
from benchmarks.first_contact.table import ENTRIES
from properties.engine.contained.load import load_callable
from properties.engine.core.target import CannotRun
from properties.engine.search.probe import make_target


def cost(function: Callable[..., Any]) -> tuple[int, float, float]:
    """How often a function is called, the seconds in all, and those that are its own."""
    calls: list[float] = []

    @functools.wraps(function)
    def counted(*arguments: Any, **options: Any) -> Any:
        began = time.perf_counter()
        try:
            return function(*arguments, **options)
        finally:
            calls.append(time.perf_counter() - began)

    began = time.perf_counter()
    try:
        target = make_target(function.__name__, counted)
        target.kind.handshake(target, "cpu")
    except CannotRun as error:
        print(f"{function.__name__}: {error}", file=sys.stderr)
    return len(calls), time.perf_counter() - began, sum(calls)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.handshake_cost")
    parser.add_argument("--only", default="*", metavar="GLOB", help="over module:function")
    options = parser.parse_args(arguments)
    names = [(entry, f"{entry.module}:{name}") for entry in ENTRIES for name in (entry.function, *map(entry.twin, entry.twins))]
    costs: dict[str, tuple[int, float, float]] = {}
    for entry, name in names:
        if fnmatch.fnmatch(name, options.only):
            function = load_callable(f"{HERE / entry.module}.py:{name.partition(':')[2]}", ())[0]
            if not costs:
                cost(function)  # what is done once a process
            costs[name] = cost(function)
            print(f"{name:60} {costs[name][0]:5} calls {costs[name][1]:6.2f} s, {costs[name][2]:6.2f} s of them its own")
    for at, (what, unit) in enumerate((("calls", ""), ("seconds", " s"), ("its own", " s"))):
        values = [found[at] for found in costs.values()]
        middle, most = np.quantile(values, (0.5, 0.95))
        print(
            f"{what:8} median {middle:.3g}{unit}, 95 % {most:.3g}{unit}, most {max(values):.3g}{unit}: {max(costs, key=lambda n: costs[n][at])}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
