"""``attncheck judge PATH…``: many candidates that nobody vouches for, each in a process of its own, a verdict for each."""

from __future__ import annotations

import argparse
import ast
import dataclasses
import json
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
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, redirect_stdout
from pathlib import Path
from typing import Any, TextIO

from ... import catalogue
from ..contained import link
from ..contained.load import ANY, MODELS
from ..contained.stub import Stub
from ..contained.template import hide, hold
from ..core.supports import Supports
from ..core.target import CannotRun, Target
from ..report import record as gate
from ..search.find_target import NEVER, OWN, Builtins, containing, elsewhere, find_targets
from ..search.interrupt import check, listening, status
from ..search.journal import Journal, digests
from ..search.own_words import ASKED, contradicted
from ..search.pairs import pair_properties
from ..search.run import obey, verify_target
from ..search.search import Plan
from . import resume
from .arguments import count, duration, given, processes
from .known import known_of, next_to

DEFAULT_CASES, PAIR_CASES = 40, 300


def parser() -> argparse.ArgumentParser:
    """The options."""
    parser = argparse.ArgumentParser(
        prog="attncheck judge",
        description="Judge many candidates, each in a process of its own.",
        epilog="exit status: 0 nothing found in any, 1 one is refuted, or worse than the baseline, 2 one cannot be judged",
    )
    parser.add_argument(
        "paths", nargs="+", metavar="PATH", help="file.py, file.py:attribute, a folder of files, or - for JSON Lines with name and code"
    )
    parser.add_argument("--contract", type=given, default="attention", help="what a candidate must be (default attention)")
    parser.add_argument("--property", action="append", default=[], metavar="NAME", help="a property, glob or theme (repeatable)")
    parser.add_argument("--reference", type=given, metavar="REF", help="what a candidate must answer like, instead of the properties")
    parser.add_argument(
        "--cases", type=count, metavar="N", help=f"cases a property (default {DEFAULT_CASES}; {PAIR_CASES} with a reference)"
    )
    parser.add_argument("--time", type=duration, metavar="T", help="the budget of a candidate, 5s")
    parser.add_argument("--all", action="store_true", help="go on past the first finding")
    parser.add_argument("--round", type=int, metavar="N", help="the round of cases (default: a secret one, which the scores tell)")
    parser.add_argument(
        "--supports", type=given, metavar="FILE.toml", help="what all candidates support; what they say themselves is theirs"
    )
    parser.add_argument(
        "--json", type=given, metavar="FILE", help="a line of JSON a candidate as soon as it is judged ('-': standard output)"
    )
    parser.add_argument("--junit", type=given, metavar="FILE", help="the verdicts as JUnit XML")
    parser.add_argument("--sarif", type=given, metavar="FILE", help="the findings as SARIF 2.1.0")
    parser.add_argument("--baseline", type=given, metavar="FILE", help="exit 1 only for what is worse than what this file says")
    parser.add_argument("--write-baseline", action="store_true", help="write that file instead")
    parser.add_argument("--record", type=given, metavar="FILE", help="where every verdict is written down, for 'resume'")
    parser.add_argument("-n", "--workers", type=processes, default=1, metavar="N", help="candidates at a time (default 1)")
    return parser


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The options that are given."""
    reader = parser()
    options = reader.parse_args(arguments)
    if options.write_baseline and not options.baseline:
        reader.error("--write-baseline needs --baseline FILE")
    if options.reference and options.property:
        reader.error("--reference asks for the answers of the reference, --property for properties: give one of them")
    return options


def main(arguments: Sequence[str], journal: Journal | None = None) -> int:
    """Judge; the exit status. Raises ValueError and OSError with one sentence. ``journal``: that of a run which is gone on with."""
    options = parse(arguments)
    if sys.platform != "linux":
        raise ValueError("judge shares memory with the candidates' processes, as Linux alone can")
    warnings.simplefilter("ignore")
    names = tuple(prop.name for prop in catalogue.select(tuple(options.property)))
    known = read_baseline(options.baseline) if options.baseline and not options.write_baseline else None
    supports = Supports.in_file(options.supports) if options.supports else None
    number = secrets.randbelow(2**31) if options.round is None else options.round
    journal = journal or resume.begin(["judge", *arguments], options.record, more=["--round", str(number)])
    how = {
        "contract": options.contract,
        "properties": names,
        "reference": options.reference and whole(options.reference),
        "cases": options.cases or (PAIR_CASES if options.reference else DEFAULT_CASES),
        "seconds": options.time,
        "first": not options.all,
        "round": number,
        "supports": supports,
    }
    records: list[gate.Record] = []
    interrupted = False
    with ExitStack() as stack:
        out = sys.stdout
        scores = out if options.json == "-" else stack.enter_context(open(options.json, "w", encoding="utf-8")) if options.json else None
        console = sys.stderr if options.json == "-" else out
        if scores not in (None, out):
            hide(options.json)  # a candidate would write into it
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        for place in (folder, *options.paths):  # a candidate would write into another one
            hold(re.sub(r"(?<=\.py):.*", "", place))
        stack.enter_context(listening())
        try:
            asked = list(candidates(options.paths, folder))
            before = {line["digest"]: line["judged"] for line in journal.before if "judged" in line} if journal else {}
            for name, text in asked:
                if (one := before.get(digest(name, text, how))) is not None:
                    records.append(one)
                    tell(one, console, scores)
            left = [(name, text) for name, text in asked if digest(name, text, how) not in before]
            for (name, text), one in judge_all(left, how, options.workers):
                if one["verdict"] == "interrupted":  # it is judged when the run is gone on with
                    raise KeyboardInterrupt
                if journal:
                    journal.note(judged=one, digest=digest(name, text, how))
                records.append(one)
                tell(one, console, scores)
                check()
        except KeyboardInterrupt:
            interrupted = True
    write(options, records)
    if interrupted:
        print(f"attncheck: interrupted{resume.hint(journal)}", file=sys.stderr)
        return status()
    worse = gate.regressions(records, known) if known is not None else []
    for sentence in worse:
        print(f"WORSE         {sentence}", file=console)
    verdicts = {one["verdict"] for one in records}
    ended = 1 if "refuted" in verdicts else 0 if verdicts == {"nothing found"} else 2
    if options.baseline:
        ended = 1 if worse else 0
    if journal:
        journal.note(ended=ended)
    return ended


def candidates(paths: Sequence[str], folder: str) -> Iterator[tuple[str, str]]:
    """(name, what names the callable) of every candidate. Raises ValueError for a place that holds none."""
    for path in paths:
        if path == "-":
            yield from _streamed(sys.stdin, folder)
            continue
        place, colon, _ = path.rpartition(":")
        if colon and place.endswith(".py"):
            yield path, path
        elif Path(path).is_dir():
            files = sorted(file for file in Path(path).rglob("*.py") if not file.name.startswith((".", "_")))
            if not files:
                raise ValueError(f"there is no file of Python in {path}")
            yield from ((str(file), f"{file}:{ANY}") for file in files)
        elif Path(path).is_file():
            yield path, f"{path}:{ANY}"
        else:
            raise ValueError(f"there is no file or folder {path}")


def _streamed(stream: TextIO, folder: str) -> Iterator[tuple[str, str]]:
    for number, text in enumerate(filter(str.strip, stream), 1):
        try:
            content = json.loads(text)
            name, code = str(content.get("name", f"candidate {number}")), str(content["code"])
        except (ValueError, KeyError, AttributeError):
            raise ValueError(f'line {number} of the standard input is no JSON such as {{"name": "a", "code": "def attention…"}}') from None
        file = Path(folder) / f"candidate_{number}.py"
        file.write_text(code, encoding="utf-8")
        yield name, f"{file}:{content.get('attribute', ANY)}"


def digest(name: str, text: str, how: Mapping[str, Any]) -> str:
    """What is the same for a candidate of the same name and the same file, held to the same file of a reference."""
    return " ".join([name, *digests([text, how["reference"]]).values()])


def judge_all(asked: Sequence[tuple[str, str]], how: dict[str, Any], workers: int) -> Iterator[tuple[tuple[str, str], gate.Record]]:
    """A record for each, as soon as it is there. A process of ours that is killed takes nobody with it: who was left is judged one by one."""
    if workers == 1 or len(asked) == 1:
        for name, text in asked:
            yield (name, text), judged(name, text, how)
        return
    left = list(asked)
    for one in _side_by_side(asked, how, workers):
        left.remove(one[0])
        yield one
    for name, text in left:
        yield from _side_by_side([(name, text)], how, 1, last=True)


def _side_by_side(
    asked: Sequence[tuple[str, str]], how: dict[str, Any], workers: int, last: bool = False
) -> Iterator[tuple[tuple[str, str], gate.Record]]:
    """The same in several processes, as far as these live. ``last``: who is judged when one dies is blamed."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(workers, len(asked)), mp_context=context, initializer=obey) as pool:
        tasks = {pool.submit(judged, name, text, how): (name, text) for name, text in asked}
        try:
            for task in as_completed(tasks):
                yield tasks[task], task.result()
        except BrokenProcessPool:
            if last:
                yield asked[0], gate.cannot(asked[0][0], "the process that judged it was killed", 0.0)
        except BaseException:
            for worker in multiprocessing.active_children():
                worker.kill()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def judged(name: str, text: str, how: dict[str, Any]) -> gate.Record:
    """What becomes of one candidate; nothing that it does is raised here."""
    began = time.monotonic()
    if text.rpartition(":")[2] == ANY:
        text += MODELS[0] if str(how["reference"]).endswith(MODELS) else how["contract"]
    try:
        with containing(), redirect_stdout(sys.stderr), link.allowing(how["seconds"]):
            made = _judged(name, text, how, began)
    except (CannotRun, link.Gone, ValueError, OSError) as error:
        made = gate.cannot(name, " ".join(str(error).split()).replace(text, name), 0.0)
    except Exception as error:  # ours: the others are judged all the same
        traceback.print_exception(error)
        made = gate.cannot(name, f"the checker failed: {type(error).__name__}: {error}", 0.0)
    made["seconds"] = round(time.monotonic() - began, 3)
    return made


def _judged(name: str, text: str, how: dict[str, Any], began: float) -> gate.Record:
    link.WAITED.clear()
    reference = referee(how["reference"]) if how["reference"] else None
    target = candidate(name, text, reference, how["supports"])
    place, _, attribute = text.rpartition(":")
    if attribute.startswith(ANY):
        text = f"{place}:{target.address or getattr(target.framework, 'attribute', '')}"
    here = "" if target.address else " --contained"
    target = dataclasses.replace(target, name=name, address=f"{shlex.quote(text)}{here} --round {how['round']}")
    if not reference and how["contract"] not in ("any", target.contract):
        hint = f"--reference FILE:NAME says what it must answer like, --contract {target.contract} asks what is true of all"
        return gate.cannot(name, f"it is {target.contract}, not {how['contract']}: {hint}", 0.0, "incomplete")
    deadline = None if how["seconds"] is None else began + how["seconds"]
    plan = Plan(examples=how["cases"], round=how["round"], strict=False, deadline=deadline)
    if reference:
        target = next_to(target, reference)
        properties = list(pair_properties(target))
    else:
        properties = [catalogue.PROPERTIES[one] for one in how["properties"]]
        plan = dataclasses.replace(plan, deviations=known_of(target))
    away = "" if reference else contradicted(target, dataclasses.replace(plan, examples=ASKED, shrink=False))
    made = gate.record(name, verify_target(target, properties, plan, first=how["first"], rank=catalogue.RANK), how["round"])
    if away and made["verdict"] == "nothing found":
        made |= {"verdict": "incomplete", "why": away}
    made["line"] = first_line(text)
    return made


def candidate(name: str, text: str, reference: Target | None, supports: Any) -> Target:
    """The target, as it is spoken with, or as it is called beside the reference. Raises CannotRun."""
    held_to = reference and reference.kind.held_to(reference, lambda: elsewhere(text, Builtins()), name)
    if held_to is not None and supports:
        raise CannotRun("it is held to a reference, weights and all, of which --supports says nothing")
    if held_to is not None:
        return held_to
    target = find_targets(text, Builtins(), supports)[0]
    return target.kind.handshake(target, "cpu")


def referee(text: str) -> Target:
    """The reference, which is trusted: a module lies here, as its own rounding is followed. Raises CannotRun."""
    with containing(OWN):
        found = find_targets(text, Builtins())
    if len(found) != 1:
        raise CannotRun(f"--reference needs one reference, {text} names {len(found)}")
    if not isinstance(found[0].function, Stub):  # made anew for every case, and candidates with its weights
        with containing(NEVER):
            found = find_targets(text, Builtins())
    return found[0].kind.handshake(found[0], "cpu")


def whole(reference: str) -> str:
    """A reference with its attribute: a file alone means its ``Model``, as in KernelBench, or its ``attention``. Raises ValueError."""
    place = reference.partition(":")[0]
    if place.endswith(".py") and not Path(place).is_file():
        raise ValueError(f"there is no file {place} for --reference")
    if place != reference or not place.endswith(".py"):
        return reference
    for name in ("Model", "attention"):
        if name in defined_in(place):
            return f"{place}:{name}"
    raise ValueError(f"{place} defines no Model and no attention: give --reference {place}:NAME")


def first_line(text: str) -> int:
    """Where a candidate is defined in its file, as far as reading the file shows."""
    place, _, attribute = text.rpartition(":")
    defined = defined_in(place)
    return defined.get(attribute, min(defined.values(), default=1) if attribute == ANY else 1)


def defined_in(place: str) -> dict[str, int]:
    """What a file defines, and in which line, as far as reading it shows."""
    try:
        tree = ast.parse(Path(place).read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return {}
    defined = {node.name: node.lineno for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    assigned = [(x.id, node.lineno) for node in tree.body if isinstance(node, ast.Assign) for x in node.targets if isinstance(x, ast.Name)]
    return defined | dict(assigned)


def tell(one: gate.Record, console: TextIO, scores: TextIO | None) -> None:
    """A line for a person, and one for a program."""
    if scores is not None:
        print(json.dumps(one), file=scores, flush=True)
    print(gate.line(one), file=console, flush=True)


def read_baseline(path: str) -> dict[str, Any]:
    """Raises ValueError if it is none."""
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError:
        content = None
    if not isinstance(content, dict) or not all(isinstance(one, dict) and set(one) >= {"findings", "held"} for one in content.values()):
        raise ValueError(f"{path} is no baseline; --write-baseline writes one")
    return content


def write(options: argparse.Namespace, records: Sequence[gate.Record]) -> None:
    """The files that gates read."""
    from .files import version

    if options.junit:
        Path(options.junit).write_text(gate.junit_text(records), encoding="utf-8")
    if options.sarif:
        Path(options.sarif).write_text(gate.sarif_text(records, version()), encoding="utf-8")
    if options.baseline and options.write_baseline:
        Path(options.baseline).write_text(json.dumps(gate.baseline(records), indent=1, sort_keys=True) + "\n", encoding="utf-8")
    if os.environ.get("GITHUB_ACTIONS") == "true":
        for note in gate.github_lines(records):
            print(note, flush=True)
        if place := os.environ.get("GITHUB_STEP_SUMMARY"):
            with open(place, "a", encoding="utf-8") as file:
                file.write(gate.summary(records))
