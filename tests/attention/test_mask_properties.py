"""The properties of masks on targets that declare less: no empty arrays, and NaN that leaks from a hidden key into its own rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from impls import numpy_matmul
from properties.attention.case import Case
from properties.catalogue import PROPERTIES
from properties.engine.core.attempt import try_case
from properties.engine.core.target import Target
from properties.engine.search.probe import make_target

Array = Any


def target(leak: str = "", hides: bool = True, **facts: Any) -> Target:
    """A NumPy attention; NaN and infinities in hidden keys reach no row, the rows of their batch element (own), or those of the next (next)."""

    def attention(q: Array, k: Array, v: Array, attn_mask: Array = None) -> Array:
        finite = [np.where(np.isfinite(x), x, 0.0) for x in (k, v)]
        logits = q @ finite[0].swapaxes(-1, -2) * max(q.shape[3], 1) ** -0.5
        if attn_mask is not None and hides:
            logits = np.where(attn_mask, logits, -np.inf)
        top = logits.max(-1, keepdims=True, initial=-np.inf)
        terms = np.exp(logits - np.where(np.isfinite(top), top, 0.0))
        out = terms / np.where(terms.sum(-1, keepdims=True) > 0, terms.sum(-1, keepdims=True), 1.0) @ finite[1]
        if facts.get("empty_rows") == "mean" and attn_mask is not None:
            seen = np.broadcast_to(attn_mask, logits.shape).any(-1, keepdims=True)
            out = np.where(seen, out, v.mean(-2, keepdims=True) if v.shape[2] else np.nan)
        if leak:
            lost = ~np.isfinite(k).all((1, 2, 3)) | ~np.isfinite(v).all((1, 2, 3))
            out = np.where(np.roll(lost, 1 if leak == "next" else 0)[:, None, None, None], np.nan, out)
        return out

    return make_target("mine", attention, {"framework": "numpy", "mask_kinds": ["bool"], "dtypes": ["float64"], **facts})


def refuted(found: Target, name: str, **fields: Any) -> bool:
    """Whether a property fails on any of some cases."""
    cases = [Case(**{"keys": 5, "queries": 3, "dim": 2, "mask": "random", "seed": seed} | fields) for seed in range(12)]
    return any(try_case(found, PROPERTIES[name], case) for case in cases)


@pytest.mark.parametrize("zero_sizes", [True, False])
@pytest.mark.parametrize("mask", ["random", "one_hole", "nothing"])
def test_a_mask_is_looked_at_where_nothing_may_be_empty(zero_sizes: bool, mask: str) -> None:
    cases = [Case(keys=4, queries=2, dim=2, mask=mask, mask_density=0.3, seed=seed) for seed in range(8)]
    prop = PROPERTIES["masked_keys_are_deleted"]
    assert not any(try_case(target(zero_sizes=zero_sizes), prop, case) for case in cases)
    if mask == "one_hole":
        assert any(try_case(target(hides=False, zero_sizes=zero_sizes), prop, case) for case in cases)


def test_a_row_that_sees_no_key_is_computed_of_none_where_that_is_taken() -> None:
    right = target().function
    for zero_sizes in (True, False):

        def attention(q: Array, k: Array, v: Array, attn_mask: Array = None, zero_sizes: bool = zero_sizes) -> Array:
            assert k.shape[2] or zero_sizes
            return right(q, k, v, attn_mask) + (k.shape[2] == 0)  # wrong where there is none

        facts = {"framework": "numpy", "zero_sizes": zero_sizes, "mask_kinds": ["bool"], "dtypes": ["float64"]}
        assert refuted(make_target("mine", attention, facts), "masked_keys_are_deleted", mask="nothing") is zero_sizes


@pytest.mark.parametrize("axis", [0, 1, 2], ids=["batch", "head", "row"])
def test_a_row_without_its_hidden_keys_is_computed_alone(axis: int) -> None:
    """A kernel of its own for one batch element, one head or one query is asked, too."""

    def attention(q: Array, k: Array, v: Array, attn_mask: Array = None) -> Array:
        return right(q, k, v, attn_mask) * (1.5 if q.shape[axis] == 1 else 1.0)

    right = target().function
    found = make_target("mine", attention, {"framework": "numpy", "mask_kinds": ["bool"], "dtypes": ["float64"]})
    cases = [Case(batch=2, kv_heads=2, queries=3, keys=5, dim=2, mask="one_hole", seed=seed) for seed in range(12)]
    assert all(try_case(found, PROPERTIES["masked_keys_are_deleted"], case) for case in cases)
    assert not any(try_case(target(), PROPERTIES["masked_keys_are_deleted"], case) for case in cases)  # which takes no groups of heads


@pytest.mark.parametrize("kind", ["bool", "bias", "bias_and_minus_infinity"])
def test_a_row_without_its_hidden_keys_has_the_key_of_its_group_and_its_own_bias(kind: str) -> None:
    found = make_target("mine", numpy_matmul.attention, {"framework": "numpy", "dtypes": ["float64"]})
    fields = {"batch": 2, "kv_heads": 2, "group": 3, "mask_axes": "BHLS", "mask_kind": kind}
    assert not refuted(found, "masked_keys_are_deleted", **fields)


@pytest.mark.parametrize("axes", ["S", "BS"])
def test_nan_may_leak_where_that_is_declared_and_no_further(axes: str) -> None:
    """Into the rows of its own batch element; where it is declared to be contained, into none."""
    contained = {"masked_nan": "contained"}
    name, fields = "masked_nan_is_contained", {"batch": 3, "mask_axes": axes}
    assert not refuted(target(), name, **fields) and not refuted(target(**contained), name, **fields)
    assert not refuted(target("own"), name, **fields) and refuted(target("own", **contained), name, **fields)
    assert refuted(target("next"), name, **fields) and refuted(target("next", **contained), name, **fields)
    nothing = fields | {"mask": "nothing"}  # what a row gives that sees no key may be the mean of all, but of its own batch element
    assert not refuted(target(**contained, empty_rows="mean"), name, **nothing)
    assert refuted(target("next", **contained, empty_rows="mean"), name, **nothing)


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_whatever_is_no_finite_number_is_put_behind_a_mask(poison: float) -> None:
    """A kernel that contains two of the three is found by the third."""

    def attention(q: Array, k: Array, v: Array, attn_mask: Array = None) -> Array:
        leaks = np.isnan(v) if np.isnan(poison) else v == poison
        return right(q, k, v, attn_mask) + np.where(leaks.any(), 1.0, 0.0)

    right = target().function
    facts = {"framework": "numpy", "mask_kinds": ["bool"], "dtypes": ["float64"], "masked_nan": "contained"}
    assert refuted(make_target("mine", attention, facts), "masked_nan_is_contained", mask_axes="S")


def test_a_row_beside_one_that_sees_no_key_is_looked_at() -> None:
    def damaged(q: Array, k: Array, v: Array, attn_mask: Array = None) -> Array:
        out = right(q, k, v, attn_mask)
        seen = np.broadcast_to(True if attn_mask is None else attn_mask, (*out.shape[:3], k.shape[2])).any(-1, keepdims=True)
        return out + (seen & ~seen.all())

    right = target().function
    for function, wrong in ((right, False), (damaged, True)):
        found = make_target("mine", function, {"framework": "numpy", "mask_kinds": ["bool"], "dtypes": ["float64"]})
        assert refuted(found, "rows_without_keys_follow_the_convention", mask="empty_rows") is wrong


def test_a_mask_that_is_dropped_where_the_call_is_causal_is_seen() -> None:
    """The same call without is_causal, and with both in its mask, is what it is held against."""

    def causal(drops: bool) -> Target:
        def attention(q: Array, k: Array, v: Array, attn_mask: Array = None, is_causal: bool = False) -> Array:
            seen = np.tri(q.shape[2], k.shape[2], dtype=bool)
            mask = attn_mask if not is_causal else seen if drops or attn_mask is None else seen & attn_mask
            return right(q, k, v, mask)

        return make_target("mine", attention, {"framework": "numpy", "mask_kinds": ["bool"], "dtypes": ["float64"]})

    right = target().function
    assert not refuted(causal(False), "masks_compose", is_causal=True)
    assert refuted(causal(True), "masks_compose", is_causal=True)


@pytest.mark.parametrize("kind", ["bool", "minus_infinity", "bias_and_minus_infinity"])
def test_in_whatever_words_the_dropped_mask_is_said(kind: str) -> None:
    def drops(q: Array, k: Array, v: Array, *, attn_mask: Array = None, is_causal: bool = False) -> Array:
        return numpy_matmul.attention(q, k, v, attn_mask=None if is_causal else attn_mask, is_causal=is_causal)

    for function, wrong in ((numpy_matmul.attention, False), (drops, True)):
        found = make_target("mine", function, {"framework": "numpy", "dtypes": ["float64"]})
        assert refuted(found, "masks_compose", is_causal=True, mask_kind=kind) is wrong


@pytest.mark.parametrize(("axes", "axis"), [("BLS", 0), ("HLS", 1), ("BHLS", 0), ("BHLS", 1)])
def test_the_mask_of_another_batch_element_or_head_is_seen(axes: str, axis: int) -> None:
    """In every case, where the masks vary along one axis alone."""

    def attention(q: Array, k: Array, v: Array, attn_mask: Array = None) -> Array:
        shape = (*q.shape[:3], k.shape[2])
        return right(q, k, v, None if attn_mask is None else np.roll(np.broadcast_to(attn_mask, shape), 1, axis))

    right = target().function
    prop = PROPERTIES["masks_stay_with_their_batch_and_head"]
    wrong = make_target("mine", attention, {"framework": "numpy", "mask_kinds": ["bool"], "dtypes": ["float64"]})
    cases = [Case(batch=2, kv_heads=3, keys=5, dim=2, mask="random", mask_axes=axes, seed=seed) for seed in range(12)]
    assert not any(try_case(target(), prop, case) for case in cases)
    seen = [try_case(wrong, prop, case) is not None for case in cases]
    assert all(seen) or (len(axes) == 4 and any(seen))
