"""No property gives a target a mask that it has declared not to take, nor refutes it for a convention that it has declared."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from nightly import some_by_night

torch = pytest.importorskip("torch")
from drawing import drawn
from recording import recording

from properties.attention.case import Case
from properties.attention.cases import cases
from properties.attention.inputs import in_axes
from properties.catalogue import PROPERTIES
from properties.engine.cases.masks import MASK_AXES, MASK_KINDS
from properties.engine.core.attempt import try_case
from properties.engine.search.probe import make_target
from properties.engine.search.search import Plan, inapplicable, search, try_only

ATTENTION = [prop for prop in PROPERTIES.values() if prop.contract == "attention"]
WRITE = [prop for prop in ATTENTION if {"along", "widens", "writes"} & set(prop.domain)]
OFTEN = [
    *WRITE,
    *(
        PROPERTIES[name]
        for name in (
            "masked_keys_are_deleted",
            "duplicated_keys_change_nothing",
            "calls_between_change_nothing",
            "masks_stay_with_their_batch_and_head",
            "shifted_bias_changes_nothing",
            "prefix_of_output_is_output_of_prefix",
        )
    ),
]
CAUSAL, EMPTY = ("top-left", "bottom-right"), ("zero", "nan", "mean")
SINGLE: list[dict[str, Any]] = [{"mask_axes": [axes], "mask_kinds": [kind]} for axes in MASK_AXES for kind in MASK_KINDS]
CORNERS: list[dict[str, Any]] = [{"causal": causal, "empty_rows": empty} for causal in CAUSAL for empty in EMPTY]
# Every axes with every kind; the other declarations take turns, so that any two of them meet.
DIALECTS = [
    facts | {"mask_rank": number % 5, **CORNERS[number // 2 % 6], "zero_sizes": number % 4 != 1, "value_dim": number % 3 != 1}
    for number, facts in enumerate(SINGLE)
]


def refuted(facts: dict[str, Any], properties: list[Any], count: int) -> list[str]:
    """What is wrong in a dialect with these properties, each put to so many cases."""
    broken: list[str] = []
    target, wrong = recording(facts, broken), []
    for prop in properties:
        if not inapplicable(target, prop):
            for case in drawn(cases(target, prop), seed=1, count=count):
                if case.batch * case.queries * case.keys * case.dim < 1 << 14 and (violation := try_case(target, prop, case)):
                    wrong.append(f"{prop.name}: {case} {violation.says}")
        wrong += [f"{prop.name}: {said}" for said in broken]
        broken.clear()
    return wrong


@pytest.mark.nightly(but=2)
@pytest.mark.parametrize("part", some_by_night(range(4), [0]))
def test_no_mask_is_given_that_is_not_taken(part: int) -> None:
    for facts in DIALECTS[part::4]:
        assert not refuted(facts, OFTEN, 2), facts


@pytest.mark.nightly(but=2)
@pytest.mark.parametrize("facts", some_by_night(CORNERS, CORNERS[1:5:3]), ids=lambda facts: "-".join(facts.values()))
def test_a_declared_convention_is_no_mistake(facts: dict[str, Any]) -> None:
    assert not refuted(facts | {"zero_sizes": facts["causal"] == "top-left"}, ATTENTION, 2)


WRITTEN = (
    ({"mask_axes": ["LS"]}, "key_at_minus_infinity_changes_nothing", "Case(queries=3, keys=2)"),
    ({"mask_axes": ["BHLS"]}, "key_at_minus_infinity_changes_nothing", "Case(batch=2, queries=3, keys=2)"),
    ({"mask_axes": ["LS"]}, "duplicated_keys_change_nothing", "Case(queries=3, mask='random')"),
    ({"mask_axes": ["BHLS"]}, "masked_keys_are_deleted", "Case(queries=3, keys=4, mask='random', mask_axes='BHLS', mask_kind='bias')"),
    ({"mask_axes": ["LS", "S"]}, "masks_broadcast", "Case(batch=2, queries=3, keys=4, mask='random', mask_axes='S')"),
    ({"mask_axes": ["LS"]}, "window_equals_band_mask", "Case(batch=2, queries=3, keys=4, window_left=1)"),
    ({"mask_kinds": ["minus_infinity"]}, "calls_between_change_nothing", "Case(keys=4, mask='random', mask_kind='minus_infinity')"),
    ({"mask_kinds": ["lowest"]}, "calls_between_change_nothing", "Case(keys=4, mask='random', mask_kind='lowest')"),
    ({"causal": "bottom-right", "empty_rows": "mean"}, "prefix_of_output_is_output_of_prefix", "Case(queries=6, keys=4, is_causal=True)"),
    ({"causal": "bottom-right", "zero_sizes": False}, "prefix_of_output_is_output_of_prefix", "Case(queries=5, keys=2, is_causal=True)"),
    ({"empty_rows": "mean"}, "keys_beyond_the_length_are_ignored", "Case(batch=4, keys=3, lengths=True)"),
    ({"empty_rows": "nan"}, "keys_beyond_the_length_receive_no_gradient", "Case(batch=4, keys=3, lengths=True)"),
)


@pytest.mark.parametrize(("facts", "name", "text"), WRITTEN, ids=[f"{name}-{'-'.join(map(str, facts))}" for facts, name, _ in WRITTEN])
def test_no_false_alarm_comes_back(facts: dict[str, Any], name: str, text: str) -> None:
    broken: list[str] = []
    target = recording(facts, broken)
    for seed in range(6):
        outcome = try_only(target, PROPERTIES[name], Case.parse(text.replace(")", f", seed={seed})")))
        assert outcome.cases == 1 and not outcome.finding and not broken, (outcome.not_exercised, outcome.finding, broken)


NOT_SAYABLE = (
    ({"mask_axes": ["L"]}, "key_at_minus_infinity_changes_nothing", "masks along S"),
    ({"mask_axes": ["S", "L"]}, "causal_equals_triangular_mask", "masks along LS"),
    ({"mask_axes": ["LS"]}, "masks_broadcast", "mask axes"),
)


@pytest.mark.parametrize(("facts", "name", "why"), NOT_SAYABLE)
def test_what_cannot_be_said_is_not_tried(facts: dict[str, Any], name: str, why: str) -> None:
    assert why in inapplicable(recording(facts, []), PROPERTIES[name])


def test_a_mask_in_other_axes_says_the_same() -> None:
    rows = np.array([[True, False, True]])
    assert in_axes(rows, (2, 1, 4, 3), ("S",)) is rows
    assert in_axes(rows, (2, 1, 4, 3), ("L", "LS", "BHLS")).shape == (4, 3)
    assert in_axes(rows, (2, 1, 4, 3), ("BHLS",)).shape == (2, 1, 4, 3)
    assert in_axes(rows, (2, 1, 4, 3), ("L",)) is rows  # it cannot be said
    assert in_axes(np.ones((4, 3)), (2, 1, 4, 3), ("L",)).shape == (4, 1)  # it does not vary along S
    np.testing.assert_array_equal(in_axes(rows, (2, 1, 4, 3), ("LS",)), np.broadcast_to(rows, (4, 3)))
    assert in_axes(np.ones((4, 5), dtype=bool), (2, 1, 4, 3), ("S",)).shape == (4, 5)  # it fits no logits


@pytest.mark.parametrize("kinds", [["bias", "lowest"], ["bias"], ["lowest"], ["bias_and_minus_infinity"]])
def test_no_kind_of_masks_is_drawn_that_is_not_taken(kinds: list[str]) -> None:
    """Properties that are about other kinds are put to cases without a mask, or not at all."""
    broken: list[str] = []
    target = recording({"mask_kinds": kinds}, broken)
    for prop in ATTENTION:
        if "mask_kind" in prop.domain and not inapplicable(target, prop):
            assert all(case.mask == "none" or case.mask_kind in kinds for case in drawn(cases(target, prop), seed=2, count=4)), prop.name
    assert not broken


def test_a_finding_is_not_explained_by_masks_that_are_not_taken() -> None:
    """A kernel of additive masks alone raises where it is given a bool one: that says nothing about the failure."""

    def halved(q: Any, k: Any, v: Any, attn_mask: Any = None) -> Any:
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            raise TypeError("a bool mask")
        scores = q @ k.mT * q.shape[-1] ** -0.5
        return torch.softmax(scores if attn_mask is None else scores + attn_mask / 2, -1).nan_to_num() @ v

    target = make_target("mine", halved, {"framework": "torch", "dtypes": ["float64"], "mask_kinds": ["bias"], "zero_sizes": False})
    finding = search(target, PROPERTIES["zero_queries_read_the_additive_mask"], Plan()).finding
    assert finding and "mask_kind" not in finding.indifferent


def test_the_framework_is_found_out_where_the_dtypes_are_declared() -> None:
    def attention(q: Any, k: Any, v: Any) -> Any:
        return torch.softmax(q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5, -1) @ v

    attention.__module__ = "elsewhere"  # which does not import torch by that name
    for dtypes in (["float64"], ["float32", "bfloat16"], ["bfloat16"]):
        target = make_target("mine", attention, {"dtypes": dtypes})
        assert target.framework.name == "torch" and set(target.dtypes) == set(dtypes)
