"""Variants: the same target seen through a transformation of its framework, which must not change what it computes.

``TARGET@compile`` is ``torch.compile`` of TARGET, and so on. A variant is a target like any other: every property is put to
it, against the same oracle, so that agreement with the eager target follows from both lying inside the bound.
"""

from __future__ import annotations

import contextlib
import difflib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from .protocol import Framework, Function

PER_BATCH = ("kv_lengths", "key_padding_mask", "memory_key_padding_mask")  # beside masks that vary along the batch


def make_variant(fw: Framework, name: str, function: Function) -> Function:
    """The transformed callable. Raises ValueError that lists near matches for a typo."""
    if name not in fw.variants:
        near = difflib.get_close_matches(name, fw.variants, 1, 0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(fw.variants)}"
        raise ValueError(f"there is no variant {name!r}; {hint}")
    changed = fw.variants[name].transform(function)
    with contextlib.suppress(TypeError, ValueError):
        changed.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    return changed


def cache_variant(fw: Framework, name: str, make: Function) -> Function:
    """What makes caches with every method wrapped in the variant. Raises ValueError as ``make_variant`` does."""

    class Varied:
        def __init__(self, held: Any) -> None:
            self._held = held

        def __getattr__(self, method: str) -> Any:
            own = getattr(self._held, method)
            if method == "fork":
                return lambda: Varied(make_variant(fw, name, own)())
            return make_variant(fw, name, own)

    made = make_variant(fw, name, make)

    def varied(*sizes: Any, **options: Any) -> Any:
        return Varied(made(*sizes, **options))

    varied.__signature__ = inspect.signature(make)  # type: ignore[attr-defined]
    return varied


def over_batch(
    function: Function, is_array: Callable[[Any], bool], mapped: Callable[[Function, tuple[int | None, ...], Mapping[str, Any]], Function]
) -> Function:
    """One batch element at a time. ``mapped(single, axes, options)`` maps a function over these axes of its arguments."""

    def run(*args: Any, **options: Any) -> Any:
        arrays = {name: x for name, x in options.items() if is_array(x)}
        fixed = {name: x for name, x in options.items() if name not in arrays}
        batch = args[0].shape[0]
        along = {name: 0 if name in PER_BATCH or (x.ndim == 4 and x.shape[0] == batch > 1) else None for name, x in arrays.items()}
        first_axes = tuple(0 if is_array(x) and x.ndim == args[0].ndim else None for x in args)

        parts: list[Any] = []

        def single(*one: Any) -> Any:
            first = tuple(x[None] if axis == 0 else x for x, axis in zip(one[: len(args)], first_axes, strict=True))
            back = {name: x[None] if along[name] == 0 else x for name, x in zip(arrays, one[len(args) :], strict=True)}
            out = function(*first, **back, **fixed)
            several = isinstance(out, tuple | list)
            parts[:] = out if several else [out]
            return tuple(x[0] for x in parts if is_array(x)) if several else out[0]

        found = mapped(single, (*first_axes, *along.values()), options)(*args, *arrays.values())
        if not isinstance(found, tuple):
            return found
        answers = iter(found)  # weights that were not asked for are None, which no map returns
        return tuple(next(answers) if is_array(x) else x for x in parts)

    return run
