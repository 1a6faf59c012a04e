"""The contracts that the modules of this folder meet, and the refusals they share.

``attention(q, k, v, *, attn_mask=None, is_causal=False, scale=None, enable_gqa=False) -> out``

    out = softmax(scale · Q Kᵀ + bias, over the visible keys) V          (Vaswani et al. 2017, equation 1)

    q     (batch, heads,    queries, dim)
    k     (batch, kv_heads, keys,    dim)
    v     (batch, kv_heads, keys,    value_dim)
    out   (batch, heads,    queries, value_dim), in q's dtype

    attn_mask   broadcasts to (batch, heads, queries, keys); bool: True = attend; float: added to the logits
    is_causal   key j is visible to query i iff j <= i (top-left); together with a mask, both hold
    scale       1/sqrt(dim) when None; every number given is honoured, 0 too
    enable_gqa  lets kv_heads divide heads: query head h reads key/value head h // (heads // kv_heads)

    A row with no visible key is zero.

``multihead(query, key, value, weights, *, num_heads, attn_mask=None, key_padding_mask=None, is_causal=False,
need_weights=True) -> (out, attention weights or None)``

    query   (batch, queries, embed);  key, value (batch, keys, embed)
    weights maps w_q w_k w_v w_o to (embed, embed) and, where there is a bias, b_q b_k b_v b_o to (embed,);
            a projection is y = x Wᵀ + b, as in torch.nn.Linear
    key_padding_mask  (batch, keys), bool: True = padding, ignored
    out     (batch, queries, embed);  attention weights (batch, num_heads, queries, keys)

``sinusoidal(length, dim, *, offset=0, base=10000.0, dtype) -> (length, dim)``, ``rotary(x, positions, *, base=10000.0,
rotary_dim=dim) -> x's shape``, ``learned(table, positions, *, offset=0) -> (length, dim)``, ``slopes(num_heads, *, dtype) ->
(num_heads,)`` and ``buckets(relative_position, *, bidirectional=True, num_buckets=32, max_distance=128) -> integers of the same
shape``

    dim               pair i of features turns by base^(-2i/dim) a position; features 2i and 2i+1 are a pair, or, where
                      ``supports`` says pairing = "half", features i and i + dim/2
    x                 (batch, heads, length, dim);  positions (length,) whole numbers
    rotary_dim        so many features rotate, counted from the first; the others pass
    relative_position key position - query position
    table             (rows, dim): the answer is table[positions + offset]; a position without a row raises IndexError

``packed(q, k, v, cu_seqlens_q, cu_seqlens_k, *, max_seqlen_q, max_seqlen_k, is_causal=False, scale=None, enable_gqa=False)
-> (total queries, heads, value_dim)``

    q, k, v      (total queries, heads, dim), (total keys, kv_heads, dim), (total keys, kv_heads, value_dim): sequences one after
                 the other, without padding; each is an attention of its own, with its own causal frontier
    cu_seqlens_* (sequences + 1,) whole numbers 0 = c_0 ≤ … ≤ total: sequence n is rows c_n to c_(n+1) − 1; it may be empty
    max_seqlen_* no smaller than the longest sequence

The functions below look at shapes alone, so they serve arrays of any framework.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import sqrt
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])


def supports(**facts: Any) -> Callable[[Function], Function]:
    """Attach facts about an implementation to it, as the plain dict ``function.supports``."""

    def attach(function: Function) -> Function:
        function.supports = facts  # type: ignore[attr-defined]
        return function

    return attach


def default_scale(dim: int) -> float:
    """1/sqrt(dim), which keeps the variance of a logit equal to that of one product (1 where there is no product)."""
    return 1 / sqrt(dim or 1)


def check_attention(q: Any, k: Any, v: Any, attn_mask: Any, enable_gqa: bool) -> int:
    """Refuse shapes outside the contract with ValueError; return how many query heads share one key/value head."""
    for name, array in (("q", q), ("k", k), ("v", v)):
        _require(len(array.shape) == 4, f"{name} must be (batch, heads, length, dim), got {tuple(array.shape)}")
    batch, heads, queries, dim = q.shape
    kv_batch, kv_heads, keys, k_dim = k.shape
    _require(kv_batch == batch and v.shape[0] == batch, f"batches differ: q {batch}, k {kv_batch}, v {v.shape[0]}")
    _require(k_dim == dim, f"q has dim {dim}, k has {k_dim}")
    _require(v.shape[1] == kv_heads, f"k has {kv_heads} heads, v has {v.shape[1]}")
    _require(v.shape[2] == keys, f"k has {keys} keys, v has {v.shape[2]}")
    _require(enable_gqa or kv_heads == heads, f"q has {heads} heads, k has {kv_heads}: pass enable_gqa=True to share")
    _require(
        kv_heads == heads or (kv_heads > 0 and heads % kv_heads == 0), f"{kv_heads} kv heads do not divide {heads}"
    )
    check_mask(attn_mask, (batch, heads, queries, keys))
    return 1 if kv_heads == heads else heads // kv_heads


def check_multihead(
    query: Any, key: Any, value: Any, weights: Mapping[str, Any], num_heads: int, key_padding_mask: Any = None
) -> None:
    """Refuse shapes outside the multi-head contract with ValueError."""
    for name, array in (("query", query), ("key", key), ("value", value)):
        _require(len(array.shape) == 3, f"{name} must be (batch, length, embed), got {tuple(array.shape)}")
    batch, _, embed = query.shape
    _require(num_heads > 0 and embed % num_heads == 0, f"{num_heads} heads do not divide an embedding of {embed}")
    _require(key.shape == value.shape, f"key is {tuple(key.shape)}, value {tuple(value.shape)}")
    _require(key.shape[0] == batch and key.shape[2] == embed, f"query {tuple(query.shape)}, key {tuple(key.shape)}")
    padding = key.shape[:2] if key_padding_mask is None else key_padding_mask.shape
    _require(padding == key.shape[:2], f"key_padding_mask is {tuple(padding)}, keys are {tuple(key.shape[:2])}")
    for name in ("w_q", "w_k", "w_v", "w_o"):
        _require(tuple(weights[name].shape) == (embed, embed), f"{name} must be ({embed}, {embed})")
    for name in ("b_q", "b_k", "b_v", "b_o"):
        bias = weights.get(name)
        _require(bias is None or tuple(bias.shape) == (embed,), f"{name} must be ({embed},)")


def check_packed(q: Any, k: Any, v: Any, cu_seqlens_q: Any, cu_seqlens_k: Any, enable_gqa: bool) -> int:
    """Refuse shapes outside the contract of packed sequences with ValueError; return how many query heads share a key head."""
    for name, array in (("q", q), ("k", k), ("v", v)):
        _require(len(array.shape) == 3, f"{name} must be (total, heads, dim), got {tuple(array.shape)}")
    (_, heads, dim), (keys, kv_heads, k_dim) = q.shape, k.shape
    _require(k_dim == dim and tuple(v.shape[:2]) == (keys, kv_heads), f"q, k, v are {tuple(q.shape)}, {tuple(k.shape)}, {tuple(v.shape)}")
    _require(enable_gqa or kv_heads == heads, f"q has {heads} heads, k has {kv_heads}: pass enable_gqa=True to share")
    _require(kv_heads == heads or (kv_heads > 0 and heads % kv_heads == 0), f"{kv_heads} kv heads do not divide {heads}")
    for name, cu, total in (("q", cu_seqlens_q, q.shape[0]), ("k", cu_seqlens_k, keys)):
        _require(len(cu.shape) == 1 and cu.shape[0] >= 1, f"cu_seqlens_{name} must be (sequences + 1,), got {tuple(cu.shape)}")
        _require(int(cu[0]) == 0 and int(cu[-1]) == total, f"cu_seqlens_{name} must run from 0 to {total}")
    _require(cu_seqlens_q.shape == cu_seqlens_k.shape, "cu_seqlens_q and cu_seqlens_k tell of different numbers of sequences")
    return 1 if kv_heads == heads else heads // kv_heads


def check_mask(mask: Any, logits_shape: tuple[int, ...]) -> None:
    """A mask may be smaller than the logits, never larger: it must not make the output grow."""
    if mask is None:
        return
    shape = tuple(mask.shape)
    fits = len(shape) <= len(logits_shape) and all(
        size in (1, full) for size, full in zip(reversed(shape), reversed(logits_shape), strict=False)
    )
    _require(fits, f"a mask of shape {shape} does not broadcast to the logits {logits_shape}")
    kind = str(mask.dtype)
    _require("bool" in kind or "float" in kind, f"a mask is bool (True = attend) or float (added), not {kind}")


def _require(condition: bool, otherwise: str) -> None:
    if not condition:
        raise ValueError(otherwise)
