"""Variants: the same target seen through a transformation of PyTorch, which must not change what it computes.

``TARGET@compile`` is ``torch.compile`` of TARGET, and so on. A variant is a target like any other: every property is put to
it, against the same oracle, so that agreement with the eager target follows from both lying inside the bound.
"""

from __future__ import annotations

import contextlib
import difflib
import inspect
import warnings
from collections.abc import Callable
from typing import Any

Function = Callable[..., Any]


def each(value: Any, change: Callable[[Any], Any]) -> Any:
    """The value with ``change`` applied to every tensor in it."""
    import torch

    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, dict):
        return {name: each(item, change) for name, item in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(each(item, change) for item in value)
    return value


def no_grad(function: Function) -> Function:
    """Under ``torch.no_grad()``."""
    import torch

    return torch.no_grad()(lambda *args, **options: function(*args, **options))


def inference_mode(function: Function) -> Function:
    """Under ``torch.inference_mode()``."""
    import torch

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
    import torch

    def cast(*args: Any, **options: Any) -> Any:
        def single(x: Any) -> Any:
            return x.float() if x.is_floating_point() else x

        device = next(x.device.type for x in args if isinstance(x, torch.Tensor))
        with torch.autocast(device, dtype=torch.bfloat16):
            out = function(*each(args, single), **each(options, single))
        return each(out, lambda x: x.to(torch.bfloat16) if x.is_floating_point() else x)

    return cast


BATCHED = ("attention", "multihead", "encoder_layer", "decoder_layer", "rotary")  # contracts with a batch to map over
PER_BATCH = ("kv_lengths", "key_padding_mask", "memory_key_padding_mask")  # beside masks that vary along it


def vmap(function: Function) -> Function:
    """One batch element at a time, mapped over the batch by ``torch.func.vmap``; dropout differs from one to the next."""
    import torch

    def mapped(*args: Any, **options: Any) -> Any:
        tensors = {name: x for name, x in options.items() if isinstance(x, torch.Tensor)}
        fixed = {name: x for name, x in options.items() if name not in tensors}
        batch = args[0].shape[0]
        along = {name: 0 if name in PER_BATCH or x.ndim == 4 and x.shape[0] == batch > 1 else None
                 for name, x in tensors.items()}

        parts: list[Any] = []

        def single(*one: Any) -> Any:
            first = tuple(x[None] if dim == 0 else x for x, dim in zip(one[: len(args)], dims, strict=True))
            back = {name: x[None] if along[name] == 0 else x for name, x in zip(tensors, one[len(args) :], strict=True)}
            out = function(*first, **back, **fixed)
            several = isinstance(out, tuple | list)
            parts[:] = out if several else [out]
            return tuple(x[0] for x in parts if isinstance(x, torch.Tensor)) if several else out[0]

        randomness = "different" if options.get("dropout_p") else "same"  # modules that are made in the call draw their first weights
        dims = tuple(0 if isinstance(x, torch.Tensor) and x.ndim == args[0].ndim else None for x in args)
        mapping = torch.func.vmap(single, in_dims=(*dims, *along.values()), randomness=randomness)
        found = mapping(*args, *tensors.values())
        if not isinstance(found, tuple):
            return found
        answers = iter(found)  # weights that were not asked for are None, which vmap does not return
        return tuple(next(answers) if isinstance(x, torch.Tensor) else x for x in parts)

    return mapped


def compiled(function: Function) -> Function:
    """Under ``torch.compile``, compiled anew for arguments of another form."""
    import torch

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
    import torch

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


VARIANTS: dict[str, Callable[[Function], Function]] = {
    "no_grad": no_grad,
    "inference_mode": inference_mode,
    "requires_grad": requires_grad,
    "autocast": autocast,
    "vmap": vmap,
    "compile": compiled,
    "export": exported,
}
# What a transformation cannot do is not asked of it.
NARROWED: dict[str, dict[str, Any]] = {
    "autocast": {"dtypes": ("bfloat16",), "arithmetic": {"bfloat16": "eager"}},
    "vmap": {"zero_sizes": False},
    "export": {"zero_sizes": False},
}


STATEFUL = ("no_grad", "inference_mode", "requires_grad")  # what a cache, which changes at every call, can be seen through


def cache_variant(name: str, make: Function) -> Function:
    """What makes caches, every method of which is seen through the variant. Raises ValueError as ``make_variant`` does."""
    class Seen:
        def __init__(self, held: Any) -> None:
            self._held = held

        def __getattr__(self, method: str) -> Any:
            own = getattr(self._held, method)
            if method == "fork":
                return lambda: Seen(make_variant(name, own)())
            return make_variant(name, own)

    made = make_variant(name, make)

    def seen(*sizes: Any, **options: Any) -> Any:
        return Seen(made(*sizes, **options))

    seen.__signature__ = inspect.signature(make)  # type: ignore[attr-defined]
    return seen


def make_variant(name: str, function: Function) -> Function:
    """The transformed callable. Raises ValueError that lists near matches for a typo."""
    if name not in VARIANTS:
        near = difflib.get_close_matches(name, VARIANTS, 1, 0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(VARIANTS)}"
        raise ValueError(f"there is no variant {name!r}; {hint}")
    changed = VARIANTS[name](function)
    with contextlib.suppress(TypeError, ValueError):
        changed.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    return changed
