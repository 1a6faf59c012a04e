"""What a terminal gets beside plain text: colour, and a bar with the time that is left."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column

YELLOW = ("GONE", "EXPIRED", "TOO LITTLE", "INCOMPLETE", "INTERRUPTED")
COLOURS = {"REFUTED": "1;31", "CHANGED": "1;31", **dict.fromkeys(YELLOW, "1;33"), "NOTHING FOUND": "1;32"}
HEADS = re.compile(rf"^({'|'.join(COLOURS)}|KNOWN)", re.MULTILINE)
KEYS = re.compile(r"^  ([a-z]+)(?=  )", re.MULTILINE)


def paint(text: str, to: TextIO) -> str:
    """The text with its first words in colour where it goes to a terminal, unless NO_COLOR is set (https://no-color.org)."""
    if not to.isatty() or os.environ.get("NO_COLOR"):
        return text
    text = HEADS.sub(lambda found: f"\x1b[{COLOURS.get(found[1], '1;33')}m{found[1]}\x1b[0m", text)
    return KEYS.sub(lambda found: f"  \x1b[36m{found[1]}\x1b[0m", text)


def page_line(path: str, to: TextIO) -> str:
    """Where the page of a run is, as a link that a terminal opens; nothing where the output is piped."""
    if not to.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return ""
    return f"  page      \x1b]8;;{Path(path).resolve().as_uri()}\x1b\\{path}\x1b]8;;\x1b\\\n"


NAME = 28  # characters of a target's name beside a bar


def progress_bar(name: str, total: float) -> Progress:
    """A started bar on standard error, which is drawn only when it is asked to: no thread, since cases may be tried in forks."""
    fixed, rest = Column(no_wrap=True), Column(no_wrap=True, overflow="ellipsis", ratio=1)  # where it is narrow, the detail is cut
    columns: list[Any] = [
        TextColumn("{task.description}", table_column=fixed),
        BarColumn(10, table_column=Column(min_width=10)),
        TimeRemainingColumn(table_column=Column(min_width=len("0:00:00"), no_wrap=True)),
        TextColumn("{task.fields[detail]}", table_column=rest),
    ]
    bar = Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=False, expand=True)
    bar.add_task(name if len(name) <= NAME else f"…{name[1 - NAME :]}", total=total, detail="")
    bar.start()
    return bar
