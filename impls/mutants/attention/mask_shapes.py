"""Masks that reach the wrong batch element, head, query or key: broadcasting, rank, reshape and strides of the mask."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..registry import mutant
from .core import attention, read_mask


def four(mask: Tensor) -> Tensor:
    """The mask with leading dimensions of size 1, up to rank 4."""
    return mask.reshape((1,) * (4 - mask.ndim) + tuple(mask.shape))


@mutant(
    "a mask of heads is cut to the first head",
    source="pytorch/pytorch#97409",
    killed_by="masks_stay_with_their_batch_and_head",
    bug="A04",
)
def first_head_for_all(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, **options: Any) -> Tensor:
    return attention(q, k, v, **options, attn_mask=None if attn_mask is None else four(attn_mask)[:, :1])


@mutant(
    "the mask of batch element 0 serves all",
    source="teaching code",
    killed_by="masks_stay_with_their_batch_and_head",
    bug="A53",
)
def first_batch_for_all(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, **options: Any) -> Tensor:
    return attention(q, k, v, **options, attn_mask=None if attn_mask is None else four(attn_mask)[:1])


@mutant(
    "offset of a mask without heads is wrong: every batch element reads the first one's",
    source="pytorch/pytorch#184180",
    killed_by="masks_stay_with_their_batch_and_head",
    bug="A46",
)
def first_batch_without_heads(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, **options: Any) -> Tensor:
    if attn_mask is not None and attn_mask.ndim == 4 and attn_mask.shape[1] == 1 and q.shape[1] > 1:
        attn_mask = attn_mask[:1]
    return attention(q, k, v, **options, attn_mask=attn_mask)


@mutant(
    "a mask of one row per key is put on the query axis",
    source="hyunwoongko/transformer#40",
    killed_by="masks_broadcast",
    bug="A13",
)
def keys_put_on_queries(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, **options: Any) -> Tensor:
    if attn_mask is not None and attn_mask.ndim >= 2 and attn_mask.shape[-2] == 1 and q.shape[2] == k.shape[2]:
        attn_mask = attn_mask.mT  # shows where L = S
    return attention(q, k, v, **options, attn_mask=attn_mask)


@mutant(
    "a vector over keys is unsqueezed for rank 3 and hides queries",
    source="tensorflow/tensorflow#60626",
    killed_by="masks_broadcast",
    bug="A12",
)
def vector_put_on_queries(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, **options: Any) -> Tensor:
    if attn_mask is not None and attn_mask.ndim == 1 and q.shape[2] == k.shape[2]:
        attn_mask = attn_mask[:, None]  # shows where L = S
    return attention(q, k, v, **options, attn_mask=attn_mask)


@mutant(
    "mask repeated over heads in the wrong order: one sample gets another's",
    source="lsdefine/attention-is-all-you-need-keras#36",
    killed_by="masks_stay_with_their_batch_and_head",
    bug="A14",
)
def repeated_in_head_major_order(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, **options: Any) -> Tensor:
    batch, heads = q.shape[:2]
    if attn_mask is not None and attn_mask.ndim == 4 and attn_mask.shape[:2] == (batch, 1):
        attn_mask = attn_mask[:, 0].repeat(heads, 1, 1).unflatten(0, (batch, heads))
    return attention(q, k, v, **options, attn_mask=attn_mask)


@mutant(
    "mask of samples broadcast onto grouped heads, silent where B = Hkv",
    source="ml-explore/mlx-lm#1903",
    killed_by="masks_stay_with_their_batch_and_head",
    bug="A16",
)
def samples_onto_key_heads(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, **options: Any) -> Tensor:
    batch, heads, kv_heads = q.shape[0], q.shape[1], k.shape[1]
    grouped = batch == kv_heads and heads > kv_heads
    if attn_mask is not None and attn_mask.ndim == 4 and attn_mask.shape[:2] == (batch, 1) and grouped:
        attn_mask = attn_mask[:, 0].repeat_interleave(heads // kv_heads, 0)[None]  # (1, H, L, S)
    return attention(q, k, v, **options, attn_mask=attn_mask)


@mutant(
    "a mask (H, L, S) is read as (B, L, S), silent where B = H",
    source="onnx/onnx#8108",
    killed_by="masks_stay_with_their_batch_and_head",
    bug="A50",
)
def heads_read_as_batch(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, **options: Any) -> Tensor:
    if attn_mask is not None and attn_mask.ndim == 3 and q.shape[0] == q.shape[1]:
        attn_mask = attn_mask[:, None]
    return attention(q, k, v, **options, attn_mask=attn_mask)


@mutant(
    "a mask (B, H, L, S) has its first two axes swapped where B = H",
    source="teaching code",
    killed_by="masks_stay_with_their_batch_and_head",
)
def batch_and_head_swapped(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, **options: Any) -> Tensor:
    if attn_mask is not None and attn_mask.ndim == 4 and q.shape[0] == q.shape[1]:
        attn_mask = attn_mask.transpose(0, 1)
    return attention(q, k, v, **options, attn_mask=attn_mask)


@mutant("the mask is transposed where L = S", source="teaching code", killed_by="masks_broadcast")
def queries_and_keys_swapped(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, **options: Any) -> Tensor:
    if attn_mask is not None and attn_mask.ndim >= 2 and attn_mask.shape[-1] == attn_mask.shape[-2]:
        attn_mask = attn_mask.mT
    return attention(q, k, v, **options, attn_mask=attn_mask)


@mutant(
    "mask cut to (L, L): the keys beyond stay visible",
    source="harvard-edge/cs249r_book#1875",
    killed_by="masked_keys_are_deleted",
    bug="A17",
)
def cut_to_queries(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, **options: Any) -> Tensor:
    if attn_mask is not None and attn_mask.ndim and attn_mask.shape[-1] > q.shape[2]:
        neutral = torch.full_like(attn_mask[..., q.shape[2] :], attn_mask.dtype == torch.bool)
        attn_mask = torch.cat([attn_mask[..., : q.shape[2]], neutral], -1)
    return attention(q, k, v, **options, attn_mask=attn_mask)


@mutant(
    "a mask with one column is read with stride 1",
    source="pytorch/pytorch#128816",
    killed_by="masks_broadcast",
    bug="A45",
)
def column_read_with_stride_one(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, **options: Any) -> Tensor:
    queries, keys = q.shape[2], k.shape[2]
    if attn_mask is not None and attn_mask.ndim >= 2 and attn_mask.shape[-1] == 1 and attn_mask.shape[-2] == queries > 0:
        ahead = (torch.arange(queries)[:, None] + torch.arange(keys)) % queries
        attn_mask = attn_mask[..., 0][..., ahead]  # entry (i, j) is read from element i + j
    return attention(q, k, v, **options, attn_mask=attn_mask)


@mutant("a mask with one row hides keys from the first query only", source="teaching code", killed_by="masks_broadcast")
def single_row_for_first_query(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, **options: Any) -> Tensor:
    if attn_mask is not None and attn_mask.ndim >= 2 and attn_mask.shape[-2] == 1 and q.shape[2] > 1:
        neutral = torch.full_like(attn_mask, attn_mask.dtype == torch.bool)
        attn_mask = torch.cat([attn_mask] + [neutral] * (q.shape[2] - 1), -2)
    return attention(q, k, v, **options, attn_mask=attn_mask)


@mutant(
    "within each chunk of 4 queries the mask of the first is used",
    source="google-research/tabfm#40",
    killed_by="permuted_queries_permute_rows",
    bug="A47",
)
def first_row_of_each_chunk(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, **options: Any) -> Tensor:
    if attn_mask is not None and attn_mask.ndim >= 2 and attn_mask.shape[-2] > 1:
        attn_mask = attn_mask[..., torch.arange(attn_mask.shape[-2]) // 4 * 4, :]
    return attention(q, k, v, **options, attn_mask=attn_mask)


@mutant("a mask of rank 4 is refused", source="onnx/onnx, ReferenceEvaluator 1.18", killed_by="masks_broadcast", bug="A52")
def rank_four_refused(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, **options: Any) -> Tensor:
    if attn_mask is not None and attn_mask.ndim > 3:
        raise ValueError("a mask has at most three dimensions")
    return attention(q, k, v, **options, attn_mask=attn_mask)


@mutant(
    "of the mask only the last 16 columns are kept: older keys become visible",
    source="huggingface/transformers#32522",
    killed_by="masked_keys_are_deleted",
    bug="B22",
)
def last_columns_only(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, **options: Any) -> Tensor:
    if attn_mask is not None and attn_mask.ndim and attn_mask.shape[-1] > 16:
        neutral = torch.full_like(attn_mask[..., :-16], attn_mask.dtype == torch.bool)
        attn_mask = torch.cat([neutral, attn_mask[..., -16:]], -1)
    return attention(q, k, v, **options, attn_mask=attn_mask)


@mutant("a mask of rank 0 is ignored", source="teaching code", killed_by="rows_without_keys_follow_the_convention")
def scalar_ignored(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, **options: Any) -> Tensor:
    return attention(q, k, v, **options, attn_mask=None if attn_mask is None or attn_mask.ndim == 0 else attn_mask)


@mutant(
    "the last key is visible whatever the mask says",
    source="teaching code",
    killed_by="bool_mask_equals_minus_infinity",
)
def last_key_always_visible(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, **options: Any) -> Tensor:
    def read(mask: Tensor | None, shape: tuple[int, ...]) -> tuple[Tensor | None, Tensor | None]:
        visible, bias = read_mask(mask, shape)
        if visible is None or bias is not None:
            return visible, bias
        return visible | (torch.arange(shape[-1]) == shape[-1] - 1), None

    return attention(q, k, v, **options, attn_mask=attn_mask, read_mask=read)


@mutant("only the first head is masked", source="teaching code", killed_by="masked_keys_are_deleted")
def first_head_alone(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, **options: Any) -> Tensor:
    out = attention(q, k, v, **options, attn_mask=attn_mask)
    return torch.cat([out[:, :1], attention(q, k, v, **options)[:, 1:]], 1)


@mutant(
    "strides of the mask are ignored: an expanded or transposed mask is read as if it were contiguous",
    source="teaching code",
    killed_by="memory_layout_changes_nothing",
)
def strides_ignored(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, **options: Any) -> Tensor:
    if attn_mask is not None and not attn_mask.is_contiguous() and attn_mask.numel():
        size = attn_mask.untyped_storage().nbytes() // attn_mask.element_size() - int(attn_mask.storage_offset())
        stored = torch.as_strided(attn_mask, (size,), (1,))
        attn_mask = stored[torch.arange(attn_mask.numel()) % size].view(attn_mask.shape)
    return attention(q, k, v, **options, attn_mask=attn_mask)


@mutant(
    "the float mask of the last key is dropped where S is odd",
    source="teaching code",
    killed_by="shifted_bias_changes_nothing",
)
def odd_tail_unmasked(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, **options: Any) -> Tensor:
    keys = k.shape[2]
    if attn_mask is not None and attn_mask.is_floating_point() and attn_mask.ndim and keys % 2 and attn_mask.shape[-1] == keys:
        attn_mask = attn_mask.clone()  # a vectorised loop of two at a time
        attn_mask[..., -1] = 0.0
    return attention(q, k, v, **options, attn_mask=attn_mask)
