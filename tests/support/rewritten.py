"""A module beside a reference from which it differs in a few words, judged in the working directory."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from properties.engine.doors.cli import main

HEAD = "import torch\nfrom torch import nn\n\nclass NAME(nn.Module):\n"
Changes = Iterable[tuple[str, str]]


def judged(reference: str, changes: Changes, cases: int, after: str = "") -> dict[str, Any]:
    """The record of ``ModelNew``, the body of a class in which each change is made, beside that body as ``Model``; ``after``: of REF's file."""
    Path("ref.py").write_text(HEAD.replace("NAME", "Model") + reference + after)
    changed = reference
    for one in changes:
        assert one[0] in changed
        changed = changed.replace(*one)
    Path("one.py").write_text(HEAD.replace("NAME", "ModelNew") + changed)
    main(["judge", "one.py", "--reference", "ref.py", "--cases", str(cases), "--round", "4", "--json", "scores.jsonl"])
    (told,) = map(json.loads, Path("scores.jsonl").read_text().splitlines())
    assert isinstance(told, dict)
    return told


def said(told: dict[str, Any]) -> str:
    """Why nobody knows, or what was found."""
    return str(told.get("why") or json.dumps(told["findings"]))
