"""The target's process: it imports the target, and answers calls. It knows no property, no case, no exact answer."""

from __future__ import annotations

import errno
import inspect
import itertools
import os
import socket
import sys
import warnings
from collections import OrderedDict
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from typing import Any

import numpy as np

from ..frameworks import Framework, cache_variant, framework, frameworks, likely_frameworks, make_variant, with_modules
from . import wire
from .apart import filtered, without_capabilities
from .arena import Arena
from .documentation import documentation
from .limits import end_with_parent, restrict, without_gpus
from .load import NotLoaded, called, instance_of, library_of, load, words_of
from .signatures import with_signature
from .values import ITEMSIZE, LONGEST, Taking, Telling, numbers_in, signature_of

WORKSHOPS: list[Callable[[Any, Framework], Any]] = []  # what a contract has for modules: it makes and calls them in this process
KEPT = 4096  # answers whose arrays can still be looked at, and graphs of them: one call of the contract may be many of the target's


def serve(link: int, arguments: int, answers: int, to_filter: bool) -> None:
    """Answer messages until the judge has gone; ``to_filter``: nothing else keeps it from other processes. Never returns."""
    status = 1
    try:
        os.setsid()
        end_with_parent()
        restrict()
        without_capabilities()
        if to_filter:
            filtered()
        sys.stdout = sys.stderr
        warnings.simplefilter("ignore")
        _Worker(wire.Wire(socket.socket(fileno=link), believes=True), Arena(arguments), Arena(answers)).run()
        status = 0
    except BaseException:
        status = 70  # of this side, not of a target: a target's own errors are answers
    finally:
        os._exit(status)


class _Worker:
    def __init__(self, link: wire.Wire, arguments: Arena, answers: Arena) -> None:
        self.link, self.arguments, self.answers = link, arguments, answers
        self.things: dict[int, Any] = {}  # handle → a callable, or an object that a call has made
        self.quick: dict[int, Callable[..., Any]] = {}  # handle → a callable as it is asked in the quick way
        self.handles = itertools.count()
        self.shop = -1  # the handle of what makes modules, if the target is one
        self.results: OrderedDict[int, Telling] = OrderedDict()  # call → the arrays and containers of its answer
        self.graphs: dict[int, tuple[Any, Any, bool]] = {}  # call → what sends gradients back, its framework, whether faults are avoided
        self.chances: list[ExitStack] = []
        self.changed: list[str] = []
        self.end = 0  # of the last answer, in the memory of answers

    def run(self) -> None:
        awake = False
        while True:
            try:
                message = self.link.receive(awake=awake)
            except wire.Broken:
                return
            try:
                for one in (*message["first"], message):
                    answer = {"r": getattr(self, f"do_{one['do']}")(**one["with"])}
            except NotLoaded as error:
                answer = {"n": str(error)[:LONGEST]}
            except BaseException as error:  # whatever it is, the judge hears of it
                answer = {"e": [type(error).__name__, _said(error), not all(library.usable() for library in _LIBRARIES.values())]}
            self.link.send(answer)
            awake = message["awake"]

    # ------------------------------------------------------------ what can be asked

    def do_load(self, text: str, variant: str, stateful: bool, fw: str, made: bool, folder: str, device: str) -> Any:
        """What a text names: (handle, what is known of it without a call)."""
        _DEVICE[:] = [device]
        without_gpus(device)
        os.chdir(folder)  # where the judge is now, not where it was when the template was made
        found, attribute = load(text)
        found = with_signature(found)
        if made:
            modules = with_modules(found)
            found = WORKSHOPS[0](found, _library(modules[0].name)).weightless(text) if modules else instance_of(found)
        if variant:
            found = (cache_variant if stateful else make_variant)(_library(fw), variant, found)
        supports = getattr(found, "supports", None)
        modules = with_modules(found)
        held = None
        if modules and WORKSHOPS:
            shop = WORKSHOPS[0](found, _library(modules[0].name))
            self.shop, held = self._keep(shop), self._keep(shop.held)
        return {
            "handle": self._keep(found),
            "held": held,
            "shop": self.shop,
            "attribute": attribute,
            "callable": callable(found),
            "type": type(found).__name__,
            "is_class": isinstance(found, type),
            "library": library_of(found),
            "words": documentation(found),
            "modules": [fw.name for fw in modules],
            "signature": signature_of(called(found)) if callable(found) else None,
            "supports": None if inspect.ismethod(supports) or (isinstance(found, type) and callable(supports)) else _plain(supports),
            "likely": list(likely_frameworks(found)),
            "frameworks": [name for name in frameworks() if name in sys.modules],
        }

    def do_call(
        self,
        number: int,
        thing: int,
        method: str,
        fw: str,
        arguments: list[Any],
        options: dict[str, Any],
        record: bool,
        avoiding: bool,
        told: str,
        quick: bool,
        ahead: bool,
        goes_on: bool,
        forget: list[int],
        drop: list[int],
    ) -> Any:
        """Call a thing, or a method of it: (the answer, which of its arrays of numbers carry a gradient that can be sent back).

        ``ahead``: more calls come before its answer is read. ``goes_on``: that of the call before was not read yet; this one lies behind it.
        """
        for old in forget:
            self.results.pop(old, None)
            self.graphs.pop(old, None)
        for handle in drop:
            self.things.pop(handle, None)
        library = _library(fw)
        taking = Taking(library, self.arguments, self.things, self.results)
        given = [taking.value(value) for value in arguments]
        named = {name: taking.value(value) for name, value in options.items()}
        function = self._quickly(thing, library) if quick and not (method or record) else self._thing(thing, method)
        telling = Telling(library, self.arguments, self.answers, self._keep, self.end if goes_on else 0, ahead)
        send_back, carries = None, list[bool]()
        as_told = library.told(told) if told and not record else nullcontext()
        with np.errstate(all="ignore"), as_told, library.settings_kept() as changed, library.avoiding() if avoiding else nullcontext():
            if record and thing == self.shop:
                result, send_back = self.things[thing].recorded(given, taking.leaves)
                carries = [send_back is not None]
            elif record:
                result, carries, send_back = self._recorded(function, library, given, named, taking.leaves)
            else:
                result = function(*given, **named)
            self.changed = changed()
        taking.write_back()
        said = telling.encode(result)
        self.end = telling.end
        self.results[number] = telling
        if send_back is not None:
            self.graphs[number] = (send_back, library, avoiding)
        while len(self.results) > KEPT:
            self.graphs.pop(self.results.popitem(last=False)[0], None)
        return [said, carries]

    def do_fill(self, place: list[Any], numbers: list[Any]) -> None:
        """Write into an array of the judge's what lies in another one of the same form, once the calls before this are over."""
        written, read = (
            np.ndarray((*shape, ITEMSIZE[dtype]), np.uint8, self.arguments.piece(start, length), offset, (*strides, 1))
            for _, start, length, offset, shape, strides, dtype, _ in (place, numbers)
        )
        written[...] = read

    def do_tell(self, thing: int, method: str, fw: str, arguments: list[Any]) -> None:
        """Call a method of a thing, whose answer nobody needs."""
        library = _library(fw)
        taking = Taking(library, self.arguments, self.things, self.results)
        self._thing(thing, method)(*map(taking.value, arguments))

    def _recorded(
        self, function: Callable[..., Any], library: Any, given: list[Any], named: dict[str, Any], leaves: list[Any]
    ) -> tuple[Any, list[bool], Any]:
        """The whole answer, which of its arrays of numbers carry a gradient, and what sends gradients of all of them back to the leaves."""
        whole: list[Any] = []

        def run(*recorded: Any) -> Any:
            def swapped(value: Any) -> Any:
                at = next((i for i, leaf in enumerate(leaves) if leaf is value), None)
                if at is not None:
                    return recorded[at]
                if isinstance(value, dict):
                    return {name: swapped(item) for name, item in value.items()}
                return type(value)(map(swapped, value)) if type(value) in (tuple, list) else value

            whole[:] = [function(*map(swapped, given), **{name: swapped(value) for name, value in named.items()})]
            return tuple(numbers_in(whole[0], library))

        _, send_back = library.record(run, leaves)
        return whole[0], [send_back is not None and library.asks(x) for x in numbers_in(whole[0], library)], send_back

    def do_back(self, number: int, grad: Any, pushed: Any) -> Any:
        """The gradients of the leaves of a call; what these send back to those in ``grad`` and the leaves, where gradients of them are pushed."""
        send_back, library, avoiding = self.graphs[number]
        telling = Telling(library, self.arguments, self.answers, self._keep)
        taking = Taking(library, self.arguments, self.things, self.results)
        grad = taking.value(grad)
        with np.errstate(all="ignore"), library.settings_kept(), library.avoiding() if avoiding else nullcontext():
            found = send_back(grad, True) if pushed is None else send_back.bend(grad, taking.value(pushed))
            return telling.encode(list(found))

    def do_again(self, numbers: list[int], fw: str) -> Any:
        """The arrays of earlier answers as they are now."""
        telling = Telling(_library(fw), self.arguments, self.answers, self._keep)
        return [[telling.array(array) for array in (self.results[number].arrays if number in self.results else ())] for number in numbers]

    def do_chance(self, fw: str, seed: int | None) -> Any:
        """Random numbers start from a seed; None: they go on as before the last seed."""
        if seed is None:
            if self.chances:
                self.chances.pop().close()
            return None
        self.chances.append(ExitStack())
        self.chances[-1].enter_context(_library(fw).chance(seed))
        return None

    def do_drawn(self, fw: str) -> Any:
        return _library(fw).drawn()

    def do_changed(self) -> Any:
        """The settings of the process that the last call changed."""
        return [str(name)[:100] for name in self.changed[:20]]

    # ------------------------------------------------------------ what is kept

    def _keep(self, thing: Any) -> int:
        handle = next(self.handles)
        self.things[handle] = thing
        return handle

    def _quickly(self, handle: int, library: Framework) -> Callable[..., Any]:
        if handle not in self.quick:
            self.quick[handle] = library.quickly(self.things[handle])
        return self.quick[handle]

    def _thing(self, handle: int, method: str) -> Callable[..., Any]:
        found = self.things[handle]
        return getattr(found, method) if method else found


_LIBRARIES: dict[str, Framework] = {}
_DEVICE = ["cpu"]  # on which the target works


def _library(name: str) -> Framework:
    if name not in _LIBRARIES:
        _LIBRARIES[name] = framework(name).on(_DEVICE[0])
    return _LIBRARIES[name]


WRITES = "a target in a process of its own writes temporary files and caches alone (docs/contained.md; --in-process)"


def _said(error: BaseException) -> str:
    try:
        more = f": {WRITES}" if isinstance(error, OSError) and error.errno == errno.EROFS else ""
        return words_of(error)[:LONGEST] + more
    except BaseException:
        return ""


def _plain(value: Any, depth: int = 0) -> Any:
    """A declaration as plain data; what is none is its text, which no declaration is."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, list | tuple | set | frozenset) and depth < 3:
        return [_plain(item, depth + 1) for item in value]
    if isinstance(value, dict) and depth < 3:
        return {str(name): _plain(item, depth + 1) for name, item in value.items()}
    try:
        return repr(value)[:200]
    except BaseException:
        return f"a {type(value).__name__}"
