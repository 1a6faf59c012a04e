"""A case: everything that determines one call of a target, as independent scalars.

Hypothesis draws and shrinks the scalars; the tensors follow from them. A case prints only what differs from the simplest one,
and what it prints evaluates back to it. Each contract has its own: a frozen dataclass whose fields are made with ``field``.
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import math
from typing import Any, Self

from ...exact.shown import Shown
from .dtypes import FLOAT_TYPES
from .field import Field, field

Edit = tuple[str, int, float]  # tensor, flat index (modulo its size), special value
EXAMPLE = "expected for example Case(queries=4, is_causal=True)"
MOST = 2**28  # numbers in the largest array of a case: 2 GiB in float64
# Sizes of a case: how many there are of something, its lengths, and its widths.
COUNTS, LENGTHS = ("batch", "kv_heads", "heads", "group"), ("queries", "keys", "length", "length", "memory")
WIDTHS = ("dim", "value_dim", "head_dim", "hidden", "rotary_dim", "num_buckets", "spare", "page_size", "chunks")
_NUMBERS = (int, float)
_TYPES: dict[str, tuple[Any, ...]] = {
    "int": (int,),
    "int | None": (int, type(None)),
    "float": _NUMBERS,
    "float | None": (*_NUMBERS, type(None)),
    "bool": (bool,),
    "str": (str,),
    "tuple[Edit, ...]": (tuple,),
    "tuple[int, ...]": (tuple,),
    "tuple[str, ...]": (tuple,),
}


def dtype_field() -> Any:
    """The type under test."""
    return field(
        "float64",
        choices=tuple(FLOAT_TYPES),
        varied=("float64", "float32"),
        why="a mistake of meaning shows 5e8 times earlier in float64 than in float32",
        unusual={
            "float64": "the widest: no rounding hides a mistake",
            "float16": "ends at 65504",
            "bfloat16": "keeps 8 bits of a number: rounding is coarse, and an error of a few parts in a thousand is none",
            "float32": "what most people compute in",
        },
        often={
            ("float64", "float32"): "the widest type that the target takes, where mistakes of meaning show first",
            ("float16", "bfloat16"): "where a property is about overflow or rounding",
        },
    )


def device_field() -> Any:
    """Where the arrays lie."""
    return field("cpu", why="each device has kernels of its own")


def seed_field() -> Any:
    """What every number follows from, by its coordinates."""
    return field(0, least=0, varied=(0, 1, 2, 3), why="numbers that no other case has")


class Case(Shown):
    """What all cases have: a type, a device, a seed, and a text that evaluates back to them."""

    dtype: str
    device: str
    seed: int

    @classmethod
    def fields(cls) -> dict[str, Field]:
        """What is known of each field, in the order of the declaration."""
        known = dataclasses.fields(cls)  # type: ignore[arg-type]
        if bare := [f.name for f in known if "field" not in f.metadata]:
            raise ValueError(f"{cls.__module__}.{cls.__qualname__}.{bare[0]} is no field of a case: field(default, why=…) names its reason")
        return {f.name: f.metadata["field"] for f in known}

    @property
    def empty(self) -> bool:
        """Whether some array of the case has no element."""
        return False

    def differing(self) -> dict[str, Any]:
        """The fields that differ from the simplest case, in the order of the declaration."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if getattr(self, f.name) != f.default}  # type: ignore[arg-type]

    def but(self, **changes: Any) -> Self:
        """The same case with some fields changed."""
        return dataclasses.replace(self, **changes)  # type: ignore[type-var]

    def __repr__(self) -> str:
        return "Case(" + ", ".join(f"{name}={value!r}" for name, value in self.differing().items()) + ")"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read back what ``repr`` prints, or a person wrote; nothing is executed.

        Raises ValueError with one sentence if the text is not a case, or a field has a value that means nothing.
        """
        case = cls(**_keywords(text, tuple(cls.fields())))
        for name in cls.fields():
            cls.check(name, getattr(case, name))
        if (most := case.largest()) > MOST:
            raise ValueError(f"the case has arrays of some {most:,} numbers; it can be tried up to {MOST:,}: give smaller sizes")
        return case

    def largest(self) -> int:
        """Numbers in its largest array, about: of its tokens, or of one for every pair of them."""

        def sizes(names: tuple[str, ...]) -> list[int]:
            given = [getattr(self, name) or 1 for name in names if name in self.fields()]
            return [sum(size) if isinstance(size, tuple) else size for size in given]

        shorter, longer = sorted((1, 1, *sizes(LENGTHS)))[-2:]
        return math.prod(sizes(COUNTS)) * longer * max(shorter, *sizes(WIDTHS))

    @classmethod
    def check(cls, name: str, value: Any) -> None:
        """Raises ValueError with one sentence if a field cannot have a value."""
        _check(name, cls.kind_of(name), value, cls.fields()[name])

    @classmethod
    def kind_of(cls, name: str) -> str:
        """The type of a field, as text. Raises ValueError for one that no text of a case can have."""
        kind = cls.__dataclass_fields__[name].type  # type: ignore[attr-defined]
        said = kind.__name__ if isinstance(kind, type) else str(kind)
        if said not in _TYPES:
            raise ValueError(f"the field {name!r} of a case is {said}; it can be {', '.join(_TYPES)}")
        return said


def names(text: str) -> list[str | None]:
    """The fields that a text gives, known or not. Raises ValueError if it is no case."""
    return [keyword.arg for keyword in _call(text).keywords]


def shortened(text: str) -> str:
    """As much of it as fits a sentence."""
    return repr(text if len(text) <= 200 else text[:200] + "…")


def _call(text: str) -> ast.Call:
    try:
        call = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ValueError(f"not a case: {shortened(text)}; {EXAMPLE}") from None
    if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "Case"):
        raise ValueError(f"not a case: {shortened(text)}; {EXAMPLE}")
    return call


def _keywords(text: str, known: tuple[str, ...]) -> dict[str, Any]:
    call, fields = _call(text), dict[str, Any]()
    for keyword in call.keywords:
        if keyword.arg not in known:
            raise ValueError(f"a case has no field {keyword.arg!r}; its fields are {', '.join(sorted(known))}")
        if keyword.arg in fields:
            raise ValueError(f"the field {keyword.arg!r} is given twice")
        try:
            fields[keyword.arg] = _literal(keyword.value)
        except (RecursionError, MemoryError):
            raise ValueError(f"the field {keyword.arg!r} is too deep to be read") from None
    if call.args:
        raise ValueError("the fields of a case are given by name")
    return fields


def _check(name: str, kind: str, value: Any, known: Field) -> None:
    if not isinstance(value, _TYPES[kind]) or (isinstance(value, bool) and bool not in _TYPES[kind]):
        raise ValueError(f"the field {name!r} of a case is {kind}, got {value!r}")
    if value is not None and known.least is not None and not value >= known.least:
        raise ValueError(f"the field {name!r} of a case is at least {known.least}, got {value!r}")
    if known.choices and value not in known.choices:
        near = difflib.get_close_matches(str(value), map(str, known.choices), 1)
        hint = f"did you mean {near[0]!r}?" if near else f"it can be {', '.join(map(repr, known.choices))}"
        raise ValueError(f"the field {name!r} of a case is {value!r}; {hint}")
    if kind == "tuple[int, ...]" and not all(type(size) is int and size >= 0 for size in value):
        raise ValueError(f"the field {name!r} of a case holds whole numbers, for example (4, 1), got {value!r}")
    if kind == "tuple[str, ...]" and not all(word in known.items for word in value):
        raise ValueError(f"the field {name!r} of a case holds words among {', '.join(known.items)}, got {value!r}")
    if kind == "tuple[Edit, ...]":
        for edit in value:
            fits = isinstance(edit, tuple) and len(edit) == 3 and edit[0] in known.items
            if not fits or not isinstance(edit[1], int) or not isinstance(edit[2], _NUMBERS):
                raise ValueError(f"an edit is (tensor, index, value), for example ('v', 0, 1.0), got {edit!r}")


def _literal(node: ast.expr) -> Any:
    """``ast.literal_eval`` that also knows the names inf and nan, which ``repr`` of a float prints."""
    if isinstance(node, ast.Name) and node.id in ("inf", "nan"):
        return math.inf if node.id == "inf" else math.nan
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        operand = _literal(node.operand)
        if isinstance(operand, int | float):
            return -operand
    if isinstance(node, ast.Tuple):
        return tuple(_literal(element) for element in node.elts)
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise ValueError(f"not a literal value: {ast.unparse(node)}") from None
