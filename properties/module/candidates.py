"""Which parameters of a module may be its projections, and in which order: read off names and shapes. ``confirm.py`` says whether they are."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from ..engine.cases.coordinates import Array
from ..engine.core.target import CannotRun
from .names import CONSTRUCTOR_ROLES, role
from .structure import Place, Structure
from .subject import Subject

# Names in lower case, without underscores.
PARTS = {
    "q": "q qproj wq toq query queryproj queries fcq wqs linearq qlinear wquery qlin querylayer queryprojection qnet projq queriesproj projectq qp "
    "pq cq querykernel qkernel kernelq",
    "k": "k kproj wk tok key keyproj keys fck wks lineark klinear wkey klin keylayer keyprojection knet projk keysproj projectk kp "
    "pk ck keykernel kkernel kernelk",
    "v": "v vproj wv tov value valueproj values fcv wvs linearv vlinear wvalue vlin valuelayer valueprojection vnet projv valuesproj projectv vp "
    "pv cv valuekernel vkernel kernelv",
    "qkv": "cattn qkv qkvproj toqkv inproj inprojweight wqkv querykeyvalue attnqkv cqkv qkvlinear qkvprojection projqkv wpack pqkv qkvkernel attn",
    "kv": "tokv kv kvproj wkv ckv kvlinear kvprojection keyvalue pkv",
    "o": "proj cproj outproj toout projection oproj wo fco fc fcout wconcat linear output out o dense outlinear unifyheads wout proj_out projout "
    "outputlinear outputproj finallinear linearout outputprojection outprojection attnproj po outputkernel outkernel okernel kernelo",
}
ROLES = {name.replace("_", ""): part for part, names in PARTS.items() for name in names.split()}
IN_ORDER = ("q", "k", "v", "o")  # of four linear layers in a list (The Annotated Transformer)
Named = dict[str, tuple[str, str]]  # part → (weight, bias)


def linear_layers(module: Any) -> dict[str, str]:
    """The weight of every module within → the kind of the module."""
    return {f"{place}.weight".lstrip("."): type(m).__name__ for place, m in module.named_modules()}


def named_parts(module: Any) -> Named:
    """Part → (weight, bias): parameters whose names say what they project; empty if two say the same."""
    found = _parts(module, {name: tuple(p.shape) for name, p in module.named_parameters()})
    return {part: pairs[0] for part, pairs in found.items()} if all(len(pairs) == 1 for pairs in found.values()) else {}


def _parts(module: Any, held: Mapping[str, tuple[int, ...]]) -> dict[str, list[tuple[str, str]]]:
    """Part → the (weight, bias) of every parameter whose name says that it projects for it."""
    found: dict[str, list[tuple[str, str]]] = {}
    for name, shape in held.items():
        if len(shape) < 2 or len([n for n in shape if n > 1]) < 2:
            continue
        base = name.removesuffix(".weight")
        words = [word for word in base.split(".") if not word.isdecimal()]
        part = ROLES.get(words[-1].lower().replace("_", ""), "") if words else ""
        if part:
            found.setdefault(part, []).append((name, bias_of(name, base, held)))
    return found


def bias_of(name: str, base: str, held: Mapping[str, tuple[int, ...]]) -> str:
    """The bias beside a weight; empty if it has none."""
    likely = (f"{base}.bias", base.replace("weight", "bias"), f"b_{base[-1:]}", f"b{base[-1:]}")
    return next((n for n in likely if n in held and n != name), "")


def _stacked(found: dict[str, list[tuple[str, str]]]) -> tuple[Named, dict[str, tuple[tuple[str, str], ...]]]:
    """Of heads that are modules of their own, in a list: (the first one of each part, the others). Empty where that is not all there is."""
    first: Named = {}
    others: dict[str, tuple[tuple[str, str], ...]] = {}
    for part, pairs in found.items():
        same = {re.sub(r"\.\d+\.", ".*.", f".{weight}") for weight, _ in pairs}
        if len(pairs) > 1 and (len(same) > 1 or part == "o"):
            return {}, {}
        first[part], others[part] = pairs[0], tuple(pairs[1:])
    counts = {len(pairs) for part, pairs in found.items() if part != "o"}
    return (first, others) if len(counts) == 1 else ({}, {})


def _listed(module: Any, held: Mapping[str, tuple[int, ...]]) -> Named:
    """Four linear layers of one shape in a list, and no more: those of queries, keys, values and the output."""
    kinds = linear_layers(module)
    lists: dict[str, list[str]] = {}
    for name in held:
        if match := re.fullmatch(r"(.*\.)?(\d+)\.weight", name):
            lists.setdefault(match[1] or "", []).append(name)
    (names,) = lists.values() if len(lists) == 1 else ([],)
    if len(names) != 4 or len({held[name] for name in names}) != 1 or any(kinds.get(name) != "Linear" for name in names):
        return {}
    biases = [name.replace("weight", "bias") for name in names]
    return {part: (name, bias if bias in held else "") for part, name, bias in zip(IN_ORDER, names, biases, strict=True)}


def by_heads(module: Any) -> dict[str, tuple[str, int]]:
    """Part → (weight, the axis along which the features of its heads stand), of projections that are linear layers of their own."""
    kinds = linear_layers(module)
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
    shapes = {name: tuple(p.shape) for name, p in module.named_parameters()}
    parts, others = _stacked(_parts(module, shapes))
    parts = parts or _listed(module, shapes)
    if not ({"qkv"} <= set(parts) or {"q", "kv"} <= set(parts) or {"q", "k", "v"} <= set(parts)):
        return
    kinds = linear_layers(module)
    linear = {part: kinds.get(weight, "").endswith("Linear") or "in_proj" in weight for part, (weight, _) in parts.items()}
    axes = {part: list(_axes(shapes[weight], part, linear[part], width)) for part, (weight, _) in parts.items()}
    for turned in product(*axes.values()):
        turn = {part: order for part, (order, _) in zip(axes, turned, strict=True)}
        lead = {part: out for part, (_, out) in zip(axes, turned, strict=True)}
        outs = {part: int(np.prod([shapes[parts[part][0]][a] for a in turn[part][: lead[part]]])) for part in parts}
        if "o" in parts:
            outs["inner"] = int(np.prod(shapes[parts["o"][0]])) // outs["o"]
        outs |= {part: outs[part] * (1 + len(others.get(part, ()))) for part in parts}
        for heads in _heads(module, known_heads, outs, width):
            for s in _arranged(parts, turn, lead, outs, heads):
                yield s.but(places={part: replace(place, others=others.get(part, ())) for part, place in s.places.items()}) if others else s


def _axes(shape: tuple[int, ...], part: str, linear: bool, width: int) -> Iterator[tuple[tuple[int, ...], int]]:
    """Ways to turn a parameter into (out, in): (the order of its axes, how many of them are out)."""
    if len(shape) == 2:
        if linear or shape[0] != shape[1]:
            fits = (0, 1) if linear or (shape[1] == width if part != "o" else shape[0] == width) else (1, 0)
            yield fits, 1
        else:
            yield from (((0, 1), 1), ((1, 0), 1))
    elif shape[2:] == (1,) * (len(shape) - 2) and (part != "o" or len(shape) > 3):  # a convolution of one token
        yield tuple(range(len(shape))), 1
    else:  # the axis of the features of tokens, which come out of the last projection and go into the others
        for axis in (axis for axis, size in enumerate(shape) if size == width):
            others = tuple(other for other in range(len(shape)) if other != axis)
            yield ((axis, *others), 1) if part == "o" else ((*others, axis), len(others))


def _heads(module: Any, known: int, outs: Mapping[str, int], width: int) -> list[int]:
    inner = outs.get("inner") or outs.get("q") or width
    return [h for h in dict.fromkeys((*named_heads(module), known, *range(1, 17))) if h and inner % h == 0]


def named_heads(module: Any) -> list[int]:
    """Numbers of heads that attributes say."""
    return [v for m in module.modules() for n, v in vars(m).items() if type(v) is int and role(n, CONSTRUCTOR_ROLES) == "heads"]


def _arranged(
    parts: Mapping[str, tuple[str, str]],
    turn: Mapping[str, tuple[int, ...]],
    lead: Mapping[str, int],
    outs: Mapping[str, int],
    heads: int,
) -> Iterator[Structure]:
    """The orders of a fused projection, and the groups of heads."""
    fused = "qkv" if "qkv" in parts else "kv" if "kv" in parts else ""
    total = outs[fused] if fused else 0
    for q_size, k_size in _sizes(outs, fused, heads):
        d = q_size // heads
        if not d or k_size % d or heads % max(k_size // d, 1):
            continue
        kv_heads = k_size // d
        for order in _orders(fused, heads, kv_heads):
            rows = _rows(fused, order, heads, kv_heads, d)
            if fused and sum(map(len, rows.values())) != total:
                continue
            places = {}
            for part in ("q", "k", "v", "o"):
                own = part if part in parts else fused if part in fused else ""
                if own:
                    places[part] = Place(*parts[own], turn[own], lead[own], rows[part] if own == fused else np.arange(outs[own]))
            for tiled in ("", "kv", "k", "v") if 1 < kv_heads < heads else ("",):
                yield Structure(places, heads, kv_heads, order, tiled)


def _sizes(outs: Mapping[str, int], fused: str, heads: int) -> list[tuple[int, int]]:
    """(outputs for queries, outputs for keys): what is fused need not be three equal parts."""
    if fused != "qkv":
        return [(outs["q"], outs["kv"] // 2 if fused else outs["k"])]
    total = outs["qkv"]
    queries = [outs["inner"]] if "inner" in outs else [n * heads for n in range(1, total // heads)]
    sizes = [(q, (total - q) // 2) for q in (total // 3, *queries) if q < total and (total - q) % 2 == 0]
    fits = [(q, k) for q, k in sizes if q % heads == 0 and k % (q // heads) == 0 and heads % (k * heads // q) == 0]
    return list(dict.fromkeys(fits))[:4]


def _orders(fused: str, heads: int, kv_heads: int) -> tuple[str, ...]:
    if not fused:
        return ("",)
    if kv_heads == 1 and (fused == "kv" or heads > 1):  # all orders but this one are that in blocks
        return ("in blocks", "features first")[: 2 if fused == "kv" else 1]
    return ("in blocks", "per head", "features first") if fused == "kv" or heads == kv_heads else ("in blocks", "per group")


def _rows(fused: str, order: str, heads: int, kv_heads: int, d: int) -> dict[str, Array]:
    """Which output rows of a fused projection are whose."""
    if not fused:
        return {}
    counts = {"q": heads, "k": kv_heads, "v": kv_heads}
    if order == "in blocks":
        ends = np.cumsum([counts[part] * d for part in fused])
        return {part: np.arange(end - counts[part] * d, end) for part, end in zip(fused, ends, strict=True)}
    own = kv_heads if fused == "kv" or order == "per group" else heads
    several = heads // kv_heads + 2 if order == "per group" else len(fused)
    at = np.arange(own * several * d).reshape((own, d, several) if order == "features first" else (own, several, d))
    at = at.transpose(0, 2, 1) if order == "features first" else at
    taken = {"q": at[:, :-2], "k": at[:, -2], "v": at[:, -1]}
    return {part: taken[part].reshape(-1) for part in fused}
