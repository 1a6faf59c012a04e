"""Projections are recognised where they are what their names say, and nothing is claimed where they are not."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from module_styles import OfDataclass
from nightly import more_by_night
from torch import Tensor, nn

from impls.mutants import load_all
from properties import verify, verify_pair
from properties.engine.search.probe import make_target


class Conv1D(nn.Module):
    """GPT-2's: weights (in, out)."""

    def __init__(self, outs: int, ins: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.zeros(ins, outs)), nn.Parameter(torch.zeros(outs))

    def forward(self, x: Tensor) -> Any:
        return x @ self.weight + self.bias


NAMES = {
    "separate": (("q_proj", "k_proj", "v_proj", "o_proj"), ("to_q", "to_k", "to_v", "to_out"), ("W_query", "W_key", "W_value", "out_proj")),
    "fused": (("c_attn", "c_proj"), ("qkv", "proj"), ("Wqkv", "out_proj"), ("query_key_value", "dense")),
    "half fused": (("to_q", "to_kv", "to_out"), ("q", "kv", "proj")),
}
SCALES: dict[str, Callable[[int], float]] = {"1/sqrt(head_dim)": lambda d: d**-0.5, "1": lambda d: 1.0, "1/head_dim": lambda d: 1 / d}


class Style(nn.Module):
    """An attention in one of many styles: form of the projections, names, biases, groups, order, scale."""

    form, names, bias, order, grouped, scale = "separate", NAMES["separate"][0], True, "", False, "1/sqrt(head_dim)"

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads, self.kv_heads, self.d = num_heads, num_heads // 2 if self.grouped else num_heads, d_model // num_heads
        inner, small = d_model, self.kv_heads * self.d
        outs = {"separate": (inner, small, small), "fused": (inner + 2 * small,), "half fused": (inner, 2 * small)}[self.form]
        for name, size in zip(self.names, (*outs, d_model), strict=True):
            setattr(self, name, self.layer(d_model, size))

    def layer(self, ins: int, outs: int) -> nn.Module:
        return nn.Linear(ins, outs, bias=self.bias)

    def projected(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        parts = [getattr(self, name)(x) for name in self.names[:-1]]
        small = self.kv_heads * self.d
        if self.form == "fused" and self.order == "per head":
            return tuple(y.flatten(-2) for y in parts[0].unflatten(-1, (self.num_heads, 3, self.d)).unbind(-2))  # type: ignore[return-value]
        if self.form == "fused" and self.order == "features first":
            return tuple(y.flatten(-2) for y in parts[0].unflatten(-1, (self.num_heads, self.d, 3)).unbind(-1))  # type: ignore[return-value]
        if self.form == "fused":
            parts = list(parts[0].split((parts[0].shape[-1] - 2 * small, small, small), -1))
        elif self.form == "half fused":
            parts = [parts[0], *parts[1].chunk(2, -1)]
        return parts[0], parts[1], parts[2]

    def forward(self, x: Tensor) -> Any:
        q, k, v = (y.unflatten(-1, (-1, self.d)).transpose(1, 2) for y in self.projected(x))
        k, v = (y.repeat_interleave(self.num_heads // self.kv_heads, 1) for y in (k, v))
        weights = self.weigh(q @ k.mT * SCALES[self.scale](self.d))
        return getattr(self, self.names[-1])((weights @ v).transpose(1, 2).flatten(2))

    def weigh(self, logits: Tensor) -> Tensor:
        return logits.softmax(-1)


def style(**changes: Any) -> Any:
    return type("Attention", (Style,), changes)


def conv1d(self: Any, ins: int, outs: int) -> nn.Module:
    return Conv1D(outs, ins)


STYLES: dict[str, Any] = {}
for form, bias, scale in product(NAMES, (True, False), SCALES):
    for names in NAMES[form][:2]:
        STYLES[f"{form} {names[0]} {'bias' if bias else 'bare'} {scale}"] = style(form=form, names=names, bias=bias, scale=scale)
for order in ("per head", "features first"):
    STYLES[f"fused, {order}"] = style(form="fused", names=NAMES["fused"][3], order=order)
for form in ("separate", "fused"):
    STYLES[f"grouped, {form}"] = style(form=form, names=NAMES[form][-1], grouped=True)
    STYLES[f"Conv1D, {form}"] = style(form=form, names=NAMES[form][0], layer=conv1d)
SAMPLE = list(STYLES)


@pytest.mark.parametrize("name", SAMPLE)
def test_a_right_style_is_recognised(name: str) -> None:
    """The scale, the order and the groups that are claimed are those of the module."""
    cls = STYLES[name]
    found = make_target("mine", cls).function.structure  # type: ignore[attr-defined]
    assert found is not None
    assert (found.heads, found.kv_heads, found.scale) == (4, 2 if cls.grouped else 4, cls.scale)
    assert found.order == (cls.order or ("in blocks" if cls.form != "separate" else ""))
    assert {place.weight for place in found.places.values()} == {f"{name}.weight" for name in cls.names}


class Einsum(nn.Module):
    """As in TransformerLens: weights (heads, features, features of a head), and biases (heads, features of a head)."""

    mixed = "bhqk,bkhe->bqhe"

    def __init__(self, d_model: int, n_heads: int, d_head: int) -> None:
        super().__init__()
        self.W_Q, self.W_K, self.W_V = (nn.Parameter(torch.zeros(n_heads, d_model, d_head)) for _ in range(3))
        self.b_Q, self.b_K, self.b_V = (nn.Parameter(torch.zeros(n_heads, d_head)) for _ in range(3))
        self.W_O, self.b_O = nn.Parameter(torch.zeros(n_heads, d_head, d_model)), nn.Parameter(torch.zeros(d_model))

    def forward(self, x: Tensor) -> Any:
        q, k, v = (torch.einsum("bld,hde->blhe", x, w) + b for w, b in ((self.W_Q, self.b_Q), (self.W_K, self.b_K), (self.W_V, self.b_V)))
        logits = torch.einsum("bqhe,bkhe->bhqk", q, k) / q.shape[-1] ** 0.5
        weights = (logits + torch.full_like(logits, -math.inf).triu(1)).softmax(-1)
        return torch.einsum("bqhe,hed->bqd", torch.einsum(self.mixed, weights, v), self.W_O) + self.b_O


class EinsumQueriesForKeys(Einsum):
    """Indices of queries and keys are exchanged where values are summed."""

    mixed = "bhqk,bqhe->bkhe"


@pytest.mark.nightly
def test_biases_of_two_axes_are_understood() -> None:
    found = make_target("mine", Einsum).function.structure  # type: ignore[attr-defined]
    assert found is not None and found.heads == 4 and found.places["q"].bias == "b_Q"
    for one, other in ((Einsum, OfDataclass), (OfDataclass, Einsum))[: more_by_night(1, 2)]:  # read, and written into
        assert verify_pair(one, other, cases=4).ok
    report = verify(EinsumQueriesForKeys, cases=20).report
    assert report.target.function.structure is None and report.findings  # type: ignore[attr-defined]


def test_there_are_enough_styles() -> None:
    assert len(STYLES) >= 30


OTHERWISE: dict[str, Any] = {
    "keys named queries": style(
        names=("k_proj", "q_proj", "v_proj", "o_proj"), projected=lambda self, x: (self.k_proj(x), self.q_proj(x), self.v_proj(x))
    ),
    "a cap": style(weigh=lambda self, s: (5 * (s / 5).tanh()).softmax(-1)),
    "no softmax": style(weigh=lambda self, s: s.sigmoid()),
    "half a residual": style(forward=lambda self, x: x / 2 + Style.forward(self, x)),
    **{name: mutant.function for name, mutant in load_all()[0].items() if name == "module_heads.OneMore"},
}


@pytest.mark.parametrize("name", OTHERWISE)
def test_nothing_is_claimed_of_what_is_otherwise(name: str) -> None:
    target = make_target("mine", OTHERWISE[name])
    assert target.function.structure is None  # type: ignore[attr-defined]
    assert not target.learned.get("structure", "not confirmed").endswith("confirmed") or target.learned["structure"].startswith("not")


def test_what_is_scaled_otherwise_is_told_where_something_says_so_and_is_a_mistake_elsewhere() -> None:
    found = make_target("mine", style(scale="1"))
    assert not found.differs
    assert found.function.structure.mistakes == ("logits are scaled by 1, expected 1/sqrt(head_dim)",)  # type: ignore[attr-defined]
    assert make_target("mine", type("T5Attention", (style(scale="1"),), {})).differs == {"scale": "1 (T5's), not 1/sqrt(head_dim)"}
    assert not make_target("mine", Style).differs and not make_target("mine", Style).function.structure.mistakes  # type: ignore[attr-defined]
    assert math.isclose(SCALES["1/sqrt(head_dim)"](64), 0.125)


class OfWindows(Style):
    """A learned bias for each distance of two tokens and each head, for windows of one length, as in Swin."""

    length, form, names = 9, "fused", NAMES["fused"][1]

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__(dim, num_heads)
        self.relative_position_bias_table = nn.Parameter(torch.zeros(2 * self.length - 1, num_heads))
        places = torch.arange(self.length)
        self.register_buffer("index", places[:, None] - places + self.length - 1)

    def weigh(self, logits: Tensor) -> Tensor:
        return (logits + self.relative_position_bias_table[self.index].permute(2, 0, 1)).softmax(-1)


class OfBuckets(Style):
    """The same of any length, as in T5: far distances share one."""

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__(d_model, num_heads)
        self.relative_attention_bias = nn.Embedding(17, num_heads)

    def weigh(self, logits: Tensor) -> Tensor:
        places = torch.arange(logits.shape[-1])
        return (logits + self.relative_attention_bias((places[:, None] - places).clamp(-8, 8) + 8).permute(2, 0, 1)).softmax(-1)


class OfHeadsFirst(OfWindows):
    """The same, with a row of the table for each head, as in LeViT."""

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__(dim, num_heads)
        self.relative_position_bias_table = nn.Parameter(torch.zeros(num_heads, 2 * self.length - 1))

    def weigh(self, logits: Tensor) -> Tensor:
        return (logits + self.relative_position_bias_table[:, self.index]).softmax(-1)


class Reshaped(OfWindows):
    """A mistake: what is looked up, (length, length, heads), is brought to heads by a reshape."""

    def weigh(self, logits: Tensor) -> Tensor:
        return (logits + self.relative_position_bias_table[self.index].reshape(-1, self.length, self.length)).softmax(-1)


class Mixed(Style):
    """Heads are mixed before the softmax, and after it, as in CaiT."""

    form, names, turned = "fused", NAMES["fused"][1], (0, 3, 1, 2)

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__(dim, num_heads)
        self.proj_w, self.proj_l = nn.Linear(num_heads, num_heads), nn.Conv2d(num_heads, num_heads, 1)

    def weigh(self, logits: Tensor) -> Tensor:
        return self.proj_w(self.proj_l(logits).softmax(-1).permute(0, 2, 3, 1)).permute(self.turned)


class MixedAndTransposed(Mixed):
    """A mistake: the map comes back turned over."""

    turned = (0, 3, 2, 1)


class MixedBefore(Style):
    """The logits alone."""

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__(d_model, num_heads)
        self.talking = nn.Parameter(torch.randn(num_heads, num_heads))

    def weigh(self, logits: Tensor) -> Tensor:
        return torch.einsum("gh,bhls->bgls", self.talking, logits).softmax(-1)


@pytest.mark.nightly
def test_heads_may_be_mixed() -> None:
    for cls, words in ((Mixed, "heads mixed: logits by proj_l, weights by proj_w; "), (MixedBefore, "heads mixed: logits by talking; ")):
        said = make_target("mine", cls).learned["structure"]
        assert words in said and said.endswith(": confirmed") and verify(cls, cases=8, properties=("projections",)).ok
    findings = verify(MixedAndTransposed, cases=8, properties=("projections",)).findings
    assert any("the transposed weights on values" in finding.violation.says for finding in findings)


@pytest.mark.nightly
def test_a_table_of_biases_is_looked_up_for_heads() -> None:
    words = "biases of two places brought to heads by a reshape, without a transpose"
    for cls in (OfWindows, OfHeadsFirst):
        found = make_target("mine", cls)
        assert "a bias of two places (relative_position_bias_table)" in found.learned["structure"]
        assert found.learned["structure"].endswith(": confirmed") and verify(cls, cases=8, properties=("projections",)).ok
    assert make_target("mine", Reshaped).learned["structure"].endswith(f": confirmed, with a mistake: it answers as with {words}")
    (finding,) = verify(Reshaped, cases=8, properties=("projections",)).findings
    assert finding.prop.name == "module_is_the_attention_of_its_projections" and words in finding.violation.says


@pytest.mark.nightly(but=2)
@pytest.mark.parametrize(("cls", "scale"), [(OfWindows, "1"), (OfBuckets, "1/head_dim")])
def test_tables_of_distances_are_put_to_zero_for_what_they_are_added_to(cls: Any, scale: str) -> None:
    found = make_target("mine", cls)
    assert "relative_" in found.learned["structure"]
    assert found.learned["structure"].endswith(" is 0: confirmed") is (cls is OfBuckets)
    assert found.function.structure.scale == "1/sqrt(head_dim)"  # type: ignore[attr-defined]
    assert verify(cls, cases=8).ok
    wrong = type("Attention", (cls,), {"scale": scale})
    finding = next(f for f in verify(wrong, cases=8).findings if f.prop.name == "module_is_the_attention_of_its_projections")
    assert f"logits are scaled by {scale}, expected 1/sqrt(head_dim)" in finding.violation.says


@pytest.mark.nightly
def test_no_scale_beside_an_embedding_of_distances_is_a_convention() -> None:
    cls = type("Attention", (OfBuckets,), {"scale": "1"})
    assert "as T5's" in make_target("mine", cls).differs["scale"] and verify(cls, cases=8).ok
