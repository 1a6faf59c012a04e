"""A callable of packed self-attention, of which one array of boundaries says where the queries and the keys of each sequence lie.

    packed(q, k, v, cu_seqlens, [max_seqlen], …)

It is called as the contract says where there are as many queries as keys, or fewer, to which others are added; more queries than keys are
several sequences of the same keys. A row depends on its own query alone, so that the answer is the same.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from ..engine.core.contract import Formal
from ..engine.core.target import NotTaken
from ..engine.frameworks import Framework
from .call import ALL_NAMES, BOUNDARIES, KEY_BOUNDARIES, boundaries

LONGEST = ("max_seqlen", "max_len", "max_length", "max_s", "max_seqlen_in_batch")


def has_one(formal: Formal) -> bool:
    """Whether its fourth argument says where sequences begin, and no other does."""
    given = [p.name for p in formal.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = {p.name for p in formal.values() if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
    return (
        len(given) >= 4
        and given[3] in BOUNDARIES
        and not set(formal) & set(KEY_BOUNDARIES)
        and not required - {*given[:4], *LONGEST, *ALL_NAMES}
    )


def of_both(function: Callable[..., Any], formal: Formal, fw: Framework) -> Callable[..., Any]:
    """The callable, called with boundaries of queries and of keys. It raises NotTaken for what cannot be asked so."""
    longest = next((name for name in formal if name in LONGEST), "")

    def packed(q: Any, k: Any, v: Any, cu_seqlens_q: Any, cu_seqlens_k: Any, **options: Any) -> Any:
        begins, keys_begin = (fw.read(cu).astype(int) for cu in (cu_seqlens_q, cu_seqlens_k))
        rows, keys = np.diff(begins), np.diff(keys_begin)
        if ((rows > 0) & (keys == 0)).any():
            raise NotTaken("queries without keys")
        if any(options.get(name) for name in ("is_causal", "causal")) and (rows > keys).any():
            raise NotTaken("more queries than keys, where causal")
        if longest:
            options[longest] = int(keys.max(initial=0))
        if (rows == keys).all():
            return function(q, k, v, cu_seqlens_q, **options)
        dtype, device = fw.describe(q)[1:]
        asked, lengths, places = [], [], []  # rows of queries; of each sequence that is asked: how long it is, where its keys are
        back, at = [], 0  # where the rows lie in the answer
        for first, n, of, s in zip(begins, rows, keys_begin, keys, strict=False):
            for row in range(0, max(n, 1), max(s, 1)):
                some = min(s, n - row)
                asked.append(q[first + row : first + row + some])
                asked += [fw.full((int(s - some), *q.shape[1:]), 0.0, dtype, device)] * bool(s > some)
                lengths.append(s)
                places.append((of, of + s))
                back.append((at, at + some))
                at += s
        every_k, every_v = (fw.concatenate([x[a:b] for a, b in places], 0) for x in (k, v))
        out = function(fw.concatenate(asked, 0), every_k, every_v, fw.integers(boundaries(np.array(lengths)), device), **options)
        out = out[0] if isinstance(out, tuple | list) and out else out
        return fw.concatenate([out[a:b] for a, b in back], 0) if fw.is_array(out) else out

    known = [formal[name] for name in formal if name in ALL_NAMES]
    both = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in ("q", "k", "v", "cu_seqlens_q", "cu_seqlens_k")]
    named = [p.replace(kind=p.KEYWORD_ONLY, default=None if p.default is p.empty else p.default) for p in known]
    packed.__signature__ = inspect.Signature([*both, *named])  # type: ignore[attr-defined]
    packed.__asks__ = function  # type: ignore[attr-defined]
    return packed
