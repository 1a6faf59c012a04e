"""What a target can do and which conventions it follows: facts that restrict what is generated, and claims that are tested."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...exact.arithmetic import KINDS, Arithmetic, arithmetic, default_arithmetic
from ..cases.case import shortened
from ..cases.dtypes import DTYPES
from ..cases.masks import MASK_AXES, MASK_KINDS
from ..frameworks import LAYOUTS
from .contract import contracts
from .schema import FLAG, LARGEST, NAME, POSITIVE, TEXTS, Key, checked, in_toml, number, one_of, optional, sides, sizes, some_of

FEATURES = ("window_size", "softcap", "alibi_slopes", "sinks", "kv_lengths", "return_lse")
PARAMETERS = ("attn_mask", "is_causal", "scale", "enable_gqa", "dropout_p", *FEATURES, "key_padding_mask", "need_weights")
# What others call them.
MEANT = {
    "mask": "attn_mask",
    "attention_mask": "attn_mask",
    "bias": "attn_mask",
    "attn_bias": "attn_mask",
    "causal": "is_causal",
    "softmax_scale": "scale",
    "sm_scale": "scale",
    "scaling": "scale",
    "gqa": "enable_gqa",
    "dropout": "dropout_p",
    "attn_dropout": "dropout_p",
    "window": "window_size",
    "sliding_window": "window_size",
    "soft_cap": "softcap",
    "logits_soft_cap": "softcap",
    "logit_softcap": "softcap",
    "alibi": "alibi_slopes",
    "slopes": "alibi_slopes",
    "sink": "sinks",
    "s_aux": "sinks",
    "lengths": "kv_lengths",
    "seqlens": "kv_lengths",
    "kv_seqlens": "kv_lengths",
    "seqused_k": "kv_lengths",
    "return_softmax_lse": "return_lse",
    "return_attn_probs": "return_lse",
    "padding_mask": "key_padding_mask",
    "return_weights": "need_weights",
    "output_attentions": "need_weights",
}
A_SCALE = re.compile(r"((?=[\d.]*[1-9])\d+(?:\.\d+)?)(?:/(sqrt\()?(dim|width|[1-9]\d*(?=\)))(?(2)\)))?")  # 2/sqrt(dim), 8/dim, 0.3
FOURTH_ROOT = "1/sqrt(sqrt(dim))"  # of queries alone, where keys are to be scaled as well
CHOICES: dict[str, tuple[str, ...]] = {
    "layout": ("bhld", "blhd"),
    "causal": ("top-left", "bottom-right"),
    "scales": ("any", "not negative", "positive", "not zero"),
    "windows": ("any", "symmetric"),
    "default_scale": ("1/sqrt(dim)", "1", "1/dim"),
    "result": ("same", "wider"),
    "empty_rows": ("zero", "nan", "mean", "all"),
    "masked_nan": ("contained", "leaks"),
    "returned_weights": ("per head", "mean"),
    "pairing": ("interleaved", "half"),
    "activation": ("relu", "gelu"),
    "gelu": ("erf", "tanh"),
}


@dataclass(frozen=True)
class Supports:
    """Capabilities first, the dialect second. None means: found out from the signature or by one call."""

    framework: str | None = None  # `"numpy"`, `"torch"`, `"jax"` or `"mlx"`: whose arrays it takes; found out by one call
    devices: tuple[str, ...] = ("cpu", "cuda")  # where it runs; for the record, `--device` chooses
    # of float64, float32, float16, bfloat16; found out by one call each. One that is declared and fails is an error, one that is found out
    # to fail is told as not tried
    dtypes: tuple[str, ...] | None = None
    parameters: tuple[str, ...] | None = None  # keyword arguments that may be used, where the signature does not say
    layout: str = "bhld"  # bhld: (batch, heads, length, dim); blhd: (batch, length, heads, dim)
    head_dims: tuple[int, ...] | None = None  # the head dimensions it is built for, such as `[64, 128]`
    max_length: int | None = None  # the longest sequence worth trying, for a slow target
    length_multiple: int = 1  # the numbers of queries and of keys are multiples of it
    # every query sees so many keys before its own and so many behind it, always; -1: no limit. For what has no such argument
    window: tuple[int, int] | None = None
    windows: str = "any"  # which windows may be given: any, or symmetric, as many keys behind a query's own as before it
    groups: tuple[int, ...] | None = None  # how many query heads may share a head of keys, such as `[1, 2, 4, 8]`
    scales: str = "any"  # which scales may be given: any, not negative, positive, not zero
    value_dim: bool = True  # v may have another number of features than q and k
    zero_sizes: bool = True  # any dimension may be 0
    memory: tuple[str, ...] | None = None  # the ways in which arrays may lie in memory, such as `["contiguous"]`; others raise
    rows_without_keys: bool = True  # a row may see no key; false: such calls raise
    non_finite: bool = True  # q, k and v may hold NaN and infinities; false: such calls raise
    mask_and_causal: bool = True  # a mask and is_causal may be given together
    returns_weights: bool = True  # layers: the attention weights are returned beside the output
    mask_kinds: tuple[str, ...] = MASK_KINDS  # lowest: the lowest finite number instead of −∞
    mask_axes: tuple[str, ...] = MASK_AXES  # the axes along which a mask may vary; the others have size 1 or are left out
    # the least number of axes of a mask; one of fewer gets leading axes of size 1. 2 for what reads `mask.shape[-2]`, as PyTorch does;
    # 4 for what takes (batch, heads, queries, keys) alone
    mask_rank: int = 0
    causal: str = "top-left"  # bottom-right: query i of L sees the keys up to i + S − L
    # of the logits where a call gives none; 1 of T5, 8/dim of muP, 1/sqrt(64) of one head dim, 1/sqrt(width) of all heads side by side
    default_scale: str = "1/sqrt(dim)"
    result: str = "same"  # the dtype of the output: that of the queries, or a wider one
    returned_weights: str = "per head"  # weights that come back beside the output: (B, H, L, S), or mean: (B, L, S), their mean over heads
    empty_rows: str = "zero"  # what a row gives that sees no key
    empty_rows_added: str | None = None  # likewise where what hides the keys is added to the logits; None: the same
    masked_nan: str = "leaks"  # NaN in a hidden key or value may reach the rows of its own batch element; contained: it reaches nothing
    # the size of what hidden logits are given or get added, where that is not −∞ and visible ones may come near it
    fill: float | None = None
    # what is rounded to what: one kind for all dtypes, or a table from dtype to kind. `same`: all in the dtype
    # itself; with `+lse`: parts may be merged through their log-sum-exp; `fused`: half-precision inputs and weights, float32 scores;
    # `eager`: scores, weights and results stored in the dtype, sums in float32; `stored`: every step of a softmax by hand, too, each sum
    # rounded once (halves that are summed in halves, as by NumPy's `einsum` or in a state that grows block by block, are `same`); `wide`:
    # all in the next wider type; `tf32`
    arithmetic: Mapping[str, str] | None = None
    # every new shape costs far more than a call, since it is compiled, or tuned: a few are kept for a run, another `--round` has others;
    # found out by two calls
    costly_shapes: bool | None = None
    # what a handshake has told of it, in its words, as `--write-supports` keeps it: what is told otherwise is a finding
    spoken: Mapping[str, str] | None = None
    gradients: bool | None = None  # flow to q, k, v (PyTorch, JAX), so that those of the theme `gradients` are tried; found out by one call
    bias_gradients: bool | None = None  # likewise, to an additive mask
    contract: str | None = None  # what it is; asked of the signature
    pairing: str = "interleaved"  # positions, rotary caches: features 2i and 2i + 1 form a pair; half: i and i + dim/2
    odd_dim: bool = True  # sinusoids: dim may be odd
    norm_first: bool = False  # encoder and decoder layers that take no such parameter: their norms stand before the sublayers
    activation: str = "relu"  # likewise
    gelu: str = "erf"  # what their gelu is: exact, or approximated by tanh
    eps: float = 1e-5  # of their norms

    @classmethod
    def read(cls, declared: Mapping[str, Any]) -> Supports:
        """From a plain mapping. Raises ValueError with one sentence for an unknown key or value."""
        checked("supports", declared, SCHEMA)
        return cls(**{key: _value(key, value) for key, value in declared.items()})

    @classmethod
    def in_file(cls, path: str | Path) -> dict[str, Any]:
        """What a TOML file declares, at its top level or in a table ``[supports]``. Raises ValueError as ``read`` does."""
        content = in_toml(path)
        declared: dict[str, Any] = content.get("supports", content)
        if "supports" in content and len(content) > 1:
            raise ValueError(
                f"{path}: {next(key for key in content if key != 'supports')!r} stands outside of its table [supports]; put it there"
            )
        cls.read(declared)
        return declared

    def declared(self, dtype: str) -> Arithmetic:
        """The declared arithmetic, or the loosest sane one."""
        kind = self.kind(dtype)
        return arithmetic(kind, dtype) if kind else default_arithmetic(dtype)

    def kind(self, dtype: str) -> str | None:
        """The declared kind of arithmetic for a dtype, None if nothing is declared."""
        return (self.arithmetic or {}).get(dtype)


def _wrong_arithmetic(value: Any) -> str:
    kinds = _kinds(value)
    fits = bool(kinds) and all(isinstance(kind, str) and _has(dtype, kind) for dtype, kind in kinds.items())
    return "" if fits else f"maps dtypes to kinds, {KINDS}, got {value!r}"


def _kinds(value: Any) -> dict[str, Any]:
    """A single kind is that of every dtype that has it: tf32 is one of float32 alone."""
    if isinstance(value, str):
        return {dtype: value for dtype in DTYPES if _has(dtype, value)}
    return dict(value) if isinstance(value, Mapping) else {}


def _has(dtype: str, kind: str) -> bool:
    try:
        return bool(arithmetic(kind, dtype))
    except (ValueError, KeyError, TypeError):
        return False


def _wrong_scale(value: Any) -> str:
    """One of the words, a multiple of one, or one over the root of a number, as of a kernel that is right for one head dim alone."""
    if value == FOURTH_ROOT:
        return ""
    if isinstance(value, str) and A_SCALE.fullmatch(value):
        try:
            fits = 0 < scale_of(value, 1, 1) < math.inf
        except (OverflowError, ValueError):  # numbers of hundreds and of thousands of digits
            fits = False
        return "" if fits else f"is {shortened(value)}, whose numbers are too long"
    return f"{one_of(lambda: CHOICES['default_scale'])(value)}, '2/sqrt(dim)', or '1/sqrt(64)' for every head dim"


def scale_of(text: str, dim: int, heads: int) -> float:
    """The factor of the logits that a ``default_scale`` means for a head dim and so many of queries; none counts as one."""
    if text == FOURTH_ROOT:
        return float(max(dim, 1) ** -0.25)
    by, root, of = A_SCALE.fullmatch(text).groups()  # type: ignore[union-attr]
    sizes = {None: 1, "dim": max(dim, 1), "width": max(dim * heads, 1)}
    over = sizes[of] if of in sizes else int(of)
    return float(by) * over ** (-0.5 if root else -1.0)


def _word(key: str) -> Key:
    return Key(one_of(lambda: CHOICES[key]))


SCHEMA: dict[str, Key] = {
    "framework": Key(optional(NAME)),  # the door that imports it names those that there are
    "devices": Key(some_of()),
    "dtypes": Key(some_of(DTYPES)),
    "parameters": Key(some_of(empty=True)),
    "head_dims": Key(sizes),
    "groups": Key(sizes),
    "max_length": Key(optional(number(1))),
    "length_multiple": Key(number(1, LARGEST)),
    "window": Key(optional(sides)),
    "value_dim": Key(FLAG),
    "zero_sizes": Key(FLAG),
    "memory": Key(optional(some_of(LAYOUTS))),
    "rows_without_keys": Key(FLAG),
    "non_finite": Key(FLAG),
    "mask_and_causal": Key(FLAG),
    "returns_weights": Key(FLAG),
    "mask_kinds": Key(some_of(MASK_KINDS)),
    "mask_axes": Key(some_of(MASK_AXES)),
    "mask_rank": Key(number(0, 4)),
    "arithmetic": Key(_wrong_arithmetic),
    "costly_shapes": Key(optional(FLAG)),
    "spoken": Key(optional(TEXTS)),
    "gradients": Key(optional(FLAG)),
    "bias_gradients": Key(optional(FLAG)),
    "contract": Key(optional(one_of(contracts))),
    "odd_dim": Key(FLAG),
    "norm_first": Key(FLAG),
    "eps": Key(POSITIVE),
    "fill": Key(optional(POSITIVE)),
    "empty_rows_added": Key(optional(one_of(lambda: CHOICES["empty_rows"]))),
    **{key: _word(key) for key in CHOICES},
    "default_scale": Key(_wrong_scale),
}
LISTS = ("memory", "devices", "dtypes", "parameters", "head_dims", "groups", "mask_kinds", "mask_axes", "window")


def _value(key: str, value: Any) -> Any:
    """A value that fits, as it is kept."""
    if key == "arithmetic":
        return _kinds(value)
    if key in LISTS and value is not None:
        return (value,) if isinstance(value, str | int) else tuple(value)
    return value
