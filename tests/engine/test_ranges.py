"""Which sizes and types were tried, counted by hand."""

from __future__ import annotations

from collections import Counter

from properties.attention.case import Case
from properties.engine.search.ranges import Ranges, size_fields
from properties.position.cases import Case as PositionCase


def test_sizes_are_whole_numbers_from_0_or_1_on() -> None:
    assert size_fields(Case) == ("batch", "kv_heads", "group", "queries", "keys", "dim", "value_dim", "window_left", "window_right")
    assert not {"seed", "base"} & set(size_fields(PositionCase)) and {"dim", "offset"} <= set(size_fields(PositionCase))


def test_the_least_and_the_largest_of_every_size() -> None:
    ranges = Ranges()
    for keys, dtype in ((5, "float64"), (3, "float32"), (4, "float64"), (3, "float64"), (7, "float64"), (7, "float64")):
        ranges.note(Case(keys=keys, dtype=dtype), ("batch", "keys", "value_dim"))
        assert ranges.sizes["batch"] == (1, 1) and "value_dim" not in ranges.sizes
    assert not {"group", "dim"} & {*ranges.sizes}  # which decide nothing
    assert ranges.sizes["keys"] == (3, 7) and ranges.dtypes == Counter(float64=5, float32=1)
    one = Ranges()
    for keys in (4, 3):
        one.note(Case(keys=keys), ("keys",))
    assert one.sizes["keys"] == (3, 4)


def test_those_of_others_are_added() -> None:
    for others, together in (((4, 5), (3, 7)), ((1, 5), (1, 7)), ((4, 9), (3, 9)), ((1, 9), (1, 9)), ((1, 2), (1, 7))):
        ranges = Ranges({"keys": (3, 7)}, Counter(float64=1))
        ranges.merge(Ranges({"keys": others, "dim": (2, 2)}, Counter(float64=2, float16=1)))
        assert ranges == Ranges({"keys": together, "dim": (2, 2)}, Counter(float64=3, float16=1))


def test_in_words() -> None:
    assert Ranges({"batch": (0, 5), "dim": (4, 4)}, Counter(float64=1200, float16=1)).text() == (
        "batch 0 to 5, dim 4; float64 in 1,200, float16 in 1 cases"
    )
    assert Ranges({"batch": (1, 2)}, Counter(float64=1)).text() == "batch 1 to 2; float64 in 1 case"
