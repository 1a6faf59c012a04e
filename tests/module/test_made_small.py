"""Constructors and calls of libraries: lists of sides, a processor beside the class, a class token before an image."""

from __future__ import annotations

from typing import Any, ClassVar, List  # noqa: UP035  as it is written there

import pytest
import torch
from nightly import one_in
from torch import Tensor, nn
from torch.nn import functional as F

from properties import verify
from properties.engine.core.target import CannotRun
from properties.engine.search.probe import make_target


class ByLists(nn.Module):
    """Windows of an image, as in torchvision."""

    def __init__(self, dim: int, window_size: List[int], shift_size: List[int], num_heads: int) -> None:  # noqa: UP006
        super().__init__()
        self.window, self.shift, self.heads = window_size, shift_size, num_heads
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        (b, h, w, c), (high, wide) = x.shape, self.window
        x = x.roll((-self.shift[0], -self.shift[1]), (1, 2))
        x = x.reshape(b, h // high, high, w // wide, wide, c).transpose(2, 3).reshape(-1, high * wide, c)
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).movedim(2, 0).transpose(-3, -2)
        y = F.scaled_dot_product_attention(q, k, v).transpose(-3, -2).flatten(-2)
        y = y.reshape(b, h // high, w // wide, high, wide, c).transpose(2, 3).reshape(b, h, w, c)
        return self.proj(y.roll((self.shift[0], self.shift[1]), (1, 2)))


class OwnAttnProcessor:
    def __call__(self, attn: Any, hidden_states: Tensor) -> Tensor:
        q, k, v = (part(hidden_states).unflatten(-1, (attn.heads, -1)).transpose(1, 2) for part in (attn.to_q, attn.to_k, attn.to_v))
        return attn.to_out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class ByProcessor(nn.Module):
    """As in diffusers: the model gives each attention its processor."""

    _default_processor_cls: ClassVar[Any] = OwnAttnProcessor

    def __init__(self, dim: int, heads: int = 8, dim_heads: int = 64, processor: Any = None) -> None:
        super().__init__()
        self.heads, self.processor = heads, processor
        self.to_q, self.to_k, self.to_v = (nn.Linear(dim, heads * dim_heads) for _ in range(3))
        self.to_out = nn.Linear(heads * dim_heads, dim)

    def forward(self, hidden_states: Tensor) -> Tensor:
        out: Tensor = self.processor(self, hidden_states)
        return out


class BehindAClassToken(nn.Module):
    """Keys and values are pooled over the image, as in MViT; the token of a class is not."""

    stays = True

    def __init__(self, dim: int = 32, num_heads: int = 4) -> None:
        super().__init__()
        self.heads, self.qkv, self.proj = num_heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.pool = nn.Conv2d(dim // num_heads, dim // num_heads, 3, stride=1, padding=1, groups=dim // num_heads, bias=False)

    def pooled(self, x: Tensor, hw_shape: tuple[int, int]) -> Tensor:
        first, image = x[:, :, :1], x[:, :, 1:]
        image = image.mT.reshape(-1, x.shape[-1], *hw_shape)
        image = self.pool(image).reshape(*x.shape[:2], x.shape[-1], -1).mT
        return torch.cat((first if self.stays else first.roll(1, 0), image), 2)

    def forward(self, x: Tensor, hw_shape: tuple[int, int]) -> tuple[Tensor, tuple[int, int]]:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).movedim(2, 0).transpose(-3, -2)
        k, v = (self.pooled(part, hw_shape) for part in (k, v))
        return self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)), hw_shape


class ClassTokensExchanged(BehindAClassToken):
    stays = False


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize("cls", [ByLists, ByProcessor, BehindAClassToken])
def test_it_is_made_and_called_and_let_go(cls: Any) -> None:
    verdict = verify(cls, cases=5)
    assert verdict.ok and verdict.report.cases > 50, verdict


def test_a_processor_leaves_the_structure_as_it_is() -> None:
    assert make_target("mine", ByProcessor).learned["structure"].startswith("to_q, to_k, to_v, to_out; 4 heads")


@pytest.mark.nightly
def test_behind_a_class_token_there_is_an_image() -> None:
    learned = make_target("mine", BehindAClassToken).learned
    assert learned["tokens"] == "(batch, length, features), 32 features, the first token is that of a class; x = tokens, hw_shape = grid"
    assert "module_batch_elements_are_independent" in {f.prop.name for f in verify(ClassTokensExchanged, cases=12).findings}


class DoubleStream(nn.Module):
    """As in FLUX: the output projection, and its dropout, serve calls with both kinds of tokens; both share one softmax."""

    forgotten = False

    def __init__(self, dim: int, heads: int = 4, dropout: float = 0.0) -> None:
        super().__init__()
        self.heads, (self.to_q, self.to_k, self.to_v) = heads, (nn.Linear(dim, dim) for _ in range(3))
        self.add_q_proj, self.add_k_proj, self.add_v_proj = (nn.Linear(dim, dim) for _ in range(3))
        self.to_out = nn.ModuleList([nn.Linear(dim, dim), nn.Dropout(dropout)])

    def forward(self, hidden_states: Tensor, context_of_text: Tensor | None = None) -> Tensor:
        parts = [part(hidden_states) for part in (self.to_q, self.to_k, self.to_v)]
        if context_of_text is not None:
            added = [part(context_of_text) for part in (self.add_q_proj, self.add_k_proj, self.add_v_proj)]
            parts = [torch.cat(each, 1) for each in zip(added, parts, strict=True)]
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        out = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        if context_of_text is None:
            return out
        out = self.to_out[0](out[:, context_of_text.shape[1] :])
        return out if self.forgotten else self.to_out[1](out)  # type: ignore[no-any-return]


class PooledBesideTheMean(nn.Module):
    """As in CLIP and Mochi: the mean asks, and is among the keys."""

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.heads, (self.q, self.k, self.v, self.o) = num_heads, (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat((x.mean(1, keepdim=True), x), 1)
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in (self.q(x[:, :1]), self.k(x), self.v(x)))
        return self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)).squeeze(1)  # type: ignore[no-any-return]


class DifferentialAttention(nn.Module):
    """The difference of two softmaxes, as in Stable Audio: of one token alone it is 0."""

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.heads, (self.q, self.k, self.v, self.o) = num_heads, (nn.Linear(dim, n * dim) for n in (2, 2, 1, 1))

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        q, k = (part(y).unflatten(-1, (2, self.heads, -1)).movedim(2, 0).transpose(2, 3) for part, y in ((self.q, x), (self.k, context)))
        v = self.v(context).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        one, two = F.scaled_dot_product_attention(q, k, v.expand(2, *v.shape))
        return self.o((one - two).transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


@pytest.mark.parametrize("cls", one_in(3, [DoubleStream, PooledBesideTheMean, DifferentialAttention]))
def test_what_serves_other_calls_is_no_mistake(cls: Any) -> None:
    verdict = verify(cls, cases=8)
    assert verdict.ok and verdict.report.cases > 100, verdict


class DropoutForgotten(PooledBesideTheMean):
    def __init__(self, dim: int, num_heads: int, dropout: float = 0.0) -> None:
        super().__init__(dim, num_heads)
        self.drop = nn.Dropout(dropout)


def test_a_dropout_that_no_call_needs_is_one() -> None:
    assert [f.prop.name for f in verify(DropoutForgotten, cases=8).findings] == ["module_dropout_is_on_in_train"]


class OfHops(nn.Module):
    """A sentence in several rows, each with weights of its own; of the width nothing says that it is one."""

    of_tokens = True

    def __init__(self, wide, da=20, hops=4):  # type: ignore[no-untyped-def]
        super().__init__()
        self.first, self.second = nn.Linear(wide, da), nn.Linear(da, hops)

    def forward(self, x: Tensor) -> Tensor:
        scores = self.second(self.first(x).tanh())
        return scores.softmax(1 if self.of_tokens else 2).mT @ x  # type: ignore[no-any-return]


class OverHops(OfHops):
    of_tokens = False


class Around(nn.Module):
    """No number stands for what is called."""

    def __init__(self, dim: int, fn) -> None:  # type: ignore[no-untyped-def]
        super().__init__()
        self.norm, self.fn = nn.LayerNorm(dim), fn

    def forward(self, x: Tensor) -> Tensor:
        return self.fn(self.norm(x))  # type: ignore[no-any-return]


def test_what_nothing_is_known_of_is_guessed_and_told() -> None:
    learned = make_target("mine", OfHops).learned
    assert learned["made"] == "with wide=8: guessed" and learned["output"] == "4 rows for each sequence"
    assert verify(OfHops, cases=5).ok and not verify(OverHops, cases=10, properties=("tokens",)).ok


class SizesOfNone(nn.Module):
    """As in Perceiver, and in Grounding DINO: sizes are None by default, and there is no module without them."""

    def __init__(self, dim: int, num_heads: Any = None, v_channels=None, cut: Any = None) -> None:  # type: ignore[no-untyped-def]
        super().__init__()
        self.heads, self.cut = num_heads, cut
        self.to_qk, self.to_v = nn.Linear(dim, 2 * (dim // num_heads) * num_heads), nn.Linear(dim, v_channels)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (*self.to_qk(x).chunk(2, -1), self.to_v(x)))
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


def test_sizes_that_are_none_are_given_where_they_have_to_be() -> None:
    target = make_target("mine", SizesOfNone)
    assert target.learned["made"] == "with v_channels=32: guessed"
    assert target.function.module("float64", "cpu", 1).cut is None  # type: ignore[attr-defined]
    assert verify(SizesOfNone, cases=5).ok


class ByDefault(nn.Module):
    """One size has a name that says nothing, and goes with the default of the other alone."""

    merged = (0, 2, 1, 3)

    def __init__(self, c: int = 48, n: int = 6) -> None:
        super().__init__()
        self.n, self.q, self.kv, self.o = n, nn.Linear(c, c), nn.Linear(c, 2 * c), nn.Linear(c, c)

    def forward(self, feats: Tensor) -> Tensor:
        b, t, c = feats.shape
        q, k, v = (z.reshape(b, t, self.n, c // self.n).transpose(1, 2) for z in (self.q(feats), *self.kv(feats).chunk(2, -1)))
        return self.o(F.scaled_dot_product_attention(q, k, v).permute(self.merged).reshape(b, t, c))


class ByDefaultUnmerged(ByDefault):
    merged = (0, 1, 2, 3)


@pytest.mark.nightly
def test_what_cannot_be_made_small_is_as_by_default() -> None:
    learned = make_target("mine", ByDefault).learned
    assert "48 features" in learned["tokens"] and "6 heads" in learned["structure"] and "sizes" not in learned
    assert verify(ByDefault, cases=5).ok and not verify(ByDefaultUnmerged, cases=5).ok


def test_what_was_guessed_in_vain_is_asked_for() -> None:
    with pytest.raises(CannotRun, match=r"it was made with fn=8, which is guessed: give what it should be, as in 'Around\(fn=…\)'"):
        make_target("Around", Around)


class OwnName(nn.Module):
    """A probability of dropout by a name of its own."""

    on = False

    def __init__(self, dim: int, heads: int, p_drop: float = 0.1) -> None:
        super().__init__()
        self.heads, self.p_drop, self.qkv = heads, p_drop, nn.Linear(dim, 3 * dim)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).movedim(-3, 0).transpose(-3, -2)
        weights = F.dropout((q @ k.mT * q.shape[-1] ** -0.5).softmax(-1), self.p_drop, self.training or self.on)
        return (weights @ v).transpose(1, 2).flatten(2)


class OnInEval(OwnName):
    on = True


def test_a_dropout_by_a_name_of_its_own_is_one() -> None:
    assert verify(OwnName, cases=6, properties=("state",)).ok
    assert "module_dropout_is_off_in_eval" in {f.prop.name for f in verify(OnInEval, cases=12, properties=("state",)).findings}


class Points(nn.Module):
    """The weights, and nothing that is weighed by them."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.q, self.k = nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        return (self.q(x) @ self.k(x).mT).log_softmax(-1)


class PointsAtAMemory(Points):
    def forward(self, x: Tensor, memory: Tensor) -> Tensor:  # type: ignore[override]
        return (self.q(x) @ self.k(memory).mT).softmax(-1)


@pytest.mark.parametrize(("cls", "seen"), [(Points, "tokens"), (PointsAtAMemory, "tokens of the memory")])
def test_weights_are_no_output(cls: Any, seen: str) -> None:
    with pytest.raises(CannotRun, match=f"returns as many features as there are {seen}: its weights, or scores"):
        make_target("mine", cls)


class Remembering(nn.Module):
    """A default that is made once keeps the keys of all calls, and puts new features beside the old ones."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)

    def forward(self, x: Tensor, state: dict = {}) -> Tensor:  # type: ignore[type-arg]  # noqa: B006
        q, k, v = self.qkv(x).chunk(3, -1)
        state["k"], state["v"] = (torch.cat([state[name], y], 2) if name in state else y for name, y in (("k", k), ("v", v)))
        return self.out((q @ state["k"].mT).softmax(-1) @ state["v"])  # type: ignore[no-any-return]


def test_what_raises_after_other_calls_is_told_in_one_sentence() -> None:
    with pytest.raises(CannotRun, match=r"after other calls|keeps something between calls"):
        make_target("Remembering", Remembering)


class LatentConfig:
    def __init__(self, hidden_size: int = 4096, num_attention_heads: int = 64, kv_lora_rank: int = 512, qk_rope_head_dim: int = 64) -> None:
        vars(self).update(
            hidden_size=hidden_size, num_attention_heads=num_attention_heads, kv_lora_rank=kv_lora_rank, rope=qk_rope_head_dim
        )


class LatentAttention(nn.Module):
    def __init__(self, config: LatentConfig) -> None:
        super().__init__()
        self.num_heads = config.num_attention_heads  # type: ignore[attr-defined]
        self.down = nn.Linear(config.hidden_size, config.kv_lora_rank)  # type: ignore[attr-defined]
        self.turned = config.rope  # type: ignore[attr-defined]
        self.up, self.q = nn.Linear(self.down.out_features, 2 * self.down.in_features), nn.Linear(*[self.down.in_features] * 2)

    def forward(self, x: Tensor) -> Tensor:
        k, v = (y.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for y in self.up(self.down(x)).chunk(2, -1))
        return (
            F.scaled_dot_product_attention(self.q(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2), k, v).transpose(1, 2).flatten(2)
        )


def test_ranks_of_a_configuration_are_small() -> None:
    """Of 512 features a case of DeepSeek's took most of a second."""
    made = make_target("mine", LatentAttention).function.module("float64", "cpu", 1)  # type: ignore[attr-defined]
    assert (made.down.in_features, made.down.out_features, made.turned) == (32, 24, 4)


class OfKeywords(nn.Module):
    """A constructor that names none of its arguments."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__()
        kwargs["bias"] = kwargs.get("bias", True)
        self.attention = nn.MultiheadAttention(kwargs["d_model"], kwargs["n_heads"], bias=kwargs["bias"], batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x)[0]


class OfUnknownKeywords(OfKeywords):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(d_model=kwargs["tokens"].width, n_heads=4)


def test_names_that_are_looked_up_among_keywords_are_filled() -> None:
    assert "4 heads" in make_target("mine", OfKeywords).learned["structure"]
    with pytest.raises(CannotRun, match="what is 'tokens'"):
        make_target("mine", OfUnknownKeywords)
