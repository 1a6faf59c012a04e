"""A mistake that nobody makes on purpose is found in the composition: the attention of the projections with it, bit by bit. Images, too."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from composed_styles import Composed
from torch import Tensor, nn

from impls.mutants.registry import load_all
from properties import verify
from properties.engine.search.probe import make_target

PROPERTY = "module_is_the_attention_of_its_projections"


def structure(cls: type[nn.Module]) -> Any:
    return make_target("mine", cls).function.structure  # type: ignore[attr-defined]


class OverHeads(Composed):
    def weigh(self, logits: Tensor) -> Tensor:
        return logits.softmax(1)


class OverHeadsInTalkingHeads(OverHeads):
    pass


class Transposed(Composed):
    def weigh(self, logits: Tensor) -> Tensor:
        return logits.softmax(-1).mT


class QueriesMeetQueries(Composed):
    def normed(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return q, q, v


class FusedQueriesMeetQueries(nn.Module):
    """The part of one projection that is for keys is not used; every parameter has a gradient all the same."""

    def __init__(self, dim: int, heads: int = 4) -> None:
        super().__init__()
        self.heads, self.norm = heads, nn.LayerNorm(dim)
        self.to_qkv, self.to_out = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        q, _, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.to_qkv(self.norm(x)).chunk(3, -1))
        out: Tensor = self.to_out(((q @ q.mT * q.shape[-1] ** -0.5).softmax(-1) @ v).transpose(1, 2).flatten(2))
        return out


class ValuesOfKeys(Composed):
    def normed(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return q, k, k


class SharedQueriesAndKeys(QueriesMeetQueries):
    pass


class SlotAttention(Composed):
    def weigh(self, logits: Tensor) -> Tensor:
        return logits.softmax(-2)


class Mixed(Composed):
    """Heads are mixed with tokens where a flag says so, as in Informer."""

    mix = False

    def forward(self, x: Tensor) -> Any:
        q, k, v = (self.split(part) for part in (self.q_proj(x), self.k_proj(x), self.v_proj(x)))
        return self.o_proj((self.weigh(self.logits(q, k)) @ v).reshape(x.shape))


class MixedOnPurpose(Mixed):
    def made(self, width: int) -> None:
        self.mix = True


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize(
    ("cls", "words"),
    [
        (OverHeads, "a softmax over heads"),
        (Transposed, "the transposed weights on values"),
        (Mixed, "heads merged by a reshape, without a transpose"),
        (load_all()[0]["module_heads.SplitByView"].function, "heads split by a reshape, without a transpose"),
        (load_all()[0]["module_heads.OverQueries"].function, "a softmax over queries"),
        (QueriesMeetQueries, "keys projected as queries"),
        (FusedQueriesMeetQueries, "keys projected as queries"),
        (ValuesOfKeys, "values projected as keys"),
    ],
)
def test_it_is_refuted_and_named(cls: Any, words: str) -> None:
    assert structure(cls).mistakes == (f"it answers as with {words}",)
    (finding,) = verify(cls, properties=(PROPERTY,), cases=8).findings
    assert finding.violation.says.endswith(f"is not the attention of the projections: it answers as with {words}")


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize("cls", [SlotAttention, MixedOnPurpose, OverHeadsInTalkingHeads, SharedQueriesAndKeys])
def test_where_a_name_or_a_flag_says_so_nothing_is_claimed(cls: type[nn.Module]) -> None:
    assert structure(cls) is None


class AttnBlock(nn.Module):
    """As in diffusion models: group norm, convolutions of one pixel, a residual."""

    scale, value = -0.5, staticmethod(lambda w, v: torch.einsum("bij,bcj->bci", w, v))

    def __init__(self, in_channels: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(8, in_channels, eps=1e-6)
        self.q, self.k, self.v, self.proj_out = (nn.Conv2d(in_channels, in_channels, 1) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part(self.norm(x)).flatten(2) for part in (self.q, self.k, self.v))
        weights = (torch.einsum("bci,bcj->bij", q, k) * x.shape[1] ** self.scale).softmax(-1)
        return x + self.proj_out(self.value(weights, v).unflatten(2, x.shape[2:]))


class NotTransposed(AttnBlock):
    value = staticmethod(lambda w, v: torch.bmm(v, w))


class ScaledTwice(AttnBlock):
    scale = -1


class NonLocal(AttnBlock):
    scale = 0


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize(
    ("cls", "mistakes"),
    [
        (AttnBlock, ()),
        (NotTransposed, ("it answers as with the transposed weights on values",)),
        (ScaledTwice, ("logits are scaled by 1/head_dim, expected 1/sqrt(head_dim)",)),
        (NonLocal, ()),
    ],
)
def test_attention_over_an_image_is_recognised(cls: type[nn.Module], mistakes: tuple[str, ...]) -> None:
    found = structure(cls)
    assert found.mistakes == mistakes and "norm of the input (norm); a residual" in found.words
    assert verify(cls, properties=(PROPERTY,), cases=8).ok == (not mistakes)


def test_over_images_no_scale_is_a_convention() -> None:
    assert make_target("mine", NonLocal).differs == {"scale": "1 (as in non-local blocks and in SAGAN), not 1/sqrt(head_dim)"}


class PartlyTurned(Composed):
    """Two features of eight turn: which is a pair of neighbours, and of halves."""

    of = "d"

    def made(self, width: int) -> None:
        self.rotary_ndims = self.d // 4
        self.norm_factor = {"d": self.d, "turned": self.rotary_ndims}[self.of] ** 0.5
        angles = torch.outer(torch.arange(64.0), 10000.0 ** (-torch.arange(0, self.rotary_ndims, 2) / self.rotary_ndims))
        self.register_buffer("cos_cached", angles.repeat(1, 2).cos(), persistent=False)
        self.register_buffer("sin_cached", angles.repeat(1, 2).sin(), persistent=False)

    def by(self) -> Any:
        return 1 / self.norm_factor

    def positioned(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return self.turned(q), self.turned(k)

    def turned(self, x: Tensor) -> Tensor:
        n = self.rotary_ndims
        (first, second), rest = x[..., :n].chunk(2, -1), x[..., n:]
        cos, sin = self.cos_cached[: x.shape[2]].to(x), self.sin_cached[: x.shape[2]].to(x)
        return torch.cat((x[..., :n] * cos + torch.cat((-second, first), -1) * sin, rest), -1)


class ScaledByWhatTurns(PartlyTurned):
    of = "turned"


def test_of_one_pair_it_does_not_matter_how_it_is_called() -> None:
    assert structure(PartlyTurned).words.endswith("of 2 features turned, angles of cos_cached; scale 1/sqrt(head_dim)")
    assert structure(ScaledByWhatTurns).mistakes == ("logits are scaled by 0.707, expected 1/sqrt(head_dim)",)
