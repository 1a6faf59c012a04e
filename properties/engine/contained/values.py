"""Arguments and answers as messages: arrays are places in shared memory, everything else is plain data.

What the target's side says of an array is checked against the memory before one is made of it.
"""

from __future__ import annotations

import keyword
import math
import numbers
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from inspect import CO_VARARGS, CO_VARKEYWORDS
from types import FunctionType, MethodType, SimpleNamespace
from typing import Any, Protocol

import numpy as np

from ..frameworks import Framework
from ..frameworks.numpy import address_of
from .arena import SIZE, Arena, extent

ITEMSIZE = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
    "complex128": 16,
    "complex64": 8,
    "complex32": 4,
}
PLAIN = (bool, int, float, str)  # asked of every value of every call: a union would be made anew each time
FLOATS = ("float64", "float32", "float16", "bfloat16")
DEEPEST, MOST, LONGEST = 5, 100_000, 2_000  # nested containers, elements of one, characters of a text


class Unfit(Exception):
    """What arrived describes no value."""


def numbers_in(value: Any, fw: Framework) -> Iterator[Any]:
    """The arrays of floating-point numbers in an answer, in the order in which they are told; of an object its attributes."""
    if fw.is_array(value):
        if fw.describe(value)[1] in FLOATS:
            yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from numbers_in(item, fw)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from numbers_in(item, fw)
    elif value is not None and not isinstance(value, PLAIN):
        yield from (part for part in _attributes(value).values() if fw.is_array(part) and fw.describe(part)[1] in FLOATS)


def _attributes(value: Any) -> dict[str, Any]:
    """The public attributes of an object that can be looked at."""
    found = {}
    for name in dir(value)[:1000] if type(value).__module__ != "numpy" else ():
        if not name.startswith("_"):
            try:
                found[name] = getattr(value, name)
            except Exception:  # what cannot be looked at is not there
                continue
    return found


@lru_cache(4096)
def contiguous(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """The strides of an array that lies row by row."""
    strides: list[int] = []
    step = itemsize
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


# ---------------------------------------------------------------- the judge's side


class Remote:
    """Stands for an object of the target's. As an argument it is that object again."""

    def handle(self) -> int:
        """Its number over there. Raises Gone."""
        raise NotImplementedError


@dataclass(frozen=True)
class Dropper:
    """Stands for ``Framework.dropper`` of the target's process."""

    probability: float


class ToldList(list[Any]):
    """A list of an answer: the call, and which of its lists and dictionaries. As an argument it is that list again."""

    call, at = 0, 0


class ToldDict(dict[str, Any]):
    """A dictionary of an answer, as above."""

    call, at = 0, 0


ToldList.__name__, ToldDict.__name__ = "list", "dict"  # what they are called in messages


class Earlier(Protocol):
    """Answers that are still kept over there."""

    def array(self, address: int, length: int) -> list[int] | None:
        """(a call, which array of its answer) that lies here in all of such memory; None if none does."""

    def lives(self, call: int) -> bool:
        """Whether the answer to a call is kept."""


class Arguments:
    """Arguments on their way; the memory that they need is retained until the call is over."""

    def __init__(self, fw: Framework, arena: Arena, leaves: list[Any], earlier: Earlier | None = None) -> None:
        self.fw, self.arena, self.leaves = fw, arena, leaves
        self.earlier = earlier  # answers of which parts are the target's own again
        self.retained: list[Any] = []
        self.copies: list[tuple[Any, Any]] = []  # (an array that lies elsewhere, the memory of its copy, which both see)
        self.met: dict[int, int] = {}  # id of an array → its number: one and the same array is one there, too

    def encode(self, value: Any) -> Any:
        if value is None or type(value) in PLAIN:
            return value
        if self.fw.is_array(value):
            return self._array(value)
        if isinstance(value, str):
            return str.__str__(value)
        if self.earlier and isinstance(value, ToldList | ToldDict) and self.earlier.lives(value.call):
            return ["c", value.call, value.at]
        if isinstance(value, tuple | list):
            return ["t" if isinstance(value, tuple) else "l", [self.encode(item) for item in value]]
        if isinstance(value, dict):
            return ["d", {name: self.encode(item) for name, item in value.items()}]
        if isinstance(value, Remote):
            return ["h", value.handle()]
        if isinstance(value, Dropper):
            return ["p", float(value.probability)]
        if isinstance(value, SimpleNamespace):
            return ["m", {name: self.encode(item) for name, item in vars(value).items()}]
        if isinstance(value, numbers.Integral):
            return int(value)
        if isinstance(value, numbers.Real):
            return float(value)
        if isinstance(value, np.bool_):  # what NumPy makes of an array without axes, once it is inverted
            return self.encode(np.asarray(value) if self.fw.is_array(np.asarray(value)) else bool(value))
        for name in self.fw.dtypes:
            if value == self.fw.named_dtype(name):
                return ["n", name]
        raise TypeError(f"a {type(value).__name__} cannot be given to a target in a process of its own")

    def _array(self, value: Any) -> Any:
        if id(value) in self.met:
            return ["s", self.met[id(value)]]
        self.met[id(value)] = len(self.met)
        self.retained.append(value)
        leaf = next((at for at, x in enumerate(self.leaves) if x is value), None) if self.leaves else None
        shape, dtype, _ = self.fw.describe(value)
        size = math.prod(shape) * ITEMSIZE[dtype]
        if not size:
            return ["z", shape, dtype, leaf]
        address, strides = self.fw.lies(value)
        place = self.arena.place(address)
        if place is None:  # it is the target's own, or made on the way, as by stacking
            by_rows = contiguous(shape, ITEMSIZE[dtype])
            if self.earlier and leaf is None and strides == by_rows and (came := self.earlier.array(address, size)):
                return ["r", *came, shape]
            chunk = self.arena.chunk(size)
            self.fw.pour(value, chunk)
            self.retained.append(chunk)
            self.copies.append((value, chunk))
            address, strides = address_of(chunk), by_rows
            place = self.arena.place(address)
            assert place is not None
        start, length = place
        return ["a", start, length, address - self.arena.base - start, shape, strides, dtype, leaf]

    def write_back(self) -> None:
        """Write into arrays that lay elsewhere what the target has written into their copies, as if it had got the arrays themselves."""
        for value, copy in self.copies:
            self.fw.refill(value, copy)


class Answers:
    """What came back, made into values of the judge's own. Raises Unfit."""

    def __init__(self, fw: Framework, arguments: Arena, answers: Arena, remote: Callable[[int, str, Any, Any], Any], call: int = 0) -> None:
        self.fw, self.arguments, self.answers, self.remote, self.call = fw, arguments, answers, remote, call
        self.size = 0  # bytes of arrays so far
        self.owners: list[Any] = []  # the memory of each array that was copied, in the order in which they were met; None for the others

    def decode(self, value: Any) -> Any:
        if value is None or isinstance(value, PLAIN):
            return value
        match value:
            case ["t", list(items)]:
                return tuple(self.decode(item) for item in items)
            case ["l", list(items), int(at)]:
                told = ToldList(self.decode(item) for item in items)
                told.call, told.at = self.call, at
                return told
            case ["d", dict(items), int(at)]:
                held = ToldDict({name: self.decode(item) for name, item in items.items()})
                held.call, held.at = self.call, at
                return held
            case ["z" | "a" | "i", *_]:
                self.owners.append(None)
                return self._array(value)
            case ["u", str(name)]:
                return opaque(name)
            case ["o", int(handle), str(name), dict(methods), dict(held)]:
                return self.remote(handle, name, methods, {key: self.decode(item) for key, item in held.items()})
        raise Unfit(f"{str(value)[:60]!r} is no value")

    def _array(self, value: Any) -> Any:
        match value:
            case ["z", list(shape), str(dtype)] if dtype in ITEMSIZE and _sizes(shape) and 0 in shape:
                return self.fw.full(tuple(shape), 0.0, dtype, "cpu")
            case ["a", int(offset), list(shape), str(dtype)] if dtype in ITEMSIZE and _sizes(shape):
                size = math.prod(shape) * ITEMSIZE[dtype]
                self.size += size
                if offset >= 0 and offset + size <= SIZE and size and self.size <= SIZE:  # one piece of it may be claimed many times
                    memory = self.owners[-1] = np.frombuffer(self.answers.map, np.uint8, size, offset).copy()
                    return self.fw.over(memory, 0, tuple(shape), contiguous(tuple(shape), ITEMSIZE[dtype]), dtype)
            case ["i", int(at), list(shape), list(strides), str(dtype)] if dtype in ITEMSIZE and _sizes(shape):
                place = self.arguments.place(self.arguments.base + at)
                whole = len(shape) == len(strides) and all(type(x) is int and abs(x) < SIZE for x in strides)
                if place and whole and math.prod(shape):
                    start, length = place
                    first, last = extent(at - start, tuple(shape), tuple(strides), ITEMSIZE[dtype])
                    steps = all(x % ITEMSIZE[dtype] == 0 for x in (*strides, at - start))
                    if first >= 0 and last <= length and steps:
                        return self.fw.over(self.arguments.piece(start, length), at - start, tuple(shape), tuple(strides), dtype)
        raise Unfit(f"{str(value)[:60]!r} is no array")


def _sizes(shape: list[Any]) -> bool:
    return len(shape) <= 8 and all(type(x) is int and 0 <= x < SIZE for x in shape)


def opaque(name: str) -> Any:
    """Something of the target's that is neither array nor plain data: nothing is known of it but its type's name."""
    return type(identifier(name), (), {})()


def identifier(name: str) -> str:
    """A name that can be printed anywhere."""
    return name[:80] if name[:80].isidentifier() and not keyword.iskeyword(name) else "object"


# ---------------------------------------------------------------- the target's side


class Taking:
    """Arguments that arrive; the arrays of which gradients will be asked are noted."""

    def __init__(self, fw: Framework, arena: Arena, things: Mapping[int, Any], results: Mapping[int, Telling]) -> None:
        self.fw, self.arena, self.things, self.results = fw, arena, things, results
        self.noted: dict[int, Any] = {}  # the number of a leaf → its array
        self.met: list[Any] = []
        self.places: list[tuple[Any, Any]] = []  # (an array, where the judge sees its numbers)

    @property
    def leaves(self) -> list[Any]:
        """In their order."""
        return [self.noted[at] for at in sorted(self.noted)]

    def value(self, value: Any) -> Any:
        """One of them."""
        if value is None or isinstance(value, PLAIN):
            return value
        kind, *rest = value
        if kind in "tl":
            items = [self.value(item) for item in rest[0]]
            return tuple(items) if kind == "t" else items
        if kind in "dm":
            named = {name: self.value(item) for name, item in rest[0].items()}
            return named if kind == "d" else SimpleNamespace(**named)
        if kind == "n":
            return self.fw.named_dtype(rest[0])
        if kind == "s":
            return self.met[rest[0]]
        if kind == "h":
            return self.things[rest[0]]
        if kind == "p":
            return self.fw.dropper(rest[0])
        if kind == "c":
            return self.results[rest[0]].containers[rest[1]]
        if kind == "r":
            number, at, shape = rest
            answered = self.results[number].arrays[at]
            self.met.append(answered if self.fw.describe(answered)[0] == tuple(shape) else answered.reshape(shape))
            return self.met[-1]
        if kind == "z":
            shape, dtype, leaf = rest
            array = self.fw.full(tuple(shape), 0.0, dtype, self.fw.device)
        else:
            start, length, offset, shape, strides, dtype, leaf = rest
            memory = self.arena.piece(start, length)
            array = self.fw.over(memory, offset, tuple(shape), tuple(strides), dtype)
            self.places.append((array, (memory, offset, shape, strides, dtype)))
        if leaf is not None:
            self.noted[leaf] = array
        self.met.append(array)
        return array

    def write_back(self) -> None:
        """What the call has taken away is NaN where the judge sees it: all bits are 1."""
        for array, (memory, offset, shape, strides, dtype) in self.places:
            if self.fw.lost(array):
                np.ndarray((*shape, ITEMSIZE[dtype]), np.uint8, memory, offset, (*strides, 1))[...] = 255
            else:
                self.fw.put_back(array, memory, offset, tuple(shape), tuple(strides), dtype)


class Telling:
    """An answer on its way back: numbers are copied to the memory of answers; an array among the arguments goes back as its place there.

    ``copies``: that, too, is copied.
    """

    def __init__(
        self, fw: Framework, arguments: Arena, answers: Arena, keep: Callable[[Any], int], end: int = 0, copies: bool = False
    ) -> None:
        self.fw, self.arguments, self.answers, self.keep = fw, arguments, answers, keep
        self.end, self.copies = end, copies  # of what is told so far, in the memory of answers
        self.arrays: list[Any] = []
        self.containers: list[Any] = []  # its lists and dictionaries

    def encode(self, value: Any, depth: int = 0) -> Any:
        if value is None or type(value) in (bool, int, float):
            return value
        if type(value) is str:
            return value[:LONGEST]
        if self.fw.is_array(value):
            try:
                return self.array(value)
            except Exception:  # not the call has raised: what came back cannot be read
                return ["u", type(value).__name__]
        if depth < DEEPEST:
            if type(value) in (tuple, list) or (isinstance(value, tuple) and hasattr(value, "_fields")):
                items = [self.encode(item, depth + 1) for item in value[:MOST]]
                return ["t", items] if isinstance(value, tuple) else ["l", items, self._number(value)]
            if isinstance(value, Mapping) and all(isinstance(name, str) for name in value):
                return ["d", {name: self.encode(value[name], depth + 1) for name in list(value)[:MOST]}, self._number(value)]
            return self._object(value, depth)
        return ["u", type(value).__name__]

    def _number(self, value: Any) -> int:
        self.containers.append(value)
        return len(self.containers) - 1

    def _object(self, value: Any, depth: int) -> Any:
        if type(value).__module__ == "numpy":
            return ["u", type(value).__name__]
        methods: dict[str, Any] = {}
        held: dict[str, Any] = {}
        for name, part in _attributes(value).items():
            if self.fw.is_array(part) and len(held) < 32:
                held[name] = self.encode(part, depth + 1)
            elif callable(part) and len(methods) < 256:
                plain = type(part) is MethodType and type(part.__func__) is FunctionType
                methods[name] = _of_methods(part.__func__) if plain else signature_of(part)
        return ["o", self.keep(value), type(value).__name__, methods, held] if methods or held else ["u", type(value).__name__]

    def array(self, value: Any) -> Any:
        if unlike := self.fw.unlike(value):
            return ["u", unlike]
        value = self.fw.plain(value)
        shape, dtype, device = self.fw.describe(value)
        if dtype not in ITEMSIZE or device != self.fw.device:
            return ["u", f"array_of_{dtype}_on_{device}"]
        self.arrays.append(value)
        if math.prod(shape) == 0:
            return ["z", shape, dtype]
        address, strides = self.fw.lies(value)
        if 0 <= address - self.arguments.base < SIZE and not self.copies:
            return ["i", address - self.arguments.base, shape, strides, dtype]
        size = math.prod(shape) * ITEMSIZE[dtype]
        if self.end + size > SIZE:
            return ["u", f"array_of_{size}_bytes"]
        self.fw.pour(value, self.answers.piece(self.end, size))
        made = ["a", self.end, shape, dtype]
        self.end += (size + 63) // 64 * 64
        return made


@lru_cache(4096)
def _of_methods(function: FunctionType) -> list[Any] | None:
    """The parameters of a method that many objects have."""
    return signature_of(MethodType(function, object()))


def _as_its_code_says(function: Any) -> Any:
    """A function whose code names all its parameters, without what it says of them itself; anything else as it is: behind a decorator only
    the words know."""
    if type(function) is not FunctionType or function.__code__.co_flags & (CO_VARARGS | CO_VARKEYWORDS):
        return function
    bare = FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__)
    bare.__kwdefaults__ = function.__kwdefaults__
    return bare


def signature_of(function: Any) -> list[Any] | None:
    """The parameters of a callable as plain data: (name, kind, has a default, the default if it is plain)."""
    import inspect

    try:
        formal = inspect.signature(_as_its_code_says(function)).parameters.values()
    except (TypeError, ValueError):
        return None
    return [[p.name, int(p.kind), p.default is not p.empty, _default(p.default)] for p in formal]


def _default(value: Any) -> bool | int | float | str | None:
    """It, if it is plain and can be written down; None otherwise."""
    written = type(value) in (bool, float) or (type(value) is int and abs(value) < 2**64) or (type(value) is str and len(value) < LONGEST)
    return value if written else None
