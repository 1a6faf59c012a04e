"""Tokens that are shifted, or taken together, by their places: no parameter says so, and the order of tokens matters all the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from properties import verify
from properties.engine.core.documented import shifted


class Plain(nn.Module):
    is_causal = True

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in self.qkv(self.moved(x)).chunk(3, -1))
        k, v = self.together(k), self.together(v)
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=self.is_causal).transpose(1, 2).flatten(2))

    def moved(self, x: Tensor) -> Tensor:
        return x

    def together(self, rows: Tensor) -> Tensor:
        return rows


class ByPad(Plain):
    def moved(self, x: Tensor) -> Tensor:
        a, b = x.chunk(2, -1)
        return torch.cat([F.pad(a, (0, 0, 1, -1)), b], -1)


class ByModule(Plain):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__(dim, heads)
        self.time_shift = nn.ZeroPad2d((0, 0, 1, -1))

    def moved(self, x: Tensor) -> Tensor:
        return (x + self.time_shift(x)) / 2


class ByWords(Plain):
    """Causal, with the time mixing of RWKV."""

    def moved(self, x: Tensor) -> Tensor:
        return (x + torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], 1)) / 2


class OfRuns(Plain):
    is_causal = False

    def together(self, rows: Tensor) -> Tensor:
        return torch.stack([run.mean(2) for run in rows.split(4, 2)], 2)


class OfAsMany(Plain):
    is_causal = False

    def together(self, rows: Tensor) -> Tensor:
        return F.adaptive_avg_pool1d(rows.flatten(0, 1).mT, 4).mT.unflatten(0, rows.shape[:2])


class Silent(Plain):
    """A mistake: every token sees the next one, and nothing says so."""

    def moved(self, x: Tensor) -> Tensor:
        return (x + torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], 1)) / 2


class OfAll(Plain):
    """A gate of the mean of all tokens has no order; and a mistake, of which an order comes."""

    is_causal = False

    def moved(self, x: Tensor) -> Tensor:
        return x * F.adaptive_avg_pool1d(x.mT, 1).mT.sigmoid()


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize(
    ("cls", "says"),
    [
        (ByPad, "it computes with shift by pad"),
        (ByModule, "it has time_shift"),
        (ByWords, "its documentation says time mixing"),
        (OfRuns, "a softmax is over 3 of 12 tokens, several of which are taken together"),
        (OfAsMany, "it computes with adaptive_avg_pool1d"),
    ],
)
def test_an_order_that_is_meant_is_told(cls: Any, says: str) -> None:
    verdict = verify(cls, cases=6, properties=("tokens",))
    assert verdict.report.target.learned["positions"] == says and verdict.ok


def test_an_order_that_nothing_says_is_refuted() -> None:
    found = {finding.prop.name for finding in verify(Silent, cases=6, properties=("tokens",)).findings}
    assert "module_equal_tokens_give_equal_rows" in found


def test_a_mean_of_all_tokens_has_no_order() -> None:
    verdict = verify(OfAll, cases=4, properties=("tokens",))
    assert verdict.ok and verdict.report.target.learned["positions"] == "none: the order of tokens does not matter"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Attention with token shift.", "token shift"),
        ("RWKV's time-mixing block", "time-mixing"),
        ("features of which shifted tokens are a part", "shifted tokens"),
        ("Windows are shifted; time is up.", ""),
        ("Attention as the token mixer of a MetaFormer", ""),
        ("Shifts the logits by their maximum", ""),
    ],
)
def test_words_for_a_shift(text: str, said: str) -> None:
    assert shifted(text) == said
