"""What is printed where nobody watches: letter by letter, but for seconds and the machine.

After a change that is meant: python tests/engine/test_golden.py
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
if __name__ == "__main__":
    sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

from properties.engine.doors import cli
from properties.engine.doors.cli import main
from properties.engine.doors.terminal import page_line

GOLDEN = Path(__file__).with_name("golden")
KERNEL = """
import numpy as np

def attention(q, k, v, *, is_causal=False):
    scores = q @ np.swapaxes(k, -1, -2) * (q.shape[-1] or 1) ** -0.5
    if is_causal:
        hidden = np.triu(np.ones(scores.shape[-2:], dtype=bool), k=SHIFT)
        scores = np.where(hidden, -np.inf, scores)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True, initial=-1e300))
    return weights / np.maximum(weights.sum(axis=-1, keepdims=True), 1e-300) @ v

attention.supports = {"framework": "numpy", "dtypes": ["float64"]}
"""
FEW = ["--property", "causality", "--property", "scaling", "--cases", "8", "-n", "1", "-q"]
PRINTED = {
    "refuted": ("2", ["mine.py:attention", *FEW]),
    "nothing_found": ("1", ["mine.py:attention", *FEW]),
    "handshake": ("1", ["mine.py:attention", "--handshake"]),
    "matrix": ("1", ["online_softmax.*", "--property", "causality", "--cases", "6", "-n", "1", "-q"]),
}


def printed(name: str) -> str:
    """What the command writes to standard output, in the working directory."""
    shift, arguments = PRINTED[name]
    Path("mine.py").write_text(KERNEL.replace("SHIFT", shift))
    sys.modules.pop("mine", None)
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        main(arguments)
    text = re.sub(r"\d+\.\d+ s\b", "0.0 s", out.getvalue())
    text = re.sub(r"at most \d\.\d+ of it", "at most … of it", text)
    return re.sub(r"^  on  .*(\n            .*)*", "  on        this machine", text, flags=re.MULTILINE)


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize("name", PRINTED)
def test_what_is_piped_is_as_it_was(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli, "known_mistakes", lambda missing=None: [])
    told = printed(name)
    assert "\x1b" not in told
    assert told == (GOLDEN / f"{name}.txt").read_text(encoding="utf-8"), told


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_page_is_a_link_in_a_terminal_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert f"\x1b]8;;{Path('run.html').resolve().as_uri()}\x1b\\run.html\x1b]8;;\x1b\\" in page_line("run.html", Terminal())
    assert page_line("run.html", io.StringIO()) == ""
    monkeypatch.setenv("NO_COLOR", "1")
    assert page_line("run.html", Terminal()) == ""


if __name__ == "__main__":
    cli.known_mistakes = lambda missing=None: []
    GOLDEN.mkdir(exist_ok=True)
    for each in PRINTED:
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            (GOLDEN / f"{each}.txt").write_text(printed(each), encoding="utf-8")
