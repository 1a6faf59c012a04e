"""The checker learns how a callable is called: by its answers, not by names alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from properties.catalogue import PROPERTIES
from properties.engine.core.target import CannotRun, Target
from properties.engine.report.as_json import report_json
from properties.engine.report.text import verdict_text
from properties.engine.search.probe import make_target
from properties.engine.search.run import Report, verify_target
from properties.engine.search.search import Plan

CORE = ("output_is_inside_the_bound", "rows_sum_to_one", "masked_keys_are_deleted")
NUMPY = {"framework": "numpy"}


def core(q: Any, k: Any, v: Any, mask: Any = None, is_causal: bool = False, scale: Any = None, corner: str = "top-left") -> Any:
    """(…, length, dim) in PyTorch; the mask is True where seen, or added."""
    s = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    if mask is not None:
        s = torch.where(mask, s, -torch.inf) if mask.dtype == torch.bool else s + mask
    if is_causal:
        after = s.shape[-1] - s.shape[-2] if corner == "bottom-right" else 0
        s = s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool).triu(1 + after), -torch.inf)
    return torch.softmax(s, -1) @ v


def learned(function: Callable[..., Any], supports: Any = None) -> Target:
    began = time.monotonic()
    target = make_target("mine", function, supports)
    assert time.monotonic() - began < 3
    return target


def refuted(target: Target, *names: str, examples: int = 8) -> list[str]:
    report = verify_target(target, [PROPERTIES[name] for name in names], Plan(examples=examples))
    return [finding.prop.name for finding in report.findings]


def plain(target: Target) -> list[str]:
    return refuted(target, "output_is_inside_the_bound")


# ---------------------------------------------------------------- axes

AXES: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor], int]] = {
    "(batch, length, heads, dim)": (lambda x: x.transpose(1, 2), lambda y: y.transpose(1, 2), 4),
    "(batch · heads, length, dim)": (lambda x: x, lambda y: y, 3),
    "(length, dim), a call for each head": (lambda x: x, lambda y: y, 2),
    "(length, batch, heads, dim)": (lambda x: x.permute(1, 2, 0, 3), lambda y: y.permute(2, 0, 1, 3), 4),
    "(length, heads, dim), a call for each sequence": (lambda x: x.transpose(0, 1), lambda y: y.transpose(0, 1), 3),
    "(batch · heads, dim, length)": (lambda x: x.mT, lambda y: y.mT, 3),
}


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize("axes", AXES)
@pytest.mark.parametrize("right", [True, False])
def test_every_layout_is_learned_and_what_is_wrong_in_it_is_found(axes: str, right: bool) -> None:
    into, back, rank = AXES[axes]

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        assert q.ndim == rank
        return back(core(into(q), into(k), into(v)))

    def twin(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out = attention(q, k, v)
        return out * 1.01 if len(k.reshape(-1)) > 400 else out

    target = learned(attention if right else twin)
    assert target.learned["axes"] == axes
    assert bool(refuted(target, "output_is_inside_the_bound", examples=8 if right else 150)) != right


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize(
    "axes",
    ["(batch, heads, length, dim), keys (batch, heads, dim, length)", "(batch · heads, length, dim), keys (batch · heads, dim, length)"],
)
@pytest.mark.parametrize("scale_of", [2, 1], ids=["of the queries", "of the number of keys"])
def test_keys_may_be_given_turned(axes: str, scale_of: int) -> None:
    """As GPT-1 and BLOOM give them: the width of a head is their last axis but one, and whoever divides by the last one is wrong."""
    rank = 4 if axes.startswith("(batch, heads") else 3

    def attention(query: Tensor, key: Tensor, value: Tensor, mask: Any = None) -> Tensor:
        assert query.ndim == rank
        scores = query @ key / max(key.shape[-scale_of], 1) ** 0.5
        return (scores if mask is None else scores + mask).softmax(-1) @ value

    target = learned(attention)
    assert target.learned["axes"].startswith(axes)
    assert bool(refuted(target, "output_is_inside_the_bound", examples=8)) is (scale_of == 1)


def softmax_of_matrices(divides: bool) -> Callable[..., Any]:
    def attention(Q: Any, K: Any, V: Any) -> Any:
        s = Q @ K.T / (np.sqrt(K.shape[1]) if divides else 1.0)
        e = np.exp(s - s.max(axis=-1, keepdims=True))
        return e / e.sum(axis=-1, keepdims=True) @ V

    return attention


def test_the_tutorials_matrices() -> None:
    assert not refuted(learned(softmax_of_matrices(True), NUMPY), *CORE)
    wrong = learned(softmax_of_matrices(False), NUMPY)
    assert wrong.learned["axes"] == "(length, dim), a call for each head" and plain(wrong)


# ---------------------------------------------------------------- names

SAYS: dict[str, Callable[[Tensor], Tensor]] = {
    "True = seen": lambda m: m,
    "True = hidden": lambda m: ~m,
    "1 = seen": lambda m: m.to(torch.uint8) == 1,
    "1 = hidden": lambda m: m == 0,
}


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize("name", ["mask", "attention_mask", "bias", "attn_bias"])
@pytest.mark.parametrize("says", [*SAYS, "added"])
def test_a_mask_is_known_by_what_it_does(name: str, says: str) -> None:
    def work(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        if mask is None:
            return core(q, k, v)
        if says == "added":
            assert mask.dtype.is_floating_point
            return core(q, k, v, mask)
        assert (mask.dtype == torch.bool) == says.startswith("True")
        return core(q, k, v, SAYS[says](mask))

    space: dict[str, Any] = {"work": work}
    exec(f"def attention(q, k, v, {name}=None): return work(q, k, v, {name})", space)
    target = learned(space["attention"])
    if "bias" in name and says != "added":
        assert "attn_mask" not in target.parameters or "nearest" in target.learned[name]
        return
    assert target.learned[name] == f"attn_mask, {says}"
    assert target.learned["rows without keys"] == "nan"
    assert not plain(target)


@pytest.mark.parametrize("corner", ["top-left", "bottom-right"])
def test_required_parameters_are_given(corner: str) -> None:
    def attention(q: Tensor, k: Tensor, v: Tensor, mask: Any, causal: bool, sm_scale: float, dropout: float) -> Tensor:
        assert dropout == 0 and isinstance(causal, bool)
        return core(q, k, v, mask, causal, sm_scale, corner)

    target = learned(attention)
    assert target.learned["causal"] == f"is_causal, {corner}" and target.supports.causal == corner
    assert target.learned["sm_scale"] == "scale, required: 1/sqrt(dim) is passed"
    assert set(target.parameters) == {"attn_mask", "is_causal", "scale"}
    assert not refuted(target, "output_is_inside_the_bound", "future_tokens_are_ignored")


def test_what_is_known_of_pytorchs_names_is_not_learned_away() -> None:
    def bottom_right(q: Tensor, k: Tensor, v: Tensor, is_causal: bool = False) -> Tensor:
        return core(q, k, v, None, is_causal, None, "bottom-right")

    def inverted(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        return core(q, k, v, None if attn_mask is None else ~attn_mask if attn_mask.dtype == torch.bool else attn_mask)

    def inverted_rows_first(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        return inverted(*(x.transpose(1, 2) for x in (q, k, v)), attn_mask).transpose(1, 2)

    for function in (bottom_right, inverted, inverted_rows_first):
        target = learned(function)
        assert target.supports.causal == "top-left" and refuted(target, "output_is_inside_the_bound", examples=30), function.__name__


def annotated(mistake: str) -> Callable[..., Any]:
    def attention(query: Tensor, key: Tensor, value: Tensor, mask: Any = None, dropout: Any = None) -> tuple[Tensor, Tensor]:
        scores = torch.matmul(query, key.transpose(-2, -1)) / query.size(-1) ** 0.5
        if mask is not None:
            hidden = scores.masked_fill(mask == 0, -1e9)
            scores = scores if mistake == "not kept" else scores * mask if mistake == "multiplied" else hidden
        p_attn = scores.softmax(dim=-1)
        return torch.matmul(p_attn, value), p_attn

    return attention


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize("mistake", ["", "not kept", "multiplied"])
def test_the_annotated_transformer(mistake: str) -> None:
    target = learned(annotated(mistake))
    assert "attn_mask" in target.parameters and "dropout" in target.untried
    assert bool(refuted(target, *CORE)) == bool(mistake)


# ---------------------------------------------------------------- what comes back


@dataclass
class Output:
    context: Any
    weights: Any


RETURNS: dict[str, Callable[[Any], Any]] = {
    "a tuple": lambda y: (y, None),
    "a list": lambda y: [y],
    "a dict": lambda y: {"weights": None, "output": y},
    "a dataclass": lambda y: Output(y, None),
    "a namespace": lambda y: SimpleNamespace(hidden_states=y),
}


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize("kind", RETURNS)
def test_what_comes_back(kind: str) -> None:
    def attention(q: Tensor, k: Tensor, v: Tensor) -> Any:
        return RETURNS[kind](core(q, k, v))

    target = learned(attention)
    assert bool(target.learned) == (kind not in ("a tuple", "a list")) and not plain(target)


@pytest.mark.nightly
def test_a_random_answer_is_refused_in_one_sentence() -> None:
    def attention(q: Any, k: Any, v: Any) -> Any:
        assert q.ndim == 2
        return np.random.default_rng().normal(size=(q.shape[0], v.shape[1]))

    with pytest.raises(CannotRun, match="answers the same call differently each time") as caught:
        make_target("mine", attention, NUMPY)
    assert "\n" not in str(caught.value)


def test_an_attention_that_answers_at_random_is_a_finding() -> None:
    """As one that drops weights whatever it is told, and whose mask is required; what is no attention at all is refused, above."""

    def attention(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor) -> Tensor:
        weights = (query @ key.mT / max(query.shape[-1], 1) ** 0.5 + attn_mask).softmax(-1)
        return torch.nn.functional.dropout(weights, 0.5) @ value

    target = make_target("mine", attention)
    target = target.kind.handshake(target, "cpu")
    assert "other numbers each time" in target.wrong["answers"]


def test_what_answers_all_calls_alike_is_refused() -> None:
    with pytest.raises(CannotRun, match="it answers different calls alike"):
        make_target("mine", lambda q, k, v: np.zeros((q.shape[0] + 0 * q.shape[1], v.shape[1])) if q.ndim == 2 else None, NUMPY)


def test_what_is_declared_stays_declared() -> None:
    def attention(q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Tensor:
        return core(q, k, v, None, causal, None, "bottom-right")

    assert learned(attention).supports.causal == "bottom-right"
    declared = learned(attention, {"causal": "top-left"})
    assert declared.supports.causal == "top-left" and plain(declared)


def test_what_was_learned_is_told() -> None:
    report = Report(learned(softmax_of_matrices(True), NUMPY), "cpu")
    assert "  speaks    axes: (length, dim), a call for each head" in verdict_text(report)
    assert report_json(report)["speaks"]["axes"] == "(length, dim), a call for each head"
