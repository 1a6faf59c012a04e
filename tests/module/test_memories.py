"""Memories of other axes and other features than the tokens that see them: text beside an image, an encoder of another width."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from properties import verify
from properties.engine.search.probe import make_target


class ImageAndText(nn.Module):
    """(B, D, height, width) sees (B, S, D')."""

    def __init__(self, channels: int, context_dim: int, num_heads: int = 4) -> None:
        super().__init__()
        self.heads, self.to_q, self.to_out = num_heads, nn.Conv2d(channels, channels, 1), nn.Conv2d(channels, channels, 1)
        self.to_k, self.to_v = nn.Linear(context_dim, channels), nn.Linear(context_dim, channels)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        q = self.to_q(x).flatten(2).unflatten(1, (self.heads, -1)).mT
        k, v = (self.split(layer(context)) for layer in (self.to_k, self.to_v))
        weights = (q @ k.mT * self.scale(q)).softmax(-1)
        return self.to_out((weights @ v).mT.reshape(x.shape))

    def split(self, rows: Tensor) -> Tensor:
        return rows.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def scale(self, q: Tensor) -> float:
        return float(q.shape[-1] ** -0.5)


class OrToItself(ImageAndText):
    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        return super().forward(x, x.flatten(2).mT if context is None else context)


class Normed(ImageAndText):
    """As in diffusion: statistics of all pixels, through which rows meet."""

    def __init__(self, channels: int, context_dim: int) -> None:
        super().__init__(channels, context_dim)
        self.norm = nn.GroupNorm(8, channels)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        return x + super().forward(self.norm(x), context)


class ByWidth(ImageAndText):
    """A mistake: scaled by 1/sqrt(width)."""

    def scale(self, q: Tensor) -> float:
        return float((q.shape[-1] * self.heads) ** -0.5)


class Reshaped(ImageAndText):
    """A mistake: tokens of the text are read as features are, without a transpose."""

    def split(self, rows: Tensor) -> Tensor:
        return rows.reshape(len(rows), self.heads, -1, rows.shape[1]).mT


class OfQueries(Normed):
    """A mistake: a softmax over queries; rows meet, which statistics of all pixels would explain, but its structure would not."""

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        q = self.to_q(self.norm(x)).flatten(2).unflatten(1, (self.heads, -1)).mT
        k, v = (self.split(layer(context)) for layer in (self.to_k, self.to_v))
        return x + self.to_out(((q @ k.mT * self.scale(q)).softmax(-2) @ v).mT.reshape(x.shape))


class Cross(nn.Module):
    def __init__(self, query_dim: int, context_dim: int, heads: int = 4, dim_head: int = 8) -> None:
        super().__init__()
        self.heads, inner = heads, heads * dim_head
        self.to_q, self.to_out = nn.Linear(query_dim, inner, bias=False), nn.Linear(inner, query_dim)
        self.to_k, self.to_v = (nn.Linear(context_dim, inner, bias=False) for _ in range(2))

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        q, k, v = (rows.unflatten(-1, (self.heads, -1)).transpose(1, 2) for rows in (self.to_q(x), self.to_k(context), self.to_v(context)))
        return self.to_out(((q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v).transpose(1, 2).flatten(2))


class Layer(nn.Module):
    """Tokens see each other, and then an encoder of another width."""

    def __init__(self, d_model: int, encoder: int) -> None:
        super().__init__()
        self.own = nn.MultiheadAttention(d_model, 4, batch_first=True)
        self.cross = nn.MultiheadAttention(d_model, 4, kdim=encoder, vdim=encoder, batch_first=True)

    def forward(self, tgt: Tensor, memory: Tensor) -> Tensor:
        x = tgt + self.own(tgt, tgt, tgt, need_weights=False)[0]
        return x + self.cross(x, memory, memory, need_weights=False)[0]


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize("cls", [ImageAndText, OrToItself, Normed])
def test_a_memory_beside_an_image_is_tokens(cls: Any) -> None:
    verdict = verify(cls, cases=4, properties=("tokens", "twin", "projections"))
    learned = verdict.report.target.learned
    assert learned["memory"] == "(batch, length, features), 32 features" and learned["structure"].endswith("confirmed")
    assert verdict.ok and verdict.report.outcomes["module_the_memory_has_no_order"].cases


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize(
    ("cls", "name"),
    [
        (ByWidth, "module_is_the_attention_of_its_projections"),
        (Reshaped, "module_the_memory_has_no_order"),
        (OfQueries, "module_a_memory_twice_is_the_memory"),
    ],
)
def test_what_is_wrong_beside_an_image_is_found(cls: Any, name: str) -> None:
    assert name in {finding.prop.name for finding in verify(cls, cases=8, properties=("tokens", "projections")).findings}


def test_statistics_of_all_pixels_are_told() -> None:
    verdict = verify(Normed, cases=2, properties=("module_rows_meet_only_the_memory",))
    assert "a GroupNorm takes statistics of all its tokens" in verdict.report.outcomes["module_rows_meet_only_the_memory"].why


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize(
    ("module", "memory"),
    [
        (lambda: Cross(32, 48), "(batch, length, features), 48 features"),
        (lambda: Cross(48, 20), "(batch, length, features), 20 features"),
        (lambda: nn.MultiheadAttention(32, 4, kdim=16, vdim=16), "(length, batch, features), 16 features"),
        (lambda: ImageAndText(32, 24), "(batch, length, features), 24 features"),
    ],
)
def test_a_memory_of_other_features(module: Any, memory: str) -> None:
    torch.manual_seed(0)
    verdict = verify(module(), cases=4, properties=("tokens",))
    assert verdict.report.target.learned["memory"] == memory and verdict.ok
    assert verdict.report.outcomes["module_rows_meet_only_the_memory"].cases


def test_a_layer_beside_an_encoder_of_other_features() -> None:
    verdict = verify(Layer(32, 24), cases=3, properties=("tokens",))
    assert verdict.report.target.learned["memory"].startswith("(batch, length, features), 24 features") and verdict.ok


def test_a_mistake_of_the_scale_beside_other_features() -> None:
    module = Cross(32, 48)
    right = make_target("mine", module)
    assert right.learned["structure"].endswith("confirmed") and not right.wrong

    class Unscaled(Cross):
        def forward(self, x: Tensor, context: Tensor) -> Tensor:
            return super().forward(x * (self.to_q.out_features // self.heads) ** 0.5, context)

    assert "module_is_the_attention_of_its_projections" in {
        finding.prop.name for finding in verify(Unscaled(32, 48), cases=4, properties=("projections",)).findings
    }


class OfSets(nn.Module):
    """As in the Set Transformer: features of queries, of keys, and of what they become."""

    def __init__(self, dim_Q: int, dim_K: int, dim_V: int, num_heads: int) -> None:
        super().__init__()
        self.heads, self.fc_q, self.fc_o = num_heads, nn.Linear(dim_Q, dim_V), nn.Linear(dim_V, dim_V)
        self.fc_k, self.fc_v = (nn.Linear(dim_K, dim_V) for _ in range(2))

    def forward(self, Q: Tensor, K: Tensor) -> Tensor:
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in (self.fc_q(Q), self.fc_k(K), self.fc_v(K)))
        return self.fc_o(((q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v).transpose(1, 2).flatten(2))


def test_features_of_queries_and_of_keys_are_those_of_tokens() -> None:
    target = make_target("mine", OfSets)
    assert target.learned["tokens"].startswith("(batch, length, features), 32 features") and target.learned["structure"].endswith(
        "confirmed"
    )
