"""From a name to targets: ``package.module:attribute``, ``path/to/file.py:attribute``, or a name or glob of the catalogue."""

from __future__ import annotations

import dataclasses
import difflib
import fnmatch
import importlib
import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..core.supports import Supports
from ..core.target import CannotRun, Target, first_line
from ..frameworks import cache_variant, make_variant
from .deviations import Deviation, read_deviations
from .probe import make_target


class Builtins:
    """The catalogue of built-in implementations, if there is one beside this package; the checker works without."""

    def __init__(self) -> None:
        base = __package__.removesuffix("properties.engine.search")  # "" in a clone, "attncheck." installed
        try:
            self.module: Any = importlib.import_module(f"{base}impls.catalogue")
        except ImportError:
            self.module = None
        self.entries: dict[str, Any] = {entry.name: entry for entry in self.module.CATALOGUE} if self.module else {}

    def unavailable(self, name: str, device: str) -> str | None:
        """Why a built-in implementation cannot run here; None if it can."""
        reason: str | None = self.module.unavailable(self.entries[name], device)
        return reason

    def matching(self, pattern: str) -> list[str]:
        """The names that a glob matches."""
        return [name for name in self.entries if fnmatch.fnmatchcase(name, pattern)]

    def deviations(self) -> tuple[Deviation, ...]:
        """What is known to be wrong with them."""
        path = Path(self.module.__file__).with_name("deviations.toml") if self.module else None
        return read_deviations(path) if path and path.exists() else ()


def find_targets(
    text: str, builtins: Builtins, supports: Supports | Mapping[str, Any] | None = None, device: str = "cpu"
) -> list[Target]:
    """The targets that a text names; those of a glob that cannot run on the device are left out.

    Raises CannotRun with one sentence: a typo lists near matches, a target that cannot run says why.
    """
    text, _, variant = text.partition("@")
    if variant:
        return [_varied(target, variant, device) for target in find_targets(text, builtins, supports, device)]
    names = builtins.matching(text)
    if names:
        able = [name for name in names if builtins.unavailable(name, device) is None]
        if not able:
            raise CannotRun(f"{text} cannot run on {device}: {builtins.unavailable(names[0], device)}")
        return [make_target(name, builtins.module.load(builtins.entries[name]), supports, device) for name in able]
    return [make_target(text, load_callable(text, builtins), supports, device)]


def _varied(target: Target, variant: str, device: str) -> Target:
    """A target seen through a transformation of its framework."""
    fw, variants = target.framework, target.framework.variants
    if not variants:
        raise CannotRun(f"{target.name} takes arrays of {fw.name}, which has no variants")
    known, stateful = variants.get(variant), target.kind.makes
    if stateful and known and not known.stateful:
        able = ", ".join(name for name in variants if variants[name].stateful) or "none"
        raise CannotRun(f"{target.name} makes a cache, which changes at every call: it can be seen through {able}, not {variant}")
    if known and known.over_batch and not target.kind.batched:
        raise CannotRun(f"{variant} maps over a batch, which the contract {target.contract} has not")
    try:
        function = (cache_variant if stateful else make_variant)(fw, variant, target.function)
    except ValueError as error:
        raise CannotRun(str(error)) from None
    supports = dataclasses.replace(target.supports, framework=fw.name, **(known.narrows if known else {}))
    return make_target(f"{target.name}@{variant}", function, supports, device)


def load_callable(text: str, builtins: Builtins) -> Any:
    """Import what ``module:attribute`` or ``file.py:attribute`` names. Raises CannotRun with one sentence."""
    place, colon, attribute = text.rpartition(":")
    if not colon and text.endswith(".py"):
        raise CannotRun(f"which callable of {text}? Give {text}:attribute")
    if colon and not attribute:
        raise CannotRun(f"which callable of {place}? Nothing stands after the colon")
    if not colon:
        near = difflib.get_close_matches(text, builtins.entries, 3, 0.5)
        hint = f"did you mean {', '.join(near)}?" if near else "give module:attribute, file.py:attribute or a built-in name"
        raise CannotRun(f"there is no built-in implementation {text!r}; {hint}")
    module = _load_file(Path(place)) if place.endswith(".py") else _load_module(place)
    found = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            names = [name for name in vars(found) if not name.startswith("_")]
            near = difflib.get_close_matches(part, names, 3, 0.5)
            raise CannotRun(f"{place} has no attribute {part!r}" + (f"; did you mean {', '.join(near)}?" if near else ""))
        found = getattr(found, part)
    return found


def _load_file(path: Path) -> Any:
    if not path.exists():
        folder = path.parent if path.parent.exists() else Path()
        near = difflib.get_close_matches(path.name, [p.name for p in folder.glob("*.py")], 3, 0.5)
        raise CannotRun(f"there is no file {path}" + (f"; did you mean {', '.join(near)}?" if near else ""))
    name = path.stem
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise CannotRun(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(name, module)
    sys.path.insert(0, str(path.parent.resolve()))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise CannotRun(f"{path} cannot be imported: {type(error).__name__}: {first_line(error)}") from error
    finally:
        sys.path.pop(0)
    return module


def _load_module(name: str) -> Any:
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise CannotRun(f"the module {name} cannot be imported: {type(error).__name__}: {first_line(error)}") from error
