"""Targets that take everything and are right: the oracle's own answers behind the two contracts, in four dtypes.

They know no implementation. ``ATTENTION`` and ``LAYER`` draw from the widest domain there is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from properties.engine.cases.masks import frontier
from properties.engine.core.target import Target
from properties.engine.search.probe import make_target
from properties.exact import oracle


def carrier(x: Tensor) -> Any:
    """The numbers of a tensor in float64."""
    return x.detach().to(torch.float64).numpy()


def rounded(x: Any, like: Tensor) -> Tensor:
    """Float64 numbers in the dtype of a tensor."""
    return torch.from_numpy(np.array(x, dtype=np.float64)).to(like.dtype)


def seen_and_bias(mask: Tensor | None, is_causal: bool, shape: tuple[int, ...]) -> tuple[Any, Any]:
    """Visibility (B, H, L, S) and what is added to the logits."""
    seen, bias = np.ones(shape, dtype=bool), None
    if is_causal:
        seen &= frontier(shape[2], shape[3])
    if mask is not None and mask.dtype == torch.bool:
        seen &= mask.numpy()
    elif mask is not None:
        seen &= carrier(mask) != -np.inf
        bias = np.where(carrier(mask) == -np.inf, 0.0, carrier(mask))
    return seen, bias


def problem_of(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None,
    is_causal: bool,
    scale: float | None,
    *,
    window_size: tuple[int, int] | None = None,
    softcap: float | None = None,
    alibi_slopes: Tensor | None = None,
    sinks: Tensor | None = None,
    kv_lengths: Tensor | None = None,
) -> oracle.Problem:
    """The call as the oracle's problem."""
    seen, bias = seen_and_bias(attn_mask, is_causal, (*q.shape[:3], k.shape[2]))
    ahead = np.arange(k.shape[2]) - np.arange(q.shape[2])[:, None]
    if window_size is not None:
        left, right = (side if side >= 0 else np.inf for side in window_size)
        seen &= (ahead >= -left) & (ahead <= right)
    if kv_lengths is not None:
        seen &= np.arange(k.shape[2]) < carrier(kv_lengths)[:, None, None, None]
    if alibi_slopes is not None:
        distance = -carrier(alibi_slopes)[:, None, None] * np.abs(ahead)
        bias = distance if bias is None else bias + distance
    factor = (q.shape[3] or 1) ** -0.5 if scale is None else scale
    problem = oracle.Problem(carrier(q), carrier(k), carrier(v), scale=factor, visible=seen, bias=bias, softcap=softcap)
    return problem if sinks is None else oracle.with_sinks(problem, carrier(sinks))


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    dropout_p: float = 0.0,
    window_size: tuple[int, int] | None = None,
    softcap: float | None = None,
    alibi_slopes: Tensor | None = None,
    sinks: Tensor | None = None,
    kv_lengths: Tensor | None = None,
    return_lse: bool = False,
    need_weights: bool = False,
) -> Any:
    """The exact answer, rounded once."""
    if q.shape[0] != k.shape[0] or k.shape[:3] != v.shape[:3] or q.shape[3] != k.shape[3]:
        raise ValueError("shapes do not fit")
    if not enable_gqa and q.shape[1] != k.shape[1]:
        raise ValueError("heads differ")
    given = {"window_size": window_size, "softcap": softcap, "alibi_slopes": alibi_slopes, "sinks": sinks, "kv_lengths": kv_lengths}
    problem = problem_of(q, k, v, attn_mask, is_causal, scale, **given)
    exact = oracle.solve(problem, "extended" if q.dtype == torch.float64 else "float64")
    if dropout_p:
        kept = (torch.rand(exact.weights.shape) >= dropout_p).numpy() / (1 - dropout_p)
        return rounded((exact.weights * kept) @ exact.v, q)
    if need_weights:
        return rounded(exact.out, q), rounded(exact.weights, q)
    return (rounded(exact.out, q), rounded(exact.lse, q)) if return_lse else rounded(exact.out, q)


def multihead(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    weights: Mapping[str, Tensor],
    *,
    num_heads: int,
    attn_mask: Tensor | None = None,
    key_padding_mask: Tensor | None = None,
    is_causal: bool = False,
    need_weights: bool = True,
) -> tuple[Tensor, Tensor | None]:
    """The exact answer of the layer, rounded once."""
    shape = (query.shape[0], num_heads, query.shape[1], key.shape[1])
    seen, bias = seen_and_bias(attn_mask, is_causal, shape)
    if key_padding_mask is not None:
        seen = seen & ~key_padding_mask.numpy()[:, None, None, :]
    problem = oracle.LayerProblem(
        carrier(query),
        carrier(key),
        carrier(value),
        {name: carrier(w) for name, w in weights.items()},
        num_heads=num_heads,
        visible=seen,
        bias=bias,
    )
    exact = oracle.solve_layer(problem, "extended" if query.dtype == torch.float64 else "float64")
    return rounded(exact.out, query), rounded(exact.attention.weights, query) if need_weights else None


def attention_target(**supports: Any) -> Target:
    """The exact attention as a target, with facts that narrow it."""
    arithmetic = {"float64": "same", "float32": "same"}
    return make_target("exact", attention, {"framework": "torch", "arithmetic": arithmetic, **supports})


def layer_target(**supports: Any) -> Target:
    """The exact layer as a target."""
    return make_target("exact layer", multihead, {"framework": "torch", **supports})
