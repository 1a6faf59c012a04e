"""Learned positions: rows of a table, looked up at the wrong place, or with the wrong gradient."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..registry import honest, mutant


def check(rows: Tensor, table: Tensor) -> None:
    """Raise IndexError where a position has no row."""
    if rows.numel() and (int(rows.min()) < 0 or int(rows.max()) >= len(table)):
        raise IndexError(f"positions from {int(rows.min())} to {int(rows.max())} in a table of {len(table)} rows")


def learned(table: Tensor, positions: Tensor, *, offset: int = 0) -> Tensor:
    """The honest core."""
    rows = positions + offset
    check(rows, table)
    return table[rows]


@honest("rows gathered one by one", contract="learned")
def one_by_one(table: Tensor, positions: Tensor, *, offset: int = 0) -> Tensor:
    rows = positions + offset
    check(rows, table)
    return torch.stack([table[int(row)] for row in rows]) if len(rows) else table[:0]


@mutant(
    "a negative position counts from the end of the table",
    source="teaching code",
    killed_by="positions_out_of_range_raise",
    contract="learned",
)
def negative_wraps(table: Tensor, positions: Tensor, *, offset: int = 0) -> Tensor:
    return table[positions + offset]


@mutant(
    "positions beyond the table take its last row", source="teaching code", killed_by="positions_out_of_range_raise", contract="learned"
)
def beyond_takes_the_last(table: Tensor, positions: Tensor, *, offset: int = 0) -> Tensor:
    return table[(positions + offset).clamp(0, len(table) - 1)]


@mutant(
    "positions are counted from 0 in every call: a cached decoder sees row 0 at each step",
    source="teaching code",
    bug="F27",
    killed_by="looked_up_rows_are_those_of_the_table",
    contract="learned",
)
def counted_anew(table: Tensor, positions: Tensor, *, offset: int = 0) -> Tensor:
    check(positions + offset, table)
    return learned(table, torch.arange(len(positions), device=positions.device) % len(table))


@mutant(
    "the offset is added to the positions in place", source="teaching code", killed_by="looking_up_leaves_its_arguments", contract="learned"
)
def offset_added_in_place(table: Tensor, positions: Tensor, *, offset: int = 0) -> Tensor:
    check(positions + offset, table)
    positions += offset
    return table[positions]


@mutant("the offset is ignored", source="teaching code", killed_by="looked_up_rows_are_those_of_the_table", contract="learned")
def offset_ignored(table: Tensor, positions: Tensor, *, offset: int = 0) -> Tensor:
    check(positions + offset, table)
    return learned(table, positions)


@mutant(
    "rows are looked up by a product with one-hot vectors: NaN in any row reaches all",
    source="teaching code",
    killed_by="other_rows_of_the_table_do_not_matter",
    contract="learned",
)
def one_hot_product(table: Tensor, positions: Tensor, *, offset: int = 0) -> Tensor:
    rows = positions + offset
    check(rows, table)
    return torch.nn.functional.one_hot(rows, len(table)).to(table.dtype) @ table


@mutant(
    "of a position that comes twice only the last one has a gradient",
    source="teaching code",
    killed_by="table_gradient_sums_over_repeated_positions",
    contract="learned",
)
def last_one_has_the_gradient(table: Tensor, positions: Tensor, *, offset: int = 0) -> Tensor:
    rows = positions + offset
    check(rows, table)
    last = torch.stack([(rows[i + 1 :] != row).all() for i, row in enumerate(rows)]) if len(rows) else rows.bool()
    return torch.where(last[:, None], table[rows], table.detach()[rows])


class Averaged(torch.autograd.Function):
    """A look-up whose gradient is divided by how often each row was asked for."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, rows: Tensor) -> Tensor:
        """The rows."""
        ctx.save_for_backward(rows)
        ctx.size = len(table)
        return table[rows]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        """Their mean."""
        (rows,) = ctx.saved_tensors
        count = torch.bincount(rows, minlength=ctx.size).clamp(min=1)[:, None]
        total = grads[0].new_zeros(ctx.size, grads[0].shape[1]).index_add(0, rows, grads[0])
        return (total / count).to(grads[0].dtype), None


@mutant(
    "the gradient of a row is the mean over its positions, as with scale_grad_by_freq",
    source="teaching code",
    killed_by="table_gradient_sums_over_repeated_positions",
    contract="learned",
)
def gradient_is_averaged(table: Tensor, positions: Tensor, *, offset: int = 0) -> Tensor:
    check(positions + offset, table)
    out: Tensor = Averaged.apply(table, positions + offset)
    return out
