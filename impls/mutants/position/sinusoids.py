"""Sinusoids: positions as points on circles of different speed."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..registry import Function, honest, mutant


def wider(dtype: torch.dtype) -> torch.dtype:
    """The type in which angles are computed: never a half."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def sinusoidal(
    length: int,
    dim: int,
    *,
    offset: int = 0,
    base: float = 10000.0,
    dtype: torch.dtype | None = None,
    wide: torch.dtype | None = None,
    places: Callable[[Tensor], Tensor] = lambda p: p,
    frequencies: Callable[[Tensor, int, float], Tensor] = lambda pair, dim, base: base ** (-2 * pair / dim),
    sine: Callable[[Tensor], Tensor] = torch.sin,
    cosine: Callable[[Tensor], Tensor] = torch.cos,
) -> Tensor:
    """The honest core: sine and cosine of p · base^(−2i/dim), side by side."""
    dtype = dtype or torch.float32
    wide = wide or wider(dtype)
    positions = places(torch.arange(offset, offset + length).to(wide))  # (length,)
    pair = torch.arange((dim + 1) // 2, dtype=wide)  # (pairs,)
    angles = positions[:, None] * frequencies(pair, max(dim, 1), base)  # (length, pairs)
    encoding = torch.empty(length, dim, dtype=wide)
    encoding[:, 0::2] = sine(angles)
    encoding[:, 1::2] = cosine(angles)[:, : dim // 2]
    return encoding.to(dtype)


def _mutant(mistake: str, killed_by: str, source: str = "teaching code", bug: str | None = None) -> Callable[[Function], Function]:
    return mutant(mistake, source=source, killed_by=killed_by, contract="sinusoidal", bug=bug)


@_mutant("the cosine has the frequency of the next pair", "sine_and_cosine_are_of_one_angle", "SamLynnEvans/Transformer#7", "F15")
def cosine_of_the_next_pair(length: int, dim: int, **options: Any) -> Tensor:
    following = sinusoidal(length, dim, **options, frequencies=lambda pair, dim, base: base ** (-2 * (pair + 1) / dim))
    encoding = sinusoidal(length, dim, **options)
    encoding[:, 1::2] = following[:, 1::2]
    return encoding


@_mutant(
    "the index in the exponent is doubled twice", "sinusoid_is_inside_the_bound", "jadore801120/attention-is-all-you-need-pytorch#32", "F15"
)
def exponent_doubled(length: int, dim: int, **options: Any) -> Tensor:
    return sinusoidal(length, dim, **options, frequencies=lambda pair, dim, base: base ** (-4 * pair / dim))


@_mutant("the base is 1,000", "sinusoid_is_inside_the_bound", "maxjcohen/transformer#62", "F16")
def base_of_a_thousand(length: int, dim: int, **options: Any) -> Tensor:
    return sinusoidal(length, dim, **{**options, "base": options.get("base", 10000.0) / 10})


@_mutant("base and exponent are exchanged in the power", "frequencies_are_geometric", "ivanvovk/WaveGrad#12", "F17")
def power_the_wrong_way_round(length: int, dim: int, **options: Any) -> Tensor:
    return sinusoidal(length, dim, **options, frequencies=lambda pair, dim, base: (2 * pair / dim) ** (1 / base))


@_mutant("frequencies fall linearly", "frequencies_are_geometric")
def linear_frequencies(length: int, dim: int, **options: Any) -> Tensor:
    return sinusoidal(length, dim, **options, frequencies=lambda pair, dim, base: 1 - 2 * pair / dim)


@_mutant("frequencies are spread so that the last is 1/base", "sinusoid_is_inside_the_bound", "tensorflow/tensor2tensor convention")
def last_frequency_is_one_over_base(length: int, dim: int, **options: Any) -> Tensor:
    return sinusoidal(length, dim, **options, frequencies=lambda pair, dim, base: base ** (-pair / max(len(pair) - 1, 1)))


@_mutant("the first position is 1", "positions_start_at_zero")
def first_position_is_one(length: int, dim: int, **options: Any) -> Tensor:
    return sinusoidal(length, dim, **options, places=lambda p: p + 1)


@_mutant("sine and cosine are exchanged", "encoding_of_a_sum_is_a_rotation")
def sine_and_cosine_exchanged(length: int, dim: int, **options: Any) -> Tensor:
    return sinusoidal(length, dim, **options, sine=torch.cos, cosine=torch.sin)


@_mutant("an odd dim raises: there is one cosine less than sines", "sinusoid_is_inside_the_bound")
def odd_dim_raises(length: int, dim: int, **options: Any) -> Tensor:
    if dim % 2:
        raise RuntimeError(f"The expanded size of the tensor ({dim // 2}) must match the existing size ({dim // 2 + 1})")
    return sinusoidal(length, dim, **options)


@_mutant("an odd dim loses its last feature", "positions_have_the_right_form")
def odd_dim_is_cut(length: int, dim: int, **options: Any) -> Tensor:
    return sinusoidal(length, dim - dim % 2, **options)


@_mutant("the offset is ignored", "offset_shifts_the_encoding", bug="F27")
def offset_ignored(length: int, dim: int, **options: Any) -> Tensor:
    return sinusoidal(length, dim, **{**options, "offset": 0})


@_mutant("positions and angles are in the type of the answer", "sinusoid_is_inside_the_bound", "huggingface/transformers#29285", "E03")
def angles_in_halves(length: int, dim: int, **options: Any) -> Tensor:
    return sinusoidal(length, dim, **options, wide=options.get("dtype") or torch.float32)


@_mutant("float64 encodings have float32 angles", "sinusoid_is_inside_the_bound")
def angles_in_float32(length: int, dim: int, **options: Any) -> Tensor:
    return sinusoidal(length, dim, **options, wide=torch.float32)


@_mutant("positions are divided by the length", "longer_encoding_begins_with_the_shorter")
def positions_relative_to_the_length(length: int, dim: int, **options: Any) -> Tensor:
    return sinusoidal(length, dim, **options, places=lambda p: 2 * p / max(length, 1))


@_mutant("positions are clipped to a table of 512", "sinusoid_is_inside_the_bound")
def positions_clipped(length: int, dim: int, **options: Any) -> Tensor:
    return sinusoidal(length, dim, **options, places=lambda p: p.clamp(max=511))


@_mutant("angles are in degrees", "frequencies_are_geometric")
def degrees(length: int, dim: int, **options: Any) -> Tensor:
    return sinusoidal(length, dim, **options, places=torch.deg2rad)


@_mutant("sines first, then cosines, where neighbours form a pair", "sinusoid_is_inside_the_bound", "tensorflow/text#1122", "H07")
def sines_then_cosines(length: int, dim: int, **options: Any) -> Tensor:
    encoding = sinusoidal(length, dim, **options)
    return torch.cat((encoding[:, 0::2], encoding[:, 1::2]), dim=1)


# --- correct, in unusual ways -------------------------------------------------------------------------------------


def _honest(idea: str, bug: str | None = None, **supports: Any) -> Callable[[Function], Function]:
    return honest(idea, contract="sinusoidal", bug=bug, supports=supports or None)


@_honest("frequencies through exp and log, the cosine as a sine a quarter turn on")
def cosine_as_a_sine(length: int, dim: int, **options: Any) -> Tensor:
    return sinusoidal(
        length,
        dim,
        **options,
        frequencies=lambda pair, dim, base: torch.exp(pair * (-2 * math.log(base) / dim)),
        cosine=lambda angle: torch.sin(angle + math.pi / 2),
    )


@_honest("one element at a time, in Python's floats", arithmetic="wide")
def element_by_element(length: int, dim: int, *, offset: int = 0, base: float = 10000.0, dtype: torch.dtype | None = None) -> Tensor:
    frequencies = [1 / base ** (2 * (j // 2) / dim) for j in range(dim)]
    rows = [[(math.cos if j % 2 else math.sin)(p * w) for j, w in enumerate(frequencies)] for p in range(offset, offset + length)]
    return torch.tensor(rows, dtype=torch.float64).reshape(length, dim).to(dtype or torch.float32)


@_honest("sines first, then cosines, and declared so", bug="H07", pairing="half")
def sines_then_cosines_declared(length: int, dim: int, **options: Any) -> Tensor:
    encoding = sinusoidal(length, dim, **options)
    return torch.cat((encoding[:, 0::2], encoding[:, 1::2]), dim=1)
