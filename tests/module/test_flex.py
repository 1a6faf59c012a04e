"""Modules that attend by ``flex_attention``: what it would compile is followed step by step, and what it refuses on a CPU is told."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
flex = pytest.importorskip("torch.nn.attention.flex_attention")
from torch import Tensor, nn

from properties.catalogue import PROPERTIES, select
from properties.engine.frameworks.torch_modules import flex_stepwise
from properties.engine.search.probe import make_target
from properties.engine.search.run import verify_target
from properties.engine.search.search import Plan

assert PROPERTIES
CENTRAL = ("module_is_the_attention_of_its_projections", "module_future_tokens_are_ignored", "module_output_has_the_right_form")


class Attention(nn.Module):
    def __init__(self, dim: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads, self.qkv, self.proj = heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Any:
        return flex.flex_attention(q, k, v)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        return self.proj(self.attend(q, k, v).transpose(1, 2).flatten(2))


class Causal(Attention):
    ahead = 0

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Any:
        length, ahead = q.shape[2], self.ahead
        seen = flex.create_block_mask(lambda b, h, i, j: i + ahead >= j, None, None, length, length, device=q.device)
        return flex.flex_attention(q, k, v, block_mask=seen)


class OneTooFar(Causal):
    ahead = 1


class OtherScale(Attention):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Any:
        return flex.flex_attention(q, k, v, scale=1 / q.shape[-1])


@pytest.mark.parametrize("kind", [Attention, Causal])
def test_a_right_one_is_let_go(kind: Any) -> None:
    target = make_target(kind.__name__, kind)
    report = verify_target(target, select(CENTRAL), Plan(examples=6))
    assert not report.findings and report.outcomes[CENTRAL[0]].tried >= 6
    assert "sparse" not in target.learned and "scale 1/sqrt(head_dim): confirmed" in target.learned["structure"]
    assert target.learned["positions"].startswith("none" if kind is Attention else "it computes with arange")
    if not torch.cuda.is_available():
        assert target.learned["gradients"].startswith("refused: NotImplementedError: FlexAttention does not support backward on CPU")


@pytest.mark.parametrize(("kind", "refuted"), [(OneTooFar, CENTRAL[1]), (OtherScale, CENTRAL[0])])
def test_a_wrong_one_is_refuted(kind: Any, refuted: str) -> None:
    report = verify_target(make_target(kind.__name__, kind), select(CENTRAL), Plan(examples=12))
    assert [finding.prop.name for finding in report.findings] == [refuted]


class Raises(Attention):
    """It raises where gradients are recorded, and does not say that this is meant."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Any:
        if q.requires_grad:
            raise RuntimeError("a leaf that requires a gradient is written into")
        return nn.functional.scaled_dot_product_attention(q, k, v)


def test_what_raises_where_gradients_are_recorded_is_refuted() -> None:
    report = verify_target(make_target("Raises", Raises), select(CENTRAL), Plan(examples=6))
    assert [finding.prop.name for finding in report.findings] == [CENTRAL[2]]


def test_what_is_put_in_its_place_does_not_stay() -> None:
    before = dict(vars(flex))
    q = torch.randn(1, 2, 5, 4, dtype=torch.float64)
    with pytest.raises(ZeroDivisionError), flex_stepwise():
        torch.testing.assert_close(flex.flex_attention(q, q, q), nn.functional.scaled_dot_product_attention(q, q, q))
        raise ZeroDivisionError
    assert all(vars(flex)[name] is value for name, value in before.items())
