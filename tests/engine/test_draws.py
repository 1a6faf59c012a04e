"""Draws: the same in every process, independent of one another, all elements alike, shrunk to the first."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
from drawing import drawn
from hypothesis import find, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample
from hypothesis.internal.conjecture import providers

from impls import numpy_matmul
from properties.catalogue import PROPERTIES
from properties.engine.cases.draws import either, independent, natural, pick
from properties.engine.search.probe import make_target
from properties.engine.search.search import Plan, search

FIELDS = 10
CASE = independent(st.tuples(*(pick(range(6)) for _ in range(FIELDS))))
SEEDED = independent(st.tuples(pick(range(6)), natural(2**31)))
ROOT = Path(__file__).parents[2]


SCRIPT = """
import sys
sys.path[:0] = [{root!r}, {root!r} + "/tests/support", "."]
{imports}
from hypothesis import strategies as st
from drawing import drawn
from properties.engine.cases.draws import independent, natural, pick
print(drawn(independent(st.tuples(pick(range(6)), natural(2**31))), 3, 150))
"""


def test_another_process_draws_the_same(tmp_path: Path) -> None:
    """Also one that has loaded a local module full of numbers, which Hypothesis would otherwise draw."""
    (tmp_path / "numbers_of_mine.py").write_text("NUMBERS = [" + ", ".join(str(n) for n in range(1000, 90000, 701)) + "]\n")
    outputs = []
    for imports in ("", "import numbers_of_mine"):
        script = SCRIPT.format(root=str(ROOT), imports=imports)
        ran = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
        outputs.append(ran.stdout)
    assert outputs[0] == outputs[1] == f"{drawn(SEEDED, 3, 150)}\n"


def test_cases_are_no_copies_of_one_another() -> None:
    """Of ten fields with six values, two independent cases agree in six or more once in 400 pairs."""
    pairs = [pair for seed in range(5) for pair in pairwise(drawn(CASE, seed, 150))]
    agree = [sum(a == b for a, b in zip(one, other, strict=True)) for one, other in pairs]
    assert len(agree) > 700
    assert sum(count >= 6 for count in agree) < len(agree) / 50


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize("strategy", [pick("abcdefgh"), natural(8), either([st.just(n) for n in range(8)])])
def test_all_elements_are_drawn_alike(strategy: Any) -> None:
    """Each of eight comes within six standard deviations of its share."""
    counts = Counter(value for seed in range(4) for value in drawn(independent(st.tuples(strategy, natural(2**31))), seed, 400))
    found = Counter(value for value, _ in counts.elements())
    total = found.total()
    assert total > 1500 and len(found) == 8
    assert all(abs(n - total / 8) < 6 * (total * 7 / 64) ** 0.5 for n in found.values())


def test_a_table_shrinks_to_its_first_element() -> None:
    smallest = find(CASE, lambda case: case[3] >= 2 and case[7] >= 1, settings=settings(database=None), random=Random(0))
    assert smallest == tuple({3: 2, 7: 1}.get(n, 0) for n in range(FIELDS))


def test_no_source_is_read_for_constants_that_are_not_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[object] = []
    monkeypatch.setattr(providers, "constants_from_module", lambda module: read.append(module) or providers.Constants())
    for ours in (True, False):
        monkeypatch.setattr(providers, "_seen_modules", set())
        monkeypatch.setattr(providers, "_sys_modules_len", None)
        if ours:
            search(make_target("matmul", numpy_matmul.attention), PROPERTIES["rows_sum_to_one"], Plan(examples=100))
        else:
            with pytest.raises(NoSuchExample):
                find(st.lists(st.integers(), min_size=60), lambda drawn: False, settings=settings(database=None, max_examples=20))
        assert bool(read) != ours  # Hypothesis reads it for what others draw
