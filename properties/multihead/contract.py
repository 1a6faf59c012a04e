"""The contract of a multi-head layer: projections around an attention, which is checked, too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np

from ..attention import discover
from ..attention.cases import ATTENTION
from ..attention.contract import Attention
from ..engine.cases.draws import Strategy
from ..engine.core import declare as declaring
from ..engine.core.contract import Dtypes, Formal, register
from ..engine.core.declare import Property
from ..engine.core.finding import Finding
from ..engine.core.picture import Picture
from ..engine.core.target import Target
from ..engine.core.trial import Refuted, Trial
from .call import as_attention, no_gradients
from .cases import MULTIHEAD, with_keys
from .trial import LayerTrial

declare = partial(declaring.declare, contract=MULTIHEAD.name)


class Multihead(Attention):
    """Queries, keys, values and weights in; the output and the attention weights out."""

    name = MULTIHEAD.name
    call = (
        "multihead(query, key, value, weights, *, num_heads, attn_mask=None, key_padding_mask=None, is_causal=False, need_weights=True, "
        "bias_k=None, bias_v=None, add_zero_attn=False)"
    )
    known = (*Attention.known, "bias_k", "add_zero_attn")
    given = (*Attention.given, "bias_v")
    arguments = 4
    topics = (MULTIHEAD, ATTENTION)
    pair: tuple[str, ...] = ("layer_is_inside_the_bound",)
    pair_too: tuple[str, ...] = ()
    pair_gradients: tuple[str, ...] = ("layer_gradients_are_slopes",)
    pair_large: Mapping[str, Any] = {}
    mentions = ()
    fallback = False
    probed = False
    capabilities = ("layer_gradients",)
    repeats = False

    def recognise(self, formal: Formal) -> bool:
        """What begins with a token is an encoder or decoder layer, and its weights come earlier."""
        names = list(formal)
        return "weights" in formal and "num_heads" in formal and (names[0] in ("q", "query") or names.index("weights") > 2)

    def smoke(self, target: Target, dtype: str, device: str) -> str:
        return discover.smoke(as_attention(target), dtype, device)

    def discover(self, target: Target, device: str, open_ended: bool) -> Target:
        return discover.with_few_shapes(target, as_attention(target), device)

    def handshake(self, target: Target, device: str) -> Target:
        return target

    def view(self, target: Target, about: str) -> Target:
        return as_attention(target) if about == ATTENTION.name else target

    def cases(self, target: Target, prop: Property, device: str, dtypes: Dtypes) -> Strategy:
        return super().cases(target, with_keys(prop), device, dtypes)

    def sizes(self, target: Target, arrays: Sequence[tuple[tuple[int, ...], str]]) -> tuple[dict[str, Any], str]:
        return {}, ""

    def disturb(self, trial: Any) -> None:
        name = ("", "query", "key", "value")[trial.choice("disturb", 4)]
        if name:
            other = LayerTrial(trial.target, trial.case)
            other.buffers = trial.buffers
            with suppress(Refuted), np.errstate(all="ignore"):
                other.run_layer(trial.layer.but(**{name: -getattr(trial.layer, name)}))

    def measure(self, target: Target, finding: Finding) -> None:
        return None

    def pictures(self, target: Target, finding: Finding, like: Sequence[Any]) -> tuple[Picture, ...]:
        return ()

    def looser(self, target: Target, finding: Finding) -> None:
        return None

    def lacks(self, target: Target, capability: str) -> str:
        if capability not in self.capabilities:
            return super().lacks(target, capability)
        return no_gradients(target)

    def trial(self, prop: Property) -> type[Trial]:
        return LayerTrial


register(Multihead())
