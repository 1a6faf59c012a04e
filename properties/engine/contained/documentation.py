"""What people write about a callable beside its code: docstrings, and comments before its first statement."""

from __future__ import annotations

import ast
import inspect
import io
import textwrap
import tokenize
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

LONGEST = 6000  # characters that are read


def documentation(thing: Any) -> str:
    """The docstrings of a function, or of a class and what is called of it, and the comments beside their parameters, line by line.

    Empty for what raises where it is looked at.
    """
    try:
        return _documentation(thing)
    except Exception:
        return ""


def _documentation(thing: Any) -> str:
    thing = getattr(thing, "func", thing)  # of a partial one
    thing = thing if inspect.isclass(thing) else inspect.unwrap(thing)  # of what is compiled, or decorated
    made = thing if inspect.isclass(thing) or inspect.isroutine(thing) else type(thing)
    lines: list[str] = []
    for part in (made, *(vars(made).get(name) for name in ("forward", "__call__", "__init__") if inspect.isclass(made))):
        doc = getattr(part, "__doc__", None)
        lines += doc.splitlines() if isinstance(doc, str) and getattr(part, "__module__", "") != "torch.nn.modules.module" else []
        if inspect.isroutine(part):
            lines += _comments(part)
    return "\n".join(lines)[:LONGEST]


def _comments(function: Any) -> Iterator[str]:
    """Those before its first statement, each behind the parameter of its line: what is said further on may be about anything."""
    with suppress(OSError, TypeError, tokenize.TokenError, SyntaxError):
        source = textwrap.dedent(inspect.getsource(inspect.unwrap(function)))
        body = next((node.body for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)), None)
        if body is None:  # a lambda
            return
        documented = isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant)
        first = body[1].lineno if documented and len(body) > 1 else body[0].lineno
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT and token.start[0] < first:
                code = token.line[: token.start[1]].strip()
                parameter = f"{code.partition(':')[0].partition('=')[0].rstrip(',')}: " if code else ""
                yield parameter + token.string.lstrip("# ")
