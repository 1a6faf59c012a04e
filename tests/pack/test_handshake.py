"""What is found out of a target of packed sequences before the search: refusals, groups, the causal corner, rows without keys, a scale of 0."""

from __future__ import annotations

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from properties.catalogue import select
from properties.engine.core.target import Target
from properties.engine.search.probe import make_target
from properties.engine.search.run import verify_target
from properties.engine.search.search import Plan

PROPS = [prop for prop in select(()) if prop.contract == "packed"]


def varlen(corner: str = "bottom-right", narrow: bool = False, empty: float = 0.0, flag: str = "causal", **mistakes: Any) -> Any:
    """As people write it; ``narrow``: values are as wide as keys; ``empty``: what a row gives that sees no key."""

    def attention(q: Any, k: Any, v: Any, cu_q: Any, cu_k: Any, scale: float | None, causal: bool) -> Any:
        out = torch.zeros(*q.shape[:2], q.shape[2] if narrow else v.shape[2], dtype=q.dtype)
        group = q.shape[1] // k.shape[1]
        usual = q.shape[2] ** -0.5
        scale = (scale or usual) if mistakes.get("falsy") else usual if scale is None else scale
        for n in range(len(cu_q) - 1):
            here, there = slice(int(cu_q[n]), int(cu_q[n + 1])), slice(int(cu_k[n]), int(cu_k[n + 1]))
            repeat = (lambda x: x.repeat(1, group, 1)) if mistakes.get("tiled") else (lambda x: x.repeat_interleave(group, 1))
            one, two, three = q[here].transpose(0, 1), *(repeat(x[there]).transpose(0, 1) for x in (k, v))
            s = one @ two.mT * scale
            if causal:
                s = s.masked_fill(
                    ~torch.ones(s.shape[1:], dtype=torch.bool).tril(s.shape[2] - s.shape[1] if corner != "top-left" else 0), -math.inf
                )
            p = torch.softmax(s, -1)
            out[here] = (torch.where(torch.isneginf(s).all(-1, keepdim=True), empty, p) @ three).transpose(0, 1)
        return out

    if flag == "causal":
        return lambda q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, softmax_scale=None, causal=False: attention(
            q, k, v, cu_seqlens_q, cu_seqlens_k, softmax_scale, causal
        )
    return lambda q, k, v, cu_seqlens_q, cu_seqlens_k, scale=None, is_causal=False: attention(
        q, k, v, cu_seqlens_q, cu_seqlens_k, scale, is_causal
    )


def spoken(function: Any, **facts: Any) -> Target:
    target = make_target("mine", function, {"dtypes": ["float64"], "zero_sizes": False, **facts})
    return target.kind.handshake(target, "cpu")


def refuted(target: Target) -> set[str]:
    return {finding.prop.name for finding in verify_target(target, PROPS, Plan(examples=12)).findings}


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize("empty", [0.0, math.nan])
@pytest.mark.parametrize("narrow", [False, True])
def test_as_flash_attention_has_it(narrow: bool, empty: float) -> None:
    target = spoken(varlen(narrow=narrow, empty=empty))
    assert target.learned["causal corner"].startswith("bottom-right, as flash-attention") and not target.wrong
    assert target.learned["grouped heads"] == "without a flag" and "enable_gqa" in target.parameters
    assert target.supports.value_dim is not narrow and ("values of another width than keys" in target.refuses) is narrow
    assert target.supports.empty_rows == ("nan" if math.isnan(empty) else "zero")
    assert not refuted(target)


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize(
    ("flag", "corner", "right"), [("causal", "top-left", False), ("is_causal", "top-left", True), ("is_causal", "bottom-right", False)]
)
def test_a_corner_that_is_not_documented_is_one_finding(flag: str, corner: str, right: bool) -> None:
    target = spoken(varlen(corner, flag=flag))
    assert set(target.wrong) == ({"causal corner"} - ({"causal corner"} if right else set())) and target.supports.causal == corner
    assert not refuted(target)
    assert not spoken(varlen(corner, flag=flag), causal=corner).wrong


def test_a_scale_of_0_that_is_taken_for_none_is_one_finding() -> None:
    target = spoken(varlen(falsy=True))
    assert set(target.wrong) == {"scale of 0"} and not refuted(target)


@pytest.mark.nightly
def test_heads_that_are_repeated_in_another_order_are_refuted_where_they_are_declared() -> None:
    """Without a flag, and wrongly, they are not taken to be grouped: nobody says that they may be."""
    assert "enable_gqa" not in spoken(varlen(tiled=True)).parameters
    names = ["max_seqlen_q", "max_seqlen_k", "is_causal", "scale", "enable_gqa"]
    assert refuted(spoken(varlen(tiled=True), parameters=names, causal="bottom-right"))
    assert not refuted(spoken(varlen(), parameters=names, causal="bottom-right"))


def in_float32(right: bool = True) -> Any:
    """Of float64 the answers are of float64, too, and computed in float32; or a small mistake is made in float64."""
    usual = varlen()

    def attention(
        q: Any, k: Any, v: Any, cu_seqlens_q: Any, cu_seqlens_k: Any, softmax_scale: float | None = None, causal: bool = False
    ) -> Any:
        wide = [x.float() if right else x for x in (q, k, v)]
        out = usual(*wide, cu_seqlens_q, cu_seqlens_k, None, None, softmax_scale, causal).to(q.dtype)
        return out if right else out * (1 + 1e-7)

    return attention


def test_float64_that_is_computed_in_float32_is_told_and_not_tried() -> None:
    target = make_target("mine", in_float32(), {"zero_sizes": False})
    target = target.kind.handshake(target, "cpu")
    assert "float64" not in target.dtypes and target.differs["float64"].startswith("computed in float32, off by ")
    assert not refuted(target)
    wrong = make_target("mine", in_float32(right=False), {"zero_sizes": False})
    assert "packed_output_is_inside_the_bound" in refuted(wrong.kind.handshake(wrong, "cpu"))


def of_one_array(q: Any, k: Any, v: Any, cu_seqlens: Any, max_seqlen: int, causal: bool = False, right: bool = True) -> Any:
    """Self-attention of a pack: as many queries as keys."""
    of = torch.bucketize(torch.arange(len(q)), cu_seqlens[1:].long(), right=right)
    seen = of[:, None] == of[None, :]
    if causal:
        seen = seen & torch.ones(len(q), len(q), dtype=torch.bool).tril()
    assert max(cu_seqlens.diff().tolist(), default=0) <= max_seqlen
    s = torch.einsum("qhd,khd->hqk", q, k) * max(q.shape[2], 1) ** -0.5
    return torch.einsum("hqk,khd->qhd", s.masked_fill(~seen, -math.inf).softmax(-1), v)


@pytest.mark.parametrize("right", [True, False])
def test_one_array_of_boundaries_says_those_of_keys_too(right: bool) -> None:
    """Any lengths are asked: queries are added, and several sequences have the same keys. It claims no causal corner."""

    def attention(q: Any, k: Any, v: Any, cu_seqlens: Any, max_seqlen: int, causal: bool = False) -> Any:
        return of_one_array(q, k, v, cu_seqlens, max_seqlen, causal, right)

    target = make_target("mine", attention)
    target = target.kind.handshake(target, "cpu")
    assert target.learned["cu_seqlens"].startswith("where both queries and keys") and not target.wrong
    report = verify_target(target, PROPS, Plan(examples=8, strict=False))
    assert bool(report.findings) != right
    if right:
        outcome = report.outcomes["packed_output_is_inside_the_bound"]
        assert set(outcome.notes.not_taken) <= {"queries without keys", "more queries than keys, where causal"} and outcome.cases > 4
        assert report.outcomes["packed_gradients_are_inside_the_bound"].status == "passed"
