"""How ``forward`` of a module is called: which argument is what, in which axes tokens come, how a hidden token is said.

Inside the checker tokens are (batch, length, features), whatever the module takes; a mask says which memory tokens a row sees.
"""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, is_dataclass, replace
from typing import Any

import numpy as np

from ..engine.cases import coordinates
from ..engine.cases.coordinates import Array
from ..engine.cases.dtypes import FLOAT_TYPES, round_to
from ..engine.contained import link
from ..engine.contained.watch import in_time
from ..engine.core.pace import NoArray
from ..engine.core.target import NotTaken, Raised
from ..engine.core.words import type_of
from ..engine.frameworks import Buffers, Framework, Modules
from .away import Away, Varied
from .forgetting import forgetting
from .forms import Form, all_forms, filled
from .names import FORWARD_ROLES, role

LAYOUTS = {
    "bld": "(batch, length, features)",
    "lbd": "(length, batch, features)",
    "bdl": "(batch, features, length)",
    "bdhw": "(batch, features, height, width)",
    "bhwd": "(batch, height, width, features)",
    "bdss": "(batch, features, side, side)",
    "bssd": "(batch, side, side, features)",
    "ld": "(length, features), a call for each sequence",
    "(bl)d": "(tokens of all sequences, features), packed, with the places where sequences begin",
    "1(bl)d": "(one, tokens of all sequences, features), packed, with the places where sequences begin",
    "1dl1b": "(one, features, length, one, batch): frames of a video, each place of which is a sequence",
    "1db1l": "(one, features, batch, one, length): places of a video, each frame of which is a sequence",
    "bd11l": "(batch, features, one, one, length), places and frames of a video in one row",
    "1l1bd": "(one, length, one, batch, features): frames of a video, each place of which is a sequence",
    "1b1ld": "(one, batch, one, length, features): places of a video, each frame of which is a sequence",
    "b11ld": "(batch, one, one, length, features), places and frames of a video in one row",
    "1lbd": "(one, length, batch, features): frames of a video, each place of which is a sequence",
    "1bld": "(one, batch, length, features), each row of which is a sequence",
    "as given": "one of each form that get_inputs() gives",
}
# Videos: frames are sequences, or places are, or all is one sequence; from (B, L, D), and back.
VIDEOS: dict[str, tuple[Callable[[Array], Array], Callable[[Array], Array]]] = {
    "1dl1b": (lambda x: x.transpose(2, 1, 0)[None, :, :, None], lambda out: out[0, :, :, 0].transpose(2, 1, 0)),
    "1db1l": (lambda x: x.transpose(2, 0, 1)[None, :, :, None], lambda out: out[0, :, :, 0].transpose(1, 2, 0)),
    "bd11l": (lambda x: x.transpose(0, 2, 1)[:, :, None, None], lambda out: out[:, :, 0, 0].transpose(0, 2, 1)),
    "1l1bd": (lambda x: x.transpose(1, 0, 2)[None, :, None], lambda out: out[0, :, 0].transpose(1, 0, 2)),
    "1b1ld": (lambda x: x[None, :, None], lambda out: out[0, :, 0]),
    "b11ld": (lambda x: x[:, None, None], lambda out: out[:, 0, 0]),
    "1lbd": (lambda x: x.transpose(1, 0, 2)[None], lambda out: out[0].transpose(1, 0, 2)),
    "1bld": (lambda x: x[None], lambda out: out[0]),
}
AS_GIVEN = "as given"  # by what says no more: ``Speech.forms``
FRAMES = ("1lbd", "1bld")  # of these those whose places stand in one row
PACKED = ("(bl)d", "1(bl)d")
PIXELS = ("bdhw", "bhwd")  # an image, of which any number of tokens is taken
IMAGES = ("bdl", *PIXELS)  # that, or features first
IN_PACKS = ("boundaries", "longest")  # what says where sequences begin that are packed, and how long the longest is
SQUARES = ("bdss", "bssd")  # of as many tokens as a square has, and of no other number
# How a mask is said: its shape, and the value that marks a visible token.
SHAPES = {
    "bs": "(batch, length)",
    "b11s": "(batch, 1, 1, length)",
    "b1ls": "(batch, 1, length, length)",
    "bls": "(batch, length, length)",
    "ls": "(length, length)",
    "bhls": "(batch · heads, length, length)",
    "sb": "(length, batch)",
    "lsb": "(length, length, batch)",
    "lengths": "(batch,), the number of seen tokens",
}
SAYINGS = ("True = seen", "True = hidden", "1 = seen", "1 = hidden", "1.0 = seen", "1.0 = hidden", "added")
IN_IMAGE = ("height", "breadth", "grid")  # the sides of the image that tokens are of, or both
# What says where tokens stand.
ADDED = ("added", "added to memory")  # to tokens, or to what queries and keys are made of; to what keys of a memory are
PLACED = ("angles", "cosine", "sine", "complex angles", "distances", "pairs", *ADDED, "position ids", "position row", "start", *IN_IMAGE)
PAIRS = "(length, half of it, 2)"
ONE_FOR_ALL = "(1, length, half of it)"
TABLES: dict[str, Callable[[Array], Array]] = {  # of numbers (length, half the width of a head)
    "(1, length, width of a head)": lambda x: np.concatenate([x, x], -1)[None],
    "(length, width of a head)": lambda x: np.concatenate([x, x], -1),
    "(length, half of it)": lambda x: x,
    ONE_FOR_ALL: lambda x: x[None],
    "(1, 1, length, width of a head)": lambda x: np.concatenate([x, x], -1)[None, None],
    PAIRS: lambda x: x,
    "(1, length, width of a head), neighbours alike": lambda x: np.repeat(x, 2, -1)[None],
    "(length, width of a head), neighbours alike": lambda x: np.repeat(x, 2, -1),
    "(1, 1, length, width of a head), neighbours alike": lambda x: np.repeat(x, 2, -1)[None, None],
    "(1, length, 1, half of it)": lambda x: x[None, :, None],
    "(1, length, 1, width of a head)": lambda x: np.concatenate([x, x], -1)[None, :, None],
    "(1, 1, length, half of it)": lambda x: x[None, None],
    "(1, length, half the width of a head), the rest is not turned": lambda x: np.concatenate([x[:, ::2]] * 2, -1)[None],
    "(1, length, a quarter of the width of a head), the rest is not turned": lambda x: np.concatenate([x[:, ::4]] * 2, -1)[None],
}
# Of numbers for each distance, from that of the last token to the first one down to that of the first one to the last.
DISTANCES: dict[str, Callable[[Array], Array]] = {
    "(1, 2 · length − 1, features)": lambda x: x[None],
    "(2 · length − 1, 1, features)": lambda x: x[:, None],
    "(2 · length − 1, features)": lambda x: x,
}
FIELDS = ("last_hidden_state", "hidden_states", "out", "output", "attn_output", "sample", "x")


@dataclass(frozen=True)
class Saying:
    """The words in which a mask says which tokens are visible."""

    parameter: str
    shape: str
    how: str
    whole: bool = False  # it takes the place of causality: where it is given, it says which tokens are later, too
    own: bool = False  # of the tokens themselves: it does not say which tokens of a memory are visible
    beside: bool = False  # of the tokens themselves, which are seen beside a memory, too
    cross: bool = False  # of a memory alone
    longest: bool = False  # one of its sequences has to be whole: as long as the others are made by padding
    # what hiding in these words does: right; changes: something, but not that; none: nothing; other: it hides what another mask should
    effect: str = "right"

    @property
    def words(self) -> str:
        """For the report."""
        if self.effect == "none":
            return "does nothing, in whatever form it is given"
        words = f"{SHAPES[self.shape]}, {self.how}" if self.shape != "lengths" else SHAPES[self.shape]
        words += "; of the longest sequence all" * self.longest + "; of its own tokens" * self.beside + "; of the memory" * self.cross
        words += "; where it is given, nothing else hides later tokens" * self.whole
        return words + {"changes": "; what it hides is seen", "other": "; not taken so"}.get(self.effect, "")


@dataclass(frozen=True)
class Keeping:
    """How a module keeps the tokens that it was fed, for those that come after."""

    kind: str  # handed back: what a call returns is given to the next one; filled: an object that calls fill; within: in the module
    parameter: str = ""  # of the cache
    flag: str = ""  # asks for it
    at: int | str | tuple[int, int] = ""  # where it stands in what comes back; keys and values: where each does
    number: int = 0  # of an object to be filled, among those that can be made
    made: str = ""  # its type
    values: str = ""  # the parameter of the values alone, where ``parameter`` is that of the keys
    set_up: str = ""  # the method with which a module makes its own
    where: str = ""  # an optional parameter that says at which position tokens begin
    reset: str = ""  # the method that empties the module
    steps: bool = False  # it takes one token at a time, after the first ones
    mask: Saying | None = None  # with a cache this says which tokens are later
    room: bool = False  # of all tokens that there is room for, not of those so far

    @property
    def name(self) -> str:
        """What it is asked for with, before what was said of it."""
        named = self.parameter or self.flag or self.set_up or self.where
        return f"{named}: " if named else ""

    @property
    def words(self) -> str:
        """For the report."""
        asked = f" with {self.flag}=True" if self.flag else ""
        named = self.parameter + f" and {self.values}" * bool(self.values)
        own = f", made by {self.set_up}()" * bool(self.set_up) + f", emptied by {self.reset}()" * bool(self.reset)
        kinds = {
            "handed back": f"{named}: what a call returns{asked} is given to the next one",
            "filled": f"{named}: a {self.made} that calls fill",
            "within": f"in the module{asked}{own}",
        }
        masked = f"; {self.mask.parameter} says which tokens are later" + ", of all that there is room for" * self.room if self.mask else ""
        return kinds[self.kind] + masked + "; one token at a time" * self.steps


@dataclass(frozen=True, eq=False)
class Past:
    """What a cache holds before some tokens."""

    start: int  # how many tokens
    cache: Any = None


# Modes of ``Modules`` in which calls in float64 are made of what cannot do them as it is, and what is told of it.
DOUBLED = {
    "defaulted": "numbers in the default type, whatever it is given: in calls in float64 that type is float64",
    "single": "in float32, whatever it is given: in calls in float64 that type stands for float32",
}


@dataclass(frozen=True)
class Speech:
    """How ``forward`` is called."""

    roles: Mapping[str, str] = field(default_factory=dict)  # their parameter → what it is
    positional: tuple[str, ...] = ()  # those that come by position
    layout: str = "bld"
    width: int = 32
    memory_width: int = 32
    head_dim: int = 8
    heads: int = 4
    turned: int = 0  # how many features of a head turn with positions; 0: all
    mask: Saying | None = None
    more: tuple[Saying, ...] = ()  # further masks
    needed: tuple[Saying, ...] = ()  # masks without which there is no call: where nothing else is said, all tokens are seen
    flag: str = ""  # the parameter that makes it causal
    by_mask: bool = False  # the flag is a mask: one is given, and whatever it holds, the call is causal
    hinted: str = ""  # the mask beside which the flag is a hint: a causal one is given with it
    pooled: int = 0  # so many rows come back for each sequence, whatever its length; 0: one for each token
    extra: Mapping[str, Any] = field(default_factory=dict)  # what else is always passed
    keeping: Keeping | None = None  # its cache
    table: str = "(1, length, width of a head)"  # the shape of the angles that it is given
    square: bool = False  # the image that tokens are of is as wide as high
    oblong: bool = False  # or four times as wide, so that height and breadth can be told apart
    classed: bool = False  # before the tokens of the image stands that of a class
    flat: bool = False  # images are of one row of pixels
    doubled: str = ""  # how calls in float64 are made of what cannot do them as it is: DOUBLED
    aside: bool = False  # the memory of an image is none: (batch, length, features), as of text
    forms: tuple[Any, ...] = ()  # of all arguments, by position, where nothing else is known of them (``forms.py``)

    @property
    def masks(self) -> tuple[Saying, ...]:
        """All of them, each to be given by itself."""
        return (self.mask, *self.more) if self.mask else self.more

    @property
    def adds(self) -> bool:
        """Whether positions are given that are added to queries or keys."""
        return bool(set(self.roles.values()) & set(ADDED))

    @property
    def of_an_image(self) -> bool:
        """Whether tokens are those of an image of several lines."""
        return self.layout in (*PIXELS, *SQUARES) and not self.flat

    def sides(self, length: int) -> tuple[int, int]:
        """(height, breadth) of the image that so many tokens are of: of pixels as near to a square as can be; else in one row, where nothing
        else is known."""
        if self.layout in PIXELS and not self.flat:
            high = next((n for n in range(math.isqrt(length), 0, -1) if length % n == 0), 1)
            return high, length // high
        square = self.square or self.layout in SQUARES
        high = math.isqrt(length // 4 if self.oblong else length) if square else 1
        return high, length // max(high, 1)

    def name(self, role: str) -> str:
        """Their parameter of a role; empty if there is none."""
        return next((name for name, meant in self.roles.items() if meant == role), "")


@dataclass(frozen=True, eq=False)
class Tokens:
    """The arguments of one call, as carriers."""

    x: Array  # (B, L, D)
    memory: Array | None = None  # (B, S, D'); None: the tokens themselves
    visible: Array | None = None  # (B, L or 1, S) bool, of keys, or of x where the mask is about its own tokens; None: no mask is given
    is_causal: bool = False
    by: Saying | None = None  # the mask that says so; None: the first one
    second: tuple[Saying, Array] | None = None  # another mask that is given with it, and what that leaves visible
    past: Past | None = None  # the cache and the number of tokens in it; None: without one
    shift: int = 0  # the position of the first token
    cut: int = 0  # where they are packed: all are two sequences, the first of so many tokens; 0: each is one of its own
    values: Array | None = None  # as ``memory``, where values are made of other tokens than keys are; None: of the same

    @property
    def keys(self) -> int:
        """The number of keys."""
        return int((self.x if self.memory is None else self.memory).shape[1])

    @property
    def parts(self) -> list[int]:
        """The lengths of the sequences, where they are packed."""
        batch, length = self.x.shape[:2]
        return [self.cut, batch * length - self.cut] if self.cut else [length] * batch

    def of(self, here: slice) -> Tokens:
        """Of these sequences alone."""
        memory, visible, values = (None if each is None else each[here] for each in (self.memory, self.visible, self.values))
        return replace(self, x=self.x[here], memory=memory, visible=visible, values=values)

    @property
    def about(self) -> str:
        """Of which tokens a mask says whether they are visible: of ``x``, or of ``memory``."""
        return "x" if self.memory is None or (self.by is not None and self.by.beside) else "memory"

    @property
    def hideable(self) -> int:
        """The number of these."""
        return int(getattr(self, self.about).shape[1])

    def told_by(self, saying: Saying) -> int:
        """Of how many tokens a mask says whether they are visible."""
        return int(self.x.shape[1]) if saying.own else replace(self, by=saying).hideable


def unspoken(parameter: inspect.Parameter, speech: Speech) -> bool:
    """Whether an optional argument that may stand for arrays is never given, and its name does not say that no weight depends on it."""
    return never_given(parameter, speech) and role(parameter.name, FORWARD_ROLES) not in (
        "padding",
        "mask",
        "causal",
        "weights",
        "use cache",
    )


def never_given(parameter: inspect.Parameter, speech: Speech) -> bool:
    """Whether an optional argument is left at its default in all calls, but for what only decides what comes back beside the output."""
    keeping = speech.keeping or Keeping("")
    spoken = {*speech.roles, *speech.extra, speech.flag, speech.hinted, keeping.parameter, keeping.values, keeping.flag, keeping.where}
    spoken |= {mask.parameter for mask in speech.masks}
    spoken |= {*(speech.positional if speech.forms else ())}
    nothing = parameter.default is None or parameter.default is False
    return nothing and parameter.name not in spoken and role(parameter.name, FORWARD_ROLES) not in ("weights", "use cache")


def hooks(fw: Framework) -> Modules:
    """What the framework knows of modules; only one that has them is asked."""
    assert fw.modules is not None
    return fw.modules


def under(module: Any, fw: Framework, mode: str, *arguments: Any) -> AbstractContextManager[Any]:
    """A mode of ``Modules``, for calls of the module, wherever it is."""
    if isinstance(module, Away | Varied):
        return module.under(mode, *arguments)
    return _under(module, fw, mode, *arguments)


@contextmanager
def _under(module: Any, fw: Framework, mode: str, *arguments: Any) -> Iterator[Any]:
    with forgetting(module, fw.is_array) if hasattr(module, "modules") else nullcontext(), getattr(hooks(fw), mode)(*arguments) as opened:
        yield opened


def call(module: Any, speech: Speech, tokens: Tokens, fw: Framework, buffers: Buffers, dtype: str, device: str) -> Any:
    """What the module returns. Whatever it raises passes. Raises NotTaken where a memory is to be hidden by a mask of the tokens.

    A call that hangs ends this process, where another one waits for it.
    """
    if speech.doubled and dtype == "float64":
        with under(module, fw, speech.doubled):
            return call(module, replace(speech, doubled=""), tokens, fw, buffers, dtype, device)
    saying = tokens.by or speech.mask
    if saying is not None and saying.own and tokens.visible is not None and tokens.memory is not None:
        raise NotTaken(f"a memory of which {saying.parameter} says nothing")
    if saying is not None and saying.longest and tokens.visible is not None and not tokens.visible.all((1, 2)).any():
        raise NotTaken(f"sequences all of which are padded, as {saying.parameter} says")
    if speech.layout == "ld":
        return _one_by_one(module, speech, tokens, fw, buffers, dtype, device)
    arguments = arguments_of(speech, tokens, fw, buffers, dtype, device)
    result = _in_time(module, speech, arguments)
    if speech.layout in PACKED:
        out = first_array(result, fw)
        shape = tuple(out.shape)
        ones, count = speech.layout.count("1"), math.prod(tokens.x.shape[:2])
        return out.reshape((*tokens.x.shape[:2], *shape[1 + ones :])) if shape[: 1 + ones] == (*[1] * ones, count) else out
    return result


def _in_time(module: Any, speech: Speech, arguments: dict[str, Any]) -> Any:
    if time.monotonic() > link.OVER:
        raise link.NoMoreCalls
    first = [arguments.pop(name) for name in speech.positional if name in arguments]
    if isinstance(module, Away):  # in another process, which has limits of its own
        return module(*first, **arguments)
    with in_time(slow=not hasattr(module, "forward")):  # what a variant made of it may be compiled in the call
        return module(*first, **arguments)


def _one_by_one(module: Any, speech: Speech, tokens: Tokens, fw: Framework, buffers: Buffers, dtype: str, device: str) -> Any:
    outs = []
    for at in range(len(tokens.x)):
        one = Tokens(tokens.x[at : at + 1], None if tokens.memory is None else tokens.memory[at : at + 1], None, tokens.is_causal)
        arguments = arguments_of(speech, one, fw, buffers, dtype, device, f"{at}")
        outs.append(first_array(_in_time(module, speech, arguments), fw))
    return fw.stack(outs)


def arguments_of(
    speech: Speech, tokens: Tokens, fw: Framework, buffers: Buffers, dtype: str, device: str, mark: str = ""
) -> dict[str, Any]:
    """The arguments under their names."""
    if speech.forms:

        def made_of(form: Form, numbers: Array) -> Any:
            carrier = round_to(dtype, numbers) if form.dtype in FLOAT_TYPES else numbers
            return buffers.array(form.name, carrier, dtype, device, "contiguous")

        return dict(zip(speech.positional, filled(speech.forms, tokens.x, made_of), strict=True))
    past = tokens.past
    start = tokens.shift if past is None else past.start
    mark += f" after {past.start}" if past else ""  # a cache may hold on to the tokens themselves

    def array(name: str, carrier: Array) -> Any:
        return buffers.array(name + mark, laid_out(round_to(dtype, carrier), speech, name), dtype, device, "contiguous")

    x = array("x", tokens.x)
    memory = x if tokens.memory is None else array("memory", tokens.memory)
    made: dict[str, Any] = dict(speech.extra)
    length = tokens.x.shape[1]
    # where there are angles they say where tokens are, and a start what a cache holds
    turned = {"angles", "cosine", "complex angles"} & set(speech.roles.values())
    for name, meant in speech.roles.items():
        if meant in ("tokens", "query"):
            made[name] = x
        elif meant == "value" and tokens.values is not None:
            made[name] = array("values", tokens.values)
        elif meant in ("key", "value") or (meant == "memory" and tokens.memory is not None):
            made[name] = memory
        elif meant == "no bias":
            zeros = np.zeros((len(tokens.x) * speech.heads, 1, tokens.keys))
            made[name] = buffers.array(f"{name}{mark}", zeros, dtype, device, "contiguous")
        elif meant in IN_PACKS:
            made[name] = max(tokens.parts) if meant == "longest" else fw.integers(np.cumsum([0, *tokens.parts]), device)
        elif meant in PLACED:
            first = 0 if turned and meant == "start" and past is None else start
            parts = tokens.parts if speech.layout in PACKED else [length]
            places = first + np.concatenate([np.arange(part) for part in parts])
            if meant in ADDED:
                rows = _rows(places if meant == "added" else np.arange(tokens.keys), speech, meant)
                made[name] = array(name, np.broadcast_to(rows, (len(tokens.x), *rows.shape)))
            elif meant == "pairs":
                rows = _of_pairs(places, speech.width)
                pairs = np.broadcast_to(rows, (len(tokens.x), *rows.shape))
                made[name] = buffers.array(name, round_to(dtype, pairs), dtype, device, "contiguous")
            else:
                made[name] = _positions(meant, places, speech, fw, buffers, dtype, device)
    if speech.keeping and past:
        made |= _cached(speech.keeping, past, length, fw, device)
    given = tokens.by or speech.mask
    told = {given.parameter if given and tokens.visible is not None else "", tokens.second[0].parameter if tokens.second else ""}
    visible = {saying: np.ones((1, 1, tokens.told_by(saying)), dtype=bool) for saying in speech.needed if saying.parameter not in told}
    if given and tokens.visible is not None:
        visible[given] = tokens.visible
    if tokens.second:
        visible[tokens.second[0]] = tokens.second[1]
    if speech.mask in visible and speech.mask is not None and speech.mask.whole and tokens.memory is None and not past:
        visible[speech.mask] = visible[speech.mask] & np.tri(length, dtype=bool)
    if speech.flag and tokens.is_causal:
        made[speech.flag] = True
        if parameter := speech.flag if speech.by_mask else speech.hinted:
            causal = next((saying for saying in speech.masks if saying.parameter == parameter), Saying(parameter, "ls", _as(given)))
            visible[causal] = np.tri(length, dtype=bool)[None] & visible.get(causal, np.True_)
    for saying, seen in visible.items():
        made[saying.parameter] = said(saying, seen, tokens, speech.heads, fw, buffers, dtype, device)
    return made


def changed(tokens: Tokens, speech: Speech, buffers: Buffers) -> str:
    """The name of the tokens that a call has changed; empty if it has changed none. ``buffers``: those that it was made with."""
    held = dict(buffers.contents())
    if speech.forms:
        whole: list[tuple[str, Array]] = []
        filled(speech.forms, tokens.x, lambda form, numbers: whole.append((form.name, numbers)))
        return next((name for name, before in whole if not np.array_equal(held.get(name, before), before, equal_nan=True)), "")
    given = {name: before for name in ("x", "memory") if (before := getattr(tokens, name)) is not None and name in held}
    return next((name for name, before in given.items() if not np.array_equal(held[name], laid_out(before, speech, name))), "")


def _as(mask: Saying | None) -> str:
    """How a second mask is said beside this one: PyTorch's own do not go together otherwise."""
    return "True = hidden" if mask and mask.how == "True = hidden" else "added"


def _cached(keeping: Keeping, past: Past, length: int, fw: Framework, device: str) -> dict[str, Any]:
    """The arguments with which tokens follow those in a cache."""
    made: dict[str, Any] = {keeping.flag: True} if keeping.flag else {}
    if keeping.values:
        made[keeping.parameter], made[keeping.values] = past.cache or (None, None)
    elif keeping.parameter:
        made[keeping.parameter] = past.cache
    if keeping.where:
        meant = role(keeping.where, FORWARD_ROLES)
        places = np.arange(past.start, past.start + length)
        made[keeping.where] = past.start if meant == "start" else _numbered(meant, places, fw, device)
    return made


def _numbered(meant: str, places: Array, fw: Framework, device: str) -> Any:
    return fw.integers(places if meant == "position row" else places[None], device)


def laid_out(x: Array, speech: Speech, name: str = "x") -> Array:
    """Tokens (B, L, D) in the axes of a module; ``name``: those of the tokens, or of the memory."""
    layout = "bld" if speech.aside and name != "x" else speech.layout
    if layout == "lbd":
        return x.transpose(1, 0, 2)
    if layout == "bdl":
        return x.transpose(0, 2, 1)
    if layout in VIDEOS:
        return VIDEOS[layout][0](x)
    if layout in (*PIXELS, *SQUARES):
        image = x.reshape(len(x), *speech.sides(x.shape[1]), x.shape[2])
        return image if layout.endswith("d") else image.transpose(0, 3, 1, 2)
    if layout in PACKED:
        return x.reshape(*[1] * layout.count("1"), -1, x.shape[2])
    return x[0] if layout == "ld" else x


def _rows(places: Array, speech: Speech, meant: str) -> Array:
    """What is added to tokens at these places, a row for each, whatever the sequence: as learned positions are."""
    width = speech.width if meant == "added" else speech.memory_width
    return coordinates.normal(0, meant, (int(places.max(initial=0)) + 1, width))[places]


def added(speech: Speech, tokens: Tokens, dtype: str, meant: str = "added") -> Array | None:
    """What is added to the tokens of a call, or to its memory; None: nothing."""
    if meant not in speech.roles.values() or tokens.past or speech.layout in PACKED:
        return None
    return round_to(
        dtype, _rows(tokens.shift + np.arange(tokens.x.shape[1]) if meant == "added" else np.arange(tokens.keys), speech, meant)
    )


def _of_pairs(places: Array, width: int) -> Array:
    """(L, L, D): what is given of each token beside each other one, whatever the sequence."""
    side = int(places.max(initial=0)) + 1
    rows, columns = (coordinates.normal(0, name, (side, width))[places] for name in ("pairs", "beside"))
    return np.asarray(rows[:, None] - columns)


def _positions(meant: str, places: Array, speech: Speech, fw: Framework, buffers: Buffers, dtype: str, device: str) -> Any:
    """What a module is given of the positions of its tokens.

    Angles are computed in more digits than float64 has: a table of them is off by one rounding, wherever it begins.
    """
    length = len(places)
    if meant in ("start", *IN_IMAGE):  # tokens of an image stand in one row, or in a square
        high, wide = speech.sides(length - speech.classed)
        return {"start": int(places[0]) if length else 0, "height": high, "breadth": wide, "grid": (high, wide)}[meant]
    if meant in ("position ids", "position row"):
        return _numbered(meant, places, fw, device)
    if meant == "distances":
        angles = np.arange(length - 1, -length, -1)[:, None] * 10000.0 ** (-np.arange(0, speech.width, 2) / speech.width)
        sinusoids = np.stack([np.sin(angles), np.cos(angles)], -1).reshape(len(angles), -1)[:, : speech.width]  # (Vaswani et al. 2017)
        return buffers.array(meant, round_to(dtype, DISTANCES[speech.table](sinusoids)), dtype, device, "contiguous")
    at, dim = places.astype(np.longdouble), speech.turned or speech.head_dim
    angles = at[:, None] * np.longdouble(10000) ** (-np.arange(0, dim, 2) / np.longdouble(dim))  # (L, dim / 2)

    def array(name: str, x: Array) -> Any:
        return buffers.array(name, round_to(dtype, x.astype(np.float64)), dtype, device, "contiguous")

    if meant == "complex angles":
        dtype = dtype if dtype == "float64" else "float32"  # as everybody holds them: there are hardly any narrower complex numbers
        pairs = array("complex angles", np.stack([np.cos(angles), np.sin(angles)], -1)[None if speech.table == ONE_FOR_ALL else ...])
        return pairs if speech.table == PAIRS else hooks(fw).pairs_as_complex(pairs)
    cos, sin = (array(name, TABLES[speech.table](f(angles))) for name, f in (("cos", np.cos), ("sin", np.sin)))
    return {"cosine": cos, "sine": sin}.get(meant, (cos, sin))


def said(saying: Saying, visible: Array, tokens: Tokens, heads: int, fw: Framework, buffers: Buffers, dtype: str, device: str) -> Any:
    """A mask in the module's words. ``visible`` (B, L or 1, S) bool; of fewer than B, where sequences are the windows of several images."""
    fewer = saying.shape == "bls" and 1 < len(visible) < len(tokens.x)
    batch, rows, keys = len(visible if fewer else tokens.x), tokens.x.shape[1], visible.shape[-1]
    whole = np.broadcast_to(visible, (batch, rows, keys))
    if saying.shape == "lengths":
        return fw.integers(np.asarray(whole[:, -1].sum(-1)), device)
    shapes: dict[str, Callable[[], Array]] = {
        "bs": lambda: whole[:, -1],
        "b11s": lambda: whole[:, None, -1:],
        "b1ls": lambda: whole[:, None],
        "bls": lambda: whole,
        "ls": lambda: np.asarray(whole.all(0)),
        "bhls": lambda: np.repeat(whole, heads, axis=0),
        "sb": lambda: whole[:, -1].T,
        "lsb": lambda: whole.transpose(1, 2, 0),
    }
    shaped = shapes[saying.shape]()
    if saying.how == "added":
        return buffers.array(f"mask {saying.parameter}", np.asarray(np.where(shaped, 0.0, -np.inf)), dtype, device, "contiguous")
    marked = shaped if saying.how.endswith("seen") else ~shaped
    if saying.how.startswith("True"):
        return buffers.array(f"mask {saying.parameter}", np.ascontiguousarray(marked), dtype, device, "contiguous")
    if saying.how.startswith("1.0"):
        return buffers.array(f"mask {saying.parameter}", marked.astype(np.float64), dtype, device, "contiguous")
    return fw.integers(marked.astype(np.int64), device)


def first_array(result: Any, fw: Framework) -> Any:
    """Of what comes back the output: the array, the first of several, or the field of a known name. Raises Raised."""
    if fw.is_array(result):
        return result
    if isinstance(result, tuple | list) and result:
        return first_array(result[0], fw)
    for name in FIELDS:
        value = result.get(name) if isinstance(result, Mapping) else getattr(result, name, None)
        if fw.is_array(value):
            return value
    raise Raised(NoArray(f"returned {'nothing' if result is None else type_of(result)}, not an array of {fw.name}"))


def arrays(result: Any, fw: Framework) -> list[Any]:
    """All arrays in what comes back."""
    if fw.is_array(result):
        return [result]
    if is_dataclass(result) and not isinstance(result, Mapping):
        result = vars(result)
    within = result.values() if isinstance(result, Mapping) else result if isinstance(result, tuple | list) else ()
    return [array for value in within for array in arrays(value, fw)]


def returned(result: Any, fw: Framework) -> str:
    """What comes back, in a few words: an array, or several in something."""
    if fw.is_array(result):
        return "an array"
    shapes = [str(fw.describe(x)[0]) for x in arrays(result, fw)[1:]]
    kind = "a list" if isinstance(result, list) else "a tuple" if isinstance(result, tuple) else "an object"
    return f"{kind} of its output" + f" and arrays of shape {', '.join(shapes)}" * bool(shapes)


def read(result: Any, speech: Speech, fw: Framework) -> Array:
    """The output as a carrier (B, L, D'), or (B, rows, D') where it is pooled. Raises Raised."""
    out = fw.read(first_array(result, fw))
    if speech.forms:
        out = out if any(form.batched for form in all_forms(speech.forms)) and out.ndim else out[None]
        rows = out.shape[1:-1] if out.ndim > 2 else ()
        return out.reshape(len(out), int(np.prod(rows)), int(np.prod(out.shape[1:])) // int(np.prod(rows) or 1))
    if speech.pooled:
        return out[:, None] if out.ndim == 2 else out
    if speech.layout == "lbd" and out.ndim == 3:
        return out.transpose(1, 0, 2)
    if speech.layout == "bdl" and out.ndim == 3:
        return out.transpose(0, 2, 1)
    if speech.layout in VIDEOS and out.ndim == len(speech.layout):
        return VIDEOS[speech.layout][1](out)
    if speech.layout in ("bdhw", "bdss") and out.ndim == 4:
        return out.reshape(*out.shape[:2], -1).transpose(0, 2, 1)
    if speech.layout in ("bhwd", "bssd") and out.ndim == 4:
        return out.reshape(len(out), -1, out.shape[-1])
    return out
