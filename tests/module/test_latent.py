"""Latent attention is recognised by its matrices, and mistakes in it are named: its scale, its shared key, the norm that is missing."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn

from properties import verify
from properties.engine.search.probe import make_target


class Latent(nn.Module):
    """Keys and values out of twelve features, a key of four that all heads share, queries out of sixteen, or straight from the tokens."""

    scale_of = "all"
    turned = "qk"
    narrow = False

    def __init__(self, hidden_size: int, num_heads: int = 4) -> None:
        super().__init__()
        self.num_heads, self.rank, self.rope, self.nope = num_heads, 12, 4, hidden_size // num_heads
        per_head = self.rope + self.nope
        if self.narrow:
            self.q_a_proj, self.q_a_layernorm = nn.Linear(hidden_size, 16, bias=False), nn.RMSNorm(16, eps=1e-6)
            self.q_b_proj = nn.Linear(16, num_heads * per_head, bias=False)
        else:
            self.q_proj = nn.Linear(hidden_size, num_heads * per_head, bias=False)
        self.kv_a_proj_with_mqa = nn.Linear(hidden_size, self.rank + self.rope, bias=False)
        self.kv_a_layernorm = nn.RMSNorm(self.rank, eps=1e-6)
        self.kv_b_proj = nn.Linear(self.rank, num_heads * 2 * self.nope, bias=False)
        self.o_proj = nn.Linear(num_heads * self.nope, hidden_size, bias=False)
        self.softmax_scale = {"all": per_head, "alone": self.nope}[self.scale_of] ** -0.5

    def turn(self, x: Any) -> Any:
        """(batch, heads, length, features), halves with halves."""
        n = x.shape[-1]
        angles = torch.arange(x.shape[2], dtype=x.dtype)[:, None] * 10000.0 ** (-torch.arange(0, n, 2, dtype=x.dtype) / n)
        a, b = x.chunk(2, -1)
        return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], -1)

    def forward(self, x: Any) -> Any:
        b, n, _ = x.shape
        q = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x))) if self.narrow else self.q_proj(x)
        q_nope, q_rope = q.view(b, n, self.num_heads, -1).transpose(1, 2).split([self.nope, self.rope], -1)
        low, shared = self.kv_a_proj_with_mqa(x).split([self.rank, self.rope], -1)
        k_nope, v = self.kv_b_proj(self.kv_a_layernorm(low)).view(b, n, self.num_heads, -1).transpose(1, 2).chunk(2, -1)
        shared = self.turn(shared[:, None]) if "k" in self.turned else shared[:, None]
        q, k = torch.cat([q_nope, self.turn(q_rope)], -1), torch.cat([k_nope, shared.expand(-1, self.num_heads, -1, -1)], -1)
        s = (q @ k.mT * self.softmax_scale).masked_fill(~torch.ones(n, n).bool().tril(), -torch.inf)
        return self.o_proj((s.softmax(-1) @ v).transpose(1, 2).reshape(b, n, -1))


class Narrow(Latent):
    narrow = True


class ScaledByAPart(Latent):
    scale_of = "alone"


class KeyNotTurned(Latent):
    turned = "q"


@pytest.mark.parametrize("module", [Latent, Narrow])
def test_it_is_recognised(module: type) -> None:
    subject: Any = make_target(module.__name__, module).function
    assert subject.structure is not None and subject.structure.latent is not None and not subject.structure.mistakes
    assert not verify(module, properties=("projections",), cases=5).findings


@pytest.mark.parametrize(("module", "said"), [(ScaledByAPart, "logits are scaled by"), (KeyNotTurned, "queries alone are turned")])
def test_a_mistake_is_named(module: type, said: str) -> None:
    verdict = verify(module, properties=("projections",), cases=10)
    assert [f.prop.name for f in verdict.findings] == ["module_is_the_attention_of_its_projections"]
    assert said in str(verdict.findings[0].violation.says)
