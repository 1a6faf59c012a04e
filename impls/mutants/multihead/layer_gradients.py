"""The multi-head layer: right answers, wrong gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..attention.core import softmax
from ..registry import Function, mutant
from .layer import Answer, Weights, appended, multihead, project


def wrong(mistake: str, killed_by: str = "layer_gradients_are_slopes") -> Callable[[Function], Function]:
    """Register a layer whose gradients are wrong."""
    return mutant(mistake, source="teaching code", killed_by=killed_by, contract="multihead")


class Constant(torch.autograd.Function):
    """weights → weights, whose backward pass is that of the softmax which gave them; they are constants in it."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, p: Tensor) -> Tensor:
        ctx.p = p.detach()
        return p.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        inner = ctx.p * grads[0]
        return inner - ctx.p * inner.sum(-1, keepdim=True), None


class WithoutTheSum(torch.autograd.Function):
    """weights → weights, whose backward pass is p dp, not p (dp − Σ p dp), and cannot be differentiated again."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, p: Tensor) -> Tensor:
        ctx.p = p
        return p.clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return ctx.p * grads[0], None


@wrong("the backward pass of a softmax by hand forgets the sum over the row")
def softmax_without_the_sum(query: Tensor, key: Tensor, value: Tensor, weights: Weights, **options: Any) -> Answer:
    def recorded(logits: Tensor, visible: Tensor | None) -> Tensor:
        return WithoutTheSum.apply(logits, softmax(logits, visible).detach())

    return multihead(query, key, value, weights, **options, softmax=recorded)


@wrong("where query and key are one array, the layer takes the gradient of the queries alone")
def gradient_of_the_queries_alone(query: Tensor, key: Tensor, value: Tensor, weights: Weights, **options: Any) -> Answer:
    def seen(x: Tensor, weights: Weights, name: str) -> Tensor:
        return project(x.detach() if name == "k" and query is key else x, weights, name)

    return multihead(query, key, value, weights, **options, project=seen)


@wrong("no gradient of the bias of the values, which weights that sum to one pass on whole")
def bias_of_values_is_a_constant(query: Tensor, key: Tensor, value: Tensor, weights: Weights, **options: Any) -> Answer:
    fixed = {name: w.detach() if name == "b_v" else w for name, w in weights.items()}
    return multihead(query, key, value, fixed, **options)


@wrong("the key and the value that are appended are constants")
def what_is_appended_is_a_constant(query: Tensor, key: Tensor, value: Tensor, weights: Weights, **options: Any) -> Answer:
    def fixed(x: Tensor, learned: Tensor | None, zero: bool) -> Tensor:
        return appended(x, None if learned is None else learned.detach(), zero)

    return multihead(query, key, value, weights, **options, appended=fixed)


@wrong("the backward pass takes the weights for constants: it cannot be differentiated again, and is", "layer_second_derivatives_are_bends")
def weights_are_constants_backward(query: Tensor, key: Tensor, value: Tensor, weights: Weights, **options: Any) -> Answer:
    def recorded(logits: Tensor, visible: Tensor | None) -> Tensor:
        return Constant.apply(logits, softmax(logits, visible).detach())

    return multihead(query, key, value, weights, **options, softmax=recorded)
