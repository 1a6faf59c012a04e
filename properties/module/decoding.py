"""Caches of modules: tokens that are fed in chunks are answered as among all tokens so far, and nothing else is left of them."""

from functools import partial

import numpy as np

from ..engine.core.declare import declare
from .cases import CACHED, MODULE
from .feeding import begun, chunks, fed, last_of_chunks, whole_of
from .speech import Tokens
from .trial import ModuleTrial

module = partial(declare, contract=MODULE.name, length=CACHED["length"], memory=None, padded=False, is_causal=False)


@module("out(x_n … x_m | cache of x_0 … x_n−1) = out(x_0 … x_m)_n…m", about=("cache",), dtypes="all")
def module_a_cache_answers_as_no_cache(t: ModuleTrial) -> None:
    """Told in chunks, the last tokens get the rows that they get among all tokens without a cache."""
    sizes = chunks(t, t.case.length)
    last = last_of_chunks(t)
    at = t.case.length - sizes[-1]
    plain = whole_of(t.speech.keeping, t.inputs.x)
    t.agree(
        last,
        t.run(plain)[:, at:],
        lambda: 2 * t.allowed(plain)[:, at:],
        f"row {{row}} of the last of chunks of {sizes} tokens is another one",
    )


@module("out(x, cache asked for) = out(x)", about=("cache",))
def module_asking_for_a_cache_changes_nothing(t: ModuleTrial) -> None:
    """The first tokens of a sequence are answered with a cache as without one."""
    out = t.read(begun(t, t.made()).feed(t.inputs.x), t.inputs)
    plain = whole_of(t.speech.keeping, t.inputs.x)
    t.agree(out, t.run(plain), lambda: 2 * t.allowed(plain), "row {row} is another one where a cache is asked for")


@module("out of a second sequence = out of the first", about=("cache", "begins anew"), exact=True)
def module_a_second_sequence_starts_anew(t: ModuleTrial) -> None:
    """After another sequence, of another length, a sequence is answered with a new cache as in a new module: nothing is left in it."""
    made = t.made()
    fed(t, t.tokens("earlier", min(t.case.length + 3, t.facts.longest), t.speech.width), begun(t, made))
    for out, fresh in zip(fed(t, t.inputs.x, begun(t, made)), fed(t, t.inputs.x, begun(t, t.made())), strict=True):
        t.same_bits(out, fresh, "row {row} of a second sequence is another one than in a new module")


@module("cached: out[b] depends on x[b] alone", about=("cache",), exact=True, batch=(2, 3, 4))
def module_cached_sequences_are_independent(t: ModuleTrial) -> None:
    """With a cache, too, other tokens in all other sequences do not change a bit of this one."""
    here = np.arange(t.case.batch) == t.choice("element", t.case.batch)
    outs = [fed(t, x, begun(t, t.made())) for x in (t.inputs.x, t.other(t.inputs.x, ~here))]
    at = 0
    for one, other in zip(*outs, strict=True):
        rows, at = slice(at, at + one.shape[1]), at + one.shape[1]
        t.unmoved(other, one, "row {row} of sequence {head} changed with another sequence", here[:, None, None], rows)


@module("out(x | cache), out(y | cache), out(x | cache): the first = the last", about=("cache", "handed back"), exact=True)
def module_a_cache_can_be_continued_twice(t: ModuleTrial) -> None:
    """What came back is not changed by the next call: two continuations of the same past do not meet."""
    held = begun(t)
    last = chunks(t, t.case.length)[-1]
    x = t.inputs.x
    held.feed(x[:, :-last])
    past, start = held.cache, held.start
    outs = []
    for part in (x[:, -last:], t.other(x[:, -last:], True), x[:, -last:]):
        held.cache, held.start = past, start
        outs.append(t.read(held.feed(part), Tokens(part)))
    t.same_bits(outs[2], outs[0], "row {row} is another one after another continuation of the same cache")
