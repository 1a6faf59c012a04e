"""Gradients of layers, blocks and modules: a mistake in them alone is found, and told of the array whose gradient is wrong."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from impls import numpy_matmul
from impls.mutants import load_all
from impls.mutants.block.block import decoder, encoder
from impls.mutants.module.modular import Attention
from impls.mutants.multihead.layer import multihead
from properties.block.cases import Case as BlockCase
from properties.block.exact import hidden
from properties.block.slopes import OfBlock
from properties.block.trial import BlockTrial
from properties.catalogue import PROPERTIES
from properties.engine.core.target import NotTaken
from properties.engine.search.probe import make_target
from properties.engine.search.search import Plan, inapplicable, search
from properties.exact.slope import H
from properties.module.cases import Case as ModuleCase
from properties.module.slopes import OfModule
from properties.module.trial import ModuleTrial
from properties.multihead.cases import Case as LayerCase
from properties.multihead.slopes import OfLayer
from properties.multihead.trial import LayerTrial

MUTANTS, HONEST = load_all()
OF_LAYERS = [name for name in MUTANTS if name.startswith("layer_gradients.")]
OF_BLOCKS = [name for name in MUTANTS if name.startswith("block_gradients.")]
OF_MODULES = [name for name in MUTANTS if name.startswith("module_gradients.")]


def layer_call(alike: bool) -> tuple[tuple[Any, ...], dict[str, Any]]:
    source = torch.Generator().manual_seed(3)

    def tensor(*shape: int) -> Any:
        return torch.randn(shape, generator=source, dtype=torch.float64, requires_grad=True)

    query = tensor(2, 3, 8)
    weights = {f"w_{name}": tensor(8, 8) for name in "qkvo"} | {f"b_{name}": tensor(8) for name in "qkvo"}
    others = (query, query) if alike else (tensor(2, 5, 8), tensor(2, 5, 8))
    return (query, *others, weights), {"num_heads": 2, "bias_k": tensor(8), "bias_v": tensor(8)}


def derivatives(function: Any, alike: bool) -> tuple[Any, list[Any]]:
    arguments, options = layer_call(alike)
    leaves = [*arguments[:3], *arguments[3].values(), options["bias_k"], options["bias_v"]]
    out, _ = function(*arguments, **options)
    grads = torch.autograd.grad((out**2).sum(), leaves, create_graph=True, materialize_grads=True, allow_unused=True)
    try:
        again = torch.autograd.grad(sum((g * torch.arange(g.numel()).reshape(g.shape)).sum() for g in grads), leaves, allow_unused=True)
    except RuntimeError:
        again = ()
    return out, [*grads, *(g for g in again if g is not None)]


@pytest.mark.parametrize("name", OF_LAYERS)
def test_a_wrong_layer_gives_right_answers_and_wrong_derivatives(name: str) -> None:
    different = False
    for alike in (False, True):
        (out, grads), (right, rights) = derivatives(MUTANTS[name].function, alike), derivatives(multihead, alike)
        assert torch.allclose(out, right, rtol=0, atol=1e-12)
        different |= len(grads) != len(rights) or any(not torch.allclose(a, b) for a, b in zip(grads, rights, strict=True))
    assert different


@pytest.mark.parametrize("name", OF_BLOCKS)
@pytest.mark.parametrize("norm_first", [False, True])
def test_a_wrong_block_gives_right_answers(name: str, norm_first: bool) -> None:
    source, width = torch.Generator().manual_seed(5), 8

    def tensor(*shape: int) -> Any:
        return torch.randn(shape, generator=source, dtype=torch.float64)

    parts = [f"{p}{kind}_{n}" for p in ("", "cross_") for kind in "wb" for n in "qkvo"]
    weights = {n: tensor(width, width) if "w_" in n else tensor(width) for n in parts} | {"w_1": tensor(5, width), "w_2": tensor(width, 5)}
    weights |= {"b_1": tensor(5), "b_2": tensor(width)} | {f"{n}_{k}": tensor(width) for n in ("g", "beta") for k in (1, 2, 3)}
    of_decoder = MUTANTS[name].contract == "decoder_layer"
    given = (tensor(2, 3, width), *((tensor(2, 4, width),) if of_decoder else ()), weights)
    right = (decoder if of_decoder else encoder)(*given, num_heads=2, norm_first=norm_first, activation="gelu")
    assert torch.allclose(MUTANTS[name].function(*given, num_heads=2, norm_first=norm_first, activation="gelu"), right, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", OF_MODULES)
def test_a_wrong_module_gives_right_answers(name: str) -> None:
    """But for the one that says another thing in its forward pass than what it is differentiated as."""
    made, right = MUTANTS[name].function(16, 2), Attention(16, 2)
    right.load_state_dict(made.state_dict())
    x = torch.randn(2, 5, 16)
    assert torch.allclose(made(x), right(x)) == (name != "module_gradients.StraightThrough")


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize(
    "name, of",
    [
        ("layer_gradients.bias_of_values_is_a_constant", "the gradient of b_v is another one"),
        ("layer_gradients.gradient_of_the_queries_alone", "the gradient of query is another one"),
        ("block_gradients.memory_is_a_constant", "the gradient of memory is another one"),
        ("layer_gradients.weights_are_constants_backward", "the second derivative is another one"),
        ("module_gradients.KeysOfDetachedTokens", "the gradient of tokens (x) is another one"),
    ],
)
def test_it_is_told_whose_gradient_is_wrong(name: str, of: str) -> None:
    outcome = search(make_target(name, MUTANTS[name].function), PROPERTIES[MUTANTS[name].killed_by], Plan())
    assert outcome.finding is not None and outcome.finding.violation.says == of


def test_what_cannot_be_differentiated_again_says_so_and_is_let_go() -> None:
    target = make_target("by hand", HONEST["honest_modules.BackwardByHand"].function)
    outcome = search(target, PROPERTIES["module_second_derivatives_are_bends"], Plan(examples=4))
    assert outcome.finding is None and not outcome.cases
    assert any("once_differentiable" in why for why in outcome.notes.not_taken)
    outcome = search(target, PROPERTIES["module_gradients_are_slopes"], Plan(examples=10))
    assert outcome.status == "passed" and 0.2 < outcome.notes.used < 0.5


def test_no_step_passes_a_corner() -> None:
    """A relu has corners, two of which can hide each other: the step ends before the nearest one, and what is smooth keeps the whole step."""
    right = make_target("right", encoder)
    steps = {}
    for seed in range(12):
        for activation in ("relu", "gelu"):
            case = BlockCase(batch=2, kv_heads=2, queries=4, dim=4, hidden=8, activation=activation, seed=seed)
            of = OfBlock(BlockTrial(right, case))
            steps[activation, seed] = of.step
            of.grows_as_reported()
            signs = {s: hidden(of.trial.problem(of.inputs(of.place(s))), of.trial.arithmetic) > 0 for s in (-of.step, 0.0, of.step)}
            assert activation == "gelu" or all(np.array_equal(signs[0.0], there) for there in signs.values())
    assert {step for (kind, _), step in steps.items() if kind == "gelu"} == {H}
    assert min(step for (kind, _), step in steps.items() if kind == "relu") < H / 8


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize("seed", range(6))
def test_corners_of_a_module_are_passed_by_short_steps(seed: int) -> None:
    """A feed-forward part with a relu has hundreds of corners, several of them within any step that is not short."""
    layer = torch.nn.TransformerEncoderLayer(16, 2, 64, batch_first=True)
    right = make_target("right", layer)
    of = OfModule(ModuleTrial(right, ModuleCase(batch=2, length=5, seed=seed)))
    assert of.cornered == "relu" and of.step < H
    of.grows_as_reported()
    with pytest.raises(NotTaken, match="corners of relu"):
        of.bends_as_reported()


def detached(*arguments: Any, **options: Any) -> Any:
    out, weights = multihead(*arguments, **options)
    return out.detach(), weights


def test_where_no_gradient_can_be_asked_it_is_said_why() -> None:
    prop = PROPERTIES["layer_gradients_are_slopes"]
    signed = MUTANTS["layers.no_biases"].function.__signature__
    detached.__signature__ = signed  # type: ignore[attr-defined]
    assert "carries no gradient" in inapplicable(make_target("mine", detached, {"framework": "torch"}), prop)
    facts = {"framework": "torch", "gradients": False}
    assert inapplicable(make_target("mine", MUTANTS["layers.no_biases"].function, facts), prop) == "declared as not supported: gradients"
    assert not inapplicable(make_target("mine", MUTANTS["layers.no_biases"].function, {"framework": "torch"}), prop)
    assert "not asked of numpy arrays" in inapplicable(make_target("mine", numpy_matmul.multihead), prop)


@pytest.mark.parametrize("empty_rows", ["nan", "zero"])
def test_rows_without_keys_that_are_nan_leave_nothing_to_claim(empty_rows: str) -> None:
    target = make_target("mine", HONEST["honest_forms.weights_per_head"].function, {"framework": "torch", "empty_rows": empty_rows})
    for mask, promised in (("nothing", empty_rows != "nan"), ("none", True)):
        case = LayerCase(queries=3, keys=3, dim=2, mask=mask, with_bias=False, seed=3)
        assert math.isfinite(OfLayer(LayerTrial(target, case)).noise) is promised
