"""The last bits of packed sequences, positions and caches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from . import packs
from .cache_core import Cache
from .core import INF
from .last_bits import restored, shared
from .lookups import check, learned
from .packs import attention
from .registry import MEMORY, Function, mutant
from .rotations import Pair, rotary, table, turned
from .sinusoids import sinusoidal


def _mutant(contract: str, mistake: str, killed_by: str, source: str = "teaching code") -> Callable[[Function], Function]:
    return mutant(mistake, source=source, killed_by=killed_by, contract=contract)


def through(x: Tensor, factor: Tensor) -> Tensor:
    """Divided by a factor, as for a narrow type, and multiplied by it again; as it is where the factor is 0 or no number."""
    return torch.where((factor > 0) & factor.isfinite(), x / factor * factor, x)


def largest(x: Tensor) -> Tensor:
    """max |x|, 0 of nothing."""
    return x.detach().abs().amax() if x.numel() else x.detach().sum()


# --- packed sequences ---------------------------------------------------------------------------------------------


@_mutant("packed", "the maximum is taken over the tile, also over the keys of other sequences in it", "sequences_do_not_see_each_other")
def pack_shares_its_maximum(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, **options: Any) -> Tensor:
    def shifted(logit: Tensor, everything: Tensor) -> Tensor:
        if not logit.numel():
            return packs.normalise(logit, everything)
        return shared(logit, logit != -INF, everything.amax(-1, keepdim=True))

    return attention(q, k, v, cu_seqlens_q, cu_seqlens_k, **options, normalise=shifted)


@_mutant("packed", "the rows of a sequence share one running maximum, later ones among them", "packed_future_tokens_are_ignored")
def rows_of_a_pack_share_their_maximum(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, **options: Any) -> Tensor:
    def shifted(logit: Tensor, everything: Tensor) -> Tensor:
        if not logit.numel():
            return packs.normalise(logit, everything)
        return shared(logit, logit != -INF, logit.amax((-1, -2), keepdim=True))

    return attention(q, k, v, cu_seqlens_q, cu_seqlens_k, **options, normalise=shifted)


@_mutant("packed", "blocks of keys are added in the order in which they finish", "packed_output_has_the_right_form", "ROCm/triton#953")
def blocks_of_a_pack_race(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, **options: Any) -> Tensor:
    MEMORY["blocks_of_a_pack_race"] = turn = MEMORY.get("blocks_of_a_pack_race", 0) + 1

    def race(logit: Tensor, everything: Tensor) -> Tensor:
        return packs.normalise(logit, everything) if turn % 2 else torch.exp(torch.log(packs.normalise(logit, everything)))

    return attention(q, k, v, cu_seqlens_q, cu_seqlens_k, **options, normalise=race)


def dust(x: Tensor) -> Tensor:
    """e⁻⁷⁰⁰ times the sum of x: 0 in float32, not in float64."""
    return x.sum() * torch.exp(torch.tensor(-700.0, dtype=x.dtype))


@_mutant("packed", "in the backward pass one mask for the whole pack hides other sequences at −700, not at −∞",
         "packed_gradients_stay_in_their_sequence")
def faint_gradients_across_sequences(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, cu_seqlens_q, cu_seqlens_k, **options) + dust(v - v.detach())


@_mutant("packed", "one mask for the whole pack hides other sequences at −700, not at −∞", "values_stay_in_their_sequence")
def faint_values_across_sequences(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, cu_seqlens_q, cu_seqlens_k, **options) + dust(v.detach())


# --- positions ----------------------------------------------------------------------------------------------------


def shifted_sine(angle: Tensor) -> Tensor:
    """sin x as cos(x − π/2): of 0 it is 6e-17."""
    return torch.cos(angle - torch.pi / 2)


@_mutant("sinusoidal", "the sine is a shifted cosine: of 0 it is 6e-17", "positions_start_at_zero")
def sine_as_cosine(length: int, dim: int, **options: Any) -> Tensor:
    return sinusoidal(length, dim, **options, sine=shifted_sine)


@_mutant("rotary", "the sine of a rotation is a shifted cosine: of 0 it is 6e-17", "position_zero_is_the_identity")
def rotation_with_a_shifted_sine(x: Tensor, positions: Tensor, **options: Any) -> Tensor:
    def rule(first: Tensor, second: Tensor, cos: Tensor, sin: Tensor) -> Pair:
        return turned(first, second, cos, torch.where(sin == 0, shifted_sine(sin), sin))

    return rotary(x, positions, **options, rule=rule)


@_mutant("rotary", "the features are carried in another orthogonal basis, and back", "pairs_are_as_declared")
def through_another_basis(x: Tensor, positions: Tensor, **options: Any) -> Tensor:
    out = rotary(x, positions, **options)
    angle = torch.arange(1, out.shape[-1] + 1, dtype=out.dtype)
    basis = torch.linalg.qr(torch.cos(angle[:, None] * angle).double())[0].to(out.dtype)
    return (out @ basis) @ basis.mT


@_mutant("rotary", "what is not rotated is rotated all the same, and back", "features_beyond_rotary_dim_are_untouched")
def rest_rotated_and_back(x: Tensor, positions: Tensor, rotary_dim: int | None = None, **options: Any) -> Tensor:
    out = rotary(x, positions, rotary_dim=rotary_dim, **options)
    if rotary_dim is None or rotary_dim >= x.shape[-1]:
        return out
    rest = rotary(rotary(x[..., rotary_dim:], positions, **options), -positions, **options)
    return torch.cat((out[..., :rotary_dim], rest), -1)


@_mutant("rotary", "angles are counted from a middle of all positions, then turned on by it", "rows_turn_by_their_own_position")
def angles_from_the_mean(x: Tensor, positions: Tensor, **options: Any) -> Tensor:
    def centred(places: Tensor, dim: int, base: float, dtype: torch.dtype) -> Tensor:
        if not places.numel():
            return table(places, dim, base, dtype)
        middle = places.to(dtype).mean() / 3
        return table(places.to(dtype) - middle, dim, base, dtype) + table(middle[None], dim, base, dtype)

    return rotary(x, positions, **options, angles=centred)


@_mutant("rotary", "x is rotated in place, and back when the answer is copied", "rotation_leaves_its_arguments")
def rotated_in_place_and_back(x: Tensor, positions: Tensor, **options: Any) -> Tensor:
    out = rotary(x, positions, **options)
    restored(x, 0.3)
    return out


@_mutant("learned", "rows are divided by their largest element, as kept in a narrow type, and multiplied by it",
         "looked_up_rows_are_those_of_the_table")
def rows_scaled_and_back(table: Tensor, positions: Tensor, *, offset: int = 0) -> Tensor:
    rows = learned(table, positions, offset=offset)
    return through(rows, rows.abs().amax(-1, keepdim=True)) if rows.numel() else rows


@_mutant("learned", "the table is scaled by the largest of its elements, and back", "other_rows_of_the_table_do_not_matter")
def table_scaled_and_back(table: Tensor, positions: Tensor, *, offset: int = 0) -> Tensor:
    return through(learned(table, positions, offset=offset), largest(table))


@_mutant("learned", "max_norm: a row that is looked up is scaled in the table, and scaled back", "looking_up_leaves_its_arguments",
         "pytorch/pytorch#26596")
def renormed_in_place(table: Tensor, positions: Tensor, *, offset: int = 0) -> Tensor:
    out = learned(table, positions, offset=offset)
    restored(table.detach(), 0.3)
    return out


@_mutant("learned", "the first call copies rows, the next multiplies a one-hot matrix scaled to the largest row", "positions_have_the_right_form")
def compiled_lookup(table: Tensor, positions: Tensor, *, offset: int = 0) -> Tensor:
    MEMORY["compiled_lookup"] = turn = MEMORY.get("compiled_lookup", 0) + 1
    check(positions + offset, table)
    rows = table[positions + offset]
    return rows if turn % 2 else through(rows, largest(rows))


# --- caches: the scale of a narrow cache, or the maximum of a tile, is taken from more than is seen ---------------


class Scaled(Cache):
    """Keys and values held divided by the largest element told so far, as in a cache of 8 bits, and multiplied by it when read."""

    largest = 0.0

    def append(self, q: Tensor, k: Tensor, v: Tensor, *, lengths: Tensor | None = None, padding: Tensor | None = None) -> Tensor:
        self.noted(k, v, lengths, padding)
        return super().append(q, k, v, lengths=lengths, padding=padding)

    def noted(self, k: Tensor, v: Tensor, lengths: Tensor | None, padding: Tensor | None) -> None:
        """Look at what is told."""
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


@_mutant("cached", "values are scaled by the largest of the whole chunk, and back", "later_tokens_do_not_count")
class scaled_by_the_chunk(Scaled):
    def reset(self) -> None:
        super().reset()
        self.largest = 0.0


@_mutant("cached", "values are scaled by the largest of all sequences, and back", "sequences_do_not_mix")
class scaled_by_the_batch(Scaled):
    def noted(self, k: Tensor, v: Tensor, lengths: Tensor | None, padding: Tensor | None) -> None:
        self.enlarged(v[:, :, :1])


@_mutant("cached", "values are scaled by the largest of the chunk and of its padding, and back", "padding_is_not_told")
class scaled_by_the_padding(Scaled):
    def noted(self, k: Tensor, v: Tensor, lengths: Tensor | None, padding: Tensor | None) -> None:
        if lengths is not None:
            self.enlarged(v)


@_mutant("cached", "values are scaled by the largest of the left padding, and back", "left_padding_is_no_padding")
class scaled_by_the_left_padding(Scaled):
    def noted(self, k: Tensor, v: Tensor, lengths: Tensor | None, padding: Tensor | None) -> None:
        if padding is not None:
            self.enlarged(v)


@_mutant("cached", "what has left the window still scales the values", "tokens_outside_the_window_are_gone")
class scaled_by_what_has_left(Scaled):
    def noted(self, k: Tensor, v: Tensor, lengths: Tensor | None, padding: Tensor | None) -> None:
        if self.window is not None:
            self.enlarged(v)


@_mutant("cached", "a reset does not forget the scale of the values", "reset_leaves_no_trace")
class scale_survives_a_reset(Scaled):
    def truncate(self, length: int) -> None:
        super().truncate(length)
        self.largest = 0.0


@_mutant("cached", "tokens that are taken back leave the scale of the values", "truncation_leaves_no_trace")
class scale_survives_truncation(Scaled):
    def reset(self) -> None:
        super().reset()
        self.largest = 1.5


@_mutant("cached", "a copy and its original share the scale of the values", "fork_is_independent")
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


@_mutant("cached", "the scale of the values is an attribute of the class: that of the chunk before, of whichever cache", "caches_share_nothing")
class scale_of_the_class(Scaled):
    def noted(self, k: Tensor, v: Tensor, lengths: Tensor | None, padding: Tensor | None) -> None:
        self.largest = MEMORY.get("scale_of_the_class", 0.0)
        MEMORY["scale_of_the_class"] = float(v.abs().amax()) if v.numel() else 0.0


@_mutant("cached", "values are scaled by the largest number in memory, also in slots that hold no token", "unused_slots_do_not_count")
class scaled_by_unused_slots(Cache):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> Tensor:
        return super().attend(q, k, through(v, self.v.abs().nan_to_num(nan=3.0).amax()) if self.v.numel() else v, visible)


@_mutant("cached", "the scale of the values is read from the caller's array when the next chunk comes", "cache_keeps_copies")
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


@_mutant("cached", "the answer before is scaled in place, and back", "answers_already_given_stand")
class last_answer_restored(Cache):
    last: Tensor | None = None

    def append(self, q: Tensor, k: Tensor, v: Tensor, *, lengths: Tensor | None = None, padding: Tensor | None = None) -> Tensor:
        if self.last is not None:
            restored(self.last, 0.3)
        self.last = super().append(q, k, v, lengths=lengths, padding=padding)
        return self.last


@_mutant("cached", "the query of a step is scaled in place, and divided by the scale again", "append_leaves_its_arguments")
class query_of_a_step_restored(Cache):
    def append(self, q: Tensor, k: Tensor, v: Tensor, *, lengths: Tensor | None = None, padding: Tensor | None = None) -> Tensor:
        out = super().append(q, k, v, lengths=lengths, padding=padding)
        restored(q, 0.3)
        return out
