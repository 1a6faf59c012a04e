"""What the parameters of a callable mean whose plain call is known: each is confirmed by its effect, or reported as not tried."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..engine.core.contract import Formal
from ..engine.core.supports import CHOICES
from ..engine.core.target import Raised, Target
from ..engine.frameworks.machine import machine
from .axes import NATIVE
from .axes import known as axes_of
from .call import answer, attend
from .fillers import TEMPERATURES, fillers, has_meaning, meanings, moved, words_of
from .inputs import Inputs
from .question import ADDED_KINDS, EVERYWHERE, Question, documented_corner, exactly, may_be_a_number, meant
from .readings import first_tokens
from .speech import ADDED, BESIDE, BOTH_SIDES, FORMS, NUMBERS, ROWS, SAID, SECONDS, SQUARE, TEMPERED, UNLIKE, Reading, second_array
from .window import LENGTH, band_of, visible

NO_HEADS = (2, 13)  # in PyTorch before, a call without heads ends the process where its own attention is called
TURNED = SAID[1]
PLACED = ("is_causal", "window_size", "alibi_slopes")  # what depends on the place of a query


@dataclass
class Learner:
    """What is learned of a target whose plain call is known, one question after the other."""

    question: Question
    formal: Formal
    declared: frozenset[str]
    reading: Reading
    learned: dict[str, str]
    works: bool

    def learn(self) -> Target:
        target = self.question.target
        own = target.parameters if self.works else target.kind.options(self.formal)
        self.parameters = [name for name in own if meant(name) in (None, name)]
        self.supports: dict[str, Any] = {}
        self.untried: dict[str, str] = {}
        self.wrong: dict[str, str] = {}
        self.unsure: set[str] = set()  # kinds of masks that mean what is near alone: which rows they leave without keys nobody knows
        if self.reading.unlike and self.reading.weights:
            self.wrong["weights"] = (
                "it is right for weights of as many features as the tokens alone; with fewer it raises nothing, and is off by "
                f"{self.reading.unlike:.2g}: is its scale that of the tokens?"
            )
        elif self.reading.unlike:
            self.wrong["lengths"] = UNLIKE.format(self.reading.unlike)
        if self.reading.layout == "bld" and not self.reading.filled and (off := self.question.off(Reading(), self.question.inputs())):
            self.wrong["axes"] = (
                "it is right where q, k and v have three axes, (batch · heads, length, dim); with four, (batch, heads, length, dim), it raises "
                f"nothing, and is off by {off:.2g}"
            )
        start = target.supports
        if self.reading.layout not in NATIVE:
            self.untried = {
                name: f"not tried where axes are {axes_of(self.reading.layout).words}" for name in self.parameters if name not in EVERYWHERE
            }
            self.parameters = [name for name in self.parameters if name in EVERYWHERE]
            if axes_of(self.reading.layout).decoding:
                self._decoding()
            self.reading = replace(self.reading, second=self._second(self.reading, self.question.inputs()))
        if start.parameters is None:
            if self.reading.always:
                self._always()
            for learn_one in (self._scale, self._mask, self._causal, self._word, self._features, self._first_tokens, self._asked_for):
                learn_one()
            self._square()
            self._together()
        else:
            self.parameters = list(start.parameters)
        self._views()
        self._meanings()
        self._moved()
        self._groups()
        self._sizes()
        self._empty_rows()
        reading = self.reading
        used = {
            *reading.names.values(),
            *reading.given,
            *self.parameters,
            *self.learned,
            *self.untried,
            *self.wrong,
            *target.untried,
            reading.heads,
            reading.into,
        }
        self.untried |= {
            name: "the contract has no such parameter"
            for name, formal in self.formal.items()
            if formal.default is not formal.empty and name not in used and name not in dict(reading.said.values())
        }
        found = {key: value for key, value in self.supports.items() if key not in self.declared}
        view = self.question.view(self.reading, found)
        return replace(
            view,
            parameters=tuple(self.parameters),
            learned=self.learned,
            untried={**view.untried, **self.untried},
            wrong={**view.wrong, **self.wrong},
        )

    def _views(self) -> None:
        """Whether arrays may be views of those of another order of axes."""
        inputs, plain = self.question.inputs(), replace(self.reading, compact=False)
        if self.question.answer(plain, inputs) is not None:
            self.reading = plain
        elif self.reading.layout != "bhld":
            self.learned["memory"] = "contiguous arrays alone: copies are given"
            self.supports["memory"] = ("contiguous",)

    def _but(self, off: float) -> str:
        return "" if off < self.question.near else f" (the nearest meaning: off by {off:.2g})"

    def _decoding(self) -> None:
        """One query a call: what says where a query stands among the keys is not asked."""
        for name in self.formal:
            if (meant(name) or name) in PLACED:
                self.untried[name] = f"{meant(name) or name}, not tried where each query is a call: it has no place among the others"
        self.parameters = [name for name in self.parameters if name not in PLACED]

    def _named(self, ours: str) -> list[str]:
        """The target's other names for a parameter."""
        return [] if ours in self.formal else [name for name in self.formal if meant(name) == ours and name not in self.untried]

    def _take(self, ours: str, reading: Reading, says: str, theirs: str) -> None:
        self.reading = reading
        self.parameters += [ours] if ours not in self.parameters else []
        self.learned[theirs] = says

    def _scale(self) -> None:
        rooted = [self.reading.names["scale"]] if self.reading.tempered else []
        for theirs in rooted or self._named("scale"):
            reading = replace(self.reading, names={**self.reading.names, "scale": theirs})
            off = self.question.off(reading, dataclasses.replace(self.question.inputs(), scale=0.3))
            if off is None:
                self.untried[theirs] = "it looks like scale, but a scale of 0.3 is not taken"
                continue
            required = ", required: 1/sqrt(dim) is passed" if reading.scaled else ""
            self._take("scale", reading, "scale" + required + self._but(off), theirs)
            return
        if "scale" not in self.parameters:
            self._temperature()

    def _temperature(self) -> None:
        """A scale that is said by what logits are divided by."""
        for theirs in (name for name in self.formal if words_of(name) & TEMPERATURES):
            required = theirs in self.reading.filled
            left = {name: filler for name, filler in self.reading.filled.items() if name != theirs}
            plain = replace(self.reading, names={**self.reading.names, "scale": theirs}, filled=left, scaled=required)
            readings = [replace(plain, tempered=how) for how in TEMPERED[:2]]
            offs = [self.question.off(one, dataclasses.replace(self.question.inputs(), scale=0.3)) for one in readings]
            known = [(off, one) for off, one in zip(offs, readings, strict=True) if off is not None]
            off, reading = min(known, key=lambda pair: pair[0], default=(np.inf, plain))
            if off < self.question.near:
                words = f"scale, as a temperature that {reading.tempered} are divided by" + ", required" * required
                self._take("scale", reading, words, theirs)
                self.supports["scales"] = "positive"
            elif known:
                self.wrong[theirs] = f"by its name logits are divided by it, which is off by {off:.2g}"

    def _causal(self) -> None:
        for theirs in self._named("is_causal"):
            given = {name: value for name, value in self.reading.given.items() if name != theirs}
            always = theirs in self.reading.given
            reading = replace(self.reading, names={**self.reading.names, "is_causal": theirs}, given=given)
            asked = self.question.both(fewer=reading.square == "fewer", is_causal=True)
            offs = {corner: self.question.off(reading, *asked, causal=corner) for corner in ("top-left", "bottom-right")}
            known = {corner: off for corner, off in offs.items() if off is not None}
            if not known:  # for as many queries as keys alone?
                reading = replace(reading, square="causal" if reading.square in ("", "fewer") else reading.square)
                off = self.question.off(reading, *asked)
                if off is None:
                    self.untried[theirs] = "it looks like is_causal, but True is not taken"
                    continue
                known = {"top-left": off}
                self.learned["lengths"] = SQUARE[reading.square]
            corner, (meant_corner, by) = min(known, key=lambda name: known[name]), documented_corner(self.formal, theirs)
            if known[corner] >= self.question.near and len(known) > 1:
                corner = meant_corner or self.question.nearest_corner(reading)
            self.supports["causal"] = corner
            square = reading.square in ("causal", "all") or axes_of(reading.layout).packed
            if meant_corner and corner != meant_corner and known[corner] < self.question.near and not square:
                self.wrong["causal corner"] = (
                    f"with {theirs} it is {corner}; {by} documents {meant_corner}, off by {known.get(meant_corner, np.inf):.2g}; "
                    f'declare causal = "{corner}" if that is meant'
                )
            if always:  # what says nothing of causality passes False
                reading = replace(reading, given={**given, theirs: False})
            for other in (name for name in self._named("is_causal") if name not in (theirs, *reading.given)):
                self._other_causality(other)
            self._take("is_causal", reading, f"is_causal, {corner}" + self._but(known[corner]), theirs)
            return

    def _other_causality(self, theirs: str) -> None:
        """Of a second flag of causality, which corner it has: in the search there is the first one alone."""
        reading = replace(self.reading, names={**self.reading.names, "is_causal": theirs})
        asked, meant_corner = self.question.both(is_causal=True), documented_corner(self.formal, theirs)[0]
        offs = {corner: self.question.off(reading, *asked, causal=corner) for corner in ("top-left", "bottom-right")}
        fits = [corner for corner, off in offs.items() if off is not None and off < self.question.near]
        if fits and meant_corner in ("", *fits):
            self.learned[theirs] = f"is_causal, {fits[0]}; in the search causality is said by the other flag"
        elif fits:
            self.wrong[theirs] = f"by its name it is {meant_corner}; it is {fits[0]}, off by {offs[meant_corner]:.2g}"

    def _asked_for(self) -> None:
        """Whether, where they are asked for, a number for every row, or weights, come back beside the output."""
        for named in BESIDE:
            for theirs in (name for name in self.formal if (meant(name) or name) == named and named not in self.parameters):
                if any(self._comes_back(ours, theirs) for ours in sorted(BESIDE, key=lambda ours: ours != named)):
                    break

    def _comes_back(self, ours: str, theirs: str) -> bool:
        """Whether what comes back where a parameter asks for it has the axes of this: flash-attention's of probabilities gives sums."""
        reading = replace(self.reading, names={**self.reading.names, ours: theirs})
        inputs = self.question.inputs().but(**{ours: True})
        b, _, n, s = inputs.shape
        shapes = (inputs.shape, (b, n, s)) if ours == "need_weights" else (inputs.shape[:3],)  # each head's, or their mean
        second = "" if ours in self.parameters else self._second(reading, inputs, *shapes)
        if second:
            self.untried.pop(theirs, None)
            self._take(ours, replace(reading, second=second), f"{BESIDE[ours]} come{'s' * (ours == 'return_lse')} back, too", theirs)
        return bool(second)

    def _second(self, reading: Reading, inputs: Inputs, *shapes: tuple[int, ...]) -> str:
        """The axes of what comes back beside the output, of sizes that all differ; empty if nothing does. ``shapes``: that it has."""
        fw = self.question.target.framework
        for form in SECONDS:
            view = self.question.view(replace(reading, second=form))
            try:
                second = second_array(answer(view, inputs, view.buffers()), fw)
            except Raised:
                return ""
            if second is not None and tuple(fw.describe(second)[0]) in (shapes or (inputs.shape[:3], inputs.shape)):
                return form
        return ""

    def _features(self) -> None:
        """What models add to the softmax, under other names: each by one call; of as many queries as keys, where rows are asked in other places."""
        inputs = self.question.inputs(queries=7, is_causal=True) if self.reading.always else self.question.inputs()
        heads = np.arange(1.0, inputs.q.shape[1] + 1)
        asked: dict[str, dict[str, Any]] = {
            "softcap": {"softcap": 2.0},
            "kv_lengths": {"lengths": np.array([3, 6])},
            "window_size": {"window": (2, 1)},
            "alibi_slopes": {"slopes": 0.5**heads},
            "sinks": {"sinks": heads - 2},
        }
        for ours, change in asked.items():
            given = [self.reading.neutral[ours]] if ours in self.reading.neutral else self._named(ours)
            for theirs in given or [name for name, p in self.formal.items() if name == ours and may_be_a_number(p)]:
                axes = axes_of(self.reading.layout)
                of_heads = ours in ("sinks", "alibi_slopes") and not ("(bh)" in axes.queries or set(axes.each) & set("kg"))
                if self.reading.layout not in NATIVE and ours not in EVERYWHERE and not of_heads:
                    self.untried[theirs] = f"{ours}, not tried where axes are {axes_of(self.reading.layout).words}"
                    continue
                reading = replace(self.reading, names={**self.reading.names, ours: theirs})
                off = self.question.off(reading, replace(inputs, **change))
                if ours == "window_size" and (off is None or off >= self.question.near) and self._number(theirs):
                    continue
                if theirs == ours in self.parameters:  # as the contract has it
                    continue
                if off is None:
                    self.untried[theirs] = f"it looks like {ours}, but what that takes is not taken"
                elif ours == "kv_lengths" and off >= self.question.near and self._hides_queries(reading):
                    self.untried[theirs] = "it hides queries, too, not keys alone"
                else:
                    wide = replace(reading, wide=True)
                    if (
                        ours == "window_size"
                        and (self.question.off(reading, replace(inputs, window=(None, 1))) or 0.0) >= self.question.near
                    ):
                        unlimited = self.question.off(wide, replace(inputs, window=(None, 1)), replace(inputs, window=(1, None)))
                        reading = wide if unlimited is not None and unlimited < self.question.near else reading
                    words = "; no limit is a number beyond all lengths, not -1" * reading.wide
                    self._take(ours, reading, self.learned.get(theirs, ours) + words + self._but(off), theirs)

    def _hides_queries(self, reading: Reading) -> bool:
        """Whether lengths of keys are heeded, and rows beyond them are what comes of no query."""
        lengths = np.array([3, 6])
        inputs = replace(self.question.inputs(queries=7), lengths=lengths)
        out = self.question.answer(reading, inputs)
        within = np.arange(7)[None, None, :, None] < lengths[:, None, None, None]
        with np.errstate(invalid="ignore"):
            return out is not None and bool(
                (np.abs(out - exactly(inputs, "top-left").out) < self.question.near)[np.broadcast_to(within, out.shape)].all()
            )

    def _number(self, theirs: str) -> bool:
        """Whether a window is one number, under causality or without it."""
        plain = replace(self.reading, names={**self.reading.names, "window_size": theirs})
        corner, square = self.supports.get("causal", "top-left"), self.reading.square in ("causal", "all")
        found: dict[str, dict[bool, float]] = {}
        for number in NUMBERS:
            for causal in (True, False) if "is_causal" in self.parameters else (False,):
                ahead = 0 if causal else 2 if number in BOTH_SIDES else None
                asked = [self.question.inputs(queries=6, keys=keys, is_causal=causal) for keys in ((6,) if square else (6, 9))]
                reading = replace(plain, number=number, open=not causal)
                off = self.question.off(reading, *(replace(one, window=(2, ahead)) for one in asked), causal=corner)
                if off is not None:
                    found.setdefault(number, {})[causal] = off
        if not found:
            return False
        number = min(found, key=lambda one: (sum(off >= self.question.near for off in found[one].values()), min(found[one].values())))
        free, off = found[number].get(False, np.inf) < self.question.near, min(found[number].values())
        if off >= self.question.near and "is_causal" not in self.parameters:
            self._no_window(theirs)
            return True
        if free and number in BOTH_SIDES:
            self.supports["windows"] = "symmetric"
        alone = "" if free else "; with causality alone"
        if not free and "is_causal" in self.parameters and (off_plain := self._off_without_causality(theirs, number)) >= self.question.near:
            self.wrong[theirs] = (
                f"without causality a window is neither heeded nor left out, off by {off_plain:.2g}; it is given with it alone"
            )
        self._take(
            "window_size", replace(plain, number=number, open=free), f"window_size, one number: {number}{alone}{self._but(off)}", theirs
        )
        return True

    def _off_without_causality(self, theirs: str, number: str) -> float:
        """How far off a call with a window is, without causality, as one without a window; 0 where it raises."""
        inputs = self.question.inputs(queries=6, keys=6)
        names = {**self.reading.names, "window_size": theirs}
        window = (2, 2 if number in BOTH_SIDES else None)
        out = self.question.answer(replace(self.reading, names=names, number=number, open=True), replace(inputs, window=window))
        return 0.0 if out is None else float(np.abs(out - exactly(inputs, "top-left").out).max())

    def _first_tokens(self) -> None:
        """Whether the first tokens are always seen beside a window, by no query before them (Xiao et al. 2024). In the search there are none."""
        window, causal = self.reading.names.get("window_size", ""), "is_causal" in self.parameters
        neutral = {ours: name for ours, name in self.reading.neutral.items() if name != window}
        for theirs in first_tokens(self.formal):
            self.untried[theirs] = "0 is given: which first tokens are seen beside a window is none of what is known"
            given = {**self.reading.given, window: 4}
            counts = (0, 3) if window else ()
            seen = [visible(self.question, replace(self.reading, given={**given, theirs: n}, neutral=neutral), causal) for n in counts]
            alone, beside = seen or (None, None)
            if alone is None or beside is None:
                continue
            first, earlier = np.arange(len(alone)) < 3, np.tri(len(alone), dtype=bool)
            if np.array_equal(beside, alone | (first & (earlier | (not causal)))):
                self.learned[theirs] = "the number of first tokens that are seen beside the window; 0 in the search"
                del self.untried[theirs]
            elif causal and (beside & ~earlier).any():
                self.wrong[theirs] = "of 3 first tokens beside a window some are seen by queries before them, though it is causal"
                del self.untried[theirs]

    def _no_window(self, theirs: str) -> None:
        """What is seen with one number that means nothing known: keys from one distance to another, which is wrong, or something else."""
        neutral = {ours: name for ours, name in self.reading.neutral.items() if name != theirs}
        band = band_of(self.question, replace(self.reading, given={**self.reading.given, theirs: 4}, neutral=neutral))
        if band is None or min(band) == LENGTH - 1:
            self.untried[theirs] = "it looks like window_size, but which keys are seen with it is none of the meanings that are known"
        else:
            left, right = (str(side) if side < LENGTH - 1 else "all" for side in band)
            self.wrong[theirs] = f"a window of 4 shows {left} keys before a query's own and {right} behind it, which is no known meaning"

    def _word(self) -> None:
        """Whether a mask may be the word "causal", which MLX documents for the bottom-right corner."""
        for theirs in [] if "is_causal" in self.parameters else [name for name in self.formal if "attn_mask" in (name, meant(name))]:
            reading, asked = replace(self.reading, word=theirs), self.question.both(is_causal=True)
            plain, answered = self.question.answer(self.reading, self.question.inputs()), self.question.answer(reading, asked[0])
            if answered is None or plain is None or np.array_equal(plain, answered, equal_nan=True):
                continue  # it is not taken, or not heeded
            target = self.question.target
            other: Callable[..., Any] = lambda *a, **kw: target.function(*a, **{**kw, theirs: "no such mask"})  # noqa: B023, E731
            garbage = replace(self.question, target=replace(target, function=other)).answer(self.reading, self.question.inputs())
            if garbage is not None and np.array_equal(garbage, answered, equal_nan=True):
                continue  # any word is, as a condition that is always true
            offs = {corner: self.question.off(reading, *asked, causal=corner) for corner in ("bottom-right", "top-left")}
            known = {corner: off for corner, off in offs.items() if off is not None}
            if not known:
                continue
            corner = min(known, key=lambda name: known[name])
            self.supports |= {"causal": corner, "mask_and_causal": False}
            said = f'{theirs}="causal"'
            self._take("is_causal", reading, f"is_causal, {corner}{self._but(known[corner])}", said)
            if corner == "top-left" and known[corner] < self.question.near:
                self.wrong[said] = (
                    f"it is causal from the top left corner on; MLX documents the bottom right, off by {known['bottom-right']:.2g}"
                )
            return

    def _square(self) -> None:
        """Whether is_causal, under this name, is for as many queries as keys."""
        if "is_causal" in self.formal and not self.reading.square:
            asked = self.question.both(is_causal=True)
            reading = replace(self.reading, square="causal")
            if all(self.question.answer(self.reading, one) is None for one in asked) and self.question.off(reading, *asked) is not None:
                self.reading = reading
                self.learned["lengths"] = SQUARE["causal"]

    def _always(self) -> None:
        """The corner of what is always causal."""
        asked = {square: self.question.both(fewer=square == "fewer", is_causal=True) for square in (self.reading.square, "all")}
        offs = {
            (square, corner): off
            for square, calls in asked.items()
            for corner in CHOICES["causal"]
            if (off := self.question.off(replace(self.reading, square=square), *calls, causal=corner)) is not None
        }
        square, corner = min(
            offs, key=lambda key: max(offs[key], self.question.near), default=("all", "top-left")
        )  # of the near ones the first
        direct = [off for (asked_square, _), off in offs.items() if not asked_square]
        if square and direct and max(offs.get((square, corner), np.inf), self.question.near) < min(direct):
            self.wrong["lengths"] = UNLIKE.format(min(direct))
        self.reading = replace(self.reading, square=square, last=square in ("", "fewer") and corner == "bottom-right")
        self.supports["causal"] = corner
        self.learned["causality"] = self.learned["causality"].replace("always", f"always, {corner}")
        self.learned["rows"] = f"a query that sees all keys is a call; calls of more than {ROWS} such queries are left out"
        self.parameters.append("is_causal")

    def _mask(self) -> None:
        found: dict[str, tuple[str, str]] = {}
        forms: dict[str, str] = {}
        tried: list[tuple[float, str, str, str, str]] = []
        documented = "attn_mask" in self.formal  # True is seen under that name, whatever agrees
        if documented and self.works:
            return
        turned = self.reading.said.get("bool") == ("attn_mask", TURNED)  # it has to be given, and one of True hides all
        for theirs in ["attn_mask"] if documented else self._named("attn_mask"):
            kinds: tuple[tuple[str, tuple[str, ...]], ...] = (
                ("bool", (TURNED,) if turned else SAID[:1] if documented else SAID),
                (ADDED, (ADDED,)),
            )
            right, wrong = False, []
            for kind, hows in kinds[1:] if "bias" in theirs else kinds:
                best = self._best_mask(theirs, kind, hows)
                if best and best[0] < self.question.near:
                    right = True
                    if kind not in found:
                        found[kind], forms[kind] = (theirs, best[1]), best[2]
                elif best:
                    wrong.append((best[0], kind, theirs, *best[1:]))
            tried += [] if right and not documented else wrong  # of what is right in one kind the other is no claim
            if right and not documented:
                for one in wrong:
                    said = "True is added as 1, and hides nothing" if self._adds(one) else f"in the nearest form off by {one[0]:.2g}"
                    self.untried[f"{theirs}, {one[1]}"] = said
            if not found and not any(one[2] == theirs for one in tried):
                self.untried[theirs] = "it looks like attn_mask, but takes no mask in any form that is known"
        for off, kind, theirs, how, form in sorted(tried):
            if kind not in found and ((documented and kind == "bool") or theirs not in [name for name, _ in found.values()]):
                found[kind], forms[kind] = (theirs, how), form
                self.unsure.add(kind)
                self.learned[theirs] = f"attn_mask, {how}{self._but(off)}"
        if not found:
            self.parameters = [name for name in self.parameters if name != "attn_mask"]
            return
        apart = len({theirs for theirs, _ in found.values()}) > 1 and len(set(forms.values())) > 1
        if apart:  # two masks, each of a kind: the one that says more is the first
            first = max(forms, key=lambda kind: len(FORMS[forms[kind]]))
            self.learned.pop(next(theirs for kind, (theirs, _) in found.items() if kind != first), None)
            found, forms = {first: found[first]}, {first: forms[first]}
        elif len(set(forms.values())) > 1 and "bs" in forms.values():  # one of padding, and one that is none, under one name
            left = next(kind for kind, form in forms.items() if form != "bs")
            self.untried[f"{found[left][0]}, {left}"] = f"of other axes, ({', '.join(forms[left])}), than where it hides padding"
            found.pop(left)
            forms.pop(left)
        form = min(forms.values(), key=lambda name: len(FORMS[name])) if len(set(forms.values())) > 1 else next(iter(forms.values()))
        self.reading = replace(self.reading, said=found, form=form)
        if turned:
            self.wrong["bool mask"] = "it is True where a key is hidden; PyTorch's `attn_mask` is True where it is visible"
        self.parameters += ["attn_mask"] if "attn_mask" not in self.parameters else []
        axes = FORMS[form]
        self.supports["mask_kinds"] = ("bool",) * ("bool" in found) + ADDED_KINDS * (ADDED in found)
        if axes != "BHLS":
            allowed = self.question.target.supports.mask_axes
            self.supports["mask_axes"] = tuple(one for one in allowed if set(one) <= set(axes))
        for theirs in dict.fromkeys(name for name, _ in found.values()):
            how = " or ".join(how for name, how in found.values() if name == theirs)
            if documented and form == "as it is":
                continue
            axis = "" if form in ("as it is", "bhls") else f", of axes ({', '.join(form)})"
            self.learned.setdefault(theirs, f"attn_mask, {how}{axis}")

    def _adds(self, nearest: tuple[float, str, str, str, str]) -> bool:
        """Whether a bool mask is added to logits, as 1 and 0."""
        _, kind, theirs, how, form = nearest
        reading = replace(self.reading, said={kind: (theirs, how)}, form=form)
        asked = self.question.masked(kind, FORMS[form])[0]
        out = self.question.answer(reading, asked)
        if kind == ADDED or out is None or asked.mask is None:
            return False
        true = asked.mask.astype(np.float64)  # the nearest meaning may be that of True = hidden
        return any(
            float(np.abs(out - exactly(asked.but(mask=each), "top-left").out).max()) < self.question.near for each in (true, 1 - true)
        )

    def _best_mask(self, theirs: str, kind: str, hows: tuple[str, ...]) -> tuple[float, str, str] | None:
        """How far off the nearest meaning is, the meaning, and the form; None if no mask is taken."""
        best: tuple[float, str, str] | None = None
        whole: dict[str, float] = {}  # how far off it is where a mask differs from head to head
        for how in hows:
            for form in FORMS:
                if kind == ADDED and form == "bs":  # nobody adds one of padding: of 1 and 0, adding it would be a mistake
                    continue
                if axes_of(self.reading.layout).folded and form not in ("as it is", "ls", "bs"):
                    continue
                reading = replace(self.reading, said={kind: (theirs, how)}, form=form)
                off = self.question.off(reading, *self.question.masked(kind, FORMS[form]))
                if off is not None and form == "as it is":
                    whole[how] = off
                if off is not None and (best is None or off < best[0]):
                    best = (off, how, form)
                if best and best[0] < self.question.near:
                    if best[2] == "b1ls" and kind == ADDED and how in whole:
                        self.wrong[theirs] = f"of what is added to each head, all get that of the first, off by {whole[how]:.2g}"
                    elif best[2] in ("ls", "hls") and how in whole and not axes_of(self.reading.layout).folded:
                        self.wrong[theirs] = (
                            f"one mask for all is heeded; one that varies from sequence to sequence is not, off by {whole[how]:.2g}"
                        )
                    return best
        return best

    def _together(self) -> None:
        """Whether a mask and causality are taken together."""
        if {"attn_mask", "is_causal"} <= set(self.parameters) and self.reading.said and not self.reading.word:
            kind = next(iter(self.reading.said))
            asked = dataclasses.replace(self.question.masked(kind, FORMS[self.reading.form])[0], is_causal=True)
            if self.question.answer(self.reading, asked) is None:
                self.supports["mask_and_causal"] = False
                self.learned["mask and causal"] = "not together"

    def _meanings(self) -> None:
        """Whether other values of what is given because it is required hide what its name says."""
        reading, length = self.reading, 8
        if axes_of(reading.layout).folded or self.question.target.supports.length_multiple > 1:
            return
        inputs = self.question.inputs(queries=length, keys=length, is_causal=reading.always)
        used = {*reading.names.values(), *reading.given, *self.parameters, *self.learned, *self.untried}
        asked = {name: fillers(p)[0] for name, p in self.formal.items() if p.default is None and name not in used and has_meaning(name)}
        for meaning in meanings({**asked, **reading.filled}, inputs.shape[0], length, reading.always):
            out = self.question.answer(replace(reading, filled={**reading.filled, **meaning.given}), inputs)
            names = " and ".join(sorted(meaning.given))
            if out is None:
                self.untried[names] = "other values are not taken"
                continue
            exact = exactly(replace(inputs, mask=np.broadcast_to(meaning.visible, inputs.shape), is_causal=False), "top-left")
            off = float(np.nan_to_num(np.abs(out - exact.out), nan=np.inf).max(initial=0.0))
            if off < self.question.near:
                others = {name: reading.filled[name].words if name in reading.filled else "it is not given" for name in meaning.given}
                self.learned |= {name: f"{meaning.says}; asked in one call, in the others {given}" for name, given in others.items()}
            else:
                self.wrong[names] = f"by its name {meaning.says}, which is off by {off:.2g}"

    def _moved(self) -> None:
        """Whether it is the distances of positions alone that matter, where positions are given."""
        reading, inputs = self.reading, self.question.inputs(queries=8, keys=8, is_causal=self.reading.always)
        if axes_of(reading.layout).folded:
            return
        places = [moved(reading.filled, len(inputs.q), 8, inputs.q.shape[3], by) for by in (0, 5)]
        names = " and ".join(sorted(places[0]))
        if not names:
            return
        here, there = (self.question.answer(replace(reading, filled={**reading.filled, **given}), inputs) for given in places)
        if here is None or there is None:
            self.untried[names] = "other values are not taken"
        elif (off := float(np.abs(here - there).max())) < self.question.near:
            self.learned |= dict.fromkeys(places[0], "distances alone matter, asked in one call; in the others nothing is turned")
        else:
            self.wrong[names] = f"later positions at the same distances change the answer, by {off:.2g}"

    def _groups(self) -> None:
        """Whether fewer heads of keys are taken without a flag."""
        if "enable_gqa" in self.parameters or "(bh)" in axes_of(self.reading.layout).queries or "g" in axes_of(self.reading.layout).each:
            return
        reading, inputs = replace(self.reading, grouped=True), self.question.inputs(kv_heads=2, group=3)
        off = self.question.off(reading, inputs)
        if off is None:
            return
        if off >= self.question.near and self.question.reads_other_batch_elements(
            reading, inputs
        ):  # a kernel that knows nothing of groups, and raises nothing
            self.untried["grouped heads"] = (
                "where there are fewer heads of keys than of queries, it reads the keys of another batch element"
            )
            return
        self.reading = reading
        self.parameters.append("enable_gqa")
        self.learned["grouped heads"] = "without a flag"

    def _sizes(self) -> None:
        """Values of another width than keys, and sizes of zero."""
        answered: Callable[..., bool] = lambda **sizes: self.question.answer(self.reading, self.question.inputs(**sizes)) is not None  # noqa: E731
        if not answered(value_dim=6):
            self.supports["value_dim"] = False
            self.learned["width of values"] = "that of keys"
        asked = ["batch", "kv_heads", "queries", "keys", "dim"]
        if () < machine(self.question.target.framework)["torch"] < NO_HEADS:  # a case without heads is one of the search's: it is on record
            asked.remove("kv_heads")
        if not all(answered(**{name: 0}) for name in asked):
            self.supports["zero_sizes"] = False
            self.learned["sizes of zero"] = "not taken"

    def _empty_rows(self) -> None:
        """What a row without keys gives, where a mask hides all or the causal corner does; kinds of masks may differ in it."""
        asked = [
            (kind, self.question.masked(kind, FORMS[self.reading.form], empty=True)[0], "top-left")
            for kind in sorted(self.reading.said, reverse=True)
            if kind not in self.unsure
        ]
        if "kv_lengths" in self.parameters and not asked:
            asked = [("", replace(self.question.inputs(), lengths=np.array([0, 6])), "top-left")]
        if "window_size" in self.parameters and not asked:  # rows far behind the last key, whose window has moved beyond it
            past = self.question.inputs(queries=9, keys=6, is_causal="is_causal" in self.parameters)
            corner = self.supports.get("causal", "top-left")
            sides = (1, 1 if self.supports.get("windows") == "symmetric" else 0)
            asked = [("", replace(past, window=sides), corner)] if corner == "top-left" else []
        if self.supports.get("causal") == "bottom-right" and not asked:
            asked = [("", self.question.inputs(is_causal=True, queries=9, keys=6), "bottom-right")]
        given = {kind: self.question.rows_without_keys(self.reading, inputs, causal) for kind, inputs, causal in asked}
        known = [empty_rows for empty_rows in given.values() if empty_rows]
        if not known:
            return
        self.supports["empty_rows"] = self.learned["rows without keys"] = known[0]
        if len(given) == 2 and given[ADDED] and given[ADDED] != known[0]:
            self.supports["empty_rows_added"] = given[ADDED]
            self.learned["rows without keys"] = f"{known[0]}; where −inf is added, {given[ADDED]}"
        elif len(given) == 2 and given[ADDED] != known[0]:
            self.supports["mask_kinds"] = ("bool", "bias")
            self.untried["−inf in what is added"] = f"rows without keys are something else then, {known[0]} where the mask is bool"


def taken_with_masks(target: Target, device: str) -> Target:
    """The target without the dtypes in which the mask, or the lengths, that were learned raise; that is told."""
    kinds, axes = target.supports.mask_kinds, target.supports.mask_axes
    untried = dict(target.untried)
    for dtype in target.dtypes:
        inputs = Question(target, dtype, device).inputs()
        keys = inputs.shape[3]
        mask = np.arange(keys)[None, :] < 5 if "bool" in kinds else np.zeros((1, keys))
        asked = {"a mask": inputs.but(mask=mask).said(axes)} if "attn_mask" in target.parameters else {}
        if "kv_lengths" in target.parameters:
            asked["lengths"] = inputs.but(lengths=np.arange(keys - inputs.shape[0], keys))
        for what, call in asked.items():
            try:
                attend(target, call)
            except Raised as raised:
                untried[dtype] = f"with {what} it raised {raised}"
    left = tuple(dtype for dtype in target.dtypes if dtype not in untried)
    return replace(target, dtypes=left or target.dtypes, untried=untried if left else target.untried)
