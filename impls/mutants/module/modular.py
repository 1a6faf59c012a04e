"""The honest module that the mistakes of this chapter change, a step at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout

from ..registry import Function, mutant


def wrong(mistake: str, killed_by: str, source: str = "teaching code", bug: str | None = None) -> Callable[[Function], Function]:
    """Register a class as wrong on purpose."""
    return mutant(mistake, source=source, killed_by=killed_by, contract="module", bug=bug)


class Attention(nn.Module):
    """Self-attention, or cross-attention where a context is given; every step is a method.

    forward(x (B, L, D), context (B, S, D), mask (B, S) True = seen, is_causal) → (B, L, D)
    """

    def __init__(self, d_model: int, num_heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.num_heads, self.head_dim, self.dropout = num_heads, d_model // num_heads, dropout
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, x: Tensor, context: Tensor | None = None, mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        return self.attend(x, x if context is None else context, mask, is_causal)

    def attend(self, x: Tensor, memory: Tensor, mask: Tensor | None, is_causal: bool) -> Tensor:
        q, k, v = self.project(x, memory)
        q, k, v = self.split(q), self.split(k), self.split(v)  # (B, H, L, d)
        logits = self.logits(q, k)
        causal = self.frontier(logits) if is_causal else None
        weights = self.weigh(self.hide(logits, mask, causal))
        return self.finish(self.merge(self.mix(self.drop(weights), v)))

    def project(self, x: Tensor, memory: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.q_proj(x), self.k_proj(memory), self.v_proj(memory)

    def split(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], x.shape[1], self.num_heads, self.head_dim).transpose(1, 2)

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.transpose(-2, -1) * self.head_dim**-0.5

    def frontier(self, logits: Tensor) -> Tensor:
        return torch.ones(logits.shape[-2:], dtype=torch.bool, device=logits.device).tril()

    def hide(self, logits: Tensor, mask: Tensor | None, causal: Tensor | None) -> Tensor:
        if mask is not None:
            logits = logits.masked_fill(~mask[:, None, None], float("-inf"))
        return logits if causal is None else logits.masked_fill(~causal, float("-inf"))

    def weigh(self, logits: Tensor) -> Tensor:
        return logits.softmax(-1)

    def drop(self, weights: Tensor) -> Tensor:
        return dropout(weights, self.dropout, self.training)

    def mix(self, weights: Tensor, v: Tensor) -> Tensor:
        return weights @ v

    def merge(self, out: Tensor) -> Tensor:
        return out.transpose(1, 2).flatten(2)

    def finish(self, out: Tensor) -> Any:
        return self.out_proj(out)
