"""Not a single bit: a fault in the last bit alone refutes every property that claims one, and none that compared less strictly would see it.

The targets are right but for one rule. By most rules, whether the answer is off by one unit in the last place follows from all
that was given: what a property says must not matter changes the last bit in every other case.
"""

from __future__ import annotations

import inspect
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import Tensor

from impls.mutants import (
    backward,
    backward_features,
    block,
    core,
    distances,
    feature_core,
    forget,
    layer,
    load_all,
    lookups,
    packs,
    rotations,
    sinusoids,
)
from impls.mutants.cache_core import Cache
from impls.mutants.registry import _prepare
from properties.catalogue import PROPERTIES
from properties.engine.cases.coordinates import Array
from properties.engine.core.attempt import try_case
from properties.engine.core.trial import Trial
from properties.engine.search.probe import make_target
from properties.engine.search.search import Plan, inapplicable, search

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
    """What is scaled in place and back comes out off by one unit."""
    answer = right(*args, **options)
    for x in args:
        for each in x.values() if isinstance(x, dict) else (x,):
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
ROTARY = partial(made, right=rotations.rotary, contract="rotary")
LEARNED = partial(made, right=lookups.learned, contract="learned")


def gradients_by(rule: Rule, names: str = "qkv") -> Any:
    return partial(backward_by, rule, names)


TARGETS: dict[str, Callable[[], Any]] = {
    # softmax, values, masks, causality, symmetry
    **{name: lambda: PLAIN(by_content) for name in (
        "a_single_key_gives_its_value", "flipped_value_signs_flip_the_output", "masked_garbage_changes_nothing", "masked_nan_is_contained",
        "masks_stay_with_their_batch_and_head", "future_tokens_are_ignored", "batch_elements_are_independent", "heads_are_independent",
        "flipped_feature_signs_change_nothing", "powers_of_two_move_between_query_and_key",
    )},
    # purity
    "inputs_are_unchanged": lambda: PLAIN(to_argument),
    "same_call_same_bits": lambda: PLAIN(by_count),
    "calls_between_change_nothing": lambda: PLAIN(by_count),
    # features
    **{name: lambda: FEATURES(by_content) for name in (
        "keys_outside_the_window_are_ignored", "softcap_leaves_the_mask_alone", "keys_beyond_the_length_are_ignored",
    )},
    "dropout_of_zero_drops_nothing": lambda: FEATURES(by_count),
    # gradients
    **{name: lambda: BACKWARD(gradients_by(of_everything)) for name in (
        "hidden_keys_receive_no_gradient", "gradients_scale_with_the_output_gradient", "nothing_comes_of_nothing",
        "gradients_stay_in_their_batch_element_and_head",
    )},
    "rows_without_keys_poison_no_gradient": lambda: BACKWARD(gradients_by(of_everything, "q")),
    "same_gradients_every_time": lambda: BACKWARD(gradients_by(of_count)),
    "calls_in_between_change_no_gradient": lambda: BACKWARD(gradients_by(of_last_forward)),
    "keys_outside_the_window_receive_no_gradient": lambda: FEATURES_BACKWARD(gradients_by(of_everything)),
    "keys_beyond_the_length_receive_no_gradient": lambda: FEATURES_BACKWARD(gradients_by(of_everything)),
    # layers
    **{name: lambda: LAYER(by_content) for name in (
        "padding_mask_deletes_keys", "heads_touch_only_their_slice", "zero_output_projection_returns_the_bias", "layer_ignores_future_tokens",
    )},
    "layer_arguments_are_unchanged": lambda: LAYER(to_argument),
    # encoder and decoder layers
    **{name: lambda: layer_with(by_content) for name in (
        "sequences_do_not_meet", "causal_block_ignores_the_future", "padded_tokens_are_as_good_as_removed",
        "pre_norm_without_sublayers_is_the_identity", "norms_are_over_features_alone", "relu_passes_nothing_negative",
        "tokens_reach_exactly_who_sees_them",
    )},
    **{name: lambda: layer_with(by_content, "decoder_layer") for name in (
        "memory_frontier_is_exact", "padded_memory_is_as_good_as_removed", "memory_enters_through_attention_alone",
    )},
    "block_repeats_itself": lambda: layer_with(by_count),
    "block_arguments_are_unchanged": lambda: layer_with(to_argument),
    # packed sequences
    **{name: lambda: PACK(by_content) for name in (
        "sequences_do_not_see_each_other", "values_stay_in_their_sequence", "packed_future_tokens_are_ignored",
    )},
    "packed_output_has_the_right_form": lambda: PACK(by_count),
    "packed_gradients_stay_in_their_sequence": lambda: PACK(gradients_by(of_everything)),
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
    **{name: lambda: of_class(Told) for name in (
        "later_tokens_do_not_count", "sequences_do_not_mix", "padding_is_not_told", "left_padding_is_no_padding",
        "tokens_outside_the_window_are_gone", "reset_leaves_no_trace", "truncation_leaves_no_trace",
    )},
    "answers_already_given_stand": lambda: of_class(Rewritten),
    "unused_slots_do_not_count": lambda: of_class(Unused),
    "cache_keeps_copies": lambda: of_class(KeepsReferences),
    "append_leaves_its_arguments": lambda: of_class(ToArguments),
    "fork_is_independent": lambda: of_class(ForkShares),
    "caches_share_nothing": lambda: of_class(AllShare),
}  # fmt: skip
NOT_OF_BITS = {
    # form, memory and refusals: no number is compared
    "outputs_alias_no_input", "output_has_the_right_form", "gradients_reach_every_input", "layer_output_has_the_right_form",
    "block_output_has_the_right_form", "answers_have_the_right_form", "positions_out_of_range_raise",
    # whole numbers: a target whose buckets are none is refused
    "finding_buckets_leaves_the_distances", "small_distances_have_their_own_bucket", "buckets_grow_with_distance", "buckets_are_in_range",
    "far_distances_share_a_bucket", "past_and_future_have_buckets_of_their_own", "one_direction_does_not_look_ahead",
    # that something does change, or differ: a last bit is enough, see below
    "every_weight_is_used", "every_memory_token_matters", "slopes_are_positive_and_decrease",
}  # fmt: skip


def compares_bits(name: str) -> bool:
    """Whether the check of a property, or what it shares with its neighbours, compares bit for bit."""
    return any(word in inspect.getsource(PROPERTIES[name].check) for word in ("same_bits(", " same(t", "receive_nothing("))


def test_every_property_that_compares_bits_is_here() -> None:
    """A new one needs a target above."""
    assert set(TARGETS) == {name for name in PROPERTIES if compares_bits(name)} - NOT_OF_BITS
    assert {name for name, prop in PROPERTIES.items() if prop.exact} <= set(TARGETS) | NOT_OF_BITS
    assert {name for name in NOT_OF_BITS if compares_bits(name)} == {
        name for name in NOT_OF_BITS if PROPERTIES[name].contract == "buckets"} - {"buckets_grow_with_distance", "buckets_are_in_range"}  # fmt: skip


# ---------------------------------------------------------------- they are refuted, and not by a looser comparison


@pytest.fixture(autouse=True)
def fresh_state() -> Iterator[None]:
    STATE.update(calls=0, forward=0, said=0)
    forget()
    yield
    forget()


def loosely(near: Callable[[Array, Array], Array]) -> Callable[..., None]:
    """same_bits as it would be if it compared like this."""

    def same(self: Trial, actual: Array, expected: Array, says: str, where: Array | bool = True) -> None:
        actual, expected = np.asarray(actual, dtype=np.float64), np.asarray(expected, dtype=np.float64)
        with np.errstate(invalid="ignore"):
            equal = (actual == expected) | (np.isnan(actual) & np.isnan(expected)) | near(actual, expected)
        self._settle(~equal & where, actual, expected, np.zeros(actual.shape), says)

    return same


LOOSER: dict[str, Callable[[Array, Array], Array]] = {
    "1e-12": lambda a, b: np.abs(a - b) <= 1e-12,
    "one unit": lambda a, b: np.abs(a - b) <= np.spacing(np.maximum(np.abs(a), np.abs(b))) + np.finfo(float).tiny,  # of 0, units are doubled
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", TARGETS)
def test_a_fault_in_the_last_bit_is_refuted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In float64, where one unit of a small number is below 1e-12; a comparison that forgives as little as that sees nothing."""
    target, prop = make_target(name, TARGETS[name]()), PROPERTIES[name]
    assert not inapplicable(target, prop)
    finding = search(target, prop, Plan(shrink=False, dtypes=("float64",))).finding
    assert finding and not finding.violation.raised and finding.violation.allowed == 0
    for what, near in LOOSER.items():
        monkeypatch.setattr(Trial, "same_bits", loosely(near))
        for case in finding.failing:
            violation = try_case(target, prop, case)
            assert violation is None, f"{what}: {case}: {violation.says}"


# ---------------------------------------------------------------- mutants

MUTANTS = {name: each for name, each in load_all()[0].items() if name.startswith("last_bits")}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_of_the_last_bits_is_off_by_no_more(name: str) -> None:
    """What refutes it in float64 is less than any tolerance forgives, or does not even repeat."""
    mutant = MUTANTS[name]
    forget()
    target, prop = make_target(f"mutants.{name}", mutant.function), PROPERTIES[mutant.killed_by]
    finding = search(target, prop, Plan(shrink=False, dtypes=("float64",))).finding
    assert finding and finding.violation.allowed == 0
    off = finding.violation.difference <= 1e-12 * max(1.0, abs(finding.violation.expected))
    assert off or "does not repeat" in finding.violation.says


def test_every_property_that_compares_bits_names_such_a_mutant() -> None:
    elsewhere = {"dropout_of_zero_drops_nothing", "rows_without_keys_poison_no_gradient"}  # to which bits are a side issue
    assert {each.killed_by for each in MUTANTS.values()} == set(TARGETS) - elsewhere


# ---------------------------------------------------------------- where something must change, a last bit is a change


def sign_of(name: str) -> Any:
    """The right layer without one of its weights, of which it knows but the sign of the first number: that decides over a last bit."""

    def rule(right: Any, x: Tensor, weights: Any, **options: Any) -> Tensor:
        out = right(x, {**weights, name: torch.ones_like(weights[name])} if name in weights else weights, **options)
        return ulp(out) if name in weights and bool(weights[name].reshape(-1)[0] < 0) else out

    return made(rule, block.encoder, "encoder_layer")


def test_a_weight_is_used_if_a_bit_depends_on_it() -> None:
    plan, prop = Plan(examples=20, shrink=False, dtypes=("float64",)), PROPERTIES["every_weight_is_used"]
    assert search(make_target("used", sign_of("b_1")), prop, plan).finding is None
    unused = made(lambda right, x, weights, **options: right(x, {n: w for n, w in weights.items() if n != "b_1"}, **options), block.encoder,
                  "encoder_layer")
    assert search(make_target("unused", unused), prop, plan).finding is not None


def test_slopes_a_bit_apart_are_not_alike() -> None:
    def slopes(num_heads: int, dtype: Any = None, apart: bool = True) -> Tensor:
        right = distances.slopes(num_heads, dtype=dtype)
        if num_heads > 1:
            right[1] = torch.nextafter(right[0], torch.zeros_like(right[0])) if apart else right[0]
        return right

    plan, prop = Plan(examples=40, shrink=False, dtypes=("float64",)), PROPERTIES["slopes_are_positive_and_decrease"]
    assert search(make_target("apart", made(lambda right, *a, **o: slopes(*a, **o), None, "slopes")), prop, plan).finding is None
    alike = search(make_target("alike", made(lambda right, *a, **o: slopes(*a, **o, apart=False), None, "slopes")), prop, plan).finding
    assert alike and not alike.violation.raised
