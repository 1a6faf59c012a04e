"""What documentation says of a mask and of a causal corner, in the few ways in which people write it; nothing where it can be read in two."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from ..contained.documentation import documentation
from ..contained.stub import Stub

SEEN, HIDDEN = "seen", "hidden"
TRUE = r"(?:true|non-?zero|ones?|1(?:\.0)?s?)"
FALSE = r"(?:false|zeros?|0(?:\.0)?s?)"
HIDES = (
    r"hid(?:den|es?)|masked|mask(?:s|ed)? (?:it |them )?out|ignor\w+|pad(?:ded|ding)?s?|<pad>|block(?:ed|s)|forbid\w*|disallow\w*|exclude\w*"
    r"|drop(?:ped)?|invisible|removed?|prevent\w*"
)
SHOWS = (
    r"keeps?|kept|stays?|visible|attend(?:s|ed)?(?: to)?|seen?|sees|allow(?:s|ed)?|valid|real|look(?:s|ed)?|participates?|takes? part|include\w*|"
    r"present|unmasked|used"
)
NOT = r"(?:not|no|never|n't|non|without|cannot|isn't|aren't|don't|doesn't|must not|may not)[\s-]+(?:\w+\s+){0,3}$"
OF_THE_MASK = r"(?:==|mask\w* is)\s*$"  # before the value: what is said before it is said of it, too
ENDS = re.compile(r"[;,()\n]|\.(?!\d)|\s(?:and|while|whereas|but|or)\s|\s/\s")
# A sentence with one of these words may be about what is not so.
OTHERWISE = re.compile(
    r"\b(?:unlike|contrary|opposite|rather than|instead of|contrast|opposed|other than|inverse|inverted|not the)\b", re.IGNORECASE
)
SENTENCES = re.compile(r"\.(?!\d)|;|\n\s*\n")
ENTRY = re.compile(r"^[ \t`*-]*(?::?param[ \t]+)?`*(\w+)`*[ \t]*(?=[(:])", re.MULTILINE)  # of a parameter, in the usual styles
NOT_USED = re.compile(
    r"\b(?:not|never)\s+(?:\w+ly\s+)?(?:used|supported|implemented)\b|\bunused\b|\bhas\s+no\s+effect\b|\bonly\s+for\s+(?:\w+\s+){0,3}compatib",
    re.IGNORECASE,
)
ADDED = re.compile(r"\b(?:additive|added to|adds? to|is added)\b", re.IGNORECASE)
OF_TRUTH = re.compile(rf"\bbool|(?<![\w.-])(?:{TRUE}|{FALSE})(?![\w.-])", re.IGNORECASE)
CAUSAL = re.compile(r"^\W*causal\b|(?<![\w-])causal (?:[\w-]+ ){0,3}(?:self-)?(?:attention|sdpa)\b|[,;] causal\W*(?:[,;]|$)", re.IGNORECASE)
WHETHER = re.compile(r"\b(?:if|when|where|whether|or|either|both|optional(?:ly)?)\b", re.IGNORECASE)
CHOICE = re.compile(
    r"\b(?:if|when|where|whether|optional(?:ly)?|or|either|both|bidirectional|mask|flag|without)\b(?! \(?(?:key|cache))",
    re.IGNORECASE,
)
OPEN = re.compile(r"\b(?:bi-?directional|non-?causal|not causal)\b", re.IGNORECASE)
ONE_MORE = re.compile(
    r"\b(?:soft_?max[\s_-]?(?:1|one|plus[\s_-]?one)|quiet[\s_-]?(?:softmax|attention))\b|\bone (?:is )?added to the denominator\b",
    re.IGNORECASE,
)  # exp(x_i) / (1 + Σ exp(x_j)), as its authors call it
SHIFTED = re.compile(
    r"\b(?:time|token)s?[\s_-]?shift\w*|\btime[\s_-]?mix\w*|\bshift(?:s|ed|ing)?[\s_-]tokens?\b|\btokens? (?:are|is) shifted\b",
    re.IGNORECASE,
)
NARROW = re.compile(
    r"\b(?:comput|calculat|cast|round|convert|stor|done|run|runs|evaluat)\w*\b[^.;\n]{0,60}?\b(?:in|to|as|into)\s+"
    r"(?:(?:bfloat16|bf16|float16|fp16|(?:half|low|lower)[\s-]precision)\b|half\s*(?:[,)]|$))",
    re.IGNORECASE | re.MULTILINE,
)
WIDER = re.compile(r"float32|fp32|full precision|upcast|\bback (?:in)?to\b", re.IGNORECASE)  # what is then cast to float16 is wider before
BATCH, TOKENS = "batch", "tokens"
OF_BATCH, OF_TOKENS = r"(?:batch(?:[_ ]size)?|bsz|bs|b|n)", r"(?:tokens?|seq(?:uence)?(?:[_ ]len(?:gth)?)?|seqlen|length|len|time|t|l)"
FIRST_AXES = {
    BATCH: rf"[(\[]\s*{OF_BATCH}\s*[,x×]\s*{OF_TOKENS}\s*[,x×]",
    TOKENS: rf"[(\[]\s*{OF_TOKENS}\s*[,x×]\s*{OF_BATCH}\s*[,x×]",
}
BOTTOM, TOP = "bottom-right", "top-left"
CORNERS = {
    BOTTOM: r"(?:bottom|lower)[\s-]right|quer(?:y|ies)\s+(?:tokens\s+)?(?:are|is)\s+(?:taken to be |assumed to be )?the\s+\W?last\b"
    r"|last\s+quer(?:y|ies)\s+(?:\w+\s+){0,4}last\s+key|align\w*\s+(?:to|with|at)\s+the\s+end\b",
    TOP: r"(?:top|upper)[\s-]left",
}


def text_of(thing: Any) -> str:
    """What is written about a callable, wherever it is."""
    return thing.words if isinstance(thing, Stub) else documentation(thing)


def polarity(text: str, name: str, names: Sequence[str]) -> str:
    """What True or 1 says in the mask of a name: SEEN or HIDDEN; empty where nothing says it, or it is said in two ways.

    ``names``: of all masks of the callable; where there are several, only what stands behind the name itself is read.
    """
    for part in (_of(text, name, names), text if len(names) == 1 else ""):
        said = {one for clause in ENDS.split(_plain(part)) if (one := _of_clause(clause))}
        if said:
            return said.pop() if len(said) == 1 else ""
    return ""


def added(text: str, name: str, names: Sequence[str]) -> bool:
    """Whether it is said of the mask of a name that it is added, and nothing of truth; ``names``: as of ``polarity``."""
    for part in (_of(text, name, names), text if len(names) == 1 else ""):
        said = ADDED.search(plain := _plain(part))
        if said or OF_TRUTH.search(plain):
            return bool(said) and not OF_TRUTH.search(plain) and not re.search(NOT, plain[: said.start()].lower())  # type: ignore[union-attr]
    return False


def unused(text: str) -> frozenset[str]:
    """The parameters of which it is documented that nothing is done with them."""
    entries = list(ENTRY.finditer(text))
    ends = [*(entry.start() for entry in entries), len(text)][1:]
    return frozenset(entry[1] for entry, end in zip(entries, ends, strict=bool(entries)) if NOT_USED.search(text[entry.end() : end]))


def causal(text: str) -> bool:
    """Whether the first sentence says of the whole that it is causal, not of a mask, a flag or a choice."""
    first = re.split(r"\.\s+(?=[A-Z])|\.$|\n\s*\n", text.strip(), maxsplit=1)[0]
    found = CAUSAL.search(first)
    return found is not None and not CHOICE.search(first) and not re.search(NOT, first[: found.start()].lower())


def open_to_all(text: str) -> bool:
    """Whether it says that tokens see later ones, too, and not that this is a choice."""
    return bool(_said(text, OPEN, CAUSAL, WHETHER))


def one_more(text: str) -> str:
    """The words by which it says that one is added to the denominator of its softmax; empty where nothing does."""
    return _said(_plain(text), ONE_MORE)


def shifted(text: str) -> str:
    """The words by which it says that features of a token come from the one before (token shift, as in RWKV); empty where nothing does."""
    return _said(_plain(text), SHIFTED)


def narrow(text: str) -> bool:
    """Whether it says that something is computed in half precision, whatever it is given, and not that this is a choice."""
    return bool(_said(_plain(text.replace("torch.", "")), NARROW, WHETHER, WIDER))


def first_axis(text: str) -> str:
    """Of tokens: BATCH or TOKENS, which of the two comes first in all shapes that are documented; empty where none is, or both are."""
    said = {name for name, words in FIRST_AXES.items() if re.search(words, text, re.IGNORECASE)}
    return said.pop() if len(said) == 1 else ""


def corner(text: str) -> str:
    """The causal corner that is documented; empty where none is, or both."""
    said = [name for name, words in CORNERS.items() if re.search(words, _plain(text), re.IGNORECASE)]
    return said[0] if len(said) == 1 else ""


def _said(text: str, words: re.Pattern[str], *unless: re.Pattern[str]) -> str:
    """What is found in a sentence that does not deny it, and has none of the other words in it; empty where nothing is."""
    for sentence in SENTENCES.split(text):
        found = words.search(sentence)
        if found and not (re.search(NOT, sentence[: found.start()].lower()) or any(other.search(sentence) for other in unless)):
            return found[0]
    return ""


def _plain(text: str) -> str:
    """Without the sentences that may be about what is not so."""
    return "\n\n".join(sentence for sentence in SENTENCES.split(text) if not OTHERWISE.search(sentence))


def _of(text: str, name: str, names: Sequence[str]) -> str:
    """The lines from the name on, up to another name, each at the beginning of a line."""
    begins = re.compile(
        rf"^[ \t`*:-]*(?:param[ \t]+)?`*({'|'.join(map(re.escape, sorted(names, key=len, reverse=True)))})\b[`*]*", re.MULTILINE
    )
    places = [(found[1], found.end()) for found in begins.finditer(text)]
    ends = [*(at for _, at in places), len(text)][1:]
    parts = [text[at:end] for (said, at), end in zip(places, ends, strict=bool(places)) if said == name]
    return "\n".join(parts)


def _of_clause(clause: str) -> str:
    """What one clause says of True, if it speaks of one value, and of one thing."""
    lower = clause.lower()
    true, false = (re.search(rf"(?<![\w.-]){value}(?![\w.-])", lower) for value in (TRUE, FALSE))
    if bool(true) == bool(false):
        return ""
    value = true or false
    assert value is not None
    begins = 0 if re.search(OF_THE_MASK, lower[: value.start()]) else value.end()  # "are 0" is about what comes before it
    said = set()
    for meant, words in ((HIDDEN, HIDES), (SEEN, SHOWS)):
        for found in re.finditer(rf"(?<!\w)(?:{words})(?!\w)", lower):
            if found.start() < begins:
                continue
            turned = bool(re.search(NOT, lower[: found.start()]))
            said.add((meant == HIDDEN) != turned)
    if len(said) != 1:
        return ""
    hides = said.pop()
    return HIDDEN if hides == bool(true) else SEEN
