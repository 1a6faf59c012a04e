"""Empty caches that a module may fill: objects of classes beside it, made for the heads that it has, dictionaries and lists.

A cache is numbered among all that may be tried for a parameter, so that one of the same kind is made for a module of other sizes, or elsewhere.
"""

from __future__ import annotations

import inspect
import re
import sys
import typing
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from ..engine.core.target import CannotRun
from ..engine.frameworks import Framework
from .away import Away
from .construct import recipes
from .names import CACHE_ROLES, CACHED, CONSTRUCTOR_ROLES, FORWARD_ROLES, Sizes, role
from .readings import formal_of
from .speech import hooks

SETUPS = (
    "setup_cache",
    "setup_caches",
    "setup_kv_cache",
    "init_cache",
    "init_kv_cache",
    "build_kv_cache",
    "allocate_kv_cache",
    "enable_kv_cache",
    "set_kv_cache",
)
Maker = Callable[[int], Any]  # of a cache for so many sequences


def empties(module: Any, parameter: str, batch: int, fw: Framework) -> Iterator[tuple[int, str]]:
    """(number, type) of each cache that can be made for a parameter."""
    if isinstance(module, Away):
        yield from module.empties(parameter, batch)
        return
    made: dict[Any, list[int]] = {}
    for at, (kind, maker) in enumerate(_makers(module, parameter, fw)):
        with suppress(Exception, SystemExit):
            maker(batch)
            made.setdefault(kind, []).append(at)
    for kind, numbers in made.items():
        yield from ((at, PLAIN.get(kind, kind.__name__)) for at in (numbers if kind in PLAIN else numbers[:1]))


def empty(module: Any, parameter: str, at: int, batch: int, fw: Framework) -> Any:
    """A new cache of a number. Raises as its class does."""
    if isinstance(module, Away):
        return module.empty(parameter, at, batch)
    return list(_makers(module, parameter, fw))[at][1](batch)


def set_up(module: Any, method: str, batch: int, fw: Framework) -> None:
    """Have a module make its own cache for so many sequences. Raises as it does, and CannotRun."""
    if isinstance(module, Away):
        module.change("set_up", method, batch)
        return
    of = getattr(module, method)
    made = of(**_arguments(of, module, batch, fw))
    place = next((name for name, value in vars(module).items() if value is None and role(name, FORWARD_ROLES) == "past"), "")
    if made is not None and place:  # which whoever calls it is to put there
        setattr(module, place, made)
    kind, device = _like(module, fw)
    hooks(fw).cast(module, kind, device)


def setups(module: Any) -> list[str]:
    """The methods with which a module makes its own cache."""
    if isinstance(module, Away):
        return module.setups
    return [name for name in SETUPS if callable(getattr(module, name, None))]


# ---------------------------------------------------------------- what makes one


class Nothing(defaultdict[Any, None]):
    """A dictionary in which everything is None at first."""

    def __init__(self) -> None:
        super().__init__(lambda: None)


PLAIN = {dict: "dict", list: "list", Nothing: "dict of None"}


def _makers(module: Any, parameter: str, fw: Framework) -> Iterator[tuple[Any, Maker]]:
    """(type, maker): of classes that are annotated, else beside the module, or a class that it extends, and called so; plain ones."""
    beside = [
        pair for kind in type(module).__mro__ if kind.__module__ in sys.modules for pair in vars(sys.modules[kind.__module__]).items()
    ]
    named = _annotated(formal_of(module)[parameter].annotation, dict(beside))
    called = [thing for name, thing in beside if inspect.isclass(thing) and name.lower().endswith("cache")]
    named += [cls for cls in called if not named or issubclass(cls, tuple(named))]
    for cls in dict.fromkeys(named):
        if cls in PLAIN or inspect.isabstract(cls) or (hasattr(cls, "forward") and not hooks(fw).uncalled(cls)):
            continue
        yield cls, partial(_sized, cls, module, fw)
        yield cls, _whatever(cls)
        with suppress(CannotRun):
            for recipe in recipes(cls, {}):
                yield cls, _whatever(partial(recipe, Sizes()))
    if keys := _keyed_by_modules(module, parameter):
        yield dict, lambda batch: hooks(fw).kept([getattr(module, key) for key in keys])
    for plain in PLAIN:
        yield plain, _whatever(plain)


def _annotated(hint: Any, beside: Mapping[str, Any]) -> list[type]:
    """The classes of which an annotation says that one is given, written out or not; none that hold arrays only, or nothing."""
    if isinstance(hint, str):
        parts = [beside.get(name) for name in re.findall(r"\w+", hint)]
    else:
        parts = [hint, *typing.get_args(hint)]
    return [part for part in parts if inspect.isclass(part) and part.__module__ not in ("builtins", "inspect", "typing", "torch")]


def _whatever(make: Callable[[], Any]) -> Maker:
    """One that is the same however many sequences there are."""
    return lambda batch: make()


def _sized(cls: type, module: Any, fw: Framework, batch: int) -> Any:
    made = cls(**_arguments(cls, module, batch, fw))
    return hooks(fw).alike(made, *_like(module, fw))


def _arguments(of: Callable[..., Any], module: Any, batch: int, fw: Framework) -> dict[str, Any]:
    """Those of what makes a cache: known names, sizes of the module. Raises CannotRun for another one without a default."""
    known = _sizes(module) | {"batch": batch, "length": CACHED, "layers": 1, "layer": 0}
    known["type"], known["device"] = _like(module, fw)
    made: dict[str, Any] = {}
    for parameter in inspect.signature(of).parameters.values():
        meant = role(parameter.name, CACHE_ROLES)
        if meant:
            made[parameter.name] = known[meant]
        elif parameter.default is parameter.empty and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise CannotRun(f"what its {parameter.name} is is not known")
    return made


def _sizes(module: Any) -> dict[str, Any]:
    """Heads of keys, features of each, and those of tokens: as attributes say, else what its matrices are."""
    said: dict[str, int] = {}
    for inner in module.modules():
        for name, value in vars(inner).items():
            if type(value) is int and (meant := role(name, CONSTRUCTOR_ROLES)):
                said.setdefault(meant, value)
    sides = Counter(side for parameter in module.parameters() if len(parameter.shape) == 2 for side in parameter.shape)
    width = sides.most_common(1)[0][0] if sides else Sizes().heads * Sizes().head_dim
    heads = said.get("heads", Sizes().heads)
    return {"heads": said.get("kv_heads", heads), "head_dim": said.get("head_dim", width // heads), "width": width}


def _like(module: Any, fw: Framework) -> tuple[Any, str]:
    """(type, device) of what a module holds."""
    for parameter in module.parameters():
        _, dtype, device = fw.describe(parameter)
        return fw.named_dtype(dtype), device
    return fw.named_dtype("float64"), "cpu"


def _keyed_by_modules(module: Any, parameter: str) -> list[str]:
    """The layers within by which its ``forward`` looks into a dictionary, whose answers somebody else's hooks are to put there."""
    try:
        written = inspect.getsource(type(module).forward)
    except (OSError, TypeError):
        return []
    found = dict.fromkeys(re.findall(rf"\b{re.escape(parameter)}\[self\.(\w+)\]", written))
    return [name for name in found if hasattr(getattr(module, name, None), "forward")]
