"""PyTorch on a device that has memory of its own, such as a GPU."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch

from .torch import TorchFramework, TorchModules


class OnDevice(TorchFramework):
    """All arrays and modules are on one device.

    Memory that another process sees is copied there, each piece to a place of its own that it keeps: what lies next to an array, what
    two arrays share, and where one begins are as they are there.
    """

    def __init__(self, device: str) -> None:
        self.where = torch.device(device)
        self.device = self.where.type
        self.modules = ModulesOnDevice(device)
        self.pieces: dict[int, tuple[Any, Any]] = {}  # address of a piece of memory → (the piece, its copy)
        self.copied: dict[int, int] = {}  # address of a copy → that of what it is a copy of

    def on(self, device: str) -> TorchFramework:
        return self

    def usable(self) -> bool:
        try:
            torch.full((1,), 0.0, device=self.where).item()
        except RuntimeError:
            return False
        return True

    def full(self, shape: tuple[int, ...], value: float, dtype: str, device: str) -> Any:
        return super().full(shape, value, dtype, str(self.where))

    @contextmanager
    def chance(self, seed: int) -> Iterator[None]:
        before = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
        with super().chance(seed):
            torch.cuda.manual_seed_all(seed)
            try:
                yield
            finally:
                with suppress(RuntimeError):  # after an error that ends all work there
                    torch.cuda.set_rng_state_all(before)

    def over(self, memory: Any, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: str) -> Any:
        kind, address = getattr(torch, dtype), ctypes.addressof(memory)
        known = self.pieces.get(address)
        if known is None or len(known[0]) != len(memory):
            if known is not None:
                del self.copied[known[1].data_ptr()]
            self.pieces[address] = known = memory, torch.empty(len(memory), dtype=torch.uint8, device=self.where)
            self.copied[known[1].data_ptr()] = address
        known[1].data.copy_(_bytes(memory))  # data: what a graph still needs of it does not count as changed
        flat = known[1].data[: len(memory) // kind.itemsize * kind.itemsize].view(kind)
        return flat.as_strided(shape, tuple(step // kind.itemsize for step in strides), offset // kind.itemsize)

    def lies(self, array: Any) -> tuple[int, tuple[int, ...]]:
        """Where the memory is of which it is a copy."""
        address, strides = super().lies(array)
        piece = self._piece(array)
        return (address if piece is None else piece + address - self.pieces[piece][1].data_ptr()), strides

    def put_back(self, array: Any, memory: Any, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: str) -> None:
        _bytes(memory).copy_(self.pieces[ctypes.addressof(memory)][1])

    def refresh(self, arrays: Iterable[Any]) -> None:
        for memory, copy in self._pieces(arrays):
            copy.data.copy_(_bytes(memory))

    def show(self, arrays: Iterable[Any]) -> None:
        for memory, copy in self._pieces(arrays):
            _bytes(memory).copy_(copy)

    def _pieces(self, arrays: Iterable[Any]) -> list[tuple[Any, Any]]:
        return [self.pieces[piece] for piece in {self._piece(array) for array in arrays} if piece is not None]

    def _piece(self, array: Any) -> int | None:
        """The address of the piece in whose copy an array lies."""
        return self.copied.get(array.untyped_storage().data_ptr())


class Distant(TorchFramework):
    """The same in a process whose target is in another one: arrays lie in memory that both see, and are said to be on the device."""

    def __init__(self, device: str) -> None:
        self.device = torch.device(device).type

    def full(self, shape: tuple[int, ...], value: float, dtype: str, device: str) -> Any:
        return super().full(shape, value, dtype, "cpu")

    def describe(self, array: Any) -> tuple[tuple[int, ...], str, str]:
        shape, dtype, _ = super().describe(array)
        return shape, dtype, self.device


class ModulesOnDevice(TorchModules):
    """``torch.nn.Module``, on one device."""

    def __init__(self, device: str) -> None:
        self.where = device

    def cast(self, module: Any, dtype: Any, device: str = "cpu") -> Any:
        return super().cast(module, dtype, self.where)


def _bytes(memory: Any) -> Any:
    return torch.frombuffer(memory, dtype=torch.uint8)
