"""What the judge holds in place of a target: a callable that ships its arguments, and the framework whose arrays can be shipped."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from ..cases.coordinates import Array
from ..frameworks import Framework, framework, frameworks
from ..frameworks.protocol import Answered
from .documentation import LONGEST
from .link import LEARNING, Coming, Gone, Link
from .values import ITEMSIZE, PLAIN, Arguments, Dropper, Remote, ToldDict, ToldList, contiguous, identifier, numbers_in
from .watch import by_another_process

MOST = 1000  # parameters of a callable


class Stub:
    """A callable that is called elsewhere. Its signature and what it supports are plain data that came from there."""

    library = ""  # of whose modules it is one, other than PyTorch's
    returned = ""  # what its last call has returned, in a few words

    def __init__(self, link: ContainedLink, known: Mapping[str, Any]) -> None:
        self.link = link
        self.type = str(known.get("type", "object"))
        self.callable = bool(known.get("callable"))
        self.is_class = bool(known.get("is_class"))
        self.library = str(known.get("library", ""))
        parts = str(known.get("attribute", "")).split(".")
        self.attribute = ".".join(parts) if all(part.isidentifier() for part in parts) else ""  # by which it was found in its file
        self.words = str(known.get("words", ""))[:LONGEST]  # what is written about it
        modules = known.get("modules") if link.shop >= 0 else None
        self.modules = tuple(filter(_is_here, modules)) if isinstance(modules, list) else ()  # of which it is one
        self.is_module = bool(self.modules)
        self.__signature__: Any = signature(known.get("signature"))
        self.supports: Any = known.get("supports")
        likely = known.get("likely")
        self.likely = tuple(name for name in likely if name in frameworks()) if isinstance(likely, list) else ()

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        result = self.link.called(self.link.handle, "", arguments, options)
        self.returned = _form(result, self.link.framework)
        return result

    def as_made(self) -> Stub:
        """The same of a module without weights, which is a function there. Raises NotLoaded, Gone."""
        return contain(self.link.load["text"], self.link.load["device"], made=True)

    def see_through(self, variant: str, stateful: bool) -> None:
        """From now on it is seen through a variant of its framework, in a new process. Raises NotLoaded, Gone."""
        self.link.load |= {"variant": variant, "stateful": stateful, "fw": self.link.framework.name}
        self.link.begin()

    def held(self, fw: Framework, method: str, *arguments: Any) -> Any:
        """Of a module: ``weights(given)``, or ``answer(given, weights, arguments, options)``."""
        if self.link.socket is None:
            self.link.ask("changed")  # whose process has ended: it is started again, and says where the module is
        with by_another_process():
            return self.link.call(fw, self.link.held, method, arguments, {}, [])[0]

    def workshop(self, method: str, *arguments: Any) -> Any:
        """Ask what makes its modules over there. Raises as it does, and Gone."""
        if self.link.socket is None:
            self.link.ask("changed")
        return self.link.called(self.link.shop, method, arguments, {})

    def tell_workshop(self, method: str, *arguments: Any) -> None:
        """The same where no answer is needed, with the next question; arrays among the arguments lie in shared memory, and are held meanwhile."""
        fw = self.link.framework
        sent = Arguments(fw, self.link.arguments, [])
        self.link.later("tell", thing=self.link.shop, method=method, fw=fw.name, arguments=[sent.encode(value) for value in arguments])

    def shared(self, fw: Framework) -> Framework:
        """The framework, with its arrays in memory that both processes share."""
        shared: Any = Shared(fw.elsewhere(self.link.load["device"]), self.link)
        self.link.framework = shared
        return shared


class ContainedLink(Link):
    """A link whose answers may hold objects of the target's."""

    framework: Any = None

    def called(self, handle: int, method: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Call a thing of the target's, through the framework's own gradients where one will be asked."""
        fw = self.framework
        asked = [x for x in _arrays((*arguments, *options.values()), fw) if fw.asks(x)] if fw.gradients else []
        leaves = list({id(x): x for x in asked}.values())  # one array may be several arguments
        if not leaves and self.goes_ahead and self.learned >= LEARNING and not self.slow:
            return self.call_ahead(fw, handle, method, arguments, options)
        if not leaves:
            return self.call(fw, handle, method, arguments, options, [])[0]
        whole: list[Any] = []

        def run(detached: Sequence[Any]) -> Answered:
            swap = dict(zip(map(id, leaves), detached, strict=True))
            given, named = _swapped(arguments, swap), _swapped(options, swap)
            answer, number, carries, retained = self.call(fw, handle, method, given, named, list(detached))
            whole[:] = [answer]
            found = list(numbers_in(answer, fw))
            carries = [*carries, *[False] * len(found)][: len(found)]
            return found, carries, _Back(self, fw, number, retained) if any(carries) else None

        answers = fw.bridged(run, leaves)
        return _swapped(whole[0], dict(zip(map(id, numbers_in(whole[0], fw)), answers, strict=True)))

    def remote(self, fw: Framework, handle: int, name: str, methods: Any, held: Any) -> Any:
        return remote(self, handle, name, methods, held)


class _Back:
    """The backward pass of a call. A mask that was made on the way belongs to the graph there: its memory is held as long as this is."""

    def __init__(self, link: ContainedLink, fw: Framework, number: int, retained: list[Any]) -> None:
        self.link, self.fw, self.number, self.retained = link, fw, number, retained
        self.slow = link.slow  # what was compiled for the call may be compiled for this, too

    def __call__(self, grad_out: Any, again: bool = False) -> list[Any]:
        return self.link.send_back(self.fw, self.number, grad_out, None, self.slow)

    def bend(self, grad_out: Any, pushed: Sequence[Any]) -> list[Any]:
        return self.link.send_back(self.fw, self.number, grad_out, list(pushed), self.slow)


def _form(result: Any, fw: Framework) -> str:
    if isinstance(result, tuple | list):
        return f"{len(result)} in a {'tuple' if isinstance(result, tuple) else 'list'}"
    if isinstance(result, Mapping):
        return f"a dictionary of {', '.join(map(str, result))}"
    return "an array" if fw.is_array(result) else "an object"


def _arrays(value: Any, fw: Framework) -> list[Any]:
    if fw.is_array(value):
        return [value]
    items = value if isinstance(value, tuple | list) else value.values() if isinstance(value, dict) else ()
    return [array for item in items if not isinstance(item, PLAIN) for array in _arrays(item, fw)]


def _swapped(value: Any, by: Mapping[int, Any]) -> Any:
    if id(value) in by:
        return by[id(value)]
    if isinstance(value, Remote):
        for name, part in vars(value).items():
            setattr(value, name, _swapped(part, by))
    if not isinstance(value, tuple | list | dict):
        return value
    items: Any = {name: _swapped(item, by) for name, item in value.items()} if isinstance(value, dict) else [_swapped(x, by) for x in value]
    made: Any = type(value)(items)
    if isinstance(value, ToldList | ToldDict):
        made.call, made.at = value.call, value.at
    return made


def remote(link: ContainedLink, handle: int, name: str, methods: Mapping[str, Any], held: Mapping[str, Any]) -> Any:
    """What stands for an object that a call has made: its methods are called where it is, its arrays are those that it had."""
    parts: dict[str, Any] = {}
    generation = link.generation
    for method, formal in methods.items():
        if not _public(method) or method == "handle":
            continue

        def run(self: Any, *arguments: Any, method: str = method, **options: Any) -> Any:
            if link.generation != generation:
                raise Gone("ended the process that held the object")
            return link.called(handle, method, arguments, options)

        parts[method] = _Method(run, signature(formal))

    def forget(self: Any) -> None:
        if link.generation == generation:
            link.drop.append(handle)

    def alive(self: Any) -> int:
        if link.generation != generation:
            raise Gone("ended the process that held the object")
        return handle

    made = type(identifier(name), (Remote,), {**parts, "handle": alive, "__del__": forget})()
    for key, value in held.items():
        if _public(key) and key not in parts:
            setattr(made, key, value)
    return made


def _is_here(name: Any) -> bool:
    """Whether it is that of a framework which this process can import."""
    try:
        return name in frameworks() and bool(framework(name))
    except ImportError:
        return False


def _public(name: Any) -> bool:
    """Whether it can be the name of an attribute that somebody is to see: others have a meaning of their own."""
    return isinstance(name, str) and name.isidentifier() and not name.startswith("_")


class _Method:
    """A method with a signature that came from the other process."""

    def __init__(self, run: Callable[..., Any], formal: Any) -> None:
        self.run, self.formal = run, formal

    def __get__(self, owner: Any, kind: Any = None) -> Any:
        def method(*arguments: Any, **options: Any) -> Any:
            return self.run(owner, *arguments, **options)

        method.__signature__ = self.formal  # type: ignore[attr-defined]
        return method


def signature(formal: Any) -> Any:
    """A signature from plain data; 0, which is none and raises where one is asked for, if there is none."""
    if not isinstance(formal, list) or len(formal) > MOST:
        return 0
    parameters = []
    try:
        for name, kind, has_default, default in formal:
            empty = inspect.Parameter.empty
            parameters.append(inspect.Parameter(str(name), inspect._ParameterKind(kind), default=default if has_default else empty))
        return inspect.Signature(parameters)
    except (TypeError, ValueError):
        return 0


class Shared:
    """A framework whose new arrays lie in memory that the target's process sees, and whose random numbers are the target's, too."""

    def __init__(self, base: Framework, link: ContainedLink) -> None:
        self._base, self._link = base, link
        self.gradients, self.name = base.gradients, base.name  # asked often
        self.is_array, self.describe, self.lies, self.over = base.is_array, base.describe, base.lies, base.over

    def __getattr__(self, name: str) -> Any:
        return getattr(self._base, name)

    @contextmanager
    def avoiding(self) -> Iterator[None]:
        before, self._link.avoiding = self._link.avoiding, True
        try:
            with self._base.avoiding():
                yield
        finally:
            self._link.avoiding = before

    @contextmanager
    def told(self, way: str) -> Iterator[None]:
        before, self._link.told = self._link.told, way
        try:
            yield
        finally:
            self._link.told = before

    def ended(self) -> tuple[str, ...]:
        """What ended the processes of the target so far, in the words that follow "it"."""
        return tuple(self._link.ends)

    def on_record(self, number: int) -> None:
        """What has ended them after so many is known of the target, and no longer told."""
        del self._link.ends[number:]

    def kept(self) -> str:
        """What keeps the target's process from all others: ``apart``."""
        return self._link.template.kept

    def full(self, shape: tuple[int, ...], value: float, dtype: str, device: str) -> Any:
        itemsize = ITEMSIZE[dtype]
        size = math.prod(shape) * itemsize
        if not size:
            return self._base.full(shape, value, dtype, device)
        memory = self._link.arguments.chunk(size)
        array = self._base.over(memory, 0, tuple(shape), contiguous(shape, itemsize), dtype)
        getattr(array, "fill_" if hasattr(array, "fill_") else "fill")(value)
        return array

    def copy_of(self, array: Any) -> Any:
        """A copy of an array, bit for bit, in that memory."""
        shape, dtype, _ = self.describe(array)
        if 0 in shape:
            return self._base.full(shape, 0.0, dtype, "cpu")
        memory = self._link.arguments.chunk(math.prod(shape) * ITEMSIZE[dtype])
        self._base.pour(array, memory)
        return self._base.over(memory, 0, shape, contiguous(shape, ITEMSIZE[dtype]), dtype)

    def integers(self, carrier: Array, device: str) -> Any:
        return self._base.assign(self.full(carrier.shape, 0, "int64", device), carrier)

    def assign(self, array: Any, carrier: Array) -> Any:
        if not self._link.coming or not carrier.size:
            return self._base.assign(array, carrier)
        numbers = self._base.assign(self.full(carrier.shape, 0, self.describe(array)[1], "cpu"), carrier)
        sent = Arguments(self._base, self._link.arguments, [])
        self._link.fill(sent.encode(array), sent.encode(numbers), partial(self._base.assign, array, carrier), sent.retained)
        return array

    def ahead(self, call: Callable[[], Any]) -> Callable[[], Any]:
        """Make a call of the target's: what waits for its answer. More can be asked before that, and arrays be assigned to for it."""
        self._link.goes_ahead = True
        try:
            came = call()
        finally:
            self._link.goes_ahead = False
        return came.wait if isinstance(came, Coming) else lambda: came

    def read(self, array: Any) -> Array:
        self._link.settle()
        self._link.look_again(self._base, self.lies(array)[0])
        return self._base.read(array)

    @contextmanager
    def chance(self, seed: int) -> Iterator[None]:
        with self._base.chance(seed):
            self._link.later("chance", fw=self._base.name, seed=seed)
            begun, generation = self._link.queue[-1], self._link.generation
            try:
                yield
            finally:
                if self._link.queue and self._link.queue[-1] is begun:
                    self._link.queue.pop()  # nothing was asked meanwhile
                elif self._link.generation == generation and self._link.socket is not None:
                    self._link.later("chance", fw=self._base.name, seed=None)

    def dropper(self, probability: float) -> Any:
        return Dropper(probability)

    def meanwhile(self, work: Callable[[], object]) -> None:
        """Do something while the next call is waited for, with what is to be done for those that were made ahead."""
        if not self._link.coming:
            self._link.meanwhile.clear()  # of a call that was not made
        self._link.meanwhile.append(work)

    def drawn(self) -> float:
        return self._link.number(self._link.ask("drawn", fw=self._base.name))

    @contextmanager
    def settings_kept(self) -> Iterator[Callable[[], list[str]]]:
        yield lambda: self._link.names(self._link.ask("changed"))


def contain(text: str, device: str = "cpu", made: bool = False) -> Stub:
    """A target in a process of its own, on a device; ``made``: a module without weights, which is made there. Raises NotLoaded, Gone."""
    link = ContainedLink(text, device, made)
    return Stub(link, link.known)


@contextmanager
def asked_quickly(asked: Any) -> Iterator[None]:
    """Meanwhile a target (its function, or its framework) is called in a way for which a new shape costs less, if its framework has one.

    For what is learned of a target, which a search then finds true or not, asking it as it is.
    """
    link = asked.link if isinstance(asked, Stub) else asked._link if isinstance(asked, Shared) else None
    if link is None:
        yield
        return
    before, link.quick = link.quick, True
    try:
        yield
    finally:
        link.quick = before
