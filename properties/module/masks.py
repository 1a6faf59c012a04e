"""How masks are given to a module: the shape, the type, and what each means, found by what it does.

A form is right if what is hidden moves no other row, and what is seen still does. Where none does that, the one that hides most is
kept, else one that does nothing: then the properties of masks say what is wrong with it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from ..engine.core.target import Raised, first_line
from .facts import MEMORY, NEGLIGIBLE, with_hidden
from .names import FORWARD_ROLES, role
from .readings import formal_of
from .speech import PACKED, SAYINGS, Saying, Speech, Tokens, never_given, under
from .subject import Subject, answer, tokens_for

BATCH, LENGTH = 3, 6
HIDDEN = {0: (1, 3), 1: (2,)}  # not the first token, which a causal row needs; the third sequence is whole
SHAPES = {
    "padding": ("bs", "b11s", "b1ls", "bls"),
    "mask": ("b1ls", "b11s", "bs", "bls", "bhls", "ls", "lengths"),
    "lengths": ("lengths",),
}
# Those that are tried where one is needed, in this order.
FIRST = SHAPES | {"mask": ("b1ls", "ls", "bs", "bls")}
ROWED = ("b1ls", "bls", "bhls", "ls", "lsb")  # those that can say of each row which tokens it sees
RANKS = ("right", "changes", "other", "none", "reshapes")
# Words in the name of a mask that say of which tokens it is, in a module whose tokens see each other and a memory.
OF_ITSELF = {"x", "xs", "q", "query", "tgt", "trg", "target", "self", "dec", "decoder", "look", "lookahead"}
OF_MEMORY = {"src", "source", "memory", "cross", "enc", "encoder", "context"}
SWITCHES = ("mask_flag", "use_mask")  # attributes that, where they are False, say that a mask does nothing
LENGTH_FIRST = ("sb", "lsb")  # of a module whose tokens are (length, batch, features)
# What a name is documented to mean.
DOCUMENTED = {
    "key_padding_mask": ("True = hidden", "added"),
    "src_key_padding_mask": ("True = hidden", "added"),
    "memory_key_padding_mask": ("True = hidden", "added"),
    "tgt_key_padding_mask": ("True = hidden", "added"),
    # of models; inside them it is inverted for some layers (transformers' MptAttention), which is told
    "attention_mask": ("True = seen", "1 = seen", "1.0 = seen", "added", "True = hidden", "1 = hidden"),
}


def documented(name: str) -> tuple[str, ...]:
    """How a mask of this name is said; anyhow, if nothing is documented of it: a bias is added, though some kernel may take a bool one, too."""
    usual = tuple(sorted(SAYINGS, key=lambda how: how != "added")) if "bias" in name.split("_") else SAYINGS
    return DOCUMENTED.get(name, usual)


def with_masks(subject: Subject, module: Any) -> Subject:
    """The subject with how masks are said to it, each by itself; as it is if it takes none."""
    if subject.speech.layout in ("ld", *PACKED) or subject.facts.lengths in ((1,), (4,)):
        return subject
    if flag := _makes_causal(subject, module):
        return replace(subject, speech=replace(subject.speech, flag=flag, by_mask=True))
    taken = [(name, meant) for wanted in SHAPES for name, meant in _named(subject, module) if meant == wanted]
    found = [saying for name, meant in taken if (saying := _of_name(subject, module, name, meant))]
    refused = {name for name, _ in taken if _targets(subject, name)} - {saying.parameter for saying in found}
    found = [saying for saying in found if not (saying.parameter in subject.unused and saying.effect == "none")]  # as is documented
    if _switched_off(module):
        found = [saying for saying in found if saying.effect != "none"]
    reshapes = tuple(saying.parameter for saying in found if saying.effect == "reshapes")
    found = [saying for saying in found if saying.effect != "reshapes"]
    found.sort(key=lambda saying: RANKS.index(saying.effect))  # those that hide as they should come first
    told = {saying.parameter: saying for saying in found if saying.effect == "right"}
    needed = tuple(told.get(saying.parameter, saying) for saying in subject.speech.needed)
    facts = replace(subject.facts, refused=tuple(sorted(refused)), reshapes=reshapes)
    return _with(replace(subject, speech=replace(subject.speech, needed=needed), facts=facts), *found)


def _switched_off(module: Any) -> bool:
    """Whether an attribute says that masks are not looked at, as ``mask_flag`` of an Informer."""
    return any(value is False and name in SWITCHES for inner in module.modules() for name, value in vars(inner).items())


def wordings(speech: Speech, names: Iterable[str]) -> Iterator[tuple[Saying, ...]]:
    """Words in which masks of these names may be said together: all that mean the same in the same ones."""
    names, memory = list(names), bool(speech.name("memory"))
    meant = {name: role(name, FORWARD_ROLES) for name in names}
    open_ones = memory and any(not (_documents_own(name) or _documents_memory(name)) for name in names)
    kinds = list(dict.fromkeys(meant.values()))
    hows = {kind: documented(next(name for name in names if meant[name] == kind)) if kind != "lengths" else ("",) for kind in kinds}
    for itself in (False, True)[: 1 + open_ones]:
        for words in product(*(product(FIRST[kind], hows[kind]) for kind in kinds)):
            said = dict(zip(kinds, words, strict=True))
            own = {name: _documents_own(name) or (itself and not _documents_memory(name)) for name in names}
            yield tuple(Saying(name, *said[meant[name]], beside=memory and own[name], own=not memory and own[name]) for name in names)


def with_needed(subject: Subject, module: Any) -> Subject:
    """The subject with the masks that it needs in those words in which most of them hide as they should; as it is if none do."""
    speech, names = subject.speech, [saying.parameter for saying in subject.speech.needed]
    best, most = subject, 0
    for needed in wordings(speech, names) if names else ():
        if [each.beside for each in needed] != [each.beside for each in speech.needed]:
            continue
        other = replace(subject, speech=replace(speech, needed=needed), facts=replace(subject.facts, sees_itself=not speech.name("memory")))
        right = sum(_effect(other, module, saying)[0] == "right" for saying in needed)
        if right > most:
            best, most = replace(subject, speech=other.speech), right
        if right == len(names):
            break
    return best


def _with(subject: Subject, first: Saying | None = None, *more: Saying) -> Subject:
    return replace(subject, speech=replace(subject.speech, mask=first, more=more)) if first else subject


def _of_name(subject: Subject, module: Any, name: str, meant: str) -> Saying | None:
    """How one mask is said; None if no form of it is taken.

    Where tokens are seen beside a memory, a name may say of which of them it is; a mask that hides the others does not do what its name says.
    """
    ways = _targets(subject, name)
    tried = [_best(subject, module, _forms(subject, name, meant, **way)) for way in ways]
    right = next((saying for saying in tried if saying and saying.effect == "right"), None)
    if right or len(ways) > 1:
        return right or next((saying for saying in tried if saying), None)
    if subject.facts.both and not subject.facts.sees_itself and ways and ("beside" in ways[0]) == _documents_own(name):
        other: dict[str, bool] = {} if _documents_own(name) else {"beside": True}
        swapped = _best(subject, module, _forms(subject, name, meant, **other))
        if swapped and swapped.effect == "right" and (not tried[0] or tried[0].effect != "right"):
            return replace(swapped, beside=not swapped.beside, effect="other")
    return tried[0] if tried else None


def _targets(subject: Subject, name: str) -> list[dict[str, bool]]:
    """Which tokens a mask of this name may be about: as fields of a saying."""
    facts = subject.facts
    if facts.sees_itself:
        return [{"cross": True}] * facts.takes_memory if _of_memory(name) else [{}]
    if not facts.both:  # rows that see a memory alone: what is said of themselves hides nothing
        own = any(saying.parameter == name and saying.beside for saying in subject.speech.needed)
        return [] if own or (role(name, FORWARD_ROLES) == "lengths" and _documents_own(name)) else [{}]
    return [{"beside": True}] if _documents_own(name) else [{}] if _documents_memory(name) else [{}, {"beside": True}]


def _documents_own(name: str) -> bool:
    """Whether a name says that a mask is of the tokens themselves, and not of a memory."""
    return bool(set(name.lower().split("_")) & OF_ITSELF)


def _documents_memory(name: str) -> bool:
    return bool(set(name.lower().split("_")) & OF_MEMORY) or _of_memory(name)


def _best(subject: Subject, module: Any, sayings: Iterable[Saying]) -> Saying | None:
    """The first form that hides as it should; else the one that does most of it, one that does nothing, or one by which the output has
    another form. None if none is taken.

    A mask of padding that is taken is meant as one: where it hides no padding, no other form makes up for it.
    """
    partial: Saying | None = None  # right, but not where there are more sequences than tokens: an axis is cut to the length
    others: list[tuple[float, Saying]] = []
    for saying in sayings:
        effect, leaks = _effect(subject, module, saying, MEMORY if saying.cross else None)
        if effect == "right" and saying.shape in ROWED and (meant := _of_padding(saying.how, others)):
            return meant
        if effect == "right" and saying.how == "added":  # −∞ is no 0, and what is not 0 may be what is hidden
            marked = (replace(saying, how=how) for how in ("True = hidden", "1 = hidden", "1.0 = hidden"))
            saying = next((each for each in marked if _effect(subject, module, each, MEMORY if each.cross else None)[0] == "right"), saying)
        if effect == "right":
            optional = subject.facts.sees_itself and subject.facts.takes_memory and not saying.cross
            own = optional and _effect(subject, module, saying, MEMORY)[0] != "right"
            longest = saying.shape == "lengths" and not _pads_all(subject, module, saying)
            settled = replace(saying, own=own, whole=_says_all(subject, module, saying), longest=longest)
            if _takes_many(subject, module, saying):
                return settled
            partial = partial or settled
        elif effect != "refused":
            others.append((leaks, replace(saying, effect=effect)))
    return partial or min(others, key=lambda each: (RANKS.index(each[1].effect), each[0]), default=(0.0, None))[1]


def _of_padding(how: str, others: list[tuple[float, Saying]]) -> Saying | None:
    """The form of padding that is taken and hides none, by a name that says that it is one; said as another form is that does what it says."""
    meant = [each for _, each in others if each.shape == "bs" and (each.parameter == "attention_mask" or "pad" in each.parameter)]
    return next((each for each in meant if each.how == how), None)


def _makes_causal(subject: Subject, module: Any) -> str:
    """The mask of which it does not matter what it holds: where there is one, the call is causal (Whisper's). Empty if there is none."""
    if subject.facts.causal or subject.facts.lengths or subject.speech.flag or subject.speech.pooled or not subject.facts.sees_itself:
        return ""
    tokens = tokens_for(subject.speech, BATCH, LENGTH, None, 5)
    for name in (name for name in formal_of(module) if role(name, FORWARD_ROLES) == "mask" and name not in subject.speech.roles):
        masked = replace(subject, speech=replace(subject.speech, mask=Saying(name, "ls", "added")))
        flagged = replace(subject, speech=replace(subject.speech, flag=name, by_mask=True))
        try:
            causal = answer(flagged, module, dataclasses.replace(tokens, is_causal=True))
            others = [answer(masked, module, with_hidden(tokens, dict.fromkeys(range(BATCH), places))) for places in ((), (1,))]
            plain = answer(subject, module, tokens)
            prefix = answer(subject, module, dataclasses.replace(tokens, x=tokens.x[:, :3]))
        except (Exception, SystemExit):
            continue
        if any(other.shape != plain.shape for other in (causal, *others)):
            continue
        size = NEGLIGIBLE * np.abs(plain).max()
        last = np.abs(causal[:, 2] - prefix[:, 2]).max() <= size  # row 2 sees the first three tokens, and these alone
        if last and all(np.array_equal(causal, other) for other in others) and np.abs(causal - plain).max() > size:
            return name
    return ""


def _named(subject: Subject, module: Any) -> list[tuple[str, str]]:
    """(name, what it means) of the masks that it takes; not those of an argument that is never given, as ``mem_mask`` beside ``mem``."""
    speech, formal = subject.speech, formal_of(module)
    left = {name for name, parameter in formal.items() if never_given(parameter, speech)}
    taken = [(name, role(name, FORWARD_ROLES)) for name in formal if not _stems(name) & left]
    return [(name, meant) for name, meant in taken if meant in SHAPES and name not in speech.roles and name != speech.hinted] + [
        (name, meant) for name, meant in taken if meant in SHAPES and name == speech.hinted
    ]


def _stems(name: str) -> set[str]:
    """What a mask may be one of, by its name: ``mem`` for ``mem_mask``."""
    return {name.removesuffix(end) for end in ("_key_padding_mask", "_padding_mask", "_mask", "_masks") if name.endswith(end)}


def _forms(subject: Subject, name: str, meant: str, **target: Any) -> Iterator[Saying]:
    """All forms in which a mask may be said."""
    for shape in (*SHAPES[meant], *LENGTH_FIRST * (subject.speech.layout == "lbd")):
        for how in documented(name) if shape != "lengths" else ("",):
            yield Saying(name, shape, how, **target)


def _of_memory(name: str) -> bool:
    return any(word in name for word in ("memory", "context", "encoder", "kv_"))


def _hidden(subject: Subject, tokens: Tokens, saying: Saying) -> dict[int, tuple[int, ...]]:
    if saying.shape == "lengths":
        return {0: (tokens.hideable - 2, tokens.hideable - 1), 1: (tokens.hideable - 1,)}
    return dict.fromkeys(range(BATCH), (1, 3)) if saying.shape == "ls" else HIDDEN


def _effect(subject: Subject, module: Any, saying: Saying, memory: int | None = None) -> tuple[str, float]:
    """(right; changes: something, but not that; none: nothing; reshapes: the output has another form; refused: it raises; the share of rows
    that leak).
    """
    other = replace(subject, speech=replace(subject.speech, mask=saying))
    length = (subject.facts.lengths or (LENGTH,))[0]
    plain = replace(tokens_for(subject.speech, BATCH, length, memory if subject.facts.sees_itself else MEMORY, 5), by=saying)
    places = _hidden(subject, plain, saying)
    masked = with_hidden(plain, places)
    try:
        whole, out = answer(other, module, plain), answer(other, module, masked)
        moved = answer(other, module, changed(masked, places))
        seen = [answer(other, module, changed(masked, {b: (at,)})) for b, at in ((0, 0), (1, 0), (BATCH - 1, plain.hideable - 2))]
    except Raised as raised:  # what returns no array is kept where no form does better: its cases say so
        return "refused" if raised.refuses else "changes", 1.0
    except (Exception, SystemExit):
        return "refused", 1.0
    if out.shape != whole.shape or out.ndim != 3:
        return "reshapes", 1.0
    own = np.zeros(out.shape[:2], dtype=bool)  # rows of tokens that were themselves changed
    if plain.about == "x" and not subject.speech.pooled:
        for batch, at in places.items():
            own[batch, list(at)] = True
    rows = ~own
    size = np.abs(whole).max()
    with np.errstate(invalid="ignore"):
        leaking = ~(np.abs(moved - out)[rows] <= NEGLIGIBLE * size).all(-1)
        sees = subject.speech.pooled or all((np.abs(each - out).max(2) > NEGLIGIBLE * size).sum() > (plain.about == "x") for each in seen)
        same = bool((np.abs(out - whole) <= NEGLIGIBLE * size).all())
    if not leaking.any() and sees and not same:
        return "right", 0.0
    return "none" if same else "changes", float(leaking.mean())


def taken_apart(subject: Subject, module: Any) -> Subject:
    """With what it raises where it is told to be causal and given a mask, as PyTorch's own function does."""
    speech = subject.speech
    if not (speech.mask and speech.flag) or speech.by_mask or speech.mask.parameter == speech.hinted:
        return subject
    plain = tokens_for(subject.speech, BATCH, (subject.facts.lengths or (LENGTH,))[0], None, 5)
    both = dataclasses.replace(with_hidden(plain, {0: (plain.keys - 1,)}), is_causal=True)
    for mode in (nullcontext(), under(module, subject.framework, "widened", "")):  # in steps, too: a fused kernel may not look
        try:
            with mode:
                answer(subject, module, both)
        except (Exception, SystemExit) as error:
            return replace(subject, facts=replace(subject.facts, apart=f"{type(error).__name__}: {first_line(error)}"))
    return subject


def _says_all(subject: Subject, module: Any, saying: Saying) -> bool:
    """Whether a mask with a row for each token takes the place of causality: with one that hides nothing later tokens are seen."""
    if not subject.facts.causal or saying.shape not in ROWED or not subject.facts.sees_itself or saying.cross:
        return False
    speech = replace(subject.speech, mask=saying, needed=(saying,))
    plain = tokens_for(speech, BATCH, (subject.facts.lengths or (LENGTH,))[0], None, 5)
    moved = changed(plain, dict.fromkeys(range(BATCH), (plain.keys - 1,)))
    first, again = (answer(subject, module, tokens, speech)[:, 0] for tokens in (plain, moved))
    return not np.array_equal(first, again)


def _takes_many(subject: Subject, module: Any, saying: Saying) -> bool:
    """Whether a mask in this form is taken with more sequences than tokens."""
    length = (subject.facts.lengths or (3,))[0]
    itself = subject.facts.sees_itself and not saying.cross
    plain = replace(tokens_for(subject.speech, length + 4, length, None if itself else MEMORY, 5), by=saying)
    try:
        answer(replace(subject, speech=replace(subject.speech, mask=saying)), module, with_hidden(plain, {0: (1,)}))
    except (Exception, SystemExit):
        return False
    return True


def _pads_all(subject: Subject, module: Any, saying: Saying) -> bool:
    """Whether all sequences of a batch may have padding: else the longest one has to fill it."""
    itself = subject.facts.sees_itself and not saying.cross
    length = (subject.facts.lengths or (LENGTH,))[0]
    plain = replace(tokens_for(subject.speech, BATCH, length, None if itself else MEMORY, 5), by=saying)
    last = (plain.hideable - 1,)
    try:
        out = answer(subject, module, with_hidden(plain, dict.fromkeys(range(BATCH), last)))
        return out.shape == answer(subject, module, with_hidden(plain, {0: last})).shape
    except (Exception, SystemExit):
        return False


def changed(tokens: Tokens, places: dict[int, tuple[int, ...]]) -> Tokens:
    """Other numbers in these tokens: of the memory, or of the sequence itself where it is its own."""
    name = tokens.about
    other = getattr(tokens, name).copy()
    for batch, at in places.items():
        other[batch, list(at)] = 1.5 - 2 * other[batch, list(at)]
    return dataclasses.replace(tokens, **{name: other})
