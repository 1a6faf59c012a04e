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
bias_k=None, bias_v=None, add_zero_attn=False, need_weights=True) -> (out, attention weights or None)``

    query   (batch, queries, embed);  key, value (batch, keys, embed)
    weights maps w_q w_k w_v w_o to (embed, embed) and, where there is a bias, b_q b_k b_v b_o to (embed,);
            a projection is y = x Wᵀ + b, as in torch.nn.Linear
    key_padding_mask  (batch, keys), bool: True = padding, ignored
    bias_k, bias_v    (embed,): one more key and value, behind the projected ones; add_zero_attn appends one more of zeros. Every query
            sees them, whatever is masked. Not every layer takes them
    out     (batch, queries, embed);  attention weights (batch, num_heads, queries, keys and what is appended)

``encoder_layer(x, weights, *, num_heads, attn_mask=None, key_padding_mask=None, is_causal=False, norm_first=False,
activation="relu") -> x'`` and ``decoder_layer(x, memory, weights, *, …, memory_mask=None, memory_key_padding_mask=None) -> x'``

    x       (batch, length, embed);  memory (batch, keys, embed);  x' as x
    weights has the names of multihead for the self-attention, the same with the prefix cross_ for the attention to the memory,
            w_1 (hidden, embed), b_1, w_2 (embed, hidden), b_2 for the feed-forward part, and g_1 beta_1, g_2 beta_2, in a decoder
            g_3 beta_3, for the norms in their order; without biases b_* and beta_* are absent

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

``linear_attention(q, k, v, *, is_causal=False) -> (batch, heads, queries, value_dim)``

    q, k, v      as in attention, with as many heads; the weights are φ(q)·φ(k), φ(x) = elu(x) + 1, and sum to one over the keys of a row
    is_causal    key j is in the state of row i iff j <= i

``cached(batch, kv_heads, dim, capacity, *, num_heads=kv_heads, value_dim=dim, dtype, device, window_size=None, page_size=None,
fill=0.0, rotary_base=None)`` makes a cache for decoding; a class will do

    append(q, k, v, *, lengths=None, padding=None) -> out
                      the next n tokens of every sequence: q (batch, num_heads, n, dim), k (batch, kv_heads, n, dim),
                      v (batch, kv_heads, n, value_dim), out (batch, num_heads, n, value_dim). A token sees itself and all that
                      its own sequence was fed before, under the scale 1/sqrt(dim). Prefill is append of many, a step of one
    lengths (batch,)  so many of the n tokens are fed to each sequence, the rest is padding on the right; its rows of out may be
                      anything
    padding (batch,)  in the first chunk: so many of the n tokens of each sequence are padding on the left
    capacity          tokens that fit into a sequence, padding counted. More are refused with an error, or answered rightly
    window_size       a token sees itself and the window_size - 1 before it; older ones may be overwritten, and nothing is refused
    page_size         keys and values lie in pages of so many slots
    fill              what slots hold before they are used
    rotary_base       queries and keys are rotated by their position in the sequence, pairs as in ``rotary``
    fork() -> cache   an independent copy;  reset() forgets all;  truncate(length) forgets the tokens from that one on
    reorder(index)    sequence b goes on from where sequence index[b] was

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
    _require(kv_heads == heads or (kv_heads > 0 and heads % kv_heads == 0), f"{kv_heads} kv heads do not divide {heads}")
    check_mask(attn_mask, (batch, heads, queries, keys))
    return 1 if kv_heads == heads else heads // kv_heads


def check_multihead(query: Any, key: Any, value: Any, weights: Mapping[str, Any], num_heads: int, key_padding_mask: Any = None) -> None:
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


def check_block(
    x: Any, memory: Any, weights: Mapping[str, Any], num_heads: int, key_padding_mask: Any = None, memory_key_padding_mask: Any = None
) -> None:
    """Refuse shapes outside the contracts of encoder and decoder layers with ValueError."""
    for name, array, padding in (("x", x, key_padding_mask), ("memory", memory, memory_key_padding_mask)):
        if array is None:
            continue
        _require(len(array.shape) == 3, f"{name} must be (batch, length, embed), got {tuple(array.shape)}")
        _require(array.shape[0] == x.shape[0] and array.shape[2] == x.shape[2], f"x is {tuple(x.shape)}, {name} {tuple(array.shape)}")
        fits = padding is None or tuple(padding.shape) == tuple(array.shape[:2])
        _require(fits, f"the padding mask of {name} must be {tuple(array.shape[:2])}")
    embed, hidden = x.shape[2], weights["w_1"].shape[0]
    _require(num_heads > 0 and embed % num_heads == 0, f"{num_heads} heads do not divide an embedding of {embed}")
    for name, shape in (("w_1", (hidden, embed)), ("w_2", (embed, hidden)), ("g_1", (embed,)), ("g_2", (embed,))):
        _require(tuple(weights[name].shape) == shape, f"{name} must be {shape}")


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
    _require(cu_seqlens_q.shape == cu_seqlens_k.shape, "cu_seqlens_q and cu_seqlens_k speak of different numbers of sequences")
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
