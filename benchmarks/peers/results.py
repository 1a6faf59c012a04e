"""What was measured: a verdict per suite and callable, kept in a file so that an interrupted run goes on where it stopped."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from impls.mutants import Mutant, Variant, forget

Record = Mutant | Variant
Results = dict[str, dict[str, dict[str, Any]]]  # suite → callable → {"rejected": bool, "by": str, "seconds": float}; seconds of CPU
HERE = Path(__file__).parent
FILE = HERE / "results.json"


def load(path: Path = FILE) -> Results:
    """What earlier runs left, empty if there were none."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def save(results: Results, path: Path = FILE) -> None:
    """One line per verdict, so that a difference between two runs can be read."""
    blocks = []
    for suite, verdicts in results.items():
        lines = [f"  {json.dumps(name)}: {json.dumps(verdict, ensure_ascii=False)}" for name, verdict in verdicts.items()]
        blocks.append(f" {json.dumps(suite)}: {{\n" + ",\n".join(lines) + "\n }")
    path.write_text("{\n" + ",\n".join(blocks) + "\n}\n", encoding="utf-8")


def fill(results: Results, suite: str, reject: Callable[[Record], str], records: Mapping[str, Record], until: float) -> bool:
    """Judge every record that has no verdict yet; False if the time (time.monotonic) was over before all had one."""
    verdicts = results.setdefault(suite, {})
    for name, record in records.items():
        if name in verdicts:
            continue
        if time.monotonic() > until:
            return False
        forget()
        began = time.process_time()
        by = reject(record)
        verdicts[name] = {"rejected": bool(by), "by": by, "seconds": round(time.process_time() - began, 3)}
    forget()
    order = {name: position for position, name in enumerate(records)}
    results[suite] = dict(sorted(verdicts.items(), key=lambda item: order.get(item[0], len(order))))
    return True
