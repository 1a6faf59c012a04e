"""Train mode without dropout, whatever its probabilities are called: alone, and beside a reference."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import Tensor, nn
from torch.nn import functional as F

from properties.catalogue import PROPERTIES
from properties.engine.doors.cli import main
from properties.engine.search.probe import make_target
from properties.engine.search.search import Plan, search

TRAIN = PROPERTIES["module_train_is_eval_without_dropout"]


class Attention(nn.Module):
    """A probability that has no name of one."""

    def __init__(self, dim: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads, self.share, self.qkv, self.proj = heads, 0.1, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        out = F.scaled_dot_product_attention(q, k, v, dropout_p=self.share if self.training else 0.0)
        return self.ends(F.dropout(self.proj(out.transpose(1, 2).flatten(2)), self.share, self.training))

    def ends(self, x: Tensor) -> Tensor:
        return x


class LargerInTrainMode(Attention):
    def ends(self, x: Tensor) -> Tensor:
        return x * 1.01 if self.training else x


class OwnMask(Attention):
    """Nobody can tell what it would answer without its own mask of random numbers."""

    def ends(self, x: Tensor) -> Tensor:
        return x * (torch.rand_like(x) > 0.1) / 0.9 if self.training else x


@pytest.mark.parametrize(("kind", "found", "tried"), [(Attention, False, True), (LargerInTrainMode, True, True), (OwnMask, False, False)])
def test_alone(kind: Any, found: bool, tried: bool) -> None:
    outcome = search(make_target("it", kind), TRAIN, Plan(examples=12))
    assert bool(outcome.finding) == found and (outcome.cases > 0) == tried
    if not tried:
        assert any("something else than functions of dropout" in why for why in outcome.notes.not_taken)


MODEL = """
import torch
from torch import nn
from torch.nn import functional as F

class NAME(nn.Module):
    def __init__(self, dim, heads, share):
        super().__init__()
        self.heads, self.share, self.qkv, self.proj = heads, share, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        out = F.scaled_dot_product_attention(q, k, v, dropout_p=self.share if self.training else 0.0)
        return F.dropout(self.proj(out.transpose(1, 2).flatten(2)), self.share, self.training)ENDS

def get_init_inputs():
    return [32, 4, 0.2]

def get_inputs():
    return [torch.randn(2, 7, 32)]
"""
CANDIDATES = {
    "": "nothing found",
    " * (1.01 if self.training else 1.0)": "refuted",
    " + (x - x.detach()) * self.training": "refuted",  # a gradient, in train mode alone
}


@pytest.mark.parametrize("ends", CANDIDATES)
def test_beside_a_reference(ends: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("reference.py").write_text(MODEL.replace("NAME", "Model").replace("ENDS", ""))
    Path("candidate.py").write_text(MODEL.replace("NAME", "ModelNew").replace("ENDS", ends))
    main(["judge", "candidate.py", "--reference", "reference.py", "--cases", "6", "--round", "1", "-n", "1", "--json", "scores.jsonl"])
    score = json.loads(Path("scores.jsonl").read_text())
    assert score["verdict"] == CANDIDATES[ends], score
