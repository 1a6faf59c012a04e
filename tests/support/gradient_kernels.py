"""Backward passes as they are written in practice: through autograd, by hand from stored weights, and again from the lse."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from properties.exact import oracle
from properties.exact.arithmetic import HALVES, Arithmetic, arithmetic
from properties.exact.gradient_oracle import Gradients, differentiate

torch = pytest.importorskip("torch")
from honest_kernels import Case, eager, eager_scaled_first, online, sdpa, split_keys
from torch.nn.attention import SDPBackend

Array = npt.NDArray[Any]
Parts = dict[str, Any]  # gradients of q, k, v and, where there is a finite one, of the bias


@dataclass(frozen=True, eq=False)
class Backward:
    """A case and the gradient of its output."""

    case: Case
    grad_out: Any  # (1, H, L, Dv)

    def exact(self) -> Gradients:
        return differentiate(self.case.exact(), self.grad_out.double().numpy())

    def leaves(self) -> tuple[Case, list[Any]]:
        leaves = [x.detach().clone().requires_grad_() for x in (self.case.q, self.case.k, self.case.v)]
        bias = self.case.bias
        if bias is not None and bool(bias.isfinite().all()):
            bias = bias.detach().clone().requires_grad_()
            leaves.append(bias)
        return Case(leaves[0], leaves[1], leaves[2], bias, self.case.scale), leaves


def make_backward(rng: np.random.Generator, case: Case) -> Backward:
    """dO normal, sparse, of one sign, or of widely different magnitude."""
    shape = (*case.q.shape[:3], case.v.shape[3])
    grad_out = rng.normal(size=shape)
    kind = rng.integers(5)
    if kind == 1:
        grad_out *= rng.random(shape) < 0.3
    elif kind == 2:
        grad_out = np.ones(shape)
    elif kind == 3:
        grad_out *= 2.0 ** rng.integers(-9, 5, size=(*shape[:3], 1))
    elif kind == 4:
        grad_out = np.abs(grad_out) + 3
    return Backward(case, torch.from_numpy(grad_out).to(case.q.dtype))


def through(kernel: Callable[[Case], Any]) -> Callable[[Backward], Parts]:
    """Automatic differentiation of a forward kernel."""

    def backward(b: Backward) -> Parts:
        case, leaves = b.leaves()
        found = torch.autograd.grad(kernel(case), leaves, b.grad_out)
        return dict(zip(("q", "k", "v", "logits"), found, strict=False))

    return backward


def naive(case: Case) -> Any:
    """exp(s − max) / sum, the maximum in the graph."""
    scores = (case.q @ case.k.mT) * case.scale
    scores = scores if case.bias is None else scores + case.bias
    terms = torch.exp(scores - scores.amax(-1, keepdim=True))
    return (terms / terms.sum(-1, keepdim=True)) @ case.v


def divided_last(case: Case) -> Any:
    """(exp(s − max) v) / sum in the accumulator's type."""
    kind = torch.promote_types(case.q.dtype, torch.float32)
    scores = (case.q.to(kind) @ case.k.to(kind).mT) * case.scale
    scores = scores if case.bias is None else scores + case.bias
    terms = torch.exp(scores - scores.amax(-1, keepdim=True))
    return ((terms @ case.v.to(kind)) / terms.sum(-1, keepdim=True)).to(case.q.dtype)


def weights_rounded(case: Case) -> Any:
    """The weights in the type of the values, and so, on the way back, dP."""
    kind = torch.promote_types(case.q.dtype, torch.float32)
    scores = (case.q.to(kind) @ case.k.to(kind).mT) * case.scale
    scores = scores if case.bias is None else scores + case.bias
    weights = torch.softmax(scores, -1).to(case.q.dtype).to(kind)
    return (weights @ case.v.to(kind)).to(case.q.dtype)


def by_hand(
    delta: str = "out", block: int = 1 << 30, expanded: bool = False, base2: bool = False, stored: bool = False
) -> Callable[[Backward], Parts]:
    """Weights again from the log-sum-exp; δ from out or from the weights; keys in blocks; P dP − P δ or P (dP − δ).

    ``stored``: P and dS are rounded to the dtype before they are multiplied (FlashAttention in half precision).
    """

    def backward(b: Backward) -> Parts:
        case, kind = b.case, torch.promote_types(b.case.q.dtype, torch.float32)
        q, k, v, d_out = (x.to(kind) for x in (case.q, case.k, case.v, b.grad_out))
        scores = (q @ k.mT) * case.scale
        scores = scores if case.bias is None else scores + case.bias.to(kind)
        lse = torch.logsumexp(scores, -1, keepdim=True)
        out = torch.softmax(scores, -1) @ v
        out = out.to(case.q.dtype).to(kind) if stored or kind == case.q.dtype else out

        def again(at: slice) -> tuple[Any, Any]:
            part = (q * case.scale) @ k[..., at, :].mT
            part = part if case.bias is None else part + case.bias.to(kind)[..., at]
            p = torch.exp2(part * math.log2(math.e) - lse * math.log2(math.e)) if base2 else torch.exp(part - lse)
            return p, d_out @ v[..., at, :].mT

        blocks = [slice(at, at + block) for at in range(0, k.shape[-2], block)]
        if delta == "out":
            d = (d_out * out).sum(-1, keepdim=True)
        else:
            d = sum((p * dp).sum(-1, keepdim=True) for p, dp in map(again, blocks))
        d_q, d_k, d_v, d_s = torch.zeros_like(q), [], [], []
        for at in blocks:
            p, dp = again(at)
            ds = p * dp - p * d if expanded else p * (dp - d)
            d_s.append(ds)
            if stored:
                p, ds = (x.to(case.q.dtype).to(kind) for x in (p, ds))
            d_v.append(p.mT @ d_out)
            d_k.append((ds.mT @ q) * case.scale)
            d_q = d_q + ds @ (k[..., at, :] * case.scale)
        parts = {"q": d_q, "k": torch.cat(d_k, -2), "v": torch.cat(d_v, -2)}
        if case.bias is not None:
            parts["logits"] = torch.cat(d_s, -1).sum_to_size(case.bias.shape)
        return {name: x.to(case.q.dtype) for name, x in parts.items()}

    return backward


def honest_backward(dtype: str) -> Iterator[tuple[str, Callable[[Backward], Parts], Arithmetic]]:
    """Backward passes with the arithmetic that each of them has, by its construction."""
    half = dtype in HALVES
    tight = "wide" if half else "same"
    yield "eager", through(eager), arithmetic("eager", dtype)
    yield "eager, scaled first", through(eager_scaled_first), arithmetic("eager", dtype)
    yield "naive", through(naive), arithmetic("eager", dtype)
    yield "divided last", through(divided_last), arithmetic(tight, dtype)
    yield "weights rounded", through(weights_rounded), arithmetic("fused", dtype)
    yield "SDPA math", through(sdpa(SDPBackend.MATH)), arithmetic(tight, dtype)
    yield "SDPA flash", through(sdpa(SDPBackend.FLASH_ATTENTION)), arithmetic("fused", dtype)
    yield "by hand", by_hand(), arithmetic("fused" if half else "same", dtype)
    yield "by hand, stored", by_hand(stored=True, block=16), arithmetic("fused", dtype)
    yield "by hand, blocks", by_hand("weights", 5, expanded=True), arithmetic(tight, dtype)
    yield "by hand, base 2", by_hand("weights", base2=True), arithmetic("fused", dtype)
    yield "online 7", through(online(7)), arithmetic(("eager" if half else "same") + "+lse", dtype)
    yield "split 3", through(split_keys(3)), arithmetic(tight + "+lse", dtype)


def shares(b: Backward, parts: Parts, exact: Gradients, bound: Any) -> dict[str, float]:
    """The largest used fraction of the bound of each gradient; infinite bounds claim nothing."""
    found = {}
    for name, part in parts.items():
        value = part.double().numpy()
        if name == "logits":
            limit = bound.of_bias(b.case.bias.shape)
            exact_value, tail = exact.of_bias(b.case.bias.shape)
            error = oracle.distance(value, exact_value, tail)
        else:
            limit, error = getattr(bound, name), exact.error(name, value)
        error = np.where(np.isinf(limit), 0.0, error)
        with np.errstate(divide="ignore", invalid="ignore"):
            share = np.where(error > 0, error / limit, 0.0)
        found[name] = float(np.max(share, initial=0.0))
    return found
