"""Functions of TensorFlow are called with its tensors, and answer in NumPy's arrays; here a small library stands for it."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from properties.catalogue import PROPERTIES
from properties.engine.frameworks.tensors import answering_in_arrays
from properties.engine.search.probe import make_target
from properties.engine.search.run import verify_target
from properties.engine.search.search import Plan


class Tensor:
    def __init__(self, held: Any) -> None:
        self.held = held

    def numpy(self) -> Any:
        return self.held


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    made: Any = ModuleType("tensorflow")
    made.Tensor, made.convert_to_tensor = Tensor, Tensor
    monkeypatch.setitem(sys.modules, "tensorflow", made)
    monkeypatch.setitem(globals(), "tf", made)
    monkeypatch.delitem(globals(), "torch", raising=False)
    return made  # type: ignore[no-any-return]


def attention(q: Any, k: Any, v: Any, mask: Any = None, twice: bool = False) -> Any:
    assert all(isinstance(x, Tensor) for x in (q, k, v)) and (mask is None or isinstance(mask, Tensor))
    logits = q.held @ np.swapaxes(k.held, -1, -2) / max(q.held.shape[-1], 1) ** 0.5 * (1 + twice)
    logits = logits if mask is None else np.where(mask.held, logits, -np.inf)
    weights = np.exp(logits - logits.max(-1, keepdims=True, initial=-1e30))
    weights /= weights.sum(-1, keepdims=True)
    return Tensor(weights @ v.held), Tensor(weights)


def wrong(q: Any, k: Any, v: Any, mask: Any = None) -> Any:
    return attention(q, k, v, mask, twice=True)


def test_it_is_checked_as_one_of_numpy(library: ModuleType) -> None:
    asked = [PROPERTIES["output_is_inside_the_bound"], PROPERTIES["masked_keys_are_deleted"]]
    target = make_target("mine", attention)
    assert target.framework.name == "numpy" and "attn_mask" in target.parameters
    assert not verify_target(target, asked, Plan(examples=8, strict=False)).findings
    assert verify_target(make_target("mine", wrong), asked, Plan(examples=8, strict=False)).findings


def test_answers_of_any_form(library: ModuleType) -> None:
    given = np.zeros((1, 1, 2, 2))
    out, weights = answering_in_arrays(attention)(given, given, given)
    assert isinstance(out, np.ndarray) and isinstance(weights, np.ndarray)

    def held(q: Any) -> Any:
        return {"out": [q], "none": None}

    assert isinstance(answering_in_arrays(held)(given)["out"][0], np.ndarray)


def test_what_names_it_not_is_left_alone(library: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    assert answering_in_arrays(len) is len and answering_in_arrays(make_target) is make_target
    monkeypatch.setitem(globals(), "torch", ModuleType("torch"))
    assert answering_in_arrays(attention) is attention
    monkeypatch.delitem(globals(), "torch")
    monkeypatch.delitem(sys.modules, "tensorflow")
    assert answering_in_arrays(attention) is attention
