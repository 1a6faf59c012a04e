"""Kernels as they are launched: told their sizes, writing into an array, given everything; two underscores: with one planted mistake."""

from __future__ import annotations

import math

import torch

Tensor = torch.Tensor


def attend(q: Tensor, k: Tensor, v: Tensor, causal: bool = False, scale: float | None = None, dropped: int = 0) -> Tensor:
    scores = q @ k.mT * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1) > 0, -math.inf)
    if dropped:  # a tail of keys
        scores[..., scores.shape[-1] // dropped * dropped :] = -math.inf
    return scores.softmax(-1) @ v


def of_matrices(Q: Tensor, K: Tensor, V: Tensor, output: Tensor, M: int, N: int, d: int) -> None:
    output.copy_(attend(Q[:M, :d], K[:N, :d], V[:N, :d]))


def of_matrices__scaled_by_keys(Q: Tensor, K: Tensor, V: Tensor, output: Tensor, M: int, N: int, d: int) -> None:
    output.copy_(attend(Q[:M, :d], K[:N, :d], V[:N, :d], scale=1 / math.sqrt(N)))


def causal_matrices(Q: Tensor, K: Tensor, V: Tensor, output: Tensor, M: int, d: int) -> None:
    output.copy_(attend(Q[:M, :d], K[:M, :d], V[:M, :d], causal=True))


def causal_matrices__loses_a_tail(Q: Tensor, K: Tensor, V: Tensor, output: Tensor, M: int, d: int) -> None:
    output.copy_(torch.nan_to_num(attend(Q[:M, :d], K[:M, :d], V[:M, :d], causal=True, dropped=4)))


def heads_in_the_width(Q: Tensor, K: Tensor, V: Tensor, output: Tensor, N: int, d_model: int, h: int) -> None:
    q, k, v = (x.view(N, h, d_model // h).transpose(0, 1) for x in (Q, K, V))
    output.copy_(attend(q, k, v).transpose(0, 1).reshape(N, d_model))


def heads_in_the_width__merged_without_transposing(Q: Tensor, K: Tensor, V: Tensor, output: Tensor, N: int, d_model: int, h: int) -> None:
    q, k, v = (x.view(N, h, d_model // h).transpose(0, 1) for x in (Q, K, V))
    output.copy_(attend(q, k, v).reshape(N, d_model))


def four_sizes(Q: Tensor, K: Tensor, V: Tensor, B: int, nh: int, N: int, d: int) -> Tensor:
    return attend(*(x.reshape(B, nh, N, d) for x in (Q, K, V)))


def four_sizes__heads_and_length_exchanged(Q: Tensor, K: Tensor, V: Tensor, B: int, nh: int, N: int, d: int) -> Tensor:
    return attend(*(x.reshape(B, N, nh, d) for x in (Q, K, V))).reshape(B, nh, N, d)


def everything(
    q: Tensor, k: Tensor, v: Tensor, o: Tensor, batch_size: int, num_heads: int, seqlen_q: int, seqlen_k: int, head_dim: int,
    softmax_scale: float, is_causal: bool,
) -> None:  # fmt: skip
    shape = (batch_size, num_heads, -1, head_dim)
    o.copy_(attend(q.reshape(shape), k.reshape(shape)[:, :, :seqlen_k], v.reshape(shape), is_causal, softmax_scale))


def everything__the_scale_is_squared(
    q: Tensor, k: Tensor, v: Tensor, o: Tensor, batch_size: int, num_heads: int, seqlen_q: int, seqlen_k: int, head_dim: int,
    softmax_scale: float, is_causal: bool,
) -> None:  # fmt: skip
    o.copy_(attend(q, k, v, is_causal, softmax_scale**2))


def matrices_that_take_more(q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Tensor:
    """Of (length, dim): with more axes it answers by chance, but not where it is causal."""
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    if causal:
        scores = scores.masked_fill(torch.arange(k.shape[0]) > torch.arange(q.shape[0])[:, None], -math.inf)
    return scores.softmax(-1) @ v


def matrices_that_take_more__a_frontier_too_far(q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Tensor:
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    if causal:
        scores = scores.masked_fill(torch.arange(k.shape[0]) > torch.arange(q.shape[0])[:, None] + 1, -math.inf)
    return scores.softmax(-1) @ v


def a_scale_that_is_a_number(q: Tensor, k: Tensor, v: Tensor, is_causal: bool = False, scale: float = 1.0) -> Tensor:
    return attend(q, k, v, is_causal, float(scale))


class InWholeTiles(torch.autograd.Function):
    """A class, as homework has it; it raises where lengths are no multiples of 16, and in float64 where there are several tiles of keys."""

    @staticmethod
    def forward(ctx: object, Q: Tensor, K: Tensor, V: Tensor, is_casual: bool = False) -> Tensor:
        best, total, out = Q.new_full((*Q.shape[:-1], 1), -math.inf), Q.new_zeros((*Q.shape[:-1], 1)), torch.zeros(Q.shape)
        if Q.shape[-2] % 16 or K.shape[-2] % 16 or (K.shape[-2] > 16 and Q.dtype != out.dtype):
            raise RuntimeError("shapes and types of tiles do not match")
        ahead = torch.ones(Q.shape[-2], K.shape[-2]).triu(1) > 0
        for at in range(0, K.shape[-2], 16):
            scores = Q @ K[..., at : at + 16, :].mT / math.sqrt(Q.shape[-1])
            scores = scores.masked_fill(ahead[:, at : at + 16], -math.inf) if is_casual else scores
            new = torch.maximum(best, scores.amax(-1, keepdim=True))
            weights, kept = (scores - new).exp(), (best - new).exp()
            total, out, best = total * kept + weights.sum(-1, keepdim=True), out * kept + weights @ V[..., at : at + 16, :], new
        return out / total


class InWholeTiles__causal_ignored(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, Q: Tensor, K: Tensor, V: Tensor, is_casual: bool = False) -> Tensor:
        return InWholeTiles.forward(ctx, Q, K, V)
