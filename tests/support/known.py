"""A known deviation, the kernel that it is about, and a file of it."""

from __future__ import annotations

import datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import permissive

from properties.attention.case import Case
from properties.engine.core.target import Target
from properties.engine.search.deviations import Deviation
from properties.engine.search.probe import make_target

HERE = "numpy " + metadata.version("numpy")
ENTRY = {
    "targets": ["kernel"],
    "properties": ["*"],
    "when": "keys > 2",
    "kind": "library bug",
    "reason": "a test",
    "version": "numpy 0",
    "case": "Case(keys=3)",
    "shows": "rows_sum_to_one",
}


def deviation(**changes: Any) -> Deviation:
    """Known: rows of three keys and more do not sum to one."""
    facts: dict[str, Any] = {
        "targets": ("kernel",),
        "properties": ("rows_*",),
        "when": "keys > 2",
        "kind": "library bug",
        "reason": "a test",
        "version": HERE,
        "case": Case(keys=3),
        "shows": "rows_sum_to_one",
    }
    return Deviation(**facts | changes)


def written(path: Path, **changes: Any) -> Path:
    """A file of one entry, with some facts changed or left out."""
    facts = {name: value for name, value in {**ENTRY, **changes}.items() if value is not None}
    lines = [f"{k} = {v if isinstance(v, datetime.date) else repr(v)}" for k, v in facts.items()]
    path.write_text("\n".join(["[[deviation]]", *lines]))
    return path


class Kernel:
    """Right but for a factor where there are so many keys, or where the mask is causal."""

    def __init__(self, least: int = 3, causal: bool = False) -> None:
        self.least, self.causal = least, causal

    def __call__(self, q: Any, k: Any, v: Any, *, is_causal: bool = False) -> Any:
        wrong = k.shape[2] >= self.least or (self.causal and is_causal)
        return permissive.attention(q, k, v, is_causal=is_causal) * (1.01 if wrong else 1.0)


def target(**how: Any) -> Target:
    return make_target("kernel", Kernel(**how), {"framework": "torch"})
