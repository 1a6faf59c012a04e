"""Heads and batch: which key head serves which query head, axes taken for each other, elements that see each other."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..registry import mutant
from .core import attention, repeat_heads


@mutant(
    "grouped heads are tiled instead of repeated: head h reads key head h mod Hkv",
    source="onnx/onnx#7274",
    killed_by="grouped_heads_equal_repeated_heads",
    bug="D06",
)
def tiled(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, repeat_heads=lambda x, heads: x.repeat(1, heads // max(x.shape[1], 1), 1, 1))


@mutant(
    "keys are repeated, values tiled over the group",
    source="apple/axlearn#842",
    killed_by="grouped_heads_equal_repeated_heads",
    bug="D06",
)
def values_tiled(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    seen: list[Tensor] = []

    def second_is_tiled(x: Tensor, heads: int) -> Tensor:
        seen.append(x)
        return x.repeat(1, heads // max(x.shape[1], 1), 1, 1) if len(seen) == 2 else repeat_heads(x, heads)

    return attention(q, k, v, **options, repeat_heads=second_is_tiled)


@mutant("every query head reads key head 0", source="vllm-project/vllm#7018", killed_by="heads_are_independent", bug="D31")
def first_key_head_for_all(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, repeat_heads=lambda x, heads: x[:, :1].expand(-1, heads, -1, -1))


@mutant("key heads in reverse order", source="teaching code", killed_by="heads_are_independent")
def reversed_key_heads(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, repeat_heads=lambda x, heads: repeat_heads(x.flip(1), heads))


@mutant(
    "enable_gqa changes the answer where it changes nothing: H = Hkv",
    source="teaching code",
    killed_by="grouped_heads_equal_repeated_heads",
)
def flag_shifts_heads(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    shift = int(bool(options.get("enable_gqa")) and q.shape[1] == k.shape[1])
    return attention(q, k, v, **options, repeat_heads=lambda x, heads: repeat_heads(x, heads).roll(shift, 1))


@mutant(
    "groups of three or more heads lose their last one to the next group",
    source="teaching code",
    killed_by="grouped_heads_equal_repeated_heads",
)
def groups_of_three(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def rounded(x: Tensor, heads: int) -> Tensor:
        group = heads // max(x.shape[1], 1)
        if group < 3:
            return repeat_heads(x, heads)
        return x[:, (torch.arange(heads) + 1) // group % x.shape[1]]

    return attention(q, k, v, **options, repeat_heads=rounded)


@mutant(
    "from the ninth on, batch elements read the keys of the first ones", source="teaching code", killed_by="batch_elements_are_independent"
)
def batches_of_eight(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k[torch.arange(k.shape[0]) % 8], v, **options)


@mutant("from the seventeenth on, key heads are the first ones again", source="teaching code", killed_by="heads_are_independent")
def sixteen_heads(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    served = torch.arange(k.shape[1]) % 16
    return attention(q, k[:, served], v[:, served], **options)


@mutant("H not a multiple of Hkv is accepted: h · Hkv // H", source="teaching code", killed_by="bad_shapes_raise")
def uneven_groups_accepted(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    heads, kv_heads = q.shape[1], k.shape[1]
    if kv_heads and heads % kv_heads and options.get("enable_gqa"):
        served = torch.arange(heads) * kv_heads // heads
        k, v = k[:, served], v[:, served]
    return attention(q, k, v, **options)


@mutant(
    "batch and key heads are swapped where B = Hkv",
    source="gazelle93/Transformer-Various-Positional-Encoding#1",
    killed_by="batch_elements_are_independent",
    bug="D03",
)
def batch_and_key_heads_swapped(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    if k.shape[0] == k.shape[1]:
        k, v = k.transpose(0, 1), v.transpose(0, 1)
    return attention(q, k, v, **options)


@mutant(
    "batch and heads are swapped in the output where B = H",
    source="gazelle93/Transformer-Various-Positional-Encoding#1",
    killed_by="batch_elements_are_independent",
    bug="D03",
)
def batch_and_heads_swapped_at_the_end(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    out = attention(q, k, v, **options)
    return out.transpose(0, 1).contiguous() if q.shape[0] == q.shape[1] else out


@mutant(
    "heads and positions are swapped where H = L: the layout is guessed",
    source="jax-ml/jax#35916",
    killed_by="heads_are_independent",
    bug="D32",
)
def heads_and_positions_swapped(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    if q.shape[1] == q.shape[2] and k.shape[1] == k.shape[2]:
        q, k, v = (x.transpose(1, 2).contiguous() for x in (q, k, v))
        return attention(q, k, v, **options).transpose(1, 2).contiguous()
    return attention(q, k, v, **options)


@mutant(
    "attention runs over the batch where B = L = S: batch_first is confused",
    source="aipixel/AEMatter#3",
    killed_by="batch_elements_are_independent",
    bug="D05",
)
def over_the_batch(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    if q.shape[0] == q.shape[2] == k.shape[2]:
        q, k, v = (x.transpose(0, 2) for x in (q, k, v))
        return attention(q, k, v, **options).transpose(0, 2).contiguous()
    return attention(q, k, v, **options)


@mutant(
    "keys are not transposed where L = S = D: Q K instead of Q Kᵀ",
    source="teaching code",
    killed_by="duplicated_keys_change_nothing",
    bug="G13",
)
def keys_not_transposed(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    if q.shape[2] == k.shape[2] == q.shape[3]:
        return attention(q, k, v, **options, scores=lambda query, key, scale: (query @ key) * scale)
    return attention(q, k, v, **options)


@mutant(
    "length and feature of the keys are swapped where S = D",
    source="teaching code",
    killed_by="permuted_keys_change_nothing",
)
def length_taken_for_dim(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    if k.shape[2] == k.shape[3] != q.shape[2]:
        k = k.mT
    return attention(q, k, v, **options)


@mutant(
    "a compiler takes a permuted Kᵀ for K where S = H",
    source="pytorch/pytorch#195320",
    killed_by="heads_are_independent",
    bug="D21",
)
def keys_and_heads_swapped(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    if k.shape[1] == k.shape[2] == q.shape[1]:
        k = k.transpose(1, 2)
    return attention(q, k, v, **options)


@mutant(
    "with a mask, all batch elements but the first come back zero",
    source="pytorch/pytorch#139462",
    killed_by="constant_values_are_returned",
    bug="D23",
)
def later_batches_zero(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    out = attention(q, k, v, **options)
    if options.get("attn_mask") is not None:
        out[1:] = 0.0
    return out


@mutant(
    "with a single query, every batch element uses the first one's query",
    source="ml-explore/mlx#3494",
    killed_by="permuted_batch_permutes_the_output",
    bug="D24",
)
def one_query_of_the_first_batch(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q[:1].expand(q.shape) if q.shape[2] == 1 else q, k, v, **options)


@mutant("the last head reads the values of the first", source="teaching code", killed_by="heads_are_independent")
def last_head_reads_the_first(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, torch.cat([v[:, :-1], v[:, :1]], 1) if v.shape[1] else v, **options)


@mutant(
    "the last batch element reads the keys of the first",
    source="teaching code",
    killed_by="batch_elements_are_independent",
)
def last_batch_reads_the_first(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, torch.cat([k[:-1], k[:1]]) if k.shape[0] else k, v, **options)


@mutant("heads come back in reverse order", source="teaching code", killed_by="permuted_heads_permute_the_output")
def output_heads_reversed(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options).flip(1)


@mutant("batch elements come back one place on", source="teaching code", killed_by="permuted_batch_permutes_the_output")
def output_batch_rolled(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options).roll(1, 0)


@mutant(
    "the odd batch elements are computed with the mean of the batch mixed in",
    source="teaching code",
    killed_by="batch_elements_are_independent",
)
def batch_mean_mixed_in(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    out = attention(q, k, v, **options)
    if len(out) > 1:
        out[1::2] += (0.01 * out.mean(0, keepdim=True)).to(out.dtype)
    return out


@mutant(
    "heads beyond the eighth are wrong: a register too few",
    source="teaching code",
    killed_by="permuted_heads_permute_the_output",
)
def ninth_head_wraps(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    out = attention(q, k, v, **options)
    return torch.cat([out[:, :8], out[:, : out.shape[1] - 8]], 1)[:, : out.shape[1]] if out.shape[1] > 8 else out
