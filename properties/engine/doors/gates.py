"""What gates read of a run: JUnit, SARIF, what is worse than a baseline, and where GitHub runs it, annotations and a summary."""

from __future__ import annotations

import argparse
import ast
import itertools
import json
import os
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO

from ..contained.load import ANY
from ..contained.template import hide
from ..core.words import text_in, version, without_variant
from ..report import record as gate
from ..search.find_target import file_of
from .arguments import given
from .streams import Output

WRITTEN = ("json", "html", "junit", "sarif", "record", "baseline", "write_supports")  # options that name a file to be written
READ = ("supports", "deviations")  # and that are read
TOLD_TO_GITHUB = ("GITHUB_STEP_SUMMARY", "GITHUB_ENV", "GITHUB_PATH", "GITHUB_OUTPUT", "GITHUB_STATE")  # files that it believes


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of ``Gates``."""
    parser.add_argument("--junit", type=given, metavar="FILE", help="write the verdicts as JUnit XML, too")
    parser.add_argument("--sarif", type=given, metavar="FILE", help="write the findings as SARIF 2.1.0, too")
    parser.add_argument("--baseline", type=given, metavar="FILE", help="exit 1 only for what is worse than what this file says")
    parser.add_argument("--write-baseline", action="store_true", help="write that file instead")


class Gates:
    """The files are opened when a run begins, not after an hour, and hidden from whom it judges. ``judged``: what names that, and its reference.

    Entering raises OSError for a file that cannot be written, ValueError for options that do not go together, for what is no baseline, and
    for a file to be written in which lies what is judged.
    """

    def __init__(self, options: argparse.Namespace, judged: Iterable[str]) -> None:
        self.options, self.judged = options, judged

    def __enter__(self) -> Self:
        with ExitStack() as self.stack:
            self.open()
            self.stack = self.stack.pop_all()
        return self

    def open(self) -> None:
        """Open all that is asked for; raises as entering does."""
        options = self.options
        if options.write_baseline and not options.baseline:
            raise ValueError("--write-baseline needs --baseline FILE")
        _overwrite_none(options, self.judged)
        self.known = read_baseline(options.baseline) if options.baseline and not options.write_baseline else None
        self.junit, self.sarif = self.opened(options.junit), self.opened(options.sarif)
        self.baseline = self.opened(options.baseline) if options.write_baseline else None
        self.github = os.environ.get("GITHUB_ACTIONS") == "true"
        self.summary = self.opened(os.environ.get("GITHUB_STEP_SUMMARY"), adds=True) if self.github else None
        for name in TOLD_TO_GITHUB:
            if place := os.environ.get(name):
                hide(place)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stack.close()

    def opened(self, path: str | None, adds: bool = False) -> Output | None:
        """None for no path; ``adds``: what is in it stays. Raises OSError."""
        if not path:
            return None
        file = Output(path, adds)
        self.stack.callback(file.close)
        if os.path.isfile(path):
            hide(path)
        return file

    def write(self, records: Sequence[gate.Record], console: TextIO) -> None:
        """Everything that is asked for. Raises OSError."""
        if self.junit:
            self.junit.write(gate.junit_text(records))
        if self.sarif:
            self.sarif.write(gate.sarif_text(records, version()))
        if self.baseline:
            self.baseline.write(json.dumps(gate.baseline(records), indent=1, sort_keys=True) + "\n")
        if self.github:
            for note in gate.github_lines(records):
                print(note, file=console, flush=True)
        if self.summary:
            self.summary.write(gate.summary(records))

    def status(self, records: Sequence[gate.Record], console: TextIO, without: int) -> int:
        """The exit status beside a baseline, what is worse told; ``without``: that where there is none."""
        if not self.options.baseline:
            return without
        worse = gate.regressions(records, self.known) if self.known is not None else []
        for sentence in worse:
            print(f"WORSE         {sentence}", file=console)
        return 1 if worse else 0


def _overwrite_none(options: argparse.Namespace, judged: Iterable[str]) -> None:
    """Raises ValueError for a file to be written that is to be read, too, or written twice."""
    judged = ["/dev/stdin" if text == "-" else file_of(text) for text in judged]
    read = dict.fromkeys(judged, "what is judged, or what that is held to")
    read |= {path: f"what --{name} reads" for name in READ if (path := getattr(options, name, None))}
    if options.baseline and not options.write_baseline:
        read[options.baseline] = "what --baseline reads"
    places: dict[str, str] = {}  # where each is → its option
    for name in WRITTEN:
        path = getattr(options, name, None)
        if not path or (name == "json" and path == "-") or (name == "baseline" and not options.write_baseline):
            continue
        option = f"--{name.replace('_', '-')}"
        if path == "-":
            raise ValueError(
                f"{option} - would write a file of that name; --json alone takes it for standard output, which is /dev/stdout, too"
            )
        for file, what in read.items():
            if os.path.isfile(path) and os.path.isfile(file) and os.path.samefile(path, file):
                raise ValueError(f"{option} {path} would overwrite {what}: give another file")
        place = os.path.realpath(path)
        if place in places and (os.path.isfile(path) or not os.path.exists(path)):
            raise ValueError(f"{places[place]} and {option} would overwrite each other in {path}: give two files")
        places[place] = option


def read_baseline(path: str) -> dict[str, Any]:
    """Raises ValueError if it is none."""
    try:
        content = json.loads(text_in(path))
    except FileNotFoundError:
        raise ValueError(f"there is no baseline {path}; --write-baseline writes one") from None
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict) or not all(map(_is_known, content.values())):
        raise ValueError(f"{path} is no baseline; --write-baseline writes one")
    return content


def _is_known(one: Any) -> bool:
    """Whether it is what a baseline says of one target."""
    kinds = {"verdict": str, "findings": list, "held": list, "speaks": dict, "refuses": list}
    return (
        isinstance(one, dict)
        and all(isinstance(one.get(name), kind) for name, kind in kinds.items())
        and all(isinstance(text, str) for name in ("findings", "held", "refuses") for text in one[name])
        and all(isinstance(how, str) for how in one["speaks"].values())
    )


def numbered(name: str, names: set[str]) -> str:
    """A name that is none of some others, and one of them from now on: with a number, if it was given before."""
    own = next(own for own in itertools.chain([name], (f"{name} ({n})" for n in itertools.count(2))) if own not in names)
    names.add(own)
    return own


def file_told(text: str) -> str:
    """The file in which lies what a text names, from GITHUB_WORKSPACE if it lies there, or else from the working directory.

    As it is given if it lies in neither; empty for a module that does, and for what is no file.
    """
    file = file_of(text)
    for root in filter(None, (os.environ.get("GITHUB_WORKSPACE"), os.getcwd())) if file else ():
        for whole in (os.path.abspath, os.path.realpath):
            path = Path(os.path.relpath(whole(file), whole(root)))
            if path.parts[:1] != (os.pardir,):
                return path.as_posix()
    return file if text.startswith(file) else ""


def first_line(text: str) -> int:
    """Where a candidate is defined in its file, as far as reading the file shows."""
    place = file_of(text)
    attribute = without_variant(text)[0].removeprefix(place).partition("(")[0].rpartition(":")[2]
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
