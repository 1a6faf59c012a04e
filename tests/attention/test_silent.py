"""What is right for some calls alone, and raises nothing in the others: one finding, which names them, and the search goes on in those."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from properties.catalogue import PROPERTIES
from properties.engine.core.target import Target
from properties.engine.doors.known import known_of
from properties.engine.search.pairs import make_pair
from properties.engine.search.probe import make_target
from properties.engine.search.run import verify_target
from properties.engine.search.search import Plan


def third_axis(q: Any, k: Any, v: Any) -> Any:
    """As written for (batch, length, dim)."""
    return (q @ k.transpose(-2, -1) / max(q.shape[2], 1) ** 0.5).softmax(-1) @ v


def as_many_keys(q: Any, k: Any, v: Any, attn_mask: Any = None, is_causal: bool = False) -> Any:
    n = q.shape[-2]
    mask = None if attn_mask is None else attn_mask[..., :n]
    return torch.nn.functional.scaled_dot_product_attention(q, k[..., :n, :], v[..., :n, :], attn_mask=mask, is_causal=is_causal)


def of_matrices(Q: Any, K: Any, V: Any, block: int = 2) -> Any:
    n, d = Q.shape
    scores = torch.cat([Q @ K[at : at + block].T for at in range(0, n, block)], 1) / max(d, 1) ** 0.5
    return scores.softmax(-1) @ V[: scores.shape[1]]


def also_scaled_twice(q: Any, k: Any, v: Any) -> Any:
    return as_many_keys(q, k * (1 + (q.shape[-2] > 16)), v)


def spoken(function: Any) -> Target:
    target = make_target("mine", function, {"dtypes": ["float64"]})
    return target.kind.handshake(target, "cpu")


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize(("function", "name"), [(third_axis, "axes"), (as_many_keys, "lengths"), (of_matrices, "lengths")])
def test_it_is_one_finding(function: Any, name: str) -> None:
    target = spoken(function)
    assert list(target.wrong) == [name] and "raises nothing, and is off by" in target.wrong[name]
    names = ("output_is_inside_the_bound", "equal_logits_share_equally", "memory_layout_changes_nothing")
    plan = Plan(examples=12, strict=False, deviations=known_of(target))
    assert not verify_target(target, [PROPERTIES[name] for name in names], plan).findings


def test_a_second_mistake_is_found_beside_it() -> None:
    target = spoken(also_scaled_twice)
    assert "lengths" in target.wrong
    assert verify_target(target, [PROPERTIES["output_is_inside_the_bound"]], Plan(examples=60, strict=False)).findings


def test_what_is_right_for_all_is_not_told_so() -> None:
    target = spoken(torch.nn.functional.scaled_dot_product_attention)
    assert not {"axes", "lengths"} & set(target.wrong)


def hidden_ahead(scores: Any, further: int = 1) -> Any:
    return scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(further), -torch.inf)


def always_causal(q: Any, k: Any, v: Any) -> Any:
    return hidden_ahead(q @ k.mT / max(q.shape[-1], 1) ** 0.5).softmax(-1) @ v


def always_causal__of_other_lengths_twice(q: Any, k: Any, v: Any) -> Any:
    return always_causal(q, k, v) * (1 + (q.shape[-2] != k.shape[-2]))


def in_a_window(q: Any, k: Any, v: Any) -> Any:
    scores = hidden_ahead(q @ k.mT / max(q.shape[-1], 1) ** 0.5)
    return scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).tril(-4), -torch.inf).softmax(-1) @ v


def in_a_window__of_other_lengths_off(q: Any, k: Any, v: Any) -> Any:
    return in_a_window(q, k, v) * (1 + 0.01 * (q.shape[-2] != k.shape[-2]))


@pytest.mark.parametrize("function", [always_causal, in_a_window])
def test_what_is_always_hidden_is_asked_for_other_lengths(function: Any) -> None:
    target = spoken(function)
    assert not target.wrong and "lengths" not in target.learned
    assert not verify_target(target, [PROPERTIES["output_is_inside_the_bound"]], Plan(examples=12, strict=False)).findings


@pytest.mark.parametrize("function", [always_causal__of_other_lengths_twice, in_a_window__of_other_lengths_off])
def test_what_is_always_hidden_is_wrong_for_other_lengths(function: Any) -> None:
    assert list(spoken(function).wrong) == ["lengths"]


def window_with_causality(q: Any, k: Any, v: Any, is_causal: bool = False, window: Any = None, factor: float = 1.0) -> Any:
    scores = q @ k.mT / max(q.shape[-1], 1) ** 0.5
    if is_causal:
        scores = hidden_ahead(scores)
        if window is not None:
            scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).tril(-window), -torch.inf)
    return scores.softmax(-1) @ v * (factor if window is not None and not is_causal else 1.0)


def test_a_window_of_causality_alone_changes_nothing_without_it() -> None:
    def right(q: Any, k: Any, v: Any, is_causal: bool = False, window: Any = None) -> Any:
        return window_with_causality(q, k, v, is_causal, window)

    def twice(q: Any, k: Any, v: Any, is_causal: bool = False, window: Any = None) -> Any:
        return window_with_causality(q, k, v, is_causal, window, 2.0)

    assert not spoken(right).wrong
    assert "without causality a window is neither heeded nor left out" in spoken(twice).wrong["window"]


def test_what_is_ignored_is_named() -> None:
    sdpa = torch.nn.functional.scaled_dot_product_attention

    def mask_lost(q: Any, k: Any, v: Any, attn_mask: Any = None, is_causal: bool = False) -> Any:
        return sdpa(q, k, v, is_causal=is_causal)

    def flag_lost(q: Any, k: Any, v: Any, mask: Any = None, is_causal: bool = False) -> Any:
        return sdpa(q, k, v, attn_mask=mask)

    assert spoken(mask_lost).wrong == {"attn_mask": "it changes nothing; none is given"}
    assert spoken(flag_lost).wrong == {"is_causal": "it changes nothing; none is given"}


@pytest.mark.parametrize("factor", [1.0, 2.0])
def test_bool_masks_that_are_ignored_leave_those_that_are_added(factor: float) -> None:
    """As in the equivalent code that PyTorch's documentation once had (flash-attention-softmax-n 0.3.2): -inf is written into the bool mask."""

    def attention(q: Any, k: Any, v: Any, attn_mask: Any = None, is_causal: bool = False) -> Any:
        scores = q @ k.mT / max(q.shape[-1], 1) ** 0.5
        if is_causal:
            scores = scores.masked_fill(~torch.ones(scores.shape[-2:], dtype=torch.bool).tril(), -torch.inf)
        if attn_mask is not None and attn_mask.dtype != torch.bool:
            scores = scores + factor * attn_mask
        return scores.softmax(-1).nan_to_num() @ v

    target = spoken(attention)
    assert target.wrong["attn_mask"] == "a bool one changes nothing; those that are added are given alone"
    assert "bool" not in target.supports.mask_kinds and "attn_mask" in target.parameters
    found = verify_target(target, [PROPERTIES["output_is_inside_the_bound"]], Plan(examples=40, strict=False)).findings
    assert bool(found) is (factor != 1)


def test_a_mistake_of_the_code_is_no_refusal() -> None:
    def misspelled(q: Any, k: Any, v: Any, is_causal: bool = False) -> Any:
        scores = q @ k.mT / max(q.shape[-1], 1) ** 0.5
        return (scores + torch.trill(scores) if is_causal else scores).softmax(-1) @ v

    def unfitting(q: Any, k: Any, v: Any, is_causal: bool = False) -> Any:
        scores, length = q @ k.mT / max(q.shape[-1], 1) ** 0.5, q.shape[-2]
        hidden = torch.ones(length + 1, length).triu(1).bool()
        return (scores.masked_fill(hidden, -torch.inf) if is_causal else scores).softmax(-1) @ v

    def refused(q: Any, k: Any, v: Any, is_causal: bool = False) -> Any:
        if is_causal:
            raise NotImplementedError("not yet")
        return (q @ k.mT / max(q.shape[-1], 1) ** 0.5).softmax(-1) @ v

    assert "AttributeError: module 'torch' has no attribute 'trill'" in spoken(misspelled).wrong["is_causal"]
    assert "RuntimeError: The size of tensor a (4) must match" in spoken(unfitting).wrong["is_causal"]
    assert not spoken(refused).wrong and spoken(refused).refuses["is_causal"] == "NotImplementedError: not yet"


def test_a_log_sum_exp_in_a_narrower_type() -> None:
    def narrow(q: Any, k: Any, v: Any, factor: float = 1.0) -> Any:
        scores = q @ k.mT / max(q.shape[-1], 1) ** 0.5
        return scores.softmax(-1) @ v, torch.logsumexp(scores.float(), -1) * factor

    def off(q: Any, k: Any, v: Any) -> Any:
        return narrow(q, k, v, 1 + 1e-5)

    asked, plan = [PROPERTIES["lse_is_the_log_of_the_sum"]], Plan(examples=100, strict=False)
    assert not verify_target(spoken(narrow), asked, plan).findings
    assert verify_target(spoken(off), asked, plan).findings


def test_a_pair_that_is_wrong_alike_is_a_pair() -> None:
    """And of what the reference does not take nothing is asked."""

    def by_hand(q: Any, k: Any, v: Any, is_causal: bool = False) -> Any:
        k, v = (x[..., : q.shape[-2], :] for x in (k, v))
        return (q @ k.mT / max(q.shape[-1], 1) ** 0.5).softmax(-1) @ v

    def reference(q: Any, k: Any, v: Any) -> Any:
        return as_many_keys(q, k, v)

    mine, theirs = spoken(by_hand), spoken(reference)
    assert set(mine.wrong) == {"is_causal", "lengths"} and set(theirs.wrong) == {"lengths"}
    assert not make_pair(mine, theirs).wrong
    assert set(make_pair(mine, spoken(torch.nn.functional.scaled_dot_product_attention)).wrong) == {"is_causal", "lengths"}


@pytest.mark.parametrize("tiled", [False, True])
def test_heads_of_keys_that_are_tiled_are_one_finding(tiled: bool) -> None:
    """As ring-attention-pytorch 0.5.20 has it, which repeats as (g h) what all others repeat as (h g)."""

    def attention(q: Any, k: Any, v: Any) -> Any:
        group = q.shape[1] // max(k.shape[1], 1)
        k, v = (x.repeat(1, group, 1, 1) if tiled else x.repeat_interleave(group, 1) for x in (k, v))
        return (q @ k.mT / max(q.shape[-1], 1) ** 0.5).softmax(-1) @ v

    target = spoken(attention)
    assert ("grouped heads" in target.wrong) is tiled and ("enable_gqa" in target.parameters) is not tiled
    assert not tiled or "reads key head h mod (number of key heads)" in target.wrong["grouped heads"]
    names = ("heads_are_independent", "a_single_key_gives_its_value", "output_is_inside_the_bound")
    assert not verify_target(target, [PROPERTIES[name] for name in names], Plan(examples=20, strict=False)).findings


@pytest.mark.parametrize("replaced", [True, False])
def test_a_mask_of_padding_that_causality_replaces_is_named(replaced: bool) -> None:
    def attention(q: Any, k: Any, v: Any, mask: Any = None, causal: bool = False) -> Any:
        scores = q @ k.mT / max(q.shape[-1], 1) ** 0.5
        if causal:
            scores = hidden_ahead(scores)
        if mask is not None and not (causal and replaced):
            scores = scores.masked_fill(~mask[:, None, None, :], -torch.inf)
        return scores.softmax(-1).nan_to_num() @ v

    target = spoken(attention)
    said = {**target.differs, **target.wrong}.get("mask and causal", "")
    assert said.startswith("is_causal replaces a mask") is replaced is not target.supports.mask_and_causal
