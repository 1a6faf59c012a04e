"""The backward pass of an attention with windows, softcap, slopes, sinks, lengths and dropout, by hand and a little wrong.

t = scale·QKᵀ   s = c·tanh(t/c) + bias − m|i − j|   P = exp(s)/(exp z + Σ exp s)   out = (P∘M) V,  M = b/(1 − p)
dP = M∘(dO Vᵀ)   δ = rowsum(P dP)   dS = P (dP − δ)   dT = (1 − tanh²(t/c)) dS   dV = (P∘M)ᵀ dO   dz = −Σ P_sink δ
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..registry import mutant
from . import feature_core
from .backward import Operands
from .core import INF, Step, default_scale, frontier, read_mask, repeat_heads, widen
from .feature_core import ahead, distance_bias, in_use, window

PARAMETERS = tuple(name for name in feature_core.PARAMETERS if name != "return_lse")
FACTS = {"parameters": PARAMETERS, "masked_nan": "leaks"}


@dataclass
class Saved(Operands):
    """What the backward pass of all features knows."""

    sinks: Tensor | None  # (H,)
    kept: Tensor | None  # (B, H, L, S): what each weight was multiplied by
    options: dict[str, Any]

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(B, H, L, S)"""
        return self.q.shape[0], self.q.shape[1], self.q.shape[2], self.k.shape[2]


def cap(s: Saved, score: Tensor) -> Tensor:
    """c·tanh(t/c)."""
    c = s.options.get("softcap")
    return score if c is None else feature_core.cap(score, c)


def slope(s: Saved, score: Tensor) -> Tensor | float:
    """1 − tanh²(t/c)."""
    c = s.options.get("softcap")
    return 1.0 if c is None else 1 - torch.tanh(score / c) ** 2


def near(s: Saved) -> Tensor | None:
    """What the window shows, (L, S)."""
    sides = s.options.get("window_size")
    return None if sides is None else window(s.shape[2], s.shape[3], *sides)


def used(s: Saved) -> Tensor | None:
    """The keys in use, (B, 1, 1, S)."""
    lengths = s.options.get("kv_lengths")
    return None if lengths is None else in_use(lengths, s.shape[3])


def distances(s: Saved) -> Tensor | float:
    """−m·|i − j|, (H, L, S)."""
    slopes = s.options.get("alibi_slopes")
    return 0.0 if slopes is None else distance_bias(widen(slopes), s.shape[2], s.shape[3])


def sink_column(s: Saved, logit: Tensor) -> Tensor:
    """The logit of the sink of every row, (B, H, L, 1); −inf where there is none."""
    if s.sinks is None:
        return logit.new_full((*logit.shape[:3], 1), -INF)
    return widen(s.sinks)[:, None, None].expand(*logit.shape[:3], 1)


def weigh(s: Saved, logit: Tensor) -> tuple[Tensor, Tensor]:
    """exp(s − lse) of the keys and of the sink; 0 in a row that sees neither."""
    lse = torch.cat([logit, sink_column(s, logit)], -1).logsumexp(-1, keepdim=True)
    lse = lse.masked_fill(lse == -INF, INF)
    return torch.exp(logit - lse), torch.exp(sink_column(s, logit) - lse)


def keep(s: Saved) -> Tensor | float:
    """What the weights were multiplied by in the forward pass."""
    return 1.0 if s.kept is None else s.kept


def centre(s: Saved, weight: Tensor, raw: Tensor, grad: Tensor) -> Tensor:
    """δ = rowsum(P dP), (B, H, L, 1)."""
    return (weight * raw).sum(-1, keepdim=True)


def to_sinks(s: Saved, weight: Tensor, delta: Tensor) -> Tensor:
    """−Σ P_sink δ over batch elements and rows, (H,)."""
    return -(weight * delta).sum((0, 2, 3))


def gather(x: Tensor, kv_heads: int) -> Tensor:
    """The sum over the query heads of a group."""
    return x if x.shape[1] == kv_heads else x.unflatten(1, (kv_heads, -1)).sum(2)


STEPS: dict[str, Step] = {
    "cap": cap,
    "slope": slope,
    "near": near,
    "used": used,
    "distances": distances,
    "weigh": weigh,
    "keep": keep,
    "keep_values": keep,
    "to_sinks": to_sinks,
    "differ": lambda weight, raw, delta, kept: weight * (raw - delta),
    "centre": centre,
    "store": lambda s, x: x,
}


class Attention(torch.autograd.Function):
    """The core of features forward, these steps backward."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        sinks: Tensor | None,
        options: dict[str, Any],
        steps: dict[str, Step],
    ) -> Tensor:
        """The honest answer; what is dropped is drawn once."""
        p, kept = options.get("dropout_p", 0.0), None
        if p:
            shape = (*q.shape[:3], k.shape[2])
            kept = torch.dropout(torch.ones(shape, dtype=widen(q).dtype, device=q.device), p, train=True)
        out: Tensor = feature_core.attention(q, k, v, attn_mask=mask, sinks=sinks, **options, drop=lambda weight, p: weight * kept)
        ctx.save_for_backward(q, k, v, mask, sinks, kept, out)
        ctx.options, ctx.steps = options, STEPS | steps
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Step by step."""
        (q, k, v, mask, sinks, kept, out), options, step = ctx.saved_tensors, ctx.options, ctx.steps
        heads, (queries, keys), kv_heads = q.shape[1], (q.shape[2], k.shape[2]), k.shape[1]
        scale = default_scale(q) if options.get("scale") is None else options["scale"]
        s = Saved(widen(q), repeat_heads(widen(k), heads), repeat_heads(widen(v), heads), out, scale, mask, sinks, kept, options)
        grad, score = widen(grads[0]), (s.q @ s.k.mT) * scale
        visible, bias = read_mask(mask, (q.shape[0], heads, queries, keys))
        logit = step["cap"](s, score) + (0.0 if bias is None else bias) + step["distances"](s)
        for seen in (visible, frontier(queries, keys) if options.get("is_causal") else None, step["near"](s), step["used"](s)):
            logit = logit if seen is None else logit.masked_fill(~seen, -INF)
        weight, sink_weight = step["weigh"](s, logit)
        raw = (grad @ s.v.mT) * step["keep"](s)  # (B, H, L, S)
        delta = step["centre"](s, weight, raw, grad)
        change = step["differ"](weight, raw, delta, step["keep"](s)).masked_fill(weight == 0, 0.0)
        bent = step["store"](s, (change * step["slope"](s, score)).masked_fill(weight == 0, 0.0))
        parts: list[Tensor | None] = [
            (bent @ s.k) * scale,
            gather((bent.mT @ s.q) * scale, kv_heads),
            gather(step["store"](s, weight * step["keep_values"](s)).mT @ grad, kv_heads),
            change.sum_to_size(mask.shape) if mask is not None and ctx.needs_input_grad[3] else None,
            step["to_sinks"](s, sink_weight, delta) if sinks is not None and ctx.needs_input_grad[4] else None,
        ]
        return *(None if x is None else x.to(q.dtype) for x in parts), None, None


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    attn_mask: Tensor | None = None,
    sinks: Tensor | None = None,
    steps: dict[str, Step] | None = None,
    **options: Any,
) -> Tensor:
    """The attention with features and a backward pass by hand; ``steps`` replaces some of it."""
    out: Tensor = Attention.apply(q, k, v, attn_mask, sinks, options, steps or {})
    return out


# ---------------------------------------------------------------- windows and lengths


@mutant(
    "the backward pass ignores the window", source="teaching code", killed_by="keys_outside_the_window_receive_no_gradient", supports=FACTS
)
def window_forgotten_backward(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, steps={"near": lambda s: None})


@mutant(
    "the window of the backward pass is one key wider on the left",
    source="teaching code",
    killed_by="window_gradients_are_those_of_the_band_mask",
    supports=FACTS,
)
def window_wider_backward(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def wider(s: Saved) -> Tensor | None:
        sides = s.options.get("window_size")
        return None if sides is None else window(s.shape[2], s.shape[3], sides[0] + (sides[0] >= 0), sides[1])

    return attention(q, k, v, **options, steps={"near": wider})


@mutant(
    "the backward pass forgets that the window is one beside a causal frontier: its left side is lost",
    source="teaching code",
    killed_by="gradients_of_all_features_are_inside_the_bound",
    supports=FACTS,
)
def causal_drops_the_window_backward(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, steps={"near": lambda s: None if s.options.get("is_causal") else near(s)})


@mutant(
    "the backward pass ignores the lengths: keys beyond them receive gradients",
    source="teaching code",
    killed_by="keys_beyond_the_length_receive_no_gradient",
    supports=FACTS,
)
def lengths_forgotten_backward(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, steps={"used": lambda s: None})


# ---------------------------------------------------------------- softcap


@mutant(
    "the backward pass ignores the derivative of the softcap",
    source="teaching code",
    killed_by="saturated_logits_receive_no_gradient",
    supports=FACTS,
)
def slope_forgotten(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, steps={"slope": lambda s, score: 1.0})


@mutant(
    "the derivative of the softcap is taken at the capped logit",
    source="teaching code",
    killed_by="softcap_gradients_are_inside_the_bound",
    supports=FACTS,
)
def slope_of_the_capped(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, steps={"slope": lambda s, score: slope(s, cap(s, score))})


@mutant(
    "the derivative of the softcap is divided by the cap",
    source="teaching code",
    killed_by="softcap_gradients_are_inside_the_bound",
    supports=FACTS,
)
def slope_over_the_cap(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, steps={"slope": lambda s, score: slope(s, score) / (s.options.get("softcap") or 1.0)})


@mutant(
    "the backward pass computes the weights again without the softcap",
    source="teaching code",
    killed_by="softcap_gradients_are_inside_the_bound",
    supports=FACTS,
)
def cap_forgotten_backward(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, steps={"cap": lambda s, score: score})


# ---------------------------------------------------------------- ALiBi


@mutant(
    "the distances of ALiBi are added twice in the backward pass",
    source="teaching code",
    killed_by="alibi_gradients_are_those_of_its_bias",
    supports=FACTS,
)
def alibi_twice_backward(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, steps={"distances": lambda s: 2 * distances(s)})


@mutant("the backward pass ignores ALiBi", source="teaching code", killed_by="alibi_gradients_are_those_of_its_bias", supports=FACTS)
def alibi_forgotten_backward(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, steps={"distances": lambda s: 0.0})


@mutant(
    "the backward pass has no absolute value in ALiBi: later keys gain",
    source="teaching code",
    killed_by="gradients_of_all_features_are_inside_the_bound",
    supports=FACTS,
)
def alibi_signed_backward(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def signed(s: Saved) -> Tensor | float:
        slopes = s.options.get("alibi_slopes")
        return 0.0 if slopes is None else widen(slopes)[:, None, None] * ahead(s.shape[2], s.shape[3])

    return attention(q, k, v, **options, steps={"distances": signed})


# ---------------------------------------------------------------- sinks


@mutant(
    "the backward pass leaves the sink out of the normaliser",
    source="teaching code",
    killed_by="sinks_keep_their_share_of_the_value_gradient",
    supports=FACTS,
)
def sink_forgotten_backward(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def without(s: Saved, logit: Tensor) -> tuple[Tensor, Tensor]:
        lse = logit.logsumexp(-1, keepdim=True) if logit.shape[-1] else logit.new_full((*logit.shape[:3], 1), -INF)
        return torch.exp(logit - lse.masked_fill(lse == -INF, INF)), weigh(s, logit)[1]

    return attention(q, k, v, **options, steps={"weigh": without})


@mutant("the gradient of the sinks has the wrong sign", source="teaching code", killed_by="sink_and_bias_gradients_balance", supports=FACTS)
def sink_gradient_sign(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, steps={"to_sinks": lambda s, weight, delta: -to_sinks(s, weight, delta)})


@mutant(
    "the gradient of the sinks is that of batch element 0",
    source="teaching code",
    killed_by="sink_gradient_is_inside_the_bound",
    supports=FACTS,
)
def sink_gradient_of_the_first(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, steps={"to_sinks": lambda s, weight, delta: to_sinks(s, weight[:1], delta[:1])})


@mutant("the sinks receive a gradient of zero", source="teaching code", killed_by="sink_gradient_is_inside_the_bound", supports=FACTS)
def sink_gradient_missing(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, steps={"to_sinks": lambda s, weight, delta: 0 * to_sinks(s, weight, delta)})


@mutant(
    "the gradient of the sinks lacks their weight: −Σ δ",
    source="teaching code",
    killed_by="sink_gradient_is_inside_the_bound",
    supports=FACTS,
)
def sink_gradient_without_weight(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, steps={"to_sinks": lambda s, weight, delta: to_sinks(s, torch.ones_like(weight), delta)})


# ---------------------------------------------------------------- dropout


def drawn_again(s: Saved) -> Tensor | float:
    """Other weights than in the forward pass."""
    return 1.0 if s.kept is None else torch.dropout(torch.ones_like(s.kept), s.options["dropout_p"], train=True)


def rescaled(power: int) -> Step:
    """The factors with 1/(1 − p) to another power: 0 forgets it."""
    return lambda s: 1.0 if s.kept is None else (s.kept > 0) / (1 - s.options["dropout_p"]) ** power


@mutant(
    "the backward pass draws other weights to drop",
    source="teaching code",
    killed_by="value_gradients_are_dropped_like_the_weights",
    supports=FACTS,
)
def dropped_anew_backward(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, steps={"keep": drawn_again, "keep_values": drawn_again})


@mutant(
    "dV is not divided by 1 − p under dropout",
    source="teaching code",
    killed_by="value_gradients_are_dropped_like_the_weights",
    supports=FACTS,
)
def values_not_rescaled_backward(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, steps={"keep_values": rescaled(0)})


@mutant(
    "dP is multiplied by 1 − p under dropout instead of divided by it",
    source="NVIDIA/apex#816",
    bug="E10",
    killed_by="dropout_gradients_are_inside_the_bound",
    supports=FACTS,
)
def dropout_scaled_the_wrong_way_backward(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, steps={"keep": rescaled(-1)})


@mutant(
    "the weights after dropout serve in dS",
    source="aws-neuron/nki-samples#81",
    bug="E11",
    killed_by="dropout_gradients_are_inside_the_bound",
    supports=FACTS,
)
def dropped_weights_in_the_softmax_backward(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, steps={"differ": lambda weight, raw, delta, kept: weight * kept * (raw - delta)})


@mutant("dropout is forgotten in dQ and dK", source="teaching code", killed_by="dropout_gradients_are_inside_the_bound", supports=FACTS)
def dropout_forgotten_in_dq_and_dk(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, steps={"keep": lambda s: 1.0})


@mutant("dropout is forgotten in dV", source="teaching code", killed_by="value_gradients_are_dropped_like_the_weights", supports=FACTS)
def dropout_forgotten_in_dv(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, steps={"keep_values": lambda s: 1.0})
