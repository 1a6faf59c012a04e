"""A module beside a reference from which it differs in a few words, judged in the working directory."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from properties.engine.doors.cli import main

HEAD = "import torch\nfrom torch import nn\n\nclass NAME(nn.Module):\n"
Changes = Iterable[tuple[str, str]]


Row = tuple[str, str, str, Changes]  # the verdict, what is told, the body of a class, what is changed in it


def judged(row: Row, cases: int, after: str = "") -> dict[str, Any]:
    """The record of ``ModelNew``, the changed body, beside that body as ``Model``, of which the row is true; ``after``: of the reference's file."""
    verdict, says, reference, changes = row
    Path("ref.py").write_text(HEAD.replace("NAME", "Model") + reference + after)
    changed = reference
    for one in changes:
        assert one[0] in changed
        changed = changed.replace(*one)
    Path("one.py").write_text(HEAD.replace("NAME", "ModelNew") + changed)
    main(["judge", "one.py", "--reference", "ref.py", "--cases", str(cases), "--round", "4", "--json", "scores.jsonl"])
    (told,) = map(json.loads, Path("scores.jsonl").read_text().splitlines())
    assert told["verdict"] == verdict and says in (told.get("why") or json.dumps(told["findings"])), told
    return dict(told)
