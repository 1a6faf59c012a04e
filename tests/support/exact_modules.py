"""A module of attention that is right, written once more, and one mistake for every property of modules.

They know no implementation; what has a cache, or is given angles, is that which the mutants change.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from exact_slopes import squared
from late import Late
from torch import Tensor, nn

from impls.mutants.module import honest_modules, module_caches, module_images
from properties.engine.core.target import Target
from properties.engine.search.probe import make_target

INF = float("inf")


class Right(nn.Module):
    """forward(x, context, mask (B, S) True = seen, is_causal); what a mistake changes is a method of its own."""

    def __init__(self, dim: int, heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.to_q, self.to_kv, self.to_out = nn.Linear(dim, dim), nn.Linear(dim, 2 * dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor, context: Tensor | None = None, mask: Tensor | None = None, is_causal: bool = False) -> Any:
        return self.whole(self.before(x), None if context is None else self.context(context), mask, is_causal)

    def whole(self, x: Tensor, context: Tensor | None, mask: Tensor | None, is_causal: bool) -> Any:
        memory = x if context is None else context
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in (self.to_q(x), *self.keys(self.to_kv(memory)).chunk(2, -1)))
        seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool)
        seen = (seen.tril() if is_causal else seen).expand(len(x), 1, -1, -1)
        seen = self.seen(seen, mask, is_causal)
        weights = self.weights(q @ k.mT * q.shape[-1] ** -0.5, seen)
        return self.after(self.to_out((self.drop(weights) @ v).transpose(1, 2).flatten(2)), x)

    def before(self, x: Tensor) -> Tensor:
        return x

    def context(self, context: Tensor) -> Tensor:
        return context

    def keys(self, kv: Tensor) -> Tensor:
        return kv

    def seen(self, seen: Tensor, mask: Tensor | None, is_causal: bool) -> Tensor:
        return seen if mask is None else seen & mask[:, None, None]

    def weights(self, logits: Tensor, seen: Tensor) -> Tensor:
        return logits.masked_fill(~seen, -INF).softmax(-1)

    def drop(self, weights: Tensor) -> Tensor:
        return nn.functional.dropout(weights, self.dropout, self.training)

    def after(self, out: Tensor, x: Tensor) -> Tensor:
        return out


def wrong(**changes: Any) -> type[Right]:
    """A class with other methods."""
    return type("Wrong", (Right,), changes)


def module_with(**changes: Any) -> Target:
    return make_target("wrong", wrong(**changes))


def counted(self: Any, out: Tensor, x: Tensor) -> Tensor:
    """Something of the first call is left in the second."""
    first = self.__dict__.setdefault("first", out.detach().mean() / 8)
    return out if torch.is_grad_enabled() else out + first


def norming(self: Any, x: Tensor) -> Tensor:
    self.to_q.weight.data.mul_(0.99)
    return x


def kept(self: Any, out: Tensor, x: Tensor) -> Tensor:
    if torch.is_grad_enabled():
        return out
    held = self.__dict__.setdefault("held", {})
    return held.setdefault((out.shape, out.dtype), torch.empty_like(out)).copy_(out)


def in_place(self: Any, x: Tensor) -> Tensor:
    return x if torch.is_grad_enabled() else x.add_(1)


def hidden(self: Any, dim: int, heads: int, dropout: float = 0.0) -> None:
    Right.__init__(self, dim, heads, dropout)
    self.offset = float(torch.rand(()))


def unused(self: Any, dim: int, heads: int, dropout: float = 0.0) -> None:
    Right.__init__(self, dim, heads, dropout)
    self.gamma = nn.Parameter(torch.ones(dim))


def tied(self: Any, dim: int, heads: int, dropout: float = 0.0) -> None:
    Right.__init__(self, dim, heads, dropout)
    self.norm1 = self.norm2 = nn.LayerNorm(dim)


def fading(self: Any, kv: Tensor) -> Tensor:
    return kv * torch.tensor([0.8**n for n in range(kv.shape[1])], dtype=kv.dtype)[:, None]


def not_the_last(self: Any, kv: Tensor) -> Tensor:
    return torch.cat([kv[:, :-1], kv[:, :1]], 1)


def plus(self: Any, out: Tensor, x: Tensor) -> Tensor:
    return out + torch.rand(()).to(out.dtype)


MODULE = make_target("an exact module", Right)
EXACT = {"module": MODULE}
WRONG: dict[str, Callable[..., Any]] = {
    "module_gradients_are_slopes": wrong(keys=lambda self, kv: (kv + kv.detach()) / 2),
    "module_second_derivatives_are_bends": wrong(after=lambda self, out, x: squared(out)),
    "module_future_tokens_are_ignored": wrong(before=lambda self, x: x - x.mean(1, keepdim=True)),
    "module_prefix_of_output_is_output_of_prefix": wrong(after=lambda self, out, x: out * x.shape[1]),
    "module_every_token_is_seen": wrong(keys=not_the_last),
    "module_every_token_of_the_memory_is_seen": wrong(context=lambda self, c: torch.cat([c[:, :-1], c[:, :1] * 0], 1)),
    "module_batch_elements_are_independent": wrong(after=lambda self, out, x: out + out.sum((0, 1))),
    "module_a_batch_is_its_sequences": wrong(after=lambda self, out, x: out * len(out)),
    "module_permuted_tokens_permute_rows": wrong(keys=fading),
    "module_the_past_has_no_order": wrong(keys=fading),
    "module_the_memory_has_no_order": wrong(keys=fading),
    "module_rows_meet_only_the_memory": wrong(before=lambda self, x: x - x.mean(1, keepdim=True)),
    "module_equal_tokens_answer_as_one": wrong(after=lambda self, out, x: out * x.shape[1]),
    "module_a_memory_twice_is_the_memory": wrong(weights=lambda self, s, seen: s.masked_fill(~seen, -INF).exp()),
    "module_tokens_twice_are_the_tokens": wrong(after=lambda self, out, x: out * x.shape[1]),
    "module_hidden_tokens_are_ignored": wrong(seen=lambda self, seen, mask, is_causal: seen),
    "module_padding_is_as_good_as_removed": wrong(weights=lambda self, s, seen: s.softmax(-1) * seen),
    "module_a_mask_of_all_seen_changes_nothing": wrong(
        seen=lambda self, seen, mask, is_causal: (
            seen if mask is None else seen & mask[:, None, None].roll(1, 0) & seen.new_ones(seen.shape).triu(-1)
        )
    ),
    "module_a_mask_stays_with_its_sequence": wrong(seen=lambda self, seen, mask, is_causal: seen if mask is None else seen & mask.all(0)),
    "module_a_mask_leaves_causality": wrong(
        seen=lambda self, seen, mask, is_causal: seen if mask is None else mask[:, None, None].expand_as(seen)
    ),
    "module_the_same_call_gives_the_same_bits": wrong(after=plus),
    "module_arguments_are_unchanged": wrong(before=in_place),
    "module_weights_are_unchanged": wrong(before=norming),
    "module_nothing_is_remembered": wrong(after=counted),
    "module_an_answer_stays": wrong(after=kept),
    "module_output_has_the_right_form": wrong(after=lambda self, out, x: out.float()),
    "module_large_tokens_give_finite_rows": wrong(
        weights=lambda self, s, seen: (e := s.masked_fill(~seen, -INF).exp()) / e.sum(-1, keepdim=True)
    ),
    "module_train_is_eval_without_dropout": wrong(after=lambda self, out, x: out * (2 if self.training else 1)),
    "module_dropout_is_off_in_eval": wrong(drop=lambda self, w: nn.functional.dropout(w, self.dropout)),
    "module_dropout_is_on_in_train": wrong(drop=lambda self, w: w),
    "module_recording_changes_nothing": wrong(after=lambda self, out, x: out + torch.is_grad_enabled()),
    "module_gradients_reach_every_parameter": wrong(__init__=unused),
    "module_no_parameter_serves_twice": wrong(__init__=tied),
    "module_the_state_is_all_of_it": wrong(__init__=hidden, after=lambda self, out, x: out + self.offset),
    "module_is_the_attention_of_its_projections": wrong(
        weights=lambda self, s, seen: (s * s.shape[1] ** -0.5).masked_fill(~seen, -INF).softmax(-1)
    ),
    "module_is_as_near_to_its_twin_as_rounding_explains": wrong(after=lambda self, out, x: out.bfloat16().to(x.dtype)),
}


CACHED = (
    "module_a_cache_answers_as_no_cache",
    "module_asking_for_a_cache_changes_nothing",
    "module_a_second_sequence_starts_anew",
    "module_cached_sequences_are_independent",
    "module_a_cache_can_be_continued_twice",
)
TURNED = ("module_rotations_tell_distances_alone", "module_equal_tokens_give_equal_rows")
OF_IMAGES = ("module_permuted_lines_permute_rows", "module_without_its_positions_order_does_not_matter")
# What needs more than the exact module has: a cache, angles, or images.
EXACT_FOR = Late(
    dict.fromkeys((*CACHED, "module_gradients_reach_every_head"), honest_modules.HandsBack)
    | dict.fromkeys(TURNED, honest_modules.IsTurned)
    | dict(zip(OF_IMAGES, (honest_modules.SeesLinesAndColumns, honest_modules.PoolsAnImage), strict=True))
)
WRONG |= zip(
    (*CACHED, *TURNED, "module_gradients_reach_every_head", *OF_IMAGES),
    (
        module_caches.RestartedPositions,
        module_caches.AskedUnscaled,
        module_caches.CountsOn,
        module_caches.KeptMean,
        module_caches.AppendedInPlace,
        module_caches.RotatedValues,
        module_caches.BiasOfWeights,
        module_caches.WithoutLastHead,
        module_images.LinesSplitByView,
        module_images.PixelsReshaped,
    ),
    strict=True,
)
MISTAKES = Late(WRONG)
