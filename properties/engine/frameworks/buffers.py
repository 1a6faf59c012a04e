"""The arrays of one case, in every memory layout."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..cases.coordinates import Array
from .protocol import Framework

QKV = ("q", "k", "v")


class Buffers:
    """The arrays of one case, kept so that a changed call writes into the same memory as the first.

    Kernels choose code by shape and alignment: only calls on the same buffers may be compared bit for bit. A framework whose
    arrays cannot be changed gets a new one of the same form.
    """

    def __init__(self, fw: Framework) -> None:
        self.framework = fw
        self._memory: dict[tuple[Any, ...], tuple[Any, Any]] = {}

    def array(self, name: str, carrier: Array, dtype: str, device: str, layout: str) -> Any:
        """An array of the framework that holds the carrier's numbers in the given layout."""
        layout = layout if carrier.ndim >= 2 and layout in self.framework.layouts else "contiguous"
        if carrier.dtype != np.float64:
            dtype = str(carrier.dtype)
        key = (name, carrier.shape, dtype, device, layout)
        if key not in self._memory:
            self._memory[key] = _lay_out(self.framework, carrier.shape, dtype, device, layout)
        view, written = self._memory[key]
        new = self.framework.assign(written, carrier[:1] if layout == "expanded" and carrier.shape[0] else carrier)
        if new is not written:
            view = new
            self._memory[key] = (new, new)
        return view

    def arrays(self) -> list[tuple[str, Any]]:
        """The arrays themselves, by name."""
        return [(key[0], view) for key, (view, _) in self._memory.items()]

    def contents(self) -> list[tuple[str, Array]]:
        """What the arrays hold now, by name."""
        return [(key[0], self.framework.read(view)) for key, (view, _) in self._memory.items()]


class Lying(Buffers):
    """Arrays that all lie in one layout, whatever is asked for."""

    def __init__(self, fw: Framework, layout: str) -> None:
        super().__init__(fw)
        self.layout = layout

    def array(self, name: str, carrier: Array, dtype: str, device: str, layout: str) -> Any:
        """An array in that layout."""
        return super().array(name, carrier, dtype, device, self.layout)


class Given(Buffers):
    """Arrays that are there already stand for those of their names, whatever is to be held; the others are as ever."""

    def __init__(self, fw: Framework, given: Mapping[str, Any]) -> None:
        super().__init__(fw)
        self.given = given

    def array(self, name: str, carrier: Array, dtype: str, device: str, layout: str) -> Any:
        """The array that was given under the name, if one was."""
        return self.given[name] if name in self.given else super().array(name, carrier, dtype, device, layout)


class Together(Buffers):
    """Queries, keys and values lie in one piece of memory, of so many numbers, one behind the other."""

    def __init__(self, fw: Framework, numbers: int) -> None:
        super().__init__(fw)
        self.numbers = numbers
        self.piece: Any = None
        self.ends: dict[str, int] = {}  # where each of them ends in it

    def array(self, name: str, carrier: Array, dtype: str, device: str, layout: str) -> Any:
        """An array in that piece, row by row."""
        if name not in QKV or not carrier.size:
            return super().array(name, carrier, dtype, device, layout)
        if self.piece is None:
            self.piece = self.framework.full((self.numbers,), np.nan, dtype, device)
        end = self.ends.setdefault(name, max(self.ends.values(), default=0) + carrier.size)
        return self.framework.assign(self.piece[end - carrier.size : end].reshape(carrier.shape), carrier)


class One(Buffers):
    """Queries, keys and values, which are alike, are one and the same array."""

    def array(self, name: str, carrier: Array, dtype: str, device: str, layout: str) -> Any:
        """That array, or one of its own."""
        return super().array(QKV[0] if name in QKV else name, carrier, dtype, device, layout)


def _lay_out(fw: Framework, shape: tuple[int, ...], dtype: str, device: str, layout: str) -> tuple[Any, Any]:
    """(view that is passed, view that is written). What lies around the view is NaN: reading it shows."""
    poison = np.nan if "float" in dtype else 1.0
    if len(shape) < 2:
        view = fw.full(shape, poison, dtype, device)
        return view, view
    *lead, rows, columns = shape
    last_two_swapped = (*range(len(lead)), len(lead) + 1, len(lead))
    if layout == "transposed" and len(shape) == 4:  # memory (B, L, H, D), seen as (B, H, L, D)
        base = fw.full((shape[0], shape[2], shape[1], shape[3]), poison, dtype, device)
        view = fw.permute(base, (0, 2, 1, 3))
    elif layout == "feature_major":  # the last axis is not the fastest
        base = fw.full((*lead, columns, rows), poison, dtype, device)
        view = fw.permute(base, last_two_swapped)
    elif layout == "padded":  # rows inside longer rows, from the second row and column on
        base = fw.full((*lead, rows + 2, columns + 3), poison, dtype, device)
        view = base[..., 1 : rows + 1, 1 : columns + 1]
    elif layout == "strided":  # every other element
        base = fw.full((*lead, rows, 2 * columns), poison, dtype, device)
        view = base[..., ::2]
    elif layout == "every_other_row":
        base = fw.full((*lead, 2 * rows, columns), poison, dtype, device)
        view = base[..., ::2, :]
    elif layout == "offset":  # the data begin at the second element of the storage
        base = fw.full((int(np.prod(shape)) + 1,), poison, dtype, device)
        view = base[1:].reshape(shape)
    elif layout == "expanded" and shape[0]:  # stride 0 along the first axis
        base = fw.full((1, *shape[1:]), poison, dtype, device)
        return fw.expand(base, shape), base
    else:
        view = fw.full(shape, poison, dtype, device)
    return view, view
