"""From a name to targets: ``package.module:attribute``, ``path/to/file.py:attribute``, or a name or glob of the catalogue."""

from __future__ import annotations

import dataclasses
import fnmatch
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from ..contained.link import Gone, template
from ..contained.load import ANY, NotLoaded, catalogue, load
from ..contained.stub import Stub, contain
from ..core.contract import contracts
from ..core.supports import Supports
from ..core.target import CannotRun, Raised, Target, innermost
from ..core.words import without_variant
from ..frameworks import framework, make_variant, no_device
from .deviations import Deviation, read_deviations
from .probe import make_target


class Builtins:
    """The catalogue of built-in implementations, if there is one beside this package; the checker works without."""

    def __init__(self) -> None:
        self.module: Any = catalogue()
        self.entries: dict[str, Any] = {entry.name: entry for entry in self.module.CATALOGUE} if self.module else {}

    def has(self, name: str) -> bool:
        """Whether a target is a built-in, or a variant of one."""
        return without_variant(name)[0] in self.entries

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


def find_targets(text: str, builtins: Builtins, supports: Supports | Mapping[str, Any] | None = None, device: str = "cpu") -> list[Target]:
    """The targets that a text names; those of a glob that cannot run on the device are left out. A file alone means its attention.

    Raises CannotRun with one sentence: a typo lists near matches, a target that cannot run says why.
    """
    text, variant = without_variant(text)
    if text.endswith(".py") and ":" not in text:
        text += f":{ANY}" + next((kind.name for kind in contracts().values() if kind.fallback), "")
    if not text:
        raise CannotRun("the target is empty")
    if variant:
        return [_varied(target, variant, device, builtins) for target in find_targets(text, builtins, supports, device)]
    names = builtins.matching(text)
    if names:
        able = [name for name in names if builtins.unavailable(name, device) is None]
        if not able:
            raise CannotRun(f"{text} cannot run on {device}: {builtins.unavailable(names[0], device)}")
        return [make_target(name, _loaded(name, builtins, device)[0], supports, device) for name in able]
    function, attribute = _loaded(text, builtins, device)
    place, _, asked = text.rpartition(":")
    return [make_target(f"{place}:{attribute}" if asked.startswith(ANY) else text, function, supports, device)]


Found = TypeVar("Found")
OF_A_GPU = re.compile(rb"^\s*(import|from) triton\b|\bcuda_sources\s*=|\bCUDAExtension\b|__global__", re.MULTILINE)


def on_either(text: str, find: Callable[[str], Found], device: str, placed: bool) -> tuple[Found, str]:
    """What is found on a device, and which it was: where nobody has chosen it, a GPU, if there is one, for what cannot be called on the CPU.

    ``text``: what names it; a file of kernels is for a GPU, and may answer on the CPU what nobody has computed. Raises CannotRun.
    """
    if not placed and device == "cpu" and OF_A_GPU.search(_written(text)) and not no_device("cuda"):
        device = "cuda"
    try:
        return find(device), device
    except CannotRun:
        if placed or device != "cpu" or no_device("cuda"):
            raise
        with suppress(CannotRun):
            return find("cuda"), "cuda"
        raise


NEVER, OWN, ALWAYS = "never", "own", "always"  # which targets are in a process of their own; own: a user's, where that can be done
_contained = NEVER


def users(device: str = "cpu") -> str:
    """A user's targets, where a process of its own can be had: memory is shared on Linux."""
    return OWN if sys.platform == "linux" and device.partition(":")[0] in ("cpu", "cuda") else NEVER


@contextmanager
def containing(which: str = ALWAYS) -> Iterator[None]:
    """Meanwhile such targets as are found are in a process of their own, and this one never imports them."""
    global _contained
    before, _contained = _contained, which
    try:
        yield
    finally:
        _contained = before


def _loaded(text: str, builtins: Builtins, device: str = "cpu") -> tuple[Callable[..., Any], str]:
    """The callable itself, or what stands for it, and the attribute by which it was found. Raises CannotRun."""
    try:
        ours = text in builtins.entries and device == "cpu"  # an error of a kernel may end all work of a process on a GPU
        if _contained == NEVER or (_contained == OWN and ours):
            if _contained != NEVER:
                template(device)  # before this process uses a library whose threads are lost in a fork
            return load(text)
        stub = elsewhere(text, builtins, device)
        if _contained == OWN and not _can_be_asked(stub, device):
            return load(text)
    except NotLoaded as error:
        raise CannotRun(str(error)) from None
    if not stub.callable:
        raise CannotRun(f"{text} is not callable, but of type {stub.type}")
    return stub, stub.attribute


def elsewhere(text: str, builtins: Builtins, device: str = "cpu") -> Stub:
    """What stands for a target in a process of its own, on a device. Raises CannotRun."""
    _prepare(text, builtins)
    try:
        return contain(text, device)
    except NotLoaded as error:
        raise CannotRun(str(error)) from None
    except Gone as gone:
        raise CannotRun(f"{text} cannot be imported: it {gone}") from None


def _can_be_asked(stub: Stub, device: str) -> bool:
    """Whether a target in another process can be asked all that it could be asked here: its arrays can be shared."""
    declared = stub.supports.get("framework") if isinstance(stub.supports, Mapping) else None
    try:
        fw = framework(declared or (*stub.modules, *stub.likely, "numpy")[0])
        return device.partition(":")[0] in vars(type(fw)).get("shares", ())  # a library that builds on another one says so itself
    except (ImportError, ValueError):
        return True  # what is wrong with it is reported from whatever process


def _prepare(text: str, builtins: Builtins) -> None:
    """Import the library that a target will probably need, before the process is forked in which targets are imported."""
    entry = builtins.entries.get(text)
    wanted = "torch" in entry.needs if entry is not None else b"torch" in _written(text)
    if wanted and "torch" not in sys.modules and find_spec("torch"):
        framework("torch")


def _written(text: str) -> bytes:
    """The file of a target, of which nothing is imported; nothing if there is none."""
    return _content(Path(file_of(text)))


def file_of(text: str) -> str:
    """The file in which lies what a text names, as far as can be told without an import; empty if that cannot be told."""
    text, _ = without_variant(text)
    place, colon, _ = (text.partition("(")[0] if text.endswith(")") else text).rpartition(":")
    if text.endswith(".py"):
        return text
    return place if place.endswith(".py") or not colon else _origin(place)


def _origin(module: str) -> str:
    """The file of a module, of which nothing is imported; empty if there is none."""
    path: list[str] | None = [str(Path.cwd()), *sys.path]
    origin = ""
    for end in range(1, module.count(".") + 2):
        spec = PathFinder.find_spec(".".join(module.split(".")[:end]), path) if path else None
        if spec is None:
            return ""
        origin, path = spec.origin or "", list(spec.submodule_search_locations or ())
    return origin


def _content(path: Path) -> bytes:
    """What is in a file; nothing if it cannot be read, or is a pipe, which might not end."""
    with suppress(OSError):
        return path.read_bytes() if path.is_file() else b""
    return b""


def _varied(target: Target, variant: str, device: str, builtins: Builtins) -> Target:
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
        asked = innermost(target.function)
        if isinstance(asked, Stub):
            make_variant(fw, variant, lambda: None)  # a typo is told here
            asked.see_through(variant, stateful)
            function = target.function
        else:
            function = target.kind.seen_through(target, variant)
    except (ValueError, NotLoaded, Gone) as error:
        raise CannotRun(str(error)) from None
    supports = dataclasses.replace(target.supports, framework=fw.name, **(known.narrows if known else {}))
    dtypes = tuple(dtype for dtype in target.dtypes if dtype in (supports.dtypes or target.dtypes)) or target.dtypes
    varied = dataclasses.replace(target, name=f"{target.name}@{variant}", function=function, supports=supports, dtypes=dtypes)
    try:
        wrong = varied.kind.smoke(varied, dtypes[0], device)  # the rest was learned without the variant, which may take long to ask
    except (CannotRun, Raised) as error:
        wrong = str(error)
    if "compiler" in wrong.lower():  # there is none on this machine: nothing is said of the target
        raise CannotRun(wrong if wrong.startswith(varied.name) else f"{varied.name}: {wrong}")
    return varied  # it can be called without the variant: what it raises under it is a finding, not a reason to stop
