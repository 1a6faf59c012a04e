"""What a mask hides is as good as removed, for every sequence by itself."""

from dataclasses import replace
from functools import partial

import numpy as np

from ..engine.cases.coordinates import Array
from ..engine.core.declare import declare
from ..engine.core.target import NotTaken, Raised
from .cases import MANY, MODULE
from .facts import CALM
from .masks import changed
from .speech import Tokens
from .trial import ModuleTrial

module = partial(declare, contract=MODULE.name, needs=("mask",))
SEVERAL = (2, 3, 4, 5, 7, 8, 16, 17)


@module(
    "∂out/∂x_j = 0 for hidden j, in other rows",
    exact=True,
    length=MANY,
    memory=(*(None,) * len(SEVERAL), *SEVERAL),
    padded=True,
    dtypes="all",
)
def module_hidden_tokens_are_ignored(t: ModuleTrial) -> None:
    """Other numbers in hidden tokens do not change a bit of any other row; nor where a second mask hides others.

    What a mask hides from one row it hides from all, wherever the token stands.
    """
    x = t.inputs
    exact = t.case.dtype == "float64" and t.case.magnitude <= 0 and not t.facts.routed
    if exact and t.saying.shape != "lengths" and t.choice("one alone", 3) == 2:
        _hidden_from_all_or_none(t, x)
        return
    if t.causal and t.saying.shape != "lengths" and x.hideable > 2 and t.choice("inside", 3):
        x = _hidden_inside(x)
    both = t.second_mask(x) if t.choice("two masks", 2) else None
    assert x.visible is not None
    places = {b: tuple(map(int, np.flatnonzero(~x.visible[b, 0]))) for b in range(t.case.batch)}
    beside = f", beside {both.second[0].parameter}" if both and both.second else ""
    t.unmoved(
        t.run(changed(both or x, places)),
        t.run(both or x),
        f"row {{row}} of sequence {{head}} changed with tokens that are hidden{t.by}{beside}",
        t.own_rows(x),
    )


def _hidden_inside(x: Tokens) -> Tokens:
    """With token 1 hidden, too: what is hidden at the end alone no row sees that is causal, be it masked or not."""
    assert x.visible is not None
    visible = x.visible.copy()
    visible[..., 1] = False
    return replace(x, visible=visible)


def _hidden_from_all_or_none(t: ModuleTrial, x: Tokens) -> None:
    """Of one token, anywhere but at the beginning: where a row no longer sees it under the mask, no other one does."""
    place = 1 + t.choice("hidden place", max(x.hideable - 1, 1))
    if place >= x.hideable:
        raise NotTaken("one token, which is never hidden")
    visible = np.ones((t.case.batch, 1, x.hideable), dtype=bool)
    visible[..., place] = False
    plain, masked = replace(x, visible=None), replace(x, visible=visible)
    here: dict[int, tuple[int, ...]] = dict.fromkeys(range(t.case.batch), (place,))
    calm = t.made(gain=CALM)
    seen = (t.run(plain, calm) != t.run(changed(plain, here), calm)).any(2)
    out, moved = t.run(masked, calm), t.run(changed(masked, here), calm)
    others = np.ones(seen.shape, dtype=bool)
    if x.about == "x" and not t.speech.pooled:
        others[:, place] = False
    if (seen & (out == moved).all(2) & others).any():
        t.unmoved(moved, out, f"row {{row}} changed with token {place}, which is hidden from another row{t.by}", others[:, :, None])


@module(
    "out(x, hidden from n on)_i = out(x_0 … x_{n−1})_i", length=MANY, memory=(None, *SEVERAL), padded=True, about=("lengths",), batch=(1, 2)
)
def module_padding_is_as_good_as_removed(t: ModuleTrial) -> None:
    """A sequence with padding is answered as the sequence without it."""
    x, at = t.inputs, t.choice("element", t.case.batch)
    assert x.visible is not None
    count, own = int(x.visible[at, 0].sum()), x.about == "x"
    rows = count if own and not t.speech.pooled else None
    alone = x.of(slice(at, at + 1))
    short = replace(alone, visible=None, by=None, **{x.about: getattr(alone, x.about)[:, :count]})
    t.agree(
        t.run()[at : at + 1, :rows],
        t.run(short),
        lambda: t.allowed()[at : at + 1, :rows] + t.allowed(short),
        f"row {{row}} of sequence {at} is another one than without its padding{t.by}",
    )


@module("a mask that hides nothing = no mask", about=("no mask",), padded=False)
def module_a_mask_of_all_seen_changes_nothing(t: ModuleTrial) -> None:
    """A mask that hides no token answers as no mask does."""
    x = t.inputs
    seen = replace(x, by=t.saying)
    masked = replace(seen, visible=np.ones((t.case.batch, 1, seen.hideable), dtype=bool))
    t.agree(
        t.run(masked), t.run(), lambda: t.allowed(masked) + t.allowed(), f"row {{row}} is another one with a mask that hides nothing{t.by}"
    )


@module("out(x, mask)[b] = out(x[b], mask[b])", batch=(2, 3, 4), length=MANY, memory=(None, *SEVERAL), padded=True)
def module_a_mask_stays_with_its_sequence(t: ModuleTrial) -> None:
    """A sequence is not answered under the mask of another one; the windows of several images share the masks of one (Liu et al. 2021)."""
    x, at = t.inputs, t.choice("element", t.case.batch)
    assert x.visible is not None
    if t.facts.lengths and t.saying.shape == "bls" and t.case.batch == 4 and t.choice("images", 2):
        _of_windows(t, x, x.visible[: t.case.batch // 2])
        return
    here = slice(at, at + 1)
    alone = x.of(here)
    t.agree(
        t.run()[here],
        t.run(alone),
        lambda: t.allowed()[here] + t.allowed(alone),
        f"row {{row}} of sequence {at} is another one beside other masks{t.by}",
        t.own_rows()[here],
    )


def _of_windows(t: ModuleTrial, x: Tokens, masks: Array) -> None:
    """Masks of the windows of one image, for those of two, one image after the other. Raises NotTaken."""
    whole = replace(x, visible=np.concatenate([masks, masks]))
    try:
        out = t.run(replace(x, visible=masks))
    except Raised:
        raise NotTaken("fewer masks than sequences") from None
    t.agree(
        out,
        t.run(whole),
        lambda: 2 * t.allowed(whole),
        f"row {{row}} of window {{head}} is answered under the mask of another window{t.by}",
    )


@module(
    "causal and hidden: ∂out_i/∂x_j = 0 for j > i", exact=True, length=MANY, memory=None, padded=True, about=("causal", "rows", "together")
)
def module_a_mask_leaves_causality(t: ModuleTrial) -> None:
    """A mask beside causality does not take its place: later tokens are hidden, too.

    In a window the row of a hidden token may have nothing left to see, and what it gives then is a convention.
    """
    x, place = t.inputs, 1 + t.choice("place", max(t.case.length - 1, 1))
    later = np.arange(t.case.length) >= place
    other = replace(x, x=t.other(x.x, later[None]))
    asked = t.own_rows() if t.facts.local else np.ones(1, dtype=bool)
    t.unmoved(t.run(other), t.run(), f"row {{row}} changed when tokens from {place} on changed", ~later[None, :, None] & asked)
