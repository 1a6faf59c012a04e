"""How a mask is given to a module: its shape, its type, and what it means, found by what it does.

A form is right if what is hidden moves no other row, and what is seen still does. Where none does that, the first that is taken
is kept: then the properties of masks say what is wrong with it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np

from ..engine.core.target import first_line
from .facts import MEMORY, NEGLIGIBLE, with_hidden
from .names import FORWARD_ROLES, role
from .readings import formal_of
from .speech import SAYINGS, Saying, Tokens, under
from .subject import Subject, answer, tokens_for

BATCH, LENGTH = 3, 6
HIDDEN = {0: (1, 3), 1: (2,)}  # not the first token, which a causal row needs; the third sequence is whole
SHAPES = {
    "padding": ("bs", "b11s", "b1ls", "bls"),
    "mask": ("b1ls", "b11s", "bs", "bls", "bhls", "ls", "lengths"),
}
ROWED = ("b1ls", "bls", "bhls", "ls", "lsb")  # those that can say of each row which tokens it sees
LENGTH_FIRST = ("sb", "lsb")  # of a module whose tokens are (length, batch, features)
# What a name is documented to mean.
DOCUMENTED = {
    "key_padding_mask": ("True = hidden", "added"),
    "src_key_padding_mask": ("True = hidden", "added"),
    "memory_key_padding_mask": ("True = hidden", "added"),
    # of models; inside them it is inverted for some layers (transformers' MptAttention), which is told
    "attention_mask": ("True = seen", "1 = seen", "1.0 = seen", "added", "True = hidden", "1 = hidden"),
}


def documented(name: str) -> tuple[str, ...]:
    """How a mask of this name is said; anyhow, if nothing is documented of it."""
    return DOCUMENTED.get(name, SAYINGS)


def with_mask(subject: Subject, module: Any) -> Subject:
    """The subject with how a mask is said to it; as it is if it takes none."""
    if subject.speech.layout == "ld" or subject.facts.lengths in ((1,), (4,)):
        return subject
    if flag := _makes_causal(subject, module):
        return replace(subject, speech=replace(subject.speech, flag=flag, by_mask=True))
    first: Saying | None = None
    changing: Saying | None = None
    partial: Saying | None = None  # right, but not where there are more sequences than tokens: an axis is cut to the length
    for saying in _candidates(subject, module):
        effect = _effect(subject, module, saying)
        if effect == "right":
            own = subject.facts.sees_itself and subject.facts.takes_memory and _effect(subject, module, saying, MEMORY) != "right"
            settled = replace(saying, own=own, whole=_says_all(subject, module, saying))
            if _takes_many(subject, module, saying):
                return replace(subject, speech=replace(subject.speech, mask=settled))
            partial = partial or settled
        if effect == "changes":
            changing = changing or saying
        elif effect == "none":
            first = first or saying
    best = partial or changing or first
    return replace(subject, speech=replace(subject.speech, mask=best)) if best else subject


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
        size = NEGLIGIBLE * np.abs(plain).max()
        last = np.abs(causal[:, 2] - prefix[:, 2]).max() <= size  # row 2 sees the first three tokens, and these alone
        if last and all(np.array_equal(causal, other) for other in others) and np.abs(causal - plain).max() > size:
            return name
    return ""


def _candidates(subject: Subject, module: Any) -> Iterator[Saying]:
    taken = {name: role(name, FORWARD_ROLES) for name in formal_of(module)}
    for wanted in ("padding", "mask"):
        for name, meant in taken.items():
            if meant != wanted or name in subject.speech.roles:
                continue
            if not subject.facts.sees_itself or not _of_memory(name):
                for shape in (*SHAPES[wanted], *LENGTH_FIRST * (subject.speech.layout == "lbd")):
                    for how in documented(name) if shape != "lengths" else ("",):
                        yield Saying(name, shape, how)


def _of_memory(name: str) -> bool:
    return any(word in name for word in ("memory", "context", "encoder", "kv_"))


def _hidden(subject: Subject, tokens: Tokens, saying: Saying) -> dict[int, tuple[int, ...]]:
    if saying.shape == "lengths":
        return {0: (tokens.keys - 2, tokens.keys - 1), 1: (tokens.keys - 1,)}
    return dict.fromkeys(range(BATCH), (1, 3)) if saying.shape == "ls" else HIDDEN


def _effect(subject: Subject, module: Any, saying: Saying, memory: int | None = None) -> str:
    """right; changes: something, but not that; none: nothing; refused: it raises, or answers in another shape."""
    other = replace(subject, speech=replace(subject.speech, mask=saying))
    length = (subject.facts.lengths or (LENGTH,))[0]
    plain = tokens_for(subject.speech, BATCH, length, memory if subject.facts.sees_itself else MEMORY, 5)
    places = _hidden(subject, plain, saying)
    masked = with_hidden(plain, places)
    try:
        whole, out = answer(other, module, plain), answer(other, module, masked)
        moved = answer(other, module, changed(masked, places))
        seen = [answer(other, module, changed(masked, {b: (at,)})) for b, at in ((0, 0), (1, 0), (BATCH - 1, plain.keys - 2))]
    except (Exception, SystemExit):
        return "refused"
    if out.shape != whole.shape:
        return "refused"
    own = np.zeros(out.shape[:2], dtype=bool)  # rows of tokens that were themselves changed
    if plain.memory is None and not subject.speech.pooled:
        for batch, at in places.items():
            own[batch, list(at)] = True
    rows = ~own
    size = np.abs(whole).max()
    with np.errstate(invalid="ignore"):
        leaks = not (np.abs(moved - out)[rows] <= NEGLIGIBLE * size).all()
        sees = subject.speech.pooled or all((np.abs(each - out).max(2) > NEGLIGIBLE * size).sum() > (plain.memory is None) for each in seen)
        same = bool((np.abs(out - whole) <= NEGLIGIBLE * size).all())
    if not leaks and sees and not same:
        return "right"
    return "none" if same else "changes"


def taken_apart(subject: Subject, module: Any) -> Subject:
    """With what it raises where it is told to be causal and given a mask, as PyTorch's own function does."""
    if not (subject.speech.mask and subject.speech.flag) or subject.speech.by_mask:
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
    if not subject.facts.causal or saying.shape not in ROWED or not subject.facts.sees_itself:
        return False
    speech = replace(subject.speech, mask=saying, masked=True)
    plain = tokens_for(speech, BATCH, (subject.facts.lengths or (LENGTH,))[0], None, 5)
    moved = changed(plain, dict.fromkeys(range(BATCH), (plain.keys - 1,)))
    first, again = (answer(subject, module, tokens, speech)[:, 0] for tokens in (plain, moved))
    return not np.array_equal(first, again)


def _takes_many(subject: Subject, module: Any, saying: Saying) -> bool:
    """Whether a mask in this form is taken with more sequences than tokens."""
    length = (subject.facts.lengths or (3,))[0]
    plain = tokens_for(subject.speech, length + 4, length, None if subject.facts.sees_itself else MEMORY, 5)
    try:
        answer(replace(subject, speech=replace(subject.speech, mask=saying)), module, with_hidden(plain, {0: (1,)}))
    except (Exception, SystemExit):
        return False
    return True


def changed(tokens: Tokens, places: dict[int, tuple[int, ...]]) -> Tokens:
    """Other numbers in these tokens: of the memory, or of the sequence itself where it is its own."""
    name = "x" if tokens.memory is None else "memory"
    other = getattr(tokens, name).copy()
    for batch, at in places.items():
        other[batch, list(at)] = 1.5 - 2 * other[batch, list(at)]
    return dataclasses.replace(tokens, **{name: other})
