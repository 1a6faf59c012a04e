"""What a target can do and which conventions it follows: facts that restrict what is generated, and claims that are tested."""

from __future__ import annotations

import dataclasses
import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...exact.arithmetic import KINDS, Arithmetic, arithmetic, default_arithmetic
from ..cases.dtypes import DTYPES
from ..cases.masks import MASK_AXES, MASK_KINDS
from .contract import contracts

FEATURES = ("window_size", "softcap", "alibi_slopes", "sinks", "kv_lengths", "return_lse")
PARAMETERS = ("attn_mask", "is_causal", "scale", "enable_gqa", "dropout_p", *FEATURES, "key_padding_mask", "need_weights")
# What others call them.
MEANT = {
    "mask": "attn_mask", "attention_mask": "attn_mask", "bias": "attn_mask", "attn_bias": "attn_mask", "causal": "is_causal",
    "softmax_scale": "scale", "sm_scale": "scale", "scaling": "scale", "gqa": "enable_gqa", "dropout": "dropout_p",
    "attn_dropout": "dropout_p", "window": "window_size", "sliding_window": "window_size", "soft_cap": "softcap",
    "logits_soft_cap": "softcap", "logit_softcap": "softcap", "alibi": "alibi_slopes", "slopes": "alibi_slopes", "sink": "sinks",
    "s_aux": "sinks", "lengths": "kv_lengths", "seqlens": "kv_lengths", "kv_seqlens": "kv_lengths", "seqused_k": "kv_lengths",
    "return_softmax_lse": "return_lse", "return_attn_probs": "return_lse", "padding_mask": "key_padding_mask",
    "return_weights": "need_weights", "output_attentions": "need_weights",
}  # fmt: skip
CHOICES: dict[str, tuple[str, ...]] = {
    "layout": ("bhld", "blhd"),
    "causal": ("top-left", "bottom-right"),
    "empty_rows": ("zero", "nan", "mean"),
    "masked_nan": ("contained", "leaks"),
    "pairing": ("interleaved", "half"),
    "activation": ("relu", "gelu"),
    "gelu": ("erf", "tanh"),
}


@dataclass(frozen=True)
class Supports:
    """Capabilities first, the dialect second. None means: found out from the signature or by one call."""

    framework: str | None = None
    devices: tuple[str, ...] = ("cpu", "cuda")
    dtypes: tuple[str, ...] | None = None
    parameters: tuple[str, ...] | None = None
    layout: str = "bhld"  # bhld: (batch, heads, length, dim); blhd: (batch, length, heads, dim)
    head_dims: tuple[int, ...] | None = None
    max_length: int | None = None  # longest sequence worth trying, for slow targets
    value_dim: bool = True  # v may have another number of features than q and k
    zero_sizes: bool = True  # any dimension may be 0
    mask_and_causal: bool = True  # a mask and is_causal may be given together
    returns_weights: bool = True  # layers: the attention weights are returned beside the output
    mask_kinds: tuple[str, ...] = MASK_KINDS
    mask_axes: tuple[str, ...] = MASK_AXES
    mask_rank: int = 0  # the least number of axes of a mask; one of fewer gets leading axes of size 1
    causal: str = "top-left"
    empty_rows: str = "zero"
    masked_nan: str = "leaks"
    arithmetic: Mapping[str, str] | None = None  # dtype → kind
    costly_shapes: bool | None = None  # every new shape costs far more than a call: it is compiled, or tuned; None: found out
    gradients: bool | None = None  # of q, k, v; None: found out by one call
    bias_gradients: bool | None = None  # of an additive mask; likewise
    contract: str | None = None  # None: told by the signature
    pairing: str = "interleaved"  # positions, rotary caches: features 2i and 2i + 1 form a pair; half: i and i + dim/2
    odd_dim: bool = True  # sinusoids: dim may be odd
    norm_first: bool = False  # encoder and decoder layers that take no such parameter: where their norms stand
    activation: str = "relu"  # likewise
    gelu: str = "erf"  # what their gelu is: exact, or approximated by tanh
    eps: float = 1e-5  # of their norms

    @classmethod
    def read(cls, declared: Mapping[str, Any]) -> Supports:
        """From a plain mapping. Raises ValueError with one sentence for an unknown key or value."""
        known = [field.name for field in dataclasses.fields(cls)]
        facts: dict[str, Any] = {}
        for key, value in declared.items():
            if key not in known:
                near = difflib.get_close_matches(key, known, 1)
                hint = f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(known)}"
                raise ValueError(f"supports has no key {key!r}{hint}")
            facts[key] = _value(key, value)
        return cls(**facts)

    @classmethod
    def in_file(cls, path: str | Path) -> dict[str, Any]:
        """What a TOML file declares, at its top level or in a table ``[supports]``. Raises ValueError as ``read`` does."""
        try:
            content = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{path} is not TOML: {error}") from None
        declared: dict[str, Any] = content.get("supports", content)
        cls.read(declared)
        return declared

    def declared(self, dtype: str) -> Arithmetic:
        """The declared arithmetic, or the loosest sane one."""
        kind = self.kind(dtype)
        return arithmetic(kind, dtype) if kind else default_arithmetic(dtype)

    def kind(self, dtype: str) -> str | None:
        """The declared kind of arithmetic for a dtype, None if nothing is declared."""
        return (self.arithmetic or {}).get(dtype)


def _value(key: str, value: Any) -> Any:
    choices = tuple(contracts()) if key == "contract" else CHOICES.get(key)
    if choices and value not in choices:
        raise ValueError(f"supports[{key!r}] is {value!r}; it can be {' or '.join(map(repr, choices))}")
    if key == "arithmetic":
        # a single kind is that of every dtype that has it: tf32 is one of float32 alone
        kinds = {dtype: value for dtype in DTYPES if _has(dtype, value)} if isinstance(value, str) else dict(value)
        if not kinds or not all(_has(dtype, kind) for dtype, kind in kinds.items()):
            raise ValueError(f"supports['arithmetic'] maps dtypes to kinds, {KINDS}, got {value!r}")
        return kinds
    if key == "max_length" and value is not None and not (isinstance(value, int) and value > 0):
        raise ValueError(f"supports['max_length'] is {value!r}; it can be a whole number from 1 on")
    if key == "mask_rank" and not (type(value) is int and 0 <= value <= 4):
        raise ValueError(f"supports['mask_rank'] is {value!r}; it can be a whole number from 0 to 4")
    if key in ("devices", "dtypes", "parameters", "head_dims", "mask_kinds", "mask_axes"):
        allowed = {"dtypes": DTYPES, "mask_kinds": MASK_KINDS, "mask_axes": MASK_AXES}.get(key)
        values = (value,) if isinstance(value, str | int) else tuple(value)
        if not values and key != "parameters":
            raise ValueError(f"supports[{key!r}] is empty; leave it out, if nothing is to be declared")
        if allowed and not set(values) <= set(allowed):
            raise ValueError(f"supports[{key!r}] may hold {allowed}, got {values}")
        return values
    return value


def _has(dtype: str, kind: str) -> bool:
    try:
        return bool(arithmetic(kind, dtype))
    except ValueError:
        return False
