"""Attention functions as strangers wrote them at first contact: right ones; with two underscores the same with one planted mistake."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

Tensor = torch.Tensor
INF = float("inf")


def attend(q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None = None, scale: float | None = None) -> Tensor:
    scores = q @ k.mT * (max(q.shape[-1], 1) ** -0.5 if scale is None else scale)
    return (scores if seen is None else scores.masked_fill(~seen, -INF)).softmax(-1) @ v


def distance(q: Tensor, k: Tensor) -> Tensor:
    """Of a query from a key, from the top left corner."""
    return torch.arange(q.shape[-2])[:, None] - torch.arange(k.shape[-2])[None]


# ---------------------------------------------------------------- what is always refused


def no_mask_yet(q: Any, k: Any, v: Any, attn_mask: Any = None, is_causal: bool = False, scale: Any = None) -> Any:
    if attn_mask is not None:
        raise NotImplementedError("attn_mask is not supported")
    return attend(q, k, v, distance(q, k) >= 0 if is_causal else None, scale)


def no_mask_yet__the_next_token_is_seen(q: Any, k: Any, v: Any, attn_mask: Any = None, is_causal: bool = False, scale: Any = None) -> Any:
    if attn_mask is not None:
        raise NotImplementedError("attn_mask is not supported")
    return attend(q, k, v, distance(q, k) >= -1 if is_causal else None, scale)


def no_causality_yet(q: Any, k: Any, v: Any, is_causal: bool = False, scale: Any = None) -> Any:
    if is_causal:
        raise NotImplementedError("is_causal is not supported")
    return attend(q, k, v, None, scale)


def no_causality_yet__scaled_twice(q: Any, k: Any, v: Any, is_causal: bool = False, scale: Any = None) -> Any:
    return no_causality_yet(q, k, v, is_causal, None if scale is None else scale**2)


def positive_scales(q: Any, k: Any, v: Any, scale: Any = None) -> Any:
    if scale is not None and scale <= 0:
        raise ValueError("scale must be positive")
    return attend(q, k, v, None, scale)


def positive_scales__wide_heads_lose_a_feature(q: Any, k: Any, v: Any, scale: Any = None) -> Any:
    wide = q.shape[-1] > 16
    return positive_scales(
        q[..., : 16 if wide else None], k[..., : 16 if wide else None], v, q.shape[-1] ** -0.5 if scale is None else scale
    )


def the_root_of_the_scale(q: Any, k: Any, v: Any, scale: Any = None) -> Any:
    root = math.sqrt(q.shape[-1] ** -0.5 if scale is None else scale)
    return attend(q * root, k * root, v, None, 1.0)


def the_root_of_the_scale__on_one_side(q: Any, k: Any, v: Any, scale: Any = None) -> Any:
    root = math.sqrt(q.shape[-1] ** -0.5 if scale is None else scale)
    return attend(q * root, k, v, None, 1.0)


def up_to_200_tokens(q: Any, k: Any, v: Any) -> Any:
    if max(q.shape[-2], k.shape[-2]) > 200:
        raise ValueError("sequence too long")
    return attend(q, k, v)


def up_to_200_tokens__from_130_on_one_is_lost(q: Any, k: Any, v: Any) -> Any:
    seen = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool)
    if k.shape[-2] >= 130:
        seen[:, -1] = False
    up_to_200_tokens(q, k, v)
    return attend(q, k, v, seen)


def heads_up_to_128(q: Any, k: Any, v: Any) -> Any:
    assert q.shape[-1] <= 128, "head dims up to 128"
    return attend(q, k, v)


def heads_up_to_128__of_80_scaled_as_64(q: Any, k: Any, v: Any) -> Any:
    assert q.shape[-1] <= 128, "head dims up to 128"
    return attend(q, k, v, None, 0.125 if q.shape[-1] == 80 else None)


def groups_of_powers_of_two(q: Any, k: Any, v: Any) -> Any:
    group = q.shape[1] // max(k.shape[1], 1)
    if group & (group - 1):
        raise ValueError("groups are powers of two")
    return attend(q, k.repeat_interleave(group, 1), v.repeat_interleave(group, 1))


def groups_of_powers_of_two__tiled(q: Any, k: Any, v: Any) -> Any:
    group = q.shape[1] // max(k.shape[1], 1)
    if group & (group - 1):
        raise ValueError("groups are powers of two")
    return attend(q, k.repeat(1, group, 1, 1), v.repeat(1, group, 1, 1))


# ---------------------------------------------------------------- names and axes


def values_first(values: Any, keys: Any, query: Any, mask: Any = None) -> Any:
    """(batch, length, heads, dim), with the mask before the scale."""
    scores = torch.einsum("nqhd,nkhd->nhqk", query, keys)
    if mask is not None:
        scores = scores.masked_fill(mask == 0, -1e20)
    weights = torch.softmax(scores / query.shape[-1] ** 0.5, dim=3)
    return torch.einsum("nhql,nlhd->nqhd", weights, values).flatten(2)


def values_first__softmax_over_queries(values: Any, keys: Any, query: Any, mask: Any = None) -> Any:
    scores = torch.einsum("nqhd,nkhd->nhqk", query, keys)
    if mask is not None:
        scores = scores.masked_fill(mask == 0, -1e20)
    weights = torch.softmax(scores / query.shape[-1] ** 0.5, dim=2)
    return torch.einsum("nhql,nlhd->nqhd", weights, values).flatten(2)


def features_before_tokens(q: Any, k: Any, v: Any) -> Any:
    scores = torch.einsum("bhdi,bhdj->bhij", q, k) * q.shape[2] ** -0.5
    return torch.einsum("bhij,bhdj->bhdi", scores.softmax(-1), v)


def features_before_tokens__softmax_over_queries(q: Any, k: Any, v: Any) -> Any:
    scores = torch.einsum("bhdi,bhdj->bhij", q, k) * q.shape[2] ** -0.5
    return torch.einsum("bhij,bhdj->bhdi", scores.softmax(-2), v)


# ---------------------------------------------------------------- masks


def one_minus_the_mask(q: Any, k: Any, v: Any, mask: Any = None) -> Any:
    """As in BERT: a row that sees no key answers as if it saw all."""
    scores = q @ k.mT * q.shape[-1] ** -0.5
    if mask is not None:
        scores = scores + (1.0 - mask.to(scores.dtype)) * -1e9
    return scores.softmax(-1) @ v


def one_minus_the_mask__of_the_first_sequence(q: Any, k: Any, v: Any, mask: Any = None) -> Any:
    return one_minus_the_mask(q, k, v, mask if mask is None or mask.ndim < 4 else mask[:1])


def by_kind_of_mask(q: Any, k: Any, v: Any, attn_mask: Any = None) -> Any:
    """Rows that see no key are 0 under a mask of truth, and NaN under one that is added."""
    scores = q @ k.mT * max(q.shape[-1], 1) ** -0.5
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        return scores.masked_fill(~attn_mask, -INF).softmax(-1).masked_fill(~attn_mask, 0) @ v
    return (scores if attn_mask is None else scores + attn_mask).softmax(-1) @ v


def by_kind_of_mask__a_column_too_many(q: Any, k: Any, v: Any, attn_mask: Any = None) -> Any:
    if attn_mask is not None and attn_mask.dtype != torch.bool and attn_mask.ndim == 4:
        attn_mask = attn_mask[:, :1]
    return by_kind_of_mask(q, k, v, attn_mask)


def padding_of_matrices(q: Any, k: Any, v: Any, mask: Any = None) -> Any:
    """(batch, length, dim), a mask (batch, keys)."""
    scores = torch.bmm(q, k.transpose(1, 2)) / math.sqrt(q.size(-1))
    if mask is not None:
        scores = scores.masked_fill(~mask.unsqueeze(1), -INF)
    return torch.bmm(scores.softmax(-1), v)


def padding_of_matrices__zero_instead_of_infinity(q: Any, k: Any, v: Any, mask: Any = None) -> Any:
    scores = torch.bmm(q, k.transpose(1, 2)) / math.sqrt(q.size(-1))
    if mask is not None:
        scores = scores.masked_fill(~mask.unsqueeze(1), 0.0)
    return torch.bmm(scores.softmax(-1), v)


def padding_and_a_bias(q: Any, k: Any, v: Any, mask: Any = None, attn_bias: Any = None) -> Any:
    """A mask (batch, keys), and a bias of all axes."""
    scores = q @ k.mT * q.shape[-1] ** -0.5
    if attn_bias is not None:
        scores = scores + attn_bias
    if mask is not None:
        scores = scores.masked_fill(~mask[:, None, None, :], -torch.finfo(scores.dtype).max)
    return scores.softmax(-1) @ v


def padding_and_a_bias__of_the_next_sequence(q: Any, k: Any, v: Any, mask: Any = None, attn_bias: Any = None) -> Any:
    return padding_and_a_bias(q, k, v, None if mask is None else mask.roll(1, 0), attn_bias)


# ---------------------------------------------------------------- windows of one number


def _around(q: Any, k: Any, v: Any, before: int, behind: int) -> Any:
    apart = distance(q, k)
    return attend(q, k, v, (apart <= before) & (apart >= -behind))


def as_many_on_each_side(q: Any, k: Any, v: Any, window: int) -> Any:
    return _around(q, k, v, window, window)


def as_many_on_each_side__one_fewer_ahead(q: Any, k: Any, v: Any, window: int) -> Any:
    return _around(q, k, v, window, window - 1)


def half_on_each_side(q: Any, k: Any, v: Any, window_size: int = 10**6) -> Any:
    return _around(q, k, v, window_size // 2, window_size // 2)


def half_on_each_side__one_more_of_long_ones(q: Any, k: Any, v: Any, window_size: int = 10**6) -> Any:
    return _around(q, k, v, window_size // 2 + (k.shape[-2] > 12), window_size // 2)


def a_window_where_causal(q: Any, k: Any, v: Any, causal: bool = False, window_size: Any = None) -> Any:
    apart, seen = distance(q, k), torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool)
    if causal:
        seen = (apart >= 0) & (apart < (window_size or apart.numel() + 1))
    return attend(q, k, v, seen)


def a_window_where_causal__one_too_wide(q: Any, k: Any, v: Any, causal: bool = False, window_size: Any = None) -> Any:
    apart, seen = distance(q, k), torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool)
    if causal:
        seen = (apart >= 0) & (apart < (window_size + (k.shape[-2] > 12) if window_size else apart.numel() + 1))
    return attend(q, k, v, seen)


# ---------------------------------------------------------------- what comes back


@dataclass
class Answer:
    attn_output: Any
    attentions: Any


def weights_in_a_dictionary(q: Any, k: Any, v: Any) -> Any:
    weights = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1)
    return {"context": weights @ v, "attention_probs": weights}


def weights_in_a_dictionary__over_queries(q: Any, k: Any, v: Any) -> Any:
    scores = q @ k.mT * q.shape[-1] ** -0.5
    return {"context": scores.softmax(-1) @ v, "attention_probs": scores.softmax(-2)}


def sums_in_a_dictionary(q: Any, k: Any, v: Any) -> Any:
    scores = q @ k.mT * q.shape[-1] ** -0.5
    return {"out": scores.softmax(-1) @ v, "lse": scores.logsumexp(-1)}


def sums_in_a_dictionary__without_a_logarithm(q: Any, k: Any, v: Any) -> Any:
    scores = q @ k.mT * q.shape[-1] ** -0.5
    return {"out": scores.softmax(-1) @ v, "lse": scores.exp().sum(-1)}


def weights_if_asked_for(query: Any, key: Any, value: Any, output_attentions: bool = False) -> Any:
    weights = (query @ key.mT * query.shape[-1] ** -0.5).softmax(-1)
    return (weights @ value, weights) if output_attentions else (weights @ value,)


def weights_if_asked_for__logits_instead(query: Any, key: Any, value: Any, output_attentions: bool = False) -> Any:
    scores = query @ key.mT * query.shape[-1] ** -0.5
    return (scores.softmax(-1) @ value, scores) if output_attentions else (scores.softmax(-1) @ value,)


# ---------------------------------------------------------------- what must be given, in what order


def _of_groups(Q: Any, K: Any, V: Any, sinks: Any, sm_scale: float, turned: bool = False) -> Any:
    length, heads, group, _ = Q.shape
    logits = torch.einsum("qhgd,khd->hgqk", Q, K) * sm_scale
    logits = logits.masked_fill(torch.ones(length, length, dtype=torch.bool).triu(1), -INF)
    first = sinks.reshape(group, heads).T if turned else sinks.reshape(heads, group)
    all_logits = torch.cat([logits, first[:, :, None, None].expand(*logits.shape[:3], 1)], -1)
    return torch.einsum("hgqk,khd->qhgd", all_logits.softmax(-1)[..., :-1], V).reshape(length, -1)


def sinks_to_groups(Q: Any, K: Any, V: Any, sinks: Any, sm_scale: float) -> Any:
    return _of_groups(Q, K, V, sinks, sm_scale)


def sinks_to_groups__of_other_heads(Q: Any, K: Any, V: Any, sinks: Any, sm_scale: float) -> Any:
    return _of_groups(Q, K, V, sinks, sm_scale, turned=True)


def _of_projections(query_proj: Any, key_proj: Any, value_proj: Any, attn_mask: Any, order: str) -> Any:
    batch, length, _, dim = query_proj.shape
    grouped = query_proj.reshape(batch, length, key_proj.shape[2], -1, dim) * dim**-0.5
    logits = torch.einsum("btkgd,bskd->btkgs", grouped, key_proj)
    logits = torch.where(attn_mask[:, :, None, None], logits, -2.38e38)
    return torch.einsum(f"btkgs,bskd->bt{order}d", logits.softmax(-1), value_proj).reshape(batch, length, -1)


def what_was_projected(query_proj: Any, key_proj: Any, value_proj: Any, attn_mask: Any) -> Any:
    """attn_mask: (batch, queries, keys)"""
    return _of_projections(query_proj, key_proj, value_proj, attn_mask, "kg")


def what_was_projected__heads_in_another_order(query_proj: Any, key_proj: Any, value_proj: Any, attn_mask: Any) -> Any:
    return _of_projections(query_proj, key_proj, value_proj, attn_mask, "gk")


def the_answer_first(o: Any, q: Any, k: Any, v: Any, causal: bool) -> None:
    o.copy_(attend(q, k, v, distance(q, k) >= 0 if causal else None))


def the_answer_first__one_too_far(o: Any, q: Any, k: Any, v: Any, causal: bool) -> None:
    o.copy_(attend(q, k, v, distance(q, k) >= -1 if causal else None))


def _as_in_c(out: Any, inp: Any, C: int, NH: int, scaled_by: int) -> None:
    q, k, v = (x.unflatten(-1, (NH, C // NH)).transpose(1, 2) for x in inp.split(C, -1))
    out.copy_(attend(q, k, v, distance(q, k) >= 0, scaled_by**-0.5).transpose(1, 2).flatten(2))


def as_in_c(out: Any, inp: Any, B: int, T: int, C: int, NH: int) -> None:
    _as_in_c(out, inp, C, NH, C // NH)


def as_in_c__scaled_by_the_width(out: Any, inp: Any, B: int, T: int, C: int, NH: int) -> None:
    _as_in_c(out, inp, C, NH, C)


# ---------------------------------------------------------------- a mask that is added, and one that hides


def _in_folds(q: Any, k: Any, v: Any, heads: int, key_padding_mask: Any, attn_mask: Any, lost: bool = False) -> Any:
    logits = torch.bmm(q, k.mT) * q.shape[-1] ** -0.5
    if attn_mask is not None:
        logits = logits + attn_mask
    if key_padding_mask is not None and not (lost and attn_mask is not None):
        logits = logits.masked_fill(key_padding_mask.bool().repeat_interleave(heads, 0)[:, None], -INF)
    return torch.bmm(logits.softmax(-1), v)


def two_masks_in_folds(q: Any, k: Any, v: Any, num_heads: int, key_padding_mask: Any = None, attn_mask: Any = None) -> Any:
    """attn_mask: (queries, keys), added to the scores

    key_padding_mask: (batch, keys), True at padding
    """
    return _in_folds(q, k, v, num_heads, key_padding_mask, attn_mask)


def two_masks_in_folds__one_is_lost(q: Any, k: Any, v: Any, num_heads: int, key_padding_mask: Any = None, attn_mask: Any = None) -> Any:
    """attn_mask: (queries, keys), added to the scores

    key_padding_mask: (batch, keys), True at padding
    """
    return _in_folds(q, k, v, num_heads, key_padding_mask, attn_mask, lost=True)


def two_masks_in_folds__which_nothing_documents(
    q: Any, k: Any, v: Any, num_heads: int, key_padding_mask: Any = None, attn_mask: Any = None
) -> Any:
    """PyTorch's names, under which a bool mask hides."""
    return _in_folds(q, k, v, num_heads, key_padding_mask, attn_mask)


# ---------------------------------------------------------------- a scale that is not that of a head


def _channels_first(qkv: Any, n_heads: int, of_keys: float) -> Any:
    """(batch, heads · 3 · dim, length), as of diffusion models."""
    batch, width, length = qkv.shape
    dim = width // (3 * n_heads)
    q, k, v = qkv.reshape(batch * n_heads, 3 * dim, length).split(dim, 1)
    logits = torch.einsum("bct,bcs->bts", q * dim**-0.25, k * dim**of_keys)
    return torch.einsum("bts,bcs->bct", logits.softmax(-1), v).reshape(batch, -1, length)


def channels_first(qkv: Any, n_heads: int) -> Any:
    return _channels_first(qkv, n_heads, -0.25)


def channels_first__keys_are_not_scaled(qkv: Any, n_heads: int) -> Any:
    return _channels_first(qkv, n_heads, 0.0)


def always_causal(q: Any, k: Any, v: Any) -> Any:
    return attend(q, k, v, distance(q, k) >= 0)


def always_causal__scaled_by_the_width(q: Any, k: Any, v: Any) -> Any:
    return attend(q, k, v, distance(q, k) >= 0, max(q.shape[1] * q.shape[3], 1) ** -0.5)


def a_scale_that_is_heeded(q: Any, k: Any, v: Any, scale: Any = None) -> Any:
    return attend(q, k, v, None, scale)


def a_scale_that_is_heeded__by_nobody(q: Any, k: Any, v: Any, scale: Any = None) -> Any:
    return attend(q, k, v)


def always_causal_with_slopes(q: Any, k: Any, v: Any, slopes: Any) -> Any:
    n = q.shape[2]
    apart = distance(q, k)
    logits = q @ k.mT * q.shape[-1] ** -0.5 - slopes[:, None, None] * apart
    assert k.shape[2] == n
    return logits.masked_fill(apart < 0, -INF).softmax(-1) @ v


def always_causal_with_slopes__turned(q: Any, k: Any, v: Any, slopes: Any) -> Any:
    return always_causal_with_slopes(q, k, v, -slopes)
