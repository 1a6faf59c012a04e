"""Attention that never sees a whole row: how kernels really sum.

Both forms below give the same numbers as the textbook in exact arithmetic, whatever the tiles:

``Blocked``   one pass over tiles of keys with a running maximum m, sum l and unnormalised output o. When a tile
              raises the maximum, what was summed before is rescaled:
                  m' = max(m, max_j s_j)    l' = l e^(m-m') + Σ e^(s_j-m')    o' = o e^(m-m') + Σ e^(s_j-m') v_j
              (Milakov & Gimelshein 2018, arXiv:1805.02867; FlashAttention, Dao et al. 2022, arXiv:2205.14135)
``SplitKV``   every part of the keys gives its own finished output and log-sum-exp, and these are merged:
                  lse = log Σ_c e^lse_c     o = Σ_c e^(lse_c-lse) o_c
              (Flash-Decoding; the same merge joins prefix caches and rings of devices). Each lse_c is taken relative
              to the largest logit of the row: beside a mask of -3e38 its logarithm would drown.

The one trap of both is a tile in which a row sees no key: its maximum is -inf, and -inf - -inf is NaN.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np

from .numpy_operands import Operands, operands, result_dtype

FACTS: dict[str, Any] = {
    "framework": "numpy",
    "dtypes": ["float64", "float32", "float16"],
    "masked_nan": "leaks",
}


def tile_logits(x: Operands, tile: slice) -> Any:
    """scale · Q K_tileᵀ + bias, and -inf where the key is hidden: (B, H, L, tile)"""
    logits = (x.q @ x.k[:, :, tile].swapaxes(-1, -2)) * x.scale + x.bias[..., tile]
    return np.where(x.visible[..., tile], logits, -np.inf)


def finite(maximum: Any) -> Any:
    """A shift to subtract: the maximum, or 0 for a row that has seen no key yet."""
    return np.where(maximum == -np.inf, 0, maximum)


@dataclass(frozen=True)
class Blocked:
    """Tiles of ``block`` keys, first to last or, with ``reverse``, last to first."""

    block: int = 16
    reverse: bool = False
    supports: ClassVar[dict[str, Any]] = FACTS | {
        "arithmetic": {"float64": "same", "float32": "same", "float16": "wide"},
    }

    @np.errstate(all="ignore")
    def __call__(
        self,
        q: Any,
        k: Any,
        v: Any,
        *,
        attn_mask: Any = None,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Any:
        """softmax(scale · Q Kᵀ + bias) V in one pass over the keys"""
        x = operands(q, k, v, attn_mask, is_causal, scale, enable_gqa)
        rows = x.q.shape[:3]  # B, H, L
        maximum = np.full((*rows, 1), -np.inf, x.q.dtype)
        total = np.zeros((*rows, 1), x.q.dtype)
        output = np.zeros((*rows, v.shape[-1]), x.q.dtype)
        starts = range(0, k.shape[2], self.block)
        for start in reversed(starts) if self.reverse else starts:
            tile = slice(start, start + self.block)
            logits = tile_logits(x, tile)  # (B, H, L, block)
            raised = np.maximum(maximum, logits.max(axis=-1, keepdims=True))
            shift = finite(raised)
            rescale = np.exp(maximum - shift)
            exponentials = np.exp(logits - shift)
            total = total * rescale + exponentials.sum(axis=-1, keepdims=True)
            output = output * rescale + exponentials @ x.v[:, :, tile]
            maximum = raised
        empty = ~x.visible.any(axis=-1, keepdims=True)
        return (output / np.where(empty, 1, total)).astype(result_dtype(q))


@dataclass(frozen=True)
class SplitKV:
    """The keys in ``parts`` nearly equal parts, some of them empty when there are fewer keys."""

    parts: int = 3
    supports: ClassVar[dict[str, Any]] = FACTS | {
        "arithmetic": {"float64": "same+lse", "float32": "same+lse", "float16": "wide"},
    }

    @np.errstate(all="ignore")
    def __call__(
        self,
        q: Any,
        k: Any,
        v: Any,
        *,
        attn_mask: Any = None,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Any:
        """Σ_c e^(lse_c - lse) o_c over the parts c of the keys"""
        x = operands(q, k, v, attn_mask, is_causal, scale, enable_gqa)
        edges = [part * k.shape[2] // self.parts for part in range(self.parts + 1)]
        partial = [part_of(x, slice(start, stop)) for start, stop in pairwise(edges)]
        outputs, maxima, totals = (np.stack(each) for each in zip(*partial, strict=True))  # (parts, B, H, L, Dv or 1)
        lses = (maxima - finite(maxima.max(axis=0))) + np.log(totals)  # log 0 = -inf: an empty part weighs nothing
        lse = np.log(np.exp(lses).sum(axis=0))  # (B, H, L, 1)
        empty = ~x.visible.any(axis=-1, keepdims=True)
        output = (np.exp(lses - np.where(empty, 0, lse)) * outputs).sum(axis=0)  # (B, H, L, Dv)
        return output.astype(result_dtype(q))


def part_of(x: Operands, tile: slice) -> tuple[Any, Any, Any]:
    """Attention to the keys of one part alone: its output (B, H, L, Dv), and the largest logit and
    Σ exp(logit - largest), both (B, H, L, 1)."""
    logits = tile_logits(x, tile)  # (B, H, L, part)
    maximum = logits.max(axis=-1, keepdims=True, initial=-np.inf)
    exponentials = np.exp(logits - finite(maximum))
    total = exponentials.sum(axis=-1, keepdims=True)
    output = (exponentials @ x.v[:, :, tile]) / np.where(total == 0, 1, total)
    return output, maximum, total


blocked_1 = Blocked(block=1)
blocked_16 = Blocked(block=16)
blocked_7_reversed = Blocked(block=7, reverse=True)
split_kv = SplitKV(parts=3)
