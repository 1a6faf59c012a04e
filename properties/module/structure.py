"""Which parameters project queries, keys, values and the output: found by name, and confirmed by effect.

A structure is claimed only if the attention that is composed of these parameters, by one assignment of heads, groups, order and
scale, answers as the module does, within what rounding explains, on several cases, and by no other assignment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np

from ..engine.cases.coordinates import Array
from ..engine.core.target import CannotRun
from ..engine.frameworks import Framework
from . import bound
from .names import CONSTRUCTOR_ROLES, role
from .speech import Tokens
from .subject import Subject, tokens_for

# Names in lower case, without underscores.
PARTS = {
    "q": "q qproj wq toq query queryproj queries fcq wqs linearq qlinear wquery qlin querylayer queryprojection qnet projq queriesproj projectq qp",
    "k": "k kproj wk tok key keyproj keys fck wks lineark klinear wkey klin keylayer keyprojection knet projk keysproj projectk kp",
    "v": "v vproj wv tov value valueproj values fcv wvs linearv vlinear wvalue vlin valuelayer valueprojection vnet projv valuesproj projectv vp",
    "qkv": "cattn qkv qkvproj toqkv inproj inprojweight wqkv querykeyvalue attnqkv cqkv qkvlinear qkvprojection projqkv",
    "kv": "tokv kv kvproj wkv ckv kvlinear kvprojection keyvalue",
    "o": "proj cproj outproj toout projection oproj wo fco fc fcout wconcat linear output out o dense outlinear unifyheads wout proj_out projout "
    "outputlinear outputproj finallinear linearout outputprojection attnproj",
}
ROLES = {name.replace("_", ""): part for part, names in PARTS.items() for name in names.split()}
SCALES: dict[str, Callable[[int, int, int], float]] = {  # of (features of a head, heads, width)
    "1/sqrt(head_dim)": lambda d, h, w: d**-0.5,
    "1": lambda d, h, w: 1.0,
    "1/head_dim": lambda d, h, w: 1 / d,
    "1/sqrt(width)": lambda d, h, w: w**-0.5,
    "1/width": lambda d, h, w: 1 / w,
    "1/sqrt(heads)": lambda d, h, w: h**-0.5,
    "sqrt(head_dim)": lambda d, h, w: d**0.5,
}
USUAL = "1/sqrt(head_dim)"
KNOWN = (USUAL, "1", "1/head_dim")  # T5's, and that of maximal update parametrisation: conventions, not the usual one
CASES = ((1, 5), (2, 7), (3, 65))  # seed, tokens, at most as many as are taken: a window shows where there are many


@dataclass(frozen=True, eq=False)
class Place:
    """Where a projection lies: rows of a parameter as (out, in)."""

    weight: str
    bias: str
    axes: tuple[int, ...]  # how the parameter is transposed before its axes are joined to (out, in)
    lead: int  # how many of them make up the outputs
    rows: Array  # which of its output rows

    def get(self, held: Mapping[str, Any], fw: Framework) -> tuple[Array, Array | None]:
        """(weight (out, in), bias (out,))"""
        whole = _matrix(fw.read(held[self.weight]), self.axes, self.lead)
        return whole[self.rows], fw.read(held[self.bias]).reshape(-1)[self.rows] if self.bias else None

    def put(self, held: Mapping[str, Any], weight: Array, bias: Array | None, fw: Framework) -> None:
        """Write them; a bias that is not there is left out, one that is not given is 0."""
        stored = fw.read(held[self.weight])
        whole = _matrix(stored, self.axes, self.lead)
        whole[self.rows] = weight
        moved = tuple(stored.shape[axis] for axis in self.axes)
        fw.assign(held[self.weight], whole.reshape(moved).transpose(np.argsort(self.axes)))
        if self.bias:
            row = fw.read(held[self.bias])  # (out,), or (heads, features of a head)
            row.flat[self.rows] = 0.0 if bias is None else bias
            fw.assign(held[self.bias], row)


def _matrix(x: Array, axes: tuple[int, ...], lead: int) -> Array:
    """(out, in) of a parameter."""
    y = x.transpose(axes)
    return np.array(y.reshape(int(np.prod(y.shape[:lead])), -1))


@dataclass(frozen=True, eq=False)
class Structure:
    """An assignment of parameters, heads, order and scale."""

    places: Mapping[str, Place]
    heads: int
    kv_heads: int
    order: str  # of a fused projection
    tiled: bool = False  # query head h reads key head h % kv_heads, not h // group
    scale: str = "1/sqrt(head_dim)"
    names: Mapping[str, str] = field(default_factory=dict)

    @property
    def words(self) -> str:
        """For the report."""
        bases = dict.fromkeys(place.weight.removesuffix(".weight") for place in self.places.values())
        grouped = (
            f", {self.kv_heads} of keys and values ({'h % kv_heads' if self.tiled else 'h // group'})"
            if self.kv_heads != self.heads
            else ""
        )
        fused = f"; {self.order}" if self.order else ""
        return f"{', '.join(bases)}{fused}; {self.heads} heads{grouped}; scale {self.scale}"

    def read(self, module: Any, fw: Framework) -> dict[str, tuple[Array, Array | None]]:
        """The projections, by q, k, v and o."""
        held = dict(module.named_parameters())
        return {part: place.get({n: p.data for n, p in held.items()}, fw) for part, place in self.places.items()}

    def write(self, module: Any, weights: Mapping[str, tuple[Array, Array | None]], fw: Framework) -> None:
        """Give a module these projections. Raises ValueError if they have other shapes."""
        held = {name: p.data for name, p in module.named_parameters()}
        for part, place in self.places.items():
            place.put(held, *weights[part], fw)


def compose(
    weights: Mapping[str, tuple[Array, Array | None]], s: Structure, x: Array, memory: Array, causal: bool, visible: Array | None = None
) -> Array:
    """The attention of these projections, in float64: (B, L, D). ``visible`` (B, L or 1, S) bool."""

    def project(part: str, y: Array, heads: int) -> Array:
        w, b = weights[part]
        z = y @ w.T + (0.0 if b is None else b)
        return z.reshape(*z.shape[:2], heads, -1).transpose(0, 2, 1, 3)

    q, k, v = project("q", x, s.heads), project("k", memory, s.kv_heads), project("v", memory, s.kv_heads)
    index = np.arange(s.heads) % s.kv_heads if s.tiled else np.arange(s.heads) // (s.heads // s.kv_heads)
    logits = q @ k[:, index].swapaxes(2, 3) * SCALES[s.scale](q.shape[3], s.heads, x.shape[2])
    if causal:
        logits = np.where(np.tri(logits.shape[2], logits.shape[3]) > 0, logits, -np.inf)
    if visible is not None:
        logits = np.where(visible[:, None], logits, -np.inf)
    e = np.exp(logits - logits.max(-1, keepdims=True))
    out = (e / e.sum(-1, keepdims=True) @ v[:, index]).transpose(0, 2, 1, 3).reshape(*x.shape[:2], -1)
    if "o" not in weights:
        return np.asarray(out)
    w, b = weights["o"]
    return np.asarray(out @ w.T + (0.0 if b is None else b))


# ---------------------------------------------------------------- by name


def named_parts(module: Any) -> dict[str, tuple[str, str]]:
    """Part → (weight, bias): parameters whose names say what they project; empty if two say the same."""
    held = {name: tuple(p.shape) for name, p in module.named_parameters()}
    found: dict[str, tuple[str, str]] = {}
    for name, shape in held.items():
        if len(shape) < 2 or len([n for n in shape if n > 1]) < 2:
            continue
        base = name.removesuffix(".weight")
        words = [word for word in base.split(".") if not word.isdecimal()]
        part = ROLES.get(words[-1].lower().replace("_", ""), "") if words else ""
        if not part:
            continue
        if part in found:
            return {}
        bias = next(
            (n for n in (f"{base}.bias", base.replace("weight", "bias"), f"b_{base[-1:]}", f"b{base[-1:]}") if n in held and n != name), ""
        )
        found[part] = (name, bias)
    return found


def by_heads(module: Any) -> dict[str, tuple[str, int]]:
    """Part → (weight, the axis along which the features of its heads stand), of projections that are linear layers of their own."""
    kinds = {f"{place}.weight".lstrip("."): type(m).__name__ for place, m in module.named_modules()}
    found = {part: weight for part, (weight, _) in named_parts(module).items() if kinds.get(weight) == "Linear"}
    return {part: (found[part], int(part == "o")) for part in "qkvo" if part in found} if {"q", "k", "v", "o"} <= set(found) else {}


def headed(subject: Subject) -> bool:
    """Whether the features of these projections are those of its heads."""
    try:
        module = subject.module("float64", "cpu", 1)
    except CannotRun:
        return False
    held = dict(module.named_parameters())
    sizes = [held[name].shape[axis] for name, axis in by_heads(module).values()]
    return (
        bool(sizes)
        and sizes[0] == sizes[-1] == subject.speech.heads * subject.speech.head_dim
        and not any(n % subject.speech.head_dim for n in sizes)
    )


def candidates(module: Any, width: int, known_heads: int) -> Iterator[Structure]:
    """Assignments that the names and shapes of a module allow, the most usual first."""
    parts = named_parts(module)
    if not ({"qkv"} <= set(parts) or {"q", "kv"} <= set(parts) or {"q", "k", "v"} <= set(parts)):
        return
    shapes = {name: tuple(p.shape) for name, p in module.named_parameters()}
    kinds = {f"{place}.weight".lstrip("."): type(m).__name__ for place, m in module.named_modules()}
    linear = {part: kinds.get(weight, "").endswith("Linear") or "in_proj" in weight for part, (weight, _) in parts.items()}
    axes = {part: list(_axes(shapes[weight], part, linear[part], width)) for part, (weight, _) in parts.items()}
    for turned in product(*axes.values()):
        turn = dict(zip(axes, turned, strict=True))
        lead = {part: 2 if len(turn[part]) == 3 and part != "o" else 1 for part in parts}
        outs = {part: int(np.prod([shapes[parts[part][0]][a] for a in turn[part][: lead[part]]])) for part in parts}
        for heads in _heads(module, known_heads, outs, width):
            yield from _arranged(parts, turn, lead, outs, heads)


def _axes(shape: tuple[int, ...], part: str, linear: bool, width: int) -> Iterator[tuple[int, ...]]:
    """Ways to turn a parameter into (out, in)."""
    if len(shape) == 2:
        if linear or shape[0] != shape[1]:
            fits = (0, 1) if linear or (shape[1] == width if part != "o" else shape[0] == width) else (1, 0)
            yield fits
        else:
            yield from ((0, 1), (1, 0))
    elif len(shape) == 3:
        if part == "o":
            yield (2, 0, 1) if shape[2] == width else (0, 1, 2)
        else:
            yield (1, 2, 0) if shape[0] == width else (0, 2, 1)
    elif shape[2:] == (1,) * (len(shape) - 2):  # a convolution of one token
        yield tuple(range(len(shape)))


def _heads(module: Any, known: int, outs: Mapping[str, int], width: int) -> list[int]:
    named = [v for m in module.modules() for n, v in vars(m).items() if type(v) is int and role(n, CONSTRUCTOR_ROLES) == "heads"]
    inner = outs.get("q") or width
    return [h for h in dict.fromkeys((*named, known, *range(1, 17))) if h and inner % h == 0]


def _arranged(
    parts: Mapping[str, tuple[str, str]],
    turn: Mapping[str, tuple[int, ...]],
    lead: Mapping[str, int],
    outs: Mapping[str, int],
    heads: int,
) -> Iterator[Structure]:
    """The orders of a fused projection, and the groups of heads."""
    fused = "qkv" if "qkv" in parts else "kv" if "kv" in parts else ""
    several = len(fused) or 1
    total = outs[fused] if fused else 0
    if fused == "qkv":
        sizes = [(total // 3, total // 3)] if total % 3 == 0 else []
        dims = [d for d in range(1, total) if (total - heads * d) % (2 * d) == 0 and total > heads * d] if not sizes else []
        sizes += [(heads * d, (total - heads * d) // 2) for d in dims if heads % max((total - heads * d) // 2 // d, 1) == 0][:3]
    else:
        sizes = [(outs["q"], total // 2 if fused else outs["k"])]
    for q_size, k_size in sizes:
        d = q_size // heads
        if not d or k_size % d or heads % max(k_size // d, 1):
            continue
        kv_heads = k_size // d
        orders = ["", "per head", "interleaved"] if fused and (fused == "kv" or q_size == k_size) else [""]
        for order in orders:
            rows = _rows(fused, order, q_size, k_size, heads if fused == "qkv" else kv_heads, d, several)
            places = {}
            for part in ("q", "k", "v", "o"):
                own = part if part in parts else fused if part in fused else ""
                if own:
                    places[part] = Place(*parts[own], turn[own], lead[own], rows[part] if own == fused else np.arange(outs[own]))
            for tiled in (False, True) if 1 < kv_heads < heads else (False,):
                words = {"": "in blocks", "per head": "per head", "interleaved": "features first"}[order] if fused else ""
                yield Structure(places, heads, kv_heads, words, tiled)


def _rows(fused: str, order: str, q_size: int, k_size: int, heads: int, d: int, several: int) -> dict[str, Array]:
    """Which output rows of a fused projection are whose."""
    if order:
        at = np.arange(heads * several * d).reshape((heads, several, d) if order == "per head" else (heads, d, several))
        taken = at if order == "per head" else at.transpose(0, 2, 1)
        return {part: taken[:, n].reshape(-1) for n, part in enumerate(fused)}
    starts = {"qkv": (0, q_size, q_size + k_size), "kv": (0, k_size), "": ()}[fused]
    return {part: start + np.arange(q_size if part == "q" else k_size) for part, start in zip(fused, starts, strict=True)}


# ---------------------------------------------------------------- by effect


def confirmed(subject: Subject) -> tuple[Structure | None, Structure | None]:
    """(the structure that answers as the module does, and alone; the first that its names allow). None where there is none."""
    if subject.speech.layout not in ("bld", "lbd") or subject.speech.pooled or subject.facts.lengths or subject.facts.local:
        return None, None
    tried = []
    for seed, length in CASES:
        try:
            module = subject.module("float64", "cpu", seed)
            length = min(length, subject.facts.longest)
            tokens = tokens_for(subject.speech, 2, length, None if subject.facts.sees_itself else 6, seed)
            exact, allowed = bound.spread(subject, module, subject.speech, tokens, "float64", "cpu", seed)
        except (Exception, SystemExit):
            return None, None
        tried.append((module, tokens, exact, allowed))
    first: Structure | None = None
    agreeing: list[Structure] = []
    for candidate in candidates(tried[0][0], subject.speech.width, subject.speech.heads):
        first = first or candidate
        for scale in SCALES:
            assigned = _scaled(candidate, scale)
            if all(_agrees(assigned, subject, *case) for case in tried):
                agreeing.append(assigned)
    alone = agreeing[:1] if len({_meaning(s) for s in agreeing}) == 1 else []
    return (alone[0] if alone else None), first


def _scaled(s: Structure, scale: str) -> Structure:
    return Structure(s.places, s.heads, s.kv_heads, s.order, s.tiled, scale)


def _meaning(s: Structure) -> tuple[object, ...]:
    """What two assignments must have in common to be the same one."""
    d = len(s.places["q"].rows) // s.heads
    return s.heads, s.kv_heads, s.order, s.tiled, round(SCALES[s.scale](d, s.heads, d * s.heads), 12)


def _agrees(s: Structure, subject: Subject, module: Any, tokens: Tokens, exact: Array, allowed: Array) -> bool:
    try:
        weights = s.read(module, subject.framework)
        memory = tokens.x if tokens.memory is None else tokens.memory
        with np.errstate(all="ignore"):
            out = compose(weights, s, tokens.x, memory, bool(subject.facts.causal))
            return out.shape == exact.shape and bool((np.abs(out - exact) <= 2 * allowed).all())
    except (ValueError, IndexError):
        return False
