"""The honest core in tiles of keys: the online softmax of flash attention, and split-KV merged through log-sum-exp.

Both stand in for softmax and mix: `attention(..., reduce=online)`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from .core import INF, Step, mix

State = tuple[Tensor, Tensor, Tensor]  # running maximum and sum (B, H, L, 1), unnormalised output (B, H, L, Dv)


def tiles(keys: int, block: int) -> Iterator[tuple[int, int]]:
    """First and one past the last key of each tile; the last may be shorter."""
    for first in range(0, keys, block):
        yield first, min(first + block, keys)


def backwards(keys: int, block: int) -> Iterator[tuple[int, int]]:
    """The same tiles, the last one first."""
    return reversed(list(tiles(keys, block)))


def start(logit: Tensor, value: Tensor) -> State:
    """Nothing seen yet."""
    column = logit.new_zeros((*logit.shape[:-1], 1))
    return column - INF, column, value.new_zeros((*logit.shape[:-1], value.shape[-1]))


def guarded(largest: Tensor) -> Tensor:
    """A maximum that can be subtracted: -inf, of a row that has seen no key, becomes 0."""
    return largest.masked_fill(largest == -INF, 0.0)


def absorb(state: State, logit: Tensor, value: Tensor, visible: Tensor | None) -> State:
    """Add one tile: rescale what was collected from the old maximum to the new one."""
    largest, total, out = state
    new = torch.maximum(largest, logit.amax(-1, keepdim=True))
    rescale, weight = torch.exp(largest - guarded(new)), torch.exp(logit - guarded(new))
    return new, total * rescale + weight.sum(-1, keepdim=True), out * rescale + mix(weight, value, visible)


def finish(largest: Tensor, total: Tensor, out: Tensor) -> Tensor:
    """Normalise; a row that saw no key stays zero."""
    return torch.where(total == 0, 0.0, out / total)


def online(
    logit: Tensor,
    value: Tensor,
    visible: Tensor | None,
    *,
    block: int = 16,
    tiles: Step = tiles,
    start: Step = start,
    absorb: Step = absorb,
    finish: Step = finish,
) -> Tensor:
    """softmax(logit) @ value, tile by tile."""
    state = start(logit, value)
    seen = None if visible is None else visible.expand(logit.shape)
    for first, last in tiles(logit.shape[-1], block):
        here = slice(first, last)
        state = absorb(state, logit[..., here], value[..., here, :], None if seen is None else seen[..., here])
    return finish(*state)


def merge(outs: Tensor, lses: Tensor) -> Tensor:
    """Weigh partial outputs (parts, B, H, L, Dv) by exp(lse), renormalised; an empty part has lse = -inf and no weight."""
    weight = torch.exp(lses - guarded(lses.amax(0)))
    total = weight.sum(0)
    return torch.where(total == 0, 0.0, (weight * outs).sum(0) / total)


def merge_by_lse(outs: Tensor, lses: Tensor) -> Tensor:
    """The same weights as exp(lse - log-sum-exp of all), without a division."""
    return (torch.exp(lses - guarded(torch.logsumexp(lses, 0))) * outs).sum(0)


def part(logit: Tensor, value: Tensor, visible: Tensor | None) -> tuple[Tensor, Tensor]:
    """Attention over some of the keys: its output and its log-sum-exp (B, H, L, 1)."""
    largest, total, out = absorb(start(logit, value), logit, value, visible)
    return finish(largest, total, out), guarded(largest) + torch.log(total)


def split_kv(
    logit: Tensor,
    value: Tensor,
    visible: Tensor | None,
    *,
    block: int = 16,
    part: Step = part,
    merge: Step = merge,
) -> Tensor:
    """Attention over each tile of keys on its own, then merged."""
    seen = None if visible is None else visible.expand(logit.shape)
    outs, lses = [], []
    for first, last in tiles(logit.shape[-1], block):
        here = slice(first, last)
        out, lse = part(logit[..., here], value[..., here, :], None if seen is None else seen[..., here])
        outs.append(out)
        lses.append(lse)
    if not outs:
        return start(logit, value)[2]
    return merge(torch.stack(outs), torch.stack(lses))


def tiled(block: int = 16, **steps: Any) -> Step:
    """`online` with some of its steps replaced."""
    return partial(online, block=block, **steps)
