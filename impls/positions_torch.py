"""Positions in PyTorch, as model code writes them.

sinusoidal    frequencies through exp and log                                    (The Annotated Transformer)
rotary        interleaved pairs: features 2i and 2i+1                            (RoFormer, Su et al. 2021; GPT-J)
rotary_half   pairs of features i and i + dim/2, by rotate_half                  (GPT-NeoX, Llama)
rotary_complex  the same as rotary, as a product of complex numbers              (Llama's reference code)
slopes, buckets  ALiBi (Press et al. 2022) and T5 (Raffel et al. 2020)
"""

from __future__ import annotations

from math import log

import torch
from torch import Tensor

from .contract import supports

WIDE = {"float64": "same", "float32": "same", "float16": "wide", "bfloat16": "wide"}
EAGER = {"float64": "same", "float32": "same", "float16": "eager", "bfloat16": "eager"}


def angle_dtype(dtype: torch.dtype) -> torch.dtype:
    """bfloat16 cannot count past 256: angles of halves are float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def angles(positions: Tensor, dim: int, base: float, dtype: torch.dtype) -> Tensor:
    """positions (length,) → (length, dim/2): position · base^(−2i/dim)"""
    pair = torch.arange(0, dim, 2, dtype=dtype, device=positions.device)
    frequencies = 1.0 / base ** (pair / max(dim, 1))
    return torch.outer(positions.to(dtype), frequencies)


@supports(framework="torch", dtypes=list(WIDE), arithmetic=WIDE)
def sinusoidal(length: int, dim: int, *, offset: int = 0, base: float = 10000.0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Sines in the even columns, cosines in the odd ones; an odd dim has one cosine less."""
    wide = angle_dtype(dtype)
    positions = torch.arange(offset, offset + length, dtype=wide)[:, None]  # (length, 1)
    frequencies = torch.exp(torch.arange(0, dim, 2, dtype=wide) * (-log(base) / max(dim, 1)))  # (ceil(dim / 2),)
    encoding = torch.empty(length, dim, dtype=wide)
    encoding[:, 0::2] = torch.sin(positions * frequencies)
    encoding[:, 1::2] = torch.cos(positions * frequencies[: dim // 2])
    return encoding.to(dtype)


@supports(framework="torch", dtypes=list(WIDE), arithmetic=WIDE)
def rotary(x: Tensor, positions: Tensor, *, base: float = 10000.0, rotary_dim: int | None = None) -> Tensor:
    """Neighbours 2i and 2i+1 of x (batch, heads, length, dim) turned by one angle."""
    rotary_dim = x.shape[-1] if rotary_dim is None else rotary_dim
    wide = angle_dtype(x.dtype)
    turn = angles(positions, rotary_dim, base, wide)  # (length, pairs)
    cos, sin = turn.cos(), turn.sin()
    first, second = x[..., :rotary_dim].to(wide).unflatten(-1, (-1, 2)).unbind(-1)  # (…, length, pairs) each
    turned = torch.stack((first * cos - second * sin, first * sin + second * cos), dim=-1).flatten(-2)
    return torch.cat((turned.to(x.dtype), x[..., rotary_dim:]), dim=-1)


@supports(framework="torch", dtypes=list(WIDE), arithmetic=EAGER, pairing="half")
def rotary_half(x: Tensor, positions: Tensor, *, base: float = 10000.0, rotary_dim: int | None = None) -> Tensor:
    """x cos + rotate_half(x) sin, with tables in the dtype of x, as in model code."""
    rotary_dim = x.shape[-1] if rotary_dim is None else rotary_dim
    turn = angles(positions, rotary_dim, base, angle_dtype(x.dtype))
    turn = torch.cat((turn, turn), dim=-1)  # (length, rotary_dim)
    cos, sin = turn.cos().to(x.dtype), turn.sin().to(x.dtype)
    front, rest = x[..., :rotary_dim], x[..., rotary_dim:]
    first, second = front.chunk(2, dim=-1)
    return torch.cat((front * cos + torch.cat((-second, first), dim=-1) * sin, rest), dim=-1)


@supports(framework="torch", dtypes=list(WIDE), arithmetic=WIDE)
def rotary_complex(x: Tensor, positions: Tensor, *, base: float = 10000.0) -> Tensor:
    """(x_2i + i x_2i+1) · e^(i p w): a product of complex numbers."""
    wide = angle_dtype(x.dtype)
    turn = angles(positions, x.shape[-1], base, wide)  # (length, pairs)
    # Not view_as_complex, which refuses a tensor that begins at an odd place of its storage, contiguous or not.
    pairs = torch.complex(*x.to(wide).unflatten(-1, (-1, 2)).unbind(-1))  # (…, length, pairs)
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(turn), turn)).flatten(-2).to(x.dtype)


@supports(framework="torch", dtypes=list(WIDE), arithmetic=WIDE)
def learned(table: Tensor, positions: Tensor, *, offset: int = 0) -> Tensor:
    """table (rows, dim), positions (length,) → (length, dim). A position without a row raises IndexError on CPU."""
    return torch.nn.functional.embedding(positions + offset, table)


@supports(framework="torch", dtypes=list(WIDE), arithmetic=WIDE)
def slopes(num_heads: int, *, dtype: torch.dtype = torch.float32) -> Tensor:
    """2^(−8h/n), h = 1 … n, for the largest power of two n; then every other slope of the series of 2n."""
    n = 1 << (num_heads.bit_length() - 1)
    wide = angle_dtype(dtype)
    own = torch.arange(1, n + 1, dtype=wide) / n
    further = (2 * torch.arange(num_heads - n, dtype=wide) + 1) / (2 * n)
    return torch.exp2(-8 * torch.cat((own, further))).to(dtype)


@supports(framework="torch", dtypes=["float64"], arithmetic={"float64": "same"})
def buckets(relative_position: Tensor, *, bidirectional: bool = True, num_buckets: int = 32, max_distance: int = 128) -> Tensor:
    """relative_position = key position − query position; logarithms in float32, as in T5's own code."""
    bucket = torch.zeros_like(relative_position)
    if bidirectional:
        num_buckets //= 2
        bucket += (relative_position > 0) * num_buckets
        distance = relative_position.abs()
    else:
        distance = (-relative_position).clamp(min=0)
    exact = num_buckets // 2
    share = torch.log(distance.clamp(min=1).float() / exact) / log(max_distance / exact)
    far = (exact + (share * (num_buckets - exact)).long()).clamp(max=num_buckets - 1)
    return bucket + torch.where(distance < exact, distance, far)
