"""All properties, in the order of a text on attention."""

from __future__ import annotations

import difflib
import fnmatch
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
    scaling,
    softmax,
    symmetry,
    values,
)
from .attention import rounding as biases
from .block import blocks, decoders, encoders
from .cache import caches
from .engine.core.declare import Property
from .multihead import layers
from .pack import packed
from .position import distances, positions

THEMES: tuple[ModuleType, ...] = (
    softmax, values, masks, causality, symmetry, heads, scaling, chunks, numbers, biases, purity, features, gradients, feature_gradients,
    layers, blocks, encoders, decoders, packed, positions, distances, caches,
)  # fmt: skip

PROPERTIES: dict[str, Property] = {
    member.name: member for theme in THEMES for member in vars(theme).values() if isinstance(member, Property)
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
            near = difflib.get_close_matches(name, PROPERTIES, 3, 0.5)
            hint = f"did you mean {', '.join(near)}?" if near else "'attncheck list' prints all of them"
            raise ValueError(f"no property is named {name!r}; {hint}")
        chosen |= found
    return tuple(chosen.values())
