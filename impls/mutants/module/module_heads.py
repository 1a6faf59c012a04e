"""Modules: heads split and merged, softmaxes, causality, memories, sequences that meet."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .modular import Attention, wrong

# ---------------------------------------------------------------- heads


@wrong("heads are split by view, without a transpose", "module_permuted_tokens_permute_rows", "reczoo/FuxiCTR#30", "D01")
class SplitByView(Attention):
    def split(self, x: Tensor) -> Tensor:
        return x.reshape(x.shape[0], self.num_heads, x.shape[1], self.head_dim)


@wrong(
    "heads are merged by reshape, without a transpose", "module_permuted_tokens_permute_rows", "jsbaan/transformer-from-scratch#6", "D02"
)
class MergedByReshape(Attention):
    def merge(self, out: Tensor) -> Tensor:
        return out.reshape(out.shape[0], out.shape[2], -1)


@wrong("heads and sequences change places where heads are split", "module_batch_elements_are_independent", bug="D03")
class HeadsForSequences(Attention):
    def split(self, x: Tensor) -> Tensor:
        return x.reshape(self.num_heads, x.shape[0], x.shape[1], self.head_dim).transpose(0, 1)


@wrong("an axis of size one is squeezed away", "module_output_has_the_right_form", bug="D34")
class Squeezed(Attention):
    def finish(self, out: Tensor) -> Any:
        return self.out_proj(out).squeeze()


@wrong("tokens of all sequences stand in one row", "module_batch_elements_are_independent", bug="D05")
class OneRow(Attention):
    def attend(self, x: Tensor, memory: Tensor, mask: Tensor | None, is_causal: bool) -> Tensor:
        if mask is not None or is_causal:
            return super().attend(x, memory, mask, is_causal)
        rows, keys = (y.reshape(1, -1, y.shape[-1]) for y in (x, memory))
        return super().attend(rows, keys, None, False).view_as(x)


@wrong("keys and values are those of the first sequence", "module_batch_elements_are_independent")
class FirstSequence(Attention):
    def project(self, x: Tensor, memory: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().project(x, memory)
        return q, k[:1].expand_as(k), v[:1].expand_as(v)


@wrong("the scale is taken from the batch", "module_a_batch_is_its_sequences")
class ScaleOfBatch(Attention):
    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.transpose(-2, -1) * q.shape[0] ** -0.5


@wrong("positions are those of the sequence in the batch", "module_a_batch_is_its_sequences")
class PositionOfSequence(Attention):
    def project(self, x: Tensor, memory: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        steps = torch.tensor([float(n) for n in range(len(memory))], dtype=memory.dtype, device=memory.device)
        return super().project(x, memory * (1 + steps[:, None, None] / 4))


@wrong("answers are normalised over the batch, in eval mode, too", "module_batch_elements_are_independent", bug="E13")
class BatchNormed(Attention):
    def finish(self, out: Tensor) -> Any:
        out = super().finish(out)
        return out - out.mean(0, keepdim=True) if len(out) > 1 else out


# ---------------------------------------------------------------- softmax


@wrong(
    "the softmax goes over queries",
    "module_a_memory_twice_is_the_memory",
    "labmlai/annotated_deep_learning_paper_implementations#146",
    "D15",
)
class OverQueries(Attention):
    def weigh(self, logits: Tensor) -> Tensor:
        return logits.softmax(-2)


@wrong("the softmax goes over sequences", "module_batch_elements_are_independent", "PetrochukM/PyTorch-NLP#2", "D16")
class OverSequences(Attention):
    def weigh(self, logits: Tensor) -> Tensor:
        return logits.softmax(0).nan_to_num()


@wrong("the softmax goes over heads", "module_tokens_twice_are_the_tokens")
class OverHeads(Attention):
    def weigh(self, logits: Tensor) -> Tensor:
        return logits.softmax(1).nan_to_num()


@wrong("exponentials are not divided by their sum", "module_equal_tokens_answer_as_one")
class NotNormalised(Attention):
    def weigh(self, logits: Tensor) -> Tensor:
        return (logits - logits.amax(-1, keepdim=True)).exp()


@wrong("the mean of the values is divided by their number once more", "module_tokens_twice_are_the_tokens")
class DividedTwice(Attention):
    def weigh(self, logits: Tensor) -> Tensor:
        return logits.softmax(-1) / logits.shape[-1]


@wrong("one more in the denominator than the exponentials", "module_a_memory_twice_is_the_memory")
class OneMore(Attention):
    def weigh(self, logits: Tensor) -> Tensor:
        return logits.exp() / (1 + logits.exp().sum(-1, keepdim=True))


@wrong("10⁻³ is added to the denominator", "module_equal_tokens_answer_as_one")
class PaddedDenominator(Attention):
    def weigh(self, logits: Tensor) -> Tensor:
        w = (logits - logits.amax(-1, keepdim=True)).exp()
        return w / (w.sum(-1, keepdim=True) + 1e-3)


@wrong("exponentials without the largest logit subtracted", "module_large_tokens_give_finite_rows", "mila-iqia/blocks#727", "E01")
class Overflowing(Attention):
    def weigh(self, logits: Tensor) -> Tensor:
        w = logits.exp()
        return w / w.sum(-1, keepdim=True)


@wrong("the softmax is computed in bfloat16", "module_is_as_near_to_its_twin_as_rounding_explains", "pytorch/pytorch#163588", "E05")
class HalfSoftmax(Attention):
    def weigh(self, logits: Tensor) -> Tensor:
        return logits.to(torch.bfloat16).softmax(-1).to(logits.dtype)


@wrong("queries are rounded to half precision on their way", "module_is_as_near_to_its_twin_as_rounding_explains", bug="E03")
class HalfQueries(Attention):
    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        return super().logits(q.to(torch.bfloat16).to(k.dtype), k)


# ---------------------------------------------------------------- scales


@wrong(
    "logits are scaled by the width of the module, not of a head",
    "module_is_the_attention_of_its_projections",
    "lucidrains/vit-pytorch#65",
    "D09",
)
class ScaleOfWidth(Attention):
    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.transpose(-2, -1) * (self.num_heads * self.head_dim) ** -0.5


@wrong("logits are scaled by the number of heads", "module_is_the_attention_of_its_projections")
class ScaleOfHeads(Attention):
    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.transpose(-2, -1) * self.num_heads**-0.5


@wrong(
    "logits are divided by a scale that is a reciprocal already",
    "module_is_the_attention_of_its_projections",
    "esceptico/perceiver-io#9",
    "D10",
)
class DividedByReciprocal(Attention):
    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.transpose(-2, -1) / self.head_dim**-0.5


@wrong("queries are scaled before they meet keys, and logits once more", "module_is_the_attention_of_its_projections")
class ScaledTwice(Attention):
    def project(self, x: Tensor, memory: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().project(x, memory)
        return q * self.head_dim**-0.5, k, v


@wrong(
    "key heads of groups are repeated one after another: query head h reads key head h % 2",
    "module_is_the_attention_of_its_projections",
    "ekzhang/jax-js",
    "D06",
)
class KeysRepeated(Attention):
    def __init__(self, d_model: int, num_heads: int, dropout: float = 0.0) -> None:
        super().__init__(d_model, num_heads, dropout)
        self.kv_heads = min(2, num_heads)
        self.k_proj, self.v_proj = (nn.Linear(d_model, self.kv_heads * self.head_dim) for _ in range(2))

    def split(self, x: Tensor) -> Tensor:
        heads = x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
        return heads.repeat(1, self.num_heads // heads.shape[1], 1, 1)


# ---------------------------------------------------------------- causality


@wrong("the causal frontier is one too far", "module_future_tokens_are_ignored")
class OneTooFar(Attention):
    def frontier(self, logits: Tensor) -> Tensor:
        return torch.ones(logits.shape[-2:], dtype=torch.bool, device=logits.device).tril(1)


@wrong("the causal flag is passed on to nobody", "module_future_tokens_are_ignored", "pytorch/pytorch#99282", "A05")
class FlagIgnored(Attention):
    def hide(self, logits: Tensor, mask: Tensor | None, causal: Tensor | None) -> Tensor:
        return super().hide(logits, mask, None)


@wrong("a mask takes the place of causality", "module_a_mask_leaves_causality", "keras-team/keras#23038", "A06")
class MaskForCausality(Attention):
    def hide(self, logits: Tensor, mask: Tensor | None, causal: Tensor | None) -> Tensor:
        return super().hide(logits, mask, causal if mask is None else None)


@wrong("later tokens get a logit of 0, not minus infinity", "module_future_tokens_are_ignored")
class LaterAreZero(Attention):
    def hide(self, logits: Tensor, mask: Tensor | None, causal: Tensor | None) -> Tensor:
        logits = super().hide(logits, mask, None)
        return logits if causal is None else logits * causal


@wrong("causality is applied after the softmax, and weights not normalised again", "module_prefix_of_output_is_output_of_prefix")
class CausalAfterSoftmax(Attention):
    def attend(self, x: Tensor, memory: Tensor, mask: Tensor | None, is_causal: bool) -> Tensor:
        q, k, v = (self.split(y) for y in self.project(x, memory))
        logits = self.hide(self.logits(q, k), mask, None)
        weights = self.weigh(logits)
        if is_causal:
            weights = weights * self.frontier(logits)
        return self.finish(self.merge(self.mix(self.drop(weights), v)))


@wrong("the mean over all tokens is subtracted, later ones, too", "module_future_tokens_are_ignored")
class MeanOfAll(Attention):
    def project(self, x: Tensor, memory: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return super().project(x, memory - memory.mean(1, keepdim=True) / 2)


@wrong("a causal row sees the last 4 tokens only where there are more than 8", "module_prefix_of_output_is_output_of_prefix")
class WindowOfLong(Attention):
    def frontier(self, logits: Tensor) -> Tensor:
        seen = super().frontier(logits)
        return seen & ~seen.tril(-4) if logits.shape[-1] > 8 else seen


@wrong("the causal frontier begins at the second row: the first one sees nothing", "module_output_has_the_right_form")
class BeforeItself(Attention):
    def frontier(self, logits: Tensor) -> Tensor:
        return super().frontier(logits).tril(-1)


# ---------------------------------------------------------------- what is seen


@wrong("the last token is no key", "module_every_token_is_seen", bug="E25")
class LastIsNoKey(Attention):
    def project(self, x: Tensor, memory: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().project(x, memory)
        return (q, k[:, :-1], v[:, :-1]) if x is memory and k.shape[1] > 1 and len(x) == 1 else (q, k, v)


@wrong("keys behind the last full tile of 16 are dropped", "module_every_token_is_seen", bug="E24")
class FullTiles(Attention):
    def hide(self, logits: Tensor, mask: Tensor | None, causal: Tensor | None) -> Tensor:
        keys = logits.shape[-1]
        logits = super().hide(logits, mask, causal)
        if causal is None and keys > 16 and keys % 16:
            logits = torch.cat([logits[..., : keys - keys % 16], torch.full_like(logits[..., keys - keys % 16 :], float("-inf"))], -1)
        return logits


@wrong("only the first half of a long memory is read", "module_every_token_of_the_memory_is_seen", "NVIDIA/FasterTransformer#270")
class HalfTheMemory(Attention):
    def project(self, x: Tensor, memory: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().project(x, memory)
        read = k.shape[1] if memory is x or k.shape[1] < 4 else (k.shape[1] + 1) // 2
        return q, k[:, :read], v[:, :read]


@wrong("the memory is cut to the number of queries", "module_every_token_of_the_memory_is_seen", bug="A17")
class MemoryAsLongAsQueries(Attention):
    def forward(self, x: Tensor, context: Tensor | None = None, mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        if context is not None and mask is None and len(context) > 1:
            context = context[:, : max(x.shape[1], 1)]
        return super().forward(x, context, mask, is_causal)


@wrong("each key weighs nine tenths of the one before it", "module_permuted_tokens_permute_rows")
class Fading(Attention):
    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        fade = torch.tensor([0.1 * n for n in range(k.shape[2])], dtype=k.dtype, device=k.device)
        return super().logits(q, k) - fade


@wrong("each key of a memory weighs nine tenths of the one before it", "module_the_memory_has_no_order")
class FadingMemory(Attention):
    def project(self, x: Tensor, memory: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().project(x, memory)
        fade = torch.tensor([0.9**n for n in range(k.shape[1])], dtype=k.dtype, device=k.device)
        return (q, k, v) if memory is x else (q, k * fade[:, None], v)


@wrong("in a causal call the newest token before a row weighs twice", "module_the_past_has_no_order")
class NewestTwice(Attention):
    def hide(self, logits: Tensor, mask: Tensor | None, causal: Tensor | None) -> Tensor:
        logits = super().hide(logits, mask, causal)
        return logits if causal is None else logits + torch.diag_embed(torch.ones_like(logits[..., 0])[..., 1:], -1) * 0.7


@wrong("queries are centred over their rows", "module_rows_meet_only_the_memory")
class CentredQueries(Attention):
    def project(self, x: Tensor, memory: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().project(x, memory)
        return (q - q.mean(1, keepdim=True), k, v) if memory is not x else (q, k, v)


@wrong("layer norm takes its statistics over the sequence", "module_rows_meet_only_the_memory")
class NormOverSequence(Attention):
    def __init__(self, d_model: int, num_heads: int, dropout: float = 0.0) -> None:
        super().__init__(d_model, num_heads, dropout)
        self.gain = nn.Parameter(torch.ones(d_model))

    def finish(self, out: Tensor) -> Any:
        out = super().finish(out)
        return self.gain * (out - out.mean(1, keepdim=True) / 2)
