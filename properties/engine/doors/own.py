"""What one's own tests and properties are made of: cases, an answer with the exact one and both bounds, and the decorator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ... import catalogue
from ...attention.case import Case
from ...attention.trial import Run, Trial
from ..cases.draws import Strategy
from ..core.attempt import subject
from ..core.declare import Property
from ..core.declare import declare as declare_of
from ..core.supports import Supports
from ..core.target import CannotRun, Target
from ..search import search
from ..search.journal import digests
from .asked import Asked, target_of

ABOUT = "output_is_inside_the_bound"  # the property whose cases are drawn where none is named: all that a call may be


def cases(
    attention: Asked,
    *,
    about: str | Property = ABOUT,
    supports: Supports | Mapping[str, Any] | None = None,
    device: str = "cpu",
) -> Strategy:
    """A Hypothesis strategy over the cases of a property, as the search draws them; what the attention does not take is not drawn.

        @given(case=cases(attention))
        def test_mine(case): ...

    Raises CannotRun with one sentence if the callable cannot be called, or the property draws no case of it; ValueError for an
    unknown name.
    """
    target = _target(attention, supports, device)
    prop = about if isinstance(about, Property) else catalogue.select((about,))[0]
    if why := search.inapplicable(target, prop):
        raise CannotRun(f"{prop.name} draws no case of {target.name}: {why}")
    return search.cases(subject(target, prop), prop, device)


def run_case(attention: Asked, case: Case | str, *, supports: Supports | Mapping[str, Any] | None = None) -> Run:
    """Call an attention, or the attention inside a layer, as a case says.

    The answer is ``.out`` (batch, heads, queries, value_dim) in float64; ``.exact.out`` and ``.exact.weights`` are what is right,
    ``.bound`` how far a correct one may be off in any case, and ``.likely(alpha)`` in all but a share ``alpha`` of cases with random values.
    Raises CannotRun if it cannot be called at all, ``Raised`` if it raises on this case, ValueError for a text that is no case,
    ``Refuted`` for an answer of the wrong shape.
    """
    case = Case.parse(case) if isinstance(case, str) else case
    target = _target(attention, supports, case.device)
    view = target.kind.view(target, "attention")
    if view.contract != "attention":
        raise CannotRun(f"{target.name} is no attention, and has none inside that can be called by itself")
    return Trial(view, case).run()


def declare(formula: str, *, contract: str = "attention", **about: Any) -> Callable[[Callable[[Any], None]], Property]:
    """Make a property of a function that takes a trial ``t`` and raises, through its claims, if the property does not hold.

    Its name is the function's, its sentence the first paragraph of the docstring. ``needs`` names parameters, ``exact`` says that it is
    compared bit for bit; further keywords restrict fields of the case. ``verify`` and ``check_attention`` take it in ``properties``;
    a module of such properties becomes part of every run by an entry point of the group ``attncheck.chapters``.
    Raises ValueError without a docstring, and for a field that its cases have not.
    """
    return declare_of(formula, contract=contract, **about)


_MADE: dict[tuple[object, str], tuple[Any, Target]] = {}


def _target(attention: Asked, supports: Supports | Mapping[str, Any] | None, device: str) -> Target:
    """Made once for a callable, or for a file as it is, since that takes some calls."""
    key = f"{attention} {digests([attention])}" if isinstance(attention, str) else id(attention), f"{device} {supports}"
    if key not in _MADE or not (isinstance(attention, str) or _MADE[key][0] is attention):
        _MADE[key] = attention, target_of(attention, supports, device)
    return _MADE[key][1]
