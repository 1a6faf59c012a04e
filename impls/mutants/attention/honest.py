"""Attentions that compute in another way and are correct: nothing may flag them. Each declares what it truly rounds."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ..registry import WIDE, honest
from .blocked import State, backwards, guarded, merge_by_lse, split_kv, tiled
from .core import INF, attention, hide, mix, scores, softmax

LSE = {**WIDE, "float64": "same+lse", "float32": "same+lse"}
LEAKS = {"masked_nan": "leaks"}
# Where a whole tile is hidden, automatic differentiation multiplies the zero of the branch not taken by an infinity: the
# gradients are NaN. Such kernels need a backward pass by hand (see honest_gradients).
FORWARD = {"gradients": False}


@honest("the core itself")
def core(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options)


# --- another way to the logits ------------------------------------------------------------------------------------


@honest("the query is scaled, not the scores", source="facebookresearch/XLM#357", bug="H05")
def scaled_query(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, scores=lambda query, key, scale: (query * scale) @ key.mT)


@honest("the key is scaled, not the scores")
def scaled_key(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, scores=lambda query, key, scale: query @ (key * scale).mT)


@honest("the square root of the scale on both sides", source="torch, SDPA math")
def scaled_both(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def halves(query: Tensor, key: Tensor, scale: float) -> Tensor:
        root = math.sqrt(abs(scale))
        return (query * math.copysign(root, scale)) @ (key * root).mT

    return attention(q, k, v, **options, scores=halves)


@honest("einsum instead of matmul")
def einsum(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def product(query: Tensor, key: Tensor, scale: float) -> Tensor:
        return torch.einsum("bhld,bhsd->bhls", query, key) * scale

    return attention(q, k, v, **options, scores=product)


@honest("batch and heads merged into one dimension, then bmm")
def bmm(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def product(query: Tensor, key: Tensor, scale: float) -> Tensor:
        if not query.numel() or not key.numel():
            return scores(query, key, scale)
        flat = torch.bmm(query.reshape(-1, *query.shape[2:]), key.reshape(-1, *key.shape[2:]).mT) * scale
        return flat.unflatten(0, query.shape[:2])

    return attention(q, k, v, **options, scores=product)


@honest("products are summed feature by feature")
def one_feature_at_a_time(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def product(query: Tensor, key: Tensor, scale: float) -> Tensor:
        total = query.new_zeros((*query.shape[:-1], key.shape[-2]))
        for d in range(query.shape[-1]):
            total = total + query[..., d : d + 1] * key[..., d : d + 1].mT
        return total * scale

    return attention(q, k, v, **options, scores=product)


# --- another way to the weights -----------------------------------------------------------------------------------


@honest("kept logits get one added, hidden ones -inf", source="tinygrad/tinygrad#2425", bug="H01")
def plus_one_where_kept(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def kept(logit: Tensor, visible: Tensor | None, bias: Tensor | None) -> Tensor:
        return hide(logit, visible, bias) if visible is None else torch.where(visible, hide(logit, None, bias) + 1, -INF)

    return attention(q, k, v, **options, hide=kept)


@honest("hidden logits get -inf added: a NaN in a hidden key leaks", supports={**LEAKS, **FORWARD})
def minus_infinity_added(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def add(logit: Tensor, visible: Tensor | None, bias: Tensor | None) -> Tensor:
        logit = logit if bias is None else logit + bias
        return logit if visible is None else logit + torch.where(visible, 0.0, -INF).to(logit.dtype)

    return attention(q, k, v, **options, hide=add, mix=lambda weight, value, visible: weight @ value)


@honest("one bias plane for mask and causality together", supports=LEAKS)
def one_bias_plane(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def plane(logit: Tensor, visible: Tensor | None, bias: Tensor | None) -> Tensor:
        if visible is None:
            return hide(logit, None, bias)
        added = torch.zeros((), dtype=logit.dtype) if bias is None else bias
        return torch.where(visible, logit + added, -INF)

    return attention(q, k, v, **options, hide=plane, mix=lambda weight, value, visible: weight @ value)


def divided(weigh: Any) -> Any:
    """weigh(logit - max) / Σ, zeros in empty rows."""

    def normalised(logit: Tensor, visible: Tensor | None) -> Tensor:
        if not logit.shape[-1]:
            return logit
        largest = logit.amax(-1, keepdim=True)
        weight = weigh(logit - largest.masked_fill(largest == -INF, 0.0))
        total = weight.sum(-1, keepdim=True)
        return torch.where(total == 0, 0.0, weight / total)

    return normalised


@honest("exp and sum by hand")
def softmax_by_hand(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, softmax=divided(torch.exp))


@honest("powers of two: 2^((x - max) · log2 e)", source="Dao-AILab/flash-attention")
def powers_of_two(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, softmax=divided(lambda x: torch.exp2(x * math.log2(math.e))))


@honest("the row is shifted by its maximum plus one")
def shifted_one_further(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, softmax=divided(lambda x: torch.exp(x - 1)))


@honest("softmax of the visible, times the 0/1 mask, renormalised", source="abisee/pointer-generator#88", bug="H03")
def multiplied_and_renormalised(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def again(logit: Tensor, visible: Tensor | None) -> Tensor:
        weight = softmax(logit, visible)
        if visible is None:
            return weight
        weight = weight * visible
        total = weight.sum(-1, keepdim=True)
        return torch.where(total == 0, 0.0, weight / total)

    return attention(q, k, v, **options, softmax=again)


@honest("exp of log-softmax: normalised by the log-sum-exp", supports={"arithmetic": LSE})
def normalised_by_lse(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def logarithm(logit: Tensor, visible: Tensor | None) -> Tensor:
        weight = torch.exp(torch.log_softmax(logit, -1))
        return weight if visible is None else weight.masked_fill(~visible.any(-1, keepdim=True), 0.0)

    return attention(q, k, v, **options, softmax=logarithm)


@honest("normalised after the values are mixed, not before", supports=FORWARD)
def normalised_at_the_end(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, reduce=tiled(1 << 30))


# --- tiles and splits ---------------------------------------------------------------------------------------------


@honest("online softmax, one key at a time", supports=FORWARD)
def tiles_of_1(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, reduce=tiled(1))


@honest("online softmax in tiles of 3", supports=FORWARD)
def tiles_of_3(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, reduce=tiled(3))


@honest("online softmax in tiles of 16", supports=FORWARD)
def tiles_of_16(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, reduce=tiled(16))


@honest("online softmax in tiles of 64", supports=FORWARD)
def tiles_of_64(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, reduce=tiled(64))


@honest("online softmax in tiles of 16, the last one first", supports=FORWARD)
def tiles_backwards(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, reduce=tiled(16, tiles=backwards))


@honest(
    "tiles are shifted by the log-sum-exp so far, not by the maximum",
    source="Dao-AILab/flash-attention#1884",
    bug="H04",
    supports=FORWARD,
)
def shifted_by_lse(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def ahead(state: State, logit: Tensor, value: Tensor, visible: Tensor | None) -> State:
        largest, total, out = state
        so_far = torch.where(total == 0, largest, largest + torch.log(total))
        new = torch.maximum(so_far, logit.amax(-1, keepdim=True))
        rescale, weight = torch.exp(largest - guarded(new)), torch.exp(logit - guarded(new))
        return new, total * rescale + weight.sum(-1, keepdim=True), out * rescale + mix(weight, value, visible)

    return attention(q, k, v, **options, reduce=tiled(16, absorb=ahead))


@honest("an online softmax is rescaled only where the maximum has risen by more than 8 ln 2", source="FlashAttention-4", supports=FORWARD)
def rescaled_seldom(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def lazy(state: State, logit: Tensor, value: Tensor, visible: Tensor | None) -> State:
        largest, total, out = state
        top = logit.amax(-1, keepdim=True)
        new = torch.where(top > largest + 8 * math.log(2), top, largest)
        rescale, weight = torch.exp(largest - guarded(new)), torch.exp(logit - guarded(new))
        return new, total * rescale + weight.sum(-1, keepdim=True), out * rescale + mix(weight, value, visible)

    return attention(q, k, v, **options, reduce=tiled(16, absorb=lazy))


@honest("split-KV in parts of 16, merged and renormalised", supports=FORWARD)
def split_and_renormalised(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, reduce=split_kv)


@honest(
    "split-KV in parts of 16, merged by exp(lse - total lse)",
    supports={"arithmetic": LSE | {"float16": "wide+lse", "bfloat16": "wide+lse"}, **FORWARD},
)
def split_and_merged_by_lse(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, reduce=partial(split_kv, merge=merge_by_lse))


@honest("split-KV in parts of 3, merged and renormalised", supports=FORWARD)
def split_into_parts_of_3(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, reduce=partial(split_kv, block=3))


# --- another order of summation -----------------------------------------------------------------------------------


def summed(terms: list[Tensor]) -> Tensor:
    """Pairwise summation."""
    while len(terms) > 1:
        odd = terms[len(terms) // 2 * 2 :]
        terms = [a + b for a, b in zip(terms[::2], terms[1::2], strict=False)] + odd
    return terms[0]


@honest("values are added key after key", supports=LEAKS)
def one_value_at_a_time(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def serial(weight: Tensor, value: Tensor, visible: Tensor | None) -> Tensor:
        out = weight.new_zeros((*weight.shape[:-1], value.shape[-1]))
        for j in range(weight.shape[-1]):
            out = out + weight[..., j : j + 1] * value[..., j : j + 1, :]
        return out

    return attention(q, k, v, **options, mix=serial)


@honest("values are added in pairs, and pairs of pairs", supports=LEAKS)
def pairwise(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def tree(weight: Tensor, value: Tensor, visible: Tensor | None) -> Tensor:
        if not weight.shape[-1]:
            return weight @ value
        return summed([weight[..., j : j + 1] * value[..., j : j + 1, :] for j in range(weight.shape[-1])])

    return attention(q, k, v, **options, mix=tree)


@honest("the transpose of Vᵀ Pᵀ", supports=LEAKS)
def transposed_product(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, mix=lambda weight, value, visible: (value.mT @ weight.mT).mT.contiguous())


@honest("keys and values are read from the last to the first")
def keys_flipped(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def flipped(logit: Tensor, value: Tensor, visible: Tensor | None) -> Tensor:
        visible = None if visible is None else visible.expand(logit.shape).flip(-1)
        return mix(softmax(logit.flip(-1), visible), value.flip(-2), visible)

    return attention(q, k, v, **options, reduce=flipped)


@honest("keys are padded to a multiple of 16, and the padding is hidden")
def padded_to_16(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def padded(logit: Tensor, value: Tensor, visible: Tensor | None) -> Tensor:
        missing = -logit.shape[-1] % 16
        seen = torch.ones_like(logit, dtype=torch.bool) if visible is None else visible.expand(logit.shape)
        seen = functional.pad(seen, (0, missing), value=False)
        return mix(
            softmax(functional.pad(logit, (0, missing), value=-INF), seen),
            functional.pad(value, (0, 0, 0, missing)),
            seen,
        )

    return attention(q, k, v, **options, reduce=padded)
