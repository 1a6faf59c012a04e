"""Caches for decoding in PyTorch.

Contiguous   one slot after the other, the same for all sequences where they grow alike; rotary, left padding      (Llama's own code)
Rotating     the last window_size tokens alone: token p lies in slot p mod window_size                             (Mistral 7B, 2023)
Paged        slots in pages that lie anywhere, found through a table for each sequence                 (Kwon et al. 2023, vLLM)

Keys are rotated before they are stored, by their place in the whole sequence (Su et al. 2021).
"""

from __future__ import annotations

import copy
from typing import Any, TypeVar

import torch
from torch import Tensor

from .contract import default_scale, supports

Cache = TypeVar("Cache")
FACTS: dict[str, Any] = {
    "framework": "torch",
    "devices": ["cpu", "cuda"],
    "dtypes": ["float64", "float32", "float16", "bfloat16"],
    "arithmetic": {"float64": "same", "float32": "same", "float16": "wide", "bfloat16": "wide"},
}


def rotate(x: Tensor, positions: Tensor, base: float | None) -> Tensor:
    """Neighbours 2i and 2i+1 of x (B, H, n, D) turned by positions (B, n) · base^(−2i/D)."""
    if base is None:
        return x
    wide = torch.promote_types(x.dtype, torch.float32)
    pair = torch.arange(0, x.shape[-1], 2, dtype=wide, device=x.device)
    angle = positions.to(wide)[:, None, :, None] / base ** (pair / x.shape[-1])  # (B, 1, n, D/2)
    first, second = x.to(wide).unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = angle.cos(), angle.sin()
    return torch.stack((first * cos - second * sin, first * sin + second * cos), dim=-1).flatten(-2).to(x.dtype)


def attend(q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> Tensor:
    """q (B, H, n, D), k (B, Hkv, S, D), v (B, Hkv, S, Dv), visible (B, n, S) → (B, H, n, Dv). What nobody sees may be NaN."""
    wide = torch.promote_types(q.dtype, torch.float32)
    group = q.shape[1] // k.shape[1]
    seen = visible.any(1)[:, None, :, None]  # (B, 1, S, 1)
    key, value = (x.to(wide).masked_fill(~seen, 0.0).repeat_interleave(group, 1) for x in (k, v))
    logits = (q.to(wide) @ key.mT) * default_scale(q.shape[-1])  # (B, H, n, S)
    logits = logits.masked_fill(~visible[:, None], -torch.inf)
    weights = torch.softmax(logits, dim=-1).masked_fill(~visible.any(-1)[:, None, :, None], 0.0)  # a row of padding sees nothing
    return (weights @ value).to(q.dtype)


def copied(cache: Cache) -> Cache:
    """The same with tensors of its own; unlike copy.deepcopy, also of those that gradients flow through."""
    made = copy.copy(cache)
    made.__dict__.update((name, x.clone()) for name, x in vars(cache).items() if isinstance(x, Tensor))
    return made


@supports(**FACTS)
class Contiguous:
    """k (batch, kv_heads, capacity, dim), v (batch, kv_heads, capacity, value_dim), of which count (batch,) slots are in use."""

    def __init__(
        self,
        batch: int,
        kv_heads: int,
        dim: int,
        capacity: int,
        *,
        num_heads: int | None = None,
        value_dim: int | None = None,
        dtype: torch.dtype = torch.float32,
        device: str = "cpu",
        fill: float = 0.0,
        rotary_base: float | None = None,
    ) -> None:
        self.base = rotary_base
        self.capacity = capacity
        self.k = torch.full((batch, kv_heads, capacity, dim), fill, dtype=dtype, device=device)
        self.v = torch.full((batch, kv_heads, capacity, value_dim or dim), fill, dtype=dtype, device=device)
        self.count = torch.zeros(batch, dtype=torch.long, device=device)

    def append(self, q: Tensor, k: Tensor, v: Tensor, *, lengths: Tensor | None = None, padding: Tensor | None = None) -> Tensor:
        """Of the new tokens those from padding[b] on, lengths[b] of them, are fed to sequence b. Raises ValueError if they do not fit."""
        row = torch.arange(q.shape[2], device=q.device) - (0 if padding is None else padding[:, None])  # (1 or B, n)
        row = row.expand(len(self.count), -1)
        real = (row >= 0) & (row < (q.shape[2] if lengths is None else lengths[:, None]))  # (B, n)
        positions = torch.where(real, self.count[:, None] + row, -1)
        if positions.numel() and int(positions.max()) >= self.capacity:
            raise ValueError(f"{self.capacity} slots are too few for {int(positions.max()) + 1} tokens")
        q, k = rotate(q, positions, self.base), rotate(k, positions, self.base)
        self.count = self.count + real.sum(1)
        return self._answer(q, k, v, positions)

    def _answer(self, q: Tensor, k: Tensor, v: Tensor, positions: Tensor) -> Tensor:
        """Store the new tokens, those at positions ≥ 0, and attend from each to all up to its own."""
        b, row = torch.nonzero(positions >= 0, as_tuple=True)  # of every token that is none of padding
        self.k[b, :, positions[b, row]], self.v[b, :, positions[b, row]] = k[b, :, row], v[b, :, row]
        used = int(self.count.max())
        visible = torch.arange(used, device=q.device) <= positions[..., None]  # (B, n, used)
        return attend(q, self.k[:, :, :used], self.v[:, :, :used], visible)

    def fork(self) -> Contiguous:
        """An independent copy."""
        return copied(self)

    def reset(self) -> None:
        """Forget everything."""
        self.count = torch.zeros_like(self.count)

    def truncate(self, length: int) -> None:
        """Forget all tokens from this one on."""
        self.count = self.count.clamp(max=length)

    def reorder(self, index: Tensor) -> None:
        """Sequence b goes on from where sequence index[b] was."""
        self.k, self.v, self.count = self.k[index], self.v[index], self.count[index]


@supports(**FACTS)
class Rotating:
    """k and v of the last tokens alone, place (batch, slots) the position of each, −1 in a slot that was never used."""

    def __init__(
        self,
        batch: int,
        kv_heads: int,
        dim: int,
        capacity: int,
        *,
        num_heads: int | None = None,
        value_dim: int | None = None,
        dtype: torch.dtype = torch.float32,
        device: str = "cpu",
        window_size: int | None = None,
        fill: float = 0.0,
        rotary_base: float | None = None,
    ) -> None:
        self.base = rotary_base
        self.window = capacity if window_size is None else window_size
        self.k = torch.full((batch, kv_heads, self.window, dim), fill, dtype=dtype, device=device)
        self.v = torch.full((batch, kv_heads, self.window, value_dim or dim), fill, dtype=dtype, device=device)
        self.place = torch.full((batch, self.window), -1, device=device)
        self.limit = capacity if window_size is None else None
        self.count = 0

    def append(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """All sequences grow alike. Raises ValueError if there is no window and the tokens do not fit."""
        if self.limit is not None and self.count + q.shape[2] > self.limit:
            raise ValueError(f"{self.limit} slots are too few for {self.count + q.shape[2]} tokens")
        new = (self.count + torch.arange(q.shape[2], device=q.device)).expand(len(self.place), -1)  # (B, n)
        q, k = rotate(q, new, self.base), rotate(k, new, self.base)
        # A chunk may be longer than the window: its first rows see tokens that its last ones will overwrite.
        place = torch.cat((self.place, new), dim=1)[:, None]  # (B, 1, window + n)
        visible = (place >= 0) & (place <= new[..., None]) & (place > new[..., None] - self.window)
        out = attend(q, torch.cat((self.k, k), dim=2), torch.cat((self.v, v), dim=2), visible)
        last = new[0, -self.window :] % self.window
        self.k[:, :, last] = k[:, :, -self.window :]
        self.v[:, :, last] = v[:, :, -self.window :]
        self.place[:, last] = new[:, -self.window :]
        self.count += q.shape[2]
        return out

    def fork(self) -> Rotating:
        """An independent copy."""
        return copied(self)

    def reset(self) -> None:
        """Forget everything."""
        self.place.fill_(-1)
        self.count = 0

    def reorder(self, index: Tensor) -> None:
        """Sequence b goes on from where sequence index[b] was."""
        self.k, self.v, self.place = self.k[index], self.v[index], self.place[index]


@supports(**FACTS)
class Paged(Contiguous):
    """k, v (pages, kv_heads, page_size, …); slot s of sequence b is slot s mod page_size of page table[b, s // page_size]."""

    def __init__(
        self,
        batch: int,
        kv_heads: int,
        dim: int,
        capacity: int,
        *,
        num_heads: int | None = None,
        value_dim: int | None = None,
        dtype: torch.dtype = torch.float32,
        device: str = "cpu",
        page_size: int | None = None,
        fill: float = 0.0,
        rotary_base: float | None = None,
    ) -> None:
        size = page_size or 16
        each = -(-capacity // size)  # pages of a sequence, the last of them perhaps not full
        super().__init__(
            batch * each, kv_heads, dim, size, value_dim=value_dim, dtype=dtype, device=device, fill=fill, rotary_base=rotary_base
        )
        self.capacity = capacity
        self.size = size
        # Pages are handed out from the last to the first, in turn to all sequences: neighbours in a text are none in memory.
        self.table = torch.arange(batch * each, device=device).flip(0).reshape(each, batch).T
        self.count = torch.zeros(batch, dtype=torch.long, device=device)

    def _answer(self, q: Tensor, k: Tensor, v: Tensor, positions: Tensor) -> Tensor:
        b, row = torch.nonzero(positions >= 0, as_tuple=True)  # of every token that is none of padding
        page, slot = self.table[b, positions[b, row] // self.size], positions[b, row] % self.size
        self.k[page, :, slot], self.v[page, :, slot] = k[b, :, row], v[b, :, row]  # (tokens, Hkv, D)
        used = -(-int(self.count.max()) // self.size)  # pages
        # (B, pages, Hkv, size, D) → (B, Hkv, pages · size, D)
        key, value = (x[self.table[:, :used]].transpose(1, 2).flatten(2, 3) for x in (self.k, self.v))
        visible = torch.arange(used * self.size, device=q.device) <= positions[..., None]
        return attend(q, key, value, visible)

    def reorder(self, index: Tensor) -> None:
        """Sequence b goes on from where sequence index[b] was; pages are copied, for both may go on."""
        k, v = self.k[self.table[index]], self.v[self.table[index]]  # (B, pages, Hkv, size, D)
        self.k[self.table], self.v[self.table] = k, v
        self.count = self.count[index]
