"""How far a module may be off by rounding: propagated through its own operations.

**The model.** A module f is a chain of operations z = op(…), each of which the type under test rounds: ẑ = z + ρ, |ρ_i| ≤ e_i, with

    e = u |z|                            +, −, ×, ÷, √ (correctly rounded: IEEE 754)
    e = 4 u |z|                          exp, tanh, sin, … (libraries promise two units in the last place, which is 4 u)
    e² = u² z² + u_a² (n/3 z² + (n/6 + 1) Σ t²)           sums of n terms t, added up in the type or, for half types, in float32 (u_a)
    e = (4 u + √(n/3) u_a) |z|, from operands off by u_a   softmax, norms: several of these in one operation
    and beside it e² = u_a² (x² + mean²) rstd² w²          layer norm, which kernels compute as x · rstd − mean · rstd (of two features z is ±1,
                                                           whatever they are, and its error that of a difference)

**Sums.** Each addition rounds a partial sum s_j: the error is Σ_j ρ_j s_j with |ρ_j| ≤ u_a. If no order of the terms is likelier than another, s_j is
the sum of j of n terms drawn without replacement (Cochran 1977, section 2): E s_j² = (j/n)² z² + j (n − j)/(n (n − 1)) (Σ t² − z²/n), and so
Σ_j E s_j² ≤ (n/3 + 1) z² + n/6 Σ t²; each product that is rounded before it is added, another Σ t². This is Higham and Mary's √n u (*A New Approach
to Probabilistic Rounding Error Analysis*, 2019) with its constant; kernels that add up in blocks, or fuse products, stay below.

**To first order** the answer is off by r = Σ_i J_i ρ_i, over all roundings i, with J_i the derivative of the answer. If the ρ_i are independent,
of mean zero, |ρ_i| ≤ e_i, then by Hoeffding's inequality

    P(|r| > t S) ≤ 2 exp(−t²/2),    S² = Σ_i J_i² e_i²

**S is measured, not derived** (Monte Carlo arithmetic: Parker 1997; Verificarlo; CADNA): a copy of the module in float64 is run with every
result moved by ±e_i, each sign drawn by itself: such an answer is off by a sum of mean zero and variance S² exactly (to first order). Roundings
need not be independent: a constant that is rounded once enters every product with the same sign. So some runs draw one sign for a whole
result. K runs estimate S² element by element, and, as one row comes of the same operations, from all features of a row; the
larger of both counts.

    allowed = t √max(mean_k (f_k − f)², the same over the row)

t = 7.5 is 2 exp(−t²/2) = 10⁻¹². Nothing is chosen for a module, a size or a type. Where the answer is not a number, so must be that of the type.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np

from ..engine.cases.coordinates import Array
from ..engine.cases.dtypes import FLOAT_TYPES
from ..engine.core.pace import is_late
from ..engine.core.target import NotTaken
from ..engine.frameworks import Buffers
from .speech import Speech, Tokens, call, hooks, read, under
from .subject import Subject, as_type, duplicate

SAMPLES = (True, True, True, True, False, False)  # whether signs are drawn element by element
T = 7.5  # 2 exp(−T²/2) = 10⁻¹²
UNITS = {name: 2.0**-kind.precision for name, kind in FLOAT_TYPES.items()}


def twin(subject: Subject, module: Any) -> Any:
    """A copy in float64, with the very weights of the module."""
    return as_type(duplicate(module), subject.framework, "float64")


def spread(
    subject: Subject,
    module: Any,
    speech: Speech,
    tokens: Tokens,
    dtype: str,
    device: str,
    seed: int,
    runs: int = len(SAMPLES),
    anew: Callable[[], Any] | None = None,
    narrows: bool = False,
) -> tuple[Array, Array]:
    """(the answer of the module in float64, how far that in ``dtype`` may be from it), both (B, L, D').

    ``anew`` makes the module: where a call leaves something in it that the next one does not compute again, as a table of angles, each has its own.
    ``narrows``: what it casts to a type that is narrower than ``dtype`` is of that one, and its operations round as that does; else of float64.
    Of fewer runs than ``SAMPLES`` has, a part of what is allowed: what is within it is within the whole.
    """

    def run(double: Any, mode: tuple[Any, ...]) -> list[Array]:
        with hooks(subject.framework).still():
            return [_run(subject, double, speech, tokens, device, mode)]

    return scattered(subject, module, run, dtype, seed, runs, anew, narrows)[0]


def scattered(
    subject: Subject,
    module: Any,
    run: Callable[[Any, tuple[Any, ...]], list[Array]],
    dtype: str,
    seed: int,
    runs: int = len(SAMPLES),
    anew: Callable[[], Any] | None = None,
    narrows: bool = False,
) -> list[tuple[Array, Array]]:
    """The same of all that ``run`` finds, given the module in float64 and a mode of ``Modules``, or nothing, for each array.

    Raises NotTaken where the time for the case is over.
    """
    wide = dtype != "float64"
    units = {**UNITS, "float64": UNITS[dtype]}
    anew = anew if subject.facts.keeps else None
    module = anew() if anew else module
    double = twin(subject, module) if wide else module
    plain = run(double, ("widened", dtype, narrows) if wide else ())
    squares = [np.zeros_like(x) for x in plain]
    for number, elementwise in enumerate(SAMPLES[:runs]):
        if is_late():
            raise NotTaken("a call whose rounding takes longer to follow than there is time")
        mode = ("perturbed", seed + number, units, elementwise, dtype if wide else "", narrows)
        if anew:
            double = twin(subject, anew()) if wide else anew()
        with np.errstate(all="ignore"):
            for sum_, moved, x in zip(squares, run(double, mode), plain, strict=True):
                sum_ += (moved - x) ** 2
    return [(x, _allowed(x, sum_ / len(SAMPLES))) for x, sum_ in zip(plain, squares, strict=True)]


def _allowed(plain: Array, squares: Array) -> Array:
    with np.errstate(invalid="ignore"):
        row = squares.mean(-1, keepdims=True)
        allowed = T * np.sqrt(np.maximum(squares, row))
    return np.where(np.isfinite(plain), np.where(np.isfinite(allowed), allowed, np.inf), 0.0)


def scatters(answer: Array, allowed: Array) -> bool:
    """Whether the standard deviation of a row, where every operation is rounded, is larger than all of its answers.

    No attention in float64 comes near, not with bfloat16 inside; a module that answers at random while its roundings are followed does.
    What cancels altogether scatters by less than bfloat16 rounds numbers of order one.
    """
    with np.errstate(invalid="ignore"):
        size = np.maximum(np.abs(answer).max(-1, initial=0.0), UNITS["bfloat16"])
        return bool((allowed.max(-1, initial=0.0) > T * size).any())


def _run(subject: Subject, module: Any, speech: Speech, tokens: Tokens, device: str, mode: tuple[Any, ...]) -> Array:
    fw = subject.framework
    opened = under(module, fw, *mode) if mode else nullcontext()
    with np.errstate(all="ignore"), fw.chance(0), opened:
        return read(call(module, speech, tokens, fw, Buffers(fw), "float64", device), speech, fw)
