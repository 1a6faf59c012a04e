"""A cache for decoding in NumPy: keys and values lie in one array each, sequence by sequence, from slot 0 on."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from .contract import default_scale, supports

WIDE = {"float64": "same", "float32": "same", "float16": "wide"}


@supports(framework="numpy", dtypes=list(WIDE), arithmetic=WIDE)
class Contiguous:
    """k (batch, kv_heads, capacity, dim) and v (batch, kv_heads, capacity, value_dim), of which count (batch,) slots are in use."""

    def __init__(
        self,
        batch: int,
        kv_heads: int,
        dim: int,
        capacity: int,
        *,
        num_heads: int | None = None,
        value_dim: int | None = None,
        dtype: Any = np.float32,
        fill: float = 0.0,
    ) -> None:
        self.group = (num_heads or kv_heads) // kv_heads
        self.k = np.full((batch, kv_heads, capacity, dim), fill, dtype=dtype)
        self.v = np.full((batch, kv_heads, capacity, value_dim or dim), fill, dtype=dtype)
        self.count = np.zeros(batch, dtype=np.int64)

    def append(self, q: Any, k: Any, v: Any, *, lengths: Any = None) -> Any:
        """The first lengths[b] of the new tokens are fed to sequence b. Raises ValueError if they do not fit."""
        new = np.full(len(self.count), q.shape[2]) if lengths is None else lengths
        if (self.count + new > self.k.shape[2]).any():
            raise ValueError(f"{self.k.shape[2]} slots are too few for {(self.count + new).max()} tokens")
        out = np.zeros((*q.shape[:3], self.v.shape[3]), dtype=q.dtype)
        for b, (past, n) in enumerate(zip(self.count, new, strict=True)):
            self.k[b, :, past : past + n] = k[b, :, :n]
            self.v[b, :, past : past + n] = v[b, :, :n]
            out[b, :, :n] = self._attend(q[b, :, :n], b, past)
        self.count = self.count + new
        return out

    def _attend(self, q: Any, b: int, past: Any) -> Any:
        """q (heads, n, dim) at positions past, past + 1, … → (heads, n, value_dim)"""
        wide = np.promote_types(q.dtype, np.float32)
        used = past + q.shape[1]
        key, value = (np.repeat(x[b, :, :used].astype(wide), self.group, axis=0) for x in (self.k, self.v))
        logits = q.astype(wide) @ key.swapaxes(-1, -2) * default_scale(q.shape[-1])  # (heads, n, used)
        future = np.arange(used) > past + np.arange(q.shape[1])[:, None]
        logits = np.where(future, -np.inf, logits).astype(wide)
        weights = np.exp(logits - logits.max(axis=-1, keepdims=True, initial=-np.inf))
        return weights / weights.sum(axis=-1, keepdims=True) @ value

    def fork(self) -> Contiguous:
        """An independent copy."""
        return copy.deepcopy(self)

    def reset(self) -> None:
        """Forget everything."""
        self.truncate(0)

    def truncate(self, length: int) -> None:
        """Forget all tokens from this one on."""
        self.count = np.minimum(self.count, length)

    def reorder(self, index: Any) -> None:
        """Sequence b goes on from where sequence index[b] was."""
        self.k, self.v, self.count = self.k[index], self.v[index], self.count[index]
