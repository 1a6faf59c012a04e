"""How many candidates one core judges in a minute: wrong ones, up to their first finding, and right ones, up to their last case.

    python -m benchmarks.contained.throughput          # twelve wrong ones and two right ones of each kind
    python -m benchmarks.contained.throughput 30 3

Kinds: functions of NumPy, functions of PyTorch, modules beside a reference as in KernelBench. Each group is one run of ``attncheck judge -n 1``;
its start, imports of libraries included, is counted.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

NUMPY = """
import numpy as np

def attention(q, k, v, attn_mask=None, is_causal=False):
    scores = q @ np.swapaxes(k, -1, -2) * (q.shape[-1] or 1) ** -0.5
    if is_causal:
        scores = np.where(np.tri(*scores.shape[-2:], CAUSAL, dtype=bool), scores, -np.inf)
    if attn_mask is not None:
        scores = np.where(MASK, scores, -np.inf) if attn_mask.dtype == bool else scores + attn_mask
    top = scores.max(-1, keepdims=True, initial=-np.inf)
    weights = np.exp(scores - np.where(top == -np.inf, 0, top))
    total = weights.sum(-1, keepdims=True) + MORE
    return (weights / np.where(total == 0, 1, total)) @ v * q.dtype.type(FACTOR)
"""
TORCH = """
import torch

def attention(q, k, v, attn_mask=None, is_causal=False):
    scores = q @ k.mT * (q.shape[-1] or 1) ** -0.5
    if is_causal:
        scores = scores.masked_fill(~torch.ones(scores.shape[-2:], dtype=torch.bool).tril(CAUSAL), -torch.inf)
    if attn_mask is not None:
        scores = scores.masked_fill(~(MASK), -torch.inf) if attn_mask.dtype == torch.bool else scores + attn_mask
    alone = (scores == -torch.inf).all(-1, keepdim=True)
    weights = torch.softmax(scores.masked_fill(alone, 0), -1).masked_fill(alone, 0) / (1 + MORE)
    return weights @ v * FACTOR
"""
MODULE = """
import torch
from torch import nn

class NAME(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        scores = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(~torch.ones(2 * x.shape[1:2], dtype=torch.bool).tril(CAUSAL), -torch.inf)
        weights = torch.softmax(scores, -1) / (1 + MORE)
        return self.proj((weights @ v).transpose(1, 2).flatten(2)) * FACTOR

def get_inputs(): return [torch.randn(2, 16, 32)]
def get_init_inputs(): return [32, 4]
"""
RIGHT = {"CAUSAL": "0", "MASK": "attn_mask", "MORE": "0.0", "FACTOR": "1.0"}
MISTAKES = (
    {"CAUSAL": "1"},
    {"FACTOR": "1.01"},
    {"MORE": "1e-3"},
    {"FACTOR": "(1.0 if q.shape[-2] < 9 else 1.001)"},
    {"MASK": "~attn_mask"},
    {"MORE": "1e-3 * (k.shape[-2] > 16)"},
)


def written(folder: Path, code: str, wrong: int, right: int) -> list[Path]:
    """Two folders of candidates; a mistake that the code has no place for is the one before it."""
    places = [folder / "wrong", folder / "right"]
    able = [mistake for mistake in MISTAKES if all(name in code for name in mistake)]
    for place, count, mistakes in zip(places, (wrong, right), (able, [{}]), strict=True):
        place.mkdir()
        for number in range(count):
            made = code.replace("NAME", "ModelNew")
            for name, value in (RIGHT | mistakes[number % len(mistakes)]).items():
                made = made.replace(name, value)
            (place / f"candidate_{number}.py").write_text(made)
    return places


def main() -> int:
    counts = [int(number) for number in sys.argv[1:]] or [12, 2]
    for kind, code in (("functions of NumPy", NUMPY), ("functions of PyTorch", TORCH), ("modules beside a reference", MODULE)):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            reference = code
            for place, value in (RIGHT | {"NAME": "Model"}).items():
                reference = reference.replace(place, value)
            (folder / "reference.py").write_text(reference)
            more = ["--reference", str(folder / "reference.py")] if "NAME" in code else []
            told = []
            for place, count, status in zip(written(folder, code, *counts), counts, (1, 0), strict=True):
                began = time.perf_counter()
                done = subprocess.run(
                    [sys.executable, "-m", "properties", "judge", str(place), "-n", "1", *more], capture_output=True, text=True
                )
                if done.returncode != status:
                    print(done.stdout, done.stderr, file=sys.stderr)
                    return 1
                told.append(f"{60 * count / (time.perf_counter() - began):.0f} {place.name}")
            print(f"{kind}: {' or '.join(told)} ones a minute", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
