"""Lengths of sequences, and masks of padding, without which there is no call: given whole where nothing is hidden, found out by their effect."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from nightly import one_in
from torch import Tensor, nn
from torch.nn import functional as F

from properties import verify
from properties.engine.search.probe import make_target


class Attention(nn.Module):
    def __init__(self, dim: int = 32, num_heads: int = 4) -> None:
        super().__init__()
        self.heads, (self.q, self.k, self.v, self.o) = num_heads, (nn.Linear(dim, dim) for _ in range(4))

    def attend(self, x: Tensor, memory: Tensor, seen: Tensor) -> Tensor:
        q, k, v = (part(y).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part, y in ((self.q, x), (self.k, memory), (self.v, memory)))
        logits = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~seen, -torch.inf)
        return self.o((logits.softmax(-1).nan_to_num() @ v).transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


def within(count: int, lens: Tensor) -> Tensor:
    """(B, count): the tokens that are none of padding."""
    return torch.arange(count, device=lens.device) < lens[:, None]


class OfFrames(Attention):
    """What stands behind the end of a sequence is 0."""

    more = 0

    def forward(self, xs: Tensor, xs_lens: Tensor) -> tuple[Tensor, Tensor]:
        real = within(xs.shape[1], xs_lens)
        seen = within(xs.shape[1], xs_lens + self.more)[:, None, None]
        return self.attend(xs, xs, seen) * real[..., None], real


class OneTooMany(OfFrames):
    more = 1


class Optional(Attention):
    more = 0

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        lens = torch.full((len(x),), x.shape[1]) if lengths is None else lengths + self.more
        return self.attend(x, x, within(x.shape[1], lens)[:, None, None])


class OptionalOneTooMany(Optional):
    more = 1


class OfTheMemory(Attention):
    """With the lengths of both: those of the rows themselves hide nothing."""

    def forward(self, x: Tensor, memory: Tensor, x_lens: Tensor, memory_lens: Tensor) -> Tensor:
        seen = self.seen(memory.shape[1], x_lens, memory_lens)
        return self.attend(x, memory, seen[:, None, None]) * within(x.shape[1], x_lens)[..., None]

    def seen(self, count: int, x_lens: Tensor, memory_lens: Tensor) -> Tensor:
        return within(count, memory_lens)


class OfTheWrongOnes(OfTheMemory):
    def seen(self, count: int, x_lens: Tensor, memory_lens: Tensor) -> Tensor:
        return within(count, x_lens)


class LengthFirst(Attention):
    """Tokens are (length, batch, features); scores are weighed by their place in the sequence without its padding."""

    whole = False

    def forward(self, hidden: Tensor, encoder_outputs: Tensor, src_lengths: Tensor) -> Tensor:
        x, memory = hidden.transpose(0, 1), encoder_outputs.transpose(0, 1)
        seen = within(memory.shape[1], src_lengths)
        ends = torch.full_like(src_lengths, memory.shape[1]) if self.whole else src_lengths
        near = torch.arange(1, memory.shape[1] + 1) / ends[:, None]
        memory = memory * torch.where(seen, near.to(x.dtype), 0.0)[..., None]
        return self.attend(x, memory, seen[:, None, None]).transpose(0, 1)


class PlacesInThePadding(LengthFirst):
    whole = True


class PaddedToTheLongest(OfFrames):
    """The longest sequence of a batch fills it."""

    def forward(self, xs: Tensor, xs_lens: Tensor) -> tuple[Tensor, Tensor]:
        seen = within(int(xs_lens.max()), xs_lens + self.more)
        return self.attend(xs, xs, seen[:, None, None]), seen


class LongestOneTooMany(PaddedToTheLongest):
    more = 1


class InChunks(Attention):
    """A frame sees its own chunk, and all before it."""

    def __init__(self, dim: int = 32, num_heads: int = 4, chunk_size: int = 4) -> None:
        super().__init__(dim, num_heads)
        self.chunk_size = chunk_size

    def forward(self, x: Tensor, x_lens: Tensor) -> Tensor:
        at = torch.arange(x.shape[1]) // self.chunk_size
        return self.attend(x, x, (at[:, None] >= at) & self.real(x.shape[1], x_lens)[:, None, None])

    def real(self, count: int, lens: Tensor) -> Tensor:
        return within(count, lens)


class InChunksOneTooMany(InChunks):
    def real(self, count: int, lens: Tensor) -> Tensor:
        return within(count, lens + 1)


class Decoder(nn.Module):
    """Of two masks of padding neither can be left out."""

    def __init__(self, dim: int = 32, num_heads: int = 4) -> None:
        super().__init__()
        self.own, self.cross = Attention(dim, num_heads), Attention(dim, num_heads)

    def forward(self, tgt: Tensor, memory: Tensor, tgt_pad: Tensor, memory_pad: Tensor) -> Tensor:
        later = torch.ones(tgt.shape[1], tgt.shape[1], dtype=torch.bool).triu(1)
        x = tgt + self.own.attend(tgt, tgt, ~self.hidden(later, tgt_pad[:, None, None]))
        return x + self.cross.attend(x, memory, ~memory_pad[:, None, None])

    def hidden(self, later: Tensor, padding: Tensor) -> Tensor:
        return later | padding


class OnlyWhereBothSaySo(Decoder):
    def hidden(self, later: Tensor, padding: Tensor) -> Tensor:
        return later & padding


class LatentsBehind(nn.Module):
    """Learned queries, which are among the keys, too; ``media_mask`` is of the tokens alone."""

    first, last = 0, 1

    def __init__(self, dim: int = 32, num_latents: int = 3) -> None:
        super().__init__()
        self.latents, self.kv = nn.Parameter(torch.randn(num_latents, dim)), nn.Linear(dim, 2 * dim)

    def forward(self, media: Tensor, media_mask: Tensor | None = None) -> Tensor:
        latents = self.latents.expand(len(media), -1, -1)
        k, v = self.kv(torch.cat((media, latents), 1)).chunk(2, -1)
        count = latents.shape[1]
        seen = None if media_mask is None else F.pad(media_mask, (self.first * count, self.last * count), value=True)[:, None]
        return F.scaled_dot_product_attention(latents, k, v, seen)


class PaddedInFront(LatentsBehind):
    first, last = 1, 0


TOLD = {
    OfFrames: {"xs_lens": "(batch,), the number of seen tokens"},
    Optional: {"lengths": "(batch,), the number of seen tokens"},
    OfTheMemory: {"memory_lens": "(batch,), the number of seen tokens"},
    LengthFirst: {"src_lengths": "(batch,), the number of seen tokens", "causal": "no: it sees a memory"},
    PaddedToTheLongest: {"xs_lens": "(batch,), the number of seen tokens; of the longest sequence all"},
    InChunks: {"causal": "no", "window": "some tokens never see each other"},
    Decoder: {
        "memory": "tokens see each other, too",
        "tgt_pad": "(batch, length), True = hidden; of its own tokens",
        "memory_pad": "(batch, length), True = hidden",
    },
    LatentsBehind: {"media_mask": "(batch, length), True = seen"},
}
WRONG = {
    OneTooMany: "module_hidden_tokens_are_ignored",
    OptionalOneTooMany: "module_hidden_tokens_are_ignored",
    OfTheWrongOnes: "module_hidden_tokens_are_ignored",
    PlacesInThePadding: "module_padding_is_as_good_as_removed",
    LongestOneTooMany: "module_hidden_tokens_are_ignored",
    InChunksOneTooMany: "module_hidden_tokens_are_ignored",
    OnlyWhereBothSaySo: "module_hidden_tokens_are_ignored",
    PaddedInFront: "module_hidden_tokens_are_ignored",
}


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize("cls", one_in(3, TOLD))
def test_it_is_understood_and_let_go(cls: Any) -> None:
    learned = make_target("mine", cls).learned
    assert {name: learned.get(name) for name in TOLD[cls]} == TOLD[cls]
    verdict = verify(cls, cases=6, properties=("tokens", "padding"))
    assert verdict.ok and verdict.report.cases >= 30, verdict


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize("cls", one_in(2, WRONG))
def test_a_wrong_one_is_refuted(cls: Any) -> None:
    (finding,) = verify(cls, cases=240, properties=(WRONG[cls],)).findings
    assert finding.prop.name == WRONG[cls]


def test_what_is_said_of_rows_of_a_memory_is_no_mask() -> None:
    assert "x_lens" not in make_target("mine", OfTheMemory).learned


@pytest.mark.nightly
def test_what_a_mask_hides_from_one_row_it_hides_from_all() -> None:
    (finding,) = verify(OnlyWhereBothSaySo, cases=240, properties=("module_hidden_tokens_are_ignored",)).findings
    assert "which is hidden from another row (tgt_pad)" in finding.violation.says
