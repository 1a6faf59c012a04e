"""Which property kills which mutant, and how soon.

    python -m benchmarks.kill_table                     # all that is not in kill_table.json yet; an hour of one core
    python -m benchmarks.kill_table --minutes 10        # as many as that, a sample of all themes; the next call goes on
    python -m benchmarks.kill_table --only "causal.*"   # these anew

The property that a mutant names gets the default budget, 150 cases, and shrinks; every other one gets ten cases. So "killed by
nothing else" means by nothing else within ten cases, and a property kills a mutant first if no other one needs fewer cases.
Writes ``kill_table.json`` and ``KILLS.md`` beside this file, and ``properties/order.toml``, the order in which properties are tried.
Exit status 1 if a mutant outlives the property that it names.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import sys
import time
from pathlib import Path
from typing import Any

from impls.mutants import forget, load_all
from properties.catalogue import PROPERTIES
from properties.engine.search.probe import make_target
from properties.engine.search.search import FIRST_PASS, Plan, inapplicable, search

HERE = Path(__file__).with_name("kill_table.json")
ORDER = Path(__file__).parents[1] / "properties" / "order.toml"
OTHERS = Plan(examples=10, shrink=False)
NUMBER = {name: number for number, name in enumerate(PROPERTIES)}


def put(name: str, mutant: Any) -> dict[str, Any]:
    """One mutant, put to every property that applies."""
    forget()
    target = make_target(f"mutants.{name}", mutant.function)
    forget()
    began = time.monotonic()
    outcome = search(target, PROPERTIES[mutant.killed_by], Plan())
    row: dict[str, Any] = {"killed_by": mutant.killed_by, "seconds": round(time.monotonic() - began, 2), "first": None, "case": ""}
    if outcome.finding:
        row |= {"first": outcome.finding.first_at, "case": repr(outcome.finding.case)}
    others: dict[str, int] = {}
    tried = 0
    for prop in PROPERTIES.values():
        if prop.name == mutant.killed_by or inapplicable(target, prop):
            continue
        tried += 1
        forget()
        finding = search(target, prop, OTHERS).finding
        if finding:
            others[prop.name] = finding.first_at
    forget()
    return row | {"tried": tried, "others": others}


def in_sample_order(names: list[str]) -> list[str]:
    """Every seventh, then every seventh of the rest: wherever a run stops, all themes are in."""
    return [name for start in range(7) for name in names[start::7]]


def firsts(row: dict[str, Any]) -> set[str]:
    """The properties that need the fewest cases."""
    kills = dict(row["others"]) | ({row["killed_by"]: row["first"]} if row["first"] else {})
    return {name for name, at in kills.items() if at == min(kills.values())}


def markdown(rows: dict[str, dict[str, Any]], mutants: dict[str, Any]) -> str:
    rows = {name: rows[name] for name in mutants if name in rows}
    killed = {
        prop: [n for n, row in rows.items() if prop in row["others"] or (row["killed_by"] == prop and row["first"])] for prop in PROPERTIES
    }
    named = {prop: [n for n, row in rows.items() if row["killed_by"] == prop] for prop in PROPERTIES}
    only = {prop: [n for n in found if rows[n]["killed_by"] == prop and not rows[n]["others"]] for prop, found in killed.items()}
    first = {prop: [n for n in found if prop in firsts(rows[n])] for prop, found in killed.items()}
    alone = {prop: [n for n in found if firsts(rows[n]) == {prop}] for prop, found in first.items()}
    at = sorted(row["first"] for row in rows.values() if row["first"])
    seconds = sorted(row["seconds"] for row in rows.values())
    alive = [name for name, row in rows.items() if not row["first"]]
    lines = ["# Which property kills which mutant", "", "Made by `python -m benchmarks.kill_table`, which says how it was done.", ""]
    if at:
        lines += [
            f"{len(rows)} of {len(mutants)} mutants were put to the properties; {len(at)} were killed by the property they name, the "
            f"median at case {at[len(at) // 2]}, nine in ten by case {at[int(0.9 * len(at))]}, the last at case {at[-1]}. To find and "
            f"shrink took {seconds[len(seconds) // 2]:.2f} s at the median, {seconds[-1]:.1f} s at most.",
            "",
        ]
    sooner, tied = (sum(bool(only[p] or table[p]) for p in PROPERTIES) for table in (alone, first))
    lines += [
        f"Of {len(PROPERTIES)} properties {sum(map(bool, only.values()))} kill some mutant that nothing else kills, {sooner} one before all "
        f"others or alone, {tied} one that nothing kills sooner (most of them at the first case).",
        "",
    ]
    lines += [
        "Outlived the property they name: "
        + (", ".join(f"`{n}` ({len(rows[n]['others'])} others kill it)" for n in alive) or "none")
        + ".",
        "",
        "## Properties",
        "",
        "*only*: nothing else kills the mutant; *first*: nothing else kills it sooner, *before all others*: everything else later.",
        "",
        "| property | named by | kills | only | first | before all others | |",
        "|---|---|---|---|---|---|---|",
    ]
    for prop in PROPERTIES:
        flag = "" if only[prop] or first[prop] else "**never only nor first**" if killed[prop] else "**kills none of these**"
        counts = " | ".join(str(len(table[prop])) for table in (named, killed, only, first, alone))
        lines.append(f"| `{prop}` | {counts} | {flag} |")
    lines += ["", "## Mutants", "", "| mutant | mistake | killed by | case | s | smallest case | others |", "|---|---|---|---|---|---|---|"]
    for name, row in rows.items():
        mistake = mutants[name].mistake.replace("|", "\\|")
        at_case = row["first"] or "**outlives it**"
        lines.append(
            f"| `{name}` | {mistake} | `{row['killed_by']}` | {at_case} | {row['seconds']} | `{row['case']}` | "
            f"{len(row['others'])} of {row['tried']} |"
        )
    return "\n".join(lines) + "\n"


def telling(rows: dict[str, dict[str, Any]]) -> list[str]:
    """Most telling first: again and again the property that kills most of the mutants left, in the first pass of a search."""
    kills: dict[str, set[str]] = {name: set() for name in PROPERTIES}
    for name, row in rows.items():
        for prop, at in (row["others"] | {row["killed_by"]: row["first"] or sys.maxsize}).items():
            if at <= FIRST_PASS:
                kills[prop].add(name)
    alive = set(rows)
    order: list[str] = []
    while len(order) < len(kills):
        best = max((p for p in kills if p not in order), key=lambda p: (len(kills[p] & alive), len(kills[p])))
        order.append(best)
        alive -= kills[best]
    return order


def order_text(rows: dict[str, dict[str, Any]]) -> str:
    """What ``properties/order.toml`` holds."""
    names = "".join(f'    "{name}",\n' for name in telling(rows))
    return (
        f"# Most telling first, from the kill table: made by python -m benchmarks.kill_table, held to it by a test.\norder = [\n{names}]\n"
    )


def write(rows: dict[str, dict[str, Any]], mutants: dict[str, Any]) -> None:
    """One line a mutant; the other properties by their number in the list."""
    short = {name: {**rows[name], "others": {NUMBER[p]: at for p, at in rows[name]["others"].items()}} for name in mutants if name in rows}
    lines = [f"{json.dumps(name)}: {json.dumps(row, ensure_ascii=False, separators=(',', ':'))}" for name, row in short.items()]
    HERE.write_text('{"properties": ' + json.dumps(list(PROPERTIES)) + ',\n"mutants": {\n' + ",\n".join(lines) + "\n}}\n", encoding="utf-8")
    HERE.with_name("KILLS.md").write_text(markdown(rows, mutants), encoding="utf-8")
    ORDER.write_text(order_text(rows), encoding="utf-8")


def read(mutants: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What was measured before, of mutants and properties that are still there."""
    if not HERE.exists():
        return {}
    kept = json.loads(HERE.read_text(encoding="utf-8"))
    names = kept["properties"]
    return {
        name: row | {"others": {names[int(i)]: at for i, at in row["others"].items() if names[int(i)] in PROPERTIES}}
        for name, row in kept["mutants"].items()
        if name in mutants and row["killed_by"] == mutants[name].killed_by
    }


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kill_table")
    parser.add_argument("--only", metavar="GLOB", help="these mutants, measured anew")
    parser.add_argument("--minutes", type=float, default=1e9, help="stop after so many")
    options = parser.parse_args(arguments)
    mutants, _ = load_all()
    rows = read(mutants)
    wanted = [n for n in in_sample_order(list(mutants)) if (fnmatch.fnmatchcase(n, options.only) if options.only else n not in rows)]
    began = time.monotonic()
    for count, name in enumerate(wanted):
        if time.monotonic() - began > 60 * options.minutes:
            print(f"{len(wanted) - count} left: call again to go on", file=sys.stderr)
            break
        rows[name] = put(name, mutants[name])
        row = rows[name]
        print(f"{name}: {row['first'] or 'outlives'} by {row['killed_by']}, {len(row['others'])} others", file=sys.stderr, flush=True)
        if count % 20 == 0:
            write(rows, mutants)
    write(rows, mutants)
    alive = [name for name, row in rows.items() if not row["first"]]
    print(f"{len(rows)} of {len(mutants)} mutants; outlived the property they name: {', '.join(alive) or 'none'}")
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
