"""What a person reads: findings, verdicts, the matrix. Everything is plain text; nothing is computed here."""

from __future__ import annotations

import re
import shlex
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from ..cases.coordinates import Array
from ..contained.apart import FILTER, NOTHING
from ..core.declare import Property
from ..core.explanation import Explanation, Reading
from ..core.finding import Finding
from ..core.trial import describe
from ..core.words import cases, ranges
from ..frameworks.machine import machine_text
from ..search.own_words import words_text
from ..search.ranges import Ranges
from ..search.run import Report, Status
from ..search.search import Outcome
from .dialect import WIDTH, command_name, cut, dialect_lines, fractions, headline, wrapped, wrong_lines

SHADES = "·░▒▓█"
READINGS = 3  # named mistakes shown
NAMED = 12  # properties that one reason is given for by name, of more the number
LACKS, LACKING = "the target takes no ", 3  # reasons of this kind that have a line each; of more there is one for all
SCREEN = 24  # lines of a report that is not verbose
SPARED = ("no bound", "fits", "adequate", "on ", "left out", "bound")  # what is left out first where there is no room
LEAST, TOLD, SPOKEN = 4, 9, 3  # of them what it speaks, refuses and so on; of these what it speaks, if the others need the rest
BESIDE_ANSWERS = ("gradients", "feature_gradients", "purity")  # themes whose findings may leave the answers right
IN_FULL = 4  # findings printed in full, unless it takes more to name every mistake
IN_SHORT = 3  # and of the others in two lines


def finding_text(
    finding: Finding,
    device: str,
    total: int,
    explained: Explanation = Explanation(),  # noqa: B008
    measured: bool = True,
) -> str:
    """A refutation: what is wrong, where, what matters, and how to see it again."""
    prop, violation = finding.prop, finding.violation
    head = f"REFUTED  {prop.name} · {finding.target} · {device}"
    when = f"case {finding.first_at} of {total}, shrunk in {finding.shrink_seconds:.1f} s"
    lines = [f"{head}    {when}", f"  {describe(violation)}", f"  claim     {prop.statement}   [{prop.formula}]"]
    if violation.wrong is not None:
        wrong, columns = violation.wrong, violation.columns
        lines += [f"  where     {where_text(wrong, columns)}", *map("            ".__add__, block_map(wrong, columns))]
    if not finding.alone:
        lines.append(
            "  remembers with the file imported anew the case alone is answered rightly: the failure needs the calls before it, or chance"
        )
    elif finding.matters or finding.indifferent:
        given = finding.case.differing()
        matters = ", ".join(f"{name}={given[name]!r}" for name in finding.matters) or "nothing in particular"
        lines.append(f"  matters   {matters}   does not: {', '.join(finding.indifferent) or 'the rest was not varied'}")
    if explained.looser:
        lines.append(f"  precision downgrade: the answer is as good as {explained.looser} arithmetic, which is looser than what is claimed")
    lines += reading_lines(explained.readings)
    if explained.measured and measured:
        lines.append(f"  measured  on {explained.measured[0]!r} {explained.measured[1]}")
    lines.append(f"  replay    {replay_line(finding)}")
    return "\n".join(lines)


def _rank(f: Finding) -> tuple[bool, bool, bool, int, bool, int]:
    """Wrong answers before exceptions, gross before slight ones, what says how before what says how far; simple cases first."""
    return f.violation.raised, f.violation.slight, f.prop.theme == "numbers", len(f.case.differing()), not f.prop.exact, len(repr(f.case))


def reading_lines(readings: Sequence[Reading]) -> list[str]:
    """The named mistakes that the target behaves like, or resembles; none: nothing is said."""
    if not readings:
        return []
    shown = [
        f'"{r.mistake}" ({r.name})'
        + (f", as in {r.explains - 1} more of the findings" if r.explains > 1 else "")
        + (f"; not quite: {r.example[0]} refutes that mistake, and not the target, on {r.example[1]!r}" if r.example else "")
        for r in readings[:READINGS]
    ]
    more = f", or {len(readings) - READINGS} other mistakes" if len(readings) > READINGS else ""
    verb = "resembles" if readings[0].wrong else "behaves like" if readings[0].whole else "behaves here, not on larger cases, like"
    return [f"  reading   {verb} " + "\n            or ".join(shown) + more]


def in_full(report: Report, verbose: bool = False) -> list[Finding]:
    """The findings that are shown in full: one for each mistake that explains some; with ``verbose`` all.

    Where nothing is recognised for sure, a finding shows the same mistake as another if what matters of that one is so here, too (and
    perhaps more, which its property needs), or if both met the same error. Where the answer to the plainest call is wrong, only what
    explains that is shown beside it. A rounding error too much is not shown in full where something is grossly wrong, unless it is a
    mistake of its own.
    """
    findings = sorted(report.findings, key=_rank)
    if verbose:
        return findings
    named = {
        f.prop.name: [reading.name for reading in report.explained.get(f.prop.name, Explanation()).readings if reading.sure]
        for f in findings
    }
    looser = {name: explained.looser for name, explained in report.explained.items() if explained.looser}
    gross = [f for f in findings if not f.violation.slight] or findings
    full = naming_all([f for f in findings if named[f.prop.name]], named)
    if plainest := [f for f in gross if _is_plainest(f)]:  # then all else follows from that
        of_all = {name for f in plainest for name in named[f.prop.name]}
        full = [f for f in full if of_all & set(named[f.prop.name])]
    for f in [f for f in gross if not named[f.prop.name]]:
        if len(full) < IN_FULL and not any(_same(f, shown) or looser.get(f.prop.name) == looser.get(shown.prop.name, "") for shown in full):
            full.append(f)
    return full


def _same(f: Finding, shown: Finding) -> bool:
    """Whether a finding shows, for all that is known, the mistake of another that is shown already."""
    ours, theirs = _features(f), _features(shown)
    needed = set(shown.matters) <= _conditions(f)
    if f.violation.raised or shown.violation.raised:
        return _error(f) == _error(shown) or (needed and theirs <= ours and not shown.violation.raised)
    return needed or theirs <= ours or bool(theirs & ours)


def _is_plainest(f: Finding) -> bool:
    """Whether the answer to any call at all is wrong."""
    return f.violation.wrong is not None and f.prop.theme not in BESIDE_ANSWERS and not (_conditions(f) or _features(f))


def _conditions(f: Finding) -> set[str]:
    """The fields without which a finding may vanish: those that were seen to matter, and those that were not tried otherwise.

    Where heads are grouped, there are several.
    """
    fields = (set(f.matters) | set(f.case.differing())) - set(f.indifferent)
    return fields | {"kv_heads"} if "group" in fields else fields


def _error(f: Finding) -> str:
    """What was raised, whatever the numbers in it; empty if nothing was."""
    return re.sub(r"\d+", "#", f.violation.says) if f.violation.raised else ""


def _features(f: Finding) -> set[str]:
    """What a finding needs beside sizes and numbers: the parameters of a call that its property asks for, or that matter."""
    fields = f.case.fields()
    needs = {field.needs for field in fields.values() if field.needs}
    return {fields[name].needs for name in _conditions(f) if name in fields and fields[name].needs} | (needs & set(f.prop.needs))


def findings_text(report: Report, total: int, verbose: bool = False) -> str:
    """One finding in full for each mistake that explains some; the others, the same mistakes seen again, in two lines."""
    full = in_full(report, verbose)
    parts, told = [], set[str]()
    for f in full:
        explained = report.explained.get(f.prop.name, Explanation())
        new = explained.measured is not None and explained.measured[1] not in told
        told |= {explained.measured[1]} if explained.measured else set()
        parts.append(finding_text(f, report.device, total, explained, new) + "\n")
    if rest := [f for f in sorted(report.findings, key=_rank) if f not in full]:
        more = f"and {len(rest)} more {'property' if len(rest) == 1 else 'properties'}, in short (-v: in full)\n"
        lines = in_short(rest)
        left = f"\nand {len(lines) - IN_SHORT} more like these, which are named below" if len(lines) > IN_SHORT + 1 else ""
        parts.append(more + "\n".join(lines[:IN_SHORT] if left else lines) + left + "\n")
    return "\n".join(parts)


def in_short(findings: Sequence[Finding]) -> list[str]:
    """What is wrong and a replay line; those that met the same error together, with the replay line of the first."""
    alike: dict[str, list[Finding]] = {}
    for f in findings:
        alike.setdefault(_error(f) or f.prop.name, []).append(f)
    return [
        f"REFUTED  {', '.join(f.prop.name for f in same)}: {same[0].violation.says}{same[0].violation.hint}\n"
        f"  replay    {replay_line(same[0])}"
        for same in alike.values()
    ]


def naming_all(findings: Sequence[Finding], named: Mapping[str, Sequence[str]]) -> list[Finding]:
    """One finding for each of the few mistakes that explain all, in their order: of those that a mistake explains a gross, plain one."""
    chosen: list[Finding] = []
    left = list(findings)
    while left:
        count = Counter(name for f in left for name in named[f.prop.name])
        most = max(count, key=lambda name: count[name])  # the first of equals
        explained = [f for f in left if most in named[f.prop.name]]
        chosen.append(min(explained, key=lambda f: (f.violation.slight, len(named[f.prop.name]))))
        left = [f for f in left if f not in explained]
    return [f for f in findings if f in chosen]


def replay_line(finding: Finding) -> str:
    """The command that puts the smallest case to the property again; where no command finds the target, the call."""
    case, prop = repr(finding.case), finding.prop.name  # hold no character that a shell reads inside double quotes
    if not finding.alone:
        return f"{command_name()} {finding.address or shlex.quote(finding.target)} --property {prop}"
    if finding.address is None:
        return f'verify({finding.target}, properties=("{prop}",), case="{case}")'
    return f'{command_name()} {finding.address or shlex.quote(finding.target)} --property {prop} --case "{case}"'


def where_text(wrong: Array, columns: str = "features") -> str:
    """Which batch elements, heads, rows and features, or keys, break the claim."""
    names = ("batch", "heads", "rows", columns)[-wrong.ndim :]
    parts = []
    for axis, name in enumerate(names):
        hit = np.asarray(wrong.any(axis=tuple(a for a in range(wrong.ndim) if a != axis)))
        parts.append(f"{name} {'all' if hit.all() else ranges(np.flatnonzero(hit), '-')} of {len(hit)}")
    return "   ".join(reversed(parts))


def block_map(wrong: Array, columns: str = "features", height: int = 8, width: int = 32) -> list[str]:
    """Rows downwards, features or keys to the right, all heads and batch elements together; darker: more is wrong."""
    if wrong.ndim < 2 or wrong.size < 2:
        return []
    share = wrong.reshape(-1, *wrong.shape[-2:]).mean(axis=0)
    rows = np.array_split(share, min(height, len(share)), axis=0)
    cells = [[part.mean() for part in np.array_split(row, min(width, share.shape[1]), axis=1)] for row in rows]
    shades = ["".join(SHADES[int(np.ceil(cell * 4))] for cell in row) for row in cells]
    return [f"{f'rows ↓ {columns} →' if i == 0 else '':<18} {line}" for i, line in enumerate(shades)]


LESS_APART = {
    FILTER: "the system gives the target no namespaces: a filter of calls keeps it from other processes and from the network",
    NOTHING: "the system gives the target neither namespaces nor a filter of calls: it has a network, and may signal other processes",
}


def status_text(status: Status) -> str:
    """What became of a known deviation."""
    d = status.deviation
    elsewhere = "" if status.here else f" (seen on {d.version}, which is not what is installed)"
    words = {"still there": "KNOWN", "gone": "GONE", "expired": "EXPIRED"}[status.state]
    return f"{words:<9}{d.shows} · {status.target} · {d.case!r}{elsewhere}\n         {d.kind}: {d.reason}"


def found_text(finding: Finding, seconds: float) -> str:
    """A finding in short, as soon as it is there."""
    return f"  found     {finding.prop.name}, after {seconds:.1f} s, on {finding.case!r}: {describe(finding.violation)}"


def verdict_text(report: Report, verbose: bool = False) -> str:
    """The verdict on one target: what was verified, over how many cases, and what could not be tried; no more than a screen unless verbose."""
    outcomes = list(report.outcomes.values())
    count = Counter(outcome.status for outcome in outcomes)
    lines = [status_text(status) for status in (report.statuses if verbose else report.surprises)]
    lines += [""] * bool(lines or report.findings)
    head = headline(report.verdict.upper(), report.target, report.device)
    lines += [head] if verbose else wrapped(head)
    counted = (
        f"  {count['passed']} {'property holds' if count['passed'] == 1 else 'properties hold'}, "
        f"{count['refuted']} refuted, {count['not exercised']} not exercised · "
        f"{cases(report.cases)} in {report.seconds:.1f} s"
        + (f" · {sum(o.set_aside for o in outcomes):,} set aside as known" if any(o.set_aside for o in outcomes) else "")
    )
    lines += [counted] if verbose else wrapped(counted)
    lines += wrong_lines(report.target)
    lines += _line(f"  incomplete  {report.incomplete}", verbose) * (
        bool(report.incomplete) and report.verdict in ("incomplete", "nothing tried")
    )
    lines += _line(f"  shortened {report.shortened}", verbose) * bool(report.shortened)
    unread = len(report.findings) - len(report.explained)
    lines += _line(f"  unread    {unread} findings: the time for explaining was over", verbose) * bool(report.explained and unread)
    said = [f"  declares  of itself: {words_text(report.own_words)}"] * bool(report.own_words)
    told = [*said, *dialect_lines(report.target), *edge_lines(outcomes)]
    last = [*left_out_lines(report), *arithmetic_lines(report, verbose), f"  on        {machine_text(report.machine)}"]
    last += [f"  apart     {said}" for kept, said in LESS_APART.items() if kept == report.kept]
    if verbose:
        lines += told + theme_lines(outcomes) + feature_lines(outcomes) + not_tried_lines(report)
        lines += ["  process   the checker's own, which the target could reach"] * (not report.contained)
        lines += ranges_lines(outcomes) + last
    else:
        known = [s for s in report.statuses if s.state == "still there"]
        told += [f"  known     {len(known)} deviations on record, still there (-v: which)"] * bool(known)
        told += not_tried_in_short(report.target.untried)
        parts = [*([line] for line in theme_lines_in_short(outcomes)), *([line] for line in ranges_lines(outcomes)), *map(wrapped, last)]
        below = fitting(parts, SCREEN - len(lines) - LEAST)
        room = min(TOLD, max(SCREEN - len(lines) - len(below), LEAST))
        others = [line for line in told if not line.startswith("  speaks")]
        spoken = spoken_in_short(report.target.learned, max(SPOKEN, room - len(others)))
        left = room - len(spoken)
        shown = others if len(others) <= left else others[: left - 1]  # what is not as usual
        lines += spoken + [cut(line) for line in shown]
        lines += [f"            and {len(others) - len(shown)} more (-v: all)"] * (len(others) > len(shown))
        lines += below
    return "\n".join(lines)


def _line(line: str, verbose: bool) -> list[str]:
    """A line of a report, in several where they are to be no wider than a screen."""
    return [line] if verbose else wrapped(line)


def fitting(parts: Sequence[Sequence[str]], room: int) -> list[str]:
    """Lines that stand together, so many that they fit: those that say least of a verdict are left to ``-v`` first."""
    left = list(parts)
    for word in SPARED:
        if sum(map(len, left)) > room:
            left = [part for part in left if not (part and part[0].startswith(f"  {word}"))]
    return [line for part in left for line in part]


def spoken_in_short(learned: Mapping[str, str], most: int) -> list[str]:
    """What it speaks in so many lines, one after the other; the last one ends in … where there is more."""
    lines = _listed("speaks", [f"{what}: {how}" for what, how in learned.items()], "; ")
    return lines if len(lines) <= most else [*lines[: most - 1], lines[most - 1][: WIDTH - 12] + " … (-v: all)"]


def not_tried_in_short(untried: Mapping[str, str]) -> list[str]:
    """What is not tried, one line a reason."""
    reasons: dict[str, list[str]] = {}
    for what, why in untried.items():
        reasons.setdefault(why, []).append(what)
    return [f"  not tried {', '.join(names)}: {why}" for why, names in reasons.items()]


def edge_lines(outcomes: Sequence[Outcome]) -> list[str]:
    """What is wrong at edges alone: one line each, with a case."""
    edges: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        for name in outcome.edges:
            edges.setdefault(name, []).append(outcome)
    return [
        f"  edge      {name}: {first.edges[name].violation.says}, {first.edges[name].case!r}"
        + (f", and {len(rest)} more {'property' if len(rest) == 1 else 'properties'}" if rest else "")
        for name, (first, *rest) in edges.items()
    ]


def feature_lines(outcomes: Sequence[Outcome]) -> list[str]:
    """What the cases contained, counted."""
    features = sum((o.features for o in outcomes), Counter[str]())
    counted = ", ".join(f"{name} {number}" for name, number in sorted(features.items()))
    return textwrap.wrap(counted, 120, initial_indent="  features  ", subsequent_indent="            ") if features else []


def theme_lines_in_short(outcomes: Sequence[Outcome]) -> list[str]:
    """The themes that hold, with how many of their properties, the refuted ones, and those that were not tried."""
    themes: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        themes.setdefault(outcome.prop.theme, []).append(outcome)
    verified, refuted, untried = [], [], []
    for theme, members in themes.items():
        holds = sum(o.status == "passed" for o in members)
        verified += [f"{theme} {holds}"] * bool(holds)
        refuted += [o.prop.name for o in members if o.finding]
        untried += [f"{theme} {len(members) - holds}"] * any(o.status == "not exercised" for o in members)
    used = max((o.notes.used for o in outcomes), default=0.0)
    lines = {"verified": verified, "refuted": refuted, "untried": untried}
    wrapped = [line for word, names in lines.items() for line in _listed(word, names)]
    return wrapped + [f"  bound     at most {used:.2f} of it is used"] * bool(used)


def _listed(word: str, names: Sequence[str], between: str = ", ") -> list[str]:
    """A line, or a few, of names."""
    first, rest = f"  {word:<10}", " " * 12
    return textwrap.wrap(between.join(names), WIDTH, initial_indent=first, subsequent_indent=rest, break_long_words=False) if names else []


def ranges_lines(outcomes: Sequence[Outcome]) -> list[str]:
    """Between which sizes cases were drawn, and in which types: beyond them nothing is known."""
    tried = Ranges()
    for outcome in outcomes:
        tried.merge(outcome.ranges)
    return textwrap.wrap(tried.text(), WIDTH, initial_indent="  tried     ", subsequent_indent="            ") if tried.dtypes else []


def theme_lines(outcomes: Sequence[Outcome]) -> list[str]:
    """One line a theme: properties, cases, the largest used fraction of a bound."""
    themes: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        themes.setdefault(outcome.prop.theme, []).append(outcome)
    lines = []
    for theme, members in themes.items():
        tried = [o for o in members if o.cases]
        used = max((o.notes.used for o in members), default=0.0)
        refuted = [o.prop.name for o in members if o.finding]
        state = "REFUTED " + ", ".join(refuted) if refuted else "holds" if tried else "not exercised"
        share = f", at most {used:.2f} of the bound used" if used else ""
        lines.append(f"  {theme:<10}{len(tried):3} of {len(members)} properties, {cases(sum(o.cases for o in members), 6)}{share}: {state}")
    return lines


def not_tried_lines(report: Report) -> list[str]:
    """What was not tried, and why."""
    lines = [f"  not tried {what}: {why}" for what, why in report.target.untried.items()]
    reasons: dict[str, list[str]] = {}
    for outcome in report.outcomes.values():
        if outcome.status == "not exercised":
            reasons.setdefault(outcome.why, []).append(outcome.prop.name)
    missing = [reason for reason in reasons if reason.startswith(LACKS)]
    if len(missing) > LACKING:  # a plain attention takes nothing of much: one line says so
        what = dict.fromkeys(name for reason in missing for name in reason.removeprefix(LACKS).split(", "))
        names = [name for reason in missing for name in reasons.pop(reason)]
        reasons = {LACKS + ", ".join(what): names, **reasons}
    return lines + [
        f"  not exercised ({reason}): {', '.join(names) if len(names) <= NAMED else f'{len(names)} properties'}"
        for reason, names in reasons.items()
    ]


def left_out_lines(report: Report) -> list[str]:
    """Cases that came to calls which the target says it does not take."""
    outcomes = report.outcomes.values()
    left: Counter[str] = sum((outcome.notes.not_taken for outcome in outcomes), Counter())
    blamed: Counter[str] = sum((outcome.notes.blamed for outcome in outcomes), Counter())
    lines = [f"  below     {cases(count)} wrong, and right without {what}" for what, count in blamed.items()]
    return lines + [f"  left out  {cases(count)}, which came to {why}" for why, count in left.items()]


def arithmetic_lines(report: Report, verbose: bool) -> list[str]:
    """Adequacy of the cases, which tighter arithmetic also fits, and of what nothing can be promised."""
    lines = []
    judged = sum(o.notes.judged for o in report.outcomes.values())
    if judged:
        share = sum(o.notes.adequate for o in report.outcomes.values()) / judged
        lines.append(f"  adequate  {share:.0%} of {judged} judged case{'s' * (judged != 1)} tell right answers from trivially wrong ones")
    used = fractions(report)
    named: set[str] = set()
    fits: list[str] = []
    for dtype, kind in (key.split() for key in used):  # from tight to loose: the first that fits is the one to name
        if dtype not in named and used[f"{dtype} {kind}"] <= 1:
            named.add(dtype)
            claimed, most = report.target.supports.declared(dtype).name, used[f"{dtype} {kind}"]
            fits.append(f"{dtype} {kind}")
            lines += [f"  arithmetic  {dtype}: {claimed} is claimed, {kind} fits, too: at most {most:.2f} of its bound used"] * verbose
    lines += [f"  fits      tighter arithmetic, too: {', '.join(fits)}"] * bool(fits and not verbose)
    ill = sum(o.notes.ill_posed for o in report.outcomes.values())
    compared = sum(o.notes.compared for o in report.outcomes.values())
    if ill:
        lines.append(f"  no bound  for {ill:,} of {ill + compared:,} elements, which rounding may turn around")
    return lines


def matrices_text(reports: Sequence[Report], properties: Sequence[Property], absent: dict[str, str]) -> str:
    """One matrix for all reports on the same properties: attentions and layers first, then each kind of positions."""
    alike: dict[tuple[str, ...], list[Report]] = {}
    for report in reports:
        alike.setdefault(tuple(p.name for p in properties if p.name in report.outcomes), []).append(report)
    parts: list[str] = []
    for names, members in alike.items():
        parts.append(matrix_text(members, [p for p in properties if p.name in names], absent if not parts else {}))
    return "\n\n".join(parts) or matrix_text(reports, properties, absent)


def matrix_text(reports: Sequence[Report], properties: Sequence[Property], absent: dict[str, str]) -> str:
    """Implementation × property, with the number of cases in each cell.

    ``n`` holds in n cases; ``✗`` refuted; ``k`` after a number: known deviations were set aside; ``-`` does not apply.
    """
    names = [report.target.name for report in reports]
    width = max((len(p.name) for p in properties), default=10)
    lines = [f"{'':<{width}}  " + "".join(f"{chr(97 + i):>7}" for i in range(len(names)))]
    theme = ""
    for prop in properties:
        if prop.theme != theme:
            theme = prop.theme
            lines.append(theme)
        lines.append(f"{prop.name:<{width}}  " + "".join(f"{_cell(report.outcomes.get(prop.name)):>7}" for report in reports))
    lines.append("")
    for i, report in enumerate(reports):
        state = "REFUTED" if report.verdict == "refuted" else "CHANGED" if report.surprises else "ok" if report.cases else "-"
        known = f", {len(report.statuses)} known deviation{'s' * (len(report.statuses) > 1)}" if report.statuses else ""
        lines.append(f"  {chr(97 + i)}  {report.target.name:<34} {state:<8}{cases(report.cases, 7)} {report.seconds:6.1f} s{known}")
    lines += [f"  -  {name:<34} not run: {why}" for name, why in absent.items()]
    lines.append("  a cell is the number of cases; ✗ refuted, k known deviations set aside, - not exercised")
    if reports:  # NumPy alone says nothing of PyTorch
        lines.append(f"  on  {machine_text(max((report.machine for report in reports), key=lambda facts: facts['torch']))}")
    return "\n".join(lines)


def pairs_text(reports: Sequence[Report]) -> str:
    """One target beside several references, a line each."""
    names = [report.target.like.name if report.target.like else "" for report in reports]
    width = max(map(len, names))
    lines = []
    for name, report in zip(names, reports, strict=True):
        state = "REFUTED" if report.verdict == "refuted" else "ok" if report.cases else "-"
        lines.append(f"  like  {name:<{width}}  {state:<8}{cases(report.cases, 7)} {report.seconds:6.1f} s")
    return "\n".join(lines)


def _cell(outcome: Outcome | None) -> str:
    if outcome is None or outcome.status == "not exercised":
        return "k" if outcome is not None and outcome.set_aside else "-"
    if outcome.finding:
        return "✗"
    return f"{outcome.cases}{'k' if outcome.set_aside else ''}"


def list_text(properties: Sequence[Property]) -> str:
    """The properties in plain words with their formulas."""
    lines: list[str] = []
    theme = ""
    for prop in properties:
        if prop.theme != theme:
            theme = prop.theme
            lines += ["", theme.upper()]
        exact = "bit for bit" if prop.exact else "inside the bound"
        lines += [f"  {prop.name}", f"      {prop.statement}", f"      {prop.formula}   ({exact})"]
    return "\n".join(lines[1:])
