"""Whether a target that nobody has recorded fails as a built-in does, of which it is on record: of another mistake it is no excuse."""

from __future__ import annotations

import functools
import re

from ..cases.case import Case
from ..core.attempt import subject, try_case
from ..core.declare import Property
from ..core.target import CannotRun, Target
from ..core.trial import Violation
from .deviations import Deviation
from .find_target import NEVER, Builtins, containing, find_targets

NUMBER = re.compile(r"[-+]?(?:\d+(?:[.,]\d+)*(?:e[-+]?\d+)?|nan\b|inf\b)")


@functools.cache
def recorded(name: str, device: str) -> Target:
    """A built-in, in this process: what we wrote ourselves need not be contained. Raises CannotRun."""
    with containing(NEVER):
        return find_targets(name, Builtins(), None, device)[0]


def fails_alike(deviation: Deviation, prop: Property, case: Case, violation: Violation, device: str) -> bool:
    """Whether the built-in of a deviation is refuted on this case, too, in the same words; the numbers in them may be others."""
    try:
        other = recorded(deviation.like, device)
    except CannotRun:
        return False
    if case.dtype not in other.dtypes:
        return False
    there = try_case(subject(other, prop), prop, case)
    return there is not None and (_words(there), there.raised) == (_words(violation), violation.raised)


def _words(violation: Violation) -> str:
    return NUMBER.sub("#", violation.says)
