"""What a failure is about: the smallest case, what is wrong on it, and which of its fields matter."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from .attempt import try_case
from .case import Case
from .declare import Property
from .domain import feature_tables
from .families import APART, FAMILIES
from .layer_target import subject
from .supports import FEATURES
from .target import Target
from .trial import Violation


@dataclass(frozen=True, eq=False)
class Finding:
    """A property that does not hold, on the smallest case found."""

    property: Property
    target: str
    case: Case
    violation: Violation
    first_at: int  # the case number at which it first showed
    shrink_seconds: float
    matters: tuple[str, ...] = ()  # fields of the case whose change makes the failure vanish
    indifferent: tuple[str, ...] = ()
    failing: tuple[Case, ...] = ()  # other cases on which it failed, as drawn
    address: str | None = ""  # that of the target
    alone: bool = True  # the case fails in a process that has had no other, as far as that was tried


def diagnose(
    target: Target, prop: Property, case: Case, first_at: int, seconds: float, thorough: bool = True
) -> Finding:
    """The finding of a smallest case: what is wrong on it, and, if thorough, which of its fields matter."""
    violation = try_case(target, prop, case)
    if violation is None:  # failed while searching, holds now
        violation = Violation(
            "the failure does not repeat: the same call gave different answers", float("nan"), float("nan"), 0.0
        )
        return Finding(prop, target.name, case, violation, first_at, seconds, address=target.address)
    matters, indifferent = relevance(target, prop, case) if thorough else ((), ())
    return Finding(prop, target.name, case, violation, first_at, seconds, matters, indifferent, address=target.address)


ALTERNATIVES: dict[str, tuple[object, ...]] = {
    "batch": (1, 2, 3),
    "kv_heads": (1, 2, 3),
    "group": (1, 2),
    "queries": (1, 2, 5, 17),
    "keys": (1, 2, 5, 17),
    "dim": (1, 3, 4, 8),
    "dtype": ("float64", "float32"),
    "is_causal": (False, True),
    "scale": (None, 0.5, 1.0),
    "mask": ("none", "random", "everything"),
    "mask_kind": ("bool", "minus_infinity"),
    "mask_axes": ("LS", "BHLS"),
    "values": ("normal", "simple", "one_hot"),
    "layout": ("contiguous", "transposed"),
    "window_left": (None, 1, 5),
    "window_right": (None, 0, 2),
    "softcap": (None, 1.0, 8.0),
    "alibi": (False, True),
    "sinks": (False, True),
    "lengths": (False, True),
    "grad": ("normal", "ones"),
    "grad_layout": ("contiguous", "transposed", "everywhere"),
    "packing": ("equal", "mixed", "ones"),
    "offset": (0, 1, 300),
    "scattered": (False, True),
    "base": (None, 100.0),
    "rotary_dim": (None, 2, 4),
    "bidirectional": (True, False),
    "num_buckets": (32, 8),
    "max_distance": (128, 64),
    "chunks": ((), (1,), (2, 1)),
    "spare": (0, 1, 5),
    "page_size": (None, 1, 3),
    "padded": (False, True),
    "program": (),
    "with_bias": (True, False),
    "hidden": (1, 4, 8),
    "norm_first": (False, True),
    "activation": ("relu", "gelu"),
    "padding": (False, True),
    "memory_mask": ("none", "random", "everything"),
    "memory_padding": (False, True),
    "seed": (0, 1, 2, 3),
}
PARAMETER_OF = {"group": "enable_gqa", "mask": "attn_mask", "mask_kind": "attn_mask", "mask_axes": "attn_mask",
                "window_left": "window_size", "window_right": "window_size", "alibi": "alibi_slopes", "lengths": "kv_lengths",
                **{name: name for name in ("is_causal", "scale", "softcap", "sinks")}}  # fmt: skip
# Fields that an attention does not read.
FOREIGN = ("chunks", "spare", "page_size", "padded", "program", "packing", "with_bias", "hidden", "norm_first", "activation", "padding",
         "memory_mask", "memory_padding", "offset", "scattered", "base", "rotary_dim", "bidirectional", "num_buckets",
         "max_distance")  # fmt: skip


def relevance(target: Target, prop: Property, case: Case) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Which fields matter: those of which some other value makes the failure vanish."""
    seen = subject(target, prop)
    fixed = {name for name, value in prop.domain.items() if not isinstance(value, tuple)}
    matters: list[str] = []
    indifferent: list[str] = []
    for name, values in ALTERNATIVES.items():
        if name in fixed or not _can_vary(name, seen, case) or not _is_about(prop, name):
            continue
        about = _drawn_values(prop, name)
        values = tuple(value for value in values if value in about) if isinstance(about, tuple) else values
        values = tuple(value for value in values if value != "none") if "attn_mask" in prop.needs else values
        changed = [dataclasses.replace(case, **{name: value}) for value in values if value != getattr(case, name)]
        changed = [c for c in changed if c.dtype in seen.dtypes]
        if seen.contract not in FAMILIES:  # no mask that is not taken
            changed = [c for c in changed if c.mask == "none" or (c.mask_kind in seen.supports.mask_kinds and c.mask_axes in seen.supports.mask_axes)]
        simplest = getattr(Case(), name)
        if not changed or (name in case.differing() and simplest not in (getattr(c, name) for c in changed)):
            continue  # what it is not tried without may matter
        if all(try_case(seen, prop, c) is not None for c in changed):
            indifferent.append(name)
        elif name in case.differing():
            matters.append(name)
    return tuple(matters), tuple(indifferent)


def _is_about(prop: Property, name: str) -> bool:
    """Whether the property draws other values of a field that most leave as it is."""
    if name.startswith("grad"):
        return name in prop.domain
    if prop.contract in APART:
        return True
    parameter = PARAMETER_OF.get(name, name)
    return parameter not in FEATURES or parameter in prop.domain.get("features", ())


def _drawn_values(prop: Property, name: str) -> object:
    """What the property draws for a field, where it has a say in it."""
    parameter = PARAMETER_OF.get(name, name)
    has_tables = parameter in FEATURES and prop.contract not in APART
    return prop.domain.get(name, feature_tables(prop, parameter).get(name) if has_tables else None)


def _can_vary(name: str, target: Target, case: Case) -> bool:
    if name in ("mask_kind", "mask_axes") and case.mask == case.memory_mask == "none":
        return False
    if target.contract in FAMILIES:
        return name in FAMILIES[target.contract].fields(target)
    if name in FOREIGN:
        return False
    if name == "mask" and (case.mask == "none" or (case.is_causal and not target.supports.mask_and_causal)):
        return False
    if name == "dim" and target.supports.head_dims:
        return False
    return name not in PARAMETER_OF or PARAMETER_OF[name] in target.parameters
