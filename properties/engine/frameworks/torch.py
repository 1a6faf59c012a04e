"""PyTorch on any of its devices, and its variants. No other module of the checker imports it."""

from __future__ import annotations

import math
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import cache
from typing import Any

import numpy as np
import torch

from ..cases.coordinates import Array
from .machine import capped, kernel_flags, machine, numbers
from .numpy import address_of
from .protocol import LAYOUTS, TRAINING, Answered, Function, Modules, SendBack, Variant, with_operations_of_its_own
from .torch_modules import Back, Bridge, ModulesOnDevice, TorchModules, as_passed, each, in_train_mode, stepwise
from .variants import over_batch


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


def _to_be_asked_twice() -> AbstractContextManager[Any]:
    """What is compiled in it can be asked for its gradients again: its buffers are not given away to the first backward pass."""
    if "torch._dynamo" not in sys.modules:
        return nullcontext()
    from torch._functorch import config

    return config.patch("donated_buffer", False) if hasattr(config, "donated_buffer") else nullcontext()


def autocast(function: Function) -> Function:
    """float32 arguments under ``torch.autocast`` to bfloat16. It is held against the arithmetic of bfloat16."""

    def cast(*args: Any, **options: Any) -> Any:
        def single(x: Any) -> Any:
            return x.float() if x.is_floating_point() else x

        device = next(x.device.type for x in (*args, *options.values()) if isinstance(x, torch.Tensor))
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


NUMBERS = ("float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint8", "bool")
IN_NUMPY = {getattr(torch, name): np.dtype(name) for name in NUMBERS}  # which lays them over memory in a fifth of the time
FORMS = 4  # compiled at a time: beyond a number of them torch.compile falls back to eager without a word
_forms: list[Any] = []  # those since the last reset


def compiled(function: Function) -> Function:
    """Under ``torch.compile``, compiled anew for arguments of another form."""
    made: dict[Any, Function] = {}

    def run(*args: Any, **options: Any) -> Any:
        key = torch.is_grad_enabled(), repr(each((args, options), lambda x: (x.shape, x.stride(), x.dtype)))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the compiler
            if key not in made or made[key] not in _forms:
                if len(_forms) >= FORMS:
                    _forms.clear()
                    torch.compiler.reset()
                made[key] = torch.compile(lambda *a, **o: function(*a, **o), dynamic=False)
                _forms.append(made[key])
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


@contextmanager
def implemented(function: Any, how: str) -> Iterator[None]:
    """With a Hugging Face configuration that says how attention is computed, wherever a module has one."""
    inner: list[Any] = list(function.modules()) if isinstance(function, torch.nn.Module) else []
    configured = {id(m.config): m.config for m in inner if hasattr(getattr(m, "config", None), "_attn_implementation")}
    before = [(config, config._attn_implementation) for config in configured.values()]
    try:
        for config in configured.values():
            config._attn_implementation = how
        yield
    finally:
        for config, value in before:
            config._attn_implementation = value


def eager(function: Function) -> Function:
    """With attention in its steps; a Hugging Face configuration says eager."""

    def plain(*args: Any, **options: Any) -> Any:
        with stepwise(), implemented(function, "eager"):
            return function(*args, **options)

    return plain


def sdpa(function: Function) -> Function:
    """A Hugging Face configuration says sdpa; anything else is as it is."""

    def fused(*args: Any, **options: Any) -> Any:
        with implemented(function, "sdpa"):
            return function(*args, **options)

    return fused


VARIANTS: dict[str, Variant] = {
    "no_grad": Variant(no_grad, stateful=True, recorded=False),
    "inference_mode": Variant(inference_mode, stateful=True, recorded=False),
    "requires_grad": Variant(requires_grad, stateful=True, recorded=False),
    "autocast": Variant(autocast, {"dtypes": ("bfloat16",), "arithmetic": {"bfloat16": "eager"}}),
    "eager": Variant(eager, stateful=True),
    "sdpa": Variant(sdpa, stateful=True),
    "vmap": Variant(vmap, {"zero_sizes": False}, over_batch=True),
    "compile": Variant(compiled, {"costly_shapes": True}),
    "export": Variant(exported, {"zero_sizes": False, "costly_shapes": False}, recorded=False),  # every call does, of whatever shape
}


# ---------------------------------------------------------------- the framework


def _product_precision() -> str:
    try:
        return str(torch.get_float32_matmul_precision())
    except RuntimeError:  # set in another way, for one device, in torch 2.9 and later
        return "highest"


SETTINGS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "the default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "whether gradients are recorded": (torch.is_grad_enabled, torch.set_grad_enabled),
    "whether algorithms are deterministic": (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    "the precision of float32 products": (_product_precision, torch.set_float32_matmul_precision),
}


class TorchFramework:
    """PyTorch on any of its devices."""

    name = "torch"
    dtypes: tuple[str, ...] = ("float64", "float32", "float16", "bfloat16")
    layouts: tuple[str, ...] = LAYOUTS
    gradients = True
    costly_shapes = False
    forks = True
    late: tuple[str, ...] = ("torch.fx.experimental.symbolic_shapes",)  # in a first backward pass, and with it SymPy
    shares: tuple[str, ...] = ("cpu", "cuda")
    device = "cpu"
    rounds_sums = ""
    variants: Mapping[str, Variant] = VARIANTS
    ways: Mapping[str, str] = {
        "torch.no_grad": "under torch.no_grad()",
        "torch.inference_mode": "under torch.inference_mode()",
        TRAINING: f"in {TRAINING}",
    }
    modules: Modules | None = TorchModules()

    def quickly(self, function: Function) -> Function:
        return function

    def devices(self) -> tuple[str, ...]:
        return ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)

    def on(self, device: str) -> TorchFramework:
        return self if device == "cpu" else OnDevice(device)

    def usable(self) -> bool:
        return True

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

    def concatenate(self, arrays: Sequence[Any], axis: int) -> Any:
        return torch.cat(list(arrays), axis)

    def assign(self, array: Any, carrier: Array) -> Any:
        return array.copy_(torch.from_numpy(np.array(carrier)))  # a copy: from_numpy wants a writable array

    def read(self, array: Any) -> Array:
        array = array.detach()
        wide = array.dtype if array.dtype == torch.bool else torch.float64
        return np.array(array.to(device="cpu", dtype=wide).numpy())

    def is_array(self, value: Any) -> bool:
        return isinstance(value, torch.Tensor)

    def describe(self, array: Any) -> tuple[tuple[int, ...], str, str]:
        return tuple(array.shape), _name(array.dtype), str(array.device.type)

    def record(self, function: Function, leaves: Sequence[Any]) -> tuple[Any, SendBack | None]:
        asking = [x.detach().requires_grad_() for x in leaves]
        with _to_be_asked_twice():
            out = function(*map(as_passed, asking))
        carries = any(x.requires_grad for x in (out if isinstance(out, tuple) else (out,)) if isinstance(x, torch.Tensor))
        return out, Back(out, asking) if carries else None

    @contextmanager
    def chance(self, seed: int) -> Iterator[None]:
        with torch.random.fork_rng(devices=()):
            torch.default_generator.manual_seed(seed)  # torch.manual_seed puts off what is for CUDA, with a trace of the stack each time
            yield

    def dropper(self, probability: float) -> Function | None:
        return torch.nn.Dropout(probability)

    def drawn(self) -> float:
        return float(torch.rand(()))

    @contextmanager
    def settings_kept(self) -> Iterator[Callable[[], list[str]]]:
        before = [get() for get, _ in SETTINGS.values()]

        def changed() -> list[str]:
            now = [get() for get, _ in SETTINGS.values()]
            return [] if now == before else [name for name, old, new in zip(SETTINGS, before, now, strict=True) if old != new]

        try:
            yield changed
        finally:
            for name in changed():
                SETTINGS[name][1](before[list(SETTINGS).index(name)])

    def faulty(self, dtype: str, device: str) -> str:
        here = machine(self, device) if (dtype, device) == ("bfloat16", "cpu") else None
        wrong = here is not None and "amx_bf16" in here["instructions"] and here["onednn"] >= (3,)
        return "oneDNN's bfloat16 products on CPUs with AMX (uxlfoundation/oneDNN#5717)" if wrong else ""

    @contextmanager
    def avoiding(self) -> Iterator[None]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what is set back to where it was
            with torch.backends.mkldnn.flags(enabled=False):
                yield

    def told(self, way: str) -> AbstractContextManager[Any]:
        if way == TRAINING:
            return in_train_mode()
        return torch.inference_mode() if way == "torch.inference_mode" else torch.no_grad()

    def way(self) -> str:
        return "" if torch.is_grad_enabled() else "torch.inference_mode" if torch.is_inference_mode_enabled() else "torch.no_grad"

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

    def elsewhere(self, device: str = "cpu") -> TorchFramework:
        return self if device == "cpu" else Distant(device)

    def over(self, memory: Any, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: str) -> Any:
        kind = getattr(torch, dtype)
        if kind in IN_NUMPY and math.prod(shape) * kind.itemsize == len(memory):  # all of it
            return torch.from_numpy(np.ndarray(shape, IN_NUMPY[kind], memory, offset, strides))
        flat = torch.frombuffer(memory, dtype=kind, count=len(memory) // kind.itemsize)
        return flat.as_strided(shape, tuple(step // kind.itemsize for step in strides), offset // kind.itemsize)

    def lies(self, array: Any) -> tuple[int, tuple[int, ...]]:
        size = array.itemsize
        return array.data_ptr(), tuple([step * size for step in array.stride()])

    def pour(self, array: Any, memory: Any) -> None:
        _whole(memory, array).copy_(array.detach())

    def refill(self, array: Any, memory: Any) -> None:
        plain, copy = array.detach(), _whole(memory, array)
        if not ((plain == copy) | ((plain != plain) & (copy != copy))).all():
            with suppress(RuntimeError):  # what cannot be written into was not written into by a caller either
                plain.copy_(copy)

    def put_back(self, array: Any, memory: Any, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: str) -> None:
        pass  # it is that memory

    def refresh(self, arrays: Iterable[Any]) -> None:
        pass

    def show(self, arrays: Iterable[Any]) -> None:
        pass

    def lost(self, array: Any) -> bool:
        return False

    def plain(self, array: Any) -> Any:
        return array.as_subclass(torch.Tensor) if type(array) is not torch.Tensor else array

    def unlike(self, array: Any) -> str:
        if type(array) not in (torch.Tensor, torch.nn.Parameter) and (own := with_operations_of_its_own(array, torch.Tensor)):
            return own
        return "" if array.layout == torch.strided and not array.is_nested else f"{array.layout}_tensor".removeprefix("torch.")

    def asks(self, array: Any) -> bool:
        return bool(array.requires_grad) and torch.is_grad_enabled()

    def bridged(self, call: Callable[[Sequence[Any]], Answered], leaves: Sequence[Any]) -> list[Any]:
        return list(Bridge.apply(call, *leaves))


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
        kind, address = getattr(torch, dtype), address_of(memory)
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
        _bytes(memory).copy_(self.pieces[address_of(memory)][1])

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


@cache
def _name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def _whole(memory: Any, like: Any) -> Any:
    """All of some memory, row by row, as an array of the same form."""
    if like.dtype in IN_NUMPY:
        return torch.from_numpy(np.ndarray(tuple(like.shape), IN_NUMPY[like.dtype], memory))
    return torch.frombuffer(memory, dtype=like.dtype).view(like.shape)


def _bytes(memory: Any) -> Any:
    return torch.frombuffer(memory, dtype=torch.uint8)


FRAMEWORK = TorchFramework
