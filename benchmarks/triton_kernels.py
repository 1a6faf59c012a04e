"""Attention in Triton, right and with one mistake each, as ``benchmarks.gpu`` asks it. Lengths and head dims of any size; no masks, no groups."""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl


@triton.jit
def kernel(
    q_at, k_at, v_at, out_at, scale, qb, qh, qm, qd, kb, kh, kn, kd, vb, vh, vn, vd, ob, oh, om, od, heads, queries, keys,
    dim: tl.constexpr, wide: tl.constexpr, causal: tl.constexpr, mistake: tl.constexpr, rows: tl.constexpr, columns: tl.constexpr,
):  # fmt: skip
    start, element = tl.program_id(0), tl.program_id(1)
    batch, head = element // heads, element % heads
    m = start * rows + tl.arange(0, rows)
    d = tl.arange(0, wide)
    inside = (m[:, None] < queries) & (d[None, :] < dim)
    q = tl.load(q_at + batch * qb + head * qh + m[:, None] * qm + d[None, :] * qd, mask=inside, other=0.0)
    top = tl.full([rows], float("-inf"), tl.float32)
    total = tl.zeros([rows], tl.float32)
    acc = tl.zeros([rows, wide], tl.float32)
    end = tl.minimum((start + 1) * rows, keys) if causal else keys
    for at in range(0, end, columns):
        n = at + tl.arange(0, columns)
        there = (n[:, None] < keys) & (d[None, :] < dim)
        k = tl.load(k_at + batch * kb + head * kh + n[:, None] * kn + d[None, :] * kd, mask=there, other=0.0)
        v = tl.load(v_at + batch * vb + head * vh + n[:, None] * vn + d[None, :] * vd, mask=there, other=0.0)
        logits = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        seen = n[None, :] < (at + columns if mistake == "the last tile is not masked" else keys)
        if causal:
            seen = seen & (n[None, :] <= m[:, None])
        logits = tl.where(seen, logits, float("-inf"))
        higher = tl.maximum(top, tl.max(logits, 1))
        weights = tl.exp(logits - higher[:, None])
        rescale = tl.exp(top - higher)
        total = total * rescale + tl.sum(weights, 1)
        if mistake == "the accumulator is not rescaled":
            rescale = tl.full([rows], 1.0, tl.float32)
        acc = acc * rescale[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
        top = higher
    out = (acc / total[:, None]).to(out_at.dtype.element_ty)
    tl.store(out_at + batch * ob + head * oh + m[:, None] * om + d[None, :] * od, out, mask=inside)


def launched(q: Any, k: Any, v: Any, causal: bool, scale: float | None, mistake: str) -> Any:
    out = torch.empty_like(q)
    batch, heads, queries, dim = q.shape
    kernel[triton.cdiv(queries, 32), batch * heads](
        q, k, v, out, 1 / math.sqrt(dim) if scale is None else scale, *q.stride(), *k.stride(), *v.stride(), *out.stride(),
        heads, queries, k.shape[2], dim, max(16, triton.next_power_of_2(dim)), causal, mistake, 32, 32,
    )  # fmt: skip
    return out


def right(q: Any, k: Any, v: Any, is_causal: bool = False, scale: float | None = None) -> Any:
    return launched(q, k, v, is_causal, scale, "")


def not_rescaled(q: Any, k: Any, v: Any, is_causal: bool = False, scale: float | None = None) -> Any:
    return launched(q, k, v, is_causal, scale, "the accumulator is not rescaled")


def tile_not_masked(q: Any, k: Any, v: Any, is_causal: bool = False, scale: float | None = None) -> Any:
    return launched(q, k, v, is_causal, scale, "the last tile is not masked")
