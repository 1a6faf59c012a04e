"""What a run tells while it goes on: how far it is, and every finding as soon as it is there."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any, TextIO

from ..core.declare import Property
from ..core.finding import Finding
from ..core.target import Target
from ..core.words import cases
from ..report import dialect, text
from ..search.search import Outcome, Plan, inapplicable, same_subject
from .terminal import paint, progress_bar

TOLD = 3  # findings that are told at once


class Progress:
    """A bar with the time that is left on a terminal; plain lines when piped; nothing under -q. Findings are printed when they are found."""

    def __init__(self, quiet: bool, out: TextIO) -> None:
        self.live = sys.stderr.isatty() and not quiet
        self.plain = not quiet and not self.live
        self.out = out
        self.bar: Any = None

    def start(self, target: Target, plan: Plan, properties: Sequence[Property], seconds: float | None) -> None:
        """A target is searched from now on."""
        self.target, self.plan, self.seconds = target, plan, seconds
        self.found, self.cases, self.began, self.shown = 0, 0, time.monotonic(), 0.0
        if target.faults:
            print(
                paint("\n".join([dialect.headline("REFUTED", target, plan.device), *dialect.wrong_in_short(target)]), self.out),
                file=self.out,
                flush=True,
            )
        able = sum(not inapplicable(target, prop, plan.dtypes) for prop in properties if same_subject(prop, target))
        if self.plain:
            print(f"checking {target.name}", file=sys.stderr, flush=True)
        if self.live:
            self.bar = progress_bar(target.name, seconds or able * plan.examples)

    def __call__(self, prop: Property, what: Outcome | int) -> None:
        if isinstance(what, Outcome):
            self.cases += what.cases
            if what.finding:
                self.tell(what.finding)
        if self.bar and time.monotonic() - self.shown > 0.1:
            self.shown = time.monotonic()
            done = self.shown - self.began if self.seconds else self.cases
            now = self.cases + (what if isinstance(what, int) else 0)
            self.bar.update(self.bar.task_ids[0], completed=done, detail=f"{cases(now)}, {self.found} findings  {prop.name}", refresh=True)

    def tell(self, finding: Finding) -> None:
        """What was found, in short, at once; of more than a few the end tells."""
        self.found += 1
        if self.found > TOLD:
            return
        self.pause()
        if self.found == 1 and not self.target.faults:
            print(paint(dialect.headline("REFUTED", self.target, self.plan.device), self.out), file=self.out)
        print(paint(text.found_text(finding, time.monotonic() - self.began), self.out), file=self.out, flush=True)
        if self.bar:
            self.bar.start()

    def pause(self) -> None:
        if self.bar:
            self.bar.stop()

    def clear(self) -> None:
        """Nothing is searched any more."""
        self.pause()
        self.bar = None
        if self.found or self.target.faults:
            more = f"\n{self.found - TOLD} more findings" if self.found > TOLD else ""
            print(more, file=self.out, flush=True)
