"""The exact gradients of attention, from the exact weights: independent of every implementation, in the same wide numbers.

For a scalar loss whose gradient with respect to the output is dO,

    dP = dO vᵀ      δ = Σ_j P_j dP_j      dS = P (dP − δ)
    dQ = scale · dS K      dK = scale · dSᵀ Q      dV = Pᵀ dO      dbias = dS

(Dao et al., FlashAttention, NeurIPS 2022, appendix B.2, from the Jacobian diag(p) − p pᵀ of the softmax). Query heads that
share a key/value head add up in dK and dV; a bias that was broadcast receives the sum over what it was broadcast to. A row
without a visible key has no weights, so it sends nothing back, and no hidden key receives anything.

    softcap    s = c tanh(t/c) + bias      dT = (1 − tanh²(t/c)) dS takes the place of dS in dQ and dK, not in dbias
    sinks      one more key of logit z and value 0: dP is 0 there, so it receives −P δ, and dz_h = −Σ_i P_i,sink δ_i
    dropout    out = (P∘M) V with M = b/(1 − p): dP = M∘(dO vᵀ) and dV = (P∘M)ᵀ dO; δ and dS as above
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .oracle import Exact, Precision, distance, exp, nearest, number_system, tail, where

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Gradients:
    """The exact gradients, as float64 and a tail, with what their bound needs to know."""

    exact: Exact
    grad_out: Array  # (B, H, L, Dv) dO
    q: Array  # (B, H, L, D)
    q_tail: Array
    k: Array  # (B, Hkv, S, D)
    k_tail: Array
    v: Array  # (B, Hkv, S, Dv)
    v_tail: Array
    logits: Array  # (B, H, L, S) dS, the gradient of a bias of full size; with sinks (B, H, L, S + 1)
    logits_tail: Array
    weights: Array  # (B, H, L, S) dP
    delta: Array  # (B, H, L, 1) δ
    scores: Array  # (B, H, L, S) dT, the gradient of the scores before the softcap; dS where there is none
    slope: Array | None = None  # (B, H, L, S) 1 − tanh²(t/c); None without a softcap
    kept: Array | None = None  # (B, H, L, S) M, the factors of the weights under dropout; None without

    def error(self, name: str, actual: Array) -> Array:
        """|actual − exact| of the gradient of q, k, v or logits; 0 where both are nan, inf where only one is."""
        return distance(actual, getattr(self, name), getattr(self, f"{name}_tail"))

    def of_bias(self, shape: tuple[int, ...]) -> tuple[Array, Array]:
        """The gradient of a bias of this shape, and its tail."""
        return self._summed(without_sink(self.exact, self.logits), without_sink(self.exact, self.logits_tail), shape)

    def of_sinks(self) -> tuple[Array, Array]:
        """The gradient of the sinks (H,), and its tail."""
        heads = (1, self.logits.shape[1], 1, 1)
        value, rest = self._summed(self.logits[..., -1:], self.logits_tail[..., -1:], heads)
        return value.reshape(-1), rest.reshape(-1)

    def _summed(self, value: Array, rest: Array, shape: tuple[int, ...]) -> tuple[Array, Array]:
        lift, _ = number_system(precision_of(self.exact))
        with np.errstate(all="ignore"):
            total = sum_to(lift(value) + lift(rest), shape)
            value = nearest(total)
            return value, tail(total, value)


def differentiate(exact: Exact, grad_out: Array, kept: Array | None = None) -> Gradients:
    """The gradients of Σ grad_out · out, in the precision in which the answer was computed.

    Under dropout ``kept`` (B, H, L, S) holds what each weight was multiplied by; the answer itself is that without
    dropout. Infinite and NaN values count as 0, as in ``Exact.v``.
    """
    problem = exact.problem
    lift, _ = number_system(precision_of(exact))
    with np.errstate(all="ignore"):
        p = lift(exact.weights) + lift(exact.weights_tail)  # (B, H, L, S)
        if exact.empty is not None:
            p = where(~exact.empty[..., None], p, 0.0)
        d_out, q, k, v = lift(grad_out), lift(problem.q), lift(exact.k), lift(exact.v)
        factor = 1.0 if kept is None else kept
        d_weights = (d_out @ v.swapaxes(-1, -2)) * factor  # (B, H, L, S)
        delta = (p * d_weights).sum(-1, keepdims=True)  # (B, H, L, 1)
        d_logits = p * (d_weights - delta)
        bent = None if problem.softcap is None else bend((q @ k.swapaxes(-1, -2)) * problem.scale, problem.softcap)
        d_scores = d_logits if bent is None else d_logits * bent
        if bent is not None and exact.visible is not None:
            d_scores = where(exact.visible, d_scores, 0.0)
        heads = problem.k.shape[1]
        parts = {
            "q": (d_scores @ k) * problem.scale,
            "k": over_groups(d_scores.swapaxes(-1, -2) @ q, heads) * problem.scale,
            "v": over_groups((p * factor).swapaxes(-1, -2) @ d_out, heads),
            "logits": d_logits,
        }
        values = {name: nearest(part) for name, part in parts.items()}
        tails = {f"{name}_tail": tail(part, values[name]) for name, part in parts.items()}
        if problem.sink:  # nobody asked for the gradients of its key and value, which are 0
            for name in ("k", "v"):
                values[name], tails[f"{name}_tail"] = values[name][:, :, :-1], tails[f"{name}_tail"][:, :, :-1]
    return Gradients(
        exact,
        grad_out,
        **values,
        **tails,
        weights=nearest(d_weights),
        delta=nearest(delta),
        scores=nearest(d_scores),
        slope=None if bent is None else nearest(bent),
        kept=kept,
    )


def bend(scores: Any, softcap: float) -> Any:
    """1 − tanh² x = 4 e^(−2|x|) / (1 + e^(−2|x|))², x = scores/softcap, which does not cancel where tanh is near 1."""
    sign = np.where(nearest(scores) < 0, -1.0, 1.0)
    decay = exp(scores * sign * -2.0 / softcap)
    return decay * 4.0 / ((decay + 1.0) * (decay + 1.0))


def without_sink(exact: Exact, x: Array) -> Array:
    """(B, H, L, S) without the column of the sink, where there is one."""
    return x[..., :-1] if exact.problem.sink else x


def precision_of(exact: Exact) -> Precision:
    """The number system in which an answer was computed, by its unit roundoff."""
    names: tuple[Precision, ...] = ("float64", "longdouble", "double-double")
    return next(name for name in names if number_system(name)[1] == exact.unit)


def over_groups(x: Any, kv_heads: int) -> Any:
    """(B, H, …) → (B, Hkv, …): the sum over the query heads that share a key/value head."""
    batch, heads, *rest = x.shape
    if heads == kv_heads or not heads:
        return x
    return sum_along(x.reshape(batch, kv_heads, heads // kv_heads, *rest), 2).reshape(batch, kv_heads, *rest)


def sum_along(x: Any, axis: int) -> Any:
    """The sum along an axis, which keeps size 1, in any number system."""
    return x.swapaxes(axis, -1).sum(-1, keepdims=True).swapaxes(axis, -1)


def sum_to(x: Any, shape: tuple[int, ...]) -> Any:
    """The sum over the axes along which an array of this shape was broadcast to the shape of x."""
    full = (1,) * (len(x.shape) - len(shape)) + tuple(shape)
    for axis, (size, wanted) in enumerate(zip(x.shape, full, strict=True)):
        if wanted == 1 and size != 1:
            x = sum_along(x, axis)
    return x.reshape(tuple(shape)) if isinstance(x, np.ndarray) else x._map(lambda part: part.reshape(shape))
