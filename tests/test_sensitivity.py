"""The measurement of the smallest fault asks the properties that its recorded figures name: one that has moved would be missed in silence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")

from benchmarks.sensitivity import THEMES
from properties.catalogue import PROPERTIES

RECORDED = Path(__file__).parents[1] / "benchmarks/sensitivity.json"


def test_the_properties_of_the_record_are_asked() -> None:
    kinds = json.loads(RECORDED.read_text(encoding="utf-8")).values()
    named = {name for faults in kinds for judges in faults.values() for name in judges["attncheck"]["by"]}
    assert len(named) > 3 and all(PROPERTIES[name].theme in THEMES for name in named)
    assert set(THEMES) <= {prop.theme for prop in PROPERTIES.values()}
