"""Pictures of a finding: what came out beside what should have, as matrices. Nothing is drawn here."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..cases.coordinates import Array

CELLS = 32  # rows and columns of a panel at most, those around the worst cell
PANELS = 4  # panels of a picture at most


@dataclass(frozen=True, eq=False)
class Compared:
    """What a claim compared, element by element; all arrays have one shape."""

    actual: Array
    expected: Array
    allowed: Array  # how far they may be apart; inf: nothing is claimed
    wrong: Array  # bool


@dataclass(frozen=True, eq=False)
class Panel:
    """One matrix of a picture: all arrays are (rows, columns)."""

    where: str  # "batch 0, head 1"; empty if there is one matrix only
    rows: tuple[int, ...]  # which rows of the whole are shown
    columns: tuple[int, ...]
    values: Compared


@dataclass(frozen=True, eq=False)
class Picture:
    """Some matrices of one thing, such as the attention weights of each head."""

    title: str
    says: str  # in a sentence, what is to be seen
    row: str  # what a row is, such as "query"
    column: str
    panels: tuple[Panel, ...]
    left_out: str  # what is not shown, in words; empty if all is


def pictured(title: str, says: str, values: Compared, row: str = "row", column: str = "feature") -> Picture | None:
    """The matrices of the last two axes that hold a wrong element, the worst first; the first one if none does.

    None if there is nothing to see: no element, or a single number.
    """
    shape = np.shape(values.wrong)
    if not shape or 0 in shape or values.wrong.size == 1:
        return None
    sheets = [np.broadcast_to(x, shape).reshape(-1, *(1, *shape)[-2:]) for x in _arrays(values)]
    excess = _excess(*sheets)
    order = sorted(range(len(excess)), key=lambda at: -excess[at].max())
    faulty = [at for at in order if sheets[3][at].any()] or order[:1]
    lead = shape[:-2] if len(shape) > 2 else ()
    panels = tuple(_panel(_where(at, lead), [x[at] for x in sheets], excess[at]) for at in faulty[:PANELS])
    return Picture(title, says, row, column, panels, _left_out(panels, shape, len(faulty), len(order)))


def _arrays(values: Compared) -> list[Array]:
    numbers = [np.asarray(x, dtype=np.float64) for x in (values.actual, values.expected, values.allowed)]
    return [*numbers, np.asarray(values.wrong, dtype=bool)]


def _excess(actual: Array, expected: Array, allowed: Array, wrong: Array) -> Array:
    """How wrong each element is: 0 where it is not, the largest for what is no number."""
    with np.errstate(all="ignore"):
        return np.where(wrong, np.nan_to_num(np.abs(actual - expected) - allowed, nan=np.inf, posinf=np.inf), 0.0)


def _where(at: int, lead: tuple[int, ...]) -> str:
    if not lead or np.prod(lead) == 1:
        return ""
    index = np.unravel_index(at, lead)
    names = ("batch", "head") if len(lead) == 2 else ("part",) * len(lead)
    return ", ".join(f"{name} {i}" for name, i in zip(names, index, strict=True))


def _panel(where: str, sheet: list[Array], excess: Array) -> Panel:
    worst = np.unravel_index(int(np.argmax(excess)), excess.shape)
    rows, columns = (_around(int(at), size) for at, size in zip(worst, excess.shape, strict=True))
    return Panel(where, tuple(rows), tuple(columns), Compared(*(x[np.ix_(rows, columns)] for x in sheet)))


def _around(at: int, size: int) -> range:
    begin = min(max(at - CELLS // 2, 0), max(size - CELLS, 0))
    return range(begin, min(begin + CELLS, size))


def _left_out(panels: tuple[Panel, ...], shape: tuple[int, ...], faulty: int, total: int) -> str:
    parts = []
    if faulty > len(panels):
        parts.append(f"{faulty - len(panels)} more matrices are wrong")
    if total > faulty:
        parts.append(f"{total - faulty} of {total} matrices are right")
    if max((1, *shape)[-2:]) > CELLS:
        parts.append(f"the {CELLS} rows and columns around the worst element are shown, of {' × '.join(map(str, (1, *shape)[-2:]))}")
    return "; ".join(parts)
