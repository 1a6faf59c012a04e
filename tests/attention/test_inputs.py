"""The arguments of a call: which keys they let a row see, and what is left of them on some elements."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from properties.attention.case import Case
from properties.attention.inputs import Inputs, make_inputs, problem_of
from properties.attention.question import exactly
from properties.engine.cases.coordinates import normal, uniform

B, H, KV, L, S, D = 2, 4, 2, 3, 5, 4
SEEN = uniform(0, "seen", (B, H, L, S)) < 0.6
PLAIN = Inputs(normal(0, "q", (B, H, L, D)), normal(0, "k", (B, KV, S, D)), normal(0, "v", (B, KV, S, 3)))
LENGTHS = np.array([3, 5])
CAUSALS = ("top-left", "bottom-right")


def where(x: Inputs, b: int, h: int, i: int, j: int, causal: str) -> bool:
    """Whether row i sees key j, word by word."""
    used = S if x.lengths is None else int(x.lengths[b])
    diagonal = i if causal == "top-left" else i + used - L
    mask = None if x.mask is None else np.broadcast_to(x.mask, (B, H, L, S))[b, h, i, j]
    if mask is not None and (not mask if x.mask is not None and x.mask.dtype == bool else mask == -np.inf):
        return False
    if (x.is_causal and j > diagonal) or j >= used:
        return False
    left, right = x.window or (None, None)
    return (left is None or j >= diagonal - left) and (right is None or j <= diagonal + right)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"is_causal": True},
        {"mask": SEEN},
        {"mask": SEEN[0, 0]},
        {"mask": np.where(SEEN, normal(0, "bias", SEEN.shape), -np.inf)},
        {"mask": np.where(SEEN, 0.0, np.finfo(float).min)},  # the lowest number is no infinity
        {"mask": SEEN, "is_causal": True},
        {"lengths": LENGTHS},
        {"lengths": LENGTHS, "is_causal": True},
        {"window": (1, 0)},
        {"window": (0, 1)},
        {"window": (None, 1)},
        {"window": (2, None)},
        {"window": (1, 2), "is_causal": True, "lengths": LENGTHS, "mask": SEEN},
    ],
    ids=str,
)
def test_what_a_row_sees(changes: dict[str, Any]) -> None:
    x = replace(PLAIN, **changes)
    for causal in CAUSALS:
        expected = [[[[where(x, b, h, i, j, causal) for j in range(S)] for i in range(L)] for h in range(H)] for b in range(B)]
        assert x.visible(causal).tolist() == expected
    assert (x.visible() == x.visible("top-left")).all()
    exact = exactly(x, "bottom-right")
    assert exact.visible is None or (exact.visible == x.visible("bottom-right")).all()


def test_the_bias_is_the_finite_part_of_a_mask() -> None:
    assert PLAIN.bias() is None and replace(PLAIN, mask=SEEN).bias() is None
    added = np.where(SEEN, normal(0, "bias", SEEN.shape), -np.inf)
    bias = replace(PLAIN, mask=added).bias()
    assert bias is not None and (bias[SEEN] == added[SEEN]).all() and (bias[~SEEN] == 0).all()


def test_slopes_fall_with_the_distance_from_the_diagonal() -> None:
    assert PLAIN.alibi() is None
    x = replace(PLAIN, slopes=np.array([0.5, 0.25, 2.0, 1.0]))
    for causal, shift in (("top-left", 0), ("bottom-right", S - L)):
        bias = x.alibi(causal)
        assert bias is not None
        expected = [[[-slope * abs(j - i - shift) for j in range(S)] for i in range(L)] for slope in (0.5, 0.25, 2.0, 1.0)]
        assert np.broadcast_to(bias, (1, H, L, S))[0].tolist() == expected
    assert (x.alibi() == x.alibi("top-left")).all()


@pytest.mark.parametrize("causal", CAUSALS)
def test_what_slopes_are_multiplied_by_is_no_larger_than_the_oracle_is_told(causal: str) -> None:
    """By its own rounding a kernel that counts from any corner may be off: more queries than keys, and more keys than queries."""
    for queries, keys in ((2, 7), (7, 2)):
        x = make_inputs(Case(kv_heads=2, queries=queries, keys=keys, alibi=True))
        problem = problem_of(x, causal)
        assert problem.bias is not None and (np.abs(problem.bias) <= problem.bias_size).all()
    assert problem_of(PLAIN).bias_size is None


def test_slopes_and_an_additive_mask_are_added_up() -> None:
    mask = np.arange(15.0).reshape(L, S)
    x = replace(PLAIN, slopes=np.array([0.5, 0.25, 2.0, 1.0]), mask=mask)
    bias = problem_of(x).bias
    assert bias is not None
    expected = [[[mask[i, j] - slope * abs(j - i) for j in range(S)] for i in range(L)] for slope in (0.5, 0.25, 2.0, 1.0)]
    assert np.broadcast_to(bias, (1, H, L, S))[0].tolist() == expected


def test_the_scale_is_the_one_given_or_the_target_s_own() -> None:
    assert PLAIN.effective_scale == 0.5 and replace(PLAIN, scale=0.0).effective_scale == 0.0
    assert replace(PLAIN, default_scale="1").effective_scale == 1.0 and replace(PLAIN, default_scale="1/dim").effective_scale == 0.25
    assert replace(PLAIN, q=np.zeros((B, H, L, 0))).effective_scale == 1.0


def test_what_is_not_said() -> None:
    assert not (PLAIN.is_causal or PLAIN.explicit or PLAIN.return_lse or PLAIN.need_weights) and (PLAIN.dropout, PLAIN.chance) == (0.0, 0)


def test_sizes() -> None:
    assert PLAIN.shape == (B, H, L, S) and PLAIN.group == 2
    assert replace(PLAIN, k=PLAIN.k[:, :0], v=PLAIN.v[:, :0]).group == 1


WHOLE = replace(
    PLAIN,
    mask=normal(0, "mask", (B, H, L, S)),
    slopes=np.arange(4.0),
    sinks=10 + np.arange(4.0),
    lengths=LENGTHS,
    window=(1, 1),
)


@pytest.mark.parametrize("mask", [(B, H, L, S), (1, H, 1, S), (B, 1, L, 1), (L, S), (H, 1, 1), (S,), (1,)])
def test_some_elements(mask: tuple[int, ...]) -> None:
    """What a row sees of what is taken is what it saw of it before."""
    x = replace(WHOLE, mask=normal(0, "mask", mask))
    spread = np.broadcast_to(x.mask, (B, H, L, S))  # type: ignore[arg-type]
    heads = {"B": np.arange(H), "H": np.array([2, 3]), "L": np.arange(H), "S": np.arange(H)}
    for axis, index in (("B", np.array([1])), ("H", np.array([1])), ("L", np.array([2, 0])), ("S", np.array([4, 1, 0]))):
        part = x.take(axis, index)
        b, i, j = (index if axis == one else np.arange(size) for one, size in zip("BLS", (B, L, S), strict=True))
        h, g = heads[axis], index if axis == "H" else np.arange(KV)
        assert (
            (part.q == x.q[b][:, h][:, :, i]).all() and (part.k == x.k[b][:, g][:, :, j]).all() and (part.v == x.v[b][:, g][:, :, j]).all()
        )
        assert part.mask is not None and part.slopes is not None and part.sinks is not None and part.lengths is not None
        assert (np.broadcast_to(part.mask, part.shape) == spread[b][:, h][:, :, i][..., j]).all()
        assert (part.slopes == WHOLE.slopes[h]).all() and (part.sinks == WHOLE.sinks[h]).all()  # type: ignore[index]
        assert (part.lengths == LENGTHS[b]).all() and part.window == (1, 1)
    bare = PLAIN.take("H", np.array([0])).take("B", np.array([0]))
    assert bare.mask is None and bare.slopes is None and bare.sinks is None and bare.lengths is None


def test_what_is_changed_is_rounded_to_the_type() -> None:
    x = replace(PLAIN, dtype="float16")
    changed = x.but(q=np.full(x.q.shape, 1 / 3), mask=np.full((L, S), 0.1), sinks=np.full(H, 0.1))
    assert (changed.q == float(np.float16(1 / 3))).all() and (changed.mask == float(np.float16(0.1))).all()
    assert (changed.sinks == 0.1).all() and changed.k is x.k
    assert x.but(mask=SEEN).mask is SEEN and x.but(mask=None).mask is None and x.but(is_causal=True).is_causal
    for name in "kv":
        assert (getattr(x.but(**{name: np.full((B, KV, S, 3), 0.1)}), name) == float(np.float16(0.1))).all()


def test_a_mask_in_other_axes() -> None:
    assert PLAIN.said(("S",)) is PLAIN
    x = replace(PLAIN, mask=np.broadcast_to(np.arange(5.0), (L, S)))
    assert x.said(("LS",)) is x
    other = x.said(("S",)).mask
    assert other is not None and other.shape == (1, S) and (other == np.arange(5.0)).all()


def test_a_case_becomes_a_call() -> None:
    case = Case(batch=2, kv_heads=2, group=3, queries=4, keys=5, dim=6, value_dim=7, seed=3, is_causal=True, scale=0.3, softcap=2.0)
    x = make_inputs(case)
    assert (x.q.shape, x.k.shape, x.v.shape) == ((2, 6, 4, 6), (2, 2, 5, 6), (2, 2, 5, 7))
    assert (x.is_causal, x.scale, x.softcap) == (True, 0.3, 2.0)
    assert x.mask is None and x.window is None and x.slopes is None and x.sinks is None and x.lengths is None
    assert (x.k[0] != x.k[1]).all()
    masked = make_inputs(replace(case, mask="triangle", mask_axes="BHLS")).mask
    assert masked is not None and masked.shape == (2, 6, 4, 5)
    shared = make_inputs(replace(case, layout="expanded"))
    assert (shared.k[0] == shared.k[1]).all() and (shared.v[0] == shared.v[1]).all() and (shared.q[0] != shared.q[1]).all()


def test_a_window_of_a_case() -> None:
    for left, right in ((0, 2), (1, None), (None, 0)):
        assert make_inputs(Case(window_left=left, window_right=right)).window == (left, right)
    assert make_inputs(Case()).window is None


def test_numbers_that_a_case_adds() -> None:
    found = [
        make_inputs(Case(batch=batch, kv_heads=2, group=2, keys=4, seed=seed, alibi=True, sinks=True, lengths=True))
        for batch in (1, 3)
        for seed in range(40)
    ]
    slopes, sinks = np.concatenate([x.slopes for x in found]), np.concatenate([x.sinks for x in found])
    assert slopes.shape == sinks.shape == (80 * 4,)
    assert 2.0**-8 < slopes.min() < 2.0**-7 and 2.0**-1 < slopes.max() <= 1 and 1.7 < sinks.std() < 2.3
    alone, beside = ({int(n) for x in found if len(x.lengths) == size for n in x.lengths} for size in (1, 3))
    assert alone == {1, 2, 3, 4} and beside == {0, 1, 2, 3, 4}  # an empty sequence has others beside it


def test_edits_put_a_number_in_a_place() -> None:
    plain = make_inputs(Case(keys=2, dim=3, dtype="float16"))
    x = make_inputs(Case(keys=2, dim=3, dtype="float16", edits=(("k", 4, 1 / 3), ("v", 7, np.inf))))
    assert x.k.reshape(-1)[4] == float(np.float16(1 / 3)) and x.v.reshape(-1)[7 % 6] == np.inf
    assert (x.q == plain.q).all() and (x.k != plain.k).sum() == 1 and (x.v != plain.v).sum() == 1
    assert make_inputs(Case(keys=0, edits=(("k", 4, 1.0),))).k.size == 0
