"""A case of an encoder or decoder layer, and which cases are drawn for a property of such layers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from ..engine.cases.case import Case as BaseCase
from ..engine.cases.case import device_field, dtype_field, seed_field
from ..engine.cases.coordinates import Array
from ..engine.cases.draws import Strategy, either, independent, natural, pick, record
from ..engine.cases.field import FEW, OFF, PLAIN_LAYOUT, SHORT, field
from ..engine.cases.masks import AXES_REASONS, DENSITY_REASONS, KIND_REASONS, MASK_AXES, MASKS, PATTERN_REASONS, RANK_REASONS
from ..engine.core.contract import EVERY_TYPE, Topic
from ..engine.core.declare import Property
from ..engine.core.target import Target
from ..engine.frameworks import LAYOUT_REASONS, LAYOUTS

# Tokens: as drawn; small round numbers; far from zero; nearly constant; of very different size.
TOKENS: dict[str, Callable[[Array, Any], Array]] = {
    "normal": lambda x, case: x,
    "simple": lambda x, case: np.round(2 * x) / 2,
    "offset": lambda x, case: x + 30,
    "constant": lambda x, case: 1 + x / 64,
    "uneven_rows": lambda x, case: x * 2.0 ** (np.arange(x.shape[1]) % 9 - 4.0)[:, None],
}


LENGTHS = (1, *(2, 3, 4, 5, 6, 7, 8) * 4, 9, 15, 16, 17, 33, 65)


@dataclass(frozen=True, repr=False)
class Case(BaseCase):
    """One call: x (batch, queries, embed), memory (batch, keys, embed), with embed = kv_heads·dim."""

    batch: int = field(
        1,
        least=0,
        drawn=(1, 1, 2, 2, 3, 4),
        varied=(1, 2, 3),
        why="elements of a batch share nothing; padding differs from one to the next",
        often={(1, 2, 3): FEW},
    )
    kv_heads: int = field(
        1,
        least=0,
        drawn=(1, 2, 2, 3, 4, 8),
        varied=(1, 2, 3),
        why="heads share nothing: split or merged by a reshape without a transpose",
        unusual={(1, 3): "odd: PyTorch's native path takes even numbers only"},
        often={
            2: "the least that PyTorch's native path takes, and that can be exchanged",
            3: "other axes are 3 then as well, and may be exchanged",
        },
    )
    queries: int = field(
        1,
        least=0,
        drawn=LENGTHS,
        varied=(1, 2, 5, 17),
        why="tokens: the norm is over features, not over these (G05)",
        unusual={(33, 65): "beyond a tile", (9, 15, 17): "beside a tile"},
        often={(2, 3, 4, 5, 6, 7, 8): SHORT},
    )
    keys: int = field(
        1,
        least=0,
        drawn=LENGTHS,
        varied=(1, 2, 5, 17),
        why="decoder layers: tokens of the memory, more or fewer than those that read it (A17)",
        unusual={(33, 65): "beyond a tile", (9, 15, 17): "beside a tile"},
        often={(2, 3, 4, 5, 6, 7, 8): SHORT},
    )
    dim: int = field(
        1,
        least=0,
        drawn=(1, 2, 2, 3, 4, 4, 5, 8, 16),
        varied=(1, 3, 4, 8),
        why="features of a head: the scale is 1/sqrt of these, not of the width (D09)",
        often={(2, 4): "as many as heads or tokens: one axis taken for another", 3: "other axes are 3 then as well, and may be exchanged"},
    )
    hidden: int = field(
        1,
        least=1,
        drawn=(1, 2, 3, 4, 5, 8, 8, 16, 17, 33),
        varied=(1, 4, 8),
        unusual={(17, 33): "no power of two: a last partial tile"},
        often={8: "the width of the usual heads times features: one taken for the other is not noticed by its form"},
        why="features between the two linear maps of the feed-forward part: equal to the width, one taken for the other",
    )
    dtype: str = dtype_field()
    device: str = device_field()
    is_causal: bool = field(
        False,
        drawn=(False, True),
        varied=(False, True),
        needs="is_causal",
        says="causal",
        why="a hint of causality that some paths ignore, and others trust more than the mask (A33)",
    )
    mask: str = field(
        "none",
        choices=tuple(PATTERN_REASONS),
        varied=("none", "random", "everything"),
        needs="attn_mask",
        says="mask {}",
        why="which tokens see which: a float mask read as a bool one on the native path (pytorch#118628)",
        unusual=PATTERN_REASONS,
        often={
            "random": "every visible and every hidden token counts: most mistakes in masks show",
            "none": "the layer must not need one: whoever sees a token does so by causality alone",
        },
    )
    mask_kind: str = field(
        "bool",
        choices=tuple(KIND_REASONS),
        varied=("bool", "minus_infinity"),
        why="how visibility is said: polarities of bool masks differ from function to function",
        unusual=KIND_REASONS,
    )
    mask_axes: str = field(
        "LS",
        choices=tuple(AXES_REASONS),
        varied=("LS", "BHLS"),
        why="the axes along which the mask varies; the others have size 1",
        unusual=AXES_REASONS,
        often={"LS": "one mask for all, as it is mostly given"},
    )
    mask_rank: int = field(
        2,
        choices=(0, 1, 2, 3, 4),
        why="leading axes along which the mask does not vary are dropped down to this rank",
        unusual=RANK_REASONS,
    )
    mask_density: float = field(0.5, least=0, why="how much of a random mask is visible", unusual=DENSITY_REASONS)
    memory_mask: str = field(
        "none",
        choices=tuple(PATTERN_REASONS),
        varied=("none", "random", "everything"),
        needs="memory_mask",
        says="memory mask {}",
        why="decoder layers: which tokens of the memory are visible; taken for the mask of the tokens",
        unusual=PATTERN_REASONS,
        often={"random": "every visible and every hidden token counts: most mistakes in masks show"},
    )
    values: str = field(
        "normal",
        choices=("normal", *TOKENS),
        drawn=("normal", "normal", *TOKENS),
        varied=("normal", "simple"),
        says="values {}",
        why="what the tokens look like: far from zero and nearly constant ones cancel in the variance of a norm",
        unusual={
            "normal": "independent, mean 0, variance 1",
            "simple": "halves: exact sums, equal tokens",
            "offset": "far from zero: the variance as mean of squares minus square of the mean cancels",
            "constant": "nearly constant: the variance is near eps, and 0 in short types",
            "uneven_rows": "tokens of very different size: a norm over more than one token (G05)",
        },
        often={"normal": "mistakes in the order of sublayers show in any tokens, and are read most easily in these"},
    )
    magnitude: int = field(
        0,
        drawn=(0, 0, 0, 0, 1, 3, -3),
        why="tokens times 2**magnitude: a norm takes it out again, eps shows",
        unusual={
            (1, 3): "large beside what a sublayer adds: the residual taken after the norm instead of before it (G01)",
            -3: "small beside what a sublayer adds: a residual that is lost shows least, the sublayers most",
            (-6, -8): "a variance near eps or below: eps added to the deviation, or left out",
        },
        often={0: "numbers as drawn: one extreme at a time"},
    )
    layout: str = field(
        "contiguous",
        choices=tuple(LAYOUT_REASONS),
        drawn=("contiguous",) * 6 + LAYOUTS[2:7],
        varied=("contiguous", "transposed"),
        says="layout {}",
        why="how the tokens lie in memory: reshaped or flattened as if nothing lay between them",
        unusual=LAYOUT_REASONS,
        often={"contiguous": PLAIN_LAYOUT},
    )
    explicit: bool = field(
        False,
        drawn=(False, False, True),
        why="parameters are passed even where they have their default value: `is_causal=False` taken for given",
        often={False: "callers leave out what they do not need"},
    )
    with_bias: bool = field(
        True,
        drawn=(True, True, False),
        varied=(True, False),
        says="no biases",
        why="the maps and norms have biases, or none: bias=False leaves the paths that expect one (G06)",
        often={True: "a bias that is forgotten or added twice shows only where there is one"},
    )
    norm_first: bool = field(
        False,
        drawn=(False, True),
        varied=(False, True),
        needs="norm_first",
        why="norms before the sublayers, or after: the residual taken from the wrong side (G01)",
    )
    activation: str = field(
        "relu",
        choices=("relu", "gelu"),
        drawn=("relu", "gelu"),
        varied=("relu", "gelu"),
        needs="activation",
        why="the activation of the feed-forward part: gelu exact or by tanh",
        unusual={"relu": "negative numbers become 0", "gelu": "exact, by the error function, or by tanh: they differ in the fourth digit"},
        often={"gelu": "where a property is about the activation, of which there are two forms"},
    )
    padding: bool = field(
        False,
        drawn=(False, False, True),
        varied=(False, True),
        needs="key_padding_mask",
        says="padding",
        why="key_padding_mask is given: True is padding here, where True in a mask is seen",
        often={False: OFF},
    )
    memory_padding: bool = field(
        False,
        drawn=(False, False, True),
        varied=(False, True),
        needs="memory_key_padding_mask",
        says="memory padding",
        why="memory_key_padding_mask is given: lost when both are",
        often={False: OFF},
    )
    seed: int = seed_field()

    @property
    def heads(self) -> int:
        """Number of heads."""
        return self.kv_heads

    @property
    def empty(self) -> bool:
        """Whether some dimension is 0."""
        return 0 in (self.batch, self.kv_heads, self.queries, self.keys, self.dim)


# The order in which fields are drawn.
FIELDS: dict[str, tuple[Any, ...]] = {
    name: Case.fields()[name].drawn
    for name in (
        "batch",
        "queries",
        "kv_heads",
        "dim",
        "hidden",
        "with_bias",
        "values",
        "magnitude",
        "layout",
        "explicit",
        "keys",
        "is_causal",
        "norm_first",
        "activation",
        "padding",
        "memory_padding",
    )
}

# Sizes are drawn together: as above, or so that axes coincide and one may be taken for another.
ALIKE: dict[str, tuple[int, ...]] = {name: (1, 2, 2, 3, 3) for name in ("batch", "queries", "keys", "kv_heads", "dim")}
MEMORY_FIELDS = ("keys", "memory_mask", "memory_padding")  # what a decoder has and an encoder has not
PARAMETER_OF = {name: known.needs for name, known in Case.fields().items() if known.needs}
PATTERNS = (*MASKS,) * 2 + ("random",) * 4
NAMED = ("mask_kind", "mask_axes", "mask_rank", "mask_density")
DEFINITE = ("bool", "minus_infinity", "bias", "bias_and_minus_infinity")
NOT_FIELDS = {"dtypes", "dtype", *NAMED}
DRAWN = (*FIELDS, "mask", "memory_mask", "mask_kind", "mask_axes")
BLOCK = Topic("block", "encoder and decoder layers", Case, DRAWN, EVERY_TYPE)
ENCODER = Topic("encoder_layer", "encoder layers", Case, tuple(name for name in DRAWN if name not in MEMORY_FIELDS), EVERY_TYPE)
DECODER = Topic("decoder_layer", "decoder layers", Case, DRAWN, EVERY_TYPE)


def fixed(target: Target, name: str) -> Any:
    """What a field is where the target takes no parameter for it."""
    facts = {"norm_first": target.supports.norm_first, "activation": target.supports.activation}
    return facts.get(name, getattr(Case(), name))


def refused(target: Target, prop: Property, dtypes: tuple[str, ...] | None) -> str:
    """Why a property cannot be drawn for a target, empty if it can: it is about what the target does not do."""
    for name in ("norm_first", "activation"):
        values = prop.table(name, ())
        if name in prop.domain and name not in target.parameters and fixed(target, name) not in values:
            return f"is about {name} = {', '.join(map(str, values))}"
    if target.supports.head_dims and prop.domain.get("dim") and not set(_dims(target, prop)):
        return f"declared head_dims {target.supports.head_dims}"
    longest = target.supports.max_length
    for name in ("queries", "keys"):
        if longest and (least := min(prop.table(name, (1,)))) > longest:
            return f"declared max_length {longest}, it needs {least} {name}"
    return prop.untaken((*block_fields(target), "norm_first", "activation", "keys")) or prop.without_types(target.dtypes, dtypes)


def block_fields(target: Target) -> tuple[str, ...]:
    """The fields of a case that decide a call of this target."""
    contract, parameters = target.contract, target.parameters
    named = ("dtype", "seed", *FIELDS, "mask", "memory_mask", *NAMED)
    masked = "attn_mask" in parameters or "memory_mask" in parameters
    return tuple(
        name
        for name in named
        if (contract == "decoder_layer" or name not in MEMORY_FIELDS)
        and (name not in PARAMETER_OF or PARAMETER_OF[name] in parameters)
        and (name not in NAMED or masked)
    )


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
        chosen = {
            name: value if isinstance(value, tuple) else (value,)
            for name, value in prop.domain.items()
            if name not in NOT_FIELDS and (name in read or name not in (*PARAMETER_OF, *MEMORY_FIELDS))
        }
        tables |= chosen
        if supports.head_dims:
            tables["dim"] = tuple(_dims(target, prop))
        for name in ("queries", "keys"):
            if name in tables:
                tables[name] = tuple(n for n in tables[name] if n <= longest) or (1,)
        fields: dict[str, Strategy] = {name: pick(table) for name, table in tables.items()}
        fields |= {"dtype": pick(prop.drawn_types(target.dtypes, dtypes)), "seed": natural(2**31)}
        if device != "cpu":
            fields["device"] = st.just(device)
        for masks in _masks(target, prop, chosen):
            alone = "mask_kind" in masks and "is_causal" in fields and not supports.mask_and_causal
            causal = {"is_causal": st.just(False)} if alone else {}
            drawn += [record(Case, fields | masks | causal)] * share
    return independent(either(drawn))


def _dims(target: Target, prop: Property) -> list[int]:
    able = target.supports.head_dims or ()
    return [dim for dim in able if dim in prop.table("dim", able)]


def _masks(target: Target, prop: Property, chosen: dict[str, Any]) -> list[dict[str, Strategy]]:
    """Ways to mask: not at all, the tokens, the memory, or both; as far as the target takes masks and the property draws them."""
    supports = target.supports
    kinds = [kind for kind in prop.table("mask_kind", DEFINITE) if kind in supports.mask_kinds]
    axes = [a for a in prop.table("mask_axes", MASK_AXES) if a in supports.mask_axes]
    if not kinds or not axes:
        return [{}]
    how = {
        "mask_kind": pick(kinds),
        "mask_axes": pick(axes),
        "mask_rank": pick((2, 0, 1, 3, 4)),
        "mask_density": pick((0.5, 0.8, 0.2)),
    }
    names = [
        name
        for name in ("mask", "memory_mask")
        if PARAMETER_OF[name] in target.parameters and (target.contract == "decoder_layer" or name == "mask")
    ]
    free = [name for name in names if name not in chosen]
    always = {name: pick(chosen[name]) for name in names if name in chosen}
    said = how if any(chosen[name] != ("none",) for name in always) else {}
    ways: list[dict[str, Strategy]] = [{**always, **said}] * 2
    ways += [{**always, **how, name: pick(PATTERNS)} for name in free]
    if len(free) == 2:
        ways.append({**always, **how, **{name: pick(PATTERNS) for name in free}})
    return ways


def block_features(case: Case) -> Iterable[str]:
    """What a case exercises beyond the words of its fields."""
    yield "pre-norm" if case.norm_first else "post-norm"
    yield case.activation
    if case.mask != "none":
        yield f"{case.mask_kind} mask"
