"""All contracts and all properties, in the order of a text on attention."""

from __future__ import annotations

import difflib
import fnmatch
import importlib
import sys
import tomllib
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path
from types import ModuleType

from .attention import (
    causality,
    chunks,
    feature_gradients,
    features,
    gradients,
    heads,
    masks,
    numbers,
    purity,
    rounding,
    scaling,
    softmax,
    symmetry,
    values,
)
from .block import blocks, decoders, encoders
from .block import slopes as block_slopes
from .cache import caches
from .engine.core.contract import make, register
from .engine.core.declare import Property
from .engine.core.trial import Trial
from .linear import linear_attention
from .module import decoding, padding, projections, slopes, state, tokens, twin
from .multihead import layers
from .multihead import slopes as layer_slopes
from .pack import packed
from .position import distances, positions

BUILT_IN: tuple[ModuleType, ...] = (
    softmax,
    values,
    masks,
    causality,
    symmetry,
    heads,
    scaling,
    chunks,
    numbers,
    rounding,
    purity,
    features,
    gradients,
    feature_gradients,
    layers,
    layer_slopes,
    blocks,
    encoders,
    decoders,
    block_slopes,
    packed,
    positions,
    distances,
    caches,
    linear_attention,
    tokens,
    padding,
    decoding,
    state,
    twin,
    projections,
    slopes,
)


def _properties(themes: Iterable[ModuleType]) -> dict[str, Property]:
    """The properties of themes, by name. Raises ValueError for two of one name."""
    found: dict[str, Property] = {}
    for prop in (member for theme in themes for member in vars(theme).values() if isinstance(member, Property)):
        if found.setdefault(prop.name, prop) is not prop:
            places = f"{found[prop.name].check.__module__} and {prop.check.__module__}"
            raise ValueError(f"two properties are called {prop.name!r}: in {places}")
    return found


def _chapter(chapter: ModuleType) -> Iterator[ModuleType]:
    """The themes of a chapter, which are imported after its contracts are known. Raises TypeError for what cannot be one."""
    for name in ("CONTRACTS", "THEMES"):
        if not isinstance(getattr(chapter, name), tuple | list):
            raise TypeError(f"{name} is {getattr(chapter, name)!r}, and not a list")
    kinds = [make(kind) for kind in chapter.CONTRACTS]
    register(*kinds)
    for theme in chapter.THEMES:
        module = importlib.import_module(theme, chapter.__package__) if isinstance(theme, str) else theme
        if not isinstance(module, ModuleType):
            raise TypeError(f"THEMES holds modules or names of modules, not {theme!r}")
        for prop in _properties([module]).values():
            for kind in (kind for kind in kinds if prop.topic in kind.topics):
                made: object = kind.trial(prop)
                if not (isinstance(made, type) and issubclass(made, Trial)):
                    raise TypeError(f"the contract {type(kind).__name__} cannot be used: its trial returns {made!r}, no class of Trial")
        yield module


CHAPTERS: dict[str, str] = {}  # the package of an installed chapter → the name of its entry point


def _of_third_parties() -> tuple[ModuleType, ...]:
    """The themes of installed chapters: an entry point of the group ``attncheck.chapters`` names a module with CONTRACTS and THEMES."""
    themes: list[ModuleType] = []
    CHAPTERS.clear()
    for point in metadata.entry_points(group="attncheck.chapters"):
        CHAPTERS[point.value.partition(":")[0].partition(".")[0]] = point.name
        try:
            themes += _chapter(point.load())
            _properties((*BUILT_IN, *themes))
        except (Exception, SystemExit) as error:  # whatever is wrong with it: it is somebody else's, and named
            said = f"it has no {error.name}" if isinstance(error, AttributeError) and error.name in ("CONTRACTS", "THEMES") else str(error)
            said = " ".join(said.split()) or type(error).__name__
            print(f"attncheck: the installed chapter {point.name!r} ({point.value}) cannot be used: {said}", file=sys.stderr)
            raise SystemExit(2) from None  # not 1, which is a finding
    return tuple(themes)


THEMES = (*BUILT_IN, *_of_third_parties())
PROPERTIES: dict[str, Property] = _properties(THEMES)
# The order in which a search tries them: the most telling first. What is not in the table comes last.
RANK: dict[str, int] = {
    name: place for place, name in enumerate(tomllib.loads(Path(__file__).with_name("order.toml").read_text(encoding="utf-8"))["order"])
}


def select(names: tuple[str, ...] = ()) -> tuple[Property, ...]:
    """The properties of these names, globs or themes; all of them by default.

    Raises ValueError that lists near matches for a name that matches none.
    """
    if not names:
        return tuple(PROPERTIES.values())
    chosen: dict[str, Property] = {}
    for name in names:
        found = {p.name: p for p in PROPERTIES.values() if fnmatch.fnmatchcase(p.name, name) or p.theme == name}
        if not found:
            near = difflib.get_close_matches(name, dict.fromkeys((*PROPERTIES, *(p.theme for p in PROPERTIES.values()))), 3, 0.5)
            hint = f"did you mean {', '.join(near)}?" if near else "'attncheck list' prints all of them"
            raise ValueError(f"no property is named {name!r}; {hint}")
        chosen |= found
    return tuple(chosen.values())
