"""``torch.nn.MultiheadAttention`` as the library ships it, with given weights, in three of its states.

``train``         training mode: the Python path; the weights are computed by softmax, or, when they are not asked
                  for, the output comes from scaled_dot_product_attention
``eval_weights``  eval mode without gradients, weights asked for
``eval_fast``     eval mode without gradients, weights not asked for

In both eval states the native fast path is taken when the library finds its conditions met: among others, query, key
and value are one and the same tensor, num_heads is even, and no mask is floating-point.

Only documented conventions are translated here: a bool attn_mask of the library is True where attention is *not*
allowed; a mask has rank 2, or 3 with batch and heads in one dimension; ``is_causal`` is a hint that comes with its
mask. All else, rows without a visible key included, is the library's own doing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from .contract import check_mask, supports

FACTS: dict[str, Any] = {
    "framework": "torch",
    "devices": ["cpu", "cuda"],
    "dtypes": ["float64", "float32", "float16", "bfloat16"],
    "arithmetic": {"float64": "same", "float32": "same", "float16": "eager", "bfloat16": "eager"},
    "masked_nan": "leaks",
}
NATIVE = FACTS["arithmetic"] | {"float16": "stored", "bfloat16": "stored"}  # _masked_softmax stores s − max, exp and their sum


@supports(**FACTS | {"empty_rows": "nan"})
def train(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    weights: Mapping[str, Tensor],
    *,
    num_heads: int,
    attn_mask: Tensor | None = None,
    key_padding_mask: Tensor | None = None,
    is_causal: bool = False,
    bias_k: Tensor | None = None,
    bias_v: Tensor | None = None,
    add_zero_attn: bool = False,
    need_weights: bool = True,
) -> tuple[Tensor, Tensor | None]:
    """nn.MultiheadAttention(embed, num_heads, dropout=0, batch_first=True).train()"""
    masks = library_masks(query, key, num_heads, attn_mask, key_padding_mask, is_causal)
    appended = {"bias_k": bias_k, "bias_v": bias_v, "add_zero_attn": add_zero_attn}
    return call(query, key, value, weights, num_heads, appended, need_weights=need_weights, training=True, **masks)


@supports(**FACTS | {"empty_rows": "nan", "arithmetic": NATIVE})
@torch.no_grad()
def eval_weights(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    weights: Mapping[str, Tensor],
    *,
    num_heads: int,
    attn_mask: Tensor | None = None,
    key_padding_mask: Tensor | None = None,
    is_causal: bool = False,
    bias_k: Tensor | None = None,
    bias_v: Tensor | None = None,
    add_zero_attn: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """nn.MultiheadAttention(…).eval() under no_grad, need_weights=True"""
    masks = library_masks(query, key, num_heads, attn_mask, key_padding_mask, is_causal)
    appended = {"bias_k": bias_k, "bias_v": bias_v, "add_zero_attn": add_zero_attn}
    return call(query, key, value, weights, num_heads, appended, need_weights=True, training=False, **masks)


@supports(**FACTS | {"returns_weights": False, "arithmetic": NATIVE})
@torch.no_grad()
def eval_fast(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    weights: Mapping[str, Tensor],
    *,
    num_heads: int,
    attn_mask: Tensor | None = None,
    key_padding_mask: Tensor | None = None,
    is_causal: bool = False,
    bias_k: Tensor | None = None,
    bias_v: Tensor | None = None,
    add_zero_attn: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """nn.MultiheadAttention(…).eval() under no_grad, need_weights=False: (out, None)"""
    masks = library_masks(query, key, num_heads, attn_mask, key_padding_mask, is_causal)
    appended = {"bias_k": bias_k, "bias_v": bias_v, "add_zero_attn": add_zero_attn}
    return call(query, key, value, weights, num_heads, appended, need_weights=False, training=False, **masks)


def call(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    weights: Mapping[str, Tensor],
    num_heads: int,
    appended: Mapping[str, Any],
    training: bool,
    **asked: Any,
) -> tuple[Tensor, Tensor | None]:
    """One call of the layer, built without storage, with the given weights in the place of its parameters."""
    has_bias = any(f"b_{name}" in weights for name in "qkvo")
    learned = {name: appended[name][None, None] for name in ("bias_k", "bias_v") if appended[name] is not None}  # (1, 1, E)
    more = {"add_bias_kv": bool(learned), "add_zero_attn": appended["add_zero_attn"]}
    layer = nn.MultiheadAttention(query.shape[-1], num_heads, bias=has_bias, batch_first=True, device="meta", **more)
    return functional_call(
        layer.train(training),
        parameters(weights, has_bias) | learned,
        (query, key, value),
        {"average_attn_weights": False, **asked},
    )


def parameters(weights: Mapping[str, Tensor], has_bias: bool) -> dict[str, Tensor]:
    """The contract's weights under the library's names: the three input projections are stacked."""
    named = {
        "in_proj_weight": torch.cat([weights["w_q"], weights["w_k"], weights["w_v"]]),  # (3E, E)
        "out_proj.weight": weights["w_o"],
    }
    if has_bias:
        zero = torch.zeros_like(weights["w_q"][0])
        named["in_proj_bias"] = torch.cat([weights.get(f"b_{name}", zero) for name in "qkv"])  # (3E,)
        named["out_proj.bias"] = weights.get("b_o", zero)
    return named


def library_masks(
    query: Tensor,
    key: Tensor,
    num_heads: int,
    attn_mask: Tensor | None,
    key_padding_mask: Tensor | None,
    is_causal: bool,
) -> dict[str, Any]:
    """The masks of the contract as the keyword arguments of nn.MultiheadAttention.

    The causal hint is given only where it is the whole truth: with no other mask beside it.
    """
    batch, queries, keys = query.shape[0], query.shape[1], key.shape[1]
    check_mask(attn_mask, (batch, num_heads, queries, keys))
    hidden = torch.ones(queries, keys, dtype=torch.bool, device=query.device).triu(1) if is_causal else None
    if attn_mask is None:
        mask = hidden
    elif attn_mask.dtype == torch.bool:
        mask = ~attn_mask if hidden is None else ~attn_mask | hidden
    else:
        mask = attn_mask if hidden is None else attn_mask.masked_fill(hidden, -torch.inf)
    if mask is not None and mask.ndim <= 2:
        mask = mask.expand(queries, keys)  # (L, S)
    elif mask is not None:
        mask = mask.expand(batch, num_heads, queries, keys).flatten(0, 1)  # (B·H, L, S)
    if key_padding_mask is not None and mask is not None and mask.dtype != torch.bool:  # both of one kind, as documented
        key_padding_mask = torch.zeros_like(key_padding_mask, dtype=mask.dtype).masked_fill(key_padding_mask, -torch.inf)
    return {"attn_mask": mask, "key_padding_mask": key_padding_mask, "is_causal": is_causal and attn_mask is None}
