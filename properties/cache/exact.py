"""What a cache must answer, exactly, and how far it may be off: attention over all tokens of a sequence so far.

    out_i = attention of q_i over the tokens j of its own sequence with  i − w < j ≤ i           (w: the window, if there is one)

Rotary caches turn q_i and k_j by their positions i and j. The scores depend on i − j alone, so an implementation that counts
positions from elsewhere (left padding included, or from the oldest token that is still held) is as right. Let c be its shift, P the
largest position, and a pair of q or k of length r. It holds R(c) x + e, |e| ≤ E in either feature, where E follows from a table that
is off by what its arithmetic loses at the angle P·w_i (``position_exact``). A score then is off by

    q′·e_k + e_q·k′ + e_q·e_k,  q′ = R(c) q:   |q′₁| + |q′₂| ≤ √2 r_q,   r_q ≤ |q₁| + |q₂|

so errors √2·E of the features of q and k as they stand without a shift are enough. The rounding of the dot product is
θ·Σ|q′_d k′_d| ≤ θ·r_q·r_k a pair, which an error θ·r_k of the keys' features covers; likewise what is lost next to zero.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..engine.cases.coordinates import Array
from ..exact import bound, oracle
from ..exact.arithmetic import Arithmetic
from ..exact.softmax_error import growth
from ..position import exact as exactly


@dataclass(frozen=True, eq=False)
class Turning:
    """How a cache turns its queries and keys."""

    base: float
    pairing: str  # interleaved or half, as in supports
    last: int  # the largest position that an implementation may use


def rotated(x: Array, at: Array, turning: Turning) -> Array:
    """x (B, H, L, D) turned to the positions at (B, L), rounded to float64."""
    dim = x.shape[-1]
    angle = at[..., None].astype(exactly.Wide) * exactly.frequencies(dim // 2, dim, turning.base)
    sin, cos = np.sin(angle)[:, None], np.cos(angle)[:, None]
    first, second = exactly.split(x.astype(exactly.Wide), turning.pairing)
    turned = exactly.join(first * cos - second * sin, first * sin + second * cos, dim, turning.pairing)
    return turned.astype(np.float64)


def rotation_errors(q: Array, k: Array, scale: float, turning: Turning, a: Arithmetic) -> tuple[Array, Array]:
    """Bounds of the features of q and k, of the shape of each, that cover a rotation in this arithmetic, whatever the shift."""
    dim = q.shape[-1]
    w = exactly.frequencies(dim // 2, dim, turning.base)
    angle = (turning.last * np.abs(w)).astype(np.float64)
    delta = np.minimum(exactly.angle_error(angle, np.abs(np.log(w)).astype(np.float64), a), 2.0) + turning.last * a.tiny
    table = exactly.table_error(np.ones(angle.shape), delta, a)
    one = np.ones(angle.shape)
    theta = growth((a.u_s, a.n_pre), (a.u_mul, 2), (a.u_acc, dim + 4))
    lost = max(a.eta_s, a.tiny) * max(1.0, 1 / scale)

    def off(x: Array, dot: float) -> Array:
        first, second = exactly.split(np.abs(x), turning.pairing)
        error = exactly.product_error(first, second, one, one, table, table, a)
        pair = np.sqrt(2) * error + (dot + bound.ROUNDED) * np.hypot(first, second) + lost
        return exactly.join(pair, pair, dim, turning.pairing) * (1 + 2.0**-40)

    return off(q, 0.0), off(k, theta)


@dataclass(frozen=True, eq=False)
class Answers:
    """The exact outputs (B, H, L, Dv) of some queries, and their bound."""

    exact: oracle.Exact
    bound: Array


def pose(q: Array, k: Array, v: Array, at: Array, lengths: Array, window: int | None, turning: Turning | None) -> oracle.Problem:
    """Attention of queries q (B, H, L, D) at positions (B, L), over keys and values (B, Hkv, S, …) at 0, 1, …, S − 1.

    A query sees no key of its sequence from lengths (B,) on, none after its own position, and none a window or more before it.
    """
    ahead = np.arange(k.shape[2]) - at[..., None]  # (B, L, S): j − i
    visible_keys = (ahead <= 0) & (np.arange(k.shape[2]) < lengths[:, None, None])
    if window is not None:
        visible_keys &= ahead > -window
    if turning is not None:
        q, k = rotated(q, at, turning), rotated(k, np.broadcast_to(np.arange(k.shape[2]), (len(k), k.shape[2])), turning)
    visible = np.broadcast_to(visible_keys[:, None], (*q.shape[:3], k.shape[2]))
    return oracle.Problem(q=q, k=k, v=v, scale=q.shape[-1] ** -0.5, visible=visible)


def solve(q: Array, k: Array, v: Array, at: Array, lengths: Array, window: int | None, turning: Turning | None, a: Arithmetic) -> Answers:
    """The answers to what ``pose`` asks, with their bounds."""
    problem = pose(q, k, v, at, lengths, window, turning)
    errors: dict[str, Array] = {}
    if turning is not None:
        of_q, of_k = rotation_errors(q, k, problem.scale, turning, a)
        errors = {"query_error": of_q, "key_error": np.repeat(of_k, q.shape[1] // k.shape[1], axis=1)}
    exact = oracle.solve(problem, precision="extended" if a.dtype == "float64" else "float64")
    return Answers(exact, bound.rigorous(exact, a, **errors))
