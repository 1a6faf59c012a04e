"""How masks are given to a module: the shape, the type, and what each means, found by what it does.

A form is right if what is hidden moves no other row, and what is seen still does. Where none does that, the one that hides most is
kept, else one that does nothing: then the properties of masks say what is wrong with it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np

from ..engine.core.target import first_line
from .facts import MEMORY, NEGLIGIBLE, with_hidden
from .names import FORWARD_ROLES, role
from .readings import formal_of
from .speech import PACKED, SAYINGS, Saying, Tokens, under
from .subject import Subject, answer, tokens_for

BATCH, LENGTH = 3, 6
HIDDEN = {0: (1, 3), 1: (2,)}  # not the first token, which a causal row needs; the third sequence is whole
SHAPES = {
    "padding": ("bs", "b11s", "b1ls", "bls"),
    "mask": ("b1ls", "b11s", "bs", "bls", "bhls", "ls", "lengths"),
}
ROWED = ("b1ls", "bls", "bhls", "ls", "lsb")  # those that can say of each row which tokens it sees
RANKS = ("right", "changes", "other", "none")
# Words in the name of a mask that say of which tokens it is, in a module whose tokens see each other and a memory.
OF_ITSELF = {"tgt", "trg", "target", "self", "dec", "decoder", "look", "lookahead"}
OF_MEMORY = {"src", "source", "memory", "cross", "enc", "encoder", "context"}
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
    """How a mask of this name is said; anyhow, if nothing is documented of it."""
    return DOCUMENTED.get(name, SAYINGS)


def with_masks(subject: Subject, module: Any) -> Subject:
    """The subject with how masks are said to it, each by itself; as it is if it takes none."""
    if subject.speech.layout in ("ld", *PACKED) or subject.facts.lengths in ((1,), (4,)):
        return subject
    if flag := _makes_causal(subject, module):
        return replace(subject, speech=replace(subject.speech, flag=flag, by_mask=True))
    if subject.speech.masked:  # one has to be given: it is found out how, and the others are left alone
        return _with(subject, _best(subject, module, _candidates(subject, module)))
    taken = [(name, meant) for wanted in ("padding", "mask") for name, meant in _named(subject, module) if meant == wanted]
    found = [saying for name, meant in taken if (saying := _of_name(subject, module, name, meant))]
    found.sort(key=lambda saying: RANKS.index(saying.effect))  # those that hide as they should come first
    return _with(subject, *found)


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
    if not facts.both:
        return [{}]
    return [{"beside": True}] if _documents_own(name) else [{}] if _documents_memory(name) else [{}, {"beside": True}]


def _documents_own(name: str) -> bool:
    """Whether a name says that a mask is of the tokens themselves, and not of a memory."""
    return bool(set(name.lower().split("_")) & OF_ITSELF)


def _documents_memory(name: str) -> bool:
    return bool(set(name.lower().split("_")) & OF_MEMORY) or _of_memory(name)


def _best(subject: Subject, module: Any, sayings: Iterable[Saying]) -> Saying | None:
    """The first form that hides as it should; else the one that does most of it, else one that does nothing. None if none is taken.

    A mask of padding that is taken is meant as one: where it hides no padding, no other form makes up for it.
    """
    partial: Saying | None = None  # right, but not where there are more sequences than tokens: an axis is cut to the length
    others: list[tuple[float, Saying]] = []
    for saying in sayings:
        effect, leaks = _effect(subject, module, saying, MEMORY if saying.cross else None)
        if effect == "right" and saying.shape in ROWED and (meant := _of_padding(saying.how, others)):
            return meant
        if effect == "right":
            optional = subject.facts.sees_itself and subject.facts.takes_memory and not saying.cross
            own = optional and _effect(subject, module, saying, MEMORY)[0] != "right"
            settled = replace(saying, own=own, whole=_says_all(subject, module, saying))
            if _takes_many(subject, module, saying):
                return settled
            partial = partial or settled
        elif effect in ("changes", "none"):
            others.append((leaks, replace(saying, effect=effect)))
    return partial or min(others, key=lambda each: (RANKS.index(each[1].effect), each[0]), default=(0.0, None))[1]


def _of_padding(how: str, others: list[tuple[float, Saying]]) -> Saying | None:
    """The form of padding that is taken and hides none, by a name that says that it is one; said as another form is that does what it says."""
    meant = [each for _, each in others if each.shape == "bs" and (each.parameter == "attention_mask" or "pad" in each.parameter)]
    return next((each for each in meant if each.how == how), None)


def _makes_causal(subject: Subject, module: Any) -> str:
    """The mask of which it does not matter what it holds: where there is one, the call is causal (Whisper's). Empty if there is none."""
    if subject.facts.causal or subject.facts.lengths or subject.speech.flag or not subject.facts.sees_itself:
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
    """(name, what it means) of the masks that it takes."""
    speech = subject.speech
    taken = [(name, role(name, FORWARD_ROLES)) for name in formal_of(module)]
    return [(name, meant) for name, meant in taken if meant in SHAPES and name not in speech.roles and name != speech.hinted] + [
        (name, meant) for name, meant in taken if meant in SHAPES and name == speech.hinted
    ]


def _candidates(subject: Subject, module: Any) -> Iterator[Saying]:
    for wanted in ("padding", "mask"):
        for name, meant in _named(subject, module):
            if meant == wanted and (not subject.facts.sees_itself or not _of_memory(name)):
                yield from _forms(subject, name, meant)


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
    """(right; changes: something, but not that; none: nothing; refused: it raises, or answers in another shape; the share of rows that leak)."""
    other = replace(subject, speech=replace(subject.speech, mask=saying))
    length = (subject.facts.lengths or (LENGTH,))[0]
    plain = replace(tokens_for(subject.speech, BATCH, length, memory if subject.facts.sees_itself else MEMORY, 5), by=saying)
    places = _hidden(subject, plain, saying)
    masked = with_hidden(plain, places)
    try:
        whole, out = answer(other, module, plain), answer(other, module, masked)
        moved = answer(other, module, changed(masked, places))
        seen = [answer(other, module, changed(masked, {b: (at,)})) for b, at in ((0, 0), (1, 0), (BATCH - 1, plain.hideable - 2))]
    except (Exception, SystemExit):
        return "refused", 1.0
    if out.shape != whole.shape or out.ndim != 3:
        return "refused", 1.0
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
    speech = replace(subject.speech, mask=saying, masked=True)
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


def changed(tokens: Tokens, places: dict[int, tuple[int, ...]]) -> Tokens:
    """Other numbers in these tokens: of the memory, or of the sequence itself where it is its own."""
    name = tokens.about
    other = getattr(tokens, name).copy()
    for batch, at in places.items():
        other[batch, list(at)] = 1.5 - 2 * other[batch, list(at)]
    return dataclasses.replace(tokens, **{name: other})
