"""Skeletons as text: in the style of what stands in the file already, laid out as ruff lays it out."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

WIDTH = 140  # of a line, as pyproject.toml tells ruff
Declared = ast.FunctionDef | ast.ClassDef


def parsed(file: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(file.read_text(encoding="utf-8"))


def declarations(file: Path) -> dict[str, Declared]:
    """The functions and classes of a file that have been decorated by a call, by name."""
    return {node.name: node for node in parsed(file).body if isinstance(node, Declared) and any(map(_called, node.decorator_list))}


def like_decorator(node: Declared, module: ModuleType, more: Sequence[str] = (), **values: str) -> str:
    """The decorator of a declaration with other values. What it takes by default is left out."""
    call = next(filter(None, map(_called, node.decorator_list)))
    name = _written(call.func)
    decorator: Callable[..., Any] = eval(name, vars(module))  # a name, or one of a module
    parts, positional = [], True
    for formal in inspect.signature(decorator).parameters.values():
        if formal.name not in values or formal.default == values[formal.name]:
            positional = False
            continue
        positional = positional and formal.kind is formal.POSITIONAL_OR_KEYWORD
        parts.append(f'"{values[formal.name]}"' if positional else f'{formal.name}="{values[formal.name]}"')
    kept = [f"{word.arg}={_written(word.value)}" for word in call.keywords if word.arg in more and isinstance(word.value, _NAMES)]
    return laid_out(f"@{name}(", [*parts, *kept], ")")


def like_head(node: Declared, name: str) -> str:
    """``def`` or ``class`` of a declaration, with another name and the same arguments or bases."""
    if isinstance(node, ast.ClassDef):
        return laid_out(f"class {name}(", list(map(_written, node.bases)), "):")
    return laid_out(f"def {name}(", formals(node.args), f") -> {_written(node.returns) if node.returns else 'Any'}:")


def formals(given: ast.arguments) -> list[str]:
    """The formal parameters of a function, as they are written."""
    first = [*given.posonlyargs, *given.args]
    defaults = [*[None] * (len(first) - len(given.defaults)), *given.defaults]
    parts = [_formal(*pair) for pair in zip(first, defaults, strict=True)]
    if given.vararg or given.kwonlyargs:
        parts.append(f"*{_written(given.vararg) if given.vararg else ''}")
    parts += [_formal(*pair) for pair in zip(given.kwonlyargs, given.kw_defaults, strict=True)]
    return [*parts, f"**{_written(given.kwarg)}"] if given.kwarg else parts


def plain_call(node: Declared) -> str | None:
    """The call with all its arguments that a function returns, without what is replaced in it: its honest code. None where there is none."""
    if isinstance(node, ast.ClassDef):
        return None
    given = [arg.arg for arg in node.args.args]
    rest = [f"{arg.arg}={arg.arg}" for arg in node.args.kwonlyargs] + ([f"**{node.args.kwarg.arg}"] if node.args.kwarg else [])
    for part in ast.walk(node):
        call = part.value if isinstance(part, ast.Return) else None
        if not isinstance(call, ast.Call) or not isinstance(call.func, _NAMES) or list(map(_written, call.args)) != given:
            continue
        words = [f"{word.arg}={_written(word.value)}" if word.arg else f"**{_written(word.value)}" for word in call.keywords]
        if all(word in words for word in rest):
            return laid_out(f"{_written(call.func)}(", [*given, *rest], ")")
    return None


def like_body(node: Declared) -> str:
    """What stands in a function or a class before anything in it is wrong."""
    if isinstance(node, ast.ClassDef):
        return "pass  # TODO: one step replaced"
    call = plain_call(node)
    return (
        f"return {call}  # TODO: with one step replaced" if call else 'raise NotImplementedError("TODO: the honest code with one mistake")'
    )


def laid_out(head: str, parts: Sequence[str], tail: str) -> str:
    """On one line, or with what is in the parentheses on one of its own, or on one each."""
    inside = ", ".join(parts)
    if len(head + inside + tail) <= WIDTH:
        return head + inside + tail
    if len(inside) + 4 <= WIDTH:
        return f"{head}\n    {inside}\n{tail}"
    return "\n".join([head, *(f"    {part}," for part in parts), tail])


_NAMES = (ast.Name, ast.Attribute)


def _formal(arg: ast.arg, default: ast.expr | None) -> str:
    return _written(arg) if default is None else f"{_written(arg)} = {_written(default)}"


def _written(node: ast.AST) -> str:
    return ast.unparse(node).replace("'", '"')


def _called(decorator: ast.expr) -> ast.Call | None:
    return decorator if isinstance(decorator, ast.Call) else None
