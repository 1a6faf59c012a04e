"""What gates read of a run: JUnit, SARIF, what is worse than a baseline, and where GitHub runs it, annotations and a summary."""

from __future__ import annotations

import argparse
import ast
import json
import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TextIO

from ..contained.load import ANY
from ..contained.template import hide
from ..core.words import version
from ..report import record as gate
from . import streams
from .arguments import given

TOLD_TO_GITHUB = ("GITHUB_STEP_SUMMARY", "GITHUB_ENV", "GITHUB_PATH", "GITHUB_OUTPUT", "GITHUB_STATE")  # files that it believes


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of ``Gates``."""
    parser.add_argument("--junit", type=given, metavar="FILE", help="write the verdicts as JUnit XML, too")
    parser.add_argument("--sarif", type=given, metavar="FILE", help="write the findings as SARIF 2.1.0, too")
    parser.add_argument("--baseline", type=given, metavar="FILE", help="exit 1 only for what is worse than what this file says")
    parser.add_argument("--write-baseline", action="store_true", help="write that file instead")


class Gates:
    """The files are opened when a run begins, not after an hour, and hidden from whom it judges.

    Entering raises OSError for a file that cannot be written, ValueError for options that do not go together and for what is no baseline.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options

    def __enter__(self) -> Self:
        self.stack, options = ExitStack(), self.options
        if options.write_baseline and not options.baseline:
            raise ValueError("--write-baseline needs --baseline FILE")
        self.known = read_baseline(options.baseline) if options.baseline and not options.write_baseline else None
        self.junit, self.sarif = self.opened(options.junit), self.opened(options.sarif)
        self.baseline = self.opened(options.baseline, "a") if options.write_baseline else None
        self.github = os.environ.get("GITHUB_ACTIONS") == "true"
        self.summary = self.opened(os.environ.get("GITHUB_STEP_SUMMARY"), "a") if self.github else None
        for name in TOLD_TO_GITHUB:
            if place := os.environ.get(name):
                hide(place)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stack.close()

    def opened(self, path: str | None, mode: Literal["w", "a"] = "w") -> TextIO | None:
        """None for no path; "a": what is in it stays. Raises OSError."""
        if not path:
            return None
        file = streams.opened(path, mode)
        self.stack.push(file)
        if os.path.isfile(path):
            hide(path)
        return file

    def write(self, records: Sequence[gate.Record], console: TextIO) -> None:
        """Everything that is asked for."""
        if self.junit:
            self.junit.write(gate.junit_text(records))
        if self.sarif:
            self.sarif.write(gate.sarif_text(records, version()))
        if self.baseline:
            self.baseline.truncate(0)
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


def read_baseline(path: str) -> dict[str, Any]:
    """Raises ValueError if it is none."""
    try:
        content = json.loads(Path(path).read_bytes())
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
    )


def first_line(text: str) -> int:
    """Where a candidate is defined in its file, as far as reading the file shows."""
    place, _, attribute = text.partition("(")[0].rpartition(":")
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
