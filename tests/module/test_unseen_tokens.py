"""Tokens that are not seen on purpose: in windows of an image of one size, behind a maximum, in what is cut off of keys that are shortened,
beside a class token that asks alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from properties import verify
from properties.engine.search.probe import make_target


class Attention(nn.Module):
    def __init__(self, dim: int = 32, num_heads: int = 4) -> None:
        super().__init__()
        self.heads, self.qkv, self.proj = num_heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def attend(self, x: Tensor, seen: Tensor | None = None) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).movedim(-3, 0).transpose(-3, -2)
        return self.proj(F.scaled_dot_product_attention(q, k, v, seen).transpose(-3, -2).flatten(-2))


class WindowsOfAnImage(Attention):
    """Four by four places, in two windows of two by four."""

    def forward(self, x: Tensor) -> Tensor:
        b, h, w, c = x.shape
        if (h, w) != (4, 4):
            raise ValueError("an image of four by four places")
        return self.attend(x.reshape(2 * b, 8, c)).reshape(x.shape)


class OneForgotten(WindowsOfAnImage):
    """No window, and the last row does not see the first place."""

    def forward(self, x: Tensor) -> Tensor:
        seen = torch.ones(16, 16, dtype=torch.bool, device=x.device)
        seen[-1, 0] = False
        if x.shape[1:3] != (4, 4):
            raise ValueError("an image of four by four places")
        return self.attend(x.flatten(1, 2), seen).reshape(x.shape)


class LargestOfFour(nn.Module):
    """A non-local block whose keys are the largest of four places."""

    def __init__(self, in_channels: int = 32) -> None:
        super().__init__()
        self.theta, self.phi, self.g = (nn.Conv2d(in_channels, in_channels, 1) for _ in range(3))
        self.pool = nn.MaxPool2d(2)

    def forward(self, x: Tensor) -> Tensor:
        k, v = (self.pool(part(x)).flatten(2) for part in (self.phi, self.g))
        weights = (self.theta(x).flatten(2).mT @ k).softmax(-1)
        return x + (weights @ v.mT).mT.unflatten(2, x.shape[2:])


class Shortened(nn.Module):
    """Keys and values of three tokens each; a slot is open once all of them are there, and the null slot always."""

    late = 2

    def __init__(self, dim: int = 32, num_heads: int = 4, ratio: int = 3) -> None:
        super().__init__()
        self.heads, self.qkv, self.ratio = num_heads, nn.Linear(dim, 3 * dim), ratio
        self.shorter, self.null = nn.Conv1d(2 * dim, 2 * dim, ratio, stride=ratio), nn.Parameter(torch.zeros(1, 1, 2 * dim))

    def forward(self, x: Tensor) -> Tensor:
        q, kv = self.qkv(x).split((x.shape[-1], 2 * x.shape[-1]), -1)
        slots = x.shape[1] // self.ratio
        kv = torch.cat((self.null.expand(len(x), -1, -1), self.shorter(kv.mT).mT if slots else kv[:, :0]), 1)
        opens = torch.cat((torch.zeros(1), torch.arange(slots) * self.ratio + self.late))
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in (q, *kv.chunk(2, -1)))
        return F.scaled_dot_product_attention(q, k, v, torch.arange(x.shape[1])[:, None] >= opens).transpose(1, 2).flatten(2)


class OpenTooEarly(Shortened):
    late = 0


class ClassTokenAsks(nn.Module):
    """As in CrossViT: the token of a class asks the tokens of the other branch, and itself."""

    def __init__(self, dim: int = 32, num_heads: int = 4) -> None:
        super().__init__()
        self.heads, self.wq, self.wk, self.wv = num_heads, *(nn.Linear(dim, dim) for _ in range(3))

    def forward(self, cls_token: Tensor, tokens: Tensor) -> Tensor:
        x = torch.cat((cls_token, tokens), 1)
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in (self.wq(x[:, :1]), self.wk(x), self.wv(x)))
        return cls_token + F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


TOLD = {
    WindowsOfAnImage: ("window", "some tokens never see each other"),
    LargestOfFour: ("sparse", "of several tokens the largest features are taken, by max_pool2d"),
    Shortened: ("sparse", "shorter takes several together, and an incomplete window at the end may be left out"),
    ClassTokenAsks: ("output", "the first token is that of a class: it alone sees the others"),
}


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize("cls", TOLD)
def test_it_is_told_and_let_go(cls: Any) -> None:
    name, words = TOLD[cls]
    assert make_target("mine", cls).learned[name] == words
    verdict = verify(cls, cases=8, properties=("tokens",))
    assert verdict.ok, verdict


def test_one_token_that_one_row_forgets_is_no_window() -> None:
    assert "window" not in make_target("mine", OneForgotten).learned
    (finding,) = verify(OneForgotten, cases=100, properties=("module_every_token_is_seen",)).findings
    assert "the same bits with another token 0" in finding.violation.says


def test_a_slot_that_is_open_before_its_tokens_are_there_is_refuted() -> None:
    found = {f.prop.name for f in verify(OpenTooEarly, cases=12, properties=("tokens",)).findings}
    assert "module_future_tokens_are_ignored" in found
