"""A window that is always there: which keys a query sees, read off its weights."""

from __future__ import annotations

import numpy as np

from .question import Question
from .speech import Reading

LENGTH = 40  # wider windows are not found out: `window` in supports says them
LITTLE = 1e-9  # of all weight; the logits are of size one


def window_of(question: Question, reading: Reading) -> tuple[int, int] | None:
    """(keys before a query's own, keys behind it) that every query sees; None where it is no window.

    Windows look back alone, or as far ahead as back. Another one, such as that of a causal kernel that sees the next token, is a mistake.
    """
    band = band_of(question, reading)
    return band if band and 0 < band[0] < LENGTH - 1 and band[1] in (0, band[0]) else None


def band_of(question: Question, reading: Reading) -> tuple[int, int] | None:
    """(keys before a query's own, keys behind it) that every query sees, as far as there are so many; None where it is not the same for all."""
    visible = _visible(question, reading)
    if visible is None:
        return None
    at = np.arange(len(visible))
    distance = at[None, :] - at[:, None]
    left, right = (int(max((sign * distance)[visible].max(initial=0), 0)) for sign in (-1, 1))
    return (left, right) if np.array_equal(visible, (distance >= -left) & (distance <= right)) else None


def _visible(question: Question, reading: Reading) -> np.ndarray | None:
    """(queries, keys) bool: which keys have weight in any head; the values of a few keys at a time are one, each in a feature of its own."""
    inputs = question.inputs(queries=LENGTH, keys=LENGTH, **({} if question.target.supports.head_dims else {"dim": LENGTH}))
    length, width = inputs.v.shape[2:]
    weights = np.zeros((length, length))
    for first in range(0, length, width):
        some = np.arange(min(width, length - first))
        v = np.zeros(inputs.v.shape)
        v[:, :, first + some, some] = 1.0
        out = question.answer(reading, inputs.but(v=v))
        if out is None:
            return None
        weights[:, first + some] = np.abs(out).max(axis=(0, 1))[:, some]
    return weights > LITTLE
