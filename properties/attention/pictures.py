"""Pictures of what is wrong with an attention: its output and its weights beside the exact ones.

The attention matrix of a black box is its answer for V = I.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

import numpy as np

from ..engine.cases.coordinates import Array
from ..engine.core.finding import Finding
from ..engine.core.picture import Compared, Picture, pictured
from ..engine.core.target import CannotRun, Raised, Target
from ..engine.core.trial import Refuted
from .case import Case
from .trial import Run, Trial

MOST_KEYS = 256  # V = I holds keys² numbers for each head


def pictures(target: Target, finding: Finding, like: Sequence[Case]) -> tuple[Picture, ...]:
    """Those of the smallest case, and of others like it, on which something is wrong. The target is called."""
    if finding.violation.raised:
        return ()
    return tuple(picture for case in dict.fromkeys((finding.case, *like)) for picture in of_case(Trial(target, case)))


def of_case(trial: Trial) -> Iterator[Picture]:
    """The output and the weights of one case, where they are outside their bounds."""
    with suppress(Raised, Refuted, CannotRun), np.errstate(all="ignore"):
        run = trial.run()
        yield from _wrong("output", trial, compared([run]), "feature")
        if 1 < trial.case.keys <= MOST_KEYS:
            yield from _wrong("attention weights", trial, weights(trial), "key")


def weights(trial: Trial) -> Compared:
    """The attention matrix (B, H, L, S) of the target beside the exact one."""
    read = trial.weights()
    values, keys = compared(read.parts), read.out.shape[-1]
    return Compared(*(x[..., :keys] for x in (values.actual, values.expected, values.allowed, values.wrong)))


def compared(runs: Sequence[Run]) -> Compared:
    """The answers of some calls, side by side along the features, with the exact ones."""

    def joined(parts: list[Array]) -> Array:
        return np.concatenate(parts, axis=-1)

    out, exact, allowed = (joined(parts) for parts in ([r.out for r in runs], [r.exact.out for r in runs], [r.bound for r in runs]))
    return Compared(out, exact.astype(np.float64), allowed, joined([r.exact.out_error(r.out) > r.bound for r in runs]))


def _wrong(title: str, trial: Trial, values: Compared, column: str) -> Iterator[Picture]:
    if values.wrong.any() and (made := pictured(title, f"the {title} on {trial.case!r}", values, "query", column)):
        yield made
