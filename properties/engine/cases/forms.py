"""Forms of calls: a few shapes, kept for a run, where every new one costs a compilation.

What is free to vary on them is the rest of a case: numbers, patterns of masks, causality, edits, seeds. A form narrows the
table of each field that decides what is compiled, so that a case of it is still one that the property is about.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

Table = Sequence[Any]
Form = Mapping[str, Callable[[Table], Table]]  # field → what is left of its table

MASKS = ("LS", "BHLS", "S", "BLS", "BS", "HLS", "H")
HALVES = ("bfloat16", "float16")
FLOAT_MASKS = ("minus_infinity", "bias", "bias_and_minus_infinity", "lowest")
SCALES = (1.0, 0.5, 0.3, 2.0, -0.5, 16.0)
# Sizes of four forms: a small one, one all of whose sizes differ, long keys and long queries beyond the edge of a tile.
SIZES: tuple[dict[str, tuple[int, ...]], ...] = (
    {"batch": (1, 2), "kv_heads": (1, 2), "group": (1,), "queries": (2, 3, 4), "keys": (2, 3, 4), "dim": (2, 3, 4)},
    {"batch": (2, 3), "kv_heads": (2, 3), "group": (2, 3), "queries": (4, 5), "keys": (6, 7), "dim": (8,), "value_dim": (1, 5, 16)},
    {"batch": (1, 2), "kv_heads": (1, 2), "group": (1, 2), "queries": (1, 3), "keys": (17, 33, 65, 129), "dim": (5, 16)},
    {"batch": (1, 2), "kv_heads": (1, 3), "group": (1,), "queries": (17, 33, 65), "keys": (5, 9), "dim": (16, 20)},
)


def forms(seed: int) -> tuple[Form, ...]:
    """The forms of a run. Those of another seed have other sizes."""
    random = Random(seed)
    half = random.choice(HALVES)
    dtypes = (("float64", "float32"), ("float64", "float32"), ("float32", "float64"), (half, *HALVES))
    made: list[Form] = []
    for sizes, dtype in zip(SIZES, dtypes, strict=True):
        wanted = {"value_dim": (None,)} | sizes
        kinds = ("bool",) if random.random() < 0.5 else FLOAT_MASKS
        made.append(
            {
                **{name: near(random.choice(table)) for name, table in wanted.items()},
                "dtype": first_of(*dtype),
                "mask_kind": among(*kinds),
                "mask_axes": first_of(*random.sample(MASKS, len(MASKS))),
                "mask_rank": near(random.choice((0, 2, 4))),
                "scale": among(None, random.choice(SCALES)),
                "explicit": first_of(random.random() < 0.5),
            }
        )
    return tuple(made)


def among(*values: Any) -> Callable[[Table], Table]:
    """These values alone; the first of the table if it has none of them."""
    return lambda table: [x for x in table if x in values] or table[:1]


def first_of(*values: Any) -> Callable[[Table], Table]:
    """The first of these values that the table has; its own first if it has none."""
    return lambda table: [next((x for x in values if x in table), table[0])]


def near(size: int | None) -> Callable[[Table], Table]:
    """The size of the table that is nearest, in proportion; 0 only where there is no other."""

    def distance(x: int | None) -> float:
        if x is None or size is None:
            return 0.0 if x is size else 50.0
        return abs(math.log2(x or 2**-60) - math.log2(size or 2**-60))

    return lambda table: [min(table, key=distance)]
