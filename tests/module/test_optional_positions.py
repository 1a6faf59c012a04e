"""Positions that may be left out, and are added to what queries and keys are made of, as in DETR (Carion et al. 2020)."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from nightly import one_in
from torch import Tensor, nn
from torch.nn import functional as F

from properties import verify
from properties.engine.search.probe import make_target

OF_PROJECTIONS = "module_is_the_attention_of_its_projections"


class OfPixels(nn.Module):
    """An encoder's: (B, L, D) and positions (B, L, D)."""

    parts = "qk"

    def __init__(self, d_model: int, nhead: int) -> None:
        super().__init__()
        self.nhead = nhead
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, src: Tensor, pos: Tensor | None = None) -> Tensor:
        return self.attend(src, pos, src, pos)

    def attend(self, x: Tensor, pos: Tensor | None, memory: Tensor, beyond: Tensor | None) -> Tensor:
        tokens = {"q": (x, pos), "k": (memory, beyond), "v": (memory, beyond)}
        placed = {part: y if p is None or part not in self.parts else y + p for part, (y, p) in tokens.items()}
        layers = {"q": self.q_proj, "k": self.k_proj, "v": self.v_proj}
        q, k, v = (layers[part](y).unflatten(-1, (self.nhead, -1)).transpose(1, 2) for part, y in placed.items())
        return self.out_proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class OfObjects(OfPixels):
    """A decoder's, which sees a memory."""

    def forward(self, tgt: Tensor, memory: Tensor, pos: Tensor | None = None, query_pos: Tensor | None = None) -> Tensor:  # type: ignore[override]
        return self.attend(tgt, query_pos, memory, pos)


class Nowhere(OfPixels):
    """They serve something that no composition knows."""

    def forward(self, src: Tensor, pos: Tensor | None = None) -> Tensor:
        return super().forward(src) if pos is None else super().forward(src * pos.sigmoid())


@pytest.mark.parametrize(("cls", "names"), [(OfPixels, "pos"), (OfObjects, "pos, query_pos")])
def test_they_are_given_in_half_of_the_cases(cls: Any, names: str) -> None:
    target = make_target("mine", cls)
    assert target.learned["positions that may be given"] == f"{names}: added to what queries and keys are made of"
    assert not {"pos", "query_pos"} & set(target.untried) and not target.differs and verify(cls, cases=12, properties=("projections",)).ok


@pytest.mark.parametrize(("cls", "parts"), one_in(3, product([OfPixels, OfObjects], "qk")))  # two that have nothing in common
def test_where_they_are_added_wrongly_it_is_named(cls: Any, parts: str) -> None:
    wrong = type("Attention", (cls,), {"parts": parts})
    (finding,) = (
        finding for finding in verify(wrong, cases=12, properties=(OF_PROJECTIONS,)).findings if finding.prop.name == OF_PROJECTIONS
    )
    assert f"positions added to {dict(q='queries', k='keys')[parts]} alone" in finding.violation.says


@pytest.mark.parametrize("cls", [OfPixels, OfObjects])
def test_that_they_are_added_to_values_too_is_told(cls: Any) -> None:
    to_all = type("Attention", (cls,), {"parts": "qkv"})
    target = make_target("mine", to_all)
    assert target.differs["positions that may be given"].startswith("they are added to values, too")
    assert verify(to_all, cases=12, properties=(OF_PROJECTIONS,)).ok


def test_what_is_not_understood_is_never_given() -> None:
    target = make_target("mine", Nowhere)
    assert target.untried["pos"] == "optional, and never given" and "positions that may be given" not in target.learned
    assert verify(Nowhere, cases=6, properties=(OF_PROJECTIONS,)).ok


class Numbered(nn.Module):
    """What is told where tokens stand, and need not be: an embedding serves such calls alone, a norm of keys all."""

    normed = True

    def __init__(self, dim: int, n_heads: int) -> None:
        super().__init__()
        self.n_heads, d = n_heads, dim // n_heads
        self.q_norm, self.k_norm, self.pos_emb = nn.RMSNorm(d, eps=1e-6), nn.RMSNorm(d, eps=1e-6), nn.Embedding(128, dim)
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, x: Tensor, input_pos: Tensor | None = None) -> Tensor:
        x = x if input_pos is None else x + self.pos_emb(input_pos)
        q, k, v = (layer(x).unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for layer in (self.q_proj, self.k_proj, self.v_proj))
        q, k = self.q_norm(q), (self.k_norm if self.normed else self.q_norm)(k)
        return self.out_proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class DeadNorm(Numbered):
    normed = False


@pytest.mark.parametrize("cls", [Numbered, DeadNorm])
def test_positions_that_are_not_told_excuse_what_serves_positions(cls: Any) -> None:
    verdict = verify(cls, cases=6, properties=("module_gradients_reach_every_parameter",))
    assert bool(verdict.report.findings) is (cls is DeadNorm), verdict
