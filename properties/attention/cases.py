"""Which cases of an attention are drawn for a property and a target: restricted, never filtered."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from ..engine.cases.case import Case as BaseCase
from ..engine.cases.draws import Strategy, either, independent, is_narrowed, natural, pick, record
from ..engine.cases.dtypes import FLOAT_TYPES
from ..engine.cases.masks import MASK_AXES, MASK_KINDS
from ..engine.cases.regimes import USUAL
from ..engine.core.contract import Topic
from ..engine.core.declare import Property, covers
from ..engine.core.schema import FLAG, TRUE, Wrong, number, one_of, table_of
from ..engine.core.supports import FEATURES, Supports
from ..engine.core.target import Target
from ..engine.frameworks import has_layout
from .axes import NATIVE, groups, known
from .case import Case
from .tables import ANY_SIZE, AS_TRIED, FEATURE_TABLES, LENGTHS, LONG_BOTH, MOST_DIMS, OF_MODELS, PROFILES


def wrong_least(value: Any) -> str:
    """What is wrong with ``at_least``: a table from sizes to the least of each, of which larger ones are drawn."""
    if not isinstance(value, Mapping) or not value:
        return f"is {value!r}; it can be a table, as in {{'keys': 2}}"
    for name, least in value.items():
        if name not in ANY_SIZE:
            return f"names {name!r}, which is no size that is drawn; it can name {', '.join(ANY_SIZE)}"
        if wrong := number(0, max(ANY_SIZE[name]))(least):
            return f"of {name} {wrong}"
    return ""


def wrong_pairs(value: Any) -> str:
    """What is wrong with ``alike``: pairs of sizes."""
    if not isinstance(value, tuple) or not value or not all(isinstance(pair, tuple) and len(pair) == 2 for pair in value):
        return f"is {value!r}; it can be pairs of sizes, as in (('queries', 'keys'),)"
    strange = [name for pair in value for name in pair if name not in ANY_SIZE]
    return f"names {strange[0]!r}, which is no size that is drawn; it can name {', '.join(ANY_SIZE)}" if strange else ""


def wrong_arithmetic(value: Any) -> str:
    """What is wrong with ``arithmetic``: a condition."""
    return "" if callable(value) else f"is {value!r}; it can be a function of the declared arithmetic"


# What the cases of an attention follow beside restrictions of their fields, and what is wrong with a value of it.
DIRECTIVES: dict[str, Wrong] = {
    "zero_sizes": FLAG,
    "dtypes": one_of(lambda: ("all", "overflowing")),
    "at_least": wrong_least,
    "alike": wrong_pairs,
    "masked": number(1),
    "features": table_of(lambda: FEATURES),
    "arithmetic": wrong_arithmetic,
    "writes": table_of(lambda: MASK_KINDS),
    "along": one_of(lambda: tuple(filter(None, MASK_AXES))),
    "widens": TRUE,
    "moves": TRUE,
    "fewer_heads": TRUE,
    "models": number(1),  # the share of cases with sizes as models have them, and of those with sizes as people try them
}
SPECIAL_DOMAIN = {*DIRECTIVES, "dtype"}  # of a property: not fields, or not drawn as such
ATTENTION = Topic("attention", "attention", Case, tuple(Case.fields()), DIRECTIVES, strategies=True)
UNSTEADY = "answers"  # under which it is told that a call is answered anew each time
BESIDE = "a mask beside is_causal, where one of them is taken alone"
# Of logits so large that a mask of −1e4, or of −1e5, hides nothing of few keys, and exp overflows where not the largest of a row is taken off.
LARGE_LOGITS: dict[str, Any] = {
    "magnitude": (12, 14, 15, 16),
    "queries": (1, 2, 3, 5),
    "keys": (*(2, 3, 4, 5) * 2, 65, 130, 300, 600),
    "dim": (3, 4, 8, 16, 64),
    "dtype": ("float64", "float32"),
    "values": "normal",
    "scale": None,
    "masked": 3,
}
# What every attention takes.
PLAIN_CALLS: dict[str, Any] = {
    "batch": (1, 2),
    "kv_heads": (1, 2),
    "group": 1,
    "queries": 5,
    "keys": 5,
    "dim": (8, 16, 32, 64, 128),
    "values": "normal",
    "magnitude": (0, 1),
    "mask": "none",
    "scale": None,
    "is_causal": False,
}
# Of a case as large as what a reference is called with: multiplications, a few seconds of the oracle, and numbers of keys and values.
MOST_WORK, MOST_NUMBERS = 2**29, 2**24
IN_WORDS = {
    "batch": "batch elements",
    "kv_heads": "heads of keys",
    "queries": "queries",
    "keys": "keys",
    "dim": "features",
    "value_dim": "features of values",
}
TAKEN_WITH = {
    "group": "enable_gqa",
    "scale": "scale",
    "is_causal": "is_causal",
    "mask": "attn_mask",
}  # field: parameter


def allowed_sizes(supports: Supports, name: str, table: Iterable[int], zero: bool = True) -> list[int]:
    """The sizes of a table that are allowed, in its order.

    Where lengths must be multiples, several are samples of a range, and become the next multiples; a single one is what a property is about.
    """
    if name in LENGTHS:
        multiple, longest, table = supports.length_multiple, supports.max_length, tuple(table)
        if len(set(table)) > 1:
            table = tuple(-(-size // multiple) * multiple for size in table)
        table = [size for size in table if size % multiple == 0 and (longest is None or size <= longest)]
    return [size for size in table if zero or size > 0]


def allowed_values(supports: Supports, name: str, table: Iterable[Any]) -> list[Any]:
    """The scales, or the groups of heads, of a table that are allowed, in its order."""
    if name == "scale":
        return [scale for scale in table if scale is None or scale_is_taken(supports, scale)]
    return [group for group in table if supports.groups is None or group in (1, *supports.groups)]


def scale_is_taken(supports: Supports, scale: float) -> bool:
    """Whether a scale may be given."""
    return {"not negative": scale >= 0, "positive": scale > 0, "not zero": scale != 0}.get(supports.scales, True)


def cases(target: Target, prop: Property, device: str = "cpu", dtypes: tuple[str, ...] | None = None) -> Strategy:
    """Cases for one property of one target. What the target does not support is not drawn."""
    supports, kind = target.supports, prop.topic.case
    zero = supports.zero_sizes and bool(prop.domain.get("zero_sizes", True))
    takes, known = target.parameters, Case.fields()
    fields: dict[str, Strategy] = {
        "dtype": pick(_dtypes(target, prop, dtypes)),
        **{name: pick(known[name].drawn) for name in ("values", "magnitude", "layout", "explicit")},
        "seed": natural(2**31),
    }
    if supports.memory:
        fields["layout"] = pick([layout for layout in known["layout"].drawn if layout in supports.memory] or ("contiguous",))
    if device != "cpu":
        fields["device"] = st.just(device)
    if "enable_gqa" in takes:
        fields["group"] = pick(allowed_values(supports, "group", known["group"].drawn))
    if "scale" in takes:
        fields["scale"] = pick(allowed_values(supports, "scale", known["scale"].drawn))
    more = {name: field for name, field in kind.fields().items() if name not in known}  # what a layer adds
    fields |= {name: pick(field.drawn) for name, field in more.items() if not field.needs or field.needs in takes}
    if supports.window:
        fields |= {field: st.just(size) for field, size in always(supports.window).items()}
    for name in prop.domain.get("features", ()):
        if name in takes:
            fields |= {field: pick(table) for field, table in feature_tables(prop, name).items()}
    masks: dict[str, Strategy] = {}
    if "attn_mask" in takes:
        masks = {
            "mask": pick(known["mask"].drawn),
            "mask_kind": pick([kind for kind in MASK_KINDS if kind in supports.mask_kinds]),
            "mask_axes": pick([axes for axes in ("LS", "S", *MASK_AXES) if axes in sayable(target, prop)] or (None,)),
            "mask_rank": pick(known["mask_rank"].drawn),
            "mask_density": pick(known["mask_density"].drawn),
        }
    causal: dict[str, Strategy] = {"is_causal": pick((False, True))} if "is_causal" in takes else {}
    chosen = {name: _strategy(value) for name, value in prop.domain.items() if name not in SPECIAL_DOMAIN}
    for name in ("batch", "kv_heads", "queries", "keys", "dim", "value_dim"):
        if name in chosen and isinstance(prop.domain[name], tuple):
            chosen[name] = pick(allowed_sizes(supports, name, prop.domain[name], zero))
    for name in ("scale", "group"):
        if name in chosen and isinstance(prop.domain[name], tuple):
            chosen[name] = pick(allowed_values(supports, name, prop.domain[name]) or (None if name == "scale" else 1,))
    if supports.head_dims:
        chosen.pop("dim", None)
    if supports.head_dims or not supports.value_dim:
        chosen.pop("value_dim", None)
    for name in MASK_FACTS:
        if name in chosen:
            chosen[name] = pick(mask_choices(target, prop, name) or (None,))
    for name, parameter in TAKEN_WITH.items():
        if parameter not in takes:
            chosen.pop(name, None)
    plain: list[Strategy] = []
    masked: list[Strategy] = []
    profiles = (*PROFILES, (2, LONG_BOTH)) if prop.exact else PROFILES
    if "models" in prop.domain:
        profiles = (*profiles, (prop.domain["models"], OF_MODELS), (prop.domain["models"], AS_TRIED))
    for share, profile in ((1, ANY_SIZE),) if is_narrowed("queries") else profiles:
        least: dict[str, int] = prop.domain.get("at_least", {})
        tables = {
            name: [size for size in allowed_sizes(supports, name, table, zero) if size >= least.get(name, 0)]
            for name, table in profile.items()
        }
        if not all(tables.values()):
            continue
        drawn = fields | {name: pick(table) for name, table in tables.items()}
        if profile is OF_MODELS:
            drawn["dtype"] = pick(_of_models(_dtypes(target, prop, dtypes)))
        if supports.head_dims:
            drawn["dim"] = _head_dim(supports.head_dims, tables["dim"])
        elif supports.value_dim:
            width = pick((None, *tables["dim"])) if is_narrowed("value_dim") else either((st.none(), st.none(), pick(tables["dim"])))
            drawn["value_dim"] = width
        as_called = profile in (OF_MODELS, AS_TRIED) and {*USUAL} <= {*prop.domain.get("values", USUAL)}
        here = chosen | {"values": pick(USUAL), "magnitude": pick((0,))} if as_called else chosen
        plain += [_finished(_build(kind, drawn | causal, here, without=masks), prop, supports)] * share
        both = supports.mask_and_causal
        with_mask = _build(kind, drawn | masks | (causal if both else {}), here, without=() if both else causal)
        masked += [_finished(with_mask, prop, supports)] * share
    if not masks or prop.domain.get("mask") == "none" or not _may_mask(target, prop):
        return independent(either(plain))
    if "attn_mask" in prop.needs:
        return independent(either(masked))
    if prop.domain.get("is_causal") is True and not supports.mask_and_causal:
        return independent(either(plain))
    return independent(either(plain + masked * prop.domain.get("masked", 1)))


def as_called(target: Target, arrays: Sequence[tuple[tuple[int, ...], str]]) -> tuple[dict[str, Any], str]:
    """The fields of a case that is a call with q, k and v of these shapes and types, of as many batch elements, heads, queries and features as are
    worth their time, and what is not tried of them. Nothing where they are no such call.
    """
    forms = [_in_axes(target.supports.layout, at, shape) for at, (shape, _) in enumerate(arrays)]
    if len(forms) != 3 or not all(forms):
        return {}, "they are no q, k and v in the axes in which it is called"
    q, k, v = forms
    batch, kv_heads, keys, dim = (k[letter] for letter in "bhld")
    queries, value_dim = q["l"], v["d"]
    alike = (q["b"], q["d"]) == (batch, dim) and kv_heads and q["h"] % kv_heads == 0 and [v[x] for x in "bhl"] == [k[x] for x in "bhl"]
    if not alike or len({dtype for _, dtype in arrays}) > 1:
        return {}, f"shapes {', '.join(str(tuple(shape)) for shape, _ in arrays)} do not go together"
    group = q["h"] // kv_heads
    if group > 1 and "enable_gqa" not in target.parameters:
        return {}, "queries have more heads than keys"
    share = min(MOST_NUMBERS / max(keys * (dim + value_dim), 1), 1)
    asked = {"dim": max(int(dim * share), 1), "value_dim": max(int(value_dim * share), 1), "queries": queries, "keys": keys}
    each = group * keys * (asked["dim"] + asked["value_dim"])
    if "lengths" in target.learned:  # as many queries as keys alone
        asked["queries"] = asked["keys"] = min(queries, math.isqrt(MOST_WORK * keys // max(each, 1)))
    else:
        asked["queries"] = min(queries, max(MOST_WORK // max(each, 1), 1))
    each = each * asked["queries"] * asked["keys"] // max(keys, 1)
    numbers = asked["keys"] * (asked["dim"] + asked["value_dim"])
    parts = max(min(MOST_WORK // max(each, 1), MOST_NUMBERS // max(numbers, 1)), 1)
    asked["kv_heads"] = min(kv_heads, parts)
    asked["batch"] = min(batch, max(parts // asked["kv_heads"], 1))
    sizes = (batch, kv_heads, queries, keys, dim, value_dim)
    fewer = [
        f"{asked[name]:,} of {size:,} {words}" for (name, words), size in zip(IN_WORDS.items(), sizes, strict=True) if asked[name] < size
    ]
    fields = {**asked, "group": group, "dtype": (arrays[0][1],), "values": ("gaussian", "uniform"), "magnitude": 0, "mask": "none"}
    return {**fields, "is_causal": False}, f"{', '.join(fewer)} at a time" if fewer else ""


def _in_axes(layout: str, at: int, shape: tuple[int, ...]) -> dict[str, int]:
    """The size of each letter of b, h, l and d in a shape of q, k or v; nothing where it does not have these axes. Without heads there is one."""
    axes = known(layout)
    form = (axes.queries, axes.keys or axes.queries, axes.values or axes.keys or axes.queries)[min(at, 2)]
    parts = groups(form, "h")
    if len(shape) == 3 and form in NATIVE:
        parts = ["b", "l", "d"]
    if len(parts) != len(shape) or axes.packed or axes.listed or not {"hd", "k"}.isdisjoint(parts):
        return {}
    letters = [part[0].replace("g", "h").replace("1", "l") for part in parts]
    return {"b": 1, "h": 1, "l": 1, **dict(zip(letters, shape, strict=True))}


def _of_models(dtypes: Sequence[str]) -> list[str]:
    """Types in which models compute, of which the exact answer costs less, too; most often float32, of which a bound tells most."""
    shorter = [dtype for dtype in dtypes if dtype != "float64"]
    return shorter + [dtype for dtype in shorter if dtype == "float32"] * 2 or ["float64"]


def _head_dim(dims: tuple[int, ...], table: Sequence[int]) -> Strategy:
    """One of the head dims that a target takes: of a table of a profile, of those that are drawn most, or any."""
    usual = [[dim for dim in sizes if dim in dims] for sizes in (table, MOST_DIMS)]
    return either([pick(sizes) for sizes in (*usual, dims) if sizes])


def refused(target: Target, prop: Property, dtypes: tuple[str, ...] | None) -> str:
    """Why no case of a property can be drawn for a target, in these dtypes if any are given; empty if one can."""
    if UNSTEADY in target.wrong:
        return "the target answers a call with other numbers each time"
    longest = target.supports.max_length
    for name in ("queries", "keys"):
        table = prop.domain.get(name)
        least = max(min(table) if isinstance(table, tuple) else table or 0, prop.domain.get("at_least", {}).get(name, 0))
        if longest is not None and least > longest:
            return f"declared max_length {longest}, it needs {least} {name}"
        multiple = target.supports.length_multiple
        sizes = (table,) if isinstance(table, int) else table
        if isinstance(sizes, tuple) and len(set(sizes)) == 1 and sizes[0] % multiple:
            return f"lengths are multiples of {multiple}, it needs {sizes[0]} {name}"
    for name in ("scale", "group"):
        values = prop.domain.get(name)
        if isinstance(values, tuple) and TAKEN_WITH[name] in prop.needs and not allowed_values(target.supports, name, values):
            return f"declared as not supported: {name} {' or '.join(map(str, values))}"
    if prop.edge == BESIDE and target.supports.mask_and_causal:
        return "the target takes a mask together with is_causal"
    if prop.edge == BESIDE and "mask and causal" in {**target.differs, **target.wrong}:
        return "what the target makes of a mask together with is_causal is known"
    if "width" in target.supports.default_scale and prop.domain.get("fewer_heads"):
        return "it asks for a head alone, and the scale of the target depends on how many there are"
    if target.supports.window and prop.domain.get("moves"):
        return "it moves tokens, and the target always has a window"
    about = prop.domain.get("dtype", tuple(FLOAT_TYPES))
    if not set(target.dtypes) & set(about):
        return f"the target takes no {' or '.join(about)}"
    if not drawable(target, prop):
        return "does not hold exactly in the declared arithmetic"
    if dtypes and not set(dtypes) & set(drawable(target, prop)):
        return f"is about {' or '.join(drawable(target, prop))}"
    for name in MASK_FACTS:
        if "attn_mask" in prop.needs and name in prop.domain and not mask_choices(target, prop, name):
            return f"declared as not supported: {name.replace('_', ' ')} {prop.domain[name]}"
    if unknown := [kind for kind in prop.domain.get("writes", ()) if kind not in target.supports.mask_kinds]:
        return f"declared as not supported: mask kind {', '.join(unknown)}"
    if {"along", "widens"} & set(prop.domain) and not sayable(target, prop):
        return f"declared as not supported: masks along {prop.domain.get('along', 'more axes than some')}"
    return prop.untaken(target.kind.fields(target))


def always(window: tuple[int, int]) -> dict[str, int | None]:
    """The fields of a case that say a window; -1 is no limit."""
    return {name: None if side < 0 else side for name, side in zip(("window_left", "window_right"), window, strict=True)}


def features(case: Case) -> Iterable[str]:
    """What a case exercises, in the words of the report."""
    yield case.dtype
    known = Case.fields()
    yield from (known[name].says.format(value) for name, value in case.differing().items() if name in known and known[name].says)
    if case.mask != "none":
        yield f"{case.mask_kind} mask"
        yield f"mask rank {case.mask_rank}"
        if case.is_causal:
            yield "mask and causal"
    if case.queries != case.keys:
        yield "L > S" if case.queries > case.keys else "L < S"
    if case.width != case.dim:
        yield "Dv != D"
    if case.window_left is not None or case.window_right is not None:
        yield "window"
    if case.empty:
        yield "zero size"


def varies(target: Target, prop: Property, case: Case, name: str) -> bool:
    """Whether another value of a field means another call of the target, one that the property is about."""
    if name.startswith("grad"):
        return name in prop.domain
    parameter = Case.fields()[name].needs if name in Case.fields() else ""
    if parameter in FEATURES and parameter not in prop.domain.get("features", ()):
        return False
    if name.startswith("mask") and (case.mask == "none" or (name == "mask" and case.is_causal and not target.supports.mask_and_causal)):
        return False
    if name == "dim" and target.supports.head_dims:
        return False
    return not parameter or parameter in target.parameters


def table(prop: Property, name: str) -> Any:
    """What a property draws for a field, where it has a say in it; None if it has none."""
    parameter = Case.fields()[name].needs if name in Case.fields() else ""
    return prop.domain.get(name, feature_tables(prop, parameter).get(name) if parameter in FEATURES else None)


def feature_tables(prop: Property, parameter: str) -> dict[str, tuple[Any, ...]]:
    """The fields of a case that say a feature, and the values that the property draws for them."""
    return FEATURE_TABLES[parameter][parameter in prop.needs]


def outside(target: Target, prop: Property, case: Case) -> str:
    """Why a property is not put to a case, which somebody wrote; empty if it can be.

    It is about other cases, or the target does not take such a call. A size may lie between those that are drawn.
    """
    supports = target.supports
    sizes = {
        "batch": case.batch,
        "kv_heads": case.kv_heads,
        "queries": case.queries,
        "keys": case.keys,
        "dim": case.dim,
        "value_dim": case.width,
    }
    if 0 in sizes.values():
        if not supports.zero_sizes:
            return "the target declares zero_sizes = false"
        if not prop.domain.get("zero_sizes", True):
            return "it is about arrays that are not empty"
    for name in ("layout", "grad_layout"):
        if not has_layout(target.framework, getattr(case, name)):
            return f"no array of {target.framework.name} lies in memory as {getattr(case, name)}"

    def free(name: str) -> bool:
        """The property has no say in a field that the target fixes, or that no mask makes use of."""
        fixed = (supports.head_dims and name in ("dim", "value_dim")) or (name == "value_dim" and not supports.value_dim)
        return bool(fixed) or (name.startswith("mask") and case.mask == "none")

    names = [name for name in target.kind.fields(target) if name != "dtype" and not free(name)]
    if why := prop.excludes(case, names):
        return why
    for name, least in prop.domain.get("at_least", {}).items():
        if sizes[name] < least:
            return f"it is about {name} from {least} on"
    return _not_taken(target, prop, case)


def _not_taken(target: Target, prop: Property, case: Case) -> str:
    """What of a case an attention does not take, or a property on attention is not about."""
    supports, takes, plain = target.supports, target.parameters, Case()
    for name, parameter in TAKEN_WITH.items():
        if getattr(case, name) != getattr(plain, name) and parameter not in takes:
            return f"the target takes no {parameter}"
    if "attn_mask" in prop.needs and prop.domain.get("mask") != "none" and case.mask == "none":
        return "it is about masks"
    if case.mask != "none":
        if case.is_causal and not supports.mask_and_causal:
            return "the target declares mask_and_causal = false"
        for name, able in MASK_FACTS.items():
            if getattr(case, name) not in able(target, prop):
                return f"the target declares {name.replace('_', ' ')} {able(target, prop)}"
    for parameter in FEATURE_TABLES:
        tables = feature_tables(prop, parameter)
        used = [name for name in tables if getattr(case, name) != getattr(plain, name)]
        if parameter == "window_size" and supports.window:
            if any(getattr(case, name) != side for name, side in always(supports.window).items()):
                return f"the target declares window {supports.window}"
            continue
        if used and parameter not in takes:
            return f"the target takes no {parameter}"
        if used and parameter == "window_size" and supports.windows == "symmetric" and case.window_left != case.window_right:
            return "the target declares windows symmetric"
        about = parameter in prop.domain.get("features", ())
        if used and not about:
            return f"it is not about {parameter}"
        covered = used and all(covers(table, getattr(case, name)) for name, table in tables.items())
        if about and parameter in prop.needs and tables and not covered:
            return f"it is about cases with {parameter}"
    if not all(size % supports.length_multiple == 0 for size in (case.queries, case.keys)):
        return f"the target declares length_multiple {supports.length_multiple}"
    if supports.head_dims and case.dim not in supports.head_dims:
        return f"the target declares head_dims {supports.head_dims}"
    if case.scale is not None and not scale_is_taken(supports, case.scale):
        return f"the target declares scales {supports.scales}"
    if not allowed_values(supports, "group", [case.group]):
        return f"the target declares groups {supports.groups}"
    if case.width != case.dim and (supports.head_dims or not supports.value_dim):
        return "the target declares value_dim = false"
    return "" if case.dtype in drawable(target, prop) else f"it is not about {case.dtype}"


def _build(kind: type[BaseCase], fields: dict[str, Strategy], chosen: dict[str, Strategy], without: Iterable[str] = ()) -> Strategy:
    return record(kind, fields | {name: value for name, value in chosen.items() if name not in without})


def _finished(case: Strategy, prop: Property, supports: Supports) -> Strategy:
    """The cases with, every other time, the second size of a pair made the first, if it may be: one axis may be taken for another.

    And where a property is about windows, none without one; where there always is one, no more queries than keys, most of which see nothing.
    """
    if supports.window and not set(LENGTHS) & set(prop.domain):
        case = case.map(lambda c: replace(c, queries=min(c.queries, c.keys), keys=max(c.queries, c.keys)))
    if "window_size" in prop.needs and "window_size" in prop.domain.get("features", ()):
        case = case.map(lambda c: replace(c, window_right=1) if c.window_left is c.window_right is None else c)
    if supports.windows == "symmetric":
        case = case.map(lambda c: replace(c, window_left=_side(c), window_right=_side(c)))

    def alike(c: Case, same: bool, one: str, other: str) -> Case:
        size = getattr(c, one)
        return replace(c, **{other: size}) if same and (other not in LENGTHS or _length(supports, size)) else c

    for one, other in prop.domain.get("alike", ()):
        case = st.builds(alike, case, pick((False, True)), st.just(one), st.just(other))
    return case


def _side(case: Case) -> int | None:
    """Of the keys that a window shows on each side of a query's own the number that is said; None where there is no window."""
    return case.window_right if case.window_left is None else case.window_left


def _length(supports: Supports, size: int) -> bool:
    """Whether there may be so many queries, or keys."""
    return size % supports.length_multiple == 0 and (supports.max_length is None or size <= supports.max_length)


def _strategy(value: Any) -> Strategy:
    if isinstance(value, st.SearchStrategy):
        return value
    return pick(value) if isinstance(value, tuple) else st.just(value)


def mask_choices(target: Target, prop: Property, name: str) -> list[str]:
    """The kinds or axes of masks that the property is about and the target supports."""
    about = prop.domain.get(name, ())
    return [choice for choice in (about if isinstance(about, tuple) else (about,)) if choice in MASK_FACTS[name](target, prop)]


def _may_mask(target: Target, prop: Property) -> bool:
    """Whether there is a mask that the target takes and the property is about."""
    return all(mask_choices(target, prop, name) for name in MASK_FACTS if name in prop.domain) and bool(sayable(target, prop))


def sayable(target: Target, prop: Property) -> tuple[str, ...]:
    """The axes along which the masks that are given may vary, so that the target takes the masks that the property writes, too."""
    taken, along = target.supports.mask_axes, set(prop.domain.get("along", ""))
    if prop.domain.get("widens"):
        return tuple(axes for axes in taken if any(set(axes) < set(other) for other in taken))
    return tuple(axes for axes in taken if any(along | set(axes) <= set(other) for other in taken))


MASK_FACTS: dict[str, Callable[[Target, Property], tuple[str, ...]]] = {
    "mask_kind": lambda target, prop: target.supports.mask_kinds,
    "mask_axes": sayable,
}


def drawable(target: Target, prop: Property) -> list[str]:
    """The dtypes of the target that the property is about, and in whose declared arithmetic it holds, widest first."""
    about = prop.domain.get("dtype", tuple(FLOAT_TYPES))
    holds = prop.domain.get("arithmetic", lambda arithmetic: True)
    return [d for d in FLOAT_TYPES if d in target.dtypes and d in about and holds(target.supports.declared(d))]


def _dtypes(target: Target, prop: Property, wanted: tuple[str, ...] | None) -> list[str]:
    """float64 first and most often: a fault of meaning shows there 5e8 times earlier than in float32.

    Properties of the arithmetic itself (``dtypes="all"``) draw every type alike.
    """
    allowed = [d for d in drawable(target, prop) if wanted is None or d in wanted]
    if prop.domain.get("dtypes") == "all" or len(allowed) == 1:
        return allowed
    if prop.domain.get("dtypes") == "overflowing":
        return allowed + [d for d in allowed for _ in range({"float16": 4, "bfloat16": 2}.get(d, 0))]  # float16 ends at 65504
    return allowed[:1] * 3 + allowed[1:]
