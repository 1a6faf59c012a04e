"""Numbers of a coordinate: the same bits everywhere, in the same place when a dimension shrinks, and random enough.

Statistical limits follow from the error rate ``ALPHA`` of one comparison; seeds are fixed: a test that passes once
always does.
"""

from __future__ import annotations

from math import log, sqrt
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from properties.engine.cases.coordinates import bits, choice, normal, permutation, uniform

ALPHA = 1e-9
COUNT = 1 << 18
SEEDS = (0, 1, 2, 12345, 2**31 - 1)

HASHES = ["f76d1b5af3d94296", "e1cd4bde4ffcb1e7", "6c35c72b38f26cb2", "034227c6a45ba27b", "bba61d6eefaac41c", "48fee763ffa3f7c9"]
NORMALS = [
    "-0x1.dd513a7bb5accp-2",
    "0x1.4817e682ba299p-4",
    "-0x1.0cf41288c46f2p+1",
    "0x1.1c2d89eb5ac92p+1",
    "-0x1.029b3ba0421dep-2",
    "-0x1.76ec258a48c19p-2",
]
UNIFORMS = ["0x1.c995590f58240p-2", "0x1.e4dfdc18264cap-1", "0x1.2bb00308d7c52p-1", "0x1.58f63628c31acp-2"]


def test_the_bits_are_those_of_every_machine() -> None:
    assert [f"{int(x):016x}" for x in bits(0, "q", (2, 3)).reshape(-1)] == HASHES
    assert [x.hex() for x in normal(7, "v", (2, 1, 3)).reshape(-1)] == NORMALS
    assert [x.hex() for x in uniform(12345, "mask", (4,))] == UNIFORMS
    assert [choice(seed, "row", 10) for seed in range(12)] == [3, 8, 8, 3, 0, 3, 5, 9, 7, 9, 9, 0]
    assert permutation(3, "keys", 8).tolist() == [6, 2, 5, 3, 1, 0, 4, 7]


SHAPES = st.lists(st.integers(0, 6), min_size=1, max_size=4).map(tuple)


@settings(max_examples=200, deadline=None, database=None)
@given(seed=st.integers(0, 2**31 - 1), shape=SHAPES, data=st.data())
def test_a_smaller_array_is_a_corner_of_the_larger(seed: int, shape: tuple[int, ...], data: st.DataObject) -> None:
    smaller = tuple(data.draw(st.integers(0, size)) for size in shape)
    corner = tuple(slice(size) for size in smaller)
    for make in (bits, uniform, normal):
        np.testing.assert_array_equal(make(seed, "k", smaller), make(seed, "k", shape)[corner], strict=True)


@settings(max_examples=100, deadline=None, database=None)
@given(seed=st.integers(0, 2**31 - 1), shape=SHAPES)
def test_leading_axes_of_size_one_change_nothing(seed: int, shape: tuple[int, ...]) -> None:
    padded = (1,) * (4 - len(shape)) + shape
    np.testing.assert_array_equal(bits(seed, "v", padded).reshape(shape), bits(seed, "v", shape), strict=True)


def test_every_coordinate_seed_and_name_has_its_own_number() -> None:
    """64-bit hashes of n coordinates collide with probability n²/2^65 < 1e-9."""
    seen = [bits(seed, name, (5, 6, 7, 8)) for seed in SEEDS for name in ("q", "k", "v", "mask", "bias", "q simple")]
    numbers = np.concatenate([x.reshape(-1) for x in seen])
    assert len(np.unique(numbers)) == len(numbers) == 50_400


def bernstein(variance: float, largest: float, count: int) -> float:
    """t with P(|mean of count independent centred numbers| > t) ≤ ALPHA (Boucheron, Lugosi, Massart 2013, 2.8)."""
    exponent = log(2 / ALPHA)
    return sqrt(2 * variance * exponent / count) + largest * exponent / (3 * count)


# The same numbers in different shapes run along different axes of the hash.
LINES: tuple[tuple[int, ...], ...] = ((COUNT,), (COUNT, 1), (COUNT, 1, 1), (COUNT, 1, 1, 1), (8, 8, 64, 64))


@pytest.mark.parametrize("shape", LINES, ids=str)
@pytest.mark.parametrize("seed", SEEDS)
def test_normal_has_the_moments_it_claims(seed: int, shape: tuple[int, ...]) -> None:
    """Irwin–Hall with four terms: variance 1, fourth moment 3 − 1.2/4; x² lies within [0, 12], x³ within ±42."""
    x = normal(seed, "q", shape).reshape(-1)
    assert len(x) == COUNT
    assert abs(x.mean()) <= bernstein(1, 3.5, COUNT)
    assert abs((x**2).mean() - 1) <= bernstein(1.7, 12, COUNT) + 2e-7  # the factor 1/37837.22 has seven digits
    assert abs((x**3).mean()) <= bernstein(15 * 0.75, 42, COUNT)  # sixth moment below the normal's 15, by about a quarter
    assert np.abs(x).max() <= 3.5


@pytest.mark.parametrize("seed", SEEDS)
def test_neighbours_are_independent(seed: int) -> None:
    """The mean product of disjoint pairs along each axis, and of two tensors and two seeds, is 0 within its error."""
    x = normal(seed, "q", (8, 8, 64, 64))
    pairs: list[tuple[Any, Any]] = [
        (x[0::2], x[1::2]),
        (x[:, 0::2], x[:, 1::2]),
        (x[:, :, 0::2], x[:, :, 1::2]),
        (x[..., 0::2], x[..., 1::2]),
        (x, normal(seed, "k", x.shape)),
        (x, normal(seed + 1, "q", x.shape)),
        (x[..., 1::2, 0::2], x[..., 0::2, 1::2]),
    ]
    for a, b in pairs:
        assert abs((a * b).mean()) <= bernstein(1, 12.25, a.size)
        assert abs((a**2 * b**2).mean() - 1) <= bernstein(2.7**2 - 1, 150, a.size) + 4e-7


@pytest.mark.parametrize("seed", SEEDS)
def test_uniform_fills_its_interval_evenly(seed: int) -> None:
    """Dvoretzky–Kiefer–Wolfowitz: the empirical distribution is off by more than t with probability 2·exp(−2nt²)."""
    x = np.sort(uniform(seed, "mask", (COUNT,)))
    assert x[0] >= 0 and x[-1] < 1
    steps = np.arange(COUNT + 1) / COUNT
    assert max(np.abs(steps[1:] - x).max(), np.abs(x - steps[:-1]).max()) <= sqrt(log(2 / ALPHA) / (2 * COUNT))
    assert (x * 2.0**53 == np.floor(x * 2.0**53)).all()


def test_every_bit_is_a_fair_coin() -> None:
    """Hoeffding, 64 bits."""
    x = bits(1, "q", (COUNT,))
    ones = np.array([((x >> np.uint64(bit)) & np.uint64(1)).mean() for bit in range(64)])
    assert np.abs(ones - 0.5).max() <= sqrt(log(64 * 2 / ALPHA) / (2 * COUNT))


@pytest.mark.parametrize("extreme", (0, 2**64 - 1))
def test_normal_stays_within_three_and_a_half(extreme: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the hash gives: all fields 0, and all fields full."""
    monkeypatch.setattr("properties.engine.cases.coordinates._mix", lambda _: np.array([extreme], dtype=np.uint64))
    (value,) = normal(0, "q", (1,))
    assert 3.4 < abs(value) <= 3.5


@settings(max_examples=300, deadline=None, database=None)
@given(seed=st.integers(0, 2**31 - 1), count=st.integers(0, 40))
def test_a_permutation_is_one_and_moves_something(seed: int, count: int) -> None:
    order = permutation(seed, "keys", count)
    assert sorted(order.tolist()) == list(range(count))
    assert count < 2 or order.tolist() != list(range(count))


def test_every_choice_and_every_permutation_comes() -> None:
    """A given outcome of k equal ones is absent from n draws with probability (1 − 1/k)^n."""
    draws = 1 + int(log(ALPHA) / log(1 - 1 / 7))
    assert {choice(seed, "row", 7) for seed in range(draws)} == set(range(7))
    draws = 1 + int(log(ALPHA) / log(1 - 1 / 6))
    assert len({tuple(permutation(seed, "rows", 3).tolist()) for seed in range(draws)}) == 5  # all but the identity


def test_a_choice_is_fair() -> None:
    """Hoeffding for each of three outcomes; 2^64 mod 3 biases by less than 2^-62."""
    draws = 20_000
    counts = np.bincount([choice(seed, "one", 3) for seed in range(draws)], minlength=3)
    assert np.abs(counts / draws - 1 / 3).max() <= sqrt(log(2 / ALPHA) / (2 * draws))
