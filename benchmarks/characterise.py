"""What the checker says of many targets, to be compared before and after a change that should change nothing.

    python -m benchmarks.characterise before.json --tree ../before      a checkout of what was before
    python -m benchmarks.characterise after.json --against before.json  this tree: every difference is printed, status 1 if there is one

The targets are every built-in, 60 mutants of all themes and 20 honest variants, in two rounds, by the names of their tables, which moves of
files leave as they are. Of each run the exit status is kept, which properties were refuted, and the smallest cases. What a later checker
tells as a convention is asked for as a finding (``--strict``), so that both are asked the same. ``--verdicts`` compares the verdicts alone.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

MUTANTS, HONEST = 60, 20
TABLES = """
import json
from impls.catalogue import CATALOGUE
from impls.mutants import load_all
places = {entry.name: entry.name for entry in CATALOGUE}
tables = []
for table in load_all():
    tables.append(list(table))
    places |= {name: f"{one.function.__module__}:{one.function.__qualname__}" for name, one in table.items()}
print(json.dumps([[entry.name for entry in CATALOGUE], *tables, places]))
"""


def in_tree(tree: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Python in a checkout of the project."""
    alone = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, *arguments], cwd=tree, env=alone, capture_output=True, text=True, check=False)


def targets(tree: Path, every: int) -> tuple[list[str], dict[str, str]]:
    """(what is looked at: every built-in, and mutants and honest variants evenly from all themes; where each name lies)."""
    built_in, mutants, honest, places = json.loads(in_tree(tree, "-c", TABLES).stdout)
    names = list(built_in)
    for table, count in ((mutants, MUTANTS), (honest, HONEST)):
        names += table[:: max(1, len(table) // count)][:count]
    return names[::every], places


def seen(tree: Path, target: str, cases: int, round_number: int, strict: bool) -> dict[str, Any]:
    """What one run says: exit status, and of every property what became of it."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        asked = [target, "-q", "--cases", str(cases), "--round", str(round_number), "--json", str(report)] + ["--strict"] * strict
        ran = in_tree(tree, "-m", "properties", *asked)
        told = json.loads(report.read_text(encoding="utf-8") or "{}") if report.exists() else {}
    properties = {}
    for one in told.get("reports", ()):
        for name, outcome in one["properties"].items():
            finding = outcome["finding"]
            properties[name] = [outcome["status"], finding and finding["case"]]
    return {"status": ran.returncode, "properties": properties}


def differences(before: dict[str, Any], after: dict[str, Any], verdicts: bool) -> list[str]:
    """Every target and round of which another thing is said, and every property."""
    found = []
    for key in sorted(before.keys() & after.keys()):
        old, new = before[key], after[key]
        if old["status"] != new["status"]:
            found.append(f"{key}: exit status {old['status']} → {new['status']}")
        parts = [] if verdicts else sorted(old["properties"].keys() | new["properties"].keys())
        pairs = [(name, old["properties"].get(name), new["properties"].get(name)) for name in parts]
        found += [f"{key} · {name}: {one} → {other}" for name, one, other in pairs if one != other]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--tree", type=Path, default=Path(__file__).parents[1], help="the checkout that is asked")
    parser.add_argument("--against", type=Path)
    parser.add_argument("--verdicts", action="store_true", help="compare exit statuses alone")
    parser.add_argument("--cases", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--every", type=int, default=1, help="every n-th target only")
    parser.add_argument("-n", type=int, default=1, help="targets at once")
    options = parser.parse_args()
    tree = options.tree.resolve()
    names, places = targets(tree, options.every)
    keys = [f"{target} #{number}" for target in names for number in range(options.rounds)]
    if options.against:
        keys = [key for key in json.loads(options.against.read_text(encoding="utf-8")) if key.rpartition(" #")[0] in places]
    strict = "--strict" in in_tree(tree, "-m", "properties", "--help").stdout

    def ask(key: str) -> tuple[str, dict[str, Any]]:
        target, _, number = key.rpartition(" #")
        said = seen(tree, places[target], options.cases, int(number), strict)
        print(f"{key}: {said['status']}", file=sys.stderr, flush=True)
        return key, said

    with ThreadPoolExecutor(options.n) as pool:
        kept = dict(pool.map(ask, keys))
    options.file.write_text(json.dumps(kept, indent=0, ensure_ascii=False) + "\n", encoding="utf-8")
    if not options.against:
        return 0
    found = differences(json.loads(options.against.read_text(encoding="utf-8")), kept, options.verdicts)
    print("\n".join(found) or f"no difference in {len(kept)} runs")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
