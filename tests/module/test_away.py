"""A module in a process of its own is what it is here: the same words, cases, findings; and what the judge holds of it."""

from __future__ import annotations

import copy
import inspect
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from impls.mutants.module import honest_modules, module_caches, module_gradients, module_heads, module_masks, module_state
from properties.catalogue import PROPERTIES
from properties.engine.contained.counted import processes
from properties.engine.contained.link import Gone
from properties.engine.core.target import CannotRun, Target
from properties.engine.frameworks import framework
from properties.engine.search.find_target import NEVER, OWN, Builtins, containing, find_targets
from properties.engine.search.run import verify_target
from properties.engine.search.search import Plan
from properties.module import weights
from properties.module.away import Away, Shop, whole
from properties.module.names import Sizes
from properties.module.subject import set_dropout, tokens_for
from properties.module.trial import ModuleTrial

BY_DAY = "BackwardByHand"
OF_MODULES = [prop for prop in PROPERTIES.values() if prop.contract == "module"]


def classes() -> Iterator[Any]:
    for file in (honest_modules, module_caches, module_heads, module_masks, module_state, module_gradients):
        for name, thing in vars(file).items():
            if inspect.isclass(thing) and issubclass(thing, torch.nn.Module) and thing.__module__ == file.__name__:
                yield pytest.param(f"{file.__name__}:{name}", marks=[pytest.mark.nightly] * (name != BY_DAY), id=name)


def said(text: str) -> str:
    """Without how often PyTorch has counted a change of an array, which depends on the calls before."""
    return re.sub(r"version \d+", "version …", text)


def found(text: str, which: str) -> tuple[Target, dict[str, str], int]:
    with containing(which):
        (target,) = find_targets(text, Builtins())
        report = verify_target(target, OF_MODULES, Plan(examples=3))
    return target, {finding.prop.name: f"{finding.case}: {said(finding.violation.says)}" for finding in report.findings}, report.cases


@pytest.mark.nightly
@pytest.mark.parametrize("text", list(classes()))
def test_it_is_what_it_is_here(text: str) -> None:
    here, findings, cases = found(text, NEVER)
    away, others, as_many = found(text, OWN)
    assert isinstance(ModuleTrial(away, _first_case(away)).module, Away)
    assert (away.learned, away.differs, away.parameters, away.dtypes) == (here.learned, here.differs, here.parameters, here.dtypes)
    assert others == findings and as_many == cases


def _first_case(target: Target) -> Any:
    from properties.module.cases import Case

    length = (target.function.facts.lengths or (5,))[0]  # type: ignore[attr-defined]
    return Case(batch=2, length=length, seed=1)


CODE = """
import torch
from torch import nn


class Layer(nn.Module):
    def __init__(self, dim: int = 32, heads: int = 4, dropout: float = 0.1) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.proj, self.drop = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim, bias=False), nn.Dropout(dropout)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if self.training:
            self.calls += 1
        return self.proj((self.drop((q @ k.mT * q.shape[-1] ** -0.5).softmax(-1)) @ v).transpose(1, 2).flatten(2))
"""


@pytest.fixture
def layer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Target:
    (tmp_path / "layer.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    with containing(OWN):
        return find_targets("layer.py:Layer", Builtins())[0]


def trial_of(made: Target) -> ModuleTrial:
    return ModuleTrial(made, _first_case(made))


def test_names_types_and_plain_attributes_are_those_of_the_module(layer: Target) -> None:
    away = trial_of(layer).module
    assert [name for name, _ in away.named_modules()] == ["", "qkv", "proj", "drop"]
    assert [type(part).__name__ for part in away.modules()] == ["Layer", "Linear", "Linear", "Dropout"]
    assert {name: tuple(p.shape) for name, p in away.named_parameters()} == {
        "qkv.weight": (96, 32),
        "qkv.bias": (96,),
        "proj.weight": (32, 32),
    }
    parts = dict(away.named_modules())
    assert away.heads == 4 and parts["qkv"].in_features == 32 and parts["proj"].bias is None and parts["drop"].p == 0.0
    assert list(inspect.signature(away.forward).parameters) == ["x"]
    assert [name for name, _ in away.named_buffers()] == ["calls"]
    with pytest.raises(AttributeError):
        away.nonsense  # noqa: B018


def test_what_is_written_into_a_parameter_is_what_it_computes_with(layer: Target) -> None:
    trial = trial_of(layer)
    before = trial.run()
    dict(trial.module.named_parameters())["proj.weight"].data.mul_(2.0)
    assert np.array_equal(trial.run(), 2 * before)


def test_a_copy_is_another_one(layer: Target) -> None:
    trial = trial_of(layer)
    before, other = trial.run(), copy.deepcopy(trial.module)
    for parameter in other.parameters():
        parameter.data.zero_()
    assert np.array_equal(trial.run(), before) and not trial.run(module=other).any()


def test_train_mode_and_dropout_reach_it(layer: Target) -> None:
    trial = trial_of(layer)
    still, made = trial.run(), trial.made().train()
    assert np.array_equal(trial.run(module=made), still)  # its dropout is 0
    set_dropout(made, 0.5)
    assert not np.array_equal(trial.run(module=made), still)
    assert float(made.state_dict()["calls"]) == 2.0


def test_a_state_is_taken_over(layer: Target) -> None:
    trial = trial_of(layer)
    another = trial.subject.module("float64", "cpu", 77)
    assert not np.array_equal(trial.run(module=another), trial.run())
    another.load_state_dict(trial.module.state_dict())
    assert np.array_equal(trial.run(module=another), trial.run())


def test_gradients_come_back_to_parameters(layer: Target) -> None:
    trial = trial_of(layer)
    out = trial.result()
    out.sum().backward()
    grads = {name: p.grad for name, p in trial.module.named_parameters()}
    assert all(g is not None and bool(g.isfinite().all()) for g in grads.values())
    assert torch.allclose(grads["proj.weight"], grads["proj.weight"][:1].expand(32, 32))


def test_it_is_made_anew_where_its_process_has_ended(layer: Target) -> None:
    trial = trial_of(layer)
    before = trial.run()
    link = trial.module._shop.stub.link
    worker, children = link.pid, {parent: pid for pid, parent, _, _ in processes()}
    while worker in children:  # in namespaces of its own it is the child of a child of their first process
        worker = children[worker]
    os.kill(worker, signal.SIGKILL)
    with pytest.raises(Exception, match="killed the process"):
        trial.run()
    assert np.array_equal(trial.run(), before) and link.generation == 2


def test_what_describes_no_module_is_no_answer() -> None:
    shop = Shop("it", None, None)  # type: ignore[arg-type]
    for told in (None, {}, {"parts": []}, {"parts": [["", "Layer"]]}, {"parts": [["", "Layer", "here", {}, [], {}]], "number": "x"}):
        with pytest.raises(Gone, match="no answer"):
            whole(shop, [], told)


def test_what_it_raises_is_never_taken_for_the_checker_s_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception that is called as one of the checker's is another one."""
    code = CODE.replace("        q, k, v", "        if x.shape[1] > 20:\n            raise CannotRun('of mine')\n        q, k, v")
    (tmp_path / "named.py").write_text(code + "\n\nclass CannotRun(Exception):\n    pass\n")
    monkeypatch.chdir(tmp_path)
    with containing(OWN):
        (named,) = find_targets("named.py:Layer", Builtins())
    trial = trial_of(named)
    tokens = tokens_for(trial.speech, 2, 30, None)
    with pytest.raises(Exception, match="of mine") as raised:
        trial.run(tokens)
    assert not isinstance(raised.value, CannotRun)


def test_attributes_that_are_called_as_the_stand_in_s_own_do_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "named.py").write_text(CODE.replace("self.heads = heads", "self.heads = self.called = self.change = self.under = heads"))
    monkeypatch.chdir(tmp_path)
    with containing(OWN):
        (named,) = find_targets("named.py:Layer", Builtins())
    trial = trial_of(named)
    assert np.isfinite(trial.run()).all() and trial.module.heads == 4


def test_sizes_reach_the_constructor(layer: Target) -> None:
    subject: Any = layer.function
    assert subject.maker(Sizes(heads=2, head_dim=4)).heads == 2


SLOW = ("export", "compile", "no_grad", "inference_mode")


@pytest.mark.parametrize(
    "variant",
    [pytest.param(name, marks=[pytest.mark.nightly] * (name in SLOW)) for name in ("autocast", "requires_grad", "eager", *SLOW)],
)
def test_a_variant_of_a_right_module_is_right(variant: str, layer: Target) -> None:
    assert layer.contract == "module"
    with containing(OWN):
        (varied,) = find_targets(f"layer.py:Layer@{variant}", Builtins())
    report = verify_target(varied, OF_MODULES, Plan(examples=2, shrink=False), seconds=60.0 if variant == "compile" else None)
    assert not report.findings, [(f.prop.name, f.case, f.violation.says) for f in report.findings]
    if variant != "compile":  # of which there may be no time for all
        assert (report.outcomes["module_gradients_are_slopes"].cases > 0) == (variant == "eager")  # the others give parameters none


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize("told", [None, 3, {}, {"parts": []}, {"parts": [[]], "number": "x"}, {"number": []}])
def test_a_description_that_is_none_is_the_end_of_the_target(told: Any, layer: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cast, or made again in another process."""
    away = trial_of(layer).module
    monkeypatch.setattr(Shop, "ask", lambda *_: told)
    with pytest.raises(Gone, match="answered what is no answer"):
        away.to("float32")
    away._place["generation"] = -1
    with pytest.raises(Gone, match="answered what is no answer"):
        away.to("float32")


def test_weights_are_the_same_whether_or_not_they_were_drawn_before(monkeypatch: pytest.MonkeyPatch) -> None:
    fw = framework("torch")

    def drawn(seed: int) -> list[Any]:
        made = torch.nn.MultiheadAttention(8, 2)
        weights.draw(made, seed, 1.0, fw)
        return [parameter.detach().clone() for parameter in made.parameters()]

    kept = [drawn(seed) for seed in (1, 1, 2, 1)]
    assert len(weights._DRAWN) == len(kept[0])
    monkeypatch.setattr(weights, "MOST_KEPT", 0)
    fresh = [drawn(seed) for seed in (1, 1, 2, 1)]
    assert not weights._DRAWN
    for here, there in zip(kept, fresh, strict=True):
        assert all(map(torch.equal, here, there))
    assert all(map(torch.equal, kept[0], kept[3])) and not torch.equal(kept[0][0], kept[2][0])
