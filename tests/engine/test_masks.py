"""Masks and frontiers, key by key: what each name of a mask says, along which axes, and in which words."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from properties.attention.case import Case
from properties.engine.cases.coordinates import uniform
from properties.engine.cases.masks import (
    DENSITY_REASONS,
    MASK_AXES,
    MASK_KINDS,
    MASKS,
    ahead,
    frontier,
    in_axes,
    lengths,
    make_mask,
    other_mask,
)

SHAPE = (2, 3, 5, 7)
SIZES = [(L, S) for L in (0, 1, 2, 3, 5) for S in (0, 1, 2, 4, 6)]


def rows(name: str, shape: tuple[int, ...] = SHAPE, seeds: int = 40, **facts: float) -> list[tuple[Case, int, list[bool]]]:
    """(case, i, what row i sees) of a pattern, of all batch elements and heads, under many seeds."""
    found = []
    for seed in range(seeds):
        case = Case(seed=seed, mask=name, **facts)  # type: ignore[arg-type]
        seen = np.broadcast_to(MASKS[name](case, shape), shape)
        assert seen.dtype == bool
        found += [(case, at[2], seen[at].tolist()) for at in np.ndindex(shape[:3])]
    return found


@pytest.mark.parametrize(("queries", "keys"), SIZES)
def test_frontiers(queries: int, keys: int) -> None:
    for causal, shift in (("top-left", 0), ("bottom-right", keys - queries)):
        seen = frontier(queries, keys, causal)
        assert seen.shape == (queries, keys)
        assert seen.tolist() == [[j <= i + shift for j in range(keys)] for i in range(queries)]
    assert (frontier(queries, keys) == frontier(queries, keys, "top-left")).all()
    assert not queries or not keys or frontier(queries, keys, "bottom-right")[-1].all()


def test_ahead_of_the_diagonal() -> None:
    used = np.array([4, 2])[:, None, None, None]
    found = ahead(2, 5, "bottom-right", used)
    assert found.shape == (2, 1, 2, 5)
    assert found[0, 0].tolist() == [[-2, -1, 0, 1, 2], [-3, -2, -1, 0, 1]]  # the last row ends at key 3, the last of 4
    assert found[1, 0].tolist() == [[0, 1, 2, 3, 4], [-1, 0, 1, 2, 3]]
    assert ahead(2, 3, "top-left", 1).tolist() == [[0, 1, 2], [-1, 0, 1]]


def test_lengths() -> None:
    for least in (0, 1):
        drawn = [lengths(Case(seed=seed), (2, 1, 1, 3), least) for seed in range(60)]
        assert all(x.shape == (2, 1, 1, 1) for x in drawn)
        assert {int(n) for x in drawn for n in x.reshape(-1)} == set(range(least, 4))
        assert any(x[0] != x[1] for x in drawn)
    assert lengths(Case(), (1, 1, 1, 0), 1).tolist() == [[[[1]]]]


def test_padding_is_a_beginning_and_left_padding_an_end() -> None:
    kept = set()
    for case, _, seen in rows("padding"):
        kept.add(sum(seen))
        assert seen == [True] * sum(seen) + [False] * (7 - sum(seen)), case
    assert kept == set(range(1, 8))
    assert {sum(seen) for _, _, seen in rows("left_padding")} == kept
    for case, _, seen in rows("left_padding"):
        assert seen == [False] * (7 - sum(seen)) + [True] * sum(seen), case


def test_shapes_of_the_other_patterns() -> None:
    for case, i, seen in rows("triangle", seeds=2):
        assert seen == [j <= i for j in range(7)], case
    for case, i, seen in rows("band", seeds=6):
        assert seen == [0 <= i - j <= 1 + case.seed % 3 for j in range(7)], case
    for case, i, seen in rows("documents", seeds=2):
        assert seen == [(i < 3) == (j < 3) for j in range(7)], case
    assert [seen for _, _, seen in rows("documents", (1, 1, 2, 1), seeds=1)] == [[True], [False]]  # the first document has a key
    for name, count in (("one_key", 1), ("one_hole", 6), ("everything", 7), ("nothing", 0)):
        found = rows(name)
        assert {sum(seen) for _, _, seen in found} == {count}, name
        assert count in (0, 7) or {seen.index(name == "one_key") for _, _, seen in found} == set(range(7))


@pytest.mark.parametrize(
    ("keys", "tile"),
    [
        (0, 0),
        (1, 0),
        (2, 1),
        (3, 2),
        (4, 2),
        (5, 4),
        (9, 8),
        (16, 8),
        (17, 16),
        (33, 32),
        (65, 64),
        (129, 128),
        (257, 256),
        (513, 512),
        (2000, 512),
    ],
)
def test_a_leading_tile_is_hidden_and_a_key_is_left(keys: int, tile: int) -> None:
    for _, _, seen in rows("leading_tile", (1, 2, 1, keys), seeds=1):
        assert seen == [j >= tile for j in range(keys)]


def test_random_masks_are_as_dense_as_they_say() -> None:
    for density in (0.2, 0.8):
        found = rows("random", mask_density=density)
        assert sum(map(sum, (seen for _, _, seen in found))) / (7 * len(found)) == pytest.approx(density, abs=0.02)
    case = Case(seed=3, mask_density=0.25)
    assert (MASKS["random"](case, SHAPE) == (uniform(3, "mask", SHAPE) < 0.25)).all()


def test_the_reasons_are_those_of_what_is_drawn() -> None:
    density, rank = (Case.fields()[name] for name in ("mask_density", "mask_rank"))
    assert set(DENSITY_REASONS) == set(density.drawn)
    assert {value for value in rank.drawn if "leading axes of size 1" in rank.reason(value)} == {3, 4}
    assert "as few axes as the mask needs" in rank.reason(0)


def test_about_half_of_the_rows_may_be_empty() -> None:
    found = rows("empty_rows")
    left = [seen for _, _, seen in found if any(seen)]
    full = (uniform(3, "mask", SHAPE) < 0.7) & (uniform(3, "empty", (2, 3, 5, 1)) >= 0.5)
    assert (MASKS["empty_rows"](Case(seed=3), SHAPE) == full).all()  # a replay line means the same tomorrow
    assert len(left) / len(found) == pytest.approx(0.5, abs=0.04)
    assert sum(map(sum, left)) / (7 * len(left)) == pytest.approx(0.7, abs=0.02)


# ---------------------------------------------------------------- a mask of a case


def form(axes: str, rank: int, shape: tuple[int, ...] = SHAPE) -> tuple[int, ...]:
    """The sizes of a mask along these axes: 1 along the others, which are left out from the front where the rank allows it."""
    sizes = [size if axis in axes else 1 for axis, size in zip("BHLS", shape, strict=True)]
    while len(sizes) > rank and "BHLS"[-len(sizes)] not in axes:
        sizes.pop(0)
    return tuple(sizes)


@pytest.mark.parametrize("axes", MASK_AXES)
@pytest.mark.parametrize("rank", range(5))
def test_a_mask_has_the_axes_and_the_rank_of_the_case(axes: str, rank: int) -> None:
    for kind, name in product(MASK_KINDS, ("random", "triangle")):
        mask = make_mask(Case(mask=name, mask_axes=axes, mask_rank=rank, mask_kind=kind, seed=2), SHAPE)
        assert mask is not None and mask.shape == form(axes, rank), (kind, name)


def test_no_mask() -> None:
    assert make_mask(Case(), SHAPE) is None


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_kinds_say_the_same(dtype: str) -> None:
    case = Case(mask="random", mask_axes="BHLS", dtype=dtype, seed=4)
    masks = {kind: make_mask(replace(case, mask_kind=kind), SHAPE) for kind in MASK_KINDS}
    seen = masks["bool"]
    assert seen is not None and seen.dtype == bool and (seen == MASKS["random"](case, SHAPE)).all()
    hidden = {"minus_infinity": -np.inf, "bias_and_minus_infinity": -np.inf, "lowest": {"float16": -65504.0}.get(dtype)}
    for kind, lowest in hidden.items():
        mask = masks[kind]
        assert mask is not None and mask.dtype == np.float64
        assert (mask[~seen] == (lowest or mask.min())).all() and (mask.min() <= -65504)
        assert (mask[seen] == 0).all() if kind != "bias_and_minus_infinity" else (np.abs(mask[seen]) < 7.1).all()
    added, bias = masks["bias_and_minus_infinity"], masks["bias"]
    assert bias is not None and added is not None
    assert (added[seen] == bias[seen]).all() and (bias != 0).all() and 1.7 < bias.std() < 2.3  # every key is seen


def test_a_mask_may_be_changed() -> None:
    for kind in MASK_KINDS:
        mask = make_mask(Case(mask="everything", mask_kind=kind), SHAPE)
        assert mask is not None and mask.flags.writeable


# ---------------------------------------------------------------- the same mask in other axes


@pytest.mark.parametrize("allowed", [("BHLS",), ("LS",), ("S",), ("BS", "HS"), ("L", "LS"), ("BL", "BLS"), ("HLS", "BHLS"), ("",)])
def test_a_mask_is_said_in_axes_that_are_allowed(allowed: tuple[str, ...]) -> None:
    """In one of them, if it can be; then it says the same, and has one of their forms."""
    for axes, rank, name in product(MASK_AXES, (0, 2, 4), ("random", "everything", "triangle")):
        mask = make_mask(Case(mask=name, mask_axes=axes, mask_rank=rank, seed=1), SHAPE)
        assert mask is not None
        said, whole = in_axes(mask, SHAPE, allowed), np.broadcast_to(mask, SHAPE)
        np.testing.assert_array_equal(np.broadcast_to(said, SHAPE), whole)
        varies = {axis for at, axis in enumerate("BHLS") if (whole != whole.take([0], axis=at)).any()}
        fits = any(varies <= set(one) for one in allowed)
        forms = {form(one, r) for one in allowed for r in range(5)}
        assert (said.shape in forms) if fits else (said is mask), (axes, rank, name)
        assert (
            said is mask
            or said.ndim >= mask.ndim
            or said.ndim == max(len(form(one, 0)) for one in allowed if form(one, said.ndim) == said.shape)
        )


def test_what_fits_stays_as_it_is() -> None:
    rows = np.arange(5.0)[:, None]
    for mask in (rows, rows[None], rows[None, None]):
        assert in_axes(mask, SHAPE, ("L",)) is mask
    assert in_axes(rows, SHAPE, ("LS", "L")) is rows  # it has one of the forms already
    number = np.array(1.0)
    assert in_axes(number, SHAPE, ("",)) is number
    for strange in (
        np.ones((5, 8)),
        np.ones((1, 2, 3, 5, 7)),
        np.ones((4, 1, 5, 7)),
        np.ones((*SHAPE, 9)),
    ):  # they fit no logits of this shape
        assert in_axes(strange, SHAPE, ("S", "BHLS")) is strange


def test_the_fewest_axes_that_keep_what_varies() -> None:
    assert in_axes(np.arange(5.0)[:, None], SHAPE, ("BHLS", "BL", "HLS")).shape == (2, 1, 5, 1)
    same = np.broadcast_to(np.arange(7.0), (5, 7))  # written out along the queries, but the same for all
    assert in_axes(same, SHAPE, ("S", "BHLS")).shape == SHAPE  # what varies in size stays, where that is allowed
    assert in_axes(same, SHAPE, ("S", "BHS")).shape == (1, 7)
    assert in_axes(same[None, None], SHAPE, ("S",)).shape == (1, 1, 1, 7)


def test_masks_of_nothing() -> None:
    """Along an axis of size 0 there is nothing to take the first of; a row without keys is seen, or gets 0."""
    shape = (2, 1, 0, 3)
    said = in_axes(np.zeros((0, 3), dtype=bool), shape, ("S",))
    assert said.shape == (1, 3) and said.dtype == bool and said.all()
    said = in_axes(np.zeros((0, 3)), shape, ("S", "BS"))
    assert said.shape == (1, 3) and said.dtype == np.float64 and not said.any()


# ---------------------------------------------------------------- another mask


def test_another_mask_says_something_else_everywhere() -> None:
    for kind in MASK_KINDS:
        case = Case(mask="random", mask_axes="BHLS", mask_kind=kind, dtype="float32", seed=4)
        mask = make_mask(case, SHAPE)
        assert mask is not None
        other = other_mask(mask, case)
        if kind == "bool":
            assert (other == ~mask).all()
        elif kind in ("minus_infinity", "lowest"):
            assert ((other < 0) == (mask == 0)).all() and set(np.unique(other)) == set(np.unique(mask))
        else:
            hidden = mask == -np.inf
            assert (other[hidden] == 0).all()
            slope = np.broadcast_to(3.0 * np.arange(7), SHAPE)
            assert (other[~hidden] == (mask - slope)[~hidden]).all()  # a shift alone would change no weight


def test_another_bias_of_one_key() -> None:
    case = Case(mask="random", mask_kind="bias")
    for mask in (np.array([[2.0]]), np.array([[2.0]] * 3), np.array(2.0)):
        assert (other_mask(mask, case) == -1.0).all()
    assert (other_mask(np.array([2.0, 2.0]), case) == [2.0, -1.0]).all()
