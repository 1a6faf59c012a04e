"""How far the gradients of a correct attention may be from the exact ones, element by element.

Row i is fixed. The backward pass works with weights P^ that were stored or are computed again as exp(s − lse), with
dP^ = dO vᵀ, with δ^, and forms dS^ = P^ (dP^ − δ^). Let |P^ − P| ≤ ψ, |dP^ − dP| ≤ ε, |δ^ − δ| ≤ e. Exact algebra gives

    |dS^ − dS| ≤ ψ |dP − δ| + (P + ψ) (ε + e) + r (P + ψ) (|dP| + |δ| + ε + e) + what storing it loses

for any order of summation (Higham 2002, sections 3.1 and 4.2; see ``bound``). Five points are easily missed.

1. The weights are not centred here. exp(s − lse) shares no denominator with anything, so ψ is the error of a weight, not
   of a quotient of sums, and Σ_j P^_j ≠ 1: the error of δ = Σ_j P_j dP_j is Σ_j ψ_j |dP_j|, not Σ_j ψ_j |dP_j − δ|.
2. δ is also computed as Σ_d dO_d out_d, from the *stored* output (FlashAttention): then it is off by Σ_d |dO_d| E_d, with E
   the bound of the output. Where all is computed in a wider type, E is taken before the output is rounded.
3. P dP − P δ is as good a formula as P (dP − δ): r multiplies |dP| + |δ|, not their difference.
4. The error e is common to a row. In dQ it multiplies |Σ_j P^_j k_j|, not Σ_j P^_j |k_j|.
5. Automatic differentiation does not know that the maximum cancels. Through s − max(s), the key with the largest logit
   receives −Σ_j dS^_j, which is 0 only up to the sum of all errors of the row; through the running maxima of merged parts,
   every key receives the errors of the keys with smaller logits. Only ``fused`` kernels have a backward pass by hand.

What a row sends to a hidden key is exactly 0. Every bound is +inf where nothing can be promised.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from .arithmetic import Arithmetic
from .bound import HULL_ONLY, ROUNDED, finish, oracle_share, worst_case
from .gradient_oracle import Gradients, over_groups, sum_to
from .softmax_error import Softmax, analyse, growth

Array = npt.NDArray[Any]

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
        a = self.arithmetic
        with np.errstate(all="ignore"):
            size = np.abs(self.gradients.logits) + self.logits  # (B, H, L, S)
            terms = size.size / max(math.prod(shape), 1)
            rounding = growth((a.u_acc, terms + 2), (a.u_out, 2 if terms == 1 else 6)) + ROUNDED
            total = sum_to(self.logits + rounding * size + 6 * a.eta_out, shape) * oracle_factor(self.gradients, a)
            fits = sum_to(size, shape) < a.max_out
            hidden = sum_to((self.logits > 0).astype(np.float64), shape) == 0
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
    posed: Array  # (B, H, L, 1) bool


def rigorous(gradients: Gradients, arithmetic: Arithmetic) -> GradientBound:
    """The bounds of dQ, dK, dV and dS, whatever the order of operations."""
    a, exact = arithmetic, gradients.exact
    problem = exact.problem
    with np.errstate(all="ignore"):
        rows = analyse_rows(gradients, a)
        factor = oracle_factor(gradients, a)
        q, k, d_out = np.abs(problem.q), np.abs(exact.k), np.abs(gradients.grad_out)
        c, larger = abs(problem.scale), max(abs(problem.scale), 1.0)
        queries, kv_heads = q.shape[2], problem.k.shape[1]
        group = q.shape[1] // kv_heads if kv_heads else 1
        size = np.abs(gradients.logits) + rows.total  # |dS^| at most
        eta = larger * max(a.eta_s, a.eta_p, a.tiny)  # the scale may be applied to dS, to the operand, or to the result
        n, fixed = rows.soft.n, (a.u_s, 4)

        # dQ = scale · dS K: the error of δ meets Σ_j P_j k_j
        common = np.abs(rows.p @ exact.k) + rows.psi @ k  # (B, H, L, D)
        tall = size @ k
        theta = growth((a.u_mul, 2), (a.u_acc, k.shape[2] + 4), fixed) + partial_sums(a, k.shape[2])
        error = c * (rows.own @ k + rows.shared * common + theta * tall)
        error += eta * (k.sum(-2, keepdims=True) + size.sum(-1, keepdims=True) + 4 * n + 4)
        of_q = stored(gradients.q, error * factor, larger * tall, a, 1)
        of_q = np.where(rows.posed, of_q, np.inf)

        # dK = scale · dSᵀ Q, dV = Pᵀ dO, summed over the queries and over the group
        theta = growth((a.u_mul, 2), (a.u_acc, queries * group + 4), fixed) + partial_sums(a, queries)
        tall = over_groups(size.swapaxes(-1, -2) @ q, kv_heads)
        error = c * (over_groups(rows.total.swapaxes(-1, -2) @ q, kv_heads) + theta * tall)
        used = over_groups(size.sum(-2)[..., None], kv_heads) + over_groups(q.sum((-1, -2), keepdims=True), kv_heads)
        error += eta * (used + 4 * queries * group + 4)
        of_k = stored(gradients.k, error * factor, larger * tall, a, group)

        upper = (rows.p + rows.psi).swapaxes(-1, -2)
        theta = growth((a.u_p, 1), (a.u_mul, 2), (a.u_acc, queries * group + 6)) + partial_sums(a, queries)
        tall = over_groups(upper @ d_out, kv_heads)
        error = over_groups(rows.psi.swapaxes(-1, -2) @ d_out, kv_heads) + theta * tall
        error += max(2 * a.eta_p, a.tiny) * over_groups(d_out.sum(-2, keepdims=True), kv_heads)
        error += 4 * a.tiny * (queries * group + 1)
        of_v = stored(gradients.v, error * factor, tall, a, group)

        posed = over_groups((~rows.posed).any(-2, keepdims=True).astype(np.float64), kv_heads) == 0  # (B, Hkv, 1, 1)
        of_k, of_v = (np.where(posed, x, np.inf) for x in (of_k, of_v))
        untouched = unseen(gradients)[..., None]
        of_k, of_v = (np.where(untouched & posed, 0.0, x) for x in (of_k, of_v))
        logits = np.where(rows.posed, rows.total, np.inf)
        if exact.visible is not None:
            logits = np.where(exact.visible | ~rows.posed, logits, 0.0)
    return GradientBound(gradients, a, of_q, of_k, of_v, logits)


def analyse_rows(gradients: Gradients, a: Arithmetic) -> Rows:
    """The errors of P, dP, δ and dS."""
    exact, d_out = gradients.exact, np.abs(gradients.grad_out)
    soft = analyse(exact, a, None, None)
    wide = a.u_p == 0 and a.u_out > a.u_acc  # the output is rounded at the very end: δ is formed before
    inner = replace(a, u_out=a.u_acc, eta_out=a.tiny, max_out=a.max_acc) if wide else a
    out_error = finish(exact, inner, soft, worst_case(exact, inner, soft, None), None)
    p, psi = weights_error(gradients, a, soft)
    v, out = np.abs(exact.v), np.abs(exact.out)
    width = v.shape[-1]
    eta = max(a.eta_s, a.tiny)

    product = np.abs(gradients.weights)  # |dP|
    size = d_out @ v.swapaxes(-1, -2)  # Σ_d |dO_d| |v_d|
    epsilon = growth((a.u_mul, 2), (a.u_acc, width + 4)) * size
    epsilon = epsilon + growth((a.u_s, 3)) * (product + epsilon) + 3 * a.eta_s + (width + 4) * a.tiny

    upper = p + psi
    terms = (upper * (product + epsilon)).sum(-1, keepdims=True)
    by_weights = (psi * product + upper * epsilon).sum(-1, keepdims=True)
    by_weights += growth((a.u_acc, p.shape[-1] + 4), (a.u_s, 3)) * terms + (soft.n + 3) * eta
    by_out = (d_out * out_error).sum(-1, keepdims=True)
    by_out += growth((a.u_acc, width + 2), (a.u_s, 3)) * (d_out * (out + out_error)).sum(-1, keepdims=True)
    by_out += (width + 3) * eta
    shared = np.maximum(by_weights, by_out)  # (B, H, L, 1)

    apart = np.abs(gradients.weights - gradients.delta)
    reach = np.abs(gradients.delta) + shared
    if a.lse_norm:  # a part's own δ may be as large as its largest dP
        reach = reach + 2 * np.max(np.where(soft.live, product + epsilon, 0.0), -1, keepdims=True, initial=0.0)
    own = psi * apart + upper * epsilon
    merged = a.lse_norm * (width + p.shape[-1] + 8)
    own = own + growth((a.u_s, 5), (a.u_acc, 4 + merged)) * upper * (product + epsilon + reach)
    # Unnormalised weights e = P Σ e divide dO by the sum first: what that loses next to zero is not scaled down by P.
    own = own + 6 * eta + a.tiny * (v.sum(-1)[..., None, :] + d_out.sum(-1, keepdims=True))
    own = own + a.u_p * (np.abs(gradients.logits) + own + upper * shared) + a.eta_p
    seen = np.ones(p.shape, bool) if exact.visible is None else exact.visible
    if exact.empty is not None:
        seen = seen & ~exact.empty[..., None]
    own = np.where(seen, own, 0.0)
    total = own + upper * shared
    cancelled = maxima(gradients, a, soft, seen, total)
    own, total = own + cancelled, total + cancelled

    posed = exact.row_posed & exact.well_posed.all(-1) & np.isfinite(out_error).all(-1) & ~soft.overflow[..., 0]
    posed = posed & (np.max(size + epsilon, -1, initial=0.0) < a.max_s)  # hidden keys, too: 0 · inf = nan
    posed = posed & ((soft.n * (terms + reach))[..., 0] < a.max_s) & ((np.abs(gradients.logits) + total).max(-1, initial=0.0) < a.max_out)
    posed = posed & np.isfinite(total).all(-1) & np.isfinite(gradients.grad_out).all(-1)
    if exact.empty is not None:
        posed = posed | exact.empty if exact.problem.empty_rows == "zero" else posed & ~exact.empty
    return Rows(soft, p, psi, own, shared, total, posed[..., None])


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


def maxima(gradients: Gradients, a: Arithmetic, soft: Softmax, seen: Array, error: Array) -> Array:
    """What automatic differentiation leaves in the keys of the (running) maxima, where exactly nothing should remain."""
    if a.name.startswith("fused"):
        return np.zeros(error.shape)
    logits = np.where(seen, gradients.exact.logits, -np.inf)
    terms = error + growth((a.u_acc, error.shape[-1] + 4), (a.u_s, 2)) * (np.abs(gradients.logits) + error)
    total = terms.sum(-1, keepdims=True)
    if not a.lse_norm:
        slack = soft.phi + np.max(np.where(soft.live, soft.phi, 0.0), -1, keepdims=True, initial=0.0)
        return np.where(seen & soft.live & (soft.gap <= slack), total, 0.0)
    order = np.argsort(logits, axis=-1, kind="stable")
    below = np.cumsum(np.take_along_axis(terms, order, -1), -1)
    summed = np.empty_like(below)
    np.put_along_axis(summed, order, below, -1)
    return np.where(seen, summed, 0.0)


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


def oracle_factor(gradients: Gradients, a: Arithmetic) -> float:
    """What the oracle's own rounding adds, as in ``bound``: its operations are at most twice as many here."""
    return 1 + 2 * oracle_share(gradients.exact, a)


def unseen(gradients: Gradients) -> Array:
    """(B, Hkv, S) bool: keys that no query sees."""
    exact = gradients.exact
    if exact.visible is None:
        return np.zeros((*exact.problem.k.shape[:3],), bool)
    return over_groups(exact.visible.any(-2).astype(np.float64), exact.problem.k.shape[1]) == 0
