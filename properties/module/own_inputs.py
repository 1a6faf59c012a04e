"""What ``get_inputs`` of a reference gives, and how much of it is worth a call whose rounding is followed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..engine.frameworks import Framework
from .forms import all_forms, all_within, changed_within
from .speech import Speech

AT_ONCE, LARGEST = 2**27, 2**25  # numbers of all sequences that are called at a time, and of one, whose rounding is followed
IN_A_CALL = 24  # numbers for each one that is given: projections, their sums, what becomes of both


@dataclass(frozen=True)
class OwnInputs:
    """The inputs, of as many tokens as are worth a call. Where arrays have not all as many sequences along their first axis, they are one."""

    inputs: list[Any]
    batch: int  # sequences
    count: int  # of these are worth a call at a time
    each: int  # about how many numbers a call with one of them has
    fewer: str  # than it gives, in words; empty if they are all

    def sequences(self, some: slice, fw: Framework) -> list[Any]:
        """The same of some of the sequences."""

        def taken(x: Any) -> Any:
            return x[some] if fw.describe(x)[0][:1] == (self.batch,) else x

        made: list[Any] = changed_within(self.inputs, taken, fw.is_array)
        return made


def own_inputs(makes: Callable[[], Iterable[Any]], speech: Speech, fw: Framework, seed: int = 0) -> OwnInputs:
    """What a call of ``get_inputs`` gives. Raises as it does."""
    with fw.chance(seed):
        inputs = list(makes())
    batch, tokens, each = _weighed(inputs, speech, fw)
    kept = tokens
    if speech.layout == "bld" and all(len(fw.describe(x)[0]) == 3 for x in inputs if fw.is_array(x)):
        while each > LARGEST and kept > 1:
            kept = fewer_tokens(kept)
            shorter = [x[:, : -(-fw.describe(x)[0][1] * kept // tokens)] if fw.is_array(x) else x for x in inputs]
            each = _weighed(shorter, speech, fw)[2]
        inputs = inputs if kept == tokens else shorter
    count = max(min(batch, AT_ONCE // max(each, 1)), 1)
    fewer = [
        f"{few:,} of its {all_:,} {words}" for few, all_, words in ((count, batch, "sequences"), (kept, tokens, "tokens")) if few < all_
    ]
    return OwnInputs(inputs, batch, count, each, ", ".join(fewer))


def fewer_tokens(length: int) -> int:
    """About nine of ten, an odd number: no whole number of tiles."""
    return (length * 9 // 10 - 1) | 1 if length > 2 else 1


def _weighed(inputs: list[Any], speech: Speech, fw: Framework) -> tuple[int, int, int]:
    """(sequences, tokens of the longest, about how many numbers a call with one has)."""
    shapes = [fw.describe(x)[0] for x in all_within(inputs, fw.is_array)]
    alike = len({shape[:1] for shape in shapes}) == 1 and bool(shapes[0])
    alike = alike and (not speech.forms or any(form.batched for form in all_forms(speech.forms)))
    batch, shapes = shapes[0][0] if alike else 1, [shape[alike:] for shape in shapes]
    tokens = max((int(np.prod(shape[1:])) if len(shape) > 2 else shape[0] if shape else 1 for shape in shapes), default=1)
    return batch, tokens, speech.heads * tokens**2 + IN_A_CALL * sum(int(np.prod(shape)) for shape in shapes)
