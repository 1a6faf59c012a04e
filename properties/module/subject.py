"""What is checked: a way to make a module, how it is called, and what is known of it."""

from __future__ import annotations

import copy
import functools
import inspect
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from types import CellType, FunctionType, MethodType
from typing import Any, cast

import numpy as np

from ..engine.cases import coordinates
from ..engine.cases.coordinates import Array
from ..engine.contained.stub import Stub
from ..engine.core.target import CannotRun
from ..engine.frameworks import Buffers, Framework
from . import weights
from .away import Away, Shop
from .construct import SIZED, Maker, flags_of, make, question, recipes
from .forgetting import begun
from .names import CONSTRUCTOR_ROLES, Sizes, role
from .speech import Speech, Tokens, call, hooks, read


@dataclass(frozen=True)
class Facts:
    """What was found out, or follows from names."""

    causal: str = ""  # why no token may see a later one; empty: they may
    sees_itself: bool = True  # tokens can be their own memory
    takes_memory: bool = False
    both: bool = False  # beside a memory tokens see each other, too, as in a decoder layer
    joined: bool = False  # and share the weights of one softmax with it
    difference: str = ""  # what says that its weights are the difference of two softmaxes (Ye et al. 2024)
    asking: str = ""  # the parameter that may ask: of as many rows as come back for each sequence
    first: bool = False  # the one row of a sequence is what its first token sees
    refused: tuple[str, ...] = ()  # masks of which no form that is known is taken
    reshapes: tuple[str, ...] = ()  # masks by which the output has another form, in every form of them that is taken
    unheeded: str = ""  # the argument of a memory that can be given, and changes nothing
    hides_memory: bool = False  # a memory can be given, and causality hides tokens of it, too: what these are nothing says
    positions: str = ""  # what says that the order of tokens matters; empty: nothing does
    learned: tuple[str, ...] = ()  # parameters that alone tell positions apart: where they are 0, nothing does
    in_logits: bool = False  # weights alone depend on positions, nothing else
    chance: str = ""  # with what it draws random numbers in eval mode, beside dropout
    keeps: bool = False  # a call leaves arrays in it, as a table of angles
    sinks: str = ""  # what says that weights of tokens need not sum to one
    unrecordable: str = ""  # what it raises where gradients are recorded, which it says that it does not implement
    apart: str = ""  # what it raises where a mask and the flag of causality are given together
    asked_masked: bool = False  # it is called with a mask alone: without one it is causal, and what it is compared with is not
    local: bool = False  # some tokens do not see each other, and not because they are later
    window: str = ""  # of these, how many it sees, where that moves with it
    axial: bool = False  # the tokens of an image see those of their line, and those of their column, in attentions of their own
    grouped: bool = False  # tokens see those of their own group alone, as in windows that do not overlap
    sparse: str = ""  # why a token may not be seen at all, by no mistake
    lengths: tuple[int, ...] = ()  # the only ones that are taken; (): any up to the longest
    most: int | None = None  # sequences that are worth a call, where ``get_inputs`` alone says what one is (``by_inputs.py``)
    longest: int = 65
    shortest: int = 1  # that is taken of one sequence alone
    by_type: str = ""  # by how much it is another function in a narrower type
    dropout: bool = False
    statistics: str = ""  # what takes statistics of the batch in train mode
    pooling: str = ""  # what takes statistics of all tokens of an image, so that its rows meet
    routed: str = ""  # with what it finds out which tokens go where, if it does, as a mixture of experts
    ungrouped: bool = False  # it can be called only with as many heads of keys as of queries
    whole: bool = False  # keys of all tokens, though its constructor can make them fewer
    usual: bool = False  # it can be called only with what its constructor has as defaults
    weighed: str = ""  # what gives each feature of a head a weight of its own after it is turned, so that distances alone do not tell
    varied: tuple[str, ...] = ()  # sizes of the constructor that can be others
    given: tuple[int, int] | None = None  # sequences, and tokens of each, that ``get_inputs`` of the reference gives (KernelBench)
    larger: tuple[int, int] | None = (
        None  # the same of inputs that are larger than those of other cases: of ``get_inputs``, or another number of tokens
    )
    own: bool = False  # those are of ``get_inputs``
    inputs: Callable[[], Any] | None = None  # beside a reference: its ``get_inputs``


@dataclass(frozen=True, eq=False)
class Subject:
    """A module of attention under test. It is called through ``module`` and ``speech``, not by itself."""

    name: str
    maker: Maker
    framework: Framework
    speech: Speech = field(default_factory=Speech)
    facts: Facts = field(default_factory=Facts)
    through: Callable[[Any], Any] = lambda module: module  # a variant
    fixed: bool = True  # whether its sizes are what somebody gave
    structure: Any = None  # its projections, where they are recognised and confirmed
    placed: Speech | None = None  # how it is called with positions that may be left out
    structure_placed: Any = None  # what it is then
    silent: tuple[str, ...] = ()  # its parameters that are 0 in every module of it
    likely: tuple[Any, ...] = ()  # where they are not: what names allow
    nearest: str = ""  # and what comes nearest, for the report
    unrecorded: str = ""  # the variant, or the decorator of its forward, through which no gradient reaches its parameters
    away: bool = False  # whether it is made in another process
    elsewhere: bool = False  # whether it lies in another process, where its rounding cannot be followed
    take: Callable[[Any, Any], None] | None = None  # gives its module the weights of the one that it is compared with
    headed: bool = False  # whether linear layers of known names project for heads of one width
    untold: str = ""  # why its cache is not understood
    guesses: Mapping[str, str] = field(default_factory=dict)  # arguments of its constructor of which little is known, and what they were

    unused: frozenset[str] = frozenset()  # parameters of which it is documented that nothing is done with them
    said_causal: bool = False  # its documentation says that it is
    said_open: bool = False  # its documentation says that it is not causal
    said_one_more: str = ""  # the words of its documentation for a softmax with one more in its denominator
    said_shifted: str = ""  # the words of its documentation for a shift of tokens
    said_narrow: bool = False  # its documentation says that it computes in a narrower type, and it does
    flags: Mapping[str, str] = field(default_factory=dict)  # arguments of its constructor → what else they may be, as it is written

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        raise TypeError(f"{self.name} is a module: it is made anew for every case")

    def module(
        self,
        dtype: str,
        device: str,
        seed: int,
        gain: float = 1.0,
        sizes: Sizes = Sizes(),  # noqa: B008
        luck: int = 0,
        how: str = weights.NORMAL,
    ) -> Any:
        """The module in eval mode, without dropout, with weights that follow from the seed. Raises CannotRun.

        ``luck``: what random numbers its constructor draws, for all that is no parameter; ``how``: what weights look like.
        """
        fw = self.framework
        sizes = replace(sizes, ungrouped=self.facts.ungrouped, whole=self.facts.whole, usual=self.facts.usual)
        with fw.chance(luck):
            made = self.maker(sizes) if self.away else make(self.name, self.maker, sizes, fw)
        if not self.away:
            begun(made)
        set_dropout(made, sizes.dropout)
        made.eval()  # one of its own may return nothing
        made = as_type(made, fw, "float64")
        weights.draw(made, seed, gain, fw, how)
        weights.silence(made, self.silent, fw)
        return made if (dtype, device) == ("float64", "cpu") else as_type(made, fw, dtype, device)

    @property
    def quiet(self) -> Subject:
        """The same with those parameters at 0 without which its structure is confirmed."""
        return replace(self, silent=self.structure.silent) if self.structure else self

    def fits(self, sizes: Sizes) -> Speech:
        """How it is called with other sizes."""
        width = sizes.heads * sizes.head_dim if self.facts.varied else self.speech.width
        heads = sizes.heads if self.facts.varied else self.speech.heads
        head_dim = sizes.head_dim if self.facts.varied else self.speech.head_dim
        memory = width if self.speech.memory_width == self.speech.width else self.speech.memory_width
        return _but(self.speech, width=width, memory_width=memory, heads=heads, head_dim=head_dim)


def as_type(module: Any, fw: Framework, dtype: str, device: str = "cpu") -> Any:
    """The module in a type, wherever it is."""
    kind = fw.named_dtype(dtype)
    return module.to(kind, device) if isinstance(module, Away) else hooks(fw).cast(module, kind, device)


def _but(speech: Speech, **changes: Any) -> Speech:
    return copy.copy(speech) if not changes else type(speech)(**{**vars(speech), **changes})


def dropouts(module: Any) -> list[tuple[Any, str]]:
    """(a module within, the attribute) of every probability of dropout."""
    found = []
    for inner in module.modules():
        if type(inner).__name__.startswith(("Dropout", "DropPath", "AlphaDropout", "StochasticDepth")) and isinstance(
            getattr(inner, "p", None), int | float
        ):
            found.append((inner, "p"))
        found += [
            (inner, n) for n, v in vars(inner).items() if isinstance(v, float) and n != "p" and role(n, CONSTRUCTOR_ROLES) == "dropout"
        ]
    return found


def set_dropout(module: Any, probability: float) -> None:
    """Give every dropout within a module this probability."""
    for inner, name in dropouts(module):
        setattr(inner, name, float(probability))


def adopted(module: Any, fw: Framework) -> Any:
    """A module without weights, in eval mode, which is called as a function."""
    module.eval()  # one of its own may return nothing
    return hooks(fw).adopted(module, _train)


def _train(module: Any) -> Callable[[], None]:
    """Put it into train mode without dropout; what puts it back."""
    before = [(inner, name, getattr(inner, name)) for inner, name in dropouts(module)]
    module.train()
    set_dropout(module, 0.0)

    def back() -> None:
        module.eval()
        for inner, name, probability in before:
            setattr(inner, name, probability)

    return back


HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")  # on the way of a parameter's gradient, which PyTorch does not copy


def duplicate(module: Any) -> Any:
    """A deep copy; attributes that cannot be copied, as a function in a ``staticmethod``, are shared with it. Raises what copying raises.

    Functions that it holds, as a lambda made by ``__init__``, are about the copy where they were about the module.
    """
    copies: dict[int, Any] = {}
    try:
        made = copy.deepcopy(module, copies)
    except Exception:
        if isinstance(module, Away):
            raise
        held = [value for inner in module.modules() for name, value in vars(inner).items() if not name.startswith("_")]
        copies = {id(value): value for value in held if not _copies(value)}
        made = copy.deepcopy(module, copies)
    for inner in [] if isinstance(made, Away) else made.modules():
        for name, value in list(vars(inner).items()):
            if isinstance(value, FunctionType) and value.__closure__:
                vars(inner)[name] = _about_copies(value, copies)
    for old, new in [] if isinstance(made, Away) else zip(module.parameters(), made.parameters(), strict=True):
        for name in HOOKS:
            if hooks := getattr(old, name, None):
                setattr(new, name, type(hooks)((key, _about_copies(hook, copies)) for key, hook in hooks.items()))
    return made


def _about_copies(value: Any, copies: dict[int, Any]) -> Any:
    """What stands for a value of a closure: a copy of it, if there is one; a function or method that is about copies."""
    if id(value) in copies:
        return copies[id(value)]
    if isinstance(value, MethodType) and id(value.__self__) in copies:
        return MethodType(value.__func__, copies[id(value.__self__)])
    if not isinstance(value, FunctionType) or not value.__closure__:
        return value
    cells = tuple(CellType() for _ in value.__closure__)
    made = FunctionType(value.__code__, value.__globals__, value.__name__, value.__defaults__, cells)
    copies[id(value)] = made  # it may be in its own closure
    for cell, own in zip(value.__closure__, cells, strict=True):
        with suppress(ValueError):  # one that is empty stays so
            own.cell_contents = _about_copies(cell.cell_contents, copies)
    made.__kwdefaults__ = value.__kwdefaults__
    vars(made).update({name: _about_copies(held, copies) for name, held in vars(value).items()})
    return made


NO_CALL = ("__init__", "__repr__", "extra_repr")


def _copies(value: Any) -> bool:
    try:
        copy.deepcopy(value)
    except Exception:
        return False
    return True


def with_heads(module: Any) -> Callable[..., Any]:
    """A module without weights; where its ``forward`` asks it how many heads there are, a function that takes their number, too."""
    counts = {name: value for name, value in vars(module).items() if type(value) is int}
    heads = [name for name in counts if role(name, CONSTRUCTOR_ROLES) == "heads"]
    try:
        written = inspect.getsource(type(module).forward)
        formal = inspect.signature(module.forward)
    except (OSError, TypeError, ValueError):
        return cast(Callable[..., Any], module)
    if len(counts) != 1 or not heads or f"self.{heads[0]}" not in written or heads[0] in formal.parameters:
        return cast(Callable[..., Any], module)
    (name,) = heads

    def attention(*arguments: Any, **options: Any) -> Any:
        setattr(module, name, int(options.pop(name, counts[name])))
        return module(*arguments, **options)

    return _as_function(attention, type(module), name, counts[name])


def _as_function(attention: Callable[..., Any], cls: Any, heads: str, default: int) -> Callable[..., Any]:
    """With the parameters of the ``forward`` of a class, and the number of heads."""
    functools.update_wrapper(attention, cls.forward)
    formal = inspect.signature(cls.forward)
    number = inspect.Parameter(heads, inspect.Parameter.KEYWORD_ONLY, default=default)
    before = [p for p in list(formal.parameters.values())[1:] if p.kind is not inspect.Parameter.VAR_KEYWORD]
    attention.__signature__ = formal.replace(parameters=[*before, number])  # type: ignore[attr-defined]
    return attention


def _splits_heads(cls: Any) -> bool:
    """Whether a method beside the constructor reads how many heads there are, so that tokens have all of them side by side."""
    methods = [method for name, method in vars(cls).items() if inspect.isfunction(method) and name not in NO_CALL]
    try:
        read = {name for method in methods for name in re.findall(r"self\.(\w+)", inspect.getsource(method))}
    except (OSError, TypeError):
        return False
    return any(role(name, CONSTRUCTOR_ROLES) == "heads" for name in read)


def _of_any_width(name: str, cls: Any, given: Mapping[str, Any], maker: Maker, fw: Framework) -> Callable[..., Any] | None:
    """Modules without weights, one for each width and number of heads, as a function; None where a constructor is told only one of the two."""
    told = {role(argument, CONSTRUCTOR_ROLES): argument for argument in inspect.signature(cls).parameters if argument not in given}
    if not {"width", "heads"} <= set(told) or not _splits_heads(cls):
        return None
    number, plain = told["heads"], Sizes()
    made: dict[Sizes, Any] = {}

    def attention(*arguments: Any, **options: Any) -> Any:
        heads = int(options.pop(number, plain.heads))
        tokens = next((each for each in (*arguments, *options.values()) if hasattr(each, "shape")), None)
        width = 0 if tokens is None or not tokens.shape else int(tokens.shape[-1])
        sizes = Sizes(heads=heads, head_dim=width // heads) if heads and width and width % heads == 0 else plain
        if sizes not in made:
            with fw.chance(0):
                made[sizes] = adopted(make(name, maker, sizes, fw), fw)
        return made[sizes](*arguments, **options)

    return _as_function(attention, cls, number, plain.heads)


def of_instance(prototype: Any) -> Maker:
    """Copies of a module that somebody has made."""

    def copied(_: Sizes) -> Any:
        try:
            return duplicate(prototype)
        except Exception as error:
            raise CannotRun(f"{type(prototype).__name__} cannot be copied: {type(error).__name__}: {error}") from None

    return copied


def tokens_for(speech: Speech, batch: int, length: int, memory: int | None, seed: int = 0) -> Tokens:
    """Normal numbers for a call."""
    x = coordinates.normal(seed, "x", (batch, length, speech.width))
    other = None if memory is None else coordinates.normal(seed, "memory", (batch, memory, speech.memory_width))
    return Tokens(x, other)


def answer(
    subject: Subject, module: Any, tokens: Tokens, speech: Speech | None = None, dtype: str = "float64", device: str = "cpu", luck: int = 0
) -> Array:
    """The output (B, L, D') of one call without gradients; ``luck``: what random numbers it draws. Whatever is raised passes."""
    fw, speech = subject.framework, speech or subject.speech
    with np.errstate(all="ignore"), fw.settings_kept(), hooks(fw).still(), fw.chance(luck):
        return read(call(module, speech, tokens, fw, Buffers(fw), dtype, device), speech, fw)


def subject_of(name: str, thing: Any, fw: Framework) -> Subject | Callable[..., Any] | None:
    """A module that can be made, or copied; one without weights is a function: itself in eval mode. None for what is no module.

    Raises CannotRun.
    """
    assert fw.modules is not None
    if isinstance(thing, Subject):
        return thing
    if isinstance(thing, Stub):
        shop = Shop(name, thing, fw)
        begun = shop.begin()
        if begun is None:
            return None
        if begun.get("weightless"):
            return thing.as_made()
        guesses = {str(argument): str(value) for argument, value in begun.get("guesses", {}).items()}
        flags = {str(flag): str(other) for flag, other in begun.get("flags", {}).items()}
        return Subject(name, shop.make, fw, fixed=bool(begun.get("fixed")), away=True, guesses=guesses, flags=flags)
    given: Mapping[str, Any] = {}
    if isinstance(thing, functools.partial) and fw.modules.is_class(thing.func):
        formal = inspect.signature(thing.func).parameters
        given = dict(zip(formal, thing.args, strict=False)) | thing.keywords
        thing = thing.func
    if fw.modules.is_class(thing):
        return _from_class(name, thing, given, fw)
    if not fw.modules.is_module(thing):
        return None
    if closed := fw.modules.closed(thing):
        raise CannotRun(f"{name} {closed}")
    weightless = not any(True for _ in thing.parameters())
    return with_heads(adopted(duplicate(thing), fw)) if weightless else Subject(name, of_instance(thing), fw)


def _from_class(name: str, cls: Any, given: Mapping[str, Any], fw: Framework) -> Subject | Callable[..., Any]:
    """Of the ways to fill its constructor the first that makes a module, or that, without weights. Raises CannotRun with what the first said."""
    said: list[CannotRun] = []
    for maker in recipes(cls, given):
        try:
            with fw.chance(0):
                made = make(name, maker, Sizes(), fw)
        except CannotRun as error:
            said.append(error if not maker.guesses else CannotRun(f"{question(cls, next(iter(maker.guesses)), given)}; {error}"))
            continue
        if not any(True for _ in made.parameters()):
            return _of_any_width(name, cls, given, maker, fw) or with_heads(adopted(made, fw))
        fixed = any(role(argument, CONSTRUCTOR_ROLES) in SIZED for argument in given)
        return Subject(name, maker, fw, fixed=fixed, guesses=maker.guesses, flags={} if given else flags_of(cls))
    raise said[0]
