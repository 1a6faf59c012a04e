"""The checker's own tests put to the proof: one small mistake at a time is put into the checker, and its tests should notice.

    python -m benchmarks.mutate                                   every change of every module of the table: many hours
    python -m benchmarks.mutate properties/exact --sample 200     200 of them, the same ones for the same --seed
    python -m benchmarks.mutate --again                           only what lived the last time
    python -m benchmarks.mutate --check --sample 3                3 of those that were tried, others every day; nothing is recorded,
                                                                  and what lives without a reason that is recorded is an error

``MUTATION.md`` tells what lived, and why it may. A survivor's reason is written by hand into ``mutation.json``, where the next run finds it.

Why no tool that there is: mutmut 3 leaves out functions with a decorator (but for static and class methods), such as the verdict of a report,
and all that stands at the top of a module, such as the tables of masks; cosmic-ray starts Python anew for every change, and importing
torch takes longer than most of the tests. Here a process that has imported the libraries, and nothing of the checker, is
forked for every change; the change is written into a copy of the tree, so that processes which a test starts see it as well.

A change is put to the tests of its module's line in ``TESTS`` that call the changed function, the quickest first. Which they are is
seen in a first run, in which every function says that it was called. It is killed when a test fails or takes too long.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import compileall
import contextlib
import datetime
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

from benchmarks.mutations import Mutation, mutations

ROOT = Path(__file__).parents[1]
RESULTS, TEXT = ROOT / "benchmarks/mutation.json", ROOT / "benchmarks/MUTATION.md"
EXACT = ("tests/exact", "tests/block/test_block_bound.py")
CLAIMS = ("tests/exact/test_same_bits.py", "tests/engine/test_claims.py")
SEARCH = tuple(f"tests/engine/test_{name}.py" for name in ("search", "run", "saved_cases", "deviations"))
CORE = tuple(f"tests/engine/test_{name}.py" for name in ("attempt", "claims", "contracts", "target", "schema", "search", "case"))
MASKS = ("tests/engine/test_masks.py", "tests/attention/test_inputs.py")
PROPERTIES = (
    "tests/attention/test_causality.py",
    "tests/attention/test_mask_properties.py",
    "tests/engine/test_integrity.py::test_the_exact_answer_passes",
    "tests/engine/test_integrity.py::test_every_property_refutes_a_mistake_of_its_own",
)
FOUND = tuple(f"tests/engine/test_{name}.py" for name in ("search", "run", "saved_cases", "deviations", "target", "schema"))


def own(name: str, *others: str) -> tuple[str, ...]:
    return tuple(f"tests/engine/test_{file}.py" for file in (name, *others))


# Module, or folder → the test files that are to notice. The first line that fits counts.
TESTS = {
    "properties/exact/slope.py": ("tests/exact/test_slope.py", "tests/module/test_slopes.py"),
    "properties/exact/shown.py": own("notebook"),
    "properties/exact": EXACT,
    "properties/engine/core/ascent.py": ("tests/module/test_slopes.py",),
    "properties/cache/exact.py": ("tests/exact/test_contract_bounds.py", "tests/cache"),
    "properties/position/exact.py": ("tests/exact/test_contract_bounds.py", "tests/position"),
    "properties/linear/exact.py": ("tests/exact/test_contract_bounds.py", "tests/linear"),
    "properties/engine/core/trial.py": CLAIMS,
    "properties/engine/core/crash.py": own("crash", "attempt"),
    "properties/engine/core/explanation.py": own("contrast"),
    "properties/engine/core/finding.py": own("diagnosis"),
    "properties/engine/core/documented.py": (*own("documented"), "tests/attention/test_written.py"),
    "properties/engine/core/pace.py": own("pace"),
    "properties/engine/core/picture.py": own("pictures"),
    "properties/engine/core/declare.py": (*CORE, *own("domains")),
    "properties/engine/core/contract.py": (*CORE, *own("domains", "own", "replay"), "tests/pairs/test_pairs.py"),
    "properties/engine/core/schema.py": (*CORE, *own("domains")),
    "properties/engine/core": CORE,
    "properties/engine/search/alike.py": ("tests/attention/test_shared_deviations.py",),
    "properties/engine/search/diagnosis.py": own("diagnosis"),
    "properties/engine/search/find_target.py": own("find_target", "target"),
    "properties/engine/search/floor.py": own("floor", "run"),
    "properties/engine/search/interrupt.py": own("interrupt"),
    "properties/engine/search/journal.py": own("journal"),
    "properties/engine/search/own_words.py": ("tests/contained/test_own_words.py",),
    "properties/engine/search/pairs.py": ("tests/pairs",),
    "properties/engine/search/ranges.py": own("ranges"),
    "properties/engine/search/run.py": SEARCH,
    "properties/engine/search/search.py": SEARCH,
    "properties/engine/search": FOUND,
    "properties/engine/cases/masks.py": MASKS,
    "properties/attention/inputs.py": MASKS,
    "properties/attention/causality.py": PROPERTIES,
    "properties/attention/masks.py": PROPERTIES,
}
SLACK = 15.0  # seconds that a change may take beyond four times what its tests take without it


def files_of(path: str) -> tuple[str, ...]:
    """The test files of a module."""
    return next(files for place, files in TESTS.items() if path == place or path.startswith(place + "/"))


def modules() -> list[str]:
    """Every module of the table."""
    found: list[Path] = []
    for place in TESTS:
        found += [ROOT / place] if place.endswith(".py") else sorted((ROOT / place).glob("*.py"))
    return list(dict.fromkeys(str(path.relative_to(ROOT)) for path in found))


# ---------------------------------------------------------------- processes


def warm() -> None:
    """Import what every run of tests imports, and nothing of the checker."""
    for name in ("numpy", "hypothesis", "pytest", "torch", "scipy.special", "mpmath", "rich.console"):
        with contextlib.suppress(ImportError):
            __import__(name)


def tested(tree: Path, tests: list[str], plugin: Any) -> None:
    """Run these tests, and end the process with what pytest returns."""
    os.setsid()
    os.chdir(tree)
    with open(tree / "output.txt", "w") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    sys.dont_write_bytecode = plugin is None  # a change leaves nothing behind
    sys.path[:] = [str(tree), *(entry for entry in sys.path if Path(entry).resolve() != ROOT)]
    import pytest

    code = pytest.main(
        ["-x", "-q", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning", *tests], [plugin] if plugin else []
    )
    sys.stdout.flush()
    os._exit(int(code))


def forked(tree: Path, tests: list[str], limit: float, plugin: Any = None) -> int | None:
    """What pytest returns for these tests in a copy of the tree, in a process of its own; None: it took too long."""
    shutil.rmtree(tree / ".hypothesis", ignore_errors=True)  # no case that another change has failed
    child = os.fork()
    if not child:
        try:
            tested(tree, tests, plugin)
        finally:  # nothing of this process's own is done twice
            traceback.print_exc()
            os._exit(3)
    end = time.monotonic() + limit
    try:
        while time.monotonic() < end:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.02)
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return None
    finally:
        with contextlib.suppress(ProcessLookupError):  # what it has started
            os.killpg(child, signal.SIGKILL)


class Seen:
    """A plugin of pytest: how long each test takes, and which functions of the checker it calls."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.calls: set[str] = set()
        self.tests: dict[str, tuple[float, list[str]]] = {}
        self.early: list[str] = []
        builtins._called = self.calls.add  # type: ignore[attr-defined]

    def pytest_collection_finish(self) -> None:
        """What was called until now, while modules were imported, is called for every test."""
        self.early = sorted(self.calls)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.calls.clear()
        self.began = time.monotonic()

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self.tests[nodeid] = (time.monotonic() - self.began, sorted(self.calls))

    def pytest_sessionfinish(self) -> None:
        self.file.write_text(json.dumps([self.early, self.tests]))


def calling(path: str, source: str) -> str:
    """The module, with every function saying that it is called; one with a cache says nothing."""

    def tell(node: ast.AST, name: str) -> None:
        for child in ast.iter_child_nodes(node):
            inside = f"{name}.{child.name}".strip(".") if isinstance(child, (ast.FunctionDef, ast.ClassDef)) else name
            tell(child, inside)
            if isinstance(child, ast.FunctionDef) and not any(ast.unparse(d) == "cache" for d in child.decorator_list):
                said = ast.parse(f"getattr(__import__('builtins'), '_called', len)({f'{path}:{inside}'!r})").body
                child.body = [*child.body[:1], *said, *child.body[1:]] if ast.get_docstring(child) else [*said, *child.body]

    tree = ast.parse(source)
    tell(tree, "")
    return ast.unparse(ast.fix_missing_locations(tree))


def look(tree: Path, paths: list[str], files: tuple[str, ...]) -> tuple[set[str], dict[str, tuple[float, list[str]]]]:
    """The functions called before any test, and for each test of these files its seconds and the functions that it calls."""
    for path in paths:
        (tree / path).write_text(calling(path, (ROOT / path).read_text(encoding="utf-8")), encoding="utf-8")
    code = forked(tree, list(files), 3600.0, Seen(tree / "seen.json"))
    for path in paths:
        shutil.copy2(ROOT / path, tree / path)
    if code != 0:
        raise SystemExit(f"the tests fail without any change:\n{(tree / 'output.txt').read_text(encoding='utf-8')[-3000:]}")
    early, tests = json.loads((tree / "seen.json").read_text(encoding="utf-8"))
    return set(early), tests


def chosen(mutation: Mutation, early: set[str], tests: dict[str, tuple[float, list[str]]], seconds: float) -> list[str]:
    """The tests that a change is put to, the quickest first: those that call its function; all of them where that is not known."""
    name = f"{mutation.path}:{mutation.function}"
    calls = [test for test, (_, called) in tests.items() if name in called]
    total, found = 0.0, []
    for test in sorted(calls if calls and name not in early else tests, key=lambda test: tests[test][0]):
        total += tests[test][0]
        if total > seconds and found:
            break
        found.append(test)
    return found


def lives(tree: Path, mutation: Mutation, tests: dict[str, tuple[float, list[str]]], to: list[str]) -> bool:
    """Whether no test notices the change."""
    file = tree / mutation.path
    file.write_text(mutation.text, encoding="utf-8")
    limit = SLACK + 4 * sum(tests[test][0] for test in to)
    try:
        return forked(tree, to, limit) == 0
    finally:
        shutil.copy2(ROOT / mutation.path, file)


# ---------------------------------------------------------------- results


def table(results: dict[str, Any]) -> str:
    """The results as a page."""
    tried, killed = (sum(r[name] for r in results.values()) for name in ("tried", "killed"))
    lines = [
        "# Mistakes in the checker that its own tests notice",
        "",
        "Written by `python -m benchmarks.mutate` (`tox run -e mutate`): one small change at a time, put to the tests of its module that call the",
        "changed function. `all`: how many changes the module has; `tried`: how many of them were drawn; `seconds`: of tests that one was put to at",
        "most, the quickest first (`--seconds`). A change is killed when a test fails or takes too long.",
        "",
        f"Tried {tried}, killed {killed}, alive {tried - killed}.",
        "",
        "| module | all | tried | killed | alive | without a reason | seed | seconds | date |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---|",
    ]
    for path, r in results.items():
        unexplained = sum(not s["why"] for s in r["alive"])
        cells = (
            f"`{path}`",
            r["all"],
            r["tried"],
            r["killed"],
            len(r["alive"]),
            unexplained,
            r["seed"],
            r["seconds"] or "all",
            r["date"],
        )
        lines.append(f"| {' | '.join(map(str, cells))} |")
    for path, r in results.items():
        if r["alive"]:
            lines += ["", f"## {path}", "", "| line | change | why it may live |", "|---|---|---|"]
        for s in r["alive"]:
            change = f"`{s['was']}` → `{s['now']}` in `{s['source']}`".replace("|", "\\|")
            lines.append(f"| {s['line']}, {s['function'] or 'top'} | {change} | {s['why'] or '**open**'} |")
    return "\n".join(lines) + "\n"


def key(survivor: dict[str, Any]) -> tuple[str, str, str, int]:
    return survivor["function"], survivor["was"], survivor["now"], survivor["number"]


def write(results: dict[str, Any]) -> None:
    RESULTS.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    TEXT.write_text(table(results), encoding="utf-8")


def run(tree: Path, path: str, tried: list[Mutation], seen: Any, seconds: float) -> list[Mutation]:
    """The changes of a module that live."""
    alive = []
    for number, mutation in enumerate(tried, 1):
        began = time.monotonic()
        to = chosen(mutation, *seen, seconds)
        if lives(tree, mutation, seen[1], to):
            alive.append(mutation)
        print(
            f"{path}:{mutation.line} {number}/{len(tried)} {'ALIVE ' if mutation in alive else 'killed'} {time.monotonic() - began:5.1f} s "
            f"{len(to)} tests  {mutation.function}: {mutation.was} → {mutation.now}",
            flush=True,
        )
    return alive


def copied(tree: Path) -> None:
    """A copy of the tree, compiled."""
    for name in subprocess.check_output(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, text=True).splitlines():
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name)
    compileall.compile_dir(tree, quiet=1)


def drawn(path: str, every: list[Mutation], options: argparse.Namespace, before: dict[str, Any]) -> list[Mutation]:
    """The changes of a module that are tried, in the order of its lines."""
    if options.again:
        return [m for m in every if m.key in {key(s) for s in before["alive"]}]
    if options.check:  # of the others nobody knows whether they live
        if len(every) != before["all"]:
            print(f"{path} has changed since it was measured: {before['all']} changes were there, {len(every)} are; nothing of it is tried")
            return []
        every = some(path, every, before["tried"], before["seed"])
    return some(path, every, options.sample, options.seed)


def some(path: str, every: list[Mutation], count: int | None, seed: int) -> list[Mutation]:
    """So many of them, the same ones for the same seed."""
    if count is None or count >= len(every):
        return every
    return sorted(random.Random(f"{seed} {path}").sample(every, count), key=every.index)


def unexplained(alive: list[Mutation], before: dict[str, Any]) -> list[Mutation]:
    """What lives without a reason that is recorded."""
    reasons = {key(s) for s in before["alive"] if s["why"]}
    return [m for m in alive if m.key not in reasons]


def result(
    source: str, every: list[Mutation], tried: list[Mutation], alive: list[Mutation], options: argparse.Namespace, before: Any
) -> dict[str, Any]:
    """What is kept of a module; the reasons that were written by hand are."""
    reasons = {key(s): s["why"] for s in before["alive"]}
    gone = len(before["alive"]) - len(tried)  # with --again: changes of lines that are others now
    count = before["tried"] - gone if options.again else len(tried)
    return {
        "all": len(every),
        "tried": count,
        "killed": count - len(alive),
        "seed": before["seed"] if options.again else options.seed,
        "seconds": options.seconds if math.isfinite(options.seconds) else None,
        "date": datetime.date.today().isoformat(),
        "alive": [
            {
                "line": m.line,
                "function": m.function,
                "was": m.was,
                "now": m.now,
                "number": m.number,
                "source": source.splitlines()[m.line - 1].strip(),
                "why": reasons.get(m.key, ""),
            }
            for m in alive
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("places", nargs="*", help="modules or folders of the table; all without any")
    parser.add_argument("--sample", type=int, metavar="N", help="so many changes of each module at most")
    parser.add_argument("--seed", type=int, help="of the sample; 0, or, with --check, the day")
    parser.add_argument(
        "--seconds", type=float, default=math.inf, help="of tests that a change is put to at most; all that call it, without"
    )
    parser.add_argument("--again", action="store_true", help="only what lived the last time")
    parser.add_argument(
        "--check", action="store_true", help="record nothing; fail if a change that was tried before lives without a reason"
    )
    parser.add_argument("--table", action="store_true", help="run nothing: MUTATION.md from mutation.json anew")
    options = parser.parse_args()
    if options.seed is None:
        options.seed = datetime.date.today().toordinal() if options.check else 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))
    results: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    if options.table:
        return write(results)
    warm()
    places = [place.rstrip("/") for place in options.places]
    wanted = [path for path in modules() if not places or any(path == place or path.startswith(place + "/") for place in places)]
    seen: dict[tuple[str, ...], Any] = {}
    new: list[Mutation] = []
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        copied(tree)
        for path in wanted:
            source, files = (ROOT / path).read_text(encoding="utf-8"), files_of(path)
            every = mutations(path, source)
            before = results.get(path, {"all": 0, "tried": 0, "seed": options.seed, "alive": []})
            tried = drawn(path, every, options, before)
            if tried and files not in seen:
                seen[files] = look(tree, [p for p in wanted if files_of(p) == files], files)
            if tried:
                alive = run(tree, path, tried, seen[files], options.seconds)
                new += unexplained(alive, before)
                if not options.check:
                    results[path] = result(source, every, tried, alive, options, before)
                    write(dict(sorted(results.items())))
    if options.check and new:
        sys.exit("these live, and no reason is recorded:\n" + "\n".join(f"{m.path}:{m.line} {m.function}: {m.was} → {m.now}" for m in new))


if __name__ == "__main__":
    main()
