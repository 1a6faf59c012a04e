"""Caches, first part: what a token sees of what was fed before, and by which position it is rotated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..registry import Function, mutant
from .cache_core import Cache


def _mutant(mistake: str, killed_by: str, source: str = "teaching code", bug: str | None = None) -> Callable[[Function], Function]:
    return mutant(mistake, source=source, killed_by=killed_by, contract="cached", bug=bug)


# --- the causal frontier --------------------------------------------------------------------------------------------


def corner(place: Tensor, places: Tensor) -> Tensor:
    """(B, n, S): key number j ≤ row number i, counted from the first key and the first row. Empty slots are no keys."""
    number = torch.cumsum((places >= 0).long(), dim=1) - 1
    return (places[:, None] >= 0) & (number[:, None] <= torch.arange(place.shape[1])[:, None])


@_mutant("the causal mask is not moved on by what is cached", "cache_shows_exactly_the_past", "onnx/onnx#7297", "B05")
class causal_from_the_corner(Cache):
    def visible(self, place: Tensor, places: Tensor) -> Tensor:
        return super().visible(place, places) & corner(place, places)


@_mutant("a step with is_causal sees the first key alone", "cached_decoding_is_one_pass", "pytorch/pytorch#110144", "B02")
class step_sees_the_first_key(Cache):
    def visible(self, place: Tensor, places: Tensor) -> Tensor:
        seen = super().visible(place, places)
        return seen & corner(place, places) if place.shape[1] == 1 else seen


@_mutant("a decoding mask is joined with tril((1, S)): only key 0 is left", "chunking_changes_nothing", "google/flax#5591", "B08")
class step_joined_with_a_triangle(Cache):
    def visible(self, place: Tensor, places: Tensor) -> Tensor:
        seen = super().visible(place, places)
        return seen & (places[:, None] == 0) if place.shape[1] == 1 and bool((self.count > 0).all()) else seen


@_mutant("a chunk's mask is square: it does not see what is cached", "cache_shows_exactly_the_past", "huggingface/candle#3743", "B25")
class chunk_mask_without_the_past(Cache):
    def visible(self, place: Tensor, places: Tensor) -> Tensor:
        seen = super().visible(place, places)
        if place.shape[1] > 1:
            seen[..., : self.slots] = False
        return seen


@_mutant(
    "once the cache is warm, the rows of a chunk see each other's future", "later_tokens_do_not_count", "pytorch/pytorch#163314", "B26"
)
class warm_chunk_without_a_mask(Cache):
    def visible(self, place: Tensor, places: Tensor) -> Tensor:
        if not bool((self.count > 0).any()):
            return super().visible(place, places)
        last = place.amax(1, keepdim=True).expand_as(place) if place.numel() else place
        return super().visible(last, places) & (place >= 0)[..., None]


@_mutant("a prefill is not causal", "later_tokens_do_not_count")
class prefill_without_a_mask(Cache):
    def visible(self, place: Tensor, places: Tensor) -> Tensor:
        if bool((self.count > 0).any()) or not place.numel():
            return super().visible(place, places)
        return super().visible(place.amax(1, keepdim=True).expand_as(place), places)


@_mutant("a token does not see itself", "cache_shows_exactly_the_past", "RVC-Boss/GPT-SoVITS#965", "B10")
class strictly_before(Cache):
    def visible(self, place: Tensor, places: Tensor) -> Tensor:
        seen = super().visible(place, places)
        return seen & ((places[:, None] < place[..., None]) | (place[..., None] == 0))


@_mutant("after a long past, a chunk masks its last block alone", "cached_decoding_is_one_pass", "tenstorrent/tt-metal#48899", "B24")
class long_past_masks_the_last_block(Cache):
    def visible(self, place: Tensor, places: Tensor) -> Tensor:
        if not place.numel() or int(self.count.max()) < 2:  # 64 there, and blocks of 64
            return super().visible(place, places)
        last = place.amax(1, keepdim=True) - 1
        return super().visible(torch.where(place >= 0, torch.maximum(place, last), place), places)


@_mutant("slots that hold no token yet are attended as keys", "cached_decoding_is_one_pass", "huggingface/transformers#30437", "B09")
class empty_slots_attended(Cache):
    def held(self) -> Tensor:
        return super().held().clamp(min=0)


# --- windows --------------------------------------------------------------------------------------------------------


def windowed(cache: Cache, place: Tensor, places: Tensor, window: int | None) -> Tensor:
    """What the honest cache would show with another window."""
    given, cache.window = cache.window, window
    seen = Cache.visible(cache, place, places)
    cache.window = given
    return seen


@_mutant("the window is one too wide", "cache_shows_exactly_the_past", "huggingface/transformers#26792", "B12")
class window_one_too_wide(Cache):
    def slots_needed(self) -> int:
        return super().slots_needed() + (self.window is not None)

    def visible(self, place: Tensor, places: Tensor) -> Tensor:
        return windowed(self, place, places, None if self.window is None else self.window + 1)


@_mutant("a step sees one token more than the window", "window_cache_is_a_window_mask", "huggingface/transformers#39408", "B13")
class steps_see_one_more(Cache):
    def visible(self, place: Tensor, places: Tensor) -> Tensor:
        wide = None if self.window is None else self.window + 1
        return windowed(self, place, places, wide if place.shape[1] == 1 else self.window)


@_mutant("the window leaves out the token itself", "window_cache_is_a_window_mask", "microsoft/onnxruntime#25927", "B14")
class window_one_too_narrow(Cache):
    def visible(self, place: Tensor, places: Tensor) -> Tensor:
        return windowed(self, place, places, None if self.window is None else max(self.window - 1, 1))


@_mutant(
    "the prompt is masked to w + 1 tokens, the rotating cache keeps w", "tokens_outside_the_window_are_gone", "ml-explore/mlx-lm#390", "B15"
)
class prompt_sees_one_more(Cache):
    def visible(self, place: Tensor, places: Tensor) -> Tensor:
        wide = None if self.window is None else self.window + 1
        return windowed(self, place, places, wide if place.shape[1] > 1 else self.window)


@_mutant("the window is counted from the row's number in its chunk", "window_cache_is_a_window_mask", "trymirai/lalamo#200", "B21")
class window_by_the_row_in_the_chunk(Cache):
    def visible(self, place: Tensor, places: Tensor) -> Tensor:
        seen = windowed(self, place, places, None)
        row = torch.arange(place.shape[1])[:, None]
        return seen if self.window is None else seen & (places[:, None] > row - self.window)


@_mutant("of a long prompt only the last w tokens are attended", "window_cache_is_a_window_mask", "huggingface/transformers#35691", "B22")
class prompt_cut_to_the_window(Cache):
    def answer(self, q: Tensor, k: Tensor, v: Tensor, place: Tensor) -> Tensor:
        if self.window is None:
            return super().answer(q, k, v, place)
        old_k, old_v = self.stored()
        places, n = torch.cat((self.held(), place), dim=1), self.window
        visible = self.visible(place, places[:, -n:])
        return self.attend(q, torch.cat((old_k, k), dim=2)[:, :, -n:], torch.cat((old_v, v), dim=2)[:, :, -n:], visible)


@_mutant(
    "a window of one keeps everything: the slice from −(w − 1) on",
    "window_cache_is_a_window_mask",
    "transformers 5.23.0, seen by attncheck",
)
class window_of_one_keeps_all(Cache):
    def slots_needed(self) -> int:
        return self.capacity if self.window == 1 else super().slots_needed()

    def visible(self, place: Tensor, places: Tensor) -> Tensor:
        return windowed(self, place, places, None if self.window == 1 else self.window)


@_mutant("a window no smaller than what is cached switches causality off", "later_tokens_do_not_count", "tlc-pack/libflash_attn#11", "B19")
class wide_window_is_not_causal(Cache):
    def visible(self, place: Tensor, places: Tensor) -> Tensor:
        if self.window is None or not place.numel() or self.window < int(self.count.max()) + place.shape[1]:
            return super().visible(place, places)
        return (places[:, None] >= 0) & (place[..., None] >= 0)


@_mutant("a chunk is stored before it is attended: its last tokens overwrite what its first ones see", "window_cache_is_a_window_mask")
class stored_before_attended(Cache):
    def answer(self, q: Tensor, k: Tensor, v: Tensor, place: Tensor) -> Tensor:
        if self.window is None:
            return super().answer(q, k, v, place)
        before, self.count = self.count, self.counted(place)
        self.store(k, v, place)
        old_k, old_v = self.stored()
        visible = self.visible(place, self.held())
        self.count = before
        return self.attend(q, old_k, old_v, visible)


@_mutant("at the end of the ring a chunk is cut off instead of going on at its start", "window_cache_is_a_window_mask")
class ring_without_a_wrap(Cache):
    def store(self, k: Tensor, v: Tensor, place: Tensor) -> None:
        first = place.amin(1, keepdim=True) if place.numel() else place
        super().store(k, v, torch.where(place // self.slots == first // self.slots, place, -1))


@_mutant("the newest token of the ring is overwritten instead of the oldest", "tokens_outside_the_window_are_gone")
class newest_overwritten(Cache):
    def slot(self, place: Tensor) -> Tensor:
        return torch.where(place < self.slots, place, self.slots - 1)


# --- lengths and padding --------------------------------------------------------------------------------------------


@_mutant("all sequences are taken to be as long as the first", "each_sequence_has_its_own_length", "microsoft/onnxruntime#28904", "B06")
class length_of_the_first_sequence(Cache):
    def visible(self, place: Tensor, places: Tensor) -> Tensor:
        return super().visible(torch.where(place >= 0, place[:1], place), places)


@_mutant("padding on the right is fed like tokens", "padding_is_not_told")
class lengths_ignored(Cache):
    def rows(self, n: int, lengths: Tensor | None, padding: Tensor | None) -> Tensor:
        return super().rows(n, None, padding)


@_mutant("every sequence grows by as much as the longest", "each_sequence_has_its_own_length")
class all_grow_alike(Cache):
    def counted(self, place: Tensor) -> Tensor:
        return self.count + (place >= 0).sum(1).amax()


@_mutant("a sequence that is fed nothing starts anew", "each_sequence_has_its_own_length")
class silence_resets(Cache):
    def counted(self, place: Tensor) -> Tensor:
        return torch.where((place >= 0).any(1), super().counted(place), 0)


@_mutant("left padding is attended after the first chunk", "left_padding_is_no_padding", "lucidrains/x-transformers#187", "F24")
class left_padding_attended_later(Cache):
    def append(self, q: Tensor, k: Tensor, v: Tensor, *, lengths: Tensor | None = None, padding: Tensor | None = None) -> Tensor:
        out = super().append(q, k, v, lengths=lengths, padding=padding)
        if padding is not None and self.window is None:
            place = torch.arange(k.shape[2]).expand(self.batch, -1)
            self.store(self.turn(k, place), v, place)
            self.count = torch.full_like(self.count, k.shape[2])
        return out


@_mutant("left padding is ignored", "left_padding_is_no_padding", "lucidrains/x-transformers#187", "F24")
class left_padding_ignored(Cache):
    def rows(self, n: int, lengths: Tensor | None, padding: Tensor | None) -> Tensor:
        return super().rows(n, lengths, None)


@_mutant("left padding of the first sequence is that of all", "left_padding_is_no_padding")
class one_left_padding_for_all(Cache):
    def rows(self, n: int, lengths: Tensor | None, padding: Tensor | None) -> Tensor:
        return super().rows(n, lengths, None if padding is None else padding[:1].expand_as(padding))


# --- positions ------------------------------------------------------------------------------------------------------


@_mutant("queries are rotated as if nothing were cached", "positions_continue_across_steps", "RobertCsordas/moeut#6", "F02")
class query_offset_of_an_empty_cache(Cache):
    def query_places(self, place: Tensor) -> Tensor:
        return torch.where(place >= 0, place - self.count[:, None], place)


@_mutant("positions begin at 0 in every chunk", "positions_continue_across_steps", bug="F27")
class positions_restart(query_offset_of_an_empty_cache):
    def key_places(self, place: Tensor) -> Tensor:
        return self.query_places(place)


@_mutant("a step of one token ignores the offset of its query", "positions_continue_across_steps", "flashinfer-ai/flashinfer#847", "F14")
class step_ignores_its_offset(Cache):
    def query_places(self, place: Tensor) -> Tensor:
        return place.clamp(max=0) if place.shape[1] == 1 else place


@_mutant(
    "new tokens rotate by the number of tokens that are still held",
    "positions_continue_across_steps",
    "rajveer43/VeloxQuant-MLX#389",
    "F06",
)
class offset_of_what_is_held(Cache):
    def key_places(self, place: Tensor) -> Tensor:
        lost = self.count[:, None] - self.count[:, None].clamp(max=self.slots)
        return torch.where(place >= 0, place - lost, place)

    def query_places(self, place: Tensor) -> Tensor:
        return self.key_places(place)


@_mutant("positions are those of the first sequence", "positions_continue_across_steps", "unslothai/unsloth#4078", "F04")
class positions_of_the_first_sequence(Cache):
    def query_places(self, place: Tensor) -> Tensor:
        return torch.where(place >= 0, self.count[:1, None] + torch.arange(place.shape[1]), place)


@_mutant("positions of a padded batch are counted in the chunk", "left_padding_is_no_padding", "mosaicml/examples#257", "F05")
class padded_positions_of_the_chunk(Cache):
    padded = False

    def rows(self, n: int, lengths: Tensor | None, padding: Tensor | None) -> Tensor:
        self.padded = self.padded or (padding is not None and bool(padding.any()))
        return super().rows(n, lengths, padding)

    def query_places(self, place: Tensor) -> Tensor:
        return torch.where(place >= 0, torch.cumsum((place >= 0).long(), 1) - 1, place) if self.padded else place


@_mutant("keys are rotated as they are stored, and again as they are read", "positions_continue_across_steps")
class keys_rotated_twice(Cache):
    def stored(self) -> tuple[Tensor, Tensor]:
        k, v = super().stored()
        return self.turn(k, self.held().clamp(min=0)), v


@_mutant(
    "the rotation of the query reads the key: its second features are those of the rotated key",
    "positions_continue_across_steps",
    "hpcaitech/ColossalAI#6429",
    "D28",
)
class rotation_crosses_query_and_key(Cache):
    def append(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        self.new = k
        return super().append(q, k, v, **options)

    def turn(self, x: Tensor, places: Tensor) -> Tensor:
        turned = super().turn(x, places)
        if self.base is None or x.shape != self.new.shape:
            return turned
        return torch.stack((turned[..., 0::2], super().turn(self.new, places)[..., 1::2]), dim=-1).flatten(-2)


@_mutant("positions are a place in the ring", "positions_continue_across_steps")
class position_in_the_ring(Cache):
    def query_places(self, place: Tensor) -> Tensor:
        return torch.where(place >= 0, place % self.slots, place)

    def key_places(self, place: Tensor) -> Tensor:
        return self.query_places(place)


# --- numbers --------------------------------------------------------------------------------------------------------


@_mutant("old and new tokens are averaged, not merged by their weights", "chunking_changes_nothing")
class parts_averaged(Cache):
    def answer(self, q: Tensor, k: Tensor, v: Tensor, place: Tensor) -> Tensor:
        old, new = self.visible(place, self.held()), self.visible(place, place)
        parts = self.attend(q, *self.stored(), old), self.attend(q, k, v, new)
        share = 0.5 * old.any(-1)[:, None, :, None]
        return (share * parts[0].double() + (1 - share) * parts[1].double()).to(q.dtype)


@_mutant("a step is scaled by the features of the values", "cached_decoding_is_one_pass")
class step_scaled_by_value_dim(Cache):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> Tensor:
        factor = (q.shape[-1] / v.shape[-1]) ** 0.5 if q.shape[2] == 1 and self.count.any() else 1.0
        return super().attend(q.double() * factor, k, v, visible).to(v.dtype)


@_mutant("query heads share key/value heads in turn", "grouped_heads_share_their_cache", "onnx/onnx#7297", "D06")
class heads_in_turn(Cache):
    def spread(self, x: Tensor) -> Tensor:
        return x.repeat(1, self.group, 1, 1)


@_mutant("the cache is bfloat16, whatever it is fed", "cached_decoding_is_one_pass")
class stored_in_bfloat16(Cache):
    def __init__(self, *sizes: int, **options: Any) -> None:
        super().__init__(*sizes, **{**options, "dtype": torch.bfloat16})

    def store(self, k: Tensor, v: Tensor, place: Tensor) -> None:
        super().store(k.to(torch.bfloat16), v.to(torch.bfloat16), place)

    def stored(self) -> Any:
        return tuple(x.to(torch.float32) for x in super().stored())

    def attend(self, q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> Tensor:
        return super().attend(q, k.to(q.dtype), v.to(q.dtype), visible)
