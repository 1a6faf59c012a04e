"""Linear attention: feature maps, normalisers and states that are not what they should be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import elu

from ..attention.core import Step, widen
from ..registry import MEMORY, Function, honest, mutant


def _mutant(mistake: str, killed_by: str, source: str = "teaching code") -> Callable[[Function], Function]:
    return mutant(mistake, source=source, killed_by=killed_by, contract="linear")


def features(x: Tensor) -> Tensor:
    """φ(x)"""
    return elu(x) + 1


def frontier(rows: int, keys: int, like: Tensor) -> Tensor:
    """1 where j ≤ i, 0 elsewhere, (L, S)."""
    return torch.ones(rows, keys, dtype=like.dtype, device=like.device).tril()


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    is_causal: bool = False,
    of_query: Step = features,
    of_key: Step = features,
    frontier: Step = frontier,
    weigh: Step = lambda w: w,
    total: Step = lambda masked, w: masked.sum(-1, keepdim=True),
    finish: Step = lambda numerator, denominator: numerator / denominator,
) -> Tensor:
    """The honest core, in its parallel form; the keywords from `of_query` on are the steps, for mutants to replace."""
    if k.shape[:3] != v.shape[:3] or q.shape[:2] != k.shape[:2] or q.shape[3] != k.shape[3]:
        raise ValueError(f"shapes do not fit: q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}")
    query, key, value = (widen(x) for x in (q, k, v))
    weights = weigh(of_query(query) @ of_key(key).mT)  # (B, H, L, S)
    masked = weights * frontier(*weights.shape[2:], weights) if is_causal else weights
    return finish(masked @ value, total(masked, weights)).to(q.dtype)


# ---------------------------------------------------------------- honest


@honest(
    "chunks of 16 keys: the state of all earlier ones, and the weights within the chunk",
    contract="linear",
    source="fla-org/flash-linear-attention",
)
def in_chunks(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    query, key, value = features(widen(q)), features(widen(k)), widen(v)
    if not options.get("is_causal") or q.shape[2] != k.shape[2]:
        return attention(q, k, v, **options)
    value = torch.cat([value, torch.ones_like(value[..., :1])], -1)  # the normaliser is one more feature
    state = key.mT[..., :0] @ value[:, :, :0]
    out = []
    for at in range(0, max(k.shape[2], 1), 16):
        rows, keys, values = (x[:, :, at : at + 16] for x in (query, key, value))
        out.append(rows @ state + (rows @ keys.mT).tril() @ values)
        state = state + keys.mT @ values
    both = torch.cat(out, 2)
    return (both[..., :-1] / both[..., -1:]).to(q.dtype)


@honest("features as relu(x) + exp(min(x, 0)), weights divided before they meet the values", contract="linear")
def weights_divided_first(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def rectified(x: Tensor) -> Tensor:
        return x.relu() + x.clamp(max=0).exp()

    query, key, value = rectified(widen(q)), rectified(widen(k)), widen(v)
    weights = query @ key.mT
    weights = weights.tril() if options.get("is_causal") else weights
    return (weights / weights.sum(-1, keepdim=True) @ value).to(q.dtype)


# ---------------------------------------------------------------- feature maps


@_mutant("the feature map is elu without + 1: weights may be negative", "linear_output_stays_in_the_hull")
def no_plus_one(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, of_query=elu, of_key=elu)


@_mutant("the feature map is that of the keys alone: queries enter as they are", "linear_output_is_inside_the_bound")
def features_of_keys_alone(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, of_query=lambda x: x)


@_mutant("the feature map is relu(x) + 1: all that is negative is alike", "linear_output_is_inside_the_bound")
def relu_plus_one(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, of_query=lambda x: x.relu() + 1, of_key=lambda x: x.relu() + 1)


# ---------------------------------------------------------------- normalisers


@_mutant("the normaliser is forgotten", "linear_constant_values_are_returned")
def no_normaliser(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, finish=lambda numerator, denominator: numerator)


@_mutant(
    "10⁻⁶ is added to the normaliser: where the features are small, weights do not sum to one",
    "linear_constant_values_are_returned",
    source="idiap/fast-transformers",
)
def padded_normaliser(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, finish=lambda numerator, denominator: numerator / (denominator + 1e-6))


@_mutant("causal, the normaliser sums all keys", "causal_row_is_all_of_its_prefix")
def normaliser_over_all_keys(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attention(q, k, v, **options, total=lambda masked, w: w.sum(-1, keepdim=True))


# ---------------------------------------------------------------- states


@_mutant("causal, the key of the next token is in the state already", "linear_future_tokens_are_ignored")
def one_too_far(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def next_too(rows: int, keys: int, like: Tensor) -> Tensor:
        return torch.ones(rows, keys, dtype=like.dtype, device=like.device).tril(1)

    return attention(q, k, v, **options, frontier=next_too)


@_mutant("the state fades from key to key, as in RetNet", "linear_permuted_keys_change_nothing")
def fading_state(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def fade(weights: Tensor) -> Tensor:
        return weights * 0.9 ** torch.arange(weights.shape[3], dtype=weights.dtype, device=weights.device).flip(0)

    return attention(q, k, v, **options, weigh=fade)


@_mutant("all heads of a batch element add to one state", "states_are_not_shared")
def heads_share_the_state(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    heads = q.shape[1]
    joined = [x.flatten(1, 2)[:, None].expand(-1, heads, -1, -1) for x in (k, v)]  # (B, H, H·S, D)

    def each(rows: int, keys: int, like: Tensor) -> Tensor:
        return frontier(rows, keys // heads, like).repeat(1, heads)

    return attention(q, *joined, **options, frontier=each) if heads else attention(q, k, v, **options)


@_mutant("the state of the last call is not cleared: its normaliser is added", "linear_output_has_the_right_form")
def state_not_cleared(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def onto(masked: Tensor, weights: Tensor) -> Tensor:
        now = masked.sum(-1, keepdim=True)
        before = MEMORY.get("state_not_cleared")
        MEMORY["state_not_cleared"] = now
        return now + before if before is not None and before.shape == now.shape and before.dtype == now.dtype else now

    return attention(q, k, v, **options, total=onto)


# ---------------------------------------------------------------- last bits


@_mutant("causal, hidden keys keep 2⁻⁵⁰ of their weight", "linear_future_tokens_are_ignored")
def last_bits_of_hidden_keys(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def faint(rows: int, keys: int, like: Tensor) -> Tensor:
        return frontier(rows, keys, like).clamp(min=2.0**-50)

    return attention(q, k, v, **options, frontier=faint)


@_mutant("features are scaled by the largest of all heads, and back", "states_are_not_shared")
def last_bits_of_other_heads(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    def scaled(x: Tensor) -> Tensor:
        feature = features(x)
        return feature / feature.amax() * feature.amax() if feature.numel() else feature

    return attention(q, k, v, **options, of_query=scaled, of_key=scaled)


@_mutant("keys are added in the order in which they finish", "linear_output_has_the_right_form", source="ROCm/triton#953")
def last_bits_of_a_race(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    MEMORY["last_bits_of_a_race"] = turn = MEMORY.get("last_bits_of_a_race", 0) + 1

    def race(numerator: Tensor, denominator: Tensor) -> Tensor:
        return numerator / denominator if turn % 2 else numerator * (1 / denominator)

    return attention(q, k, v, **options, finish=race)
