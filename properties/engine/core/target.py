"""A target: the attention under test, called with carriers and answering in carriers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ..cases.coordinates import Array
from ..contained.link import Gone, NoMoreCalls
from ..contained.load import words_of
from ..frameworks import Buffers, Framework, SendBack
from .contract import contract_named
from .pace import NoArray, OtherForm, Pace
from .words import type_of

if TYPE_CHECKING:
    from .contract import Contract
    from .supports import Supports


SAID = 300  # characters of an exception that are told


class CannotRun(Exception):
    """The target cannot be checked at all; the message says in one sentence what to change."""

    final = False  # whether no other way to call it is worth a try
    taken = 0  # how many of the dtypes that are declared it took before one failed


class Raised(Exception):
    """The target raised on a legal call."""

    def __init__(self, error: BaseException, hint: str = "") -> None:
        self.error = error
        self.hint = hint  # what may not be supported, and the key that declares it
        super().__init__(f"{type(error).__name__}: {first_line(error)}")

    @property
    def refuses(self) -> bool:
        """Whether the call was refused: not if the target's process ended, and not if something of another form came back."""
        return not isinstance(self.error, Gone | OtherForm)


class NotTaken(Raised):
    """A call that the target says it does not take: it is not made, and its case says nothing. ``why`` is in the words of the report."""

    def __init__(self, why: str) -> None:
        self.why = why
        super().__init__(ValueError(why))


@dataclass(frozen=True)
class Left:
    """A class of calls that a target has refused where it was asked, and of which it may answer others."""

    supports: Mapping[str, Any] = field(default_factory=dict)  # facts of a target that does not refuse them
    target: Mapping[str, Any] = field(default_factory=dict)  # parameters and dtypes of it
    domain: Mapping[str, Any] = field(default_factory=dict)  # which cases are of the class
    needs: tuple[str, ...] = ()  # parameters that every case of the class has
    prop: str = "output_is_inside_the_bound"  # what must be true of what is answered
    computes: str = ""  # what else it does with the class than refuse it


@dataclass(frozen=True, eq=False)
class Target:
    """An attention that has passed its first call. Make one with ``make_target``."""

    name: str
    function: Callable[..., Any]
    contract: str  # the name of its contract
    supports: Supports
    framework: Framework
    parameters: tuple[str, ...]
    dtypes: tuple[str, ...]
    untried: Mapping[str, str] = field(default_factory=dict)  # what is not tried → why
    refuses: Mapping[str, str] = field(default_factory=dict)  # a class of calls → what it says to them
    left: Mapping[str, Left] = field(default_factory=dict)  # the same classes → how they are asked again
    learned: Mapping[str, str] = field(default_factory=dict)  # how it is called otherwise than the contract says → in words
    differs: Mapping[str, str] = field(default_factory=dict)  # a convention that the field knows, but nothing documents → which
    wrong: Mapping[str, str] = field(default_factory=dict)  # a convention that is other than documented → how: findings, and learned
    observed: Mapping[str, Any] = field(default_factory=dict)  # keys of supports that were seen to hold, and are not claimed
    declared: frozenset[str] = frozenset()  # keys of supports that somebody has declared
    own: frozenset[str] = frozenset()  # those of them that it alone has declared, of itself
    mixes_heads: bool = False  # a layer seen as its kernel: 0 times what overflows in one head is NaN in all heads of the row
    enlarges: float = 1.0  # so many times as large as the logits are products in it before they are scaled, and overflow as much earlier
    strict: bool = False  # what it refuses and where it differs are findings, too
    poisoned: frozenset[str] = frozenset()  # kinds of masks under which rows without keys send back NaN, which one property tells
    pace: Pace = field(default_factory=Pace)  # of its calls, which is that of all that was learned of it since
    like: Target | None = None  # a reference, which is asked the same
    # of a reference: the fields of a case that is as it is called with (KernelBench)
    called: Mapping[str, Any] = field(default_factory=dict)
    address: str | None = ""  # how the command line finds it; empty: by its name; None: not at all

    @property
    def kind(self) -> Contract:
        """Its contract."""
        return contract_named(self.contract)

    @property
    def faults(self) -> dict[str, str]:
        """Each is a finding, whatever a search finds: what is other than documented; of a strict run, what nobody has declared, too."""
        return {**self.differs, **self.refuses, **self.wrong} if self.strict else dict(self.wrong)

    @property
    def costly_shapes(self) -> bool:
        """Whether few shapes are drawn, and kept for a run, since every new one costs."""
        declared = self.supports.costly_shapes
        return self.framework.costly_shapes if declared is None else declared

    def buffers(self) -> Buffers:
        """Fresh memory for the calls of one case."""
        return Buffers(self.framework)

    def ranked(self, mask: Any) -> Any:
        """A mask with leading axes of size 1, up to the rank that is declared."""
        for _ in range(self.supports.mask_rank - len(mask.shape)):
            mask = mask[None]
        return mask

    def apply(self, *arguments: Any, **options: Any) -> Any:
        """Call it with arrays of the framework. Raises Raised if it raises. It leaves no setting of the process changed."""
        self.pace.check()
        with raising(options), self.framework.settings_kept(), self.pace.timed():
            return self.function(*arguments, **options)

    def asked_enough(self) -> bool:
        """Whether it is too slow to be asked one more question, which is counted."""
        if not self.pace.over(self.costly_shapes):
            return False
        self.pace.unasked += 1
        return True

    def record(self, call: Callable[..., Any], leaves: Sequence[Any]) -> tuple[Any, SendBack | None]:
        """The output of a call with these leaves, and what sends a gradient of it back to them; None if it carries no gradient.

        Both raise Raised.
        """
        self.pace.check()
        with raising({}):
            out, send_back = self.framework.record(lambda *given: self.first(call(*given)), leaves)

        def sent(grad_out: Any, again: bool = False) -> list[Any]:
            assert send_back is not None
            with raising({}):
                return send_back(grad_out, again)

        return out, sent if send_back else None

    def leaves_changed(self, *arguments: Any, **options: Any) -> list[str]:
        """The settings of the process that such a call does not leave as they were. Raises Raised if the target raises."""
        with raising(options), self.framework.settings_kept() as changed:
            self.function(*arguments, **options)
            return changed()

    def first(self, result: Any) -> Any:
        """Of several results the first."""
        return result[0] if isinstance(result, tuple | list) and result else result

    def read(self, result: Any) -> Array:
        """The answer as a carrier (B, H, L, Dv). Raises Raised if it is no array of the framework."""
        if not self.framework.is_array(result):
            what = f"a dictionary of {', '.join(map(str, result))}" if isinstance(result, Mapping) else type_of(result)
            raise Raised(NoArray(f"returned {what}, not an array of {self.framework.name}"))
        with raising({}):  # what looks like an array may be none
            out = self.framework.read(result)
        return out.transpose(0, 2, 1, 3) if self.supports.layout == "blhd" and out.ndim == 4 else out


def as_declared(target: Target) -> dict[str, Any]:
    """What was learned of a target, as keys of supports: from now on they are claims."""
    plain = type(target.supports)()
    facts = {f.name: getattr(target.supports, f.name) for f in dataclasses.fields(plain)}
    return {name: value for name, value in facts.items() if value != getattr(plain, name)} | dict(target.observed)


def always_refused(target: Target, calls: Iterable[Callable[[], Any]]) -> str:
    """What a target says if it raises at each of some calls of a class; empty if it answers one, refuses one in no such way, or is too slow."""
    said = ""
    for call in calls:
        if target.asked_enough():
            return ""
        try:
            call()
        except Raised as raised:
            if isinstance(raised, NotTaken) or not raised.refuses:
                return ""
            said = str(raised)
        else:
            return ""
    return said


def innermost(function: Callable[..., Any]) -> Callable[..., Any]:
    """The callable itself, below what calls it in its own words."""
    while hasattr(function, "__asks__"):
        function = function.__asks__
    return function


@contextmanager
def raising(options: Mapping[str, Any]) -> Iterator[None]:
    """What the target raises becomes Raised; NumPy's warnings are its own business."""
    try:
        with np.errstate(all="ignore"):
            yield
    except (Raised, KeyboardInterrupt, NoMoreCalls):
        raise
    except BaseException as error:  # whatever it is: an exit, or what ends a search, is none of its business
        raise Raised(error, _hint(options)) from error


def _hint(options: Mapping[str, Any]) -> str:
    """What of a call that raised may not be supported, and the key that declares it."""
    masks = [options[name] for name in ("attn_mask", "memory_mask") if options.get(name) is not None]
    hint = " (a mask is not taken together with is_causal? declare mask_and_causal = false)" if masks and options.get("is_causal") else ""
    return hint + " (a mask of rank 0 or 1 is not taken? declare mask_rank = 2)" * any(len(mask.shape) < 2 for mask in masks)


def first_line(error: BaseException) -> str:
    """What an exception says, without what follows it; no more than a few lines of a terminal."""
    lines = words_of(error).strip().splitlines()
    return "" if not lines else lines[0] if len(lines[0]) <= SAID else f"{lines[0][:SAID]}…"


def blame(raised: Raised) -> str:
    """What it did, in the words that follow "it"."""
    said = first_line(raised.error)
    return f"raised {raised}" if raised.refuses else said
