"""The contract of a module: what is taken for one, how it is made and called, and which of its properties can be tried.

A class is made from nothing (``construct.py``), an instance is copied; what ``forward`` takes is found out (``learn.py``). A module without
weights that takes q, k and v is an attention like any other callable.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..engine.cases.draws import Strategy
from ..engine.contained.link import Gone
from ..engine.contained.worker import WORKSHOPS
from ..engine.core.contract import Contract, Dtypes, Formal, register
from ..engine.core.declare import GRADIENTS, Property
from ..engine.core.documented import (
    BATCH,
    HIDDEN,
    SEEN,
    causal,
    first_axis,
    narrow,
    one_more,
    open_to_all,
    polarity,
    shifted,
    text_of,
    unused,
)
from ..engine.core.finding import Finding
from ..engine.core.supports import Supports
from ..engine.core.target import CannotRun, Raised, Target, blame
from ..engine.core.trial import Refuted, Trial
from ..engine.frameworks import Framework, make_variant
from . import cases
from .away import Away
from .beside import BESIDE
from .by_inputs import by_inputs
from .candidates import headed
from .cases import MODULE, Case
from .confirm import recognised, with_places
from .contained import held_to
from .facts import CHOSEN
from .forms import all_forms
from .learn import learned
from .measure import measured
from .pairing import MERGING, paired
from .readings import formal_of
from .scales import read_off
from .speech import DOUBLED, LAYOUTS, Speech, never_given
from .subject import Facts, Subject, of_instance, subject_of
from .trial import ModuleTrial
from .workshop import Workshop

OF_CHANCE = "module_the_same_call_gives_the_same_bits"  # what draws random numbers in eval mode is asked for this alone


class Module(Contract):
    """Tokens in, tokens out, the weights inside."""

    name = MODULE.name
    call = "module(tokens) with tokens (batch, length, features)"
    arguments = 1
    topics = (MODULE,)
    pair: tuple[str, ...] = (OF_CHANCE,)
    beside = BESIDE
    of_classes = True
    readings = False  # other weights, other answers: no mutant answers like a module of somebody else

    def relatives(self, target: Target) -> Mapping[str, str]:
        flags = [f"{name}={other}" for name, other in _of(target).flags.items()]
        return {f"{target.name}({flag})": flag for flag in flags} if ":" in target.name else {}

    def recognise(self, formal: Formal) -> bool:
        """No signature says it: the class does."""
        return False

    def options(self, formal: Formal) -> tuple[str, ...]:
        return ()

    def adopt(self, name: str, thing: Any, supports: Supports, fw: Framework, device: str) -> Target | Callable[..., Any] | None:
        subject = subject_of(name, thing, fw)
        if not isinstance(subject, Subject):
            return subject
        try:
            text = text_of(thing)
            subject = dataclasses.replace(subject, unused=unused(text), said_causal=causal(text), said_open=open_to_all(text))
            subject = dataclasses.replace(subject, said_one_more=one_more(text), said_narrow=narrow(text), said_shifted=shifted(text))
            subject = learned(subject, device)
        except Gone as gone:
            raise CannotRun(f"{name} cannot be called: it {gone}") from None
        found = recognised(subject)
        subject = dataclasses.replace(subject, structure=found.structure, likely=found.likely, nearest=found.words, headed=headed(subject))
        subject = with_places(subject)
        wrong = _other_than_written(subject, text)
        if not subject.structure or subject.said_narrow:  # which is confirmed as coarsely as it rounds
            wrong |= read_off(subject)
        target = Target(name, subject, self.name, supports, subject.framework, (), fw.dtypes, wrong=wrong)
        return self._with_words(self._with_dtypes(dataclasses.replace(target, parameters=_parameters(target)), device))

    def followed(self, name: str, thing: Any, fw: Framework) -> Target | None:
        if fw.modules is None or not fw.modules.is_module(thing):
            return None
        subject, given = Subject(name, of_instance(thing), fw), getattr(type(thing).forward, "__globals__", {}).get("get_inputs")
        try:
            found = self.adopt(name, subject, Supports(), fw, "cpu")
        except CannotRun:
            if not callable(given):
                raise
            subject = by_inputs(subject, given)
            found = self._with_words(self._with_dtypes(Target(name, subject, self.name, Supports(), fw, (), fw.dtypes), "cpu"))
        return found if isinstance(found, Target) else None

    def _with_words(self, target: Target) -> Target:
        structure = _of(target).structure
        differs = dict(structure.differs) if structure else {}
        for mask in _of(target).speech.masks:
            if mask.parameter == "attention_mask" and mask.how.endswith("hidden"):
                differs["attention_mask"] = f"{mask.how}; that of a model is {mask.how.replace('hidden', 'seen')}"
            if mask.parameter == "attn_mask" and mask.how == "True = hidden" and not _is_of_pytorch(_of(target)):
                differs["attn_mask"] = "True = hidden, as in nn.MultiheadAttention; in scaled_dot_product_attention it is True = seen"
        if _of(target).speech.layout == "lbd":
            differs["tokens"] = "the first axis is that of tokens, the second that of sequences"
        if (placed := _of(target).structure_placed) and placed.added != "qk":
            differs["positions that may be given"] = "they are added to values, too; in DETR to queries and keys alone (Carion et al. 2020)"
        untried = {**target.untried, **_never_given(_of(target))}
        if structure is None:
            untried[MERGING] = "its structure is not confirmed: what else holds of any attention was asked"
        return dataclasses.replace(target, learned=_words(_of(target)), differs=differs, untried=untried)

    def _with_dtypes(self, target: Target, device: str) -> Target:
        """The dtypes that every kind of call takes, and where there are some, those that end the process; the others are told. Raises CannotRun."""
        untried: dict[str, str] = {}
        broke: list[str] = []
        wanted = target.supports.dtypes or target.framework.dtypes
        for dtype in (dtype for dtype in target.framework.dtypes if dtype in wanted):
            try:
                wrong = self.smoke(target, dtype, device)
            except Raised as raised:
                wrong = f"it {blame(raised)}"
                broke += [dtype] * (not raised.refuses)
            if wrong:
                untried[dtype] = wrong
        taken = tuple(dtype for dtype in target.framework.dtypes if dtype in wanted and dtype not in untried)
        if not taken:
            raise CannotRun(f"{target.name} cannot be called: {next(iter(untried.values()))}")
        untried = {dtype: why for dtype, why in untried.items() if dtype not in broke}
        taken = tuple(dtype for dtype in target.framework.dtypes if dtype in (*taken, *broke))
        return dataclasses.replace(target, dtypes=taken, untried={**target.untried, **untried})

    def smoke(self, target: Target, dtype: str, device: str) -> str:
        subject = _of(target)
        length = (subject.facts.lengths or (6,))[0]
        plain = Case(batch=2, length=length, memory=None if subject.facts.sees_itself else 5, dtype=dtype, device=device, seed=1)
        mask = next((mask for mask in subject.speech.masks if mask.effect != "other" and not mask.cross), None)
        one = dataclasses.replace(
            target, function=dataclasses.replace(subject, speech=dataclasses.replace(subject.speech, mask=mask, more=()))
        )
        calls = [plain]
        if mask:
            calls.append(plain.but(padded=True))
        if subject.speech.flag:
            calls.append(plain.but(is_causal=True))
        if subject.facts.takes_memory and subject.facts.sees_itself:
            calls.append(plain.but(memory=5))
        for case in calls:
            try:
                ModuleTrial(one, case).run()
            except Refuted as refuted:  # for what it returns has another shape
                if case.memory == plain.memory:  # a property says it of those with a memory
                    return refuted.violation.says
        return ""

    def fields(self, target: Target) -> tuple[str, ...]:
        return tuple(name for name in super().fields(target) if name != "length" or not _of(target).speech.forms)

    def trial(self, prop: Property) -> type[Trial]:
        return ModuleTrial

    def cases(self, target: Target, prop: Property, device: str, dtypes: Dtypes) -> Strategy:
        return cases.module_cases(target, prop, device, dtypes)

    def refused(self, target: Target, prop: Property, dtypes: Dtypes) -> str:
        subject = _of(target)
        if subject.facts.chance and prop.name != OF_CHANCE:
            return f"it draws random numbers in eval mode ({subject.facts.chance}): its answers cannot be compared"
        for word in prop.domain.get("about", ()):
            if why := _without(subject.facts, subject, word):
                return why
        wanted = prop.domain.get("dtypes")
        if isinstance(wanted, tuple) and not set(dtypes or target.dtypes) & set(target.dtypes) & set(wanted):
            return f"it is about {', '.join(wanted)}"
        return ""

    def expected(self, target: Target, prop: Property) -> bool:
        """What is about modules of another kind is no gap: of what kind one is, is found out, not declared."""
        return super().expected(target, prop) and not (prop.name.startswith(GRADIENTS) or self.refused(target, prop, None))

    def outside(self, target: Target, prop: Property, case: Case) -> str:
        about = prop.domain.get("about", ())
        facts = _of(target).facts
        if "causal" in about and not (facts.causal or case.is_causal):
            return "it is about causal calls"
        if "open" in about and case.is_causal:
            return "it is about calls that are not causal"
        wanted = prop.domain.get("dtypes")
        if isinstance(wanted, tuple) and case.dtype not in wanted:
            return f"it is about {', '.join(wanted)}"
        if facts.lengths and case.length not in facts.lengths:
            return f"the module is called with {' or '.join(map(str, facts.lengths))} tokens alone"
        return super().outside(target, prop, case)

    def legal(self, target: Target, case: Case) -> bool:
        facts, speech = _of(target).facts, _of(target).speech
        if facts.apart and case.padded and case.is_causal:
            return False
        if case.padded and case.is_causal and all(mask.parameter == speech.hinted for mask in speech.masks):
            return False  # a mask that hides more than later tokens, beside a hint that says it does not
        return (not facts.lengths or case.length in facts.lengths) and max(case.length, case.memory or 0) <= facts.longest

    def features(self, target: Target, case: Case) -> Iterable[str]:
        yield case.dtype
        yield from super().features(target, case)

    def measure(self, target: Target, finding: Finding) -> tuple[Case, str] | None:
        return measured(target, finding)

    def paired(self, target: Target, reference: Target) -> Target:
        return paired(target, reference)

    def held_to(self, reference: Target, contain: Callable[[str], Any], name: str) -> Target:
        return held_to(reference, contain, name)

    def seen_through(self, target: Target, variant: str) -> Callable[..., Any]:
        fw, subject = target.framework, _of(target)
        make_variant(fw, variant, lambda: None)  # a typo is told here
        unrecorded = "" if fw.variants[variant].recorded else variant

        def through(module: Any) -> Any:
            return module.through(variant) if isinstance(module, Away) else make_variant(fw, variant, module)

        return dataclasses.replace(subject, through=through, unrecorded=unrecorded or subject.unrecorded)


def _of(target: Target) -> Subject:
    subject: Subject = target.function  # type: ignore[assignment]
    return subject


def _other_than_written(subject: Subject, text: str) -> dict[str, str]:
    """What does other than its documentation, or its name, says."""
    masks = [mask for mask in subject.speech.masks if mask.effect == "right" and mask.shape != "lengths"]
    found = {}
    for mask in masks:
        how = SEEN if mask.how.endswith("seen") else HIDDEN if mask.how.endswith("hidden") else "added" * (mask.shape == "bs")
        said = polarity(text, mask.parameter, [each.parameter for each in subject.speech.masks])
        if how and said and said != how:
            found[mask.parameter] = f"its documentation says that True, or 1, is {said}; it is {how}"
    if subject.speech.layout == "lbd" and first_axis(text) == BATCH:
        found["tokens"] = (
            "its documentation says that the first axis is that of sequences; it is that of tokens, as of PyTorch's layers by default"
        )
    if (name := subject.facts.unheeded) and name not in subject.unused:
        found[name] = "it is given, and changes nothing"
    return found


def _is_of_pytorch(subject: Subject) -> bool:
    """Whether PyTorch's own layer of attention is in it, whose masks it then has."""
    return any(
        "MultiheadAttention" in {kind.__name__ for kind in type(part).__mro__} for part in subject.module("float64", "cpu", 1).modules()
    )


def _never_given(subject: Subject) -> dict[str, str]:
    """Arguments of ``forward`` that no call has."""
    formal = formal_of(subject.module("float64", "cpu", 1))
    left = [name for name, parameter in formal.items() if never_given(parameter, subject.placed or subject.speech)]
    left = [name for name in left if name != subject.facts.unheeded or name in subject.unused]
    whole = {"keys of fewer tokens": "a module that makes them could not be called"} if subject.facts.whole else {}
    forms = {"arrays of other sizes": "how it is called get_inputs() alone says, for these"} if subject.speech.forms else {}
    return {name: _why_not(subject, name) for name in left} | whole | forms


def _why_not(subject: Subject, name: str) -> str:
    """Why no call has this argument."""
    if name in subject.unused:
        return "documented as not used"
    if name in subject.facts.reshapes:
        return "with it the output has another form"
    return "it raises for every form of a mask that is known" if name in subject.facts.refused else "optional, and never given"


def _parameters(target: Target) -> tuple[str, ...]:
    """What a call, or the constructor, can be given."""
    subject = _of(target)
    facts, speech = subject.facts, subject.speech
    able = {
        "memory": facts.takes_memory,
        "mask": bool(speech.masks),
        "is_causal": bool(speech.flag),
        "heads": "heads" in facts.varied,
        "head_dim": "head_dim" in facts.varied,
    }
    return tuple(name for name, has in able.items() if has)


def _without(facts: Facts, subject: Subject, word: str) -> str:
    """Why a property about such modules is not put to this one; empty if it is."""
    speech = subject.speech
    parts = "tokens see those of their line, and those of their column" * facts.axial
    parts = parts or "some tokens never see each other: a window" * facts.local
    reasons = {
        "causal": "" if facts.causal or speech.flag else "tokens may see later ones: it is not causal",
        "open": f"it is causal: {facts.causal}" if facts.causal else "",
        "self": "" if facts.sees_itself else "its tokens see those of the memory alone",
        "rows": "the rows that come back are not those of its tokens" if speech.pooled else "",
        "unordered": f"the order of its tokens may matter: {facts.positions}" if facts.positions else "",
        "learned": "" if facts.learned else "no parameters alone tell its tokens apart by their order",
        "image": "" if speech.of_an_image else "its tokens are not those of an image of several lines",
        "ungrouped": "tokens see those of their own group alone" if facts.grouped else "",
        "logits alone": "" if facts.in_logits else f"more than weights may depend on positions: {facts.positions}",
        "whole": parts,
        "steady": f"{facts.sparse}, and rounding may change the choice" if facts.sparse.startswith(CHOSEN) else "",
        "dense": f"some tokens may not be seen: {facts.sparse}" if facts.sparse else "",
        "sum to one": f"the weights of its tokens need not sum to one: {facts.sinks}" if facts.sinks else "",
        "lengths": f"it is called with {' or '.join(map(str, facts.lengths))} tokens alone" if facts.lengths else "",
        "memory": "" if facts.takes_memory else "it takes no memory",
        "one at a time": "beside a memory its tokens see each other, too" * facts.both
        or (f"a {facts.pooling} takes statistics of all its tokens" if facts.pooling else ""),
        "memory alone": "its tokens share the weights of one softmax with those of a memory" if facts.joined else "",
        "together": f"it is causal or takes a mask, not both: {facts.apart}" if facts.apart else "",
        "alike": "the first token is that of a class" if facts.first and not speech.pooled else "",
        "no mask": "there is no call without a mask" if speech.needed else "",
        "of one mode": f"a {facts.statistics} takes statistics of the batch in train mode" if facts.statistics else "",
        "dropout": "" if facts.dropout else "there is no dropout in it",
        "cache": "" if speech.keeping else "it keeps no cache" + (f" that is understood: {subject.untold}" if subject.untold else ""),
        "begins anew": "nothing says how its cache is emptied" if _goes_on(speech) else "",
        "handed back": "" if speech.keeping and speech.keeping.kind == "handed back" else "its cache is none that comes back",
        "angles": "" if set(speech.roles.values()) & {"angles", "complex angles", "cosine"} else "it is given no angles",
        "turned last": f"features of heads are weighed after they are turned ({facts.weighed})" if facts.weighed else "",
        "larger": "" if facts.larger else "its reference takes no inputs that are larger than those of other cases",
        "tokens": "its arguments are those of get_inputs, whatever they hold" if speech.forms else "",
        "inputs": "" if facts.inputs else "nothing says what its reference is called with",
        "gradients": f"no gradient reaches its parameters through {subject.unrecorded}" * bool(subject.unrecorded) or facts.unrecordable,
        "named": "" if subject.headed else "no projections by these names have the features of its heads",
        "structure": "" if subject.structure else "its projections are not recognised, or no composition of them answers as it does",
    }
    return reasons[word]


def _goes_on(speech: Speech) -> bool:
    """Whether a module keeps a cache, and goes on with it whatever it is fed."""
    keeping = speech.keeping
    return (
        keeping is not None
        and keeping.kind == "within"
        and not (keeping.reset or keeping.set_up or keeping.where or "start" in speech.roles.values())
    )


def _words(subject: Subject) -> dict[str, str]:
    """What was found out, for the lines ``speaks`` of a report."""
    speech, facts = subject.speech, subject.facts
    if speech.forms:
        forms = "; ".join(form.words for form in all_forms(speech.forms))
        return {"arguments": f"by position, as get_inputs() gives them: {forms}", "weights": "drawn anew for every case"}
    roles = ", ".join(f"{name} = {meant}" for name, meant in speech.roles.items() if name != meant)
    classed = ", the first token is that of a class" * speech.classed
    layout = LAYOUTS[speech.layout] + ", tokens in one row" * speech.flat
    words = {"tokens": f"{layout}, {speech.width} features{classed}" + (f"; {roles}" if roles else "")}
    if speech.pooled:
        rows = "one row" if speech.pooled == 1 else f"{speech.pooled} rows"
        words["output"] = f"{rows} for each sequence" + ", what its first token sees" * facts.first
        words["output"] += f", for which {facts.asking} asks" if facts.asking and subject.structure else ""
    elif facts.first:
        words["output"] = "the first token is that of a class: it alone sees the others"
    words["causal"] = facts.causal or (_flagged(speech) if speech.flag else "no") if facts.sees_itself else "no: it sees a memory"
    if speech.aside or speech.memory_width != speech.width:
        words["memory"] = f"{LAYOUTS['bld' if speech.aside else speech.layout]}, {speech.memory_width} features"
    if facts.both:
        said = "tokens see each other, too" + ", in one softmax with it" * facts.joined
        words["memory"] = "; ".join([*([words["memory"]] if "memory" in words else []), said])
    if facts.hides_memory:
        words["memory"] = "causality hides tokens of it, too: not tried"
    if subject.placed:
        given = [name for name in subject.placed.roles if name not in speech.roles]
        parts = "queries, keys and values" if subject.structure_placed.added == "qkv" else "queries and keys"
        words["positions that may be given"] = f"{', '.join(given)}: added to what {parts} are made of"
    if {"angles", "cosine"} & set(speech.roles.values()):
        words["angles"] = speech.table + f"; features are weighed after they are turned ({facts.weighed})" * bool(facts.weighed)
    if "pairs" in speech.roles.values():
        words["pairs"] = f"(batch, length, length, {speech.width})"
    if "distances" in speech.roles.values():
        words["distances"] = f"{speech.table}, sinusoids"
    if subject.unrecorded:
        words["gradients"] = f"none: its forward is under {subject.unrecorded}"
    if facts.unrecordable:
        words["gradients"] = f"refused: {facts.unrecordable}"
    tokens = "lines and columns" if facts.axial or (facts.local and speech.of_an_image) else "earlier tokens" if facts.causal else "tokens"
    words["positions"] = facts.positions or f"none: the order of {tokens} does not matter"
    words |= {mask.parameter: mask.words for mask in speech.masks}
    if facts.apart:
        words["refuses"] = f"a mask together with {speech.flag}: {facts.apart}"
    if speech.keeping:
        words["cache"] = speech.keeping.words
    elif subject.untold:
        words["cache"] = f"none that is understood: {subject.untold}"
    if facts.sparse:
        words["sparse"] = facts.sparse
    if facts.local:
        words["window"] = facts.window or "some tokens never see each other"
    if facts.sinks:
        words["sums"] = f"weights are not held to sum to one: {facts.sinks}"
    if name := speech.name("no bias"):
        words[name] = "zeros"
    if subject.said_narrow:
        words["casts"] = "to narrower types, as its documentation says: their rounding is a part of the bound"
    if speech.doubled:
        words["computes"] = DOUBLED[speech.doubled]
    if facts.by_type:
        words["types"] = facts.by_type
    if facts.routed:
        words["experts"] = f"tokens are routed ({facts.routed}): what they do not see may change their rounding"
    if facts.lengths:
        words["length"] = f"{' or '.join(map(str, facts.lengths))} alone are tried"
    elif facts.shortest > 1:
        words["length"] = f"from {facts.shortest}" + (f" to {facts.longest}" if facts.longest < 65 else "")
    elif facts.longest < 65:
        words["length"] = f"up to {facts.longest}"
    if facts.varied:
        what = "heads and their width are" if "heads" in facts.varied else "the width of heads, not their number, is"
        words["sizes"] = f"{what} varied through the constructor"
    if subject.guesses:
        words["made"] = f"with {', '.join(f'{name}={value}' for name, value in subject.guesses.items())}: guessed"
    words["weights"] = "drawn anew for every case"
    if subject.structure:
        wrong = f", with a mistake: {subject.structure.mistakes[0]}" if subject.structure.mistakes else ""
        words["structure"] = f"{subject.structure.words}: confirmed{wrong}"
    else:
        words["structure"] = f"not confirmed: {subject.nearest or 'its projections are not recognised'}"
    return words


def _flagged(speech: Speech) -> str:
    if speech.hinted:
        return f"if {speech.flag} and {speech.hinted} say so"
    return f"where {speech.flag} is given, whatever it holds" if speech.by_mask else f"if {speech.flag}"


register(Module())
WORKSHOPS.append(Workshop)
