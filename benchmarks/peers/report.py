"""The table: what each suite kills, what it flags without need, and how long it takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import zip_longest
from statistics import median

from impls.mutants import Mutant, Variant

from .results import Results

OURS = "attncheck"


@dataclass(frozen=True)
class Row:
    """One suite, counted."""

    suite: str
    killed: int  # of the mutants it has judged with the contract attention
    killed_layers: int  # of those with the contract multihead
    false_alarms: tuple[str, ...]
    honest: int  # honest variants that it has judged
    seconds: float  # of CPU, all callables together
    whole: float  # of CPU, median over the honest variants that passed: no early end


def count(results: Results, mutants: Mapping[str, Mutant], honest: Mapping[str, Variant]) -> list[Row]:
    """One row a suite."""
    rows = []
    for suite, verdicts in results.items():
        dead = [mutants[name] for name, verdict in verdicts.items() if name in mutants and verdict["rejected"]]
        tried = {name: verdict for name, verdict in verdicts.items() if name in honest}
        layers = sum(mutant.contract == "multihead" for mutant in dead)
        rows.append(
            Row(
                suite,
                len(dead) - layers,
                layers,
                tuple(name for name, verdict in tried.items() if verdict["rejected"]),
                len(tried),
                sum(verdict["seconds"] for verdict in verdicts.values()),
                median([verdict["seconds"] for verdict in tried.values() if not verdict["rejected"]] or [0.0]),
            )
        )
    return sorted(rows, key=lambda row: (row.suite != OURS, -row.killed))


def missed(results: Results, mutants: Mapping[str, Mutant]) -> tuple[list[str], list[str]]:
    """(mutants that a peer kills and attncheck does not, mutants of the contract attention that no peer kills)."""

    def killed(name: str, suite: str) -> bool:
        return bool(results[suite].get(name, {}).get("rejected"))

    peers = [suite for suite in results if suite != OURS]
    by_peers = {name for name in mutants if any(killed(name, suite) for suite in peers)}
    ours = [name for name in by_peers if not killed(name, OURS)] if OURS in results else []
    theirs = [name for name, mutant in mutants.items() if mutant.contract == "attention" and name not in by_peers]
    return sorted(ours), theirs


def telling(names: list[str], mutants: Mapping[str, Mutant], wanted: int = 10) -> list[str]:
    """Of these mutants those that were reported as a bug somewhere, first one of each theme, then a second …"""
    themes: dict[str, list[str]] = {}
    for name in sorted(names, key=lambda name: mutants[name].bug is None):
        themes.setdefault(name.partition(".")[0], []).append(name)
    return [name for layer in zip_longest(*themes.values()) for name in layer if name and mutants[name].bug][:wanted]


def text(results: Results, mutants: Mapping[str, Mutant], honest: Mapping[str, Variant], cases: Mapping[str, int]) -> str:
    """The table and what follows from it, in Markdown."""
    attentions = sum(mutant.contract == "attention" for mutant in mutants.values())
    layers = len(mutants) - attentions
    lines = [
        f"| suite | cases | killed, of {attentions} attentions | of all {len(mutants)} | mutants not covered | false alarms"
        " | CPU, whole suite on one | CPU, all |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in count(results, mutants, honest):
        everything = row.killed + row.killed_layers
        lines.append(
            f"| {row.suite} | {cases.get(row.suite) or 'drawn'} | {row.killed} ({row.killed / attentions:.0%}) "
            f"| {everything / len(mutants):.0%} | {0 if row.suite == OURS else layers} "
            f"| {len(row.false_alarms)} of {row.honest} | {row.whole:.1f} s | {row.seconds:.0f} s |"
        )
    ours, theirs = missed(results, mutants)
    lines += ["", "False alarms:"]
    lines += [f"* {row.suite}: {', '.join(row.false_alarms)}" for row in count(results, mutants, honest) if row.false_alarms] or ["* none"]
    lines += ["", f"Killed by a peer and not by attncheck: {', '.join(ours) or 'none'}."]
    lines += ["", f"{len(theirs)} attentions are killed by no peer. Ten that were reported somewhere, theme by theme:"]
    lines += [f"* `{name}`: {mutants[name].mistake} ({mutants[name].source})" for name in telling(theirs, mutants)]
    return "\n".join(lines)
