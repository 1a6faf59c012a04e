"""Attention of published packages, nothing declared: every class of a module whose name says so, as a stranger would point the checker at it.

    python -m benchmarks.published vit_pytorch timm labml_nn --kept published.jsonl
    python -m benchmarks.published --shown published.jsonl
    python -m benchmarks.published --mistakes published.jsonl --every 3

The packages are those of this environment. Each class is one run of the command line, in a process of its own; what it said is kept, a line
each, and a run that is kept is not repeated. Told at the end: how many were let go, refuted, and not understood, and the first sentence of
each that was not let go.

``--mistakes`` plants mistakes in copies of those that were let go, one at a time, by a change of their text, and runs each up to the first
finding. A change may do nothing: a scale that is left out where another function is called. What is let go has to be read.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
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


def run(target: str, seconds: float, *more: str, path: str = "") -> dict[str, Any]:
    """What one run of the command line said; ``path``: where modules are looked for first."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "properties", target, "--time", f"{seconds:g}s", "-n", "1", *more]
    paths = os.pathsep.join(filter(None, (path, os.environ.get("PYTHONPATH", ""))))
    try:
        said = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=20 * seconds, env={**os.environ, "PYTHONPATH": paths}
        )
    except subprocess.TimeoutExpired:
        return {"target": target, "status": None, "seconds": 20 * seconds, "said": "no end"}
    lines = [
        line for line in (said.stdout + said.stderr).splitlines() if line.startswith(("REFUTED", "NOTHING", "INCOMPLETE", "attncheck:"))
    ]
    return {"target": target, "status": said.returncode, "seconds": round(time.perf_counter() - began, 1), "said": "\n".join(lines)}


# What is wrong then → texts and what comes in their place; the first that is there is changed.
MISTAKES: dict[str, tuple[tuple[str, str], ...]] = {
    "not scaled": (
        (r"\s*\*\s*self\.scale\b", ""),
        (r"\s*/\s*math\.sqrt\([^()]*(?:\([^()]*\))?[^()]*\)", ""),
        (r"\s*\*\s*\(?(?:dim_head|head_dim|d_k)\s*\*\*\s*-0?\.5\)?", ""),
    ),
    "scaled by half": ((r"(=\s*(?:dim_head|head_dim|self\.head_dim|dim_key)\s*\*\*\s*-0?\.5)", r"\1 * 0.5"),),
    "a softmax over queries": ((r"(softmax\([^()\n]*?dim\s*=\s*)-1", r"\1-2"), (r"(Softmax\(\s*dim\s*=\s*)-1", r"\1-2")),
    "the mask inverted": ((r"(masked_fill_?\(\s*)~", r"\1"), (r"(mask\s*)==(\s*0)", r"\1!=\2")),
    "the causal frontier one too far": ((r"triu\(\s*1\s*\)", "triu(2)"), (r"(triu\([^\n]*diagonal\s*=\s*)1\b", r"\g<1>2")),
    "queries meet queries": (
        (r"\bq\s*@\s*k\.", "q @ q."),
        (r"(matmul\(\s*q\s*,\s*)k\.", r"\1q."),
        (r"(einsum\([^\n]*,\s*q,\s*)k\)", r"\1q)"),
    ),
    "heads merged without a transpose": ((r"\.transpose\(1, 2\)(\.contiguous\(\))?(\.(?:reshape|view)\()", r"\1\2"),),
    "dropout in eval mode": ((r"training\s*=\s*self\.training", "training=True"),),
    "the norm of the input left out": ((r"\bx = self\.norm\(x\)", "x = x"),),
}


def with_mistakes(target: str, overlay: Path) -> Iterator[tuple[str, str]]:
    """(the mistake, where a copy of a class that has it is), below a copy of its package."""
    module, _, name = target.partition(":")
    spec = find_spec(module)
    if spec is None or not spec.origin:
        return
    source = Path(spec.origin)
    above = module.count(".") + (source.name == "__init__.py")
    root = source.parents[above - 1] if above else source
    place = overlay / root.name / source.relative_to(root) if root.is_dir() else overlay / root.name
    if not (overlay / root.name).exists():
        shutil.copytree(root, overlay / root.name) if root.is_dir() else shutil.copy(root, overlay)
    text = source.read_text(encoding="utf-8")
    node = next((each for each in ast.parse(text).body if isinstance(each, ast.ClassDef) and each.name == name), None)
    if node is None or node.end_lineno is None:
        return
    lines = text.splitlines()
    before, inside, after = (
        "\n".join(lines[part]) for part in (slice(node.lineno - 1), slice(node.lineno - 1, node.end_lineno), slice(node.end_lineno, None))
    )
    for number, (mistake, changes) in enumerate(MISTAKES.items()):
        changed = next((new for old, by in changes if (new := re.sub(old, by, inside, count=1)) != inside), None)
        if changed is not None:
            file = place.with_name(f"mistake_{number}_{name}_{place.stem}.py")
            file.write_text(f"{before}\n{changed}\n{after}\n", encoding="utf-8")
            yield mistake, f"{module.rpartition('.')[0] or module}.{file.stem}:{name}" if "." in module else f"{file.stem}:{name}"


def planted(kept: Path, seconds: float, every: int, workers: int) -> int:
    """Run what has a mistake, and tell what was found."""
    right = [each["target"] for each in map(json.loads, kept.read_text().splitlines()) if each["status"] == 0]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(workers) as pool:
        asked = [one for target in right for one in with_mistakes(target, Path(folder))][::every]
        found: dict[str, list[int]] = {}
        for (mistake, target), each in zip(asked, pool.map(lambda one: run(one[1], seconds, "--first", path=folder), asked), strict=True):
            found.setdefault(mistake, []).append(each["status"] == 1)
            print(f"{STATUSES.get(each['status'], 'no end')}  {mistake}  {target}  {each['seconds']} s", flush=True)
    for mistake, refuted in found.items():
        print(f"{sum(refuted)} of {len(refuted)}  {mistake}")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packages", nargs="*")
    parser.add_argument("--time", type=float, default=12.0, help="seconds for each")
    parser.add_argument("-n", type=int, default=2, help="how many at a time")
    parser.add_argument("--kept", type=Path, default=Path("published.jsonl"))
    parser.add_argument("--mistakes", type=Path, help="plant mistakes in those that were let go, by what is kept in this file")
    parser.add_argument("--every", type=int, default=1, help="every so many of these alone")
    parser.add_argument("--shown", type=Path, help="show what is kept in this file, and run nothing")
    options = parser.parse_args()
    if options.mistakes:
        return planted(options.mistakes, options.time, options.every, options.n)
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
