"""Rotary positions: queries and keys turned by their places, so that a score knows their distance."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..registry import Function, honest, mutant
from .sinusoids import wider

Pair = tuple[Tensor, Tensor]


def table(positions: Tensor, dim: int, base: float, dtype: torch.dtype) -> Tensor:
    """The angles p · base^(−2i/dim), (length, dim/2)."""
    pair = torch.arange(dim // 2, device=positions.device).to(dtype)
    return positions.to(dtype)[:, None] * base ** (-2 * pair / max(dim, 1))


def turned(first: Tensor, second: Tensor, cos: Tensor, sin: Tensor) -> Pair:
    """A pair of features turned counterclockwise."""
    return first * cos - second * sin, first * sin + second * cos


def neighbours(x: Tensor) -> Pair:
    """Features 2i and 2i + 1."""
    return x[..., 0::2], x[..., 1::2]


def halves(x: Tensor) -> Pair:
    """Features i and i + dim/2."""
    return x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]


def together(first: Tensor, second: Tensor, split: Callable[[Tensor], Pair]) -> Tensor:
    """Pairs back in their places."""
    if split is halves:
        return torch.cat((first, second), dim=-1)
    return torch.stack((first, second), dim=-1).flatten(-2)


def rotary(
    x: Tensor,
    positions: Tensor,
    *,
    base: float = 10000.0,
    rotary_dim: int | None = None,
    wide: torch.dtype | None = None,
    split: Callable[[Tensor], Pair] = neighbours,
    angles: Callable[[Tensor, int, float, torch.dtype], Tensor] = table,
    rule: Callable[[Tensor, Tensor, Tensor, Tensor], Pair] = turned,
) -> Tensor:
    """The honest core: every pair of the first rotary_dim features of x (batch, heads, length, dim) turned by one angle."""
    rotary_dim = x.shape[-1] if rotary_dim is None else rotary_dim
    wide = wide or wider(x.dtype)
    turn = angles(positions, rotary_dim, base, wide)  # (length, pairs)
    first, second = split(x[..., :rotary_dim].to(wide))
    front = together(*rule(first, second, turn.cos(), turn.sin()), split)
    return torch.cat((front.to(x.dtype), x[..., rotary_dim:]), dim=-1)


def _mutant(
    mistake: str, killed_by: str, source: str = "teaching code", bug: str | None = None, **supports: Any
) -> Callable[[Function], Function]:
    return mutant(mistake, source=source, killed_by=killed_by, contract="rotary", bug=bug, supports=supports or None)


@_mutant(
    "halves are rotated with the table of neighbours",
    "scores_depend_on_the_distance_alone",
    "raiyanyahya/how-to-train-your-gpt#6",
    "F11",
    pairing="half",
)
def halves_with_the_table_of_neighbours(x: Tensor, positions: Tensor, **options: Any) -> Tensor:
    def mixed(first: Tensor, second: Tensor, cos: Tensor, sin: Tensor) -> Pair:
        (c1, c2), (s1, s2) = (halves(t.repeat_interleave(2, -1)) for t in (cos, sin))
        return first * c1 - second * s1, second * c2 + first * s2

    return rotary(x, positions, **options, split=halves, rule=mixed)


@_mutant("halves form the pairs where neighbours should", "pairs_are_as_declared", "NeuraLegion/shainet#111", "F12")
def halves_for_neighbours(x: Tensor, positions: Tensor, **options: Any) -> Tensor:
    return rotary(x, positions, **options, split=halves)


@_mutant("neighbours form the pairs where halves should", "pairs_are_as_declared", "NeuraLegion/shainet#111", "F12", pairing="half")
def neighbours_for_halves(x: Tensor, positions: Tensor, **options: Any) -> Tensor:
    return rotary(x, positions, **options)


@_mutant("positions and angles are in the type of x", "rotation_is_inside_the_bound", "huggingface/transformers#29285", "E03")
def angles_in_the_type_of_x(x: Tensor, positions: Tensor, **options: Any) -> Tensor:
    return rotary(x, positions, **options, wide=x.dtype)


@_mutant("positions alone are rounded to bfloat16", "rotations_add_up", "vllm-project/vllm#1004", "E03")
def positions_in_bfloat16(x: Tensor, positions: Tensor, **options: Any) -> Tensor:
    return rotary(x, positions.bfloat16(), **options)


@_mutant("positions keep 11 bits, as in a TF32 product", "rotation_is_inside_the_bound", "huggingface/transformers#48428", "E04")
def positions_of_eleven_bits(x: Tensor, positions: Tensor, **options: Any) -> Tensor:
    step = 2.0 ** (positions.double().clamp(min=1).log2().floor() - 10)
    return rotary(x, (positions / step).round() * step, **options)


@_mutant("float64 is rotated by float32 angles", "rotation_is_inside_the_bound")
def angles_in_float32(x: Tensor, positions: Tensor, **options: Any) -> Tensor:
    def single(positions: Tensor, dim: int, base: float, dtype: torch.dtype) -> Tensor:
        return table(positions, dim, base, torch.float32)

    return rotary(x, positions, **options, angles=single)


@_mutant("the cosine is stored in bfloat16, the sine is not", "rotation_keeps_the_norm_of_every_pair", "huggingface/candle#3520", "E03")
def cosine_in_bfloat16(x: Tensor, positions: Tensor, **options: Any) -> Tensor:
    def rule(first: Tensor, second: Tensor, cos: Tensor, sin: Tensor) -> Pair:
        return turned(first, second, cos.bfloat16().to(cos.dtype), sin)

    return rotary(x, positions, **options, rule=rule)


@_mutant(
    "the table is sliced by the heads, not by the length",
    "rows_turn_by_their_own_position",
    "labmlai/annotated_deep_learning_paper_implementations#215",
    "F13",
)
def positions_along_the_heads(x: Tensor, positions: Tensor, **options: Any) -> Tensor:
    if not len(positions):
        return rotary(x, positions, **options)
    heads = torch.arange(x.shape[1]) % len(positions)
    return rotary(x.transpose(1, 2), positions[heads], **options).transpose(1, 2)


@_mutant("positions given are ignored: rows count from 0", "rotations_add_up", "flashinfer-ai/flashinfer#847", "F14")
def positions_ignored(x: Tensor, positions: Tensor, **options: Any) -> Tensor:
    return rotary(x, torch.arange(len(positions)), **options)


@_mutant("positions count from the first one given", "rows_turn_by_their_own_position", "RobertCsordas/moeut#6", "F02")
def first_position_subtracted(x: Tensor, positions: Tensor, **options: Any) -> Tensor:
    return rotary(x, positions - positions[:1], **options)


@_mutant("the first position is 1", "position_zero_is_the_identity")
def first_position_is_one(x: Tensor, positions: Tensor, **options: Any) -> Tensor:
    return rotary(x, positions + 1, **options)


@_mutant("the rotation turns backwards", "rotation_is_inside_the_bound", "Dao-AILab/flash-attention#569", "E16")
def turned_backwards(x: Tensor, positions: Tensor, **options: Any) -> Tensor:
    return rotary(x, -positions, **options)


@_mutant("sine and cosine are exchanged", "position_zero_is_the_identity")
def sine_and_cosine_exchanged(x: Tensor, positions: Tensor, **options: Any) -> Tensor:
    return rotary(x, positions, **options, rule=lambda a, b, cos, sin: turned(a, b, sin, cos))


@_mutant("the rotated half has lost its minus sign", "rotation_keeps_the_norm_of_every_pair")
def minus_sign_lost(x: Tensor, positions: Tensor, **options: Any) -> Tensor:
    return rotary(x, positions, **options, rule=lambda a, b, cos, sin: (a * cos + b * sin, b * cos + a * sin))


@_mutant("the second feature is made of the first one already rotated", "rotation_keeps_the_norm_of_every_pair")
def first_feature_overwritten(x: Tensor, positions: Tensor, **options: Any) -> Tensor:
    def rule(first: Tensor, second: Tensor, cos: Tensor, sin: Tensor) -> Pair:
        first = first * cos - second * sin
        return first, first * sin + second * cos

    return rotary(x, positions, **options, rule=rule)


@_mutant("all features rotate, whatever rotary_dim is", "features_beyond_rotary_dim_are_untouched")
def partial_rotation_ignored(x: Tensor, positions: Tensor, **options: Any) -> Tensor:
    return rotary(x, positions, **{**options, "rotary_dim": None})


@_mutant("the last features rotate, not the first", "features_beyond_rotary_dim_are_untouched")
def last_features_rotate(x: Tensor, positions: Tensor, **options: Any) -> Tensor:
    rest = x.shape[-1] - (options.get("rotary_dim") or x.shape[-1])
    return rotary(x.roll(-rest, -1), positions, **options).roll(rest, -1)


@_mutant("frequencies are those of all features, not of rotary_dim", "rotation_is_inside_the_bound", "huggingface/diffusers#12538", "F21")
def frequencies_of_all_features(x: Tensor, positions: Tensor, **options: Any) -> Tensor:
    def angles(positions: Tensor, dim: int, base: float, dtype: torch.dtype) -> Tensor:
        return table(positions, x.shape[-1], base, dtype)[:, : dim // 2]

    return rotary(x, positions, **options, angles=angles)


@_mutant("the base is always 10,000", "rotation_is_inside_the_bound")
def base_ignored(x: Tensor, positions: Tensor, **options: Any) -> Tensor:
    return rotary(x, positions, **{**options, "base": 10000.0})


@_mutant("frequencies begin with the second", "rotation_is_inside_the_bound", "SamLynnEvans/Transformer#25", "F15")
def frequencies_off_by_one(x: Tensor, positions: Tensor, **options: Any) -> Tensor:
    def angles(positions: Tensor, dim: int, base: float, dtype: torch.dtype) -> Tensor:
        return table(positions, dim, base, dtype) * base ** (-2 / max(dim, 1))

    return rotary(x, positions, **options, angles=angles)


@_mutant("x is rotated in place", "rotation_leaves_its_arguments")
def rotated_in_place(x: Tensor, positions: Tensor, **options: Any) -> Tensor:
    return x.copy_(rotary(x, positions, **options))


@_mutant("halves come back as float32", "positions_have_the_right_form")
def halves_come_back_as_float32(x: Tensor, positions: Tensor, **options: Any) -> Tensor:
    return rotary(x, positions, **options).to(wider(x.dtype))


@_mutant("the position of a row counts from the row before it", "rows_turn_by_their_own_position", bug="F06")
def positions_accumulate(x: Tensor, positions: Tensor, **options: Any) -> Tensor:
    return rotary(x, positions.cumsum(0), **options)


# --- correct, in unusual ways -------------------------------------------------------------------------------------


class Gradient(torch.autograd.Function):
    """The core forward; what is sent back is rotated by another rule."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, positions: Tensor, options: dict[str, Any], backward: Callable[..., Tensor]) -> Tensor:
        """The right answer."""
        ctx.save_for_backward(positions)
        ctx.options, ctx.back = options, backward
        return rotary(x, positions, **options)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """By the rule."""
        return ctx.back(grads[0], ctx.saved_tensors[0], **ctx.options), None, None, None


@_mutant("the gradient is rotated forwards once more, not back", "rotation_gradient_turns_back", "Dao-AILab/flash-attention#569", "E16")
def gradient_turns_on(x: Tensor, positions: Tensor, **options: Any) -> Tensor:
    out: Tensor = Gradient.apply(x, positions, options, rotary)
    return out


@_mutant("the gradient passes through the rotation unrotated", "rotation_gradient_turns_back")
def gradient_not_turned(x: Tensor, positions: Tensor, **options: Any) -> Tensor:
    out: Tensor = Gradient.apply(x, positions, options, lambda grad, positions, **options: grad.clone())
    return out


def _honest(idea: str, source: str = "common practice", bug: str | None = None, **supports: Any) -> Callable[[Function], Function]:
    return honest(idea, source=source, contract="rotary", bug=bug, supports=supports or None)


@_honest("a product of complex numbers", "meta-llama/llama")
def complex_product(x: Tensor, positions: Tensor, **options: Any) -> Tensor:
    def rule(first: Tensor, second: Tensor, cos: Tensor, sin: Tensor) -> Pair:
        product = torch.complex(first, second) * torch.complex(cos, sin)
        return product.real, product.imag

    return rotary(x, positions, **options, rule=rule)


@_honest("a table of all positions up to the last, from which rows are picked")
def precomputed_table(x: Tensor, positions: Tensor, **options: Any) -> Tensor:
    def angles(positions: Tensor, dim: int, base: float, dtype: torch.dtype) -> Tensor:
        last = int(positions.max()) if len(positions) else 0
        return table(torch.arange(last + 1), dim, base, dtype)[positions]

    return rotary(x, positions, **options, angles=angles)


@_honest("halves form the pairs, and that is declared", "huggingface/transformers", "H08", pairing="half")
def halves_declared(x: Tensor, positions: Tensor, **options: Any) -> Tensor:
    return rotary(x, positions, **options, split=halves)


@_honest("a product by a matrix of rotations", arithmetic={"float64": "same", "float32": "same", "float16": "wide", "bfloat16": "wide"})
def matrix_product(x: Tensor, positions: Tensor, *, base: float = 10000.0, rotary_dim: int | None = None) -> Tensor:
    dim = x.shape[-1] if rotary_dim is None else rotary_dim
    wide = wider(x.dtype)
    turn = table(positions, dim, base, wide)  # (length, pairs)
    matrix = torch.zeros(len(positions), dim, dim, dtype=wide)
    even = torch.arange(0, dim, 2)
    matrix[:, even, even] = matrix[:, even + 1, even + 1] = turn.cos()
    matrix[:, even, even + 1], matrix[:, even + 1, even] = -turn.sin(), turn.sin()
    front = (matrix @ x[..., :dim].to(wide)[..., None])[..., 0]
    return torch.cat((front.to(x.dtype), x[..., dim:]), dim=-1)


@_honest("x cos + (x turned by a quarter) sin, tables and products in the type of x", "EleutherAI/gpt-neox")
def tables_in_the_type_of_x(x: Tensor, positions: Tensor, **options: Any) -> Tensor:
    def rule(first: Tensor, second: Tensor, cos: Tensor, sin: Tensor) -> Pair:
        first, second, cos, sin = (t.to(x.dtype) for t in (first, second, cos, sin))
        return first * cos + (-second) * sin, second * cos + first * sin

    return rotary(x, positions, **options, rule=rule)
