"""What the checker says of many targets, to be compared before and after a change that should change nothing.

    python -m benchmarks.characterise before.json            every built-in, 60 mutants of all themes, 20 honest variants, two rounds
    python -m benchmarks.characterise after.json --against before.json

Kept of each target and round: the status of every property, how many cases ran, and of a finding the case and the words. A run with
``--against`` prints every difference and leaves with status 1 if there is one. ``--cases`` and ``--every`` make it shorter.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from impls.catalogue import CATALOGUE
from impls.mutants import load_all

MUTANTS, HONEST = 60, 20


def targets(every: int) -> list[str]:
    """What is looked at: every built-in, and mutants and honest variants evenly from all themes."""
    mutants, honest = load_all()
    names = [entry.name for entry in CATALOGUE]
    for table, count in ((mutants, MUTANTS), (honest, HONEST)):
        chosen = list(table)[:: max(1, len(table) // count)][:count]
        names += [f"{table[name].function.__module__}:{table[name].function.__qualname__}" for name in chosen]
    return names[::every]


def seen(target: str, cases: int, round_number: int) -> dict[str, Any]:
    """What one run says: exit status, and per property what became of it."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [
            sys.executable,
            "-m",
            "properties",
            target,
            "-q",
            "--cases",
            str(cases),
            "--round",
            str(round_number),
            "--json",
            str(report),
        ]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        told = json.loads(report.read_text(encoding="utf-8") or "{}") if report.exists() else {}
    properties = {}
    for one in told.get("reports", ()):
        for name, outcome in one["properties"].items():
            finding = outcome["finding"]
            properties[name] = [outcome["status"], outcome["cases"], finding and finding["case"], finding and finding["says"]]
    return {"status": ran.returncode, "properties": properties}


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Every property of a target and round of which another thing is said."""
    found = []
    for key in before.keys() & after.keys():
        if before[key]["status"] != after[key]["status"]:
            found.append(f"{key}: exit status {before[key]['status']} → {after[key]['status']}")
        old, new = before[key]["properties"], after[key]["properties"]
        found += [
            f"{key} · {name}: {old.get(name)} → {new.get(name)}"
            for name in sorted(old.keys() | new.keys())
            if old.get(name) != new.get(name)
        ]
    return sorted(found)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--against", type=Path)
    parser.add_argument("--cases", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--every", type=int, default=1, help="every n-th target only")
    options = parser.parse_args()
    kept: dict[str, Any] = {}
    names = sorted(json.loads(options.against.read_text(encoding="utf-8"))) if options.against else None
    keys = names or [f"{target} #{number}" for target in targets(options.every) for number in range(options.rounds)]
    for key in keys:
        target, _, number = key.rpartition(" #")
        kept[key] = seen(target, options.cases, int(number))
        print(f"{key}: {kept[key]['status']}", file=sys.stderr, flush=True)
    options.file.write_text(json.dumps(kept, indent=0, ensure_ascii=False) + "\n", encoding="utf-8")
    if not options.against:
        return 0
    found = differences(json.loads(options.against.read_text(encoding="utf-8")), kept)
    print("\n".join(found) or "no difference")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
