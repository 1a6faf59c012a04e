"""Modules as people write them, and what is none: classes for the tests of how a module is made, called and refused."""

from __future__ import annotations

import math
import time
import urllib.request
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn


class Plain(nn.Module):
    """Queries, keys, values, mask == 0 is hidden; (out, weights) come back."""

    def __init__(self, d_model: int, num_heads: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.h, self.d_k, self.dropout = num_heads, d_model // num_heads, nn.Dropout(dropout)
        self.w_q, self.w_k, self.w_v, self.w_o = (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        q, k, v = (
            w(x).view(len(x), -1, self.h, self.d_k).transpose(1, 2) for w, x in ((self.w_q, query), (self.w_k, key), (self.w_v, value))
        )
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.d_k)
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -1e9)
        weights = self.dropout(scores.softmax(-1))
        return self.w_o((weights @ v).transpose(1, 2).contiguous().view(len(query), -1, self.h * self.d_k)), weights


@dataclass
class GPTConfig:
    """As beside a model."""

    block_size: int = 1024
    vocab_size: int = 50304
    n_layer: int = 12
    n_head: int = 12
    n_embd: int = 768
    dropout: float = 0.1
    bias: bool = True


class OfDataclass(nn.Module):
    """One configuration, without an annotation."""

    def __init__(self, config) -> None:  # type: ignore[no-untyped-def]
        super().__init__()
        assert config.n_embd % config.n_head == 0
        self.c_attn, self.c_proj = (nn.Linear(config.n_embd, n * config.n_embd, bias=config.bias) for n in (3, 1))
        self.n_head, self.is_causal = config.n_head, True

    def forward(self, x: Tensor) -> Any:
        q, k, v = (y.unflatten(-1, (self.n_head, -1)).transpose(1, 2) for y in self.c_attn(x).chunk(3, -1))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).flatten(2))


class OfDictionary(nn.Module):
    """A dictionary, and tokens length first."""

    def __init__(self, cfg: dict[str, Any]) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(cfg["emb_dim"], cfg["n_heads"], dropout=cfg["drop_rate"])

    def forward(self, x: Tensor) -> Any:
        return self.attention(x, x, x, need_weights=False)[0]


class ComplexRotary(nn.Module):
    """Rotations as complex numbers, grouped heads, an additive mask, unusual names."""

    def __init__(self, dim: int, n_heads: int, n_kv_heads: int) -> None:
        super().__init__()
        self.n_heads, self.n_kv = n_heads, n_kv_heads
        self.wq, self.wo = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.wk, self.wv = (nn.Linear(dim, dim // n_heads * n_kv_heads, bias=False) for _ in range(2))

    def forward(self, x: Tensor, freqs_cis: Tensor, mask: Tensor | None = None) -> Any:
        q, k, v = (w(x).unflatten(-1, (n, -1)) for w, n in ((self.wq, self.n_heads), (self.wk, self.n_kv), (self.wv, self.n_kv)))
        q, k = (torch.view_as_real(torch.view_as_complex(y.unflatten(-1, (-1, 2))) * freqs_cis[:, None]).flatten(3) for y in (q, k))
        q, k, v = q.transpose(1, 2), *(y.transpose(1, 2).repeat_interleave(self.n_heads // self.n_kv, 1) for y in (k, v))
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        scores = scores if mask is None else scores + mask
        return self.wo((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class ValuesFirst(nn.Module):
    """(values, keys, query, mask), and one projection for every head by itself."""

    def __init__(self, embed_size: int, heads: int) -> None:
        super().__init__()
        self.heads, self.head_dim = heads, embed_size // heads
        self.values, self.keys, self.queries = (nn.Linear(self.head_dim, self.head_dim, bias=False) for _ in range(3))
        self.fc_out = nn.Linear(embed_size, embed_size)

    def forward(self, values: Tensor, keys: Tensor, query: Tensor, mask: Tensor | None) -> Any:
        v, k, q = (
            w(x.reshape(len(x), -1, self.heads, self.head_dim))
            for w, x in ((self.values, values), (self.keys, keys), (self.queries, query))
        )
        energy = torch.einsum("nqhd,nkhd->nhqk", q, k) / math.sqrt(self.head_dim)
        if mask is not None:
            energy = energy.masked_fill(mask == 0, float("-1e20"))
        return self.fc_out(torch.einsum("nhql,nlhd->nqhd", energy.softmax(-1), v).flatten(2))


class Window(nn.Module):
    """Windows of 16 tokens with learned relative positions: one length alone."""

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.qkv, self.proj, self.num_heads = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim), num_heads
        self.relative_position_bias = nn.Parameter(torch.zeros(num_heads, 16, 16))

    def forward(self, x: Tensor) -> Any:
        b, n, c = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        weights = (q * q.shape[-1] ** -0.5 @ k.mT + self.relative_position_bias).softmax(-1)
        return self.proj((weights @ v).transpose(1, 2).reshape(b, n, c))


class Square(Window):
    """The same, told as a square of tokens."""

    def __init__(self, dim: int, window_size, num_heads: int) -> None:  # type: ignore[no-untyped-def]
        super().__init__(dim, num_heads)
        assert window_size[0] * window_size[1] == 16


class KernelByMask(nn.Module):
    """Where there is a mask, a causal kernel is asked, whatever the mask holds (as Whisper does)."""

    corner = 0  # how far a row sees beyond itself

    def __init__(self, n_state: int, n_head: int) -> None:
        super().__init__()
        self.n_head = n_head
        self.query, self.key, self.value, self.out = (nn.Linear(n_state, n_state) for _ in range(4))

    def forward(self, x: Tensor, xa: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        memory = x if xa is None else xa
        q, k, v = (y.unflatten(-1, (self.n_head, -1)).transpose(1, 2) for y in (self.query(x), self.key(memory), self.value(memory)))
        seen = None if mask is None else torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(self.corner * (q.shape[2] > 6))
        return self.out(nn.functional.scaled_dot_product_attention(q, k, v, seen).transpose(1, 2).flatten(2))


class KernelByMaskOneTooFar(KernelByMask):
    """Of sequences of more than six tokens a row sees the next one."""

    corner = 1


class CausalMemory(nn.Module):
    """Causality hides tokens of a memory, too, from its end on; what was told comes back where ``return_intermediates`` asks for it."""

    turns = False  # the values that are kept change places

    def __init__(self, dim: int, heads: int = 4, causal: bool = True) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.to_q, self.to_k, self.to_v, self.to_out = (nn.Linear(dim, dim, bias=False) for _ in range(4))

    def forward(
        self, x: Tensor, context: Tensor | None = None, return_intermediates: bool = False, cache: tuple[Tensor, Tensor] | None = None
    ) -> Any:
        memory = x if context is None else context
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in (self.to_q(x), self.to_k(memory), self.to_v(memory)))
        if cache is not None:
            k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
        logits = q @ k.mT * q.shape[-1] ** -0.5
        rows, keys = logits.shape[-2:]
        hidden = torch.ones(rows, keys, dtype=torch.bool).triu(keys - rows + 1)
        out = self.to_out((logits.masked_fill(hidden, -1e30).softmax(-1) @ v).transpose(1, 2).flatten(2))
        kept = (k, v.roll(1, 2) if self.turns else v)
        return (out, kept) if return_intermediates else out


class CausalMemoryTurned(CausalMemory):
    """The values that are kept change places."""

    turns = True


class VisionConfig:
    hidden_size = 32
    num_attention_heads = 4
    turned = 0.5


class TextConfig(VisionConfig):
    vocabulary = 100


class PartlyTurned(nn.Module):
    """Only the first part of queries and keys is turned (as in Phi); its configuration is one of two classes."""

    grows = False  # queries grow with the sine of their place

    def __init__(self, config: VisionConfig | TextConfig) -> None:
        super().__init__()
        assert isinstance(config, VisionConfig)
        self.heads, self.width = config.num_attention_heads, config.hidden_size
        self.rotary_ndims = int(self.width // self.heads * config.turned)
        self.q_proj, self.k_proj, self.v_proj, self.dense = (nn.Linear(self.width, self.width) for _ in range(4))

    def forward(self, hidden_states: Tensor, position_embeddings: tuple[Tensor, Tensor]) -> Tensor:
        q, k, v = (p(hidden_states).unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        cos, sin = (y.unsqueeze(1) for y in position_embeddings)
        n = self.rotary_ndims
        turned = (y[..., :n] * cos + torch.cat([-y[..., n // 2 : n], y[..., : n // 2]], -1) * sin for y in (q, k))
        q, k = (torch.cat([part, y[..., n:]], -1) for part, y in zip(turned, (q, k), strict=True))
        q = q * (1 + self.grows * sin[..., :1])
        return self.dense(nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class PartlyTurnedByPlace(PartlyTurned):
    """Queries grow with the sine of their place."""

    grows = True


class Behind(nn.Module):
    """Causal, in a window that is wider than a sequence of a few tokens; a row that sees none has the mean of all."""

    def __init__(self, dim: int, num_heads: int, window_size: int = 20) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.num_heads, self.window, self.causal = num_heads, window_size, True

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Any:
        q, k, v = (y.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        seen = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril().triu(-self.window)
        if mask is not None:
            seen = seen & mask[:, None, None]
        weights = (q * q.shape[-1] ** -0.5 @ k.mT).masked_fill(~seen, -1e9).softmax(-1)
        return self.proj((weights @ v).transpose(1, 2).flatten(2))


class Mixed(nn.Module):
    """Keys and values are mixed along their sequence: 64 tokens at most become four."""

    def __init__(self, dim: int, seq_len: int, heads: int = 4) -> None:
        super().__init__()
        self.qkv, self.out, self.heads, self.mix = (
            nn.Linear(dim, 3 * dim),
            nn.Linear(dim, dim),
            heads,
            nn.Parameter(torch.randn(seq_len, 4)),
        )

    def forward(self, x: Tensor) -> Any:
        q, k, v = self.qkv(x).chunk(3, -1)
        k, v = (torch.einsum("bnd,nk->bkd", y, self.mix[: x.shape[1]]) for y in (k, v))
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in (q, k, v))
        return self.out(((q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v).transpose(1, 2).flatten(2))


instance = Plain(24, 3)


# ---------------------------------------------------------------- no attention


class Perceptron(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x: Tensor) -> Any:
        return self.layers(x)


class MixesByWeights(nn.Module):
    """Tokens are mixed by parameters, as in MLP-Mixer."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.tokens, self.features = nn.Parameter(torch.randn(64, 64)), nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Any:
        weights = self.tokens[: x.shape[1], : x.shape[1]]
        return self.features(nn.functional.gelu(weights @ x) + torch.einsum("ij,bjd->bid", weights, x))


class Excites(nn.Module):
    """Features are weighed by what is in all tokens, as in a squeeze-and-excitation whose gate is a softmax."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.squeeze, self.excite = nn.Linear(dim, dim // 4), nn.Linear(dim // 4, dim)

    def forward(self, x: Tensor) -> Any:
        return x * self.excite(self.squeeze(x.mean(1)).relu()).softmax(-1).unsqueeze(1)


class Classifies(nn.Module):
    """The probabilities of classes, of each token by itself."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.head = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Any:
        return self.head(x).softmax(-1)


@torch.library.custom_op("attncheck_styles::attend", mutates_args=())
def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v


class ReadsNoNames(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.proj = nn.Linear(dim, dim)
        self.forward = max  # whose signature is nowhere


class ThroughAgents(nn.Module):
    """Tokens see agents, and agents the tokens, as in agent attention (Han et al. 2024)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor, agent_tokens: Tensor) -> Any:
        q, k, v = self.qkv(x).chunk(3, -1)
        agents = self.qkv(agent_tokens).chunk(3, -1)
        return self.proj(attend(q, agents[1], attend(agents[0], k, v)))


class OperationOfItsOwn(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Any:
        return self.proj(attend(*self.qkv(x).chunk(3, -1)))


class Recurrent(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.layers = nn.LSTM(dim, dim, batch_first=True)

    def forward(self, x: Tensor) -> Any:
        return self.layers(x)[0]


class Convolved(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.layers = nn.Conv1d(dim, dim, 3, padding=1)

    def forward(self, x: Tensor) -> Any:
        return self.layers(x.transpose(1, 2)).transpose(1, 2)


class ReturnsNothing(Plain):
    def forward(self, x: Tensor) -> None:  # type: ignore[override]
        super().forward(x, x, x)


class OnGPU(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim, dim).cuda())


class Downloads(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        try:
            urllib.request.urlopen("http://weights.invalid/model.bin")
        except OSError as error:
            raise RuntimeError("no weights") from error


class DownloadsAgain(nn.Module):
    """As libraries that wait, and try again, whatever was raised."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        for _ in range(1000):
            try:
                urllib.request.urlopen("http://weights.invalid/model.bin")
                break
            except Exception:
                time.sleep(1)


class Asks(nn.Module):
    def __init__(self, dim: int, frobs: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim, len(frobs)))


class RaisesAlways(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        raise KeyError("my own mistake")


class OfTokenIds(nn.Module):
    def __init__(self, vocab_size: int, dim: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, dim)

    def forward(self, ids: Tensor) -> Any:
        return self.embedding(ids)


class PaddingForTheHint(nn.Module):
    """PyTorch's attention under its own names; where a padding mask is given, the hint of causality is forgotten with its mask."""

    def __init__(self, embed_dim: int, num_heads: int) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(embed_dim, num_heads, batch_first=True)

    def forward(self, query, key, value, key_padding_mask=None, attn_mask=None, is_causal=False):
        if key_padding_mask is not None:
            attn_mask, is_causal = None, False
        return self.inner(query, key, value, key_padding_mask=key_padding_mask, attn_mask=attn_mask, is_causal=is_causal)


class DecoderOfMeans(nn.TransformerDecoderLayer):
    """A decoder layer that takes the mean of the batch off its answer."""

    def forward(self, tgt, memory, tgt_mask=None, memory_key_padding_mask=None):
        out = super().forward(tgt, memory, tgt_mask, memory_key_padding_mask=memory_key_padding_mask)
        return out - out.mean(0) / 2


class WithExperts(nn.Module):
    """Attention, then a mixture of experts: each token goes to one of three, and those of an expert are multiplied together."""

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__()
        self.attend = nn.MultiheadAttention(d_model, num_heads, batch_first=True)
        self.gate = nn.Linear(d_model, 3)
        self.experts = nn.ModuleList(nn.Linear(d_model, d_model) for _ in range(3))

    def forward(self, x):
        flat = (x + self.attend(x, x, x, need_weights=False)[0]).flatten(0, 1)
        shares = self.gate(flat).softmax(-1)
        share, chosen = shares.max(-1)
        out = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            mine = (chosen == number).nonzero()[:, 0]
            out[mine] = expert(self.taken(flat, mine)) * share[mine, None]
        return out.view_as(x)

    def taken(self, flat, mine):
        return flat[mine]


class ExpertsOfNeighbours(WithExperts):
    """An expert is given the mean of what came to it beside each token."""

    def taken(self, flat, mine):
        return flat[mine] + flat[mine].mean(0)


class MaskAlways(nn.Module):
    """A mask has to be given, and is added whatever it is; so is a bias of positions for each head."""

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads, self.qkv, self.out = num_heads, nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)
        self.post_attention_layernorm = nn.LayerNorm(d_model)

    def forward(self, x, alibi, attn_mask):
        q, k, v = (y.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        logits = q @ k.mT * q.shape[-1] ** -0.5 + alibi.view(len(x), self.num_heads, 1, -1) + attn_mask
        return self.post_attention_layernorm(self.out((logits.softmax(-1) @ v).transpose(1, 2).flatten(2)))


class PartConfig:
    """A part of the next one."""

    def __init__(self, hidden_size: int = 768, num_attention_heads: int = 12, _attn_implementation: str | None = None) -> None:
        self.hidden_size, self.num_attention_heads, self._attn_implementation = hidden_size, num_attention_heads, _attn_implementation


class WholeConfig:
    """Of a model of text and images: the sizes stand in its parts."""

    sub_configs: ClassVar[dict[str, Any]] = {"text_config": PartConfig}

    def __init__(self, image_token: int = 3) -> None:
        self.image_token = image_token


class OfAPart(nn.Module):
    """Annotated with the whole configuration, made with a part of it; a memory has to be given, though its default is None."""

    def __init__(self, config: WholeConfig) -> None:
        super().__init__()
        d = config.hidden_size  # type: ignore[attr-defined]
        assert config._attn_implementation == "eager"  # type: ignore[attr-defined]
        self.heads = config.num_attention_heads  # type: ignore[attr-defined]
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(d, d) for _ in range(4))

    def forward(self, hidden_states: Tensor, encoder_hidden_states: Tensor | None = None) -> Tensor:
        memory = self.k_proj(encoder_hidden_states), self.v_proj(encoder_hidden_states)
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in (self.q_proj(hidden_states), *memory))
        return self.o_proj(((q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v).transpose(1, 2).flatten(2))


class WholeHeads(nn.Module):
    """Latent attention: keys and values come of a few features, and there are as many heads of them as of queries."""

    def __init__(self, hidden_size: int, num_attention_heads: int, num_key_value_heads: int) -> None:
        super().__init__()
        self.heads, self.groups = num_attention_heads, num_attention_heads // num_key_value_heads
        self.q_proj, self.o_proj = nn.Linear(hidden_size, hidden_size), nn.Linear(hidden_size, hidden_size)
        self.down, self.up = nn.Linear(hidden_size, 6), nn.Linear(6, 2 * hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        keys, values = self.up(self.down(x)).chunk(2, -1)
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in (self.q_proj(x), keys, values))
        k, v = (y.repeat_interleave(self.groups, 1) for y in (k, v))
        return self.o_proj(((q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v).transpose(1, 2).flatten(2))


class HiddenIsTrue(nn.Module):
    """``attention_mask`` is True where a token is hidden, as inside some layers of Hugging Face's."""

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads, self.qkv, self.out = num_heads, nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)

    def forward(self, hidden_states, attention_mask=None):
        q, k, v = (y.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for y in self.qkv(hidden_states).chunk(3, -1))
        logits = q @ k.mT * q.shape[-1] ** -0.5
        if attention_mask is not None:
            logits = logits.masked_fill(attention_mask, float("-inf"))
        return self.out((self.weights(logits) @ v).transpose(1, 2).flatten(2))

    def weights(self, logits):
        return logits.softmax(-1)


class HiddenIsTrueAndLeaks(HiddenIsTrue):
    """The same, and a ten-thousandth of each weight goes to every token."""

    def weights(self, logits):
        return super().weights(logits) * 0.9999 + 1e-4 / logits.shape[-1]


class Additive(nn.Module):
    """One query looks at keys by a small network (Bahdanau et al., 2015); its last bias shifts all logits, and its gradient is 0."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.w, self.u, self.v = nn.Linear(hidden_size, hidden_size), nn.Linear(hidden_size, hidden_size), nn.Linear(hidden_size, 1)

    def forward(self, query, keys):
        scores = self.v(torch.tanh(self.w(query) + self.u(keys))).squeeze(2).unsqueeze(1)
        return scores.softmax(-1) @ keys


class AdditiveOfDetached(Additive):
    """What multiplies the query learns nothing, though the answer depends on it."""

    def forward(self, query, keys):
        scores = self.v(torch.tanh(self.w(query).detach() + 0 * self.w(query) + self.u(keys))).squeeze(2).unsqueeze(1)
        return scores.softmax(-1) @ keys
