"""A module from its class: the constructor is filled from known names, annotations and defaults, with small sizes.

    recipe(cls, given) → a function of Sizes that makes the module

What cannot be filled is asked for in one sentence with an example. A constructor that reaches for the network is stopped.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import sys
import textwrap
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from itertools import product
from types import UnionType
from typing import Any

from ..engine.contained.watch import in_time
from ..engine.core.target import CannotRun, first_line
from ..engine.frameworks import Framework
from .names import CONFIGS, CONSTRUCTOR_ROLES, FEWER_KEYS, Sizes, role
from .readings import settle
from .speech import hooks

Maker = Callable[[Sizes], Any]
# Roles of which a default is made small.
SIZED = (
    "width",
    "heads",
    "kv_heads",
    "head_dim",
    "hidden",
    "length",
    "dropout",
    "layers",
    "rows",
    "landmarks",
    "resolution",
    "turned",
    "rank",
)
CONFIGURATIONS = 4  # classes of configurations that are tried, the made-up one among them
WINDOW, HALF = 4, 2  # tokens of a side of a window, and half of them
SQUARE = ("window", "resolution")  # roles of one number, or of two
# What is said of an argument that stands in no table, by the first or the last word of its name.
FLAGS = {"is", "use", "has", "with", "enable", "apply"}
UNSEEN = {
    "inplace",
    "freeze",
    "frozen",
    "trainable",
    "verbose",
    "debug",
    "checkpoint",
    "checkpointing",
    "compile",
    "jit",
    "profile",
}  # flags
NUMBERS = {"num", "n", "max", "nb"}
PLACES = {"idx", "id", "index"}
LENGTHS = {"size", "len", "length"}
COUNTS = {"levels", "slots", "queries", "points", "groups", "blocks", "heads", "buckets", "dims"}
WIDTHS = {"dim", "channels", "chs", "ch", "chans", "width", "features"}
RATIOS = {"ratio", "stride", "rate", "factor"}
FEW = 2
SOME = 8  # of what nothing is known: a number of features, or of whatever there are several
LISTS = (list[int], typing.List[int])  # noqa: UP006  as many people still write it
PROCESSORS = ("processor", "attn_processor")
REACHING = ("socket.connect", "socket.getaddrinfo", "urllib.Request")

# ---------------------------------------------------------------- no network

_REACHED: ContextVar[list[str] | None] = ContextVar("reached", default=None)
_HOOKED: list[bool] = []


class Reaches(BaseException):
    """A constructor asked for the network; no Exception, after which libraries try again for minutes."""


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if event in REACHING and (reached := _REACHED.get()) is not None:
        reached.append(str(arguments[0] if event != "socket.connect" else arguments[1]))
        raise Reaches(f"no network here: {event}")


@contextmanager
def offline() -> Iterator[list[str]]:
    """While it is open, this thread reaches no network; what it asked for is in the list."""
    if not _HOOKED:  # a hook cannot be taken away; outside of this it does nothing
        sys.addaudithook(_audit)
        _HOOKED.append(True)
    reached: list[str] = []
    token = _REACHED.set(reached)
    try:
        yield reached
    finally:
        _REACHED.reset(token)


# ---------------------------------------------------------------- filling


class Unknown(Exception):
    """An argument that nothing here fills."""


class Asked(dict[str, Any]):
    """Stands for a configuration of which nothing is known: answers to known names, as attributes and as items."""

    def __init__(self, sizes: Sizes, asked: dict[str, bool]) -> None:
        super().__init__()
        self.__dict__["_sizes"], self.__dict__["_asked"] = sizes, asked

    def __missing__(self, name: str) -> Any:
        meant = role(name, CONSTRUCTOR_ROLES)
        self._asked[name] = bool(meant)
        if not meant:
            raise KeyError(name)
        return self._sizes.value(meant)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name == "_attn_implementation":  # Hugging Face's: as where nobody has chosen
            return "eager"
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"a configuration that is made up here has no {name!r}") from None

    def get(self, name: str, default: Any = None) -> Any:
        return self[name] if role(name, CONSTRUCTOR_ROLES) else default

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and bool(role(name, CONSTRUCTOR_ROLES))


@dataclasses.dataclass(frozen=True)
class Guess:
    """An argument of which its type, or a part of its name, is all that is known, if anything is."""

    value: object
    blind: bool = False  # neither is known

    def __call__(self, sizes: Sizes) -> object:
        return self.value


@dataclasses.dataclass(frozen=True)
class Fewer(Guess):
    """How many times fewer keys there are than tokens along a side: not at all by default, which leaves a part of a module out."""

    def __call__(self, sizes: Sizes) -> object:
        return 1 if sizes.whole else self.value


@dataclasses.dataclass(frozen=True)
class Recipe:
    """A class and what makes each argument of it."""

    cls: Callable[..., Any]
    arguments: Mapping[str, Maker]

    def __call__(self, sizes: Sizes) -> Any:
        return self.cls(**{name: maker(sizes) for name, maker in self.arguments.items()})

    @property
    def guesses(self) -> dict[str, str]:
        """The arguments that were guessed, as they are written; first those of which nothing is known."""
        made = {name: maker for name, maker in self.arguments.items() if isinstance(maker, Guess)}
        return {name: repr(made[name].value) for name in sorted(made, key=lambda name: not made[name].blind)}


def recipes(cls: Callable[..., Any], given: Mapping[str, Any]) -> Iterator[Recipe]:
    """Ways to make an object of a class, the smallest sizes first; at last with sizes for what is None by default.

    Raises CannotRun with one sentence if an argument has no known name.
    """
    for (small, nothing), choice in product(((True, True), (False, True), (True, False)), range(CONFIGURATIONS)):
        arguments: dict[str, Maker] = {}
        configured = False
        for parameter in _parameters(cls) if nothing else map(partial(_asked_for, cls), _parameters(cls)):
            maker: Maker | None
            try:
                makers = list(_configs(cls, parameter)) if parameter.name not in given and _is_config(parameter.name) else []
                if parameter.default is None:
                    makers = makers[:-1]  # none is made up where none is needed
                hint = annotation(cls, parameter)
                meant = role(parameter.name, CONSTRUCTOR_ROLES)
                meant = "resolution" if meant not in SQUARE and _of_sides(hint) else meant
                if parameter.name not in given and parameter.default is parameter.empty and meant in SQUARE:
                    two = typing.get_origin(hint) in (tuple, list) or hint is tuple
                    makers = [] if hint in LISTS else [partial(Sizes.value, role=meant)] * (not two) + [partial(_square, meant)]
                if makers and parameter.default in (None, parameter.empty):
                    configured, maker = True, makers[min(choice, len(makers) - 1)]
                else:
                    maker = _argument(cls, parameter, given, small)
            except Unknown:
                raise CannotRun(question(cls, parameter.name, given)) from None
            if maker:
                arguments[parameter.name] = maker
        arguments |= _of_two_windows(cls, given, arguments)
        if configured or not choice:
            yield Recipe(cls, arguments)


def _of_two_windows(cls: Callable[..., Any], given: Mapping[str, Any], arguments: Mapping[str, Maker]) -> dict[str, Maker]:
    """The sides of an image that is made small, where there are windows: two of them, since one leaves nothing to be shifted."""
    roles = {p.name: role(p.name, CONSTRUCTOR_ROLES) for p in _parameters(cls)}
    made = [name for name, meant in roles.items() if meant == "resolution" and name in arguments and name not in given]
    windows = [p for p in _parameters(cls) if roles[p.name] == "window"]
    if not windows or not made:
        return {}
    said = [given[p.name] for p in windows if p.name in given]
    said += [p.default for p in windows if type(p.default) is int and 0 < p.default <= WINDOW]
    side = next((max(size) if isinstance(size, tuple | list) else size for size in said), WINDOW)

    def two(sizes: Sizes, maker: Maker) -> Any:
        small = maker(sizes)
        return 2 * side if isinstance(small, int) else (2 * side,) * 2 if isinstance(small, tuple) else small

    return {name: partial(two, maker=arguments[name]) for name in made}


def _asked_for(cls: Callable[..., Any], parameter: inspect.Parameter) -> inspect.Parameter:
    """The same without its default, where that is None and its name, or its type, is one of sizes."""
    hint = annotation(cls, parameter)
    if isinstance(hint, UnionType) or typing.get_origin(hint) is typing.Union:
        hint = next((one for one in typing.get_args(hint) if one is not type(None)), None)
    sized = role(parameter.name, CONSTRUCTOR_ROLES) in SIZED or _guess(parameter.name, None) or _of_sides(hint)
    if parameter.default is not None or not sized:
        return parameter
    return parameter.replace(default=parameter.empty, annotation=hint or parameter.annotation)


def _of_sides(hint: Any) -> bool:
    """Whether a type is that of two whole numbers: the sides of something."""
    return typing.get_origin(hint) is tuple and typing.get_args(hint) == (int, int)


def _square(meant: str, sizes: Sizes) -> Any:
    """Of an image: its height and its width."""
    return (sizes.value(meant),) * 2


def _parameters(cls: Callable[..., Any]) -> list[inspect.Parameter]:
    """Those of the constructor, by name; what a class passes on to its base is found there."""
    try:
        formal = list(inspect.signature(cls).parameters.values())
    except (TypeError, ValueError):
        return []
    named = [p for p in formal if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    named += [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in _looked_up(cls, formal)]
    if inspect.isclass(cls) and "__init__" in vars(cls) and any(p.kind is p.VAR_KEYWORD for p in formal):
        base = next(
            (c for c in cls.__mro__[1:-1] if "__init__" in vars(c) and not c.__module__.startswith("torch.nn.modules.module")), None
        )
        named += [p for p in (_parameters(base) if base else []) if p.name not in {known.name for known in named}]
    return named


def _looked_up(cls: Callable[..., Any], formal: Sequence[inspect.Parameter]) -> list[str]:
    """Names that a constructor looks up in its ``**kwargs``, which must hold them."""
    others = [p.name for p in formal if p.kind is p.VAR_KEYWORD]
    try:
        written = inspect.getsource(getattr(cls, "__init__", cls)) if others else ""
    except (OSError, TypeError):
        return []
    return list(dict.fromkeys(re.findall(rf"""\b{others[0]}\[["'](\w+)["']\](?!\s*=[^=])""", written))) if others else []


def flags_of(cls: Callable[..., Any]) -> dict[str, str]:
    """Arguments of a constructor that serve something other than training and tracing → what they are not by default, as it is written.

    What is true or false is the other; windows that are not shifted are shifted by half of one.
    """
    flags = {p.name: str(not p.default) for p in _parameters(cls) if isinstance(p.default, bool)}
    shifts = {p.name: str(HALF) for p in _parameters(cls) if "shift" in p.name.split("_") and type(p.default) is int and p.default == 0}
    return {name: other for name, other in (flags | shifts).items() if not UNSEEN & set(name.lower().split("_"))}


def _argument(cls: Callable[..., Any], parameter: inspect.Parameter, given: Mapping[str, Any], small: bool) -> Maker | None:
    """How one argument is made; None: its default will do. Raises Unknown."""
    name, default = parameter.name, parameter.default
    if name in given:
        value = given[name]
        return lambda _: value
    required = default is parameter.empty
    meant = "width" if _beside_queries(cls, name) else role(name, CONSTRUCTOR_ROLES)
    if meant == "layer" and default is None:  # a layer that does not know its place takes no cache
        return lambda sizes: sizes.value("layer")
    if default in (None, parameter.empty) and name in PROCESSORS and (found := _processor(cls)):
        return lambda _: found()
    if not required and small and meant in SQUARE and isinstance(default, tuple) and len(default) == 2:
        return partial(_square, meant)
    if not required and small and name in FEWER_KEYS and default == 1:
        return Fewer(2)
    wide = meant == "window" and type(default) is int and default > WINDOW
    if not required and (not small or not (wide or meant in SIZED) or not isinstance(default, int | float) or isinstance(default, bool)):
        return None
    hint = annotation(cls, parameter)
    if required and hint in LISTS:
        return _guess(name, hint)
    if meant and not (required and hint is not None and _is_class(hint) and hint not in (int, float, bool)):
        value_of = meant
        return lambda sizes: sizes.value(value_of) if required or not sizes.usual else default
    if dataclasses.is_dataclass(hint) or (_is_class(hint) and str(hint.__name__).lower().endswith(("config", "args", "params"))):
        return _configuration(hint)
    if type(None) in typing.get_args(hint):
        return lambda _: None
    if guess := _guess(name, hint) or _word(cls, name, hint):
        return guess
    if hint is None and inspect.isclass(cls):
        return Guess(SOME, blind=True)
    raise Unknown(name)


def _beside_queries(cls: Callable[..., Any], name: str) -> bool:
    """Whether that of keys or values is a number of features of tokens, not of a head: where that of queries is the only one (Lee et al. 2019)."""
    if name.lower() not in ("dim_k", "dim_v"):
        return False
    widths = {p.name.lower() for p in _parameters(cls) if role(p.name, CONSTRUCTOR_ROLES) == "width"}
    return widths == {"dim_q"}


def _processor(cls: Callable[..., Any]) -> Callable[[], Any] | None:
    """What does the computing in a class of diffusers: the one that it names, or the only one beside it."""
    beside = vars(sys.modules.get(getattr(cls, "__module__", ""), typing))
    found = [x for name, x in beside.items() if inspect.isclass(x) and name.endswith("Processor") and x.__module__ == cls.__module__]
    named = getattr(cls, "_default_processor_cls", None)
    return named or (found[0] if len(found) == 1 else None)


def _guess(name: str, hint: Any) -> Guess | None:
    """From its type, or from a part of its name; None where neither says anything. A type goes before a name, but for sizes."""
    words = name.lower().strip("_").split("_")
    if {"drop", "dropout", "dropped"} & set(words):
        return Guess(0.0)
    if hint is bool or (hint is None and (words[0] in FLAGS or words[-1].endswith("ed"))):
        return Guess(False)
    if hint is int or (hint is None and (words[0] in NUMBERS or words[-1] in PLACES | LENGTHS | COUNTS | WIDTHS | RATIOS)):
        known = {0: PLACES, 1: RATIOS, Sizes().value("width"): WIDTHS, Sizes().value("window"): LENGTHS}
        return Guess(next((value for value, named in known.items() if words[-1] in named), FEW))
    if hint in LISTS:  # of the sides of an image, a window, a kernel
        return Guess([0, 0] if {"shift", "offset"} & set(words) else [1, 1] if words[0] in ("kernel", "stride", "dilation") else [4, 4])
    return Guess(1.0) if hint is float else None


def _word(cls: Callable[..., Any], name: str, hint: Any) -> Guess | None:
    """One of some values: the first that its type names, or with which the constructor compares it, or under which it looks it up."""
    if typing.get_origin(hint) is typing.Literal:
        return Guess(typing.get_args(hint)[0])
    if hint not in (None, str) or not inspect.isclass(cls):
        return None
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(cls.__init__)))
    except (OSError, TypeError, SyntaxError):
        return None
    for node in ast.walk(tree):
        found: Any = None
        if isinstance(node, ast.Compare) and _names(node.left) == name and isinstance(node.ops[0], ast.Eq | ast.In | ast.NotIn):
            found = node.comparators[0]
        elif isinstance(node, ast.Subscript) and _names(node.slice) == name and isinstance(node.value, ast.Dict):
            found = next(iter(node.value.keys), None)
        elif isinstance(node, ast.Match) and _names(node.subject) == name:
            found = next((case.pattern.value for case in node.cases if isinstance(case.pattern, ast.MatchValue)), None)
        first = next(iter(found.elts), None) if isinstance(found, ast.Tuple | ast.List | ast.Set) else found
        if isinstance(first, ast.Constant) and isinstance(first.value, str):
            return Guess(first.value)
    return None


def _names(node: ast.expr) -> str:
    """The name of a variable, or of an attribute."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def annotation(owner: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    """What a parameter is annotated with; None if with nothing, with what says nothing, or with what cannot be resolved."""
    hint = parameter.annotation
    if hint in (parameter.empty, Any, "Any"):
        return None
    if isinstance(hint, str):
        try:  # what the file itself says
            return eval(hint, dict(vars(sys.modules.get(owner.__module__, typing))), dict(vars(typing)))
        except Exception:  # a name that is imported for type checkers alone
            return None
    return hint


def _is_class(hint: Any) -> bool:
    return inspect.isclass(hint) and not isinstance(hint, UnionType)


def _is_config(name: str) -> bool:
    return name.lower() in CONFIGS or name.lower().endswith(("config", "_cfg"))


def _configs(cls: Callable[..., Any], parameter: inspect.Parameter) -> Iterator[Maker]:
    """Configurations: of the class that is annotated, or of one beside it whose name fits; at last one made up from what is asked of it."""
    hint = annotation(cls, parameter)
    hints = typing.get_args(hint) or (hint,)  # Config | None, VisionConfig | TextConfig
    candidates = [each for each in hints if _is_class(each) and each not in (dict, object, type(None))]
    if not candidates and hint is None:
        beside = vars(sys.modules.get(getattr(cls, "__module__", ""), typing))
        named = [x for name, x in beside.items() if inspect.isclass(x) and name.lower().endswith(("config", "args", "params", "cfg"))]
        candidates = sorted(named, key=lambda x: -_common(x.__name__, getattr(cls, "__name__", "")))
    parts = [part for each in candidates for part in getattr(each, "sub_configs", {}).values() if _is_class(part)]  # of text, of images
    for candidate in [*candidates, *parts][: CONFIGURATIONS - 1]:
        for way in (_configuration, _overwritten):
            try:
                maker = way(candidate)
                maker(Sizes())
            except Exception:
                continue
            yield maker
            break
    yield lambda sizes: Asked(sizes, {})


def _configuration(cls: Any) -> Maker:
    """An object of a class of configurations, with small sizes under the names that it knows."""
    parameters = _parameters(cls)
    open_ended = any(p.kind is p.VAR_KEYWORD for p in inspect.signature(cls).parameters.values())
    names = [p.name for p in parameters] or [name for name in vars(cls) if role(name, CONSTRUCTOR_ROLES)]
    if parameters or open_ended:
        arguments: dict[str, Maker] = {}
        for parameter in parameters:
            maker = _argument(cls, parameter, {}, True)
            if maker:
                arguments[parameter.name] = maker
        return lambda sizes: _in_steps(Recipe(cls, arguments)(sizes))

    def filled(sizes: Sizes) -> Any:  # a class whose attributes are the configuration
        made = cls()
        for name in names:
            if role(name, CONSTRUCTOR_ROLES) in SIZED and isinstance(getattr(made, name), int | float):
                setattr(made, name, sizes.value(role(name, CONSTRUCTOR_ROLES)))
        return made

    return filled


def _overwritten(cls: Any) -> Maker:
    """One of its own sizes, made small afterwards: what checks that its numbers fit each other is not asked again."""
    small = {p.name: meant for p in _parameters(cls) if (meant := role(p.name, CONSTRUCTOR_ROLES)) in SIZED and meant != "layers"}

    def made(sizes: Sizes) -> Any:
        config = cls()
        for name, meant in small.items():
            if type(getattr(config, name, None)) in (int, float):
                setattr(config, name, sizes.value(meant))
        return _in_steps(config)

    return made


def _in_steps(config: Any) -> Any:
    """With an implementation of attention where none is chosen: in steps, which Hugging Face's modules fall back to with a warning, or not at all."""
    if getattr(config, "_attn_implementation", "") is None:
        config._attn_implementation = "eager"
    return config


def _common(a: str, b: str) -> int:
    count = 0
    for x, y in zip(a.lower(), b.lower(), strict=False):
        if x != y:
            break
        count += 1
    return count


def question(cls: Callable[..., Any], name: str, given: Mapping[str, Any]) -> str:
    """One sentence that asks for what cannot be filled, with an example."""
    called = getattr(cls, "__name__", "Class")
    known = [p.name for p in _parameters(cls) if p.default is p.empty and role(p.name, CONSTRUCTOR_ROLES) and p.name not in given]
    shown = ", ".join([*(f"{n}={v!r}" for n, v in given.items()), f"{name}=…", *(f"{n}={Sizes().value(_role(n))}" for n in known)])
    return f"{called} cannot be made: what is {name!r}? Give it, for example '{called}({shown})'"


def _role(name: str) -> str:
    return role(name, CONSTRUCTOR_ROLES)


def make(name: str, maker: Maker, sizes: Sizes, fw: Framework) -> Any:
    """The module. Raises CannotRun with one sentence: what it lacks, that it needs a GPU, that it downloads."""
    with offline() as reached:
        try:
            with in_time(slow=True), hooks(fw).making():
                made = maker(sizes)
                if hooks(fw).unmade(made):
                    settle(made, fw)
        except CannotRun:
            raise
        except (Exception, SystemExit, Reaches) as error:
            if reached:
                raise CannotRun(
                    f"{name} cannot be made: its constructor reaches for the network ({reached[0]}); give an instance"
                ) from None
            raise CannotRun(f"{name} cannot be made: {_said(error)}") from None
    if reached:
        raise CannotRun(f"{name} cannot be made: its constructor reaches for the network ({reached[0]}); give an instance")
    if hooks(fw).unmade(made):
        raise CannotRun(f"{name} cannot be made: its parameters get their shapes in a first call, and none is understood; give an instance")
    return made


def _said(error: BaseException) -> str:
    return needs_gpu(error) or f"the constructor raised {type(error).__name__}: {first_line(error)}"


def needs_gpu(error: BaseException) -> str:
    """What an error says of a GPU that is not here; empty if it says nothing of one."""
    words = str(error).lower()
    missing = ("cuda" in words or "nvidia" in words) and ("not compiled" in words or "no nvidia" in words or "driver" in words)
    return f"it needs a GPU ({type(error).__name__}: {first_line(error)})" if missing or "no cuda gpus" in words else ""
