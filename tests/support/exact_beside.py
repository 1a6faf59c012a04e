"""An attention that declares not to take a mask together with is_causal: exact, and one that drops the mask then."""

from __future__ import annotations

from typing import Any

import permissive
from torch import Tensor

from properties.engine.search.probe import make_target

FACTS: dict[str, Any] = {"framework": "torch", "arithmetic": {"float64": "same", "float32": "same"}, "mask_and_causal": False}
NAME = "a_mask_beside_causality_is_refused_or_heeded"


def without_the_mask(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """The mask is dropped where the call is causal."""
    mask = None if is_causal else attn_mask
    out: Tensor = permissive.attention(q, k, v, attn_mask=mask, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa)
    return out


EXACT_FOR = {NAME: permissive.attention_target(mask_and_causal=False)}
MISTAKES = {NAME: make_target("wrong", without_the_mask, FACTS)}
