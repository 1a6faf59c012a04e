"""The contract of caches: how a cache for decoding is recognised, made, and fed tokens.

    cached(batch, kv_heads, dim, capacity, *, num_heads, value_dim, dtype, device, window_size, page_size, fill, rotary_base)
        .append(q, k, v, *, lengths, padding) → out          q (B, H, n, D), k (B, Hkv, n, D), v (B, Hkv, n, Dv), out (B, H, n, Dv)
        .fork() → another one   .reset()   .truncate(length)   .reorder(index)

Only the first four arguments and ``append(q, k, v)`` are required. What an object lacks is not tried.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from ..engine.contained.stub import Shared
from ..engine.core.target import Target, raising

# What the first arguments are called where a signature is that of a cache; other names need supports["contract"].
NAMES: tuple[tuple[str, ...], ...] = (
    ("batch", "batch_size", "max_batch_size"),
    ("kv_heads", "num_kv_heads", "n_kv_heads", "num_heads"),
    ("dim", "head_dim"),
    ("capacity", "max_length", "max_len", "max_seq_len", "max_cache_len"),
)
OPTIONS = ("num_heads", "value_dim", "dtype", "device", "window_size", "page_size", "fill", "rotary_base")
PER_APPEND = ("lengths", "padding")
T = TypeVar("T")
METHODS = ("fork", "reset", "truncate", "reorder")


def make_cache(target: Target, sizes: tuple[int, int, int, int], heads: int, dtype: str, device: str, options: Mapping[str, Any]) -> Any:
    """A new cache of a target, for sizes (batch, kv_heads, dim, capacity). Raises Raised."""
    given = dict(options)
    taken = {"num_heads": heads, "dtype": target.framework.named_dtype(dtype), "device": device}
    given |= {name: value for name, value in taken.items() if name in target.parameters}
    return target.apply(*sizes, **given)


def parameters_of(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return {}


def smoke_sizes(target: Target) -> tuple[int, int, int, int]:
    """Batch, key/value heads, features and slots of the first cache, all different."""
    return 2, 3, target.supports.head_dims[0] if target.supports.head_dims else 4, 8


def fed(target: Target, held: Any, tensors: list[Any], read: Callable[[Any], T], ahead: bool = False, **options: Any) -> Callable[[], T]:
    """What gives the answer of a cache that is fed the next tokens, as it is read. Raises Raised, and so does that.

    ``ahead``: a cache in a process of its own is fed more before the answer is asked for, which has memory of its own.
    """
    fw = target.framework
    if target.supports.layout == "blhd":
        tensors = [fw.permute(x, (0, 2, 1, 3)) for x in tensors]
    call = partial(applied, held.append, *tensors, **options)
    if ahead and isinstance(fw, Shared):
        answer = fw.ahead(call)
        return lambda: read(_first(applied(answer)))
    done = read(_first(call()))
    return lambda: done


def _first(result: Any) -> Any:
    return result[0] if isinstance(result, tuple | list) and result else result


def applied(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Call a method of a cache. Raises Raised if it raises."""
    with raising({}):
        return function(*arguments, **options)


def chunk_sizes(chunks: tuple[int, ...], tokens: int) -> tuple[int, ...]:
    """How many tokens each append brings: the chunks, the last of them again and again. No chunk, or a last one of 0: all the rest."""
    sizes: list[int] = []
    left = tokens
    for size in chunks[:-1]:
        if left:
            sizes.append(min(size, left))
            left -= sizes[-1]
    last = chunks[-1] if chunks and chunks[-1] else left
    while left:
        sizes.append(min(last, left))
        left -= sizes[-1]
    return tuple(sizes)
