"""The last bits of packed sequences."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..attention.core import INF
from ..attention.last_bits import last_bit, shared
from ..registry import MEMORY
from . import packs
from .packs import attention


@last_bit("packed", "the maximum is taken over the tile, also over the keys of other sequences in it", "sequences_do_not_see_each_other")
def pack_shares_its_maximum(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, **options: Any) -> Tensor:
    def shifted(logit: Tensor, everything: Tensor) -> Tensor:
        if not logit.numel():
            return packs.normalise(logit, everything)
        return shared(logit, logit != -INF, everything.amax(-1, keepdim=True))

    return attention(q, k, v, cu_seqlens_q, cu_seqlens_k, **options, normalise=shifted)


@last_bit("packed", "the rows of a sequence share one running maximum, later ones among them", "packed_future_tokens_are_ignored")
def rows_of_a_pack_share_their_maximum(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, **options: Any
) -> Tensor:
    def shifted(logit: Tensor, everything: Tensor) -> Tensor:
        if not logit.numel():
            return packs.normalise(logit, everything)
        return shared(logit, logit != -INF, logit.amax((-1, -2), keepdim=True))

    return attention(q, k, v, cu_seqlens_q, cu_seqlens_k, **options, normalise=shifted)


@last_bit("packed", "blocks of keys are added in the order in which they finish", "packed_output_has_the_right_form", "ROCm/triton#953")
def blocks_of_a_pack_race(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, **options: Any) -> Tensor:
    MEMORY["blocks_of_a_pack_race"] = turn = MEMORY.get("blocks_of_a_pack_race", 0) + 1

    def race(logit: Tensor, everything: Tensor) -> Tensor:
        return packs.normalise(logit, everything) if turn % 2 else torch.exp(torch.log(packs.normalise(logit, everything)))

    return attention(q, k, v, cu_seqlens_q, cu_seqlens_k, **options, normalise=race)


def dust(x: Tensor) -> Tensor:
    """e⁻⁷⁰⁰ times the sum of x: 0 in float32, not in float64."""
    return x.sum() * torch.exp(torch.tensor(-700.0, dtype=x.dtype))


@last_bit(
    "packed",
    "in the backward pass one mask for the whole pack hides other sequences at −700, not at −∞",
    "packed_gradients_stay_in_their_sequence",
)
def faint_gradients_across_sequences(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, cu_seqlens_q, cu_seqlens_k, **options) + dust(v - v.detach())


@last_bit("packed", "one mask for the whole pack hides other sequences at −700, not at −∞", "values_stay_in_their_sequence")
def faint_values_across_sequences(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, cu_seqlens_q, cu_seqlens_k, **options) + dust(v.detach())
