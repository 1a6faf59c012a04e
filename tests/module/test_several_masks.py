"""A module with several masks: each is found out by itself, each is put to the properties of masks, and what is never given is told."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from nightly import more_by_night
from torch import Tensor, nn
from torch.nn import functional as F

from properties.catalogue import PROPERTIES, select
from properties.engine.core.target import Target
from properties.engine.search.floor import too_little
from properties.engine.search.probe import make_target
from properties.engine.search.run import verify_target
from properties.engine.search.search import Plan, search


class Attention(nn.Module):
    """Queries, keys and values of four heads."""

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.heads = num_heads
        self.q, self.k, self.v, self.proj = (nn.Linear(dim, dim) for _ in range(4))

    def split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(-3, -2)

    def attend(self, x: Tensor, memory: Tensor, seen: Tensor | None = None) -> Tensor:
        q, k, v = self.split(self.q(x)), self.split(self.k(memory)), self.split(self.v(memory))
        return self.proj(F.scaled_dot_product_attention(q, k, v, seen).transpose(-3, -2).flatten(-2))


class TwoMasks(Attention):
    """One mask for each pair of tokens, and one of padding."""

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, key_padding_mask: Tensor | None = None) -> Tensor:
        seen = torch.ones(len(x), 1, x.shape[1], x.shape[1], dtype=torch.bool, device=x.device)
        if attn_mask is not None:
            seen = seen & attn_mask
        if key_padding_mask is not None:
            seen = seen & self.padding(key_padding_mask)
        return self.attend(x, x, seen)

    def padding(self, hidden: Tensor) -> Tensor:
        return ~hidden[:, None, None]


class PaddingOnQueries(TwoMasks):
    def padding(self, hidden: Tensor) -> Tensor:
        return ~hidden[:, None, :, None]


class EitherWillDo(TwoMasks):
    """Of two masks both have to hide a token."""

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, key_padding_mask: Tensor | None = None) -> Tensor:
        if attn_mask is None or key_padding_mask is None:
            return super().forward(x, attn_mask, key_padding_mask)
        return self.attend(x, x, attn_mask | self.padding(key_padding_mask))


class OneAtATime(TwoMasks):
    def forward(self, x: Tensor, attn_mask: Tensor | None = None, key_padding_mask: Tensor | None = None) -> Tensor:
        if attn_mask is not None and key_padding_mask is not None:
            raise ValueError("give one of the masks")
        return super().forward(x, attn_mask, key_padding_mask)


class EitherForm(Attention):
    """A mask of padding, or one for each pair of tokens."""

    def forward(self, x: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        seen = None if attention_mask is None else self.seen(attention_mask > 0)
        return self.attend(x, x, seen)

    def seen(self, mask: Tensor) -> Tensor:
        return mask[:, None] if mask.ndim == 3 else mask[:, None, None]


class PaddingOfQueriesInOneForm(EitherForm):
    def seen(self, mask: Tensor) -> Tensor:
        return mask[:, None] if mask.ndim == 3 else mask[:, None, :, None]


class PaddingInverted(TwoMasks):
    def padding(self, hidden: Tensor) -> Tensor:
        return hidden[:, None, None]


class PaddingForgotten(TwoMasks):
    def padding(self, hidden: Tensor) -> Tensor:
        return torch.ones_like(hidden[:, None, None])


class Decoder(nn.Module):
    """Tokens see themselves, then a memory; a mask for each."""

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.own, self.cross = Attention(dim, num_heads), Attention(dim, num_heads)

    def forward(self, x: Tensor, memory: Tensor, src_mask: Tensor | None = None, tgt_mask: Tensor | None = None) -> Tensor:
        src, tgt = (None if mask is None else mask[:, None] for mask in (src_mask, tgt_mask))
        x = x + self.own.attend(x, x, tgt)
        return x + self.cross.attend(x, memory, src)


class MasksSwapped(Decoder):
    def forward(self, x: Tensor, memory: Tensor, src_mask: Tensor | None = None, tgt_mask: Tensor | None = None) -> Tensor:
        return super().forward(x, memory, tgt_mask, src_mask)


class SecondMaskLeaks(Decoder):
    def forward(self, x: Tensor, memory: Tensor, src_mask: Tensor | None = None, tgt_mask: Tensor | None = None) -> Tensor:
        if tgt_mask is not None:
            tgt_mask = torch.where(tgt_mask, 0.0, -2.0).to(x.dtype)
        return super().forward(x, memory, src_mask, tgt_mask)


class LengthFirst(Attention):
    """Tokens are (length, batch, features), and nothing but what it does says so."""

    def forward(self, x: Tensor, alpha: Tensor | None = None) -> Tensor:
        own = x.transpose(0, 1)
        out = self.attend(own, own).transpose(0, 1)
        return out if alpha is None else out * alpha


class LengthFirstBatchMixed(LengthFirst):
    def forward(self, x: Tensor, alpha: Tensor | None = None) -> Tensor:
        return super().forward(x) + 1e-3 * x.mean(1, keepdim=True)


def target_of(thing: Any) -> Target:
    target = make_target("mine", thing)
    return target.kind.handshake(target, "cpu")


def refuted(thing: Any, name: str) -> bool:
    return search(target_of(thing), PROPERTIES[name], Plan(examples=40, shrink=False)).status == "refuted"


RIGHT = (TwoMasks, Decoder, LengthFirst, OneAtATime, EitherForm)
WRONG = {
    EitherWillDo: "module_hidden_tokens_are_ignored",
    PaddingOfQueriesInOneForm: "module_hidden_tokens_are_ignored",
    PaddingOnQueries: "module_hidden_tokens_are_ignored",
    PaddingInverted: "module_hidden_tokens_are_ignored",
    PaddingForgotten: "module_padding_is_as_good_as_removed",
    MasksSwapped: "module_padding_is_as_good_as_removed",
    SecondMaskLeaks: "module_hidden_tokens_are_ignored",
    LengthFirstBatchMixed: "module_batch_elements_are_independent",
}
TOLD = {
    TwoMasks: {"key_padding_mask": "(batch, length), True = hidden", "attn_mask": "(batch, 1, length, length), True = seen"},
    Decoder: {
        "src_mask": "(batch, length, length), True = seen",
        "tgt_mask": "(batch, length, length), True = seen; of its own tokens",
    },
    PaddingForgotten: {"key_padding_mask": "does nothing, in whatever form it is given"},
    MasksSwapped: {
        "src_mask": "(batch, length, length), True = seen; not taken so",
        "tgt_mask": "(batch, length, length), True = seen; of its own tokens; not taken so",
    },
}


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize("thing", RIGHT)
def test_a_right_one_is_let_go(thing: Any) -> None:
    report = verify_target(target_of(thing), select(), Plan(examples=more_by_night(4, 12), shrink=False, strict=False))
    assert not [finding.prop.name for finding in report.findings]


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize("thing", WRONG)
def test_a_mistake_in_one_mask_is_refuted(thing: Any) -> None:
    assert refuted(thing, WRONG[thing])


@pytest.mark.parametrize("thing", TOLD)
def test_each_mask_is_told(thing: Any) -> None:
    learned = target_of(thing).learned
    assert {name: learned[name] for name in TOLD[thing]} == TOLD[thing]


def test_the_finding_says_which_mask_it_is() -> None:
    outcome = search(target_of(PaddingForgotten), PROPERTIES["module_padding_is_as_good_as_removed"], Plan(examples=40, shrink=False))
    assert outcome.finding is not None and "(key_padding_mask)" in str(outcome.finding)


def test_a_mask_that_hides_where_it_is_true_is_told_among_what_differs() -> None:
    class Hides(TwoMasks):
        def forward(self, x: Tensor, attn_mask: Tensor | None = None) -> Tensor:  # type: ignore[override]
            return super().forward(x, None if attn_mask is None else ~attn_mask)

    assert "True = hidden, as in nn.MultiheadAttention" in target_of(Hides).differs["attn_mask"]
    assert "attn_mask" not in target_of(TwoMasks).differs


def test_an_argument_that_is_never_given_is_told() -> None:
    assert target_of(LengthFirst).untried == {"alpha": "optional, and never given"}


class Refuses(Attention):
    """It has a parameter for masks, and raises where one is given."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        if mask is not None:
            raise NotImplementedError("no masks yet")
        return self.attend(x, x)


class Flattens(Attention):
    """Its output has one axis where a mask is given, which no property looks at."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.attend(x, x) if mask is None else self.attend(x, x).flatten()


def test_a_mask_that_is_never_taken_is_told_and_one_that_changes_the_form_of_the_output_leaves_too_much_untried() -> None:
    assert target_of(Refuses).untried == {"mask": "it raises for every form of a mask that is known"} and not too_little(target_of(Refuses))
    assert target_of(Flattens).untried == {"mask": "with it the output has another form"}
    assert too_little(target_of(Flattens)).startswith("with mask its output has another form")


class OfWhatIsNotGiven(Attention):
    """``mem_mask`` is of ``mem``, without which it does nothing, as in x-transformers; a bias that is a bool array goes with no other mask."""

    def forward(
        self,
        x: Tensor,
        attn_mask: Tensor | None = None,
        attn_bias: Tensor | None = None,
        mem: Tensor | None = None,
        mem_mask: Tensor | None = None,
    ) -> Tensor:
        if mem is not None:
            raise ValueError("nobody knows what it is like")
        if attn_bias is not None and attn_mask is not None:
            attn_bias = attn_bias.masked_fill(~attn_mask, -torch.inf)
        return self.attend(x, x, attn_mask if attn_bias is None else attn_bias)


def test_a_mask_of_what_is_never_given_is_none_and_a_bias_is_added() -> None:
    target = target_of(OfWhatIsNotGiven)
    assert target.learned["attn_bias"].endswith("added") and "mem_mask" not in target.learned and {"mem", "mem_mask"} <= set(target.untried)
    report = verify_target(target, select(("module_hidden_tokens_are_ignored", "module_padding_is_as_good_as_removed")), Plan(examples=12))
    assert report.ok and not report.findings


class KeptByShape(Attention):
    """The first mask of a shape is kept for all that come after: seen where another one comes in between."""

    keeps = True

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__(dim, num_heads)
        self.kept: Tensor | None = None

    def forward(self, x: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        if key_padding_mask is None:
            return self.attend(x, x)
        seen = ~key_padding_mask[:, None, None]
        self.kept = seen if self.kept is None or self.kept.shape != seen.shape or not self.keeps else self.kept
        return self.attend(x, x, self.kept)


class KeptForNothing(KeptByShape):
    keeps = False


class KeptAsAView(Attention):
    """What is kept shares the memory of the mask (1 = seen)."""

    keeps = True

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__(dim, num_heads)
        self.kept: Tensor | None = None

    def forward(self, x: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        if attention_mask is None:
            return self.attend(x, x)
        if self.kept is None or self.kept.shape[::3] != attention_mask.shape:
            self.kept = attention_mask[:, None, None]
        return self.attend(x, x, self.kept == 1)


@pytest.mark.parametrize("thing", [KeptByShape, KeptAsAView, KeptForNothing])
def test_a_mask_that_is_kept_by_its_shape_is_refuted(thing: Any) -> None:
    outcome = search(target_of(thing), PROPERTIES["module_nothing_is_remembered"], Plan(examples=60, shrink=False))
    assert (outcome.finding is not None) == thing.keeps, outcome.finding
