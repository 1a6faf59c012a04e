"""Distances: the slopes of ALiBi and the buckets of T5."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..registry import Function, honest, mutant


def series(num_heads: int) -> int:
    """The largest power of two that is not above the number of heads."""
    return 1 << (num_heads.bit_length() - 1)


def published(num_heads: int) -> list[float]:
    """2^(−8h/n), h = 1 … n; further heads take every other slope of the series of 2n."""
    n = series(num_heads)
    return [2 ** (-8 * h / n) for h in range(1, n + 1)] + [2 ** (-4 * h / n) for h in range(1, 2 * (num_heads - n), 2)]


def slopes(num_heads: int, *, dtype: torch.dtype | None = None, rule: Callable[[int], list[float]] = published) -> Tensor:
    """The honest core."""
    return torch.tensor(rule(num_heads), dtype=torch.float64).to(dtype or torch.float32)


def buckets(
    relative_position: Tensor,
    *,
    bidirectional: bool = True,
    num_buckets: int = 32,
    max_distance: int = 128,
    ahead: Callable[[Tensor], Tensor] = lambda relative: relative > 0,
    distance: Callable[[Tensor], Tensor] = lambda relative: (-relative).clamp(min=0),
    share: Callable[[Tensor, int, int], Tensor] = lambda d, exact, most: torch.log(d / exact) / math.log(most / exact),
    near: int = 0,
    last: Callable[[Tensor, int], Tensor] = lambda far, count: far.clamp(max=count - 1),
) -> Tensor:
    """The honest core: distances below half of the buckets one by one, the others logarithmically."""
    bucket = torch.zeros_like(relative_position)
    if bidirectional:
        num_buckets //= 2
        bucket = bucket + ahead(relative_position) * num_buckets
        d = relative_position.abs()
    else:
        d = distance(relative_position)
    exact = num_buckets // 2
    far = exact + (share(d.clamp(min=1).float(), exact, max_distance) * (num_buckets - exact)).long()
    return bucket + torch.where(d < exact, d + near, last(far, num_buckets))


# --- slopes -------------------------------------------------------------------------------------------------------


def _slopes(mistake: str, killed_by: str, source: str = "teaching code", bug: str | None = None) -> Callable[[Function], Function]:
    return mutant(mistake, source=source, killed_by=killed_by, contract="slopes", bug=bug)


@_slopes("one geometric series for every number of heads", "slopes_follow_the_published_rule", "ml-explore/mlx#3071", "F18")
def one_series_for_all(num_heads: int, **options: Any) -> Tensor:
    return slopes(num_heads, **options, rule=lambda count: [2 ** (-8 * h / count) for h in range(1, count + 1)])


@_slopes("heads count from 0: the first slope is 1", "first_slope_is_the_ratio", "paiml/aprender#2143", "F19")
def heads_count_from_zero(num_heads: int, **options: Any) -> Tensor:
    return slopes(num_heads, **options) * 2 ** (8 / series(num_heads))


@_slopes("slopes are powers of e", "first_slope_is_the_ratio")
def powers_of_e(num_heads: int, **options: Any) -> Tensor:
    return slopes(num_heads, **options) ** (1 / math.log(2))


@_slopes("slopes are negative: distance is rewarded", "slopes_are_positive_and_decrease", "meta-pytorch/attention-gym#86", "F20")
def negative_slopes(num_heads: int, **options: Any) -> Tensor:
    return -slopes(num_heads, **options)


@_slopes("the last head has the largest slope", "slopes_are_positive_and_decrease")
def slopes_reversed(num_heads: int, **options: Any) -> Tensor:
    return slopes(num_heads, **options).flip(0)


@_slopes("slopes fall linearly", "slopes_are_geometric")
def linear_slopes(num_heads: int, **options: Any) -> Tensor:
    return slopes(num_heads, **options, rule=lambda count: [1 - h / (count + 1) for h in range(1, count + 1)])


@_slopes("further heads take the first slopes of the longer series, one by one", "slopes_follow_the_published_rule")
def further_heads_one_by_one(num_heads: int, **options: Any) -> Tensor:
    def rule(count: int) -> list[float]:
        n = series(count)
        return published(n) + published(2 * n)[: count - n]

    return slopes(num_heads, **options, rule=rule)


@_slopes("further heads repeat the series", "slopes_are_positive_and_decrease")
def series_repeated(num_heads: int, **options: Any) -> Tensor:
    return slopes(num_heads, **options, rule=lambda count: (published(series(count)) * 2)[:count])


@_slopes("slopes pass through bfloat16", "slopes_follow_the_published_rule")
def slopes_in_bfloat16(num_heads: int, **options: Any) -> Tensor:
    return slopes(num_heads, dtype=torch.bfloat16).to(options.get("dtype") or torch.float32)


@honest("repeated products by the ratio of the series", contract="slopes")
def repeated_products(num_heads: int, *, dtype: torch.dtype | None = None) -> Tensor:
    kind, n = dtype or torch.float32, series(num_heads)
    wide = torch.float64 if kind == torch.float64 else torch.float32
    ratios = [torch.full((n,), 2 ** (-8 / n), dtype=wide), torch.full((num_heads - n,), 2 ** (-8 / n), dtype=wide)]
    ratios[1][:1] = 2 ** (-4 / n)
    return torch.cat([ratio.cumprod(0) for ratio in ratios]).to(kind)


# --- buckets ------------------------------------------------------------------------------------------------------


def _buckets(mistake: str, killed_by: str, source: str = "teaching code", bug: str | None = None) -> Callable[[Function], Function]:
    return mutant(mistake, source=source, killed_by=killed_by, contract="buckets", bug=bug)


@_buckets("the logarithm is of the distance, not of its ratio to the exact ones", "buckets_follow_the_published_rule")
def logarithm_of_the_distance(relative_position: Tensor, **options: Any) -> Tensor:
    return buckets(relative_position, **options, share=lambda d, exact, most: torch.log(d) / math.log(most))


@_buckets("a binary logarithm is divided by a natural one", "buckets_follow_the_published_rule")
def logarithms_of_two_bases(relative_position: Tensor, **options: Any) -> Tensor:
    return buckets(relative_position, **options, share=lambda d, exact, most: torch.log2(d / exact) / math.log(most / exact))


@_buckets("far distances are spread evenly", "buckets_follow_the_published_rule")
def linear_buckets(relative_position: Tensor, **options: Any) -> Tensor:
    return buckets(relative_position, **options, share=lambda d, exact, most: (d - exact) / (most - exact))


@_buckets("max_distance is always 128", "buckets_follow_the_published_rule")
def max_distance_ignored(relative_position: Tensor, **options: Any) -> Tensor:
    return buckets(relative_position, **{**options, "max_distance": 128})


@_buckets("near distances count from 1", "small_distances_have_their_own_bucket")
def distances_count_from_one(relative_position: Tensor, **options: Any) -> Tensor:
    return buckets(relative_position, **options, near=1)


@_buckets("in one direction, the past has one bucket and the future all", "small_distances_have_their_own_bucket")
def past_and_future_exchanged(relative_position: Tensor, **options: Any) -> Tensor:
    return buckets(relative_position, **options, distance=lambda relative: relative.clamp(min=0))


@_buckets("bidirectionally, the past has the upper half", "past_and_future_have_buckets_of_their_own")
def upper_half_for_the_past(relative_position: Tensor, **options: Any) -> Tensor:
    return buckets(relative_position, **options, ahead=lambda relative: relative < 0)


@_buckets("in one direction, a key ahead is as far as one behind", "one_direction_does_not_look_ahead")
def future_mirrors_the_past(relative_position: Tensor, **options: Any) -> Tensor:
    return buckets(relative_position, **options, distance=torch.abs)


@_buckets("bidirectionally, either direction has all the buckets", "buckets_are_in_range")
def buckets_not_halved(relative_position: Tensor, **options: Any) -> Tensor:
    count = options.get("num_buckets", 32) * (2 if options.get("bidirectional", True) else 1)
    return buckets(relative_position, **{**options, "num_buckets": count})


@_buckets("far distances do not saturate", "far_distances_share_a_bucket", "huggingface/candle#1312", "F22")
def far_distances_do_not_saturate(relative_position: Tensor, **options: Any) -> Tensor:
    return buckets(relative_position, **options, last=lambda far, count: far)


@_buckets("far distances wrap around", "buckets_grow_with_distance")
def far_distances_wrap_around(relative_position: Tensor, **options: Any) -> Tensor:
    return buckets(relative_position, **options, last=lambda far, count: far % count)


@honest("the least distance of every bucket, in whole numbers, and a search", contract="buckets")
def search_among_thresholds(
    relative_position: Tensor, *, bidirectional: bool = True, num_buckets: int = 32, max_distance: int = 128
) -> Tensor:
    count = num_buckets // 2 if bidirectional else num_buckets
    exact = count // 2
    steps = count - exact
    far = [
        next(d for d in range(exact, max_distance + 1) if d**steps * exact**k >= max_distance**k * exact**steps) for k in range(1, steps)
    ]
    distance = relative_position.abs() if bidirectional else (-relative_position).clamp(min=0)
    bucket = torch.searchsorted(torch.tensor([*range(1, exact + 1), *far]), distance, right=True)
    return bucket + (relative_position > 0) * count * bidirectional


@_buckets("distances to the past are made positive in place", "finding_buckets_leaves_the_distances")
def positive_in_place(relative_position: Tensor, **options: Any) -> Tensor:
    found = buckets(relative_position, **options)
    relative_position.abs_()
    return found
