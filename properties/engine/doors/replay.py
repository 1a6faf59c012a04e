"""``attncheck replay``: every finding that was kept, once more. FIXED, STILL WRONG, or ERROR where it cannot be tried."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import shlex
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from hypothesis.database import DirectoryBasedExampleDatabase, ExampleDatabase

from ... import catalogue
from ..cases.case import shortened
from ..contained.link import Gone
from ..core.crash import isolated
from ..core.finding import Finding
from ..core.supports import Supports
from ..core.target import CannotRun, Target
from ..core.trial import describe
from ..core.words import text_in
from ..report.dialect import command_name
from ..report.text import replay_line
from ..search.find_target import Builtins, containing, find_targets
from ..search.search import try_only, written_cases
from . import options
from .streams import sentence

DATABASE = ".hypothesis/attncheck"
KEY = b"attncheck\0findings"


def keep(database: ExampleDatabase | None, findings: Iterable[Finding]) -> None:
    """Keep the replay lines of findings; those that need earlier calls, or that no command finds, have none."""
    for finding in findings:
        if database is not None and finding.alone and finding.address is not None:
            database.save(KEY, replay_line(finding).encode(errors="surrogateescape"))


def parser() -> argparse.ArgumentParser:
    """The options."""
    parser = argparse.ArgumentParser(
        prog="attncheck replay", description="Try every finding again: those of earlier runs here, or of a report."
    )
    parser.add_argument("report", nargs="?", metavar="FILE.json", help="what --json has written; nothing: what is kept in .hypothesis/")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Try each; 1 if something is still wrong, else 2 if something cannot be tried, else 0. Raises ValueError for what is no report."""
    report = parser().parse_args(arguments).report
    database = DirectoryBasedExampleDatabase(DATABASE)
    lines = in_report(Path(report)) if report else sorted(text.decode(errors="surrogateescape") for text in database.fetch(KEY))
    states = []
    for line in lines:
        with contextlib.redirect_stdout(sys.stderr):  # what a target prints is no part of the report
            state, says = again(line)
        states.append(state)
        print(f"{state:<12}{says}\n            {line if line.isprintable() else shortened(line)}", flush=True)
        if state == "FIXED" and not report:
            database.delete(KEY, line.encode(errors="surrogateescape"))
    counts = ", ".join(f"{states.count(state)} {state.lower()}" for state in ("FIXED", "STILL WRONG", "ERROR"))
    print(f"{len(states)} {'finding' if len(states) == 1 else 'findings'}: {counts}" if states else "no finding is kept here")
    return 1 if "STILL WRONG" in states else 2 if "ERROR" in states else 0


def in_report(path: Path) -> list[str]:
    """The replay lines of a report as JSON. Raises ValueError if it is none."""
    try:
        reports = json.loads(text_in(path))["reports"]
        found = [p["finding"] for report in reports for p in report["properties"].values() if p["finding"]]
        lines = [finding["replay"] for finding in found if finding["alone"]]
        if not all(isinstance(line, str) for line in lines):
            raise TypeError("a replay line is a text")
        return lines
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path} is no report of --json: {type(error).__name__}: {error}") from None


def again(line: str) -> tuple[str, str]:
    """What becomes of a replay line: the state, and what there is to say."""
    try:
        target, name, text = _read(line)
        (prop,) = catalogue.select((name,))
        case = written_cases(target, text).get(prop.topic.case)
        if case is not None and case.dtype not in target.dtypes:
            raise CannotRun(f"{target.name} takes {', '.join(target.dtypes)}, not {case.dtype}")
        with isolated(target.framework.forks):
            outcome = try_only(target, prop, case)
    except (CannotRun, ValueError, OSError) as error:
        return "ERROR", sentence(error)
    except Gone as gone:
        return "ERROR", f"a first call {gone}"
    if not outcome.cases:
        return "ERROR", f"{prop.name} cannot be put to it: {outcome.why}"
    return ("STILL WRONG", f"{prop.name}: {describe(outcome.finding.violation)}") if outcome.finding else ("FIXED", prop.name)


def _read(line: str) -> tuple[Target, str, str]:
    """The target, the property and the case of a replay line. Raises ValueError for another line, CannotRun."""
    try:
        words = shlex.split(line)
    except ValueError:
        raise ValueError("no replay line") from None
    for command in (command_name().split(), ["attncheck"], ["python", "-m", "properties"]):
        if words[: len(command)] == command:
            words = words[len(command) :]
            break
    else:
        raise ValueError("a finding in a function of Python is replayed there" if line.startswith("verify(") else "no replay line")
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            given = options.parser().parse_args(words)
    except SystemExit:
        raise ValueError("no replay line") from None
    if not (given.target and given.property and given.case):
        raise ValueError("no replay line")
    supports = Supports.in_file(given.supports) if given.supports else None
    with containing(options.which_contained(given)):
        targets = find_targets(given.target, Builtins(), supports, options.device_of(given))
    if len(targets) != 1:
        raise CannotRun(f"{given.target} names {len(targets)} targets")
    return targets[0], given.property[0], given.case
