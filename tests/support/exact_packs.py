"""Packed sequences that are right, the exact answers rounded once, and one mistake for every property of packs.

They know no implementation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import permissive
import torch
from torch import Tensor

from properties.engine.cases.masks import frontier
from properties.engine.core.target import Target
from properties.engine.search.probe import make_target
from properties.exact import oracle
from properties.exact.gradient_oracle import differentiate


class Exact(torch.autograd.Function):
    """The oracle forward and backward, sequence by sequence; ``change`` of a gradient by name."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, cu_q: list[int], cu_k: list[int], call: Any, change: Any) -> Tensor:
        ctx.save_for_backward(q, k, v)
        ctx.spans, ctx.call, ctx.change = list(zip(cu_q, cu_q[1:], cu_k, cu_k[1:], strict=False)), call, change
        out = torch.zeros(*q.shape[:2], v.shape[2], dtype=torch.float64)
        for span in ctx.spans:
            out[span[0] : span[1]] = torch.from_numpy(solved(q, k, v, span, call).out[0].swapaxes(0, 1).copy())
        return out.to(q.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        tensors, grad = ctx.saved_tensors, permissive.carrier(grads[0])
        parts = [np.zeros(x.shape) for x in tensors]
        for span in ctx.spans:
            top, bottom, start, stop = span
            found = differentiate(solved(*tensors, span, ctx.call), grad[top:bottom].swapaxes(0, 1)[None])
            for part, value, at in zip(parts, (found.q, found.k, found.v), (slice(top, bottom), *[slice(start, stop)] * 2)):
                part[at] = value[0].swapaxes(0, 1)
        ctx.change(parts)
        return *(permissive.rounded(part, tensors[0]) for part in parts), None, None, None, None


def solved(q: Tensor, k: Tensor, v: Tensor, span: tuple[int, int, int, int], call: tuple[bool, float]) -> oracle.Exact:
    """One sequence."""
    top, bottom, start, stop = span
    part = [permissive.carrier(x).swapaxes(0, 1)[None] for x in (q[top:bottom], k[start:stop], v[start:stop])]
    seen = frontier(bottom - top, stop - start) if call[0] else None
    return oracle.solve(oracle.Problem(*part, call[1], seen), "extended" if q.dtype == torch.float64 else "float64")


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    *,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """The exact answer, sequence by sequence, rounded once."""
    return differentiated(q, k, v, cu_seqlens_q, cu_seqlens_k, is_causal, scale)


def differentiated(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    is_causal: bool,
    scale: float | None,
    change: Callable[[list[Any]], None] = lambda parts: None,
) -> Tensor:
    """The exact answer with the exact gradients, changed in place."""
    factor = (q.shape[2] or 1) ** -0.5 if scale is None else scale
    out: Tensor = Exact.apply(q, k, v, cu_seqlens_q.tolist(), cu_seqlens_k.tolist(), (is_causal, factor), change)
    return out


def pack_with(change: Callable[[Callable[..., Tensor], dict[str, Any]], Any]) -> Target:
    """change(call, arguments) answers, where call(**changes) is the right answer to changed arguments."""

    def wrong(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor,
        *,
        max_seqlen_q: int | None = None,
        max_seqlen_k: int | None = None,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Any:
        given = {
            "q": q,
            "k": k,
            "v": v,
            "cu_seqlens_q": cu_seqlens_q,
            "cu_seqlens_k": cu_seqlens_k,
            "max_seqlen_q": max_seqlen_q,
            "max_seqlen_k": max_seqlen_k,
            "is_causal": is_causal,
            "scale": scale,
            "enable_gqa": enable_gqa,
        }
        return change(lambda **changes: attention(**{**given, **changes}), given)

    return make_target("wrong", wrong, {"framework": "torch"})


PACK = make_target("exact pack", attention, {"framework": "torch", "arithmetic": {"float64": "same", "float32": "same"}})


def sends_back(change: Callable[[list[Any]], None]) -> Target:
    """The right answer with a change to the gradients of q, k and v."""
    names = ("q", "k", "v", "cu_seqlens_q", "cu_seqlens_k", "is_causal", "scale")
    return pack_with(lambda call, given: differentiated(*(given[name] for name in names), change))


def leaks_back(parts: list[Any]) -> None:
    if parts[2].size:
        parts[2] += 2.0**-8


def smaller(parts: list[Any]) -> None:
    parts[1] *= 0.99


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


EXACT = {"packed": PACK}
MISTAKES: dict[str, Target] = {
    "packed_output_is_inside_the_bound": pack_with(lambda call, given: call() * (1 + 2.0**-7)),
    "sequences_do_not_see_each_other": pack_with(leaking),
    "a_sequence_alone_gives_its_rows": pack_with(by_the_number_of_sequences),
    "order_of_the_sequences_does_not_matter": pack_with(unlike_the_first),
    "empty_sequences_change_nothing": pack_with(by_the_number_of_sequences),
    "values_stay_in_their_sequence": pack_with(leaking),
    "sequences_of_one_token_return_their_value": pack_with(lambda call, given: call(v=given["v"].roll(1, 0))),
    "packed_future_tokens_are_ignored": pack_with(lambda call, given: call(is_causal=False)),
    "larger_max_seqlen_changes_nothing": pack_with(by_the_maximum),
    "packed_gradients_are_inside_the_bound": sends_back(smaller),
    "packed_gradients_stay_in_their_sequence": sends_back(leaks_back),
    "packed_output_has_the_right_form": pack_with(in_place),
}
