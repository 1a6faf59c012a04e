"""What else a module has from which its attention may be composed: norms, rotations, slopes, learned scales, sinks; by names and shapes."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from typing import Any

import numpy as np

from ..engine.cases.coordinates import Array
from ..engine.frameworks import Framework
from .away import Away
from .names import CONFIGS, CONSTRUCTOR_ROLES, role
from .speech import Speech
from .structure import HEADS, ONE_MORE, ROUNDED, SCALES, Held, Learned, Mixing, Norm, Rotation, Slopes, Table, factor
from .subject import Subject

EPSILONS = (1e-5, 1e-6, 1e-8)  # of norms that do not say theirs
WEIGHTS, BIASES = ("weight", "gamma", "scale", "g"), ("bias", "beta", "b")
GAIN, OF_GAINS = {"gamma", "layerscale", "layer_scale", "ls", "gamma_attn"}, ("lambda1", "lambda_1", "lambda")
OF_SCALES = {"scale", "scaling", "scaler", "scalar", "temperature", "factor", "multiplier"}  # words in names of attributes
CAPS = {"cap", "capping", "softcap", "softcapping"}
OF_ANGLES = {"freq", "freqs", "theta", "thetas", "frequencies"}
OF_SLOPES = {"slope", "slopes", "alibi"}
LENGTHS = {"normalize", "norm", "vector_norm", "linalg_norm", "linalg_vector_norm"}  # computed where queries are divided by their length
BASE = 10000.0
OF_MODULES = ("_parameters", "_buffers", "_modules")  # which are asked for otherwise
MOST_HELD = 16  # arrays, and other things, of a tuple, a list or a dictionary that is looked into
FEW_BASES = 3  # of those that are tried, where the code says some
COSINES, SINES = ".cos", ".sin"  # behind the name of a table that holds both
ON_A_CIRCLE = 1e-2  # as near as bfloat16 holds cosines and sines
OTHER = {"halves": "neighbours", "neighbours": "halves"}
# What multiplies logits, what is added to them (of distances, and looked up), what mixes heads, what stands beside them.
Additions = tuple[Learned | None, Slopes | None, Table | None, Mixing | None, str]


@dataclass(frozen=True, eq=False)
class Ingredients:
    """What was found."""

    norms: tuple[tuple[Norm, ...], ...]  # for each module that norms, what it may compute
    gains: tuple[Norm, ...]  # what weighs each feature of the output (Touvron et al. 2021, LayerScale)
    weightless: tuple[Norm, ...]  # norms of queries and keys by a function
    numbers: Mapping[str, float]  # attributes that are called after scales
    caps: tuple[float, ...]
    bases: tuple[float, ...]  # of angles
    held: Held  # its parameters and constants
    left: frozenset[str]  # parameters that are no part of a projection or a norm
    one_more: bool  # whether it is documented that there is one more in the denominator

    def scales(self, d: int, heads: int, width: int) -> list[str]:
        """Those of formulas, and what attributes say otherwise."""
        known = [factor(name, d, heads, width) for name in SCALES]
        said = [way for number in self.numbers.values() if number > 0 for way in (number, 1 / number, number**-0.5)]
        more = [value for value in dict.fromkeys(said) if not any(math.isclose(value, other, rel_tol=1e-6) for other in known)]
        rounded = ROUNDED if any(x.size == 1 and set(_words(name)) & OF_SCALES for name, x in self.held.items()) else ()
        return [*SCALES, *rounded, *(repr(value) for value in more)]


def ingredients(subject: Subject, module: Any, computed: list[str], projections: frozenset[str]) -> Ingredients:
    """Of a module whose projections have these parameters."""
    held = constants(module, subject.framework)
    norms = tuple(tuple(_ways(path, part)) for path, part in module.named_modules() if "norm" in type(part).__name__.lower())
    gains = tuple(gain for gain in _gains(module) if held[gain.weight].size > subject.speech.heads)  # one of each head is a scale of logits
    names = {name for ways in (*norms, gains) for norm in ways for name in norm.names}
    parameters = {name for name, _ in module.named_parameters()}
    numbers = _numbers(module)
    return Ingredients(
        tuple(ways for ways in norms if ways),
        gains,
        tuple(_weightless(computed, [ways[0] for ways in norms if ways])),
        numbers_of_scales(module),
        tuple(value for name, value in numbers.items() if set(_words(name)) & CAPS) if "tanh" in computed else (),
        tuple(dict.fromkeys((*_bases(numbers), *written_bases(module)))),
        held,
        frozenset(parameters - names - projections),
        bool(subject.said_one_more),
    )


def constants(module: Any, fw: Framework) -> dict[str, Array]:
    """The numbers of its parameters, its buffers and arrays that are plain attributes, by their names; cosines and sines in one array apart, too."""
    held = {name: fw.read(p.data) for name, p in module.named_parameters()}
    found = module.constants() if isinstance(module, Away) else arrays_of(module, fw)
    read = {name: fw.read(array) for name, array in found.items()}
    parted = {f"{name}{part}": x for name, table in read.items() for part, x in _parted(table).items()}
    return parted | read | held


def _parted(table: Array) -> dict[str, Array]:
    """The cosines and sines that lie in one table of positions, side by side or in turn; none where it holds something else."""
    if table.ndim < 2 or table.shape[-1] % 2 or table.shape[-2] < 2 or table.size != table.shape[-1] * table.shape[-2]:
        return {}
    half = table.shape[-1] // 2
    for one, other in ((table[..., :half], table[..., half:]), (table[..., ::2], table[..., 1::2])):
        if np.abs(one**2 + other**2 - 1).max() < ON_A_CIRCLE:
            cos, sin = (one, other) if abs(one).reshape(-1, half)[0].min() > 0.5 else (other, one)  # position 0 is not turned
            return {COSINES: cos, SINES: sin}
    return {}


def arrays_of(module: Any, fw: Framework) -> dict[str, Any]:
    """Arrays of floating-point numbers that are buffers or attributes of a module or of one within, or lie in these, and tables of whole numbers."""
    found = dict(module.named_buffers())
    for path, part in module.named_modules():
        for name, value in vars(part).items():
            found |= _within(f"{path}.{name}".lstrip("."), value, fw) if name not in OF_MODULES else {}
    numbers = {name: value for name, value in found.items() if fw.is_array(value) and fw.describe(value)[1].startswith(("float", "bfloat"))}
    return numbers | {name: found[name] for name in tables_of(module, fw)}


def _within(name: str, value: Any, fw: Framework, depth: int = 2) -> dict[str, Any]:
    """An array by its name; those in a tuple, a list or a dictionary by that and their places in it."""
    if fw.is_array(value):
        return {name: value}
    if not depth or not isinstance(value, tuple | list | dict) or len(value) > MOST_HELD:
        return {}
    parts = value.values() if isinstance(value, dict) else value
    return {key: array for at, part in enumerate(parts) for key, array in _within(f"{name}.{at}", part, fw, depth - 1).items()}


def tables_of(module: Any, fw: Framework) -> list[str]:
    """Buffers that may hold distances, or places in a table: whole numbers along two axes, and others than 0 and 1, which are a mask."""
    if isinstance(module, Away):
        return module.tables()
    held = dict(module.named_buffers())
    whole = [name for name, array in held.items() if len(fw.describe(array)[0]) > 1 and "int" in fw.describe(array)[1]]
    return [name for name in whole if (fw.read(held[name]) > 1).any()]


def _numbers(module: Any) -> dict[str, float]:
    """Attributes that are numbers, of all that is no norm."""
    parts = [(path, part) for path, part in module.named_modules() if "norm" not in type(part).__name__.lower()]
    found = {f"{path}.{name}".lstrip("."): value for path, part in parts for name, value in {**vars(part), **configured(part)}.items()}
    return {name: float(value) for name, value in found.items() if type(value) in (int, float) and math.isfinite(value)}


def configured(part: Any) -> dict[str, float]:
    """Numbers that a configuration which a module holds has, and that are called after scales, caps or bases of angles."""
    found: dict[str, float] = {}
    for name, held in vars(part).items():
        if name.lower() in CONFIGS or name.lower().endswith(("config", "_cfg")):
            inner = held if isinstance(held, Mapping) else getattr(held, "__dict__", {})
            known = {str(key): value for key, value in inner.items() if type(value) in (int, float)}
            found |= {f"{name}.{key}": value for key, value in known.items() if set(_words(key)) & (OF_SCALES | CAPS | {"theta"})}
    return found


def numbers_of_scales(module: Any) -> dict[str, float]:
    """Attributes that are called after scales."""
    return {name: value for name, value in _numbers(module).items() if set(_words(name)) & OF_SCALES}


UNSCALED = re.compile(r"\bscale\s*=\s*1(?:\.0?)?(?=\s*[,)])")  # an argument of a call


def written_unscaled(module: Any) -> str:
    """Where the code of a module says that logits are not scaled: ``scale=1.0`` in a call; empty if it does not."""
    if isinstance(module, Away):
        return module.unscaled()
    kinds: dict[Any, None] = dict.fromkeys(type(part) for part in module.modules() if not type(part).__module__.startswith("torch."))
    return next((said for kind in kinds if (said := _says_unscaled(kind))), "")


def asks_for_window(module: Any) -> bool:
    """Whether the constructor of a module asks how large a window is."""
    if isinstance(module, Away):
        return module.windowed()
    try:
        asked = inspect.signature(type(module)).parameters
    except (TypeError, ValueError):
        return False
    return any(role(name, CONSTRUCTOR_ROLES) == "window" for name in asked)


def _bases(numbers: Mapping[str, float]) -> list[float]:
    return [value for name, value in numbers.items() if role(name.rpartition(".")[2], CONSTRUCTOR_ROLES) == "theta" and value > 1]


def written_bases(module: Any) -> list[float]:
    """Numbers that may be bases of angles: large whole ones in the code of a module, or of functions that it names, as values or by default."""
    if isinstance(module, Away):
        return module.bases()
    kinds: dict[Any, None] = dict.fromkeys(type(part) for part in module.modules() if not type(part).__module__.startswith("torch."))
    return list(dict.fromkeys(number for kind in kinds for number in _large_numbers(kind)))[:FEW_BASES]


@cache
def _large_numbers(kind: Any) -> list[float]:
    own = [thing for thing in vars(kind).values() if inspect.isfunction(thing)]
    named = [of.__globals__.get(name) for of in own for name in of.__code__.co_names]
    said: list[Any] = []
    for function in (*own, *filter(inspect.isfunction, named)):
        said += [*function.__code__.co_consts, *(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    return [
        float(number) for number in said if type(number) in (int, float) and 1e3 <= number <= 1e8 and number % 1 == 0 and number != BASE
    ]


@cache
def _says_unscaled(kind: Any) -> str:
    try:
        said = UNSCALED.search(inspect.getsource(kind))
    except (OSError, TypeError):
        return ""
    return said[0] if said else ""


def _words(name: str) -> list[str]:
    return name.rpartition(".")[2].lower().strip("_").split("_")


# ---------------------------------------------------------------- norms


def _ways(path: str, part: Any) -> Iterator[Norm]:
    """What a module whose name says that it norms may compute, by its parameters and its epsilon."""
    own = [name for name, _ in part.named_parameters(recurse=False)]
    weight, bias = (next((name for name in names if name in own), "") for names in (WEIGHTS, BIASES))
    kind, torchs = type(part).__name__.lower(), type(part).__module__.startswith("torch.nn")
    groups = getattr(part, "num_groups", 0)
    if set(own) - {weight, bias} or any(word in kind for word in ("batch", "instance", "weightnorm")) or ("group" in kind) != bool(groups):
        return
    named = ("layer",) if bias or (torchs and "layer" in kind) else ("rms",) if torchs or "rms" in kind else ("rms", "layer")
    kinds = ("group",) if groups else named
    attributes = [value for name, value in vars(part).items() if role(name, CONSTRUCTOR_ROLES) == "epsilon" or name.endswith("epsilon")]
    weight, bias = (f"{path}.{name}".lstrip(".") if name else "" for name in (weight, bias))
    for way, epsilon in product(kinds, attributes[:1] or (*EPSILONS, None)):
        for one_more in (False, True) if way == "rms" and weight and not torchs else (False,):
            yield Norm(path, way, weight, bias, epsilon, one_more, groups)


def _gains(module: Any) -> Iterator[Norm]:
    """A factor of each feature that is called so, or is all that a module of such a name has."""
    parts = dict(module.named_modules())
    for name, parameter in module.named_parameters():
        path, _, own = name.rpartition(".")
        called = own if not path or own not in (*WEIGHTS, *OF_GAINS) else path.rpartition(".")[2]
        kind = type(parts[path]).__name__ if path else ""
        if parameter.ndim == 1 and (GAIN & {called.lower().strip("_0123456789"), kind.lower().replace("_", "")}):
            yield Norm(name, "gain", name)


def _weightless(computed: list[str], modules: list[Norm]) -> Iterator[Norm]:
    """Norms that are no modules: lengths, and what is computed more often than modules do it."""
    if LENGTHS & set(computed):
        yield Norm("", "length")
    for kind in ("rms", "layer"):
        if computed.count(f"{kind}_norm") > sum(norm.kind == kind for norm in modules):
            yield from (Norm("", kind, epsilon=epsilon) for epsilon in (None, *EPSILONS[:2]))


# ---------------------------------------------------------------- positions


def rotations(subject: Subject, found: Ingredients, d: int, right: bool) -> Iterator[Rotation]:
    """Rotations of heads of d features, by whatever angles there are; all right ones, or all with a mistake in them."""
    plain = [r for r in _sources(subject, found, d) if r.features <= d and r.features % 2 == 0]
    plain += [replace(r, back=True) for r in plain if right]
    for r, pairing in product(plain, ("halves", "neighbours")):
        tables = (pairing, OTHER[pairing]) if not _as_used(r, found) else (pairing,)
        for last, early in product(
            (False, True) if r.features < d else (False,), (False, True) if found.norms or found.weightless else (False,)
        ):
            turned = replace(r, pairing=pairing, tables=pairing, last=last, early=early)
            if right:
                yield turned
                continue
            yield from (replace(turned, who=who) for who in ("q", "k", "qkv"))
            yield replace(turned, keys=OTHER[pairing])
            yield replace(turned, along=HEADS)
            yield from (replace(turned, tables=other) for other in tables[1:])


def _as_used(r: Rotation, found: Ingredients) -> bool:
    """Whether cosines lie in the module for every feature, so that no angle is given to another one."""
    return len(r.names) == 2 and found.held[r.names[0]].shape[-1] == r.features


def _sources(subject: Subject, found: Ingredients, d: int) -> Iterator[Rotation]:
    """Where angles may be from; the pairing is left open."""
    speech = subject.speech
    if {"angles", "cosine", "complex angles"} & set(speech.roles.values()):
        frequencies = _given(speech)
        yield Rotation("halves", "halves", 2 * len(frequencies), "angles given", frequencies)
        return
    vectors = {name: x for name, x in found.held.items() if set(_words(name)) & OF_ANGLES or _falls(x)}
    for name, x in vectors.items():
        if x.ndim == 1 and 2 * x.size <= d:
            yield Rotation("halves", "halves", 2 * x.size, f"frequencies of {name}", names=(name,))
    tables = {name: x for name, x in found.held.items() if "cos" in name.rpartition(".")[2].lower() and x.ndim > 1}
    for name, x in tables.items():
        other = name.rpartition(".")[0] + name.rpartition(".")[1] + name.rpartition(".")[2].replace("cos", "sin").replace("Cos", "Sin")
        if other in found.held and found.held[other].shape == x.shape and x.size == x.shape[-1] * max(x.shape[:-1]):
            yield from (Rotation("halves", "halves", n, f"angles of {name}", names=(name, other)) for n in {x.shape[-1], 2 * x.shape[-1]})
    for base, n in product(dict.fromkeys((BASE, *found.bases)), dict.fromkeys((d, d // 2, d // 4))):
        if n >= 2:
            yield Rotation("halves", "halves", n, f"base {base:g}", base ** (-np.arange(0, n, 2) / n))


def _falls(x: Array) -> bool:
    """Whether numbers fall by one factor, from 1 on: as frequencies do, whatever they are called.

    Each may be off by the four units of a power in float32, and the factor's share grows with the exponent.
    """
    if x.ndim != 1 or x.size < 2 or not np.isrealobj(x) or x[0] != 1 or not 0 < x[1] < 1:
        return False
    exponents = np.arange(x.size)
    power = np.float64(x[1]) ** exponents
    return bool((np.abs(x - power) <= 4 * (exponents + 1) * 2.0**-24 * power).all())


def _given(speech: Speech) -> Array:
    """The frequencies of the angles that are given: of all features of a head, or of a half or a quarter of them."""
    dim = speech.turned or speech.head_dim
    frequencies = np.longdouble(BASE) ** (-np.arange(0, dim, 2) / np.longdouble(dim))
    return frequencies[:: 2 if "half the width" in speech.table else 4 if "a quarter" in speech.table else 1]


# ---------------------------------------------------------------- logits


def additions(found: Ingredients, heads: int, positions: bool, right: bool) -> Iterator[Additions]:
    """What else decides logits, so that every parameter that is left has a part; slopes are all right ones, or all with a mistake in them."""
    mixing_heads = mixers(found, heads)
    used = {name for mixer in mixing_heads for name in mixer}
    left = sorted(name for name in found.left - used if not set(_words(name)) & OF_ANGLES)
    for choice in product(*(list(_meanings(name, found, heads)) for name in left)):
        learned = [each for each in choice if isinstance(each, Learned)]
        tables = [each for each in choice if isinstance(each, Table)]
        sinks = [each for each in choice if isinstance(each, str)]
        if max(len(learned), len(tables), len(sinks)) < 2:
            beside = sinks or ["", *[ONE_MORE] * found.one_more]
            for slopes, mixing, sink in product(_slopes(found, heads, right) if positions else [None], _mixings(mixing_heads), beside):
                yield (learned[0] if learned else None), slopes, (tables[0] if tables else None), mixing, sink


def mixers(found: Ingredients, heads: int) -> list[tuple[str, str]]:
    """Layers from heads to heads: the names of their weights, and of their biases, if there are."""
    square = [name for name in found.left if found.held[name].shape in ((heads, heads), (heads, heads, 1, 1))] if heads > 1 else []
    biases = {name: f"{name.removesuffix('weight')}bias" for name in square}
    return [(name, bias if bias in found.left and found.held[bias].shape == (heads,) else "") for name, bias in sorted(biases.items())]


def _mixings(found: list[tuple[str, str]]) -> list[Mixing | None]:
    """What each of at most two layers may mix: logits, or weights."""
    if len(found) == 2:
        return [Mixing(*found), Mixing(*found[::-1])]
    return [Mixing(logits=found[0]), Mixing(weights=found[0])] if found else [None]


def _meanings(name: str, found: Ingredients, heads: int) -> Iterator[Learned | Table | str]:
    """What a parameter may be that is no part of a projection: a scale of one number, or of one for each head; a sink; a table of biases."""
    x = found.held[name]
    if x.size in (1, heads):
        yield from (Learned(name, how) for how in ("times", "exp", "over"))
    if x.size == heads:
        yield name
    for axis in {x.shape.index(heads), x.shape[::-1].index(heads) ^ 1} if x.ndim == 2 and heads in x.shape else ():
        yield from (Table(name, places, axis == 0) for places, at in found.held.items() if _places_in(at, x.shape[1 - axis]))


def _places_in(at: Array, count: int) -> bool:
    """Whether these are places of every two tokens in a table of so many numbers: more than a mask has."""
    return at.ndim == 2 and len(at) == at.shape[1] > 1 and bool((at == np.floor(at)).all()) and 1 < at.max() < count and at.min() >= 0


def _slopes(found: Ingredients, heads: int, right: bool) -> Iterator[Slopes | None]:
    """Biases of distances, and none."""
    yield None
    for source in ("", *(name for name, x in found.held.items() if x.size == heads and set(_words(name)) & OF_SLOPES)):
        yield from (Slopes(source),) if right else (Slopes(source, grows=True), Slopes(source, scaled=True))
