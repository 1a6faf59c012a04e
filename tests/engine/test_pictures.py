"""Which matrices of a finding are shown, and what of them: the arrays of a picture, before anything is drawn."""

from __future__ import annotations

import numpy as np
import pytest

from properties.engine.core.picture import CELLS, PANELS, Compared, Picture, pictured


def off(shape: tuple[int, ...], *wrong: tuple[tuple[int, ...], float]) -> Compared:
    """Numbers that are all expected, but for some: where, and by how much they are off. All are 1 off, which is allowed."""
    expected = np.arange(np.prod(shape, dtype=int), dtype=float).reshape(shape)
    actual, mask = expected + 1, np.zeros(shape, dtype=bool)
    for at, by in wrong:
        actual[at], mask[at] = expected[at] + by, True
    return Compared(actual, expected, np.ones(shape), mask)


def made(values: Compared) -> Picture:
    found = pictured("out", "it is off", values)
    assert found is not None
    return found


@pytest.mark.parametrize("shape", [(), (0,), (2, 0), (0, 3, 3), (2, 0, 3), (1,), (1, 1, 1, 1)])
def test_there_is_nothing_to_see(shape: tuple[int, ...]) -> None:
    assert pictured("out", "it is off", off(shape)) is None


@pytest.mark.parametrize("shape", [(2,), (1, 2), (2, 1), (1, 1, 2), (3, 4)])
def test_a_single_matrix_has_no_place(shape: tuple[int, ...]) -> None:
    picture = made(off(shape, ((0,) * len(shape), 3.0)))
    (panel,) = picture.panels
    assert panel.where == "" and picture.left_out == ""
    assert (len(panel.rows), len(panel.columns)) == (1, *shape)[-2:] == panel.values.actual.shape


def test_a_panel_holds_the_numbers_of_its_place() -> None:
    values = off((2, 3, 4, 5), ((1, 2, 3, 4), 9.0), ((0, 1, 0, 0), 2.5))
    picture = made(values)
    assert [panel.where for panel in picture.panels] == ["batch 1, head 2", "batch 0, head 1"]  # the worst first
    for panel, at in zip(picture.panels, ((1, 2), (0, 1)), strict=True):
        assert panel.rows == (0, 1, 2, 3) and panel.columns == (0, 1, 2, 3, 4)
        for name in ("actual", "expected", "allowed", "wrong"):
            assert np.array_equal(getattr(panel.values, name), getattr(values, name)[at])
    assert picture.left_out == "4 of 6 matrices are right"


@pytest.mark.parametrize(
    ("shape", "at", "where"),
    [
        ((3, 2, 2), (2, 0, 1), "part 2"),
        ((2, 3, 2, 2, 2), (1, 2, 1, 0, 0), "part 1, part 2, part 1"),
        ((1, 3, 2, 2), (0, 1, 0, 0), "batch 0, head 1"),
        ((1, 1, 2, 2), (0, 0, 0, 0), ""),
    ],
)
def test_where_a_matrix_stands(shape: tuple[int, ...], at: tuple[int, ...], where: str) -> None:
    assert [panel.where for panel in made(off(shape, (at, 5.0))).panels] == [where]


def test_how_wrong_a_number_is_is_what_it_is_off_beyond_what_is_allowed() -> None:
    """An infinite number, and what is none, are wronger than all others; what is right counts for nothing, however far it is off."""
    values = off((4, 2, 2), ((0, 0, 0), -6.0), ((1, 0, 0), 5.0), ((2, 0, 0), 7.0), ((3, 0, 0), np.nan))
    values.allowed[2, 0, 0] = 3.0
    values.actual[1, 1, 1] = 1e6
    assert [panel.where for panel in made(values).panels] == ["part 3", "part 0", "part 1", "part 2"]


def test_so_many_wrong_matrices_are_shown() -> None:
    for wrong, said in ((PANELS - 1, "7 of 10 matrices are right"), (PANELS, "6 of 10 matrices are right")):
        picture = made(off((10, 2, 2), *(((at, 0, 0), 2.0 + at) for at in range(wrong))))
        assert len(picture.panels) == wrong and picture.left_out == said
    picture = made(off((10, 2, 2), *(((at, 0, 0), 2.0 + at) for at in range(10))))
    assert [panel.where for panel in picture.panels] == ["part 9", "part 8", "part 7", "part 6"]
    assert picture.left_out == "6 more matrices are wrong"


def test_without_a_wrong_number_the_first_matrix_is_shown() -> None:
    picture = made(off((3, 2, 2)))
    assert [panel.where for panel in picture.panels] == ["part 0"] and not picture.panels[0].values.wrong.any()


@pytest.mark.parametrize(
    ("size", "at", "begin"),
    [
        (CELLS, 31, 0),
        (CELLS + 1, 0, 0),
        (CELLS + 1, CELLS, 1),
        (100, 0, 0),
        (100, 16, 0),
        (100, 17, 1),
        (100, 50, 34),
        (100, 84, 68),
        (100, 99, 68),
    ],
)
def test_the_numbers_around_the_worst_one(size: int, at: int, begin: int) -> None:
    for shape, place in (((size, 3), (at, 2)), ((3, size), (2, at))):
        picture = made(off(shape, (place, 9.0)))
        (panel,) = picture.panels
        long, short = (panel.rows, panel.columns) if shape[0] == size else (panel.columns, panel.rows)
        assert long == tuple(range(begin, begin + CELLS)) and short == (0, 1, 2)
        assert panel.values.wrong[panel.rows.index(place[0]), panel.columns.index(place[1])] and panel.values.wrong.sum() == 1
        cut = f"the {CELLS} rows and columns around the worst element are shown, of {shape[0]} × {shape[1]}"
        assert picture.left_out == (cut if size > CELLS else "")


def test_many_small_matrices_are_shown_whole() -> None:
    for shape in ((2 * CELLS, 2, 2), (1, 2 * CELLS, 3, 2)):
        assert made(off(shape, ((0,) * len(shape), 5.0))).left_out == f"{2 * CELLS - 1} of {2 * CELLS} matrices are right"


def test_the_worst_number_is_one_that_is_wrong() -> None:
    """However little it is off beyond what is allowed."""
    (panel,) = made(off((3, 100), ((2, 90), 1.001))).panels
    assert 90 in panel.columns and panel.values.wrong.sum() == 1
    assert [panel.where for panel in made(off((2, 2, 2), ((0, 0, 0), 1.001), ((1, 0, 0), 1.002))).panels] == ["part 1", "part 0"]


def test_without_anything_wrong_it_begins_at_the_first_number() -> None:
    values = off((100, 3))
    values.actual[90, 2] = 1e6
    assert made(values).panels[0].rows == tuple(range(CELLS))
