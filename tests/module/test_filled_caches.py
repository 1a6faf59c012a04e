"""Caches of somebody's own class, of two arguments, in lists and dictionaries, and made by the module: understood; wrong ones refuted."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from properties import verify_pair
from properties.catalogue import PROPERTIES, select
from properties.engine.contained.link import Link
from properties.engine.search.find_target import Builtins, containing, find_targets
from properties.engine.search.pairs import make_pair, pair_properties
from properties.engine.search.probe import make_target
from properties.engine.search.run import verify_target
from properties.engine.search.search import Plan, search


class StaticCache:
    """Room for so many tokens, in float32 where nobody says otherwise."""

    def __init__(self, batch: int, heads: int, size: int, dim: int) -> None:
        self.k, self.v = torch.zeros(batch, heads, size, dim), torch.zeros(batch, heads, size, dim)
        self.used = 0

    def update(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        start, self.used = self.used, self.used + k.shape[2]
        self.k[:, :, start : self.used], self.v[:, :, start : self.used] = k, v
        return self.k[:, :, : self.used], self.v[:, :, : self.used]


class Buffers(nn.Module):
    """The same as a module without a forward, which is told where tokens go."""

    def __init__(
        self, max_batch_size: int, max_seq_length: int, n_kv_heads: int, head_dim: int, dtype: torch.dtype = torch.bfloat16
    ) -> None:
        super().__init__()
        self.register_buffer("k", torch.zeros(max_batch_size, n_kv_heads, max_seq_length, head_dim, dtype=dtype))
        self.register_buffer("v", torch.zeros(max_batch_size, n_kv_heads, max_seq_length, head_dim, dtype=dtype))


@dataclass
class Kept:
    """Nothing at first."""

    k: Tensor | None = None
    v: Tensor | None = None


class Shared:
    """One for all, which is a mistake."""

    held: dict[str, Tensor] = {}  # noqa: RUF012

    def __init__(self, n_heads: int, head_dim: int) -> None:
        self.shape = (n_heads, head_dim)

    def update(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        if "k" in self.held and self.held["k"].shape[0] == k.shape[0] and self.held["k"].dtype == k.dtype:
            k, v = torch.cat([self.held["k"], k], 2), torch.cat([self.held["v"], v], 2)
        self.held.update(k=k, v=v)
        return k, v


class Attention(nn.Module):
    """Causal self-attention with two heads of keys and values."""

    def __init__(self, d_model: int, num_heads: int, num_kv_heads: int = 2) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads, self.head_dim = num_heads, num_kv_heads, d_model // num_heads
        self.q_proj, self.o_proj = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)
        self.k_proj, self.v_proj = (nn.Linear(d_model, num_kv_heads * self.head_dim) for _ in range(2))

    def project(self, x: Tensor) -> tuple[Tensor, ...]:
        return tuple(p(x).unflatten(2, (-1, self.head_dim)).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        k, v = (x.repeat_interleave(self.num_heads // self.num_kv_heads, 1) for x in (k, v))
        if mask is None:
            mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(k.shape[2] - q.shape[2])
        logits = (q @ k.mT / math.sqrt(self.head_dim)).masked_fill(~mask, -math.inf)
        return self.o_proj((logits.softmax(-1) @ v).transpose(1, 2).flatten(2))


class WithStatic(Attention):
    def forward(self, x: Tensor, kv_cache: StaticCache | None = None) -> Tensor:
        q, k, v = self.project(x)
        return self.attend(q, *((k, v) if kv_cache is None else kv_cache.update(k, v)))


class SeesAll(Attention):
    """What is not written yet is seen."""

    def forward(self, x: Tensor, kv_cache: StaticCache | None = None) -> Tensor:
        q, k, v = self.project(x)
        if kv_cache is None:
            return self.attend(q, k, v)
        kv_cache.update(k, v)
        return self.attend(q, kv_cache.k, kv_cache.v, torch.ones(1, 1, dtype=torch.bool))


class WithBuffers(Attention):
    late = 0

    def forward(self, x: Tensor, input_pos: Tensor | None = None, kv_cache: Buffers | None = None) -> Tensor:
        q, k, v = self.project(x)
        if kv_cache is None or input_pos is None:
            return self.attend(q, k, v)
        places = input_pos + self.late * bool(input_pos[0])
        kv_cache.k[:, :, places], kv_cache.v[:, :, places] = k, v  # type: ignore[index]
        return self.attend(q, kv_cache.k, kv_cache.v, torch.arange(kv_cache.k.shape[2]) <= input_pos[:, None])  # type: ignore[arg-type]


class OnePlaceLate(WithBuffers):
    late = 1


class WithKept(Attention):
    once = False

    def forward(self, x: Tensor, cache: Kept | None = None) -> Tensor:
        q, k, v = self.project(x)
        if cache is not None:
            first = cache.k is None
            if cache.k is not None and cache.v is not None:
                k, v = torch.cat([cache.k, k], 2), torch.cat([cache.v, v], 2)
            if first or not self.once:
                cache.k, cache.v = k, v
        return self.attend(q, k, v)


class KeepsTheFirst(WithKept):
    once = True


class WithShared(Attention):
    def forward(self, x: Tensor, cache: Shared | None = None) -> Tensor:
        q, k, v = self.project(x)
        return self.attend(q, *((k, v) if cache is None else cache.update(k, v)))


class WithList(Attention):
    order = (0, 1)

    def forward(self, x: Tensor, cache: Any = None) -> Tensor:
        q, k, v = self.project(x)
        if cache is not None:
            if len(cache):
                k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
            cache[:] = [(k, v)[at] for at in self.order]
        return self.attend(q, k, v)


class Exchanged(WithList):
    order = (1, 0)


class WithNone(Attention):
    def forward(self, x: Tensor, layer_cache: Any = None) -> Tensor:
        q, k, v = self.project(x)
        if layer_cache is not None:
            if layer_cache["self_keys"] is not None:
                k, v = torch.cat([layer_cache["self_keys"], k], 2), torch.cat([layer_cache["self_values"], v], 2)
            layer_cache["self_keys"], layer_cache["self_values"] = k, v
        return self.attend(q, k, v)


class TwoArguments(Attention):
    def forward(self, x: Tensor, prev_k: Tensor | None = None, prev_v: Tensor | None = None) -> Any:
        q, k, v = self.project(x)
        if prev_k is not None and prev_v is not None:
            k, v = self.join(prev_k, k), self.join(prev_v, v)
        return self.attend(q, k, v), k, v

    def join(self, earlier: Tensor, later: Tensor) -> Tensor:
        return torch.cat([earlier, later], 2)


class PastBehind(TwoArguments):
    def join(self, earlier: Tensor, later: Tensor) -> Tensor:
        return torch.cat([later, earlier], 2)


class TwoInOne(Attention):
    """Two arguments, and one answer of both."""

    def forward(self, x: Tensor, past_key: Tensor | None = None, past_value: Tensor | None = None, use_cache: bool = False) -> Any:
        q, k, v = self.project(x)
        if past_key is not None and past_value is not None:
            k, v = torch.cat([past_key, k], 2), torch.cat([past_value, v], 2)
        return self.attend(q, k, v), (k, v) if use_cache else None


class IntoTwo(Attention):
    """Two buffers that somebody else is to make."""

    def forward(self, x: Tensor, k_cache: Any = None, v_cache: Any = None) -> Tensor:
        return self.attend(*self.project(x))


class SetUp(Attention):
    """It makes its own, when it is told for how many."""

    seen = 0

    def setup_cache(self, batch_size: int, max_seq_length: int, dtype: torch.dtype = torch.float32) -> None:
        shape = (batch_size, self.num_kv_heads, max_seq_length, self.head_dim)
        self.register_buffer("kept_k", torch.zeros(shape, dtype=dtype))
        self.register_buffer("kept_v", torch.zeros(shape, dtype=dtype))

    def forward(self, x: Tensor, input_pos: Tensor | None = None) -> Tensor:
        q, k, v = self.project(x)
        if input_pos is None or not hasattr(self, "kept_k"):
            return self.attend(q, k, v)
        self.kept_k[:, :, input_pos], self.kept_v[:, :, input_pos] = k, v
        return self.attend(q, self.kept_k, self.kept_v, torch.arange(self.kept_k.shape[2]) <= input_pos[:, None] + self.seen)


class SetUpWrong(SetUp):
    seen = 1


class Hooked(nn.Module):
    """As in Whisper: hooks of somebody else put what layers answer into a dictionary, and have them answer with all of it."""

    def __init__(self, n_state: int, n_head: int) -> None:
        super().__init__()
        self.n_head = n_head
        self.query, self.value, self.out = (nn.Linear(n_state, n_state) for _ in range(3))
        self.key = nn.Linear(n_state, n_state, bias=False)

    def wants(self, xa: Tensor | None) -> bool:
        return xa is None

    def forward(self, x: Tensor, xa: Tensor | None = None, mask: Tensor | None = None, kv_cache: dict[Any, Tensor] | None = None) -> Tensor:
        if kv_cache is None or self.wants(xa) or self.key not in kv_cache:
            k, v = (layer(x if xa is None else xa) for layer in (self.key, self.value))
        else:
            k, v = kv_cache[self.key], kv_cache[self.value]
        q, k, v = (y.unflatten(2, (self.n_head, -1)).transpose(1, 2) for y in (self.query(x), k, v))
        scale = q.shape[-1] ** -0.25
        logits = (q * scale) @ (k * scale).mT
        if mask is not None:
            logits = logits + mask[: x.shape[1], : x.shape[1]]
        return self.out((logits.softmax(-1) @ v).transpose(1, 2).flatten(2))


class HookedWrong(Hooked):
    """What was kept is taken where nothing new is asked for."""

    def wants(self, xa: Tensor | None) -> bool:
        return xa is not None


RIGHT: dict[Any, str] = {
    WithStatic: "kv_cache: a StaticCache that calls fill",
    WithBuffers: "kv_cache: a Buffers that calls fill",
    WithKept: "cache: a Kept that calls fill",
    WithList: "cache: a list that calls fill",
    WithNone: "layer_cache: a dict of None that calls fill",
    TwoArguments: "prev_k and prev_v: what a call returns is given to the next one",
    TwoInOne: "past_key and past_value: what a call returns with use_cache=True is given to the next one",
    SetUp: "in the module, made by setup_cache()",
    Hooked: "kv_cache: a dict that calls fill",
}
WRONG = (SeesAll, OnePlaceLate, KeepsTheFirst, WithShared, Exchanged, PastBehind, SetUpWrong, HookedWrong)


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize("thing", RIGHT, ids=lambda thing: str(thing.__name__))
def test_it_is_understood(thing: Any) -> None:
    target = make_target("mine", thing)
    assert target.learned["cache"] == RIGHT[thing]
    assert not any("past" in name or "cache" in name or "prev" in name for name in target.untried)
    report = verify_target(target, select(("decoding",)), Plan(examples=8, shrink=False))
    assert not report.findings, [(f.prop.name, f.case, f.violation.says) for f in report.findings]
    assert sum(outcome.status == "passed" for outcome in report.outcomes.values()) >= 4


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize("thing", WRONG, ids=lambda thing: str(thing.__name__))
def test_a_wrong_one_is_refuted(thing: Any) -> None:
    target = make_target("mine", thing)
    assert "cache" in target.learned and "none that is understood" not in target.learned["cache"]
    assert search(target, PROPERTIES["module_a_cache_answers_as_no_cache"], Plan(examples=20)).finding


def test_what_nobody_can_fill_is_told() -> None:
    assert make_target("mine", IntoTwo).learned["cache"] == "none that is understood: no way was found to fill k_cache, v_cache"


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize("name", ["WithStatic", "WithBuffers", "TwoArguments", "SetUp", "Hooked"])
def test_in_a_process_of_its_own_it_is_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Link, "templates", [])
    with containing():
        (target,) = find_targets(f"{Path(__file__)}:{name}", Builtins())
        assert target.learned["cache"] == RIGHT[globals()[name]]
        report = verify_target(target, select(("decoding",)), Plan(examples=4, shrink=False))
    assert not report.findings, [(f.prop.name, f.case, f.violation.says) for f in report.findings]
    assert sum(outcome.status == "passed" for outcome in report.outcomes.values()) >= 3


class Masked(Attention):
    """As in torchtune and LitGPT: with a cache, of which all is seen, a mask has to say which tokens are later, as it does wherever it is given."""

    behind = 0

    def build_kv_cache(self, batch_size: int, max_seq_length: int, dtype: torch.dtype | None = None) -> Buffers:
        return Buffers(batch_size, max_seq_length, self.num_kv_heads, self.head_dim, dtype or torch.float32)

    def __init__(self, d_model: int, num_heads: int, num_kv_heads: int = 2) -> None:
        super().__init__(d_model, num_heads, num_kv_heads)
        self.kv_cache: Buffers | None = None

    def forward(self, x: Tensor, mask: Tensor | None = None, input_pos: Tensor | None = None) -> Tensor:
        q, k, v = self.project(x)
        if input_pos is not None:
            if self.kv_cache is None:
                raise TypeError("build_kv_cache() has to be called")
            places = input_pos - self.behind * bool(input_pos[0])
            self.kv_cache.k[:, :, places], self.kv_cache.v[:, :, places] = k, v  # type: ignore[index]
            k, v = self.kv_cache.k, self.kv_cache.v  # type: ignore[assignment]
        return self.attend(q, k, v, None if mask is None else mask[:, None])


class Overwriting(Masked):
    behind = 1


class Emptied(SetUp):
    """A cache that is made once, and emptied: ``reset_cache`` says how."""

    leaves = False

    def reset_cache(self) -> None:
        if not hasattr(self, "kept_k"):
            raise RuntimeError("there is no cache yet")
        if not self.leaves:
            self.kept_k.zero_()
            self.kept_v.zero_()

    def forward(self, x: Tensor, input_pos: Tensor | None = None) -> Tensor:
        if input_pos is None or not hasattr(self, "kept_k"):
            return super().forward(x)
        q, k, v = self.project(x)
        at = int((self.kept_k.abs().sum((0, 1, 3)) > 0).sum())  # behind what is there
        self.kept_k[:, :, at : at + x.shape[1]], self.kept_v[:, :, at : at + x.shape[1]] = k, v
        return self.attend(q, self.kept_k[:, :, : at + x.shape[1]], self.kept_v[:, :, : at + x.shape[1]])


class Leaving(Emptied):
    leaves = True


def test_a_mask_is_given_with_a_cache_that_needs_one() -> None:
    words = "in the module, made by build_kv_cache(); mask says which tokens are later, of all that there is room for"
    target = make_target("mine", Masked)
    assert target.learned["cache"] == words
    report = verify_target(target, select(("decoding",)), Plan(examples=8, shrink=False))
    assert not report.findings and sum(outcome.status == "passed" for outcome in report.outcomes.values()) >= 4
    assert search(make_target("mine", Overwriting), PROPERTIES["module_a_cache_answers_as_no_cache"], Plan(examples=20)).finding


def test_one_that_is_made_is_emptied_for_the_next_sequence() -> None:
    target = make_target("mine", Emptied)
    assert target.learned["cache"] == "in the module, made by setup_cache(), emptied by reset_cache()"
    prop = PROPERTIES["module_a_second_sequence_starts_anew"]
    assert search(target, prop, Plan(examples=12)).status == "passed"
    assert search(make_target("mine", Leaving), prop, Plan(examples=12)).finding


class Grouped(Attention):
    """Two groups, however many heads: of one head there are none."""

    def __init__(self, d_model: int, num_heads: int, shared_kv_heads: int = 2) -> None:
        super().__init__(d_model, num_heads, shared_kv_heads)
        self.shared_kv_heads = shared_kv_heads

    def forward(self, x: Tensor) -> Tensor:
        return self.attend(*self.project(x))


def test_heads_are_no_fewer_than_groups_that_do_not_follow_them() -> None:
    target = make_target("mine", Grouped)
    assert target.learned["sizes"] == "the width of heads, not their number, is varied through the constructor"
    assert not verify_target(target, select(("tokens", "projections")), Plan(examples=12, shrink=False)).findings


@pytest.mark.nightly
def test_caches_are_compared_where_both_of_a_pair_keep_one() -> None:
    both = make_pair(make_target("a", PastBehind), make_target("b", TwoArguments))
    assert both.learned["cache"] and len(pair_properties(both)) == 3
    report = verify_pair(PastBehind, TwoArguments, cases=12)
    assert {f.prop.name for f in report.findings} == {"cached_answers_are_those_of_the_reference"}
    assert verify_pair(TwoInOne, TwoArguments, cases=12).ok
    alone = make_pair(make_target("a", TwoArguments), make_target("b", Grouped))
    assert alone.untried["cache"] == "the reference keeps none that is understood"
