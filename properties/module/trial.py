"""A trial of a module: what a property sees."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import cached_property
from typing import Any

import numpy as np

from ..engine.cases.coordinates import Array, uniform
from ..engine.cases.dtypes import round_to
from ..engine.contained.link import Gone
from ..engine.core.target import CannotRun, NotTaken, Raised
from ..engine.core.trial import Refuted, Trial
from ..engine.frameworks import Lying
from . import bound
from .away import Away
from .cases import FAR, GAUSSIAN
from .names import Sizes
from .readings import formal_of
from .speech import Saying, Tokens, arguments_of, call, first_array, hooks, read, unspoken
from .subject import Facts, Subject, dropouts, duplicate, set_dropout
from .weights import UNIFORM

LARGE = 8.0  # times as large are weights with which logits are large

SEEDS = 32  # of calls in train mode that would show whether something is dropped
_UNDROPPED: weakref.WeakSet[Subject] = weakref.WeakSet()  # those of whose dropouts names do not tell all


class ModuleTrial(Trial):
    """What a property of a module sees."""

    @property
    def subject(self) -> Subject:
        """How the module is made and called."""
        subject: Subject = self.target.function  # type: ignore[assignment]
        return subject

    @property
    def facts(self) -> Facts:
        """What is known of it."""
        return self.subject.facts

    like: ModuleTrial | None = None  # of the target, where this is that of its reference
    given: list[Any] | None = None  # the arguments of a call by position, in place of those that the case stands for

    _runs = len(bound.SAMPLES)  # from how many the bound is measured

    @cached_property
    def module(self) -> Any:
        """The module of the case, in eval mode."""
        return self.anew()

    @cached_property
    def trained(self) -> Any:
        """A copy in train mode, without dropout."""
        return self.training(duplicate(self.module))

    def _trained_anew(self) -> Any:
        return self.training(self.anew())

    def training(self, made: Any) -> Any:
        """A module, from now on in train mode, without dropout."""
        made.train()
        set_dropout(made, 0.0)
        if self.undropped and isinstance(made, Away):
            made.change("undropped")
        elif self.undropped:
            hooks(self.target.framework).undropped(made)
        return made

    def without_dropout(self) -> None:
        """From now on what is in train mode drops nothing, whatever its probabilities are called, in later trials, too."""
        _UNDROPPED.add(self.subject)
        vars(self).pop("trained", None)

    @property
    def undropped(self) -> bool:
        """Whether functions of dropout drop nothing in train mode."""
        return self.subject in _UNDROPPED

    def draws(self) -> bool:
        """Whether what it answers in train mode hangs on random numbers; one token may be dropped by few of them."""
        first = None
        for seed in range(SEEDS):
            with hooks(self.target.framework).still(), self.target.framework.chance(seed):
                out = self.read(self.result(module=self.trained), self.inputs)
            first = out if first is None else first
            if not np.array_equal(first, out, equal_nan=True):
                return True
        return False

    def anew(self) -> Any:
        """Another one of the case; with the weights of the target, where it is the reference. Raises Raised, NotTaken."""
        # behind a norm large tokens make no large logits, large weights do
        made = self.made(gain=LARGE if self.case.magnitude in FAR and self.choice("gain", 2) else 1.0)
        if self.like is not None and self.subject.take:
            self.subject.take(made, self.like.module)
        return made

    def made(self, sizes: Sizes | None = None, gain: float = 1.0, other: int = 0, silent: tuple[str, ...] = ()) -> Any:
        """Another one of the same weights; ``gain`` multiplies its matrices; one of ``other`` weights and luck;
        parameters that are ``silent`` are 0. Raises Raised, NotTaken."""
        case = self.case
        try:
            return dataclasses.replace(self.subject, silent=silent).module(
                case.dtype, case.device, case.seed + other, gain, sizes or case.sizes, luck=other, how=case.weights
            )
        except Gone as error:
            raise Raised(error) from None
        except CannotRun as error:
            if (sizes or case.sizes) == Sizes():
                raise Raised(error) from None
            raise NotTaken(f"{case.sizes.heads} heads of {case.sizes.head_dim} features, which its constructor refuses") from None

    @cached_property
    def speech(self) -> Any:
        """How the module of the case is called."""
        return self.subject.fits(self.case.sizes)

    @cached_property
    def untried(self) -> list[str]:
        """The optional arguments of its ``forward`` that are never given, or always."""
        formal, roles = formal_of(self.module), self.subject.speech.roles
        always = [
            f"a call without {name}" for name, p in formal.items() if roles.get(name) in ("query", "key", "value") and p.default is None
        ]
        return [*(name for name, p in formal.items() if unspoken(p, self.subject.speech)), *always]

    @property
    def causal(self) -> bool:
        """Whether no token may see a later one in the call of the case."""
        return bool(self.facts.causal) or self.flagged

    @property
    def flagged(self) -> bool:
        """Whether the call of the case says that it is causal; one with a memory does not."""
        return bool(self.case.is_causal) and self.self_attends

    @property
    def self_attends(self) -> bool:
        """Whether tokens are their own memory in the call of the case."""
        return self.facts.sees_itself and self.case.memory is None

    @cached_property
    def inputs(self) -> Tokens:
        """The arguments of the call that the case stands for."""
        case = self.case
        x = self.tokens("x", case.length, self.speech.width)
        memory = None if self.self_attends else self.tokens("memory", case.memory or 1, self.speech.memory_width)
        return self.hiding(Tokens(x, memory, None, self.flagged)) if case.padded else Tokens(x, memory, None, self.flagged)

    def tokens(self, name: str, length: int, width: int) -> Array:
        """(B, length, width) numbers of the type."""
        drawn = self.numbers(name, (self.case.batch, length, width)) * 2.0**self.case.magnitude
        return round_to(self.case.dtype, drawn)

    def numbers(self, name: str, shape: tuple[int, ...]) -> Array:
        """What tokens are made of, as the case says."""
        if self.case.values == UNIFORM:
            return uniform(self.case.seed, f"{name} uniform", shape)
        drawn = self.noise(name, shape)
        more = [self.noise(f"{name} {number}", shape) for number in (2, 3)] if self.case.values == GAUSSIAN else []
        return np.asarray(sum(more, drawn) / np.sqrt(1 + len(more)))

    @cached_property
    def saying(self) -> Saying:
        """The mask of the case: one of those that say something of its tokens. Raises NotTaken if none does."""
        memory = not self.self_attends
        able = [each for each in self.speech.masks if not (each.own if memory else each.cross)]
        if self.flagged:  # the hint of causality is documented to go with a mask that is causal, and nothing else
            able = [each for each in able if each.parameter != self.speech.hinted]
        if not able:
            raise NotTaken("tokens of which no mask says anything")
        return able[self.choice("mask", len(able))]

    @property
    def by(self) -> str:
        """Words that say which mask it is, where there are several."""
        return f" ({self.saying.parameter})" if len(self.speech.masks) > 1 else ""

    def hidden(self, tokens: Tokens) -> list[tuple[int, ...]]:
        """Which tokens of each sequence are hidden, another number for each: its last ones, or, beside a reference, its first ones; never all."""
        count, saying = tokens.hideable, self.saying
        numbers = [self.choice(f"hidden {b}", max((count + 1) // 2, 1)) for b in range(self.case.batch)]
        other: Any = self.like.target if self.like else self.target.like
        causal = other is None or self.flagged or self.facts.causal or other.function.facts.causal
        begins = not (causal or saying.longest or saying.shape == "lengths") and self.choice("begins", 2)
        hidden = [tuple(range(n)) if begins else tuple(range(count - n, count)) for n in numbers]
        return [*hidden[:-1], ()] if self.saying.longest else hidden

    def hiding(self, tokens: Tokens) -> Tokens:
        """The same call with a mask that hides them from all rows."""
        tokens = dataclasses.replace(tokens, by=self.saying)
        visible = np.ones((self.case.batch, 1, tokens.hideable), dtype=bool)
        hidden = self.hidden(tokens)
        for b, places in enumerate(hidden if self.saying.shape != "ls" else [hidden[0]] * len(hidden)):
            visible[b, :, list(places)] = False
        return dataclasses.replace(tokens, visible=visible)

    def second_mask(self, tokens: Tokens) -> Tokens | None:
        """The same call with another mask beside it, which hides the second token from all rows; None where none is taken."""
        first = self.saying
        able = [
            each
            for each in self.speech.masks
            if each.parameter not in (first.parameter, self.speech.hinted)
            and (each.own, each.beside, each.cross) == (first.own, first.beside, first.cross)
            and each.effect == first.effect == "right"
            and not (each.whole or first.whole or each.shape == "lengths")
        ]
        if not able or tokens.visible is None or not tokens.visible[:, 0, :2].all() or tokens.hideable < 3:
            return None
        seen = np.ones((1, 1, tokens.hideable), dtype=bool)
        seen[..., 1] = False
        both = dataclasses.replace(tokens, second=(able[self.choice("second mask", len(able))], seen))
        try:
            self.run(both)
        except Raised:
            return None  # it takes one at a time
        return both

    def own_rows(self, tokens: Tokens | None = None) -> Array:
        """(B, L or 1, 1) bool: rows that are not those of hidden tokens; what these give is a convention."""
        tokens = tokens or self.inputs
        visible = tokens.visible
        if visible is None or tokens.about != "x" or self.speech.pooled:
            return np.ones((self.case.batch, 1, 1), dtype=bool)
        return np.asarray(visible[:, 0, :, None])

    def other(self, x: Array, places: Any) -> Array:
        """The same tokens, other numbers at these places (a mask over the axes of x that are given)."""
        where = np.broadcast_to(np.asarray(places).reshape((*np.shape(places), *(1,) * (x.ndim - np.ndim(places)))), x.shape)
        return np.where(where, round_to(self.case.dtype, 1.5 - 2 * x), x)

    # ------------------------------------------------------------ calls

    def run(self, tokens: Tokens | None = None, module: Any = None, way: str = "") -> Array:
        """The output (B, L, D') of a call without gradients. All calls of a trial with the same shapes use the same memory. Raises Raised.

        ``way``: one of ``Framework.ways``, train mode aside.
        """
        tokens, fw = self.inputs if tokens is None else tokens, self.target.framework
        with hooks(fw).still(), fw.told(way) if way else nullcontext(), fw.chance(self.case.seed):
            return self.read(self.result(tokens, module), tokens)

    def result(self, tokens: Tokens | None = None, module: Any = None) -> Any:
        """What the module returns, whatever it is. Raises Raised."""
        tokens = self.inputs if tokens is None else tokens
        self._accepted(tokens)
        called = dataclasses.replace(self.target, function=lambda: self._call(tokens, module))
        with hooks(self.target.framework).still() if self.facts.unrecordable else nullcontext():
            return called.apply()

    def _accepted(self, tokens: Tokens) -> None:
        """Raises NotTaken for a call that it is known to refuse."""
        if tokens.x.shape[1] < self.facts.shortest:
            raise NotTaken(f"fewer than {self.facts.shortest} tokens")
        if self.facts.apart and tokens.visible is not None and tokens.is_causal:
            raise NotTaken(f"a mask together with {self.speech.flag}")

    def _call(self, tokens: Tokens, module: Any) -> Any:
        fw, case = self.target.framework, self.case
        through = self.subject.through(self.module if module is None else module)
        return call(through, self.speech, tokens, fw, self.buffers, case.dtype, case.device)

    @contextmanager
    def other_memory(self, layout: str = "") -> Iterator[None]:
        """While it is open, calls are given other memory than those before, where arrays may lie in another layout."""
        fw = self.target.framework
        held, self.buffers = self.buffers, Lying(fw, layout) if layout else self.target.buffers()
        try:
            yield
        finally:
            self.buffers = held

    def send_back(self, result: Any, weights: Any) -> None:
        """The gradient of Σ result · weights into every parameter. Raises Raised."""
        dataclasses.replace(self.target, function=lambda: hooks(self.target.framework).send_back(result, weights)).apply()

    def read(self, result: Any, tokens: Tokens) -> Array:
        """The output (B, L, D') in what the module returns for these tokens. Raises Raised."""
        out = read(result, self.speech, self.target.framework)
        rows = self.speech.pooled or tokens.x.shape[1]
        if self.speech.forms:
            return out
        if out.ndim != 3 or out.shape[:2] != (len(tokens.x), rows):
            self.fail(f"the output has shape {out.shape} for tokens {tokens.x.shape}")
        return out

    def arguments(self, tokens: Tokens) -> Mapping[str, Any]:
        """What a call is given, under the names of ``forward``."""
        case = self.case
        return arguments_of(self.speech, tokens, self.target.framework, self.buffers, case.dtype, case.device)

    def form(self, result: Any) -> tuple[tuple[int, ...], str, str]:
        """Shape, dtype and device of the output."""
        return self.target.framework.describe(first_array(result, self.target.framework))

    def allowed(self, tokens: Tokens | None = None, module: Any = None) -> Array:
        """How far the answer to a call may be off, element by element."""
        return self.exact(tokens, module)[1]

    def exact(
        self, tokens: Tokens | None = None, module: Any = None, narrows: bool = False, runs: int | None = None
    ) -> tuple[Array, Array]:
        """(the answer of the module in float64, how far that of the type may be from it). Raises Raised.

        ``runs``: from how many that is measured, if not from all; 0: nothing is said of it.
        ``narrows``: with what it casts to narrower types; so it is in any case where its documentation says that it does.
        """
        tokens, case = self.inputs if tokens is None else tokens, self.case
        self._accepted(tokens)
        anew: Callable[[], Any] | None = None
        if module in (None, self.module):
            anew = self.anew
        elif module is vars(self).get("trained"):
            anew = self._trained_anew
        module = self.module if module is None else module
        seed, runs = case.seed * 31 + 7, self._runs if runs is None else runs
        try:
            answer, allowed = bound.spread(
                self.subject,
                module,
                self.speech,
                tokens,
                case.dtype,
                case.device,
                seed,
                runs,
                anew,
                narrows or self.subject.said_narrow,
            )
        except Raised:
            raise
        except (Exception, SystemExit) as error:
            raise Raised(error) from error
        if runs and case.dtype == "float64" and bound.scatters(answer, allowed * (len(bound.SAMPLES) / runs) ** 0.5):
            self.fail("where every operation is rounded a little, the answers of float64 scatter by more than their size")
        return answer, allowed

    def apart(self, actual: Array, expected: Array, allowed: Array) -> bool:
        """Whether an element is farther off than is allowed, as ``close`` tells it."""
        with np.errstate(invalid="ignore"):
            within = (np.abs(actual - expected) <= allowed) | (actual == expected) | (np.isnan(actual) & np.isnan(expected))
        return not (within | (allowed == np.inf)).all()

    def narrowed(self, actual: Array) -> bool:
        """Whether the roundings of what the module casts to narrower types explain an answer."""
        try:
            return not self.apart(actual, *self.exact(narrows=True))
        except Raised:
            return False

    def unmoved(self, actual: Array, expected: Array, says: str, where: Any = True, rows: slice = slice(None)) -> None:
        """Bit for bit the same, whatever stands elsewhere; of routed tokens within rounding: how many come to an expert decides how it sums."""
        if self.facts.routed:
            self.agree(actual, expected, lambda: 2 * self.allowed()[:, rows], says, where)
        else:
            self.same_bits(actual, expected, says, where)

    def agree(self, actual: Array, expected: Array, allowed: Any, says: str, where: Any = True) -> None:
        """Two answers differ by no more than rounding explains. ``allowed()`` is asked for only where they differ at all."""
        if np.array_equal(actual, expected, equal_nan=True):
            self.notes.compared += actual.size
            return
        self._runs = 1  # what is within a part of the bound is within the whole, which takes more than three times as long
        try:
            part = allowed()
        finally:
            self._runs = len(bound.SAMPLES)
        if not self.apart(actual, expected, part) and (part != np.inf).all():
            self.notes.compared += actual.size
            return
        self.close(actual, expected, allowed(), says, where)


def or_undropped(trials: Sequence[ModuleTrial], agree: Callable[[], None], undropped: Callable[[], None]) -> None:
    """What has to agree in train mode without dropout; where it does not, and the last one drops something by a name that nobody knows, the same
    while functions of dropout drop nothing. Raises NotTaken where random numbers are drawn even then.
    """
    *_, last = trials
    if not last.undropped:
        try:
            return agree()
        except Refuted:
            if not (dropouts(last.trained) or last.draws()):
                raise
        for one in trials:
            one.without_dropout()
    try:
        undropped()
    except Refuted:
        if any(one.draws() for one in trials):
            raise NotTaken("train mode, in which random numbers are drawn by something else than functions of dropout") from None
        raise
