"""Packed sequences that are right, the exact answers rounded once, and one mistake for every property of packs.

They know no implementation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import permissive
import torch
from torch import Tensor

from properties import oracle
from properties.engine.inputs import frontier
from properties.engine.target import Target, make_target


def attention(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, *, max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None, is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    """The exact answer, sequence by sequence, rounded once."""
    out = torch.zeros(*q.shape[:2], v.shape[2], dtype=torch.float64)
    factor = (q.shape[2] or 1) ** -0.5 if scale is None else scale
    cu_q, cu_k = cu_seqlens_q.tolist(), cu_seqlens_k.tolist()
    for top, bottom, start, stop in zip(cu_q, cu_q[1:], cu_k, cu_k[1:], strict=False):
        part = [permissive.carrier(x).swapaxes(0, 1)[None] for x in (q[top:bottom], k[start:stop], v[start:stop])]
        seen = frontier(bottom - top, stop - start) if is_causal else None
        exact = oracle.solve(oracle.Problem(*part, factor, seen), "extended" if q.dtype == torch.float64 else "float64")
        out[top:bottom] = torch.from_numpy(exact.out[0].swapaxes(0, 1).copy())
    return out.to(q.dtype)


def pack_with(change: Callable[[Callable[..., Tensor], dict[str, Any]], Any]) -> Target:
    """change(call, arguments) answers, where call(**changes) is the right answer to changed arguments."""

    def wrong(
        q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, *, max_seqlen_q: int | None = None,
        max_seqlen_k: int | None = None, is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
    ) -> Any:  # fmt: skip
        given = {"q": q, "k": k, "v": v, "cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k, "max_seqlen_q": max_seqlen_q,
                 "max_seqlen_k": max_seqlen_k, "is_causal": is_causal, "scale": scale, "enable_gqa": enable_gqa}  # fmt: skip
        return change(lambda **changes: attention(**{**given, **changes}), given)

    return make_target("wrong", wrong, {"framework": "torch"})


PACK = make_target("exact pack", attention, {"framework": "torch", "arithmetic": {"float64": "same", "float32": "same"}})


def rows(given: dict[str, Any]) -> Tensor:
    """The number of its sequence, for every row, (total queries, 1, 1)."""
    lengths = given["cu_seqlens_q"].diff().long()
    return torch.repeat_interleave(torch.arange(len(lengths)), lengths)[:, None, None]


def leaking(call: Callable[..., Tensor], given: dict[str, Any]) -> Tensor:
    """A little of the mean of all values."""
    out, v = call(), given["v"]
    return out + v.mean() * 2.0**-8 if len(v) else out


def in_place(call: Callable[..., Tensor], given: dict[str, Any]) -> Tensor:
    out = call()
    given["cu_seqlens_k"][1:] += 1
    return out


def unlike_the_first(call: Callable[..., Tensor], given: dict[str, Any]) -> Tensor:
    """Sequences after the first are off."""
    return call() * (1 + 2.0**-7 * (rows(given) > 0)).to(given["q"].dtype)


def by_the_number_of_sequences(call: Callable[..., Tensor], given: dict[str, Any]) -> Tensor:
    return call() * (1 + 2.0**-7 * len(given["cu_seqlens_q"]))


def by_the_maximum(call: Callable[..., Tensor], given: dict[str, Any]) -> Tensor:
    return call() * (1 + 2.0**-7 * given["max_seqlen_k"])


PACK_MISTAKES: dict[str, Target] = {
    "packed_output_is_inside_the_bound": pack_with(lambda call, given: call() * (1 + 2.0**-7)),
    "sequences_do_not_see_each_other": pack_with(leaking),
    "a_sequence_alone_gives_its_rows": pack_with(by_the_number_of_sequences),
    "permuted_sequences_permute_the_rows": pack_with(unlike_the_first),
    "empty_sequences_change_nothing": pack_with(by_the_number_of_sequences),
    "values_stay_in_their_sequence": pack_with(leaking),
    "sequences_of_one_token_return_their_value": pack_with(lambda call, given: call(v=given["v"].roll(1, 0))),
    "packed_future_tokens_are_ignored": pack_with(lambda call, given: call(is_causal=False)),
    "larger_max_seqlen_changes_nothing": pack_with(by_the_maximum),
    "packed_output_has_the_right_form": pack_with(in_place),
}
