"""Packed sequences: what is drawn, how the contract is told, the built-ins against loops, the mutants told apart."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from drawing import drawn
from exact_packs import PACK, attention

from impls import packed_numpy, torch_packed
from impls.mutants import forget, load_all
from impls.mutants.pack.packs import attention as core
from properties.catalogue import PROPERTIES, select
from properties.engine.core.target import CannotRun
from properties.engine.explain.reading import read_failure
from properties.engine.explain.suspects import known_mistakes
from properties.engine.search.probe import make_target
from properties.engine.search.run import verify_target
from properties.engine.search.search import Plan, cases, search
from properties.pack.cases import Case
from properties.pack.packing import PACKINGS

MUTANTS, HONEST = ({name: m for name, m in table.items() if m.contract == "packed"} for table in load_all())
FACTS = {"framework": "torch"}


# ---------------------------------------------------------------- what is drawn


def test_every_packing_is_what_it_says() -> None:
    for name, lengths in PACKINGS.items():
        for seed in range(20):
            queries, keys = lengths(Case(batch=5, queries=7, keys=9, packing=name, seed=seed))
            assert len(queries) == len(keys) == 5 and queries.min() >= 0 and keys.max() <= 9
    assert PACKINGS["ones"](Case(batch=3, queries=5, keys=5))[0].tolist() == [1, 1, 1]
    assert PACKINGS["long_last"](Case(batch=3, queries=5, keys=6))[1].tolist() == [1, 1, 6]


def test_what_must_be_drawn_is_drawn() -> None:
    """Of 500 cases twice over, two at least: every packing, sequences without queries or keys, lengths on both sides of tiles."""
    found: Counter[str] = Counter()

    wanted: set[str] = set(PACKINGS)
    for case in (case for seed in range(2) for case in drawn(cases(PACK, PROPERTIES["packed_output_is_inside_the_bound"]), seed, 500)):
        queries, keys = PACKINGS[case.packing](case)
        facts = {
            case.packing: True,
            "no queries": (queries == 0).any(),
            "no keys": ((keys == 0) & (queries > 0)).any(),
            "nothing": ((keys == 0) & (queries == 0)).any(),
            "one token": ((keys == 1) & (queries == 1)).any(),
            "empty first": len(queries) > 1 and queries[0] == 0 < queries[-1],
            "empty last": len(queries) > 1 and queries[-1] == 0,
            "different lengths": len(set(queries.tolist())) > 1,
            "L < S": (queries < keys).any(),
            "L > S": (queries > keys).any(),
            "one sequence": len(queries) == 1,
            "causal": case.is_causal,
            "groups": case.group > 1,
            **{f"keys {n}": (keys == n).any() for n in (15, 16, 17, 31, 33, 65)},
        }
        found.update(name for name, holds in facts.items() if holds)
        wanted.update(facts)
    rare = {name: found[name] for name in wanted if found[name] < 2}
    assert not rare, rare


def test_what_is_not_supported_is_not_drawn() -> None:
    def plain(q: Any, k: Any, v: Any, cu_seqlens_q: Any, cu_seqlens_k: Any) -> Any:
        assert cu_seqlens_q.diff().min() > 0 and cu_seqlens_k.diff().min() > 0 and cu_seqlens_k.diff().max() <= 32
        assert q.shape[1:] == k.shape[1:] == v.shape[1:] and q.shape[2] == 8
        return core(q, k, v, cu_seqlens_q, cu_seqlens_k)

    facts = {**FACTS, "zero_sizes": False, "head_dims": [8], "max_length": 32, "dtypes": ["float32"]}
    report = verify_target(make_target("plain", plain, facts), select(("packed",)), Plan(examples=20))
    assert not report.findings, report.findings
    left = {name for name, outcome in report.outcomes.items() if outcome.status == "not exercised"}
    assert left == {"empty_sequences_change_nothing", "packed_future_tokens_are_ignored", "larger_max_seqlen_changes_nothing"}


# ---------------------------------------------------------------- the contract


def test_the_contract_is_told_by_its_fourth_argument() -> None:
    """Names of FlashAttention and of PyTorch, by position or by keyword."""

    def flash(
        q: Any,
        k: Any,
        v: Any,
        cu_seqlens_q: Any,
        cu_seqlens_k: Any,
        max_seqlen_q: int,
        max_seqlen_k: int,
        softmax_scale: float | None = None,
        causal: bool = False,
    ) -> Any:
        return core(q, k, v, cu_seqlens_q, cu_seqlens_k, scale=softmax_scale, is_causal=causal)

    def of_torch(query: Any, key: Any, value: Any, cu_seq_q: Any, cu_seq_k: Any, max_q: int, max_k: int, *, scale: Any = None) -> Any:
        assert max_q >= cu_seq_q.diff().max() and max_k >= cu_seq_k.diff().max()
        return core(query, key, value, cu_seq_q, cu_seq_k, scale=scale)

    longest = ("max_seqlen_q", "max_seqlen_k")
    for function, parameters in ((flash, (*longest, "is_causal", "scale")), (of_torch, (*longest, "scale"))):
        target = make_target("mine", function, FACTS)
        assert target.contract == "packed" and target.parameters == parameters
        assert not verify_target(target, select(("packed",)), Plan(examples=5)).findings


def test_what_cannot_be_called_is_told_in_one_sentence() -> None:
    def heads_first(q: Any, k: Any, v: Any, cu_seqlens_q: Any, cu_seqlens_k: Any) -> Any:
        return core(q, k, v, cu_seqlens_q, cu_seqlens_k).transpose(0, 1)

    with pytest.raises(CannotRun, match=r"returns shape \(3, 5, 4\) for q of \(5, 3, 4\); expected \(total queries, heads, dim\)"):
        make_target("mine", heads_first, FACTS)


def test_reports_keep_attention_and_packs_apart() -> None:
    report = verify_target(PACK, select(), Plan(examples=2))
    assert set(report.outcomes) == {prop.name for prop in select(("packed",))}


# ---------------------------------------------------------------- implementations and mutants

LENGTHS = (([3, 1, 4], [3, 1, 4]), ([2, 5], [4, 3]), ([0, 2, 0, 3], [0, 2, 3, 1]), ([1], [17]), ([2, 2], [0, 4]), ([2, 18, 3], [2, 18, 3]))


def calls() -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    made = []
    for number, (queries, keys) in enumerate(LENGTHS):
        generator = torch.Generator().manual_seed(number)
        heads = ((sum(queries), 2, 3), (sum(keys), 1 + number % 2, 3), (sum(keys), 1 + number % 2, 2))
        q, k, v = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in heads)
        cu = tuple(torch.tensor([0, *np.cumsum(n)], dtype=torch.int32) for n in (queries, keys))
        options = {"enable_gqa": True, "max_seqlen_q": max(queries), "max_seqlen_k": max(keys)}
        made += [((q, k, v, *cu), options | extra) for extra in ({}, {"is_causal": True}, {"scale": 0.3, "max_seqlen_k": max(keys) + 3})]
    return made


@pytest.mark.parametrize("name", ["numpy", "masked", "nested", "core"])
def test_the_built_ins_are_exact(name: str) -> None:
    for (q, k, v, *cu), options in calls():
        if name == "nested" and (options.get("is_causal") or q.shape[1] != k.shape[1] or 0 in [*cu[0].diff(), *cu[1].diff()]):
            continue
        right = attention(q, k, v, *cu, **options)
        if name == "numpy":
            out = torch.from_numpy(packed_numpy.attention(*(x.numpy() for x in (q, k, v, *cu)), **options))
        elif name == "nested":
            out = torch_packed.nested(q, k, v, *cu, scale=options.get("scale"))
        else:
            out = (core if name == "core" else torch_packed.masked)(q, k, v, *cu, **options)
        assert (out - right).abs().max() < 1e-14


@pytest.mark.parametrize("function", [torch_packed.masked, core], ids=["masked", "core"])
def test_their_gradients_are_exact(function: Any) -> None:
    for (q, k, v, *cu), options in calls():
        found = []
        for each in (function, attention):
            leaves = [x.clone().requires_grad_() for x in (q, k, v)]
            out = each(*leaves, *cu, **options)
            found.append(
                torch.autograd.grad(out, leaves, torch.ones_like(out) * torch.arange(1.0, 1 + out.shape[2]), materialize_grads=True)
            )
        assert all((x - y).abs().max() < 1e-13 for x, y in zip(*found))


def seen(function: Any) -> bytes:
    """What a function answers to all calls, and what became of the boundaries."""
    found = b""
    for (q, k, v, *cu), options in calls():
        given = [x.clone() for x in cu]
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        try:
            out = function(*leaves, *given, **options)
            found += out.detach().numpy().tobytes()
            back = torch.autograd.grad(out, leaves, torch.ones_like(out) * torch.arange(1.0, 1 + out.shape[2]), materialize_grads=True)
            found += b"".join(x.numpy().tobytes() for x in back)
        except (IndexError, RuntimeError) as error:
            found += type(error).__name__.encode()
        found += b"".join(x.numpy().tobytes() for x in given)
    return found


def test_every_mistake_differs_from_the_core_and_from_every_other() -> None:
    answers = {seen(core): "the core"}
    for name, each in MUTANTS.items():
        forget()
        answer = seen(each.function)
        assert answer not in answers, f"{name} answers like {answers[answer]}"
        answers[answer] = name
    assert len(MUTANTS) >= 15 and len(HONEST) >= 2
    assert {each.killed_by for each in MUTANTS.values()} == {prop.name for prop in select(("packed",))}


@pytest.mark.parametrize("name", ["packs.causal_over_the_pack", "packs.last_left_out", "packs.queries_bound_the_keys"])
def test_the_mistake_is_called_by_its_name(name: str) -> None:
    mutant = MUTANTS[name]
    target = make_target("mine", mutant.function)
    finding = search(target, PROPERTIES[mutant.killed_by], Plan()).finding
    assert finding
    assert f"mutants.{name}" in [suspect.name for suspect in read_failure(target, finding, known_mistakes())]


@pytest.mark.parametrize("tiled", [False, True])
def test_heads_that_are_grouped_unasked_can_be_declared(tiled: bool) -> None:
    """As FlashAttention groups them: no parameter says so; without the declaration the report says that it was not tried."""

    def grouping(q: Any, k: Any, v: Any, cu_q: Any, cu_k: Any, max_seqlen_q: int, max_seqlen_k: int, *, causal: bool = False) -> Any:
        group = q.shape[1] // k.shape[1] if k.shape[1] else 1
        k, v = (x.repeat(1, group, 1) if tiled else x.repeat_interleave(group, 1) for x in (k, v))
        return core(q, k, v, cu_q, cu_k, max_seqlen_q=max_seqlen_q, max_seqlen_k=max_seqlen_k, is_causal=causal)

    facts = {"framework": "torch", "contract": "packed"}
    assert "grouped heads" in make_target("mine", grouping, facts).untried
    target = make_target("mine", grouping, facts | {"parameters": ["max_seqlen_q", "max_seqlen_k", "is_causal", "enable_gqa"]})
    assert "grouped heads" not in target.untried
    assert bool(search(target, PROPERTIES["packed_output_is_inside_the_bound"], Plan()).finding) == tiled
