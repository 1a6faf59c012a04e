"""What ``benchmarks.mutate`` changes, and which tests it asks."""

from __future__ import annotations

import argparse
import ast
import json
from pathlib import Path
from typing import Any

from benchmarks.mutate import RESULTS, TESTS, TEXT, calling, chosen, drawn, files_of, modules, result, table, unexplained
from benchmarks.mutations import mutations

ROOT = Path(__file__).parents[1]
SOURCE = '''"""Said."""
from functools import cache

WIDE: int = 3


class Kernel:
    """Said."""

    def rows(self, n: int | None = None) -> float:
        """Said."""
        if n is None or not self.ready:
            raise ValueError(f"{n + 1} is none")
        for x in "é", self.all(n):
            if x < 1 <= n:
                break
            self.note(x)
        return min(n, 2) + 0.5 if self.ready else -n


@cache
def kept() -> bool:
    return True
'''


def test_what_is_changed() -> None:
    found = mutations("kernel.py", SOURCE)
    assert [(m.line, m.function, m.was, m.now) for m in found] == [
        (4, "", "3", "4"),
        (12, "Kernel.rows", "n is None or not self.ready", "n is None and (not self.ready)"),
        (12, "Kernel.rows", "n is None", "n is not None"),
        (12, "Kernel.rows", "not self.ready", "self.ready"),
        (14, "Kernel.rows", "self.all(n)", "self.any(n)"),
        (15, "Kernel.rows", "x < 1 <= n", "x <= 1 <= n"),
        (15, "Kernel.rows", "x < 1 <= n", "x < 1 < n"),
        (15, "Kernel.rows", "1", "2"),
        (16, "Kernel.rows", "break", "continue"),
        (17, "Kernel.rows", "self.note(x)", "pass"),
        (18, "Kernel.rows", "min(n, 2) + 0.5 if self.ready else -n", "-n if self.ready else min(n, 2) + 0.5"),
        (18, "Kernel.rows", "min(n, 2) + 0.5", "min(n, 2) - 0.5"),
        (18, "Kernel.rows", "min(n, 2)", "max(n, 2)"),
        (18, "Kernel.rows", "2", "3"),
        (18, "Kernel.rows", "0.5", "1.0"),
        (18, "Kernel.rows", "-n", "n"),
        (23, "kept", "True", "False"),
    ]
    assert len({m.key for m in found}) == len(found)
    lines = SOURCE.splitlines()
    for m in found:
        other = m.text.splitlines()
        assert len(other) == len(lines) and [at for at, (a, b) in enumerate(zip(lines, other, strict=True), 1) if a != b] == [m.line]
        ast.parse(m.text)


def test_the_tests_that_call_a_function_are_asked_first_the_quickest() -> None:
    by = {m.function: m for m in mutations("kernel.py", SOURCE)}
    tests = {"slow": (9.0, ["kernel.py:Kernel.rows"]), "quick": (1.0, ["kernel.py:Kernel.rows"]), "other": (0.5, ["kernel.py:kept"])}
    assert chosen(by["Kernel.rows"], set(), tests, 99.0) == ["quick", "slow"]
    assert chosen(by["Kernel.rows"], set(), tests, 5.0) == ["quick"] == chosen(by["Kernel.rows"], set(), tests, 0.0)
    assert chosen(by["kept"], {"kernel.py:kept"}, tests, 99.0) == ["other", "quick", "slow"] == chosen(by[""], set(), tests, 99.0)


def test_every_function_says_that_it_is_called() -> None:
    calls = calling("kernel.py", SOURCE)
    assert calls.count("_called") == 1 and "kernel.py:Kernel.rows" in calls  # what is kept is called once for all


def test_every_module_has_its_tests() -> None:
    assert all((ROOT / place).exists() and (ROOT / file.split("::")[0]).exists() for place, files in TESTS.items() for file in files)
    assert len(modules()) == len(set(modules())) and {files_of(path) for path in modules()} == set(TESTS.values())


# ---------------------------------------------------------------- what is recorded

RECORDED: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8"))
AGAIN = "python -m benchmarks.mutate PATH --seconds 8, with --again, or --sample 10 for a new module; then a reason for what lives"


def test_every_module_was_put_to_the_proof() -> None:
    sources = {path: (ROOT / path).read_text(encoding="utf-8") for path in modules()}
    assert set(RECORDED) == {path for path, source in sources.items() if mutations(path, source)}, AGAIN
    assert all(row["tried"] >= min(4, row["all"]) for row in RECORDED.values())


def test_what_lives_has_a_reason_and_is_still_there() -> None:
    for path, row in RECORDED.items():
        lines = {line.strip() for line in (ROOT / path).read_text(encoding="utf-8").splitlines()}
        assert row["killed"] + len(row["alive"]) == row["tried"]
        for survivor in row["alive"]:
            assert survivor["why"].strip(), (path, survivor, AGAIN)
            assert survivor["source"] in lines, (path, survivor["source"], AGAIN)


def test_the_page_is_that_of_the_results() -> None:
    assert TEXT.read_text(encoding="utf-8") == table(RECORDED)


def options(**changed: Any) -> argparse.Namespace:
    return argparse.Namespace(**{"again": False, "check": False, "sample": None, "seed": 0, "seconds": 8.0, **changed})


def before(alive: list[Any], tried: int) -> dict[str, Any]:
    """What was recorded of a module: the first of what lives has a reason."""
    recorded = [
        {"function": m.function, "was": m.was, "now": m.now, "number": m.number, "why": "" if at else "the same"}
        for at, m in enumerate(alive)
    ]
    return {"tried": tried, "seed": 5, "alive": recorded}


def test_which_changes_are_tried() -> None:
    every = mutations("kernel.py", SOURCE)
    ten = drawn("kernel.py", every, options(sample=10, seed=5), before([], 0))
    assert len(ten) == 10 and ten == sorted(ten, key=every.index) == drawn("kernel.py", every, options(sample=10, seed=5), before([], 0))
    assert ten != drawn("kernel.py", every, options(sample=10, seed=6), before([], 0))
    assert drawn("kernel.py", every, options(), before([], 0)) == every == drawn("kernel.py", every, options(sample=99), before([], 0))
    assert drawn("kernel.py", every, options(again=True), before(every[3:5], 10)) == every[3:5]
    measured = before([], 10) | {"all": len(every)}
    days = [drawn("kernel.py", every, options(check=True, sample=3, seed=day), measured) for day in range(40)]
    assert all(len(day) == 3 for day in days) and {m.key for day in days for m in day} == {m.key for m in ten}  # of what was tried
    assert drawn("kernel.py", every, options(check=True, sample=3, seed=1), measured | {"all": 3}) == []  # it has changed since


def test_what_lives_without_a_recorded_reason_is_an_error() -> None:
    every = mutations("kernel.py", SOURCE)
    recorded = before(every[:2], 10)
    assert unexplained(every[:1], recorded) == [] and unexplained(every[:3], recorded) == every[1:3]


def test_a_change_of_a_line_that_is_another_now_was_not_tried() -> None:
    every = mutations("kernel.py", SOURCE)
    recorded = before(every[:3], 10)
    kept = result(SOURCE, every[1:], every[1:3], every[2:3], options(again=True), recorded)
    assert (kept["tried"], kept["killed"], kept["seed"]) == (9, 8, 5)
    kept = result(SOURCE, every, every[:4], every[:2], options(), recorded)
    assert (kept["tried"], kept["killed"], [s["why"] for s in kept["alive"]]) == (4, 2, ["the same", ""])
