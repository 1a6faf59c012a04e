"""Sequences that are packed into one row (``cu_seqlens``, as in Qwen 2-VL): found out, and a mistake at a boundary is refuted."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from properties.catalogue import PROPERTIES
from properties.engine.core.target import Target
from properties.engine.search.probe import make_target
from properties.engine.search.run import verify_target
from properties.engine.search.search import Plan

ABOUT = [
    PROPERTIES[name]
    for name in ("module_a_batch_is_its_sequences", "module_is_the_attention_of_its_projections", "module_nothing_is_remembered")
]


class Packed(nn.Module):
    """(tokens, features), each sequence by itself."""

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads, self.qkv, self.proj = num_heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, hidden_states: Tensor, cu_seqlens: Tensor) -> Tensor:
        return self.proj(self.attend(self.split(hidden_states), cu_seqlens))

    def split(self, x: Tensor) -> Any:
        return self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(1, 2, 0, 3)  # (3, heads, tokens, features)

    def attend(self, qkv: Any, cu_seqlens: Tensor) -> Tensor:
        lengths = (cu_seqlens[1:] - cu_seqlens[:-1]).tolist()
        parts = [self.one(*part) for part in zip(*(x.split(lengths, 1) for x in qkv), strict=True)]
        return torch.cat(parts, 1).transpose(0, 1).flatten(1)

    def one(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, -1) @ v


class OneMore(Packed):
    """Packed in a batch of one; a mask that nobody gives says where sequences end, one token too late."""

    more = 0

    def forward(self, hidden_states: Tensor, cu_seqlens: Tensor, max_seqlen: int, attention_mask: Tensor | None = None) -> Tensor:
        q, k, v = self.split(hidden_states[0])
        at, ends = torch.arange(k.shape[1]), cu_seqlens[1:]
        of = torch.searchsorted(ends, at, right=True)
        later = torch.searchsorted(ends, (at - self.more).clamp(0), right=True)
        s = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill((of[:, None] != of) & (of[:, None] != later), -torch.inf)
        return self.proj((torch.softmax(s, -1) @ v).transpose(0, 1).flatten(1))[None]


class Leaks(OneMore):
    more = 1


class OfOneLength(Packed):
    """All are taken to be as long as the first one."""

    def attend(self, qkv: Any, cu_seqlens: Tensor) -> Tensor:
        length, count = int(cu_seqlens[1]), qkv.shape[2]
        return Packed.attend(self, qkv, torch.tensor([*range(0, count, length), count]) if length else cu_seqlens)


class Turned(Packed):
    """By angles that are given, which begin anew with each sequence."""

    anew = True

    def forward(self, hidden_states: Tensor, cu_seqlens: Tensor, position_embeddings: tuple[Tensor, Tensor]) -> Tensor:  # type: ignore[override]
        cos, sin = position_embeddings
        q, k, v = self.split(hidden_states)
        q, k = (x * cos + torch.cat([-x[..., x.shape[-1] // 2 :], x[..., : x.shape[-1] // 2]], -1) * sin for x in (q, k))
        return self.proj(self.attend(torch.stack([q, k, v]), cu_seqlens))


class OfTheWidth(Packed):
    def one(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.softmax(q @ k.mT * (q.shape[0] * q.shape[-1]) ** -0.5, -1) @ v


def target_of(thing: Any) -> Target:
    return make_target("mine", thing)


def refuted(thing: Any) -> set[str]:
    return {finding.prop.name for finding in verify_target(target_of(thing), ABOUT, Plan(examples=8)).findings}


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize("thing", [Packed, OneMore, Turned])
def test_a_right_one_is_understood_and_let_go(thing: type[nn.Module]) -> None:
    learned = target_of(thing).learned
    one = "one, " * (thing is OneMore)
    assert learned["tokens"].startswith(f"({one}tokens of all sequences, features), packed") and learned["structure"].endswith("confirmed")
    assert not refuted(thing)


@pytest.mark.nightly(but=2)
@pytest.mark.parametrize("thing", [Leaks, OfOneLength])
def test_a_sequence_that_does_not_end_where_it_ends_is_refuted(thing: type[nn.Module]) -> None:
    assert "module_a_batch_is_its_sequences" in refuted(thing)


def test_its_structure_is_known() -> None:
    assert refuted(OfTheWidth) == {"module_is_the_attention_of_its_projections"}
