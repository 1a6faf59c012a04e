"""A layer of PyTorch that is right, written once more, and one mistake for every property of its derivatives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from properties.engine.search.probe import make_target

Change = Callable[[Tensor], Tensor]


def layer(values: Change = lambda v: v, weighed: Change = lambda p: p) -> Callable[..., Any]:
    """A layer with its values and its weights changed on their way."""

    def multihead(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        weights: dict[str, Tensor],
        *,
        num_heads: int,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        def project(x: Tensor, name: str) -> Tensor:
            out = x @ weights[f"w_{name}"].mT
            return out + weights[f"b_{name}"] if f"b_{name}" in weights else out

        q, k, v = (project(x, name).unflatten(-1, (num_heads, -1)).transpose(1, 2) for x, name in ((query, "q"), (key, "k"), (value, "v")))
        logits = q @ k.mT * q.shape[-1] ** -0.5
        if attn_mask is not None:
            logits = logits.masked_fill(~attn_mask, -torch.inf) if attn_mask.dtype == torch.bool else logits + attn_mask
        if is_causal:
            logits = logits.masked_fill(torch.ones(logits.shape[-2:]).tril() == 0, -torch.inf)
        seen = (logits > -torch.inf).any(-1, keepdim=True)  # no NaN is made, which would be one in the gradients of other rows, too
        p = weighed(logits.masked_fill(~seen, 0.0).softmax(-1) * seen)
        return project((p @ values(v)).transpose(1, 2).flatten(2), "o")

    return multihead


class Kept(torch.autograd.Function):
    """x², whose gradient 2 x autograd takes for a constant times what comes back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.x = x.detach()
        return x * x

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return 2 * ctx.x * grads[0]  # type: ignore[no-any-return]


def squared(x: Tensor) -> Tensor:
    """x², of which the second derivative is 0 for autograd."""
    return Kept.apply(x)


FACTS: dict[str, Any] = {"framework": "torch", "dtypes": ["float64"], "empty_rows": "zero"}
EXACT_FOR = {
    name: make_target("a layer written once more", layer(), FACTS)
    for name in ("layer_gradients_are_slopes", "layer_second_derivatives_are_bends")
}
MISTAKES = {
    "layer_gradients_are_slopes": make_target("wrong", layer(values=lambda v: (v + v.detach()) / 2), FACTS),
    "layer_second_derivatives_are_bends": make_target("wrong", layer(weighed=squared), FACTS),
}
