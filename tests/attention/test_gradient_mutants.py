"""Mutants of the backward pass: right forward, wrong backward, all of them different; honest variants agree with autograd."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from impls import flash_backward
from impls.mutants import forget, load_all
from impls.mutants.attention.backward import attention
from impls.mutants.attention.core import attention as core
from impls.mutants.registry import SIGNATURES
from properties.catalogue import PROPERTIES

MUTANTS, HONEST = (
    {name: each for name, each in table.items() if "gradient" in name.partition(".")[0] and each.contract == "attention"}
    for table in load_all()
)
Call = tuple[tuple[Tensor, ...], dict[str, Any], Tensor]


@pytest.fixture(autouse=True)
def fresh_state() -> Iterator[None]:
    """Mutants that remember forget."""
    forget()
    yield
    forget()


def operands(
    batch: int, heads: int, group: int, queries: int, keys: int, dim: int, width: int, dtype: torch.dtype, size: float
) -> tuple[tuple[Tensor, ...], Tensor]:
    generator = torch.Generator().manual_seed(queries + 7 * keys)
    shapes = ((batch, heads * group, queries, dim), (batch, heads, keys, dim), (batch, heads, keys, width))
    q, k, v = (torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes)
    grad = torch.randn((batch, heads * group, queries, width), generator=generator, dtype=torch.float64)
    return (q * size, k, v), 2 * grad.to(dtype)


def calls() -> Iterator[tuple[str, Call]]:
    """Calls that use one feature each."""
    wide = torch.float64
    plain, grad = operands(2, 2, 1, 5, 5, 4, 6, wide, 1.0)
    seen = torch.tensor([[True, True, False, False, True]] * 4 + [[False] * 5])
    bias = torch.linspace(-2, 2, 25, dtype=wide).reshape(5, 5)
    yield "plain", (plain, {}, grad)
    yield "causal", (plain, {"is_causal": True}, grad)
    yield "scale", (plain, {"scale": 0.25}, grad)
    yield "mask", (plain, {"attn_mask": seen}, grad)
    yield "bias", (plain, {"attn_mask": bias}, grad)
    yield "bias of its own", (plain, {"attn_mask": bias.expand(2, 2, 5, 5).clone()}, grad)
    yield "transposed", (plain, {}, grad.transpose(1, 2).contiguous().transpose(1, 2))
    yield "expanded", (plain, {}, torch.ones(1, 1, 1, 1, dtype=wide).expand(grad.shape))
    yield "one row", (plain, {}, grad * (torch.arange(5) == 2)[:, None])
    for name, sizes in {
        "groups": (1, 2, 3, 3, 4, 2, 2, wide, 1.0),
        "large": (1, 1, 1, 4, 6, 8, 3, wide, 30.0),
        "tiles": (1, 1, 1, 21, 37, 2, 2, wide, 1.0),
        "half": (1, 1, 1, 257, 3, 2, 2, torch.bfloat16, 1.0),
    }.items():
        inputs, grad = operands(*sizes)
        if name == "half":  # the first key gains in every row: a sum of many terms of one sign
            values = torch.tensor([[2.0], [-1.0], [-1.0]], dtype=torch.bfloat16).expand(1, 1, 3, 2)
            inputs, grad = (inputs[0].abs() + 1, inputs[1] * 0, values), grad.abs() + 1
        yield name, (inputs, {"enable_gqa": True}, grad)


CALLS = dict(calls())
ASKS = (("q", "k", "v", "mask"), ("v",), ("mask",))


def gradients(
    function: Callable[..., Tensor], call: Call, asks: tuple[str, ...] = ASKS[0], times: int = 1, between: bool = False
) -> list[Any]:
    """The output and the gradients of those that ask, None where there is none; with another call in between."""
    tensors, options, grad = call
    leaves = {name: x.clone().requires_grad_(name in asks) for name, x in zip("qkv", tensors)}
    options = dict(options)
    mask = options.get("attn_mask")
    if mask is not None and mask.is_floating_point():
        leaves["mask"] = options["attn_mask"] = mask.clone().requires_grad_("mask" in asks)
    wanted = [x for name, x in leaves.items() if name in asks]
    if not wanted:
        return []
    out = function(leaves["q"], leaves["k"], leaves["v"], **options)
    if not out.requires_grad:
        return [out.detach()]
    if between:
        function(*(2 - x for x in tensors), **options)
    for left in reversed(range(times)):
        found = torch.autograd.grad(out, wanted, grad, allow_unused=True, retain_graph=left > 0)
    return [out.detach(), *found]


def behaviour(function: Callable[..., Tensor]) -> list[list[Any]]:
    """Everything that can be seen: of all calls, of those that ask alone, of a second call, of a graph used twice, with a call in between."""
    seen = [gradients(function, call) for call in CALLS.values()]
    seen += [gradients(function, CALLS["bias"], asks) for asks in ASKS[1:]]
    seen += [gradients(function, CALLS["plain"], times=2), gradients(function, CALLS["plain"], between=True)]
    forget()
    return seen


def distance(one: list[list[Any]], other: list[list[Any]]) -> float:
    """The largest difference, in units of the last place of the largest number; infinite where a gradient is missing or NaN."""
    worst = 0.0
    for mine, theirs in zip(one, other, strict=True):
        for x, y in zip(mine, theirs, strict=True):
            if x is None or y is None:
                worst = max(worst, 0.0 if x is y else float("inf"))
                continue
            gap = (x.double() - y.double()).abs().max() / max(float(y.double().abs().max()), 1.0) / torch.finfo(x.dtype).eps
            worst = max(worst, float("inf") if gap.isnan() else float(gap))
    return worst


def test_the_honest_backward_pass_is_that_of_autograd() -> None:
    """Of the core, where autograd has no trouble with infinities, and of finite differences."""
    for name in ("plain", "causal", "scale", "bias", "bias of its own", "groups", "tiles", "expanded"):
        assert distance([gradients(attention, CALLS[name])], [gradients(core, CALLS[name])]) < 64, name
    for function in (attention, flash_backward.attention):
        for name in ("plain", "causal", "scale", "bias", "mask", "groups"):
            tensors, options, _ = CALLS[name]
            leaves = [x.clone().requires_grad_() for x in tensors]
            assert torch.autograd.gradcheck(
                lambda q, k, v, f=function, o=options: f(q, k, v, **o | {"enable_gqa": True}), leaves, fast_mode=True
            )


def test_honest_variants_agree() -> None:
    right = behaviour(attention)
    assert len(HONEST) >= 3
    for name, each in HONEST.items():
        assert distance(behaviour(each.function), right) < 256, name
    assert distance(behaviour(flash_backward.attention), right) < 256


def test_every_mutant_is_wrong_and_no_two_are_alike() -> None:
    right, seen = behaviour(attention), {}
    assert len(MUTANTS) >= 20
    for name, each in MUTANTS.items():
        forget()
        seen[name] = behaviour(each.function)
        assert distance(seen[name], right) > 2, f"{name} is not wrong in any of these calls"
    names = list(seen)
    for i, one in enumerate(names):
        for other in names[i + 1 :]:
            assert distance(seen[one], seen[other]) > 0, f"{one} and {other} behave alike"


def test_they_say_what_they_are() -> None:
    for name, each in {**MUTANTS, **HONEST}.items():
        assert inspect.signature(each.function) == SIGNATURES["attention"], name
    for name, each in MUTANTS.items():
        assert PROPERTIES[each.killed_by].theme == "gradients", name
    assert {each.killed_by for each in MUTANTS.values()} == {name for name, prop in PROPERTIES.items() if prop.theme == "gradients"}


def test_their_forward_pass_is_right() -> None:
    """Without gradients no mutant differs from the core."""
    for call in CALLS.values():
        tensors, options, _ = call
        right = core(*tensors, **options)
        for name, each in MUTANTS.items():
            assert torch.equal(each.function(*tensors, **options), right), name
