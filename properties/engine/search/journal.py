"""What a run has tried and found, written down as it goes: lines of JSON at the end of a file, from which a run that was ended goes on.

A contained target does not see the file, since what is in it is believed.

A line is one write: who is killed, at whatever moment, loses the line that was being written and no other. Nothing in the file is executed.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import time
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..contained.template import hide
from ..core.attempt import try_case
from ..core.declare import Property
from ..core.finding import Finding
from ..core.target import Target
from ..core.trial import Notes, Violation, describe
from ..core.words import without_variant
from .ranges import Ranges
from .search import Edge, Outcome, Plan

FOLDER = ".hypothesis/attncheck-runs"
KEPT = 20  # runs whose files are kept there
PLAIN = ("says", "actual", "expected", "allowed", "columns", "raised", "killed", "hint")  # of a violation; arrays are asked for again
COUNTS = ("cases", "set_aside", "seconds", "not_exercised")
NUMBER = (int, float)
# What makes a line one of a kind, and what it holds then: a type, any of several, a list of such items, or a dictionary with such entries.
FORMS: dict[str, Any] = {
    "arguments": {"arguments": [str], "folder": str, "more": [str], "files": dict},
    "wrong": {"target": str, "wrong": dict},
    "failing": {"target": str, "failing": str, "case": str, "line": str},
    "at": {"at": NUMBER},
    "outcome": {
        **{"target": str, "property": str, "round": int, "part": int},
        "outcome": {"cases": int, "set_aside": int, "seconds": NUMBER, "finding": (type(None), {"case": str, "line": str})},
    },
    "judged": {
        "digest": str,
        "judged": {
            **{
                "candidate": str,
                "verdict": str,
                "why": str,
                "held": [str],
                "cases": int,
                "seconds": NUMBER,
                "speaks": dict,
                "refuses": dict,
            },
            "findings": [{"property": str, "statement": str, "says": str, "case": str, "replay": str}],
        },
    },
    "ended": {"ended": int},
}


class Journal:
    """The file of one run. ``before`` holds its lines from before the run was ended.

    ``digest``: of the one candidate, of several, whose lines it reads and writes.
    """

    def __init__(self, path: str | Path, before: Iterable[Mapping[str, Any]] = (), digest: str = "") -> None:
        self.path, self.digest = os.path.abspath(path), digest
        hide(Path(FOLDER).parts[0])  # whole: a folder in it could be put aside with it
        hide(self.path)
        self.before = list(before)
        self.first: dict[str, Any] = {}  # the first line, where it is not written yet
        self.file: int | None = None

    def __reduce__(self) -> Any:
        return Journal, (self.path, self.before, self.digest)  # a worker writes to the same file

    def of(self, digest: str) -> Journal:
        """The same of one candidate."""
        return Journal(self.path, [line for line in self.before if line.get("digest") == digest], digest)

    def _own(self, line: Mapping[str, Any], target: str) -> bool:
        return line.get("target") == target and line.get("digest", "") == self.digest

    def write(self, **what: Any) -> None:
        """Add a line. Raises OSError."""
        self.start()
        if self.file is None:
            self.file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
            size = os.fstat(self.file).st_size
            if size and os.pread(self.file, 1, size - 1) != b"\n":  # the line that was being written
                os.write(self.file, b"\n")
        try:
            os.write(self.file, written(what).encode() + b"\n")
        except OSError as error:
            raise OSError(error.errno, error.strerror, self.path) from None

    def begin(self, arguments: Sequence[str], **more: Any) -> None:
        """The first line: how the run was called, and what says that a file is still the same. What an earlier run has written stays until
        ``start``. Raises OSError.
        """
        if not self.before:
            os.makedirs(os.path.dirname(self.path), exist_ok=True)
            with open(self.path, "ab") as file:
                earlier = file.tell()
            self.first = {"arguments": list(arguments), "folder": os.getcwd(), **more}
            if not earlier:
                self.start()

    def start(self) -> None:
        """From now on the file is that of this run. Raises OSError."""
        if first := self.first:
            self.first = {}
            os.truncate(self.path, 0)
            self.write(**first)

    def note(self, **what: Any) -> None:
        """Add a line if that can be done: a disk that is full does not end a run."""
        with suppress(OSError):
            self.write(**what)

    def failing(self, target: str, prop: Property, case: Any, violation: Violation) -> None:
        """A first failing case, before it is made smaller."""
        self.note(**self._place(target), failing=prop.name, case=repr(case), line=describe(violation))

    def _place(self, target: str) -> dict[str, Any]:
        return {"target": target} | ({"digest": self.digest} if self.digest else {})

    def tried(self, plan: Plan, outcome: Outcome, seconds: float) -> None:
        """One pass over one property; ``seconds`` since the target's search began."""
        if not outcome.cases:
            return
        place = {**self._place(outcome.target), "property": outcome.prop.name, "round": plan.round, "part": plan.part}
        self.note(**place, at=round(seconds, 3), outcome=_outcome(outcome))

    def seconds(self, target: str) -> float:
        """For how long the target had been searched."""
        return max((float(line["at"]) for line in self.before if self._own(line, target) and "at" in line), default=0.0)

    def known(self, target: Target, properties: Sequence[Property], plan: Plan) -> dict[str, Outcome]:
        """What had been made of this pass."""
        named = {prop.name: prop for prop in properties}
        place = plan.round, plan.part
        lines = [x for x in self.before if "outcome" in x and self._own(x, target.name) and (x["round"], x["part"]) == place]
        known = {}
        for line in lines:
            with suppress(KeyError, TypeError, ValueError, AttributeError):  # of another version: it is tried again
                known[line["property"]] = _read(line["outcome"], named[line["property"]], target)
        return known


def new() -> Journal:
    """A journal for a run that begins now, in the folder of journals."""
    return Journal(Path(FOLDER) / f"{time.strftime('%Y-%m-%d-%H%M%S')}-{os.getpid()}.jsonl")


def journals() -> list[Path]:
    """The journals of this folder, the newest last."""
    return sorted(Path(FOLDER).glob("*.jsonl"))


def forget() -> None:
    """Delete the oldest journals of this folder."""
    for path in journals()[:-KEPT]:
        with suppress(OSError):
            path.unlink()


def lines(path: str | Path) -> list[dict[str, Any]]:
    """The lines of a journal; what is none, such as one that was not finished, is left out. Raises OSError, and ValueError for no journal."""
    whole = b"" if Path(path).is_char_device() else Path(path).read_bytes()  # which may have no end
    found = [line for text in whole.splitlines() if (line := _read_back(text))]
    if not found or "arguments" not in found[0]:
        raise ValueError(f"{path} is not what a run has written down")
    for line in found:
        for kind, form in FORMS.items():
            if kind in line and not _has({"more": [], "files": {}, **line}, form):
                raise ValueError(f"{path} is not what a run has written down, or not one of this version: it has no such {kind!r}")
    return found


def _has(value: Any, form: Any) -> bool:
    """Whether a value is as ``FORMS`` says."""
    if isinstance(form, tuple):
        return any(_has(value, one) for one in form)
    if isinstance(form, list):
        return isinstance(value, list) and all(_has(item, form[0]) for item in value)
    if isinstance(form, dict):
        return isinstance(value, dict) and all(name in value and _has(value[name], entry) for name, entry in form.items())
    return isinstance(value, form)


def written(what: Mapping[str, Any]) -> str:
    """A line, with a sum that shows whether it is still what was written: what a disk, or a hand, has changed would be believed."""
    text = json.dumps(what)
    return f'{text[:-1]}, "sum": {zlib.crc32(text.encode())}}}'


def _read_back(text: bytes) -> dict[str, Any]:
    """What a line says; nothing if it is none."""
    try:
        line = json.loads(text)
        fits = zlib.crc32(json.dumps({name: value for name, value in line.items() if name != "sum"}).encode()) == line.pop("sum")
    except (ValueError, RecursionError, AttributeError, KeyError):
        return {}
    return line if fits else {}


def digests(texts: Iterable[str | None]) -> dict[str, str]:
    """Of each file that a text names, what shows whether it is still the same."""
    places = [without_variant(text)[0].rpartition(":")[0] for text in texts if text and ".py:" in text]
    return {place: hashlib.sha256(Path(place).read_bytes()).hexdigest() for place in places if Path(place).is_file()}


# ---------------------------------------------------------------- an outcome as plain data


def _outcome(outcome: Outcome) -> dict[str, Any]:
    finding = outcome.finding
    return {
        **{name: getattr(outcome, name) for name in COUNTS},
        "right": [repr(case) for case in outcome.right],
        "notes": vars(outcome.notes),
        "features": dict(outcome.features),
        "sizes": outcome.ranges.sizes,
        "dtypes": dict(outcome.ranges.dtypes),
        "edges": {name: [repr(edge.case), _violation(edge.violation)] for name, edge in outcome.edges.items()},
        "finding": finding
        and {
            "case": repr(finding.case),
            "line": describe(finding.violation),
            "violation": _violation(finding.violation),
            "first_at": finding.first_at,
            "shrink_seconds": finding.shrink_seconds,
            "matters": finding.matters,
            "indifferent": finding.indifferent,
            "failing": [repr(case) for case in finding.failing],
            "address": finding.address,
            "alone": finding.alone,
        },
    }


def _violation(violation: Violation) -> dict[str, Any]:
    return {name: getattr(violation, name) for name in PLAIN}


def _read(said: Mapping[str, Any], prop: Property, target: Target) -> Outcome:
    case = prop.topic.case.parse
    return Outcome(
        prop,
        target.name,
        **{name: said[name] for name in COUNTS},
        right=[case(text) for text in said["right"]],
        notes=Notes(**{**said["notes"], **{name: Counter(said["notes"].get(name, {})) for name in ("not_taken", "blamed")}}),
        features=Counter(said["features"]),
        ranges=Ranges({name: (least, most) for name, (least, most) in said["sizes"].items()}, Counter(said["dtypes"])),
        edges={name: Edge(case(text), Violation(**violation)) for name, (text, violation) in said["edges"].items()},
        finding=said["finding"] and _again(finding(said["finding"], prop, target.name), target),
    )


def finding(said: Mapping[str, Any], prop: Property, target: str) -> Finding:
    """A finding as it was written down, without the arrays that were compared."""
    case = prop.topic.case.parse
    return Finding(
        prop,
        target,
        case(said["case"]),
        Violation(**said["violation"]),
        said["first_at"],
        said["shrink_seconds"],
        tuple(said["matters"]),
        tuple(said["indifferent"]),
        tuple(case(text) for text in said["failing"]),
        said["address"],
        said["alone"],
    )


def _again(found: Finding, target: Target) -> Finding:
    """The finding with the arrays of its violation, if the target still answers in the same way there."""
    if found.violation.raised or not found.alone:
        return found
    violation = try_case(target, found.prop, found.case)
    if violation is None or describe(violation) != describe(found.violation):
        return found
    return dataclasses.replace(found, violation=violation)
