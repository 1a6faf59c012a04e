"""What a target was seen to speak, as text and as keys of supports."""

from __future__ import annotations

import json
import re
import shlex
import textwrap
from collections import Counter
from collections.abc import Mapping
from typing import Any

from ..core.target import Target
from ..search.run import Report

WIDTH = 80  # columns
FITTED = 25  # cases of a type: of a few a tighter arithmetic may fit by chance
WELL = 0.8  # of the bound of a tighter arithmetic may be used for it to be claimed from now on


def headline(word: str, target: Target, device: str) -> str:
    """The verdict in a word, and on what."""
    return f"{word}  {target.name} · {target.framework.name} · {device} · {' '.join(target.dtypes)}"


def dialect_lines(target: Target) -> list[str]:
    """What it speaks, in what it differs, and what it refuses, as far as that is no finding."""
    kinds = {"speaks": target.learned, "differs": target.differs, "refuses": target.refuses}
    kinds = {kind: entries for kind, entries in kinds.items() if kind == "speaks" or not target.strict}
    return [f"  {kind:<10}{what}: {how}" for kind, entries in kinds.items() for what, how in entries.items()]


def wrong_lines(target: Target) -> list[str]:
    """The conventions in which it is other than documented, in full: each is a finding, whatever the search finds."""
    lines = [f"  {'wrong':<10}{what}: {how}" for what, how in target.faults.items()]
    lines += [f"  replay    {replay_of_conventions(target)}"] * bool(lines)
    return [part for line in lines for part in wrapped(line)]


def wrong_in_short(target: Target) -> list[str]:
    """The same, a line each, as soon as it is known; the end tells it in full."""
    lines = [f"  {'wrong':<10}{what}: {how}" for what, how in target.faults.items()]
    return [cut(line) for line in lines]


def cut(line: str) -> str:
    """A line of a report that is to be one."""
    return line if len(line) <= WIDTH else line[: WIDTH - 1] + "…"


def replay_of_conventions(target: Target) -> str:
    """The command, or the call, that asks for the conventions of a target again."""
    if target.address is None:
        return f"verify({target.name})"
    return f"{command_name()} {target.address or shlex.quote(target.name)} --handshake"


def command_name() -> str:
    """How the command line is called: ``attncheck``, or ``python -m properties`` in a clone."""
    return "attncheck" if __package__.startswith("attncheck.") else "python -m properties"


def wrapped(line: str) -> list[str]:
    """A line of a report in as many as it takes."""
    return textwrap.wrap(line, WIDTH, subsequent_indent=" " * 12, break_long_words=False)


def handshake_text(target: Target, device: str, verbose: bool = False) -> str:
    """All that the questions before a search have found out; ``verbose``: every question, with the usual answers, too."""
    s = target.supports
    always = target.learned.get("causality", "").startswith("always")  # then it is no parameter
    taken = [name for name in target.parameters if not (always and name == "is_causal")]
    lines = [headline("SPEAKS", target, device), f"  takes     {', '.join(taken) or 'no parameter but q, k and v'}"]
    if "attn_mask" in target.parameters:
        lines.append(f"  masks     {', '.join(s.mask_kinds)}; that vary along {', '.join(axes or 'nothing' for axes in s.mask_axes)}")
    lines += wrong_lines(target) + dialect_lines(target)
    lines += [f"  seen      {key} = {value!r}" for key, value in target.observed.items()]
    lines += [f"  not tried {what}: {why}" for what, why in target.untried.items()]
    answers = target.kind.questions(target)
    if verbose and answers:
        width = max(map(len, answers))
        lines += ["", f"  {'question':<{width}}  answer", *(f"  {question:<{width}}  {answer}" for question, answer in answers.items())]
    elif answers:
        lines.append(f"  asked     {len(answers)} questions (-v: every answer)")
    return "\n".join(lines)


def supports_text(target: Target, facts: Mapping[str, Any]) -> str:
    """Keys of supports as TOML, to be given to --supports."""
    lines = [f"# What {target.name} was seen to do. Given to --supports, it is what the target is held to."]
    lines += [f"# {line.strip()}" for line in wrong_lines(target) + dialect_lines(target)]
    return "\n".join([*lines, *(f"{name} = {_toml(value)}" for name, value in facts.items())]) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        names = {name: name if re.fullmatch(r"[\w-]+", name, re.ASCII) else json.dumps(name, ensure_ascii=False) for name in value}
        return "{ " + ", ".join(f"{names[name]} = {_toml(each)}" for name, each in value.items()) + " }"
    return json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False)


def tightest(report: Report) -> dict[str, str]:
    """dtype → the tightest kind of arithmetic that fits well, in enough cases, where one is tighter than what is claimed."""
    found: dict[str, str] = {}
    tried = sum((outcome.ranges.dtypes for outcome in report.outcomes.values() if outcome.notes.fits), Counter[str]())
    for key, fraction in fractions(report).items():
        dtype, kind = key.split()
        if fraction <= WELL and tried[dtype] >= FITTED:
            found.setdefault(dtype, kind)
    return found


def fractions(report: Report) -> dict[str, float]:
    """dtype and kind → the largest used fraction of its bound, from tight to loose."""
    used: dict[str, float] = {}
    for outcome in report.outcomes.values():
        for key, fraction in outcome.notes.fits.items():
            used[key] = max(used.get(key, 0.0), fraction)
    return used
