"""Memory that two processes see: arrays made in it cross without a copy, in whatever layout they lie."""

from __future__ import annotations

import bisect
import fcntl
import mmap
import os
import weakref
from functools import partial
from typing import Any

import numpy as np

from ..frameworks.numpy import address_of

SIZE = 2**31  # of address space; pages come into being when they are written
ALIGNMENT = 64
SEALS = 0x0001 | 0x0002 | 0x0004  # F_SEAL_SEAL, SHRINK, GROW: nobody can take the memory away
ADD_SEALS = 1033  # F_ADD_SEALS


def shared_file(name: str) -> int:
    """A file in memory that keeps its size. Raises OSError."""
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, SIZE)
    except OSError as error:
        os.close(fd)
        raise OSError(error.errno, error.strerror, "memory shared with the target's process") from None
    fcntl.fcntl(fd, ADD_SEALS, SEALS)
    return fd


class Arena:
    """One such file, mapped. The judge's has chunks, which come back when no array lies in them any more."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.map = mmap.mmap(fd, SIZE)
        self.base = address_of(np.frombuffer(self.map, dtype=np.uint8))
        self._free: dict[int, list[int]] = {}  # size class → starts
        self._starts: list[int] = []  # of live chunks, sorted
        self._lengths: dict[int, int] = {}
        self._watched: dict[int, Any] = {}
        self._end = 0

    def piece(self, start: int, length: int) -> Any:
        """An array of bytes over some of it, which all views of them hold."""
        return np.frombuffer(self.map, np.uint8, length, start)

    def chunk(self, length: int) -> Any:
        """Bytes that nobody uses. Raises MemoryError."""
        size = max(ALIGNMENT, 1 << (length - 1).bit_length())
        free = self._free.setdefault(size, [])
        start = free.pop() if free else self._end
        if start == self._end:
            if start + size > SIZE:
                raise MemoryError(f"the arrays of a call take more than {SIZE:,} bytes")
            self._end += size
        made = self.piece(start, length)
        bisect.insort(self._starts, start)
        self._lengths[start] = length
        self._watched[start] = weakref.ref(made, partial(self._release, start, size))
        return made

    def _release(self, start: int, size: int, _: Any) -> None:
        self._starts.pop(bisect.bisect_left(self._starts, start))
        del self._lengths[start], self._watched[start]
        self._free[size].append(start)

    def place(self, address: int) -> tuple[int, int] | None:
        """(start, length) of the live chunk that an address lies in; None if it lies in none."""
        at = address - self.base
        index = bisect.bisect_right(self._starts, at) - 1
        if index < 0:
            return None
        start = self._starts[index]
        return (start, self._lengths[start]) if at < start + self._lengths[start] else None


def extent(offset: int, shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> tuple[int, int]:
    """The first byte of an array, and the one after its last."""
    reach = [stride * (size - 1) for size, stride in zip(shape, strides, strict=True)]
    return offset + sum(r for r in reach if r < 0), offset + sum(r for r in reach if r > 0) + itemsize
