"""Linear attention that is right, the exact answers rounded once, and one mistake for every property of it.

They know no implementation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import permissive
import torch
from torch import Tensor

from properties.engine.cases.masks import frontier
from properties.engine.core.target import Target
from properties.engine.search.probe import make_target
from properties.exact.arithmetic import arithmetic
from properties.linear import exact

FACTS = {"framework": "torch", "contract": "linear", "arithmetic": {"float64": "same", "float32": "same"}}


def attention(q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool = False) -> Tensor:
    """The exact answer, rounded once."""
    seen = frontier(q.shape[2], k.shape[2]) if is_causal else np.ones((q.shape[2], k.shape[2]), dtype=bool)
    right, _ = exact.solve(*(permissive.carrier(x) for x in (q, k, v)), seen, arithmetic("same", "float64"))
    return permissive.rounded(right.out, q)


def linear_with(change: Callable[[Callable[..., Tensor], dict[str, Any]], Any]) -> Target:
    """change(call, arguments) answers, where call(**changes) is the right answer to changed arguments."""

    def wrong(q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool = False) -> Any:
        given = {"q": q, "k": k, "v": v, "is_causal": is_causal}
        return change(lambda **changes: attention(**{**given, **changes}), given)

    return make_target("wrong", wrong, FACTS)


def leaking(call: Callable[..., Tensor], given: dict[str, Any]) -> Tensor:
    """A little of the mean of all values."""
    return call() + given["v"].mean() * 2.0**-8


def in_place(call: Callable[..., Tensor], given: dict[str, Any]) -> Tensor:
    out = call()
    given["k"] += 1
    return out


def first_key_twice(call: Callable[..., Tensor], given: dict[str, Any]) -> Tensor:
    k, v = (torch.cat([given[name], given[name][:, :, :1]], 2) for name in "kv")
    return call(k=k, v=v)


LINEAR = make_target("exact linear attention", attention, FACTS)
EXACT = {"linear": LINEAR}
MISTAKES: dict[str, Target] = {
    "linear_output_is_inside_the_bound": linear_with(lambda call, given: call() * (1 + 2.0**-7)),
    "linear_output_stays_in_the_hull": linear_with(lambda call, given: call() * 1.5),
    "linear_constant_values_are_returned": linear_with(lambda call, given: call() * (1 - 2.0**-7)),
    "causal_row_is_all_of_its_prefix": linear_with(lambda call, given: call(is_causal=False)),
    "linear_future_tokens_are_ignored": linear_with(leaking),
    "linear_permuted_keys_change_nothing": linear_with(first_key_twice),
    "states_are_not_shared": linear_with(leaking),
    "linear_output_has_the_right_form": linear_with(in_place),
}
