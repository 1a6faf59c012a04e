"""What a declared value may be: the kinds of values that keys of ``supports`` and of known deviations have, each checked before it is used."""

from __future__ import annotations

import datetime
import difflib
import re
import sys
import tomllib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .words import text_in

Wrong = Callable[[Any], str]  # what is wrong with a value, in the words that follow its name; empty if nothing is
SEVERAL = (list, tuple, set, frozenset)
DEEPEST = 9  # levels of tables and lists in a file of TOML
LEFT_OUT = "leave it out, if nothing is to be declared"
TOO_LONG = "a whole number in it has more than 64 bits"
LARGEST = 2**16  # of the sizes that a target can be declared to need: larger arrays take more memory than a machine has


@dataclass(frozen=True)
class Key:
    """One key: what is wrong with a value of it."""

    wrong: Wrong
    needed: bool = False


def in_toml(path: str | Path) -> dict[str, Any]:
    """What a file of TOML holds. Raises ValueError with one sentence if it cannot be read, or is none."""
    try:
        content = tomllib.loads(text_in(path))
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from None
    except RecursionError:
        raise ValueError(f"{path} is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"{path} is not TOML: {TOO_LONG if 'int_max_str_digits' in str(error) else error}") from None
    if wrong := _unfit(content, DEEPEST):
        raise ValueError(f"{path} {wrong}")
    return content


def _unfit(value: Any, levels: int) -> str:
    """Why a value of TOML can be no part of a sentence; empty if it can."""
    if whole(value) and not -(2**63) <= value < 2**63:
        return f"is not TOML: {TOO_LONG}"
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    if inner and not levels:
        return "is nested too deeply"
    return next(filter(None, (_unfit(one, levels - 1) for one in inner)), "")


def checked(what: str, values: Mapping[str, Any], schema: Mapping[str, Key], named: str = "{what}[{key!r}]") -> None:
    """Raises ValueError with one sentence for the first key or value that the schema has not, or a needed key that is missing."""
    if not isinstance(values, Mapping):
        raise ValueError(f"{what} is {values!r}; it maps keys to values, for example {{'zero_sizes': False}}")
    for key, value in values.items():
        if key not in schema:
            near = difflib.get_close_matches(str(key), schema, 1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(schema)}"
            raise ValueError(f"{what} has no key {key!r}{hint}")
        if wrong := schema[key].wrong(value):
            raise ValueError(f"{named.format(what=what, key=key)} {wrong}")
    for key, about in schema.items():
        if about.needed and key not in values:
            raise ValueError(f"{what}: the key {key!r} is missing")


def _unless(fits: Callable[[Any], bool], says: str) -> Wrong:
    return lambda value: "" if fits(value) else f"is {value!r}; it can be {says}"


def whole(value: Any) -> bool:
    """Whether a value is a whole number, and no truth value."""
    return isinstance(value, int) and not isinstance(value, bool)


FLAG: Wrong = _unless(lambda value: isinstance(value, bool), "true or false")
TRUE: Wrong = _unless(lambda value: value is True, "True, or left out")
TEXT: Wrong = _unless(lambda value: isinstance(value, str), "a text")
TEXTS: Wrong = _unless(
    lambda value: isinstance(value, Mapping) and all(isinstance(text, str) for pair in value.items() for text in pair), "a table of texts"
)
NAME: Wrong = _unless(lambda value: isinstance(value, str) and bool(value.strip()), "a text that is not empty")
DATE: Wrong = _unless(lambda value: type(value) is datetime.date, "a date such as 2027-01-31")
POSITIVE: Wrong = _unless(
    lambda value: isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= sys.float_info.max, "a number above 0"
)


def like(pattern: str, says: str) -> Wrong:
    """A text of some form."""
    return _unless(lambda value: isinstance(value, str) and bool(re.fullmatch(pattern, value)), says)


def optional(wrong: Wrong) -> Wrong:
    """Or None."""
    return lambda value: "" if value is None else wrong(value)


def number(least: int, most: int | None = None) -> Wrong:
    """A whole number in a range."""
    says = f"a whole number from {least} {'on' if most is None else f'to {most}'}"
    return _unless(lambda value: whole(value) and least <= value and (most is None or value <= most), says)


def one_of(words: Callable[[], Collection[str]]) -> Wrong:
    """One of some words, which are asked for when they are needed."""

    def wrong(value: Any) -> str:
        known = words()
        return "" if isinstance(value, str) and value in known else f"is {value!r}; it can be {' or '.join(map(repr, known))}"

    return wrong


def some_of(words: Collection[str] | None = None, empty: bool = False, least: str = LEFT_OUT) -> Wrong:
    """One of some words, or several of them; any texts where no words are given. ``least``: what to do about none, where that is not ``empty``."""

    def wrong(value: Any) -> str:
        values = (value,) if isinstance(value, str) else value
        if not isinstance(values, SEVERAL) or not all(isinstance(one, str) and (one or words) for one in values):
            return f"may hold {words or 'texts'}, got {value!r}"
        if not values and not empty:
            return f"is empty; {least}"
        return "" if words is None or set(values) <= set(words) else f"may hold {words}, got {tuple(values)}"

    return wrong


def table_of(words: Callable[[], Collection[str]]) -> Wrong:
    """A tuple of some words, at least one."""

    def wrong(value: Any) -> str:
        known = words()
        if not isinstance(value, tuple) or not value:
            return f"is {value!r}; it can be a table, as in ({next(iter(known))!r},)"
        strange = [word for word in value if word not in known]
        return f"holds {strange[0]!r}; it can hold {', '.join(map(repr, known))}" if strange else ""

    return wrong


def sides(value: Any) -> str:
    """Two whole numbers, from -1 on."""
    fits = isinstance(value, SEVERAL) and len(value) == 2 and all(whole(one) and one >= -1 for one in value)
    return "" if fits else f"is {value!r}; it can be two whole numbers from -1 on, such as [7, 0]"


def sizes(value: Any) -> str:
    """A whole number that arrays can have as a size, or several."""
    values = (value,) if whole(value) else value
    if not isinstance(values, SEVERAL) or not all(whole(one) and 0 < one <= LARGEST for one in values):
        return f"is {value!r}; it can be one or several whole numbers from 1 to {LARGEST:,}"
    return "" if values else f"is empty; {LEFT_OUT}"
