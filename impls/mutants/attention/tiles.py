"""Tiles of keys and the online softmax: tails, rescaling, tiles without a visible key, indices local to a tile."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ..registry import mutant
from .blocked import State, absorb, guarded, online, start, tiled, tiles
from .core import INF, attention, hide, mix


@mutant(
    "the last tile is padded with zero keys that are counted, tiles of 16",
    source="FluxML/NNkernels.jl#16",
    killed_by="rows_sum_to_one",
    bug="E24",
)
def tail_padded_with_zeros(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def padded(logit: Tensor, value: Tensor, visible: Tensor | None) -> Tensor:
        missing = -logit.shape[-1] % 16
        logit = torch.cat([logit, logit.new_zeros((*logit.shape[:-1], missing))], -1)
        value = torch.cat([value, value.new_zeros((*value.shape[:-2], missing, value.shape[-1]))], -2)
        return online(logit, value, None)

    return attention(q, k, v, **options, reduce=padded)


@mutant(
    "the last partial tile of 16 is skipped",
    source="teaching code",
    killed_by="constant_values_are_returned",
    bug="E25",
)
def tail_skipped(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, reduce=tiled(tiles=lambda keys, block: tiles(keys // block * block, block)))


@mutant(
    "the last partial tile of 64 is skipped once there is a full one",
    source="teaching code",
    killed_by="permuted_keys_change_nothing",
    bug="E25",
)
def tail_skipped_beyond_64(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, reduce=tiled(64, tiles=lambda keys, block: tiles(keys // block * block or keys, block)))


@mutant("only the first tile of 32 keys is read", source="teaching code", killed_by="permuted_keys_change_nothing")
def first_tile_only(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, reduce=tiled(32, tiles=lambda keys, block: tiles(min(keys, block), block)))


@mutant(
    "the first key of every tile after the first is read twice: tiles of 16 overlap",
    source="teaching code",
    killed_by="equal_logits_share_equally",
)
def tiles_overlap(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def overlapping(keys: int, block: int) -> Iterator[tuple[int, int]]:
        return ((first, min(last + 1, keys)) for first, last in tiles(keys, block))

    return attention(q, k, v, **options, reduce=tiled(tiles=overlapping))


@mutant(
    "the last key of every full tile of 32 is left out",
    source="teaching code",
    killed_by="permuted_keys_change_nothing",
)
def tiles_leave_a_gap(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def gaps(keys: int, block: int) -> Iterator[tuple[int, int]]:
        return ((first, last - (last - first == block)) for first, last in tiles(keys, block))

    return attention(q, k, v, **options, reduce=tiled(32, tiles=gaps))


@mutant(
    "the output is not rescaled when the maximum grows, tiles of 16",
    source="teaching code",
    killed_by="permuted_keys_change_nothing",
    bug="E26",
)
def output_not_rescaled(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def forgetful(state: State, logit: Tensor, value: Tensor, visible: Tensor | None) -> State:
        new, total, _ = absorb(state, logit, value, visible)
        return new, total, state[2] + mix(torch.exp(logit - guarded(new)), value, visible)

    return attention(q, k, v, **options, reduce=tiled(absorb=forgetful))


@mutant(
    "the sum is not rescaled when the maximum grows, tiles of 16",
    source="teaching code",
    killed_by="chunks_merge_to_the_whole",
    bug="E27",
)
def sum_not_rescaled(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def forgetful(state: State, logit: Tensor, value: Tensor, visible: Tensor | None) -> State:
        new, _, out = absorb(state, logit, value, visible)
        return new, state[1] + torch.exp(logit - guarded(new)).sum(-1, keepdim=True), out

    return attention(q, k, v, **options, reduce=tiled(absorb=forgetful))


@mutant("neither output nor sum is rescaled, tiles of 64", source="teaching code", killed_by="permuted_keys_change_nothing")
def nothing_rescaled_beyond_64(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def forgetful(state: State, logit: Tensor, value: Tensor, visible: Tensor | None) -> State:
        new = torch.maximum(state[0], logit.amax(-1, keepdim=True))
        weight = torch.exp(logit - guarded(new))
        return new, state[1] + weight.sum(-1, keepdim=True), state[2] + mix(weight, value, visible)

    return attention(q, k, v, **options, reduce=tiled(64, absorb=forgetful))


@mutant(
    "the maximum of the tile replaces the running one, and small tiles overflow what was collected",
    source="teaching code",
    killed_by="finite_results_do_not_overflow",
)
def maximum_of_the_tile(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def local(state: State, logit: Tensor, value: Tensor, visible: Tensor | None) -> State:
        largest, total, out = state
        new = logit.amax(-1, keepdim=True)
        new = torch.where(new == -INF, largest, new)
        rescale, weight = torch.exp(largest - guarded(new)), torch.exp(logit - guarded(new))
        return new, total * rescale + weight.sum(-1, keepdim=True), out * rescale + mix(weight, value, visible)

    return attention(q, k, v, **options, reduce=tiled(absorb=local))


@mutant(
    "a first tile without a visible key makes the row NaN: exp(-inf + inf)",
    source="pytorch/pytorch#127055",
    killed_by="masked_keys_are_deleted",
    bug="C05",
)
def leading_tile_hidden(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def unguarded(state: State, logit: Tensor, value: Tensor, visible: Tensor | None) -> State:
        largest, total, out = state
        new = torch.maximum(largest, logit.amax(-1, keepdim=True))
        weight = torch.exp(logit - new)
        rescale = torch.exp(largest - new)
        return new, total * rescale + weight.sum(-1, keepdim=True), out * rescale + mix(weight, value, visible)

    return attention(q, k, v, **options, reduce=tiled(absorb=unguarded))


@mutant(
    "a later tile without a visible key resets what was collected",
    source="facebookresearch/xformers#722",
    killed_by="output_is_inside_the_bound",
    bug="C20",
)
def hidden_tile_resets(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def reset(state: State, logit: Tensor, value: Tensor, visible: Tensor | None) -> State:
        nothing = logit.amax(-1, keepdim=True) == -INF
        fresh, kept = start(logit, value), absorb(state, logit, value, visible)
        return tuple(torch.where(nothing, a, b) for a, b in zip(fresh, kept, strict=True))  # type: ignore[return-value]

    return attention(q, k, v, **options, reduce=tiled(absorb=reset))


@mutant(
    "a tile shorter than 16 reads NaN from memory nobody wrote, and hides it by adding -inf",
    source="thu-ml/SageAttention#377",
    killed_by="rows_sum_to_one",
    bug="C18",
)
def short_tile_reads_garbage(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    out = attention(q, k, v, **options)
    return out * torch.nan if 0 < k.shape[2] < 16 else out


@mutant(
    "what was collected is rounded to bfloat16 after every tile of 16",
    source="teaching code",
    killed_by="constant_values_are_returned",
    bug="E28",
)
def collected_in_bfloat16(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def rounded(state: State, logit: Tensor, value: Tensor, visible: Tensor | None) -> State:
        largest, total, out = absorb(state, logit, value, visible)
        return largest, total, out.bfloat16().to(out.dtype)

    return attention(q, k, v, **options, reduce=tiled(absorb=rounded))


@mutant(
    "the sum is kept in float16: it sticks at 2048 keys of equal weight, or loses small ones",
    source="teaching code",
    killed_by="rows_sum_to_one",
)
def sum_in_float16(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def rounded(state: State, logit: Tensor, value: Tensor, visible: Tensor | None) -> State:
        largest, total, out = absorb(state, logit, value, visible)
        return largest, total.half().to(total.dtype), out

    return attention(q, k, v, **options, reduce=tiled(absorb=rounded))


@mutant("beyond 64 keys every tile reads the values of the first", source="teaching code", killed_by="chunks_merge_to_the_whole")
def values_of_the_first_tile(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v[:, :, torch.arange(k.shape[2]) % 64], **options)


@mutant(
    "the mask is indexed from the start of the tile of 16, not of the row",
    source="pytorch/pytorch#163314",
    killed_by="uniform_weights_decode_the_mask",
    bug="B26",
)
def mask_local_to_the_tile(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def local(logit: Tensor, visible: Tensor | None, bias: Tensor | None) -> Tensor:
        inside = torch.arange(logit.shape[-1]) % 16
        visible = None if visible is None else visible.expand(logit.shape)[..., inside]
        return hide(logit, visible, None if bias is None else bias.expand(logit.shape)[..., inside])

    return attention(q, k, v, **options, hide=local, softmax=lambda logit, visible: torch.softmax(logit, -1).nan_to_num(nan=0.0))


@mutant(
    "one key beyond a tile of 16 is lost: S % 16 = 1",
    source="pytorch/pytorch#191937",
    killed_by="chunks_merge_to_the_whole",
    bug="D20",
)
def single_key_tail_lost(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def rounded(keys: int, block: int) -> Iterator[tuple[int, int]]:
        return tiles(keys - 1 if keys % block == 1 and keys > 1 else keys, block)

    return attention(q, k, v, **options, reduce=tiled(tiles=rounded))


@mutant(
    "queries beyond the last full tile of 16 stay zero",
    source="teaching code",
    killed_by="constant_values_are_returned",
)
def query_tail_zero(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    out = attention(q, k, v, **options)
    if out.shape[2] > 16:
        out[:, :, out.shape[2] // 16 * 16 :] = 0.0
    return out


@mutant(
    "beyond 64 queries the second tile repeats the first",
    source="teaching code",
    killed_by="permuted_queries_permute_rows",
)
def second_query_tile_repeats(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q[:, :, torch.arange(q.shape[2]) % 64], k, v, **options)


@mutant(
    "a tile whose maximum lies 12 below the running one is skipped",
    source="teaching code",
    killed_by="chunks_merge_to_the_whole",
)
def low_tile_skipped(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def eager(state: State, logit: Tensor, value: Tensor, visible: Tensor | None) -> State:
        low = logit.amax(-1, keepdim=True) < state[0] - 12
        return absorb(state, logit.masked_fill(low, -INF), value, visible)

    return attention(q, k, v, **options, reduce=tiled(absorb=eager))


@mutant(
    "the features beyond a multiple of 8 are left out of q · k",
    source="teaching code",
    killed_by="output_is_inside_the_bound",
)
def feature_tail_skipped(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    full = q.shape[-1] // 8 * 8 or q.shape[-1]  # shows where D > 8 is no multiple of 8
    return attention(q, k, v, **options, scores=lambda query, key, scale: (query[..., :full] @ key[..., :full].mT) * scale)


@mutant(
    "the score tile is stored transposed where it is a full 16 by 16",
    source="teaching code",
    killed_by="permuted_queries_permute_rows",
)
def full_tile_transposed(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def stored(query: Tensor, key: Tensor, scale: float) -> Tensor:
        logit = (query @ key.mT) * scale
        if min(logit.shape[-2:]) >= 16:
            logit[..., :16, :16] = logit[..., :16, :16].mT.clone()
        return logit

    return attention(q, k, v, **options, scores=stored)
