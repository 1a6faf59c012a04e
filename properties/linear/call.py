"""The call of linear attention: its arguments, and how its answer is read.

    linear_attention(q, k, v, *, is_causal=False) → (batch, heads, queries, value_dim)

q (batch, heads, queries, dim), k (batch, heads, keys, dim), v (batch, heads, keys, value_dim). A causal row i sees the keys j ≤ i, counted
from the first (``supports["causal"]`` may say otherwise). ``causal`` will do for ``is_causal``.
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
from ..engine.frameworks import Buffers

CAUSAL = ("is_causal", "causal")
FEATURE_MAP = ("feature_map", "feature_fn")


@dataclass(frozen=True, eq=False)
class LinearInputs:
    """The arguments of one call, as carriers."""

    q: Array  # (B, H, L, D)
    k: Array  # (B, H, S, D)
    v: Array  # (B, H, S, Dv)
    is_causal: bool = False
    dtype: str = "float64"
    device: str = "cpu"
    layout: str = "contiguous"

    def but(self, **changes: Any) -> LinearInputs:
        """The same call with some arguments changed."""
        return dataclasses.replace(self, **changes)


def call(target: Target, x: LinearInputs, buffers: Buffers) -> tuple[Array, tuple[tuple[int, ...], str, str], Any]:
    """(out (B, H, L, Dv) as a carrier, its shape, dtype and device, the array itself). Raises Raised."""
    tensors = [buffers.array(name, getattr(x, name), x.dtype, x.device, x.layout) for name in ("q", "k", "v")]
    formal = inspect.signature(target.function).parameters
    options = {next((name for name in CAUSAL if name in formal), CAUSAL[0]): True} if x.is_causal else {}
    result = target.first(target.apply(*tensors, **options))
    if not target.framework.is_array(result):
        raise Raised(TypeError(f"returned {type_of(result)}, not an array of {target.framework.name}"))
    return target.framework.read(result), target.framework.describe(result), result


def smoke_inputs(target: Target, dtype: str, device: str) -> LinearInputs:
    """All sizes different."""
    dim = target.supports.head_dims[0] if target.supports.head_dims else 4
    width = 5 if target.supports.value_dim and not target.supports.head_dims else dim
    return LinearInputs(np.ones((2, 3, 6, dim)), np.ones((2, 3, 7, dim)), np.ones((2, 3, 7, width)), dtype=dtype, device=device)
