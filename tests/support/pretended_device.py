"""A GPU that is not there: tensors that say they are on it, and refuse to meet tensors that are not.

It computes on the CPU, so it says nothing about a GPU's numbers or kernels. It shows what else goes wrong in a first run on one: a mask, a
table or an index that was made on the wrong device, an answer that was read without being brought back, a call that asks for no device.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only

MOVES = (Tensor.to, Tensor.cuda, Tensor.cpu)
INDEXES = (Tensor.__getitem__, Tensor.__setitem__)  # a tensor there by an index on the CPU, not the other way round
MAY_MEET = (*MOVES, Tensor.copy_, Tensor.data.__set__)  # type: ignore[attr-defined]
OF_MODULES = ("_parse_to", "_has_compatible_shallow_copy_type")  # what ``Module.to`` asks before it moves anything
READS = (Tensor.numpy, Tensor.__array__)


class There(Tensor):
    """A tensor on the pretended device."""


def is_there(tensor: Tensor) -> bool:
    """Whether a tensor is on it."""
    return isinstance(tensor, There) or getattr(tensor, "there", False)


class PretendedDevice(TorchFunctionMode):
    """While it is open, ``device="cuda"`` works, and tensors of several axes on different devices may not meet."""

    def __init__(self) -> None:
        super().__init__()
        self.made = 0  # tensors that were made there
        self.refused: list[str] = []  # functions that were given tensors of both devices

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        if func.__name__ in OF_MODULES:
            return func(*args, **kwargs)
        if func == Tensor.data.__set__:  # type: ignore[attr-defined]
            args[0].there = is_there(args[1])  # a parameter keeps its class
        there = any(map(is_there, tensors))
        if func == Tensor.device.__get__:  # type: ignore[attr-defined]
            return torch.device("cuda", 0) if there else torch.device("cpu")
        if there and func in READS:
            raise TypeError("can't convert cuda:0 device type tensor to numpy")
        apart = there and any(x.ndim and not is_there(x) for x in tensors)
        if apart and func not in MAY_MEET and not (func in INDEXES and is_there(args[0])):
            self.refused.append(func.__name__)
            raise RuntimeError(f"Expected all tensors to be on the same device, but found at least two, cuda:0 and cpu, in {func.__name__}")
        wanted = kwargs.get("device") or next((x for x in args[1:] if func is Tensor.to and _is_device(x)), None)
        goes_there = (
            torch.device(wanted).type == "cuda" if wanted is not None else func is not Tensor.cpu and (there or func is Tensor.cuda)
        )
        self.made += goes_there and not there
        if "device" in kwargs:
            kwargs["device"] = None if wanted is None else "cpu"
        with torch._C.DisableTorchFunctionSubclass():
            result = (
                func(*("cpu" if func is Tensor.to and _is_device(x) else x for x in args), **kwargs) if func is not Tensor.cuda else args[0]
            )
            if goes_there:
                return tree_map_only(Tensor, lambda x: x if isinstance(x, There) else x.as_subclass(There), result)
            return tree_map_only(There, lambda x: x.as_subclass(Tensor), result)


def _is_device(value: Any) -> bool:
    return isinstance(value, torch.device) or (isinstance(value, str) and value.partition(":")[0] in ("cpu", "cuda"))
