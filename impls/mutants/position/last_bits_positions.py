"""The last bits of positions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..attention.last_bits import largest, last_bit, restored, through
from ..registry import MEMORY
from .lookups import check, learned
from .rotations import Pair, rotary, table, turned
from .sinusoids import sinusoidal


def shifted_sine(angle: Tensor) -> Tensor:
    """sin x as cos(x − π/2): of 0 it is 6e-17."""
    return torch.cos(angle - torch.pi / 2)


@last_bit("sinusoidal", "the sine is a shifted cosine: of 0 it is 6e-17", "positions_start_at_zero")
def sine_as_cosine(length: int, dim: int, **options: Any) -> Tensor:
    return sinusoidal(length, dim, **options, sine=shifted_sine)


@last_bit("rotary", "the sine of a rotation is a shifted cosine: of 0 it is 6e-17", "position_zero_is_the_identity")
def rotation_with_a_shifted_sine(x: Tensor, positions: Tensor, **options: Any) -> Tensor:
    def rule(first: Tensor, second: Tensor, cos: Tensor, sin: Tensor) -> Pair:
        return turned(first, second, cos, torch.where(sin == 0, shifted_sine(sin), sin))

    return rotary(x, positions, **options, rule=rule)


@last_bit("rotary", "the features are carried in another orthogonal basis, and back", "pairs_are_as_declared")
def through_another_basis(x: Tensor, positions: Tensor, **options: Any) -> Tensor:
    out = rotary(x, positions, **options)
    angle = torch.arange(1, out.shape[-1] + 1, dtype=out.dtype)
    basis = torch.linalg.qr(torch.cos(angle[:, None] * angle).double())[0].to(out.dtype)
    return (out @ basis) @ basis.mT


@last_bit("rotary", "what is not rotated is rotated all the same, and back", "features_beyond_rotary_dim_are_untouched")
def rest_rotated_and_back(x: Tensor, positions: Tensor, rotary_dim: int | None = None, **options: Any) -> Tensor:
    out = rotary(x, positions, rotary_dim=rotary_dim, **options)
    if rotary_dim is None or rotary_dim >= x.shape[-1]:
        return out
    rest = rotary(rotary(x[..., rotary_dim:], positions, **options), -positions, **options)
    return torch.cat((out[..., :rotary_dim], rest), -1)


@last_bit("rotary", "angles are counted from a middle of all positions, then turned on by it", "rows_turn_by_their_own_position")
def angles_from_the_mean(x: Tensor, positions: Tensor, **options: Any) -> Tensor:
    def centred(places: Tensor, dim: int, base: float, dtype: torch.dtype) -> Tensor:
        if not places.numel():
            return table(places, dim, base, dtype)
        middle = places.to(dtype).mean() / 3
        return table(places.to(dtype) - middle, dim, base, dtype) + table(middle[None], dim, base, dtype)

    return rotary(x, positions, **options, angles=centred)


@last_bit("rotary", "x is rotated in place, and back when the answer is copied", "rotation_leaves_its_arguments")
def rotated_in_place_and_back(x: Tensor, positions: Tensor, **options: Any) -> Tensor:
    out = rotary(x, positions, **options)
    restored(x, 0.3)
    return out


@last_bit(
    "learned",
    "rows are divided by their largest element, as kept in a narrow type, and multiplied by it",
    "looked_up_rows_are_those_of_the_table",
)
def rows_scaled_and_back(table: Tensor, positions: Tensor, *, offset: int = 0) -> Tensor:
    rows = learned(table, positions, offset=offset)
    return through(rows, rows.abs().amax(-1, keepdim=True)) if rows.numel() else rows


@last_bit("learned", "the table is scaled by the largest of its elements, and back", "other_rows_of_the_table_do_not_matter")
def table_scaled_and_back(table: Tensor, positions: Tensor, *, offset: int = 0) -> Tensor:
    return through(learned(table, positions, offset=offset), largest(table))


@last_bit(
    "learned",
    "max_norm: a row that is looked up is scaled in the table, and scaled back",
    "looking_up_leaves_its_arguments",
    "pytorch/pytorch#26596",
)
def renormed_in_place(table: Tensor, positions: Tensor, *, offset: int = 0) -> Tensor:
    out = learned(table, positions, offset=offset)
    restored(table.detach(), 0.3)
    return out


@last_bit(
    "learned", "the first call copies rows, the next multiplies a one-hot matrix scaled to the largest row", "positions_have_the_right_form"
)
def compiled_lookup(table: Tensor, positions: Tensor, *, offset: int = 0) -> Tensor:
    MEMORY["compiled_lookup"] = turn = MEMORY.get("compiled_lookup", 0) + 1
    check(positions + offset, table)
    rows = table[positions + offset]
    return rows if turn % 2 else through(rows, largest(rows))
