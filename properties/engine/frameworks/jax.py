"""JAX on any of its devices, and its variants. No other module of the checker imports it.

Arrays cannot be changed, so what is written is a new one, and nothing that lies in memory otherwise than row by row can be made.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..cases.coordinates import Array
from .machine import numbers
from .numpy import NumpyFramework
from .protocol import Answered, Function, SendBack, Variant
from .variants import over_batch

PLATFORM = {"cuda": "gpu"}  # what JAX calls a device
SETTINGS = {
    "jax_enable_x64": "whether there is float64",
    "jax_default_matmul_precision": "the precision of products",
    "jax_numpy_dtype_promotion": "how dtypes are promoted",
    "jax_numpy_rank_promotion": "how ranks are promoted",
    "jax_disable_jit": "whether functions are compiled",
    "jax_debug_nans": "whether NaN raises",
    "jax_debug_infs": "whether infinity raises",
    "jax_default_device": "the default device",
    "jax_default_prng_impl": "the random number generator",
}


def jit(function: Function, **compiler: Any) -> Function:
    """Under ``jax.jit``; what is no array is static, so that flags and scales are constants of the program. ``compiler``: options of XLA."""
    compiled: dict[Any, Function] = {}

    def run(*args: Any, **options: Any) -> Any:
        leaves, form = jax.tree.flatten((args, options))
        traced = [isinstance(x, jax.Array) for x in leaves]
        fixed = [None if is_traced else x for x, is_traced in zip(leaves, traced, strict=True)]
        key = (form, *map(repr, fixed))
        if key not in compiled:

            def call(arrays: list[Any]) -> Any:
                several = iter(arrays)
                filled = [next(several) if is_traced else x for x, is_traced in zip(fixed, traced, strict=True)]
                again, named = jax.tree.unflatten(form, filled)
                return function(*again, **named)

            compiled[key] = jax.jit(call, compiler_options=compiler)
        return compiled[key]([x for x, is_traced in zip(leaves, traced, strict=True) if is_traced])

    return run


def vmap(function: Function) -> Function:
    """One batch element at a time, mapped over the batch by ``jax.vmap``."""
    return over_batch(function, lambda x: isinstance(x, jax.Array), lambda single, axes, options: jax.vmap(single, in_axes=axes))


class JaxFramework(NumpyFramework):
    """Arrays of JAX. Random numbers are the caller's, by keys: a call could draw only from those of NumPy.

    To have float64, the process must be set so before the first array is made: that is done here, unless JAX_ENABLE_X64 is set.
    """

    name = "jax"
    layouts = ("contiguous",)
    gradients = True
    costly_shapes = True  # every operation is compiled for each
    forks = False  # its threads hold locks
    late: tuple[str, ...] = ()
    shares: tuple[str, ...] = ("cpu",)
    rounds_sums = ""
    variants: Mapping[str, Variant] = {"jit": Variant(jit), "vmap": Variant(vmap, {"zero_sizes": False}, over_batch=True)}

    def __init__(self) -> None:
        if "JAX_ENABLE_X64" not in os.environ:
            jax.config.update("jax_enable_x64", True)
        self.dtypes = ("float64",) * jax.config.jax_enable_x64 + ("float32", "float16", "bfloat16")

    def quickly(self, function: Function) -> Function:
        """All operations of a call are compiled as one, with little optimisation, where they can be."""
        compiled = jit(function, xla_backend_optimization_level=0)
        refused: set[tuple[str, ...]] = set()  # types of arguments with which it cannot be compiled, as where it looks at a value

        def run(*args: Any, **options: Any) -> Any:
            types = tuple(str(getattr(x, "dtype", type(x))) for x in (*args, *options.values()))
            if types not in refused:
                with suppress(Exception):
                    return compiled(*args, **options)
            answer = function(*args, **options)
            refused.add(types)
            return answer

        return run

    def devices(self) -> tuple[str, ...]:
        others = {"gpu": "cuda"}.get(jax.default_backend(), jax.default_backend())
        return ("cpu",) if others == "cpu" else ("cpu", others)

    def named_dtype(self, dtype: str) -> Any:
        return jnp.dtype(dtype)

    def full(self, shape: tuple[int, ...], value: float, dtype: str, device: str) -> Any:
        kind, _, number = device.partition(":")
        return _made(np.full(shape, value, dtype=jnp.dtype(dtype)), jax.devices(PLATFORM.get(kind, kind))[int(number or 0)])

    def integers(self, carrier: Array, device: str) -> Any:
        return self.assign(self.full(carrier.shape, 0, "int64" if jax.config.jax_enable_x64 else "int32", device), carrier)

    def permute(self, array: Any, axes: tuple[int, ...]) -> Any:
        return _changed([array], lambda library, x: library.transpose(x[0], axes))

    def expand(self, array: Any, shape: tuple[int, ...]) -> Any:
        return _changed([array], lambda library, x: library.broadcast_to(x[0], shape))

    def stack(self, arrays: Sequence[Any]) -> Any:
        return _changed(arrays, lambda library, x: library.stack(x))

    def concatenate(self, arrays: Sequence[Any], axis: int) -> Any:
        return _changed(arrays, lambda library, x: library.concatenate(x, axis))

    def assign(self, array: Any, carrier: Array) -> Any:
        return _made(np.broadcast_to(carrier, array.shape).astype(array.dtype), array.sharding)

    def read(self, array: Any) -> Array:
        if self.lost(array):
            return np.full(array.shape, np.nan)
        return np.array(array).astype(bool if array.dtype == bool else np.float64)

    def is_array(self, value: Any) -> bool:
        return isinstance(value, jax.Array)

    def dropper(self, probability: float) -> Function | None:
        return None  # a generator is an argument there

    def describe(self, array: Any) -> tuple[tuple[int, ...], str, str]:
        platform = jax.default_backend() if self.asks(array) else next(iter(array.devices())).platform
        return tuple(array.shape), str(array.dtype), {"gpu": "cuda"}.get(platform, platform)

    def record(self, function: Function, leaves: Sequence[Any]) -> tuple[Any, SendBack | None]:
        out, pull = jax.vjp(function, *leaves)

        def send_back(grad_out: Any, again: bool = False) -> list[Any]:
            if isinstance(out, tuple):
                grad_out = tuple(jnp.zeros_like(x) if g is None else g for g, x in zip(grad_out, out, strict=True))
            return list(pull(grad_out))

        return out, send_back

    @contextmanager
    def settings_kept(self) -> Iterator[Callable[[], list[str]]]:
        before = {name: getattr(jax.config, name) for name in SETTINGS}

        def changed() -> list[str]:
            return [SETTINGS[name] for name, value in before.items() if getattr(jax.config, name) != value]

        with super().settings_kept() as numpy_changed:
            try:
                yield lambda: numpy_changed() + changed()
            finally:
                for name, value in before.items():
                    if getattr(jax.config, name) != value:
                        jax.config.update(name, value)

    def facts(self, device: str) -> dict[str, Any]:
        return {**super().facts(device), "jax": numbers(jax.__version__)}

    def shares_memory(self, a: Any, b: Any) -> bool:
        return False  # no array can be written

    def elsewhere(self, device: str = "cpu") -> Carried:
        return Carried()

    def over(self, memory: Any, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: str) -> Any:
        return _made(super().over(memory, offset, shape, strides, jnp.dtype(dtype)).copy(), jax.devices("cpu")[0])

    def lies(self, array: Any) -> tuple[int, tuple[int, ...]]:
        return super().lies(np.asarray(array))

    def pour(self, array: Any, memory: Any) -> None:
        super().pour(np.asarray(array), memory)

    def lost(self, array: Any) -> bool:
        return bool(array.is_deleted())  # donated by the call

    def plain(self, array: Any) -> Any:
        while isinstance(array, jax.core.Tracer):  # that a call for a gradient has left behind
            array = array.primal
        return array

    def unlike(self, array: Any) -> str:
        return ""

    def asks(self, array: Any) -> bool:
        return isinstance(array, jax.core.Tracer)

    def bridged(self, call: Callable[[Sequence[Any]], Answered], leaves: Sequence[Any]) -> list[Any]:
        """A function with a derivative of its own, which JAX calls with arrays as it calls it for a gradient."""
        sends_back: list[tuple[list[bool], SendBack | None]] = []

        def forward(*given: Any) -> tuple[tuple[Any, ...], None]:
            answers, carries, send_back = call(given)
            sends_back.append((carries, send_back))
            return tuple(answers), None

        def backward(_: None, pushed: Sequence[Any]) -> tuple[Any, ...]:
            ((carries, send_back),) = sends_back
            if send_back is None:
                return tuple(map(jnp.zeros_like, leaves))
            grads = send_back([g if has else None for g, has in zip(pushed, carries, strict=True)], True)
            return tuple(jnp.zeros_like(x) if g is None else g for g, x in zip(grads, leaves, strict=True))

        elsewhere = jax.custom_vjp(lambda *given: forward(*given)[0])
        elsewhere.defvjp(forward, backward)
        return list(elsewhere(*leaves))


class Carried(JaxFramework):
    """The same where the target is in another process: its arrays are made there, of NumPy's here, for which nothing is compiled."""

    def full(self, shape: tuple[int, ...], value: float, dtype: str, device: str) -> Any:
        return np.full(shape, value, dtype=jnp.dtype(dtype))

    def assign(self, array: Any, carrier: Array) -> Any:
        array[...] = carrier
        return array

    def is_array(self, value: Any) -> bool:
        return isinstance(value, np.ndarray | jax.Array)

    def describe(self, array: Any) -> tuple[tuple[int, ...], str, str]:
        return tuple(array.shape), str(array.dtype), "cpu"

    def over(self, memory: Any, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: str) -> Any:
        return np.ndarray(shape, jnp.dtype(dtype), memory, offset, strides)

    def refill(self, array: Any, memory: Any) -> None:
        if isinstance(array, np.ndarray):
            super().refill(array, memory)
        elif np.asarray(array).tobytes() != bytes(memory):
            array.delete()  # as the call has done with its own

    def lost(self, array: Any) -> bool:
        return isinstance(array, jax.Array) and super().lost(array)


def _made(carrier: Any, where: Any) -> Any:
    """An array of these numbers, which nobody else holds; no program is compiled for it, as for one that jax.numpy makes."""
    return jax.device_put(carrier, where)


def _changed(arrays: Sequence[Any], change: Callable[[Any, Sequence[Any]], Any]) -> Any:
    """What NumPy makes of the arrays, so that no program is compiled; JAX, where a gradient of it will be asked."""
    if any(isinstance(x, jax.core.Tracer) for x in arrays):
        return change(jnp, arrays)
    made = change(np, [np.asarray(x) for x in arrays])
    where = next((x.sharding for x in arrays if isinstance(x, jax.Array)), None)
    return made if where is None else _made(np.ascontiguousarray(made), where)


FRAMEWORK = JaxFramework
