"""Caches of modules: of which kind one is, is found by what it does; what is not understood is told; wrong ones are refuted."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from impls.mutants import load_all
from impls.mutants.module.modular import Decoder, Holding, InDictionary, Past
from properties.catalogue import PROPERTIES, select
from properties.engine.search.probe import make_target
from properties.engine.search.run import verify_target
from properties.engine.search.search import Plan, inapplicable, search
from properties.module.cases import Case
from properties.module.feeding import chunks
from properties.module.trial import ModuleTrial

HONEST = {name.partition(".")[2]: each.function for name, each in load_all()[1].items() if each.contract == "module"}


class Config:
    """One of which the cache would need more than a tiny one has."""


class Cache:
    """An object that a call fills, as libraries have it; a configuration can be given, and need not be."""

    def __init__(self, config: Config | None = None) -> None:
        self.held: Past = None
        self.layers = 1 if config is None else config.num_hidden_layers  # type: ignore[attr-defined]

    def update(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        self.held = (k, v) if self.held is None else (torch.cat([self.held[0], k], 2), torch.cat([self.held[1], v], 2))
        return self.held


class WithObject(Decoder):
    """A cache of its own class, found beside it; angles come from outside, beginning where the tokens do."""

    def forward(self, x: Tensor, position_ids: Tensor, past_key_values: Any = None) -> Any:  # type: ignore[override]
        self.start = int(position_ids.min())
        self.given = past_key_values
        return self.attend(x, None, past_key_values is not None)[0]

    def place(self, past: Past) -> int:
        return self.start

    def extend(self, past: Past, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return (k, v) if self.given is None else self.given.update(k, v)


class Elsewhere(WithObject):
    """The cache lies beside the class that this one extends."""

    __module__ = "builtins"


class OneByOne(Decoder):
    """After the first tokens it takes one at a time, and says so."""

    def forward(self, x: Tensor, layer_past: Past = None) -> Any:  # type: ignore[override]
        if layer_past is not None and x.shape[1] > 1:
            raise ValueError("one token at a time")
        return self.attend(x, layer_past, False)


class Refusing(Decoder):
    """A cache that it does not take."""

    def forward(self, x: Tensor, past: Past = None) -> Any:  # type: ignore[override]
        if past is not None:
            raise NotImplementedError("caches come later")
        return self.attend(x, None, False)[0]


class OfWeights(Decoder):
    """What comes back beside the output are weights, no cache; ``cache`` is read by nobody."""

    def forward(self, x: Tensor, cache: Any = None) -> Any:  # type: ignore[override]
        return self.attend(x, None, False)[0], torch.zeros(len(x), self.num_heads, x.shape[1], x.shape[1])


FOUND: dict[str, tuple[Any, str]] = {
    "handed back": (HONEST["HandsBack"], "past: what a call returns with use_cache=True is given to the next one"),
    "in the module": (HONEST["Holds"], "in the module with use_cache=True, emptied by reset_cache()"),
    "in slots": (HONEST["WritesSlots"], "in the module"),
    "a dictionary": (HONEST["FillsDictionary"], "cache: a dict that calls fill"),
    "an object": (WithObject, "past_key_values: a Cache that calls fill"),
    "an object of the class that is extended": (Elsewhere, "past_key_values: a Cache that calls fill"),
    "one by one": (OneByOne, "layer_past: what a call returns is given to the next one; one token at a time"),
    "none that is taken": (Refusing, "none that is understood: past: NotImplementedError: caches come later"),
}


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize("kind", FOUND)
def test_how_a_cache_is_kept_is_found_out(kind: str) -> None:
    thing, told = FOUND[kind]
    target = make_target("mine", thing)
    assert target.learned["cache"] == told
    report = verify_target(target, select(("decoding",)), Plan(examples=8, shrink=False))
    assert not report.findings, [(f.prop.name, f.case, f.violation.says) for f in report.findings]
    passed = sum(outcome.status == "passed" for outcome in report.outcomes.values())
    assert passed == 0 if "none" in kind else passed >= (3 if kind == "in slots" else 4)


@pytest.mark.parametrize("thing", [OfWeights, HONEST["CausalSelfAttention"], nn.MultiheadAttention(32, 4, batch_first=True)])
def test_where_nothing_is_kept_nothing_is_claimed(thing: Any) -> None:
    target = make_target("mine", thing)
    assert "cache" not in target.learned
    assert inapplicable(target, PROPERTIES["module_a_cache_answers_as_no_cache"]) == "it keeps no cache"


def test_chunks_are_of_every_kind_and_add_up() -> None:
    target = make_target("mine", HONEST["HandsBack"])
    kinds = set()
    for seed in range(60):
        trial = ModuleTrial(target, Case(length=9, seed=seed))
        sizes = chunks(trial, 9)
        assert sum(sizes) == 9 and len(sizes) >= 2 and min(sizes) >= 1
        kinds.add("steps" if set(sizes[1:]) == {1} else len(sizes))
    assert kinds == {"steps", 2, 3}
    alone = ModuleTrial(make_target("mine", OneByOne), Case(length=9))
    assert set(chunks(alone, 9)[1:]) == {1}


class Forgets(Holding):
    """The sequence before is emptied only where the new one is shorter."""

    def forward(self, x: Tensor, use_cache: bool = False) -> Any:  # type: ignore[override]
        out = super().forward(x, use_cache)
        self.longest = max(getattr(self, "longest", 0), 0 if self.held is None else self.held[0].shape[2])
        return out + 1e-3 * getattr(self, "before", 0)

    def reset_cache(self) -> None:
        self.before = getattr(self, "longest", 0)
        super().reset_cache()


class Mixed(InDictionary):
    """Keys of the second layer are those that the first one kept, where there are some."""

    def forward(self, x: Tensor, cache: dict[str, Any] | None = None) -> Tensor:
        if cache and "first" in cache:
            cache["second"] = (cache["first"][0], cache["second"][1])
        return super().forward(x, cache)


WRONG: dict[str, tuple[Any, str]] = {
    "what a sequence leaves": (Forgets, "module_a_second_sequence_starts_anew"),
    "layers that meet": (Mixed, "module_a_cache_answers_as_no_cache"),
}


@pytest.mark.nightly(but=2)
@pytest.mark.parametrize("mistake", WRONG)
def test_a_wrong_cache_is_refuted(mistake: str) -> None:
    thing, name = WRONG[mistake]
    assert search(make_target("mine", thing), PROPERTIES[name], Plan(examples=30)).finding
