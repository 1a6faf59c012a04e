"""Peers, side by side: which wrong attentions each suite rejects, and which right ones.

    python -m benchmarks.peers                    # all suites, about an hour of CPU, nearly all of it attncheck's on right ones
    python -m benchmarks.peers ONNX JAX           # these only; the table has what was measured before, too
    python -m benchmarks.peers --seconds 150      # stop judging after that time; the next run goes on from there

Prints the table and writes results.json and peers.svg beside this file. Verdicts that are in results.json already are
kept: remove the file to begin anew.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Mapping

from impls.mutants import load_all
from properties.engine.core.supports import FEATURES

from . import own, picture, report, results
from .others import PEERS
from .results import Record

CONTRACTS = ("attention", "multihead")  # position encodings are no attentions: not compared
# Nor is what no peer's description covers here: the backward pass, and windows, caps, slopes, sinks, lengths and dropout. A peer
# cannot be told of a convention other than its own.
LEFT_OUT = ("gradients", "gradient_routes", "backward_features", "honest_gradients", "honest_conventions")


def compared(records: Mapping[str, Record]) -> dict[str, Record]:
    """The attentions and layers that all suites are put to, or could be."""

    def covered(name: str, record: Record) -> bool:
        taken = record.function.supports.get("parameters", ())
        return record.contract in CONTRACTS and name.partition(".")[0] not in LEFT_OUT and not {*FEATURES, "dropout_p"} & set(taken)

    return {name: record for name, record in records.items() if covered(name, record)}


def main() -> int:
    judges: dict[str, Callable[[Record], str]] = {**{name: peer.reject for name, peer in PEERS.items()}, report.OURS: own.reject}
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers")
    parser.add_argument("suite", nargs="*", help=", ".join(judges))
    parser.add_argument("--seconds", type=float, default=math.inf, help="stop judging after that time")
    options = parser.parse_args()
    unknown = [suite for suite in options.suite if suite not in judges]
    if unknown:
        parser.error(f"no suite {', '.join(unknown)}; there are {', '.join(judges)}")
    wrong_ones, right_ones = load_all()
    mutants, honest = compared(wrong_ones), compared(right_ones)
    everything: dict[str, Record] = {**mutants, **honest}
    attentions = {name: record for name, record in everything.items() if record.contract == "attention"}
    kept = results.load()
    until = time.monotonic() + options.seconds
    finished = True
    for suite in options.suite or judges:
        finished &= results.fill(kept, suite, judges[suite], everything if suite == report.OURS else attentions, until)
        results.save(kept)
    wrong = sum(mutant.contract == "attention" for mutant in mutants.values())
    rows = report.count(kept, mutants, honest)
    (results.HERE / "peers.svg").write_text(picture.svg(rows, wrong, report.OURS), encoding="utf-8")
    print(report.text(kept, mutants, honest, {name: peer.calls for name, peer in PEERS.items()}))
    return 0 if finished else 1


if __name__ == "__main__":
    raise SystemExit(main())
