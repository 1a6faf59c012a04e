"""The parameters of what Python cannot inspect: kernels in C++ and CUDA, operators and scripts of PyTorch, ``Function.apply``.

Such a callable is seen through one that has a signature. Its parameters are read off the ``forward`` behind an ``apply``, the schema of an
operator, or the first line of a docstring, which pybind11 and nanobind write.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

from ..frameworks.tensors import answering_in_arrays

Parameter = inspect.Parameter
UNNAMED = re.compile(r"arg\d+")  # pybind11, where a kernel names none of its arguments
# What an argument without a name may be, by its type; its effect confirms it, as that of any other name.
BY_TYPE = {"bool": "causal", "float": "scale", "double": "scale", "SupportsFloat": "scale"}
ARRAYS = ("Tensor", "tensor", "array", "ndarray")
LONGEST = 4000  # characters of a line that is read as a signature
LINES = 40  # of a docstring: of overloads the first comes after a few


class Named:
    """A callable with a signature that Python does not know. What takes arguments by position alone can be given them by name."""

    def __init__(self, function: Callable[..., Any], parameters: list[Parameter], by_position: bool = False) -> None:
        self._function, self._by_position = function, by_position
        self.__signature__ = inspect.Signature(parameters)
        home = getattr(function, "__module__", None) or getattr(getattr(function, "__self__", None), "__module__", None)
        self.__module__, self.__doc__ = str(home or ""), getattr(function, "__doc__", None)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._function, name)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        if not self._by_position:
            return self._function(*arguments, **options)
        bound = self.__signature__.bind(*arguments, **options)
        last = max((at for at, name in enumerate(self.__signature__.parameters) if name in bound.arguments), default=-1)
        bound.apply_defaults()  # of those before the last one that is given
        return self._function(*list(bound.arguments.values())[: last + 1])


def with_signature(thing: Any) -> Any:
    """The thing itself, where Python knows its parameters or nothing does; else a callable that has them.

    A ``torch.autograd.Function`` is its ``apply``, since nobody calls the class.
    """
    if isinstance(thing, type) and any(
        (base.__module__, base.__name__) == ("torch.autograd.function", "Function") for base in thing.__mro__
    ):
        thing = getattr(thing, "apply", thing)
    thing = answering_in_arrays(thing)
    if not callable(thing) or isinstance(thing, type | Named) or callable(getattr(thing, "forward", None)):
        return thing
    try:
        formal = list(inspect.signature(thing).parameters.values())
    except (TypeError, ValueError):
        formal = []
    if any(p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in formal):
        return thing
    for found in (_of_apply, _of_schema, _of_docstring):
        try:
            if made := found(thing):
                return made
        except ValueError:  # two of one name, or in an order that Python has not
            continue
    return thing


def _of_apply(function: Any) -> Named | None:
    """``apply`` of a ``torch.autograd.Function``: as its ``forward``, without the context."""
    owner = getattr(function, "__self__", None)
    forward = getattr(owner, "forward", None)
    if getattr(function, "__name__", "") != "apply" or not isinstance(owner, type) or not callable(forward):
        return None
    parameters = list(inspect.signature(forward).parameters.values())
    apart = any("setup_context" in vars(c) for c in owner.__mro__ if not c.__module__.startswith("torch."))
    named = [p for p in parameters[0 if apart else 1 :] if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return Named(function, [p.replace(kind=Parameter.POSITIONAL_OR_KEYWORD) for p in named], by_position=True) if named else None


def _of_schema(function: Any) -> Named | None:
    """An operator (``torch.ops.library.name``), one that was registered in Python, or a scripted function."""
    holders = (function, getattr(function, "default", None), getattr(function, "_opoverload", None))
    schemas = (getattr(holder, name, None) for holder in holders for name in ("schema", "_schema"))
    arguments = next((found for schema in schemas if isinstance(found := getattr(schema, "arguments", None), list) and found), [])
    parameters = [
        Parameter(
            argument.name,
            Parameter.KEYWORD_ONLY if argument.kwarg_only else Parameter.POSITIONAL_OR_KEYWORD,
            default=argument.default_value if argument.has_default_value() else Parameter.empty,
        )
        for argument in arguments
    ]
    return Named(function, parameters) if parameters else None


def _of_docstring(function: Any) -> Named | None:
    """What is compiled, with a line ``name(…) -> …`` in its docstring: the first one, of overloads, too."""
    doc = getattr(function, "__doc__", None)
    if hasattr(function, "__code__") or not isinstance(doc, str):
        return None
    for line in doc.splitlines()[:LINES]:
        line = re.sub(r"^\d+\.\s*", "", line.strip())
        if re.match(r"[A-Za-z_]\w*\(.*\)", line) and "*args, **kwargs" not in line and len(line) <= LONGEST:
            parameters = list(_parsed(line))
            by_position = any(UNNAMED.fullmatch(p.name) for p in parameters)
            return Named(function, parameters, by_position) if parameters else None
    return None


def _parsed(line: str) -> Iterator[Parameter]:
    """The parameters in such a line; none where it is no Python."""
    plain = re.sub(r"<[^<>]*>", "None", line.replace("::", ".").rstrip(":"))
    try:
        (parsed,) = ast.parse(f"def {plain}: ...").body
    except (SyntaxError, ValueError):
        return
    assert isinstance(parsed, ast.FunctionDef)
    formal = parsed.args
    positional = [*formal.posonlyargs, *formal.args]
    defaults: list[ast.expr | None] = [None] * (len(positional) - len(formal.defaults)) + list(formal.defaults)
    void = isinstance(parsed.returns, ast.Constant) and parsed.returns.value is None
    taken: set[str] = set()
    for at, (one, default) in enumerate(zip(positional, defaults, strict=True)):
        name = _likely(one, at, void, taken) if UNNAMED.fullmatch(one.arg) else one.arg
        taken.add(name)
        yield Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, default=_default(default))
    for one, default in zip(formal.kwonlyargs, formal.kw_defaults, strict=True):
        yield Parameter(one.arg, Parameter.KEYWORD_ONLY, default=_default(default))


def _likely(one: ast.arg, at: int, void: bool, taken: set[str]) -> str:
    """A name that says what an argument of that type may be; its own where it is one of the first three, or nothing is likely."""
    words = re.findall(r"\w+", ast.unparse(one.annotation)) if one.annotation else []
    likely = ("out" if void else "mask") if set(words) & set(ARRAYS) else next((BY_TYPE[word] for word in words if word in BY_TYPE), "")
    return likely if at >= 3 and likely and likely not in taken else one.arg


def _default(value: ast.expr | None) -> Any:
    """A default that is plain; None for one that is not."""
    if value is None:
        return Parameter.empty
    try:
        return ast.literal_eval(value)
    except ValueError:
        return None
