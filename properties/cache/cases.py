"""A case of a cache for decoding, and which cases are drawn for a property: how many tokens, in which chunks, and what the cache is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from ..engine.cases.case import Case as BaseCase
from ..engine.cases.case import device_field, dtype_field, seed_field
from ..engine.cases.draws import Strategy, either, independent, natural, pick, record
from ..engine.cases.field import field
from ..engine.cases.regimes import REGIMES
from ..engine.core.contract import EVERY_TYPE, Topic
from ..engine.core.declare import Property
from ..engine.core.schema import TRUE
from ..engine.core.target import Target
from ..engine.frameworks import LAYOUTS
from .call import METHODS

PROGRAM = ("fork", "back", "reset", "truncate", "reorder")  # what may happen between the chunks that a cache is fed
TOKENS = (1, *(2, 3, 4, 5, 6, 7, 8, 9) * 3, 12, 15, 16, 17, 20, 24, 31, 33)
MANY = (2, 3, 4, *(40, 63, 64, 65, 70, 129) * 2)  # in large chunks, of few features; first small ones, to shrink to
IN_LARGE_CHUNKS = ((), (1, 0), (2, 0), (16,), (17,), (33, 16), (64, 1, 5), (5, 33), (63, 1, 1, 1, 16))
PREFILLS = (1, 2, 3, 4, 5, 7, 8, 15, 16, 17)


@dataclass(frozen=True, repr=False)
class Case(BaseCase):
    """One cache: ``batch`` sequences of ``keys`` tokens, told in chunks."""

    batch: int = field(
        1,
        least=0,
        drawn=(1, 1, 2, 2, 3, 4),
        varied=(1, 2, 3),
        why="sequences share nothing, and differ in length and padding",
    )
    kv_heads: int = field(1, least=0, drawn=(1, 1, 2, 3), varied=(1, 2, 3), why="heads share nothing")
    group: int = field(
        1,
        least=1,
        drawn=(1, 1, 2, 3),
        varied=(1, 2),
        needs="num_heads",
        says="grouped heads",
        why="query heads that share one key/value head",
    )
    keys: int = field(
        1,
        least=0,
        drawn=TOKENS,
        varied=(1, 2, 5, 17),
        why="tokens of a sequence",
        unusual={
            (63, 64, 65, 129): "pages and windows of usual sizes are full",
            (9, 12, 15, 17, 20, 24, 31, 33, 40, 70): "pages of a few tokens end before, with or after the last one",
        },
    )
    dim: int = field(
        1,
        least=0,
        drawn=(1, *(2, 3, 4, 5, 8) * 2, 6, 16, 17, 32),
        varied=(1, 3, 4, 8),
        why="features of a query",
        unusual={17: "no power of two"},
    )
    value_dim: int | None = field(
        None,
        least=0,
        drawn=(None, None, 1, 3, 4, 8),
        needs="value_dim",
        why="None: the same as dim; else values are wider or narrower than keys",
    )
    dtype: str = dtype_field()
    device: str = device_field()
    window_left: int | None = field(
        None,
        least=0,
        drawn=(None, None, 0, 1, 2, 3, 4, 7, 15),
        varied=(None, 1, 5),
        needs="window_size",
        says="window",
        why="tokens seen before its own; None: all. A ring that wraps where it must not",
        unusual={0: "`window or None` takes 0 for none", (15, 40): "more than a page, less than the tokens"},
    )
    lengths: bool = field(
        False,
        drawn=(False, False, True),
        varied=(False, True),
        needs="lengths",
        says="lengths",
        why="how many of the tokens of a chunk are each sequence's own",
    )
    values: str = field(
        "normal",
        choices=tuple(REGIMES),
        drawn=("normal", "normal", "normal", "near_ties", "one_hot", "simple", "rising", "positive"),
        varied=("normal", "simple", "one_hot"),
        why="what the numbers look like",
    )
    magnitude: int = field(0, drawn=(0, 0, 0, 1, -3), why="q is multiplied by 2**magnitude")
    layout: str = field(
        "contiguous",
        choices=LAYOUTS,
        drawn=("contiguous",) * 5 + tuple(x for x in LAYOUTS[1:] if x not in ("mixed", "expanded")),
        varied=("contiguous", "transposed"),
        says="layout {}",
        why="how the tokens lie in memory",
    )
    base: float | None = field(
        None,
        drawn=(None, None, 10000.0, 10.0, 100.0, 500_000.0),
        varied=(None, 100.0),
        needs="rotary_base",
        says="rotary",
        why="base of the rotation; None: it does not rotate. Rotated again when read back, or from position 0 in every chunk",
    )
    chunks: tuple[int, ...] = field(
        (),
        varied=((), (1,), (2, 1)),
        why="tokens of each append, the last size again and again; (): all at once. Several tokens after a prefill",
        unusual={(0,): "a chunk of no token"},
    )
    spare: int = field(
        0,
        least=0,
        drawn=(0, 0, 0, 1, 3, 16),
        varied=(0, 1, 5),
        why="slots beyond the tokens of the case: what was never written is read",
    )
    page_size: int | None = field(
        None,
        least=1,
        drawn=(None, None, 1, 2, 3, 4, 5, 8, 16),
        varied=(None, 1, 3),
        needs="page_size",
        says="pages",
        why="None: the parameter is not passed; else a last page that is partial, or full",
    )
    padded: bool = field(
        False,
        drawn=(False, False, False, True),
        varied=(False, True),
        needs="padding",
        says="left padding",
        why="the first chunk is padded on the left, each sequence in its own way",
    )
    program: tuple[str, ...] = field(
        (), items=PROGRAM, why="what happens between the chunks: a fork that shares memory, a reset that forgets half"
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
        """Whether some dimension is 0, or some chunk but the last."""
        return 0 in (self.batch, self.kv_heads, self.keys, self.dim, self.width, *self.chunks[:-1])


# The order in which fields are drawn.
FIELDS: dict[str, tuple[Any, ...]] = {
    name: Case.fields()[name].drawn
    for name in (
        "batch",
        "kv_heads",
        "group",
        "keys",
        "dim",
        "value_dim",
        "spare",
        "page_size",
        "window_left",
        "base",
        "lengths",
        "padded",
        "values",
        "magnitude",
        "layout",
    )
}
CACHED = Topic("cached", "caches", Case, (*FIELDS, "chunks"), {**EVERY_TYPE, "programs": TRUE})
EVERYWHERE = ("dtype", "seed", "chunks")


def cache_fields(target: Target) -> tuple[str, ...]:
    """The fields of a case that decide a call of this target."""
    parameters, known = target.parameters, Case.fields()
    taken = (name for name in FIELDS if not known[name].needs or known[name].needs in parameters)
    return (*EVERYWHERE, *taken, *(("program",) if set(METHODS) & set(parameters) else ()))


def refused(target: Target, prop: Property, dtypes: tuple[str, ...] | None) -> str:
    """Why a property cannot be drawn for a cache: its programs have nothing to do."""
    if "programs" in prop.domain and not set(METHODS) & set(target.parameters):
        return f"the target takes no {' or '.join(METHODS)}"
    return prop.without_types(target.dtypes, dtypes)


def _chunks(prefills: tuple[int, ...], zero: bool) -> Strategy:
    """One shot, steps of one, a prefill and steps, or chunks of any size; where it can be, one of no token among them."""
    one = pick(prefills)
    ways: list[Strategy] = [
        st.just(()),
        st.just((1,)),
        st.just((1,)),
        st.tuples(one, st.just(1)),
        st.tuples(one, st.just(1)),
        st.tuples(one),
        st.tuples(one, one),
        st.tuples(one, one, st.just(1)),
        st.tuples(one, st.just(1), one),
    ]
    if zero:
        ways += [st.tuples(one, st.just(0), one), st.tuples(st.just(0), one, st.just(1))]
    return either(ways)


def cache_cases(target: Target, prop: Property, device: str, dtypes: tuple[str, ...] | None) -> Strategy:
    """Cases for one property of one cache."""
    supports, read = target.supports, cache_fields(target)
    tables = {name: table for name, table in FIELDS.items() if name in read}
    for name, value in prop.domain.items():
        if name in tables:
            tables[name] = value if isinstance(value, tuple) else (value,)
    if supports.head_dims:
        tables["dim"] = tuple(supports.head_dims)
        tables.pop("value_dim", None)
    if not supports.value_dim:
        tables.pop("value_dim", None)
    longest = supports.max_length or 2**62
    tables["keys"] = tuple(n for n in tables["keys"] if n <= longest) or (1,)
    fields: dict[str, Strategy] = {name: pick(table) for name, table in tables.items()}
    fields |= {"dtype": pick(prop.drawn_types(target.dtypes, dtypes)), "seed": natural(2**31)}
    if device != "cpu":
        fields["device"] = st.just(device)
    if "programs" in prop.domain:
        words = pick([word for word in PROGRAM if word in target.parameters or (word == "back" and "fork" in target.parameters)])
        if "truncate" in target.parameters:
            fields.pop("window_left", None)  # what has left a window cannot be taken back
        fields["program"] = either([st.tuples(*[words] * count) for count in (1, 2, 3, 4, 6)])
    drawn = pick(prop.domain["chunks"]) if "chunks" in prop.domain else _chunks(PREFILLS, supports.zero_sizes)
    few = [record(Case, fields | {"chunks": drawn})] * 12
    if "keys" in prop.domain or max(MANY) > longest:
        return independent(either(few))
    small = {name: pick([n for n in tables[name] if n <= most] or tables[name][:1]) for name, most in (("dim", 5), ("batch", 2))}
    many = {**small, "keys": pick(MANY), "chunks": drawn if "chunks" in prop.domain else pick(IN_LARGE_CHUNKS)}
    if "kv_heads" not in prop.domain:
        many["kv_heads"] = st.just(1)
    return independent(either([*few, record(Case, fields | many)]))
