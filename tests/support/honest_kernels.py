"""Random problems in twelve regimes, and honest kernels that compute them in different orders and precisions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from properties.exact import oracle
from properties.exact.arithmetic import HALVES, Arithmetic, arithmetic

torch = pytest.importorskip("torch")
from torch.nn.attention import SDPBackend, sdpa_kernel

Array = npt.NDArray[Any]
DTYPES = ("float64", "float32", "float16", "bfloat16")
REGIMES = (
    "normal",
    "large",
    "near_ties",
    "one_hot",
    "cancelling",
    "constant",
    "tiny",
    "heavy",
    "simple",
    "offset",
    "positive",
    "wide",
)


@dataclass(frozen=True, eq=False)
class Case:
    """Operands as torch tensors (1, H, L or S, D) of one dtype, and the mask as bias (-inf hides) or None."""

    q: Any
    k: Any
    v: Any
    bias: Any
    scale: float

    def exact(self) -> oracle.Exact:
        q, k, v = (x.double().numpy() for x in (self.q, self.k, self.v))
        bias = None if self.bias is None else self.bias.double().numpy()
        visible = None if bias is None else ~np.isneginf(bias)
        finite = None if bias is None or not np.where(visible, bias, 0.0).any() else np.where(visible, bias, 0.0)
        precision: oracle.Precision = "extended" if self.q.dtype == torch.float64 else "float64"
        return oracle.solve(oracle.Problem(q, k, v, self.scale, visible, finite), precision)


def make_case(rng: np.random.Generator, regime: str, dtype: str, longest: int = 64) -> Case:
    """A random problem of the regime; every row sees a key."""
    H, L = int(rng.integers(1, 3)), int(rng.integers(1, 9))
    S, D = int(rng.integers(1, longest)), int(rng.integers(1, 33))
    Dv = D if rng.random() < 0.8 else int(rng.integers(1, 33))
    q, k, v = rng.normal(size=(1, H, L, D)), rng.normal(size=(1, H, S, D)), rng.normal(size=(1, H, S, Dv))
    if regime == "large":
        q *= rng.uniform(4, 16)
    elif regime == "near_ties":
        k = k[:, :, :1] + 1e-3 * k
    elif regime == "one_hot":
        q *= rng.uniform(20, 100)
    elif regime == "cancelling":
        v = 100 * np.sign(v) + 1e-2 * v
    elif regime == "constant":
        v = 10 + 1e-3 * v
    elif regime == "tiny":
        q, v = q * 2.0**-12, v * 2.0**-18
    elif regime == "heavy":
        q, k, v = (rng.standard_t(1.5, size=x.shape).clip(-30, 30) for x in (q, k, v))
    elif regime == "simple":
        q, k, v = (rng.choice([0, 1, -1, 0.5, 2, 0.1, -0.1, 3], size=x.shape) for x in (q, k, v))
    elif regime == "offset":
        q, k = 3 + 0.1 * q, 3 + 0.1 * k
    elif regime == "positive":
        q, k, v = np.abs(q), np.abs(k), np.abs(v)
    elif regime == "wide":
        a = rng.integers(-6, 7)
        q, k, v = q * 2.0**a, k * 2.0**-a, v * 2.0 ** rng.integers(-11, 12, size=v.shape)
    mask = rng.choice(["none", "causal", "bool", "float"])
    bias: Array | None = None
    if mask == "causal":
        bias = np.where(np.tril(np.ones((L, S), bool)), 0.0, -np.inf)
    elif mask == "bool":
        seen = rng.random((1, H, L, S)) < rng.uniform(0.2, 0.9)
        seen[..., int(rng.integers(S))] = True
        bias = np.where(seen, 0.0, -np.inf)
    elif mask == "float":
        bias = rng.normal(size=(1, H, L, S)) * rng.choice([1.0, 10.0])
    kind = getattr(torch, dtype)
    tensors = [None if x is None else torch.from_numpy(np.ascontiguousarray(x, float)).to(kind) for x in (q, k, v, bias)]
    scale = D**-0.5 if rng.random() < 0.5 else float(rng.choice([1.0, 0.5, 0.3]))
    return Case(*tensors, scale)


# Honest kernels: each takes a case and returns its output, in whatever order and precision it is known for.


def eager(case: Case) -> Any:
    """Scores, weights and output stored in the dtype, the scale after the product."""
    scores = (case.q @ case.k.mT) * case.scale
    scores = scores if case.bias is None else scores + case.bias
    return torch.softmax(scores, -1) @ case.v


def eager_scaled_first(case: Case) -> Any:
    """As ``eager``, both operands times the square root of the scale first; softmax in float32 at least."""
    root = math.sqrt(case.scale)
    scores = (case.q * root) @ (case.k * root).mT
    scores = scores if case.bias is None else scores + case.bias
    wide = torch.promote_types(scores.dtype, torch.float32)
    return torch.softmax(scores, -1, dtype=wide).to(case.q.dtype) @ case.v


def sdpa(backend: Any) -> Callable[[Case], Any]:
    def kernel(case: Case) -> Any:
        with sdpa_kernel(backend):
            return torch.nn.functional.scaled_dot_product_attention(case.q, case.k, case.v, attn_mask=case.bias, scale=case.scale)

    return kernel


def inner(case: Case) -> tuple[Any, Any, Any]:
    """(scores, values, minus infinity) in the accumulator's type."""
    kind = torch.promote_types(case.q.dtype, torch.float32)
    scores = (case.q.to(kind) @ case.k.to(kind).mT) * case.scale
    return scores if case.bias is None else scores + case.bias, case.v.to(kind), -math.inf


def online(block: int, backwards: bool = False) -> Callable[[Case], Any]:
    """Online softmax over blocks of keys; weights rounded to the dtype before they meet the values."""

    def kernel(case: Case) -> Any:
        scores, values, low = inner(case)
        top, total, sums = torch.full_like(scores[..., :1], low), 0.0, 0.0
        starts = list(range(0, scores.shape[-1], block))
        for at in reversed(starts) if backwards else starts:
            part = scores[..., at : at + block]
            new = torch.maximum(top, part.amax(-1, keepdim=True))
            safe = torch.where(new == low, torch.zeros_like(new), new)
            rescale, terms = torch.exp(top - safe), torch.exp(part - safe)
            stored = terms.to(case.q.dtype).to(terms.dtype)
            total = total * rescale + terms.sum(-1, keepdim=True)
            sums = sums * rescale + stored @ values[..., at : at + block, :]
            top = new
        return (sums / total).to(case.q.dtype)

    return kernel


def sequential(case: Case) -> Any:
    """Every sum from left to right."""
    kind = torch.promote_types(case.q.dtype, torch.float32)
    q, k, v = (x.to(kind) for x in (case.q, case.k, case.v))
    scores = torch.zeros(*q.shape[:-1], k.shape[-2], dtype=kind)
    for d in range(q.shape[-1]):
        scores = scores + q[..., d, None] * k[..., None, :, d]
    scores = scores * case.scale if case.bias is None else scores * case.scale + case.bias
    terms = torch.exp(scores - scores.amax(-1, keepdim=True))
    total, sums = torch.zeros_like(terms[..., :1]), torch.zeros(*terms.shape[:-1], v.shape[-1], dtype=kind)
    for j in range(terms.shape[-1]):
        total = total + terms[..., j, None]
        sums = sums + terms[..., j, None] * v[..., j, None, :]
    return (sums / total).to(case.q.dtype)


def split_keys(parts: int) -> Callable[[Case], Any]:
    """Split-KV: each part normalised by itself, merged through exp(lse_i - lse)."""

    def kernel(case: Case) -> Any:
        scores, values, _ = inner(case)
        pieces = zip(scores.tensor_split(parts, -1), values.tensor_split(parts, -2), strict=True)
        outs, lses = [], []
        for part, value in pieces:
            if part.shape[-1]:
                lse = torch.logsumexp(part, -1, keepdim=True)
                seen = torch.where(torch.isneginf(lse), torch.zeros_like(part), torch.softmax(part, -1))
                outs.append(seen @ value)
                lses.append(lse)
        lse = torch.logsumexp(torch.stack(lses), 0)
        return sum(torch.exp(one - lse) * out for one, out in zip(lses, outs, strict=True)).to(case.q.dtype)

    return kernel


def to_tf32(x: Any) -> Any:
    """float32 rounded to 11 significant bits, ties to even."""
    bits = x.contiguous().view(torch.int32)
    return ((bits + 0xFFF + ((bits >> 13) & 1)) & ~0x1FFF).view(torch.float32)


def tf32(case: Case) -> Any:
    scores = (to_tf32(case.q) @ to_tf32(case.k).mT) * case.scale
    scores = scores if case.bias is None else scores + case.bias
    return to_tf32(torch.softmax(scores, -1)) @ to_tf32(case.v)


def numpy_naive(case: Case) -> Any:
    """NumPy, everything in the dtype."""
    q, k, v = (x.numpy() for x in (case.q, case.k, case.v))
    scores = (q @ k.swapaxes(-1, -2)) * q.dtype.type(case.scale)
    scores = scores if case.bias is None else scores + case.bias.numpy()
    terms = np.exp(scores - scores.max(-1, keepdims=True))
    return torch.from_numpy((terms / terms.sum(-1, keepdims=True)) @ v)


def honest(dtype: str) -> Iterator[tuple[str, Callable[[Case], Any], Arithmetic]]:
    """Kernels with the arithmetic that each of them has, by its construction."""
    half = dtype in HALVES
    tight, blocked = ("wide", "fused") if half else ("same", "same")
    yield "eager", eager, arithmetic("eager", dtype)
    yield "eager, scaled first", eager_scaled_first, arithmetic("eager", dtype)
    yield "SDPA math", sdpa(SDPBackend.MATH), arithmetic(tight, dtype)
    yield "SDPA flash", sdpa(SDPBackend.FLASH_ATTENTION), arithmetic("fused", dtype)
    yield "online 16", online(16), arithmetic(blocked, dtype)
    yield "online 7 backwards", online(7, backwards=True), replace(arithmetic(blocked, dtype), block=7)
    yield "online 1", online(1), replace(arithmetic(blocked, dtype), block=1)
    yield "sequential", sequential, arithmetic(tight, dtype)
    yield "split 2", split_keys(2), arithmetic(tight + "+lse", dtype)
    yield "split 5", split_keys(5), arithmetic(tight + "+lse", dtype)
    if dtype == "float32":
        yield "TF32", tf32, arithmetic("tf32", dtype)
    if dtype != "bfloat16":
        yield "NumPy", numpy_naive, arithmetic("same", dtype)


def used(case: Case, out: Any, exact: oracle.Exact, limit: Array) -> float:
    """The largest used fraction of the bound; infinite bounds and NaN of the kernel under them claim nothing."""
    error = np.where(np.isinf(limit), 0.0, exact.out_error(out.double().numpy()))
    return float(np.max(error / limit, initial=0.0))
