"""How far a correct attention may be from the exact answer, element by element.

Row i is fixed: s_j logits, p_j weights, o the output, n live keys. Rounding turns the score s_j into s_j + Delta_j, and
so the weight into p_j e^±phi_j, *the same number in numerator and denominator* of o = sum p_j v_j / sum p_j. With
Phi_j = e^phi_j - 1, W_j = p_j e^phi_j, numerator terms off by 1 + tau and denominator terms by 1 + gamma, exact algebra
(not first order) gives

    B = sum_j p_j Phi_j + gamma sum_j W_j                                    relative error of the denominator
    E = [ sum_j p_j Phi_j |v_j - o| + tau sum_j W_j |v_j| + gamma |o| sum_j W_j ] / (1 - B)

for any order of summation, naive, blocked or split: each term passes through n - 1 additions at most, each of which
multiplies it by 1 + u at most (Higham, *Accuracy and Stability of Numerical Algorithms*, 2nd ed., 2002, sections 3.1
and 4.2). Score errors enter as |v_j - o|: where the values agree, wrong weights do no harm. The shifted softmax is
analysed by Blanchard, Higham & Higham (IMA J. Numer. Anal. 41, 2021), the probabilistic bound follows Higham & Mary
(SIAM J. Sci. Comput. 41, 2019) and Ipsen & Zhou (SIAM J. Matrix Anal. Appl. 41, 2020).

**Stored.** A softmax by hand, in PyTorch on halves, stores the result of every operation, rounded once: an operation computes
in float32, and what it sums it accumulates in float32 (``at::opmath_type``, ``at::acc_type``), so a sum of n terms costs one u
of the type, not n. Let u be that of the type, Delta_j the error of a stored score, D = max_j (Delta_j - gap_j) that of their
maximum, gap_j = max s - s_j. The steps are, each times 1 + u at most,

    s_j - max s                                       u (gap_j + Delta_j + D)                             in phi
    a factor log2 e, of scores and bias or of this    u max(gap_j + Delta_j + D, |t_j| + |b_j| + Delta_j) in phi (exp2)
    e_j = exp(...), and what is next to zero          ln(1 + u), eta                                      in phi: the same e_j above and below
    sum_j e_j, of more than one term                  u                                                   in gamma
    e_j / sum, or (sum_j e_j v_j) and then / sum      u of each weight, or u of the numerator             in tau: u |o| <= u sum_j p_j |v_j|

The analysis is that of Blanchard, Higham & Higham (2021, section 4), with one roundoff for what is stored and another for what
is accumulated, as in Blanchard, Higham, Lopez, Mary & Pranesh (SIAM J. Sci. Comput. 42, 2020, on block FMA). Numerators are
stored before they are divided, so they may overflow where the result does not. Where weights are kept as logarithms
(``log_softmax``, or s_j - ln sum_j e_j by hand, stored: part of ``+lse``) the errors u |ln p_j|, and u |ln sum_j e_j| where that is
stored before it is subtracted, are not renormalised, and belong to tau: the division-free softmax, again. A state that is stored
and added to from block to block is not among these: that is ``same``.

Every bound is +inf where nothing can be promised: the answer is not finite, may overflow on the way, or rounding
destroys it.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from .arithmetic import Arithmetic
from .oracle import Exact, LayerExact, Projection, join_heads, reached, split_heads
from .softmax_error import Softmax, analyse, growth

Array = npt.NDArray[Any]

HULL_FROM = 0.25  # relative error of the denominator from which the convex hull of the values is asked too
HULL_ONLY = 0.9  # and from which it is all there is
ROUNDED = 2.0**-53  # the exact answers are handed out as float64: comparing with them costs this much of them
LARGE = 1 << 20  # elements of |v_j - o| beyond which Cauchy-Schwarz replaces the pass over them


def rigorous(
    exact: Exact,
    arithmetic: Arithmetic,
    *,
    query_error: Array | None = None,
    key_error: Array | None = None,
    value_error: Array | None = None,
) -> Array:
    """|computed - exact| of every output element (B, H, L, Dv), whatever the order of operations; +inf: no promise.

    The optional errors bound |stored - exact| of q (B, H, L, D), k (B, H, S, D), v (B, H, S, Dv).
    """
    with np.errstate(all="ignore"):
        soft = analyse(exact, arithmetic, query_error, key_error)
        return finish(exact, arithmetic, soft, worst_case(exact, arithmetic, soft, value_error), value_error)


def probabilistic(exact: Exact, arithmetic: Arithmetic, alpha: float = 1e-6) -> Array:
    """As ``rigorous``, but exceeded with probability alpha per problem; never larger.

    Model: rounding errors are independent, of mean zero and uniform on [-u, u]. Then sums of n of them grow like
    sqrt(n), not n. True of continuous random inputs only, not of ties, integers or shrunk examples.
    """
    with np.errstate(all="ignore"):
        soft = analyse(exact, arithmetic, None, None)
        likely = typical_case(exact, arithmetic, soft, alpha)
        worst = worst_case(exact, arithmetic, soft, None)
        return finish(exact, arithmetic, soft, np.fmin(likely, worst), None)


def weights_bound(exact: Exact, arithmetic: Arithmetic, **errors: Array | None) -> Array:
    """|computed - exact| of every returned weight (B, H, L, S); exactly 0 where a key is not visible, in a row in which nothing overflows.

    Holds for the quotient and for exp(logit - lse). Takes ``query_error`` and ``key_error`` as ``rigorous`` does.
    """
    a = arithmetic
    with np.errstate(all="ignore"):
        soft = analyse(exact, a, errors.get("query_error"), errors.get("key_error"))
        # Besides phi: the denominator, three roundings, and an exponent near |lse| + gap.
        rest = soft.rho + 3 * math.log1p(a.u_acc) - np.log1p(-np.minimum(soft.loss, HULL_ONLY))
        rest = rest + 3 * a.u_acc * (soft.lse + soft.log_n + 1)
        error = (soft.excess + soft.upper * np.expm1(rest)) * (1 + oracle_share(exact, a))
        limit = np.where(soft.gamma < 0.5, 1 + 4 * soft.gamma, np.inf)  # a normalised weight is no larger than 1
        error = np.where(soft.loss >= HULL_ONLY, limit, np.minimum(error, limit)) + a.tiny
        if a.stored:  # exponentials lost where they are stored, and in the sum by which they are divided
            lost = np.minimum(a.eta_p, soft.upper)
            error = error + lost + soft.p * lost.sum(-1, keepdims=True)
        error = error + (max(a.u_p, a.u_out) + ROUNDED) * (soft.p + error) + max(a.eta_p, a.eta_out)
        error = np.where(exact.row_posed[..., None] & ~soft.overflow & ~np.isnan(error), error, np.inf)
        error = settle_empty(exact, soft, error)
        if exact.visible is None:
            return error
        visible = exact.visible if exact.empty is None else exact.visible | exact.empty[..., None]
        return np.where(visible | soft.overflow, error, 0.0)  # ∞ − ∞ at a hidden key is NaN in the whole row


def lse_bound(exact: Exact, arithmetic: Arithmetic, **errors: Array | None) -> Array:
    """|computed - exact| of the log-sum-exp (B, H, L); takes ``query_error`` and ``key_error`` as ``rigorous`` does."""
    a = arithmetic
    with np.errstate(all="ignore"):
        soft = analyse(exact, a, errors.get("query_error"), errors.get("key_error"))
        # ln sum p_j e^±phi_j(1 ± gamma) lies within max phi of 0, and within -ln(1 - B) where that is defined.
        crude = np.max(soft.phi + np.log1p(soft.gamma), -1, keepdims=True, initial=0.0)
        error = np.where(soft.loss < HULL_ONLY, np.minimum(-np.log1p(-soft.loss), crude), crude)
        error = error + (a.u_acc + ROUNDED) * (4 * soft.lse + 9 * soft.log_n + 2)
        if a.stored:  # the maximum, the logarithm and their sum, the last two in another base first
            error = error + growth((a.u_s, 3)) * (soft.lse + 2 * soft.log_n + error) + 3 * a.eta_s
        error = error[..., 0] * (1 + oracle_share(exact, a))
        error = np.where(exact.row_posed & ~soft.overflow[..., 0] & ~np.isnan(error), error, np.inf)
        return error if exact.empty is None else np.where(exact.empty & ~soft.overflow[..., 0], 0.0, error)


def multihead(exact: LayerExact, arithmetic: Arithmetic) -> tuple[Array, Array]:
    """|computed - exact| of a multi-head layer, (B, L, E), and of its weights, (B, H, L, S).

    By composition: linear, attention with input errors, linear.
    """
    with np.errstate(all="ignore"):
        errors = projected_errors(exact, arithmetic)
        weights = weights_bound(exact.attention, arithmetic, **errors)
        inner = rigorous(exact.attention, arithmetic, **errors)
        outer = linear(exact.projections["o"], arithmetic, exact.attention.unit, join_heads(inner))
        outer = np.where(exact.well_posed & ~np.isnan(outer), outer, np.inf)
        empty = exact.attention.empty
        if empty is not None and exact.attention.problem.empty_rows == "nan":
            outer = np.where(np.asarray(empty.any(1))[..., None], 0.0, outer)
        return outer, weights


def projected_errors(exact: LayerExact, arithmetic: Arithmetic) -> dict[str, Array]:
    """Bounds of the projected queries, keys and values, per head (B, H, L or all keys, D)."""
    heads, keys = exact.attention.problem.q.shape[1], exact.attention.problem.k.shape[2]
    errors = {}
    for name, step in {"query_error": "q", "key_error": "k", "value_error": "v"}.items():
        error = split_heads(linear(exact.projections[step], arithmetic, exact.attention.unit), heads)
        appended = 0 if step == "q" else keys - error.shape[2]
        errors[name] = np.pad(error, ((0, 0), (0, 0), (0, appended), (0, 0)))  # what is appended is exact
    return errors


def linear(step: Projection, arithmetic: Arithmetic, unit: float, input_error: Array | None = None) -> Array:
    """|computed - exact| of y = x W^T + b (B, L, E_out), stored as a result of the arithmetic.

    The product and the bias may be stored one after the other, which rounds twice.
    """
    a = arithmetic
    width = step.w.shape[-1]
    theta = growth((a.u_mul, 2), (a.u_acc, width + 2))
    weight = np.abs(step.w).swapaxes(-1, -2)
    size = np.abs(step.x) @ weight  # (B, L, E_out)
    shift = 0.0 if step.b is None else np.abs(step.b)
    error = theta * (size + shift) + 2 * width * a.tiny
    if input_error is not None:
        error = error + (1 + theta) * (input_error @ weight)
    error = error * (1 + unit / a.u_acc)
    if step.b is not None:
        error = error + a.u_out * (np.abs(step.y) + shift + error) + a.eta_out
    error = error + a.u_out * (np.abs(step.y) + error) + a.eta_out
    return np.where((size + shift + error <= a.max_out), error, np.inf)


def oracle_share(exact: Exact, arithmetic: Arithmetic) -> float:
    """What the oracle's own rounding adds to a bound, as a fraction of it.

    The bounds are convex in the unit roundoffs and vanish with them, so an oracle whose roundoffs are all a fraction
    of the arithmetic's is off by that fraction of the bound at most.
    """
    return exact.unit / min(arithmetic.u_acc, arithmetic.u_s)


def worst_case(exact: Exact, a: Arithmetic, soft: Softmax, value_error: Array | None) -> Array:
    """The bound E before the result is stored, without the convex hull; infinite where the denominator may vanish."""
    size = np.abs(exact.v)  # (B, H, S, Dv)
    o = np.abs(safe_out(exact))  # (B, H, L, Dv)
    error = centred(soft.excess, exact)
    error += (soft.tau * soft.upper) @ size
    error += o * (soft.gamma * soft.upper).sum(-1, keepdims=True)
    if value_error is not None:
        reach = np.where(np.isfinite(value_error), value_error, 0.0)
        error += ((1 + soft.tau) * soft.upper) @ reach
    error += underflow(exact, a, soft)
    error = error / (1 - soft.loss) * (1 + oracle_share(exact, a))
    return np.where(soft.loss < HULL_ONLY, error, np.inf)


def underflow(exact: Exact, a: Arithmetic, soft: Softmax) -> Array:
    """Absolute losses next to zero: stored weights, and flushed weights, products and sums (B, H, L, Dv)."""
    visible = np.True_ if exact.visible is None else exact.visible
    lost = a.tiny * (
        2 * soft.live + a.u_acc * visible
    )  # (B, H, L, S); of a key that is not live the whole weight is lost, less than tiny · u
    if a.eta_p:
        lost = lost + (3 if a.stored else 2) * np.minimum(a.eta_p, soft.upper)
    weights: Array = lost @ np.abs(exact.v)
    if a.stored:  # exponentials lost in the sum, and the numerator, stored before it is divided
        weights += np.abs(safe_out(exact)) * np.minimum(a.eta_p, soft.upper).sum(-1, keepdims=True) + a.eta_out
    weights += a.tiny * (3 * (soft.n + soft.rescales) + soft.n * np.abs(safe_out(exact)))
    return weights


def typical_case(exact: Exact, a: Arithmetic, soft: Softmax, alpha: float) -> Array:
    """The probabilistic counterpart of ``worst_case``: squares of independent errors add, common errors add directly."""
    problem = exact.problem
    c, D = abs(problem.scale), problem.q.shape[-1]
    o = safe_out(exact)
    p, live = soft.p, soft.live
    score, logit = np.where(live, exact.scores, 0.0), np.where(live, exact.logits, 0.0)
    length = c * np.sqrt(problem.q**2 @ (exact.k**2).swapaxes(-1, -2))  # (B, H, L, S)
    length = np.where(live, length, 0.0)
    pre = a.u_s**2 * (a.n_pre > 0) + a.u_mul**2
    mixed = 4 * a.u_s**2 + a.eps_exp**2 if problem.softcap is not None else 0.0

    single = length**2 * (pre + 4 * a.u_acc**2) + a.u_acc**2 * partial_sums(D, score**2, length**2)
    single += (a.u_s**2 * a.n_post + mixed) * score**2 + 3 * (a.u_acc * soft.gap) ** 2
    single += a.eps_exp**2 + (8 * a.u_acc) ** 2 * soft.rescales
    if problem.bias is not None:
        single += (a.u_s * logit) ** 2
    if problem.bias_size is not None:
        single += (2 * a.u_s * problem.bias_size) ** 2
    common = length * math.sqrt(pre)  # the rounding of a query is shared by all its keys
    if a.shift:
        common = common + 2 * a.u_acc * np.maximum(np.abs(logit), np.maximum(np.abs(exact.top), soft.lse))
    if a.stored:
        single += a.u_p**2 + (a.u_s * soft.gap) ** 2 + (a.u_s * np.maximum(soft.gap, np.abs(score) + np.abs(logit))) ** 2
        common = common + soft.log_rounding / math.sqrt(3)
    if a.lse_norm:
        common = common + a.lse_norm * a.u_acc * (soft.lse + soft.gap + 10 * soft.log_n + 1)

    squares = p**2 @ exact.v**2  # (B, H, L, Dv)
    n = soft.n + soft.rescales
    total = centred_squares(p**2 * single, exact)
    total += squares * (a.u_p**2 + a.u_mul**2 + a.u_acc**2)
    total += a.u_acc**2 * (partial_sums(n, o**2, squares) + n / 3 * o**2)
    spread: Array = np.sqrt(total) + centred(p * common, exact)
    scale = math.sqrt(2 * math.log(2 * max(o.size, 1) / alpha) / 3)  # Hoeffding, uniform errors, o.size elements
    error: Array = scale * spread + underflow(exact, a, soft)
    if a.lse_norm:  # a part's keys share the error of its factor exp(lse_i - lse): nothing averages out
        shared = a.lse_norm * a.u_acc * (soft.lse + 9 * soft.log_n + 1)
        error += (p * soft.rho) @ np.abs(exact.v) + np.abs(o) * ((p * soft.rho).sum(-1, keepdims=True) + shared)
    # Equal weights or equal values share one rounding error.
    error += (a.u_p + a.u_mul + a.u_s * a.stored) * np.abs(o) + a.u_mul * (p @ np.abs(exact.v))
    error *= (1 + oracle_share(exact, a)) / (1 - np.minimum(soft.loss, HULL_ONLY))
    return error


def partial_sums(n: Array | float, square: Array, squares: Array) -> Array:
    """Sum of the squared partial sums of n terms in random order, from the square of their sum and their squares."""
    return n / 3 * square + 2 * n / 3 * squares


def finish(exact: Exact, a: Arithmetic, soft: Softmax, error: Array, value_error: Array | None) -> Array:
    """The bound of the stored result: convex hull, last operations, storage, and what cannot be promised at all."""
    o = np.abs(safe_out(exact))
    wild = soft.loss >= HULL_FROM  # (B, H, L, 1)
    if wild.any():
        inside = hull(exact, soft, wild, value_error) + underflow(exact, a, soft)  # products of the weights may be flushed
        error = np.where(wild, np.fmin(error, inside), error)
    error = error + 3 * a.u_acc * (o + error)
    error = error + a.u_out * (o + error) + a.eta_out + ROUNDED * o
    posed = exact.well_posed & ~soft.overflow & (o + error <= a.max_out)
    largest = a.max_out if a.stored else a.max_acc
    if not np.abs(exact.v).sum(-2, keepdims=True).max(initial=0.0) < largest:
        above = soft.live * (np.exp(soft.phi - soft.gap) if a.stored else 1.0)
        posed = posed & (above @ np.abs(exact.v) < largest * (1 - 2 * a.u_out * a.stored))  # sums before the division
    if value_error is not None and not np.isfinite(value_error).all():
        posed = posed & ~reached(soft.live, ~np.isfinite(value_error))
    error = np.where(posed & ~np.isnan(error), error, np.inf)
    return settle_empty(exact, soft, error)


def hull(exact: Exact, soft: Softmax, wild: Array, value_error: Array | None) -> Array:
    """However wrong the weights, the result lies between the least and the largest live value, but for rounding."""
    v = exact.v if value_error is None else np.abs(exact.v) + value_error
    far, size = np.zeros(exact.out.shape), np.zeros(exact.out.shape)
    out = safe_out(exact)
    for index in np.argwhere(wild[..., 0]):
        b, h, i = (int(x) for x in index)
        keys = soft.live[b, h, i]
        size[b, h, i] = np.abs(v[b, h, keys]).max(0, initial=0.0)
        far[b, h, i] = np.abs(exact.v[b, h, keys] - out[b, h, i]).max(0, initial=0.0)
    if value_error is not None:
        far = far + size
    tau, gamma = soft.tau.max(-1, keepdims=True, initial=0.0), soft.gamma.max(-1, keepdims=True, initial=0.0)
    return np.where(gamma < 1, far + size * ((1 + tau) / (1 - gamma) - 1), np.inf)


def settle_empty(exact: Exact, soft: Softmax, error: Array) -> Array:
    """Rows without a visible key that are zero, or nan, by convention are so exactly; not where +inf − inf may stand for a score."""
    if exact.empty is None:
        return error
    if exact.problem.empty_rows != "zero" and not exact.logits.shape[-1]:  # the mean of nothing, or 0/0 of none: nobody says
        return np.full(error.shape, np.inf)
    if exact.problem.empty_rows == "mean":
        return error
    if exact.problem.empty_rows == "all":  # what is added to hide the keys is added to all, and rounds them by as much as it is large
        return np.where(exact.empty[..., None], np.inf, error)
    return np.where(exact.empty[..., None] & ~soft.overflow, 0.0, error)


def safe_out(exact: Exact) -> Array:
    return exact.out if exact.well_posed.all() and exact.empty is None else np.nan_to_num(exact.out, posinf=0.0, neginf=0.0)


def centred(a: Array, exact: Exact) -> Array:
    """sum_j a_j |v_j - o| (B, H, L, Dv); for large shapes its bound sqrt(sum a) sqrt(sum a (v - o)^2)."""
    if a.size * exact.v.shape[-1] > LARGE:
        above: Array = np.sqrt(a.sum(-1, keepdims=True) * centred_squares(a, exact))
        return above
    distance = np.abs(exact.v[..., None, :, :] - safe_out(exact)[..., None, :])  # (B, H, L, S, Dv)
    total: Array = (a[..., None, :] @ distance)[..., 0, :]
    return total


def centred_squares(a: Array, exact: Exact) -> Array:
    """sum_j a_j (v_j - o)^2 (B, H, L, Dv), from above; by the binomial theorem for large shapes."""
    out = safe_out(exact)
    if a.size * exact.v.shape[-1] > LARGE:
        square: Array = a @ exact.v**2
        total: Array = a.sum(-1, keepdims=True) * out**2
        rounding = 4 * (a.shape[-1] + 4) * 2.0**-53 * (square + total)
        above: Array = np.maximum(square - 2 * out * (a @ exact.v) + total, 0.0) + rounding
        return above
    squares = (exact.v[..., None, :, :] - out[..., None, :]) ** 2  # (B, H, L, S, Dv)
    sums: Array = (a[..., None, :] @ squares)[..., 0, :]
    return sums
