"""What a name or a documentation promises is held against what is done; a name that promises nothing of the kind is not."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn

from properties import verify, verify_pair
from properties.engine.core.target import Target
from properties.engine.search.probe import make_target
from properties.module.cases import Case
from properties.module.trial import ModuleTrial


class Reads(nn.Module):
    """Tokens read those of a context, or their own where there is none."""

    def __init__(self, dim: int = 32, num_heads: int = 4) -> None:
        super().__init__()
        self.heads = num_heads
        self.to_q, self.to_kv, self.out = nn.Linear(dim, dim), nn.Linear(dim, 2 * dim), nn.Linear(dim, dim)

    def attend(self, x: Any, memory: Any, bias: Any = 0.0) -> Any:
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in (self.to_q(x), *self.to_kv(memory).chunk(2, -1)))
        return self.out(((q @ k.mT * q.shape[-1] ** -0.5 + bias).softmax(-1) @ v).transpose(1, 2).flatten(2))

    def forward(self, x: Any, context: Any = None) -> Any:
        return self.attend(x, x if context is None else context)


class ReadsItself(Reads):
    def forward(self, x: Any, context: Any = None) -> Any:
        return self.attend(x, x)


class ReadsNone(ReadsItself):
    """Made without what would read a context."""

    def __init__(self, dim: int = 32, num_heads: int = 4) -> None:
        super().__init__(dim, num_heads)
        self.cross_attention = None


class Interface(ReadsItself):
    def forward(self, x: Any, context: Any = None) -> Any:
        """Args:
        x: (batch, length, features)
        context: not used, for compatibility alone
        """
        return self.attend(x, x)


def spoken(cls: Any) -> Target:
    return make_target("mine", cls)


def test_a_memory_that_changes_nothing_is_wrong() -> None:
    assert spoken(ReadsItself).wrong == {"context": "it is given, and changes nothing"} and not verify(ReadsItself, cases=2).ok
    assert "context" not in spoken(ReadsItself).untried
    for right in (Reads, ReadsNone, Interface):
        assert not spoken(right).wrong, right
    assert spoken(ReadsNone).untried["context"] == "optional, and never given"
    assert spoken(Interface).untried["context"] == "documented as not used"


@pytest.mark.parametrize(
    ("one", "other", "same"), [(Reads, ReadsItself, False), (ReadsItself, Reads, False), (ReadsItself, ReadsItself, True)]
)
def test_a_pair_parts_where_one_heeds_no_memory(one: Any, other: Any, same: bool) -> None:
    verdict = verify_pair(one, other, cases=2)
    assert verdict.ok == same and ("context" in verdict.report.target.wrong) != same


class Added(Reads):
    def forward(self, x: Any, mask: Any = None) -> Any:
        """Args:
        x: (batch, length, features)
        mask: (batch, length), 1 for tokens and 0 for padding
        """
        return self.attend(x, x, 0.0 if mask is None else mask[:, None, None, :].to(x.dtype))


class Hides(Reads):
    def forward(self, x: Any, mask: Any = None) -> Any:
        """Args:
        x: (batch, length, features)
        mask: (batch, length), 1 for tokens and 0 for padding
        """
        return self.attend(x, x, 0.0 if mask is None else torch.where(mask.bool(), 0.0, -torch.inf).to(x.dtype)[:, None, None, :])


def test_ones_and_zeros_that_are_added_are_no_padding() -> None:
    assert spoken(Added).wrong == {"mask": "its documentation says that True, or 1, is seen; it is added"}
    assert not spoken(Hides).wrong


class MaskedAutoencoderAttention(Reads):
    def forward(self, x: Any) -> Any:
        return self.attend(x, x)


class GPTCrossAttention(Reads):
    def forward(self, x: Any, image_tokens: Any) -> Any:
        return self.attend(x, image_tokens)


class MaskedPatches(MaskedAutoencoderAttention):
    """Every visible patch sees every other: bidirectional."""


class CausalTokens(MaskedAutoencoderAttention):
    """Tokens that ought not to see later ones."""


class CausalCrossAutoencoder(MaskedAutoencoderAttention):
    """Not bidirectional, whatever else its name says."""


@pytest.mark.nightly
def test_a_name_that_holds_such_a_word_for_another_reason_promises_no_causality() -> None:
    for right in (MaskedAutoencoderAttention, GPTCrossAttention, MaskedPatches):
        assert verify(right, properties=("tokens",), cases=3).ok, right
    for wrong in (CausalTokens, CausalCrossAutoencoder):
        assert "module_future_tokens_are_ignored" in {f.prop.name for f in verify(wrong, properties=("tokens",), cases=3).findings}


class Quiet(Reads):
    """Attention whose weights are exp(x_i) / (1 + sum exp(x_j)), a quiet softmax, so that a head may say nothing."""

    more = 1.0

    def attend(self, x: Any, memory: Any, bias: Any = 0.0) -> Any:
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in (self.to_q(x), *self.to_kv(memory).chunk(2, -1)))
        logits = q @ k.mT * q.shape[-1] ** -0.5
        high = logits.amax(-1, keepdim=True).clamp(min=0)
        weights = (logits - high).exp()
        weights = weights / (weights.sum(-1, keepdim=True) + self.more * (-high).exp())
        return self.out((weights @ v).transpose(1, 2).flatten(2))


class NotSaid(Quiet):
    """Attention with a softmax."""


class QuieterThanSaid(Quiet):
    """Attention with softmax1."""

    more = 1.1


@pytest.mark.nightly
def test_one_more_in_the_denominator_is_right_where_it_is_said() -> None:
    assert spoken(Quiet).function.structure.sinks == "one more in the denominator"  # type: ignore[attr-defined]
    assert verify(Quiet, cases=3).ok
    assert spoken(QuieterThanSaid).function.structure is None  # type: ignore[attr-defined]
    assert not verify(NotSaid, cases=6).ok


class InHalf(Reads):
    """Queries, keys and values are rounded to bfloat16 for the kernel."""

    scale = 1.0

    def attend(self, x: Any, memory: Any, bias: Any = 0.0) -> Any:
        drawn = (self.to_q(x), *self.to_kv(memory).chunk(2, -1))
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2).to(torch.bfloat16) for y in drawn)
        out = nn.functional.scaled_dot_product_attention(q, k, v, scale=self.scale * q.shape[-1] ** -0.5)
        return self.out(out.to(x.dtype).transpose(1, 2).flatten(2))


class InHalfUnsaid(InHalf):
    """Attention."""


class InHalfOfMemory(InHalf):
    """Keys and values are stored in float16."""

    def attend(self, x: Any, memory: Any, bias: Any = 0.0) -> Any:
        kept = torch.empty(*memory.shape[:2], 2 * memory.shape[2], dtype=torch.float16)
        kept[...] = self.to_kv(memory)
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in (self.to_q(x), *kept.to(x.dtype).chunk(2, -1)))
        return self.out(nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class SaidAndNotDone(Reads):
    """Computes in bfloat16."""


class InHalfByAnotherScale(InHalf):
    """Computes in bfloat16."""

    scale = 2**-0.5


@pytest.mark.nightly
def test_a_cast_to_a_narrower_type_is_right_where_it_is_said() -> None:
    assert verify(InHalfOfMemory, properties=("twin",), cases=20).ok and not spoken(SaidAndNotDone).function.said_narrow  # type: ignore[attr-defined]
    assert verify(InHalf, cases=4).ok and spoken(InHalf).function.structure is not None  # type: ignore[attr-defined]
    says = [f.violation.says for f in verify(InHalfUnsaid, cases=4).findings if "twin" in f.prop.name]
    assert len(says) == 1 and "a cast to a narrower type in between does" in says[0]
    assert not verify(InHalfByAnotherScale, cases=4).ok


@pytest.mark.parametrize("cls", [InHalf, InHalfOfMemory])
def test_a_cast_is_a_rounding_of_its_type(cls: Any) -> None:
    """Also where numbers are written into an array of a narrower type: float32 alone would allow some thousand times less."""
    case = Case(batch=2, length=5, dtype="float32", seed=1)
    allowed = {kind: ModuleTrial(spoken(kind), case).allowed().max() for kind in (Reads, cls)}
    assert allowed[cls] > 500 * allowed[Reads]


class LowestInFloat32(Reads):
    """x-transformers: what is hidden is the lowest number of the type, and the softmax of float32."""

    def attend(self, x: Any, memory: Any, bias: Any = 0.0) -> Any:
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in (self.to_q(x), *self.to_kv(memory).chunk(2, -1)))
        logits = q @ k.mT * q.shape[-1] ** -0.5
        if memory is x:
            later = torch.ones(logits.shape[-2:], dtype=torch.bool).triu(1)
            logits = logits.masked_fill(later, -torch.finfo(logits.dtype).max)
        weights = logits.softmax(-1, dtype=torch.float32).to(v.dtype)
        return self.out((weights @ v).transpose(1, 2).flatten(2))


def test_what_becomes_infinite_in_a_narrower_type_is_rounded_by_nothing() -> None:
    assert verify(LowestInFloat32, cases=4).ok
