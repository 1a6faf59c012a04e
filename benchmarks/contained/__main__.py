"""The table of cheats and what became of each: ``python -m benchmarks.contained`` writes it into docs/contained.md."""

from __future__ import annotations

import sys
import tempfile
import textwrap
import time
from pathlib import Path

from properties.engine.contained import link

from . import cheats, module_cheats
from .judged import OF_MODULES, PROPERTIES, judged

PAGE = Path(__file__).parents[2] / "docs" / "contained.md"
BEGIN, END = "<!-- cheats: python -m benchmarks.contained -->", "<!-- end of cheats -->"


def rows() -> list[str]:
    """One row a cheat."""
    made = ["| what it tries | what became of it | why | seconds |", "|---|---|---|---|"]
    with tempfile.TemporaryDirectory() as folder:
        groups = [
            (cheats.HEAD, PROPERTIES, group, named)
            for group, named in ({"nothing": {"nothing: it is right": "attention = right"}} | cheats.CHEATS).items()
        ]
        modules = {"nothing: it is a right module": "attention = Right"} | module_cheats.CHEATS
        for head, properties, group, named in (*groups, (module_cheats.HEAD, OF_MODULES, "modules with their weights inside", modules)):
            made.append(f"| **{group}** | | | |")
            for name, code in named.items():
                path = Path(folder) / "cheat.py"
                path.write_text(head + code + "\n")
                began = time.monotonic()
                outcome, why = judged(path, cheats.RARE.get(name, 40), 2.0 if "time is over" in name else None, properties)
                why = why.replace(f"{path}:attention", "it").replace(str(path), "it").replace("|", "\\|")
                made.append(f"| {name} | {outcome} | {textwrap.shorten(why, 110, placeholder=' …')} | {time.monotonic() - began:.1f} |")
                print(made[-1], file=sys.stderr)
    return made


if __name__ == "__main__":
    link.LEAST = 1.0
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(before + BEGIN + "\n" + "\n".join(rows()) + "\n" + END + after, encoding="utf-8")
