"""How long a target is asked, by a clock that only it moves: a slow one for a second or two, any other, and one that compiles, for twenty."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

from properties.engine.contained.link import NoMoreCalls
from properties.engine.core import pace
from properties.engine.core.pace import Pace

CLOCK = [0.0]


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    CLOCK[0] = 0.0
    monkeypatch.setattr(pace, "time", SimpleNamespace(monotonic=lambda: CLOCK[0]))


def asked(calls: int, seconds: float) -> Pace:
    """A pace after so many calls of so many seconds each."""
    kept = Pace()
    for _ in range(calls):
        with kept.timed():
            CLOCK[0] += seconds
    return kept


def test_calls_and_seconds_are_counted() -> None:
    kept = asked(3, 0.25)
    assert kept.calls == 3 and math.isclose(kept.seconds, 0.75)


def test_a_call_that_raises_is_counted_too() -> None:
    kept = Pace()
    with pytest.raises(ValueError, match="no"), kept.timed():
        CLOCK[0] += 0.5
        raise ValueError("no")
    assert kept.calls == 1 and kept.seconds == 0.5


@pytest.mark.parametrize(
    ("calls", "seconds", "over"),
    [
        (1, 6.0, False),  # some seconds, just
        (3, 2.4, True),
        (32, 0.05, False),  # just not slow, for longer than that
        (32, 0.0625, False),
        (112, 0.0625, True),
        (400, 0.05, False),  # twenty seconds, just
        (512, 0.0390625, False),
        (513, 0.0390625, True),
    ],
)
def test_when_it_is_over(calls: int, seconds: float, over: bool) -> None:
    kept = Pace(calls=calls, seconds=calls * seconds, longest=seconds)
    assert kept.over(compiles=False) is over


@pytest.mark.parametrize(("calls", "over"), [(20, False), (21, True)])
def test_one_that_compiles_is_asked_for_longer(calls: int, over: bool) -> None:
    assert Pace(calls=calls, seconds=calls * 1.0, longest=1.0).over(compiles=True) is over


def test_one_call_that_takes_long_makes_none_slow() -> None:
    """A first one, that imports a compiler; a second one like it is no accident."""
    kept = asked(1, 4.0)
    with kept.timed():
        CLOCK[0] += 0.01
    assert kept.longest == 4.0 and not kept.over(compiles=False)
    with kept.timed():
        CLOCK[0] += 4.0
    assert kept.over(compiles=False)


def test_what_compiles_is_not_slow() -> None:
    assert Pace(calls=2, seconds=19.0).over(compiles=False)
    assert not Pace(calls=2, seconds=20.0).over(compiles=True) and Pace(calls=2, seconds=20.1).over(compiles=True)


def test_a_call_after_the_end_raises() -> None:
    kept = Pace()
    kept.check()
    with kept.ending(5.0), kept.ending(9.0):  # never later than what is around it
        CLOCK[0] = 5.0
        kept.check()
        CLOCK[0] = 5.5
        with pytest.raises(NoMoreCalls):
            kept.check()
    kept.check()
    assert kept.until == math.inf and not issubclass(NoMoreCalls, Exception)


@pytest.mark.parametrize(
    ("said", "over"),
    [
        ("inputs must be CUDA tensors", True),
        ("Expected x.is_cuda() to be true", True),
        ("0 active drivers ([]). There should only be one.", True),
        ("Pointer argument (at 0) cannot be accessed from Triton (cpu tensor?)", True),
        ("the head dim must be 64", False),
        ("barracuda", False),
    ],
)
def test_what_asks_for_a_gpu_is_not_asked_again_and_again(said: str, over: bool) -> None:
    kept = Pace()
    for _ in range(pace.STRANGE):
        kept.note(RuntimeError(said), said)
    assert kept.over(compiles=False) is over
    kept.note(ValueError("shapes"), "shapes")
    assert not kept.over(compiles=False)
