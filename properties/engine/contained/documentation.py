"""What people write about a callable beside its code: docstrings, and comments in it."""

from __future__ import annotations

import inspect
import io
import tokenize
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

LONGEST = 6000  # characters that are read


def documentation(thing: Any) -> str:
    """The docstrings of a function, or of a class and what is called of it, and their comments, line by line."""
    thing = getattr(thing, "func", thing)  # of a partial one
    made = thing if inspect.isclass(thing) or inspect.isfunction(thing) or inspect.ismethod(thing) else type(thing)
    lines: list[str] = []
    for part in (made, *(vars(made).get(name) for name in ("forward", "__call__", "__init__") if inspect.isclass(made))):
        if part is None:
            continue
        doc = getattr(part, "__doc__", None)
        lines += doc.splitlines() if isinstance(doc, str) and getattr(part, "__module__", "") != "torch.nn.modules.module" else []
        if not inspect.isclass(part):
            lines += _comments(part)
    return "\n".join(lines)[:LONGEST]


def _comments(function: Any) -> Iterator[str]:
    """Those in the source of a function, each behind the code of its line, which may be a parameter."""
    with suppress(OSError, TypeError, tokenize.TokenError, SyntaxError, IndentationError):
        source = inspect.getsource(inspect.unwrap(function))
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT:
                code = token.line[: token.start[1]].strip()
                yield (
                    f"{code.partition(':')[0].partition('=')[0].rstrip(',')}: {token.string.lstrip('# ')}"
                    if code
                    else token.string.lstrip("# ")
                )
