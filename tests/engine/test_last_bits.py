"""Not a single bit: a fault in the last bit alone refutes every property that claims one, and none that compared less strictly would see it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from last_bits import STATE, TARGETS, made, ulp
from torch import Tensor

from impls.mutants import forget, load_all
from impls.mutants.block import block
from impls.mutants.position import distances
from properties.catalogue import PROPERTIES
from properties.engine.cases.coordinates import Array
from properties.engine.core.attempt import try_case
from properties.engine.core.trial import Trial
from properties.engine.search.probe import make_target
from properties.engine.search.search import Plan, inapplicable, search

NOT_OF_BITS = {
    # form, memory and refusals: no number is compared
    "outputs_alias_no_input",
    "output_has_the_right_form",
    "gradients_reach_every_input",
    "layer_output_has_the_right_form",
    "block_output_has_the_right_form",
    "answers_have_the_right_form",
    "positions_out_of_range_raise",
    # whole numbers: a target whose buckets are none is refused
    "finding_buckets_leaves_the_distances",
    "small_distances_have_their_own_bucket",
    "buckets_grow_with_distance",
    "buckets_are_in_range",
    "far_distances_share_a_bucket",
    "past_and_future_have_buckets_of_their_own",
    "one_direction_does_not_look_ahead",
    # that something does change, or differ: a last bit is enough, see below
    "every_weight_is_used",
    "every_memory_token_matters",
    "slopes_are_positive_and_decrease",
}


ELSEWHERE = ("module",)  # test_last_bits_modules.py


def compares_bits(name: str) -> bool:
    """Whether the check of a property, or what it shares with its neighbours, compares bit for bit."""
    source = re.sub(r"\(\s+", "(", inspect.getsource(PROPERTIES[name].check))
    return any(word in source for word in ("same_bits(", " same(t", "receive_nothing(", "    unchanged(t"))


def test_every_property_that_compares_bits_is_here() -> None:
    """A new one needs a target above."""
    known = {name: prop for name, prop in PROPERTIES.items() if prop.contract not in ELSEWHERE}
    assert set(TARGETS) == {name for name in known if compares_bits(name)} - NOT_OF_BITS
    assert {name for name, prop in known.items() if prop.exact} <= set(TARGETS) | NOT_OF_BITS
    assert {name for name in NOT_OF_BITS if compares_bits(name)} == {
        name for name in NOT_OF_BITS if PROPERTIES[name].contract == "buckets"
    } - {"buckets_grow_with_distance", "buckets_are_in_range"}


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
    "one unit": lambda a, b: (
        np.abs(a - b) <= np.spacing(np.maximum(np.abs(a), np.abs(b))) + np.finfo(float).tiny
    ),  # of 0, units are doubled
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

MUTANTS = {name: each for name, each in load_all()[0].items() if "last_bits" in name}


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
    unused = made(
        lambda right, x, weights, **options: right(x, {n: w for n, w in weights.items() if n != "b_1"}, **options),
        block.encoder,
        "encoder_layer",
    )
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
