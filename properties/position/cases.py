"""A case of positions, and which cases are drawn for a property of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from ..engine.cases.case import Case as BaseCase
from ..engine.cases.case import device_field, dtype_field, seed_field
from ..engine.cases.draws import Strategy, either, independent, natural, pick, record
from ..engine.cases.field import AS_DRAWN, FEW, PLAIN_LAYOUT, SHORT, field
from ..engine.core.contract import EVERY_TYPE, Topic
from ..engine.core.declare import Property
from ..engine.core.target import Target
from ..engine.frameworks import LAYOUT_REASONS, LAYOUTS
from ..exact.arithmetic import arithmetic, default_arithmetic

LENGTHS = (1, *(2, 3, 4, 5, 6, 7, 8) * 3, 9, 16, 17, 33, 64, 65, 129, 257, 300, 0)
DIMS = (1, *(2, 3, 4, 5, 6, 7, 8) * 2, 9, 16, 17, 32, 63, 64, 100, 128)
EVEN = (2, *(4, 6, 8) * 2, 2, 10, 12, 16, 32, 64, 96, 128)
# On both sides of where integers end in the short types (256 in bfloat16, 2048 in float16) and of usual table lengths.
OFFSETS = (0, 0, 0, 1, 2, 3, 7, 100, 255, 256, 257, 511, 513, 1000, 2047, 2049, 4097, 10_007, 32_769, 100_000)
BASES = (None, None, None, 100.0, 10.0, 500_000.0, 1_000_000.0)
HEADS = (1, *range(2, 18), 3, 5, 6, 12, 20, 24, 31, 32, 33, 40, 48, 64, 71, 96, 112, 128)


@dataclass(frozen=True, repr=False)
class Case(BaseCase):
    """One call: ``queries`` positions of ``dim`` features; rotary: x (batch, kv_heads, queries, dim); slopes: kv_heads of them."""

    batch: int = field(1, least=0, varied=(1, 2, 3), why="rotations: elements of a batch turn alike (D24)", often={1: FEW})
    kv_heads: int = field(
        1,
        least=0,
        varied=(1, 2, 3),
        why="heads: ALiBi's slopes of numbers that are no power of two have a rule of their own (F18)",
        often={
            1: FEW,
            (3, 5, 6, 12): "the smallest that are no power of two, where a series taken for all numbers shows first (F18)",
        },
        unusual={
            (12, 20, 24, 40, 48, 71, 96, 112): "numbers of heads that models have",
            (3, 5, 31, 33): "beside a power of two",
            (9, 10, 11, 13, 14, 15, 17): "no power of two: slopes are taken from two series",
        },
    )
    queries: int = field(
        1,
        least=0,
        varied=(1, 2, 5, 17),
        why="how many positions there are: a table or cache of angles too short, sliced along another axis (F13), shorter than the call before",
        unusual={
            0: "no position",
            (9, 17, 33, 65, 129, 130): "one or two more than a small table has, or than buckets count one by one",
            (257, 300): "beyond what bfloat16 counts",
            (5000, 100_001): "a whole table, past position 100,000",
        },
        often={(2, 3, 4, 5, 6, 7, 8): SHORT},
    )
    keys: int = field(
        1,
        least=0,
        varied=(1, 2, 5, 17),
        why="buckets: keys; tables: rows that are never looked up",
        unusual={(129, 300): "beyond the largest distance", (9, 17, 33): "one more than a small table has"},
    )
    dim: int = field(
        1,
        least=0,
        varied=(1, 3, 4, 8),
        why="features, which turn in pairs: the next one, or the one half the width away (F11, F12)",
        often={(2, 3, 4, 5, 6, 7, 8): SHORT},
        unusual={(1, 3, 5, 7, 9, 17, 63): "odd: the last feature has no partner", (10, 12, 96, 100): "no power of two"},
    )
    dtype: str = dtype_field()
    device: str = device_field()
    magnitude: int = field(
        0,
        why="x is multiplied by 2**magnitude: a rotation is linear, and keeps lengths",
        unusual={(1, 3): "large: what is added shows less than what is multiplied", -3: "small: what is added shows most"},
        often={0: AS_DRAWN},
    )
    layout: str = field(
        "contiguous",
        choices=tuple(LAYOUT_REASONS),
        varied=("contiguous", "transposed"),
        why="how x or the table lies in memory: pairs are read as if they were next to each other",
        unusual=LAYOUT_REASONS,
        often={"contiguous": PLAIN_LAYOUT},
    )
    offset: int = field(
        0,
        least=0,
        varied=(0, 1, 300),
        needs="offset",
        why="the first position: a cache of angles that ignores it (F02, F14, F27)",
        often={0: "most calls begin there, and what is known by heart is there: sin 0, cos 0, the first row"},
        unusual={
            (255, 256, 257): "bfloat16 counts to 256 (E03)",
            (2047, 2049): "float16 counts to 2048 (E04: so does TF32)",
            (511, 513, 1000, 4097): "a usual table ends",
            (100, 129, 300): "the first position is far from 0",
            (10_007, 32_769, 100_000): "long contexts: angles in short types are wrong",
        },
    )
    scattered: bool = field(
        False,
        varied=(False, True),
        says="scattered positions",
        why="drawn about the offset instead of consecutive: positions taken for their index",
    )
    base: float | None = field(
        None,
        least=0,
        varied=(None, 100.0),
        needs="base",
        why="base of the frequencies; None: the parameter is not passed (F16, F17)",
        unusual={
            (500_000.0, 1_000_000.0): "bases of Llama 3 and Qwen 2: the slowest features hardly turn",
            (10.0, 100.0): "small: all features turn visibly within a few positions",
        },
        often={None: "the default base is what is mostly used, and may be another than 10000 (F16)"},
    )
    rotary_dim: int | None = field(
        None,
        least=2,
        varied=(None, 2, 4),
        needs="rotary_dim",
        says="partial rotation",
        why="how many of the features rotate, the others pass as they are; None: the parameter is not passed, and all rotate",
    )
    bidirectional: bool = field(
        True,
        varied=(True, False),
        needs="bidirectional",
        why="buckets: future and past have buckets of their own, easily exchanged (F22)",
    )
    num_buckets: int = field(
        32,
        least=4,
        varied=(32, 8),
        needs="num_buckets",
        why="buckets: half of them are exact distances",
        unusual={12: "no power of two: halves that are odd"},
        often={32: "T5's own: what is mostly used"},
    )
    max_distance: int = field(
        128,
        least=2,
        varied=(128, 64),
        needs="max_distance",
        why="buckets: distances beyond it share the last one",
        unusual={(20, 41, 1000): "no power of two: the logarithm meets no whole number"},
        often={128: "T5's own: what is mostly used"},
    )
    explicit: bool = field(
        False, why="parameters are passed even where they have their default value: a default of the code that is not the one it documents"
    )
    seed: int = seed_field()

    @property
    def empty(self) -> bool:
        """Whether there is no position, or nothing at one."""
        return 0 in (self.batch, self.kv_heads, self.queries, self.keys, self.dim)


# The fields of a case that each contract reads; all others have no part.
FIELDS: dict[str, dict[str, tuple[Any, ...]]] = {
    "sinusoidal": {"queries": LENGTHS, "dim": DIMS, "offset": OFFSETS, "base": BASES},
    "rotary": {
        "batch": (1, 1, 2, 3),
        "kv_heads": (1, 1, 2, 3),
        "queries": (*LENGTHS[:-8], 17, 33, 0),
        "dim": EVEN,
        "offset": OFFSETS,
        "scattered": (False, True),
        "base": BASES,
        "rotary_dim": (None, 2, 4, 6, 8, 16),
        "magnitude": (0, 0, 0, 1, 3, -3),
        "layout": ("contiguous",) * 4 + LAYOUTS[1:-2],
    },
    "learned": {
        "queries": (1, *(2, 3, 4, 5, 8) * 2, 17, 33, 130, 0),
        "keys": (1, 2, 3, 5, 8, 17, 64, 300),
        "dim": (1, 2, 3, 4, 5, 8, 16, 17, 64),
        "offset": (0, 0, 1, 2, 7, 64),
        "scattered": (False, True),
        "layout": ("contiguous",) * 4 + ("padded", "strided", "offset"),
    },
    "slopes": {"kv_heads": HEADS},
    "buckets": {
        "queries": (1, 2, 3, 5, 9, 33),
        "keys": (1, 2, 3, 5, 9, 17, 33, 129, 300),
        "offset": (0, 0, 1, 7, 16, 64, 128, 129, 1000),
        "scattered": (False, True),
        "bidirectional": (True, False),
        "num_buckets": (32, 32, 8, 16, 4, 6, 12, 64),
        "max_distance": (128, 128, 64, 20, 256, 1000, 41),
        "explicit": (False, True),
    },
}
POSITIONS = Topic(
    "positions",
    "positions",
    Case,
    tuple(dict.fromkeys(name for table in FIELDS.values() for name in table)),
    EVERY_TYPE,
)
TOPICS = {
    name: Topic(name, words, Case, tuple(FIELDS[name]), EVERY_TYPE)
    for name, words in (
        ("sinusoidal", "sinusoidal positions"),
        ("rotary", "rotary positions"),
        ("learned", "learned positions"),
        ("slopes", "the slopes of ALiBi"),
        ("buckets", "the buckets of T5"),
    )
}
LONG = (5000, 100_001)  # a whole table, up to and beyond position 100,000; of few features


def position_fields(target: Target) -> tuple[str, ...]:
    """The fields of a case that decide a call of this target."""
    contract, known = target.contract, Case.fields()
    fixed = {name for name, field in known.items() if field.needs and field.needs not in target.parameters}
    if contract not in ("sinusoidal", "learned"):
        fixed.discard("offset")  # others are given positions
    return ("dtype", "seed", *(name for name in FIELDS[contract] if name not in fixed))


def refused(target: Target, prop: Property, dtypes: tuple[str, ...] | None) -> str:
    """Why a property cannot be drawn for a target; empty if it can: what it is about may be too large for a type, or not supported."""
    tables = narrowed(target, {name: prop.table(name, table) for name, table in FIELDS[target.contract].items()})
    if why := prop.untaken(position_fields(target)):
        return why
    for name, table in tables.items():
        if name in ("queries", "offset") and name in prop.domain and not set(table) & set(prop.table(name, ())):
            return f"declared max_length {target.supports.max_length}, it is about {name} = {prop.domain[name]}"
    for dtype in prop.types(target.dtypes, dtypes):
        empty = [name for name, table in tables.items() if not representable(name, table, largest_angle(target, dtype))]
        if not empty:
            return ""
    return prop.without_types(target.dtypes, dtypes) or f"it takes no {empty[0]} = {prop.domain[empty[0]]}"


def position_cases(target: Target, prop: Property, device: str, dtypes: tuple[str, ...] | None) -> Strategy:
    """Cases for one property of one target of positions."""
    read = position_fields(target)
    tables = {name: table for name, table in FIELDS[target.contract].items() if name in read}
    for name, value in prop.domain.items():
        if name in tables:
            tables[name] = value if isinstance(value, tuple) else (value,)
    tables = narrowed(target, tables)
    drawn: list[Strategy] = []
    for dtype in prop.drawn_types(target.dtypes, dtypes):
        largest = largest_angle(target, dtype)
        own = {name: representable(name, table, largest) for name, table in tables.items()}
        if not all(own.values()):
            continue
        fields: dict[str, Strategy] = {name: pick(table) for name, table in own.items()}
        fields |= {"dtype": st.just(dtype), "seed": natural(2**31)}
        if device != "cpu":
            fields["device"] = st.just(device)
        drawn += [record(Case, fields)] * 24
        if target.contract == "sinusoidal" and "queries" not in prop.domain and not target.supports.max_length:
            few = {
                "queries": pick(representable("queries", LONG, largest)),
                "dim": pick([d for d in own["dim"] if d <= max(4, min(own["dim"]))]),
            }
            if 0 in prop.table("offset", (0,)):
                few["offset"] = st.just(0)
            drawn += [record(Case, fields | few)]
    return independent(either(drawn))


def largest_angle(target: Target, dtype: str) -> float:
    """The largest number of the type in which a target declares to compute its angles."""
    kind = target.supports.kind(dtype)
    return (arithmetic(kind, dtype) if kind else default_arithmetic(dtype)).max_acc


def representable(name: str, table: tuple[Any, ...], largest: float) -> tuple[Any, ...]:
    """The part of a table that does not overflow there: float16 ends at 65,504, and positions go on from the offset."""
    room = {"offset": largest / 2, "base": largest, "queries": largest / 2}.get(name)
    return table if room is None else tuple(x for x in table if x is None or x < room)


def narrowed(target: Target, tables: dict[str, tuple[Any, ...]]) -> dict[str, tuple[Any, ...]]:
    """The tables without what the target declares not to support."""
    supports = target.supports
    longest = supports.max_length or 2**62
    if supports.head_dims and "dim" in tables:
        tables = tables | {"dim": supports.head_dims}
    if not supports.odd_dim and target.contract == "sinusoidal":
        tables = tables | {"dim": tuple(d for d in tables["dim"] if d % 2 == 0) or (2,)}
    if not supports.zero_sizes and "queries" in tables:
        tables = tables | {"queries": tuple(n for n in tables["queries"] if n)}
    if supports.max_length and target.contract in ("sinusoidal", "rotary", "learned"):
        tables = tables | {"queries": tuple(n for n in tables["queries"] if 8 * n <= longest) or (1,)}
        if "offset" in tables:  # scattered positions lie within 4 L of the offset
            tables = tables | {"offset": tuple(p for p in tables["offset"] if 2 * p <= longest) or (0,)}
    return tables
