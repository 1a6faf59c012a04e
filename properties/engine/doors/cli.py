"""The command line: ``attncheck TARGET``."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import io
import os
import shlex
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from functools import partial
from typing import Any, TextIO

from hypothesis.database import DirectoryBasedExampleDatabase

from ... import catalogue
from ..contained import link
from ..contained.limits import PR_SET_DUMPABLE, prctl, without_gpus
from ..contained.link import Gone
from ..contained.watch import do_not_wait
from ..core.attempt import subject, try_case
from ..core.crash import CAN_FORK, isolated
from ..core.declare import Property
from ..core.finding import Finding
from ..core.supports import Supports
from ..core.target import CannotRun, Target
from ..core.words import version
from ..explain.explain import SECONDS, explain, reading_time
from ..explain.suspects import known_mistakes
from ..frameworks import Framework, framework, no_device
from ..frameworks.machine import machine, machine_text
from ..report import dialect, text
from ..search.deviations import Deviation, read_deviations
from ..search.find_target import NEVER, Builtins, containing, find_targets, on_either
from ..search.interrupt import asked as end_was_asked
from ..search.interrupt import listening
from ..search.interrupt import status as interrupted_status
from ..search.journal import Journal, digests
from ..search.pairs import pair_properties
from ..search.run import Report, Workers, load, put, verify_target
from ..search.search import FIRST_PASS, Plan
from . import completion, explain_case, init, judge, new, replay, resume, show
from .files import Files
from .guard import guarded, killed
from .known import beside, known_by_effect
from .options import device_of, parser, which_contained
from .progress import Progress
from .streams import Output, sentence, steady
from .terminal import page_line, paint

DATABASE = replay.DATABASE
# In the place of a target, with arguments of their own.
WORDS: dict[str, Any] = {
    "new": new,
    "explain": explain_case,
    "show": show,
    "judge": judge,
    "replay": replay,
    "resume": resume,
    "init": init,
    "completion": completion,
}
MINUTE = 60.0  # seconds that a run takes of which nobody has said how long it may be, beyond the first cases of each property
FLAGS_SECONDS = 10.0  # of them at least some are for flags of constructors that are not as by default
IMPORT_SECONDS = 60.0  # at least so long an import is waited for, however short the search is to be
ALONE_SECONDS = 10.0  # so long findings are tried with the target's file imported anew


def richest() -> Framework:
    """The framework that says most of the machine: PyTorch, where it is installed."""
    try:
        return framework("torch")
    except ImportError:
        return framework("numpy")


def main(arguments: Sequence[str] | None = None, journal: Journal | None = None) -> int:
    """Run the command line; the exit status. ``journal``: that of a run which is gone on with."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    if given and given[0] in WORDS:
        return word(given[0], given[1:])
    options = parser().parse_args(given)
    options.given, options.journal, options.began = given, journal, time.monotonic()
    options.placed, options.device = bool(options.device), device_of(options)
    without_gpus(options.device)
    if options.target == "" and not options.version:
        print("attncheck: the target is empty", file=sys.stderr)
        return 2
    if options.in_process:
        do_not_wait()
    warnings.simplefilter("ignore")  # those of the targets; what matters is in the report
    try:
        if options.version:
            more = [machine_text(machine(richest(), options.device))] if options.verbose else []
            print(f"attncheck {version()}", *more, sep="\n", flush=True)
            return 0
        if options.target == "list":
            print(text.list_text(catalogue.select(tuple(options.property))), flush=True)
            return 0
        which = which_contained(options)
        if which == NEVER:
            prctl(PR_SET_DUMPABLE, 1)  # whoever wants to may look into this process, as a debugger does
        with isolated(options.isolate), containing(which), listening():
            return run(options)
    except BrokenPipeError:  # the reader has gone, as in "attncheck … | head"
        return reader_gone()
    except BrokenProcessPool:
        return killed("killed a worker", options.isolate) or main([*given, "--isolate"], resume.reopened(options.journal))
    except KeyboardInterrupt:
        return interrupted(options.journal)
    except (CannotRun, ValueError, OSError) as error:
        print(f"attncheck: {sentence(error)}", file=sys.stderr)
        return 2
    except MemoryError as error:
        return no_memory(error)
    except Gone as gone:
        print(f"attncheck: a first call {gone}", file=sys.stderr)
        return 2
    except Exception as error:  # 1 would mean that something is refuted
        return interrupted(options.journal) if end_was_asked() else no_device_left(error) or mistaken(error)


def word(name: str, arguments: Sequence[str]) -> int:
    """A command with arguments of its own; the exit status."""
    try:
        if name == "completion":
            parsers = {word: door.parser() for word, door in WORDS.items()}
            status = completion.main(arguments, parser(), parsers)
        elif name == "resume":
            status = resume.main(arguments, gone_on)
        else:
            status = WORDS[name].main(arguments)
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        return reader_gone()
    except (CannotRun, ValueError, OSError) as error:
        print(f"attncheck: {sentence(error)}", file=sys.stderr)
        return 2
    except MemoryError as error:
        return no_memory(error)
    except Exception as error:
        return mistaken(error)


def gone_on(given: list[str], own: Journal | None) -> int:
    """A run that was ended, as it was called; the exit status. Raises ValueError for what writes nothing down."""
    first = given[0] if given else ""
    if first in WORDS and first != "judge":
        raise ValueError(f"attncheck {first} is no run that can be gone on with")
    return judge.main(given[1:], own) if first == "judge" else main(given, own)


def interrupted(journal: Journal | None) -> int:
    """Say that the run was interrupted, and how to go on with it."""
    print(f"attncheck: interrupted{resume.hint(journal)}", file=sys.stderr)
    return interrupted_status()


def no_memory(error: MemoryError) -> int:
    """Say that it is the machine's memory that is too small for what was asked."""
    print(f"attncheck: there is not enough memory for such sizes: {error or 'give smaller ones'}", file=sys.stderr)
    return 2


def no_device_left(error: Exception) -> int:
    """Say that a call of the target has ended all that this process does on a GPU, if that is what has happened; 0 if not."""
    said = f"{type(error).__name__}: {error}".splitlines()[0]
    if "CUDA error" not in said:
        return 0
    print(
        f"attncheck: the target has ended all that its process does on the device ({said}), which is attncheck's own, too:", file=sys.stderr
    )
    print("without --in-process it has a process of its own, in whose place another one goes on", file=sys.stderr)
    return 2


def mistaken(error: Exception) -> int:
    """Say whose mistake it is: that of an installed chapter if its code ran, else ours."""
    traceback.print_exception(error)
    ran = {str(frame.f_globals.get("__name__", "")).partition(".")[0] for frame, _ in traceback.walk_tb(error.__traceback__)}
    chapters = [name for package, name in catalogue.CHAPTERS.items() if package in ran]
    whose = f"of the installed chapter {chapters[0]!r}, not of attncheck" if chapters else "of attncheck, not of the target"
    print(f"attncheck: this is a mistake {whose}; please report it with the lines above", file=sys.stderr)
    return 2


def reader_gone() -> int:
    """The exit status where nobody reads standard output any more: that of a process that SIGPIPE ended."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 141


def run(options: argparse.Namespace) -> int:
    """Everything but the words."""
    out = sys.stdout
    console = sys.stderr if options.json == "-" else out
    # what a target prints is no part of the report, and standard output may be for the JSON alone
    tell = None if options.quiet else partial(print, file=sys.stderr, flush=True)
    allowed = link.allowing(options.time, IMPORT_SECONDS, tell)
    with contextlib.redirect_stdout(sys.stderr), allowed, Files(options, out, console) as files, compiled_once():
        status = search_all(options, console, files)
    if options.journal:
        options.journal.note(ended=status)
    return status


@contextlib.contextmanager
def compiled_once() -> Iterator[None]:
    """Meanwhile what JAX compiles in one process of a run it does not compile in another; none of it is left to a later run."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        kept = {"JAX_COMPILATION_CACHE_DIR": folder, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
        mine = {} if any(name in os.environ for name in kept) else kept
        os.environ.update(mine)
        try:
            yield
        finally:
            for name in mine:
                del os.environ[name]


def search_all(options: argparse.Namespace, out: TextIO, files: Files) -> int:
    """Search every target that the options name; the exit status."""
    properties = () if options.like else catalogue.select(tuple(options.property))
    builtins = Builtins()
    for path in (options.supports, options.deviations):
        if path and not os.path.exists(path):
            raise CannotRun(f"there is no file {path}")
    supports = Supports.in_file(options.supports) if options.supports else None
    deviations = builtins.deviations() + (read_deviations(options.deviations) if options.deviations else ())
    if options.target is None and not builtins.entries:
        raise CannotRun("give a target; there are no built-in implementations beside this checker")
    check_device(options.device)
    if options.case is not None:
        single = one(options, builtins, supports)
        return try_one(single, properties or pair_properties(single), options.case, out, files)
    if options.like and options.target is None:
        raise CannotRun("--like needs a target")
    names = [options.target] if options.target else list(builtins.entries)
    absent: dict[str, str] = {}
    reports: list[Report] = []
    flagged: list[Report] = []
    progress = Progress(options.quiet, out)
    workers = Workers(options.workers or cores(), always=(options.workers or 1) > 1) if options.workers != 1 else None
    interrupted = False
    if not (options.handshake or options.journal):
        options.journal = resume.begin(options.given, options.record, files=digests([options.target, *options.like]))
    spoken: list[Target] = []
    for name in names:
        why = builtins.unavailable(name, options.device) if name in builtins.entries else None
        if why and not options.target:
            absent[name] = why
            continue
        for target in placed(name, options, builtins, supports):
            recorded = deviations
            target = asked(target, options, builtins)
            if options.handshake:
                target = addressed(target, options)
                print(paint(dialect.handshake_text(target, options.device, options.verbose), out), file=out)
                spoken.append(target)
                continue
            if not (options.strict or builtins.has(target.name)):
                recorded += known_by_effect(target, deviations, builtins, options.device)
            for pair in [beside(target, like, builtins, options.device) for like in options.like] or [target]:
                known = () if options.like else recorded
                reports.append(check(pair, properties or pair_properties(pair), options, known, progress, builtins, out, workers))
                interrupted = reports[-1].interrupted
                if interrupted:
                    break
            if options.target and not (interrupted or options.like or options.property or options.handshake):
                try:
                    flagged += with_other_flags(target, properties, options, recorded, builtins, out)
                    interrupted = any(report.interrupted for report in flagged)
                except KeyboardInterrupt:  # while it is asked what it speaks
                    interrupted = True
            if interrupted:
                break
        if interrupted:
            break
    if workers:
        workers.end()
    if options.write_supports:
        write_supports(options.write_supports, [report.target for report in reports] or spoken, reports)
    if options.handshake:
        return 1 if any(target.faults for target in spoken) else 0
    records = files.tell([*reports, *flagged], absent)
    if options.html:
        print(page_line(options.html, out), end="", file=out)
    if interrupted:
        raise KeyboardInterrupt
    if len(reports) > 1 or not options.target:
        print(text.pairs_text(reports) if options.like else text.matrices_text(reports, properties, absent), file=out)
    if not any(report.cases or report.found for report in reports):
        raise CannotRun("nothing was tried" + ": time was over" * any(report.incomplete.startswith("time was over") for report in reports))
    enough = all(report.enough for report in reports) or options.property
    status = 1 if any(report.found for report in [*reports, *flagged]) else 0 if enough and all(report.ok for report in reports) else 2
    return files.status(records, out, status)


def write_supports(path: str, targets: Sequence[Target], reports: Sequence[Report]) -> None:
    """What was learned of the one target, as TOML. Raises CannotRun for none or several."""
    if len(targets) != 1:
        raise CannotRun(f"--write-supports needs one target, not {len(targets)}")
    edges = {edge for report in reports for outcome in report.outcomes.values() for edge in outcome.edges}
    facts = targets[0].kind.learned_supports(targets[0], edges if reports else None) | {"dtypes": targets[0].dtypes}
    if reports and (kinds := dialect.tightest(reports[0])):
        facts["arithmetic"] = kinds
    with closing(Output(path)) as file:
        file.write(dialect.supports_text(targets[0], facts))


def one(options: argparse.Namespace, builtins: Builtins, supports: Mapping[str, Any] | None) -> Target:
    """The single target that --case needs."""
    if options.target is None:
        raise CannotRun("--case needs a target")
    targets = placed(options.target, options, builtins, supports)
    if len(targets) != 1:
        raise CannotRun(f"--case needs one target, {options.target} names {len(targets)}")
    target = targets[0]
    target = asked(target, options, builtins)  # as in the run that the case is from
    if len(options.like) > 1:
        raise CannotRun(f"--case needs one --like, not {len(options.like)}")
    target = addressed(target, options)
    return beside(target, options.like[0], builtins, options.device) if options.like else target


def asked(target: Target, options: argparse.Namespace, builtins: Builtins) -> Target:
    """The target with what small questions show of it, as findings if the run is strict; a built-in as it is."""
    if builtins.has(target.name):
        return target
    return dataclasses.replace(target.kind.handshake(target, options.device), strict=options.strict)


def placed(name: str, options: argparse.Namespace, builtins: Builtins, supports: Mapping[str, Any] | None) -> list[Target]:
    """The targets that a text names; where nobody has said on which device, on a GPU, if there is one, what cannot be called on the CPU.

    From then on that is the device that is asked for. Raises CannotRun.
    """
    targets, options.device = on_either(name, lambda device: find_targets(name, builtins, supports, device), options.device, options.placed)
    return targets


def addressed(target: Target, options: argparse.Namespace) -> Target:
    """The target, knowing how a replay line finds it, and what it is held to."""
    more = [f"--supports {shlex.quote(options.supports)}"] if options.supports else []
    more += ["--strict"] * options.strict + ["--contained"] * options.contained + ["--in-process"] * options.in_process
    return dataclasses.replace(target, address=" ".join([shlex.quote(target.name), *more])) if more else target


def check_device(device: str) -> None:
    """Raises CannotRun if the device does not exist here."""
    if why := no_device(device):
        raise CannotRun(why)


def check(
    target: Target,
    properties: Sequence[Property],
    options: argparse.Namespace,
    deviations: tuple[Deviation, ...],
    progress: Progress,
    builtins: Builtins,
    out: TextIO,
    workers: Workers | None,
) -> Report:
    """Search one target and print what was found and what was verified."""
    if options.journal:
        options.journal.start()
    several = options.target is None
    fixed = any(one is not None for one in (options.cases, options.time, options.round, options.baseline))  # how much is tried
    if options.isolate and not target.framework.forks:
        raise CannotRun(f"--isolate forks the process, which {target.framework.name} does not survive")
    target = addressed(target, options)
    plan = Plan(
        examples=options.cases or (40 if several or target.costly_shapes else 150),
        round=options.round or 0,
        again=options.round is None,
        device=options.device,
        dtypes=tuple(options.dtype) or None,
        database=DirectoryBasedExampleDatabase(DATABASE),
        deviations=deviations,
        isolate=options.isolate,
        strict=options.strict or builtins.has(target.name),
        journal=options.journal,
    )
    if plan.dtypes and not set(plan.dtypes) & set(target.dtypes):
        raise CannotRun(f"{target.name} takes {', '.join(target.dtypes)}, not {', '.join(plan.dtypes)}")
    supports = Supports.in_file(options.supports) if options.supports else None
    source = {
        "text": target.name,
        "address": target.address,
        "dtypes": target.dtypes,
        "supports": supports,
        "handshake": not builtins.has(target.name),
        "contained": which_contained(options),
    }
    if options.journal and target.faults:
        options.journal.note(target=target.name, wrong=target.faults)
    slow = not (several or fixed) and target.pace.untried()  # the first cases of each property would take far longer than a minute
    seconds = MINUTE if slow else options.time
    progress.start(target, plan, properties, seconds)
    began = time.monotonic()
    report = verify_target(
        target,
        properties,
        plan,
        seconds=seconds,
        usual=None if several or fixed else max(MINUTE / 2, MINUTE - (began - options.began)),
        reading=reading_time(options.time),
        progress=progress,
        workers=None if options.like or (options.device != "cpu" and not options.workers) else workers,  # they would share the one GPU
        source=source,
        first=options.first,
        rank=catalogue.RANK,
    )
    progress.clear()
    missing: list[str] = []
    try:
        if ".py:" in target.name and not (options.isolate or options.like or report.interrupted):
            until = time.monotonic() + min(ALONE_SECONDS, reading_left(began, options.time) / 2)
            for outcome in report.outcomes.values():
                if outcome.finding and time.monotonic() < until:
                    with contextlib.suppress(CannotRun, OSError):  # a file that can be imported once only, or is no longer there
                        outcome.finding = tried_alone(outcome.finding, load(source, plan.device))
        replay.keep(plan.database, report.findings)
        alone = any(finding.alone for finding in report.findings) and not options.like
        left = 0.0 if report.interrupted else reading_left(began, options.time)  # who ends a run does not wait
        explain(report, known_mistakes(missing) if alone and left else [], left)
    except KeyboardInterrupt:  # what was found is told as it is
        report.interrupted = True
    print(paint(text.findings_text(report, plan.examples, options.verbose), out), end="", file=out, flush=True)
    if missing:
        print(f"  no readings: the known mistakes cannot be imported ({missing[0]})\n", file=out, flush=True)
    if several:
        for status in report.surprises:
            print(text.status_text(status), file=out, flush=True)
    else:
        print(paint(text.verdict_text(report, options.verbose), out), file=out, flush=True)
    return report


def with_other_flags(
    target: Target,
    properties: Sequence[Property],
    options: argparse.Namespace,
    deviations: tuple[Deviation, ...],
    builtins: Builtins,
    out: TextIO,
) -> list[Report]:
    """The target with each flag of its constructor the other way round, a few cases of each property: what is wrong is told in full."""
    spent = time.monotonic() - options.began
    until = time.monotonic() + (max(FLAGS_SECONDS, MINUTE - spent) if options.time is None else options.time / 4)
    became: dict[str, list[str]] = {}
    reports: list[Report] = []
    supports = Supports.in_file(options.supports) if options.supports else None
    for name, flag in target.kind.relatives(target).items():
        if time.monotonic() > until:
            became.setdefault("not tried, the time for it was over", []).append(flag)
            continue
        few = {"cases": min(FIRST_PASS, options.cases or FIRST_PASS), "time": None, "journal": None, "quiet": True}
        told = io.StringIO()
        try:
            (one,) = find_targets(name, builtins, supports, options.device)
            one = asked(one, options, builtins)
            report = check(
                one, properties, argparse.Namespace(**{**vars(options), **few}), deviations, Progress(True, told), builtins, told, None
            )
        except (CannotRun, Gone) as error:
            became.setdefault(f"it cannot be tried: {' '.join(str(error).split()).removeprefix(f'{name} ')}", []).append(flag)
            continue
        reports.append(report)
        if report.found:
            print(f"\n{told.getvalue().rstrip()}", file=out, flush=True)
        else:
            what = report.incomplete or "nothing found"
            became.setdefault(f"{what}, {few['cases']} cases of each property", []).append(flag)
        if report.interrupted or (options.first and report.found):
            break
    for what, flags in became.items():
        print("\n".join(dialect.wrapped(f"  also      {', '.join(flags)}: {what}")), file=out, flush=True)
    return reports


def reading_left(began: float, seconds: float | None) -> float:
    """How long findings are read: where a run has a time, what is left of it."""
    return reading_time(seconds) if seconds is None else min(SECONDS, max(began + seconds - time.monotonic(), 0.0))


def tried_alone(finding: Finding, fresh: Target) -> Finding:
    """The finding, and whether it shows where the target has had no other calls: if not, the case alone cannot replay it."""
    if not finding.alone:
        return finding
    shows = finding.violation.killed or try_case(subject(fresh, finding.prop), finding.prop, finding.case)
    return dataclasses.replace(finding, alone=bool(shows))


def cores() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def try_one(target: Target, properties: Sequence[Property], text_of_case: str, out: TextIO, files: Files) -> int:
    """Put one case to the properties; print what is wrong."""
    case, report = put(target, properties, text_of_case)
    for finding in report.findings:
        print(text.finding_text(finding, case.device, 1), end="\n\n", file=out)
    print(f"{len(report.findings)} of {len(report.outcomes)} properties refuted by {case!r}", file=out)
    if files.json or files.html:
        explain(report, known_mistakes() if report.findings else [])
    return files.status(files.tell([report], {}), out, 1 if report.findings else 0)


def entry() -> None:
    """The console script. Tiny arrays are faster with one thread; a user's own setting is respected."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if sys.path[0] == os.getcwd() and not __file__.startswith(f"{sys.path[0]}/"):
        del sys.path[0]  # of "python -m": no module of the checker's is looked for where targets lie, and may write
    steady()
    if not CAN_FORK:
        sys.exit(main())
    given = sys.argv[1:]
    status = guarded(given, main, again=not given or given[0] not in WORDS or given[0] == "resume")
    sys.exit(status if status >= 0 else 128 - status)
