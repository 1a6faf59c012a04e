"""Which cases are drawn for a property of caches: how many tokens, in which chunks, and what the cache is."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hypothesis import strategies as st

from ..engine.cases.case import PROGRAM, Case
from ..engine.cases.draws import Strategy, either, independent, natural, pick, record
from ..engine.core.declare import Property
from ..engine.core.target import Target
from ..engine.frameworks import LAYOUTS
from ..position.cases import position_dtypes
from .call import METHODS, chunk_sizes

TOKENS = (1, *(2, 3, 4, 5, 6, 7, 8, 9) * 3, 12, 15, 16, 17, 20, 24, 31, 33)
MANY = (2, 3, 4, *(40, 63, 64, 65, 70, 129) * 2)  # in large chunks, of few features; first small ones, to shrink to
IN_LARGE_CHUNKS = ((), (1, 0), (2, 0), (16,), (17,), (33, 16), (64, 1, 5), (5, 33), (63, 1, 1, 1, 16))
PREFILLS = (1, 2, 3, 4, 5, 7, 8, 15, 16, 17)
FIELDS: dict[str, tuple[Any, ...]] = {
    "batch": (1, 1, 2, 2, 3, 4),
    "kv_heads": (1, 1, 2, 3),
    "group": (1, 1, 2, 3),
    "keys": TOKENS,
    "dim": (1, *(2, 3, 4, 5, 8) * 2, 6, 16, 17, 32),
    "value_dim": (None, None, 1, 3, 4, 8),
    "spare": (0, 0, 0, 1, 3, 16),
    "page_size": (None, None, 1, 2, 3, 4, 5, 8, 16),
    "window_left": (None, None, 0, 1, 2, 3, 4, 7, 15),
    "base": (None, None, 10000.0, 10.0, 100.0, 500_000.0),
    "lengths": (False, False, True),
    "padded": (False, False, False, True),
    "values": ("normal", "normal", "normal", "near_ties", "one_hot", "simple", "rising", "positive"),
    "magnitude": (0, 0, 0, 1, -3),
    "layout": ("contiguous",) * 5 + tuple(x for x in LAYOUTS[1:] if x not in ("mixed", "expanded")),
}
# The parameter without which a field has no part.
PARAMETER_OF = {"group": "num_heads", "value_dim": "value_dim", "page_size": "page_size", "window_left": "window_size",
                "base": "rotary_base", "lengths": "lengths", "padded": "padding"}  # fmt: skip
EVERYWHERE = ("dtype", "seed", "chunks")


def cache_fields(target: Target) -> tuple[str, ...]:
    """The fields of a case that decide a call of this target."""
    parameters = target.parameters
    taken = (name for name in FIELDS if name not in PARAMETER_OF or PARAMETER_OF[name] in parameters)
    return (*EVERYWHERE, *taken, *(("program",) if set(METHODS) & set(parameters) else ()))


def refused(target: Target, prop: Property, dtypes: tuple[str, ...] | None) -> str:
    """Why a property cannot be drawn for a cache: its programs have nothing to do."""
    able = "program" not in prop.domain or set(METHODS) & set(target.parameters)
    return "" if able else f"the target takes no {' or '.join(METHODS)}"


def _chunks(prefills: tuple[int, ...], zero: bool) -> Strategy:
    """One shot, steps of one, a prefill and steps, or chunks of any size; where it can be, one of no token among them."""
    one = pick(prefills)
    ways: list[Strategy] = [
        st.just(()), st.just((1,)), st.just((1,)), st.tuples(one, st.just(1)), st.tuples(one, st.just(1)), st.tuples(one),
        st.tuples(one, one), st.tuples(one, one, st.just(1)), st.tuples(one, st.just(1), one),
    ]  # fmt: skip
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
    fields |= {"dtype": pick(position_dtypes(target, prop, dtypes)), "seed": natural(2**31)}
    if device != "cpu":
        fields["device"] = st.just(device)
    if "program" in prop.domain:
        words = pick([word for word in PROGRAM if word in target.parameters or (word == "back" and "fork" in target.parameters)])
        if "truncate" in target.parameters:
            fields.pop("window_left", None)  # what has left a window cannot be taken back
        fields["program"] = either([st.tuples(*[words] * count) for count in (1, 2, 3, 4, 6)])
    drawn = pick(prop.domain["chunks"]) if "chunks" in prop.domain else _chunks(PREFILLS, supports.zero_sizes)
    few = [record(Case, fields | {"chunks": drawn})] * 12
    if "keys" in prop.domain or max(MANY) > longest:
        return independent(either(few))
    small = {name: pick([n for n in tables[name] if n <= most] or tables[name][:1]) for name, most in (("dim", 5), ("batch", 2))}
    many = {**small, "keys": pick(MANY), "kv_heads": st.just(1), "chunks": drawn if "chunks" in prop.domain else pick(IN_LARGE_CHUNKS)}  # fmt: skip
    return independent(either([*few, record(Case, fields | many)]))


def cache_features(target: Target, case: Case) -> Iterable[str]:
    """What a case exercises, in the words of the report."""
    yield case.dtype
    sizes = chunk_sizes(case.chunks, case.keys)
    yield "one pass" if len(sizes) == 1 else "steps of one" if set(sizes) == {1} else "prefill and steps" if 1 in sizes else "chunks"
    if case.group > 1:
        yield "grouped heads"
    if case.width != case.dim:
        yield "Dv != D"
    if case.window_left is not None:
        yield "window"
        if case.keys > 2 * (case.window_left + 1):
            yield "window wrapped twice"
    for name, words in (("page_size", "pages"), ("base", "rotary"), ("lengths", "lengths"), ("padded", "left padding")):
        if getattr(case, name) not in (None, False):
            yield words
    if case.layout != "contiguous":
        yield f"layout {case.layout}"
    yield from case.program
