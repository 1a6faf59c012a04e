"""Positions that a module is told, or holds as complex numbers; what is computed under ``inference_mode``."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from properties.catalogue import select
from properties.engine.core.target import Target
from properties.engine.search.find_target import ALWAYS, NEVER, Builtins, containing, find_targets
from properties.engine.search.probe import make_target
from properties.engine.search.run import verify_target
from properties.engine.search.search import Plan

EASY = ("tokens", "padding", "decoding", "projections", "slopes")


def refuted(target: Target, *properties: str, cases: int = 8) -> set[str]:
    return {f.prop.name for f in verify_target(target, select(properties), Plan(examples=cases, shrink=False)).findings}


class Complex(nn.Module):
    """As in LLaMA: neighbours are turned by complex numbers, which a buffer holds; scores are float32."""

    late = False

    def __init__(self, dim: int, n_heads: int, max_seq_len: int = 64) -> None:
        super().__init__()
        self.n_heads, self.head_dim = n_heads, dim // n_heads
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(dim, dim, bias=False) for _ in range(4))
        angles = torch.outer(torch.arange(max_seq_len), 1e4 ** -(torch.arange(0, self.head_dim, 2) / self.head_dim))
        self.register_buffer("freqs_cis", torch.polar(torch.ones_like(angles), angles), persistent=False)

    def turned(self, x: Tensor, first: int = 0) -> Tensor:
        pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2))) * self.freqs_cis[first : first + x.shape[1], None]
        return torch.view_as_real(pairs).flatten(-2).type_as(x)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (w(x).unflatten(-1, (self.n_heads, -1)) for w in (self.wq, self.wk, self.wv))
        q, k, v = (y.transpose(1, 2) for y in (self.turned(q), self.turned(k, int(self.late)), v))
        scores = (q @ k.mT / self.head_dim**0.5).masked_fill(torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1), -torch.inf)
        return self.wo((scores.float().softmax(-1).type_as(v) @ v).transpose(1, 2).flatten(2))


class Shifted(Complex):
    late = True


class Unrecorded(Complex):
    @torch.inference_mode()
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)


class Cut(Complex):
    """Nobody says that there is no gradient."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).detach()


class Quiet(Complex):
    forward = torch.no_grad()(Complex.forward)


@pytest.mark.nightly
@pytest.mark.parametrize("contained", [False, True])
def test_complex_numbers_stay_complex(contained: bool) -> None:
    """A cast to float64 that takes their real parts makes another module: this one is recognised."""
    with containing(ALWAYS if contained else NEVER):
        (target,) = find_targets(f"{__file__}:Complex", Builtins())
    words = target.learned["structure"]
    assert target.function.away is contained  # type: ignore[attr-defined]
    assert "neighbours of 8 features turned, base 10000" in words and words.endswith(": confirmed"), words
    assert not refuted(target, *EASY, cases=3)


def test_a_shift_among_complex_numbers_is_not_confirmed() -> None:
    """Every query one position too early: it is no composition that is known."""
    assert make_target("mine", Shifted).learned["structure"].startswith("not confirmed: ")


@pytest.mark.parametrize(("cls", "says"), [(Unrecorded, "torch.inference_mode"), (Quiet, "torch.no_grad")])
def test_under_inference_mode_there_are_no_gradients(cls: Any, says: str) -> None:
    """Rounding is followed there, too: weights in float32 do not sum to one in more digits than it has."""
    target = make_target("mine", cls)
    assert target.learned["gradients"] == f"none: its forward is under {says}"
    assert not refuted(target, "module_gradients_are_slopes", "module_gradients_reach_every_parameter", *EASY[:1], cases=4)


def test_a_gradient_that_is_cut_is_found() -> None:
    assert "module_gradients_are_slopes" in refuted(make_target("mine", Cut), "module_gradients_are_slopes", cases=2)


class GivenComplex(nn.Module):
    """As in transformers' DeepSeek V2: what others call a pair of tables is complex, one for each sequence, and cannot be left out."""

    late = False

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads, self.qkv, self.out = num_heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, hidden_states: Tensor, position_embeddings: Tensor | None = None) -> Tensor:
        q, k, v = self.qkv(hidden_states).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        q, k = (torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()) for x in (q, k))
        assert position_embeddings is not None
        angles = position_embeddings.unsqueeze(1).to(q.device)
        q, k = (torch.view_as_real(x).flatten(-2) for x in (q * angles, k * (angles * angles if self.late else angles)))
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class GivenTwice(GivenComplex):
    late = True


@pytest.mark.parametrize("cls", [GivenComplex, GivenTwice])
def test_complex_positions_by_the_name_of_two_tables(cls: Any) -> None:
    target = make_target("mine", cls)
    assert target.function.speech.roles["position_embeddings"] == "complex angles"  # type: ignore[attr-defined]
    wrong = "module_rotations_tell_distances_alone"
    assert refuted(target, "tokens", "slopes", cases=4) == ({wrong} if cls.late else set())


class NormedLast(nn.Module):
    """As in Hunyuan and TimesFM: queries and keys are turned, and then normed, with a weight for each feature."""

    late = False

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads, self.qkv, self.out = num_heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.q_norm, self.k_norm = (nn.RMSNorm(dim // num_heads, eps=1e-6) for _ in range(2))

    def forward(self, x: Tensor, position_embeddings: tuple[Tensor, Tensor]) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        cos, sin = position_embeddings
        q = q * cos + torch.cat([-q.chunk(2, -1)[1], q.chunk(2, -1)[0]], -1) * sin
        if not self.late:
            k = k * cos + torch.cat([-k.chunk(2, -1)[1], k.chunk(2, -1)[0]], -1) * sin
        return self.out(F.scaled_dot_product_attention(self.q_norm(q), self.k_norm(k), v).transpose(1, 2).flatten(2))


class KeyNotTurned(NormedLast):
    late = True


@pytest.mark.parametrize("cls", [NormedLast, KeyNotTurned])
def test_features_that_are_weighed_after_they_are_turned(cls: Any) -> None:
    """Distances alone then do not tell what a row is, unless all features weigh alike: not asked, and told."""
    target = make_target("mine", cls)
    assert ("(q_norm.weight, k_norm.weight)" in target.learned["angles"]) is not cls.late
    assert ("module_rotations_tell_distances_alone" in refuted(target, "tokens", cases=4)) is cls.late


class Convolved(NormedLast):
    """As in Zaya: a convolution mixes neighbours, and zeros before the first token, though positions come as angles."""

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__(dim, num_heads)
        self.mix = nn.Conv1d(dim, dim, 2)

    def forward(self, x: Tensor, position_embeddings: tuple[Tensor, Tensor]) -> Tensor:
        return super().forward(self.mix(F.pad(x.mT, (1, 0))).mT, position_embeddings)


def test_rows_of_equal_tokens_differ_behind_a_convolution() -> None:
    wanted = "module_equal_tokens_give_equal_rows"
    outcomes = [verify_target(make_target("mine", cls), select([wanted]), Plan(examples=2)).outcomes for cls in (Convolved, NormedLast)]
    assert [outcome[wanted].status for outcome in outcomes] == ["not exercised", "passed"]


class StillMemory(nn.Module):
    """As in Moonshine: queries and keys are turned where tokens see each other, and are not where they see a memory."""

    half = False

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads, (self.q, self.k, self.v, self.out) = num_heads, (nn.Linear(dim, dim) for _ in range(4))

    def turned(self, x: Tensor) -> Tensor:
        n = x.shape[-1]
        angles = torch.arange(x.shape[2], dtype=x.dtype)[:, None] * 1e4 ** (-torch.arange(0, n, 2, dtype=x.dtype) / n)
        a, b = x.chunk(2, -1)
        return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], -1)

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        seen = x if memory is None else memory
        q, k, v = (w(y).unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for w, y in ((self.q, x), (self.k, seen), (self.v, seen)))
        q = self.turned(q) if memory is None or self.half else q
        k = self.turned(k) if memory is None else k
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class QueriesTurned(StillMemory):
    half = True


@pytest.mark.parametrize("cls", [StillMemory, QueriesTurned])
def test_a_memory_may_not_be_turned(cls: Any) -> None:
    """Neither queries nor keys are, or both; a module that turns one of them is refuted."""
    target = make_target("mine", cls)
    assert ("but not for a memory" in target.learned["structure"]) is not cls.half
    wrong = "module_is_the_attention_of_its_projections"
    assert refuted(target, wrong) == ({wrong} if cls.half else set())


class Added(nn.Module):
    """As in DETR: what says where tokens are is added to queries and keys, and not to values."""

    places = "qk"

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads, (self.q, self.k, self.v, self.out) = num_heads, (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, x: Tensor, query_pos: Tensor | None = None) -> Tensor:
        assert query_pos is not None
        parts = (w(x + query_pos if name in self.places else x) for name, w in (("q", self.q), ("k", self.k), ("v", self.v)))
        q, k, v = (y.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for y in parts)
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class AddedToKeys(Added):
    places = "k"


class AddedToAll(Added):
    places = "qkv"


@pytest.mark.parametrize(
    ("cls", "says"), [(Added, ": confirmed"), (AddedToKeys, "positions added to keys alone"), (AddedToAll, "not confirmed")]
)
def test_positions_that_are_added(cls: Any, says: str) -> None:
    """Where there is no call without them they are given; added to keys alone they are a mistake, added to all they may be meant."""
    target = make_target("mine", cls)
    found = verify_target(target, select(("tokens", "projections")), Plan(examples=4, shrink=False)).findings
    assert target.function.speech.roles["query_pos"] == "added" and bool(found) is (cls.places == "k")  # type: ignore[attr-defined]
    assert says in (target.learned["structure"] if not found else str(found[0].violation))


class IndexOfPlaces(Added):
    """The same name, and no rows that are added: numbers of places."""

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__(dim, num_heads)
        self.table = nn.Embedding(64, dim)

    def forward(self, x: Tensor, pos: int) -> Tensor:  # type: ignore[override]
        return super().forward(x, self.table(pos + torch.arange(x.shape[1])))


def test_a_name_of_what_is_added_may_mean_something_else() -> None:
    assert make_target("mine", IndexOfPlaces).function.speech.extra == {"pos": 0}  # type: ignore[attr-defined]


class Conformer(nn.Module):
    """It is given a sinusoid for each distance, with biases of its own (Dai et al. 2019), as in ESPnet."""

    before = True

    def __init__(self, n_feat: int, n_head: int) -> None:
        super().__init__()
        self.h, self.q, self.kv, self.out = n_head, nn.Linear(n_feat, n_feat), nn.Linear(n_feat, 2 * n_feat), nn.Linear(n_feat, n_feat)
        self.linear_pos = nn.Linear(n_feat, n_feat, bias=False)
        self.pos_bias_u, self.pos_bias_v = (nn.Parameter(torch.zeros(n_head, n_feat // n_head)) for _ in range(2))

    def split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.h, -1)).transpose(1, 2)

    def shifted(self, x: Tensor) -> Tensor:
        zeros = torch.zeros_like(x[..., :1])
        padded = torch.cat([zeros, x] if self.before else [x, zeros], -1)
        return padded.reshape(*x.shape[:2], x.shape[3] + 1, x.shape[2])[:, :, 1:].reshape(x.shape)[..., : x.shape[3] // 2 + 1]

    def forward(self, x: Tensor, pos_emb: Tensor, mask: Tensor | None = None) -> Tensor:
        q, (k, v) = self.q(x).unflatten(-1, (self.h, -1)), map(self.split, self.kv(x).chunk(2, -1))
        content = (q + self.pos_bias_u).transpose(1, 2) @ k.mT
        position = self.shifted((q + self.pos_bias_v).transpose(1, 2) @ self.split(self.linear_pos(pos_emb)).mT)
        scores = (content + position) / k.shape[-1] ** 0.5
        scores = scores if mask is None else scores.masked_fill(mask.unsqueeze(1) == 0, torch.finfo(x.dtype).min)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class PaddedBehind(Conformer):
    before = False


def test_distances_are_given_to_what_is_told_them() -> None:
    target = make_target("mine", Conformer)
    assert target.learned["distances"] == "(1, 2 · length − 1, features), sinusoids" and "pos_emb = distances" in target.learned["tokens"]
    assert "sinks" not in target.learned
    assert not refuted(target, *EASY, cases=4)


def test_a_wrong_shift_of_distances_is_found() -> None:
    """With a zero behind instead of before, what a row sees hangs on how many there are: padding shows it."""
    assert "module_padding_is_as_good_as_removed" in refuted(make_target("mine", PaddedBehind), "padding")


class Sloped(nn.Module):
    """Slopes of distances in a buffer that no name tells, as in MPT: causal, so that the last row's differences are all that matters."""

    def __init__(self, d_model: int, n_heads: int, max_seq_len: int = 64) -> None:
        super().__init__()
        self.n_heads, self.Wqkv, self.out_proj = n_heads, nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)
        slopes = 2.0 ** -torch.arange(1, n_heads + 1)
        self.register_buffer("attn_bias", (torch.arange(1 - max_seq_len, 1) * slopes[:, None])[None, :, None], persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (y.unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for y in self.Wqkv(x).chunk(3, -1))
        scores = q @ k.mT / k.shape[-1] ** 0.5 + self.attn_bias[..., -x.shape[1] :]
        scores = scores.masked_fill(torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1), -torch.inf)
        return self.out_proj((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


def test_a_buffer_with_a_number_a_token_is_one_of_positions() -> None:
    target = make_target("mine", Sloped)
    assert target.learned["positions"] == "it has attn_bias, with a number a token" and not refuted(target, *EASY, cases=4)


class Sliding(nn.Module):
    """Causal, and always within a window; a mask that is given takes the place of causality (Gemma 2)."""

    def __init__(self, hidden_size: int, num_heads: int) -> None:
        super().__init__()
        self.heads, self.qkv, self.o_proj = num_heads, nn.Linear(hidden_size, 3 * hidden_size), nn.Linear(hidden_size, hidden_size)

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in self.qkv(hidden_states).chunk(3, -1))
        ones = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool)
        scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~ones.triu(-3), -torch.inf)
        scores = scores.masked_fill(~ones.tril(), -torch.inf) if attention_mask is None else scores + attention_mask
        return self.o_proj((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


def test_what_is_causal_in_a_window_is_causal() -> None:
    target = make_target("mine", Sliding)
    assert target.learned["causal"] == "tokens see no later ones"
    assert not refuted(target, *EASY, cases=6), target.learned


class Cached(nn.Module):
    """Angles are kept for as many places as the queries have, at least: a memory with fewer tokens than there are rows raises (ESM)."""

    def __init__(self, embed_dim: int, num_heads: int) -> None:
        super().__init__()
        self.heads, self.q, self.kv, self.o = num_heads, nn.Linear(embed_dim, embed_dim), nn.Linear(embed_dim, 2 * embed_dim), None

    def forward(self, query: Tensor, key: Tensor | None = None, value: Tensor | None = None) -> Tensor:
        key = query if key is None else key
        q, (k, v) = self.q(query).unflatten(-1, (self.heads, -1)), (y.unflatten(-1, (self.heads, -1)) for y in self.kv(key).chunk(2, -1))
        if q.shape[1] > k.shape[1]:
            raise RuntimeError(f"The size of tensor a ({q.shape[1]}) must match the size of tensor b ({k.shape[1]})")
        return F.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v))).transpose(1, 2).flatten(2)


def test_a_memory_that_must_be_longer_than_the_tokens_is_not_tried() -> None:
    assert not refuted(make_target("mine", Cached), *EASY, cases=4)


class OfPairs(nn.Module):
    """A bias of logits out of features of each pair of tokens, and a gate, as in AlphaFold."""

    scale = -0.5

    def __init__(self, c_s: int, c_z: int, n_heads: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.to_q, self.to_k, self.to_v, self.to_g, self.to_out = (nn.Linear(c_s, c_s) for _ in range(5))
        self.norm, self.to_bias = nn.LayerNorm(c_z), nn.Linear(c_z, n_heads, bias=False)

    def bias(self, of_heads: Tensor) -> Tensor:
        return of_heads.permute(0, 3, 1, 2)

    def forward(self, s: Tensor, z: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = (layer(s).unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for layer in (self.to_q, self.to_k, self.to_v))
        logits = q @ k.mT * q.shape[-1] ** self.scale + self.bias(self.to_bias(self.norm(z)))
        if mask is not None:
            logits = logits.masked_fill(~mask.bool()[:, None, None], -torch.inf)
        return self.to_out(self.to_g(s).sigmoid() * (logits.softmax(-1) @ v).transpose(1, 2).flatten(2))


class PairsUnscaled(OfPairs):
    scale = 0.0


class PairsReshaped(OfPairs):
    def bias(self, of_heads: Tensor) -> Tensor:
        return of_heads.reshape(len(of_heads), self.n_heads, *of_heads.shape[1:3])


def test_features_of_pairs_are_given() -> None:
    target = make_target("mine", OfPairs)
    assert target.learned["pairs"] == "(batch, length, length, 32)" and target.learned["positions"] == "it takes z"
    assert target.learned["tokens"].endswith("s = tokens, z = pairs") and not target.faults
    assert not refuted(target, *EASY)


@pytest.mark.parametrize("thing", [PairsUnscaled, PairsReshaped])
def test_wrong_biases_of_pairs_are_refuted(thing: Any) -> None:
    target = make_target("mine", thing)
    assert target.faults or refuted(target, "module_padding_is_as_good_as_removed")
