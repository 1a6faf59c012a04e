"""An answer that is wrong by chance: how often a judge refutes it, by how often it is wrong.

    python -m benchmarks.contained.chance        # 20 candidates for each probability, 40 cases a property, all properties

A wrong answer is off by a thousandth; whether it is wrong is drawn anew at every call, from what the system has of randomness.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

CODE = """
import os
import numpy as np

def attention(q, k, v, is_causal=False):
    s = q @ k.swapaxes(-1, -2) * max(q.shape[-1], 1) ** -0.5
    s = np.where(np.tri(*s.shape[-2:], dtype=bool), s, -np.inf) if is_causal else s
    w = np.exp(s - s.max(-1, keepdims=True, initial=-1e30))
    wrong = int.from_bytes(os.urandom(4), "little") < {} * 2**32
    return ((w / w.sum(-1, keepdims=True) @ v) * (1 + wrong / 1000)).astype(q.dtype)
"""
CHANCES = (1e-1, 1e-2, 1e-3, 1e-4)


def put(chance: float, rounds: int) -> tuple[int, float]:
    """How many of so many candidates are refuted, and after how many cases at the median."""
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds):
            (Path(folder) / f"candidate_{number}.py").write_text(CODE.format(chance))
        words = [sys.executable, "-m", "properties", "judge", folder, "--json", "-"]
        told = subprocess.run(words, capture_output=True, text=True)
    scores = [json.loads(line) for line in told.stdout.splitlines()]
    if len(scores) != rounds:
        raise ValueError(told.stderr)
    return sum(one["verdict"] == "refuted" for one in scores), median(one["cases"] for one in scores)


def main(rounds: int) -> None:
    print("| wrong once in | refuted | cases, median |\n|---|---|---|")
    for chance in CHANCES:
        refuted, cases = put(chance, rounds)
        print(f"| {round(1 / chance):,} calls | {refuted} of {rounds} | {cases:,.0f} |", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
