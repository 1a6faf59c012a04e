"""What ``benchmarks.mutate`` changes, and which tests it asks."""

from __future__ import annotations

import ast
from pathlib import Path

from benchmarks.mutate import TESTS, calling, chosen, files_of, modules
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
