"""Every convention that can be declared is a claim: what does otherwise is refuted, what does so is right, and so is what was written down of it."""

from __future__ import annotations

import dataclasses
import math
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from nightly import one_in

torch = pytest.importorskip("torch")

from benchmarks.first_contact.record import Entry
from benchmarks.first_contact.speak import load
from benchmarks.first_contact.table import ENTRIES
from properties.attention.answers import CLAIMS
from properties.catalogue import select
from properties.engine.core.target import CannotRun, Target
from properties.engine.report.dialect import supports_text, tightest
from properties.engine.search.probe import make_target
from properties.engine.search.run import verify_target
from properties.engine.search.search import Plan

BOUND = ("output_is_inside_the_bound",)
ROWS = ("rows_without_keys_follow_the_convention",)


@dataclasses.dataclass
class Kernel:
    """A right attention of conventions that are said: what it refuses, and how it answers where libraries differ."""

    layout: str = "bhld"
    dtypes: tuple[str, ...] = ()
    head_dims: tuple[int, ...] = ()
    longest: int = 10**9
    multiple: int = 1
    always: tuple[int, int] | None = None  # a window
    symmetric: bool = False
    groups: tuple[int, ...] = ()
    scales: str = "any"
    wide_values: bool = True
    empty: bool = True
    contiguous: bool = False
    rows: bool = True
    finite: bool = False
    together: bool = True
    kinds: str = ""
    axes: str = ""
    rank: int = 0
    corner: str = "top-left"
    factor: str = "root"
    wider: bool = False
    alone: str = "zero"  # what a row gives that sees no key
    alone_added: str = ""
    contained: bool = False
    fill: float = math.inf
    halves: bool = False
    detached: bool = False
    short: bool = False  # by a key, of what a window shows
    weights: str = ""  # that come back: those of each head, or their mean

    def refused(self, q: Any, k: Any, v: Any, mask: Any, causal: bool, scale: float | None, window: Any) -> bool:
        shape = (*q.shape, *k.shape, *v.shape)
        usual = {"any": True, "positive": scale is None or scale > 0, "not negative": scale is None or scale >= 0}
        return (
            (bool(self.dtypes) and str(q.dtype).removeprefix("torch.") not in self.dtypes)
            or (bool(self.head_dims) and q.shape[3] not in self.head_dims)
            or max(q.shape[2], k.shape[2]) > self.longest
            or bool(q.shape[2] % self.multiple or k.shape[2] % self.multiple)
            or (bool(self.groups) and 0 not in shape and q.shape[1] // k.shape[1] not in self.groups)
            or not usual[self.scales]
            or not (self.wide_values or v.shape[3] == k.shape[3])
            or not (self.empty or 0 not in shape)
            or (self.contiguous and not all(x.is_contiguous() for x in (q, k, v)))
            or (self.finite and not all(x.isfinite().all() for x in (q, k, v)))
            or (self.symmetric and window is not None and window[0] != window[1])
            or (mask is not None and self.masked(mask, causal))
        )

    def masked(self, mask: Any, causal: bool) -> bool:
        return (
            (causal and not self.together)
            or (self.kinds == "bool" and mask.dtype != torch.bool)
            or mask.ndim < self.rank
            or (self.axes == "LS" and math.prod(mask.shape[:-2]) != 1)
        )

    def __call__(self, q: Any, k: Any, v: Any, mask: Any, causal: bool, scale: float | None, window: Any = None) -> Any:
        if self.layout == "blhd":
            q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        if self.refused(q, k, v, mask, causal, scale, window):
            raise ValueError("not taken")
        if q.shape[1] != k.shape[1]:
            k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
        dim, queries, keys = max(q.shape[3], 1), q.shape[2], k.shape[2]
        logits = q @ k.mT * ({"root": dim**-0.5, "one": 1.0, "dim": 1 / dim}[self.factor] if scale is None else scale)
        logits = logits.to(torch.bfloat16).to(logits.dtype) if self.halves else logits
        ahead = torch.arange(keys)[None] - torch.arange(queries)[:, None] - (keys - queries if self.corner == "bottom-right" else 0)
        left, right = self.always or window or (-1, -1)
        right = right - (self.short and right > 0)
        hidden = (ahead > 0) & causal
        hidden = hidden | ((ahead < -left) & (left >= 0)) | ((ahead > right) & (right >= 0))
        added = mask is not None and mask.dtype != torch.bool
        if mask is not None:
            logits, hidden = (logits + mask, hidden) if added else (logits, hidden | ~mask)
        hidden = hidden | (logits == -math.inf)
        empty = hidden.expand_as(logits).all(-1, keepdim=True)
        if not self.rows and bool(empty.any()):
            raise ValueError("a row sees no key")
        logits = logits.masked_fill(hidden, -self.fill)
        weights = logits.masked_fill(empty, 0.0).softmax(-1)
        how = self.alone_added if added and self.alone_added else self.alone
        weights = weights if how == "mean" else weights.masked_fill(empty, math.nan if how == "nan" else 0.0)
        if self.contained:  # a NaN meets no weight of 0
            v = v.unsqueeze(-3).masked_fill(hidden.expand_as(logits)[..., None], 0.0)
            out = (weights[..., None] * v).sum(-2)
        else:
            out = weights @ v
        out = out.to(torch.float64) if self.wider else out
        out = out.detach() if self.detached else out
        out = out.transpose(1, 2) if self.layout == "blhd" else out
        return {"": out, "per head": (out, weights), "mean": (out, weights.mean(1))}[self.weights]


def plain(**how: Any) -> Any:
    kernel = Kernel(**how)

    def attention(
        q: Any, k: Any, v: Any, attn_mask: Any = None, is_causal: bool = False, scale: Any = None, enable_gqa: bool = False
    ) -> Any:
        return kernel(q, k, v, attn_mask, is_causal, scale)

    return attention


def windowed(**how: Any) -> Any:
    kernel = Kernel(**how)

    def attention(q: Any, k: Any, v: Any, attn_mask: Any = None, is_causal: bool = False, window_size: Any = None) -> Any:
        return kernel(q, k, v, attn_mask, is_causal, None, window_size)

    return attention


# What is declared, what does otherwise, what does so, and the properties that tell them apart.
TABLE: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any], tuple[str, ...]]] = [
    ({"layout": "blhd"}, {}, {"layout": "blhd"}, BOUND),
    ({"head_dims": [8, 16]}, {"head_dims": (8,)}, {"head_dims": (8, 16)}, BOUND),
    ({"max_length": 40}, {"longest": 20}, {"longest": 40}, (*BOUND, "duplicated_keys_change_nothing")),
    ({"groups": [1, 2, 3]}, {"groups": (1, 2)}, {"groups": (1, 2, 3)}, BOUND),
    ({"scales": "any"}, {"scales": "positive"}, {}, ("zero_scale_averages",)),
    ({"scales": "not negative"}, {"scales": "positive"}, {"scales": "not negative"}, ("zero_scale_averages",)),
    ({"value_dim": True}, {"wide_values": False}, {}, BOUND),
    ({"zero_sizes": True}, {"empty": False}, {}, ("rows_sum_to_one",)),
    ({"rows_without_keys": True}, {"rows": False}, {}, ROWS),
    ({"non_finite": True}, {"finite": True}, {}, ("nan_query_is_not_hidden",)),
    ({"memory": ["contiguous", "transposed"]}, {"contiguous": True}, {}, ("memory_layout_changes_nothing",)),
    ({"mask_and_causal": True}, {"together": False}, {}, BOUND),
    ({"mask_kinds": ["bool", "bias"]}, {"kinds": "bool"}, {}, BOUND),
    ({"mask_axes": ["LS", "BHLS"]}, {"axes": "LS"}, {}, BOUND),
    ({"mask_rank": 2, "mask_axes": ["LS"]}, {"rank": 4}, {"rank": 2}, BOUND),
    ({"causal": "top-left"}, {"corner": "bottom-right"}, {}, BOUND),
    ({"causal": "bottom-right"}, {}, {"corner": "bottom-right"}, BOUND),
    ({"default_scale": "1"}, {}, {"factor": "one"}, BOUND),
    ({"default_scale": "1/dim"}, {"factor": "one"}, {"factor": "dim"}, BOUND),
    ({"result": "same"}, {"wider": True}, {}, ("output_has_the_right_form",)),
    ({"empty_rows": "zero"}, {"alone": "nan"}, {}, ROWS),
    ({"empty_rows": "mean"}, {}, {"alone": "mean"}, ROWS),
    ({"empty_rows": "nan"}, {"alone": "mean"}, {"alone": "nan"}, ROWS),
    ({"empty_rows_added": "nan"}, {}, {"alone_added": "nan"}, ROWS),
    ({"masked_nan": "contained", "mask_kinds": ["bool"]}, {}, {"contained": True}, ("masked_nan_is_contained",)),
    ({"fill": 1e4}, {"fill": 10.0}, {"fill": 1e4}, BOUND),
    ({"arithmetic": "same"}, {"halves": True}, {}, BOUND),
    ({"gradients": True}, {"detached": True}, {}, ("rows_sum_to_one",)),
    ({"returned_weights": "per head"}, {"weights": "mean"}, {"weights": "per head"}, ("returned_weights_are_those_applied",)),
    ({"returned_weights": "mean"}, {"weights": "per head"}, {"weights": "mean"}, ("returned_weights_are_those_applied",)),
    ({"window": [2, 1]}, {"always": (2, 2)}, {"always": (2, 1)}, BOUND),
]
WINDOWS: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any], tuple[str, ...]]] = [
    ({"windows": "any"}, {"symmetric": True}, {}, ("window_edges_are_exact",)),
    ({"windows": "symmetric"}, {"symmetric": True, "short": True}, {"symmetric": True}, ("window_edges_are_exact",)),
]
ALL = [(plain, *row) for row in TABLE] + [(windowed, *row) for row in WINDOWS]


WRITTEN = [number for number, row in enumerate(ALL) if set(row[1]) <= {*CLAIMS, "gradients"}]


def spoken(function: Any, declared: dict[str, Any]) -> Target:
    target = make_target("mine", function, {"framework": "torch", **declared})
    return target.kind.handshake(target, "cpu")


def refuted(target: Target, names: tuple[str, ...]) -> bool:
    report = verify_target(target, select(names), Plan(examples=40, strict=False, shrink=False), first=True)
    return bool(report.findings or target.wrong)


def named(number: int) -> str:
    return ", ".join(f"{key}={value}" for key, value in ALL[number][1].items())


@pytest.mark.parametrize("number", one_in(8, range(len(ALL))), ids=named)
def test_what_does_otherwise_is_refuted(number: int) -> None:
    made, declared, otherwise, _, names = ALL[number]
    assert refuted(spoken(made(**otherwise), declared), names)


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize("number", one_in(6, range(len(ALL))), ids=named)
def test_what_does_so_is_right(number: int) -> None:
    made, declared, _, so, names = ALL[number]
    assert not refuted(spoken(made(**so), declared), names)


@pytest.mark.parametrize("declared", [{"dtypes": ["float64", "float16"]}, {"length_multiple": 4}], ids=str)
def test_what_its_first_calls_belie_cannot_be_run(declared: dict[str, Any]) -> None:
    with pytest.raises(CannotRun, match="not taken"):
        spoken(plain(dtypes=("float64",), multiple=8), declared)


@pytest.mark.nightly
@pytest.mark.parametrize("number", one_in(12, WRITTEN), ids=named)
def test_what_is_written_of_it_is_its_claim(number: int) -> None:
    """It is right by what was seen of it; and when it changes, that is a finding."""
    made, declared, otherwise, so, names = ALL[number]
    seen = spoken(made(**so), {})
    facts = tomllib.loads(supports_text(seen, seen.kind.learned_supports(seen, edges=())))
    assert set(declared) <= set(facts)
    again = spoken(made(**so), facts)
    assert (
        again.supports == dataclasses.replace(seen.supports, gradients=True, spoken=facts["spoken"]) and again.parameters == seen.parameters
    )
    assert not refuted(again, names) and refuted(spoken(made(**otherwise), facts), names)


def test_every_key_of_a_convention_has_a_row() -> None:
    page = (Path(__file__).parents[2] / "docs/explanation/conventions.md").read_text(encoding="utf-8")
    table = [line.split("|")[-2] for line in page.splitlines() if line.startswith("| ") and line.count("|") == 5]
    keys = set(re.findall(r"`(\w+)`", " ".join(table)))
    tried = {key for row in ALL for key in row[1]} | {"dtypes", "length_multiple"}
    assert keys - tried == {"parameters"} and set(CLAIMS) <= tried  # a parameter that is not there cannot be given


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize("entry", one_in(10, ENTRIES), ids=lambda entry: entry.name)
def test_what_is_written_of_a_stranger_is_taken_back(entry: Entry) -> None:
    """With it, the same is seen of it again: its names, its axes, its masks, what it takes."""
    function = load(entry, entry.function)
    seen = make_target("mine", function).kind.handshake(make_target("mine", function), "cpu")
    facts = tomllib.loads(supports_text(seen, seen.kind.learned_supports(seen) | {"dtypes": seen.dtypes}))
    again = make_target("mine", function, facts)
    again = again.kind.handshake(again, "cpu")
    found = dataclasses.asdict(seen.supports) | {"dtypes": seen.dtypes, "gradients": facts.get("gradients", seen.supports.gradients)}
    found |= {"spoken": facts["spoken"]}
    assert dataclasses.asdict(again.supports) == found
    assert set(again.parameters) == set(seen.parameters) and again.wrong == seen.wrong


# What has no key of its own: a function, and another one of the same names.
CHANGES: dict[str, tuple[str, str]] = {
    "the polarity of a mask": ("mask", "hidden"),
    "axes": ("axes", "blhd"),
    "a window": ("window", "before"),
    "the base of a log-sum-exp": ("lse", "2"),
    "grouped heads": ("groups", "none"),
    "a parameter": ("causal", "gone"),
}


def changed(*how: str) -> Any:
    """An attention whose masks, axes, window, sum and heads can be others."""
    kernel = Kernel(layout="blhd" if "blhd" in how else "bhld", groups=(1,) if "none" in how else ())

    def answer(q: Any, k: Any, v: Any, mask: Any = None, causal: bool = False, window: Any = None) -> Any:
        seen = mask if mask is None or "hidden" not in how else ~mask
        sides = None if window is None else (window - ("before" not in how), window if "before" in how else window - 1)
        return kernel(q, k, v, seen, causal, None, sides)

    def attention(q: Any, k: Any, v: Any, mask: Any = None, causal: bool = False, window_size: Any = None) -> Any:
        return answer(q, k, v, mask, causal, window_size)

    def without(q: Any, k: Any, v: Any, mask: Any = None) -> Any:
        return answer(q, k, v, mask)

    def with_lse(q: Any, k: Any, v: Any) -> Any:
        lse = torch.logsumexp(q @ k.mT * max(q.shape[3], 1) ** -0.5, -1)
        return answer(q, k, v), lse / math.log(2) if "2" in how else lse

    return with_lse if "lse" in how else without if "gone" in how or ("window" not in how and "causal" not in how) else attention


@pytest.mark.parametrize("what", one_in(2, CHANGES))
def test_what_has_no_key_is_held_to_what_was_told(what: str) -> None:
    """``spoken`` keeps it, word for word; the same function has changed nothing."""
    topic, change = CHANGES[what]
    seen = spoken(changed(topic), {})
    facts = tomllib.loads(supports_text(seen, seen.kind.learned_supports(seen)))
    assert facts["spoken"] and not spoken(changed(topic), facts).wrong
    assert spoken(changed(topic, change), facts).wrong
    other = spoken(changed(topic, change), {**facts, "spoken": {**facts["spoken"], "attncheck": "another"}})
    assert "written by attncheck another" in other.untried["spoken"]


@pytest.mark.nightly
def test_a_tighter_arithmetic_is_claimed_after_enough_cases_alone() -> None:
    target = spoken(plain(), {"dtypes": ["float64"]})
    few, many = (verify_target(target, select(BOUND), Plan(examples=count)) for count in (20, 30))
    assert not tightest(few) and tightest(many) == {"float64": "same"}
