"""Constructors and calls of libraries: lists of sides, a processor beside the class, a class token before an image."""

from __future__ import annotations

from typing import Any, ClassVar, List  # noqa: UP035  as it is written there

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from properties import verify
from properties.engine.search.probe import make_target


class ByLists(nn.Module):
    """Windows of an image, as in torchvision."""

    def __init__(self, dim: int, window_size: List[int], shift_size: List[int], num_heads: int) -> None:  # noqa: UP006
        super().__init__()
        self.window, self.shift, self.heads = window_size, shift_size, num_heads
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        (b, h, w, c), (high, wide) = x.shape, self.window
        x = x.roll((-self.shift[0], -self.shift[1]), (1, 2))
        x = x.reshape(b, h // high, high, w // wide, wide, c).transpose(2, 3).reshape(-1, high * wide, c)
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).movedim(2, 0).transpose(-3, -2)
        y = F.scaled_dot_product_attention(q, k, v).transpose(-3, -2).flatten(-2)
        y = y.reshape(b, h // high, w // wide, high, wide, c).transpose(2, 3).reshape(b, h, w, c)
        return self.proj(y.roll((self.shift[0], self.shift[1]), (1, 2)))


class OwnAttnProcessor:
    def __call__(self, attn: Any, hidden_states: Tensor) -> Tensor:
        q, k, v = (part(hidden_states).unflatten(-1, (attn.heads, -1)).transpose(1, 2) for part in (attn.to_q, attn.to_k, attn.to_v))
        return attn.to_out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class ByProcessor(nn.Module):
    """As in diffusers: the model gives each attention its processor."""

    _default_processor_cls: ClassVar[Any] = OwnAttnProcessor

    def __init__(self, dim: int, heads: int = 8, dim_heads: int = 64, processor: Any = None) -> None:
        super().__init__()
        self.heads, self.processor = heads, processor
        self.to_q, self.to_k, self.to_v = (nn.Linear(dim, heads * dim_heads) for _ in range(3))
        self.to_out = nn.Linear(heads * dim_heads, dim)

    def forward(self, hidden_states: Tensor) -> Tensor:
        out: Tensor = self.processor(self, hidden_states)
        return out


class BehindAClassToken(nn.Module):
    """Keys and values are pooled over the image, as in MViT; the token of a class is not."""

    stays = True

    def __init__(self, dim: int = 32, num_heads: int = 4) -> None:
        super().__init__()
        self.heads, self.qkv, self.proj = num_heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.pool = nn.Conv2d(dim // num_heads, dim // num_heads, 3, stride=1, padding=1, groups=dim // num_heads, bias=False)

    def pooled(self, x: Tensor, hw_shape: tuple[int, int]) -> Tensor:
        first, image = x[:, :, :1], x[:, :, 1:]
        image = image.mT.reshape(-1, x.shape[-1], *hw_shape)
        image = self.pool(image).reshape(*x.shape[:2], x.shape[-1], -1).mT
        return torch.cat((first if self.stays else first.roll(1, 0), image), 2)

    def forward(self, x: Tensor, hw_shape: tuple[int, int]) -> tuple[Tensor, tuple[int, int]]:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).movedim(2, 0).transpose(-3, -2)
        k, v = (self.pooled(part, hw_shape) for part in (k, v))
        return self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)), hw_shape


class ClassTokensExchanged(BehindAClassToken):
    stays = False


@pytest.mark.parametrize("cls", [ByLists, ByProcessor, BehindAClassToken])
def test_it_is_made_and_called_and_let_go(cls: Any) -> None:
    verdict = verify(cls, cases=5)
    assert verdict.ok and verdict.report.cases > 50, verdict


def test_a_processor_leaves_the_structure_as_it_is() -> None:
    assert make_target("mine", ByProcessor).learned["structure"].startswith("to_q, to_k, to_v, to_out; 4 heads")


def test_behind_a_class_token_there_is_an_image() -> None:
    learned = make_target("mine", BehindAClassToken).learned
    assert learned["tokens"] == "(batch, length, features), 32 features, the first token is that of a class; x = tokens, hw_shape = grid"
    assert "module_batch_elements_are_independent" in {f.prop.name for f in verify(ClassTokensExchanged, cases=12).findings}
