"""What it means that two answers are the same, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from properties.attention.case import Case
from properties.attention.trial import Trial
from properties.engine.core.trial import Refuted
from properties.engine.search.find_target import Builtins
from properties.engine.search.probe import make_target

RIGHT = make_target("right", Builtins().module.load(Builtins().entries["numpy_matmul.attention"]))


def same(actual: Any, expected: Any, where: Any = True) -> bool:
    """Whether a trial takes two arrays for the same."""
    trial = Trial(RIGHT, Case())
    try:
        trial.same_bits(np.asarray(actual), np.asarray(expected), "differs", np.asarray(where))
    except Refuted as refuted:
        assert refuted.violation.allowed == 0 and refuted.violation.wrong is not None
        return False
    return True


@pytest.mark.parametrize("x", [1.0, -1.0, 1 / 3, 1e300, 2.0**-1022, 0.0, -0.0, np.finfo(float).max])
def test_one_unit_is_a_difference(x: float) -> None:
    assert same([x, 2.0], [x, 2.0])
    for towards in (np.inf, -np.inf):
        with np.errstate(over="ignore"):
            near = np.nextafter(x, towards)
        assert not same([near, 2.0], [x, 2.0]) and not same([x, 2.0], [near, 2.0])
        assert same([near, 2.0], [x, 2.0], [False, True])
    for wide in (np.float32, np.float16):
        near, there = np.nextafter(wide(1.5), wide(2)), wide(1.5)
        assert not same([near], [there]) and same([there], [1.5])


def test_only_the_sign_of_a_zero_and_the_payload_of_a_nan_may_differ() -> None:
    assert same([0.0, -0.0], [-0.0, 0.0])  # 0 · v of a hidden value v
    payload = np.array([0x7FF8000000000001, 0xFFF8000000000000], dtype=np.uint64).view(np.float64)
    assert same(payload, [np.nan, np.nan])
    assert same([np.inf, -np.inf], [np.inf, -np.inf])
    for one, other in ((np.inf, -np.inf), (np.inf, np.finfo(float).max), (np.nan, np.inf), (np.nan, 0.0), (0.0, np.nan), (0.0, 5e-324)):
        assert not same([one], [other])


def test_numbers_that_are_no_float64_are_compared_as_they_are() -> None:
    """Masks and whole numbers below 2^53; a row is compared with what it is broadcast to."""
    assert same([True, False], [True, False]) and not same([True, False], [True, True])
    assert same([2**53 - 1], [2**53 - 1]) and not same([2**53 - 2], [2**53 - 1])
    assert same(np.ones((2, 3)), np.ones((1, 3))) and not same(np.ones((2, 3)), np.full((1, 3), 1 + 2.0**-52))
