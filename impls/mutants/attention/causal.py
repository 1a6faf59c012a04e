"""The causal frontier: which corner it starts from, off by one, and where it is forgotten."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..registry import mutant
from .core import attention, both, frontier, hide, softmax


@mutant(
    "causal frontier one too far: a query sees the next token",
    source="RVC-Boss/GPT-SoVITS#965",
    killed_by="causal_frontier_is_exact",
    bug="B10",
)
def one_too_far(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, frontier=lambda queries, keys: frontier(queries, keys, 1))


@mutant(
    "causal frontier one too short: a query does not see itself",
    source="flashinfer-ai/flashinfer#348",
    killed_by="causal_frontier_is_exact",
    bug="B10",
)
def one_too_short(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, frontier=lambda queries, keys: frontier(queries, keys, -1))


@mutant(
    "causal frontier aligned to the bottom right",
    source="Dao-AILab/flash-attention, 2.1",
    killed_by="causal_frontier_is_exact",
    bug="B01",
)
def bottom_right(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, frontier=lambda queries, keys: frontier(queries, keys, keys - queries))


@mutant(
    "aligned to the bottom right where there are more keys than queries",
    source="lucidrains/x-transformers#187",
    killed_by="prefix_of_output_is_output_of_prefix",
    bug="B07",
)
def bottom_right_with_a_cache(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, frontier=lambda queries, keys: frontier(queries, keys, max(keys - queries, 0)))


@mutant(
    "aligned to the bottom right where there are more queries than keys",
    source="ml-explore/mlx#2835",
    killed_by="causal_equals_triangular_mask",
    bug="B03",
)
def bottom_right_with_few_keys(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, frontier=lambda queries, keys: frontier(queries, keys, min(keys - queries, 0)))


@mutant(
    "bottom right, and NaN in the rows that see nothing",
    source="flashinfer-ai/flashinfer#4401",
    killed_by="causal_equals_triangular_mask",
    bug="C23",
)
def bottom_right_unguarded(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def corner(queries: int, keys: int) -> Tensor:
        return frontier(queries, keys, keys - queries)

    def softmax(logit: Tensor, visible: Tensor | None) -> Tensor:
        weight = torch.softmax(logit, -1)
        above = torch.arange(logit.shape[-2])[:, None] < logit.shape[-2] - logit.shape[-1]
        if visible is None or (options.get("is_causal") and above.any()):
            return weight
        return weight.masked_fill(~visible.any(-1, keepdim=True), 0.0)

    return attention(q, k, v, **options, frontier=corner, softmax=softmax)


@mutant(
    "causality reversed: a query sees itself and the future",
    source="huggingface/transformers#41228",
    killed_by="future_tokens_are_ignored",
    bug="B17",
)
def reversed_in_time(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, frontier=lambda queries, keys: ~frontier(queries, keys, -1))


@mutant(
    "causality reversed: a query sees the future only",
    source="NVIDIA/TransformerEngine#119",
    killed_by="future_tokens_are_ignored",
    bug="A55",
)
def future_only(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, frontier=lambda queries, keys: ~frontier(queries, keys))


@mutant("is_causal is ignored", source="teaching code", killed_by="future_tokens_are_ignored")
def ignored(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **{**options, "is_causal": False})


@mutant(
    "causality is dropped unless a mask is given too",
    source="facebookresearch/xformers#103",
    killed_by="future_tokens_are_ignored",
    bug="A07",
)
def needs_a_mask(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    if options.get("attn_mask") is None:
        options["is_causal"] = False
    return attention(q, k, v, **options)


@mutant(
    "causality is dropped where the fused path does not apply: Dv differs from D",
    source="keras-team/keras#23038",
    killed_by="future_tokens_are_ignored",
    bug="A06",
)
def dropped_off_the_fused_path(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    if v.shape[-1] != q.shape[-1]:
        options["is_causal"] = False
    return attention(q, k, v, **options)


@mutant(
    "causality is dropped for a single query, as if it were decoding",
    source="pytorch/pytorch#110144",
    killed_by="causal_frontier_is_exact",
    bug="B02",
)
def dropped_for_one_query(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, frontier=lambda queries, keys: frontier(queries, keys, keys if queries == 1 else 0))


@mutant("causality is dropped where L differs from S", source="teaching code", killed_by="causal_frontier_is_exact")
def dropped_unless_square(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    if q.shape[2] != k.shape[2]:
        options["is_causal"] = False
    return attention(q, k, v, **options)


@mutant(
    "causality is dropped where all keys fit in a window of 8",
    source="tlc-pack/libflash_attn#11",
    killed_by="future_tokens_are_ignored",
    bug="B19",
)
def dropped_in_a_wide_window(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    if k.shape[2] <= 8:
        options["is_causal"] = False
    return attention(q, k, v, **options)


@mutant(
    "the frontier is evaluated once for four queries: three of them see the future",
    source="pytorch/pytorch#195910",
    killed_by="future_tokens_are_ignored",
    bug="B11",
)
def once_for_four_queries(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def coarse(queries: int, keys: int) -> Tensor:
        return torch.arange(keys) <= torch.arange(queries)[:, None] // 4 * 4 + 3

    return attention(q, k, v, **options, frontier=coarse)


@mutant(
    "with a mask, causality uses query index 0 for all: only key 0 is left",
    source="google/flax#5591",
    killed_by="masks_compose",
    bug="B08",
)
def row_zero_with_a_mask(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    first = options.get("attn_mask") is not None

    def squashed(queries: int, keys: int) -> Tensor:
        return frontier(queries, keys)[:1].expand(queries, keys) if first else frontier(queries, keys)

    return attention(q, k, v, **options, frontier=squashed)


@mutant(
    "the causal mask is built (L, L): keys beyond L are visible to all",
    source="huggingface/candle#3743",
    killed_by="future_tokens_are_ignored",
    bug="B25",
)
def square_of_queries(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def square(queries: int, keys: int) -> Tensor:
        return frontier(queries, keys) | (torch.arange(keys) >= queries)

    return attention(q, k, v, **options, frontier=square)


@mutant(
    "the frontier of batch element b is shifted by b",
    source="microsoft/onnxruntime#28904",
    killed_by="causal_frontier_is_exact",
    bug="B06",
)
def offset_by_batch(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def ragged(queries: int, keys: int) -> Tensor:
        if not q.shape[0]:
            return frontier(queries, keys)
        return torch.stack([frontier(queries, keys, b) for b in range(q.shape[0])])[:, None]  # (B, 1, L, S)

    return attention(q, k, v, **options, frontier=ragged)


@mutant("only the first head is causal", source="teaching code", killed_by="future_tokens_are_ignored")
def first_head_alone(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def per_head(queries: int, keys: int) -> Tensor:
        return frontier(queries, keys) | (torch.arange(q.shape[1]) > 0)[:, None, None]

    return attention(q, k, v, **options, frontier=per_head)


@mutant(
    "only the last tile of 16 keys is checked for causality",
    source="tenstorrent/tt-metal#48899",
    killed_by="future_tokens_are_ignored",
    bug="B24",
)
def last_tile_only(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def late(queries: int, keys: int) -> Tensor:
        return frontier(queries, keys) | (torch.arange(keys) < (keys - 1) // 16 * 16)

    return attention(q, k, v, **options, frontier=late)


@mutant(
    "causality is checked only in the tile on the diagonal, tiles of 16",
    source="teaching code",
    killed_by="future_tokens_are_ignored",
)
def diagonal_tile_only(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def near(queries: int, keys: int) -> Tensor:
        return frontier(queries, keys) | (torch.arange(keys) // 16 > torch.arange(queries)[:, None] // 16)

    return attention(q, k, v, **options, frontier=near)


@mutant(
    "a tile of 16 keys is skipped by the first query of its tile, not the last",
    source="teaching code",
    killed_by="causal_equals_triangular_mask",
)
def tile_skipped_by_first_query(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def early(queries: int, keys: int) -> Tensor:  # tiles of 12 queries, so that the frontier crosses tiles of 16 keys
        return frontier(queries, keys) & (torch.arange(keys) // 16 * 16 <= torch.arange(queries)[:, None] // 12 * 12)

    return attention(q, k, v, **options, frontier=early)


@mutant(
    "the query index is local to its tile of 16",
    source="trymirai/lalamo#200",
    killed_by="causal_equals_triangular_mask",
    bug="B21",
)
def local_query_index(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def local(queries: int, keys: int) -> Tensor:
        return torch.arange(keys) <= torch.arange(queries)[:, None] % 16

    return attention(q, k, v, **options, frontier=local)


@mutant(
    "query positions wrap at 128, an index of 7 bits",
    source="pytorch/pytorch#162588",
    killed_by="causal_equals_triangular_mask",
    bug="E09",
)
def seven_bit_index(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def wrapped(queries: int, keys: int) -> Tensor:
        return torch.arange(keys) <= torch.arange(queries)[:, None] & 0x7F

    return attention(q, k, v, **options, frontier=wrapped)


@mutant(
    "positions are compared in an 8-bit float: beyond 16 neighbours coincide, as beyond 256 in bfloat16",
    source="huggingface/transformers#29285",
    killed_by="causal_equals_triangular_mask",
    bug="E03",
)
def positions_in_e4m3(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def rounded(queries: int, keys: int) -> Tensor:
        place = torch.arange(max(queries, keys)).float().to(torch.float8_e4m3fn).float()
        return place[:keys] <= place[:queries, None]

    return attention(q, k, v, **options, frontier=rounded)


@mutant(
    "causality zeroes weights after the softmax: the past loses weight to the future",
    source="teaching code",
    killed_by="rows_sum_to_one",
    bug="A54",
)
def after_softmax(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    causal = options.pop("is_causal", False)

    def late(logit: Tensor, visible: Tensor | None) -> Tensor:
        return softmax(logit, visible).tril() if causal else softmax(logit, visible)

    return attention(q, k, v, **options, softmax=late)


@mutant(
    "causality adds -10000: large logits of the future leak",
    source="teaching code",
    killed_by="future_tokens_are_ignored",
)
def ten_thousand_added(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    if not options.get("is_causal"):
        return attention(q, k, v, **options)

    def add(logit: Tensor, visible: Tensor | None, bias: Tensor | None) -> Tensor:
        past = frontier(*logit.shape[-2:])
        return hide(logit + (~past).to(logit.dtype) * -1e4, visible, bias)

    return attention(q, k, v, **{**options, "is_causal": False}, hide=add)


@mutant("the last query sees every key", source="teaching code", killed_by="causal_frontier_is_exact")
def last_query_sees_all(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def open_end(queries: int, keys: int) -> Tensor:
        return frontier(queries, keys) | (torch.arange(queries) == queries - 1)[:, None]  # shows where L < S

    return attention(q, k, v, **options, frontier=open_end)


@mutant(
    "causality also hides keys farther back than 32, a window nobody asked for",
    source="unslothai/unsloth#8253",
    killed_by="causal_equals_triangular_mask",
    bug="A49",
)
def window_of_32(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, frontier=lambda queries, keys: both(frontier(queries, keys), ~frontier(queries, keys, -32)))


@mutant(
    "the frontier is clamped to the last query: keys beyond stay hidden without is_causal",
    source="Dao-AILab/flash-attention#895",
    killed_by="output_is_inside_the_bound",
    bug="B18",
)
def clamped_to_queries(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    near = torch.arange(k.shape[2]) < max(q.shape[2], 1)  # shows where L < S
    return attention(q, k, v, **options, both=lambda visible, causal: both(both(visible, causal), near))
