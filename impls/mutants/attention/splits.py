"""Split-KV: partial results merged through log-sum-exp, and what is lost in the merge."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..registry import mutant
from .blocked import merge, part, split_kv
from .core import attention


def merged(rule: Any, block: int = 16) -> Any:
    """Split-KV with another rule of merging (parts, …) outputs and log-sum-exps."""
    return partial(split_kv, block=block, merge=rule)


@mutant("partial results are averaged without weights", source="teaching code", killed_by="permuted_keys_change_nothing")
def plain_average(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, reduce=merged(lambda outs, lses: outs.mean(0)))


@mutant(
    "partial results are weighted by how many keys they saw",
    source="teaching code",
    killed_by="permuted_keys_change_nothing",
)
def weighted_by_size(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def by_size(outs: Tensor, lses: Tensor) -> Tensor:
        size = torch.full((len(outs),), 16.0, dtype=outs.dtype)
        size[-1] = k.shape[2] - 16 * (len(outs) - 1)
        return ((size / size.sum()).view(-1, 1, 1, 1, 1) * outs).sum(0)

    return attention(q, k, v, **options, reduce=merged(by_size))


@mutant(
    "log-sum-exp in base 2 is merged as if it were natural",
    source="sgl-project/sglang#35045",
    killed_by="permuted_keys_change_nothing",
    bug="E06",
)
def wrong_base(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, reduce=merged(lambda outs, lses: merge(outs, lses / math.log(2))))


@mutant(
    "log-sum-exp without the maximum: log Σ exp(x - max)",
    source="Dao-AILab/flash-attention#404",
    killed_by="permuted_keys_change_nothing",
    bug="E07",
)
def maximum_forgotten(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def shifted(logit: Tensor, value: Tensor, visible: Tensor | None) -> tuple[Tensor, Tensor]:
        out, lse = part(logit, value, visible)
        return out, lse - logit.amax(-1, keepdim=True).nan_to_num(neginf=0.0)

    return attention(q, k, v, **options, reduce=partial(split_kv, part=shifted))


@mutant(
    "the maximum alone is merged, the sum forgotten",
    source="meta-pytorch/attention-gym#37",
    killed_by="equal_logits_share_equally",
    bug="E07",
)
def sum_forgotten(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def short(logit: Tensor, value: Tensor, visible: Tensor | None) -> tuple[Tensor, Tensor]:
        return part(logit, value, visible)[0], logit.amax(-1, keepdim=True)

    return attention(q, k, v, **options, reduce=partial(split_kv, part=short))


@mutant(
    "merging two parts without a visible key is NaN",
    source="flashinfer-ai/flashinfer#4051",
    killed_by="rows_without_keys_follow_the_convention",
    bug="C09",
)
def empty_parts(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def unguarded(outs: Tensor, lses: Tensor) -> Tensor:
        if len(outs) == 1:
            return outs[0]
        weight = torch.exp(lses - lses.amax(0))  # shows in a row without keys where S > 16
        return (weight * outs).sum(0) / weight.sum(0)

    return attention(q, k, v, **options, reduce=merged(unguarded))


@mutant(
    "a part without a visible key counts with log-sum-exp 0",
    source="vllm-project/vllm#39148",
    killed_by="masked_keys_are_deleted",
    bug="C09",
)
def empty_part_counts(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, reduce=merged(lambda outs, lses: merge(outs, lses.nan_to_num(neginf=0.0))))


@mutant("log-sum-exp is kept in bfloat16", source="teaching code", killed_by="permuted_keys_change_nothing")
def lse_in_bfloat16(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, reduce=merged(lambda outs, lses: merge(outs, lses.bfloat16().to(lses.dtype))))


@mutant(
    "only two parts are merged: a third tile of 16 is forgotten",
    source="teaching code",
    killed_by="chunks_merge_to_the_whole",
)
def third_part_forgotten(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, reduce=merged(lambda outs, lses: merge(outs[:2], lses[:2])))


@mutant(
    "weights exp(lse) without a shift: overflow for large logits, 0 / 0 for very negative ones",
    source="teaching code",
    killed_by="finite_results_do_not_overflow",
)
def unshifted(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def plain(outs: Tensor, lses: Tensor) -> Tensor:
        weight = torch.exp(lses)
        empty = (lses == -math.inf).all(0)
        return torch.where(empty, 0.0, (weight * outs).sum(0) / weight.sum(0))

    return attention(q, k, v, **options, reduce=merged(plain))
