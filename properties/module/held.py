"""A candidate's module in its process: it is made once for each way to call it, and every call brings the weights."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from ..engine.contained.load import made_with
from ..engine.frameworks import Framework
from .speech import first_array, hooks
from .subject import set_dropout

RECORDED = "recorded"  # for a backward pass, as none of ``Framework.ways`` is


class Held:
    """A module of the target's, or its class. ``given``: what its class is ``made_with``."""

    def __init__(self, found: Any, fw: Framework) -> None:
        self.found, self.fw = found, fw
        self.made: dict[tuple[str, bool, str], Any] = {}  # dtype (what is cast twice is not what it was), train mode, way → the module

    def weights(self, given: Any) -> list[tuple[str, Any]]:
        """The names and arrays of its parameters."""
        return [(name, weight.data) for name, weight in self._in("float64", given, False, "").named_parameters()]

    def answer(self, given: Any, weights: list[Any], arguments: list[Any], options: dict[str, Any], training: bool, way: str) -> Any:
        """What it returns with these weights, in their type; where it is recorded, [the output, whether it carries a gradient].

        Without dropout in train mode; in eval mode that is the module's own business.
        """
        module = self._with(given, weights, training, way)
        with self._told(way):
            result = module(*arguments, **options)
        if way != RECORDED:
            return result
        out = first_array(result, self.fw)
        return [out.detach(), self.fw.asks(out)]

    def sent_back(
        self,
        given: Any,
        weights: list[Any],
        arguments: list[Any],
        options: dict[str, Any],
        training: bool,
        asked: Sequence[Sequence[int | str]],
        grad: Any,
    ) -> list[Any]:
        """The gradients of Σ out · grad in its parameters, and in the arguments that are ``asked``; None where there is none.

        Of each of these it is said at which places, or under which names, it is.
        """
        module = self._with(given, weights, training, RECORDED)
        for parameter in module.parameters():
            parameter.grad = None
        leaves = []
        for places in asked:
            among: list[Any] = [arguments if isinstance(at, int) else options for at in places]
            leaves.append(hooks(self.fw).leaf(among[0][places[0]].detach()))
            for holder, at in zip(among, places, strict=True):
                holder[at] = leaves[-1]
        hooks(self.fw).send_back(first_array(module(*arguments, **options), self.fw), grad)
        return [held.grad for held in (*module.parameters(), *leaves)]

    def _told(self, way: str) -> AbstractContextManager[Any]:
        if way == RECORDED:
            return nullcontext()
        return self.fw.told(way) if way else hooks(self.fw).still()

    def _with(self, given: Any, weights: list[Any], training: bool, way: str) -> Any:
        module = self._in(self.fw.describe(weights[0])[1] if weights else "float64", given, training, way)
        for parameter, weight in zip(module.parameters(), weights, strict=True):
            self.fw.assign(parameter.data, self.fw.read(weight))
        return module

    def _in(self, dtype: str, given: Any, training: bool, way: str) -> Any:
        """What one way leaves behind, as statistics of a batch, or a table of which no gradient can be asked, is nothing to the others."""
        if (dtype, training, way) not in self.made:
            with self.fw.chance(0):
                made = made_with(given, self.found) if isinstance(self.found, type) else copy.deepcopy(self.found)
            if training:
                made.train()
                set_dropout(made, 0.0)
            else:
                made.eval()  # one of its own may return nothing
            self.made[dtype, training, way] = hooks(self.fw).cast(made, self.fw.named_dtype(dtype))
        return self.made[dtype, training, way]
