"""Attention in JAX by hand.

    Attention(Q, K, V) = softmax(Q Kᵀ / sqrt(d_k)) V                              (Vaswani et al. 2017, equation 1)

A row without a visible key is zero and sends no gradient back: what is masked out is replaced before it is divided, not after.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import Array

from .contract import check_attention, default_scale, supports


@supports(
    framework="jax",
    dtypes=["float64", "float32", "float16", "bfloat16"],
    arithmetic={"float64": "same", "float32": "same", "float16": "wide", "bfloat16": "wide"},
    masked_nan="leaks",  # a hidden key has weight 0, and 0 · NaN is NaN
)
def attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    attn_mask: Array | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Array:
    """softmax(scale · Q Kᵀ + bias) V"""
    group = check_attention(q, k, v, attn_mask, enable_gqa)
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not jnp.issubdtype(x.dtype, jnp.floating):
            raise ValueError(f"{name} must be floating-point, got {x.dtype}")
    wide = jnp.promote_types(q.dtype, jnp.float32)  # a float16 logit would overflow at 65504
    q, k, v, result = q.astype(wide), k.astype(wide), v.astype(wide), q.dtype
    k, v = jnp.repeat(k, group, axis=1), jnp.repeat(v, group, axis=1)  # (B, H, S, D), (B, H, S, Dv)
    logits = q @ k.swapaxes(-1, -2) * (default_scale(q.shape[-1]) if scale is None else scale)  # (B, H, L, S)
    visible, bias = visible_and_bias(attn_mask, is_causal, *logits.shape[-2:])
    if bias is not None:
        logits = logits + bias.astype(wide)
    if visible is not None:
        logits = jnp.where(visible, logits, -jnp.inf)
    largest = logits.max(axis=-1, keepdims=True, initial=-jnp.inf)  # (B, H, L, 1)
    exponentials = jnp.exp(logits - jnp.where(largest == -jnp.inf, 0, largest))  # in [0, 1]
    total = exponentials.sum(axis=-1, keepdims=True)
    weights = exponentials / jnp.where(total == 0, 1, total)  # a row that sees nothing: 0 / 1
    return (weights @ v).astype(result)  # (B, H, L, Dv)


def visible_and_bias(attn_mask: Array | None, is_causal: bool, queries: int, keys: int) -> tuple[Any, Array | None]:
    """One mask as two: which keys a query sees, None if all, and what is added to the logits of those."""
    causal = jnp.arange(keys) <= jnp.arange(queries)[:, None] if is_causal else None  # key j <= query i
    if attn_mask is None:
        return causal, None
    bias = None if attn_mask.dtype == bool else attn_mask
    seen = attn_mask if bias is None else bias != -jnp.inf
    return seen if causal is None else causal & seen, bias
