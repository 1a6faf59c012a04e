"""The contract of packed sequences: how a callable of it is recognised, first called, and put to properties."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Collection, Iterable
from functools import partial
from typing import Any

from ..engine.cases.draws import Strategy
from ..engine.core import declare as declaring
from ..engine.core.contract import Contract, Dtypes, Formal, register
from ..engine.core.declare import Property
from ..engine.core.target import CannotRun, Raised, Target, as_declared, first_line
from ..engine.core.trial import Trial
from . import cases
from .call import ALL_NAMES, BOUNDARIES, NAMES, call, forward, smoke_inputs
from .cases import PACKED, Case
from .handshake import Handshake
from .one_boundary import has_one, of_both
from .trial import PackedTrial

declare = partial(declaring.declare, contract=PACKED.name)


class Packed(Contract):
    """Sequences one after the other, with their boundaries."""

    name = PACKED.name
    call = "packed(q, k, v, cu_seqlens_q, cu_seqlens_k, *, max_seqlen_q, max_seqlen_k, is_causal=False, scale=None, enable_gqa=False)"
    arguments = 5
    topics = (PACKED,)
    pair: tuple[str, ...] = ("packed_output_is_inside_the_bound",)
    given = ALL_NAMES
    capabilities = ("packed_gradients",)

    def recognise(self, formal: Formal) -> bool:
        """The fourth of the first five arguments is named as the boundaries of queries are, and no other is required; or it says both."""
        if has_one(formal):
            return True
        given = [p.name for p in formal.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        required = [p.name for p in formal.values() if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        return len(given) >= 5 and given[3] in BOUNDARIES and not set(required) - set(given[:5]) - set(ALL_NAMES)

    def learn(self, target: Target, formal: Formal, declared: frozenset[str], device: str, works: bool) -> Target | None:
        """Of one array of boundaries it is asked with those of queries and of keys."""
        if not has_one(formal):
            return None
        function = of_both(target.function, formal, target.framework)
        parameters = self.options(inspect.signature(function).parameters)
        learned = {next(name for name in formal if name in BOUNDARIES): "where both queries and keys of a sequence begin: as many of them"}
        plain = dataclasses.replace(target, function=function, parameters=parameters, learned={**target.learned, **learned})
        dtype = next((name for name in ("float64", "float32") if name in target.framework.dtypes), target.framework.dtypes[0])
        try:
            self.smoke(plain, dtype, device)
        except Raised as raised:
            raise CannotRun(f"with as many queries as keys it raised {raised}") from None
        return plain

    def options(self, formal: Formal) -> tuple[str, ...]:
        return tuple(name for name, names in NAMES.items() if set(names) & set(formal))

    def untried(self, parameters: tuple[str, ...]) -> dict[str, str]:
        if "enable_gqa" in parameters:
            return {}
        return {"grouped heads": "it has no enable_gqa; if it groups heads all the same, declare its parameters with enable_gqa among them"}

    def smoke(self, target: Target, dtype: str, device: str) -> str:
        x = smoke_inputs(target, dtype, device)
        out, *_ = call(target, x, target.buffers())
        return "" if out.shape == x.q.shape else f"it returns shape {out.shape} for q of {x.q.shape}; expected (total queries, heads, dim)"

    def handshake(self, target: Target, device: str) -> Target:
        return Handshake(target, device, inspect.signature(target.function).parameters).learned()

    def learned_supports(self, target: Target, edges: Collection[str] | None = None) -> dict[str, Any]:
        return as_declared(target)

    def trial(self, prop: Property) -> type[Trial]:
        return PackedTrial

    def cases(self, target: Target, prop: Property, device: str, dtypes: Dtypes) -> Strategy:
        return cases.packed_cases(target, prop, device, dtypes)

    def refused(self, target: Target, prop: Property, dtypes: Dtypes) -> str:
        return cases.refused(target, prop, dtypes)

    def features(self, target: Target, case: Case) -> Iterable[str]:
        yield case.dtype
        yield f"packing {case.packing}"
        yield from super().features(target, case)

    def lacks(self, target: Target, capability: str) -> str:
        words = capability.replace("_", " ")
        if not target.framework.gradients:
            return f"{target.framework.name} arrays carry no gradients"
        if target.supports.gradients is False:
            return "declared as not supported: gradients"
        try:
            _, send_back = forward(target, smoke_inputs(target, target.dtypes[0], target.supports.devices[0]), target.buffers())
        except Raised as raised:
            return f"{words}: it raised {type(raised.error).__name__}: {first_line(raised.error)}"
        return "" if send_back else f"{words}: the output of a first call does not require a gradient"


register(Packed())
