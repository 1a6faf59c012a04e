"""The contract of packed sequences: how a callable of it is recognised, called and read.

    packed(q, k, v, cu_seqlens_q, cu_seqlens_k, *, max_seqlen_q, max_seqlen_k, is_causal=False, scale=None, enable_gqa=False)

q (total queries, heads, dim), k (total keys, kv_heads, dim), v (total keys, kv_heads, value_dim): N sequences one after the other,
without padding. cu_seqlens (N + 1,) int32 holds where they begin, and where the last one ends: 0 = c_0 ≤ … ≤ c_N = total. Only the
first five arguments are required; ``max_seqlen_q`` and ``max_seqlen_k`` are numbers no smaller than the longest sequence.
Names of FlashAttention and PyTorch (``cu_seq_q``, ``max_q``, ``causal``, ``softmax_scale``) will do.
"""

from __future__ import annotations

import dataclasses
import inspect
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..engine.cases.coordinates import Array
from ..engine.core.target import Raised, Target
from ..engine.core.words import type_of
from ..engine.frameworks import Buffers, SendBack

BOUNDARIES = ("cu_seqlens_q", "cu_seq_q", "cu_q", "cu_seqlens", "cu_seqs", "cu_seq_lens")
KEY_BOUNDARIES = ("cu_seqlens_k", "cu_seqlens_kv", "cu_seq_k", "cu_k", "cu_kv")
# Each parameter, and what else it is called.
NAMES: dict[str, tuple[str, ...]] = {
    "max_seqlen_q": ("max_seqlen_q", "max_q"),
    "max_seqlen_k": ("max_seqlen_k", "max_k", "max_seqlen_kv"),
    "is_causal": ("is_causal", "causal"),
    "scale": ("scale", "softmax_scale"),
    "enable_gqa": ("enable_gqa",),
}


ALL_NAMES = tuple(name for names in NAMES.values() for name in names)


@dataclass(frozen=True, eq=False)
class PackedInputs:
    """The arguments of one call, as carriers."""

    q: Array  # (total queries, H, D)
    k: Array  # (total keys, Hkv, D)
    v: Array  # (total keys, Hkv, Dv)
    cu_q: Array  # (N + 1,) int32
    cu_k: Array
    max_q: int
    max_k: int
    is_causal: bool = False
    scale: float | None = None
    dtype: str = "float64"
    device: str = "cpu"
    layout: str = "contiguous"

    def but(self, **changes: Any) -> PackedInputs:
        """The same call with some arguments changed."""
        return dataclasses.replace(self, **changes)

    @property
    def lengths(self) -> tuple[Array, Array]:
        """(queries, keys) of every sequence."""
        return np.diff(self.cu_q), np.diff(self.cu_k)

    def rows(self, chosen: Array) -> Array:
        """(total queries,) bool: the rows of these sequences (N,) bool."""
        return np.repeat(chosen, self.lengths[0])

    def keys(self, chosen: Array) -> Array:
        """(total keys,) bool: the keys of these sequences."""
        return np.repeat(chosen, self.lengths[1])

    def take(self, order: Array) -> PackedInputs:
        """The sequences of these numbers, in this order, packed."""
        queries, keys = (np.concatenate([[], *(np.arange(cu[n], cu[n + 1]) for n in order)]).astype(int) for cu in (self.cu_q, self.cu_k))
        lengths = [boundaries(part[order]) for part in self.lengths]
        return self.but(q=self.q[queries], k=self.k[keys], v=self.v[keys], cu_q=lengths[0], cu_k=lengths[1])


def boundaries(lengths: Array) -> Array:
    """(N + 1,) int32: where each sequence begins, and where the last one ends."""
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)


def arguments(target: Target, x: PackedInputs, buffers: Buffers) -> tuple[list[Any], dict[str, Any]]:
    """The positional and keyword arguments in the framework's own arrays and the callable's own names."""
    tensors = [buffers.array(name, getattr(x, name), x.dtype, x.device, x.layout) for name in ("q", "k", "v")]
    tensors += [buffers.array(name, getattr(x, name), "int32", x.device, "contiguous") for name in ("cu_q", "cu_k")]
    wanted: dict[str, Any] = {"max_seqlen_q": x.max_q, "max_seqlen_k": x.max_k}
    if x.is_causal:
        wanted["is_causal"] = True
    if x.scale is not None:
        wanted["scale"] = x.scale
    if x.q.shape[1] != x.k.shape[1]:
        wanted["enable_gqa"] = True
    formal = inspect.signature(target.function).parameters
    own = {name: next((n for n in NAMES[name] if n in formal), name) for name in wanted}
    able = [
        name for name in wanted if name in target.parameters and (name != "enable_gqa" or own[name] in formal)
    ]  # others group heads unasked
    return tensors, {own[name]: wanted[name] for name in able}


def call(target: Target, x: PackedInputs, buffers: Buffers) -> tuple[Array, tuple[tuple[int, ...], str, str], Any]:
    """(out (total queries, H, Dv) as a carrier, its shape, dtype and device, the array itself). Raises Raised."""
    tensors, options = arguments(target, x, buffers)
    result = target.apply(*tensors, **options)
    result = result[0] if isinstance(result, tuple | list) and result else result
    if not target.framework.is_array(result):
        raise Raised(TypeError(f"returned {type_of(result)}, not an array of {target.framework.name}"))
    return target.framework.read(result), target.framework.describe(result), result


def smoke_inputs(target: Target, dtype: str, device: str) -> PackedInputs:
    """Two sequences, all sizes different."""
    dim = target.supports.head_dims[0] if target.supports.head_dims else 4
    q, k = np.ones((5, 3, dim)), np.ones((7, 3, dim))
    return PackedInputs(q, k, k, boundaries(np.array([2, 3])), boundaries(np.array([3, 4])), 3, 4, dtype=dtype, device=device)


def forward(target: Target, x: PackedInputs, buffers: Buffers) -> tuple[Any, SendBack | None]:
    """(the target's own output, what sends gradients back to q, k, v). Raises Raised."""
    tensors, options = arguments(target, x, buffers)
    return target.record(lambda *leaves: target.apply(*leaves, *tensors[3:], **options), tensors[:3])
