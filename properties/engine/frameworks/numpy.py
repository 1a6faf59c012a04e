"""NumPy; it has no bfloat16."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any

import numpy as np

from ..cases.coordinates import Array
from .machine import numbers
from .protocol import LAYOUTS, Answered, Function, Modules, SendBack, Variant, with_operations_of_its_own

NAMES = {np.dtype(name): name for name in ("float64", "float32", "float16", "int64", "bool")}  # str of a dtype is slow


class NumpyFramework:
    """Arrays of NumPy."""

    name = "numpy"
    dtypes: tuple[str, ...] = ("float64", "float32", "float16")
    layouts: tuple[str, ...] = LAYOUTS
    gradients = False
    costly_shapes = False
    forks = True
    late: tuple[str, ...] = ()
    shares: tuple[str, ...] = ("cpu",)
    device = "cpu"
    rounds_sums = "NumPy's einsum"
    variants: Mapping[str, Variant] = {}
    ways: Mapping[str, str] = {}
    modules: Modules | None = None

    def quickly(self, function: Function) -> Function:
        return function

    def devices(self) -> tuple[str, ...]:
        return ("cpu",)

    def named_dtype(self, dtype: str) -> Any:
        return np.dtype(dtype)

    def full(self, shape: tuple[int, ...], value: float, dtype: str, device: str) -> Any:
        return np.full(shape, value, dtype=dtype)

    def integers(self, carrier: Array, device: str) -> Any:
        return np.array(carrier, dtype=np.int64)

    def permute(self, array: Any, axes: tuple[int, ...]) -> Any:
        return np.transpose(array, axes)

    def expand(self, array: Any, shape: tuple[int, ...]) -> Any:
        return np.broadcast_to(array, shape)

    def stack(self, arrays: Sequence[Any]) -> Any:
        return np.stack(arrays)

    def concatenate(self, arrays: Sequence[Any], axis: int) -> Any:
        return np.concatenate(arrays, axis)

    def assign(self, array: Any, carrier: Array) -> Any:
        array[...] = carrier
        return array

    def read(self, array: Any) -> Array:
        return np.array(array, dtype=bool if array.dtype == bool else np.float64)

    def is_array(self, value: Any) -> bool:
        return isinstance(value, np.ndarray)

    def describe(self, array: Any) -> tuple[tuple[int, ...], str, str]:
        dtype = array.dtype
        return tuple(array.shape), NAMES.get(dtype) or str(dtype), "cpu"

    def record(self, function: Function, leaves: Sequence[Any]) -> tuple[Any, SendBack | None]:
        return function(*leaves), None

    @contextmanager
    def chance(self, seed: int) -> Iterator[None]:
        before = np.random.get_state()
        np.random.seed(seed % 2**32)
        try:
            yield
        finally:
            np.random.set_state(before)

    def dropper(self, probability: float) -> Function | None:
        def drop(x: Any) -> Any:
            kept = np.random.random(np.shape(x)) >= probability
            return (np.where(kept, x, 0) / (1 - probability)).astype(x.dtype)

        return drop

    def drawn(self) -> float:
        return float(np.random.random())

    @contextmanager
    def settings_kept(self) -> Iterator[Callable[[], list[str]]]:
        # the only setting that changes what is computed; nobody hears of it, but it is not the one to which a call may set it for good
        with np.errstate(all="call", call=lambda kind, flag: None):
            before = dict(np.geterr())
            yield lambda: [f"what happens on {name}" for name, how in dict(np.geterr()).items() if how != before[name]]

    def faulty(self, dtype: str, device: str) -> str:
        return ""

    def avoiding(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def told(self, way: str) -> AbstractContextManager[Any]:
        return nullcontext()

    def way(self) -> str:
        return ""

    def facts(self, device: str) -> dict[str, Any]:
        return {"numpy": numbers(np.__version__)}

    def shares_memory(self, a: Any, b: Any) -> bool:
        return bool(np.may_share_memory(a, b))

    def on(self, device: str) -> NumpyFramework:
        return self

    def usable(self) -> bool:
        return True

    def elsewhere(self, device: str = "cpu") -> NumpyFramework:
        return self

    def over(self, memory: Any, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: str) -> Any:
        return np.ndarray(shape, np.dtype(dtype), memory, offset, strides)

    def lies(self, array: Any) -> tuple[int, tuple[int, ...]]:
        return address_of(array), tuple(array.strides)

    def pour(self, array: Any, memory: Any) -> None:
        np.ndarray(array.shape, array.dtype, memory)[...] = array

    def refill(self, array: Any, memory: Any) -> None:
        copy = np.ndarray(array.shape, array.dtype, memory)
        if not ((array == copy) | ((array != array) & (copy != copy))).all():
            with suppress(ValueError):  # what cannot be written into was not written into by a caller either
                array[...] = copy

    def put_back(self, array: Any, memory: Any, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: str) -> None:
        pass  # it is that memory

    def refresh(self, arrays: Iterable[Any]) -> None:
        pass

    def show(self, arrays: Iterable[Any]) -> None:
        pass

    def lost(self, array: Any) -> bool:
        return False

    def plain(self, array: Any) -> Any:
        return np.ndarray.view(array, np.ndarray)

    def unlike(self, array: Any) -> str:
        return "" if type(array) in (np.ndarray, np.memmap) else with_operations_of_its_own(array, np.ndarray)

    def asks(self, array: Any) -> bool:
        return False

    def bridged(self, call: Callable[[Sequence[Any]], Answered], leaves: Sequence[Any]) -> list[Any]:
        return call(leaves)[0]


def address_of(array: Any) -> int:
    """Where the first element of an array of NumPy lies."""
    address: int = array.__array_interface__["data"][0]
    return address


FRAMEWORK = NumpyFramework
