"""Whether a target that nobody has recorded fails as a built-in does, of which it is on record: of another mistake it is no excuse."""

from __future__ import annotations

import dataclasses
import functools
import math
import re

from ..cases.case import Case
from ..core.attempt import subject, try_case
from ..core.declare import Property, declared
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
    """Whether the built-in of a deviation is refuted on this case, too, in the same words; the numbers in them may be others.

    Where what is not finite is all that is wrong, whether it gives such numbers there, called plainly: how a wrapper arranges its arrays
    decides which of the library's kernels answers.
    """
    try:
        other = recorded(deviation.like, device)
    except CannotRun:
        return False
    if case.dtype not in other.dtypes:
        return False
    there = try_case(subject(other, prop), prop, case)
    if there is not None and (_words(there), there.raised) == (_words(violation), violation.raised):
        return True
    if not _is_not_finite(violation) or not hasattr(case, "layout"):
        return False
    shows = declared()[deviation.shows]
    there = try_case(subject(other, shows), shows, dataclasses.replace(case, layout="contiguous"))  # type: ignore[type-var]
    return there is not None and _is_not_finite(there)


def _is_not_finite(violation: Violation) -> bool:
    """Whether one of two answers is NaN, and the other is not: that which is compared, or that with which it is."""
    return not violation.raised and (math.isnan(violation.actual) or math.isnan(violation.expected) or "is not finite" in violation.says)


def _words(violation: Violation) -> str:
    return NUMBER.sub("#", violation.says)
