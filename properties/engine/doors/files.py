"""What a run leaves in files: its reports as JSON and as a page."""

from __future__ import annotations

import argparse
import datetime
import shlex
from collections.abc import Sequence
from types import ModuleType
from typing import Any, TextIO

from ..core.target import CannotRun
from ..core.words import version
from ..report import record as gate
from ..report.as_json import report_json
from ..report.dialect import command_name
from ..search.run import Report
from . import gates
from .streams import json_text


class Files(gates.Gates):
    """The files that the options of ``attncheck TARGET`` ask for. ``-`` is standard output, for JSON; ``console``: where all else is told.

    Entering raises OSError for a file that cannot be written, ValueError as ``Gates``, CannotRun where a page is wanted and what makes it is
    not installed.
    """

    def __init__(self, options: argparse.Namespace, out: TextIO, console: TextIO) -> None:
        super().__init__(options, [options.target or "", *options.like])
        self.out, self.console = out, console

    def open(self) -> None:
        """Those that gates read, and the reports."""
        super().open()
        self.maker = page_maker() if self.options.html else None
        self.json = self.out if self.options.json == "-" else self.opened(self.options.json)
        self.html = self.opened(self.options.html)

    def tell(self, reports: Sequence[Report], absent: dict[str, str]) -> list[gate.Record]:
        """Write the reports of the whole run, and what was not run → why; as gates read them. Raises OSError."""
        if self.json or self.html:
            data = run_json(reports, absent, self.options.given)
            if self.json:
                self.json.write(json_text(data, self.json) + "\n")
                self.out.flush()
            if self.html and self.maker:
                self.html.write(self.maker.page(data))
        names: set[str] = set()
        records = []
        for one in reports:
            name = one.target.name
            where = {"file": gates.file_told(name), "line": gates.first_line(name)}
            records.append(gate.record(gates.numbered(name, names), one, self.options.round or 0) | where)
        records += [gate.cannot(name, why, 0.0, "not available") for name, why in absent.items()]
        self.write(records, self.console)
        return records


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
