"""What can be mistaken in a line of Python: one small change each, for ``benchmarks.mutate``.

Left as they are: annotations, decorators, what is only said (strings, messages of exceptions), and blocks for the type checker alone.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

OPERATORS: dict[type, tuple[type, ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.And: (ast.Or,),
    ast.Or: (ast.And,),
    ast.Add: (ast.Sub,),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Div,),
    ast.Div: (ast.Mult,),
    ast.FloorDiv: (ast.Mult,),
    ast.Mod: (ast.FloorDiv,),
    ast.Pow: (ast.Mult,),
    ast.BitAnd: (ast.BitOr,),
    ast.BitOr: (ast.BitAnd,),
}
NAMES = {
    "min": "max",
    "minimum": "maximum",
    "fmin": "fmax",
    "argmin": "argmax",
    "any": "all",
    "zeros": "ones",
    "neginf": "posinf",
}
NAMES |= {other: name for name, other in NAMES.items()}


@dataclass(frozen=True)
class Mutation:
    """One change of one module."""

    path: str
    line: int
    function: str  # dotted; "" at the top of the module
    was: str
    now: str
    number: int  # among those of the same words in the same function
    text: str  # the whole module, changed

    @property
    def key(self) -> tuple[str, str, str, int]:
        """What stays the same when other lines of the module change."""
        return self.function, self.was, self.now, self.number


def mutations(path: str, source: str) -> list[Mutation]:
    """Every change of a module, in the order of its lines."""
    lines = source.encode().splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    raw, found, seen = source.encode(), [], dict[tuple[str, str, str], int]()
    for function, node, changed in walk(ast.parse(source), ""):
        begin, end = starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset
        was, now = " ".join(ast.unparse(node).split()), " ".join(ast.unparse(changed).split())
        new = ast.unparse(changed)
        text = (raw[:begin] + (f"({new})" if isinstance(changed, ast.expr) else new).encode() + raw[end:]).decode()
        number = seen[function, was, now] = seen.get((function, was, now), 0) + 1
        found.append(Mutation(path, node.lineno, function, was, now, number, text))
    return found


def walk(node: ast.AST, function: str) -> Iterator[tuple[str, Any, ast.AST]]:
    """(function, node, what it is changed into) of everything below a node."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or said(child) or typed(node, name, child):
                continue
            inside = function
            if isinstance(child, (ast.FunctionDef, ast.ClassDef)):
                inside = f"{function}.{child.name}".strip(".")
            if hasattr(child, "lineno"):
                yield from ((inside, child, changed) for changed in changes(child))
            yield from walk(child, inside)


def said(node: ast.AST) -> bool:
    """Whether it is only words, or read by a type checker alone."""
    if isinstance(node, ast.If):
        return ast.unparse(node.test) == "TYPE_CHECKING"
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    if isinstance(node, ast.keyword):  # of zip: where it matters, something else is wrong
        return node.arg == "strict"
    return isinstance(node, (ast.JoinedStr, ast.Raise, ast.Assert, ast.Import, ast.ImportFrom))


def typed(parent: ast.AST, field: str, node: ast.AST) -> bool:
    """Whether it is an alias of a type: `Array = npt.NDArray[Any]`, `cast(float | None, x)`."""
    if isinstance(parent, ast.Assign) and field == "value" and isinstance(node, ast.Subscript):
        return isinstance(parent.targets[0], ast.Name) and parent.targets[0].id[0].isupper() and not parent.targets[0].id.isupper()
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr) and ast.unparse(node.right) == "None"


def changes(node: ast.AST) -> Iterator[ast.AST]:
    """What a node itself may be mistaken for."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        yield from (altered(node, ops=[other()]) for other in OPERATORS[type(node.ops[0])])
    elif isinstance(node, ast.Compare):
        for at, op in enumerate(node.ops):
            yield altered(node, ops=[*node.ops[:at], OPERATORS[type(op)][0](), *node.ops[at + 1 :]])
    elif isinstance(node, (ast.BoolOp, ast.BinOp, ast.AugAssign)):
        yield from (altered(node, op=other()) for other in OPERATORS.get(type(node.op), ()))
    elif isinstance(node, ast.UnaryOp) and not isinstance(node.operand, ast.Constant):
        yield node.operand
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield altered(node, value=not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        yield altered(node, value=node.value + 1 if isinstance(node.value, int) else node.value * 2 or 1.0)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in NAMES:
        yield altered(node, func=ast.Name(NAMES[node.func.id]))
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in NAMES:
        yield altered(node, func=ast.Attribute(node.func.value, NAMES[node.func.attr]))
    elif isinstance(node, ast.Break):
        yield ast.Continue()
    elif isinstance(node, ast.Continue):
        yield ast.Break()
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield ast.Pass()
    elif isinstance(node, ast.IfExp) and not judged(node.test):
        yield altered(node, body=node.orelse, orelse=node.body)
    # a condition that stands for itself; where it is compared or negated, that is changed already
    if isinstance(node, (ast.Name, ast.Attribute, ast.Call)) and getattr(node, "condition", False):
        yield ast.UnaryOp(ast.Not(), node)
    for part in conditions(node):
        part.condition = True  # type: ignore[attr-defined]


def conditions(node: ast.AST) -> list[ast.expr]:
    """The conditions that a statement or a comprehension decides by."""
    if isinstance(node, (ast.If, ast.While)):
        return [node.test]
    return [*node.ifs] if isinstance(node, ast.comprehension) else []


def judged(test: ast.expr) -> bool:
    """Whether a condition has an operator, which is changed already."""
    return isinstance(test, ast.Compare) or (isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not))


def altered(node: Any, **parts: Any) -> Any:
    """A copy of a node with other parts."""
    other = copy.copy(node)
    for name, part in parts.items():
        setattr(other, name, part)
    return other
