"""The honest backward pass: the gradients of attention as a row of small named steps, for mutants to replace.

    P = exp(s − lse)   dP = dO Vᵀ   δ = rowsum(P dP)   dS = P (dP − δ)   dQ = scale·dS K   dK = scale·dSᵀ Q   dV = Pᵀ dO

The forward pass is the core's. Everything is computed in float32 at least and rounded once; heads are repeated inside, so
that summing over a group is a step, too; so is summing the bias over what it was broadcast to.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from . import core
from .core import INF, Step, both, default_scale, frontier, hide, read_mask, repeat_heads, widen


@dataclass
class Operands:
    """What every backward pass knows; q, k, v in the wide type, heads repeated."""

    q: Tensor  # (B, H, L, D)
    k: Tensor  # (B, H, S, D)
    v: Tensor  # (B, H, S, Dv)
    out: Tensor  # (B, H, L, Dv), as stored
    scale: float
    mask: Tensor | None  # as it was given


@dataclass
class Saved(Operands):
    """What this one knows."""

    visible: Tensor | None  # broadcasts to (B, H, L, S)
    bias: Tensor | None
    is_causal: bool
    dtype: torch.dtype  # of the inputs
    needs: tuple[bool, ...]  # which of q, k, v, mask ask for a gradient


def logits(s: Saved) -> Tensor:
    """scale · Q Kᵀ + bias; −inf where hidden."""
    return hide((s.q @ s.k.mT) * s.scale, s.visible, s.bias)  # (B, H, L, S)


def log_sum_exp(logit: Tensor) -> Tensor:
    """ln Σ exp(s), +inf in a row that sees no key, so that exp(s − lse) is 0 there."""
    if not logit.shape[-1]:
        return torch.full((*logit.shape[:3], 1), INF, dtype=logit.dtype)
    lse = torch.logsumexp(logit, -1, keepdim=True)
    return lse.masked_fill(lse == -INF, INF)


def weigh(s: Saved) -> Tensor:
    """exp(s − lse)."""
    logit = logits(s)
    return torch.exp(logit - log_sum_exp(logit))


def take(grad: Tensor) -> Tensor:
    """The gradient of the output in the wide type."""
    return widen(grad)


def compare(s: Saved, grad: Tensor) -> Tensor:
    """dP = dO Vᵀ."""
    return grad @ s.v.mT


def centre(s: Saved, weight: Tensor, raw: Tensor, grad: Tensor) -> Tensor:
    """δ = rowsum(P dP), (B, H, L, 1)."""
    return (weight * raw).sum(-1, keepdim=True)


def differ(s: Saved, weight: Tensor, raw: Tensor, delta: Tensor) -> Tensor:
    """dS = P (dP − δ); 0 where a hidden key has a dP that is no number."""
    return (weight * (raw - delta)).masked_fill(weight == 0, 0.0)


def to_query(s: Saved, change: Tensor, raw: Tensor) -> Tensor:
    """dQ = scale · dS K."""
    return (change @ s.k) * s.scale


def to_key(s: Saved, change: Tensor, raw: Tensor) -> Tensor:
    """dK = scale · dSᵀ Q, per query head."""
    return (change.mT @ s.q) * s.scale


def to_value(s: Saved, weight: Tensor, grad: Tensor) -> Tensor:
    """dV = Pᵀ dO, per query head."""
    return weight.mT @ grad


def gather(x: Tensor, kv_heads: int) -> Tensor:
    """The sum over the query heads of a group."""
    return x if x.shape[1] == kv_heads else x.unflatten(1, (kv_heads, -1)).sum(2)


def to_bias(s: Saved, change: Tensor, shape: torch.Size) -> Tensor:
    """The sum over what the bias was broadcast to."""
    return change.sum_to_size(shape)


def finish(x: Tensor, name: str, s: Saved) -> Tensor:
    """A gradient of q, k, v or mask on its way out."""
    return x


STEPS: dict[str, Step] = {
    "weigh": weigh,
    "take": take,
    "compare": compare,
    "centre": centre,
    "differ": differ,
    "to_query": to_query,
    "to_key": to_key,
    "to_value": to_value,
    "gather": gather,
    "to_bias": to_bias,
    "finish": finish,
}


class Attention(torch.autograd.Function):
    """The core forward, these steps backward."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, options: dict[str, Any], steps: dict[str, Step]) -> Tensor:
        """The core's answer."""
        out = core.attention(q, k, v, attn_mask=mask, **options)
        ctx.save_for_backward(q, k, v, mask, out)
        ctx.options, ctx.steps = options, STEPS | steps
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Step by step."""
        (q, k, v, mask, out), options, step = ctx.saved_tensors, ctx.options, ctx.steps
        heads, (queries, keys) = q.shape[1], (q.shape[2], k.shape[2])
        scale = default_scale(q) if options.get("scale") is None else options["scale"]
        visible, bias = read_mask(mask, (q.shape[0], heads, queries, keys))
        causal = bool(options.get("is_causal"))
        visible = both(visible, frontier(queries, keys) if causal else None)
        s = Saved(
            widen(q),
            repeat_heads(widen(k), heads),
            repeat_heads(widen(v), heads),
            out,
            scale,
            mask,
            visible,
            bias,
            causal,
            q.dtype,
            ctx.needs_input_grad[:4],
        )
        grad = step["take"](grads[0])
        weight, raw = step["weigh"](s), step["compare"](s, grad)  # (B, H, L, S)
        change = step["differ"](s, weight, raw, step["centre"](s, weight, raw, grad))  # (B, H, L, S)
        parts = {
            "q": step["to_query"](s, change, raw),
            "k": step["gather"](step["to_key"](s, change, raw), k.shape[1]),
            "v": step["gather"](step["to_value"](s, weight, grad), k.shape[1]),
            "mask": step["to_bias"](s, change, mask.shape) if mask is not None and s.needs[3] else None,
        }
        done = {name: None if x is None else step["finish"](x, name, s) for name, x in parts.items()}
        narrow = {name: None if x is None else x.to(q.dtype) for name, x in done.items()}
        return narrow["q"], narrow["k"], narrow["v"], narrow["mask"], None, None


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    **steps: Step,
) -> Tensor:
    """softmax(scale · Q Kᵀ + mask) V with a backward pass by hand. The other keywords replace its steps."""
    options = {"is_causal": is_causal, "scale": scale, "enable_gqa": enable_gqa}
    out: Tensor = Attention.apply(q, k, v, attn_mask, options, steps)
    return out
