"""Caches, second part: where tokens lie, how long they stay, and what copies share."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..registry import MEMORY, Function, mutant
from .cache_core import Cache


def _mutant(mistake: str, killed_by: str, source: str = "teaching code", bug: str | None = None) -> Callable[[Function], Function]:
    return mutant(mistake, source=source, killed_by=killed_by, contract="cached", bug=bug)


# --- slots ----------------------------------------------------------------------------------------------------------


@_mutant("a token is stored one slot too far", "cached_decoding_is_one_pass", bug="F26")
class written_one_too_far(Cache):
    def slot(self, place: Tensor) -> Tensor:
        return (place + 1) % self.slots


@_mutant("new tokens are put before the old ones, and masked as if they came after", "chunking_changes_nothing", bug="F26")
class prepended(Cache):
    def visible(self, place: Tensor, places: Tensor) -> Tensor:
        old, new = super().visible(place, places).split((self.slots, place.shape[1]), dim=-1)
        rows = torch.arange(place.shape[1]) < place.shape[1] - 1
        return torch.cat((old & ~rows[:, None] | old & (self.count[:, None, None] == 0), new), dim=-1)


@_mutant("the value cache is written from the keys", "cached_decoding_is_one_pass", "huggingface/transformers#34232", "F07")
class values_written_from_keys(Cache):
    def store(self, k: Tensor, v: Tensor, place: Tensor) -> None:
        super().store(k, k if k.shape == v.shape else v, place)


@_mutant("the value cache is as wide as the keys", "answers_have_the_right_form", "google/flax#3576", "F10")
class values_as_wide_as_keys(Cache):
    def append(self, q: Tensor, k: Tensor, v: Tensor, *, lengths: Tensor | None = None, padding: Tensor | None = None) -> Tensor:
        return super().append(q, k, v, lengths=lengths, padding=padding)[..., : k.shape[-1]]


@_mutant("a chunk's last token is not stored", "cached_decoding_is_one_pass")
class last_of_a_chunk_lost(Cache):
    def store(self, k: Tensor, v: Tensor, place: Tensor) -> None:
        kept = place if place.shape[1] < 2 else place[:, :-1]
        super().store(k[:, :, : kept.shape[1]], v[:, :, : kept.shape[1]], kept)


@_mutant("the last slot cannot be used", "full_capacity_can_be_used")
class last_slot_refused(Cache):
    def refuse(self, place: Tensor) -> None:
        self.capacity -= 1
        super().refuse(place)
        self.capacity += 1


@_mutant("beyond the capacity the first tokens are overwritten without a word", "full_capacity_can_be_used")
class full_cache_wraps(Cache):
    def refuse(self, place: Tensor) -> None:
        pass


@_mutant("beyond the capacity the last slot is overwritten without a word", "full_capacity_can_be_used")
class full_cache_keeps_the_last_slot(full_cache_wraps):
    def slot(self, place: Tensor) -> Tensor:
        return place.clamp(max=self.slots - 1) if self.window is None else super().slot(place)


@_mutant("what lies in unused slots is multiplied by a weight of 0", "unused_slots_do_not_count", "pytorch/torchtitan#3235", "F23")
class unused_slots_times_zero(Cache):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> Tensor:
        unused = v[:, :, : self.slots].masked_fill(visible.any(1)[:, None, : self.slots, None], 0.0)
        return super().attend(q, k, v, visible) + (0 * self.spread(unused)).sum(2, keepdim=True)


# --- pages ----------------------------------------------------------------------------------------------------------


@_mutant("all of a chunk goes to the page on which it begins", "pages_are_contiguous_memory")
class chunk_on_one_page(Cache):
    def store(self, k: Tensor, v: Tensor, place: Tensor) -> None:
        self.begins = place.clamp(min=0).amin(1) if place.numel() else self.count
        super().store(k, v, place)

    def address(self, b: Tensor, slot: Tensor) -> tuple[Tensor, Tensor]:
        return self.table[b, self.begins[b] % self.slots // self.page], slot % self.page


@_mutant("pages are read in the order of memory, not of the table", "pages_are_contiguous_memory")
class table_ignored(Cache):
    def stored(self) -> tuple[Tensor, Tensor]:
        given = self.table
        if self.page < self.slots:
            self.table = given.flip(1)
        found = super().stored()
        self.table = given
        return found


@_mutant("all sequences read through the table of the first", "sequences_do_not_mix")
class table_of_the_first_sequence(Cache):
    def stored(self) -> tuple[Tensor, Tensor]:
        given = self.table
        self.table = given[:1].expand_as(given)
        found = super().stored()
        self.table = given
        return found


@_mutant("a page that is not full is not read", "pages_are_contiguous_memory")
class only_full_pages(Cache):
    def held(self) -> Tensor:
        place = super().held()
        full = place // self.page < self.count[:, None] // self.page
        return place if self.page == self.slots or self.window is not None else torch.where(full, place, -1)


@_mutant("pages are handed out for the capacity rounded down", "pages_are_contiguous_memory")
class partial_page_missing(Cache):
    def address(self, b: Tensor, slot: Tensor) -> tuple[Tensor, Tensor]:
        last = max(self.slots // self.page, 1) - 1
        return self.table[b, (slot // self.page).clamp(max=last)], slot % self.page


# --- whose memory ---------------------------------------------------------------------------------------------------


@_mutant("every answer is written into one and the same memory", "answers_already_given_stand", bug="F25")
class answer_buffer_reused(Cache):
    def append(self, q: Tensor, k: Tensor, v: Tensor, *, lengths: Tensor | None = None, padding: Tensor | None = None) -> Tensor:
        out = super().append(q, k, v, lengths=lengths, padding=padding)
        kept: dict[tuple[int, ...], Tensor] = vars(self).setdefault("kept", {})
        return kept.setdefault(tuple(out.shape), torch.empty_like(out)).copy_(out)


@_mutant("the cache holds on to the caller's arrays", "cache_keeps_copies", bug="F25")
class arrays_of_the_caller(Cache):
    last: tuple[Tensor, Tensor, Tensor] | None = None

    def answer(self, q: Tensor, k: Tensor, v: Tensor, place: Tensor) -> Tensor:
        if self.last is not None:  # stored lazily, when the next tokens come
            self.store(*self.last)
        return super().answer(q, k, v, place)

    def append(self, q: Tensor, k: Tensor, v: Tensor, *, lengths: Tensor | None = None, padding: Tensor | None = None) -> Tensor:
        before = self.count
        out = super().append(q, k, v, lengths=lengths, padding=padding)
        place = torch.where(self.rows(k.shape[2], lengths, padding) >= 0, before[:, None] + self.rows(k.shape[2], lengths, padding), -1)
        self.last = (k, v, place) if self.base is None else None
        return out


@_mutant("queries are rotated in the caller's array", "append_leaves_its_arguments")
class rotated_in_place(Cache):
    def append(self, q: Tensor, k: Tensor, v: Tensor, *, lengths: Tensor | None = None, padding: Tensor | None = None) -> Tensor:
        if self.base is None:
            return super().append(q, k, v, lengths=lengths, padding=padding)
        place = self.places(self.rows(q.shape[2], lengths, padding))
        given = q.clone()
        q.copy_(self.turn(q, place))
        return super().append(given, k, v, lengths=lengths, padding=padding)


@_mutant("the answer is float32, whatever is asked", "answers_have_the_right_form")
class answers_in_float32(Cache):
    def append(self, q: Tensor, k: Tensor, v: Tensor, *, lengths: Tensor | None = None, padding: Tensor | None = None) -> Tensor:
        return super().append(q, k, v, lengths=lengths, padding=padding).float()


@_mutant("caches of one shape share their memory", "caches_share_nothing")
class memory_of_the_class(Cache):
    def __init__(self, *sizes: int, **options: Any) -> None:
        super().__init__(*sizes, **options)
        shapes = (tuple(self.k.shape), tuple(self.v.shape), self.k.dtype)
        self.k, self.v = MEMORY.setdefault(f"cache {shapes}", (self.k, self.v))

    def fork(self) -> Cache:
        return copy.deepcopy(self)


# --- copies, and what is forgotten ----------------------------------------------------------------------------------


@_mutant("a fork shares its memory with what it was copied from", "fork_is_independent")
class fork_shares_memory(Cache):
    def fork(self) -> Cache:
        return copy.copy(self)


@_mutant("a fork copies the keys and shares the values", "fork_is_independent")
class fork_shares_values(Cache):
    def fork(self) -> Cache:
        made = copy.copy(self)
        made.k = self.k.clone()
        return made


@_mutant("a fork copies full pages and shares the page in use", "fork_is_independent")
class fork_shares_the_last_page(Cache):
    def fork(self) -> Cache:
        made = copy.copy(self)
        if bool((self.count % self.page == 0).all()):
            made.k, made.v = self.k.clone(), self.v.clone()
        return made


@_mutant("a fork is empty", "fork_is_independent")
class fork_is_empty(Cache):
    def fork(self) -> Cache:
        made = copy.deepcopy(self)
        made.reset()
        return made


@_mutant("a reset clears the memory and keeps the lengths", "reset_leaves_no_trace")
class reset_keeps_lengths(Cache):
    def reset(self) -> None:
        self.k.zero_()
        self.v.zero_()


@_mutant("a reset forgets the first sequence alone", "reset_leaves_no_trace")
class reset_of_the_first_sequence(Cache):
    def reset(self) -> None:
        self.count[0] = 0


@_mutant("after a reset positions go on from where they were", "reset_leaves_no_trace")
class reset_keeps_positions(Cache):
    told = 0

    def reset(self) -> None:
        self.told += int(self.count.max()) if len(self.count) else 0
        super().reset()

    def query_places(self, place: Tensor) -> Tensor:
        return torch.where(place >= 0, place + self.told, place)


@_mutant("truncating leaves one token too many", "truncation_leaves_no_trace")
class truncated_one_short(Cache):
    def truncate(self, length: int) -> None:
        self.count = self.count.clamp(max=length + 1)


@_mutant("truncating clears the slots and keeps the length", "truncation_leaves_no_trace")
class truncation_keeps_the_length(Cache):
    def truncate(self, length: int) -> None:
        b, slot = torch.nonzero(self.held() >= length, as_tuple=True)
        page, offset = self.address(b, slot)
        self.k[page, :, offset] = 0.0
        self.v[page, :, offset] = 0.0


@_mutant("truncating gives every sequence the length that is asked for, the shorter ones, too", "truncation_lengthens_no_sequence")
class truncated_to_one_length(Cache):
    def truncate(self, length: int) -> None:
        if (self.count > length).any():
            self.count = torch.full_like(self.count, length)


@_mutant("a reset forgets the sequences that were fed last", "reset_forgets_every_sequence")
class reset_of_those_told_last(Cache):
    last: Tensor | None = None

    def counted(self, place: Tensor) -> Tensor:
        self.last = (place >= 0).any(1) if place.shape[1] else self.last
        return super().counted(place)

    def reset(self) -> None:
        self.count = torch.zeros_like(self.count) if self.last is None else self.count.masked_fill(self.last, 0)


@_mutant("truncating keeps whole pages", "any_program_follows_the_model")
class truncated_to_whole_pages(Cache):
    def truncate(self, length: int) -> None:
        self.count = self.count.clamp(max=-(-length // self.page) * self.page)


@_mutant("the batch is not reordered", "reorder_moves_whole_sequences", "huggingface/transformers#46612", "F08")
class reorder_skipped(Cache):
    def reorder(self, index: Tensor) -> None:
        pass


@_mutant("the batch is reordered, the lengths of its sequences are not", "reorder_moves_whole_sequences")
class lengths_not_reordered(Cache):
    def reorder(self, index: Tensor) -> None:
        count = self.count
        super().reorder(index)
        self.count = count


@_mutant("heads are reordered instead of sequences", "reorder_moves_whole_sequences", "PaddlePaddle/PaddleNLP#6672", "F08")
class heads_reordered(Cache):
    def reorder(self, index: Tensor) -> None:
        if self.k.shape[1] == len(index):
            self.k, self.v = self.k[:, index], self.v[:, index]
        else:
            super().reorder(index)


@_mutant("only the keys are reordered", "reorder_moves_whole_sequences", bug="F08")
class values_not_reordered(Cache):
    def reorder(self, index: Tensor) -> None:
        values = self.v.clone()
        super().reorder(index)
        self.v = values


@_mutant("two sequences that go on from one share its pages", "reorder_moves_whole_sequences")
class reordered_pages_are_shared(Cache):
    def reorder(self, index: Tensor) -> None:
        self.table, self.count = self.table[index], self.count[index]
