"""Keys and values of the patches of an image are recognised, and what mistakes the image for another one is refuted."""

from __future__ import annotations

from typing import Any

import pytest
from nightly import one_in

torch = pytest.importorskip("torch")
from torch import nn

from properties import verify
from properties.engine.search.probe import make_target


class Reduced(nn.Module):
    """As in the Pyramid Vision Transformer: queries of all tokens, keys and values of fewer."""

    image = ""

    def __init__(self, dim: int, num_heads: int = 4, sr_ratio: int = 2) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.q, self.kv, self.proj = nn.Linear(dim, dim), nn.Linear(dim, 2 * dim), nn.Linear(dim, dim)
        self.sr, self.norm = nn.Conv2d(dim, dim, sr_ratio, sr_ratio), nn.LayerNorm(dim)

    def forward(self, x: Any, H: int, W: int) -> Any:
        b, n, c = x.shape
        sides = (W, H) if self.image == "exchanged" else (H, W)
        moved = x if self.image == "reshaped" else x.transpose(1, 2)
        fewer = self.norm(self.sr(moved.reshape(b, c, *sides)).flatten(2).transpose(1, 2))
        q = self.q(x).view(b, n, self.num_heads, -1).transpose(1, 2)
        k, v = self.kv(fewer).view(b, -1, 2, self.num_heads, c // self.num_heads).permute(2, 0, 3, 1, 4)
        weights = (q @ k.transpose(2, 3) * (c // self.num_heads) ** -0.5).softmax(-1)
        return self.proj((weights @ v).transpose(1, 2).reshape(b, n, c))


class Exchanged(Reduced):
    image = "exchanged"


class Reshaped(Reduced):
    image = "reshaped"


@pytest.mark.nightly
def test_the_patches_are_recognised() -> None:
    structure: Any = make_target("Reduced", Reduced).function
    assert structure.structure is not None and structure.structure.reduction.name == "sr" and not structure.structure.mistakes
    assert structure.speech.oblong  # of a square nobody can tell which side is which
    assert not verify(Reduced, properties=("projections", "tokens"), cases=10).findings


@pytest.mark.nightly
@pytest.mark.parametrize(("module", "said"), one_in(2, [(Exchanged, "height and breadth exchanged"), (Reshaped, "without a transpose")]))
def test_another_image_is_refuted(module: type, said: str) -> None:
    verdict = verify(module, properties=("projections",), cases=10)
    assert [f.prop.name for f in verdict.findings] == ["module_is_the_attention_of_its_projections"]
    assert said in str(verdict.findings[0].violation.says)


class ReducedIfAsked(Reshaped):
    """By default keys are of all tokens, and the mistake is not there."""

    def __init__(self, dim: int, num_heads: int = 4, sr_ratio: int = 1) -> None:
        super().__init__(dim, num_heads, sr_ratio)
        self.sr_ratio = sr_ratio

    def forward(self, x: Any, H: int, W: int) -> Any:
        if self.sr_ratio > 1:
            return super().forward(x, H, W)
        self.image = ""
        return super().forward(x, H, W)


@pytest.mark.nightly
def test_a_reduction_that_is_off_by_default_is_asked_for() -> None:
    verdict = verify(ReducedIfAsked, properties=("projections",), cases=5)
    subject: Any = verdict.report.target.function
    assert subject.guesses["sr_ratio"] == "2" and verdict.findings


class OfTwoFeatures(nn.Module):
    """A norm of two features gives ±1, whatever they are; its kernel takes the difference of two numbers that may nearly be the same."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(2), nn.Linear(2, 12), nn.Linear(4, 2)

    def forward(self, x: Any) -> Any:
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        return self.out((q @ k.mT * 0.5).softmax(-1) @ v)


def test_the_rounding_of_a_norm_of_two_features_is_allowed() -> None:
    assert not verify(OfTwoFeatures(), properties=("module_is_as_near_to_its_twin_as_rounding_explains",), cases=150).findings


class Folded(nn.Module):
    """An adapter that is folded into the weights in eval mode, where no gradient reaches it."""

    def __init__(self, d_model: int, r: int = 2) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)
        self.A, self.B = nn.Parameter(torch.randn(r, d_model)), nn.Parameter(torch.randn(d_model, r) * 0)

    def forward(self, x: Any) -> Any:
        q, k, v = self.qkv(x).chunk(3, -1)
        q = q + x @ self.A.mT @ self.B.mT if self.training else q
        return self.out((q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v)


class Forgotten(Folded):
    """One that serves in no mode."""

    def forward(self, x: Any) -> Any:
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.out((q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v)


class FoldedAndForgotten(Folded):
    """Both: what serves in train mode hides no parameter that serves in none."""

    def __init__(self, d_model: int, r: int = 2) -> None:
        super().__init__(d_model, r)
        self.lost = nn.Parameter(torch.randn(d_model))


def test_a_parameter_that_serves_in_train_mode_gets_its_gradient_there() -> None:
    named = ("module_gradients_reach_every_parameter",)
    assert not verify(Folded, properties=named, cases=10).findings
    assert verify(Forgotten, properties=named, cases=10).findings
    assert "lost" in str(verify(FoldedAndForgotten, properties=named, cases=10).findings[0].violation.says)
