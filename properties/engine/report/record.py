"""A report in a few fields, one line of JSON Lines a target, and what gates read: JUnit, SARIF, a baseline. Data in, text out."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree

from ..core.target import Target
from ..core.trial import Violation, describe
from ..core.words import cases, without_measured
from ..search.own_words import words_text
from ..search.ranges import Ranges
from ..search.run import Report
from ..search.search import Outcome
from .dialect import replay_of_conventions
from .text import replay_line

Record = dict[str, Any]
FAILED = ("refuted", "incomplete", "cannot be run", "interrupted")
DOCUMENTED = "documented "  # before the name of a convention, in the place of a property's
SARIF = "https://json.schemastore.org/sarif-2.1.0.json"


ENDS = {
    "it hangs": "hangs",
    "exit status": "exits",
    "MemoryError": "exhausts memory",
    "GiB of memory": "exhausts memory",
    "processes and threads": "starts too much",
    "the process": "killed",
}


def kind(violation: Violation) -> str:
    """What sort of failure it is: differs, raises, or how it ended the process that it was in."""
    if not violation.raised:
        return "differs"
    ended = next((word for said, word in ENDS.items() if said in violation.says), "raises")
    return ended if violation.killed or ended == "exhausts memory" else "raises"


def record(name: str, report: Report, round_number: int = 0) -> Record:
    """What became of one target."""
    outcomes = list(report.outcomes.values())
    tried = [o for o in outcomes if o.cases]
    ranges = Ranges()
    for outcome in outcomes:
        ranges.merge(outcome.ranges)
    whys = {"incomplete": report.incomplete or "too little could be tried", "interrupted": "the run was ended before this was judged"}
    verdict = report.verdict if report.verdict in ("refuted", "interrupted", "nothing found") else "incomplete"
    conventions = [
        {
            "property": f"{DOCUMENTED}{what}",
            "statement": "What a target's names document is what it does."
            if what in report.target.wrong
            else "Nothing is refused, and no convention differs, that nobody has declared.",
            "says": how,
            "case": "",
            "replay": replay_of_conventions(report.target),
            "kind": "refuses" if what in report.target.refuses else "differs",
            "core": True,
        }
        for what, how in report.target.faults.items()
    ]
    return {
        "candidate": name,
        "verdict": verdict,
        "why": whys.get(verdict, ""),
        "contract": report.target.contract,
        "framework": report.target.framework.name,
        "dtypes": list(report.target.dtypes),
        "findings": conventions
        + [
            {
                "property": f.prop.name,
                "statement": f.prop.statement,
                "says": describe(f.violation),
                "kind": kind(f.violation),
                "case": repr(f.case),
                "replay": replay_line(f),
                "core": not f.prop.edge,
            }
            for f in report.findings
        ],
        "held": [o.prop.name for o in outcomes if o.status == "passed"],
        "core": _share([o.finding is None for o in tried if not o.prop.edge]),
        "edges": _share([o.finding is None and not o.edges for o in tried if o.prop.edge or o.edges]),
        "wrong_at_edges": {name: f"{o.prop.name}: {edge.violation.says}" for o in reversed(tried) for name, edge in o.edges.items()},
        "cases": report.cases,
        "seconds": round(report.seconds, 3),
        "unreached": list(report.unreached),
        "speaks": {**report.target.learned, **report.target.differs},
        "all_asked": not (report.ends or report.target.pace.unasked),
        "refuses": dict(report.target.refuses),
        "declares": dict(report.own_words),
        "untried": dict(report.target.untried)
        | _without(report.target, outcomes)
        | {o.prop.name: o.why for o in outcomes if o.prop.theme == "pair" and not o.cases},
        "kept": report.kept,
        "tried": {name: list(ends) for name, ends in ranges.sizes.items()} | {"dtypes": dict(ranges.dtypes)},
        "round": round_number,
    }


def _without(target: Target, outcomes: Sequence[Outcome]) -> dict[str, str]:
    """What a first call showed that it cannot do, as send a gradient to a mask: why."""
    words = [name.replace("_", " ") for name in target.kind.capabilities]
    return {word: o.why.removeprefix(f"{word}: ") for o in outcomes for word in words if not o.cases and o.why.startswith(f"{word}: ")}


def _share(held: Sequence[bool]) -> float | None:
    """How many hold; None if none was tried."""
    return round(sum(held) / len(held), 4) if held else None


def cannot(name: str, why: str, seconds: float, verdict: str = "cannot be run") -> Record:
    """A target that nothing could be asked of."""
    empty: Record = {"findings": [], "held": [], "core": None, "edges": None, "wrong_at_edges": {}, "cases": 0}
    nothing: Record = {"unreached": [], "speaks": {}, "all_asked": False, "refuses": {}, "untried": {}}
    return {"candidate": name, "verdict": verdict, "why": why, "seconds": round(seconds, 3), **empty, **nothing}


def line(one: Record) -> str:
    """A record for a person; where nothing was found, with what was tried, and what not."""
    first = one["findings"][0] if one["findings"] else None
    said = [f"of itself it says {words_text(one['declares'])}"] if one.get("declares") else []
    if one.get("tried"):
        sizes = {name: (ends[0], ends[1]) for name, ends in one["tried"].items() if name != "dtypes"}
        said.append(f"tried {Ranges(sizes, Counter(one['tried']['dtypes'])).text()}")
    said += [f"wrong at edges alone: {', '.join(one['wrong_at_edges'])}"] if one["wrong_at_edges"] else []
    said += [f"refuses {', '.join(one['refuses'])}"] if one["refuses"] else []
    said += [f"not tried: {', '.join(one['untried'])}"] if one["untried"] else []
    why = f"{_broken(first['property'])}: {first['says']}" if first else one["why"] or "; ".join(said)
    return f"{one['verdict'].upper():<14}{one['candidate']}  {cases(one['cases'])}, {one['seconds']:.1f} s" + f"  {why}" * bool(why)


def _broken(name: str) -> str:
    """What a finding breaks, for a person."""
    if not name.startswith(DOCUMENTED):
        return name
    what = name.removeprefix(DOCUMENTED)
    return "otherwise than the reference" if what == "pair" else f"{what} otherwise than documented"


# ---------------------------------------------------------------- what gates read


def junit_text(records: Sequence[Record]) -> str:
    """A test suite a target, a test case a property; one for the target itself where it has no verdict."""
    suites = ElementTree.Element("testsuites", name="attncheck")
    for one in records:
        failures = len(one["findings"])
        errors = int(one["verdict"] in FAILED and not failures)
        count = len(one["held"]) + failures + errors
        suite = ElementTree.SubElement(
            suites,
            "testsuite",
            name=_plain(one["candidate"]),
            tests=str(count),
            failures=str(failures),
            errors=str(errors),
            time=str(one["seconds"]),
        )
        for finding in one["findings"]:
            case = ElementTree.SubElement(suite, "testcase", classname=_plain(one["candidate"]), name=finding["property"])
            failure = ElementTree.SubElement(case, "failure", message=_plain(finding["says"]))
            failure.text = _plain(f"{finding['statement']}\n{finding['case']}\n{finding['replay']}")
        for name in one["held"]:
            ElementTree.SubElement(suite, "testcase", classname=_plain(one["candidate"]), name=name)
        if errors:
            case = ElementTree.SubElement(suite, "testcase", classname=_plain(one["candidate"]), name="verdict")
            ElementTree.SubElement(case, "error", message=_plain(f"{one['verdict']}: {one['why']}"))
    ElementTree.indent(suites)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(suites, encoding="unicode") + "\n"


def _plain(text: str) -> str:
    """Without what XML cannot hold."""
    return "".join(c if c in "\t\n\r" or 0x20 <= ord(c) < 0xD800 or 0xE000 <= ord(c) < 0xFFFE else "�" for c in text)


def sarif_text(records: Sequence[Record], version: str) -> str:
    """One rule a property, one result a finding, at the first line of the target's file."""
    found = [(one, finding) for one in records for finding in one["findings"]]
    rules = {finding["property"]: finding["statement"] for _, finding in found}
    results = [
        {
            "ruleId": finding["property"],
            "level": "error" if finding["core"] else "warning",
            "message": {"text": f"{finding['says']}\n{finding['replay']}"},
            "locations": [{"physicalLocation": {"artifactLocation": {"uri": uri(one)}, "region": {"startLine": one.get("line") or 1}}}],
        }
        for one, finding in found
    ]
    notes = [
        {"level": "error", "message": {"text": f"{one['candidate']}: {one['verdict']}: {one['why']}"}}
        for one in records
        if one["verdict"] in FAILED and not one["findings"]
    ]
    driver = {
        "name": "attncheck",
        "version": version,
        "rules": [{"id": name, "shortDescription": {"text": statement}} for name, statement in sorted(rules.items())],
    }
    run: dict[str, Any] = {
        "tool": {"driver": driver},
        "results": results,
        "invocations": [{"executionSuccessful": not notes, "toolExecutionNotifications": notes}],
    }
    return json.dumps({"$schema": SARIF, "version": "2.1.0", "runs": [run]}, indent=1) + "\n"


def uri(one: Record) -> str:
    """The file of a target as a relative reference (RFC 3986); its name, where there is no file."""
    return quote(one.get("file") or one["candidate"], errors="surrogateescape")


def github_lines(records: Sequence[Record]) -> list[str]:
    """A line for GitHub's log a finding: it shows beside the file, if there is one."""
    notices = [(one, f["property"], f"{f['says']}; {f['replay']}") for one in records for f in one["findings"]]
    notices += [(one, one["verdict"], one["why"]) for one in records if one["verdict"] in FAILED and not one["findings"]]
    lines = []
    for one, title, says in notices:
        lies = one.get("file") and not one.get("streamed")
        where = {"file": one["file"], "line": one.get("line") or 1} if lies else {}
        named = ",".join(f"{key}={_escaped(str(value), ':,')}" for key, value in {**where, "title": title}.items())
        lines.append(f"::error {named}::" + _escaped(says if where else f"{one['candidate']}: {says}"))
    return lines


def _escaped(text: str, more: str = "") -> str:
    """As GitHub's commands have it: in a property commas and colons, too."""
    return "".join(f"%{ord(c):02X}" if c in f"%\r\n{more}" else c for c in text)


def summary(records: Sequence[Record]) -> str:
    """A table in Markdown."""
    rows = [f"| {_cell(one['candidate'])} | {one['verdict']} | {one['cases']:,} | {_cell(_first(one))} |" for one in records]
    return "\n".join(["| target | verdict | cases | first finding |", "|---|---|---|---|", *rows]) + "\n"


def _first(one: Record) -> str:
    return f"{one['findings'][0]['property']}: {one['findings'][0]['says']}" if one["findings"] else str(one["why"])


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


# ---------------------------------------------------------------- a baseline


def baseline(records: Sequence[Record]) -> dict[str, Any]:
    """What is known of each target, to be compared with later."""
    return {
        one["candidate"]: {
            "verdict": one["verdict"],
            "findings": sorted(f["property"] for f in one["findings"]),
            "held": sorted(one["held"]),
            "speaks": {what: without_measured(how) for what, how in one["speaks"].items()},
            "all_asked": one.get("all_asked", True),
            "refuses": sorted(one["refuses"]),
        }
        for one in records
    }


def regressions(records: Sequence[Record], known: Mapping[str, Any]) -> list[str]:
    """What is worse than in a baseline, a sentence each: a new finding, another convention, a property that no longer runs.

    A property before which the run ended, and a convention of a target that was too slow to be asked for all of them, are no loss.
    """
    told: list[str] = []
    now = baseline(records)
    unreached = {one["candidate"]: one.get("unreached", ()) for one in records}
    for name in known:
        if name not in now:
            told.append(f"{name}: it is no longer there")
    for name, one in now.items():
        was = known.get(name, {**one, "verdict": "nothing found", "findings": [], "held": []})
        told += [f"{name}: {prop} is refuted, which was not" for prop in one["findings"] if prop not in was["findings"]]
        ran = {*one["held"], *one["findings"], *unreached[name]}
        before = {*was["held"], *(prop for prop in was["findings"] if not prop.startswith(DOCUMENTED))}
        told += [f"{name}: {prop} was tried before, and is no longer" for prop in sorted(before - ran)]
        asked = was.get("all_asked", bool(before))
        for what, how, earlier in _otherwise(was["speaks"], one["speaks"], asked and one["all_asked"]):
            told.append(f"{name}: it speaks {what} differently: {how}; before: {earlier}")
        told += [f"{name}: it refuses {what}, which it did not" for what in one["refuses"] if asked and what not in was["refuses"]]
        if one["verdict"] in FAILED[1:] and was["verdict"] not in FAILED[1:]:
            told.append(f"{name}: {one['verdict']}, which it was not")
    return told


def _otherwise(before: Mapping[str, str], now: Mapping[str, str], all_asked: bool) -> list[tuple[str, str, str]]:
    """Which conventions are others, how they are and how they were; unless all were asked for in both, those alone that both know."""
    names = sorted({*before, *now} if all_asked else {*before} & {*now})
    pairs = [(name, now.get(name, "as usual"), without_measured(before.get(name, "as usual"))) for name in names]
    return [(name, how, was) for name, how, was in pairs if how != was]
