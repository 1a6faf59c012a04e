"""A case of linear attention, and which cases are drawn for a property of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from ..engine.cases.case import Case as BaseCase
from ..engine.cases.case import device_field, dtype_field, seed_field
from ..engine.cases.draws import Strategy, either, independent, natural, pick, record
from ..engine.cases.field import AS_DRAWN, EDGE, FEW, PLAIN_LAYOUT, PLAIN_NUMBERS, SAME_WIDTH, SHORT, documented, field
from ..engine.cases.regimes import REGIMES
from ..engine.core.contract import EVERY_TYPE, Topic
from ..engine.core.declare import Property
from ..engine.core.target import Target
from ..engine.frameworks import LAYOUT_REASONS

LENGTHS = (1, *(2, 3, 4, 5, 6, 7, 8) * 3, 9, *(15, 16, 17, 31, 32, 33, 64, 65) * 2, 63, 129)
CHUNKS = {(9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 129): "a chunk ends here: the state is handed on"}
WEIGHTS = {(2, 3, 4, 5, 6, 7, 8): SHORT, (15, 16, 17, 31, 32, 33, 64, 65): EDGE}


@dataclass(frozen=True, repr=False)
class Case(BaseCase):
    """One call of linear attention."""

    batch: int = field(
        1,
        least=1,
        drawn=(1, 1, 2, 3),
        varied=(1, 2, 3),
        why="sequences share no state: one that is not reset goes on (D25)",
        often={(1, 2): FEW},
    )
    heads: int = field(
        1,
        least=1,
        drawn=(1, 1, 2, 3),
        varied=(1, 2, 3),
        why="heads share no state: one that is not reset goes on (D25)",
        often={(1, 2): FEW},
    )
    queries: int = field(
        1,
        least=1,
        drawn=LENGTHS,
        varied=(1, 2, 5, 17),
        why="rows: each is answered from the state at its place",
        unusual=CHUNKS,
        often=WEIGHTS,
    )
    keys: int = field(
        1,
        least=1,
        drawn=LENGTHS,
        varied=(1, 2, 5, 17),
        why="keys that the state sums up: the last chunk lost, or its padding summed up",
        unusual=CHUNKS,
        often=WEIGHTS,
    )
    dim: int = field(
        1,
        least=1,
        drawn=(1, 2, 3, 4, 5, 8, 16, 17),
        varied=(1, 3, 4, 8),
        why="features of a key: rows of the state",
        unusual={(3, 5, 17): "no power of two, which vectors are padded to: φ(0) = 1 is not nothing"},
    )
    value_dim: int | None = field(
        None,
        least=1,
        drawn=(None, None, None, 1, 3, 8),
        why="None: the same as dim; else the state is no square, and its transpose shows",
        often={None: SAME_WIDTH},
    )
    dtype: str = dtype_field()
    device: str = device_field()
    is_causal: bool = field(
        False, drawn=(False, True), varied=(False, True), needs="is_causal", says="causal", why="the state grows from row to row"
    )
    values: str = field(
        "normal",
        choices=tuple(REGIMES),
        drawn=("normal", "normal", "simple", "positive", "cancelling", "near_ties", "rising"),
        varied=("normal", "simple", "positive"),
        why="what the numbers look like: features are what a map makes of them, and weights need not fall with distance",
        unusual=documented(REGIMES)
        | {
            "positive": "nothing negative, where elu is the identity: a feature map that is applied to queries or keys alone shows",
            "cancelling": "queries and keys near 0, values of ±128: a wrong weight is multiplied by large values",
            "rising": "keys that grow: the sum of features, which normalises, grows with every row",
        },
        often={"normal": PLAIN_NUMBERS},
    )
    magnitude: int = field(
        0,
        drawn=(0, 0, 0, 1, 3, -3),
        varied=(0, 2),
        says="q and k times 2^{}",
        why="queries and keys are multiplied by 2**magnitude",
        unusual={
            1: "features from 0.1 to some units",
            3: "features from nearly 0 to some tens",
            -3: "all features are near 1, and all weights alike",
        },
        often={0: AS_DRAWN},
    )
    shift: int = field(
        0,
        drawn=(0, 0, 0, 0, -2, -6, 2, -45),
        varied=(0, -2, 2),
        says="q and k moved by {}",
        why="is added to queries and keys",
        unusual={
            (-2, -6): "the features are small: what is added to a normaliser shows",
            -45: "elu(x) + 1 is 0 in every type: 0/0",
            2: "elu(x) + 1 is nearly linear: a softmax taken instead shows",
        },
        often={0: "where the feature map bends, and one map differs most from another"},
    )
    layout: str = field(
        "contiguous",
        choices=tuple(LAYOUT_REASONS),
        drawn=("contiguous",) * 4 + ("transposed", "offset", "padded", "strided"),
        varied=("contiguous", "transposed"),
        why="how the arrays lie in memory: strides ignored, a storage offset dropped",
        unusual=LAYOUT_REASONS,
        often={"contiguous": PLAIN_LAYOUT},
    )
    seed: int = seed_field()

    @property
    def width(self) -> int:
        """Features of a value."""
        return self.dim if self.value_dim is None else self.value_dim


# The order in which fields are drawn.
FIELDS: dict[str, tuple[Any, ...]] = {
    name: Case.fields()[name].drawn
    for name in ("batch", "heads", "queries", "keys", "dim", "value_dim", "is_causal", "values", "magnitude", "shift", "layout")
}
LINEAR = Topic("linear", "linear attention", Case, tuple(FIELDS), EVERY_TYPE)


def tables(target: Target, prop: Property) -> dict[str, tuple[Any, ...]]:
    """What is drawn for each field; nothing, where a property is about what the target does not support."""
    supports, longest, found = target.supports, target.supports.max_length or 2**62, {}
    for name in (name for name in target.kind.fields(target) if name in FIELDS):
        table = prop.table(name, FIELDS[name])
        if name in ("queries", "keys"):
            table = tuple(n for n in table if n <= longest) or (() if name in prop.domain else (1,))
        if name == "dim" and supports.head_dims:
            table = supports.head_dims
        if name == "value_dim" and (supports.head_dims or not supports.value_dim):
            table = (None,)
        found[name] = table
    return found


def refused(target: Target, prop: Property, dtypes: tuple[str, ...] | None) -> str:
    """Why a property cannot be drawn for a target; empty if it can."""
    if empty := [name for name, table in tables(target, prop).items() if not table]:
        return f"declared as not supported: {empty[0]} {prop.domain[empty[0]]}"
    return prop.untaken(target.kind.fields(target)) or prop.without_types(target.dtypes, dtypes)


def linear_cases(target: Target, prop: Property, device: str, dtypes: tuple[str, ...] | None) -> Strategy:
    """Cases for one property of one linear attention."""
    fields: dict[str, Strategy] = {"seed": natural(2**31)}
    if device != "cpu":
        fields["device"] = st.just(device)
    fields |= {name: pick(table) for name, table in tables(target, prop).items()}
    often = prop.drawn_types(target.dtypes, dtypes)
    return independent(either([record(Case, fields | {"dtype": st.just(d)}) for d in often]))
