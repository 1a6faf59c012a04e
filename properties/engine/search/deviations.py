"""Known deviations: data, not skips. Each says where a target is known to be wrong, why, and shows it by one case.

Cases that match leave the search, so that other mistakes surface; the stored case is tried on every run, and a deviation
that is gone, or whose time is over, is reported.
"""

from __future__ import annotations

import ast
import datetime
import difflib
import fnmatch
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from ..cases.case import Case, shortened
from ..core.declare import Property, declared
from ..core.schema import DATE, NAME, TEXT, Key, checked, in_toml, like, one_of, optional, some_of
from ..core.words import without_variant
from ..frameworks.machine import FACTS, LIBRARIES, numbers

_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
}
_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Mod: operator.mod,
}


@dataclass(frozen=True)
class Deviation:
    """Where a target is known to be wrong."""

    targets: tuple[str, ...]  # names or globs
    properties: tuple[str, ...]  # names or globs
    when: str  # an expression over the fields of the case
    kind: str  # library bug | undocumented | convention | crash: the stored case kills the process
    reason: str
    version: str  # the library and version on which it was seen, "torch 2.13", or "oneDNN 3.12", which is no distribution
    case: Case  # the smallest case that shows it
    shows: str  # the property that the stored case refutes
    expires: datetime.date | None = None
    fixed: str = ""  # the version from which on the library is right, "2.13": from then on the entry is left out
    where: str = ""  # an expression over the facts of the machine; elsewhere the entry is left out
    like: str = ""  # a built-in that it is on record for: of another target only what that one does, too, on the very case

    def concerns(self, target: str, prop: str) -> bool:
        """Whether it is about this property of this target."""
        name, _ = without_variant(target)  # what is wrong with a target is wrong with its variants
        return any(fnmatch.fnmatchcase(name, glob) for glob in self.targets) and any(
            fnmatch.fnmatchcase(prop, glob) for glob in self.properties
        )

    def expired(self) -> bool:
        """Whether its time is over, so that somebody should look again."""
        return self.expires is not None and datetime.date.today() > self.expires

    def seen_here(self, facts: Mapping[str, Any] = FACTS) -> bool:
        """Whether the version of the library that is here is the one on which it was seen (``torch 2.13``)."""
        version, here = numbers(self.version.partition(" ")[2]), self.installed(facts)
        return here is not None and here[: len(version)] == version

    def installed(self, facts: Mapping[str, Any] = FACTS) -> tuple[int, ...] | None:
        """The version of the library that is here; None if there is none, or the facts do not say."""
        library = self.version.partition(" ")[0]
        if library in LIBRARIES:
            return facts[LIBRARIES[library]] or None
        try:
            return numbers(metadata.version(library))
        except metadata.PackageNotFoundError:
            return None

    def over(self, facts: Mapping[str, Any] = FACTS) -> bool:
        """Whether the version that is here is one in which it is fixed."""
        here = self.installed(facts)
        return bool(self.fixed) and here is not None and here >= numbers(self.fixed)

    def found_on(self, facts: Mapping[str, Any]) -> bool:
        """Whether it is to be looked for on a machine of these facts. Raises ValueError if the condition makes no sense."""
        if self.over(facts):
            return False
        try:
            return not self.where or bool(_evaluate(_parsed(self.where), lambda name: _fact(name, facts)))
        except (TypeError, ArithmeticError, RecursionError) as error:  # threads > 'two', threads % 0
            raise ValueError(f"the condition {shortened(self.where)} makes no sense: {error}") from None

    def matches(self, case: Case) -> bool:
        """Whether the case is one on which the target is known to be wrong; a case of another contract without such fields is not.

        Raises ValueError if the condition makes no sense of it.
        """
        try:
            return bool(_evaluate(_parsed(self.when), lambda name: _field(name, case)))
        except UnknownField:
            if isinstance(case, type(self.case)):
                raise
            return False
        except (TypeError, ArithmeticError, RecursionError) as error:  # scale <= 0, where there is no scale; keys % (queries - 3)
            raise ValueError(f"the condition {shortened(self.when)} makes no sense of {case!r}: {error}") from None


def read_deviations(path: str | Path) -> tuple[Deviation, ...]:
    """From TOML, a table ``[[deviation]]`` each; those that are over are left out. Raises ValueError naming a wrong entry."""
    content = in_toml(path)
    checked(f"{path}", content, {"deviation": Key(_tables)}, "{key!r} in {what}")
    entries = content.get("deviation", [])
    made = [_entry(number, entry) for number, entry in enumerate(entries, 1)]
    return tuple(deviation for deviation in made if not deviation.over())


def _tables(value: Any) -> str:
    fits = isinstance(value, list) and all(isinstance(entry, dict) for entry in value)
    return "" if fits else f"is {value!r}; it can be one or several tables [[deviation]]"


_NAMES = some_of(least="name one or several")


def _globs(value: Any) -> str:
    if wrong := _NAMES(value):
        return wrong
    strange = [glob for glob in _several(value) if not fnmatch.filter(declared(), glob)]
    near = difflib.get_close_matches(strange[0], declared(), 3, 0.5) if strange else []
    return f"names no property: {strange[0]!r}" + f"; did you mean {', '.join(near)}?" * bool(near) if strange else ""


KINDS = ("library bug", "undocumented", "convention", "crash")
NUMBERS = r"\d+(\.\d+)*"
SCHEMA: dict[str, Key] = {
    "targets": Key(_NAMES, needed=True),
    "properties": Key(_globs, needed=True),
    "when": Key(NAME, needed=True),
    "kind": Key(one_of(lambda: KINDS), needed=True),
    "reason": Key(TEXT, needed=True),
    "version": Key(like(rf"\S+ {NUMBERS}", "a library and its version, such as 'torch 2.13'"), needed=True),
    "case": Key(NAME, needed=True),
    "shows": Key(NAME, needed=True),
    "expires": Key(optional(DATE)),
    "fixed": Key(like(f"({NUMBERS})?", "a version such as '2.13'")),
    "where": Key(TEXT),
}


def _several(value: Any) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def _entry(number: int, entry: dict[str, Any]) -> Deviation:
    checked(f"known deviation {number}", entry, SCHEMA, "{what}: {key}")
    try:
        made = Deviation(
            targets=_several(entry["targets"]),
            properties=_several(entry["properties"]),
            when=entry["when"],
            kind=entry["kind"],
            reason=entry["reason"],
            version=entry["version"],
            case=_shown(entry["shows"]).topic.case.parse(entry["case"]),
            shows=entry["shows"],
            expires=entry.get("expires"),
            fixed=entry.get("fixed", ""),
            where=entry.get("where", ""),
        )
        made.found_on(FACTS)  # a condition on the machine has to make sense of one of which nothing is known
        for name in _names(made.where):  # those behind "and", too
            _fact(name, FACTS)
        made.matches(type(made.case)())  # a condition has to make sense of every case
        if not made.matches(made.case):
            raise ValueError("its own case does not match its condition")
    except ValueError as error:
        raise ValueError(f"known deviation {number}: {error}") from error
    return made


def _parsed(condition: str) -> ast.expr:
    """Raises ValueError for a text that is no expression."""
    try:
        return ast.parse(condition.strip(), mode="eval").body
    except SyntaxError as error:
        raise ValueError(f"{shortened(condition)} is no condition: {error.msg}") from None
    except (RecursionError, MemoryError):  # that of the parser
        raise ValueError(f"{shortened(condition)} is no condition: it is nested too deeply") from None


def _evaluate(node: ast.expr, value_of: Callable[[str], Any]) -> Any:
    """A comparison over the fields of a case, or the facts of a machine: names, literals, and/or/not, comparisons, + - * %."""
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name):
            return value_of(name)
        case ast.Tuple(elts=elements):
            return tuple(_evaluate(element, value_of) for element in elements)
        case ast.BoolOp(op=op, values=values):
            return (all if isinstance(op, ast.And) else any)(_evaluate(value, value_of) for value in values)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return not _evaluate(operand, value_of)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_evaluate(operand, value_of)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            first, second = _evaluate(left, value_of), _evaluate(right, value_of)
            if isinstance(first, int | float | None) and isinstance(second, int | float | None):
                return _BINARY[type(op)](first, second)
            raise TypeError("only numbers are added, subtracted and multiplied")  # 'a' * 10**12 would fill the memory
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            return _COMPARE[type(op)](_evaluate(left, value_of), _evaluate(right, value_of))
    raise ValueError(f"cannot be used in a condition: {ast.unparse(node)}")


class UnknownField(ValueError):
    """A condition names what a case has not."""


def _field(name: str, case: Case) -> Any:
    if name not in case.fields() and not isinstance(getattr(type(case), name, None), property):
        raise UnknownField(f"a case has no field {name!r}")
    return getattr(case, name)


def _shown(name: str) -> Property:
    if name not in declared():
        raise ValueError(f"there is no property {name!r}")
    return declared()[name]


def _names(condition: str) -> list[str]:
    return [node.id for node in ast.walk(_parsed(condition or "True")) if isinstance(node, ast.Name)]


def _fact(name: str, facts: Mapping[str, Any]) -> Any:
    if name not in FACTS:
        near = difflib.get_close_matches(name, FACTS, 3, 0.5)
        hint = f"did you mean {', '.join(near)}?" if near else f"there are {', '.join(FACTS)}"
        raise ValueError(f"a machine has no fact {name!r}; {hint}")
    return facts[name]
