"""What a callable does, held against what its documentation says of it: the polarity of a mask, the causal corner."""

from __future__ import annotations

from dataclasses import replace

from ..engine.core.documented import HIDDEN, SEEN, added, corner, polarity, text_of
from ..engine.core.target import Target, innermost
from .conventions import IS_ADDED
from .question import PADDING, meant
from .speech import formal_of


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


def _how(target: Target, name: str) -> str:
    """What True, or 1, is found to mean in a mask; empty if it was not asked, or is added."""
    learned = target.learned.get(name, "")
    found = [one for one in (SEEN, HIDDEN) if f"= {one}" in learned]
    if name == "attn_mask" and name in target.parameters and not learned and "bool" in target.supports.mask_kinds:
        turned = any("True where a key is hidden" in told.get("bool mask", "") for told in (target.wrong, target.differs))
        return HIDDEN if turned else SEEN
    return found[0] if len(found) == 1 else ""
