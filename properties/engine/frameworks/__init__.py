"""Arrays of the target's framework, made from carriers and read back, in every memory layout.

A framework is one file of this folder, which defines ``FRAMEWORK``. Nothing else in the checker knows of any.
"""

from __future__ import annotations

import os
import pkgutil
import re
import sys
from functools import cache
from importlib import import_module
from types import CodeType, FunctionType, ModuleType
from typing import Any

from .buffers import Buffers, Given, Lying, One, Together
from .protocol import (
    ELSEWHERE,
    LAYOUT_REASONS,
    LAYOUTS,
    STRETCHED,
    TRAINING,
    Answered,
    Framework,
    Modules,
    SendBack,
    Unfollowed,
    Variant,
    draws,
    has_layout,
    sets_the_seed,
)
from .variants import cache_variant, make_variant

__all__ = [
    "ELSEWHERE",
    "LAYOUTS",
    "LAYOUT_REASONS",
    "STRETCHED",
    "TRAINING",
    "Answered",
    "Buffers",
    "Framework",
    "Given",
    "Lying",
    "Modules",
    "One",
    "SendBack",
    "Together",
    "Unfollowed",
    "Variant",
    "cache_variant",
    "draws",
    "framework",
    "frameworks",
    "has_layout",
    "likely_frameworks",
    "make_variant",
    "no_device",
    "sets_the_seed",
    "with_modules",
]
SHARED = ("buffers", "machine", "protocol", "tensors", "torch_logits", "torch_modules", "variants")  # what is no framework
ALWAYS = ("numpy", "torch")  # tried on every callable that does not say; others where its process knows them


@cache
def frameworks() -> tuple[str, ...]:
    """The names of all frameworks, installed or not."""
    others = (module.name for module in pkgutil.iter_modules(__path__) if module.name not in (*SHARED, *ALWAYS))
    return (*ALWAYS, *others)


def framework(name: str) -> Framework:
    """The framework of that name. Raises ValueError if it is unknown, ImportError if it is not installed."""
    if name not in frameworks():
        raise ValueError(f"unknown framework {name!r}; known: {', '.join(frameworks())}")
    made: Framework = import_module(f".{name}", __name__).FRAMEWORK()
    return made


def likely_frameworks(function: Any) -> tuple[str, ...]:
    """The frameworks to try for a callable that does not say: first those that it names itself, then others that its module has imported."""
    home = str(getattr(function, "__module__", "") or "")
    names = getattr(sys.modules.get(home), "__dict__", {})
    modules = {alias: value.__name__.partition(".")[0] for alias, value in list(names.items()) if isinstance(value, ModuleType)}
    others = [name for name in reversed(frameworks()) if name != "numpy"]  # everybody imports NumPy
    first = [name for name in others if name in modules.values() or name in names or name in home]
    plain = function if isinstance(function, FunctionType) else getattr(function, "__wrapped__", None)
    own = {modules.get(name) for name in _named(plain.__code__)} if isinstance(plain, FunctionType) else set()
    first.sort(key=lambda name: name not in own)
    return (*first, *(name for name in frameworks() if name not in first and (name in ALWAYS or name in sys.modules)))


def _named(code: CodeType) -> set[str]:
    """The names of what a function's code reads, those within it included."""
    return {*code.co_names}.union(*(_named(part) for part in code.co_consts if isinstance(part, CodeType)))


def with_modules(thing: Any) -> tuple[Framework, ...]:
    """The frameworks, among those that are imported already, of which a thing is a module, or makes one: a class, or a partial one."""
    maker = getattr(thing, "func", thing)
    found = []
    for fw in (framework(name) for name in frameworks() if name in sys.modules):
        own = getattr(getattr(thing, "framework", None), "name", "") == fw.name  # what has been made a target once
        if fw.modules is not None and (own or fw.modules.is_module(thing) or fw.modules.is_class(maker)):
            found.append(fw)
    return tuple(found)


OF_GPUS = re.compile("nvidia|nvhost|nvgpu|kfd|dxg")  # as Linux calls what a GPU is reached by


def no_device(device: str) -> str:
    """Why there is no such device here, whatever the framework; empty if there is. Where the system has no GPU, none is imported to say so."""
    missing = ""
    kind = device.partition(":")[0]
    nowhere = kind == "cuda" and sys.platform == "linux" and not any(map(OF_GPUS.match, os.listdir("/dev")))
    for name in frameworks():
        if nowhere and name not in sys.modules:
            continue
        try:
            if kind in framework(name).devices():
                return ""
        except ImportError:
            missing += f"; {name} is not installed" * (name in ALWAYS)
    return f"there is no device {device!r} here{missing}"
