"""An attention that is right and differentiates rightly: the oracle's own answers, with room for one mistake backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import permissive
import torch
from torch import Tensor

from properties.exact import oracle
from properties.exact.gradient_oracle import differentiate

Array = Any
Parts = dict[str, Any]  # gradients of q, k, v and mask, float64
Change = Callable[[Parts, Tensor, Any], None]  # of the parts, in place, given dO and the context


class Attention(torch.autograd.Function):
    """Exact forward, exact backward, then the change."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, options: Any, change: Change) -> Tensor:
        ctx.save_for_backward(q, k, v, mask)
        ctx.options, ctx.change = options, change
        return permissive.attention(q, k, v, attn_mask=mask, **options)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, mask = ctx.saved_tensors
        shape = (*q.shape[:3], k.shape[2])
        seen, bias = permissive.seen_and_bias(mask, ctx.options["is_causal"], shape)
        scale = ctx.options["scale"]
        factor = (q.shape[3] or 1) ** -0.5 if scale is None else scale
        operands = [permissive.carrier(x) for x in (q, k, v)]
        problem = oracle.Problem(*operands, scale=factor, visible=seen, bias=bias)
        exact = oracle.solve(problem, "extended" if q.dtype == torch.float64 else "float64")
        found = differentiate(exact, permissive.carrier(grads[0]))
        parts: Parts = {"q": found.q, "k": found.k, "v": found.v}
        if mask is not None and mask.is_floating_point():
            parts["mask"] = found.of_bias(tuple(mask.shape))[0]
        ctx.change(parts, grads[0], ctx)
        names = ("q", "k", "v", "mask")
        return *(None if parts.get(x) is None else permissive.rounded(parts[x], q) for x in names), None, None


def attention_with(change: Change, forward: Callable[[Tensor, tuple[Tensor, ...]], Tensor] | None = None) -> Any:
    """The exact attention with a change to its gradients, or to its output."""

    def attention(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        options = {"is_causal": is_causal, "scale": scale, "enable_gqa": enable_gqa}
        out: Tensor = Attention.apply(q, k, v, attn_mask, options, change)
        return forward(out, (q, k, v)) if forward else out

    return attention


def nothing(parts: Parts, grad: Tensor, ctx: Any) -> None:
    """No mistake."""


def times(*names: str, factor: float = 1.01, where: Callable[[Tensor, Any], bool] = lambda grad, ctx: True) -> Change:
    """Some gradients multiplied by a factor, in some calls."""

    def change(parts: Parts, grad: Tensor, ctx: Any) -> None:
        for name in set(names) & set(parts):
            parts[name] = parts[name] * (factor if where(grad, ctx) else 1)

    return change


def mapped(name: str, function: Callable[[Array], Any]) -> Change:
    """One gradient changed."""

    def change(parts: Parts, grad: Tensor, ctx: Any) -> None:
        if name in parts:
            parts[name] = function(np.asarray(parts[name]))

    return change


def counting() -> Change:
    """Every call gives more than the one before."""
    calls: list[int] = []

    def change(parts: Parts, grad: Tensor, ctx: Any) -> None:
        calls.append(0)
        parts["q"] = parts["q"] + len(calls) % 7

    return change
