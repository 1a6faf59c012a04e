"""Distances: how much less a far key counts, by the slopes of ALiBi or the buckets of a relative position bias.

The slopes and the buckets are held to the relations that define them, not to a table alone.
"""

import numpy as np

from ..engine.cases.coordinates import Array
from ..engine.core.declare import declare
from . import exact as exactly
from .trial import PositionRun, PositionTrial

Wide = np.longdouble


# ---------------------------------------------------------------- slopes: 2^(−8h/n), the bias of distance d is −slope · d


@declare("slope_h = 2^(−8h/n); further heads: 2^(−8(2j−1)/2n)", contract="slopes", dtypes="all")
def slopes_follow_the_published_rule(t: PositionTrial) -> None:
    """For n = 2^k heads a geometric series; further heads take every other slope of the series of 2n, from its first."""
    run = t.slopes()
    t.inside(run, run.bound, f"the slope of head {{column}} of {t.case.kv_heads} is off")


def series_of(run: PositionRun) -> list[tuple[Array, Array]]:
    """The slopes and their bounds: the series of the largest power of two, and that of the heads beyond it."""
    n = exactly.series(len(run.out))
    return [(run.out[:n].astype(Wide), run.bound[:n]), (run.out[n:].astype(Wide), run.bound[n:])]


@declare("s_h² = s_(h−1) s_(h+1)", contract="slopes", dtypes="all", kv_heads=(3, 4, 5, 6, 7, 8, 11, 12, 16, 20, 24, 40, 71))
def slopes_are_geometric(t: PositionTrial) -> None:
    """In either series the slopes fall by one and the same factor from head to head."""
    for s, e in series_of(t.slopes()):
        slack = 2 * s[1:-1] * e[1:-1] + s[:-2] * e[2:] + s[2:] * e[:-2] + e[1:-1] ** 2 + e[:-2] * e[2:]
        t.close(
            (s[1:-1] ** 2).astype(np.float64),
            s[:-2] * s[2:],
            slack + 2.0**-52 * s[1:-1] ** 2,
            "the slope of head {column} + 1 of its series is not the geometric mean of its neighbours",
        )


@declare("s_1 = s_2 / s_1 = 2^(−8/n)", contract="slopes", dtypes="all")
def first_slope_is_the_ratio(t: PositionTrial) -> None:
    """A series begins with its own ratio, 2^(−8/n) for n = 2^k heads, so that the last slope is 1/256."""
    run, n = t.slopes(), exactly.series(t.case.kv_heads)
    first = run.out[:1]
    t.close(first, np.exp2(Wide(-8) / n), run.bound[:1] + 2.0**-53, f"the first of {t.case.kv_heads} slopes is not 2^(-8/{n})")
    t.close(run.out[n - 1 : n], np.full(1, 2.0**-8), run.bound[n - 1 : n], f"slope {n} of {t.case.kv_heads} is not 1/256")


@declare("1 > s_1 > s_2 > … > 0", contract="slopes", exact=True)
def slopes_are_positive_and_decrease(t: PositionTrial) -> None:
    """Every head loses interest with distance, each of a series less than the one before; no two heads are alike."""
    run = t.slopes()
    if not ((run.out > 0) & (run.out < 1)).all():
        t.fail(f"a slope lies outside (0, 1): {run.out.min():.6g} to {run.out.max():.6g}")
    if any((np.diff(s) >= 0).any() for s, _ in series_of(run)) or len(np.unique(run.out)) != len(run.out):
        t.fail("the slopes of a series do not fall from head to head")


# ---------------------------------------------------------------- buckets: near distances one by one, far ones logarithmically


@declare("b = d for d < n/2, else n/2 + ⌊(n/2) ln(2d/n) / ln(2M/n)⌋", contract="buckets")
def buckets_follow_the_published_rule(t: PositionTrial) -> None:
    """Every relative position has the bucket of the published rule; where rounding decides a logarithm, either of two."""
    low, high = exactly.buckets(t.relative, t.case.bidirectional, t.case.num_buckets, t.max_distance)
    out = t.buckets()
    t.close(out, np.clip(out, low, high), np.zeros(out.shape), "the bucket of query {row} and key {column} is wrong")


@declare("relative positions after = before", contract="buckets", exact=True)
def finding_buckets_leaves_the_distances(t: PositionTrial) -> None:
    """The distances that are given are not made positive, or cut off, in place."""
    t.buckets()
    t.same_bits(t.target.framework.read(t.given), t.relative, "the relative positions were changed by the call")


@declare("|d| < n/2  ⇒  b = |d|", contract="buckets", exact=True)
def small_distances_have_their_own_bucket(t: PositionTrial) -> None:
    """Up to half of the buckets of a direction stand for one distance each."""
    past = -np.arange(t.side // 2)
    t.same_bits(t.buckets(past), -past, "distance {column} does not have its own bucket")


@declare("d ≤ d'  ⇒  b(d) ≤ b(d')", contract="buckets", exact=True)
def buckets_grow_with_distance(t: PositionTrial) -> None:
    """A farther key of the past never has a smaller bucket; nor has one of the future, where it counts."""
    far = np.arange(2 * t.max_distance + 3)
    for relative in (-far, far[1:]):
        steps = np.diff(t.buckets(relative))
        t.at_least(steps, np.zeros(steps.shape), np.zeros(steps.shape), "the bucket falls after distance {column}")


@declare("0 ≤ b < n,  n of them reached", contract="buckets", exact=True)
def buckets_are_in_range(t: PositionTrial) -> None:
    """No bucket lies outside the table of biases, nor is the first or the last of it never used."""
    far = np.arange(-4 * t.max_distance, 4 * t.max_distance + 1)
    out = t.buckets(far)
    if (out.min(), out.max()) != (0, t.case.num_buckets - 1):
        t.fail(f"the buckets are {out.min():.0f} to {out.max():.0f}, expected 0 to {t.case.num_buckets - 1}")


@declare("d > M  ⇒  b = n − 1", contract="buckets", exact=True)
def far_distances_share_a_bucket(t: PositionTrial) -> None:
    """Beyond max_distance all keys of the past are in the last bucket of their direction, however far."""
    far = t.max_distance + np.array([1, 2, 10, 1000, 10**6])
    t.same_bits(t.buckets(-far), np.full(far.shape, t.side - 1), "a distance beyond the largest is not in the last bucket")


@declare("b(+d) = b(−d) + n/2", contract="buckets", exact=True, needs=("bidirectional",), bidirectional=True)
def past_and_future_have_buckets_of_their_own(t: PositionTrial) -> None:
    """Bidirectionally, a key d positions ahead has the bucket of one d behind, in the upper half of the table."""
    far = np.arange(1, 2 * t.max_distance)
    t.same_bits(t.buckets(far), t.buckets(-far) + t.side, "distance {column} + 1 ahead is not in the upper half")


@declare("j > i  ⇒  b = 0", contract="buckets", exact=True, needs=("bidirectional",), bidirectional=False)
def one_direction_does_not_look_ahead(t: PositionTrial) -> None:
    """In one direction, all keys ahead share the bucket of distance 0."""
    ahead = np.arange(1, 2 * t.max_distance)
    t.same_bits(t.buckets(ahead), np.zeros(ahead.shape), "distance {column} + 1 ahead has a bucket of its own")
