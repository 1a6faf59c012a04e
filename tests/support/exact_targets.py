"""The exact target of every topic, and the mistakes that its properties must refute."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import permissive

from properties.catalogue import PROPERTIES
from properties.engine.core.declare import Property
from properties.engine.core.target import Target

# What the chapters hand over, found by the names of their files: EXACT, the exact target of every topic, and MISTAKES, one for every property.
CHAPTERS = [vars(import_module(path.stem)) for path in sorted(Path(__file__).parent.glob("exact_*.py"))]
EXACT: dict[str, Target] = {topic: target for chapter in CHAPTERS for topic, target in chapter.get("EXACT", {}).items()}
MADE: dict[str, Target] = {name: target for chapter in CHAPTERS for name, target in chapter.get("MISTAKES", {}).items()}
EXACT_FOR: dict[str, Target] = {name: target for chapter in CHAPTERS for name, target in chapter.get("EXACT_FOR", {}).items()}
ATTENTION = permissive.attention_target()
LAYER = permissive.layer_target()
BACKWARD = ("gradients", "feature_gradients")  # those: test_gradient_properties, test_feature_gradients
NAMES = tuple(name for name, prop in PROPERTIES.items() if prop.theme not in BACKWARD)


def target_for(prop: Property) -> Target:
    """The exact target that a property is about."""
    return EXACT_FOR.get(prop.name) or EXACT.get(prop.contract) or (LAYER if prop.contract == "multihead" else ATTENTION)
