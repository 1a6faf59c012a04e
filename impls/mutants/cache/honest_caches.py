"""Caches that are right, in unusual ways."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..registry import Function, honest
from .cache_core import Cache

MERGED = {"float64": "same+lse", "float32": "same+lse", "float16": "fused", "bfloat16": "fused"}


def _honest(idea: str, source: str = "common practice", bug: str | None = None, **supports: Any) -> Callable[[Function], Function]:
    return honest(idea, source=source, contract="cached", bug=bug, supports=supports)


@_honest("memory grows by concatenation, there are no slots and no limit", "transformers' DynamicCache")
class growing(Cache):
    def refuse(self, place: Tensor) -> None:
        if place.numel() and int(place.max()) >= self.slots and self.window is None:
            more = int(place.max()) + 1 - self.slots  # in place of each sequence's page, a longer one
            self.k, self.v = (torch.cat((x, x.new_zeros(*x.shape[:2], more, x.shape[3])), dim=2) for x in (self.k, self.v))
            self.slots = self.page = self.slots + more

    def slots_needed(self) -> int:
        return 1 if self.window is None else self.window

    def __init__(self, *sizes: int, **options: Any) -> None:
        super().__init__(*sizes, **{**options, "page_size": None})


@_honest("keys are stored transposed: the place in the page is the last axis", "FasterTransformer's layout of keys")
class keys_transposed(Cache):
    def store(self, k: Tensor, v: Tensor, place: Tensor) -> None:
        super().store(k, v, place)
        self.k = self.k.mT.contiguous().mT


@_honest("keys are stored as they come and rotated whenever they are read", "StreamingLLM, Xiao et al. 2024")
class rotated_when_read(Cache):
    def key_places(self, place: Tensor) -> Tensor:
        return torch.zeros_like(place)

    def answer(self, q: Tensor, k: Tensor, v: Tensor, place: Tensor) -> Tensor:
        old_k, old_v = self.stored()
        places = torch.cat((self.held(), place), dim=1)
        key = self.turn(
            torch.cat((old_k, k), dim=2).masked_fill((places < 0)[:, None, :, None], 0.0), self.read_places(places).clamp(min=0)
        )
        return self.attend(q, key, torch.cat((old_v, v), dim=2), self.visible(place, places))

    def read_places(self, places: Tensor) -> Tensor:
        """The positions by which keys rotate when they are read."""
        return places


@_honest("positions are counted from the oldest token that is held", "StreamingLLM, Xiao et al. 2024", "F06")
class positions_from_the_oldest(rotated_when_read):
    def oldest(self) -> Tensor:
        """(B, 1): the position of the oldest token in the ring."""
        return (self.count[:, None] - self.slots).clamp(min=0)

    def query_places(self, place: Tensor) -> Tensor:
        return torch.where(place >= 0, place - self.oldest(), place)

    def read_places(self, places: Tensor) -> Tensor:
        return places - self.oldest()


@_honest("positions count the left padding, too: only differences matter", "transformers' cache_position", "F04")
class positions_count_the_padding(Cache):
    before: Tensor | None = None

    def rows(self, n: int, lengths: Tensor | None, padding: Tensor | None) -> Tensor:
        if padding is not None and not self.count.any():
            self.before = padding[:, None]
        return super().rows(n, lengths, padding)

    def query_places(self, place: Tensor) -> Tensor:
        return place if self.before is None else torch.where(place >= 0, place + self.before, place)

    def key_places(self, place: Tensor) -> Tensor:
        return self.query_places(place)

    def reset(self) -> None:
        super().reset()
        self.before = None

    def reorder(self, index: Tensor) -> None:
        super().reorder(index)
        self.before = None if self.before is None else self.before[index]


@_honest("pages are handed out in a random order", "vLLM, Kwon et al. 2023")
class scattered_pages(Cache):
    def store(self, k: Tensor, v: Tensor, place: Tensor) -> None:
        if not self.count.any() and not vars(self).get("scattered"):
            self.scattered = True
            order = torch.randperm(self.table.numel(), generator=torch.Generator().manual_seed(self.table.numel()))
            self.table = order[self.table]
        super().store(k, v, place)


@_honest("the ring has more slots than the window: the others hold what is masked", "Mistral's reference code")
class ring_with_room(Cache):
    def slots_needed(self) -> int:
        return super().slots_needed() + (0 if self.window is None else 5)


@_honest("old and new tokens are attended apart, and merged through their log-sum-exp", "FlashDecoding, Dao et al. 2023", arithmetic=MERGED)
class merged_parts(Cache):
    def answer(self, q: Tensor, k: Tensor, v: Tensor, place: Tensor) -> Tensor:
        parts = [(*self.stored(), self.visible(place, self.held())), (k, v, self.visible(place, place))]
        outs, sums = zip(*(self.part(q, *part) for part in parts), strict=True)
        top = torch.maximum(*sums)
        top = top.masked_fill(top == -torch.inf, 0.0)
        shares = [torch.exp(each - top) for each in sums]
        total = shares[0] + shares[1]
        return ((shares[0] * outs[0] + shares[1] * outs[1]) / total.masked_fill(total == 0, 1.0)).to(q.dtype)

    def part(self, q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> tuple[Tensor, Tensor]:
        """(out (B, H, n, Dv), log-sum-exp (B, H, n, 1)) over a part of the keys."""
        wide = torch.promote_types(q.dtype, torch.float32)
        seen = visible.any(1)[:, None, :, None]
        key, value = (self.spread(x.to(wide).masked_fill(~seen, 0.0)) for x in (k, v))
        logits = ((q.to(wide) @ key.mT) / q.shape[-1] ** 0.5).masked_fill(~visible[:, None], -torch.inf)
        lse = torch.logsumexp(logits, dim=-1, keepdim=True)
        weights = torch.exp(logits - lse.masked_fill(lse == -torch.inf, 0.0))
        return weights @ value, lse


@_honest("a chunk is fed token by token", "llama.cpp with a batch of one")
class one_by_one(Cache):
    def append(self, q: Tensor, k: Tensor, v: Tensor, *, lengths: Tensor | None = None, padding: Tensor | None = None) -> Tensor:
        rows = self.rows(q.shape[2], lengths, padding)
        self.refuse(self.places(rows))
        out = q.new_zeros(*q.shape[:3], v.shape[3])
        for i in range(q.shape[2]):
            real = (rows[:, i] >= 0).long()
            one = (slice(None), slice(None), slice(i, i + 1))
            out[one] = super().append(q[one], k[one], v[one], lengths=real)
        return out
