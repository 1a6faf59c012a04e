"""A candidate's module in its process: it is made once for each way to call it, and every call brings the weights."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

import numpy as np

from ..engine.contained.load import made_with
from ..engine.contained.values import FLOATS
from ..engine.frameworks import Framework, Lying, draws, sets_the_seed
from .speech import first_array, hooks
from .subject import duplicate, set_dropout

RECORDED = "recorded"  # for a backward pass, as none of ``Framework.ways`` is


class AnswerChanged(Exception):
    """A call has written into the answer to an earlier one."""


class ArgumentChanged(Exception):
    """A call has written into what it was given, as its reference does not."""


class ProcessChanged(Exception):
    """A call has changed what other code depends on: settings, or the seed of random numbers."""


class Held:
    """A module of the target's, or its class. ``given``: what its class is ``made_with``."""

    def __init__(self, found: Any, fw: Framework) -> None:
        self.found, self.fw = found, fw
        self.earlier: tuple[Any, Any] | None = None  # the last answer, and what it was
        self.seeds: dict[tuple[bool, str], bool] = {}  # train mode, way → whether a call sets the seed of random numbers
        self.looked: weakref.WeakSet[Any] = weakref.WeakSet()  # modules of which it is known whether they draw random numbers in train mode
        self.made: dict[tuple[str, bool, str], Any] = {}  # dtype (what is cast twice is not what it was), train mode, way → the module

    def weights(self, given: Any) -> list[tuple[str, Any]]:
        """The names and arrays of its parameters."""
        return [(name, weight.data) for name, weight in self._in("float64", given, False, "").named_parameters()]

    def formal(self, given: Any) -> list[str]:
        """The names of the parameters of its ``forward``; none where it takes whatever comes, or that cannot be told."""
        try:
            formal = inspect.signature(self._in("float64", given, False, "").forward).parameters.values()
        except (TypeError, ValueError):
            return []
        return [] if any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in formal) else [p.name for p in formal]

    def answer(self, given: Any, weights: list[Any], arguments: list[Any], options: dict[str, Any], how: Mapping[str, Any]) -> Any:
        """What it returns with these weights, in their type; where it is recorded, [the output, whether it carries a gradient].

        ``how``: whether in ``training`` mode, without dropout (in eval mode that is the module's own business); in which ``way``; of which
        arguments gradients are ``asked``, at which places, or under which names, each is; which do not lie row by row, but are ``turned``;
        whether the reference ``writes`` into its own, or ``changes`` the process.
        Raises ArgumentChanged, AnswerChanged, ProcessChanged, and as the module does.
        """
        module = self._with(given, weights, how["training"], how["way"])
        for at in how["turned"]:
            among: Any = arguments if isinstance(at, int) else options
            _, dtype, device = self.fw.describe(among[at])
            among[at] = Lying(self.fw, "feature_major").array("", self.fw.read(among[at]), dtype, device, "")
        self._undrop(module, arguments, options, how["training"], how["way"])
        self._leaves(arguments, options, how["asked"])
        arrays = {name: x for name, x in (*enumerate(arguments, 1), *options.items()) if self.fw.is_array(x)}
        before = {name: self.fw.read(x) for name, x in arrays.items()}
        with self._told(how["way"]), self.fw.settings_kept() as changed:
            result = module(*arguments, **options)
            if (names := changed()) and not how["changes"]:
                raise ProcessChanged(f"it changes {' and '.join(names)}, and leaves it so")
        for name, x in arrays.items() if not how["writes"] else ():
            if not np.array_equal(self.fw.read(x), before[name], equal_nan=True):
                raise ArgumentChanged(f"it writes into its argument {name}")
        if how["training"] and not how["writes"]:
            for (name, parameter), weight in zip(module.named_parameters(), weights, strict=True):
                if not np.array_equal(self.fw.read(parameter), self.fw.read(weight), equal_nan=True):
                    raise ArgumentChanged(f"it writes into its weight {name}")
        if not (how["changes"] or how["writes"]) and self._seeds(lambda: module(*arguments, **options), how["training"], how["way"]):
            raise ProcessChanged("it sets the seed of the random numbers: what is drawn after it is the same, whatever was before")
        out = first_array(result, self.fw)
        self._remember(out, list(arrays.values()))
        return [out.detach(), self.fw.asks(out)] if how["way"] == RECORDED else result

    def _seeds(self, call: Callable[[], Any], training: bool, way: str) -> bool:
        """Whether what is drawn after a call is the same, whatever was drawn before it; found out once for each way."""
        if (training, way) not in self.seeds:
            with self._told(way):
                self.seeds[training, way] = sets_the_seed(self.fw, call)
        return self.seeds[training, way]

    def _remember(self, out: Any, arguments: Sequence[Any]) -> None:
        """The answer, until the next one is there. One that lies in an argument is changed with it."""
        earlier, self.earlier = self.earlier, None
        if not any(self.fw.shares_memory(out, x) for x in arguments):
            self.earlier = out.detach(), self.fw.read(out)
        if earlier and not np.array_equal(self.fw.read(earlier[0]), earlier[1], equal_nan=True):
            raise AnswerChanged("the answer to the call before it is another one afterwards")

    def sent_back(
        self, given: Any, weights: list[Any], arguments: list[Any], options: dict[str, Any], how: Mapping[str, Any], grad: Any
    ) -> list[Any]:
        """The gradients of Σ out · grad in its parameters, and in the arguments that are ``asked``; None where there is none."""
        module = self._with(given, weights, how["training"], RECORDED)
        for parameter in module.parameters():
            parameter.grad = None
        self._undrop(module, arguments, options, how["training"], RECORDED)
        leaves = self._leaves(arguments, options, how["asked"])
        out = first_array(module(*arguments, **options), self.fw)
        with suppress(Exception):  # what a backward pass needs belongs to its call, and not to the last one
            module(*map(self._other, arguments), **{name: self._other(x) for name, x in options.items()})
        hooks(self.fw).send_back(out, grad)
        return [held.grad for held in (*module.parameters(), *leaves)]

    def _undrop(self, module: Any, arguments: list[Any], options: dict[str, Any], training: bool, way: str) -> None:
        """Have functions of dropout drop nothing, where a call in train mode draws random numbers; that is asked once."""
        if not training or module in self.looked:
            return
        self.looked.add(module)
        given, named = list(map(self._other, arguments)), {name: self._other(x) for name, x in options.items()}
        with suppress(Exception), self._told(way):
            if draws(self.fw, lambda: module(*given, **named)):
                hooks(self.fw).undropped(module)

    def _other(self, x: Any) -> Any:
        """Other numbers, where these are numbers."""
        return 1.5 - 2 * x.detach() if self.fw.is_array(x) and self.fw.describe(x)[1] in FLOATS else x

    def _leaves(self, arguments: list[Any], options: dict[str, Any], asked: Sequence[Sequence[Any]]) -> list[Any]:
        """The arguments in which gradients are asked, which are recorded from then on."""
        leaves = []
        for places in asked:
            among: list[Any] = [arguments if isinstance(at, int) else options for at in places]
            leaves.append(hooks(self.fw).leaf(among[0][places[0]].detach()))
            passed = hooks(self.fw).as_passed(leaves[-1])
            for holder, at in zip(among, places, strict=True):
                holder[at] = passed
        return leaves

    def _told(self, way: str) -> AbstractContextManager[Any]:
        if way == RECORDED:
            return nullcontext()
        return self.fw.told(way) if way else hooks(self.fw).still()

    def _with(self, given: Any, weights: list[Any], training: bool, way: str) -> Any:
        module = self._in(self.fw.describe(weights[0])[1] if weights else "float64", given, training, way)
        for parameter, weight in zip(module.parameters(), weights, strict=True):
            with hooks(self.fw).still():  # as an optimizer writes: what is kept of the old ones can see that
                self.fw.assign(parameter, self.fw.read(weight))
        return module

    def _in(self, dtype: str, given: Any, training: bool, way: str) -> Any:
        """What one way leaves behind, as statistics of a batch, or a table of which no gradient can be asked, is nothing to the others."""
        if (dtype, training, way) not in self.made:
            with self.fw.chance(0):
                made = made_with(given, self.found) if isinstance(self.found, type) else duplicate(self.found)
            if training:
                made.train()
                set_dropout(made, 0.0)
            else:
                made.eval()  # one of its own may return nothing
            self.made[dtype, training, way] = hooks(self.fw).cast(made, self.fw.named_dtype(dtype))
        return self.made[dtype, training, way]
