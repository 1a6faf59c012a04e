"""A CPU with AMX that is not there: bfloat16 products that read beyond the rows of their left operand, as oneDNN 3.12 does.

oneDNN's product reads each row in whole tiles of 32 and multiplies what lies beyond its K columns by zeros, which is right where that is a finite
number, and NaN where it is not. As measured on torch 2.13, it does so for products of two matrices whose left operand has rows apart
(stride > K) and K = 15, 17, 31 or 33, not for K = 16 or 32, nor for ``bmm``; PyTorch asks oneDNN for products of more than 16³
multiplications, and copies what ``bmm`` is given into matrices without gaps.

The kernels of the CPU are replaced, and not the functions seen from Python: products inside the native layers are met as well.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from properties.engine.frameworks import machine

TILE = 32  # bfloat16 numbers in a row of an AMX tile: 64 bytes
LEAST = 16**3  # multiplications; PyTorch computes smaller products by itself
WITH = ("avx2", "avx512_bf16", "avx512_bw", "amx_bf16", "amx_int8", "amx_tile")
WITHOUT = WITH[:3]


def pretend(monkeypatch: pytest.MonkeyPatch, **facts: Any) -> None:
    """The machine has these facts, and what is found of it otherwise."""
    found = machine.measured
    monkeypatch.setattr(machine, "_MEASURED", {})
    monkeypatch.setattr(machine, "measured", lambda framework, device: {**found(framework, device), **facts})


@dataclass
class Met:
    """What the pretended kernels were asked for."""

    products: int = 0  # of bfloat16 matrices
    strided: int = 0  # of those that read beyond their rows
    spoiled: int = 0  # of those that met a number that is not finite there


def beyond(left: Tensor) -> Tensor:
    """Rows of the left operand beyond which, up to the end of the tile, something in memory is not finite."""
    rows, k = left.shape
    whole = torch.empty(0, dtype=left.dtype).set_(left.untyped_storage())
    at = left.storage_offset() + torch.arange(rows)[:, None] * left.stride(0) + torch.arange(k, -(-k // TILE) * TILE)
    return (~whole[at.clamp(max=len(whole) - 1)].isfinite() & (at < len(whole))).any(-1)


def reads_beyond(left: Tensor, right: Tensor) -> bool:
    """Whether it is a product for which oneDNN does so."""
    (rows, k), columns = left.shape, right.shape[1]
    strided = left.stride(1) == 1 and left.stride(0) > k and k % TILE != 0 and k != TILE // 2
    return strided and left.dtype == torch.bfloat16 and rows * k * columns > LEAST


@contextmanager
def products(of: Callable[[Callable[[Tensor], Tensor], Tensor, Tensor], Tensor]) -> Iterator[None]:
    """While it is open, products of matrices on the CPU are what is made of (the kernel, by its left operand; left; right)."""
    kernels = {name: torch.library.get_kernel(f"aten::{name}", "CPU") for name in ("mm", "addmm")}
    own = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)

    def mm(left: Tensor, right: Tensor) -> Tensor:
        return of(lambda left: kernels["mm"].call_boxed(own, left, right), left, right)

    def addmm(added: Tensor, left: Tensor, right: Tensor, **scaled: Any) -> Tensor:
        return of(lambda left: kernels["addmm"].call_boxed(own, added, left, right, **scaled), left, right)

    library = torch.library.Library("aten", "IMPL")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that kernels are replaced
            library.impl("mm", mm, "CPU")
            library.impl("addmm", addmm, "CPU")
        yield
    finally:
        library._destroy()


@contextmanager
def defect() -> Iterator[Met]:
    """While it is open, products of bfloat16 matrices on the CPU are as on a machine with AMX."""
    met = Met()

    def spoilt(kernel: Callable[[Tensor], Tensor], left: Tensor, right: Tensor) -> Tensor:
        out = kernel(left.contiguous())  # right on every machine
        met.products += left.dtype == torch.bfloat16
        if reads_beyond(left, right):
            met.strided += 1
            wrong = beyond(left)
            met.spoiled += bool(wrong.any())
            out[wrong] = torch.nan
        return out

    with products(spoilt):
        yield met


@contextmanager
def no_defect() -> Iterator[None]:
    """While it is open, products are right, on a machine with AMX, too: oneDNN is given rows without gaps."""
    with products(lambda kernel, left, right: kernel(left.contiguous())):
        yield
