"""What linear attention is, exactly, and how far a correct one may be off, element by element.

    o_i = Σ_j w_ij v_j / Σ_j w_ij,   w_ij = φ(q_i)·φ(k_j) > 0,   φ(x) = elu(x) + 1 = x + 1 (x > 0), e^x (x ≤ 0)

(Katharopoulos et al., *Transformers are RNNs*, 2020, equations 4 to 7.) The answer is computed in the widest type of the machine.

**Features.** Let u be the unit roundoff of the type that holds them, ε the relative error of the exponential. elu(x) + 1 as it is
written loses the digits of a small feature: for x ≤ 0 elu(x) = e^x − 1, from ``expm1`` off by ε|e^x − 1|, from ``exp`` by ε e^x + u|e^x − 1|,
is stored, and the sum with 1 is rounded and stored: in all at most (ε + u)(|e^x − 1| + e^x) + u|e^x − 1| + 2u φ ≤ (ε + 3u). So

    |φ̂(x) − φ(x)| ≤ A(x) = ε + 3u  (x ≤ 0),    2u φ(x)  (x > 0),        both times 1 + u again, for the terms of second order

an *absolute* error, which a kernel that computes e^x itself stays below. Operands of products that are stored in a narrower type
(``fused``: u_p), or enter it rounded (``tf32``: u_mul), add that much of φ̂.

**Weights.** The same computed features are in numerator and denominator: both sum w̃_j = φ̂(q)·φ̂(k_j) ≥ 0, with

    |w̃_j − w_j| ≤ e_j = Σ_d (A_d b_jd + a_d B_jd + A_d B_jd),    a, b the features of query and key, A, B their errors;    W_j = w_j + e_j.

**Sums.** A term φ̂(q_d) φ̂(k_jd) v_j passes through two products, and through the sums over the features and over the keys, in either
order: first over d, w_j = Σ_d, then over j (the parallel form), or first over j, S = Σ_j, then over d (the recurrent one), or both, one for each
chunk, and one addition of the two. Each sum, in whatever order, costs a term of n keys n − 1 additions at most, of D features D − 1. What is
stored between these steps (w or S, numerator, denominator; weights that are divided first) costs four roundings u. So every term
of the numerator is off by a factor 1 + θ at most, and every one of the denominator, too,

    θ = c/(1 − c),   c = (n + D + 4) u_acc + 4 u + u_p + 4 u_mul            (Higham 2002, lemma 3.1: Π(1 + δ_k) − 1 ≤ Σ|δ_k|/(1 − Σ|δ_k|))

No term is negative in the denominator, so no digit cancels in it.

**Quotient.** Let N̂ and Ẑ be what is computed. As Σ_j w_j (v_j − o) = 0, exact algebra gives

    N̂/Ẑ − o = [Σ_j (w̃_j − w_j)(v_j − o) + (N̂ − Ñ) − o (Ẑ − Z̃)] / Ẑ
    E = [Σ_j e_j |v_j − o| + θ Σ_j W_j |v_j| + θ |o| Σ_j W_j + η_N + |o| η_Z] / (Z − Σ_j e_j − θ Σ_j W_j − η_Z)

η is what products next to zero lose: with τ the most that one loses, (2D + 2) for each w_j, 2(n + D) beside, and Σ_d φ̂(q_d)(2n + 2) through
the state; a value that is flushed, W_j. A reciprocal and a product, or a quotient, cost 3 u_acc, storing the result u_out.

+inf where nothing is promised: the denominator may vanish (features of keys far below zero are, in elu(x) + 1, no numbers but rounding errors),
or something on the way may overflow. A state that is stored after every key is not this, but ``same``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..engine.cases.coordinates import Array
from ..exact.arithmetic import Arithmetic

Wide = np.longdouble
ORACLE = float(np.finfo(Wide).eps) / 2  # its own unit roundoff


@dataclass(frozen=True, eq=False)
class Exact:
    """An exact answer (B, H, L, Dv), in the widest type; not a number in a row that sees no key."""

    wide: Array

    @property
    def out(self) -> Array:
        """Rounded to float64."""
        return self.wide.astype(np.float64)

    def out_error(self, actual: Array) -> Array:
        """|actual − exact|; inf where the answer is not a number."""
        with np.errstate(invalid="ignore"):
            difference = np.abs(actual.astype(Wide) - self.wide).astype(np.float64)
        return np.where(np.isnan(difference), np.inf, difference)


def feature_map(x: Array) -> Array:
    """φ(x) in the widest type."""
    x = x.astype(Wide)
    return np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))


def feature_error(x: Array, size: Array, a: Arithmetic) -> Array:
    """|φ̂(x) − φ(x)| for a feature of this size, as it enters its product."""
    u = max(a.u_s, a.u_acc)
    error = np.where(x > 0, 2 * u * size, a.eps_exp + 3 * u) * (1 + a.eps_exp + 3 * u) + a.tiny + 2 * a.eta_s
    return np.asarray(error + (a.u_p + a.u_mul) * (size + error) + a.eta_p)


def solve(q: Array, k: Array, v: Array, visible: Array, a: Arithmetic) -> tuple[Exact, Array]:
    """(the exact answer, its bound), both (B, H, L, Dv), of q (B, H, L, D), k (B, H, S, D), v (B, H, S, Dv), visible (L, S)."""
    with np.errstate(all="ignore"):
        fq, fk = feature_map(q), feature_map(k)
        weights = np.where(visible, fq @ fk.swapaxes(2, 3), 0)  # (B, H, L, S)
        wide = weights @ v.astype(Wide) / weights.sum(-1, keepdims=True)
        return Exact(wide), bound(q, k, v, visible, wide.astype(np.float64), a)


def bound(q: Array, k: Array, v: Array, visible: Array, out: Array, a: Arithmetic) -> Array:
    """E of every output element (B, H, L, Dv), in the order of the derivation above."""
    dim, n = q.shape[3], visible.sum(-1)[:, None]  # (L, 1) keys of a row
    fq, fk = (feature_map(x).astype(np.float64) for x in (q, k))
    eq, ek = feature_error(q, fq, a), feature_error(k, fk, a)
    turned = (fk.swapaxes(2, 3), ek.swapaxes(2, 3))
    w = np.where(visible, fq @ turned[0], 0.0)  # (B, H, L, S)
    e = np.where(visible, eq @ turned[0] + fq @ turned[1] + eq @ turned[1], 0.0)
    above, size, o = w + e, np.abs(v), np.abs(out)

    u = max(a.u_s, a.u_acc)
    c = (n + dim + 4) * a.u_acc + 4 * u + a.u_p + 4 * a.u_mul + 2 * (n + dim + 16) * ORACLE
    theta = np.where(c < 1, c / (1 - c), np.inf)
    tau = a.tiny + a.eta_s + a.eta_p
    state = (fq + eq).sum(-1, keepdims=True) * (2 * n + 2) + 2 * (n + dim)
    lost = tau * (((2 * dim + 2) * visible) @ (size + 1) + state + above @ np.ones(v.shape))  # η of the numerator
    lost_below = tau * ((2 * dim + 2) * n + state)

    numerator = centred(e, v, out) + theta * (above @ size) + theta * o * above.sum(-1, keepdims=True) + lost + o * lost_below
    denominator = w.sum(-1, keepdims=True) - e.sum(-1, keepdims=True) - theta * above.sum(-1, keepdims=True) - lost_below
    error = numerator / denominator
    error = error + 3 * a.u_acc * (o + error)
    error = error + a.u_out * (o + error) + a.eta_out
    largest = np.maximum(above @ np.maximum(size, 1), reached(fk + ek, size)) * (1 + theta)
    posed = (denominator > 0) & (largest < min(a.max_acc, a.max_s)) & (o + error <= a.max_out)
    return np.where(posed & ~np.isnan(error), error, np.inf)


def centred(e: Array, v: Array, out: Array) -> Array:
    """Σ_j e_j |v_j − o|, one value feature after the other."""
    return np.stack([(e * np.abs(v[..., None, :, f] - out[..., f, None])).sum(-1) for f in range(v.shape[3])], axis=-1)


def reached(features: Array, size: Array) -> Any:
    """The largest entry that the state and the normaliser may reach in a head, (B, H, 1, 1)."""
    return (features.swapaxes(2, 3) @ np.maximum(size, 1)).max((2, 3), keepdims=True)
