"""The README is run: its files are written, its commands are run where the wheel is installed, its output is compared.

``support/executed.py`` says how. A TOML block without a name is an entry of impls/deviations.toml.

    python tests/test_readme.py        brings what the README shows up to date
"""

from __future__ import annotations

import configparser
import dataclasses
import difflib
import re
import shlex
import sys
import tempfile
import tomllib
from collections import Counter
from pathlib import Path

import pytest
from executed import LEFT_OUT, blocks, commands, missing, plain, walk
from installed import ROOT, Installed, install

README = ROOT / "README.md"


@pytest.fixture(scope="module")
def attncheck(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return install(tmp_path_factory.mktemp("wheel"))


def test_readme_runs(attncheck: Installed, tmp_path: Path) -> None:
    count = 0
    for command, status, out, errors in walk(README.read_text(encoding="utf-8"), attncheck, tmp_path):
        count += 1
        assert status == command.status, f"$ {command.text}\n{out}{errors}"
        gone = missing(command.shown, out.splitlines())
        assert gone is None, f"$ {command.text}\nthe README shows\n{gone}\nbut this is printed:\n{out}"
    assert count >= 8


def test_commands_that_are_not_run_exist() -> None:
    tox = configparser.ConfigParser(interpolation=None)
    tox.read(ROOT / "tox.ini", encoding="utf-8")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    seen = [c for block in blocks(README.read_text(encoding="utf-8")) if block.kind == "console" for c in commands(block.body) if c.by_name]
    for command in seen:
        words = shlex.split(command.text)
        if words[0] == "tox":
            assert words[1:3] == ["run", "-e"]
            factors = all(re.fullmatch(r"py3\d+", f) or f"{f}:" in tox["testenv"]["deps"] for f in words[3].split("-"))
            assert tox.has_section(f"testenv:{words[3]}") or factors, command.text
    assert [c.text for c in seen][:2] == ["tox run -e verify", "tox run -e test"]
    for extra in re.findall(r"pip install \"\.\[(\w+)\]\"", README.read_text(encoding="utf-8")):
        assert extra in extras


def table(heading: str) -> list[list[str]]:
    """The rows of the table below the row that starts so."""
    lines = README.read_text(encoding="utf-8").splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith(f"| {heading} |"))
    rows = []
    for line in lines[at + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def test_themes_and_their_number_of_properties() -> None:
    from properties.catalogue import PROPERTIES

    count = Counter(prop.theme for prop in PROPERTIES.values())
    assert [(theme, int(number)) for theme, number, _ in table("theme")] == list(count.items())


def test_keys_of_supports_and_their_defaults() -> None:
    from properties.engine.core.supports import Supports

    rows = {name.strip("`"): default.strip("`") for name, default, _ in table("key")}
    fields = {field.name: field.default for field in dataclasses.fields(Supports)}
    assert list(rows) == list(fields)
    for name, default in fields.items():
        if isinstance(default, bool | str):
            assert rows[name] == (f'"{default}"' if isinstance(default, str) else str(default).lower()), name


def test_options(attncheck: Installed, tmp_path: Path) -> None:
    usage = attncheck.run(["attncheck", "--help"], tmp_path).stdout
    told = {word for name, _ in table("option") for word in re.findall(r"--\w+", name)}
    assert told == set(re.findall(r"^ .*?(--\w+)", usage.split("options:")[1], re.MULTILINE)) - {"--help"}


def test_the_deviation_is_a_real_one() -> None:
    shown = [
        tomllib.loads(block.body)["deviation"][0]
        for block in blocks(README.read_text(encoding="utf-8"))
        if block.kind == "toml" and not block.name
    ]
    real = tomllib.loads((ROOT / "impls" / "deviations.toml").read_text(encoding="utf-8"))["deviation"]
    for entry in shown:
        assert any(entry.items() <= other.items() for other in real)


def test_the_map_names_files_that_exist() -> None:
    """Every file of the map, in the folder of its line; and every folder of ``properties`` is in it."""
    (house,) = (block.body for block in blocks(README.read_text(encoding="utf-8")) if block.kind == "text")
    places: list[str] = []
    for line in house.splitlines():
        place, says = line.split(maxsplit=1)
        assert (ROOT / place).exists(), place
        assert (ROOT / place).is_dir() == place.endswith("/"), place
        for name in re.findall(r"\b\w+(?:\.py|\.toml|/)", says):
            assert (ROOT / place / name).exists(), f"{place}{name}"
        places.append(place)
    folders = {f"{path.parent.relative_to(ROOT).as_posix()}/" for path in (ROOT / "properties").rglob("__init__.py")}
    assert folders <= set(places) and len(set(places)) == len(places)


def bring_up_to_date() -> None:
    """Replace every shown line that is no longer printed by the printed line that is most like it."""
    text = README.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder) / "work"
        work.mkdir()
        for command, _, out, _ in walk(text, install(Path(folder)), work):
            printed = out.splitlines()
            if missing(command.shown, printed) is None:
                continue
            print(f"$ {command.text}\n{out}")
            known = {plain(line) for line in printed}
            new = [
                line if line == LEFT_OUT or plain(line) in known else next(iter(difflib.get_close_matches(line, printed, 1, 0.3)), LEFT_OUT)
                for line in command.shown
            ]
            text = text.replace("\n".join(command.shown), "\n".join(new))
    README.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(bring_up_to_date())
