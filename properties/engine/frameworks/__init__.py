"""Arrays of the target's framework, made from carriers and read back, in every memory layout.

A framework is a few functions; NumPy and PyTorch are here. Nothing else in the checker knows of either.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, Protocol

import numpy as np

from ..cases.coordinates import Array
from .machine import capped, kernel_flags, numbers

LAYOUTS = ("contiguous", "transposed", "padded", "strided", "every_other_row", "feature_major", "offset", "mixed", "expanded")


class Framework(Protocol):
    """What the checker asks of an array library."""

    name: str
    dtypes: tuple[str, ...]

    def devices(self) -> tuple[str, ...]:
        """The devices that exist here."""

    def full(self, shape: tuple[int, ...], value: float, dtype: str, device: str) -> Any:
        """A new contiguous array."""

    def permute(self, array: Any, axes: tuple[int, ...]) -> Any:
        """A view with its axes in another order."""

    def expand(self, array: Any, shape: tuple[int, ...]) -> Any:
        """A view that repeats axes of size 1, without copying."""

    def assign(self, array: Any, carrier: Array) -> None:
        """Write the carrier's numbers into the array, in place."""

    def read(self, array: Any) -> Array:
        """A fresh carrier with the array's numbers (float64, or bool)."""

    def is_array(self, value: Any) -> bool:
        """Whether the value is an array of this framework."""

    def describe(self, array: Any) -> tuple[tuple[int, ...], str, str]:
        """Shape, name of the dtype, kind of device."""

    def chance(self, seed: int) -> AbstractContextManager[Any]:
        """While it is open, random numbers start from the seed; afterwards they go on as before."""

    def drawn(self) -> float:
        """The next random number."""

    def settings_kept(self) -> AbstractContextManager[Callable[[], list[str]]]:
        """While it is open, tells which settings of the process have changed since it was opened; afterwards they are as before."""

    def shares_memory(self, a: Any, b: Any) -> bool:
        """Whether two arrays may overlap."""

    def facts(self, device: str) -> dict[str, Any]:
        """What it knows of the machine and of itself: some of the facts of ``machine.FACTS``."""


class NumpyFramework:
    """NumPy; it has no bfloat16."""

    name = "numpy"
    dtypes: tuple[str, ...] = ("float64", "float32", "float16")

    def devices(self) -> tuple[str, ...]:
        return ("cpu",)

    def full(self, shape: tuple[int, ...], value: float, dtype: str, device: str) -> Any:
        return np.full(shape, value, dtype=dtype)

    def permute(self, array: Any, axes: tuple[int, ...]) -> Any:
        return np.transpose(array, axes)

    def expand(self, array: Any, shape: tuple[int, ...]) -> Any:
        return np.broadcast_to(array, shape)

    def assign(self, array: Any, carrier: Array) -> None:
        array[...] = carrier

    def read(self, array: Any) -> Array:
        return np.array(array, dtype=bool if array.dtype == bool else np.float64)

    def is_array(self, value: Any) -> bool:
        return isinstance(value, np.ndarray)

    def describe(self, array: Any) -> tuple[tuple[int, ...], str, str]:
        return tuple(array.shape), str(array.dtype), "cpu"

    @contextmanager
    def chance(self, seed: int) -> Iterator[None]:
        before = np.random.get_state()
        np.random.seed(seed % 2**32)
        try:
            yield
        finally:
            np.random.set_state(before)

    def drawn(self) -> float:
        return float(np.random.random())

    @contextmanager
    def settings_kept(self) -> Iterator[Callable[[], list[str]]]:
        with np.errstate():  # the only setting that changes what is computed
            before = dict(np.geterr())
            yield lambda: [f"what happens on {name}" for name, how in dict(np.geterr()).items() if how != before[name]]

    def shares_memory(self, a: Any, b: Any) -> bool:
        return bool(np.may_share_memory(a, b))

    def facts(self, device: str) -> dict[str, Any]:
        return {"numpy": numbers(np.__version__)}


class TorchFramework:
    """PyTorch on any of its devices."""

    name = "torch"
    dtypes: tuple[str, ...] = ("float64", "float32", "float16", "bfloat16")

    def __init__(self) -> None:
        import torch

        self.torch = torch

    def devices(self) -> tuple[str, ...]:
        return ("cpu", "cuda") if self.torch.cuda.is_available() else ("cpu",)

    def full(self, shape: tuple[int, ...], value: float, dtype: str, device: str) -> Any:
        return self.torch.full(shape, value, dtype=getattr(self.torch, dtype), device=device)

    def permute(self, array: Any, axes: tuple[int, ...]) -> Any:
        return array.permute(axes)

    def expand(self, array: Any, shape: tuple[int, ...]) -> Any:
        return array.expand(shape)

    def assign(self, array: Any, carrier: Array) -> None:
        array.copy_(self.torch.from_numpy(np.array(carrier)))  # a copy: from_numpy wants a writable array

    def read(self, array: Any) -> Array:
        array = array.detach()
        wide = array.dtype if array.dtype == self.torch.bool else self.torch.float64
        return np.array(array.to(device="cpu", dtype=wide).numpy())

    def is_array(self, value: Any) -> bool:
        return isinstance(value, self.torch.Tensor)

    def describe(self, array: Any) -> tuple[tuple[int, ...], str, str]:
        return tuple(array.shape), str(array.dtype).removeprefix("torch."), str(array.device.type)

    @contextmanager
    def chance(self, seed: int) -> Iterator[None]:
        with self.torch.random.fork_rng():
            self.torch.default_generator.manual_seed(seed)  # torch.manual_seed puts off what is for CUDA, with a trace of the stack each time
            if self.torch.cuda.is_available():
                self.torch.cuda.manual_seed_all(seed)
            yield

    def drawn(self) -> float:
        return float(self.torch.rand(()))

    @contextmanager
    def settings_kept(self) -> Iterator[Callable[[], list[str]]]:
        torch = self.torch
        settings: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
            "the default dtype": (torch.get_default_dtype, torch.set_default_dtype),
            "whether gradients are recorded": (torch.is_grad_enabled, torch.set_grad_enabled),
            "whether algorithms are deterministic": (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
            "the precision of float32 products": (self._product_precision, torch.set_float32_matmul_precision),
        }
        before = {name: get() for name, (get, _) in settings.items()}

        def changed() -> list[str]:
            return [name for name, (get, _) in settings.items() if get() != before[name]]

        try:
            yield changed
        finally:
            for name in changed():
                settings[name][1](before[name])

    def _product_precision(self) -> str:
        try:
            return str(self.torch.get_float32_matmul_precision())
        except RuntimeError:  # set in another way, for one device, in torch 2.9 and later
            return "highest"

    def shares_memory(self, a: Any, b: Any) -> bool:
        if a.numel() == 0 or b.numel() == 0:
            return False
        return bool(a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr())

    def facts(self, device: str) -> dict[str, Any]:
        torch = self.torch
        gpu, capability = "", ()
        if device.startswith("cuda"):
            with suppress(AssertionError, RuntimeError):  # where there is none
                gpu, capability = torch.cuda.get_device_name(device), torch.cuda.get_device_capability(device)
        mkldnn = torch.backends.mkldnn
        built = re.search(r"(?:MKL-DNN|oneDNN) v([\d.]+)", torch.__config__.show())
        used = mkldnn.is_available() and getattr(mkldnn, "enabled", True)
        tells = getattr(torch.cpu, "get_capabilities", None)  # which older versions have not
        names = kernel_flags() if tells is None else [name for name, has in tells().items() if has is True]
        return {
            "instructions": capped(names, os.environ),
            "aten": torch.backends.cpu.get_cpu_capability(),
            "onednn": numbers(built[1]) if built and used else (),
            "gpu": gpu,
            "capability": capability,
            "cuda": numbers(torch.version.cuda or ""),
            "threads": torch.get_num_threads(),
            "numpy": numbers(np.__version__),
            "torch": numbers(torch.__version__),
            "torch_build": str(torch.__version__),
        }


FRAMEWORKS = {"numpy": NumpyFramework, "torch": TorchFramework}


def framework(name: str) -> Framework:
    """The framework of that name. Raises ValueError if it is unknown, ImportError if it is not installed."""
    if name not in FRAMEWORKS:
        raise ValueError(f"unknown framework {name!r}; known: {', '.join(FRAMEWORKS)}")
    made: Framework = FRAMEWORKS[name]()
    return made


def likely_frameworks(function: Any) -> tuple[str, ...]:
    """The frameworks to try for a callable that does not say: by the modules its own module has imported."""
    names = getattr(sys.modules.get(getattr(function, "__module__", "") or ""), "__dict__", {})
    if "torch" in names or "torch" in str(getattr(function, "__module__", "")):
        return ("torch", "numpy")
    return ("numpy", "torch")


class Buffers:
    """The arrays of one case, kept so that a changed call writes into the same memory as the first.

    Kernels choose code by shape and alignment: only calls on the same buffers may be compared bit for bit.
    """

    def __init__(self, fw: Framework) -> None:
        self.framework = fw
        self._kept: dict[tuple[Any, ...], tuple[Any, Any]] = {}

    def array(self, name: str, carrier: Array, dtype: str, device: str, layout: str) -> Any:
        """An array of the framework that holds the carrier's numbers in the given layout."""
        layout = layout if carrier.ndim >= 2 else "contiguous"
        if carrier.dtype != np.float64:
            dtype = str(carrier.dtype)
        key = (name, carrier.shape, dtype, device, layout)
        if key not in self._kept:
            self._kept[key] = _lay_out(self.framework, carrier.shape, dtype, device, layout)
        view, written = self._kept[key]
        self.framework.assign(written, carrier[:1] if layout == "expanded" and carrier.shape[0] else carrier)
        return view

    def arrays(self) -> list[tuple[str, Any]]:
        """The arrays themselves, by name."""
        return [(key[0], view) for key, (view, _) in self._kept.items()]

    def contents(self) -> list[tuple[str, Array]]:
        """What the arrays hold now, by name."""
        return [(key[0], self.framework.read(view)) for key, (view, _) in self._kept.items()]


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
