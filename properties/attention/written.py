"""What a callable does, held against what its documentation says of it: the polarity of a mask, the causal corner."""

from __future__ import annotations

from dataclasses import replace

from ..engine.core.documented import HIDDEN, SEEN, added, corner, polarity, text_of
from ..engine.core.target import Target, innermost
from ..engine.core.words import version, without_measured
from .conventions import IS_ADDED
from .question import PADDING, meant
from .speech import formal_of

BY, TAKES, REFUSED = "attncheck", "takes", "refused"


def with_documentation(target: Target) -> Target:
    """The target: what its documentation says otherwise is wrong, and what it says is no mistake, though the names of others say otherwise."""
    text = text_of(innermost(target.function))
    if not text or target.declared & {"mask_kinds", "causal"}:
        return target
    wrong, differs = dict(target.wrong), dict(target.differs)
    formal = formal_of(target.function)
    masks = [name for name in formal if (meant(name) or name) in ("attn_mask", *PADDING)]
    for name in masks:
        how, said = _how(target, name), polarity(text, name, masks)
        if said and how and said != how:
            wrong[name] = f"its documentation says that True, or 1, is {said}; it is {how}"
        elif name == "attn_mask" and (
            (said == how == HIDDEN and "bool mask" in wrong) or (IS_ADDED in wrong.get("bool mask", "") and added(text, name, masks))
        ):
            differs["bool mask"] = wrong.pop("bool mask") + ", and so its documentation says"
    square = target.learned.get("lengths", "").startswith("as many")
    said = corner(text) if "is_causal" in target.parameters and not square else ""
    if said and said != target.supports.causal:
        wrong["causal corner"] = f"its documentation says {said}; it is {target.supports.causal}"
    elif said and "causal corner" in wrong:
        differs["causal corner"] = wrong.pop("causal corner") + ", and so its documentation says"
    return replace(target, wrong=wrong, differs=differs)


def words(target: Target) -> dict[str, str]:
    """What a handshake tells of a target, but for numbers that it measured: which names and axes it has, in what it differs, what it refuses."""
    told = {name: without_measured(how) for name, how in {**target.learned, **target.differs}.items()}
    return {BY: version()} | told | dict.fromkeys(target.refuses, REFUSED) | {TAKES: ", ".join(sorted(target.parameters))}


def with_what_was_spoken(target: Target) -> Target:
    """The target: what is told of it otherwise than was written down is wrong. What is declared is not asked, and need not be told."""
    before = target.supports.spoken
    if before is None:
        return target
    if before.get(BY) != version():
        return replace(
            target, untried={**target.untried, "spoken": f"written by attncheck {before.get(BY)}, in other words; write it anew"}
        )
    wrong = dict(target.wrong)
    for name, how in words(target).items():
        if name == TAKES:
            if lost := sorted(set(before.get(name, "").split(", ")) - {*how.split(", "), ""}):
                wrong[name] = f"{', '.join(lost)} no longer, which it took when it was written down"
        elif how != before.get(name):
            wrong[name] = f"{how}; when it was written down, it was {before.get(name, 'as usual')}"
    return replace(target, wrong=wrong)


def _how(target: Target, name: str) -> str:
    """What True, or 1, is found to mean in a mask; empty if it was not asked, or is added."""
    learned = target.learned.get(name, "")
    found = [one for one in (SEEN, HIDDEN) if f"= {one}" in learned]
    if name == "attn_mask" and name in target.parameters and not learned and "bool" in target.supports.mask_kinds:
        turned = any("True where a key is hidden" in told.get("bool mask", "") for told in (target.wrong, target.differs))
        return HIDDEN if turned else SEEN
    return found[0] if len(found) == 1 else ""
