"""The exact attention: one short computation in a wider type, independent of every implementation.

    weights = softmax(scale q k^T + bias, over the visible keys)        out = weights v        lse = log sum exp

float64 suffices for float32 and halves (2^-29 of their rounding errors); float64 attentions are held against
``np.longdouble`` where that has 64 bits or more, and against double-double arithmetic elsewhere. All results are handed
out as float64 arrays with a tail, ``value + tail``, so that nobody else has to know the wider type.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from .double_double import DoubleDouble
from .shown import Shown

Array = npt.NDArray[Any]
Precision = Literal["float64", "extended", "longdouble", "double-double"]

HAS_LONGDOUBLE = bool(np.finfo(np.longdouble).nmant >= 63)


@dataclass(frozen=True, eq=False)
class Problem:
    """One attention call, in numbers that the dtype under test represents exactly.

    Any size may be 0. Query head h attends to key/value head h // (H // Hkv). What a row cannot see does not reach it,
    not even NaN.
    """

    q: Array  # (B, H, L, D) float64
    k: Array  # (B, Hkv, S, D) float64
    v: Array  # (B, Hkv, S, Dv) float64
    scale: float
    visible: Array | None = None  # bool, broadcasts to (B, H, L, S); None: every key is visible
    bias: Array | None = None  # float64, broadcasts to (B, H, L, S), added to the scores; -inf hides a key
    # what a row without a visible key gives: zero | nan | mean (of all S values) | all (as if it saw all keys: nothing more is promised)
    empty_rows: str = "zero"
    softcap: float | None = None  # scores become softcap * tanh(scores / softcap), before the bias
    bias_size: Array | None = None  # of the part of the bias that the attention computes itself, from above
    sink: bool = False  # the last key is one that the caller has not given: a logit without a value

    def __post_init__(self) -> None:
        if self.empty_rows not in ("zero", "nan", "mean", "all"):
            raise ValueError(f"empty_rows is {self.empty_rows!r}: expected 'zero', 'nan', 'mean' or 'all'")
        if self.q.ndim != 4 or self.k.ndim != 4 or self.v.ndim != 4:
            raise ValueError(f"q, k, v must be 4-dimensional, got {self.q.shape}, {self.k.shape}, {self.v.shape}")
        if self.k.shape[1] and self.q.shape[1] % self.k.shape[1]:
            raise ValueError(f"{self.k.shape[1]} key/value heads do not divide {self.q.shape[1]} query heads")

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(B, H, L, S)"""
        return self.q.shape[0], self.q.shape[1], self.q.shape[2], self.k.shape[2]


@dataclass(frozen=True, eq=False)
class Exact(Shown):
    """The exact answer, as float64 and a tail, with what the bounds need to know about the problem."""

    problem: Problem
    unit: float  # unit roundoff of the computation
    out: Array  # (B, H, L, Dv)
    out_tail: Array
    weights: Array  # (B, H, L, S); follows empty_rows in rows without a visible key: 0 (all: too), nan or 1/S
    weights_tail: Array
    lse: Array  # (B, H, L) natural logarithm; -inf in rows without a visible key
    lse_tail: Array
    scores: Array  # (B, H, L, S) scale q k^T; anything where not visible
    logits: Array  # (B, H, L, S) scores with softcap and bias; -inf where not visible
    visible: Array | None  # (B, H, L, S) bool; None: every key is visible
    empty: Array | None  # (B, H, L) bool, rows without a visible key; None: there are none
    top: Array  # (B, H, L, 1) largest logit of the row; 0 in empty rows
    k: Array  # (B, H, S, D) keys, repeated over their group of query heads
    v: Array  # (B, H, S, Dv) values likewise, NaN and infinities replaced by 0
    row_posed: Array  # (B, H, L) bool; False: q, a visible key or the row's log-sum-exp is not finite
    well_posed: Array  # (B, H, L, Dv) bool; False: row_posed is, or a visible value is not finite

    def out_error(self, actual: Array) -> Array:
        """|actual - exact| (B, H, L, Dv); 0 where both are nan or the same infinity, inf where only one is."""
        return distance(actual, self.out, self.out_tail)

    def weights_error(self, actual: Array) -> Array:
        """|actual - exact| of the weights (B, H, L, S), likewise."""
        return distance(actual, self.weights, self.weights_tail)

    def lse_error(self, actual: Array) -> Array:
        """|actual - exact| of the log-sum-exp (B, H, L), likewise."""
        return distance(actual, self.lse, self.lse_tail)


def distance(actual: Array, value: Array, tail: Array) -> Array:
    """|actual - (value + tail)|; 0 where both are nan or the same infinity, inf where only one is."""
    with np.errstate(all="ignore"):
        actual = np.asarray(actual, np.float64)
        gap = np.abs((actual - value) - tail)
        same = (actual == value) & ~np.isfinite(value) | np.isnan(actual) & np.isnan(value)
        return np.where(same, 0.0, np.where(np.isnan(gap), np.inf, gap))


def with_sinks(problem: Problem, sinks: Array) -> Problem:
    """The problem with one more key for every head, seen by all rows: its logit is sinks (H,), its value is zero.

    Xiao et al. (Efficient streaming language models with attention sinks, 2024); as a learned logit in gpt-oss.
    """
    B, H, L, S = problem.shape

    def more(x: Array) -> Array:
        return np.concatenate([x, np.zeros((*x.shape[:2], 1, x.shape[3]))], axis=2)

    visible = np.ones((B, H, L, S + 1), bool)
    bias = np.zeros((B, H, L, S + 1))
    if problem.visible is not None:
        visible[..., :S] = problem.visible
    if problem.bias is not None:
        bias[..., :S] = problem.bias
    bias[..., S] = sinks[:, None]
    return dataclasses.replace(problem, k=more(problem.k), v=more(problem.v), visible=visible, bias=bias, sink=True)


def solve(problem: Problem, precision: Precision = "float64") -> Exact:
    """The exact answer to a problem.

    ``extended`` is the wider of what the machine offers, for float64 targets: 64 bits at least. ``longdouble`` and
    ``double-double`` force one of them.
    """
    lift, unit = number_system(precision)
    with np.errstate(all="ignore"):
        return attend(problem, lift(problem.q), lift(problem.k), lift(problem.v), unit)


def number_system(precision: Precision) -> tuple[Any, float]:
    """The constructor of an array in this precision, and its unit roundoff."""
    if precision == "extended":
        precision = "longdouble" if HAS_LONGDOUBLE else "double-double"
    if precision == "float64":
        return (lambda x: np.asarray(x, np.float64)), 2.0**-53
    if precision == "longdouble":
        return (lambda x: np.asarray(x, np.longdouble)), float(np.finfo(np.longdouble).eps) / 2
    if precision == "double-double":
        return DoubleDouble, 2.0**-98  # 2^-104 a step; exp adds a few bits
    raise ValueError(f"unknown precision {precision!r}: expected float64, extended, longdouble or double-double")


def attend(problem: Problem, q: Any, k: Any, v: Any, unit: float) -> Exact:
    """Attention of q, k, v, which are those of the problem in the number system of the computation."""
    H, S = problem.shape[1], problem.shape[3]
    group = H // k.shape[1] if k.shape[1] else 1
    if group > 1:
        k, v = k.repeat(group, 1), v.repeat(group, 1)  # (B, H, S, D), (B, H, S, Dv)
    finite_v = np.isfinite(nearest(v))
    poisoned = not finite_v.all()
    clean = where(finite_v, v, 0.0) if poisoned else v

    scores = (q @ k.swapaxes(-1, -2)) * problem.scale  # (B, H, L, S)
    logits = scores if problem.softcap is None else cap(scores, problem.softcap)
    if problem.bias is not None:
        logits = logits + problem.bias
    visible, empty = visibility(problem)
    if visible is not None:
        logits = where(visible, logits, -math.inf)
    averaged = empty is not None and problem.empty_rows == "mean"
    if empty is not None and averaged:
        logits = where(~empty[..., None], logits, 0.0)

    top = nearest(logits).max(-1, keepdims=True, initial=-math.inf)  # (B, H, L, 1)
    if empty is not None:
        top = np.where(empty[..., None], 0.0, top)
    terms = exp(logits - top)  # (B, H, L, S) between 0 and 1
    total = terms.sum(-1, keepdims=True)  # (B, H, L, 1)
    if empty is not None and not averaged:
        total = where(~empty[..., None], total, 1.0)
    weights = terms / total
    lse = (log(total) + top)[..., 0]  # (B, H, L)
    out = weights @ clean  # (B, H, L, Dv)

    if empty is not None:
        lse = where(~empty, lse, -math.inf)
        logits = where(~empty[..., None], logits, -math.inf)
        if problem.empty_rows == "nan" or (S == 0 and averaged):
            out, weights = where(~empty[..., None], out, math.nan), where(~empty[..., None], weights, math.nan)

    lse64, out64, weights64 = nearest(lse), nearest(out), nearest(weights)
    row_posed = posed_rows(problem, visible, empty, np.isfinite(nearest(k)), lse64)
    well_posed = np.broadcast_to(row_posed[..., None], out64.shape)
    if poisoned:
        visible_keys = np.ones(weights64.shape, bool) if visible is None else visible
        if empty is not None and averaged:
            visible_keys = visible_keys | empty[..., None]
        out64 = contaminate(out64, weights64, visible_keys, nearest(v))
        well_posed = well_posed & ~reached(visible_keys, ~finite_v)
    return Exact(
        problem=problem,
        unit=unit,
        out=out64,
        out_tail=tail(out, out64),
        weights=weights64,
        weights_tail=tail(weights, weights64),
        lse=lse64,
        lse_tail=tail(lse, lse64),
        scores=nearest(scores),
        logits=nearest(logits),
        visible=visible,
        empty=empty,
        top=top,
        k=nearest(k),
        v=nearest(clean),
        row_posed=row_posed,
        well_posed=well_posed,
    )


def cap(scores: Any, softcap: float) -> Any:
    """softcap tanh(scores / softcap), by tanh x = sign(x) (1 - e^-2|x|) / (1 + e^-2|x|) in any number system."""
    if not isinstance(scores, DoubleDouble):
        return np.tanh(scores / softcap) * softcap
    sign = np.where(scores.hi < 0, -1.0, 1.0)
    decay = exp(scores * sign * (-2.0 / 1.0) / softcap)
    return (decay - 1.0) / (decay + 1.0) * (-sign * softcap)


def visibility(problem: Problem) -> tuple[Array | None, Array | None]:
    """Which keys each row sees (B, H, L, S), and which rows see none (B, H, L); None where there is nothing to say."""
    shape = problem.shape
    visible = problem.visible
    if problem.bias is not None:
        hidden = np.isneginf(problem.bias)
        if hidden.any():
            visible = ~hidden if visible is None else visible & ~hidden
    if visible is None:
        return None, None if shape[-1] else np.ones(shape[:-1], bool)
    visible = np.broadcast_to(visible, shape)
    empty: Array = np.logical_not(visible.any(-1))
    return visible, empty if empty.any() else None


def posed_rows(problem: Problem, visible: Array | None, empty: Array | None, finite_k: Array, lse: Array) -> Array:
    """(B, H, L) bool: the query, the keys it sees and the log-sum-exp are finite, or it sees no key at all."""
    posed: Array = np.isfinite(lse)  # no nan and no +inf among the logits, and not all of them -inf
    if not finite_k.all() or not np.isfinite(problem.q).all():
        bad_key = np.expand_dims(~finite_k.all(-1), -2)  # (B, H, 1, S)
        sees_bad = (bad_key if visible is None else bad_key & visible).any(-1)  # (B, H, L)
        posed = posed & ~sees_bad & np.isfinite(problem.q).all(-1)
    return posed if empty is None else posed | empty


def reached(keys: Array, values: Array) -> Array:
    """(B, H, L, Dv) bool: does a row touch, among these keys (B, H, L, S), one of these values (B, H, S, Dv)?"""
    touched: Array = keys.astype(np.float64) @ values.astype(np.float64)
    return touched > 0


def contaminate(out: Array, weights: Array, visible: Array, v: Array) -> Array:
    """Let the NaN and infinities among the values reach, as IEEE arithmetic has it, the rows that see them."""
    weighty = visible & (weights > 0)
    up, down = reached(weighty, v == math.inf), reached(weighty, v == -math.inf)
    lost = reached(visible, np.isnan(v)) | reached(visible & ~weighty, np.isinf(v)) | (up & down)  # 0 * inf = nan
    out = np.where(up, math.inf, np.where(down, -math.inf, out))
    return np.where(lost, math.nan, out)


def nearest(x: Any) -> Array:
    """The float64 nearest to each number."""
    return np.asarray(x.hi if isinstance(x, DoubleDouble) else x, np.float64)


def tail(x: Any, value: Array) -> Array:
    """x - value in float64, where value = nearest(x); 0 where that is not finite."""
    if isinstance(x, DoubleDouble):
        return x.lo
    if x.dtype == np.float64:
        return np.zeros(value.shape)
    rest: Array = (x - value).astype(np.float64)
    return np.where(np.isfinite(rest), rest, 0.0)


def where(condition: Array, x: Any, other: float) -> Any:
    return x.where(condition, other) if isinstance(x, DoubleDouble) else np.where(condition, x, x.dtype.type(other))


def exp(x: Any) -> Any:
    return x.exp() if isinstance(x, DoubleDouble) else np.exp(x)


def log(x: Any) -> Any:
    return x.log() if isinstance(x, DoubleDouble) else np.log(x)


@dataclass(frozen=True, eq=False)
class LayerProblem:
    """One call of a multi-head layer, in numbers that the dtype under test represents exactly."""

    query: Array  # (B, L, E) float64
    key: Array  # (B, S, E)
    value: Array  # (B, S, E)
    weights: Mapping[str, Array | None]  # w_q w_k w_v w_o (E_out, E_in): y = x w^T + b; b_q b_k b_v b_o (E_out,) or None
    num_heads: int  # divides the projected width
    visible: Array | None = None  # as in Problem
    bias: Array | None = None  # as in Problem
    scale: float | None = None  # None: 1/sqrt(head dim)
    empty_rows: str = "zero"  # as in Problem
    appended: tuple[Array, Array] | None = (
        None  # keys and values (N, E) behind the projected ones of every sequence; columns of visible and bias, too
    )


@dataclass(frozen=True, eq=False)
class Projection:
    """A linear map y = x W^T + b, with what its bound needs."""

    x: Array  # (B, L, E_in)
    w: Array  # (E_out, E_in)
    b: Array | None  # (E_out,)
    y: Array  # (B, L, E_out)
    y_tail: Array


@dataclass(frozen=True, eq=False)
class LayerExact:
    """The exact answer of a multi-head layer."""

    out: Array  # (B, L, E)
    out_tail: Array
    weights: Array  # (B, H, L, S)
    attention: Exact  # of the projected q, k, v, rounded to float64 in its problem
    projections: Mapping[str, Projection]  # q, k, v, o
    well_posed: Array  # (B, L, E) bool

    def out_error(self, actual: Array) -> Array:
        """|actual - exact| (B, L, E); 0 where both are nan or the same infinity, inf where only one is."""
        return distance(actual, self.out, self.out_tail)


def solve_layer(problem: LayerProblem, precision: Precision = "float64") -> LayerExact:
    """The exact multi-head layer: project, attend per head, concatenate, project."""
    lift, unit = number_system(precision)
    w = problem.weights
    with np.errstate(all="ignore"):
        q, q_step = project(lift, lift(problem.query), problem.query, w["w_q"], w.get("b_q"))
        k, k_step = project(lift, lift(problem.key), problem.key, w["w_k"], w.get("b_k"))
        v, v_step = project(lift, lift(problem.value), problem.value, w["w_v"], w.get("b_v"))
        if problem.appended is not None:
            k, v = (append(lift, x, rows) for x, rows in zip((k, v), problem.appended, strict=True))  # (B, S + N, E)
        q, k, v = (split_heads(x, problem.num_heads) for x in (q, k, v))  # (B, H, L or S, D)
        width = q.shape[-1]
        inner = Problem(
            q=nearest(q),
            k=nearest(k),
            v=nearest(v),
            scale=(1 / math.sqrt(width) if width else 1.0) if problem.scale is None else problem.scale,
            visible=problem.visible,
            bias=problem.bias,
            empty_rows=problem.empty_rows,
        )
        exact = attend(inner, q, k, v, unit)
        high, low = (join_heads(x) for x in (exact.out, exact.out_tail))
        _, o_step = project(lift, lift(high) + lift(low), high, w["w_o"], w.get("b_o"))
        posed = np.broadcast_to(np.asarray(exact.well_posed.all((1, 3)))[..., None], o_step.y.shape)  # (B, L, E)
    steps = {"q": q_step, "k": k_step, "v": v_step, "o": o_step}
    return LayerExact(o_step.y, o_step.y_tail, exact.weights, exact, steps, posed)


def join_heads(x: Array) -> Array:
    """(B, H, L, D) -> (B, L, H * D)"""
    B, H, L, D = x.shape
    return x.swapaxes(1, 2).reshape(B, L, H * D)


def split_heads(x: Any, num_heads: int) -> Any:
    """(B, L, H * D) -> (B, H, L, D)"""
    B, L, width = x.shape
    if num_heads < 1 or width % num_heads:
        raise ValueError(f"{num_heads} heads do not divide a width of {width}")
    return x.reshape(B, L, num_heads, width // num_heads).swapaxes(1, 2)


def append(lift: Any, x: Any, rows: Array) -> Any:
    """x (B, S, E) in the number system of the computation, with the same rows (N, E) behind those of every sequence."""
    size, more = x.shape[1], len(rows)
    place = np.eye(size + more)  # 0 and 1: nothing is rounded
    return lift(place[:, :size]) @ x + lift(place[:, size:] @ rows)


def project(lift: Any, x: Any, x64: Array, w: Array | None, b: Array | None) -> tuple[Any, Projection]:
    """y = x W^T + b in the number system of the computation, and its record."""
    if w is None:
        raise ValueError("the projection matrices w_q, w_k, w_v, w_o must be given")
    y = x @ lift(w).swapaxes(-1, -2)
    if b is not None:
        y = y + b
    y64 = nearest(y)
    return y, Projection(x64, w, b, y64, tail(y, y64))
