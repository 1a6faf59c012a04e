"""The readings of a callable that are tried: in every layout of axes, with what must be given beside its operands, from the simplest on."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice, product
from typing import Any

from ..engine.core.contract import Formal
from ..engine.core.supports import PARAMETERS
from .axes import LAYOUTS, NATIVE, PACKED, Axes
from .fillers import NO_CAP, UNLIMITED, combinations, fillers, no_cap
from .given_weights import found as found_weights
from .given_weights import ways
from .question import (
    DIMS,
    HEADS,
    IDLE,
    INTO,
    KEY_HEADS,
    NEUTRAL,
    OPERANDS,
    ROOTS,
    TRAINING,
    WIDTHS,
    capped_by_default,
    causal_by_default,
    drops_by_default,
    meant,
    out_of_order,
    sizes_told,
    window_by_default,
)
from .speech import ADDED, FORMS, SAID, TEMPERED, Reading

OWN = {"heads": HEADS, "dim": DIMS, "width": WIDTHS, "into": INTO}  # what only the adapted callable knows → the parameters given it
FIRST_TOKENS = ("n_sink", "n_sinks", "num_sinks", "num_sink", "sink_size", "sink_tokens", "num_sink_tokens", "start_size")
UNKNOWN = 3  # required parameters of unknown meaning that are given something at most


def readings_of(formal: Formal, works: bool, layout: str | None) -> Iterator[Reading]:
    """Those that are tried, from the simplest on; ``layout``: of one alone, unless None."""
    positional = [p for p in formal.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    variadic = any(p.kind is p.VAR_POSITIONAL for p in formal.values())
    module = bool(positional) and positional[0].name in ("module", "self_attn")
    matrices, biases = found_weights([p.name for p in formal.values() if p.default is p.empty])
    layouts = {name: axes for name, axes in LAYOUTS.items() if layout in (None, name)}
    packed = {name: axes for name, axes in PACKED.items() if layout in (None, name)}
    few = layout is not None
    if matrices and (tokens := _tokens(formal, {*matrices, *biases})):  # what is named query_proj alone is what was projected
        yield from _projected(formal, tokens, matrices, biases, layout)
        return
    if named := out_of_order(formal):
        yield from _spelled(formal, set(named), Reading(operands=named), layouts, False, few)
    if len(positional) >= 3 or variadic:
        yield from _spelled(formal, {p.name for p in positional[: 3 + module]}, Reading(module=module), layouts, works, few)
    elif not positional:
        operands = tuple(next((p for p in formal if p in names), "") for names in OPERANDS)
        if all(operands):
            yield from _spelled(formal, set(operands), Reading(operands=operands), layouts, works, few)
    if positional and not works:
        yield from _spelled(formal, {positional[0].name}, Reading(), packed, works, few)
    if positional and positional[0].name in INTO:  # as in C: the answer comes first
        rest = [p.name for p in positional[1:] if p.default is p.empty]
        if len(rest) >= 3:
            yield from _spelled(formal, set(rest[:3]), Reading(operands=tuple(rest[:3])), layouts, False, few)
        yield from _spelled(formal, set(rest[:1]), Reading(operands=tuple(rest[:1])), packed if rest else {}, False, few)


def _tokens(formal: Formal, weights: set[str]) -> list[str]:
    """What must be given and is neither a weight nor anything else that is known: tokens, in one array, two or three; none if it is not that."""
    known_names = {*weights, *HEADS, *KEY_HEADS, *DIMS, *WIDTHS, *IDLE, *INTO}
    found = [p.name for p in formal.values() if p.default is p.empty and p.name not in known_names]
    found = [name for name in found if (meant(name) or name) not in PARAMETERS]
    return found if 1 <= len(found) <= 3 else []


def _projected(
    formal: Formal, tokens: list[str], matrices: Mapping[str, str], biases: Mapping[str, str], layout: str | None
) -> Iterator[Reading]:
    """Of what is given weights: square ones last; what computes a width of heads from that of the tokens is right with these alone."""
    named = [p.name for p in formal.values() if p.default is p.empty and p.name in HEADS]
    for square in (False, True):
        for way in ways(len(tokens), matrices, biases, square):
            wanted = ("bl(hd)", "l(hd)") if named or way.by_head else ("(bh)ld", "ld")
            layouts = {name: axes for name, axes in LAYOUTS.items() if axes.queries in wanted and layout in (None, name)}
            plain = Reading(operands=tuple(tokens), weights=way, square="all" if len(tokens) == 1 else "")
            yield from _spelled(formal, {*tokens, *matrices, *biases}, plain, layouts, False)


def _untold(axes: Axes, told: Mapping[str, str], heads: bool) -> int:
    """How many axes of a layout a callable is not told that is told its lengths: of sequences, and of heads."""
    sequences, of_heads = "b" not in axes.each, not {"k", "g"} <= set(axes.each) and "h" in axes.queries
    return (sequences and "b" not in told.values()) + (of_heads and not heads) if told else 0


def without_cap(formal: Formal) -> list[dict[str, Any]]:
    """What says that logits are not capped, to a callable that caps them where nothing is said; the last is to say nothing."""
    capped = [p.name for p in formal.values() if capped_by_default(p)]
    return [dict.fromkeys(capped, none) for none in (None, 0.0, NO_CAP) if capped] + [{}]


def first_tokens(formal: Formal) -> dict[str, Any]:
    """What says that no first tokens are seen beyond a window, to a callable that lets some be seen where nothing is said."""
    return {p.name: 0 for p in formal.values() if p.name in FIRST_TOKENS and type(p.default) is int and p.default >= 0}


def without_dropout(formal: Formal) -> list[dict[str, Any]]:
    """What says that no weight is dropped, to a callable that drops some where nothing is said; a flag is set only where that makes it right."""
    dropping = [p.name for p in formal.values() if drops_by_default(p)]
    flags = {name: not TRAINING[name] for name in dropping if name in TRAINING}
    probabilities = {name: 0.0 for name in dropping if name not in TRAINING}
    return [probabilities, probabilities | flags] if flags else [probabilities]


def _unlimited(formal: Formal) -> list[dict[str, Any]]:
    """What says that no key is too far away, to a callable that has a window where nothing is said; the last is to say nothing."""
    windows = [p.name for p in formal.values() if window_by_default(p)]
    return [dict.fromkeys(windows, UNLIMITED)] * bool(windows) + [{}]


def _spelled(
    formal: Formal, taken: set[str], plain: Reading, layouts: Mapping[str, Axes], works: bool, few: bool = False
) -> Iterator[Reading]:
    """In every layout, with what must be given beside the operands; ``few``: with the likeliest of that alone."""
    required = [
        p for p in formal.values() if p.name not in taken and p.default is p.empty and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    ]
    names = {p: p for p in ("is_causal", "scale") if p in formal}
    names |= {ours: p.name for p in required if (ours := meant(p.name)) in ("scale",)}
    told = sizes_told([p.name for p in required])
    unknown: list[inspect.Parameter] = []
    for none in (0.0, None):
        given: dict[str, Any] = {}
        own: dict[str, str] = {}
        neutral: dict[str, str] = {}
        for p in required:
            ours = meant(p.name) or p.name
            if ours in ("attn_mask", "is_causal"):
                given[p.name] = False if ours == "is_causal" else None
            elif ours == "dropout_p":
                given[p.name] = none
            elif p.name in ROOTS:
                pass
            elif p.name in IDLE or ours in IDLE:
                given[p.name] = False
            elif ours in NEUTRAL:
                neutral[ours] = p.name
            elif name := next((name for name, names in OWN.items() if p.name in names), ""):
                own[name] = p.name
            elif ours != "scale" and p.name not in told and p not in unknown:
                unknown.append(p)
        if len(unknown) > UNKNOWN or (few and not all(fillers(p)[0].sure for p in unknown)):
            return
        # what is causal by default is called without causality
        given |= {p.name: False for p in formal.values() if causal_by_default(p)}
        own.setdefault("heads", next((name for name in formal if name in HEADS and name not in taken), ""))
        scaled = any((meant(p.name) or p.name) == "scale" for p in required)
        rooted = next((name for name in formal if name in ROOTS), "")
        names |= neutral | ({"scale": rooted} if rooted else {})
        base = replace(plain, given=given, names=names, scaled=scaled or bool(rooted), tempered=TEMPERED[2] * bool(rooted))
        base = replace(base, neutral=neutral, told=told)
        base = replace(base, heads=own["heads"], dim=own.get("dim", ""), width=own.get("width", ""), into=own.get("into", ""))
        ordered = sorted(layouts.items(), key=lambda item: _untold(item[1], told, bool(own["heads"])))
        sunk = replace(
            base, neutral={**neutral, "sinks": "S"}, names={**names, "sinks": "S"}, told={n: t for n, t in told.items() if n != "S"}
        )
        bases = [base, sunk] if "S" in told else [base]  # the number of keys, or the logits of sinks
        for base, filled, (layout, axes) in product(bases, islice(combinations(unknown), 1 if few else None), ordered):
            for answer in axes.answers:
                for unlimited, uncapped, dropless in product(_unlimited(formal), without_cap(formal), without_dropout(formal)):
                    known_values = {**given, **unlimited, **uncapped, **dropless, **first_tokens(formal)}
                    none_at_all = {name: no_cap() for name, value in known_values.items() if value is NO_CAP}
                    left = {name: value for name, value in known_values.items() if name not in none_at_all}
                    yield replace(base, given=left, filled={**filled, **none_at_all}, layout=layout, answer=answer)
                if works:
                    return
        for theirs in [name for name, value in given.items() if (meant(name) or name) == "attn_mask" and value is None]:
            rest = {name: value for name, value in given.items() if name != theirs}
            usual = {name: axes for name, axes in layouts.items() if name in NATIVE}  # all forms of masks in these, and then the rest
            others = {name: axes for name, axes in layouts.items() if name not in NATIVE}
            for some, form, (kind, how) in product((usual, others), FORMS, ((ADDED, ADDED), ("bool", SAID[0]), ("bool", SAID[1]))):
                if (form == "bs" and kind == ADDED) or (few and form != "as it is"):
                    continue
                masked = replace(base, given=rest, masked=True, said={kind: (theirs, how)}, form=form)
                for filled, (layout, axes) in product(islice(combinations(unknown), 1), some.items()):
                    for answer in axes.answers:
                        yield replace(masked, filled=filled, layout=layout, answer=answer)
        if none not in given.values():
            return
