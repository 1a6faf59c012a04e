"""What is asked of PyTorch's modules, and how their rounding is followed; gradients of calls, here and elsewhere."""

from __future__ import annotations

import functools
import math
import sys
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import torch
from torch._decomp import decomposition_table
from torch.utils._python_dispatch import TorchDispatchMode

from .protocol import Function, SendBack, Unfollowed
from .torch_logits import Logits, of_weights


def each(value: Any, change: Callable[[Any], Any]) -> Any:
    """The value with ``change`` applied to every tensor in it."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, dict):
        return {name: each(item, change) for name, item in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(each(item, change) for item in value)
    return value


@contextmanager
def stepwise() -> Iterator[None]:
    """Attention in its steps: no fused kernel, no fast path of ``torch.nn.MultiheadAttention``, no ``flex_attention`` that is compiled."""
    fast = torch.backends.mha.get_fastpath_enabled()
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH), flex_stepwise():
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            yield
        finally:
            torch.backends.mha.set_fastpath_enabled(fast)


@contextmanager
def flex_stepwise(names: list[str] | None = None) -> Iterator[None]:
    """``flex_attention`` computes by the function that it would compile, which modes see into.

    ``names``: of the functions that are called, without those that would look like what chooses tokens, or, where neither a mask nor a change
    of scores is given, like what tells positions.
    """
    flex: Any = sys.modules.get("torch.nn.attention.flex_attention")
    stepwise_already = getattr(
        flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", None
    )  # None: not loaded, or of a PyTorch that has no such way
    if stepwise_already is None or (names is None and stepwise_already):
        yield
        return
    from torch._higher_order_ops.flex_attention import math_attention

    def attention(query: Any, key: Any, value: Any, score_mod: Any, block_mask: Any, *others: Any) -> Any:
        begun, plain = len(names or ()), score_mod is flex._identity and block_mask[-1] is flex.noop_mask
        out = math_attention(query, key, value, score_mod, block_mask, *others)
        if names is not None and plain:
            names[begun:] = [name for name in names[begun:] if name != "arange"]
        return out

    def unseen(function: Any) -> Any:
        def called(*arguments: Any) -> Any:
            with torch._C.DisableTorchFunction():
                return function(*arguments)

        return called

    instead = {"_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG": True, "flex_attention_hop": attention}
    instead |= {name: unseen(getattr(flex, name)) for name in ("_create_empty_block_mask", "_dense_to_ordered") if hasattr(flex, name)}
    before = {name: getattr(flex, name) for name in instead}
    vars(flex).update(instead)
    try:
        yield
    finally:
        vars(flex).update(before)


def words(*lines: str) -> frozenset[str]:
    """The words of some lines."""
    return frozenset(word for line in lines for word in line.split())


BARE = words("add sub rsub mul div sqrt reciprocal addcmul addcdiv lerp")  # rounded correctly: one u; other functions: four
EXACT = words("add sub rsub mul div")  # of whole numbers: where a token stands must not become another place
ROUNDLESS = words(
    "neg abs relu where masked_fill clamp clamp_min clamp_max maximum minimum copy clone fill sign floor ceil round trunc ge gt le lt eq",
    "ne logical_not bitwise_not bitwise_and bitwise_or logical_and logical_or isnan isinf isfinite nan_to_num threshold hardtanh zero",
)
CONVOLVED = "convolution_backward"
ROUNDLESS_BACK = words("select_backward slice_backward diagonal_backward unfold_backward")
PRODUCTS = words("mm bmm addmm baddbmm addbmm mv addmv dot convolution _convolution mkldnn_convolution linear cumsum sum mean")
COMPOSED = words(
    "native_layer_norm native_group_norm native_batch_norm _native_batch_norm_legit_no_training _fused_rms_norm cudnn_batch_norm _softmax",
    "_safe_softmax _log_softmax logsumexp var var_mean std linalg_vector_norm norm prod avg_pool2d _adaptive_avg_pool2d logcumsumexp",
    "_fft_r2c _fft_c2c _fft_c2r",
)
UPSAMPLED = words(
    "upsample_linear1d upsample_bilinear2d upsample_bicubic2d upsample_trilinear3d _upsample_bilinear2d_aa _upsample_bicubic2d_aa"
)
CASTS = {"_to_copy": 0, "copy_": 1}  # which argument becomes of another type
MATRIX_PRODUCTS = words("matmul __matmul__ __rmatmul__ mm bmm baddbmm addmm einsum")
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
    rounds = name in COMPOSED or name in PRODUCTS or name in UPSAMPLED or (torch.Tag.pointwise in func.tags and name not in ROUNDLESS)
    return name if rounds else ""


@functools.cache
def in_steps(func: Any) -> Callable[..., Any] | None:
    """Of what only a backward pass computes: itself in smaller operations, as PyTorch writes it out. None for any other. Raises Unfollowed."""
    name = func.overloadpacket.__name__
    if not name.endswith(("_backward", "_backward_data")) or torch.Tag.pointwise in func.tags or name in (*ROUNDLESS_BACK, CONVOLVED):
        return None
    if func not in decomposition_table:
        raise Unfollowed(name)
    return decomposition_table[func]


class Perturbed(TorchDispatchMode):
    """The result of every operation is moved by as much as one rounding may move it; see ``Modules.perturbed``."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled under it (see ``_plainly``), and importing the compiler takes a second

    def __init__(self, seed: int, units: Mapping[str, float], elementwise: bool, instead: str, narrows: bool = False) -> None:
        super().__init__()
        self.source = torch.Generator().manual_seed(seed)
        self.units, self.elementwise, self.instead = units, elementwise, getattr(torch, instead) if instead else None
        coarsest = torch.finfo(self.instead).eps if self.instead and narrows else math.inf
        self.widens = tuple(kind for kind in NARROW if torch.finfo(kind).eps <= coarsest)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.is_inference_mode_enabled():  # where operations that are made of others come as they are
            with self:
                made = func.decompose(*args, **kwargs)
            if made is not NotImplemented:
                return made
        if self.units and (apart := in_steps(func)):  # a part of a backward pass
            with self:
                return apart(*args, **kwargs)
        if self.units and func.overloadpacket.__name__ == CONVOLVED:
            return self._convolved(func, args)
        if self.instead and (asked := kwargs.get("dtype")):
            copies = func.overloadpacket.__name__.removesuffix("_") in ("_to_copy", "to")
            if asked in (self.widens if copies else (self.instead,)):
                kwargs = {**kwargs, "dtype": torch.float64}
        if self.instead and func.overloadpacket.__name__ in ALIKE and mixed((*args, *kwargs.values())):
            args, kwargs = each(args, widest), each(kwargs, widest)  # a constant that is made in the default type, beside what is widened
        name = rounding_of(func) if self.units else ""
        if not name:
            out = func(*args, **kwargs)
            if self.units and (at := CASTS.get(func.overloadpacket.__name__)) is not None:
                return self._cast(args[at], out)
            return out
        if name in COMPOSED or name in UPSAMPLED:
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
            size = summed(size, squares, unit, terms)
        elif name in COMPOSED:
            size = size * (4 * unit + inner * (terms / 3) ** 0.5)
            if name == "native_layer_norm":  # x · rstd − mean · rstd: what is left of two numbers that may nearly be the same
                times = out[2].double() * (1.0 if args[2] is None else args[2].double())
                size = (size.square() + (times * inner).square() * (args[0].double().square() + out[1].double().square())).sqrt_()
        elif name in UPSAMPLED:
            size = ((4 * unit * size).square() + (3 * inner * steps(args[0].double())).square()).sqrt_()
        elif name in EXACT and counts((first, *args, kwargs.get("alpha", 1)), 1 / unit):
            return out
        else:
            size = size * (unit if name in BARE else 4 * unit)
        first.add_(noise(first, size, self.source, self.elementwise).to(first.dtype))
        return out

    def _convolved(self, func: Any, args: Any) -> Any:
        """The gradients of images, weights and biases: sums of products over channels and places of the kernel, or over images and their places."""
        grad, _, weight, *_ = args
        outs, squares = func(*args), func(*each(args, squared))
        places = grad.numel() // grad.shape[1]
        for out, square, terms in zip(outs, squares, (weight.numel() // weight.shape[1], places, places), strict=True):
            if out is not None:
                unit = self.units[str(out.dtype).removeprefix("torch.")]
                size = summed(out.abs().double(), square.double(), unit, terms)
                out.add_(noise(out, size, self.source, self.elementwise).to(out.dtype))
        return outs

    def _cast(self, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """What was cast to a narrower type is rounded once."""
        if not (x.is_floating_point() and out.is_floating_point() and torch.finfo(out.dtype).eps > torch.finfo(x.dtype).eps):
            return out
        size = x.abs().double() * self.units[str(out.dtype).removeprefix("torch.")]
        rounded = out.isfinite() & (out != x)  # the lowest number of float64, which hides a logit, is −∞ in float32
        return out.add_(noise(out, torch.where(rounded, size, 0.0), self.source, self.elementwise).to(out.dtype))

    def _moved(self, x: torch.Tensor, times: float) -> torch.Tensor:
        if not x.is_floating_point():
            return x
        unit = min(self.units[str(x.dtype).removeprefix("torch.")], 2.0**-24) * times
        given = x.abs() == torch.finfo(x.dtype).max  # what hides a logit: a constant, which nothing has rounded
        return x + noise(x, torch.where(given, 0.0, x.abs().double() * unit), self.source, self.elementwise).to(x.dtype)


def summed(size: torch.Tensor, squares: torch.Tensor, unit: float, terms: int) -> torch.Tensor:
    """How far sums of so many terms may be off; ``squares``: the sums of the squares of the terms. Half types are summed in float32."""
    inner = min(unit, 2.0**-24)
    return (size.square() * (unit**2 + inner**2 * terms / 3) + squares * (inner**2 * (terms / 6 + 1))).sqrt_()


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


def steps(x: torch.Tensor) -> torch.Tensor:
    """By how much numbers between those of ``x`` (B, C, …) move when the place at which they are read does, by its own size in units.

    Places, scale · (i + 1/2) − 1/2, are computed in the type of the numbers, float32 for the half types, and go up to the length: that times a
    step between neighbours. Their scale, its product and the difference are rounded: three roundings.
    """
    moved = torch.zeros(x.shape[:2], dtype=torch.float64, device=x.device)
    for axis in range(2, x.ndim):
        if x.shape[axis] > 1:
            moved = moved + x.diff(dim=axis).square().flatten(2).mean(-1) * x.shape[axis] ** 2
    return moved.sqrt().reshape(*x.shape[:2], *[1] * (x.ndim - 2))


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
    """The names of all functions that are called; after that of a softmax how many numbers it weighs, and what is known of its logits, if asked."""

    def __init__(self, names: list[str], logits: bool) -> None:
        super().__init__()
        self.names, self.logits = names, Logits() if logits else None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = getattr(func, "__name__", ""), kwargs or {}
        kernel = args[1] if name.startswith("conv") and len(args) > 1 else kwargs.get("weight")
        told = name
        if name.startswith("conv") and kernel is not None and set(kernel.shape[2:]) == {1}:
            told = f"pointwise {name}"
        elif name in MATRIX_PRODUCTS and any(of_weights(x) for x in (*args, *kwargs.values())):
            told = f"weights' {name}"
        elif isinstance(func, torch._ops.OpOverload | torch._ops.OpOverloadPacket) and not (kind := str(func)).startswith("aten."):
            told = "operation " + "::".join(kind.split(".")[:2])
        self.names.append(told)
        if name == "pad" and min(kwargs.get("pad", args[1] if len(args) > 1 else ()), default=0) < 0:  # as much is cut off
            self.names.append("shift by pad")
        out = func(*args, **kwargs)
        if name == "softmax" and isinstance(along := kwargs.get("dim", args[1] if len(args) > 1 else None), int):
            self._logits("weighed", out, along)
            self.names += [f"softmax over {out.shape[along]}", *self._logits("scaled", kwargs.get("input", args[0] if args else None))]
        elif name == "scaled_dot_product_attention":
            query, key = (kwargs[word] if word in kwargs else args[at] for at, word in enumerate(("query", "key")))
            self.names += [f"softmax over {key.shape[-2]}", *self._logits("fused", query, key, kwargs.get("scale"))]
        else:
            self.names += self._logits("see", name, args, out)
        return out

    def _logits(self, what: str, *given: Any) -> list[str]:
        """What is said of them; nothing where that fails, since a call goes on."""
        if self.logits is None:
            return []
        with suppress(Exception):
            said = getattr(self.logits, what)(*given)
            return [said] if said else []
        return []


DROPS = words(
    "dropout dropout_ dropout1d dropout2d dropout3d alpha_dropout alpha_dropout_ feature_dropout feature_dropout_",
    "feature_alpha_dropout feature_alpha_dropout_",
)


class Undropped(torch.overrides.TorchFunctionMode):
    """Nothing is dropped: what a function of dropout is given comes back."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = getattr(func, "__name__", ""), kwargs or {}
        if name in DROPS:
            return args[0] if args else kwargs["input"]
        if name == "scaled_dot_product_attention":
            args, kwargs = (*args[:4], *[0.0] * (len(args) > 4), *args[5:]), {**kwargs, **dict.fromkeys(kwargs.keys() & {"dropout_p"}, 0.0)}
        return func(*args, **kwargs)


TYPE = torch.Tensor.dtype.__get__  # type: ignore[attr-defined]


FROM_NUMBERS = ("tensor", "as_tensor", "asarray")


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
        if getattr(func, "__name__", "") in FROM_NUMBERS and kwargs.get("dtype") == self.dtype:  # of which no operation is told
            kwargs = {**kwargs, "dtype": torch.float64}
        if getattr(func, "__name__", "") == "rms_norm" and (args[3] if len(args) > 3 else kwargs.get("eps")) is None:
            args, kwargs = args[:3], {**kwargs, "eps": torch.finfo(torch.float32).eps}
        return func(*args, **kwargs)


class Answers(dict[Any, Any]):
    """Of layers."""


KEEPING: weakref.WeakKeyDictionary[Any, weakref.ref[Answers]] = weakref.WeakKeyDictionary()  # layer → where its answers are kept


def _keep(layer: Any, given: Any, answer: torch.Tensor) -> torch.Tensor | None:
    """A hook: all that it has answered, where that is kept."""
    answers = KEEPING[layer]() if layer in KEEPING else None
    if answers is None:
        return None
    answers[layer] = torch.cat([answers[layer], answer], dim=1) if layer in answers else answer
    return answers[layer]


ADOPTED: weakref.WeakKeyDictionary[Any, Callable[[Any], Callable[[], object]]] = weakref.WeakKeyDictionary()  # module → what trains it


@contextmanager
def in_train_mode() -> Iterator[None]:
    """Meanwhile modules that are called as functions are in train mode."""
    undo = [train(module) for module, train in list(ADOPTED.items())]
    try:
        yield
    finally:
        for back in undo:
            back()


def as_passed(leaf: torch.Tensor) -> torch.Tensor:
    """A leaf as a call gets it. In a network another operation has made it: so here, at every other size."""
    return leaf.view_as(leaf) if sum(leaf.shape) % 2 else leaf


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

    def closed(self, module: Any) -> str:
        if isinstance(module, torch.jit.ScriptModule):
            return "is compiled by TorchScript, where its steps cannot be followed: give the module that it was made of"
        if type(module).__name__ == "OptimizedModule":
            return "is compiled: give the module itself, with @compile behind its name"
        for kind in (type(part) for part in module.modules()):
            if kind.__module__.startswith("torch.ao.nn.") and ".quantized" in kind.__module__:
                home = f"{kind.__module__}.{kind.__name__}"
                return f"is quantized (it has a {home}), so that no other weights can be drawn: give the module of before"
        return ""

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

    def uncalled(self, cls: type) -> bool:
        return issubclass(cls, torch.nn.Module) and cls.forward is torch.nn.Module.forward

    def alike(self, holder: Any, dtype: Any, device: str) -> Any:
        if isinstance(holder, torch.nn.Module):
            return self.cast(holder, dtype, device)
        for name, value in getattr(holder, "__dict__", {}).items():
            setattr(holder, name, each(value, lambda x: x.to(device, dtype if x.is_floating_point() else None)))
        return holder

    def kept(self, layers: Sequence[Any]) -> dict[Any, Any]:
        answers = Answers()
        for layer in layers:
            if layer not in KEEPING:
                layer.register_forward_hook(_keep)
            KEEPING[layer] = weakref.ref(answers)
        return answers

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

    def undropped(self, module: Any) -> None:
        entered: list[Undropped] = []

        def enter(*_: Any) -> None:
            entered.append(Undropped())
            entered[-1].__enter__()

        def leave(*_: Any) -> None:
            entered.pop().__exit__(None, None, None)

        module.register_forward_pre_hook(enter)
        module.register_forward_hook(leave, always_call=True)

    def adopted(self, module: Any, train: Callable[[Any], Callable[[], object]]) -> Any:
        ADOPTED[module] = train
        return module

    def forms(self, makes: Callable[[], Any]) -> list[tuple[tuple[int, ...], str]]:
        try:
            with torch.device("meta"):
                made = makes()
        except Exception:  # what is read of them on the way has to be there
            made = makes()
        return [(tuple(x.shape), str(x.dtype).removeprefix("torch.")) for x in made if isinstance(x, torch.Tensor)]

    def still(self) -> Any:
        return torch.no_grad()

    @contextmanager
    def watched(self, logits: bool = False) -> Iterator[list[str]]:
        names: list[str] = []
        with flex_stepwise(names), Watched(names, logits):
            yield names

    def widened(self, instead: str, narrows: bool = False) -> Any:
        return self._plainly(Perturbed(0, {}, True, instead, narrows))

    @contextmanager
    def defaulted(self) -> Iterator[None]:
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            yield
        finally:
            torch.set_default_dtype(before)

    @contextmanager
    def single(self) -> Iterator[None]:
        with self.defaulted(), self.widened("float32"):
            yield

    def perturbed(self, seed: int, units: Mapping[str, float], elementwise: bool, instead: str, narrows: bool = False) -> Any:
        return self._plainly(Perturbed(seed, units, elementwise, instead, narrows))

    @contextmanager
    def _plainly(self, mode: Perturbed) -> Iterator[None]:
        """Every step is an operation of its own."""
        with stepwise(), StandingFor(mode.instead) if mode.instead else nullcontext(), mode:
            yield

    def send_back(self, out: Any, weights: Any) -> None:
        (out * weights).sum().backward()

    def as_passed(self, leaf: Any) -> Any:
        return as_passed(leaf)

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
    """A module that is called elsewhere, with the weights that it has here: ``run`` is given it, and the arguments of a call."""

    def __init__(self, run: Function) -> None:
        super().__init__()
        self._run = (run,)

    def __deepcopy__(self, memo: Any) -> Any:
        return TorchModules().shadow(dict(self.named_parameters()), self._run[0]).train(self.training)

    def forward(self, *arguments: Any, **options: Any) -> Any:
        return self._run[0](self, arguments, options)


class Back:
    """The backward pass of one call: see ``SendBack``. The first one is that of ``backward()``, as in training, which hooks of leaves hear of."""

    def __init__(self, out: torch.Tensor | tuple[torch.Tensor, ...], leaves: Sequence[torch.Tensor]) -> None:
        self.outs, self.leaves = out if isinstance(out, tuple) else (out,), leaves
        self.first = True

    def _pushed(self, grad_out: Any) -> list[tuple[torch.Tensor, Any]]:
        """(an output, the gradient of it) for every one that carries a gradient and is given one."""
        grads = grad_out if isinstance(grad_out, list | tuple) else [grad_out]
        return [(out, grad) for out, grad in zip(self.outs, grads, strict=False) if grad is not None and out.requires_grad]

    def __call__(self, grad_out: Any, again: bool = False) -> list[Any]:
        pushed = self._pushed(grad_out)
        if not pushed:
            return [None] * len(self.leaves)
        outs, grads = zip(*pushed, strict=True)
        first, self.first = self.first, False
        if first:
            for leaf in self.leaves:
                leaf.grad = None
            torch.autograd.backward(outs, grads, retain_graph=again, inputs=list(self.leaves))
            found = [leaf.grad for leaf in self.leaves]
            for leaf in self.leaves:
                leaf.grad = None
            return found
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


class ModulesOnDevice(TorchModules):
    """``torch.nn.Module``, on one device."""

    def __init__(self, device: str) -> None:
        self.where = device

    def cast(self, module: Any, dtype: Any, device: str = "cpu") -> Any:
        return super().cast(module, dtype, self.where)
