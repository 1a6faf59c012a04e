"""Caches: decoding token by token, with what was fed before kept, is one causal pass over all of it.

    out_i = attention of q_i over the tokens j of its own sequence with  i − w < j ≤ i            (w: the window, if there is one)

in whatever chunks the tokens come, wherever they lie in memory, and whatever became of other sequences, copies and earlier texts.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from ..engine.cases.coordinates import Array
from ..engine.core.declare import declare
from ..engine.core.target import Raised
from .trial import CacheTrial, Held, Model, Played, Tokens

CACHE: dict[str, Any] = {"contract": "cached"}
LEVEL: dict[str, Any] = {**CACHE, "lengths": False, "padded": False}  # all sequences are of one length
BROKEN = ((1,), (1,), (2, 1), (3, 1), (5, 1), (2,), (3, 2), (1, 3, 1), (4, 1, 3))  # in more than one chunk
SEVERAL = (2, 3, 4, 5, 6, 7, 8, 9, 12, 17)  # tokens


def agree(t: CacheTrial, one: Played, other: Played, says: str) -> None:
    """Two computations of the same are apart by the sum of their bounds at most."""
    t.close(one.out, other.out, one.bound + other.bound, says, one.tokens.real)


def right(t: CacheTrial, played: Played, says: str) -> None:
    """Every row that is a token's is inside the bound."""
    t.inside(played, played.bound, says, played.tokens.real)


def parted(t: CacheTrial, parts: int) -> list[Tokens]:
    """The tokens of the case in consecutive parts, each of one token at least."""
    whole = t.universe
    cuts = sorted(t.permutation("parts", t.case.keys - 1)[: parts - 1] + 1)
    return [whole.part(start, stop) for start, stop in zip([0, *cuts], [*cuts, t.case.keys], strict=True)]


def altered(t: CacheTrial, tokens: Tokens, name: str) -> Tokens:
    """Other tokens of the same shape."""
    return tokens.but(q=-tokens.q, k=4 * t.noise(f"{name} k", tokens.k.shape), v=8 * t.noise(f"{name} v", tokens.v.shape))


def feed(model: Model, *parts: Tokens) -> tuple[Model, list[Played]]:
    """Feed parts to a cache, one after the other: (the model after them, the answers of the cache)."""
    answers: list[Callable[[], Played]] = []
    for part in parts:
        model, answer = model.told(part)
        answers.append(answer)
    return model, [answer() for answer in answers]


def joined(answers: list[Played]) -> Array:
    """Some answers, one after the other (B, H, n, Dv)."""
    return np.concatenate([played.out for played in answers], axis=2)


def as_new(t: CacheTrial, answers: list[Played], says: str, *past: Tokens) -> None:
    """The answers are those of a new cache that is fed the past and then the same."""
    _, others = feed(t.new(), *past, *(played.tokens for played in answers))
    for one, other in zip(answers, others[len(past) :], strict=True):
        agree(t, one, other, says)


# ---------------------------------------------------------------- one pass


@declare("out of any chunks = out of one causal pass", dtypes="all", **CACHE)
def cached_decoding_is_one_pass(t: CacheTrial) -> None:
    """Told in any chunks, a cache answers what one causal pass over the whole sequence gives, as its arithmetic promises."""
    right(t, t.play(), "token {row}, feature {column} is off")


@declare("out(prefill of n, steps of one) = out(n + …) in any other chunks", keys=SEVERAL, **CACHE)
def chunking_changes_nothing(t: CacheTrial) -> None:
    """All at once, one by one or in between: the same tokens give the same answers."""
    played = t.play()
    lengths = t.tokens.lengths
    for chunks in ((), (1,)):
        alone = t.play(t.tokens, t.unbroken(chunks, t.tokens))
        t.close(
            played.out,
            alone.out,
            played.bound + alone.bound,
            f"token {{row}} differs when fed in chunks {chunks or 'of all'}",
            (np.arange(t.case.keys) < lengths[:, None])[:, None, :, None],
        )


@declare(
    "q = 0, v_j = 1  ⇒  n_i·out_i = 1 if i − w < j ≤ i, else 0",
    keys=(1, *SEVERAL, 33),
    values="normal",
    value_dim=None,
    chunks=((), (1,), (1, 3), (2,), (2, 3, 1), (3,), (3, 2), (4, 1, 3)),
    **CACHE,
)
def cache_shows_exactly_the_past(t: CacheTrial) -> None:
    """A token sees itself and what its sequence was fed before, within its window; no more and no less."""
    one = (np.arange(t.case.keys) == t.choice("key", t.case.keys)) * 1.0
    played = t.play(t.tokens.but(q=np.zeros_like(t.tokens.q), v=np.broadcast_to(one[:, None], t.tokens.v.shape)))
    exact = played.exact
    visible = np.ones(exact.weights.shape) if exact.visible is None else exact.visible
    count = np.maximum(visible.sum(axis=-1, keepdims=True), 1)
    expected = np.broadcast_to((visible * one).sum(axis=-1, keepdims=True), played.out.shape)
    t.close(
        np.rint(played.out * count),
        expected,
        np.where(played.bound == np.inf, np.inf, 0.0),
        f"token {{row}} sees what it must not, or misses what it must see: token {int(np.argmax(one))}",
        played.tokens.real,
    )


@declare(
    "∂out_i/∂(q, k, v)_j = 0 for j > i, in one chunk and in later ones",
    exact=True,
    keys=SEVERAL,
    chunks=((), (2,), (3,), (5,), (2, 3), (1, 4), (4, 3), (3, 2, 1), (1,), (7, 1)),
    **CACHE,
)
def later_tokens_do_not_count(t: CacheTrial) -> None:
    """What is fed later, in the same chunk or in others, changes no bit of the answers before it."""
    first = 1 + t.choice("cut", t.case.keys - 1)
    later = (np.arange(t.case.keys) >= first)[:, None]
    x = t.tokens
    plain = t.play()
    changed = t.play(
        x.but(
            q=np.where(later, -x.q, x.q),
            k=np.where(later, 4 * t.noise("later k", x.k.shape), x.k),
            v=np.where(later, 8 * t.noise("later v", x.v.shape), x.v),
        )
    )
    t.same_bits(changed.out, plain.out, f"token {{row}} changed with tokens from {first} on", ~later & x.real)


@declare(
    "s_ij depends on R(i)q_i, R(j)k_j: i and j go on across chunks",
    needs=("rotary_base",),
    base=(10000.0, 10.0, 100.0, 500_000.0),
    chunks=BROKEN,
    keys=(*SEVERAL, 17, 24, 33),
    dtypes="all",
    **CACHE,
)
def positions_continue_across_steps(t: CacheTrial) -> None:
    """Queries and keys rotate by their place in the whole sequence, not by that in their chunk or in memory."""
    right(t, t.play(), "token {row}, feature {column} is off by a rotation")


@declare("out_i is as it was when it was given", exact=True, chunks=BROKEN, keys=SEVERAL, **CACHE)
def answers_already_given_stand(t: CacheTrial) -> None:
    """An answer is memory of its own: nothing that the cache is fed later changes it."""
    held = t.open()
    read: list[Array] = []
    t.play(held=held, after=lambda held: read.append(t.target.read(held.raw[-1])))
    for number, (raw, before) in enumerate(zip(held.raw, read, strict=True)):
        t.same_bits(t.target.read(raw), before, f"the answer to chunk {number} was changed by a later one")


# ---------------------------------------------------------------- memory


@declare("fill = NaN  ⇒  the same bits", needs=("fill",), exact=True, **CACHE)
def unused_slots_do_not_count(t: CacheTrial) -> None:
    """Slots that hold no token yet change nothing, not even full of NaN."""
    plain = t.play(held=t.open(fill=0.0))
    for fill in (float("nan"), 1000.0):
        t.same_bits(t.play(held=t.open(fill=fill)).out, plain.out, f"token {{row}} changed when unused slots hold {fill}")


@declare("k, v overwritten after append  ⇒  the same bits", exact=True, chunks=BROKEN, keys=SEVERAL, **CACHE)
def cache_keeps_copies(t: CacheTrial) -> None:
    """What is fed is the cache's own from then on: the caller may use its arrays for something else."""

    def play(then: float) -> Played:
        def overwrite(_: Held) -> None:
            for _name, array in t.buffers.arrays():
                t.target.framework.assign(array, np.full(array.shape, then))

        return t.play(after=overwrite)

    t.same_bits(play(-5.0).out, play(7.0).out, "token {row} changed with what is in arrays fed earlier")


@declare("q, k, v after = before", exact=True, dtypes="all", **CACHE)
def append_leaves_its_arguments(t: CacheTrial) -> None:
    """Appending changes none of its arguments, rotary or not."""
    for part in parted(t, min(2, t.case.keys)):
        held = t.open()
        held.append(part.q, part.k, part.v)
        for (name, array), given in zip(t.buffers.contents()[-3:], (part.q, part.k, part.v), strict=True):
            t.same_bits(array, given, f"{name} was changed by append")


@declare("out (B, H, n, Dv) in the type and on the device of q; no memory shared", exact=True, dtypes="all", **CACHE)
def answers_have_the_right_form(t: CacheTrial) -> None:
    """Every answer has the shape (batch, heads, tokens, value_dim), the type and device of the queries, and memory of its own."""
    held = t.open()
    t.play(held=held, after=lambda _: None)  # one by one
    for size, raw in zip(t.schedule.sizes, held.raw, strict=True):
        shape, dtype, device = t.target.framework.describe(raw)
        wanted = (t.case.batch, t.case.heads, size, t.tokens.v.shape[3])
        if t.supports.layout == "blhd":
            wanted = (t.case.batch, size, t.case.heads, t.tokens.v.shape[3])
        if (shape, dtype, device) != (wanted, t.case.dtype, t.case.device):
            t.fail(f"returned {dtype} {shape} on {device}, expected {t.case.dtype} {wanted} on {t.case.device}")
        for name, array in t.buffers.arrays():
            if t.target.framework.shares_memory(raw, array):
                t.fail(f"the answer shares memory with {name}")


@declare(
    "pages of any size, in any order = contiguous", needs=("page_size",), page_size=(1, 2, 3, 3, 4, 5, 7, 16), spare=(0, 0, 1, 5), **CACHE
)
def pages_are_contiguous_memory(t: CacheTrial) -> None:
    """Where the pages lie and how large they are is nobody's business: a paged cache answers as a contiguous one."""
    agree(t, t.play(), t.play(held=t.open(page_size=None)), "token {row} differs between pages and contiguous memory")


@declare("length ≤ capacity is right, length = capacity + 1 raises or is right", spare=0, chunks=((), *BROKEN), **LEVEL, window_left=None)
def full_capacity_can_be_used(t: CacheTrial) -> None:
    """All slots can be used. A token too many is refused, or answered rightly by a cache that grows; it is never answered wrongly."""
    full, roomy = t.open(), t.open(capacity=t.capacity + 7)
    played = t.play(held=full)
    agree(t, played, t.play(held=roomy), f"token {{row}} differs between {t.capacity} slots, all in use, and more")
    models = [Model(held, played.tokens.k, played.tokens.v) for held in (full, roomy)]
    for _ in range(2):  # the first may still see all, and overwrite what the second should
        try:
            models[0], more = models[0].fed(t.universe.part(0, 1))
        except Raised:
            return
        models[1], expected = models[1].fed(t.universe.part(0, 1))
        agree(t, more, expected, f"a token beyond the capacity of {t.capacity} is answered wrongly")


# ---------------------------------------------------------------- sequences of a batch


@declare("∂out_b/∂(q, k, v)_c = 0 for c ≠ b", exact=True, batch=(2, 3, 4), **CACHE)
def sequences_do_not_mix(t: CacheTrial) -> None:
    """The other sequences of the batch change no bit of a sequence."""
    x = t.tokens
    one = t.choice("sequence", t.case.batch)
    others = (np.arange(t.case.batch) != one)[:, None, None, None]
    plain = t.play()
    changed = t.play(
        x.but(
            q=np.where(others, -x.q, x.q),
            k=np.where(others, 4 * t.noise("other k", x.k.shape), x.k),
            v=np.where(others, 8 * t.noise("other v", x.v.shape), x.v),
        )
    )
    t.same_bits(changed.out, plain.out, f"token {{row}} of sequence {one} changed with other sequences", ~others)


@declare(
    "out of a batch of n_0, n_1, … tokens = out of each sequence alone",
    needs=("lengths",),
    lengths=True,
    batch=(1, 2, 2, 3, 4),
    chunks=BROKEN,
    keys=SEVERAL,
    padded=False,
    **CACHE,
)
def each_sequence_has_its_own_length(t: CacheTrial) -> None:
    """Sequences that grow at different speed, some by nothing, are each what they would be alone."""
    together = t.play()
    for b, length in enumerate(t.tokens.lengths):
        one = t.tokens.take(np.array([b])).part(0, length)
        alone = t.play(one, t.unbroken((), one))
        t.close(
            together.out[b : b + 1, :, :length],
            alone.out,
            together.bound[b : b + 1, :, :length] + alone.bound,
            f"token {{row}} of sequence {b} differs from what it is alone",
        )


@declare("padding rows of a chunk  ⇒  no bit changes", exact=True, needs=("lengths",), lengths=True, batch=(1, 2, 3), **CACHE)
def padding_is_not_told(t: CacheTrial) -> None:
    """What stands in the padding of a chunk, beyond the lengths that are given, changes nothing."""
    t.same_bits(t.play(garbage="other garbage").out, t.play().out, "token {row} changed with the padding of a chunk")


@declare(
    "left padding = no padding",
    needs=("padding",),
    padded=True,
    lengths=False,
    batch=(1, 2, 2, 3, 4),
    keys=SEVERAL,
    chunks=((), *BROKEN),
    **CACHE,
)
def left_padding_is_no_padding(t: CacheTrial) -> None:
    """A sequence that is padded on the left of its first chunk is what it would be without; what the padding holds does not matter."""
    padded = t.play()
    t.same_bits(t.play(garbage="other garbage").out, padded.out, "token {row} changed with the left padding")
    for b, length in enumerate(t.tokens.lengths):
        one = t.tokens.take(np.array([b])).part(0, length)
        alone = t.play(one, t.unbroken((), one))
        t.close(
            padded.out[b : b + 1, :, :length],
            alone.out,
            padded.bound[b : b + 1, :, :length] + alone.bound,
            f"token {{row}} of sequence {b}, padded by {t.schedule.padding[b]}, differs from what it is without",
        )


@declare("query heads h·g … h·g + g − 1 share k_h, v_h", needs=("num_heads",), group=(2, 3, 4), **CACHE)
def grouped_heads_share_their_cache(t: CacheTrial) -> None:
    """A group of query heads on one key/value head is the same as that head repeated for each."""
    x, group = t.tokens, t.case.group
    repeated = x.but(k=np.repeat(x.k, group, axis=1), v=np.repeat(x.v, group, axis=1))
    agree(t, t.play(), t.play(repeated, held=t.open(kv_heads=t.case.heads)), "token {row} differs between grouped and repeated heads")


# ---------------------------------------------------------------- windows


@declare("w ≥ S  ⇒  window = none;  else only i − w < j counts", needs=("window_size",), window_left=(0, 1, 2, 3, 4, 6, 7, 15, 40), **CACHE)
def window_cache_is_a_window_mask(t: CacheTrial) -> None:
    """A cache that keeps the last tokens alone answers as one that keeps all and masks: however often its slots are used again."""
    played = t.play()
    right(t, played, "token {row}, feature {column} is off under a window")
    if (t.window or 0) >= t.case.keys:
        agree(t, played, t.play(held=t.open(window_size=None)), "token {row} changed under a window that hides nothing")


@declare(
    "∂out_i/∂(k, v)_j = 0 for j ≤ i − w",
    needs=("window_size",),
    exact=True,
    window_left=(0, 1, 2, 3, 4, 7),
    keys=(*SEVERAL, 17, 33),
    **CACHE,
)
def tokens_outside_the_window_are_gone(t: CacheTrial) -> None:
    """A token that no later window shows changes not a bit any more."""
    window = t.window or 1
    gone = 1 + t.choice("cut", t.case.keys - 1)
    early = (np.arange(t.case.keys) < gone)[:, None]
    x = t.tokens
    plain = t.play()
    changed = t.play(
        x.but(k=np.where(early, 4 * t.noise("early k", x.k.shape), x.k), v=np.where(early, 8 * t.noise("early v", x.v.shape), x.v))
    )
    t.same_bits(
        changed.out,
        plain.out,
        f"token {{row}} changed with tokens before {gone}, outside its window of {window}",
        (np.arange(t.case.keys) >= gone + window - 1)[:, None] & x.real,
    )


# ---------------------------------------------------------------- copies, and what is forgotten


@declare("fed garbage, reset, fed x: the garbage changes no bit", needs=("reset",), exact=True, keys=SEVERAL, **LEVEL)
def reset_leaves_no_trace(t: CacheTrial) -> None:
    """After a reset the cache answers as a new one, whatever it was fed: often or once, more or less."""
    model, answers = t.new(), []
    parts = parted(t, 2)
    for garbage in ("one garbage", "another garbage"):
        model, _ = feed(model, altered(t, t.universe, garbage))
        model, given = feed(model.after("reset", ""), *parts)
        answers.append(joined(given))
        as_new(t, given, "token {row} after a reset differs from that of a new cache")
        model = model.after("reset", "")
    t.same_bits(answers[1], answers[0], "token {row} changed with what was fed before a reset")


@declare(
    "fed x, garbage, truncated to x, fed y: the garbage changes no bit",
    needs=("truncate",),
    exact=True,
    keys=(3, *SEVERAL[1:]),
    **LEVEL,
    window_left=None,
)
def truncation_leaves_no_trace(t: CacheTrial) -> None:
    """Tokens that are taken back, as speculative decoding does, leave nothing behind."""
    past, *rest = parted(t, 3)
    length, answers = past.q.shape[2], []
    model, _ = feed(t.new(), past)
    for garbage in ("one garbage", "another garbage"):
        model, _ = feed(model, *(altered(t, part, garbage) for part in rest))
        model, given = feed(model.truncated(length), *rest)
        answers.append(joined(given))
        as_new(t, given, f"token {length} + {{row}} differs after others were taken back", past)
        model = model.truncated(length)
    t.same_bits(answers[1], answers[0], f"token {length} + {{row}} changed with what was fed before it was taken back")


@declare("fork: fed y ∥ fed z; z changes no bit of y's answers, nor y of z's", needs=("fork",), exact=True, keys=(4, *SEVERAL[2:]), **LEVEL)
def fork_is_independent(t: CacheTrial) -> None:
    """A copy and what it was copied from go on alone: neither sees what the other is fed."""
    past, *rest = parted(t, 4)

    def go_on(*names: str) -> list[list[Played]]:
        parent, _ = feed(t.new(), past)
        models = [parent, parent.after("fork", "")]
        answers: list[list[Played]] = [[], []]
        for part in rest:
            for i, name in enumerate(names):
                models[i], given = feed(models[i], altered(t, part, name))
                answers[i] += given
        return answers

    first = go_on("one text", "another text")
    for i, what, other in ((0, "the original", go_on("one text", "a third text")), (1, "the copy", go_on("a third text", "another text"))):
        as_new(t, first[i], f"token {{row}} of {what} differs from that of a cache that was never copied", past)
        t.same_bits(joined(other[i]), joined(first[i]), f"token {{row}} of {what} changed with what the other was fed")


@declare("two caches fed in turn: what one is fed changes no bit of the other", exact=True, keys=SEVERAL, **LEVEL)
def caches_share_nothing(t: CacheTrial) -> None:
    """Two caches of one make, fed in turn, do not see each other's texts."""
    parts = parted(t, min(3, t.case.keys))

    def in_turn(text: str) -> Array:
        one, other = t.new(), t.new()
        answers: list[Played] = []
        for part in parts:
            one, given = feed(one, part)
            other, _ = feed(other, altered(t, part, text))
            answers += given
        return joined(answers)

    t.same_bits(in_turn("another text"), in_turn("one text"), "token {row} changed with what another cache was fed")


# ---------------------------------------------------------------- sequences of different length, with or without padding

GROWN: dict[str, Any] = {**CACHE, "batch": (2, 2, 3, 4), "keys": SEVERAL[1:], "chunks": BROKEN}


def goes_on(t: CacheTrial, act: Callable[[Held], None], remaining: Callable[[Array], Array], source: Array, what: str) -> None:
    """After an act between two chunks, sequence b goes on from the first remaining[b] tokens of sequence source[b], as if it were alone."""
    schedule = t.schedule if len(t.schedule.sizes) > 1 else t.scheduled((1,))  # something must come after
    x, given = t.universe.but(lengths=schedule.given.sum(axis=0)), schedule.given
    when = 1 + t.choice("when", len(given) - 1)
    said = given[:when].sum(axis=0)
    counts, chunks = remaining(said), list[Held]()

    def after(held: Held) -> None:
        chunks.append(held)
        if len(chunks) == when:
            act(held)

    played = t.play(x, schedule, after=after)
    for b, (origin, count) in enumerate(zip(source, counts, strict=True)):
        past, rest = x.take(np.array([origin])).part(0, count), x.take(np.array([b])).part(said[b], x.lengths[b])
        if rest.q.shape[2]:
            q, k, v = (np.concatenate([getattr(past, name), getattr(rest, name)], axis=2) for name in "qkv")
            one = Tokens(q, k, v, past.lengths + rest.lengths)
            alone = t.play(one, t.unbroken((), one))
            t.close(
                played.out[b : b + 1, :, said[b] : x.lengths[b]],
                alone.out[:, :, count:],
                2 * alone.bound[:, :, count:],
                f"token {said[b]} + {{row}} of sequence {b} differs after {what}",
            )


@declare("reorder(π): sequence b goes on as π(b)", needs=("reorder",), **GROWN)
def reorder_moves_whole_sequences(t: CacheTrial) -> None:
    """Sequences that change places, or are taken twice, as beams are, take all of their past with them, and its length."""
    index = np.array([t.choice(f"from {b}", t.case.batch) for b in range(t.case.batch)])
    goes_on(t, lambda held: held.reorder(index), lambda said: said[index], index, f"reorder({index.tolist()})")


@declare(
    "truncate(n): of n_b tokens min(n, n_b) stay", needs=("truncate", "lengths"), lengths=True, padded=False, window_left=None, **GROWN
)
def truncation_lengthens_no_sequence(t: CacheTrial) -> None:
    """What is taken back is taken from every sequence that is longer; one that is not stays as it is."""
    length = t.choice("length", t.case.keys)
    goes_on(t, lambda held: held.truncate(length), lambda said: np.minimum(said, length), np.arange(t.case.batch), f"truncate({length})")


@declare("reset: every sequence begins anew", needs=("reset",), **GROWN)
def reset_forgets_every_sequence(t: CacheTrial) -> None:
    """A reset forgets all sequences, however long they are, and whichever was fed something last."""
    goes_on(t, Held.reset, np.zeros_like, np.arange(t.case.batch), "a reset")


@declare(
    "out of every append = attention over what its cache was fed",
    programs=True,
    keys=(*SEVERAL, 17, 24, 33),
    batch=(1, 2, 3),
    kv_heads=(1, 2),
    **LEVEL,
    window_left=None,
)
def any_program_follows_the_model(t: CacheTrial) -> None:
    """Fork, return to a copy, reset, take back, reorder, in any order and between any chunks: every answer is of what was fed."""
    caches = [t.new(capacity=t.capacity + 1)]
    done, number, sizes = 0, 0, t.schedule.sizes
    for step, word in enumerate((*t.case.program, "")):
        size = min(sizes[min(step, len(sizes) - 1)], t.case.keys - done)
        if size:
            caches[number], played = caches[number].fed(t.universe.part(done, done + size))
            right(t, played, f"row {{row}} is off in part {step}, after {', '.join(t.case.program[:step]) or 'nothing'}")
        done += size
        if word == "back":
            number = (number + 1) % len(caches)
        elif word:
            caches[number : number + (word != "fork")] = [caches[number].after(word, str(step))]
    for model in caches:
        right(t, model.fed(t.universe.part(0, 1))[1], f"the last token of a copy is off, after {', '.join(t.case.program)}")
