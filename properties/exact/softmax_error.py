"""What rounding does to the weights of a softmax: the common part of all bounds. The derivation opens ``bound``."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .arithmetic import Arithmetic
from .oracle import Exact

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Softmax:
    """Error analysis of the weights, shared by the bounds of all outputs. Logarithms of factors add up exactly."""

    p: Array  # (B, H, L, S) exact weights, 0 where not live
    phi: Array  # (B, H, L, S) |ln(computed weight / p)|, common to numerator and denominator
    upper: Array  # (B, H, L, S) W = p e^phi
    excess: Array  # (B, H, L, S) W - p = p Phi
    gap: Array  # (B, H, L, S) top - logit, 0 where not live
    rho: Array | float  # (B, H, L, S) logarithm of the factor by which merges change numerator and denominator apart
    log_rounding: Array | float  # (B, H, L, S) error of a weight that is stored as a logarithm
    tau: Array  # (B, H, L, S) or (B, H, L, 1): relative error of a term of the numerator
    gamma: Array  # likewise, of the denominator
    live: Array  # (B, H, L, S) bool: keys that can have a weight that is not 0
    n: Array  # (B, H, L, 1) live keys
    log_n: Array  # (B, H, L, 1) logarithm of the number of visible keys
    rescales: Array  # (B, H, L, 1) rescales an online softmax can need
    lse: Array  # (B, H, L, 1) |lse|, 0 in empty rows
    loss: Array  # (B, H, L, 1) B
    overflow: Array  # (B, H, L, 1) bool: a score may exceed the largest number


def growth(*factors: tuple[float, float]) -> float:
    """prod (1 + u)^n - 1 over pairs (u, n), without cancellation."""
    return math.expm1(sum(n * math.log1p(u) for u, n in factors))


def analyse(exact: Exact, a: Arithmetic, query_error: Array | None, key_error: Array | None) -> Softmax:
    """Errors of the scores, and what they do to the weights."""
    problem = exact.problem
    S = exact.logits.shape[-1]
    score_error, overflow = scores_bound(exact, a, query_error, key_error)

    lse = np.abs(exact.lse)[..., None]  # (B, H, L, 1)
    if exact.visible is None:
        visible_count = np.full(lse.shape, float(S))
    else:
        visible_count = exact.visible.sum(-1, keepdims=True, dtype=np.float64)
    if exact.empty is not None:
        lse = np.where(exact.empty[..., None], 0.0, lse)
        if problem.empty_rows == "mean":
            visible_count = np.where(exact.empty[..., None], float(S), visible_count)
    log_n = np.log(np.maximum(visible_count, 1.0))
    # Blocks in which the row sees no key rescale by 1. The keys it sees may lie in as many blocks as there are.
    rescales = np.maximum(np.minimum(visible_count, math.ceil(S / a.block)) - 1, 0.0)

    # Running maxima are monotone, so the subtractions of an online softmax telescope to |s_j - m|; its maximum as key j
    # sees it lies between s_j and m. A rescale factor multiplies numerator and denominator: its error belongs here.
    gap = np.abs(exact.logits - exact.top)
    merges = a.lse_norm
    fixed = math.log1p(a.eps_exp) + rescales * math.log1p(8 * a.u_acc)
    if merges:
        # The part that holds key j has weight exp(lse_i - lse), lse_i = m_i + ln l_i. The error of lse_i, u |lse_i| +
        # 8u ln l_i, is the same in numerator and denominator; |lse_i| <= |lse| + gap + ln n.
        fixed = fixed + merges * a.u_acc * (lse + 10 * log_n + 1)
    phi = score_error + (3 + merges) * a.u_acc * gap + fixed
    if a.stored:  # ``bound`` has the steps
        above = np.where(np.isneginf(exact.logits), -np.inf, score_error - gap)
        distance = gap + score_error + np.max(above, -1, keepdims=True, initial=0.0)
        bias = 0.0 if problem.bias is None else np.where(np.isneginf(problem.bias), 0.0, np.abs(problem.bias))
        phi = phi + growth((a.u_s, 1)) * (distance + np.maximum(distance, np.abs(exact.scores) + bias + score_error)) + math.log1p(a.u_p)
    if a.shift:
        far = np.maximum(np.abs(exact.logits), np.maximum(np.abs(exact.top), lse))
        phi = phi + 3 * a.u_acc * (far + log_n)

    live = gap - phi < -math.log(a.tiny) - math.log(a.u_acc)  # below, the computed weight is exactly 0
    log_p = exact.logits - exact.lse[..., None]
    p = exact.weights
    if exact.visible is not None:
        live = live & exact.visible
    if exact.empty is not None:
        if problem.empty_rows == "mean":  # equal logits: the scores' errors do not matter
            alone = exact.empty[..., None]
            live, log_p = live | alone, np.where(alone, -math.log(max(S, 1)), log_p)
            phi, gap = np.where(alone, fixed, phi), np.where(alone, 0.0, gap)
        else:
            p = np.where(exact.empty[..., None], 0.0, p)
    if not live.all():
        p, phi, gap = np.where(live, p, 0.0), np.where(live, phi, 0.0), np.where(live, gap, 0.0)
        log_p = np.where(live, log_p, -math.inf)
    upper = np.exp(log_p + phi)
    excess = np.where(phi < 1.0, p * np.expm1(phi), upper - p)

    n = live.sum(-1, keepdims=True, dtype=np.float64)
    unit = math.log1p(a.u_acc)
    tau = math.log1p(growth((a.u_p, 1), (a.u_mul, 2))) + (n + rescales + 4 + 2 * merges) * unit
    gamma = (n + rescales + 2) * unit
    rho: Array | float = 0.0
    if merges:
        # exp(lse_i - lse) is never renormalised: what is wrong with this exponential, and with the common lse in it,
        # does not cancel. |lse_i - lse| <= gap + ln n (Blanchard, Higham & Higham: the division-free softmax).
        rho = merges * (math.log1p(8 * a.u_acc) + a.u_acc * (gap + log_n + 1))
        tau = tau + rho
        gamma = gamma + rho + merges * a.u_acc * (lse + 9 * log_n + 1)
    log_rounding: Array | float = 0.0
    if a.stored:
        gamma = gamma + math.log1p(a.u_s) * (n > 1)  # a sum of one term is that term
        if merges:
            total = np.log(np.maximum(upper.sum(-1, keepdims=True), 1.0))
            sums = lse + np.max(np.where(live, phi, 0.0), -1, keepdims=True, initial=0.0)  # |ln Σ e| as it is computed
            log_rounding = np.where(live, a.u_s * (np.abs(log_p) + phi + total + sums), 0.0)
            tau = tau + log_rounding
    tau, gamma = np.expm1(tau), np.expm1(gamma)
    loss = excess.sum(-1, keepdims=True) + (gamma * upper).sum(-1, keepdims=True) + n * a.tiny
    loss = np.where(np.isnan(loss), np.inf, loss)
    return Softmax(p, phi, upper, excess, gap, rho + log_rounding, log_rounding, tau, gamma, live, n, log_n, rescales, lse, loss, overflow)


def scores_bound(exact: Exact, a: Arithmetic, query_error: Array | None, key_error: Array | None) -> tuple[Array, Array]:
    """Errors of the logits (B, H, L, S), and whether a finite one may overflow (B, H, L, 1)."""
    problem = exact.problem
    q, k = np.abs(problem.q), np.abs(exact.k)  # (B, H, L, D), (B, H, S, D)
    k_t = k.swapaxes(-1, -2)
    D = q.shape[-1]
    c = abs(problem.scale)
    larger = max(c, 1.0)  # the scale may come before the product, after it, or by its square root on either side
    eta = larger * max(a.eta_s, a.tiny)
    theta = growth((a.u_s, a.n_pre), (a.u_mul, 2), (a.u_acc, D + 4))

    overflow = ~(2 * np.abs(exact.top) < a.max_s)
    if exact.empty is not None:  # such a row has no largest logit
        overflow = overflow & ~exact.empty[..., None]
    error = (c * theta * q + eta) @ k_t  # (B, H, L, S)
    error += eta * (q.sum(-1, keepdims=True) + 4) + 2 * D * a.tiny * larger
    if query_error is not None and key_error is not None:
        error += c * (1 + theta) * (query_error @ (k_t + key_error.swapaxes(-1, -2)) + q @ key_error.swapaxes(-1, -2))
        lost_key = np.expand_dims(~np.isfinite(key_error).all(-1), -2)  # (B, H, 1, S)
        lost = lost_key if exact.visible is None else lost_key & exact.visible
        overflow = overflow | lost.any(-1, keepdims=True) | np.expand_dims(~np.isfinite(query_error).all(-1), -1)
    post = growth((a.u_s, a.n_post))
    if problem.softcap is not None:  # C tanh(x / C) is 1-Lipschitz and no larger than x
        post = (1 + post) * (1 + growth((a.u_s, 4)) + a.eps_exp) - 1
    error = (1 + post) * error + post * np.abs(exact.scores)
    if problem.bias is not None:
        if problem.bias_size is not None:  # computed by the attention, and rounded to float64 by the oracle
            error = error + 2 * a.u_s * problem.bias_size
        error = (1 + a.u_s) * error + a.u_s * np.abs(exact.logits)
    error = np.where(np.isnan(error), np.inf, error)

    # What else may overflow: a product or a partial sum of it, scaled or not, or an operand that is scaled first.
    ceiling = larger * D * q.max(initial=0.0) * k.max(initial=0.0) + (c * max(q.max(initial=0.0), k.max(initial=0.0)))
    if not ceiling < a.max_s:
        sums = larger * (q @ k_t)
        if c > 1:
            sums = np.maximum(sums, c * np.maximum(q.max(-1, initial=0.0)[..., None], k.max(-1, initial=0.0)[..., None, :]))
        above = ~(sums < a.max_s)
        if exact.visible is not None:
            # Hidden keys count, for inf + -inf = nan under an additive mask; those that hold NaN or infinities do not:
            # whether a kernel contains them is a matter of its dialect, not of its arithmetic.
            above &= exact.visible | np.expand_dims(np.isfinite(exact.k).all(-1), -2)
        overflow = overflow | above.any(-1, keepdims=True)
    return error, overflow
