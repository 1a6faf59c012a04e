"""Biases: what a correct attention may lean by is allowed, anything more is not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from properties.attention.case import Case
from properties.catalogue import PROPERTIES
from properties.engine.search.probe import make_target
from properties.engine.search.search import Plan, search, try_only

Array = Any
FACTS = {"framework": "numpy", "arithmetic": {"float32": "fused"}, "dtypes": ["float32"]}
U = np.float32(2.0**-24)


def exp_too_large(x: Array) -> Array:
    """Off by the whole allowance of an exponential, always to the same side; exp(0) is 1."""
    return np.where(x == 0, np.float32(1), np.exp(x) * (1 + 7 * U))


def exp_by_two(x: Array) -> Array:
    """exp2(x · log2 e), the constant in float32."""
    return np.exp2(x * np.float32(1.44269504))


def exp_by_short_constant(x: Array) -> Array:
    """The same with the constant off by 5e-7 of itself."""
    return np.exp2(x * np.float32(1.442694))


def at_once(exp: Any) -> Any:
    def attention(q: Array, k: Array, v: Array, *, scale: float | None = None) -> Array:
        logits = q @ k.swapaxes(-1, -2) * np.float32(q.shape[-1] ** -0.5 if scale is None else scale)
        weights = exp(logits - logits.max(-1, keepdims=True, initial=-np.inf))
        return weights @ v / weights.sum(-1, keepdims=True)

    return attention


def key_by_key(exp: Any) -> Any:
    def attention(q: Array, k: Array, v: Array, *, scale: float | None = None) -> Array:
        logits = q @ k.swapaxes(-1, -2) * np.float32(q.shape[-1] ** -0.5 if scale is None else scale)
        top, total = logits[..., :1], np.ones_like(logits[..., :1])
        out = np.broadcast_to(v[:, :, :1], (*q.shape[:3], v.shape[-1]))
        for j in range(1, k.shape[2]):
            now = np.maximum(top, logits[..., j : j + 1])
            old, new, top = exp(top - now), exp(logits[..., j : j + 1] - now), now
            out, total = out * old + new * v[:, :, j : j + 1], total * old + new
        return out / total

    return attention


NAMES = ("even_and_odd_keys_err_alike", "small_weights_show_the_scale")


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("exp", [exp_too_large, exp_by_two])
@pytest.mark.parametrize("form", [at_once, key_by_key])
def test_the_whole_allowance_to_one_side_is_no_finding(form: Any, exp: Any, name: str) -> None:
    outcome = search(make_target("leaning", form(exp), FACTS), PROPERTIES[name], Plan(examples=40))
    assert outcome.cases == 40 and outcome.finding is None, outcome.finding


def test_a_constant_that_is_off_is_a_finding() -> None:
    target = make_target("short constant", at_once(exp_by_short_constant), FACTS)
    found = {name for name in (*NAMES, "output_is_inside_the_bound") if search(target, PROPERTIES[name], Plan(examples=60)).finding}
    assert found == {"small_weights_show_the_scale"}


def test_keys_that_are_rounded_once_for_all_rows_are_no_finding() -> None:
    """Both operands times the root of a scale that is no power of two, stored in half precision: what a key loses, every row loses."""

    def attention(q: Any, k: Any, v: Any) -> Any:
        root = q.shape[-1] ** -0.25
        return torch.softmax(((q * root) @ (k * root).mT).float(), -1).to(q.dtype) @ v

    attention.supports = {"framework": "torch", "arithmetic": "eager", "dtypes": ["bfloat16"], "head_dims": [8], "zero_sizes": False}  # type: ignore[attr-defined]
    target, prop = make_target("roots", attention), PROPERTIES["rounding_is_not_biased"]
    case = "Case(batch=2, kv_heads=2, queries=129, keys=17, dim=8, dtype='bfloat16', values='positive', magnitude=2, seed=1679349613)"
    outcome = try_only(target, prop, Case.parse(case))
    assert outcome.cases == 1 and outcome.finding is None, outcome.finding


def test_an_odd_number_of_keys() -> None:
    outcome = try_only(
        make_target("right", at_once(np.exp), FACTS),
        PROPERTIES["even_and_odd_keys_err_alike"],
        Case(batch=2, kv_heads=4, queries=64, keys=33, dim=64, dtype="float32"),
    )
    assert outcome.cases == 1 and outcome.finding is None, outcome.finding


def test_a_default_scale_that_is_off_is_a_finding() -> None:
    """Where the root of D is no power of two, 4 u are allowed, and no more."""

    def attention(q: Array, k: Array, v: Array, *, scale: float | None = None) -> Array:
        off = 1 + 5e-7 if scale is None and q.shape[-1] in (8, 20) else 1.0
        return at_once(np.exp)(q, k, v, scale=off * (q.shape[-1] ** -0.5 if scale is None else scale))

    outcome = search(make_target("off", attention, FACTS), PROPERTIES["small_weights_show_the_scale"], Plan())
    assert outcome.finding is not None and "as if the scale were off by 5e-07" in outcome.finding.violation.says
