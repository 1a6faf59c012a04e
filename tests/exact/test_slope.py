"""Slopes and bends from a few values: as near as they say, and no claim where a function is not smooth."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from properties.exact.slope import H, bend, slope

CENTRES = st.floats(-2, 2, allow_nan=False)
SMOOTH: dict[str, tuple[Callable[[float], float], Callable[[float], float], Callable[[float], float]]] = {
    "sine": (math.sin, math.cos, lambda x: -math.sin(x)),
    "exponential": (math.exp, math.exp, math.exp),
    "logistic": (
        lambda x: 1 / (1 + math.exp(-x)),
        lambda x: math.exp(-x) / (1 + math.exp(-x)) ** 2,
        lambda x: math.exp(-x) * (math.exp(-x) - 1) / (1 + math.exp(-x)) ** 3,
    ),
    "fifth power": (lambda x: x**5, lambda x: 5 * x**4, lambda x: 20 * x**3),
    "line": (lambda x: 3 * x + 1, lambda x: 3.0, lambda x: 0.0),
}
ROUNDING = 2.0**-48  # of values below 100, with room for the functions themselves


@pytest.mark.parametrize("name", SMOOTH)
@given(centre=CENTRES)
def test_a_smooth_function_is_as_near_as_it_says(name: str, centre: float) -> None:
    function, exact_slope, exact_bend = SMOOTH[name]
    first, second = (ask(lambda s: function(centre + s), ROUNDING) for ask in (slope, bend))
    assert abs(first.value - exact_slope(centre)) <= first.error < 1e-3
    assert abs(second.value - exact_bend(centre)) <= second.error < 1e-1


@given(centre=CENTRES)
def test_a_third_of_what_is_allowed_is_used(centre: float) -> None:
    """The error that is left is a third of what halving the step changes, to the next order."""
    first = slope(lambda s: (centre + s) ** 3 * 100, 0.0, 2.0**-4)
    error = abs(first.value - 300 * centre**2)
    assert 0.3 * first.error < error < 0.34 * first.error


@pytest.mark.parametrize("jump", [1.0, -0.25, 1e-3])
@pytest.mark.parametrize("place", [0.0, 0.1, 0.3, 0.49, 0.5, 0.7, 0.99, -0.2])
def test_a_bend_anywhere_within_the_step_allows_its_jump(jump: float, place: float) -> None:
    """Whatever derivative is told of a function with a corner, on either side of it, it is no mistake."""
    first = slope(lambda s: jump * max(s - place * H, 0.0), 0.0)
    for told in (0.0 if place >= 0 else jump, jump if place <= 0 else 0.0):
        assert abs(told - first.value) <= first.error


def test_a_wrong_slope_is_outside_and_noise_is_inside() -> None:
    first, second = slope(math.sin, 0.0), bend(math.sin, 0.0)
    assert abs(1.001 - first.value) > first.error and abs(0.001 - second.value) > second.error
    source = np.random.default_rng(7)
    for _ in range(200):
        first, second = (ask(lambda s: math.sin(1 + s) + 1e-9 * source.uniform(-1, 1), 1e-9) for ask in (slope, bend))
        assert abs(first.value - math.cos(1)) <= first.error and abs(second.value + math.sin(1)) <= second.error


def test_what_is_no_number_has_no_error_that_is_one() -> None:
    first, second = (ask(lambda s: math.nan if s > 0 else s, 1e-9) for ask in (slope, bend))
    assert not math.isfinite(first.error) and not math.isfinite(second.error)


@pytest.mark.parametrize("jump", [1.0, -0.25])
@pytest.mark.parametrize("place", [0.0, 0.05, 0.1, 0.24, 0.3, 0.4, 0.49, -0.02, -0.3])
def test_of_a_bend_near_a_corner_nothing_is_claimed(jump: float, place: float) -> None:
    second = bend(lambda s: jump * max(s - place * H, 0.0) + math.sin(s), 1e-14)
    assert second.error == math.inf or abs(second.value) <= second.error


def even(far: float, near: float, nearer: float, tilt: tuple[float, float] = (0.0, 0.0)) -> Callable[[float], float]:
    """A function of which B at H, H/2 and H/4 are these; D at H and H/2 are its tilt."""
    bends = {H: far, H / 2: near, H / 4: nearer}
    tilts = {H: tilt[0], H / 2: tilt[1], H / 4: 0.0}
    return lambda s: bends[abs(s)] * s**2 / 2 + tilts[abs(s)] * s if s else 0.0


def test_errors_are_what_the_formulas_say() -> None:
    noise = H**2 / 64
    found = slope(even(2.0, 3.0, 3.0, (5.0, 7.0)), noise)
    assert found.value == pytest.approx(7.0) and found.error == pytest.approx(2.0 + H * 1.0 + 2 * noise / H, rel=1e-9)
    found = bend(even(2.0, 3.0, 3.0), noise)
    assert found.value == pytest.approx(3.0) and found.error == pytest.approx(1.0 + 16 * noise / H**2, rel=1e-9)


@pytest.mark.parametrize(("over", "smooth"), [(-1e-3, True), (1e-3, False)])
def test_a_bend_is_claimed_where_halving_again_changes_half_as_much(over: float, smooth: bool) -> None:
    noise = H**2 / 64
    for change, noisy in ((1.0, 0.0), (0.0, noise), (1.0, noise)):
        again = change / 2 + 80 * noisy / H**2 + over
        assert math.isfinite(bend(even(2.0, 2.0 + change, 2.0 + change + again), noisy).error) is smooth
