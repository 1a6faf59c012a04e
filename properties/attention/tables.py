"""From what the sizes, the parameters and the numbers of a case are drawn.

Tables are ordered from the simplest to the strangest, since Hypothesis shrinks towards the first element; one that stands
several times is drawn so much more often.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from ..engine.cases.draws import Strategy, either, natural, pick
from .case import BEYOND

SPECIAL = (0.0, -0.0, 1.0, -1.0, 8.0, -100.0, 2.0**-24, -(2.0**-126))
EDGES = (8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129)  # both sides of every tile edge
TINY = (1, 2, 3, 4, 5)  # first in every table, so that a case of any profile shrinks to a small one
LONG = (*(200, 257, 512, 513, 520, 600) * 60, *BEYOND)
BETWEEN = tuple(range(10, 131))  # each length, that none is special unseen; most draws are of those above
FEW = (1, *(2, 3, 4, 5, 6, 7) * 4, 8, 9, 15, 16, 17, 33, 0)
MOST_DIMS = (1, 2, 3, 4, 5, 6, 8, 7, 12, 16, 17, 20, 32, 33, 40, 64, 65, 80, 96, 128)
DIMS = (*(*MOST_DIMS, *(2, 3, 4, 5, 6, 8) * 3, 16, 17, 20, 0, 0) * 20, *range(9, 129))
WIDE_DIMS, BOTH_LONG = (160, 192, 256), (65, 130, 200)
SMALL_DIMS = (1, *(2, 3, 4, 5, 8) * 2, 16, 17)
COUNTS = (*(1, 1, 1, 2, 2, 2, 3, 3, 4, 5, 0) * 32, *(*range(6, 17), 24, 32, 33, 40) * 2)
ONE_OR_TWO = (1, 1, 2)
TWOS, THREES = (1, 2, 3, *(2,) * 4), (1, 2, 3, *(3,) * 4)  # sizes that coincide: one axis may be taken for another
LENGTHS = ("queries", "keys")
SHORT = (1, *(2, 3, 4, 5, 6, 7, 8) * 4, 9, 15, 16, 17, 31, 32, 33)  # where the whole weight matrix is read

# Sizes are drawn together in a few profiles, so that no case is large along every axis at once; the number is the share.
PROFILES: tuple[tuple[int, dict[str, tuple[int, ...]]], ...] = (
    # All axes short: most mistakes of meaning.
    (10, {"queries": FEW, "keys": FEW, "batch": COUNTS, "kv_heads": COUNTS, "dim": DIMS}),
    # Edges of tiles along the keys.
    (
        6,
        {
            "queries": (1, 2, 3, 4, 5, 33, 65),
            "keys": (*TINY * 8, *EDGES * 48, *BETWEEN),
            "batch": ONE_OR_TWO,
            "kv_heads": ONE_OR_TWO,
            "dim": SMALL_DIMS,
        },
    ),
    # Edges of tiles along the queries.
    (
        6,
        {
            "queries": (*TINY * 8, *EDGES * 48, *BETWEEN),
            "keys": (1, 2, 3, 4, 5, 7, 17),
            "batch": ONE_OR_TWO,
            "kv_heads": ONE_OR_TWO,
            "dim": SMALL_DIMS,
        },
    ),
    # Several tiles of keys.
    (
        2,
        {
            "queries": (1, 2, 3, 5, 65),
            "keys": (*TINY * 85, *LONG * 6),
            "batch": ONE_OR_TWO,
            "kv_heads": (1,),
            "dim": (1, 2, 4, 8),
        },
    ),
    # Several tiles of queries.
    (
        2,
        {
            "queries": (*TINY * 85, *LONG * 6),
            "keys": (1, 2, 3, 5),
            "batch": ONE_OR_TWO,
            "kv_heads": (1,),
            "dim": (1, 2, 4, 8),
        },
    ),
    # Wide heads, which fused kernels do not take.
    (
        1,
        {
            "queries": (1, 2, 3, 5, 17),
            "keys": (1, 2, 3, 5, 17),
            "batch": (1, 2),
            "kv_heads": (1, 2),
            "dim": (1, 2, 3, *WIDE_DIMS * 2),
        },
    ),
    # Several tiles each way: dear, and rarely needed.
    (
        1,
        {
            "queries": (*TINY, *BOTH_LONG * 2),
            "keys": (*TINY, *BOTH_LONG * 2),
            "batch": (1,),
            "kv_heads": (1,),
            "dim": (1, 2, 4, 16, 64),
        },
    ),
    # Sizes that coincide at 2, and at 3.
    (3, dict.fromkeys(("queries", "keys", "batch", "kv_heads", "dim"), TWOS)),
    (3, dict.fromkeys(("queries", "keys", "batch", "kv_heads", "dim"), THREES)),
)
# As models call it: no axis is short, but the sizes to shrink to. Dear, and for the few properties that ask for it.
OF_MODELS = {
    "queries": (1, 2, *(64, 100) * 2, *(128,) * 6),
    "keys": (1, 2, *(64, 100) * 2, *(128,) * 6),
    "batch": (1, 2, 2, 2, 2, 8),
    "kv_heads": (1, 2, 4, 8, 8, 12, 12, 16),
    "dim": (1, 2, 32, 32, *(64,) * 8, 80, 80, 128, 128),
}
# As people try it out: the sizes, and with them the numbers (``regimes.USUAL``), of tests and benchmarks.
AS_TRIED = {
    "queries": (1, 2, *(32,) * 4),
    "keys": (1, 2, *(32,) * 4),
    "batch": (1, 2, 2, 4),
    "kv_heads": (1, 2, 4, 4, 8),
    "dim": (1, 2, *(16, 16, 32, 64) * 2),
}
# Any of these sizes, where it is narrowed to one.
ANY_SIZE = {name: tuple(dict.fromkeys(size for _, profile in PROFILES for size in profile[name])) for name in PROFILES[0][1]}
# Both axes longer still: only where no oracle is asked, that is for exact properties.
LONG_BOTH = {name: (*TINY, *(257, 300, 300) * 4) for name in LENGTHS} | {"batch": (1,), "kv_heads": (1,), "dim": (1, 2, 4)}

# What is drawn for a parameter where a property takes it in passing, and where it is about it.
FEATURE_TABLES: dict[str, tuple[dict[str, tuple[Any, ...]], dict[str, tuple[Any, ...]]]] = {
    "window_size": (
        {"window_left": (*(None,) * 5, 0, 1, 2, 5, 16), "window_right": (*(None,) * 5, 0, 1, 2, 5, 16)},
        {"window_left": (0, 1, 2, 3, 7, 16, 17, 700, None, None), "window_right": (None, 0, 0, 1, 2, 3, 16, 700)},
    ),
    "softcap": ({"softcap": (None, None, None, None, 2.0, 50.0)}, {"softcap": (1.0, 0.5, 2.0, 8.0, 50.0)}),
    "alibi_slopes": ({"alibi": (False, False, True)}, {"alibi": (True,)}),
    "sinks": ({"sinks": (False, False, False, True)}, {"sinks": (True,)}),
    "kv_lengths": ({"lengths": (False, False, False, True)}, {"lengths": (True,)}),
    "return_lse": ({}, {}),
}


def _edits() -> Strategy:
    edit = st.tuples(pick(("v", "k", "q")), natural(64), pick(SPECIAL))
    return either((st.just(()), st.just(()), st.tuples(edit), st.tuples(edit, edit)))


EDITS = _edits()
NAN_EDITS = either((st.just(()), st.tuples(st.tuples(st.just("v"), natural(64), st.just(float("nan"))))))
