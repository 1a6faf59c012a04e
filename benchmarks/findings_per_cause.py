"""Findings per cause: how many findings a report shows in full, and how many properties are refuted, of a target with one mistake.

    python -m benchmarks.findings_per_cause             # every twentieth mutant, 12 cases a property
    python -m benchmarks.findings_per_cause 1 30        # every mutant, 30 cases
    python -m benchmarks.findings_per_cause 8 12 --part 3   # the fourth, the twelfth, … of them

A mutant has one mistake: more findings in full than one are more than a reader needs. They are counted where the mistake is known to the
reading, and where it is not, as that of a stranger.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections import Counter

from impls.mutants import forget, load_all
from properties.catalogue import PROPERTIES
from properties.engine.explain.explain import explain
from properties.engine.explain.suspects import known_mistakes
from properties.engine.report.text import in_full
from properties.engine.search.probe import make_target
from properties.engine.search.run import verify_target
from properties.engine.search.search import Plan, same_subject


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.findings_per_cause")
    parser.add_argument("every", type=int, nargs="?", default=20, help="of so many mutants one")
    parser.add_argument("cases", type=int, nargs="?", default=12, help="of each property")
    parser.add_argument("--part", type=int, default=0, metavar="K", help="of so many the K-th, from 0: all parts are all mutants")
    options = parser.parse_args(arguments)
    every, cases = options.every, options.cases
    suspects = known_mistakes()
    shown: dict[str, list[int]] = {"known": [], "unknown": []}
    refuted: list[int] = []
    for name, mutant in list(load_all()[0].items())[options.part :: every]:
        forget()
        target = make_target("mine", mutant.function)
        report = verify_target(target, [prop for prop in PROPERTIES.values() if same_subject(prop, target)], Plan(examples=cases))
        if not report.findings:
            print(f"{name:60} not refuted", flush=True)
            continue
        refuted.append(len(report.findings))
        for kind, some in (("known", suspects), ("unknown", [suspect for suspect in suspects if suspect.name != f"mutants.{name}"])):
            report.explained.clear()
            explain(report, some)
            shown[kind].append(len(in_full(report)))
        print(f"{name:60} {refuted[-1]:3} refuted, in full {shown['known'][-1]:2} known, {shown['unknown'][-1]:2} unknown", flush=True)
    print(f"{len(refuted)} mutants refuted, {statistics.mean(refuted):.1f} properties each")
    for kind, numbers in shown.items():
        print(f"in full, {kind}: {statistics.mean(numbers):.2f} each, {dict(sorted(Counter(numbers).items()))}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
