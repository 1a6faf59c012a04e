"""Modules that keep what they were fed: positions, corners, caches that forget, that remember too long, that meet; rotations from outside."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .modular import Decoder, Holding, InDictionary, Past, Started, Turned, Windowed, rotated, wrong

# ---------------------------------------------------------------- what comes back is given to the next call


@wrong("positions restart at every chunk", "module_a_cache_answers_as_no_cache", "huggingface/transformers#29149")
class RestartedPositions(Decoder):
    def place(self, past: Past) -> int:
        return 0


@wrong("with a cache the causal frontier is cut from the top left corner", "module_a_cache_answers_as_no_cache", "pytorch/pytorch#108108")
class TopLeftCorner(Decoder):
    def frontier(self, rows: int, keys: int) -> Tensor:
        return torch.ones(rows, keys, dtype=torch.bool).tril()


@wrong("keys are kept rotated, and rotated again when they are read", "module_a_cache_answers_as_no_cache")
class RotatedAgain(Decoder):
    def extend(self, past: Past, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return super().extend(None if past is None else (rotated(past[0], 0), past[1]), k, v)


@wrong("several tokens after the first ones see each other", "module_a_cache_answers_as_no_cache")
class UnmaskedChunks(Decoder):
    def frontier(self, rows: int, keys: int) -> Tensor:
        return super().frontier(rows, keys) | (rows < keys)


@wrong("the newest chunk alone is kept", "module_a_cache_answers_as_no_cache")
class NewestChunk(Decoder):
    def keep(self, k: Tensor, v: Tensor, new: int) -> Past:
        return k[:, :, -new:], v[:, :, -new:]


@wrong("a ring of 8 tokens overwrites the oldest ones silently", "module_a_cache_answers_as_no_cache")
class SilentRing(Decoder):
    def keep(self, k: Tensor, v: Tensor, new: int) -> Past:
        return k[:, :, -8:], v[:, :, -8:]


@wrong("the keys that are kept are those of the first sequence", "module_cached_sequences_are_independent")
class KeptOfFirst(Decoder):
    def extend(self, past: Past, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return super().extend(None if past is None else (past[0][:1].expand_as(past[0]), past[1]), k, v)


@wrong("values that are kept are averaged over the batch", "module_cached_sequences_are_independent")
class KeptMean(Decoder):
    def keep(self, k: Tensor, v: Tensor, new: int) -> Past:
        return k, v.mean(0, keepdim=True).expand_as(v)


@wrong("new keys and values are appended to the list that was given", "module_a_cache_can_be_continued_twice")
class AppendedInPlace(nn.Module):
    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__()
        self.inner = Decoder(d_model, num_heads)

    def forward(self, x: Tensor, past: list[Any] | None = None) -> Any:
        held = [] if past is None else past
        whole = tuple(torch.cat([pair[n] for pair in held], 2) for n in (0, 1)) if held else None
        out, new = self.inner(x, whole)
        held.append(tuple(y[:, :, -x.shape[1] :] for y in new))
        return out, held


@wrong("the keys that were given are scaled in place", "module_a_cache_can_be_continued_twice")
class PastInPlace(Decoder):
    def extend(self, past: Past, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        joined = super().extend(past, k, v)
        if past is not None:
            past[0].mul_(0.5)
        return joined


@wrong("where a cache is asked for, the scale is left out", "module_asking_for_a_cache_changes_nothing")
class AskedUnscaled(Decoder):
    def logits(self, q: Tensor, k: Tensor, asked: bool) -> Tensor:
        return q @ k.mT if asked and q.shape[2] == k.shape[2] else super().logits(q, k, asked)


@wrong("where a cache is asked for, the first tokens see later ones", "module_asking_for_a_cache_changes_nothing")
class AskedUnmasked(Decoder):
    def hide(self, logits: Tensor, asked: bool) -> Tensor:
        return logits if asked and logits.shape[2] == logits.shape[3] else super().hide(logits, asked)


# ---------------------------------------------------------------- in the module, in a dictionary, by a start


@wrong("reset_cache forgets keys and values, and goes on counting positions", "module_a_second_sequence_starts_anew")
class CountsOn(Holding):
    def place(self, past: Past) -> int:
        self.count = getattr(self, "count", 0)
        return self.count

    def forward(self, x: Tensor, use_cache: bool = False) -> Any:  # type: ignore[override]
        out = super().forward(x, use_cache)
        self.count = self.count + x.shape[1] if use_cache else 0
        return out


@wrong("reset_cache empties nothing after the first sequence", "module_a_second_sequence_starts_anew")
class ResetOnce(Holding):
    def reset_cache(self) -> None:
        if self.held is not None and not getattr(self, "emptied", False):
            self.emptied = True
            return
        super().reset_cache()


@wrong("both layers keep their keys under one name", "module_a_cache_answers_as_no_cache")
class OneName(InDictionary):
    names = ("layer", "layer")


@wrong("start_pos is given, and positions begin at 0", "module_a_cache_answers_as_no_cache", "meta-llama/llama#148")
class StartIgnored(Started):
    def place(self, past: Past) -> int:
        return 0


@wrong("the slots that are read end where the new tokens begin", "module_a_cache_answers_as_no_cache")
class ReadTooFew(Started):
    def read(self, start: int, new: int) -> slice:
        return slice(0, max(start, new))


# ---------------------------------------------------------------- rotations that come from outside


@wrong("values are rotated, too", "module_rotations_tell_distances_alone")
class RotatedValues(Turned):
    def turned(self, q: Tensor, k: Tensor, v: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, _ = super().turned(q, k, v, cos, sin)
        return q, k, self.turn(v, cos, sin)


@wrong("queries are rotated, keys are not", "module_rotations_tell_distances_alone")
class QueriesAlone(Turned):
    def turned(self, q: Tensor, k: Tensor, v: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.turn(q, cos, sin), k, v


@wrong("keys are rotated backwards", "module_rotations_tell_distances_alone")
class Backwards(Turned):
    def turned(self, q: Tensor, k: Tensor, v: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.turn(q, cos, sin), self.turn(k, cos, -sin), v


@wrong("tables of halves turn neighbours", "module_rotations_tell_distances_alone", "huggingface/transformers#25199")
class PairingsMixed(Turned):
    def turn(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        halves = torch.cat([cos[..., ::2], cos[..., 1::2]], -1)
        return x * halves + torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2) * sin


@wrong("the rotation is added, not multiplied", "module_rotations_tell_distances_alone")
class Added(Turned):
    def turn(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return x + cos + sin


# ---------------------------------------------------------------- heads


@wrong("the output projection is fed without the last head", "module_gradients_reach_every_head")
class WithoutLastHead(Decoder):
    def finish(self, out: Tensor) -> Tensor:
        return super().finish(torch.cat([out[:, :-1], torch.zeros_like(out[:, -1:])], 1))


@wrong("all heads read the keys of the first", "module_gradients_reach_every_head")
class KeysOfFirst(Decoder):
    def logits(self, q: Tensor, k: Tensor, asked: bool) -> Tensor:
        return super().logits(q, k[:, :1].expand_as(k), asked)


@wrong(
    "the softmax goes over queries, with relative positions and one length alone",
    "module_equal_tokens_give_equal_rows",
    "microsoft/Swin-Transformer",
)
class WindowOverQueries(Windowed):
    axis = -2


@wrong("the relative positions are added to the weights, after the softmax", "module_equal_tokens_give_equal_rows")
class BiasOfWeights(Windowed):
    def weigh(self, logits: Tensor, bias: Tensor) -> Tensor:  # type: ignore[override]
        return logits.softmax(-1) + bias
