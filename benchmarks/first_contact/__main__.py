"""First contact: what does the checker say of functions it knows nothing of, with no declaration and default options?

    python -m benchmarks.first_contact                            # 20 s a function, one process
    python -m benchmarks.first_contact --time 8s --first -n 2     # two at a time; a wrong twin is done at its first finding
    python -m benchmarks.first_contact --only "layouts:*"         # a glob over module:function

For each function ``python -m properties FILE:FUNCTION --time T -q --json …`` is run, as a new user would. The verdict on a right one is right if the
exit status is 0; on a wrong twin if it is 1, and on a twin that is wrong at an edge alone if it is 1 with ``--strict``, where there is
one. An entry is right as a whole if it is let go and all its twins are refuted: a checker that refutes everything gets no entry right.
Results go to ``benchmarks/first_contact/results.json``; not with ``--only``, nor where ``--out`` names another file.
"""

from __future__ import annotations

import argparse
import datetime
import fnmatch
import importlib.metadata
import json
import platform
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.first_contact.record import HERE, Entry, Twin
from benchmarks.first_contact.table import ENTRIES

ROOT = HERE.parents[1]
GRACE = 120.0  # seconds beyond twice the budget, for importing and explaining; then it is ended, and has given no verdict


@dataclass(frozen=True)
class Subject:
    entry: Entry
    twin: Twin | None

    @property
    def function(self) -> str:
        return self.entry.twin(self.twin) if self.twin else self.entry.function

    @property
    def name(self) -> str:
        return f"{self.entry.module}:{self.function}"

    @property
    def expected(self) -> int:
        return 1 if self.twin else 0


def seconds(text: str) -> float:
    return float(text[:-1]) * {"s": 1, "m": 60, "h": 3600}[text[-1]]


def findings(report: dict[str, Any]) -> tuple[int, bool | None]:
    """How many properties are refuted, and whether one of them in the core; None where the report does not tell cores from edges."""
    refuted = [told for told in report["properties"].values() if told["status"] == "refuted"]
    where = [core for told in refuted if isinstance(core := {**told, **told.get("finding", {})}.get("core"), bool)]
    return len(refuted), any(where) if where else None


def ask(subject: Subject, budget: str, strict: bool, first: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as empty:  # so that no failing case is remembered
        report = Path(empty) / "report.json"
        target = f"{subject.entry.file}:{subject.function}"
        command = [sys.executable, "-m", "properties", target, "--time", budget, "-n", "1", "-q", "--json", str(report)]
        if strict and subject.twin and not subject.twin.core:
            command.append("--strict")
        if first and subject.twin:
            command.append("--first")
        began = time.perf_counter()
        environment = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "COLUMNS": "80"}
        try:
            limit = 2 * seconds(budget) + GRACE
            done = subprocess.run(command, cwd=empty, env=environment, capture_output=True, text=True, timeout=limit)
            status: int | None = done.returncode
            said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        except subprocess.TimeoutExpired:
            status, said = None, ["no verdict in time"]
        took = time.perf_counter() - began
        count, core, shown = 0, None, 0
        written = report.read_text(encoding="utf-8") if report.exists() else ""  # empty where the target could not be checked
        for one in json.loads(written)["reports"] if status in (0, 1) else ():
            count, core = findings(one)
            shown = len(one["in_full"]) + len(set(one["wrong"]) - {*one["differs"], *one["refuses"]})  # which a strict run refutes, too
    return {
        "status": status,
        "expected": subject.expected,
        "right": status == subject.expected,
        "refuted_properties": count,
        "findings_in_full": shown,
        "in_core": core,
        "twin_in_core": subject.twin.core if subject.twin else None,
        "seconds": round(took, 1),
        "said": said[-1][:300].replace(str(HERE), HERE.name) if said and status not in (0, 1) else "",
    }


def share(told: list[bool]) -> str:
    return f"{sum(told):3d} of {len(told):3d}  {100 * sum(told) / len(told):5.1f} %" if told else "none"


def summary(subjects: list[Subject], results: dict[str, dict[str, Any]]) -> list[str]:
    """Shares right, and what became of the rest."""
    right = [results[s.name]["right"] for s in subjects if s.twin is None]
    wrong = [results[s.name]["right"] for s in subjects if s.twin]
    entries: dict[str, list[bool]] = {}
    for s in subjects:
        entries.setdefault(s.entry.name, []).append(results[s.name]["right"])
    statuses = Counter((bool(s.twin), results[s.name]["status"]) for s in subjects)
    words = {0: "nothing found", 1: "refuted", 2: "cannot be checked", None: "no verdict in time"}
    lines = [
        f"right ones let go         {share(right)}",
        f"wrong twins refuted       {share(wrong)}",
        f"verdicts right            {share(right + wrong)}",
        f"entries right as a whole  {share([all(told) for told in entries.values()])}",
    ]
    shown = Counter(told["findings_in_full"] for told in results.values() if told["status"] == 1)
    if shown:  # one mistake each
        numbers = ", ".join(f"{count} with {n}" for n, count in sorted(shown.items()))
        lines.append(f"findings told in full     {sum(n * count for n, count in shown.items()) / shown.total():.2f} each: {numbers}")
    for twin, kind in ((False, "right ones"), (True, "wrong twins")):
        counted = ((status, n) for (t, status), n in statuses.items() if t == twin)
        parts = [f"{n} {words.get(status, f'exit status {status}')}" for status, n in sorted(counted, key=lambda pair: str(pair[0]))]
        lines.append(f"{kind}: {', '.join(parts) or 'none'}")
    return lines


def versions() -> dict[str, str]:
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    found = {"python": platform.python_version(), "commit": commit}
    for package in ("numpy", "torch", "hypothesis"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "missing"
    return found


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.first_contact")
    parser.add_argument("--time", default="20s", metavar="T", help="the budget of each function")
    parser.add_argument("-n", "--workers", type=int, default=1, metavar="N", help="functions at a time")
    parser.add_argument("--first", action="store_true", help="of a wrong twin the first finding will do")
    parser.add_argument("--only", default="*", metavar="GLOB", help="over module:function")
    parser.add_argument("--out", type=Path, metavar="FILE", help="where results go")
    options = parser.parse_args(arguments)
    everything = [Subject(entry, twin) for entry in ENTRIES for twin in (None, *entry.twins)]
    subjects = [subject for subject in everything if fnmatch.fnmatch(subject.name, options.only)]
    if not subjects:
        parser.error(f"nothing is called {options.only}")
    help_text = subprocess.run([sys.executable, "-m", "properties", "--help"], cwd=ROOT, capture_output=True, text=True).stdout
    strict = "--strict" in help_text
    results: dict[str, dict[str, Any]] = {}
    with ThreadPoolExecutor(options.workers) as pool:
        for subject, told in zip(subjects, pool.map(lambda s: ask(s, options.time, strict, options.first), subjects), strict=True):
            results[subject.name] = told
            mark = "right" if told["right"] else "WRONG"
            status = "-" if told["status"] is None else told["status"]
            print(
                f"{mark}  {subject.name:95s} exit {status}  {told['refuted_properties']:3d} refuted, "
                f"{told['findings_in_full']} in full  {told['seconds']:6.1f} s",
                flush=True,
            )
            if told["said"]:
                print(f"         {told['said'][:140]}", flush=True)
    lines = summary(subjects, results)
    print(*lines, sep="\n")
    out = options.out or (HERE / "results.json" if options.only == "*" else None)
    if out:
        record = {
            "command": " ".join(["python", "-m", "benchmarks.first_contact", *arguments]),
            "date": datetime.date.today().isoformat(),
            "versions": versions(),
            "summary": lines,
            "results": results,
        }
        out.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return 0 if all(told["right"] for told in results.values()) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
