"""``attncheck explain "Case(…)"``: why such a case is drawn, field by field. Without a case: all fields of a contract."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Sequence
from contextlib import suppress

from ... import catalogue  # makes the contracts known  # noqa: F401
from ..cases.case import Case, names
from ..core.contract import Topic, contracts, topic_named

WIDTH = 118


def parser() -> argparse.ArgumentParser:
    """The options."""
    parser = argparse.ArgumentParser(prog="attncheck explain", description="Why a case is drawn, field by field.")
    parser.add_argument("case", nargs="?", metavar="CASE", help="as a replay line has it; nothing: all fields of a contract")
    parser.add_argument("--contract", metavar="NAME", help="whose case it is (default: the first contract that can read it)")
    parser.add_argument("-v", "--verbose", action="store_true", help="the fields that have their default value, too")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Print the reasons. Raises ValueError with one sentence for what is no case."""
    options = parser().parse_args(arguments)
    topics = [topic_named(options.contract)] if options.contract else every_topic()
    print(fields_text(topics[0]) if options.case is None else case_text(*read(options.case, topics), options.verbose))
    return 0


def every_topic() -> list[Topic]:
    """What there are properties about, in the order of the contracts."""
    return list({topic.name: topic for contract in contracts().values() for topic in contract.topics}.values())


def read(text: str, topics: Sequence[Topic]) -> tuple[Topic, Case]:
    """The first topic that has such a case, and the case. Raises ValueError: what is wrong for the one that knows most of the fields."""
    for topic in topics:
        with suppress(ValueError):
            return topic, topic.case.parse(text)
    named = names(text)
    nearest = max(topics, key=lambda topic: sum(name in topic.case.fields() for name in named))
    return nearest, nearest.case.parse(text)


def case_text(topic: Topic, case: Case, verbose: bool = False) -> str:
    """Each field that differs from the simplest case, and why it has such a value."""
    known = case.fields()
    values = {name: getattr(case, name) for name in known} if verbose else case.differing()
    rows = [(f"{name}={value!r}", known[name].reason(value)) for name, value in values.items()]
    return _laid_out(f"{case!r}, a case of {topic.subject}", rows or [("", "every field has its default value: the simplest case")])


def fields_text(topic: Topic) -> str:
    """Every field of the cases of a topic: its default, why there is one, and the values that look arbitrary or are drawn often."""
    rows: list[tuple[str, str]] = []
    for name, known in topic.case.fields().items():
        default = topic.case.__dataclass_fields__[name].default  # type: ignore[attr-defined]
        rows.append((f"{name}={default!r}", known.why))
        rows += [("", f"{_values(at)}: {why}") for at, why in known.unusual.items()]
        rows += [("", f"{_values(at)}, often: {why}") for at, why in known.often.items()]
    return _laid_out(f"the fields of a case of {topic.subject}", rows)


def _values(at: object) -> str:
    return ", ".join(map(repr, at)) if isinstance(at, tuple) else repr(at)


def _laid_out(title: str, rows: Sequence[tuple[str, str]]) -> str:
    left = min(max((len(name) for name, _ in rows), default=0), 32) + 2
    lines = [title]
    for name, why in rows:
        indent = " " * (left + 2)
        first = f"  {name:{left}}" if len(name) <= left else f"  {name}\n{indent}"
        lines += (first + textwrap.fill(why, WIDTH, initial_indent=indent, subsequent_indent=indent).lstrip()).splitlines()
    return "\n".join(lines)
