"""The honest attention with windows, caps, slopes, sinks, lengths, the log-sum-exp and dropout, in steps that mutants replace."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .core import INF, Step, both, check, default_scale, frontier, read_mask, repeat_heads, widen

PARAMETERS = (
    "attn_mask",
    "is_causal",
    "scale",
    "enable_gqa",
    "dropout_p",
    "window_size",
    "softcap",
    "alibi_slopes",
    "sinks",
    "kv_lengths",
    "return_lse",
)
WEIGHTS = {  # of what returns its weights
    "parameters": ("attn_mask", "is_causal", "scale", "enable_gqa", "window_size", "softcap", "need_weights"),
    "masked_nan": "leaks",
}
FACTS = {"parameters": PARAMETERS, "masked_nan": "leaks"}


def ahead(queries: int, keys: int) -> Tensor:
    """j − i, (L, S)."""
    return torch.arange(keys) - torch.arange(queries)[:, None]


def window(queries: int, keys: int, left: int, right: int) -> Tensor:
    """i − left ≤ j ≤ i + right, −1 for no limit."""
    j = ahead(queries, keys)
    return ((j >= -left) | (left < 0)) & ((j <= right) | (right < 0))


def cap(logit: Tensor, c: float) -> Tensor:
    return c * torch.tanh(logit / c)


def distance_bias(slopes: Tensor, queries: int, keys: int) -> Tensor:
    return -slopes[:, None, None] * ahead(queries, keys).abs()  # (H, L, S)


def in_use(lengths: Tensor, keys: int) -> Tensor:
    return torch.arange(keys) < lengths[:, None, None, None]  # (B, 1, 1, S)


def normalise(logit: Tensor, sinks: Tensor | None) -> Tensor:
    """The weights, with one more logit for each head that has no value; 0 in a row that sees nothing."""
    if sinks is not None:
        sink = sinks[:, None, None].expand(*logit.shape[:3], 1)
        return torch.softmax(torch.cat([logit, sink], -1), -1)[..., :-1]
    return torch.softmax(logit, -1).masked_fill((logit == -INF).all(-1, keepdim=True), 0.0)


def log_sum_exp(logit: Tensor) -> Tensor:
    return logit.logsumexp(-1) if logit.shape[-1] else logit.new_full(logit.shape[:-1], -INF)


def drop(weight: Tensor, p: float) -> Tensor:
    return torch.dropout(weight, p, train=True)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    dropout_p: float = 0.0,
    window_size: tuple[int, int] | None = None,
    softcap: float | None = None,
    alibi_slopes: Tensor | None = None,
    sinks: Tensor | None = None,
    kv_lengths: Tensor | None = None,
    return_lse: bool = False,
    need_weights: bool = False,
    window: Step = window,
    cap: Step = cap,
    distance_bias: Step = distance_bias,
    in_use: Step = in_use,
    normalise: Step = normalise,
    log_sum_exp: Step = log_sum_exp,
    drop: Step = drop,
    returned: Step = lambda weight, logit, shown: weight,
    cap_last: bool = False,
    scale_of: Step = lambda scale: scale,
) -> Any:
    """The honest attention with features; the keywords from `window` on are the steps, for mutants to replace."""
    check(q, k, v, attn_mask, enable_gqa)
    heads, queries, keys = q.shape[1], q.shape[2], k.shape[2]
    query, key, value = widen(q), repeat_heads(widen(k), heads), repeat_heads(widen(v), heads)
    logit = (query @ key.mT) * scale_of(default_scale(q) if scale is None else scale)
    if softcap is not None and not cap_last:
        logit = cap(logit, softcap)
    shown = logit
    visible, bias = read_mask(attn_mask, (q.shape[0], heads, queries, keys))
    logit = logit if bias is None else logit + bias
    if alibi_slopes is not None:
        logit = logit + distance_bias(widen(alibi_slopes), queries, keys)
    visible = both(visible, frontier(queries, keys) if is_causal else None)
    if window_size is not None:
        visible = both(visible, window(queries, keys, *window_size))
    if kv_lengths is not None:
        visible = both(visible, in_use(kv_lengths, keys))
    if visible is not None:
        logit = logit.masked_fill(~visible, -INF)
    if softcap is not None and cap_last:
        logit = cap(logit, softcap)
    weight = normalise(logit, None if sinks is None else widen(sinks))
    if dropout_p:
        weight = drop(weight, dropout_p)
    out = (weight @ value).to(q.dtype)
    if need_weights:
        return out, returned(weight, logit, shown)
    return (out, log_sum_exp(logit)) if return_lse else out
