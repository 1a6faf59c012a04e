"""Which token sees which: later ones, other sequences, the order, the length.

These hold of every attention, whatever its weights: a module is asked twice, and its answers are compared.
"""

from dataclasses import replace
from functools import partial

import numpy as np

from ..engine.cases.coordinates import Array
from ..engine.core.declare import declare
from ..engine.core.target import NotTaken
from .cases import MANY, MODULE
from .facts import CALM
from .speech import PACKED, Tokens
from .trial import ModuleTrial

module = partial(declare, contract=MODULE.name)


def somewhere(t: ModuleTrial, count: int) -> int:
    """One of so many places: as often the last one as any."""
    return count - 1 if t.choice("last", 2) else t.choice("place", count)


@module("causal: ∂out_i/∂x_j = 0 for j > i", exact=True, about=("causal", "rows"), length=MANY, memory=None, dtypes="all")
def module_future_tokens_are_ignored(t: ModuleTrial) -> None:
    """Other tokens from some place on do not change a bit of the rows before it, but for those of hidden tokens in a window, which may see none."""
    x, place = t.inputs, 1 + t.choice("place", max(t.case.length - 1, 1))
    later = np.arange(t.case.length) >= place
    other = replace(x, x=t.other(x.x, later[None]))
    rows = ~later[None, :, None] & (t.own_rows() if t.facts.local else True)
    t.unmoved(t.run(other), t.run(), f"row {{row}} changed when tokens from {place} on changed", rows)


@module(
    "causal: out(x_0 … x_n)_i = out(x_0 … x_m)_i for i ≤ n < m", about=("causal", "rows", "lengths"), length=MANY, memory=None, padded=False
)
def module_prefix_of_output_is_output_of_prefix(t: ModuleTrial) -> None:
    """What a causal module answers to the first tokens alone is the beginning of its answer to all."""
    x, count = t.inputs, 1 + t.choice("count", max(t.case.length - 1, 1))
    part = Tokens(x.x[:, :count], x.memory, None, x.is_causal)
    t.agree(
        t.run()[:, :count],
        t.run(part),
        lambda: t.allowed()[:, :count] + t.allowed(part),
        f"row {{row}} of the first {count} tokens is another one among all {t.case.length}",
    )


@module(
    "∂out_i/∂x_j ≠ 0 for every j that row i may see",
    about=("self", "whole", "rows", "alike", "dense"),
    length=(*MANY, 17, 17, 31, 33, 33, 65),
    memory=None,
    padded=False,
    magnitude=0,
    dtypes=("float64",),
)
def module_every_token_is_seen(t: ModuleTrial) -> None:
    """The last row sees every token: another token somewhere changes it, and every other row that may see it."""
    x, place, calm = t.inputs, somewhere(t, t.case.length), t.made(gain=CALM)
    other = Tokens(t.other(x.x, (np.arange(t.case.length) == place)[None]), None, None, x.is_causal)
    unmoved = (t.run(other, calm) == t.run(x, calm)).all(2, keepdims=True)  # (B, L, 1)
    asked = np.arange(t.case.length)[None, :, None] >= (place if t.causal else 0)
    t.same_bits(unmoved & asked, np.zeros_like(unmoved), f"row {{row}} is the same bits with another token {place}")


@module("out_i(memory) ≠ out_i(other memory)", about=("memory",), memory=(1, 2, 3, 5, 8), padded=False, magnitude=0, dtypes=("float64",))
def module_every_token_of_the_memory_is_seen(t: ModuleTrial) -> None:
    """Another token somewhere in the memory changes every row; of one alone the difference of two softmaxes is 0."""
    x, count = t.inputs, t.case.memory or 1
    place = somewhere(t, count)
    assert x.memory is not None
    if count == 1 and t.facts.difference:
        raise NotTaken(f"a memory of one token, of which the difference of two softmaxes is 0: {t.facts.difference}")
    other = Tokens(x.x, t.other(x.memory, (np.arange(count) == place)[None]), None, x.is_causal)
    calm = t.made(gain=CALM)
    unmoved = (t.run(other, calm) == t.run(x, calm)).all(2, keepdims=True)
    t.same_bits(unmoved, np.zeros_like(unmoved), f"row {{row}} is the same bits with another token {place} of the memory")


# ---------------------------------------------------------------- sequences


@module("out[b] depends on x[b], memory[b], mask[b] alone", exact=True, batch=(2, 3, 4), dtypes="all")
def module_batch_elements_are_independent(t: ModuleTrial) -> None:
    """Other tokens in all other sequences do not change a bit of this one."""
    x, here = t.inputs, np.arange(t.case.batch) == t.choice("element", t.case.batch)
    memory = None if x.memory is None else t.other(x.memory, ~here)
    other = replace(x, x=t.other(x.x, ~here), memory=memory)
    t.unmoved(t.run(other), t.run(), "row {row} of sequence {head} changed with another sequence", here[:, None, None])


@module("out(x)[b] = out(x[b])", batch=(2, 3, 4))
def module_a_batch_is_its_sequences(t: ModuleTrial) -> None:
    """A sequence is answered in a batch as it is alone, under its own mask; in a pack, also beside one of another length."""
    x, at = t.inputs, t.choice("element", t.case.batch)
    here = slice(at, at + 1)
    alone = x.of(here)
    t.agree(
        t.run()[here], t.run(alone), lambda: t.allowed()[here] + t.allowed(alone), f"row {{row}} of sequence {at} is another one in a batch"
    )
    count = t.case.batch * t.case.length
    if t.speech.layout not in PACKED or count < 3:
        return
    cut = 1 + t.choice("cut", count - 2)
    whole = replace(x, cut=cut)
    for part in (slice(None, cut), slice(cut, None)):
        single = replace(x, x=x.x.reshape(1, count, -1)[:, part])

        def within(out: Array, part: slice = part) -> Array:
            return out.reshape(1, count, -1)[:, part]

        t.agree(
            within(t.run(whole)),
            t.run(single),
            lambda single=single, within=within: within(t.allowed(whole)) + t.allowed(single),
            f"row {{row}} of tokens {part.start or 0} to {part.stop or count}, packed beside the others, is another one than alone",
        )


# ---------------------------------------------------------------- order


@module("out(x_σ) = out(x)_σ", about=("open", "self", "unordered", "whole"), length=MANY, memory=None, padded=False, is_causal=False)
def module_permuted_tokens_permute_rows(t: ModuleTrial) -> None:
    """Where nothing tells positions apart, tokens in another order give the same rows in that order; of the one that asks alone, none."""
    x, order = t.inputs, t.permutation("order", t.case.length)
    if t.facts.first:
        order = np.append(0, order[order != 0])
    moved = Tokens(x.x[:, order])
    back = slice(None) if t.speech.pooled else order
    t.agree(t.run(moved), t.run()[:, back], lambda: t.allowed(moved) + t.allowed()[:, back], "row {row} depends on the order of tokens")


@module(
    "out(x_σ) = out(x)_σ, σ of lines, or of columns",
    about=("open", "self", "image", "unordered", "ungrouped"),
    length=(4, 6, 8, 9, 12, 15, 16),
    memory=None,
    padded=False,
)
def module_permuted_lines_permute_rows(t: ModuleTrial) -> None:
    """Where nothing tells positions apart, lines of an image in another order give the same rows in that order, and so do columns.

    This holds where tokens see their own line and column alone, too (Ho et al. 2019).
    """
    x = t.inputs
    high, wide = t.speech.sides(t.case.length)
    places = np.arange(t.case.length).reshape(high, wide)
    columns = t.choice("columns", 2)
    order = np.take(places, t.permutation("order", (high, wide)[columns]), columns).ravel()
    moved = Tokens(x.x[:, order])
    back = slice(None) if t.speech.pooled else order
    what = "columns" if columns else "lines"
    t.agree(t.run(moved), t.run()[:, back], lambda: t.allowed(moved) + t.allowed()[:, back], f"row {{row}} depends on the order of {what}")


@module(
    "positions of 0: out(x_σ) = out(x)_σ",
    about=("open", "self", "learned", "whole", "dense"),
    length=MANY,
    memory=None,
    padded=False,
    is_causal=False,
)
def module_without_its_positions_order_does_not_matter(t: ModuleTrial) -> None:
    """Where learned positions are 0, and nothing else tells tokens apart, tokens after the first in another order give rows in that order."""
    x, order, silent = t.inputs, t.permutation("order", t.case.length), t.made(silent=t.facts.learned)
    order = np.append(0, order[order != 0])
    moved = Tokens(x.x[:, order])
    back = slice(None) if t.speech.pooled else order
    t.agree(
        t.run(moved, silent),
        t.run(x, silent)[:, back],
        lambda: t.allowed(moved, silent) + t.allowed(x, silent)[:, back],
        "row {row} depends on the order of tokens, though positions are 0",
    )


@module(
    "causal: out_n(x_σ(0) … x_σ(n−1), x_n) = out_n(x)",
    about=("causal", "unordered", "whole", "rows"),
    length=MANY,
    memory=None,
    padded=False,
)
def module_the_past_has_no_order(t: ModuleTrial) -> None:
    """Where nothing tells positions apart, the last row is the same whatever the order of the tokens before it."""
    x, last = t.inputs, t.case.length - 1
    order = np.append(t.permutation("order", last), last)
    moved = Tokens(x.x[:, order], x.memory, None, x.is_causal)
    t.agree(
        t.run(moved)[:, -1:],
        t.run()[:, -1:],
        lambda: (t.allowed(moved) + t.allowed())[:, -1:],
        "the last row depends on the order before it",
    )


@module(
    "out(x, memory_σ) = out(x, memory)", about=("memory", "unordered"), memory=(2, 3, 4, 5, 7, 8, 16, 17), padded=False, is_causal=False
)
def module_the_memory_has_no_order(t: ModuleTrial) -> None:
    """Where nothing tells positions apart, the order of the memory does not matter."""
    x, order = t.inputs, t.permutation("order", t.case.memory or 1)
    assert x.memory is not None
    moved = Tokens(x.x, x.memory[:, order])
    t.agree(t.run(moved), t.run(), lambda: t.allowed(moved) + t.allowed(), "row {row} depends on the order of the memory")


@module(
    "out(x, memory)_i depends on x_i alone",
    exact=True,
    about=("memory", "rows", "one at a time"),
    memory=(1, 2, 3, 5, 8),
    length=MANY,
    is_causal=False,
)
def module_rows_meet_only_the_memory(t: ModuleTrial) -> None:
    """A row that sees a memory does not see the other rows: they do not change a bit of it."""
    x, place = t.inputs, t.choice("place", t.case.length)
    here = np.arange(t.case.length) == place
    other = replace(x, x=t.other(x.x, ~here[None]))
    t.unmoved(t.run(other), t.run(), "row {row} changed with other rows", here[None, :, None])


@module("out(x, angles of p + n) = out(x, angles of p)", about=("angles", "turned last", "self"), memory=None)
def module_rotations_tell_distances_alone(t: ModuleTrial) -> None:
    """Where angles are given, queries and keys turn by them, and nothing else: later positions at the same distances change nothing."""
    shift = 1 + t.choice("shift", 16)
    moved = replace(t.inputs, shift=shift)
    t.agree(t.run(moved), t.run(), lambda: t.allowed(moved) + t.allowed(), f"row {{row}} is another one where positions begin at {shift}")


# ---------------------------------------------------------------- weights that sum to one


@module(
    "x_j = c for all j  ⇒  out_i = out(c)",
    about=("self", "unordered", "sum to one", "alike", "lengths"),
    length=MANY,
    memory=None,
    padded=False,
)
def module_equal_tokens_answer_as_one(t: ModuleTrial) -> None:
    """Weights sum to one: where all tokens are the same, every row is that of the token alone."""
    x = t.inputs
    one = Tokens(x.x[:, :1], None, None, x.is_causal)
    same = Tokens(np.repeat(x.x[:, :1], t.case.length, 1), None, None, x.is_causal)
    out = t.run(same)
    t.agree(
        out, np.broadcast_to(t.run(one), out.shape), lambda: t.allowed(same) + t.allowed(one), "row {row} is not that of the token alone"
    )


@module("x_j = c for all j  ⇒  out_i = out_0", about=("self", "logits alone", "sum to one", "alike", "rows"), memory=None, padded=False)
def module_equal_tokens_give_equal_rows(t: ModuleTrial) -> None:
    """Weights sum to one, and positions enter logits alone: where all tokens are the same, all rows are."""
    x = t.inputs
    same = Tokens(np.repeat(x.x[:, :1], t.case.length, 1), None, None, x.is_causal)
    out = t.run(same)
    t.agree(out, np.broadcast_to(out[:, :1], out.shape), lambda: 2 * t.allowed(same), "row {row} is not the first one, of equal tokens")


@module(
    "out(x, memory twice) = out(x, memory)",
    about=("memory", "unordered", "sum to one", "memory alone"),
    memory=(1, 2, 3, 5, 8),
    padded=False,
    is_causal=False,
)
def module_a_memory_twice_is_the_memory(t: ModuleTrial) -> None:
    """Weights sum to one: every token of the memory twice gives each copy half its weight."""
    x = t.inputs
    assert x.memory is not None
    twice = Tokens(x.x, np.concatenate([x.memory, x.memory], 1))
    t.agree(t.run(twice), t.run(), lambda: t.allowed(twice) + t.allowed(), "row {row} is another one with every token of the memory twice")


@module(
    "out(x twice)_i = out(x)_i",
    about=("open", "self", "unordered", "whole", "steady", "sum to one", "lengths"),
    length=(2, 3, 4, 5, 7, 8, 16),
    memory=None,
    padded=False,
    is_causal=False,
)
def module_tokens_twice_are_the_tokens(t: ModuleTrial) -> None:
    """Weights sum to one: with every token twice, each copy gets half the weight, and rows stay as they were."""
    x, rows = t.inputs, t.speech.pooled or t.case.length
    twice = Tokens(np.concatenate([x.x, x.x], 1))
    t.agree(
        t.run(twice)[:, :rows], t.run(), lambda: t.allowed(twice)[:, :rows] + t.allowed(), "row {row} is another one with every token twice"
    )
