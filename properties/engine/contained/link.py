"""The judge's side of a target in a process of its own: calls go out, answers come back, and a target that is gone is started again."""

from __future__ import annotations

import itertools
import math
import os
import signal
import socket
import sys
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from ..frameworks import Framework, framework, frameworks
from ..frameworks.numpy import address_of
from . import wire
from .arena import Arena, shared_file
from .counted import load, memory, processes, started, taken, tasks, threads
from .limits import TASKS
from .load import NotLoaded
from .template import Template
from .values import DEEPEST, Answers, Arguments, Unfit, identifier

LEAST, TIMES, FIRST = 10.0, 20.0, 120.0  # seconds for a call; how many times the longest of the first; for those
LOADING, SLOWLY = 120.0, 10.0  # seconds for an import, and after how many it is said that it takes long
SLOW_AGAIN = 0.5  # seconds of another import from which it counts as waiting
LEARNING = 5  # first calls, which show how long a call takes
LONGEST, AT_LEAST = math.inf, 5.0  # seconds for a call, whatever the first ones took, but if that is less than so many times as long
IMPATIENT = 1.0  # seconds for a call of a target that has hung before: it is refuted already
LOOK = 1.0  # seconds between looks at what a target has started, while it answers
TRIED = 12  # processes that are started for a target that never comes back from a call
BEGUN = 1 if "torch" in sys.modules else threads()  # threads before anything was called: NumPy's, which survive a fork
AHEAD = 16  # calls that are made before the answer to the first of them is waited for
PATIENCE = 60.0  # seconds of waiting for calls that do not come back, in a run


class NoMoreCalls(BaseException):
    """The time for calls is over; no Exception, which would be taken for one of the target's."""


class Gone(Exception):
    """The target's process did not come back from a call; the message says what it did, in the words that follow "the call"."""


_load = cache(load)
_cores = cache(lambda: len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
ENDS: list[str] = []  # what ended each target's process so far
WAITED: list[float] = []  # seconds for calls that did not come back
OVER = math.inf  # the time.monotonic() after which no call is made or waited for
_tell: Callable[[str], object] | None = None  # what is told of an import that takes long


def exhausted() -> bool:
    """Whether so much was waited for calls that did not come back that no more are made."""
    return sum(WAITED) > PATIENCE


def patience(longest: float, hung: bool) -> float:
    """Seconds for a call of a target whose first ones took so long at most; ``hung``: it has hung before."""
    return min(max(IMPATIENT if hung else LEAST, TIMES * longest), max(LONGEST, AT_LEAST * longest))


def idle_core(running: int, awake: bool) -> bool:
    """Whether this process and the target's have a core each, of so many that run, so that none has to sleep while it waits for the other.

    ``awake``: the target's is one of them, and waits.
    """
    return 0 <= running - 1 - awake <= _cores() - 2


@contextmanager
def allowing(seconds: float | None, loading: float = LEAST, tell: Callable[[str], object] | None = None) -> Iterator[None]:
    """Meanwhile a call, and all that do not come back, are waited for no longer than the budget of a target, if it has one.

    An import, which may be that of a large library, has so many seconds even then, and ``tell`` is told of one that is slow.
    """
    global LEAST, FIRST, PATIENCE, LOADING, LONGEST, _tell
    before = LEAST, FIRST, PATIENCE, LOADING, LONGEST, _tell
    _tell = tell
    if seconds is not None:
        LOADING = max(seconds, loading)
        LONGEST = seconds
        FIRST, PATIENCE = (min(one, max(seconds, LEAST)) for one in before[1:3])
        LEAST = min(LEAST, seconds)
    try:
        yield
    finally:
        LEAST, FIRST, PATIENCE, LOADING, LONGEST, _tell = before


@contextmanager
def ending(until: float) -> Iterator[None]:
    """Meanwhile a call after that time raises NoMoreCalls, also one that is on its way, whose process is ended."""
    global OVER
    before, OVER = OVER, min(OVER, until)
    try:
        yield
    finally:
        OVER = before


_ERRORS: dict[str, type[Exception]] = {}


def raised(name: str, said: str) -> Exception:
    """An exception like the one that the target raised: its name and its words, and nothing else of it."""
    if name == "Raised":  # which stands for it there
        name, _, said = said.partition(": ")
    name = identifier(name)
    if name not in _ERRORS:
        _ERRORS[name] = type(name, (Exception,), {})
    return _ERRORS[name](said)


Socket = socket.socket


class Coming:
    """The answer to a call that was made ahead, once it is there."""

    def __init__(self, link: Link, sent: Arguments, take: Callable[[Any], Any]) -> None:
        self.link, self.sent, self.take = link, sent, take
        self.value: Any = None
        self.error: BaseException | None = None

    def wait(self) -> Any:
        """It. Raises as the target did, and Gone."""
        if self in self.link.coming:
            self.link.settle()
        if self.error is not None:
            raise self.error
        return self.value

    def receive(self, patience: float) -> None:
        """Take it in, as the next one that comes."""
        try:
            answer = self.link._receive("call", patience)
        finally:
            self.sent.write_back()
        self.value = self.take(answer)


@dataclass
class _Place:
    """Where the process of a link is. It does not hold the link, whose end is that of the process."""

    socket: wire.Wire | None = None
    template: Template | None = None
    pid: int = 0


class Link:
    """One target: its process, if it lives, and the messages to it."""

    templates: list[Template] = []  # noqa: RUF012  of this process; the last one is used
    left: list[tuple[Template, int]] = []  # noqa: RUF012  workers of links that nobody holds any more

    def __init__(self, text: str, device: str = "cpu", made: bool = False) -> None:
        self.load: dict[str, Any] = {"text": text, "variant": "", "stateful": False, "fw": "numpy", "made": made, "folder": os.getcwd()}
        self.load["device"] = device
        self.arguments, self.answers = Arena(shared_file("given")), Arena(shared_file("told"))
        self.place = _Place()
        self.ends: list[str] = []  # what ended its processes so far
        self.generation = 0  # how often it was started
        self.numbers = itertools.count(1)
        self.last = 0  # the number of the last call
        self.refreshed = 0  # the number of the call after which earlier answers were read again
        self.queue: list[dict[str, Any]] = []  # messages that need no answer: they go with the next one
        self.forget: list[int] = []
        self.drop: list[int] = []
        self.alive: dict[int, int] = {}  # call → how many of those are alive
        self.live: dict[int, list[Any]] = {}  # call → weak references to the memory of its answer
        self.places: dict[int, list[tuple[int, int]]] = {}  # call → where that memory is, and how long
        self.longest, self.learned, self.hung = 0.0, 0, 0
        self.slow = False  # whether something may be compiled in the next calls
        self.handle = self.held = self.shop = -1
        self.told = ""  # the way in which the framework is told that no gradients will be asked for
        self.quick = False  # whether the target is asked in the framework's quick way
        self.avoiding = False  # whether what the framework knows to be faulty is left out of calls
        self.looked, self.crowd, self.tasks = time.monotonic(), "", tasks(_load())[1]
        self.known: dict[str, Any] = {}
        self.meanwhile: list[Callable[[], object]] = []  # what to do while the next call is waited for
        self.idle = False  # whether there was a core for each when the last answer came
        self.keeps_awake = False  # whether the target's was told not to
        self.goes_ahead = False  # whether no answer is waited for where it is asked
        self.coming: deque[Coming] = deque()  # answers to calls that were made ahead, in their order
        self.unread: set[int] = set()  # those calls whose answers nobody has looked at
        self.filled: list[tuple[dict[str, Any], Callable[[], object], Any]] = []  # what is written between: messages, the same here
        weakref.finalize(self, _close, self.place)
        self.known = self._start()

    @property
    def socket(self) -> wire.Wire | None:
        """What it is asked through; None where its process has ended, or none has begun."""
        return self.place.socket

    @socket.setter
    def socket(self, wire: wire.Wire | None) -> None:
        self.place.socket = wire

    @property
    def template(self) -> Template:
        """What has started its process."""
        assert self.place.template is not None
        return self.place.template

    @property
    def pid(self) -> int:
        """The number of its process."""
        return self.place.pid

    # ------------------------------------------------------------ its process

    def begin(self) -> None:
        """End its process, and start another one as the first. Raises NotLoaded, Gone."""
        self.end()
        self.generation = 0
        self._start()

    def _start(self) -> dict[str, Any]:
        self.end()
        if not self.learned and self.generation and exhausted():
            raise Gone(f"{self.ends[-1]}, {self.generation} times in a row")
        if self.generation >= TRIED and not self.learned:
            raise Gone(f"ended the process that it was in, {self.generation} times in a row")
        own, other = socket.socketpair()
        with other:
            self._born(other)
        lives = weakref.WeakMethod(self._lives)  # what ends its process when nobody holds this any more holds the wire
        self.socket = wire.Wire(own, lambda: bool((asked := lives()) and asked()), stranger=True)
        self.generation += 1
        self.live.clear()
        self.alive.clear()
        self.places.clear()
        self.unread.clear()
        self._lose(Gone("ended the process"))
        self._fill_here()
        self.forget, self.drop, self.queue = [], [], []
        began = time.monotonic()
        try:
            known = self._ask("load", LOADING, **self.load)
        except Gone:
            raise
        except Exception as error:
            if self.generation == 1:
                self.end()
                raise NotLoaded(str(error) if isinstance(error, NotLoaded) else self._unreadable(error)) from None
            raise self._broken(f"ended the process, which cannot be started again: {error}") from None
        if not isinstance(known, dict) or not isinstance(known.get("handle"), int):
            raise self._broken("answered what is no answer")
        if self.generation > 1 and (took := time.monotonic() - began) > SLOW_AGAIN:  # what has ended it costs another import
            WAITED.append(took)
        self.handle = known["handle"]
        self.held = known["held"] if isinstance(known.get("held"), int) else -1
        self.shop = known["shop"] if isinstance(known.get("shop"), int) else -1
        return known

    def _unreadable(self, error: Exception) -> str:
        """What is wrong with a target that raises where it is only looked at."""
        said = (str(error).strip().splitlines() or [""])[0]
        return f"{self.load['text']} cannot be looked at: {type(error).__name__}" + f": {said}" * bool(said)

    def _born(self, other: Socket) -> None:
        """Have a process started; by another template, if the one that there is does not answer. Raises Gone."""
        for _ in range(2):
            self.place.template = template(self.load["device"])
            try:
                self.place.pid = self.template.start(other, self.arguments.fd, self.answers.fd, self.load["device"])
                return
            except (wire.Broken, wire.Late):
                _abandoned(self.template)
        raise Gone("ended the process, and another one cannot be started")

    def _crowded(self) -> bool:
        """Whether more is running than a target may start: below its process, or left to the template by what has ended."""
        self.looked, self.tasks = time.monotonic(), tasks(_load())[1]
        running = processes()
        below = {pid for pid, parent, _, _ in running if parent == self.template.pid} - self.template.workers | {self.pid}
        for _ in range(DEEPEST):
            below |= {pid for pid, parent, _, _ in running if parent in below}
        self.crowd = started(sum(threads for pid, _, _, threads in running if pid in below)) or taken(below, memory(self.template.pid)[0])
        return bool(self.crowd)

    def _too_many(self) -> str:
        """What is wrong with how much was running when it was last looked; "" if nothing."""
        crowd, self.crowd = self.crowd, ""
        return crowd

    def _lives(self) -> bool:
        """Whether its process has not ended, and has not started too much; a child of it may still hold the socket."""
        if self._crowded():
            return False
        try:
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except (OSError, IndexError):
            return False

    def end(self) -> int | str | None:
        """End its process; the exit status that it had by then, or what else had ended it."""
        if self.socket is None:
            return None
        self.socket.close()
        self.socket = None
        try:
            return self.template.end(self.pid, now=False)
        except (wire.Broken, wire.Late):
            _abandoned(self.template)
            return None

    def _broken(self, what: str) -> Gone:
        """The exception that says what ended it; the process is ended if it still lives."""
        if self.socket is not None:
            self.socket.close()
            self.socket = None
            try:
                status = self.template.end(self.pid, now=bool(what))
            except (wire.Broken, wire.Late):  # the template was killed, too: another one starts the next worker
                status, what = None, what or "killed the process that it was started by"
                _abandoned(self.template)
            if isinstance(status, str):
                what = what or status
            elif not what:
                name = signal.Signals(-status).name if status is not None and status < 0 else ""
                what = f"killed the process ({name})" if name else f"ended the process (exit status {status})" if status is not None else ""
        self.ends.append(what or "closed what it is asked through")
        ENDS.append(self.ends[-1])
        return Gone(ENDS[-1])

    # ------------------------------------------------------------ asking

    def _ask(self, what: str, seconds: float, **values: Any) -> Any:
        """The answer to one message. Raises Gone, NotLoaded, and what the target raised."""
        self.settle()
        self._send(what, values)
        return self._receive(what, seconds)

    def settle(self) -> None:
        """Take in the answers to all calls that were made ahead; what one of them raises is raised where that is waited for."""
        while self.coming:
            one = self.coming.popleft()
            try:
                one.receive(self.patience())
            except Exception as error:
                one.error = error
            if self.socket is None:  # its process has ended: so have the calls after it
                self._lose(one.error)
        self._fill_here()

    def _lose(self, error: BaseException | None) -> None:
        """Nothing more comes from the calls that were made ahead."""
        for one in self.coming:
            one.error = error
        self.coming.clear()

    def fill(self, place: Any, numbers: Any, here: Callable[[], object], held: Any) -> None:
        """Before the next call, but after those that were made ahead, an array gets the numbers of another one; ``here``: what does that here."""
        self.later("fill", place=place, numbers=numbers)
        self.filled.append((self.queue[-1], here, held))

    def _fill_here(self) -> None:
        """No call is to come any more: what was to be written before a next one is written now."""
        for message, here, _ in self.filled:
            if any(message is one for one in self.queue):
                self.queue = [one for one in self.queue if one is not message]
                here()
        self.filled.clear()

    def _send(self, what: str, values: dict[str, Any]) -> None:
        """One message, and before it what was to go with the next one. Raises Gone."""
        if self.socket is None:
            self._start()
        assert self.socket is not None
        if not self.coming and self.socket.has_more():
            raise self._broken("sent answers to what was not asked")
        first, self.queue = self.queue, []
        with self._speaking(what, wire.SENDING):
            self.keeps_awake = self.idle
            self.socket.send({"do": what, "with": values, "first": first, "awake": self.keeps_awake})

    def _receive(self, what: str, seconds: float) -> Any:
        """The answer to the next message that has none yet. Raises as ``_ask``."""
        assert self.socket is not None
        waited, awake = seconds, self.keeps_awake
        with self._speaking(what, seconds):
            if what in ("call", "back"):
                while self.meanwhile:
                    self.meanwhile.pop(0)()
            if what == "load" and _tell is not None and seconds > SLOWLY and not self.socket.speaks(SLOWLY):
                _tell(f"{self.load['text']} takes long to import; it has {seconds - SLOWLY:.0f} s more")
                waited -= SLOWLY
            answer = self.socket.receive(time.monotonic() + waited, awake)
            running, every = tasks(_load())
            self.idle = idle_core(running, awake)
            if (time.monotonic() - self.looked > LOOK or every > self.tasks + TASKS) and self._crowded():
                raise wire.Broken
        match answer:
            case {"r": result}:
                return result
            case {"n": str(said)}:
                raise NotLoaded(said)
            case {"e": [str(name), str(said), bool(over)]}:
                if over:
                    raise self._broken(f"killed what the process has on the device ({(said.splitlines() or [name])[0][:200]})")
                raise raised(name, said)
        raise self._broken("answered what is no answer")

    @contextmanager
    def _speaking(self, what: str, seconds: float) -> Iterator[None]:
        """What the wire says of its process becomes Gone."""
        try:
            yield
        except wire.Late:
            if time.monotonic() >= OVER:
                self._broken("was on its way when the time for calls was over")
                raise NoMoreCalls(f"a call gave no answer in {seconds:.0f} s" if seconds >= 1 else "") from None
            self.hung += 1
            WAITED.append(seconds)
            self._crowded()
            slow = ", or takes longer (a longer --time waits longer)" if what == "load" else ""
            raise self._broken(self._too_many() or f"gave no answer in {seconds:.0f} s: it hangs{slow}") from None
        except wire.Broken:
            raise self._broken(self._too_many()) from None
        except BaseException:  # Ctrl-C: what comes now would be taken for the answer to the next message
            assert self.socket is not None
            self.socket.close()
            self.socket = None
            Link.left.append((self.template, self.pid))
            raise

    def patience(self) -> float:
        """Seconds for the next call."""
        if self.slow:
            return FIRST
        if self.learned < LEARNING:
            return FIRST if not self.hung else LEAST
        return patience(self.longest, bool(self.hung))

    def call(self, fw: Framework, handle: int, method: str, arguments: tuple[Any, ...], options: dict[str, Any], leaves: list[Any]) -> Any:
        """(the answer, the number of the call, which arrays of numbers in it carry a gradient, memory that its graph needs).

        Raises as the target does, and Gone.
        """
        if time.monotonic() >= OVER:
            raise NoMoreCalls
        self.settle()
        number, sent = self._called(fw, handle, method, arguments, options, leaves, ahead=False)
        began = time.monotonic()
        try:
            answer = self._receive("call", min(self.patience(), max(OVER - began, 0.0)))
        finally:
            sent.write_back()
        took = time.monotonic() - began
        came = self._came(fw, number, sent, answer)
        is_call = (handle != self.shop or method == "call") and (handle != self.held or method == "answer")
        if self.learned < LEARNING and not self.slow and is_call:
            self.learned, self.longest = self.learned + 1, max(self.longest, took)
        return came

    def call_ahead(self, fw: Framework, handle: int, method: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> Coming:
        """The same of a call that is not waited for, without gradients. Raises Gone.

        When its answer is read for the first time, it is what it was when it was given, whatever later calls have made of it; where it lies
        in memory of its arguments, it is a copy.
        """
        if len(self.coming) >= AHEAD:
            self.settle()
        number, sent = self._called(fw, handle, method, arguments, options, [], ahead=True)
        self.unread.add(number)
        coming = Coming(self, sent, lambda answer: self._came(fw, number, sent, answer)[0])
        self.coming.append(coming)
        return coming

    def _called(
        self, fw: Framework, handle: int, method: str, arguments: tuple[Any, ...], options: dict[str, Any], leaves: list[Any], ahead: bool
    ) -> tuple[int, Arguments]:
        """Make a call: its number, and its arguments, which are held until its answer is there. Raises Gone."""
        sent = Arguments(fw, self.arguments, leaves, self if handle == self.shop else None)
        message = {
            "thing": handle,
            "method": method,
            "fw": fw.name,
            "arguments": [sent.encode(value) for value in arguments],
            "options": {name: sent.encode(value) for name, value in options.items()},
            "record": bool(leaves),
            "avoiding": self.avoiding,
            "told": self.told,
            "quick": self.quick,
            "ahead": ahead,
            "goes_on": bool(self.coming),
        }
        if self.socket is None:
            self._start()
        number = self.last = next(self.numbers)
        forget, drop, self.forget, self.drop = self.forget, self.drop, [], []
        self._send("call", {"number": number, "forget": forget, "drop": drop, **message})
        return number, sent

    def _came(self, fw: Framework, number: int, sent: Arguments, answer: Any) -> Any:
        """What came back from a call, as ``call`` gives it. Raises Gone."""
        came = Answers(fw, self.arguments, self.answers, lambda *parts: self.remote(fw, *parts), number)
        try:
            value, carries = answer
            decoded, carries = came.decode(value), list(map(bool, carries))
        except (Unfit, TypeError, ValueError):
            raise self._broken("answered what is no answer") from None
        owners = came.owners
        if any(carries) and all(owner is None for owner in owners):  # arrays of no numbers lie nowhere, and have a graph all the same
            owners = [np.zeros(1, np.uint8)]
        self._watch(number, owners)
        return decoded, number, carries, [*sent.retained, *owners]  # while it is held, the graph there is kept, too

    def _watch(self, number: int, owners: list[Any]) -> None:
        """Ask the process to keep an answer as long as somebody here holds an array of it."""
        dead = partial(self._dead, number, self.generation)
        references = [weakref.ref(owner, dead) if owner is not None else None for owner in owners]
        left = [reference for reference in references if reference is not None]
        if not left:
            self.forget.append(number)
            return
        self.live[number] = references
        self.alive[number] = len(left)
        self.places[number] = [(address_of(owner), len(owner)) for owner in owners if owner is not None]

    def _dead(self, number: int, generation: int, _: Any) -> None:
        if generation != self.generation or number not in self.alive:
            return
        self.alive[number] -= 1
        if not self.alive[number]:
            del self.alive[number], self.live[number], self.places[number]
            self.unread.discard(number)
            self.forget.append(number)

    def lives(self, call: int) -> bool:
        """Whether the answer to a call is kept over there."""
        return call in self.live

    def array(self, address: int, length: int) -> list[int] | None:
        """(a call, which array of its answer) that lies here in all of such memory; None if none does."""
        for number, references in self.live.items():
            for at, reference in enumerate(references):
                owner = reference() if reference else None
                if owner is not None and address_of(owner) == address and len(owner) == length:
                    return [number, at]
        return None

    def look_again(self, fw: Framework, address: int) -> None:
        """Read the answers of all earlier calls again if one of them lies at the address: the last call may have changed them."""
        for number in self.unread & self.live.keys():
            if any(0 <= address - start < length for start, length in self.places[number]):
                self.unread.discard(number)
                return
        earlier = [number for number in self.live if number != self.last]
        if self.refreshed == self.last or self.socket is None:
            return
        if not any(0 <= address - start < length for number in earlier for start, length in self.places[number]):
            return
        self.refreshed = self.last
        current = self._ask("again", self.patience(), numbers=earlier, fw=fw.name)
        for number, parts in zip(earlier, current if isinstance(current, list) else [], strict=False):
            references = self.live.get(number, [])
            if not isinstance(parts, list) or len(parts) != len(references):
                continue
            for reference, now in zip(references, parts, strict=True):
                owner = reference() if reference else None
                if owner is None:
                    continue
                match now:
                    case ["a", int(offset), list(), str()] if 0 <= offset <= len(self.answers.map) - len(owner):
                        owner[:] = memoryview(self.answers.map)[offset : offset + len(owner)]

    def send_back(self, fw: Framework, number: int, grad: Any, pushed: list[Any] | None = None, slow: bool = False) -> list[Any]:
        """The gradients of the leaves of a call; of ``grad`` and the leaves, where some are pushed into those. Raises as the target, and Gone.

        ``slow``: something may be compiled in it.
        """
        sent = Arguments(fw, self.arguments, [])
        came = Answers(fw, self.arguments, self.answers, lambda *parts: self.remote(fw, *parts))
        answer = self._ask("back", FIRST if slow else self.patience(), number=number, grad=sent.encode(grad), pushed=sent.encode(pushed))
        try:
            found = came.decode(answer)
        except Unfit:
            raise self._broken("answered what is no answer") from None
        return [None if part is None or not fw.is_array(part) else part for part in found] if isinstance(found, list) else []

    def later(self, what: str, **values: Any) -> None:
        """What needs no answer: it is done before the next message, whose error its own becomes."""
        self.queue.append({"do": what, "with": values})

    def ask(self, what: str, **values: Any) -> Any:
        """Anything else. Raises as the target does, and Gone."""
        return self._ask(what, LEAST, **values)

    def number(self, answer: Any) -> float:
        """An answer that is to be a number. Raises Gone."""
        if type(answer) not in (int, float) or abs(answer) > 1e300:
            raise self._broken("answered what is no answer")
        return float(answer)

    def names(self, answer: Any) -> list[str]:
        """An answer that is to be some names. Raises Gone."""
        if not isinstance(answer, list) or not all(isinstance(name, str) for name in answer):
            raise self._broken("answered what is no answer")
        return answer

    def remote(self, fw: Framework, handle: int, name: str, methods: Any, held: Any) -> Any:
        """What stands for an object of the target's: see ``stub``."""
        raise NotImplementedError


def _close(place: _Place) -> None:
    """Its process ends by itself; what it leaves behind is ended when the next one starts, or with the template."""
    if place.socket is not None and place.template is not None and place.template.owner == os.getpid():
        place.socket.close()
        Link.left.append((place.template, place.pid))


def _abandoned(template: Template) -> None:
    """It does not answer: another one starts the next worker."""
    if template in Link.templates:
        Link.templates.remove(template)
        template.abandon()


def template(device: str = "cpu") -> Template:
    """One of this process that has imported every framework that this process has, and that survives a fork.

    What a fork of this process inherits of a device cannot be used: where targets are on one, it is a new Python.
    """
    while Link.left:
        old, pid = Link.left.pop()
        if old.owner == os.getpid():
            with suppress(wire.Broken, wire.Late):
                old.end(pid, now=True)
    mine = [one for one in Link.templates if one.owner == os.getpid() and not (one.forked and device != "cpu")]
    if not mine or mine[-1].knows != loaded():
        survives = device == "cpu" and not has_worked() and all(framework(name).forks for name in frameworks() if name in sys.modules)
        for late in (late for name in loaded() for late in framework(name).late):
            with suppress(ImportError):
                import_module(late)
        Link.templates[:] = [*mine, Template(loaded(), forked=survives)]
    return Link.templates[-1]


def has_worked() -> bool:
    """Whether threads of a library have begun to work in this process: in a fork they are gone, and what waits for them hangs."""
    return os.environ.get("OMP_NUM_THREADS") != "1" and threads() > BEGUN


def loaded() -> frozenset[str]:
    """The frameworks that this process has imported, and that work in a fork of it."""
    return frozenset(name for name in frameworks() if name in sys.modules and framework(name).forks)
