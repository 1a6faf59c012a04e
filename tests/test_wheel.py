"""The wheel that the sdist gives holds exactly the packages of the tree, under one name, and works from an empty folder.

That of the tree itself is what tests/test_readme.py runs with.
"""

from __future__ import annotations

import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from installed import ROOT, Installed, install

TARGET = "numpy_matmul.attention"


@pytest.fixture(scope="module")
def attncheck(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return install(tmp_path_factory.mktemp("wheel"), sdist=True)


def in_tree() -> set[str]:
    """The files of the two folders that belong into the wheel."""
    kept = (path for folder in ("impls", "properties") for path in (ROOT / folder).rglob("*"))
    return {
        f"attncheck/{path.relative_to(ROOT).as_posix()}"
        for path in kept
        if path.suffix in (".py", ".toml", ".txt", ".html", ".css", ".js") or path.name == "py.typed"
    }


def test_every_package_of_the_tree_is_declared() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]["packages"]
    assert sorted(declared) == sorted({str(Path(name).parent).replace("/", ".") for name in in_tree() if name.endswith(".py")})


def test_contents_of_the_sdist(attncheck: Installed) -> None:
    (sdist,) = attncheck.source.parent.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {name.removeprefix("attncheck/") for name in in_tree()} <= names
    assert {"pyproject.toml", "README.md", "LICENSE", "conftest.py", "PKG-INFO"} <= names
    assert not [name for name in names if name.endswith(".pyc")]


def test_every_file_of_the_manifest_is_there() -> None:
    """What an sdist has beside the packages: enough to run the tests."""
    rules = [line.split() for line in (ROOT / "MANIFEST.in").read_text(encoding="utf-8").splitlines()]
    assert {name for rule, *names in rules if rule == "graft" for name in names} == {"docs", "tests", "benchmarks"}
    assert all(list(ROOT.glob(name)) for rule, *names in rules if rule in ("include", "graft") for name in names)


def test_classifiers_and_environments_are_for_the_same_pythons() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    told = [name.rpartition(" ")[2] for name in project["classifiers"] if name.startswith("Programming Language :: Python :: 3.")]
    assert told == ["3.11", "3.12", "3.13", "3.14"] and project["requires-python"] == f">={told[0]}"
    tox = (ROOT / "tox.ini").read_text(encoding="utf-8")
    assert all(f"py{name.replace('.', '')}" in tox.split("skip_missing")[0] for name in told[1:])


def test_contents(attncheck: Installed) -> None:
    names = {name for name in zipfile.ZipFile(attncheck.wheel).namelist() if ".dist-info/" not in name}
    assert names == in_tree()
    assert "attncheck/__init__.py" not in names  # a namespace
    assert {"attncheck/impls/py.typed", "attncheck/properties/py.typed", "attncheck/impls/deviations.toml"} <= names
    assert {path.name for path in attncheck.target.iterdir() if "dist-info" not in path.name} == {"attncheck", "bin"}


def test_licence_and_entry_points(attncheck: Installed) -> None:
    wheel = zipfile.ZipFile(attncheck.wheel)
    info = next(name.split("/")[0] for name in wheel.namelist() if ".dist-info/" in name)
    assert b"Apache License" in wheel.read(f"{info}/licenses/LICENSE")
    points = wheel.read(f"{info}/entry_points.txt").decode()
    assert "attncheck = attncheck.properties.__main__:entry" in points
    assert "properties.plugin = attncheck.properties.plugin" in points


def test_list(attncheck: Installed, tmp_path: Path) -> None:
    listed = attncheck.run(["attncheck", "list"], tmp_path)
    assert listed.returncode == 0, listed.stderr
    assert "rows_sum_to_one" in listed.stdout


def test_check_of_a_builtin(attncheck: Installed, tmp_path: Path) -> None:
    checked = attncheck.run(["attncheck", TARGET, "--cases", "5"], tmp_path)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert f"NOTHING FOUND  {TARGET}" in checked.stdout


def test_typo(attncheck: Installed, tmp_path: Path) -> None:
    typo = attncheck.run(["attncheck", "numpy_matmul.atention"], tmp_path)
    assert typo.returncode == 2
    assert TARGET in typo.stderr and "did you mean" in typo.stderr
    assert "Traceback" not in typo.stderr


def test_the_dotted_name_is_the_same_target(attncheck: Installed, tmp_path: Path) -> None:
    command = ["attncheck", "attncheck.impls.numpy_matmul:attention", "--property", "causality", "--cases", "5"]
    assert attncheck.run(command, tmp_path).returncode == 0


def test_pytest(attncheck: Installed, tmp_path: Path) -> None:
    command = ["pytest", "--pyargs", "attncheck.properties", "--impl", TARGET, "--cases", "5", "-q"]
    ran = attncheck.run(command, tmp_path)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert " passed" in ran.stdout


def test_clone_and_wheel_together_register_the_plugin_once(attncheck: Installed) -> None:
    command = ["pytest", "properties", "--impl", TARGET, "--collect-only", "-q"]
    ran = attncheck.run(command, attncheck.source)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    tests = [line for line in ran.stdout.splitlines() if "::" in line]
    assert f"properties/test_properties.py::test_property[{TARGET}-rows_sum_to_one]" in tests
    assert len(tests) == len(set(tests))
