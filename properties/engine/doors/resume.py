"""``attncheck resume``: what an earlier run has found, and the rest of it, if it was ended before its end."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..core.declare import declared
from ..core.words import cases
from ..report.dialect import command_name
from ..report.text import replay_line
from ..search import journal
from ..search.journal import Journal
from .streams import sentence


def parser() -> argparse.ArgumentParser:
    """The options."""
    parser = argparse.ArgumentParser(
        prog="attncheck resume", description="Tell what a run has found, and go on with what it had not tried when it was ended."
    )
    parser.add_argument(
        "file", nargs="?", metavar="FILE", help=f"what the run has written down (default: the last one in {journal.FOLDER})"
    )
    parser.add_argument("--isolate", action="store_true", help="as for the run itself")
    return parser


def main(arguments: Sequence[str], go_on: Callable[[list[str], Journal | None], int]) -> int:
    """Tell, and go on; the exit status of the whole run. Raises ValueError and OSError with one sentence."""
    options = parser().parse_args(arguments)
    path = Path(options.file or last())
    lines = journal.lines(path)
    first = lines[0]
    print(f"{path}: {command_name()} {shlex.join(first['arguments'])}")
    for line in told(lines):
        print(line)
    sys.stdout.flush()
    ended = next((line["ended"] for line in lines if "ended" in line), None)
    if ended is not None:
        print(f"that run came to its end, with exit status {ended}")
        return int(ended)
    path = path.resolve()
    if not os.path.isdir(first["folder"]):
        raise ValueError(f"the folder {first['folder']}, in which that run was, is gone")
    os.chdir(first["folder"])
    given = [*first["arguments"], *["--isolate"] * options.isolate, *first.get("more", [])]
    changed = [place for place, digest in first.get("files", {}).items() if journal.digests([f"{place}:"]) != {place: digest}]
    if changed:
        print(f"{', '.join(changed)} changed since then: everything is tried again", flush=True)
        return go_on(given, None)
    return go_on(given, Journal(path, lines))


def begin(arguments: Sequence[str], to: str | None, **more: Any) -> Journal | None:
    """The journal of a run that begins; None where nothing can be written. Raises OSError for a place that somebody has named, ValueError if
    something else is kept there.
    """
    if to and os.path.exists(to) and os.path.getsize(to):
        journal.lines(to)  # another file is not overwritten
    made = Journal(to) if to else journal.new()
    try:
        made.begin(arguments, **more)
    except OSError as error:
        if to:
            raise
        print(f"attncheck: nothing is written down for a resume: {sentence(error)}", file=sys.stderr, flush=True)
        return None
    if not to:
        journal.forget()
    return made


def hint(of: Journal | None) -> str:
    """How a run that was ended is gone on with."""
    if of:
        with suppress(OSError):
            of.start()
    return f"; {command_name()} resume {shlex.quote(os.path.relpath(of.path))} goes on" if of else ""


def reopened(old: Journal | None) -> Journal | None:
    """The journal of a run that goes on in another way."""
    return Journal(old.path, journal.lines(old.path)) if old else None


def last() -> str:
    """The journal of the last run here. Raises ValueError if there is none."""
    if not (found := journal.journals()):
        raise ValueError(f"no run has written anything down in {journal.FOLDER} here; give the file of one")
    return str(found[-1])


def told(lines: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """What was found, a finding each, and how much was tried."""
    done = [line for line in lines if "outcome" in line]
    refuted = {(line["target"], line["property"]): line["outcome"]["finding"] for line in done if line["outcome"]["finding"]}
    for line in lines:
        for what, how in line.get("wrong", {}).items():
            yield f"  found     {line['target']}: documented {what}: {how}"
    for (target, name), said in refuted.items():
        yield f"  found     {target}: {name}, on {said['case']}: {said['line']}"
        with suppress(KeyError, TypeError, ValueError, AttributeError):  # of another version
            yield f"            {replay_line(journal.finding(said, declared()[name], target))}"
    for line in lines:
        if "failing" in line and (line["target"], line["failing"]) not in refuted:
            yield f"  found     {line['target']}: {line['failing']}, not made smaller yet, on {line['case']}: {line['line']}"
    judged = [line["judged"] for line in lines if "judged" in line]
    for one in judged:
        yield f"  judged    {one['candidate']}: {one['verdict']}"
    tried = sum(line["outcome"]["cases"] for line in done)
    if not judged:
        yield f"  tried     {len({(line['target'], line['property']) for line in done})} properties, {cases(tried)}"
