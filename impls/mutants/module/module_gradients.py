"""Modules: right answers, wrong gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .modular import Attention, wrong

KILLER = "module_gradients_are_slopes"


class WithoutTheSum(torch.autograd.Function):
    """softmax, whose backward pass is p dp, not p (dp − Σ p dp)."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor) -> Tensor:
        p = logits.softmax(-1)
        ctx.save_for_backward(p)
        return p

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (p,) = ctx.saved_tensors
        return p * grads[0]


@wrong("the backward pass of a softmax by hand forgets the sum over the row", KILLER)
class SoftmaxWithoutTheSum(Attention):
    def weigh(self, logits: Tensor) -> Tensor:
        return WithoutTheSum.apply(logits)


class Unscaled(torch.autograd.Function):
    """x · scale, whose backward pass is the identity."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float) -> Tensor:
        return x * scale

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0], None


@wrong("the backward pass forgets the scale", KILLER)
class ScaleForgottenBackward(Attention):
    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        return Unscaled.apply(q @ k.transpose(-2, -1), self.head_dim**-0.5)


@wrong("keys are projected from tokens of which no gradient is taken", KILLER)
class KeysOfDetachedTokens(Attention):
    def project(self, x: Tensor, memory: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.q_proj(x), self.k_proj(memory.detach()), self.v_proj(memory)


@wrong("weights are squared in the forward pass alone", KILLER)
class StraightThrough(Attention):
    def weigh(self, logits: Tensor) -> Tensor:
        p = logits.softmax(-1)
        return p + (p**2 - p).detach()


class OnceOnly(torch.autograd.Function):
    """softmax with a right backward pass, of numbers that the graph does not know."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor) -> Tensor:
        p = logits.softmax(-1)
        ctx.p = p.detach()
        return p

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        inner = ctx.p * grads[0]
        return inner - ctx.p * inner.sum(-1, keepdim=True)


@wrong(
    "a backward pass by hand can be differentiated again, and what it kept of the forward pass is a constant",
    "module_second_derivatives_are_bends",
)
class WeightsAreConstantsBackward(Attention):
    def weigh(self, logits: Tensor) -> Tensor:
        return OnceOnly.apply(logits)
