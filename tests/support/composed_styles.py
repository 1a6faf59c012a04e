"""Attentions with norms, positions, groups and scales in many styles, each step a method: the right ones, and each with one mistake."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Composed(nn.Module):
    """Grouped self-attention with separate projections; what comes after it changes a step."""

    causal = False
    groups = 1

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads, self.kv_heads, self.d = num_heads, num_heads // min(self.groups, num_heads), d_model // num_heads
        self.q_proj, self.o_proj = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)
        self.k_proj, self.v_proj = (nn.Linear(d_model, self.kv_heads * self.d) for _ in range(2))
        self.made(d_model)

    def made(self, width: int) -> None:
        """What else it has."""

    def forward(self, x: Tensor) -> Any:
        y = self.before(x)
        q, k, v = (self.split(part) for part in self.normed(self.q_proj(y), self.k_proj(y), self.v_proj(y)))
        q, k = self.positioned(q, k)
        weights = self.weigh(self.hide(self.logits(q, self.repeated(k))))
        return self.after((weights @ self.repeated(v)).transpose(1, 2).flatten(2), x)

    def before(self, x: Tensor) -> Tensor:
        return x

    def normed(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return q, k, v

    def split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.d)).transpose(1, 2)

    def positioned(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return q, k

    def repeated(self, x: Tensor) -> Tensor:
        return x.repeat_interleave(self.num_heads // self.kv_heads, 1)

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.mT * self.by()

    def by(self) -> Any:
        return self.d**-0.5

    def hide(self, logits: Tensor) -> Tensor:
        return logits + torch.full_like(logits, float("-inf")).triu(1) if self.causal else logits

    def weigh(self, logits: Tensor) -> Tensor:
        return logits.softmax(-1)

    def after(self, out: Tensor, x: Tensor) -> Tensor:
        return self.o_proj(out)


# ---------------------------------------------------------------- norms


class PreNorm(Composed):
    def made(self, width: int) -> None:
        self.norm = nn.LayerNorm(width)

    def before(self, x: Tensor) -> Tensor:
        return self.norm(x)


class PreNormResidual(PreNorm):
    def after(self, out: Tensor, x: Tensor) -> Tensor:
        return x + self.o_proj(out)


class PostNorm(PreNormResidual):
    def before(self, x: Tensor) -> Tensor:
        return x

    def after(self, out: Tensor, x: Tensor) -> Tensor:
        return self.norm(super().after(out, x))


class LayerScale(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(1e-5 * torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


class Gained(PreNorm):
    """As in CaiT and DINOv2."""

    def made(self, width: int) -> None:
        super().made(width)
        self.ls1 = LayerScale(width)

    def after(self, out: Tensor, x: Tensor) -> Tensor:
        return x + self.ls1(self.o_proj(out))


class GainedByParameter(Composed):
    """As in BEiT."""

    def made(self, width: int) -> None:
        self.gamma_1 = nn.Parameter(0.1 * torch.ones(width))

    def after(self, out: Tensor, x: Tensor) -> Tensor:
        return x + self.gamma_1 * self.o_proj(out)


class GainUnused(Gained):
    def after(self, out: Tensor, x: Tensor) -> Tensor:
        return x + self.o_proj(out)


class OwnNorm(nn.Module):
    """As Gemma's: one more than its weight."""

    def __init__(self, dim: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps, self.weight = eps, nn.Parameter(torch.zeros(dim))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * (1 + self.weight)


class NormedHeads(Composed):
    groups, kind = 2, nn.LayerNorm

    def made(self, width: int) -> None:
        self.q_norm, self.k_norm = self.kind(self.d), self.kind(self.d)

    def positioned(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return self.q_norm(q), self.k_norm(k)


class OwnNormedHeads(NormedHeads):
    kind = OwnNorm  # type: ignore[assignment]


class NormedWhole(Composed):
    """Over the whole width, as OLMo 2 has it."""

    def made(self, width: int) -> None:
        self.q_norm, self.k_norm = nn.RMSNorm(width), nn.RMSNorm(width)

    def normed(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.q_norm(q), self.k_norm(k), v


class Lengths(Composed):
    """Cosines with a learned temperature for every head, as in Swin v2."""

    def made(self, width: int) -> None:
        self.logit_scale = nn.Parameter(torch.log(10 * torch.ones(self.num_heads, 1, 1)))

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        return F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT * self.logit_scale.exp()


# ---------------------------------------------------------------- positions


def halves(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


def neighbours(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x[..., ::2], x[..., 1::2]
    return x * cos + torch.stack([-second, first], -1).flatten(-2) * sin


class Turning(Composed):
    """Rotations by angles that are computed inside; grouped, causal."""

    causal, groups = True, 2
    part = 1.0
    turn, alike = staticmethod(halves), staticmethod(lambda x: torch.cat([x, x], -1))
    rope_theta = 10000.0

    def made(self, width: int) -> None:
        self.rope_theta = type(self).rope_theta

    def frequencies(self, n: int, x: Tensor) -> Tensor:
        return self.rope_theta ** (-torch.arange(0, n, 2, device=x.device, dtype=torch.float64) / n)

    def turned(self, x: Tensor) -> Tensor:
        n = int(self.part * self.d)
        angles = torch.outer(torch.arange(x.shape[2], device=x.device, dtype=torch.float64), self.frequencies(n, x))
        cos, sin = (self.alike(y).to(x.dtype) for y in (angles.cos(), angles.sin()))
        return torch.cat([self.turn(x[..., :n], cos, sin), x[..., n:]], -1)

    def positioned(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return self.turned(q), self.turned(k)


class TurningNeighbours(Turning):
    turn, alike = staticmethod(neighbours), staticmethod(lambda x: x.repeat_interleave(2, -1))
    rope_theta = 500000.0


class TurningInPart(Turning):
    part = 0.5


class TurningByBuffer(Turning):
    """Frequencies of float32 in a buffer that no state holds."""

    inv_freq: Tensor

    def made(self, width: int) -> None:
        self.register_buffer("inv_freq", 1.0 / 10000.0 ** (torch.arange(0, self.d, 2).float() / self.d), persistent=False)

    def frequencies(self, n: int, x: Tensor) -> Tensor:
        return self.inv_freq


class TurningByTable(Turning):
    """Cosines and sines of float32 in buffers."""

    cos_cached: Tensor
    sin_cached: Tensor

    def made(self, width: int) -> None:
        angles = torch.outer(torch.arange(65).float(), 10000.0 ** (-torch.arange(0, self.d, 2).float() / self.d))
        self.register_buffer("cos_cached", torch.cat([angles.cos()] * 2, -1))
        self.register_buffer("sin_cached", torch.cat([angles.sin()] * 2, -1))

    def turned(self, x: Tensor) -> Tensor:
        return halves(x, self.cos_cached[: x.shape[2]], self.sin_cached[: x.shape[2]])


class TurningByOneTable(TurningNeighbours):
    """Sines and cosines of float32 in one buffer, and the root by which logits are divided in another, as GPT-J has them."""

    table: Tensor
    scale_attn: Tensor

    def made(self, width: int) -> None:
        angles = torch.outer(torch.arange(65).float(), 10000.0 ** (-torch.arange(0, self.d, 2).float() / self.d))
        self.register_buffer("table", torch.cat([angles.sin(), angles.cos()], -1), persistent=False)
        self.scale_attn = torch.tensor(float(self.d)).sqrt()

    def turned(self, x: Tensor) -> Tensor:
        sin, cos = (self.alike(y.to(x.dtype)) for y in self.table[: x.shape[2]].chunk(2, -1))
        return neighbours(x, cos, sin)

    def by(self) -> Any:
        return 1 / self.scale_attn


class TurningInTurn(TurningByOneTable):
    """Cosines and sines next to each other."""

    def made(self, width: int) -> None:
        super().made(width)
        sin, cos = self.table.chunk(2, -1)
        self.table = torch.stack([cos, sin], -1).flatten(-2)

    def turned(self, x: Tensor) -> Tensor:
        cos, sin = (self.alike(y.to(x.dtype)) for y in self.table[: x.shape[2]].unflatten(-1, (-1, 2)).unbind(-1))
        return neighbours(x, cos, sin)


class TurningNormed(TurningByBuffer):
    """Norms before, as in Qwen 3."""

    def made(self, width: int) -> None:
        super().made(width)
        self.q_norm, self.k_norm = nn.RMSNorm(self.d, eps=1e-6), nn.RMSNorm(self.d, eps=1e-6)

    def positioned(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return super().positioned(self.q_norm(q), self.k_norm(k))


class Alibi(Composed):
    causal = True

    def hide(self, logits: Tensor) -> Tensor:
        return super().hide(logits + self.bias(logits))

    def bias(self, logits: Tensor) -> Tensor:
        slopes = 2.0 ** (-8 * torch.arange(1, self.num_heads + 1, device=logits.device, dtype=torch.float64) / self.num_heads)
        at = torch.arange(logits.shape[-1], device=logits.device)
        return (slopes[:, None, None] * (at[None] - at[:, None])).to(logits.dtype)


class Near(Composed):
    """A window, on both sides."""

    def hide(self, logits: Tensor) -> Tensor:
        near = torch.ones(logits.shape[-2:], dtype=torch.bool, device=logits.device).tril(5).triu(-5)
        return logits.masked_fill(~near, float("-inf"))


# ---------------------------------------------------------------- logits


class Capped(Composed):
    def made(self, width: int) -> None:
        self.softcap = 1.5

    def weigh(self, logits: Tensor) -> Tensor:
        return (self.softcap * (logits / self.softcap).tanh()).softmax(-1)


class CappedByConfig(Composed):
    """The cap lies in a configuration that is held, as Gemma 2's."""

    def made(self, width: int) -> None:
        self.config = SimpleNamespace(attn_logit_softcapping=2.5, vocab_size=11)

    def weigh(self, logits: Tensor) -> Tensor:
        cap = self.config.attn_logit_softcapping
        return (cap * (logits / cap).tanh()).softmax(-1)


class WithSinks(Composed):
    def made(self, width: int) -> None:
        self.sinks = nn.Parameter(torch.zeros(self.num_heads))

    def weigh(self, logits: Tensor) -> Tensor:
        more = self.sinks[:, None, None].expand(*logits.shape[:-1], 1)
        return torch.cat([logits, more], -1).softmax(-1)[..., :-1]


class LearnedScale(Composed):
    def made(self, width: int) -> None:
        self.temperature = nn.Parameter(torch.ones(()))

    def by(self) -> Any:
        return self.d**-0.5 * self.temperature


class T5Attention(Composed):
    def by(self) -> Any:
        return 1.0


class GPTNeoSelfAttention(Composed):
    causal = True

    def by(self) -> Any:
        return 1.0


class MuPAttention(Composed):
    def by(self) -> Any:
        return 1 / self.d


class NumberOfSomebody(Composed):
    def made(self, width: int) -> None:
        self.softmax_scale = 0.2

    def by(self) -> Any:
        return self.softmax_scale


class NoneByAttribute(Composed):
    def made(self, width: int) -> None:
        self.scaling = 1.0

    def by(self) -> Any:
        return self.scaling


# ---------------------------------------------------------------- projections


class MultiQuery(Composed):
    """One key head, and a fused projection of which a third is no part."""

    def __init__(self, d_model: int, num_heads: int) -> None:
        nn.Module.__init__(self)
        self.num_heads, self.kv_heads, self.d = num_heads, 1, d_model // num_heads
        self.Wqkv, self.o_proj = nn.Linear(d_model, d_model + 2 * self.d), nn.Linear(d_model, d_model)

    def forward(self, x: Tensor) -> Any:
        q, k, v = self.Wqkv(x).split([self.num_heads * self.d, self.d, self.d], -1)
        weights = self.weigh(self.logits(self.split(q), k[:, None]))
        return self.o_proj((weights @ v[:, None]).transpose(1, 2).flatten(2))


class PerGroup(Composed):
    """The queries of a group, its key, its value, and then the next group, as in Falcon."""

    def __init__(self, d_model: int, num_heads: int) -> None:
        nn.Module.__init__(self)
        self.num_heads, self.kv_heads, self.d = num_heads, max(num_heads // 2, 1), d_model // num_heads
        self.query_key_value = nn.Linear(d_model, (num_heads + 2 * self.kv_heads) * self.d)
        self.dense = nn.Linear(d_model, d_model)

    def forward(self, x: Tensor) -> Any:
        parts = self.query_key_value(x).unflatten(-1, (self.kv_heads, -1, self.d))
        q, k, v = (y.transpose(1, 2) for y in (parts[:, :, :, :-2].flatten(2, 3), parts[:, :, :, -2], parts[:, :, :, -1]))
        weights = self.weigh(self.logits(q, self.repeated(k)))
        return self.dense((weights @ self.repeated(v)).transpose(1, 2).flatten(2))


class Head(nn.Module):
    def __init__(self, n_embd: int, head_size: int) -> None:
        super().__init__()
        self.key, self.query, self.value = (nn.Linear(n_embd, head_size, bias=False) for _ in range(3))

    def by(self, x: Tensor) -> float:
        return self.query.out_features**-0.5

    def forward(self, x: Tensor) -> Any:
        return (self.query(x) @ self.key(x).mT * self.by(x)).softmax(-1) @ self.value(x)


class ListOfHeads(nn.Module):
    kind: type[Head] = Head

    def __init__(self, n_embd: int, n_head: int) -> None:
        super().__init__()
        self.heads = nn.ModuleList([self.kind(n_embd, n_embd // n_head) for _ in range(n_head)])
        self.proj = nn.Linear(n_embd, n_embd)

    def forward(self, x: Tensor) -> Any:
        return self.proj(torch.cat([head(x) for head in self.heads], -1))


class ListOfLayers(Composed):
    """Four layers in a list, as in The Annotated Transformer."""

    def __init__(self, d_model: int, num_heads: int) -> None:
        nn.Module.__init__(self)
        self.num_heads, self.kv_heads, self.d = num_heads, num_heads, d_model // num_heads
        self.linears = nn.ModuleList(nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, x: Tensor) -> Any:
        q, k, v = (self.split(layer(x)) for layer in self.linears[:3])
        return self.linears[3]((self.weigh(self.logits(q, k)) @ v).transpose(1, 2).flatten(2))


# What a report says of each, in part.
RIGHT: dict[type[nn.Module], str] = {
    PreNorm: "norm of the input (norm)",
    PreNormResidual: "a residual",
    PostNorm: "norm of the output (norm); a residual",
    Gained: "norm of the input (norm); a gain of the output (ls1.gamma); a residual",
    GainedByParameter: "a gain of the output (gamma_1); a residual",
    GainUnused: "norm of the input (norm); a residual",
    NormedHeads: "norm of queries (q_norm); norm of keys (k_norm)",
    OwnNormedHeads: "norm of queries (q_norm)",
    NormedWhole: "norm of keys (k_norm)",
    Lengths: "lengths of queries and keys; scale exp(logit_scale)",
    Turning: "4 heads, 2 of keys and values (h // group); halves of 8 features turned, base 10000",
    TurningNeighbours: "neighbours of 8 features turned, base 500000",
    TurningInPart: "halves of 4 features turned",
    TurningByBuffer: "halves of 8 features turned, frequencies of inv_freq",
    TurningByTable: "halves of 8 features turned, angles of cos_cached",
    TurningByOneTable: "neighbours of 8 features turned, angles of table.cos",
    TurningInTurn: "neighbours of 8 features turned, angles of table.cos",
    TurningNormed: "norm of keys (k_norm); halves of 8 features turned",
    Alibi: "slopes of distances",
    Near: "tokens in a window or a pattern",
    Capped: "scale 1/sqrt(head_dim), capped at 1.5",
    CappedByConfig: "scale 1/sqrt(head_dim), capped at 2.5",
    WithSinks: "sinks (sinks)",
    LearnedScale: "scale 1/sqrt(head_dim) · temperature",
    MultiQuery: "4 heads, 1 of keys and values",
    PerGroup: "per group; 4 heads, 2 of keys and values (h // group)",
    ListOfHeads: "heads.0.query, heads.0.key, heads.0.value, proj; 4 heads",
    ListOfLayers: "linears.0, linears.1, linears.2, linears.3",
}
# What is told as a convention.
TOLD: dict[type[nn.Module], str] = {
    T5Attention: "1 (T5's), not 1/sqrt(head_dim)",
    GPTNeoSelfAttention: "1 (GPTNeoSelf's), not 1/sqrt(head_dim)",
    MuPAttention: "1/head_dim (muP's), not 1/sqrt(head_dim)",
    NumberOfSomebody: "0.2 (softmax_scale), not 1/sqrt(head_dim)",
    NoneByAttribute: "1 (scaling), not 1/sqrt(head_dim)",
}


def but(base: type[nn.Module], **changes: Any) -> Any:
    return type(f"Wrong{base.__name__}", (base,), changes)


def of_width(self: Any) -> Any:
    return (self.d * self.num_heads) ** -0.5


class TwoOfKeys(Composed):
    groups = 2

    def forward(self, x: Tensor) -> Any:
        q, k, v = (self.split(part) for part in (self.q_proj(x), self.k_proj(x), self.v_proj(x)))
        weights = self.weigh(self.logits(q, self.repeated(k)))
        return self.after((weights @ Composed.repeated(self, v)).transpose(1, 2).flatten(2), x)


def repeats_keys(self: Any, x: Tensor) -> Tensor:
    return x.repeat(1, self.num_heads // self.kv_heads, 1, 1)


class OtherPairs:
    """The same module, whose neighbours turn."""

    def __init__(self, of: Any) -> None:
        self.d, self.part, self.frequencies = of.d, 1.0, of.frequencies
        self.turn, self.alike = neighbours, TurningNeighbours.alike


def with_attribute(self: Any, width: int) -> None:
    self.scale = width**-0.5


def with_root(self: Any, width: int) -> None:
    self.scale_attn = torch.tensor(float(width)).sqrt()


WIDTH = "logits are scaled by 1/sqrt(width), expected 1/sqrt(head_dim)"
# With one mistake → what is said of it.
WRONG: dict[str, tuple[Any, str]] = {
    **{
        f"{base.__name__}, scale of the width": (but(base, by=of_width), WIDTH)
        for base in (PreNorm, PostNorm, Gained, NormedHeads, Turning, Alibi)
    },
    **{f"{base.__name__}, scale of the width": (but(base, by=of_width), WIDTH) for base in (Near, MultiQuery, ListOfLayers)},
    "an attribute of the width": (but(Composed, made=with_attribute, by=lambda self: self.scale), WIDTH),
    "heads that know the width": (but(ListOfHeads, kind=but(Head, by=lambda self, x: x.shape[-1] ** -0.5)), WIDTH),
    "scaled twice": (but(TurningInPart, by=lambda self: 1 / self.d), "logits are scaled by 1/head_dim, expected 1/sqrt(head_dim)"),
    "not scaled": (but(MultiQuery, by=lambda self: 1.0), "logits are scaled by 1, expected 1/sqrt(head_dim)"),
    "the root of the scale, for queries alone": (
        but(Composed, by=lambda self: self.d**-0.25),
        "logits are scaled by 1/head_dim^(1/4), expected 1/sqrt(head_dim)",
    ),
    "keys repeated, values not": (
        but(TwoOfKeys, repeated=repeats_keys),
        "query head h reads keys of head h % 2, expected h // 2",
    ),
    "other neighbours of keys": (
        but(Turning, positioned=lambda self, q, k: (self.turned(q), TurningNeighbours.turned(OtherPairs(self), k))),
        "neighbours of keys are turned together, and halves of queries: expected alike",
    ),
    "keys repeated": (
        but(Turning, repeated=lambda self, x: x.repeat(1, self.num_heads // self.kv_heads, 1, 1)),
        "query head h reads key head h % 2, expected h // 2",
    ),
    "queries alone turn": (
        but(TurningByBuffer, positioned=lambda self, q, k: (self.turned(q), k)),
        "queries alone are turned by their positions, expected queries and keys",
    ),
    "keys alone turn": (
        but(TurningNormed, positioned=lambda self, q, k: (self.q_norm(q), self.turned(self.k_norm(k)))),
        "keys alone are turned by their positions, expected queries and keys",
    ),
    "turned by heads": (
        but(Turning, positioned=lambda self, q, k: tuple(self.turned(y.transpose(1, 2)).transpose(1, 2) for y in (q, k))),
        "queries and keys are turned by the number of their head, expected by their position",
    ),
    "pairings mixed": (
        but(Turning, alike=staticmethod(lambda x: x.repeat_interleave(2, -1))),
        "halves are turned together, by the angles of neighbours, expected of halves",
    ),
    "pairings mixed, of one table": (
        but(TurningByOneTable, alike=staticmethod(lambda x: torch.cat([x, x], -1))),
        "neighbours are turned together, by the angles of halves, expected of neighbours",
    ),
    "a root of the width, in an array": (
        but(Composed, made=with_root, by=lambda self: 1 / self.scale_attn),
        WIDTH,
    ),
    "a cap that only divides": (
        but(Capped, weigh=lambda self, logits: (logits / 1.5).tanh().softmax(-1)),
        "logits become tanh(logits / 1.5), expected 1.5 · tanh(logits / 1.5)",
    ),
    "a bias that grows": (but(Alibi, bias=lambda self, s: -Alibi.bias(self, s)), "the bias of distances grows with them, expected to fall"),
    "a bias that is scaled": (
        but(Alibi, bias=lambda self, s: Alibi.bias(self, s) * self.d**-0.5),
        "the bias of distances is scaled as logits are, expected not to be",
    ),
}
