"""Arithmetics: which number formats an attention may use where.

An :class:`Arithmetic` holds facts about a computation, never tolerances: the unit roundoffs of the types in which
scores, weights, accumulators and results live. :mod:`bound` derives the tolerance of every output element from these
facts and the numbers of the case.

Unit roundoff u = half the distance from 1 to the next number: 2^-53 (float64), 2^-24 (float32), 2^-11 (TF32, float16),
2^-8 (bfloat16).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache


@dataclass(frozen=True)
class Format:
    """A floating-point storage format, rounding to nearest."""

    u: float  # unit roundoff
    normal: float  # least positive normal number
    largest: float  # largest finite number

    @property
    def eta(self) -> float:
        """Half the least subnormal number: what rounding loses at most next to zero."""
        return self.u * self.normal


FORMATS: dict[str, Format] = {
    "float64": Format(2.0**-53, 2.0**-1022, (2 - 2.0**-52) * 2.0**1023),
    "float32": Format(2.0**-24, 2.0**-126, (2 - 2.0**-23) * 2.0**127),
    "float16": Format(2.0**-11, 2.0**-14, 65504.0),
    "bfloat16": Format(2.0**-8, 2.0**-126, (2 - 2.0**-7) * 2.0**127),
}


@dataclass(frozen=True)
class Arithmetic:
    """What is rounded to what, in an attention and in the linear maps around it."""

    name: str  # kind, with "+lse" where merges are allowed
    dtype: str  # type of inputs and results
    u_out: float  # unit roundoff of stored results
    eta_out: float  # what storing a result may lose next to zero
    max_out: float  # largest finite result
    u_acc: float  # unit roundoff of accumulators, maxima, sums, divisions
    tiny: float  # what one operation of the accumulator may lose next to zero: its least normal number if it flushes
    max_acc: float  # largest finite accumulator
    u_s: float  # unit roundoff of the type in which scores are stored, scaled and biased
    eta_s: float  # what storing a score may lose next to zero
    max_s: float  # largest finite score
    u_p: float = 0.0  # rounding of the weights before they meet the values; 0: they stay in the accumulator's type
    eta_p: float = 0.0  # what storing a weight may lose next to zero
    u_mul: float = 0.0  # rounding of both operands of every matrix product (TF32); 0: they enter as they are
    eps_exp: float = 0.0  # relative error of exp on a score (rescale factors and merges always cost 8 u_acc)
    n_pre: int = 2  # roundings of queries and keys before their product, in u_s (both times sqrt(scale): 2)
    n_post: int = 2  # roundings of the product before the bias, in u_s (store, times scale: 2)
    block: int = 16  # fewest keys between two rescales of an online softmax
    shift: bool = False  # exp2(fma(s, log2 e, -fl(m log2 e))): the shift is rounded apart from the score
    stored: bool = False  # every step of a softmax by hand, too, is stored in u_s: differences, exponentials, their sum
    lse_norm: int = 0  # successive merges by exp(lse_i - lse), never renormalised, that a weight may pass through

    def __str__(self) -> str:
        return f"{self.name} ({self.dtype})"


def _plain(name: str, dtype: str, inner: str) -> Arithmetic:
    """Everything in the type ``inner``, results stored in ``dtype``."""
    out, acc = FORMATS[dtype], FORMATS[inner]
    return Arithmetic(
        name=name,
        dtype=dtype,
        u_out=out.u,
        # AVX512_BF16 converts float32 to bfloat16 with subnormals flushed to zero, whatever the control register says.
        eta_out=out.normal if dtype == "bfloat16" else out.eta,
        max_out=out.largest,
        u_acc=acc.u,
        # float16 is computed with gradual underflow everywhere; float32 and bfloat16 units may flush to zero.
        tiny=2 * acc.eta if inner == "float16" else acc.normal,
        max_acc=acc.largest,
        u_s=acc.u,
        eta_s=acc.eta,
        max_s=acc.largest,
        # Four units in the last place: measured 1.06 u (torch), 3.44 u (NumPy's SVML), 5.8 u (torch's exp_u20).
        eps_exp=8 * acc.u,
    )


WIDER = {"float16": "float32", "bfloat16": "float32", "float32": "float64", "float64": "float64"}
HALVES = ("float16", "bfloat16")


@cache
def arithmetic(kind: str, dtype: str) -> Arithmetic:
    """The arithmetic of a family of kernels for inputs and results of type ``dtype``.

    =========  ==========================================================================================
    ``wide``   everything in the next wider type, only the result is rounded (torch's math SDPA in halves)
    ``same``   everything in ``dtype`` itself, accumulators too (halves: the all-half kernel)
    ``fused``  halves: float32 scores and accumulators, weights rounded to ``dtype`` (FlashAttention);
               float32 and float64: ``same``, with the shift of the softmax rounded apart
    ``eager``  halves: scores, weights and results stored in ``dtype``, float32 accumulators;
               float32 and float64: ``same``
    ``stored`` halves: as ``eager``, with the softmax by hand: every tensor is stored in ``dtype``, and a sum is
               accumulated wider inside its one operation, then rounded once; with ``+lse`` the logarithms of
               weights may be what is stored (``log_softmax``); float32 and float64: ``same``
    ``tf32``   float32, operands of matrix products rounded to 11 bits (float32 only)
    =========  ==========================================================================================

    ``"same+lse"`` and so on: the result may besides be merged from parts through their log-sum-exp (split-KV). A ring
    of n parts merges n - 1 times in succession: ``dataclasses.replace(a, lse_norm=n - 1)``.

    Raises ``ValueError`` for an unknown kind or dtype.
    """
    if dtype not in FORMATS:
        raise ValueError(f"unknown dtype {dtype!r}: expected one of {', '.join(FORMATS)}")
    base, _, suffix = kind.partition("+")
    half = dtype in HALVES
    if suffix not in ("", "lse"):
        raise ValueError(f"unknown suffix {suffix!r} in {kind!r}: only '+lse' is defined")
    if suffix:
        return replace(arithmetic(base, dtype), name=kind, lse_norm=1)
    if base == "wide":
        # A shift rounded apart costs float32 nothing that a half could show; in float32 it stays in float64.
        return replace(_plain(kind, dtype, WIDER[dtype]), shift=dtype != "float64")
    if base == "same" or (base in ("eager", "stored") and not half):
        return _plain(kind, dtype, dtype)
    if base == "fused" and not half:
        return replace(_plain(kind, dtype, dtype), shift=True)
    if base == "stored":
        return replace(arithmetic("eager", dtype), name=kind, stored=True)
    if base in ("fused", "eager"):
        own = FORMATS[dtype]
        # Half kernels on CPU use the cubic exponential fexp_u20 (pytorch PR 151441): error below 2^-13.
        kernel = replace(_plain(kind, dtype, "float32"), u_p=own.u, eta_p=own.eta, eps_exp=2.0**-13, shift=True)
        return replace(kernel, u_s=own.u, eta_s=own.eta, max_s=own.largest) if base == "eager" else kernel
    if base == "tf32":
        if dtype != "float32":
            raise ValueError(f"tf32 is an arithmetic of float32, not of {dtype}")
        return replace(_plain(kind, dtype, dtype), u_mul=2.0**-11)
    raise ValueError(f"unknown arithmetic {kind!r}: expected one of wide, same, fused, eager, stored, tf32, or one with '+lse'")


def kinds(dtype: str) -> tuple[str, ...]:
    """The kinds that differ for this dtype, from tight to loose: the first that fits is the arithmetic of a kernel."""
    if dtype in HALVES:
        return ("wide", "fused", "fused+lse", "eager", "eager+lse", "stored", "stored+lse", "same")
    if dtype == "float32":
        return ("wide", "same", "fused", "same+lse", "fused+lse", "tf32")
    if dtype == "float64":
        return ("same", "fused", "same+lse", "fused+lse")
    raise ValueError(f"unknown dtype {dtype!r}: expected one of {', '.join(FORMATS)}")


KINDS: dict[str, tuple[str, ...]] = {dtype: kinds(dtype) for dtype in FORMATS}


def default_arithmetic(dtype: str) -> Arithmetic:
    """The loosest that people write: ``stored+lse`` for halves, a softmax by hand or keys in parts, ``same+lse`` for the others."""
    return arithmetic("stored+lse" if dtype in HALVES else "same+lse", dtype)
