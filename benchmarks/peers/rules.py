"""How a peer decides: the plain attention it compares with, its rules of acceptance, and what it checks beside values.

A check takes the callable and a call and says what is wrong, or nothing. A rule compares an answer with a reference,
which is computed from the tensors as the callable has left them, as it is where a test computes it last.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor

from .calls import Arguments, Call, Subject, draw

Rule = Callable[[Tensor, Arguments], str]
Check = Callable[[Subject, Call], str]


@dataclass(frozen=True)
class Reference:
    """A plain attention and what it rounds."""

    dtype: str = "float64"  # "own": all intermediates in the dtype of the inputs
    scaled_key: bool = False  # the scale goes into the keys: another order of the same operations
    rounded_weights: bool = False  # weights pass through the dtype of the inputs

    def __call__(self, given: Arguments) -> Tensor:
        return _kept(self, given.call) if given.unchanged() else self.attention(given)

    def attention(self, given: Arguments) -> Tensor:
        """softmax(scale · Q Kᵀ + mask) V, causal to the top left; a row that sees no key gives zeros."""
        own = given.q.dtype
        dtype = own if self.dtype == "own" else getattr(torch, self.dtype)
        group = given.q.shape[1] // given.k.shape[1]
        q = given.q.to(dtype)
        k, v = (x.to(dtype).repeat_interleave(group, 1) for x in (given.k, given.v))
        scale = max(q.shape[-1], 1) ** -0.5 if given.call.scale is None else given.call.scale
        logits = q @ (k * scale).mT if self.scaled_key else (q @ k.mT) * scale  # (B, H, L, S)
        if given.mask is not None and given.mask.dtype == torch.bool:
            logits = logits.masked_fill(~given.mask, -math.inf)
        elif given.mask is not None:
            logits = logits + given.mask.to(dtype)
        if given.call.causal:
            logits = logits.masked_fill(~torch.ones(logits.shape[-2:], dtype=torch.bool).tril(), -math.inf)
        weights = torch.softmax(logits, -1).masked_fill((logits == -math.inf).all(-1, keepdim=True), 0.0)
        return (weights.to(own).to(dtype) if self.rounded_weights else weights) @ v


@cache
def _kept(reference: Reference, call: Call) -> Tensor:
    return reference.attention(draw(call))


# ---------------------------------------------------------------- rules


def times_the_error(
    factor: float, *, golden: Reference, low: Reference, floor: float = 0.0, added: float = 0.0, nan_hole: bool = False
) -> Rule:
    """max|out - golden| ≤ max(floor, factor · max|low - golden| + added), as plain arithmetic: it neither asks for a shape
    that broadcasts nor for a dtype. With ``nan_hole``, a NaN passes wherever the reference has one too."""

    def rule(out: Tensor, seen: Arguments) -> str:
        exact = golden(seen)
        error = (out.to(exact.dtype) - exact).abs()
        mine = error.max().item() if error.numel() else 0.0
        theirs = (low(seen).to(exact.dtype) - exact).abs()
        allowed = max(floor, factor * (theirs.max().item() if theirs.numel() else 0.0) + added)
        if nan_hole and theirs.isnan().any():
            return ""
        return "" if mine <= allowed else f"error {mine:.3g}, allowed {allowed:.3g}"

    return rule


def close(tolerances: Mapping[str, tuple[float, float]], reference: Reference, *, equal_nan: bool = False) -> Rule:
    """|out - reference| ≤ atol + rtol · |reference| everywhere, shape and dtype as due; dtype → (atol, rtol)."""

    def rule(out: Tensor, seen: Arguments) -> str:
        expected = reference(seen)
        atol, rtol = tolerances[seen.call.dtype]
        if out.shape != expected.shape or out.dtype != seen.q.dtype:
            return f"{tuple(out.shape)} of {out.dtype}, expected {tuple(expected.shape)} of {seen.q.dtype}"
        if torch.allclose(out.double(), expected.double(), atol=atol, rtol=rtol, equal_nan=equal_nan):
            return ""
        return f"off by {(out.double() - expected.double()).abs().max().item():.3g}, atol {atol:g}, rtol {rtol:g}"

    return rule


def no_nan(out: Tensor, seen: Arguments) -> str:
    """Only that there is no NaN."""
    return "NaN" if out.isnan().any() else ""


# ---------------------------------------------------------------- checks


def values(rule: Rule) -> Check:
    """The answer meets the rule."""

    def check(subject: Subject, call: Call) -> str:
        given = draw(call).fresh()
        return rule(subject(given), given)

    return check


def same_bits(times: int) -> Check:
    """The same call again, ``times`` times, gives the same bits."""

    def check(subject: Subject, call: Call) -> str:
        given = draw(call).fresh()
        first = subject(given).clone()
        again = (subject(given) for _ in range(times))
        return "" if all(torch.equal(first, other) for other in again) else "another answer the second time"

    return check


def poisoned(poison: float, rule: Rule) -> Check:
    """Keys and values beyond each length are poisoned; the answer meets the rule for the clean ones.

    With NaN it is not put to a callable that declares to leak NaN: theirs is memory that no kernel reads, ours a mask.
    """

    def check(subject: Subject, call: Call) -> str:
        if math.isnan(poison) and not subject.contains_nan:
            return ""
        clean = draw(call)
        assert clean.mask is not None
        hidden = ~clean.mask.transpose(-1, -2)  # (B, 1, S, 1)
        k, v = (x.masked_fill(hidden, poison) for x in (clean.k, clean.v))
        return rule(subject(replace(clean.fresh(), k=k, v=v)), clean)

    return check


def causal_is_a_triangle(rule: Rule) -> Check:
    """is_causal and the triangular bool mask agree."""

    def check(subject: Subject, call: Call) -> str:
        given = draw(call).fresh()
        triangle = torch.ones(call.shape[2:4], dtype=torch.bool).tril()
        masked = subject(replace(given, call=replace(call, causal=False), mask=triangle))
        return rule(subject(given), given) or rule(masked, given)

    return check
