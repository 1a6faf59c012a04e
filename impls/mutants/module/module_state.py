"""Modules: what is kept between calls, what depends on the mode, what gradients do not reach."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout

from .modular import Attention, wrong

# ---------------------------------------------------------------- modes


@wrong("dropout is applied in eval mode, too", "module_dropout_is_off_in_eval", "pytorch/pytorch#124464", "E12")
class DropoutInEval(Attention):
    def drop(self, weights: Tensor) -> Tensor:
        return dropout(weights, self.dropout)


@wrong("a tenth of all weights is dropped in every call", "module_the_same_call_gives_the_same_bits")
class DropoutAlways(Attention):
    def drop(self, weights: Tensor) -> Tensor:
        return dropout(weights, 0.1)


@wrong("dropout is taken and forgotten", "module_dropout_is_on_in_train")
class DropoutForgotten(Attention):
    def drop(self, weights: Tensor) -> Tensor:
        return weights


@wrong("dropout is never taken back after a call in eval mode", "module_dropout_is_on_in_train", "NVIDIA/Megatron-LM#411", "E13")
class DropoutLost(Attention):
    def eval(self) -> Any:
        self.lost = True
        return super().eval()

    def drop(self, weights: Tensor) -> Tensor:
        return weights if getattr(self, "lost", False) else super().drop(weights)


@wrong("in train mode the scale is left out", "module_train_is_eval_without_dropout")
class NoScaleInTrain(Attention):
    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        return super().logits(q, k) * (self.head_dim**0.5 if self.training else 1)


@wrong("in train mode masks are left out", "module_train_is_eval_without_dropout")
class NoMaskInTrain(Attention):
    def hide(self, logits: Tensor, mask: Tensor | None, causal: Tensor | None) -> Tensor:
        return logits if self.training else super().hide(logits, mask, causal)


@wrong("a fast path, taken where no gradients are recorded, forgets the bias of the values", "module_recording_changes_nothing")
class FastPath(Attention):
    def project(self, x: Tensor, memory: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().project(x, memory)
        return q, k, v if torch.is_grad_enabled() else v - self.v_proj.bias


# ---------------------------------------------------------------- state


@wrong("the keys of the first call stay", "module_nothing_is_remembered")
class KeysStay(Attention):
    kept: Tensor | None = None

    def project(self, x: Tensor, memory: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().project(x, memory)
        if self.kept is None or self.kept.shape != k.shape or self.kept.dtype != k.dtype:
            self.kept = k.detach()
        return q, self.kept if not torch.is_grad_enabled() else k, v


@wrong("the largest logit of all calls is subtracted", "module_nothing_is_remembered")
class LargestOfAll(Attention):
    largest = -1e30

    def weigh(self, logits: Tensor) -> Tensor:
        self.largest = max(self.largest, float(logits.detach().nan_to_num(neginf=-1e30).max()))
        return super().weigh(logits * (1 + self.largest / 1024))


@wrong("a statistic of the tokens is kept in eval mode, too", "module_weights_are_unchanged")
class StatisticInEval(Attention):
    seen: Tensor

    def __init__(self, d_model: int, num_heads: int, dropout: float = 0.0) -> None:
        super().__init__(d_model, num_heads, dropout)
        self.register_buffer("seen", torch.zeros(d_model))

    def project(self, x: Tensor, memory: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        self.seen.mul_(0.9).add_(0.1 * memory.detach().mean((0, 1)))
        return super().project(x, memory)


@wrong("weights are normalised in place in every call", "module_weights_are_unchanged")
class NormalisedInPlace(Attention):
    def project(self, x: Tensor, memory: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        self.q_proj.weight.data.div_(self.q_proj.weight.data.norm())
        return super().project(x, memory)


@wrong("tokens are scaled in place", "module_arguments_are_unchanged", bug="D35")
class ScaledInPlace(Attention):
    def project(self, x: Tensor, memory: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if not torch.is_grad_enabled():
            memory.mul_(0.5)
            return super().project(x, memory)
        return super().project(x * 0.5 if x is memory else x, memory * 0.5)


@wrong("the residual is added into the tokens that came in", "module_arguments_are_unchanged")
class ResidualInPlace(Attention):
    def forward(self, x: Tensor, context: Tensor | None = None, mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        return x.add_(super().forward(x, context, mask, is_causal))


@wrong("answers are written into memory that is kept", "module_an_answer_stays")
class KeptMemory(Attention):
    kept: Tensor | None = None

    def finish(self, out: Tensor) -> Any:
        out = super().finish(out)
        if torch.is_grad_enabled():
            return out
        if self.kept is None or self.kept.shape != out.shape or self.kept.dtype != out.dtype:
            self.kept = torch.empty_like(out)
        return self.kept.copy_(out)


@wrong("a token of random numbers is seen in every call", "module_the_same_call_gives_the_same_bits")
class RandomToken(Attention):
    def project(self, x: Tensor, memory: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return super().project(x, memory + 1e-3 * torch.randn_like(memory))


@wrong("a temperature that is drawn when the module is made is no part of its state", "module_the_state_is_all_of_it")
class HiddenTemperature(Attention):
    def __init__(self, d_model: int, num_heads: int, dropout: float = 0.0) -> None:
        super().__init__(d_model, num_heads, dropout)
        self.temperature = 1 + float(torch.rand(()))

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        return super().logits(q, k) / self.temperature


# ---------------------------------------------------------------- form


@wrong("the answer comes in float32, whatever the tokens are", "module_output_has_the_right_form")
class AlwaysSingle(Attention):
    def finish(self, out: Tensor) -> Any:
        return super().finish(out).float()


@wrong("a gain is a plain tensor, which is neither cast nor moved with the module", "module_output_has_the_right_form")
class GainNotCast(Attention):
    def __init__(self, d_model: int, num_heads: int, dropout: float = 0.0) -> None:
        super().__init__(d_model, num_heads, dropout)
        self.gain = torch.ones(d_model)

    def finish(self, out: Tensor) -> Any:
        return super().finish(out) * self.gain


@wrong("a row of zeros comes behind an odd number of tokens", "module_output_has_the_right_form")
class EvenLength(Attention):
    def finish(self, out: Tensor) -> Any:
        out = super().finish(out)
        return torch.cat([out, out[:, :1] * 0], 1) if out.shape[1] % 2 and out.shape[1] > 6 else out


# ---------------------------------------------------------------- gradients


@wrong("one projection serves queries and keys: the other is never used", "module_gradients_reach_every_parameter")
class OneProjection(Attention):
    def project(self, x: Tensor, memory: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.q_proj(x), self.q_proj(memory), self.v_proj(memory)


@wrong("weights are detached: queries and keys do not learn", "module_gradients_reach_every_parameter")
class Detached(Attention):
    def weigh(self, logits: Tensor) -> Tensor:
        return super().weigh(logits).detach()


@wrong("values are projected without recording gradients", "module_gradients_reach_every_parameter")
class ValuesWithoutGradient(Attention):
    def project(self, x: Tensor, memory: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, _ = super().project(x, memory)
        with torch.no_grad():
            return q, k, self.v_proj(memory)


@wrong("the output projection is made and never used", "module_gradients_reach_every_parameter", bug="D07")
class NoOutputProjection(Attention):
    def finish(self, out: Tensor) -> Any:
        return out


@wrong("a norm of queries is made, and the queries before it are used", "module_gradients_reach_every_parameter")
class NormUnused(Attention):
    def __init__(self, d_model: int, num_heads: int, dropout: float = 0.0) -> None:
        super().__init__(d_model, num_heads, dropout)
        self.q_norm = nn.LayerNorm(self.head_dim)

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        self.q_norm(q)
        return super().logits(q, k)


# ---------------------------------------------------------------- weights that are one


@wrong("two layers are made as [layer] * 2: they have the same weights", "module_no_parameter_serves_twice")
class LayerTwice(nn.Module):
    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Attention(d_model, num_heads)] * 2)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return x


@wrong("queries and keys are projected by one layer that has two names", "module_no_parameter_serves_twice")
class OneLayer(Attention):
    def __init__(self, d_model: int, num_heads: int, dropout: float = 0.0) -> None:
        super().__init__(d_model, num_heads, dropout)
        self.q_proj = self.k_proj
