"""The contracts of positions: how a callable of positions is recognised, called and read.

    learned(table, positions, *, offset=0)                                          → (length, dim), table (rows, dim)
    sinusoidal(length, dim, *, offset=0, base=10000.0, dtype)                       → (length, dim)
    rotary(x, positions, *, base=10000.0, rotary_dim=dim)                           → x's shape (batch, heads, length, dim)
    slopes(num_heads, *, dtype)                                                     → (num_heads,)
    buckets(relative_position, *, bidirectional=True, num_buckets=32, max_distance=128) → integers of the same shape

Only the first one or two arguments are required. A parameter that the callable does not take is not tried.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..engine.cases.coordinates import Array
from ..engine.core.target import Raised, Target

POSITIONS: dict[str, str] = {
    "sinusoidal": "sinusoidal(length, dim, *, offset=0, base=10000.0, dtype)",
    "rotary": "rotary(x, positions, *, base=10000.0, rotary_dim=dim)",
    "learned": "learned(table, positions, *, offset=0)",
    "slopes": "slopes(num_heads, *, dtype)",
    "buckets": "buckets(relative_position, *, bidirectional=True, num_buckets=32, max_distance=128)",
}
PARAMETERS: dict[str, tuple[str, ...]] = {
    "sinusoidal": ("offset", "base", "dtype"),
    "rotary": ("base", "rotary_dim"),
    "learned": ("offset",),
    "slopes": ("dtype",),
    "buckets": ("bidirectional", "num_buckets", "max_distance"),
}
ARGUMENTS = {"sinusoidal": 2, "rotary": 2, "learned": 2, "slopes": 1, "buckets": 1}  # by position
# What the first arguments are called where a signature is one of these; other names need supports["contract"].
LENGTHS = ("length", "seq_len", "seq_length", "max_len", "num_positions", "n_positions")
NAMES: dict[str, tuple[tuple[str, ...], ...]] = {
    "sinusoidal": (LENGTHS, ("dim", "d_model", "embed_dim", "depth")),
    "rotary": (("x", "q", "t"), ("positions", "position_ids", "position", "pos")),
    "learned": (("table", "weight", "weights", "embedding", "embeddings"), ("positions", "position_ids", "position", "pos")),
    "slopes": (("num_heads", "n_heads", "heads", "n_head"),),
    "buckets": (("relative_position", "relative_positions"),),
}


def recognise(formal: Mapping[str, inspect.Parameter]) -> str | None:
    """The contract of positions that a signature has, by the names of its first arguments; None if it is none of them."""
    given = [p.name for p in formal.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    for contract, names in NAMES.items():
        first = given[: len(names)]
        required = [p.name for p in formal.values() if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        named = len(first) == len(names) and all(name in known for name, known in zip(first, names, strict=True))
        if named and not set(required) - set(first) - set(PARAMETERS[contract]):
            return contract
    return None


def taken(contract: str, formal: Mapping[str, inspect.Parameter]) -> tuple[str, ...]:
    """The optional parameters of a contract that a signature names."""
    return tuple(name for name in PARAMETERS[contract] if name in formal)


def answer(target: Target, *arguments: Any, **options: Any) -> tuple[Array, tuple[tuple[int, ...], str, str]]:
    """(the answer as a carrier, its shape, dtype and device). A list of numbers counts as a NumPy array. Raises Raised."""
    try:
        with np.errstate(all="ignore"):
            result = target.function(*arguments, **options)
        if isinstance(result, list | tuple) and target.framework.name == "numpy":
            result = np.array(result)
    except Exception as error:
        raise Raised(error) from error
    if not target.framework.is_array(result):
        raise Raised(TypeError(f"returned {type(result).__name__}, not an array of {target.framework.name}"))
    return target.framework.read(result), target.framework.describe(result)


def smoke(target: Target, dtype: str, device: str) -> str:
    """One small call; what is wrong with the answer, nothing if nothing is. Raises Raised.

    Where no argument says in which type to answer, the type of the answer is the only one that is tried. Buckets are
    integers: of them float64 alone is tried.
    """
    fw, contract = target.framework, target.contract
    options = {"dtype": fw.named_dtype(dtype)} if "dtype" in target.parameters else {}
    wanted: tuple[int, ...]
    if contract == "sinusoidal":
        wanted = (5, 6)
        out, (shape, given, _) = answer(target, 5, 6, **options)
    elif contract == "slopes":
        wanted = (4,)
        out, (shape, given, _) = answer(target, 4, **options)
    elif contract == "rotary":
        wanted = (2, 3, 5, target.supports.head_dims[0] if target.supports.head_dims else 4)
        x = fw.full(wanted, 1.0, dtype, device)
        out, (shape, given, _) = answer(target, x, fw.integers(np.arange(5.0), device))
    elif contract == "learned":
        wanted = (5, 4)
        out, (shape, given, _) = answer(target, fw.full((7, 4), 1.0, dtype, device), fw.integers(np.arange(5.0), device))
    else:
        wanted, given = (4, 5), dtype
        apart = np.arange(5.0) - np.arange(4.0)[:, None]
        out, (shape, kind, _) = answer(target, fw.integers(apart, device))
        if dtype != "float64":
            return "buckets are integers, whatever the type"
        if "int" not in kind:
            return f"it returns {kind}, not integers"
    if shape != wanted:
        return f"it returns shape {shape}, expected {wanted}"
    asked = contract in ("rotary", "learned") or bool(options)  # a wrong type is a finding there, not a fact
    return "" if asked or given == dtype else f"it answers in {given}"
