"""PyTorch on any of its devices, and its variants. No other module of the checker imports it."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import torch

from ..cases.coordinates import Array
from .machine import capped, kernel_flags, numbers
from .protocol import LAYOUTS, Function, SendBack, Variant
from .variants import over_batch


def each(value: Any, change: Callable[[Any], Any]) -> Any:
    """The value with ``change`` applied to every tensor in it."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, dict):
        return {name: each(item, change) for name, item in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(each(item, change) for item in value)
    return value


def no_grad(function: Function) -> Function:
    """Under ``torch.no_grad()``."""
    return torch.no_grad()(lambda *args, **options: function(*args, **options))


def inference_mode(function: Function) -> Function:
    """Under ``torch.inference_mode()``."""
    return torch.inference_mode()(lambda *args, **options: function(*args, **options))


def requires_grad(function: Function) -> Function:
    """With floating-point arguments that require gradients: dispatchers choose other kernels then."""

    def recorded(*args: Any, **options: Any) -> Any:
        def leaf(x: Any) -> Any:
            return x.detach().requires_grad_() if x.is_floating_point() else x

        return each(function(*each(args, leaf), **each(options, leaf)), lambda x: x.detach())

    return recorded


def autocast(function: Function) -> Function:
    """float32 arguments under ``torch.autocast`` to bfloat16. It is held against the arithmetic of bfloat16."""
    def cast(*args: Any, **options: Any) -> Any:
        def single(x: Any) -> Any:
            return x.float() if x.is_floating_point() else x

        device = next(x.device.type for x in args if isinstance(x, torch.Tensor))
        with torch.autocast(device, dtype=torch.bfloat16):
            out = function(*each(args, single), **each(options, single))
        return each(out, lambda x: x.to(torch.bfloat16) if x.is_floating_point() else x)

    return cast


def vmap(function: Function) -> Function:
    """One batch element at a time, mapped over the batch by ``torch.func.vmap``; dropout differs from one to the next."""
    def mapped(single: Function, axes: tuple[int | None, ...], options: Mapping[str, Any]) -> Function:
        randomness = "different" if options.get("dropout_p") else "same"  # modules that are made in the call draw their first weights
        return torch.func.vmap(single, in_dims=axes, randomness=randomness)

    return over_batch(function, lambda x: isinstance(x, torch.Tensor), mapped)


def compiled(function: Function) -> Function:
    """Under ``torch.compile``, compiled anew for arguments of another form."""
    made: dict[Any, Function] = {}

    def run(*args: Any, **options: Any) -> Any:
        key = repr(each((args, options), lambda x: (x.shape, x.stride(), x.dtype)))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the compiler
            if key not in made:
                if len(made) >= 4:  # beyond a number of forms torch.compile falls back to eager without a word
                    made.clear()
                    torch.compiler.reset()
                made[key] = torch.compile(lambda *a, **o: function(*a, **o), dynamic=False)
            return made[key](*args, **options)

    return run


def exported(function: Function) -> Function:
    """As ``torch.export`` writes it down, exported anew for every call."""
    class Module(torch.nn.Module):
        def __init__(self, fixed: dict[str, Any]) -> None:
            super().__init__()
            self.fixed = fixed

        def forward(self, *args: Any, **options: Any) -> Any:
            return function(*args, **options, **self.fixed)

    def run(*args: Any, **options: Any) -> Any:
        tensors = {name: x for name, x in options.items() if isinstance(x, torch.Tensor)}
        module = Module({name: x for name, x in options.items() if name not in tensors})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the exporter
            return torch.export.export(module, args, tensors).module()(*args, **tensors)

    return run


VARIANTS: dict[str, Variant] = {
    "no_grad": Variant(no_grad, stateful=True),
    "inference_mode": Variant(inference_mode, stateful=True),
    "requires_grad": Variant(requires_grad, stateful=True),
    "autocast": Variant(autocast, {"dtypes": ("bfloat16",), "arithmetic": {"bfloat16": "eager"}}),
    "vmap": Variant(vmap, {"zero_sizes": False}, over_batch=True),
    "compile": Variant(compiled, {"costly_shapes": True}),
    "export": Variant(exported, {"zero_sizes": False, "costly_shapes": False}),  # every call does, of whatever shape
}


class TorchFramework:
    """PyTorch on any of its devices."""

    name = "torch"
    dtypes: tuple[str, ...] = ("float64", "float32", "float16", "bfloat16")
    layouts: tuple[str, ...] = LAYOUTS
    gradients = True
    costly_shapes = False
    forks = True
    variants: Mapping[str, Variant] = VARIANTS

    def devices(self) -> tuple[str, ...]:
        return ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)

    def named_dtype(self, dtype: str) -> Any:
        return getattr(torch, dtype)

    def full(self, shape: tuple[int, ...], value: float, dtype: str, device: str) -> Any:
        return torch.full(shape, value, dtype=getattr(torch, dtype), device=device)

    def integers(self, carrier: Array, device: str) -> Any:
        return self.assign(self.full(carrier.shape, 0, "int64", device), carrier)

    def permute(self, array: Any, axes: tuple[int, ...]) -> Any:
        return array.permute(axes)

    def expand(self, array: Any, shape: tuple[int, ...]) -> Any:
        return array.expand(shape)

    def stack(self, arrays: Sequence[Any]) -> Any:
        return torch.stack(list(arrays))

    def assign(self, array: Any, carrier: Array) -> Any:
        return array.copy_(torch.from_numpy(np.array(carrier)))  # a copy: from_numpy wants a writable array

    def read(self, array: Any) -> Array:
        array = array.detach()
        wide = array.dtype if array.dtype == torch.bool else torch.float64
        return np.array(array.to(device="cpu", dtype=wide).numpy())

    def is_array(self, value: Any) -> bool:
        return isinstance(value, torch.Tensor)

    def describe(self, array: Any) -> tuple[tuple[int, ...], str, str]:
        return tuple(array.shape), str(array.dtype).removeprefix("torch."), str(array.device.type)

    def record(self, function: Function, leaves: Sequence[Any]) -> tuple[Any, SendBack | None]:
        asking = [x.detach().requires_grad_() for x in leaves]
        out = function(*asking)

        def send_back(grad_out: Any, again: bool = False) -> list[Any]:
            return list(torch.autograd.grad(out, asking, grad_out, retain_graph=again, allow_unused=True))

        return out, send_back if isinstance(out, torch.Tensor) and out.requires_grad else None

    @contextmanager
    def chance(self, seed: int) -> Iterator[None]:
        with torch.random.fork_rng():
            torch.default_generator.manual_seed(seed)  # torch.manual_seed puts off what is for CUDA, with a trace of the stack each time
            if torch.cuda.is_available():
                torch.cuda.manual_seed_all(seed)
            yield

    def drawn(self) -> float:
        return float(torch.rand(()))

    @contextmanager
    def settings_kept(self) -> Iterator[Callable[[], list[str]]]:
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
            return str(torch.get_float32_matmul_precision())
        except RuntimeError:  # set in another way, for one device, in torch 2.9 and later
            return "highest"

    def facts(self, device: str) -> dict[str, Any]:
        gpu, capability = "", tuple[int, ...]()
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

    def shares_memory(self, a: Any, b: Any) -> bool:
        if a.numel() == 0 or b.numel() == 0:
            return False
        return bool(a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr())


FRAMEWORK = TorchFramework
