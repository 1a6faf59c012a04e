"""Modules that are right in unusual ways: fused projections, positions of every kind, windows, grouped heads, norms, sinks, images."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from ..registry import Function, honest
from .modular import Attention, Axial, Decoder, Holding, InDictionary, PoolOfImage, Shifted, Started, Turned, Windowed


def _right(idea: str, source: str = "common practice") -> Any:
    def register(function: Function) -> Function:
        return honest(idea, source=source, contract="module")(function)

    return register


@_right("one projection for queries, keys and values; causal by a buffer", "karpathy/nanoGPT")
class CausalSelfAttention(nn.Module):
    bias: Tensor

    def __init__(self, n_embd: int, n_head: int, block_size: int = 1024, dropout: float = 0.1) -> None:
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(n_embd, 3 * n_embd), nn.Linear(n_embd, n_embd)
        self.n_head, self.attn_dropout, self.resid_dropout = n_head, nn.Dropout(dropout), nn.Dropout(dropout)
        self.register_buffer("bias", torch.tril(torch.ones(block_size, block_size)).view(1, 1, block_size, block_size))

    def forward(self, x: Tensor) -> Any:
        b, t, c = x.size()
        q, k, v = (y.view(b, t, self.n_head, c // self.n_head).transpose(1, 2) for y in self.c_attn(x).split(c, dim=2))
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = self.attn_dropout(att.masked_fill(self.bias[:, :, :t, :t] == 0, float("-inf")).softmax(-1))
        return self.resid_dropout(self.c_proj((att @ v).transpose(1, 2).contiguous().view(b, t, c)))


@_right("keys and values of grouped heads, rotated positions that come from outside, norms of queries and keys, softmax in float32")
class Grouped(nn.Module):
    def __init__(self, hidden_size: int, num_attention_heads: int, num_key_value_heads: int, head_dim: int) -> None:
        super().__init__()
        self.head_dim, self.groups = head_dim, num_attention_heads // num_key_value_heads
        self.q_proj = nn.Linear(hidden_size, num_attention_heads * head_dim, bias=False)
        self.k_proj, self.v_proj = (nn.Linear(hidden_size, num_key_value_heads * head_dim, bias=False) for _ in range(2))
        self.o_proj = nn.Linear(num_attention_heads * head_dim, hidden_size, bias=False)
        self.q_norm, self.k_norm = nn.RMSNorm(head_dim, eps=1e-6), nn.RMSNorm(head_dim, eps=1e-6)

    def forward(self, hidden_states: Tensor, position_embeddings: tuple[Tensor, Tensor], attention_mask: Tensor | None = None) -> Any:
        shape = (*hidden_states.shape[:-1], -1, self.head_dim)
        q = self.q_norm(self.q_proj(hidden_states).view(shape)).transpose(1, 2)
        k = self.k_norm(self.k_proj(hidden_states).view(shape)).transpose(1, 2)
        v = self.v_proj(hidden_states).view(shape).transpose(1, 2)
        cos, sin = (y.unsqueeze(1) for y in position_embeddings)
        q, k = (y * cos + torch.cat([-y.chunk(2, -1)[1], y.chunk(2, -1)[0]], -1) * sin for y in (q, k))
        k, v = (y.repeat_interleave(self.groups, dim=1) for y in (k, v))
        scores = q @ k.transpose(2, 3) * self.head_dim**-0.5
        if attention_mask is not None:
            scores = scores + attention_mask[:, :, :, : k.shape[-2]]
        weights = scores.softmax(-1, dtype=torch.float32).to(q.dtype)
        return self.o_proj((weights @ v).transpose(1, 2).reshape(*hidden_states.shape[:-1], -1)), weights


@_right("a window: a token sees the three before and after it", "allenai/longformer")
class Local(Attention):
    def attend(self, x: Tensor, memory: Tensor, mask: Tensor | None, is_causal: bool) -> Tensor:
        self.windowed = memory is x
        return super().attend(x, memory, mask, is_causal)

    def hide(self, logits: Tensor, mask: Tensor | None, causal: Tensor | None) -> Tensor:
        if self.windowed:
            near = torch.ones(logits.shape[-2:], dtype=torch.bool, device=logits.device).tril(3).triu(-3)
            logits = logits.masked_fill(~near, float("-inf"))
        return super().hide(logits, mask, causal)


@_right("relative positions: a learned number for every distance, no scale", "google-research/text-to-text-transfer-transformer")
class Relative(Attention):
    def __init__(self, d_model: int, num_heads: int, dropout: float = 0.0) -> None:
        super().__init__(d_model, num_heads, dropout)
        self.relative = nn.Embedding(129, num_heads)

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        i, j = (torch.arange(n, device=q.device) for n in (q.shape[2], k.shape[2]))
        return q @ k.transpose(-2, -1) + self.relative((j[None] - i[:, None]).clamp(-64, 64) + 64).permute(2, 0, 1)


@_right("a sink: one more learned logit for every head, without a value", "openai/gpt-oss")
class Sinks(Attention):
    def __init__(self, d_model: int, num_heads: int, dropout: float = 0.0) -> None:
        super().__init__(d_model, num_heads, dropout)
        self.sinks = nn.Parameter(torch.zeros(num_heads))

    def weigh(self, logits: Tensor) -> Tensor:
        more = self.sinks[:, None, None].expand(*logits.shape[:-1], 1)
        return torch.cat([logits, more.to(logits.dtype)], -1).softmax(-1)[..., :-1]


@_right("attention in bfloat16 whatever its tokens are, as it says", "Dao-AILab/flash-attention")
class InBfloat16(Attention):
    """Queries, keys and values are cast to bfloat16, and the result back."""

    def split(self, x: Tensor) -> Tensor:
        return super().split(x).to(torch.bfloat16)

    def mix(self, weights: Tensor, v: Tensor) -> Tensor:
        return super().mix(weights, v).to(self.out_proj.weight.dtype)


@_right("talking heads: logits and weights are mixed across heads", "lucidrains/x-transformers")
class Talking(Attention):
    def __init__(self, d_model: int, num_heads: int, dropout: float = 0.0) -> None:
        super().__init__(d_model, num_heads, dropout)
        self.before, self.after = nn.Linear(num_heads, num_heads, bias=False), nn.Linear(num_heads, num_heads, bias=False)

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        return self.before(super().logits(q, k).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)

    def weigh(self, logits: Tensor) -> Tensor:
        return self.after(super().weigh(logits).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


@_right("an image, channels first, answered beside itself", "CompVis/latent-diffusion")
class OfImages(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(2, channels)
        self.qkv, self.proj = nn.Conv2d(channels, 3 * channels, 1), nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Any:
        b, c, h, w = x.shape
        q, k, v = self.qkv(self.norm(x)).reshape(b, 3, c, h * w).unbind(1)
        weights = torch.einsum("bci,bcj->bij", q * c**-0.5, k).softmax(-1)
        return x + self.proj(torch.einsum("bij,bcj->bci", weights, v).reshape(b, c, h, w))


@_right("pixels see their line and their column of an image", "lucidrains/axial-attention")
class SeesLinesAndColumns(Axial):
    pass


@_right("the mean of an image of one size sees its pixels; positions are learned", "openai/CLIP")
class PoolsAnImage(PoolOfImage):
    pass


@_right("pre-norm, a gate, a residual, and PyTorch's own attention within")
class Gated(Attention):
    def __init__(self, d_model: int, num_heads: int, dropout: float = 0.0) -> None:
        super().__init__(d_model, num_heads, dropout)
        self.norm, self.gate = nn.LayerNorm(d_model), nn.Linear(d_model, d_model)

    def attend(self, x: Tensor, memory: Tensor, mask: Tensor | None, is_causal: bool) -> Tensor:
        normed = self.norm(x)
        q, k, v = (self.split(y) for y in self.project(normed, normed if memory is x else memory))
        seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=x.device)
        seen = (seen.tril() if is_causal else seen)[None, None]
        seen = seen if mask is None else seen & mask[:, None, None]
        out = scaled_dot_product_attention(q, k, v, attn_mask=seen, dropout_p=self.dropout * self.training)
        return x + self.finish(self.merge(out)) * self.gate(normed).sigmoid()


@_right("queries, keys and values by einsum with weights (features, heads, features of a head)", "google/flax")
class ByEinsum(nn.Module):
    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__()
        d = d_model // num_heads
        self.w_q, self.w_k, self.w_v = (nn.Parameter(torch.randn(d_model, num_heads, d)) for _ in range(3))
        self.w_o = nn.Parameter(torch.randn(num_heads, d, d_model))

    def forward(self, inputs_q: Tensor, inputs_kv: Tensor) -> Any:
        q = torch.einsum("bld,dhk->bhlk", inputs_q, self.w_q)
        k, v = (torch.einsum("bsd,dhk->bhsk", inputs_kv, w) for w in (self.w_k, self.w_v))
        return torch.einsum("bhlk,hkd->bld", (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v, self.w_o)


@_right("one query pools all tokens", "openai/CLIP")
class Pool(Attention):
    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return self.attend(x.mean(1, keepdim=True), x, None, False)[:, 0]


# ---------------------------------------------------------------- with a cache, or angles from outside


@_right("causal, rotated positions; keys and values come back, and are given to the next call", "huggingface/transformers")
class HandsBack(Decoder):
    pass


@_right("keys and values stay in the module until it is reset", "rasbt/LLMs-from-scratch")
class Holds(Holding):
    pass


@_right("two layers keep their keys and values in a dictionary that calls fill", "openai/whisper")
class FillsDictionary(InDictionary):
    pass


@_right("keys and values stand in slots of the module, written from start_pos on", "meta-llama/llama")
class WritesSlots(Started):
    pass


@_right("cosines and sines of the positions come from outside", "huggingface/transformers")
class IsTurned(Turned):
    pass


@_right("neighbouring features turn together; cosines and sines come from outside, each twice", "lucidrains/rotary-embedding-torch")
class TurnsNeighbours(Turned):
    def turn(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return x * cos + torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2) * sin


@_right("a sliding window, kept with a cache of as many tokens", "mistralai/mistral-inference")
class Slides(Decoder):
    def place(self, past: Any) -> int:
        return 0 if past is None else int(past[2])

    def forward(self, x: Tensor, past: Any = None, use_cache: bool = False) -> Any:
        out, kept = self.attend(x, past, use_cache)
        assert kept is not None
        return out, (*kept, self.place(past) + x.shape[1])

    def frontier(self, rows: int, keys: int) -> Tensor:
        return super().frontier(rows, keys).triu(keys - rows - 4)

    def keep(self, k: Tensor, v: Tensor, new: int) -> Any:
        return k[:, :, -4:], v[:, :, -4:]


@_right("windows of 16 tokens with learned relative positions: one length alone", "microsoft/Swin-Transformer")
class InWindows(Windowed):
    pass


@_right("windows of an image, shifted by half of one", "microsoft/Swin-Transformer")
class InShiftedWindows(Shifted):
    pass


@_right("learned registers are seen by all tokens, and come back with none", "facebookresearch/dinov2")
class Registers(Attention):
    def __init__(self, d_model: int, num_heads: int, dropout: float = 0.0) -> None:
        super().__init__(d_model, num_heads, dropout)
        self.register_tokens = nn.Parameter(torch.zeros(1, 4, d_model))

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        more = torch.cat([self.register_tokens.expand(len(x), -1, -1), x], 1)
        return self.attend(more, more, None, False)[:, 4:]


@_right("learned latents ask, and the tokens answer: as many rows as there are latents", "google-deepmind/deepmind-research")
class Resamples(Attention):
    def __init__(self, d_model: int, num_heads: int, num_latents: int, dropout: float = 0.0) -> None:
        super().__init__(d_model, num_heads, dropout)
        self.latents = nn.Parameter(torch.randn(num_latents, d_model))

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return self.attend(self.latents.expand(len(x), -1, -1), x, None, False)


@_right("talking heads with biases: weights do not sum to one", "facebookresearch/deit")
class TalkingWithBias(Talking):
    def __init__(self, d_model: int, num_heads: int, dropout: float = 0.0) -> None:
        super().__init__(d_model, num_heads, dropout)
        self.before, self.after = nn.Linear(num_heads, num_heads), nn.Linear(num_heads, num_heads)

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return self.attend(x, x, None, False)


class BySoftmaxOfItsOwn(torch.autograd.Function):
    """softmax with a backward pass by hand, which says that it cannot be differentiated again."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor) -> Tensor:
        p = logits.softmax(-1)
        ctx.save_for_backward(p)
        return p

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (p,) = ctx.saved_tensors
        inner = p * grads[0]
        return inner - p * inner.sum(-1, keepdim=True)


@_right("a softmax with a backward pass by hand, differentiated once only")
class BackwardByHand(Attention):
    def weigh(self, logits: Tensor) -> Tensor:
        return BySoftmaxOfItsOwn.apply(logits)


@_right("nothing is kept for the backward pass: all is computed again", "torch.utils.checkpoint")
class Checkpointed(Attention):
    def attend(self, x: Tensor, memory: Tensor, mask: Tensor | None, is_causal: bool) -> Tensor:
        return checkpoint(super().attend, x, memory, mask, is_causal, use_reentrant=False)
