"""Not a single bit, of modules: a fault in the last bit alone refutes every property that claims one, and a looser comparison sees nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from last_bits import odd, ulp
from torch import Tensor

from impls.mutants.module.honest_modules import HandsBack
from impls.mutants.module.modular import Attention
from properties.catalogue import PROPERTIES
from properties.engine.cases.coordinates import Array
from properties.engine.core.attempt import try_case
from properties.engine.core.trial import Trial
from properties.engine.search.probe import make_target
from properties.engine.search.search import Plan, inapplicable, search


class ByContent(Attention):
    """Off by one unit as all decides that is given."""

    def attend(self, x: Tensor, memory: Tensor, mask: Tensor | None, is_causal: bool) -> Tensor:
        out: Tensor = super().attend(x, memory, mask, is_causal)
        return ulp(out) if self.off(x, memory, mask) else out

    def off(self, *given: Any) -> bool:
        return odd(*given)


class ByCount(ByContent):
    """Off by one unit now and then."""

    calls = 0

    def off(self, *given: Any) -> bool:
        self.calls += 1
        return odd(self.calls)


class WithDropout(ByContent):
    def off(self, *given: Any) -> bool:
        return bool(self.dropout)


class ByLuck(ByContent):
    """As a number decides that is drawn when it is made, and is no part of its state."""

    def __init__(self, d_model: int, num_heads: int, dropout: float = 0.0) -> None:
        super().__init__(d_model, num_heads, dropout)
        self.drawn = float(torch.rand(()))

    def off(self, *given: Any) -> bool:
        return odd(self.drawn)


class ToTokens(ByContent):
    def off(self, x: Tensor, *given: Any) -> bool:
        x.copy_(ulp(x))
        return False


class ToWeights(ByContent):
    def off(self, *given: Any) -> bool:
        self.v_proj.bias.data.copy_(ulp(self.v_proj.bias.data))
        return False


class Rewritten(ByContent):
    """The answer of the last call is off by one unit from the next one on."""

    last: Any = None

    def attend(self, x: Tensor, memory: Tensor, mask: Tensor | None, is_causal: bool) -> Tensor:
        if self.last is not None:
            self.last.data.copy_(ulp(self.last.data))
        self.last = Attention.attend(self, x, memory, mask, is_causal)
        return self.last


class CachedByContent(HandsBack):
    def attend(self, x: Tensor, past: Any, asked: bool) -> Any:
        out, kept = super().attend(x, past, asked)
        return (ulp(out) if self.off(x, past) else out), kept

    def off(self, x: Tensor, past: Any) -> bool:
        return odd(x)


class CachedByCount(CachedByContent):
    calls = 0

    def off(self, x: Tensor, past: Any) -> bool:
        self.calls += 1
        return odd(self.calls)


class ToThePast(CachedByContent):
    def off(self, x: Tensor, past: Any) -> bool:
        for array in past or ():
            array.data.copy_(ulp(array.data))
        return False


TARGETS: dict[str, Any] = {
    "module_future_tokens_are_ignored": ByContent,
    "module_batch_elements_are_independent": ByContent,
    "module_rows_meet_only_the_memory": ByContent,
    "module_hidden_tokens_are_ignored": ByContent,
    "module_a_mask_leaves_causality": ByContent,
    "module_the_same_call_gives_the_same_bits": ByCount,
    "module_nothing_is_remembered": ByCount,
    "module_arguments_are_unchanged": ToTokens,
    "module_weights_are_unchanged": ToWeights,
    "module_an_answer_stays": Rewritten,
    "module_dropout_is_off_in_eval": WithDropout,
    "module_the_state_is_all_of_it": ByLuck,
    "module_a_second_sequence_starts_anew": CachedByCount,
    "module_cached_sequences_are_independent": CachedByContent,
    "module_a_cache_can_be_continued_twice": ToThePast,
}
# Form, what is finite, what must differ: no number is compared.
NOT_OF_BITS = {
    "module_output_has_the_right_form",
    "module_large_tokens_give_finite_rows",
    "module_dropout_is_on_in_train",
    "module_no_parameter_serves_twice",
}


def test_every_exact_property_of_modules_is_here() -> None:
    assert set(TARGETS) | NOT_OF_BITS == {name for name, prop in PROPERTIES.items() if prop.contract == "module" and prop.exact}


def near(self: Trial, actual: Array, expected: Array, says: str, where: Array | bool = True) -> None:
    """same_bits as it would be if it forgave 10⁻¹² of what is there."""
    actual, expected = np.asarray(actual, dtype=np.float64), np.asarray(expected, dtype=np.float64)
    equal = np.isclose(actual, expected, rtol=1e-12, atol=1e-12, equal_nan=True)
    self._settle(~equal & where, actual, expected, np.zeros(actual.shape), says)


@pytest.mark.parametrize("name", TARGETS)
def test_a_fault_in_the_last_bit_is_refuted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target, prop = make_target(name, TARGETS[name]), PROPERTIES[name]
    assert not inapplicable(target, prop)
    finding = search(target, prop, Plan(shrink=False, dtypes=("float64",))).finding
    assert finding and not finding.violation.raised
    by_bytes = name in ("module_arguments_are_unchanged", "module_weights_are_unchanged")
    assert by_bytes or finding.violation.allowed == 0
    monkeypatch.setattr(Trial, "same_bits", near)
    assert by_bytes or try_case(target, prop, finding.failing[-1]) is None
