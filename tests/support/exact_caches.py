"""A cache that is right, the oracle's own answers over all that it was fed, and one mistake for every property of caches.

It knows no implementation.
"""

from __future__ import annotations

import copy
import inspect
from typing import Any

import numpy as np
import torch
from permissive import carrier, rounded
from torch import Tensor

from properties.cache import exact as cache_exact
from properties.engine.core.target import Target
from properties.engine.search.probe import make_target
from properties.exact import oracle

Array = Any


class Exact:
    """pieces[b]: what sequence b was fed, as (k (Hkv, n, D), v (Hkv, n, Dv))."""

    def __init__(
        self,
        batch: int,
        kv_heads: int,
        dim: int,
        capacity: int,
        *,
        num_heads: int | None = None,
        value_dim: int | None = None,
        dtype: torch.dtype = torch.float64,
        device: str = "cpu",
        window_size: int | None = None,
        page_size: int | None = None,
        fill: float = 0.0,
        rotary_base: float | None = None,
    ) -> None:
        self.capacity, self.window, self.page, self.fill = capacity, window_size, page_size, fill
        self.turning = None if rotary_base is None else cache_exact.Turning(rotary_base, "interleaved", capacity)
        self.pieces: list[list[tuple[Tensor, Tensor]]] = [[] for _ in range(batch)]
        self.forgot = False  # told to forget something

    def length(self, b: int) -> int:
        return sum(k.shape[1] for k, _ in self.pieces[b])

    def append(self, q: Tensor, k: Tensor, v: Tensor, *, lengths: Tensor | None = None, padding: Tensor | None = None) -> Tensor:
        out = torch.zeros(*q.shape[:3], v.shape[3], dtype=q.dtype)
        for b in range(len(q)):
            first = 0 if padding is None else int(padding[b])
            last = q.shape[2] if lengths is None else first + int(lengths[b])
            past = self.length(b)
            if past + last - first > self.capacity:
                return self.overflow(out)
            self.pieces[b].append((self.keep(k[b, :, first:last]), self.keep(v[b, :, first:last])))
            if last > first:
                out[b, :, first:last] = self.answer(q[b : b + 1, :, first:last], b, past)
        return out

    def answer(self, q: Tensor, b: int, past: int) -> Tensor:
        """The exact answers to q (1, H, n, D), the last tokens of sequence b, rounded once: (H, n, Dv)."""
        told = [np.concatenate([np.array(carrier(x)) for x in parts], axis=1)[None] for parts in zip(*self.pieces[b])]
        at = past + np.arange(q.shape[2])[None]
        problem = cache_exact.pose(np.array(carrier(q)), *told, at, np.array([told[0].shape[2]]), self.window, self.turning)
        return rounded(oracle.solve(problem, "extended" if q.dtype == torch.float64 else "float64").out[0], q)

    def keep(self, x: Tensor) -> Tensor:
        return x.clone()

    def overflow(self, out: Tensor) -> Tensor:
        raise ValueError("too many tokens")

    def fork(self) -> Exact:
        return copy.deepcopy(self)

    def reset(self) -> None:
        self.truncate(0)

    def truncate(self, length: int) -> None:
        self.forgot = True
        for b, parts in enumerate(self.pieces):
            if parts:
                k, v = (torch.cat(x, dim=1)[:, :length] for x in zip(*parts))
                self.pieces[b] = [(k, v)]

    def reorder(self, index: Tensor) -> None:
        self.pieces = [list(self.pieces[int(i)]) for i in index]


def wrong(after: Any = None, before: Any = None, **methods: Any) -> Target:
    """The exact cache with methods replaced: before(self, arguments) changes those of append, after(self, out, arguments) its answer."""

    def append(self: Any, q: Tensor, k: Tensor, v: Tensor, *, lengths: Tensor | None = None, padding: Tensor | None = None) -> Any:
        given = {"q": q, "k": k, "v": v, "lengths": lengths, "padding": padding}
        changed = before(self, dict(given)) if before else given
        out = Exact.append(self, **changed)
        return after(self, out, given) if after else out

    return make_target("wrong", type("Wrong", (Exact,), {"append": append, **methods}), {"framework": "torch"})


def reused(self: Any, out: Tensor, given: dict[str, Any]) -> Tensor:
    kept = vars(self).setdefault("kept", {})
    return kept.setdefault(tuple(out.shape), torch.empty_like(out)).copy_(out)


def key_in_place(self: Any, out: Tensor, given: dict[str, Any]) -> Tensor:
    given["k"].add_(1)
    return out


def all_as_long_as_the_longest(self: Any, given: dict[str, Any]) -> dict[str, Any]:
    lengths = given["lengths"]
    return given if lengths is None else {**given, "lengths": torch.full_like(lengths, int(lengths.max()))}


def padding_of_the_chunk(self: Any, out: Tensor, given: dict[str, Any]) -> Tensor:
    return out if given["lengths"] is None else out + given["v"].mean() / 64


def first_query_position_again(self: Any, given: dict[str, Any]) -> dict[str, Any]:
    if self.turning is None or not self.length(0):
        return given
    back = np.full(given["q"].shape[::2][:2], -self.length(0))
    turned = cache_exact.rotated(np.array(carrier(given["q"])), back, self.turning)
    return {**given, "q": rounded(turned, given["q"])}


def without_the_first(self: Any, q: Tensor, b: int, past: int) -> Tensor:
    if past:
        self.pieces[b][0] = tuple(x * (torch.arange(x.shape[1]) > 0)[:, None] for x in self.pieces[b][0])
    return Exact.answer(self, q, b, past)


def one_wider(self: Any, *sizes: int, **options: Any) -> None:
    window = options.pop("window_size", None)
    Exact.__init__(self, *sizes, window_size=None if window is None else window + 1, **options)


one_wider.__signature__ = inspect.signature(Exact.__init__)  # type: ignore[attr-defined]


def copy_off(self: Any) -> Any:
    made = copy.deepcopy(self)
    made.is_a_copy = True
    return made


TOLD_LAST: list[Tensor] = [torch.zeros(())]


def told_last(self: Any, out: Tensor, given: dict[str, Any]) -> Tensor:
    out = out + TOLD_LAST[0] / 8
    TOLD_LAST[0] = given["v"].double().sum().to(out.dtype)
    return out.to(given["q"].dtype)


def scaled(self: Any, out: Tensor, given: dict[str, Any]) -> Tensor:
    return out * 1.01


EXACT_CACHE = make_target("exact cache", Exact, {"framework": "torch"})
EXACT = {"cached": EXACT_CACHE}
MISTAKES: dict[str, Target] = {
    "cached_decoding_is_one_pass": wrong(scaled),
    "chunking_changes_nothing": wrong(lambda self, out, given: out * (1 + 0.01 * out.shape[2])),
    "cache_shows_exactly_the_past": wrong(answer=without_the_first),
    "later_tokens_do_not_count": wrong(lambda self, out, given: out + given["v"].mean() / 64),
    "positions_continue_across_steps": wrong(before=first_query_position_again),
    "answers_already_given_stand": wrong(reused),
    "unused_slots_do_not_count": wrong(lambda self, out, given: out + 0 * self.fill),
    "cache_keeps_copies": wrong(keep=lambda self, x: x),
    "append_leaves_its_arguments": wrong(key_in_place),
    "answers_have_the_right_form": wrong(lambda self, out, given: out.double()),
    "pages_are_contiguous_memory": wrong(lambda self, out, given: out * (1 + 0.01 * (self.page or 0))),
    "full_capacity_can_be_used": wrong(overflow=lambda self, out: out),
    "sequences_do_not_mix": wrong(lambda self, out, given: out + out.mean(dim=0, keepdim=True) / 64),
    "each_sequence_has_its_own_length": wrong(before=all_as_long_as_the_longest),
    "padding_is_not_told": wrong(padding_of_the_chunk),
    "left_padding_is_no_padding": wrong(lambda self, out, given: out if given["padding"] is None else out + given["v"].mean() / 64),
    "grouped_heads_share_their_cache": wrong(lambda self, out, given: out if out.shape[1] == given["k"].shape[1] else out.roll(1, 1)),
    "window_cache_is_a_window_mask": wrong(__init__=one_wider),
    "tokens_outside_the_window_are_gone": wrong(__init__=one_wider),
    "reset_leaves_no_trace": wrong(lambda self, out, given: out * (1 + 0.01 * self.forgot)),
    "truncation_leaves_no_trace": wrong(lambda self, out, given: out * (1 + 0.01 * self.forgot)),
    "truncation_lengthens_no_sequence": wrong(truncate=lambda self, length: None),
    "reset_forgets_every_sequence": wrong(reset=lambda self: None),
    "fork_is_independent": wrong(lambda self, out, given: out * (1 + 0.01 * hasattr(self, "is_a_copy")), fork=copy_off),
    "caches_share_nothing": wrong(told_last),
    "reorder_moves_whole_sequences": wrong(reorder=lambda self, index: None),
    "any_program_follows_the_model": wrong(lambda self, out, given: out * (1 + 0.01 * hasattr(self, "is_a_copy")), fork=copy_off),
}
