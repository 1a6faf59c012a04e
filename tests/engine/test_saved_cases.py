"""What every door shares: rounds, saved cases, and a target that is not the same at every call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis.database import DirectoryBasedExampleDatabase, InMemoryExampleDatabase

from impls import numpy_matmul
from properties.attention.case import Case
from properties.catalogue import PROPERTIES
from properties.engine.core.target import Target
from properties.engine.search.deviations import Deviation
from properties.engine.search.probe import make_target
from properties.engine.search.saved import Saved
from properties.engine.search.search import Plan, search


class Recording:
    """A right attention that counts, and fails on demand."""

    def __init__(self, name: str, wrong: bool = False) -> None:
        self.keys: list[int] = []
        self.wrong = wrong
        self.target: Target = make_target(name, self, {"framework": "numpy", "masked_nan": "leaks"})
        self.keys.clear()

    def __call__(self, q: Any, k: Any, v: Any, attn_mask: Any = None, is_causal: bool = False) -> Any:
        self.keys.append(k.shape[2])
        out = numpy_matmul.attention(q, k, v, attn_mask=attn_mask, is_causal=is_causal)
        return out * 1.01 if self.wrong and k.shape[2] > 2 else out


SUMS = PROPERTIES["rows_sum_to_one"]


def cases_of(target: Target, plan: Plan) -> list[str]:
    """The cases of a search, in order, read off what is recorded of them."""
    seen: list[Any] = []
    kernel: Any = target.function
    kernel.keys.clear()
    outcome = search(target, SUMS, plan)
    seen.extend(kernel.keys)
    return [*map(str, seen), str(sorted(outcome.features.items()))]


def test_a_round_draws_the_same_cases_every_time_and_others_draw_others() -> None:
    target = Recording("recording").target
    first, again = (cases_of(target, Plan(examples=40)) for _ in range(2))
    other, renamed = (
        cases_of(target, Plan(examples=40, round=1)),
        cases_of(Recording("other").target, Plan(examples=40)),
    )
    assert len(first) == 41 and first == again
    assert first != other and first != renamed


@pytest.mark.parametrize("order", ["passing first", "failing first"])
def test_a_passing_target_does_not_erase_the_saved_case_of_another(order: str, tmp_path: Path) -> None:
    """In one database, in either order; and the saved case is the first that the next run tries."""
    database = DirectoryBasedExampleDatabase(tmp_path)
    plan = Plan(examples=60, database=database)
    wrong, right = Recording("wrong", wrong=True), Recording("right")
    found = search(wrong.target, SUMS, plan).finding
    assert found is not None and found.first_at > 1
    for recorded in (right, wrong) if order == "passing first" else (wrong, right):
        search(recorded.target, SUMS, plan)
    again = search(wrong.target, SUMS, Plan(examples=60, database=database, round=7)).finding
    assert again is not None and (again.case, again.first_at) == (found.case, 1)


def test_a_repaired_target_forgets(tmp_path: Path) -> None:
    """When the saved case passes, it goes."""
    plan = Plan(examples=60, database=DirectoryBasedExampleDatabase(tmp_path))
    kernel = Recording("kernel", wrong=True)
    assert search(kernel.target, SUMS, plan).finding
    kernel.wrong = False
    assert search(kernel.target, SUMS, plan).finding is None
    kernel.wrong = True
    finding = search(kernel.target, SUMS, plan).finding
    assert finding is not None and finding.first_at > 1


def test_a_saved_case_is_not_tried_where_it_would_not_be_drawn(tmp_path: Path) -> None:
    """Another declaration, another dtype, a known deviation: the case is left alone, and comes back later."""
    database = DirectoryBasedExampleDatabase(tmp_path)
    kernel = Recording("kernel", wrong=True)
    plan = Plan(examples=60, database=database)
    found = search(kernel.target, SUMS, plan).finding
    assert found is not None and found.case.dtype == "float64"
    narrow = make_target("kernel", kernel, {"framework": "numpy", "masked_nan": "leaks", "max_length": 2})
    assert search(narrow, SUMS, plan).finding is None
    kernel.wrong = False
    known = Deviation(("kernel",), ("*",), "keys > 2", "test", "test", "torch 0", found.case, SUMS.name)
    for other in (
        Plan(examples=5, database=database, dtypes=("float32",)),
        Plan(examples=5, database=database, deadline=0.0),
        Plan(examples=5, database=database, deviations=(known,)),
    ):
        assert search(kernel.target, SUMS, other).finding is None
    kernel.wrong = True
    again = search(kernel.target, SUMS, plan).finding
    assert again is not None and (again.case, again.first_at) == (found.case, 1)


def test_an_inconsistent_target_is_refuted_not_crashed_on() -> None:
    """A kernel that fails now and then: one finding, no exception."""
    calls: list[int] = []

    def sometimes(q: Any, k: Any, v: Any) -> Any:
        calls.append(0)
        return numpy_matmul.attention(q, k, v) * (1.5 if len(calls) % 5 == 0 else 1.0)

    target = make_target("sometimes", sometimes, {"framework": "numpy"})
    finding = search(target, SUMS, Plan(examples=40)).finding
    assert finding is not None


def test_what_another_version_wrote_is_forgotten_and_takes_no_other_with_it() -> None:
    database = InMemoryExampleDatabase()
    saved = Saved(database, Recording("kernel").target, SUMS)
    saved.keep(Case(keys=5))
    for text in (
        b"Case(kees=3)",
        b"a",
        b"Case(values='of another version')",
    ):  # before the one that can be read, in their order, and behind it
        database.save(saved.key, text)
    assert saved.first(lambda case: True, lambda case: True) == Case(keys=5)
    assert saved.first(lambda case: False, lambda case: True) is None
    assert list(database.fetch(saved.key)) == [repr(Case(keys=5)).encode()]
