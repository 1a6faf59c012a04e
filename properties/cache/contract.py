"""The contract of caches: how what makes them is recognised, first called, and put to properties."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from functools import partial

import numpy as np

from ..engine.cases.draws import Strategy
from ..engine.core import declare as declaring
from ..engine.core.contract import Contract, Dtypes, Formal, register
from ..engine.core.declare import Property
from ..engine.core.target import Target
from ..engine.core.trial import Trial
from . import cases
from .call import METHODS, NAMES, OPTIONS, PER_APPEND, chunk_sizes, fed, make_cache, parameters_of, smoke_sizes
from .cases import CACHED, Case
from .trial import CacheTrial

declare = partial(declaring.declare, contract=CACHED.name)


class Cached(Contract):
    """Sizes in, an object out that is fed tokens and answers."""

    name = CACHED.name
    call = (
        "cached(batch, kv_heads, dim, capacity, *, num_heads=None, value_dim=None, dtype=…, device=…, window_size=None, "
        "page_size=None, fill=0.0, rotary_base=None), an object with append(q, k, v, *, lengths=None, padding=None)"
    )
    arguments = len(NAMES)
    topics = (CACHED,)
    pair: tuple[str, ...] = ("any_program_follows_the_model",)
    known = (*PER_APPEND, *METHODS)
    given = OPTIONS
    makes = True

    def recognise(self, formal: Formal) -> bool:
        """By the names of the four sizes."""
        given = [p.name for p in formal.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)][: len(NAMES)]
        return len(given) == len(NAMES) and all(name in known for name, known in zip(given, NAMES, strict=True))

    def options(self, formal: Formal) -> tuple[str, ...]:
        """Beyond the four sizes."""
        return tuple(name for name in OPTIONS if name in list(formal)[len(NAMES) :])

    def smoke(self, target: Target, dtype: str, device: str) -> str:
        """Five tokens, then one more."""
        sizes = smoke_sizes(target)
        batch, heads, dim, _ = sizes
        held = make_cache(target, sizes, heads, dtype, device, {})
        if not callable(getattr(held, "append", None)):
            return f"it makes a {type(held).__name__}, which has no method append(q, k, v)"
        for count in (5, 1):
            made = [np.ones((batch, heads, count, dim))] * 3
            out = fed(target, held, [target.buffers().array("x", x, dtype, device, "contiguous") for x in made], target.read)()
            if out.shape != (batch, heads, count, dim):
                return f"append returns shape {out.shape} for q, k, v of {(batch, heads, count, dim)}"
        return ""

    def discover(self, target: Target, device: str, open_ended: bool) -> Target:
        """What its objects can do, as one of them shows."""
        held = make_cache(target, smoke_sizes(target), 3, target.dtypes[0], device, {})
        formal = parameters_of(held.append)
        found = [name for name in PER_APPEND if name in formal] + [name for name in METHODS if callable(getattr(held, name, None))]
        untried = {name: "the cache has no such method" for name in METHODS if name not in found}
        if target.supports.parameters is not None:
            found = []
        return dataclasses.replace(target, parameters=(*target.parameters, *found), untried={**target.untried, **untried})

    def trial(self, prop: Property) -> type[Trial]:
        return CacheTrial

    def cases(self, target: Target, prop: Property, device: str, dtypes: Dtypes) -> Strategy:
        return cases.cache_cases(target, prop, device, dtypes)

    def refused(self, target: Target, prop: Property, dtypes: Dtypes) -> str:
        return cases.refused(target, prop, dtypes)

    def fields(self, target: Target) -> tuple[str, ...]:
        return cases.cache_fields(target)

    def features(self, target: Target, case: Case) -> Iterable[str]:
        yield case.dtype
        yield from super().features(target, case)
        sizes = chunk_sizes(case.chunks, case.keys)
        yield "one pass" if len(sizes) == 1 else "steps of one" if set(sizes) == {1} else "prefill and steps" if 1 in sizes else "chunks"
        if case.width != case.dim:
            yield "Dv != D"
        if case.window_left is not None and case.keys > 2 * (case.window_left + 1):
            yield "window wrapped twice"
        yield from case.program


register(Cached())
