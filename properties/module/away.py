"""A module in a process of its own, as the judge sees it: the same names, types and plain attributes, parameters in shared memory.

What decides is computed here; a call, a cast, a gradient are asked of ``workshop.py`` over there. Where that process has ended, the next
question makes the module anew, in another one, with the parameters that it has here.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

from ..engine.contained.link import Gone
from ..engine.contained.stub import Stub, signature
from ..engine.contained.values import identifier
from ..engine.core.target import CannotRun
from ..engine.frameworks import Framework
from .names import Sizes


class Shop:
    """What makes the modules of a target in its process."""

    def __init__(self, name: str, stub: Stub, fw: Framework) -> None:
        self.name, self.stub, self.fw = name, stub, fw
        self.left: list[int] = []  # modules and caches that nobody holds any more

    @property
    def generation(self) -> int:
        """How often the process was started."""
        return self.stub.link.generation

    @property
    def runs(self) -> bool:
        """Whether its process has not been found to have ended."""
        return self.stub.link.socket is not None

    def ask(self, method: str, *arguments: Any) -> Any:
        """Raises CannotRun if a module cannot be made, Gone, and whatever else is raised over there."""
        try:
            return self.stub.workshop(method, *arguments)
        except Exception as error:
            if method in ("begin", "make") and type(error).__name__ == "CannotRun":  # what a target raises in a call is its own
                raise CannotRun(str(error)) from None
            raise

    def tell(self, method: str, *arguments: Any) -> None:
        """Ask where no answer is needed."""
        self.stub.tell_workshop(method, *arguments)

    def begin(self) -> dict[str, Any] | None:
        """What is known before a module is made; None for what is no module. Raises CannotRun."""
        try:
            found = self.ask("begin", self.name)
        except Gone as gone:
            raise CannotRun(f"{self.name} cannot be made: it {gone}") from None
        except CannotRun:
            raise
        except Exception as error:
            raise CannotRun(f"{self.name} cannot be made: {type(error).__name__}: {str(error)[:200]}") from None
        return found if isinstance(found, dict) else None

    def make(self, sizes: Sizes) -> Away:
        """A new one. Raises CannotRun, Gone."""
        if self.left:
            left, self.left = self.left, []
            self.tell("drop", left)
        arguments = self.name, vars(sizes)
        return whole(self, [("make", arguments)], self.ask("make", *arguments))


class Part:
    """A module within. Its attributes are the plain ones that it has over there, and placeholders for the others."""

    _own: Mapping[str, Any]
    _path: str
    _whole: Any = None

    def __init__(self, path: str, plain: Mapping[str, Any], others: list[str], own: Mapping[str, Any]) -> None:
        attributes = {str(name): _Other() for name in others} | dict(plain)
        self.__dict__.update({name: value for name, value in attributes.items() if not (name.startswith("_") or hasattr(Away, name))})
        self.__dict__.update(_own=own, _path=path)

    def __getattr__(self, name: str) -> Any:
        if name in ("bias", "weight") or name in self.__dict__.get("_own", ()):
            return self._own.get(name)
        raise AttributeError(name)

    def __setattr__(self, name: str, value: Any) -> None:
        self.__dict__[name] = value
        if not name.startswith("_"):
            whole = self if self._whole is None else self._whole()
            whole.change("set", self._path, name, value)

    def named_parameters(self, recurse: bool = True) -> Iterator[tuple[str, Any]]:
        """Its own."""
        yield from self._own.items()


class _Other:
    """Something that is no plain data: that it is there is all that is known."""


class Kept(SimpleNamespace):
    """Stands for a cache that is over there, as long as it is held here."""


class Away(Part):
    """The whole module. Its class has the name of the module's."""

    _several: list[list[str]]  # the names of each parameter that has several

    def __init__(self, shop: Shop, history: list[tuple[str, tuple[Any, ...]]], told: Mapping[str, Any]) -> None:
        _, _, _, plain, others, _ = told["parts"][0]
        super().__init__("", plain, others, {})
        place = {"number": int(told["number"]), "generation": shop.generation}
        self.__dict__.update(_shop=shop, _history=history, _how={}, _names=[], _place=place)
        weakref.finalize(self, _left, shop, place)
        self._become(told)

    def _become(self, told: Mapping[str, Any]) -> None:
        """As it is described; its parameters go into memory that both see."""
        shop: Shop = self._shop
        held = {str(name): _housed(shop.fw, array, asks) for name, array, asks in told["parameters"]}
        arrays = list(held.values())
        parts: list[Part] = []
        for path, kind, home, plain, others, own in told["parts"]:
            mine = {name: arrays[at] for name, at in own.items()}
            if path:
                made = type(identifier(str(kind)), (Part,), {"__module__": str(home)})
                parts.append(made(str(path), plain, others, mine))
                parts[-1].__dict__["_whole"] = weakref.ref(self)
            else:
                self.__dict__["_own"] = mine
        self.__dict__.update(
            _held=held,
            _parts=parts,
            _buffers=list(told["buffers"]),
            _tables=list(told["tables"]),
            _resets=told["resets"],
            setups=list(told["setups"]),
            _unrecorded=str(told["unrecorded"]),
            _bases=[float(number) for number in told["bases"]],
            _unscaled=str(told["unscaled"])[:60],
            _windowed=told["windowed"] is True,
            _several=list(told["shared"]),
        )
        self.__dict__["_formal"] = signature(told["forward"])
        self._move_in()

    def _move_in(self) -> None:
        """From now on the module over there computes with the parameters that it has here."""
        shop: Shop = self._shop
        shop.tell("home", self._place["number"], [None if array is None else array.detach() for array in self._held.values()])

    def _alive(self) -> int:
        """Its number over there; it is made anew where the process is another one."""
        shop, place = self._shop, self._place
        if place["generation"] != shop.generation or not shop.runs:
            (method, arguments), *changes = self._history
            told = shop.ask(method, *arguments)
            with described():
                place["number"] = int(told["number"])
            place["generation"] = shop.generation
            for method, arguments in changes:
                shop.ask(method, place["number"], *arguments)
            self._move_in()
        return int(place["number"])

    def change(self, method: str, *arguments: Any) -> None:
        """Change it, and remember how."""
        self._shop.tell(method, self._alive(), *arguments)
        self._history.append((method, arguments))

    def __getattr__(self, name: str) -> Any:
        if name in self.__dict__.get("_resets", ()):
            return lambda: self.change("reset", name)
        return super().__getattr__(name)

    # ------------------------------------------------------------ as torch.nn.Module has it

    def named_modules(self) -> Iterator[tuple[str, Part]]:
        """Itself, and those within."""
        yield "", self
        yield from ((part._path, part) for part in self._parts)

    def modules(self) -> Iterator[Part]:
        """The same without names."""
        yield self
        yield from self._parts

    def named_parameters(self, recurse: bool = True) -> Iterator[tuple[str, Any]]:
        """All, or its own."""
        yield from ((name, array) for name, array in (self._held if recurse else self._own).items() if array is not None)

    def parameters(self) -> Iterator[Any]:
        """All of them."""
        for _, array in self.named_parameters():
            yield array

    def named_buffers(self) -> Iterator[tuple[str, None]]:
        """Their names: what they hold is over there."""
        for name in self._buffers:
            yield name, None

    def tables(self) -> list[str]:
        """The names of those that may hold distances (``ingredients.tables_of``)."""
        return self._tables

    def unrecorded(self) -> str:
        """The decorator of its ``forward`` under which nothing is recorded (``Modules.unrecorded``)."""
        return self._unrecorded

    def windowed(self) -> bool:
        """Whether its constructor asks how large a window is (``ingredients.asks_for_window``)."""
        return bool(self._windowed)

    def unscaled(self) -> str:
        """Where its code says that logits are not scaled (``ingredients.written_unscaled``)."""
        return self._unscaled

    def bases(self) -> list[float]:
        """Numbers in its code that may be bases of angles (``ingredients.written_bases``)."""
        return self._bases

    def constants(self) -> dict[str, Any]:
        """What its buffers and other arrays that it holds are now, by their names."""
        found = self._shop.ask("constants", self._alive())
        return {str(name): array for name, array in found.items() if self._shop.fw.is_array(array)} if isinstance(found, dict) else {}

    def named_twice(self) -> list[list[str]]:
        """The names of each parameter that has several."""
        return self._several

    def state_dict(self) -> State:
        """What its state holds now."""
        found = self._shop.ask("state", self._alive())
        state = State(found if isinstance(found, dict) else {})
        state.of = self
        return state

    def load_state_dict(self, state: State) -> None:
        """Take over the state of another one of the same process."""
        self._shop.ask("take_over", self._alive(), state.of._alive())

    def train(self, mode: bool = True) -> Away:
        """Train mode."""
        self.change("mode", mode)
        return self

    def eval(self) -> Away:
        """Eval mode."""
        return self.train(False)

    def to(self, dtype: Any, device: str = "cpu") -> Away:
        """Cast to a type."""
        told = self._shop.ask("to", self._alive(), dtype)
        with described():
            self._become(told)
        self._history.append(("to", (dtype,)))
        return self

    def __deepcopy__(self, memo: Any) -> Away:
        told = self._shop.ask("copy", self._alive())
        return whole(self._shop, list(self._history), told)

    def empties(self, parameter: str, batch: int) -> list[tuple[int, str]]:
        """The numbers and types of the empty caches that a parameter may take."""
        told = self._shop.ask("empties", self._alive(), parameter, batch)
        return [(at, kind) for at, kind in told if type(at) is int and isinstance(kind, str)]

    def empty(self, parameter: str, at: int, batch: int) -> Any:
        """What stands for a new one of these, which is over there."""
        kept = self._shop.ask("empty", self._alive(), parameter, at, batch)
        made = Kept(kept=kept)
        weakref.finalize(made, _left, self._shop, {"number": kept, "generation": self._shop.generation})
        return made

    # ------------------------------------------------------------ calls

    @property
    def forward(self) -> Callable[..., Any]:
        """Itself, with the signature of its ``forward``."""

        def forward(*arguments: Any, **options: Any) -> Any:
            return self(*arguments, **options)

        forward.__signature__ = self._formal  # type: ignore[attr-defined]
        return forward

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self.called({}, arguments, options)

    def called(self, how: Mapping[str, Any], arguments: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
        """What a call returns. Raises as it does over there."""
        number = self._alive()
        recording = any(self._shop.fw.asks(array) for array in self._held.values() if array is not None)
        weights = list(self._held.values()) if recording else []
        link = self._shop.stub.link
        link.slow = "variant" in how
        try:
            told = self._shop.ask("call", number, weights, list(arguments), dict(options), {**self._how, **how})
        finally:
            link.slow = False
        if not isinstance(told, dict):
            raise Gone("answered what is no answer")
        self._names.extend(str(name) for name in told.get("names", ()))
        return told.get("result")

    @contextmanager
    def under(self, mode: str, *arguments: Any) -> Iterator[list[str]]:
        """Meanwhile calls are made in a mode of ``Modules``; under ``watched`` the names of what is computed come into the list."""
        before, names = self._how, self._names
        match mode:
            case "watched":
                how: dict[str, Any] = {"watch": True, "logits": True in arguments}
            case "defaulted" | "single":  # within another mode, and under a watch
                how = {"doubled": mode}
            case _:
                how = {"mode": [mode, *arguments]}
        self.__dict__.update(_how={**before, **how}, _names=names if "doubled" in how else [])
        try:
            yield self._names
        finally:
            self.__dict__.update(_how=before, _names=names)

    def through(self, variant: str) -> Varied:
        """It, seen through a variant that is made of it over there."""
        return Varied(self, variant)


class Varied:
    """A module that is seen through a variant."""

    def __init__(self, module: Away, variant: str) -> None:
        self.under = module.under
        self.called = partial(module.called, {"variant": variant})

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self.called(arguments, options)


class State(dict[str, Any]):
    """What ``state_dict`` holds, and whose it is."""

    of: Away


def whole(shop: Shop, history: list[tuple[str, tuple[Any, ...]]], told: Any) -> Away:
    """What stands for a module that is described so. Raises Gone for what is no description."""
    with described():
        kind, home = told["parts"][0][1:3]
        made: Away = type(identifier(str(kind)), (Away,), {"__module__": str(home)})(shop, history, told)
        return made


@contextmanager
def described() -> Iterator[None]:
    """Meanwhile a description of a module is read. Raises Gone for what is none."""
    try:
        yield
    except (TypeError, ValueError, KeyError, IndexError, AttributeError):
        raise Gone("answered what is no answer") from None


def _housed(fw: Any, array: Any, asks: Any) -> Any:
    """A parameter in memory that both sides see; None for what cannot lie there."""
    if not fw.is_array(array):
        return None
    housed = fw.copy_of(array)
    return fw.modules.leaf(housed) if asks else housed


def _left(shop: Shop, place: Mapping[str, int]) -> None:
    """Nobody holds it any more: it is dropped when the next one is made."""
    if place["generation"] == shop.generation:
        shop.left.append(place["number"])
