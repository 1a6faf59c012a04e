"""Rotations whose base stands in code alone, and frequencies whatever they are called."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from properties.catalogue import select
from properties.engine.contained.link import Link
from properties.engine.search.find_target import Builtins, containing, find_targets
from properties.engine.search.probe import make_target
from properties.engine.search.run import verify_target
from properties.engine.search.search import Plan


def turned(x: Tensor, base: float = 500000.0) -> Tensor:
    """Halves of a head (…, L, d), by angles in float32."""
    frequencies = 1.0 / base ** (torch.arange(0, x.shape[-1], 2).float() / x.shape[-1])
    angles = torch.outer(torch.arange(x.shape[-2]).float(), frequencies)
    cos, sin = (torch.cat([table, table], -1).to(x.dtype) for table in (angles.cos(), angles.sin()))
    one, other = x.chunk(2, -1)
    return x * cos + torch.cat([-other, one], -1) * sin


class ByDefault(nn.Module):
    """The base is a default of a function."""

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def turned(self, x: Tensor) -> Tensor:
        return turned(x)

    def keys(self, k: Tensor) -> Tensor:
        return self.turned(k)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        return self.proj(F.scaled_dot_product_attention(self.turned(q), self.keys(k), v, is_causal=True).transpose(1, 2).flatten(2))


class Written(ByDefault):
    """It is a number in the code of the module."""

    def turned(self, x: Tensor) -> Tensor:
        return turned(x, 1_000_000)


class Held(ByDefault):
    """A buffer that is called neither frequency nor angle."""

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__(dim, num_heads)
        d = dim // num_heads
        self.register_buffer("inv", 1.0 / 10000 ** (torch.arange(0, d, 2).float() / d))

    def turned(self, x: Tensor) -> Tensor:
        angles = torch.outer(torch.arange(x.shape[-2], dtype=self.inv.dtype), self.inv)
        one, other = x[..., ::2], x[..., 1::2]
        return torch.stack([one * angles.cos() - other * angles.sin(), one * angles.sin() + other * angles.cos()], -1).flatten(-2)


class KeysOfAnother(ByDefault):
    """Keys turn by another base."""

    def keys(self, k: Tensor) -> Tensor:
        return turned(k, 10000.0)


RIGHT = {
    ByDefault: "halves of 8 features turned, base 500000",
    Written: "halves of 8 features turned, base 1e+06",
    Held: "neighbours of 8 features turned, frequencies of inv",
}


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize("thing", RIGHT, ids=lambda thing: str(thing.__name__))
def test_it_is_found(thing: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a process of its own, too."""
    monkeypatch.setattr(Link, "templates", [])
    with containing():
        (away,) = find_targets(f"{Path(__file__)}:{thing.__name__}", Builtins())
        for target in (make_target("mine", thing), away):
            told = target.learned["structure"]
            assert RIGHT[thing] in told and told.endswith(": confirmed")


def test_what_turns_by_two_bases_is_not_confirmed() -> None:
    assert make_target("mine", KeysOfAnother).learned["structure"].startswith("not confirmed")


class Back(nn.Module):
    """As in nanochat: tables (1, length, 1, half the width of a head), turned the other way round, then normed."""

    other_way = False

    def __init__(self, dim: int, n_head: int) -> None:
        super().__init__()
        self.n_head = n_head
        self.c_q, self.c_k, self.c_v, self.c_proj = (nn.Linear(dim, dim, bias=False) for _ in range(4))

    def turned(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        one, other = x.chunk(2, -1)
        return F.rms_norm(torch.cat([one * cos + other * sin, other * cos - one * sin], -1), (x.shape[-1],))

    def forward(self, x: Tensor, cos_sin: tuple[Tensor, Tensor]) -> Tensor:
        cos, sin = cos_sin
        q, k, v = (layer(x).unflatten(-1, (self.n_head, -1)) for layer in (self.c_q, self.c_k, self.c_v))
        q, k = self.turned(q, cos, sin), self.turned(k, cos, -sin if self.other_way else sin)
        out = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True)
        return self.c_proj(out.transpose(1, 2).flatten(2))


class Apart(Back):
    """Keys are turned as they should be, and queries back."""

    other_way = True


def test_what_is_turned_back_is_recognised() -> None:
    learned = make_target("mine", Back).learned
    assert learned["angles"] == "(1, length, 1, half of it)" and "halves of 8 features turned back, angles given" in learned["structure"]
    assert learned["structure"].endswith(": confirmed")


@pytest.mark.nightly
def test_what_is_turned_apart_is_refuted() -> None:
    target = make_target("mine", Apart)
    assert target.faults or verify_target(target, select(("tokens", "projections")), Plan(examples=8, shrink=False)).findings
