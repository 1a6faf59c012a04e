"""Arguments of the forms that ``get_inputs`` of a reference gives, where nothing else is known of how it is called.

All numbers that are drawn for a sequence, for whatever argument, are those of one token: calls have tokens (sequences, 1, numbers).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..engine.cases.coordinates import Array
from ..engine.cases.dtypes import FLOAT_TYPES
from ..engine.frameworks import Framework

SAMPLES = 3  # calls of ``get_inputs``: what is not the same in all is drawn
INTEGERS = ("int64", "int32", "int16", "int8", "uint8")
MIXING = 1000 * (5**0.5 - 1) / 2  # numbers times this, less what is whole of it, are spread over 0 to 1


@dataclass(frozen=True, eq=False)
class Form:
    """An array among the arguments of a call."""

    name: str
    shape: tuple[int, ...]  # without the axis of sequences, if it has one
    dtype: str
    batched: bool  # its first axis is that of sequences
    least: int = 0  # of integers
    most: int = 0
    kept: Array | None = None  # what it always holds

    @property
    def size(self) -> int:
        """How many numbers of it are drawn for a sequence."""
        return 0 if self.kept is not None else int(np.prod(self.shape))

    @property
    def words(self) -> str:
        """For the report."""
        shape = f"({', '.join(map(str, ('batch', *self.shape) if self.batched else self.shape))})"
        if self.kept is not None:
            return f"{self.name} {shape}, always the same"
        return f"{self.name} {shape}" + f" of {self.least} to {self.most}" * (self.dtype not in FLOAT_TYPES)

    def numbers(self, drawn: Array) -> Array:
        """What it holds, of numbers (sequences, size)."""
        if self.kept is not None:
            return self.kept[np.arange(len(drawn)) % len(self.kept)] if self.batched else self.kept
        x = drawn.reshape(len(drawn), *self.shape) if self.batched else drawn[0].reshape(self.shape)
        if self.dtype in FLOAT_TYPES:
            return x
        return (self.least + np.floor(x * MIXING % 1 * (self.most - self.least + 1))).astype(self.dtype)


def forms_of(makes: Callable[[], Iterable[Any]], fw: Framework, batched: bool) -> tuple[list[Any], int]:
    """(what ``makes`` returns, a form for each array; the number of its sequences). Raises as it does.

    ``batched``: whether arrays that have as many rows as the first one have one for each sequence; else a call is about one. What is the same in
    every call, or is no number, is kept as it is, if anything else is drawn.
    """
    samples = []
    for seed in range(SAMPLES):
        with fw.chance(seed):
            samples.append(list(makes()))
    shapes = [fw.describe(x)[0] for x in all_within(samples[0], fw.is_array)]
    sequences = next((shape[0] for shape in shapes if shape), 1) if batched else 0
    made = [_form(list(same), sequences, fw, f"argument {at}", False) for at, same in enumerate(zip(*samples, strict=True), 1)]
    if not drawn_numbers(made):
        made = [_form(list(same), sequences, fw, f"argument {at}", True) for at, same in enumerate(zip(*samples, strict=True), 1)]
    return made, max(sequences, 1)


def changed_within(value: Any, change: Callable[[Any], Any], of: Callable[[Any], bool]) -> Any:
    """The same, where lists, tuples and dictionaries hold what ``change`` makes of all that is one ``of`` a kind."""
    if of(value):
        return change(value)
    if isinstance(value, dict):
        return {key: changed_within(one, change, of) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value)([changed_within(one, change, of) for one in value])
    return value


def all_within(value: Any, of: Callable[[Any], bool]) -> list[Any]:
    """All that is one ``of`` a kind in lists, tuples and dictionaries, in their order."""
    found: list[Any] = []
    changed_within(value, found.append, of)
    return found


def _form(samples: list[Any], sequences: int, fw: Framework, name: str, all_drawn: bool) -> Any:
    first = samples[0]
    if isinstance(first, dict):
        return {key: _form([each[key] for each in samples], sequences, fw, f"{name}, {key}", all_drawn) for key in first}
    if isinstance(first, list | tuple):
        return type(first)(
            [_form(list(each), sequences, fw, f"{name}, {at}", all_drawn) for at, each in enumerate(zip(*samples, strict=True), 1)]
        )
    if not fw.is_array(first) or (dtype := fw.describe(first)[1]) not in (*FLOAT_TYPES, *INTEGERS, "bool"):
        return first
    shape, held = fw.describe(first)[0], [fw.read(each) for each in samples]
    batched = bool(sequences) and shape[:1] == (sequences,)
    same = all(np.array_equal(held[0], each, equal_nan=True) for each in held)
    if (same and not (all_drawn and dtype != "bool")) or not all(np.isfinite(each).all() for each in held):
        return Form(name, shape[batched:], dtype, batched, kept=held[0] if dtype in FLOAT_TYPES else held[0].astype(dtype))
    least, most = (0, 0) if dtype in FLOAT_TYPES else (int(min(x.min() for x in held)), int(max(x.max() for x in held)))
    return Form(name, shape[batched:], dtype, batched, least, most)


def drawn_numbers(forms: Sequence[Any]) -> int:
    """How many numbers are drawn for a sequence."""
    return sum(form.size for form in all_forms(forms))


def all_forms(forms: Sequence[Any]) -> list[Form]:
    """Those of all arrays among arguments."""
    return all_within(list(forms), _is_form)


def _is_form(value: Any) -> bool:
    return isinstance(value, Form)


def filled(forms: Sequence[Any], x: Array, make: Callable[[Form, Array], Any]) -> list[Any]:
    """The arguments, each array of which ``make`` makes of its form and its numbers; ``x``: (sequences, 1, width)."""
    ends = iter(np.cumsum([form.size for form in all_forms(forms)]))

    def one(form: Form) -> Any:
        end = next(ends)
        return make(form, form.numbers(x[:, 0, end - form.size : end]))

    made: list[Any] = changed_within(list(forms), one, _is_form)
    return made
