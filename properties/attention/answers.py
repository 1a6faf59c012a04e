"""The answers of a target to every question that is asked of an attention, the usual ones included.

Where an answer was learned, its words are those of the report; else they say what is declared, or what is usual.
"""

from __future__ import annotations

from typing import Any

from ..engine.core.target import Target, as_declared
from ..exact.arithmetic import default_arithmetic
from .axes import LAYOUTS
from .backward import refusal
from .written import words

# Conventions that were asked for, and are claims from now on, the usual ones, too → the parameters without which they say nothing.
CLAIMS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("value_dim", "zero_sizes", "rows_without_keys", "non_finite", "result", "default_scale", "empty_rows"), ()),
    **dict.fromkeys(("mask_kinds", "mask_axes", "mask_rank"), ("attn_mask",)),
    "mask_and_causal": ("attn_mask", "is_causal"),
    "causal": ("is_causal",),
    "scales": ("scale",),
    "windows": ("window_size",),
}
OF_MASKS = ("mask_kinds", "mask_axes", "mask_rank")
SCALES = {"any": "any", "not negative": "those that are not negative", "positive": "positive ones alone", "not zero": "any but 0"}
MASKED_NAN = {"leaks": "may reach the rows of its own batch element", "contained": "reaches nothing"}


def claims(target: Target) -> dict[str, Any]:
    """What was learned, as keys of supports; of what was asked the usual answers, too, unless it is too slow to be asked all.

    Nothing of masks that are not the contract's: what they say is asked each time.
    """
    asked = {} if target.pace.unasked else CLAIMS
    usual = {name: getattr(target.supports, name) for name, needs in asked.items() if set(needs) <= set(target.parameters)}
    flows = asked and target.framework.gradients and not refusal(target, "gradients")
    found = usual | ({"gradients": True} if flows else {}) | as_declared(target) | ({"spoken": words(target)} if asked else {})
    told = {**target.learned, **target.differs, **target.wrong}
    other = "bool mask" in told or any("a second mask" in how or how.startswith("of axes") for how in told.values())
    return {name: value for name, value in found.items() if not (other and name in OF_MASKS)}


def answers(target: Target) -> dict[str, str]:
    """Question → answer."""
    s, takes = target.supports, set(target.parameters)
    told = {**target.learned, **target.refuses, **target.differs, **target.wrong}
    found: dict[str, str] = {
        "axes of q, k and v": told.get("axes", LAYOUTS[s.layout].words),
        "what comes back": told.get("result", "an array, of the axes of q" if "axes" not in told else "an array"),
        "beside it": told.get(
            "beside the output", _asked(takes, "need_weights", "weights") or _asked(takes, "return_lse", "a log-sum-exp") or "nothing"
        ),
        "lengths": told.get("lengths", "any" if s.length_multiple == 1 else f"multiples of {s.length_multiple}"),
        "longest": f"{s.max_length} tokens" if s.max_length else "any",
        "head dims": told.get("head dims", ", ".join(map(str, s.head_dims)) if s.head_dims else "any"),
        "width of values": told.get("width of values", "any" if s.value_dim else "that of keys"),
        "sizes of zero": told.get("sizes of zero", "taken" if s.zero_sizes else "not taken"),
        "grouped heads": told.get("grouped heads", "where enable_gqa says so" if "enable_gqa" in takes else "not taken"),
        "default scale": told.get("scale", s.default_scale),
        "scales that are taken": SCALES[s.scales] if "scale" in takes else "none is given",
        "causality": told.get("causality", "where is_causal says so" if "is_causal" in takes else "none"),
        "window": told.get("window", "where window_size says so" if "window_size" in takes else "none"),
        "dtype that comes back": told.get("dtype", "that of the queries" if s.result == "same" else "a wider one"),
        "gradients": told.get(
            "gradients", "flow" if s.gradients else "none flow" if s.gradients is False else "are asked for in the search"
        ),
        "dropout": "where dropout_p says so" if "dropout_p" in takes else "none",
    }
    if "is_causal" in takes:
        found["causal corner"] = told.get("causal corner", s.causal)
        found["a single query"] = told.get("a single query", "as any other")
    if "attn_mask" in takes:
        found |= {
            "what masks say": ", ".join(s.mask_kinds),
            "axes along which masks vary": ", ".join(axes or "none" for axes in s.mask_axes),
            "least number of axes of a mask": str(s.mask_rank),
            "hidden logits": told.get("hidden logits", f"get {s.fill:g} less" if s.fill else "get −∞"),
            "rows without keys": told.get("rows without keys", s.empty_rows),
            "rows without keys, mask added": s.empty_rows_added or "the same",
            "NaN in a hidden key or value": MASKED_NAN[str(target.observed.get("masked_nan", s.masked_nan))],
        }
    if "need_weights" in takes:
        found["weights that come back"] = told.get(
            "weights", "those of each head" if s.returned_weights == "per head" else "their mean over heads"
        )
    if {"attn_mask", "is_causal"} <= takes:
        found["mask and causal"] = told.get("mask and causal", "both hide" if s.mask_and_causal else "not together")
    if "return_lse" in takes:
        found["log-sum-exp"] = told.get("log-sum-exp", "a natural logarithm")
    for dtype in target.dtypes:
        declared = (s.arithmetic or {}).get(dtype)
        found[f"arithmetic of {dtype}"] = declared or f"held to {default_arithmetic(dtype).name}, the loosest that people write"
    return found


def _asked(takes: set[str], parameter: str, words: str) -> str:
    return f"{words}, where {parameter} asks for them" if parameter in takes else ""
