"""A gradient that is NaN for a row without keys is one finding, which hides no other."""

from __future__ import annotations

import math
from typing import Any

import pytest
from nightly import one_in

torch = pytest.importorskip("torch")

from properties import verify

ALONE = {"rows_without_keys_poison_no_gradient"}


def added(q: Any, k: Any, v: Any, attn_mask: Any = None, is_causal: bool = False) -> Any:
    """−inf is added, or filled in: the row of NaN is made one of 0 behind the softmax, through which no gradient should have gone."""
    s = q @ k.mT / max(q.shape[-1], 1) ** 0.5
    if is_causal:
        s = s.masked_fill(~s.new_ones(s.shape[-2:]).bool().tril(), -math.inf)
    if attn_mask is not None:
        s = torch.where(attn_mask, s, -math.inf) if attn_mask.dtype == torch.bool else s + attn_mask
    return torch.nan_to_num(s.softmax(-1), 0.0) @ v


def divided(q: Any, k: Any, v: Any, attn_mask: Any = None, is_causal: bool = False) -> Any:
    """The row is guarded behind a quotient of 0 and 0, whatever the kind of mask."""
    s = q @ k.mT / max(q.shape[-1], 1) ** 0.5
    if is_causal:
        s = s.masked_fill(~s.new_ones(s.shape[-2:]).bool().tril(), -math.inf)
    if attn_mask is not None:
        s = s.masked_fill(~attn_mask, -math.inf) if attn_mask.dtype == torch.bool else s + attn_mask
    high = s.detach().amax(-1, keepdim=True) if s.shape[-1] else 0.0
    w = (s - torch.where(high == -math.inf, 0.0, high) if s.shape[-1] else s).exp()
    d = w.sum(-1, keepdim=True)
    return torch.where(d == 0, 0, w / d) @ v


class Halved(torch.autograd.Function):
    """A number passes; half of its gradient does."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad / 2


def half_of_the_keys(q: Any, k: Any, v: Any, attn_mask: Any = None, is_causal: bool = False) -> Any:
    return divided(q, Halved.apply(k), v, attn_mask, is_causal)


def found(function: Any) -> set[str]:
    verdict = verify(function, properties=("gradients",), cases=25)
    return {finding.prop.name for finding in verdict.findings}


@pytest.mark.nightly
@pytest.mark.parametrize("function", one_in(2, [added, divided]))
def test_it_is_one_finding(function: Any) -> None:
    assert found(function) == ALONE


@pytest.mark.nightly
def test_another_mistake_is_found_beside_it() -> None:
    assert found(half_of_the_keys) >= {*ALONE, "gradients_are_inside_the_bound"}


def test_where_it_is_not_so_no_row_is_left_out() -> None:
    def right(q: Any, k: Any, v: Any, attn_mask: Any = None, is_causal: bool = False) -> Any:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask, is_causal=is_causal)

    report = verify(right, properties=("gradients",), cases=4).report
    assert not report.target.poisoned and not any("which are NaN" in why for o in report.outcomes.values() for why in o.notes.not_taken)
