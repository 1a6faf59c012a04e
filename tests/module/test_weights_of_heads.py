"""Projections that are parameters with an axis of heads, as einsum takes them: recognised in every order of axes, and wrong ones refuted."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from properties.catalogue import select
from properties.engine.search.probe import make_target
from properties.engine.search.run import verify_target
from properties.engine.search.search import Plan


class Attention(nn.Module):
    """Multi-head attention; ``of`` gives the axes of the weights of queries, keys, values and the output."""

    of = ("dhk", "dhk", "dhk", "hkd")
    names = ("w_q", "w_k", "w_v", "w_o")
    power = -0.5

    def __init__(self, d_model: int, n_heads: int) -> None:
        super().__init__()
        sizes = {"d": d_model, "h": n_heads, "k": d_model // n_heads}
        for name, axes in zip(self.names, self.of, strict=True):
            setattr(self, name, nn.Parameter(torch.randn([sizes[axis] for axis in axes]) * 0.2))

    def forward(self, x: Tensor) -> Tensor:
        w_q, w_k, w_v, w_o = (getattr(self, name) for name in self.names)
        of_q, of_k, of_v, of_o = self.of
        q = torch.einsum(f"bld,{of_q}->blhk", x, w_q)
        k, v = (torch.einsum(f"bsd,{axes}->bs{axes.replace('d', '')}", x, w) for w, axes in ((w_k, of_k), (w_v, of_v)))
        kept = "bs" + of_k.replace("d", "")
        weights = (torch.einsum(f"blhk,{kept}->bhls", q, k) * q.shape[-1] ** self.power).softmax(-1)
        return torch.einsum(f"bhls,bs{of_v.replace('d', '')},{of_o}->bld", weights, v, w_o)


class AsInThePaper(Attention):
    """Of Shazeer (2019), section 2."""

    of = ("hdk", "hdk", "hdk", "hdk")
    names = ("P_q", "P_k", "P_v", "P_o")


class OneOfKeys(AsInThePaper):
    """Section 3 there: all heads share keys and values."""

    of = ("hdk", "dk", "dk", "hdk")


class FeaturesFirst(Attention):
    of = ("hkd", "hkd", "hkd", "dhk")
    names = ("query_kernel", "key_kernel", "value_kernel", "output_kernel")


class Fused(nn.Module):
    """One parameter of all three."""

    power = -0.5

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.qkv = nn.Parameter(torch.randn(3, heads, dim, dim // heads) * 0.2)
        self.out = nn.Parameter(torch.randn(heads, dim // heads, dim) * 0.2)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = torch.einsum("bld,chdk->cbhlk", x, self.qkv)
        return torch.einsum("bhlk,hkd->bld", (q @ k.mT * q.shape[-1] ** self.power).softmax(-1) @ v, self.out)


class Unscaled(OneOfKeys):
    power = 0.0


class ByDim(Fused):
    power = -1.0


@pytest.mark.parametrize("thing", [Attention, AsInThePaper, OneOfKeys, FeaturesFirst, Fused])
def test_they_are_recognised(thing: Any) -> None:
    told = make_target("mine", thing).learned["structure"]
    assert told.endswith("scale 1/sqrt(head_dim): confirmed")
    assert "4 heads" + ", 1 of keys and values" * (thing is OneOfKeys) in told


@pytest.mark.parametrize("thing", [Unscaled, ByDim])
def test_a_wrong_scale_behind_them_is_found(thing: Any) -> None:
    target = make_target("mine", thing)
    assert target.faults or verify_target(target, select(("projections",)), Plan(examples=4, shrink=False)).findings
