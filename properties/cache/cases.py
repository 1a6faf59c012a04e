"""A case of a cache for decoding, and which cases are drawn for a property: how many tokens, in which chunks, and what the cache is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from ..engine.cases.case import Case as BaseCase
from ..engine.cases.case import device_field, dtype_field, seed_field
from ..engine.cases.draws import Strategy, either, independent, natural, pick, record
from ..engine.cases.field import AS_DRAWN, FEW, OFF, PLAIN_LAYOUT, PLAIN_NUMBERS, SAME_WIDTH, SHORT, UNGROUPED, documented, field
from ..engine.cases.regimes import REGIMES
from ..engine.core.contract import EVERY_TYPE, Topic
from ..engine.core.declare import Property
from ..engine.core.schema import TRUE
from ..engine.core.target import Target
from ..engine.frameworks import LAYOUT_REASONS, LAYOUTS
from .call import METHODS

# What may happen between the chunks that a cache is fed → the mistake that it shows.
PROGRAM = {
    "fork": "a copy that shares memory with what it was copied from (F25)",
    "back": "the copy is used no more, and what it was copied from goes on: as if there had been no copy",
    "reset": "a reset that forgets half: the length, but not the tokens or the positions",
    "truncate": "tokens are taken back: their slots are read, or positions go on from where they were (F06)",
    "reorder": "beams not reordered, along another axis, or keys without values (F08)",
}
TOKENS = (1, *(2, 3, 4, 5, 6, 7, 8, 9) * 3, 12, 15, 16, 17, 20, 24, 31, 33)
MANY = (2, 3, 4, *(40, 63, 64, 65, 70, 129) * 2)  # in large chunks, of few features; first small ones, to shrink to
IN_LARGE_CHUNKS = ((), (1, 0), (2, 0), (16,), (17,), (33, 16), (64, 1, 5), (5, 33), (63, 1, 1, 1, 16))
PREFILLS = (1, 2, 3, 4, 5, 7, 8, 15, 16, 17)


@dataclass(frozen=True, repr=False)
class Case(BaseCase):
    """One cache: ``batch`` sequences of ``keys`` tokens, fed in chunks."""

    batch: int = field(
        1,
        least=0,
        drawn=(1, 1, 2, 2, 3, 4),
        varied=(1, 2, 3),
        why="sequences share nothing, and differ in length and padding (B06, F04)",
        often={(1, 2): FEW},
    )
    kv_heads: int = field(
        1,
        least=0,
        drawn=(1, 1, 2, 3),
        varied=(1, 2, 3),
        why="heads share nothing: a cache laid out as (tokens, heads) and read as (heads, tokens)",
        often={1: SHORT},
    )
    group: int = field(
        1,
        least=1,
        drawn=(1, 1, 2, 3),
        varied=(1, 2),
        needs="num_heads",
        says="grouped heads",
        why="query heads that share one key/value head: the cache holds those of keys alone (D06)",
        often={1: UNGROUPED},
    )
    keys: int = field(
        1,
        least=0,
        drawn=TOKENS,
        varied=(1, 2, 5, 17),
        why="tokens of a sequence: fewer, as many and more than a page, a window or a buffer has room for (B24)",
        unusual={
            (63, 64, 65, 129): "pages and windows of usual sizes are full",
            (9, 12, 15, 17, 20, 24, 31, 33, 40, 70): "pages of a few tokens end before, with or after the last one",
        },
        often={
            (2, 3, 4, 5, 6, 7, 8, 9): SHORT,
            (17, 40, 63, 64, 65, 70, 129): "full pages and windows; the other sizes of the table are there to shrink to",
        },
    )
    dim: int = field(
        1,
        least=0,
        drawn=(1, *(2, 3, 4, 5, 8) * 2, 6, 16, 17, 32),
        varied=(1, 3, 4, 8),
        why="features of a query: what a slot of the cache is wide",
        unusual={17: "no power of two: slots that are padded"},
        often={(2, 3, 4, 5, 8): SHORT},
    )
    value_dim: int | None = field(
        None,
        least=0,
        drawn=(None, None, 1, 3, 4, 8),
        needs="value_dim",
        why="None: the same as dim; else values are wider or narrower than keys: one buffer of one width for both (F07, F10)",
        often={None: SAME_WIDTH},
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
        unusual={0: "`window or None` takes 0 for none (A49)", (15, 40): "more than a page, less than the tokens"},
        often={None: "no window: nothing is thrown away, and what is forgotten otherwise shows"},
    )
    lengths: bool = field(
        False,
        drawn=(False, False, True),
        varied=(False, True),
        needs="lengths",
        says="lengths",
        why="how many of the tokens of a chunk are each sequence's own (B06): the rest is padding that must not be kept",
        often={False: OFF},
    )
    values: str = field(
        "normal",
        choices=tuple(REGIMES),
        drawn=("normal", "normal", "normal", "near_ties", "one_hot", "simple", "rising", "positive"),
        varied=("normal", "simple", "one_hot"),
        why="what the numbers look like: the weight of each kept token, and so what shows if it is lost",
        unusual=documented(REGIMES),
        often={"normal": PLAIN_NUMBERS},
    )
    magnitude: int = field(
        0,
        drawn=(0, 0, 0, 1, -3),
        why="q is multiplied by 2**magnitude: how unevenly the kept tokens weigh",
        unusual={1: "a few tokens take most of the weight", -3: "all tokens weigh nearly alike: one that is lost shows, wherever it stood"},
        often={0: AS_DRAWN},
    )
    layout: str = field(
        "contiguous",
        choices=tuple(LAYOUT_REASONS),
        drawn=("contiguous",) * 5 + tuple(x for x in LAYOUTS[1:] if x not in ("mixed", "expanded")),
        varied=("contiguous", "transposed"),
        says="layout {}",
        why="how the tokens lie in memory: a view that is kept instead of a copy (F25)",
        unusual=LAYOUT_REASONS,
        often={"contiguous": PLAIN_LAYOUT},
    )
    base: float | None = field(
        None,
        least=0,
        drawn=(None, None, 10000.0, 10.0, 100.0, 500_000.0),
        varied=(None, 100.0),
        needs="rotary_base",
        says="rotary",
        why="base of the rotation; None: it does not rotate. Rotated again when read back, or from position 0 in every chunk (F02)",
        unusual={
            10000.0: "the usual one",
            (10.0, 100.0): "small: all features turn visibly within a few tokens",
            500_000.0: "that of Llama 3: a constant 10000 in the decoding path",
        },
        often={None: "it does not rotate: mistakes of positions hide no others"},
    )
    chunks: tuple[int, ...] = field(
        (),
        varied=((), (1,), (2, 1)),
        why="tokens of each append, the last size again and again; (): all at once; a last size of 0: all the rest. "
        "One token each; a prefill, then one each; chunks of any size, one of no token among them: "
        "the causal corner is taken from the chunk instead of all tokens (B05, B21, B25)",
        unusual={
            (1,): "decoding from the first token on: with one query, is_causal=True sees key 0 alone (B02, B08)",
            ((1, 0), (2, 0)): "one or two tokens, then all others at once: several queries over what is kept (B05, B25)",
            (16,): "each chunk fills a page or a ring of usual size",
            (17,): "each chunk is one more than a page or a ring of usual size",
            (33, 16): "a prefill of two pages and a token, then whole pages that begin within one",
            (64, 1, 5): "a prefill that fills its pages, one step of decoding, then several tokens at once (B24)",
            (5, 33): "a short prefill, then chunks longer than all before them",
            (63, 1, 1, 1, 16): "one short of a full page, steps over its end (B24), then many tokens at once",
        },
        often={(1,): "decoding token by token, what caches are for"},
    )
    spare: int = field(
        0,
        least=0,
        drawn=(0, 0, 0, 1, 3, 16),
        varied=(0, 1, 5),
        why="slots beyond the tokens of the case: what was never written is read (B09, C08)",
        often={0: "the cache is filled to its last slot, where an index that is one too far leaves it"},
    )
    page_size: int | None = field(
        None,
        least=1,
        drawn=(None, None, 1, 2, 3, 4, 5, 8, 16),
        varied=(None, 1, 3),
        needs="page_size",
        says="pages",
        why="None: the parameter is not passed; else a last page that is partial, or full: an index within a page taken for one of the cache",
        often={
            None: "the default size of a page is what is mostly used",
            3: "no power of two, and smaller than most chunks: a chunk that lies in two pages",
        },
    )
    padded: bool = field(
        False,
        drawn=(False, False, False, True),
        varied=(False, True),
        needs="padding",
        says="left padding",
        why="the first chunk is padded on the left, each sequence in its own way: positions counted from the padding (F04, F05, F24)",
        often={False: OFF},
    )
    program: tuple[str, ...] = field(
        (),
        items=tuple(PROGRAM),
        why="what happens between the chunks",
        unusual=PROGRAM,
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
    """Why a property cannot be drawn for a cache: its programs have nothing to do, say; empty if it can."""
    if "programs" in prop.domain and not set(METHODS) & set(target.parameters):
        return f"the target takes no {' or '.join(METHODS)}"
    longest = target.supports.max_length
    if longest and (least := min(prop.table("keys", (1,)))) > longest:
        return f"declared max_length {longest}, it needs {least} keys"
    return prop.untaken(cache_fields(target)) or prop.without_types(target.dtypes, dtypes)


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
