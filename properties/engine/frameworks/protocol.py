"""What the checker asks of an array library."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..cases.coordinates import Array

# How an array lies in memory → the mistake that such a layout shows.
ELSEWHERE = "weights summed along another axis"  # what ``Modules.watched`` says
STRETCHED = "rows of other lengths than any projection has"  # the same, of queries and of keys
LAYOUT_REASONS = {
    "contiguous": "what kernels are written for, and what the other layouts are compared with",
    "transposed": "(batch, tokens, heads, features) in memory, as after a projection: strides taken for those of a copy (D18, D26)",
    "padded": "rows with NaN after them: more is read than the row",
    "strided": "every other feature: the last stride is 2, where kernels count on 1 (D17)",
    "every_other_row": "every other token: rows are read as if they followed one another",
    "feature_major": "tokens next to each other, features far apart: a matrix taken for its transpose (D17)",
    "offset": "the array begins within its memory: the offset dropped, or alignment counted on",
    "mixed": "each of q, k and v in another layout: strides of one used for another",
    "expanded": "one element for the whole batch, through a stride of 0 (D20)",
}
LAYOUTS = tuple(LAYOUT_REASONS)
TRAINING = "train mode"  # among ``Framework.ways``

Function = Callable[..., Any]


def has_layout(fw: Framework, layout: str) -> bool:
    """Whether arrays can lie so; one number everywhere is an array that is expanded."""
    return layout in fw.layouts or (layout == "everywhere" and "expanded" in fw.layouts)


class Unfollowed(Exception):
    """The rounding of an operation, which the message names, is not followed."""


class SendBack(Protocol):
    """The backward pass of one call."""

    def __call__(self, grad_out: Any, again: bool = False) -> list[Any]:
        """The gradients of the leaves, None for one that the output does not depend on. ``again``: it will be called once more.

        ``grad_out``: of the output; of several outputs a list, None for one of which there is no gradient.
        """


# Arrays, which of them carry a gradient, and what sends gradients of all of them back: a list, None for those of which there is none.
Answered = tuple[list[Any], list[bool], SendBack | None]


@dataclass(frozen=True)
class Variant:
    """A transformation of a framework, which must not change what a target computes."""

    transform: Callable[[Function], Function]
    narrows: Mapping[str, Any] = field(default_factory=dict)  # what it cannot do is not asked of it: keys of supports
    stateful: bool = False  # whether it can wrap what changes at every call, as a cache does
    over_batch: bool = False  # whether it maps over a batch, which not every contract has
    recorded: bool = True  # whether gradients reach what a callable holds in itself


class Modules(Protocol):
    """What is asked of a library in which callables hold their own weights."""

    def is_module(self, thing: Any) -> bool:
        """Whether it is such a callable."""

    def is_class(self, thing: Any) -> bool:
        """Whether it is a class of them."""

    def making(self) -> AbstractContextManager[Any]:
        """While it is open, memory that is made and not written to holds no numbers, instead of whatever it held before."""

    def closed(self, module: Any) -> str:
        """Why its steps cannot be followed, nor its weights drawn, and what to give instead; empty if they can."""

    def unmade(self, module: Any) -> bool:
        """Whether some of its parameters get their shape in a first call."""

    def cast(self, module: Any, dtype: Any, device: str = "cpu") -> Any:
        """The module cast to a type; complex numbers stay what they are, which ``torch.nn.Module.to`` would cast to their real parts."""

    def uncalled(self, cls: type) -> bool:
        """Whether it is a class of modules that have no ``forward`` of their own: they hold something."""

    def alike(self, holder: Any, dtype: Any, device: str) -> Any:
        """The object itself, with what it holds cast to a type, whole numbers and flags aside."""

    def kept(self, layers: Sequence[Any]) -> dict[Any, Any]:
        """A dictionary into which every layer puts its answers, joined along the second axis, and then answers with all of them.

        It does so as long as the dictionary is held, and no other one is made for it.
        """

    def unrecorded(self, module: Any) -> str:
        """The decorator of its ``forward`` under which nothing is recorded for a backward pass; empty if there is none."""

    def undropped(self, module: Any) -> None:
        """From now on functions of dropout return in its calls what they are given."""

    def adopted(self, module: Any, train: Callable[[Any], Callable[[], object]]) -> Any:
        """The module, which is called as a function from now on. ``train``: puts it into train mode, and gives what puts it back."""

    def forms(self, makes: Callable[[], Any]) -> list[tuple[tuple[int, ...], str]]:
        """Shape and type of each array that ``makes`` returns, whose numbers are not drawn where that can be left out. Raises as it does."""

    def still(self) -> AbstractContextManager[Any]:
        """While it is open, nothing is recorded for a backward pass."""

    def watched(self, logits: bool = False) -> AbstractContextManager[list[str]]:
        """While it is open, the names of all operations come into the list; after a softmax over n numbers ``softmax over n``.
        A product with a parameter is ``weights' NAME``, an operation that is not the library's own ``operation SPACE::NAME``.

        ``logits``: then also ``logits of D features and H heads times F``, where that is known, and ELSEWHERE where its weights are summed along
        another axis than it is over, STRETCHED where rows of queries, and of keys, are not as long as those of any projection, times a number.
        """

    def widened(self, instead: str, narrows: bool = False) -> AbstractContextManager[Any]:
        """While it is open, float64 stands for another type.

        What asks for the type is told that one, what would become it, or be cast to a narrower one, is float64, and no fused kernel is chosen.
        ``narrows``: what is cast to a narrower one than that is of that one.
        """

    def defaulted(self) -> AbstractContextManager[Any]:
        """While it is open, what is made without a type is of float64."""

    def single(self) -> AbstractContextManager[Any]:
        """The same, and float64 stands for float32 as in ``widened``."""

    def shadow(self, held: Mapping[str, Any], run: Callable[..., Any]) -> Any:
        """A module with such parameters of which a call is ``run(its arrays, arguments, options)``. Raises for names that none can have."""

    def perturbed(
        self, seed: int, units: Mapping[str, float], elementwise: bool, instead: str, narrows: bool = False
    ) -> AbstractContextManager[Any]:
        """While it is open, the result of every operation is moved by as much as one rounding may move it, up or down.

        ``units``: dtype → unit roundoff. ``elementwise``: up or down is drawn for every element, else once for a result. ``instead``: as for
        ``widened``, or empty; ``narrows``: as there.
        """

    def send_back(self, out: Any, weights: Any) -> None:
        """The gradient of Σ out · weights into every parameter and argument that asks for one."""

    def as_passed(self, leaf: Any) -> Any:
        """A leaf as a call gets it, which may be what another operation has made of it."""

    def leaf(self, array: Any) -> Any:
        """The array itself, of which gradients are asked from now on."""

    def sends_back(self, out: Any, leaves: Sequence[Any]) -> SendBack | None:
        """What sends a gradient of the array back to leaves of its graph; None if it carries none."""

    def slopes(self, function: Callable[[], Any], arrays: Sequence[Any], along: Sequence[Any], twice: bool) -> list[float]:
        """Σ ∂f/∂aᵢ · dᵢ for every array aᵢ that the function, which gives a number, looks at; ``twice``: of the sum of these instead.

        An array that it does not depend on has 0.
        """

    def pairs_as_complex(self, array: Any) -> Any:
        """(…, 2) real → (…) complex."""


class Framework(Protocol):
    """An array library. A module of this folder defines one, as ``FRAMEWORK``; nothing else in the checker imports the library."""

    name: str
    dtypes: tuple[str, ...]  # of floating-point numbers
    layouts: tuple[str, ...]  # those of LAYOUTS that its arrays can have
    gradients: bool  # whether there is a backward pass
    costly_shapes: bool  # whether every new shape costs far more than a call, as where each is compiled
    forks: bool  # whether a process that has used it can be forked
    late: tuple[str, ...]  # modules that take long, and that it imports in a first call alone: each process of a target would anew
    shares: tuple[str, ...]  # the kinds of devices whose arrays can be those of a process of its own
    device: str  # the kind of device of arrays of which nothing else is said
    rounds_sums: str  # what sums halves and rounds at every step; empty if nothing does
    variants: Mapping[str, Variant]
    ways: Mapping[str, str]  # in which a call may be made, beside the usual one, and which change nothing of its answer → in words
    modules: Modules | None  # where callables may hold their own weights

    def quickly(self, function: Function) -> Function:
        """A function that answers the same, in less time where a new shape is costly; the function itself where there is no such way."""

    def devices(self) -> tuple[str, ...]:
        """The kinds of devices that exist here."""

    def on(self, device: str) -> Framework:
        """It, with all arrays and modules on that device, whatever else is said of one."""

    def usable(self) -> bool:
        """Whether it can go on computing here; not where an error on its device ends all that this process does there."""

    def named_dtype(self, dtype: str) -> Any:
        """The framework's own object for a dtype."""

    def full(self, shape: tuple[int, ...], value: float, dtype: str, device: str) -> Any:
        """A new contiguous array."""

    def integers(self, carrier: Array, device: str) -> Any:
        """A new array of int64, or of the widest integers there are."""

    def permute(self, array: Any, axes: tuple[int, ...]) -> Any:
        """The array with its axes in another order; a view where there are views."""

    def expand(self, array: Any, shape: tuple[int, ...]) -> Any:
        """The array with axes of size 1 repeated; a view where there are views."""

    def stack(self, arrays: Sequence[Any]) -> Any:
        """Arrays of one shape along a new first axis."""

    def concatenate(self, arrays: Sequence[Any], axis: int) -> Any:
        """Arrays one behind the other along an axis."""

    def assign(self, array: Any, carrier: Array) -> Any:
        """The array with the carrier's numbers: the same one, written in place, or another of its form where arrays cannot be changed."""

    def read(self, array: Any) -> Array:
        """A fresh carrier with the array's numbers (float64, or bool)."""

    def is_array(self, value: Any) -> bool:
        """Whether the value is an array of this framework."""

    def describe(self, array: Any) -> tuple[tuple[int, ...], str, str]:
        """Shape, name of the dtype, kind of device."""

    def record(self, function: Function, leaves: Sequence[Any]) -> tuple[Any, SendBack | None]:
        """function(*leaves), an array or a tuple of them, and what sends gradients of it back to the leaves; None if it carries none.

        The leaves use the memory of the arrays that are given.
        """

    def chance(self, seed: int) -> AbstractContextManager[Any]:
        """While it is open, random numbers start from the seed; afterwards they go on as before."""

    def dropper(self, probability: float) -> Function | None:
        """A function of an array that drops elements, and scales the others, by the random numbers above; None if there is none."""

    def drawn(self) -> float:
        """The next random number."""

    def settings_kept(self) -> AbstractContextManager[Callable[[], list[str]]]:
        """While it is open, says which settings of the process have changed since it was opened; afterwards they are as before."""

    def faulty(self, dtype: str, device: str) -> str:
        """What below it is known to compute wrongly in such calls on this machine, and can be left out; empty if nothing is."""

    def avoiding(self) -> AbstractContextManager[Any]:
        """While it is open, that is left out."""

    def told(self, way: str) -> AbstractContextManager[Any]:
        """While it is open, calls are made in one of its ``ways``; in train mode modules that are ``Modules.adopted``."""

    def way(self) -> str:
        """In which of these ways it is told now that no gradients will be asked for; empty where they may be."""

    def facts(self, device: str) -> dict[str, Any]:
        """What it knows of the machine and of itself: some of the facts of ``machine.FACTS``."""

    def shares_memory(self, a: Any, b: Any) -> bool:
        """Whether writing to one array may change the other."""

    def elsewhere(self, device: str = "cpu") -> Framework:
        """What stands for it in a process whose target is in another one, on that device."""

    def over(self, memory: Any, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: str) -> Any:
        """An array in memory that somebody else made; the offset and the strides are in bytes. It keeps the memory alive."""

    def lies(self, array: Any) -> tuple[int, tuple[int, ...]]:
        """Where in memory an array begins, and its strides in bytes."""

    def pour(self, array: Any, memory: Any) -> None:
        """Write its numbers, row by row, into memory that somebody else made."""

    def refill(self, array: Any, memory: Any) -> None:
        """What a call has made of a copy of it, row by row in memory, it has made of the array itself."""

    def put_back(self, array: Any, memory: Any, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: str) -> None:
        """Where ``over`` makes a copy that a call can change: what it holds now, into the memory of which it was made."""

    def refresh(self, arrays: Iterable[Any]) -> None:
        """Where ``over`` makes copies: these arrays are to hold what that memory holds now."""

    def show(self, arrays: Iterable[Any]) -> None:
        """Where ``over`` makes copies: that memory is to hold what these arrays hold now."""

    def lost(self, array: Any) -> bool:
        """Whether a call has taken the numbers away, as where an array may be donated."""

    def plain(self, array: Any) -> Any:
        """The array without what a subclass adds to it: its own numbers, in its own shape."""

    def unlike(self, array: Any) -> str:
        """What an array is instead of numbers in memory that answer as all others do, in a word; empty if it is none of that."""

    def asks(self, array: Any) -> bool:
        """Whether a gradient will be asked of an array, by what is computed now."""

    def bridged(self, call: Callable[[Sequence[Any]], Answered], leaves: Sequence[Any]) -> list[Any]:
        """What a call elsewhere answers to the leaves; gradients go back through what it gives besides."""


# What a class of arrays may have of its own: nothing is computed by it.
HARMLESS = {"__module__", "__doc__", "__dict__", "__weakref__", "__annotations__", "__new__", "__init__", "__repr__", "__str__"}
HARMLESS |= {"__array_finalize__", "__copy__", "__deepcopy__", "__reduce__", "__reduce_ex__", "__setstate__"}


def with_operations_of_its_own(array: Any, plain: type) -> str:
    """The class of an array that answers otherwise than a plain one, whatever its numbers are; empty if it does not."""
    kinds = type(array).__mro__
    own = any(vars(kind).keys() & set(dir(plain)) - HARMLESS for kind in kinds[: kinds.index(plain)])
    return f"{kinds[0].__name__}_with_operations_of_its_own" if own else ""


def draws(fw: Framework, call: Callable[[], object]) -> bool:
    """Whether random numbers of the CPU are drawn in a call."""
    after = []
    for called in (lambda: None, call):
        with fw.chance(1):
            called()
            after.append(fw.drawn())
    return after[0] != after[1]


def sets_the_seed(fw: Framework, call: Callable[[], object]) -> bool:
    """Whether what is drawn after a call is the same, whatever was drawn before it."""
    after = []
    for seed in (1, 2):
        with fw.chance(seed):
            call()
            after.append(fw.drawn())
    return after[0] == after[1]
