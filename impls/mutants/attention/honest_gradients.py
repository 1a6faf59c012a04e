"""Backward passes that compute in another way and are correct: nothing may flag them."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..registry import WIDE, honest
from .backward import Saved, attention, centre, log_sum_exp, logits, weigh
from .core import widen

FUSED = {"arithmetic": {**WIDE, "float16": "fused", "bfloat16": "fused"}}


@honest("a backward pass by hand, the weights again from the log-sum-exp")
def again_from_the_lse(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options)


@honest("δ from the stored output: rowsum(dO · out)", source="Dao-AILab/flash-attention", supports=FUSED)
def delta_from_the_output(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def centred(s: Saved, weight: Tensor, raw: Tensor, grad: Tensor) -> Tensor:
        return (grad * widen(s.out)).sum(-1, keepdim=True)

    return attention(q, k, v, **options, centre=centred)


@honest("powers of two in the backward pass: 2^((s − lse) · log2 e)", source="Dao-AILab/flash-attention", supports=FUSED)
def powers_of_two_backward(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def by_two(s: Saved) -> Tensor:
        logit = logits(s)
        return torch.exp2((logit - log_sum_exp(logit)) * math.log2(math.e))

    return attention(q, k, v, **options, weigh=by_two)


@honest("P · dP − P · δ, multiplied out")
def multiplied_out(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def apart(s: Saved, weight: Tensor, raw: Tensor, delta: Tensor) -> Tensor:
        return (weight * raw - weight * delta).masked_fill(weight == 0, 0.0)

    return attention(q, k, v, **options, differ=apart)


@honest("keys and values collect their gradients query after query", source="triton-lang/triton, tutorial 06")
def query_after_query(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def collect(left: Tensor, right: Tensor) -> Tensor:
        total = torch.zeros((*left.shape[:2], left.shape[3], right.shape[3]), dtype=left.dtype)
        for i in range(left.shape[2]):
            total = total + left[:, :, i, :, None] * right[:, :, i, None, :]
        return total

    return attention(
        q,
        k,
        v,
        **options,
        to_key=lambda s, change, raw: collect(change, s.q) * s.scale,
        to_value=lambda s, weight, grad: collect(weight, grad),
    )


@honest(
    "the scale goes to the logits' gradient, and weights and it are rounded to the type of the inputs",
    source="Dao-AILab/flash-attention",
    supports=FUSED,
)
def rounded_before_the_products(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def stored(x: Tensor, s: Saved) -> Tensor:
        return x.to(s.dtype).to(x.dtype)

    return attention(
        q,
        k,
        v,
        **options,
        to_query=lambda s, change, raw: stored(change * s.scale, s) @ s.k,
        to_key=lambda s, change, raw: stored(change * s.scale, s).mT @ s.q,
        to_value=lambda s, weight, grad: stored(weight, s).mT @ grad,
    )


@honest("keys from the last to the first", source="Dao-AILab/flash-attention")
def keys_backwards(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def flipped(s: Saved, weight: Tensor, raw: Tensor, grad: Tensor) -> Tensor:
        return centre(s, weight.flip(-1), raw.flip(-1), grad)

    return attention(
        q,
        k,
        v,
        **options,
        weigh=weigh,
        centre=flipped,
        to_query=lambda s, change, raw: (change.flip(-1) @ s.k.flip(2)) * s.scale,
    )
