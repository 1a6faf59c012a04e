"""A case of packed sequences, and which cases are drawn for a property of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from ..engine.cases.case import Case as BaseCase
from ..engine.cases.case import device_field, dtype_field, seed_field
from ..engine.cases.draws import Strategy, either, independent, natural, pick, record
from ..engine.cases.field import AS_DRAWN, EDGE, FEW, PLAIN_LAYOUT, PLAIN_NUMBERS, SAME_WIDTH, SHORT, UNGROUPED, documented, field
from ..engine.cases.regimes import REGIMES
from ..engine.core.contract import EVERY_TYPE, Topic
from ..engine.core.declare import Property
from ..engine.core.target import Target
from ..engine.frameworks import LAYOUT_REASONS
from .packing import FILLED, PACKINGS

LENGTHS = (1, *(2, 3, 4, 5, 6, 7, 8) * 3, 9, *(15, 16, 17, 31, 32, 33, 64, 65) * 2, 63, 129)


@dataclass(frozen=True, repr=False)
class Case(BaseCase):
    """One call: ``batch`` sequences of at most ``queries`` and ``keys`` tokens, one after the other."""

    batch: int = field(
        1,
        least=0,
        drawn=(1, 2, 2, 3, 3, 4, 5, 7),
        varied=(1, 2, 3),
        why="sequences: the boundary of one taken for that of another (A37)",
        often={(2, 3): FEW},
    )
    kv_heads: int = field(
        1,
        least=0,
        drawn=(1, 1, 2, 3),
        varied=(1, 2, 3),
        why="heads share nothing: in a pack they come after the tokens, not before them",
        often={1: SHORT},
    )
    group: int = field(
        1,
        least=1,
        drawn=(1, 1, 2, 3),
        varied=(1, 2),
        needs="enable_gqa",
        says="grouped heads",
        why="query heads that share one key/value head (D06)",
        often={1: UNGROUPED},
    )
    queries: int = field(
        1,
        least=0,
        drawn=LENGTHS,
        varied=(1, 2, 5, 17),
        why="rows of the longest sequence: a tile that reaches into the next one",
        unusual={(9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 129): "a tile ends here"},
        often={(2, 3, 4, 5, 6, 7, 8): SHORT, (15, 16, 17, 31, 32, 33, 64, 65): EDGE},
    )
    keys: int = field(
        1,
        least=0,
        drawn=LENGTHS,
        varied=(1, 2, 5, 17),
        why="keys of the longest sequence: a tile that reaches into the next one",
        unusual={(9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 129): "a tile ends here"},
        often={(2, 3, 4, 5, 6, 7, 8): SHORT, (15, 16, 17, 31, 32, 33, 64, 65): EDGE},
    )
    dim: int = field(
        1,
        least=0,
        drawn=(1, 2, 3, 4, 5, 8, 16, 17),
        varied=(1, 3, 4, 8),
        why="the default scale",
        unusual={(3, 5, 17): "no power of two: the scale of the padded width (D12)"},
    )
    value_dim: int | None = field(
        None,
        least=0,
        drawn=(None, None, None, 1, 3, 8),
        why="None: the same as dim; else values are wider or narrower than keys (E30)",
        often={None: SAME_WIDTH},
    )
    dtype: str = dtype_field()
    device: str = device_field()
    is_causal: bool = field(
        False,
        drawn=(False, True),
        varied=(False, True),
        needs="is_causal",
        says="causal",
        why="each sequence has a causal frontier of its own",
    )
    scale: float | None = field(
        None,
        drawn=(None, None, None, 1.0, 0.3, -0.5, 0.0, 4.0),
        varied=(None, 0.5, 1.0),
        needs="scale",
        says="explicit scale",
        why="None: the parameter is not passed",
        unusual={
            0.0: "all logits are 0 and all weights equal; `scale or default` takes 0 for none (D13)",
            -0.5: "−inf · −1 is +inf: hidden keys win",
            1.0: "no scaling at all: a default that is applied besides (G12)",
            0.3: "no power of two: a scale that is rounded to a short type shows",
            4.0: "larger than any default: a few keys take nearly all",
        },
        often={None: "the default scale is what is mostly used, and has mistakes of its own (D09 to D12)"},
    )
    values: str = field(
        "normal",
        choices=tuple(REGIMES),
        drawn=("normal", "normal", "near_ties", "one_hot", "simple", "rising", "positive"),
        varied=("normal", "simple", "one_hot"),
        why="what the numbers look like: a missing rescale shows where logits rise",
        unusual=documented(REGIMES),
        often={"normal": PLAIN_NUMBERS},
    )
    magnitude: int = field(
        0,
        drawn=(0, 0, 0, 1, 3, -3),
        why="q is multiplied by 2**magnitude",
        unusual={
            (1, 3): "a few keys take nearly all: one of a neighbour that is seen may win",
            -3: "all keys weigh nearly alike: one of a neighbour counts as its own do",
        },
        often={0: AS_DRAWN},
    )
    layout: str = field(
        "contiguous",
        choices=tuple(LAYOUT_REASONS),
        drawn=("contiguous",) * 4 + ("offset", "padded", "strided"),
        varied=("contiguous", "transposed"),
        why="how the arrays lie in memory: the stride of a token is not heads times features",
        unusual=LAYOUT_REASONS,
        often={"contiguous": PLAIN_LAYOUT},
    )
    packing: str = field(
        "equal",
        choices=tuple(PACKINGS),
        drawn=tuple(PACKINGS),
        varied=("equal", "mixed", "ones"),
        why="how long the sequences are",
        unusual=documented(PACKINGS),
    )
    seed: int = seed_field()

    @property
    def heads(self) -> int:
        """Number of query heads."""
        return self.kv_heads * self.group

    @property
    def width(self) -> int:
        """Features of a value."""
        return self.dim if self.value_dim is None else self.value_dim

    @property
    def empty(self) -> bool:
        """Whether some dimension is 0."""
        return 0 in (self.batch, self.kv_heads, self.queries, self.keys, self.dim, self.width)


# The order in which fields are drawn.
FIELDS: dict[str, tuple[Any, ...]] = {
    name: Case.fields()[name].drawn
    for name in (
        "batch",
        "kv_heads",
        "queries",
        "keys",
        "dim",
        "value_dim",
        "scale",
        "is_causal",
        "group",
        "values",
        "magnitude",
        "packing",
        "layout",
    )
}
PACKED = Topic("packed", "packed sequences", Case, tuple(FIELDS), EVERY_TYPE)


def packed_fields(target: Target) -> tuple[str, ...]:
    """The fields of a case that decide a call of this target."""
    known = Case.fields()
    return (
        "dtype",
        "seed",
        *(name for name in FIELDS if not known[name].needs or known[name].needs in target.parameters),
    )


def tables(target: Target, prop: Property) -> dict[str, tuple[Any, ...]]:
    """What is drawn for each field; nothing, where a property is about what the target does not support."""
    supports, longest, found = target.supports, target.supports.max_length or 2**62, {}
    for name in filter(FIELDS.__contains__, packed_fields(target)):
        table = prop.table(name, FIELDS[name])
        if name in ("queries", "keys"):
            table = tuple(n for n in table if n <= longest) or (() if name in prop.domain else (1,))
        if name == "packing":
            table = tuple(n for n in table if n in FILLED or (supports.zero_sizes and (n != "no_keys" or supports.empty_rows != "mean")))
        if name == "scale" and supports.scales == "not zero":
            table = tuple(n for n in table if n != 0)
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
    return prop.untaken(packed_fields(target)) or prop.without_types(target.dtypes, dtypes)


def packed_cases(target: Target, prop: Property, device: str, dtypes: tuple[str, ...] | None) -> Strategy:
    """Cases for one property of one target of packed sequences."""
    fields: dict[str, Strategy] = {"seed": natural(2**31)}
    if device != "cpu":
        fields["device"] = st.just(device)
    fields |= {name: pick(table) for name, table in tables(target, prop).items()}
    often = prop.drawn_types(target.dtypes, dtypes)
    return independent(either([record(Case, fields | {"dtype": st.just(d)}) for d in often]))
