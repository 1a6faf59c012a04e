"""Encoder and decoder layers, exactly, and how far correct ones may be off: composition, step by step.

    N(x) = g (x − μ) / √(v + ε) + β,   μ and v: mean and variance of the features        (Ba, Kiros & Hinton 2016)
    F(x) = W₂ act(W₁ x + b₁) + b₂                                                        (Vaswani et al. 2017, equation 2)

    encoder   post-norm  y = N₁(x + A(x)),           z = N₂(y + F(y))                    (Vaswani et al. 2017, 3.1)
              pre-norm   y = x + A(N₁(x)),           z = y + F(N₂(y))                    (Xiong et al. 2020)
    decoder   the same with cross-attention C to the memory between the two, and N₃ for F

Every step takes numbers with an error and gives numbers with an error, both from the case's own numbers.

Norm. Let x̂ = x + δ with |δ_i| ≤ e_i, n features, c = x − μ, s = √(v + ε). Then c changes by d_i = e_i + mean(e) at most, and s, a norm
of the vector (c/√n, √ε), by ρ = √(mean e²); besides, s is never below √ε. So a row that is nearly constant has a finite bound.
Rounding: the mean is off by m = ((1+u)^(n+7) − 1) max|x̂|, in two passes and in the running form alike (in that each of n steps rounds
numbers below max|x̂|, and averages earlier errors). The mean of squares about a mean that is off by m is off, by Cauchy and Schwarz,
by (4 + log₂ n) m √v + 2 m², whether the squares are summed in two passes, one by one (Welford 1962) or merged in a tree (Chan, Golub
& LeVeque 1983), and by n + 18 roundings of itself. With r the sum of these relative to s², ŝ lies within s √(1 ± r), and

    |ĉ/ŝ − c/s| ≤ (d + m + …) / ŝ + |c|/s (ρ + (s + ρ)(1 − √(1 − r))) / ŝ,      ŝ ≥ max(s − ρ, √ε) √(1 − r).

A variance taken as E[x²] − E[x]² loses more: it is correct only in a wider type. Inside a norm or an activation, u is the unit of the
accumulators: what is eager stores between the steps of a layer, not between those of a norm, which is one call in every library.

Activation. relu is 1-Lipschitz and rounds nothing. gelu x Φ(x) has a slope below 1.13, also in its form with tanh (Hendrycks & Gimpel
2016), and some eighteen roundings of |x|.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..exact import bound, oracle
from ..exact.arithmetic import Arithmetic
from ..exact.double_double import DoubleDouble
from ..exact.oracle import Array, join_heads, nearest, split_heads
from ..exact.softmax_error import growth

SLOPE = 1.13  # of gelu: the largest is Φ(√2) + √2 φ(√2) = 1.1289; of its form with tanh 1.1290
FAR = {False: 6.7, True: 8.5}  # beyond, 1 − erf is below the last digit of a longdouble, of a double-double


@dataclass(frozen=True, eq=False)
class Block:
    """One call of an encoder or, with memory, a decoder layer, in numbers that the dtype under test represents exactly."""

    x: Array  # (B, L, E) float64
    weights: Mapping[str, Array]
    num_heads: int
    visible: Array  # (B, H, L, L) bool: which tokens the self-attention sees
    bias: Array | None = None  # added to its logits
    memory: Array | None = None  # (B, S, E)
    memory_visible: Array | None = None  # (B, H, L, S)
    memory_bias: Array | None = None
    norm_first: bool = False
    activation: str = "relu"  # relu | gelu | gelu_tanh
    eps: float = 1e-5
    empty_rows: str = "zero"  # as in oracle.Problem

    def but(self, **changes: Any) -> Block:
        """The same call with some arguments changed."""
        return dataclasses.replace(self, **changes)


@dataclass(frozen=True, eq=False)
class Value:
    """Numbers in the number system of the computation, and how far computed ones may be off."""

    wide: Any
    error: Array

    @property
    def near(self) -> Array:
        """As float64."""
        return nearest(self.wide)

    @property
    def out(self) -> Array:
        """As float64, by the name that answers have."""
        return self.near

    def out_error(self, actual: Array) -> Array:
        """|actual − exact|; 0 where both are nan or the same infinity, inf where only one is."""
        return oracle.distance(actual, self.near, oracle.tail(self.wide, self.near))


def solve(block: Block, arithmetic: Arithmetic, precision: oracle.Precision = "float64") -> Value:
    """The exact answer (B, L, E) and the bound of a computed one."""
    with np.errstate(all="ignore"):
        return Steps(block, arithmetic, *oracle.number_system(precision)).answer()


def hidden(block: Block, arithmetic: Arithmetic) -> Array:
    """What the activation is given (B, L, hidden)."""
    with np.errstate(all="ignore"):
        return Steps(block, arithmetic, *oracle.number_system("float64")).hidden().near


@dataclass(frozen=True, eq=False)
class Steps:
    """The sublayers of one call, each exactly and with its bound."""

    block: Block
    arithmetic: Arithmetic
    lift: Any
    unit: float  # unit roundoff of the computation

    def answer(self) -> Value:
        """All sublayers, one after the other."""
        return self.around(self.attended(), self.norms, self.feed_forward)

    def hidden(self) -> Value:
        """What the activation is given (B, L, hidden)."""
        x, w = self.attended(), self.block.weights
        return self.linear(self.norm(x, self.norms) if self.block.norm_first else x, w["w_1"], w.get("b_1"))

    @property
    def norms(self) -> int:
        """How many there are; the last one is that of the feed-forward part."""
        return 2 if self.block.memory is None else 3

    def attended(self) -> Value:
        """The tokens that come to the feed-forward part."""
        block = self.block
        x = Value(self.lift(block.x), np.zeros(block.x.shape))
        x = self.around(x, 1, lambda y: self.attend(y, y, "", block.visible, block.bias))
        if block.memory is None:
            return x
        memory, visible = Value(self.lift(block.memory), np.zeros(block.memory.shape)), block.memory_visible
        return self.around(x, 2, lambda y: self.attend(y, memory, "cross_", visible, block.memory_bias))

    def around(self, x: Value, norm: int, sublayer: Any) -> Value:
        """Residual and norm: N(x + f(x)), or x + f(N(x))."""
        if self.block.norm_first:
            return self.add(x, sublayer(self.norm(x, norm)))
        return self.norm(self.add(x, sublayer(x)), norm)

    def add(self, x: Value, y: Value) -> Value:
        """x + y, rounded once."""
        total = x.wide + y.wide
        size = np.abs(nearest(total))
        error = self.stored(size, x.error + y.error) + self.arithmetic.tiny
        return Value(total, error)

    def stored(self, size: Array, error: Array) -> Array:
        """The error after storing numbers of this size that were off by ``error``; inf where they may overflow."""
        a = self.arithmetic
        error = error + (a.u_out + self.unit) * (size + error) + a.eta_out
        return np.where(size + error <= a.max_out, error, np.inf)

    def linear(self, x: Value, w: Array, b: Array | None) -> Value:
        """x Wᵀ + b."""
        y, step = oracle.project(self.lift, x.wide, x.near, w, b)
        return Value(y, bound.linear(step, self.arithmetic, self.unit, x.error))

    def attend(self, x: Value, memory: Value, prefix: str, visible: Array | None, bias: Array | None) -> Value:
        """Multi-head attention from x to the memory."""
        w, heads = self.block.weights, self.block.num_heads
        parts = [self.linear(y, w[f"{prefix}w_{name}"], w.get(f"{prefix}b_{name}")) for y, name in ((x, "q"), (memory, "k"), (memory, "v"))]
        q, k, v = (split_heads(part.wide, heads) for part in parts)
        problem = oracle.Problem(
            nearest(q),
            nearest(k),
            nearest(v),
            scale=1 / math.sqrt(q.shape[-1]),
            visible=visible,
            bias=bias,
            empty_rows=self.block.empty_rows,
        )
        exact = oracle.attend(problem, q, k, v, self.unit)
        errors = (split_heads(part.error, heads) for part in parts)
        error = bound.rigorous(exact, self.arithmetic, **dict(zip(("query_error", "key_error", "value_error"), errors, strict=True)))
        mixed = self.lift(join_heads(exact.out)) + self.lift(join_heads(exact.out_tail))
        return self.linear(Value(mixed, join_heads(error)), w[f"{prefix}w_o"], w.get(f"{prefix}b_o"))

    def feed_forward(self, x: Value) -> Value:
        """W₂ act(W₁ x + b₁) + b₂."""
        w = self.block.weights
        return self.linear(self.activate(self.linear(x, w["w_1"], w.get("b_1"))), w["w_2"], w.get("b_2"))

    def activate(self, h: Value) -> Value:
        """relu, or gelu in one of its two forms."""
        near = h.near
        if self.block.activation == "relu":
            return Value(oracle.where(near > 0, h.wide, 0.0), np.where(near >= 0, h.error, np.clip(near + h.error, 0.0, None)))
        a, size = self.arithmetic, np.abs(near)
        cubed = h.wide * h.wide * h.wide
        inner = (h.wide + cubed * self.ratio(44715, 1000000)) * sqrt(self.lift(np.array(2.0)) / pi(self.lift))
        share = tanh(inner) if self.block.activation == "gelu_tanh" else erf(h.wide * sqrt(self.lift(np.array(0.5))), self.lift)
        own = self.unit * (6 * np.minimum(size, 12.0) ** 2 + 24) * size  # of the series of erf, or of tanh
        error = SLOPE * h.error + growth((a.u_acc, 18)) * (size + h.error) + 12 * a.tiny + own
        out = h.wide * (share + 1.0) * 0.5
        return Value(out, self.stored(np.abs(nearest(out)), error))

    def ratio(self, p: int, q: int) -> Any:
        """p / q in the number system of the computation."""
        return self.lift(np.array(float(p))) / float(q)

    def norm(self, x: Value, number: int) -> Value:
        """g (x − μ) / √(v + ε) + β over the features."""
        w, n, eps = self.block.weights, x.near.shape[-1], self.block.eps
        centred = x.wide - x.wide.sum(-1, keepdims=True) / float(n)
        variance = (centred * centred).sum(-1, keepdims=True) / float(n)
        deviation = sqrt(variance + eps)
        z = centred / deviation
        y = z * self.lift(w[f"g_{number}"])
        shift = w.get(f"beta_{number}")
        y = y if shift is None else y + self.lift(shift)
        error = norm_error(x.near, x.error, nearest(centred), nearest(deviation), eps, self.arithmetic)
        error = self.affine(np.abs(nearest(z)), error, np.abs(w[f"g_{number}"]), shift)
        return Value(y, self.stored(np.abs(nearest(y)), error * (1 + self.unit / self.arithmetic.u_acc)))

    def affine(self, z: Array, error: Array, g: Array, shift: Array | None) -> Array:
        """The error of g z + β where z is off by ``error``: a product and a sum."""
        a = self.arithmetic
        error = g * error
        size = g * z + (0.0 if shift is None else np.abs(shift))
        return error + growth((a.u_acc, 3)) * (size + error) + 4 * a.tiny


def norm_error(x: Array, e: Array, centred: Array, deviation: Array, eps: float, a: Arithmetic) -> Array:
    """|computed − exact| of (x − μ)/√(v + ε), where x is off by e; the head of this module has the derivation."""
    n = x.shape[-1]
    e_mean, rho = e.mean(-1, keepdims=True), np.sqrt((e**2).mean(-1, keepdims=True))
    top = (np.abs(x) + e).max(-1, keepdims=True)
    m = growth((a.u_acc, n + 7)) * top + 2 * a.tiny
    least = np.maximum(deviation - rho, math.sqrt(eps))  # of the deviation of the numbers that are there
    lost = 8 * a.tiny  # squares, their mean and ε next to zero
    merges = 4 + math.log2(n)
    r = growth((a.u_acc, n + 18)) * (1 + merges * m / least + 2 * (m / least) ** 2)
    r = r + merges * m / least + 2 * (m / least) ** 2 + lost / least**2
    root = np.sqrt(np.clip(1 - r, 0.0, None))
    z = np.abs(centred) / deviation
    moved = m + 2 * a.tiny + a.u_acc * (np.abs(centred) + e + e_mean + m)
    near = (e + e_mean + moved) / (least * root) + z * (rho + (deviation + rho) * (1 - root)) / (least * root)
    # Whatever the input, no feature of n is more than √n deviations off their mean.
    far = z + (math.sqrt(n) + moved / least) / root
    error = np.fmin(near, far)
    error = error + growth((a.u_acc, 12)) * (z + error)
    overflows = n * (np.abs(centred) + e + e_mean + m) ** 2 > a.max_acc
    return np.where((r < 1) & ~overflows & ~np.isnan(error), error, np.inf)


# ---------------------------------------------------------------- functions that a number system lacks


def sqrt(x: Any) -> Any:
    """√x: for a double-double one Newton step from the float64 root, which doubles its digits."""
    if not isinstance(x, DoubleDouble):
        return np.sqrt(x)
    root = np.sqrt(x.hi)
    rest = (x - DoubleDouble(root) * root).hi
    return DoubleDouble(root, np.where(root > 0, rest / np.where(root > 0, 2 * root, 1.0), 0.0))


def tanh(x: Any) -> Any:
    """tanh x."""
    return oracle.cap(x, 1.0)


def pi(lift: Any) -> Any:
    """π to 107 bits."""
    return lift(np.array(3.141592653589793)) + lift(np.array(1.2246467991473532e-16))


def erf(x: Any, lift: Any) -> Any:
    """2/√π e^(−x²) Σ 2^k x^(2k+1) / (1·3·5 … (2k+1)), all terms of one sign, so that nothing cancels (DLMF 7.6.2)."""
    sign, size = np.where(nearest(x) < 0, -1.0, 1.0), np.abs(nearest(x))
    far = FAR[isinstance(x, DoubleDouble)]
    inside = oracle.where(size < far, x, 0.0)
    square = inside * inside
    term = total = inside
    for k in range(1, 400):
        term = term * square * 2.0 / float(2 * k + 1)
        total = total + term
        if not (np.abs(nearest(term)) > 1e-33 * np.abs(nearest(total))).any():
            break
    value = total * oracle.exp(-square) * 2.0 / sqrt(pi(lift))
    return value + np.where(size < far, 0.0, sign)
