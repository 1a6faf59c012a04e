"""How much must have been tried before a verdict says that nothing was found."""

from __future__ import annotations

import inspect
from collections.abc import Collection
from typing import Any

from ..contained.stub import Shared, Stub
from ..core.target import Target
from .own_words import own_words
from .search import Outcome

SHORT = 8  # the least max_length, and width of heads, with which a verdict says anything
MEANT = "say so in a file for --supports if it is meant"
JUDGED = 10  # judged cases, from which on some of them must be adequate
LEAST = 4  # cases that every property must have had, if so many were asked for: those of the first pass


def ended(target: Target) -> tuple[str, ...]:
    """What has ended its processes so far, if it has processes of its own: before the search, what it was asked then shows nothing."""
    fw: Any = target.framework
    return fw.ended() if isinstance(fw, Shared) else ()


def incomplete(target: Target, outcomes: Collection[Outcome], examples: int, time_is_over: bool, ends: Collection[str] = ()) -> str:
    """Why too little was tried, in a few words; empty if enough was. ``ends``: what ended the target's processes before the search.

    A property that cannot be put to the target is named elsewhere.
    """
    if why := too_little(target, ends):
        return why
    judged, adequate = (sum(getattr(outcome.notes, name) for outcome in outcomes) for name in ("judged", "adequate"))
    if judged >= JUDGED and not adequate:
        return f"none of {judged} cases could tell a right answer and a trivially wrong one apart: declare less away"
    if not time_is_over:
        return ""
    able = [outcome for outcome in outcomes if not outcome.not_exercised and not outcome.finding]
    least = min(LEAST, examples)
    short = [outcome for outcome in able if outcome.tried < outcome.least(least)]
    if not short:
        return ""
    if not any(outcome.tried for outcome in able):
        return "time was over before the first case: give more time"
    return f"time was over before {len(short)} of {len(able)} properties had {least} cases each: give more time, or fewer properties"


def too_little(target: Target, ends: Collection[str] = ()) -> str:
    """Why too little of it can be tried, whatever is searched; empty if enough can."""
    for what in ends:
        return f"a call that was to show what the target takes {what}: what it would have shown is not known"
    for dtype in (dtype for dtype in target.differs if dtype in target.framework.dtypes and dtype not in target.left):
        return f"in {dtype} {target.differs[dtype]}: say in a file for --supports which dtypes it takes"
    if target.supports.max_length is not None and target.supports.max_length < SHORT:
        length = f"sequences of at most {target.supports.max_length} are too short to tell right and wrong answers apart"
        return f"{length}: declare a max_length from {SHORT} on"
    facts = getattr(target.function, "facts", None)
    if drawn := getattr(facts, "chance", ""):
        return (
            f"it drew random numbers in eval mode ({drawn}) when it was asked what it is: its answers cannot be compared with one another"
        )
    if reshapes := getattr(facts, "reshapes", ()):
        return f"with {' and with '.join(reshapes)} its output has another form in every form of it that it takes: masks could not be tried"
    if getattr(facts, "lengths", ()) == (1,) and "length" in target.kind.fields(target):
        return "it answers sequences of one token alone, of which nothing shows how tokens see each other"
    if away := declared_away(target):
        return f"the target says that it takes no {', '.join(away)}, which its signature has: {MEANT}"
    said = own_words(target)
    if "head_dims" in said and max(said["head_dims"]) < SHORT:
        return f"the target says of itself that its heads have at most {max(said['head_dims'])} features, too few to tell answers apart: {MEANT}"
    if said.get("window") == (0, 0):
        return f"the target says of itself that a query sees one key alone, which leaves nothing of an attention: {MEANT}"
    return ""


def declared_away(target: Target) -> list[str]:
    """Parameters of its signature that a target in a process of its own, which nobody vouches for, says itself that it does not take."""
    stub = target.function
    if not isinstance(stub, Stub) or "parameters" not in target.own:
        return []
    try:
        formal = inspect.signature(stub).parameters
    except (TypeError, ValueError):
        return []
    return [name for name in target.kind.options(formal) if name not in target.parameters]
