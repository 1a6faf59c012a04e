"""False alarms: every property on every built-in implementation, round after round, until N cases have been tried.

    python -m benchmarks.false_alarms 200000                       # rounds 1000, 1001, …
    python -m benchmarks.false_alarms 200000 --round 2000          # others
    python -m benchmarks.false_alarms 300000 --honest --cases 2    # the honest variants instead, two cases a property and round
    python -m benchmarks.false_alarms 1 --honest --cases 150 --part 1/2    # every second of them, with the default budget
    python -m benchmarks.false_alarms 50000 --honest --only "honest_modules.*" --cases 20 --kept modules.jsonl    # modules alone
    python -m benchmarks.false_alarms 18000000 --honest --cases 150 --round 1 --kept benchmarks/honest.jsonl    # twenty rounds

Known deviations are set aside, as in any run. Prints a line a target and round, and each refutation in full; exit status 1 if there is one.
What takes days can be done in pieces: a target and round that raised no alarm is a line of the file of ``--kept``, and is not tried again.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import sys
import time
import warnings
from collections import Counter
from pathlib import Path

from impls.mutants import load_all
from properties import catalogue
from properties.engine.core.target import Target
from properties.engine.report.text import finding_text
from properties.engine.search.find_target import Builtins, find_targets
from properties.engine.search.probe import make_target
from properties.engine.search.run import verify_target
from properties.engine.search.search import Plan


def honest_targets(only: str) -> list[Target]:
    """Correct attentions, layers, positions, packs, caches and modules that compute in unusual ways."""
    chosen = {name: variant for name, variant in load_all()[1].items() if fnmatch.fnmatch(name, only)}
    return [make_target(f"mutants.{name}", variant.function) for name, variant in chosen.items()]


def read_kept(file: Path | None) -> dict[tuple[str, int, int], int]:
    """(target, round, cases a property) → cases tried."""
    lines = file.read_text(encoding="utf-8").splitlines() if file and file.exists() else []
    return {(name, number, budget): cases for name, number, budget, cases in map(json.loads, lines)}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.false_alarms")
    parser.add_argument("wanted", type=int, metavar="N", help="cases in all, at least")
    parser.add_argument("--round", type=int, default=1000, help="the first round")
    parser.add_argument("--cases", type=int, default=40, help="of a property in a round")
    parser.add_argument("--honest", action="store_true", help="the honest variants, not the built-ins")
    parser.add_argument("--only", default="*", metavar="GLOB", help="these honest variants alone")
    parser.add_argument("--part", default="1/1", metavar="I/N", help="every N-th target from the I-th on, for N processes side by side")
    parser.add_argument("--kept", type=Path, metavar="FILE", help="what has been tried, a line each; nothing in it is tried again")
    options = parser.parse_args(arguments)
    first, every = map(int, options.part.split("/"))
    kept = read_kept(options.kept)
    warnings.simplefilter("ignore")  # those of the targets
    builtins = Builtins()
    here = [name for name in builtins.entries if builtins.unavailable(name, "cpu") is None]
    targets = honest_targets(options.only) if options.honest else [find_targets(name, builtins)[0] for name in here]
    targets = targets[first - 1 :: every]
    cases: Counter[str] = Counter()
    dtypes: Counter[str] = Counter()
    alarms = 0
    began = time.monotonic()
    number = options.round
    while cases.total() < options.wanted:
        for target in targets:
            if (tried := (target.name, number, options.cases)) in kept:
                cases[target.name] += kept[tried]
                continue
            plan = Plan(examples=options.cases, round=number, deviations=builtins.deviations())
            report = verify_target(target, catalogue.select(), plan)
            cases[target.name] += report.cases
            for outcome in report.outcomes.values():
                dtypes.update({name: n for name, n in outcome.features.items() if "float" in name})
            if options.kept and not report.findings:
                with options.kept.open("a", encoding="utf-8") as file:  # one short line, which no other process can part
                    file.write(json.dumps([*tried, report.cases]) + "\n")
            for finding in report.findings:
                alarms += 1
                print(finding_text(finding, "cpu", options.cases), flush=True)
            print(
                f"{target.name}, round {number}: {cases.total():,} cases, {alarms} alarms, {time.monotonic() - began:.0f} s",
                file=sys.stderr,
                flush=True,
            )
        number += 1
    print(
        json.dumps(
            {
                "cases": cases.total(),
                "alarms": alarms,
                "rounds": [options.round, number - 1],
                "by_dtype": dict(dtypes),
                "by_target": dict(cases),
                "seconds": round(time.monotonic() - began),
            },
            indent=1,
        )
    )
    return 1 if alarms else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
