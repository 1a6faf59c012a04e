"""Which cases are drawn for a property of encoder and decoder layers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hypothesis import strategies as st

from ..attention.inputs import MASK_AXES, MASKS
from ..engine.cases.case import Case
from ..engine.cases.draws import Strategy, either, independent, natural, pick, record
from ..engine.cases.dtypes import FLOAT_TYPES
from ..engine.core.declare import Property
from ..engine.core.target import Target
from ..engine.frameworks import LAYOUTS
from .trial import TOKENS

LENGTHS = (1, *(2, 3, 4, 5, 6, 7, 8) * 4, 9, 15, 16, 17, 33, 65)
FIELDS: dict[str, tuple[Any, ...]] = {
    "batch": (1, 1, 2, 2, 3, 4),
    "queries": LENGTHS,
    "kv_heads": (1, 2, 2, 3, 4, 8),
    "dim": (1, 2, 2, 3, 4, 4, 5, 8, 16),
    "hidden": (1, 2, 3, 4, 5, 8, 8, 16, 17, 33),
    "with_bias": (True, True, False),
    "values": ("normal", "normal", *TOKENS),
    "magnitude": (0, 0, 0, 0, 1, 3, -3),
    "layout": ("contiguous",) * 6 + LAYOUTS[2:7],
    "explicit": (False, False, True),
    "keys": LENGTHS,
    "is_causal": (False, True),
    "norm_first": (False, True),
    "activation": ("relu", "gelu"),
    "padding": (False, False, True),
    "memory_padding": (False, False, True),
}
# Sizes are drawn together: as above, or so that axes coincide and one may be taken for another.
ALIKE: dict[str, tuple[int, ...]] = {name: (1, 2, 2, 3, 3) for name in ("batch", "queries", "keys", "kv_heads", "dim")}
MEMORY_FIELDS = ("keys", "memory_mask", "memory_padding")  # what a decoder has and an encoder has not
PARAMETER_OF = {"is_causal": "is_causal", "norm_first": "norm_first", "activation": "activation", "padding": "key_padding_mask",
                "memory_padding": "memory_key_padding_mask", "mask": "attn_mask", "memory_mask": "memory_mask"}  # fmt: skip
PATTERNS = (*MASKS,) * 2 + ("random",) * 4
NAMED = ("mask_kind", "mask_axes", "mask_rank", "mask_density")
DEFINITE = ("bool", "minus_infinity", "bias", "bias_and_minus_infinity")
NOT_FIELDS = {"dtypes", "dtype", *NAMED}


def fixed(target: Target, name: str) -> Any:
    """What a field is where the target takes no parameter for it."""
    facts = {"norm_first": target.supports.norm_first, "activation": target.supports.activation}
    return facts.get(name, getattr(Case(), name))


def refused(target: Target, prop: Property, dtypes: tuple[str, ...] | None) -> str:
    """Why a property cannot be drawn for a target, empty if it can: it is about what the target does not do."""
    for name in ("norm_first", "activation"):
        about = prop.domain.get(name)
        values = about if isinstance(about, tuple) else (about,)
        if name in prop.domain and name not in target.parameters and fixed(target, name) not in values:
            return f"is about {name} = {', '.join(map(str, values))}"
    if target.supports.head_dims and prop.domain.get("dim") and not set(_dims(target, prop)):
        return f"declared head_dims {target.supports.head_dims}"
    return "" if block_dtypes(target, prop, dtypes) else "is about other dtypes"


def block_fields(target: Target) -> tuple[str, ...]:
    """The fields of a case that decide a call of this target."""
    contract, parameters = target.contract, target.parameters
    named = ("dtype", "seed", *FIELDS, "mask", "memory_mask", *NAMED)
    masked = "attn_mask" in parameters or "memory_mask" in parameters
    return tuple(
        name for name in named
        if (contract == "decoder_layer" or name not in MEMORY_FIELDS)
        and (name not in PARAMETER_OF or PARAMETER_OF[name] in parameters) and (name not in NAMED or masked)
    )  # fmt: skip


def block_cases(target: Target, prop: Property, device: str, dtypes: tuple[str, ...] | None) -> Strategy:
    """Cases for one property of one target. What it does not support is not drawn."""
    read = block_fields(target)
    supports, longest = target.supports, target.supports.max_length or 2**62
    drawn: list[Strategy] = []
    for share, sizes in ((3, {}), (1, ALIKE)):
        tables: dict[str, tuple[Any, ...]] = {name: table for name, table in (FIELDS | sizes).items() if name in read}
        tables |= {name: (fixed(target, name),) for name in ("norm_first", "activation") if name not in read}
        if supports.head_dims:
            tables["dim"] = supports.head_dims
        chosen = {name: value if isinstance(value, tuple) else (value,) for name, value in prop.domain.items()
                  if name not in NOT_FIELDS and (name in read or name not in (*PARAMETER_OF, *MEMORY_FIELDS))}  # fmt: skip
        tables |= chosen
        if supports.head_dims:
            tables["dim"] = tuple(_dims(target, prop))
        for name in ("queries", "keys"):
            if name in tables:
                tables[name] = tuple(n for n in tables[name] if n <= longest) or (1,)
        fields: dict[str, Strategy] = {name: pick(table) for name, table in tables.items()}
        fields |= {"dtype": pick(block_dtypes(target, prop, dtypes)), "seed": natural(2**31)}
        if device != "cpu":
            fields["device"] = st.just(device)
        for masks in _masks(target, prop, chosen):
            alone = "mask_kind" in masks and "is_causal" in fields and not supports.mask_and_causal
            causal = {"is_causal": st.just(False)} if alone else {}
            drawn += [record(Case, fields | masks | causal)] * share
    return independent(either(drawn))


def _dims(target: Target, prop: Property) -> list[int]:
    about = prop.domain.get("dim", target.supports.head_dims)
    return [dim for dim in target.supports.head_dims or () if dim in about]


def _masks(target: Target, prop: Property, chosen: dict[str, Any]) -> list[dict[str, Strategy]]:
    """Ways to mask: not at all, the tokens, the memory, or both; as far as the target takes masks and the property draws them."""
    supports = target.supports
    kinds = [kind for kind in prop.domain.get("mask_kind", DEFINITE) if kind in supports.mask_kinds]
    axes = [a for a in prop.domain.get("mask_axes", MASK_AXES) if a in supports.mask_axes]
    if not kinds or not axes:
        return [{}]
    how = {"mask_kind": pick(kinds), "mask_axes": pick(axes), "mask_rank": pick((2, 0, 1, 3, 4)), "mask_density": pick((0.5, 0.8, 0.2))}
    names = [name for name in ("mask", "memory_mask") if PARAMETER_OF[name] in target.parameters and
             (target.contract == "decoder_layer" or name == "mask")]  # fmt: skip
    free = [name for name in names if name not in chosen]
    always = {name: pick(chosen[name]) for name in names if name in chosen}
    said = how if any(chosen[name] != ("none",) for name in always) else {}
    ways: list[dict[str, Strategy]] = [{**always, **said}] * 2
    ways += [{**always, **how, name: pick(PATTERNS)} for name in free]
    if len(free) == 2:
        ways.append({**always, **how, **{name: pick(PATTERNS) for name in free}})
    return ways


def block_dtypes(target: Target, prop: Property, wanted: tuple[str, ...] | None = None) -> list[str]:
    """As for attention: the widest first and most often, unless the property is about every type."""
    about = prop.domain.get("dtype", tuple(FLOAT_TYPES))
    allowed = [d for d in FLOAT_TYPES if d in target.dtypes and d in about and (wanted is None or d in wanted)]
    return allowed if prop.domain.get("dtypes") == "all" or len(allowed) <= 1 else allowed[:1] * 3 + allowed[1:]


def block_features(target: Target, case: Case) -> Iterable[str]:
    """What a case exercises, in the words of the report."""
    yield case.dtype
    yield "pre-norm" if case.norm_first else "post-norm"
    yield case.activation
    if case.mask != "none":
        yield f"mask {case.mask}"
        yield f"{case.mask_kind} mask"
    if case.memory_mask != "none":
        yield f"memory mask {case.memory_mask}"
    for name in ("is_causal", "padding", "memory_padding"):
        if getattr(case, name):
            yield name.replace("_", " ").removeprefix("is ")
    if not case.with_bias:
        yield "no biases"
    if case.layout != "contiguous":
        yield f"layout {case.layout}"
    if case.values != "normal":
        yield f"values {case.values}"
    if target.contract == "decoder_layer" and case.queries != case.keys:
        yield "L > S" if case.queries > case.keys else "L < S"
