"""Modules: masks that are inverted, forgotten, put on the wrong axis, or given to the wrong sequence."""

from __future__ import annotations

from torch import Tensor

from .modular import Attention, wrong

INF = float("inf")


@wrong("the padding mask hides queries, not keys", "module_hidden_tokens_are_ignored", "hyunwoongko/transformer#40", "A13")
class HidesQueries(Attention):
    def hide(self, logits: Tensor, mask: Tensor | None, causal: Tensor | None) -> Tensor:
        if mask is not None and mask.shape[1] == logits.shape[2]:
            logits, mask = logits.masked_fill(~mask[:, None, :, None], -1e9), None
        return super().hide(logits, mask, causal)


@wrong("key_padding_mask is taken for the tokens to be seen", "module_hidden_tokens_are_ignored", "nyu-mll/jiant#465", "A01")
class Inverted(Attention):
    def forward(self, x: Tensor, context: Tensor | None = None, key_padding_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        return super().forward(x, context, key_padding_mask, is_causal)


@wrong("what masked_fill returns is thrown away", "module_hidden_tokens_are_ignored")
class Discarded(Attention):
    def hide(self, logits: Tensor, mask: Tensor | None, causal: Tensor | None) -> Tensor:
        if mask is not None:
            logits.masked_fill(~mask[:, None, None], -INF)
        return super().hide(logits, None, causal)


@wrong("hidden tokens get a logit of 0", "module_hidden_tokens_are_ignored", "georg-wolflein/good-features#1", "A18")
class TimesZero(Attention):
    def hide(self, logits: Tensor, mask: Tensor | None, causal: Tensor | None) -> Tensor:
        logits = logits if mask is None else logits * mask[:, None, None]
        return super().hide(logits, None, causal)


@wrong("hidden tokens get a logit of −10", "module_hidden_tokens_are_ignored", "microsoft/onnxruntime#14363", "A35")
class MinusTen(Attention):
    def hide(self, logits: Tensor, mask: Tensor | None, causal: Tensor | None) -> Tensor:
        logits = logits if mask is None else logits.masked_fill(~mask[:, None, None], -10.0)
        return super().hide(logits, None, causal)


@wrong("the mask comes after the softmax: weights no longer sum to one", "module_padding_is_as_good_as_removed", bug="A20")
class AfterSoftmax(Attention):
    def attend(self, x: Tensor, memory: Tensor, mask: Tensor | None, is_causal: bool) -> Tensor:
        q, k, v = (self.split(y) for y in self.project(x, memory))
        logits = self.logits(q, k)
        weights = self.weigh(self.hide(logits, None, self.frontier(logits) if is_causal else None))
        if mask is not None:
            weights = weights * mask[:, None, None]
        return self.finish(self.merge(self.mix(self.drop(weights), v)))


@wrong("hidden tokens keep their place in the mean: their values alone are 0", "module_padding_is_as_good_as_removed")
class ValuesOfZero(Attention):
    def attend(self, x: Tensor, memory: Tensor, mask: Tensor | None, is_causal: bool) -> Tensor:
        if mask is not None:
            memory = memory * mask[..., None]
            if x.shape == memory.shape:
                x = x * mask[..., None]
        return super().attend(x, memory, None, is_causal)


@wrong("all sequences are answered under the mask of the first", "module_hidden_tokens_are_ignored")
class MaskOfFirst(Attention):
    def hide(self, logits: Tensor, mask: Tensor | None, causal: Tensor | None) -> Tensor:
        return super().hide(logits, mask if mask is None else mask[:1].expand_as(mask), causal)


@wrong("masks are repeated sequence after sequence, heads counted first", "module_hidden_tokens_are_ignored", bug="A14")
class MaskOfAnother(Attention):
    def hide(self, logits: Tensor, mask: Tensor | None, causal: Tensor | None) -> Tensor:
        if mask is None or len(mask) < 2:
            return super().hide(logits, mask, causal)
        folded = mask.repeat(self.num_heads, 1).view(len(mask), self.num_heads, 1, -1)
        return super().hide(logits.masked_fill(~folded, -INF), None, causal)


@wrong("what one sequence hides is hidden from all", "module_a_mask_stays_with_its_sequence")
class MaskOfAll(Attention):
    def hide(self, logits: Tensor, mask: Tensor | None, causal: Tensor | None) -> Tensor:
        return super().hide(logits, mask if mask is None else mask.all(0, keepdim=True).expand_as(mask), causal)


@wrong("0 times minus infinity is added where nothing is hidden", "module_a_mask_of_all_seen_changes_nothing")
class ZeroTimesInfinity(Attention):
    def hide(self, logits: Tensor, mask: Tensor | None, causal: Tensor | None) -> Tensor:
        if mask is not None and bool(mask.all()):
            logits = logits + (~mask[:, None, None]).to(logits.dtype) * -INF
            mask = None
        return super().hide(logits, mask, causal)


@wrong("with a mask another path is taken, without the scale", "module_a_mask_of_all_seen_changes_nothing", "pytorch/pytorch#174049", "D22")
class NoScaleWithMask(Attention):
    def hide(self, logits: Tensor, mask: Tensor | None, causal: Tensor | None) -> Tensor:
        return super().hide(logits if mask is None else logits * self.head_dim**0.5, mask, causal)


@wrong("a mask beside the causal flag is joined to it by or", "module_a_mask_leaves_causality")
class Either(Attention):
    def hide(self, logits: Tensor, mask: Tensor | None, causal: Tensor | None) -> Tensor:
        if mask is not None and causal is not None:
            return logits.masked_fill(~(causal | mask[:, None, None]), -INF)
        return super().hide(logits, mask, causal)
