"""Targets that are right but for the last bit of an answer, one for every property that compares bit for bit.

By most rules, whether the answer is off by one unit in the last place follows from all that was given: what a property says must
not matter changes the last bit in every other case.
"""

from __future__ import annotations

import inspect
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from impls.mutants.attention import backward, backward_features, core, feature_core
from impls.mutants.block import block
from impls.mutants.linear import linear
from impls.mutants.multihead import layer
from impls.mutants.position import lookups, rotations, sinusoids

from impls.mutants.pack import packs  # isort: skip
from impls.mutants.cache.cache_core import Cache
from impls.mutants.registry import _prepare

SMALL = 1024.0  # one unit in the last place is below 2^-42 here, less than the loosest comparison below


# ---------------------------------------------------------------- one unit in the last place, and when


def ulp(x: Tensor) -> Tensor:
    """x one unit in the last place farther from zero, where it is small but no subnormal, of which a unit is no small part."""
    if x.dtype not in (torch.float64, torch.float32):
        return x
    off = (x == 0) | ((x.abs() > 16 * torch.finfo(x.dtype).tiny) & (x.abs() < SMALL))
    return torch.where(off, torch.nextafter(x, torch.copysign(torch.full_like(x, torch.inf), x)), x)


def digest(*given: Any) -> int:
    """A number that follows from every bit of what is given."""
    number = 0
    for x in given:
        if isinstance(x, dict):
            number += digest(*x.values())
        elif isinstance(x, tuple | list):
            number += digest(*x)
        elif isinstance(x, Tensor):
            number += zlib.crc32((x.detach().double() if x.is_floating_point() else x).numpy().tobytes())
        else:
            number += zlib.crc32(repr(x).encode())
    return number


def odd(*given: Any) -> bool:
    """Whether what is given is of the kind that the fault strikes: every other call."""
    return (digest(*given) * 2654435761 >> 16) % 2 == 1


STATE: dict[str, Any] = {"calls": 0, "forward": 0, "said": 0}


def first(answer: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """An answer with its output changed, whatever comes beside it."""
    return (change(answer[0]), *answer[1:]) if isinstance(answer, tuple) else change(answer)


def by_content(right: Any, *args: Any, **options: Any) -> Any:
    """Off by one unit as what is given decides: a function of all its arguments."""
    answer = right(*args, **options)
    return first(answer, ulp) if odd(args, options) else answer


def by_count(right: Any, *args: Any, **options: Any) -> Any:
    """Off by one unit now and then, as after a race between threads."""
    STATE["calls"] += 1
    answer = right(*args, **options)
    return first(answer, ulp) if odd(STATE["calls"]) else answer


def to_argument(right: Any, *args: Any, **options: Any) -> Any:
    """What is scaled in place and back comes out off by one unit; an array that is given twice, too."""
    answer = right(*args, **options)
    given = [each for x in args for each in (x.values() if isinstance(x, dict) else (x,))]
    for each in {id(each): each for each in given}.values():
        if isinstance(each, Tensor) and all(stride or size == 1 for stride, size in zip(each.stride(), each.shape, strict=True)):
            each.copy_(ulp(each) if each.is_floating_point() else each)
    return answer


# ---------------------------------------------------------------- gradients


class Back(torch.autograd.Function):
    """x; its gradient goes through a function."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.change = change
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return ctx.change(grad), None


Rule = Callable[[int, Tensor], bool]


def backward_by(rule: Rule, names: str, right: Any, *args: Any, **options: Any) -> Any:
    """A right answer; the gradients of these are off by one unit where a rule says so of (digest of the forward pass, dO)."""
    number, off = digest(args, options), [False]
    STATE["forward"] = number

    def told(grad: Tensor) -> Tensor:
        off[0] = rule(number, grad)
        return grad

    def sent(grad: Tensor) -> Tensor:
        return ulp(grad) if off[0] else grad

    leaves = [Back.apply(x, sent) if name in names else x for name, x in zip("qkv", args)]
    return Back.apply(right(*leaves, *args[3:], **options), told)


def of_everything(number: int, grad: Tensor) -> bool:
    """As what was given decides, dO among it."""
    return odd(number, grad)


def of_count(number: int, grad: Tensor) -> bool:
    """Now and then."""
    STATE["calls"] += 1
    return odd(STATE["calls"])


def of_last_forward(number: int, grad: Tensor) -> bool:
    """Where another forward pass came in between."""
    return bool(STATE["forward"] != number)


# ---------------------------------------------------------------- caches


class Told(Cache):
    """A right cache, off by one unit as a number decides that follows from what was told."""

    def append(self, q: Tensor, k: Tensor, v: Tensor, **counts: Any) -> Tensor:
        self.told = getattr(self, "told", 0) + digest(q, k, v)
        out = super().append(q, k, v, **counts)
        return ulp(out) if self.off(q, k, v) else out

    def off(self, q: Tensor, k: Tensor, v: Tensor) -> bool:
        return odd(self.told)  # never reset, never truncated, and what has left a window still counts


class ForkShares(Told):
    def fork(self) -> Cache:
        copy: Any = super().fork()
        copy.shared = self.shared = getattr(self, "shared", [0])
        return copy

    def off(self, q: Tensor, k: Tensor, v: Tensor) -> bool:
        if hasattr(self, "shared"):
            self.shared[0] += digest(q, k, v)
            return odd(self.shared[0])
        return False


class AllShare(Told):
    def off(self, q: Tensor, k: Tensor, v: Tensor) -> bool:
        STATE["said"] += digest(q, k, v)
        return odd(STATE["said"])


class Unused(Told):
    def off(self, q: Tensor, k: Tensor, v: Tensor) -> bool:
        return odd(self.k, self.v)


class KeepsReferences(Told):
    """Looks at the caller's array of the last chunk; the arrays of chunks of the same size are the same memory."""

    def append(self, q: Tensor, k: Tensor, v: Tensor, **counts: Any) -> Tensor:
        out = Cache.append(self, q, k, v, **counts)
        off = hasattr(self, "given") and odd(self.given)
        self.given = k
        return ulp(out) if off else out


class Rewritten(Told):
    def append(self, q: Tensor, k: Tensor, v: Tensor, **counts: Any) -> Tensor:
        out = Cache.append(self, q, k, v, **counts)
        if hasattr(self, "last"):
            self.last.copy_(ulp(self.last))
        self.last = out
        return out


class ToArguments(Told):
    def append(self, q: Tensor, k: Tensor, v: Tensor, **counts: Any) -> Tensor:
        return to_argument(partial(Cache.append, self), q, k, v, **counts)


# ---------------------------------------------------------------- a target for every property


def made(rule: Any, right: Any, contract: str = "attention", **supports: Any) -> Any:
    """A right attention, or whatever the contract is, with its fault."""

    def function(*args: Any, **options: Any) -> Any:
        return rule(right, *args, **options)

    _prepare(function, contract, supports)
    return function


def of_class(kind: type) -> Any:
    """A class of caches with what the registry gives every one."""
    kind.append.__signature__ = inspect.signature(Cache.append)  # type: ignore[attr-defined]
    _prepare(kind, "cached", None)
    return kind


def layer_with(rule: Any, contract: str = "encoder_layer") -> Any:
    return made(rule, block.encoder if contract == "encoder_layer" else block.decoder, contract)


PLAIN = partial(made, right=core.attention)
FEATURES = partial(made, right=feature_core.attention, **feature_core.FACTS)
BACKWARD = partial(made, right=backward.attention)
FEATURES_BACKWARD = partial(made, right=backward_features.attention, **backward_features.FACTS)
LAYER = partial(made, right=layer.multihead, contract="multihead")
PACK = partial(made, right=packs.attention, contract="packed")
LINEAR = partial(made, right=linear.attention, contract="linear")
ROTARY = partial(made, right=rotations.rotary, contract="rotary")
LEARNED = partial(made, right=lookups.learned, contract="learned")


def gradients_by(rule: Rule, names: str = "qkv") -> Any:
    return partial(backward_by, rule, names)


TARGETS: dict[str, Callable[[], Any]] = {
    # softmax, values, masks, causality, symmetry
    **{
        name: lambda: PLAIN(by_content)
        for name in (
            "a_single_key_gives_its_value",
            "flipped_value_signs_flip_the_output",
            "masked_garbage_changes_nothing",
            "masked_nan_is_contained",
            "masks_stay_with_their_batch_and_head",
            "future_tokens_are_ignored",
            "batch_elements_are_independent",
            "heads_are_independent",
            "flipped_feature_signs_change_nothing",
            "powers_of_two_move_between_query_and_key",
        )
    },
    # purity
    "inputs_are_unchanged": lambda: PLAIN(to_argument),
    "same_call_same_bits": lambda: PLAIN(by_count),
    "calls_between_change_nothing": lambda: PLAIN(by_count),
    # features
    **{
        name: lambda: FEATURES(by_content)
        for name in (
            "keys_outside_the_window_are_ignored",
            "softcap_leaves_the_mask_alone",
            "keys_beyond_the_length_are_ignored",
        )
    },
    "dropout_of_zero_drops_nothing": lambda: FEATURES(by_count),
    # gradients
    **{
        name: lambda: BACKWARD(gradients_by(of_everything))
        for name in (
            "hidden_keys_receive_no_gradient",
            "gradients_scale_with_the_output_gradient",
            "nothing_comes_of_nothing",
            "gradients_stay_in_their_batch_element_and_head",
        )
    },
    "rows_without_keys_poison_no_gradient": lambda: BACKWARD(gradients_by(of_everything, "q")),
    "same_gradients_every_time": lambda: BACKWARD(gradients_by(of_count)),
    "calls_in_between_change_no_gradient": lambda: BACKWARD(gradients_by(of_last_forward)),
    "keys_outside_the_window_receive_no_gradient": lambda: FEATURES_BACKWARD(gradients_by(of_everything)),
    "keys_beyond_the_length_receive_no_gradient": lambda: FEATURES_BACKWARD(gradients_by(of_everything)),
    # layers
    **{
        name: lambda: LAYER(by_content)
        for name in (
            "padding_mask_deletes_keys",
            "heads_touch_only_their_slice",
            "zero_output_projection_returns_the_bias",
            "layer_ignores_future_tokens",
        )
    },
    "layer_arguments_are_unchanged": lambda: LAYER(to_argument),
    # encoder and decoder layers
    **{
        name: lambda: layer_with(by_content)
        for name in (
            "sequences_do_not_meet",
            "causal_block_ignores_the_future",
            "padded_tokens_are_as_good_as_removed",
            "pre_norm_without_sublayers_is_the_identity",
            "norms_are_over_features_alone",
            "relu_passes_nothing_negative",
            "tokens_reach_exactly_who_sees_them",
        )
    },
    **{
        name: lambda: layer_with(by_content, "decoder_layer")
        for name in (
            "memory_frontier_is_exact",
            "padded_memory_is_as_good_as_removed",
            "memory_enters_through_attention_alone",
        )
    },
    "block_repeats_itself": lambda: layer_with(by_count),
    "block_arguments_are_unchanged": lambda: layer_with(to_argument),
    # packed sequences
    **{
        name: lambda: PACK(by_content)
        for name in (
            "sequences_do_not_see_each_other",
            "values_stay_in_their_sequence",
            "packed_future_tokens_are_ignored",
        )
    },
    "packed_output_has_the_right_form": lambda: PACK(by_count),
    "packed_gradients_stay_in_their_sequence": lambda: PACK(gradients_by(of_everything)),
    # linear attention
    **{name: lambda: LINEAR(by_content) for name in ("linear_future_tokens_are_ignored", "states_are_not_shared")},
    "linear_output_has_the_right_form": lambda: LINEAR(by_count),
    # positions
    "positions_start_at_zero": lambda: made(by_content, sinusoids.sinusoidal, "sinusoidal"),
    "position_zero_is_the_identity": lambda: ROTARY(by_content),
    "pairs_are_as_declared": lambda: ROTARY(by_content),
    "features_beyond_rotary_dim_are_untouched": lambda: ROTARY(by_content),
    "rows_turn_by_their_own_position": lambda: ROTARY(by_content),
    "rotation_leaves_its_arguments": lambda: ROTARY(to_argument),
    "looked_up_rows_are_those_of_the_table": lambda: LEARNED(by_content),
    "other_rows_of_the_table_do_not_matter": lambda: LEARNED(by_content),
    "looking_up_leaves_its_arguments": lambda: LEARNED(to_argument),
    "positions_have_the_right_form": lambda: LEARNED(by_count),
    # caches
    **{
        name: lambda: of_class(Told)
        for name in (
            "later_tokens_do_not_count",
            "sequences_do_not_mix",
            "padding_is_not_told",
            "left_padding_is_no_padding",
            "tokens_outside_the_window_are_gone",
            "reset_leaves_no_trace",
            "truncation_leaves_no_trace",
        )
    },
    "answers_already_given_stand": lambda: of_class(Rewritten),
    "unused_slots_do_not_count": lambda: of_class(Unused),
    "cache_keeps_copies": lambda: of_class(KeepsReferences),
    "append_leaves_its_arguments": lambda: of_class(ToArguments),
    "fork_is_independent": lambda: of_class(ForkShares),
    "caches_share_nothing": lambda: of_class(AllShare),
}
