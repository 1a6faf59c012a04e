"""The register of mutants and honest variants: what each one is, where its mistake happened, what must catch it."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Function = Callable[..., Any]

# The chapters of the field guide, a folder each, and their themes, a file each. The order is the order of MUTANTS.
CHAPTERS = {
    "attention": "trivial masks mask_shapes causal empty_rows heads layouts scaling softmax values numerics biases tiles splits state shapes "
    "features returned gradients gradient_routes backward_features teaching last_bits last_bits_backward",
    "multihead": "layers layer_weights layer_masks appended layer_gradients",
    "block": "encoders encoder_masks decoders last_bits_layers block_gradients",
    "position": "sinusoids rotations lookups distances last_bits_positions",
    "pack": "packs last_bits_packs",
    "cache": "caches cache_memory last_bits_caches",
    "linear": "linear",
    "module": "module_heads module_images module_masks module_state module_caches module_gradients",
}
HONEST_CHAPTERS = {
    "attention": "honest honest_forms honest_conventions honest_gradients honest_features",
    "cache": "honest_caches",
    "block": "honest_blocks",
    "module": "honest_modules",
}
THEMES = {theme: chapter for chapter, themes in CHAPTERS.items() for theme in themes.split()}
HONEST_THEMES = {theme: chapter for chapter, themes in HONEST_CHAPTERS.items() for theme in themes.split()}

WIDE = {"float64": "same", "float32": "same", "float16": "wide", "bfloat16": "wide"}
SUPPORTS = {
    "framework": "torch",
    "arithmetic": WIDE,
    "causal": "top-left",
    "empty_rows": "zero",
    "masked_nan": "contained",
}

_NONE = inspect.Parameter.empty
_KEYWORD = inspect.Parameter.KEYWORD_ONLY
_POSITIONAL = inspect.Parameter.POSITIONAL_OR_KEYWORD


def _signature(positional: str, keywords: Mapping[str, Any]) -> inspect.Signature:
    """The signature of a contract: these arguments by position, those by keyword with these defaults."""
    first = [inspect.Parameter(name, _POSITIONAL) for name in positional.split()]
    return inspect.Signature(first + [inspect.Parameter(name, _KEYWORD, default=value) for name, value in keywords.items()])


_BLOCK = {"is_causal": False, "norm_first": False, "activation": "relu"}
SIGNATURES = {
    "attention": _signature("q k v", {"attn_mask": None, "is_causal": False, "scale": None, "enable_gqa": False}),
    "multihead": _signature(
        "query key value weights",
        {
            "num_heads": _NONE,
            "attn_mask": None,
            "key_padding_mask": None,
            "is_causal": False,
            "bias_k": None,
            "bias_v": None,
            "add_zero_attn": False,
            "need_weights": True,
        },
    ),
    "encoder_layer": _signature("x weights", {"num_heads": _NONE, "attn_mask": None, "key_padding_mask": None, **_BLOCK}),
    "decoder_layer": _signature(
        "x memory weights",
        {
            "num_heads": _NONE,
            "attn_mask": None,
            "memory_mask": None,
            "key_padding_mask": None,
            "memory_key_padding_mask": None,
            **_BLOCK,
        },
    ),
    "sinusoidal": _signature("length dim", {"offset": 0, "base": 10000.0, "dtype": None}),
    "rotary": _signature("x positions", {"base": 10000.0, "rotary_dim": None}),
    "learned": _signature("table positions", {"offset": 0}),
    "slopes": _signature("num_heads", {"dtype": None}),
    "packed": _signature(
        "q k v cu_seqlens_q cu_seqlens_k",
        {"max_seqlen_q": None, "max_seqlen_k": None, "is_causal": False, "scale": None, "enable_gqa": False},
    ),
    "linear": _signature("q k v", {"is_causal": False}),
    "cached": _signature(
        "batch kv_heads dim capacity",
        {
            "num_heads": None,
            "value_dim": None,
            "dtype": None,
            "device": "cpu",
            "window_size": None,
            "page_size": None,
            "fill": 0.0,
            "rotary_base": None,
        },
    ),
    "buckets": _signature("relative_position", {"bidirectional": True, "num_buckets": 32, "max_distance": 128}),
}
POSITIONS = ("sinusoidal", "rotary", "learned", "slopes", "buckets")
PLAIN = {"framework": "torch", "arithmetic": WIDE}
# What the mutants of a contract support, where it is not SUPPORTS.
FACTS: dict[str, dict[str, Any]] = {
    "multihead": SUPPORTS
    | {"masked_nan": "leaks"},  # a projection spreads a NaN over all heads, also over those to which its key is visible
    "packed": PLAIN,
    "cached": PLAIN,
    "linear": PLAIN | {"contract": "linear"},  # the signature does not say
    **{name: {"framework": "torch"} for name in (*POSITIONS, "module")},
}


@dataclass(frozen=True)
class Variant:
    """A correct implementation that computes in an unusual way: nothing may flag it."""

    name: str  # theme.function
    idea: str  # what it does differently, in one line
    source: str  # where it is done so
    contract: str
    bug: str | None  # the row of the catalogue of bugs, where it was reported as one
    function: Function


@dataclass(frozen=True)
class Mutant:
    """An implementation wrong on purpose."""

    name: str  # theme.function
    mistake: str  # in one line, so that a reading can say "behaves like …"
    source: str  # "owner/repo#123" or "teaching code"
    killed_by: str  # the property that must catch it
    contract: str
    bug: str | None  # the row of the catalogue of bugs, where it has one
    function: Function


MUTANTS: dict[str, Mutant] = {}
HONEST: dict[str, Variant] = {}
MEMORY: dict[str, Any] = {}  # what mutants with a state remember between calls


def _prepare(function: Function, contract: str, supports: Mapping[str, Any] | None) -> str:
    """Give `function` its public signature and its `supports`; return its registered name."""
    parameters = inspect.signature(function).parameters.values()
    if contract in (*POSITIONS, "cached") or any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters):
        function.__signature__ = SIGNATURES[contract]  # type: ignore[attr-defined]
    function.supports = {**FACTS.get(contract, SUPPORTS), **(supports or {})}  # type: ignore[attr-defined]
    return f"{function.__module__.rpartition('.')[2]}.{function.__name__}"


def mutant(
    mistake: str,
    *,
    source: str,
    killed_by: str,
    contract: str = "attention",
    bug: str | None = None,
    supports: Mapping[str, Any] | None = None,
) -> Callable[[Function], Function]:
    """Register the decorated attention as wrong on purpose. It stays an ordinary function."""

    def register(function: Function) -> Function:
        name = _prepare(function, contract, supports)
        if name in MUTANTS:
            raise ValueError(f"two mutants are named {name}: rename one")
        MUTANTS[name] = Mutant(name, mistake, source, killed_by, contract, bug, function)
        return function

    return register


def honest(
    idea: str,
    *,
    source: str = "common practice",
    contract: str = "attention",
    bug: str | None = None,
    supports: Mapping[str, Any] | None = None,
) -> Callable[[Function], Function]:
    """Register the decorated attention as correct."""

    def register(function: Function) -> Function:
        name = _prepare(function, contract, supports)
        if name in HONEST:
            raise ValueError(f"two honest variants are named {name}: rename one")
        HONEST[name] = Variant(name, idea, source, contract, bug, function)
        return function

    return register


def forget() -> bool:
    """Make every mutant with a state start anew. Whether one had a state."""
    had = bool(MEMORY)
    MEMORY.clear()
    return had


def load_all() -> tuple[dict[str, Mutant], dict[str, Variant]]:
    """Import every theme; return (MUTANTS, HONEST), both in a stable order."""
    themes = THEMES | HONEST_THEMES
    for theme, chapter in themes.items():
        importlib.import_module(f".{chapter}.{theme}", __package__)
    rank = {theme: position for position, theme in enumerate(themes)}
    for table in (MUTANTS, HONEST):
        ordered = sorted(table.items(), key=lambda item: rank[item[0].partition(".")[0]])  # stable: file order within a theme
        table.clear()
        table.update(ordered)  # type: ignore[arg-type]
    return MUTANTS, HONEST
