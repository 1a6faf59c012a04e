"""When too little was tried for a verdict, counted by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from impls import numpy_matmul
from properties.catalogue import PROPERTIES
from properties.engine.contained.stub import Stub
from properties.engine.search import floor
from properties.engine.search.floor import declared_away, incomplete, too_little
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
    assert incomplete(target(), [outcome(0), outcome(0)], 20, True).startswith("time was over before the first case")


class Elsewhere(Stub):
    """A stub of a target in no process at all, with a signature and what it says of itself."""

    def __init__(self, supports: Any) -> None:
        self.supports = supports

    def __call__(self, q: Any, k: Any, v: Any, attn_mask: Any = None, is_causal: bool = False) -> Any:
        raise AssertionError


def of(function: Any, parameters: tuple[str, ...], own: tuple[str, ...]) -> Any:
    made = target()
    kind = SimpleNamespace(options=made.kind.options)
    supports = SimpleNamespace(parameters=parameters, max_length=None)
    return SimpleNamespace(
        function=function, parameters=parameters, supports=supports, kind=kind, own=frozenset(own), framework=None, differs={}
    )


def test_what_a_target_says_that_it_does_not_take() -> None:
    assert declared_away(of(Elsewhere(None), ("is_causal",), ("parameters",))) == ["attn_mask"]
    assert declared_away(of(Elsewhere(None), ("is_causal", "attn_mask"), ("parameters", "framework"))) == []


def test_who_else_may_say_so() -> None:
    """A target that is imported here, and one of which somebody else has said it."""
    some = ("is_causal",)
    assert declared_away(of(numpy_matmul.attention, some, ("parameters",))) == []
    assert declared_away(of(Elsewhere({"parameters": ["is_causal"]}), some, ("framework",))) == []


def test_a_verdict_says_so() -> None:
    mine = target()
    assert incomplete(mine, [outcome()], 20, False) == ""
    said = incomplete(of(Elsewhere(None), (), ("parameters",)), [outcome()], 20, False)
    assert said.startswith("the target says that it takes no attn_mask, is_causal, which its signature has")


@pytest.mark.parametrize(
    "said, why",
    [
        ({"head_dims": (7,)}, "its heads have at most 7 features"),
        ({"head_dims": (1, 8)}, ""),
        ({"window": (0, 0)}, "a query sees one key alone"),
        ({"window": (1, 0)}, ""),
        ({"dtypes": ("float16",)}, ""),
    ],
)
def test_what_it_says_of_itself_may_leave_too_little(said: dict[str, Any], why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a target in a process of its own; who else declares it knows what it is."""
    monkeypatch.setattr(floor, "own_words", lambda _: said)
    told = too_little(target())
    assert (why in told) if why else told == ""
    monkeypatch.undo()
    assert too_little(target(**said)) == ""
