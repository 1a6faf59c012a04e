"""No way to pass without being right: every cheat is refuted, or the run says that it could not try enough; none passes."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks.contained.__main__ import PAGE
from benchmarks.contained.cheats import CHEATS, HEAD, RARE
from benchmarks.contained.judged import judged
from properties.engine.contained import link

ALL = {name: code for group in CHEATS.values() for name, code in group.items() if "import torch" not in code or find_spec("torch")}
CANNOT_BE_RUN = {  # they show themselves in the first calls, which find out what a target takes
    "os._exit(0) in the first call",
    "os._exit(0) on import",
    "sys.exit(0) on import",
    "an answer of a hundred dimensions",
    "what ends a search",
    "GeneratorExit",
    "KeyboardInterrupt",
    "a forged verdict on every descriptor",
    "the worker's own methods patched",
    "places outside of the memory",
    "one piece of memory claimed sixty times",
    "an array that lies about its shape",
    "no array",
    "a lazy tensor",
    "an array that says it is equal to all",
    "another contract",
    "nonsense",
}
OF_NAMESPACES = {
    "SIGKILL to the process that started it",
    "right in a process that was not forked",
}  # what keeps a worker apart shows in these
# These raise whatever is asked, so that every reading is asked.
LONG = {
    "one piece of memory claimed sixty times",
    "GeneratorExit",
    "an array that lies about its shape",
    "a forged verdict on every descriptor",
}
BY_NIGHT = LONG | {name for number, name in enumerate(ALL) if number % 9 in (1, 3, 5, 7)} - OF_NAMESPACES  # of every group some
INCOMPLETE = {"os._exit(0) in a question of the handshake", "no parameter", "a length of one", "sleeping until the time is over"}


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that takes longer than this hangs."""
    monkeypatch.setattr(link, "LEAST", 0.5)
    monkeypatch.setattr(link, "WAITED", [])


def put(folder: Path, code: str, **how: float) -> tuple[str, str]:
    (folder / "cheat.py").write_text(HEAD + code + "\n")
    return judged(folder / "cheat.py", **how)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.nightly] * (name in BY_NIGHT)) for name in ALL])
def test_no_cheat_passes(name: str, tmp_path: Path) -> None:
    seconds = {"seconds": 2.0} if "time is over" in name else {}
    outcome, why = put(tmp_path, ALL[name], cases=RARE.get(name, 40), **seconds)
    expected = "cannot be run" if name in CANNOT_BE_RUN else "incomplete" if name in INCOMPLETE else "refuted"
    assert outcome == expected, why


def test_there_are_enough() -> None:
    assert len(set(ALL) - BY_NIGHT) >= 40 and set(ALL) >= CANNOT_BE_RUN | INCOMPLETE


def test_the_table_says_that_none_passes() -> None:
    """Those that the gate leaves to the night, too."""
    rows = [row for row in PAGE.read_text(encoding="utf-8").splitlines() if row.startswith("| ") and "| nothing found |" in row]
    assert [row.split(" | ")[0] for row in rows] == ["| nothing: it is right", "| nothing: it is a right module"]


def test_a_right_one_passes(tmp_path: Path) -> None:
    outcome, why = put(tmp_path, "attention = right")
    assert outcome == "nothing found", why
