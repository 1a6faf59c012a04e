"""Backward passes through features that compute in another way and are correct: nothing may flag them."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..registry import honest
from . import feature_core
from .backward_features import FACTS, PARAMETERS, Saved, attention, near, sink_column, used
from .core import INF, Step, default_scale, frontier, read_mask, repeat_heads, widen
from .feature_core import distance_bias


@honest(
    "δ from the stored output; weights and dT rounded to the type of the inputs; powers of two; the softcap's slope as 1 − (s/c)²; "
    "dropout's 1/(1 − p) last in dS",
    source="Dao-AILab/flash-attention#93",
    bug="H06",
    supports=FACTS | {"arithmetic": {"float64": "fused", "float32": "fused", "float16": "fused", "bfloat16": "fused"}},
)
def fused_with_features(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def from_the_output(s: Saved, weight: Tensor, raw: Tensor, grad: Tensor) -> Tensor:
        return (grad * widen(s.out)).sum(-1, keepdim=True)

    def powers_of_two(s: Saved, logit: Tensor) -> tuple[Tensor, Tensor]:
        column = sink_column(s, logit)
        lse = torch.cat([logit, column], -1).logsumexp(-1, keepdim=True)
        lse = lse.masked_fill(lse == -INF, INF)
        return torch.exp2((logit - lse) * math.log2(math.e)), torch.exp2((column - lse) * math.log2(math.e))

    def stored(s: Saved, x: Tensor) -> Tensor:
        return x.to(s.out.dtype).to(x.dtype)

    def from_the_capped(s: Saved, score: Tensor) -> Tensor | float:
        c = s.options.get("softcap")
        return 1.0 if c is None else 1 - (feature_core.cap(score, c) / c) ** 2

    def rescaled_last(weight: Tensor, raw: Tensor, delta: Tensor, kept: Any) -> Tensor:
        keeping = 1 - options.get("dropout_p", 0.0)
        return weight * (raw * keeping - delta * keeping) / keeping

    steps: dict[str, Step] = {
        "centre": from_the_output,
        "weigh": powers_of_two,
        "store": stored,
        "slope": from_the_capped,
        "differ": rescaled_last,
    }
    return attention(q, k, v, **options, steps=steps)


@honest(
    "every intermediate in the type of the inputs, backward by autograd",
    source="huggingface/transformers",
    supports={"parameters": PARAMETERS, "masked_nan": "leaks", "arithmetic": {"float16": "eager", "bfloat16": "eager"}},
)
def stored_in_the_type(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    s = Saved(q, repeat_heads(k, q.shape[1]), repeat_heads(v, q.shape[1]), q, 1.0, None, options.get("sinks"), None, options)
    logit = (s.q @ s.k.mT) * (default_scale(q) if options.get("scale") is None else options["scale"])
    c, mask, slopes = (options.get(name) for name in ("softcap", "attn_mask", "alibi_slopes"))
    logit = logit if c is None else feature_core.cap(logit, c)
    visible, bias = read_mask(mask, s.shape)
    logit = logit if bias is None else logit + bias.masked_fill(bias == -INF, 0.0).to(q.dtype)
    logit = logit if slopes is None else logit + distance_bias(slopes, *s.shape[2:])
    shown = torch.ones(s.shape, dtype=torch.bool)
    for seen in (visible, frontier(*s.shape[2:]) if options.get("is_causal") else None, near(s), used(s)):
        shown = shown if seen is None else shown & seen
    some = shown.any(-1, keepdim=True)
    logit = logit.masked_fill(~shown & some, -INF)
    if s.sinks is not None:
        weight = torch.softmax(torch.cat([logit, s.sinks[:, None, None].expand(*s.shape[:3], 1)], -1), -1)[..., :-1]
    else:
        weight = torch.softmax(logit, -1)
    weight = weight.masked_fill(~some, 0.0)
    return torch.dropout(weight, options.get("dropout_p", 0.0), train=options.get("dropout_p", 0.0) > 0) @ s.v


@honest(
    "the weights come back in the type of the inputs, as exp(s − lse)",
    source="teaching code",
    supports=feature_core.WEIGHTS,
)
def weights_from_the_log_sum_exp(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
    def through_lse(weight: Tensor, logit: Tensor, shown: Tensor) -> Tensor:
        lse = feature_core.log_sum_exp(logit)[..., None]
        return torch.exp(logit - lse.masked_fill(lse == -INF, 0.0)).to(q.dtype)

    return feature_core.attention(q, k, v, **options, returned=through_lse)
