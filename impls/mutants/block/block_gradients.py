"""Encoder and decoder layers: right answers, wrong gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..attention.core import Step
from ..registry import Function, mutant
from .block import EPS, Weights, affine, decoder, encoder, feed_forward


def wrong(mistake: str, killed_by: str = "block_gradients_are_slopes", contract: str = "encoder_layer") -> Callable[[Function], Function]:
    """Register a layer whose gradients are wrong."""
    return mutant(mistake, source="teaching code", killed_by=killed_by, contract=contract)


class Normed(torch.autograd.Function):
    """x → (x − mean) / sqrt(variance + ε), with the backward pass that a subclass says."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        ctx.root = (centred.square().mean(-1, keepdim=True) + EPS).sqrt()
        ctx.out = centred / ctx.root
        return ctx.out.clone()


class WithoutTheMean(Normed):
    """dx = (dy − y mean(y dy)) / root: that the mean is taken off is forgotten."""

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return (grads[0] - ctx.out * (ctx.out * grads[0]).mean(-1, keepdim=True)) / ctx.root


class ConstantStatistics(Normed):
    """The right backward pass, of which y and the root are constants: it is linear in dy, and says so when it is differentiated again."""

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        inner = grads[0] - grads[0].mean(-1, keepdim=True)
        return (inner - ctx.out * (ctx.out * grads[0]).mean(-1, keepdim=True)) / ctx.root


class ByTanh(torch.autograd.Function):
    """x Φ(x), with the slope of its approximation by tanh."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return torch.nn.functional.gelu(x)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            return torch.autograd.grad(torch.nn.functional.gelu(leaf, approximate="tanh"), leaf, grads[0])[0]


def _through(function: type[torch.autograd.Function]) -> Step:
    def norm(x: Tensor, gain: Tensor, shift: Tensor | None) -> Tensor:
        return affine(function.apply(x), gain, shift)

    return norm


@wrong("the backward pass of a norm by hand forgets that the mean was taken off")
def norm_without_the_mean(x: Tensor, weights: Weights, **options: Any) -> Tensor:
    return encoder(x, weights, **options, norm=_through(WithoutTheMean))


@wrong("the deviation by which a norm divides is a constant in its gradient")
def deviation_is_a_constant(x: Tensor, weights: Weights, **options: Any) -> Tensor:
    def norm(x: Tensor, gain: Tensor, shift: Tensor | None) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        return affine(centred / (centred.square().mean(-1, keepdim=True) + EPS).sqrt().detach(), gain, shift)

    return encoder(x, weights, **options, norm=norm)


@wrong("no gradient passes the residual around the feed-forward part")
def residual_is_a_constant(x: Tensor, weights: Weights, **options: Any) -> Tensor:
    def around(x: Tensor, number: int, weights: Weights, norm_first: bool, norm: Step, f: Callable[[Tensor], Tensor]) -> Tensor:
        gain, shift = weights[f"g_{number}"], weights.get(f"beta_{number}")
        past = x.detach() if number == 2 else x
        return past + f(norm(x, gain, shift)) if norm_first else norm(past + f(x), gain, shift)

    return encoder(x, weights, **options, around=around)


@wrong("gelu is exact, and its gradient that of the approximation by tanh")
def slope_of_the_other_gelu(x: Tensor, weights: Weights, **options: Any) -> Tensor:
    def act(hidden: Tensor, activation: str) -> Tensor:
        return hidden.relu() if activation == "relu" else ByTanh.apply(hidden)

    def feed(x: Tensor, weights: Weights, activation: str) -> Tensor:
        return feed_forward(x, weights, activation, act)

    return encoder(x, weights, **options, feed_forward=feed)


@wrong("no gradient reaches the memory, as where an encoder is frozen", contract="decoder_layer")
def memory_is_a_constant(x: Tensor, memory: Tensor, weights: Weights, **options: Any) -> Tensor:
    return decoder(x, memory.detach(), weights, **options)


@wrong("the backward pass of a norm takes its statistics for constants, and is differentiated again", "block_second_derivatives_are_bends")
def statistics_are_constants_backward(x: Tensor, weights: Weights, **options: Any) -> Tensor:
    return encoder(x, weights, **options, norm=_through(ConstantStatistics))
