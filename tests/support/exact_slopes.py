"""Layers in PyTorch that are right, written once more, and one mistake for every property of their derivatives."""

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


def encoder(values: Change = lambda v: v, weighed: Change = lambda p: p) -> Callable[..., Any]:
    """An encoder layer around such a layer."""
    attend = layer(values, weighed)

    def encoder_layer(
        x: Tensor,
        weights: dict[str, Tensor],
        *,
        num_heads: int,
        is_causal: bool = False,
        norm_first: bool = False,
        activation: str = "relu",
    ) -> Tensor:
        act = {"relu": torch.relu, "gelu": torch.nn.functional.gelu}[activation]

        def norm(x: Tensor, number: int) -> Tensor:
            return torch.nn.functional.layer_norm(x, x.shape[-1:], weights[f"g_{number}"], weights.get(f"beta_{number}"), 1e-5)

        def linear(x: Tensor, number: int) -> Tensor:
            return torch.nn.functional.linear(x, weights[f"w_{number}"], weights.get(f"b_{number}"))

        def around(x: Tensor, number: int, part: Change) -> Tensor:
            return x + part(norm(x, number)) if norm_first else norm(x + part(x), number)

        y = around(x, 1, lambda z: attend(z, z, z, weights, num_heads=num_heads, is_causal=is_causal))
        return around(y, 2, lambda z: linear(act(linear(z, 1)), 2))

    return encoder_layer


def half(v: Tensor) -> Tensor:
    """v, half of which is a constant."""
    return (v + v.detach()) / 2


FACTS: dict[str, Any] = {"framework": "torch", "dtypes": ["float64"], "empty_rows": "zero"}
SLOPES, BENDS = "gradients_are_slopes", "second_derivatives_are_bends"
EXACT_FOR = {
    f"{contract}_{about}": make_target("a layer written once more", made, FACTS)
    for contract, made in (("layer", layer()), ("block", encoder()))
    for about in (SLOPES, BENDS)
}
MISTAKES = {
    f"{contract}_{about}": make_target("wrong", made(**mistake), FACTS)
    for contract, made in (("layer", layer), ("block", encoder))
    for about, mistake in ((SLOPES, {"values": half}), (BENDS, {"weighed": squared}))
}
