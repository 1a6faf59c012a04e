"""No way for a module with its weights inside to pass without being right, and none for one that is right to be refuted."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from benchmarks.contained.judged import OF_MODULES, judged
from benchmarks.contained.module_cheats import CHEATS, HEAD
from properties.engine.contained import link

CANNOT_BE_RUN = {  # they show themselves while it is found out how they are called
    "os._exit(0) in its first call",
    "os._exit(0) in its constructor",
    "a forged verdict of a module on every descriptor",
    "the tokens themselves",
    "nothing wherever a module is given a mask",
}
INCOMPLETE = {  # what it would do with one is not known
    "os._exit(0) wherever a module is given a mask",
    "an output of one axis wherever a module is given a mask",
}
BY_NIGHT = {name for number, name in enumerate(CHEATS) if number % 5 not in (0, 3)}


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that takes longer than this hangs."""
    monkeypatch.setattr(link, "LEAST", 2.0)
    monkeypatch.setattr(link, "WAITED", [])


def put(folder: Path, code: str, cases: int = 20) -> tuple[str, str]:
    (folder / "cheat.py").write_text(HEAD + code + "\n")
    return judged(folder / "cheat.py", cases=cases, properties=OF_MODULES)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.nightly] * (name in BY_NIGHT)) for name in CHEATS])
def test_no_cheat_passes(name: str, tmp_path: Path) -> None:
    # of twenty cases the last ones would have to show it, or one of the few with such weights: here are as many as a judge asks for
    late = "hundredth call" in name or name.startswith("right but with")
    outcome, why = put(tmp_path, CHEATS[name], 40 if late else 20)
    assert outcome == ("cannot be run" if name in CANNOT_BE_RUN else "incomplete" if name in INCOMPLETE else "refuted"), why


def test_a_right_one_passes(tmp_path: Path) -> None:
    assert put(tmp_path, "attention = Right") == ("nothing found", "200 cases")


def test_a_wrong_one_without_a_trick_does_not(tmp_path: Path) -> None:
    assert put(tmp_path, "attention = Wrong")[0] == "refuted"
