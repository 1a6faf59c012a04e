"""The bounds of caches, packs, positions and linear attention on a few calls, number by number: see ``test_bound_numbers.py``.

Where a bound is meant to change, ``python tests/exact/test_contract_bounds.py`` writes ``contract_bounds.json`` anew.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))

from properties.cache import exact as cache
from properties.catalogue import PROPERTIES
from properties.engine.cases.coordinates import uniform
from properties.engine.search.find_target import Builtins, find_targets
from properties.exact.arithmetic import Arithmetic
from properties.linear import exact as linear
from properties.position import exact as position

FILE = Path(__file__).with_name("contract_bounds.json")
# what → (property, built-in, fields of the case)
ASKED: dict[str, tuple[str, str, dict[str, Any]]] = {
    "a cache": ("cached_decoding_is_one_pass", "caches_numpy.Contiguous", {"batch": 2, "kv_heads": 2, "keys": 6, "dim": 4}),
    "a cache that rotates": (
        "cached_decoding_is_one_pass",
        "caches_torch.Rotating",
        {"batch": 2, "kv_heads": 2, "group": 2, "keys": 6, "dim": 6, "base": 10000.0},
    ),
    "a pack": ("packed_output_is_inside_the_bound", "packed_numpy.attention", {"kv_heads": 2, "dim": 4}),
    "a rotation": ("rotation_is_inside_the_bound", "positions_numpy.rotary", {"batch": 2, "kv_heads": 2, "queries": 5, "dim": 8}),
    "a rotation of a part": ("rotation_is_inside_the_bound", "positions_numpy.rotary", {"queries": 5, "dim": 8, "rotary_dim": 4}),
    "sinusoids": ("sinusoid_is_inside_the_bound", "positions_numpy.sinusoidal", {"queries": 9, "dim": 8}),
    "slopes": ("slopes_follow_the_published_rule", "positions_numpy.slopes", {"kv_heads": 12}),
    "linear attention": ("linear_output_is_inside_the_bound", "linear_attention.parallel", {"heads": 2, "queries": 5, "keys": 6, "dim": 4}),
}

# In no real arithmetic are all losses large enough to be seen beside each other: in this one they are, and each another power of two.
COARSE = Arithmetic(
    "coarse",
    "float32",
    u_out=2.0**-9,
    eta_out=2.0**-6,
    max_out=1e9,
    u_acc=2.0**-12,
    tiny=2.0**-10,
    max_acc=1e12,
    u_s=2.0**-11,
    eta_s=2.0**-8,
    max_s=1e12,
    u_p=2.0**-10,
    eta_p=2.0**-7,
    u_mul=2.0**-13,
    eps_exp=2.0**-8,
    n_pre=3,
)


def numbers_like(*shape: int) -> Any:
    """Some numbers between −2 and 2, the same ones every time."""
    return 4 * uniform(7, "numbers", shape) - 2


def of_a_linear_attention(a: Arithmetic) -> list[Any]:
    q, k, v = numbers_like(1, 2, 5, 4), numbers_like(1, 2, 6, 4)[..., ::-1], numbers_like(1, 2, 6, 3)
    exact, bound = linear.solve(q, k, v, np.tri(5, 6, 1, dtype=bool), a)
    few = np.array([-2.0, -0.5, 0.0, 0.5, 2.0])
    return [linear.feature_error(few, linear.feature_map(few).astype(float), a), exact.out, bound]


def of_a_cache(a: Arithmetic) -> list[Any]:
    """With few tokens; after so many that the angles say nothing; and with a scale at which losses of the scores are larger."""
    q, k = numbers_like(1, 2, 3, 6), numbers_like(1, 1, 5, 6)
    few, many = (cache.Turning(100.0, pairing, last) for pairing, last in (("half", 5), ("interleaved", 10**7)))
    return [
        *cache.rotation_errors(q, k, 0.4, few, a),
        *cache.rotation_errors(q, k, 0.4, many, a),
        *cache.rotation_errors(q, k, 2.0, few, a),
    ]


def of_positions(a: Arithmetic) -> list[Any]:
    t, far = (position.turn(np.array(at), 3, 6, 100.0, a) for at in ([0, 1, 7], [10**7]))
    turned = [position.rotation(numbers_like(2, 3, 8), t, pairing, a)[1] for pairing in ("half", "interleaved")]
    same, summed = position.same_angle_error(t.angle, a), position.sinusoid(t, 5, "half", a)[1]
    return [t.sin_bound, t.cos_bound, far.sin_bound, far.cos_bound, same, summed, *turned]


def of_slopes(a: Arithmetic) -> list[Any]:
    return [position.slopes(heads, a)[1] for heads in (1, 8, 12)]


def of_buckets(_: Arithmetic) -> list[Any]:
    """Around borders so far away that two neighbouring distances differ by less than rounding."""
    most, first = 10**8, 16
    borders = [int(first * (most / first) ** (k / first)) for k in (10, 13, 15)]
    return [end for border in borders for end in position.buckets(-border + np.arange(-200, 200), False, 2 * first, most)]


DIRECTLY: dict[str, Callable[[Arithmetic], list[Any]]] = {
    "linear attention, coarse": of_a_linear_attention,
    "a cache that rotates, coarse": of_a_cache,
    "positions, coarse": of_positions,
    "slopes, coarse": of_slopes,
    "buckets": of_buckets,
}


def numbers(what: str) -> dict[str, list[float]]:
    """The sums of the bounds of all answers to one case, for every type."""
    name, place, fields = ASKED[what]
    (target,) = find_targets(place, Builtins())
    prop, found = PROPERTIES[name], {}
    for dtype in target.dtypes:
        kind = target.kind.trial(prop)
        trial = kind(target, target.kind.topics[0].case(**fields, dtype=dtype, seed=7))
        prop.check(trial)
        found[dtype] = [float(np.sum(run.bound)) for run in trial.runs]
    return found


@pytest.mark.parametrize("what", ASKED)
def test_the_numbers_are_those_that_were_written_down(what: str) -> None:
    if "torch" in ASKED[what][1]:
        pytest.importorskip("torch")
    kept, found = json.loads(FILE.read_text(encoding="utf-8"))[what], numbers(what)
    assert set(found) == set(kept) and all(found.values())
    for dtype, sums in found.items():
        assert np.isfinite(sums).all() and np.all(np.array(sums) > 0)
        assert np.allclose(sums, kept[dtype], rtol=1e-6, atol=0), (dtype, sums, kept[dtype])


def sums(what: str) -> list[float]:
    """The sum of each array of bounds, in an arithmetic in which every loss shows."""
    return [float(np.sum(array)) for array in DIRECTLY[what](COARSE)]


@pytest.mark.parametrize("what", DIRECTLY)
def test_every_term_of_a_bound_is_in_its_number(what: str) -> None:
    kept, found = json.loads(FILE.read_text(encoding="utf-8"))[what], sums(what)
    assert len(found) == len(kept) and np.isfinite(found).all()
    assert np.allclose(found, kept, rtol=1e-9, atol=0), (found, kept)


if __name__ == "__main__":
    written: dict[str, Any] = {what: numbers(what) for what in ASKED} | {what: sums(what) for what in DIRECTLY}
    FILE.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
