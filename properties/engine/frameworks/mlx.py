"""MLX on the CPU. No other module of the checker imports it.

Arrays are computed when they are looked at, and lie row by row here. There is no tape: a gradient is asked of the function, as in JAX; what
its arrays are made of is not seen, so that while one is asked every array of numbers counts as asked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import mlx.core as mx
import numpy as np

from ..cases.coordinates import Array
from .machine import numbers
from .numpy import NumpyFramework
from .protocol import Answered, Function, SendBack, Variant

KINDS = {name: getattr(mx, name) for name in ("float64", "float32", "float16", "bfloat16", "int64", "int32", "uint16")} | {"bool": mx.bool_}
ASKED: list[Any] = []  # while gradients are asked, True; then what the last recorded function has answered


def compiled(function: Function) -> Function:
    """Under ``mx.compile``; what is no array is a constant of the program."""
    programs: dict[Any, Function] = {}

    def run(*args: Any, **options: Any) -> Any:
        named = {name: x for name, x in options.items() if isinstance(x, mx.array)}
        rest = {name: x for name, x in options.items() if name not in named}
        key = (len(args), *sorted(named), *map(repr, sorted(rest.items())))
        if key not in programs:
            programs[key] = mx.compile(lambda given, more: function(*given, **more, **rest))
        return programs[key](list(args), named)

    return run


class MlxFramework(NumpyFramework):
    """Arrays of MLX."""

    name = "mlx"
    layouts = ("contiguous",)
    gradients = True
    forks = False  # it has threads
    late: tuple[str, ...] = ()
    shares: tuple[str, ...] = ("cpu",)
    rounds_sums = "MLX's softmax"  # unless it is asked to be precise
    variants: Mapping[str, Variant] = {"compile": Variant(compiled)}

    def __init__(self) -> None:
        mx.set_default_device(mx.cpu)  # float64 is there alone
        off = abs(mx.exp(mx.array(-3.3, dtype=mx.float64)).item() / math.exp(-3.3) - 1)  # 2e-7 in MLX 0.32: it is that of float32
        self.dtypes = ("float64",) * (off < 1e-14) + ("float32", "float16") + ("bfloat16",) * bool(find_spec("ml_dtypes"))

    def named_dtype(self, dtype: str) -> Any:
        return KINDS[dtype]

    def full(self, shape: tuple[int, ...], value: float, dtype: str, device: str) -> Any:
        return made(np.full(shape, value)).astype(KINDS[dtype])

    def integers(self, carrier: Array, device: str) -> Any:
        return mx.array(np.asarray(carrier, dtype=np.int64))

    def permute(self, array: Any, axes: tuple[int, ...]) -> Any:
        return mx.transpose(array, axes)

    def expand(self, array: Any, shape: tuple[int, ...]) -> Any:
        return mx.broadcast_to(array, shape)

    def stack(self, arrays: Sequence[Any]) -> Any:
        return mx.stack(list(arrays))

    def concatenate(self, arrays: Sequence[Any], axis: int) -> Any:
        return mx.concatenate(list(arrays), axis=axis)

    def assign(self, array: Any, carrier: Array) -> Any:
        whole = np.array(np.broadcast_to(carrier, array.shape))
        exact = mx.array(whole) if whole.dtype == bool else mx.array(whole.astype(np.float64), dtype=mx.float64)
        return exact.astype(array.dtype)

    def read(self, array: Any) -> Array:
        return np.array(_visible(array)) if array.dtype == mx.bool_ else np.array(array.astype(mx.float64))

    def is_array(self, value: Any) -> bool:
        return isinstance(value, mx.array)

    def dropper(self, probability: float) -> Function | None:
        return lambda x: mx.where(mx.random.uniform(shape=x.shape) >= probability, x / (1 - probability), 0).astype(x.dtype)

    def drawn(self) -> float:
        return float(mx.random.uniform().item())

    @contextmanager
    def chance(self, seed: int) -> Iterator[None]:
        before = _state()
        mx.random.seed(seed)
        try:
            with super().chance(seed):
                yield
        finally:
            mx.random.seed(before)

    def describe(self, array: Any) -> tuple[tuple[int, ...], str, str]:
        return tuple(array.shape), str(array.dtype).rpartition(".")[2].rstrip("_"), "cpu"

    def record(self, function: Function, leaves: Sequence[Any]) -> tuple[Any, SendBack | None]:
        answered: list[Any] = []
        leaves = list(map(made, leaves))
        before = _state()

        def several(*given: Any) -> list[Any]:
            ASKED[:] = [True]
            try:
                answered[:] = [function(*given)]
            finally:
                ASKED.clear()
            return list(answered[0]) if isinstance(answered[0], tuple) else answered[:]

        whole = several(*leaves)
        (out,) = answered

        def send_back(grad_out: Any, again: bool = False) -> list[Any]:
            wanted = grad_out if isinstance(out, tuple) else [grad_out]
            pushed = [mx.zeros_like(x) if g is None else made(g) for g, x in zip(wanted, whole, strict=True)]
            now = _state()
            mx.random.seed(before)  # the function is called once more, and draws what it drew
            try:
                return list(mx.vjp(several, leaves, pushed)[1])
            finally:
                mx.random.seed(now)

        ASKED[:] = whole
        return out, send_back

    def facts(self, device: str) -> dict[str, Any]:
        return {**super().facts(device), "mlx": numbers(mx.__version__)}

    def shares_memory(self, a: Any, b: Any) -> bool:
        return a is b

    def elsewhere(self, device: str = "cpu") -> Carried:
        return Carried()

    def over(self, memory: Any, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: str) -> Any:
        return made(np.ndarray(shape, _carrier(dtype), memory, offset, strides).copy(), dtype)

    def lies(self, array: Any) -> tuple[int, tuple[int, ...]]:
        return super().lies(_visible(array))

    def pour(self, array: Any, memory: Any) -> None:
        super().pour(_visible(array), memory)

    def refill(self, array: Any, memory: Any) -> None:
        shape, dtype, _ = self.describe(array)
        now = _visible(array)
        if now.tobytes() != bytes(memory[: now.nbytes]):
            array[...] = self.over(memory, 0, shape, now.strides, dtype)

    def put_back(self, array: Any, memory: Any, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: str) -> None:
        np.ndarray(shape, _carrier(dtype), memory, offset, strides)[...] = _visible(array).reshape(shape)

    def plain(self, array: Any) -> Any:
        return array

    def unlike(self, array: Any) -> str:
        return ""

    def asks(self, array: Any) -> bool:
        if ASKED and ASKED[0] is True:
            return bool(mx.issubdtype(array.dtype, mx.floating))
        return any(array is one for one in ASKED)

    def bridged(self, call: Callable[[Sequence[Any]], Answered], leaves: Sequence[Any]) -> list[Any]:
        """A function with a derivative of its own, which MLX calls with arrays as it calls it for a gradient."""
        sends_back: list[tuple[list[bool], SendBack | None]] = []

        def forward(*given: Any) -> list[Any]:
            answers, carries, send_back = call(given)
            sends_back[:] = [(carries, send_back)]
            return list(map(made, answers))

        def backward(given: Any, pushed: Any, answers: Any) -> list[Any]:
            given, pushed = ([x] if isinstance(x, mx.array) else list(x) for x in (given, pushed))  # one comes alone
            ((carries, send_back),) = sends_back
            if send_back is None:
                return [mx.zeros_like(x) for x in given]
            grads = send_back([g if has else None for g, has in zip(pushed, carries, strict=True)], True)
            return [mx.zeros_like(x) if g is None else made(g) for g, x in zip(grads, given, strict=True)]

        elsewhere = mx.custom_function(forward)
        elsewhere.vjp(backward)
        return list(elsewhere(*leaves))


class Carried(MlxFramework):
    """The same where the target is in another process: its arrays are made there, of NumPy's here, but where a gradient is asked."""

    def full(self, shape: tuple[int, ...], value: float, dtype: str, device: str) -> Any:
        return np.full(shape, value, dtype=_numpy(dtype))

    def integers(self, carrier: Array, device: str) -> Any:
        return np.array(carrier, dtype=np.int64)

    def permute(self, array: Any, axes: tuple[int, ...]) -> Any:
        return np.transpose(array, axes) if isinstance(array, np.ndarray) else super().permute(array, axes)

    def expand(self, array: Any, shape: tuple[int, ...]) -> Any:
        return np.broadcast_to(array, shape) if isinstance(array, np.ndarray) else super().expand(array, shape)

    def stack(self, arrays: Sequence[Any]) -> Any:
        return np.stack(arrays) if _all_here(arrays) else super().stack(list(map(made, arrays)))

    def concatenate(self, arrays: Sequence[Any], axis: int) -> Any:
        return np.concatenate(arrays, axis) if _all_here(arrays) else super().concatenate(list(map(made, arrays)), axis)

    def assign(self, array: Any, carrier: Array) -> Any:
        if not isinstance(array, np.ndarray):
            return super().assign(array, carrier)
        array[...] = carrier
        return array

    def read(self, array: Any) -> Array:
        if not isinstance(array, np.ndarray):
            return super().read(array)
        return np.array(array, dtype=bool if array.dtype == bool else np.float64)

    def is_array(self, value: Any) -> bool:
        return isinstance(value, np.ndarray | mx.array)

    def describe(self, array: Any) -> tuple[tuple[int, ...], str, str]:
        return (tuple(array.shape), str(array.dtype), "cpu") if isinstance(array, np.ndarray) else super().describe(array)

    def over(self, memory: Any, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: str) -> Any:
        return np.ndarray(shape, _numpy(dtype), memory, offset, strides)

    def lies(self, array: Any) -> tuple[int, tuple[int, ...]]:
        return NumpyFramework.lies(self, array if isinstance(array, np.ndarray) else _visible(array))

    def refill(self, array: Any, memory: Any) -> None:
        if isinstance(array, np.ndarray):
            NumpyFramework.refill(self, array, memory)

    def asks(self, array: Any) -> bool:
        return not isinstance(array, np.ndarray) and super().asks(array)


def made(array: Any, dtype: str = "") -> Any:
    """An array of MLX with the numbers of one of NumPy, which may be the bits of another type; itself if it is one."""
    if not isinstance(array, np.ndarray):
        return array
    dtype = dtype or str(array.dtype)
    whole = np.asarray(array, order="C")
    if dtype == "bfloat16":
        return mx.array(whole.view(np.uint16)).view(mx.bfloat16)
    return mx.array(whole, dtype=KINDS[dtype])


def _state() -> int:
    """The seed from which random numbers go on as they would now: the two words of the key."""
    high, low = np.array(mx.random.state[0]).tolist()
    return int(high) << 32 | int(low)


def _all_here(arrays: Sequence[Any]) -> bool:
    return all(isinstance(x, np.ndarray) for x in arrays)


def _numpy(dtype: str) -> Any:
    """The type of NumPy; that of bfloat16 is in another package."""
    if dtype != "bfloat16":
        return np.dtype(dtype)
    import ml_dtypes

    return np.dtype(ml_dtypes.bfloat16)


def _carrier(dtype: str) -> str:
    """The type of NumPy in which an array of this one is held, bit for bit."""
    return "uint16" if dtype == "bfloat16" else dtype


def _visible(array: Any) -> Any:
    """The array as one of NumPy, row by row, bit for bit."""
    if isinstance(array, np.ndarray):
        return np.asarray(array, order="C")
    return np.array(array.view(mx.uint16) if array.dtype == mx.bfloat16 else array, order="C")


FRAMEWORK = MlxFramework
