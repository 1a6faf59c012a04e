"""No property of gradients is vacuous: the exact gradients pass them all, and each refutes a mistake of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from exact_gradients import attention_with, counting, mapped, nothing, times
from torch import Tensor

from impls.catalogue import CATALOGUE, load
from properties.attention.backward import refusal
from properties.attention.case import Case
from properties.attention.trial import Trial
from properties.catalogue import PROPERTIES
from properties.engine.core.target import Target
from properties.engine.search.probe import make_target
from properties.engine.search.search import Plan, inapplicable, search

FACTS = {"framework": "torch"}
NAMES = tuple(name for name, prop in PROPERTIES.items() if prop.theme == "gradients")


def full(grad: Tensor, ctx: Any) -> bool:
    """Whether the mask has the size of the logits."""
    q, k, _v, mask = ctx.saved_tensors
    return mask is not None and tuple(mask.shape) == (*q.shape[:3], k.shape[2])


def grows_where_recorded(out: Tensor, inputs: tuple[Tensor, ...]) -> Tensor:
    return out * (1.01 if any(x.requires_grad for x in inputs) else 1.0)


LAST: list[float] = [0.0]  # what the last forward pass has left


def remembers(out: Tensor, inputs: tuple[Tensor, ...]) -> Tensor:
    LAST[0] = float(inputs[0].detach().sum())
    return out


MISTAKES: dict[str, Any] = {
    "gradients_are_inside_the_bound": attention_with(times("q", factor=1 + 2.0**-6)),
    "bias_gradient_is_inside_the_bound": attention_with(times("mask")),
    "gradients_reach_every_input": attention_with(mapped("k", lambda k: None)),
    "hidden_keys_receive_no_gradient": attention_with(mapped("k", lambda k: k + 2.0**-20)),
    "value_gradient_reads_the_weights": attention_with(times("v")),
    "gradients_scale_with_the_output_gradient": attention_with(mapped("v", lambda v: np.clip(v, -1, 1))),
    "gradients_add_up": attention_with(mapped("v", np.abs)),
    "bias_gradient_rows_sum_to_zero": attention_with(mapped("mask", lambda mask: mask + 1)),
    "key_gradients_sum_to_zero": attention_with(mapped("k", lambda k: k + 1)),
    "value_gradients_sum_to_the_output_gradient": attention_with(times("v")),
    "values_and_outputs_balance": attention_with(times("v")),
    "queries_and_keys_balance": attention_with(times("q", factor=2.0)),
    "grouped_gradients_are_summed": attention_with(times("k", "v", where=lambda grad, ctx: ctx.options["enable_gqa"])),
    "broadcast_bias_gradient_is_summed": attention_with(times("mask", where=lambda *call: not full(*call))),
    "layout_of_the_output_gradient_changes_nothing": attention_with(times("q", "v", where=lambda grad, ctx: not grad.is_contiguous())),
    "nothing_comes_of_nothing": attention_with(mapped("q", lambda q: q + 1)),
    "rows_without_keys_poison_no_gradient": attention_with(mapped("q", lambda q: q + 1)),
    "each_gradient_can_be_asked_alone": attention_with(times("q", "k", "v", "mask", where=lambda grad, ctx: all(ctx.needs_input_grad[:3]))),
    "same_gradients_every_time": attention_with(counting()),
    "calls_in_between_change_no_gradient": attention_with(mapped("v", lambda v: v * np.exp2(np.sign(LAST[0]))), remembers),
    "gradients_stay_in_their_batch_element_and_head": attention_with(mapped("v", lambda v: v + v.mean())),
    "asking_for_gradients_changes_no_output": attention_with(nothing, grows_where_recorded),
}


def target(function: Any, **facts: Any) -> Target:
    return make_target("attention", function, FACTS | facts)


def test_every_property_has_a_mistake() -> None:
    assert set(MISTAKES) == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_the_exact_gradients_pass(name: str) -> None:
    outcome = search(target(attention_with(nothing)), PROPERTIES[name], Plan(examples=12))
    assert outcome.finding is None, outcome.finding
    assert outcome.status == "passed" and outcome.cases == 12


@pytest.mark.parametrize("name", NAMES)
def test_every_property_refutes_a_mistake_of_its_own(name: str) -> None:
    """By an answer, not by an exception."""
    outcome = search(target(MISTAKES[name]), PROPERTIES[name], Plan(examples=150, shrink=False))
    assert outcome.finding is not None
    assert not outcome.finding.violation.raised, outcome.finding.violation.says


# ---------------------------------------------------------------- what a target can


def test_what_has_no_gradients_is_not_asked() -> None:
    """With the reason, as everything that is not exercised."""
    prop = PROPERTIES["gradients_are_inside_the_bound"]
    entries = {entry.name: entry for entry in CATALOGUE}

    def cut(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q.detach(), k.detach(), v.detach())

    reasons = {
        "numpy arrays carry no gradients": make_target("numpy", load(entries["numpy_matmul.attention"])),
        "declared as not supported: gradients": target(attention_with(nothing), gradients=False),
        "gradients: the output of a first call does not require a gradient": target(cut),
        "gradients are asked of attention, not of multihead": make_target("layer", load(entries["torch_manual.multihead"])),
    }
    for reason, each in reasons.items():
        assert inapplicable(each, prop) == reason
        assert search(each, prop, Plan(examples=5)).status == "not exercised"


def test_a_kernel_without_a_gradient_of_the_bias_is_asked_for_the_others() -> None:
    flash = make_target("flash", load(next(entry for entry in CATALOGUE if entry.name == "torch_sdpa.flash")))
    assert refusal(flash, "gradients") == ""
    assert refusal(flash, "bias_gradients").startswith("bias gradients: it raised RuntimeError: No available kernel")


@pytest.mark.parametrize("layout", ["contiguous", "everywhere", "expanded", "transposed", "feature_major", "padded", "strided", "offset"])
def test_the_output_gradient_lies_as_the_case_says(layout: str) -> None:
    """And holds the numbers that the oracle is given."""
    seen: list[Tensor] = []

    def keep(parts: Any, grad: Tensor, ctx: Any) -> None:
        seen.append(grad)

    from properties.attention.backward import run_backward

    case = Case(batch=2, kv_heads=3, queries=4, keys=2, dim=5, grad_layout=layout)
    run = run_backward(Trial(target(attention_with(keep)), case))
    assert np.array_equal(seen[-1].numpy(), run.grad_out)
    strides = {
        "everywhere": (0, 0, 0, 0),
        "expanded": (0, 20, 5, 1),
        "transposed": (60, 5, 15, 1),
        "strided": (120, 40, 10, 2),
        "feature_major": (60, 20, 1, 4),
        "padded": (144, 48, 8, 1),
    }
    assert seen[-1].stride() == strides.get(layout, (60, 20, 5, 1))


def test_layouts_of_heads_last_are_differentiated_as_well() -> None:
    """supports["layout"] = "blhd": queries, gradients and dO are (batch, length, heads, dim)."""
    right = attention_with(nothing)

    def heads_last(q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool = False) -> Tensor:
        return right(*(x.transpose(1, 2) for x in (q, k, v)), is_causal=is_causal).transpose(1, 2)

    each = target(heads_last, layout="blhd")
    for name in ("gradients_are_inside_the_bound", "layout_of_the_output_gradient_changes_nothing"):
        outcome = search(each, PROPERTIES[name], Plan(examples=15))
        assert outcome.finding is None and outcome.cases == 15
