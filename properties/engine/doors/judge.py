"""``attncheck judge PATH…``: many candidates that nobody vouches for, each in a process of its own, a verdict for each."""

from __future__ import annotations

import argparse
import ast
import dataclasses
import difflib
import itertools
import json
import math
import multiprocessing
import os
import re
import secrets
import shlex
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, redirect_stdout, suppress
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any, TextIO

from ... import catalogue
from ..contained import link
from ..contained.limits import without_gpus
from ..contained.link import NoMoreCalls
from ..contained.load import A_CLASS, ANY, MODELS, load
from ..contained.stub import Stub
from ..contained.template import hold, kept_from_targets
from ..core.contract import contracts
from ..core.declare import GRADIENTS, Property
from ..core.supports import Supports
from ..core.target import CannotRun, Raised, Target, innermost
from ..frameworks import no_device, with_modules
from ..report import record as gate
from ..search.find_target import NEVER, OWN, Builtins, containing, elsewhere, find_targets, on_either
from ..search.interrupt import check, listening, status
from ..search.journal import Journal, digests
from ..search.own_words import ASKED, contradicted
from ..search.pairs import narrower, pair_properties
from ..search.run import obey, put, verify_target
from ..search.search import Plan
from . import gates, resume
from .arguments import Parser, count, duration, given, integer, location, processes
from .known import known_of, next_to, trusted
from .options import DEVICE
from .streams import Output, sentence, told

DEFAULT_CASES, PAIR_CASES = 40, 300
MEETING = 10.0  # seconds in which a module is to show how it is called, whatever its budget
SKIPPED = ("__pycache__", "node_modules")  # folders below a folder of candidates that are not looked into
Asked = tuple[str, str]  # a candidate's name, and what names the callable; nothing where there is none
OURS = "this is a mistake of attncheck, not of the candidate; please report it with the lines above"
NO_CANDIDATE = 'it is no JSON such as {"name": "a", "code": "def attention…"}, whose values are texts'


def parser() -> argparse.ArgumentParser:
    """The options."""
    parser = Parser(
        prog="attncheck judge",
        description="Judge many candidates, each in a process of its own.",
        epilog="exit status: 0 nothing found in any, 1 one is refuted, or worse than the baseline, 2 one cannot be judged",
    )
    parser.add_argument(
        "paths",
        nargs="+",
        type=location,
        metavar="PATH",
        help="file.py, file.py:attribute, a folder of files, or - for JSON Lines with name and code",
    )
    parser.add_argument("--contract", type=given, default="attention", help="what a candidate must be (default attention)")
    parser.add_argument(
        "--property",
        action="append",
        default=[],
        metavar="NAME",
        help="a property, glob or theme (repeatable); with --reference by its name",
    )
    parser.add_argument("--reference", type=given, metavar="REF", help="what a candidate must answer like, instead of the properties")
    parser.add_argument(
        "--inference", action="store_true", help="with --reference: gradients are not asked for, which a kernel for inference need not have"
    )
    parser.add_argument(
        "--cases", type=count, metavar="N", help=f"cases a property (default {DEFAULT_CASES}; {PAIR_CASES} with a reference)"
    )
    parser.add_argument("--case", type=given, metavar="CASE", help="try only this case, as printed by a replay line")
    parser.add_argument("--time", type=duration, metavar="T", help="the budget of a candidate, 5s")
    parser.add_argument("--device", type=given, help=DEVICE)
    parser.add_argument("--all", action="store_true", help="go on past the first finding")
    parser.add_argument("--round", type=integer, metavar="N", help="the round of cases (default: a secret one, which the scores tell)")
    parser.add_argument(
        "--supports", type=given, metavar="FILE.toml", help="what all candidates support; what they say themselves is theirs"
    )
    parser.add_argument(
        "--json", type=given, metavar="FILE", help="a line of JSON a candidate as soon as it is judged ('-': standard output)"
    )
    gates.add_options(parser)
    parser.add_argument("--record", type=given, metavar="FILE", help="where every verdict is written down, for 'resume'")
    parser.add_argument("-n", "--workers", type=processes, default=1, metavar="N", help="candidates at a time (default 1)")
    return parser


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The options that are given."""
    reader = parser()
    options = reader.parse_args(arguments)
    if options.inference and not options.reference:
        reader.error("--inference says how much of a --reference is asked: give one")
    return options


def main(arguments: Sequence[str], journal: Journal | None = None) -> int:
    """Judge; the exit status. Raises ValueError and OSError with one sentence. ``journal``: that of a run which is gone on with."""
    options = parse(arguments)
    if sys.platform != "linux":
        raise ValueError("judge shares memory with the candidates' processes, as Linux alone can")
    warnings.simplefilter("ignore")
    if options.contract not in (known := (*contracts(), "any")):
        near = difflib.get_close_matches(options.contract, known, 1)
        raise ValueError(
            f"there is no contract {options.contract!r}; " + (f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}")
        )
    names = tuple(options.property)
    if not options.reference:
        names = tuple(prop.name for prop in catalogue.select(names))
    supports = Supports.in_file(options.supports) if options.supports else None
    without_gpus(options.device or "cpu")
    if options.device and (why := no_device(options.device)):
        raise ValueError(why)
    if options.reference:
        _meet(whole(options.reference), options.device, options.time)  # what is wrong with it is no candidate's fault
    number = secrets.randbelow(2**31) if options.round is None else options.round
    texts = [text for path in options.paths for _, text in ([(path, path)] if path == "-" else _lying_at(path))]
    how = {
        "contract": options.contract,
        "properties": names,
        "reference": options.reference and whole(options.reference),
        "case": options.case,
        "cases": options.cases or (PAIR_CASES if options.reference else DEFAULT_CASES),
        "seconds": options.time,
        "first": not options.all,
        "round": number,
        "supports": supports,
        "device": options.device,
        "inference": options.inference,
    }
    records: list[gate.Record] = []
    interrupted = False
    with ExitStack() as stack:
        out = sys.stdout
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        asked = candidates(options.paths, folder)  # before files are made that would be taken for some
        files = stack.enter_context(gates.Gates(options, [*texts, how["reference"] or ""]))
        scores = Scores(out if options.json == "-" else files.opened(options.json))
        journal = journal or resume.begin(["judge", *arguments], options.record, more=["--round", str(number)])
        console = sys.stderr if options.json == "-" else out
        alone = options.json in (None, "-") and not any((options.junit, options.sarif, options.baseline, options.write_baseline))
        how |= {"folder": f"{folder}/", "journal": journal}
        for place in (folder, *options.paths):  # a candidate would write into another one
            hold(re.sub(r"(?<=\.py):.*", "", place))
        if options.reference:  # or into what all are held to, and what that imports
            place = Path(options.reference.partition(":")[0])
            hold(place.parent if place.suffix == ".py" else Path())
            hold(place)
        stack.enter_context(listening())
        try:
            before = {line["digest"]: line["judged"] for line in journal.before if "judged" in line} if journal else {}
            for (name, text), one in judge_all(asked, how, options.workers, before):
                if one["verdict"] == "interrupted":  # it is judged when the run is gone on with
                    raise KeyboardInterrupt
                own = text.removeprefix(how["folder"])
                one |= {"streamed": own != text, "file": gates.file_told(text) if own == text else own.partition(":")[0]}
                if journal and (key := digest(name, text, how)) not in before:
                    journal.note(judged=one, digest=key)
                records.append(one)
                scores.lost |= not told(gate.line(one), console, alone)
                scores.add(one)
                check()
        except KeyboardInterrupt:
            interrupted = True
        if not (records or interrupted):
            raise ValueError("there is no candidate on the standard input")
        if records:
            files.write(records, console)
        if interrupted:
            print(f"attncheck: interrupted{resume.hint(journal)}", file=sys.stderr)
            return status()
        verdicts = {one["verdict"] for one in records}
        ended = files.status(records, console, 1 if "refuted" in verdicts else 0 if verdicts == {"nothing found"} else 2)
        ended = 2 if scores.lost else ended
    if journal:
        journal.note(ended=ended)
    return ended


def candidates(paths: Sequence[str], folder: str) -> Iterator[Asked]:
    """(name, what names the callable) of every candidate; those of standard input as they come, where nothing is named by a line that is none.

    No two have the same name. Raises ValueError for a place that holds none.
    """
    if "-" in paths and sys.stdin is None:
        raise ValueError("the standard input is closed: no candidate can be read from it")
    asked = itertools.chain.from_iterable([_streamed(sys.stdin.fileno(), folder) if path == "-" else _lying_at(path) for path in paths])
    names: set[str] = set()
    return ((gates.numbered(name, names), text) for name, text in asked)


def _lying_at(path: str) -> list[Asked]:
    place, colon, _ = path.rpartition(":")
    if colon and place.endswith(".py"):
        return [(printable(path), path)]
    if Path(path).is_dir():
        files = sorted(_files_in(path))
        if not files:
            raise ValueError(f"there is no file of Python in {path}")
        return [(printable(str(file)), f"{file}:{ANY}") for file in files]
    if Path(path).is_file():
        return [(printable(path), f"{path}:{ANY}")]
    raise ValueError(f"{path} is no file of Python" if Path(path).exists() else f"there is no file or folder {path}")


def _files_in(folder: str) -> Iterator[Path]:
    """Its files of Python, those in folders below it, too; none that is hidden or private, and nothing of a virtual environment."""
    for place, below, files in os.walk(folder):
        below[:] = [one for one in below if not (one.startswith(".") or one in SKIPPED or Path(place, one, "pyvenv.cfg").exists())]
        yield from (Path(place, one) for one in files if one.endswith(".py") and not one.startswith((".", "_")))


def _streamed(stream: int, folder: str) -> Iterator[Asked]:
    number = 0
    for at, text in enumerate(_lines(stream), 1):
        if not text.strip():
            continue
        number += 1
        try:
            content = json.loads(text)
            name, code, attribute = content.get("name", f"candidate {number}"), content["code"], content.get("attribute", ANY)
            if not all(isinstance(value, str) for value in (name, code, attribute)):
                raise TypeError
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
            yield f"line {at}", ""
            continue
        file = Path(folder) / f"candidate_{number}.py"
        file.write_bytes(code.encode("utf-8", "surrogatepass"))  # what is no text cannot be read as a candidate, and says so
        yield printable(name) or f"candidate {number}", f"{file}:{attribute}"


def _lines(stream: int) -> Iterator[bytes]:
    """The lines that are written there, each as soon as it is. No lock is held meanwhile that the end of Python would wait for."""
    rest = b""
    while part := os.read(stream, 2**16):
        *whole, rest = (rest + part).split(b"\n")
        yield from whole
    yield rest


def printable(name: str) -> str:
    """A name on one line, in which nothing moves a cursor."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in name)


def digest(name: str, text: str, how: Mapping[str, Any]) -> str:
    """What is the same for a candidate of the same name and the same file, held to the same file of a reference."""
    return " ".join([name, *digests([text, how["reference"]]).values()])


def judge_all(
    asked: Iterable[Asked], how: dict[str, Any], workers: int, before: Mapping[str, gate.Record] | None = None
) -> Iterator[tuple[Asked, gate.Record]]:
    """A record for each, as soon as it is there; ``before``: those that are known, by their digests.

    A process of ours that is killed takes nobody with it: who was judged meanwhile is judged once more, alone.
    """
    known = before or {}
    if workers == 1:
        for one in asked:
            yield one, known.get(digest(*one, how)) or judged(*one, how)
        return
    events: SimpleQueue[Asked | Future[gate.Record] | Exception | None] = SimpleQueue()
    Thread(target=_read, args=(asked, events), daemon=True).start()
    waiting: dict[Future[gate.Record], Asked] = {}
    reading, pool = True, _pool(workers)
    try:
        while reading or waiting:
            event = events.get()
            if event is None:
                reading = False
            elif isinstance(event, Exception):
                raise event
            elif isinstance(event, Future):
                one = waiting.pop(event)
                yield one, _alone(one, how) if isinstance(event.exception(), BrokenProcessPool) else event.result()
            elif record := known.get(digest(*event, how)):
                yield event, record
            else:
                try:
                    task = pool.submit(judged, *event, how)
                except BrokenProcessPool:
                    pool = _pool(workers)
                    task = pool.submit(judged, *event, how)
                waiting[task] = event
                task.add_done_callback(events.put)
        pool.shutdown()
    except BaseException:
        for worker in multiprocessing.active_children():
            worker.kill()
        pool.shutdown(cancel_futures=True)
        raise


def _read(asked: Iterable[Asked], events: SimpleQueue[Any]) -> None:
    """Tell of each candidate as it comes, of what ends them, and of the last one."""
    try:
        for one in asked:
            events.put(one)
    except Exception as error:
        events.put(error)
    events.put(None)


def _pool(workers: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"), initializer=obey, initargs=(kept_from_targets(),))


def _alone(one: Asked, how: dict[str, Any]) -> gate.Record:
    """The record of a candidate beside whom nobody else is judged."""
    with _pool(1) as pool:
        try:
            return pool.submit(judged, *one, how).result()
        except BrokenProcessPool:
            return gate.cannot(one[0], "the process that judged it was killed", 0.0)


def judged(name: str, text: str, how: dict[str, Any]) -> gate.Record:
    """What becomes of one candidate; nothing that it does is raised here."""
    began = time.monotonic()
    if not text:
        return gate.cannot(name, NO_CANDIDATE, 0.0)
    if text.rpartition(":")[2] == ANY:
        asked = contracts().get(how["contract"])
        text += MODELS[0] if str(how["reference"]).endswith(MODELS) else A_CLASS if asked and asked.of_classes else how["contract"]
    try:
        with containing(), redirect_stdout(sys.stderr), link.allowing(how["seconds"]):
            made = _judged(name, text, how, began)
    except (CannotRun, link.Gone, ValueError, OSError) as error:
        told = re.sub(rf"{re.escape(text.rpartition(':')[0])}:[\w?.]+", lambda _: name, " ".join(sentence(error).split()))
        made = gate.cannot(name, told, 0.0)
    except NoMoreCalls as over:
        slow = f": {over}" if str(over) else ""
        made = gate.cannot(name, f"time was over before the first case{slow}: give more time", 0.0, "incomplete")
    except Exception as error:  # ours: the others are judged all the same
        traceback.print_exception(error)
        made = gate.cannot(name, f"the checker failed: {type(error).__name__}: {error}: {OURS}", 0.0)
    made["seconds"] = round(time.monotonic() - began, 3)
    return dict(_beside(how["folder"], made))


def _beside(folder: str, told: Any) -> Any:
    """What is told, as if the files of a folder lay in the working directory: its name is another one in every run."""
    if isinstance(told, str):
        return told.replace(folder, "")
    if isinstance(told, dict):
        return {key: _beside(folder, value) for key, value in told.items()}
    return [_beside(folder, value) for value in told] if isinstance(told, list | tuple) else told


def _judged(name: str, text: str, how: dict[str, Any], began: float) -> gate.Record:
    link.WAITED.clear()
    asked = name, text
    deadline = None if how["seconds"] is None else began + how["seconds"]
    until = math.inf if deadline is None else max(deadline, began + MEETING)
    with link.ending(until):
        (target, reference), device = on_either(text, partial(met, name, text, how), how["device"] or "cpu", bool(how["device"]))
    place, _, attribute = text.rpartition(":")
    if attribute.startswith(ANY):
        text = f"{place}:{target.address}" if target.address else target.name
    held_to = bool(target.address)
    target = dataclasses.replace(target, name=name, address=_address(text, held_to, how, device))
    if not reference and how["contract"] not in ("any", target.contract):
        hint = f"--reference FILE:NAME says what it must answer like, --contract {target.contract} asks what is true of all"
        return gate.cannot(name, f"it is {target.contract}, not {how['contract']}: {hint}", 0.0, "incomplete")
    plan = Plan(
        examples=how["cases"],
        round=how["round"],
        device="cpu" if held_to else device,
        strict=False,
        alike=True,
        deadline=deadline,
        journal=journal.of(digest(*asked, how)) if (journal := how.get("journal")) else None,
    )
    away = ""
    if reference:
        with link.ending(until):
            pair, properties, away = _held_to(target, reference, how, device)
        target = dataclasses.replace(pair, address=target.address) if held_to else pair
    else:
        properties = [catalogue.PROPERTIES[one] for one in how["properties"]]
        plan = dataclasses.replace(plan, deviations=known_of(target, device))
        away = contradicted(target, dataclasses.replace(plan, examples=ASKED, shrink=False))
        structure = target.learned.get("structure", "")
        if not away and structure.startswith("not confirmed"):  # what its weights should make of the tokens nobody has said
            away = f"its attention is that of no composition of its projections: {structure.partition(': ')[2]}; --reference says what it is held to"
    if how["case"]:
        report = put(target, properties, how["case"])[1]
        report.incomplete = "nothing was found in this case, the only one that was tried"
    else:
        report = verify_target(target, properties, plan, first=how["first"], rank=catalogue.RANK)
    made = gate.record(name, report, how["round"])
    if away and made["verdict"] == "nothing found":
        made |= {"verdict": "incomplete", "why": away}
    made["line"] = gates.first_line(text)
    return made


def _address(text: str, held_to: bool, how: Mapping[str, Any], device: str) -> str:
    """How a replay line finds a candidate; a module that is ``held_to`` another one by a line of judge's own: any other would import it."""
    asked = f"judge {shlex.quote(text)} --reference {shlex.quote(how['reference'])}" if held_to else f"{shlex.quote(text)} --contained"
    asked += " --inference" * (held_to and how["inference"]) + f" --device {device}" * (device != "cpu")
    return f"{asked} --round {how['round']}"


def _held_to(target: Target, reference: Target, how: Mapping[str, Any], device: str) -> tuple[Target, list[Property], str]:
    """The pair, what is asked of it, and why even that would be too little to say that nothing was found; empty if it would not.

    Raises CannotRun if they are no pair.
    """
    pair = next_to(target, reference)
    assert pair.like is not None
    why = []
    allowed = {*(how["supports"] or ()), *(["gradients"] if how["inference"] else [])}
    if lacks := narrower(target, pair.like, allowed):
        why.append(f"it takes {', '.join(lacks.values())}, {_unlike(lacks)}")
    forms = [_returned(one, device) for one in (target, reference)]
    if all(forms) and forms[0] != forms[1]:
        why.append(f"it returns {forms[0]}, the reference {forms[1]}: it cannot stand in its place")
    if parted := [f"{key} ({pair.differs[key]})" for key in ("default_scale", "causal") if key in pair.differs]:
        why.append(f"it differs from the reference in its {' and '.join(parted)}, and was compared in other calls alone")
    properties = list(pair_properties(pair))
    if names := how["properties"]:
        asked = [prop for prop in properties if prop.name in names]
        if not asked:
            raise CannotRun(
                f"--property: beside a reference {', '.join(prop.name for prop in properties)} are asked, not {', '.join(names)}"
            )
        properties = asked
    if how["inference"] and (left := [prop for prop in properties if prop.name.startswith(GRADIENTS)]):
        properties = [prop for prop in properties if prop not in left]
        pair = dataclasses.replace(pair, untried={**pair.untried, "gradients": "--inference says that they are not needed"})
    return pair, properties, "; ".join(why)


def _returned(target: Target, device: str) -> str:
    """What a function in another process returns, in a few words; empty where that cannot be told."""
    function = innermost(target.function)
    if not isinstance(function, Stub):
        return ""
    with suppress(Raised):
        target.kind.smoke(target, target.dtypes[0], device)
    return function.returned


def _unlike(lacks: Collection[str]) -> str:
    """What can be said of a candidate that takes less than its reference."""
    hints = ["--inference says that gradients are not needed"] if "gradients" in lacks else []
    if keys := [key for key in lacks if key != "gradients"]:
        hints.append(f"--supports FILE can say what need not be taken ({', '.join(keys)})")
    return f"unlike the reference: {'; '.join(hints)}"


def met(name: str, text: str, how: Mapping[str, Any], device: str) -> tuple[Target, Target | None]:
    """A candidate, on a device, and what it is held to. Raises CannotRun."""
    reference = referee(how["reference"], device) if how["reference"] else None
    return candidate(name, text, reference, how["supports"], device), reference


def candidate(name: str, text: str, reference: Target | None, supports: Any, device: str) -> Target:
    """The target, as it is spoken with, or as it is called beside the reference. Raises CannotRun."""
    held_to = reference and reference.kind.held_to(reference, lambda call: elsewhere(text + call, Builtins(), device), name)
    if held_to is not None and supports:
        raise CannotRun("it is held to a reference, weights and all, of which --supports says nothing")
    if held_to is not None:
        return held_to
    target = find_targets(text, Builtins(), supports, device)[0]
    return target.kind.handshake(target, device)


_MET: dict[tuple[str, ...], Target] = {}  # a module that is the reference: it is made anew for every case, and asked what it is once


def referee(text: str, device: str) -> Target:
    """The reference, which is trusted: a function is where candidates are, a module lies here, as its own rounding is followed. Raises CannotRun.

    So does a module without weights whose weights of keys do not sum to one.
    """
    key = (os.getcwd(), text, *digests([text]).values())
    if key in _MET:
        return _MET[key]
    try:
        with containing(OWN):
            found = find_targets(text, Builtins(), None, device)
    except CannotRun as error:
        if not text.endswith(MODELS) or (known := _followed(text)) is None:
            raise CannotRun(f"{error}") from None
        _MET[key] = known
        return known
    if len(found) != 1:
        raise CannotRun(f"--reference needs one reference, {text} names {len(found)}")
    if isinstance(innermost(found[0].function), Stub):
        try:
            return trusted(found[0].kind.handshake(found[0], device), device)
        except CannotRun:
            if (known := _followed(text)) is None:
                raise
        _MET[key] = known
        return known
    with containing(NEVER):
        (known,) = find_targets(text, Builtins())
    _MET[key] = known.kind.handshake(known, "cpu")
    return _MET[key]


def _followed(text: str) -> Target | None:
    """A module without weights, as one whose operations are followed; None for what is none. Raises CannotRun."""
    thing = load(text)[0]
    kinds = [(kind, fw) for fw in with_modules(thing) for kind in contracts().values()]
    found = next((one for kind, fw in kinds if (one := kind.followed(text, thing, fw)) is not None), None)
    return found and found.kind.handshake(found, "cpu")


def _meet(text: str, device: str | None, budget: float | None) -> None:
    """Raises ValueError for a reference that ends its process, or is too slow for candidates to be compared with it, and CannotRun."""
    seconds, before = math.inf if budget is None else max(budget, MEETING), len(link.ENDS)
    try:
        with link.ending(time.monotonic() + seconds):
            on_either(text, partial(referee, text), device or "cpu", bool(device))
    except link.Gone as gone:
        raise ValueError(f"the reference {text} {gone}") from None
    except NoMoreCalls:
        if len(link.ENDS) > before:
            raise ValueError(f"the reference {text} {link.ENDS[-1]}") from None
        raise ValueError(f"it takes more than {seconds:g} s to find out how the reference {text} is called: give more time") from None


def whole(reference: str) -> str:
    """A reference with its attribute: a file alone means its ``Model``, as in KernelBench, or its ``attention``. Raises ValueError."""
    place = reference.partition(":")[0]
    if place.endswith(".py") and not Path(place).is_file():
        raise ValueError(f"there is no file {place} for --reference")
    if Path(place).is_dir():
        raise ValueError(f"{place} is a folder; --reference takes a file of it, or file.py:NAME")
    if place != reference or not place.endswith(".py"):
        return reference
    for name in ("Model", "attention"):
        if name in gates.defined_in(place):
            return f"{place}:{name}"
    try:
        ast.parse(Path(place).read_bytes(), place)
    except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"{place} cannot be read as Python: {error}") from None
    raise ValueError(f"{place} defines no Model and no attention: give --reference {place}:NAME")


class Scores:
    """Where a line for a program is written for each candidate, if anywhere. A place that takes no more lines, also of those for people, is told."""

    def __init__(self, to: Output | TextIO | None) -> None:
        self.to, self.lost = to, False

    def add(self, one: gate.Record) -> None:
        """Write it. Raises OSError for standard output alone."""
        if not isinstance(self.to, Output):
            if self.to is not None:
                print(json.dumps(one), file=self.to, flush=True)
            return
        try:
            self.to.write(json.dumps(one) + "\n")
        except OSError as error:
            self.to, self.lost = None, True
            print(f"attncheck: the scores cannot be written: {sentence(error)}", file=sys.stderr, flush=True)
