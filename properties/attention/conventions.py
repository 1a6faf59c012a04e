"""The conventions of an attention, where nothing is declared: each is asked for by small calls, held against the exact answer, and learned.

Three kinds of answer. As documented for the names that a target uses: nothing is said. Another one that the field knows, where nothing
documents it: it differs, and is told. Other than documented: it is wrong, one finding, and learned all the same, so that the search goes on
and finds what else there is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..engine.cases.dtypes import FLOAT_TYPES, round_to
from ..engine.core.supports import CHOICES, FOURTH_ROOT
from ..engine.core.target import Left, Raised, Target
from ..exact import bound
from ..exact.arithmetic import arithmetic
from .axes import ANSWERS
from .call import answer
from .cases import UNSTEADY
from .dropout_names import with_dropout
from .inputs import OF_THE_WIDTH, SCALES, Inputs
from .poison import with_poison
from .question import ADDED_KINDS, ASKED_IN, HALVES, NEARER, Question, asked_in, dim_of_scale, exactly, factor_of_scale, meant, tiled
from .second_mask import with_second_mask
from .speech import ADDED, BESIDE, Reading, adapted, formal_of, second_array
from .tables import ANY_SIZE

SINGLE = 1e-9  # so far off is no float64: numbers of size one are off by 1e-15 or so there, by 1e-7 in float32
TRACES = 1e-12  # so far off is no float64 either
LONG = 2 * max(ANY_SIZE["keys"])  # of a sum: twice as long as any in the search, so that what adds up there shows in one call
IS_ADDED = "it is added to the logits"  # a bool mask
MANY_ROWS = 0.25  # of all: so many are not right by chance
OF_THE_INTERFACE = ("blhd", "bl(hd)")


@dataclass
class Conventions:
    """What is found out of one target, one question after the other."""

    target: Target
    question: Question
    facts: dict[str, Any] = field(default_factory=dict)
    differs: dict[str, str] = field(default_factory=dict)
    wrong: dict[str, str] = field(default_factory=dict)
    observed: dict[str, Any] = field(default_factory=dict)
    reading: Reading = field(default_factory=Reading)
    narrower: dict[str, str] = field(default_factory=dict)  # a type → the one in which it is computed

    def learned(self) -> Target:
        if unsteady := self._unsteady():
            return replace(self.target, learned={}, refuses={}, left={}, wrong={UNSTEADY: unsteady})  # what else was seen is chance
        for ask in (
            self._beside,
            self._mean_weights,
            self._scale,
            self._no_scale,
            self._twice,
            self._ignored,
            self._heads_of_keys,
            self._base,
            self._precision,
            self._finite,
            self._corner,
            self._alone,
            self._polarity,
            self._added,
            self._fill,
            self._together,
            self._rows,
            self._hidden,
            self._result,
            self._interface,
            self._sums,
        ):
            ask()
        target = self.target
        left = tuple(dtype for dtype in target.dtypes if dtype not in {**self.differs, **self.wrong})
        function = (
            adapted(target.function, self.reading, target.framework)
            if self.reading != Reading(layout=target.supports.layout)
            else target.function
        )
        return replace(
            target,
            function=function,
            dtypes=left,
            supports=replace(target.supports, **self.facts),
            learned={name: how for name, how in target.learned.items() if name not in self.differs and not self._is_said_better(name)},
            differs={**target.differs, **self.differs},
            wrong={**target.wrong, **self.wrong},
            observed={**target.observed, **self.observed},
            left={**target.left, **{wide: self._asked_again(function, wide, narrow) for wide, narrow in self.narrower.items()}},
            untried={**target.untried, **target.pace.untried()},
        )

    def _asked_again(self, function: Callable[..., Any], wide: str, narrow: str) -> Left:
        """How a type that is computed in a narrower one is asked again: with numbers of that one, and answers that are rounded to it."""
        target, fw = self.target, self.target.framework

        def cast(value: Any, dtype: str, to: str) -> Any:
            if not fw.is_array(value) or fw.describe(value)[1] != dtype:
                return value
            shape, _, device = fw.describe(value)
            return fw.assign(fw.full(shape, 0.0, to, device), fw.read(value))

        def run(*arguments: Any, **options: Any) -> Any:
            given = {name: cast(value, narrow, wide) for name, value in options.items()}
            return cast(target.first(function(*(cast(value, narrow, wide) for value in arguments), **given)), wide, narrow)

        return Left(target={"function": run, "dtypes": (narrow,)}, computes=f"in {narrow}")

    def _interface(self) -> None:
        """Hugging Face's functions of attention answer with the length before the heads: their modules join heads and features next."""
        learned = self.target.learned
        axes = [ANSWERS[form] for form in OF_THE_INTERFACE]
        if "first argument" in learned and not str(learned.get("result", "")).startswith(tuple(axes)):
            found = learned.get("result") or learned.get("axes", "").partition(";")[0] or ANSWERS["bhld"]
            self.wrong["result"] = f"{found}, expected {axes[0]}, as the interface of Hugging Face has it"

    def _unsteady(self) -> str:
        """By how much two answers to the same call differ, where they are nothing alike: no other question has an answer then."""
        asked = self.question.inputs()
        first, again = self.question.answer(self.reading, asked), self.question.answer(self.reading, asked)
        if first is None or again is None or not (off := float(np.abs(first - again).max(initial=0.0))) > self.question.near:
            return ""
        return f"the same call is answered with other numbers each time, off by {off:.2g}; nothing else is asked"

    def _is_said_better(self, name: str) -> bool:
        """Whether what was learned of a parameter is the nearest meaning of masks that were found to mean something else."""
        return name in ("attn_mask", *(theirs for theirs, _ in self.reading.said.values())) and "bool mask" in self.wrong

    @property
    def documented(self) -> bool:
        """Whether it has PyTorch's names, under which conventions are documented."""
        others = tuple(self.target.learned.values())
        own = {name for name in self.target.parameters if not any(how.startswith(name) for how in others)}
        own -= {"enable_gqa"} if "grouped heads" in self.target.learned else set()
        return (
            bool(own & {"attn_mask", "is_causal", "dropout_p", "enable_gqa"}) or "scaled_dot_product" in self.target.name.rpartition(":")[2]
        )

    def _open(self, key: str) -> bool:
        """Whether nobody has said or learned it."""
        return key not in self.target.declared and getattr(self.target.supports, key) == getattr(type(self.target.supports)(), key)

    def _off(self, *asked: Inputs, causal: str = "top-left", reading: Reading | None = None, scale: str = "") -> float:
        """How far its answers are off at most, where rows see a key; infinite where it gives none."""
        asked = tuple(replace(inputs, default_scale=scale or self.scale) for inputs in asked)
        off = self.question.off(reading or self.reading, *asked, causal=causal)
        return np.inf if off is None else off

    def _nearer(self, off: float, usual: float) -> bool:
        """Whether a convention is meant rather than the documented one, by how far off the two are."""
        return usual >= self.question.near and (off < self.question.near or NEARER * off < usual)

    @property
    def scale(self) -> str:
        """What the logits are multiplied by where a call says nothing, as far as is known."""
        return str(self.facts.get("default_scale", self.target.supports.default_scale))

    def _beside(self) -> None:
        """Whether weights, or a log-sum-exp, always come back beside the output; then they are checked, too."""
        target, inputs = self.target, self.question.inputs()
        try:
            result = answer(target, inputs, target.buffers())
        except Raised:
            return
        second = second_array(result, target.framework)
        shape = () if second is None else tuple(target.framework.describe(second)[0])
        b, _, n, s = inputs.shape
        parameter = {inputs.shape: "need_weights", (b, n, s): "need_weights", inputs.shape[:3]: "return_lse"}.get(shape, "")
        if parameter and parameter not in target.parameters:
            self.reading = replace(self.reading, beside=parameter)
            self.target = replace(
                target, parameters=(*target.parameters, parameter), learned={**target.learned, "beside the output": BESIDE[parameter]}
            )
        elif not parameter and "first argument" in target.learned and sorted(shape) == sorted(inputs.shape):
            words = "its axes are other than (batch, heads, queries, keys), in which the interface of Hugging Face has weights"
            self.wrong["the weights that come back"] = f"of shape {shape}, expected {inputs.shape}: {words}"
        elif second is not None and not parameter:
            self.target = replace(target, untried={**target.untried, "what comes back beside the output": f"an array of shape {shape}"})

    def _mean_weights(self) -> None:
        """Whether weights that come back are their mean over heads, as ``nn.MultiheadAttention``'s are."""
        if "need_weights" not in self.target.parameters or not self._open("returned_weights"):
            return
        view, inputs = self.question.view(self.reading), self.question.inputs()
        try:
            second = second_array(answer(view, inputs.but(need_weights=True), view.buffers()), self.target.framework)
        except Raised:
            return
        b, _, n, s = inputs.shape
        if second is not None and tuple(self.target.framework.describe(second)[0]) == (b, n, s):
            self.facts["returned_weights"] = "mean"
            self.differs["weights"] = "their mean over heads, as nn.MultiheadAttention returns them"

    def _base(self) -> None:
        """The base of the log-sum-exp that comes back."""
        if "return_lse" not in self.target.parameters:
            return
        fw, inputs = self.target.framework, replace(self.question.inputs(), default_scale=self.scale)
        view = self.question.view(self.reading)
        try:
            second = second_array(answer(view, inputs.but(return_lse=True), view.buffers()), fw)
        except Raised:
            return
        exact = exactly(inputs, "top-left").lse
        if second is None or tuple(fw.describe(second)[0]) != exact.shape:
            return
        offs = {base: float(np.abs(fw.read(second) * factor - exact).max()) for base, factor in (("e", 1.0), ("2", np.log(2)))}
        if self._nearer(offs["2"], offs["e"]):
            self.reading = replace(self.reading, binary=True)
            self.differs["log-sum-exp"] = f"to the base 2, as FlashInfer's; as a natural logarithm off by {offs['e']:.2g}"

    def _scale(self) -> None:
        """The factor of the logits where a call gives none."""
        if not self._open("default_scale"):
            return
        asked = self.question.both()
        usual = SCALES[0]
        if (off := self._off(*asked, scale=usual)) < self.question.near:
            return
        scale = self._own_scale(asked)
        if not self._nearer(self._off(*asked, scale=scale), off):
            scale = self._scale_of_rows(asked[0])
            if not scale:
                return
        self.facts["default_scale"] = scale
        record = self.wrong if scale not in SCALES or (self.documented and not (self._scale_is_one() and scale == "1")) else self.differs
        if scale == OF_THE_WIDTH:
            usual += ", width being heads · dim"
        fixed = scale != "1" and "dim" not in scale and "width" not in scale
        whatever, or_dims = (" whatever the head dim", ", or head_dims") if fixed else ("", "")
        record["scale"] = (
            f"a call without a scale is answered with {scale}{whatever}, not with {usual} (Vaswani et al. 2017), off by {off:.2g}; "
            f'declare default_scale = "{scale}" if that is meant{or_dims}'
        )

    def _scale_is_one(self) -> bool:
        """Whether the signature says that a scale is 1 where none is given."""
        return any((meant(p.name) or p.name) == "scale" and p.default == 1 for p in formal_of(self.target.function).values())

    def _no_scale(self) -> None:
        """Whether a scale of 0 is taken for none, as ``scale or default`` does."""
        if "scale" not in self.target.parameters or not self._open("scales"):
            return
        none = self.question.inputs()
        asked = replace(none, scale=0.0)
        off, out, plain = self._off(asked), *(self.question.answer(self.reading, one) for one in (asked, none))
        if off >= self.question.near and out is not None and plain is not None and np.array_equal(out, plain):
            other = self.question.answer(self.reading, replace(none, scale=0.3))
            if other is not None and np.array_equal(other, plain):
                self.wrong["scale"] = f"it changes nothing: 0.3, and 0, give what no scale gives, off by {off:.2g}; none is given"
                self.target = replace(self.target, parameters=tuple(name for name in self.target.parameters if name != "scale"))
                return
            self.facts["scales"] = "not zero"
            self.wrong["scale of 0"] = f"it is taken for none, as `scale or default` does, off by {off:.2g}; no other call is given 0"

    def _twice(self) -> None:
        """Whether a scale that is given multiplies the usual one: where that is what no scale gives, it is so by its default."""
        if "scale" not in self.target.parameters or not self._open("scales"):
            return
        asked = replace(self.question.inputs(), scale=0.3)
        out, by = self.question.answer(self.reading, asked), 0.3 / math.sqrt(max(asked.q.shape[3], 1))
        if out is None or not (off := self._off(asked)) >= self.question.near:
            return
        if np.abs(out - exactly(replace(asked, scale=by), "top-left").out).max(initial=0.0) < self.question.near:
            known = self.differs.pop("scale", "") or self.wrong.get("scale", "")
            record = self.differs if self._scale_is_one() and not known else self.wrong
            record["scale"] = f"{known}{'; ' * bool(known)}one that is given is multiplied by 1/sqrt(dim), off by {off:.2g}; none is given"
            self.target = replace(self.target, parameters=tuple(name for name in self.target.parameters if name != "scale"))

    def _ignored(self) -> None:
        """Whether a mask, or the flag of causality, changes not a bit: then nothing else is asked of it."""
        plain = self.question.inputs()
        uses = {"is_causal": replace(plain, is_causal=True)} | ({"attn_mask": self._mask()} if "bool" in self._kinds() else {})
        for name, asked in uses.items():
            if name in self.target.parameters and "parameters" not in self.target.declared and self._alike(asked, plain):
                theirs = next((own for own, how in self.target.learned.items() if how.startswith(name)), name)
                if name == "attn_mask" and self._heeds_added(plain):
                    self.wrong[theirs] = "a bool one changes nothing; those that are added are given alone"
                    self.facts["mask_kinds"] = ADDED_KINDS
                    continue
                self.wrong[theirs] = "it changes nothing; none is given"
                self.target = replace(self.target, parameters=tuple(one for one in self.target.parameters if one != name))

    def _heeds_added(self, plain: Inputs) -> bool:
        """Whether a mask that is added changes an answer."""
        added = self.question.masked("additive", "LS")[0]
        heeded = self.question.answer(self.reading, added) is not None and not self._alike(added, plain)
        return heeded and set(ADDED_KINDS) <= set(self._kinds()) and "mask_kinds" not in self.target.declared

    def _heads_of_keys(self) -> None:
        """Whether heads of queries read the heads of keys in the order of all others, where there are fewer of those; as many are given if not."""
        if "enable_gqa" not in self.target.parameters or {"parameters", "groups"} & self.target.declared:
            return
        asked = self.question.inputs(kv_heads=2, group=3)
        out, off = self.question.answer(self.reading, asked), self._off(asked)
        if (
            out is None
            or off < self.question.near
            or np.abs(out - exactly(tiled(asked), "top-left").out).max(initial=0.0) >= self.question.near
        ):
            return
        self.wrong["grouped heads"] = (
            "query head h reads key head h mod (number of key heads), as if these were tiled; others, and PyTorch, repeat each "
            f"(h // group), off by {off:.2g}; as many key heads are given"
        )
        learned = {name: how for name, how in self.target.learned.items() if name != "grouped heads"}
        left = tuple(name for name in self.target.parameters if name != "enable_gqa")
        self.target = replace(self.target, parameters=left, learned=learned)

    def _scale_of_rows(self, asked: Inputs) -> str:
        """The usual scale of another by which many rows are right, and none by the documented one; empty if there is none.

        That is what is left of a scale beside a mistake in other rows, as in all batch elements but the first.
        """
        out = self.question.answer(self.reading, asked)
        if out is None:
            return ""

        def right(scale: str) -> float:
            return float(np.mean((np.abs(out - exactly(replace(asked, default_scale=scale), "top-left").out) < self.question.near).all(-1)))

        shares = {scale: right(scale) for scale in SCALES}
        best = max(shares, key=lambda scale: shares[scale])
        return best if best != SCALES[0] and shares[best] >= MANY_ROWS and not shares[SCALES[0]] else ""

    def _own_scale(self, asked: tuple[Inputs, ...]) -> str:
        """What the logits are multiplied by: another word, the scale of one head dim, a multiple of a usual one, a number; the first that is near."""
        known, out = [*SCALES[1:], OF_THE_WIDTH, FOURTH_ROOT], self.question.answer(self.reading, asked[0])
        other_dim = self.question.both(dim=9)
        if out is not None and self.question.answer(self.reading, other_dim[0]) is not None:
            asked = (*asked, *other_dim)
            known.append(f"1/sqrt({dim_of_scale(out, asked[0])})")
            known += [f"{factor_of_scale(out, asked[0], '1' + over)}".removesuffix(".0") + over for over in ("/sqrt(dim)", "/dim", "")]
        offs = {scale: self._off(*asked, scale=scale) for scale in known}
        enough = max(2 * min(offs.values()), 1e-9)
        return next(scale for scale, off in offs.items() if off <= enough)

    def _corner(self) -> None:
        """Where a causal frontier ends if there are more keys than queries, or fewer."""
        if "is_causal" not in self.target.parameters or not self._open("causal"):
            return
        asked = self.question.both(is_causal=True)
        offs = {corner: self._off(*asked, causal=corner) for corner in CHOICES["causal"]}
        if self._nearer(offs["bottom-right"], offs["top-left"]):
            self.facts["causal"] = "bottom-right"
            self.wrong["causal corner"] = (
                "with is_causal row i of L sees keys up to i + S − L (bottom-right); under that name PyTorch's sees keys up to i (top-left), "
                'off by {:.2g}; declare causal = "bottom-right" if that is meant'.format(offs["top-left"])
            )

    def _alike(self, one: Inputs, other: Inputs) -> bool:
        """Whether two calls are answered by the same bits."""
        here, there = (self.question.answer(self.reading, asked) for asked in (one, other))
        return here is not None and there is not None and np.array_equal(here, there, equal_nan=True)

    def _alone(self) -> None:
        """Whether a single query sees all keys under is_causal, as the last token does where a cache is read."""
        known = "causal" in self.target.declared or self.facts.get("causal", self.target.supports.causal) != "top-left"
        if "is_causal" not in self.target.parameters or known:
            return
        asked = self.question.inputs(queries=1, is_causal=True)
        more = self.question.inputs(is_causal=True)
        if asked.shape[2] > 1 or self._alike(more, replace(more, is_causal=False)):  # of whole tiles alone; or a flag that does nothing
            return
        off = self._off(asked)
        out = self.question.answer(self.reading, asked)
        if (
            out is None
            or off < self.question.near
            or np.abs(out - exactly(replace(asked, is_causal=False, default_scale=self.scale), "").out).max() >= self.question.near
        ):
            return
        self.reading = replace(self.reading, alone=True)
        pytorch = self.documented and not {"first argument", "lengths"} & self.target.learned.keys()  # others decode with it
        record = self.wrong if pytorch else self.differs
        record["a single query"] = (
            f"with is_causal it sees all keys, not the first alone, off by {off:.2g}; a row of zeros is put beside it"
        )

    def _mask(self, empty: bool = False) -> Inputs:
        """A call with a bool mask of two axes; every row sees the first key, or, with ``empty``, the first row none."""
        inputs = self.question.inputs()
        visible = np.random.default_rng(3).random(inputs.shape[2:]) < 0.5
        visible[:, 0], visible[:, -1] = True, False
        if empty:
            visible[0] = False
        return inputs.but(mask=visible)

    def _polarity(self) -> None:
        """What True says in a bool mask."""
        supports = self.target.supports
        if "attn_mask" not in self.target.parameters or "bool" not in supports.mask_kinds or "mask_kinds" in self.target.declared:
            return
        asked = self._mask()
        off = self._off(asked)
        if off < self.question.near or not np.isfinite(off):
            return
        turned = replace(self.reading, said={"bool": ("attn_mask", "True = hidden"), "added": ("attn_mask", ADDED)})
        if self._nearer(self._off(asked, reading=turned), off):
            self.reading = turned
            layers = any("key_padding_mask" in name for name in (*self.target.untried, *self.target.learned, *self.target.parameters))
            record = self.differs if layers or not self.documented else self.wrong
            record["bool mask"] = f"it is True where a key is hidden; PyTorch's `attn_mask` is True where it is visible, off by {off:.2g}"
            return
        assert asked.mask is not None
        added = self.question.answer(self.reading, asked)
        meant = exactly(replace(asked.but(mask=asked.mask.astype(np.float64)), default_scale=self.scale), "top-left").out
        if added is not None and np.abs(added - meant).max(initial=0.0) < self.question.near:
            self.facts["mask_kinds"] = ADDED_KINDS
            self.wrong["bool mask"] = f"{IS_ADDED}, 1 and 0, and hides nothing, off by {off:.2g}"

    def _added(self) -> None:
        """Whether a mask of numbers is read as one of truth, and not added."""
        if "attn_mask" not in self.target.parameters or {"bool", "bias"} - set(self._kinds()) or self.reading.said:
            return
        if "mask_kinds" in self.target.declared or self._off(self._mask()) >= self.question.near:
            return
        asked = self._mask()
        numbers = np.random.default_rng(4).standard_normal(asked.shape[2:])
        added = asked.but(mask=np.where(asked.visible(), numbers, -np.inf)[0, 0])
        out, off = self.question.answer(self.reading, added), self._off(added)
        if out is None or off < self.question.near or not np.isfinite(off):
            return
        read = exactly(replace(asked.but(mask=np.ones(asked.shape[2:], bool)), default_scale=self.scale), "top-left").out
        if np.abs(out - read).max(initial=0.0) < self.question.near:  # no number is 0, so all are taken for True
            self.facts["mask_kinds"] = ("bool",)
            own = {"attn_mask", "is_causal"} <= set(self.target.parameters) and self.documented
            (self.wrong if own else self.differs)["mask of numbers"] = (
                f"it is read as True where it is not 0, and not added, off by {off:.2g}"
            )

    def _fill(self) -> None:
        """Whether hidden logits get a finite number that others may come near: a query so far away is asked that all logits do."""
        masked = "attn_mask" in self.target.parameters and "bool" in self._kinds()
        if self.documented or not self._open("fill") or not (masked or "kv_lengths" in self.target.parameters):
            return
        asked = self._mask() if masked else replace(self.question.inputs(), lengths=np.array([3, 6]))
        q, k = np.ones_like(asked.q), np.ones_like(asked.k)
        k = np.where(np.asarray(asked.visible().any(axis=-2))[..., None], -1.0, k)  # what no row sees is far above what some do
        for power in range(3, 8):
            far = asked.but(q=q * 10.0**power, k=k)
            exact = exactly(replace(far, default_scale=self.scale), "top-left")
            out = self.question.answer(self.reading, far)
            if out is None or not np.isfinite(out).all():
                return
            if np.abs(out - exact.out).max(initial=0.0) >= self.question.near:
                size = float(
                    np.abs(np.einsum("bhld,bhsd->bhls", far.q, far.k)).max() * replace(far, default_scale=self.scale).effective_scale
                )
                self.facts["fill"] = size / 10
                self.differs["hidden logits"] = (
                    f"they get a finite number, and beside visible ones of -{size:.0e} they are seen; PyTorch's are −inf"
                )
                return

    def _together(self) -> None:
        """What a mask and causality make of each other."""
        if (
            not {"attn_mask", "is_causal"} <= set(self.target.parameters)
            or not self._open("mask_and_causal")
            or "bool" not in self._kinds()
        ):
            return
        asked, padded = (
            replace(one, is_causal=True, default_scale=self.scale) for one in (self._mask(), self.question.masked("bool", "BS")[0])
        )
        if self.question.answer(self.reading, asked) is None:  # a mask of padding alone is taken
            asked = padded
        corner = str(self.facts.get("causal", self.target.supports.causal))
        both = self._off(asked, causal=corner)
        out = self.question.answer(self.reading, asked)
        if both < self.question.near or out is None:
            return
        alone = {"a mask replaces is_causal": replace(asked, is_causal=False), "is_causal replaces a mask": replace(asked, mask=None)}
        for words, inputs in alone.items():
            with np.errstate(invalid="ignore"):
                if np.abs(out - exactly(inputs, corner).out).max() < self.question.near:
                    self.facts["mask_and_causal"] = False
                    (self.wrong if self.documented and "first argument" not in self.target.learned else self.differs)["mask and causal"] = (
                        f"{words}, off by {both:.2g}"
                    )

    def _result(self) -> None:
        """The dtype of what comes back."""
        narrow = next((name for name in ("float16", "float32") if name in self.target.dtypes), "")
        if not narrow or not self._open("result"):
            return
        came: list[str] = []

        def watched(*arguments: Any, **options: Any) -> Any:
            result = self.target.function(*arguments, **options)
            came.append(self.target.framework.describe(self.target.first(result))[1])
            return result

        question = replace(self.question, target=replace(self.target, function=watched), dtype=narrow)
        if (
            question.answer(self.reading, question.inputs()) is not None
            and came[-1] in FLOAT_TYPES
            and FLOAT_TYPES[came[-1]].precision > FLOAT_TYPES[narrow].precision
        ):
            self.facts["result"] = "wider"
            self.differs["dtype"] = f"{came[-1]} comes back where {narrow} goes in"

    def _precision(self) -> None:
        """Whether what is called float64 is computed in it."""
        if {"float64", "float32"} <= set(self.target.dtypes) and not {"dtypes", "arithmetic"} & self.target.declared:
            if self.target.asked_enough():
                self._without_float64()
                return
            plain = self.question.inputs()
            off = self._off(plain)
            if off > SINGLE and self._single():  # with another mistake beside it, too
                self.differs["float64"] = f"computed in float32{f', off by {off:.2g}' * (off < self.question.near)}; not tried"
            elif off < SINGLE and (by := self._scaled_in_single()):
                self.differs["float64"] = f"its scale is computed in float32, off by {by:.2g}; not tried"
            if "float64" in self.differs:
                self.narrower["float64"] = "float32"
                self.question = replace(self.question, dtype="float32")  # the others are asked where its bound is the right one
        if not {"dtypes", "arithmetic"} & self.target.declared:
            self._halved()

    def _without_float64(self) -> None:
        """Float64 is not tried of what is too slow to be asked: many kernels add in float32 there."""
        dtypes = tuple(name for name in self.target.dtypes if name != "float64")
        why = "it is too slow to be asked whether float64 is what it is computed in"
        self.target = replace(self.target, dtypes=dtypes, untried={**self.target.untried, "float64": why})

    def _halved(self) -> None:
        """Whether wider types are computed in halves: then a call has the bits of the same one in those."""
        for half in (name for name in HALVES if name in self.target.dtypes):
            for wide in (name for name in ASKED_IN[: ASKED_IN.index(half)] if name in self.target.dtypes):
                plain = replace(self.question, dtype=wide).inputs()
                narrow = plain.but(**{name: round_to(half, getattr(plain, name)) for name in "qkv"}, dtype=half)
                there, here = (self.question.answer(self.reading, asked) for asked in (plain, narrow))
                if there is None or here is None or not np.isfinite(here).all() or len(np.unique(here)) <= 2:  # zeros are of any type
                    continue
                if np.array_equal(there, here):
                    record = self.wrong if wide == "float32" else self.differs
                    if record is self.differs:
                        self.narrower[wide] = half
                    record[wide] = f"computed in {half}, off by {self._gap(plain, plain):.2g}; not tried"
            if self.question.dtype in {**self.differs, **self.wrong}:
                self.question = replace(self.question, dtype=half)
                return

    def _finite(self) -> None:
        """Types in which a plain call of numbers of size one is not finite: then there is nothing more to ask of them.

        It is told where nobody has said that the type is taken, as of NumPy's halves, in which few functions are meant to be called.
        """
        if "dtypes" in self.target.declared:
            return
        for dtype in [dtype for dtype in ("float16", "bfloat16") if dtype in self.target.dtypes]:
            question = replace(self.question, dtype=dtype)
            record = self.differs if self.target.framework.name == "numpy" else self.wrong
            if self._gives_nan(question):
                if dtype != self.question.dtype and self._gives_nan(self.question):
                    return  # in wider types, too: that is no matter of halves
                record[dtype] = "NaN comes back of numbers of size one; not tried"
            elif "attn_mask" in self.target.parameters and "bool" in self.target.supports.mask_kinds:
                masked = question.answer(self.reading, question.inputs().but(mask=self._mask().mask))
                if masked is not None and np.isnan(masked).any():  # −10⁹ is −∞ there, and 0 times that is NaN
                    record[dtype] = "NaN comes back of numbers of size one where there is a mask; not tried"

    def _gives_nan(self, question: Question) -> bool:
        answers = [question.answer(self.reading, one) for one in question.both()]
        return all(out is not None and np.isnan(out).any() for out in answers)

    def _single(self) -> bool:
        """Whether its weights of the first keys, read with V = I, are numbers of float32; those of a slight mistake in float64 are not."""
        dim = self.question.inputs().q.shape[3]
        square = self.question.inputs(queries=dim, keys=dim)  # who always has a window answers no more queries than keys
        out = self.question.answer(self.reading, square.but(v=np.broadcast_to(np.eye(*square.v.shape[2:]), square.v.shape)))
        return out is not None and bool((out == out.astype(np.float32)).all()) and len(np.unique(out)) > 2

    def _scaled_in_single(self) -> float:
        """How far off it is, where the root of a head dim that is no whole number is one of float32; 0.0 where it is one of float64."""
        head_dims = self.target.supports.head_dims or (5, 3)
        asked = [replace(self.question.inputs(dim=dim), default_scale=self.scale) for dim in head_dims if not (dim**0.5).is_integer()][:2]
        offs = [self._off(one) for one in asked]
        single = [replace(one, scale=one.effective_scale * _in_single(one.q.shape[-1])) for one in asked]
        near = [self._gap(one, exact) for one, exact in zip(asked, single, strict=True)]
        found = bool(asked) and all(by < off / 100 and off > TRACES for off, by in zip(offs, near, strict=True))
        return max(offs) if found else 0.0

    def _gap(self, asked: Inputs, meant: Inputs) -> float:
        """How far the answer to a call is from the exact one of another."""
        out = self.question.answer(self.reading, asked)
        return np.inf if out is None else float(np.abs(out - exactly(meant, "top-left").out).max(initial=0.0))

    def _sums(self) -> None:
        """Whether every step of a sum of halves is rounded, as NumPy's einsum and MLX's softmax do it: a long sum shows it."""
        target = self.target
        if not target.framework.rounds_sums or "arithmetic" in target.declared:
            return
        for dtype in [dtype for dtype in ("float16", "bfloat16") if dtype in target.dtypes]:
            if self._rounds_sums(dtype):
                self.facts["arithmetic"] = {**self.facts.get("arithmetic", {}), dtype: "same"}
                self.differs[f"sums of {dtype}"] = f'every step is rounded, as by {target.framework.rounds_sums}: arithmetic = "same"'

    def _rounds_sums(self, dtype: str) -> bool:
        question, target = replace(self.question, dtype=dtype), self.target
        few = {"batch": 1, "queries": 2} if {"lengths", "causality"} & set(target.learned) else {}  # a row may be a call of so many queries
        for values in ("constant", "tiny"):
            length = min(LONG, target.supports.max_length or LONG)
            asked = question.inputs(keys=length, values=values, **few)
            asked = replace(asked, default_scale=self.scale)
            out, exact = question.answer(self.reading, asked), exactly(asked, "top-left")
            usual, looser = (bound.rigorous(exact, a) for a in (target.supports.declared(dtype), arithmetic("same", dtype)))
            if out is not None and out.any() and (exact.out_error(out) > usual).any() and (exact.out_error(out) <= looser).all():
                return True
        return False

    def _rows(self) -> None:
        """What a row gives that sees no key."""
        if "attn_mask" not in self.target.parameters or not self._open("empty_rows") or self.target.declared & {"empty_rows_added"}:
            return
        asked = replace(self._mask(empty=True), default_scale=self.scale)
        assert asked.mask is not None
        kinds = {"bool": asked, "minus_infinity": asked.but(mask=np.where(asked.mask, 0.0, -np.inf))}
        found = {
            kind: convention
            for kind, inputs in kinds.items()
            if kind in self._kinds() and (convention := self.question.rows_without_keys(self.reading, inputs))
        }
        first = next(iter(found.values()), "zero")
        words = {"zero": "0", "nan": "NaN", "mean": "the mean of all values", "all": "what it would if it saw all keys"}
        if first != "zero":
            self.facts["empty_rows"] = first
            self.differs["rows without keys"] = f"{words[first]}, not 0"
        if (added := found.get("minus_infinity", first)) != first:
            self.facts["empty_rows_added"] = added
            self.differs["rows without keys"] = f"{words[first]}; where −inf is added, {words[added]}"

    def _hidden(self) -> None:
        """Whether a NaN in a hidden key or value stays there. Told, and no claim unless somebody makes it one."""
        if "attn_mask" not in self.target.parameters or not self._open("masked_nan") or "bool" not in self._kinds():
            return
        asked = self._mask()
        k, v = asked.k.copy(), asked.v.copy()
        k[:, :, -1], v[:, :, -1] = np.nan, np.nan
        plain, out = self.question.answer(self.reading, asked), self.question.answer(self.reading, asked.but(k=k, v=v))
        if plain is not None and out is not None and np.array_equal(plain, out):
            self.observed["masked_nan"] = "contained"

    def _kinds(self) -> tuple[str, ...]:
        return tuple(self.facts.get("mask_kinds", self.target.supports.mask_kinds))


def with_conventions(target: Target, device: str) -> Target:
    """The target in its own conventions, as far as they can be found out."""
    if not target.dtypes:
        return target
    dtype = asked_in(target)
    reading = Reading(layout=target.supports.layout)
    found = Conventions(target, Question(target, dtype, device), reading=reading).learned()
    for also in (with_second_mask, with_dropout, with_poison):
        found = also(found, Question(found, dtype, device, scale=found.supports.default_scale))
    return found


def _in_single(dim: int) -> float:
    """By what a scale is multiplied if the root of a head dim is one of float32."""
    return dim**0.5 / float(np.sqrt(np.float32(dim)))
