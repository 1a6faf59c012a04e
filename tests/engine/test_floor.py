"""When too little was tried for a verdict, counted by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from impls import numpy_matmul
from properties.catalogue import PROPERTIES
from properties.engine.contained.stub import Stub
from properties.engine.search.floor import declared_away, incomplete
from properties.engine.search.probe import make_target
from properties.engine.search.search import Outcome

PROPERTY = PROPERTIES["rows_sum_to_one"]


def target(**supports: Any) -> Any:
    return make_target("mine", numpy_matmul.attention, {"framework": "numpy", **supports})


def outcome(cases: int = 9, judged: int = 0, adequate: int = 0, **more: Any) -> Outcome:
    made = Outcome(PROPERTY, "mine", cases=cases, **more)
    made.notes.judged, made.notes.adequate = judged, adequate
    return made


def test_some_judged_case_must_tell_right_from_wrong() -> None:
    for judged, adequate, enough in ((10, 0, False), (9, 0, True), (10, 1, True), (99, 1, True), (0, 0, True)):
        halves = [outcome(judged=judged // 2), outcome(judged=judged - judged // 2, adequate=adequate)]
        assert incomplete(target(), halves, 20, False).startswith(f"none of {judged} cases") is not enough


def test_sequences_must_not_be_too_short() -> None:
    for length, enough in ((7, False), (8, True), (None, True), (1, False)):
        said = incomplete(target(max_length=length), [outcome()], 20, False)
        assert (said == "") is enough and ("too short" in said) is not enough


def test_every_property_must_have_had_the_cases_of_the_first_pass() -> None:
    few = [outcome(3), outcome(4)]
    assert incomplete(target(), few, 20, True).startswith("time was over before 1 of 2 properties had 4 cases each")
    assert incomplete(target(), few, 20, False) == "" == incomplete(target(), few, 3, True)  # no more were asked for
    assert incomplete(target(), [outcome(0, not_exercised="no mask"), outcome()], 20, True) == ""


class Elsewhere(Stub):
    """A stub of a target in no process at all, with a signature and what it says of itself."""

    def __init__(self, supports: Any) -> None:
        self.supports = supports

    def __call__(self, q: Any, k: Any, v: Any, attn_mask: Any = None, is_causal: bool = False) -> Any:
        raise AssertionError


def of(function: Any, parameters: tuple[str, ...], declared: tuple[str, ...] | None) -> Any:
    made = target()
    options = SimpleNamespace(options=made.kind.options)
    return SimpleNamespace(function=function, parameters=parameters, supports=SimpleNamespace(parameters=declared), kind=options)


@pytest.mark.parametrize("own", [{"parameters": ["is_causal"]}, {"parameters": ("is_causal",), "framework": "numpy"}])
def test_what_a_target_says_that_it_does_not_take(own: dict[str, Any]) -> None:
    assert declared_away(of(Elsewhere(own), ("is_causal",), ("is_causal",))) == ["attn_mask"]
    assert declared_away(of(Elsewhere(own), ("is_causal", "attn_mask"), ("is_causal",))) == []


def test_who_else_may_say_so() -> None:
    """A target that is imported here, one that says nothing of its parameters, and one of which somebody else has said it."""
    some = ("is_causal",)
    assert declared_away(of(numpy_matmul.attention, some, some)) == []
    for own in (None, "words", {"framework": "numpy"}):
        assert declared_away(of(Elsewhere(own), some, some)) == []
    assert declared_away(of(Elsewhere({"parameters": ["is_causal"]}), some, ())) == []


def test_a_verdict_says_so() -> None:
    mine = target()
    away = of(Elsewhere({"parameters": []}), (), ())
    away.supports.max_length = None
    assert incomplete(mine, [outcome()], 20, False) == ""
    said = incomplete(away, [outcome()], 20, False)
    assert said.startswith("the target says that it takes no attn_mask, is_causal, which its signature has")
