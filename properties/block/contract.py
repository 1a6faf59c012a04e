"""The contracts of encoder and decoder layers: how a callable of them is recognised, first called, and put to properties."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from ..engine.cases.draws import Strategy
from ..engine.core import declare as declaring
from ..engine.core.ascent import without_gradients
from ..engine.core.contract import Contract, Dtypes, Formal, Topic, register
from ..engine.core.declare import Property
from ..engine.core.target import Target
from ..engine.core.trial import Trial
from . import cases
from .call import BlockInputs, answer, call_block
from .cases import BLOCK, DECODER, ENCODER, Case
from .trial import BlockTrial, make_block

declare = partial(declaring.declare, contract=BLOCK.name)


class Layer(Contract):
    """A layer of a transformer: attention and a feed-forward part, each with a residual and a norm."""

    batched = True
    capabilities = ("layer_gradients",)
    pair: tuple[str, ...] = ("block_is_inside_the_bound",)
    pair_gradients: tuple[str, ...] = ("block_gradients_are_slopes",)

    def __init__(self, topic: Topic, call: str, arrays: int, parameters: tuple[str, ...]) -> None:
        self.name, self.call, self.arguments, self.parameters = topic.name, call, arrays, parameters
        self.topics = (topic, BLOCK)
        self.given = ("num_heads", *parameters)

    def recognise(self, formal: Formal) -> bool:
        """``weights`` comes second, or third behind the memory, and num_heads later. What begins with a query is a multi-head layer."""
        given = [p.name for p in formal.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        takes_any = any(p.kind is p.VAR_KEYWORD for p in formal.values())
        if not ("num_heads" in formal or takes_any) or "weights" not in given or given[0] in ("q", "query"):
            return False
        return given.index("weights") == self.arguments - 1

    def options(self, formal: Formal) -> tuple[str, ...]:
        """All of them where it takes any."""
        takes_any = any(p.kind is p.VAR_KEYWORD for p in formal.values())
        return tuple(name for name in self.parameters if takes_any or name in formal)

    def smoke(self, target: Target, dtype: str, device: str) -> str:
        inputs = self._small(target, dtype, device)
        out, *_ = call_block(target, inputs, target.buffers())
        if out.shape == inputs.x.shape:
            return ""
        if out.shape == (5, 2, 6):
            return f"it returns (length, batch, embed) {out.shape} for x {inputs.x.shape}, which is (batch, length, embed)"
        return f"it returns shape {out.shape} for x {inputs.x.shape}; expected the same"

    def _small(self, target: Target, dtype: str, device: str) -> BlockInputs:
        """A call in which all sizes are distinct."""
        does: dict[str, Any] = {"norm_first": target.supports.norm_first, "activation": target.supports.activation}
        case = Case(batch=2, kv_heads=3, queries=5, keys=7, dim=2, hidden=4, dtype=dtype, device=device, **does)
        return make_block(case, self.name)

    def lacks(self, target: Target, capability: str) -> str:
        if capability not in self.capabilities:
            return super().lacks(target, capability)
        inputs = self._small(target, target.dtypes[0], target.supports.devices[0])
        return without_gradients(target, lambda given: answer(target, inputs, given), "x", inputs.x)

    def trial(self, prop: Property) -> type[Trial]:
        return BlockTrial

    def cases(self, target: Target, prop: Property, device: str, dtypes: Dtypes) -> Strategy:
        return cases.block_cases(target, prop, device, dtypes)

    def refused(self, target: Target, prop: Property, dtypes: Dtypes) -> str:
        return cases.refused(target, prop, dtypes)

    def fields(self, target: Target) -> tuple[str, ...]:
        return cases.block_fields(target)

    def varies(self, target: Target, prop: Property, case: Case, name: str) -> bool:
        masked = name not in ("mask_kind", "mask_axes") or not case.mask == case.memory_mask == "none"
        return masked and name in self.fields(target)

    def features(self, target: Target, case: Case) -> Iterable[str]:
        yield case.dtype
        yield from super().features(target, case)
        yield from cases.block_features(case)
        if self.name == DECODER.name and case.queries != case.keys:
            yield "L > S" if case.queries > case.keys else "L < S"


register(
    Layer(
        ENCODER,
        "encoder_layer(x, weights, *, num_heads, attn_mask=None, key_padding_mask=None, is_causal=False, "
        "norm_first=False, activation='relu')",
        2,
        ("attn_mask", "key_padding_mask", "is_causal", "norm_first", "activation"),
    ),
    Layer(
        DECODER,
        "decoder_layer(x, memory, weights, *, num_heads, attn_mask=None, memory_mask=None, key_padding_mask=None, "
        "memory_key_padding_mask=None, is_causal=False, norm_first=False, activation='relu')",
        3,
        ("attn_mask", "memory_mask", "key_padding_mask", "memory_key_padding_mask", "is_causal", "norm_first", "activation"),
    ),
)
