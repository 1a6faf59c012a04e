"""The honest cache that the mistakes are made from: windows, pages, rotation, lengths and padding, each in a few lines of its own.

Token p of a sequence lies in slot p mod slots, in page table[b, slot // page]. What slot s holds follows from how many tokens the
sequence has: the largest p below that with p mod slots = s. New tokens are attended before they are stored, so a chunk may be
longer than the window.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor


class Cache:
    """k, v (pages, kv_heads, page, …), table (batch, pages of a sequence), count (batch,): tokens fed to each sequence."""

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
        page_size: int | None = None,
        fill: float = 0.0,
        rotary_base: float | None = None,
    ) -> None:
        self.batch, self.capacity, self.window, self.base = batch, capacity, window_size, rotary_base
        self.group = (num_heads or kv_heads) // kv_heads
        self.slots = max(1, self.slots_needed())
        self.page = page_size or self.slots
        each = -(-self.slots // self.page)
        self.k, self.v = (torch.full((batch * each, kv_heads, self.page, width), fill, dtype=dtype) for width in (dim, value_dim or dim))
        self.table = torch.arange(batch * each).flip(0).reshape(each, batch).T
        self.count = torch.zeros(batch, dtype=torch.long)

    # ------------------------------------------------------------ what is fed

    def append(self, q: Tensor, k: Tensor, v: Tensor, *, lengths: Tensor | None = None, padding: Tensor | None = None) -> Tensor:
        """q (B, H, n, D), k (B, Hkv, n, D), v (B, Hkv, n, Dv) → (B, H, n, Dv)"""
        place = self.places(self.rows(q.shape[2], lengths, padding))  # (B, n)
        self.refuse(place)
        q, k = self.turn(q, self.query_places(place)), self.turn(k, self.key_places(place))
        out = self.answer(q, k, v, place)
        self.store(k, v, place)
        self.count = self.counted(place)
        return out

    def rows(self, n: int, lengths: Tensor | None, padding: Tensor | None) -> Tensor:
        """(B, n): the number of each row among the tokens of its sequence in this chunk, −1: padding."""
        row = torch.arange(n) - (torch.zeros(self.batch, 1, dtype=torch.long) if padding is None else padding[:, None])
        return torch.where(row < (n if lengths is None else lengths[:, None]), row, -1).clamp(min=-1)

    def places(self, rows: Tensor) -> Tensor:
        """(B, n): the position of each row in its sequence, −1: padding."""
        return torch.where(rows >= 0, self.count[:, None] + rows, -1)

    def query_places(self, place: Tensor) -> Tensor:
        """The positions by which queries rotate."""
        return place

    def key_places(self, place: Tensor) -> Tensor:
        """The positions by which keys rotate."""
        return place

    def refuse(self, place: Tensor) -> None:
        """Without a window, what does not fit is refused."""
        if self.window is None and place.numel() and int(place.max()) >= self.capacity:
            raise ValueError(f"{self.capacity} slots are too few for {int(place.max()) + 1} tokens")

    def counted(self, place: Tensor) -> Tensor:
        """(B,): how many tokens each sequence has after these."""
        return self.count + (place >= 0).sum(1)

    def turn(self, x: Tensor, places: Tensor) -> Tensor:
        """Neighbours of x (B, H, n, D) rotated by places (B, n)."""
        if self.base is None:
            return x
        wide = torch.promote_types(x.dtype, torch.float32)
        pair = torch.arange(0, x.shape[-1], 2, dtype=wide)
        angle = places.to(wide)[:, None, :, None] / self.base ** (pair / x.shape[-1])
        first, second = x.to(wide).unflatten(-1, (-1, 2)).unbind(-1)
        cos, sin = angle.cos(), angle.sin()
        return torch.stack((first * cos - second * sin, first * sin + second * cos), dim=-1).flatten(-2).to(x.dtype)

    # ------------------------------------------------------------ attention

    def answer(self, q: Tensor, k: Tensor, v: Tensor, place: Tensor) -> Tensor:
        """Attention over what is stored and what is new."""
        old_k, old_v = self.stored()
        places = torch.cat((self.held(), place), dim=1)
        visible = self.visible(place, places)  # (B, n, slots + n)
        return self.attend(q, torch.cat((old_k, k), dim=2), torch.cat((old_v, v), dim=2), visible)

    def visible(self, place: Tensor, places: Tensor) -> Tensor:
        """(B, n, S): which of the tokens at places (B, S) the rows at place (B, n) see."""
        ahead = places[:, None] - place[..., None]
        seen = (places[:, None] >= 0) & (ahead <= 0)
        return seen if self.window is None else seen & (ahead > -self.window)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> Tensor:
        """q (B, H, n, D), k (B, Hkv, S, D), v (B, Hkv, S, Dv), visible (B, n, S) → (B, H, n, Dv)"""
        wide = torch.promote_types(q.dtype, torch.float32)
        seen = visible.any(1)[:, None, :, None]
        key, value = (self.spread(x.to(wide).masked_fill(~seen, 0.0)) for x in (k, v))
        logits = (q.to(wide) @ key.mT) / max(q.shape[-1], 1) ** 0.5
        logits = logits.masked_fill(~visible[:, None], -torch.inf)
        weights = torch.softmax(logits, dim=-1).masked_fill(~visible[:, None], 0.0)
        return (weights @ value).to(q.dtype)

    def spread(self, x: Tensor) -> Tensor:
        """Key/value heads repeated for their group of query heads."""
        return x.repeat_interleave(self.group, 1)

    # ------------------------------------------------------------ memory

    def slots_needed(self) -> int:
        """Slots of a sequence."""
        return self.capacity if self.window is None else self.window

    def slot(self, place: Tensor) -> Tensor:
        """The slot of the token at a position."""
        return place % self.slots

    def held(self) -> Tensor:
        """(B, slots): the position of the token in each slot, negative if there is none."""
        last = self.count[:, None] - 1
        return last - (last - torch.arange(self.slots)) % self.slots

    def stored(self) -> tuple[Tensor, Tensor]:
        """Keys (B, Hkv, slots, D) and values (B, Hkv, slots, Dv), slot by slot."""
        k, v = (x[self.table].transpose(1, 2).flatten(2, 3)[:, :, : self.slots] for x in (self.k, self.v))
        return k, v

    def store(self, k: Tensor, v: Tensor, place: Tensor) -> None:
        """Put the tokens at positions place (B, n) into their slots; of more than there are slots, the last."""
        new = (place >= 0) & (place > place.amax(1, keepdim=True) - self.slots) if place.numel() else place >= 0
        b, row = torch.nonzero(new, as_tuple=True)
        page, offset = self.address(b, self.slot(place[b, row]))
        self.k[page, :, offset], self.v[page, :, offset] = k[b, :, row], v[b, :, row]

    def address(self, b: Tensor, slot: Tensor) -> tuple[Tensor, Tensor]:
        """The page and the place in it of a slot of sequence b."""
        return self.table[b, slot // self.page], slot % self.page

    # ------------------------------------------------------------ copies, and what is forgotten

    def fork(self) -> Cache:
        """An independent copy."""
        return copy.deepcopy(self)

    def reset(self) -> None:
        """Forget everything."""
        self.count = torch.zeros_like(self.count)

    def truncate(self, length: int) -> None:
        """Forget all tokens from this one on."""
        if self.window is not None:
            raise ValueError("what has left the window cannot come back")
        self.count = self.count.clamp(max=length)

    def reorder(self, index: Tensor) -> None:
        """Sequence b goes on from where sequence index[b] was."""
        self.k[self.table], self.v[self.table] = self.k[self.table[index]], self.v[self.table[index]]
        self.count = self.count[index]
