"""The properties of causality, for both corners: what is right keeps them, and one key too many or too few is seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from properties.attention.case import Case
from properties.catalogue import PROPERTIES
from properties.engine.core.attempt import try_case
from properties.engine.core.target import Target
from properties.engine.search.probe import make_target

Array = Any
NAMES = ("future_tokens_are_ignored", "prefix_of_output_is_output_of_prefix", "causal_frontier_is_exact", "causal_equals_triangular_mask")
SHAPES = [(queries, keys) for queries in (1, 2, 3, 6) for keys in (1, 2, 4, 6)]


def target(corner: str, more: Callable[[Array, Array], Array], zero_sizes: bool = True) -> Target:
    """An attention of this corner, which sees ``more(row, last row)`` keys beyond its frontier."""

    def attention(q: Array, k: Array, v: Array, attn_mask: Array = None, is_causal: bool = False) -> Array:
        assert zero_sizes or k.shape[2]
        rows, keys = np.arange(q.shape[2])[:, None], np.arange(k.shape[2])
        shift = 0 if corner == "top-left" else k.shape[2] - q.shape[2]
        seen = keys <= rows + shift + more(rows, q.shape[2] - 1) if is_causal else np.ones((q.shape[2], k.shape[2]), bool)
        seen = seen if attn_mask is None else seen & attn_mask
        logits = np.where(seen, q @ k.swapaxes(-1, -2) * max(q.shape[3], 1) ** -0.5, -np.inf)
        with np.errstate(invalid="ignore"):
            terms = np.exp(logits - np.maximum(logits.max(-1, keepdims=True, initial=-np.inf), -1e300))
        return (terms / np.maximum(terms.sum(-1, keepdims=True), 1e-300)) @ v

    facts = {"framework": "numpy", "causal": corner, "zero_sizes": zero_sizes, "mask_kinds": ["bool"], "dtypes": ["float64"]}
    return make_target("mine", attention, facts)


def refuted(found: Target, name: str, seeds: int = 3) -> set[tuple[int, int]]:
    """The shapes on which a property does not hold."""
    cases = [Case(queries=q, keys=k, dim=2, seed=seed, is_causal=True) for q, k in SHAPES for seed in range(seeds)]
    return {(case.queries, case.keys) for case in cases if try_case(found, PROPERTIES[name], case)}


@pytest.mark.parametrize("corner", ["top-left", "bottom-right"])
@pytest.mark.parametrize("zero_sizes", [True, False])
def test_what_is_right_keeps_them(corner: str, zero_sizes: bool) -> None:
    for name in NAMES:
        assert not refuted(target(corner, lambda rows, last: 0, zero_sizes), name)


@pytest.mark.parametrize("corner", ["top-left", "bottom-right"])
def test_a_frontier_that_is_off_by_one_is_seen(corner: str) -> None:
    """On every shape with a row that it concerns."""
    shift = {shape: 0 if corner == "top-left" else shape[1] - shape[0] for shape in SHAPES}
    more = {(q, k) for q, k in SHAPES if any(0 <= i + shift[q, k] + 1 < k for i in range(q))}
    beside = {(q, k) for q, k in SHAPES if any(0 <= i + shift[q, k] < k - 1 for i in range(q))}  # of rows that see a key as it is
    fewer = {(q, k) for q, k in SHAPES if any(0 <= i + shift[q, k] < k for i in range(q))}
    assert refuted(target(corner, lambda rows, last: 1), "causal_frontier_is_exact") == beside
    assert refuted(target(corner, lambda rows, last: 1), "output_is_inside_the_bound") == more
    assert refuted(target(corner, lambda rows, last: -1), "causal_frontier_is_exact") == fewer
    assert refuted(target(corner, lambda rows, last: 1), "causal_equals_triangular_mask") == more
    assert refuted(target(corner, lambda rows, last: -1), "causal_equals_triangular_mask") == fewer
    assert refuted(target(corner, lambda rows, last: 1), "future_tokens_are_ignored", 20) == more
    assert not refuted(target(corner, lambda rows, last: -1), "future_tokens_are_ignored")  # too little knows nothing of the future


def test_a_row_that_sees_more_beside_later_ones_is_seen() -> None:
    """The frontier of the last row moves with the number of rows: whole and prefix differ."""
    wrong = target("top-left", lambda rows, last: (rows < last) * 1)
    assert refuted(wrong, "prefix_of_output_is_output_of_prefix", 20) == {(q, k) for q, k in SHAPES if q > 1 and k > 1}


def test_a_prefix_is_cut_where_the_target_takes_its_length() -> None:
    """Of eight tokens, where lengths are multiples of four, the first four in about half of the cases."""

    def attention(q: Array, k: Array, v: Array, attn_mask: Array = None, is_causal: bool = False) -> Array:
        assert not q.shape[2] % 4 and not k.shape[2] % 4
        return wrong(q, k, v, attn_mask, is_causal)

    wrong = target("top-left", lambda rows, last: (rows < last) * 1).function
    facts = {"length_multiple": 4, "zero_sizes": False, "mask_kinds": ["bool"], "dtypes": ["float64"]}
    found, prop = make_target("mine", attention, {"framework": "numpy", **facts}), PROPERTIES["prefix_of_output_is_output_of_prefix"]
    failing = [try_case(found, prop, Case(queries=8, keys=8, dim=2, seed=seed, is_causal=True)) for seed in range(20)]
    assert sum(violation is not None and not violation.raised for violation in failing) > 4
    assert try_case(found, prop, Case(queries=2, keys=2, is_causal=True)) is None  # no row can be left out


def without_keys(value: Callable[[Array, Array], Array], convention: str) -> Target:
    """Right in the corner at the bottom; a causal row that sees no key gives a value that is computed of q and v."""

    def attention(q: Array, k: Array, v: Array, attn_mask: Array = None, is_causal: bool = False) -> Array:
        out = right(q, k, v, attn_mask, is_causal)
        empty = (np.arange(q.shape[2]) + k.shape[2] - q.shape[2] < 0)[:, None]
        return np.where(empty & is_causal, value(q, v), out)

    right = target("bottom-right", lambda rows, last: 0).function
    facts = {"causal": "bottom-right", "zero_sizes": False, "empty_rows": convention, "mask_kinds": ["bool"], "dtypes": ["float64"]}
    return make_target("mine", attention, {"framework": "numpy", **facts})


def test_rows_without_keys_are_the_same_in_a_prefix_unless_they_are_a_mean() -> None:
    """A prefix has fewer values, and their mean is another one."""
    name = "prefix_of_output_is_output_of_prefix"
    assert not refuted(without_keys(lambda q, v: v.mean(2, keepdims=True), "mean"), name)
    assert not refuted(without_keys(lambda q, v: 0.0 * q, "zero"), name)
    assert refuted(without_keys(lambda q, v: 1e-3 * (q.shape[2] < 6) + 0.0 * q, "zero"), name)
