"""Attention in which the token of a class alone asks is recognised like any other, and more than one window is asked for of images."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn

from properties import verify
from properties.engine.search.probe import make_target


class OfAClass(nn.Module):
    """As in CaiT: one row comes back, what the first token sees."""

    by_width = False

    def __init__(self, dim: int, num_heads: int = 4) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.q, self.k, self.v, self.proj = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, x: Any) -> Any:
        b, _, c = x.shape
        q, k, v = (lin(y).view(b, -1, self.num_heads, c // self.num_heads).transpose(1, 2) for lin, y in self.parts(x))
        weights = (q @ k.mT * (c if self.by_width else c // self.num_heads) ** -0.5).softmax(-1)
        return self.proj((weights @ v).transpose(1, 2).reshape(b, 1, c))

    def parts(self, x: Any) -> Any:
        return (self.q, x[:, :1]), (self.k, x), (self.v, x)


class ByTheWidth(OfAClass):
    by_width = True


class LearnedQueries(OfAClass):
    """As in a Perceiver: rows that are parameters ask; the softmax is over the tokens."""

    def __init__(self, dim: int, num_heads: int = 4) -> None:
        super().__init__(dim, num_heads)
        self.latents = nn.Parameter(torch.randn(3, dim))
        self.norm = nn.LayerNorm(dim)

    def forward(self, x: Any) -> Any:
        b, _, c = x.shape
        asks, x = self.latents.expand(b, -1, -1), self.norm(x)
        q, k, v = (lin(y).view(b, -1, self.num_heads, c // self.num_heads).transpose(1, 2) for lin, y in self.projected(asks, x))
        weights = (q @ k.mT * (c if self.by_width else c // self.num_heads) ** -0.5).softmax(-1)
        return asks + self.proj((weights @ v).transpose(1, 2).reshape(b, -1, c))

    def projected(self, asks: Any, x: Any) -> Any:
        return (self.q, asks), (self.k, x), (self.v, x)


class LearnedByTheWidth(LearnedQueries):
    by_width = True


class KeysAsValues(LearnedQueries):
    def projected(self, asks: Any, x: Any) -> Any:
        return (self.q, asks), (self.k, x), (self.k, x)


def test_parameters_ask() -> None:
    target = make_target("mine", LearnedQueries)
    assert target.learned["output"] == "3 rows for each sequence, for which latents asks" and "sums" not in target.learned
    assert "norm of the memory (norm); a residual; scale 1/sqrt(head_dim): confirmed" in target.learned["structure"]
    assert not verify(LearnedQueries, properties=("projections", "tokens"), cases=10).findings


@pytest.mark.parametrize(("wrong", "says"), [(LearnedByTheWidth, "scaled by 1/sqrt(width)"), (KeysAsValues, "values projected as keys")])
def test_parameters_that_ask_wrongly_are_refuted(wrong: Any, says: str) -> None:
    assert says in " ".join(str(f) for f in verify(wrong, properties=("projections",), cases=10).findings)


def test_the_token_of_a_class_asks() -> None:
    subject: Any = make_target("OfAClass", OfAClass).function
    assert subject.structure is not None and subject.speech.pooled == 1
    assert not verify(OfAClass, properties=("projections",), cases=10).findings
    assert "1/sqrt(width)" in str(verify(ByTheWidth, properties=("projections",), cases=10).findings[0].violation.says)


class Windows(nn.Module):
    """(batch, height, width, features), in windows of four by four with a learned bias; by a mistake those of two images are exchanged."""

    window_size = 4
    exchanged = False

    def __init__(self, dim: int, num_heads: int = 4) -> None:
        super().__init__()
        self.window_size, self.num_heads = 4, num_heads
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.relative_position_bias_table = nn.Parameter(torch.zeros(num_heads, 16, 16))

    def forward(self, x: Any) -> Any:
        b, h, w, c = x.shape
        cut = x.view(b, h // 4, 4, w // 4, 4, c).transpose(2, 3).reshape(-1, 16, c)
        q, k, v = self.qkv(cut).view(len(cut), 16, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        s = (q @ k.mT * (c // self.num_heads) ** -0.5 + self.relative_position_bias_table).softmax(-1)
        out = self.proj((s @ v).transpose(1, 2).reshape(len(cut), 16, c))
        if self.exchanged:
            out = out.view(-1, b, 16, c).transpose(0, 1).reshape(len(cut), 16, c)
        return out.view(b, h // 4, w // 4, 4, 4, c).transpose(2, 3).reshape(b, h, w, c)


class Exchanged(Windows):
    exchanged = True


@pytest.mark.nightly
def test_there_are_several_windows() -> None:
    subject: Any = make_target("Windows", Windows).function
    assert subject.facts.lengths == (64,)
    assert not verify(Windows, properties=("tokens", "state"), cases=6).findings
    assert verify(Exchanged, properties=("tokens", "state"), cases=6).findings
