"""The contract of linear attention: how a callable of it is recognised, first called, and put to properties.

Its signature is that of a plain attention, so it is taken for one unless something says otherwise: ``supports["contract"] = "linear"``,
or an optional parameter ``feature_map`` beside q, k and v, which no softmax has. The name of the callable says nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..engine.cases.draws import Strategy
from ..engine.core.contract import Contract, Dtypes, Formal, register
from ..engine.core.declare import Property
from ..engine.core.target import Target
from ..engine.core.trial import Trial
from . import cases
from .call import CAUSAL, FEATURE_MAP, call, smoke_inputs
from .cases import LINEAR, Case
from .trial import LinearTrial


class Linear(Contract):
    """Queries, keys and values in, one output a query, with weights φ(q)·φ(k)."""

    name = LINEAR.name
    call = "linear_attention(q, k, v, *, is_causal=False)"
    arguments = 3
    topics = (LINEAR,)
    pair: tuple[str, ...] = ("linear_output_is_inside_the_bound",)
    known = (*CAUSAL, *FEATURE_MAP)

    def recognise(self, formal: Formal) -> bool:
        """Three arguments by position, and a feature map that may be left out."""
        given = [p for p in formal.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        return len(given) >= 3 and any(name in formal and formal[name].default is not formal[name].empty for name in FEATURE_MAP)

    def options(self, formal: Formal) -> tuple[str, ...]:
        own = tuple(name for name in FEATURE_MAP if name in formal)
        return (CAUSAL[0], *own) if set(CAUSAL) & set(formal) else own

    def untried(self, parameters: tuple[str, ...]) -> dict[str, str]:
        return {name: "its default alone is tried, which has to be elu(x) + 1" for name in FEATURE_MAP if name in parameters}

    def smoke(self, target: Target, dtype: str, device: str) -> str:
        x = smoke_inputs(target, dtype, device)
        out, *_ = call(target, x, target.buffers())
        wanted = (*x.q.shape[:3], x.v.shape[3])
        shapes = f"it returns shape {out.shape} for q of {x.q.shape}; expected {wanted}"
        return "" if out.shape == wanted else f"{shapes}: (batch, heads, queries, value_dim)"

    def trial(self, prop: Property) -> type[Trial]:
        return LinearTrial

    def cases(self, target: Target, prop: Property, device: str, dtypes: Dtypes) -> Strategy:
        return cases.linear_cases(target, prop, device, dtypes)

    def refused(self, target: Target, prop: Property, dtypes: Dtypes) -> str:
        return cases.refused(target, prop, dtypes)

    def features(self, target: Target, case: Case) -> Iterable[str]:
        yield case.dtype
        yield from super().features(target, case)


register(Linear())
