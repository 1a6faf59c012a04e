"""The target's side of a module in a process of its own: it is made, copied, cast and called there. ``away.py`` is the judge's side.

What crosses is plain data and arrays. Parameters lie in memory that both sides see: what the judge writes into one is what the module
computes with.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from types import SimpleNamespace
from typing import Any

from ..engine.contained.values import signature_of
from ..engine.core.target import CannotRun
from ..engine.frameworks import Framework, SendBack, make_variant
from .caching import RESETS
from .construct import make
from .empties import SETUPS, empties, empty, set_up, setups
from .forgetting import begun
from .held import Held
from .ingredients import arrays_of, asks_for_window, configured, tables_of, written_bases, written_unscaled
from .names import Sizes
from .sharing import shared
from .speech import DOUBLED, first_array, hooks, under
from .subject import Subject, duplicate, subject_of

BACK = 1 << 20  # to the seed of a call, for the signs of its backward pass
Plain = bool | int | float | str | None


class Workshop:
    """The modules of one target."""

    def __init__(self, found: Any, fw: Framework) -> None:
        self.found, self.fw = found, fw
        self.held = Held(found, fw)
        self.subject: Subject | None = None
        self.numbers = itertools.count(1)
        self.made: dict[int, Any] = {}
        self.varied: dict[tuple[int, str], Callable[..., Any]] = {}
        self.caches: dict[int, Any] = {}

    def begin(self, name: str) -> dict[str, Any] | None:
        """What is known before one is made; None for what is no module. Raises CannotRun."""
        found = subject_of(name, self.found, self.fw)
        if isinstance(found, Subject):
            self.subject = found
            return {"fixed": found.fixed, "guesses": dict(found.guesses), "flags": dict(found.flags)}
        return None if found is None else {"weightless": True}

    def weightless(self, name: str) -> Callable[..., Any]:
        """The module itself, which has no weights. Raises CannotRun."""
        found = subject_of(name, self.found, self.fw)
        if found is None or isinstance(found, Subject):
            raise CannotRun(f"{name} has weights now")
        return found

    def make(self, name: str, sizes: dict[str, Any]) -> dict[str, Any]:
        """Another one. Raises CannotRun."""
        if self.subject is None:  # this process may be another one than that which began
            self.begin(name)
        if self.subject is None:
            raise CannotRun(f"{name} is no module with weights any more")
        return self._keep(make(name, self.subject.maker, Sizes(**sizes), self.fw))

    def copy(self, number: int) -> dict[str, Any]:
        """A deep copy."""
        return self._keep(duplicate(self._now(number)))

    def to(self, number: int, dtype: Any) -> dict[str, Any]:
        """Cast to a type."""
        self.made[number] = hooks(self.fw).cast(self._now(number), dtype)
        return self._described(number)

    def mode(self, number: int, training: bool) -> None:
        """Train mode, or eval mode."""
        self.made[number].train() if training else self.made[number].eval()  # either may be the module's own

    def undropped(self, number: int) -> None:
        """From now on functions of dropout drop nothing in its calls."""
        hooks(self.fw).undropped(self.made[number])

    def reset(self, number: int, method: str) -> None:
        """Call one of its methods that empty it."""
        if method in RESETS:
            getattr(self.made[number], method)()

    def set(self, number: int, path: str, name: str, value: Plain) -> None:
        """Give an attribute of a module within another plain value."""
        setattr(self.made[number].get_submodule(path), name, value)

    def home(self, number: int, arrays: Sequence[Any]) -> None:
        """From now on its parameters lie in these arrays."""
        for parameter, array in zip(self.made[number].parameters(), arrays, strict=True):
            if array is not None:
                parameter.data = array

    def state(self, number: int) -> dict[str, Any]:
        """What ``state_dict`` holds, arrays alone."""
        return {name: held for name, held in self._now(number).state_dict().items() if self.fw.is_array(held)}

    def constants(self, number: int) -> dict[str, Any]:
        """Its buffers, and arrays that are plain attributes."""
        return arrays_of(self._now(number), self.fw)

    def take_over(self, number: int, other: int) -> None:
        """``load_state_dict`` of the state of another one."""
        self.made[number].load_state_dict(self._now(other).state_dict())
        self.fw.show(self.made[number].parameters())

    def drop(self, numbers: Sequence[int]) -> None:
        """These modules and caches are needed no more."""
        for number in numbers:
            self.made.pop(number, None)
            self.caches.pop(number, None)
            for key in [key for key in self.varied if key[0] == number]:
                del self.varied[key]

    # ------------------------------------------------------------ caches

    def empties(self, number: int, parameter: str, batch: int) -> list[tuple[int, str]]:
        """The numbers and types of the empty caches that a parameter may take."""
        return list(empties(self.made[number], parameter, batch, self.fw))

    def empty(self, number: int, parameter: str, at: int, batch: int) -> int:
        """Where a new one of these is kept."""
        made = empty(self.made[number], parameter, at, batch, self.fw)
        self.caches[kept := next(self.numbers)] = made
        return kept

    def set_up(self, number: int, method: str, batch: int) -> None:
        """Have it make its own cache."""
        if method in SETUPS:
            set_up(self.made[number], method, batch, self.fw)

    # ------------------------------------------------------------ calls

    def call(self, number: int, weights: Sequence[Any], given: Sequence[Any], named: dict[str, Any], how: dict[str, Any]) -> dict[str, Any]:
        """What a call returns, and the names of what it computed where these are asked for."""
        names: list[str] = []
        module = self._now(number)
        with ExitStack() as stack:
            stack.enter_context(hooks(self.fw).still())
            if how.get("watch"):
                names = stack.enter_context(under(module, self.fw, "watched", how.get("logits") is True))
            stack.enter_context(self._mode(module, how))
            stack.enter_context(self._doubled(how))
            result = self._function(number, how)(*map(self._own, given), **{name: self._own(value) for name, value in named.items()})
        self.fw.show(module.parameters())
        return {"result": _told(result), "names": list(names)}

    def recorded(self, given: Sequence[Any], leaves: Sequence[Any]) -> tuple[Any, Any]:
        """(the output of a call, what sends a gradient of it back to these arrays: parameters, and arguments)."""
        number, weights, arguments, named, how = given
        module = self._now(number)
        asking: dict[int, Any] = {}
        for parameter, weight in zip(module.parameters(), weights or [None] * len(list(module.parameters())), strict=True):
            asked = any(leaf is weight for leaf in leaves)
            parameter.requires_grad_(asked)
            if asked:
                asking[id(weight)] = parameter
        passed: dict[int, Any] = {}
        for leaf in leaves:
            if id(leaf) not in asking:
                asking[id(leaf)] = hooks(self.fw).leaf(leaf.detach())
                passed[id(leaf)] = hooks(self.fw).as_passed(asking[id(leaf)])

        def swapped(value: Any) -> Any:
            if id(value) in passed:
                return passed[id(value)]
            if type(value) in (tuple, list) and any(id(item) in passed for item in value):  # another list is not the one that was given
                return type(value)(map(swapped, value))
            return self._own(value)

        function = self._function(number, how)
        with self._mode(module, how), self._doubled(how):
            result = _told(function(*map(swapped, arguments), **{name: swapped(value) for name, value in named.items()}))
        out = first_array(result, self.fw)
        if isinstance(result, Mapping):  # the first array of an answer is the one whose gradient is sent back
            result = {name: value for name, value in result.items() if value is out} | dict(result)
        elif not isinstance(result, tuple | list):
            result = out
        send_back = hooks(self.fw).sends_back(out, [asking[id(leaf)] for leaf in leaves])
        return {"result": result, "names": []}, UnderMode(send_back, lambda: self._mode(module, how, BACK)) if send_back and how.get(
            "mode"
        ) else send_back

    def _function(self, number: int, how: dict[str, Any]) -> Callable[..., Any]:
        """The module, or what a variant makes of it."""
        module, variant = self.made[number], how.get("variant")
        if not variant:
            return module
        if (number, variant) not in self.varied:
            self.varied[number, variant] = make_variant(self.fw, variant, module)
        return self.varied[number, variant]

    def _mode(self, module: Any, how: dict[str, Any], more: int = 0) -> AbstractContextManager[Any]:
        """The mode in which a call, or its backward pass, is made; ``more``: is added to the seed."""
        match how.get("mode"):
            case ["perturbed", int(seed), *arguments]:
                return under(module, self.fw, "perturbed", seed + more, *arguments)
            case ["widened", *arguments]:
                return under(module, self.fw, "widened", *arguments)
        return nullcontext()

    def _doubled(self, how: dict[str, Any]) -> AbstractContextManager[Any]:
        """How a call in float64 is made."""
        opened: AbstractContextManager[Any] = getattr(hooks(self.fw), how["doubled"])() if how.get("doubled") in DOUBLED else nullcontext()
        return opened

    def _own(self, value: Any) -> Any:
        return self.caches[value.kept] if isinstance(value, SimpleNamespace) and hasattr(value, "kept") else value

    def _now(self, number: int) -> Any:
        """A module, with what the judge has written into its parameters."""
        self.fw.refresh(self.made[number].parameters())
        return self.made[number]

    # ------------------------------------------------------------ what the judge sees of one

    def _keep(self, module: Any) -> dict[str, Any]:
        number = next(self.numbers)
        self.made[number] = module
        begun(module)
        return self._described(number)

    def _described(self, number: int) -> dict[str, Any]:
        module = self.made[number]
        index = {id(parameter): at for at, parameter in enumerate(module.parameters())}
        return {
            "number": number,
            "parts": [
                [path, type(part).__name__, type(part).__module__, *_plain(part), {name: index[id(p)] for name, p in own(part)}]
                for path, part in module.named_modules()
            ],
            "parameters": [[name, parameter.data, bool(parameter.requires_grad)] for name, parameter in module.named_parameters()],
            "shared": shared(module),
            "buffers": [name for name, _ in module.named_buffers()],
            "tables": tables_of(module, self.fw),
            "setups": setups(module),
            "resets": [name for name in RESETS if callable(getattr(module, name, None))],
            "forward": signature_of(module.forward),
            "unrecorded": hooks(self.fw).unrecorded(module),
            "unscaled": written_unscaled(module),
            "bases": written_bases(module),
            "windowed": asks_for_window(module),
        }


class UnderMode:
    """A backward pass that is made in the mode of its call."""

    def __init__(self, send_back: SendBack, mode: Callable[[], AbstractContextManager[Any]]) -> None:
        self.send_back, self.mode = send_back, mode

    def __call__(self, grad_out: Any, again: bool = False) -> list[Any]:
        """As ``SendBack``."""
        with self.mode():
            return self.send_back(grad_out, again)


def own(part: Any) -> list[tuple[str, Any]]:
    """The parameters of a module within, those of its own modules left out."""
    return list(part.named_parameters(recurse=False))


def _told(result: Any) -> Any:
    """What a call returns; the fields of a dataclass by their names."""
    if dataclasses.is_dataclass(result) and not isinstance(result, type | Mapping):
        return {field.name: getattr(result, field.name) for field in dataclasses.fields(result)}
    return result


def _plain(part: Any) -> tuple[dict[str, Any], list[str]]:
    """(the attributes of a module that are plain data, with numbers of a configuration that it holds; the names of the others)."""
    plain, others = {}, []
    for name, value in vars(part).items():
        if name.startswith("_"):
            continue
        if value is None or type(value) in (bool, int, float, str) or (type(value) in (tuple, list) and all(type(x) is int for x in value)):
            plain[name] = value
        else:
            others.append(name)
    return plain | configured(part), others
