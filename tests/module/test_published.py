"""What people publish: answers by chance, angles that are kept, segments, parameters that are documented to do nothing; in our own words."""

from __future__ import annotations

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import Tensor, nn

from properties.catalogue import PROPERTIES
from properties.engine.core.documented import unused
from properties.engine.core.target import Target
from properties.engine.search.probe import make_target
from properties.engine.search.run import Report, verify_target
from properties.engine.search.search import Plan
from properties.module import bound
from properties.module.trial import ModuleTrial

RIGHT = [prop for prop in PROPERTIES.values() if prop.name.startswith("module_")]


def searched(kind: type[nn.Module], examples: int = 6) -> Report:
    return verify_target(made(kind), RIGHT, Plan(examples=examples, strict=False))


def made(kind: type[nn.Module]) -> Target:
    return make_target("mine", kind)


class Plain(nn.Module):
    def __init__(self, dim: int, heads: int = 4) -> None:
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, dim = x.shape
        q, k, v = self.placed(*self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4))
        weights = self.hidden(q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1)
        out: Tensor = self.out((weights @ v).transpose(1, 2).reshape(batch, length, dim))
        return out

    def placed(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return q, k, v

    def hidden(self, logits: Tensor) -> Tensor:
        return logits


class Slots(Plain):
    """Its rows begin somewhere else at every call."""

    def placed(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return q + torch.randn_like(q), k, v


class DropsInEval(Plain):
    def hidden(self, logits: Tensor) -> Tensor:
        return nn.functional.dropout(logits, 0.2)


@pytest.mark.nightly
def test_what_begins_by_chance_is_one_finding() -> None:
    report = searched(Slots)
    assert [finding.prop.name for finding in report.findings] == ["module_the_same_call_gives_the_same_bits"]
    assert "draws random numbers in eval mode (randn_like)" in report.outcomes["module_a_batch_is_its_sequences"].not_exercised
    shy = verify_target(made(Slots), [PROPERTIES["module_a_batch_is_its_sequences"]], Plan(examples=6, strict=False))
    assert shy.incomplete.startswith("it drew random numbers in eval mode (randn_like)")  # one that draws only when it is asked what it is
    assert len(searched(DropsInEval).findings) > 1


class Segments(Plain):
    """Causal attention in segments."""

    def __init__(self, dim: int, heads: int = 4, segment_len: int = 4) -> None:
        super().__init__(dim, heads)
        self.segment_len = segment_len
        self.causal = True

    def hidden(self, logits: Tensor) -> Tensor:
        at = torch.arange(logits.shape[-1])
        seen = (at[:, None] // self.segment_len == at // self.segment_len) & (at[:, None] >= at)
        return logits.masked_fill(~seen, -math.inf)


class OfOneLess(Segments):
    """The first token of a segment is left out."""

    def hidden(self, logits: Tensor) -> Tensor:
        at = torch.arange(logits.shape[-1])
        first = (at % self.segment_len == 0) & (at[:, None] != at)
        return super().hidden(logits).masked_fill(first, -math.inf)


@pytest.mark.nightly
def test_segments_are_windows() -> None:
    report = searched(Segments)
    assert not report.findings, [(f.prop.name, f.violation.says) for f in report.findings]
    assert searched(OfOneLess).findings


class Kept(Plain):
    """Its angles are computed in the first call, in the type of that."""

    def __init__(self, dim: int, heads: int = 4) -> None:
        super().__init__(dim, heads)
        self.register_buffer("freqs", 100.0 ** -torch.arange(0, 1, 1 / 32), persistent=False)
        self.register_buffer("angles", torch.zeros(128, 32), persistent=False)
        self.ready = False

    def placed(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if not self.ready:
            self.angles = torch.arange(128, dtype=q.dtype)[:, None] * self.freqs
            self.ready = True
        half = q.shape[-1] // 2
        angles = self.angles[: q.shape[2], :half]
        cos, sin = angles.cos(), angles.sin()
        q, k = (torch.cat([x[..., :half] * cos - x[..., half:] * sin, x[..., :half] * sin + x[..., half:] * cos], -1) for x in (q, k))
        return q, k, v


@pytest.mark.nightly
def test_what_a_call_leaves_in_a_module_is_rounded_in_every_run(monkeypatch: pytest.MonkeyPatch) -> None:
    target = made(Kept)
    assert target.function.facts.keeps and not made(Plain).function.facts.keeps  # type: ignore[attr-defined]
    case = next(prop for prop in RIGHT if "twin" in prop.name).topic.case(batch=2, length=64, dtype="float16", seed=3)
    for kind, times in ((Kept, 1 + len(bound.SAMPLES)), (Plain, 0)):
        trial, count = ModuleTrial(made(kind), case), list[int]()
        again = trial.made
        trial.module  # noqa: B018  what is called itself is made once
        monkeypatch.setattr(trial, "made", lambda again=again, count=count: count.append(1) or again())
        trial.allowed()
        assert len(count) == times
    report = verify_target(target, RIGHT, Plan(examples=12, strict=False))
    assert not report.findings, [(f.prop.name, f.violation.says) for f in report.findings]


class LinearAttention(nn.Module):
    """Its weights sum to one over the number of tokens, so that sums stay small."""

    def __init__(self, dim: int, heads: int = 4) -> None:
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, dim = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        out: Tensor = self.out((q.softmax(-1) @ (k.softmax(2).mT @ (v / length))).transpose(1, 2).reshape(batch, length, dim))
        return out


def test_the_weights_of_a_linear_attention_need_not_sum_to_one() -> None:
    report = searched(LinearAttention)
    assert not report.findings, [(f.prop.name, f.violation.says) for f in report.findings]


class Interface(Plain):
    """Attention that others are exchanged for.

    Args:
        x (Tensor): shape ``[batch, length, dim]``.
        attention_mask (Tensor or None): ``[batch, 1, length, length]``, True where a key is seen.
        key_padding_mask (Tensor or None): Not used. Only for the compatibility with others.
    """

    def forward(self, x: Tensor, attention_mask: Any = None, key_padding_mask: Any = None) -> Tensor:  # type: ignore[override]
        self.mask = attention_mask
        return super().forward(x)

    def hidden(self, logits: Tensor) -> Tensor:
        return logits if self.mask is None else logits.masked_fill(~self.mask, -math.inf)


class Hides(Interface):
    """Attention.

    Args:
        key_padding_mask: Not used.
    """

    def forward(self, x: Tensor, attention_mask: Any = None, key_padding_mask: Any = None) -> Tensor:  # type: ignore[override]
        self.mask = None if key_padding_mask is None else ~key_padding_mask[:, None, None].roll(1, -1)
        return Plain.forward(self, x)


class Forgets(Interface):
    """Attention.

    Args:
        key_padding_mask: True where a key is hidden.
    """


@pytest.mark.nightly
def test_a_mask_that_is_documented_as_not_used_is_told() -> None:
    target = made(Interface)
    assert target.untried["key_padding_mask"] == "documented as not used"
    report = searched(Interface)
    assert not report.findings, [(f.prop.name, f.violation.says) for f in report.findings]
    assert any("key_padding_mask" in f.violation.says for f in searched(Forgets).findings)
    assert any("hidden" in f.violation.says for f in searched(Hides).findings)  # it is used, whatever is documented, and wrong


def test_what_documentation_says_of_no_use() -> None:
    text = """
    Args:
        x: what is used
        position_bias: Unused, only for interface compatibility.
        head_mask (Tensor, optional): currently not supported,
            and kept for later
        mask: True = not used by a row
        :param other: has no effect
    """
    assert unused(text) == {"position_bias", "head_mask", "other", "mask"}  # of a mask, whether it does nothing is then asked
    assert not unused("")


class Packed(nn.Module):
    """Heads beside each other in one array, as many as it was made with."""

    def __init__(self, n_heads: int) -> None:
        super().__init__()
        self.n_heads = n_heads

    def forward(self, qkv: Tensor) -> Tensor:
        batch, _, length = qkv.shape
        q, k, v = (x.reshape(batch * self.n_heads, -1, length) for x in qkv.chunk(3, 1))
        weights = (q.mT @ k / math.sqrt(q.shape[1])).softmax(-1)
        return (v @ weights.mT).reshape(batch, -1, length)


class OfWholeWidth(Packed):
    def forward(self, qkv: Tensor) -> Tensor:
        return super().forward(torch.cat([qkv[:, : qkv.shape[1] // 3] * self.n_heads**-0.5, qkv[:, qkv.shape[1] // 3 :]], 1))


def test_a_module_without_weights_is_told_how_many_heads_there_are() -> None:
    target = make_target("mine", Packed)
    assert target.learned["n_heads"] == "the number of heads"
    assert not verify_target(
        target, [PROPERTIES["output_is_inside_the_bound"], PROPERTIES["heads_are_independent"]], Plan(examples=20)
    ).findings
    wrong = make_target("mine", OfWholeWidth)
    assert verify_target(wrong, [PROPERTIES["output_is_inside_the_bound"]], Plan(examples=20)).findings


class Unscaled(Plain):
    """The fused function is given a scale, and the attention by hand beside it has none."""

    def forward(self, x: Tensor) -> Tensor:
        batch, length, dim = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        out = nn.functional.scaled_dot_product_attention(q, k, v, scale=1.0)
        whole: Tensor = self.out(out.transpose(1, 2).reshape(batch, length, dim))
        return whole


class NotScaled(Plain):
    def forward(self, x: Tensor) -> Tensor:
        batch, length, dim = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        whole: Tensor = self.out(((q @ k.mT).softmax(-1) @ v).transpose(1, 2).reshape(batch, length, dim))
        return whole


def test_a_scale_that_is_written_is_meant() -> None:
    assert made(Unscaled).differs == {"scale": "1 (scale=1.0), not 1/sqrt(head_dim)"}
    assert not searched(Unscaled).findings
    assert any("logits are scaled by 1" in finding.violation.says for finding in searched(NotScaled).findings)
