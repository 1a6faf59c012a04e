"""What a run leaves in files: its reports as JSON and as a page."""

from __future__ import annotations

import datetime
import shlex
from collections.abc import Sequence
from contextlib import ExitStack
from importlib import metadata
from types import ModuleType, TracebackType
from typing import Any, Self, TextIO

from ..core.target import CannotRun
from ..report import record as gate
from ..report.as_json import report_json
from ..report.dialect import command_name
from ..search.run import Report
from .streams import json_text


class Files:
    """The files that are asked for, opened when the run begins, not after an hour. ``-`` is standard output, for JSON.

    Entering raises OSError for a file that cannot be written, CannotRun where a page is wanted and what makes it is not installed.
    """

    def __init__(
        self,
        json_to: str | None,
        html_to: str | None,
        out: TextIO,
        arguments: Sequence[str],
        junit_to: str | None = None,
        sarif_to: str | None = None,
    ) -> None:
        self.json_to, self.html_to, self.out, self.arguments = json_to, html_to, out, arguments
        self.junit_to, self.sarif_to = junit_to, sarif_to
        self.wanted = bool(json_to or html_to or junit_to or sarif_to)

    def __enter__(self) -> Self:
        self.stack = ExitStack()
        self.maker = page_maker() if self.html_to else None
        self.json = self.out if self.json_to == "-" else self._opened(self.json_to)
        self.html = self._opened(self.html_to)
        self.junit, self.sarif = self._opened(self.junit_to), self._opened(self.sarif_to)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stack.close()

    def _opened(self, path: str | None) -> TextIO | None:
        return self.stack.enter_context(open(path, "w", encoding="utf-8")) if path else None

    def write(self, reports: Sequence[Report], absent: dict[str, str]) -> None:
        """The reports of the whole run, and what was not run → why."""
        if not self.wanted:
            return
        data = run_json(reports, absent, self.arguments)
        if self.json:
            self.json.write(json_text(data, self.json) + "\n")
            self.json.flush()
        if self.html and self.maker:
            self.html.write(self.maker.page(data))
        if self.junit or self.sarif:
            records = [gate.record(report.target.name, report) for report in reports]
            records += [gate.cannot(name, why, 0.0) for name, why in absent.items()]
            if self.junit:
                self.junit.write(gate.junit_text(records))
            if self.sarif:
                self.sarif.write(gate.sarif_text(records, version()))


def run_json(reports: Sequence[Report], absent: dict[str, str], arguments: Sequence[str]) -> dict[str, Any]:
    """A run as plain data: its reports, what was not run, and how it was called."""
    return {
        "attncheck": version(),
        "command": f"{command_name()} {shlex.join(arguments)}",
        "finished": datetime.datetime.now(datetime.UTC).isoformat(sep=" ", timespec="seconds"),
        "reports": [report_json(report) for report in reports],
        "not_run": absent,
    }


def page_maker() -> ModuleType:
    """What makes pages and pictures. Raises CannotRun with one sentence where its packages are not installed."""
    try:
        from ..report import html
    except ImportError as error:
        raise CannotRun(f'pages and pictures need Jinja2 and matplotlib ({error}): pip install "attncheck[report]"') from None
    return html


def version() -> str:
    """That of the installed distribution."""
    try:
        return metadata.version("attncheck")
    except metadata.PackageNotFoundError:
        return "(a clone)"
