"""The form of the answer, and questions that should not be answered at all."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..registry import mutant
from .core import attention


@mutant("half precision comes back as float32", source="teaching code", killed_by="output_has_the_right_form")
def half_comes_back_float32(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, narrow=lambda out, dtype: out)


@mutant("everything comes back as float32", source="teaching code", killed_by="output_has_the_right_form")
def everything_comes_back_float32(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, narrow=lambda out, dtype: out.float())


@mutant(
    "all dimensions of size 1 are squeezed away",
    source="teaching code",
    killed_by="output_has_the_right_form",
    bug="D34",
)
def squeezed(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options).squeeze()


@mutant("a batch of one loses its dimension", source="teaching code", killed_by="output_has_the_right_form", bug="D34")
def batch_squeezed(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options).squeeze(0)


@mutant(
    "the output comes back as (B, L, H, Dv) when a mask is given",
    source="teaching code",
    killed_by="head_concatenation_preserves_shape",
)
def heads_last(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    out = attention(q, k, v, **options)
    return out if options.get("attn_mask") is None else out.transpose(1, 2)


@mutant(
    "for a single query heads are already concatenated: (B, L, H · Dv)",
    source="teaching code",
    killed_by="head_concatenation_preserves_shape",
)
def heads_merged(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    out = attention(q, k, v, **options)
    return out.transpose(1, 2).flatten(2) if out.shape[2] == 1 else out


@mutant("heads are averaged away, the dimension kept", source="teaching code", killed_by="heads_are_independent")
def heads_averaged(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    out = attention(q, k, v, **options)
    return out.mean(1, keepdim=True).expand(out.shape).clone() if out.numel() else out


@mutant(
    "the output is transposed to (B, H, Dv, L), silent where L = Dv",
    source="teaching code",
    killed_by="output_is_inside_the_bound",
)
def features_first(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    out = attention(q, k, v, **options)
    return out.mT if out.shape[2] == out.shape[3] else out


@mutant(
    "in half precision columns are padded to a multiple of 8, and cut back to the width of the query, not of the values",
    source="teaching code",
    killed_by="output_has_the_right_form",
)
def columns_padded(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    out = attention(q, k, v, **options)
    wider = torch.nn.functional.pad(out, (0, -v.shape[-1] % 8))[..., : q.shape[-1]]  # shows where Dv and D differ
    return wider if q.element_size() == 2 else out


@mutant("the output is one row short where L > S", source="teaching code", killed_by="output_has_the_right_form")
def rows_cut_to_keys(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    out = attention(q, k, v, **options)
    return out[:, :, : max(k.shape[2], 1)]


@mutant(
    "keys and values of different length are cut to the shorter",
    source="pytorch/pytorch#193728",
    killed_by="missing_values_raise",
    bug="D27",
)
def lengths_cut(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    keys = min(k.shape[2], v.shape[2])
    return attention(q, k[:, :, :keys], v[:, :, :keys], **options)


@mutant("query and key of different dimension are cut to the smaller", source="teaching code", killed_by="bad_shapes_raise")
def dims_cut(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    dim = min(q.shape[-1], k.shape[-1])
    return attention(q[..., :dim], k[..., :dim], v, **options)


@mutant("batches of different size are cut to the smaller", source="teaching code", killed_by="bad_shapes_raise")
def batches_cut(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    batch = min(len(q), len(k), len(v))
    return attention(q[:batch], k[:batch], v[:batch], **options)


@mutant("a mask that does not fit is dropped", source="teaching code", killed_by="bad_shapes_raise")
def misfit_mask_dropped(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    try:
        return attention(q, k, v, **options)
    except ValueError as error:
        if not str(error).startswith("mask"):
            raise
        return attention(q, k, v, **{**options, "attn_mask": None})
