"""Axes: every layout is arranged and read as its letters say, and what takes it is found out, asked any lengths, and refuted where it is wrong."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from nightly import one_in

torch = pytest.importorskip("torch")

from impls import numpy_matmul
from properties.attention.axes import LAYOUTS, PACKED, answer_form, calls, sizes_of, unpacked, whole
from properties.catalogue import PROPERTIES
from properties.engine.core.target import Target
from properties.engine.frameworks import framework
from properties.engine.search.probe import make_target
from properties.engine.search.run import Report, verify_target
from properties.engine.search.search import Plan

TORCH = framework("torch")
CORE = ("output_is_inside_the_bound", "causal_frontier_is_exact", "returned_weights_are_those_applied", "bad_shapes_raise")


def spoken(function: Callable[..., Any], **supports: Any) -> Target:
    target = make_target("mine", function, supports)
    return target.kind.handshake(target, "cpu")


def refuted(target: Target, *names: str, cases: int = 12) -> set[str]:
    report: Report = verify_target(target, [PROPERTIES[name] for name in names or CORE], Plan(examples=cases, strict=False))
    return {finding.prop.name for finding in report.findings}


# ---------------------------------------------------------------- letters


@pytest.mark.parametrize("layout", [*LAYOUTS, *PACKED])
def test_what_is_given_comes_back(layout: str) -> None:
    """A call that returns its queries: they come back where they were, whatever the axes."""
    axes = {**LAYOUTS, **PACKED}[layout]
    heads = (3, 3) if (axes.folded and not axes.each) or axes.packed else (6, 3)
    q, k = (torch.randn(2, n, length, 4) for n, length in zip(heads, (5, 5) if axes.packed else (5, 7), strict=True))
    answers = []
    for _, given in calls(axes, q, k, k, TORCH):
        first = unpacked(given[0], axes, q, TORCH)[0] if axes.packed else torch.stack(given[0]) if axes.listed else given[0]
        answers.append(first)
    assert torch.equal(whole(answers, LAYOUTS["bhld"] if axes.packed else axes, "", sizes_of(q, k), TORCH), q)


@pytest.mark.parametrize(("layout", "answer"), [(name, one) for name, axes in LAYOUTS.items() for one in axes.answers if one])
def test_an_answer_of_other_axes_is_read(layout: str, answer: str) -> None:
    axes, sizes = LAYOUTS[layout], {"b": 2, "k": 3, "g": 1, "l": 5, "d": 4}
    number = math.prod(sizes[letter] for letter in axes.each)
    form = [math.prod(sizes[letter] for letter in one) for one in answer_form(axes, answer)]
    read = whole([torch.randn(form) for _ in range(number)], axes, answer, sizes, TORCH)
    assert read.shape == (2, 3, 5, 4)
    with pytest.raises(TypeError, match="returned shape"):
        whole([torch.randn(*form, 2) for _ in range(number)], axes, answer, sizes, TORCH)


def test_shapes_that_fit_no_attention_are_refused_where_they_would_not_show() -> None:
    q, k = torch.randn(2, 3, 5, 4), torch.randn(3, 3, 7, 4)
    with pytest.raises(ValueError, match="fit no attention"):
        next(calls(LAYOUTS["ld"], q, k, k, TORCH))


# ---------------------------------------------------------------- what is found out


def plain(q: Any, k: Any, v: Any, seen: Any = None, root: bool = True) -> Any:
    s = q @ k.mT / (q.shape[-1] ** 0.5 if root else 1.0)
    return torch.softmax(s if seen is None else s.masked_fill(~seen, -math.inf), -1) @ v


def packed(qkv: Any, causal: bool = False, *, corner: int = 0) -> Any:
    q, k, v = qkv.permute(2, 0, 3, 1, 4)
    seen = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).tril(corner) if causal else None
    return plain(q, k, v, seen).transpose(1, 2)


def width(q: Any, k: Any, v: Any, num_heads: int) -> Any:
    q, k, v = (x.unflatten(2, (num_heads, -1)).transpose(1, 2) for x in (q, k, v))
    return plain(q, k, v).transpose(1, 2).flatten(2)


def width_by_view(q: Any, k: Any, v: Any, num_heads: int) -> Any:
    q, k, v = (x.reshape(x.shape[0], num_heads, x.shape[1], -1) for x in (q, k, v))
    return plain(q, k, v).transpose(1, 2).flatten(2)


def heads_listed(queries: Any, keys: Any, values: Any, *, first: bool = False) -> Any:
    return [plain(q, keys[0] if first else k, v) for q, k, v in zip(queries, keys, values, strict=True)]


def one_key_head(q: Any, k: Any, v: Any, *, tokens: bool = False) -> Any:
    s = torch.einsum("bhld,bsd->bhls", q, k) / q.shape[-1] ** 0.5
    return torch.einsum("bhls,bsd->bhld", s.softmax(1 if tokens else -1), v)


def always(q: Any, k: Any, v: Any, *, corner: int = 0) -> Any:
    n = q.shape[2]
    return plain(q, k, v, torch.ones(n, n, dtype=torch.bool).tril(corner))


def square(q: Any, k: Any, v: Any, *, rows: bool = True) -> Any:
    assert q.shape == k.shape == v.shape
    return plain(q, k, v) if rows else torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, -2) @ v


def written(q: Any, k: Any, v: Any, out: Any, *, adds: bool = False) -> None:
    out.copy_(out + plain(q, k, v) if adds else plain(q, k, v))


def with_weights(q: Any, k: Any, v: Any, mask: Any = None, *, early: bool = False) -> Any:
    s = q @ k.mT / q.shape[-1] ** 0.5
    hidden = s if mask is None else s.masked_fill(mask == 0, -1e9)
    return torch.softmax(hidden, -1) @ v, torch.softmax(s if early else hidden, -1)


def blocks(q: Any, k: Any, v: Any, sm_scale: float, *, last: bool = True) -> Any:
    assert q.shape[-1] in (16, 32) and q.shape[2] % 16 == 0 and k.shape[2] % 16 == 0 and v.shape[-1] == q.shape[-1], "no such size"
    keys = k.shape[2] if last or k.shape[2] == 16 else k.shape[2] - 16
    return torch.softmax(q @ k[:, :, :keys].mT * sm_scale, -1) @ v[:, :, :keys]


def needs_a_bias(q: Any, k: Any, v: Any, bias: Any, *, twice: bool = False) -> Any:
    return torch.softmax(q @ k.mT / q.shape[-1] ** 0.5 + bias * (1 + twice), -1) @ v


def decoding(q: Any, k: Any, v: Any, causal: bool = False, *, most: int = 1) -> Any:
    seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril() if causal and q.shape[2] > most else None
    return plain(q, k, v, seen)


def packed_width(qkv: Any, n_head: int, *, corner: int = 0) -> Any:
    q, k, v = (x.unflatten(2, (n_head, -1)).transpose(1, 2) for x in qkv.chunk(3, dim=2))
    return always(q, k, v, corner=corner).transpose(1, 2).flatten(2)


def packed_by_head(qkv: Any, n_heads: int = 1, *, order: str = "qkv") -> Any:
    parts = dict(zip(order, qkv.unflatten(1, (n_heads, 3, -1)).mT.unbind(2), strict=True))
    return plain(parts["q"], parts["k"], parts["v"]).mT.flatten(1, 2)


def one_token(q: Any, k_cache: Any, v_cache: Any, cache_seqlens: Any, *, more: int = 0) -> Any:
    assert q.shape[1] == 1, "one token"
    k, v = (x.repeat_interleave(q.shape[2] // x.shape[2], dim=2) for x in (k_cache, v_cache))
    s = torch.einsum("bqhd,bkhd->bhqk", q, k) / q.shape[-1] ** 0.5
    s = s.masked_fill(torch.arange(k.shape[1]) >= cache_seqlens[:, None, None, None] + more, -math.inf)
    return torch.einsum("bhqk,bkhd->bqhd", s.softmax(-1), v)


def one_row(q: Any, k: Any, v: Any, sm_scale: float | None = None, return_lse: bool = False, *, most: float = math.inf) -> Any:
    s = torch.einsum("hd,lhd->hl", q, k) * (q.shape[-1] ** -0.5 if sm_scale is None else sm_scale)
    out = torch.einsum("hl,lhd->hd", s.clamp(max=most).softmax(-1), v)
    return (out, s.logsumexp(-1)) if return_lse else out


def in_splits(q: Any, k: Any, v: Any, *, maximum: bool = False) -> Any:
    parts = [torch.einsum("bhd,bhld->bhl", q, one) / q.shape[-1] ** 0.5 for one in k.chunk(3, 2)]
    out = [torch.einsum("bhl,bhld->bhd", s.softmax(-1), one) for s, one in zip(parts, v.chunk(3, 2), strict=True)]
    weight = torch.stack([s.amax(-1) if maximum else s.logsumexp(-1) for s in parts]).softmax(0)
    return (weight[..., None] * torch.stack(out)).sum(0)


DECODING = "keys and values {}; a call for each query"
STYLES = {
    "a step of decoding": (
        one_token,
        {"more": 1},
        {
            "axes": "(batch, 1, heads, dim), " + DECODING.format("(batch, length, heads, dim)"),
            "cache_seqlens": "kv_lengths, required",
            "grouped heads": "without a flag",
        },
    ),
    "decoding without a batch": (
        one_row,
        {"most": 0.5},
        {
            "axes": "(heads, dim), " + DECODING.format("(length, heads, dim)") + " of each sequence",
            "return_lse": "the log-sum-exp comes back, too",
        },
    ),
    "decoding in splits": (
        in_splits,
        {"maximum": True},
        {"axes": "(batch, heads, dim), " + DECODING.format("(batch, heads, length, dim)")},
    ),
    "packed features": (
        packed_width,
        {"corner": 1},
        {"axes": "(batch, length, 3 · heads · dim) in one array", "n_head": "the number of heads"},
    ),
    "packed features first": (packed_by_head, {"order": "kvq"}, {"axes": "(batch, heads · 3 · dim, length) in one array"}),
    "packed": (packed, {"corner": 1}, {"axes": "(batch, length, 3, heads, dim) in one array", "causal": "is_causal, top-left"}),
    "heads in the width": (width, None, {"axes": "(batch, length, heads · dim)", "num_heads": "the number of heads"}),
    "lists of heads": (heads_listed, {"first": True}, {"axes": "lists of heads, each (batch, length, dim)"}),
    "keys without heads": (one_key_head, {"tokens": True}, {"grouped heads": "without a flag"}),
    "always causal": (always, {"corner": 1}, {"causality": "always, top-left; without it every query is asked as the last row"}),
    "self-attention alone": (square, {"rows": False}, {"lengths": "as many queries as keys; rows are added where there are more or fewer"}),
    "into an array": (written, {"adds": True}, {"out": "an array that the answer is written into"}),
    "weights beside": (with_weights, {"early": True}, {"beside the output": "the weights"}),
    "multiples of 16": (blocks, {"last": False}, {"head dims": "16, 32 alone, of those that were tried"}),
    "a required bias": (needs_a_bias, {"twice": True}, {"bias": "attn_mask, added"}),
}


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize("style", one_in(3, STYLES))
def test_a_style_is_found_out(style: str) -> None:
    """And the same with a mistake is refuted."""
    function, mistake, words = STYLES[style]
    target = spoken(function)
    assert {name: target.learned.get(name) for name in words} == words, target.learned
    assert not target.wrong and not refuted(target, cases=6)
    wrong = width_by_view if mistake is None else lambda *a, **o: function(*a, **(mistake | o))
    if mistake is not None:
        import functools
        import inspect

        wrong = functools.wraps(function)(wrong)
        kept = [p for p in inspect.signature(function).parameters.values() if p.name not in mistake]
        wrong.__signature__ = inspect.Signature(kept)
    assert refuted(spoken(wrong), cases=40), style


def test_lengths_that_are_refused_say_nothing_of_head_dims() -> None:
    """What takes multiples of 16 of any head dim is asked odd ones, too."""

    def attention(q: Any, k: Any, v: Any, *, lost: bool = True) -> Any:
        assert q.shape[2] % 16 == 0 and k.shape[2] % 16 == 0, "no such length"
        return plain(q, k * (torch.arange(k.shape[-1]) < k.shape[-1] - 1) if lost and k.shape[-1] % 2 else k, v)

    right, wrong = spoken(lambda q, k, v: attention(q, k, v, lost=False)), spoken(lambda q, k, v: attention(q, k, v))
    assert right.supports.head_dims is None and right.supports.length_multiple == 16
    assert not refuted(right, cases=12) and refuted(wrong, cases=12)


def test_lengths_that_are_refused_excuse_no_other_convention() -> None:
    """A bool mask that is True where hidden is wrong under PyTorch's names, also where is_causal is for as many queries as keys alone."""

    def inverted(q: Any, k: Any, v: Any, attn_mask: Any = None, is_causal: bool = False) -> Any:
        assert not is_causal or q.shape[2] == k.shape[2], "as many queries as keys"
        seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril() if is_causal else None
        if attn_mask is not None:
            seen = ~attn_mask if seen is None else ~attn_mask & seen
        return plain(q, k, v, seen)

    target = spoken(inverted)
    assert "lengths" in target.learned and "True where a key is hidden" in target.wrong["bool mask"]


def test_lengths_are_added_along_their_own_axis() -> None:
    def tokens_first(q: Any, k: Any, v: Any, is_causal: bool = False) -> Any:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        assert not is_causal or q.shape[2] == k.shape[2], "as many queries as keys"
        return plain(q, k, v, torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril() if is_causal else None).transpose(1, 2)

    target = spoken(tokens_first, layout="blhd")
    assert "lengths" in target.learned and not target.wrong and not refuted(target)


def test_a_single_query_that_is_never_causal() -> None:
    """It differs where nothing is documented, and is asked beside another; that two see all, too, is a mistake."""
    target = spoken(decoding)
    assert "sees all keys" in target.differs["a single query"] and not target.wrong and not refuted(target)

    def two(q: Any, k: Any, v: Any, causal: bool = False) -> Any:
        return decoding(q, k, v, causal, most=2)

    assert refuted(spoken(two))


@pytest.mark.nightly
def test_hidden_logits_that_others_come_near_are_told() -> None:
    def filled(q: Any, k: Any, v: Any, mask: Any = None, fill: float = -1e4) -> Any:
        s = q @ k.mT / q.shape[-1] ** 0.5
        return torch.softmax(s if mask is None else s.masked_fill(~mask, fill), -1) @ v

    target = spoken(filled)
    assert "finite number" in target.differs["hidden logits"] and 1e3 <= (target.supports.fill or 0) <= 1e4
    assert not refuted(target, "output_is_inside_the_bound", "key_at_minus_infinity_changes_nothing", cases=40)
    assert "hidden logits" not in spoken(lambda q, k, v, mask=None: filled(q, k, v, mask, -math.inf)).differs
    wrong = spoken(lambda q, k, v, mask=None: filled(q, k, v, mask, -10.0))  # so near that usual logits show it
    assert refuted(wrong, "masked_keys_are_deleted", "output_is_inside_the_bound", cases=40)


def test_a_mask_of_numbers_that_is_read_as_truth() -> None:
    def truth(q: Any, k: Any, v: Any, mask: Any = None) -> Any:
        return plain(q, k, v, None if mask is None else mask.bool())

    def documented(q: Any, k: Any, v: Any, attn_mask: Any = None, is_causal: bool = False) -> Any:
        seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril() if is_causal else None
        if attn_mask is not None:
            seen = attn_mask.bool() if seen is None else attn_mask.bool() & seen
        return plain(q, k, v, seen)

    assert spoken(truth).supports.mask_kinds == ("bool",) and not spoken(truth).wrong
    target = spoken(documented)
    assert "read as True" in target.wrong["mask of numbers"] and target.supports.mask_kinds == ("bool",)


def test_sums_of_halves_are_found_out_in_numpy_alone() -> None:
    def einsum(q: Any, k: Any, v: Any) -> Any:
        s = np.einsum("bhid,bhjd->bhij", q, k) / q.dtype.type(math.sqrt(q.shape[-1]))
        e = np.exp(s - s.max(-1, keepdims=True))
        return np.einsum("bhij,bhjd->bhid", e / e.sum(-1, keepdims=True, dtype=np.float32).astype(e.dtype), v)

    def product(q: Any, k: Any, v: Any) -> Any:
        s = q @ k.swapaxes(-1, -2) / q.dtype.type(math.sqrt(q.shape[-1]))
        e = np.exp(s - s.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True, dtype=np.float32).astype(e.dtype) @ v

    def chunks(q: Any, k: Any, v: Any) -> Any:
        """Each chunk has its own maximum (Rabe and Staats 2021); its sums are added one after the other."""
        logits = [q / q.dtype.type(math.sqrt(q.shape[-1])) @ k[:, :, at : at + 3].swapaxes(-1, -2) for at in range(0, k.shape[2], 3)]
        highs = [s.max(-1, keepdims=True) for s in logits]
        scales = [np.exp(high - np.max(np.stack(highs), 0)) for high in highs]
        weights = [np.exp(s - high) for s, high in zip(logits, highs, strict=True)]
        parts = [e @ v[:, :, 3 * n : 3 * n + 3] for n, e in enumerate(weights)]
        total = sum(part * scale for part, scale in zip(parts, scales, strict=True))
        return total / sum(e.sum(-1, keepdims=True) * scale for e, scale in zip(weights, scales, strict=True))

    for rounded in (einsum, chunks):
        assert spoken(rounded, framework="numpy", zero_sizes=False).supports.kind("float16") == "same"
    assert spoken(product, framework="numpy").supports.kind("float16") is None
    assert not spoken(lambda q, k, v: np.zeros_like(q), framework="numpy").differs  # what answers zeros sums nothing


PADDED = """
import numpy as np


class Padded:
    def __call__(self, Q, K, V, {name}=None):
        scores = np.einsum("bqd,bkd->bqk", Q, K) / np.sqrt(K.shape[2])
        if {name} is not None:
            scores[np.broadcast_to({name}[:, None, :], scores.shape)] = HIDDEN
        scores -= scores.max(2, keepdims=True)
        weights = np.exp(scores)
        return weights / weights.sum(2, keepdims=True) @ V


attention = Padded()
"""


@pytest.mark.parametrize("name", ["padding", "pad_mask", "key_padding_mask"])
@pytest.mark.parametrize(("hidden", "found"), [("-1e30", set()), ("0.0", {"masked_keys_are_deleted"})])
def test_a_mask_of_padding_is_one_under_any_of_its_names(name: str, hidden: str, found: set[str]) -> None:
    made: dict[str, Any] = {}
    exec(PADDED.format(name=name).replace("HIDDEN", hidden), made)
    target = spoken(made["attention"])
    means = "(the nearest meaning: off by 1)" if found else ", of axes (b, s)"
    assert target.learned[name].startswith("attn_mask, True = hidden") and target.learned[name].endswith(means)
    assert refuted(target, "masked_keys_are_deleted") == found


def test_what_reads_beyond_its_keys_takes_no_groups() -> None:
    """A kernel with pointers raises nothing where there are fewer heads of keys: it reads on."""

    def pointers(q: Any, k: Any, v: Any, causal: bool = False, sm_scale: float | None = None) -> Any:
        flat = [x.reshape(-1, *x.shape[2:]) for x in (k, v)]
        place = [[(b * k.shape[1] + h) % len(flat[0]) for h in range(q.shape[1])] for b in range(len(q))]
        return numpy_matmul.attention(q, *(x[place] for x in flat), is_causal=causal, scale=sm_scale)

    target = make_target("mine", pointers, {"framework": "numpy"})
    assert "is_causal" in target.parameters and "enable_gqa" not in target.parameters
    assert target.untried["grouped heads"].endswith("it reads the keys of another batch element")

    def repeated(q: Any, k: Any, v: Any, causal: bool = False, sm_scale: float | None = None) -> Any:
        k, v = (np.concatenate([x] * (q.shape[1] // x.shape[1]), 1)[:, ::-1] for x in (k, v))
        return numpy_matmul.attention(q, k, v, is_causal=causal, scale=sm_scale)

    assert "enable_gqa" in make_target("mine", repeated, {"framework": "numpy"}).parameters  # and is wrong in them
