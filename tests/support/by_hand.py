"""Attentions as people write them by hand, in the type of their inputs: all of them right, whatever they store on the way.

python tests/support/by_hand.py [cases [dtype …]]     # every property on each of them, as many cases as the command line draws: hours
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

Tensor = Any
Step = Callable[..., Tensor]
LOG2E = math.log2(math.e)


def written(logits: Step, weigh: Step, hides: str = "infinity") -> Callable[..., Tensor]:
    """An attention from two steps: the logits of q, k and the scale; the output of the logits and v."""

    def attention(
        q: Tensor, k: Tensor, v: Tensor, *, attn_mask: Tensor | None = None, is_causal: bool = False, scale: float | None = None
    ) -> Tensor:
        s = logits(q, k, (q.shape[-1] ** -0.5 if q.shape[-1] else 1.0) if scale is None else scale)
        seen = None
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            seen = attn_mask
        elif attn_mask is not None:
            s = s + attn_mask
            seen = attn_mask != -torch.inf
        if is_causal:
            past = torch.ones(s.shape[-2:], dtype=torch.bool).tril()
            seen = past if seen is None else seen & past
        live = None
        if seen is not None:
            live = seen.expand(s.shape).any(-1, keepdim=True)
            if hides == "where":
                s = torch.where(seen, s, torch.tensor(-torch.inf, dtype=s.dtype))
            else:
                s = s.masked_fill(~seen, -torch.inf if hides == "infinity" else torch.finfo(s.dtype).min)
            s = torch.where(live, s, torch.zeros((), dtype=s.dtype))
        out = weigh(s, v).to(q.dtype)
        return out if live is None else out.masked_fill(~live, 0)

    return attention


# ---------------------------------------------------------------- logits


def after(q: Tensor, k: Tensor, scale: float) -> Tensor:
    return q @ k.mT * scale


def divided(q: Tensor, k: Tensor, scale: float) -> Tensor:
    return torch.matmul(q, k.transpose(-2, -1)) / (1 / scale) if scale else torch.matmul(q, k.transpose(-2, -1)) * scale


def on_q(q: Tensor, k: Tensor, scale: float) -> Tensor:
    return (q * scale) @ k.mT


def on_k(q: Tensor, k: Tensor, scale: float) -> Tensor:
    return q @ (k * scale).mT


def on_both(q: Tensor, k: Tensor, scale: float) -> Tensor:
    root = math.sqrt(abs(scale))
    return (q * math.copysign(root, scale)) @ (k * root).mT


def in_einsum(q: Tensor, k: Tensor, scale: float) -> Tensor:
    return torch.einsum("bhld,bhsd->bhls", q, k) * scale


def in_place(q: Tensor, k: Tensor, scale: float) -> Tensor:
    return torch.matmul(q, k.mT).mul_(scale)


def in_baddbmm(q: Tensor, k: Tensor, scale: float) -> Tensor:
    if not scale:  # torch 2.13 on CPU answers alpha = 0 in bfloat16 with what it finds in memory
        return after(q, k, scale)
    flat = torch.empty(q.shape[0] * q.shape[1], q.shape[2], k.shape[2], dtype=q.dtype)
    out = torch.baddbmm(flat, q.flatten(0, 1), k.flatten(0, 1).mT, beta=0.0, alpha=scale)
    return out.unflatten(0, q.shape[:2])


def upcast(q: Tensor, k: Tensor, scale: float) -> Tensor:
    return q.float() @ k.float().mT * scale


def upcast_after(q: Tensor, k: Tensor, scale: float) -> Tensor:
    return (q @ k.mT).float() * scale


# ---------------------------------------------------------------- softmax and product with the values


def by_hand(s: Tensor, v: Tensor) -> Tensor:
    e = torch.exp(s - s.amax(-1, keepdim=True))
    return (e / e.sum(-1, keepdim=True)) @ v


def divided_last(s: Tensor, v: Tensor) -> Tensor:
    e = torch.exp(s - s.amax(-1, keepdim=True))
    return (e @ v) / e.sum(-1, keepdim=True)


def times_reciprocal(s: Tensor, v: Tensor) -> Tensor:
    e = (s - s.max(-1, keepdim=True).values).exp()
    return (e * e.sum(-1, keepdim=True).reciprocal()) @ v


def base_two(s: Tensor, v: Tensor) -> Tensor:
    s = s * LOG2E
    e = torch.exp2(s - s.amax(-1, keepdim=True))
    return (e @ v) / e.sum(-1, keepdim=True)


def base_two_late(s: Tensor, v: Tensor) -> Tensor:
    e = torch.exp2((s - s.amax(-1, keepdim=True)) * LOG2E)
    return (e / e.sum(-1, keepdim=True)) @ v


def without_maximum(s: Tensor, v: Tensor) -> Tensor:
    """Where that is safe: the largest exponential of a row is neither above 1 nor much below."""
    top = s.amax(-1, keepdim=True)
    e = torch.exp(torch.where((top > -6) & (top <= 0), s, s - top))
    return (e @ v) / e.sum(-1, keepdim=True)


def built_in(s: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(s, dim=-1) @ v


def built_in_upcast(s: Tensor, v: Tensor) -> Tensor:
    return functional.softmax(s, dim=-1, dtype=torch.float32).to(v.dtype) @ v


def by_logarithm(s: Tensor, v: Tensor) -> Tensor:
    return functional.log_softmax(s, dim=-1).exp() @ v


def in_place_softmax(s: Tensor, v: Tensor) -> Tensor:
    s = s.clone()
    s -= s.amax(-1, keepdim=True)
    s.exp_()
    s /= s.sum(-1, keepdim=True)
    return torch.einsum("bhls,bhsd->bhld", s, v)


def normalised(s: Tensor, v: Tensor) -> Tensor:
    return functional.normalize((s - s.amax(-1, keepdim=True)).exp(), p=1.0, dim=-1) @ v


def broadcast(s: Tensor, v: Tensor) -> Tensor:
    e = torch.exp(s - s.amax(-1, keepdim=True))
    w = e / e.sum(-1, keepdim=True)
    return (w[..., None] * v[..., None, :, :]).sum(-2) if w.numel() * v.shape[-1] < 1 << 16 else w @ v


def online(s: Tensor, v: Tensor, block: int = 16) -> Tensor:
    """Its state is kept in float32."""
    top, total = torch.full((*s.shape[:-1], 1), -torch.inf), torch.zeros((*s.shape[:-1], 1))
    out = torch.zeros((*s.shape[:-1], v.shape[-1]))
    for at in range(0, s.shape[-1], block):
        part = s[..., at : at + block]
        higher = torch.maximum(top, part.amax(-1, keepdim=True).float())
        base = torch.where(higher == -torch.inf, torch.zeros(()), higher)
        e, factor = torch.exp(part.float() - base).to(v.dtype), torch.exp(top - base)
        total = total * factor + e.float().sum(-1, keepdim=True)
        out = out * factor + (e @ v[..., at : at + block, :]).float()
        top = higher
    return out / total


def nothing_first(weigh: Step) -> Step:
    """With no key there is no maximum."""

    def weighed(s: Tensor, v: Tensor) -> Tensor:
        return weigh(s, v) if s.numel() else s @ v.to(s.dtype)

    return weighed


def wide(weigh: Step) -> Step:
    return lambda s, v: weigh(s.float(), v.float())


STYLES: dict[str, tuple[Step, Step, str]] = {
    "three passes": (after, by_hand, "infinity"),
    "three passes, hidden by the lowest number": (divided, by_hand, "lowest"),
    "divided last": (after, divided_last, "infinity"),
    "divided last, scale on q": (on_q, divided_last, "where"),
    "times the reciprocal": (on_k, times_reciprocal, "infinity"),
    "base two": (on_both, base_two, "infinity"),
    "base two after the maximum": (after, base_two_late, "where"),
    "without a maximum": (after, without_maximum, "infinity"),
    "softmax of halves": (after, built_in, "infinity"),
    "softmax of halves, scale on both": (on_both, built_in, "lowest"),
    "softmax in float32": (after, built_in_upcast, "infinity"),
    "log-softmax": (after, by_logarithm, "infinity"),
    "log-softmax in float32": (upcast_after, by_logarithm, "infinity"),
    "einsum": (in_einsum, in_place_softmax, "infinity"),
    "in place": (in_place, in_place_softmax, "where"),
    "baddbmm": (in_baddbmm, built_in, "infinity"),
    "normalised": (on_q, normalised, "infinity"),
    "broadcast": (after, broadcast, "infinity"),
    "online": (after, online, "infinity"),
    "online, all wide": (upcast, online, "where"),
    "everything in float32": (upcast, by_hand, "infinity"),
    "scores in halves, the rest in float32": (after, by_hand, "where"),
}
WIDE = ("log-softmax in float32", "online, all wide", "everything in float32", "scores in halves, the rest in float32")
KERNELS: dict[str, Callable[..., Tensor]] = {
    name: written(logits, nothing_first(wide(weigh) if name in WIDE else weigh), hides) for name, (logits, weigh, hides) in STYLES.items()
}

# Where hidden keys get the lowest number, a key that an additive mask puts there weighs as much: such a mask is not taken with them.
FACTS: dict[str, dict[str, Any]] = {
    name: {"framework": "torch", "masked_nan": "leaks"}
    | ({"gradients": False} if weigh is in_place_softmax else {})  # autograd refuses it
    | ({"mask_kinds": ["bool", "minus_infinity", "bias", "bias_and_minus_infinity"]} if hides == "lowest" else {})
    for name, (_, weigh, hides) in STYLES.items()
}


def main(arguments: list[str]) -> int:
    """Exit status 1 if anything is refuted."""
    from properties.catalogue import PROPERTIES
    from properties.engine.search import search
    from properties.engine.search.probe import make_target
    from properties.engine.search.search import Plan, inapplicable

    plan, dtypes = Plan(examples=int(arguments[0]) if arguments else Plan().examples), arguments[1:] or ["bfloat16", "float16"]
    refuted = 0
    for name, kernel in KERNELS.items():
        for dtype in dtypes:
            target = make_target(name, kernel, FACTS[name] | {"dtypes": [dtype]})
            outcomes = [
                search(target, prop, plan)
                for prop in PROPERTIES.values()
                if prop.contract == "attention" and not inapplicable(target, prop)
            ]
            most = max(outcomes, key=lambda outcome: outcome.notes.used)
            cases = sum(outcome.cases for outcome in outcomes)
            print(f"{name:42} {dtype:8}  {cases:6,} cases, {most.notes.used:.2f} of the bound ({most.prop.name})", flush=True)
            for finding in (outcome.finding for outcome in outcomes if outcome.finding):
                refuted += 1
                print(f"  REFUTED {finding.prop.name} {finding.case}: {finding.violation.says}", flush=True)
    return int(refuted > 0)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
    torch.set_num_threads(1)
    sys.exit(main(sys.argv[1:]))
