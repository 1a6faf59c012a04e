"""Verdicts that flip: the same run again and again, in a process of its own each time; what is not the same bit for bit is counted.

    python -m benchmarks.flips                           # 11 targets, 20 times
    python -m benchmarks.flips --times 200               # 200 times; hours
    python -m benchmarks.flips --times 200 --cases 3     # the same with three cases of every property, not ten
    python -m benchmarks.flips right.py:attention        # of one of the targets alone

Compared is the whole of ``--json`` but for times, among them the count of what a finding took. Exit status 1 if a verdict flipped, or a report
differed, of a target that is not wrong at random.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
WRONG = """
import numpy as np

def attention(q, k, v, is_causal=False):
    s = q @ k.swapaxes(-1, -2) * max(q.shape[-1], 1) ** -0.5 {}
    s = np.where(np.tri(*s.shape[-2:], {}, dtype=bool), s, -np.inf) if is_causal else s
    w = np.exp(s - s.max(-1, keepdims=True, initial=-1e30))
    return (w / w.sum(-1, keepdims=True) @ v{}).astype(q.dtype)
"""
MODULE = """
import torch

class Attention(torch.nn.Module):
    def __init__(self, dim, heads=4):
        super().__init__()
        self.heads, self.qkv, self.out = heads, torch.nn.Linear(dim, 3 * dim), torch.nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return self.out(torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
"""
BUILTINS = (
    "numpy_matmul.attention",
    "loops.attention",
    "torch_manual.attention",
    "torch_sdpa.math",
    "positions_numpy.rotary",
    "caches_numpy.Contiguous",
)
FILES = {
    "right.py:attention": WRONG.format("", "0", ""),
    "one_too_far.py:attention": WRONG.format("", "1", ""),
    "off_by_a_millionth.py:attention": WRONG.format("* (1 + 1e-6)", "0", ""),
    "module.py:Attention": MODULE,
    "one_in_a_thousand.py:attention": WRONG.format("", "0", " * (1 + (np.random.random() < 0.001))"),
}
TIMES = ("seconds", "shrink_seconds", "found_after", "finished")
AT_RANDOM = "one_in_a_thousand.py:attention"  # its verdict may differ, as its answers do


def same(report: Any) -> Any:
    """A report without its times."""
    if isinstance(report, dict):
        return {key: same(value) for key, value in report.items() if key not in TIMES}
    return [same(value) for value in report] if isinstance(report, list) else report


def main() -> int:
    targets = (*BUILTINS, *FILES)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", default=targets, help="of " + ", ".join(targets))
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--cases", type=int, default=10)
    options = parser.parse_args()
    flipped = 0
    with tempfile.TemporaryDirectory() as place:
        for name, code in FILES.items():
            (Path(place) / name.partition(":")[0]).write_text(code)
        for target in options.targets:
            seen: dict[str, int] = {}
            statuses: dict[int, int] = {}
            for _ in range(options.times):
                with tempfile.TemporaryDirectory() as empty:
                    text = f"{place}/{target}" if target in FILES else target
                    command = [
                        sys.executable,
                        "-m",
                        "properties",
                        text,
                        "--cases",
                        str(options.cases),
                        "-n",
                        "1",
                        "-q",
                        "--json",
                        "report.json",
                    ]
                    environment = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
                    status = subprocess.run(command, cwd=empty, env=environment, capture_output=True).returncode
                    report = json.dumps(same(json.loads((Path(empty) / "report.json").read_text())), sort_keys=True)
                seen[report] = seen.get(report, 0) + 1
                statuses[status] = statuses.get(status, 0) + 1
            flipped += (len(statuses) > 1 or len(seen) > 1) and target != AT_RANDOM
            print(f"{target:34} {options.times} runs, exit status {statuses}, {len(seen)} different reports", flush=True)
    print(f"{flipped} targets of which a verdict or a report was another one")
    return 1 if flipped else 0


if __name__ == "__main__":
    sys.exit(main())
