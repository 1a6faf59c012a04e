"""Skeletons of ``attncheck new``: for every theme and every file of mutants, in one copy of the tree."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from properties import catalogue
from properties.engine.core.contract import contracts
from properties.engine.doors.cli import main
from properties.engine.doors.skeleton import laid_out

ROOT = Path(__file__).resolve().parents[1]
# One skeleton after another, named after its theme and its contract; what was written, a line each.
WRITE = """
from impls.mutants import load_all
from properties import catalogue
from properties.engine.core.contract import contracts
from properties.engine.doors import new

themes = {(prop.theme, prop.contract): None for prop in catalogue.PROPERTIES.values()}
mutants = {}
for mutant in load_all()[0].values():
    mutants.setdefault((mutant.name.partition(".")[0], mutant.contract), mutant.killed_by)
for theme, contract in themes:
    new.main(["property", f"of_{theme}_{contract}", "--theme", theme, "--contract", contract])
for contract in contracts():
    new.main(["property", f"first_of_{contract}", "--theme", f"more_{contract}", "--contract", contract])
for (theme, contract), killer in mutants.items():
    new.main(["mutant", f"of_{theme}_{contract}", "--theme", theme, "--killed-by", killer, "--contract", contract])
new.main(["contract", "gated_unit"])
new.main(["contract", "zone", "--theme", "a_theme_with_a_rather_long_name"])
"""
# In another process: what the catalogue and the registry know of them.
READ = """
from impls.mutants import load_all
from properties import catalogue

for prop in catalogue.select():
    print("property", prop.theme, prop.contract, prop.name)
for mutant in load_all()[0].values():
    print("mutant", mutant.name.partition(".")[0], mutant.contract, mutant.killed_by, mutant.name.partition(".")[2])
"""


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what skeletons are written into."""
    root = tmp_path_factory.mktemp("clone")
    for folder in ("properties", "impls"):
        shutil.copytree(ROOT / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    shutil.copy(ROOT / "pyproject.toml", root)
    return root


def ran(tree: Path, *arguments: str) -> list[str]:
    """The lines that a command of Python prints in that tree."""
    mine = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "PYTHONPATH"))}
    mine |= {"OMP_NUM_THREADS": "1", "PYTHONUTF8": "1"}
    done = subprocess.run([sys.executable, *arguments], cwd=tree, env=mine, capture_output=True, encoding="utf-8", timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("arguments", "taken"),
    [
        (("property", "np", "--theme", "values"), "np"),
        (("property", "declare", "--theme", "values"), "declare"),
        (("property", "max", "--theme", "values"), "max"),
        (("property", "constant_values_are_returned", "--theme", "values"), "constant_values_are_returned"),
        (("mutant", "attention", "--theme", "causal", "--killed-by", "rows_sum_to_one"), "attention"),
    ],
)
def test_a_name_that_means_something_there_is_taken(arguments: tuple[str, ...], taken: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new", *arguments]) == 2
    assert capsys.readouterr().err.startswith(f"attncheck: {taken} is taken: ")


@pytest.mark.nightly
def test_every_theme_and_every_file_of_mutants_has_a_skeleton_that_can_be_imported(tree: Path) -> None:
    pytest.importorskip("torch")
    from impls.mutants import load_all

    mutants: dict[tuple[str, str], str] = {}
    for mutant in load_all()[0].values():
        mutants.setdefault((mutant.name.partition(".")[0], mutant.contract), mutant.killed_by)
    ran(tree, "-c", WRITE)
    lines = [line.split() for line in ran(tree, "-c", READ)]
    properties = {(theme, contract): name for kind, theme, contract, name, *_ in lines if kind == "property"}  # the last of each
    for prop in catalogue.select():
        assert properties[prop.theme, prop.contract] == f"of_{prop.theme}_{prop.contract}"
    for name in contracts():
        assert f"first_of_{name}" in properties.values()
    made = {(theme, contract): rest for kind, theme, contract, *rest in lines if kind == "mutant"}
    for (theme, contract), killer in mutants.items():
        told, name = made[theme, contract]
        assert told == killer and name.lower().replace("_", "") == f"of_{theme}_{contract}".replace("_", "")
    ran(tree, "-m", "ruff", "check", "--no-cache", ".")
    ran(tree, "-m", "ruff", "format", "--no-cache", "--check", ".")


def test_a_declaration_is_laid_out_as_ruff_does() -> None:
    assert laid_out("f(", ["a", "b"], ")") == "f(a, b)"
    long = ["a" * 70, "b" * 60]
    assert laid_out("f(", long, ") -> None:") == f"f(\n    {', '.join(long)}\n) -> None:"
    longer = [*long, "c" * 20]
    assert laid_out("f(", longer, ")").splitlines() == ["f(", *(f"    {part}," for part in longer), ")"]
