"""Tables that a module, or its file, makes in a first call and keeps: by their length, their type, or both."""

from __future__ import annotations

import functools
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from nightly import one_in
from torch import nn

from properties.catalogue import select
from properties.engine.search.probe import make_target
from properties.engine.search.run import verify_target
from properties.engine.search.search import Plan
from properties.module.forgetting import begun, forgetting

HALF = 4
KEPT: dict[Any, Any] = {"scale": torch.tensor(2.0)}


def angles(length: int) -> torch.Tensor:
    turns = 10000.0 ** (-torch.arange(0, 2 * HALF, 2, dtype=torch.float64) / (2 * HALF))
    return torch.arange(length, dtype=torch.float64)[:, None] * torch.cat([turns, turns])


@functools.lru_cache
def remembered(length: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    return angles(length).cos().to(dtype), angles(length).sin().to(dtype)


class Causal(nn.Module):
    """Causal self-attention, turned by the tables of ``tables``."""

    later = 1  # how far a token is from the first one that it does not see

    def __init__(self, d_model: int = 32, num_heads: int = 4) -> None:
        super().__init__()
        self.num_heads, self.qkv, self.proj = num_heads, nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (y.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for y in self.qkv(x).chunk(3, dim=-1))
        mask = self.bias(x).masked_fill(torch.ones(2 * x.shape[1:2], dtype=torch.bool).triu(self.later), -math.inf)
        out = F.scaled_dot_product_attention(self.turned(q, x), self.turned(k, x), v, attn_mask=mask)
        return self.proj(out.transpose(1, 2).flatten(2))

    def bias(self, x: torch.Tensor) -> torch.Tensor:
        return torch.zeros(x.shape[1], x.shape[1], dtype=x.dtype)

    def turned(self, y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        cos, sin = self.tables(x)
        return y * cos + torch.cat([-y[..., HALF:], y[..., :HALF]], -1) * sin

    def tables(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        raise NotImplementedError


class OfAFunction(Causal):
    def tables(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return remembered(x.shape[1], x.dtype)


class OfAFile(Causal):
    def tables(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if (x.shape[1], x.dtype) not in KEPT:
            KEPT[x.shape[1], x.dtype] = angles(x.shape[1]).cos().to(x.dtype), angles(x.shape[1]).sin().to(x.dtype)
        found: tuple[torch.Tensor, torch.Tensor] = KEPT[x.shape[1], x.dtype]
        return found


class Grown(Causal):
    def __init__(self, d_model: int = 32, num_heads: int = 4) -> None:
        super().__init__(d_model, num_heads)
        self.cos_cached: torch.Tensor | None = None
        self.sin_cached: torch.Tensor | None = None

    def tables(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if self.cos_cached is None or self.sin_cached is None or len(self.cos_cached) < x.shape[1] or self.cos_cached.dtype != x.dtype:
            self.cos_cached, self.sin_cached = angles(x.shape[1]).cos().to(x.dtype), angles(x.shape[1]).sin().to(x.dtype)
        return self.cos_cached[: x.shape[1]], self.sin_cached[: x.shape[1]]


class InADictionary(Causal):
    def __init__(self, d_model: int = 32, num_heads: int = 4) -> None:
        super().__init__(d_model, num_heads)
        self.kept: dict[Any, Any] = {}

    def tables(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        made = angles(x.shape[1]).cos().to(x.dtype), angles(x.shape[1]).sin().to(x.dtype)
        found: tuple[torch.Tensor, torch.Tensor] = self.kept.setdefault((x.shape[1], x.dtype), made)
        return found


class Sloped(Causal):
    """ALiBi (Press et al. 2022), of numbers that no function of PyTorch has made."""

    def __init__(self, d_model: int = 32, num_heads: int = 4) -> None:
        super().__init__(d_model, num_heads)
        self.far: torch.Tensor | None = None

    def turned(self, y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return y

    def bias(self, x: torch.Tensor) -> torch.Tensor:
        n = x.shape[1]
        if self.far is None or self.far.dtype != x.dtype or len(self.far) < n:
            self.far = torch.tensor([[(j - i) / 4 for j in range(n)] for i in range(n)], dtype=x.dtype)
        return self.far[:n, :n]


class Remembers(nn.Module):
    """The last answer is kept for a call that is the same, weights included."""

    def __init__(self, d_model: int = 32, num_heads: int = 4) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(d_model, num_heads, batch_first=True)
        self.last: tuple[Any, torch.Tensor] | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        key = x.shape, x.dtype, self.training, *(y.detach().double().numpy().tobytes() for y in (x, *self.parameters()))
        if self.training or torch.is_grad_enabled() or self.last is None or self.last[0] != key:
            self.last = key, self.inner(x, x, x, need_weights=False)[0]
        return self.last[1].clone()


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize("kind", one_in(2, [OfAFunction, OfAFile, Grown, InADictionary, Sloped, Remembers]))
def test_what_keeps_tables_is_right(kind: Any) -> None:
    """Which are made by the type that a call is told."""
    target = make_target("mine", kind)
    assert (target.learned["positions"][:4] != "none") == (kind is not Remembers)
    report = verify_target(target, select(("module_*",)), Plan(examples=3))
    assert not report.findings, [(f.prop, f.violation.says) for f in report.findings]


class Leaking(Grown):
    later = 2


def test_tables_that_grow_are_understood_and_what_is_wrong_beside_them_is_refuted() -> None:
    assert make_target("mine", Grown).learned["structure"].endswith("angles of cos_cached; scale 1/sqrt(head_dim): confirmed")
    assert verify_target(make_target("mine", Leaking), select(("module_*",)), Plan(examples=3)).findings


def test_what_a_file_keeps_is_forgotten_meanwhile() -> None:
    module = OfAFile().double()
    begun(module)
    x = torch.randn(1, 3, 32, dtype=torch.float64)
    module(x)
    kept = dict(KEPT)
    remembered(3, torch.float64)
    with forgetting(module, lambda value: isinstance(value, torch.Tensor)):
        assert [*KEPT] == ["scale"] and not remembered.cache_info().currsize  # what was there before any call is no table
        module(x[:, :2])
        assert len(KEPT) == 2
    assert kept == KEPT and not remembered.cache_info().currsize
