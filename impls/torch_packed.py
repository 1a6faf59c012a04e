"""Packed sequences in PyTorch: all in one product under a mask of sequences, and through nested tensors.

visible(i, j)  ⇔  sequence(i) = sequence(j)  and, if causal, place(j) ≤ place(i), both counted from where the sequence begins
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from .contract import check_packed, default_scale, supports

FACTS: dict[str, Any] = {
    "framework": "torch",
    "dtypes": ["float64", "float32", "float16", "bfloat16"],
    "arithmetic": {"float64": "same", "float32": "same", "float16": "wide", "bfloat16": "wide"},
}


def places(cu_seqlens: Tensor) -> tuple[Tensor, Tensor]:
    """(total,) the sequence of every token, and its place in it."""
    lengths = cu_seqlens.diff().long()
    sequence = torch.repeat_interleave(torch.arange(len(lengths), device=lengths.device), lengths)
    return sequence, torch.arange(len(sequence), device=lengths.device) - cu_seqlens[:-1].long()[sequence]


@supports(**FACTS, devices=["cpu", "cuda"])
def masked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    *,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Every query against every key of the pack; those of other sequences are hidden."""
    group = check_packed(q, k, v, cu_seqlens_q, cu_seqlens_k, enable_gqa)
    wide = torch.promote_types(q.dtype, torch.float32)
    query, key, value = (x.to(wide).transpose(0, 1) for x in (q, k, v))  # (heads, total, dim)
    key, value = key.repeat_interleave(group, 0), value.repeat_interleave(group, 0)
    (own, row), (other, column) = places(cu_seqlens_q), places(cu_seqlens_k)
    visible = own[:, None] == other
    if is_causal:
        visible = visible & (column <= row[:, None])
    logits = (query @ key.mT) * (default_scale(q.shape[2]) if scale is None else scale)
    logits = logits.masked_fill(~visible, -torch.inf)
    top = torch.cat([logits, logits.new_full((*logits.shape[:2], 1), -torch.inf)], -1).amax(-1, keepdim=True)
    terms = torch.exp(logits - top.masked_fill(top == -torch.inf, 0.0))
    total = terms.sum(-1, keepdim=True)
    return (terms / total.masked_fill(total == 0, 1.0) @ value).transpose(0, 1).to(q.dtype)


@supports(
    framework="torch",
    devices=["cpu"],
    dtypes=["float64", "float32", "float16", "bfloat16"],
    arithmetic={"float64": "same+lse", "float32": "same+lse", "float16": "eager", "bfloat16": "eager"},
    zero_sizes=False,
)
def nested(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, *, scale: float | None = None) -> Tensor:
    """Jagged nested tensors through scaled_dot_product_attention, which takes no is_causal for them on CPU."""
    check_packed(q, k, v, cu_seqlens_q, cu_seqlens_k, False)

    def jagged(x: Tensor, cu_seqlens: Tensor) -> Tensor:
        return torch.nested.nested_tensor_from_jagged(x.contiguous(), cu_seqlens.long()).transpose(1, 2)

    with quiet():
        query, key, value = jagged(q, cu_seqlens_q), jagged(k, cu_seqlens_k), jagged(v, cu_seqlens_k)
        out: Any = scaled_dot_product_attention(query, key, value, scale=scale)
        return torch.cat([x.transpose(0, 1) for x in out.unbind()])


@contextmanager
def quiet() -> Iterator[None]:
    """On CPU the jagged layout goes through the older one, which warns that it is a prototype, and through a tracer that logs."""
    logger = logging.getLogger("torch.fx._symbolic_trace")
    level = logger.level
    logger.setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            logger.setLevel(level)
