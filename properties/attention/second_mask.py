"""A second mask beside the first: ``key_padding_mask`` beside ``attn_mask`` (torch.nn.MultiheadAttention), T5's ``mask`` beside ``position_bias``.

What it says is learned by effect, as of the first. From then on the two share what is hidden, so that one that is lost beside the other shows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ..engine.cases.masks import MASK_KINDS
from ..engine.core.target import NotTaken, Target
from ..engine.frameworks import Framework
from .inputs import Inputs
from .question import ADDED_KINDS, PADDING, Question, meant
from .speech import ADDED, FORMS, SAID, Reading, formal_of, mask_part, say

Said = Mapping[str, tuple[str, str]]  # "bool" or "added" → how a mask is said, and its form


def with_second_mask(target: Target, question: Question) -> Target:
    """The target with its second mask, if it has one; what is wrong with it is told."""
    used = (*target.learned, "attn_mask")
    names = [name for name in formal_of(target.function) if meant(name) == "attn_mask" and name not in used]
    if "attn_mask" not in target.parameters or len(names) != 1 or {"mask_kinds", "mask_axes"} & target.declared:
        return target
    (theirs,) = names
    untried = {name: why for name, why in target.untried.items() if name != theirs}
    said, off = _said(question, theirs)
    if not said and not np.isfinite(off):
        return replace(target, untried={**untried, theirs: "beside the mask that is tried: it hides what it says in no form that is known"})
    if not said:
        forms = "padding mask (batch, keys), be True hidden or seen" if theirs in PADDING else "mask in any form that is known"
        says = f"its answers are those of no {forms}, off by {off:.2g}"
        return replace(target, untried=untried, wrong={**target.wrong, theirs: says})
    how = "; ".join(how if form == "as it is" else f"{how}, of axes ({', '.join(form)})" for how, form in said.values())
    taken = set(target.supports.mask_axes)
    axes = tuple(
        one for one in type(target.supports)().mask_axes if one in taken or any(set(one) <= set(FORMS[form]) for _, form in said.values())
    )
    kinds = ("bool",) * ("bool" in said) + ADDED_KINDS * (ADDED in said)
    kinds = tuple(kind for kind in MASK_KINDS if kind in (*target.supports.mask_kinds, *kinds))
    alone = _with(target, theirs, said, shared=False)
    shared = _with(target, theirs, said, shared=True)
    together = replace(question, target=shared).off(Reading(layout=target.supports.layout), *_both(question, target, said))
    if together is None:
        untried[f"{theirs} beside a mask"] = "not taken"
    elif together >= question.near:
        says = f"given beside the other mask, the two do not hide, or add, what both say: off by {together:.2g}"
        target = replace(target, wrong={**target.wrong, theirs: says})
    return replace(
        target,
        function=(shared if together is not None and together < question.near else alone).function,
        supports=replace(target.supports, mask_axes=axes, mask_kinds=kinds),
        learned={**target.learned, theirs: f"a second mask, {how}"},
        untried=untried,
    )


def _said(question: Question, theirs: str) -> tuple[dict[str, tuple[str, str]], float]:
    """How masks of each kind are said to a parameter, alone; and how far off the nearest answer is, infinite where there is none."""
    found: dict[str, tuple[str, str]] = {}
    nearest = np.inf
    kinds = (("bool", SAID), (ADDED, (ADDED,)))
    for kind, hows in kinds[1:] if "bias" in theirs else kinds[:1] if theirs in PADDING else kinds:
        for form in ("bs",) if theirs in PADDING else [form for form in FORMS if kind == "bool" or form != "bs"]:
            for how in hows:
                reading = Reading(layout=question.target.supports.layout, said={kind: (theirs, how)}, form=form)
                off = question.off(reading, *question.masked(kind, FORMS[form]))
                nearest = min(nearest, np.inf if off is None else off)
                if off is not None and off < question.near:
                    found.setdefault(kind, (how, form))
    return found, nearest


def _both(question: Question, target: Target, said: Said) -> list[Inputs]:
    """Calls with a mask of each kind that both parameters can say."""
    asked: list[Inputs] = []
    for kind, (_, form) in said.items():
        if kind == "bool" or set(target.supports.mask_kinds) - {"bool"}:  # what hides can be added, too, and not the other way round
            asked += [
                inputs for inputs in question.masked(kind, FORMS[form], keys=8) if inputs.mask is not None and _sayable(inputs.mask, target)
            ]
            asked += question.masked(kind, "S", keys=8)
    return asked


def _sayable(mask: Any, target: Target) -> bool:
    """Whether the first parameter takes masks that vary along the axes of this one."""
    shape = (1,) * (4 - len(mask.shape)) + tuple(mask.shape)
    varies = {letter for letter, size in zip("BHLS", shape, strict=True) if size > 1}
    return any(varies <= set(one) for one in target.supports.mask_axes)


def _with(target: Target, theirs: str, said: Said, shared: bool) -> Target:
    """The target whose masks are said by two parameters; ``shared``: each says half of the keys where there is an even number of them."""
    function, fw, layout = target.function, target.framework, target.supports.layout
    own = {kind if kind == "bool" else ADDED for kind in target.supports.mask_kinds}  # of the first mask

    def attention(q: Any, k: Any, v: Any, **options: Any) -> Any:
        mask = options.get("attn_mask")
        if mask is None:
            return function(q, k, v, **options)
        kind = "bool" if fw.describe(mask)[1].endswith("bool") else ADDED
        how, form = said.get(kind, ("", ""))
        shape = (1,) * (4 - len(mask.shape)) + tuple(mask.shape)
        varies = {letter for letter, size in zip("BHLS", shape, strict=True) if size > 1}
        first, second = kind in own and _sayable(mask, target), bool(how) and varies <= set(FORMS[form])
        if not first and not second:
            raise NotTaken("masks of which no parameter can say all")
        as_added = second and not first and kind == "bool" and _sayable(mask, target)  # the first takes what is added alone
        halves = (first or as_added) and second and shared and shape[3] % 2 == 0
        mine, rest = _halves(mask, fw) if halves else (None, mask) if first else (mask, None)
        if rest is not None and as_added:
            dtype, device = fw.describe(q)[1:]
            rest = fw.assign(fw.full(tuple(rest.shape), 0.0, dtype, device), np.where(fw.read(rest), 0.0, -np.inf))
        if mine is not None:
            reading = Reading(layout=layout, form=form)
            options[theirs] = mask_part(say(mine, how, q, fw), reading, tuple(q.shape), tuple(k.shape), {}, fw)
        return function(q, k, v, **{**options, "attn_mask": rest})

    attention.__asks__ = function  # type: ignore[attr-defined]
    return replace(target, function=attention)


def _halves(mask: Any, fw: Framework) -> tuple[Any, Any]:
    """Two masks that are one together: the first half of the keys, and the other."""
    half = mask.shape[-1] // 2
    shape, dtype, device = fw.describe(mask)
    ones = (*shape[:-1], half)
    nothing = fw.full(ones, 1.0, "float32", device) > 0 if dtype.endswith("bool") else fw.full(ones, 0.0, dtype, device)
    return fw.concatenate([mask[..., :half], nothing], len(shape) - 1), fw.concatenate([nothing, mask[..., half:]], len(shape) - 1)
