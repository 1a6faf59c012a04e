"""A flag of causality beside a mask: both hold, or the call is refused; a mask that the flag displaces hides nothing."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from properties.catalogue import PROPERTIES
from properties.engine.search.probe import make_target
from properties.engine.search.search import Plan, search


class Both(nn.Module):
    """x: (batch, length, features). attn_mask: (batch, 1, length, length), True is seen."""

    def __init__(self, dim: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads, self.qkv, self.proj = heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        attn_mask, is_causal = self.together(attn_mask, is_causal, x.shape[1])
        out = scaled_dot_product_attention(q, k, v, attn_mask=attn_mask, is_causal=is_causal)
        return self.proj(out.transpose(1, 2).flatten(2))

    def together(self, mask: Tensor | None, causal: bool, length: int) -> tuple[Tensor | None, bool]:
        if mask is not None and causal:
            return mask & torch.ones(length, length, dtype=torch.bool).tril(), False
        return mask, causal


class FlagDisplacesMask(Both):
    def together(self, mask: Tensor | None, causal: bool, length: int) -> tuple[Tensor | None, bool]:
        return (None if causal else mask), causal


class MaskDisplacesFlag(Both):
    def together(self, mask: Tensor | None, causal: bool, length: int) -> tuple[Tensor | None, bool]:
        return mask, causal and mask is None


class Refuses(Both):
    def together(self, mask: Tensor | None, causal: bool, length: int) -> tuple[Tensor | None, bool]:
        if causal and mask is not None:
            raise ValueError("a mask, or is_causal")
        return mask, causal


def found(thing: Any, name: str) -> Any:
    return search(make_target("mine", thing), PROPERTIES[name], Plan(examples=40, shrink=False)).finding


@pytest.mark.parametrize("right", [Both, Refuses])
def test_both_hold_or_are_refused(right: type[Both]) -> None:
    for name in ("module_hidden_tokens_are_ignored", "module_a_mask_of_all_seen_changes_nothing"):
        assert found(right, name) is None
    said = make_target("mine", right).learned.get("refuses", "")
    assert ("a mask, or is_causal" in said) == (right is Refuses)


@pytest.mark.parametrize(
    ("wrong", "killer"),
    [(FlagDisplacesMask, "module_hidden_tokens_are_ignored"), (MaskDisplacesFlag, "module_a_mask_leaves_causality")],
)
def test_one_in_place_of_the_other_is_refuted(wrong: type[Both], killer: str) -> None:
    assert found(wrong, killer) is not None
