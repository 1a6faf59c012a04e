"""From a text to the callable that it names: importing it executes it, so that only who may be harmed by it does so."""

from __future__ import annotations

import ast
import contextlib
import difflib
import functools
import importlib
import importlib.util
import inspect
import pkgutil
import re
import sys
import traceback
from collections.abc import Callable, Iterable
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import Any

ANY = "?"  # in the place of an attribute: the one that there is; a name after it is the first to be looked for
KNOWN = ("kernel", "forward", "solution", "sdpa", "scaled_dot_product_attention", "flash_attention")
MODELS = ("ModelNew", "Model")
A_CLASS = "class"  # behind ANY: one is meant, and no function
ATTENTION = re.compile("attention|attn|sdpa|mha", re.IGNORECASE)


class NotLoaded(Exception):
    """There is no such callable; the message says in one sentence what to change."""


def catalogue() -> Any:
    """The catalogue of built-in implementations, if there is one beside this package; None otherwise."""
    base = __package__.removesuffix("properties.engine.contained")  # "" in a clone, "attncheck." installed
    try:
        return importlib.import_module(f"{base}impls.catalogue")
    except ImportError:
        return None


def load(text: str) -> tuple[Any, str]:
    """A built-in, or what ``module:attribute`` or ``file.py:attribute`` names, and its attribute, if any. Raises NotLoaded."""
    module = catalogue()
    entries = {entry.name: entry for entry in module.CATALOGUE} if module else {}
    return (module.load(entries[text]), "") if text in entries else load_callable(text, entries)


def load_callable(text: str, entries: Iterable[str]) -> tuple[Any, str]:
    """Import what ``module:attribute`` or ``file.py:attribute`` names; ``attribute(name=value)`` is a class with arguments, or what a
    function returns for them. Raises NotLoaded with one sentence.
    """
    text, given = _given(text)
    place, colon, attribute = text.rpartition(":")
    if ".ipynb" in (Path(text).suffix, Path(place).suffix):
        raise NotLoaded(
            f"{place if colon else text} is a notebook: verify(attention) checks a function in it, or a file.py that holds it here"
        )
    if not colon and text.endswith(".py"):
        raise NotLoaded(f"which callable of {text}? Give {text}:{the_callable(_load_file(Path(text)), text, '')}")
    if colon and not place:
        raise NotLoaded(f"which module or file has {attribute or 'it'}? Nothing stands before the colon")
    if colon and not attribute:
        raise NotLoaded(f"which callable of {place}? Nothing stands after the colon")
    if not colon and Path(text).is_dir():
        raise NotLoaded(f"{text} is a folder: give file.py:attribute, or attncheck judge {text} for all files in it")
    if not colon:
        near = difflib.get_close_matches(text, entries, 3, 0.5)
        hint = f"did you mean {', '.join(near)}?" if near else "give module:attribute, file.py:attribute or a built-in name"
        raise NotLoaded(f"there is no built-in implementation {text!r}; {hint}")
    module = _load_file(Path(place)) if place.endswith(".py") else _load_module(place)
    if attribute.startswith(ANY):
        attribute = the_callable(module, place, attribute[1:])
    found = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            names = [name for name in vars(found) if not name.startswith("_")]
            near = difflib.get_close_matches(part, names, 3, 0.5)
            raise NotLoaded(f"{place} has no attribute {part!r}" + (f"; did you mean {', '.join(near)}?" if near else ""))
        found = getattr(found, part)
    if given is not None:
        try:
            arguments, named = _arguments(given, module)
        except ValueError:
            raise NotLoaded(_no_values(f"{text}({ast.unparse(given)[2:-1]})")) from None
        except Exception as error:
            raise NotLoaded(f"the arguments of {text} cannot be made: {type(error).__name__}: {_first_line(error)}") from error
        return _called_with(found, text, arguments, named), attribute
    makes = getattr(module, "get_init_inputs", None)
    # as in KernelBench: a class, or a function that makes one of its modules, beside what it is called with
    if (inspect.isclass(found) or inspect.isfunction(found)) and attribute in MODELS and callable(makes):
        try:
            return made_with(makes(), found), attribute
        except Exception as error:
            raise NotLoaded(f"{text} cannot be made with get_init_inputs(): {type(error).__name__}: {_first_line(error)}") from error
    return found, attribute


def inputs_of(text: str) -> Callable[[], Any] | None:
    """The ``get_inputs`` beside what a text names, if it is in the style of KernelBench. Raises NotLoaded."""
    if not text.endswith(MODELS):
        return None
    found: Any = getattr(load(text)[0], "forward", None)
    return getattr(found, "__globals__", {}).get("get_inputs")


def made_with(inputs: Any, maker: Callable[..., Any]) -> Any:
    """What is made of what ``get_init_inputs()`` returns: arguments, or a dictionary of them by name, or, as in KernelBook, a list of both.

    Such a list may also be two arguments, and is where the maker takes them. Raises as the maker does.
    """
    if isinstance(inputs, dict):
        return maker(**inputs)
    arguments = list(inputs)
    try:
        return maker(*arguments)
    except TypeError:
        match arguments:
            case [list() | tuple() as positional, dict() as named]:
                return maker(*positional, **named)
        raise


def _given(text: str) -> tuple[str, ast.Call | None]:
    """The text before a call's parentheses, and the call; None where there are none. Raises NotLoaded if they hold no arguments."""
    if not text.endswith(")") or "(" not in text:
        return text, None
    before, _, inside = text[:-1].partition("(")
    try:
        call = ast.parse(f"f({inside})", mode="eval").body
        assert isinstance(call, ast.Call)
    except SyntaxError:
        raise NotLoaded(_no_values(text)) from None
    return before, call


def _no_values(text: str) -> str:
    return f"the arguments of {text} are no numbers, texts or flags, as in Class(d_model=32, num_heads=4), and no names of its module"


def _value(node: ast.expr, module: Any) -> Any:
    """A literal, a name of a module, or what such a name returns for arguments: ``Config(n_head=4)``. Raises ValueError for anything else."""
    if isinstance(node, ast.Name) and hasattr(module, node.id):
        return getattr(module, node.id)
    if isinstance(node, ast.Attribute) and not node.attr.startswith("_"):
        return getattr(_value(node.value, module), node.attr)
    if isinstance(node, ast.Call):
        arguments, named = _arguments(node, module)
        return _value(node.func, module)(*arguments, **named)
    return ast.literal_eval(node)


def _arguments(call: ast.Call, module: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return tuple(_value(one, module) for one in call.args), {one.arg or "": _value(one.value, module) for one in call.keywords}


def _called_with(found: Any, text: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """A class with arguments, or what a function returns for them."""
    if not callable(found):
        raise NotLoaded(f"{text} is not callable, but of type {type(found).__name__}")
    if isinstance(found, type):
        return functools.partial(found, *arguments, **named)
    try:
        return found(*arguments, **named)
    except Exception as error:
        raise NotLoaded(f"{text} cannot be called so: {type(error).__name__}: {_first_line(error)}") from error


def instance_of(made: type) -> Callable[..., Any]:
    """What a class makes without arguments, if that is called like a function. Raises NotLoaded."""
    try:
        instance = made()
    except Exception as error:
        raise NotLoaded(f"{made.__name__}() cannot be made: {type(error).__name__}: {_first_line(error)}") from error
    if not callable(instance):
        raise NotLoaded(f"{made.__name__}() is not callable")
    return instance


# The packages of libraries that have modules with weights of their own kind → what they are called.
LIBRARIES = {"flax": "Flax", "equinox": "Equinox", "keras": "Keras", "mlx": "MLX", "haiku": "Haiku"}


def library_of(thing: Any) -> str:
    """The library, other than PyTorch, of whose modules a class, with arguments or without, or an object is one; empty if it is none."""
    thing = thing.func if isinstance(thing, functools.partial) else thing
    bases = (thing if isinstance(thing, type) else type(thing)).__mro__
    return next((LIBRARIES[name] for base in bases if (name := base.__module__.partition(".")[0]) in LIBRARIES), "")


def the_callable(module: Any, place: str, first: str) -> str:
    """The callable of a file of which nobody has said which: by name, its only function of three arguments, its only class, or the only one that
    is called after attention. ``first``: is looked for before others; A_CLASS: no function is meant. Raises NotLoaded.
    """
    own = {name: value for name, value in vars(module).items() if callable(value) and not name.startswith("_")}
    own = {name: value for name, value in own.items() if not (first == A_CLASS and inspect.isfunction(value))}
    for name in (MODELS[0], first, *KNOWN, *MODELS):  # a file with a ModelNew is about that, whatever else it defines
        if name in own:
            return name
    here = {name: value for name, value in own.items() if getattr(value, "__module__", None) == module.__name__}
    classes = [name for name, value in here.items() if inspect.isclass(value)]
    able = [name for name, value in here.items() if name not in classes and len(_formal(value)) >= 3] or classes
    called = [name for name in able if ATTENTION.search(name)]
    for one in (able, called):
        if len(one) == 1:
            return one[0]
    raise NotLoaded(f"which callable of {place}? It has {', '.join(own) or 'none'}; give {place}:attribute")


def _formal(function: Any) -> Any:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return ()


class _FromSource(SourceFileLoader):
    """Reads the file itself, never what was compiled of it: that may be of another one of the same age and size."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


def _load_file(path: Path) -> Any:
    if path.is_dir():
        raise NotLoaded(f"{path} is a folder; give file.py:attribute")
    if not path.exists():
        folder = path.parent if path.parent.exists() else Path()
        near = difflib.get_close_matches(path.name, [p.name for p in folder.glob("*.py")], 3, 0.5)
        raise NotLoaded(f"there is no file {path}" + (f"; did you mean {', '.join(near)}?" if near else ""))
    if not path.is_file():
        raise NotLoaded(f"{path} is no file, but a pipe or a device")
    name = path.stem
    spec = importlib.util.spec_from_file_location(name, path, loader=_FromSource(name, str(path)))
    if spec is None or spec.loader is None:
        raise NotLoaded(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(name, module)
    beside = str(path.parent.resolve())
    sys.path.insert(0, beside)
    try:
        spec.loader.exec_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # an exit, too
        raise NotLoaded(f"{path} cannot be imported: {type(error).__name__}: {_first_line(error)}") from error
    finally:
        sys.path.pop(0)
    if beside not in sys.path:
        sys.path.append(beside)  # a call may import what lies beside it
    return module


def _load_module(name: str) -> Any:
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        with contextlib.suppress(Exception):
            return pkgutil.resolve_name(name)  # what lies in a module and is none, such as torch.ops.mylib
        raise NotLoaded(f"the module {name} cannot be imported: {type(error).__name__}: {_first_line(error)}") from error
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise NotLoaded(f"the module {name} cannot be imported: {type(error).__name__}: {_first_line(error)}") from error


def words_of(error: BaseException) -> str:
    """What an exception says; of an assertion without words the line of code that it stands in."""
    try:
        if type(error) is AssertionError and not error.args and error.__traceback__ is not None:
            return traceback.extract_tb(error.__traceback__)[-1].line or ""
        return str(error)
    except BaseException:
        return ""


def _first_line(error: BaseException) -> str:
    return next(iter(words_of(error).strip().splitlines()), "")


def called(function: Callable[..., Any]) -> Callable[..., Any]:
    """What says how a callable is called: of a module that passes on whatever it is given, its ``forward``."""
    try:
        formal = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return function
    forward = getattr(function, "forward", None)
    return forward if callable(forward) and all(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in formal) else function
