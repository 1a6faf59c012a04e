"""What the files of a module keep between its calls: answers of functions (``functools.lru_cache``), and arrays in their dictionaries.

A call whose rounding is followed is told another type than it computes in. A table that it keeps by that type is a wrong one for other calls, and
one that they have kept is a wrong one for it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from inspect import CO_VARARGS, CO_VARKEYWORDS
from typing import Any

LIBRARY = "torch"  # whose own files keep nothing of this kind
_FIRST: dict[
    int, tuple[Any, frozenset[Any]]
] = {}  # of each dictionary, by its place in memory: it, and the keys that it had before the first call


def begun(module: Any) -> None:
    """To be told of a module that has not been called yet: what its files hold now is theirs."""
    for held in _dictionaries(_files_of(module)):
        _FIRST.setdefault(id(held), (held, frozenset(held)))


@contextmanager
def forgetting(module: Any, is_array: Callable[[Any], bool]) -> Iterator[None]:
    """While it is open, nothing is known there of calls before; afterwards nothing of those meanwhile."""
    files = _files_of(module)
    functions = [value for names in files for value in names.values() if isinstance(value, functools._lru_cache_wrapper) and _asks(value)]
    before = [(held, dict(held)) for held in _dictionaries(files)]
    for held, entries in before:
        first = _FIRST.get(id(held), (held, frozenset()))[1]
        for key in [key for key, value in entries.items() if key not in first and _holds(value, is_array)]:
            del held[key]
    for function in functions:
        function.cache_clear()
    try:
        yield
    finally:
        for held, entries in before:
            held.clear()
            held.update(entries)
        for function in functions:
            function.cache_clear()


def _files_of(module: Any) -> list[Mapping[str, Any]]:
    """The names of the files in which the classes of a module, and of those within, stand, and of these classes."""
    classes = {
        kind for inner in module.modules() for kind in type(inner).__mro__ if kind.__module__.partition(".")[0] not in (LIBRARY, "builtins")
    }
    spaces = [getattr(vars(kind).get("forward"), "__globals__", {}) for kind in classes]
    return [*{id(space): space for space in spaces}.values(), *map(vars, classes)]


def _dictionaries(files: list[Mapping[str, Any]]) -> list[dict[Any, Any]]:
    return [value for names in files for name, value in names.items() if type(value) is dict and not name.startswith("__")]


def _asks(function: Any) -> bool:
    """Whether it has parameters: what is answered without any hangs on no type."""
    code = getattr(function.__wrapped__, "__code__", None)
    return code is None or bool(code.co_argcount + code.co_kwonlyargcount or code.co_flags & (CO_VARARGS | CO_VARKEYWORDS))


def _holds(value: Any, is_array: Callable[[Any], bool]) -> bool:
    """Whether it is an array, or a tuple or list with one."""
    return is_array(value) or (isinstance(value, tuple | list) and any(map(is_array, value)))
