"""What is always there, read off weights: a window, by which keys a query sees; ALiBi, by how they fall with the distance."""

from __future__ import annotations

import numpy as np

from .question import Question, exactly
from .speech import Reading

LENGTH = 40  # wider windows are not found out: `window` in supports says them
LITTLE = 1e-9  # of all weight; the logits are of size one
SMALL = 1e-4  # of a logit that is read off a weight


def window_of(question: Question, reading: Reading) -> tuple[int, int] | None:
    """(keys before a query's own, keys behind it) that every query sees; None where it is no window.

    Windows look back alone, or as far ahead as back. Another one, such as that of a causal kernel that sees the next token, is a mistake.
    """
    band = band_of(question, reading)
    return band if band and 0 < band[0] < LENGTH - 1 and band[1] in (0, band[0]) else None


def band_of(question: Question, reading: Reading) -> tuple[int, int] | None:
    """(keys before a query's own, keys behind it) that every query sees, as far as there are so many; None where it is not the same for all."""
    seen = visible(question, reading)
    return None if seen is None else _band(seen)


def _band(seen: np.ndarray) -> tuple[int, int] | None:
    at = np.arange(len(seen))
    distance = at[None, :] - at[:, None]
    left, right = (int(max((sign * distance)[seen].max(initial=0), 0)) for sign in (-1, 1))
    return (left, right) if np.array_equal(seen, (distance >= -left) & (distance <= right)) else None


def pattern_of(question: Question, reading: Reading) -> np.ndarray | None:
    """(queries, keys) bool, where each query sees its own key and others that no causality and no window explains, weighed as by a softmax."""
    weights = _weights(question, reading)
    if weights is None or not np.isfinite(weights).all():
        return None
    seen = weights.max(axis=(0, 1)) > LITTLE
    inputs = question.inputs(queries=LENGTH, keys=LENGTH, **_dim(question))
    right = exactly(inputs.but(mask=seen), "top-left").weights
    return None if _band(seen) or not seen.diagonal().all() or np.abs(weights - right).max() > question.near else seen


def slopes_of(question: Question, reading: Reading) -> tuple[float, ...]:
    """How much less the logits of each head are for every token that a key is away, where q is 0; none where that is not all, or is the same."""
    weights = _weights(question, reading, of_zeros=True)
    if weights is None or not np.isfinite(weights).all():
        return ()
    at = np.arange(weights.shape[-1])
    away, behind = np.abs(at[None, :] - at[:, None]), at[None, :] <= at[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        logits = np.log(weights[0])
        fallen = np.diagonal(logits, axis1=-2, axis2=-1)[..., None] - logits
        slopes = fallen[:, 1, 0]
        seen = behind & (weights[0] > LITTLE)
        falls = bool((np.abs(fallen - slopes[:, None, None] * away) < SMALL)[seen].all()) and bool(seen[:, 1, 0].all())
    if not falls or not np.isfinite(slopes).all() or slopes.min() < SMALL or np.ptp(slopes) < SMALL:  # one for all heads is another mistake
        return ()
    return tuple(map(float, slopes))


def usual_slopes(heads: int) -> tuple[float, ...]:
    """ALiBi's: 2^(−8/n), and its powers, for the n heads of the largest power of two; every other one of twice as many for the rest.

    (Press et al., 2022, and their code.)
    """
    n = 2 ** int(np.log2(max(heads, 1)))
    first = [2.0 ** (-8 * (h + 1) / n) for h in range(n)]
    return tuple(first + [2.0 ** (-4 * (h + 1) / n) for h in range(0, 2 * n, 2)])[:heads]


def visible(question: Question, reading: Reading, is_causal: bool = False) -> np.ndarray | None:
    """(queries, keys) bool, as many of both: which keys have weight in any head; None where it does not answer."""
    weights = _weights(question, reading, is_causal=is_causal)
    return None if weights is None else weights.max(axis=(0, 1)) > LITTLE


def _weights(question: Question, reading: Reading, of_zeros: bool = False, is_causal: bool = False) -> np.ndarray | None:
    """(batch, heads, queries, keys): the values of a few keys at a time are one, each in a feature of its own; ``of_zeros``: where q is 0."""
    inputs = question.inputs(queries=LENGTH, keys=LENGTH, is_causal=is_causal, **_dim(question))
    length, width = inputs.v.shape[2:]
    weights = np.zeros((*inputs.q.shape[:2], length, length))
    for first in range(0, length, width):
        some = np.arange(min(width, length - first))
        v = np.zeros(inputs.v.shape)
        v[:, :, first + some, some] = 1.0
        out = question.answer(reading, inputs.but(v=v, **({"q": np.zeros_like(inputs.q)} if of_zeros else {})))
        if out is None:
            return None
        weights[..., first + some] = np.abs(out)[..., some]
    return weights


def _dim(question: Question) -> dict[str, int]:
    return {} if question.target.supports.head_dims else {"dim": LENGTH}
