"""The scale of logits: of modules whose structure is not confirmed it is read off their operations; of others, by compositions."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn

from properties.engine.core.target import Target
from properties.engine.search.find_target import OWN, Builtins, containing, find_targets
from properties.engine.search.probe import make_target


def spoken(cls: type[nn.Module]) -> Target:
    return make_target("mine", cls)


class Gated(nn.Module):
    """Heads are gated by what is projected of the input: no composition that is known."""

    def __init__(self, d_model: int = 32, num_heads: int = 4) -> None:
        super().__init__()
        self.num_heads, d = num_heads, d_model // num_heads
        self.to_q, self.to_k, self.to_v, self.to_gate, self.to_out = (nn.Linear(d_model, d_model) for _ in range(5))
        self.made(d)

    def made(self, d: int) -> None:
        self.times = d**-0.5

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.mT * self.times

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (f(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for f in (self.to_q, self.to_k, self.to_v))
        gate = self.to_gate(x).sigmoid()
        return self.to_out((self.logits(q, k).softmax(-1) @ v).transpose(1, 2).flatten(2) * gate)


class NotScaled(Gated):
    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.mT


class ScaledTwice(Gated):
    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        return torch.einsum("b h i d, b h j d -> b h i j", q * self.times, k) * self.times


class ScaledAnyhow(Gated):
    """By a number that nobody says, beside a bias of distances and what is subtracted from all logits of a row."""

    def made(self, d: int) -> None:
        self.times, self.bias = 0.4 * d**-0.5, nn.Parameter(torch.zeros(self.num_heads, 70, 70))

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        n = q.shape[2]
        logits = q @ k.mT * self.times + self.bias[:, :n, :n]
        return logits - logits.amax(-1, keepdim=True).detach()


class HiddenByTheLowest(NotScaled):
    """Causal, by the lowest number there is, of which no mean is a number."""

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        n = q.shape[2]
        return super().logits(q, k).masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), -torch.finfo(q.dtype).max)


class InFolds(Gated):
    """Right: heads are folded into the batch, and keys and queries scaled by a fourth root each."""

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        q, k = (x.flatten(0, 1) * self.times**0.5 for x in (q, k))
        return torch.baddbmm(torch.zeros(1, dtype=q.dtype), q, k.mT, beta=0).unflatten(0, (-1, self.num_heads))


class Twice(Gated):
    """Right: the same product is computed twice, as where the same tokens come by two arguments."""

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        return super().logits(q, k).maximum(super().logits(q, k))


class Doubled(Gated):
    """Right: another product is a multiple of the first, so that no factor is that of one alone."""

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        return super().logits(q, k).maximum(super().logits(2 * q, k) / 2)


class TwiceNotScaled(NotScaled):
    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        return super().logits(q, k).maximum(super().logits(q, k))


class Learned(Gated):
    """What logits are multiplied by is learned."""

    def made(self, d: int) -> None:
        self.temperature = nn.Parameter(torch.ones(self.num_heads, 1, 1))

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.mT * self.temperature


class Chosen(Gated):
    """A number that was chosen, and has a name that says what it is."""

    def made(self, d: int) -> None:
        self.scale = 0.25

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.mT * self.scale


class Normed(Gated):
    """Of unit length: there is nothing that a scale has to undo."""

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        return nn.functional.normalize(q, dim=-1) @ nn.functional.normalize(k, dim=-1).mT * 10


class Distances(Gated):
    """T5: no scale beside an embedding of distances."""

    def made(self, d: int) -> None:
        self.relative_attention_bias = nn.Embedding(140, self.num_heads)

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        at = torch.arange(q.shape[2])
        return q @ k.mT + self.relative_attention_bias(at[None] - at[:, None] + 70).permute(2, 0, 1)


class OfQueries(Gated):
    """Right: distances are embedded, and meet queries, too."""

    def made(self, d: int) -> None:
        self.times, self.rel_pos_emb = d**-0.5, nn.Embedding(140, d)

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        at = torch.arange(q.shape[2])
        places = self.rel_pos_emb(at[None] - at[:, None] + 70)
        return (q @ k.mT + torch.einsum("bhid,ijd->bhij", q, places)) * self.times


class OfQueriesNotScaled(OfQueries):
    def made(self, d: int) -> None:
        super().made(d)
        self.times = 1.0


class OfFewerKeys(nn.Module):
    """Keys and values are those of sixteen sums of tokens (Linformer: Wang et al. 2020)."""

    width = False

    def __init__(self, dim: int, seq_len: int, heads: int = 4) -> None:
        super().__init__()
        self.heads, self.times = heads, (dim if self.width else dim // heads) ** -0.5
        self.to_q, self.to_kv, self.to_out = nn.Linear(dim, dim), nn.Linear(dim, 2 * dim), nn.Linear(dim, dim)
        self.proj_k, self.proj_v = nn.Parameter(torch.randn(seq_len, 16)), nn.Parameter(torch.randn(seq_len, 16))

    def forward(self, x: Tensor) -> Tensor:
        k, v = self.to_kv(x).chunk(2, -1)
        fewer = (torch.einsum("bnd,nk->bkd", y, of[: x.shape[1]]) for y, of in ((k, self.proj_k), (v, self.proj_v)))
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in (self.to_q(x), *fewer))
        return self.to_out(((q @ k.mT * self.times).softmax(-1) @ v).transpose(1, 2).flatten(2))


class OfFewerKeysByTheWidth(OfFewerKeys):
    width = True


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize("cls", [Gated, Twice, Doubled, InFolds, Learned, Chosen, Normed, Distances, OfQueries, OfFewerKeys])
def test_a_right_scale_or_one_that_is_said_is_nothing(cls: type[nn.Module]) -> None:
    target = spoken(cls)
    assert target.learned["structure"].startswith("not confirmed") and not target.wrong


@pytest.mark.parametrize(
    ("cls", "said"),
    [
        (NotScaled, "1"),
        (HiddenByTheLowest, "1"),
        (ScaledTwice, "1/head_dim"),
        (ScaledAnyhow, "0.141"),
        (OfQueriesNotScaled, "1"),
        (TwiceNotScaled, "1"),
        (OfFewerKeysByTheWidth, "1/sqrt(width)"),
    ],
)
def test_a_wrong_one_is_told(cls: type[nn.Module], said: str, capfd: pytest.CaptureFixture[str]) -> None:
    target = spoken(cls)
    assert not "".join(capfd.readouterr())  # a library of linear algebra writes of numbers that are none
    assert target.learned["structure"].startswith("not confirmed")
    assert target.wrong["scale"].startswith(f"logits are scaled by {said}, expected 1/sqrt(head_dim)")


class Head(nn.Module):
    """One head, as in a lecture that many have followed."""

    def __init__(self, head_size: int, n_embd: int = 64) -> None:
        super().__init__()
        self.key, self.query, self.value = (nn.Linear(n_embd, head_size, bias=False) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        weights = self.query(x) @ self.key(x).mT * self.width(x, self.key(x)) ** -0.5
        return weights.masked_fill(~torch.ones(weights.shape[1:], dtype=torch.bool).tril(), -torch.inf).softmax(-1) @ self.value(x)

    def width(self, x: Tensor, k: Tensor) -> int:
        return k.shape[-1]


class OfTheTokens(Head):
    def width(self, x: Tensor, k: Tensor) -> int:
        return x.shape[-1]


def test_where_sizes_do_not_tell_two_scales_apart_both_are_told() -> None:
    """Of 8 features, and tokens of 64."""
    assert not make_target("mine", Head(8)).function.structure.mistakes
    (mistake,) = make_target("mine", OfTheTokens(8)).function.structure.mistakes
    assert mistake == "logits are scaled by 1/head_dim or 1/sqrt(width), expected 1/sqrt(head_dim)"


class Rotary(nn.Module):
    turned = "qk"

    def __init__(self, d_model: int = 32, num_heads: int = 4) -> None:
        super().__init__()
        self.num_heads, d = num_heads, d_model // num_heads
        self.to_q, self.to_k, self.to_v, self.to_out = (nn.Linear(d_model, d_model) for _ in range(4))
        self.register_buffer("inv_freq", 10000.0 ** (-torch.arange(0, d, 2) / d))

    def turn(self, x: Tensor) -> Tensor:
        angles = (torch.arange(x.shape[2])[:, None] * self.inv_freq).repeat(1, 2)
        one, other = x.chunk(2, -1)
        return x * angles.cos() + torch.cat([-other, one], -1) * angles.sin()

    def forward(self, x: Tensor) -> Tensor:
        parts: dict[str, Any] = {}
        for part, project in zip("qkv", (self.to_q, self.to_k, self.to_v), strict=True):
            y = project(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            parts[part] = self.turn(y) if part in self.turned else y
        return self.to_out(nn.functional.scaled_dot_product_attention(*parts.values()).transpose(1, 2).flatten(2))


class ValuesToo(Rotary):
    turned = "qkv"


def test_values_that_are_turned() -> None:
    assert not spoken(Rotary).function.structure.mistakes
    (mistake,) = spoken(ValuesToo).function.structure.mistakes
    assert mistake == "queries, keys and values are turned by their positions, expected queries and keys"


class Columns(nn.Module):
    """sequences (batch, tokens, channels)"""

    def __init__(self, embed_dim: int = 32, num_heads: int = 4) -> None:
        super().__init__()
        self.norm, self.attn = nn.LayerNorm(embed_dim), nn.MultiheadAttention(embed_dim, num_heads)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        return x + self.attn(y, y, y, need_weights=False)[0]


class OfTokens(Columns):
    """sequences (tokens, batch, channels)"""


def test_the_axes_that_are_documented() -> None:
    assert "first axis" in spoken(Columns).wrong["tokens"] and not spoken(OfTokens).wrong


class Summed(Gated):
    """The same, its weights and values multiplied in any form."""

    along = -1

    def weighed(self, weights: Tensor, v: Tensor) -> Tensor:
        return weights @ v

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (f(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for f in (self.to_q, self.to_k, self.to_v))
        out = self.weighed(self.logits(q, k).softmax(self.along), v)
        return self.to_out(out.transpose(1, 2).flatten(2) * self.to_gate(x).sigmoid())


class ByEquation(Summed):
    def weighed(self, weights: Tensor, v: Tensor) -> Tensor:
        return torch.einsum("b h i j, b h j d -> b h i d", weights, v)


class Turned(Summed):
    """Right: the columns of what was transposed, folded into the batch."""

    def weighed(self, weights: Tensor, v: Tensor) -> Tensor:
        return torch.bmm(v.mT.flatten(0, 1), weights.mT.flatten(0, 1)).mT.unflatten(0, (-1, self.num_heads))


class Mixed(Summed):
    """Right: heads are mixed after the softmax."""

    def made(self, d: int) -> None:
        super().made(d)
        self.mix = nn.Parameter(torch.ones(self.num_heads, self.num_heads))

    def weighed(self, weights: Tensor, v: Tensor) -> Tensor:
        return torch.einsum("bhij,hg->bgij", weights, self.mix) @ v


class NotTurned(Turned):
    def weighed(self, weights: Tensor, v: Tensor) -> Tensor:
        return torch.bmm(v.mT.flatten(0, 1), weights.flatten(0, 1)).mT.unflatten(0, (-1, self.num_heads))


class OverQueries(ByEquation):
    along = -2


class SlotsOverQueries(OverQueries):
    """Its name says that it is meant."""


@pytest.mark.parametrize("cls", [Summed, ByEquation, Turned, Mixed, SlotsOverQueries])
def test_weights_that_are_summed_as_they_are_normalised(cls: type[nn.Module]) -> None:
    target = spoken(cls)
    assert target.learned["structure"].startswith("not confirmed") and not target.wrong


@pytest.mark.parametrize("cls", [NotTurned, OverQueries])
def test_weights_that_are_not(cls: type[nn.Module]) -> None:
    assert list(spoken(cls).wrong) == ["softmax"]


def test_a_module_in_a_process_of_its_own_is_read_too() -> None:
    for name in ("NotScaled", "OverQueries", "Gated"):
        with containing(OWN):
            (target,) = find_targets(f"{__file__}:{name}", Builtins())
        assert list(target.wrong) == {"NotScaled": ["scale"], "OverQueries": ["softmax"], "Gated": []}[name]


# ---------------------------------------------------------------- rows that are turned


class InTwoAxes(nn.Module):
    """Tokens of an image of three by three, behind that of a class, are turned by their line and their column; no composition that is known."""

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads, self.qkv, self.proj = num_heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def angles(self, like: Tensor) -> Tensor:
        n = like.shape[-1] // 4
        at, frequencies = torch.arange(9, dtype=like.dtype), 100.0 ** -(torch.arange(n, dtype=like.dtype) / n)
        return torch.cat([(at // 3)[:, None].floor() * frequencies, (at % 3)[:, None] * frequencies], -1)

    def wide(self, angles: Tensor) -> Tensor:
        return torch.cat([angles, angles], -1)

    def rope(self, x: Tensor) -> Tensor:
        angles, (first, second) = self.wide(self.angles(x)), x[:, :, 1:].chunk(2, -1)
        turned = x[:, :, 1:] * angles.cos() + torch.cat([-second, first], -1) * angles.sin()
        return torch.cat([x[:, :, :1], turned], 2)

    def before(self, x: Tensor) -> Tensor:
        return x

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        q, k = (self.rope(self.before(each)) for each in (q, k))
        return self.proj(((q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v).transpose(1, 2).flatten(2))


class RopeInTwoAxes(InTwoAxes):
    pass


class RopeOfNeighbours(RopeInTwoAxes):
    """A mistake: halves are turned by the angles of neighbours."""

    def wide(self, angles: Tensor) -> Tensor:
        return angles.repeat_interleave(2, -1)


class RopeOfNormed(RopeOfNeighbours):
    def before(self, x: Tensor) -> Tensor:
        return nn.functional.normalize(x, dim=-1)


@pytest.mark.nightly
def test_what_turns_leaves_rows_as_long_as_they_were() -> None:
    assert "have other lengths after they are turned" in spoken(RopeOfNeighbours).wrong["positions"]


@pytest.mark.nightly
@pytest.mark.parametrize("cls", [RopeInTwoAxes, RopeOfNormed])
def test_lengths_that_change_on_purpose_are_right(cls: Any) -> None:
    target = spoken(cls)
    assert target.learned["structure"].startswith("not confirmed") and not target.wrong
