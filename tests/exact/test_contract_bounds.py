"""The bounds of caches, packs, positions and linear attention on a few calls, number by number: see ``test_bound_numbers.py``.

Where a bound is meant to change, ``python tests/exact/test_contract_bounds.py`` writes ``contract_bounds.json`` anew.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))

from properties.catalogue import PROPERTIES
from properties.engine.search.find_target import Builtins, find_targets

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


if __name__ == "__main__":
    FILE.write_text(json.dumps({what: numbers(what) for what in ASKED}, indent=1) + "\n", encoding="utf-8")
