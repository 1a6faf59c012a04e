"""Readings: is a wrong attention called by its name, and what is an unknown mistake called?

    python -m benchmarks.readings              # every mutant; ten minutes or so
    python -m benchmarks.readings 5            # every fifth
    python -m benchmarks.readings 1 "causal.*" # those that match

Every mutant is refuted by the property that it names, and the finding is read with all mutants as suspects, then without the
mutant itself: as if nobody had made that mistake before. A suspect is of the same kind if it stands in the same module. Suspects
that are wrong where the mutant is right, on some of six cases of every other property, are no readings, as in any report. A mutant
that its killer does not refute is not read, but counted. Modules are left out: what is wrong with one is measured, by no mutant.
Writes ``readings.json`` and ``READINGS.md`` beside this file. Exit status 1 if less than 95 % of what is read is called by its
name, among others or alone.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from impls.mutants import forget, load_all
from properties.catalogue import PROPERTIES
from properties.engine.core.contract import contracts
from properties.engine.explain.contrast import Contrast
from properties.engine.explain.reading import read_failure
from properties.engine.explain.suspects import known_mistakes
from properties.engine.search.probe import make_target
from properties.engine.search.run import Report
from properties.engine.search.search import Plan, inapplicable, search

GOAL = 0.95
FEW = Plan(examples=6, shrink=False)
HERE = Path(__file__).with_name("readings.json")


def theme(name: str) -> str:
    return name.removeprefix("mutants.").partition(".")[0]


def verdict_without(name: str, others: list[str]) -> str:
    """What the reading says when the mutant itself is no suspect."""
    if not others:
        return "nothing"
    same = [theme(other) == theme(name) for other in others]
    return "same kind only" if all(same) else "another kind only" if not any(same) else "same kind among others"


def read(name: str, mutant: Any, suspects: list[Any]) -> dict[str, Any]:
    """One mutant: the names in its reading, with itself and without, first those expected to break the property; how long it took."""
    forget()
    target = make_target("mine", mutant.function)
    prop = PROPERTIES[mutant.killed_by]
    forget()
    outcome = search(target, prop, Plan())
    if (finding := outcome.finding) is None:
        return {"state": "not refuted"}
    report = Report(target, "cpu")
    report.add(outcome)
    for other in PROPERTIES.values():
        if other is not prop and not inapplicable(target, other):
            forget()
            report.add(dataclasses.replace(search(target, other, FEW), finding=None))
    began = time.monotonic()
    forget()
    contrast, alike = Contrast(report), read_failure(target, finding, suspects)
    strangers = [suspect for suspect in alike if suspect.name != f"mutants.{name}"]
    told = {"named": contrast.least_wrong(alike, finding.case.dtype), "without": contrast.least_wrong(strangers, finding.case.dtype)}
    names: dict[str, Any] = {key: [reading.name.removeprefix("mutants.") for reading in told[key]] for key in told}
    resembles = any(reading.wrong for reading in told["without"])
    return {"state": "read", **names, "resembles": resembles, "seconds": round(time.monotonic() - began, 2), "case": repr(finding.case)}


def percent(part: int, whole: int) -> str:
    return f"{part} of {whole} ({part / max(whole, 1):.1%})"


def summary(rows: dict[str, dict[str, Any]], command: str, mutants: int) -> tuple[str, bool]:
    """The table, and whether the goal is met."""
    states = Counter(row["state"] for row in rows.values())
    read_rows = {name: row["named"] for name, row in rows.items() if row["state"] == "read"}
    named = {name: found for name, found in read_rows.items() if name in found}
    missed = {name: found for name, found in read_rows.items() if name not in found}
    alone = [name for name, found in named.items() if len(found) == 1]
    shown = [name for name, found in named.items() if name in found[:3]]
    strange = {name: row["without"] for name, row in rows.items() if row["state"] == "read"}
    without = Counter(verdict_without(name, found) for name, found in strange.items())
    resembling = sum(row["resembles"] for row in rows.values() if row["state"] == "read")
    total = len(read_rows)
    lines = [
        "# What the reading of a failure is worth",
        "",
        f"Made by `{command}`, which says what is counted: {len(rows)} of {mutants} mutants.",
        "",
        "| | mutants |",
        "|---|---|",
        f"| refuted by the property they name, and read | {total} |",
        f"| not refuted by the property they name | {states['not refuted']} |",
        f"| **the true mistake is among those named** | {percent(len(named), total)} |",
        f"| … among the three that are shown | {percent(len(shown), total)} |",
        f"| … and is the only one | {percent(len(alone), total)} |",
        "| **without the mutant itself among the suspects** | |",
    ]
    for kind in ("nothing", "same kind only", "same kind among others", "another kind only"):
        what = "nothing is named" if kind == "nothing" else kind
        lines.append(f"| … {what} | {percent(without[kind], total)} |")
    lines.append(f"| of all these, said to resemble, not to be, another mistake | {percent(resembling, total)} |")
    seconds = sorted(row["seconds"] for row in rows.values() if row["state"] == "read")
    lines += ["", f"One reading takes {seconds[len(seconds) // 2]:.1f} s at the median, {seconds[-1]:.1f} s at most." if seconds else ""]
    lines += ["", "Not called by their name:", ""]
    lines += [f"* `{n}`: {', '.join(found[:3]) or 'nothing named'}" for n, found in missed.items()] or ["none"]
    lines += ["", "Called something of another kind only, without themselves:", ""]
    lines += [f"* `{n}`: {', '.join(found)}" for n, found in strange.items() if verdict_without(n, found) == "another kind only"] or [
        "none"
    ]
    return "\n".join(lines) + "\n", len(named) >= GOAL * total


def main(stride: int = 1, pattern: str = "*") -> int:
    mutants, _ = load_all()
    suspects = known_mistakes()
    rows: dict[str, dict[str, Any]] = {}
    known = contracts()
    mutants = {name: mutant for name, mutant in mutants.items() if known[mutant.contract].readings}
    for name in [n for n in mutants if fnmatch.fnmatchcase(n, pattern)][::stride]:
        rows[name] = read(name, mutants[name], suspects)
        print(name, rows[name], file=sys.stderr, flush=True)
    lines = (f"{json.dumps(name)}: {json.dumps(row, ensure_ascii=False)}" for name, row in rows.items())
    HERE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    command = "python -m benchmarks.readings" + (f" {stride} '{pattern}'" if pattern != "*" else f" {stride}" if stride > 1 else "")
    table, enough = summary(rows, command, len(mutants))
    HERE.with_name("READINGS.md").write_text(table, encoding="utf-8")
    print(table)
    return 0 if enough else 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if sys.argv[1:] else 1, *sys.argv[2:3]))
