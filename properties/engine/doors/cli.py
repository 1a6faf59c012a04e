"""The command line: ``attncheck TARGET``."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import shlex
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from importlib import metadata
from typing import Any, TextIO

from hypothesis.database import DirectoryBasedExampleDatabase

from ... import catalogue
from ..cases.dtypes import DTYPES
from ..core.attempt import subject, try_case
from ..core.crash import CAN_FORK, forked, isolated
from ..core.declare import Property
from ..core.finding import Finding
from ..core.supports import Supports
from ..core.target import CannotRun, Target
from ..explain.explain import explain
from ..explain.suspects import known_mistakes
from ..frameworks import Framework, framework, no_device
from ..frameworks.machine import machine, machine_text
from ..report import text
from ..report.as_json import report_json
from ..search.deviations import Deviation, read_deviations
from ..search.find_target import Builtins, find_targets
from ..search.interrupt import listening
from ..search.run import Report, verify_target
from ..search.search import Outcome, Plan, try_only, written_cases
from . import explain_case, new
from .known import known_by_effect

DATABASE = ".hypothesis/attncheck"
WORDS = {"new": new.main, "explain": explain_case.main}  # in the place of a target, with arguments of their own
ALONE_SECONDS = 10.0  # so long findings are tried with the target's file imported anew
DEADLY = tuple(-s for s in (signal.SIGSEGV, signal.SIGFPE, signal.SIGABRT, signal.SIGBUS, signal.SIGILL))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The arguments. ``list`` is a word in the place of a target; those of ``WORDS`` have a parser of their own."""
    parser = argparse.ArgumentParser(
        prog="attncheck",
        description="Find the smallest case on which an attention is wrong, or say what was verified.",
        epilog="exit status: 0 nothing found, 1 refuted, 2 cannot be run",
    )
    parser.add_argument("target", nargs="?", help="package.module:attribute, file.py:attribute, or the name or glob of a "
                        "built-in; 'list' prints the properties, 'explain' why a case is drawn, 'new' writes a skeleton; "
                        "nothing: all built-in implementations")
    parser.add_argument("--property", action="append", default=[], metavar="NAME", help="a property, glob or theme (repeatable)")
    parser.add_argument("--case", metavar="CASE", help="try only this case, as printed by a replay line")
    parser.add_argument("--cases", type=count, metavar="N", help="cases per property (default 150; 40 with no target, or where shapes are costly)")
    parser.add_argument("--time", type=duration, metavar="T", help="search for this long: 90s, 30m, 2h")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default cpu)")
    parser.add_argument("--dtype", action="append", default=[], choices=DTYPES, help="only this dtype (repeatable)")
    parser.add_argument("--supports", metavar="FILE.toml", help="what the target supports and which conventions it follows")
    parser.add_argument("--deviations", metavar="FILE.toml", help="known deviations of the target")
    parser.add_argument("--json", metavar="FILE", help="write the report as JSON, too ('-': standard output)")
    parser.add_argument("--round", type=int, default=0, metavar="N", help="another round draws other cases")
    parser.add_argument("-n", "--workers", type=count, default=1, metavar="N", help="processes (default 1)")
    parser.add_argument("--isolate", action="store_true", help="try every case in a process of its own first, as is done by itself "
                        "where a target kills the process")
    parser.add_argument("--strict", action="store_true", help="what the target refuses by raising, always, is refuted, too")
    parser.add_argument("--version", action="store_true", help="that of the installed attncheck; with -v the machine, too")
    parser.add_argument("-v", "--verbose", action="store_true", help="every finding in full")
    parser.add_argument("-q", "--quiet", action="store_true", help="only findings and the last lines")
    return parser.parse_args(arguments)


def version() -> str:
    """That of the installed distribution."""
    try:
        return metadata.version("attncheck")
    except metadata.PackageNotFoundError:
        return "(a clone)"


def richest() -> Framework:
    """The framework that tells most of the machine: PyTorch, where it is installed."""
    try:
        return framework("torch")
    except ImportError:
        return framework("numpy")


def count(text: str) -> int:
    """A whole number from 1 on."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 on")
    return int(text)


def duration(text: str) -> float:
    """Seconds from ``90``, ``90s``, ``30m`` or ``2h``."""
    unit = {"s": 1.0, "m": 60.0, "h": 3600.0}.get(text[-1:])
    try:
        seconds = float(text[:-1]) * unit if unit else float(text)
    except ValueError:
        seconds = -1.0
    if not seconds > 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration such as 90s, 30m or 2h")
    return seconds


class Progress:
    """One line that is written over on a terminal; plain lines when piped; nothing under -q."""

    def __init__(self, quiet: bool) -> None:
        self.live = sys.stderr.isatty() and not quiet
        self.plain = not quiet and not self.live
        self.findings = 0
        self.total = 0
        self.shown = 0.0

    def start(self, name: str) -> None:
        self.name, self.findings, self.total = name, 0, 0
        if self.plain:
            print(f"checking {name}", file=sys.stderr, flush=True)

    def __call__(self, prop: Property, what: Outcome | int) -> None:
        if isinstance(what, Outcome):
            self.total += what.cases
            self.findings += what.finding is not None
        if self.live and time.monotonic() - self.shown > 0.1:
            self.shown = time.monotonic()
            now = f"case {what}  ·  {self.total + what:,}" if isinstance(what, int) else f"done  ·  {self.total:,}"
            line = f"{self.name}  {prop.name}  {now} cases  {self.findings} findings"
            print(f"\r\x1b[K{line[:110]}", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        if self.live:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit status."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    if given and given[0] in WORDS:
        return word(given[0], given[1:])
    options = parse(given)
    if options.version:
        print(f"attncheck {version()}" + f"\n{machine_text(machine(richest(), options.device))}" * options.verbose)
        return 0
    if options.target == "":
        print("attncheck: the target is empty", file=sys.stderr)
        return 2
    warnings.simplefilter("ignore")  # those of the targets; what matters is in the report
    try:
        if options.target == "list":
            print(text.list_text(catalogue.select(tuple(options.property))))
            return 0
        with isolated(options.isolate), listening():
            return run(options)
    except BrokenPipeError:  # the reader has gone, as in "attncheck … | head"
        return reader_gone()
    except BrokenProcessPool:
        return killed("a worker", options.isolate) or main([*given, "--isolate"])
    except KeyboardInterrupt:
        print("attncheck: interrupted", file=sys.stderr)
        return 130
    except (CannotRun, ValueError, OSError) as error:
        print(f"attncheck: {error}", file=sys.stderr)
        return 2
    except Exception:  # 1 would mean that something is refuted
        traceback.print_exc()
        return 2


def word(name: str, arguments: Sequence[str]) -> int:
    """A command with arguments of its own; the exit status."""
    try:
        status = WORDS[name](arguments)
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        return reader_gone()
    except (ValueError, OSError) as error:
        print(f"attncheck: {error}", file=sys.stderr)
        return 2


def reader_gone() -> int:
    """The exit status where nobody reads standard output any more: that of a process that SIGPIPE ended."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 141


def run(options: argparse.Namespace) -> int:
    """Everything but the words."""
    out = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):  # what a target prints is no part of the report
        if options.json == "-":  # standard output is for the JSON alone
            return search_all(options, sys.stderr, out)
        if options.json:
            with open(options.json, "w", encoding="utf-8") as file:  # now, not after an hour
                return search_all(options, out, file)
        return search_all(options, out, None)


def search_all(options: argparse.Namespace, out: TextIO, json_to: TextIO | None) -> int:
    """Search every target that the options name; the exit status."""
    properties = catalogue.select(tuple(options.property))
    builtins = Builtins()
    for path in (options.supports, options.deviations):
        if path and not os.path.exists(path):
            raise CannotRun(f"there is no file {path}")
    supports = Supports.in_file(options.supports) if options.supports else None
    deviations = builtins.deviations() + (read_deviations(options.deviations) if options.deviations else ())
    if options.target is None and not builtins.entries:
        raise CannotRun("give a target; there are no built-in implementations beside this checker")
    check_device(options.device)
    if options.case:
        return try_one(one(options, builtins, supports), properties, options.case, out)
    names = [options.target] if options.target else list(builtins.entries)
    absent: dict[str, str] = {}
    reports: list[Report] = []
    progress = Progress(options.quiet)
    for name in names:
        why = builtins.unavailable(name, options.device) if name in builtins.entries else None
        if why and not options.target:
            absent[name] = why
            continue
        for target in find_targets(name, builtins, supports, options.device):
            recorded = deviations
            if not (options.strict or builtins.has(target.name)):
                target = target.kind.handshake(target, options.device)
                recorded += known_by_effect(target, deviations, builtins, options.device)
            reports.append(check(target, properties, options, recorded, progress, builtins, out))
            if reports[-1].interrupted:
                raise KeyboardInterrupt
    if json_to:
        write_json(json_to, reports, absent)
    if len(reports) > 1 or not options.target:
        print(text.matrices_text(reports, properties, absent), file=out)
    if not any(report.cases or report.findings for report in reports):
        raise CannotRun("nothing was tried")
    return 0 if all(report.ok for report in reports) else 1


def one(options: argparse.Namespace, builtins: Builtins, supports: Mapping[str, Any] | None) -> Target:
    """The single target that --case needs."""
    if options.target is None:
        raise CannotRun("--case needs a target")
    targets = find_targets(options.target, builtins, supports, options.device)
    if len(targets) != 1:
        raise CannotRun(f"--case needs one target, {options.target} names {len(targets)}")
    return addressed(targets[0], options)


def addressed(target: Target, options: argparse.Namespace) -> Target:
    """The target, knowing how a replay line finds it, and what it declares."""
    if not options.supports:
        return target
    return dataclasses.replace(target, address=f"{shlex.quote(target.name)} --supports {shlex.quote(options.supports)}")


def check_device(device: str) -> None:
    """Raises CannotRun if the device does not exist here."""
    if why := no_device(device):
        raise CannotRun(why)


def check(
    target: Target, properties: Sequence[Property], options: argparse.Namespace, deviations: tuple[Deviation, ...],
    progress: Progress, builtins: Builtins, out: TextIO,
) -> Report:  # fmt: skip
    """Search one target and print what was found and what was verified."""
    several = options.target is None
    if options.isolate and not target.framework.forks:
        raise CannotRun(f"--isolate forks the process, which {target.framework.name} does not survive")
    target = addressed(target, options)
    plan = Plan(
        examples=options.cases or (40 if several or target.costly_shapes else 150),
        round=options.round,
        device=options.device,
        dtypes=tuple(options.dtype) or None,
        database=DirectoryBasedExampleDatabase(DATABASE),
        deviations=deviations,
        isolate=options.isolate,
    )
    if plan.dtypes and not set(plan.dtypes) & set(target.dtypes):
        raise CannotRun(f"{target.name} takes {', '.join(target.dtypes)}, not {', '.join(plan.dtypes)}")
    progress.start(target.name)
    supports = Supports.in_file(options.supports) if options.supports else None
    known = target.supports if target.refuses else supports
    source = {"text": target.name, "supports": known}
    report = verify_target(target, properties, plan, seconds=options.time, progress=progress,
                           workers=options.workers, source=source)
    progress.clear()
    if ".py:" in target.name and not options.isolate:
        until = time.monotonic() + ALONE_SECONDS
        for outcome in report.outcomes.values():
            if outcome.finding and time.monotonic() < until:
                with contextlib.suppress(CannotRun):  # a file that can be imported once only, as one that registers an operator
                    fresh = find_targets(target.name, builtins, known, plan.device)[0]
                    outcome.finding = tried_alone(outcome.finding, fresh)
    missing: list[str] = []
    explain(report, known_mistakes(missing) if any(finding.alone for finding in report.findings) else [])
    print(text.findings_text(report, plan.examples, options.verbose), end="", file=out, flush=True)
    if missing:
        print(f"  no readings: the known mistakes cannot be imported ({missing[0]})\n", file=out, flush=True)
    for status in report.surprises:
        print(text.status_text(status), file=out, flush=True)
    if not several:
        print(text.verdict_text(report, deviations=not options.quiet), file=out, flush=True)
    return report


def tried_alone(finding: Finding, fresh: Target) -> Finding:
    """The finding, and whether it shows where the target has had no other calls: if not, the case alone cannot replay it."""
    shows = finding.violation.killed or try_case(subject(fresh, finding.prop), finding.prop, finding.case)
    return dataclasses.replace(finding, alone=bool(shows))


def try_one(target: Target, properties: Sequence[Property], text_of_case: str, out: TextIO) -> int:
    """Put one case to the properties; print what is wrong."""
    cases = written_cases(target, text_of_case)
    case = next(iter(cases.values()))
    check_device(case.device)
    if case.dtype not in target.dtypes:
        raise CannotRun(f"{target.name} takes {', '.join(target.dtypes)}, not {case.dtype}")
    outcomes = [try_only(target, prop, cases.get(prop.topic.case)) for prop in properties]
    tried = [outcome for outcome in outcomes if outcome.cases]
    if not tried:
        why = f"{properties[0].name} cannot" if len(properties) == 1 else "no property can"
        raise CannotRun(f"{why} be put to {case!r}" + f": {outcomes[0].not_exercised}" * (len(properties) == 1))
    findings = [outcome.finding for outcome in tried if outcome.finding]
    for finding in findings:
        print(text.finding_text(finding, case.device, 1), end="\n\n", file=out)
    print(f"{len(findings)} of {len(tried)} properties refuted by {case!r}", file=out)
    return 1 if findings else 0


def write_json(file: TextIO, reports: Sequence[Report], absent: dict[str, str]) -> None:
    """The reports as JSON, to an open file."""
    content: dict[str, Any] = {"reports": [report_json(report) for report in reports], "not_run": absent}
    json.dump(content, file, indent=1, ensure_ascii=False)
    file.write("\n")


def killed(what: str, isolated: bool) -> int:
    """Say that a process was killed. The exit status if nothing more can be done, 0 if a second run can isolate the case."""
    again = "" if isolated or not CAN_FORK else ": starting again, every case in a process of its own first"
    print(f"attncheck: the target killed {what}{again}", file=sys.stderr, flush=True)
    return 0 if again else 2


def entry() -> None:
    """The console script. Tiny arrays are faster with one thread; a user's own setting is respected."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if not CAN_FORK:
        sys.exit(main())
    status = guarded(sys.argv[1:])
    sys.exit(status if status >= 0 else 128 - status)


def guarded(arguments: list[str]) -> int:
    """The exit status of a run in a fork; once more, with cases isolated, if the target kills it."""
    status = forked(lambda: main(arguments))
    if status not in DEADLY:
        return status
    isolated = "--isolate" in arguments
    return killed(f"the process ({signal.Signals(-status).name})", isolated) or guarded([*arguments, "--isolate"])
