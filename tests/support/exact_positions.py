"""Positions that are right, the exact answers rounded once, and one mistake for every property of positions.

They know no implementation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from properties.engine.core.target import Target
from properties.engine.search.probe import make_target
from properties.exact.arithmetic import default_arithmetic
from properties.position import exact as exactly

ANY = default_arithmetic("float64")  # has no part in an exact answer
Change = Callable[..., Any]


def sinusoidal(length: int, dim: int, *, offset: int = 0, base: float = 10000.0, dtype: Any = torch.float64) -> Tensor:
    """The exact encoding."""
    t = exactly.turn(np.arange(offset, offset + length, dtype=np.float64), (dim + 1) // 2, dim, base, ANY)
    return torch.from_numpy(exactly.sinusoid(t, dim, "interleaved", ANY)[0].out.copy()).to(dtype)


def rotary(x: Tensor, positions: Tensor, *, base: float = 10000.0, rotary_dim: int | None = None) -> Tensor:
    """The exact rotation."""
    rotary_dim = x.shape[-1] if rotary_dim is None else rotary_dim
    t = exactly.turn(positions.double().numpy(), rotary_dim // 2, rotary_dim, base, ANY)
    return torch.from_numpy(exactly.rotation(x.double().numpy(), t, "interleaved", ANY)[0].out.copy()).to(x.dtype)


def slopes(num_heads: int, *, dtype: Any = torch.float64) -> Tensor:
    """The exact slopes."""
    return torch.from_numpy(exactly.slopes(num_heads, ANY)[0].out.copy()).to(dtype)


def buckets(relative_position: Tensor, *, bidirectional: bool = True, num_buckets: int = 32, max_distance: int = 128) -> Tensor:
    """The exact buckets."""
    low, high = exactly.buckets(relative_position.numpy(), bidirectional, num_buckets, max_distance)
    return torch.from_numpy(np.where(low == high, low, high))


class Through(torch.autograd.Function):
    """The exact rotation, and a gradient that is changed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, positions: Tensor, options: Any, change: Any) -> Tensor:
        ctx.positions, ctx.options, ctx.change = positions, options, change
        return rotary(x, positions, **options)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        turned_back = rotary(grads[0], -ctx.positions, **ctx.options)
        return ctx.change(grads[0], turned_back), None, None, None


def rotary_through(change: Change) -> Any:
    """change(gradient of the output, right gradient of x) is what x receives."""

    def wrong(x: Tensor, positions: Tensor, *, base: float = 10000.0, rotary_dim: int | None = None) -> Any:
        return Through.apply(x, positions, {"base": base, "rotary_dim": rotary_dim}, change)

    return wrong


rotary_right = rotary_through(lambda grad, turned_back: turned_back)


def learned(table: Tensor, positions: Tensor, *, offset: int = 0) -> Tensor:
    """The rows themselves."""
    rows = positions + offset
    if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < len(table):
        raise IndexError("there is no such row")
    return table[rows]


RIGHT: dict[str, Any] = {"sinusoidal": sinusoidal, "rotary": rotary_right, "learned": learned, "slopes": slopes, "buckets": buckets}
POSITION_TARGETS: dict[str, Target] = {
    name: make_target(f"exact {name}", function, {"framework": "torch"}) for name, function in RIGHT.items()
}
POSITION_TARGETS["positions"] = POSITION_TARGETS["rotary"]  # properties of all of them


def sinusoid_with(change: Change) -> Any:
    """change(call, arguments) answers, where call(**changes) is the right answer to changed arguments."""

    def wrong(length: int, dim: int, *, offset: int = 0, base: float = 10000.0, dtype: Any = torch.float64) -> Any:
        given = {"length": length, "dim": dim, "offset": offset, "base": base, "dtype": dtype}
        return change(lambda **changes: sinusoidal(**{**given, **changes}), given)

    return wrong


def rotary_with(change: Change) -> Any:
    def wrong(x: Tensor, positions: Tensor, *, base: float = 10000.0, rotary_dim: int | None = None) -> Any:
        given = {"x": x, "positions": positions, "base": base, "rotary_dim": rotary_dim}
        return change(lambda **changes: rotary(**{**given, **changes}), given)

    return wrong


def slopes_with(change: Callable[[Tensor], Tensor]) -> Any:
    def wrong(num_heads: int, *, dtype: Any = torch.float64) -> Any:
        return change(slopes(num_heads, dtype=dtype))

    return wrong


def buckets_with(change: Change) -> Any:
    def wrong(relative_position: Tensor, *, bidirectional: bool = True, num_buckets: int = 32, max_distance: int = 128) -> Any:
        given = {
            "relative_position": relative_position,
            "bidirectional": bidirectional,
            "num_buckets": num_buckets,
            "max_distance": max_distance,
        }
        return change(lambda **changes: buckets(**{**given, **changes}), given)

    return wrong


def learned_with(change: Change) -> Any:
    def wrong(table: Tensor, positions: Tensor, *, offset: int = 0) -> Any:
        given = {"table": table, "positions": positions, "offset": offset}
        return change(lambda **changes: learned(**{**given, **changes}), given)

    return wrong


def one_feature_more(call: Change, given: dict[str, Any]) -> Tensor:
    out = call()
    out[:, -1:] *= 1 + 2.0**-20
    return out


def far_rows_drift(call: Change, given: dict[str, Any]) -> Tensor:
    out = call()
    return out * (1 + 0.01 * torch.arange(len(out))[:, None] % 7 / 7).to(out.dtype)


def rolled_pairs(call: Change, given: dict[str, Any]) -> Tensor:
    dim = given["rotary_dim"] or given["x"].shape[-1]
    turned = call(x=given["x"][..., :dim].roll(1, -1), rotary_dim=None).roll(-1, -1)
    return torch.cat((turned, given["x"][..., dim:]), dim=-1)


def in_place(call: Change, given: dict[str, Any]) -> Tensor:
    given["positions"] += 1
    return call()


def in_place_afterwards(call: Change, given: dict[str, Any]) -> Tensor:
    out = call()
    given["positions" if "positions" in given else "relative_position"] *= -1
    return out


MISTAKES: dict[str, Any] = {
    "sinusoid_is_inside_the_bound": sinusoid_with(one_feature_more),
    "sine_and_cosine_are_of_one_angle": sinusoid_with(one_feature_more),
    "encoding_of_a_sum_is_a_rotation": sinusoid_with(far_rows_drift),
    "frequencies_are_geometric": sinusoid_with(one_feature_more),
    "positions_start_at_zero": sinusoid_with(lambda call, given: call(offset=given["offset"] + 1)),
    "longer_encoding_begins_with_the_shorter": sinusoid_with(lambda call, given: call() * (1 + 2.0**-9 * given["length"])),
    "offset_shifts_the_encoding": sinusoid_with(lambda call, given: call(offset=given["offset"] * 2)),
    "rotation_is_inside_the_bound": rotary_with(lambda call, given: call(positions=-given["positions"])),
    "rotation_keeps_the_norm_of_every_pair": rotary_with(lambda call, given: call() * (1 + 2.0**-7)),
    "scores_depend_on_the_distance_alone": rotary_with(lambda call, given: call(positions=given["positions"] ** 2)),
    "rotations_add_up": rotary_with(lambda call, given: call(positions=given["positions"].clamp(max=99))),
    "position_zero_is_the_identity": rotary_with(lambda call, given: call(positions=given["positions"] + 1)),
    "pairs_are_as_declared": rotary_with(rolled_pairs),
    "features_beyond_rotary_dim_are_untouched": rotary_with(lambda call, given: call(rotary_dim=None)),
    "rows_turn_by_their_own_position": rotary_with(lambda call, given: call(positions=given["positions"] - given["positions"][:1])),
    "rotation_leaves_its_arguments": rotary_with(in_place),
    "rotation_gradient_turns_back": rotary_through(lambda grad, given: grad),
    "looked_up_rows_are_those_of_the_table": learned_with(lambda call, given: call().flip(0)),
    "other_rows_of_the_table_do_not_matter": learned_with(lambda call, given: call() + given["table"].mean() / 64),
    "positions_out_of_range_raise": learned_with(
        lambda call, given: given["table"][(given["positions"] + given["offset"]) % len(given["table"])]
    ),
    "looking_up_leaves_its_arguments": learned_with(in_place_afterwards),
    "finding_buckets_leaves_the_distances": buckets_with(in_place_afterwards),
    "table_gradient_sums_over_repeated_positions": learned_with(lambda call, given: call() * 1.01),
    "slopes_follow_the_published_rule": slopes_with(lambda s: s * (1 + 2.0**-6)),
    "slopes_are_geometric": slopes_with(lambda s: s + 0.01),
    "first_slope_is_the_ratio": slopes_with(lambda s: s * (1 + 2.0**-6)),
    "slopes_are_positive_and_decrease": slopes_with(lambda s: -s),
    "buckets_follow_the_published_rule": buckets_with(lambda call, given: call(max_distance=given["max_distance"] * 2)),
    "small_distances_have_their_own_bucket": buckets_with(lambda call, given: call(relative_position=given["relative_position"] - 1)),
    "buckets_grow_with_distance": buckets_with(lambda call, given: given["num_buckets"] - call()),
    "buckets_are_in_range": buckets_with(lambda call, given: call() + 1),
    "far_distances_share_a_bucket": buckets_with(lambda call, given: call(max_distance=given["max_distance"] * 10**9)),
    "past_and_future_have_buckets_of_their_own": buckets_with(lambda call, given: call(relative_position=-given["relative_position"])),
    "one_direction_does_not_look_ahead": buckets_with(lambda call, given: call(relative_position=-given["relative_position"].abs())),
    "positions_have_the_right_form": rotary_with(lambda call, given: call().double()),
}
EXACT = POSITION_TARGETS
MISTAKES: dict[str, Target] = {name: make_target("wrong", function, {"framework": "torch"}) for name, function in MISTAKES.items()}
