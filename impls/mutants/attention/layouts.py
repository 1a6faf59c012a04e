"""Memory layout: strides, storage offsets and broadcast dimensions that a kernel does not read."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..registry import mutant
from .core import attention


def reread(x: Tensor, strides: tuple[int, ...], offset: int | torch.SymInt) -> Tensor:
    """`x` as a kernel would read it with these strides from this offset; addresses past the end wrap around."""
    size = x.untyped_storage().nbytes() // x.element_size()
    if not x.numel() or not size:
        return x
    address = torch.full((), int(offset))
    for length, stride in zip(x.shape, strides, strict=True):
        address = address[..., None] + torch.arange(length) * stride
    stored = torch.as_strided(x, (size,), (1,), 0)
    return stored[address % size]


def packed_strides(x: Tensor) -> tuple[int, ...]:
    """The strides `x` would have if it were contiguous."""
    strides = [1]
    for length in reversed(x.shape[1:]):
        strides.insert(0, strides[0] * length)
    return tuple(strides)


@mutant(
    "queries are read as if they were contiguous",
    source="pytorch/pytorch#163597",
    killed_by="memory_layout_changes_nothing",
    bug="D18",
)
def queries_read_as_contiguous(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(reread(q, packed_strides(q), q.storage_offset()), k, v, **options)


@mutant(
    "keys and values are read as if they were contiguous",
    source="pytorch/pytorch#181133",
    killed_by="memory_layout_changes_nothing",
    bug="D18",
)
def keys_read_as_contiguous(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    k, v = (reread(x, packed_strides(x), x.storage_offset()) for x in (k, v))
    return attention(q, k, v, **options)


@mutant(
    "the last dimension is taken to have stride 1",
    source="pytorch/pytorch#187506",
    killed_by="memory_layout_changes_nothing",
    bug="D17",
)
def last_stride_is_one(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    q, k, v = (reread(x, (*x.stride()[:-1], 1), x.storage_offset()) for x in (q, k, v))
    return attention(q, k, v, **options)


@mutant("the storage offset is ignored", source="teaching code", killed_by="memory_layout_changes_nothing")
def offset_ignored(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, reread(k, k.stride(), 0), v, **options)


@mutant(
    "values take the strides of the keys",
    source="flagos-ai/FlagGems#5235",
    killed_by="memory_layout_changes_nothing",
    bug="D26",
)
def values_take_strides_of_keys(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    if k.shape == v.shape and k.stride() != v.stride():
        v = reread(v, k.stride(), v.storage_offset())  # shows where the two are laid out differently
    return attention(q, k, v, **options)


@mutant(
    "keys broadcast with stride 0 lose their last one where S % 16 = 1",
    source="pytorch/pytorch#191937",
    killed_by="memory_layout_changes_nothing",
    bug="D20",
)
def broadcast_tail_lost(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    broadcast = any(stride == 0 and size > 1 for stride, size in zip(k.stride(), k.shape, strict=True))
    if broadcast and k.shape[2] % 16 == 1:
        k = torch.cat([k[:, :, :-1], torch.zeros_like(k[:, :, -1:])], 2)
    return attention(q, k, v, **options)


@mutant(
    "a transposed query is read in the order of its memory: (B, L, H, D) taken for (B, H, L, D)",
    source="ROCm/pytorch#3230",
    killed_by="memory_layout_changes_nothing",
    bug="D18",
)
def permuted_query(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    if q.ndim == 4 and q.stride(2) > q.stride(1) > 0 and q.shape[1] > 1:
        q = q.transpose(1, 2).reshape(q.shape)
    return attention(q, k, v, **options)


@mutant(
    "the output is laid out like the query, and read back as if it were contiguous",
    source="flagos-ai/FlagGems#5235",
    killed_by="memory_layout_changes_nothing",
    bug="D26",
)
def output_in_query_order(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    out = attention(q, k, v, **options)
    if q.ndim == 4 and q.stride(2) > q.stride(1) > 0 and q.shape[1] > 1:
        out = out.transpose(1, 2).contiguous().view(out.shape)
    return out


@mutant(
    "every second token of a longer buffer is read as if it were every token",
    source="teaching code",
    killed_by="memory_layout_changes_nothing",
)
def step_of_two_ignored(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    if v.ndim == 4 and v.stride(2) == 2 * v.shape[3] * v.stride(3) and v.shape[2] > 1:
        v = reread(v, (*v.stride()[:2], v.stride(2) // 2, v.stride(3)), v.storage_offset())
    return attention(q, k, v, **options)
