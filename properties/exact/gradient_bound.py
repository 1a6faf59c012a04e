"""How far the gradients of a correct attention may be from the exact ones, element by element.

Row i is fixed. The backward pass works with weights P^ that were stored or are computed again as exp(s − lse), with
dP^ = dO vᵀ, with δ^, and forms dS^ = P^ (dP^ − δ^). Let |P^ − P| ≤ ψ, |dP^ − dP| ≤ ε, |δ^ − δ| ≤ e. Exact algebra gives

    |dS^ − dS| ≤ ψ |dP − δ| + (P + ψ) (ε + e) + r (P + ψ) (|dP| + |δ| + ε + e) + what storing it loses

for any order of summation (Higham 2002, sections 3.1 and 4.2; see ``bound``). Six points are easily missed.

1. The weights are not centred here. exp(s − lse) shares no denominator with anything, so ψ is the error of a weight, not
   of a quotient of sums, and Σ_j P^_j ≠ 1: the error of δ = Σ_j P_j dP_j is Σ_j ψ_j |dP_j|, not Σ_j ψ_j |dP_j − δ|.
2. δ is also computed as Σ_d dO_d out_d, from the *stored* output (FlashAttention): then it is off by Σ_d |dO_d| E_d, with E
   the bound of the output. Where all is computed in a wider type, E is taken before the output is rounded.
3. P dP − P δ is as good a formula as P (dP − δ): r multiplies |dP| + |δ|, not their difference.
4. The error e is common to a row. In dQ it multiplies |Σ_j P^_j k_j|, not Σ_j P^_j |k_j|.
5. Automatic differentiation does not know that the maximum cancels. Through s − max(s), the key with the largest logit
   receives −Σ_j dS^_j, which is 0 only up to the sum of all errors of the row; through the running maxima of merged parts,
   every key receives the errors of the keys with smaller logits. Only ``fused`` kernels have a backward pass by hand.

6. Where weights were rounded to a narrower type, automatic differentiation rounds dP to it, too, on its way back.

What a row sends to a hidden key is exactly 0. Every bound is +inf where nothing can be promised.

Behind a softcap c stands the slope f = 1 − tanh² x, x = t/c, which is formed from a tanh that was computed or stored. As
|d ln f / dx| = 2 |tanh x| ≤ 2, a score that is off by Δt moves f by f (exp(2 Δt/c) − 1) at most, and 1 − y² with
y = tanh x (1 + η) loses 2 |η| y² and more: no part of f where f is small. With |f^ − f| ≤ φ so found,

    |dT^ − dT| ≤ f |dS^ − dS| + φ |dS^| + r (f + φ) |dS^|        where δ's error e meets Σ_j f_j P^_j k_j in dQ

A sink is one more key. Under dropout the factors M of the weights are numbers as exact as 1/(1 − p): they multiply ψ and the
terms of dV, and dP with its error; E of point 2 is then that of Σ_j p_j M_j v_j, which has its centre at no v_j:

    E = [ Σ_j (p_j Φ_j + τ W_j) M_j |v_j| + |o| Σ_j (p_j Φ_j + γ W_j) ] / (1 − B)        (the names are those of ``bound``)
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from .arithmetic import Arithmetic
from .bound import HULL_ONLY, ROUNDED, finish, oracle_share, underflow, worst_case
from .gradient_oracle import Gradients, over_groups, sum_to, without_sink
from .oracle import Exact
from .softmax_error import Softmax, analyse, growth, scores_bound

Array = npt.NDArray[Any]

SHORT_SUM = 4.0  # dP may be divided by the sum of unnormalised weights: exp(-1) at least, where they are shifted past the maximum
ROWS_IN_A_TILE = 32  # fewest rows after which a kernel adds a partial sum, stored in the results' type (torch, CPU flash)


@dataclass(frozen=True, eq=False)
class GradientBound:
    """|computed − exact| of every element of a gradient; +inf: no promise."""

    gradients: Gradients
    arithmetic: Arithmetic
    q: Array  # (B, H, L, D)
    k: Array  # (B, Hkv, S, D)
    v: Array  # (B, Hkv, S, Dv)
    logits: Array  # (B, H, L, S) of dS before it is stored

    def of_bias(self, shape: tuple[int, ...]) -> Array:
        """The bound of the gradient of a bias of this shape: stored parts of dS, summed axis by axis."""
        exact = self.gradients.exact
        return self._summed(without_sink(exact, self.gradients.logits), without_sink(exact, self.logits), shape)

    def of_sinks(self) -> Array:
        """The bound of the gradient of the sinks (H,): dS of the sink's column, summed over batch elements and queries."""
        heads = (1, self.logits.shape[1], 1, 1)
        return self._summed(self.gradients.logits[..., -1:], self.logits[..., -1:], heads).reshape(-1)

    def _summed(self, value: Array, error: Array, shape: tuple[int, ...]) -> Array:
        a = self.arithmetic
        with np.errstate(all="ignore"):
            size = np.abs(value) + error  # (B, H, L, S)
            terms = size.size / max(math.prod(shape), 1)
            rounding = growth((a.u_acc, terms + 2), (a.u_out, 2 if terms == 1 else 6)) + ROUNDED
            total = sum_to(error + rounding * size + 6 * a.eta_out, shape) * oracle_factor(self.gradients, a)
            fits = sum_to(size, shape) < a.max_out
            hidden = sum_to((error > 0).astype(np.float64), shape) == 0
            return np.where(hidden, 0.0, np.where(fits & ~np.isnan(total), total, np.inf))


@dataclass(frozen=True, eq=False)
class Rows:
    """What is known of a row before dS meets queries and keys; all (B, H, L, S) or (B, H, L, 1)."""

    soft: Softmax
    p: Array  # exact weights
    psi: Array  # error of a weight
    own: Array  # error of dS that belongs to a key
    shared: Array  # error of δ, common to the row
    total: Array  # error of dS
    weighed: Array  # (B, H, L, 1) bool: the weights are what they should be; dV asks for no more
    posed: Array  # (B, H, L, 1) bool: dS is, too


def rigorous(gradients: Gradients, arithmetic: Arithmetic) -> GradientBound:
    """The bounds of dQ, dK, dV and dS, whatever the order of operations."""
    a, exact = arithmetic, gradients.exact
    problem = exact.problem
    with np.errstate(all="ignore"):
        rows = analyse_rows(gradients, a)
        bent = rows if gradients.slope is None else behind_the_cap(gradients, a, rows)
        factor = oracle_factor(gradients, a)
        q, k, d_out = np.abs(problem.q), np.abs(exact.k), np.abs(gradients.grad_out)
        c, larger = abs(problem.scale), max(abs(problem.scale), 1.0)
        queries, kv_heads = q.shape[2], problem.k.shape[1]
        group = q.shape[1] // kv_heads if kv_heads else 1
        size = np.abs(gradients.scores) + bent.total  # |dT^| at most
        fits = bent.posed & (np.max(larger * size, -1, keepdims=True, initial=0.0) < a.max_s)  # the scale may be applied to dS
        eta = larger * max(a.eta_s, a.eta_p, a.tiny)  # the scale may be applied to dS, to the operand, or to the result
        n, fixed = rows.soft.n, (a.u_s, 4)

        # dQ = scale · dS K: the error of δ meets Σ_j P_j k_j
        common = np.abs(bent.p @ exact.k) + bent.psi @ k  # (B, H, L, D)
        tall = size @ k
        theta = growth((a.u_mul, 2), (a.u_acc, k.shape[2] + 4), fixed) + partial_sums(a, k.shape[2])
        error = c * (bent.own @ k + rows.shared * common + theta * tall)
        error += eta * (k.sum(-2, keepdims=True) + size.sum(-1, keepdims=True) + 4 * n + 4)
        of_q = stored(gradients.q, error * factor, larger * tall, a, 1)
        of_q = np.where(fits, of_q, np.inf)

        # dK = scale · dSᵀ Q, dV = Pᵀ dO, summed over the queries and over the group
        theta = growth((a.u_mul, 2), (a.u_acc, queries * group + 4), fixed) + partial_sums(a, queries)
        tall = over_groups(size.swapaxes(-1, -2) @ q, kv_heads)
        error = c * (over_groups(bent.total.swapaxes(-1, -2) @ q, kv_heads) + theta * tall)
        used = over_groups(size.sum(-2)[..., None], kv_heads) + over_groups(q.sum((-1, -2), keepdims=True), kv_heads)
        error += eta * (used + 4 * queries * group + 4)
        of_k = stored(with_sink(exact, gradients.k), error * factor, larger * tall, a, group)

        kept = 1.0 if gradients.kept is None else gradients.kept
        upper = (kept * (rows.p + rows.psi)).swapaxes(-1, -2)
        theta = growth((a.u_p, 1), (a.u_mul, 2), (a.u_acc, queries * group + 6), (a.u_s, 2 * (gradients.kept is not None)))
        theta += partial_sums(a, queries)
        tall = over_groups(upper @ d_out, kv_heads)
        error = over_groups((kept * rows.psi).swapaxes(-1, -2) @ d_out, kv_heads) + theta * tall
        error += float(np.max(kept, initial=1.0)) * max(2 * a.eta_p, a.tiny) * over_groups(d_out.sum(-2, keepdims=True), kv_heads)
        error += 4 * a.tiny * (queries * group + 1)
        of_v = stored(with_sink(exact, gradients.v), error * factor, tall, a, group)

        def all_posed(posed: Array) -> Array:  # (B, Hkv, 1, 1)
            return over_groups((~posed).any(-2, keepdims=True).astype(np.float64), kv_heads) == 0

        untouched = unseen(gradients)[..., None]
        of_k = np.where(all_posed(fits), np.where(untouched, 0.0, of_k), np.inf)
        of_v = np.where(all_posed(bent.weighed), np.where(untouched, 0.0, of_v), np.inf)  # which dP does not meet
        logits = np.where(rows.posed, rows.total, np.inf)
        if exact.visible is not None:
            logits = np.where(exact.visible | ~rows.posed, logits, 0.0)
        if problem.sink:
            of_k, of_v = of_k[:, :, :-1], of_v[:, :, :-1]
    return GradientBound(gradients, a, of_q, of_k, of_v, logits)


def analyse_rows(gradients: Gradients, a: Arithmetic) -> Rows:
    """The errors of P, dP, δ and dS."""
    exact, d_out = gradients.exact, np.abs(gradients.grad_out)
    soft = analyse(exact, a, None, None)
    wide = a.u_p == 0 and a.u_out > a.u_acc  # the output is rounded at the very end: δ is formed before
    inner = replace(a, u_out=a.u_acc, eta_out=a.tiny, max_out=a.max_acc) if wide else a
    p, psi = weights_error(gradients, a, soft)
    v, out, kept = np.abs(exact.v), np.abs(exact.out), 1.0 if gradients.kept is None else gradients.kept
    if gradients.kept is None:
        out_error = finish(exact, inner, soft, worst_case(exact, inner, soft, None), None)
    else:
        out = np.abs((p * kept) @ exact.v)
        out_error = dropped_error(gradients, inner, soft, out)
    width = v.shape[-1]
    eta = max(a.eta_s, a.tiny)

    product = np.abs(gradients.weights)  # |dP|
    size = kept * (d_out @ v.swapaxes(-1, -2))  # Σ_d |dO_d| |v_d|
    epsilon = growth((a.u_mul, 2), (a.u_acc, width + 4), (a.u_s, 2 * (gradients.kept is not None))) * size
    epsilon = epsilon + growth((a.u_s, 3), (a.u_p, a.u_s < a.u_p)) * (product + epsilon) + 3 * a.eta_s + a.eta_p + (width + 4) * a.tiny

    upper = p + psi
    terms = (upper * (product + epsilon)).sum(-1, keepdims=True)
    by_weights = (psi * product + upper * epsilon).sum(-1, keepdims=True)
    by_weights += growth((a.u_acc, p.shape[-1] + 4), (a.u_s, 3)) * terms + (soft.n + 3) * eta
    by_out = (d_out * out_error).sum(-1, keepdims=True)
    by_out += growth((a.u_acc, width + 2), (a.u_s, 3)) * (d_out * (out + out_error)).sum(-1, keepdims=True)
    by_out += (width + 3) * eta
    shared = np.maximum(by_weights, by_out)  # (B, H, L, 1)

    distance = np.abs(gradients.weights - gradients.delta)
    reach = np.abs(gradients.delta) + shared
    if a.lse_norm:  # a part's own δ may be as large as its largest dP
        reach = reach + 2 * np.max(np.where(soft.live, product + epsilon, 0.0), -1, keepdims=True, initial=0.0)
    own = psi * distance + upper * epsilon
    merged = a.lse_norm * (width + p.shape[-1] + 8)
    steps = 8 if a.stored else 5  # of a softmax by hand: dP / sum, + what the sum sends, times e, all that of the maximum; and base two
    own = own + growth((a.u_s, steps), (a.u_acc, 4 + merged)) * upper * (product + epsilon + reach)
    # Unnormalised weights e = P Σ e divide dO by the sum first: what that loses next to zero is not scaled down by P.
    own = own + 6 * eta + a.tiny * (v.sum(-1)[..., None, :] + d_out.sum(-1, keepdims=True))
    own = own + a.u_p * (np.abs(gradients.logits) + own + upper * shared) + a.eta_p
    visible = np.ones(p.shape, bool) if exact.visible is None else exact.visible
    if exact.empty is not None:
        visible = visible & ~exact.empty[..., None]
    own = np.where(visible, own, 0.0)
    total = own + upper * shared
    cancelled = maxima(gradients, a, soft, visible, total)
    own, total = own + cancelled, total + cancelled

    weighed = exact.row_posed & exact.well_posed.all(-1) & ~soft.overflow[..., 0] & np.isfinite(gradients.grad_out).all(-1)
    posed = weighed & np.isfinite(out_error).all(-1)
    posed = posed & (np.max(size + epsilon + reach, -1, initial=0.0) < room(a))  # dP − δ
    posed = posed & ((soft.n * (terms + reach))[..., 0] < a.max_s) & ((np.abs(gradients.logits) + total).max(-1, initial=0.0) < a.max_out)
    posed = posed & np.isfinite(total).all(-1)
    if exact.empty is not None:
        blank = exact.empty & ~soft.overflow[..., 0]
        weighed, posed = (x | blank if exact.problem.empty_rows == "zero" else x & ~exact.empty for x in (weighed, posed))
    posed = posed & (np.max(size + epsilon, -1, initial=0.0) < room(a))  # dP, of hidden keys, too: 0 · inf = nan
    return Rows(soft, p, psi, own, shared, total, weighed[..., None], posed[..., None])


def room(a: Arithmetic) -> float:
    """How large dP may be: it is stored like the scores, or like the weights, and may be divided by a short sum."""
    return (min(a.max_s, a.max_out) if a.u_p else a.max_s) / SHORT_SUM


def behind_the_cap(gradients: Gradients, a: Arithmetic, rows: Rows) -> Rows:
    """The errors of dT = f dS: those of dS, times the slope f of the softcap, and those of f."""
    exact, f = gradients.exact, gradients.slope
    problem, cap = exact.problem, exact.problem.softcap
    assert f is not None and cap is not None
    bare = replace(exact, problem=replace(problem, softcap=None, bias=None, bias_size=None))
    moved = scores_bound(bare, a, None, None)[0]
    moved = (moved + 2 * a.u_s * (np.abs(exact.scores) + moved)) / cap  # of x = t/c, itself stored
    off = f * np.expm1(2 * moved)
    curve = np.minimum(1 - f + off, 1.0)  # tanh²
    phi = off + (growth((a.u_s, 16)) + 4 * a.eps_exp) * curve + growth((a.u_s, 4)) * f + a.eta_s
    phi = np.fmin(phi, 1 + growth((a.u_s, 4)))  # both lie between 0 and 1
    size = np.abs(gradients.logits) + rows.total
    own = f * rows.own + phi * size + growth((a.u_s, 4), (a.u_p, 1)) * (f + phi) * size
    own = own + np.where(rows.total > 0, 3 * max(a.eta_s, a.eta_p, a.tiny) * (1 + 1 / cap), 0.0)
    total = own + f * (rows.p + rows.psi) * rows.shared
    fits = (max(cap, 1.0) * size).max(-1, keepdims=True, initial=0.0) < min(a.max_s, a.max_out)
    return replace(rows, p=f * rows.p, psi=f * rows.psi, own=own, total=total, posed=rows.posed & fits)


def dropped_error(gradients: Gradients, a: Arithmetic, soft: Softmax, out: Array) -> Array:
    """The bound of the output under dropout, which is Σ_j p_j M_j v_j: no average of the values."""
    exact, kept = gradients.exact, gradients.kept
    assert kept is not None
    parts = kept * (soft.excess + (soft.tau + growth((a.u_s, 2))) * soft.upper)
    error = parts @ np.abs(exact.v) + out * (soft.excess + soft.gamma * soft.upper).sum(-1, keepdims=True)
    error = (error + float(np.max(kept, initial=1.0)) * underflow(exact, a, soft)) / (1 - soft.loss)
    error = error * (1 + oracle_share(exact, a))
    error = error + (3 * a.u_acc + a.u_out) * (out + error) + a.eta_out
    return np.where((soft.loss < HULL_ONLY) & exact.well_posed & ~soft.overflow & (out + error <= a.max_out), error, np.inf)


def weights_error(gradients: Gradients, a: Arithmetic, soft: Softmax) -> tuple[Array, Array]:
    """The exact weights, and the error of a weight of the backward pass: a stored quotient, or exp(logit − lse)."""
    exact = gradients.exact
    p = exact.weights if exact.empty is None else np.where(exact.empty[..., None], 0.0, exact.weights)
    crude = np.max(soft.phi + np.log1p(soft.gamma), -1, keepdims=True, initial=0.0)  # of the log-sum-exp
    sharp = np.where(soft.loss < HULL_ONLY, np.minimum(-np.log1p(-np.minimum(soft.loss, HULL_ONLY)), crude), crude)
    rest = soft.rho + 3 * math.log1p(a.u_acc) + sharp + 3 * a.u_acc * (soft.lse + soft.log_n + 1)
    psi = soft.excess + soft.upper * np.expm1(rest) + a.tiny
    if a.u_s > a.u_acc:  # eager: the weights are stored
        psi = psi + a.u_p * (p + psi) + a.eta_p
    if exact.visible is not None:
        psi = np.where(exact.visible, psi, 0.0)
    if exact.empty is not None:
        psi = np.where(exact.empty[..., None], 0.0, psi)
    return p, psi


def maxima(gradients: Gradients, a: Arithmetic, soft: Softmax, visible: Array, error: Array) -> Array:
    """What automatic differentiation leaves in the keys of the (running) maxima, where exactly nothing should remain."""
    if a.name.startswith("fused"):
        return np.zeros(error.shape)
    logits = np.where(visible, gradients.exact.logits, -np.inf)
    terms = error + growth((a.u_acc, error.shape[-1] + 4), (a.u_s, 2)) * (np.abs(gradients.logits) + error)
    total = terms.sum(-1, keepdims=True)
    if not a.lse_norm:
        slack = soft.phi + np.max(np.where(soft.live, soft.phi, 0.0), -1, keepdims=True, initial=0.0)
        return np.where(visible & soft.live & (soft.gap <= slack), total, 0.0)
    order = np.argsort(logits, axis=-1, kind="stable")
    below = np.cumsum(np.take_along_axis(terms, order, -1), -1)
    summed = np.empty_like(below)
    np.put_along_axis(summed, order, below, -1)
    return np.where(visible, summed, 0.0)


def partial_sums(a: Arithmetic, terms: int) -> float:
    """Rounding of partial sums that are stored in the type of the results: once, or once a tile of a fused kernel."""
    if a.u_p == 0:
        return 0.0
    return a.u_out * (1 if a.u_s > a.u_acc else math.ceil(terms / ROWS_IN_A_TILE))


def stored(value: Array, error: Array, size: Array, a: Arithmetic, group: int) -> Array:
    """The bound of the stored gradient; ``size`` is the sum of the magnitudes of its terms, from above."""
    times = 3 if a.u_s > a.u_acc else 1  # eager: the product, the product times the scale, the sum
    error = error + (3 * a.u_acc + times * a.u_out + ROUNDED) * (np.abs(value) + error) + (times + 1) * a.eta_out
    if group > 1:  # the parts of the heads of a group, stored one by one before they are added
        error = error + growth((a.u_out, group + 1)) * size + (group + 1) * a.eta_out
    else:
        error = error + (partial_sums(a, 1) > 0) * a.eta_out * 2
    return np.where((size + error < min(a.max_out, a.max_s)) & ~np.isnan(error), error, np.inf)


def with_sink(exact: Exact, x: Array) -> Array:
    """(B, Hkv, S, D) with a row of zeros for the sink, where there is one."""
    return np.pad(x, ((0, 0), (0, 0), (0, 1), (0, 0))) if exact.problem.sink else x


def oracle_factor(gradients: Gradients, a: Arithmetic) -> float:
    """What the oracle's own rounding adds, as in ``bound``: its operations are at most twice as many here."""
    return 1 + 2 * oracle_share(gradients.exact, a)


def unseen(gradients: Gradients) -> Array:
    """(B, Hkv, S) bool: keys that no query sees."""
    exact = gradients.exact
    if exact.visible is None:
        return np.zeros((*exact.problem.k.shape[:3],), bool)
    return over_groups(exact.visible.any(-2).astype(np.float64), exact.problem.k.shape[1]) == 0
