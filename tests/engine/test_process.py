"""What a call does to the process: settings and random numbers, which belong to all code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from impls import numpy_matmul, torch_manual
from properties.catalogue import PROPERTIES
from properties.engine.search.probe import make_target
from properties.engine.search.search import Plan, search

LEFT = PROPERTIES["process_is_left_as_it_was"]


def after(act: Callable[[], Any], attention: Callable[..., Any]) -> Callable[..., Any]:
    """The attention, which does something else first."""

    def acting(q: Any, k: Any, v: Any) -> Any:
        act()
        return attention(q, k, v)

    return acting


TORCH = {
    "the default dtype": lambda: torch.set_default_dtype(torch.float64),
    "whether gradients are recorded": lambda: torch.set_grad_enabled(False),
    "whether algorithms are deterministic": lambda: torch.use_deterministic_algorithms(True),
    "the precision of float32 products": lambda: torch.set_float32_matmul_precision("high"),
    "sets the seed": lambda: torch.manual_seed(7),
}
NUMPY = {
    "what happens on under and what happens on invalid": lambda: np.seterr(invalid="raise", under="raise"),
    "sets the seed": lambda: np.random.seed(7),
}


@pytest.mark.parametrize(
    "act, says, framework",
    [(act, says, name) for name, acts in (("torch", TORCH), ("numpy", NUMPY)) for says, act in acts.items()],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_call_that_changes_the_process_is_refuted(act: Callable[[], Any], says: str, framework: str) -> None:
    attention = after(act, torch_manual.attention if framework == "torch" else numpy_matmul.attention)
    before = torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_float32_matmul_precision(), np.geterr()
    target = make_target("mine", attention, {"framework": framework})
    finding = search(target, LEFT, Plan(examples=3)).finding
    assert finding and says in finding.violation.says
    assert (torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_float32_matmul_precision(), np.geterr()) == before
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize("attention", [torch_manual.attention, numpy_matmul.attention])
def test_a_call_that_draws_is_not(attention: Callable[..., Any]) -> None:
    for draw in (lambda: torch.rand(3), lambda: np.random.random(3), lambda: None):
        assert search(make_target("mine", after(draw, attention)), LEFT, Plan(examples=5)).finding is None


def test_who_sets_the_precision_for_one_device_may_be_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch then refuses to say what the precision is."""

    def refuse() -> str:
        raise RuntimeError("mix of the legacy and new APIs")

    monkeypatch.setattr(torch, "get_float32_matmul_precision", refuse)
    assert search(make_target("mine", torch_manual.attention), LEFT, Plan(examples=5)).finding is None


@pytest.mark.parametrize("random", [np.random.random, np.random.default_rng(5).random], ids=["global", "own"])
def test_dropout_may_draw_from_any_generator(random: Callable[..., Any]) -> None:
    """NumPy's generators have no seed in common that a checker could set."""

    def attention(q: Any, k: Any, v: Any, *, dropout_p: float = 0.0) -> Any:
        scores = np.einsum("bhld,bhsd->bhls", q, k) / np.sqrt(q.shape[-1])
        weight = np.exp(scores - scores.max(-1, keepdims=True))
        weight /= weight.sum(-1, keepdims=True)
        kept = random(weight.shape) >= dropout_p
        return (weight * kept / (1 - dropout_p) @ v).astype(q.dtype)

    target = make_target("mine", attention, {"framework": "numpy", "zero_sizes": False})
    for name in ("dropout_drops_or_rescales", "dropout_keeps_its_share", "dropout_is_not_shared", "dropout_of_zero_drops_nothing"):
        outcome = search(target, PROPERTIES[name], Plan(examples=20))
        assert outcome.cases and outcome.finding is None, outcome.finding
