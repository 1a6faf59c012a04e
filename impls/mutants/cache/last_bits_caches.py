"""The last bits of caches: the scale of a narrow cache, or the maximum of a tile, is taken from more than is seen."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..attention.last_bits import last_bit, restored, through
from ..registry import MEMORY
from .cache_core import Cache


class Scaled(Cache):
    """Keys and values held divided by the largest element fed so far, as in a cache of 8 bits, and multiplied by it when read."""

    largest = 0.0

    def append(self, q: Tensor, k: Tensor, v: Tensor, *, lengths: Tensor | None = None, padding: Tensor | None = None) -> Tensor:
        self.noted(k, v, lengths, padding)
        return super().append(q, k, v, lengths=lengths, padding=padding)

    def noted(self, k: Tensor, v: Tensor, lengths: Tensor | None, padding: Tensor | None) -> None:
        """Look at what is fed."""
        self.enlarged(v)

    def enlarged(self, x: Tensor) -> None:
        """Remember its largest element."""
        if x.numel():
            self.largest = max(self.largest, float(x.abs().nan_to_num(nan=0.0, posinf=0.0).amax()))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> Tensor:
        return super().attend(q, k, self.read(v), visible)

    def read(self, v: Tensor) -> Tensor:
        """Values on their way out of the cache."""
        return through(v, torch.tensor(self.largest, dtype=v.dtype)) if self.largest else v


@last_bit("cached", "values are scaled by the largest of the whole chunk, and back", "later_tokens_do_not_count")
class scaled_by_the_chunk(Scaled):
    def reset(self) -> None:
        super().reset()
        self.largest = 0.0


@last_bit("cached", "values are scaled by the largest of all sequences, and back", "sequences_do_not_mix")
class scaled_by_the_batch(Scaled):
    def noted(self, k: Tensor, v: Tensor, lengths: Tensor | None, padding: Tensor | None) -> None:
        self.enlarged(v[:, :, :1])


@last_bit("cached", "values are scaled by the largest of the chunk and of its padding, and back", "padding_is_not_told")
class scaled_by_the_padding(Scaled):
    def noted(self, k: Tensor, v: Tensor, lengths: Tensor | None, padding: Tensor | None) -> None:
        if lengths is not None:
            self.enlarged(v)


@last_bit("cached", "values are scaled by the largest of the left padding, and back", "left_padding_is_no_padding")
class scaled_by_the_left_padding(Scaled):
    def noted(self, k: Tensor, v: Tensor, lengths: Tensor | None, padding: Tensor | None) -> None:
        if padding is not None:
            self.enlarged(v)


@last_bit("cached", "what has left the window still scales the values", "tokens_outside_the_window_are_gone")
class scaled_by_what_has_left(Scaled):
    def noted(self, k: Tensor, v: Tensor, lengths: Tensor | None, padding: Tensor | None) -> None:
        if self.window is not None:
            self.enlarged(v)


@last_bit("cached", "a reset does not forget the scale of the values", "reset_leaves_no_trace")
class scale_survives_a_reset(Scaled):
    def truncate(self, length: int) -> None:
        super().truncate(length)
        self.largest = 0.0


@last_bit("cached", "tokens that are taken back leave the scale of the values", "truncation_leaves_no_trace")
class scale_survives_truncation(Scaled):
    def reset(self) -> None:
        super().reset()
        self.largest = 1.5


@last_bit("cached", "a copy and its original share the scale of the values", "fork_is_independent")
class fork_shares_the_scale(Scaled):
    def __init__(self, *sizes: Any, **options: Any) -> None:
        super().__init__(*sizes, **options)
        self.scale: dict[str, float] = {}

    def enlarged(self, x: Tensor) -> None:
        if x.numel():
            self.scale["largest"] = max(self.scale.get("largest", 0.0), float(x.abs().amax()))

    def read(self, v: Tensor) -> Tensor:
        return through(v, torch.tensor(self.scale.get("largest", 0.0), dtype=v.dtype))

    def fork(self) -> Cache:
        copy = super().fork()
        copy.scale = self.scale  # type: ignore[attr-defined]
        return copy


@last_bit(
    "cached", "the scale of the values is an attribute of the class: that of the chunk before, of whichever cache", "caches_share_nothing"
)
class scale_of_the_class(Scaled):
    def noted(self, k: Tensor, v: Tensor, lengths: Tensor | None, padding: Tensor | None) -> None:
        self.largest = MEMORY.get("scale_of_the_class", 0.0)
        MEMORY["scale_of_the_class"] = float(v.abs().amax()) if v.numel() else 0.0


@last_bit("cached", "values are scaled by the largest number in memory, also in slots that hold no token", "unused_slots_do_not_count")
class scaled_by_unused_slots(Cache):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> Tensor:
        return super().attend(q, k, through(v, self.v.abs().nan_to_num(nan=3.0).amax()) if self.v.numel() else v, visible)


@last_bit("cached", "the scale of the values is read from the caller's array when the next chunk comes", "cache_keeps_copies")
class scaled_by_the_callers_array(Cache):
    told: Tensor | None = None

    def append(self, q: Tensor, k: Tensor, v: Tensor, *, lengths: Tensor | None = None, padding: Tensor | None = None) -> Tensor:
        out = super().append(q, k, v, lengths=lengths, padding=padding)
        self.told = v
        return out

    def attend(self, q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> Tensor:
        if self.told is not None and self.told.numel():
            v = through(v, self.told.abs().amax())
        return super().attend(q, k, v, visible)


@last_bit("cached", "the answer before is scaled in place, and back", "answers_already_given_stand")
class last_answer_restored(Cache):
    last: Tensor | None = None

    def append(self, q: Tensor, k: Tensor, v: Tensor, *, lengths: Tensor | None = None, padding: Tensor | None = None) -> Tensor:
        if self.last is not None:
            restored(self.last, 0.3)
        self.last = super().append(q, k, v, lengths=lengths, padding=padding)
        return self.last


@last_bit("cached", "the query of a step is scaled in place, and divided by the scale again", "append_leaves_its_arguments")
class query_of_a_step_restored(Cache):
    def append(self, q: Tensor, k: Tensor, v: Tensor, *, lengths: Tensor | None = None, padding: Tensor | None = None) -> Tensor:
        out = super().append(q, k, v, lengths=lengths, padding=padding)
        restored(q, 0.3)
        return out
