"""What is right for some calls alone, and raises nothing in the others: one finding, which names them, and the search goes on in those."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from properties.catalogue import PROPERTIES
from properties.engine.core.target import Target
from properties.engine.search.probe import make_target
from properties.engine.search.run import verify_target
from properties.engine.search.search import Plan


def third_axis(q: Any, k: Any, v: Any) -> Any:
    """As written for (batch, length, dim)."""
    return (q @ k.transpose(-2, -1) / max(q.shape[2], 1) ** 0.5).softmax(-1) @ v


def as_many_keys(q: Any, k: Any, v: Any, attn_mask: Any = None, is_causal: bool = False) -> Any:
    n = q.shape[-2]
    mask = None if attn_mask is None else attn_mask[..., :n]
    return torch.nn.functional.scaled_dot_product_attention(q, k[..., :n, :], v[..., :n, :], attn_mask=mask, is_causal=is_causal)


def of_matrices(Q: Any, K: Any, V: Any, block: int = 2) -> Any:
    n, d = Q.shape
    scores = torch.cat([Q @ K[at : at + block].T for at in range(0, n, block)], 1) / max(d, 1) ** 0.5
    return scores.softmax(-1) @ V[: scores.shape[1]]


def also_scaled_twice(q: Any, k: Any, v: Any) -> Any:
    return as_many_keys(q, k * (1 + (q.shape[-2] > 16)), v)


def spoken(function: Any) -> Target:
    target = make_target("mine", function, {"dtypes": ["float64"]})
    return target.kind.handshake(target, "cpu")


@pytest.mark.parametrize(("function", "name"), [(third_axis, "axes"), (as_many_keys, "lengths"), (of_matrices, "lengths")])
def test_it_is_one_finding(function: Any, name: str) -> None:
    target = spoken(function)
    assert list(target.wrong) == [name] and "raises nothing, and is off by" in target.wrong[name]
    names = ("output_is_inside_the_bound", "equal_logits_share_equally", "memory_layout_changes_nothing")
    assert not verify_target(target, [PROPERTIES[name] for name in names], Plan(examples=12, strict=False)).findings


def test_a_second_mistake_is_found_beside_it() -> None:
    target = spoken(also_scaled_twice)
    assert "lengths" in target.wrong
    assert verify_target(target, [PROPERTIES["output_is_inside_the_bound"]], Plan(examples=60, strict=False)).findings


def test_what_is_right_for_all_is_not_told_so() -> None:
    target = spoken(torch.nn.functional.scaled_dot_product_attention)
    assert not {"axes", "lengths"} & set(target.wrong)
