"""What kernels of a GPU are like that allocate their answer as ``empty_like(q)``, and are asked in Triton's interpreter."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import permissive

from properties.attention import conventions
from properties.catalogue import select
from properties.engine.core import pace
from properties.engine.core.target import Target
from properties.engine.search.probe import make_target
from properties.engine.search.run import verify_target
from properties.engine.search.search import Plan

RIGHT: dict[str, Any] = {"framework": "torch", "parameters": ["is_causal", "scale"]}
WIDTH = "values of another width than keys"


def like_queries(q: Any, k: Any, v: Any, *, is_causal: bool = False, scale: float | None = None) -> Any:
    out = torch.empty_like(q)
    if v.shape[-1] < q.shape[-1]:
        v = torch.cat([v, torch.zeros(*v.shape[:3], q.shape[-1] - v.shape[-1], dtype=v.dtype)], -1)
    out[:] = permissive.attention(q, k, v[..., : q.shape[-1]], is_causal=is_causal, scale=scale)
    return out


def spoken(function: Any, **facts: Any) -> Target:
    target = make_target("mine", function, {**RIGHT, **facts})
    return target.kind.handshake(target, "cpu")


def test_who_answers_in_the_width_of_queries_is_asked_in_no_other() -> None:
    target = spoken(like_queries)
    assert not target.supports.value_dim and "width of queries" in target.untried[WIDTH]
    assert verify_target(target, select(("values", "purity")), Plan(examples=10)).findings == []


@pytest.mark.nightly
def test_where_widths_are_declared_that_is_a_mistake() -> None:
    target = spoken(like_queries, value_dim=True)
    assert target.supports.value_dim and WIDTH not in target.untried
    report = verify_target(target, select(("values", "purity")), Plan(examples=10))
    assert any("the output has shape" in str(finding) for finding in report.findings)


def test_another_wrong_width_excuses_nothing() -> None:
    def one_too_many(q: Any, k: Any, v: Any, *, is_causal: bool = False, scale: float | None = None) -> Any:
        out = permissive.attention(q, k, v, is_causal=is_causal, scale=scale)
        return out if v.shape[-1] == q.shape[-1] else torch.cat([out, out[..., :1]], -1)

    target = spoken(one_too_many)
    assert target.supports.value_dim and WIDTH not in target.untried


@pytest.mark.parametrize("set_to", ["1", "0"])
def test_tritons_interpreter_is_asked_nothing_in_bfloat16(set_to: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", set_to)
    target = make_target("mine", like_queries, RIGHT)
    assert ("bfloat16" in target.dtypes) == (set_to == "0") == ("bfloat16" not in target.untried)
    declared = make_target("mine", like_queries, {**RIGHT, "dtypes": ["bfloat16"]})
    assert declared.dtypes == ("bfloat16",)


def test_what_is_too_slow_to_be_asked_is_not_tried_in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]

    def slow(q: Any, k: Any, v: Any, *, is_causal: bool = False, scale: float | None = None) -> Any:
        clock[0] += 0.06
        return like_queries(*(x.float() for x in (q, k, v)), is_causal=is_causal, scale=scale).to(q.dtype)

    target = dataclasses.replace(make_target("mine", slow, RIGHT), pace=pace.Pace())
    monkeypatch.setattr(pace, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    assert "float64" in conventions.with_conventions(target, "cpu").differs  # which is seen where there is time
    monkeypatch.setattr(pace, "SECONDS", 0.3)
    found = conventions.with_conventions(dataclasses.replace(target, pace=pace.Pace()), "cpu")
    assert "float64" not in (*found.dtypes, *found.differs) and "too slow" in found.untried["float64"]


def test_who_refuses_heads_that_see_no_key_is_told_so() -> None:
    def guarded(q: Any, k: Any, v: Any, *, attn_mask: Any = None, is_causal: bool = False) -> Any:
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            assert attn_mask.reshape(-1, *attn_mask.shape[-2:]).any(-1).any(-1).all(), "all False for a head"
        return permissive.attention(q, k, v, attn_mask=attn_mask, is_causal=is_causal)

    target = spoken(guarded, parameters=["attn_mask", "is_causal"])
    assert not target.supports.rows_without_keys and "all False" in target.refuses["heads that see no key at all"]
