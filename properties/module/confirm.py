"""Which composition of its projections answers as a module does: found by trying, claimed only if no other one does, too.

A structure is claimed only if the attention that is composed of these parameters, by one assignment of heads, groups, order, norms,
positions and scale, answers as the module does, within what rounding explains, on several calls, one of them long, and by no other
assignment. What is tried is pruned in two steps. A token that sees itself alone gets its own value, whatever logits are: that decides
projections of values and output, norms before and after, the residual, the groups. Queries and keys come after that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from ..engine.cases.coordinates import Array
from . import bound
from .candidates import candidates, named_heads
from .composition import MISTAKES, RIGHT, TABLE_RESHAPED, Call, Steps, attended, compose, looked
from .conventions import judged
from .facts import CALM, biases_of_positions, influences
from .ingredients import Ingredients, additions, constants, ingredients, mixers, rotations, tables_of
from .latent import latents
from .names import FORWARD_ROLES, role
from .readings import formal_of
from .reduction import EXCHANGED, RESHAPED, reductions
from .speech import ADDED, IMAGES, PACKED, Tokens, added, under
from .structure import USUAL, Norm, Rotation, Structure
from .subject import Subject, answer, tokens_for

CASES = ((1, 5), (2, 7), (3, 65))  # seed, tokens, at most as many as are taken: a window shows where there are many
MEMORY = 6
MOST = 12_000  # compositions that are tried: some seconds
LIKELY = 6
FEWEST = 5  # tokens of which there must be as many
# What no attention does on purpose, but who says so by one of these words in the name of a class, or by such a flag: slots compete for
# keys (Locatello et al. 2020); Informer mixes heads; Reformer's queries are its keys. The weights that would be right are there, and unused.
OVER_HEADS = "a softmax over heads"
NEVER_MEANT = {
    "heads split by a reshape, without a transpose": {"mix=True"},
    "heads merged by a reshape, without a transpose": {"mix=True"},
    "a softmax over queries": {"slot", "inverted", "compet"},
    OVER_HEADS: {"talking"},
    "a softmax over sequences": set(),
    "the transposed weights on values": set(),
    "keys projected as queries": {"share", "tie", "symmetric", "lsh", "reformer"},
    "values projected as keys": {"share", "tie"},
}
OF_PLACES = {"positions added to queries alone": set[str](), "positions added to keys alone": set[str]()}  # the same, where some are given
OF_IMAGES = {EXCHANGED: set[str](), RESHAPED: set[str]()}  # the same, of tokens that a convolution makes fewer
OF_TABLES = {TABLE_RESHAPED: set[str]()}  # the same, of biases that are looked up
LAYOUTS = ("bld", "lbd", *PACKED, *IMAGES)


@dataclass(frozen=True, eq=False)
class Observed:
    """What a module answered to a call."""

    module: Any
    call: Call
    exact: Array
    allowed: Array

    def agrees(self, out: Array) -> bool:
        """Whether a composition answers so."""
        return out.shape == self.exact.shape and bool((np.abs(out - self.exact) <= 2 * self.allowed).all())

    def off(self, out: Array) -> float:
        """By how much it does not, relative to the size of the answer."""
        return float(np.abs(out - self.exact).max() / np.abs(self.exact).max()) if out.shape == self.exact.shape else np.inf


@dataclass(frozen=True, eq=False)
class Recognised:
    """What was found: a structure, or what is nearest."""

    structure: Structure | None = None
    likely: tuple[Structure, ...] = ()  # what names allow
    words: str = ""  # where no structure is confirmed


def recognised(subject: Subject) -> Recognised:
    """The structure that answers as the module does, and alone; what is likely where there is none.

    Biases of distances are learned in many ways. Where nothing agrees it is tried without them: with their parameters at 0.
    """
    lengths = subject.facts.lengths
    pooled = subject.speech.pooled and not (subject.facts.asking or (subject.speech.pooled == 1 and subject.facts.first))
    if subject.speech.layout not in LAYOUTS or pooled or (lengths and lengths[0] < FEWEST):
        return Recognised()
    found = _recognised(subject)
    if found.structure or not (silent := biases_of_positions(subject, subject.module("float64", "cpu", 1))):
        return found
    quiet = _recognised(replace(subject, silent=silent)).structure
    return Recognised(quiet.but(silent=silent)) if quiet else found


def with_places(subject: Subject) -> Subject:
    """The subject with how it is called, and what it is then, where positions are given that may be left out, as in DETR (Carion et al. 2020).

    It stays as it is where nothing is confirmed with them.
    """
    formal = formal_of(subject.module("float64", "cpu", 1))
    roles = {name: role(name, FORWARD_ROLES) for name, p in formal.items() if p.default is None and name not in subject.speech.roles}
    roles = {name: ADDED[0] if meant == "angles" else meant for name, meant in roles.items() if meant in (*ADDED, "angles")}
    if not subject.structure or not roles:
        return subject
    if subject.speech.name("memory") and len(roles) == 2 and len(set(roles.values())) == 1:  # of queries, and of what they see
        roles = {name: ADDED[0] if any(word in name for word in ("query", "queries", "tgt")) else ADDED[1] for name in roles}
    speech = replace(subject.speech, roles={**subject.speech.roles, **roles})
    other = replace(subject, speech=speech, silent=subject.structure.silent)
    found = _recognised(other).structure or _added_to_all(other)
    return replace(subject, placed=speech, structure_placed=found) if found else subject


def _added_to_all(subject: Subject) -> Structure | None:
    """The same where positions are added to what values are made of, too."""
    try:
        search = Search(subject)
    except (Exception, SystemExit):
        return None
    search.arranged = [s.but(added="qkv") for s in search.arranged]
    agreeing = {s.meaning(subject.speech.width): s for s in search.found(right=True)} if search.arranged else {}
    return next(iter(agreeing.values())) if len(agreeing) == 1 else None


def _recognised(subject: Subject) -> Recognised:
    """Of the subject as it is."""
    try:
        search = Search(subject)
    except (Exception, SystemExit):
        return Recognised()
    if not search.arranged:
        return Recognised()
    width = subject.speech.width
    agreeing = {s.meaning(width): s for s in reversed(search.found(right=True) or search.found(right=False))}
    if len(agreeing) == 1:
        (found,) = agreeing.values()
        found = found.but(alone=search.other_with_memory(found), still=search.still_with_memory(found))
        return Recognised(judged(found, subject, search.calls[0].module))
    if not agreeing and (wrong := _with_a_mistake(search)):
        return Recognised(wrong)
    return Recognised(None, search.likely or tuple(search.arranged[:LIKELY]), search.words(len(agreeing)))


def _with_a_mistake(search: Search) -> Structure | None:
    """The one structure that answers as the module does with one of the mistakes that are never meant; None if there is none, or several."""
    module = search.calls[0].module
    found: list[tuple[str, Structure]] = []
    names = {type(part).__name__.lower() for part in module.modules()}
    names |= {f"{name}=True" for name, value in vars(module).items() if value is True}
    places = OF_PLACES if search.subject.speech.adds else {}
    tables = OF_TABLES if tables_of(module, search.subject.framework) else {}
    for words, meant in ((OF_IMAGES if search.arranged[0].reduction else {}) | places | tables | NEVER_MEANT).items():
        named = any(word in name for word in meant for name in names)
        if named and words != OVER_HEADS:
            continue
        if found and words not in OF_IMAGES:
            break
        search.steps, search.tried = MISTAKES[words], 0
        agreeing = {s.meaning(search.subject.speech.width): s for s in reversed(search.found(right=True))}.values()
        found += [(words, s) for s in agreeing if s.mixing or not named]  # where matrices mix heads, no softmax does (Shazeer et al. 2020)
    if len(found) != 1:
        return None
    ((words, s),) = found
    s = judged(s, search.subject, module)
    return s.but(mistakes=(f"it answers as with {words}", *s.mistakes), mended=s.mended or s)


@dataclass(eq=False)
class Search:
    """The compositions of one module, tried one after another."""

    subject: Subject
    arranged: list[Structure] = field(default_factory=list)  # the assignments of projections that names and shapes allow
    likely: tuple[Structure, ...] = ()  # of the usual scale, and of as many heads as attributes say: the first ones
    nearest: Structure | None = None  # of these
    off: float = np.inf
    tried: int = 0
    steps: Steps = RIGHT

    def __post_init__(self) -> None:
        subject, speech = self.subject, self.subject.speech
        module = subject.module("float64", "cpu", 1)
        self.arranged = list(candidates(module, speech.width, speech.heads)) or list(latents(module, speech.heads))
        if not self.arranged:
            return
        fewer = list(reductions(module, speech, (subject.facts.lengths or (0,))[0]))
        self.arranged = [s.but(reduction=one) for one in fewer for s in self.arranged] if fewer else self.arranged
        pattern = self._pattern()
        self.arranged = [s.but(pattern=pattern) for s in self.arranged] if pattern is not None else self.arranged
        fixed = subject.facts.lengths
        self.calls = [self._observed(seed, fixed[0] if fixed else min(length, subject.facts.longest)) for seed, length in CASES]
        self.alone = self._observed(4, 1) if subject.facts.shortest == 1 and not fixed else None
        some = fixed[0] if fixed else min(8, subject.facts.longest)
        with under(module, subject.framework, "watched") as computed:
            answer(subject, module, tokens_for(speech, 2, some, self._keys(7)))
        self.have = ingredients(
            subject, module, list(computed), frozenset((*self.arranged[0].names, *subject.silent, subject.facts.asking))
        )
        self.positions, self.heads = bool(subject.facts.positions), named_heads(module)

    def other_with_memory(self, s: Structure) -> bool:
        """Whether a call with a memory is none of this composition: where there are other matrices for it, or tokens see each other, too."""
        subject = self.subject
        if not (subject.facts.sees_itself and subject.facts.takes_memory):
            return False
        module = subject.module("float64", "cpu", 1)
        left = [name for name, x in module.named_parameters() if name not in s.names and len(x.shape) > 1]
        joined = subject.facts.both or subject.facts.joined
        return (bool(left) or joined) and not self._agrees(s, self._observed(5, 4, MEMORY))

    def still_with_memory(self, s: Structure) -> bool:
        """Whether queries and keys of a memory are not turned though those of tokens are, as in speech recognition (Moonshine)."""
        facts = self.subject.facts
        if not (s.rotation and facts.sees_itself and facts.takes_memory):
            return False
        seen = self._observed(5, 4, MEMORY)
        return not self._agrees(s, seen) and self._agrees(s.but(still=True), seen)

    def _keys(self, count: int) -> int | None:
        return None if self.subject.facts.sees_itself else count

    def _observed(self, seed: int, length: int, memory: int | None = None) -> Observed:
        subject = self.subject
        made = partial(subject.module, "float64", "cpu", seed)
        module = made()
        tokens = tokens_for(subject.speech, 2, length, memory or self._keys(1 if length == 1 else MEMORY), seed)
        exact, allowed = bound.spread(subject, module, subject.speech, tokens, "float64", "cpu", seed, anew=made)
        if subject.facts.keeps:  # others were called: it is to have the tables of this call
            answer(subject, module, tokens)
        return Observed(module, called(subject, module, tokens), exact, allowed)

    def _pattern(self) -> Array | None:
        """Which tokens are seen, where some never see each other."""
        if not self.subject.facts.local:
            return None
        calm = self.subject.module("float64", "cpu", 1, gain=CALM)
        return np.asarray(influences(self.subject, calm, self.subject.facts.longest) > 0)

    # ------------------------------------------------------------ step by step

    def found(self, right: bool) -> list[Structure]:
        """The compositions that agree with all calls: of right steps, or those with a mistake in positions."""
        agreeing: list[Structure] = []
        for framed in self.framed():
            if right or framed.heads in self.heads or not self.heads:
                agreeing += [s for s in self.meeting(framed, right) if all(self._agrees(s, seen) for seen in self.calls[1:])]
        return agreeing

    def framed(self) -> Iterator[Structure]:
        """Assignments with norms before and after, and a residual, that agree where a token sees itself alone, and weighs itself as 1."""
        sinks = self.have.one_more or any("sink" in name for name in self.have.left)
        for s in self.arranged:
            for norms, residual in product(self._frames(s), (False, True)):
                framed = s.but(norms=norms, residual=residual)
                if self.alone is None or sinks or mixers(self.have, s.heads) or self._agrees(framed, self.alone):
                    yield framed

    def _frames(self, s: Structure) -> Iterator[dict[str, Norm]]:
        """Norms of the input, of the memory, of the output: of as many features as these have; none twice but that of tokens."""
        itself, held = self.calls[0].call.itself, self.have.held
        width, other, outs = self.calls[0].call.x.shape[2], self.calls[0].call.memory.shape[2], self.calls[0].exact.shape[2]
        x, memory, out = ([None, *_of_size(self.have, held, (n,))] for n in (width, other, outs))
        out += [gain for gain in self.have.gains if held[gain.weight].size == outs]
        more: dict[str, list[Norm | None]] = {"fewer": x} if s.reduction else {}
        if s.latent:
            ranks = {"latent": s.latent.up.get(held)[0].shape[1], "latent q": s.places["q"].get(held)[0].shape[1]}
            more = {part: [None, *_of_size(self.have, held, (n,))] for part, n in ranks.items() if part == "latent" or s.latent.down_q}
        for first, second, last, *others in product(x, [None] if itself else memory, out, *more.values()):
            if last is not None and last.name in {norm.name for norm in (first, second, *others) if norm}:
                continue
            chosen = {"x": first, "memory": second, **dict(zip(more, others, strict=True)), "out": last}
            yield {part: norm for part, norm in chosen.items() if norm}

    def meeting(self, framed: Structure, right: bool) -> Iterator[Structure]:
        """With norms and turns of queries and keys, and a scale, that agree with the first call."""
        seen = self.calls[0]
        d = len(framed.places["q"].rows) // framed.heads
        scales = self.have.scales(d, framed.heads, seen.call.x.shape[2])
        if framed.latent:
            scales += [repr(n**-0.5) for n in (framed.latent.alone, framed.latent.shared) if n]
        caps = self.have.caps
        logits = list(additions(self.have, framed.heads, self.positions, right))
        for norms, rotation in product(self._inner(framed, d), self._turns(framed.latent.shared if framed.latent else d, right)):
            if self.tried > MOST:
                return
            turned = framed.but(norms={**framed.norms, **norms}, rotation=rotation)
            try:
                with np.errstate(all="ignore"):
                    parts = looked(turned, seen.call, self.steps)
            except (ValueError, IndexError, KeyError):
                continue
            for scale, cap, (learned, slopes, table, mixing, sinks) in product(scales, (0.0, *caps, *(-cap for cap in caps)), logits):
                if (rotation and slopes) or not (right or rotation or slopes):
                    continue
                s = turned.but(scale=scale, cap=cap, learned=learned, slopes=slopes, table=table, mixing=mixing, sinks=sinks)
                if self._near(s, attended_quietly(s, seen.call, parts, self.steps), seen):
                    yield s

    def _agrees(self, s: Structure, seen: Observed) -> bool:
        try:
            with np.errstate(all="ignore"):
                return seen.agrees(compose(s, seen.call, self.steps))
        except (ValueError, IndexError, KeyError):
            return False

    def _near(self, s: Structure, out: Array | None, seen: Observed) -> bool:
        """Whether it agrees; the nearest one is kept."""
        self.tried += 1
        if out is None:
            return False
        if s.scale == USUAL and self.steps is RIGHT and not (self.heads and s.heads not in self.heads):
            self.likely = (*self.likely, s)[:LIKELY]
            if (off := seen.off(out)) < self.off:
                self.nearest, self.off = s, off
        return seen.agrees(out)

    def _inner(self, s: Structure, d: int) -> Iterator[dict[str, Norm]]:
        """Norms of queries and keys, so that every norm that has a weight is somewhere."""
        held, outer = self.have.held, {norm.name for norm in s.norms.values()}
        needed = {ways[0].name for ways in self.have.norms if ways[0].names} - outer
        fits = (
            [n for n in _of_size(self.have, held, (d, d * heads)) if n.name not in outer and not n.groups]
            for heads in (s.heads, s.kv_heads)
        )
        q, k = ([None, *norms, *self.have.weightless] for norms in fits)
        for first, second in product(q, k):
            if {norm.name for norm in (first, second) if norm} >= needed:
                yield {part: norm for part, norm in (("q", first), ("k", second)) if norm}

    def _turns(self, d: int, right: bool) -> list[Rotation | None]:
        if not self.positions:
            return [None]
        return [None, *rotations(self.subject, self.have, d, right)]

    def words(self, agreeing: int) -> str:
        """What is said where nothing is confirmed."""
        named = f"{self.arranged[0].found} are found by their names"
        if agreeing:
            return f"{named}; {agreeing} compositions of them answer as it does"
        if self.nearest is None:
            return f"{named}; no composition of them answers as it does"
        off = max(seen.off(compose(self.nearest, seen.call)) for seen in self.calls)
        return f"{named}; the nearest composition is off by {off:.1g} of its size ({self.nearest.shape})"


def called(subject: Subject, module: Any, tokens: Tokens, dtype: str = "float64") -> Call:
    """A call as a composition sees it."""
    causal = bool(subject.facts.causal) or tokens.is_causal
    memory = tokens.x if tokens.memory is None else tokens.memory
    if subject.speech.pooled:  # a parameter asks, or the first token alone
        held = constants(module, subject.framework)
        asking = held.get(subject.facts.asking)
        asks = tokens.x[:, :1] if asking is None else np.repeat(asking.reshape(1, *asking.shape[-2:]), len(tokens.x), 0)
        return Call(held, asks, memory, False, tokens.visible, dtype)
    places = (added(subject.speech, tokens, dtype, meant) for meant in ADDED)
    return Call(constants(module, subject.framework), tokens.x, memory, causal, tokens.visible, dtype, *places)


def attended_quietly(s: Structure, call: Call, parts: Any, steps: Steps = RIGHT) -> Array | None:
    """The answer; None where shapes do not fit."""
    try:
        with np.errstate(all="ignore"):
            return attended(s, call, parts, steps)
    except (ValueError, IndexError, KeyError):
        return None


def _of_size(have: Ingredients, held: Any, sizes: tuple[int, ...]) -> list[Norm]:
    """Norms whose weights have as many numbers; those without a weight fit everywhere."""
    return [norm for ways in have.norms for norm in ways if not norm.weight or held[norm.weight].size in sizes]
