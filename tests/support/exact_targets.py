"""The exact target of every topic, and the mistakes that its properties must refute."""

from __future__ import annotations

from collections import ChainMap
from importlib import import_module
from pathlib import Path

import permissive

from properties.catalogue import PROPERTIES
from properties.engine.core.declare import Property
from properties.engine.core.target import Target

# What the chapters hand over, found by the names of their files: EXACT, the exact target of every topic, and MISTAKES, one for every property.
CHAPTERS = [import_module(path.stem) for path in sorted(Path(__file__).parent.glob("exact_*.py"))]
EXACT, MADE, EXACT_FOR = (
    ChainMap[str, Target](*(vars(chapter).get(name, {}) for chapter in CHAPTERS)) for name in ("EXACT", "MISTAKES", "EXACT_FOR")
)
ATTENTION = permissive.attention_target()
LAYER = permissive.layer_target()
BACKWARD = ("gradients", "feature_gradients")  # those: test_gradient_properties, test_feature_gradients
NAMES = tuple(name for name, prop in PROPERTIES.items() if prop.theme not in BACKWARD)


def target_for(prop: Property) -> Target:
    """The exact target that a property is about."""
    return EXACT_FOR.get(prop.name) or EXACT.get(prop.contract) or (LAYER if prop.contract == "multihead" else ATTENTION)
