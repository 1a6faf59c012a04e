"""Attention of published packages, nothing declared: every class of a module whose name says so, as a stranger would point the checker at it.

    python -m benchmarks.published vit_pytorch timm labml_nn --kept published.jsonl
    python -m benchmarks.published --shown published.jsonl

The packages are those of this environment. Each class is one run of the command line, in a process of its own; what it said is kept, a line
each, and a run that is kept is not repeated. Told at the end: how many were let go, refuted, and not understood, and the first sentence of
each that was not let go.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

NAMED = re.compile(r"attn|attention|mha|gqa", re.IGNORECASE)
LEFT_OUT = re.compile(r"test|example|script|setup|__main__")
STATUSES = {0: "let go", 1: "refuted", 2: "not understood"}
LOOK = """
import importlib, inspect, pkgutil, sys, warnings
warnings.simplefilter("ignore")
import torch
top = importlib.import_module(sys.argv[1])
names = [top.__name__, *(each.name for each in pkgutil.walk_packages(getattr(top, "__path__", []), top.__name__ + ".", onerror=lambda _: None))]
for name in names:
    try:
        module = importlib.import_module(name)
    except BaseException:
        continue
    for key, value in vars(module).items():
        if inspect.isclass(value) and issubclass(value, torch.nn.Module) and value.__module__ == name:
            print("class", name + ":" + key)
"""


def classes(package: str) -> Iterator[str]:
    """Where the attention of a package is: module:Class."""
    found = subprocess.run([sys.executable, "-c", LOOK, package], capture_output=True, text=True, check=False)
    for line in found.stdout.splitlines():
        kind, _, target = line.partition(" ")
        if kind == "class" and NAMED.search(target.partition(":")[2]) and not LEFT_OUT.search(target):
            yield target
    if found.returncode:
        print(f"{package}: {found.stderr.strip().splitlines()[-1]}", file=sys.stderr)


def run(target: str, seconds: float) -> dict[str, Any]:
    """What one run of the command line said."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "properties", target, "--time", f"{seconds:g}s", "-n", "1"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20 * seconds)
    except subprocess.TimeoutExpired:
        return {"target": target, "status": None, "seconds": 20 * seconds, "said": "no end"}
    lines = [
        line for line in (said.stdout + said.stderr).splitlines() if line.startswith(("REFUTED", "NOTHING", "INCOMPLETE", "attncheck:"))
    ]
    return {"target": target, "status": said.returncode, "seconds": round(time.perf_counter() - began, 1), "said": "\n".join(lines)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packages", nargs="*")
    parser.add_argument("--time", type=float, default=12.0, help="seconds for each")
    parser.add_argument("-n", type=int, default=2, help="how many at a time")
    parser.add_argument("--kept", type=Path, default=Path("published.jsonl"))
    parser.add_argument("--shown", type=Path, help="show what is kept in this file, and run nothing")
    options = parser.parse_args()
    kept = options.shown or options.kept
    runs = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []
    if not options.shown:
        done = {each["target"] for each in runs}
        targets = [target for package in options.packages for target in classes(package) if target not in done]
        with ThreadPoolExecutor(options.n) as pool, kept.open("a") as file:
            for each in pool.map(lambda target: run(target, options.time), targets):
                file.write(json.dumps(each) + "\n")
                file.flush()
                runs.append(each)
                print(f"{STATUSES.get(each['status'], 'no end')}  {each['target']}  {each['seconds']} s", flush=True)
    for each in runs:
        if each["status"]:
            print(
                f"{STATUSES.get(each['status'], 'no end')}  {each['target']}: {each['said'].splitlines()[-1][:200] if each['said'] else ''}"
            )
    print(", ".join(f"{count} {what}" for what, count in Counter(STATUSES.get(each["status"], "no end") for each in runs).items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
