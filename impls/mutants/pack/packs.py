"""Packed sequences: boundaries, frontiers and lengths of one sequence taken for those of another."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..attention.core import INF, Step, default_scale, widen
from ..registry import honest, mutant


def check(q: Tensor, k: Tensor, v: Tensor, enable_gqa: bool) -> None:
    """Raise ValueError where the shapes do not fit together."""
    if q.ndim != 3 or k.shape[:2] != v.shape[:2] or q.shape[2] != k.shape[2]:
        raise ValueError(f"shapes do not fit: q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}")
    if q.shape[1] != k.shape[1] and not (enable_gqa and q.shape[1] % k.shape[1] == 0):
        raise ValueError(f"{k.shape[1]} key heads cannot serve {q.shape[1]} query heads (enable_gqa={enable_gqa})")


def frontier(rows: int, keys: int, before_q: int, before_k: int, n: int) -> Tensor:
    """j ≤ i within the sequence, (L, S); what came before it in the pack does not matter."""
    return torch.ones(rows, keys, dtype=torch.bool).tril()


def span_q(cu: list[int], n: int) -> tuple[int, int]:
    """Where the queries of sequence n begin and end."""
    return cu[n], cu[n + 1]


def span_k(cu: list[int], n: int, cu_q: list[int], options: dict[str, Any], total: int) -> tuple[int, int]:
    """Where its keys begin and end."""
    return cu[n], cu[n + 1]


def normalise(logit: Tensor, everything: Tensor) -> Tensor:
    """The softmax over the sequence (…, S); 0 in a row that sees nothing."""
    return torch.softmax(logit, -1).masked_fill((logit == -INF).all(-1, keepdim=True), 0.0)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    *,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    span_q: Step = span_q,
    span_k: Step = span_k,
    frontier: Step = frontier,
    normalise: Step = normalise,
    sequences: Step = range,
    boundaries: Step = lambda q, k: (q, k),
    factor: Step = lambda n: 1.0,
    **options: Any,
) -> Tensor:
    """The honest core, sequence by sequence; the keywords from `span_q` to `factor` are the steps, for mutants to replace."""
    check(q, k, v, enable_gqa)
    cu_q, cu_k = boundaries(cu_seqlens_q.tolist(), cu_seqlens_k.tolist())
    group, scale = q.shape[1] // k.shape[1], default_scale(q) if scale is None else scale
    query, key, value = (widen(x).transpose(0, 1) for x in (q, k, v))  # (H, total, D)
    key, value = key.repeat_interleave(group, 0), value.repeat_interleave(group, 0)
    out = query.new_zeros(query.shape[0], query.shape[1], value.shape[2])
    for n in sequences(min(len(cu_q), len(cu_k)) - 1):
        (top, bottom), (start, stop) = span_q(cu_q, n), span_k(cu_k, n, cu_q, options, key.shape[1])
        logit = query[:, top:bottom] @ key[:, start:stop].mT * (scale * factor(n))
        if is_causal:
            logit = logit.masked_fill(~frontier(*logit.shape[1:], top, start, n), -INF)
        everything = query[:, top:bottom] @ key.mT * scale
        out[:, top:bottom] = normalise(logit, everything) @ value[:, start:stop] if logit.shape[2] else 0.0
    return out.transpose(0, 1).to(q.dtype)


# ---------------------------------------------------------------- honest


@honest("the last sequence first", contract="packed")
def last_first(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, cu_seqlens_q, cu_seqlens_k, **options, sequences=lambda n: reversed(range(n)))


@honest(
    "causal frontiers that end with the last key",
    contract="packed",
    source="Dao-AILab/flash-attention",
    supports={"causal": "bottom-right"},
)
def frontiers_at_the_end(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, **options: Any) -> Tensor:
    def last(rows: int, keys: int, *before: int) -> Tensor:
        return torch.ones(rows, keys, dtype=torch.bool).tril(keys - rows)

    return attention(q, k, v, cu_seqlens_q, cu_seqlens_k, **options, frontier=last)


# ---------------------------------------------------------------- boundaries


@mutant(
    "the keys of a sequence begin one too early: its neighbour's last key is seen",
    source="teaching code",
    killed_by="sequences_do_not_see_each_other",
    contract="packed",
)
def keys_begin_early(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, **options: Any) -> Tensor:
    def early(cu: list[int], n: int, cu_q: list[int], options: dict[str, Any], total: int) -> tuple[int, int]:
        return max(cu[n] - 1, 0), cu[n + 1]

    return attention(q, k, v, cu_seqlens_q, cu_seqlens_k, **options, span_k=early)


@mutant(
    "the keys of a sequence end one too early",
    source="teaching code",
    killed_by="sequences_of_one_token_return_their_value",
    contract="packed",
)
def keys_end_early(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, **options: Any) -> Tensor:
    def early(cu: list[int], n: int, cu_q: list[int], options: dict[str, Any], total: int) -> tuple[int, int]:
        return cu[n], max(cu[n + 1] - 1, cu[n])

    return attention(q, k, v, cu_seqlens_q, cu_seqlens_k, **options, span_k=early)


@mutant(
    "keys are read in tiles of 16 without a mask at the end: the next sequence fills up the last tile",
    source="teaching code",
    killed_by="values_stay_in_their_sequence",
    contract="packed",
)
def last_tile_reads_on(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, **options: Any) -> Tensor:
    def tiled(cu: list[int], n: int, cu_q: list[int], options: dict[str, Any], total: int) -> tuple[int, int]:
        return cu[n], min(cu[n] + -(-(cu[n + 1] - cu[n]) // 16) * 16, total)

    return attention(q, k, v, cu_seqlens_q, cu_seqlens_k, **options, span_k=tiled)


@mutant("the last sequence is left out", source="teaching code", killed_by="packed_output_is_inside_the_bound", contract="packed")
def last_left_out(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, cu_seqlens_q, cu_seqlens_k, **options, sequences=lambda n: range(n - 1))


@mutant(
    "the boundaries of the keys serve for the queries, too",
    source="teaching code",
    killed_by="packed_output_is_inside_the_bound",
    contract="packed",
)
def keys_bound_the_queries(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, cu_seqlens_q, cu_seqlens_k, **options, boundaries=lambda cu_q, cu_k: (cu_k, cu_k))


@mutant(
    "the boundaries of the queries serve for the keys, too",
    source="teaching code",
    killed_by="packed_output_is_inside_the_bound",
    contract="packed",
)
def queries_bound_the_keys(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, cu_seqlens_q, cu_seqlens_k, **options, boundaries=lambda cu_q, cu_k: (cu_q, cu_q))


@mutant(
    "boundaries that repeat are dropped on the side of the queries: after an empty sequence all are shifted",
    source="teaching code",
    killed_by="packed_output_is_inside_the_bound",
    contract="packed",
)
def empty_queries_shift(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, **options: Any) -> Tensor:
    def unique(cu_q: list[int], cu_k: list[int]) -> tuple[list[int], list[int]]:
        return sorted(set(cu_q)), cu_k

    return attention(q, k, v, cu_seqlens_q, cu_seqlens_k, **options, boundaries=unique)


@mutant("an empty sequence ends the pack", source="teaching code", killed_by="empty_sequences_change_nothing", contract="packed")
def empty_ends_the_pack(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, **options: Any) -> Tensor:
    def until_empty(cu_q: list[int], cu_k: list[int]) -> tuple[list[int], list[int]]:
        end = next((n for n in range(len(cu_q) - 1) if cu_q[n] == cu_q[n + 1] and cu_k[n] == cu_k[n + 1]), len(cu_q) - 1)
        return cu_q[: end + 1], cu_k[: end + 1]

    return attention(q, k, v, cu_seqlens_q, cu_seqlens_k, **options, boundaries=until_empty)


@mutant(
    "all sequences are taken to be as long as the first",
    source="teaching code",
    killed_by="packed_output_is_inside_the_bound",
    contract="packed",
)
def as_long_as_the_first(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, **options: Any) -> Tensor:
    def first(cu: list[int], n: int, cu_q: list[int], options: dict[str, Any], total: int) -> tuple[int, int]:
        return cu[n], min(cu[n] + cu[1], total)

    return attention(q, k, v, cu_seqlens_q, cu_seqlens_k, **options, span_k=first)


@mutant(
    "the softmax runs over the whole pack; only the values are those of the sequence",
    source="teaching code",
    killed_by="values_stay_in_their_sequence",
    contract="packed",
)
def normalised_over_the_pack(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, **options: Any) -> Tensor:
    def whole(logit: Tensor, everything: Tensor) -> Tensor:
        return torch.exp(logit - everything.logsumexp(-1, keepdim=True)) if logit.numel() else logit

    return attention(q, k, v, cu_seqlens_q, cu_seqlens_k, **options, normalise=whole)


# ---------------------------------------------------------------- frontiers


@mutant(
    "the causal frontier is counted over the whole pack, not within the sequence",
    source="teaching code",
    killed_by="packed_output_is_inside_the_bound",
    contract="packed",
)
def causal_over_the_pack(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, **options: Any) -> Tensor:
    def counted(rows: int, keys: int, before_q: int, before_k: int, n: int) -> Tensor:
        return before_k + torch.arange(keys) <= before_q + torch.arange(rows)[:, None]

    return attention(q, k, v, cu_seqlens_q, cu_seqlens_k, **options, frontier=counted)


@mutant("the causal frontier is one too far", source="teaching code", killed_by="packed_future_tokens_are_ignored", contract="packed")
def frontier_one_too_far(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, **options: Any) -> Tensor:
    def further(rows: int, keys: int, *before: int) -> Tensor:
        return torch.ones(rows, keys, dtype=torch.bool).tril(1)

    return attention(q, k, v, cu_seqlens_q, cu_seqlens_k, **options, frontier=further)


@mutant("only the first sequence is causal", source="teaching code", killed_by="order_of_the_sequences_does_not_matter", contract="packed")
def causal_first_only(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, **options: Any) -> Tensor:
    def first(rows: int, keys: int, before_q: int, before_k: int, n: int) -> Tensor:
        return frontier(rows, keys, before_q, before_k, n) | (n > 0)

    return attention(q, k, v, cu_seqlens_q, cu_seqlens_k, **options, frontier=first)


# ---------------------------------------------------------------- lengths and state


@mutant("max_seqlen_q limits the keys, too", source="teaching code", killed_by="larger_max_seqlen_changes_nothing", contract="packed")
def queries_limit_the_keys(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, **options: Any) -> Tensor:
    def cut(cu: list[int], n: int, cu_q: list[int], options: dict[str, Any], total: int) -> tuple[int, int]:
        return cu[n], min(cu[n + 1], cu[n] + (options.get("max_seqlen_q") or total))

    return attention(q, k, v, cu_seqlens_q, cu_seqlens_k, **options, span_k=cut)


@mutant(
    "every sequence reaches for max_seqlen_k keys, as far as there are any",
    source="teaching code",
    killed_by="larger_max_seqlen_changes_nothing",
    contract="packed",
)
def reaches_for_the_maximum(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, **options: Any) -> Tensor:
    def far(cu: list[int], n: int, cu_q: list[int], options: dict[str, Any], total: int) -> tuple[int, int]:
        return cu[n], min(cu[n] + (options.get("max_seqlen_k") or cu[n + 1] - cu[n]), total)

    return attention(q, k, v, cu_seqlens_q, cu_seqlens_k, **options, span_k=far)


@mutant(
    "the logits of each sequence are scaled a little more than those of the one before",
    source="teaching code",
    killed_by="a_sequence_alone_gives_its_rows",
    contract="packed",
)
def scaled_again(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, cu_seqlens_q, cu_seqlens_k, **options, factor=lambda n: 1 + n / 8)


@mutant(
    "the boundaries are turned into lengths in place",
    source="teaching code",
    killed_by="packed_output_has_the_right_form",
    contract="packed",
)
def boundaries_overwritten(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, **options: Any) -> Tensor:
    out = attention(q, k, v, cu_seqlens_q, cu_seqlens_k, **options)
    cu_seqlens_k[1:] = cu_seqlens_k.diff()
    return out


# ---------------------------------------------------------------- backward


class Backward(torch.autograd.Function):
    """The core forward; what is sent back is that of the core with other steps."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, options: dict[str, Any], steps: dict[str, Step]
    ) -> Tensor:
        """The right answer."""
        ctx.save_for_backward(q, k, v, cu_q, cu_k)
        ctx.options = options | steps
        return attention(q, k, v, cu_q, cu_k, **options)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """By differentiating the wrong one."""
        leaves = [x.detach().requires_grad_() for x in ctx.saved_tensors[:3]]
        with torch.enable_grad():
            out = attention(*leaves, *ctx.saved_tensors[3:], **ctx.options)
        if not out.requires_grad:
            return *(torch.zeros_like(x) for x in leaves), None, None, None, None
        return *torch.autograd.grad(out, leaves, grads[0], allow_unused=True, materialize_grads=True), None, None, None, None


def differentiated(tensors: tuple[Tensor, ...], options: dict[str, Any], **steps: Step) -> Tensor:
    """The right answer with a wrong gradient."""
    out: Tensor = Backward.apply(*tensors, options, steps)
    return out


@mutant(
    "the backward pass counts the causal frontier over the whole pack",
    source="teaching code",
    killed_by="packed_gradients_are_inside_the_bound",
    contract="packed",
)
def causal_over_the_pack_backward(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, **options: Any) -> Tensor:
    def counted(rows: int, keys: int, before_q: int, before_k: int, n: int) -> Tensor:
        return before_k + torch.arange(keys) <= before_q + torch.arange(rows)[:, None]

    return differentiated((q, k, v, cu_seqlens_q, cu_seqlens_k), options, frontier=counted)


@mutant(
    "in the backward pass the keys of a sequence begin one too early",
    source="teaching code",
    killed_by="packed_gradients_stay_in_their_sequence",
    contract="packed",
)
def keys_begin_early_backward(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, **options: Any) -> Tensor:
    def early(cu: list[int], n: int, cu_q: list[int], options: dict[str, Any], total: int) -> tuple[int, int]:
        return max(cu[n] - 1, 0), cu[n + 1]

    return differentiated((q, k, v, cu_seqlens_q, cu_seqlens_k), options, span_k=early)


@mutant(
    "the last sequence is left out of the backward pass",
    source="teaching code",
    killed_by="packed_gradients_are_inside_the_bound",
    contract="packed",
)
def last_left_out_backward(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, **options: Any) -> Tensor:
    return differentiated((q, k, v, cu_seqlens_q, cu_seqlens_k), options, sequences=lambda n: range(n - 1))
