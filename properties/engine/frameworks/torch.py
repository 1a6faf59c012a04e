"""PyTorch on any of its devices, and its variants. No other module of the checker imports it."""

from __future__ import annotations

import functools
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ..cases.coordinates import Array
from .machine import capped, kernel_flags, machine, numbers
from .protocol import LAYOUTS, Answered, Function, Modules, SendBack, Variant
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
def stepwise() -> Iterator[None]:
    """Attention in its steps: no fused kernel, no fast path of ``torch.nn.MultiheadAttention``."""
    fast = torch.backends.mha.get_fastpath_enabled()
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            yield
        finally:
            torch.backends.mha.set_fastpath_enabled(fast)


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


# ---------------------------------------------------------------- modules


def words(*lines: str) -> frozenset[str]:
    """The words of some lines."""
    return frozenset(word for line in lines for word in line.split())


BARE = words("add sub rsub mul div sqrt reciprocal addcmul addcdiv lerp")  # rounded correctly: one u; other functions: four
EXACT = words("add sub rsub mul div")  # of whole numbers: where a token stands must not become another place
ROUNDLESS = words(
    "neg abs relu where masked_fill clamp clamp_min clamp_max maximum minimum copy clone fill sign floor ceil round trunc ge gt le lt eq",
    "ne logical_not bitwise_not bitwise_and bitwise_or logical_and logical_or isnan isinf isfinite nan_to_num threshold hardtanh zero",
)
PRODUCTS = words("mm bmm addmm baddbmm addbmm mv addmv dot convolution _convolution mkldnn_convolution linear cumsum sum mean")
COMPOSED = words(
    "native_layer_norm native_group_norm native_batch_norm _native_batch_norm_legit_no_training _fused_rms_norm cudnn_batch_norm _softmax",
    "_safe_softmax _log_softmax logsumexp var var_mean std linalg_vector_norm norm prod avg_pool2d _adaptive_avg_pool2d logcumsumexp",
    "upsample_bilinear2d _fft_r2c _fft_c2c _fft_c2r",
)
ALIKE = PRODUCTS | words("polar complex scatter scatter_add index_add index_put index_copy masked_scatter lerp")  # of arguments of one type
NARROW = (torch.float32, torch.float16, torch.bfloat16)


def noise(like: torch.Tensor, size: torch.Tensor, source: torch.Generator, elementwise: bool) -> torch.Tensor:
    """±size, float64, with a sign for every element of ``like``, or one for all; 0 where the size is not finite."""
    shape = like.shape if elementwise else ()
    signs = torch.empty(shape, dtype=torch.float64).bernoulli_(0.5, generator=source).mul_(2).sub_(1).to(like.device)
    return torch.where(size.isfinite(), signs * size, 0.0)


@functools.cache
def rounding_of(func: Any) -> str:
    """The name of an operation that rounds; "" of any other."""
    name: str = func.overloadpacket.__name__.removesuffix("_")
    rounds = name in COMPOSED or name in PRODUCTS or (torch.Tag.pointwise in func.tags and name not in ROUNDLESS)
    return name if rounds else ""


class Perturbed(TorchDispatchMode):
    """The result of every operation is moved by as much as one rounding may move it; see ``Modules.perturbed``."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled under it (see ``_plainly``), and importing the compiler takes a second

    def __init__(self, seed: int, units: Mapping[str, float], elementwise: bool, instead: str) -> None:
        super().__init__()
        self.source = torch.Generator().manual_seed(seed)
        self.units, self.elementwise, self.instead = units, elementwise, getattr(torch, instead) if instead else None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.is_inference_mode_enabled():  # where operations that are made of others come as they are
            with self:
                made = func.decompose(*args, **kwargs)
            if made is not NotImplemented:
                return made
        if self.instead and (asked := kwargs.get("dtype")):
            copies = func.overloadpacket.__name__.removesuffix("_") in ("_to_copy", "to")
            if asked in (NARROW if copies else (self.instead,)):
                kwargs = {**kwargs, "dtype": torch.float64}
        if self.instead and func.overloadpacket.__name__ in ALIKE and mixed((*args, *kwargs.values())):
            args, kwargs = each(args, widest), each(kwargs, widest)  # a constant that is made in the default type, beside what is widened
        name = rounding_of(func) if self.units else ""
        if not name:
            return func(*args, **kwargs)
        if name in COMPOSED:
            args = tuple(self._moved(x, 1.0) if isinstance(x, torch.Tensor) else x for x in args)
        # found before the call, which may write into its arguments
        squares = func(*each(args, squared), **each(kwargs, squared)).double() if name in PRODUCTS else None
        terms = summation_length(name, args)
        out = func(*args, **kwargs)
        first = out[0] if isinstance(out, tuple) else out
        if not isinstance(first, torch.Tensor) or not first.is_floating_point():
            return out
        unit = self.units[str(first.dtype).removeprefix("torch.")]
        inner = min(unit, 2.0**-24)  # half types are summed in float32
        size = first.abs().double()
        if squares is not None:
            squares = squares / terms if name == "mean" else squares
            size = (size.square().mul_(unit**2 + inner**2 * terms / 3) + squares * (inner**2 * (terms / 6 + 1))).sqrt_()
        elif name in COMPOSED:
            size = size * (4 * unit + inner * (terms / 3) ** 0.5)
            if name == "native_layer_norm":  # x · rstd − mean · rstd: what is left of two numbers that may nearly be the same
                times = out[2].double() * (1.0 if args[2] is None else args[2].double())
                size = (size.square() + (times * inner).square() * (args[0].double().square() + out[1].double().square())).sqrt_()
        elif name in EXACT and counts((first, *args, kwargs.get("alpha", 1)), 1 / unit):
            return out
        else:
            size = size * (unit if name in BARE else 4 * unit)
        first.add_(noise(first, size, self.source, self.elementwise).to(first.dtype))
        return out

    def _moved(self, x: torch.Tensor, times: float) -> torch.Tensor:
        if not x.is_floating_point():
            return x
        unit = min(self.units[str(x.dtype).removeprefix("torch.")], 2.0**-24) * times
        given = x.abs() == torch.finfo(x.dtype).max  # what hides a logit: a constant, which nothing has rounded
        return x + noise(x, torch.where(given, 0.0, x.abs().double() * unit), self.source, self.elementwise).to(x.dtype)


def counts(args: Iterable[Any], most: float) -> bool:
    """Whether all are whole numbers of at most this size: their sums, differences, products and quotients, if they are such, are exact."""
    numbers = (x.double() if isinstance(x, torch.Tensor) else torch.tensor(x, dtype=torch.float64) for x in args)
    return all(bool(((x == x.round()) & (x.abs() <= most)).all()) for x in numbers)


def mixed(args: Iterable[Any]) -> bool:
    """Whether there are numbers of float64 among them, and of another type."""
    types = {x.dtype for x in args if isinstance(x, torch.Tensor) and x.is_floating_point()}
    return torch.float64 in types and len(types) > 1


def widest(x: torch.Tensor) -> torch.Tensor:
    return x.double() if x.is_floating_point() else x


def squared(x: torch.Tensor) -> torch.Tensor:
    """x², where it is a number."""
    return x * x if x.is_floating_point() else x


def summation_length(name: str, args: Any) -> int:
    """How many terms an operation adds up for one number, at most."""
    tensors = [x for x in args if isinstance(x, torch.Tensor)]
    if not tensors or not tensors[0].ndim:
        return 1
    if name in ("addmm", "baddbmm", "addbmm", "addmv"):
        return int(tensors[1].shape[-1])
    if "convolution" in name:
        return int(tensors[1][0].numel())
    if name in ("sum", "mean"):
        return int(tensors[0].numel() if len(args) < 2 else max(tensors[0].shape))
    return int(tensors[0].shape[-1])


class Watched(torch.overrides.TorchFunctionMode):
    """The names of all functions that are called; after that of a softmax how many numbers it weighs."""

    def __init__(self, names: list[str]) -> None:
        super().__init__()
        self.names = names

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = getattr(func, "__name__", ""), kwargs or {}
        kernel = args[1] if name.startswith("conv") and len(args) > 1 else kwargs.get("weight")
        self.names.append(f"pointwise {name}" if name.startswith("conv") and kernel is not None and set(kernel.shape[2:]) == {1} else name)
        out = func(*args, **kwargs)
        if name == "softmax" and isinstance(along := kwargs.get("dim", args[1] if len(args) > 1 else None), int):
            self.names.append(f"softmax over {out.shape[along]}")
        elif name == "scaled_dot_product_attention":
            self.names.append(f"softmax over {(kwargs['key'] if 'key' in kwargs else args[1]).shape[-2]}")
        return out


TYPE = torch.Tensor.dtype.__get__  # type: ignore[attr-defined]


class StandingFor(torch.overrides.TorchFunctionMode):
    """What asks a tensor of float64 for its type is told another one: an epsilon, the lowest number of a type, or a way to compute may depend on it.

    RMS norms without an epsilon have that of float32, which they take in all narrower types, too.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func == TYPE:
            found = func(*args)
            return self.dtype if found == torch.float64 else found
        if getattr(func, "__name__", "") == "rms_norm" and (args[3] if len(args) > 3 else kwargs.get("eps")) is None:
            args, kwargs = args[:3], {**kwargs, "eps": torch.finfo(torch.float32).eps}
        return func(*args, **kwargs)


class TorchModules:
    """``torch.nn.Module``."""

    def is_module(self, thing: Any) -> bool:
        return isinstance(thing, torch.nn.Module)

    def is_class(self, thing: Any) -> bool:
        return isinstance(thing, type) and issubclass(thing, torch.nn.Module)

    @contextmanager
    def making(self) -> Iterator[None]:
        before = torch.get_deterministic_debug_mode()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what is not deterministic
            torch.set_deterministic_debug_mode("warn")  # what is not written to is NaN then
            try:
                yield
            finally:
                torch.set_deterministic_debug_mode(before)

    def unmade(self, module: Any) -> bool:
        return any(torch.nn.parameter.is_lazy(x) for x in (*module.parameters(), *module.buffers()))

    def cast(self, module: Any, dtype: Any, device: str = "cpu") -> Any:
        held = [(part, name, x) for part in module.modules() for name, x in part._buffers.items() if x is not None and x.is_complex()]
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Casting complex values to real")
            module = module.to(device=device, dtype=dtype)
        for part, name, x in held:
            part._buffers[name] = x.to(device)
        return module

    def unrecorded(self, module: Any) -> str:
        layer = module.forward
        while layer is not None:
            for cell in getattr(layer, "__closure__", None) or ():
                with suppress(ValueError):  # nothing is in it yet
                    mode = getattr(cell.cell_contents, "__self__", None)  # a decorator holds the method that makes its mode anew
                    if isinstance(mode, torch.no_grad | torch.inference_mode):
                        return f"torch.{type(mode).__name__}"
            layer = getattr(layer, "__wrapped__", None)
        return ""

    def still(self) -> Any:
        return torch.no_grad()

    @contextmanager
    def watched(self) -> Iterator[list[str]]:
        names: list[str] = []
        with Watched(names):
            yield names

    def widened(self, instead: str) -> Any:
        return self._plainly(Perturbed(0, {}, True, instead))

    def perturbed(self, seed: int, units: Mapping[str, float], elementwise: bool, instead: str) -> Any:
        return self._plainly(Perturbed(seed, units, elementwise, instead))

    @contextmanager
    def _plainly(self, mode: Perturbed) -> Iterator[None]:
        """Every step is an operation of its own."""
        with stepwise(), StandingFor(mode.instead) if mode.instead else nullcontext(), mode:
            yield

    def send_back(self, out: Any, weights: Any) -> None:
        (out * weights).sum().backward()

    def leaf(self, array: Any) -> Any:
        return array.requires_grad_(True)

    def sends_back(self, out: Any, leaves: Sequence[Any]) -> SendBack | None:
        return Back(out, leaves) if out.requires_grad else None

    def slopes(self, function: Callable[[], Any], arrays: Sequence[Any], along: Sequence[Any], twice: bool) -> list[float]:
        grads = torch.autograd.grad(function(), arrays, create_graph=twice, allow_unused=True)
        if twice:
            for array in arrays:
                array.grad = None
            # backward, not grad: what says that it cannot be differentiated again lies on no way to an array, and would not be asked
            torch.stack([(g * d).sum() for g, d in zip(grads, along, strict=True) if g is not None]).sum().backward()
            grads = tuple(array.grad for array in arrays)
        return [0.0 if g is None else float((g * d).sum()) for g, d in zip(grads, along, strict=True)]

    def pairs_as_complex(self, array: Any) -> Any:
        return torch.view_as_complex(array.contiguous())

    def shadow(self, held: Mapping[str, Any], run: Callable[..., Any]) -> Any:
        whole = Shadow(run)
        for name, array in held.items():
            *path, last = name.split(".")
            inner: torch.nn.Module = whole
            for part in path:
                if part not in inner._modules:
                    inner.add_module(part, torch.nn.Module())
                inner = inner.get_submodule(part)
            inner.register_parameter(last, torch.nn.Parameter(array.clone()))
        return whole


class Shadow(torch.nn.Module):
    """A module that is called elsewhere, with the weights that it has here."""

    def __init__(self, run: Function) -> None:
        super().__init__()
        self._run = (run,)

    def __deepcopy__(self, memo: Any) -> Any:
        return TorchModules().shadow(dict(self.named_parameters()), self._run[0])

    def forward(self, *arguments: Any, **options: Any) -> Any:
        return self._run[0]([p.data for p in self.parameters()], arguments, options)


class Back:
    """The backward pass of one call: see ``SendBack``."""

    def __init__(self, out: torch.Tensor | tuple[torch.Tensor, ...], leaves: Sequence[torch.Tensor]) -> None:
        self.outs, self.leaves = out if isinstance(out, tuple) else (out,), leaves

    def _pushed(self, grad_out: Any) -> list[tuple[torch.Tensor, Any]]:
        """(an output, the gradient of it) for every one that carries a gradient and is given one."""
        grads = grad_out if isinstance(grad_out, list | tuple) else [grad_out]
        return [(out, grad) for out, grad in zip(self.outs, grads, strict=False) if grad is not None and out.requires_grad]

    def __call__(self, grad_out: Any, again: bool = False) -> list[Any]:
        pushed = self._pushed(grad_out)
        if not pushed:
            return [None] * len(self.leaves)
        outs, grads = zip(*pushed, strict=True)
        return list(torch.autograd.grad(outs, self.leaves, grads, retain_graph=again, allow_unused=True))

    def bend(self, grad_out: Any, pushed: Sequence[Any]) -> list[Any]:
        """What the gradients of the leaves, each with the gradient that is pushed into it, send back to those in grad_out and to the leaves."""
        given = grad_out if isinstance(grad_out, list | tuple) else [grad_out]
        sent = [None if grad is None else grad.detach().requires_grad_() for grad in given]
        outs, used = zip(*self._pushed(sent), strict=True)
        grads = torch.autograd.grad(outs, self.leaves, used, create_graph=True, allow_unused=True)
        for array in (*used, *self.leaves):
            array.grad = None
        parts = [(g * p).sum() for g, p in zip(grads, pushed, strict=True) if g is not None]
        torch.stack(parts).sum().backward(retain_graph=True)  # not grad: see ``slopes``
        return [None if array is None else array.grad for array in (*sent, *self.leaves)]


class Bridge(torch.autograd.Function):
    """A call elsewhere, as an operation of autograd: its backward pass is elsewhere, too."""

    @staticmethod
    def forward(ctx: Any, call: Function, *leaves: Any) -> Any:
        answers, carries, ctx.send_back = call([x.detach() for x in leaves])
        ctx.mark_non_differentiable(*(x for x, has in zip(answers, carries, strict=True) if not has))
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*leaves)
        return tuple(answers)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        if not torch.is_grad_enabled():
            return None, *ctx.send_back(list(grads), True)
        return None, *BridgeBack.apply(ctx.send_back, len(grads), *grads, *ctx.saved_tensors)


class BridgeBack(torch.autograd.Function):
    """The backward pass of a call elsewhere, as an operation of autograd."""

    @staticmethod
    def forward(ctx: Any, send_back: Any, count: int, *arrays: Any) -> Any:
        ctx.send_back, ctx.given = send_back, [grad is not None for grad in arrays[:count]]
        ctx.save_for_backward(*(grad for grad in arrays[:count] if grad is not None))
        found = send_back([None if grad is None else grad.detach() for grad in arrays[:count]], True)
        return tuple(torch.zeros_like(x) if g is None else g for g, x in zip(found, arrays[count:], strict=True))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *pushed: Any) -> Any:
        saved = iter(ctx.saved_tensors)
        return None, None, *ctx.send_back.bend([next(saved) if has else None for has in ctx.given], pushed)


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
    shares: tuple[str, ...] = ("cpu", "cuda")
    device = "cpu"
    rounds_sums = ""
    variants: Mapping[str, Variant] = VARIANTS
    modules: Modules | None = TorchModules()

    def quickly(self, function: Function) -> Function:
        return function

    def devices(self) -> tuple[str, ...]:
        return ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)

    def on(self, device: str) -> TorchFramework:
        from .torch_device import OnDevice

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
        return tuple(array.shape), str(array.dtype).removeprefix("torch."), str(array.device.type)

    def record(self, function: Function, leaves: Sequence[Any]) -> tuple[Any, SendBack | None]:
        asking = [x.detach().requires_grad_() for x in leaves]
        with _to_be_asked_twice():
            out = function(*asking)
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
        from .torch_device import Distant

        return self if device == "cpu" else Distant(device)

    def over(self, memory: Any, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: str) -> Any:
        kind = getattr(torch, dtype)
        flat = torch.frombuffer(memory, dtype=kind, count=len(memory) // kind.itemsize)
        return flat.as_strided(shape, tuple(step // kind.itemsize for step in strides), offset // kind.itemsize)

    def lies(self, array: Any) -> tuple[int, tuple[int, ...]]:
        size = array.itemsize
        return array.data_ptr(), tuple([step * size for step in array.stride()])

    def pour(self, array: Any, memory: Any) -> None:
        torch.frombuffer(memory, dtype=array.dtype).view(array.shape).copy_(array.detach())

    def refill(self, array: Any, memory: Any) -> None:
        plain, copy = array.detach(), torch.frombuffer(memory, dtype=array.dtype).view(array.shape)
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

    def asks(self, array: Any) -> bool:
        return bool(array.requires_grad) and torch.is_grad_enabled()

    def bridged(self, call: Callable[[Sequence[Any]], Answered], leaves: Sequence[Any]) -> list[Any]:
        return list(Bridge.apply(call, *leaves))


FRAMEWORK = TorchFramework
