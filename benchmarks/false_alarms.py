"""False alarms: every property on every built-in implementation, round after round, until N cases have been tried.

    python -m benchmarks.false_alarms 200000

Known deviations are set aside, as in any run. Prints a line a round, and each refutation in full; exit status 1 if there is one.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections import Counter

from properties import catalogue
from properties.engine.find_target import Builtins, find_targets
from properties.engine.run import verify_target
from properties.engine.search import Plan
from properties.engine.text import finding_text


def main(wanted: int, first_round: int = 1000) -> int:
    warnings.simplefilter("ignore")  # those of the targets
    builtins = Builtins()
    targets = [find_targets(name, builtins)[0] for name in builtins.entries if builtins.unavailable(name, "cpu") is None]
    cases: Counter[str] = Counter()
    dtypes: Counter[str] = Counter()
    alarms = 0
    began = time.monotonic()
    number = first_round
    while cases.total() < wanted:
        for target in targets:
            plan = Plan(examples=40, round=number, deviations=builtins.deviations())
            report = verify_target(target, catalogue.select(), plan)
            cases[target.name] += report.cases
            for outcome in report.outcomes.values():
                dtypes.update({name: n for name, n in outcome.features.items() if "float" in name})
            for finding in report.findings:
                alarms += 1
                print(finding_text(finding, "cpu", 40), flush=True)
        number += 1
        print(f"{cases.total():,} cases, {alarms} alarms, {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    print(json.dumps({"cases": cases.total(), "alarms": alarms, "rounds": [first_round, number - 1],
                      "by_dtype": dict(dtypes), "by_target": dict(cases), "seconds": round(time.monotonic() - began)}, indent=1))
    return 1 if alarms else 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:] or ["200000"])))
