"""How a property is declared: its formula, what it needs of the target, which cases it is about, and three to eight lines."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from hypothesis.strategies import SearchStrategy

from ..cases.case import Case
from ..cases.dtypes import FLOAT_TYPES
from .contract import Topic, topic_named

GRADIENTS = "gradients_are_those_of_the_reference"  # the name of what a pair is asked of them


@dataclass(frozen=True, eq=False)
class Property:
    """Something that is true of every attention.

    ``domain`` restricts fields of the case: a value fixes the field, a tuple lists its values, a Hypothesis strategy draws
    it; what is said of masks holds where one is drawn, which is always where ``needs`` has attn_mask. Where a target
    declares its ``head_dims``, or that it takes no other ``value_dim``, these are drawn whatever a property says.
    Besides, ``zero_sizes=False`` leaves out empty tensors, ``at_least={"keys": 2}`` the smaller sizes,
    ``alike=(("queries", "keys"),)`` makes these sizes equal in every other case, ``masked=3`` gives
    three cases with a mask for one without, and ``dtypes="all"`` draws every type alike
    instead of mostly the widest. ``arithmetic`` is a condition on the
    declared arithmetic under which it holds; ``writes=("bool",)`` says which kinds of masks it makes itself. ``exact``
    properties are compared bit for bit, the others inside the derived bound. A ``direct`` property is about the callable's
    own arguments: it is not put to a layer seen as its kernel. ``edge`` names what it is about where nobody who passes usual
    arguments is concerned: NaN, say. Of one that is asked ``once`` the first few cases are all, and none
    is made smaller: they are large.
    """

    name: str
    theme: str
    statement: str
    formula: str
    check: Callable[[Any], None]
    contract: str
    needs: tuple[str, ...]
    exact: bool
    direct: bool
    edge: str
    domain: Mapping[str, Any]
    once: bool = False

    @property
    def topic(self) -> Topic:
        """What it is about."""
        return topic_named(self.contract)

    def table(self, name: str, otherwise: tuple[Any, ...]) -> tuple[Any, ...]:
        """The values that it is about of a field, which are others where it says nothing."""
        about = self.domain.get(name, otherwise)
        return about if isinstance(about, tuple) else (about,)

    def types(self, able: Iterable[str] = FLOAT_TYPES, wanted: Iterable[str] | None = None) -> list[str]:
        """Those of some types that it is about, the widest first."""
        about = self.domain.get("dtype", FLOAT_TYPES)
        return [dtype for dtype in FLOAT_TYPES if dtype in about and dtype in able and (wanted is None or dtype in wanted)]

    def without_types(self, able: Iterable[str], wanted: Iterable[str] | None = None) -> str:
        """Why it can be tried in none of some types; empty if it can."""
        return "" if self.types(able, wanted) else f"is about {' or '.join(self.types())}"

    def drawn_types(self, able: Iterable[str], wanted: Iterable[str] | None = None) -> list[str]:
        """The same, the widest most often, where a fault of meaning shows earliest; unless the property is about every type."""
        types = self.types(able, wanted)
        return types if self.domain.get("dtypes") == "all" or len(types) == 1 else types[:1] * 3 + types[1:]

    def untaken(self, taken: Iterable[str]) -> str:
        """What it restricts and a target has no say in, which then stays as it is; empty if it can do without.

        What is said of masks holds where one is drawn.
        """
        known, plain = self.topic.case.fields(), self.topic.case()
        for name, about in self.domain.items():
            if name in taken or name not in known or name.startswith("mask") or isinstance(about, SearchStrategy):
                continue
            if not covers(about, getattr(plain, name)):
                return f"the target takes no {known[name].needs}" if known[name].needs else f"its cases have no {name}"
        return ""

    def excludes(self, case: Case, names: Iterable[str]) -> str:
        """Why a case is none that the property is about, by these of its fields; empty if it is one."""
        for name, about in self.domain.items():
            value = getattr(case, name, None)
            if name not in names or isinstance(about, SearchStrategy) or isinstance(value, tuple):
                continue
            if not covers(about, value):
                return f"it is about other {name} than {value!r}" if isinstance(about, tuple) else f"it is about {name} = {about!r}"
        return ""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled by name: another process imports its theme."""
        return _by_name, (self.check.__module__, self.name)

    def __repr__(self) -> str:
        return f"<property {self.name}>"


def covers(about: Any, value: Any) -> bool:
    """Whether a field may have a value: the only one, one of a table, or a number between those of a table."""
    if not isinstance(about, tuple):
        return bool(value == about)
    numbers = [x for x in about if isinstance(x, int | float) and not isinstance(x, bool)]
    between = numbers and isinstance(value, int | float) and not isinstance(value, bool)
    return value in about or bool(between and value != 0 and min(numbers) <= value <= max(numbers))


_DECLARED: dict[str, Property] = {}


def declared() -> Mapping[str, Property]:
    """Every property that was declared, by name."""
    return _DECLARED


def _by_name(module: str, name: str) -> Property:
    found: Property = getattr(importlib.import_module(module), name)
    return found


def declare(
    formula: str,
    *,
    needs: tuple[str, ...] = (),
    exact: bool = False,
    direct: bool = False,
    edge: str = "",
    contract: str,
    **domain: Any,
) -> Callable[[Callable[[Any], None]], Property]:
    """Make a property of a function that takes a trial and raises if the property does not hold.

    Its name is the function's, its statement the first paragraph of the docstring, its theme the module. ``contract`` names
    the topic. Raises ValueError for a property without a docstring, and for one that needs, or restricts, what there is not.
    """

    def decorate(check: Callable[[Any], None]) -> Property:
        statement = " ".join((inspect.getdoc(check) or "").split("\n\n")[0].split())
        if not statement:
            raise ValueError(f"property {check.__name__} says nothing: give it a docstring")
        topic = topic_named(contract)
        topic.check_needs(check.__name__, needs)
        topic.check(check.__name__, domain)
        theme = check.__module__.rpartition(".")[2]
        made = Property(check.__name__, theme, statement, formula, check, contract, needs, exact, direct, edge, domain)
        _DECLARED.setdefault(made.name, made)
        return made

    return decorate
