"""Attention in PyTorch by hand: one head, several heads, and the function inside both.

    Attention(Q, K, V) = softmax(Q Kᵀ / sqrt(d_k)) V                              (Vaswani et al. 2017, equation 1)
    MultiHead(Q, K, V) = Concat(head_1, …, head_h) W_O                            (section 3.2.2)

Every module trains: gradients flow, and a row without a visible key sends none back instead of NaN.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from .contract import check_attention, check_mask, check_multihead, default_scale, supports

FACTS: dict[str, Any] = {
    "framework": "torch",
    "devices": ["cpu", "cuda"],
    "dtypes": ["float64", "float32", "float16", "bfloat16"],
    "arithmetic": {"float64": "same", "float32": "same", "float16": "wide", "bfloat16": "wide"},
    "masked_nan": "leaks",  # a hidden key has weight 0, and 0 · NaN is NaN
}


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    visible: Tensor | None = None,
    bias: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """softmax(scale · Q Kᵀ + bias) V and the softmax itself, over the visible keys; zero where no key is visible.

    q (…, queries, dim), k (…, keys, dim), v (…, keys, value_dim) → (…, queries, value_dim), (…, queries, keys)
    """
    wide = torch.promote_types(q.dtype, torch.float32)  # a float16 logit would overflow at 65504
    scale = default_scale(q.shape[-1]) if scale is None else scale
    logits = (q.to(wide) @ k.to(wide).transpose(-2, -1)) * scale  # (…, queries, keys)
    if bias is not None:
        logits = logits + bias
    if visible is None:
        weights = torch.softmax(logits, dim=-1)
    else:
        empty = ~visible.any(dim=-1, keepdim=True)  # (…, queries, 1)
        logits = logits.masked_fill(~visible, -torch.inf).masked_fill(empty, 0)  # no -inf - -inf, nor in its gradient
        weights = torch.softmax(logits, dim=-1).masked_fill(empty, 0)
    return (weights @ v.to(weights.dtype)).to(q.dtype), weights.to(q.dtype)


def visible_and_bias(
    attn_mask: Tensor | None, is_causal: bool, queries: int, keys: int, device: torch.device
) -> tuple[Tensor, Tensor | None]:
    """One mask as two: which keys a query sees, and what is added to the logits of those."""
    visible = torch.ones(queries, keys, dtype=torch.bool, device=device)
    if is_causal:
        visible = visible.tril()  # key j <= query i
    if attn_mask is None:
        return visible, None
    if attn_mask.dtype == torch.bool:
        return visible & attn_mask, None
    return visible & (attn_mask != -torch.inf), attn_mask


@supports(**FACTS)
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """softmax(scale · Q Kᵀ + bias) V"""
    group = check_attention(q, k, v, attn_mask, enable_gqa)
    if not (q.is_floating_point() and k.is_floating_point() and v.is_floating_point()):
        raise ValueError(f"q, k and v must be floating-point, got {q.dtype}, {k.dtype}, {v.dtype}")
    k = k.repeat_interleave(group, dim=1)  # (B, H, S, D): query head h reads h // group
    v = v.repeat_interleave(group, dim=1)  # (B, H, S, Dv)
    visible, bias = visible_and_bias(attn_mask, is_causal, q.shape[-2], k.shape[-2], q.device)
    return attend(q, k, v, visible, bias, scale)[0]  # (B, H, L, Dv)


class AttentionHead(nn.Module):
    """One head: softmax(Q Kᵀ / sqrt(head_dim)) V with Q = X W_Q, K = X W_K, V = X W_V."""

    def __init__(self, embed_dim: int, head_dim: int) -> None:
        super().__init__()
        self.q = nn.Linear(embed_dim, head_dim)
        self.k = nn.Linear(embed_dim, head_dim)
        self.v = nn.Linear(embed_dim, head_dim)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """x (batch, length, embed_dim) → (batch, length, head_dim); mask: 0 = hidden, broadcast to the weights"""
        q, k, v = self.q(x), self.k(x), self.v(x)  # (batch, length, head_dim) each
        return attend(q, k, v, None if mask is None else mask != 0)[0]


class SelfAttention(AttentionHead):
    """One head as wide as the embedding: three Linears, tokens in, tokens out."""

    def __init__(self, embed_size: int) -> None:
        super().__init__(embed_size, embed_size)


class MultiHeadAttention(nn.Module):
    """num_heads heads of d_model / num_heads features, concatenated and mixed by W_O."""

    def __init__(self, d_model: int, num_heads: int, bias: bool = True, device: Any = None) -> None:
        super().__init__()
        if d_model % num_heads:
            raise ValueError(f"{num_heads} heads do not divide a model of {d_model} features")
        self.num_heads = num_heads
        self.w_q = nn.Linear(d_model, d_model, bias=bias, device=device)
        self.w_k = nn.Linear(d_model, d_model, bias=bias, device=device)
        self.w_v = nn.Linear(d_model, d_model, bias=bias, device=device)
        self.w_o = nn.Linear(d_model, d_model, bias=bias, device=device)

    def split(self, x: Tensor) -> Tensor:
        """(batch, length, d_model) → (batch, heads, length, d_k): cut the features, then bring the heads forward"""
        batch, length, d_model = x.shape
        return x.view(batch, length, self.num_heads, d_model // self.num_heads).transpose(1, 2)

    def concatenate(self, heads: Tensor) -> Tensor:
        """(batch, heads, length, d_k) → (batch, length, d_model), the inverse of split"""
        return heads.transpose(1, 2).flatten(2)

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, bias: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Output (batch, queries, d_model) and weights (batch, heads, queries, keys).

        mask: 0 = hidden; bias: added to the logits; both broadcast to the weights
        """
        q = self.split(self.w_q(query))  # (batch, heads, queries, d_k)
        k = self.split(self.w_k(key))  # (batch, heads, keys, d_k)
        v = self.split(self.w_v(value))  # (batch, heads, keys, d_k)
        heads, weights = attend(q, k, v, None if mask is None else mask != 0, bias)
        return self.w_o(self.concatenate(heads)), weights


@supports(**FACTS | {"arithmetic": FACTS["arithmetic"] | {"float16": "eager", "bfloat16": "eager"}})
def multihead(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    weights: Mapping[str, Tensor],
    *,
    num_heads: int,
    attn_mask: Tensor | None = None,
    key_padding_mask: Tensor | None = None,
    is_causal: bool = False,
    need_weights: bool = True,
) -> tuple[Tensor, Tensor | None]:
    """MultiHeadAttention with these weights: Concat(head_1, …, head_h) W_O"""
    check_multihead(query, key, value, weights, num_heads, key_padding_mask)
    check_mask(attn_mask, (query.shape[0], num_heads, query.shape[1], key.shape[1]))
    visible, bias = visible_and_bias(attn_mask, is_causal, query.shape[1], key.shape[1], query.device)
    if key_padding_mask is not None:
        visible = visible & ~key_padding_mask[:, None, None, :]  # (B, 1, 1, S)
    layer = MultiHeadAttention(query.shape[-1], num_heads, bias=True, device="meta")  # a shape without storage
    out, attention_of = functional_call(layer, parameters(weights), (query, key, value, visible, bias))
    return out, attention_of if need_weights else None


def parameters(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The contract's weights under the names of MultiHeadAttention's parameters; an absent bias is zero."""
    named = {f"{w}.weight": weights[w] for w in ("w_q", "w_k", "w_v", "w_o")}
    for w in ("w_q", "w_k", "w_v", "w_o"):
        b = weights.get(w.replace("w_", "b_"))
        named[f"{w}.bias"] = torch.zeros_like(weights[w][0]) if b is None else b
    return named
