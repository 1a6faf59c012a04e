"""What is said otherwise than as a tensor under a known name: by a second mask, a word, one number, a flag, or not at all.

Each is found out, told, and checked as what it is; the same with a mistake is refuted.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import pytest
from nightly import one_in

torch = pytest.importorskip("torch")

from properties.catalogue import PROPERTIES
from properties.engine.core.pace import Pace
from properties.engine.core.target import CannotRun, Target
from properties.engine.search.probe import make_target
from properties.engine.search.run import Report, verify_target
from properties.engine.search.search import Plan

CORE = ("output_is_inside_the_bound", "masked_keys_are_deleted", "window_edges_are_exact", "dropout_keeps_its_share")


def spoken(function: Callable[..., Any], **supports: Any) -> Target:
    target = make_target("mine", function, {"dtypes": ["float64"], **supports})
    return target.kind.handshake(target, "cpu")


def searched(target: Target, *names: str, cases: int = 20) -> Report:
    return verify_target(target, [PROPERTIES[name] for name in names or CORE], Plan(examples=cases, strict=False))


def refuted(target: Target, *names: str, cases: int = 20) -> set[str]:
    return {finding.prop.name for finding in searched(target, *names, cases=cases).findings}


def weights(scores: Any, seen: Any = None) -> Any:
    return torch.softmax(scores if seen is None else scores.masked_fill(~seen, -math.inf), -1)


def band(q: Any, k: Any, left: int, right: int) -> Any:
    distance = torch.arange(k.shape[2])[None, :] - torch.arange(q.shape[2])[:, None]
    return (distance >= -left) & (distance <= right)


# ---------------------------------------------------------------- a second mask


def two_masks(mistake: str = "", order: str = "hidden") -> Callable[..., Any]:
    """torch.nn.MultiheadAttention's: attn_mask (queries, keys) and key_padding_mask (batch, keys)."""

    def attention(q: Any, k: Any, v: Any, attn_mask: Any = None, key_padding_mask: Any = None) -> Any:
        s = q @ k.mT / q.shape[-1] ** 0.5
        if attn_mask is not None:
            s = s.masked_fill(attn_mask if order == "hidden" else ~attn_mask, -math.inf)
        if key_padding_mask is not None and not (mistake == "lost" and attn_mask is not None):
            hidden = key_padding_mask if order == "hidden" else ~key_padding_mask
            hidden = hidden.flip(0) if mistake == "of another sequence" else hidden
            s = s.masked_fill(hidden[:, None, None], -math.inf)
        return weights(s) @ v

    return attention


@pytest.mark.parametrize("order", ["hidden", "seen"])
def test_a_padding_mask_beside_a_mask(order: str) -> None:
    target = spoken(two_masks(order=order))
    assert target.learned["key_padding_mask"] == f"a second mask, True = {order}, of axes (b, s)"
    assert "key_padding_mask" not in target.untried and set(target.wrong) <= {"bool mask"}
    report = searched(target, "output_is_inside_the_bound", "masked_keys_are_deleted", cases=40)
    assert not report.findings and report.cases == 80


@pytest.mark.parametrize("mistake", ["lost", "of another sequence"])
def test_a_padding_mask_that_is_not_heeded(mistake: str) -> None:
    wrong = spoken(two_masks(mistake)).wrong
    assert list(wrong) == ["key_padding_mask"] and ("beside" in wrong["key_padding_mask"]) is (mistake == "lost")


def test_where_both_are_given_each_says_half() -> None:
    """A mistake only where both hide something: learned as right with one of eight keys, and found by the search."""
    given = set()

    def attention(q: Any, k: Any, v: Any, position_bias: Any = None, mask: Any = None) -> Any:
        given.add((position_bias is not None, mask is not None))
        s = q @ k.mT / q.shape[-1] ** 0.5
        s = s if position_bias is None else s + position_bias
        if mask is not None and not (position_bias is not None and k.shape[2] == 6):
            s = s + mask
        return weights(s) @ v

    target = spoken(attention)
    assert target.learned["mask"] == "a second mask, added" and not target.wrong
    given.clear()
    assert refuted(target, "output_is_inside_the_bound", "masked_keys_are_deleted", cases=150)
    assert given >= {(True, True), (True, False)}


def test_a_bias_that_is_the_first_heads_for_all() -> None:
    def attention(q: Any, k: Any, v: Any, bias: Any = None, *, first: bool = False) -> Any:
        s = q @ k.mT / q.shape[-1] ** 0.5
        return weights(s if bias is None else s + (bias[:, :1] if first else bias)) @ v

    right, wrong = spoken(attention), spoken(lambda q, k, v, bias=None: attention(q, k, v, bias, first=True))
    assert not right.wrong and "B" in "".join(right.supports.mask_axes)
    assert "that of the first" in wrong.wrong["bias"]


# ---------------------------------------------------------------- a word, a number


@pytest.mark.nightly
@pytest.mark.parametrize("corner", ["bottom-right", "top-left"])
def test_a_mask_that_is_a_word(corner: str) -> None:
    """MLX documents the bottom right."""

    def attention(q: Any, k: Any, v: Any, *, scale: float, mask: Any = None) -> Any:
        if isinstance(mask, str):
            assert mask == "causal"
            mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool)
            mask = mask.tril(k.shape[2] - q.shape[2] if corner == "bottom-right" else 0)
        s = q @ k.mT * scale
        return weights(s, mask) @ v if mask is None or mask.dtype == torch.bool else weights(s + mask) @ v

    target = spoken(attention)
    assert target.learned['mask="causal"'] == f"is_causal, {corner}" and target.supports.causal == corner
    assert not target.supports.mask_and_causal and list(target.wrong) == ['mask="causal"'] * (corner == "top-left")
    assert not refuted(target, "output_is_inside_the_bound", "causal_frontier_is_exact")


def window(own: int, causal_alone: bool = False, right: int = 0) -> Callable[..., Any]:
    def attention(q: Any, k: Any, v: Any, is_causal: bool = False, sliding_window: int | None = None) -> Any:
        assert sliding_window is None or is_causal or not causal_alone, "causal alone"
        seen = band(q, k, q.shape[2] + k.shape[2], 0 if is_causal else q.shape[2] + k.shape[2])
        if sliding_window is not None:
            seen = seen & band(q, k, sliding_window - own, q.shape[2] + k.shape[2])
            seen = seen | band(q, k, 0, right) if right else seen
        return torch.nan_to_num(weights(q @ k.mT / q.shape[-1] ** 0.5, seen)) @ v

    return attention


@pytest.mark.nightly(but=2)
@pytest.mark.parametrize(("own", "words"), [(1, "the keys that are seen, its own included"), (0, "the keys before its own")])
def test_a_window_that_is_one_number(own: int, words: str) -> None:
    target = spoken(window(own))
    assert target.learned["sliding_window"] == f"window_size, one number: {words}" and not target.wrong
    report = searched(target, "window_edges_are_exact", "output_is_inside_the_bound", cases=40)
    left = report.outcomes["window_edges_are_exact"].notes.not_taken
    assert not report.findings and set(left) == {"windows that one number does not say"}
    assert report.outcomes["window_edges_are_exact"].cases + sum(left.values()) == 40
    alone = spoken(window(own, causal_alone=True))
    assert alone.learned["sliding_window"].endswith("; with causality alone") and not refuted(alone)
    assert refuted(spoken(window(own, causal_alone=True, right=1)), cases=40)


# ---------------------------------------------------------------- always a window


def local(right: int, mistake: int = 0, square: bool = False) -> Callable[..., Any]:
    def attention(q: Any, k: Any, v: Any) -> Any:
        assert not square or q.shape[2] == k.shape[2], "as many queries as keys"
        return torch.nan_to_num(weights(q @ k.mT / q.shape[-1] ** 0.5, band(q, k, 7 + mistake * (k.shape[2] > 50), right))) @ v

    return attention


@pytest.mark.nightly
@pytest.mark.parametrize(("right", "square"), one_in(3, [(7, True), (0, True), (0, False)]))
def test_a_window_that_is_always_there(right: int, square: bool) -> None:
    """Every property is asked but those that move tokens; a window that grows for long sequences is found."""
    target = spoken(local(right, square=square), zero_sizes=False)
    assert target.supports.window == (7, right) and target.learned["window"] == f"always: 7 keys before a query's own, {right} behind it"
    report = verify_target(target, [p for p in PROPERTIES.values() if p.contract == "attention"], Plan(examples=8, strict=False))
    assert not report.findings and report.verdict == "nothing found"
    moving = [o.prop.name for o in report.outcomes.values() if "moves tokens" in o.not_exercised]
    assert "permuted_keys_change_nothing" in moving and "output_is_inside_the_bound" not in moving
    assert refuted(spoken(local(right, 1, square)), "output_is_inside_the_bound", cases=60)


def test_what_is_no_window_that_anybody_means() -> None:
    """Causality is none; nor is what sees the next token, or has a hole: these are refuted."""

    def seeing(seen: Callable[[Any, Any], Any]) -> Target:
        return spoken(lambda q, k, v: weights(q @ k.mT / q.shape[-1] ** 0.5, seen(q, k)) @ v)

    causal = seeing(lambda q, k: band(q, k, 10**6, 0))
    assert causal.supports.window is None and "causality" in causal.learned
    for wrong in (lambda q, k: band(q, k, 10**6, 1), lambda q, k: band(q, k, 8, 1), lambda q, k: band(q, k, 8, 0) & ~band(q, k, 4, -4)):
        target = seeing(wrong)
        assert target.supports.window is None and refuted(target, "output_is_inside_the_bound")


# ---------------------------------------------------------------- dropout


@pytest.mark.parametrize("flag", ["training", "deterministic"])
def test_dropout_where_a_flag_says_so(flag: str) -> None:
    def attention(always: bool) -> Callable[..., Any]:
        def training(q: Any, k: Any, v: Any, dropout: float = 0.0, training: bool = False) -> Any:
            return torch.nn.functional.dropout(weights(q @ k.mT / q.shape[-1] ** 0.5), dropout, training or always) @ v

        def deterministic(q: Any, k: Any, v: Any, dropout_rate: float = 0.0, dropout_p: float = 0.0, deterministic: bool = True) -> Any:
            return training(q, k, v, dropout_p, not deterministic)

        return training if flag == "training" else deterministic

    target = spoken(attention(always=False))
    name = "dropout" if flag == "training" else "dropout_p"
    assert target.learned[name] == f"dropout_p, where {flag} is {flag == 'training'}" and not target.wrong
    report = searched(target, "dropout_keeps_its_share", "output_is_inside_the_bound", cases=20)
    assert not report.findings and report.outcomes["dropout_keeps_its_share"].cases == 20
    other = spoken(attention(always=True))
    if flag == "deterministic":  # it need not be about dropout: flash-attention's is about the backward pass
        assert not other.wrong and "dropout_p" in other.parameters
    else:
        assert other.wrong[name].startswith("weights are dropped where training is False")


def test_what_looks_like_dropout_and_drops_nothing_is_told() -> None:
    """As Hugging Face's, which counts where the module trains."""

    def idle(q: Any, k: Any, v: Any, dropout: float = 0.0) -> Any:
        return weights(q @ k.mT / q.shape[-1] ** 0.5) @ v

    assert spoken(idle).untried["dropout"] == "it looks like dropout_p, but a probability of 0.5 drops nothing"
    assert "dropout_p" not in spoken(idle).parameters


def test_dropout_of_the_own_name_that_drops_nothing_is_one_finding() -> None:
    def idle(q: Any, k: Any, v: Any, dropout_p: float = 0.0) -> Any:
        return weights(q @ k.mT / q.shape[-1] ** 0.5) @ v

    target = spoken(idle)
    assert target.wrong == {"dropout_p": "a probability of 0.5 drops nothing"} and "dropout_p" not in target.parameters
    assert "dropout_p" in spoken(idle, parameters=["dropout_p"]).parameters  # a claim, held to by four properties


def test_dropout_that_is_a_function_is_given_one() -> None:
    """As in The Annotated Transformer, whose ``dropout`` is a module."""

    def called(q: Any, k: Any, v: Any, dropout: Any = None, times: int = 1) -> Any:
        w = weights(q @ k.mT / q.shape[-1] ** 0.5)
        for _ in range(0 if dropout is None else times):
            w = dropout(w)
        return w @ v

    def twice(q: Any, k: Any, v: Any, dropout: Any = None) -> Any:
        return called(q, k, v, dropout, 2)

    target = spoken(called)
    assert target.learned["dropout"] == "dropout_p: a function that drops, as nn.Dropout" and "dropout_p" in target.parameters
    dropped = ("dropout_drops_or_rescales", "dropout_keeps_its_share", "dropout_is_not_shared")
    assert not refuted(target, *dropped) and "dropout_keeps_its_share" in refuted(spoken(twice), *dropped)


# ---------------------------------------------------------------- what is refused


def test_values_of_another_width_excuse_no_mask_beside_causality() -> None:
    def attention(q: Any, k: Any, v: Any, attn_mask: Any = None, is_causal: bool = False) -> Any:
        assert v.shape[-1] == k.shape[-1], "as wide as keys"
        seen = band(q, k, 10**6, 0) if is_causal else torch.ones(q.shape[2], k.shape[2], dtype=torch.bool)
        added = 0.0 if attn_mask is None or attn_mask.dtype == torch.bool else attn_mask
        seen = seen if attn_mask is None or attn_mask.dtype != torch.bool else seen & attn_mask
        return torch.nan_to_num(weights(q @ k.mT / q.shape[-1] ** 0.5 + added, seen)) @ v

    target = spoken(attention)
    assert not target.supports.value_dim and target.supports.mask_and_causal
    assert list(target.refuses) == ["values of another width than keys"]


def test_what_compiles_is_asked_for_longer() -> None:
    slow = Pace(calls=4, seconds=10.0)
    assert slow.over(False) and not slow.over(True) and Pace(calls=4, seconds=21.0).over(True)


# ---------------------------------------------------------------- a log-sum-exp of other axes, to another base


def with_weights(turned: bool, own: bool = True) -> Callable[..., Any]:
    """Weights (queries, heads, keys), or (heads, queries, keys), always beside the output (queries, heads, dim)."""

    def attention(q: Any, k: Any, v: Any) -> Any:
        p = torch.softmax(torch.einsum("lhd,shd->hls", q, k) / q.shape[-1] ** 0.5, -1)
        said = p if own else p.roll(1, 0)
        return torch.einsum("hls,shd->lhd", p, v), said.transpose(0, 1) if turned else said

    return attention


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("own", [True, False])
def test_weights_of_any_axes(own: bool, turned: bool) -> None:
    target = spoken(with_weights(turned, own))
    assert target.learned["beside the output"] == "the weights"
    assert refuted(target, "returned_weights_are_those_applied") == (set() if own else {"returned_weights_are_those_applied"})


def mean_weights(name: str, over: Callable[[Any], Any]) -> Callable[..., Any]:
    """The weights of all heads in one beside the output, where a parameter asks for it, or always."""

    def attention(q: Any, k: Any, v: Any, give: bool = True) -> Any:
        p = torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, -1)
        return (p @ v, over(p)) if give else p @ v

    named = {
        "": lambda q, k, v: attention(q, k, v),
        "need_weights": lambda q, k, v, need_weights=False: attention(q, k, v, need_weights),
        "output_attentions": lambda q, k, v, output_attentions=False: attention(q, k, v, output_attentions),
    }
    return named[name]


@pytest.mark.parametrize("name", ["", "need_weights", "output_attentions"])
@pytest.mark.parametrize(
    ("over", "right"),
    [
        (lambda p: p.mean(1), True),
        (lambda p: p.sum(1) / max(p.shape[1], 1), True),
        (lambda p: p[:, 0], False),
        (lambda p: p.sum(1) / max(p.shape[1] - 1, 1), False),
    ],
    ids=["mean", "divided", "first", "one less"],
)
def test_weights_may_be_their_mean_over_heads(name: str, over: Callable[[Any], Any], right: bool) -> None:
    target = spoken(mean_weights(name, over), dtypes=["float64", "bfloat16"], zero_sizes=False)
    assert target.supports.returned_weights == "mean" and "mean over heads" in target.differs["weights"]
    assert refuted(target, "returned_weights_are_those_applied") == (set() if right else {"returned_weights_are_those_applied"})


def test_weights_that_are_declared_as_their_mean_are_held_to_it() -> None:
    claim: dict[str, Any] = {"returned_weights": "mean", "zero_sizes": False}
    assert refuted(spoken(mean_weights("need_weights", lambda p: p), **claim), "returned_weights_are_those_applied")
    assert not refuted(spoken(mean_weights("need_weights", lambda p: p.mean(1)), **claim), "returned_weights_are_those_applied")


def with_lse(factor: float, name: str, turned: bool) -> Callable[..., Any]:
    """As FlashInfer's, (length, heads), to the base 2; or as flash-attention's, under another name."""

    def attention(q: Any, k: Any, v: Any, asked: bool) -> Any:
        s = torch.einsum("lhd,shd->hls", q, k) / q.shape[-1] ** 0.5
        out = torch.einsum("hls,shd->lhd", torch.softmax(s, -1), v)
        lse = s.logsumexp(-1) * factor
        return (out, lse.mT if turned else lse) if asked else out

    named = {
        "return_lse": lambda q, k, v, return_lse=False: attention(q, k, v, return_lse),
        "return_softmax_lse": lambda q, k, v, return_softmax_lse=False: attention(q, k, v, return_softmax_lse),
    }
    return named[name]


@pytest.mark.parametrize("name", one_in(2, ["return_lse", "return_softmax_lse"]))
@pytest.mark.parametrize("turned", [False, True], ids=["heads first", "length first"])
@pytest.mark.parametrize(("factor", "right"), [(1.0, True), (1 / math.log(2), True), (math.log(2), False), (2.0, False)])
def test_a_log_sum_exp_of_any_axes_and_base(factor: float, right: bool, turned: bool, name: str) -> None:
    target = spoken(with_lse(factor, name, turned))
    assert "return_lse" in target.parameters
    assert ("log-sum-exp" in target.differs) is (right and factor != 1)
    assert refuted(target, "lse_is_the_log_of_the_sum") == (set() if right else {"lse_is_the_log_of_the_sum"})


def windowed(more: int = 0) -> Any:
    """What is always causal, within a window that must be given; wrong by ``more`` keys beyond twelve tokens."""

    def attention(q: Any, k: Any, v: Any, window: int) -> Any:
        back = torch.arange(q.shape[-2])[:, None] - torch.arange(q.shape[-2])
        seen = (back >= 0) & (back < window + more * (len(back) > 12))
        return (q @ k.mT * max(q.shape[-1], 1) ** -0.5).masked_fill(~seen, -torch.inf).softmax(-1) @ v

    return attention


def test_a_window_that_must_be_given_is_one_that_hides_nothing() -> None:
    target = spoken(windowed(), zero_sizes=False)
    assert target.learned["window"].startswith("window_size, one number: the keys that are seen, its own included")
    assert "window_size" in target.parameters and not refuted(target, "output_is_inside_the_bound", "window_edges_are_exact")
    assert refuted(spoken(windowed(1), zero_sizes=False), "output_is_inside_the_bound", "window_edges_are_exact", cases=150)


def capped(s: Any, cap: float | None, times: float = 1.0) -> Any:
    return torch.tanh(s / cap) * cap * times if cap else s


def causal(s: Any) -> Any:
    return s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool).triu(1 + s.shape[-1] - s.shape[-2]), -torch.inf)


def scores(q: Any, k: Any) -> Any:
    return q @ k.mT * max(q.shape[-1], 1) ** -0.5


def gemma(q: Any, k: Any, v: Any, *, softcap: float | None = 50.0, times: float = 1.0) -> Any:
    return causal(capped(scores(q, k), softcap, times)).softmax(-1) @ v


def gemma_wrong(q: Any, k: Any, v: Any, *, softcap: float | None = 50.0) -> Any:
    return gemma(q, k, v, softcap=softcap, times=0.9)


def another_name(q: Any, k: Any, v: Any, logits_soft_cap: float = 30.0) -> Any:
    return capped(scores(q, k), logits_soft_cap if logits_soft_cap > 0 else None).softmax(-1) @ v


def always_capped(q: Any, k: Any, v: Any, softcap: float = 50.0) -> Any:
    return (torch.tanh(scores(q, k) / softcap) * softcap).softmax(-1) @ v


CAPS = ("output_is_inside_the_bound", "softcap_bounds_the_weights")


@pytest.mark.parametrize(
    ("function", "name", "none"), [(gemma, "softcap", "None"), (another_name, "logits_soft_cap", "0.0"), (gemma_wrong, "softcap", "None")]
)
def test_what_has_a_cap_by_default_is_called_without_one(function: Any, name: str, none: str) -> None:
    target = spoken(function, zero_sizes=False)
    assert "softcap" in target.parameters and target.learned[name] == f"softcap; {none} is passed for none"
    assert bool(refuted(target, *CAPS)) == (function is gemma_wrong)


def test_what_is_capped_whatever_is_said_is_given_a_cap_that_changes_nothing() -> None:
    target = spoken(always_capped, zero_sizes=False)
    assert target.learned["softcap"].startswith("2**100: as good as no cap") and "softcap" in target.parameters
    assert not refuted(target, *CAPS)


def test_what_is_dropped_where_nothing_is_said_is_not_dropped() -> None:
    """A probability, or a flag, whose default drops weights: the plain call says that none is."""

    def attention(q: Any, k: Any, v: Any, dropout: float = 0.1, training: bool = True) -> Any:
        return torch.nn.functional.dropout(weights(q @ k.mT / q.shape[-1] ** 0.5), dropout, training=training) @ v

    def named(q: Any, k: Any, v: Any, dropout_p: float = 0.1) -> Any:
        return attention(q, k, v, dropout_p)

    def half(q: Any, k: Any, v: Any, dropout_p: float = 0.1) -> Any:
        return attention(q, k, v, dropout_p) * (1 - dropout_p / 2)

    for function in (attention, named):
        target = spoken(function)
        assert "dropout_p" in target.parameters and not target.wrong, target.wrong
        assert not refuted(target, "dropout_drops_or_rescales", "output_is_inside_the_bound", "same_call_same_bits")
    assert refuted(spoken(half), "dropout_drops_or_rescales", "output_is_inside_the_bound") == {"dropout_drops_or_rescales"}


def test_a_flag_is_set_only_where_weights_are_dropped() -> None:
    """flash-attention's ``deterministic`` is about the backward pass; where nothing else says that weights are dropped, ``training`` may."""

    def flash(q: Any, k: Any, v: Any, dropout_p: float = 0.0, causal: bool = False, deterministic: bool = False) -> Any:
        return torch.nn.functional.dropout(weights(q @ k.mT / q.shape[-1] ** 0.5), dropout_p) @ v

    def fixed(q: Any, k: Any, v: Any, training: bool = True) -> Any:
        return torch.nn.functional.dropout(weights(q @ k.mT / q.shape[-1] ** 0.5), 0.2, training=training) @ v

    assert "deterministic" not in spoken(flash).learned
    target = spoken(fixed)
    assert target.learned["training"].startswith("False is passed") and not target.wrong and not refuted(target, "same_call_same_bits")


@pytest.mark.parametrize("size", [1.0, 1e-9])
def test_a_target_that_answers_at_random_is_one_sentence(size: float) -> None:
    """Where two answers to a call are nothing alike nothing else is asked; where they are nearly the same, all is."""

    def attention(q: Any, k: Any, v: Any) -> Any:
        return weights(q @ k.mT / q.shape[-1] ** 0.5) @ v + size * torch.rand_like(q[..., :1])

    target = spoken(attention)
    if size == 1:
        report = searched(target, "same_call_same_bits", "output_is_inside_the_bound")
        assert "other numbers each time" in target.wrong["answers"] and not report.findings
        assert not any(outcome.cases for outcome in report.outcomes.values())
    else:
        assert not target.wrong and "same_call_same_bits" in refuted(target, "same_call_same_bits")


def padding_or_added(right: bool) -> Callable[..., Any]:
    """ComfyUI's: a bool mask is one of padding, (batch, keys), and what is added is (queries, keys)."""

    def attention(q: Any, k: Any, v: Any, mask: Any = None) -> Any:
        b, h, n, _ = q.shape
        s = (q @ k.mT / q.shape[-1] ** 0.5).flatten(0, 1)
        if mask is not None and mask.dtype == torch.bool:
            rows = mask[:, None].expand(b, h, -1) if right else mask[None].expand(h, b, -1)
            s = s.masked_fill(~rows.reshape(b * h, 1, -1), -math.inf)
        elif mask is not None:
            s = s + mask
        return (torch.softmax(s, -1) @ v.flatten(0, 1)).view(b, h, n, -1)

    return attention


def test_a_mask_of_padding_and_one_that_is_added_have_axes_of_their_own() -> None:
    target = spoken(padding_or_added(True), zero_sizes=False)
    assert target.learned["mask"] == "attn_mask, True = seen, of axes (b, s)" and "(l, s)" in target.untried["mask, added"]
    assert not refuted(target)
    other = spoken(padding_or_added(False), zero_sizes=False)
    assert "added as 1" in other.untried["mask, bool"]  # of what is right where it is added, the other kind is no claim, and is told


# ---------------------------------------------------------------- two flags of causality


def two_corners(bottom: bool = True) -> Callable[..., Any]:
    """The flags of cuDNN's frontend, one for each corner."""

    def attention(q: Any, k: Any, v: Any, use_causal_mask: bool = False, use_causal_mask_bottom_right: bool = False) -> Any:
        more = k.shape[2] - q.shape[2] if use_causal_mask_bottom_right and bottom else 0
        seen = band(q, k, 10**6, more if use_causal_mask or use_causal_mask_bottom_right else 10**6)
        return torch.nan_to_num(weights(q @ k.mT / q.shape[-1] ** 0.5, seen)) @ v

    return attention


def one_corner(bottom: bool = True) -> Callable[..., Any]:
    def attention(q: Any, k: Any, v: Any, use_causal_mask_bottom_right: bool = False) -> Any:
        return two_corners(bottom)(q, k, v, use_causal_mask_bottom_right=use_causal_mask_bottom_right)

    return attention


def test_a_flag_for_each_corner() -> None:
    """The first is asked in the search, the second told; the name of a corner is held to."""
    target = spoken(two_corners())
    assert target.learned["use_causal_mask"] == "is_causal, top-left" and not target.wrong
    assert target.learned["use_causal_mask_bottom_right"].startswith("is_causal, bottom-right; in the search")
    assert (
        spoken(two_corners(bottom=False)).wrong["use_causal_mask_bottom_right"].startswith("by its name it is bottom-right; it is top-left")
    )
    assert spoken(one_corner()).supports.causal == "bottom-right" and not spoken(one_corner()).wrong
    assert "its name documents bottom-right" in spoken(one_corner(bottom=False)).wrong["causal corner"]


# ---------------------------------------------------------------- what comes back under a name


@dataclasses.dataclass
class Hidden:
    hidden: Any
    attn_weights: Any = None


def test_the_only_array_beside_weights_is_the_output() -> None:
    def fields(q: Any, k: Any, v: Any) -> Any:
        made = weights(q @ k.mT / max(q.shape[-1], 1) ** 0.5)
        return Hidden(made @ v, made)

    def two(q: Any, k: Any, v: Any) -> Any:
        return {"values": weights(q @ k.mT) @ v, "more": q}

    target = spoken(fields)
    assert target.learned["result"] == "Hidden with 'hidden'" and target.learned["beside the output"] == "the weights"
    assert not refuted(target)
    with pytest.raises(CannotRun, match="a dictionary of values, more, not an array"):
        spoken(two)
