"""The README is run: its files are written, its commands are run where the wheel is installed, its output and its picture are compared.

``support/executed.py`` says how.

    python tests/test_readme.py        brings what the README shows up to date
"""

from __future__ import annotations

import configparser
import difflib
import re
import shlex
import shutil
import sys
import tempfile
import tomllib
from pathlib import Path

import pytest
from executed import LEFT_OUT, blocks, commands, missing, plain, walk
from installed import ROOT, Installed, install

README = ROOT / "README.md"


@pytest.fixture(scope="module")
def attncheck(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return install(tmp_path_factory.mktemp("wheel"))


def test_readme_runs(attncheck: Installed, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    text, count = README.read_text(encoding="utf-8"), 0
    for command, status, out, errors in walk(text, attncheck, tmp_path):
        count += 1
        assert status == command.status, f"$ {command.text}\n{out}{errors}"
        gone = missing(command.shown, out.splitlines())
        assert gone is None, f"$ {command.text}\nthe README shows\n{gone}\nbut this is printed:\n{out}"
    assert count == 4
    (picture,) = re.findall(r"!\[.*\]\((.*)\)", text)
    assert words(tmp_path / Path(picture).name) == words(ROOT / picture)


def words(picture: Path) -> list[str]:
    """What is written in a picture of a finding, up to the second title: expected and actual weights."""
    said = re.findall(r"<text[^>]*>([^<]*)<", picture.read_text(encoding="utf-8"))
    return said[: said.index("actual") + 1]


def test_it_is_a_screen_and_a_half() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) < 100


def test_links_lead_somewhere() -> None:
    written = {"docs/reference/" + path for path in ("properties.md", "commands.md", "supports.md", "cases.md", "json.md", "python.md")}
    for page in (README, *ROOT.glob("*.md")):
        for place in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8")):
            assert place in written or (ROOT / place).exists(), f"{page.name}: {place}"


def test_commands_that_are_not_run_exist() -> None:
    tox = configparser.ConfigParser(interpolation=None)
    tox.read(ROOT / "tox.ini", encoding="utf-8")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    pages = [path.read_text(encoding="utf-8") for path in (README, *sorted((ROOT / "docs").rglob("*.md")))]
    seen = [c for text in pages for block in blocks(text) if block.kind == "console" for c in commands(block.body) if c.by_name]
    seen = [command for command in seen if command.text.startswith("tox")]
    for command in seen:
        words = shlex.split(command.text)
        assert words[1:3] == ["run", "-e"]
        factors = all(re.fullmatch(r"py3\d+", f) or f"{f}:" in tox["testenv"]["deps"] for f in words[3].split("-"))
        assert tox.has_section(f"testenv:{words[3]}") or factors, command.text
    assert [c.text for c in seen][:2] == ["tox run -e verify", "tox run -e test"] and len(seen) > 9
    named = {extra for text in pages for extra in re.findall(r"\"(?:\.|attncheck)\[(\w+)\]\"", text)}
    assert {"torch", "jax", "report"} <= named <= set(extras)


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
        for picture in re.findall(r"!\[.*\]\((.*)\)", text):
            shutil.copy(work / Path(picture).name, ROOT / picture)
    README.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(bring_up_to_date())
