"""Where every new shape costs, a few are kept for a run: still cases that the properties are about, and still telling."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from drawing import drawn as draw
from nightly import some_by_night

from impls.numpy_matmul import attention
from properties.attention.cases import Case
from properties.catalogue import PROPERTIES
from properties.engine.cases.draws import narrowing, pick, record
from properties.engine.cases.forms import among, first_of, forms, near
from properties.engine.core.target import Target
from properties.engine.frameworks import Buffers, framework
from properties.engine.search.probe import make_target
from properties.engine.search.search import Plan, cases, drawn, inapplicable, outside, search

SIZES = ("batch", "kv_heads", "group", "queries", "keys", "dim", "value_dim", "dtype")
FACTS = {"framework": "numpy", "arithmetic": {"float64": "same", "float32": "same", "float16": "wide"}}


def costly(function: Callable[..., Any] = attention, **facts: Any) -> Target:
    return make_target("mine", function, {**FACTS, "costly_shapes": True, **facts})


def shapes_of(target: Target, prop: str, number: int = 0) -> set[tuple[Any, ...]]:
    found = draw(drawn(target, PROPERTIES[prop], Plan(round=number)), 1, 60)
    return {tuple(getattr(case, name) for name in SIZES) for case in found}


def test_a_run_keeps_four_shapes_and_the_next_has_others() -> None:
    first = shapes_of(costly(), "output_is_inside_the_bound")
    assert len(first) == 4 and first == shapes_of(costly(), "rows_sum_to_one") == shapes_of(costly(), "masked_keys_are_deleted")
    assert first != shapes_of(costly(), "output_is_inside_the_bound", 1)
    sizes = [dict(zip(SIZES, shape)) for shape in first]
    assert any(s["queries"] != s["keys"] and s["value_dim"] for s in sizes) and any(s["group"] > 1 for s in sizes)
    assert any(s["keys"] > 16 for s in sizes) and any(s["queries"] > 16 for s in sizes)
    assert len({s["dtype"] for s in sizes}) == 3


def test_what_costs_nothing_varies() -> None:
    found = draw(drawn(costly(), PROPERTIES["output_is_inside_the_bound"], Plan()), 1, 200)
    for name, least in (("seed", 150), ("values", 5), ("mask", 8), ("is_causal", 2), ("magnitude", 3), ("mask_density", 3)):
        assert len({getattr(case, name) for case in found}) >= least, name


DECLARED = [{}, {"head_dims": [64]}, {"zero_sizes": False, "max_length": 16, "value_dim": False}]


@pytest.mark.parametrize("facts", some_by_night(DECLARED, DECLARED[2:]), ids=repr)
def test_every_case_is_one_that_the_property_is_about(facts: dict[str, Any]) -> None:
    target, tried = costly(**facts), 0
    for prop in PROPERTIES.values():
        if not inapplicable(target, prop):
            for case in draw(drawn(target, prop, Plan()), 1, 6):
                tried += 1
                assert not outside(target, prop, case), (prop.name, case, outside(target, prop, case))
    assert tried > 300


def test_without_it_nothing_is_narrowed() -> None:
    target, prop = costly(costly_shapes=False), PROPERTIES["output_is_inside_the_bound"]
    assert draw(drawn(target, prop, Plan()), 1, 40) == draw(cases(target, prop), 1, 40)


def wrong_at_the_edge(q: Any, k: Any, v: Any, *, is_causal: bool = False) -> Any:
    return attention(q, k[:, :, :16], v[:, :, :16], is_causal=is_causal)


def test_a_mistake_beyond_a_tile_is_found() -> None:
    finding = search(costly(wrong_at_the_edge), PROPERTIES["output_is_inside_the_bound"], Plan(examples=60)).finding
    assert finding and finding.case.keys > 16


def test_what_compiles_is_measured() -> None:
    met: set[Any] = set()

    def compiled(q: Any, k: Any, v: Any) -> Any:
        if q.shape not in met:
            met.add(q.shape)
            time.sleep(0.25)
        return attention(q, k, v)

    target = make_target("mine", compiled, FACTS)
    assert target.costly_shapes and "most shapes" in target.untried
    assert not make_target("mine", attention, FACTS).costly_shapes
    assert not make_target("mine", compiled, {**FACTS, "costly_shapes": False}).costly_shapes


@pytest.mark.nightly
def test_what_compiles_for_kinds_of_sizes_is_measured() -> None:
    """As Triton does: for sizes of 1, for multiples of 16, and for all others."""
    met: set[Any] = set()

    def compiled(q: Any, k: Any, v: Any) -> Any:
        kind = tuple(1 if size == 1 else size % 16 == 0 for size in (*q.shape, *k.shape, *np.cumprod(q.shape)))
        if kind not in met:
            met.add(kind)
            time.sleep(0.25)
        return attention(q, k, v)

    assert make_target("mine", compiled, FACTS).costly_shapes

    def slow(q: Any, k: Any, v: Any) -> Any:
        time.sleep(0.25)
        return attention(q, k, v)

    assert not make_target("mine", slow, FACTS).costly_shapes


def test_narrowing_leaves_what_it_can() -> None:
    assert near(5)((1, 4, 17)) == [4] and near(5)((0,)) == [0] and near(3)((0, 64)) == [64]
    assert near(None)((None, 3)) == [None] and near(7)((None, 3)) == [3] and near(None)((8, 3)) == [8]
    assert among("a", "b")(("b", "c", "b")) == ["b", "b"] and among("a")(("b", "c")) == ("b",)
    assert first_of("a", "b")(("c", "b")) == ["b"] and first_of("a")(("c", "b")) == ["c"]
    with narrowing({"keys": near(4)}), narrowing({"queries": near(7)}):
        strategy = record(Case, {"keys": pick((1, 2, 3, 5)), "queries": pick((1, 8)), "dim": pick((2, 3))})
    assert {(case.keys, case.queries, case.dim) for case in draw(strategy, 1, 20)} == {(5, 8, 2), (5, 8, 3)}
    assert forms(1)[0]["queries"]((2, 3, 4)) == forms(1)[0]["queries"]((2, 3, 4))


class RowByRow(type(framework("numpy"))):  # type: ignore[misc]
    """Arrays that cannot be changed, and lie in memory in one way."""

    layouts = ("contiguous",)

    def assign(self, array: Any, carrier: Any) -> Any:
        return np.array(carrier, dtype=array.dtype)


def test_arrays_that_cannot_be_changed() -> None:
    buffers = Buffers(RowByRow())
    one, two = np.ones((2, 3)), np.full((2, 3), 2.0)
    first = buffers.array("q", one, "float32", "cpu", "strided")
    second = buffers.array("q", two, "float32", "cpu", "strided")
    assert (first == one).all() and (second == two).all()
    ((name, held),) = buffers.arrays()
    assert name == "q" and held is second


def test_layouts_that_there_are_not() -> None:
    target = dataclasses.replace(costly(costly_shapes=False), framework=RowByRow())
    assert {case.layout for case in draw(drawn(target, PROPERTIES["rows_sum_to_one"], Plan()), 1, 40)} == {"contiguous"}
    assert "lie in memory in one way" in inapplicable(target, PROPERTIES["memory_layout_changes_nothing"])
    assert "lies in memory as padded" in outside(target, PROPERTIES["rows_sum_to_one"], Case(layout="padded"))
