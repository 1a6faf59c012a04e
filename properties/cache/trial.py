"""A trial of a cache for decoding: its sequences, fed chunk by chunk, and what it must answer."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ..engine.cases.coordinates import Array, bits
from ..engine.cases.dtypes import round_to
from ..engine.cases.operands import operands
from ..engine.core.trial import Trial
from ..exact import oracle
from . import exact as cache_exact
from .call import applied, chunk_sizes, fed, make_cache


@dataclass(frozen=True, eq=False)
class Tokens:
    """What the sequences of a batch say. Sequence b has lengths[b] tokens; what stands after them is not said."""

    q: Array  # (B, H, S, D)
    k: Array  # (B, Hkv, S, D)
    v: Array  # (B, Hkv, S, Dv)
    lengths: Array  # (B,)

    @property
    def real(self) -> Array:
        """(B, 1, S, 1) bool: there is such a token."""
        return (np.arange(self.q.shape[2]) < self.lengths[:, None])[:, None, :, None]

    def but(self, **changes: Array) -> Tokens:
        """The same with some arrays changed."""
        return dataclasses.replace(self, **changes)

    def take(self, index: Array) -> Tokens:
        """Some sequences, in the order given."""
        return Tokens(self.q[index], self.k[index], self.v[index], self.lengths[index])

    def part(self, start: int, stop: int) -> Tokens:
        """Tokens start, …, stop − 1 of every sequence, all of them said."""
        cut = (slice(None), slice(None), slice(start, stop))
        return Tokens(self.q[cut], self.k[cut], self.v[cut], np.full(len(self.lengths), stop - start))


@dataclass(frozen=True, eq=False)
class Schedule:
    """The chunks in which tokens are fed: chunk c has sizes[c] rows; those from padding[b] on (in chunk 0 only), given[c, b] of them,
    are tokens of sequence b, the others are padding."""

    sizes: tuple[int, ...]
    given: Array  # (chunks, B)
    padding: Array  # (B,)


class Held:
    """A cache of the target that is fed carriers and answers in carriers."""

    def __init__(self, trial: CacheTrial, held: Any) -> None:
        self.trial, self.held = trial, held
        self.raw: list[Any] = []  # every answer as it came

    def append(self, q: Array, k: Array, v: Array, **counts: Array) -> Array:
        """Tell it tokens q (B, H, n, D), k (B, Hkv, n, D), v (B, Hkv, n, Dv), its answer. All calls with the same n use the same memory."""
        return self.told((q, k, v), counts)()

    def told(self, qkv: Sequence[Array], counts: dict[str, Array], ahead: bool = False) -> Callable[[], Array]:
        """Tell it tokens: what gives its answer. ``ahead``: in a process of its own it may be told more before."""
        t, case = self.trial, self.trial.case
        tensors = [t.buffers.array(name, x, case.dtype, case.device, case.layout) for name, x in zip("qkv", qkv, strict=True)]
        options = {name: t.integers(x) for name, x in counts.items()}

        def read(raw: Any) -> Array:
            self.raw.append(raw)
            out = t.target.read(raw)
            wanted = (*qkv[0].shape[:3], qkv[2].shape[3])
            if out.shape != wanted:
                t.fail(f"append returns shape {out.shape}, expected {wanted}")
            return out

        return fed(t.target, self.held, tensors, read, ahead, **options)

    def fork(self) -> Held:
        """An independent copy."""
        return Held(self.trial, applied(self.held.fork))

    def reset(self) -> None:
        """Forget everything."""
        applied(self.held.reset)

    def truncate(self, length: int) -> None:
        """Forget all tokens from this one on."""
        applied(self.held.truncate, length)

    def reorder(self, index: Array) -> None:
        """Sequence b goes on from where sequence index[b] was."""
        applied(self.held.reorder, self.trial.integers(index))


class Played:
    """What a cache answered to tokens, row by row as if they had come in one pass; zeros where there is no token.

    The past (k, v) is what all sequences were fed before.
    """

    def __init__(self, trial: CacheTrial, tokens: Tokens, out: Array, past: tuple[Array, Array] | None = None) -> None:
        self.trial, self.tokens, self.out, self.past = trial, tokens, out, past
        self.number = next(trial.numbers)
        trial.meanwhile(self.number, lambda: self.solved)

    @cached_property
    def solved(self) -> cache_exact.Answers:
        """The exact answers with their bound."""
        self.trial.bounds.add(self.number)
        return self.trial.solved(self.tokens, self.past)

    @property
    def exact(self) -> oracle.Exact:
        """The exact outputs (B, H, S, Dv)."""
        return self.solved.exact

    @property
    def bound(self) -> Array:
        """Their bound."""
        return self.solved.bound

    @property
    def answers(self) -> list[tuple[Array, Array]]:
        """What was answered, with its bound; anything goes where there is no token."""
        return [(self.out, np.where(self.tokens.real, self.bound, np.inf))]


class CacheTrial(Trial):
    """What a property of caches sees."""

    @cached_property
    def tokens(self) -> Tokens:
        """What the sequences of the case say."""
        whole = self.universe
        return whole.but(lengths=self.schedule.given.sum(axis=0))

    @cached_property
    def numbers(self) -> Iterator[int]:
        """Of what caches are asked, in its order."""
        return itertools.count()

    @cached_property
    def told(self) -> list[Any]:
        """Lengths, paddings and orders that the target was given. Each is its own memory, which a cache may go on reading."""
        return []

    def integers(self, numbers: Array) -> Any:
        """An array of them that is kept, also where the target is in another process."""
        self.told.append(self.target.framework.integers(numbers, self.case.device))
        return self.told[-1]

    @cached_property
    def universe(self) -> Tokens:
        """``keys`` tokens of every sequence, all of them said."""
        case = self.case
        shapes = (
            (case.heads, self.dim),
            (case.kv_heads, self.dim),
            (case.kv_heads, self.dim if case.value_dim is None else case.value_dim),
        )
        of_q, of_k, of_v = ((case.batch, heads, case.keys, width) for heads, width in shapes)
        q, k, v = operands(case, of_q, of_k, of_v)
        return Tokens(q, k, v, np.full(case.batch, case.keys))

    @property
    def dim(self) -> int:
        """Features of a query: an even number where they rotate."""
        return self.case.dim + (self.case.dim % 2 if self.case.base is not None else 0)

    @property
    def window(self) -> int | None:
        """How many tokens a query sees, itself among them; None: all."""
        return None if self.case.window_left is None else self.case.window_left + 1

    @property
    def capacity(self) -> int:
        """Tokens of a sequence that the cache is made for, padding counted."""
        return self.case.keys + self.case.spare

    @cached_property
    def schedule(self) -> Schedule:
        """In which chunks the case feeds its tokens."""
        return self.scheduled(self.case.chunks)

    def scheduled(self, chunks: tuple[int, ...], like: Array | None = None) -> Schedule:
        """Chunks of these sizes. Where the case says so, sequences differ in how much of a chunk they take, and in left padding."""
        case, sizes = self.case, chunk_sizes(chunks, self.case.keys)
        given = np.repeat(np.array(sizes, dtype=np.int64)[:, None], case.batch, axis=1)
        padding = np.zeros(case.batch, dtype=np.int64)
        if case.padded and sizes and sizes[0]:
            padding = (bits(case.seed, "padding", (case.batch,)) % np.uint64(sizes[0])).astype(np.int64)
            given[0] -= padding
        if case.lengths:
            first = 1 if case.padded else 0  # the padding of the first chunk is on the left
            drawn = (bits(case.seed, "given", given.shape) >> np.uint64(33)).astype(np.int64) % (given + 1)
            given[first:] = drawn[first:]
        return Schedule(sizes, given, padding)

    def unbroken(self, chunks: tuple[int, ...], tokens: Tokens) -> Schedule:
        """Chunks of these sizes, full of tokens in every sequence: for tokens that are all of one length."""
        sizes = chunk_sizes(chunks, tokens.q.shape[2])
        batch = len(tokens.lengths)
        return Schedule(sizes, np.repeat(np.array(sizes, dtype=np.int64)[:, None], batch, axis=1), np.zeros(batch, dtype=np.int64))

    # ------------------------------------------------------------ caches

    def open(self, batch: int | None = None, kv_heads: int | None = None, capacity: int | None = None, **changes: Any) -> Held:
        """A new cache as the case has it, but for these changes of its options; None: the option is not given."""
        case = self.case
        options = {
            "window_size": self.window,
            "page_size": case.page_size,
            "rotary_base": case.base,
            "value_dim": case.value_dim,
            **changes,
        }
        sizes = (
            case.batch if batch is None else batch,
            case.kv_heads if kv_heads is None else kv_heads,
            self.dim,
            self.capacity if capacity is None else capacity,
        )
        given = {name: value for name, value in options.items() if value is not None}
        return Held(self, make_cache(self.target, sizes, case.heads, case.dtype, case.device, given))

    def new(self, **changes: Any) -> Model:
        """A new cache, to which no token was fed."""
        nothing = self.universe.part(0, 0)
        return Model(self.open(**changes), nothing.k, nothing.v)

    def play(
        self,
        tokens: Tokens | None = None,
        schedule: Schedule | None = None,
        held: Held | None = None,
        garbage: str = "garbage",
        after: Callable[[Held], None] | None = None,
    ) -> Played:
        """Tell a cache (by default a new one) the tokens in chunks. ``after`` is called after each."""
        tokens = self.tokens if tokens is None else tokens
        schedule = self.schedule if schedule is None else schedule
        held = self.open(batch=len(tokens.lengths)) if held is None else held
        batch, heads, length, _ = tokens.q.shape
        out = np.zeros((batch, heads, length, tokens.v.shape[3]))
        played = Played(self, tokens, out)
        done = np.zeros(batch, dtype=np.int64)
        answers = []

        def enter(index: Array, real: Array, answer: Callable[[], Array]) -> None:
            rows = answer()
            for b in range(batch):
                out[b][:, index[b, real[b]]] = rows[b][:, real[b]]

        for number, (size, given) in enumerate(zip(schedule.sizes, schedule.given, strict=True)):
            before = schedule.padding if number == 0 else np.zeros_like(done)
            row = np.arange(size) - before[:, None]  # (B, n): the row's number among the tokens of this chunk
            real = (row >= 0) & (row < given[:, None])
            index = np.where(real, done[:, None] + row, 0)
            rows = [
                self._rows(x, index, real, f"{garbage} {name} {number}") for name, x in (("q", tokens.q), ("k", tokens.k), ("v", tokens.v))
            ]
            counts: dict[str, Array] = {}
            if before.any() or (number == 0 and self.case.padded):
                counts["padding"] = before
            if (before + given != size).any() or (self.case.lengths and "padding" not in counts):
                counts["lengths"] = given
            answers.append((index, real, held.told(rows, counts, ahead=after is None)))
            done += given
            if after is not None:
                enter(*answers.pop())
                after(held)
        for answer in answers:
            enter(*answer)
        self.runs.append(played)
        return played

    def _rows(self, x: Array, index: Array, real: Array, garbage: str) -> Array:
        """The tokens (B, …, n, …) that stand at index (B, n), and garbage where there is none."""
        chosen = (
            np.take_along_axis(x, index[:, None, :, None], axis=2) if x.shape[2] else np.zeros((*x.shape[:2], *index.shape[1:], x.shape[3]))
        )
        if real.all():
            return chosen
        noise = 4 * self.noise(garbage, chosen.shape)
        return np.where(real[:, None, :, None], chosen, noise)

    def noise(self, name: str, shape: tuple[int, ...]) -> Array:
        """Nearly normal numbers of the type under test, fixed by the seed."""
        return round_to(self.case.dtype, super().noise(name, shape))

    # ------------------------------------------------------------ what is right

    @cached_property
    def turning(self) -> cache_exact.Turning | None:
        """How queries and keys rotate, if they do."""
        case = self.case
        return None if case.base is None else cache_exact.Turning(case.base, self.supports.pairing, max(self.capacity, 1))

    def solved(self, tokens: Tokens, past: tuple[Array, Array] | None = None) -> cache_exact.Answers:
        """The exact answers to tokens, after the past (k, v) of every sequence."""
        k, v = tokens.k, tokens.v
        before = 0
        if past is not None:
            before = past[0].shape[2]
            k, v = np.concatenate([past[0], k], axis=2), np.concatenate([past[1], v], axis=2)
        at = np.broadcast_to(before + np.arange(tokens.q.shape[2]), (len(tokens.lengths), tokens.q.shape[2]))
        return cache_exact.solve(tokens.q, k, v, at, before + tokens.lengths, self.window, self.turning, self.arithmetic)


# ---------------------------------------------------------------- programs


@dataclass(frozen=True, eq=False)
class Model:
    """A cache, and beside it all tokens that were fed to its sequences."""

    held: Held
    k: Array  # (B, Hkv, n, D)
    v: Array  # (B, Hkv, n, Dv)

    def fed(self, tokens: Tokens) -> tuple[Model, Played]:
        """Feed more tokens to the cache: (the model after them, the cache's answer). Raises Raised."""
        after, answer = self.told(tokens)
        return after, answer()

    def told(self, tokens: Tokens) -> tuple[Model, Callable[[], Played]]:
        """The same, with what gives the answer: more may be fed before. Raises Raised, and so does that."""
        trial = self.held.trial
        played = Played(trial, tokens, np.zeros((*tokens.q.shape[:3], tokens.v.shape[3])), (self.k, self.v))
        told = self.held.told((tokens.q, tokens.k, tokens.v), {}, ahead=True)
        after = Model(self.held, np.concatenate([self.k, tokens.k], axis=2), np.concatenate([self.v, tokens.v], axis=2))

        def answer() -> Played:
            played.out[...] = told()
            trial.runs.append(played)
            return played

        return after, answer

    def after(self, word: str, step: str) -> Model:
        """What a word of a program makes of it at a step, but for ``back``; a fork is the copy."""
        choice = self.held.trial.choice
        if word == "fork":
            return Model(self.held.fork(), self.k, self.v)
        if word == "reset":
            self.held.reset()
            return Model(self.held, self.k[:, :, :0], self.v[:, :, :0])
        if word == "truncate":
            return self.truncated(choice(f"length {step}", self.k.shape[2] + 1))
        index = np.array([choice(f"from {b} {step}", len(self.k)) for b in range(len(self.k))], dtype=np.int64)
        return self.reordered(index)

    def truncated(self, length: int) -> Model:
        """What it is without the tokens from this one on."""
        self.held.truncate(length)
        return Model(self.held, self.k[:, :, :length], self.v[:, :, :length])

    def reordered(self, index: Array) -> Model:
        """What it is when sequence b goes on from where sequence index[b] was."""
        self.held.reorder(index)
        return Model(self.held, self.k[index], self.v[index])
