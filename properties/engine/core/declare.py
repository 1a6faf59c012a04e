"""How a property is declared: its formula, what it needs of the target, which cases it is about, and three to eight lines."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, eq=False)
class Property:
    """Something that is true of every attention.

    ``domain`` restricts fields of the case: a value fixes the field, a tuple lists its values, a Hypothesis strategy draws
    it. Besides, ``zero_sizes=False`` leaves out empty tensors, ``at_least={"keys": 2}`` the smaller sizes,
    ``alike=(("queries", "keys"),)`` makes these sizes equal in every other case, ``masked=3`` gives
    three cases with a mask for one without, and ``dtypes="all"`` draws every type alike
    instead of mostly the widest. ``arithmetic`` is a condition on the
    declared arithmetic under which it holds; ``writes=("bool",)`` says which kinds of masks it makes itself. ``exact``
    properties are compared bit for bit, the others inside the derived bound. A ``direct`` property is about the callable's
    own arguments: it is not put to a layer seen as its kernel.
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
    domain: Mapping[str, Any]

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled by name: another process finds it in its own catalogue."""
        return _by_name, (self.name,)

    def __repr__(self) -> str:
        return f"<property {self.name}>"


def _by_name(name: str) -> Property:
    from ...catalogue import PROPERTIES

    return PROPERTIES[name]


def declare(
    formula: str,
    *,
    needs: tuple[str, ...] = (),
    exact: bool = False,
    direct: bool = False,
    contract: str = "attention",
    **domain: Any,
) -> Callable[[Callable[[Any], None]], Property]:
    """Make a property of a function that takes a trial and raises if the property does not hold.

    Its name is the function's, its statement the first paragraph of the docstring, its theme the module.
    """

    def decorate(check: Callable[[Any], None]) -> Property:
        statement = " ".join((inspect.getdoc(check) or "").split("\n\n")[0].split())
        if not statement:
            raise ValueError(f"property {check.__name__} says nothing: give it a docstring")
        theme = check.__module__.rpartition(".")[2]
        return Property(check.__name__, theme, statement, formula, check, contract, needs, exact, direct, domain)

    return decorate
